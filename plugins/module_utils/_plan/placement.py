# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where services stand in a fleet: which have no replica, which node is over-committed and what could move. Pure functions.

A replica is a service of the same model, or by the same served name, that shares no host with the first. The ranks of a service
that spans hosts are one service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common.findings import Finding
from .picture import free_gib, names_text, natural, over_gib


@dataclass(frozen=True)
class Placed:
    """A service with all hosts that it needs: when one of them is away, so is the service."""

    name: str
    model: str
    served: str
    hosts: list[str]
    gib: float
    """Its memory on its host."""
    frees: float
    """By how much its hosts are relieved without it: of an exclusive set memory is planned for the largest alone."""

    def same(self, other: Placed) -> bool:
        """Whether a client could take the other for this one."""
        return self.model == other.model or self.served == other.served


def services(plan: Mapping[str, Any], stopped: bool = False) -> list[Placed]:
    """List the services of a plan that are meant to run, each once; with C(stopped) those as well that are not: they keep their memory."""
    by_key: dict[tuple[str, str], Placed] = {}
    for host in sorted(plan["hosts"], key=natural):
        host_services = plan["hosts"][host]["services"]
        for service in host_services:
            if service.get("state", "started") == "stopped" and not stopped:
                continue
            name, exclusive = service["name"], service.get("exclusive")
            place = (service.get("cluster") or {}).get("name") or host
            model = service["model"].get("repo") or service["model"].get("source") or service["recipe"]
            mates = [
                row for row in host_services if exclusive and row is not service and row.get("exclusive") == exclusive
            ]
            key = (place, name)
            by_key[key] = Placed(
                name=name,
                model=model,
                served=service["served_model_name"],
                hosts=[*(by_key[key].hosts if key in by_key else ()), host],
                gib=_size(service),
                frees=max(0.0, _size(service) - max(map(_size, mates), default=0.0)),
            )
    return list(by_key.values())


def _size(service: Mapping[str, Any]) -> float:
    return float((service["memory"].get("residency_gib") or {}).get("typical") or 0.0)


def without_replica(placed: Sequence[Placed]) -> list[Placed]:
    """Return the services that nobody else stands in for."""
    return [
        service
        for service in placed
        if not any(
            other is not service and service.same(other) and not set(service.hosts) & set(other.hosts)
            for other in placed
        )
    ]


def over_committed(plan: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the hosts whose parts are more than their memory: C({host: {over_gib, move, to}}).

    move: the smallest service that has to go, and to: the host with the most free memory that fits it; None without one.
    """
    bodies = plan["hosts"]
    room = {host: free_gib(body) for host, body in bodies.items() if not over_gib(body)}
    rows: dict[str, dict[str, Any]] = {}
    for host in sorted(bodies, key=natural):
        over = over_gib(bodies[host])
        if not over:
            continue
        planned = services({"hosts": {host: bodies[host]}}, stopped=True)
        alone = [
            service for service in planned if service.frees >= over and not _spans_hosts(bodies[host], service.name)
        ]
        move = min(alone, key=lambda service: service.gib, default=None)
        roomy = [other for other in room if move and room[other] >= move.gib]
        to = max(roomy, key=lambda other: room[other], default=None)
        rows[host] = {"over_gib": over, "move": move.name if move else None, "to": to}
        if move and to:
            room[to] -= move.gib
    return rows


def _spans_hosts(body: Mapping[str, Any], name: str) -> bool:
    return any(service["name"] == name and service.get("cluster") for service in body["services"])


def check(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Judge the placement: C({hosts, services, without_replica: [{service, model, hosts}], over_committed})."""
    placed = services(plan)
    alone = without_replica(placed)
    # A folder of the controller is nothing that a reader of the plan knows the model by.
    models = [service.served if service.model.startswith("/") else service.model for service in alone]
    return {
        "hosts": len(plan["hosts"]),
        "services": len(placed),
        "without_replica": [
            {"service": service.name, "model": model, "hosts": service.hosts} for service, model in zip(alone, models)
        ],
        "over_committed": over_committed(plan),
    }


def findings(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the same as findings, each with its host. A single host has no replacement, so it has no finding."""
    result: list[dict[str, Any]] = []
    judged = check(plan)
    for entry in judged["without_replica"] if judged["hosts"] > 1 else ():
        finding = Finding(
            "placement.no_replica",
            "info",
            f"no other host serves {entry['model']}: while its host is down, it is unavailable.",
            "Nothing, if that is accepted; else put the service on a second host, and both behind one alias of spark_gateway.",
            entry["service"],
        )
        result.append({"host": entry["hosts"][0], **finding.to_dict()})
    for host, entry in judged["over_committed"].items():
        fix = "Lower gpu-memory-utilization of its services, or take one off."
        if entry["to"]:
            fix = f"Move {entry['move']} to {entry['to']}, which has room for it; or lower gpu-memory-utilization here."
        text = f"its services are planned with {entry['over_gib']:.1f} GiB more than the host has."
        result.append({"host": host, **Finding("placement.over_committed", "warning", text, fix).to_dict()})
    return result


def text(plan: Mapping[str, Any]) -> str:
    """Say it in a line or two, for a plan of several hosts."""
    judged = check(plan)
    lines = []
    alone: dict[str, list[str]] = {}
    for entry in judged["without_replica"]:
        alone.setdefault(entry["service"], []).extend(entry["hosts"])
    if judged["hosts"] > 1 and alone:
        names = [f"{name} ({names_text(hosts)})" for name, hosts in alone.items()]
        more = len(names) - 6
        count = len(judged["without_replica"])
        lines.append(
            f"Without a replica: {count} of {judged['services']} services: {', '.join(names[:6])}{f' and {more} more' if more > 0 else ''}."
        )
    for host, entry in judged["over_committed"].items():
        move = f"; {entry['move']} would fit on {entry['to']}" if entry["to"] else ""
        lines.append(f"Over-committed: {host} by {entry['over_gib']:.1f} GiB{move}.")
    if len(lines) > 7:
        lines = [*lines[:7], f"and {len(lines) - 7} hosts more are over-committed."]
    return "\n".join(lines)
