# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packets that a host of a cluster sends to the others on each rail: the command, what it prints, what that means.

Apart from the plan of the network, which hosts need not be sent for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._common.findings import Finding

SMALL = 56
"""Bytes of a packet that passes any MTU; ping's own default."""
WHOLE = 3
"""Packets that are sent; so many have to come back."""


def send(run: Callable[..., tuple[int, str, str]], ping: Mapping[str, Any]) -> dict[str, Any]:
    """Send packets that fill the MTU, and small ones where these are lost; returns C(ping) with C(large) and C(small), of C(parse_ping)."""
    _rc, out, err = run(ping_command(ping, int(ping["size"])))
    result = {**ping, "large": parse_ping(out, err)}
    if result["large"]["received"] < WHOLE:
        _rc, out, err = run(ping_command(ping, SMALL))
        result["small"] = parse_ping(out, err)
    return result


def ping_command(ping: Mapping[str, Any], size: int) -> list[str]:
    """Three packets that must not be fragmented."""
    options = ["-c", str(WHOLE), "-i", "0.3", "-W", "1", "-M", "do", "-s", str(size), "-I", str(ping["source"])]
    return ["ping", "-n", *options, str(ping["target"])]


def parse_ping(out: str, err: str) -> dict[str, Any]:
    """Read what ping printed: C({sent, received, error}), error the line that says why, if any."""
    match = re.search(r"(\d+) packets transmitted, (\d+) received", out)
    lines = [line.strip() for line in f"{err}\n{out}".splitlines()]
    reason = next(
        (line for line in lines if re.search(r"mtu ?=|too long|unreachable|error|cannot|not ", line, re.I)), ""
    )
    return {
        "sent": int(match.group(1)) if match else 0,
        "received": int(match.group(2)) if match else 0,
        "error": reason,
    }


def judge_pings(results: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield findings about pings: each has C(large) and, if it failed, C(small), both of C(parse_ping)."""
    for ping in results:
        large, small = ping["large"], ping.get("small")
        if large["sent"] and large["received"] == large["sent"]:
            continue
        way = f"{ping['rail']}: {ping['host']} ({ping['netdev']}, {ping['source']}) to {ping['target_host']} ({ping['target']})"
        result = f"ping -M do -s {ping['size']}: {large['received']} of {large['sent'] or WHOLE} came back"
        result += f" ({large['error']})" if large["error"] else ""
        if small and small["received"]:
            rule, message = (
                "fabric.ping_mtu",
                f"{way} loses packets of {ping['size'] + 28} bytes, {result}; small ones pass.",
            )
            fix = (
                "Set the same MTU on both ends and on the switch between them: ip link show dev NAME on each. It falls back "
                "to 1500 after some firmware updates."
            )
        else:
            rule, message = "fabric.ping", f"{way} does not get through, {result}."
            fix = (
                "Check the address of the other end, its firewall (ufw allow in on NAME for both interfaces), and that the cable "
                "is where the plan has it."
            )
        yield Finding(rule, "error", message, fix, basis="probed")
