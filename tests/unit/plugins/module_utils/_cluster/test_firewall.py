# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose servers the firewall of clusters shuts out; the role closes the same ranges as the engine says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

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
    assert f"what listens on {shown} is closed" in finding.message
    assert f"spark_firewall_allowed: [{entry['port']}]" in finding.fix


@pytest.mark.parametrize(
    "entry",
    [
        socket(11000, "127.0.0.1", process="dgx-dashboard"),  # loopback
        socket(11000, "::1"),
        socket(22, process="sshd"),
        socket(9100, process="node_exporter"),
        socket(12000, process="docker-proxy", container="open-webui"),  # published: forwarded, not let in
        socket(43211, container="spark-big", process="VLLM::Worker"),  # what it is for
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
    assert "7000, 8005, 18000 is closed" in finding.message and "[7000, 8005, 18000]" in finding.fix


def test_the_role_closes_what_the_engine_says() -> None:
    own = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
    assert tuple(own["__firewall_ranges"]) == firewall.CLOSED
    readme = (ROLE / "README.md").read_text(encoding="utf-8")
    assert all(text in readme for text in (*firewall.CLOSED, firewall.EPHEMERAL))
