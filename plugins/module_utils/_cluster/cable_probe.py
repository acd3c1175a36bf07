# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Discovers which QSFP interfaces of which hosts are connected: the section C(cabling) of M(dgxspark.vllm.spark_info).

It sends frames that need no address, and changes nothing on the host.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

from .._common.foreign_text import parse_json
from .._host import machine
from .._host.host_view import BadRequest, HostView, Request
from .._runtime.command import Unknown

INTERVAL = 0.5
ETHERTYPE = 0x88B5
"""IEEE 802's number for local experiments; NVIDIA's own discovery script uses it too, with another text."""
BEACON = "dgxspark.fabric.1"
BANDWIDTH_TOOLS = ("ib_write_bw", "iperf3")
"""In order of preference: RDMA is what NCCL uses."""


def section(view: HostView, request: Request) -> dict[str, Any]:
    """Announce the host on each QSFP interface that is up, and return the interfaces of other hosts that were heard there.

    :raises BadRequest: without the name of the host
    :raises Unknown: where an interface cannot be listened on
    """
    options = request.params["cabling"]
    if not options:
        raise BadRequest("cabling: the name that this host announces is needed")
    wires: dict[Any, tuple[str, bytes]] = {}
    try:
        for netdev in (netdev for port in view.fabric_of()["ports"] for netdev in port["netdevs"]):
            if netdev["up"] and netdev["mac"]:
                frame = beacon(netdev["mac"], options["name"], netdev["name"])
                wires[attach(netdev["name"])] = (netdev["name"], frame)
        heard = listen(wires, options["name"], options["seconds"]) if wires else []
    except OSError as error:
        raise Unknown(f"the QSFP interfaces cannot be listened on: {error}. Run this as root") from error
    finally:
        for wire in wires:
            wire.close()
    return {"heard": heard, "tools": [name for name in BANDWIDTH_TOOLS if machine.has_program(name)]}


def attach(netdev: str) -> socket.socket:
    """Return a socket that hears the frames of one interface alone; raises OSError without that interface.

    It has no protocol until it is bound: a packet socket with a protocol takes in the frames of all interfaces and keeps those that came
    before it was bound, so frames of another cable would count as heard here.
    """
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        wire.bind((netdev, ETHERTYPE))
    except OSError:
        wire.close()
        raise
    return wire


def listen(wires: dict[Any, tuple[str, bytes]], host: str, seconds: float) -> list[dict[str, str]]:
    """Send each interface's frame twice a second, and collect the frames of others.

    :param wires: by socket the name of its interface and its frame
    :returns: C([{netdev, host, peer}]), each once
    """
    received: dict[tuple[str, str, str], None] = {}
    end = time.monotonic() + seconds
    due = 0.0
    while time.monotonic() < end:
        if time.monotonic() >= due:
            due = time.monotonic() + INTERVAL
            for wire, (_netdev, frame) in wires.items():
                wire.send(frame)
        for wire in select.select(list(wires), [], [], INTERVAL / 4)[0]:
            netdev = wires[wire][0]
            other = read_beacon(wire.recv(2048))
            if other and (other["host"], other["peer"]) != (host, netdev):
                received[(netdev, other["host"], other["peer"])] = None
    return [{"netdev": netdev, "host": host, "peer": peer} for netdev, host, peer in sorted(received)]


def beacon(mac: str, host: str, netdev: str) -> bytes:
    """Return the frame of 60 bytes or more that says on a netdev which one it is: broadcast, so that it needs no address of anybody."""
    text = json.dumps({"magic": BEACON, "host": host, "netdev": netdev}).encode()
    frame = b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) + ETHERTYPE.to_bytes(2, "big") + text
    return frame.ljust(60, b" ")


def read_beacon(frame: bytes) -> dict[str, str] | None:
    """Read such a frame: C({host, peer}), peer the netdev it left from; None for any other frame."""
    if len(frame) < 14 or int.from_bytes(frame[12:14], "big") != ETHERTYPE:
        return None
    try:
        content = parse_json(frame[14:].rstrip(b" \0"), "a frame")
    except ValueError:
        return None
    if not isinstance(content, dict) or content.get("magic") != BEACON:
        return None
    return {"host": str(content.get("host")), "peer": str(content.get("netdev"))}
