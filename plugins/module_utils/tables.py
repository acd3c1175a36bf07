# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables for people, and the status of hosts as one. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

GIB = 2**30


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


def status_rows(
    host: str,
    planned: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    answers: Sequence[Mapping[str, Any]] | None,
    now: datetime,
) -> list[dict[str, Any]]:
    """Join the plan of a host with what it said; a host that said nothing has services that are not ready.

    now: with its time zone, for the uptime.
    """
    units = {unit["name"]: unit for unit in (measured or {}).get("units") or []}
    resident = {entry["name"]: entry["gib"] for entry in (measured or {}).get("resident") or []}
    answered = {answer["name"]: answer for answer in answers or []}
    rows = []
    for service in planned.get("services") or []:
        unit = units.get(service["unit"]) or {}
        answer = answered.get(service["name"]) or {}
        since = unit.get("active_since")
        active = unit.get("active_state") == "active"
        rows.append(
            {
                "host": host,
                "service": service["name"],
                "model": service["model"]["repo"] or service["recipe"],
                "unit": unit.get("active_state") or ("absent" if measured else "unreachable"),
                "ready": bool(answer.get("ready")),
                "stage": answer.get("stage") or "-",
                "error": answer.get("error") or "",
                "kv_cache_usage": answer.get("kv_cache_usage"),
                "requests_running": answer.get("requests_running"),
                "requests_waiting": answer.get("requests_waiting"),
                "residency_gib": resident.get(service["name"]),
                "planned_gib": (service["memory"].get("residency_gib") or {}).get("typical"),
                "uptime_seconds": int((now - datetime.fromisoformat(since)).total_seconds())
                if active and since
                else None,
                "restarts": unit.get("n_restarts"),
            }
        )
    return rows


def uptime(seconds: Any) -> str:
    """Write a duration by its two largest units."""
    if seconds is None:
        return "-"
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {int(seconds) % 60}s"


def status_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the status table, then why each service that is not ready is not."""
    header = ["host", "service", "model", "unit", "ready", "KV use", "requests", "GiB", "planned", "uptime", "restarts"]
    cells = []
    for row in rows:
        use, running = row["kv_cache_usage"], row["requests_running"]
        cells.append(
            [
                row["host"],
                row["service"],
                str(row["model"] or "-"),
                row["unit"],
                "yes" if row["ready"] else f"no ({row['stage']})",
                "-" if use is None else f"{100 * use:.1f} %",
                "-" if running is None else f"{running}+{row['requests_waiting'] or 0}",
                gib(row["residency_gib"], already_gib=True),
                gib(row["planned_gib"], already_gib=True),
                uptime(row["uptime_seconds"]),
                "-" if row["restarts"] is None else str(row["restarts"]),
            ]
        )
    reasons = [f"{row['host']}/{row['service']}: {row['error']}" for row in rows if row["error"]]
    return "\n".join([table(header, cells) if cells else "no services", *reasons])
