# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find Sparks for a first inventory: parse the addresses to try, and the answers of the machines. Pure functions.

target     an address to try
candidate  a target with an ssh server or a name
machine    a candidate with its answers: a Spark, another machine, or unknown
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._cluster import cabling
from .._common import foreign_text, plain_data, reader
from .._common.reader import LINE, Maybe, Most
from .._common.tables import one_line

MOST_ADDRESSES = 1024
"""Addresses of one run; a /22, more than a rack of Sparks."""
LOCAL = ("localhost", "127.0.0.1", "::1")
"""The machine that Ansible runs on, which needs no ssh."""
GREETING = re.compile(r"SSH-\d[\d.]*-[\x20-\x7e]{1,200}")
"""The first line of an ssh server (RFC 4253, 4.2)."""
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_RANGE = re.compile(r"(?P<first>\d{1,3}(?:\.\d{1,3}){2}\.(?P<low>\d{1,3}))-(?P<last>[\d.]+)")
_NAMED = re.compile(
    r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)(?::(?P<port>\d{1,5}))?"
)
_WORDS = frozenset(
    ("localhost", "all", "ungrouped", "sparks", "true", "false", "yes", "no", "on", "off", "null", "y", "n")
)
"""Words with a meaning in Ansible or YAML, which cannot name a host."""

GIVEN, RANGE, MDNS, NEIGHBOUR = "named", "range", "mDNS", "QSFP neighbour"


@dataclass(frozen=True)
class Target:
    """An address to try. user, port: empty and 0 to leave them to ssh. by: C(GIVEN), C(RANGE), C(MDNS) or C(NEIGHBOUR)."""

    address: str
    by: str = GIVEN
    user: str = ""
    port: int = 0

    @property
    def local(self) -> bool:
        """Whether it is the machine that Ansible runs on. With a port it may be a forwarded ssh server of another machine."""
        return self.address in LOCAL and not self.port


def read_ssh_way(target: Target, text: str) -> tuple[str, int, bool]:
    """Return address and port that ssh connects to, and whether it goes through another host (ProxyJump, ProxyCommand).

    text: output of C(ssh -G), empty if it failed.
    """
    options = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    port = options.get("port", "")
    jumps = any(options.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))
    return options.get("hostname") or target.address, target.port or (int(port) if port.isdecimal() else 22), jumps


def read_targets(texts: Iterable[str]) -> tuple[list[Target], list[str]]:
    """Return the named addresses, each once, and the errors.

    texts: C(NAME), C(USER@NAME), C(NAME:PORT), an IPv6 address, C(192.168.1.0/28), C(192.168.1.10-20), several of them with commas.
    """
    targets: dict[str, Target] = {}
    problems: list[str] = []
    for text in (part.strip() for value in texts for part in str(value).split(",")):
        if not text:
            continue
        try:
            for target in _targets_of(text):
                first = targets.setdefault(target.address, target)
                if target.port != first.port and GIVEN == target.by == first.by:
                    raise ValueError(
                        f"names {target.address} with a second port; give each machine a name in ~/.ssh/config (HostName, Port) and use those"
                    )
        except ValueError as error:
            problems.append(f"discover_hosts: '{foreign_text.printable(text)}' {error}.")
    if len(targets) > MOST_ADDRESSES:
        problems.append(
            f"discover_hosts: {len(targets)} addresses are more than the {MOST_ADDRESSES} of one run. Name smaller ranges."
        )
    return list(targets.values()), problems


def _targets_of(text: str) -> list[Target]:
    if "/" in text:
        try:
            network = ipaddress.ip_network(plain_data.strict_address(text), strict=False)
        except ValueError as error:
            raise ValueError("is no network") from error
        _check_count(network.num_addresses)
        return [Target(str(address), RANGE) for address in network.hosts()]
    span = _RANGE.fullmatch(text)
    if span:
        return [Target(address, RANGE) for address in _span(span["first"], span["last"], int(span["low"]))]
    if _is_address(text):
        return [Target(str(ipaddress.ip_address(plain_data.strict_address(text))))]
    match = _NAMED.fullmatch(text)
    if not match or (re.fullmatch(r"[\d.]+", match["host"]) and not _is_address(match["host"])):
        raise ValueError(
            "is no address, name or range; write spark-1, user@192.168.1.11, 192.168.1.10-20 or 192.168.1.0/28"
        )
    port = int(match["port"] or 0)
    if match["port"] and not 0 < port < 65536:
        raise ValueError("names an invalid port")
    return [Target(match["host"], GIVEN, match["user"] or "", port)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(plain_data.strict_address(text))
    except ValueError:
        return False
    return True


def _check_count(count: int) -> None:
    if count > MOST_ADDRESSES:
        raise ValueError(f"has {count} addresses, {MOST_ADDRESSES} may be tried; name a smaller one")


def _span(first: str, last: str, low: int) -> list[str]:
    high = last if "." in last else f"{first.rpartition('.')[0]}.{last}"
    try:
        start, end = ipaddress.IPv4Address(first), ipaddress.IPv4Address(high)
    except ValueError as error:
        raise ValueError("is no range of addresses") from error
    count = int(end) - int(start) + 1
    if count < 1:
        raise ValueError(f"ends before {low}, its first address")
    _check_count(count)
    return [str(start + step) for step in range(count)]


def read_mdns(text: str) -> list[Target]:
    """Return the machines that announce ssh: C(avahi-browse --parsable --resolve --terminate _ssh._tcp); IPv4 goes before IPv6."""
    targets: dict[str, Target] = {}
    for line in text.splitlines():
        fields = line.split(";")
        if len(fields) < 9 or fields[0] != "=" or not fields[8].isdecimal():
            continue
        name, address, port = fields[6], fields[7], int(fields[8])
        if not _NAMED.fullmatch(name) or not _is_address(address) or not 0 < port < 65536:
            continue
        if name not in targets or fields[2] == "IPv4":
            # A link-local address of IPv6 is useless without an interface, so the name is used.
            targets[name] = Target(name if fields[2] != "IPv4" else address, MDNS, "", port if port != 22 else 0)
    return list(targets.values())


def read_neighbours(fabric: Mapping[str, Any]) -> list[Target]:
    """Return the neighbours on the QSFP ports of this machine. fabric: of C(HostView.fabric)."""
    addresses = [
        neighbour["address"]
        for port in cabling.up_cages(fabric).values()
        for netdev in port["netdevs"]
        for neighbour in netdev.get("neighbours") or []
        if _is_address(str(neighbour.get("address"))) and ":" not in neighbour["address"]
    ]
    return [Target(address, NEIGHBOUR) for address in dict.fromkeys(addresses)]


def may_be_spark(greeting: str) -> bool:
    """Tell whether a machine that nobody named may be a Spark: DGX OS has the ssh server of Ubuntu."""
    return "OpenSSH" in greeting and "Ubuntu" in greeting


ADVICE = (
    ("Timed out after", "it hangs or is overloaded; run again, or give it longer with -e discover_patience=SECONDS"),
    (
        "Host key verification failed",
        "log in once with ssh, compare the fingerprint, or give -e discover_accept_new_keys=true",
    ),
    (
        "bad permissions",
        "ssh ignores a private key that other accounts can read: chmod 600 it; in WSL copy it to ~/.ssh, files below /mnt stay readable",
    ),
    (
        "Permission denied",
        "copy your key there with ssh-copy-id, name the account with -e discover_user=NAME, or add -k for a password",
    ),
    ("Missing sudo password", "add -K, which asks for the sudo password once"),
    ("password is required", "add -K, which asks for the sudo password once"),
    (
        "Connection refused",
        "no ssh server answers on that port; switch it on there, or name another port with NAME:PORT",
    ),
    ("did not answer in", "it may be off or slow; run again, or give it longer with -e discover_timeout=SECONDS"),
)
"""Fixes by a part of the reason."""


def with_advice(why: str) -> str:
    """Return a reason with its fix, if one is known."""
    advice = next((advice for part, advice in ADVICE if part.lower() in why.lower()), "")
    return f"{why.rstrip('.')}; {advice}" if advice and advice not in why else why


@dataclass
class Machine:
    """A candidate with its answers. state: C(spark), C(other) or C(unknown), with the reason in C(why).

    facts, launches, heard: C(spark), C(adoption.launches) and C(cabling.heard) of M(dgxspark.vllm.spark_info); None if unknown. notes: reasons
    of other missing answers. also: further addresses of the same machine.
    """

    target: Target
    state: str
    why: str = ""
    name: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    launches: list[dict[str, Any]] | None = None
    heard: list[dict[str, Any]] | None = None
    notes: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)


def _product(machine: Mapping[str, Any]) -> str:
    """Return vendor and product of a machine."""
    vendor, product = machine.get("sys_vendor") or "machine", machine.get("product_name") or ""
    return f"{one_line(vendor)} {one_line(product)}".strip()


def read_machine(
    target: Target, as_root: Mapping[str, Any], plain: Mapping[str, Any], cables: Mapping[str, Any]
) -> Machine:
    """Return the machine of a candidate. A malformed answer makes it unknown.

    :param as_root: result of M(dgxspark.vllm.ask) as root: C(spark) with the section C(adoption)
    :param plain: the same without root, after a failure; empty otherwise
    :param cables: result as root: C(probe) with the section C(cabling)
    """
    if not as_root.get("reached"):
        why = one_line(as_root.get("why") or "it was not asked").removeprefix("Task failed: ")
        return Machine(target, "unknown", with_advice(why))
    answer, notes = _answer(as_root, "spark"), []
    adoption = _section(answer, "adoption")
    if _has_failed(answer):
        why = with_advice(one_line(answer.get("msg") or "it was not asked"))
        notes.append(f"asked without root ({why}): containers and processes of others may be missing")
        answer = _answer(plain, "spark")
        if _has_failed(answer):
            return Machine(target, "unknown", with_advice(one_line(plain.get("why") or answer.get("msg") or why)))
    try:
        facts: dict[str, Any] = reader.read(_SPARK, answer.get("spark"), "spark")
    except foreign_text.Untrusted as error:
        return Machine(target, "unknown", f"its answer is invalid: {error}")
    facts.update(machine=facts.get("machine") or {}, fabric=facts.get("fabric") or {})
    machine = facts["machine"]
    if not machine.get("is_spark"):
        return Machine(target, "other", _product(machine), facts=facts)
    notes += [one_line(reason) for reason in (facts.get("unknown") or {}).values()]
    launches = _list(adoption, "launches", "what runs", notes)
    probe = _answer(cables, "probe")
    heard = _list(_section(probe, "cabling"), "heard", "cables", notes)
    return Machine(target, "spark", "", "", facts, launches, heard, notes)


def _has_failed(answer: Mapping[str, Any]) -> bool:
    return not answer or bool(answer.get("failed"))


def _answer(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = (result.get("answers") or {}).get(name) or {}
    return answer


def _section(answer: Mapping[str, Any], name: str) -> Any:
    """Return a section of an answer, or the reason for its absence."""
    return answer.get(name) or {"msg": _reason(answer, name)}


def _reason(answer: Mapping[str, Any], section: str) -> Any:
    """Return why a section of M(dgxspark.vllm.spark_info) has no answer."""
    unknown = answer.get("unknown")
    return (unknown.get(section) if isinstance(unknown, Mapping) else None) or answer.get("msg")


_NEIGHBOUR = {"mac": LINE, "address": LINE, Any: Any}
_NETDEV = {"name": LINE, "neighbours?": Most([_NEIGHBOUR], 10_000), Any: Any}
_PORT = {"cage": reader.one_of(0, 1), "netdevs": Most([_NETDEV], 64), Any: Any}
_SPARK = {
    **reader.facts({key: {Any: Any} for key in ("machine", "memory", "gpu", "docker", "dgx_os", "unknown")}),
    "fabric?": Maybe({"ports?": Most([_PORT], 64), Any: Any}),
    Any: Any,
}
_LISTS: Mapping[str, Any] = {
    "launches": Most([{Any: Any}], 1000),
    "heard": Most([{"netdev": LINE, "host": LINE, "peer": LINE, Any: Any}], 10_000),
}


def _list(answer: Any, key: str, title: str, notes: list[str]) -> list[dict[str, Any]] | None:
    """Return a list of an answer, None if it is unknown, with the reason in C(notes)."""
    why = answer.get("msg") if isinstance(answer, dict) else ""
    if isinstance(answer, dict) and key in answer:
        try:
            entries: list[dict[str, Any]] = reader.read(_LISTS[key], answer[key], key)
            return entries
        except foreign_text.Untrusted as error:
            why = f"its answer is invalid: {error}"
    notes.append(f"{title} not known: {with_advice(one_line(why or 'it was not asked'))}")
    return None


def join_same(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines, each once: equal host name, management address and ports mean the same machine."""
    unique: dict[tuple[Any, ...], Machine] = {}
    for machine in machines:
        facts = machine.facts
        key: tuple[Any, ...] = (id(machine),)
        if facts.get("hostname") and facts.get("management_address"):
            ports = facts["fabric"].get("ports") or []
            macs = sorted(str(netdev.get("mac")) for port in ports for netdev in port.get("netdevs") or [])
            key = (facts["hostname"], facts["management_address"], *macs)
        if unique.setdefault(key, machine) is not machine:
            unique[key].also.append(machine.target.address)
    return list(unique.values())


def _valid_names(machine: Machine) -> list[str]:
    """Return the short names that a person or its host name gives a Spark."""
    address = machine.target.address if machine.target.by == GIVEN and not machine.target.local else ""
    names = ["" if _is_address(address) else address, str(machine.facts.get("hostname") or "")]
    short_names = (name.partition(".")[0].lower() for name in names)
    return [name for name in short_names if NAME.fullmatch(name) and name not in _WORDS]


def give_names(machines: Sequence[Machine]) -> None:
    """Name each Spark for the inventory, in place: as a person named it, else by its host name, else C(spark-N)."""
    used = {machine.name for machine in machines if machine.name}
    for machine in machines:
        if machine.state == "spark" and not machine.name:
            numbered = (f"spark-{number}" for number in itertools.count(1))
            machine.name = next(name for name in itertools.chain(_valid_names(machine), numbered) if name not in used)
            used.add(machine.name)


@dataclass(frozen=True)
class Cables:
    """The cables between Sparks. segments: cages that reach each other. strangers: a text for each neighbour that is no known Spark."""

    segments: Sequence[Sequence[cabling.Cage]] = ()
    strangers: Sequence[str] = ()

    def of_host(self, host: str) -> list[str]:
        """Return a text for each connected QSFP port of a host."""
        texts = []
        for segment in self.segments:
            far_ends = cabling.join([cabling.port(cage) for cage in segment if cage[0] != host])
            texts += [f"port {number} to {far_ends}" for name, number in segment if name == host]
        return texts

    def groups(self) -> list[list[str]]:
        """Return the groups of connected hosts, the largest first."""
        groups = {tuple(sorted({host for host, _cage in segment})) for segment in self.segments}
        return [list(group) for group in sorted(groups, key=lambda group: (-len(group), group))]


def find_cables(machines: Sequence[Machine]) -> Cables:
    """Return the cables between named Sparks, by the packets that they heard of each other and by their neighbours."""
    sparks = [machine for machine in machines if machine.state == "spark"]
    names = {machine.target.address: machine.name for machine in sparks}
    entries: dict[str, dict[str, Any]] = {}
    ports: dict[cabling.Cage, Mapping[str, Any]] = {}
    for machine in sparks:
        fabric = machine.facts["fabric"]
        heard = [
            {**packet, "host": names.get(str(packet.get("host")), str(packet.get("host")))}
            for packet in machine.heard or []
        ]
        entries[machine.name] = {"fabric": fabric, "heard": heard}
        ports.update({(machine.name, cage): port for cage, port in cabling.up_cages(fabric).items()})
    segments = cabling.segments_of(sorted(ports), cabling.find_links(entries).pairs)
    return Cables(segments, list(dict.fromkeys(map(one_line, _strangers(ports)))))


def _strangers(ports: Mapping[cabling.Cage, Mapping[str, Any]]) -> list[str]:
    """Return the texts about neighbours of ports that are no found Sparks."""
    macs = {netdev.get("mac") for port in ports.values() for netdev in port["netdevs"]}
    return [
        f"{cabling.port(cage)} has a neighbour {neighbour.get('address')} that is not one of these Sparks; name its management address in "
        "discover_hosts"
        for cage, port in ports.items()
        for netdev in port["netdevs"]
        for neighbour in netdev.get("neighbours") or []
        if neighbour.get("mac") not in macs and ":" not in str(neighbour.get("address"))
    ]
