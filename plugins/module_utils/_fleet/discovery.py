# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finding Sparks that no inventory has yet: which addresses are tried, and what machines said of themselves. Pure functions.

candidate    a machine that answers with a greeting of ssh, or one that a person named
machine      a candidate that was asked: a Spark, something else, or not known, with the reason
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._cluster import cabling
from .._common import foreign_text, plain_data, reader
from .._common.reader import LINE, Maybe, Most

MOST_ADDRESSES = 1024
"""Addresses of one run; a /22, more than a rack of Sparks."""
LOCAL = ("localhost", "127.0.0.1", "::1")
"""The machine that Ansible runs on, which is asked without ssh."""
GREETING = re.compile(r"SSH-\d[\d.]*-[\x20-\x7e]{1,200}")
"""What an ssh server says first (RFC 4253, 4.2)."""
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_RANGE = re.compile(r"(?P<first>\d{1,3}(?:\.\d{1,3}){2}\.(?P<low>\d{1,3}))-(?P<last>[\d.]+)")
_NAMED = re.compile(
    r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)(?::(?P<port>\d{1,5}))?"
)
_WORDS = frozenset(
    ("localhost", "all", "ungrouped", "sparks", "true", "false", "yes", "no", "on", "off", "null", "y", "n")
)
"""What Ansible or YAML reads as something else than the name of a host."""

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
        """Whether it is the machine that Ansible runs on; a port is that of an ssh server, which may forward to another machine."""
        return self.address in LOCAL and not self.port


@dataclass(frozen=True)
class SshWay:
    """Where ssh connects to for a target, by its configuration. jumps: whether it goes by another host (ProxyJump, ProxyCommand)."""

    host: str
    port: int
    jumps: bool = False


def read_ssh_way(target: Target, text: str) -> SshWay:
    """Return where ssh connects to. text: what C(ssh -G) printed, empty where it failed."""
    options = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    port = options.get("port", "")
    jumps = any(options.get(name, "none") != "none" for name in ("proxyjump", "proxycommand"))
    return SshWay(
        options.get("hostname") or target.address, target.port or (int(port) if port.isdecimal() else 22), jumps
    )


def read_targets(texts: Iterable[str]) -> tuple[list[Target], list[str]]:
    """Return the addresses that a person named, each once, and what of it is wrong.

    texts: C(NAME), C(USER@NAME), C(NAME:PORT), an IPv6 address, C(192.168.1.0/28), C(192.168.1.10-20), several of them with commas.
    """
    found: dict[str, Target] = {}
    problems: list[str] = []
    for text in (part.strip() for each in texts for part in str(each).split(",")):
        if not text:
            continue
        try:
            for target in _targets_of(text):
                first = found.setdefault(target.address, target)
                if target.port != first.port and GIVEN == target.by == first.by:
                    raise ValueError(
                        f"names {target.address} with a second port; give each machine a name in ~/.ssh/config (HostName, Port) and use those"
                    )
        except ValueError as error:
            problems.append(f"discover_hosts: '{foreign_text.printable(text)}' {error}.")
    if len(found) > MOST_ADDRESSES:
        problems.append(
            f"discover_hosts: {len(found)} addresses are more than the {MOST_ADDRESSES} of one run. Name smaller ranges."
        )
    return list(found.values()), problems


def _targets_of(text: str) -> list[Target]:
    if "/" in text:
        return [Target(address, RANGE) for address in _network(text)]
    span = _RANGE.fullmatch(text)
    if span:
        return [Target(address, RANGE) for address in _span(span["first"], span["last"], int(span["low"]))]
    try:
        return [Target(str(ipaddress.ip_address(plain_data.strict_address(text))))]
    except ValueError:
        pass
    named = _NAMED.fullmatch(text)
    if not named or (re.fullmatch(r"[\d.]+", named["host"]) and not _is_address(named["host"])):
        raise ValueError(
            "is no address, name or range; write spark-1, user@192.168.1.11, 192.168.1.10-20 or 192.168.1.0/28"
        )
    port = int(named["port"] or 0)
    if named["port"] and not 0 < port < 65536:
        raise ValueError("names a port that is none")
    return [Target(named["host"], GIVEN, named["user"] or "", port)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(plain_data.strict_address(text))
    except ValueError:
        return False
    return True


def _network(text: str) -> list[str]:
    try:
        network = ipaddress.ip_network(plain_data.strict_address(text), strict=False)
    except ValueError as error:
        raise ValueError("is no network") from error
    if network.num_addresses > MOST_ADDRESSES:
        raise ValueError(f"has {network.num_addresses} addresses, {MOST_ADDRESSES} may be tried; name a smaller one")
    return [str(address) for address in network.hosts()]


def _span(first: str, last: str, low: int) -> list[str]:
    high = last if "." in last else f"{first.rpartition('.')[0]}.{last}"
    try:
        start, end = ipaddress.IPv4Address(first), ipaddress.IPv4Address(high)
    except ValueError as error:
        raise ValueError("is no range of addresses") from error
    count = int(end) - int(start) + 1
    if count < 1:
        raise ValueError(f"ends before {low}, where it begins")
    if count > MOST_ADDRESSES:
        raise ValueError(f"has {count} addresses, {MOST_ADDRESSES} may be tried; name a smaller one")
    return [str(start + step) for step in range(count)]


def read_mdns(text: str) -> list[Target]:
    """Return who announces ssh: C(avahi-browse --parsable --resolve --terminate _ssh._tcp); names first, and IPv4 before IPv6."""
    found: dict[str, Target] = {}
    for line in text.splitlines():
        fields = line.split(";")
        if len(fields) < 9 or fields[0] != "=" or not fields[8].isdecimal():
            continue
        name, address, port = fields[6], fields[7], int(fields[8])
        if not _NAMED.fullmatch(name) or not _is_address(address) or not 0 < port < 65536:
            continue
        if name not in found or fields[2] == "IPv4":
            # By its name where that resolves; link-local addresses of IPv6 are none without the name of an interface.
            found[name] = Target(name if fields[2] != "IPv4" else address, MDNS, "", port if port != 22 else 0)
    return list(found.values())


def read_neighbours(fabric: Mapping[str, Any]) -> list[Target]:
    """Return who has answered on the QSFP ports of this machine. fabric: of C(HostView.fabric)."""
    found = {
        neighbour["address"]: Target(neighbour["address"], NEIGHBOUR)
        for port in cabling.up_cages(fabric).values()
        for netdev in port["netdevs"]
        for neighbour in netdev.get("neighbours") or []
        if _is_address(str(neighbour.get("address"))) and ":" not in neighbour["address"]
    }
    return list(found.values())


def may_be_spark(greeting: str) -> bool:
    """Whether a machine that nobody named is worth an attempt to log in: DGX OS has the ssh server of Ubuntu."""
    return "OpenSSH" in greeting and "Ubuntu" in greeting


ADVICE = (
    ("Timed out after", "it hangs or is overloaded; run again, or give it longer with -e discover_patience=SECONDS"),
    (
        "Host key verification failed",
        "log in once with ssh, compare the fingerprint, or give -e discover_accept_new_keys=true",
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
"""What to do about a reason, by a part of its text."""


def with_advice(why: str) -> str:
    """Return a reason with what to do about it, where that is known."""
    said = next((advice for part, advice in ADVICE if part.lower() in why.lower()), "")
    return f"{why.rstrip('.')}; {said}" if said and said not in why else why


@dataclass
class Machine:
    """A candidate that was asked. state: C(spark), C(other) or C(unknown), which C(why) explains. facts: C(spark) of
    M(dgxspark.vllm.spark_info). launches: C(adoption.launches) of the same, None where they are not known. heard:
    C(cabling.heard) of the same, likewise. notes: what else is not known, and why."""

    target: Target
    state: str
    why: str = ""
    name: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    launches: list[dict[str, Any]] | None = None
    heard: list[dict[str, Any]] | None = None
    notes: list[str] = field(default_factory=list)
    # The same machine by other addresses.
    also: list[str] = field(default_factory=list)


def read_machine(
    target: Target, asked: Mapping[str, Any], plain: Mapping[str, Any], cables: Mapping[str, Any]
) -> Machine:
    """Return what a candidate is, by the answers of M(dgxspark.vllm.ask).

    asked: as root, C(spark) with the section C(adoption). plain: C(spark) again without root, where that failed; empty where it was not asked.
    cables: as root, C(probe) with the section C(cabling). An answer of another form than its module gives is not known, with the reason.
    """
    if not asked.get("reached"):
        return Machine(
            target, "unknown", with_advice(_line(asked.get("why") or "it was not asked").removeprefix("Task failed: "))
        )
    answers = asked.get("answers") or {}
    said, notes = answers.get("spark") or {}, []
    adoption = said.get("adoption") or {"msg": _reason(said, "adoption")}
    if said.get("failed") or not said:
        why = with_advice(_line(said.get("msg") or "it was not asked"))
        notes.append(f"asked without root ({why}): containers and processes of others may be missing")
        said = (plain.get("answers") or {}).get("spark") or {}
        if said.get("failed") or not said:
            reason = plain.get("why") or said.get("msg") or why
            return Machine(target, "unknown", with_advice(_line(reason)))
    try:
        facts = _facts(said.get("spark"))
    except foreign_text.Untrusted as error:
        return Machine(target, "unknown", f"its answer is invalid: {error}")
    notes += [_line(each) for each in (facts.get("unknown") or {}).values()]
    if not facts["machine"].get("is_spark"):
        maker = facts["machine"].get("sys_vendor") or "machine"
        return Machine(
            target, "other", f"{_line(maker)} {_line(facts['machine'].get('product_name') or '')}".strip(), facts=facts
        )
    launches = _list(adoption, "launches", "what runs", notes)
    probe = (cables.get("answers") or {}).get("probe") or {}
    heard = _list(probe.get("cabling") or {"msg": _reason(probe, "cabling")}, "heard", "cables", notes)
    return Machine(target, "spark", "", "", facts, launches, heard, notes)


def _reason(answer: Mapping[str, Any], section: str) -> Any:
    """Return why a section of M(dgxspark.vllm.spark_info) has no answer."""
    unknown = answer.get("unknown")
    return (unknown.get(section) if isinstance(unknown, Mapping) else None) or answer.get("msg")


def _facts(value: Any) -> dict[str, Any]:
    """Return the facts of a host, of which the form of some is checked; raises Untrusted."""
    facts: dict[str, Any] = reader.read(_SPARK, value, "spark")
    return {**facts, "machine": facts.get("machine") or {}, "fabric": facts.get("fabric") or {}}


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


def _list(answer: Any, key: str, what: str, notes: list[str]) -> list[dict[str, Any]] | None:
    """Return a list of an answer, None where it is not known; notes take why."""
    why = answer.get("msg") if isinstance(answer, dict) else ""
    if isinstance(answer, dict) and key in answer:
        try:
            entries: list[dict[str, Any]] = reader.read(_LISTS[key], answer[key], key)
            return entries
        except foreign_text.Untrusted as error:
            why = f"its answer is invalid: {error}"
    notes.append(f"{what} not known: {with_advice(_line(why or 'it was not asked'))}")
    return None


def _line(value: Any) -> str:
    text = " ".join(foreign_text.printable(str(value)).split())
    return text if len(text) <= 200 else text[:199] + "…"


def join_same(machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines, each once: the first of those that have one name, one management address and the same ports counts."""
    found: dict[tuple[Any, ...], Machine] = {}
    for machine in machines:
        key = _identity(machine)
        if key in found:
            found[key].also.append(machine.target.address)
        else:
            found[key] = machine
    return list(found.values())


def _identity(machine: Machine) -> tuple[Any, ...]:
    facts = machine.facts
    if not facts.get("hostname") or not facts.get("management_address"):
        return (id(machine),)
    macs = sorted(
        str(netdev.get("mac")) for port in facts["fabric"].get("ports") or [] for netdev in port.get("netdevs") or []
    )
    return (facts["hostname"], facts["management_address"], *macs)


def give_names(machines: Sequence[Machine], taken: Iterable[str] = ()) -> None:
    """Give each Spark a name for the inventory: the one that a person used, else its own, else C(spark-N). In place.

    taken: names that are not free.
    """
    used = set(taken)
    for machine in machines:
        used |= {machine.name} if machine.name else set()
    for machine in (each for each in machines if each.state == "spark" and not each.name):
        given = machine.target.address if machine.target.by == GIVEN and not machine.target.local else ""
        wishes = ["" if _is_address(given) else given, str(machine.facts.get("hostname") or "")]
        names = [name for name in (wish.partition(".")[0].lower() for wish in wishes) if usable(name)]
        machine.name = next((name for name in names if name not in used), "") or _numbered("spark", used)
        used.add(machine.name)


def usable(name: str) -> bool:
    """Whether a name can stand in an inventory as it is."""
    return bool(NAME.fullmatch(name)) and name not in _WORDS


def _numbered(stem: str, used: Iterable[str]) -> str:
    number = 1
    while f"{stem}-{number}" in used:
        number += 1
    return f"{stem}-{number}"


@dataclass(frozen=True)
class Cables:
    """What is joined. segments: cages that reach each other; strangers: neighbours on QSFP ports that are none of the Sparks, as text."""

    segments: Sequence[Sequence[cabling.Cage]] = ()
    strangers: Sequence[str] = ()

    def of(self, host: str) -> list[str]:
        """What each QSFP port of a host is joined with, in words."""
        found = []
        for segment in self.segments:
            own = [cage for cage in segment if cage[0] == host]
            others = [cabling.port(cage) for cage in segment if cage[0] != host]
            found += [f"port {cage[1]} to {cabling.join(others)}" for cage in own]
        return found

    def groups(self) -> list[list[str]]:
        """Hosts that are joined, each group once, the largest first."""
        found = {tuple(sorted({host for host, _cage in segment})) for segment in self.segments}
        return [list(group) for group in sorted(found, key=lambda group: (-len(group), group))]


def find_cables(machines: Sequence[Machine]) -> Cables:
    """Return how the Sparks that have names are joined, by what they heard of each other and who answered them."""
    named = [machine for machine in machines if machine.state == "spark"]
    names = {machine.target.address: machine.name for machine in named}
    entries = {
        machine.name: {
            "fabric": machine.facts["fabric"],
            "heard": [
                {**each, "host": names.get(str(each.get("host")), str(each.get("host")))}
                for each in machine.heard or []
            ],
        }
        for machine in named
    }
    links = cabling.find_links(entries)
    cages = [(name, cage) for name, entry in entries.items() for cage in sorted(cabling.up_cages(entry["fabric"]))]
    macs = {
        netdev.get("mac")
        for entry in entries.values()
        for port in cabling.up_cages(entry["fabric"]).values()
        for netdev in port["netdevs"]
    }
    strangers = [
        f"{cabling.port((name, cage))} has a neighbour {neighbour.get('address')} that is none of these Sparks; name its "
        "management address in discover_hosts"
        for name, entry in entries.items()
        for cage, port in cabling.up_cages(entry["fabric"]).items()
        for netdev in port["netdevs"]
        for neighbour in netdev.get("neighbours") or []
        if neighbour.get("mac") not in macs and ":" not in str(neighbour.get("address"))
    ]
    return Cables(cabling.segments_of(cages, links.pairs), list(dict.fromkeys(_line(each) for each in strangers)))
