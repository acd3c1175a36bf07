# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that start with their first request: what C(on_demand) says.

Which of them fit beside each other is in C(judging.py); what decides on the host which engine starts and which one goes, in
C(_runtime/on_demand.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations as subsets
from typing import TYPE_CHECKING, Any, Union

from .._common import on_demand_keys
from .._common.findings import Finding
from .._common.validation import Problems
from .planned import OnDemand

if TYPE_CHECKING:
    from .service import PlacedService


STATE = "on_demand"
"""State of a planned service that is started by requests; nothing else starts it."""
UNIT = "spark-on-demand.service"
"""Unit of the program that holds the ports of these services and starts their engines."""
PROXY_GIB = 0.25
"""Memory limit of that unit; the program bounds what it holds of requests."""
PROXY = {"name": "on-demand", "memory_gib": PROXY_GIB, "unit": UNIT, "idle": False}
"""That program among what takes memory beside the engines."""
MOST_OF_A_SET = 8
"""Services of one set. Each of the 2^n combinations is planned."""
MOST_TOLD = 4
"""Combinations that a message lists."""


def read(problems: Problems, own: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a service says of its start on demand.

    :param problems: what is wrong goes there
    :param own: the service as it is written
    :returns: C({on_demand, state, exclusive}) as far as they follow from it, empty for a service that is always there
    """
    if own.get("on_demand") is None:
        return {}
    values = on_demand_keys.read(problems, own)
    if own.get("exclusive"):
        problems.add(
            "'exclusive' and 'on_demand' exclude each other. The set of a service on demand is on_demand.exclusive."
        )
    name = values["exclusive"]
    found: dict[str, Any] = {"on_demand": values, "exclusive": name}
    # What its owner has stopped has no socket either.
    return found if own.get("state") == "stopped" else {**found, "state": STATE}


@dataclass(frozen=True)
class Server:
    """A speech server beside the services of a host, as far as what is asked here is concerned; it is nobody's rank."""

    name: str
    port: int
    on_demand: Mapping[str, Any] | None
    exclusive: str = ""
    rank: int = 0
    cluster: None = None


Member = Union["PlacedService", Server]


def servers(beside: Sequence[Mapping[str, Any]]) -> list[Server]:
    """Return the speech servers of what takes memory beside the services. beside: of C(addons.sidecars)."""
    return [
        Server(each["name"], each["port"], each["on_demand"], each["exclusive"])
        for each in beside
        if "on_demand" in each
    ]


def with_proxy(beside: Sequence[Mapping[str, Any]], services: Sequence[PlacedService]) -> list[Mapping[str, Any]]:
    """Return what takes memory beside the engines, the program on demand included where the host has it.

    :param beside: of C(addons.sidecars), or what this function returned before
    :param services: of the host
    """
    others = [each for each in beside if each["name"] != PROXY["name"]]
    engines = [each for each in services if each.state == STATE and not each.rank]
    is_needed = engines or any(each.get("on_demand") for each in others)
    return [*others, PROXY] if is_needed else others


def check(where: str, services: Sequence[Member]) -> list[str]:
    """Say what is wrong with the services on demand of a host, taken together.

    :param where: the host, as messages name it
    :param services: of the host, and its speech servers
    :returns: messages
    """
    messages: list[str] = []
    # Ranks behind the first one of a cluster's service listen at none of these.
    ports: dict[int, str] = {each.port: f"the port of {each.name}" for each in services if not each.rank}
    for service in services:
        if not service.on_demand or service.rank:
            continue
        port = int(service.on_demand["engine_port"])
        if port in ports:
            messages.append(
                f"{where}: {service.name}: its engine would listen on port {port}, which is {ports[port]}. Set "
                "on_demand.engine_port to a free one."
            )
        ports[port] = f"that of the engine of {service.name}"
    for name, members in sets_of(services).items():
        plain = [each.name for each in services if each.exclusive == name and not each.on_demand]
        if plain:
            messages.append(
                f"{where}: the set {name} has services on demand ({', '.join(each.name for each in members)}) and others "
                f"({', '.join(plain)}). Give these on_demand too, or a set of their own."
            )
        if len({(each.on_demand or {}).get("keep") for each in members}) > 1:
            messages.append(
                f"{where}: services of the set {name} differ in on_demand.keep. Say the same in all of them."
            )
        if len(members) > MOST_OF_A_SET:
            messages.append(
                f"{where}: the set {name} has {len(members)} services, {MOST_OF_A_SET} are the most that are planned. Make two sets."
            )
    return messages


def check_ranks(host: str, services: Sequence[Member]) -> list[str]:
    """Say what is wrong with the services on demand of a host of a cluster, the cluster's among them.

    :param host: its name
    :param services: all that it runs, ranks and speech servers too
    :returns: messages; none for a host without a rank on demand
    """
    if not any(each.cluster and each.on_demand for each in services):
        return []
    messages = check(f"host {host}", services)
    for name, members in sets_of(services).items():
        decides: dict[str, list[str]] = {}
        for each in members:
            decides.setdefault(each.cluster.head if each.cluster else host, []).append(each.name)
        if len(decides) > 1:
            told = " and ".join(f"{', '.join(names)} (by {head})" for head, names in sorted(decides.items()))
            messages.append(
                f"host {host}: the set {name} has services that different hosts start: {told}. A service of a cluster is started by its "
                "first host, and only one host can decide which services of a set run. Give those of one host a set of their own; the plan "
                "checks that they fit beside each other."
            )
    return messages


@dataclass(frozen=True)
class Cut:
    """Services of a set that would fit beside each other, were it not for what other sets may run at the same time."""

    name: str
    services: tuple[str, ...]
    beside: tuple[str, ...]


def fitting(
    sets: Mapping[str, Sequence[Member]], fit: Callable[[Mapping[str, Sequence[frozenset[str]]]], bool]
) -> tuple[dict[str, list[list[str]]], list[Cut]]:
    """Work out which services of each set may run at once, whatever those of the other sets do.

    Sets know nothing of each other on the host, so any combination of one has to fit beside any of another. Where they do not, larger
    combinations are given out in turn: all pairs before any three, and of one size first to the set with the highest priority, then by name.

    :param sets: the services of each set, those left out that do not fit even alone
    :param fit: whether combinations, by set, fit in any mixture; more that runs never fits better
    :returns: the largest combinations of each set, in order, and what was left out
    """
    everyone = {name: sorted(each.name for each in members) for name, members in sets.items()}
    most = {
        name: min(int((members[0].on_demand or {}).get("keep") or len(members)), len(members)) if members else 0
        for name, members in sets.items()
    }
    order = sorted(sets, key=lambda name: (-max((_priority(each) for each in sets[name]), default=0), name))
    start = {name: [frozenset((each,)) for each in names] for name, names in everyone.items()}
    singles = {name: [one for one in start[name] if fit({**start, name: [one]})] for name in order}
    found, cuts = dict(singles), []
    taken = {name: set(ones) for name, ones in singles.items()}
    possible = {name: set(ones) for name, ones in singles.items()}
    for size in range(2, max(most.values(), default=0) + 1):
        for name in order:
            for chosen in subsets(everyone[name], size) if size <= most[name] else ():
                one = frozenset(chosen)
                if not all(one - {each} in possible[name] for each in one) or not fit({**singles, name: [one]}):
                    continue
                possible[name].add(one)
                if all(one - {each} in taken[name] for each in one):
                    if len(sets) == 1 or fit({**found, name: [one]}):
                        taken[name].add(one)
                        found[name] = [*(each for each in found[name] if not each < one), one]
                        continue
                    beside = [
                        other
                        for other in order
                        if other != name and not fit({**singles, other: found[other], name: [one]})
                    ]
                    cuts.append(Cut(name, chosen, tuple(beside or (other for other in order if other != name))))
    return {name: sorted(sorted(one) for one in found[name]) for name in sets}, cuts


def _priority(service: Member) -> int:
    return int((service.on_demand or {}).get("priority") or 0)


def check_cuts(host: str, fits: Mapping[str, Sequence[Sequence[str]]], cuts: Sequence[Cut]) -> list[Finding]:
    """Say which services of a set do not run beside each other because of another set.

    :param host: its name
    :param fits: the largest combinations of each set
    :param cuts: of C(fitting)
    :returns: a finding for each set that was cut
    """
    findings = []
    for name in dict.fromkeys(cut.name for cut in cuts):
        own = [cut for cut in cuts if cut.name == name]
        others = sorted({other for cut in own for other in cut.beside})
        beside = " and ".join(f"{_listed(fits[other])} of the set {other}" for other in others)
        message = (
            f"{host}: of the set {name}, {_listed([cut.services for cut in own])} would fit beside each other, but not beside {beside}, "
            f"which may run at the same time. So at most {_listed(fits[name])} run."
        )
        fix = (
            f"Put the services of {' and '.join((name, *others))} into one set, of which any that fit run at once; or lower their "
            "gpu-memory-utilization."
        )
        findings.append(Finding("on_demand.sets", "warning", message, fix=fix))
    return findings


def _listed(combinations: Sequence[Sequence[str]]) -> str:
    """Some combinations for people, the first ones of many."""
    told = [" + ".join(one) for one in combinations[:MOST_TOLD]]
    return " or ".join([*told, *([f"{len(combinations) - MOST_TOLD} more"] if len(combinations) > MOST_TOLD else [])])


def fitting_everywhere(parts: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]) -> list[list[str]]:
    """Return what may run together of a set of which hosts have different services.

    :param parts: of each host the names of its services of the set, and the largest combinations of them that fit there
    :returns: the largest combinations of which every host holds its part
    """
    everyone = frozenset(name for names, _fitting in parts for name in names)
    found = {everyone}
    for names, fitting in parts:
        elsewhere = everyone - frozenset(names)
        found = {one & (elsewhere | frozenset(other)) for one in found for other in (fitting or [()])}
        found = {one for one in found if not any(one < other for other in found)}
    return sorted(sorted(one) for one in found if one)


def sets_of(services: Sequence[Member]) -> dict[str, list[Member]]:
    """Return the services on demand of each set by its name."""
    found: dict[str, list[Member]] = {}
    for service in services:
        if service.on_demand and service.exclusive:
            found.setdefault(service.exclusive, []).append(service)
    return found


def held(said: OnDemand | None) -> int:
    """How long a request waits at most for a service to load, seconds; 0 for one that is always there, or tells it to come again."""
    return 0 if said is None or said.while_loading == "reject" else said.hold_seconds


def planned(service: PlacedService, address: str) -> OnDemand | None:
    """Return what the host goes by to start and stop an engine, None for one that is always there. address: of the engine."""
    said = service.on_demand
    if not said:
        return None
    return OnDemand(
        engine=f"http://{address}:{said['engine_port']}",
        set=service.exclusive or None,
        keep=said["keep"],
        combinations=(),
        **on_demand_keys.seconds(said),
    )
