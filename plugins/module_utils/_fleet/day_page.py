# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the last day of each Spark as a page: its services cold, warm, starting and down, restarts, and alarms of its agent.

Pure functions. Time that no answer covers stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any

from .._common import tables
from .._plan import page_parts
from . import timeline, unit_history
from .unit_history import AGENT, DAY

Day = Mapping[str, Any]
KINDS = {
    "running": ("running", "s2"),
    "warm": ("warm (on demand)", "s0"),
    "starting": ("starting", "s1"),
    "cold": ("cold (on demand)", "s4 half"),
    "stopped": ("stopped", "s5"),
    "failed": ("failed", "failed"),
    "unknown": ("unknown: host off, or no record", "unknown"),
}
"""Kinds of time with words and style."""
ON_DEMAND = {"running": "warm", "stopped": "cold"}
MOST_ALARMS = 20
"""Different alarms of a host that are listed."""
STYLE = (
    timeline.STYLE
    + """
.line,.legend i.unknown{background:repeating-linear-gradient(45deg,var(--line) 0 2px,var(--card) 2px 8px)}
.line .failed,.legend .failed,.line .alarm,.legend .alarm{--c:var(--fails)}.line .alarm{min-width:3px}.legend i.alarm{width:3px}
.hours{display:flex;justify-content:space-between;color:var(--soft);font-size:.8rem}"""
)


def page(days: Mapping[str, Day | str], planned: Mapping[str, Mapping[str, Any]], at: str, inventory: str = "") -> str:
    """Return the page.

    days: the section C(history) of M(dgxspark.vllm.spark_info) by host, or the reason for a missing one. planned: plans by host. at: time of the
    answers, ISO 8601 in UTC. inventory: its name.
    """
    answers = [day for day in days.values() if not isinstance(day, str)]
    silent, alarms = len(days) - len(answers), sum(len(day["alarms"]) for day in answers)
    restarts = sum(unit["restarts"] for day in answers for unit in day["units"].values())
    tiles = [
        (str(len(days)), "hosts", ""),
        *([(str(silent), "without an answer", "fails")] if silent else []),
        (str(restarts), "restarts", "tight" if restarts else ""),
        (str(alarms), "alarms", "tight" if alarms else ""),
    ]
    hours = "".join(f"<span>{text}</span>" for text in ("24 h ago", "18 h", "12 h", "6 h", "now"))
    sections = [
        f'<p class="soft">{escape(page_parts.as_of(at, inventory))}</p>',
        page_parts.tiles(tiles),
        timeline.legend([*((style, words) for words, style in KINDS.values()), ("alarm", "alarm")]),
        f'<div class="lane"><b></b><div class="hours">{hours}</div></div>',
    ]
    for host, day in days.items():
        sections.append(f"<h2>{escape(host)}</h2>")
        if isinstance(day, str):
            sections.append(f'<p class="soft">{escape(day)}</p>{timeline.lane_of("", [], "unknown")}')
        else:
            sections += _host(host, day, planned.get(host) or {}, datetime.fromisoformat(at))
    return page_parts.document("The last day of DGX Sparks", sections, STYLE)


def _host(host: str, day: Day, plan: Mapping[str, Any], at: datetime) -> Iterable[str]:
    """Yield the lines of a host and their figures. at: time of the answer."""
    rows = []
    for service in [*(plan.get("services") or []), *(plan.get("speech") or [])]:
        unit = day["units"].get(service["name"]) or {"spans": [], "restarts": 0}
        kinds = ON_DEMAND if service.get("on_demand") or service.get("state") == "on_demand" else {}
        spans = [(kinds.get(span["state"], span["state"]), span["begin"], span["end"]) for span in unit["spans"]]
        rows.append((service["name"], "", _totals(spans), str(unit["restarts"])))
        text = _text(rows[-1][2]) + f", {unit['restarts']} restarts" * bool(unit["restarts"])
        yield timeline.lane_of(service["name"], map(_span, spans), text)
    agent = (day["units"].get(AGENT) or {}).get("spans") or []
    watched = [("running", span["begin"], span["end"]) for span in agent if span["state"] == "running"]
    marks = [timeline.span_of("alarm", alarm["at"], alarm["at"], DAY, alarm["text"]) for alarm in day["alarms"]]
    text = f"watched: {_text(_totals(watched))}; {len(day['alarms'])} alarms"
    yield timeline.lane_of("alarms (agent)", [*map(_span, watched), *marks], text, "part")
    yield from timeline.figures_table(("service", "restarts"), map(_word, KINDS), rows, f"Time by state on {host}")
    yield from _alarms(host, day["alarms"], at)


def _span(span: tuple[str, float, float]) -> str:
    kind, begin, end = span
    return timeline.span_of(KINDS[kind][1], begin, end, DAY, f"{_word(kind)} {tables.uptime(end - begin)}")


def _word(kind: str) -> str:
    return KINDS[kind][0].partition(":")[0]


def _totals(spans: Iterable[tuple[str, float, float]]) -> dict[str, str]:
    """Return the time of each kind in words; time without a span is unknown."""
    totals = dict.fromkeys(KINDS, 0.0)
    for kind, begin, end in spans:
        totals[kind] += max(min(end, DAY) - begin, 0.0)
    totals["unknown"] = max(DAY - sum(totals.values()), 0.0)
    return {_word(kind): tables.uptime(seconds) for kind, seconds in totals.items() if seconds >= 1}


def _text(totals: Mapping[str, str]) -> str:
    return ", ".join(f"{word} {time}" for word, time in totals.items())


def _alarms(host: str, alarms: Sequence[Mapping[str, Any]], at: datetime) -> Iterable[str]:
    """Yield the table of alarms, equal ones in one row, the newest first."""
    texts: dict[str, list[float]] = {}
    for alarm in alarms:
        texts.setdefault(alarm["text"], []).append(min(alarm["at"], DAY))
    rows = []
    for text, times in sorted(texts.items(), key=lambda item: -max(item[1]))[:MOST_ALARMS]:
        last = at - timedelta(seconds=DAY - max(times))
        rows.append((f"{last:%d %b %H:%M} UTC", "", {"times": str(len(times))}, text))
    if len(alarms) >= unit_history.MOST_ALARMS:
        yield f'<p class="soft">Only the newest {unit_history.MOST_ALARMS} alarms were read.</p>'
    yield from timeline.figures_table(("last", "alarm"), ["times"], rows, f"Alarms of {host}")
