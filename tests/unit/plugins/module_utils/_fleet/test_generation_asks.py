# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is asked beside the files of its generation; whatever is not well, or does not answer, is a reason to apply the roles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generation_asks
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.generation_host import Host
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

NETPLAN = "/etc/netplan/40-cx7.yaml"
TEXT = "# Ansible managed: dgxspark.vllm.fabric\n"
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


def lying(root: Path, table: int = 1, there: Any = (), silent: str = "", **params: Any) -> list[str]:
    """The look at what lies on a host whose files are below a folder. table: how nft ends. there: images."""
    host: Any = SimpleNamespace(
        params={"images": [], "bundled": [], "files": [], "network": {}, "firewall": "", **params},
        at=lambda path: root / path.lstrip("/"),
        owner=Host.owner,
        inspect=lambda refs: {ref: "sha256:1" for ref in refs if ref in there},
        silent=silent,
        check=False,
        run=lambda _argv: (table, "", "Operation not permitted"),
    )
    return generation_asks.lying(host)


def put(root: Path, path: str, text: str = "", mode: int = 0o600) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)


def test_images_that_are_made_on_the_host_have_to_be_there(tmp_path: Path) -> None:
    wanted = [["built:1", "sha256:2"], ["ray:1"]]
    assert lying(tmp_path, there=["built:1", "ray:1"], images=wanted) == []
    assert lying(tmp_path, there=["sha256:2", "ray:1"], images=wanted) == []
    assert lying(tmp_path, there=["ray:1"], images=wanted) == ["the image built:1 is not there"]
    assert lying(tmp_path, silent="it hangs", images=wanted) == ["Docker does not say which images there are: it hangs"]


def test_a_model_is_as_the_bundle_has_it(tmp_path: Path) -> None:
    commit, digest = "1" * 40, hashlib.sha256(b"{}").hexdigest()
    model = {
        "repo": "Org/M",
        "commit": commit,
        "revisions": ["main"],
        "files": {"config.json": {"size": 2, "sha256": digest}},
    }

    def asked(**changes: Any) -> list[str]:
        return lying(tmp_path, hf_home="/hf", settings={"verify": "changed"}, bundled=[{**model, **changes}])

    put(tmp_path, f"/hf/hub/models--Org--M/snapshots/{commit}/config.json", "{}")
    put(tmp_path, "/hf/hub/models--Org--M/refs/main", commit)
    assert asked() == []
    assert asked(revisions=["other"]) == ["Org/M: the bundle has another commit"]
    assert asked(files={"config.json": {"size": 3, "sha256": digest}}) == [
        "Org/M: config.json has 2 bytes instead of 3"
    ]
    assert "Org/M: config.json is missing" in asked(commit="2" * 40)


@pytest.mark.parametrize(
    ("text", "mode", "fine"),
    [(TEXT, 0o600, True), (TEXT + "#", 0o600, False), (TEXT, 0o644, False), (None, 0, False)],
)
def test_the_file_of_the_network_is_what_the_role_would_write(
    tmp_path: Path, text: str | None, mode: int, fine: bool
) -> None:
    if text is not None:
        put(tmp_path, NETPLAN, text, mode)
    network = {"file": {"path": NETPLAN, "sha256": hashlib.sha256(TEXT.encode()).hexdigest()}}
    assert lying(tmp_path, network=network) == ([] if fine else [f"{NETPLAN} is not as it has to be"])
    assert lying(tmp_path, network={"file": {}}) == []  # it is somebody else's


def test_nothing_may_be_left_of_a_firewall_that_is_to_be_gone(tmp_path: Path) -> None:
    assert lying(tmp_path, firewall="absent") == [] == lying(tmp_path, table=127, firewall="absent")
    assert lying(tmp_path, table=0, firewall="present") == []
    assert lying(tmp_path, table=0, firewall="absent") == ["of the firewall is left: its table"]
    assert "perhaps its table: Operation not permitted" in lying(tmp_path, table=124, firewall="absent")[0]
    put(tmp_path, "/etc/dgxspark/firewall.nft")
    assert lying(tmp_path, firewall="absent") == ["of the firewall is left: /etc/dgxspark/firewall.nft"]


def asked(
    root: Path, program: Callable[[list[str]], tuple[int, str, str]], check: bool = False, **params: Any
) -> tuple[list[str], list[list[str]]]:
    """What the host answers, and what was run for it."""
    ran: list[list[str]] = []

    def run(argv: list[str], _seconds: float = 0.0) -> tuple[int, str, str]:
        ran.append(argv)
        return program(argv)

    why = generation_asks.answers(run, root, {"network": {}, "servers": [], **params}, check)
    return why, ran


def test_packets_have_to_get_through_and_those_that_are_lost_end_it(tmp_path: Path) -> None:
    network, servers = {"pings": [PING, PING]}, [SERVER]
    why, ran = asked(tmp_path, lambda _argv: GOOD, network=network, servers=servers)
    assert why == [] and [argv[0] for argv in ran] == ["ping", "ping", "/usr/bin/python3"]
    why, ran = asked(tmp_path, lambda _argv: LOST, network=network, servers=servers)
    assert "does not get through" in why[0] and len(ran) == 2  # the large one and the small one


def test_routes_and_forwarding_of_a_ring_are_asked_before_packets_are_sent(tmp_path: Path) -> None:
    route = {"to": "192.168.102.0/24", "via": "192.168.100.11", "dev": "eth1"}
    network = {"pings": [PING], "routes": [route], "relay": [{"from": "eth1", "to": "eth2"}]}
    said = {
        "ip": "192.168.102.0/24 via 192.168.100.11 dev eth1 proto static\n",
        "systemctl": "Id=dgxspark-fabric-relay.service\nActiveState=active\nUnitFileState=enabled\n",
        "/usr/sbin/sysctl": "1\n",
        "/usr/sbin/iptables": "",
        "ping": GOOD[1],
    }
    why, ran = asked(tmp_path, lambda argv: (0, said[argv[0]], ""), network=network)
    assert why == [] and [argv[0] for argv in ran] == list(said)
    for name, answer, text in (("ip", "", "no route"), ("/usr/sbin/sysctl", "0\n", "ip_forward is not 1")):
        other = {**said, name: answer}
        why, ran = asked(tmp_path, lambda argv, other=other: (0, other[argv[0]], ""), network=network)
        assert text in why[0] and "ping" not in [argv[0] for argv in ran]


def test_a_file_outside_of_generations_is_as_its_role_writes_it(tmp_path: Path) -> None:
    path = "/etc/systemd/system/ssh.service.d/50-dgxspark.conf"
    wanted = {"path": path, "sha256": hashlib.sha256(TEXT.encode()).hexdigest()}
    wrong = [f"{path} is not as it has to be"]
    gone = {**wanted, "sha256": ""}
    assert lying(tmp_path, files=[wanted]) == wrong and lying(tmp_path, files=[gone]) == []
    put(tmp_path, path, TEXT, 0o644)
    assert lying(tmp_path, files=[wanted]) == [] and lying(tmp_path, files=[gone]) == [f"{path} is to be gone"]
    # A board without a watchdog is not asked to use it.
    boards = {**wanted, "device": "/dev/watchdog0"}
    assert lying(tmp_path, files=[boards]) == [f"{path} is to be gone"]
    put(tmp_path, "/dev/watchdog0")
    assert lying(tmp_path, files=[boards]) == []
    put(tmp_path, path, TEXT, 0o600)
    assert lying(tmp_path, files=[wanted]) == wrong and lying(tmp_path, files=[{**wanted, "mode": "0600"}]) == []
    put(tmp_path, path, TEXT + "#", 0o644)
    assert lying(tmp_path, files=[wanted]) == wrong


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((0, UFW, ""), []),
        ((0, "Status: inactive\n", ""), []),
        ((0, UFW.replace("eth1", "eth2"), ""), ["ufw does not let in what comes by eth1"]),
        ((0, UFW.replace("192.0.2.2", "192.0.2.22"), ""), ["ufw does not let in what comes by 192.0.2.2"]),
        ((1, "", "ERROR: no lock"), ["ufw does not say what it lets in: ERROR: no lock"]),
    ],
)
def test_ufw_lets_the_fabric_in(tmp_path: Path, said: tuple[int, str, str], why: list[str]) -> None:
    network = {"ufw": {"netdevs": ["eth1"], "peers": ["192.0.2.2"]}}
    assert asked(tmp_path, lambda _argv: said, network=network) == ([], [])  # there is none
    put(tmp_path, generation_asks.UFW)
    assert asked(tmp_path, lambda _argv: said, network=network)[0] == why
    assert asked(tmp_path, lambda _argv: said, network={"ufw": {}}) == ([], [])  # it is not asked for


def test_a_server_gives_a_real_answer_soon_and_is_not_asked_in_check_mode(tmp_path: Path) -> None:
    why, (argv,) = asked(tmp_path, lambda _argv: (0, "{}", ""), servers=[SERVER])
    assert why == [] and argv[1:] == [generation_asks.HEALTH, "prove", SERVER["settings"], "--seconds", "30"]
    said = (1, "", "spark-health: spark-hear.service: /v1/audio answers 500: boom\nIts log:\n  secret words\n")
    why, _ran = asked(tmp_path, lambda _argv: said, servers=[SERVER, SERVER])
    assert why == ["hear: spark-health: spark-hear.service: /v1/audio answers 500: boom"]
    assert asked(tmp_path, lambda _argv: said, check=True, servers=[SERVER]) == ([], [])


def test_silence_is_no_answer(tmp_path: Path) -> None:
    def silent(_argv: list[str]) -> tuple[int, str, str]:
        raise NoAnswer("ping", "ping did not answer in 15 s")

    assert asked(tmp_path, silent, network={"pings": [PING]})[0] == ["ping did not answer in 15 s"]
