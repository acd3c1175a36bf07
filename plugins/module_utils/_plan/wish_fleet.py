# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sparks with the services of the inventory and proposed ones; the planner judges each combination, once for Sparks that are alike.

Pure functions, except that C(Fleet) remembers plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

from .._addons import addons
from .._common.findings import list_causes
from .._common.sizes import GIB
from .inventory import InventoryError
from .picture import VERDICTS, free_gib, natural
from .plan import plan_findings

Hosts = Mapping[str, Mapping[str, Any]]
Maker = Callable[[Hosts, Mapping[str, Sequence[str]]], Mapping[str, Any]]
"""Plans hosts, C({vars, address}) each, with groups."""

SET = "wishes"
"""The set on demand of proposed services."""
PORT, MOST = 8101, 200
"""The first port of proposed services, and the most wishes of one run."""
_ELSEWHERE = ("spark_gateway", "spark_clients", "spark_monitoring", "spark_fleet_monitor", "spark_allow_from")
"""Variables that name other hosts."""
_OF_HOST = ("spark_management_address", "spark_fabric_addresses", "spark_listen")
"""Variables in which Sparks may differ and be alike for a service."""


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
        split = "" if self.split == "own" else f", {self.split} parallel"
        over = f" over {self.ranks} Sparks{split}" if self.ranks > 1 else ""
        return f"{name}{over}{f', {self.replicas} replicas' if self.replicas > 1 else ''}"


@dataclass(frozen=True)
class Figures:
    """The figures of a planned service. gib: memory on each Spark. concurrency: requests of the whole context that its KV cache holds.

    rate: tokens/s of one stream while C(requests) run. first_token: seconds, of 8192 tokens or the whole context, if that is shorter.
    unknown, first_token_unknown: reasons of missing figures. speed: its C(ServiceSpeed).
    """

    context: int
    requests: int
    concurrency: float
    gib: float
    weights_gib: float
    rate: float | None
    first_token: float | None
    unknown: str
    first_token_unknown: str
    speed: Mapping[str, Any]

    @classmethod
    def of_service(cls, service: Mapping[str, Any]) -> Figures:
        """Return the figures of a service of a plan."""
        memory, speed, args = service["memory"], service["speed"], service["args"]
        sizes = [memory.get(key) or args.get(key.replace("_", "-")) for key in ("max_model_len", "max_num_seqs")]
        context, requests = (size if isinstance(size, int) else 0 for size in sizes)
        first_token, unknown = speed["first_token_8k"] or speed.get("first_token_full"), speed["unknown"]
        return cls(
            context,
            requests,
            # A pooling model keeps no cache, so that all requests fit.
            float(memory.get("max_concurrency") or requests),
            float((memory.get("residency_gib") or {}).get("typical") or 0.0),
            float(memory.get("weights_bytes") or 0) / GIB,
            speed["all_streams"]["typical"] / speed["streams"] if speed["all_streams"] else None,
            first_token["typical"] if first_token else None,
            _reason(unknown, "decode"),
            _reason(unknown, "prefill") or "it is not predicted",
            speed,
        )


def _reason(unknown: Mapping[str, str], figure: str) -> str:
    return unknown.get(figure) or unknown.get("all") or ""


@dataclass(frozen=True)
class Piece:
    """One engine of an offer for a wish on its hosts, the head first."""

    wish: str
    offer: Offer
    hosts: tuple[str, ...]
    on_demand: bool = False

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What counts for memory and speed."""
        return *astuple(replace(self.offer, replicas=1)), self.on_demand

    def entry(self, name: str, port: int, cluster: Sequence[str] = ()) -> dict[str, Any]:
        """Return the entry of C(spark_services), or of the services of a cluster."""
        offer = self.offer
        sizes = {"max-model-len": offer.context, "max-num-seqs": offer.users}
        args: dict[str, Any] = {**sizes, "gpu-memory-utilization": "auto"}
        args |= {} if offer.split == "own" else {f"{offer.split}-parallel-size": offer.ranks}
        entry: dict[str, Any] = {"name": name, "recipe": offer.recipe, "port": port, "args": args}
        entry |= {"variant": offer.variant} if offer.variant else {}
        entry |= {"on_demand": {"exclusive": SET}} if self.on_demand else {}
        return entry | ({"hosts": list(self.hosts)} if len(self.hosts) > 1 and tuple(cluster) != self.hosts else {})


@dataclass(frozen=True)
class Verdict:
    """The judgement of the planner on hosts with pieces. why: an error, or empty. figures: of each piece. free: GiB of each host."""

    why: str
    figures: Sequence[Figures] = ()
    free: Sequence[float] = ()


@dataclass(frozen=True)
class Layout:
    """Proposed engines on their hosts. pieces: by host or cluster. clusters: of the inventory and proposed ones."""

    pieces: Mapping[str, tuple[Piece, ...]]
    clusters: Mapping[str, tuple[str, ...]]

    @cached_property
    def cluster_of(self) -> dict[str, str]:
        """The cluster of each host."""
        return {host: name for name, hosts in self.clusters.items() for host in hosts}

    def hosts_with(self, host: str) -> tuple[str, ...]:
        """Return the hosts that are planned together with a host."""
        return self.clusters.get(self.cluster_of.get(host, ""), (host,))

    def on(self, host: str) -> list[Piece]:
        """Return the pieces of a host and of the hosts that are planned together with it."""
        places = [*self.hosts_with(host), self.cluster_of.get(host, "")]
        return [piece for place in places for piece in self.pieces.get(place, ())]

    def of(self, wish: str) -> list[Piece]:
        """Return the pieces of a wish."""
        return [piece for pieces in self.pieces.values() for piece in pieces if piece.wish == wish]

    def with_piece(self, piece: Piece, cluster: str = "") -> Layout:
        """Return the layout with one more piece. cluster: the name of a new cluster of its hosts."""
        clusters = {**self.clusters, cluster: piece.hosts} if cluster else self.clusters
        place = cluster or (self.cluster_of[piece.hosts[0]] if len(piece.hosts) > 1 else piece.hosts[0])
        return Layout({**self.pieces, place: (*self.pieces.get(place, ()), piece)}, clusters)

    def without(self, wish: str, fixed: Mapping[str, Any]) -> Layout:
        """Return the layout without a wish, and without clusters that are left empty and not among the C(fixed) ones."""
        pieces = {place: tuple(piece for piece in row if piece.wish != wish) for place, row in self.pieces.items()}
        clusters = {name: hosts for name, hosts in self.clusters.items() if name in fixed or pieces.get(name)}
        return Layout(pieces, clusters)


class Fleet:
    """The Sparks of the inventory. existing: their services with figures, by C(host/service). left_out: hosts with errors already."""

    def __init__(self, hosts: Hosts, groups: Mapping[str, Sequence[str]], make: Maker) -> None:
        """Plan the unchanged inventory. Raises C(InventoryError)."""
        self.make, self.looks = make, 0
        self.base = make(hosts, groups)
        # In the order of the group, which decides the ranks.
        self.fixed = {name: tuple(groups[name]) for name in self.base["clusters"]}
        self.left_out = self._left_out(hosts)
        self.names = sorted((name for name in hosts if name not in self.left_out), key=natural)
        self.ports = self._free_ports()
        self.vars = {name: self._without_rest(name, hosts[name]["vars"]) for name in self.names}
        common = [{key: self.vars[name][key] for key in self.vars[name] if key not in _OF_HOST} for name in self.names]
        texts = [json.dumps(variables, sort_keys=True, default=str) for variables in common]
        self.class_of = dict(zip(self.names, map(texts.index, texts)))
        self.busy = {name: bool(self.base["hosts"][name]["services"]) for name in self.names}
        self._verdicts: dict[Any, Verdict] = {}
        self._gib: dict[Offer, float] = {}
        self.existing: dict[str, tuple[Piece, Figures]] = {}
        for host in self.names:
            for service in self.base["hosts"][host]["services"]:
                figures, span = Figures.of_service(service), service["cluster"]
                members = tuple(span["hosts"]) if span else (host,)
                launch = (str(service["recipe"]), ",".join(service["variant"]), "own", len(members), 1)
                offer = Offer(*launch, figures.requests, figures.context)
                piece = Piece(service["name"], offer, members, service["state"] == "on_demand")
                if not service["rank"] and service["state"] != "stopped":
                    self.existing[f"{host}/{service['name']}"] = piece, figures
        self.empty = Layout({}, self.fixed)

    def _left_out(self, hosts: Hosts) -> dict[str, str]:
        """Return why hosts get no further services, by host: an error in the base plan, also of another host of the cluster."""
        errors = [error for error in list_causes(plan_findings(self.base)) if error["rule"] != "lock.moving"]
        left_out = {error["host"]: f"{error['rule']}: {error['message']}" for error in errors if error["host"] in hosts}
        for name, members in self.fixed.items():
            if set(members) & set(left_out):
                left_out = {**dict.fromkeys(members, f"cluster {name} has an error on another host"), **left_out}
        return left_out

    def _free_ports(self) -> list[int]:
        services = [service for body in self.base["hosts"].values() for service in body["services"]]
        used = {service["port"] for service in services}
        used |= {service["on_demand"]["engine_port"] for service in services if service.get("on_demand")}
        return [port for port in range(PORT, PORT + len(used) + MOST) if port not in used]

    def _without_rest(self, name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of a host for a plan without the rest of the fleet; memory of add-ons that need it is a sidecar."""
        local = {key: value for key, value in variables.items() if key not in (*_ELSEWHERE, "spark_wishes")}
        local["spark_allow_moving"] = True  # an inventory is pinned when it is deployed
        if variables.keys() & set(_ELSEWHERE):
            services = {service["name"] for service in self.base["hosts"][name]["services"]}
            bare = {**local, "spark_cluster": {}, "spark_services": [], "spark_tuned": {}}
            bodies = (self.base["hosts"][name], self.make({name: {"vars": bare}}, {})["hosts"][name])
            plain, without = (
                sum(
                    row["gib"]
                    for row in body["memory_map"]
                    if row["kind"] == "plain" and row["service"] not in services
                )
                for body in bodies
            )
            sidecar = {"name": "add-ons", "memory_gib": round(plain - without, 2)}
            sidecars = [sidecar] if sidecar["memory_gib"] else []
            local["spark_sidecars"] = [*(local.get("spark_sidecars") or []), *sidecars]
        return local

    def alone(self, offer: Offer) -> Figures | str:
        """Return the figures of one engine of an offer on Sparks without other services, or why it cannot be planned."""
        names = tuple(f"spark-{number}" for number in range(1, offer.ranks + 1))
        piece = Piece("", offer, names)
        if piece.key not in self._verdicts:
            taking = (*addons.VARIABLES, "spark_sidecars", "spark_services", "spark_cluster", "spark_tuned")
            bare = {key: value for key, value in self.vars[self.names[0]].items() if key not in taking}
            self._verdicts[piece.key] = self._judge(dict.fromkeys(names, bare), [piece], "wished")
        verdict = self._verdicts[piece.key]
        return verdict.why or verdict.figures[0]

    def gib(self, offer: Offer) -> float:
        """Return the memory of an engine of an offer on each of its Sparks, without other services."""
        if offer not in self._gib:
            figures = self.alone(offer)
            self._gib[offer] = figures.gib if isinstance(figures, Figures) else 0.0
        return self._gib[offer]

    def permanent(self, layout: Layout, host: str) -> int:
        """Return the number of services of a host that run all the time, at least 1."""
        pieces = [*(piece for piece, _figures in self.existing.values()), *layout.on(host)]
        return max(1, sum(host in piece.hosts and not piece.on_demand for piece in pieces))

    def slowest(self, layout: Layout, wish: str) -> tuple[list[tuple[str, ...]], Figures]:
        """Return the hosts of each engine of a wish, and the figures of the slowest one."""
        engines = [(piece.hosts[0], piece) for piece in layout.of(wish)]
        figures = [self.verdict(layout, head).figures[layout.on(head).index(piece)] for head, piece in engines]
        return [piece.hosts for _head, piece in engines], min(figures, key=lambda engine: engine.rate or 0.0)

    def free(self, layout: Layout, host: str) -> float:
        """Return the free memory of a host, GiB."""
        free = self.verdict(layout, host).free
        return free[layout.hosts_with(host).index(host)] if free else 0.0

    def verdict(self, layout: Layout, host: str) -> Verdict:
        """Return the judgement on the hosts of C(Layout.hosts_with), in their order; figures as C(Layout.on) lists the pieces."""
        hosts, pieces, cluster = layout.hosts_with(host), layout.on(host), layout.cluster_of.get(host, "")
        keys = [(piece.key, tuple(map(hosts.index, piece.hosts))) for piece in pieces]
        order = sorted(range(len(pieces)), key=lambda number: str(keys[number]))
        key = (
            cluster if cluster in self.fixed else bool(cluster),
            tuple(self.class_of[name] for name in hosts),
            tuple(keys[number] for number in order),
        )
        if key not in self._verdicts:
            self.looks += 1
            variables = {name: self.vars[name] for name in hosts}
            self._verdicts[key] = self._judge(variables, [pieces[number] for number in order], cluster)
        judged = self._verdicts[key]
        by_number = dict(zip(order, judged.figures))
        return replace(judged, figures=[by_number[number] for number in sorted(by_number)])

    def _judge(self, variables: Mapping[str, Mapping[str, Any]], pieces: Sequence[Piece], cluster: str) -> Verdict:
        """Plan hosts, variables by name, with pieces."""
        hosts = list(variables)
        entries = [piece.entry(f"wished-{port}", port, hosts) for piece, port in zip(pieces, self.ports)]
        spans = [entry for piece, entry in zip(pieces, entries) if len(piece.hosts) > 1]
        planned = {}
        for host, values in variables.items():
            single = [entry for piece, entry in zip(pieces, entries) if piece.hosts == (host,)]
            planned[host] = {"vars": with_entries(values, single, cluster, spans)}
        try:
            plan = self.make(planned, {cluster: hosts} if len(hosts) > 1 else {})
        except InventoryError as error:
            return Verdict(error.messages[0])
        if why := self._refusal(plan):
            return Verdict(why)
        heads = {
            service["name"]: service
            for body in plan["hosts"].values()
            for service in body["services"]
            if not service["rank"]
        }
        figures = [Figures.of_service(heads[entry["name"]]) for entry in entries]
        return Verdict("", figures, [max(0.0, free_gib(plan["hosts"][host])) for host in hosts])

    def _refusal(self, plan: Mapping[str, Any]) -> str:
        """Return an error of a plan, which service of the inventory would lose context or requests, or which host is tight now; or empty."""
        if causes := list_causes(plan_findings(plan)):
            return f"{causes[0]['rule']}: {causes[0]['message']}"
        for host, body in plan["hosts"].items():
            before = (self.base["hosts"].get(host) or {}).get("verdict", "fits")
            if VERDICTS.index(body["verdict"]) < VERDICTS.index(before):
                return f"the memory of {host} is tight: its use depends on overheads that differ from start to start"
            for service in body["services"]:
                new = Figures.of_service(service)
                _piece, old = self.existing.get(f"{host}/{service['name']}", (None, None))
                if old and (new.context < old.context or new.concurrency < min(old.concurrency, old.requests)):
                    return f"{host}/{service['name']} would keep {new.concurrency:.1f} requests of {new.context} tokens"
        return ""


def with_entries(
    variables: Mapping[str, Any], entries: Sequence[Any], cluster: str, spanning: Sequence[Any]
) -> dict[str, Any]:
    """Return the variables of a host with more services. entries: further entries of C(spark_services)."""
    result = dict(variables)
    if entries:
        result["spark_services"] = [*(variables.get("spark_services") or []), *entries]
    if spanning:
        body = variables.get("spark_cluster") or {"name": cluster}
        result["spark_cluster"] = {**body, "services": [*(body.get("services") or []), *spanning]}
    return result
