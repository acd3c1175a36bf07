# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the progress of a run from events, and print it as lines. Pure functions; the caller passes the time.

An event is a mapping: C(host), C(stage), C(what) (an image, a model or a service), C(done) and C(total) in C(unit), which is C(B) for
bytes, C(%) or a plural, and C(before), the count at its beginning. C(total) may be None. A host is in a stage from its event to the end
of its task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import foreign_text
from .._content import snapshots

FETCH, SPREAD, LOAD, ROLL_OUT = "fetch", "spread", "load", "roll out"
SILENT_SECONDS = 10.0
"""Longest silence of a log while a task runs."""
SHOWN_AFTER = 2.0  # s that a task runs before it has a line on a terminal
MOST_LINES = 10  # of hosts, at a time
BAR = 16  # characters of a bar
LONGEST = 200  # characters of a text in an event, so that its line is written at one go


def event(
    host: str,
    stage: str,
    what: str,
    done: float | None = None,
    total: float | None = None,
    unit: str = "B",
    before: float = 0,
) -> dict[str, Any]:
    """Return an event. host: empty for an event of the whole run."""
    counts = {"done": done, "total": total, "unit": unit, "before": before}
    return {"host": host, "stage": stage, "what": foreign_text.printable(what)[:LONGEST], **counts}


@dataclass
class _Work:
    """The work of a host. event: its last one, with its time; stage_since: time of the first event of that stage and thing."""

    task: str
    since: float
    event: Mapping[str, Any] | None = None
    event_at: float = 0.0
    stage_since: float = 0.0


def _shared_tasks(works: Sequence[tuple[str, _Work]]) -> dict[str, tuple[list[str], _Work]]:
    """Return the tasks that several hosts run without events, each with these hosts and its oldest work."""
    tasks: dict[str, tuple[list[str], _Work]] = {}
    for host, work in works:
        hosts, _oldest = tasks.setdefault(work.task, ([], work))
        hosts += [] if work.event else [host]
    return {task: group for task, group in tasks.items() if len(group[0]) > 1}


class Board:
    """The work of every host. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._works: dict[str, _Work] = {}
        self._whole: _Work | None = None
        self._printed_at = 0.0

    def begin(self, host: str, task: str, now: float) -> None:
        """Note that a task begins on a host. now: seconds of any clock, the same one throughout."""
        self._works[host] = _Work(foreign_text.printable(task)[:LONGEST], now)

    def end(self, host: str) -> None:
        """Note that a host's task has ended."""
        self._works.pop(host, None)

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Take an event; one of a host without a task is ignored."""
        if not event["host"]:
            self._whole = self._whole or _Work("", now, stage_since=now)
            self._whole.event, self._whole.event_at = event, now
            return
        work = self._works.get(event["host"])
        if not work:
            return
        last = work.event or {}
        if (last.get("stage"), last.get("what")) != (event["stage"], event["what"]):
            work.stage_since = now
        work.event, work.event_at = event, now

    def printed(self, now: float) -> None:
        """Note that the run has printed something else."""
        self._printed_at = now

    def due(self, now: float) -> list[str]:
        """Return the lines for a log: none unless it has been silent for long while a task runs."""
        if now - self._printed_at < SILENT_SECONDS or not self._works:
            return []
        self._printed_at = now
        return self.lines(now)

    def lines(self, now: float, most: int = MOST_LINES, bars: bool = False) -> list[str]:
        """Return a line for each host with a long task, the longest first; at most C(most), then equal ones together.

        bars: draw known shares as bars.
        """
        works = sorted(
            ((host, work) for host, work in self._works.items() if now - work.since >= SHOWN_AFTER),
            key=lambda entry: (entry[1].since, entry[0]),
        )
        lines = [text(self._whole, now, bars)] if self._whole and works else []
        if len(works) > most:
            tasks = _shared_tasks(works)
            for hosts, oldest in tasks.values():
                lines.append(f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}: {text(oldest, now)}")
            works = [(host, work) for host, work in works if work.event or work.task not in tasks]
        lines += [f"{host}: {text(work, now, bars)}" for host, work in works[:most]]
        return lines + ([f"and {len(works) - most} more hosts"] if len(works) > most else [])


def text(work: _Work, now: float, bars: bool = False) -> str:
    """Return the work of a host or the run: stage, share (with C(bars) also as a bar), rate and remaining time, if known."""
    event = work.event
    if not event:
        return f"{work.task}, {duration(now - work.since)}"
    title, in_stage = f"{event['stage']} {event['what']}".strip(), duration(now - work.stage_since)
    if event["done"] is None:
        return f"{title}, {in_stage}"
    parts = [f"{_bar(event)}{title}" if bars else title, *_counts(event, work.event_at - work.stage_since, in_stage)]
    if now - work.event_at >= SILENT_SECONDS:
        parts.append(f"{duration(now - work.event_at)} ago")
    return ", ".join(parts)


def _bar(event: Mapping[str, Any]) -> str:
    """Return a bar for the share of an event, in ASCII as every terminal has it; empty if the share is unknown."""
    total = 100 if event["unit"] == "%" else event["total"]
    if not total:
        return ""
    filled = round(BAR * min(max(event["done"] / total, 0), 1))
    return f"[{'#' * filled}{'.' * (BAR - filled)}] "


def _counts(event: Mapping[str, Any], seconds: float, in_stage: str) -> list[str]:
    """Return share, counts and time of an event. seconds: from the beginning of its stage; in_stage: up to now, as a text."""
    done, total, unit, before = event["done"], event["total"], event["unit"], event["before"]
    if unit == "%":
        return [f"{done:.0f} %", in_stage]
    share = [f"{100 * done / total:.0f} %"] if total else []
    if unit == "B":
        return [*share, snapshots.progress(int(done), int(total) if total else None, seconds, int(before))]
    parts = [*share, *([f"{done:.0f} of {total:.0f} {unit}"] if total else []), in_stage]
    if total and total > done > before and seconds > 0:
        parts.append(f"about {duration((total - done) * seconds / (done - before))} left")
    return parts


def duration(seconds: float) -> str:
    """Return a duration in words."""
    whole_seconds = max(int(seconds), 0)
    return f"{whole_seconds} s" if whole_seconds < 60 else f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
