# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of an engine that spans hosts: NCCL, Gloo, Ray and vLLM, by topology, each value with its source.

NCCL_IB_GID_INDEX is never among them: NCCL 2.21 and newer finds the index, and a stored one goes stale. What others set and
is left out here, and why, is in docs/fabric.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REPORTS = "reports from ConnectX-7 pairs"
PLAYBOOK = "NVIDIA's playbook for two Sparks"
RECIPE = "vLLM's recipe for two Sparks"
RING3 = "NVIDIA's set-up of three Sparks; sparkrun"
RING4 = "spark-vllm-docker, on four Sparks with stock NCCL; spark-ds41f sets it too"
NO_NVLINK = (
    "there is no NVLink between Sparks; loads at TP 8 hung in 2 of 3 starts without it: NVIDIA/nccl#2167, a second site"
)
IFNAME = f"{PLAYBOOK}; {RECIPE}"


@dataclass(frozen=True)
class Variable:
    """A variable of an engine's environment, and why it is there. C({netdev}), C({address}) and C({devices}) stand for the host's own."""

    value: str
    source: str
    per_host: bool = False
    executors: tuple[str, ...] = field(default=("mp", "ray"))


@dataclass(frozen=True)
class Place:
    """Where the engine of a host is found by the others: interface, address, RoCE devices; all empty when it is not."""

    netdev: str = ""
    address: str = ""
    devices: tuple[str, ...] = ()
    management: bool = False  # whether it is found over the management network


ALWAYS: Mapping[str, Variable] = {
    "VLLM_HOST_IP": Variable("{address}", f"{RECIPE}; eugr/spark-vllm-docker#227", True),
    "NCCL_IB_DISABLE": Variable("0", RECIPE),
    "NCCL_IB_HCA": Variable(
        "{devices}", f"{RECIPE}; one interface alone is half the speed: NVIDIA/dgx-spark-playbooks#102", True
    ),
    "NCCL_IGNORE_CPU_AFFINITY": Variable("1", RECIPE),
    "NCCL_NET_PLUGIN": Variable("none", f"NGC images ship a plugin that falls back to TCP: {REPORTS}"),
    "NCCL_IB_MERGE_NICS": Variable("1", "98 to 161 Gb/s with both interfaces: tonyd2wild PR#35"),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": Variable(
        "1800", "first requests compile for minutes, 300 s end the engine: eugr/spark-vllm-docker#321"
    ),
    "RAY_memory_monitor_refresh_ms": Variable("0", "NVIDIA's guide to two Sparks", executors=("ray",)),
    "RAY_NODE_IP_ADDRESS": Variable("{address}", "eugr/spark-vllm-docker#227", True, ("ray",)),
    "RAY_OVERRIDE_NODE_IP_ADDRESS": Variable("{address}", "spark-vllm-docker", True, ("ray",)),
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": Variable("0", "sparkrun", executors=("ray",)),
    "NCCL_SOCKET_IFNAME": Variable("{netdev}", IFNAME, True),
    "GLOO_SOCKET_IFNAME": Variable("{netdev}", IFNAME, True),
    "TP_SOCKET_IFNAME": Variable("{netdev}", IFNAME, True),
    "UCX_NET_DEVICES": Variable("{netdev}", IFNAME, True),
    "OMPI_MCA_btl_tcp_if_include": Variable("{netdev}", IFNAME, True),
    "MN_IF_NAME": Variable("{netdev}", IFNAME, True),
}
"""Of each engine that spans hosts."""
RING: Mapping[str, Variable] = {
    "NCCL_IB_MERGE_NICS": Variable("0", RING3),
    "NCCL_IB_SUBNET_AWARE_ROUTING": Variable("1", RING3),
}
"""In a ring besides, whose rails lead to two neighbours: devices of two cables are not one NIC."""
LONG_RING: Mapping[str, Variable] = {
    # By default NCCL connects trees too, and PAT, to ranks that no cable reaches.
    "NCCL_ALGO": Variable("Ring", RING4),
    "NCCL_IB_MERGE_NICS": Variable("0", "spark-vllm-docker and sparkring; spark-ds41f alone leaves it on"),
    "NCCL_IB_SUBNET_AWARE_ROUTING": Variable("1", "spark-vllm-docker and sparkring"),
}
"""In a ring of four or more besides, where not all hosts are neighbours."""
MANY: Mapping[str, Variable] = {"NCCL_NVLS_ENABLE": Variable("0", NO_NVLINK)}
"""On four hosts or more besides, in a ring or on a switch."""


def _variables(topology: str, size: int) -> dict[str, Variable]:
    """Return the variables of an engine that spans a group."""
    ring = {**RING, **(LONG_RING if size > 3 else {})} if topology == "ring" else {}
    return {**ALWAYS, **ring, **(MANY if size > 3 else {})}


def environment(place: Place, topology: str, size: int) -> dict[str, Any]:
    """Return C({mp, ray, per_host, sources}): the environment of an engine that spans a group, for one host, by executor.

    per_host: variables that must not be copied to others: with Ray the head's environment is copied to the workers unless vLLM's file
    C(ray_non_carry_over_env_vars.json) in C(VLLM_CONFIG_ROOT) lists the variable. All are empty where the host is not found.
    """
    merged = _variables(topology, size) if place.address else {}
    placeholders = {"{netdev}": place.netdev, "{address}": place.address, "{devices}": ",".join(place.devices)}
    values = {name: placeholders.get(variable.value, variable.value) for name, variable in sorted(merged.items())}
    env = {name: value for name, value in values.items() if value}
    return {
        "mp": {name: value for name, value in env.items() if "mp" in merged[name].executors},
        "ray": {name: value for name, value in env.items() if "ray" in merged[name].executors},
        "per_host": [name for name in env if merged[name].per_host],
        "sources": {name: merged[name].source for name in env},
    }
