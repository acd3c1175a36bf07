# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, addresses and paths: everything that two parts of the simulator must agree on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

SIM_DIR = Path(__file__).resolve().parent.parent
REPO_DIR = SIM_DIR.parent.parent
CACHE_DIR = REPO_DIR / ".cache" / "sim"

LABEL = "dgxspark.sim"  # on every container, volume, network and image made here
IMAGE_PREFIX = "dgxspark-sim"
STORE_PREFIX = "dgxspark-sim-store"
COMPILED = (
    "dgxspark-sim-compiled"  # a volume that all nodes have: what Python compiled of the archives that Ansible sends
)

# Networks of a node, in the order in which they are attached. The management network sorts first by name, so it
# provides the default route.
LINKS: tuple[tuple[str, str, int], ...] = (
    ("mgmt", "enP7s7", 1500),
    ("rail0", "enp1s0f0np0", 9000),
    ("rail1", "enP2p1s0f0np0", 9000),
)

# The two interfaces of each port of a ConnectX-7; a cable joins the first ones of two ports, and the second ones.
PORTS: dict[int, tuple[str, str]] = {0: ("enp1s0f0np0", "enP2p1s0f0np0"), 1: ("enp1s0f1np1", "enP2p1s0f1np1")}
CABLE_MTU = 1500  # the default of a card; roles have to set their own

# What the stores of the nodes hold: (name, entrypoint family, vLLM version it answers with).
STANDIN_IMAGES: tuple[tuple[str, str, str], ...] = (
    ("nvcr.io/nvidia/vllm:26.04-py3", "passthrough", "0.19.0"),
    ("vllm/vllm-openai:v0.24.0-ubuntu2404", "serve", "0.24.0"),
    ("vllm/vllm-openai:gemma4-0505-arm64-cu130", "serve", "0.20.2rc1.dev49+g9b4e83934"),
)
REAL_IMAGE = "dgxspark/vllm-cpu:0.32.0"
REAL_VERSION = "0.32.0"


@dataclass(frozen=True)
class Node:
    """One simulated Spark."""

    set_name: str
    index: int

    @property
    def hostname(self) -> str:
        return f"spark-{self.index}"

    @property
    def container(self) -> str:
        return SETS[self.set_name].container_prefix + str(self.index)

    @property
    def volume(self) -> str:
        return f"{self.container}-docker"

    def address(self, link: int) -> str:
        return f"{SETS[self.set_name].subnet_prefix}.{link}.{10 + self.index}"

    @property
    def config_dir(self) -> Path:
        """Identity that outlives the container (host keys, addresses), mounted into it."""
        return CACHE_DIR / "nodes" / self.container


@dataclass(frozen=True)
class NodeSet:
    """A group of nodes with separate networks; sets live side by side. cabled: its nodes have cables from port to port and no rails."""

    name: str
    container_prefix: str
    network_prefix: str
    subnet_prefix: str
    cabled: bool = False

    @property
    def links(self) -> tuple[tuple[str, str, int], ...]:
        """Networks of its nodes."""
        return LINKS[:1] if self.cabled else LINKS

    def network(self, link: str) -> str:
        return f"{self.network_prefix}-{link}"

    def subnet(self, index: int) -> str:
        return f"{self.subnet_prefix}.{index}.0/24"


SETS: dict[str, NodeSet] = {
    "demo": NodeSet("demo", "spark-", "spark", "10.87"),
    "test": NodeSet("test", "sparktest-", "sparktest", "10.88"),
    "test2": NodeSet("test2", "sparktest2-", "sparktest2", "10.86"),
    "test3": NodeSet("test3", "sparktest3-", "sparktest3", "10.85"),
    "ring": NodeSet("ring", "sparkring-", "sparkring", "10.84", cabled=True),
}


def content_hash(*parts: str | Path) -> str:
    """Hash of strings and of files (a folder means every file below it, by name, mode and content)."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(b"s" + part.encode() + b"\0")
            continue
        files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file())
        for file in files:
            name = file.name if file == part else str(file.relative_to(part))
            if any(item.startswith((".", "__pycache__")) for item in name.split("/")):
                continue  # caches of tools
            executable = b"x" if file.stat().st_mode & 0o100 else b"-"
            digest.update(b"f" + name.encode() + b"\0" + executable + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
