# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""parallel.py: functions that run at the same time."""

from __future__ import annotations

import threading

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.parallel import run_jobs


def test_a_failure_and_a_function_that_does_not_return_hold_up_no_other() -> None:
    end, beats = threading.Event(), []

    def fail() -> str:
        raise ValueError("\x1b[2J")

    jobs = {"good": lambda: "answer", "failed": fail, "late": lambda: str(end.wait())}
    results = run_jobs(jobs, 0.3, lambda why: f"failed: {why}", lambda: beats.append(1))
    end.set()
    assert results == {"good": "answer", "failed": "failed: ValueError('\\x1b[2J')"} and beats


def test_at_most_so_many_run_at_a_time() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with lock:
            running -= 1

    assert len(run_jobs(dict.fromkeys(range(10), work), 10.0, lambda _why: None, at_once=3)) == 10 and most == 3
    assert run_jobs({}, 1.0, str) == {}
