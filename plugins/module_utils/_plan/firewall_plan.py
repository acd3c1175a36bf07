# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall of all hosts: which hosts may reach each listening port, with the findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._addons import addons
from .._cluster import firewall
from .._common.findings import Finding
from . import preflight
from .planned import PlannedHost
from .service import Host
from .service_findings import reached


def plan_firewalls(
    sparks: Mapping[str, Host],
    other_hosts: Mapping[str, Host],
    planned: Mapping[str, PlannedHost],
    clusters: Mapping[str, Mapping[str, Any]],
    add_ons: Mapping[str, dict[str, Any]],
    resolve: Callable[[str], Sequence[str]],
) -> None:
    """Close the ports of all hosts, except for the hosts that need them.

    :param planned: the planned Sparks; receive firewall and findings
    :param add_ons: the planned add-on services by host; receive findings
    """
    names = {name: _names(host) for name, host in {**other_hosts, **sparks}.items()}
    not_asked = {
        name for name, host in sparks.items() if host.measured is None and host.settings["spark_plan_facts"] != "never"
    }
    for name, host in sparks.items():
        body, listening = planned[name], add_ons[name]["sockets"]
        ports, peers = _cluster_access(name, body, clusters)
        wall, findings = firewall.plan(name, host.settings, listening, names, resolve, ports, peers, not_asked)
        # A firewall of an earlier run is removed.
        has_firewall = body.cluster or (host.measured or {}).get("firewall")
        body.firewall = wall or (firewall.ABSENT if has_firewall else None)
        findings += _wall_findings(host, body, wall)
        findings += addons.exposure(name, listening, wall)
        ignored_by = {service.name: service.ignore for service in host.services}
        for service in body.services:
            reach = reached(service, host.settings, bool(wall))
            findings += [finding for finding in reach if finding.rule not in ignored_by[service.name]]
        ignored = host.settings["spark_ignore_rules"]
        body.findings += [finding.to_dict() for finding in findings if finding.rule not in ignored]
    for name, host in other_hosts.items():
        findings = addons.exposure(name, add_ons[name]["sockets"], None)
        add_ons[name]["findings"].extend(finding.to_dict() for finding in findings if finding.rule not in host.ignored)


def _cluster_access(
    host: str, body: PlannedHost, clusters: Mapping[str, Mapping[str, Any]]
) -> tuple[list[int], Mapping[str, Any] | None]:
    """Return the ports of a host's ranks, and the addresses of the other hosts of its cluster; None without a cluster."""
    if not body.cluster:
        return [], None
    network = clusters[body.cluster["name"]]["fabric"] or {}
    peers = (network.get("hosts") or {}).get(host, {}).get("firewall") or {}
    return [service.port for service in body.services if service.cluster], peers


def _wall_findings(host: Host, body: PlannedHost, wall: Mapping[str, Any] | None) -> list[Finding]:
    """Return the findings about a planned firewall, or about ports of Ray without one."""
    if wall:
        listening = (host.measured or {}).get("listening") or []
        blocked = firewall.blocked_listeners(listening, wall["allowed"], wall["closed"], wall["ranges"])
        return [*blocked, *preflight.check_nft(host.measured or {})]
    rays = [service.name for service in body.services if service.cluster and service.cluster.executor == "ray"]
    return [firewall.ray_open(host.name, rays)] if rays and not host.settings["spark_firewall"] else []


def _names(host: Host) -> list[str]:
    measured = (host.measured or {}).get("management_address")
    return [str(name) for name in (host.variables.get("spark_management_address"), host.address, measured) if name]
