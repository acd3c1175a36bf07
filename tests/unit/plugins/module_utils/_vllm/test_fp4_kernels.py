# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The default kernel of linear layers in 4 bits, by what a checkpoint says of its activations."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.fp4_kernels import default_fp4_kernel, is_weight_only

PACKED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
W4A4 = {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 4}}
W4A16 = {"weights": {"num_bits": 4}, "input_activations": None}


@pytest.mark.parametrize(
    ("quantization", "kernel"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "flashinfer_cutlass"),
        ({"quant_algo": "NVFP4"}, "flashinfer_cutlass"),
        ({"quant_method": "modelopt-fp4"}, "flashinfer_cutlass"),
        ({**PACKED, "config_groups": {"group_0": W4A4}}, "flashinfer_cutlass"),
        ({**PACKED, "config_groups": {"group_0": W4A16}}, "marlin"),
        (PACKED, ""),  # without groups it does not say how activations are stored
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ""),
        ({"quant_method": "gptq", "bits": 4}, ""),
        ({}, ""),
    ],
)
def test_the_kernel_follows_from_the_activations(quantization: dict[str, Any], kernel: str) -> None:
    assert default_fp4_kernel(quantization) == kernel


def test_one_group_with_activations_makes_a_checkpoint_more_than_weight_only() -> None:
    assert is_weight_only({"quant_algo": "W4A16_NVFP4"})
    assert is_weight_only({"config_groups": {"group_0": W4A16}})
    assert not is_weight_only({"config_groups": {"group_0": W4A16, "group_1": W4A4}})
    assert not is_weight_only({})
