# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight: compare the facts of a host with the plan, and report every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .._common.findings import Finding
from .._common.reader import HOST, INTERFACE, Maybe
from .._common.reader import facts as facts_form
from .._host.known_bad import KEEPS_HANDOVER, against, keeps_handover, of_running
from . import on_demand
from .planned import PlannedService

DISK_MARGIN_GIB = 5.0
"""Free space that must be left after a download: logs, caches and the journal live on the same disk."""
EMPTY_GIB, FEW_BLOCKS = 32.0, 64
"""With as much free memory a host has hundreds of free pieces of 16 MiB; after days of serving 27 and 5 were seen, none larger."""
RUNNING_STATES = ("active", "activating", "deactivating", "reloading")
"""States of a unit that holds its port."""
_NETDEV = facts_form(
    {
        "name!": str,
        "up": bool,
        "mtu": int,
        "speed_mbps": int,
        "mac": str,
        "master": str,
        "function": int,
        "link_speed_gts": float,
        "link_width": int,
        "addresses": [INTERFACE],
        "rdma": facts_form(
            {
                "name!": str,
                "state": str,
                "physical_state": str,
                "rate_gbps": float,
                "gids": [facts_form({"type": str, "address!": str})],
            }
        ),
        "neighbours": [facts_form({"address!": str, "mac!": str})],
        "stored": [facts_form({"path!": str, "reader": str, "persistent!": bool, "alone!": bool, "managed": bool})],
    }
)
_PORT = facts_form({"cage!": int, "position": str, "up": bool, "mtu": int, "rate_gbps": float, "netdevs!": [_NETDEV]})
_FABRIC = facts_form(
    {
        "connectx": bool,
        "pci_functions": [str],
        "ports": [_PORT],
        "networks": {str: [INTERFACE]},
        "mtus": {str: int},
        "relay": bool,
    }
)
_GIB = ("total_gib", "available_gib", "free_gib", "cma_total_gib", "cma_free_gib")
_MEASURED = facts_form(
    {
        "machine": facts_form({"is_spark": bool, "bios_version": str, "product_name": str}),
        "kernel": str,
        "dgx_os": facts_form({"version": str}),
        "architecture": str,
        "gpu": facts_form({"name": str, "driver_version": str, "cuda_version": str, "processes": [{}]}),
        "memory": facts_form({**dict.fromkeys(_GIB, float), "large_blocks": int}),
        "docker": facts_form({"version": str, "runtimes": [str]}),
        "containers": [facts_form({"name!": str, "service": str, "state": str, "fingerprint": str, "managed": bool})],
        "units": [facts_form({"name!": str, "active_state!": str})],
        "services": [str],
        "listening": [facts_form({"port!": int, "address!": str, "process": str, "unit": str, "container": str})],
        "resident": [{"name": str, "gib": float}],
        "models": [str],
        "snapshots": {str: facts_form({"commits": [str], "refs": {str: str}, "selected": [str]})},
        "hf_home": facts_form({"owner": str, "closed": {str: [str]}}),
        "unknown": {str: str},
        "firewall": bool,
        "nft": bool,
        "power": facts_form({"cx7_hotplug": bool, "cx7_cable": bool, "governors": [str]}),
        "disks": {str: facts_form({"free_gib!": float, "total_gib": float, "exists": bool})},
        "management_address": HOST,
        "fabric": _FABRIC,
    }
)
_PROBE = facts_form(
    {
        "vllm_version": str,
        "cuda": str,
        "packages": {str: str},
        "ray": str,
        "names": [str],
        "options": [str],
        "ptxas": {str: str},
        "nccl": facts_form({"library": str, "version": str}),
        "caches": {str: str},
    }
)
_IMAGE = facts_form(
    {
        "present": bool,
        "id": str,
        "other_id": str,
        "repo_digests": [str],
        "vllm_version": str,
        "architecture": str,
        "os": str,
        "size_gib": float,
        "entrypoint_family": str,
        "entrypoint": [str],
        "env": {},
        "probe": _PROBE,
    }
)
ANSWERS: dict[str, Any] = {
    "measured": Maybe(_MEASURED),
    "images": Maybe({str: _IMAGE}),
    "fabric": Maybe(facts_form({"hosts": {str: {}}, "findings": [{}]})),
}
"""Fields of a host's answers that the plan reads: C(spark) and C(images) of C(spark_info), and the role fabric's."""


_measured = partial(Finding, basis="measured")


def check_host(facts: Mapping[str, Any], services: Sequence[PlannedService], wants: Mapping[str, Any]) -> list[Finding]:
    """Compare a host's facts, C(spark) of M(dgxspark.vllm.spark_info), with the needs of its plan.

    wants: uses_gpu (bool), hf_home (path), download_gib (GiB still to be fetched), repos (models that are served), kv_tiers.
    """
    return [
        *_check_docker_and_gpu(facts, wants),
        *_check_machine(facts, services),
        *_check_names_and_ports(facts, services),
        *_check_disk(facts, wants),
        *_check_weights(facts, wants),
    ]


def _check_docker_and_gpu(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> Iterator[Finding]:
    docker = facts.get("docker") or {}
    unknown = facts.get("unknown") or {}  # see not_known
    if not docker.get("version") and "docker" not in unknown:
        fix = "Start it (systemctl enable --now docker). DGX OS ships it; elsewhere install docker.io or docker-ce."
        yield _measured("host.docker", "error", "no Docker engine answers on this host.", fix)
    elif wants.get("uses_gpu") and "nvidia" not in (docker.get("runtimes") or []) and "docker" not in unknown:
        message = "Docker has no 'nvidia' runtime, so --gpus cannot work."
        fix = "Install nvidia-container-toolkit and run: nvidia-ctk runtime configure --runtime=docker; systemctl restart docker."
        yield _measured("host.nvidia_runtime", "error", message, fix)
    message = "nvidia-smi shows no GPU on this host."
    fix = (
        "Check the driver (nvidia-smi; dmesg | grep NVRM). After a driver update a reboot, or the firmware of the "
        "same DGX OS release, is needed."
    )
    if not (facts.get("machine") or {}).get("is_spark"):
        message = "this host does not look like a DGX Spark (GB10), and nvidia-smi shows no GPU on it."
        fix = (
            "Correct ansible_host, or remove the host from the group 'sparks'. If it is a Spark, check its driver (nvidia-smi; dmesg | grep "
            "NVRM)."
        )
    if not facts.get("gpu") and "nvidia-smi" not in unknown:
        yield _measured("host.gpu", "error", message, fix)


def _check_machine(facts: Mapping[str, Any], services: Sequence[PlannedService]) -> Iterator[Finding]:
    running = of_running(facts)
    machine, memory = facts.get("machine") or {}, facts.get("memory") or {}
    for row in against(running):
        rule = {"branch": "host.driver", "kernel": "host.kernel", "pair": "host.driver_pair"}[row.subject]
        yield _measured(rule, "warning", f"{row.of(running)}: {row.why}.", row.fix, source=row.source)
    if keeps_handover(memory):
        severity = "error" if any(service.cluster for service in services) else "warning"
        message = (
            f"kernel {running['kernel']}: {KEEPS_HANDOVER.why}, and that memory is missing (CmaFree is above CmaTotal "
            "in /proc/meminfo)."
        )
        yield _measured("host.kernel_handover", severity, message, KEEPS_HANDOVER.fix, source=KEEPS_HANDOVER.source)
    free, blocks = memory.get("free_gib") or 0.0, memory.get("large_blocks")
    if blocks is not None and blocks < FEW_BLOCKS and free > EMPTY_GIB:
        yield _measured(
            "host.fragmented",
            "warning",
            f"{free:.0f} GiB of memory are free, with {blocks} pieces of 16 MiB in a row; loading weights was "
            "reported to be slow or to fail (NVRM 0x51) then.",
            "Reboot the host before an engine is started; dropping caches and compacting did not help.",
            source="FujitsuPolycom/sparkring#173; MiaAI-Lab/DeepSeek-v4.1#23; kits for GLM-5.3",
        )
    # A host without a GPU has its own finding.
    if facts.get("gpu") and not machine.get("is_spark") and "nvidia-smi" not in (facts.get("unknown") or {}):
        message = "this host does not look like a DGX Spark (GB10)."
        fix = "The plan's figures are for a Spark; remove the host from the group 'sparks' if it is not one."
        yield _measured("host.machine", "warning", message, fix)


def _check_weights(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> Iterator[Finding]:
    seen, home = facts.get("hf_home") or {}, wants.get("hf_home")
    closed = seen.get("closed") or {}
    paths = [path for name in ("", *(wants.get("repos") or [])) for path in closed.get(name) or []]
    if paths:
        message = (
            f"spark_hf_home is {home}, of {seen.get('owner')}, and engines may not read {', '.join(paths[:3])} there: "
            "they run as root without the right to override modes. The folder is never changed automatically."
        )
        fix = (
            f"On the host, as its owner or root: setfacl -R -m u:0:rX {home} && find {home} -type d -exec setfacl -m "
            f"d:u:0:rX {{}} + (package acl); or chmod -R o+rX {home}, which lets everybody on the host read it. Or set "
            "another folder in spark_hf_home."
        )
        yield _measured("host.weights_closed", "error", message, fix)


def check_alike(measured: Mapping[str, Mapping[str, Any] | None]) -> Iterator[Finding]:
    """Warn of hosts of one cluster with different kernels or drivers. measured: facts of each host, see C(check_host)."""
    for noun, versions in (
        ("kernel", {host: (facts or {}).get("kernel") for host, facts in measured.items()}),
        ("driver", {host: ((facts or {}).get("gpu") or {}).get("driver_version") for host, facts in measured.items()}),
    ):
        by_version: dict[str, list[str]] = {}
        for host, version in versions.items():
            if version:
                by_version.setdefault(str(version), []).append(host)
        if len(by_version) > 1:
            who = "; ".join(f"{version} on {', '.join(hosts)}" for version, hosts in sorted(by_version.items()))
            yield _measured(
                "cluster.hosts_differ",
                "warning",
                f"the hosts run different {noun}s: {who}. In one report, one differing host of eight changed the "
                "results of every run that it led; a differing pair worked.",
                "Bring all hosts of the cluster to one DGX OS release: update_host.yml.",
                source="ledger of benchmarks of a pair, 2026-09-23; script that mended eight Sparks",
            )


def check_nft(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for a host whose ports cannot be closed. facts: see C(check_host); empty if unknown."""
    if facts.get("nft") is False:
        message = "the program nft is missing, which the firewall of the engines needs."
        fix = "Install it (apt install nftables; DGX OS has it in its archive), or set spark_firewall: false."
        yield _measured("host.nft", "error", message, fix)


def not_known(facts: Mapping[str, Any], services: Sequence[PlannedService]) -> Iterator[Finding]:
    """Yield findings about programs of a host without an answer, whose facts count as not measured.

    It is an error if the running service of an exclusive set is unknown: the plan would have another one started.
    """
    sets = [service.name for service in services if service.exclusive]
    for program, why in sorted((facts.get("unknown") or {}).items()):
        needed = program == "systemctl" and sets
        effect = f"which of {', '.join(sets)} runs is not known" if needed else "its facts count as not measured"
        fix = "Find out why the program does not answer (uptime, journalctl --boot, systemctl status docker), and run again."
        yield _measured("host.not_known", "error" if needed else "warning", f"{why}; {effect}.", fix)


def _check_names_and_ports(facts: Mapping[str, Any], services: Sequence[PlannedService]) -> Iterator[Finding]:
    ours = set(map(str, facts.get("services") or []))
    units: dict[str, Mapping[str, Any]]
    containers: dict[str, Mapping[str, Any]]
    units, containers = ({row["name"]: row for row in facts.get(key) or []} for key in ("units", "containers"))
    listening: dict[int, dict[str, Any]] = {int(entry["port"]): entry for entry in facts.get("listening") or []}
    leaving = {f"spark-{name}" for name in ours - {service.name for service in services}}
    for service in services:
        is_ours = service.name in ours
        yield from _check_names(service, is_ours, units, containers)
        holder = listening.get(service.port) if _needs_port(service, is_ours, units) else None
        # Services that this run removes are removed before anything starts.
        if holder and str(holder.get("container")) not in leaving:
            who = holder.get("process") or "another program"
            message = f"port {service.port} is taken by {who} ({holder.get('address')})."
            fix = "Stop that program or give the service another port."
            yield _measured("host.port_taken", "error", message, fix, service.name)


def _check_names(
    service: PlannedService, is_ours: bool, units: Mapping[str, Any], containers: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    if service.unit in units and not is_ours:
        message = f"a unit {service.unit} exists that this collection did not create."
        fix = f"Remove or rename it (systemctl disable --now {service.unit}), or rename the service."
        yield _measured("host.unit_foreign", "error", message, fix, service.name)
    container = containers.get(service.container)
    if container and not container.get("managed"):
        message = f"a container {service.container} exists that this collection did not create."
        fix = f"Remove or rename it (docker rm -f {service.container}), or rename the service."
        yield _measured("host.container_foreign", "error", message, fix, service.name)


def _needs_port(service: PlannedService, is_ours: bool, units: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether a service needs its port free."""
    running = is_ours and units.get(service.unit, {}).get("active_state") in RUNNING_STATES
    # Only the first rank of a cluster answers requests, and a stopped service answers none.
    is_silent = service.rank or service.state == "stopped"
    # The socket holds the port of a service that is started on demand, or was until now.
    has_socket = is_ours and on_demand.UNIT in units
    return not (running or is_silent or has_socket)


def _check_disk(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> Iterator[Finding]:
    disk = (facts.get("disks") or {}).get(wants.get("hf_home") or "")
    need = float(wants.get("download_gib") or 0.0)
    if disk and need and disk["free_gib"] < need + DISK_MARGIN_GIB:
        message = (
            f"{wants['hf_home']} has {disk['free_gib']:.1f} GiB free; the weights to download take {need:.1f} GiB and "
            f"{DISK_MARGIN_GIB:.0f} GiB must stay free."
        )
        yield _measured("host.disk", "error", message, "Free disk space there, or set spark_hf_home to a larger disk.")
    for tiers in wants.get("kv_tiers") or ():
        disk = (facts.get("disks") or {}).get(tiers.folder) or {}
        # Files of an earlier run may be in the folder; then the free space says nothing.
        room, free = (disk.get("total_gib"), "") if disk.get("exists") else (disk.get("free_gib"), " free")
        if room is not None and room < tiers.disk_gib + DISK_MARGIN_GIB:
            message = (
                f"the disk of {tiers.folder} has {room:.1f} GiB{free}; kv_tiers.disk_gib is {tiers.disk_gib:g}, and {DISK_MARGIN_GIB:.0f} GiB "
                "must stay free."
            )
            fix = "Make kv_tiers.disk_gib smaller, free disk space, or set kv_tiers.path to a larger disk."
            yield _measured("host.disk", "error", message, fix)
