# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of the memory budget: fields of a service, the memory map of a node and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._vllm.overheads import LEVELS
from .engine import NOT_COMPARED
from .host_memory import HostBuffer
from .kv_plan import KVPlan
from .node_memory import Node, Service
from .releases import Release


def to_gib(size: float) -> float:
    return round(size / GIB, 2)


def judge_findings(findings: Sequence[Finding], tight: bool) -> str:
    if any(finding.severity == "error" for finding in findings):
        return "fails"
    return "tight" if tight else "fits"


def _gib_by_level(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return sizes in GiB at each level of the overheads. sizes: in bytes."""
    return {level: to_gib(sizes.get(level, 0.0)) for level in LEVELS}


def _describe_buffers(buffers: Sequence[HostBuffer]) -> list[dict[str, Any]]:
    return [
        {
            "name": buffer.name,
            "gib": {level: to_gib(buffer.size(level)) for level in LEVELS},
            "at_start": buffer.at_start,
            "option": buffer.option,
        }
        for buffer in buffers
    ]


def service_result(node: Node, service: Service, order: int, verdict: str) -> dict[str, Any]:
    """Return the fields of a service as the module documents them. order: of its start, from 0."""
    engine, requested = service.engine, node.requested(service)
    free = {level: node.free(service, node.neighbours(service), level) for level in LEVELS}
    result: dict[str, Any] = {
        "verdict": verdict,
        "order": order,
        "gpu_memory_utilization": service.utilization,
        "requested_bytes": requested if service.utilization is not None else None,
        "residency_gib": {level: to_gib(node.held(service, level)) for level in LEVELS},
        "headroom_gib": {
            name: to_gib(free[level] - (requested or node.held(service, level)))
            for name, level in zip(LEVELS, reversed(LEVELS))
        },
        "solved": list(service.solved),
    }
    if engine.cache_from:
        sources = {"weights": engine.weights_from, "kv_cache": engine.cache_from, "overheads": engine.overheads_from}
        result["sources"] = {name: source for name, source in sources.items() if source}
        result["host_memory"] = _describe_buffers(engine.buffers)
    if engine.stated is not None:
        result["stated_gib"] = to_gib(engine.stated)
    if engine.weights or engine.plan is not None:  # the parts of a stated sum are unknown
        # Named by their size: high overheads leave the low figure.
        available = {name: engine.available(requested, level) for name, level in zip(LEVELS, reversed(LEVELS))}
        result.update(
            weights_bytes=engine.weights, available_kv_bytes=available, overhead_gib=_gib_by_level(engine.inside)
        )
    if engine.plan is not None and engine.release is not None:
        result.update(_engine_result(service, engine.plan, engine.release, available))
    return result


def _engine_result(service: Service, plan: KVPlan, release: Release, available: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a planned engine. available: bytes of its KV cache, by level."""
    engine, length = service.engine, service.length or 0
    blocks = engine.num_blocks(max(0, available["typical"]))
    return {
        "vllm_version": release.text or None,
        "exact": engine.cache_from != NOT_COMPARED,
        "draft_bytes": engine.draft,
        "vision_bytes": engine.vision,
        "host_bytes": engine.host,
        "adapters_bytes": engine.adapters,
        "load_peak_bytes": engine.loading("typical"),
        "beside_gib": _gib_by_level(engine.launch_outside),
        "offloaded_bytes": engine.in_host.offloaded,
        "model_runner": engine.runner,
        "kv_cache_dtype": plan.settings.kv_cache_dtype,
        "mamba_cache_mode": plan.mamba_cache_mode,
        "block_size": plan.block_size,
        "page_size_bytes": plan.page_size_bytes,
        "bytes_per_block": plan.bytes_per_block,
        "kv_groups": [
            {"kind": group.kind, "layers": group.layers, "block_size": group.block_size or length}
            for group in plan.groups
        ],
        "num_blocks": blocks,
        "gpu_kv_cache_size_tokens": plan.printed_tokens(blocks, length) if length else 0,
        "max_concurrency": plan.max_concurrency(blocks, length) if length else 0.0,
        "needed_bytes_one_request": plan.needed_bytes(length),
        "marginal_bytes_per_token": plan.marginal_bytes_per_token,
        "max_model_len": length,
        "max_num_seqs": service.max_sequences,
        "max_num_batched_tokens": plan.settings.max_num_batched_tokens,
        "largest_safe_max_model_len": plan.largest_length(available["low"], engine.limit),
    }


def memory_map(node: Node) -> list[dict[str, Any]]:
    """Return the parts of the node's memory for a stacked bar, at typical overheads.

    The sizes add up to the node's total; when it does not fit, nothing is free and they add up to more.
    """
    parts: list[tuple[str, float, str, str | None]] = [("system", node.host.os_reserve, "system", None)]
    names = {service.name for service in node.services}
    parts += [(name, size, "plain", None) for name, size in sorted(node.host.resident.items()) if name not in names]
    for service in node.counted():
        engine, held = service.engine, node.held(service, "typical") - service.engine.buffered("typical")
        buffers = [
            (f"{service.name} {buffer.name}", buffer.typical, "host", service.name)
            for buffer in engine.buffers
            if buffer.typical
        ]
        if not service.is_engine and not (engine.stated and engine.weights):
            parts += [(service.name, held, "plain", service.name), *buffers]
            continue
        weights, cache = engine.weights + engine.draft, engine.cache_bytes(node.requested(service), "typical")
        apart = {
            "adapters": engine.adapters,
            "tables in host memory": engine.in_host.tables,
            "weights in host memory": engine.in_host.offloaded,
        }
        parts += [
            (f"{service.name} weights", weights - sum(apart.values()), "weights", service.name),
            *((f"{service.name} {name}", size, "weights", service.name) for name, size in apart.items() if size),
            (f"{service.name} KV cache", cache, "kv_cache", service.name),
            *buffers,
            (f"{service.name} overhead", max(0.0, held - weights - cache), "overhead", service.name),
        ]
    stack = [{"label": label, "gib": to_gib(size), "kind": kind, "service": name} for label, size, kind, name in parts]
    free = round(max(0.0, to_gib(node.host.total) - sum(to_gib(size) for _label, size, _kind, _name in parts)), 2)
    return [*stack, {"label": "free", "gib": free, "kind": "free", "service": None}]
