# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM's memory checks, in vLLM's order and words, for each service and for the whole node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from .._common.sizes import GIB
from .engine import Engine
from .fixes import (
    Draft,
    FixCandidate,
    Report,
    enlarge_cache,
    free_memory,
    raise_concurrency,
    set_args,
    shrink_media_caches,
    shrink_services,
)
from .host_memory import FILE_TIER, KV_BUFFER, HostBuffer
from .kv_plan import KVPlan
from .node_memory import GROWTH_LIMIT, STEPS, UTILIZATION_LIMIT, Node, Service, first_failing
from .releases import Release
from .vllm_errors import (
    error_auto_fit,
    error_free_memory,
    error_mamba_blocks,
    error_no_memory,
    error_too_long,
    error_warm_up,
    gib_text,
)

# A batch that people use where the default of 2048 is too small for a block.
USUAL_BATCH = 8192
_SEVERITY = {"low": "error", "typical": "warning", "high": "info"}
_ALSO = {
    "low": "",
    "typical": " It fits only at low overheads.",
    "high": " It fits at typical overheads, not at high ones.",
}


def _report_failure(
    report: Report,
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
    severity: str = "",
) -> Draft:
    """Report a check that fails at a level of overheads; vLLM's error is certain unless only high overheads fail it."""
    if level != "low":
        report.tight.add(service.name)
    certain = level != "high"
    return report.add(
        rule,
        severity or _SEVERITY[level],
        service.name,
        message + (_ALSO[level] if also is None else also),
        candidates,
        advice,
        most,
        vllm_error=vllm_error if certain else "",
        stage=stage if certain else "",
        seconds=service.engine.seconds(stage) if certain else {},
        basis=basis,
    )


def check_free(report: Report, node: Node, service: Service, before: list[Service]) -> None:
    """Check 1: free memory at the turn of a service, and at every later restart; and the peak while weights load."""
    if service.utilization is None:
        return
    neighbours = node.neighbours(service)
    _check_turns(report, node, service, [other for other in before if other in neighbours], neighbours)
    _check_loading(report, node, service, neighbours)
    if node.host.free is not None and node.host.free < node.requested(service) <= (node.host.available or 0):
        message = (
            f"Only {gib_text(node.host.free)} GiB are free; the other available memory is page cache, which vLLM counts as free and the "
            "driver must reclaim first."
        )
        advice = "Drop the page cache before the start; the units of this collection do."
        report.add("page_cache", "info", service.name, message, advice=advice, basis="measured")


def _check_turns(
    report: Report, node: Node, service: Service, before: list[Service], neighbours: list[Service]
) -> None:
    """Check the memory that vLLM finds free: at its turn after C(before), and at a restart next to all C(neighbours)."""
    requested = node.requested(service)
    is_temporary, advice = _advise_move(node, service, neighbours, requested)
    turns = [("free_at_start", "starts", before)]
    if len(before) < len(neighbours):
        turns.append(("free_at_restart", "restarts while all others run", neighbours))
    for rule, when, resident in turns:
        level = node.shortfall_level(service, resident, requested)
        if level:
            free = max(0, node.free(service, resident, level))
            running = {other.name for other in resident}
            running |= set(node.host.resident if node.host.available is not None else ())
            running -= {service.name, *(mate.name for mate in node.set_members(service))}
            draft = _report_failure(
                report,
                service,
                level,
                rule,
                f"{service.name} requests {gib_text(requested)} GiB (gpu-memory-utilization {service.utilization} of "
                f"{gib_text(node.host.total)} GiB), but {gib_text(free)} GiB are free when it {when} (with "
                f"{', '.join(sorted(running)) or 'no other service'}).",
                error_free_memory(free, node.host.total, service.utilization or 0.0, requested),
                "device",
                (lambda: iter(())) if is_temporary else partial(free_memory, node, service, level),
                basis=node.basis,
                advice=advice if is_temporary or level == "low" else "",
                most=1,
            )
            draft.is_temporary = is_temporary
            break


def _advise_move(node: Node, service: Service, neighbours: list[Service], requested: int) -> tuple[bool, str]:
    """Return whether restarts of neighbours free enough memory, and the advice for a service that lacks memory."""
    excess = {other.name: node.gives_back(other) for other in neighbours if node.gives_back(other)}
    if excess and node.free(service, neighbours, "low") + sum(excess.values()) >= requested:
        names = ",".join(sorted(excess))
        return True, (
            f"Stop {names} first (stop.yml -e services={names}), which uses {gib_text(sum(excess.values()))} GiB more now than planned; site.yml "
            "starts it again."
        )
    beside = ", ".join(sorted(other.name for other in neighbours))
    end = f", or do not run it together with {beside}." if beside else ", or use a smaller model."
    return False, f"Move {service.name} to another node{end}"


def _check_loading(report: Report, node: Node, service: Service, neighbours: list[Service]) -> None:
    """Check the peak while weights load and all other services run."""
    requested = node.requested(service)
    engine = service.engine

    def loads(at: str) -> bool:
        # A peak below the request passes with the check of the request.
        return engine.loading(at) <= requested or node.free(service, neighbours, at) >= engine.loading(at)

    level = first_failing(loads)
    if level:
        peak, quantised = engine.loading(level), engine.load_peak > engine.weights
        layerwise = f" It fits if each layer is quantised while it loads ({gib_text(engine.loading('low'))} GiB)."
        _report_failure(
            report,
            service,
            level,
            "load",
            f"The weights of {service.name} take {gib_text(peak)} GiB while they load, but only "
            f"{gib_text(max(0, node.free(service, neighbours, level)))} GiB are free.",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "load",
            partial(shrink_services, node, neighbours, level),
            basis=node.basis,
            advice=("Use a quantised checkpoint" if quantised else "Use a smaller model")
            + ", or more ranks (tensor-parallel-size).",
            most=1,
            also=layerwise if quantised and level == "typical" else None,
        )


def _list_kv_buffers(services: Sequence[Service]) -> list[tuple[HostBuffer, Service]]:
    """Return the buffers of offloaded KV blocks, the largest first."""
    buffers = [
        (buffer, service) for service in services for buffer in service.engine.buffers if buffer.name == KV_BUFFER
    ]
    return sorted(buffers, key=lambda pair: (-pair[0].low, pair[1].name))


def find_oversized_buffer(node: Node) -> str:
    """Name the service whose buffer of offloaded KV blocks is why the node does not hold its services even at low overheads."""
    remaining = node.remaining("low")
    buffers = _list_kv_buffers(node.counted())
    return buffers[0][1].name if remaining < 0 <= remaining + sum(buffer.low for buffer, _service in buffers) else ""


def without_buffer(engine: Engine) -> Engine:
    return replace(engine, buffers=tuple(buffer for buffer in engine.buffers if buffer.name != KV_BUFFER))


def report_oversized(report: Report, node: Node, service: Service, buffer: HostBuffer) -> None:
    """Report a buffer of offloaded KV blocks that does not fit the node, as the first finding. node: without it."""
    message = (
        f"{service.name} allocates {gib_text(buffer.typical)} GiB of host memory for offloaded blocks of its KV cache "
        f"({buffer.option}); on a Spark that is the memory of the GPU, and {gib_text(max(0, node.remaining('typical')))} GiB of it are free."
    )
    is_tier = buffer.option == FILE_TIER
    candidates: list[FixCandidate] = [] if is_tier else [[set_args(service.name, **{buffer.option: None})]]
    advice = (
        f"Leave out {buffer.option} of {service.name}, or make {'its host_gib' if is_tier else 'the buffer'} smaller."
    )
    report.add("host_buffer", "error", service.name, message, lambda: iter(candidates), advice, 1, basis=node.basis)
    report.drafts.insert(0, report.drafts.pop())


def note_buffers(report: Report, node: Node) -> None:
    """Warn of buffers that hold a second KV cache in the memory that the first one could have."""
    for buffer, service in _list_kv_buffers(node.services):
        if buffer.option == FILE_TIER:
            continue  # it is the way to the files; C(_plan/kv_tiers.py) says how much of a prompt passes
        message = (
            f"{service.name} allocates {gib_text(buffer.typical)} GiB of host memory for offloaded blocks of its KV "
            f"cache ({buffer.option}); on a Spark that is GPU memory, and a KV cache of that extra size needs no copies."
        )
        advice = f"Leave out {buffer.option} of {service.name}, and raise its gpu-memory-utilization."
        candidates: list[FixCandidate] = [[set_args(service.name, **{buffer.option: None})]]
        if service.utilization is not None and "gpu-memory-utilization" not in service.solved:
            share = math.floor((service.utilization + buffer.typical / node.host.total) * STEPS) / STEPS
            larger = {buffer.option: None, "gpu_memory_utilization": min(GROWTH_LIMIT, share)}
            candidates.insert(0, [set_args(service.name, **larger)])
        report.add("host_buffer", "warning", service.name, message, partial(iter, candidates), advice, 1)


_WHEN = "vLLM reports this only after it has loaded the weights."


def _advise_less(service: Service) -> str:
    return f"{service.name} does not fit on this node with these settings: use fewer services, a smaller model or more ranks."


def check_cache(report: Report, node: Node, service: Service) -> None:
    """Report the errors of vLLM when it plans the KV cache, minutes into the start (checks 0 and 5 to 9)."""
    engine = service.engine
    if engine.plan is None or engine.release is None:
        return
    if engine.align_error:
        _check_align_block(report, service, engine.plan, engine.release)
    if engine.kernel_error:
        _report_failure(
            report,
            service,
            "low",
            "kernel_block",
            f"The sparse layers of {service.name} need blocks of {engine.kernel_block} tokens, and vLLM "
            f"{engine.release.text} chooses the size of its other layers, {engine.plan.block_size}. {_WHEN}",
            engine.kernel_error,
            "kv_cache",
            lambda: iter([[set_args(service.name, block_size=engine.kernel_block)]]),
            advice=f"Set block-size of {service.name} to {engine.kernel_block}, and give it more memory; or use vLLM 0.31 or later.",
        )
    if _check_cache_memory(report, node, service, engine.release) in ("low", "typical"):
        return
    # Left out and nothing fits: vLLM takes the longest that the model allows.
    length = service.length or (0 if engine.length_auto else engine.limit)
    if length == 0:
        _report_failure(
            report,
            service,
            "low",
            "auto_fit",
            f"Not even one token fits into the KV cache of {service.name}. {_WHEN}",
            error_auto_fit(),
            "kv_cache",
            partial(enlarge_cache, node, service, "low"),
            advice=_advise_less(service),
        )
        return
    level = _check_request(report, node, service, engine.plan, length)
    if level == "low":
        return
    if engine.needs_state_blocks:
        _check_state_blocks(report, node, service)
    if service.sequences is not None and level != "typical":
        _check_concurrency(report, node, service, engine.plan, length)


def _check_align_block(report: Report, service: Service, plan: KVPlan, release: Release) -> None:
    """Report a hybrid model with blocks larger than a batch."""
    engine = service.engine
    early = release.minor == 17  # the one release that looks at this with its arguments
    _report_failure(
        report,
        service,
        "low",
        "align_block",
        f"With prefix caching, a block of {service.name} has {engine.align_block} tokens, more than a batch of "
        f"{plan.settings.max_num_batched_tokens}." + ("" if early else f" {_WHEN}"),
        engine.align_error,
        "arguments" if early else "kv_cache",
        lambda: iter(
            [
                [set_args(service.name, max_num_batched_tokens=max(USUAL_BATCH, engine.align_block))],
                [set_args(service.name, enable_prefix_caching=False)],
                [set_args(service.name, max_num_batched_tokens=engine.align_block)],
            ]
        ),
        advice=f"Set max-num-batched-tokens of {service.name} to {engine.align_block} or more, or enable-prefix-caching to "
        "false, and give it more memory.",
        most=2,
    )


def _check_cache_memory(report: Report, node: Node, service: Service, release: Release) -> str | None:
    """Check that anything is left for the KV cache; return the first level at which nothing is."""
    engine, requested = service.engine, node.requested(service)
    level = first_failing(lambda at: engine.available(requested, at) > 0)
    if level:
        available = engine.available(requested, level)
        _report_failure(
            report,
            service,
            level,
            "no_cache_memory",
            f"{service.name} requests {gib_text(requested)} GiB; its weights "
            f"({gib_text(engine.weights + engine.draft)} GiB) and overheads "
            f"({gib_text(engine.inside[level])} GiB) leave {gib_text(available)} GiB for the KV cache. {_WHEN}",
            error_auto_fit() if engine.length_auto else error_no_memory(release),
            "kv_cache",
            partial(enlarge_cache, node, service, level),
            advice=_advise_less(service),
            severity="" if level == "high" else "error",  # usual overheads prevent the start
        )
    return level


def _check_request(report: Report, node: Node, service: Service, plan: KVPlan, length: int) -> str | None:
    """Check that one request of the full length, in tokens, fits; return the first level at which it does not."""
    engine, requested = service.engine, node.requested(service)

    def cache_bytes(at: str) -> int:
        return (engine.plan_at(at) or plan).checked_bytes(engine.available(requested, at))

    level = first_failing(lambda at: (engine.plan_at(at) or plan).needed_bytes(length) <= cache_bytes(at))
    if level:
        plan = engine.plan_at(level) or plan
        available = engine.available(requested, level)
        batch = plan.settings.max_num_batched_tokens
        price = (
            f" Most of it is for max-num-batched-tokens, {batch}, not for its length."
            if plan.ruled_by_batch(length)
            else ""
        )
        if available > 0:
            _report_failure(
                report,
                service,
                level,
                "one_request",
                f"One request of {length} tokens needs {gib_text(plan.needed_bytes(length))} GiB of KV cache, {service.name} has "
                f"{_describe_cache(level, cache_bytes)}.{price} {_WHEN}",
                error_too_long(plan, length, available),
                "kv_cache",
                partial(enlarge_cache, node, service, level),
                advice=_advise_less(service),
            )
    return level


def _describe_cache(level: str, cache_bytes: Callable[[str], int]) -> str:
    """Return the size of a KV cache at the level that fails, in words, with that at high overheads, for which fixes are planned."""
    size, least = cache_bytes(level), max(0, cache_bytes("high"))
    if cache_bytes("low") == cache_bytes("high"):
        return f"{gib_text(size)} GiB"
    return f"{gib_text(size)} GiB at {level} overheads" + (
        "" if level == "high" else f", {gib_text(least)} at high ones"
    )


def _check_state_blocks(report: Report, node: Node, service: Service) -> None:
    """Check that each request that may run at once finds a block for its state."""
    engine, requested, sequences = service.engine, node.requested(service), service.max_sequences

    def passes(at: str) -> bool:
        cut = engine.plan_at(at)
        checks = cut is None or cut.settings.release.since(20)
        return not checks or engine.num_blocks(engine.available(requested, at), at) >= sequences

    level = first_failing(passes)
    if level:
        blocks = engine.num_blocks(engine.available(requested, level), level)
        _report_failure(
            report,
            service,
            level,
            "state_blocks",
            f"{service.name} may run {sequences} requests at once (max-num-seqs), but its cache has {blocks} blocks and each "
            f"request needs one for its state. {_WHEN}",
            error_mamba_blocks(sequences, blocks),
            "graphs",
            partial(enlarge_cache, node, service, level),
            advice=_advise_less(service),
        )


def _check_concurrency(report: Report, node: Node, service: Service, plan: KVPlan, length: int) -> None:
    """Warn if the cache holds fewer requests of the full length, in tokens, than max-num-seqs."""
    engine, requested, sequences = service.engine, node.requested(service), service.max_sequences
    reached = plan.max_concurrency(engine.num_blocks(engine.available(requested, "typical")), length)
    if reached < sequences:
        message = (
            f"The KV cache of {service.name} has room for {reached:.2f} requests of {length} tokens at once; max-num-seqs is {sequences}. Shorter "
            "requests still run side by side; long ones wait or are preempted."
        )
        advice = "Use an fp8 KV cache, or give the service more memory."
        report.add(
            "concurrency", "warning", service.name, message, partial(raise_concurrency, node, service, reached), advice
        )


def check_utilization_sum(report: Report, node: Node) -> None:
    """Report services that request more of the node together than it has."""
    total, bound = node.utilization_sum(), node.utilization_bound()
    engines = [service for service in node.counted() if service.utilization is not None]
    names = ", ".join(f"{service.name} {service.utilization}" for service in engines)

    def lower() -> Iterator[FixCandidate]:
        largest_first = sorted(engines, key=lambda service: (-(service.utilization or 0.0), service.name))
        for service in largest_first:
            yield from shrink_services(node, [service], "low", bound - total + (service.utilization or 0.0))

    advice = "Lower one of them, or move a service to another node."
    if total > UTILIZATION_LIMIT:
        message = (
            f"gpu-memory-utilization is a share of all memory, and the services request {total:g} of it together "
            f"({names}); more than {UTILIZATION_LIMIT} leaves too little for the system and CUDA."
        )
        report.add("utilization_sum", "error", "", message, lower, advice, 1)
    elif total > bound:
        message = (
            f"The services request {total:g} of all memory together ({names}); with the system and the memory that engines use outside their share, "
            f"{bound:.3f} is the limit of this node. It works only while they use less than they request."
        )
        report.add("utilization_bound", "warning", "", message, lower, advice, 1)


def check_remaining(report: Report, node: Node) -> None:
    """Report a node on which too little memory stays free with everything running."""
    margin = node.host.margin
    limits = {"low": 0, "typical": margin, "high": 0}
    level = first_failing(lambda at: node.remaining(at) >= limits[at])
    if not level:
        return
    remaining = node.remaining(level)
    also = "" if level == "typical" and remaining >= 0 else _ALSO[level]  # then only the margin is short
    message = _describe_shortage(node, level, remaining) + _describe_caches(node, level) + also
    biggest = max(node.services, key=lambda service: (node.held(service, "typical"), service.name))
    advice = f"Move a service to another node; {biggest.name} is the largest." if level == "low" else ""

    def smaller() -> Iterator[FixCandidate]:
        yield from shrink_media_caches(node, level, margin if level == "typical" else 0)
        yield from free_memory(node, biggest, level, margin)

    draft = report.add("node", _SEVERITY[level], "", message, smaller, advice, 1, basis=node.basis)
    last = next((service for service in reversed(node.services) if service.is_engine), None)
    if last is not None and remaining < 0 and level != "high":
        error, seconds = error_warm_up(last.max_sequences), last.engine.seconds("graphs")
        draft.finding = replace(draft.finding, vllm_error=error, stage="graphs", seconds=seconds)


def _describe_shortage(node: Node, level: str, remaining: float) -> str:
    """Return the sum of memory that the services need, and the missing or remaining bytes, in words."""
    if remaining >= 0:
        return (
            f"With everything running, {gib_text(remaining)} GiB are free of {gib_text(node.host.total)} GiB; "
            f"{gib_text(node.host.margin)} GiB should stay free."
        )
    parts = [f"{service.name} ({gib_text(node.held(service, level))} GiB)" for service in node.counted()]
    return (
        f"{', '.join(parts)} and the system need {gib_text(node.host.total - remaining)} GiB together; the Spark has "
        f"{gib_text(node.host.total)} GiB, so {gib_text(-remaining)} GiB are missing."
    )


def _describe_caches(node: Node, level: str) -> str:
    """Name the caches in host memory that requests fill and that are part of a sum, in GiB."""
    caches = [
        f"{gib_text(buffer.size(level))} GiB for the {buffer.name} of {service.name} ({buffer.option})"
        for service in node.counted()
        for buffer in service.engine.buffers
        if not buffer.at_start and buffer.size(level) >= GIB
    ]
    return f" That counts {', '.join(caches)}, which requests fill." if caches else ""
