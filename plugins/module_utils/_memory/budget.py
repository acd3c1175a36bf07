# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory budget of one node: does it fit, with what settings, and what would vLLM say if it does not.

A DGX Spark has one pool of memory for everything. vLLM asks for C(ceil(total x gpu-memory-utilization)) of it when it
starts, refuses when less is free at that moment, loads its weights, and cuts what is then left of its request into the
KV cache. Several engines share the pool, so each must find its memory free at its turn B(and) at every later restart,
when all others are resident.

Some terms are known only as a range (C(service_memory.OVERHEADS)). A check that fails even when everything else is small
is an error; one that depends on the range makes the verdict C(tight).

Every fix that a finding names was planned here before it is named: the same engine ran on the changed input, the finding
was gone and no new error had come.

C(memory_budget) is the only entry. No I/O, no Ansible.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from .._common.findings import Finding
from .._common.sizes import GIB
from .._vllm.overheads import LEVELS
from . import learned
from .answered import ImageRefusal
from .causes import Judge, merge_causes
from .geometry import Refusal
from .host_memory import KV_BUFFER, MEDIA_CACHE, HostBuffer, unknown_connectors
from .kv_cache import (
    COMPARED_MINORS,
    KVPlan,
    PlanFailure,
    Release,
    error_auto_fit,
    error_mamba_blocks,
    error_no_memory,
    error_too_long,
    gib_text,
    parse_release,
)
from .node_memory import GROWTH_LIMIT, STEPS, UTILIZATION_LIMIT, Node, Service, at_once, first_failing, solve
from .service_memory import (
    ANSWERED_ARGS,
    DEFAULT_SEQS,
    HOST_ARGS,
    IMAGE,
    NOT_COMPARED,
    Engine,
    Host,
    InputError,
    ServiceInput,
    read_params,
    resolve,
)

__all__ = ["InputError", "error_free_memory", "memory_budget"]

# A batch that people use where the default of 2048 is too small for a block.
USUAL_BATCH = 8192

_SEVERITY = {"low": "error", "typical": "warning", "high": "info"}
_ALSO = {
    "low": "",
    "typical": " It passes only with less overhead than usual.",
    "high": " It passes with the usual overheads, not with high ones.",
}

Change = dict[str, Any]
FixCandidate = list[Change]


def error_free_memory(free: float, total: int, utilization: float, requested: int) -> str:
    """What vLLM prints when less memory is free than it asks for (C(vllm/v1/worker/utils.py), request_memory).

    free, total, requested: bytes. The text is the same in 0.19 to 0.33.
    """
    return (
        f"ValueError: Free memory on device cuda:0 ({gib_text(free)}/{gib_text(total)} GiB) on startup is less than "
        f"desired GPU memory utilization ({utilization}, {gib_text(requested)} GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes."
    )


def error_warm_up(sequences: int) -> str:
    """What vLLM prints when the memory ends at its last step (C(vllm/v1/worker/gpu_model_runner.py))."""
    return (
        f"RuntimeError: CUDA out of memory occurred when warming up sampler with {sequences} dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )


@dataclass
class _Draft:
    """A finding before it has its fix: candidates to try in order of preference, and what to say when none of them plans."""

    finding: Finding
    candidates: Callable[[], Iterator[FixCandidate]] = lambda: iter(())
    advice: str = ""
    most: int = 3
    is_temporary: bool = False  # ends when another service, which runs with more than its new share, is restarted


@dataclass
class _Report:
    """What the checks found. C(tight): the services whose verdict hangs on overheads that are known only as a range."""

    drafts: list[_Draft] = field(default_factory=list)
    tight: set[str] = field(default_factory=set)


# Fixes ----------------------------------------------------------------------------------------------------------------


def _set(service: str, **args: Any) -> Change:
    return {"service": service, "args": {key.replace("_", "-"): value for key, value in args.items()}}


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _value(value: Any) -> str:
    if isinstance(value, (bool, Mapping)):
        return json.dumps(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _say(candidate: FixCandidate) -> str:
    """Put a candidate in words: C(set max-model-len of heavy to 32768)."""
    return " and ".join(
        f"leave out {key} of {change['service']}"
        if value is None
        else f"set {key} of {change['service']} to {_value(value)}"
        for change in candidate
        for key, value in change["args"].items()
    )


def _smaller(
    node: Node, services: Sequence[Service], level: str, highest: float | None = None, margin: int = 0
) -> Iterator[FixCandidate]:
    """Make one of C(services) smaller so that the node plans, with C(margin) bytes to spare: the first that can be."""
    for at in ("typical", "low") if level == "low" else (level,):
        for service in services:
            if service.utilization is None or not service.is_engine:
                continue
            top = service.utilization - 1 / STEPS if highest is None else highest
            found = node.largest(service, top, at, margin)
            if found:
                yield [_set(service.name, gpu_memory_utilization=found)]


def _shorter(node: Node, service: Service) -> Iterator[FixCandidate]:
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
            yield [_set(service.name, max_model_len=length)]


def _less_media(node: Node, level: str, margin: int) -> Iterator[FixCandidate]:
    """Make the caches of processed media smaller, the largest first, where that alone leaves C(margin) bytes free."""
    missing = margin - node.remaining(level)
    caches = [
        (each, service) for service in node.counted() for each in service.engine.buffers if each.name == MEDIA_CACHE
    ]
    for cache, service in sorted(caches, key=lambda found: (-found[0].size(level), found[1].name)):
        if cache.size(level) >= missing > 0:
            share = 1 - missing / cache.size(level)
            yield [_set(service.name, mm_processor_cache_gb=math.floor(10 * share * cache.value) / 10)]


def _less(node: Node, service: Service, level: str, margin: int = 0) -> Iterator[FixCandidate]:
    """What makes room on the node: first this service smaller, then its requests shorter, else another one smaller."""
    largest_first = sorted(node.others(service), key=lambda each: (-(each.utilization or 0.0), each.name))
    yield from _smaller(node, [service], level, margin=margin)
    yield from _shorter(node, service)
    yield from _smaller(node, largest_first, level, margin=margin)


def _more_cache(node: Node, service: Service, level: str) -> Iterator[FixCandidate]:
    """What makes a check of the KV cache pass: more memory, shorter requests, fewer at once."""
    engine = service.engine
    if engine.pool is None:
        for at in ("high", "typical", "low"):
            share = node.share(node.floor(service, at))
            if (service.utilization or 0) < share <= UTILIZATION_LIMIT:
                yield [_set(service.name, gpu_memory_utilization=share)]
    length = service.length or engine.limit
    if service.plan.ruled_by_batch(length):
        for at in ("high", level):
            batch = service.plan.largest_batch(engine.available(node.requested(service), at), length)
            if batch:
                yield [_set(service.name, max_num_batched_tokens=batch)]
    for at in ("high", level):
        available = engine.available(node.requested(service), at)
        length = service.plan.largest_length(available, service.length or engine.limit)
        if 0 < length < (service.length or 0):
            yield [_set(service.name, max_model_len=length)]
    if engine.needs_state_blocks:
        for at in ("high", level):
            blocks = engine.num_blocks(engine.available(node.requested(service), at))
            if 0 < blocks < service.wanted:
                yield [_set(service.name, max_num_seqs=blocks)]


def _more_at_once(node: Node, service: Service, reached: float) -> Iterator[FixCandidate]:
    """What makes the cache hold max-num-seqs requests of full length: more memory, fewer, shorter."""
    engine, plan = service.engine, service.plan
    if "gpu-memory-utilization" not in service.solved and engine.pool is None and engine.blocks is None:
        share = node.share(node.target(service))
        if share <= UTILIZATION_LIMIT:
            yield [_set(service.name, gpu_memory_utilization=share)]
    if reached >= 1:
        yield [_set(service.name, max_num_seqs=int(reached))]
    blocks = engine.num_blocks(engine.available(node.requested(service), "typical"))
    length = plan.largest_length(blocks // service.wanted * plan.bytes_per_block, engine.limit)
    if 0 < length < (service.length or 0):
        yield [_set(service.name, max_model_len=length)]


# Checks ---------------------------------------------------------------------------------------------------------------


def _add(
    report: _Report,
    service: Service,
    level: str,
    rule: str,
    message: str,
    vllm_error: str,
    stage: str,
    candidates: Callable[[], Iterator[FixCandidate]],
    *,
    basis: str = "inventory",
    advice: str = "",
    most: int = 3,
    also: str | None = None,
    is_temporary: bool = False,
    severity: str = "",
) -> None:
    said = level != "high"
    finding = Finding(
        rule=f"memory.{rule}",
        severity=severity or _SEVERITY[level],
        service=service.name,
        message=message + (_ALSO[level] if also is None else also),
        vllm_error=vllm_error if said else "",
        stage=stage if said else "",
        seconds=service.engine.seconds(stage) if said else {},
        basis=basis,
    )
    report.drafts.append(_Draft(finding, candidates, advice, most, is_temporary))
    if level != "low":
        report.tight.add(service.name)


def _check_free(report: _Report, node: Node, service: Service, before: list[Service]) -> None:
    """Check 1: free memory at the turn of a service, and at every later restart; and the peak while weights load."""
    if service.utilization is None:
        return
    others = node.others(service)
    _check_turns(report, node, service, [other for other in before if other in others], others)
    _check_loading(report, node, service, others)
    _check_page_cache(report, node, service)


def _check_turns(report: _Report, node: Node, service: Service, before: list[Service], others: list[Service]) -> None:
    """Check what vLLM finds free when a service starts beside those C(before) it, and when it is restarted beside all C(others)."""
    requested = node.requested(service)
    beside = ", ".join(sorted(other.name for other in others))
    move = f"Move {service.name} to another node" + (
        f", or do not run it beside {beside}." if beside else ", or use a smaller model."
    )
    smaller = {each.name: node.gives_back(each) for each in others if node.gives_back(each)}
    restarts = bool(smaller) and node.free(service, others, "low") + sum(smaller.values()) >= requested
    if restarts:
        names = ",".join(sorted(smaller))
        move = (
            f"Stop {names} first (stop.yml -e services={names}), which holds {gib_text(sum(smaller.values()))} GiB more now than it is to have; "
            "site.yml starts it again."
        )
    turns = [("free_at_start", "starts", before)]
    if len(before) < len(others):
        turns.append(("free_at_restart", "is restarted while all others are resident", others))
    for rule, when, resident in turns:
        level = node.shortfall_level(service, resident, requested)
        if level:
            free = max(0, node.free(service, resident, level))
            running = {other.name for other in resident}
            running |= set(node.host.resident if node.host.available is not None else ())
            gone = {service.name, *(mate.name for mate in node.set_members(service))}
            named = ", ".join(sorted(running - gone)) or "no other service"
            _add(
                report,
                service,
                level,
                rule,
                f"{service.name} asks for {gib_text(requested)} GiB (gpu-memory-utilization {service.utilization} of "
                f"{gib_text(node.host.total)} GiB), but {gib_text(free)} GiB are free when it {when} (beside {named}).",
                error_free_memory(free, node.host.total, service.utilization or 0.0, requested),
                "device",
                (lambda: iter(())) if restarts else partial(_less, node, service, level),
                basis=node.basis,
                advice=move if restarts or level == "low" else "",
                most=1,
                is_temporary=restarts,
            )
            break


def _check_loading(report: _Report, node: Node, service: Service, others: list[Service]) -> None:
    """Check the peak while weights load, beside all others."""
    requested = node.requested(service)
    engine = service.engine

    def loads(at: str) -> bool:
        # What is no more than the request was checked with it.
        return engine.loading(at) <= requested or node.free(service, others, at) >= engine.loading(at)

    level = first_failing(loads)
    if level:
        peak, quantised = engine.loading(level), engine.load_peak > engine.weights
        layerwise = f" It passes where each layer is quantised as it comes ({gib_text(engine.loading('low'))} GiB)."
        _add(
            report,
            service,
            level,
            "load",
            f"The weights of {service.name} take {gib_text(peak)} GiB while they load, but only "
            f"{gib_text(max(0, node.free(service, others, level)))} GiB are free.",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "load",
            partial(_smaller, node, others, level),
            basis=node.basis,
            advice=("Use a checkpoint that is quantised already" if quantised else "Use a smaller model")
            + ", or more ranks (tensor-parallel-size).",
            most=1,
            also=layerwise if quantised and level == "typical" else None,
        )


def _check_page_cache(report: _Report, node: Node, service: Service) -> None:
    """Say where memory is free for vLLM and not for the driver."""
    requested = node.requested(service)
    if node.host.free is not None and node.host.free < requested <= (node.host.available or 0):
        finding = Finding(
            rule="memory.page_cache",
            severity="info",
            service=service.name,
            basis="measured",
            message=f"Only {gib_text(node.host.free)} GiB are free outright, the rest of the available memory is page cache. "
            "vLLM counts it as free, the driver has to get it back first.",
        )
        report.drafts.append(
            _Draft(finding, advice="Drop the page cache before the start; the units of this collection do.")
        )


def _kv_buffers(services: Sequence[Service]) -> list[tuple[HostBuffer, Service]]:
    """Return the buffers of offloaded KV blocks, the largest first."""
    buffers = [(each, service) for service in services for each in service.engine.buffers if each.name == KV_BUFFER]
    return sorted(buffers, key=lambda found: (-found[0].low, found[1].name))


def _oversized_buffer(node: Node) -> str:
    """Name the service whose buffer of offloaded KV blocks is why the node does not hold its services even at low overheads."""
    left = node.remaining("low")
    buffers = _kv_buffers(node.counted())
    return buffers[0][1].name if left < 0 <= left + sum(buffer.low for buffer, _service in buffers) else ""


def _without_buffer(engine: Engine) -> Engine:
    return replace(engine, buffers=tuple(each for each in engine.buffers if each.name != KV_BUFFER))


def _report_oversized(report: _Report, node: Node, service: Service, buffer: HostBuffer) -> None:
    """Report a buffer of offloaded KV blocks for which the node has no room. node: without it."""
    finding = Finding(
        rule="memory.host_buffer",
        severity="error",
        service=service.name,
        basis=node.basis,
        message=f"{service.name} allocates {gib_text(buffer.typical)} GiB of host memory for offloaded blocks of its KV cache "
        f"({buffer.option}); on a Spark that is the memory of the GPU, and {gib_text(max(0, node.remaining('typical')))} GiB of it are free.",
    )
    candidates: list[FixCandidate] = [[_set(service.name, **{buffer.option: None})]]
    advice = f"Leave out {buffer.option} of {service.name}, or make the buffer smaller."
    report.drafts.insert(0, _Draft(finding, lambda: iter(candidates), advice, 1))


def _note_buffers(report: _Report, node: Node) -> None:
    """Warn of buffers that hold a second KV cache in the memory that the first one could have."""
    for buffer, service in _kv_buffers(node.services):
        finding = Finding(
            rule="memory.host_buffer",
            severity="warning",
            service=service.name,
            message=f"{service.name} allocates {gib_text(buffer.typical)} GiB of host memory for offloaded blocks of its KV cache "
            f"({buffer.option}); on a Spark that is the memory of the GPU, and a KV cache that is larger by as much needs no copies.",
        )
        advice = f"Leave out {buffer.option} of {service.name}, and give it more gpu-memory-utilization."
        report.drafts.append(_Draft(finding, partial(_cache_instead, node, service, buffer), advice, 1))


def _cache_instead(node: Node, service: Service, buffer: HostBuffer) -> Iterator[FixCandidate]:
    """Give the KV cache the memory of a buffer of offloaded blocks."""
    if service.utilization is not None and "gpu-memory-utilization" not in service.solved:
        share = math.floor((service.utilization + buffer.typical / node.host.total) * STEPS) / STEPS
        yield [_set(service.name, **{buffer.option: None, "gpu_memory_utilization": min(GROWTH_LIMIT, share)})]
    yield [_set(service.name, **{buffer.option: None})]


_WHEN = "vLLM finds this only after it has loaded the weights."


def _too_small(service: Service) -> str:
    return f"{service.name} does not fit on this node with these settings: use fewer services, a smaller model or more ranks."


def _check_cache(report: _Report, node: Node, service: Service) -> None:
    """Checks 0 and 5 to 9: what vLLM refuses when it plans the KV cache, minutes into the start."""
    engine = service.engine
    if engine.plan is None or engine.release is None:
        return
    if engine.align_error:
        _check_align_block(report, service, engine.plan, engine.release)
    if engine.kernel_error:
        _add(
            report,
            service,
            "low",
            "kernel_block",
            f"The sparse layers of {service.name} need blocks of {engine.kernel_block} tokens, and vLLM {engine.release.text} goes by its other "
            f"layers, which take {engine.plan.block_size}. {_WHEN}",
            engine.kernel_error,
            "kv_cache",
            lambda: iter([[_set(service.name, block_size=engine.kernel_block)]]),
            advice=f"Set block-size of {service.name} to {engine.kernel_block}, and give it more memory; or use vLLM 0.31 or later.",
        )
    if _check_cache_memory(report, node, service, engine.release) in ("low", "typical"):
        return
    # Left out and nothing fits: vLLM takes the longest that the model allows.
    length = service.length or (0 if engine.length_auto else engine.limit)
    if length == 0:
        _add(
            report,
            service,
            "low",
            "auto_fit",
            f"Not even one token fits into the KV cache of {service.name}. {_WHEN}",
            error_auto_fit(),
            "kv_cache",
            partial(_more_cache, node, service, "low"),
            advice=_too_small(service),
        )
        return
    level = _check_request(report, node, service, engine.plan, length)
    if level == "low":
        return
    if engine.needs_state_blocks:
        _check_state_blocks(report, node, service)
    if service.sequences is not None and level != "typical":
        _check_concurrency(report, node, service, engine.plan, length)


def _check_align_block(report: _Report, service: Service, plan: KVPlan, release: Release) -> None:
    """Say that a block of a hybrid model is larger than a batch."""
    engine = service.engine
    early = release.minor == 17  # the one release that looks at this with its arguments
    _add(
        report,
        service,
        "low",
        "align_block",
        f"With prefix caching, a block of {service.name} holds {engine.align_block} tokens, more than a batch of "
        f"{plan.settings.max_num_batched_tokens}." + ("" if early else f" {_WHEN}"),
        engine.align_error,
        "arguments" if early else "kv_cache",
        lambda: iter(
            [
                [_set(service.name, max_num_batched_tokens=max(USUAL_BATCH, engine.align_block))],
                [_set(service.name, enable_prefix_caching=False)],
                [_set(service.name, max_num_batched_tokens=engine.align_block)],
            ]
        ),
        advice=f"Set max-num-batched-tokens of {service.name} to {engine.align_block} or more, or enable-prefix-caching to "
        "false, and give it more memory.",
        most=2,
    )


def _check_cache_memory(report: _Report, node: Node, service: Service, release: Release) -> str | None:
    """Check that anything is left for the KV cache; return the first level at which nothing is."""
    engine, requested = service.engine, node.requested(service)
    level = first_failing(lambda at: engine.available(requested, at) > 0)
    if level:
        left = engine.available(requested, level)
        _add(
            report,
            service,
            level,
            "no_cache_memory",
            f"{service.name} asks for {gib_text(requested)} GiB; its weights ({gib_text(engine.weights + engine.draft)} GiB) and "
            f"overheads ({gib_text(engine.inside[level])} GiB) leave {gib_text(left)} GiB for the KV cache. {_WHEN}",
            error_auto_fit() if engine.length_auto else error_no_memory(release),
            "kv_cache",
            partial(_more_cache, node, service, level),
            advice=_too_small(service),
            severity="" if level == "high" else "error",  # what starts only with less overhead than usual serves nobody
        )
    return level


def _check_request(report: _Report, node: Node, service: Service, plan: KVPlan, length: int) -> str | None:
    """Check that one request of the full length, in tokens, fits; return the first level at which it does not."""
    engine, requested = service.engine, node.requested(service)

    def passes(at: str) -> bool:
        cut = engine.plan_at(at) or plan
        return cut.needed_bytes(length) <= cut.checked_bytes(engine.available(requested, at))

    level = first_failing(passes)
    if level:
        plan = engine.plan_at(level) or plan
        available = engine.available(requested, level)
        batch = plan.settings.max_num_batched_tokens
        price = (
            f" Most of that is for max-num-batched-tokens, {batch}, not for its length."
            if plan.ruled_by_batch(length)
            else ""
        )
        if available > 0:
            _add(
                report,
                service,
                level,
                "one_request",
                f"One request of {length} tokens needs {gib_text(plan.needed_bytes(length))} GiB of KV cache, {service.name} has "
                f"{gib_text(plan.checked_bytes(available))} GiB.{price} {_WHEN}",
                error_too_long(plan, length, available),
                "kv_cache",
                partial(_more_cache, node, service, level),
                advice=_too_small(service),
            )
    return level


def _check_state_blocks(report: _Report, node: Node, service: Service) -> None:
    """Check that each request that may run at once finds a block for its state."""
    engine, requested, wanted = service.engine, node.requested(service), service.wanted

    def passes(at: str) -> bool:
        cut = engine.plan_at(at)
        checks = cut is None or cut.settings.release.since(20)
        return not checks or engine.num_blocks(engine.available(requested, at), at) >= wanted

    level = first_failing(passes)
    if level:
        blocks = engine.num_blocks(engine.available(requested, level), level)
        _add(
            report,
            service,
            level,
            "state_blocks",
            f"{service.name} may run {wanted} requests at once (max-num-seqs), but its cache has {blocks} blocks and each "
            f"request needs one for its state. {_WHEN}",
            error_mamba_blocks(wanted, blocks),
            "graphs",
            partial(_more_cache, node, service, level),
            advice=_too_small(service),
        )


def _check_concurrency(report: _Report, node: Node, service: Service, plan: KVPlan, length: int) -> None:
    """Say how many requests of the full length, in tokens, the cache holds where that is less than wanted."""
    engine, requested, wanted = service.engine, node.requested(service), service.wanted
    reached = plan.max_concurrency(engine.num_blocks(engine.available(requested, "typical")), length)
    if reached < wanted:
        finding = Finding(
            rule="memory.concurrency",
            severity="warning",
            service=service.name,
            message=f"The KV cache of {service.name} holds {reached:.2f} requests of {length} tokens at once, max-num-seqs is "
            f"{wanted}. Shorter requests still run side by side; long ones wait or are preempted.",
        )
        advice = "Use an fp8 KV cache, or give the service more memory."
        report.drafts.append(_Draft(finding, partial(_more_at_once, node, service, reached), advice))


def _check_node(node: Node) -> list[_Draft]:
    """The sum of utilisations and what is left at the end."""
    drafts = []
    total, bound = node.utilization_sum(), node.utilization_bound()
    engines = [service for service in node.counted() if service.utilization is not None]
    names = ", ".join(f"{service.name} {service.utilization}" for service in engines)

    def lower() -> Iterator[FixCandidate]:
        largest_first = sorted(engines, key=lambda service: (-(service.utilization or 0.0), service.name))
        for service in largest_first:
            yield from _smaller(node, [service], "low", bound - total + (service.utilization or 0.0))

    advice = "Lower one of them, or move a service to another node."
    if total > UTILIZATION_LIMIT:
        finding = Finding(
            rule="memory.utilization_sum",
            severity="error",
            message=f"gpu-memory-utilization is a share of all memory, and the services ask for {total:g} of it together "
            f"({names}); more than {UTILIZATION_LIMIT} leaves no room for the system and for CUDA itself.",
        )
        drafts.append(_Draft(finding, lower, advice, 1))
    elif total > bound:
        finding = Finding(
            rule="memory.utilization_bound",
            severity="warning",
            message=f"The services ask for {total:g} of all memory together ({names}); with the system and what engines hold "
            f"beside their request, {bound:.3f} is what this node has. It works only while they take less than they ask.",
        )
        drafts.append(_Draft(finding, lower, advice, 1))
    margin = node.host.margin
    limits = {"low": 0, "typical": margin, "high": 0}
    level = first_failing(lambda at: node.remaining(at) >= limits[at])
    if level:
        left = node.remaining(level)
        also = "" if level == "typical" and left >= 0 else _ALSO[level]  # then only the margin is short
        last = next((service for service in reversed(node.services) if service.is_engine), None)
        said = last is not None and left < 0 and level != "high"
        finding = Finding(
            rule="memory.node",
            severity=_SEVERITY[level],
            basis=node.basis,
            message=_describe_shortage(node, level, left) + _filled_caches(node, level) + also,
            vllm_error=error_warm_up(last.wanted) if last and said else "",
            stage="graphs" if said else "",
            seconds=last.engine.seconds("graphs") if last and said else {},
        )
        biggest = max(node.services, key=lambda service: (node.held(service, "typical"), service.name))
        advice = f"Move a service to another node; {biggest.name} is the largest." if level == "low" else ""

        def smaller() -> Iterator[FixCandidate]:
            yield from _less_media(node, level, margin if level == "typical" else 0)
            yield from _less(node, biggest, level, margin)

        drafts.append(_Draft(finding, smaller, advice, 1))
    return drafts


def _describe_shortage(node: Node, level: str, left: float) -> str:
    """Say what the services of a node need together, and what is missing or left.

    :param left: bytes that stay free with everything running, negative where some are missing
    """
    if left >= 0:
        return (
            f"With everything running, {gib_text(left)} GiB are left of {gib_text(node.host.total)} GiB; "
            f"{gib_text(node.host.margin)} GiB should stay free."
        )
    parts = [f"{service.name} ({gib_text(node.held(service, level))} GiB)" for service in node.counted()]
    return (
        f"{', '.join(parts)} and the system need {gib_text(node.host.total - left)} GiB together; the Spark has "
        f"{gib_text(node.host.total)} GiB, so {gib_text(-left)} GiB are missing."
    )


def _filled_caches(node: Node, level: str) -> str:
    """Name the caches in host memory that requests fill and that are part of a sum, in GiB."""
    caches = [
        f"{gib_text(each.size(level))} GiB for the {each.name} of {service.name} ({each.option})"
        for service in node.counted()
        for each in service.engine.buffers
        if not each.at_start and each.size(level) >= GIB
    ]
    return f" That counts {', '.join(caches)}, which requests fill." if caches else ""


# The result -----------------------------------------------------------------------------------------------------------


def _gib(size: float) -> float:
    return round(size / GIB, 2)


def _verdict(findings: Sequence[Finding], tight: bool) -> str:
    if any(finding.severity == "error" for finding in findings):
        return "fails"
    return "tight" if tight else "fits"


def _sources(engine: Engine) -> dict[str, str]:
    found = {"weights": engine.weights_from, "kv_cache": engine.cache_from, "overheads": engine.overheads_from}
    return {name: source for name, source in found.items() if source}


def _by_level(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return sizes in GiB at each level of the overheads. sizes: in bytes."""
    return {level: _gib(sizes.get(level, 0.0)) for level in LEVELS}


def _host_memory(engine: Engine) -> list[dict[str, Any]]:
    """Return the named parts of an engine's host memory, as the module documents them."""
    return [
        {
            "name": buffer.name,
            "gib": {level: _gib(buffer.size(level)) for level in LEVELS},
            "at_start": buffer.at_start,
            "option": buffer.option,
        }
        for buffer in engine.buffers
    ]


def _service_result(node: Node, service: Service, order: int, verdict: str) -> dict[str, Any]:
    engine, requested = service.engine, node.requested(service)
    free = {level: node.free(service, node.others(service), level) for level in LEVELS}
    result: dict[str, Any] = {
        "verdict": verdict,
        "order": order,
        "gpu_memory_utilization": service.utilization,
        "requested_bytes": requested if service.utilization is not None else None,
        "residency_gib": {level: _gib(node.held(service, level)) for level in LEVELS},
        "headroom_gib": {
            name: _gib(free[level] - (requested or node.held(service, level)))
            for name, level in zip(LEVELS, reversed(LEVELS))
        },
        "solved": list(service.solved),
    }
    if engine.cache_from:
        result.update(sources=_sources(engine), host_memory=_host_memory(engine))
    if engine.stated is not None:
        result["stated_gib"] = _gib(engine.stated)
    if engine.weights or engine.plan is not None:  # of a service that states only a sum, no part is known
        # Named by their size: the low figure is what high overheads leave.
        available = {name: engine.available(requested, level) for name, level in zip(LEVELS, reversed(LEVELS))}
        result.update(weights_bytes=engine.weights, available_kv_bytes=available, overhead_gib=_by_level(engine.inside))
    if engine.plan is None or engine.release is None:
        return result
    plan, length = engine.plan, service.length or 0
    blocks = engine.num_blocks(max(0, available["typical"]))
    result.update(
        {
            "vllm_version": engine.release.text or None,
            "exact": engine.cache_from != NOT_COMPARED,
            "draft_bytes": engine.draft,
            "vision_bytes": engine.vision,
            "host_bytes": engine.host,
            "adapters_bytes": engine.adapters,
            "load_peak_bytes": engine.loading("typical"),
            "beside_gib": _by_level(engine.beside),
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
            "max_num_seqs": service.wanted,
            "max_num_batched_tokens": plan.settings.max_num_batched_tokens,
            "largest_safe_max_model_len": plan.largest_length(available["low"], engine.limit),
        }
    )
    return result


def _memory_map(node: Node) -> list[dict[str, Any]]:
    """The parts of the node's memory as a stacked bar shows them, at typical overheads.

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
    stack = [{"label": label, "gib": _gib(size), "kind": kind, "service": name} for label, size, kind, name in parts]
    free = round(max(0.0, _gib(node.host.total) - sum(_gib(size) for _label, size, _kind, _name in parts)), 2)
    return [*stack, {"label": "free", "gib": free, "kind": "free", "service": None}]


def _note_arguments(report: _Report, item: ServiceInput) -> None:
    for connector in unknown_connectors(item.args):
        message = f"What {connector} of {item.name} keeps in host memory is not known, and was not counted."
        finding = Finding(rule="memory.approximate", severity="info", service=item.name, message=message)
        report.drafts.append(_Draft(finding))
    for written, near in item.misspelt:
        finding = Finding(
            rule="memory.argument",
            severity="warning",
            service=item.name,
            message=f"{written} of {item.name} is no option of any vLLM that is known and was not counted.",
        )
        report.drafts.append(_Draft(finding, advice=f"Write {near}, if that is what was meant."))


def _judged_by(minors: Sequence[int]) -> str:
    return f"the releases that know its architecture and options ({_minor_spans(minors)})"


def _minor_spans(minors: Sequence[int]) -> str:
    """Write minor releases as spans: C(0.17, 0.19 to 0.33)."""
    runs: list[list[int]] = []
    for minor in sorted(minors):
        if runs and runs[-1][-1] == minor - 1:
            runs[-1].append(minor)
        else:
            runs.append([minor])
    return ", ".join(f"0.{run[0]}" + (f" to 0.{run[-1]}" if len(run) > 1 else "") for run in runs)


def _note_unknown_version(report: _Report, name: str, judged: str, refusing: Sequence[tuple[int, str]] = ()) -> None:
    """Say what a service of unknown version was judged by.

    :param report: gets the finding
    :param name: of the service
    :param judged: how, the second half of a sentence
    :param refusing: minor releases that would refuse the launch, with their texts
    """
    message = f"The vLLM version of {name} is not known; {judged}"
    if refusing:
        message += f" It would not start with vLLM {_minor_spans([minor for minor, _text in refusing])}: {refusing[-1][1].strip()}"
    finding = Finding(rule="memory.version", severity="warning", service=name, message=message)
    report.drafts.append(_Draft(finding, advice="Give vllm_version; in an inventory it stands below image."))


def _note_version(report: _Report, service: Service) -> None:
    engine = service.engine
    if engine.release is None or engine.plan is None or engine.cache_from == IMAGE:
        return
    text = engine.release.text
    if not text:
        _note_unknown_version(
            report,
            service.name,
            f"it is planned as vLLM 0.{engine.release.minor}, which needs most of {_judged_by(engine.minors)}.",
            engine.refusing,
        )
    elif engine.release.is_newer:
        finding = Finding(
            rule="memory.version",
            severity="warning",
            service=service.name,
            message=f"vLLM {text} is newer than what is known here; {service.name} is planned as vLLM 0.{engine.release.minor}.",
        )
        report.drafts.append(
            _Draft(finding, advice="Compare what it reports at its start (spark_info with gather=engines).")
        )
    elif not engine.release.exact:
        finding = Finding(
            rule="memory.version",
            severity="info",
            service=service.name,
            message=f"The KV planning of vLLM {text} was not compared with whole models; it follows the releases in which changes "
            f"were first seen. Compared are {', '.join(f'0.{minor}' for minor in COMPARED_MINORS)}.",
        )
        report.drafts.append(_Draft(finding))
    for note in engine.plan.notes:
        finding = Finding(rule="memory.approximate", severity="info", service=service.name, message=f"{note}.")
        report.drafts.append(_Draft(finding))


def _note_source(report: _Report, node: Node, service: Service) -> None:
    """Say which figures are not those of the arithmetic, and where the arithmetic and an image differ."""
    engine, name = service.engine, service.name
    if engine.stated is not None:
        requested, wanted = node.requested(service), engine.stated
        finding = Finding(
            rule="memory.stated",
            severity="warning",
            service=name,
            message=f"{name} is planned with the {gib_text(wanted)} GiB that the inventory states; nothing of it was worked out.",
        )
        advice = "Check the figures after the start: the proof compares them with what the engine takes."
        if requested < wanted:
            finding = replace(
                finding,
                severity="error",
                message=f"{name} is stated to take {gib_text(wanted)} GiB, but with gpu-memory-utilization {service.utilization} it asks "
                f"for {gib_text(requested)} GiB.",
            )
            advice = f"Set gpu-memory-utilization of {name} to {node.share(wanted)}, or leave it out; or correct the stated memory."
        report.drafts.append(_Draft(finding, advice=advice))
    if engine.disk:
        finding = Finding(
            rule="memory.table",
            severity="warning",
            service=name,
            message=f"The tables of n-grams of {name}, {gib_text(engine.disk)} GiB on this rank, are taken to stay on disk ({engine.table}); none "
            "of it counts as memory.",
        )
        advice = "See that the image's build has that option, which no release of vLLM has: the proof compares the weights with what was loaded."
        report.drafts.append(_Draft(finding, advice=advice))
    if engine.cache_from == IMAGE and engine.release is not None:
        finding = Finding(
            rule="memory.image",
            severity="info",
            service=name,
            basis="probed",
            message=f"The memory of {name} is what vLLM {engine.release.text or 'of its image'} itself plans, without a GPU, as the image was "
            f"asked ({engine.unknown}).",
        )
        report.drafts.append(_Draft(finding))
    if engine.differences:
        used = "image" if engine.cache_from == IMAGE else "arithmetic"
        finding = Finding(
            rule="memory.differs",
            severity="warning",
            service=name,
            basis="probed",
            message=f"Arithmetic and image plan {name} differently: {'; '.join(engine.differences)}. Planned with those of the {used}.",
        )
        advice = f"Compare what {name} reports at its start (spark_info with gather=engines), and tell this collection's maintainers."
        report.drafts.append(_Draft(finding, advice=advice))


def _note_solved(report: _Report, node: Node, service: Service) -> None:
    if not service.solved or not service.is_engine:
        return
    blocks = service.engine.num_blocks(max(0, service.engine.available(node.requested(service), "typical")))
    holds = service.plan.max_concurrency(blocks, service.length) if service.length else 0.0
    values = {
        "gpu-memory-utilization": service.utilization,
        "max-model-len": service.length,
        "max-num-seqs": service.sequences,
    }
    text = ", ".join(f"{key} {values[key]}" for key in service.solved)
    message = f"{text} was worked out for {service.name}; its KV cache then holds {holds:.2f} requests of {service.length} tokens."
    if "max-num-seqs" in service.solved and not service.engine.sequences_auto:
        message += f" vLLM's own max-num-seqs of {DEFAULT_SEQS} needs more blocks for the state of requests than the cache has."
    finding = Finding(rule="memory.solved", severity="info", service=service.name, message=message)
    report.drafts.append(_Draft(finding))


def _refused(item: ServiceInput, error: Refusal | PlanFailure) -> _Draft:
    if isinstance(error, ImageRefusal):
        finding = Finding(
            rule="memory.refused",
            severity="error",
            service=item.name,
            basis="probed",
            message=f"The memory of {item.name} cannot be planned: {error.reason}, as its image says without a GPU.",
            vllm_error=error.text,
            stage="arguments",
        )
        return _Draft(finding, advice="Change what vLLM names, or take another image.")
    if isinstance(error, Refusal):
        finding = Finding(
            rule="memory.refused",
            severity="error",
            service=item.name,
            message=f"The memory of {item.name} cannot be planned: {error.key}: {error.reason}.",
        )
        fix = error.fix or (
            "correct the field; or give the service memory_gib, what it may ask for in GiB, or memory with weights_gib and kv_gib: it is "
            "planned with that"
        )
        return _Draft(finding, advice=_sentence(fix))
    finding = Finding(
        rule="memory.plan",
        severity="error",
        service=item.name,
        message=f"vLLM would refuse {item.name}: {error.reason or 'its layers cannot have pages of one size'}.",
        vllm_error=str(error),
        stage=error.stage,
        seconds=error.seconds,
    )
    advice = _sentence(error.fix or "use vLLM 0.26 or later, or another block-size or kv-cache-dtype")
    return _Draft(finding, lambda: _plannable(item), advice, most=1)


def _plannable(item: ServiceInput) -> Iterator[FixCandidate]:
    """Change what vLLM cannot plan: fewer draft tokens, or one option left out."""
    spec = item.args.get("speculative-config") or {}
    for count in range((spec.get("num_speculative_tokens") or 1) - 1, 0, -1):
        yield [{"service": item.name, "args": {"speculative-config": {**spec, "num_speculative_tokens": count}}}]
    for key in ("kv-cache-dtype-skip-layers", "kv-cache-dtype", "block-size", "speculative-config"):
        if key in item.args:
            yield [{"service": item.name, "args": {key: None}}]


# The whole ------------------------------------------------------------------------------------------------------------


def _settle(node: Node, item: ServiceInput, service: Service) -> None:
    """Resolve a service with the numbers that were found for it: further defaults of vLLM follow them."""
    before, lowest = service.engine, service.sequences

    def settled() -> Engine:
        found = {"max-model-len": service.length, "max-num-seqs": service.sequences}
        given = {key: value for key, value in found.items() if key in service.solved}
        return resolve(replace(item, starts=(), args={**item.args, **given}))

    if not set(service.solved) & {"max-model-len", "max-num-seqs"}:
        return
    if before.sequences_auto and lowest:
        # Sampling for fewer takes less, so that the cache may hold some more than were found with vLLM's default.
        highest = DEFAULT_SEQS
        while lowest < highest:
            service.sequences = (lowest + highest + 1) // 2
            enough = at_once(node, service, settled())[0] >= service.sequences
            lowest, highest = (service.sequences, highest) if enough else (lowest, service.sequences - 1)
        service.sequences = lowest
    service.engine = replace(settled(), length_auto=before.length_auto, sequences_auto=before.sequences_auto)


def _unmeasured(item: ServiceInput) -> ServiceInput:
    """What is open is worked out from what is assumed, so that a proof restarts no engine."""
    return replace(item, starts=()) if item.starts else item


def _judge(host: Host, items: Sequence[ServiceInput], unbuffered: frozenset[str] = frozenset()) -> tuple[Node, _Report]:
    """Solve what is open and check everything; findings have no fixes yet.

    A buffer of offloaded KV blocks for which there is no room is one finding; all else is solved and checked without it.

    :param unbuffered: services whose buffers of that kind are left out
    """
    services, report = [], _Report()
    for item in items:
        _note_arguments(report, item)
        try:
            engine = resolve(_unmeasured(item))
        except (Refusal, PlanFailure) as error:
            report.drafts.append(_refused(item, error))
            if item.minors and not isinstance(error, ImageRefusal):
                judged = "none of " if isinstance(error, Refusal) else "all of "
                verdict = "can be planned with." if isinstance(error, Refusal) else "would refuse it."
                _note_unknown_version(report, item.name, f"{judged}{_judged_by(item.minors)} {verdict}")
        else:
            engine = _without_buffer(engine) if item.name in unbuffered else engine
            services.append(Service(engine, engine.utilization, engine.length, engine.sequences))
    node = Node(host, services)
    solve(node)
    oversized = _oversized_buffer(node)
    if oversized:
        buffers = {service.name: service.engine.buffers for service in services}
        node, report = _judge(host, items, unbuffered | {oversized})
        service = next(each for each in node.services if each.name == oversized)
        buffer = next(each for each in buffers[oversized] if each.name == KV_BUFFER)
        _report_oversized(report, node, service, buffer)
        service.engine = replace(service.engine, buffers=(*service.engine.buffers, buffer))
        return node, report
    by_name = {item.name: item for item in items}
    for service in services:
        _settle(node, by_name[service.name], service)
    for service in services:
        item = by_name[service.name]
        engine = learned.applied(service.engine, item, service.length or 0, service.wanted, resolve)
        service.engine = _without_buffer(engine) if item.name in unbuffered else engine
    # Largest first: the check compares with a share of all memory, so a large engine passes only while little is taken.
    services.sort(
        key=lambda service: (
            service.engine.last,
            -(node.requested(service) or node.held(service, "typical")),
            service.name,
        )
    )
    for order, service in enumerate(services):
        _note_version(report, service)
        _note_source(report, node, service)
        _check_free(report, node, service, services[:order])
        _check_cache(report, node, service)
        _note_solved(report, node, service)
    if services:
        report.drafts += _check_node(node)
    _note_buffers(report, node)
    return node, report


def _changed(items: Sequence[ServiceInput], candidate: FixCandidate) -> list[ServiceInput]:
    """Return the input with the changes of a candidate; what an image said of other arguments does not hold for it."""
    changes = {change["service"]: change["args"] for change in candidate}
    return [
        replace(
            item,
            args={k: v for k, v in {**item.args, **changes[item.name]}.items() if v is not None},
            asked=item.asked if set(changes[item.name]) <= {*ANSWERED_ARGS, *HOST_ARGS} else None,
        )
        if item.name in changes
        else item
        for item in items
    ]


def _severities(drafts: Sequence[_Draft]) -> dict[tuple[str, str], int]:
    """How bad each rule is for each service: 2 for an error, 1 for a warning, 0 for information."""
    found: dict[tuple[str, str], int] = {}
    for draft in drafts:
        key = (draft.finding.service, draft.finding.rule)
        found[key] = max(found.get(key, 0), ("info", "warning", "error").index(draft.finding.severity))
    return found


def _turns(candidate: FixCandidate) -> list[tuple[str, str]]:
    """The arguments that a candidate changes."""
    return [(change["service"], key) for change in candidate for key in change["args"]]


def _complete(host: Host, items: Sequence[ServiceInput], drafts: list[_Draft], draft: _Draft) -> Finding:
    """Give a finding its fix: the candidates that were planned and found good."""
    before = _severities(drafts)
    own = (draft.finding.service, draft.finding.rule)
    clean: list[FixCandidate] = []
    better: list[FixCandidate] = []
    tried: list[FixCandidate] = []
    for candidate in draft.candidates():
        if candidate in tried or _turns(candidate) in map(_turns, clean):
            continue
        tried.append(candidate)
        after = _severities(_judge(host, _changed(items, candidate))[1].drafts)
        worse = [key for key, level in after.items() if level > before.get(key, 0)]
        if any(after[key] == 2 for key in worse) or after.get(own, -1) >= before[own]:
            continue
        # Fewer requests at once are a price that a fix may have, any other warning is not.
        paid = all(rule == "memory.concurrency" for _service, rule in worse)
        (clean if paid and after.get(own, 0) == 0 else better).append(candidate)
        if len(clean) == draft.most:
            break
    good = clean or better[:1]
    if not good:
        return replace(draft.finding, fix=draft.advice)
    return replace(draft.finding, fix=_sentence(", or ".join(map(_say, good))), changes=good[0])


@lru_cache(maxsize=512)
def _worked_out(host: Host, items: tuple[ServiceInput, ...]) -> tuple[Node, tuple[Finding, ...], frozenset[str]]:
    """Judge a node and give its findings their fixes; equal nodes are worked out once. Nobody may change what is returned.

    The names are those of services whose verdict hangs on overheads.
    """
    node, report = _judge(host, items)
    findings = tuple(_complete(host, items, report.drafts, draft) for draft in report.drafts)
    temporary = [finding for finding, draft in zip(findings, report.drafts) if draft.is_temporary]
    judge = Judge(
        find_problems=partial(_find_problems, host),
        change=_change_items,
        name=lambda item: item.name,
        is_exclusive=lambda item: bool(item.exclusive),
        is_temporary=lambda finding: any(finding is other for other in temporary),
    )
    findings = merge_causes(findings, items, judge, lambda changes: _sentence(_say(changes)).rstrip("."))
    return node, findings, frozenset(report.tight)


def _find_problems(host: Host, items: tuple[ServiceInput, ...]) -> list[Finding]:
    """Return errors, each with its own fix, and warnings of a node with these services."""
    drafts = _judge(host, items)[1].drafts
    return [
        _complete(host, items, drafts, draft) if draft.finding.severity == "error" else draft.finding
        for draft in drafts
        if draft.finding.severity != "info"
    ]


def _change_items(items: tuple[ServiceInput, ...], changes: FixCandidate) -> tuple[ServiceInput, ...]:
    return tuple(_changed(items, changes))


class AtOnce:
    """Tells which services of a node may run at once; worked out from what the services hold, so that many can be asked.

    params: of C(memory_budget), of services of which nothing is open any more.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        host, items = read_params(params)
        self._node = _judge(host, items)[0]
        self._by_name = {service.name: service for service in self._node.services}
        self._alone = {item.name: not _fails(_judge(host, [item])[1]) for item in items}

    def alone(self, name: str) -> bool:
        """Whether a service can be planned, and passes its own checks with nothing beside it."""
        return self._alone.get(name, False)

    def fit(self, sets: Mapping[str, Sequence[Iterable[str]]]) -> bool:
        """Tell whether the node holds any combination of each set, with all that is in none of them.

        :param sets: of exclusive sets the combinations that may run at once, none of whose services is unknown; of others one service runs
        :returns: whether each mixture passes even at low overheads, as C(memory_budget) says "fails" of what does not
        """
        slots = [
            [tuple(self._by_name[name] for name in one) for one in combinations]
            for combinations in sets.values()
            if combinations
        ]
        slots += [slot for slot in self._node.one_at_a_time() if slot[0][0].engine.exclusive not in sets]
        return self._node.fits_at_once(slots, "low")


def _unplanned(item: ServiceInput) -> dict[str, Any]:
    """Return the result of a service that cannot be planned; its image may know better unless this very version was compared."""
    try:
        compared = parse_release(item.vllm_version).exact
    except Refusal:
        compared = False
    return {"verdict": "fails", **({} if compared else {"sources": {"kv_cache": NOT_COMPARED}})}


def _fails(report: _Report) -> bool:
    return any(draft.finding.severity == "error" for draft in report.drafts)


def memory_budget(params: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the memory of one node.

    params: the options of the module C(memory_budget), as documented there: C(total_gib), C(os_reserve_gib), C(measured),
    C(overheads), C(safety_margin_gib), C(services).

    Returns a plain dict: C(verdict), C(start_order), C(utilization_sum), C(utilization_bound), C(total_gib), C(services)
    by name, C(findings), C(memory_map); as documented at the module. A service that cannot be planned (an unknown layer kind, for
    example) is an error finding, and only its verdict is in C(services). Raises C(InputError) for malformed input, and nothing else.
    """
    host, items = read_params(params)
    items.sort(key=lambda item: item.name)  # the order in which services are written is no matter, to the last digit
    node, findings, hanging = _worked_out(host, tuple(items))
    planned: dict[str, Any] = {item.name: _unplanned(item) for item in items}
    for order, service in enumerate(node.services):
        own = [finding for finding in findings if finding.service == service.name]
        planned[service.name] = _service_result(node, service, order, _verdict(own, service.name in hanging))
    tight = bool(hanging) or any(finding.rule in ("memory.node", "memory.utilization_bound") for finding in findings)
    return {
        "verdict": _verdict(findings, tight),
        "start_order": [service.name for service in node.services],
        "utilization_sum": node.utilization_sum(),
        "utilization_bound": round(node.utilization_bound(), 3),
        "total_gib": _gib(host.total),
        "services": planned,
        "findings": [finding.to_dict() for finding in findings],
        "memory_map": _memory_map(node),
    }
