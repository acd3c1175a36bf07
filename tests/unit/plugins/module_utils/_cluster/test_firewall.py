# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose servers the firewall of clusters shuts out; the role closes the same ranges as the engine says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import firewall

ROLE = Path(__file__).resolve().parents[5] / "roles/firewall"


def socket(port: int, address: str = "0.0.0.0", **owner: str) -> dict[str, Any]:
    return {"port": port, "address": address, "process": None, "unit": None, "container": None, **owner}


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (socket(18000, container="llama", process="llama-server"), "18000 (llama)"),
        (socket(14000, "192.168.1.5", unit="litellm.service"), "14000 (litellm.service)"),
        (socket(40000, "::", process="rpc.statd"), "40000 (rpc.statd)"),
        (socket(60999), "60999"),
    ],
)
def test_servers_of_others_in_closed_ranges_are_named(entry: dict[str, Any], shown: str) -> None:
    (finding,) = firewall.blocked_listeners([entry], [])
    assert f"the servers on {shown} can only be reached from the fabric" in finding.message
    assert f"spark_firewall_allowed: [{entry['port']}]" in finding.fix


@pytest.mark.parametrize(
    "entry",
    [
        socket(11000, "127.0.0.1", process="dgx-dashboard"),  # loopback
        socket(11000, "::1"),
        socket(22, process="sshd"),
        socket(9100, process="node_exporter"),
        socket(12000, process="docker-proxy", container="open-webui"),  # published: forwarded, not let in
        socket(43211, container="spark-big", process="VLLM::Worker"),  # a server of the collection
        socket(29450, unit="spark-big.service", process="python3"),
        socket(14001),  # asked for
        socket(6378),
        socket(6400),
        socket(61000),
    ],
)
def test_what_is_not_shut_out(entry: dict[str, Any]) -> None:
    assert firewall.blocked_listeners([entry], [14001]) == []


def test_several_are_one_finding_and_extra_ports_count() -> None:
    entries = [socket(port) for port in (8005, 18000, 7000, 18000)]
    (finding,) = firewall.blocked_listeners(entries, [], [8005, "7000-7010"])
    assert "7000, 8005, 18000 can only" in finding.message and "[7000, 8005, 18000]" in finding.fix


SETTINGS: dict[str, Any] = {
    "fabric": ["enp1s0f0np0", "enP2p1s0f0np0"],
    "peers": ["192.168.100.0/24", "fe80::1", "10.0.0.3"],
    "allowed": [443, "22"],
    "allowed_udp": [],
    "closed": ["8000-8010", "9000", "8000-8010"],
    "ranges": True,
    "admitted": [{"ports": [8000], "from": ["10.0.0.0/8"]}],
}


def test_the_sets_of_the_table_hold_each_element_once() -> None:
    assert firewall.problems(SETTINGS) == []
    elements = {name: values for name, _type, _intervals, values in firewall.sets(SETTINGS)}
    assert elements == {
        "fabric": ["enp1s0f0np0", "enP2p1s0f0np0"],
        "peers": ["10.0.0.3", "192.168.100.0/24"],
        "peers6": ["fe80::1"],
        "allowed_tcp": [22, 443],
        "allowed_udp": [],
        "closed": ["8000-8010", "9000"],
        "ranges": [firewall.HOST_RANGE, *firewall.CLOSED],
    }
    assert firewall.sets({**SETTINGS, "ranges": False})[-1][-1] == []


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("fabric", ["a b"], "a b of firewall_fabric is no name of an interface"),
        ("peers", ["host"], "host of firewall_peers is no address or network"),
        ("allowed", ["22; drop"], "22; drop of firewall_allowed_tcp is no port"),
        ("closed", ["1-2-3"], "1-2-3 of firewall_closed is no port and no FIRST-LAST"),
        ("admitted", [{"ports": ["x"], "from": []}], "x of firewall_admitted is no port"),
        ("admitted", [{"ports": [], "from": ["x"]}], "x of firewall_admitted is no address or network"),
        ("peers", [], "firewall_fabric and firewall_peers belong together"),
    ],
)
def test_values_that_no_table_can_hold_are_named(setting: str, value: list[Any], problem: str) -> None:
    (message,) = firewall.problems({**SETTINGS, setting: value})
    assert message.startswith(problem)


def test_the_page_of_the_role_names_the_ranges() -> None:
    readme = (ROLE / "README.md").read_text(encoding="utf-8")
    assert all(text in readme for text in (*firewall.CLOSED, firewall.EPHEMERAL))
