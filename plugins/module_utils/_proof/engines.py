# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engines of a host took and what they run, against their plan; reads the host, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._common.findings import Finding
from .._host import gb10
from .._runtime import endpoint
from . import engine_logs, fast_path, residency

Run = Callable[[list[str]], "tuple[int, str, str]"]

SERVICE: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "unit": {"type": "str"},
    "container": {"type": "str"},
    "rank": {"type": "int", "default": 0},
    "cluster": {"type": "dict"},
    "memory": {"type": "dict", "default": {}},
    "fast_path": {"type": "dict", "default": {}},
    "probe": {"type": "dict", "default": {}},
}
"""What modules are told of a service that C(look) is asked about, as Ansible has arguments."""


def look(
    run: Run,
    asked: Sequence[Mapping[str, Any]],
    os_reserve_gib: float | None,
    timeout: float,
    root: str,
    run_dir: Path,
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Look at all engines of a host, as M(dgxspark.vllm.engine_info) does.

    :param run: runs docker and systemctl
    :param asked: C({name, unit, container, rank, cluster, memory, fast_path, probe}) of each service
    :param os_reserve_gib: what the plan keeps for everything else, GiB, None where it is not known
    :param timeout: seconds for each C(/metrics)
    :param root: where C(/proc) is read
    :param run_dir: where the helper of the units keeps its records
    :returns: the services by name, the term of everything else, and all findings
    """
    services = [
        {
            **service,
            "unit": service["unit"] or f"spark-{service['name']}.service",
            "container": service["container"] or f"spark-{service['name']}",
        }
        for service in asked
    ]
    active_since = engine_logs.read_units(run, [service["unit"] for service in services])
    containers = gb10.read_containers(run)
    gpu = gb10.read_gpu(run, root, containers)
    held = gpu_memory(gpu)

    results: dict[str, Any] = {}
    findings: list[Finding] = []
    uses: list[residency.HostUse] = []
    for service in services:
        names = engine_logs.containers_of(service, containers)
        lines, reason = engine_logs.read_logs(run, names, active_since.get(service["unit"]))
        if not names:
            reason = f"the container {engine_logs.main_container(service)} is not running"
        workers: list[str] = []
        if engine_logs.under_ray(service) and names:
            workers, missing = engine_logs.read_session(run_dir, service["name"])
            reason = reason or missing
        held_gib = [held[name] for name in names if name in held]
        use = read_record(run_dir, service["unit"], round(sum(held_gib), 2) if held_gib else None)
        counted, silent = read_metrics(service["probe"], timeout)
        memory, of_memory = compare_memory(service, lines, workers, use, reason, gpu)
        path, of_path = compare_path(service, workers + lines, counted, reason, silent)
        own = [*of_memory, *of_path]
        marks = {container["fingerprint"] for container in containers if container["name"] in names}
        if service.get("fingerprint") and marks != {service["fingerprint"]}:
            memory["start"] = None  # it runs from what an earlier plan said
        results[service["name"]] = {**memory, **path, "findings": [finding.to_dict() for finding in own]}
        findings += own
        uses.append(use)
    system, of_host = residency.compare_system(os_reserve_gib, uses)
    return results, asdict(system), [finding.to_dict() for finding in [*of_host, *findings]]


def compare_memory(
    service: dict[str, Any],
    lines: list[str],
    workers: list[str],
    use: residency.HostUse,
    reason: str,
    gpu: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Compare what a service took with its plan.

    :param service: C({name, memory, rank})
    :param lines: start-up lines of its engine
    :param workers: those that Ray's workers of this host wrote
    :param use: what the host says of it
    :param reason: why its log is not whole, or an empty text
    :param gpu: of C(gb10.read_gpu)
    :returns: C({terms, override, measured, start, log}), and findings
    """
    log = residency.parse_log(lines, workers)
    terms, findings = residency.compare(service["name"], service["memory"], log, use, service["rank"])
    if not log.complete(service["rank"]):
        reason = reason or "its log no longer has the lines of the start"
    for term in terms.values():
        if reason and term.verdict == "unknown" and term.reason == residency.NOT_SAID:
            term.reason = reason
    return {
        "terms": {name: asdict(term) for name, term in terms.items()},
        "override": residency.merged_override(terms),
        "measured": residency.figures(terms, log, use),
        "start": residency.start(service["memory"], terms, log, gpu),
        "log": log.to_dict(),
    }, findings


def compare_path(
    service: dict[str, Any], lines: list[str], counted: fast_path.Counted, reason: str, silent: str
) -> tuple[dict[str, Any], list[Finding]]:
    """Compare what a service runs with what was meant.

    :param service: C({name, fast_path, rank})
    :param lines: start-up lines of its engine
    :param counted: what it counted since
    :param reason: why its log is not whole, or an empty text
    :param silent: why nothing was counted, or an empty text
    :returns: C({checks, runs, counted, fast_path}), and findings
    """
    runs = fast_path.parse_log(lines)
    checks, findings = fast_path.compare(service["name"], service["fast_path"], runs, counted, service["rank"])
    for name, check in checks.items():
        if check.verdict == "unknown" and check.reason == fast_path.NOT_SAID and reason:
            check.reason = reason
        if check.verdict == "unknown" and name == "acceptance" and silent and not service["rank"]:
            check.reason = silent
    return {
        "checks": {name: asdict(check) for name, check in checks.items()},
        "runs": runs.to_dict(),
        "counted": counted.to_dict(),
        "fast_path": fast_path.record(checks, runs, counted, findings),
    }, findings


def gpu_memory(gpu: dict[str, Any] | None) -> dict[str, float]:
    """GPU memory of the processes of each container, GiB; without those that nvidia-smi says nothing of."""
    held: dict[str, float] = {}
    for process in (gpu or {}).get("processes", []):
        if process["container"] and process["used_mib"] is not None:
            held[process["container"]] = held.get(process["container"], 0.0) + process["used_mib"] / 1024
    return {name: round(gib, 2) for name, gib in held.items()}


def read_record(run_dir: Path, unit: str, gpu_gib: float | None) -> residency.HostUse:
    """Read what the helper of the units noted at the start of a unit.

    :param run_dir: where it keeps its records
    :param unit: name of the unit
    :param gpu_gib: GPU memory that the unit holds, GiB, None where it is not known
    :returns: what the start took of the host
    """
    try:
        record = json.loads((run_dir / "starts" / f"{unit}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return residency.read_start(None, gpu_gib)
    except (OSError, ValueError) as error:
        return residency.read_start(None, gpu_gib, f"the record of its start cannot be read: {error}")
    return residency.read_start(record, gpu_gib)


def read_metrics(probe: dict[str, Any], timeout: float) -> tuple[fast_path.Counted, str]:
    """What a service counts, or a reason why that is not known."""
    if not probe.get("url"):
        return fast_path.Counted(), "it answers no requests"
    try:
        key = endpoint.read_api_key(probe.get("api_key_file"))
        client = endpoint.Client(probe["url"], key, probe.get("api_key_file") or "")
        status, text = client.metrics(timeout)
    except endpoint.Problem as problem:
        return fast_path.Counted(), f"/metrics: {problem.message}"
    if status != 200:
        return fast_path.Counted(), f"/metrics answers HTTP {status}"
    return fast_path.parse_metrics(text), ""
