# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cabling of a group: its topology, and plugs in the wrong port.

cage        one QSFP port of a host; messages call it port, as people who stand before it do
segment     cages that hear each other: the two ends of a cable, or all that hang on one switch
ring        three to eight hosts, a cable from port 0 of each to port 1 of the next, the last one's to the first
line        the same without the last cable

Sources of the shapes: NVIDIA's playbooks for two, three and switched Sparks; spark-vllm-docker, sparkring and spark-ds41f for
rings of four, in which ranks follow the cables. Rings of six and eight were run by nobody who wrote about it.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.findings import Finding
from .engine_env import PLAYBOOK

Cage = tuple[str, int]  # host, function index
Hosts = Mapping[str, Mapping[str, Any]]
"""Facts of the hosts of a group by name, as C(fabric.plan) takes them."""

MOST_RING = 8
"""Hosts of a ring; spark-vllm-docker plans as many, and has run four."""
APART = ("none", "line")
"""Topologies that no engine can span."""
RINGS = "spark-vllm-docker, sparkring and spark-ds41f cable rings so"


# --- what people read ----------------------------------------------------------------------------------------------


def join(words: Iterable[str]) -> str:
    """Write a list as people do."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def make_finding(rule: str, severity: str, message: str, fix: str, source: str = "") -> Finding:
    """Return a finding about the fabric, from facts of hosts. rule: its id without C(fabric.). severity: C(error), C(warning) or C(info)."""
    return Finding(f"fabric.{rule}", severity, message, fix=fix, source=source, basis="measured")


def port(cage: Cage) -> str:
    """Name a cage as messages do."""
    return f"{cage[0]} port {cage[1]}"


# --- addresses -----------------------------------------------------------------------------------------------------


def v4(addresses: Iterable[str] | None) -> list[str]:
    """Pick the IPv4 addresses (CIDR) out of a list."""
    return [address for address in addresses or [] if ":" not in address]


@functools.lru_cache(maxsize=4096)
def interface_of(address: str) -> ipaddress.IPv4Interface:
    """Read an address in CIDR form; a plan of eight hosts asks for the same few thousands of times."""
    return ipaddress.IPv4Interface(address)


def is_link_local(address: str) -> bool:
    """Tell whether C(address) is one of 169.254/16."""
    return interface_of(address).ip.is_link_local


def network_of(address: str) -> ipaddress.IPv4Network:
    """The subnet of an address in CIDR form, or the subnet that is written so."""
    return interface_of(address).network


# --- links ---------------------------------------------------------------------------------------------------------


def up_cages(fabric: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Cages of a host with at least one interface up, by function index."""
    return {
        int(port["cage"]): port
        for port in fabric.get("ports") or []
        if any(netdev.get("up") for netdev in port["netdevs"])
    }


@dataclass(frozen=True)
class Links:
    """Which cages reach each other.

    pairs: of two cages, also of one host. strangers: hosts outside of the group, by the cage that hears them.
    """

    pairs: set[frozenset[Cage]]
    strangers: Mapping[Cage, set[str]]


def find_links(hosts: Hosts) -> Links:
    """Return which cages reach each other.

    It follows from the beacons that each host heard, and from the MAC addresses that have answered. A link between two cages of one host means
    that both hang on one switch, or that a cable joins them; interfaces of one cage always hear each other, which is no evidence.
    """
    cage_of = {(cage[0], netdev["name"]): cage for cage, netdev in _netdevs(hosts)}
    met = _met_by_mac(hosts)
    strangers: dict[Cage, set[str]] = {}
    for host, entry in hosts.items():
        for heard in entry.get("heard") or []:
            near_end, far_end = cage_of.get((host, heard["netdev"])), cage_of.get((heard["host"], heard["peer"]))
            if near_end and far_end:
                met.append((near_end, far_end))
            elif near_end and heard["host"] not in hosts:
                strangers.setdefault(near_end, set()).add(heard["host"])
    pairs = {frozenset(ends) for ends in met if ends[0] != ends[1]}
    return Links(pairs, strangers)


def _met_by_mac(hosts: Hosts) -> list[tuple[Cage, Cage]]:
    """Return each cage with a cage whose MAC address has answered it."""
    owners: dict[str, list[Cage]] = {}
    for cage, netdev in _netdevs(hosts):
        if netdev.get("mac"):
            owners.setdefault(netdev["mac"], []).append(cage)
    return [
        (cage, owners[neighbour["mac"]][0])
        for cage, netdev in _netdevs(hosts)
        for neighbour in netdev.get("neighbours") or []
        if len(owners.get(neighbour["mac"], ())) == 1
    ]


def _netdevs(hosts: Hosts) -> Iterator[tuple[Cage, Mapping[str, Any]]]:
    """Yield the interfaces of all cages that are up."""
    for host, entry in hosts.items():
        for cage, facts in up_cages(entry["fabric"]).items():
            for netdev in facts["netdevs"]:
                yield (host, cage), netdev


def segments_of(cages: Sequence[Cage], links: Iterable[frozenset[Cage]]) -> list[list[Cage]]:
    """Join cages that reach each other; cages of one host only are no segment."""
    group = {cage: {cage} for cage in cages}
    for link in links:
        joined = set().union(*(group[cage] for cage in link))
        for cage in joined:
            group[cage] = joined
    segments: list[list[Cage]] = []
    for cage in cages:
        members = [other for other in cages if other in group[cage]]
        if members not in segments and len({host for host, _cage in members}) > 1:
            segments.append(members)
    return segments


def subnets_of(hosts: Hosts) -> dict[Cage, set[ipaddress.IPv4Network]]:
    """Return the subnets of the cages that are up, by their present and requested addresses, without link-local ones."""
    subnets: dict[Cage, set[ipaddress.IPv4Network]] = {}
    for host, entry in hosts.items():
        requested = entry.get("addresses") or {}
        for cage, ports in up_cages(entry["fabric"]).items():
            subnets[(host, cage)] = {
                network_of(address)
                for netdev in ports["netdevs"]
                for address in [*v4(netdev.get("addresses")), *v4([requested.get(netdev["name"]) or ":"])]
                if not is_link_local(address)
            }
    return subnets


def contradicts(segments: Iterable[Sequence[Cage]], subnets: Mapping[Cage, set[ipaddress.IPv4Network]]) -> bool:
    """Return whether segments join cages whose addresses have no common subnet. subnets: of C(subnets_of)."""
    return any(
        subnets[first] and subnets[second] and not subnets[first] & subnets[second]
        for segment in segments
        for first, second in itertools.combinations(segment, 2)
    )


def ring_of(order: Sequence[str]) -> set[frozenset[Cage]]:
    """Return the cables of a ring: port 0 of each host into port 1 of the next."""
    following = [*order[1:], order[0]]
    return {frozenset({(name, 0), (other, 1)}) for name, other in zip(order, following)}


def assume_links(hosts: Hosts) -> set[frozenset[Cage]]:
    """Return assumed cables if neither frames nor addresses show any.

    Hosts with one cage up use that one, three hosts or more with both up are a ring (a switch needs one cable of each), else
    cages of one index belong together.
    """
    cages = {host: sorted(up_cages(entry["fabric"])) for host, entry in hosts.items()}
    names = list(hosts)
    if 3 <= len(names) <= MOST_RING and all(up == [0, 1] for up in cages.values()):
        return ring_of(names)
    links = set()
    for first, second in zip(names, names[1:]):
        if len(cages[first]) == 1 and len(cages[second]) == 1:
            links.add(frozenset({(first, cages[first][0]), (second, cages[second][0])}))
        else:
            links |= {frozenset({(first, cage), (second, cage)}) for cage in set(cages[first]) & set(cages[second])}
    return links


# --- shapes --------------------------------------------------------------------------------------------------------


def walk(names: Sequence[str], segments: Sequence[Sequence[Cage]]) -> tuple[str, list[str]]:
    """Follow cables from host to host.

    :returns: C(ring) or C(line) and the hosts in the order of the cables, from the first of the group (a line from its first
        listed end), on to the first listed neighbour; C(none) and an empty list for any other shape
    """
    if not 3 <= len(names) <= MOST_RING or set(map(len, segments)) - {2}:
        return "none", []
    neighbours: dict[str, list[str]] = {name: [] for name in names}
    for (first, _first_cage), (second, _second_cage) in segments:
        neighbours[first].append(second)
        neighbours[second].append(first)
    degrees = sorted(map(len, neighbours.values()))
    closed = degrees[0] == 2
    if degrees[0] < 1 or degrees[-1] != 2 or len(segments) != len(names) - (not closed):
        return "none", []
    order = [names[0] if closed else min(names, key=lambda name: len(neighbours[name]))]
    while further := [name for name in names if name in neighbours[order[-1]] and name not in order]:
        order.append(further[0])
    return ("ring" if closed else "line", order) if len(order) == len(names) else ("none", [])


def _spanning(names: Sequence[str], segments: Iterable[Sequence[Cage]]) -> list[Sequence[Cage]]:
    """Return the segments that join all hosts."""
    return [segment for segment in segments if {host for host, _cage in segment} == set(names)]


def name_topology(
    names: Sequence[str], segments: Sequence[Sequence[Cage]], strangers: Mapping[Cage, Iterable[str]]
) -> str:
    """Return the topology of the segments of a group: C(direct), C(switch), C(ring), C(line) or C(none) (not all are joined)."""
    spanning = _spanning(names, segments)
    if not spanning:
        return walk(names, segments)[0]
    # A cage with a cable to a host of another group is no switch; a cage that hears a peer and a stranger is on a switch.
    crowded = any(strangers.get(cage) for segment in spanning for cage in segment)
    return "switch" if len(names) > 2 or crowded or any(len(cages) > len(names) for cages in spanning) else "direct"


@dataclass(frozen=True)
class Cabling:
    """How the hosts of a group are joined.

    assumed: no host has listened; cages that are up, or in one subnet, count as joined. order: hosts
    of a ring or a line in the order of the cables. links: the origin of the segments. silent: cages that are up and heard nobody. known: the
    other end of each cage that is up is known, or known to be outside of the group.
    """

    topology: str
    segments: Sequence[Sequence[Cage]]
    assumed: bool
    order: Sequence[str] = ()
    links: Links = field(default_factory=lambda: Links(set(), {}))
    silent: frozenset[Cage] = frozenset()
    known: bool = False


def find_cabling(hosts: Hosts, requested: str) -> Cabling:
    """Find how the hosts of a group are joined, and the segments that rails are laid on.

    :param requested: one of C(fabric_layout.TOPOLOGIES); any but C(auto) replaces the topology if all hosts are joined
    :returns: the cabling; with C(direct) and C(switch) only segments that join all hosts
    """
    names = list(hosts)
    links = find_links(hosts)
    cages = [(name, cage) for name in names for cage in sorted(up_cages(hosts[name]["fabric"]))]
    segments: Sequence[Sequence[Cage]] = segments_of(cages, links.pairs)
    topology = name_topology(names, segments, links.strangers)
    assumed, heard_all = False, all(entry.get("heard") is not None for entry in hosts.values())
    if topology in APART and not any("heard" in entry for entry in hosts.values()):
        # Nobody has listened: a host that was just booted has not even heard from its neighbours yet.
        assumed = True
        links, segments, topology = _unheard(hosts, links, cages)
        heard_all = set().union(*links.pairs) == set(cages)
        if topology == "line" and not heard_all:
            topology = "none"  # a cable that nobody looked for may be there
    order = walk(names, segments)[1]
    if requested != "auto" and topology not in APART:
        topology = requested
    if topology in ("direct", "switch"):
        segments = _spanning(names, segments)
    met = set().union(*links.pairs, links.strangers)
    return Cabling(
        topology,
        segments,
        assumed,
        order if topology in ("ring", "line") else (),
        links,
        frozenset(set(cages) - met),
        heard_all,
    )


def _unheard(hosts: Hosts, links: Links, cages: Sequence[Cage]) -> tuple[Links, list[list[Cage]], str]:
    """Return the links of hosts that have not listened: by their addresses, else by an assumption.

    A guess may add a cage without an address to what addresses describe; it never joins cages that addresses keep apart.
    """
    names, subnets = list(hosts), subnets_of(hosts)
    # Cages of two hosts in one subnet.
    pairs = links.pairs | {
        frozenset({first, second})
        for first, second in itertools.combinations(subnets, 2)
        if first[0] != second[0] and subnets[first] & subnets[second]
    }
    segments = segments_of(cages, pairs)
    topology = name_topology(names, segments, links.strangers)
    if topology in APART:
        guessed = pairs | assume_links(hosts)
        tried = segments_of(cages, guessed)
        named = name_topology(names, tried, links.strangers)
        if named not in APART and not contradicts(tried, subnets):
            pairs, segments, topology = guessed, tried, named
    return Links(pairs, links.strangers), segments, topology


# --- plugs in the wrong port ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repair:
    """How the nearest ring differs from the cables. order: of its hosts. missing: its cables that are not there, each from port 0 to port 1.
    exchanged: hosts with the plugs of both ports exchanged; missing: cables that are missing after these were corrected."""

    order: Sequence[str]
    missing: Sequence[tuple[Cage, Cage]]
    exchanged: Sequence[str] = ()


def nearest_ring(names: Sequence[str], pairs: Iterable[frozenset[Cage]]) -> Repair | None:
    """Find the ring that needs the fewest cables moved.

    The listed order of hosts takes precedence over equally near ones, because somebody wrote it.

    :param names: of the hosts, three to C(MOST_RING)
    :param pairs: of cages that a cable joins, also two of one host; no cage in two of them
    :returns: the ring, or None where several are as near, so that nobody knows which was meant, or where more than half of the cables
        would have to be moved
    """
    present = set(pairs)
    leads = {
        start: end
        for (start, out), (end, into) in itertools.chain.from_iterable(map(itertools.permutations, present))
        if (out, into) == (0, 1)
    }
    missing = {
        order: sum(leads.get(name) != other for name, other in zip(order, (*order[1:], order[0])))
        for order in ((names[0], *following) for following in itertools.permutations(names[1:]))
    }
    least = min(missing.values())
    nearest = [order for order, count in missing.items() if count == least]
    listed = [order for order in (tuple(names), (names[0], *reversed(names[1:]))) if order in nearest]
    if least > max(2, len(names) // 2) or (len(nearest) > 1 and not listed):
        return None
    return _towards((listed or nearest)[0], present)


def _towards(order: Sequence[str], present: set[frozenset[Cage]]) -> Repair:
    """Say how the ring of an order differs from the cables."""
    expected = [((name, 0), (other, 1)) for name, other in zip(order, [*order[1:], order[0]])]
    ring = set(map(frozenset, expected))
    exchanged = []
    for name in order:
        # Both cables of a host are right once the plugs of its two ports are exchanged.
        turned = {
            frozenset((host, 1 - cage) if host == name else (host, cage) for host, cage in pair) for pair in present
        }
        if len(ring - turned) == len(ring - present) - 2:
            exchanged.append(name)
            present = turned
    return Repair(order, [pair for pair in expected if frozenset(pair) not in present], exchanged)


def _now(cage: Cage, cabling: Cabling) -> str:
    """Return the present peer of the plug in a port."""
    other = next((end for pair in cabling.links.pairs if cage in pair for end in pair if end != cage), None)
    if other is not None:
        return f"its cable ends in {port(other)}"
    outside = sorted(cabling.links.strangers.get(cage, ()))
    if outside:
        return f"its cable leads to {join(outside)}, not of this group"
    if cage in cabling.silent:
        return "it has a link and hears nobody"
    return "it has no link"


def _moves(repair: Repair, cabling: Cabling) -> list[str]:
    """Return each misplaced cable by its two ports, with the plugs in them."""
    texts = [f"the plugs of {port((name, 0))} and {port((name, 1))} are exchanged" for name in repair.exchanged]
    for end, other in repair.missing:
        plug, other_plug = _now(end, cabling), _now(other, cabling)
        state = plug if plug == other_plug and plug.startswith("it ") else f"{plug}, {port(other)}: {other_plug}"
        if end in cabling.silent and other in cabling.silent:
            state = "both have a link and hear nobody, so whether this cable is there is not known"
        texts.append(f"{port(end)} belongs into {port(other)} ({state})")
    return texts


def _recognised_ring(hosts: Hosts, cabling: Cabling) -> Repair | None:
    """Return the nearest ring of these hosts, if it is recognisable: all have a link, and no switch is between."""
    met = [cage for pair in cabling.links.pairs for cage in pair]
    plain = len(met) == len(set(met)) and not any(cage in cabling.links.strangers for cage in met)
    linked = all(up_cages(entry["fabric"]) for entry in hosts.values())
    is_recognisable = 3 <= len(hosts) <= MOST_RING and cabling.known and plain and linked
    return nearest_ring(list(hosts), cabling.links.pairs) if is_recognisable else None


def repair_of(hosts: Hosts, cabling: Cabling) -> Repair | None:
    """Return the nearest ring to wrong cables; None if the cables are right, or the ring is unknown."""
    if cabling.topology == "none":
        return _recognised_ring(hosts, cabling)
    is_wrong_ring = cabling.topology == "ring" and _one_sided(cabling) and cabling.known and not cabling.assumed
    if is_wrong_ring or (cabling.topology == "line" and not _beyond(cabling)):
        recognised = _recognised_ring(hosts, cabling)
        if recognised or not cabling.known:
            return recognised
        # The hosts as the cables lead, the way round that has fewer plugs to move.
        start = list(cabling.order).index(next(iter(hosts)))
        order = [*cabling.order[start:], *cabling.order[:start]]
        ways = [_towards(way, cabling.links.pairs) for way in (order, [order[0], *reversed(order[1:])])]
        return min(ways, key=lambda way: len(way.missing) + len(way.exchanged))
    return None


def _beyond(cabling: Cabling) -> list[Cage]:
    """Return the ends of a line that lead on to hosts outside of the group."""
    return [cage for cage in sorted(cabling.links.strangers) if cage[0] in (cabling.order[0], cabling.order[-1])]


def _one_sided(cabling: Cabling) -> list[Sequence[Cage]]:
    """Return the cables of a ring that join two ports of one side."""
    return [segment for segment in cabling.segments if len({cage for _host, cage in segment}) == 1]


def wrong_plugs(hosts: Hosts, cabling: Cabling) -> dict[str, list[Any]]:
    """Return the errors of the cables, for the page of the network.

    :returns: C(cables), the misplaced ones; C(missing), the places of missing ones; C(ends), ports with a
        link that leads to nobody of the group; each by its two ends, host and cage
    """
    repair = repair_of(hosts, cabling)
    present = set(cabling.links.pairs)
    cables, missing, ends = set(), set(), set()
    if repair:
        expected = ring_of(repair.order)
        cables, missing = present - expected, expected - present
        ends = {end for pair in missing for end in pair} & {*cabling.links.strangers, *cabling.silent}
    elif cabling.topology == "ring":
        cables = {frozenset(segment) for segment in _one_sided(cabling)}
    elif cabling.topology == "line":
        ends = set(_beyond(cabling))
    elif cabling.topology == "none" and cabling.known:
        cables, ends = _own_alone(cabling), {*cabling.silent, *cabling.links.strangers}
    pairs = {"cables": cables, "missing": missing}
    return {
        **{name: sorted([list(end) for end in sorted(pair)] for pair in plugged) for name, plugged in pairs.items()},
        "ends": [list(end) for end in sorted(ends)],
    }


def port_states(hosts: Hosts, cabling: Cabling) -> dict[str, dict[str, str]]:
    """Return the state of each port, by host and cage.

    C(joined) to a port of the group, C(outside), C(silent): a link and nobody heard, or C(dark): no link.
    """
    met = {end for pair in cabling.links.pairs for end in pair}

    def state(cage: Cage, up: bool) -> str:
        if not up:
            return "dark"
        return "joined" if cage in met else "outside" if cage in cabling.links.strangers else "silent"

    up = {name: up_cages(entry["fabric"]) for name, entry in hosts.items()}
    return {name: {str(cage): state((name, cage), cage in up[name]) for cage in (0, 1)} for name in hosts}


RING_WAY = "A ring goes from port 0 of each Spark into port 1 of the next, from the last into the first."


def judge_cabling(hosts: Hosts, cabling: Cabling) -> Iterator[Finding]:
    """Yield the findings about the cabling of a group."""
    segments = cabling.segments
    if cabling.topology == "none" and cabling.assumed and not cabling.known:
        yield from _judge_unknown(hosts, cabling)
    elif cabling.topology in APART:
        yield from (_judge_apart if cabling.topology == "none" else _judge_line)(hosts, cabling)
        yield from _judge_assumed(cabling)
    else:
        if cabling.topology == "ring":
            yield from _judge_ring(hosts, cabling)
        elif len(segments) > 1 and cabling.topology == "direct":
            message = "two cables join the Sparks; one carries the full 200 Gb/s already."
            source = "NVIDIA Sync's cluster assistant: two cables will not increase performance"
            yield make_finding("second_cable", "info", message, "", source)
        for segment in segments if cabling.topology != "ring" else ():
            if len({cage for _host, cage in segment}) > 1 and len(segment) == len(hosts):
                yield make_finding(
                    "unequal_cages",
                    "info",
                    f"the cable is in different cages ({join(f'{host} cage {cage}' for host, cage in segment)}), so interface "
                    "names differ by host; the environment of engines is made for each host.",
                    "With the Ray executor the variables of per_host must be kept from being copied to the workers.",
                    "spark-arena/sparkrun#135",
                )
        yield from _judge_assumed(cabling)
        yield from _judge_strangers(cabling)


LISTEN = "Run dgxspark.vllm.spark_info with gather=cabling on all hosts of the group at once"


def _judge_assumed(cabling: Cabling) -> Iterator[Finding]:
    """Yield a finding if no host has listened."""
    if cabling.assumed and cabling.segments:
        message = (
            "which cage is cabled to which was not tried out; cages whose addresses share a subnet are taken to belong together, else those "
            "that are up."
        )
        yield make_finding("assumed", "info", message, f"{LISTEN}.")


def _judge_unknown(hosts: Hosts, cabling: Cabling) -> Iterator[Finding]:
    """Name the ports of which addresses do not say what they lead to, where all hosts have one with a link."""
    if not all(up_cages(entry["fabric"]) for entry in hosts.values()):
        return
    met = {cage for pair in cabling.links.pairs for cage in pair}
    open_ends = [
        port(cage) + (f" ({', '.join(sorted(map(str, subnets)))})" if subnets else "")
        for cage, subnets in subnets_of(hosts).items()
        if cage not in met
    ]
    message = (
        f"the cabling of the hosts is not known: links were not probed, and no address shows where {join(open_ends)} "
        f"{'leads' if len(open_ends) == 1 else 'lead'}."
    )
    fix = f"{LISTEN}; the role fabric does, before it changes anything."
    yield make_finding("cabling_unknown", "warning", message, fix)


def _judge_strangers(cabling: Cabling) -> Iterator[Finding]:
    """Name the ports that lead to hosts outside of the group, which are left alone."""
    used = {cage for segment in cabling.segments for cage in segment}
    for cage, outside in sorted(cabling.links.strangers.items()):
        leads = "is on a switch with" if cage in used else "leads to"
        message = f"{port(cage)} {leads} {join(sorted(outside))}, not of this group."
        fix = "Nothing, if this is intended. Clusters on one switch need a fabric_network each."
        yield make_finding("others", "info", message, fix)


def _judge_apart(hosts: Hosts, cabling: Cabling) -> Iterator[Finding]:
    """Yield findings about hosts that no link joins, if all have a cage with a link; and about plugs, if a ring can be recognised."""
    linked = [name for name in hosts if up_cages(hosts[name]["fabric"])]
    repair = repair_of(hosts, cabling)
    if repair:
        message = f"the cables make no ring: {'; '.join(_moves(repair, cabling))}."
        fix = f"Move these plugs, then run again. {RING_WAY}{_listed(hosts, repair.order)}"
        yield make_finding("miscabled", "error", message, fix, RINGS)
        return
    together = [{host for host, _cage in segment} for segment in cabling.segments]
    apart = [
        pair for pair in itertools.combinations(linked, 2) if not any(set(pair) <= members for members in together)
    ]
    if not apart or len(linked) != len(hosts):
        return
    yield make_finding(
        "not_joined",
        "error",
        _apart_message(hosts, cabling, _islands(linked, together), apart),
        "Check the cables; hosts of other pairs do not belong in the group. Three to eight Sparks are a ring, a cable from port 0 "
        "of each into port 1 of the next, or hang on one switch. All hosts must listen at once: with many, set Ansible's forks to "
        "their number.",
        PLAYBOOK,
    )
    for host in sorted({host for pair in _own_alone(cabling) for host, _cage in pair}):
        message = f"{host}: a cable joins port 0 with port 1 of the same Spark."
        yield make_finding("own_cable", "error", message, "Move one end of it to another Spark.")
    yield from _judge_strangers(cabling)


def _apart_message(
    hosts: Hosts, cabling: Cabling, islands: Sequence[Sequence[str]], apart: Sequence[tuple[str, str]]
) -> str:
    """Return the message about hosts that are not joined. islands: groups of joined hosts; apart: pairs that are not."""
    alone = [island[0] for island in islands if len(island) == 1]
    if len(islands) == 2 and len(alone) == 1 and any(len(segment) > 2 for segment in cabling.segments):
        ports = join(port((alone[0], cage)) for cage in sorted(up_cages(hosts[alone[0]]["fabric"])))
        return (
            f"{ports} of the group reaches none of {join(name for name in hosts if name != alone[0])}, which hang on one switch: "
            "wrong switch, VLAN or bridge."
        )
    if len(hosts) > 3 and len(islands) > 1:
        return f"no QSFP link joins {'; '.join(join(island) for island in islands)} with one another; which plug is wrong is not known."
    return f"no QSFP link joins {join(f'{first} with {second}' for first, second in apart)}: the cages of one " + (
        "have no address of a subnet of the other." if cabling.assumed else "receive nothing from the other."
    )


def _own_alone(cabling: Cabling) -> set[frozenset[Cage]]:
    """Return the cables that join the two ports of one host, which no switch explains."""
    pairs = cabling.links.pairs
    return {pair for pair in pairs if len(dict(pair)) == 1 and not any(pair & other for other in pairs - {pair})}


def _islands(names: Sequence[str], together: Iterable[set[str]]) -> list[list[str]]:
    """Return groups of hosts that links join, directly or through others."""
    islands: list[set[str]] = [{name} for name in names]
    for members in together:
        touched = [island for island in islands if island & members]
        islands = [island for island in islands if island not in touched]
        islands.append(set().union(*touched))
    ordered = [[name for name in names if name in island] for island in islands]
    return sorted(ordered, key=lambda island: names.index(island[0]))


def _judge_line(hosts: Hosts, cabling: Cabling) -> Iterator[Finding]:
    """Yield a finding about the plugs that close a line to a ring."""
    repair = repair_of(hosts, cabling)
    outside = sorted({name for cage in _beyond(cabling) for name in cabling.links.strangers[cage]})
    if outside:
        fix = f"Its ends lead on to {join(outside)}, not of this group: put {'it' if len(outside) == 1 else 'them'} in, or join the ends."
    elif repair:
        fix = f"{'; '.join(_moves(repair, cabling))}. {RING_WAY}{_listed(hosts, repair.order)}"
    else:
        fix = f"Join its two ends by a cable. {RING_WAY}"
    message = f"the cables make a line of {join(cabling.order)}: its ends are not joined, and NCCL sends from the last rank to the first."
    yield make_finding("line", "error", message, fix, "spark-vllm-docker refuses open chains")


def _judge_ring(hosts: Hosts, cabling: Cabling) -> Iterator[Finding]:
    """Judge the cables of a ring: each is to join port 0 with port 1, and ranks are to follow them."""
    names, wrong, repair = list(hosts), _one_sided(cabling), repair_of(hosts, cabling)
    fix = "Move one end of it."
    if repair:
        fix = f"{'; '.join(_moves(repair, cabling))}.{_listed(hosts, repair.order)}"
    for (first, cage), (second, _cage) in wrong:
        message = (
            f"the cable between {first} and {second} joins cage {cage} with cage {cage}; in a ring each joins cage 0 "
            "with cage 1, else NCCL ends with 'ibv_modify_qp failed with 110'."
        )
        yield make_finding("ring_cabling", "error", message, fix, "sparkrun; luxingcom/aicad-nccl-optimization#1")
    if not wrong and cabling.order and list(cabling.order) != names:
        message = (
            f"the cables lead {' - '.join([*cabling.order, cabling.order[0]])}, the group lists {', '.join(names)}. NCCL's ring goes "
            "from rank to rank in the order of the group, and no cable joins hosts that are not neighbours."
        )
        fix = f"List the hosts of the group as {', '.join(cabling.order)}, without head, or move the cables."
        yield make_finding("ring_order", "error", message, fix, RINGS)


def _listed(hosts: Hosts, order: Sequence[str]) -> str:
    """Return a finding about the listed order of hosts, if it is wrong."""
    names = list(hosts)
    if list(order) in (names, [names[0], *reversed(names[1:])]):
        return ""
    return f" The group has to list its hosts as {', '.join(order)} then."
