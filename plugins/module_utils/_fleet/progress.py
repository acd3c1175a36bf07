# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a run is: what hosts are at, from events, and the lines that say so. Pure: whoever asks brings the time.

An event is a mapping. C(host) and C(stage) say whose it is; C(what) names the thing; C(done) and C(total) are counts of C(unit), which is
C(B) for bytes, C(%) or a plural; C(before) is what was done when it began; C(total) is None where nobody knows it. A stage is known to a
host from its event to the end of its task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._common import foreign_text
from .._content import snapshots

FETCH, SPREAD, LOAD, ROLL_OUT = "fetch", "spread", "load", "roll out"
SILENT_SECONDS = 10.0
"""That a log may go without a line while a task runs."""
SHOWN_AFTER = 2.0  # s that a task runs before it has a line on a terminal
MOST_LINES = 10  # of hosts, at a time
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
    """Return an event; see above. host: empty for what is about the whole run."""
    return {
        "host": host,
        "stage": stage,
        "what": foreign_text.printable(what)[:LONGEST],
        "done": done,
        "total": total,
        "unit": unit,
        "before": before,
    }


@dataclass
class _Work:
    """What a host is at. told: its last event, and when it came; stage_since: when the first event of that stage and thing came."""

    task: str
    since: float
    told: Mapping[str, Any] | None = None
    told_at: float = 0.0
    stage_since: float = 0.0


class Board:
    """What every host is at."""

    def __init__(self) -> None:
        self._works: dict[str, _Work] = {}
        self._whole: _Work | None = None
        self._said = 0.0

    def begin(self, host: str, task: str, now: float) -> None:
        """Note that a task begins on a host. now: seconds of any clock, the same one throughout."""
        self._works[host] = _Work(foreign_text.printable(task)[:LONGEST], now)

    def end(self, host: str) -> None:
        """Note that a host's task has ended."""
        self._works.pop(host, None)

    def take(self, told: Mapping[str, Any], now: float) -> None:
        """Take an event. One of a host whose task has ended meanwhile says nothing any more."""
        if not told["host"]:
            self._whole = self._whole or _Work("", now, stage_since=now)
            self._whole.told, self._whole.told_at = told, now
            return
        work = self._works.get(told["host"])
        if not work:
            return
        last = work.told or {}
        if (last.get("stage"), last.get("what")) != (told["stage"], told["what"]):
            work.stage_since = now
        work.told, work.told_at = told, now

    def said(self, now: float) -> None:
        """Note that the run has printed something else."""
        self._said = now

    def due(self, now: float) -> list[str]:
        """Return what a log is told now: nothing, unless it has been silent for long while a task runs."""
        if now - self._said < SILENT_SECONDS or not self._works:
            return []
        self._said = now
        return self.lines(now)

    def lines(self, now: float, most: int = MOST_LINES) -> list[str]:
        """Return a line for each host whose task takes its time, those with the longest first; alike ones together, when they are many.

        most: lines for hosts; those beyond are one line.
        """
        works = sorted(
            ((host, work) for host, work in self._works.items() if now - work.since >= SHOWN_AFTER),
            key=lambda entry: (entry[1].since, entry[0]),
        )
        found = [f"{text(self._whole, now)}"] if self._whole and works else []
        if len(works) > most:
            # Those that only have the name of a task differ in nothing.
            alike: dict[str, list[str]] = {}
            for host, work in works:
                if not work.told:
                    alike.setdefault(work.task, []).append(host)
            for task, hosts in alike.items():
                if len(hosts) > 1:
                    oldest = next(work for _host, work in works if work.task == task)
                    found.append(f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}: {text(oldest, now)}")
            several = {task for task, hosts in alike.items() if len(hosts) > 1}
            works = [(host, work) for host, work in works if work.told or work.task not in several]
        found += [f"{host}: {text(work, now)}" for host, work in works[:most]]
        return found + ([f"and {len(works) - most} more hosts"] if len(works) > most else [])


def text(work: _Work, now: float) -> str:
    """Say what one host, or the run, is at: stage, share, rate and time left, as far as they are known."""
    told = work.told
    if not told:
        return f"{work.task}, {duration(now - work.since)}"
    words = [f"{told['stage']} {told['what']}".strip()]
    done, total, unit = told["done"], told["total"], told["unit"]
    if done is None:
        return f"{words[0]}, {duration(now - work.stage_since)}"
    if unit == "%":
        words.append(f"{done:.0f} %")
    elif total:
        words.append(f"{100 * done / total:.0f} %")
    # By the time of the event: what came since is not known.
    seconds = work.told_at - work.stage_since
    if unit == "B":
        words.append(snapshots.progress(int(done), int(total) if total else None, seconds, int(told["before"])))
    else:
        words += [f"{done:.0f} of {total:.0f} {unit}"] if unit != "%" and total else []
        words.append(duration(now - work.stage_since))
        if unit != "%" and total and total > done > told["before"] and seconds > 0:
            words.append(f"about {duration((total - done) * seconds / (done - told['before']))} left")
    if now - work.told_at >= SILENT_SECONDS:
        words.append(f"{duration(now - work.told_at)} ago")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Write a time as people say it."""
    whole = max(int(seconds), 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
