# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cables between ports of simulated Sparks: pairs of virtual Ethernet devices between their network namespaces, no switch between."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .config import CABLE_MTU, LABEL, PORTS, Node
from .engine import Docker, SimError

CAPABILITIES = ("NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE")


@dataclass(frozen=True)
class Cable:
    """A cable from a port of a node (from 1) to a port of a node."""

    node: int
    port: int
    other: int
    other_port: int

    def __str__(self) -> str:
        return f"{self.node}.{self.port}-{self.other}.{self.other_port}"

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Node and port of both ends."""
        return (self.node, self.port), (self.other, self.other_port)


def parse(text: str) -> Cable:
    """Read C(1.0-2.1)."""
    match = re.fullmatch(r"(\d)\.([01])-(\d)\.([01])", text)
    if match is None:
        raise SimError(f"{text!r} is no cable; 1.0-2.1 joins port 0 of the first node with port 1 of the second")
    return Cable(*map(int, match.groups()))


def ring(count: int) -> list[Cable]:
    """The cables of a ring: port 0 of each node into port 1 of the next, the last one's into the first."""
    return [Cable(index, 0, index % count + 1, 1) for index in range(1, count + 1)]


def alias(cable: Cable) -> str:
    """The labels on the devices of a cable, by which an existing one is recognised."""
    return f"cable {cable}"


def script(present: dict[str, str], processes: dict[int, int], cables: list[Cable]) -> list[str]:
    """The commands that lay the requested cables.

    :param present: C(NODE/DEVICE) to alias of the devices that are there
    :param processes: node to a process in its network namespace
    :param wanted: the cables
    :returns: lines for a shell
    """
    lines, used = [], set()
    for cable in cables:
        for node, port in cable.ends:
            if node not in processes:
                raise SimError(f"cable {cable}: node {node} does not run")
            if (node, port) in used:
                raise SimError(f"cable {cable}: port {port} of node {node} has a cable already")
            used.add((node, port))
    right = {alias(cable) for cable in cables}
    for place, text in present.items():
        number, _, device = place.partition("/")
        if text not in right:  # its other end goes with it
            lines.append(f"nsenter -t {processes[int(number)]} -n ip link del {device} 2>/dev/null || true")
    names = set(present.values())
    for cable in cables:
        if alias(cable) in names:
            continue
        for device, other in zip(PORTS[cable.port], PORTS[cable.other_port], strict=True):
            near, far = (f"nsenter -t {processes[node]} -n ip link" for node, _port in cable.ends)
            lines += [
                f"{near} add {device} mtu {CABLE_MTU} type veth peer name {other} mtu {CABLE_MTU} netns {processes[cable.other]}",
                f"{near} set dev {device} alias '{alias(cable)}' up",
                f"{far} set dev {other} alias '{alias(cable)}' up",
            ]
    return lines


def look(docker: Docker, node: Node) -> dict[str, str]:
    """The devices of cables of a node, with their aliases."""
    devices = " ".join(device for port in PORTS.values() for device in port)
    command = (
        f"for d in {devices}; do test -d /sys/class/net/$d && echo $d $(cat /sys/class/net/$d/ifalias); done; true"
    )
    lines = docker.out("exec", node.container, "sh", "-c", command).splitlines()
    return {f"{node.index}/{line.split()[0]}": line.partition(" ")[2] for line in lines}


def lay(docker: Docker, nodes: list[Node], cables: list[Cable]) -> None:
    """Lay the requested cables between nodes; existing ones stay.

    :param docker: the engine that the nodes run in
    :param nodes: those that run
    :param wanted: the cables
    """
    present = {place: text for node in nodes for place, text in look(docker, node).items()}
    processes = {node.index: int(docker.out("inspect", "--format", "{{.State.Pid}}", node.container)) for node in nodes}
    lines = script(present, processes, cables)
    if not lines:
        return
    # It has the tools, and the rights in the namespaces of others that the caller may lack.
    docker.run(
        "run", "--rm", "--pid", "host", "--network", "none", "--label", f"{LABEL}=cables",
        "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
        *(word for name in CAPABILITIES for word in ("--cap-add", name)), "--entrypoint", "sh",
        docker.out("inspect", "--format", "{{.Image}}", nodes[0].container), "-ec", "\n".join(lines),
    )  # fmt: skip
