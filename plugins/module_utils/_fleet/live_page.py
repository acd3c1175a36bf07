# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the live page as parts with ids, each replaced on its own when it changes. Pure functions.

The whole page works without a script. It has no inline style and no inline script, so its policy allows neither; bars are SVG.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape

from .._common import tables
from .._plan import page_parts, picture
from . import fleet_status, status_page
from .fleet_status import HostState, Status
from .live_alarms import Alarms
from .live_status import Spark
from .status_page import SHADES, Endpoint
from .status_rows import LiveFigures, Row

TITLE = "DGX Sparks, live"
HEADS = ("service", "on", "state", "tok/s", "requests", "KV cache", "memory", "up", "last proof", "age")
FIGURES = ("tok/s", "requests", "KV cache", "memory")
CHARTS = ("memory", "GPU load", "power", "tok/s")
"""Of C(live_status.figures), in its order."""
_AGE = re.compile(r">at-((?:host|alarm)-[0-9a-f]{12})<")
MOST_ALARMS = 50
VERBS = ("start", "stop", "warm", "cold", "auto", "drain", "admit")
STYLE = """
.sparks{list-style:none;margin:0;padding:0;display:grid;gap:.7rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr))}
.spark{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem;content-visibility:auto;
contain-intrinsic-size:auto 17rem}
.spark h3{font-size:1rem;margin:0;display:flex;justify-content:space-between;gap:.6rem;overflow-wrap:anywhere}
.gauge{display:block;width:100%;height:1.1rem;border-radius:.3rem;margin:.4rem 0 .2rem;background:var(--free)}
.gauge .part{fill:var(--c)}.gauge .system{fill:var(--system)}.gauge .free{fill:var(--free)}
.keys,.figures{display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.2rem 0;padding:0;list-style:none;font-size:.85rem;
font-variant-numeric:tabular-nums}
.figures{gap:.1rem 1.1rem}.figures div{display:flex;gap:.35rem}.figures dt{color:var(--soft)}.figures dd{margin:0}
.keys .system{background:var(--system)}.keys .free{background:var(--free);border:1px solid var(--system)}
.charts{display:none;grid-template-columns:1fr 1fr;gap:.2rem .8rem;min-height:6.6rem}.live .charts{display:grid}
.chart{min-width:0;height:3.1rem;font-size:.78rem;color:var(--soft)}.chart .uplot{pointer-events:none}
.age{color:var(--soft);white-space:nowrap}.controls{display:none}.live .controls{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem}
button{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:.3rem;padding:.15rem .6rem;
margin:.1rem .2rem .1rem 0;min-height:1.6rem;cursor:pointer}
button:focus-visible,input:focus-visible,.scroll:focus-visible{outline:3px solid var(--info);outline-offset:2px}
@media(min-width:761px){.services{table-layout:fixed}.services th{width:7.6%}.services th:nth-child(1),.services th:nth-child(3){width:15%}
.services th:nth-child(11){width:13%}.services th:nth-child(9){width:9%}}
.late{content-visibility:auto;contain-intrinsic-size:auto 60rem}
.acts{display:none}.live .acts{display:block}
""".strip()


def css() -> str:
    """Return the style sheet, in the colours of the other pages."""
    # A rule with :has would be tried again at each change of a part.
    shared = (line for line in page_parts.STYLE.splitlines() if ":has(" not in line)
    return "\n".join([*shared, status_page.STYLE, STYLE, ""])


def part_id(kind: str, name: str) -> str:
    """Return the id of a part, from the name of a host or service, which may hold any character."""
    return f"{kind}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"


def parts(
    status: Status,
    sparks: Sequence[Spark],
    endpoints: Sequence[Endpoint],
    has_actions: bool,
    alarms: Alarms | None = None,
) -> dict[str, str]:
    """Return the parts of the page as HTML by id, in their order, with a mark of C(age) in place of the age of figures.

    status, endpoints: of C(live_status.report) of the Sparks. alarms: of Prometheus, None without one.
    """
    rows: dict[str, list[Row]] = {}
    for row in sorted(status.services, key=lambda row: (picture.natural(row.name), row.rank)):
        rows.setdefault(row.name, []).append(row)
    return {
        "summary": f'<p id="summary" role="status">{escape(fleet_status.head(status))}</p>',
        "counts": f'<div id="counts">{status_page.summary_tiles(status)}</div>',
        "alarms": f'<div id="alarms">{status_page.attention(status, {}, endpoints)}</div>',
        "prometheus": f'<div id="prometheus">{_alarms(alarms) if alarms else ""}</div>',
        **{part_id("host", spark.host): _spark(spark, status) for spark in sparks},
        **{part_id("service", name): _service(name, ranks, has_actions) for name, ranks in rows.items()},
        "endpoints": f'<div id="endpoints">{_endpoints(endpoints)}</div>',
    }


def document(made: Mapping[str, str], ages: Mapping[str, float | None], has_actions: bool, number: int = 0) -> str:
    """Return the whole page of C(parts), with the number of its frame.

    ages: seconds since 1970 of the figures of each host, by the id of its part, and of the begin of each alarm.
    """
    heads = [*HEADS, *(["actions"] if has_actions else [])]
    columns = "".join(f'<th scope="col"{" class=n" if head in FIGURES else ""}>{head}</th>' for head in heads)
    tiles = "\n".join(
        f'<li class="spark">{html}<div class="charts" data-of="{key}"></div></li>'
        for key, html in made.items()
        if key.startswith("host-")
    )
    rows = "\n".join(html for key, html in made.items() if key.startswith("service-"))
    body = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<link rel="stylesheet" href="/uplot.css">
<link rel="stylesheet" href="/live.css">
<script src="/uplot.js" defer></script>
<script src="/live.js" defer></script>
<noscript><meta http-equiv="refresh" content="30"></noscript>
</head>
<body>
<main data-frame="{number}" data-shape="{shape(made)}">
<h1>{TITLE}</h1>
<div class="controls"><label><input type="checkbox" id="keep-up" checked> Keep this page up to date</label>
<strong class="word fails" id="kept-up" role="alert"></strong><span id="done" role="status"></span></div>
{made["summary"]}
{made["counts"]}
{made["alarms"]}
{made["prometheus"]}
<section><h2>Sparks</h2>
<ul class="sparks">
{tiles}
</ul></section>
<section class="late"><h2>Services</h2>
<div class="open inside"><div class="scroll" tabindex="0" role="region" aria-label="services of all Sparks"><table class="cards services">
<thead><tr>{columns}</tr></thead>
<tbody id="services">
{rows}
</tbody></table></div></div></section>
{made["endpoints"]}
</main>
</body>
</html>
"""
    return with_ages(body, ages)


def shape(made: Iterable[str]) -> str:
    """Return a mark of the ids of a page: with another one it has to be loaded again. made: of C(parts)."""
    return hashlib.sha256(",".join(made).encode()).hexdigest()[:12]


def age(host: str) -> str:
    """Return the mark for the age of the figures of a host."""
    return _time(part_id("host", host))


def _time(key: str) -> str:
    return f'<time class="age" data-of="{key}">at-{key}</time>'


def with_ages(html: str, ages: Mapping[str, float | None]) -> str:
    """Return HTML with times in place of the marks of C(age). ages: see C(document)."""

    def clock(match: re.Match[str]) -> str:
        at = ages.get(match[1])
        day = "%Y-%m-%d " if match[1].startswith("alarm") else ""
        return f">{'never' if at is None else datetime.fromtimestamp(at, timezone.utc).strftime(f'{day}%H:%M:%S UTC')}<"

    return _AGE.sub(clock, html)


def _alarms(alarms: Alarms) -> str:
    """Return the firing alarms of Prometheus, and whether further ones are unknown."""
    lines = []
    for alarm in alarms.rows[:MOST_ALARMS]:
        shade = "fails" if alarm.severity == "critical" else "tight"
        began = "" if alarm.since is None else f"<br>began {_time(part_id('alarm', alarm.key))}"
        lines.append(
            f'<li class="{shade}"><b>{escape(alarm.name)}</b> <span class="word {shade}">{escape(alarm.severity)}</span> '
            f"{escape(alarm.where)}<br>{escape(alarm.text)}{began}</li>"
        )
    more = len(alarms.rows) - MOST_ALARMS
    notes = [f"<p>And {more} more.</p>"] if more > 0 else []
    if alarms.why:
        notes.append(f'<p><span class="word fails">unknown</span> {escape(alarms.why)}.</p>')
    elif not lines:
        notes.append(f"<p>None of {alarms.rules} rules fires.</p>")
    shown = f'<ul class="attention">{"".join(lines)}</ul>' if lines else ""
    return f"<section><h2>Alarms of Prometheus</h2>{shown}{''.join(notes)}</section>"


# --- a Spark


def _spark(spark: Spark, status: Status) -> str:
    """Return the tile of a Spark: its state, memory, figures and age."""
    state = status_page.worst_state(status, spark.host)
    rows = [row for row in status.services if row.host == spark.host]
    memory = _memory(status.hosts[spark.host], rows) if spark.document and not spark.why else ""
    figures = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in _figures(spark))
    return (
        f'<div id="{part_id("host", spark.host)}"><h3><span>{escape(spark.host)}</span><span class="word {SHADES[state]}">{state}</span></h3>'
        f'{memory}<dl class="figures">{figures}</dl><p>{age(spark.host)}</p></div>'
    )


def _memory(host: HostState, rows: Sequence[Row]) -> str:
    """Return the memory bar of a host, and what its colours mean."""
    live = status_page.live_map(host, rows, {"memory_map": []})
    if live is None:
        return '<p class="soft">Its memory is not known.</p>'
    hues = picture.service_hues(live["memory_map"], len(page_parts.HUES))
    scale = max(live["total_gib"], sum(part["gib"] for part in live["memory_map"])) or 1.0
    bars, keys, offset = [], [], 0.0
    for part in live["memory_map"]:
        width = 100 * part["gib"] / scale
        style = f"s{hues[part['service']]} part" if part["service"] else part["kind"]
        dot = style.replace(" part", "")
        bars.append(f'<rect class="{style}" x="{offset:.2f}" width="{width:.2f}" height="10"/>')
        keys.append(f'<li><i class="dot {dot}"></i>{escape(part["label"])} {picture.size_text(part["gib"])} GiB</li>')
        offset += width
    text = f"memory: {picture.room_text(live)} of {live['total_gib']:.1f} GiB"
    svg = f'<svg class="gauge" role="img" aria-label="{text}" viewBox="0 0 100 10" preserveAspectRatio="none">'
    return f'{svg}{"".join(bars)}</svg><ul class="keys">{"".join(keys)}</ul>'


def _figures(spark: Spark) -> list[tuple[str, str]]:
    """Return the figures of a Spark with their names; unknown ones are left out."""
    document, gpu = spark.document or {}, spark.gpu
    if spark.why or not document:
        return [("figures", "none")]
    up = [link for link in document["links"] if link["up"]]
    speeds = [f"{link['gbps']:g} Gb/s" for link in up if link["gbps"] is not None]
    figures = (
        ("GPU", gpu.get("utilization_percent"), "%"),
        ("CPU", document["cpu_percent"], "%"),
        ("power", gpu.get("power_w"), "W"),
        ("temperature", gpu.get("temperature_c"), "°C"),
        ("clock", gpu.get("sm_clock_mhz"), "MHz"),
    )
    rows = [(name, f"{value:.0f} {unit}") for name, value, unit in figures if value is not None]
    if document["links"]:
        rows.append(("links", ", ".join([f"{len(up)} of {len(document['links'])} up", *speeds[:1]])))
    return rows or [("figures", "not known")]


# --- services


def _load_cells(row: Row, live: LiveFigures) -> list[str]:
    """Return the cells of a service's decode rate, requests and KV cache."""
    number, figure = status_page.number, page_parts.cell
    running, waiting, use = number(row.requests_running), number(row.requests_waiting), number(row.kv_cache_usage)
    rate = "-" if live.tokens_per_second is None else f"{live.tokens_per_second:.1f}"
    predicted = f"{live.predicted:.1f} predicted" if live.predicted else ""
    queue = f"{int(waiting)} waiting" if waiting else ""
    return [
        figure("tok/s", rate, False, predicted),
        figure("requests", "-" if running is None else f"{int(running)} running", False, queue),
        figure("KV cache", "-" if use is None else f"{100 * use:.0f} %"),
    ]


def _memory_cell(ranks: Sequence[Row]) -> str:
    """Return the cell of the measured and planned memory of all ranks."""
    held = [size for rank in ranks if (size := status_page.number(rank.residency_gib)) is not None]
    planned = [size for rank in ranks if (size := status_page.number(rank.planned_gib)) is not None]
    planned_size = f"{sum(planned):.1f} planned" if planned else ""
    return page_parts.cell("memory", f"{sum(held):.1f} GiB" if held else "-", False, planned_size)


def _service(name: str, ranks: Sequence[Row], has_actions: bool) -> str:
    """Return the row of a service; a service of a cluster is one. ranks: in their order."""
    worst = min(ranks, key=lambda row: fleet_status.STATES.index(row.state))
    row, live = ranks[0], ranks[0].live or LiveFigures(None, None, None, None)
    hosts = picture.names_text([rank.host for rank in ranks])
    text = page_parts.text_cell
    word = f'<span class="word {SHADES[worst.state]}">{worst.state}</span>'
    rank_note = f"{row.size} ranks" if row.cluster else ""
    version = f", vLLM {row.vllm_version}" if row.vllm_version else ""
    proof = "" if live.proved_rate is None else f"{live.proved_rate:.1f} tok/s"
    # The progress of a start, or why a service is not up.
    why = worst.status or "; ".join(worst.notes) or ("" if worst.state == "unloaded" else worst.error)
    note = "" if worst.state in ("healthy", "stopped", "unreachable") else fleet_status.short(why)
    cells = [
        text("service", escape(row.service), f"{row.model or '-'}{version}", "m"),
        text("on", escape(hosts), rank_note, "v"),
        text("state", word, note),
        *_load_cells(row, live),
        _memory_cell(ranks),
        text("up", escape(tables.uptime(row.uptime_seconds)), style="v"),
        text("last proof", escape((live.proved or "-")[:10]), proof, "v"),
        text("age", age(row.host)),
    ]
    if has_actions:
        is_known = worst.state not in ("unreachable", "unknown")
        cells.append(text("actions", _buttons(row, worst) if is_known and not row.cluster else "-"))
    return f'<tr id="{part_id("service", name)}">{"".join(cells)}</tr>'


def _buttons(row: Row, worst: Row) -> str:
    """Return the actions that the state of a service allows."""
    is_up = worst.unit in ("active", "activating", "reloading")
    verbs = ["stop" if is_up else "start", *(("warm", "cold", "auto") if row.meant == "on_demand" else ())]
    verbs += ["drain", "admit"] if is_up else []
    target = f'data-host="{escape(row.host)}" data-service="{escape(row.service)}"'
    buttons = "".join(
        f'<button type="button" data-verb="{verb}" {target} aria-label="{verb} {escape(row.service)} on {escape(row.host)}">{verb}</button>'
        for verb in verbs
    )
    return f'<span class="acts">{buttons}</span>'


def _endpoints(endpoints: Sequence[Endpoint]) -> str:
    """Return the other checked endpoints: gateway, speech, Ollama, Sparks without a document."""
    if not endpoints:
        return ""
    heads, rows = ("endpoint", "address", "state", "answer"), []
    for endpoint in endpoints:
        shade, word = ("fits", "up") if endpoint.ok else ("fails", "down")
        cells = (
            escape(endpoint.key),
            escape(endpoint.where),
            f'<span class="word {shade}">{word}</span>',
            escape(fleet_status.short(endpoint.error or endpoint.note)),
        )
        rows.append("".join(map(page_parts.text_cell, heads, cells)))
    table = page_parts.table(heads, rows, label="other endpoints")
    return f'<section><h2>Other endpoints</h2><div class="open inside">{table}</div></section>'
