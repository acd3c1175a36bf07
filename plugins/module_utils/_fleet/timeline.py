# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The timeline of a run as a page: for each host what it did when, by the events of the run. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Any

from .._plan import page_parts
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
LEAST_SECONDS = 0.2  # of a piece that is drawn
STYLE = """.lane{display:grid;grid-template-columns:minmax(6rem,12rem) 1fr;gap:.8rem;align-items:center;margin:.25rem 0}
.lane b{overflow-wrap:anywhere}.line{position:relative;height:1.2rem;background:var(--free);border-radius:.2rem;overflow:hidden}
.line span{position:absolute;top:0;bottom:0;background:var(--c);min-width:1px}.line .s5{--c:var(--system)}
.line .bad{outline:2px solid var(--fails);outline-offset:-2px}.line .batch{width:2px;background:var(--ink)}
.legend i{background:var(--c)}.legend .s5{--c:var(--system)}@media(max-width:760px){.lane{grid-template-columns:1fr;gap:.1rem}}"""


@dataclass
class Piece:
    """Work of one kind without a break. begin, end: seconds since the begin of the run; names: of its tasks."""

    kind: str
    begin: float
    end: float
    names: list[str]
    failed: bool = False


@dataclass
class Lane:
    """A host with its pieces and errors."""

    pieces: list[Piece] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


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
        elif kind == "end" and host in running:
            piece = running.pop(host)
            piece.end, piece.failed = now, event["result"] in ("failed", "unreachable")
            _add(lane.pieces, piece)
        elif kind == "error":
            lane.errors.append(f"{event['task']}: {event['message']}")
    for host, piece in running.items():  # of an interrupted run
        piece.end = timeline.seconds
        _add(timeline.lanes[host].pieces, piece)
    return timeline


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
        _legend(),
        *(_lane(host, lane, timeline) for host, lane in timeline.lanes.items()),
        *_table(timeline),
    ]
    return page_parts.document(f"Timeline of {timeline.verb}", sections, STYLE)


def _legend() -> str:
    items = (f'<li><i class="s{number}"></i>{words}</li>' for number, words in enumerate(KINDS.values()))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _lane(host: str, lane: Lane, timeline: Timeline) -> str:
    whole = timeline.seconds or 1.0
    spans = [_span(piece, whole) for piece in lane.pieces]
    spans += [
        f'<span class="batch" style="left:{100 * begin / whole:.2f}%" title="{escape(name)}"></span>'
        for name, begin in timeline.batches.items()
    ]
    text = "; ".join(f"{KINDS[piece.kind]} {progress.duration(piece.end - piece.begin)}" for piece in lane.pieces)
    return (
        f'<div class="lane"><b>{escape(host)}</b><div class="line" role="img" aria-label="{escape(text or "nothing")}">'
        f"{''.join(spans)}</div></div>"
    )


def _span(piece: Piece, whole: float) -> str:
    title = f"{', '.join(piece.names)}: {progress.duration(piece.end - piece.begin)}"
    number = list(KINDS).index(piece.kind)
    left, width = 100 * piece.begin / whole, 100 * (piece.end - piece.begin) / whole
    return f'<span class="s{number}{" bad" * piece.failed}" style="left:{left:.2f}%;width:{width:.2f}%" title="{escape(title)}"></span>'


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
