# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs start, stop and swap: selection of services, exclusive sets, and the wait for freed memory. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._common.validation import nearest
from .planned import PlannedService

RUNNING = ("active", "activating", "reloading")
"""States of a unit that runs or starts."""

SLACK_GIB = 1.0
SLACK_SHARE = 0.05
"""Memory of an engine that may still be missing, since other programs of the host take and free memory too."""


def names_of(value: Any) -> list[str]:
    """Return the names of an extra variable, each once: a list, or a text with commas or spaces."""
    words = value if isinstance(value, (list, tuple)) else str(value or "").replace(",", " ").split()
    return list(dict.fromkeys(str(word).strip() for word in words if str(word).strip()))


def select(
    planned: Mapping[str, Mapping[str, Any]],
    play: Sequence[str],
    names: Sequence[str],
    speech_servers: Mapping[str, Sequence[str]] | None = None,
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the services that a run selects, by host in start order, and messages about wrong names.

    A service of several hosts is selected as a whole or refused: its ranks start and stop together. names: of services; empty for all of
    the play's hosts. speech_servers: on demand, by host; they are only selected by name.
    """
    services = _selectable(planned, names, speech_servers or {})
    hosts_by_service: dict[str, list[str]] = {}
    for host, listed in services.items():
        for service in listed:
            hosts_by_service.setdefault(service, []).append(host)
    selected = {name for name, hosts in hosts_by_service.items() if not set(hosts).isdisjoint(play)}
    messages = []
    for name in names:
        if name not in hosts_by_service:
            known = ", ".join(sorted(hosts_by_service)) or "none"
            messages.append(
                f"service {name}: the inventory has no service of this name{nearest(name, hosts_by_service)} Known: {known}."
            )
        elif name not in selected:
            where = ", ".join(sorted(hosts_by_service[name]))
            messages.append(f"service {name}: it is on {where}, which this run leaves out. Add it to --limit.")
    selected &= set(names or selected)
    messages += _cut_clusters(planned, play, selected)
    chosen = {host: [name for name in services[host] if name in selected] for host in planned if host in play}
    return chosen, messages


def _selectable(
    planned: Mapping[str, Mapping[str, Any]], names: Sequence[str], speech_servers: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the services of each host, and the speech servers that are selected by name."""
    services = {host: [service["name"] for service in body["services"]] for host, body in planned.items()}
    for host, servers in speech_servers.items():
        services[host] = [*services.get(host, ()), *(server for server in servers if server in names)]
    return services


def _cut_clusters(planned: Mapping[str, Mapping[str, Any]], play: Sequence[str], selected: set[str]) -> Iterator[str]:
    """Yield messages about selected services of several hosts of which the run leaves some out."""
    clusters = {
        service["name"]: service["cluster"]
        for host, body in planned.items()
        for service in body["services"]
        if service.get("cluster") and host in play
    }
    for name in sorted(selected & clusters.keys()):
        hosts = clusters[name]["hosts"]
        missing = [host for host in hosts if host not in play]
        if missing:
            yield (
                f"service {name}: it spans cluster {clusters[name]['name']}, and this run leaves out {', '.join(missing)}. "
                f"Its ranks start and stop together: --limit {','.join(dict.fromkeys([*play, *hosts]))}"
            )


def choose_states(
    services: Sequence[PlannedService], measured: Mapping[str, Any] | None, names: Sequence[str]
) -> list[PlannedService]:
    """Choose the service of each exclusive set of a host that runs; the C(state) of the others becomes stopped.

    The choice is the running service, or the first by C(names), the order of the inventory; never one with C(state: stopped).
    """
    running = {unit["name"] for unit in (measured or {}).get("units") or [] if unit["active_state"] in RUNNING}
    sets: dict[str, list[PlannedService]] = {}
    for service in sorted(services, key=lambda service: names.index(service.name)):
        if service.exclusive and service.state == "started":
            sets.setdefault(service.exclusive, []).append(service)
    chosen = {
        next((member for member in members if member.unit in running), members[0]).name for members in sets.values()
    }
    stopped = {member.name for members in sets.values() for member in members} - chosen
    return [replace(service, state="stopped") if service.name in stopped else service for service in services]


def join_states(hosts: Sequence[list[PlannedService]]) -> None:
    """Stop the ranks of an engine on all hosts of the cluster if one of them is stopped."""
    ranks = [service for services in hosts for service in services if service.cluster]
    stopped = {service.name for service in ranks if service.state == "stopped"}
    for services in hosts:
        services[:] = [
            replace(service, state="stopped") if service.cluster and service.name in stopped else service
            for service in services
        ]


def excluded(settings: Mapping[str, Mapping[str, Any]], active: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return messages about services that cannot start because another service of their exclusive set runs or starts too."""
    running = set(active)
    messages = []
    sets = {name: values["exclusive"] for name, values in sorted(settings.items()) if values.get("exclusive")}
    for position, name in enumerate(names):
        exclusive = sets.get(name)
        mates = [other for other in sets if other != name and sets[other] == exclusive]
        both = [other for other in mates if other in names[:position]]
        if both:
            messages.append(
                f"{name} and {both[0]} are of the exclusive set {exclusive}: one of them runs at a time. Name one."
            )
            continue
        messages += [
            f"{name} cannot run together with {other}: they are of the exclusive set {exclusive}. Swap them: ansible-playbook dgxspark.vllm.swap -e "
            f"out={other} -e in={name}"
            for other in mates
            if other in running and name not in running
        ]
    return messages


def held_by(containers: Iterable[str], processes: Iterable[Mapping[str, Any]]) -> tuple[float, list[int]]:
    """Return the GPU memory in GiB of the processes in C(containers), and their ids."""
    names = set(containers)
    holders = [process for process in processes if process.get("container") in names]
    return sum(process["used_mib"] or 0 for process in holders) / 1024, [int(process["pid"]) for process in holders]


def expected_gib(before_gib: float, held_gib: float) -> float:
    """Return the GiB that must be available once the driver has freed the memory of stopped engines."""
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
    """Wait until the driver has freed the memory of engines, which takes longer than the stop of their containers; times are in seconds.

    look: returns the available GiB, and the ids of the processes that nvidia-smi lists; C(left) of the result has those still listed.
    """
    start, holders = clock(), set(pids)
    while True:
        available, listed = look()
        holding, waited = sorted(holders & listed), clock() - start
        ok = not holding and available >= need_gib
        if ok or waited >= timeout:
            return {"ok": ok, "waited_seconds": round(waited, 1), "available_gib": round(available, 3), "left": holding}
        sleep(min(interval, max(timeout - waited, 0.05)))


def not_back(wait: Mapping[str, Any], need_gib: float, names: Sequence[str], holders: str) -> str:
    """Return the message that memory was not freed, with the fix. holders: the end of a sentence about the present holders of memory."""
    listed = f"nvidia-smi still lists pid {', '.join(map(str, wait['left']))}; " if wait["left"] else ""
    return (
        f"{', '.join(names)}: stopped, but the memory is not back after {wait['waited_seconds']:.0f} s: {listed}"
        f"{wait['available_gib']:.2f} GiB are available, {need_gib:.2f} GiB were expected; {holders}. Wait longer "
        "(-e spark_memory_timeout=900), end a process that was left over, or reboot: a driver that keeps memory gives it back no other way."
    )
