# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The expected fast path of a service: kernels, graphs and drafts, for C(fast_path.compare).

The options of the launch take precedence, then C(expect) of the recipe, then the default choice of vLLM on a GB10 if it is certain.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from .._common.plain_data import Written
from .._compat.rulebook import SELECTION, Launch
from .._proof.fast_path import KERNELS, attention, kernel
from .._vllm import versions
from .._vllm.fp4_kernels import default_fp4_kernel
from .service import JudgedLaunch, ServiceSpec


def of_service(service: ServiceSpec, args: Mapping[str, Any], launch: JudgedLaunch) -> dict[str, Any]:
    """Return the expected fast path of a planned service, as C(fast_path.compare) takes it."""
    model = (service.model.get("repo"), service.config, service.quant_config)
    return copy.deepcopy(_once(Written((args, launch.env, launch.vllm_version, *model, service.expect))))


@lru_cache(maxsize=1024)
def _once(launch_key: Written) -> dict[str, Any]:
    """Return the expected fast path of a launch, computed once for many hosts."""
    args, env, version, repo, config, quant_config, stated = launch_key.content
    launch = Launch(
        image="",
        entry={},
        version=versions.parse_version(version) if version else None,
        entrypoint="serve",
        entrypoint_known=True,
        args=args,
        problems=[],
        env={str(key): str(value) for key, value in env.items()},
        repo=str(repo or ""),
        config=config,
        quant_config=quant_config or {},
    )
    return expectation(launch, stated)


def expectation(launch: Launch, stated: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the expected fast path of a launch as plain data.

    stated: the entries of C(expect) of the recipe and of its variants; later ones take precedence.
    """
    expected: dict[str, Any] = {}
    for layer in (_defaults(launch), *(_stated(entry, launch.method) for entry in stated), _requested(launch)):
        for key, value in layer.items():
            required = bool(value.get("required") or (expected.get(key) or {}).get("required"))
            expected[key] = {**value, "required": required}
    formats = {"nvfp4": "nvfp4", "nvfp4_weights": "nvfp4", "fp8_block": "fp8", "mxfp4": "mxfp4", "bf16": "unquantized"}
    if "moe_backend" in expected and launch.expert_format in formats:
        expected["moe_backend"]["format"] = formats[launch.expert_format]
    if "linear_kernel" in expected and default_fp4_kernel(launch.quantization):
        expected["linear_kernel"]["format"] = "nvfp4"  # FP8 layers of the checkpoint use other kernels
    spec = launch.spec
    return {
        **expected,
        "eager": launch.args.get("enforce-eager") is True,
        "prefix_caching": launch.args.get("enable-prefix-caching"),
        "async_scheduling": launch.args.get("async-scheduling"),
        "max_num_batched_tokens": launch.args.get("max-num-batched-tokens"),
        "kv_cache_dtype": launch.kv_dtype or None,
        "fp4_weight_only": launch.weight_only,
        "draft": {"method": launch.method, "tokens": spec.get("num_speculative_tokens")} if spec else None,
    }


def _requested(launch: Launch) -> dict[str, dict[str, Any]]:
    """Return the kernels that options and variables name."""
    requested: dict[str, dict[str, Any]] = {}
    linear = launch.word("linear-backend") or (
        launch.env.get("VLLM_NVFP4_GEMM_BACKEND", "").lower() if launch.before("0.24.0") else ""
    )
    for key, name, option in (
        ("attention_backend", attention(launch.attention), "attention-backend"),
        ("moe_backend", launch.word("moe-backend"), "moe-backend"),
        ("linear_kernel", linear, "linear-backend"),
    ):
        if name and name.lower() != "auto":
            backend = name if key == "attention_backend" else kernel(name)
            requested[key] = {"any_of": [backend], "why": f"{option} asks for it", "option": option}
    return requested


def _stated(entry: Mapping[str, Any], method: str) -> dict[str, dict[str, Any]]:
    """Return the kernels, and the acceptance of drafts of a method, in an entry of a recipe's C(expect)."""
    why = f"the recipe says so ({entry.get('source')})"
    stated: dict[str, dict[str, Any]] = {}
    for key in KERNELS:
        if entry.get(key):
            names = [str(name) for name in (entry[key] if isinstance(entry[key], list) else [entry[key]])]
            backends = [attention(name) if key == "attention_backend" else kernel(name) for name in names]
            stated[key] = {"any_of": backends, "why": why, "required": entry.get("required") is True}
    if entry.get("min_acceptance") is not None and entry.get("draft") == method:
        share = float(entry["min_acceptance"])
        stated["min_acceptance"] = {"share": share, "why": why, "required": entry.get("required") is True}
    return stated


# Variables that change the default choice of vLLM up to 0.23.
_CHOICE_VARIABLES = (
    "VLLM_USE_FLASHINFER_MOE_",
    "VLLM_FLASHINFER_MOE_BACKEND",
    "VLLM_MXFP4_USE_MARLIN",
    "VLLM_TEST_FORCE_FP8",
)


def _defaults(launch: Launch) -> dict[str, dict[str, Any]]:
    """Return the default kernels of vLLM on a GB10 with FlashInfer, if they are certain."""
    why = f"vLLM {launch.version} picks it on a GB10 by itself ({SELECTION})"
    names = {"attention_backend": _attention_default(launch)}
    if launch.version is not None and not launch.before("0.17.0"):
        if not any(variable.startswith(_CHOICE_VARIABLES) for variable in launch.env):
            names["moe_backend"] = _moe_default(launch)
        names["linear_kernel"] = list(filter(None, [default_fp4_kernel(launch.quantization)]))
    return {key: {"any_of": backends, "why": why} for key, backends in names.items() if backends}


def _attention_default(launch: Launch) -> list[str]:
    if launch.version is None or launch.before("0.12.0"):
        return []
    if launch.gemma4:
        return ["TRITON_ATTN"]
    if launch.gpt_oss:
        return ["TRITON_ATTN"] if launch.before("0.28.0") else ["FLASHINFER", "TRITON_ATTN"]
    if launch.sparse_mla:
        return ["FLASHINFER_MLA_SPARSE_SM120"]
    if launch.mla:
        return ["TRITON_MLA"]
    if not launch.head_sizes or not launch.head_sizes <= {128, 256}:
        return []
    # Of usual head sizes the data type of the KV cache decides.
    if not launch.kv_dtype:
        may_be_fp8 = launch.kv_scales or launch.checkpoint.startswith("modelopt")
        return ["FLASH_ATTN", "FLASHINFER"] if may_be_fp8 else ["FLASH_ATTN"]
    by_prefix = {"fp8": ["FLASHINFER"], "turboquant": ["TURBOQUANT"]}
    return next((backends for prefix, backends in by_prefix.items() if launch.kv_dtype.startswith(prefix)), [])


def _moe_default(launch: Launch) -> list[str]:
    if launch.expert_format == "fp8_block":
        deep = not launch.before("0.24.0") and launch.env.get("VLLM_USE_DEEP_GEMM", "1") != "0"
        return ["deep_gemm", "triton"] if deep else ["triton"]
    if launch.expert_format.startswith("nvfp4") and not default_fp4_kernel(launch.quantization):
        return []
    return {
        "nvfp4": ["flashinfer_cutlass"],
        "nvfp4_weights": ["marlin"],
        "mxfp4": ["marlin"],
        "bf16": ["triton"] if launch.before("0.20.0") else ["flashinfer_cutlass"],
    }.get(launch.expert_format, [])
