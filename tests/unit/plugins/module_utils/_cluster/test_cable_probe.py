# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the section cabling of spark_info: pairs of sockets play the cables."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import cable_probe
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, fake_run: Any) -> Any:
    play(monkeypatch, fake_run)
    return fake_run


def gather(capsys: Any, tree: Any, **options: Any) -> dict[str, Any]:
    args = {
        "gather": ["cabling"],
        "cabling": {"name": "spark-1", **options},
        "root": str(tree),
        "fail_on_unknown": True,
    }
    return call_module(spark_info, args, capsys)


def test_probe_listens_and_says_who_it_is() -> None:
    """A pair of sockets is the cable; the other end answers once and then receives the frames of this one."""
    near, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    seen: list[bytes] = []

    def peer() -> None:
        seen.append(other.recv(2048))
        other.send(b"something else")
        for netdev in ("enp1s0f0np0", "enp1s0f0np0", "enP2p1s0f0np0"):
            other.send(cable_probe.beacon("3c:6d:66:00:00:01", "spark-2", netdev))
        other.send(cable_probe.beacon("3c:6d:66:00:00:02", "spark-1", "enp1s0f0np0"))  # its own, come back
        other.send(cable_probe.beacon("3c:6d:66:00:00:02", "spark-1", "enP2p1s0f0np0"))  # the interface

    thread = threading.Thread(target=peer)
    thread.start()
    frame = cable_probe.beacon("3c:6d:66:00:00:02", "spark-1", "enp1s0f0np0")
    heard = cable_probe.listen({near: ("enp1s0f0np0", frame)}, "spark-1", 0.8)
    thread.join()
    near.close()
    other.close()
    assert seen == [frame]
    assert [(entry["host"], entry["peer"]) for entry in heard] == [
        ("spark-1", "enP2p1s0f0np0"),
        ("spark-2", "enP2p1s0f0np0"),
        ("spark-2", "enp1s0f0np0"),
    ]


class Packets:
    """A packet socket as the kernel has it, while a frame comes in on another interface before it is bound."""

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        assert (family, kind) == (socket.AF_PACKET, socket.SOCK_RAW)
        self.end, self.cable = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        if protocol:  # it has no interface yet, so it takes in all of them
            self.cable.send(cable_probe.beacon("3c:6d:66:00:00:09", "spark-9", "enp1s0f1np1"))

    def bind(self, address: tuple[str, int]) -> None:
        assert address[1] == cable_probe.ETHERTYPE
        self.cable.send(cable_probe.beacon("3c:6d:66:00:00:01", "spark-2", address[0]))

    def fileno(self) -> int:
        return self.end.fileno()

    def send(self, frame: bytes) -> int:
        return len(frame)

    def recv(self, size: int) -> bytes:
        return self.end.recv(size)

    def close(self) -> None:
        self.end.close()
        self.cable.close()


def test_probe_hears_nothing_of_other_interfaces_before_it_is_bound(
    capsys: Any, programs: Any, tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.qsfp()
    monkeypatch.setattr(cable_probe, "socket", SimpleNamespace(**{**vars(socket), "socket": Packets}))
    result = gather(capsys, tree, seconds=0.2)
    assert [(entry["netdev"], entry["host"], entry["peer"]) for entry in result["cabling"]["heard"]] == [
        ("enP2p1s0f0np0", "spark-2", "enP2p1s0f0np0"),
        ("enp1s0f0np0", "spark-2", "enp1s0f0np0"),
    ]


def test_probe_without_a_link_is_silent(capsys: Any, programs: Any, tree: Any) -> None:
    tree.qsfp(up=())
    result = gather(capsys, tree)
    assert (
        result["changed"] is False and result["cabling"]["heard"] == [] and isinstance(result["cabling"]["tools"], list)
    )


def test_probe_of_an_interface_that_is_not_there(capsys: Any, programs: Any, tree: Any) -> None:
    tree.qsfp()
    result = gather(capsys, tree)
    assert result["failed"] and "cannot be listened on" in result["msg"]


def test_beacons() -> None:
    frame = cable_probe.beacon("3c:6d:66:cc:b3:b7", "spark-1", "enp1s0f0np0")
    assert frame[:14].hex() == "ffffffffffff3c6d66ccb3b788b5" and len(frame) >= 60
    assert cable_probe.read_beacon(frame + b"\0" * 4) == {"host": "spark-1", "peer": "enp1s0f0np0"}
    nvidia = frame[:14] + b"TOPO_DISCOVER_2NODE_V2"
    for other in (
        b"",
        nvidia,
        frame[:14] + b'{"magic": "x"}',
        frame[:14] + b"[1]",
        frame[:12] + b"\x08\0" + frame[14:],
    ):
        assert cable_probe.read_beacon(other) is None
