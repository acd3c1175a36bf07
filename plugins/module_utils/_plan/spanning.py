# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services of clusters: an engine over several hosts, one rank on each, planned as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._cluster import clustering, collective, fabric, fabric_layout
from .._cluster.clustering import Cluster, Span
from .._common import schema
from .._common.findings import Finding
from .._vllm import image_catalogue
from . import container_argv, image_check, image_questions, on_demand, unit_files, verbs
from .inventory import claims, read_service
from .judging import SOLVED, budget_request, check_launch, is_open, solved_args
from .planned import PlannedHost, PlannedService, plain
from .service import Host, PlacedService, ServiceSpec, Sources
from .service_files import place

ALIKE = ("spark_defaults", "spark_hf_home", "spark_cache_dir", "spark_recipe_dirs", "spark_recipe_sources")
"""What ranks of one engine must agree in beside the launch itself."""


@dataclass(frozen=True)
class _Spanning:
    """A service of a cluster: its position there, the hosts that it spans, by which executor and why, whether its image lacks Ray for
    that."""

    position: int
    cluster: Cluster
    service: ServiceSpec
    executor: str
    reason: str
    needs_ray: bool


def plan_cluster(
    cluster: Cluster, sparks: Mapping[str, Host], sources: Sources, messages: list[str]
) -> tuple[dict[str, Any], dict[str, Host]]:
    """Give each host of a cluster its ranks, beside the services of its own.

    :param cluster: as it is read
    :param sparks: all Sparks, by name
    :param sources: recipes, lock file and what else the plan is made from
    :param messages: takes what is wrong
    :returns: what concerns the cluster as a whole, and its hosts with their ranks
    """
    hosts = {name: sparks[name] for name in cluster.hosts}
    wrong = _differing_settings(cluster, hosts)
    done = next((host.fabric for host in hosts.values() if host.fabric), None)
    network = clustering.plan_fabric(
        cluster,
        {name: host.measured for name, host in hosts.items()},
        {name: host.settings["spark_fabric_addresses"] for name, host in hosts.items()},
        done,
    )
    services, refused = _read_services(cluster, hosts, sources)
    wrong += refused
    ranks: dict[str, list[PlacedService]] = {name: [] for name in cluster.hosts}
    networks = [clustering.part_fabric(network, each.cluster.hosts) for each in services]
    for each, own in zip(services, networks):
        for rank, name in enumerate(each.cluster.hosts):
            span, environment = clustering.span_of(each.cluster, each.position, rank, each.executor, own)
            ranks[name].append(_rank(each.service, span, environment, rank, each.needs_ray))
    hosts = {name: _with_ranks(host, ranks[name]) for name, host in hosts.items()}
    if services and not refused:
        wrong += [
            f"cluster {cluster.name}: no service spans {name}. Name it in 'hosts' of one, give it spark_services, or take it out of the group."
            for name, host in hosts.items()
            if not host.services and not host.settings["spark_services"]
        ]
    for name, host in hosts.items():
        wrong += [
            text
            for text in on_demand.check_ranks(name, [*host.services, *on_demand.servers(host.settings["beside"])])
            if text not in messages
        ]
    messages += wrong
    if not wrong:
        hosts = _solve_for_all_ranks(cluster, hosts, sources)
    whole = {
        "hosts": cluster.hosts,
        "head": cluster.head,
        "services": [
            {
                "name": each.service.name,
                "executor": each.executor,
                "reason": each.reason,
                "hosts": list(each.cluster.hosts),
            }
            for each in services
        ],
        "fabric": network,
        "settings": dict(cluster.fabric),
        "findings": _network_findings(network)
        + [
            finding.to_dict()
            for each, own in zip(services, networks)
            for finding in clustering.check_reach(each.cluster, each.service.name, each.service.args, own)
        ],
    }
    return whole, hosts


def _with_ranks(host: Host, ranks: Sequence[PlacedService]) -> Host:
    """Return a host of a cluster with its ranks, beside the services of its own."""
    services = [*host.services, *ranks]
    beside = on_demand.with_proxy(host.settings["beside"], services)
    return replace(host, services=services, settings={**host.settings, "beside": beside})


def _rank(
    service: ServiceSpec, span: Span, environment: Mapping[str, str], rank: int, needs_ray: bool
) -> PlacedService:
    """Return a service of a cluster as one of its hosts runs it. environment: what the network of that host asks for."""
    return service.placed(
        args=clustering.rank_args(span, rank, service.args),
        env={**environment, **service.env},
        secrets={key: path for key, path in service.secrets.items() if not rank or key != "VLLM_API_KEY"},
        nodes=span.size,
        rank=rank,
        cluster=span,
        needs_ray=needs_ray,
    )


def _read_services(cluster: Cluster, hosts: Mapping[str, Host], sources: Sources) -> tuple[list[_Spanning], list[str]]:
    """Return the services of a cluster, and all that is wrong with them."""
    head = hosts[cluster.head]
    present = set.intersection(
        *({ref for ref, image in host.images.items() if image.get("present")} for host in hosts.values())
    )
    names = {name: {taken for taken, _port in claims(host)} for name, host in hosts.items()}
    ports = {name: {port: str(taken) for taken, port in claims(host)} for name, host in hosts.items()}
    services: list[_Spanning] = []
    messages: list[str] = []
    for position, entry in enumerate(cluster.entries):
        where = f"cluster {cluster.name}, services[{position}]"
        service, wrong = read_service(entry, where, f"{cluster.name}/", head, sources, present)
        messages += wrong
        if service is None:
            continue
        name, port = service.name, service.port
        where = f"{where} ({name})"
        own, wrong = clustering.part_of(cluster, service.hosts, where)
        messages += wrong
        messages += clustering.check_service(own, service.args, service.env, service.nodes, service.recipe, where)
        # Also where the service has no rank: people call it by the cluster and its name.
        messages += [f"{where}: the name is taken on host {host}." for host in cluster.hosts if name in names[host]]
        if port in ports[own.head]:
            messages.append(f"{where}: port {port} is used on the head {own.head} already, by {ports[own.head][port]}.")
        ports[own.head][port] = str(name)
        for taken in names.values():
            taken.add(name)
        executor, reason, ray = _span(cluster, service, head)
        messages += clustering.check_replicas(own, service.args, executor, reason, where)
        if executor == "ray" and service.pip:
            messages.append(
                f"{where}: pip with the executor ray would install the packages on the head alone. Build an image that has "
                "them, or take the executor mp."
            )
        services.append(_Spanning(position, own, service, executor, reason, executor == "ray" and not ray))
    return services, messages


def _network_findings(network: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return what is wrong with the network of a cluster.

    What the role fabric is about to repair is no error. An MTU that differs it refuses itself: it tries it out and can say
    what gets lost.
    """
    actions = {own["action"] for own in ((network or {}).get("hosts") or {}).values()}
    repairs = bool(actions & set(fabric_layout.WRITES)) and "refuse" not in actions
    return [
        {**finding, "severity": "warning"}
        if finding["severity"] == "error"
        and (finding["rule"] == "fabric.mtu_differs" or (repairs and finding["rule"] in fabric.REPAIRED))
        else dict(finding)
        for finding in (network or {}).get("findings") or []
    ]


def _differing_settings(cluster: Cluster, hosts: Mapping[str, Host]) -> list[str]:
    """Return where hosts of a cluster differ in what its ranks must agree in."""
    head = hosts[cluster.head]
    return [
        f"cluster {cluster.name}: {name} of host {host} differs from that of {cluster.head}; ranks of one engine need the "
        "same. Set it on the group."
        for name in ALIKE
        for host in cluster.hosts[1:]
        if hosts[host].settings[name] != head.settings[name]
    ]


def _span(cluster: Cluster, service: ServiceSpec, head: Host) -> tuple[str, str, bool]:
    """Decide on the executor by the head's image: C((executor, why, whether the image has Ray))."""
    ref = service.image["ref"]
    there = head.images.get(ref) or {}
    probe = there.get("probe") or {}
    entry = image_catalogue.lookup(ref, head.settings["spark_image_catalogue"])
    version = (
        image_check.credible(probe.get("vllm_version"))
        or service.image.get("vllm_version")
        or image_check.credible(there.get("vllm_version"))
        or (entry or {}).get("vllm_version")
    )
    ray = clustering.has_ray(version, probe, entry)
    executor, reason = clustering.choose_executor(cluster, version, probe, ray)
    return executor, reason, ray


def _is_rank(service: PlacedService, cluster: Cluster) -> bool:
    return service.cluster is not None and service.cluster.name == cluster.name


def _solve_for_all_ranks(cluster: Cluster, hosts: dict[str, Host], sources: Sources) -> dict[str, Host]:
    """Work out what ranks left open once for all of them: the least that any of their hosts has for it. Returns the hosts with it."""
    if all(
        key in service.args and not is_open(key, service.args[key])
        for host in hosts.values()
        for service in host.services
        if _is_rank(service, cluster)
        for key in SOLVED
    ):
        return hosts
    found: dict[str, list[dict[str, Any]]] = {}
    for host in hosts.values():
        placed = [place(host.settings, service, sources.digest) for service in host.services]
        launches = {
            service.name: check_launch(service, host.settings, host.measured, host.images) for service in placed
        }
        request = budget_request(host.settings, placed, launches, host.measured)
        budget = image_questions.solve(request, placed, launches, host, sources)[0]["services"]
        for service in host.services:
            if _is_rank(service, cluster):
                found.setdefault(service.name, []).append(solved_args(budget.get(service.name) or {}))
    least = {
        name: {
            key: min(each[key] for each in every) for key in SOLVED if all(each.get(key) is not None for each in every)
        }
        for name, every in found.items()
    }
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


def join_ranks(
    cluster: Cluster, whole: dict[str, Any], sparks: Mapping[str, Host], planned: Mapping[str, PlannedHost]
) -> None:
    """Put in what needs all ranks: the mark of what they run, and what is wrong with them as a whole.

    :param cluster: as it is read
    :param whole: what concerns it as a whole, which is added to
    :param sparks: all Sparks, by name
    :param planned: the Sparks' part of the plan, which is added to
    """
    findings: list[dict[str, Any]] = list(whole.pop("findings"))
    solved = {service.name: service.solved for host in cluster.hosts for service in sparks[host].services}
    for about in whole["services"]:
        name = about["name"]
        ranks = {
            host: next(service for service in planned[host].services if service.name == name) for host in about["hosts"]
        }
        mark = clustering.fingerprint([[host, plain(rank.settings.rank), rank.env] for host, rank in ranks.items()])
        for host, rank in ranks.items():
            joined = _joined(rank, mark, sorted(solved[name]))
            body = planned[host]
            body.services = [joined if each is rank else each for each in body.services]
        images = {host: plain(rank.image) for host, rank in ranks.items()}
        found = clustering.check_images(cluster, name, images)
        findings += [finding.to_dict() for finding in found]
        findings.append(_span_finding(cluster, about, solved[name], ranks[about["hosts"][0]]).to_dict())
    planned[cluster.head].findings += findings
    verbs.join_states([planned[host].services for host in cluster.hosts])
    _join_combinations({host: planned[host] for host in cluster.hosts})
    for name in cluster.hosts:
        test = _collective(cluster, whole, sparks[name], planned)
        _join_host(cluster, sparks[name], planned[name], test)


def _join_combinations(planned: Mapping[str, PlannedHost]) -> None:
    """Have each set on demand hold what fits on all hosts that its services span. planned: the hosts of a cluster; they are added to.

    Speech servers are of their own host, whose combinations name them.
    """
    sets: dict[tuple[str, str], dict[str, list[PlannedService]]] = {}
    for host, body in planned.items():
        for service in body.services:
            if service.on_demand and service.on_demand.set:
                decides = service.cluster.head if service.cluster else host
                sets.setdefault((decides, service.on_demand.set), {}).setdefault(host, []).append(service)
    for (decides, name), by_host in sets.items():
        parts = []
        for there in by_host.values():
            fitting = there[0].on_demand.combinations if there[0].on_demand else ()
            parts.append((sorted({each.name for each in there}.union(*fitting)), fitting))
        joined = on_demand.fitting_everywhere(parts)
        planned[decides].sets = {**(planned[decides].sets or {}), name: joined}
        for host, there in by_host.items():
            names = {each.name for each in there}
            planned[host].services = [
                replace(each, on_demand=replace(each.on_demand, combinations=joined))
                if each.on_demand and each.name in names
                else each
                for each in planned[host].services
            ]


def _collective(
    cluster: Cluster, whole: Mapping[str, Any], host: Host, planned: Mapping[str, PlannedHost]
) -> dict[str, Any] | None:
    """Return the test of the network that a host takes part in before its engine starts, None for no test.

    C({service, host, hosts, topology, argv}), with the C(folders) and C(files) of the host that the container is shown.

    Its ranks go as the group lists the hosts, which in a ring is the way of the cables: groups of ranks of an engine may be neighbours
    though its ranks are in another order, and the test is one group of all.
    """
    state = {service.name: service.state for name in cluster.hosts for service in planned[name].services}
    known = [{**about, "state": state[about["name"]]} for about in whole["services"]]
    for chosen in collective.choose(known):
        about = next(each for each in whole["services"] if each["name"] == chosen)
        if host.name in about["hosts"]:
            rank = next(each for each in planned[host.name].services if each.name == chosen)
            own = next(each for each in host.services if each.name == chosen and _is_rank(each, cluster))
            port = clustering.MASTER_PORT + (own.cluster.position if own.cluster else 0)
            first = cluster.hosts.index(about["hosts"][0])
            order = [name for name in (*cluster.hosts[first:], *cluster.hosts[:first]) if name in about["hosts"]]
            topology = str((clustering.part_fabric(whole["fabric"], order) or {}).get("topology") or "")
            pairs = collective.cables(topology, len(order))
            argv = container_argv.collective_argv(host.settings, own, rank, order.index(host.name), port, pairs)
            test = {"service": chosen, "host": host.name, "hosts": order, "topology": topology, "argv": argv}
            return {**test, **unit_files.given(rank)}
    return None


def _joined(service: PlannedService, mark: str, solved: Sequence[str]) -> PlannedService:
    """Return a rank with the mark of what all ranks run, and the options that were worked out for all of them."""
    rank = service.settings.rank and replace(service.settings.rank, fingerprint=mark)
    settings = replace(service.settings, rank=rank)
    return replace(service, settings=settings, memory={**service.memory, "solved": solved})


def _join_host(cluster: Cluster, host: Host, body: PlannedHost, test: Mapping[str, Any] | None) -> None:
    """Put into the plan of a host what it is to its cluster. test: of C(_collective)."""
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


def _span_finding(
    cluster: Cluster, about: Mapping[str, Any], solved: Mapping[str, Any], head: PlannedService
) -> Finding:
    """Say how a service spans its hosts, and what was worked out for all of its ranks."""
    message = f"spans {', '.join(about['hosts'])} by the executor {about['executor']}: {about['reason']}."
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
        service=about["name"],
        message=message,
        fix="" if cluster.executor != "auto" else "Set executor in spark_cluster to use the other one.",
    )
