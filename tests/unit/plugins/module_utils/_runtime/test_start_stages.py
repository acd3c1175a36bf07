# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The durations of the stages of a start, read from real logs with their timestamps, and the remaining time from the last starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import status_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import units
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages

LOGS = Path(__file__).parents[2] / "fixtures" / "engine_logs"


def timed(name: str) -> list[tuple[float, str]]:
    """The lines of a real log, each at the time that it, or the last line before it, has; the first time is 100."""
    rows: list[tuple[float, str]] = []
    clock, first = 100.0, None
    for line in (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines():
        match = re.search(r"\b\d\d-\d\d (\d\d):(\d\d):(\d\d)", line)
        if match:
            seconds = sum(int(part) * weight for part, weight in zip(match.groups(), (3600, 60, 1)))
            first = seconds if first is None else first
            clock = 100.0 + seconds - first
        rows.append((clock, line))
    return rows


def test_the_stages_of_a_real_start_and_what_each_took() -> None:
    lines = timed("healthy_fa3_graphs_then_sigterm")
    end = next(clock for clock, line in lines if "Application startup complete" in line) + 1.5
    stages = start_stages.timeline(90.0, 98.0, lines)
    assert [stage for stage, _clock in stages] == [start_stages.GATE, *start_stages.STAGES]
    took = start_stages.durations(stages, end)
    assert took["gate"] == 8.0 and took["serving"] == 1.5 and sum(took.values()) == pytest.approx(end - 90.0)
    # Read by hand from the log: 38 s to compile and 3 s more until the cache, 7 s of graphs, 19 s without a line.
    assert 38 <= took["profile"] <= 42 and took["graphs"] == 7.0 and 19 <= took["warm-up"] <= 25
    assert start_stages.figures_of(line for _clock, line in lines) == {"compile_seconds": 37.61}


def test_a_stage_that_is_reached_twice_counts_once_with_both_times() -> None:
    stages = [("gate", 0.0), ("warm-up", 1.0), ("graphs", 4.0), ("warm-up", 10.0)]
    assert start_stages.durations(stages, 11.5) == {"gate": 1.0, "warm-up": 4.5, "graphs": 6.0}


def test_what_was_printed_before_the_gate_and_by_an_earlier_try_does_not_count() -> None:
    lines = [
        (1.0, "Application startup complete"),
        (6.0, "vLLM API server version 0.33.0"),
        (7.0, "Initializing a V1 LLM engine (v0.33.0)"),
        (8.0, "Starting to load model org/m"),
        (20.0, "non-default args: {}"),
        (21.0, "Initializing a V1 LLM engine (v0.33.0)"),
    ]
    assert start_stages.timeline(2.0, 5.0, lines) == [("gate", 2.0), ("arguments", 5.0), ("device", 21.0)]
    assert start_stages.timeline(2.0, None, lines) == [("gate", 2.0)]


def test_of_several_processes_the_slowest_counts() -> None:
    lines = [
        "(Worker_TP0 pid=1) INFO [monitor.py:62] [backbone] torch.compile took 30.0 s in total",
        "(Worker_TP0 pid=1) INFO [monitor.py:62] [drafter] torch.compile took 5.5 s in total",
        "(Worker_TP1 pid=2) INFO [monitor.py:62] torch.compile took 31.0 s in total",
        "(Worker_TP1 pid=2) INFO [default_loader.py:501] Loading weights took 12.25 seconds",
        "torch.compile took 1.2.3 s",
    ]
    assert start_stages.figures_of(lines) == {"compile_seconds": 35.5, "read_seconds": 12.25}


def test_the_journal_as_journalctl_prints_it() -> None:
    def row(clock: Any, message: Any, cursor: str = "s=1") -> str:
        return json.dumps({"__MONOTONIC_TIMESTAMP": clock, "MESSAGE": message, "__CURSOR": cursor})

    text = "\n".join(
        [
            row("1500000", "plain"),
            row("2000000", list(b"\x1b[0mcolours"), "s=2"),
            row("2500000", None),
            row("2500000", [5, 700]),
            row("x", "no time"),
            row(None, "no time"),
            "no JSON",
            "[1]",
        ]
    )
    assert start_stages.read_journal(text) == ([(1.5, "plain"), (2.0, "colours"), (2.5, "")], "s=1")
    assert start_stages.read_journal("") == ([], "")
    assert "--after-cursor=s=2" in units.start_log_command("ab", "s=2")
    assert units.start_log_command("ab")[-1] == "_SYSTEMD_INVOCATION_ID=ab"


def a_start(launch: str = "one", **stages: float) -> dict[str, Any]:
    return start_stages.entry("2026-11-23T08:00:00Z", launch, stages, {})


def test_the_last_ten_starts_are_kept_and_what_cannot_be_right_is_not() -> None:
    value: Any = {"starts": [{"stages": {"load": True, "profile": "3", "graphs": -1, "more": 4}}, 5, None]}
    for number in range(12):
        value = start_stages.with_start(value, a_start(load=float(number)))
    assert [entry["stages"]["load"] for entry in start_stages.checked(value)] == [
        float(entry) for entry in range(2, 12)
    ]
    for wrong in (None, [], {"starts": {}}, {"starts": [{"stages": {"load": 1e12}}]}):
        assert start_stages.checked(wrong) == []


def test_what_is_left_follows_from_the_last_starts_of_the_same_launch() -> None:
    starts = [
        a_start("other", load=900.0),
        a_start(gate=2.0, load=50.0, profile=10.0),
        a_start(gate=2.0, load=60.0, profile=12.0),
        a_start(gate=300.0, load=70.0),
    ]
    assert start_stages.seconds_left(starts, "gate", 1.0) == 1.0 + 60.0 + 12.0
    assert start_stages.seconds_left(starts, "load", 20.0) == 40.0 + 12.0
    # If a stage takes longer than usual, the later stages still count as remaining.
    assert start_stages.seconds_left(starts, "load", 500.0) == 12.0
    assert (
        start_stages.seconds_left(starts, "profile", 500.0) is None
        and start_stages.seconds_left([], "load", 0.0) is None
    )


def test_how_far_a_start_is() -> None:
    starts = [a_start(gate=2.0, arguments=10.0, load=60.0, profile=12.0)]
    lines = [
        (15.0, "Starting to load model org/m"),
        (30.0, "Loading safetensors checkpoint shards:  43% Completed | 3/7 [00:09<00:12]"),
    ]
    record = {"invocation": "a1", "gate": {"clock": 5.0}}
    result = start_stages.under_way(record, "a1", 3.0, starts, lines, 35.0)
    assert result == {"stage": "load", "percent": 43, "seconds": 32, "left_seconds": 52}
    assert status_rows.loading(result) == "load 43 %, after 32 s; about 52 s left by its last starts"
    # With the record of another start, or without one, it still waits for its turn.
    for other in (None, {"invocation": "a0", "gate": {"clock": 5.0}}, {"invocation": "a1", "gate": {"clock": True}}):
        assert start_stages.under_way(other, "a1", 3.0, starts, lines, 4.0)["stage"] == "gate"
    first = start_stages.under_way(record, "a1", 3.0, [], lines[:1], 20.0)
    assert first == {"stage": "load", "percent": None, "seconds": 17, "left_seconds": None}
    assert (
        status_rows.loading(first) == "load, after 17 s" and status_rows.loading(None) == status_rows.loading({}) == ""
    )


def test_stages_for_people() -> None:
    took = {"profile": 38.2, "gate": 0.4, "load": 12.0}
    assert start_stages.text(took) == "load 12 s, profile 38 s"
    assert start_stages.text({"gate": 0.4}) == start_stages.text({}) == "each stage less than a second"
