# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the status of a fleet as one HTML page: problems with their fixes, memory by plan and now, services. Pure functions.

It shares its parts with the page of the plan. Texts of hosts are escaped and cut to one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .._common import tables
from .._plan import page_parts, picture
from . import fleet_status, status_rows
from .fleet_status import HostState, Status
from .status_rows import Row

SHADES = {
    **dict.fromkeys(("unreachable", "unknown", "down", "degenerate"), "fails"),
    **dict.fromkeys(("starting", "warning"), "tight"),
    **{"healthy": "fits", "unloaded": "", "stopped": ""},
}
"""The colour of each state, in addition to its word."""


@dataclass(frozen=True)
class Endpoint:
    """A checked endpoint that is no service of the plan. where: its host and port."""

    key: str
    where: str
    ok: bool
    error: str = ""
    hint: str = ""
    note: str = ""


MOST_OPEN = picture.MOST_TABLES
STYLE = """
.pair{display:grid;grid-template-columns:3rem 1fr 10.5rem;gap:.3rem .8rem;align-items:center;margin:.5rem 0}
.attention{list-style:none;margin:0;padding:0}.attention li{background:var(--card);border:1px solid var(--line);border-left:.3rem solid var(--tight);
border-radius:.3rem;padding:.4rem .8rem;margin:.5rem 0;overflow-wrap:anywhere}.attention li.fails{border-left-color:var(--fails)}
.host>summary{grid-template-columns:minmax(6rem,14rem) 1fr auto}summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--info);outline-offset:2px}
@media(max-width:760px){.host>summary{grid-template-columns:1fr auto auto}.pair{grid-template-columns:3rem 1fr}.pair .room{grid-column:2;text-align:left}}
""".strip()
FIXES = {
    "unreachable": "Check whether it is on and answers ssh; the other hosts are not affected.",
    "unknown": "Log in and check uptime, df and sudo -v; use -K if sudo asks for a password.",
    "down": "On {host}: journalctl -eu spark-{service}; doctor.yml --limit {host} explains it.",
    "degenerate": "doctor.yml --limit {host} has the evidence and the cure.",
    "starting": "Wait, and run status.yml again; doctor.yml shows how far the start is.",
    "warning": "doctor.yml --limit {host} explains it, with the fix.",
}
"""Fix of each state."""


def page(status: Status, planned: Mapping[str, Mapping[str, Any]], inventory: str = "") -> str:
    """Return the page. planned: plans by host, for memory maps and findings; a host may lack one. inventory: its name."""
    hosts = sorted(
        status.hosts, key=lambda host: (fleet_status.STATES.index(worst_state(status, host)), picture.natural(host))
    )
    sections = [
        f'<p class="soft">{escape(fleet_status.head(status))} {escape(page_parts.as_of(status.at, inventory))}</p>',
        summary_tiles(status),
        attention(status, planned),
        "<section>",
        "<h2>Hosts</h2>",
        page_parts.legend("one colour for each service of a host; sizes in GiB"),
        *(_host(host, status, planned.get(host) or {}, len(hosts) <= MOST_OPEN) for host in hosts),
        "</section>",
    ]
    return page_parts.document("Status of DGX Sparks", sections, STYLE)


def _rows(status: Status, host: str) -> list[Row]:
    return [row for row in status.services if row.host == host]


def worst_state(status: Status, host: str) -> str:
    """Return the worst state among a host and its services."""
    states = [row.state for row in _rows(status, host) if row.state not in fleet_status.MEANT_IDLE]
    return str(min([status.hosts[host].state, *states], key=fleet_status.STATES.index))


def summary_tiles(status: Status) -> str:
    """Return how many hosts and services there are in each state, and the requests now."""
    counts = status.counts
    items = [(str(counts["hosts"]), "hosts" if counts["hosts"] != 1 else "host", "")]
    items += [(str(counts["silent"]), "not answering", "fails")] if counts["silent"] else []
    items += [
        (str(counts[state]), f"service{'s'[: counts[state] != 1]} {word}", SHADES[state])
        for state, word in fleet_status.WORDS.items()
        if counts[state]
    ]
    running = [count for row in status.services if (count := number(row.requests_running)) is not None]
    items += [(str(int(sum(running))), "requests now", "")] if running else []
    return page_parts.tiles(items)


def number(value: Any) -> float | None:
    """Return a value of a host if it is a number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# --- problems


def attention(status: Status, planned: Mapping[str, Mapping[str, Any]], endpoints: Sequence[Endpoint] = ()) -> str:
    """Return the problems with their fixes, the worst first, then errors and warnings of the plan. endpoints: further ones, of C(live_status)."""
    lines = [*_silent(status), *_troubled(status)]
    for endpoint in endpoints:
        if not endpoint.ok:
            text = fleet_status.short(endpoint.error)
            lines.append(_item(str(endpoint.key), "down", text, str(endpoint.hint or "See its log."), "fails"))
    lines += _of_plan(status, planned)
    if not lines:
        return "<section><h2>Needs attention</h2><p>Nothing: everything checked is healthy.</p></section>"
    return "\n".join(["<section>", "<h2>Needs attention</h2>", '<ul class="attention">', *lines, "</ul>", "</section>"])


def _item(where: str, word: str, text: str, fix: str, shade: str) -> str:
    """Return a problem. word: HTML; where, text, fix: plain text."""
    detail = f"<br>{escape(text)}" if text else ""
    return (
        f'<li class="{shade}"><b>{escape(where)}</b> <span class="word {shade}">{word}</span>{detail}'
        f"<br><b>Fix:</b> {escape(fix)}</li>"
    )


def _silent(status: Status) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for host, body in status.hosts.items():
        if body.silent:
            groups.setdefault((body.state, body.why, FIXES[body.state]), []).append(host)
        elif body.notes:
            groups.setdefault(("warning", "; ".join(body.notes), FIXES["warning"].format(host=host)), []).append(host)
    for (state, text, fix), hosts in sorted(groups.items(), key=lambda item: fleet_status.STATES.index(item[0][0])):
        yield _item(picture.names_text(hosts), state, fleet_status.short(text), fix, SHADES[state])


def _troubled(status: Status) -> Iterator[str]:
    for row in status.services:
        if row.state in ("down", "degenerate", "starting", "warning"):
            texts = dict.fromkeys(str(text) for text in (row.status, row.error, *row.notes) if text)
            text = fleet_status.short("; ".join(texts) or f"no answer ({row.stage})")
            fix = FIXES[row.state].format(host=row.host, service=row.service)
            yield _item(f"{row.host}/{row.service}", row.state, text, fix, SHADES[row.state])


def _of_plan(status: Status, planned: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    findings = [
        {"host": host, **finding}
        for host in status.hosts
        for finding in (planned.get(host) or {}).get("findings") or []
        if finding["severity"] != "info"
    ]
    for group in picture.same_findings(findings):
        first, word = group.first, f"plan: {page_parts.rule_link(group.first['rule'])}"
        fix = first.get("fix") or "plan.yml shows it with the rest of the plan."
        yield _item(group.where, word, first["message"], fix, "fails" if first["severity"] == "error" else "tight")


# --- hosts


def _host(host: str, status: Status, body: Mapping[str, Any], unfolded: bool) -> str:
    """Return one host: its memory now and by plan, and its services."""
    rows, host_state, state = _rows(status, host), status.hosts[host], worst_state(status, host)
    live = live_map(host_state, rows, body)
    shade = SHADES[state]
    lines = [
        f'<details class="host {shade}"{" open" if unfolded else ""}><summary><span class="name">{escape(host)}</span>'
        f'<span class="soft">{len(rows)} service{"s"[: len(rows) != 1]}</span><span class="word {shade}">{state}</span></summary>',
        '<div class="inside">',
    ]
    now = (page_parts.memory_bar(live), picture.room_text(live)) if live else (UNKNOWN, "not known")
    lines.append(_pair("now", *now))
    if body.get("memory_map"):
        planned = {"memory_map": body["memory_map"], "total_gib": body["total_gib"]}
        lines.append(_pair("plan", page_parts.memory_bar(planned), f"{picture.room_text(planned)} by plan"))
    if not live:
        why = fleet_status.short(host_state.why or "it did not say")
        lines.append(f"<p>Its memory is not known: {escape(why)}.</p>")
    services = page_parts.table(HEADS, [_service(row) for row in rows], FIGURES, f"services of {host}") if rows else ""
    return "\n".join([*lines, services or "<p>No services planned.</p>", "</div></details>"])


UNKNOWN = '<div class="bar unknown" role="img" aria-label="its GiB are not known"></div>'


def _pair(word: str, bar: str, room: str) -> str:
    return f'<div class="pair"><span class="soft">{word}</span>{bar}<span class="room">{room}</span></div>'


def live_map(host: HostState, rows: Iterable[Row], body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the present memory map of a host: services, other memory, free memory. None if unknown.

    body: its plan, for the order, and so the colours, of services.
    """
    total, available = number(host.total_gib), number(host.available_gib)
    if total is None or available is None or not 0 <= available <= total:
        return None
    held = {row.service: size for row in rows if (size := number(row.residency_gib)) is not None}
    order = dict.fromkeys([part["service"] for part in body.get("memory_map") or [] if part["service"]] + [*held])
    sizes = {name: max(held.get(name, 0.0), 0.0) for name in order}
    # Services count in full: figures of GPU and kernel are of different moments.
    other = max(total - available - sum(sizes.values()), 0.0)
    free = max(total - other - sum(sizes.values()), 0.0)
    parts = [
        ("system and others", other, "system", None),
        *((name, size, "weights", name) for name, size in sizes.items()),
    ]
    keys = ("label", "gib", "kind", "service")
    return {
        "memory_map": [dict(zip(keys, part)) for part in (*parts, ("free", free, "free", None))],
        "total_gib": total,
    }


HEADS = ("service", "model", "address", "state", "requests", "KV cache", "memory", "tok/s", "fast path", "up")
FIGURES = ("requests", "KV cache", "memory", "tok/s")
"""Right-aligned columns."""


def _service(row: Row) -> str:
    use, running, waiting = number(row.kv_cache_usage), number(row.requests_running), number(row.requests_waiting)
    word = f'<span class="word {SHADES[row.state]}">{escape(row.state)}</span>'
    stage = "" if row.stage == "-" or row.state in ("healthy", "warning", *fleet_status.MEANT_IDLE) else str(row.stage)
    held, planned = (
        "-" if size is None else f"{tables.gib(size, True)} GiB" for size in (row.residency_gib, row.planned_gib)
    )
    queue = f"{int(waiting)} waiting" if waiting else ""
    text, figure = page_parts.text_cell, page_parts.cell
    cells = [
        text("service", escape(str(row.service)), status_rows.part(row) if row.cluster else ""),
        text("model", escape(str(row.model or "-")), f"vLLM {row.vllm_version}" if row.vllm_version else "", "m"),
        text("address", escape(str(row.url or "-").rpartition("//")[2])),
        text("state", word, stage),
        figure("requests", "-" if running is None else f"{int(running)} running", False, queue),
        figure("KV cache", "-" if use is None else f"{100 * use:.0f} % used"),
        figure("memory", held, False, planned.replace("-", "") and f"{planned} planned"),
        figure("tok/s", status_rows.decode(row)),
        text("fast path", escape(str(row.fast_path or "-"))),
        text("up", escape(tables.uptime(row.uptime_seconds)), style="v"),
    ]
    return "".join(cells)
