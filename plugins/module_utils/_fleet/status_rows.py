# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Join plan and measurements of services into rows, judge ranks together, and print a table. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.tables import gib, table, uptime

NOT_KNOWN = "not known"
"""State of a unit if systemctl did not answer in time."""
_MEASURED = (
    "kv_cache_usage",
    "requests_running",
    "requests_waiting",
    "decode_tokens_per_second",
    "decode_ratio",
    "fast_path",
    "speed",
)
"""Figures of an answer that a row takes over."""


@dataclass
class LiveFigures:
    """Figures that only a live page has: tokens a second now and as predicted for one stream, date and decode rate of the last proof."""

    tokens_per_second: float | None
    predicted: float | None
    proved: str | None
    proved_rate: float | None


@dataclass
class Row:
    """The status of a service or a rank on a host; C(to_dict) is one of C(services) of M(dgxspark.vllm.status).

    Later steps join ranks and set C(state) and C(notes) in place. meant: the planned state, C(started), C(stopped) or C(on_demand).
    status: text of its unit and progress of a start. kept_down: stopped for another reason than missing requests. stage, error: of the
    answer, or of the unit. degenerate: why its answers are bad, by the quality questions of the watchdog. speed: verdict of the last whole proof on it.
    """

    host: str
    service: str
    cluster: str | None
    rank: int
    size: int
    executor: str | None
    model: str | None
    meant: str
    exclusive: str
    unit: str
    status: str
    idle_seconds: int | None
    kept_down: bool
    ready: bool
    stage: str
    error: str
    kv_cache_usage: float | None
    requests_running: int | None
    requests_waiting: int | None
    planned_gib: float | None
    uptime_seconds: float | None
    restarts: int | None
    decode_tokens_per_second: float | None
    decode_ratio: float | None
    fast_path: str | None
    residency_gib: float | None
    speed: str | None = None
    url: str | None = None
    vllm_version: str | None = None
    degenerate: str = ""
    live: LiveFigures | None = None
    notes: list[str] = field(default_factory=list)
    state: str = ""

    @property
    def name(self) -> str:
        """The displayed name: host or cluster, and service."""
        return f"{self.cluster or self.host}/{self.service}"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of the module's result."""
        entry = {name: value for name, value in vars(self).items() if name != "live"}
        return {**entry, **(vars(self.live) if self.live else {})}


def status_rows(
    host: str,
    planned: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    answers: Sequence[Mapping[str, Any]] | None,
) -> list[Row]:
    """Return the services of a host with plan and measurements; services of a silent host are not ready.

    A rank that answers no requests is ready if its unit is active, which means that the whole model serves.

    :param measured: C(spark) of M(dgxspark.vllm.spark_info), None for a silent host
    :param answers: C(services) of the same, likewise
    """
    resident = {entry["name"]: entry["gib"] for entry in _section(measured, "resident")}
    answered = {answer["name"]: answer for answer in answers or []}
    return [
        _service_row(host, service, measured, answered.get(service["name"]) or {}, resident.get(service["name"]))
        for service in [*(planned.get("services") or []), *map(_speech, planned.get("speech") or [])]
    ]


def _speech(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a speech server on demand as a service whose readiness is the state of its unit. server: of the plan."""
    return {
        "name": server["name"],
        "unit": server["unit"],
        "model": {"repo": server["model"]},
        "memory": {"residency_gib": {"typical": server["memory_gib"]}},
        "state": "on_demand",
        "by_unit": True,
    }


def _section(measured: Mapping[str, Any] | None, name: str) -> Any:
    """Return a section of the measurements of a host, empty for a silent host."""
    return (measured or {}).get(name) or {}


def _unit(name: str, measured: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Return a unit, empty for a missing one, and its state."""
    unit = {unit["name"]: unit for unit in _section(measured, "units")}.get(name) or {}
    silent = _section(measured, "unknown").get("systemctl")
    return unit, unit.get("active_state") or (NOT_KNOWN if silent else "absent" if measured else "unreachable")


def _stopped_by_guard(name: str, measured: Mapping[str, Any] | None) -> str:
    """Return why the memory guard stopped a service, empty if it did not; such a unit looks stopped by hand."""
    why = (_section(measured, "guard").get("stopped") or {}).get(name)
    return f"the memory guard stopped it: {why}" if why else ""


def _degenerate(quality: Mapping[str, Any]) -> str:
    """Return the text about degenerate answers, empty without them. quality: of the service."""
    drained = "; drained at the gateway" if quality.get("drained") else ""
    return f"its answers degenerate: {quality.get('text')}{drained}" if quality.get("state") == "degenerate" else ""


def _readiness(answer: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a service is ready, and the stage of its answer."""
    return bool(answer.get("ready")), answer.get("stage") or "-"


def _is_pinned_cold(on_demand: Mapping[str, Any]) -> bool:
    """Tell whether a person keeps a service on demand down."""
    return on_demand.get("pin") == "cold" and bool(on_demand.get("why"))


def _status(
    name: str,
    measured: Mapping[str, Any] | None,
    unit: Mapping[str, Any],
    on_demand: Mapping[str, Any],
    stopped: str,
) -> str:
    """Return the state on demand of a service; while its unit is not active, also its progress and status."""
    text = demand(on_demand, bool(stopped))
    if unit.get("active_state") == "active":
        return text
    progress = loading(_section(measured, "starting").get(name))
    return "; ".join(filter(None, (stopped or progress, text, unit.get("status_text"))))


def _service_row(
    host: str,
    service: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    answer: Mapping[str, Any],
    held_gib: float | None,
) -> Row:
    """answer: one of C(services) of M(dgxspark.vllm.spark_info), empty for a missing one."""
    name, rank, span = service["name"], service.get("rank") or 0, service.get("cluster") or {}
    unit, state = _unit(service["unit"], measured)
    active = state == "active"
    by_unit = bool(rank or service.get("by_unit"))
    stopped = _stopped_by_guard(name, measured) if state == "inactive" else ""
    on_demand = _section(measured, "on_demand").get(name) or {}
    ready, stage = (active, "unit") if by_unit else _readiness(answer)
    idle, uptime_seconds = (on_demand.get("idle_seconds"), unit.get("active_seconds")) if active else (None, None)
    figures: dict[str, Any] = {key: answer.get(key) for key in _MEASURED}
    return Row(
        host=host,
        service=name,
        cluster=span.get("name"),
        rank=rank,
        size=span.get("size", 1),
        executor=span.get("executor"),
        model=service["model"]["repo"] or service["recipe"],
        meant=service.get("state") or "started",
        exclusive=service.get("exclusive") or "",
        unit=state,
        status=_status(name, measured, unit, on_demand, stopped),
        idle_seconds=idle,
        kept_down=bool(stopped) or _is_pinned_cold(on_demand),
        ready=ready,
        stage=stage,
        error=_error(name, answer, by_unit, state, measured),
        planned_gib=(service["memory"].get("residency_gib") or {}).get("typical"),
        uptime_seconds=uptime_seconds,
        restarts=unit.get("n_restarts"),
        residency_gib=held_gib,
        **figures,
        url=service.get("url"),
        vllm_version=service.get("vllm_version"),
        degenerate=_degenerate(_section(measured, "quality").get(name) or {}),
    )


def _error(name: str, answer: Mapping[str, Any], by_unit: bool, state: str, measured: Mapping[str, Any] | None) -> str:
    """Return the error of a service: of its answer or its unit, with the cause by its log."""
    error: str = answer.get("error") or ""
    if by_unit and state != "active":
        silent = _section(measured, "unknown").get("systemctl")
        error = silent if state == NOT_KNOWN else f"its unit is {state}"
    cause = _section(measured, "causes").get(name)
    return f"{error or f'its unit is {state}'}; the reason in its log: {cause}" if cause else error


def loading(progress: Mapping[str, Any] | None) -> str:
    """Return the progress of a start in words, empty without one. progress: of C(start_stages.progress)."""
    if not progress or not progress.get("stage"):
        return ""
    percent = f" {progress['percent']} %" if progress.get("percent") is not None else ""
    text = f"{progress['stage']}{percent}, after {progress.get('seconds') or 0} s"
    left_seconds = progress.get("left_seconds")
    return text if left_seconds is None else f"{text}; about {left_seconds} s left by its last starts"


def demand(state: Mapping[str, Any], is_explained: bool = False) -> str:
    """Return a state of C(starts.on_demand) in words. is_explained: another text already explains why it is stopped."""
    parts = []
    if state.get("pin"):
        parts.append("" if is_explained else f"kept {state['pin']} by {state.get('why') or 'its owner'}")
    elif state.get("state") == "failed":
        parts.append(str(state.get("why") or ""))
    if state.get("waiting"):
        parts.append(f"{state['waiting']} request{'s wait' if state['waiting'] != 1 else ' waits'}")
    if isinstance(state.get("idle_seconds"), int):
        parts.append(f"idle for {uptime(state['idle_seconds'])}")
    return "; ".join(filter(None, parts))


def join_ranks(rows: Sequence[Row]) -> None:
    """Judge the ranks of each service that spans hosts together, over the rows of all hosts of the play.

    The model serves when the first rank answers and the units of all ranks are active. A rank that is not ready makes the
    others not ready; their C(stage) names it.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.cluster:
            groups.setdefault((row.cluster, row.service), []).append(row)
    for ranks in groups.values():
        for row in ranks:
            if row.ready and row.unit not in ("active", NOT_KNOWN):
                row.ready, row.stage, row.error = False, "unit", f"it answers, but its unit is {row.unit}"
        behind = sorted((row.rank, row.host) for row in ranks if not row.ready)
        for row in ranks if behind else ():
            if row.ready:
                row.ready, row.stage = False, f"rank {behind[0][0]}"


def part(row: Row) -> str:
    """Return the part of a service that a row is about, C(-) for the whole."""
    return f"rank {row.rank} of {row.size} ({row.executor})" if row.cluster else "-"


def decode(row: Row) -> str:
    """Return the last rate that bench.yml measured, with its difference from the baseline if comparable."""
    figure, ratio = row.decode_tokens_per_second, row.decode_ratio
    if figure is None:
        return "-"
    return f"{figure:.1f}" if ratio is None or abs(ratio - 1) < 0.005 else f"{figure:.1f} ({100 * (ratio - 1):+.0f} %)"


def _requests(row: Row) -> str:
    waiting = f" ({row.requests_waiting} waiting)" if row.requests_waiting else ""
    return "-" if row.requests_running is None else f"{row.requests_running}{waiting}"


def _memory(row: Row) -> str:
    held, planned = (gib(size, already_gib=True) for size in (row.residency_gib, row.planned_gib))
    if held == "-":
        return held if planned == "-" else f"{planned} GiB planned"
    return f"{held} of {planned} GiB"


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "host": lambda row: row.host,
    "service": lambda row: row.service,
    "part": part,
    "model": lambda row: str(row.model or "-"),
    "address": lambda row: (row.url or "-").rpartition("//")[2],
    "unit": lambda row: row.unit,
    "ready": lambda row: "yes" if row.ready else "no" if row.stage == "-" else f"no ({row.stage})",
    "KV cache": lambda row: "-" if row.kv_cache_usage is None else f"{100 * row.kv_cache_usage:.1f} %",
    "requests": _requests,
    "memory of planned": _memory,
    "up": lambda row: uptime(row.uptime_seconds),
    "restarts": lambda row: "-" if row.restarts is None else str(row.restarts),
    "tok/s": decode,
    "fast path": lambda row: row.fast_path or "-",
}
"""Columns of the status table: title -> cell of a row."""


def status_text(rows: Sequence[Row]) -> str:
    """Return the status table, then the errors and states of services. Columns without any figure are left out."""
    has_figures = {
        "part": any(row.cluster for row in rows),
        "address": any(row.url for row in rows),
        "restarts": any(row.restarts for row in rows),
        "tok/s": any(row.decode_tokens_per_second for row in rows),
        "fast path": any(row.fast_path for row in rows),
    }
    columns = {title: cell for title, cell in _COLUMNS.items() if has_figures.get(title, True)}
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    lines = [table(list(columns), cells) if cells else "no services"]
    for row in rows:
        texts = dict.fromkeys(filter(None, (row.status, row.error)))
        if texts:
            rank = f" ({part(row)})" if row.cluster else ""
            lines.append(f"{row.host}/{row.service}{rank}: {'; '.join(texts)}")
    return "\n".join(lines)
