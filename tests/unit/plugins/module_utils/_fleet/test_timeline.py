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


STAGES = {
    "gate": 1.2,
    "arguments": 8.0,
    "load": 71.0,
    "profile": 30.0,
    "kv_cache": 1.0,
    "graphs": 24.0,
    "warm-up": 6.0,
    "serving": 0.1,
}
MEASURED = {"seconds": 141.3, "stages": STAGES, "said": {"compile_seconds": 22.0}, "age_seconds": 60.0}


def loading(seconds: float, host: str, what: str) -> dict[str, Any]:
    return at(seconds, "progress", host=host, stage="load", what=what, done=None, total=None, before=0, unit="%")


def starting() -> list[dict[str, Any]]:
    """Return a run that starts an engine on two Sparks, the second of which fails; also for tests/webui and docs/images."""
    wait, first, second = "Wait until started services answer", "spark-1", "spark-2"
    events = [
        at(0, "run", verb="rollout", schema=1),
        at(1, "progress", host="", stage="roll out", what="batch 1 of 1", done=0, total=2, before=0, unit="hosts"),
        *task(first, "Download missing snapshots", 1, 95),
        *task(second, "Copy the snapshots of the other nodes", 40, 104),
        *task(first, "Install the units", 96, 104),
        *task(second, "Install the units", 105, 112),
        at(105, "begin", host=first, task=wait),
        at(112, "begin", host=second, task=wait),
        *(
            loading(105 + after, first, f"heavy{stage}")
            for after, stage in ((0, ""), (10, " (load)"), (85, " (profile)"), (120, " (graphs)"))
        ),
        *(
            loading(112 + after, second, f"heavy{stage}")
            for after, stage in ((0, ""), (10, " (load)"), (70, " (load)"), (90, " (profile)"))
        ),
        at(236, "end", host=second, task=wait, result="failed"),
        at(
            236,
            "error",
            host=second,
            task=wait,
            message="heavy at http://127.0.0.1:8001 is not ready; stage: health. Fix: lower gpu-memory-utilization",
        ),
        at(248, "end", host=first, task=wait, result="ok"),
        *task(first, "Prove the services", 249, 308),
        at(308, "proof", host=first, service="heavy", ready=True, start=MEASURED),
        *task(second, "Roll back", 237, 331),
        at(332, "stats", hosts={}),
    ]
    return sorted(events, key=lambda event: str(event["time"]))


def test_a_start_has_its_stages_as_the_host_measured_them_or_as_they_were_seen() -> None:
    made = timeline.of_events(starting())
    (measured,) = made.lanes["spark-1"].starts["heavy"]
    assert measured.is_measured and measured.end == 248
    assert measured.stages == [
        *[("gate", 1.2), ("arguments", 8.0), ("load", 71.0), ("compile", 22.0), ("profile", 8.0)],
        *[("kv_cache", 1.0), ("graphs", 24.0), ("warm-up", 6.0), ("serving", 0.1)],
    ]
    (seen,) = made.lanes["spark-2"].starts["heavy"]
    assert not seen.is_measured and seen.begin == 122
    assert seen.stages == [("load", 80.0), ("profile", 34.0)]  # up to the end of the wait, which failed


def test_the_page_of_a_start_shows_stages_with_seconds_and_words() -> None:
    html = timeline.page(timeline.of_events(starting()))
    assert (
        'aria-label="waits for its turn 1 s, arguments 8 s, load weights 1 min 11 s, compile 22 s, profile 8 s, KV cache 1 s,'
        in html
    )
    assert (
        "<h2>Starts of engines</h2>" in html
        and "ready after 2 min 21 s" in html
        and "seen for about 1 min 54 s" in html
    )
    assert 'class="s0" style="left:' in html and 'title="load weights 1 min 11 s"' in html


def test_starts_before_the_run_and_impossible_ones_are_left_out() -> None:
    old = {**MEASURED, "age_seconds": 4000.0}
    events = [
        at(0, "run", verb="start"),
        *task("a", "Prove", 1, 9),
        at(9, "proof", host="a", service="x", ready=True, start=old),
    ]
    assert timeline.of_events(events).lanes["a"].starts == {}
    none = at(9, "proof", host="a", service="x", ready=True, start=None)
    assert timeline.of_events([*events[:-1], none, loading(10, "a", "x (load)")]).lanes["a"].starts == {}
    # It began before the run, and its line begins with the run.
    half = at(9, "proof", host="a", service="<i>", ready=True, start={**MEASURED, "age_seconds": 1.0})
    html = timeline.page(timeline.of_events([*events[:-1], half]))
    assert "left:0.00%" in html and "left:-" not in html and "<i>" not in html.replace("<i></i>", "")


def test_services_that_start_one_after_the_other_in_one_task_have_lines_of_their_own() -> None:
    wait = task("a", "Wait", 0, 100)
    seen = [
        loading(10, "a", "one (load)"),
        loading(40, "a", "one (graphs)"),
        loading(60, "a", "two (load)"),
        loading(90, "a", "two (serving)"),
    ]
    events: list[dict[str, Any]] = [at(0, "run", verb="start"), wait[0], *seen, wait[1]]
    starts = timeline.of_events(events).lanes["a"].starts
    assert {name: [start.stages for start in of] for name, of in starts.items()} == {
        "one": [[("load", 30.0), ("graphs", 0.0)]],
        "two": [[("load", 30.0), ("serving", 10.0)]],
    }


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
