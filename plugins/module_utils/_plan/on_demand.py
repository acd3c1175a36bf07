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
from typing import TYPE_CHECKING, Any

from .._common import schema
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._common.validation import SERVICE_NAME, Problems
from .planned import OnDemand

if TYPE_CHECKING:
    from .service import PlacedService


STATE = "on_demand"
"""State of a planned service that is started by requests; nothing else starts it."""
UNIT = "spark-on-demand.service"
"""Unit of the program that holds the ports of these services and starts their engines."""
PORT_STEP = 10_000
"""How far the engine's own port is from that of its clients, which is taken by the socket."""
MOST_OF_A_SET = 8
"""Services of one set. Each of the 2^n combinations is planned."""
MOST_TOLD = 4
"""Combinations that a message lists."""

KEYS: dict[str, Key] = {
    "idle_minutes": Key(
        NUMBER, 20, "minutes without a request after which the engine is stopped", least=0.1, most=10080, unit="minutes"
    ),
    "exclusive": Key(
        str, "", "name of a set of services on demand that share memory: as many of them run as fit beside each other"
    ),
    "keep": Key(int, None, "most engines of the set that run at once; as many as fit when left out", least=1, most=8),
    "minimum_minutes": Key(
        NUMBER,
        2,
        "minutes that an engine runs at least before another one of its set takes its place",
        least=0,
        most=1440,
        unit="minutes",
    ),
    "priority": Key(int, 0, "of two engines that could go, the one with the lower number goes", least=-100, most=100),
    "engine_port": Key(
        int,
        None,
        "port of the engine itself, on the loopback address; `port` plus 10000, or minus 10000 where that is too high, when left out",
        least=1,
        most=65535,
    ),
    "while_loading": Key(
        str,
        "wait",
        "what a request gets while its engine loads: `wait` holds it, `comments` holds it and sends SSE comments to those that stream, "
        "`reject` answers 503 with Retry-After",
        choices=("wait", "comments", "reject"),
    ),
    "hold_minutes": Key(
        NUMBER,
        15,
        "longest time that a request is held; then it gets 503 with Retry-After",
        least=0.1,
        most=1440,
        unit="minutes",
    ),
    "retry_minutes": Key(
        NUMBER,
        5,
        "minutes after a start that failed in which requests get its reason at once",
        least=0.1,
        most=1440,
        unit="minutes",
    ),
}
"""Keys of C(on_demand) of a service."""


def read(problems: Problems, own: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a service says of its start on demand.

    :param problems: what is wrong goes there
    :param own: the service as it is written
    :returns: C({on_demand, state, exclusive}) as far as they follow from it, empty for a service that is always there
    """
    given = own.get("on_demand")
    if given is None:
        return {}
    values = schema.filled(problems, problems.mapping(given, "on_demand"), KEYS, "on_demand.")
    name = values["exclusive"]
    if name and not SERVICE_NAME.fullmatch(name):
        problems.add(
            f"'on_demand.exclusive' is {name!r}; it must be the name of a set: lower-case letters, digits and inner dashes."
        )
    if own.get("exclusive"):
        problems.add(
            "'exclusive' and 'on_demand' exclude each other. The set of a service on demand is on_demand.exclusive."
        )
    if values["keep"] and not name:
        problems.add("'on_demand.keep' counts engines of a set. Name the set in on_demand.exclusive, or leave it out.")
    port = own.get("port")
    if values["engine_port"] is None and isinstance(port, int):
        values["engine_port"] = port + PORT_STEP if port + PORT_STEP <= 65535 else port - PORT_STEP
    elif values["engine_port"] == port:
        problems.add("'on_demand.engine_port' is the port of the service, which its socket has. Take another one.")
    found: dict[str, Any] = {"on_demand": values, "exclusive": name}
    # What its owner has stopped has no socket either.
    return found if own.get("state") == "stopped" else {**found, "state": STATE}


def check(where: str, services: Sequence[PlacedService]) -> list[str]:
    """Say what is wrong with the services on demand of a host, taken together.

    :param where: the host, as messages name it
    :param services: of the host
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


def check_ranks(host: str, services: Sequence[PlacedService]) -> list[str]:
    """Say what is wrong with the services on demand of a host of a cluster, the cluster's among them.

    :param host: its name
    :param services: all that it runs, ranks too
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
    sets: Mapping[str, Sequence[PlacedService]], fit: Callable[[Mapping[str, Sequence[frozenset[str]]]], bool]
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


def _priority(service: PlacedService) -> int:
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


def sets_of(services: Sequence[PlacedService]) -> dict[str, list[PlacedService]]:
    """Return the services on demand of each set by its name."""
    found: dict[str, list[PlacedService]] = {}
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
        idle_seconds=round(said["idle_minutes"] * 60),
        minimum_seconds=round(said["minimum_minutes"] * 60),
        priority=said["priority"],
        hold_seconds=round(said["hold_minutes"] * 60),
        while_loading=said["while_loading"],
        retry_seconds=round(said["retry_minutes"] * 60),
    )
