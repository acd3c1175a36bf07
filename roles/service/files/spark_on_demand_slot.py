# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The services of spark_on_demand.py: the state of each, and the progress of its start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dgxspark_vllm._host import units
from dgxspark_vllm._runtime import command, on_demand, pins, start_stages, state_file
from dgxspark_vllm._runtime.systemd import journal

if TYPE_CHECKING:
    from spark_on_demand_client import Client

CALL_SECONDS = 10.0  # that one program may take
KEPT_STARTS = 5
MOST_LINES = 2000  # of an engine that starts, which are remembered
MARK_SECONDS = 60.0  # that the demand of a client counts which was told to come again
RETRY_SECONDS = 30.0  # in Retry-After, where nothing is known

say = journal("spark-on-demand")


class Loading:
    """The start of an engine that is under way: its log so far, and its progress."""

    def __init__(self, invocation: str = "", began: float = 0.0) -> None:
        self.invocation, self.began, self.cursor = invocation, began, ""
        self.lines: list[tuple[float, str]] = []
        self.asked = self.updated = 0.0  # when it was last looked at, and when that brought news
        self.busy = False
        self.progress: dict[str, Any] = {}  # of start_stages.progress, empty before the first look

    def remaining(self, now: float) -> float | None:
        """Seconds until it is ready, by the stages of its last starts; None if unknown."""
        seconds = self.progress.get("left_seconds")
        passed = now - self.updated
        return None if seconds is None or seconds <= passed else seconds - passed

    def look(self, run_dir: Path, starts: Path, unit: str) -> None:
        """Read the log of the engine since the last look. run_dir: of the records of starts; starts: the file of the last ones."""
        try:
            self.read(run_dir, starts, unit)
        except Exception as error:  # in a thread, and nothing but the progress depends on it
            say(f"warning: {unit}: how far it is: {error!r}", 4)
        finally:
            self.busy = False

    def read(self, run_dir: Path, starts: Path, unit: str) -> None:
        answer = command.run(units.start_log_command(self.invocation, self.cursor), CALL_SECONDS)
        if answer.state != command.FINISHED or answer.rc:
            return
        lines, cursor = start_stages.read_journal(answer.out)
        self.lines, self.cursor = [*self.lines, *lines][-MOST_LINES:], cursor or self.cursor
        record = state_file.read(run_dir / "starts" / f"{unit}.json")
        past = start_stages.checked(state_file.read(starts))
        self.updated = time.monotonic()
        self.progress = start_stages.under_way(record, self.invocation, self.began, past, self.lines, self.updated)


class Slot:
    """A service with its state, its waiting requests and its last starts."""

    def __init__(self, service: on_demand.Service, starts: list[float]) -> None:
        parts = urlsplit(service.engine)
        self.service, self.host, self.port = service, parts.hostname or "", parts.port or 80
        self.state, self.since, self.wall = on_demand.UNKNOWN, time.monotonic(), time.time()
        self.waiters: dict[Client, float] = {}
        # Times of the first and the last request that was told to come again.
        self.mark: tuple[float, float] | None = None
        self.running = self.forwarded = 0
        self.last = self.ready = 0.0
        self.looked: float | None = None
        self.busy: bool | None = None
        self.unasked: float | None = None
        self.pin, self.pinned = pins.Pin(), 0.0
        self.until, self.reason, self.stage = 0.0, "", ""
        self.asked, self.began, self.stop, self.failed = 0.0, False, False, False
        # Whether its last start failed by memory that others released, and the present one is its repetition.
        self.disturbed = False
        self.late: tuple[float, str] | None = None  # when a start was stopped that took too long, and its stage
        self.starts, self.begun = starts, 0
        self.loading = Loading()
        self.last_start: dict[str, Any] | None = None
        self.before: float | None = None  # GiB available when it was told to stop
        self.expected: float | None = None  # GiB that it took
        self.gone: tuple[float, float] | None = None  # when its processes were gone, and when memory last grew
        self.lowest = 0.0
        self.freed: tuple[float, float] | None = None  # GiB, seconds
        self.freed_hosts: dict[str, float | None] | None = None  # GiB, on the other hosts of a model that spans several

    def demand(self, now: float) -> float | None:
        """Since when somebody waits for it, None if nobody does."""
        waits = list(self.waiters.values())
        if self.mark is not None and now - self.mark[1] < max(self.service.hold_seconds, MARK_SECONDS):
            waits.append(self.mark[0])
        if self.pin.word == on_demand.WARM and self.state != on_demand.READY:
            waits.append(self.pinned)
        return min(waits, default=None)

    def view(self, now: float) -> on_demand.View:
        """The service as the decision sees it."""
        return on_demand.View(
            state=self.state,
            demand=self.demand(now),
            running=self.running,
            last=self.last,
            ready=self.ready,
            looked=self.looked,
            busy=self.busy,
            unasked=self.unasked,
            pin=self.pin.word,
            until=self.until,
        )

    @property
    def past(self) -> on_demand.Past:
        return on_demand.Past(self.state, self.asked, self.began, self.stop, self.failed)

    @property
    def serves(self) -> bool:
        """Whether its engine answers requests."""
        return self.state in (on_demand.READY, on_demand.DRAINING)

    def took_since(self, when: float) -> bool:
        """Whether its engine loads, or became ready since a moment: it took memory."""
        return self.state == on_demand.STARTING or (self.serves and self.ready >= when)

    def remaining(self, now: float) -> float | None:
        """Seconds until it is ready, by its last starts, stage by stage if these are known."""
        is_starting = self.state == on_demand.STARTING
        seconds = self.loading.remaining(now) if is_starting else None
        if seconds is not None:
            return seconds
        return on_demand.seconds_left(self.starts, now - self.since if is_starting else 0.0)

    def retry(self, now: float) -> float:
        """Seconds after which a client may try again."""
        if self.state == on_demand.FAILED and self.until > now:
            return self.until - now
        seconds = self.remaining(now)
        return RETRY_SECONDS if seconds is None else max(seconds, 5.0)


def past_starts(record: Any, name: str) -> list[float]:
    """Return the seconds of the last starts of a service, from the file of an earlier process."""
    starts = record.get(name) if isinstance(record, dict) else None
    values = starts if isinstance(starts, list) else []
    return [float(value) for value in values if isinstance(value, (int, float)) and value >= 0][-KEPT_STARTS:]


def stamp(wall: float) -> str:
    """Return a time of the wall clock in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))
