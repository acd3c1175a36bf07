# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of one node with its services: free memory for each service, and solving of open settings.

C(Node) adds up requested and held memory; C(solve) chooses open settings. Checks and findings are in C(checks.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .._vllm.overheads import LEVELS
from .engine import Engine
from .kv_plan import KVPlan
from .service_input import DEFAULT_SEQS, Host

# Larger sums of all gpu-memory-utilization values are always refused (published co-residency experience:
# beyond it CUDA contexts and the system have no room left).
UTILIZATION_LIMIT = 0.95
# Services grow toward their target up to this sum; only what vLLM's own checks need goes beyond it. Hosts have frozen near
# their last memory (field reports from GB10: ceilings of 0.76 to 0.87); rule SPK902 warns of more than 0.90.
GROWTH_LIMIT = 0.90
# A service that leaves both its memory and its length to the solver gets at least this context, in tokens.
SOLVER_MIN_LENGTH = 4096
# Solved utilisations are written as people write them: in steps of 1 / STEPS.
STEPS = 100
N = TypeVar("N", int, float)


def first_failing(passes: Callable[[str], bool]) -> str:
    """Return the lowest level of overheads at which a check fails, empty when it always passes."""
    return next((level for level in LEVELS if not passes(level)), "")


@dataclass
class Service:
    """One service with its settings; open ones of C(utilization), C(length) and C(sequences) are solved."""

    engine: Engine
    utilization: float | None
    length: int | None
    sequences: int | None
    solved: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the service."""
        return self.engine.name

    @property
    def slot(self) -> str:
        """The place on the node: the service itself, or its exclusive set."""
        return f"set {self.engine.exclusive}" if self.engine.exclusive else self.name

    @property
    def max_sequences(self) -> int:
        """Requests that vLLM runs at once: max-num-seqs, or its default."""
        return DEFAULT_SEQS if self.sequences is None else self.sequences

    @property
    def plan(self) -> KVPlan:
        """The plan of the KV cache; only engines have one."""
        if self.engine.plan is None:
            raise TypeError(f"{self.name} has no KV cache")
        return self.engine.plan

    @property
    def is_engine(self) -> bool:
        """Whether this is a vLLM engine; other services only state their memory."""
        return self.engine.plan is not None


Slots = Sequence[Sequence[tuple[Service, ...]]]
"""For each service outside of exclusive sets and for each set the combinations of services that may run at once."""


def one_at_a_time(services: Iterable[Service]) -> Slots:
    """Return a slot for each service and each exclusive set; only one service of a slot runs at a time."""
    slots: dict[str, list[tuple[Service, ...]]] = {}
    for service in services:
        slots.setdefault(service.slot, []).append((service,))
    return list(slots.values())


def _largest_sum(slots: Slots, figure: Callable[[Service], N]) -> N:
    """Return the largest sum of a figure over the services of one combination per slot."""
    return sum(max(sum(map(figure, combination)) for combination in slot) for slot in slots)


class Node:
    """The arithmetic of a node with its services; all sizes in bytes."""

    def __init__(self, host: Host, services: list[Service]) -> None:
        self.host = host
        self.services = services

    @property
    def basis(self) -> str:
        """The source of free memory: the inventory or a measurement."""
        return "inventory" if self.host.available is None else "measured"

    def requested(self, service: Service) -> int:
        """Return the bytes that vLLM requests, 0 for a service without a request."""
        return math.ceil(self.host.total * service.utilization) if service.utilization is not None else 0

    def held(self, service: Service, level: str) -> int:
        """Return the bytes that the running service holds, at a level of overheads."""
        return int(service.engine.residency(self.requested(service), level))

    def set_members(self, service: Service) -> list[Service]:
        """Return the other services of its exclusive set; they never run at the same time."""
        return [other for other in self.services if other is not service and other.slot == service.slot]

    def freed_by_set(self, service: Service) -> int:
        """Return the bytes that others of its exclusive set hold now and free before it starts."""
        if not service.engine.exclusive or self.host.available is None:
            return 0
        return sum(self.host.resident.get(mate.name, 0) for mate in self.set_members(service))

    def claim(self, service: Service, level: str) -> int:
        """Return the bytes that a service takes from the measured or reserved free memory."""
        resident, freed = self.host.resident.get(service.name), self.freed_by_set(service)
        if self.host.available is None or resident is None:
            return max(0, self.held(service, level) - freed)
        # It runs already. Only growth that is certain counts; a measured figure beats an estimate.
        return max(0, self.held(service, "low") - resident - freed)

    def gives_back(self, service: Service) -> int:
        """Return the bytes that a running service holds beyond its plan; a restart frees at least these."""
        if self.host.available is None:
            return 0
        return max(0, self.host.resident.get(service.name, 0) - self.held(service, "high"))

    def counted(self) -> list[Service]:
        """Return the services that memory is planned for; only the largest of each exclusive set counts."""
        most: dict[str, Service] = {}
        for service in self.services:
            before = most.get(service.slot)
            if before is None or self.held(service, "typical") > self.held(before, "typical"):
                most[service.slot] = service
        return [service for service in self.services if most[service.slot] is service]

    @property
    def empty(self) -> int:
        """The bytes that are free before further services start."""
        return self.host.total - self.host.os_reserve if self.host.available is None else self.host.available

    def seen(self, service: Service, gone: int, level: str) -> int:
        """Return the bytes that vLLM sees free when C(service) starts after others have taken C(gone) bytes."""
        if self.host.available is None:
            return self.empty - gone
        released = self.host.resident.get(service.name, 0) + self.freed_by_set(service)
        return self.empty + released - int(service.engine.overhead("snapshot_gib", level)) - gone

    def free(self, service: Service, residents: list[Service], level: str) -> int:
        """Return the bytes that vLLM sees free when C(service) starts while C(residents) run."""
        return self.seen(service, _largest_sum(one_at_a_time(residents), lambda other: self.claim(other, level)), level)

    def shortfall_level(self, service: Service, residents: list[Service], size: int) -> str:
        """Return the lowest level of overheads at which C(size) bytes are not free for a service, empty when they are."""
        return first_failing(lambda level: self.free(service, residents, level) >= size)

    def remaining(self, level: str) -> int:
        """Return the free bytes with all services running."""
        return self.empty - _largest_sum(one_at_a_time(self.services), lambda service: self.claim(service, level))

    def neighbours(self, service: Service) -> list[Service]:
        """Return all services that run at the same time: all except itself and its exclusive set."""
        return [other for other in self.services if other.slot != service.slot]

    def utilization_sum(self) -> float:
        """Return the sum of the utilisations, rounded against binary noise."""
        return round(_largest_sum(one_at_a_time(self.services), lambda service: service.utilization or 0.0), 6)

    def utilization_bound(self) -> float:
        """Return the sum that leaves room for the system, for memory outside of requests, and for plain services."""
        return self._bound(_largest_sum(one_at_a_time(self.services), self._outside_request))

    def _outside_request(self, service: Service) -> int:
        if service.utilization is None:
            return self.held(service, "typical")
        return int(service.engine.outside("typical"))

    def _bound(self, beside: int) -> float:
        return min(UTILIZATION_LIMIT, 1 - (self.host.os_reserve + beside) / self.host.total)

    def share(self, size: float) -> float:
        """Return the smallest step of utilisation that asks for C(size) bytes; more than 1 when the node is smaller."""
        step = max(1, int(size / self.host.total * STEPS) - 1)
        while math.ceil(self.host.total * (step / STEPS)) < size:
            step += 1
        return step / STEPS

    def floor(self, service: Service, level: str) -> float:
        """Return the bytes to request so that vLLM's own checks pass."""
        length = service.length or min(service.engine.limit, SOLVER_MIN_LENGTH)
        # A default that does not fit is replaced, see _solve_sequences; a number that somebody chose is kept.
        return self._with_cache(service, level, 1, length, service.sequences or 0)

    def target(self, service: Service) -> float:
        """Return the bytes to request for max-num-seqs requests of max-model-len.

        With the usual overheads; with high ones where the length is open, because it is then worked out with those.
        """
        level = "typical" if service.length else "high"
        return self._with_cache(
            service, level, service.max_sequences, service.length or service.engine.limit, service.max_sequences
        )

    @staticmethod
    def _with_cache(service: Service, level: str, requests: int, length: int, states: int) -> float:
        engine, plan = service.engine, service.plan
        cache = plan.available_for(requests, length)
        if engine.needs_state_blocks:
            cache = max(cache, states * plan.bytes_per_block)
        if engine.blocks is not None:
            cache = max(plan.available_for(1, length), engine.blocks * plan.bytes_per_block)
        if engine.pool is not None:
            cache = engine.pool
        return engine.weights + engine.draft + engine.inside[level] + cache

    def fits(self, level: str, margin: int = 0) -> bool:
        """Tell whether the node holds all services, each at any restart; from typical overheads on, within the bound."""
        return self.fits_at_once(one_at_a_time(self.services), level, margin)

    def fits_at_once(self, slots: Slots, level: str, margin: int = 0) -> bool:
        """Tell whether the node holds every choice of one combination per slot, each service at any restart, with C(margin) bytes free."""
        limit = UTILIZATION_LIMIT
        if level != "low":
            limit = round(self._bound(_largest_sum(slots, self._outside_request)), 6)
        if round(_largest_sum(slots, lambda service: service.utilization or 0.0), 6) > limit:
            return False
        claims = {
            service.name: self.claim(service, level)
            for slot in slots
            for combination in slot
            for service in combination
        }
        sums = [[sum(claims[service.name] for service in combination) for combination in slot] for slot in slots]
        gone = sum(map(max, sums))
        if self.empty - gone < margin:
            return False
        for slot, sizes in zip(slots, sums):
            beside = gone - max(sizes)
            for combination, size in zip(slot, sizes):
                taken = beside + size
                if not all(self._can_start(service, taken - claims[service.name], level) for service in combination):
                    return False
        return True

    def _can_start(self, service: Service, taken: int, level: str) -> bool:
        """Tell whether a service finds its memory after others have taken C(taken) bytes."""
        if service.utilization is None:
            return True
        return self.seen(service, taken, level) >= max(self.requested(service), service.engine.loading(level))

    def largest(self, service: Service, highest: float, level: str, margin: int = 0) -> float | None:
        """Return the largest utilisation of C(service), up to C(highest), with which the node holds all; None if none."""
        before = service.utilization
        low, high = 0, math.floor(highest * STEPS + 1e-6)
        while low < high:  # more for one is never better for the others
            middle = (low + high + 1) // 2
            service.utilization = middle / STEPS
            low, high = (middle, high) if self.fits(level, margin) else (low, middle - 1)
        service.utilization = before
        return low / STEPS if low else None


# Solving --------------------------------------------------------------------------------------------------------------


def _solve_utilization(node: Node) -> None:
    """Choose the open utilisations.

    Each service gets the least that passes vLLM's checks; then all grow toward max-num-seqs x max-model-len as far as the node
    allows. High overheads are assumed if the node has room for them, so that the result does not depend on them.
    """
    growing = [service for service in node.services if service.utilization is None and service.is_engine]
    if not growing:
        return
    level, margin = _set_least_utilization(node, growing)
    for service in growing:
        service.solved.append("gpu-memory-utilization")
    # One step at a time for the service that has grown least by its weight: no service grows while a smaller need is open.
    grown = {service.name: 0 for service in growing}
    growing = [service for service in growing if service.engine.share > 0]
    while growing:
        service = min(
            growing, key=lambda candidate: ((grown[candidate.name] + 1) / candidate.engine.share, candidate.name)
        )
        before = service.utilization or 0.0
        service.utilization = round(before + 1 / STEPS, 2)
        grown[service.name] += 1
        enough = before * node.host.total >= node.target(service)
        if enough or node.utilization_sum() > GROWTH_LIMIT or not node.fits(level, margin):
            service.utilization = before
            growing.remove(service)


def _set_least_utilization(node: Node, services: Sequence[Service]) -> tuple[str, int]:
    """Set the least utilisations that pass vLLM's checks; return the level of overheads and the margin that fit, else the last ones."""
    for level, margin in (("high", node.host.margin), ("typical", node.host.margin), ("typical", 0), ("low", 0)):
        for service in services:
            service.utilization = min(1.0, node.share(node.floor(service, level)))
        if node.fits(level, margin):
            break
    return level, margin


def _solve_length(node: Node, service: Service) -> None:
    """Choose an open max-model-len: the longest that fits even at high overheads, up to the limit of the model."""
    if not service.is_engine or service.length is not None:
        return
    for level in reversed(LEVELS):
        available = service.engine.available(node.requested(service), level)
        service.length = service.plan.largest_length(available, service.engine.limit)
        if service.length:
            service.solved.append("max-model-len")
            break


def count_at_once(node: Node, service: Service, engine: Engine) -> tuple[int, int]:
    """Count the requests of full length that the cache of an engine holds, and its blocks for states (at high overheads if any).

    :param service: its share and C(max-model-len)
    :param engine: its sizes, perhaps with another C(max-num-seqs)
    :returns: requests, at most vLLM's default; blocks
    """
    requested = node.requested(service)
    blocks = {level: engine.num_blocks(max(0, engine.available(requested, level))) for level in LEVELS}
    states = blocks["high"] or blocks["typical"] or blocks["low"]
    if engine.plan is None or not service.length:
        return 0, states
    requests = min(DEFAULT_SEQS, int(engine.plan.max_concurrency(blocks["typical"], service.length)))
    return (min(requests, states) if engine.needs_state_blocks else requests), states


def _solve_sequences(node: Node, service: Service) -> None:
    """Choose max-num-seqs: for C(auto) as many as the cache holds at full length; else only if vLLM would refuse its default."""
    engine = service.engine
    if not service.is_engine or service.sequences is not None or not service.length:
        return
    requests, states = count_at_once(node, service, engine)
    if engine.sequences_auto:
        service.sequences = max(1, requests)
    elif engine.needs_state_blocks and 0 < states < DEFAULT_SEQS:
        service.sequences = states
    if service.sequences is not None:
        service.solved.append("max-num-seqs")


def solve(node: Node) -> None:
    """Choose all open settings."""
    for service in node.services:
        if service.engine.stated is not None and service.utilization is None:
            service.utilization = min(1.0, node.share(service.engine.stated))
            service.solved.append("gpu-memory-utilization")
    _solve_utilization(node)
    for service in node.services:
        _solve_length(node, service)
        _solve_sequences(node, service)
