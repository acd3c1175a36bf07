# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that start with their first request, by C(on_demand).

C(judging.py) asks the memory budget which of them fit together; C(_runtime/on_demand.py) decides on the host which engine starts or stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations as subsets
from typing import TYPE_CHECKING, Any, Union

from .._common import on_demand_keys
from .._common.findings import Finding
from .._common.validation import Problems
from .planned import OnDemand

if TYPE_CHECKING:
    from .service import ServiceSpec


STATE = "on_demand"
"""State of a planned service that only requests start."""
UNIT = "spark-on-demand.service"
"""Unit of the program that holds the ports of these services and starts their engines."""
PROXY_GIB = 0.25
"""Memory limit of that unit."""
PROXY = {"name": "on-demand", "memory_gib": PROXY_GIB, "unit": UNIT, "idle": False}
"""That program, as an entry of C(addons.sidecars)."""
MOST_OF_A_SET = 8
"""Services of one set. Each of the 2^n combinations is planned."""
MOST_LISTED = 4
"""Combinations that a message lists."""


def read(problems: Problems, service: Mapping[str, Any]) -> dict[str, Any]:
    """Return C({on_demand, state, exclusive}) of a service, as far as its start on demand decides them; empty for a permanent service."""
    if service.get("on_demand") is None:
        return {}
    values = on_demand_keys.read(problems, service)
    if service.get("exclusive"):
        problems.add(
            "'exclusive' and 'on_demand' exclude each other. The set of a service on demand is on_demand.exclusive."
        )
    settings: dict[str, Any] = {"on_demand": values, "exclusive": values["exclusive"]}
    # A stopped service has no socket either.
    return settings if service.get("state") == "stopped" else {**settings, "state": STATE}


@dataclass(frozen=True)
class Server:
    """A speech server of a host, with the fields of a service that this file reads."""

    name: str
    port: int
    on_demand: Mapping[str, Any] | None
    exclusive: str = ""
    rank: int = 0
    cluster: None = None


Member = Union["ServiceSpec", Server]
Combination = frozenset[str]
"""Names of services that run at the same time."""


def servers(sidecars: Sequence[Mapping[str, Any]]) -> list[Server]:
    """Return the speech servers on demand among C(addons.sidecars)."""
    return [
        Server(sidecar["name"], sidecar["port"], sidecar["on_demand"], sidecar["exclusive"])
        for sidecar in sidecars
        if "on_demand" in sidecar
    ]


def with_proxy(sidecars: Sequence[Mapping[str, Any]], services: Sequence[ServiceSpec]) -> list[Mapping[str, Any]]:
    """Return the programs that need memory besides the engines, with the proxy on demand if the host needs it.

    :param sidecars: of C(addons.sidecars), or the result of this function
    """
    programs = [sidecar for sidecar in sidecars if sidecar["name"] != PROXY["name"]]
    engines = [service for service in services if service.state == STATE and not service.rank]
    is_needed = engines or any(sidecar.get("on_demand") for sidecar in programs)
    return [*programs, PROXY] if is_needed else programs


def find_conflicts(where: str, services: Sequence[Member]) -> list[str]:
    """Return the conflicts between the services on demand of a host."""
    messages = [f"{where}: {conflict}" for conflict in _port_conflicts(services)]
    for name, members in sets_of(services).items():
        permanent = [service.name for service in services if service.exclusive == name and not service.on_demand]
        if permanent:
            messages.append(
                f"{where}: the set {name} has services on demand ({', '.join(member.name for member in members)}) and others "
                f"({', '.join(permanent)}). Set on_demand for these too, or put them into another set."
            )
        if len({(member.on_demand or {}).get("keep") for member in members}) > 1:
            messages.append(
                f"{where}: services of the set {name} differ in on_demand.keep. Say the same in all of them."
            )
        if len(members) > MOST_OF_A_SET:
            messages.append(
                f"{where}: the set {name} has {len(members)} services, {MOST_OF_A_SET} are the most that are planned. Make two sets."
            )
    return messages


def _port_conflicts(services: Sequence[Member]) -> Iterator[str]:
    """Yield the conflicts between ports of services and of engines on demand."""
    # Only the first rank of a cluster's service listens at its ports.
    listening = [service for service in services if not service.rank]
    ports: dict[int, str] = {service.port: f"the port of {service.name}" for service in listening}
    for service in listening:
        port = int(service.on_demand["engine_port"]) if service.on_demand else 0
        if port in ports:
            yield (
                f"{service.name}: its engine would listen on port {port}, which is {ports[port]}. Set "
                "on_demand.engine_port to a free one."
            )
        if port:
            ports[port] = f"that of the engine of {service.name}"


def find_conflicts_of_ranks(host: str, services: Sequence[Member]) -> list[str]:
    """Return the conflicts between the services on demand of a host of a cluster, as messages; none for a host without a rank on demand."""
    if not any(service.cluster and service.on_demand for service in services):
        return []
    messages = find_conflicts(f"host {host}", services)
    for name, members in sets_of(services).items():
        names_by_head: dict[str, list[str]] = {}
        for member in members:
            names_by_head.setdefault(member.cluster.head if member.cluster else host, []).append(member.name)
        if len(names_by_head) > 1:
            groups = " and ".join(f"{', '.join(names)} (by {head})" for head, names in sorted(names_by_head.items()))
            messages.append(
                f"host {host}: the set {name} has services that different hosts start: {groups}. The first host of a cluster starts its services, "
                "and only one host can decide which services of a set run. Put the services of each host into a separate set; the plan checks that "
                "the sets fit together."
            )
    return messages


# --- combinations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """Services of a set that would fit together without the services of other sets."""

    name: str
    services: tuple[str, ...]
    other_sets: tuple[str, ...]


Fits = Callable[[Mapping[str, Sequence[Combination]]], bool]
"""Whether any mixture of the combinations of each set fits; more services never fit better."""


def combinations_that_fit(
    sets: Mapping[str, Sequence[Member]], fits: Fits
) -> tuple[dict[str, list[list[str]]], list[Cut]]:
    """Return which services of each set may run at once, with any services of the other sets.

    Sets do not know each other on the host, so every combination of one must fit with every combination of another. Otherwise larger
    combinations are granted in turn: all pairs before any three, and of one size first to the set with the highest priority, then by name.

    :returns: the largest combinations of each set, in order, and the combinations that another set prevents
    """
    choice = _Choice(sets, fits)
    most = {name: _most_at_once(members) for name, members in sets.items()}
    for size in range(2, max(most.values(), default=0) + 1):
        for name in choice.order:
            names = sorted(member.name for member in sets[name])
            for services in subsets(names, size) if size <= most[name] else ():
                choice.grant(name, services)
    return {name: sorted(map(sorted, choice.granted[name])) for name in sets}, choice.cuts


class _Choice:
    """The combinations of each set that have been granted so far, and the cuts.

    singles: one service each. possible: fit with single services of the other sets. granted: the largest that fit with all granted
    combinations of the other sets; accepted: those and their parts. order: of the sets, by priority and name.
    """

    def __init__(self, sets: Mapping[str, Sequence[Member]], fits: Fits) -> None:
        self.fits = fits
        self.order = sorted(sets, key=lambda name: (-max(map(_priority, sets[name]), default=0), name))
        names_of = {name: sorted(member.name for member in members) for name, members in sets.items()}
        every = {name: [frozenset((member,)) for member in members] for name, members in names_of.items()}
        self.singles = {
            name: [single for single in every[name] if fits({**every, name: [single]})] for name in self.order
        }
        self.possible = {name: set(singles) for name, singles in self.singles.items()}
        self.accepted = {name: set(singles) for name, singles in self.singles.items()}
        self.granted = dict(self.singles)
        self.cuts: list[Cut] = []

    def grant(self, name: str, services: tuple[str, ...]) -> None:
        """Grant a combination of a set if it fits; record a cut if only other sets prevent it."""
        combination = frozenset(services)
        parts = {combination - {service} for service in services}
        if not parts <= self.possible[name] or not self.fits({**self.singles, name: [combination]}):
            return
        self.possible[name].add(combination)
        if not parts <= self.accepted[name]:
            return
        other_sets = [other for other in self.order if other != name]
        if not other_sets or self.fits({**self.granted, name: [combination]}):
            self.accepted[name].add(combination)
            smaller = [earlier for earlier in self.granted[name] if not earlier < combination]
            self.granted[name] = [*smaller, combination]
            return
        tries = {other: {**self.singles, other: self.granted[other], name: [combination]} for other in other_sets}
        preventing = [other for other in other_sets if not self.fits(tries[other])]
        self.cuts.append(Cut(name, services, tuple(preventing or other_sets)))


def _most_at_once(members: Sequence[Member]) -> int:
    """Return how many services of a set may run at once."""
    keep = (members[0].on_demand or {}).get("keep") if members else None
    return min(len(members), int(keep)) if keep else len(members)


def _priority(service: Member) -> int:
    """Return the priority of a service on demand, 0 without one."""
    return int((service.on_demand or {}).get("priority") or 0)


def cut_findings(host: str, fitting: Mapping[str, Sequence[Sequence[str]]], cuts: Sequence[Cut]) -> list[Finding]:
    """Return a finding for each set of which fewer services run at once because of other sets."""
    findings = []
    for name in dict.fromkeys(cut.name for cut in cuts):
        cuts_of_set = [cut for cut in cuts if cut.name == name]
        other_sets = sorted({other for cut in cuts_of_set for other in cut.other_sets})
        beside = " and ".join(f"{_listed(fitting[other])} of the set {other}" for other in other_sets)
        message = (
            f"{host}: of the set {name}, {_listed([cut.services for cut in cuts_of_set])} would fit together, but not together with {beside}, which "
            f"may run at the same time. So at most {_listed(fitting[name])} run."
        )
        fix = (
            f"Put the services of {' and '.join((name, *other_sets))} into one set, of which any that fit run at once; or lower their "
            "gpu-memory-utilization."
        )
        findings.append(Finding("on_demand.sets", "warning", message, fix=fix))
    return findings


def _listed(combinations: Sequence[Sequence[str]]) -> str:
    """Return the first combinations for a message."""
    texts = [" + ".join(names) for names in combinations[:MOST_LISTED]]
    more = len(combinations) - MOST_LISTED
    return " or ".join([*texts, *([f"{more} more"] if more > 0 else [])])


def combinations_on_all_hosts(parts: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]) -> list[list[str]]:
    """Return the largest combinations of a set that fit on every host of a cluster.

    :param parts: by host, the names of its services of the set, and the largest combinations of them that fit there
    """
    names_of_all = frozenset(name for names, _combinations in parts for name in names)
    largest = {names_of_all}
    for names, combinations in parts:
        elsewhere = names_of_all - frozenset(names)
        cut = {large & (elsewhere | frozenset(small)) for large in largest for small in (combinations or [()])}
        largest = {large for large in cut if not any(large < other for other in cut)}
    return sorted(sorted(names) for names in largest if names)


def sets_of(services: Sequence[Member]) -> dict[str, list[Member]]:
    """Return the services on demand of each set by its name."""
    sets: dict[str, list[Member]] = {}
    for service in services:
        if service.on_demand and service.exclusive:
            sets.setdefault(service.exclusive, []).append(service)
    return sets


def planned(service: ServiceSpec, address: str) -> OnDemand | None:
    """Return the settings of the proxy for an engine, None for a permanent one. address: of the engine."""
    values = service.on_demand
    if not values:
        return None
    return OnDemand(
        engine=f"http://{address}:{values['engine_port']}",
        set=service.exclusive or None,
        keep=values["keep"],
        combinations=(),
        **on_demand_keys.seconds(values),
    )
