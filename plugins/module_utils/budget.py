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

C(memory_budget) is the only entry. No I/O, no Ansible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils.geometry import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils.kv_cache import (
    GIB,
    KVPlan,
    error_auto_fit,
    error_mamba_blocks,
    error_no_memory,
    error_too_long,
    gib_text,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils.service_memory import (
    LEVELS,
    SOLVER_MIN_LENGTH,
    Engine,
    Host,
    InputError,
    PlanFailure,
    ServiceInput,
    read_params,
    resolve,
)

__all__ = ["InputError", "error_free_memory", "memory_budget"]

# The sum of all gpu-memory-utilization values that is refused whatever else is known (published co-residency experience:
# beyond it CUDA contexts and the system have no room left).
UTILIZATION_LIMIT = 0.95
# Solved utilisations are written as people write them.
STEP = 0.01

_SEVERITY = {"low": "error", "typical": "warning", "high": "info"}
_ALSO = {
    "low": "",
    "typical": " It passes only with less overhead than usual.",
    "high": " It passes with the usual overheads, not with high ones.",
}


def error_free_memory(free: float, total: int, utilization: float, requested: int) -> str:
    """What vLLM prints when less memory is free than it asks for (C(vllm/v1/worker/utils.py), request_memory).

    free, total, requested: bytes. The text is the same in 0.19 to 0.33.
    """
    return (
        f"ValueError: Free memory on device cuda:0 ({gib_text(free)}/{gib_text(total)} GiB) on startup is less than "
        f"desired GPU memory utilization ({utilization}, {gib_text(requested)} GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes."
    )


@dataclass
class _Service:
    """One service on its way through the plan; C(utilization) and C(length) are given or found."""

    engine: Engine
    utilization: float | None
    length: int | None
    solved: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tight: bool = False

    @property
    def name(self) -> str:
        """Name of the service."""
        return self.engine.name


class _Node:
    """The arithmetic of a node with its services; all sizes in bytes."""

    def __init__(self, host: Host, services: list[_Service]) -> None:
        self.host = host
        self.services = services

    @property
    def basis(self) -> str:
        """What statements about free memory rest on."""
        return "inventory" if self.host.available is None else "measured"

    def requested(self, service: _Service) -> int:
        """What vLLM asks for, 0 for a service that asks for nothing."""
        return math.ceil(self.host.total * service.utilization) if service.utilization is not None else 0

    def held(self, service: _Service, level: str) -> float:
        """What a service holds once it runs."""
        return service.engine.residency(self.requested(service), level)

    def taken(self, service: _Service, level: str) -> float:
        """What a service takes of the memory that was measured or reserved as free."""
        resident = self.host.resident.get(service.name)
        if self.host.available is None or resident is None:
            return self.held(service, level)
        # It runs already. Only growth that is certain counts; a measured figure beats an estimate.
        return max(0.0, self.held(service, "low") - resident)

    def free(self, service: _Service, others: list[_Service], level: str) -> float:
        """What vLLM would see free when C(service) starts while C(others) are resident."""
        gone = sum(self.taken(other, level) for other in others)
        if self.host.available is None:
            return self.host.total - self.host.os_reserve - gone
        own = self.host.resident.get(service.name, 0)
        return self.host.available + own - service.engine.overhead("snapshot_gib", level) - gone

    def lacks(self, service: _Service, others: list[_Service], size: int) -> str:
        """Return the lowest level of overheads at which C(size) bytes are not free for a service, empty when they are."""
        return _first_failing(lambda level: self.free(service, others, level) >= size)

    def left(self, level: str) -> float:
        """What is free when all services run."""
        gone = sum(self.taken(service, level) for service in self.services)
        return (self.host.total - self.host.os_reserve if self.host.available is None else self.host.available) - gone

    def others(self, service: _Service) -> list[_Service]:
        """All services but this one."""
        return [other for other in self.services if other is not service]

    def utilization_sum(self) -> float:
        """Sum of the utilisations, rounded against binary noise."""
        return round(sum(service.utilization or 0.0 for service in self.services), 6)

    def utilization_bound(self) -> float:
        """The sum that leaves room for the system, for what engines hold beside their request, and for plain services."""
        beside = sum(
            service.engine.overhead("outside_gib", "typical")
            if service.utilization is not None
            else self.held(service, "typical")
            for service in self.services
        )
        return min(UTILIZATION_LIMIT, 1 - (self.host.os_reserve + beside) / self.host.total)

    def share(self, size: float) -> float:
        """The smallest utilisation that asks for C(size) bytes."""
        return max(STEP, math.ceil(round(size / self.host.total / STEP, 6)) * STEP)

    def floor(self, service: _Service, level: str) -> float:
        """Bytes to request so that vLLM's own checks pass."""
        return self._with_cache(service, level, 1, min(service.engine.limit, SOLVER_MIN_LENGTH))

    def target(self, service: _Service) -> float:
        """Bytes to request for max-num-seqs requests of max-model-len, with the usual overheads."""
        return self._with_cache(service, "typical", service.engine.default_sequences, service.engine.limit)

    def _with_cache(self, service: _Service, level: str, requests: int, length: int) -> float:
        engine = service.engine
        plan = _planned(engine)
        cache = plan.available_for(requests, service.length or length)
        if engine.needs_state_blocks:
            cache = max(cache, engine.default_sequences * plan.bytes_per_block)
        if engine.blocks is not None:
            cache = max(plan.available_for(1, service.length or length), engine.blocks * plan.bytes_per_block)
        if engine.pool is not None:
            cache = engine.pool
        return engine.weights + engine.draft + engine.inside[level] + cache

    def fits(self, level: str, margin: float = 0.0) -> bool:
        """Tell whether the node holds all services, each at any restart; from typical overheads on, within the bound."""
        limit = UTILIZATION_LIMIT if level == "low" else round(self.utilization_bound(), 6)
        if self.utilization_sum() > limit or self.left(level) < margin:
            return False
        return all(
            self.free(service, self.others(service), level) >= max(self.requested(service), service.engine.load_peak)
            for service in self.services
            if service.utilization is not None
        )

    def serves(self, service: _Service, level: str) -> bool:
        """Tell whether a service passes vLLM's own checks of the KV cache."""
        engine = service.engine
        if engine.plan is None:
            return True
        available = engine.available(self.requested(service), level)
        plan = engine.plan
        if available <= 0 or plan.needed_bytes(service.length or 1) > plan.checked_bytes(available):
            return False
        return not engine.needs_state_blocks or engine.num_blocks(available) >= engine.default_sequences


def _planned(engine: Engine) -> KVPlan:
    if engine.plan is None:
        raise TypeError(f"{engine.name} has no KV cache")
    return engine.plan


# Solving --------------------------------------------------------------------------------------------------------------


def _solve_utilization(node: _Node) -> None:
    """Choose the utilisations that were not given.

    Each gets the least that passes vLLM's checks; then all grow toward max-num-seqs x max-model-len as far as the node
    allows. High overheads are assumed where the node has room for that, so that the answer does not hang on them.
    """
    open_services = [
        service for service in node.services if service.utilization is None and service.engine.plan is not None
    ]
    if not open_services:
        return
    margin = float(node.host.margin)
    level = "low"
    for level, wanted in (("high", margin), ("typical", margin), ("typical", 0.0), ("low", 0.0)):
        for service in open_services:
            service.utilization = round(min(1.0, node.share(node.floor(service, level))), 2)
        if node.fits(level, wanted):
            margin = wanted
            break
    else:
        margin = 0.0
    # One step each in turn: nobody grows while another, smaller wish is still open, and the order of services is no matter.
    growing = sorted(open_services, key=lambda service: service.name)
    while growing:
        for service in list(growing):
            before = service.utilization or STEP
            service.utilization = round(before + STEP, 2)
            if before * node.host.total >= node.target(service) or not node.fits(level, margin):
                service.utilization = before
                growing.remove(service)
    for service in open_services:
        service.solved.append("gpu-memory-utilization")


def _solve_length(node: _Node, service: _Service) -> None:
    """Choose max-model-len where it was not given: the longest that fits, up to what the model allows."""
    engine = service.engine
    if engine.plan is None or service.length is not None:
        return
    levels = ("typical",) if engine.length_auto and engine.utilization is not None else ("high", "typical", "low")
    for level in levels:
        available = engine.available(node.requested(service), level)
        service.length = engine.plan.largest_length(available, engine.limit)
        if service.length:
            break
    service.solved.append("max-model-len")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# Checks ---------------------------------------------------------------------------------------------------------------


def _first_failing(passes: Callable[[str], bool]) -> str:
    """Return the lowest level of overheads at which a check fails, empty when it always passes."""
    return next((level for level in LEVELS if not passes(level)), "")


def _add(
    service: _Service, level: str, rule: str, message: str, fix: str, vllm_error: str, basis: str = "inventory"
) -> None:
    service.findings.append(
        Finding(
            rule=f"memory.{rule}",
            severity=_SEVERITY[level],
            service=service.name,
            message=message + _ALSO[level],
            fix=fix,
            vllm_error=vllm_error if level != "high" else "",
            basis=basis,
        )
    )
    service.tight = service.tight or level != "low"


def _try(node: _Node, service: _Service, highest: float, failed: str) -> float | None:
    """Return the largest utilisation of C(service), at most C(highest), with which the whole node plans; None if none.

    failed: the level at which the check failed that asks; the answer passes at that level, an error also at the usual one
    where that is possible.
    """
    before = service.utilization
    found = None
    for level in ("typical", "low") if failed == "low" else (failed,):
        for step in range(math.floor(highest / STEP + 1e-6), 0, -1):
            service.utilization = round(step * STEP, 2)
            if not node.serves(service, level):
                break
            if node.fits(level):
                found = service.utilization
                break
        if found:
            break
    service.utilization = before
    return found


def _fix_free(node: _Node, service: _Service, failed: str) -> str:
    """Say what makes the node plan: first this service smaller, else another one."""
    largest_first = sorted(node.others(service), key=lambda each: (-(each.utilization or 0.0), each.name))
    for each in (service, *largest_first):
        if each.utilization is not None and each.engine.plan is not None:
            found = _try(node, each, each.utilization - STEP, failed)
            if found:
                return f"Set gpu-memory-utilization of {each.name} to {found:.2f}."
    if failed != "low":
        return ""
    beside = ", ".join(other.name for other in node.others(service))
    return f"Move {service.name} to another node" + (
        f", or do not run it beside {beside}." if beside else ", or use a smaller model."
    )


def _check_free(node: _Node, service: _Service, before: list[_Service]) -> None:
    """Check 1: free memory at the turn of a service, and at every later restart; and the peak while weights load."""
    requested = node.requested(service)
    if service.utilization is None:
        return
    turns = [("free_at_start", "starts", before)]
    if len(before) < len(node.services) - 1:
        turns.append(("free_at_restart", "is restarted while all others are resident", node.others(service)))
    for rule, when, others in turns:
        level = node.lacks(service, others, requested)
        if level:
            free = node.free(service, others, level)
            running = {other.name for other in others} | set(
                node.host.resident if node.host.available is not None else ()
            )
            beside = ", ".join(sorted(running - {service.name})) or "no other service"
            _add(
                service,
                level,
                rule,
                f"{service.name} asks for {gib_text(requested)} GiB (gpu-memory-utilization {service.utilization} of "
                f"{gib_text(node.host.total)} GiB), but {gib_text(free)} GiB are free when it {when} (beside {beside}).",
                _fix_free(node, service, level),
                error_free_memory(free, node.host.total, service.utilization, requested),
                node.basis,
            )
            break
    peak = service.engine.load_peak
    level = node.lacks(service, node.others(service), peak)
    if peak and level:
        _add(
            service,
            level,
            "load",
            f"The weights of {service.name} take {gib_text(peak)} GiB while they load, but only "
            f"{gib_text(node.free(service, node.others(service), level))} GiB are free.",
            "Use a checkpoint that is quantised already, or more ranks (tensor-parallel-size).",
            "torch.OutOfMemoryError: CUDA out of memory.",
            node.basis,
        )
    if node.host.free is not None and node.host.free < requested <= (node.host.available or 0):
        service.findings.append(
            Finding(
                rule="memory.page_cache",
                severity="info",
                service=service.name,
                basis="measured",
                message=f"Only {gib_text(node.host.free)} GiB are free outright, the rest of the available memory is page cache. "
                "vLLM counts it as free, the driver has to get it back first.",
                fix="Drop the page cache before the start; the units of this collection do.",
            )
        )


def _fix_cache(node: _Node, service: _Service, level: str) -> str:
    """Say what makes a KV cache check pass."""
    engine = service.engine
    plan = _planned(engine)
    ways = []
    if engine.pool is None:
        before = service.utilization
        for at in ("high", "typical", "low"):
            wanted = node.share(node.floor(service, at))
            service.utilization = round(wanted, 2)
            if wanted <= UTILIZATION_LIMIT and service.utilization > (before or 0) and node.fits("low"):
                ways.append(f"set gpu-memory-utilization of {service.name} to {service.utilization:.2f}")
                break
        service.utilization = before
    available = engine.available(node.requested(service), level)
    length = plan.largest_length(available, service.length or engine.limit)
    if 0 < length < (service.length or 0):
        ways.append(f"set max-model-len of {service.name} to {length}")
    if engine.needs_state_blocks and 0 < engine.num_blocks(available) < engine.default_sequences:
        ways.append(f"set max-num-seqs of {service.name} to {engine.num_blocks(available)}")
    if not ways:
        return f"{service.name} does not fit on this node with these settings: use fewer services, a smaller model or more ranks."
    return _sentence(", or ".join(ways))


def _check_cache(node: _Node, service: _Service) -> None:
    """Checks 0 and 5 to 9: what vLLM refuses when it plans the KV cache, minutes into the start."""
    engine = service.engine
    if engine.plan is None or engine.release is None:
        return
    plan, length, requested = engine.plan, service.length or 0, node.requested(service)
    when = "vLLM finds this only after it has loaded the weights."
    if engine.align_error:
        batch = plan.settings.max_num_batched_tokens
        _add(
            service,
            "low",
            "align_block",
            f"With prefix caching, a block of {service.name} holds {engine.align_block} tokens, more than a batch of {batch}. {when}",
            f"Set max-num-batched-tokens of {service.name} to at least {engine.align_block} (8192 is usual), or "
            "enable-prefix-caching to false.",
            engine.align_error,
        )
    level = _first_failing(lambda at: engine.available(requested, at) > 0)
    if level:
        text = (
            error_auto_fit()
            if engine.length_auto and engine.available(requested, level) <= 0
            else error_no_memory(engine.release)
        )
        left = engine.available(requested, level)
        _add(
            service,
            level,
            "no_cache_memory",
            f"{service.name} asks for {gib_text(requested)} GiB; its weights ({gib_text(engine.weights + engine.draft)} GiB) and "
            f"overheads ({gib_text(engine.inside[level])} GiB) leave {gib_text(left)} GiB for the KV cache. {when}",
            _fix_cache(node, service, level),
            text,
        )
        if level == "low":
            return
    if length == 0:
        _add(
            service,
            "low",
            "auto_fit",
            f"Not even one token fits into the KV cache of {service.name}. {when}",
            _fix_cache(node, service, "low"),
            error_auto_fit(),
        )
        return
    level = _first_failing(lambda at: plan.needed_bytes(length) <= plan.checked_bytes(engine.available(requested, at)))
    if level:
        available = engine.available(requested, level)
        if available > 0:
            _add(
                service,
                level,
                "one_request",
                f"One request of {length} tokens needs {gib_text(plan.needed_bytes(length))} GiB of KV cache, {service.name} has "
                f"{gib_text(plan.checked_bytes(available))} GiB. {when}",
                _fix_cache(node, service, level),
                error_too_long(plan, length, available),
            )
        if level == "low":
            return
    sequences = engine.default_sequences
    if engine.needs_state_blocks:
        level = _first_failing(lambda at: engine.num_blocks(engine.available(requested, at)) >= sequences)
        if level:
            blocks = engine.num_blocks(engine.available(requested, level))
            _add(
                service,
                level,
                "state_blocks",
                f"{service.name} may run {sequences} requests at once (max-num-seqs), but its cache has {blocks} blocks and each "
                f"request needs one for its state. {when}",
                _fix_cache(node, service, level),
                error_mamba_blocks(sequences, blocks),
            )
    if engine.sequences is not None:
        reached = plan.max_concurrency(engine.num_blocks(engine.available(requested, "typical")), length)
        if reached < engine.sequences:
            service.findings.append(
                Finding(
                    rule="memory.concurrency",
                    severity="warning",
                    service=service.name,
                    message=f"The KV cache of {service.name} holds {reached:.2f} requests of {length} tokens at once, max-num-seqs is "
                    f"{engine.sequences}. Shorter requests still run side by side; long ones wait or are preempted.",
                    fix="Nothing, if long requests are rare; else lower max-model-len or max-num-seqs, use an fp8 KV cache, or give "
                    "the service more memory.",
                )
            )


def _check_node(node: _Node) -> list[Finding]:
    """The sum of utilisations and what is left at the end."""
    findings = []
    total, bound = node.utilization_sum(), node.utilization_bound()
    engines = [service for service in node.services if service.utilization is not None]
    names = ", ".join(f"{service.name} {service.utilization}" for service in engines)
    lower = ""
    if engines and total > bound:
        largest = max(engines, key=lambda service: (service.utilization or 0.0, service.name))
        found = _try(node, largest, bound - total + (largest.utilization or 0.0), "low")
        lower = (
            f"Set gpu-memory-utilization of {largest.name} to {found:.2f}."
            if found
            else "Lower one of them, or move a service to another node."
        )
    if total > UTILIZATION_LIMIT:
        findings.append(
            Finding(
                rule="memory.utilization_sum",
                severity="error",
                fix=lower,
                message=f"gpu-memory-utilization is a share of all memory, and the services ask for {total:g} of it together "
                f"({names}); more than {UTILIZATION_LIMIT} leaves no room for the system and for CUDA itself.",
            )
        )
    elif total > bound:
        findings.append(
            Finding(
                rule="memory.utilization_bound",
                severity="warning",
                fix=lower,
                message=f"The services ask for {total:g} of all memory together ({names}); with the system and what engines hold "
                f"beside their request, {bound:.3f} is what this node has. It works only while they take less than they ask.",
            )
        )
    margin = node.host.margin
    limits = {"low": 0.0, "typical": float(margin), "high": 0.0}
    level = _first_failing(lambda at: node.left(at) >= limits[at])
    if level:
        left = node.left(level)
        message = (
            f"With everything running, {gib_text(left)} GiB are left"
            if left >= 0
            else f"With everything running, {gib_text(-left)} GiB are missing"
        )
        biggest = max(node.services, key=lambda service: (node.held(service, "typical"), service.name))
        findings.append(
            Finding(
                rule="memory.node",
                severity=_SEVERITY[level],
                basis=node.basis,
                message=f"{message} of {gib_text(node.host.total)} GiB; {gib_text(margin)} GiB are to stay free.{_ALSO[level]}",
                fix=_fix_free(node, biggest, level),
            )
        )
    return findings


# The result -----------------------------------------------------------------------------------------------------------


def _gib(size: float) -> float:
    return round(size / GIB, 2)


def _verdict(findings: list[Finding], tight: bool) -> str:
    if any(finding.severity == "error" for finding in findings):
        return "fails"
    return "tight" if tight else "fits"


def _service_result(node: _Node, service: _Service, order: int) -> dict[str, Any]:
    engine, requested = service.engine, node.requested(service)
    free = {level: node.free(service, node.others(service), level) for level in LEVELS}
    result: dict[str, Any] = {
        "verdict": _verdict(service.findings, service.tight),
        "order": order,
        "gpu_memory_utilization": service.utilization,
        "requested_bytes": requested if service.utilization is not None else None,
        "residency_gib": {level: _gib(node.held(service, level)) for level in LEVELS},
        "headroom_gib": {
            name: _gib(free[level] - (requested or node.held(service, level)))
            for name, level in zip(LEVELS, reversed(LEVELS))
        },
        "solved": service.solved,
    }
    if engine.plan is None or engine.release is None:
        return result
    plan, length = engine.plan, service.length or 0
    # Named by their size: the low figure is what high overheads leave.
    available = {name: engine.available(requested, level) for name, level in zip(LEVELS, reversed(LEVELS))}
    blocks = engine.num_blocks(max(0, available["typical"]))
    result.update(
        {
            "vllm_version": engine.release.text or None,
            "exact": engine.release.exact and not plan.notes,
            "weights_bytes": engine.weights,
            "draft_bytes": engine.draft,
            "load_peak_bytes": engine.load_peak,
            "overhead_gib": {level: _gib(engine.inside[level]) for level in LEVELS},
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
            "available_kv_bytes": available,
            "max_model_len": length,
            "max_num_seqs": engine.default_sequences,
            "max_num_batched_tokens": plan.settings.max_num_batched_tokens,
            "largest_safe_max_model_len": plan.largest_length(available["low"], engine.limit),
        }
    )
    return result


def _memory_map(node: _Node) -> list[dict[str, Any]]:
    """The parts of the node's memory as a stacked bar shows them, at typical overheads.

    The sizes add up to the node's total; when it does not fit, nothing is free and they add up to more.
    """
    parts: list[tuple[str, float, str, str | None]] = [("system", node.host.os_reserve, "system", None)]
    for service in node.services:
        engine, held = service.engine, node.held(service, "typical")
        if engine.plan is None:
            parts.append((service.name, held, "plain", service.name))
            continue
        weights, cache = engine.weights + engine.draft, engine.cache_bytes(node.requested(service), "typical")
        parts += [
            (f"{service.name} weights", weights, "weights", service.name),
            (f"{service.name} KV cache", cache, "kv_cache", service.name),
            (f"{service.name} overhead", max(0.0, held - weights - cache), "overhead", service.name),
        ]
    stack = [{"label": label, "gib": _gib(size), "kind": kind, "service": name} for label, size, kind, name in parts]
    free = round(max(0.0, _gib(node.host.total) - sum(_gib(size) for _label, size, _kind, _name in parts)), 2)
    return [*stack, {"label": "free", "gib": free, "kind": "free", "service": None}]


def _note_version(service: _Service) -> None:
    engine = service.engine
    if engine.release is None or engine.plan is None:
        return
    text = engine.release.text
    if not text:
        service.findings.append(
            Finding(
                rule="memory.version",
                severity="warning",
                service=service.name,
                message=f"The vLLM version of {service.name} is not known; it is planned as vLLM 0.{engine.release.minor}, which needs "
                "most of those that were compared.",
                fix="Give vllm_version.",
            )
        )
    elif not engine.release.exact:
        service.findings.append(
            Finding(
                rule="memory.version",
                severity="info",
                service=service.name,
                message=f"The KV planning of vLLM {text} was not compared itself; it follows the releases in which changes were "
                "first seen. 0.19, 0.23 and 0.33 are exact.",
            )
        )
    for note in engine.plan.notes:
        service.findings.append(
            Finding(rule="memory.approximate", severity="info", service=service.name, message=f"{note}.")
        )


def _refused(item: ServiceInput, error: Exception) -> Finding:
    if isinstance(error, Refusal):
        return Finding(
            rule="memory.refused",
            severity="error",
            service=item.name,
            message=f"The memory of {item.name} cannot be planned: {error.key}: {error.reason}.",
            fix=_sentence(error.fix or "correct the field, or declare the service with memory_gib instead of config"),
        )
    return Finding(
        rule="memory.plan",
        severity="error",
        service=item.name,
        message=f"vLLM cannot give the layers of {item.name} pages of one size.",
        fix="Use vLLM 0.26 or later, or another block-size or kv-cache-dtype.",
        vllm_error=str(error),
    )


def memory_budget(params: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the memory of one node.

    params: the options of the module C(memory_budget), as documented there: C(total_gib), C(os_reserve_gib), C(measured),
    C(overheads), C(safety_margin_gib), C(services).

    Returns a plain dict: C(verdict), C(start_order), C(utilization_sum), C(utilization_bound), C(total_gib), C(services)
    by name, C(findings), C(memory_map); as documented at the module. A service that cannot be planned (an unknown layer kind, for
    example) is an error finding, and only its verdict is in C(services). Raises C(InputError) for malformed input, and nothing else.
    """
    host, inputs = read_params(params)
    services, findings = [], []
    planned: dict[str, Any] = {}
    for item in inputs:
        planned[item.name] = {"verdict": "fails"}
        try:
            engine = resolve(item)
        except (Refusal, PlanFailure) as error:
            findings.append(_refused(item, error))
        else:
            services.append(_Service(engine, engine.utilization, engine.length))
    node = _Node(host, services)
    _solve_utilization(node)
    for service in services:
        _solve_length(node, service)
    # Largest first: the check compares with a share of all memory, so a large engine passes only while little is taken.
    services.sort(key=lambda service: (-(node.requested(service) or node.held(service, "typical")), service.name))
    for order, service in enumerate(services):
        _note_version(service)
        _check_free(node, service, services[:order])
        _check_cache(node, service)
        planned[service.name] = _service_result(node, service, order)
        if service.solved:
            found = planned[service.name]
            values = {"gpu-memory-utilization": service.utilization, "max-model-len": service.length}
            text = ", ".join(f"{key} {values[key]}" for key in service.solved)
            service.findings.append(
                Finding(
                    rule="memory.solved",
                    severity="info",
                    service=service.name,
                    message=f"{text} was worked out for {service.name}; its KV cache then holds {found['max_concurrency']:.2f} requests of "
                    f"{service.length} tokens.",
                )
            )
    findings += [finding for service in services for finding in service.findings]
    of_node = _check_node(node) if services else []
    findings += of_node
    tight = any(service.tight for service in services) or any(
        finding.rule in ("memory.node", "memory.utilization_bound") for finding in of_node
    )
    return {
        "verdict": _verdict(findings, tight),
        "start_order": [service.name for service in services],
        "utilization_sum": node.utilization_sum(),
        "utilization_bound": round(node.utilization_bound(), 3),
        "total_gib": _gib(host.total),
        "services": planned,
        "findings": [finding.to_dict() for finding in findings],
        "memory_map": _memory_map(node),
    }
