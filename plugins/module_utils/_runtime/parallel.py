# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run functions in parallel until a deadline, after which those that have not returned are given up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from .._common.foreign_text import printable

JOIN_SECONDS = 5.0
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def run_jobs(
    jobs: Mapping[Name, Callable[[], Result]],
    seconds: float,
    failure: Callable[[str], Result],
    beat: Callable[[], None] = lambda: None,
    at_once: int = 0,
) -> dict[Name, Result]:
    """Run functions at the same time, each in a thread that does not hold up the end of the process.

    :param jobs: functions by name
    :param seconds: that all of them may take together
    :param failure: returns the result of a function that raised an exception, from its text
    :param beat: called now and then while they run
    :param at_once: most functions that run at a time, 0 for all
    :returns: results by name; a function that has not returned in time is missing
    """
    waiting: queue.SimpleQueue[Name] = queue.SimpleQueue()
    for name in jobs:
        waiting.put(name)
    results: dict[Name, Result] = {}

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                results[name] = jobs[name]()
            except Exception as error:  # a server may answer anything; the others are asked nevertheless
                results[name] = failure(printable(repr(error)))

    threads = [threading.Thread(target=work, daemon=True) for _number in range(min(at_once or len(jobs), len(jobs)))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(min(JOIN_SECONDS, max(deadline - time.monotonic(), 0.01)))
            beat()
    return dict(results)  # a copy: a function that returns later adds to the other one
