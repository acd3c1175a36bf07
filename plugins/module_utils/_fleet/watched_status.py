# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the status of a fleet from the fleet monitor's checks, engines' metrics and the exporters of the Sparks. Pure functions.

The result has the form of C(fleet_status.report), so both share one page. A Spark without exporters has no memory and no units here; a
service that the monitor does not check is judged by its unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Optional
from urllib.parse import urlsplit

from .._common import tables
from .._common.sizes import GIB
from .._runtime import metrics
from . import fleet_status, status_rows
from .status_page import Endpoint

READ = ("dgxspark_", "node_time_seconds")
"""Prefixes of the metrics that are read."""
NO_EXPORTERS = "the monitor reads no exporters of this host; set spark_exporters for it"
NO_COLLECTOR = "its exporter has no figures of the collector; see systemctl status spark-agent there"
STALE_ROUNDS, STALE_SECONDS = 5, 60.0
"""Missing rounds of the collector, and further seconds, after which its figures are old; as in the alert SparkCollectorStale."""
SERVICE_KEYS = ("name", "unit", "recipe", "rank", "cluster", "state", "exclusive", "url", "vllm_version")

Samples = Mapping[str, Sequence[tuple[dict[str, str], float]]]
Exporter = tuple[Optional[str], str]
"""The text of an exporter, None without an answer, and the reason for that."""
Check = Mapping[str, Any]
"""C({url, ok, error, hint, completion}) of an endpoint."""


def planned(plan: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the fields of a plan for the page, without arguments, environments and paths of services.

    :param plan: C(hosts) of M(dgxspark.vllm.plan)
    """
    return {
        host: {
            "total_gib": body["total_gib"],
            "memory_map": [dict(part) for part in body["memory_map"]],
            "findings": [
                {key: finding[key] for key in ("rule", "severity", "service", "message", "fix") if key in finding}
                for finding in body["findings"]
                if finding["severity"] != "info"
            ],
            "services": [_planned_service(service) for service in body["services"]],
        }
        for host, body in plan.items()
    }


def _planned_service(service: Mapping[str, Any]) -> dict[str, Any]:
    cluster = service.get("cluster") or {}
    return {
        **{key: service[key] for key in SERVICE_KEYS if service.get(key) is not None},
        "cluster": {key: cluster[key] for key in ("name", "size", "executor") if key in cluster} or None,
        "model": {"repo": service["model"].get("repo")},
        "memory": {"residency_gib": {"typical": (service["memory"].get("residency_gib") or {}).get("typical")}},
    }


def rate(before: Any, at: float, count: float | None) -> float | None:
    """Return tokens a second since the run before; None if unknown, as after a restart of the engine.

    :param before: C([seconds since 1970, tokens]) of the monitor's file, unchecked
    :param at: seconds since 1970
    :param count: generated tokens since the start of the engine
    """
    if count is None or not isinstance(before, (list, tuple)) or len(before) != 2:
        return None
    before_at, before_count = before
    if not all(isinstance(value, (int, float)) for value in before) or at <= before_at or count < before_count:
        return None
    return float((count - before_count) / (at - before_at))


def report(
    plans: Mapping[str, Mapping[str, Any]],
    checks: Mapping[str, Check],
    figures: Mapping[str, Mapping[str, Any]],
    exporters: Mapping[str, Exporter],
    now: float,
) -> tuple[fleet_status.Status, list[Endpoint]]:
    """Return the status in the form of C(fleet_status.report), and the other checked endpoints.

    :param plans: of C(planned), by host
    :param checks: of endpoints, by key
    :param figures: of engines' metrics with C(tokens_per_second), by key
    :param exporters: by Spark
    :param now: seconds since 1970
    """
    rows: list[status_rows.Row] = []
    hosts: dict[str, fleet_status.HostState] = {}
    engines: set[str] = set()
    for host, body in plans.items():
        services = body["services"]
        engines |= {key(host, service) for service in services}
        exporter = exporters.get(host, (None, NO_EXPORTERS))
        try:
            of_host, hosts[host] = _judge(host, services, exporter, checks, figures, now)
        except Exception as error:  # malformed figures of one host must not hide the others
            exporter = None, f"its figures cannot be read: {error!r}"
            of_host, hosts[host] = _judge(host, services, exporter, checks, {}, now)
        rows += of_host
    at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds")
    endpoints = [_endpoint(name, check) for name, check in checks.items() if name not in engines]
    return fleet_status.report(rows, hosts, at), endpoints


def _endpoint(name: str, check: Check) -> Endpoint:
    texts = {field: str(check.get(field) or "") for field in ("error", "hint", "note")}
    return Endpoint(name, urlsplit(str(check["url"])).netloc, bool(check["ok"]), **texts)


def key(host: str, service: Mapping[str, Any]) -> str:
    """Return the key of a service: its name in the fleet."""
    return f"{(service.get('cluster') or {}).get('name') or host}/{service['name']}"


class _Host:
    """The figures of one Spark's exporter, in the form of M(dgxspark.vllm.spark_info). known: it has figures of the collector; fresh: recent ones."""

    def __init__(self, samples: Samples, now: float) -> None:
        self.samples = samples
        self.known = "dgxspark_collector_last_run_timestamp_seconds" in samples
        # The clock of the host may differ from the monitor's.
        self.now = self.sample("node_time_seconds") or now
        interval = self.sample("dgxspark_collector_interval_seconds") or 0.0
        self.fresh = self.known and self.age() <= STALE_ROUNDS * interval + STALE_SECONDS

    def sample(self, name: str, **labels: str) -> float | None:
        """Return the sample with some labels."""
        for sample_labels, value in self.samples.get(name) or ():
            if all(sample_labels.get(label) == text for label, text in labels.items()):
                return value
        return None

    def age(self) -> float:
        """Return the seconds since the collector's last run."""
        return self.now - (self.sample("dgxspark_collector_last_run_timestamp_seconds") or 0)

    def gib(self, name: str) -> float | None:
        value = self.sample(name)
        return None if value is None else value / GIB

    def unit(self, name: str) -> dict[str, Any]:
        """Return a unit; without figures its state is unknown."""
        active = self.sample("dgxspark_unit_active", unit=name) if self.fresh else None
        state = status_rows.NOT_KNOWN if active is None else "active" if active else "inactive"
        if state == "inactive" and self.sample("dgxspark_unit_starting", unit=name):
            state = "activating"
        if state == "inactive" and self.sample("dgxspark_unit_failed", unit=name):
            state = "failed"
        restarts = self.sample("dgxspark_unit_restarts_total", unit=name)
        return {
            "name": name,
            "active_state": state,
            "n_restarts": None if restarts is None else int(restarts),
            "active_seconds": self.sample("dgxspark_unit_active_seconds", unit=name),
        }

    def resident(self) -> list[dict[str, Any]]:
        """Return the GPU memory of services."""
        held: dict[str, float] = {}
        for labels, value in self.samples.get("dgxspark_gpu_memory_bytes") or ():
            name = labels.get("service") or ""
            held[name] = held.get(name, 0.0) + value / GIB
        return [{"name": name, "gib": size} for name, size in held.items() if name]

    def measured(self, services: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the facts of the host, with the units of some services."""
        memory = {
            "total_gib": self.gib("dgxspark_memory_total_bytes"),
            "available_gib": self.gib("dgxspark_memory_available_bytes"),
        }
        return {
            "units": [self.unit(str(service["unit"])) for service in services],
            "memory": memory if self.fresh else {},
            "quality": self.degenerate() if self.fresh else {},
            "resident": self.resident() if self.fresh else [],
        }

    def degenerate(self) -> dict[str, dict[str, Any]]:
        """Return the services whose answers degenerate, as C(quality) of M(dgxspark.vllm.spark_info)."""
        samples = self.samples.get("dgxspark_quality_state") or ()
        text = "doctor.yml has the evidence"
        return {
            labels.get("service", ""): {"state": "degenerate", "text": text}
            for labels, value in samples
            if value and labels.get("state") == "degenerate"
        }

    def notes(self) -> list[str]:
        """Return notes about collector and memory guard."""
        if self.known and not self.fresh:
            return [f"its collector has written no metrics for {tables.uptime(self.age())}"]
        levels = [level for level in ("short", "critical") if self.sample("dgxspark_guard_level", level=level)]
        samples = self.samples.get("dgxspark_guard_stopped") or ()
        stopped = [labels.get("service", "") for labels, value in samples if value]
        return [
            *(f"the guard finds memory {level}" for level in levels),
            *(f"the guard of the memory stopped {name}" for name in stopped),
        ]

    def proof(self, service: str) -> dict[str, Any]:
        """Return the figures of a service's receipt and benchmark."""
        at = self.sample("dgxspark_receipt_timestamp_seconds", service=service)
        return {
            "decode_tokens_per_second": self.sample("dgxspark_benchmark_decode_tokens_per_second", service=service),
            "decode_ratio": self.sample("dgxspark_benchmark_ratio", service=service),
            "proved": None if at is None else _day(at),
            "proved_rate": self.sample("dgxspark_receipt_measured", service=service, figure="decode_tokens_per_second"),
        }


def _day(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return None


def _rows_of(
    host: str,
    services: Sequence[Mapping[str, Any]],
    spark: _Host,
    checks: Mapping[str, Check],
    figures: Mapping[str, Mapping[str, Any]],
) -> tuple[list[status_rows.Row], dict[str, Any]]:
    """Return the rows of a host, and its facts. checks, figures: of its engines, by key."""
    measured = spark.measured(services)
    units = {unit["name"]: unit for unit in measured["units"]}
    answers = []
    for service in services:
        name, unit = key(host, service), units[service["unit"]]
        is_answering = (checks.get(name) or {}).get("ok")
        if unit["active_state"] == status_rows.NOT_KNOWN and service.get("rank") and is_answering:
            unit["active_state"] = "active"  # a model only answers with all of its ranks
        answers.append(_answer(service, unit["active_state"], checks.get(name), figures.get(name) or {}, spark))
    rows = status_rows.status_rows(host, {"services": services}, measured, answers)
    for row, answer in zip(rows, answers):
        row.watched = status_rows.Watched(answer["tokens_per_second"], answer["proved"], answer["proved_rate"])
    return rows, measured


def _judge(
    host: str,
    services: Sequence[Mapping[str, Any]],
    exporter: Exporter,
    checks: Mapping[str, Check],
    figures: Mapping[str, Mapping[str, Any]],
    now: float,
) -> tuple[list[status_rows.Row], fleet_status.HostState]:
    """Return the rows of a host, and its state."""
    text, why = exporter
    spark = _Host(metrics.labelled(text or "", READ), now)
    why = NO_COLLECTOR if text is not None and not spark.known else why
    rows, measured = _rows_of(host, services, spark, checks, figures)
    is_chosen = why in (NO_EXPORTERS, NO_COLLECTOR)
    if not spark.known and not is_chosen and not _is_answering(host, services, checks):
        return rows, fleet_status.HostState("unreachable", why or "it was not asked")
    state = fleet_status.judge_facts(measured)
    # A host without exporters is the owner's choice and gets no note; the page names the reason in place of its memory.
    missing = [] if spark.known or why == NO_EXPORTERS else [why]
    notes = [*state.notes, *missing, *spark.notes()]
    reason = "" if spark.fresh else why or "its collector has stopped"
    return rows, replace(state, notes=notes, state="warning" if notes else "healthy", why=reason)


def _is_answering(host: str, services: Sequence[Mapping[str, Any]], checks: Mapping[str, Check]) -> bool:
    """Tell whether a first rank on the host has answered."""
    return any((checks.get(key(host, service)) or {}).get("ok") for service in services if not service.get("rank"))


def _answer(
    service: Mapping[str, Any],
    unit: str,
    check: Check | None,
    figures: Mapping[str, Any],
    spark: _Host,
) -> dict[str, Any]:
    """Return the entry of M(dgxspark.vllm.spark_info) for a service. unit: its state; check: None without one."""
    blank = {name: None for name in (*metrics.GAUGES, "tokens_per_second", "fast_path")}
    answer = {
        "name": service["name"],
        **blank,
        **({} if service.get("rank") else figures),
        **spark.proof(service["name"]),
    }
    if check is None:
        # A unit becomes active with the first answer of the model.
        return {**answer, "ready": unit == "active", "stage": "unit", "error": ""}
    if service.get("state") == "on_demand" and unit in ("inactive", "deactivating"):
        return {**answer, "ready": False, "stage": "unit", "error": ""}  # its socket answered
    stage = "completion" if check.get("completion") is not None else "models"
    return {**answer, "ready": bool(check["ok"]), "stage": stage, "error": str(check["error"])}
