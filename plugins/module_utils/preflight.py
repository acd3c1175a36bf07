# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight: what a host says about itself against what is about to be put there. Every problem at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils.known_bad import DRIVER_BRANCHES, bad_kernel

DISK_MARGIN_GIB = 5.0
"""Free space that must be left after a download: logs, caches and the journal live on the same disk."""


def check_host(
    facts: Mapping[str, Any], services: Sequence[Mapping[str, Any]], wants: Mapping[str, Any]
) -> list[Finding]:
    """Compare a host's facts with what the plan wants of it.

    facts: C(spark) of M(dgxspark.vllm.spark_info). services: resolved services of the host.
    wants: uses_gpu (bool), hf_home (path), download_gib (GiB still to be fetched), firewall (bool).
    Returns findings with basis C(measured).
    """
    findings: list[Finding] = []

    def add(rule: str, severity: str, message: str, fix: str, service: str = "", source: str = "") -> None:
        findings.append(
            Finding(
                rule=rule, severity=severity, message=message, fix=fix, service=service, source=source, basis="measured"
            )
        )

    docker = facts.get("docker")
    if not docker or not docker.get("version"):
        add(
            "host.docker",
            "error",
            "no Docker engine answers on this host.",
            "Start it (systemctl enable --now docker). DGX OS ships it; elsewhere install docker.io or docker-ce.",
        )
    elif wants.get("uses_gpu") and "nvidia" not in (docker.get("runtimes") or []):
        add(
            "host.nvidia_runtime",
            "error",
            "Docker has no 'nvidia' runtime, so --gpus cannot work.",
            "Install nvidia-container-toolkit and run: nvidia-ctk runtime configure --runtime=docker; systemctl restart docker.",
        )
    gpu = facts.get("gpu")
    if not gpu:
        add(
            "host.gpu",
            "error",
            "nvidia-smi shows no GPU on this host.",
            "Check the driver (nvidia-smi; dmesg | grep NVRM). After a driver update a reboot, or the firmware of the "
            "same DGX OS release, is needed.",
        )
    else:
        driver = str(gpu.get("driver_version") or "")
        if driver and driver.split(".", maxsplit=1)[0] not in DRIVER_BRANCHES:
            add(
                "host.driver",
                "warning",
                f"driver {driver} is not of the branch that DGX OS carries ({', '.join(DRIVER_BRANCHES)}).",
                "Go back to the driver of DGX OS unless you know why you left it.",
                source="NVIDIA staff, forum, 2026-03",
            )
    kernel = str(facts.get("kernel") or "")
    known = bad_kernel(kernel)
    if known:
        reason, source = known
        add("host.kernel", "warning", f"kernel {kernel}: {reason}.", "Boot another kernel of DGX OS.", source=source)
    if not (facts.get("machine") or {}).get("is_spark"):
        add(
            "host.machine",
            "warning",
            "this host does not look like a DGX Spark (GB10).",
            "The plan's figures are those of a Spark; leave the host out of the group 'sparks' if that is not meant.",
        )

    if wants.get("firewall") and facts.get("nft") is False:
        add(
            "host.nft",
            "error",
            "the program nft is missing, with which ports of the cluster are closed to other networks than the fabric.",
            "Install it (apt install nftables; DGX OS has it in its archive), or set spark_firewall: false.",
        )
    _check_names_and_ports(facts, services, add)
    _check_disk(facts, wants, add)
    return findings


def _check_names_and_ports(facts: Mapping[str, Any], services: Sequence[Mapping[str, Any]], add: Any) -> None:
    ours = {str(name) for name in facts.get("services") or []}
    units = {unit["name"]: unit for unit in facts.get("units") or []}
    containers = {container["name"]: container for container in facts.get("containers") or []}
    listening: dict[int, dict[str, Any]] = {int(entry["port"]): entry for entry in facts.get("listening") or []}
    for service in services:
        name, unit, container = service["name"], service["unit"], service["container"]
        if unit in units and name not in ours:
            add(
                "host.unit_foreign",
                "error",
                f"a unit {unit} exists that this collection did not make.",
                f"Remove or rename it (systemctl disable --now {unit}), or name the service otherwise.",
                name,
            )
        if container in containers and not containers[container].get("managed"):
            add(
                "host.container_foreign",
                "error",
                f"a container {container} exists that this collection did not make.",
                f"Remove or rename it (docker rm -f {container}), or name the service otherwise.",
                name,
            )
        # Ranks of a cluster but the first answer no requests, and neither does what is stopped.
        silent = service.get("rank") or service.get("state") == "stopped"
        holder = None if silent else listening.get(int(service["port"]))
        own_running = name in ours and units.get(unit, {}).get("active_state") in (
            "active",
            "activating",
            "deactivating",
            "reloading",
        )
        if holder and not own_running:
            who = holder.get("process") or "another program"
            add(
                "host.port_taken",
                "error",
                f"port {service['port']} is taken by {who} ({holder.get('address')}).",
                "Stop that program or give the service another port.",
                name,
            )


def _check_disk(facts: Mapping[str, Any], wants: Mapping[str, Any], add: Any) -> None:
    disk = (facts.get("disks") or {}).get(wants.get("hf_home") or "")
    need = float(wants.get("download_gib") or 0.0)
    if disk and need and disk["free_gib"] < need + DISK_MARGIN_GIB:
        add(
            "host.disk",
            "error",
            f"{wants['hf_home']} has {disk['free_gib']:.1f} GiB free, the weights still to be fetched take "
            f"{need:.1f} GiB and {DISK_MARGIN_GIB:.0f} GiB have to stay free.",
            "Make room there, or point spark_hf_home at a larger disk.",
        )
