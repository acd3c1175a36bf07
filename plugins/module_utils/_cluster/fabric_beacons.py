# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make and parse beacons: frames that show which interfaces hear each other."""

from __future__ import annotations

import json

from .._common.foreign_text import parse_json

ETHERTYPE = 0x88B5
"""IEEE 802's number for local experiments; NVIDIA's own discovery script uses it too, with another text."""
BEACON = "dgxspark.fabric.1"


def beacon(mac: str, host: str, netdev: str) -> bytes:
    """Return the frame that identifies a netdev: a broadcast, which needs no address.

    :param mac: of the netdev, aa:bb:cc:dd:ee:ff
    :param host: its name
    :param netdev: its name
    :returns: an Ethernet frame of 60 bytes or more
    """
    text = json.dumps({"magic": BEACON, "host": host, "netdev": netdev}).encode()
    frame = b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) + ETHERTYPE.to_bytes(2, "big") + text
    return frame.ljust(60, b" ")


def read_beacon(frame: bytes) -> dict[str, str] | None:
    """Parse such a frame: C({host, peer}), peer is the netdev that sent it; None for any other frame."""
    if len(frame) < 14 or int.from_bytes(frame[12:14], "big") != ETHERTYPE:
        return None
    try:
        message = parse_json(frame[14:].rstrip(b" \0"), "a frame")
    except ValueError:
        return None
    if not isinstance(message, dict) or message.get("magic") != BEACON:
        return None
    return {"host": str(message.get("host")), "peer": str(message.get("netdev"))}
