"""The nodes of a run of scenarios. Runs go side by side, each with another SPARKSIM_SET and SPARKSIM_SUBNET."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import docker

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim"))

from simlib.config import SETS, Node

SET = SETS[os.environ.get("SPARKSIM_SET") or "test"]
SUBNET = SET.subnet_prefix
NODES = {node.hostname: node.container for node in (Node(SET.name, 1), Node(SET.name, 2))}
FLEET = {node.hostname: node.container for node in (Node(SET.name, index) for index in range(1, 5))}
"""Those of scenarios that boot four."""
THIRD = Node(SET.name, 3).container
"""A node that only some scenarios have, for a host that is no Spark: forge."""
AT_NIGHT = not os.environ.get("SPARKSIM_EACH_CHANGE")
"""Whether a scenario has all of it: the inventory of its folder nightly, too, where it has one."""
MANAGEMENT_NETWORK = SET.network("mgmt")


@functools.cache
def engine():
    """The Docker engine of this machine, which runs the nodes."""
    return docker.from_env(timeout=600)


def container(host):
    """The container that is a node, by the host's name in the inventory."""
    return engine().containers.get({**FLEET, **NODES, "forge": THIRD}[host])


def argv_on(host, *argv):
    """The command of this machine that runs a command as root on a node, past Ansible, SSH and the network.

    It is Docker's own client: exec_run of the SDK loses output that comes together with the headers of the answer
    (docker/api/client.py reads the socket past the buffer of http.client).
    """
    return ["docker", "exec", container(host).name, *argv]


def run(host, *argv):
    """Run a command as root on a node. Returns its exit status, output and error output."""
    done = subprocess.run(argv_on(host, *argv), capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, done.stderr


def node(host, *argv, check=True):
    """Run a command as root on a node and return its output. It ends with status 0 if C(check)."""
    status, output, errors = run(host, *argv)
    assert status == 0 or not check, f"{host}: {argv} ended with status {status}: {output}{errors}"
    return output


def write(host, path, text, mode=0o644):
    """Write a file of root on a node; its folder exists."""
    folder, _, name = path.rpartition("/")
    archive, content = io.BytesIO(), text.encode()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), mode
        tar.addfile(entry, io.BytesIO(content))
    container(host).put_archive(folder or "/", archive.getvalue())


def copy(source, host, path):
    """Copy a file or folder of this machine to a path of a node."""
    archive = io.BytesIO()
    folder, _, name = path.rpartition("/")
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(source, arcname=name)
    container(host).put_archive(folder or "/", archive.getvalue())
