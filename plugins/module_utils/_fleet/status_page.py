# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status of a fleet as one HTML page: what needs attention with its fix, memory now against plan, services. Pure functions.

It is made of what C(fleet_status.report) and the plan have, and shares its parts with the page of the plan. What a host says is
escaped, in one bounded line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .._common import tables
from .._plan import page_parts, picture
from . import fleet_status, status_rows
from .status_rows import Row, Watched

SHADES = {
    "unreachable": "fails",
    "unknown": "fails",
    "down": "fails",
    "starting": "tight",
    "look": "tight",
    "well": "fits",
    "cold": "",
    "stopped": "",
}
"""The colour of each state; its word always stands beside it."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint that is no service of the plan, and what its check said. where: its host and port."""

    key: str
    where: str
    ok: bool
    error: str = ""
    hint: str = ""
    note: str = ""


MOST_OPEN = picture.MOST_TABLES
STYLE = """
.pair{display:grid;grid-template-columns:3rem 1fr 7.5rem;gap:.3rem .8rem;align-items:center;margin:.5rem 0}
.attention{list-style:none;margin:0;padding:0}.attention li{background:var(--card);border:1px solid var(--line);border-left:.3rem solid var(--tight);
border-radius:.3rem;padding:.4rem .8rem;margin:.5rem 0;overflow-wrap:anywhere}.attention li.fails{border-left-color:var(--fails)}
.v{white-space:nowrap}
.host>summary{grid-template-columns:minmax(6rem,14rem) 1fr auto}summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--info);outline-offset:2px}
@media(max-width:760px){.host>summary{grid-template-columns:1fr auto auto}.pair{grid-template-columns:3rem 1fr}.pair .room{grid-column:2;text-align:left}}
""".strip()
FIXES = {
    "unreachable": "See whether it is on and answers ssh from here; the rest of the fleet is not affected.",
    "unknown": "Log in and see uptime, df and sudo -v there; -K where sudo asks for a password.",
    "starting": "Wait, and run status.yml again; doctor.yml says how far it came.",
    "look": "doctor.yml --limit {host} explains it, with the fix.",
}
"""What to do about a state, in a line; C(down) has the service's own log."""


def page(
    found: fleet_status.Status,
    planned: Mapping[str, Mapping[str, Any]],
    others: Sequence[Endpoint] = (),
    note: str = "",
) -> str:
    """Return the page.

    found: of C(fleet_status.report). planned: the plan by host, of which memory maps and findings are shown; a host without is shown
    by what it says alone. others: endpoints that are no service of the plan, as C(watched_status.report) returns them. note: beside the
    moment of the page, plain text.
    """
    hosts = sorted(
        found.hosts, key=lambda host: (fleet_status.STATES.index(_worst(found, host)), picture.natural(host))
    )
    sections = [
        f'<p class="soft">{escape(fleet_status.head(found))} As of {escape(str(found.at))}.{escape(f" {note}" if note else "")}</p>',
        _tiles(found),
        _attention(found, planned, others),
        "<section>",
        "<h2>Hosts</h2>",
        page_parts.legend("one colour for each service of a host; sizes in GiB"),
        *(_host(host, found, planned.get(host) or {}, len(hosts) <= MOST_OPEN) for host in hosts),
        "</section>",
        _others(others),
    ]
    return page_parts.document("Status of DGX Sparks", [section for section in sections if section], STYLE)


def _rows(found: fleet_status.Status, host: str) -> list[Row]:
    return [row for row in found.services if row.host == host]


def _worst(found: fleet_status.Status, host: str) -> str:
    """The state of a host with its services: the worst of them."""
    states = [
        found.hosts[host].state,
        *(row.state for row in _rows(found, host) if row.state not in fleet_status.MEANT_IDLE),
    ]
    return str(min(states, key=fleet_status.STATES.index))


def _tiles(found: fleet_status.Status) -> str:
    counts = found.counts
    items = [(str(counts["hosts"]), "hosts" if counts["hosts"] != 1 else "host", "")]
    items += [(str(counts["silent"]), "not answering", "fails")] if counts["silent"] else []
    items += [
        (str(counts[state]), f"service{'s'[: counts[state] != 1]} {word}", SHADES[state])
        for state, word in fleet_status.WORDS.items()
        if counts[state]
    ]
    running = [each for row in found.services if (each := _figure(row.requests_running)) is not None]
    items += [(str(int(sum(running))), "requests now", "")] if running else []
    return page_parts.tiles(items)


def _figure(value: Any) -> float | None:
    """What a host said, as far as it is a number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# --- what needs attention ---------------------------------------------------------------------------------------------


def _attention(found: fleet_status.Status, planned: Mapping[str, Mapping[str, Any]], others: Sequence[Endpoint]) -> str:
    """What is not well, the worst first, each with its fix; then errors and warnings of the plan."""
    lines = [*_silent(found), *_troubled(found)]
    lines += [
        _item(str(each.key), "down", str(each.error), str(each.hint or "See its log."), "fails")
        for each in others
        if not each.ok
    ]
    lines += _of_plan(found, planned)
    if not lines:
        return "<section><h2>Needs attention</h2><p>Nothing: all that was asked is well.</p></section>"
    return "\n".join(["<section>", "<h2>Needs attention</h2>", '<ul class="attention">', *lines, "</ul>", "</section>"])


def _item(where: str, word: str, text: str, fix: str, shade: str) -> str:
    told = f"<br>{escape(fleet_status.short(text))}" if text else ""
    return (
        f'<li class="{shade}"><b>{escape(where)}</b> <span class="word {shade}">{escape(word)}</span>{told}'
        f"<br><b>Fix:</b> {escape(fix)}</li>"
    )


def _silent(found: fleet_status.Status) -> list[str]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for host, body in found.hosts.items():
        if body.silent:
            groups.setdefault((body.state, body.why, FIXES[body.state]), []).append(host)
        elif body.notes:
            groups.setdefault(("look", "; ".join(body.notes), FIXES["look"].format(host=host)), []).append(host)
    ordered = sorted(groups.items(), key=lambda item: fleet_status.STATES.index(item[0][0]))
    return [_item(picture.names_text(hosts), key[0], key[1], key[2], SHADES[key[0]]) for key, hosts in ordered]


def _troubled(found: fleet_status.Status) -> list[str]:
    lines = []
    for row in found.services:
        state = row.state
        if state not in ("down", "starting", "look"):
            continue
        said = dict.fromkeys(str(text) for text in (row.status, row.error, *row.notes) if text)
        fix = FIXES.get(state, "On {host}: journalctl -eu spark-{service}; doctor.yml --limit {host} explains it.")
        lines.append(
            _item(
                f"{row.host}/{row.service}",
                state,
                "; ".join(said) or f"no answer ({row.stage})",
                fix.format(host=row.host, service=row.service),
                SHADES[state],
            )
        )
    return lines


def _of_plan(found: fleet_status.Status, planned: Mapping[str, Mapping[str, Any]]) -> list[str]:
    findings = [
        {"host": host, **finding}
        for host in found.hosts
        for finding in (planned.get(host) or {}).get("findings") or []
        if finding["severity"] != "info"
    ]
    return [
        _item(
            group.where,
            f"plan: {group.first['rule']}",
            group.first["message"],
            group.first.get("fix") or "plan.yml shows it with the rest of the plan.",
            "fails" if group.first["severity"] == "error" else "tight",
        )
        for group in picture.same_findings(findings)
    ]


# --- hosts ------------------------------------------------------------------------------------------------------------


def _host(host: str, found: fleet_status.Status, body: Mapping[str, Any], unfolded: bool) -> str:
    """One host: memory as it is beside the planned, and its services."""
    rows, said, state = _rows(found, host), found.hosts[host], _worst(found, host)
    live = live_map(said, rows, body)
    shade = SHADES[state]
    lines = [
        f'<details class="host {shade}"{" open" if unfolded else ""}><summary><span class="name">{escape(host)}</span>'
        f'<span class="soft">{len(rows)} service{"s"[: len(rows) != 1]}</span><span class="word {shade}">{state}</span></summary>',
        '<div class="inside">',
    ]
    if live:
        lines.append(_pair("now", live))
    if body.get("memory_map"):
        lines.append(_pair("plan", {"memory_map": body["memory_map"], "total_gib": body["total_gib"]}))
    if not live:
        lines.append(f"<p>Its memory is not known: {escape(fleet_status.short(said.why or 'it did not say'))}.</p>")
    lines += [_services(rows, host), "</div></details>"]
    return "\n".join(lines)


def _pair(word: str, body: Mapping[str, Any]) -> str:
    return (
        f'<div class="pair"><span class="soft">{word}</span>{page_parts.memory_bar(body)}'
        f'<span class="room">{picture.room_text(body)}</span></div>'
    )


def live_map(said: fleet_status.HostState, rows: Iterable[Row], body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the memory of a host as it is: what services hold, all else, what is available. None where it is not known.

    said: the host of C(fleet_status.report). rows: its services. body: its plan, for the order, and so the colours, of services.
    """
    total, available = _figure(said.total_gib), _figure(said.available_gib)
    if total is None or available is None or not 0 <= available <= total:
        return None
    held = {row.service: each for row in rows if (each := _figure(row.residency_gib)) is not None}
    order = dict.fromkeys([part["service"] for part in body.get("memory_map") or [] if part["service"]] + [*held])
    parts = [
        {"label": name, "gib": max(held.get(name, 0.0), 0.0), "kind": "weights", "service": name} for name in order
    ]
    other = max(total - available - sum(part["gib"] for part in parts), 0.0)
    parts.insert(0, {"label": "system and others", "gib": other, "kind": "system", "service": None})
    # What services hold counts in full: GPU memory and the kernel's own figures are not of one moment.
    free = max(total - sum(part["gib"] for part in parts), 0.0)
    return {
        "memory_map": [*parts, {"label": "free", "gib": free, "kind": "free", "service": None}],
        "total_gib": total,
    }


HEADS = ("service", "model", "state", "requests", "KV use", "GiB", "planned", "tok/s", "fast path", "up")
FIGURES = ("requests", "KV use", "GiB", "planned", "tok/s", "served tok/s")
"""Columns that are flush right."""
WATCHED = ("served tok/s", "last proof")
"""Columns of what the fleet monitor knows beside the others."""


def _services(rows: Sequence[Row], host: str) -> str:
    if not rows:
        return "<p>No services planned.</p>"
    watched = any(row.watched for row in rows)
    heads = [*HEADS, *(WATCHED if watched else ())]
    return _table(f"services of {host}", heads, [_service(row, watched) for row in rows])


def _table(label: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table; label: plain text, for who does not see it."""
    lines = [
        # What may be wider than a phone can be reached by the keyboard.
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table><thead><tr>',
        *(f'<th scope="col"{" class=n" if head in FIGURES else ""}>{head}</th>' for head in heads),
        "</tr></thead><tbody>",
        *rows,
    ]
    return "".join([*lines, "</tbody></table></div>"])


def _others(others: Sequence[Endpoint]) -> str:
    """Return what else is checked: gateway, speech, Ollama, further endpoints."""
    if not others:
        return ""
    rows = []
    for each in others:
        shade, word = ("fits", "up") if each.ok else ("fails", "down")
        said = fleet_status.short(each.error or each.note or "")
        rows.append(
            f"<tr><td>{escape(str(each.key))}</td><td>{escape(str(each.where))}</td>"
            f'<td><span class="word {shade}">{word}</span></td><td>{escape(said)}</td></tr>'
        )
    table = _table("other endpoints", ("endpoint", "address", "state", "said"), rows)
    return f'<section><h2>Other endpoints</h2><div class="open inside">{table}</div></section>'


def _proof(watched: Watched) -> str:
    """Say when a service was proved last, and how fast it was."""
    measured = f", {watched.proved_rate:.1f} tok/s" if watched.proved_rate is not None else ""
    return f"{watched.proved}{measured}" if watched.proved else "-"


def _service(row: Row, watched: bool) -> str:
    use, running = _figure(row.kv_cache_usage), _figure(row.requests_running)
    shade = SHADES[row.state]
    stage = (
        "" if row.state in ("well", "look", *fleet_status.MEANT_IDLE) else f"<small>{escape(str(row.stage))}</small>"
    )
    part = f"<small>{escape(status_rows.part(row))}</small>" if row.cluster else ""
    cells = [
        f"<td>{escape(str(row.service))}{part}</td>",
        f"<td>{escape(str(row.model or '-'))}</td>",
        f'<td><span class="word {shade}">{escape(row.state)}</span>{stage}</td>',
        page_parts.cell("requests", "-" if running is None else f"{int(running)}+{int(row.requests_waiting or 0)}"),
        page_parts.cell("KV use", "-" if use is None else f"{100 * use:.0f} %"),
        page_parts.cell("GiB", tables.gib(row.residency_gib, already_gib=True)),
        page_parts.cell("planned", tables.gib(row.planned_gib, already_gib=True)),
        page_parts.cell("tok/s", status_rows.decode(row)),
        f"<td>{escape(str(row.fast_path or '-'))}</td>",
        f'<td class="v">{escape(tables.uptime(row.uptime_seconds))}</td>',
    ]
    if watched:
        known = row.watched or Watched(None, None, None)
        served = known.tokens_per_second
        cells.append(page_parts.cell("served tok/s", "-" if served is None else f"{served:.1f}"))
        cells.append(f'<td class="v">{escape(_proof(known))}</td>')
    return f"<tr>{''.join(cells)}</tr>"
