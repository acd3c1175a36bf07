# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The firewall of a Spark: which ports it closes, which hosts it admits to them, and whose servers it shuts out with them."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from .._common import plain_data
from .._common.findings import Finding
from .._host.host_state import mark_of
from . import endpoints, sockets

ABSENT: dict[str, Any] = {
    "state": "absent",
    "fabric": [],
    "peers": [],
    "allowed": [],
    "allowed_udp": [],
    "ranges": False,
    "closed": [],
    "admitted": [],
}
"""The command that removes the table of a host."""
CLOSED = ("6379-6399", "8265", "10001-19999", "29400-29600")
"""Ray's GCS and its neighbours, its dashboard, its clients and workers; rendezvous of torch and vLLM, supervisors of ranks.

The table has these, and the range from which the kernel of the host takes ports.
"""
HOST_RANGE = mark_of("port_range")
"""Stands for that range until the host fills it in."""
PORT, ADDRESS = re.compile(r"[0-9]{1,5}"), re.compile(r"[0-9A-Fa-f.:]+(/[0-9]{1,3})?")
FORMS: dict[str, tuple[str, re.Pattern[str], str]] = {
    "fabric": ("firewall_fabric", re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}"), "is no name of an interface"),
    "peers": ("firewall_peers", ADDRESS, "is no address or network"),
    "allowed": ("firewall_allowed_tcp", PORT, "is no port"),
    "allowed_udp": ("firewall_allowed_udp", PORT, "is no port"),
    "closed": ("firewall_closed", re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?"), "is no port and no FIRST-LAST"),
}
"""Of each setting the variable of the role, the form of its values, and the complaint about others."""
EPHEMERAL = "32768-60999"
"""That range, as Linux has it by default."""


def plan(
    host: str,
    settings: Mapping[str, Any],
    listening: Sequence[sockets.Socket],
    hosts: Mapping[str, Sequence[str]],
    resolve: Callable[[str], Sequence[str]],
    cluster_ports: Sequence[int] = (),
    peers: Mapping[str, Any] | None = None,
    unasked: Collection[str] = (),
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the firewall of one host: the variables of its role, None if there is nothing to close, and findings.

    :param cluster_ports: of the services of its cluster, on every rank
    :param peers: C(fabric) and C(peers) of its cluster's network, None for a host without a cluster, where only
        ports of its servers are closed
    :param unasked: hosts that report their addresses before anything is changed
    """
    where = f"host {host}"
    closed = [
        socket for socket in listening if sockets.is_exposed(socket["address"]) and sockets.KINDS[socket["kind"]].closed
    ]
    if not settings["spark_firewall"]:
        return None, _switched_off(where, closed, cluster_ports)
    named, findings = _named(where, settings["spark_allow_from"], hosts, resolve)
    if peers is None and not closed:
        return None, findings
    resolved = functools.partial(sockets.addresses, hosts=hosts, resolve=resolve)
    who, unknown = _admit(cluster_ports, closed, named, resolved)
    findings += [
        _unknown_address(where, caller, services, hosts, caller in unasked)
        for caller, services in sorted(unknown.items())
    ]
    ports = [port_of(entry) for entry in settings["spark_firewall_allowed"]]
    allowed = {kind: sorted({port for port, port_kind in ports if port_kind == kind}) for kind in ("tcp", "udp")}
    network = peers or {}
    return {
        "state": "present",
        "fabric": list(network.get("fabric") or []),
        "peers": list(network.get("peers") or []),
        "allowed": allowed["tcp"],
        "allowed_udp": allowed["udp"],
        "ranges": peers is not None,
        "closed": sorted(who),
        "admitted": _admitted(who),
    }, findings


def _admit(
    cluster_ports: Sequence[int],
    closed: Sequence[sockets.Socket],
    named: Sequence[str],
    addresses: Callable[[str], Sequence[str]],
) -> tuple[dict[int, set[str]], dict[str, list[str]]]:
    """Return the addresses that each port admits, and the callers without a known address, with the services they need."""
    who: dict[int, set[str]] = {int(port): set() for port in cluster_ports}
    unknown: dict[str, list[str]] = {}
    for socket in closed:
        admitted = who.setdefault(socket["port"], set())
        admitted.update(named)
        for caller in socket["callers"]:
            sources = addresses(caller)
            admitted.update(sources)
            if not sources:
                unknown.setdefault(caller, []).append(socket["service"])
    return who, unknown


def _admitted(who: Mapping[int, Collection[str]]) -> list[dict[str, Any]]:
    """Return the ports by the addresses that they admit: C([{ports, from}]); ports that admit nobody are left out."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for port, admitted in sorted(who.items()):
        if admitted:
            groups.setdefault(tuple(sockets.collapsed(admitted)), []).append(port)
    return [{"ports": ports, "from": list(sources)} for sources, ports in sorted(groups.items())]


def _unknown_address(
    where: str, caller: str, services: Collection[str], hosts: Mapping[str, Sequence[str]], asked_later: bool
) -> Finding:
    """Return a finding about a caller whose address is unknown. asked_later: whether it reports it before anything is changed."""
    message = (
        f"{where}: {caller} has to reach {', '.join(sorted(set(services)))}, but its source address is not known: "
        f"{' and '.join(hosts.get(caller) or [caller])} cannot be resolved on the controller. "
    )
    message += "It is asked before anything is changed." if asked_later else "The firewall would shut it out."
    fix = f"Give {caller} an ansible_host or a spark_management_address that is an IP address."
    return Finding("firewall.address", "info" if asked_later else "error", message, fix)


def _named(
    where: str, entries: Sequence[str], hosts: Mapping[str, Sequence[str]], resolve: Callable[[str], Sequence[str]]
) -> tuple[list[str], list[Finding]]:
    """Return the addresses in C(spark_allow_from), and findings about wrong ones."""
    networks: list[str] = []
    findings: list[Finding] = []
    for entry in entries:
        resolved = sockets.addresses(str(entry), hosts, resolve)
        networks += resolved
        if not resolved:
            message = (
                f"{where}: spark_allow_from names {entry}, which is neither an address nor a network, and no name that can be "
                "resolved on the controller."
            )
            fix = "Write its address, or a network such as 192.168.1.0/24."
            findings.append(Finding("firewall.address", "error", message, fix))
    wide = [network for network in networks if ipaddress.ip_network(network).prefixlen == 0]
    if wide:
        message = (
            f"{where}: spark_allow_from has {', '.join(wide)}: every address may come to engines, speech servers, Ollama and "
            "exporters."
        )
        fix = "Name the hosts or networks that have to reach them."
        findings.append(Finding("firewall.everybody", "warning", message, fix))
    return networks, findings


def _switched_off(where: str, open_: Sequence[sockets.Socket], cluster_ports: Sequence[int]) -> list[Finding]:
    """Return findings about open ports of a host whose firewall is switched off."""
    listed = ", ".join(f"{socket['service']} on {socket['address']}:{socket['port']}" for socket in open_)
    if not open_ and not cluster_ports:
        return []
    also = "Ray's and torch's random ports" if cluster_ports else ""
    reached = " and ".join(filter(None, [listed, also]))
    message = f"{where}: spark_firewall is false, so everybody who reaches this host can reach {reached}."
    fix = (
        "Take spark_firewall: false out, and name who has to come in by spark_allow_from; or see that another firewall "
        "keeps other hosts out."
    )
    return [Finding("firewall.off", "warning", message, fix)]


def ray_open(host: str, services: Sequence[str]) -> Finding:
    """Return a finding about an open Ray: it runs any code that it receives."""
    return Finding(
        "firewall.ray",
        "error",
        f"host {host}: {', '.join(services)} spans its hosts by the executor ray, and spark_firewall is false: Ray runs, as root "
        "of its container, what any host that reaches its ports sends it.",
        fix="Take spark_firewall: false out, or set executor: mp in spark_cluster; where another firewall keeps other hosts out: "
        "spark_ignore_rules: [firewall.ray].",
    )


def port_of(entry: Any) -> tuple[int, str]:
    """Read a port: a number is TCP, C(51820/udp) is UDP. Raises ValueError."""
    number, _slash, kind = str(entry).partition("/")
    if not re.fullmatch("[0-9]{1,5}", number) or not 0 < int(number) < 65536 or kind not in ("", "tcp", "udp"):
        raise ValueError(f"{plain_data.shown(entry)} is no port; write 4000 or 51820/udp")
    return int(number), kind or "tcp"


def is_closed(port: int, closed: Iterable[str | int]) -> bool:
    """Tell whether a port is in one of C(closed): ports, or ranges C(FIRST-LAST)."""
    for entry in closed:
        first, _dash, last = str(entry).partition("-")
        if int(first) <= port <= int(last or first):
            return True
    return False


def _is_exempt(entry: Mapping[str, Any]) -> bool:
    """Return whether the firewall never closes a socket: of this collection, of Docker's proxy, or on loopback."""
    is_own = any(str(entry.get(key) or "").startswith("spark-") for key in ("container", "unit"))
    return is_own or entry.get("process") == "docker-proxy" or endpoints.is_loopback(str(entry["address"]))


def blocked_listeners(
    listening: Sequence[Mapping[str, Any]],
    allowed: Iterable[int],
    closed: Iterable[str | int] = (),
    ranges: bool = True,
) -> list[Finding]:
    """Return a finding about servers of other owners that the firewall closes to other networks.

    Containers and units of this collection are expected; loopback is never closed; packets for ports that Docker publishes
    do not reach these rules.

    :param closed: ports, or C(LOW-HIGH), of the collection's own servers
    :param ranges: whether the ranges of Ray and torch are closed
    """
    shut_ranges = [*((*CLOSED, EPHEMERAL) if ranges else ()), *closed]
    open_ports = set(allowed)
    shut: dict[int, str] = {}
    for entry in listening:
        port, owner = int(entry["port"]), str(entry.get("container") or entry.get("unit") or entry.get("process") or "")
        if not _is_exempt(entry) and port not in open_ports and is_closed(port, shut_ranges):
            shut.setdefault(port, owner)
    if not shut:
        return []
    names = ", ".join(f"{port} ({owner})" if owner else str(port) for port, owner in sorted(shut.items()))
    why = ": Ray, torch and the kernel take ports from the same ranges." if ranges else "."
    message = f"the servers on {names} can only be reached from the fabric, because of the firewall{why}"
    fix = f"To allow it: spark_firewall_allowed: [{', '.join(map(str, sorted(shut)))}]."
    return [Finding("firewall.shuts_out", "warning", message, fix, basis="measured")]


def problems(settings: Mapping[str, Any]) -> list[str]:
    """Return messages about settings that no nft file can hold.

    :param settings: C(fabric), C(peers), C(allowed), C(allowed_udp), C(closed) and C(admitted)
    :returns: sentences that name variables of the role firewall
    """
    wrong = [
        f"{value} of {variable} {complaint}"
        for key, (variable, form, complaint) in FORMS.items()
        for value in map(str, settings[key])
        if not form.fullmatch(value)
    ]
    for entry in settings["admitted"]:
        wrong += [
            f"{port} of firewall_admitted is no port" for port in map(str, entry["ports"]) if not PORT.fullmatch(port)
        ]
        wrong += [
            f"{source} of firewall_admitted is no address or network"
            for source in map(str, entry["from"])
            if not ADDRESS.fullmatch(source)
        ]
    if bool(settings["fabric"]) != bool(settings["peers"]):
        wrong.append(
            "firewall_fabric and firewall_peers belong together: the interfaces and the source addresses of peers"
        )
    return wrong


def sets(settings: Mapping[str, Any]) -> list[list[Any]]:
    """Return the named sets of the table, each with its type, whether it holds intervals, and its elements. settings: as of C(problems), with C(ranges)."""
    peers = sorted(set(map(str, settings["peers"])), key=str.lower)
    ranges = [HOST_RANGE, *CLOSED] if settings["ranges"] else []
    return [
        ["fabric", "ifname", False, sorted(set(settings["fabric"]), key=str.lower)],
        ["peers", "ipv4_addr", True, [peer for peer in peers if ":" not in peer]],
        ["peers6", "ipv6_addr", True, [peer for peer in peers if ":" in peer]],
        ["allowed_tcp", "inet_service", True, sorted(set(map(int, settings["allowed"])))],
        ["allowed_udp", "inet_service", True, sorted(set(map(int, settings["allowed_udp"])))],
        ["closed", "inet_service", True, list(dict.fromkeys(map(str, settings["closed"])))],
        ["ranges", "inet_service", True, ranges],
    ]
