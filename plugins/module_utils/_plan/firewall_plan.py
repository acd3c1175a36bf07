# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall of all hosts: who may reach what listens on more than loopback, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._addons import addons
from .._cluster import firewall
from . import preflight
from .planned import PlannedHost
from .service import Host
from .service_findings import reached


def plan_firewalls(
    sparks: Mapping[str, Host],
    others: Mapping[str, Host],
    planned: Mapping[str, PlannedHost],
    clusters: Mapping[str, Mapping[str, Any]],
    add_ons: Mapping[str, dict[str, Any]],
    resolve: Callable[[str], Sequence[str]],
) -> None:
    """Close what listens on more than loopback to everybody but those who have to come.

    :param sparks: the Sparks by name
    :param others: hosts that are no Sparks and run add-on services, by name
    :param planned: the Sparks' part of the plan, which is added to
    :param clusters: what concerns each cluster as a whole, by name
    :param add_ons: what each host has of add-on services, which is added to
    :param resolve: returns the addresses of a name
    """
    names = {name: _names(host) for name, host in {**others, **sparks}.items()}
    unasked = {
        name for name, host in sparks.items() if host.measured is None and host.settings["spark_plan_facts"] != "never"
    }
    for name, host in sparks.items():
        body, listening, settings = planned[name], add_ons[name]["sockets"], host.settings
        measured, cluster, peers, ports = host.measured or {}, body.cluster, None, []
        if cluster:
            network = clusters[cluster["name"]]["fabric"] or {}
            peers = (network.get("hosts") or {}).get(name, {}).get("firewall") or {}
            ports = [service.port for service in body.services if service.cluster]
        wall, found = firewall.plan(name, settings, listening, names, resolve, ports, peers, unasked)
        # What an earlier run has closed is opened again.
        body.firewall = wall or (firewall.ABSENT if cluster or measured.get("firewall") else None)
        if wall:
            found += firewall.blocked_listeners(
                measured.get("listening") or [], wall["allowed"], wall["closed"], wall["ranges"]
            )
            found += preflight.check_nft(measured)
        else:
            rays = [each.name for each in body.services if each.cluster and each.cluster.executor == "ray"]
            found += [firewall.ray_open(name, rays)] if rays and not settings["spark_firewall"] else []
        found += addons.exposure(name, listening, wall)
        ignored_by = {service.name: service.ignore for service in host.services}
        for service in body.services:
            told = reached(service, settings, bool(wall))
            found += [finding for finding in told if finding.rule not in ignored_by[service.name]]
        ignored = settings["spark_ignore_rules"]
        body.findings += [finding.to_dict() for finding in found if finding.rule not in ignored]
    for name, host in others.items():
        found = addons.exposure(name, add_ons[name]["sockets"], None)
        add_ons[name]["findings"].extend(finding.to_dict() for finding in found if finding.rule not in host.ignored)


def _names(host: Host) -> list[str]:
    """Return the names and addresses that a host is known by."""
    known = (
        host.variables.get("spark_management_address"),
        host.address,
        (host.measured or {}).get("management_address"),
    )
    return [str(name) for name in known if name]
