"""A pair that was bare has a verified network; wrong ones are named, left alone, and repaired when asked.

The tests run in order on the shared nodes, past Ansible and the network that they are about.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "molecule"))

from nodes import NODES, SUBNET, container, node, write

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
NUMBER = {"spark-1": 10, "spark-2": 11}
INTERFACES = ("enp1s0f0np0", "enP2p1s0f0np0")
NETPLAN = "/etc/netplan/40-cx7.yaml"


@pytest.fixture(scope="session")
def play():
    """Run the role again with other settings; returns its exit code and all that it printed."""

    def run(**settings):
        quick = {"fabric_probe_seconds": 3, "fabric_bandwidth": False, **settings}
        ran = subprocess.run(
            [
                "ansible-playbook",
                "-i",
                str(ROOT / "molecule" / "inventory.yml"),
                str(ROOT / "molecule" / "fabric" / "converge.yml"),
                "-e",
                json.dumps(quick),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
        # Ansible wraps displayed messages.
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    return run


def foreign(name, addresses, mtu=(9000, 9000)):
    """Give a node a network that somebody else wrote."""
    rows = "".join(
        f"    {interface}: {{addresses: [{address}], dhcp4: no, link-local: [], mtu: {size}}}\n"
        for interface, address, size in zip(INTERFACES, addresses, mtu)
    )
    write(name, NETPLAN, f"network:\n  version: 2\n  ethernets:\n{rows}", 0o600)
    node(name, "netplan", "apply")
    for _ in range(50):
        if all(f" {address} " in node(name, "ip", "-o", "-4", "addr") for address in addresses):
            break
        time.sleep(0.1)
    time.sleep(1.5)  # what stands for /sys follows within a second


def network(name):
    """(address, MTU) of each interface."""
    links = {link["ifname"]: link for link in json.loads(node(name, "ip", "-j", "-4", "addr"))}
    return [
        ([f"{info['local']}/{info['prefixlen']}" for info in links[interface]["addr_info"]], links[interface]["mtu"])
        for interface in INTERFACES
    ]


def right(name):
    return [([f"192.168.{100 + index}.{NUMBER[name]}/24"], 9000) for index in range(2)]


def saved_facts(name, file_name="fabric"):
    return json.loads(node(name, "cat", f"/run/{file_name}.json"))


# --- what converge left


@pytest.mark.parametrize("name", NODES)
def test_the_network_is_there_and_written_down(name):
    assert network(name) == right(name)
    assert node(name, "stat", "-c", "%a %U", NETPLAN).split() == ["600", "root"]
    assert "dgxspark.vllm.fabric" in node(name, "head", "-1", NETPLAN)
    assert node(name, "systemctl", "is-active", "dgxspark-fabric-revert.timer", check=False).strip() == "inactive"


def passes(name, size, target):
    return "1 received" in node(name, "ping", "-c1", "-W2", "-M", "do", "-s", str(size), target, check=False)


@pytest.mark.parametrize(("name", "other"), [("spark-1", "spark-2"), ("spark-2", "spark-1")])
def test_large_packets_pass_on_each_rail(name, other):
    for subnet in (100, 101):
        assert passes(name, 8972, f"192.168.{subnet}.{NUMBER[other]}")
        assert not passes(name, 8973, f"192.168.{subnet}.{NUMBER[other]}")
    assert [ping["large"]["received"] for ping in saved_facts(name)["pings"]["pings"]] == [3, 3]


@pytest.mark.parametrize("name", NODES)
def test_what_engines_need_to_know(name):
    plan = saved_facts(name)["plan"]
    assert (plan["topology"], plan["ready"], plan["findings"]) == ("direct", True, [])
    env = plan["hosts"][name]["environment"]
    assert env["mp"]["VLLM_HOST_IP"] == f"192.168.100.{NUMBER[name]}"
    assert env["mp"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    assert env["mp"]["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert "NCCL_IB_GID_INDEX" not in env["ray"]


@pytest.mark.parametrize("name", NODES)
def test_check_mode_on_the_bare_pair_said_the_same(name):
    before, after = (saved_facts(name, file_name)["plan"]["hosts"][name] for file_name in ("fabric-check", "fabric"))
    keys = ("address", "netdev", "environment", "firewall")
    assert before["apply"] and [before[key] for key in keys] == [after[key] for key in keys]
    assert after["firewall"] == {"fabric": sorted(INTERFACES), "peers": ["192.168.100.0/24", "192.168.101.0/24"]}


def test_the_bandwidth_of_both_rails_was_measured():
    measured = [test for result in saved_facts("spark-1")["measured"] for test in result["bandwidth"]]
    assert [(test["rail"], test["tool"]) for test in measured] == [("rail0", "iperf3"), ("rail1", "iperf3")]
    assert all(test["gbps"] > 0 for test in measured)


# --- failures; each test ends with a correct network


@pytest.mark.nightly
def test_ours_is_repaired_without_being_asked(play):
    node("spark-2", "ip", "link", "set", "dev", INTERFACES[1], "mtu", "1500")
    time.sleep(1.5)
    code, text = play()
    assert code == 0, text
    assert [network(name) for name in NODES] == [right(name) for name in NODES]


@pytest.mark.nightly
def test_mtu_1500_on_one_side_is_refused_with_the_pings_result(play):
    for name, mtu in (("spark-1", (9000, 9000)), ("spark-2", (1500, 9000))):
        foreign(name, [f"192.168.{30 + index}.{NUMBER[name]}/24" for index in range(2)], mtu)
    before = node("spark-2", "cat", NETPLAN)
    code, text = play()
    assert code != 0
    assert (
        "fabric.mtu_differs: rail0: the ends differ in MTU: spark-1 enp1s0f0np0 9000 and spark-2 enp1s0f0np0 1500"
        in text
    )
    assert (
        "fabric.ping_mtu: rail0: spark-1 (enp1s0f0np0, 192.168.30.10) to spark-2 (192.168.30.11) loses packets" in text
    )
    assert "ping -M do -s 8972: 0 of 3 came back" in text and "mtu=1500" in text
    assert "fabric.ping_mtu: rail1" not in text
    assert node("spark-2", "cat", NETPLAN) == before and network("spark-2")[0][1] == 1500


@pytest.mark.nightly
def test_it_is_repaired_when_asked_and_right_addresses_stay(play):
    before = node("spark-1", "cat", NETPLAN)
    code, text = play(fabric_migrate=True)
    assert code == 0, text
    assert network("spark-2") == [([f"192.168.{30 + index}.11/24"], 9000) for index in range(2)]
    # The other host was right, so its file is still the foreign one.
    assert node("spark-1", "cat", NETPLAN) == before
    assert "mtu: 1500" in node("spark-2", "cat", "/var/lib/dgxspark/fabric/replaced/40-cx7.yaml")


@pytest.mark.nightly
def test_a_layout_of_others_that_is_right_is_adopted(play):
    foreign("spark-2", [f"192.168.{30 + index}.11/24" for index in range(2)])
    before = [node(name, "cat", NETPLAN) for name in NODES]
    code, text = play()
    assert code == 0 and "changed=0" in text, text
    assert [node(name, "cat", NETPLAN) for name in NODES] == before


@pytest.mark.nightly
def test_twins_in_one_subnet_are_named_and_left_alone(play):
    for index, name in enumerate(NODES):
        foreign(name, [f"192.168.0.{2 * index + 1}/24", f"192.168.0.{2 * index + 2}/24"])
    before = [network(name) for name in NODES]
    code, text = play()
    assert code != 0
    assert "fabric.same_subnet: spark-2: enp1s0f0np0 (192.168.0.3/24) and enP2p1s0f0np0 (192.168.0.4/24) share" in text
    assert "Set fabric_migrate: true" in text
    assert [network(name) for name in NODES] == before


@pytest.mark.nightly
def test_they_are_moved_when_asked(play):
    code, text = play(fabric_migrate=True)
    assert code == 0, text
    assert [network(name) for name in NODES] == [right(name) for name in NODES]


@pytest.mark.nightly
def test_what_netplan_refuses_is_taken_back(play):
    write("spark-1", "/etc/netplan/99-broken.yaml", "network: {version: 2, ethernets: {x: {addresses: [no]}}}\n", 0o600)
    code, text = play(fabric_subnets=["192.168.55.0/24", "192.168.56.0/24"])
    assert code != 0 and "Validate the netplan file failed" in text and "99-broken.yaml" in text
    node("spark-1", "rm", "/etc/netplan/99-broken.yaml")
    assert network("spark-1") == right("spark-1")
    assert "192.168.100.10/24" in node("spark-1", "cat", NETPLAN)
    # The other host went on; the next run brings both hosts of the collection together again.
    code, text = play()
    assert code == 0, text


CUTS = f"""#!/bin/sh
[ "$1" = apply ] || exec /usr/sbin/netplan "$@"
/usr/sbin/netplan apply
if grep -q 192.168.55 {NETPLAN}; then
    ip link set dev enP7s7 down
else
    ip link set dev enP7s7 up
    ip route replace default via {SUBNET}.0.1
fi
"""


def test_a_change_that_cuts_the_connection_is_undone_by_the_host_itself(play):
    """On one node netplan takes the management network down with the change, and gives it back without it."""
    write("spark-1", "/usr/local/sbin/netplan", CUTS, 0o755)
    code, text = play(fabric_subnets=["192.168.55.0/24", "192.168.56.0/24"], fabric_revert_seconds=12)
    node("spark-1", "rm", "/usr/local/sbin/netplan")
    assert code != 0 and "The host did not answer for 12 s after the change and went back by itself" in text, text
    # The other node waited so long for this one that it went back, too: the pair is unchanged.
    assert [network(name) for name in NODES] == [right(name) for name in NODES]
    assert "192.168.100.10/24" in node("spark-1", "cat", NETPLAN)


@pytest.fixture(scope="module")
def firewall():
    """An active ufw on one node, from its first test to the last one of the scenario."""
    node("spark-1", "ufw", "allow", "22/tcp")
    node("spark-1", "ufw", "--force", "enable")
    yield
    node("spark-1", "ufw", "--force", "reset")
    node("spark-1", "ufw", "disable")


def test_both_twins_pass_an_active_firewall(play, firewall):
    code, text = play()
    # Nothing else: the earlier rollback was complete.
    assert code == 0 and (text.count("changed=1"), text.count("changed=0")) == (1, 1), text
    rules = node("spark-1", "ufw", "status")
    assert all(f"Anywhere on {interface}" in rules for interface in INTERFACES)


def test_the_network_outlives_a_reboot_and_nothing_is_changed_twice(play, firewall):
    container("spark-2").restart(timeout=20)

    def back():
        # The engine of the machine gives a container that boots its own addresses, besides.
        pairs = zip(network("spark-2"), right("spark-2"))
        return all(set(expected[0]) <= set(has[0]) and has[1] == expected[1] for has, expected in pairs)

    for _ in range(100):
        if node("spark-2", "systemctl", "is-system-running", check=False).strip() == "running" and back():
            break
        time.sleep(0.3)
    assert back(), network("spark-2")
    time.sleep(1.5)
    code, text = play()
    assert code == 0 and "changed=1" not in text, text
    assert "fabric.several_addresses: spark-2 enp1s0f0np0" in text
