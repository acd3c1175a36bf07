# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables for people, and the status of hosts as one. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .sizes import GIB


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned text table; columns whose cells are all figures are flush right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [
        bool(rows) and all(row[column][:1].isdigit() or row[column] in ("", "-") for row in rows)
        for column in range(len(header))
    ]
    lines = []
    for index, row in enumerate(cells):
        parts = [cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in zip(row, widths, right)]
        lines.append("  ".join(parts).rstrip())
        if index == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def gib(size: Any, already_gib: bool = False) -> str:
    """Write a size in GiB with one decimal; C(-) for what is not known."""
    return "-" if size is None else f"{float(size) if already_gib else float(size) / GIB:.1f}"


NOT_KNOWN = "not known"
"""State of a unit that systemctl did not tell in time."""


@dataclass
class Watched:
    """What the fleet monitor knows of a service beside the others: tokens a second since its run before, when it was proved, and its rate then."""

    tokens_per_second: float | None
    proved: str | None
    proved_rate: float | None


@dataclass
class Row:
    """How a service, or a rank of it, is on a host; C(plain) is one of C(services) of M(dgxspark.vllm.status).

    Ranks are joined, and C(state) and C(notes) given, in place. meant: C(started), C(stopped) or C(on_demand). status: what its unit says, and
    how far a start is. kept_down: why it is not up is no lack of requests. stage, error: of the answer, or of the unit.
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
    watched: Watched | None = None
    notes: list[str] = field(default_factory=list)
    state: str = ""

    @property
    def name(self) -> str:
        """The service by the name that people call it: its host's or cluster's, and its own."""
        return f"{self.cluster or self.host}/{self.service}"

    def plain(self) -> dict[str, Any]:
        """Return it as the module does."""
        own = {name: value for name, value in vars(self).items() if name != "watched"}
        return {**own, **(vars(self.watched) if self.watched else {})}


def status_rows(
    host: str,
    planned: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    answers: Sequence[Mapping[str, Any]] | None,
) -> list[Row]:
    """Join the plan of a host with what it said; a host that said nothing has services that are not ready.

    A rank that answers no requests is ready when its unit is active: that means that the whole model serves.

    :param host: its name
    :param planned: the host's part of the plan
    :param measured: C(spark) of M(dgxspark.vllm.spark_info), None for a host that said nothing
    :param answers: C(services) of the same, likewise
    :returns: a row a service
    """
    resident = {entry["name"]: entry["gib"] for entry in (measured or {}).get("resident") or []}
    answered = {answer["name"]: answer for answer in answers or []}
    return [
        _service_row(host, service, measured, answered.get(service["name"]) or {}, resident.get(service["name"]))
        for service in [*(planned.get("services") or []), *map(_speech, planned.get("speech") or [])]
    ]


def _speech(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a speech server on demand as a service of which the unit alone says whether it answers. server: of the plan."""
    memory = {"residency_gib": {"typical": server["memory_gib"]}}
    named = {"name": server["name"], "unit": server["unit"], "model": {"repo": server["model"]}}
    return {**named, "memory": memory, "state": "on_demand", "by_unit": True}


def _service_row(
    host: str,
    service: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    answer: Mapping[str, Any],
    held_gib: float | None,
) -> Row:
    """answer: one of C(services) of M(dgxspark.vllm.spark_info), empty where it gave none."""
    units = {unit["name"]: unit for unit in (measured or {}).get("units") or []}
    unit = units.get(service["unit"]) or {}
    silent = ((measured or {}).get("unknown") or {}).get("systemctl")
    state = unit.get("active_state") or (NOT_KNOWN if silent else "absent" if measured else "unreachable")
    active = state == "active"
    rank, span = service.get("rank") or 0, service.get("cluster") or {}
    error = answer.get("error") or ""
    by_unit = bool(rank or service.get("by_unit"))
    if by_unit and not active:
        error = silent if state == NOT_KNOWN else f"its unit is {state}"
    cause = ((measured or {}).get("causes") or {}).get(service["name"])
    if cause:
        error = f"{error or f'its unit is {state}'}; its log says why: {cause}"
    stopped = ""
    if state == "inactive":  # on its own it would look as if somebody had stopped it
        why = (((measured or {}).get("guard") or {}).get("stopped") or {}).get(service["name"])
        stopped = f"the guard of the memory stopped it: {why}" if why else ""
    how_far = loading(((measured or {}).get("starting") or {}).get(service["name"]))
    asked = ((measured or {}).get("on_demand") or {}).get(service["name"]) or {}
    demanded = demand(asked, bool(stopped))
    return Row(
        host=host,
        service=service["name"],
        cluster=span.get("name"),
        rank=rank,
        size=span.get("size", 1),
        executor=span.get("executor"),
        model=service["model"]["repo"] or service["recipe"],
        meant=service.get("state") or "started",
        exclusive=service.get("exclusive") or "",
        unit=state,
        status=demanded if active else "; ".join(filter(None, (stopped or how_far, demanded, unit.get("status_text")))),
        idle_seconds=asked.get("idle_seconds") if active else None,
        kept_down=bool(stopped) or (asked.get("pin") == "cold" and bool(asked.get("why"))),
        ready=active if by_unit else bool(answer.get("ready")),
        stage="unit" if by_unit else answer.get("stage") or "-",
        error=error,
        kv_cache_usage=answer.get("kv_cache_usage"),
        requests_running=answer.get("requests_running"),
        requests_waiting=answer.get("requests_waiting"),
        planned_gib=(service["memory"].get("residency_gib") or {}).get("typical"),
        uptime_seconds=unit.get("active_seconds") if active else None,
        restarts=unit.get("n_restarts"),
        decode_tokens_per_second=answer.get("decode_tokens_per_second"),
        decode_ratio=answer.get("decode_ratio"),
        fast_path=answer.get("fast_path"),
        residency_gib=held_gib,
    )


def loading(found: Mapping[str, Any] | None) -> str:
    """Say how far a start is, empty for nothing that starts. found: of C(start_stages.progress)."""
    if not found or not found.get("stage"):
        return ""
    part = f" {found['percent']} %" if found.get("percent") is not None else ""
    text = f"{found['stage']}{part}, after {found.get('seconds') or 0} s"
    rest = found.get("left_seconds")
    return text if rest is None else f"{text}; about {rest} s left by its last starts"


def demand(found: Mapping[str, Any], told: bool = False) -> str:
    """Say what is known of a service that requests start. found: of C(starts.on_demand) of spark_info; told: why it is kept down is said already."""
    parts = []
    if found.get("pin"):
        parts.append("" if told else f"kept {found['pin']} by {found.get('why') or 'its owner'}")
    elif found.get("state") == "failed":
        parts.append(str(found.get("why") or ""))
    if found.get("waiting"):
        parts.append(f"{found['waiting']} request{'s wait' if found['waiting'] != 1 else ' waits'}")
    if isinstance(found.get("idle_seconds"), int):
        parts.append(f"idle for {uptime(found['idle_seconds'])}")
    return "; ".join(filter(None, parts))


def join_ranks(rows: Sequence[Row]) -> None:
    """Judge the ranks of each service that spans hosts together, over the rows of all hosts of the play.

    The model serves when the first rank answers and the units of all ranks are active. One that is not makes all of them
    not ready; C(stage) of the others then names it.
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
    """Say which part of a service a row is, C(-) for the whole."""
    return f"rank {row.rank} of {row.size} ({row.executor})" if row.cluster else "-"


def uptime(seconds: Any) -> str:
    """Write a duration by its two largest units."""
    if seconds is None:
        return "-"
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {int(seconds) % 60}s"


def decode(row: Row) -> str:
    """Write what bench.yml measured last, with how it compares with its baseline where it does."""
    figure, ratio = row.decode_tokens_per_second, row.decode_ratio
    if figure is None:
        return "-"
    return f"{figure:.1f}" if ratio is None or abs(ratio - 1) < 0.005 else f"{figure:.1f} ({100 * (ratio - 1):+.0f} %)"


def status_text(rows: Sequence[Row]) -> str:
    """Return the status table, then why each service that is not ready is not, or what its unit waits for."""
    header = ["host", "service", "part", "model", "unit", "ready", "KV use", "requests"]
    header += ["GiB", "planned", "uptime", "restarts", "tok/s", "fast path"]
    cells = []
    for row in rows:
        use, running = row.kv_cache_usage, row.requests_running
        cells.append(
            [
                row.host,
                row.service,
                part(row),
                str(row.model or "-"),
                row.unit,
                "yes" if row.ready else f"no ({row.stage})",
                "-" if use is None else f"{100 * use:.1f} %",
                "-" if running is None else f"{running}+{row.requests_waiting or 0}",
                gib(row.residency_gib, already_gib=True),
                gib(row.planned_gib, already_gib=True),
                uptime(row.uptime_seconds),
                "-" if row.restarts is None else str(row.restarts),
                decode(row),
                row.fast_path or "-",
            ]
        )
    if not any(row.fast_path for row in rows):  # no receipt says it yet
        header.pop()
        cells = [line[:-1] for line in cells]
    if not any(row.decode_tokens_per_second for row in rows):  # nor was anything measured by bench.yml
        place = header.index("tok/s")
        header.remove("tok/s")
        cells = [[*line[:place], *line[place + 1 :]] for line in cells]
    if not any(row.cluster for row in rows):
        header.remove("part")
        cells = [[*row[:2], *row[3:]] for row in cells]
    reasons = []
    for row in rows:
        texts = dict.fromkeys(text for text in (row.status, row.error) if text)
        if texts:
            of = f" ({part(row)})" if row.cluster else ""
            reasons.append(f"{row.host}/{row.service}{of}: {'; '.join(texts)}")
    return "\n".join([table(header, cells) if cells else "no services", *reasons])
