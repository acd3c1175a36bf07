# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the hosts of clusters about their cables: two to eight bare hosts in a ring or on a switch, as the role fabric plans their
network after it has listened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import (
    cabling,
    fabric,
    fabric_layout,
)

NETDEVS = {0: ("enp1s0f0np0", "enP2p1s0f0np0"), 1: ("enp1s0f1np1", "enP2p1s0f1np1")}

PING = {
    "rail": "rail0",
    "host": "a",
    "netdev": "enp1s0f0np0",
    "source": "192.168.100.10",
    "target": "192.168.100.11",
    "target_host": "b",
    "size": 8972,
}
"""One wanted ping, as C(fabric_routes.pings) has them."""


def fabric_facts(number: int, cage: int = 0) -> dict[str, Any]:
    """The facts of spark_info about a Spark with one cable and addresses on both interfaces."""
    netdevs = []
    for position, prefix in enumerate(("", "P2")):
        netdevs.append(
            {
                "name": f"en{prefix}p1s0f{cage}np{cage}",
                "up": True,
                "mac": f"02:00:00:00:{position:02x}:{number:02x}",
                "mtu": 9000,
                "addresses": [f"192.168.10{position}.1{number}/24"],
                "neighbours": [{"address": "-", "mac": f"02:00:00:00:{position:02x}:{3 - number:02x}"}],
                "stored": [{"path": "/etc/netplan/40-cx7.yaml", "persistent": True, "alone": True, "managed": True}],
                "pcie_width": 4,
                "rdma": {"name": f"roce{prefix}p1s0f{cage}", "state": "ACTIVE"},
            }
        )
    return {
        "connectx": True,
        "ports": [{"cage": cage, "netdevs": netdevs}],
        "networks": {"enP7s7": [f"10.0.0.{number}/24"]},
    }


def network(topology: str, names: Sequence[str]) -> dict[str, Any]:
    """What the role fabric plans for bare hosts, after it has listened. topology: C(ring), or else port 0 of all on a switch."""
    return fabric.plan(bare(topology, names))


def settled_ring(names: Sequence[str], settings: fabric_layout.Settings | None = None) -> dict[str, Any]:
    """The facts of the hosts of a ring after the role fabric has set their addresses; none of them has listened since."""
    entries = bare("ring", names)
    planned = fabric.plan(entries, settings)["hosts"]
    for name, entry in entries.items():
        del entry["heard"]
        addresses = {rail["netdev"]: rail["address"] for rail in planned[name]["rails"]}
        for port in entry["fabric"]["ports"]:
            for netdev in port["netdevs"]:
                stored = {"path": fabric_layout.NETPLAN_FILE, "persistent": True, "alone": True, "managed": True}
                netdev.update(addresses=[addresses[netdev["name"]]], stored=[stored])
        entry["fabric"]["relay"] = bool(settings and settings.relay)
    return entries


def bare(topology: str, names: Sequence[str]) -> dict[str, Any]:
    """The facts of hosts without addresses after they have listened. topology: a value of C(network)."""
    links = cabling.ring_of(names) if topology == "ring" else {frozenset((name, 0) for name in names)}
    entries = {}
    for number, name in enumerate(names, 1):
        ports, heard = [], []
        for cage, netdevs in NETDEVS.items():
            peers = {end for link in links if (name, cage) in link for end in link} - {(name, cage)}
            facts = [
                {
                    "name": netdev,
                    "up": bool(peers),
                    "mac": f"3c:6d:66:cc:{number:02x}:{cage}{position}",
                    "mtu": 9000,
                    "addresses": [],
                    "stored": [],
                    "rdma": {"name": netdev[:-3].replace("en", "roce"), "state": "ACTIVE", "gids": []},
                }
                for position, netdev in enumerate(netdevs)
            ]
            ports.append({"cage": cage, "netdevs": facts})
            heard += [
                {"netdev": netdev, "host": host, "peer": NETDEVS[other][position]}
                for position, netdev in enumerate(netdevs)
                for host, other in sorted(peers)
            ]
        entries[name] = {
            "fabric": {"connectx": True, "ports": ports, "networks": {"enP7s7": [f"10.0.0.{number}/24"]}},
            "heard": heard,
            "management_address": f"10.0.0.{number}",
        }
    return entries
