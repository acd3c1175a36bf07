# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sparks joined by QSFP: what is cabled to what, which address belongs where, what is wrong, what engines need to know.

One QSFP cage is two PCIe functions, each with a network interface (netdev) and a RoCE device of about 100 Gb/s. A cable therefore
makes two rails: the first interfaces of both ends, and the second ones. Each rail is a subnet of its own.

cage        one QSFP port of a host
segment     cages that hear each other: the two ends of a cable, or all that hang on one switch
rail        one interface of each host of a segment, and their subnet

Sources: NVIDIA's playbooks for two, three and switched Sparks; spark-vllm-docker and sparkrun, which others set their
pairs up with; reports of owners, named where they are used.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common.findings import Finding
from .._common.foreign_text import parse_json
from .cable_probe import BANDWIDTH_TOOLS
from .cabling import (
    APART,
    Cabling,
    Cage,
    find_cabling,
    interface_of,
    is_link_local,
    join,
    judge_cabling,
    make_finding,
    network_of,
    port_states,
    up_cages,
    v4,
    wrong_plugs,
)
from .engine_env import PLAYBOOK, REPORTS, Place, environment

PORT_GBPS = 200
"""A QSFP cage's link (playbooks, multi-sparks-through-switch: ethtool must say 200000Mb/s)."""
PCIE_WIDTH, PCIE_GTS = 4, 32.0
"""Each interface's PCIe link, Gen5 x4 (captures of several machines)."""
NETPLAN_FILE = "/etc/netplan/40-cx7.yaml"
"""The name that NVIDIA's playbook and sparkrun use; netplan adds up the addresses of several files, so it must be the one."""
WRITES = ("configure", "migrate")
"""What the plan may do to a host that changes it."""
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
"""Errors that are gone when the network has been written anew; cards, cables, bonds and settings stay as they are."""
MISPLUGGED = tuple(
    f"fabric.{name}" for name in ("line", "miscabled", "not_joined", "own_cable", "ring_cabling", "ring_order")
)
"""Errors of plugs and of the order of hosts, which no network file mends: nothing is written while there is one."""
TOPOLOGIES = ("auto", "direct", "switch", "ring")
LEAST_MTU, MOST_MTU = 1280, 9216
ETHERNET_MTU = 1500
"""That of an interface whose host does not say."""
PROBE_BYTES = 1 << 30
"""A probe of the bandwidth moves 1 GiB: 16 GiB buffers have frozen nodes (NVIDIA/dgx-spark-playbooks#102)."""
PROBE_MESSAGE = 65536
PROBE_PORT = 18515

BELOW_FABRIC = " (with site.yml: without fabric_, below fabric of spark_cluster)"
"""Where a setting of the role stands for those who use the playbook."""


# --- input ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What a person may say about the fabric of a group.

    network: cut into equal parts, one a rail. subnets: given instead, in the order of rails.
    first_host: number of the first host in each subnet. mtu: of all interfaces. migrate: repair what is wrong.
    relay: hosts of a ring of four or more pass on what is for hosts that they stand between.
    """

    network: str = "192.168.100.0/22"
    subnets: tuple[str, ...] = ()
    first_host: int = 10
    mtu: int = 9000
    migrate: bool = False
    topology: str = "auto"
    relay: bool = False


@dataclass
class Interface:
    """One netdev of a cage that a rail uses, with what it has and what it is to have."""

    host: str
    cage: int
    facts: Mapping[str, Any]
    given: str = ""
    wanted: str = ""
    subnet: str = ""  # that of the other ends, where it has addresses of several
    final: str = ""  # what it has once the plan is carried out; nothing where the plan leaves the host as it is wrong

    @property
    def name(self) -> str:
        """Name of the netdev."""
        return str(self.facts["name"])

    @property
    def where(self) -> str:
        """Host and netdev, for messages."""
        return f"{self.host} {self.name}"

    @property
    def usable(self) -> list[str]:
        """Its IPv4 addresses, CIDR; those that it gave itself do not count."""
        return [address for address in v4(self.facts.get("addresses")) if not is_link_local(address)]

    @property
    def present(self) -> str:
        """The address that it has; of several the given one, else the one in the subnet of the other ends."""
        if self.given in self.usable:
            return self.given
        fitting = [address for address in self.usable if str(network_of(address)) == self.subnet]
        return next(iter(fitting or self.usable), "")

    @property
    def link_local(self) -> bool:
        """Whether it has nothing but an address that it gave itself."""
        return not self.present and bool(v4(self.facts.get("addresses")))

    @property
    def shown(self) -> str:
        """The address that it has, of whatever kind."""
        return next(iter(v4(self.facts.get("addresses"))), "")

    @property
    def mtu(self) -> int:
        """Its MTU; Ethernet's own where the host does not say."""
        return int(self.facts.get("mtu") or ETHERNET_MTU)

    @property
    def stored(self) -> Sequence[Mapping[str, Any]]:
        """Files that its network is written down in."""
        return self.facts.get("stored") or []

    @property
    def managed(self) -> bool:
        """Whether this collection wrote it down."""
        return any(entry.get("managed") for entry in self.stored)

    @property
    def rdma(self) -> Mapping[str, Any]:
        """Its RoCE device, empty when it has none."""
        return self.facts.get("rdma") or {}


@dataclass
class Rail:
    """The same interface of each host of a segment."""

    name: str
    interfaces: list[Interface]
    position: int = 0  # 0: the first interfaces of the cages, 1: the second
    subnet: str = ""
    broken: bool = False

    @property
    def hosts(self) -> set[str]:
        """Hosts that are on it."""
        return {interface.host for interface in self.interfaces}

    @property
    def configured(self) -> list[Interface]:
        """Interfaces that have an address."""
        return [interface for interface in self.interfaces if interface.present]

    @property
    def works(self) -> bool:
        """Whether all its ends reach each other once the plan is carried out: one subnet, an address for each."""
        addresses = [interface_of(interface.final) for interface in self.interfaces if interface.final]
        return (
            len(addresses) == len(self.interfaces)
            and len({address.network for address in addresses}) == 1
            and len({address.ip for address in addresses}) == len(addresses)
        )


def check_settings(settings: Settings) -> list[str]:
    """Return what is wrong with the settings themselves."""
    problems = []
    for name, text in [("network", settings.network), *(("subnets", subnet) for subnet in settings.subnets)]:
        try:
            if ipaddress.ip_network(text).version != 4:
                problems.append(f"{name}: {text} is not IPv4, which RoCE's addresses are made from here")
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if settings.topology not in TOPOLOGIES:
        problems.append(f"topology: {settings.topology!r} is none of {', '.join(TOPOLOGIES)}")
    if not LEAST_MTU <= settings.mtu <= MOST_MTU:
        problems.append(f"mtu: {settings.mtu} is not between {LEAST_MTU} and {MOST_MTU}")
    if settings.first_host < 1:
        problems.append(f"first_host: {settings.first_host} is not a host's number")
    return problems


# --- rails ---------------------------------------------------------------------------------------------------------


def make_rails(
    hosts: Mapping[str, Mapping[str, Any]], segments: Sequence[Sequence[Cage]], settings: Settings
) -> list[Rail]:
    """Lay the rails of each segment: first interface with first interface, second with second.

    Where a host has two cages in one segment (two cables to one switch) its second cage makes rails with the second
    cages of the others.

    :param hosts: as C(plan) takes them
    :param segments: of C(Cabling)
    :param settings: of the group
    :returns: rails of two interfaces or more, without the addresses that they are to have
    """
    rails: list[Rail] = []
    for segment in segments:
        by_host: dict[str, list[int]] = {}
        for host, cage in segment:
            by_host.setdefault(host, []).append(cage)
        for level in range(max(len(cages) for cages in by_host.values())):
            for position in range(2):
                interfaces = []
                for host, cages in by_host.items():
                    if level >= len(cages):
                        continue
                    entry = hosts[host]
                    netdevs = up_cages(entry["fabric"])[cages[level]]["netdevs"]
                    given = entry.get("addresses") or {}
                    if position < len(netdevs) and netdevs[position].get("up"):
                        facts = netdevs[position]
                        interfaces.append(Interface(host, cages[level], facts, str(given.get(facts["name"]) or "")))
                if len(interfaces) > 1:
                    settle_subnet(interfaces, settings)
                    rails.append(Rail(f"rail{len(rails)}", interfaces, position))
    return rails


def settle_subnet(interfaces: Sequence[Interface], settings: Settings) -> None:
    """Where interfaces have several addresses, take those of a subnet that all ends are in, a subnet of the settings first."""
    configured = [interface for interface in interfaces if interface.usable]
    shared = [
        network
        for network in dict.fromkeys(network_of(address) for interface in configured for address in interface.usable)
        if all(any(network_of(address) == network for address in interface.usable) for interface in configured)
    ]
    ours = [network_of(text) for text in (*settings.subnets, settings.network)]
    shared.sort(key=lambda network: not any(network.subnet_of(own) for own in ours))
    for interface in configured:
        interface.subnet = str(shared[0]) if shared else ""


def cut(network: str, parts: int) -> list[str]:
    """Cut a network into at least C(parts) equal subnets, /24 where that gives enough."""
    whole = ipaddress.IPv4Network(network)
    prefix = max(whole.prefixlen + max(parts - 1, 0).bit_length(), 24)
    if prefix > 30:
        return []
    return [str(subnet) for subnet in itertools.islice(whole.subnets(new_prefix=prefix), max(parts, 64))]


class Layout:
    """Judges the addresses that the interfaces have, and gives each interface the one that it is to have."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]], rails: list[Rail], settings: Settings) -> None:
        self.hosts, self.rails, self.settings = hosts, rails, settings
        self.findings: list[Finding] = []
        self.wrong: set[str] = set()  # hosts that need to be changed before anything can run on the fabric
        self.poor: set[str] = set()  # hosts whose network works and would be better otherwise

    def add(self, rule: str, severity: str, message: str, fix: str, source: str = "") -> None:
        """Note a finding; all of them rest on what the hosts say.

        :param rule: its id without C(fabric.)
        :param severity: C(error), C(warning) or C(info)
        :param message: what is wrong, where and why
        :param fix: what to change
        :param source: where the knowledge comes from
        """
        self.findings.append(make_finding(rule, severity, message, fix, source))

    def repair(self, hosts: Iterable[str]) -> str:
        """Say who repairs it: what this collection wrote it repairs by itself."""
        if self.settings.migrate or all(self.managed(host) for host in hosts):
            return "The role fabric does it."
        return f"Set fabric_migrate: true{BELOW_FABRIC} to have {NETPLAN_FILE} written, or change it by hand."

    def managed(self, host: str) -> bool:
        """Whether this collection wrote down all interfaces of a host that rails use."""
        interfaces = [interface for interface in self.interfaces() if interface.host == host]
        return bool(interfaces) and all(interface.managed for interface in interfaces)

    def interfaces(self) -> list[Interface]:
        """All interfaces of all rails."""
        return [interface for rail in self.rails for interface in rail.interfaces]

    def of_host(self) -> dict[str, list[Interface]]:
        """Interfaces by host."""
        return {name: [interface for interface in self.interfaces() if interface.host == name] for name in self.hosts}

    def judge(self) -> None:
        """Find everything that is wrong with what is there."""
        for name, interfaces in self.of_host().items():
            self._bonds(name, interfaces)
            self._same_subnet(name, interfaces)
            self._overlaps(name, interfaces)
            self._stored(name, interfaces)
        for rail in self.rails:
            self._rail(rail)
        self._given()

    def _break(self, interfaces: Sequence[Interface]) -> None:
        for rail in self.rails:
            if any(interface in rail.interfaces for interface in interfaces):
                rail.broken = True
        self.wrong |= {interface.host for interface in interfaces}

    def _bonds(self, name: str, interfaces: list[Interface]) -> None:
        bonded = [interface for interface in interfaces if interface.facts.get("master")]
        if not bonded:
            return
        self._break(bonded)
        self.add(
            "bond",
            "error",
            f"{name}: {join(interface.name for interface in bonded)} {'are' if len(bonded) > 1 else 'is'} part of "
            f"{join(sorted({str(interface.facts['master']) for interface in bonded}))}. A bond of interfaces speeds up TCP alone: RDMA "
            "wants an address on each interface.",
            "Take the bond out of the host's network settings by hand.",
            "NVIDIA's guide to stacked Sparks: bonding is not supported; rmkraus/spark-cluster",
        )

    def _same_subnet(self, name: str, interfaces: list[Interface]) -> None:
        shared: dict[str, list[Interface]] = {}
        for interface in interfaces:
            if interface.present:
                shared.setdefault(str(network_of(interface.present)), []).append(interface)
        selves = [interface for interface in interfaces if interface.link_local]
        if len(selves) > 1:
            shared["169.254.0.0/16"] = selves
        elif selves:
            self._break(selves)
            self.add(
                "link_local",
                "error",
                f"{selves[0].where} has only the address that it gave itself ({selves[0].shown}), "
                "which is another one after each boot.",
                self.repair([name]),
                PLAYBOOK,
            )
        for subnet, members in shared.items():
            if len(members) < 2:
                continue
            self._break(members)
            origin = ""
            if network_of(subnet).subnet_of(network_of("192.168.0.0/16")):
                origin = " NVIDIA's cluster set-up script and its example for three Sparks lay it out so."
            elif subnet.startswith("169.254"):
                origin = " NVIDIA's link-local example lays it out so."
            self.add(
                "same_subnet",
                "error",
                f"{name}: {join(f'{interface.name} ({interface.shown})' for interface in members)} "
                f"share the subnet {subnet}: which of them a packet leaves by is then left to the kernel, and RDMA over the "
                f"other one hangs.{origin}",
                "Give each interface a subnet of its own. " + self.repair([name]),
                "NVIDIA's playbook for switched Sparks, which warns of it; spark-vllm-docker refuses it",
            )

    def _overlaps(self, name: str, interfaces: list[Interface]) -> None:
        for interface in interfaces:
            for netdev, address in self._others(name):
                if interface.present and network_of(interface.present).overlaps(network_of(address)):
                    self._break([interface])
                    self.add(
                        "overlap",
                        "error",
                        f"{interface.where} ({interface.present}) lies in the network of {netdev} ({address}).",
                        f"Choose another fabric_network{BELOW_FABRIC}. " + self.repair([name]),
                        REPORTS,
                    )

    def _others(self, name: str) -> list[tuple[str, str]]:
        networks = self.hosts[name]["fabric"].get("networks") or {}
        return [(netdev, address) for netdev, addresses in networks.items() for address in v4(addresses)]

    def _stored(self, name: str, interfaces: list[Interface]) -> None:
        for interface in interfaces:
            if len(interface.usable) > 1:
                self.add(
                    "several_addresses",
                    "warning",
                    f"{interface.where} has several addresses: {join(interface.usable)}; {interface.present} is taken.",
                    "Take the others away; netplan adds up the addresses of all its files.",
                )
            lasting = [entry for entry in interface.stored if entry["persistent"]]
            foreign = [entry["path"] for entry in lasting if not entry.get("managed")]
            if interface.managed and foreign:
                self.wrong.add(name)
                self.add(
                    "defined_twice",
                    "error",
                    f"{interface.where} is configured by {NETPLAN_FILE} and by {join(foreign)}; addresses of both add up.",
                    "Remove it from the other. " + self.repair([name]),
                    "netplan merges its files",
                )
            if interface.present and not lasting:
                self.poor.add(name)
                volatile = [entry["path"] for entry in interface.stored]
                self.add(
                    "volatile",
                    "warning",
                    f"{interface.where}: its address {interface.present} is gone after a reboot: "
                    + (f"nmcli keeps it in {join(volatile)}." if volatile else "no file of the host has it."),
                    self.repair([name]) + " The addresses stay.",
                    "tonyd2wild/DeepSeek-v4-Flash-Vision-Exp#38",
                )

    def _rail(self, rail: Rail) -> None:
        configured = rail.configured
        networks = {str(network_of(interface.present)) for interface in configured}
        if len(networks) > 1:
            self._break(configured)
            self.add(
                "subnets_differ",
                "error",
                f"{rail.name}: its ends are in different subnets: {join(f'{interface.where} {interface.present}' for interface in configured)}.",
                "Give both ends of a cable's interface one subnet. "
                + self.repair(interface.host for interface in configured),
                PLAYBOOK,
            )
        addresses: dict[str, list[Interface]] = {}
        for interface in configured:
            addresses.setdefault(str(interface_of(interface.present).ip), []).append(interface)
        for address, interfaces in addresses.items():
            if len(interfaces) > 1:
                self._break(interfaces)
                self.add(
                    "duplicate_address",
                    "error",
                    f"{rail.name}: {join(interface.where for interface in interfaces)} all have {address}.",
                    "Give each its own. " + self.repair(interface.host for interface in interfaces),
                )
        self._mtu(rail, configured)

    def _mtu(self, rail: Rail, configured: list[Interface]) -> None:
        mtus = {interface.mtu for interface in configured}
        small = [interface for interface in configured if interface.mtu < self.settings.mtu]
        if len(mtus) > 1:
            self.wrong |= {interface.host for interface in small or configured}
            self.add(
                "mtu_differs",
                "error",
                f"{rail.name}: the ends differ in MTU: {join(f'{interface.where} {interface.mtu}' for interface in configured)}. Large "
                "packets are lost without a word; NCCL ends with IBV_WC_RETRY_EXC_ERR(12).",
                f"Set {self.settings.mtu} on both. " + self.repair(interface.host for interface in small or configured),
                "reports: an MTU falls back to 1500 after a firmware update",
            )
        elif small:
            self.poor |= {interface.host for interface in small}
            self.add(
                "mtu_small",
                "warning",
                f"{rail.name}: the MTU is {mtus.pop()} instead of {self.settings.mtu}; prefill was measured 7.6 % slower.",
                self.repair(interface.host for interface in small)
                + " Where a switch cannot carry more, set fabric_mtu to what it can.",
                "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#104",
            )

    def _given(self) -> None:
        subnets = self.settings.subnets
        for number, rail in enumerate(self.rails):
            for interface in rail.configured:
                wanted = interface.given
                if not wanted and number < len(subnets) and str(network_of(interface.present)) != subnets[number]:
                    wanted = f"an address of {subnets[number]}"
                if wanted and wanted != interface.present:
                    self._break([interface])
                    self.add(
                        "other_address",
                        "error",
                        f"{interface.where} has {interface.present}; the inventory gives it {wanted}.",
                        "Change one of the two. " + self.repair([interface.host]),
                    )

    def assign(self) -> None:
        """Give every interface its address: what is right stays, what is missing or wrong is made from the settings."""
        settings = self.settings
        taken: list[ipaddress.IPv4Network] = []
        for rail in self.rails:
            if not rail.broken and rail.configured:
                rail.subnet = str(network_of(rail.configured[0].present))
                taken.append(network_of(rail.configured[0].present))
        offered = cut(settings.network, len(self.rails))
        for number, rail in enumerate(self.rails):
            if not rail.subnet:
                rail.subnet = self._subnet(number, rail, offered, taken)
                if not rail.subnet:
                    continue
                taken.append(network_of(rail.subnet))
            self._addresses(rail)

    def _subnet(self, number: int, rail: Rail, offered: list[str], taken: list[ipaddress.IPv4Network]) -> str:
        given = {str(network_of(interface.given)) for interface in rail.interfaces if interface.given}
        if len(given) > 1:
            self.wrong |= {interface.host for interface in rail.interfaces}
            self.add(
                "given_differ",
                "error",
                f"{rail.name}: fabric_addresses puts its ends in different subnets: "
                f"{join(f'{interface.where} {interface.given}' for interface in rail.interfaces if interface.given)}.",
                "Give both ends one subnet.",
            )
            return ""
        if given:
            return given.pop()
        if number < len(self.settings.subnets):
            return self.settings.subnets[number]
        others = [(interface.host, *other) for interface in rail.interfaces for other in self._others(interface.host)]
        clash = ""
        for subnet in offered:
            network = network_of(subnet)
            met = next((other for other in others if network.overlaps(network_of(other[2]))), None)
            if met:
                clash = f"{subnet} is the network of {met[1]} ({met[2]}) on {met[0]}"
            elif not any(network.overlaps(other) for other in taken):
                return subnet
        self.wrong |= {interface.host for interface in rail.interfaces}
        self.add(
            "no_subnet",
            "error",
            f"{rail.name}: fabric_network {self.settings.network} has no subnet left for it{f' ({clash})' if clash else ''}.",
            f"Choose a network that is used for nothing else, with room for {len(self.rails)} subnets.",
        )
        return ""

    def _addresses(self, rail: Rail) -> None:
        network = network_of(rail.subnet)
        names = list(self.hosts)
        keep = {
            id(interface): interface.present for interface in rail.interfaces if interface.present and not rail.broken
        }
        used = {interface_of(address).ip for address in keep.values()}
        used |= {interface_of(interface.given).ip for interface in rail.interfaces if interface.given}
        for interface in rail.interfaces:
            if interface.given or id(interface) in keep:
                interface.wanted = interface.given or keep[id(interface)]
                continue
            number = self.settings.first_host + names.index(interface.host)
            while number < network.num_addresses - 1 and network[number] in used:
                number += 1
            if number >= network.num_addresses - 1:
                self.wrong.add(interface.host)
                self.add(
                    "no_address",
                    "error",
                    f"{rail.name}: {rail.subnet} has no address left for {interface.where} (counted from {self.settings.first_host}).",
                    "Choose a larger fabric_network, or a smaller fabric_first_host.",
                )
                continue
            used.add(network[number])
            interface.wanted = f"{network[number]}/{network.prefixlen}"


# --- the plan ------------------------------------------------------------------------------------------------------


def plan(hosts: Mapping[str, Mapping[str, Any]], settings: Settings | None = None) -> dict[str, Any]:
    """Plan the fabric of a group.

    hosts: in the group's order, the head first. Each has C(fabric) (of M(dgxspark.vllm.spark_info)), and may have
    C(management_address), C(heard) and C(tools) (the section C(cabling) of M(dgxspark.vllm.spark_info)), C(addresses) ({netdev: CIDR} that
    are given). Returns C({topology, ready, rails, hosts, ports, wrong, findings, bandwidth_tests}), see C(cabling.port_states) and
    C(cabling.wrong_plugs). ready: engines can use the fabric as it is. C(hosts) has for
    each its C(netplan) document where one is to be written, C(apply) (the host differs from it now), and C(action):
    C(keep) (nothing to do, or not ours to do), C(configure) (nothing is there yet, or what this collection wrote is
    written again), C(migrate) (was asked to repair) or C(refuse) (wrong, and was not asked to). C(address), C(netdev),
    C(environment) and C(firewall) rest on the addresses that the host has once the plan is carried out, so they are the
    same before and after.
    """
    settings = settings or Settings()
    problems = check_settings(settings)
    if problems:
        raise ValueError("; ".join(problems))
    if len(hosts) < 2:
        raise ValueError("a fabric joins two hosts or more")
    names = list(hosts)
    findings = [finding for name, entry in hosts.items() for finding in judge_hardware(name, entry["fabric"])]
    cabling = find_cabling(hosts, settings.topology)
    findings += judge_cabling(hosts, cabling)
    rails = make_rails(hosts, cabling.segments, settings) if cabling.topology not in APART else []
    layout = Layout(hosts, rails, settings)
    layout.judge()
    layout.assign()
    findings += layout.findings
    actions, of_files = choose_actions(layout)
    findings += of_files
    set_final(rails, actions)
    usable = [rail for rail in rails if not rail.broken and len(rail.configured) == len(rail.interfaces)]
    whole = [rail for rail in usable if len({interface.host for interface in rail.interfaces}) == len(names)]
    relay = plan_relay(cabling, rails, actions, settings)
    places = {name: place_of(name, hosts, rails, cabling.topology, bool(relay)) for name in names}
    findings += judge_meeting(hosts, cabling, rails, actions, settings, relay)
    findings += judge_idle_rails(rails, actions)
    findings += [finding for rail in usable for interface in rail.interfaces for finding in judge_rdma(interface)]
    result: dict[str, Any] = {
        "topology": cabling.topology,
        "ready": bool(usable if cabling.topology == "ring" else whole) and not layout.wrong,
        "rails": [_rail_answer(rail) for rail in rails],
        "hosts": {
            name: plan_host(name, hosts, layout, actions[name], cabling.topology, relay, places) for name in names
        },
        "ports": port_states(hosts, cabling),
        "wrong": wrong_plugs(hosts, cabling),
        "findings": [finding.to_dict() for finding in findings],
    }
    if cabling.topology in APART and cabling.links.pairs:
        # No rails are laid on them; the page of the network lists them.
        result["cables"] = sorted([list(end) for end in sorted(pair)] for pair in cabling.links.pairs)
    tools = {name: entry.get("tools") or [] for name, entry in hosts.items()}
    return {**result, "bandwidth_tests": bandwidth_tests(result, tools)}


def _rail_answer(rail: Rail) -> dict[str, Any]:
    """Write a rail as the answer of C(plan) has it."""
    return {
        "name": rail.name,
        "subnet": rail.subnet,
        "ends": {
            interface.host: {
                "cage": interface.cage,
                "netdev": interface.name,
                "rdma": interface.rdma.get("name"),
                "present": interface.present,
                "address": interface.wanted,
            }
            for interface in rail.interfaces
        },
    }


def choose_actions(layout: Layout) -> tuple[dict[str, str], list[Finding]]:
    """Return what is to be done on each host, see C(plan), and what is wrong with files that would be written beside."""
    actions = {name: choose_action(layout, name) for name in layout.hosts}
    if "refuse" in actions.values():
        # The addresses of the others follow from those of the one that must not be touched.
        actions = {name: "refuse" if action == "configure" else action for name, action in actions.items()}
    findings = [
        finding
        for name, interfaces in layout.of_host().items()
        for finding in judge_shared_files(name, interfaces, actions[name])
    ]
    if any(finding.rule == "fabric.shared_file" for finding in findings):
        actions = {name: "refuse" if action != "keep" else action for name, action in actions.items()}
    return actions, findings


def judge_idle_rails(rails: Sequence[Rail], actions: Mapping[str, str]) -> list[Finding]:
    """Find rails of which one end has an address and another, which is left as it is, has none."""
    findings = []
    for rail in rails:
        missing = [
            interface for interface in rail.interfaces if not interface.present and actions[interface.host] == "keep"
        ]
        if missing and rail.configured:
            findings.append(
                make_finding(
                    "half",
                    "warning",
                    f"{rail.name}: {join(interface.where for interface in missing)} without an address; this rail's 100 Gb/s lie idle.",
                    f"Set fabric_migrate: true{BELOW_FABRIC}, or give it one.",
                    "NVIDIA/dgx-spark-playbooks#102",
                )
            )
    return findings


def choose_action(layout: Layout, name: str) -> str:
    """What is to be done on a host; see C(plan)."""
    interfaces = [interface for interface in layout.interfaces() if interface.host == name]
    if not interfaces or not all(interface.wanted for interface in interfaces):
        return "refuse" if name in layout.wrong else "keep"
    if any(interface.facts.get("master") for interface in interfaces):
        return "refuse"
    ours = layout.managed(name)
    foreign = any(
        entry["persistent"] and not entry.get("managed") for interface in interfaces for entry in interface.stored
    )
    bare = not any(v4(interface.facts.get("addresses")) for interface in interfaces)
    complete = all(interface.present == interface.wanted for interface in interfaces)
    if name not in layout.wrong and name not in layout.poor and complete:
        return "configure" if ours else "keep"  # what is ours is written again, which changes nothing
    if ours or (bare and not foreign):
        return "configure"
    if layout.settings.migrate:
        return "migrate"
    return "refuse" if name in layout.wrong or bare else "keep"


def set_final(rails: Sequence[Rail], actions: Mapping[str, str]) -> None:
    """Note which address each interface has once the plan is carried out: the wanted one where the host is written, else what
    is there; nothing where the host is refused."""
    for rail in rails:
        for interface in rail.interfaces:
            action = actions[interface.host]
            interface.final = interface.wanted if action in WRITES else interface.present if action == "keep" else ""


def judge_shared_files(name: str, interfaces: Sequence[Interface], action: str) -> list[Finding]:
    """Refuse to write beside a file that configures QSFP interfaces and others too.

    :param name: of the host
    :param interfaces: those of the host that rails use
    :param action: see C(plan)
    :returns: findings
    """
    shared = sorted(
        {
            entry["path"]
            for interface in interfaces
            for entry in interface.stored
            if action != "keep" and not entry.get("managed") and not entry["alone"]
        }
    )
    bare = sorted(
        {
            entry["path"]
            for interface in interfaces
            for entry in interface.stored
            if action == "refuse"
            and not v4(interface.facts.get("addresses"))
            and entry["persistent"]
            and entry["alone"]
        }
    )
    findings = [
        Finding(
            "fabric.shared_file",
            "error",
            f"{name}: {path} configures QSFP interfaces and others too, so it is not replaced.",
            fix="Take the QSFP interfaces out of it by hand (keep a copy), then run again.",
            source="netplan adds up the addresses of its files",
            basis="measured",
        )
        for path in shared
    ]
    return findings + [
        Finding(
            "fabric.foreign_file",
            "error",
            f"{name}: {path} is about QSFP interfaces and gives them no address.",
            fix=f"Apply it (netplan apply), or set fabric_migrate: true{BELOW_FABRIC} to have it replaced; a copy is kept.",
            basis="measured",
        )
        for path in bare
        if path not in shared
    ]


def judge_hardware(name: str, fabric: Mapping[str, Any]) -> list[Finding]:
    """Judge the card, the cages and the links of one host."""
    if not fabric.get("connectx"):
        return [
            make_finding(
                "no_connectx",
                "error",
                f"{name}: there is no ConnectX-7 on the bus: no QSFP cable is plugged in, or its other end is off.",
                "Plug the cable in at both ends, both Sparks switched on. If it is: reboot with the cable in, then take the "
                "power off for a minute.",
                "the card leaves the bus without a cable; NVIDIA developer forum t/374275 for kernels that lose it",
            )
        ]
    cages = up_cages(fabric)
    if not cages:
        return [
            make_finding(
                "no_link",
                "error",
                f"{name}: no QSFP cage has a link.",
                "Check the cable and the other end (ip -br link; a port may be down: ip link set dev NAME up).",
                PLAYBOOK,
            )
        ]
    return [finding for port in cages.values() for netdev in port["netdevs"] for finding in _judge_netdev(name, netdev)]


def _judge_netdev(name: str, netdev: Mapping[str, Any]) -> list[Finding]:
    """Judge the link, the PCIe link and the RoCE device of one interface."""
    if not netdev.get("up"):
        return [
            make_finding(
                "interface_down",
                "warning",
                f"{name}: {netdev['name']} is down although the other interface of its cage is up; half of the cage lies idle.",
                f"ip link set dev {netdev['name']} up; if it stays down, reboot with the cable in.",
                PLAYBOOK,
            )
        ]
    findings = []
    speed, width, gts = netdev.get("speed_mbps"), netdev.get("link_width"), netdev.get("link_speed_gts")
    if speed and speed < PORT_GBPS * 1000:
        findings.append(
            make_finding(
                "slow_link",
                "warning",
                f"{name}: {netdev['name']} runs at {speed // 1000} Gb/s instead of {PORT_GBPS}.",
                "With a switch, turn auto-negotiation off on its port and set 200G-baseCR4; else try another cable.",
                "NVIDIA's playbook for switched Sparks",
            )
        )
    if (width and width < PCIE_WIDTH) or (gts and gts < PCIE_GTS):
        findings.append(
            make_finding(
                "slow_pcie",
                "warning",
                f"{name}: {netdev['name']} has a PCIe link of {f'{gts:g}' if gts else '?'} GT/s x{width or '?'} instead of "
                f"{PCIE_GTS:g} GT/s x{PCIE_WIDTH}.",
                "Bring the firmware up to date (fwupdmgr update), then take the power off for a minute.",
                "firmware before 2026-04 gave x2: NVIDIA developer forum t/363461",
            )
        )
    rdma = netdev.get("rdma")
    if not rdma or rdma.get("state") != "ACTIVE":
        what = f"{rdma['name']} is {rdma.get('state')}" if rdma else "has no RoCE device"
        findings.append(
            make_finding(
                "rdma_down",
                "error",
                f"{name}: {netdev['name']} is up but {what}; NCCL would fall back to TCP.",
                "Load mlx5_ib (modprobe mlx5_ib) and look at `rdma link`; a reboot with the cable in helps otherwise.",
                REPORTS,
            )
        )
    return findings


def judge_rdma(interface: Interface) -> list[Finding]:
    """Check that the address of an interface is among the GIDs of its RoCE device: NCCL finds its way by that."""
    gids = interface.rdma.get("gids") or []
    address = str(interface_of(interface.present).ip)
    if not gids or any(gid.get("type") == "RoCE v2" and gid["address"] == address for gid in gids):
        return []
    return [
        Finding(
            "fabric.no_gid",
            "error",
            f"{interface.where}: {interface.rdma.get('name')} has no RoCE v2 GID for {address}; NCCL ends with 'ibv_modify_qp failed'.",
            fix=f"ip link set dev {interface.name} down and up again, or reboot. Do not set NCCL_IB_GID_INDEX: indexes move.",
            source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#95",
            basis="measured",
        )
    ]


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
    hosts: Mapping[str, Mapping[str, Any]],
    layout: Layout,
    action: str,
    topology: str,
    relay: Mapping[str, Sequence[Route]],
    places: Mapping[str, Place],
) -> dict[str, Any]:
    """Return what concerns one host of the plan.

    :param name: of the host
    :param hosts: as C(plan) takes them
    :param layout: with the addresses assigned
    :param action: see C(plan)
    :param topology: of the group
    :param relay: of C(plan_relay)
    :param places: of C(place_of), of all hosts
    :returns: an entry of C(hosts) of the plan
    """
    own = [(rail, interface) for rail in layout.rails for interface in rail.interfaces if interface.host == name]
    interfaces = [interface for _rail, interface in own]
    write = action in WRITES
    place = places[name]
    lives = all(
        interface.present == interface.wanted and interface.mtu == layout.settings.mtu for interface in interfaces
    )
    mtu = layout.settings.mtu
    return {
        "action": action,
        "apply": write and not lives,
        "rails": [_rail_of_host(rail, interface, write, mtu) for rail, interface in own],
        "netplan": netplan_document(interfaces, mtu, relay.get(name, ())) if write else {},
        "set_aside": set_aside(interfaces) if action == "migrate" else [],
        "restore": restore_commands(interfaces),
        **({"relay": forwards(own)} if relay else {}),
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
    """Write what a host has of a rail as the answer of C(plan) has it. write: whether its network is written; mtu: that it gets then."""
    return {
        "name": rail.name,
        "subnet": rail.subnet,
        "netdev": interface.name,
        "cage": interface.cage,
        "rdma": interface.rdma.get("name"),
        "address": interface.wanted if write else interface.present,
        "mtu": mtu if write else interface.mtu,
        "peers": {
            other.host: (other.wanted if write else other.present).partition("/")[0]
            for other in rail.interfaces
            if other is not interface
        },
    }


def netplan_document(interfaces: Sequence[Interface], mtu: int, routes: Sequence[Route] = ()) -> dict[str, Any]:
    """The netplan document of a host: an address on each interface, the routes of a relay, and nothing else.

    No link-local addresses, which would add GIDs (sparkrun and spark-vllm-docker do the same); C(optional), because a
    boot must not wait for a cable.

    :param interfaces: of the host, with the addresses that they are to have
    :param mtu: of all
    :param routes: of C(plan_relay)
    :returns: the document
    """
    return {
        "network": {
            "version": 2,
            "ethernets": {
                interface.name: {
                    "addresses": [interface.wanted],
                    "dhcp4": False,
                    "dhcp6": False,
                    "link-local": [],
                    "mtu": mtu,
                    "optional": True,
                    **_routes_of(interface, routes),
                }
                for interface in interfaces
            },
        }
    }


def _routes_of(interface: Interface, routes: Sequence[Route]) -> dict[str, Any]:
    """The routes of one interface as netplan has them; nothing where there are none."""
    own = [{"to": route.to, "via": route.via} for route in routes if route.netdev == interface.name]
    return {"routes": own} if own else {}


def restore_commands(interfaces: Sequence[Interface]) -> list[list[str]]:
    """Commands that bring back what the interfaces have now and no file has.

    What a file has comes back with the file: systemd-networkd loses its way when ip changes addresses while it sets them.
    """
    commands = []
    for interface in interfaces:
        if any(entry["persistent"] for entry in interface.stored):
            continue
        commands.append(["ip", "-4", "addr", "flush", "dev", interface.name, "scope", "global"])
        if interface.facts.get("mtu"):
            commands.append(["ip", "link", "set", "dev", interface.name, "mtu", str(interface.facts["mtu"])])
        for address in v4(interface.facts.get("addresses")):
            if not is_link_local(address):
                commands.append(["ip", "addr", "replace", address, "dev", interface.name])
    return commands


# --- the way to hosts that are no neighbours ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """The way of one host to a subnet that it has no interface in: by which neighbour, and from which of its interfaces."""

    to: str
    via: str
    netdev: str
    source: str


def plan_relay(
    cabling: Cabling, rails: Sequence[Rail], actions: Mapping[str, str], settings: Settings
) -> dict[str, list[Route]]:
    """Plan routes to the far cables of a ring, the shorter way round, first interfaces by first ones and second by second.

    Each host on the way has to forward (net.ipv4.ip_forward, and Docker's chain DOCKER-USER, as Docker drops what is forwarded).
    Engines do not need it: NCCL's ring goes from neighbour to neighbour. It is for hosts without a network beside the ring.

    :param cabling: of the group
    :param rails: final, see C(set_final)
    :param actions: of the hosts; routes are written where all networks are ours to write
    :param settings: of the group
    :returns: routes by host; nothing where there is no relay
    """
    order = list(cabling.order)
    if not settings.relay or cabling.topology != "ring" or len(order) < 4:
        return {}
    if not all(rail.works for rail in rails) or not all(action in WRITES for action in actions.values()):
        return {}
    size = len(order)
    place = {name: number for number, name in enumerate(order)}
    cables: dict[tuple[int, int], Rail] = {}
    for rail in rails:
        one, other = sorted(place[interface.host] for interface in rail.interfaces)
        cables[(other if (one, other) == (0, size - 1) else one, rail.position)] = rail
    routes: dict[str, list[Route]] = {name: [] for name in order}
    for name, here in place.items():
        for (cable, position), rail in cables.items():
            onward, back = (cable - here) % size, (here - cable - 1) % size
            if not onward or not back:
                continue  # a cable of its own
            own = cables.get((here if onward <= back else (here - 1) % size, position))
            if own is None:
                continue
            mine = next(interface for interface in own.interfaces if interface.host == name)
            neighbour = next(interface for interface in own.interfaces if interface.host != name)
            routes[name].append(
                Route(rail.subnet, neighbour.final.partition("/")[0], mine.name, mine.final.partition("/")[0])
            )
    return routes


def forwards(own: Sequence[tuple[Rail, Interface]]) -> list[dict[str, str]]:
    """List the interfaces between which a host of a ring forwards, both ways: from one cage to the same interface of the other."""
    return [
        {"from": one.name, "to": other.name}
        for rail, one in own
        for another, other in own
        if one.cage != other.cage and rail.position == another.position
    ]


def far_pings(name: str, rails: Sequence[Rail], relay: Mapping[str, Sequence[Route]]) -> list[dict[str, Any]]:
    """List what a host has to send to hosts that are no neighbours, over the relay, once the addresses are there.

    :param name: of the host
    :param rails: final, see C(set_final)
    :param relay: of C(plan_relay)
    :returns: as C(pings)
    """
    if any(interface.present != interface.final for rail in rails for interface in rail.interfaces):
        return []
    found = []
    near = {other.host for rail in rails if name in rail.hosts for other in rail.interfaces}
    by_subnet = {rail.subnet: rail for rail in rails}
    for route in relay.get(name, ()):
        mine = next(
            each for rail in rails for each in rail.interfaces if (each.host, each.name) == (name, route.netdev)
        )
        found += [
            {
                "rail": f"{by_subnet[route.to].name}, by {route.via}",
                "host": name,
                "netdev": route.netdev,
                "source": route.source,
                "target": other.final.partition("/")[0],
                "target_host": other.host,
                "size": max(mine.mtu, other.mtu) - 28,
            }
            for other in by_subnet[route.to].interfaces
            if other.host not in near
        ]
    return found


def meeting_pings(
    name: str, hosts: Mapping[str, Mapping[str, Any]], rails: Sequence[Rail], places: Mapping[str, Place]
) -> list[dict[str, Any]]:
    """List what a host of a ring has to send to the others over the network by which their engines meet, once the ring has its addresses.

    :param name: of the host
    :param hosts: as C(plan) takes them
    :param rails: final, see C(set_final)
    :param places: of C(place_of), of all hosts
    :returns: as C(pings)
    """
    own = places[name]
    if not own.management or any(
        interface.present != interface.final for rail in rails for interface in rail.interfaces
    ):
        return []
    mtus = {
        host: int((hosts[host]["fabric"].get("mtus") or {}).get(place.netdev) or 0) for host, place in places.items()
    }
    return [
        {
            "rail": "management",
            "host": name,
            "netdev": own.netdev,
            "source": own.address,
            "target": place.address,
            "target_host": other,
            "size": (max(mtus[name], mtus[other]) or ETHERNET_MTU) - 28,
        }
        for other, place in places.items()
        if other != name and place.management
    ]


def judge_meeting(
    hosts: Mapping[str, Mapping[str, Any]],
    cabling: Cabling,
    rails: Sequence[Rail],
    actions: Mapping[str, str],
    settings: Settings,
    relay: Mapping[str, Sequence[Route]],
) -> list[Finding]:
    """Find what keeps the engines of a ring from finding each other, and a relay that was asked for and cannot be.

    :param hosts: as C(plan) takes them
    :param cabling: of the group
    :param rails: final
    :param actions: of the hosts
    :param settings: of the group
    :param relay: of C(plan_relay)
    :returns: findings
    """
    if cabling.topology != "ring":
        return []
    if settings.relay and not relay and len(hosts) > 3:
        kept = [name for name, action in actions.items() if action not in WRITES]
        return [
            make_finding(
                "no_relay",
                "warning",
                f"fabric_relay is set, and no routes are written: {join(kept) or 'an interface of the ring'} "
                f"{'keeps a network of somebody else' if kept else 'has no address'}.",
                f"Write the routes by hand, or take fabric_relay out{BELOW_FABRIC}.",
            )
        ]
    lost = [
        name
        for name in hosts
        if not relay and actions[name] != "refuse" and not place_of(name, hosts, rails, cabling.topology).address
    ]
    if not lost or not rails:
        return []
    return [
        make_finding(
            "no_meeting",
            "error",
            f"{join(lost)}: no network beside the ring is known, and no rail of a ring reaches all hosts, so engines do not find each other.",
            "Join all hosts by the RJ45 port too"
            + (f", or set fabric_relay: true{BELOW_FABRIC}." if len(hosts) > 3 else "."),
            "spark-vllm-docker, sparkring and NVIDIA's playbook for three Sparks start engines over the management network",
        )
    ]


# --- where engines are found ---------------------------------------------------------------------------------------


def place_of(
    name: str, hosts: Mapping[str, Mapping[str, Any]], rails: Sequence[Rail], topology: str, relay: bool = False
) -> Place:
    """Find where the others find a host once the plan is carried out: on the first rail that all hosts are on.

    No rail of a ring reaches everybody; there it is the management network, and the rails carry the data only. With a relay, hosts
    that no such network joins are found by their first rail.

    :param name: of the host
    :param hosts: as C(plan) takes them
    :param rails: final, see C(set_final)
    :param topology: of the group
    :param relay: whether hosts of a ring pass on what is for others
    :returns: netdev, address and RoCE devices
    """
    own = [(rail, interface) for rail in rails if rail.works for interface in rail.interfaces if interface.host == name]
    devices = tuple(str(interface.rdma["name"]) for _rail, interface in own if interface.rdma.get("state") == "ACTIVE")
    whole = [interface for rail, interface in own if len({other.host for other in rail.interfaces}) == len(hosts)]
    if whole:
        return Place(whole[0].name, whole[0].final.partition("/")[0], devices)
    address = str(hosts[name].get("management_address") or "")
    networks = hosts[name]["fabric"].get("networks") or {}
    netdev = next((dev for dev, found in networks.items() if any(a.startswith(f"{address}/") for a in found)), "")
    if topology != "ring" or not own:
        return Place()
    if relay and not _share_management(hosts):
        return Place(own[0][1].name, own[0][1].final.partition("/")[0], devices)
    if not address or not netdev:
        return Place()
    return Place(netdev, address, devices, True)


def _share_management(hosts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether the management address of each host is one of its own."""
    return all(
        entry.get("management_address")
        and any(
            address.startswith(f"{entry['management_address']}/")
            for found in (entry["fabric"].get("networks") or {}).values()
            for address in found
        )
        for entry in hosts.values()
    )


def open_to(
    name: str, hosts: Mapping[str, Mapping[str, Any]], rails: Sequence[Rail], place: Place, relay: bool = False
) -> dict[str, list[str]]:
    """Return C({fabric, peers}): interfaces that the peers come in by, and the networks that they come from.

    In a ring that is the management network too, from the addresses of the peers alone.

    :param name: of the host
    :param hosts: as C(plan) takes them
    :param rails: final, see C(set_final)
    :param place: of C(place_of)
    :param relay: whether others than neighbours come in by the rails too
    :returns: C({fabric, peers})
    """
    own = [(rail, interface) for rail in rails if rail.works for interface in rail.interfaces if interface.host == name]
    netdevs = {interface.name for _rail, interface in own}
    peers = {str(network_of(interface.final)) for _rail, interface in own}
    if relay:
        peers |= {rail.subnet for rail in rails}
    if place.management:
        netdevs.add(place.netdev)
        peers |= {str(entry["management_address"]) for host, entry in hosts.items() if host != name}
    return {"fabric": sorted(netdevs), "peers": sorted(peers)}


# --- verification --------------------------------------------------------------------------------------------------


def pings(name: str, rails: Sequence[Rail]) -> list[dict[str, Any]]:
    """List what a host has to send over its rails, as they are: a packet that fills the larger MTU of the two ends."""
    return [
        {
            "rail": rail.name,
            "host": name,
            "netdev": interface.name,
            "source": interface.present.partition("/")[0],
            "target": other.present.partition("/")[0],
            "target_host": other.host,
            "size": max(interface.mtu, other.mtu) - 28,  # IP and ICMP
        }
        for rail in rails
        for interface in rail.configured
        for other in rail.configured
        if interface.host == name and other is not interface
    ]


def bandwidth_tests(plan_: Mapping[str, Any], tools: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """List the probes of a planned group: the first host with each other one, on each rail.

    tools: programs that each host has. Returns C([{rail, topology, tool, server, client, listen, send}]) with both command lines;
    empty where no tool is on all hosts.
    """
    tool = next((name for name in BANDWIDTH_TOOLS if tools and all(name in has for has in tools.values())), None)
    if tool is None:
        return []
    tests = []
    for rail in plan_["rails"]:
        ends = {host: end for host, end in rail["ends"].items() if end["present"]}
        hosts = [host for host in plan_["hosts"] if host in ends]
        for client in hosts[1:]:
            server = hosts[0]
            there, here = ends[server], ends[client]
            if tool == "ib_write_bw" and not (there["rdma"] and here["rdma"]):
                continue
            tests.append(
                {
                    "rail": rail["name"],
                    "topology": plan_["topology"],
                    "tool": tool,
                    "server": server,
                    "client": client,
                    "listen": probe_command(tool, there),
                    "send": probe_command(tool, here, there["present"].partition("/")[0]),
                }
            )
    return tests


def probe_command(tool: str, end: Mapping[str, Any], target: str = "") -> list[str]:
    """The command line of one side of a probe: 1 GiB, and never longer than a minute.

    :param tool: one of C(BANDWIDTH_TOOLS)
    :param end: of the plan's C(bandwidth_tests): address and RoCE device
    :param target: address of the server; makes it the client
    :returns: the command
    """
    own = str(end["present"]).partition("/")[0]
    if tool == "ib_write_bw":
        messages = str(PROBE_BYTES // PROBE_MESSAGE)
        device = ["-d", str(end["rdma"]), "--report_gbits", "-F", "-s", str(PROBE_MESSAGE), "-n", messages]
        command = ["ib_write_bw", *device, "-p", str(PROBE_PORT)]
        return ["timeout", "60", *command, *([target] if target else [])]
    common = ["iperf3", "-p", str(PROBE_PORT), "-B", own]
    if target:
        return ["timeout", "60", *common, "-c", target, "-n", str(PROBE_BYTES), "-J"]
    return ["timeout", "60", *common, "-s", "-1"]


def parse_bandwidth(tool: str, out: str) -> float | None:
    """Read the Gb/s out of what a probe's client printed; None when it has none."""
    if tool == "iperf3":
        try:
            return round(float(parse_json(out, "iperf3")["end"]["sum_received"]["bits_per_second"]) / 1e9, 2)
        except (ValueError, KeyError, TypeError):
            return None
    # #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]
    rows = re.findall(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", out, re.MULTILINE)
    return float(rows[-1]) if rows else None


DEGRADED = (
    "About 13 Gb/s at a 200 Gb/s link means that the card came up degraded, with any kernel: shut down, take the power off for one to five "
    "minutes, and start with the cable in."
)
ON_SWITCH = (
    "About 5 Gb/s on a switch is traffic that its chip does not forward: put all ports into one bridge, and where two switches have an uplink "
    "each, see that RSTP does not block the link between them (a path cost for the second uplink). At most 100: take the limit out of the "
    "port's shaper, and set 200G-baseCR4. "
)
"""What a MikroTik CRS812 was reported to do; other switches have other words for it."""


def judge_bandwidth(results: Sequence[Mapping[str, Any]], least: Mapping[str, float]) -> list[Finding]:
    """Judge probes.

    :param results: of probes; each has C(rail), C(topology), C(tool), C(server), C(client), C(gbps) (or null) and C(error)
    :param least: Gb/s that are enough, by tool
    :returns: findings
    """
    if not results:
        return [
            Finding(
                "fabric.no_probe",
                "info",
                "the bandwidth was not measured: neither ib_write_bw (package perftest) nor iperf3 is on all hosts.",
                fix="Install one of them on all hosts of the group; or see what site.yml says of each cable before an engine starts.",
                basis="probed",
            )
        ]
    findings = []
    for result in results:
        way = f"{result['rail']}: {result['client']} to {result['server']}"
        need, switched = float(least.get(result["tool"], 0)), result.get("topology") == "switch"
        if result.get("gbps") is None:
            findings.append(
                Finding(
                    "fabric.probe_failed",
                    "warning",
                    f"{way}: {result['tool']} gave no figure: {result.get('error') or 'no output'}.",
                    fix=f"Run it by hand; port {PROBE_PORT} of the fabric must be open.",
                    basis="probed",
                )
            )
        elif result["gbps"] < need:
            findings.append(
                Finding(
                    "fabric.slow",
                    "warning",
                    f"{way}: {result['gbps']:g} Gb/s by {result['tool']}, less than {need:g}.",
                    fix=f"{ON_SWITCH if switched else ''}{DEGRADED} fabric_min_gbps sets what is enough.",
                    source="NVIDIA/dgx-spark-playbooks PR#108; NVIDIA developer forum t/383649; healthy rails: 92 to 112 Gb/s by ib_write_bw"
                    + (
                        "; owners of a MikroTik CRS812: 4.9 over a second bridge, 4.5 past a blocked link"
                        if switched
                        else ""
                    ),
                    basis="probed",
                )
            )
    return findings


def lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write findings as people read them, errors first."""
    order = {"error": 0, "warning": 1, "info": 2}
    return [
        f"{finding['severity']} {finding['rule']}: {finding['message']} {finding.get('fix', '')}".rstrip()
        for finding in sorted(findings, key=lambda finding: order[finding["severity"]])
    ]
