# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sections of C(spark) of M(dgxspark.vllm.spark_info) that a view of the host answers alone; each returns its part of C(spark)."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._runtime import power_switches, state_file
from . import guard_account, machine, nvidia_smi, quality_account
from .host_view import HostView


def host(view: HostView) -> dict[str, Any]:
    """Return machine, system and accounts."""
    dmi, dgx_os = machine.read_dmi(view.root), machine.parse_dgx_release(view.text("etc/dgx-release"))
    signs = machine.read_pci(view.root).values(), dmi["product_family"], dgx_os["name"] if dgx_os else None
    is_spark = machine.is_spark(None, *signs)
    if not is_spark:
        device = view.noted(None, view.gpu, view.noted([], view.containers))
        is_spark = machine.is_spark(device["name"] if device else None, *signs)
    return {
        "machine": {"is_spark": is_spark, **dmi},
        "dgx_os": dgx_os,
        "os": machine.parse_os_release(view.text("etc/os-release")),
        "kernel": view.kernel(),
        "architecture": platform.machine(),
        "hostname": socket.gethostname(),
        "docker_users": machine.read_docker_users(),
        "nft": machine.has_program("nft"),
        "power": power_switches.facts(Path(view.root)),
        "firewall": "firewall.nft" in machine.names_in(view.settings, ""),  # the folder may be root's alone
    }


def containers(view: HostView) -> dict[str, Any]:
    """Return the Docker engine and its containers."""
    engine = view.docker()
    return {"docker": engine, "containers": view.noted([], view.containers) if engine else []}


def gpu(view: HostView) -> dict[str, Any]:
    """Return the GPU with its processes and the CUDA version of its driver."""
    device = view.noted(None, view.gpu, view.noted([], view.containers))
    return {"gpu": device and {**device, "cuda_version": view.noted(None, view.cuda_version)}}


def residency(view: HostView) -> dict[str, Any]:
    """Return the GPU memory of each service."""
    return {"resident": view.noted([], _resident, view)}


def _resident(view: HostView) -> list[dict[str, Any]]:
    boxes = view.containers()
    return nvidia_smi.resident(view.gpu(boxes), boxes)


def memory(view: HostView) -> dict[str, Any]:
    """Return the unified memory, the settings and the last step of its guard, and servers with bad answers, which the same agent finds."""
    files = Path(view.settings, guard_account.SETTINGS), Path(guard_account.STATE)
    guard = guard_account.account(*map(state_file.read, files))
    quality = quality_account.account(state_file.read(Path(quality_account.STATE)))
    return {"memory": machine.read_memory(view.root), "guard": guard, "quality": quality}


def network(view: HostView) -> dict[str, Any]:
    """Return the QSFP side and the address on the LAN."""
    fabric = view.noted(None, view.fabric) or view.fabric_of()
    return {"fabric": fabric, "management_address": machine.management_address()}


def ports(view: HostView) -> dict[str, Any]:
    """Return the listening TCP sockets."""
    return {"listening": view.listening(view.noted([], view.containers))}


def units(view: HostView) -> dict[str, Any]:
    """Return the services of the collection, and the units C(spark-*.service), with C(managed) for units of services."""
    services = machine.read_services(view.settings)
    managed = {f"spark-{name}.service" for name in services}
    shown = view.noted([], view.units)
    return {"services": services, "units": [{**unit, "managed": unit["name"] in managed} for unit in shown]}


Section = tuple[Callable[[HostView], "dict[str, Any]"], "dict[str, Any]"]
"""The reader of a section, and the values of an unreadable one."""
FACTS: dict[str, Section] = {
    "containers": (containers, {"docker": None, "containers": []}),
    "gpu": (gpu, {"gpu": None}),
    "residency": (residency, {"resident": []}),
    "memory": (memory, {"memory": None, "guard": None, "quality": {}}),
    "network": (network, {"fabric": {"connectx": False, "pci_functions": [], "ports": []}, "management_address": None}),
    "ports": (ports, {"listening": []}),
    "units": (units, {"services": [], "units": []}),
    "host": (host, {"machine": {"is_spark": False}, "dgx_os": None, "os": None}),
}
"""Sections by name. Docker comes first: which container a process belongs to is known by then."""


def collect(view: HostView, sections: Mapping[str, Section] = FACTS) -> dict[str, Any]:
    """Return sections as one mapping, with C(unknown): why a program or section gave no answer; the others are answered all the same."""
    facts: dict[str, Any] = {}
    for name, (read, missing) in sections.items():
        try:
            facts.update(read(view))
        except Exception as error:  # the boundary of a section
            view.unknown.setdefault(name, f"{name} cannot be read: {type(error).__name__}: {error}")
            facts.update(missing)
    return {**facts, "unknown": view.unknown}
