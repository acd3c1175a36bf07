# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sparks with the services of the inventory and proposed ones; the planner judges each combination, once for Sparks that are alike.

Pure functions, except that C(Fleet) remembers what was planned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._addons import addons
from .._common.findings import list_causes
from .._common.sizes import GIB
from .inventory import InventoryError
from .picture import free_gib, natural
from .plan import plan_findings

Hosts = Mapping[str, Mapping[str, Any]]
Maker = Callable[[Hosts, Mapping[str, Sequence[str]]], Mapping[str, Any]]
"""Plans hosts, C({vars, address}) each, with groups."""

SET = "wishes"
"""The set on demand of proposed services."""
PORT, MOST = 8101, 200
"""The first port of proposed services, and the most wishes of one run."""
OPEN_ARGS = {"gpu-memory-utilization": "auto"}
_ELSEWHERE = ("spark_gateway", "spark_clients", "spark_monitoring", "spark_fleet_monitor", "spark_allow_from")
"""Variables that name other hosts; their memory on the host is kept."""
_OF_HOST = ("spark_management_address", "spark_fabric_addresses", "spark_listen")
"""Variables in which Sparks may differ and be alike for a service."""
_VERDICTS = ("fits", "tight", "fails")


@dataclass(frozen=True)
class Offer:
    """A way to serve a job: a recipe and a variant, C(replicas) engines over C(ranks) Sparks each.

    split: C(own), as the recipe has it, C(tensor) or C(pipeline). users, context: of each engine.
    """

    recipe: str
    variant: str
    split: str
    ranks: int
    replicas: int
    users: int
    context: int

    @property
    def sparks(self) -> int:
        """Number of Sparks that it takes, in part or whole."""
        return self.ranks * self.replicas

    @property
    def label(self) -> str:
        """The launch in words."""
        name = f"{self.recipe} ({self.variant})" if self.variant else self.recipe
        split = {"own": "", "tensor": ", tensor parallel", "pipeline": ", pipeline parallel"}[self.split]
        over = f" over {self.ranks} Sparks{split}" if self.ranks > 1 else ""
        return f"{name}{over}{f', {self.replicas} replicas' if self.replicas > 1 else ''}"

    def sized(self, users: int, context: int) -> Offer:
        """Return one engine of it for other requests."""
        return replace(self, replicas=1, users=users, context=context)


@dataclass(frozen=True)
class Figures:
    """The figures of a planned service. rate: tokens/s of one stream while C(requests) run; first_token: seconds, of 8192 tokens.

    gib: memory on each Spark. weights_gib: of it weights. concurrency: requests of the whole context that its KV cache holds. speed: its
    C(ServiceSpeed). unknown: why a rate is None.
    """

    context: int
    requests: int
    concurrency: float
    gib: float
    weights_gib: float
    rate: float | None = None
    first_token: float | None = None
    unknown: str = ""
    speed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_service(cls, service: Mapping[str, Any]) -> Figures:
        """Return the figures of a service of a plan."""
        memory, speed, args = service["memory"], service["speed"], service["args"]
        together, unknown = speed["all_streams"], speed["unknown"]
        first = speed["first_token_8k"]
        context = memory.get("max_model_len") or args.get("max-model-len")
        requests = memory.get("max_num_seqs") or args.get("max-num-seqs") or 0
        return cls(
            context=context if isinstance(context, int) else 0,
            requests=requests if isinstance(requests, int) else 0,
            # A pooling model keeps no cache, so that all requests fit.
            concurrency=float(memory.get("max_concurrency") or requests),
            gib=float((memory.get("residency_gib") or {}).get("typical") or 0.0),
            weights_gib=float(memory.get("weights_bytes") or 0) / GIB,
            rate=together["typical"] / speed["streams"] if together else None,
            first_token=first["typical"] if first else None,
            unknown=unknown.get("decode") or unknown.get("all") or "",
            speed=speed,
        )


@dataclass(frozen=True)
class Piece:
    """One engine of an offer on its hosts, the head first."""

    wish: str
    offer: Offer
    hosts: tuple[str, ...]
    on_demand: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What counts for memory and speed."""
        return (
            self.offer.recipe,
            self.offer.variant,
            self.offer.split,
            self.offer.ranks,
            self.offer.users,
            self.offer.context,
            self.on_demand,
        )

    def entry(self, name: str, port: int, cluster: Sequence[str] = ()) -> dict[str, Any]:
        """Return the entry of C(spark_services), or of a cluster's services.

        :param name: of the service
        :param port: that it listens on
        :param cluster: hosts of the cluster
        """
        offer = self.offer
        args: dict[str, Any] = {"max-model-len": offer.context, "max-num-seqs": offer.users, **OPEN_ARGS}
        if offer.split != "own":
            args[f"{offer.split}-parallel-size"] = offer.ranks
        entry: dict[str, Any] = {"name": name, "recipe": offer.recipe, "port": port, "args": args}
        entry.update({"variant": offer.variant} if offer.variant else {})
        entry.update({"on_demand": {"exclusive": SET}} if self.on_demand else {})
        entry.update({"hosts": list(self.hosts)} if cluster and list(cluster) != list(self.hosts) else {})
        return entry


@dataclass(frozen=True)
class Verdict:
    """What the planner says of Sparks with pieces. why: an error, or empty. figures: by position of the piece. free: GiB by host."""

    why: str
    figures: Sequence[Figures] = ()
    free: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Proposed engines on their hosts. pieces: by host or cluster. clusters: of the inventory and proposed ones. cluster_of: by host."""

    pieces: Mapping[str, tuple[Piece, ...]]
    clusters: Mapping[str, tuple[str, ...]]
    cluster_of: Mapping[str, str]

    def hosts_with(self, host: str) -> tuple[str, ...]:
        """Return the hosts that are planned together with a host."""
        return self.clusters.get(self.cluster_of.get(host, ""), (host,))

    def on(self, hosts: Sequence[str]) -> list[Piece]:
        """Return the pieces of hosts that are planned together."""
        places = [*hosts, *({self.cluster_of[hosts[0]]} if hosts[0] in self.cluster_of else ())]
        return [piece for place in places for piece in self.pieces.get(place, ())]

    def every(self) -> list[Piece]:
        """Return all pieces."""
        return [piece for pieces in self.pieces.values() for piece in pieces]

    def with_piece(self, piece: Piece, cluster: str = "") -> Layout:
        """Return the layout with one more piece. cluster: the name of a new cluster of its hosts."""
        clusters, cluster_of = self.clusters, self.cluster_of
        if cluster:
            clusters = {**clusters, cluster: piece.hosts}
            cluster_of = {**cluster_of, **dict.fromkeys(piece.hosts, cluster)}
        place = cluster_of[piece.hosts[0]] if len(piece.hosts) > 1 else piece.hosts[0]
        return Layout({**self.pieces, place: (*self.pieces.get(place, ()), piece)}, clusters, cluster_of)

    def without(self, wish: str, fixed: Mapping[str, Any]) -> Layout:
        """Return the layout without the pieces of a wish, and without proposed clusters that are left empty.

        :param wish: its name
        :param fixed: the clusters of the inventory
        """
        pieces = {place: tuple(piece for piece in found if piece.wish != wish) for place, found in self.pieces.items()}
        clusters = {name: hosts for name, hosts in self.clusters.items() if name in fixed or pieces.get(name)}
        return Layout(pieces, clusters, {host: name for name, hosts in clusters.items() for host in hosts})


class Fleet:
    """The Sparks of the inventory. existing: services of the inventory with their figures. left_out: hosts with errors already, by reason."""

    def __init__(self, hosts: Hosts, groups: Mapping[str, Sequence[str]], base: Mapping[str, Any], make: Maker) -> None:
        """Plan nothing yet.

        :param hosts: C({vars, address}) by name, as C(plan.make_plan) takes them
        :param groups: of the inventory
        :param base: the plan of the inventory as it is
        :param make: makes a plan
        """
        self.base, self.make, self.looks = base, make, 0
        self.addresses = {name: str(host.get("address") or "") for name, host in hosts.items()}
        clusters = base["clusters"]
        # In the order of the group, which decides the ranks.
        self.fixed = {name: tuple(groups[name]) for name in clusters}
        errors = list_causes(plan_findings(base))
        self.left_out = {
            error["host"]: f"{error['rule']}: {error['message']}"
            for error in errors
            if error["host"] in hosts and error["rule"] != "lock.moving"
        }
        self.left_out |= {
            host: f"its cluster {name} has an error on another host"
            for name, members in self.fixed.items()
            for host in members
            if host not in self.left_out and set(members) & set(self.left_out)
        }
        self.names = sorted((name for name in hosts if name not in self.left_out), key=natural)
        self.vars = {name: self._bare(name, dict(hosts[name]["vars"])) for name in self.names}
        classes: dict[str, int] = {}
        self.class_of = {
            name: classes.setdefault(
                _text({key: value for key, value in self.vars[name].items() if key not in _OF_HOST}), len(classes)
            )
            for name in self.names
        }
        services = [service for body in base["hosts"].values() for service in body["services"]]
        used = {service["port"] for service in services}
        used |= {service["on_demand"]["engine_port"] for service in services if service.get("on_demand")}
        self.ports = [port for port in range(PORT, PORT + len(used) + MOST) if port not in used]
        self._verdicts: dict[Any, Verdict] = {}
        self.existing = self._existing()
        self.busy = {name: bool(base["hosts"][name]["services"]) for name in self.names}
        self._minimum = {key: figures for key, _piece, figures in self.existing}
        self.empty = Layout({}, self.fixed, {host: name for name, members in self.fixed.items() for host in members})

    @property
    def size(self) -> int:
        """Number of Sparks that may get services."""
        return len(self.names)

    def _bare(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of a host for a plan without the rest of the fleet: memory of add-ons that need it is a sidecar."""
        dropped = [key for key in _ELSEWHERE if key in variables]
        variables = {key: value for key, value in variables.items() if key not in dropped and key != "spark_wishes"}
        variables["spark_allow_moving"] = True  # an inventory is pinned when it is deployed
        if dropped:
            alone = self.make(
                {name: {"vars": {**variables, "spark_cluster": {}, "spark_services": []}, "address": ""}}, {}
            )
            parts = ((1, self.base["hosts"][name]), (-1, alone["hosts"][name]))
            services = {service["name"] for service in self.base["hosts"][name]["services"]}
            gib = sum(
                sign * part["gib"]
                for sign, body in parts
                for part in body["memory_map"]
                if part["kind"] == "plain" and part["service"] not in services
            )
            if gib > 0:
                variables["spark_sidecars"] = [
                    *(variables.get("spark_sidecars") or []),
                    {"name": "add-ons", "memory_gib": round(gib, 2)},
                ]
        return variables

    def _existing(self) -> list[tuple[str, Piece, Figures]]:
        rows = []
        for host in self.names:
            for service in self.base["hosts"][host]["services"]:
                if service["rank"] or service["state"] == "stopped":
                    continue
                span = service["cluster"]
                hosts = tuple(span["hosts"]) if span else (host,)
                figures = Figures.of_service(service)
                offer = Offer(
                    str(service["recipe"]),
                    ",".join(service["variant"]),
                    "own",
                    len(hosts),
                    1,
                    figures.requests,
                    figures.context,
                )
                piece = Piece(service["name"], offer, hosts, service["state"] == "on_demand")
                rows.append((f"{host}/{service['name']}", piece, figures))
        return rows

    def alone(self, offer: Offer) -> Figures | str:
        """Return the figures of one engine of an offer on Sparks without other services, or why it cannot be planned."""
        offer = replace(offer, replicas=1)
        key = ("alone", Piece("", offer, ()).key)
        if key not in self._verdicts:
            taking = (*addons.VARIABLES, "spark_sidecars", "spark_services", "spark_cluster")
            own = self.vars[self.names[0]] if self.names else {}
            bare = {key: value for key, value in own.items() if key not in taking}
            names = [f"spark-{number}" for number in range(1, offer.ranks + 1)]
            self._verdicts[key] = self._judge([bare] * offer.ranks, names, [Piece("", offer, tuple(names))], "wished")
        verdict = self._verdicts[key]
        return verdict.why or verdict.figures[0]

    def gib(self, offer: Offer) -> float:
        """Return the memory of an engine of an offer on each of its Sparks, without other services."""
        figures = self.alone(offer)
        return figures.gib if isinstance(figures, Figures) else 0.0

    def permanent(self, layout: Layout, host: str) -> int:
        """Return the number of services of a host that run all the time, at least 1."""
        pieces = [*(piece for _key, piece, _figures in self.existing), *layout.on(layout.hosts_with(host))]
        return max(1, sum(host in piece.hosts and not piece.on_demand for piece in pieces))

    def slowest(self, layout: Layout, wish: str) -> tuple[list[tuple[str, ...]], Figures]:
        """Return the hosts of each engine of a wish, and the figures of the slowest one."""
        engines = [piece for piece in layout.every() if piece.wish == wish]
        figures = []
        for piece in engines:
            listed = layout.on(layout.hosts_with(piece.hosts[0]))
            figures.append(self.verdict(layout, piece.hosts[0]).figures[listed.index(piece)])
        return [piece.hosts for piece in engines], min(figures, key=lambda engine: engine.rate or 0.0)

    def verdict(self, layout: Layout, host: str) -> Verdict:
        """Return what the planner says of a host, with the hosts that it forms a cluster with; figures as C(Layout.on) lists the pieces."""
        hosts = layout.hosts_with(host)
        pieces = layout.on(hosts)
        spans = layout.cluster_of.get(host, "")
        is_fixed = spans in self.fixed
        position = {name: number for number, name in enumerate(hosts)}
        keys = [(piece.key, tuple(position[name] for name in piece.hosts)) for piece in pieces]
        order = sorted(range(len(pieces)), key=lambda number: _text(keys[number]))
        key = (
            spans if is_fixed else bool(spans),
            tuple(self.class_of[name] for name in hosts),
            tuple(keys[number] for number in order),
        )
        if key not in self._verdicts:
            self.looks += 1
            self._verdicts[key] = self._judge(
                [self.vars[name] for name in hosts], hosts, [pieces[number] for number in order], spans
            )
        found = self._verdicts[key]
        figures = dict(zip(order, found.figures))
        return replace(
            found,
            figures=[figures[number] for number in sorted(figures)],
            free=dict(zip(hosts, found.free.values())),
        )

    def _judge(
        self, variables: Sequence[Mapping[str, Any]], hosts: Sequence[str], pieces: Sequence[Piece], cluster: str
    ) -> Verdict:
        """Plan hosts with pieces."""
        names = {id(piece): f"wished-{number}" for number, piece in enumerate(pieces, 1)}
        numbered = {id(piece): piece.entry(names[id(piece)], port, hosts) for piece, port in zip(pieces, self.ports)}
        groups = {cluster: hosts} if cluster and len(hosts) > 1 else {}
        planned = {
            host: {
                "vars": with_entries(
                    values,
                    [numbered[id(piece)] for piece in pieces if piece.hosts == (host,)],
                    cluster if groups else "",
                    [numbered[id(piece)] for piece in pieces if len(piece.hosts) > 1],
                ),
                "address": "",
            }
            for host, values in zip(hosts, variables)
        }
        try:
            plan = self.make(planned, groups)
        except InventoryError as error:
            return Verdict(error.messages[0])
        errors = list_causes([finding for finding in plan_findings(plan)])
        if errors:
            return Verdict(f"{errors[0]['rule']}: {errors[0]['message']}")
        if why := self._worse(plan):
            return Verdict(why)
        services = {
            service["name"]: service
            for body in plan["hosts"].values()
            for service in body["services"]
            if not service["rank"]
        }
        free = {host: max(0.0, free_gib(body)) for host, body in plan["hosts"].items()}
        return Verdict("", [Figures.of_service(services[names[id(piece)]]) for piece in pieces], free)

    def _worse(self, plan: Mapping[str, Any]) -> str:
        """Return which service of the inventory would lose context or requests, or which host is tight now; empty for none."""
        for host, body in plan["hosts"].items():
            before = (self.base["hosts"].get(host) or {}).get("verdict", "fits")
            if _VERDICTS.index(body["verdict"]) > _VERDICTS.index(before):
                return f"the memory of {host} is tight: its use depends on overheads that differ from start to start"
            for service in body["services"]:
                old = self._minimum.get(f"{host}/{service['name']}") if hasattr(self, "_minimum") else None
                if old is None:
                    continue
                new = Figures.of_service(service)
                if new.context < old.context or new.concurrency < min(old.concurrency, old.requests):
                    return f"{host}/{service['name']} of the inventory would keep {new.concurrency:.1f} requests of {new.context} tokens"
        return ""


def with_entries(
    variables: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    cluster: str,
    spanning: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the variables of a host with more services.

    :param variables: of the host
    :param entries: further entries of C(spark_services)
    :param cluster: name of its cluster, empty without one
    :param spanning: further services of the cluster
    """
    result = dict(variables)
    if entries:
        result["spark_services"] = [*(variables.get("spark_services") or []), *entries]
    if cluster and spanning:
        body = variables.get("spark_cluster") or {"name": cluster, "services": []}
        result["spark_cluster"] = {**body, "services": [*(body.get("services") or []), *spanning]}
    return result


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
