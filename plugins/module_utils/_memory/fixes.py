# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Candidates for the fix of a finding of memory: changed arguments, the preferred one first."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.findings import Finding
from .host_memory import MEDIA_CACHE
from .node_memory import STEPS, UTILIZATION_LIMIT, Node, Service

Change = dict[str, Any]
FixCandidate = list[Change]


@dataclass
class Draft:
    """A finding without its fix: candidates in order of preference, and the advice if none of them passes."""

    finding: Finding
    candidates: Callable[[], Iterator[FixCandidate]] = lambda: iter(())
    advice: str = ""
    most: int = 3
    is_temporary: bool = False  # ends when another service, which runs with more than its new share, is restarted


@dataclass
class Report:
    """The findings of the checks. C(tight): the services whose verdict depends on the range of overheads."""

    drafts: list[Draft] = field(default_factory=list)
    tight: set[str] = field(default_factory=set)

    def add(
        self,
        rule: str,
        severity: str,
        service: str,
        message: str,
        candidates: Callable[[], Iterator[FixCandidate]] = lambda: iter(()),
        advice: str = "",
        most: int = 3,
        **fields: Any,
    ) -> Draft:
        """Add a finding of C(memory.RULE). most: fixes to name. fields: further ones of C(Finding)."""
        finding = Finding(rule=f"memory.{rule}", severity=severity, service=service, message=message, **fields)
        self.drafts.append(Draft(finding, candidates, advice, most))
        return self.drafts[-1]


def set_args(service: str, **args: Any) -> Change:
    return {"service": service, "args": {key.replace("_", "-"): value for key, value in args.items()}}


def describe_fix(candidate: FixCandidate) -> str:
    """Put a candidate in words: C(set max-model-len of heavy to 32768)."""
    words = []
    for change in candidate:
        for key, value in change["args"].items():
            text = f"{value:.2f}" if isinstance(value, float) else value
            text = json.dumps(value) if isinstance(value, (bool, Mapping)) else text
            name = f"{key} of {change['service']}"
            words.append(f"leave out {name}" if value is None else f"set {name} to {text}")
    return " and ".join(words)


def shrink_services(
    node: Node, services: Sequence[Service], level: str, highest: float | None = None, margin: int = 0
) -> Iterator[FixCandidate]:
    """Make one of C(services) smaller so that the node plans, with C(margin) bytes to spare: the first that can be."""
    for at in ("typical", "low") if level == "low" else (level,):
        for service in services:
            if service.utilization is None or not service.is_engine:
                continue
            top = service.utilization - 1 / STEPS if highest is None else highest
            utilization = node.largest(service, top, at, margin)
            if utilization:
                yield [set_args(service.name, gpu_memory_utilization=utilization)]


def _shorten_requests(node: Node, service: Service) -> Iterator[FixCandidate]:
    """Make the requests of a service shorter where its utilisation was worked out from them."""
    if "gpu-memory-utilization" not in service.solved or "max-model-len" in service.solved or not service.is_engine:
        return
    for level in ("high", "typical", "low"):
        share = node.largest(service, 1.0, level)
        if share is None:
            continue
        available = service.engine.available(math.ceil(node.host.total * share), level)
        length = service.plan.largest_length(available, service.engine.limit)
        if 0 < length < (service.length or 0):
            yield [set_args(service.name, max_model_len=length)]


def shrink_media_caches(node: Node, level: str, margin: int) -> Iterator[FixCandidate]:
    """Yield smaller caches of processed media, the largest first, if one cache alone can leave C(margin) bytes free."""
    missing = margin - node.remaining(level)
    caches = [
        (buffer, service)
        for service in node.counted()
        for buffer in service.engine.buffers
        if buffer.name == MEDIA_CACHE
    ]
    for cache, service in sorted(caches, key=lambda pair: (-pair[0].size(level), pair[1].name)):
        if cache.size(level) >= missing > 0:
            share = 1 - missing / cache.size(level)
            yield [set_args(service.name, mm_processor_cache_gb=math.floor(10 * share * cache.value) / 10)]


def free_memory(node: Node, service: Service, level: str, margin: int = 0) -> Iterator[FixCandidate]:
    """Yield changes that free memory of the node: a smaller request of this service, shorter requests, or a smaller other service."""
    largest_first = sorted(node.neighbours(service), key=lambda other: (-(other.utilization or 0.0), other.name))
    yield from shrink_services(node, [service], level, margin=margin)
    yield from _shorten_requests(node, service)
    yield from shrink_services(node, largest_first, level, margin=margin)


def enlarge_cache(node: Node, service: Service, level: str) -> Iterator[FixCandidate]:
    """Yield fixes of a check of the KV cache: more memory, smaller batches, shorter requests, fewer at once."""
    if service.engine.pool is None:
        for at in ("high", "typical", "low"):
            share = node.share(node.floor(service, at))
            if (service.utilization or 0) < share <= UTILIZATION_LIMIT:
                yield [set_args(service.name, gpu_memory_utilization=share)]
    requested = node.requested(service)
    yield from _reduce_requests(service, [service.engine.available(requested, at) for at in ("high", level)])


def _reduce_requests(service: Service, available: Sequence[int]) -> Iterator[FixCandidate]:
    """Yield smaller batches, shorter requests and fewer of them. available: bytes of the KV cache, the least first."""
    length = service.length or service.engine.limit
    if service.plan.ruled_by_batch(length):
        for size in available:
            batch = service.plan.largest_batch(size, length)
            if batch:
                yield [set_args(service.name, max_num_batched_tokens=batch)]
    for size in available:
        fitting = service.plan.largest_length(size, length)
        if 0 < fitting < (service.length or 0):
            yield [set_args(service.name, max_model_len=fitting)]
    for size in available if service.engine.needs_state_blocks else ():
        blocks = service.engine.num_blocks(size)
        if 0 < blocks < service.max_sequences:
            yield [set_args(service.name, max_num_seqs=blocks)]


def raise_concurrency(node: Node, service: Service, reached: float) -> Iterator[FixCandidate]:
    """Yield changes after which the cache holds max-num-seqs requests of full length: more memory, fewer requests, shorter ones."""
    engine, plan = service.engine, service.plan
    if "gpu-memory-utilization" not in service.solved and engine.pool is None and engine.blocks is None:
        share = node.share(node.target(service))
        if share <= UTILIZATION_LIMIT:
            yield [set_args(service.name, gpu_memory_utilization=share)]
    if reached >= 1:
        yield [set_args(service.name, max_num_seqs=int(reached))]
    blocks = engine.num_blocks(engine.available(node.requested(service), "typical"))
    length = plan.largest_length(blocks // service.max_sequences * plan.bytes_per_block, engine.limit)
    if 0 < length < (service.length or 0):
        yield [set_args(service.name, max_model_len=length)]
