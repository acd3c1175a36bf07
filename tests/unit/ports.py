# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports for programs that tests start: nobody else is given one between the choice and the start."""

from __future__ import annotations

import os
import socket

# Below the ephemeral ports of the kernel (ip_local_port_range).
FIRST, COUNT = 20000, 10000
_locks: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, for TCP and UDP; no other call of any test run gets it while this process lives."""
    start = os.getpid() * 97
    for number in range(COUNT):
        port = FIRST + (start + number) % COUNT
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0dgxspark-test-port-{port}")
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return port
    raise AssertionError(f"no port from {FIRST} to {FIRST + COUNT - 1} is free")
