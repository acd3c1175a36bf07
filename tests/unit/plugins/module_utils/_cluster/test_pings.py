# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packets on each rail: the command, the output of ping, and the verdict."""

from __future__ import annotations

import pytest
from cluster_fixture import PING

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import pings

GOOD = "3 packets transmitted, 3 received, 0% packet loss, time 602ms\nrtt min/avg/max/mdev = 0.1/0.2/0.3/0.0 ms\n"
LOST = "3 packets transmitted, 0 received, 100% packet loss, time 2038ms\n"
TOO_LONG = "3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2038ms\n"


def test_pings() -> None:
    assert pings.ping_command(PING, 8972)[-3:] == ["-I", "192.168.100.10", "192.168.100.11"]
    large = pings.parse_ping(GOOD, "")
    assert large == {"sent": 3, "received": 3, "error": ""}
    assert not list(pings.judge_pings([{**PING, "large": large}]))


def test_a_ping_that_only_gets_through_small() -> None:
    large = pings.parse_ping(TOO_LONG, "ping: local error: message too long, mtu=1500\n")
    (finding,) = pings.judge_pings([{**PING, "large": large, "small": pings.parse_ping(GOOD, "")}])
    assert finding.rule == "fabric.ping_mtu" and finding.severity == "error"
    assert "0 of 3 came back (ping: local error: message too long, mtu=1500)" in finding.message
    assert "a (enp1s0f0np0, 192.168.100.10) to b (192.168.100.11) loses packets of 9000 bytes" in finding.message


@pytest.mark.parametrize("err", ["", "ping: bind: Cannot assign requested address\n"])
def test_a_ping_that_does_not_get_through(err: str) -> None:
    lost = pings.parse_ping(LOST if not err else "", err)
    (finding,) = pings.judge_pings([{**PING, "large": lost, "small": lost}])
    assert finding.rule == "fabric.ping" and "0 of 3 came back" in finding.message and err.strip() in finding.message


def test_small_packets_are_sent_where_large_ones_are_lost() -> None:
    sent: list[str] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        sent.append(argv[argv.index("-s") + 1])
        return (0, GOOD, "") if sent[-1] == "56" else (1, LOST, "")

    result = pings.send(run, PING)
    assert sent == ["8972", "56"] and result["small"]["received"] == 3 and result["rail"] == "rail0"
    assert "small" not in pings.send(lambda _argv: (0, GOOD, ""), PING)
