# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ray under an engine that spans Sparks: its command line, ports, environment and containers, and images that are given it.

Each rank has a container for Ray. On the head vllm serve runs in a second container, which shares
three things with it, each of which was found to be needed with Ray 2.60 and vLLM 0.32:

IPC namespace   messages between the engine and the head's own worker go through segments in /dev/shm
PID namespace   since 2.55 a driver finds its node by looking for the process of the raylet; without it vLLM gives up after
                60 seconds at "Connecting to existing Ray cluster"
/tmp/ray        sockets of the raylet and of the object store; and, by VLLM_RPC_BASE_PATH, those over which the engine wakes
                its worker: in the /tmp of one container each they are never found, and the start hangs without a message

Several engines with Ray on the same hosts have a Ray each; C(slot) tells their ports apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from .._common import program_text
from .._common.foreign_text import parse_json
from .._host import docker
from .._host.host_view import BadRequest, HostView, Request
from .._runtime import ray_nodes
from . import ray_names

ASK_SECONDS = 120.0  # a program with Ray starts in the container
GCS_PORT = 6379
"""Ray's default, of slot 0; each further slot takes the next."""
BLOCK, BLOCK_SIZE = 11000, 120
"""Ports of slot 0 and how many a slot has: in Ray's default range for workers, below the ports that the kernel gives away."""
FIXED = {
    "--node-manager-port": 0,
    "--object-manager-port": 1,
    "--runtime-env-agent-port": 2,
    "--metrics-export-port": 3,
    "--dashboard-agent-listen-port": 4,
    "--dashboard-agent-grpc-port": 5,
}
"""Options of C(ray start) on all nodes, and the place of their port in the block."""
METRICS, CLIENT, WORKERS = 6, 7, 20
"""Places of the autoscaler's metrics, of the client server of further slots, and of the first worker; workers have the rest."""
SLOTS = 20
"""So many blocks and GCS ports lie in the ranges that the role firewall closes."""
CPUS = 2
"""Workers of vLLM ask for no CPU, and Ray starts a Python process ahead for each CPU it has (eugr/spark-vllm-docker)."""
OBJECT_STORE_BYTES = 1 << 30
"""vLLM sends tensors by NCCL and little through Ray, whose own idea is 30 % of the memory: 37 GiB of a Spark.
1 GiB is spark-vllm-docker's value. It lies in /dev/shm."""
LOG_BYTES, LOG_BACKUPS = 10 << 20, 1
"""Ray's own bounds are 100 MiB and more for each of a dozen logs, and its folder lies in memory: /run is a tmpfs."""

IPC = "shareable"
"""Of Ray's container; the engine's on the head joins it."""
SESSIONS = "/run/dgxspark/ray"
"""On the host, with a folder for each service, which systemd makes and removes with the unit (RuntimeDirectory)."""
FOLDER = "/tmp/ray"
"""Where Ray has its sessions; sockets need a short path (107 characters)."""
CARRY_OVER_FILE = "ray_non_carry_over_env_vars.json"
"""vLLM's list of variables that it does not copy from the head to the workers (vllm/ray/ray_env.py)."""
CONFIG_ROOT = "/etc/dgxspark/vllm"
"""VLLM_CONFIG_ROOT of the engine on the head, the folder of that list."""


def derived_tag(base_id: str, ray_version: str) -> str:
    """Name the image that is made from another one by adding Ray."""
    return f"dgxspark/ray:{hashlib.sha256(f'{base_id} {ray_version}'.encode()).hexdigest()[:12]}"


def gcs_port(slot: int = 0) -> int:
    """Return the port at which nodes and drivers find the head."""
    return GCS_PORT + _checked(slot)


def worker_ports(slot: int = 0) -> tuple[int, int]:
    """Return the first and the last port of workers and drivers."""
    first = BLOCK + _checked(slot) * BLOCK_SIZE
    return first + WORKERS, first + BLOCK_SIZE - 1


def start_argv(head: bool, address: str, head_address: str, slot: int = 0) -> list[str]:
    """Return what follows C(ray) on the head, or on a worker.

    :param address: of this node on the fabric. Ray would take the address of the default route; vLLM then
        finds no GPU at VLLM_HOST_IP (eugr/spark-vllm-docker#227)
    :param slot: number of the cluster on its hosts, from 0, which spaces the ports
    """
    first = BLOCK + _checked(slot) * BLOCK_SIZE
    low, high = worker_ports(slot)
    if head:
        argv = ["start", "--head", f"--port={gcs_port(slot)}", "--include-dashboard=false"]
        if slot:
            argv.append(f"--ray-client-server-port={first + CLIENT}")
    else:
        argv = ["start", f"--address={head_address}:{gcs_port(slot)}"]
    return [
        *argv,
        f"--node-ip-address={address}",
        *(f"{option}={first + place}" for option, place in FIXED.items()),
        f"--min-worker-port={low}",
        f"--max-worker-port={high}",
        f"--num-cpus={CPUS}",
        "--num-gpus=1",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
        "--block",
    ]


def environment(slot: int = 0) -> dict[str, str]:
    """Return the environment of all containers of an engine with Ray, without the part of C(fabric.variables)."""
    return {
        "AUTOSCALER_METRIC_PORT": str(BLOCK + _checked(slot) * BLOCK_SIZE + METRICS),  # else 44217 on all interfaces
        "RAY_COLOR_PREFIX": "0",  # the journal is no terminal
        "RAY_ROTATION_BACKUP_COUNT": str(LOG_BACKUPS),
        "RAY_ROTATION_MAX_BYTES": str(LOG_BYTES),
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_RPC_BASE_PATH": FOLDER,
    }


def mounts(service: str) -> list[str]:
    """Return the options of docker run that let the containers of one host share Ray's session."""
    return ["--volume", f"{SESSIONS}/{service}/{ray_names.SESSION}:{FOLDER}"]


def engine_args(service: str, container: str, head_address: str, slot: int = 0) -> list[str]:
    """Return the options of docker run that connect the engine on the head to the Ray of its host, besides C(--ipc container:).

    :param container: of the engine. RAY_ADDRESS is for it alone; without an address vLLM would start a Ray of its
        own
    """
    variables = {"RAY_ADDRESS": f"{head_address}:{gcs_port(slot)}", "VLLM_CONFIG_ROOT": CONFIG_ROOT}
    words = ["--pid", f"container:{ray_names.container_name(container)}", *mounts(service)]
    return [*words, *(word for name, value in variables.items() for word in ("--env", f"{name}={value}"))]


def carry_over(per_host: Iterable[str]) -> dict[str, str]:
    """Return the file that keeps variables of the head from being copied to the workers: its path in the container, its content.

    vLLM's newer executor for Ray copies all of the head's environment and overwrites no variables of a worker; the
    older one (VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0) overwrites what begins with VLLM_, NCCL_, UCX_ or HF_. VLLM_HOST_IP and
    CUDA_VISIBLE_DEVICES are never copied.
    """
    return {"path": f"{CONFIG_ROOT}/{CARRY_OVER_FILE}", "content": json.dumps(sorted(set(per_host))) + "\n"}


def section(view: HostView, request: Request) -> dict[str, Any]:
    """Return the section C(ray) of M(dgxspark.vllm.spark_info): the nodes of one Ray. Raises BadRequest without its address."""
    containers = request.params["ray"]
    if not containers:
        raise BadRequest("ray: its container and address are needed to ask for its nodes")
    try:
        ray_nodes.split_address(containers["address"])
    except ValueError as error:
        raise BadRequest(f"ray.address: {error}") from error
    program = program_text.source(ray_nodes)
    limit = ["timeout", "--kill-after=5", str(ray_nodes.ANSWER_SECONDS + 15)]
    # Without waiting for nodes.
    argv = docker.exec_command(containers["container"], "python3", "-c", program, containers["address"], "0", "0", "0")
    rc, out, err = view.long_question([*limit, *argv], ASK_SECONDS)
    return read_answer(containers["container"], rc, out, err)


def read_answer(container: str, rc: int, out: str, err: str) -> dict[str, Any]:
    """Read what the command said that asks a Ray for its nodes, as C({answered, nodes, gpus, ray, error})."""
    for line in reversed(out.splitlines()):
        try:
            answer = parse_json(line, "the answer of Ray")
            nodes, error = list(answer["nodes"]), str(answer["error"])
        except (ValueError, KeyError, TypeError):
            continue
        answered = bool(nodes)
        return {
            "answered": answered,
            "nodes": nodes,
            "gpus": answer["gpus"],
            "ray": answer["ray"] or None,
            "error": error,
        }
    words = err.strip().splitlines()
    if rc in (124, 137):
        error = f"the container {container} gave no answer in time"
    elif rc == 127 and "python3" not in err:
        error = "there is no docker on this host"
    elif "No such container" in err or "is not running" in err:
        error = f"the container {container} does not run: see journalctl -u of its unit"
    else:
        error = f"Ray cannot be asked in the container {container}: {words[-1] if words else f'exit code {rc}'}"
    return {"answered": False, "nodes": [], "gpus": 0, "ray": None, "error": error}


def _checked(slot: int) -> int:
    if not 0 <= slot < SLOTS:
        raise ValueError(
            f"Ray number {slot + 1} on one host: its ports are laid out for {SLOTS} engines with the executor ray. "
            "Take the executor mp for the others."
        )
    return slot
