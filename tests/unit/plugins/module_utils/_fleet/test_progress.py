"""The progress lines of a run, with a clock of the test."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import progress
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import Board, event

GB = 10**9


def board(*hosts: str, task: str = "Download missing snapshots") -> Board:
    made = Board()
    for host in hosts:
        made.begin(host, task, 0.0)
    return made


def test_a_task_that_says_nothing_has_its_name_and_its_time_and_a_short_one_no_line() -> None:
    made = board("a")
    assert made.lines(1.0) == []
    assert made.lines(75.0) == ["a: Download missing snapshots, 1 min 15 s"]
    made.end("a")
    assert made.lines(80.0) == []


def test_bytes_have_share_rate_and_time_left_and_those_from_before_are_no_rate() -> None:
    made = board("a")
    fields: dict[str, Any] = {"total": 10 * GB, "before": 2 * GB}
    made.take(event("a", progress.FETCH, "org/m@main", 2 * GB, **fields), 10.0)
    made.take(event("a", progress.FETCH, "org/m@main", 4 * GB, **fields), 20.0)
    assert made.lines(21.0) == ["a: fetch org/m@main, 40 %, 4.00 of 10.00 GB, 200 MB/s, 0 min 30 s left"]
    # The last figures are old: the line states their age and extrapolates nothing.
    assert made.lines(32.0)[0].endswith("0 min 30 s left, 12 s ago")
    # The next thing begins anew.
    made.take(event("a", progress.FETCH, "org/n@main", 0, GB), 40.0)
    assert made.lines(40.0) == ["a: fetch org/n@main, 0 %, 0.00 of 1.00 GB"]


def test_a_total_that_nobody_knows_makes_no_share() -> None:
    made = board("a")
    made.take(event("a", progress.FETCH, "org/m@main", GB, None), 5.0)
    assert made.lines(5.0) == ["a: fetch org/m@main, 1.00 GB"]


def test_a_load_has_the_stage_of_its_log_and_a_share_where_that_has_one() -> None:
    made = board("a", "b", task="Wait until started services answer")
    made.take(event("a", progress.LOAD, "tiny (load)", 43, None, "%"), 5.0)
    made.take(event("b", progress.LOAD, "tiny (profile)", None, None, "%"), 5.0)
    assert made.lines(9.0) == ["a: load tiny (load), 43 %, 4 s", "b: load tiny (profile), 4 s"]


def test_a_terminal_has_bars_for_known_shares() -> None:
    made = board("a", "b", "c")
    made.take(event("a", progress.LOAD, "tiny (load)", 43, None, "%"), 5.0)
    made.take(event("b", progress.FETCH, "org/m@main", 12 * GB, 10 * GB), 5.0)
    made.take(event("c", progress.FETCH, "org/m@main", GB, None), 5.0)
    lines = made.lines(9.0, bars=True)
    assert lines[0] == "a: [#######.........] load tiny (load), 43 %, 4 s"
    assert lines[1].startswith("b: [################] fetch") and lines[2] == "c: fetch org/m@main, 1.00 GB"


def test_a_rollout_is_the_first_line_with_the_time_of_its_rest() -> None:
    made = board("a")
    made.take(event("", progress.ROLL_OUT, "batch 1 of 3", 0, 20, "hosts"), 0.0)
    made.take(event("", progress.ROLL_OUT, "batch 2 of 3", 5, 20, "hosts"), 60.0)
    assert made.lines(60.0)[0] == "roll out batch 2 of 3, 25 %, 5 of 20 hosts, 1 min 00 s, about 3 min 00 s left"


def test_a_log_is_silent_for_ten_seconds_at_most_while_a_task_runs() -> None:
    made = board("a")
    assert made.due(9.0) == []
    assert made.due(10.0) == ["a: Download missing snapshots, 10 s"]
    assert made.due(19.0) == []
    made.printed(18.0)
    assert made.due(27.0) == [] and len(made.due(28.0)) == 1
    made.end("a")
    assert made.due(100.0) == []


def test_many_hosts_are_ten_lines_and_those_with_the_same_task_one() -> None:
    hosts = [f"h{number:03}" for number in range(100)]
    made = board(*hosts)
    assert made.lines(12.0) == ["100 hosts, h000 to h099: Download missing snapshots, 12 s"]
    for number, host in enumerate(hosts):
        made.take(event(host, progress.FETCH, "org/m@main", number, 100), 5.0)
    lines = made.lines(12.0)
    assert len(lines) == progress.MOST_LINES + 1 and lines[-1] == "and 90 more hosts"


def test_an_event_after_the_end_of_its_task_says_nothing() -> None:
    made = board()
    made.take(event("a", progress.FETCH, "org/m@main", 1, 2), 5.0)
    assert made.lines(50.0) == []


def test_what_steers_a_terminal_is_spelled_out_and_no_event_is_longer_than_a_pipe_takes_at_one_go() -> None:
    made = event("a", progress.FETCH, "x\x1b[2J" + "y" * 5000)
    assert "\x1b" not in made["what"] and len(made["what"]) == progress.LONGEST
