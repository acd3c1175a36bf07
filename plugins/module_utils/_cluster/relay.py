# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host of a ring that passes on packets for others has set, compared with what it is to have: routes, forwarding, Docker's chain.

Apart from the plan of the network, which hosts need not be sent for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

UNIT = "dgxspark-fabric-relay.service"
"""C(__fabric_relay_unit) of the role fabric."""
FORWARD = ["/usr/sbin/sysctl", "-n", "net.ipv4.ip_forward"]
ROUTES = ["ip", "-4", "route", "show"]


def routes_of(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the routes of a host to cables that it has no end of.

    :param document: C(netplan) of the host's part of the network
    :returns: C([{to, via, dev}])
    """
    netdevs = (document.get("network") or {}).get("ethernets") or {}
    return [
        {"to": route["to"], "via": route["via"], "dev": name}
        for name, own in netdevs.items()
        for route in own.get("routes") or []
    ]


def lost_routes(run: Callable[..., tuple[int, str, str]], wanted: Sequence[Mapping[str, str]]) -> list[str]:
    """Say which routes the kernel has not.

    :param run: runs an argv and gives (rc, stdout, stderr)
    :param wanted: of C(routes_of)
    :returns: what is wrong
    """
    if not wanted:
        return []
    rc, out, err = run(ROUTES)
    if rc:
        return [f"the routes cannot be seen: {(err or out).strip()}"]
    there = set(re.findall(r"^(\S+) via (\S+) dev (\S+)", out, re.MULTILINE))
    return [
        f"there is no route to {each['to']} via {each['via']} on {each['dev']}"
        for each in wanted
        if (each["to"], each["via"], each["dev"]) not in there
    ]


def not_passed_on(run: Callable[..., tuple[int, str, str]], ways: Sequence[Mapping[str, str]]) -> list[str]:
    """Say what the unit of the relay has set and is set no more.

    :param run: runs an argv and gives (rc, stdout, stderr)
    :param ways: C(relay) of the host's part of the network, each C({from, to})
    :returns: what is wrong
    """
    if not ways:
        return []
    why = []
    rc, out, err = run(["systemctl", "show", UNIT, "--property=ActiveState,UnitFileState"])
    if rc or set(out.split()) != {"ActiveState=active", "UnitFileState=enabled"}:
        why.append(f"{UNIT} is not active, or not at boot: {' '.join((err or out).split())}")
    rc, out, err = run(FORWARD)
    if rc or out.strip() != "1":
        why.append(f"net.ipv4.ip_forward is not 1: {(err or out).strip()}")
    for way in ways:
        rule = ["-i", str(way["from"]), "-o", str(way["to"]), "-j", "ACCEPT"]
        rc, _out, _err = run(["/usr/sbin/iptables", "-w", "-C", "DOCKER-USER", *rule])
        if rc:
            why.append(
                f"Docker's chain DOCKER-USER does not accept what comes by {way['from']} and leaves by {way['to']}"
            )
    return why
