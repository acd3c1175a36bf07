# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks with programs of a host: every failed check, or one without an answer, is a reason to apply the roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import compare_programs
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

PING = {
    "rail": "rail0",
    "host": "a",
    "netdev": "eth1",
    "source": "192.0.2.1",
    "target": "192.0.2.2",
    "target_host": "b",
    "size": 8972,
}
GOOD = (0, "3 packets transmitted, 3 received, 0% packet loss\n", "")
LOST = (1, "3 packets transmitted, 0 received, 100% packet loss\n", "")
UFW = "Status: active\n\nTo  Action  From\nAnywhere on eth1           ALLOW       Anywhere\nAnywhere   ALLOW   192.0.2.2\n"
SERVER = {"name": "hear", "settings": "/etc/dgxspark/speech/hear.json", "seconds": 300.0}


def put(root: Path, path: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()


def failures_of(
    root: Path, program: Callable[[list[str]], tuple[int, str, str]], check: bool = False, **params: Any
) -> tuple[list[str], list[list[str]]]:
    """Return the reasons to apply the roles, and the commands that were run."""
    ran: list[list[str]] = []

    def run(argv: list[str], _seconds: float = 0.0) -> tuple[int, str, str]:
        ran.append(argv)
        return program(argv)

    why = compare_programs.failures(run, root, {"network": {}, "servers": [], **params}, check)
    return why, ran


def test_packets_have_to_get_through_and_those_that_are_lost_end_it(tmp_path: Path) -> None:
    network, servers = {"pings": [PING, PING]}, [SERVER]
    why, ran = failures_of(tmp_path, lambda _argv: GOOD, network=network, servers=servers)
    assert why == [] and [argv[0] for argv in ran] == ["ping", "ping", "/usr/bin/python3"]
    why, ran = failures_of(tmp_path, lambda _argv: LOST, network=network, servers=servers)
    assert "does not get through" in why[0] and len(ran) == 2  # the large one and the small one


def test_routes_and_forwarding_of_a_ring_are_asked_before_packets_are_sent(tmp_path: Path) -> None:
    route = {"to": "192.168.102.0/24", "via": "192.168.100.11", "dev": "eth1"}
    network = {"pings": [PING], "routes": [route], "relay": [{"from": "eth1", "to": "eth2"}]}
    answers = {
        "ip": "192.168.102.0/24 via 192.168.100.11 dev eth1 proto static\n",
        "systemctl": "Id=dgxspark-fabric-relay.service\nActiveState=active\nUnitFileState=enabled\n",
        "/usr/sbin/sysctl": "1\n",
        "/usr/sbin/iptables": "",
        "ping": GOOD[1],
    }
    why, ran = failures_of(tmp_path, lambda argv: (0, answers[argv[0]], ""), network=network)
    assert why == [] and [argv[0] for argv in ran] == list(answers)
    for name, answer, text in (("ip", "", "no route"), ("/usr/sbin/sysctl", "0\n", "ip_forward is not 1")):
        other = {**answers, name: answer}
        why, ran = failures_of(tmp_path, lambda argv, other=other: (0, other[argv[0]], ""), network=network)
        assert text in why[0] and "ping" not in [argv[0] for argv in ran]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ((0, UFW, ""), []),
        ((0, "Status: inactive\n", ""), []),
        ((0, UFW.replace("eth1", "eth2"), ""), ["ufw does not let in what comes by eth1"]),
        ((0, UFW.replace("192.0.2.2", "192.0.2.22"), ""), ["ufw does not let in what comes by 192.0.2.2"]),
        ((1, "", "ERROR: no lock"), ["ufw does not say what it lets in: ERROR: no lock"]),
    ],
)
def test_ufw_lets_the_fabric_in(tmp_path: Path, answers: tuple[int, str, str], why: list[str]) -> None:
    network = {"ufw": {"netdevs": ["eth1"], "peers": ["192.0.2.2"]}}
    assert failures_of(tmp_path, lambda _argv: answers, network=network) == ([], [])  # ufw is not installed
    put(tmp_path, compare_programs.UFW)
    assert failures_of(tmp_path, lambda _argv: answers, network=network)[0] == why
    assert failures_of(tmp_path, lambda _argv: answers, network={"ufw": {}}) == ([], [])  # it is not asked for


def test_a_server_gives_a_real_answer_soon_and_is_not_asked_in_check_mode(tmp_path: Path) -> None:
    why, (argv,) = failures_of(tmp_path, lambda _argv: (0, "{}", ""), servers=[SERVER])
    assert why == [] and argv[1:] == [compare_programs.HELPER, "server", "prove", SERVER["settings"], "--seconds", "30"]
    answers = (1, "", "spark-unit: spark-hear.service: /v1/audio answers 500: boom\nIts log:\n  secret words\n")
    why, _ran = failures_of(tmp_path, lambda _argv: answers, servers=[SERVER, SERVER])
    assert why == ["hear: spark-unit: spark-hear.service: /v1/audio answers 500: boom"]
    assert failures_of(tmp_path, lambda _argv: answers, check=True, servers=[SERVER]) == ([], [])


def test_silence_is_no_answer(tmp_path: Path) -> None:
    def silent(_argv: list[str]) -> tuple[int, str, str]:
        raise NoAnswer("ping", "ping did not answer in 15 s")

    assert failures_of(tmp_path, silent, network={"pings": [PING]})[0] == ["ping did not answer in 15 s"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '{"drained": ["b/x"], "since": {"b/x": "now", "a/x": "now"}, "held": []}',
            ["the gateway sends no requests to a/x, b/x"],
        ),
        (
            '{"drained": ["b/x"], "since": {"b/x": "now", "a/x": "now"}, "held": ["b/x"]}',
            ["the gateway sends no requests to a/x"],
        ),
        ('{"drained": [], "since": {}, "held": []}', []),
        ('{"since": ["b/x"]}', []),
        ('{"since": {"b/x": 1}, "held": [[]]}', ["the gateway sends no requests to b/x"]),
        ("[]", []),
        ("no JSON", []),
    ],
)
def test_a_backend_that_a_run_left_drained_is_to_be_admitted_and_a_held_one_stays(
    tmp_path: Path, text: str, why: list[str]
) -> None:
    put(tmp_path, compare_programs.DRAINED)
    (tmp_path / compare_programs.DRAINED).write_text(text)
    assert failures_of(tmp_path, lambda _argv: GOOD) == (why, [])
    assert failures_of(tmp_path, lambda _argv: GOOD, parts=["gateway", "service"]) == (why, [])
    assert failures_of(tmp_path, lambda _argv: GOOD, parts=["service"]) == ([], [])
