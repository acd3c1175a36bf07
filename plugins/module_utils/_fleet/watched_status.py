# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status of a fleet as the fleet monitor knows it: by its checks, engines' metrics and the exporters of the Sparks. Pure functions.

What it makes is what C(fleet_status.report) makes of what hosts say over ssh, so both have one page. What nobody told is not known:
a Spark without exporters has no memory and no units here, a service that the monitor may not ask is judged by its unit alone.
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
"""How the names of metrics begin that are read."""
NO_EXPORTERS = "the monitor reads no exporters of this host; set spark_exporters for it"
NO_COLLECTOR = "its exporter has no figures of the collector; see systemctl status spark-agent there"
STALE_ROUNDS, STALE_SECONDS = 5, 60.0
"""Rounds of the collector that may be missing before its figures count as old, and seconds beside; as SparkCollectorStale has them."""
SERVICE_KEYS = ("name", "unit", "recipe", "rank", "cluster", "state", "exclusive")

Samples = Mapping[str, Sequence[tuple[dict[str, str], float]]]
Exporter = tuple[Optional[str], str]
"""What an exporter said, None where it did not answer, and why it did not."""


def planned(plan: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return of a plan what the page shows of it; no argument, environment or path of a service is among it.

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
    """Return tokens a second since the run before; None where it is not known, as after a restart of the engine.

    :param before: C([seconds since 1970, tokens]) as the monitor keeps it, whatever its file has
    :param at: seconds since 1970
    :param count: tokens that the engine has made since its start
    """
    if count is None or not isinstance(before, (list, tuple)) or len(before) != 2:
        return None
    then, counted = before
    if not all(isinstance(each, (int, float)) for each in (then, counted)) or at <= then or count < counted:
        return None
    return float((count - counted) / (at - then))


def report(
    plans: Mapping[str, Mapping[str, Any]],
    checks: Mapping[str, Mapping[str, Any]],
    figures: Mapping[str, Mapping[str, Any]],
    exporters: Mapping[str, Exporter],
    now: float,
) -> tuple[fleet_status.Status, list[Endpoint]]:
    """Return the status as C(fleet_status.report) makes it, and the checks of what is no engine of the plan.

    :param plans: of C(planned), by host
    :param checks: key of each endpoint to C({url, ok, error, hint, completion})
    :param figures: key of an engine to those of its metrics, with C(tokens_per_second)
    :param exporters: Spark to what its exporter said
    :param now: seconds since 1970
    """
    rows: list[status_rows.Row] = []
    hosts: dict[str, fleet_status.HostState] = {}
    engines: set[str] = set()
    for host, body in plans.items():
        keys = {service["name"]: key(host, service) for service in body["services"]}
        engines |= set(keys.values())
        said, why = exporters.get(host, (None, NO_EXPORTERS))
        try:
            own, hosts[host] = _of_host(host, body, keys, checks, figures, said, why, now)
        except Exception as error:  # whatever an exporter says: the other hosts are judged
            own, hosts[host] = _of_host(
                host, body, keys, checks, {}, None, f"its figures cannot be read: {error!r}", now
            )
        rows += own
    moment = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds")
    found = fleet_status.report(rows, hosts, moment)
    return found, [_other(name, check) for name, check in checks.items() if name not in engines]


def _other(name: str, check: Mapping[str, Any]) -> Endpoint:
    said = {key: str(check.get(key) or "") for key in ("error", "hint", "note")}
    return Endpoint(name, urlsplit(str(check["url"])).netloc, bool(check["ok"]), **said)


def key(host: str, service: Mapping[str, Any]) -> str:
    """Return the name of a service in the fleet, by which endpoints go."""
    return f"{(service.get('cluster') or {}).get('name') or host}/{service['name']}"


class _Host:
    """What the exporter of one Spark says, as M(dgxspark.vllm.spark_info) would report it."""

    def __init__(self, samples: Samples, now: float) -> None:
        self.samples = samples
        self.told = "dgxspark_collector_last_run_timestamp_seconds" in samples
        # By the host's own clock: it may be another than the monitor's.
        self.now = self.one("node_time_seconds") or now
        interval = self.one("dgxspark_collector_interval_seconds") or 0.0
        self.fresh = self.told and self.age() <= STALE_ROUNDS * interval + STALE_SECONDS

    def one(self, name: str, **labels: str) -> float | None:
        """Return the one sample with these labels."""
        for own, value in self.samples.get(name) or ():
            if all(own.get(label) == text for label, text in labels.items()):
                return value
        return None

    def age(self) -> float:
        """Return for how long the collector has written nothing."""
        return self.now - (self.one("dgxspark_collector_last_run_timestamp_seconds") or 0)

    def gib(self, name: str) -> float | None:
        value = self.one(name)
        return None if value is None else value / GIB

    def units(self, services: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the units of services; one that nobody spoke of is not known."""
        return [{"name": service["unit"], **self.unit(str(service["unit"]))} for service in services]

    def unit(self, name: str) -> dict[str, Any]:
        active = self.one("dgxspark_unit_active", unit=name) if self.fresh else None
        state = status_rows.NOT_KNOWN if active is None else "active" if active else "inactive"
        if state == "inactive" and self.one("dgxspark_unit_starting", unit=name):
            state = "activating"
        if state == "inactive" and self.one("dgxspark_unit_failed", unit=name):
            state = "failed"
        restarts = self.one("dgxspark_unit_restarts_total", unit=name)
        return {
            "active_state": state,
            "n_restarts": None if restarts is None else int(restarts),
            "active_seconds": self.one("dgxspark_unit_active_seconds", unit=name),
        }

    def resident(self) -> list[dict[str, Any]]:
        held: dict[str, float] = {}
        for labels, value in self.samples.get("dgxspark_gpu_memory_bytes") or ():
            name = labels.get("service") or ""
            held[name] = held.get(name, 0.0) + value / GIB
        return [{"name": name, "gib": size} for name, size in held.items() if name]

    def measured(self, services: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        fresh = {"total_gib": self.gib("dgxspark_memory_total_bytes")}
        fresh["available_gib"] = self.gib("dgxspark_memory_available_bytes")
        return {
            "units": self.units(services),
            "memory": fresh if self.fresh else {},
            "resident": self.resident() if self.fresh else [],
        }

    def notes(self) -> list[str]:
        """Return what else is worth a look on the host."""
        if self.told and not self.fresh:
            return [f"its collector has written nothing for {tables.uptime(self.age())}"]
        found = [
            f"the guard finds memory {level}"
            for level in ("short", "critical")
            if self.one("dgxspark_guard_level", level=level)
        ]
        stopped = [
            labels.get("service", "") for labels, value in self.samples.get("dgxspark_guard_stopped") or () if value
        ]
        return found + [f"the guard of the memory stopped {name}" for name in stopped]

    def proof(self, service: str) -> dict[str, Any]:
        """Return what receipt and benchmark of a service say."""
        at = self.one("dgxspark_receipt_timestamp_seconds", service=service)
        return {
            "decode_tokens_per_second": self.one("dgxspark_benchmark_decode_tokens_per_second", service=service),
            "decode_ratio": self.one("dgxspark_benchmark_ratio", service=service),
            "proved": None if at is None else _day(at),
            "proved_rate": self.one("dgxspark_receipt_measured", service=service, figure="decode_tokens_per_second"),
        }


def _day(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return None


def _of_host(
    host: str,
    body: Mapping[str, Any],
    keys: Mapping[str, str],
    checks: Mapping[str, Mapping[str, Any]],
    figures: Mapping[str, Mapping[str, Any]],
    said: str | None,
    why: str,
    now: float,
) -> tuple[list[status_rows.Row], fleet_status.HostState]:
    """Return the rows of a host, and the host as it was judged. said, why: of its exporter."""
    seen = _Host(metrics.labelled(said or "", READ), now)
    why = NO_COLLECTOR if said is not None and not seen.told else why
    services = body["services"]
    measured = seen.measured(services)
    own = [keys[service["name"]] for service in services if not service.get("rank")]
    answers = []
    for service in services:
        name = keys[service["name"]]
        unit = next(each for each in measured["units"] if each["name"] == service["unit"])
        if unit["active_state"] == status_rows.NOT_KNOWN and service.get("rank") and (checks.get(name) or {}).get("ok"):
            unit["active_state"] = "active"  # the model answers, which takes all of its ranks
        answers.append(_answer(service, unit["active_state"], checks.get(name), figures.get(name) or {}, seen))
    answered = any((checks.get(name) or {}).get("ok") for name in own)
    silent = not seen.told and not answered and why not in (NO_EXPORTERS, NO_COLLECTOR)
    asked_of = {"reached": not silent, "why": why, "answers": {"services": {"host": measured, "services": answers}}}
    judged = fleet_status.judge_host(asked_of, "services")
    if not silent:
        # Said where the memory would be drawn; no exporters at all are the owner's choice, and nothing to look at.
        broken = [] if seen.told or why == NO_EXPORTERS else [why]
        notes = [*judged.notes, *broken, *seen.notes()]
        told = "" if seen.fresh else why or "its collector has stopped"
        judged = replace(judged, notes=notes, state="look" if notes else "well", why=told)
    rows = status_rows.status_rows(host, body, measured, answers)
    for row, answer in zip(rows, answers):
        row.watched = status_rows.Watched(answer["tokens_per_second"], answer["proved"], answer["proved_rate"])
    return rows, judged


def _answer(
    service: Mapping[str, Any],
    unit: str,
    check: Mapping[str, Any] | None,
    figures: Mapping[str, Any],
    seen: _Host,
) -> dict[str, Any]:
    """Return the entry of M(dgxspark.vllm.spark_info) for a service. unit: its state; check: None where it was not asked."""
    blank = {name: None for name in (*metrics.GAUGES, "tokens_per_second", "fast_path")}
    answer = {
        "name": service["name"],
        **blank,
        **({} if service.get("rank") else figures),
        **seen.proof(service["name"]),
    }
    if check is None:
        # A unit is active once the model has answered.
        return {**answer, "ready": unit == "active", "stage": "unit", "error": ""}
    if service.get("state") == "on_demand" and unit in ("inactive", "deactivating"):
        return {**answer, "ready": False, "stage": "unit", "error": ""}  # what answers is its socket
    stage = "completion" if check.get("completion") is not None else "models"
    return {**answer, "ready": bool(check["ok"]), "stage": stage, "error": str(check["error"])}
