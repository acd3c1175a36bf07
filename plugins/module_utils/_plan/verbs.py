# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An owner's verbs: which services are meant, which may run beside each other, and when memory is really back. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common.validation import nearest
from .planned import PlannedService

RUNNING = ("active", "activating", "reloading")
"""States of a unit that runs or comes up; one that is being stopped is on its way out."""

SLACK_GIB = 1.0
SLACK_SHARE = 0.05
"""How much of what an engine held may still be missing: other programs of the host take and give meanwhile."""


def names_of(value: Any) -> list[str]:
    """Read names as people give them by C(-e): a list, or a text with commas or spaces. Each once, in the order given."""
    words = value if isinstance(value, (list, tuple)) else str(value or "").replace(",", " ").split()
    return list(dict.fromkeys(str(word).strip() for word in words if str(word).strip()))


def select(
    planned: Mapping[str, Mapping[str, Any]],
    play: Sequence[str],
    wanted: Sequence[str],
    beside: Mapping[str, Sequence[str]] | None = None,
) -> tuple[dict[str, list[str]], list[str]]:
    """Find the services that a run is about.

    A service that spans hosts is taken whole or refused: its ranks start and stop together.

    :param planned: the hosts of a plan
    :param play: the hosts of the run
    :param wanted: names; all services of those hosts when empty
    :param beside: speech servers on demand by host, which have to be named
    :returns: host to names in start order, and all that is wrong with the request
    """
    there: dict[str, list[str]] = {}
    spans: dict[str, tuple[str, list[str]]] = {}
    for host, body in planned.items():
        for service in body["services"]:
            there.setdefault(service["name"], []).append(host)
            if service.get("cluster") and host in play:
                spans[service["name"]] = (service["cluster"]["name"], list(service["cluster"]["hosts"]))
    here = {name: [host for host in hosts if host in play] for name, hosts in there.items()}
    named = {host: [name for name in names if name in wanted] for host, names in (beside or {}).items()}
    for host, names in named.items():
        for name in names:
            there.setdefault(name, []).append(host)
            here[name] = [each for each in there[name] if each in play]
    messages = []
    for name in wanted:
        if name not in there:
            known = ", ".join(sorted(there)) or "none"
            messages.append(
                f"service {name}: the inventory has none by this name{nearest(name, there)} Known: {known}."
            )
        elif not here[name]:
            elsewhere = ", ".join(sorted(there[name]))
            messages.append(f"service {name}: it is on {elsewhere}, which this run leaves out. Add it to --limit.")
    chosen = {name for name, hosts in here.items() if hosts and (not wanted or name in wanted)}
    for name in sorted(chosen & spans.keys()):
        cluster, hosts = spans[name]
        missing = [host for host in hosts if host not in play]
        if missing:
            messages.append(
                f"service {name}: it spans cluster {cluster}, and this run leaves out {', '.join(missing)}. "
                f"Its ranks start and stop together: --limit {','.join(dict.fromkeys([*play, *hosts]))}"
            )
    found = {
        host: [name for name in (*(each["name"] for each in body["services"]), *named.get(host, ())) if name in chosen]
        for host, body in planned.items()
        if host in play
    }
    return found, messages


def choose_states(
    services: Sequence[PlannedService], measured: Mapping[str, Any] | None, written: Sequence[str]
) -> list[PlannedService]:
    """Settle which service of each exclusive set of a host is to run: C(state) of the others becomes stopped.

    The one that runs goes on; where none does, or nobody has looked, it is the first in the inventory. An owner's own
    C(state: stopped) holds whatever runs.

    :param services: of the host
    :param measured: what the host said of itself, None where nobody asked
    :param written: the names in the order of the inventory
    :returns: the services
    """
    running = {unit["name"] for unit in (measured or {}).get("units") or [] if unit["active_state"] in RUNNING}
    sets: dict[str, list[PlannedService]] = {}
    for service in sorted(services, key=lambda each: written.index(each.name)):
        if service.exclusive and service.state == "started":
            sets.setdefault(service.exclusive, []).append(service)
    kept = {next((each for each in members if each.unit in running), members[0]).name for members in sets.values()}
    down = {each.name for members in sets.values() for each in members} - kept
    return [replace(each, state="stopped") if each.name in down else each for each in services]


def join_states(hosts: Sequence[list[PlannedService]]) -> None:
    """Have the ranks of an engine agree: one that is to be stopped on a host of the cluster is stopped on all of them."""
    ranks = [service for services in hosts for service in services if service.cluster]
    stopped = {service.name for service in ranks if service.state == "stopped"}
    for services in hosts:
        services[:] = [
            replace(each, state="stopped") if each.cluster and each.name in stopped else each for each in services
        ]


def excluded(settings: Mapping[str, Mapping[str, Any]], active: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Say which services cannot be started because another one of their exclusive set runs, or is asked for, too.

    :param settings: of all deployed services, by name
    :param active: names of those that run or come up
    :param wanted: those to start
    :returns: messages
    """
    running = set(active)
    messages = []
    for position, name in enumerate(wanted):
        own = (settings.get(name) or {}).get("exclusive")
        mates = [
            other for other, each in sorted(settings.items()) if own and other != name and each.get("exclusive") == own
        ]
        both = [other for other in mates if other in wanted[:position]]
        if both:
            messages.append(
                f"{name} and {both[0]} are of the exclusive set {own}: one of them runs at a time. Name one."
            )
            continue
        messages += [
            f"{name} cannot be started beside {other}: they are of the exclusive set {own}. "
            f"Swap them: ansible-playbook dgxspark.vllm.swap -e out={other} -e in={name}"
            for other in mates
            if other in running and name not in running
        ]
    return messages


def held_by(containers: Iterable[str], processes: Iterable[Mapping[str, Any]]) -> tuple[float, list[int]]:
    """Return the GPU memory in GiB of the processes in C(containers), and their ids."""
    names = set(containers)
    own = [process for process in processes if process.get("container") in names]
    return sum(process["used_mib"] or 0 for process in own) / 1024, [int(process["pid"]) for process in own]


def expected_gib(before_gib: float, held_gib: float) -> float:
    """What has to be available once memory is back, of what was available before and what the engines held."""
    return before_gib + max(0.0, held_gib - max(SLACK_GIB, SLACK_SHARE * held_gib))


def wait_until_back(
    look: Callable[[], tuple[float, set[int]]],
    need_gib: float,
    pids: Iterable[int],
    *,
    timeout: float,
    interval: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> dict[str, Any]:
    """Wait until the driver has let go of what engines held: a container is gone long before its memory is back.

    :param look: returns what is available in GiB, and the ids of the processes that nvidia-smi lists
    :param need_gib: what has to be available
    :param pids: those that held the memory
    :param timeout: seconds
    :param interval: seconds between two looks
    :param clock: returns seconds
    :param sleep: waits for seconds
    :returns: C({ok, waited_seconds, available_gib, left}), left being the ids that are still listed
    """
    start, wanted = clock(), set(pids)
    while True:
        available, listed = look()
        left, waited = sorted(wanted & listed), clock() - start
        ok = not left and available >= need_gib
        if ok or waited >= timeout:
            return {"ok": ok, "waited_seconds": round(waited, 1), "available_gib": round(available, 3), "left": left}
        sleep(min(interval, max(timeout - waited, 0.05)))


def not_back(found: Mapping[str, Any], need_gib: float, names: Sequence[str], holders: str) -> str:
    """Say that memory did not come back, and what helps.

    :param found: as C(wait_until_back) returns it
    :param need_gib: what had to be available
    :param names: services that held it
    :param holders: who holds memory now, or where to look, as part of the sentence
    :returns: a message
    """
    listed = f"nvidia-smi still lists pid {', '.join(map(str, found['left']))}; " if found["left"] else ""
    return (
        f"{', '.join(names)}: stopped, but the memory is not back after {found['waited_seconds']:.0f} s: {listed}"
        f"{found['available_gib']:.2f} GiB are available, {need_gib:.2f} GiB were expected; {holders}. Wait longer "
        "(-e spark_memory_timeout=900), end a process that was left over, or reboot: a driver that keeps memory gives it back no other way."
    )
