# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernels that vLLM picks by itself for the linear layers of an NVFP4 checkpoint on a GB10. No I/O, no Ansible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARLIN = "marlin"
"""The kernels that read 8 or 4 bits and compute in 16."""


def is_weight_only(quantization: Mapping[str, Any]) -> bool:
    """Tell whether only the weights of a compressed-tensors or ModelOpt checkpoint are quantised.

    :param quantization: C(quantization_config) of the checkpoint, or its hf_quant_config.json
    """
    if "W4A16" in str(quantization.get("quant_algo")).upper():
        return True
    groups = quantization.get("config_groups")
    return isinstance(groups, Mapping) and all(
        isinstance(group, Mapping) and group.get("input_activations") is None for group in groups.values()
    )


def default_fp4_kernel(quantization: Mapping[str, Any]) -> str:
    """Return the default kernel of linear layers, empty unless the checkpoint is NVFP4 and says how its activations are stored."""
    method = str(quantization.get("quant_method") or "").lower().replace("-", "_")
    modelopt = method == "modelopt_fp4" or (
        method in ("", "modelopt") and str(quantization.get("quant_algo")).upper() == "NVFP4"
    )
    # Recipes often have the name of the format without its groups.
    packed = "nvfp4-pack" in str(quantization.get("format")) and isinstance(quantization.get("config_groups"), Mapping)
    if not modelopt and not packed:
        return ""
    return MARLIN if is_weight_only(quantization) else "flashinfer_cutlass"
