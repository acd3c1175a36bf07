# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two to eight Sparks, cabled rightly and wrongly: the shape is recognised, a fault is named by its ports or called not known.

A case is cables between ports; what hosts hear follows from them, as broadcast frames do. A fix that is named is carried out on
the cables, and the plan is asked again: it must have nothing left to say.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import cabling, fabric, fabric_layout
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template

Cage = tuple[str, int]
NETDEVS = {0: ("enp1s0f0np0", "enP2p1s0f0np0"), 1: ("enp1s0f1np1", "enP2p1s0f1np1")}
CABLING = {
    "fabric.line",
    "fabric.miscabled",
    "fabric.no_connectx",
    "fabric.no_link",
    "fabric.not_joined",
    "fabric.own_cable",
    "fabric.ring_cabling",
    "fabric.ring_order",
}


@dataclass
class Plant:
    """Hosts and their plugs. deaf: cables that carry a link and no frames; off: hosts without power; outside: ports that lead
    to hosts of others; switches: ports that hear each other."""

    names: list[str]
    cables: set[frozenset[Cage]] = field(default_factory=set)
    switches: list[set[Cage]] = field(default_factory=list)
    outside: dict[Cage, str] = field(default_factory=dict)
    deaf: set[frozenset[Cage]] = field(default_factory=set)
    off: set[str] = field(default_factory=set)

    def hears(self, cage: Cage) -> set[Cage]:
        """Ports whose frames arrive at a port."""
        ends = {end for cable in self.cables - self.deaf if cage in cable for end in cable}
        ends |= {end for switch in self.switches if cage in switch for end in switch}
        return {end for end in ends if end != cage and end[0] not in self.off}

    def lit(self, cage: Cage) -> bool:
        """Whether a port has a link."""
        if cage[0] in self.off:
            return False
        cable = next((cable for cable in self.cables if cage in cable), None)
        on_cable = cable is not None and not any(host in self.off for host, _cage in cable)
        return on_cable or cage in self.outside or any(cage in switch for switch in self.switches)

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Return the facts of the hosts for C(fabric.plan)."""
        return {name: self._host(number, name) for number, name in enumerate(self.names, 1)}

    def _host(self, number: int, name: str) -> dict[str, Any]:
        ports, heard = [], []
        for cage, netdevs in NETDEVS.items():
            ports.append({"cage": cage, "netdevs": [self._netdev(number, (name, cage), netdev) for netdev in netdevs]})
            peers = [(host, peer) for host, other in sorted(self.hears((name, cage))) for peer in NETDEVS[other]]
            if (name, cage) in self.outside:
                peers += [(self.outside[(name, cage)], peer) for peer in NETDEVS[0]]
            heard += [{"netdev": netdev, "host": host, "peer": peer} for netdev in netdevs for host, peer in peers]
        card = name not in self.off and any(self.lit((name, cage)) for cage in NETDEVS)
        management = f"10.0.0.{number}"
        return {
            "fabric": {
                "connectx": card,
                "ports": ports if card else [],
                "networks": {"enP7s7": [f"{management}/24"]},
            },
            "heard": heard,
            "management_address": management,
        }

    def _netdev(self, number: int, cage: Cage, name: str) -> dict[str, Any]:
        index = [netdev for netdevs in NETDEVS.values() for netdev in netdevs].index(name)
        return {
            "name": name,
            "up": self.lit(cage),
            "mac": f"3c:6d:66:cc:{number:02x}:{index:02x}",
            "mtu": 9000,
            "addresses": [],
            "stored": [],
            "neighbours": [],
            "rdma": {"name": name.replace("en", "roce"), "state": "ACTIVE", "gids": []},
        }


def names_of(size: int) -> list[str]:
    return [f"spark-{number}" for number in range(1, size + 1)]


def ring(size: int, mirrored: bool = False) -> Plant:
    names = names_of(size)
    order = [names[0], *reversed(names[1:])] if mirrored else names
    return Plant(names, cabling.ring_of(order))


def switch(size: int, cage: int = 0) -> Plant:
    names = names_of(size)
    return Plant(names, switches=[{(name, cage) for name in names}])


def judged(plant: Plant, **settings: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    plan = fabric.plan(plant.hosts(), fabric_layout.Settings(**settings))
    return plan, [
        finding for finding in plan["findings"] if finding["rule"] in CABLING and finding["severity"] == "error"
    ]


def texts(findings: list[dict[str, Any]]) -> str:
    return " ".join(f"{finding['message']} {finding['fix']}" for finding in findings)


# --- shapes


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", range(3, 9))
def test_rings_of_three_to_eight(size: int, mirrored: bool) -> None:
    plan, errors = judged(ring(size, mirrored))
    assert (plan["topology"], errors) == ("ring", [])
    assert len({rail["subnet"] for rail in plan["rails"]}) == 2 * size == len(plan["rails"])
    for host in plan["hosts"].values():
        assert len(host["netplan"]["network"]["ethernets"]) == 4
        assert host["environment"]["mp"]["NCCL_IB_HCA"].count("roce") == 4


@pytest.mark.parametrize("size", range(2, 9))
def test_switches_of_two_to_eight(size: int) -> None:
    plan, errors = judged(switch(size, cage=size % 2))
    assert plan["topology"] == ("switch" if size > 2 else "direct") and errors == []
    assert len(plan["rails"]) == 2
    netdev = NETDEVS[size % 2][0]
    assert {host["environment"]["mp"]["GLOO_SOCKET_IFNAME"] for host in plan["hosts"].values()} == {netdev}
    assert [host["address"] for host in plan["hosts"].values()] == [f"192.168.100.{10 + n}" for n in range(size)]


@pytest.mark.parametrize("size", range(3, 9))
def test_a_line_is_refused_with_the_cable_that_closes_it(size: int) -> None:
    plant = ring(size)
    plant.cables.remove(frozenset({("spark-1", 1), (f"spark-{size}", 0)}))
    plan, errors = judged(plant)
    assert (plan["topology"], plan["ready"], plan["rails"]) == ("line", False, [])
    assert [error["rule"] for error in errors] == ["fabric.line"]
    assert f"spark-{size} port 0 belongs into spark-1 port 1 (it has no link)" in errors[0]["fix"]
    assert all(host["environment"]["mp"] == {} for host in plan["hosts"].values())


def test_three_of_a_ring_of_four_lack_the_fourth() -> None:
    plant = Plant(names_of(3), {cable for cable in ring(4).cables if all(host != "spark-4" for host, _cage in cable)})
    plant.outside = {("spark-3", 0): "spark-4", ("spark-1", 1): "spark-4"}
    plan, (line,) = judged(plant)
    assert plan["topology"] == "line" and "lead on to spark-4, not of this group: put it in" in line["fix"]


def test_nobody_listened_and_both_ports_are_up() -> None:
    for size in range(3, 9):
        hosts = ring(size).hosts()
        for entry in hosts.values():
            del entry["heard"]
        plan = fabric.plan(hosts)
        assert plan["topology"] == "ring"
        assert [finding["rule"] for finding in plan["findings"]] == ["fabric.assumed"]


def unheard(plant: Plant, plan: dict[str, Any], keep: bool = True) -> dict[str, dict[str, Any]]:
    """Return the facts of hosts that have the addresses of a plan, and have not listened since. keep: also on ports that lost their link."""
    hosts = live(plant, plan)
    for entry in hosts.values():
        del entry["heard"]
        for netdev in (result for port in entry["fabric"]["ports"] for result in port["netdevs"]):
            netdev["addresses"] = netdev["addresses"] if keep or netdev["up"] else []
    return hosts


def cabling_said(plan: dict[str, Any]) -> list[str]:
    """Return the rules of findings about cables and addresses, except "links were not probed"."""
    return [
        finding["rule"] for finding in plan["findings"] if finding["rule"] not in ("fabric.assumed", "fabric.others")
    ]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("size", range(3, 9))
def test_a_settled_ring_that_lost_a_cable_is_a_line_also_before_anybody_listens(size: int, keep: bool) -> None:
    """Its addresses show the other cables; no further cable is guessed."""
    plan = judged(ring(size))[0]
    for cable in ring(size).cables:
        plant = ring(size)
        plant.cables.remove(cable)
        result = fabric.plan(unheard(plant, plan, keep))
        assert (result["topology"], result["ready"], cabling_said(result)) == ("line", False, ["fabric.line"])
        assert mend(plant, texts(result["findings"])) and plant.cables == ring(size).cables
        assert "fabric.assumed" in [finding["rule"] for finding in result["findings"]]


@pytest.mark.parametrize("size", range(3, 9))
def test_what_addresses_leave_open_is_called_not_known_before_anybody_listens(size: int) -> None:
    plan = judged(ring(size))[0]
    # The other end of a plug that was moved to a switch of somebody else: it has a link, and no host has an address of its subnet.
    plant = ring(size)
    plant.cables.remove(frozenset({("spark-1", 0), ("spark-2", 1)}))
    plant.outside = {("spark-2", 1): "elsewhere"}
    result = fabric.plan(unheard(plant, plan))
    assert (result["topology"], cabling_said(result)) == ("none", ["fabric.cabling_unknown"])
    (message,) = result["findings"]
    assert message["severity"] == "warning" and "no address shows where spark-2 port 1 (192.168." in message["message"]
    # Two hosts that a guess would join have addresses that keep them apart.
    hosts = unheard(switch(size), judged(switch(size))[0])
    for netdev in hosts["spark-3"]["fabric"]["ports"][0]["netdevs"]:
        netdev["addresses"] = [netdev["addresses"][0].replace("192.168.", "10.7.")]
    result = fabric.plan(hosts)
    assert (result["topology"], cabling_said(result)) == ("none", ["fabric.cabling_unknown"])


@pytest.mark.parametrize("size", range(3, 9))
def test_a_host_without_addresses_joins_what_the_others_have(size: int) -> None:
    """A newly installed host is planned with the others as before anybody listened."""
    for plant in (ring(size), switch(size)):
        plan = judged(plant)[0]
        hosts = unheard(plant, plan)
        for netdev in (entry for port in hosts["spark-2"]["fabric"]["ports"] for entry in port["netdevs"]):
            netdev.update(addresses=[], stored=[])
        result = fabric.plan(hosts)
        assert (result["topology"], cabling_said(result)) == (plan["topology"], [])
        assert result["hosts"]["spark-2"]["action"] == "configure"


def test_addresses_of_two_pairs_do_not_make_a_ring_of_four() -> None:
    """Both of its other cables are out."""
    plan = judged(ring(4))[0]
    plant = ring(4)
    plant.cables -= {frozenset({("spark-2", 0), ("spark-3", 1)}), frozenset({("spark-4", 0), ("spark-1", 1)})}
    result = fabric.plan(unheard(plant, plan))
    assert (result["topology"], cabling_said(result)) == ("none", ["fabric.miscabled"])
    assert mend(plant, texts(result["findings"])) and plant.cables == ring(4).cables


def test_two_pairs_on_one_switch_hear_each_other_and_plan_for_themselves() -> None:
    crowd = names_of(4)
    for pair, outside in ((crowd[:2], crowd[2:]), (crowd[2:], crowd[:2])):
        plant = Plant(pair, switches=[{(name, 0) for name in pair}])
        hosts = plant.hosts()
        for entry in hosts.values():
            entry["heard"] += [{"netdev": NETDEVS[0][0], "host": other, "peer": NETDEVS[0][0]} for other in outside]
        plan = fabric.plan(hosts)
        assert plan["topology"] == "switch" and len(plan["rails"]) == 2
        messages = [finding["message"] for finding in plan["findings"] if finding["rule"] == "fabric.others"]
        assert messages == [
            f"{name} port 0 is on a switch with {outside[0]} and {outside[1]}, not of this group." for name in pair
        ]


def test_two_of_a_ring_of_four_use_their_cable_and_leave_the_others_alone() -> None:
    plant = Plant(names_of(2), {frozenset({("spark-1", 0), ("spark-2", 1)})})
    plant.outside = {("spark-2", 0): "spark-3", ("spark-1", 1): "spark-4"}
    plan, errors = judged(plant)
    assert (plan["topology"], errors) == ("direct", [])
    assert plan["hosts"]["spark-1"]["environment"]["mp"]["NCCL_IB_HCA"].count("roce") == 2
    assert [finding["message"] for finding in plan["findings"] if finding["rule"] == "fabric.others"] == [
        "spark-1 port 1 leads to spark-4, not of this group.",
        "spark-2 port 0 leads to spark-3, not of this group.",
    ]


def test_ranks_follow_the_cables() -> None:
    plant = ring(4)
    plant.names = ["spark-1", "spark-3", "spark-2", "spark-4"]
    plan, (order,) = judged(plant)
    assert plan["topology"] == "ring" and order["rule"] == "fabric.ring_order"
    assert "List the hosts of the group as spark-1, spark-2, spark-3, spark-4" in order["fix"]
    plant.names = ["spark-3", "spark-2", "spark-1", "spark-4"]
    assert judged(plant)[1] == []


# --- the way round a ring


def live(plant: Plant, plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The hosts once the plan was carried out."""
    hosts = plant.hosts()
    for name, entry in hosts.items():
        ethernets = plan["hosts"][name]["netplan"]["network"]["ethernets"]
        for netdev in (result for port in entry["fabric"]["ports"] for result in port["netdevs"]):
            stored = {"path": fabric_layout.NETPLAN_FILE, "persistent": True, "alone": True, "managed": True}
            if netdev["name"] in ethernets:
                netdev.update(addresses=ethernets[netdev["name"]]["addresses"], stored=[stored])
    return hosts


def without_relay(plan: dict[str, Any]) -> dict[str, Any]:
    return {name: host["netplan"]["network"]["ethernets"] for name, host in plan["hosts"].items()}


@pytest.mark.parametrize("size", range(4, 9))
def test_routes_reach_every_address_over_neighbours(size: int) -> None:
    """Packets are led by the routes of each host on the way; none is lost, and none goes further than half round."""
    plan, _errors = judged(ring(size), relay=True)
    owner = {end["address"].split("/")[0]: host for rail in plan["rails"] for host, end in rail["ends"].items()}
    subnets = {rail["subnet"]: set(rail["ends"]) for rail in plan["rails"]}
    routes = {
        name: {route["to"]: route["via"] for netdev in host_plan.values() for route in netdev.get("routes", [])}
        for name, host_plan in without_relay(plan).items()
    }
    for name in plan["hosts"]:
        for rail in plan["rails"]:
            for target, end in rail["ends"].items():
                start, hops = name, 0
                while target != start and start not in subnets[rail["subnet"]]:
                    start, hops = owner[routes[start][rail["subnet"]]], hops + 1
                assert hops <= size // 2, (name, target, end)
    for host in plan["hosts"].values():
        assert len(host["relay"]) == 4  # two interfaces of each port, both ways
        assert len({(way["from"], way["to"]) for way in host["relay"]}) == 4


def test_the_unit_of_a_relay_lets_each_way_through_once() -> None:
    plan, _errors = judged(ring(4), relay=True)
    host_plan = plan["hosts"]["spark-1"]
    text = render_template("fabric/relay.service.j2", {"__fabric_own": host_plan})
    added = re.findall(
        r"^ExecStart=/usr/sbin/iptables -w -I DOCKER-USER -i (\S+) -o (\S+) -j ACCEPT$", text, re.MULTILINE
    )
    assert added == [(way["from"], way["to"]) for way in host_plan["relay"]]
    # An existing rule is removed before it is added, and again at the end; a missing one is no failure.
    assert text.count("=-/usr/sbin/iptables -w -D DOCKER-USER") == 2 * len(added)
    assert "ExecStart=/usr/sbin/sysctl -q -w net.ipv4.ip_forward=1\n" in text and "{" not in text


def test_without_a_relay_nothing_is_routed() -> None:
    for size in (3, 4, 8):
        plan, _errors = judged(ring(size))
        assert not any("routes" in host_plan for host in without_relay(plan).values() for host_plan in host.values())
        assert not any("relay" in host for host in plan["hosts"].values())
    plan, _errors = judged(ring(3), relay=True)
    assert not any("relay" in host for host in plan["hosts"].values())  # all are neighbours


def test_far_hosts_are_pinged_once_the_addresses_are_there() -> None:
    plant = ring(5)
    plan, _errors = judged(plant, relay=True)
    assert plan["hosts"]["spark-1"]["pings"] == []
    after = fabric.plan(live(plant, plan), fabric_layout.Settings(relay=True))
    assert after["ready"]
    targets = {ping["target_host"] for ping in after["hosts"]["spark-1"]["pings"]}
    assert targets == {"spark-2", "spark-3", "spark-4", "spark-5"}
    assert {ping["size"] for ping in after["hosts"]["spark-1"]["pings"] if ping["rail"] != "management"} == {8972}
    hosts = [
        {key: host[key] for key in ("address", "netdev", "environment", "firewall")} for host in plan["hosts"].values()
    ]
    assert hosts == [
        {key: host[key] for key in ("address", "netdev", "environment", "firewall")} for host in after["hosts"].values()
    ]


def test_the_network_by_which_ranks_of_a_ring_meet_is_pinged_with_packets_that_fill_its_mtu() -> None:
    plant = ring(4)
    for relay in (False, True):
        hosts = live(plant, judged(plant, relay=relay)[0])
        hosts["spark-3"]["fabric"]["mtus"] = {"enP7s7": 9000}
        host_plans = fabric.plan(hosts, fabric_layout.Settings(relay=relay))["hosts"]
        sent = {name: [p for p in host["pings"] if p["rail"] == "management"] for name, host in host_plans.items()}
        # The larger MTU of two ends is what gets lost on the way.
        sizes = {ping["target_host"]: ping["size"] for ping in sent["spark-1"]}
        assert sizes == {"spark-2": 1472, "spark-3": 8972, "spark-4": 1472}
        assert {ping["size"] for ping in sent["spark-3"]} == {8972}
        assert {(p["netdev"], p["source"], p["target"]) for p in sent["spark-2"]} == {
            ("enP7s7", "10.0.0.2", f"10.0.0.{number}") for number in (1, 3, 4)
        }
    # On a switch and in a pair they meet over the rails, which are pinged anyway.
    plan = fabric.plan(live(switch(4), judged(switch(4))[0]))
    assert not [p for host in plan["hosts"].values() for p in host["pings"] if p["rail"] == "management"]


def test_engines_of_a_ring_without_another_network() -> None:
    hosts = ring(4).hosts()
    for entry in hosts.values():
        entry["management_address"], entry["fabric"]["networks"] = None, {}
    plan = fabric.plan(hosts)
    (result,) = [finding for finding in plan["findings"] if finding["severity"] == "error"]
    assert result["rule"] == "fabric.no_meeting" and "fabric_relay: true" in result["fix"]
    assert all(host["environment"]["mp"] == {} for host in plan["hosts"].values())
    plan = fabric.plan(hosts, fabric_layout.Settings(relay=True))
    assert plan["findings"] == []
    host_plan = plan["hosts"]["spark-3"]
    assert host_plan["address"] == host_plan["environment"]["mp"]["VLLM_HOST_IP"] and host_plan["address"].startswith(
        "192.168.102."
    )
    assert len(host_plan["firewall"]["peers"]) == 8  # every cable's subnets: packets of hosts that are no neighbours


def test_a_relay_over_a_network_of_somebody_else_is_not_set_up() -> None:
    plant = ring(4)
    hosts = live(plant, judged(plant)[0])
    for netdev in (entry for port in hosts["spark-2"]["fabric"]["ports"] for entry in port["netdevs"]):
        netdev["stored"] = [{"path": "/etc/netplan/90-own.yaml", "persistent": True, "alone": True, "managed": False}]
    plan = fabric.plan(hosts, fabric_layout.Settings(relay=True))
    (result,) = plan["findings"]
    assert result["rule"] == "fabric.no_relay" and "spark-2 keeps a network of somebody else" in result["message"]
    assert not any("relay" in host for host in plan["hosts"].values())


# --- faults that people make


def test_a_plug_in_the_wrong_port_is_named_by_port() -> None:
    plant = ring(4)
    # spark-3's cable ends in spark-1, and spark-4's in itself.
    plant.cables -= {frozenset({("spark-3", 0), ("spark-4", 1)}), frozenset({("spark-4", 0), ("spark-1", 1)})}
    plant.cables |= {frozenset({("spark-3", 0), ("spark-1", 1)}), frozenset({("spark-4", 0), ("spark-4", 1)})}
    plan, (result,) = judged(plant)
    assert plan["topology"] == "none" and result["rule"] == "fabric.miscabled"
    assert "spark-3 port 0 belongs into spark-4 port 1 (its cable ends in spark-1 port 1" in result["message"]
    assert "spark-4 port 0 belongs into spark-1 port 1" in result["message"]


def test_what_the_page_marks() -> None:
    plan, _errors = judged(ring(4))
    assert plan["wrong"] == {"cables": [], "missing": [], "ends": []}
    assert plan["ports"] == {name: {"0": "joined", "1": "joined"} for name in names_of(4)}
    plan, _errors = judged(exchanged(ring(4), "spark-2"))
    assert plan["wrong"]["cables"] == [[["spark-1", 0], ["spark-2", 0]], [["spark-2", 1], ["spark-3", 1]]]
    assert plan["wrong"]["missing"] == [[["spark-1", 0], ["spark-2", 1]], [["spark-2", 0], ["spark-3", 1]]]
    # A port that leads elsewhere, a silent one, and one without a link.
    plant = ring(5)
    plant.cables.discard(frozenset({("spark-1", 0), ("spark-2", 1)}))
    plant.outside[("spark-1", 0)] = "elsewhere"
    plant.deaf = {frozenset({("spark-3", 0), ("spark-4", 1)})}
    plan, _errors = judged(plant)
    assert plan["ports"]["spark-1"]["0"] == "outside" and plan["ports"]["spark-2"]["1"] == "dark"
    assert plan["ports"]["spark-3"]["0"] == plan["ports"]["spark-4"]["1"] == "silent"
    assert plan["wrong"]["ends"] == [["spark-1", 0], ["spark-3", 0], ["spark-4", 1]]
    plant = Plant(names_of(2), {frozenset({("spark-1", 0), ("spark-1", 1)})}, outside={("spark-2", 0): "other"})
    wrong = judged(plant)[0]["wrong"]
    assert wrong == {"cables": [[["spark-1", 0], ["spark-1", 1]]], "missing": [], "ends": [["spark-2", 0]]}
    # Hosts on a switch, and one port on another switch.
    plant = switch(5)
    plant.switches = [plant.switches[0] - {("spark-4", 0)}, {("spark-4", 0)}]
    assert judged(plant)[0]["wrong"] == {"cables": [], "missing": [], "ends": [["spark-4", 0]]}


def test_the_plugs_of_one_spark_exchanged() -> None:
    plant = exchanged(ring(4), "spark-2")
    plan, errors = judged(plant)
    assert plan["topology"] == "ring" and {error["rule"] for error in errors} == {"fabric.ring_cabling"}
    assert all(
        error["fix"].startswith("the plugs of spark-2 port 0 and spark-2 port 1 are exchanged") for error in errors
    )


def test_a_cable_back_into_the_same_spark() -> None:
    plant = Plant(names_of(2), {frozenset({("spark-1", 0), ("spark-1", 1)})}, outside={("spark-2", 0): "other"})
    _plan, errors = judged(plant)
    assert {error["rule"] for error in errors} == {"fabric.not_joined", "fabric.own_cable"}
    assert "spark-1: a cable joins port 0 with port 1 of the same Spark." in texts(errors)


def test_a_cable_that_carries_no_frames_is_not_known_to_be_there() -> None:
    plant = ring(5)
    plant.deaf = {frozenset({("spark-2", 0), ("spark-3", 1)})}
    _plan, (result,) = judged(plant)
    assert "both have a link and hear nobody, so whether this cable is there is not known" in texts([result])


def test_one_host_on_another_switch_is_named() -> None:
    plant = switch(5)
    plant.switches = [plant.switches[0] - {("spark-4", 0)}, {("spark-4", 0)}]
    plan, (result,) = judged(plant)
    assert plan["topology"] == "none"
    assert "spark-4 port 0 of the group reaches none of spark-1, spark-2, spark-3 and spark-5" in result["message"]


def test_four_in_two_pairs_are_called_so() -> None:
    plant = Plant(names_of(4))
    plant.cables = {
        frozenset({(first, cage), (other, cage)})
        for first, other in (("spark-1", "spark-2"), ("spark-3", "spark-4"))
        for cage in (0, 1)
    }
    _plan, (result,) = judged(plant)
    assert "no QSFP link joins spark-1 and spark-2; spark-3 and spark-4 with one another" in result["message"]
    assert "not known" in result["message"]


# --- 10,000 cases


def exchanged(plant: Plant, name: str) -> Plant:
    """Exchange the plugs of the two ports of a host."""

    def turn(cage: Cage) -> Cage:
        return (name, 1 - cage[1]) if cage[0] == name else cage

    plant.cables = {frozenset(map(turn, cable)) for cable in plant.cables}
    plant.deaf = {frozenset(map(turn, cable)) for cable in plant.deaf}
    plant.outside = {turn(cage): heard_hosts for cage, heard_hosts in plant.outside.items()}
    return plant


def damage(plant: Plant, chance: random.Random) -> str:
    """Do one thing to the cables of a ring that people do; return what."""
    cables = sorted(plant.cables, key=sorted)
    kind = chance.choice(["unplugged", "swapped", "exchanged", "stranger", "deaf", "own", "off", "turned"])
    if kind == "exchanged":
        exchanged(plant, chance.choice(plant.names))
    elif kind == "off":
        plant.off.add(chance.choice(plant.names))
    elif kind == "own":
        name = chance.choice(plant.names)
        plant.cables = {cable for cable in plant.cables if all(host != name for host, _cage in cable)}
        plant.cables.add(frozenset({(name, 0), (name, 1)}))
    elif kind == "swapped" and len(cables) > 1:
        (first, two), (three, four) = (sorted(cable) for cable in chance.sample(cables, 2))
        plant.cables -= {frozenset({first, two}), frozenset({three, four})}
        plant.cables |= {frozenset({first, four}), frozenset({three, two})}
    elif cables:
        cable = chance.choice(cables)
        if kind == "deaf":
            plant.deaf.add(cable)
            return kind
        plant.cables.remove(cable)
        first, two = sorted(cable)
        if kind == "stranger":
            plant.outside[first] = "elsewhere"
        free = [
            (name, cage)
            for name in plant.names
            for cage in (0, 1)
            if (name, cage) not in {end for entry in plant.cables for end in entry} | {first, *plant.outside}
        ]
        if kind == "turned" and free:
            plant.cables.add(frozenset({first, chance.choice(free)}))
    return kind


BELONGS = re.compile(r"(spark-\d) port (\d) belongs into (spark-\d) port (\d)")
EXCHANGED = re.compile(r"the plugs of (spark-\d) port 0 and \1 port 1 are exchanged")
LISTED = re.compile(r"(?:List the hosts of the group as|has to list its hosts as) ((?:spark-\d(?:, )?)+)")


def mend(plant: Plant, message: str) -> bool:
    """Carry out the fixes that findings name; return whether there were any."""
    turned = list(dict.fromkeys(EXCHANGED.findall(message)))
    for name in turned:
        exchanged(plant, name)
    moves = list(dict.fromkeys(BELONGS.findall(message)))
    for first, cage, other, port in moves:
        pair = frozenset({(first, int(cage)), (other, int(port))})
        plant.cables = {cable for cable in plant.cables if not cable & pair} | {pair}
        plant.deaf.discard(pair)
        for end in pair:
            plant.outside.pop(end, None)
    listed = LISTED.search(message)
    if listed:
        plant.names = listed.group(1).strip(", ").split(", ")
    return bool(turned or moves or listed)


SHAPES = {
    "ring": 9,
    "switch": 2,
    "pair": 2,
    "two cables to a switch": 2,
    "two pairs on a switch": 1,
    "a part of a ring": 2,
    "settled": 4,
}
"""What a case is about, and how often beside the others."""


def moved(plant: Plant, plan: dict[str, Any]) -> set[frozenset[Cage]]:
    """Return the cables after the wrong ones of a plan were moved to their places."""
    cables, missing = (
        {frozenset((host, cage) for host, cage in pair) for pair in plan["wrong"][name]}
        for name in ("cables", "missing")
    )
    ends = {end for pair in missing for end in pair}
    return {cable for cable in plant.cables - cables if not cable & ends} | missing


def one_case(seed: int) -> str:
    """Plan one damaged group; return the verdict on it: C(right), C(named) or C(not known)."""
    chance = random.Random(seed)
    (shape,) = chance.choices([*SHAPES], [*SHAPES.values()])
    return CASES[shape](chance, f"{seed}, {shape}")


def one_ring(chance: random.Random, seed: str) -> str:
    """A ring of three to eight, to which up to three things were done."""
    size = chance.randint(3, 8)
    plant = ring(size, mirrored=chance.random() < 0.5)
    before = set(plant.cables)
    if chance.random() < 0.2:
        chance.shuffle(plant.names)
    listed = list(plant.names)
    kinds = [damage(plant, chance) for _number in range(chance.choice([0, 1, 1, 1, 2, 2, 3]))]
    damaged = set(plant.cables) - plant.deaf
    plan, errors = judged(plant)
    message = texts(errors)
    marked = moved(plant, plan)
    is_whole = plant.cables == before and not (plant.deaf & plant.cables or plant.outside or plant.off)
    if not errors:
        assert marked == plant.cables, (seed, kinds)
        # No finding for a ring in the order of the group, after any moves.
        assert plant.cables in (cabling.ring_of(listed), cabling.ring_of(listed[::-1])), (seed, kinds)
        assert not plant.deaf & plant.cables, (seed, kinds)
        return "right"
    assert not (is_whole and listed == names_of(size)), (seed, kinds, message)
    dark = {name for name in listed if not any(plant.lit((name, cage)) for cage in NETDEVS)}
    if dark:
        # Of a host without any link nobody knows more than that.
        assert all(f"{name}: there is no ConnectX-7" in message for name in dark), (seed, kinds, message)
        assert not BELONGS.search(message), (seed, kinds, message)
        return "named"
    if not mend(plant, message):
        assert "not known" in message or "no QSFP link joins" in message or "not of this group" in message, (
            seed,
            kinds,
            message,
        )
        return "not known"
    # The page marks the cables that the texts name.
    assert marked == plant.cables, (seed, kinds, message)
    after, remaining = judged(plant)
    assert (after["topology"], remaining) == ("ring", []), (seed, kinds, message, texts(remaining))
    if len(kinds) == 1 and listed == names_of(size):
        # The former ring or an equally near one: never more moves than were made.
        assert len(plant.cables - damaged) <= len(before - damaged), (seed, kinds, message)
        if size > 4:
            assert plant.cables == before, (seed, kinds, message)
    return "named"


def told_of_hosts_without_a_link(plant: Plant, message: str) -> bool:
    """Return whether some hosts have no link; each of them is named then, and no plug."""
    dark = {name for name in plant.names if not any(plant.lit((name, cage)) for cage in NETDEVS)}
    if dark:
        assert all(
            f"{name}: there is no ConnectX-7" in message or f"{name}: no QSFP cage" in message for name in dark
        ), message
        assert not BELONGS.search(message), message
    return bool(dark)


def one_switch(chance: random.Random, seed: str, both: bool = False) -> str:
    """A group on a switch of which one host may be elsewhere or unplugged. both: each has two cables on it."""
    size, cage = chance.randint(2, 8), chance.randint(0, 1)
    plant = switch(size, cage)
    plant.switches = [{(name, port) for name in plant.names for port in ((0, 1) if both else (cage,))}]
    name = chance.choice(plant.names)
    (ports,) = plant.switches
    mine = {end for end in ports if end[0] == name}
    moved = set(chance.sample(sorted(mine), chance.randint(1, len(mine))))
    kind = chance.choice(["right", "unplugged", "elsewhere", "off"])
    if kind == "off":
        plant.off.add(name)
    elif kind != "right":
        ports -= moved
    if kind == "elsewhere":
        plant.switches.append(moved)
    plan, errors = judged(plant)
    message = texts(errors)
    if kind == "right" or (kind != "off" and moved != mine):
        # One of two cables is enough. Two hosts, each alone on a switch, look like a pair.
        assert errors == [] and plan["topology"] == ("switch" if size > 2 or both else "direct"), (seed, message)
        return "right"
    assert plan["topology"] == "none" and name in message and not BELONGS.search(message), (seed, kind, message)
    if not told_of_hosts_without_a_link(plant, message) and size > 3:
        ends = " and ".join(f"{name} port {port}" for _name, port in sorted(mine))
        assert f"{ends} of the group reaches none of" in message, (seed, message)
    return "named"


def two_cables_to_a_switch(chance: random.Random, seed: str) -> str:
    """Two cables of each host on one switch."""
    return one_switch(chance, seed, both=True)


def pair_of(chance: random.Random) -> Plant:
    """A pair on one or two cables, in any ports."""
    out, into = chance.sample((0, 1), 2), chance.sample((0, 1), 2)
    cables = {frozenset({("spark-1", first), ("spark-2", other)}) for first, other in zip(out, into)}
    return Plant(names_of(2), cables if chance.random() < 0.5 else {sorted(cables, key=sorted)[0]})


def one_pair(chance: random.Random, seed: str) -> str:
    """A pair, to which up to two things were done: a cable between its hosts is all that it needs."""
    plant = pair_of(chance)
    kinds = [damage(plant, chance) for _number in range(chance.choice([0, 1, 1, 2]))]
    plan, errors = judged(plant)
    message = texts(errors)
    joined = [
        cable
        for cable in plant.cables - plant.deaf
        if len({host for host, _cage in cable}) == 2 and not {host for host, _cage in cable} & plant.off
    ]
    if joined:
        assert (plan["topology"], errors) == ("direct", []), (seed, kinds, message)
        return "right"
    assert plan["topology"] == "none" and not mend(plant, message), (seed, kinds, message)
    assert told_of_hosts_without_a_link(plant, message) or "no QSFP link joins spark-1 with spark-2" in message, (
        seed,
        kinds,
        message,
    )
    for cable in plant.cables:
        (first, *_other_ends), lit = (
            sorted(cable),
            all(plant.lit((name, 0)) or plant.lit((name, 1)) for name in plant.names),
        )
        if lit and len({host for host, _cage in cable}) == 1 and not cable & set(plant.outside):
            assert f"{first[0]}: a cable joins port 0 with port 1" in message, (seed, kinds, message)
    return "named"


def two_pairs_on_a_switch(chance: random.Random, seed: str) -> str:
    """Two pairs of one switch, each planned by itself; a host of one may be on another switch, or hear the other pair alone."""
    crowd, cage = names_of(4), chance.randint(0, 1)
    kind, moved = chance.choice(["right", "right", "elsewhere", "parted"]), chance.choice(crowd)
    switches = [{(name, cage) for name in crowd}]
    if kind == "elsewhere":
        switches = [switches[0] - {(moved, cage)}, {(moved, cage)}]
    elif kind == "parted":  # one host of each pair on each of two switches
        switches = [{(crowd[0], cage), (crowd[2], cage)}, {(crowd[1], cage), (crowd[3], cage)}]
    for names in (crowd[:2], crowd[2:]):
        hosts = Plant(crowd, switches=[set(entry) for entry in switches]).hosts()
        plan = fabric.plan({name: hosts[name] for name in names})
        errors = [finding for finding in plan["findings"] if finding["severity"] == "error"]
        if kind == "right" or (kind == "elsewhere" and moved not in names):
            assert errors == [] and plan["topology"] == "switch", (seed, kind, errors)
        else:
            assert [finding["rule"] for finding in errors] == ["fabric.not_joined"], (seed, kind, errors)
            assert "no QSFP link joins" in texts(errors) and not BELONGS.search(texts(errors)), (seed, kind, errors)
    return "right" if kind == "right" else "named"


def a_part_of_a_ring(chance: random.Random, seed: str) -> str:
    """Neighbours of a ring that are a cluster, the others another: two are a pair, more are a line that leads on to the others."""
    size = chance.randint(4, 8)
    plant = ring(size, mirrored=chance.random() < 0.5)
    lost = chance.choice(sorted(plant.cables, key=sorted)) if chance.random() < 0.5 else None
    plant.cables -= {lost} if lost else set()
    cut = chance.randint(2, size - 2)
    heard = plant.hosts()
    message = "right"
    for names in (plant.names[:cut], plant.names[cut:]):
        plan = fabric.plan({name: heard[name] for name in names})
        errors = [
            finding for finding in plan["findings"] if finding["severity"] == "error" and finding["rule"] in CABLING
        ]
        within = {
            cable
            for cable in cabling.ring_of(plant.names) | cabling.ring_of(plant.names[::-1])
            if {host for host, _cage in cable} <= set(names)
        }
        is_outside = lost not in within
        if len(names) == 2:
            assert (plan["topology"], errors != []) == (("direct", False) if is_outside else ("none", True)), (
                seed,
                errors,
            )
            assert is_outside or "no QSFP link joins" in texts(errors) or "no ConnectX-7" in texts(errors), (
                seed,
                errors,
            )
        else:
            assert plan["topology"] == ("line" if is_outside else "none") and errors, (seed, errors)
            assert not is_outside or "not of this group" in texts(errors) or lost, (seed, errors)
        for first, cage, other, into in BELONGS.findall(texts(errors)):
            # Every named cable is a missing cable of a ring of these hosts.
            assert frozenset({(first, int(cage)), (other, int(into))}) not in plant.cables and {first, other} <= set(
                names
            ), seed
        message = "named" if errors else message
    return message


def settled(chance: random.Random, seed: str) -> str:
    """A group with addresses that is damaged and has not listened since: nothing is reported that its addresses do not show."""
    kind = chance.choice(["ring", "ring", "switch", "both", "pair"])
    size = chance.randint(2, 8) if kind != "ring" else chance.randint(3, 8)
    plant = pair_of(chance) if kind == "pair" else ring(size) if kind == "ring" else switch(size, chance.randint(0, 1))
    if kind == "both":
        plant.switches = [{(name, cage) for name in plant.names for cage in (0, 1)}]
    plan = judged(plant)[0]
    before, ports = set(plant.cables), {end for name in plant.names for end in ((name, 0), (name, 1)) if plant.lit(end)}
    kinds = []
    for _number in range(chance.choice([0, 1, 1, 2])):
        if not plant.switches:
            kinds.append(damage(plant, chance))
        elif chance.random() < 0.5:
            kinds.append("unplugged")
            plant.switches[0].discard(chance.choice(sorted(plant.switches[0])))
        else:
            kinds.append("off")
            plant.off.add(chance.choice(plant.names))
    result = fabric.plan(unheard(plant, plan, keep=chance.random() < 0.5))
    findings = [
        finding
        for finding in result["findings"]
        if finding["rule"] not in ("fabric.assumed", "fabric.second_cable", "fabric.unequal_cages")
    ]
    # No address is wrong, with any plugs.
    assert not {finding["rule"] for finding in findings} & set(fabric.REPAIRED), (seed, kinds, findings)
    text = texts([finding for finding in findings if finding["severity"] == "error"])
    dark = {end for end in ports if not plant.lit(end)}
    if told_of_hosts_without_a_link(plant, text):
        return "named"
    for first, cage, other, into in BELONGS.findall(text):
        pair = {(first, int(cage)), (other, int(into))}
        assert frozenset(pair) in before and pair <= dark, (seed, kinds, text)
    if not findings:
        # Of two cables one is enough, and a pair may be joined by other ports than before.
        assert not dark or kind in ("pair", "both"), (seed, kinds, dark)
        return "right"
    if any(finding["rule"] == "fabric.cabling_unknown" for finding in findings):
        assert [finding["rule"] for finding in findings] == ["fabric.cabling_unknown"] and result["rails"] == [], (
            seed,
            kinds,
            findings,
        )
        return "not known"
    assert dark and {finding["rule"] for finding in findings} <= CABLING, (seed, kinds, findings)
    return "named"


CASES = {
    "ring": one_ring,
    "switch": one_switch,
    "pair": one_pair,
    "two cables to a switch": two_cables_to_a_switch,
    "two pairs on a switch": two_pairs_on_a_switch,
    "a part of a ring": a_part_of_a_ring,
    "settled": settled,
}


def test_four_hundred_groups() -> None:
    message = Counter(one_case(seed) for seed in range(400))
    # It would be easy never to be wrong by never saying anything.
    assert message["right"] > 80 and message["named"] > 200 and message["not known"] < 80, message


@pytest.mark.slow
@pytest.mark.nightly
def test_ten_thousand_groups() -> None:
    for seed in range(400, 10400):
        one_case(seed)
