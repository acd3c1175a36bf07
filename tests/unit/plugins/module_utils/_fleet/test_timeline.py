"""The timeline of a run, from its events."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import timeline


def at(seconds: float, event: str, **fields: Any) -> dict[str, Any]:
    minutes, rest = divmod(seconds, 60)
    return {"time": f"2026-11-29T10:{int(minutes):02d}:{rest:06.3f}+00:00", "event": event, **fields}


def task(host: str, name: str, begin: float, end: float, result: str = "ok") -> list[dict[str, Any]]:
    return [at(begin, "begin", host=host, task=name), at(end, "end", host=host, task=name, result=result)]


ROLLOUT = [
    at(0, "run", verb="rollout", schema=1),
    at(1, "progress", host="", stage="roll out", what="batch 1 of 2", done=0, total=2, before=0, unit="hosts"),
    *task("a", "Download missing snapshots", 1, 61),
    *task("a", "Install the units", 61, 63),
    *task("a", "Wait until started services answer", 63, 123),
    *task("a", "Prove the services", 123, 130),
    at(131, "progress", host="", stage="roll out", what="batch 2 of 2", done=1, total=2, before=0, unit="hosts"),
    *task("b", "Check that the whole cluster is in the play", 131, 131.05),
    *task("b", "Prove the services", 131.1, 140, "failed"),
    at(140, "error", host="b", task="Prove the services", message="<b>slow"),
    *task("b", "Roll back", 141, 170),
    at(171, "stats", hosts={}),
]


def test_a_lane_has_pieces_by_kind_and_the_rollback_behind_the_failure() -> None:
    made = timeline.of_events(ROLLOUT)
    assert (made.verb, made.seconds, list(made.batches)) == ("rollout", 171.0, ["batch 1 of 2", "batch 2 of 2"])
    kinds = {host: [(piece.kind, piece.begin, piece.end) for piece in lane.pieces] for host, lane in made.lanes.items()}
    assert kinds["a"] == [("bring", 1, 61), ("deploy", 61, 63), ("load", 63, 123), ("prove", 123, 130)]
    # A task of 50 ms is not drawn.
    assert kinds["b"] == [("prove", 131.1, 140), ("undo", 141, 170)]
    assert [piece.failed for piece in made.lanes["b"].pieces] == [True, False]


def test_progress_of_a_task_decides_its_kind_and_neighbours_of_a_kind_are_one_piece() -> None:
    loading = at(2, "progress", host="a", stage="load", what="tiny", done=1, total=2, before=0, unit="%")
    first, second = task("a", "Some task", 1, 5), task("a", "Wait for it", 5.2, 9)
    (piece,) = timeline.of_events([first[0], loading, first[1], *second]).lanes["a"].pieces
    assert (piece.kind, piece.begin, piece.end, piece.names) == ("load", 0, 8, ["Some task", "Wait for it"])


def test_an_interrupted_run_ends_with_its_last_event() -> None:
    made = timeline.of_events(
        [at(0, "run", verb="site"), *task("a", "Deploy", 1, 4)[:1], at(9, "progress", host="", what="x")]
    )
    assert [(piece.kind, piece.end) for piece in made.lanes["a"].pieces] == [("deploy", 9)]


def test_the_page_escapes_what_hosts_say_and_names_work_for_screen_readers() -> None:
    html = timeline.page(timeline.of_events(ROLLOUT), "my-sparks")
    assert "<b>slow" not in html and "&lt;b&gt;slow" in html
    assert 'aria-label="images and models 1 min 00 s; deploy 2 s; engine starts 1 min 00 s; prove 7 s"' in html
    assert 'class="s3 bad" style="left:76.67%;width:5.20%"' in html
    assert html.count('class="batch"') == 4 and "<script" not in html


def test_a_run_without_hosts_has_a_page() -> None:
    assert "Timeline of plan" in timeline.page(timeline.of_events([at(0, "run", verb="plan")]))


def test_a_clock_that_is_set_back_makes_no_piece_longer_than_the_run() -> None:
    times = [f"2026-11-29T00:00:{second:02d}+00:00" for second in (0, 2, 9, 1)]
    events = [
        {"time": times[0], "event": "run", "verb": "rollout"},
        {"time": times[1], "event": "begin", "host": "a", "task": "Deploy"},
        {"time": times[2], "event": "end", "host": "a", "task": "Deploy", "result": "ok"},
        {"time": times[3], "event": "stats", "hosts": {}},
    ]
    run = timeline.of_events(events)
    assert run.seconds == 9 and [(piece.begin, piece.end) for piece in run.lanes["a"].pieces] == [(2, 9)]
