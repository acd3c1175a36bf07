# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts that vLLM prints when a check of memory fails."""

from __future__ import annotations

from .._common.sizes import GIB
from .geometry import Geometry
from .kv_plan import KVPlan, KVSettings
from .kv_specs import DEFAULT_BLOCK_SIZE
from .releases import Release

_CONSERVING = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def gib_text(size: float) -> str:
    """Format bytes as vLLM's C(format_gib) does: GiB with at most two decimals, C(4.5), C(101.72)."""
    return str(round(size / GIB, 2))


def error_no_memory(release: Release) -> str:
    """Return vLLM's error if no memory remains for the cache (C(_check_enough_kv_cache_memory))."""
    engine = "the engine"
    if release.since(22):
        engine += " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
    return (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        f"initializing {engine}. {_CONSERVING}"
    )


def error_too_long(plan: KVPlan, length: int, available: int, override: int = 0) -> str:
    """Return vLLM's error if one request of full length does not fit (C(_check_enough_kv_cache_memory)).

    The pipeline stages are checked in their order; the first that fails speaks. Empty when none does.
    override: C(--num-gpu-blocks-override), which from 0.20.1 decides instead of C(available).
    """
    release = plan.settings.release
    for size in plan.stage_bytes_per_block:
        if override and release.since(20, 1):
            available = override * size
        checked = available - size if release.since(29) else available
        if checked <= 0:
            return error_no_memory(release)
        needed = plan.bytes_in_check(length, size)
        if needed <= checked:
            continue
        estimate = plan.longest_in_check(checked, size, length)
        hint = (
            f"Based on the available memory, the estimated maximum model length is {estimate}. " if estimate > 0 else ""
        )
        owner = "model's" if release.since(22) else "models's"
        also = " (which also controls CPU memory on the CPU backend)" if release.since(22) else ""
        return (
            f"ValueError: To serve at least one request with the {owner} max seq len ({length}), "
            f"({gib_text(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({gib_text(checked)} GiB). {hint}Try increasing `gpu_memory_utilization`{also} or decreasing `max_model_len` "
            f"when initializing the engine. {_CONSERVING}"
        )
    return ""


def error_auto_fit() -> str:
    """Return vLLM's error if C(--max-model-len auto) finds no room for one token."""
    return (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. "
        "Try increasing `gpu_memory_utilization`."
    )


def error_align(plan: KVPlan) -> str:
    """Return vLLM's error for blocks of a hybrid model that are larger than a batch (0.17 to 0.26); else empty."""
    release, batch = plan.settings.release, plan.settings.max_num_batched_tokens
    smallest = min(group.block_size for group in plan.groups)
    if plan.mamba_cache_mode != "align" or not 17 <= release.minor <= 26 or smallest <= batch:
        return ""
    return (
        f"AssertionError: In Mamba cache align mode, block_size ({smallest}) must be <= max_num_batched_tokens "
        f"({batch})."
    )


def error_kernel_block(geometry: Geometry, settings: KVSettings) -> str:
    """Return vLLM's error for sparse layers with a fixed block size in a release that uses the block size of the other layers; else empty.

    vLLM plans its cache and stops when it allocates it (C(vllm/v1/worker/utils.py), select_common_block_size).
    """
    release, rules = settings.release, geometry.rules
    block = settings.block_size or DEFAULT_BLOCK_SIZE
    if release.since(rules.block_since) or not rules.block or block % rules.block == 0:
        return ""
    return f"ValueError: No common block size for {block}. "


def error_mamba_blocks(max_num_seqs: int, blocks: int) -> str:
    """Return vLLM's error for more requests than state blocks, with full CUDA graphs (from 0.20)."""
    return (
        f"ValueError: max_num_seqs ({max_num_seqs}) exceeds available Mamba cache blocks ({blocks}). Each decode "
        "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at "
        f"most {blocks} or increase gpu_memory_utilization."
    )


def error_free_memory(free: float, total: int, utilization: float, requested: int) -> str:
    """Return vLLM's error if fewer bytes are free than it requests (C(vllm/v1/worker/utils.py), request_memory, 0.19 to 0.33)."""
    return (
        f"ValueError: Free memory on device cuda:0 ({gib_text(free)}/{gib_text(total)} GiB) on startup is less than "
        f"desired GPU memory utilization ({utilization}, {gib_text(requested)} GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes."
    )


def error_warm_up(sequences: int) -> str:
    """Return vLLM's error if memory runs out in the last step of its start (C(vllm/v1/worker/gpu_model_runner.py))."""
    return (
        f"RuntimeError: CUDA out of memory occurred when warming up sampler with {sequences} dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
