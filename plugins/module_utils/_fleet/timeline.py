# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The timeline of a run as a page: for each host what it did when, and the stages of each engine's start, by the events of the run.

Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Any

from .._plan import page_parts
from .._runtime import start_stages
from . import progress

KINDS = {
    "bring": "images and models",
    "deploy": "deploy",
    "load": "engine starts",
    "prove": "prove",
    "undo": "roll back",
    "other": "other",
}
"""Kinds of work with their words, in the order of their colours."""
_OF_STAGE = {progress.FETCH: "bring", progress.SPREAD: "bring", progress.LOAD: "load"}
_OF_TASK = (
    ("undo", re.compile(r"roll(ed)? back|restore|rollback", re.IGNORECASE)),
    ("prove", re.compile(r"prove|benchmark|earlier results", re.IGNORECASE)),
    ("load", re.compile(r"wait|answer|start", re.IGNORECASE)),
    ("bring", re.compile(r"image|model|snapshot|weights|download|spread", re.IGNORECASE)),
    ("deploy", re.compile(r"deploy|install|unit|add-on|apply|document", re.IGNORECASE)),
)
"""Kinds of tasks by words of their names; the first match counts."""
STAGES = {
    "gate": ("waits for its turn", "s5 half"),
    "arguments": ("arguments", "s5"),
    "device": ("device", "s3 half"),
    "load": ("load weights", "s0"),
    "compile": ("compile", "s1"),
    "profile": ("profile", "s1 half"),
    "kv_cache": ("KV cache", "s2"),
    "graphs": ("graphs", "s3"),
    "warm-up": ("warm-up", "s4"),
    "serving": ("first answer", "s4 half"),
}
"""Stages of C(start_stages.ALL_STAGES) with words and style; compiling, which the engine reports itself, is a part of C(profile)."""
_STAGE_OF_LOAD = re.compile(rf"(.+) \(({'|'.join(start_stages.STAGES)})\)")
LEAST_SECONDS = 0.2  # of a piece that is drawn
STYLE = """.lane{display:grid;grid-template-columns:minmax(6rem,12rem) 1fr;gap:.8rem;align-items:center;margin:.25rem 0}
.lane b{overflow-wrap:anywhere}.line{position:relative;height:1.2rem;background:var(--free);border-radius:.2rem;overflow:hidden}
.line span{position:absolute;top:0;bottom:0;background:var(--c);min-width:1px}.line .s5{--c:var(--system)}
.line .bad{outline:2px solid var(--fails);outline-offset:-2px}.line .batch{min-width:2px;background:var(--ink)}
.legend i{background:var(--c)}.legend .s5{--c:var(--system)}.lane.part b{font-weight:400;padding-left:1rem}.lane.part .line{height:.8rem}
.line .half,.legend .half{background:repeating-linear-gradient(45deg,var(--c) 0 3px,color-mix(in srgb,var(--c) 45%,var(--card)) 3px 6px)}
@media(max-width:760px){.lane{grid-template-columns:1fr;gap:.1rem}}"""


@dataclass
class Piece:
    """Work of one kind without a break. begin, end: seconds since the begin of the run; names: of its tasks."""

    kind: str
    begin: float
    end: float
    names: list[str]
    failed: bool = False


@dataclass
class Start:
    """A start of an engine. stages: each with its seconds, in their order; begin: in seconds since the begin of the run.

    is_measured: by the host, in which case its end was the first answer; otherwise seen in passing, up to a minute late.
    """

    begin: float
    stages: list[tuple[str, float]]
    is_measured: bool = False

    @property
    def end(self) -> float:
        """The end, in seconds since the begin of the run."""
        return self.begin + sum(seconds for _stage, seconds in self.stages)

    def reach(self, stage: str, now: float) -> None:
        """Lengthen the present stage to this moment, and begin the given one if it is another."""
        present, seconds = self.stages[-1]
        self.stages[-1] = (present, max(seconds + now - self.end, 0.0))
        if stage != present:
            self.stages.append((stage, 0.0))


@dataclass
class Lane:
    """A host with its pieces, errors, and starts by service."""

    pieces: list[Piece] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    starts: dict[str, list[Start]] = field(default_factory=dict)


@dataclass
class Timeline:
    """A run. seconds: its duration; batches: begin of each batch in seconds, with its name."""

    verb: str
    began: str
    seconds: float
    lanes: dict[str, Lane]
    batches: dict[str, float]


def of_events(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Return the timeline of the events of a run; docs/automation.md has their fields."""
    timeline = Timeline("", "", 0.0, {}, {})
    running: dict[str, Piece] = {}
    start = None
    for event in events:
        at = datetime.fromisoformat(event["time"])
        start = start or at
        now = timeline.seconds = max((at - start).total_seconds(), timeline.seconds)  # also if the clock is set back
        kind, host = event["event"], str(event.get("host") or "")
        lane = timeline.lanes.setdefault(host, Lane()) if host else Lane()
        if kind == "run":
            timeline.verb, timeline.began = str(event["verb"]), event["time"]
        elif kind == "begin":
            running[host] = Piece(kind_of(event["task"]), now, now, [event["task"]])
        elif kind == "progress" and not host:
            timeline.batches.setdefault(str(event["what"]), now)
        elif kind == "progress" and host in running:
            running[host].kind = _OF_STAGE.get(event["stage"], running[host].kind)
            _see_stage(lane, event, running[host].begin, now)
        elif kind == "proof" and event.get("start"):
            _take_start(lane, str(event["service"]), event["start"], now)
        elif kind == "end" and host in running:
            piece = running.pop(host)
            piece.end, piece.failed = now, event["result"] in ("failed", "unreachable")
            _add(lane.pieces, piece)
            _end_starts(lane, piece)
        elif kind == "error":
            lane.errors.append(f"{event['task']}: {event['message']}")
    for host, piece in running.items():  # of an interrupted run
        piece.end = timeline.seconds
        _add(timeline.lanes[host].pieces, piece)
        _end_starts(timeline.lanes[host], piece)
    return timeline


def _see_stage(lane: Lane, event: Mapping[str, Any], begin: float, now: float) -> None:
    """Note the stage that an event reports of a starting engine. begin: of the task that waits for it."""
    match = _STAGE_OF_LOAD.fullmatch(str(event["what"])) if event["stage"] == progress.LOAD else None
    if match:
        starts = lane.starts.setdefault(match[1], [])
        if not starts or starts[-1].is_measured or starts[-1].end < begin:
            starts.append(Start(now, [(match[2], 0.0)]))
        starts[-1].reach(match[2], now)


def _end_starts(lane: Lane, piece: Piece) -> None:
    """Lengthen the starts that a task waited for to its end. With several services only the last one was still starting."""
    seen = [
        starts[-1] for starts in lane.starts.values() if not starts[-1].is_measured and starts[-1].end >= piece.begin
    ]
    if seen:
        last = max(seen, key=lambda start: start.end)
        last.reach(last.stages[-1][0], piece.end)


def _take_start(lane: Lane, service: str, start: Mapping[str, Any], now: float) -> None:
    """Take a start that the host has measured, in place of what was seen of it, unless it was over before the run."""
    end = now - start["age_seconds"]
    if end <= 0:
        return
    stages: list[tuple[str, float]] = []
    for stage, seconds in start["stages"].items():
        compiled = min(start["said"].get("compile_seconds", 0.0), seconds) if stage == "profile" else 0.0
        stages += [("compile", compiled)] * (compiled > 0) + [(stage, seconds - compiled)]
    measured = Start(end - sum(seconds for _stage, seconds in stages), stages, True)
    others = [other for other in lane.starts.get(service, []) if other.end <= measured.begin or other.begin >= end]
    lane.starts[service] = [*others, measured]


def kind_of(task: str) -> str:
    """Return the kind of a task by its name."""
    return next((kind for kind, words in _OF_TASK if words.search(task)), "other")


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece, or lengthen the last one if it is of the same kind and close."""
    last = pieces[-1] if pieces else None
    if last and not last.failed and last.kind == piece.kind and piece.begin - last.end < 1:
        last.end, last.failed = piece.end, piece.failed
        last.names += [name for name in piece.names if name not in last.names]
    elif piece.failed or piece.end - piece.begin >= LEAST_SECONDS:
        pieces.append(piece)


def page(timeline: Timeline, inventory: str = "") -> str:
    """Return the page of a timeline. inventory: name of the inventory's folder."""
    failed = [host for host, lane in timeline.lanes.items() if any(piece.failed for piece in lane.pieces)]
    tiles = [
        (str(len(timeline.lanes)), "hosts", ""),
        (progress.duration(timeline.seconds), "duration", ""),
        (str(len(failed)), "failed", "fails" if failed else ""),
    ]
    sections = [
        f'<p class="soft">{escape(page_parts.as_of(timeline.began, inventory))}</p>',
        page_parts.tiles(tiles),
        legend((f"s{number}", words) for number, words in enumerate(KINDS.values())),
        *_lanes(timeline),
        *_table(timeline),
        *_starts(timeline),
    ]
    return page_parts.document(f"Timeline of {timeline.verb}", sections, STYLE)


def legend(items: Iterable[tuple[str, str]]) -> str:
    """Return what the colours of lanes mean. items: of style and plain text."""
    entries = (f'<li><i class="{style}"></i>{words}</li>' for style, words in items)
    return f'<ul class="legend">{"".join(entries)}</ul>'


def lane_of(name: str, spans: Iterable[str], text: str, style: str = "") -> str:
    """Return a line with a name. name, text: plain, the text for screen readers; spans: of C(span_of)."""
    return (
        f'<div class="lane {style}"><b>{escape(name)}</b><div class="line" role="img" aria-label="{escape(text or "nothing")}">'
        f"{''.join(spans)}</div></div>"
    )


def span_of(style: str, begin: float, end: float, whole: float, title: str) -> str:
    """Return a part of a line. begin, end: of the seconds that the whole line has; title: plain text."""
    left, right = (min(max(at, 0.0), whole) for at in (begin, end))
    place = f"left:{100 * left / whole:.2f}%;width:{100 * (right - left) / whole:.2f}%"
    return f'<span class="{style}" style="{place}" title="{escape(title)}"></span>'


def _lanes(timeline: Timeline) -> Iterable[str]:
    """Return the lines of all hosts, each with those of its services that started."""
    whole = timeline.seconds or 1.0
    batches = [span_of("batch", begin, begin, whole, name) for name, begin in timeline.batches.items()]
    for host, lane in timeline.lanes.items():
        spans = [
            span_of(
                f"s{list(KINDS).index(piece.kind)}{' bad' * piece.failed}",
                *(piece.begin, piece.end, whole),
                f"{', '.join(piece.names)}: {progress.duration(piece.end - piece.begin)}",
            )
            for piece in lane.pieces
        ]
        text = "; ".join(f"{KINDS[piece.kind]} {progress.duration(piece.end - piece.begin)}" for piece in lane.pieces)
        yield lane_of(host, spans + batches, text)
        for service, starts in lane.starts.items():
            yield lane_of(service, _stage_spans(starts, whole), "; ".join(map(_stage_text, starts)), "part")


def _stage_spans(starts: Sequence[Start], whole: float) -> Iterable[str]:
    for start in starts:
        at = start.begin
        for stage, seconds in start.stages:
            words, style = STAGES[stage]
            if seconds >= LEAST_SECONDS:
                yield span_of(style, at, at + seconds, whole, f"{words}: {progress.duration(seconds)}")
            at += seconds


def _stage_text(start: Start) -> str:
    return ", ".join(
        f"{STAGES[stage][0]} {progress.duration(seconds)}"
        for stage, seconds in start.stages
        if seconds >= LEAST_SECONDS
    )


def _starts(timeline: Timeline) -> Sequence[str]:
    """Return the seconds of each stage of all starts, with the meaning of their colours."""
    rows, used = [], set()
    for host, lane in timeline.lanes.items():
        for service, starts in lane.starts.items():
            for start in starts:
                totals: dict[str, float] = {}
                for stage, seconds in start.stages:
                    totals[stage] = totals.get(stage, 0.0) + seconds
                rows.append((host, service, start, totals))
                used |= {stage for stage, seconds in totals.items() if seconds >= LEAST_SECONDS}
    if not rows:
        return []
    columns = [stage for stage in STAGES if stage in used]
    words = [STAGES[stage][0] for stage in columns]
    lines = []
    for host, service, start, totals in rows:
        end = "ready after" if start.is_measured else "seen for about"
        cells = [page_parts.text_cell("service", escape(service), host)]
        cells += [
            page_parts.cell(STAGES[stage][0], progress.duration(totals[stage]) if stage in totals else "-")
            for stage in columns
        ]
        cells.append(page_parts.text_cell("start", f"{end} {progress.duration(sum(totals.values()))}"))
        lines.append("".join(cells))
    return [
        "<h2>Starts of engines</h2>",
        legend((STAGES[stage][1], STAGES[stage][0]) for stage in columns),
        page_parts.table(["service", *words, "start"], lines, words, "Seconds by stage"),
    ]


def _table(timeline: Timeline) -> Sequence[str]:
    """Return seconds of each kind and the errors, by host."""
    used = [
        kind for kind in KINDS if any(piece.kind == kind for lane in timeline.lanes.values() for piece in lane.pieces)
    ]
    heads = ["host", *(KINDS[kind] for kind in used), "errors"]
    rows = []
    for host, lane in timeline.lanes.items():
        sums = [sum(piece.end - piece.begin for piece in lane.pieces if piece.kind == kind) for kind in used]
        cells = [page_parts.text_cell("host", escape(host))]
        cells += [page_parts.cell(KINDS[kind], progress.duration(total)) for kind, total in zip(used, sums)]
        cells.append(page_parts.text_cell("errors", escape(lane.errors[-1]) if lane.errors else "-"))
        rows.append("".join(cells))
    return [page_parts.table(heads, rows, [KINDS[kind] for kind in used], "Seconds by host")] if rows else []
