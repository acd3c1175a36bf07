"""What people read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import tables

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
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
            "active_since": "2026-11-20T09:30:00+00:00",
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


def test_columns_are_aligned_and_figures_flush_right() -> None:
    assert tables.table(["name", "GiB"], [["a", "1.0"], ["long", "10.0"]]).splitlines() == [
        "name   GiB",
        "----  ----",
        "a      1.0",
        "long  10.0",
    ]


def test_a_ready_service() -> None:
    rows = tables.status_rows("spark-1", PLANNED, MEASURED, ANSWERS, NOW)
    text = tables.status_text(rows)
    assert "spark-1" in text
    for cell in ("active", "yes", "3.1 %", "2+1", "93.5", "96.7", "2h 30m"):
        assert cell in text


def test_a_service_that_is_stuck_says_where_and_why() -> None:
    answers = [{**ANSWERS[0], "ready": False, "stage": "completion", "error": "no token came"}]
    text = tables.status_text(tables.status_rows("spark-1", PLANNED, MEASURED, answers, NOW))
    assert "no (completion)" in text
    assert "spark-1/heavy: no token came" in text


@pytest.mark.parametrize(("measured", "unit"), [(None, "unreachable"), ({"units": []}, "absent")])
def test_a_host_that_said_nothing(measured: Any, unit: str) -> None:
    row = tables.status_rows("spark-1", PLANNED, measured, None, NOW)[0]
    assert row["unit"] == unit
    assert row["ready"] is False
    assert row["uptime_seconds"] is None


def test_no_services_at_all() -> None:
    assert tables.status_text([]) == "no services"


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (59, "0m 59s"), (3700, "1h 1m"), (90000, "1d 1h")])
def test_uptime(seconds: Any, text: str) -> None:
    assert tables.uptime(seconds) == text
