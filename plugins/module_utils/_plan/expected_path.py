# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fast path of a service is: the kernels, graphs and drafts that it is expected to run, for C(fast_path.compare).

Three sources, the first that speaks wins: what the launch asks for, since people overrule recipes; what the recipe says
(C(expect)); what vLLM picks on a GB10 by itself, where that is certain.
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
from .service import JudgedLaunch, ServiceSpec


def of_service(service: ServiceSpec, args: Mapping[str, Any], launch: JudgedLaunch) -> dict[str, Any]:
    """Return what a planned service should run.

    :param service: as C(recipes.resolve_service) returns it
    :param args: the options that it is started with
    :param launch: as it is judged
    :returns: what C(fast_path.compare) takes as expected
    """
    said = (args, launch.env, launch.vllm_version, service.model.get("repo"), service.config, service.quant_config)
    return copy.deepcopy(_once(Written((*said, service.expect))))


@lru_cache(maxsize=1024)
def _once(asked: Written) -> dict[str, Any]:
    """Return what a launch should run; the same one on many hosts is looked at once."""
    args, env, version, repo, config, quant_config, stated = asked.content
    of = Launch(
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
    return expectation(of, stated)


def expectation(of: Launch, stated: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return what an engine started like C(of) should run; plain values.

    stated: the entries of C(expect) of the recipe and of its variants, later ones win.
    """
    expected: dict[str, Any] = {}
    for key, wanted in (
        *_picked(of).items(),
        *((key, value) for entry in stated for key, value in _stated(entry, of.method).items()),
        *_asked(of).items(),
    ):
        required = bool(wanted.get("required") or (expected.get(key) or {}).get("required"))
        expected[key] = {**wanted, "required": required}
    formats = {"nvfp4": "nvfp4", "nvfp4_weights": "nvfp4", "fp8_block": "fp8", "mxfp4": "mxfp4", "bf16": "unquantized"}
    if "moe_backend" in expected and of.expert_format in formats:
        expected["moe_backend"]["format"] = formats[of.expert_format]
    if "linear_kernel" in expected and _fp4_known(of):
        expected["linear_kernel"]["format"] = (
            "nvfp4"  # layers that the checkpoint keeps in FP8 have kernels of their own
        )
    spec = of.spec
    return {
        **expected,
        "eager": of.args.get("enforce-eager") is True,
        "prefix_caching": of.args.get("enable-prefix-caching"),
        "async_scheduling": of.args.get("async-scheduling"),
        "max_num_batched_tokens": of.args.get("max-num-batched-tokens"),
        "kv_cache_dtype": of.kv_dtype or None,
        "fp4_weight_only": of.weight_only,
        "draft": {"method": of.method, "tokens": spec.get("num_speculative_tokens")} if spec else None,
    }


def _asked(of: Launch) -> dict[str, dict[str, Any]]:
    """What options and variables name."""
    asked: dict[str, dict[str, Any]] = {}
    linear = of.word("linear-backend") or (
        of.env.get("VLLM_NVFP4_GEMM_BACKEND", "").lower() if of.before("0.24.0") else ""
    )
    for key, name, option in (
        ("attention_backend", attention(of.attention), "attention-backend"),
        ("moe_backend", of.word("moe-backend"), "moe-backend"),
        ("linear_kernel", linear, "linear-backend"),
    ):
        if name and name.lower() != "auto":
            own = name if key == "attention_backend" else kernel(name)
            asked[key] = {"any_of": [own], "why": f"{option} asks for it", "option": option}
    return asked


def _stated(entry: Mapping[str, Any], method: str) -> dict[str, dict[str, Any]]:
    """What one entry of a recipe's C(expect) says of kernels, and of the drafts of that method."""
    why = f"the recipe says so ({entry.get('source')})"
    stated: dict[str, dict[str, Any]] = {}
    for key in KERNELS:
        if entry.get(key):
            names = [str(name) for name in (entry[key] if isinstance(entry[key], list) else [entry[key]])]
            own = [attention(name) if key == "attention_backend" else kernel(name) for name in names]
            stated[key] = {"any_of": own, "why": why, "required": entry.get("required") is True}
    if entry.get("min_acceptance") is not None and entry.get("draft") == method:
        share = float(entry["min_acceptance"])
        stated["min_acceptance"] = {"share": share, "why": why, "required": entry.get("required") is True}
    return stated


# vLLM has variables that change its picks up to 0.23.
_PICKERS = ("VLLM_USE_FLASHINFER_MOE_", "VLLM_FLASHINFER_MOE_BACKEND", "VLLM_MXFP4_USE_MARLIN", "VLLM_TEST_FORCE_FP8")


def _picked(of: Launch) -> dict[str, dict[str, Any]]:
    """What vLLM picks on a GB10 by itself, where that is known for certain and FlashInfer is at hand."""
    why = f"vLLM {of.version} picks it on a GB10 by itself ({SELECTION})"
    names = {"attention_backend": _attention_pick(of)}
    if of.version is not None and not of.before("0.17.0"):
        if not any(variable.startswith(_PICKERS) for variable in of.env):
            names["moe_backend"] = _moe_pick(of)
        if _fp4_known(of):
            names["linear_kernel"] = ["marlin"] if of.weight_only else ["flashinfer_cutlass"]
    return {key: {"any_of": found, "why": why} for key, found in names.items() if found}


def _fp4_known(of: Launch) -> bool:
    """Whether it is NVFP4, and whether its activations are, too; recipes often have no more than the format's name."""
    packed = "nvfp4-pack" in str(of.quantization.get("format"))
    return of.checkpoint == "modelopt_fp4" or (packed and isinstance(of.quantization.get("config_groups"), Mapping))


def _attention_pick(of: Launch) -> list[str]:
    if of.version is None or of.before("0.12.0"):
        return []
    fp8 = of.kv_dtype.startswith("fp8")
    if of.gemma4:
        return ["TRITON_ATTN"]
    if of.gpt_oss:
        return ["TRITON_ATTN"] if of.before("0.28.0") else ["FLASHINFER", "TRITON_ATTN"]
    if of.mla or of.sparse_mla:
        return ["FLASHINFER_MLA_SPARSE_SM120"] if of.sparse_mla else ["TRITON_MLA"]
    if not of.head_sizes or not of.head_sizes <= {128, 256}:
        return []
    if of.kv_dtype and not fp8:
        return ["TURBOQUANT"] if of.kv_dtype.startswith("turboquant") else []
    if not of.kv_dtype and (of.kv_scales or of.checkpoint.startswith("modelopt")):
        return ["FLASH_ATTN", "FLASHINFER"]  # the checkpoint itself may ask for an FP8 cache
    return ["FLASHINFER"] if fp8 else ["FLASH_ATTN"]


def _moe_pick(of: Launch) -> list[str]:
    if of.expert_format == "fp8_block":
        deep = not of.before("0.24.0") and of.env.get("VLLM_USE_DEEP_GEMM", "1") != "0"
        return ["deep_gemm", "triton"] if deep else ["triton"]
    if of.expert_format.startswith("nvfp4") and not _fp4_known(of):
        return []
    return {
        "nvfp4": ["flashinfer_cutlass"],
        "nvfp4_weights": ["marlin"],
        "mxfp4": ["marlin"],
        "bf16": ["triton"] if of.before("0.20.0") else ["flashinfer_cutlass"],
    }.get(of.expert_format, [])
