"""Rows of the status: plan and measurements joined, ranks judged together, and the text table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import status_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.fleet_status import HostState, judge_row

PLANNED: dict[str, Any] = {
    "services": [
        {
            "name": "heavy",
            "unit": "spark-heavy.service",
            "recipe": "r",
            "model": {"repo": "Org/Model"},
            "memory": {"residency_gib": {"typical": 96.7}},
        },
    ]
}
MEASURED: dict[str, Any] = {
    "units": [
        {
            "name": "spark-heavy.service",
            "active_state": "active",
            "n_restarts": 1,
            "active_seconds": 9000,
        }
    ],
    "resident": [{"name": "heavy", "gib": 93.54}],
}
ANSWERS = [
    {
        "name": "heavy",
        "ready": True,
        "stage": "completion",
        "error": "",
        "kv_cache_usage": 0.031,
        "requests_running": 2,
        "requests_waiting": 1,
    }
]


def test_a_ready_service() -> None:
    rows = status_rows.status_rows("spark-1", PLANNED, MEASURED, ANSWERS)
    text = status_rows.status_text(rows)
    assert "spark-1" in text
    for cell in ("active", "yes", "3.1 %", "2 (1 waiting)", "93.5", "96.7", "2h 30m"):
        assert cell in text


def test_a_service_that_is_stuck_says_where_and_why() -> None:
    answers = [{**ANSWERS[0], "ready": False, "stage": "completion", "error": "no token came"}]
    text = status_rows.status_text(status_rows.status_rows("spark-1", PLANNED, MEASURED, answers))
    assert "no (completion)" in text
    assert "spark-1/heavy: no token came" in text


def test_a_service_that_failed_says_what_its_log_says() -> None:
    unit = {**MEASURED["units"][0], "active_state": "failed"}
    measured = {**MEASURED, "units": [unit], "causes": {"heavy": "the disk is full. Fix: find it with df -h"}}
    answers = [{**ANSWERS[0], "ready": False, "stage": "health", "error": "refused"}]
    (row,) = status_rows.status_rows("spark-1", PLANNED, measured, answers)
    assert row.error == "refused; the reason in its log: the disk is full. Fix: find it with df -h"


def test_a_service_that_loads_says_how_far_it_is() -> None:
    unit = {**MEASURED["units"][0], "active_state": "activating", "status_text": "load guard: caches dropped once"}
    progress = {"stage": "load", "percent": 45, "seconds": 61, "left_seconds": 95}
    measured = {**MEASURED, "units": [unit], "starting": {"heavy": progress}}
    answers = [{**ANSWERS[0], "ready": False, "stage": "health", "error": ""}]
    (row,) = status_rows.status_rows("spark-1", PLANNED, measured, answers)
    expected = "load 45 %, after 61 s; about 95 s left by its last starts"
    assert row.status == f"{expected}; load guard: caches dropped once"
    assert f"spark-1/heavy: {expected}" in status_rows.status_text([row])
    # Once the unit is active, its row no longer shows the progress of its start.
    assert (
        status_rows.status_rows("spark-1", PLANNED, {**MEASURED, "starting": {"heavy": progress}}, answers)[0].status
        == ""
    )


@pytest.mark.parametrize(("measured", "unit"), [(None, "unreachable"), ({"units": []}, "absent")])
def test_a_host_that_said_nothing(measured: Any, unit: str) -> None:
    row = status_rows.status_rows("spark-1", PLANNED, measured, None)[0]
    assert row.unit == unit
    assert row.ready is False
    assert row.uptime_seconds is None


def test_no_services_at_all() -> None:
    assert status_rows.status_text([]) == "no services"


# --- one model over several hosts

HOSTS = ["spark-1", "spark-2"]
SPAN = {"name": "pair_a", "size": 2, "head": "spark-1", "executor": "mp", "hosts": HOSTS}
WAITS = "waits for spark-1 (rank 0): no heartbeat for 320 s"


def ranks(
    units: tuple[str, str] = ("active", "active"),
    answers: bool = True,
    says: str = "",
    hosts: Sequence[str] = ("spark-1", "spark-2"),
) -> list[dict[str, Any]]:
    """Rows of a pair in the given states, seen by a play of C(hosts); the ranks that are not active say C(says)."""
    rows = []
    for rank, host in enumerate(HOSTS):
        if host not in hosts:
            continue
        service = {**PLANNED["services"][0], "rank": rank, "cluster": SPAN}
        unit = {**MEASURED["units"][0], "active_state": units[rank], "status_text": says or "serving with the other"}
        answer = {**ANSWERS[0], "ready": answers, "error": "" if answers else "connection refused", "stage": "health"}
        if rank:
            answer = {"name": "heavy", "ready": None, "stage": "unit", "error": ""}
        rows += status_rows.status_rows(host, {"services": [service]}, {**MEASURED, "units": [unit]}, [answer])
    status_rows.join_ranks(rows)
    return rows


def test_a_model_that_all_ranks_serve() -> None:
    rows = ranks()
    assert [row.ready for row in rows] == [True, True]
    assert all(row.ready for row in rows)
    text = status_rows.status_text(rows)
    assert "rank 0 of 2 (mp)" in text and "rank 1 of 2 (mp)" in text
    assert "serving with" not in text  # the status text of an active unit is not shown


def test_a_rank_that_waits_says_for_what_and_the_model_is_not_ready() -> None:
    rows = ranks(("active", "activating"), says=WAITS)
    assert [row.ready for row in rows] == [False, False]
    assert not all(row.ready for row in rows)
    text = status_rows.status_text(rows)
    assert "no (rank 1)" in text and "no (unit)" in text
    assert f"spark-2/heavy (rank 1 of 2 (mp)): {WAITS}; its unit is activating" in text


def test_a_first_rank_that_does_not_answer() -> None:
    rows = ranks(answers=False)
    assert [row.ready for row in rows] == [False, False]
    text = status_rows.status_text(rows)
    assert "no (health)" in text and "no (rank 0)" in text
    assert "spark-1/heavy (rank 0 of 2 (mp)): connection refused" in text


def test_a_first_rank_that_answers_while_its_unit_is_on_its_way_down() -> None:
    rows = ranks(("deactivating", "active"))
    assert not all(row.ready for row in rows)
    assert rows[0].error == "it answers, but its unit is deactivating"


def test_only_the_hosts_of_the_play_count() -> None:
    assert all(row.ready for row in ranks(("active", "activating"), hosts=["spark-1"]))
    assert all(row.ready for row in ranks(("activating", "active"), answers=False, hosts=["spark-2"]))


def test_a_host_of_a_pair_that_said_nothing() -> None:
    service = {**PLANNED["services"][0], "rank": 1, "cluster": SPAN}
    rows = [*ranks(hosts=["spark-1"]), *status_rows.status_rows("spark-2", {"services": [service]}, None, None)]
    status_rows.join_ranks(rows)
    assert [row.ready for row in rows] == [False, False]
    assert "spark-2/heavy (rank 1 of 2 (mp)): its unit is unreachable" in status_rows.status_text(rows)


def test_services_of_one_name_on_two_hosts_are_two_services() -> None:
    rows = status_rows.status_rows("spark-1", PLANNED, MEASURED, ANSWERS)
    rows += status_rows.status_rows("spark-2", PLANNED, MEASURED, None)
    status_rows.join_ranks(rows)
    assert {row.name: row.ready for row in rows} == {"spark-1/heavy": True, "spark-2/heavy": False}
    assert "rank" not in status_rows.status_text(rows)


def test_what_was_measured_last_has_a_column_once_there_is_something() -> None:
    without = status_rows.status_text(status_rows.status_rows("spark-1", PLANNED, MEASURED, ANSWERS))
    assert "tok/s" not in without
    for ratio, cell in ((0.9, "38.0 (-10 %)"), (1.0, "38.0"), (None, "38.0")):
        answers = [{**ANSWERS[0], "decode_tokens_per_second": 38.0, "decode_ratio": ratio}]
        lines = status_rows.status_text(status_rows.status_rows("spark-1", PLANNED, MEASURED, answers)).splitlines()
        assert lines[0].split()[-1] == "tok/s" and lines[2].endswith(f"  {cell}")


def test_the_mark_of_the_kernels_is_shown_once_a_receipt_has_it() -> None:
    plain = status_rows.status_text(status_rows.status_rows("spark-1", PLANNED, MEASURED, ANSWERS))
    assert "fast path" not in plain
    answers = [{**ANSWERS[0], "fast_path": "2 off"}, *ANSWERS[1:]]
    text = status_rows.status_text(status_rows.status_rows("spark-1", PLANNED, MEASURED, answers))
    assert text.splitlines()[0].rstrip().endswith("fast path")
    assert text.splitlines()[2].rstrip().endswith("2 off")


@pytest.mark.parametrize(
    ("unit", "state"), [("active", "healthy"), ("inactive", "unloaded"), ("activating", "starting"), ("failed", "down")]
)
def test_a_speech_server_on_demand_is_as_its_unit_is(unit: str, state: str) -> None:
    planned = {"speech": [{"name": "ears", "unit": "spark-ears.service", "memory_gib": 4.0, "model": "parakeet"}]}
    measured = {
        "units": [{"name": "spark-ears.service", "active_state": unit}],
        "on_demand": {"ears": {"state": "ready", "idle_seconds": 9}},
    }
    (row,) = status_rows.status_rows("spark-1", planned, measured, [{"name": "ears", "ready": None, "stage": "unit"}])
    assert (row.service, row.meant, row.planned_gib, row.ready) == (
        "ears",
        "on_demand",
        4.0,
        unit == "active",
    )
    judge_row(row, HostState("healthy"))
    assert row.state == state and row.idle_seconds == (9 if unit == "active" else None)
