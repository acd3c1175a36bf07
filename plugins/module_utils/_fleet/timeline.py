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
        elif kind == "progress":
            _see_progress(lane, running.get(host), event, now)
        elif kind == "proof":
            _take_start(lane, str(event["service"]), event.get("start"), now)
        elif kind == "end" and host in running:
            piece = running.pop(host)
            piece.failed = event["result"] in ("failed", "unreachable")
            _end(lane, piece, now)
        elif kind == "error":
            lane.errors.append(f"{event['task']}: {event['message']}")
    for host, piece in running.items():  # of an interrupted run
        _end(timeline.lanes[host], piece, timeline.seconds)
    return timeline


def _see_progress(lane: Lane, piece: Piece | None, event: Mapping[str, Any], now: float) -> None:
    """Note the kind of a task, and the stage of the engine that it waits for. piece: of the task, None if it is over."""
    if piece is None:
        return
    piece.kind = _OF_STAGE.get(event["stage"], piece.kind)
    match = _STAGE_OF_LOAD.fullmatch(str(event["what"])) if event["stage"] == progress.LOAD else None
    if match:
        starts = lane.starts.setdefault(match[1], [])
        if not starts or starts[-1].is_measured or starts[-1].end < piece.begin:
            starts.append(Start(now, [(match[2], 0.0)]))
        starts[-1].reach(match[2], now)


def _end(lane: Lane, piece: Piece, now: float) -> None:
    """Append an ended piece, or lengthen the last one if it is of the same kind and close; and end the last start that the task waited for."""
    piece.end, last = now, lane.pieces[-1] if lane.pieces else None
    if last and not last.failed and last.kind == piece.kind and piece.begin - last.end < 1:
        last.end, last.failed = piece.end, piece.failed
        last.names += [name for name in piece.names if name not in last.names]
    elif piece.failed or piece.end - piece.begin >= LEAST_SECONDS:
        lane.pieces.append(piece)
    # Services before the last one were ready.
    starts = [starts[-1] for starts in lane.starts.values() if not starts[-1].is_measured]
    last_start = max(starts, key=lambda start: start.end, default=None)
    if last_start and last_start.end >= piece.begin:
        last_start.reach(last_start.stages[-1][0], piece.end)


def _take_start(lane: Lane, service: str, start: Mapping[str, Any] | None, now: float) -> None:
    """Replace the seen stages of a start by those that the host measured. Earlier starts than the run are ignored."""
    if not start or start["age_seconds"] >= now:
        return
    end = now - start["age_seconds"]
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


def span_of(style: str, begin: float, end: float, line_seconds: float, title: str) -> str:
    """Return a part of a line. begin, end: of the seconds that the whole line has; title: plain text."""
    left, right = (min(max(at, 0.0), line_seconds) for at in (begin, end))
    place = f"left:{100 * left / line_seconds:.2f}%;width:{100 * (right - left) / line_seconds:.2f}%"
    return f'<span class="{style}" style="{place}" title="{escape(title)}"></span>'


def figures_table(
    heads: tuple[str, str],
    columns: Iterable[str],
    rows: Sequence[tuple[str, str, Mapping[str, str], str]],
    label: str,
) -> list[str]:
    """Return a table of figures between two columns of text, without columns that no row uses; nothing without rows.

    :param heads: of the first and the last column
    :param columns: all heads of figures, in their order
    :param rows: each a name, a note below it, figures by their head, and a text
    :param label: for screen readers
    """
    used = [head for head in columns if any(head in figures for _name, _note, figures, _text in rows)]
    lines = []
    for name, note, figures, text in rows:
        cells = "".join(page_parts.cell(head, figures.get(head, "-")) for head in used)
        first = page_parts.text_cell(heads[0], escape(name), note)
        lines.append(f"{first}{cells}{page_parts.text_cell(heads[1], escape(text))}")
    return [page_parts.table([heads[0], *used, heads[1]], lines, used, label)] if rows else []


def _lanes(timeline: Timeline) -> Iterable[str]:
    """Return the line of each host, followed by the lines of its started services."""
    line_seconds = timeline.seconds or 1.0
    batches = [span_of("batch", begin, begin, line_seconds, name) for name, begin in timeline.batches.items()]
    for host, lane in timeline.lanes.items():
        spans, texts = [], []
        for piece in lane.pieces:
            took = progress.duration(piece.end - piece.begin)
            style = f"s{list(KINDS).index(piece.kind)}{' bad' * piece.failed}"
            spans.append(span_of(style, piece.begin, piece.end, line_seconds, f"{', '.join(piece.names)}: {took}"))
            texts.append(f"{KINDS[piece.kind]} {took}")
        yield lane_of(host, spans + batches, "; ".join(texts))
        for service, starts in lane.starts.items():
            spans, texts = [], []
            for start in starts:
                at = start.begin
                for stage, seconds in start.stages:
                    if seconds >= LEAST_SECONDS:
                        texts.append(f"{STAGES[stage][0]} {progress.duration(seconds)}")
                        spans.append(span_of(STAGES[stage][1], at, at + seconds, line_seconds, texts[-1]))
                    at += seconds
            yield lane_of(service, spans, ", ".join(texts), "part")


def _starts(timeline: Timeline) -> list[str]:
    """Return the seconds of each stage of all starts, with the meaning of their colours."""
    rows = []
    for host, lane in timeline.lanes.items():
        for service, start in ((service, start) for service, starts in lane.starts.items() for start in starts):
            took = progress.duration(start.end - start.begin)
            figures = {
                STAGES[stage][0]: progress.duration(sum(seconds for name, seconds in start.stages if name == stage))
                for stage, seconds in start.stages
                if seconds >= LEAST_SECONDS
            }
            rows.append((service, host, figures, f"{'ready after' if start.is_measured else 'seen for about'} {took}"))
    if not rows:
        return []
    colours = legend((style, words) for words, style in STAGES.values() if any(words in row[2] for row in rows))
    columns = [words for words, _style in STAGES.values()]
    table = figures_table(("service", "start"), columns, rows, "Seconds by stage")
    return ["<h2>Starts of engines</h2>", colours, *table]


def _table(timeline: Timeline) -> list[str]:
    """Return seconds of each kind and the errors, by host."""
    rows = []
    for host, lane in timeline.lanes.items():
        totals: dict[str, float] = {}
        for piece in lane.pieces:
            totals[KINDS[piece.kind]] = totals.get(KINDS[piece.kind], 0.0) + piece.end - piece.begin
        figures = {words: progress.duration(seconds) for words, seconds in totals.items()}
        rows.append((host, "", figures, lane.errors[-1] if lane.errors else "-"))
    return figures_table(("host", "errors"), KINDS.values(), rows, "Seconds by host")
