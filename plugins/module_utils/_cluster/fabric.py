# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the QSFP network of a group of Sparks: netplan documents, findings, tests, and the environment of engines.

One QSFP cage is two PCIe functions, each with a network interface (netdev) and a RoCE device of about 100 Gb/s. A cable therefore
makes two rails: the first interfaces of both ends, and the second ones. Each rail has its own subnet.

cage        one QSFP port of a host
segment     cages that hear each other: the two ends of a cable, or all cages on one switch
rail        one interface of each host of a segment, and their subnet

Sources: NVIDIA's playbooks for two, three and switched Sparks; the set-up scripts spark-vllm-docker and sparkrun; reports of owners,
cited at each use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._host.network import set_interface_commands
from .cabling import (
    APART,
    Cabling,
    Hosts,
    find_cabling,
    interface_of,
    is_link_local,
    join,
    judge_cabling,
    make_finding,
    port_states,
    up_cages,
    v4,
    wrong_plugs,
)
from .engine_env import PLAYBOOK, REPORTS, Place, environment
from .fabric_bandwidth import bandwidth_tests
from .fabric_layout import (
    BELOW_FABRIC,
    NETPLAN_FILE,
    WRITES,
    Interface,
    Layout,
    Rail,
    Settings,
    check_settings,
    make_rails,
    set_final,
)
from .fabric_routes import (
    Route,
    far_pings,
    forwards,
    judge_meeting,
    meeting_pings,
    open_to,
    pings,
    place_of,
    plan_relay,
)

PORT_GBPS = 200
"""A QSFP cage's link (playbooks, multi-sparks-through-switch: ethtool must say 200000Mb/s)."""
PCIE_WIDTH, PCIE_GTS = 4, 32.0
"""Each interface's PCIe link, Gen5 x4 (captures of several machines)."""
REPAIRED = tuple(
    f"fabric.{rule}"
    for rule in (
        "same_subnet",
        "link_local",
        "subnets_differ",
        "duplicate_address",
        "overlap",
        "other_address",
        "mtu_differs",
        "defined_twice",
        "foreign_file",
        "no_gid",
    )
)
"""Errors that disappear when the network is rewritten; cards, cables, bonds and settings need a person."""
MISPLUGGED = tuple(
    f"fabric.{name}" for name in ("line", "miscabled", "not_joined", "own_cable", "ring_cabling", "ring_order")
)
"""Errors of plugs and of the order of hosts, which no network file corrects: nothing is written as long as they exist."""


def plan(hosts: Hosts, settings: Settings | None = None) -> dict[str, Any]:
    """Return the plan of the fabric of a group.

    hosts: in the group's order, the head first. Each has C(fabric) (of M(dgxspark.vllm.spark_info)), and may have
    C(management_address), C(heard) and C(tools) (the section C(cabling) of M(dgxspark.vllm.spark_info)), C(addresses)
    ({netdev: CIDR} from the inventory). Returns C({topology, ready, rails, hosts, ports, wrong, findings, bandwidth_tests}), see C(cabling.port_states) and
    C(cabling.wrong_plugs). ready: engines can use the present fabric. Each entry of C(hosts) has
    a C(netplan) document if one has to be written, C(apply) (the host differs from it now), and C(action):
    C(keep) (nothing to do, or another owner's network), C(configure) (write a missing network, or rewrite one of this
    collection), C(migrate) (repair, as requested) or C(refuse) (wrong, repair not requested). C(address), C(netdev),
    C(environment) and C(firewall) rest on the addresses after the plan is carried out, so they are the
    same before and after.
    """
    settings = settings or Settings()
    problems = check_settings(settings)
    if problems:
        raise ValueError("; ".join(problems))
    if len(hosts) < 2:
        raise ValueError("a fabric joins two hosts or more")
    findings = list(itertools.chain.from_iterable(judge_hardware(name, hosts[name]["fabric"]) for name in hosts))
    cabling = find_cabling(hosts, settings.topology)
    findings += judge_cabling(hosts, cabling)
    rails = make_rails(hosts, cabling.segments, settings) if cabling.topology not in APART else []
    layout = Layout(hosts, rails, settings)
    layout.judge()
    layout.assign()
    findings += layout.findings
    actions, file_findings = choose_actions(layout)
    findings += file_findings
    set_final(rails, actions)
    usable = [rail for rail in rails if not rail.broken and len(rail.configured) == len(rail.interfaces)]
    relay = plan_relay(cabling, rails, actions, settings)
    findings += judge_meeting(layout, cabling.topology, actions, relay)
    findings += judge_idle_rails(rails, actions)
    findings += itertools.chain.from_iterable(judge_rdma(interface) for rail in usable for interface in rail.interfaces)
    answer = _plan_answer(layout, cabling, actions, relay, usable)
    answer["findings"] = [finding.to_dict() for finding in findings]
    tools = {name: entry.get("tools") or [] for name, entry in hosts.items()}
    return {**answer, "bandwidth_tests": bandwidth_tests(answer, tools)}


def _plan_answer(
    layout: Layout,
    cabling: Cabling,
    actions: Mapping[str, str],
    relay: Mapping[str, Sequence[Route]],
    usable: Sequence[Rail],
) -> dict[str, Any]:
    """Return the result of C(plan) without findings and bandwidth tests. usable: rails whose ends all have right addresses."""
    hosts, topology = layout.hosts, cabling.topology
    places = {name: place_of(name, hosts, layout.rails, topology, bool(relay)) for name in hosts}
    enough = [rail for rail in usable if topology == "ring" or len(rail.hosts) == len(hosts)]
    answer: dict[str, Any] = {
        "topology": topology,
        "ready": bool(enough) and not layout.wrong,
        "rails": list(map(_rail_answer, layout.rails)),
        "hosts": {name: plan_host(name, layout, actions[name], topology, relay, places) for name in hosts},
        "ports": port_states(hosts, cabling),
        "wrong": wrong_plugs(hosts, cabling),
    }
    if topology in APART and cabling.links.pairs:
        # They have no rails; the page of the network lists them.
        answer["cables"] = sorted([list(end) for end in sorted(pair)] for pair in cabling.links.pairs)
    return answer


def _rail_answer(rail: Rail) -> dict[str, Any]:
    return {
        "name": rail.name,
        "subnet": rail.subnet,
        "ends": {
            interface.host: {
                "cage": interface.cage,
                "netdev": interface.name,
                "rdma": interface.rdma.get("name"),
                "present": interface.present,
                "address": interface.assigned,
            }
            for interface in rail.interfaces
        },
    }


def choose_actions(layout: Layout) -> tuple[dict[str, str], list[Finding]]:
    """Return the action for each host, see C(plan), and findings about files that would remain next to a new one."""
    actions = {name: choose_action(layout, name) for name in layout.hosts}
    if "refuse" in actions.values():
        # The addresses of the others follow from the addresses of the host that must not be touched.
        actions = {name: "refuse" if action == "configure" else action for name, action in actions.items()}
    findings = [
        finding
        for name, interfaces in layout.of_host().items()
        for finding in judge_shared_files(name, interfaces, actions[name])
    ]
    if any(finding.rule == "fabric.shared_file" for finding in findings):
        actions = {name: "refuse" if action != "keep" else action for name, action in actions.items()}
    return actions, findings


def judge_idle_rails(rails: Sequence[Rail], actions: Mapping[str, str]) -> Iterator[Finding]:
    """Find rails with addresses on some ends and none on an end whose host the plan does not change."""
    for rail in rails:
        missing = [
            interface for interface in rail.interfaces if not interface.present and actions[interface.host] == "keep"
        ]
        if missing and rail.configured:
            ends = join(interface.where for interface in missing)
            message = f"{rail.name}: {ends} without an address; this rail's 100 Gb/s lie idle."
            fix = f"Set fabric_migrate: true{BELOW_FABRIC}, or give it one."
            yield make_finding("half", "warning", message, fix, "NVIDIA/dgx-spark-playbooks#102")


def choose_action(layout: Layout, name: str) -> str:
    """Return the action for a host; see C(plan)."""
    interfaces = layout.of_host()[name]
    if not interfaces or "" in {interface.assigned for interface in interfaces}:
        return "refuse" if name in layout.wrong else "keep"
    if any(interface.facts.get("master") for interface in interfaces):  # bonded
        return "refuse"
    ours = layout.managed(name)
    is_assigned = all(interface.present == interface.assigned for interface in interfaces)
    if name not in layout.wrong | layout.poor and is_assigned:
        return "configure" if ours else "keep"  # rewriting a right file of this collection changes nothing
    return _choose_repair(layout, name, interfaces, ours)


def _choose_repair(layout: Layout, name: str, interfaces: Sequence[Interface], ours: bool) -> str:
    """Return the action for a host with wrong, poor or missing addresses. ours: its network is of this collection."""
    bare = not any(v4(interface.facts.get("addresses")) for interface in interfaces)
    stored = [entry for interface in interfaces for entry in interface.stored]
    is_foreign = any(entry["persistent"] and not entry.get("managed") for entry in stored)
    if ours or (bare and not is_foreign):
        return "configure"
    if layout.settings.migrate:
        return "migrate"
    return "refuse" if bare or name in layout.wrong else "keep"


def judge_shared_files(name: str, interfaces: Sequence[Interface], action: str) -> Iterator[Finding]:
    """Refuse to write next to a file that configures QSFP interfaces and others too. interfaces: of the host, that rails use. action: see C(plan)."""
    entries = [(interface, entry) for interface in interfaces for entry in interface.stored]
    shared = {
        entry["path"]
        for _interface, entry in entries
        if action != "keep" and not entry.get("managed") and not entry["alone"]
    }
    for path in sorted(shared):
        message = f"{name}: {path} configures QSFP interfaces and others too, so it is not replaced."
        fix = "Take the QSFP interfaces out of it by hand (keep a copy), then run again."
        yield make_finding("shared_file", "error", message, fix, "netplan adds up the addresses of its files")
    bare = {
        entry["path"]
        for interface, entry in entries
        if not v4(interface.facts.get("addresses")) and entry["persistent"] and entry["alone"]
    }
    for path in sorted(bare - shared) if action == "refuse" else ():
        message = f"{name}: {path} is about QSFP interfaces and gives them no address."
        fix = (
            f"Apply it (netplan apply), or set fabric_migrate: true{BELOW_FABRIC} to have it replaced; a copy is kept."
        )
        yield make_finding("foreign_file", "error", message, fix)


def judge_hardware(name: str, fabric: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the card, the cages and the links of one host."""
    cages = up_cages(fabric)
    if not fabric.get("connectx"):
        yield make_finding(
            "no_connectx",
            "error",
            f"{name}: there is no ConnectX-7 on the bus: no QSFP cable is plugged in, or its other end is off.",
            "Plug the cable in at both ends, both Sparks switched on. If it is: reboot with the cable in, then take the "
            "power off for a minute.",
            "the card leaves the bus without a cable; NVIDIA developer forum t/374275 for kernels that lose it",
        )
    elif not cages:
        fix = "Check the cable and the other end (ip -br link; a port may be down: ip link set dev NAME up)."
        yield make_finding("no_link", "error", f"{name}: no QSFP cage has a link.", fix, PLAYBOOK)
    else:
        for port in cages.values():
            for netdev in port["netdevs"]:
                yield from _judge_netdev(f"{name}: {netdev['name']}", netdev)


def _judge_netdev(where: str, netdev: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the link, the PCIe link and the RoCE device of one interface."""
    if not netdev.get("up"):
        message = f"{where} is down although the other interface of its cage is up; half of the cage lies idle."
        fix = f"ip link set dev {netdev['name']} up; if it stays down, reboot with the cable in."
        yield make_finding("interface_down", "warning", message, fix, PLAYBOOK)
        return
    speed, width, gts = netdev.get("speed_mbps"), netdev.get("link_width"), netdev.get("link_speed_gts")
    if speed and speed < PORT_GBPS * 1000:
        message = f"{where} runs at {speed // 1000} Gb/s instead of {PORT_GBPS}."
        fix = "With a switch, turn auto-negotiation off on its port and set 200G-baseCR4; else try another cable."
        yield make_finding("slow_link", "warning", message, fix, "NVIDIA's playbook for switched Sparks")
    if (width and width < PCIE_WIDTH) or (gts and gts < PCIE_GTS):
        present = f"{f'{gts:g}' if gts else '?'} GT/s x{width or '?'}"
        message = f"{where} has a PCIe link of {present} instead of {PCIE_GTS:g} GT/s x{PCIE_WIDTH}."
        fix = "Bring the firmware up to date (fwupdmgr update), then take the power off for a minute."
        source = "firmware before 2026-04 gave x2: NVIDIA developer forum t/363461"
        yield make_finding("slow_pcie", "warning", message, fix, source)
    rdma = netdev.get("rdma")
    if not rdma or rdma.get("state") != "ACTIVE":
        state = f"{rdma['name']} is {rdma.get('state')}" if rdma else "has no RoCE device"
        message = f"{where} is up but {state}; NCCL would fall back to TCP."
        fix = "Load mlx5_ib (modprobe mlx5_ib) and look at `rdma link`; a reboot with the cable in helps otherwise."
        yield make_finding("rdma_down", "error", message, fix, REPORTS)


def judge_rdma(interface: Interface) -> Iterator[Finding]:
    """Check that the address of an interface is among the GIDs of its RoCE device: NCCL finds its way by that."""
    gids = interface.rdma.get("gids") or []
    address = str(interface_of(interface.present).ip)
    if gids and not any(gid.get("type") == "RoCE v2" and gid["address"] == address for gid in gids):
        device = interface.rdma.get("name")
        message = (
            f"{interface.where}: {device} has no RoCE v2 GID for {address}; NCCL ends with 'ibv_modify_qp failed'."
        )
        fix = f"ip link set dev {interface.name} down and up again, or reboot. Do not set NCCL_IB_GID_INDEX: indexes move."
        yield make_finding("no_gid", "error", message, fix, "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#95")


def set_aside(interfaces: Iterable[Interface]) -> list[str]:
    """Return the files of somebody else that configure these interfaces alone, which a migration replaces."""
    stored = [entry for interface in interfaces for entry in interface.stored]
    return sorted(
        {
            entry["path"]
            for entry in stored
            if entry["alone"] and not entry.get("managed") and entry["path"] != NETPLAN_FILE
        }
    )


def plan_host(
    name: str,
    layout: Layout,
    action: str,
    topology: str,
    relay: Mapping[str, Sequence[Route]],
    places: Mapping[str, Place],
) -> dict[str, Any]:
    """Return one host's entry of the plan."""
    hosts = layout.hosts
    ends = [(rail, interface) for rail in layout.rails for interface in rail.interfaces if interface.host == name]
    interfaces = [interface for _rail, interface in ends]
    write = action in WRITES
    place = places[name]
    lives = all(
        interface.present == interface.assigned and interface.mtu == layout.settings.mtu for interface in interfaces
    )
    mtu = layout.settings.mtu
    return {
        "action": action,
        "apply": write and not lives,
        "rails": [_rail_of_host(rail, interface, write, mtu) for rail, interface in ends],
        "netplan": netplan_document(interfaces, mtu, relay.get(name, ())) if write else {},
        "set_aside": set_aside(interfaces) if action == "migrate" else [],
        "restore": restore_commands(interfaces),
        **({"relay": forwards(ends)} if relay else {}),
        "pings": [
            *pings(name, layout.rails),
            *far_pings(name, layout.rails, relay),
            *meeting_pings(name, hosts, layout.rails, places),
        ],
        "netdev": place.netdev,
        "address": place.address,
        "environment": environment(place, topology, len(hosts)),
        "firewall": open_to(name, hosts, layout.rails, place, bool(relay)),
    }


def _rail_of_host(rail: Rail, interface: Interface, write: bool, mtu: int) -> dict[str, Any]:
    """Return a row of a host's rails. write: whether its network is written; mtu: the MTU of a written network."""
    return {
        "name": rail.name,
        "subnet": rail.subnet,
        "netdev": interface.name,
        "cage": interface.cage,
        "rdma": interface.rdma.get("name"),
        "address": interface.assigned if write else interface.present,
        "mtu": mtu if write else interface.mtu,
        "peers": {
            other.host: (other.assigned if write else other.present).partition("/")[0]
            for other in rail.interfaces
            if other is not interface
        },
    }


def netplan_document(interfaces: Sequence[Interface], mtu: int, routes: Sequence[Route] = ()) -> dict[str, Any]:
    """Return the netplan document of a host: an address on each interface, the routes of a relay, and nothing else.

    No link-local addresses, which would add GIDs (sparkrun and spark-vllm-docker do the same); C(optional), because a
    boot must not wait for a cable.
    """
    ethernets: dict[str, dict[str, Any]] = {}
    for interface in interfaces:
        ethernets[interface.name] = {
            "addresses": [interface.assigned],
            "dhcp4": False,
            "dhcp6": False,
            "link-local": [],
            "mtu": mtu,
            "optional": True,
        }
        relayed = [{"to": route.to, "via": route.via} for route in routes if route.netdev == interface.name]
        ethernets[interface.name] |= {"routes": relayed} if relayed else {}
    return {"network": {"version": 2, "ethernets": ethernets}}


def restore_commands(interfaces: Sequence[Interface]) -> list[list[str]]:
    """Return the commands that restore settings of interfaces that no file has.

    Files are restored by systemd-networkd, which gets confused when ip changes addresses at the same time.
    """
    commands = []
    for interface in interfaces:
        if any(entry["persistent"] for entry in interface.stored):
            continue
        addresses = [address for address in v4(interface.facts.get("addresses")) if not is_link_local(address)]
        commands += set_interface_commands(interface.name, interface.facts.get("mtu"), addresses)
    return commands


def lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write findings as people read them, errors first."""
    order = {"error": 0, "warning": 1, "info": 2}
    return [
        f"{finding['severity']} {finding['rule']}: {finding['message']} {finding.get('fix', '')}".rstrip()
        for finding in sorted(findings, key=lambda finding: order[finding["severity"]])
    ]
