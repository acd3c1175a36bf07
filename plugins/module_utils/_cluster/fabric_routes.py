# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find how the hosts of a fabric reach each other: addresses of engines, routes of a relay, and the pings that test both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common.findings import Finding
from .cabling import Cabling, Hosts, join, make_finding, network_of
from .engine_env import Place
from .fabric_layout import (
    BELOW_FABRIC,
    ETHERNET_MTU,
    WRITES,
    Interface,
    Layout,
    Rail,
    Settings,
)


@dataclass(frozen=True)
class Route:
    """A route of one host to a subnet without its own interface: through which neighbour, from which interface."""

    to: str
    via: str
    netdev: str
    source: str


def plan_relay(
    cabling: Cabling, rails: Sequence[Rail], actions: Mapping[str, str], settings: Settings
) -> dict[str, list[Route]]:
    """Plan routes to the far cables of a ring, the shorter way round, first interfaces by first ones and second by second.

    Each host on the way has to forward (net.ipv4.ip_forward, and Docker's chain DOCKER-USER, as Docker drops forwarded packets).
    Engines do not need it: NCCL's ring goes from neighbour to neighbour. It is for hosts without another common network.

    :param actions: of the hosts; routes are written if all networks may be written
    """
    order = list(cabling.order)
    if not settings.relay or cabling.topology != "ring" or len(order) < 4:
        return {}
    if not all(rail.works for rail in rails) or not all(action in WRITES for action in actions.values()):
        return {}
    size = len(order)
    numbers = {name: number for number, name in enumerate(order)}
    cables: dict[tuple[int, int], Rail] = {}
    for rail in rails:
        low, high = sorted(numbers[interface.host] for interface in rail.interfaces)
        cables[(high if (low, high) == (0, size - 1) else low, rail.position)] = rail
    return {name: _routes_from(name, number, size, cables) for name, number in numbers.items()}


def _routes_from(name: str, number: int, size: int, cables: Mapping[tuple[int, int], Rail]) -> list[Route]:
    """Return the routes. cables: rails by the place of their first host and their position."""
    routes = []
    for (cable, position), rail in cables.items():
        onward, back = (cable - number) % size, (number - cable - 1) % size
        if not onward or not back:
            continue  # the host is an end of this cable
        first = cables.get((number if onward <= back else (number - 1) % size, position))
        if first is None:
            continue
        source = next(interface for interface in first.interfaces if interface.host == name)
        neighbour = next(interface for interface in first.interfaces if interface.host != name)
        routes.append(
            Route(rail.subnet, neighbour.final.partition("/")[0], source.name, source.final.partition("/")[0])
        )
    return routes


def forwards(ends: Sequence[tuple[Rail, Interface]]) -> list[dict[str, str]]:
    """Return pairs of interfaces between which a host of a ring forwards, both ways: from one cage to the same interface of the other."""
    return [
        {"from": source.name, "to": target.name}
        for rail, source in ends
        for another, target in ends
        if source.cage != target.cage and rail.position == another.position
    ]


def far_pings(name: str, rails: Sequence[Rail], relay: Mapping[str, Sequence[Route]]) -> list[dict[str, Any]]:
    """Return the pings of a host to hosts that are no neighbours, over the relay, once the addresses are set."""
    if any(interface.present != interface.final for rail in rails for interface in rail.interfaces):
        return []
    tests = []
    near = {other.host for rail in rails if name in rail.hosts for other in rail.interfaces}
    by_subnet = {rail.subnet: rail for rail in rails}
    for route in relay.get(name, ()):
        source = next(
            interface
            for rail in rails
            for interface in rail.interfaces
            if (interface.host, interface.name) == (name, route.netdev)
        )
        tests += [
            {
                **_ping(f"{by_subnet[route.to].name}, by {route.via}", name, route.netdev, route.source),
                **_target(other.host, other.final, max(source.mtu, other.mtu)),
            }
            for other in by_subnet[route.to].interfaces
            if other.host not in near
        ]
    return tests


def meeting_pings(name: str, hosts: Hosts, rails: Sequence[Rail], places: Mapping[str, Place]) -> list[dict[str, Any]]:
    """Return the pings of a host of a ring over the network where its engines meet, once the ring has its addresses."""
    place_of_host = places[name]
    if not place_of_host.management or any(
        interface.present != interface.final for rail in rails for interface in rail.interfaces
    ):
        return []
    mtus = {
        host: int((hosts[host]["fabric"].get("mtus") or {}).get(place.netdev) or 0) for host, place in places.items()
    }
    return [
        {
            **_ping("management", name, place_of_host.netdev, place_of_host.address),
            **_target(other, place.address, max(mtus[name], mtus[other]) or ETHERNET_MTU),
        }
        for other, place in places.items()
        if other != name and place.management
    ]


def judge_meeting(
    layout: Layout, topology: str, actions: Mapping[str, str], relay: Mapping[str, Sequence[Route]]
) -> Iterator[Finding]:
    """Find what keeps the engines of a ring from finding each other, and a relay that was asked for and cannot be."""
    hosts = layout.hosts
    if topology != "ring":
        return
    if layout.settings.relay and not relay and len(hosts) > 3:
        foreign = [name for name, action in actions.items() if action not in WRITES]
        keeps = f"{join(foreign)} keeps a network of somebody else"
        why = keeps if foreign else "an interface of the ring has no address"
        message = f"fabric_relay is set, and no routes are written: {why}."
        fix = f"Write the routes by hand, or take fabric_relay out{BELOW_FABRIC}."
        yield make_finding("no_relay", "warning", message, fix)
        return
    lost = [
        name
        for name in hosts
        if actions[name] != "refuse" and not place_of(name, hosts, layout.rails, topology).address
    ]
    if lost and layout.rails and not relay:
        message = f"{join(lost)}: no network other than the ring is known, and no rail of a ring reaches all hosts, so engines cannot find each other."
        fix = "Join all hosts by the RJ45 port too"
        fix += f", or set fabric_relay: true{BELOW_FABRIC}." if len(hosts) > 3 else "."
        source = "spark-vllm-docker, sparkring and NVIDIA's playbook for three Sparks start engines over the management network"
        yield make_finding("no_meeting", "error", message, fix, source)


def place_of(name: str, hosts: Hosts, rails: Sequence[Rail], topology: str, relay: bool = False) -> Place:
    """Return the address at which the others reach a host once the plan is carried out: on the first rail with all hosts.

    No rail of a ring reaches all hosts; there it is the management network, and the rails carry the data only. With a relay, hosts
    without a common management network are reached by their first rail.

    :param relay: whether hosts of a ring forward packets for others
    """
    ends = _working_ends(name, rails)
    devices = tuple(str(interface.rdma["name"]) for _rail, interface in ends if interface.rdma.get("state") == "ACTIVE")
    reaching_all = next((interface for rail, interface in ends if len(rail.hosts) == len(hosts)), None)
    if reaching_all:
        return Place(reaching_all.name, reaching_all.final.partition("/")[0], devices)
    if topology != "ring" or not ends:
        return Place()
    if relay and not all(map(_management_netdev, hosts.values())):
        return Place(ends[0][1].name, ends[0][1].final.partition("/")[0], devices)
    netdev = _management_netdev(hosts[name])
    return Place(netdev, str(hosts[name]["management_address"]), devices, True) if netdev else Place()


def _working_ends(name: str, rails: Sequence[Rail]) -> list[tuple[Rail, Interface]]:
    return [
        (rail, interface) for rail in rails if rail.works for interface in rail.interfaces if interface.host == name
    ]


def _management_netdev(entry: Mapping[str, Any]) -> str:
    """Return the interface of a host that has its management address, or an empty text."""
    address = str(entry.get("management_address") or "")
    networks = entry["fabric"].get("networks") or {}
    netdevs = (dev for dev, addresses in networks.items() if any(a.startswith(f"{address}/") for a in addresses))
    return next(netdevs, "") if address else ""


def open_to(name: str, hosts: Hosts, rails: Sequence[Rail], place: Place, relay: bool = False) -> dict[str, list[str]]:
    """Return C({fabric, peers}): interfaces on which packets of the peers arrive, and the networks of the peers.

    In a ring this includes the management network, limited to the addresses of the peers.

    :param relay: whether packets of others than neighbours arrive by the rails too
    """
    ends = _working_ends(name, rails)
    netdevs = {interface.name for _rail, interface in ends}
    peers = {str(network_of(interface.final)) for _rail, interface in ends}
    if relay:
        peers |= {rail.subnet for rail in rails}
    if place.management:
        netdevs.add(place.netdev)
        peers |= {str(entry["management_address"]) for host, entry in hosts.items() if host != name}
    return {"fabric": sorted(netdevs), "peers": sorted(peers)}


def pings(name: str, rails: Sequence[Rail]) -> list[dict[str, Any]]:
    """Return the pings of a host over its present rails: packets that fill the larger MTU of the two ends."""
    return [
        {
            **_ping(rail.name, name, interface.name, interface.present),
            **_target(other.host, other.present, max(interface.mtu, other.mtu)),
        }
        for rail in rails
        for interface in rail.configured
        for other in rail.configured
        if interface.host == name and other is not interface
    ]


def _ping(rail: str, host: str, netdev: str, source: str) -> dict[str, Any]:
    """Return the source of a ping. source: an address, or CIDR."""
    return {"rail": rail, "host": host, "netdev": netdev, "source": source.partition("/")[0]}


def _target(host: str, address: str, mtu: int) -> dict[str, Any]:
    """Return the target of a ping and its size: it fills the MTU."""
    return {"target": address.partition("/")[0], "target_host": host, "size": mtu - 28}  # IP and ICMP
