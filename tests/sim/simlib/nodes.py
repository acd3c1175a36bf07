# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Boot, look at and remove simulated Sparks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import cables
from .build import NODE_FLAGS, Plan, copy_store, wait_inner_engine
from .config import CACHE_DIR, COMPILED, LABEL, SETS, Node, NodeSet, content_hash
from .engine import Docker, SimError, ensure_commands, say

KEY = CACHE_DIR / "id_ed25519"
KNOWN_HOSTS = CACHE_DIR / "known_hosts"
USER = "spark"


def keygen(path: Path, comment: str) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
            check=True,
            stdin=subprocess.DEVNULL,
        )


def prepare_keys(nodes: list[Node]) -> None:
    """Keys of the run and of each node. They stay over down and up, so known_hosts stays right."""
    ensure_commands("ssh-keygen")
    keygen(KEY, "spark-sim")
    for node in nodes:
        keygen(node.config_dir / "ssh_host_ed25519_key", node.container)
        shutil.copy(KEY.with_suffix(".pub"), node.config_dir / "authorized_keys")
        settings = {
            "hostname": node.hostname,
            "container": node.container,
            "total_gib": 119.67,
            "os_reserve_gib": 5.2,
            "links": {
                name: {"device": device, "address": node.address(i), "mtu": mtu}
                for i, (name, device, mtu) in enumerate(SETS[node.set_name].links)
            },
        }
        write_if_changed(node.config_dir / "node.json", json.dumps(settings, indent=1) + "\n")
    lines = []
    for folder in sorted((CACHE_DIR / "nodes").iterdir()):
        public, config = folder / "ssh_host_ed25519_key.pub", folder / "node.json"
        if public.exists() and config.exists():
            names = [link["address"] for link in json.loads(config.read_text())["links"].values()]
            lines.append(f"{','.join([*names, folder.name])} {' '.join(public.read_text().split()[:2])}\n")
    write_if_changed(KNOWN_HOSTS, "".join(lines))


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def ssh_argv(node: Node, *command: str) -> list[str]:
    return [
        "ssh", "-i", str(KEY), "-o", f"UserKnownHostsFile={KNOWN_HOSTS}", "-o", "StrictHostKeyChecking=yes",
        "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=5", f"{USER}@{node.address(0)}", *command,
    ]  # fmt: skip


def ensure_networks(docker: Docker, group: NodeSet) -> None:
    for index, (link, _, mtu) in enumerate(group.links):
        name = group.network(link)
        if docker.exists("network", name):
            continue
        docker.run(
            "network", "create", "--label", f"{LABEL}={group.name}", "--subnet", group.subnet(index),
            "--opt", f"com.docker.network.driver.mtu={mtu}", name,
        )  # fmt: skip


def node_spec(plan: Plan, store: str, node: Node) -> str:
    """The inputs of a running node; when they differ the node is made anew."""
    parts = [plan.node, store, repr(NODE_FLAGS), repr(SETS[node.set_name].links), str(node.config_dir), node.address(0)]
    return content_hash(*parts, node.config_dir / "node.json", node.config_dir / "authorized_keys")


def state(docker: Docker, node: Node) -> tuple[str, str]:
    """(spec, status) of the node's container; both empty without one."""
    done = docker.run(
        "inspect", "--type", "container", "--format", '{{index .Config.Labels "dgxspark.sim.spec"}} {{.State.Status}}',
        node.container, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return "", ""
    spec, _, status = done.stdout.strip().partition(" ")
    return spec, status


def boot(docker: Docker, plan: Plan, store: str, node: Node) -> str:
    """Make sure that one node runs and is ready; returns what had to be done."""
    group = SETS[node.set_name]
    spec = node_spec(plan, store, node)
    have, status = state(docker, node)
    if have == spec and status == "running" and is_ready(docker, node):
        return "already up"
    action = "started"
    if have != spec:
        action = "created" if not have else "made anew"
        remove(docker, node)
        docker.run("volume", "create", "--label", f"{LABEL}={group.name}", node.volume)
        copy_store(docker, plan, store, node.volume)
        docker.run("volume", "create", "--label", f"{LABEL}=compiled", COMPILED)  # or it is there
        docker.run(
            "create", "--name", node.container, "--hostname", node.hostname,
            "--label", f"{LABEL}={group.name}", "--label", f"dgxspark.sim.spec={spec}",
            *NODE_FLAGS,
            "--volume", f"{node.volume}:/var/lib/docker",
            "--volume", f"{COMPILED}:/var/cache/spark-sim/compiled",
            "--volume", f"{node.config_dir}:/etc/spark-sim:ro",
            "--network", group.network(group.links[0][0]), "--ip", node.address(0), "--network-alias", node.hostname,
            plan.node,
        )  # fmt: skip
        for index, (link, _, _) in list(enumerate(group.links))[1:]:
            docker.run("network", "connect", "--ip", node.address(index), group.network(link), node.container)
    docker.run("start", node.container)
    wait_ready(docker, node)
    return action


def is_ready(docker: Docker, node: Node) -> bool:
    device = SETS[node.set_name].links[-1][1]
    script = (
        f"docker info >/dev/null 2>&1 && systemctl -q is-active spark-sim ssh && ip link show {device} >/dev/null 2>&1"
    )
    return docker.run("exec", node.container, "sh", "-c", script, check=False).returncode == 0


def wait_ready(docker: Docker, node: Node, seconds: float = 60) -> None:
    wait_inner_engine(docker, node.container, seconds)
    deadline = time.monotonic() + seconds
    last = ""
    while time.monotonic() < deadline:
        if is_ready(docker, node):
            done = subprocess.run(ssh_argv(node, "sudo -n true"), capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            last = done.stderr.strip()
        time.sleep(0.3)
    failed = docker.run("exec", node.container, "systemctl", "--failed", "--no-legend", check=False).stdout
    raise SimError(
        f"{node.container} did not get ready within {seconds:.0f} s. ssh: {last or 'not tried'}; failed units: {failed or '-'}"
    )


def up(docker: Docker, plan: Plan, store: str, set_name: str, count: int) -> list[Node]:
    group = SETS[set_name]
    nodes = [Node(set_name, index + 1) for index in range(count)]
    prepare_keys(nodes)
    ensure_networks(docker, group)
    with ThreadPoolExecutor(max_workers=count) as pool:
        for node, action in zip(nodes, pool.map(lambda n: boot(docker, plan, store, n), nodes), strict=True):
            say(f"{node.container}: {action} ({', '.join(node.address(i) for i in range(len(group.links)))})")
    if group.cabled and count > 1:
        lay(docker, set_name, cables.ring(count))
    return nodes


def lay(docker: Docker, set_name: str, cable_list: list[cables.Cable]) -> None:
    """Have a set cabled like this and in no other way."""
    if not SETS[set_name].cabled:
        raise SimError(f"nodes of set {set_name} are on networks; those with cables are: --set ring")
    running = docker.lines("ps", "--format", "{{.Names}}", "--filter", f"label={LABEL}={set_name}")
    indices = sorted(int(name.removeprefix(SETS[set_name].container_prefix)) for name in running)
    cables.lay(docker, [Node(set_name, index) for index in indices], cable_list)
    say(f"set {set_name}: cables {' '.join(str(cable) for cable in cable_list) or 'none'}")


def remove(docker: Docker, node: Node) -> None:
    docker.run("rm", "--force", "--volumes", node.container, check=False)
    docker.run("volume", "rm", "--force", node.volume, check=False)


def down(docker: Docker, set_names: list[str]) -> None:
    """Remove containers, volumes and networks of the sets; images, the store and keys stay."""
    for name in set_names:
        label = f"label={LABEL}={name}"
        containers = docker.lines("ps", "--all", "--quiet", "--filter", label)
        groups = inner_containers(docker, containers)
        if containers:
            docker.run("rm", "--force", "--volumes", *containers)
        volumes = docker.lines("volume", "ls", "--quiet", "--filter", label)
        if volumes:
            docker.run("volume", "rm", "--force", *volumes)
        networks = docker.lines("network", "ls", "--quiet", "--filter", label)
        if networks:
            docker.run("network", "rm", *networks)
        remove_left_cgroups(groups)
        say(f"set {name}: {len(containers)} nodes, {len(volumes)} volumes, {len(networks)} networks removed")


def inner_containers(docker: Docker, containers: list[str]) -> list[str]:
    """Ids of the containers inside the nodes, whose control groups lie next to the nodes' own on cgroup v1."""
    ids = list(containers)
    for container in containers:
        done = docker.run("exec", container, "docker", "ps", "--all", "--quiet", "--no-trunc", check=False)
        if done.returncode == 0:
            ids += done.stdout.split()
    return ids


def remove_left_cgroups(containers: list[str]) -> None:
    """An engine that is killed with its node leaves empty groups behind on cgroup v1; remove ours."""
    if os.geteuid() != 0:
        return
    for container in containers:
        for folder in Path("/sys/fs/cgroup").glob(f"*/docker/{container}*"):
            for path in [*sorted(folder.rglob("*"), key=lambda p: len(p.parts), reverse=True), folder]:
                if path.is_dir():
                    with contextlib.suppress(OSError):  # busy: not empty after all
                        path.rmdir()


def status(docker: Docker) -> None:
    for name, group in SETS.items():
        rows = docker.lines(
            "ps", "--all", "--filter", f"label={LABEL}={name}", "--format", "{{.Names}}|{{.Status}}|{{.Image}}"
        )
        say(f"set {name}: {len(rows) or 'no'} node{'s' if len(rows) != 1 else ''}")
        for row in sorted(rows):
            container, text, image = row.split("|")
            node = Node(name, int(container.removeprefix(group.container_prefix)))
            ready = "ready" if text.startswith("Up") and is_ready(docker, node) else "not ready"
            say(f"  {container:<12} {node.address(0):<12} {ready:<10} {text:<24} {image}")
            if ready == "ready":
                inner = docker.lines("exec", container, "docker", "ps", "--format", "{{.Names}} ({{.Image}})")
                for line in inner:
                    say(f"    {line}")


def ssh_hint(nodes: list[Node]) -> str:
    def short(path: Path) -> str:
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)

    first = nodes[0]
    return f"ssh -i {short(KEY)} -o UserKnownHostsFile={short(KNOWN_HOSTS)} {USER}@{first.address(0)}"
