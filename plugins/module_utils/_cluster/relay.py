# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The relay of a host in a ring, which forwards packets for others: present and expected routes, forwarding, Docker's chain.

Apart from the plan of the network, which hosts need not be sent for it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._host import network, units
from .._runtime.command import NoAnswer

UNIT = "dgxspark-fabric-relay.service"
"""The unit that forwards packets on a host of a ring; the role fabric deploys it."""
FORWARD = ["/usr/sbin/sysctl", "-n", "net.ipv4.ip_forward"]
NO_RULE = 1
"""Exit code of iptables -C for a missing rule or chain; a lock, a missing table and a wrong word have other codes."""


def routes_of(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the routes of a host to cables that it has no end of. document: C(netplan) of the host's part of the network. Returns C([{to, via, dev}])."""
    netdevs = (document.get("network") or {}).get("ethernets") or {}
    return [
        {"to": route["to"], "via": route["via"], "dev": name}
        for name, netdev in netdevs.items()
        for route in netdev.get("routes") or []
    ]


def _ask(run: Callable[..., tuple[int, str, str]], argv: list[str], no: Sequence[int] = ()) -> tuple[int, str]:
    """Ask a program, and return its exit code and what it said.

    :param no: exit codes besides 0 that are an answer
    :raises NoAnswer: for any other failure, or a missing program: the fact is unknown
    """
    rc, out, err = run(argv)
    if rc not in (0, *no):
        message = " ".join((err or out).split()) or f"exit code {rc}"
        program = argv[0].rpartition("/")[2]
        raise NoAnswer(program, f"{program} failed: {message}")
    return rc, out


def lost_routes(run: Callable[..., tuple[int, str, str]], routes: Sequence[Mapping[str, str]]) -> list[str]:
    """Say which routes the kernel has not. run: runs an argv and gives (rc, stdout, stderr). Raises NoAnswer where the routes cannot be seen."""
    if not routes:
        return []
    shown = re.findall(r"^(\S+) via (\S+) dev (\S+)", _ask(run, network.ROUTES_COMMAND)[1], re.MULTILINE)
    present = {_route(*entry) for entry in shown if entry[0] != "default"}
    return [
        f"there is no route to {entry['to']} via {entry['via']} on {entry['dev']}"
        for entry in routes
        if _route(entry["to"], entry["via"], entry["dev"]) not in present
    ]


def _route(to: str, via: str, dev: str) -> tuple[ipaddress.IPv4Network, ipaddress.IPv4Address, str]:
    """Return a route for comparison: the kernel shortens the spelling of files (a host without /32)."""
    return ipaddress.IPv4Network(to, strict=False), ipaddress.IPv4Address(via), dev


def not_passed_on(run: Callable[..., tuple[int, str, str]], ways: Sequence[Mapping[str, str]]) -> list[str]:
    """Return messages about settings of the relay's unit that are missing now. Raises NoAnswer where a program does not say."""
    if not ways:
        return []
    why = []
    unit = next(iter(units.ask(run, [UNIT])), None)
    if not unit or unit["active_state"] != "active" or not unit["enabled"]:
        state = (
            f"{unit['active_state']}, {'enabled' if unit['enabled'] else 'not enabled'}"
            if unit
            else "there is no systemd"
        )
        why.append(f"{UNIT} is not active, or not at boot: {state}")
    _rc, out = _ask(run, FORWARD)
    if out.strip() != "1":
        why.append(f"net.ipv4.ip_forward is not 1: {out.strip()}")
    for way in ways:
        rule = ["-i", str(way["from"]), "-o", str(way["to"]), "-j", "ACCEPT"]
        if _ask(run, ["/usr/sbin/iptables", "-w", "-C", "DOCKER-USER", *rule], no=(NO_RULE,))[0]:
            why.append(
                f"Docker's chain DOCKER-USER does not accept what comes by {way['from']} and leaves by {way['to']}"
            )
    return why
