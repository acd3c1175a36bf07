"""Ports of engines, Ray and torch answer on the fabric alone; the host's other ports stay unchanged.

The tests run in order on the shared nodes. Connections are real ones, from the other node.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

import nodes
from nodes import NODES, SUBNET, container

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
MANAGEMENT, RAIL = f"{SUBNET}.0.11", f"{SUBNET}.1.11"  # both of spark-1
TABLE = "/etc/dgxspark/firewall.nft"
UNIT = "spark-firewall.service"

LISTEN = """
import socket, sys
kind, port = sys.argv[1], int(sys.argv[2])
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", port))
if kind == "tcp":
    server.listen()
print(server.getsockname()[1], flush=True)
while True:
    if kind == "tcp":
        server.accept()[0].close()
    else:
        server.sendto(*server.recvfrom(100))
"""
ASK = """
import socket, sys
kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    if kind == "tcp":
        socket.create_connection((address, port), 1.5).close()
    else:
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.settimeout(1.5)
        client.sendto(b"?", (address, port))
        client.recv(100)
    print("open")
except TimeoutError:
    print("dropped")
except OSError as error:
    print(error)
"""


@pytest.fixture(scope="session")
def play():
    """Run a playbook of the scenario again; returns its exit code and all that it printed."""

    def run(*options, playbook="converge", **variables):
        inventory = ["-i", str(ROOT / "molecule" / "inventory.yml")]
        ran = subprocess.run(
            [
                "ansible-playbook",
                *inventory,
                str(ROOT / "molecule" / "firewall" / f"{playbook}.yml"),
                "-e",
                json.dumps(variables),
                *options,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    return run


def node(name, *argv, check=True):
    """Run a command as root on a node, past Ansible and its network."""
    return nodes.node(name, *argv, check=check).strip()


@contextlib.contextmanager
def listener(port=0, kind="tcp", name="spark-1"):
    """Listen on all addresses of a node; 0 is a port that the kernel chooses. Gives the port."""
    argv = nodes.argv_on(name, "python3", "-c", LISTEN, kind, str(port))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        chosen = int(process.stdout.readline())
        try:
            yield chosen
        finally:
            node(name, "pkill", "-f", f" {kind} {port}$", check=False)
            process.wait(timeout=20)


def ask(address, port, kind="tcp", name="spark-2"):
    return node(name, "python3", "-c", ASK, kind, address, str(port))


def answers(port, kind="tcp"):
    """What the other node gets: (over the management network, over a rail)."""
    return ask(MANAGEMENT, port, kind), ask(RAIL, port, kind)


def table(name="spark-1"):
    return node(name, "nft", "list", "table", "inet", "dgxspark", check=False)


# --- what converge left


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_random_port_answers_on_the_fabric_alone(kind):
    with listener(0, kind) as port:
        low, high = map(int, node("spark-1", "cat", "/proc/sys/net/ipv4/ip_local_port_range").split())
        assert kind == "udp" or low <= port <= high
        assert answers(port, kind) == ("dropped", "open")
        assert ask("127.0.0.1", port, kind, "spark-1") == ask(MANAGEMENT, port, kind, "spark-1") == "open"


@pytest.mark.parametrize(
    "port", [6379, 29450, 8005, *(pytest.param(number, marks=pytest.mark.nightly) for number in (8265, 12345, 7010))]
)
def test_ports_of_ray_torch_and_the_services_are_closed(port):
    with listener(port):
        assert answers(port) == ("dropped", "open")


@pytest.mark.parametrize(
    "port", [40001, 22, 9100, *(pytest.param(number, marks=pytest.mark.nightly) for number in (8000, 7011))]
)
def test_what_was_asked_for_and_everything_else_is_left_alone(port):
    with contextlib.nullcontext(port) if port == 22 else listener(port):
        assert answers(port) == ("open", "open")


def from_outside(port):
    """What the controller gets, which nobody has named."""
    try:
        socket.create_connection((MANAGEMENT, port), 1.5).close()
    except TimeoutError:
        return "dropped"
    return "open"


@pytest.mark.parametrize("port", [7005, 7006])
def test_those_who_are_named_come_to_their_ports_and_nobody_else(port):
    with listener(port):
        assert answers(port) == ("open", "open")
        assert from_outside(port) == "dropped"


@pytest.mark.parametrize(("port", "destination"), [(7001, "dropped"), (7011, "open")])
def test_a_port_is_closed_before_it_is_sent_on(port, destination):
    """As for ports that Docker publishes: packets for one port go to another, which is open."""
    table = ["table", "ip", "sim-published"]
    node("spark-1", "nft", "add", *table)
    try:
        node("spark-1", "nft", "add", "chain", *table[1:], "in", "{ type nat hook prerouting priority dstnat ; }")
        node("spark-1", "nft", "add", "rule", *table[1:], "in", "tcp", "dport", str(port), "redirect", "to", ":9100")
        with listener(9100):
            assert ask(MANAGEMENT, port) == destination
            assert ask(RAIL, port) == "open"
    finally:
        node("spark-1", "nft", "delete", *table)


def test_what_passes_through_to_another_host_is_left_alone():
    """A Spark that routes, as for its own containers, closes its own ports and not the ports of others."""
    far = "10.98.0.2"
    node("spark-1", "ip", "netns", "add", "far")
    try:
        node("spark-1", "ip", "link", "add", "near", "type", "veth", "peer", "name", "eth0", "netns", "far")
        node("spark-1", "ip", "addr", "add", "10.98.0.1/24", "dev", "near")
        node("spark-1", "ip", "link", "set", "near", "up")
        inside = ["ip", "netns", "exec", "far"]
        node("spark-1", *inside, "ip", "addr", "add", f"{far}/24", "dev", "eth0")
        node("spark-1", *inside, "ip", "link", "set", "eth0", "up")
        # 7001 of another host, seen from behind this one; 7001 of this one.
        node("spark-1", *inside, "ip", "route", "add", "default", "via", "10.98.0.1")
        node("spark-1", "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.98.0.0/24", "-j", "MASQUERADE")
        node("spark-2", "systemctl", "stop", UNIT)
        with listener(7001, name="spark-2"), listener(7001):
            commands = [
                node("spark-1", *inside, "python3", "-c", ASK, "tcp", address, "7001")
                for address in (f"{SUBNET}.0.12", MANAGEMENT)
            ]
        assert commands == ["open", "dropped"]
    finally:
        node("spark-2", "systemctl", "start", UNIT)
        node(
            "spark-1",
            "iptables",
            "-t",
            "nat",
            "-D",
            "POSTROUTING",
            "-s",
            "10.98.0.0/24",
            "-j",
            "MASQUERADE",
            check=False,
        )
        node("spark-1", "ip", "netns", "del", "far")


def test_answers_come_back_to_ports_that_are_closed():
    with listener(9100, name="spark-2"):
        assert ask(f"{SUBNET}.0.12", 9100, name="spark-1") == "open"


def test_a_stranger_on_the_fabric_is_no_peer():
    """As on a switch that others are on too."""
    strange = {"spark-1": "10.99.0.1", "spark-2": "10.99.0.2"}
    for name, address in strange.items():
        node(name, "ip", "addr", "add", f"{address}/24", "dev", "enp1s0f0np0")
    try:
        with listener(0) as port:
            assert (ask(strange["spark-1"], port), ask(RAIL, port)) == ("dropped", "open")
    finally:
        for name, address in strange.items():
            node(name, "ip", "addr", "del", f"{address}/24", "dev", "enp1s0f0np0")


@pytest.mark.parametrize("name", NODES)
def test_the_unit_loads_it_before_docker(name):
    assert node(name, "systemctl", "is-active", UNIT) == "active"
    assert node(name, "systemctl", "is-enabled", UNIT) == "enabled"
    assert "docker.service" in node(name, "systemctl", "show", "-P", "Before", UNIT).split()
    assert node(name, "stat", "-c", "%a %U", TABLE) == "644 root"


# --- what happens to it


@pytest.mark.parametrize(
    "change",
    [
        ["delete", "table", "inet", "dgxspark"],
        pytest.param(["flush", "chain", "inet", "dgxspark", "input"], marks=pytest.mark.nightly),
    ],
)
def test_what_somebody_did_by_hand_is_put_back(play, change):
    node("spark-1", "nft", *change)
    with listener(0) as port:
        assert answers(port) == ("open", "open")
        code, text = play("--check")
        assert code == 0 and "spark-1 : ok" in text and text.count("changed=1") == 1, text
        assert answers(port) == ("open", "open")
        code, text = play()
        assert code == 0 and text.count("changed=0") == 1, text
        assert answers(port) == ("dropped", "open")


def test_the_service_that_flushes_all_tables_brings_it_back():
    node("spark-1", "systemctl", "restart", "nftables.service")
    try:
        with listener(0) as port:
            assert answers(port) == ("dropped", "open")
        node("spark-1", "systemctl", "reload", "nftables.service")
        with listener(0) as port:
            assert answers(port) == ("dropped", "open")
    finally:
        node("spark-1", "systemctl", "stop", "nftables.service")
        node("spark-1", "systemctl", "start", UNIT)


@pytest.mark.nightly
def test_ufw_and_the_table_leave_each_other_alone(play):
    node("spark-1", "ufw", "allow", "22/tcp")
    node("spark-1", "ufw", "allow", "in", "on", "enp1s0f0np0")
    node("spark-1", "ufw", "allow", "40000:40002/tcp")
    node("spark-1", "ufw", "--force", "enable")
    try:
        with listener(0) as port:
            assert answers(port) == ("dropped", "open")
        with listener(9100):
            assert answers(9100) == ("dropped", "open")  # by ufw
        with listener(40001):
            assert answers(40001) == ("open", "open")
        with listener(40002):
            assert answers(40002) == ("dropped", "open")  # by the table, although ufw lets it in
        code, text = play()
        assert code == 0 and text.count("changed=0") == 2, text
    finally:
        node("spark-1", "ufw", "--force", "reset")
        node("spark-1", "ufw", "disable")


def test_it_is_there_after_a_reboot(play):
    container("spark-1").restart(timeout=20)
    for _ in range(100):
        if node("spark-1", "systemctl", "is-system-running", check=False) == "running":
            break
        time.sleep(0.3)
    with listener(0) as port:
        assert answers(port) == ("dropped", "open")
    code, text = play()
    assert code == 0 and text.count("changed=0") == 2, text


def test_a_change_takes_effect_at_once(play):
    with listener(0) as port:
        code, text = play("--limit", "spark-1", firewall_allowed_tcp=[40001, port])
        assert code == 0 and answers(port) == ("open", "open"), text
        code, text = play("--limit", "spark-1")
        assert code == 0 and answers(port) == ("dropped", "open"), text


# --- refusals, and the end


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"firewall_peers": ["10.88.1.0/24; drop"]}, "10.88.1.0/24; drop of firewall_peers is no address or network"),
        pytest.param(
            {"firewall_fabric": []}, "firewall_fabric and firewall_peers belong together", marks=pytest.mark.nightly
        ),
        pytest.param({"firewall_closed": ["70000"]}, "firewall.nft is not valid", marks=pytest.mark.nightly),
        (
            {"firewall_admitted": [{"ports": [8005], "from": ["any; accept"]}]},
            "of firewall_admitted is no address or network",
        ),
    ],
)
def test_wrong_settings_change_nothing(play, settings, message):
    before = table(), node("spark-1", "cat", TABLE)
    code, text = play("--limit", "spark-1", **settings)
    assert code != 0 and message in text, text
    assert (table(), node("spark-1", "cat", TABLE)) == before


@pytest.mark.nightly
def test_a_spark_on_its_own_closes_its_servers_and_no_range(play):
    alone = {"firewall_ranges": False, "firewall_fabric": [], "firewall_peers": []}
    code, text = play("--limit", "spark-1", **alone)
    assert code == 0, text
    with listener(0) as port, listener(29450), listener(7001):
        assert answers(port) == answers(29450) == ("open", "open")
        assert answers(7001) == ("dropped", "dropped")
        assert ask("127.0.0.1", 7001, name="spark-1") == "open"
    code, text = play("--limit", "spark-1", **alone)
    assert code == 0 and "changed=0" in text, text


def test_it_goes_without_a_trace(play):
    code, text = play(playbook="open")
    assert code == 0, text
    for name in NODES:
        assert table(name) == ""
        assert (
            node(name, "sh", "-c", f"ls {TABLE} /etc/systemd/system/{UNIT} /var/lib/dgxspark/firewall", check=False)
            == ""
        )
        assert node(name, "systemctl", "show", "-P", "LoadState", UNIT) == "not-found"
    with listener(0) as port:
        assert answers(port) == ("open", "open")
    code, text = play(playbook="open")
    assert code == 0 and text.count("changed=0") == 2, text


def test_a_host_without_nft_is_told_before_anything_is_changed(play):
    node("spark-1", "mv", "/usr/sbin/nft", "/usr/sbin/nft.away")
    try:
        code, text = play("--limit", "spark-1")
        assert code != 0 and "spark-1 has no /usr/sbin/nft" in text and "apt install nftables" in text, text
        assert "changed=0" in text and node("spark-1", "ls", TABLE, check=False) == ""
    finally:
        node("spark-1", "mv", "/usr/sbin/nft.away", "/usr/sbin/nft")
