# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: the services of each host, from inventory, recipes and facts of hosts. Pure functions.

The same input gives the same plan on any machine; nothing here reads a file, a clock or a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._addons import addons
from .._cluster import clustering, firewall, sockets
from .._cluster.clustering import Cluster
from .._common.findings import SEVERITIES, Finding
from .._common.plain_data import InputError
from .._common.reader import to_dict
from . import image_questions, inventory, preflight, service_findings
from .addon_plan import plan_add_ons
from .host_plan import plan_host
from .inventory import InventoryError
from .measured_starts import KnownStarts
from .planned import PlannedHost
from .service import Host, Sources
from .spanning import join_ranks, plan_cluster

SCHEMA = 1


def make_plan(
    hosts: Mapping[str, Mapping[str, Any]],
    known_recipes: Mapping[str, Mapping[str, Any]],
    digest: Callable[[str], str | None] = lambda _path: None,
    groups: Mapping[str, Sequence[str]] | None = None,
    other_hosts: Mapping[str, Mapping[str, Any]] | None = None,
    lock: Mapping[str, Any] | None = None,
    pin: bool = True,
    upstream: Mapping[str, Any] | None = None,
    resolve: Callable[[str], Sequence[str]] = lambda _name: (),
    image_answer: Callable[[str], Mapping[str, Any] | None] = lambda _key: None,
    reached: Sequence[str] | None = None,
    starts: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    measurements: bool = False,
) -> dict[str, Any]:
    """Plan every host.

    :param hosts: host name to C({vars, address, measured, images, fabric}): the C(spark_*) variables, C(ansible_host), C(spark) of
        M(dgxspark.vllm.spark_info) or null, C(images) of M(dgxspark.vllm.spark_info) by reference or null, and the network that the role
        fabric has planned in this run or null
    :param digest: returns the SHA-256 of a file on the controller, None for a missing file
    :param groups: of the inventory, in its order; clusters are named after them
    :param other_hosts: other hosts with add-on services, to C({vars, address})
    :param lock: the lock file as C(lock.read) gives it
    :param pin: deploy locked images and models by digest and commit; otherwise by the names in the inventory, as for making a lock file
    :param upstream: C(upstream) of M(dgxspark.vllm.spark_info)
    :param resolve: returns the addresses of a name, none for an unknown name; for hosts without a known address
    :param image_answer: returns the answer of an image to the question of a name, None without an answer; see C(image_questions)
    :param reached: hosts that the play may ask now, None for all
    :returns: C({schema, hosts, clusters, addons}), the last by host, Sparks and other hosts
    :raises InventoryError: with all messages for malformed input
    """
    learned = KnownStarts(starts) if starts else None
    sources = Sources(known_recipes, digest, lock, pin, upstream, len(hosts), image_answer, learned, measurements)
    sparks, addon_hosts, clusters, spanned = _read(hosts, other_hosts or {}, groups or {}, sources)
    sparks = _with_callers(sparks, addon_hosts)
    planned = _plan_hosts(sparks, sources)
    image_questions.assign(sparks, planned, reached)
    for name, cluster in clusters.items():
        join_ranks(cluster, spanned[name], sparks, planned)
    for finding in clustering.check_addresses({name: cluster["fabric"] for name, cluster in spanned.items()}):
        planned[clusters[finding.service].head].findings.append({**finding.to_dict(), "service": ""})
    for cluster in clusters.values():
        alike = preflight.check_alike({name: sparks[name].measured for name in cluster.hosts})
        planned[cluster.head].findings += _not_ignored(alike, sparks[cluster.head])
    _share_bus(planned)
    add_ons = plan_add_ons(sparks, addon_hosts, planned, spanned, sources)
    plan_firewalls(sparks, addon_hosts, planned, spanned, add_ons, resolve)
    bodies = {name: to_dict(body) for name, body in planned.items()}
    return {"schema": SCHEMA, "hosts": bodies, "clusters": spanned, "addons": add_ons}


def _read(
    hosts: Mapping[str, Mapping[str, Any]],
    other_hosts: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    sources: Sources,
) -> tuple[dict[str, Host], dict[str, Host], dict[str, Cluster], dict[str, dict[str, Any]]]:
    """Return Sparks with their services and ranks, other hosts, clusters, and planned clusters. Raises C(InventoryError)."""
    messages: list[str] = []
    hosts, other_hosts = inventory.fit(hosts, messages), inventory.fit(other_hosts, messages)
    sparks = {name: inventory.read_spark(name, hosts[name], sources, messages) for name in sorted(hosts)}
    addon_hosts = {name: inventory.read_other(name, other_hosts[name], messages) for name in sorted(other_hosts)}
    clusters, problems = clustering.read_clusters(
        {name: host.settings["spark_cluster"] for name, host in sparks.items()}, groups
    )
    messages += problems
    clusters = dict(sorted(clusters.items()))
    spanned = {}
    for name, cluster in clusters.items():
        if cluster.hosts and set(cluster.hosts) <= set(sparks):  # otherwise there is a message
            spanned[name], members = plan_cluster(cluster, sparks, sources, messages)
            sparks |= members
    if messages:
        raise InventoryError(messages)
    return sparks, addon_hosts, clusters, spanned


def _with_callers(sparks: Mapping[str, Host], other_hosts: Mapping[str, Host]) -> dict[str, Host]:
    """Return the Sparks, each service with the hosts that call it."""
    asking = sockets.askers({name: host.settings["addons"] for name, host in {**sparks, **other_hosts}.items()})
    with_callers = {}
    for name, host in sparks.items():
        services = []
        for service in host.services:
            key = f"{service.cluster.name if service.cluster else name}/{service.name}"
            services.append(replace(service, callers=sorted(sockets.callers(key, "engine", name, asking))))
        with_callers[name] = replace(host, services=services)
    return with_callers


def _plan_hosts(sparks: Mapping[str, Host], sources: Sources) -> dict[str, PlannedHost]:
    """Plan each Spark by itself. Raises C(InventoryError)."""
    planned, messages = {}, []
    for name, host in sparks.items():
        try:
            planned[name] = plan_host(host, sources)
        except InputError as error:
            messages += [f"host {name}: {message}" for message in error.messages]
    if messages:
        raise InventoryError(messages)
    return planned


def _not_ignored(findings: Iterable[Finding], host: Host) -> list[dict[str, Any]]:
    """Return the findings whose rules a host does not ignore, as plain data."""
    return [finding.to_dict() for finding in findings if finding.rule not in host.ignored]


def _share_bus(planned: Mapping[str, PlannedHost]) -> None:
    """Set how many services may answer at the same time on the busiest Spark of each service."""
    busy = {name: _count_busy(host) for name, host in planned.items()}
    for name, host in planned.items():
        for position, service in enumerate(host.services):
            hosts = service.cluster.hosts if service.cluster else [name]
            shared_by = max([1, *(busy[other] for other in hosts if other in busy)])
            host.services[position] = replace(service, speed=replace(service.speed, shared_by=shared_by))


def _count_busy(host: PlannedHost) -> int:
    """Return how many services of a Spark may answer at the same time: of a set as many as may run together, none that is stopped."""
    running = [service for service in host.services if service.state != "stopped"]
    sets = {service.exclusive for service in running if service.exclusive}
    together = [max(map(len, (host.sets or {}).get(entry) or [()]), default=1) or 1 for entry in sets]
    return sum(not service.exclusive for service in running) + sum(together)


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
        ports = [service.port for service in body.services if service.cluster]
        peers = _peers(name, body, clusters)
        wall, findings = firewall.plan(name, host.settings, listening, names, resolve, ports, peers, not_asked)
        # A firewall of an earlier run is removed.
        has_firewall = body.cluster or (host.measured or {}).get("firewall")
        body.firewall = wall or (firewall.ABSENT if has_firewall else None)
        findings += _firewall_findings(host, body, listening, wall)
        body.findings += _not_ignored(findings, host)
    for name, host in other_hosts.items():
        add_ons[name]["findings"] += _not_ignored(addons.exposure(name, add_ons[name]["sockets"], None), host)


def _peers(host: str, body: PlannedHost, clusters: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the addresses of the other hosts of a Spark's cluster, None without a cluster."""
    if not body.cluster:
        return None
    network = clusters[body.cluster["name"]]["fabric"] or {}
    return (network.get("hosts") or {}).get(host, {}).get("firewall") or {}


def _firewall_findings(
    host: Host, body: PlannedHost, listening: Sequence[sockets.Socket], wall: Mapping[str, Any] | None
) -> list[Finding]:
    """Return findings about ports of a Spark that its firewall closes, or that stay open. wall: the planned firewall."""
    findings: list[Finding] = []
    rays = [service.name for service in body.services if service.cluster and service.cluster.executor == "ray"]
    if wall:
        present = (host.measured or {}).get("listening") or []
        findings += firewall.blocked_listeners(present, wall["allowed"], wall["closed"], wall["ranges"])
        findings += preflight.check_nft(host.measured or {})
    elif rays and not host.settings["spark_firewall"]:
        findings.append(firewall.ray_open(host.name, rays))
    findings += addons.exposure(host.name, listening, wall)
    ignored_by = {service.name: service.ignore for service in host.services}
    for service in body.services:
        reach = service_findings.reached(service, host.settings, bool(wall))
        findings += [finding for finding in reach if finding.rule not in ignored_by[service.name]]
    return findings


def _names(host: Host) -> list[str]:
    measured = (host.measured or {}).get("management_address")
    return [str(name) for name in (host.variables.get("spark_management_address"), host.address, measured) if name]


def _cluster_of(plan: Mapping[str, Any], host: str, finding: Mapping[str, Any]) -> dict[str, str]:
    """Return the cluster of a finding: about a service of the cluster, or about a host without other services."""
    for name, cluster in (plan.get("clusters") or {}).items():
        if host in cluster["hosts"]:
            services = plan["hosts"][host]["services"] if host in plan["hosts"] else []
            single = {service["name"] for service in services if not service.get("cluster")}
            is_single = finding.get("service") in single if finding.get("service") else bool(single)
            return {} if is_single else {"cluster": name}
    return {}


def plan_findings(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of all hosts, errors first, each with C(host), and C(cluster) if all ranks may have it."""
    findings = [
        {"host": host, **finding, **_cluster_of(plan, host, finding)}
        for part in ("hosts", "addons")
        for host, body in (plan.get(part) or {}).items()
        for finding in body["findings"]
    ]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding["severity"]))
