# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters: several Sparks that serve one model, one rank each: what C(spark_cluster) says, and what follows for a rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import Any

from .._common import component_versions, reader, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._vllm import launch, versions
from . import engine_env, fabric, fabric_layout
from .engine_env import Place

_FABRIC = fabric_layout.Settings()
FABRIC_KEYS: dict[str, Key] = {
    "network": Key(
        str,
        _FABRIC.network,
        "IPv4 network for the subnets of new addresses, one subnet per rail",
    ),
    "subnets": Key(list, [], "subnets to use instead, in the order of the rails"),
    "first_host": Key(
        int, _FABRIC.first_host, "host number of the group's first host in each subnet", least=1, most=65000
    ),
    "mtu": Key(
        int, _FABRIC.mtu, "MTU of all QSFP interfaces", least=fabric_layout.LEAST_MTU, most=fabric_layout.MOST_MTU
    ),
    "migrate": Key(
        bool,
        _FABRIC.migrate,
        "repair a wrong network that this role did not set up; a working one is always adopted",
    ),
    "relay": Key(
        bool,
        _FABRIC.relay,
        "in a ring of four or more, let hosts forward packets between hosts without a common cable; engines need it only without another common network",
    ),
    "topology": Key(
        str,
        _FABRIC.topology,
        "cabling, if it cannot be probed",
        choices=fabric_layout.TOPOLOGIES,
    ),
    "probe_seconds": Key(int, 6, "seconds that hosts listen for each other", least=1, most=600, unit="seconds"),
    "revert_seconds": Key(
        int, 90, "seconds after which a change is undone unless the host answers", least=10, most=3600, unit="seconds"
    ),
    "firewall": Key(bool, True, "open an active ufw for the fabric"),
    "bandwidth": Key(
        bool,
        True,
        "measure rails with `ib_write_bw` or `iperf3`, and run an all-reduce before an engine starts",
    ),
    "min_gbps": Key(
        dict,
        {"ib_write_bw": 80, "iperf3": 20, "all_reduce": 80},
        "Gb/s below which a measurement is a warning",
    ),
}
"""Keys of C(spark_cluster.fabric), and variables of the role fabric with its prefix."""
FABRIC_FORM = reader.facts({"subnets": [str], "min_gbps": {str: float}})
"""What lists and mappings among them hold."""
RAY_VERSION = component_versions.RAY.version
"""The Ray that this collection is tested with; vLLM asked for 2.48 or newer as long as it asked for Ray, and states no end."""
PEER_TIMEOUT = 45
"""Longer than a cable needs to be put back, or a switch to come up; NCCL gives up after about 30 s."""
CLUSTER_KEYS: dict[str, Key] = {
    "name": Key(str, None, "inventory group with the cluster's hosts"),
    "head": Key(str, None, "host that answers requests; default: the first of the group"),
    "executor": Key(
        str,
        "auto",
        "`mp` (vLLM's own), `ray`, or `auto`: `mp` if that vLLM has it",
        choices=("auto", "mp", "ray"),
    ),
    "services": Key(list, [], "services of the cluster in start order; keys as in `spark_services`"),
    "fabric": Key(
        dict,
        {},
        "the network, see below; keys of the role [fabric](../roles/fabric/README.md) without their prefix",
    ),
    "peer_timeout": Key(
        NUMBER,
        PEER_TIMEOUT,
        "seconds without a sign of another rank until the engine is stopped",
        least=5,
        most=86400,
        unit="seconds",
    ),
    "ray_version": Key(str, RAY_VERSION, "Ray version to add to images without Ray, for the executor `ray`"),
}
"""Keys of C(spark_cluster)."""
PORTS = 29450
"""First UDP port of the ranks' supervisors; a service of a cluster takes the next."""
MASTER_PORT = 29501
"""vLLM's default of C(--master-port); a service of a cluster takes the next."""
REPLICAS_PORT = 29550
"""vLLM's default of C(--data-parallel-rpc-port), where replicas find the head. All other ports of replicas the kernel gives."""
REPLICAS = "data-parallel-size"
"""The option that says how many replicas of an engine there are."""
OWNED_ARGS = {
    "nnodes": "the number of the cluster's hosts",
    "node-rank": "the place of each host in the cluster",
    "master-addr": "the head's address on the fabric",
    "master-port": "chosen for each service of the cluster",
    "headless": "set for all ranks but the first",
    "distributed-executor-backend": "spark_cluster.executor",
    "data-parallel-size-local": "one, as a Spark has one GPU",
    "data-parallel-start-rank": "the place of each host in the cluster",
    "data-parallel-address": "the head's address on the fabric",
    "data-parallel-rpc-port": "chosen for each service of the cluster",
}
"""Options of vLLM that the cluster sets, with what sets them."""
MOST_REPORTED = 4
"""Hosts of the largest ring that somebody has written about."""
_RINGS = ("", "allgather_reducescatter", "naive")
"""Ways of vLLM's to share experts out, C(all2all-backend), that go round in NCCL's rings; the first is its own choice."""
INTERFACES = {
    "NCCL_SOCKET_IFNAME": "netdev",
    "GLOO_SOCKET_IFNAME": "netdev",
    "TP_SOCKET_IFNAME": "netdev",
    "OMPI_MCA_btl_tcp_if_include": "netdev",
    "NCCL_IB_HCA": "rdma",
}
"""Variables that name interfaces of a host, and of which kind."""


@dataclass
class Cluster:
    """One cluster: its hosts with the head first, its executor, and its services from the inventory."""

    name: str
    hosts: list[str]
    executor: str
    entries: list[Any]
    ray_version: str = RAY_VERSION
    peer_timeout: float = PEER_TIMEOUT
    fabric: dict[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """The host that answers requests."""
        return self.hosts[0]

    @property
    def size(self) -> int:
        """How many hosts there are."""
        return len(self.hosts)

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"cluster {self.name}"


@dataclass(frozen=True)
class Span:
    """What one rank of a service knows of its cluster.

    size: hosts of the cluster. head: the host that answers requests. position: of the service in the cluster, from 0. address: of this host
    on the fabric; addresses: of all. per_host: variables that differ from host to host. peer_timeout: seconds. links: interfaces by which
    this host sends to its neighbours in a ring, C(netdev) and C(host).
    """

    name: str
    size: int
    head: str
    hosts: Sequence[str]
    executor: str
    position: int
    address: str
    addresses: Mapping[str, str]
    per_host: Sequence[str]
    peer_timeout: float
    ray_version: str
    links: Sequence[Mapping[str, str]] = ()


def read_clusters(
    host_variables: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Cluster], list[str]]:
    """Read the clusters of all hosts.

    host_variables: host to its C(spark_cluster), an empty mapping without one. groups: of the inventory, in its order.
    Returns the clusters by name, and everything that is wrong with them.
    """
    messages: list[str] = []
    clusters: dict[str, Cluster] = {}
    for host, body in host_variables.items():
        if not body:
            continue
        name = body.get("name")
        if not isinstance(name, str) or name not in groups:
            hint = validation.nearest(str(name), groups) if name else "."
            is_what = "missing" if name is None else repr(name)
            messages.append(
                f"host {host}, spark_cluster: 'name' is {is_what}; it must be the group of the inventory with the cluster's hosts{hint}"
            )
        elif name not in clusters:
            clusters[name], wrong = _read_cluster(name, body, list(groups[name]), host_variables)
            messages += wrong
        if isinstance(name, str) and name in groups and host not in groups[name]:
            messages.append(
                f"host {host}, spark_cluster: its name is {name}, a group that this host is not in. "
                "Set spark_cluster in the variables of the group."
            )
    return clusters, messages


def _read_cluster(
    name: str, body: Mapping[str, Any], hosts: list[str], host_variables: Mapping[str, Mapping[str, Any]]
) -> tuple[Cluster, list[str]]:
    problems = validation.Problems(f"cluster {name}")
    settings = schema.filled(problems, body, CLUSTER_KEYS)
    for host in hosts:
        if host not in host_variables:
            problems.add(f"host {host} of the group is not in the group of the Sparks.")
        elif host_variables[host] != body:
            problems.add(
                f"spark_cluster of host {host} differs from the other hosts. Set it once, in the variables of the group."
            )
    if len(hosts) < 2:
        problems.add(f"the group has {len(hosts)} host; a cluster has two or more. Use spark_services on one Spark.")
    head = settings["head"]
    if head is not None and head not in hosts:
        problems.add(f"'head' is {head!r}, which is not one of its hosts ({', '.join(hosts)}).")
    elif head is not None:
        hosts = [head, *(host for host in hosts if host != head)]
    fabric_settings = schema.read(problems, settings["fabric"], FABRIC_KEYS, "fabric.")
    wrong = reader.problems(FABRIC_FORM, fabric_settings, "fabric")
    wrong = wrong or [f"fabric: {text}" for text in fabric_layout.check_settings(_settings(fabric_settings))]
    problems.messages += [f"{problems.where}, {text}." for text in wrong]
    version = settings["ray_version"]
    if versions.parse_version(version) is None:
        problems.add(f"'ray_version' is {version!r}; it must be a release of Ray, for example {RAY_VERSION}.")
    cluster = Cluster(
        name,
        hosts,
        settings["executor"],
        settings["services"],
        version,
        settings["peer_timeout"],
        fabric_settings,
    )
    return cluster, problems.messages


def _settings(content: Mapping[str, Any]) -> fabric_layout.Settings:
    chosen = {field.name: content[field.name] for field in fields(fabric_layout.Settings) if field.name in content}
    if "subnets" in chosen:
        chosen["subnets"] = tuple(chosen["subnets"])
    return fabric_layout.Settings(**chosen)


def part_of(cluster: Cluster, hosts: Sequence[str], where: str) -> tuple[Cluster, list[str]]:
    """Return a cluster with the hosts that one of its services spans. hosts: as the service names them, the first answers; empty for all."""
    if not hosts:
        return cluster, []
    strange = [host for host in hosts if host not in cluster.hosts]
    if strange:
        return cluster, [
            f"{where}: 'hosts' names {', '.join(strange)}, which the cluster does not have. It has {', '.join(cluster.hosts)}."
        ]
    if len(set(hosts)) != len(hosts) or len(hosts) < 2:
        return cluster, [
            f"{where}: 'hosts' is {', '.join(hosts)}; it must be two or more hosts of the cluster, each once. "
            "A service of one host stands in its spark_services."
        ]
    return replace(cluster, hosts=list(hosts)), []


def part_fabric(planned: Mapping[str, Any] | None, hosts: Sequence[str]) -> dict[str, Any] | None:
    """Return the network of a part of a cluster.

    Two neighbours of a ring are a pair on the cable between them: the other cables lead to hosts without a rank. Other parts
    of a ring stay a ring with missing cables, which C(check_reach) refuses.

    :param planned: of C(plan_fabric)
    :param hosts: of the part, the first answers
    :returns: C({topology, rails, hosts}); None as long as the hosts' facts are unknown
    """
    if not planned or not set(hosts) < set(planned["hosts"]):
        return dict(planned) if planned else None
    rails = [rail for rail in planned["rails"] if set(rail["ends"]) <= set(hosts)]
    topology = str(planned["topology"])
    paired = topology == "ring" and len(hosts) == 2 and bool(rails)
    if topology != "ring":
        rails = list(planned["rails"])
    topology = "direct" if paired else topology
    names = {rail["name"] for rail in rails}
    parts = {}
    for host in hosts:
        host_plan = planned["hosts"][host]
        place = _place_on(host_plan, names, paired)
        parts[host] = {
            **host_plan,
            "netdev": place.netdev,
            "address": place.address,
            "environment": engine_env.environment(place, topology, len(hosts)),
        }
    return {**planned, "topology": topology, "rails": rails, "hosts": parts}


def _place_on(host_plan: Mapping[str, Any], rail_names: set[str], paired: bool) -> Place:
    """Return the address of a host on some rails. paired: the rails are one cable of a ring."""
    rails = [rail for rail in host_plan["rails"] if rail["name"] in rail_names]
    active = str(host_plan["environment"].get("mp", {}).get("NCCL_IB_HCA") or "").split(",")
    devices = tuple(str(rail["rdma"]) for rail in rails if rail["rdma"] in active)
    if paired and host_plan["address"]:
        return Place(rails[0]["netdev"], str(rails[0]["address"]).partition("/")[0], devices)
    return Place(host_plan["netdev"], host_plan["address"], devices)


def plan_fabric(
    cluster: Cluster,
    measured: Mapping[str, Mapping[str, Any] | None],
    addresses: Mapping[str, Mapping[str, str]],
    done: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Return the plan of the cluster's network, None as long as the hosts' facts are unknown.

    :param measured: host to C(spark) of M(dgxspark.vllm.spark_info), None if unknown
    :param addresses: host to netdev to CIDR, of the inventory
    :param done: the plan of the role fabric in this run, which has listened on the cables and takes precedence
    """
    if done:
        return dict(done)
    entries = {}
    for host in cluster.hosts:
        facts = measured.get(host) or {}
        if not isinstance(facts.get("fabric"), Mapping):
            return None
        entries[host] = {
            "fabric": facts["fabric"],
            "management_address": facts.get("management_address"),
            "addresses": dict(addresses.get(host) or {}),
        }
    return fabric.plan(entries, _settings(cluster.fabric))


def choose_executor(
    cluster: Cluster, version: str | None, probe: Mapping[str, Any], ray: bool | None
) -> tuple[str, str]:
    """Decide how vLLM spans the hosts: C(ray) or C(mp), and why."""
    parsed_version = versions.parse_version(version or "")
    options = probe.get("options") or []
    without = (parsed_version is not None and parsed_version < versions.version("0.11.1")) or (
        bool(options) and "nnodes" not in options
    )
    if cluster.executor != "auto":
        return cluster.executor, "as spark_cluster says"
    if without:
        return "ray", f"vLLM {version or 'of the image'} cannot span hosts by itself"
    reason = f"vLLM {version} spans hosts by itself, with less memory than Ray takes" if version else "vLLM's own way"
    return "mp", reason + ("" if ray is not False else "; the image has no Ray")


def has_ray(version: str | None, probe: Mapping[str, Any], entry: Mapping[str, Any] | None) -> bool:
    """Return whether an image has Ray: by its own facts, by the catalogue, else by the requirements of its vLLM.

    Sources: the requirements of the packages, which have no Ray from 0.18.0 on.
    """
    if probe.get("packages"):
        return bool(probe.get("ray"))
    if entry and entry.get("ray") is not None:
        return bool(entry["ray"])
    parsed_version = versions.parse_version(version or "")
    return parsed_version is not None and parsed_version < versions.version("0.18.0")


def check_service(
    cluster: Cluster, args: Mapping[str, Any], env: Mapping[str, str], nodes: int, recipe: str | None, where: str
) -> list[str]:
    """Return messages about errors of a service that only a cluster can have."""
    messages = []
    for option, owner in OWNED_ARGS.items():
        if option in args:
            messages.append(f"{where}: args names '{option}', which is the cluster's to say ({owner}). Remove it.")
    if "VLLM_HOST_IP" in env:
        messages.append(
            f"{where}: env names VLLM_HOST_IP, which differs from host to host and is set on each. Remove it."
        )
    further = sorted(
        option for option in args if option.startswith("data-parallel-") and option not in (REPLICAS, *OWNED_ARGS)
    )
    if further:
        named = "', '".join(further)
        messages.append(
            f"{where}: args names '{named}'. Replicas of a cluster come from data-parallel-size with vLLM's own executor, and the head node "
            "distributes the requests; other backends and balancers are not supported. Remove it, or serve the model on each Spark "
            "(spark_services) behind one spark_gateway."
        )
    if nodes > cluster.size:
        messages.append(f"{where}: recipe {recipe} needs {nodes} Sparks, the cluster has {cluster.size}.")
    return messages


def replicas_of(args: Mapping[str, Any]) -> int:
    """Return how many replicas of an engine there are.

    :returns: C(data-parallel-size) as vLLM reads it; 1 if left out or no whole number, which is refused elsewhere
    """
    copies = launch.parse({REPLICAS: args.get(REPLICAS, 1)}).args.get(REPLICAS)
    return copies if isinstance(copies, int) and not isinstance(copies, bool) and copies > 1 else 1


def check_replicas(cluster: Cluster, args: Mapping[str, Any], executor: str, reason: str, where: str) -> list[str]:
    """Return messages about the replicas of a service. executor: C(ray) or C(mp)."""
    copies = replicas_of(args)
    if copies == 1:
        return []
    if executor == "ray":
        return [
            f"{where}: data-parallel-size {copies} with the executor ray ({reason}): Ray chooses the host of each replica, so ranks are not known "
            "in advance. Use executor: mp and an image with vLLM 0.11.1 or newer."
        ]
    split = _whole_split(cluster.size, args)
    ranks = split["tensor-parallel-size"] * split["pipeline-parallel-size"]
    if copies * ranks == cluster.size:
        return []
    size_note = "" if ranks == 1 else f" of {ranks} GPUs each"
    fits = cluster.size // copies
    fix = (
        f"Make tensor-parallel-size x pipeline-parallel-size {fits}"
        if fits and cluster.size % copies == 0
        else f"Make data-parallel-size x tensor-parallel-size x pipeline-parallel-size {cluster.size}"
    )
    return [
        f"{where}: data-parallel-size {copies} is {copies} replicas{size_note}, {copies * ranks} Sparks in all; it spans {cluster.size}. {fix}, or "
        f"name {copies * ranks} hosts in 'hosts'."
    ]


def _whole_split(size: int, args: Mapping[str, Any]) -> dict[str, int]:
    """Return how the model of each replica is split: as the launch says, else by tensors over the hosts that a replica has. size: hosts."""
    copies = replicas_of(args)
    read = launch.parse(args).args
    sizes = {key: read.get(key) for key in ("tensor-parallel-size", "pipeline-parallel-size")}
    if all(value is None for value in sizes.values()):
        return {"tensor-parallel-size": max(size // copies, 1), "pipeline-parallel-size": 1}
    return {key: value if isinstance(value, int) and value > 0 else 1 for key, value in sizes.items()}


def span_of(
    cluster: Cluster, position: int, rank: int, executor: str, planned: Mapping[str, Any] | None
) -> tuple[Span, dict[str, str]]:
    """Return what one rank knows of its cluster, and the environment that its host's network asks for.

    :param position: of the service in the cluster, from 0
    :param rank: of the host, 0 is the head
    :param executor: C(ray) or C(mp)
    :param planned: of C(plan_fabric); until it is known hosts stand for their addresses
    """
    host = cluster.hosts[rank]
    environment = (((planned or {}).get("hosts") or {}).get(host) or {}).get("environment") or {}
    span = Span(
        name=cluster.name,
        size=cluster.size,
        head=cluster.head,
        hosts=list(cluster.hosts),
        executor=executor,
        position=position,
        address=address_of(host, planned),
        addresses={other: address_of(other, planned) for other in cluster.hosts},
        per_host=list(environment.get("per_host") or []),
        peer_timeout=cluster.peer_timeout,
        ray_version=cluster.ray_version,
        links=ring_links(host, planned),
    )
    return span, environment.get(executor) or {}


def ring_links(host: str, planned: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """Return C([{netdev, host}]) of the interfaces that a host of a ring sends through, which supervisors do not notice; else nothing."""
    if (planned or {}).get("topology") != "ring":
        return []
    return [
        {"netdev": str(rail["ends"][host]["netdev"]), "host": other}
        for rail in (planned or {}).get("rails") or []
        if (rail["ends"].get(host) or {}).get("netdev")
        for other in rail["ends"]
        if other != host
    ]


def spanning_args(
    args: Mapping[str, Any], executor: str, rank: int, size: int, head: str, position: int = 0
) -> dict[str, Any]:
    """Return the options of a launch as one of several hosts runs it.

    :param executor: C(ray) or C(mp)
    :param rank: of the host, 0 is the head
    :param position: of the service in the cluster, from 0, which its ports follow from
    """
    result = dict(args)
    split = _whole_split(size, args)
    if "tensor-parallel-size" not in result and "pipeline-parallel-size" not in result:
        result["tensor-parallel-size"] = split["tensor-parallel-size"]
    result["distributed-executor-backend"] = executor
    if executor != "mp":
        return result
    copies = replicas_of(args)
    spread = {"nnodes": size, "node-rank": rank, "master-addr": head, "master-port": MASTER_PORT + position}
    if copies > 1:
        result.update(
            {
                "data-parallel-size-local": 1,
                "data-parallel-address": head,
                "data-parallel-rpc-port": REPLICAS_PORT + position,
            }
        )
        if rank:
            result.pop("api-server-count", None)
        else:
            # vLLM's own choice is one process for each replica, all on the head, whose memory they share with its engine.
            result.setdefault("api-server-count", 1)
    if copies == 1 or split["tensor-parallel-size"] * split["pipeline-parallel-size"] > 1:
        result.update(spread)  # vLLM works out which replica a node belongs to
    elif rank:
        result["data-parallel-start-rank"] = rank
    if rank:
        result["headless"] = True
    return result


def address_of(host: str, planned: Mapping[str, Any] | None) -> str:
    """Return the address of a host on the fabric, or its name if that is unknown."""
    host_plan = ((planned or {}).get("hosts") or {}).get(host) or {}
    return str(host_plan.get("address") or host)


def check_interfaces(
    name: str, env: Mapping[str, str], facts: Mapping[str, Any] | None, host: str
) -> Iterator[Finding]:
    """Find variables of a service that name missing interfaces of the host. facts: C(spark) of M(dgxspark.vllm.spark_info), None if unknown."""
    links = (facts or {}).get("fabric") or {}
    interfaces = [interface for port in links.get("ports") or [] for interface in port["netdevs"]]
    present = {
        "netdev": [str(interface["name"]) for interface in interfaces] + sorted(links.get("networks") or {}),
        "rdma": [str(interface["rdma"]["name"]) for interface in interfaces if interface.get("rdma")],
    }
    for variable, kind in INTERFACES.items() if links else ():
        value = str(env.get(variable) or "")
        missing = _missing_interfaces(value, present[kind])
        if missing:
            noun = {"netdev": "network interface", "rdma": "RDMA device"}[kind]
            has = ", ".join(dict.fromkeys(present[kind])) or "none"
            message = f"env {variable} is {value}, but {host} has no {noun} {', '.join(missing)}; it has {has}."
            fix = f"Remove {variable} from env: each host gets the interface of its cable."
            yield Finding("cluster.interface", "error", message, fix, name, basis="measured")


def _missing_interfaces(value: str, present: Sequence[str]) -> list[str]:
    """Return the names of a variable that match no interface; none for an exclusion list, which begins with C(^)."""
    if value.startswith("^"):
        return []
    names = [name.strip().removeprefix("=").partition(":")[0] for name in value.split(",") if name.strip()]
    # NCCL treats a name as a prefix, unless it is written with an equals sign.
    return [name for name in names if not any(interface.startswith(name) for interface in present)]


def check_images(cluster: Cluster, name: str, images: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Find a service whose image differs between hosts, by the digest if all have one, else by the id. images: host to C(image) of the planned service."""
    digests, ids = ({host: image[key] for host, image in images.items() if image.get(key)} for key in ("digest", "id"))
    is_same = len(digests) == len(images) and len(set(digests.values())) == 1
    if not is_same and len(set(ids.values())) > 1:
        ref = next(iter(images.values()))["ref"]
        listed = ", ".join(f"{host} {value}" for host, value in sorted(ids.items()))
        yield Finding(
            "cluster.image",
            "error",
            f"the hosts of {cluster.name} have different images by the name {ref}: image id {listed}. Ranks of "
            "different images disagree on what they send each other, and hang.",
            f"Remove the old one (docker rmi {ref}) and run again, or name the image by its digest.",
            name,
            source="eugr/spark-vllm-docker and sparkrun refuse it, too",
            basis="probed",
        )


def check_addresses(networks: Mapping[str, Mapping[str, Any] | None]) -> Iterator[Finding]:
    """Find clusters on a switch with addresses of another one; C(service) of a finding is the cluster. Pairs on cables may share addresses: they never meet."""
    seen: dict[str, tuple[str, str]] = {}
    for name, network in networks.items():
        for host, host_plan in ((network or {}).get("hosts") or {}).items():
            address = str(host_plan.get("address") or "")
            other = seen.setdefault(address, (name, host)) if address else (name, host)
            switched = "switch" in {(networks[network_name] or {}).get("topology") for network_name in (name, other[0])}
            if other[0] != name and switched:
                message = (
                    f"{host} of {name} and {other[1]} of {other[0]} would both have {address} on the fabric, and "
                    "hang on a switch."
                )
                fix = f"Give each cluster a separate network: fabric: {{network: ...}} in spark_cluster of {name}."
                yield Finding("cluster.address", "error", message, fix, name, basis="measured")


def talking(size: int, args: Mapping[str, Any]) -> set[frozenset[int]]:
    """Return the pairs of ranks between which NCCL sends: its rings go from each rank of a group to the next and back to the first.

    vLLM counts ranks by replica, then by pipeline stage, then by tensor; ranks of a decode context are neighbours within the tensor group.
    Ranks of one stage of all replicas share the experts.
    """
    split = launch.parse(args).args  # as vLLM reads it: "4" is a number, too
    copies = replicas_of(args)
    stages = split.get("pipeline-parallel-size", 1)
    tensor = split.get("tensor-parallel-size", max(size // max(stages * copies, 1), 1))
    ranks = list(range(size))
    contexts = _cut(ranks, split.get("decode-context-parallel-size", 1))
    groups = [*_cut(ranks, tensor), *contexts]
    replicas = _cut(ranks, max(size // copies, 1))
    groups += [replica[start::tensor] for replica in replicas for start in range(tensor)]
    if copies > 1:
        stage_groups = [
            [rank for replica in replicas for rank in replica[stage * tensor : (stage + 1) * tensor]]
            for stage in range(stages)
        ]
        groups += stage_groups
        if str(split.get("all2all-backend") or "") not in _RINGS:  # each rank sends tokens of experts to each other
            groups += _all_pairs(stage_groups)
    if split.get("dcp-comm-backend") == "a2a":  # each rank of a decode context sends to each other
        groups += _all_pairs(contexts)
    return {frozenset(pair) for group in groups for pair in zip(group, [*group[1:], *group[:1]]) if len(set(pair)) == 2}


def _cut(ranks: list[int], width: int) -> list[list[int]]:
    """Return consecutive groups of ranks."""
    return [ranks[start : start + width] for start in range(0, len(ranks), max(width, 1))]


def _all_pairs(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    return [list(pair) for group in groups for pair in combinations(group, 2)]


def check_reach(
    cluster: Cluster, name: str, args: Mapping[str, Any], planned: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Find a service whose ranks send to hosts without a common cable of the ring; NCCL relays nothing. Else report an untested split.

    :param planned: of C(plan_fabric)
    """
    if (planned or {}).get("topology") != "ring":
        return
    joined = {frozenset(rail["ends"]) for rail in (planned or {}).get("rails") or []}
    apart = [
        sorted(pair)
        for pair in talking(cluster.size, args)
        if frozenset(cluster.hosts[rank] for rank in pair) not in joined
    ]
    if not apart:
        yield from _unreported(cluster, name, args)
        return
    first, second = min(apart)
    sizes = (REPLICAS, "tensor-parallel-size", "pipeline-parallel-size", "decode-context-parallel-size")
    split = ", ".join(f"{key} {args[key]}" for key in sizes if key in args)
    yield Finding(
        "cluster.unreached",
        "error",
        f"with {split or 'its split'} rank {first} on {cluster.hosts[first]} sends to rank {second} on {cluster.hosts[second]}, "
        "which no cable of the ring joins.",
        "Span the whole ring by tensor-parallel-size alone, or two hosts that a cable joins, or take a switch.",
        name,
        source="spark-vllm-docker and spark-ds41f run one tensor-parallel group over the whole ring and nothing else",
        basis="measured",
    )


def _unreported(cluster: Cluster, name: str, args: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding about untested splits over a ring of four or more, though each rank sends to its neighbours alone."""
    split = launch.parse(args).args
    ways = {
        f"a ring of {cluster.size}": cluster.size > MOST_REPORTED,
        "pipeline stages": split.get("pipeline-parallel-size", 1) > 1,
        "replicas": replicas_of(args) > 1,
        # With one replica vLLM adds up the results of each rank's experts, as it does without: no rank sends to all others.
        "experts spread over the ranks": bool(split.get("enable-expert-parallel")),
        "a decode context over ranks": split.get("decode-context-parallel-size", 1) > 1,
    }
    unknown = " and ".join(way for way, has in ways.items() if has)
    if cluster.size >= 4 and unknown:
        message = (
            f"nobody has reported {unknown} on Sparks in a ring of more than three; by what each rank sends it can run."
        )
        fix = "Nothing; reports exist only for tensor-parallel-size over rings of three and four."
        source = "spark-vllm-docker, sparkring and spark-ds41f run one tensor-parallel group over the whole ring"
        yield Finding("cluster.unreported", "info", message, fix, name, source=source, basis="measured")


def fingerprint(parts: Sequence[Any]) -> str:
    """Return a short hash of what all ranks of a service run; every rank gets the same."""
    return hashlib.sha256(json.dumps(list(parts), sort_keys=True).encode()).hexdigest()[:16]
