# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arithmetic of one node with its services: what is free for whom, and what to give to whom.

C(Node) adds up what services ask for and hold; C(solve) chooses what was left open. Nothing here says a word: the checks and
their findings are in C(budget). No I/O, no Ansible.
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

# The sum of all gpu-memory-utilization values that is refused whatever else is known (published co-residency experience:
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
    """One service on its way through the plan; C(utilization), C(length) and C(sequences) are given or found."""

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
        """What it takes on the node: a place of its own, or the one that its exclusive set shares."""
        return f"set {self.engine.exclusive}" if self.engine.exclusive else self.name

    @property
    def max_sequences(self) -> int:
        """Requests that vLLM lets run at once: max-num-seqs, or its default."""
        return DEFAULT_SEQS if self.sequences is None else self.sequences

    @property
    def plan(self) -> KVPlan:
        """How the cache is cut; only engines have one."""
        if self.engine.plan is None:
            raise TypeError(f"{self.name} has no KV cache")
        return self.engine.plan

    @property
    def is_engine(self) -> bool:
        """Whether this is a vLLM engine; else it only states what it needs."""
        return self.engine.plan is not None


class Node:
    """The arithmetic of a node with its services; all sizes in bytes."""

    def __init__(self, host: Host, services: list[Service]) -> None:
        self.host = host
        self.services = services

    @property
    def basis(self) -> str:
        """What statements about free memory rest on."""
        return "inventory" if self.host.available is None else "measured"

    def requested(self, service: Service) -> int:
        """What vLLM asks for, 0 for a service that asks for nothing."""
        return math.ceil(self.host.total * service.utilization) if service.utilization is not None else 0

    def held(self, service: Service, level: str) -> int:
        """What a service holds once it runs."""
        return int(service.engine.residency(self.requested(service), level))

    def set_members(self, service: Service) -> list[Service]:
        """The others of its exclusive set: they never run while it does."""
        return [other for other in self.services if other is not service and other.slot == service.slot]

    def freed_by_set(self, service: Service) -> int:
        """What others of its exclusive set hold now, and give back before it starts."""
        if not service.engine.exclusive or self.host.available is None:
            return 0
        return sum(self.host.resident.get(mate.name, 0) for mate in self.set_members(service))

    def claim(self, service: Service, level: str) -> int:
        """What a service takes of the memory that was measured or reserved as free."""
        resident, freed = self.host.resident.get(service.name), self.freed_by_set(service)
        if self.host.available is None or resident is None:
            return max(0, self.held(service, level) - freed)
        # It runs already. Only growth that is certain counts; a measured figure beats an estimate.
        return max(0, self.held(service, "low") - resident - freed)

    def gives_back(self, service: Service) -> int:
        """What a service that runs holds beyond what it is planned to hold, so what its restart gives back at least."""
        if self.host.available is None:
            return 0
        return max(0, self.host.resident.get(service.name, 0) - self.held(service, "high"))

    @staticmethod
    def together(services: Sequence[Service], figures: Iterable[N]) -> dict[str, N]:
        """Join the figures of services that never run at once: the largest of each exclusive set, by set or service."""
        figure_by_slot: dict[str, N] = {}
        for service, figure in zip(services, figures):
            figure_by_slot[service.slot] = max(figure_by_slot.get(service.slot, figure), figure)
        return figure_by_slot

    def counted(self) -> list[Service]:
        """The services that memory is planned for: of each exclusive set the largest."""
        most: dict[str, Service] = {}
        for service in self.services:
            before = most.get(service.slot)
            if before is None or self.held(service, "typical") > self.held(before, "typical"):
                most[service.slot] = service
        return [service for service in self.services if most[service.slot] is service]

    @property
    def empty(self) -> int:
        """What is there for services that do not run yet."""
        return self.host.total - self.host.os_reserve if self.host.available is None else self.host.available

    def seen(self, service: Service, gone: int, level: str) -> int:
        """What vLLM would see free when C(service) starts after others have taken C(gone) bytes."""
        if self.host.available is None:
            return self.empty - gone
        released = self.host.resident.get(service.name, 0) + self.freed_by_set(service)
        return self.empty + released - int(service.engine.overhead("snapshot_gib", level)) - gone

    def free(self, service: Service, residents: list[Service], level: str) -> int:
        """What vLLM would see free when C(service) starts while C(others) are resident."""
        return self.seen(
            service, sum(self.together(residents, (self.claim(o, level) for o in residents)).values()), level
        )

    def shortfall_level(self, service: Service, residents: list[Service], size: int) -> str:
        """Return the lowest level of overheads at which C(size) bytes are not free for a service, empty when they are."""
        return first_failing(lambda level: self.free(service, residents, level) >= size)

    def remaining(self, level: str) -> int:
        """What is free when all services run."""
        sizes = (self.claim(service, level) for service in self.services)
        return self.empty - sum(self.together(self.services, sizes).values())

    def neighbours(self, service: Service) -> list[Service]:
        """All services that run beside this one: all but itself and those of its exclusive set."""
        return [other for other in self.services if other.slot != service.slot]

    def utilization_sum(self) -> float:
        """Sum of the utilisations, rounded against binary noise."""
        utilizations = (service.utilization or 0.0 for service in self.services)
        return round(sum(self.together(self.services, utilizations).values()), 6)

    def utilization_bound(self) -> float:
        """The sum that leaves room for the system, for what engines hold beside their request, and for plain services."""
        beside = sum(self.together(self.services, map(self._beside_request, self.services)).values())
        return self._bound(beside)

    def _beside_request(self, service: Service) -> int:
        if service.utilization is None:
            return self.held(service, "typical")
        return int(service.engine.outside("typical"))

    def _bound(self, beside: int) -> float:
        return min(UTILIZATION_LIMIT, 1 - (self.host.os_reserve + beside) / self.host.total)

    def share(self, size: float) -> float:
        """The smallest step of utilisation that asks for C(size) bytes; more than 1 when the node is smaller."""
        step = max(1, int(size / self.host.total * STEPS) - 1)
        while math.ceil(self.host.total * (step / STEPS)) < size:
            step += 1
        return step / STEPS

    def floor(self, service: Service, level: str) -> float:
        """Bytes to request so that vLLM's own checks pass."""
        length = service.length or min(service.engine.limit, SOLVER_MIN_LENGTH)
        # A default that does not fit is replaced, see _solve_sequences; a number that somebody chose is kept.
        return self._with_cache(service, level, 1, length, service.sequences or 0)

    def target(self, service: Service) -> float:
        """Bytes to request for max-num-seqs requests of max-model-len.

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
        return self.fits_at_once(self.one_at_a_time(), level, margin)

    def one_at_a_time(self) -> list[list[tuple[Service, ...]]]:
        """Who runs beside each other where of each exclusive set one does."""
        slots: dict[str, list[tuple[Service, ...]]] = {}
        for service in self.services:
            slots.setdefault(service.slot, []).append((service,))
        return list(slots.values())

    def fits_at_once(self, slots: Sequence[Sequence[tuple[Service, ...]]], level: str, margin: int = 0) -> bool:
        """Tell whether the node holds each mixture of combinations, every service in it at any restart.

        :param slots: of each service that is always there, or set of services, the combinations that may run at once
        :param level: of the overheads
        :param margin: bytes that stay free
        :returns: whether one combination of each, whichever it is, fits
        """
        utilization = sum(
            max(sum(service.utilization or 0.0 for service in combination) for combination in slot) for slot in slots
        )
        limit = UTILIZATION_LIMIT
        if level != "low":
            limit = round(
                self._bound(
                    sum(max(sum(map(self._beside_request, combination)) for combination in slot) for slot in slots)
                ),
                6,
            )
        if round(utilization, 6) > limit:
            return False
        sizes = {
            service.name: self.claim(service, level)
            for slot in slots
            for combination in slot
            for service in combination
        }
        sums = [[sum(sizes[service.name] for service in combination) for combination in slot] for slot in slots]
        gone = sum(map(max, sums))
        if self.empty - gone < margin:
            return False
        for slot, held in zip(slots, sums):
            beside = gone - max(held)
            for combination, size_of_combination in zip(slot, held):
                for service in combination:
                    if service.utilization is None:
                        continue
                    needed = max(self.requested(service), service.engine.loading(level))
                    if self.seen(service, beside + size_of_combination - sizes[service.name], level) < needed:
                        return False
        return True

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
    """Choose the utilisations that were not given.

    Each gets the least that passes vLLM's checks; then all grow toward max-num-seqs x max-model-len as far as the node
    allows. High overheads are assumed where the node has room for that, so that the answer does not hang on them.
    """
    growing = [service for service in node.services if service.utilization is None and service.is_engine]
    if not growing:
        return
    margin = node.host.margin
    level = "low"
    for level, spare in (("high", margin), ("typical", margin), ("typical", 0), ("low", 0)):
        for service in growing:
            service.utilization = min(1.0, node.share(node.floor(service, level)))
        if node.fits(level, spare):
            margin = spare
            break
    else:
        margin = 0
    for service in growing:
        service.solved.append("gpu-memory-utilization")
    # One step at a time for whoever has grown least by its weight: nobody grows while another, smaller wish is open.
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


def _solve_length(node: Node, service: Service) -> None:
    """Choose max-model-len where it is open: the longest that fits even at high overheads, up to what the model allows."""
    if not service.is_engine or service.length is not None:
        return
    for level in reversed(LEVELS):
        available = service.engine.available(node.requested(service), level)
        service.length = service.plan.largest_length(available, service.engine.limit)
        if service.length:
            service.solved.append("max-model-len")
            break


def at_once(node: Node, service: Service, engine: Engine) -> tuple[int, int]:
    """Count the requests of full length that the cache of an engine holds, and its blocks for states (at high overheads if any).

    :param node: where it runs
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
    """Choose max-num-seqs: for C(auto) what the cache holds at full length; else only where vLLM would refuse its default."""
    engine = service.engine
    if not service.is_engine or service.sequences is not None or not service.length:
        return
    requests, states = at_once(node, service, engine)
    if engine.sequences_auto:
        service.sequences = max(1, requests)
    elif engine.needs_state_blocks and 0 < states < DEFAULT_SEQS:
        service.sequences = states
    if service.sequences is not None:
        service.solved.append("max-num-seqs")


def solve(node: Node) -> None:
    """Choose everything that was left open."""
    for service in node.services:
        if service.engine.stated is not None and service.utilization is None:
            service.utilization = min(1.0, node.share(service.engine.stated))
            service.solved.append("gpu-memory-utilization")
    _solve_utilization(node)
    for service in node.services:
        _solve_length(node, service)
        _solve_sequences(node, service)
