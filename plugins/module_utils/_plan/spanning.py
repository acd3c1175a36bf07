# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services of clusters: an engine over several hosts, one rank on each, planned as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._cluster import clustering, collective, fabric, fabric_layout
from .._cluster.clustering import Cluster
from .._common import schema
from .._common.findings import Finding
from .._common.reader import to_dict
from .._vllm import image_catalogue
from . import container_argv, image_check, image_questions, on_demand, unit_files, verbs
from .inventory import claims, read_service
from .judging import SOLVED, budget_request, check_launch, is_open, solved_args
from .planned import PlannedHost, PlannedService
from .service import Host, ServiceSpec, Sources
from .service_files import place

ALIKE = ("spark_defaults", "spark_hf_home", "spark_cache_dir", "spark_recipe_dirs", "spark_recipe_sources")
"""Settings besides the launch itself that ranks of one engine must have in common."""


@dataclass(frozen=True)
class _Spanning:
    """A service of a cluster: its position, the hosts that it spans, the executor with the reason, whether its image needs Ray added."""

    position: int
    cluster: Cluster
    service: ServiceSpec
    executor: str
    reason: str
    needs_ray: bool


def plan_cluster(
    cluster: Cluster, sparks: Mapping[str, Host], sources: Sources, messages: list[str]
) -> tuple[dict[str, Any], dict[str, Host]]:
    """Add the ranks of a cluster to its hosts."""
    hosts = {name: sparks[name] for name in cluster.hosts}
    problems = _differing_settings(cluster, hosts)
    network = _plan_network(cluster, hosts)
    services, refused = _read_services(cluster, hosts, sources)
    problems += refused
    findings = _network_findings(network)
    for spanning in services:
        part = clustering.part_fabric(network, spanning.cluster.hosts)
        reach = clustering.check_reach(spanning.cluster, spanning.service.name, spanning.service.args, part)
        findings += [finding.to_dict() for finding in reach]
        for rank, name in enumerate(spanning.cluster.hosts):
            placed = _rank(spanning, rank, part)
            ranks = [*hosts[name].services, placed]
            beside = on_demand.with_proxy(hosts[name].settings["beside"], ranks)
            hosts[name] = replace(hosts[name], services=ranks, settings={**hosts[name].settings, "beside": beside})
    for name, host in hosts.items():
        if services and not refused and not host.services and not host.settings["spark_services"]:
            problems.append(
                f"cluster {cluster.name}: no service spans {name}. Name it in 'hosts' of one, give it spark_services, or take it out of the group."
            )
        servers = on_demand.servers(host.settings["beside"])
        conflicts = on_demand.find_conflicts_of_ranks(name, [*host.services, *servers])
        problems += [text for text in conflicts if text not in messages]
    messages += problems
    if not problems:
        hosts = _solve_for_all_ranks(cluster, hosts, sources)
    cluster_plan = {
        "hosts": cluster.hosts,
        "head": cluster.head,
        "services": [
            {
                "name": spanning.service.name,
                "executor": spanning.executor,
                "reason": spanning.reason,
                "hosts": list(spanning.cluster.hosts),
            }
            for spanning in services
        ],
        "fabric": network,
        "settings": dict(cluster.fabric),
        "findings": findings,
    }
    return cluster_plan, hosts


def _differing_settings(cluster: Cluster, hosts: Mapping[str, Host]) -> list[str]:
    head = hosts[cluster.head]
    return [
        f"cluster {cluster.name}: {name} differs on host {host} and the head {cluster.head}; all ranks of an engine need the same value. Set it on "
        "the group."
        for name in ALIKE
        for host in cluster.hosts[1:]
        if hosts[host].settings[name] != head.settings[name]
    ]


def _plan_network(cluster: Cluster, hosts: Mapping[str, Host]) -> dict[str, Any] | None:
    return clustering.plan_fabric(
        cluster,
        {name: host.measured for name, host in hosts.items()},
        {name: host.settings["spark_fabric_addresses"] for name, host in hosts.items()},
        next((host.fabric for host in hosts.values() if host.fabric), None),
    )


def _rank(spanning: _Spanning, rank: int, network: Mapping[str, Any] | None) -> ServiceSpec:
    """Return a service of a cluster placed on one of its hosts. network: of the hosts that it spans."""
    service = spanning.service
    span, environment = clustering.span_of(spanning.cluster, spanning.position, rank, spanning.executor, network)
    return replace(
        service,
        args=clustering.spanning_args(
            service.args, span.executor, rank, span.size, span.addresses[span.head], span.position
        ),
        env={**environment, **service.env},
        secrets={key: path for key, path in service.secrets.items() if not rank or key != "VLLM_API_KEY"},
        nodes=span.size,
        rank=rank,
        cluster=span,
        needs_ray=spanning.needs_ray,
    )


def _read_services(cluster: Cluster, hosts: Mapping[str, Host], sources: Sources) -> tuple[list[_Spanning], list[str]]:
    head = hosts[cluster.head]
    present = set.intersection(*(host.present_images for host in hosts.values()))
    names = {name: {claimed for claimed, _port in claims(host)} for name, host in hosts.items()}
    ports = {name: {port: str(claimed) for claimed, port in claims(host)} for name, host in hosts.items()}
    services: list[_Spanning] = []
    messages: list[str] = []
    for position, entry in enumerate(cluster.entries):
        where = f"cluster {cluster.name}, services[{position}]"
        service, problems = read_service(entry, where, f"{cluster.name}/", head, sources, present)
        messages += problems
        if service is None:
            continue
        name, port = service.name, service.port
        where = f"{where} ({name})"
        part, problems = clustering.part_of(cluster, service.hosts, where)
        messages += problems
        messages += clustering.check_service(part, service.args, service.env, service.nodes, service.recipe, where)
        # Also on hosts without a rank: the service is called by the cluster and its name.
        messages += [f"{where}: the name is taken on host {host}." for host in cluster.hosts if name in names[host]]
        if port in ports[part.head]:
            messages.append(
                f"{where}: port {port} is used on the head {part.head} already, by {ports[part.head][port]}."
            )
        ports[part.head][port] = str(name)
        for host_names in names.values():
            host_names.add(name)
        executor, reason, ray = _span(cluster, service, head)
        messages += clustering.check_replicas(part, service.args, executor, reason, where)
        if executor == "ray" and service.pip:
            messages.append(
                f"{where}: pip with the executor ray would install the packages on the head alone. Build an image that has "
                "them, or take the executor mp."
            )
        services.append(_Spanning(position, part, service, executor, reason, executor == "ray" and not ray))
    return services, messages


def _network_findings(network: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the findings about the network of a cluster; errors that the role fabric is about to repair become warnings.

    So does an MTU that differs: the role tests it and reports the lost packets itself.
    """
    actions = {host["action"] for host in ((network or {}).get("hosts") or {}).values()}
    repairs = bool(actions & set(fabric_layout.WRITES)) and "refuse" not in actions
    handled = {"fabric.mtu_differs", *(fabric.REPAIRED if repairs else ())}
    return [
        {**finding, "severity": "warning"}
        if finding["severity"] == "error" and finding["rule"] in handled
        else dict(finding)
        for finding in (network or {}).get("findings") or []
    ]


def _span(cluster: Cluster, service: ServiceSpec, head: Host) -> tuple[str, str, bool]:
    """Return executor, reason, and whether the image has Ray, by the head's image."""
    ref = service.image["ref"]
    on_host = head.images.get(ref) or {}
    probe = on_host.get("probe") or {}
    entry = image_catalogue.lookup(ref, head.settings["spark_image_catalogue"])
    version = (
        image_check.credible(probe.get("vllm_version"))
        or service.image.get("vllm_version")
        or image_check.credible(on_host.get("vllm_version"))
        or (entry or {}).get("vllm_version")
    )
    ray = clustering.has_ray(version, probe, entry)
    executor, reason = clustering.choose_executor(cluster, version, probe, ray)
    return executor, reason, ray


def _is_rank(service: ServiceSpec, cluster: Cluster) -> bool:
    return service.cluster is not None and service.cluster.name == cluster.name


def _solve_for_all_ranks(cluster: Cluster, hosts: dict[str, Host], sources: Sources) -> dict[str, Host]:
    """Solve open options once for all ranks, with the least value of their hosts. Returns the hosts with it."""
    ranks = [service for host in hosts.values() for service in host.services if _is_rank(service, cluster)]
    if all(map(_is_solved, ranks)):
        return hosts
    by_host: dict[str, list[dict[str, Any]]] = {}
    for host in hosts.values():
        placed = [place(host.settings, service, sources.digest) for service in host.services]
        launches = {spec.name: check_launch(host, spec) for spec in placed}
        request = budget_request(host, placed, launches)
        budget, _questions = image_questions.solve(request, placed, launches, host, sources)
        for service in host.services:
            if _is_rank(service, cluster):
                figures = budget["services"].get(service.name) or {}
                by_host.setdefault(service.name, []).append(solved_args(figures))
    least = {name: _least(rows) for name, rows in by_host.items()}
    return {
        name: replace(
            host,
            services=[
                replace(service, args={**service.args, **least[service.name]}, solved=least[service.name])
                if _is_rank(service, cluster)
                else service
                for service in host.services
            ],
        )
        for name, host in hosts.items()
    }


def _is_solved(rank: ServiceSpec) -> bool:
    return all(key in rank.args and not is_open(key, rank.args[key]) for key in SOLVED)


def _least(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the least value of each option that all hosts solve."""
    return {key: min(row[key] for row in rows) for key in SOLVED if all(row.get(key) is not None for row in rows)}


def join_ranks(
    cluster: Cluster, cluster_plan: dict[str, Any], sparks: Mapping[str, Host], planned: Mapping[str, PlannedHost]
) -> None:
    """Add the parts of a plan that need all ranks: the fingerprint of their launch, and findings about the cluster."""
    findings: list[dict[str, Any]] = list(cluster_plan.pop("findings"))
    solved = {service.name: service.solved for host in cluster.hosts for service in sparks[host].services}
    for row in cluster_plan["services"]:
        name = row["name"]
        ranks = {host: _named(planned[host].services, name) for host in row["hosts"]}
        mark = clustering.fingerprint([[host, to_dict(rank.settings.rank), rank.env] for host, rank in ranks.items()])
        for host, rank in ranks.items():
            settings = rank.settings.rank and replace(rank.settings.rank, fingerprint=mark)
            memory = {**rank.memory, "solved": sorted(solved[name])}
            joined = replace(rank, settings=replace(rank.settings, rank=settings), memory=memory)
            body = planned[host]
            body.services = [joined if service is rank else service for service in body.services]
        images = {host: to_dict(rank.image) for host, rank in ranks.items()}
        findings += [finding.to_dict() for finding in clustering.check_images(cluster, name, images)]
        findings.append(_span_finding(cluster, row, solved[name], ranks[row["hosts"][0]]).to_dict())
    planned[cluster.head].findings += findings
    verbs.join_states([planned[host].services for host in cluster.hosts])
    _join_combinations({host: planned[host] for host in cluster.hosts})
    for name in cluster.hosts:
        test = _collective(cluster, cluster_plan, sparks[name], planned)
        _join_host(cluster, sparks[name], planned[name], test)


def _join_host(cluster: Cluster, host: Host, body: PlannedHost, test: Mapping[str, Any] | None) -> None:
    """Add to the plan of a host its part in the cluster. test: of C(_collective)."""
    for service in host.services:
        if _is_rank(service, cluster):
            wrong = clustering.check_interfaces(service.name, service.env, host.measured, host.name)
            body.findings += [finding.to_dict() for finding in wrong]
    body.cluster = {
        "name": cluster.name,
        "hosts": cluster.hosts,
        "rank": cluster.hosts.index(host.name),
        "fabric": {**schema.defaults(clustering.FABRIC_KEYS), **cluster.fabric},
        "fabric_addresses": host.settings["spark_fabric_addresses"],
        "collective": test,
    }
    ignored = set(host.settings["spark_ignore_rules"])
    body.findings = [finding for finding in body.findings if finding["rule"] not in ignored]


def _named(services: Iterable[PlannedService], name: str) -> PlannedService:
    return next(service for service in services if service.name == name)


def _join_combinations(planned: Mapping[str, PlannedHost]) -> None:
    """Set the combinations of each on-demand set of a cluster's hosts to those that fit on all hosts of its services.

    Speech servers belong to their own host, whose combinations name them.
    """
    sets: dict[tuple[str, str], dict[str, list[PlannedService]]] = {}
    for host, body in planned.items():
        for service in body.services:
            if service.on_demand and service.on_demand.set:
                decides = service.cluster.head if service.cluster else host
                sets.setdefault((decides, service.on_demand.set), {}).setdefault(host, []).append(service)
    for (decides, name), by_host in sets.items():
        joined = on_demand.combinations_on_all_hosts(list(map(_members_and_combinations, by_host.values())))
        planned[decides].sets = {**(planned[decides].sets or {}), name: joined}
        for host, members in by_host.items():
            names = {member.name for member in members}
            planned[host].services = [
                replace(service, on_demand=replace(service.on_demand, combinations=joined))
                if service.on_demand and service.name in names
                else service
                for service in planned[host].services
            ]


def _members_and_combinations(members: Sequence[PlannedService]) -> tuple[list[str], Sequence[Sequence[str]]]:
    """Return the names in a set on one host, and the combinations that fit there."""
    fitting = members[0].on_demand.combinations if members[0].on_demand else ()
    return sorted({member.name for member in members}.union(*fitting)), fitting


def _collective(
    cluster: Cluster, cluster_plan: Mapping[str, Any], host: Host, planned: Mapping[str, PlannedHost]
) -> dict[str, Any] | None:
    """Return the network test in which a host participates before its engine starts, or None.

    C({service, host, hosts, topology, argv}), with the C(folders) and C(files) of the host that the container mounts.

    Its ranks follow the order of hosts in the group, which in a ring is the order of cables: groups of ranks of an engine may be neighbours
    though its ranks are in another order, and the test is one group of all.
    """
    states = {service.name: service.state for name in cluster.hosts for service in planned[name].services}
    rows = {row["name"]: row for row in cluster_plan["services"]}
    for chosen in collective.choose([{**row, "state": states[name]} for name, row in rows.items()]):
        hosts = rows[chosen]["hosts"]
        if host.name not in hosts:
            continue
        rank = _named(planned[host.name].services, chosen)
        placed = next(service for service in host.services if service.name == chosen and _is_rank(service, cluster))
        port = clustering.MASTER_PORT + (placed.cluster.position if placed.cluster else 0)
        first = cluster.hosts.index(hosts[0])
        order = [name for name in (*cluster.hosts[first:], *cluster.hosts[:first]) if name in hosts]
        topology = str((clustering.part_fabric(cluster_plan["fabric"], order) or {}).get("topology") or "")
        pairs = collective.cables(topology, len(order))
        argv = container_argv.collective_argv(host.settings, placed, rank, order.index(host.name), port, pairs)
        test = {"service": chosen, "host": host.name, "hosts": order, "topology": topology, "argv": argv}
        return {**test, **unit_files.controller_files(rank)}
    return None


def _span_finding(cluster: Cluster, row: Mapping[str, Any], solved: Mapping[str, Any], head: PlannedService) -> Finding:
    """Return a finding about the span of a service, with the options that were solved for all ranks. row: of the cluster's plan."""
    message = f"spans {', '.join(row['hosts'])} by the executor {row['executor']}: {row['reason']}."
    if head.ray_image:
        message += f" Its image has no Ray; one with Ray {cluster.ray_version} is built from it on each host."
    copies = clustering.replicas_of(head.args)
    if copies > 1:
        message += f" {copies} replicas: each has its own KV cache, and max-num-seqs is for each; the head gives each its requests."
    if solved:
        values = ", ".join(f"{key} {value}" for key, value in sorted(solved.items()))
        message += f" Worked out for all ranks: {values}."
    return Finding(
        rule="cluster.executor",
        severity="info",
        service=row["name"],
        message=message,
        fix="" if cluster.executor != "auto" else "Set executor in spark_cluster to use the other one.",
    )
