"""reset.yml leaves the network and the replaced files, until it is told to restore these: then everything equals the state before the first change.

Runs after test_fabric.py on the same nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
import test_fabric as fabric
from test_fabric import NETPLAN, NODES, ROOT, node

play = fabric.play
STATE = "/var/lib/dgxspark"
OTHER = "/etc/netplan/90-mine.yaml"


def reset(**settings):
    """Run reset.yml; returns its exit code and all that it printed."""
    ran = subprocess.run(
        [
            "ansible-playbook",
            "-i",
            str(ROOT / "molecule" / "inventory.yml"),
            "dgxspark.vllm.reset",
            "-e",
            json.dumps({"spark_reset_confirm": True, **settings}),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


def exists(name, path):
    return bool(node(name, "find", path, "-maxdepth", "0", check=False).strip())


@pytest.mark.nightly
def test_all_changes_are_put_back_when_asked(play):
    code, text = reset(spark_reset_fabric=True)
    assert code == 0, text
    # One host with a file of somebody else's by the same name and a second one, the other with addresses of no file.
    fabric.foreign("spark-1", ["192.168.0.1/24", "192.168.0.2/24"], (9000, 1500))
    fabric.write("spark-1", OTHER, "network:\n  version: 2\n  ethernets:\n    enp1s0f0np0: {mtu: 9000}\n", "0640")
    node("spark-2", "rm", "--force", NETPLAN)
    node("spark-2", "netplan", "apply")
    for interface, address in zip(fabric.INTERFACES, ("192.168.0.3/24", "192.168.0.4/24")):
        node("spark-2", "ip", "addr", "flush", "dev", interface, "scope", "global")
        node("spark-2", "ip", "addr", "add", address, "dev", interface)
        node("spark-2", "ip", "link", "set", "dev", interface, "mtu", "1500")
    time.sleep(1.5)
    before = {name: fabric.network(name) for name in NODES}
    files = {path: node("spark-1", "cat", path) for path in (NETPLAN, OTHER)}

    code, text = play(fabric_migrate=True)
    assert code == 0, text
    code, text = play(
        fabric_subnets=["192.168.55.0/24", "192.168.56.0/24"]
    )  # a second change, of a network that is ours by then
    assert code == 0, text
    changed = {name: fabric.network(name) for name in NODES}
    assert [addresses for addresses, _mtu in changed["spark-1"]] == [["192.168.55.10/24"], ["192.168.56.10/24"]]

    node("spark-1", "mkdir", "-p", f"{STATE}/adopted")
    fabric.write("spark-1", f"{STATE}/adopted/note", "x\n")
    fabric.write("spark-1", f"{STATE}/theirs", "x\n")
    code, text = reset()
    assert code == 0, text
    assert {name: fabric.network(name) for name in NODES} == changed
    assert [exists(name, f"{STATE}/fabric/origin") for name in NODES] == [True, True]
    assert (
        not exists("spark-1", f"{STATE}/adopted")
        and exists("spark-1", f"{STATE}/theirs")
        and exists("spark-1", NETPLAN)
    )
    node("spark-1", "rm", f"{STATE}/theirs")

    code, text = reset(spark_reset_fabric=True)
    assert code == 0, text
    assert {name: fabric.network(name) for name in NODES} == before, text
    assert {path: node("spark-1", "cat", path) for path in files} == files
    assert node("spark-1", "stat", "-c", "%a", OTHER).strip() == "640"
    assert not exists("spark-2", NETPLAN)
    assert [exists(name, STATE) for name in NODES] == [False, False]
    assert node("spark-1", "find", "/etc/netplan", "-name", "*~") == ""


@pytest.mark.nightly
def test_what_netplan_refuses_leaves_the_network_of_the_role(play):
    node("spark-1", "rm", OTHER)
    code, text = play(fabric_migrate=True)
    assert code == 0, text
    networks = {name: fabric.network(name) for name in NODES}
    fabric.write("spark-1", "/etc/netplan/99-broken.yaml", "network: {version: 2, ethernets: {x: {addresses: [no]}}}\n")
    code, text = reset(spark_reset_fabric=True)
    assert code != 0 and "stays as it is" in text and "Validate the netplan files failed" in text, text
    assert "/etc/netplan/99-broken.yaml" in text
    node("spark-1", "rm", "/etc/netplan/99-broken.yaml")
    node("spark-1", "netplan", "apply")
    assert fabric.network("spark-1") == networks["spark-1"] and exists(
        "spark-1", f"{STATE}/fabric/origin/files{NETPLAN}"
    )
    code, text = reset(spark_reset_fabric=True)
    assert code == 0, text
    assert not exists("spark-1", STATE)


@pytest.mark.nightly
def test_a_host_that_was_never_changed_is_left_alone():
    before = {name: fabric.network(name) for name in NODES}
    mine = node("spark-1", "stat", "-c", "%Y %s", NETPLAN)
    code, text = reset(spark_reset_fabric=True)
    assert code == 0, text
    assert {name: fabric.network(name) for name in NODES} == before
    assert node("spark-1", "stat", "-c", "%Y %s", NETPLAN) == mine
