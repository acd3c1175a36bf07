# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay the rails of a fabric: judge the present addresses of their interfaces, and assign an address to each."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common.findings import Finding
from .cabling import (
    Cage,
    Hosts,
    interface_of,
    is_link_local,
    join,
    make_finding,
    network_of,
    up_cages,
    v4,
)
from .engine_env import PLAYBOOK, REPORTS

NETPLAN_FILE = "/etc/netplan/40-cx7.yaml"
"""The name that NVIDIA's playbook and sparkrun use; netplan adds up the addresses of several files, so it must be the one."""
WRITES = ("configure", "migrate")
"""Actions of the plan that change a host."""
TOPOLOGIES = ("auto", "direct", "switch", "ring")
LEAST_MTU, MOST_MTU = 1280, 9216
ETHERNET_MTU = 1500
"""MTU of an interface if the host does not report it."""
BELOW_FABRIC = " (with site.yml: without fabric_, below fabric of spark_cluster)"
"""Where users of the playbook find a setting of the role."""


@dataclass(frozen=True)
class Settings:
    """Settings of the fabric of a group, from the inventory.

    network: is cut into equal parts, one a rail. subnets: replace it, in the order of rails.
    first_host: number of the first host in each subnet. mtu: of all interfaces. migrate: repair wrong networks.
    relay: in a ring of four or more, hosts forward packets between hosts that have no common cable.
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
    """One netdev of a cage that a rail uses, with its facts and its planned address."""

    host: str
    cage: int
    facts: Mapping[str, Any]
    requested: str = ""  # address from the inventory
    assigned: str = ""  # address from the plan
    subnet: str = ""  # subnet of the other ends; selects one of several addresses
    final: str = ""  # address once the plan is carried out; empty if a wrong host is left alone

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
        """Its IPv4 addresses, CIDR; without link-local ones."""
        return [address for address in v4(self.facts.get("addresses")) if not is_link_local(address)]

    @property
    def present(self) -> str:
        """Its present address; of several the requested one, else the one in the subnet of the other ends."""
        if self.requested in self.usable:
            return self.requested
        fitting = [address for address in self.usable if str(network_of(address)) == self.subnet]
        return next(iter(fitting or self.usable), "")

    @property
    def link_local(self) -> bool:
        """Whether its only address is link-local."""
        return not self.present and bool(v4(self.facts.get("addresses")))

    @property
    def shown(self) -> str:
        """Its first address, link-local ones included."""
        return next(iter(v4(self.facts.get("addresses"))), "")

    @property
    def mtu(self) -> int:
        """Its MTU; Ethernet's standard if the host does not report one."""
        return int(self.facts.get("mtu") or ETHERNET_MTU)

    @property
    def stored(self) -> Sequence[Mapping[str, Any]]:
        """Files that configure it."""
        return self.facts.get("stored") or []

    @property
    def managed(self) -> bool:
        """Whether this collection wrote its file."""
        return any(entry.get("managed") for entry in self.stored)

    @property
    def rdma(self) -> Mapping[str, Any]:
        """Its RoCE device, or empty."""
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
    """Return the problems of the settings, as messages."""
    problems = []
    for name, text in [("network", settings.network), *(("subnets", subnet) for subnet in settings.subnets)]:
        try:
            if ipaddress.ip_network(text).version != 4:
                problems.append(f"{name}: {text} is not IPv4, which RoCE's addresses are made from here")
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if settings.topology not in TOPOLOGIES:
        problems.append(f"topology: {settings.topology!r} is not one of {', '.join(TOPOLOGIES)}")
    if not LEAST_MTU <= settings.mtu <= MOST_MTU:
        problems.append(f"mtu: {settings.mtu} is not between {LEAST_MTU} and {MOST_MTU}")
    if settings.first_host < 1:
        problems.append(f"first_host: {settings.first_host} is not a host's number")
    return problems


def make_rails(hosts: Hosts, segments: Sequence[Sequence[Cage]], settings: Settings) -> list[Rail]:
    """Return the rails of each segment: first interface with first interface, second with second.

    If a host has two cages in one segment (two cables to one switch), its second cage makes rails with the second
    cages of the others.
    """
    rails: list[Rail] = []
    for segment in segments:
        by_host: dict[str, list[int]] = {}
        for host, cage in segment:
            by_host.setdefault(host, []).append(cage)
        for level, position in itertools.product(range(max(len(cages) for cages in by_host.values())), range(2)):
            interfaces = []
            for host, cages in by_host.items():
                if level >= len(cages):
                    continue
                entry = hosts[host]
                netdevs = up_cages(entry["fabric"])[cages[level]]["netdevs"]
                requested = entry.get("addresses") or {}
                if position < len(netdevs) and netdevs[position].get("up"):
                    facts = netdevs[position]
                    interfaces.append(Interface(host, cages[level], facts, str(requested.get(facts["name"]) or "")))
            if len(interfaces) > 1:
                settle_subnet(interfaces, settings)
                rails.append(Rail(f"rail{len(rails)}", interfaces, position))
    return rails


def settle_subnet(interfaces: Sequence[Interface], settings: Settings) -> None:
    """Set the subnet of interfaces with several addresses: a subnet that all ends share, one of the settings first."""
    configured = [interface for interface in interfaces if interface.usable]
    shared = [
        network
        for network in dict.fromkeys(network_of(address) for interface in configured for address in interface.usable)
        if all(any(network_of(address) == network for address in interface.usable) for interface in configured)
    ]
    ours = [network_of(text) for text in (*settings.subnets, settings.network)]
    shared.sort(key=lambda network: not any(network.subnet_of(configured_network) for configured_network in ours))
    for interface in configured:
        interface.subnet = str(shared[0]) if shared else ""


def cut(network: str, parts: int) -> list[str]:
    """Return at least C(parts) equal subnets of a network, /24 if that gives enough."""
    all_addresses = ipaddress.IPv4Network(network)
    prefix = max(all_addresses.prefixlen + max(parts - 1, 0).bit_length(), 24)
    if prefix > 30:
        return []
    return [str(subnet) for subnet in itertools.islice(all_addresses.subnets(new_prefix=prefix), max(parts, 64))]


class Layout:
    """Judges the present addresses of the interfaces, and assigns an address to each."""

    def __init__(self, hosts: Hosts, rails: list[Rail], settings: Settings) -> None:
        self.hosts, self.rails, self.settings = hosts, rails, settings
        self.findings: list[Finding] = []
        self.wrong: set[str] = set()  # hosts that need to be changed before anything can run on the fabric
        self.poor: set[str] = set()  # hosts whose network works, with room for improvement

    def add(self, *fields: str) -> None:
        """Add a finding. fields: the arguments of C(make_finding)."""
        self.findings.append(make_finding(*fields))

    def repair(self, hosts: Iterable[str]) -> str:
        """Return the fix: the role repairs files of this collection by itself, others after fabric_migrate."""
        if self.settings.migrate or all(self.managed(host) for host in hosts):
            return "The role fabric does it."
        return f"Set fabric_migrate: true{BELOW_FABRIC} to have {NETPLAN_FILE} written, or change it by hand."

    def managed(self, host: str) -> bool:
        """Return whether this collection wrote the files of all interfaces of a host that rails use."""
        interfaces = [interface for interface in self.interfaces() if interface.host == host]
        return bool(interfaces) and all(interface.managed for interface in interfaces)

    def interfaces(self) -> list[Interface]:
        """All interfaces of all rails."""
        return [interface for rail in self.rails for interface in rail.interfaces]

    def of_host(self) -> dict[str, list[Interface]]:
        """Interfaces by host."""
        return {name: [interface for interface in self.interfaces() if interface.host == name] for name in self.hosts}

    def judge(self) -> None:
        """Collect the findings about the present network."""
        for name, interfaces in self.of_host().items():
            self._bonds(name, interfaces)
            self._same_subnet(name, interfaces)
            self._overlaps(name, interfaces)
            self._stored(name, interfaces)
        for rail in self.rails:
            self._rail(rail)
        self._requested()

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
                "Give each interface a separate subnet. " + self.repair([name]),
                "NVIDIA's playbook for switched Sparks, which warns of it; spark-vllm-docker refuses it",
            )

    def _overlaps(self, name: str, interfaces: list[Interface]) -> None:
        for interface in interfaces:
            for netdev, address in self._other_networks(name):
                if interface.present and network_of(interface.present).overlaps(network_of(address)):
                    self._break([interface])
                    self.add(
                        "overlap",
                        "error",
                        f"{interface.where} ({interface.present}) lies in the network of {netdev} ({address}).",
                        f"Choose another fabric_network{BELOW_FABRIC}. " + self.repair([name]),
                        REPORTS,
                    )

    def _other_networks(self, name: str) -> list[tuple[str, str]]:
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

    def _requested(self) -> None:
        subnets = self.settings.subnets
        for number, rail in enumerate(self.rails):
            for interface in rail.configured:
                expected = interface.requested
                if not expected and number < len(subnets) and str(network_of(interface.present)) != subnets[number]:
                    expected = f"an address of {subnets[number]}"
                if expected and expected != interface.present:
                    self._break([interface])
                    self.add(
                        "other_address",
                        "error",
                        f"{interface.where} has {interface.present}; the inventory gives it {expected}.",
                        "Change one of the two. " + self.repair([interface.host]),
                    )

    def assign(self) -> None:
        """Assign an address to every interface: right ones stay, missing and wrong ones are made from the settings."""
        settings = self.settings
        in_use: list[ipaddress.IPv4Network] = []
        for rail in self.rails:
            if not rail.broken and rail.configured:
                rail.subnet = str(network_of(rail.configured[0].present))
                in_use.append(network_of(rail.configured[0].present))
        offered = cut(settings.network, len(self.rails))
        for number, rail in enumerate(self.rails):
            if not rail.subnet:
                rail.subnet = self._subnet(number, rail, offered, in_use)
                if not rail.subnet:
                    continue
                in_use.append(network_of(rail.subnet))
            self._addresses(rail)

    def _subnet(self, number: int, rail: Rail, offered: list[str], in_use: list[ipaddress.IPv4Network]) -> str:
        requested = {str(network_of(interface.requested)) for interface in rail.interfaces if interface.requested}
        if len(requested) > 1:
            self.wrong |= rail.hosts
            self.add(
                "given_differ",
                "error",
                f"{rail.name}: fabric_addresses puts its ends in different subnets: "
                f"{join(f'{interface.where} {interface.requested}' for interface in rail.interfaces if interface.requested)}.",
                "Give both ends one subnet.",
            )
            return ""
        if requested:
            return requested.pop()
        if number < len(self.settings.subnets):
            return self.settings.subnets[number]
        return self._free_subnet(rail, offered, in_use)

    def _free_subnet(self, rail: Rail, offered: list[str], in_use: list[ipaddress.IPv4Network]) -> str:
        foreign = [
            (interface.host, *other) for interface in rail.interfaces for other in self._other_networks(interface.host)
        ]
        clash = ""
        for subnet in offered:
            network = network_of(subnet)
            met = next((other for other in foreign if network.overlaps(network_of(other[2]))), None)
            if met:
                clash = f"{subnet} is the network of {met[1]} ({met[2]}) on {met[0]}"
            elif not any(network.overlaps(other) for other in in_use):
                return subnet
        self.wrong |= rail.hosts
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
        used |= {interface_of(interface.requested).ip for interface in rail.interfaces if interface.requested}
        for interface in rail.interfaces:
            if interface.requested or id(interface) in keep:
                interface.assigned = interface.requested or keep[id(interface)]
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
            interface.assigned = f"{network[number]}/{network.prefixlen}"


def set_final(rails: Sequence[Rail], actions: Mapping[str, str]) -> None:
    """Set the address that each interface has once the plan is carried out: the assigned one on written hosts, the present
    one on hosts that stay, none on refused hosts."""
    for rail in rails:
        for interface in rail.interfaces:
            action = actions[interface.host]
            interface.final = interface.assigned if action in WRITES else interface.present if action == "keep" else ""
