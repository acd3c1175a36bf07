# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account of a guard, from its two files, also damaged ones, to the lines for people."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import guard_account
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import guard

SETTINGS = {
    "act": True,
    "floor_gib": 3.0,
    "start_floor_gib": 5.0,
    "free_floor_gib": 3.0,
    "last_gib": 1.0,
    "order": ["a"],
}
WHY = "0.80 GiB available, nothing milder is left"
STATE = {
    "level": "critical",
    "available_gib": 0.8,
    "lowest_gib": 0.6,
    "at": 1790000000.2,
    "last": {"at": 1790000000.0, "what": "stop", "whom": "fast", "why": WHY},
    "stopped": {"fast": {"at": 1790000000.0, "why": WHY, "clock": 5.0}},
    "refused": ["fast"],
    "who": "python3 (pid 77, of bob) 8.0 GiB",
}


def account(state: Any = None, settings: Any = None) -> dict[str, Any]:
    result = guard_account.account(SETTINGS if settings is None else settings, state)
    assert result is not None
    return result


def test_a_host_without_a_guard_says_nothing() -> None:
    assert guard_account.account(None, STATE) is None


def test_what_it_did_and_who_took_the_memory() -> None:
    result = account(STATE)
    assert result["stopped"] == {"fast": WHY} and result["level"] == "critical" and result["floor_gib"] == 3.0
    assert guard_account.line(result, "active") == (
        "memory guard runs, acts below 3.0 GiB, 5.0 GiB at a start; memory critical, 0.8 GiB available, lowest 0.6 GiB; last, 2026-09-21 14:13 UTC: stopped "
        f"fast ({WHY}); memory is used by python3 (pid 77, of bob) 8.0 GiB"
    )
    assert guard_account.notes(result, "active") == [
        "guard: memory is critical, 0.8 GiB available; python3 (pid 77, of bob) 8.0 GiB",
        f"the guard stopped fast: {WHY}",
        "the guard lets the gateway give fast no new requests",
    ]


def test_one_that_is_well_is_a_line_and_no_note() -> None:
    result = account(
        {**STATE, "level": "calm", "last": None, "stopped": {}, "refused": [], "who": ""}, {**SETTINGS, "act": False}
    )
    assert guard_account.notes(result, "active") == []
    assert "memory guard runs, only reports its actions" in guard_account.line(result, "active")
    assert "nothing to do so far" in guard_account.line(result, "active")


@pytest.mark.parametrize(
    ("unit", "text"), [("failed", "guard failed"), ("inactive", "guard inactive"), (None, "not known whether it runs")]
)
def test_one_that_does_not_run(unit: str | None, text: str) -> None:
    result = account({**STATE, "stopped": {}, "refused": []})
    assert (
        text in guard_account.line(result, unit)
        and "critical" not in guard_account.line(result, unit).split("; last")[0]
    )
    # Without an answer of systemd the state is unknown, which is no fault.
    assert bool(guard_account.notes(result, unit)) is (unit is not None)


def test_the_state_of_its_unit() -> None:
    units = [
        {"name": "spark-heavy.service", "active_state": "active"},
        {"name": "spark-agent.service", "active_state": "failed"},
    ]
    assert guard_account.runs(units) == "failed" and guard_account.runs(units[:1]) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"level": 5, "available_gib": "x", "last": [], "stopped": [1], "refused": {"a": 1}, "who": None},
        {"last": {"what": "dance"}, "stopped": {"fast": 3}},
        {"last": {"what": "stop", "at": 1e300, "whom": None}, "available_gib": True},
    ],
)
def test_a_broken_file_is_not_known(broken: dict[str, Any]) -> None:
    result = account(broken)
    assert result["level"] is None and result["available_gib"] is None and result["stopped"] == {}
    assert guard_account.line(result, "active") and guard_account.notes(result, "active") == []


def test_every_step_has_words() -> None:
    assert set(guard_account.DONE) == set(guard.STEPS)
    for step in guard.STEPS:
        assert guard_account.did({"at": 0.0, "what": step, "whom": "fast", "why": "short"}).endswith("(short)")
