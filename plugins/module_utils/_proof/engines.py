# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engines of a host took and what they run, against their plan; reads the host, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from .._cluster import ray_names
from .._common.findings import Finding
from .._common.foreign_text import parse_json
from .._host.host_view import HostView, Request
from .._runtime import engine_client
from . import engine_logs, fast_path, residency, service_arguments

Self = TypeVar("Self", bound="Engine")


@dataclass(frozen=True)
class Engine:
    """A service whose engine is examined. url, api_key_file: of its C(/metrics). memory, fast_path: the expectations of its plan.

    cluster: None for a service of this host alone. fingerprint: of the plan of its containers, None if it is not compared.
    """

    name: str
    unit: str
    container: str
    rank: int
    cluster: Mapping[str, Any] | None
    memory: Mapping[str, Any]
    fast_path: Mapping[str, Any]
    metrics_url: str | None
    api_key_file: str | None
    fingerprint: str | None

    @classmethod
    def read(cls: type[Self], params: Mapping[str, Any]) -> Self:
        """Return a service of C(service_arguments.complete)."""
        probe = params["probe"]
        more = {**params, "metrics_url": probe.get("url"), "api_key_file": probe.get("api_key_file")}
        values: dict[str, Any] = {field.name: more.get(field.name) for field in fields(cls)}
        return cls(**values)

    @property
    def under_ray(self) -> bool:
        """Whether its ranks work in containers of Ray."""
        return (self.cluster or {}).get("executor") == "ray"


@dataclass(frozen=True)
class Looked:
    """Memory and kernels of an engine, compared with its plan; C(to_dict) is one of C(engines.services) of M(dgxspark.vllm.spark_info).

    record: what a receipt keeps of the fast path. start: the measured start for a receipt, None if it is unknown.
    """

    terms: Mapping[str, residency.Term]
    measured: Mapping[str, Any]
    start: Mapping[str, Any] | None
    log: residency.StartLog
    checks: Mapping[str, fast_path.Check]
    runs: fast_path.Running
    counted: fast_path.Counted
    record: Mapping[str, Any]
    findings: Sequence[Finding]

    def to_dict(self) -> dict[str, Any]:
        """Return it as the module does."""
        return {
            "terms": {name: asdict(term) for name, term in self.terms.items()},
            "override": residency.merged_override(self.terms),
            "measured": self.measured,
            "start": self.start,
            "log": asdict(self.log),
            "checks": {name: asdict(check) for name, check in self.checks.items()},
            "runs": asdict(self.runs),
            "counted": asdict(self.counted),
            "fast_path": self.record,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def section(view: HostView, request: Request) -> dict[str, Any]:
    """Return the section C(engines) of M(dgxspark.vllm.spark_info); errors and warnings among its findings become warnings of the task."""
    params = request.params
    services = [Engine.read(service) for service in service_arguments.complete(params["services"])]
    looked, system, findings = look(
        view, services, params["os_reserve_gib"], params["timeout"], Path(params["run_dir"])
    )
    request.warnings += [f"{finding.message} {finding.fix}" for finding in findings if finding.severity != "info"]
    return {
        "services": {name: engine.to_dict() for name, engine in looked.items()},
        "system": asdict(system),
        "findings": [finding.to_dict() for finding in findings],
    }


def look(
    view: HostView, services: Sequence[Engine], os_reserve_gib: float | None, timeout: float, run_dir: Path
) -> tuple[dict[str, Looked], residency.Term, list[Finding]]:
    """Compare all engines of a host with their plan.

    :param os_reserve_gib: reserve of the plan for everything but services, None if unknown
    :param timeout: seconds for each C(/metrics)
    :returns: the services by name, the term of everything else, and all findings, of the host and then of each service
    """
    active_since = engine_logs.read_units(view, [service.unit for service in services])
    containers = view.containers()
    gpu = view.gpu(containers)
    results: dict[str, Looked] = {}
    uses: list[residency.HostUse] = []
    for service in services:
        names = engine_logs.containers_of(service.name, service.container, containers)
        lines, reason = engine_logs.read_logs(view, names, active_since.get(service.unit))
        if not names:
            works_in_ray = service.under_ray and service.rank
            container = ray_names.container_name(service.container) if works_in_ray else service.container
            reason = f"the container {container} is not running"
        workers: list[str] = []
        if service.under_ray and names:
            workers, missing = engine_logs.read_session(run_dir, service.name)
            reason = reason or missing
        use = read_record(run_dir, service.unit, _held_gib(gpu, names))
        counted, silent = read_metrics(service, timeout)
        log, terms, of_memory = compare_memory(service, lines, workers, use, reason)
        runs, checks, of_path = compare_path(service, workers + lines, counted, reason, silent)
        marks = {container["fingerprint"] for container in containers if container["name"] in names}
        other = service.fingerprint and marks != {service.fingerprint}  # started by an earlier plan
        results[service.name] = Looked(
            terms=terms,
            measured=residency.figures(terms, log, use),
            start=None if other else residency.start(service.memory, terms, log, gpu),
            log=log,
            checks=checks,
            runs=runs,
            counted=counted,
            record=fast_path.record(checks, runs, counted, of_path),
            findings=[*of_memory, *of_path],
        )
        uses.append(use)
    system, of_host = residency.compare_system(os_reserve_gib, uses)
    return results, system, [*of_host, *(finding for looked in results.values() for finding in looked.findings)]


def _held_gib(gpu: Mapping[str, Any] | None, containers: Sequence[str]) -> float | None:
    """Return the GPU memory of the processes of containers, GiB; None without a figure from nvidia-smi."""
    processes = [process for process in (gpu or {}).get("processes", []) if process["container"] in containers]
    sizes = [process["used_mib"] for process in processes if process["used_mib"] is not None]
    return round(sum(sizes) / 1024, 2) if sizes else None


def compare_memory(
    service: Engine, lines: list[str], workers: list[str], use: residency.HostUse, reason: str
) -> tuple[residency.StartLog, dict[str, residency.Term], list[Finding]]:
    """Compare what a service took with its plan. workers: lines of Ray's workers of this host. reason: why its log is not whole, or empty."""
    log = residency.parse_log(lines, workers)
    terms, findings = residency.compare(service.name, service.memory, log, use, service.rank)
    if not log.complete(service.rank):
        reason = reason or "its log no longer has the lines of the start"
    for term in terms.values():
        if reason and term.verdict == "unknown" and term.reason == residency.NOT_SAID:
            term.reason = reason
    return log, terms, findings


def compare_path(
    service: Engine, lines: list[str], counted: fast_path.Counted, reason: str, silent: str
) -> tuple[fast_path.Running, dict[str, fast_path.Check], list[Finding]]:
    """Compare the kernels, graphs and drafts of a service with the expected ones.

    reason: why its log is not whole, silent: why nothing was counted, or empty texts.
    """
    runs = fast_path.parse_log(lines)
    checks, findings = fast_path.compare(service.name, service.fast_path, runs, counted, service.rank)
    for name, check in checks.items():
        if check.verdict == "unknown" and check.reason == fast_path.NOT_SAID and reason:
            check.reason = reason
        if check.verdict == "unknown" and name == "acceptance" and silent and not service.rank:
            check.reason = silent
    return runs, checks, findings


def read_record(run_dir: Path, unit: str, gpu_gib: float | None) -> residency.HostUse:
    """Read what the helper of the units noted at the start of a unit. gpu_gib: GPU memory that the unit holds, None if unknown."""
    try:
        record = parse_json((run_dir / "starts" / f"{unit}.json").read_text(encoding="utf-8"), f"{unit}.json")
    except FileNotFoundError:
        return residency.read_start(None, gpu_gib)
    except (OSError, ValueError) as error:
        return residency.read_start(None, gpu_gib, f"the record of its start cannot be read: {error}")
    return residency.read_start(record, gpu_gib)


def read_metrics(service: Engine, timeout: float) -> tuple[fast_path.Counted, str]:
    """Return the counters of a service, and the reason if they could not be read."""
    if not service.metrics_url:
        return fast_path.Counted(), "it answers no requests"
    try:
        key = engine_client.read_api_key(service.api_key_file)
        client = engine_client.Client(service.metrics_url, key, service.api_key_file or "")
        status, text = client.metrics(timeout)
    except engine_client.Problem as problem:
        return fast_path.Counted(), f"/metrics: {problem.message}"
    if status != 200:
        return fast_path.Counted(), f"/metrics answers HTTP {status}"
    return fast_path.parse_metrics(text), ""
