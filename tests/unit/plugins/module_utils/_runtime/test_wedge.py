# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When an engine counts as wedged: sequences of looks, and properties that hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import wedge
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.wedge import (
    ACT,
    FAILED,
    FROZEN,
    IDLE,
    NOTHING,
    OK,
    PROBE,
    REFUSED,
    REPORT,
    STARTING,
    STOPPED,
    SUSPECT,
    UNJUDGED,
    WEDGED,
    WORKING,
    Observation,
    Settings,
    Tracker,
)

SETTINGS = Settings()


def figures(tokens: float = 100, running: float | None = 2, prompt: float = 50, steps: float = 9) -> dict[str, Any]:
    return {
        "generation_tokens": tokens,
        "prompt_tokens": prompt,
        "iterations": steps,
        "requests_running": running,
        "requests_waiting": 0,
    }


ACTIVE = Observation(clock=0, state="active", invocation="i1", active_seconds=9999, figures=figures(), power=20.0)


class Film:
    """A sequence of looks every 30 seconds; C(answer) is the result of each probe."""

    def __init__(self, settings: Settings = SETTINGS, answer: str = FAILED) -> None:
        self.tracker = Tracker(settings)
        self.answer = answer
        self.clock, self.wall = 1000.0, 1.7e9
        self.done: list[str] = []
        self.probes = 0

    def look(self, times: int = 1, **changes: Any) -> Film:
        for _turn in range(times):
            step = self.tracker.look(replace(ACTIVE, clock=self.clock, **changes))
            if step == PROBE:
                self.probes += 1
                step = self.tracker.probed(self.answer, "no answer within 30 s", self.clock, self.wall)
                if step == ACT:
                    self.tracker.acted(self.clock, self.wall)
            if step != NOTHING:
                self.done.append(step)
            self.clock += 30
            self.wall += 30
        return self

    @property
    def state(self) -> str:
        return self.tracker.state


def test_an_engine_that_stands_still_with_requests_is_probed_twice_and_restarted() -> None:
    film = Film().look()
    assert film.state == WORKING
    film.look(3)
    assert film.state == FROZEN and film.probes == 0  # 90 s
    film.look()
    assert film.state == SUSPECT and film.probes == 1 and film.done == []
    film.look()
    assert film.probes == 2 and film.done == [ACT]
    assert film.state == STARTING and len(film.tracker.restarts) == 1


@pytest.mark.parametrize("counter", ["tokens", "prompt", "steps"])
def test_any_counter_that_moves_is_life(counter: str) -> None:
    """Progress is an output token, an input token or a scheduler step, as in a long prefill."""
    film = Film()
    for number in range(60):
        film.look(figures=figures(**{counter: 100 + number}))
    assert film.probes == 0 and film.state == WORKING


def test_an_engine_without_requests_is_idle() -> None:
    film = Film(replace(SETTINGS, idle_probe_minutes=0)).look(200, figures=figures(running=0))
    assert film.probes == 0 and film.state == IDLE


def test_one_failed_probe_is_no_proof() -> None:
    film = Film().look(5)
    assert film.state == SUSPECT
    film.look(figures=figures(tokens=101))
    assert film.state == WORKING
    film.look(4, figures=figures(tokens=101))
    assert film.probes == 2 and film.done == []  # in a row is meant


def test_a_probe_that_is_answered_clears_it() -> None:
    film = Film(answer=OK).look(5)
    assert film.probes == 1 and film.state == WORKING
    film.look(3)
    assert film.probes == 1
    film.look()
    assert film.probes == 2 and film.done == []


def test_a_key_that_is_not_accepted_is_never_a_reason() -> None:
    film = Film(answer=REFUSED).look(100)
    assert film.done == [] and film.probes > 1 and film.state in (UNJUDGED, FROZEN)


def test_a_gpu_that_works_speaks_for_the_engine_for_a_while() -> None:
    film = Film().look(12, power=45.0)
    assert film.probes == 0 and film.state == FROZEN and "45 W" in film.tracker.text
    film.look(20, power=45.0)
    assert film.done == [ACT]  # five windows without a token: a kernel that spins takes power too


def test_one_moment_of_work_counts_for_the_window() -> None:
    film = Film().look(2).look(power=60.0).look(6)
    assert film.probes == 0


def test_power_of_a_gpu_that_others_use_says_nothing() -> None:
    film = Film().look(4, power=45.0, others_moved=True)
    assert film.probes == 0
    film.look(2, power=45.0)
    assert film.done == [ACT]


def test_without_power_the_probes_decide() -> None:
    film = Film().look(6, power=None)
    assert film.done == [ACT]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"state": "activating"}, STARTING),
        ({"state": "inactive"}, STOPPED),
        ({"state": "failed"}, STOPPED),
        ({"state": "deactivating"}, STOPPED),
        ({"starting": True}, STARTING),
        ({"active_seconds": 299}, STARTING),
    ],
)
def test_what_starts_or_is_stopped_is_left_alone(changes: dict[str, Any], state: str) -> None:
    film = Film().look(100, **changes)
    assert film.probes == 0 and film.state == state


def test_time_before_a_start_ended_does_not_count() -> None:
    film = Film().look(100, active_seconds=10).look(4)
    assert film.probes == 0
    assert film.look(2).done == [ACT]


def test_another_start_begins_anew() -> None:
    film = Film().look(5)
    assert film.state == SUSPECT
    film.look(4, invocation="i2")
    assert film.probes == 1 and film.done == []


def test_a_compiler_in_the_container_is_waited_for() -> None:
    film = Film().look(100, compiling=True)
    assert film.probes == 0 and "compiled" in film.tracker.text
    film.look(60, compiling=True)
    assert film.done == [ACT]  # an hour is enough


def test_nothing_is_restarted_while_another_engine_loads() -> None:
    film = Film().look(50, host_starting=True)
    assert film.probes == 0
    assert film.look(2).done == [ACT]


def test_metrics_that_do_not_come_need_twice_the_window() -> None:
    film = Film().look().look(7, figures=None, error="no answer")
    assert film.probes == 0 and film.state == FROZEN
    film.look(2, figures=None, error="no answer")
    assert film.done == [ACT]


def test_a_server_without_figures_of_vllm_is_not_judged() -> None:
    film = Film().look(50, figures=figures(running=None))
    assert film.probes == 0 and film.state == UNJUDGED


def test_the_bounds() -> None:
    film = Film(replace(SETTINGS, max_restarts=2))
    film.look(6)
    assert film.done == [ACT]
    film.look(10)  # wedged again at once; the cooldown is 30 minutes
    assert film.done == [ACT, REPORT] and film.state == WEDGED and "minutes" in film.tracker.text
    film.look(55)
    assert film.done == [ACT, REPORT, ACT]
    film.look(240)  # two hours on
    assert film.done.count(ACT) == 2 and film.state == WEDGED
    assert 2 <= film.done.count(REPORT) <= 4  # said again, but not every time
    assert "a person has to look" in film.tracker.text
    film.look(2880)  # a day later
    assert film.done.count(ACT) == 4


def test_reporting_only() -> None:
    film = Film(replace(SETTINGS, restart=False)).look(20)
    assert film.done == [REPORT] and film.state == WEDGED


def test_restarts_of_before_count() -> None:
    film = Film()
    film.tracker = Tracker(SETTINGS, [film.wall - 40000, film.wall - 30000, film.wall - 20000])
    assert film.look(10).done == [REPORT]
    assert len(film.tracker.restarts) == 3


def test_looks_far_apart_say_nothing() -> None:
    film = Film().look(3)
    film.clock += 3600
    film.look(4)
    assert film.probes == 0


def test_an_idle_engine_is_asked_now_and_then() -> None:
    film = Film(answer=OK).look(240, figures=figures(running=0))
    assert 3 <= film.probes <= 4 and film.done == []


def test_an_engine_that_died_idle_is_found() -> None:
    film = Film().look(63, figures=figures(running=0))
    assert film.probes == 2 and film.done == [ACT]


def test_an_idle_dead_engine_beyond_its_bound_stays_reported() -> None:
    film = Film(replace(SETTINGS, max_restarts=0)).look(100, figures=figures(running=0))
    assert film.done == [REPORT] and film.state == WEDGED


LOOKS = st.builds(
    Observation,
    clock=st.just(0.0),
    state=st.sampled_from(["active"] * 8 + ["activating", "inactive", "failed", "deactivating"]),
    invocation=st.sampled_from(["a"] * 20 + ["b"]),
    active_seconds=st.sampled_from([9999.0] * 8 + [10.0]),
    starting=st.sampled_from([False] * 9 + [True]),
    host_starting=st.sampled_from([False] * 9 + [True]),
    figures=st.one_of(
        st.none(), st.builds(figures, tokens=st.integers(0, 2), running=st.integers(0, 2), prompt=st.integers(0, 1))
    ),
    error=st.just("?"),
    power=st.one_of(st.none(), st.floats(3, 90)),
    others_moved=st.booleans(),
    compiling=st.sampled_from([False] * 9 + [True]),
)


@given(
    st.lists(st.tuples(LOOKS, st.integers(1, 12), st.sampled_from([OK, FAILED, FAILED, FAILED, REFUSED])), max_size=60)
)
def test_whatever_is_seen(scenes: list[tuple[Observation, int, str]]) -> None:
    """An engine that starts, is stopped or makes progress is never restarted; others only after two failed probes, within the limits."""
    tracker = Tracker(SETTINGS)
    clock, wall = 0.0, 1.7e9
    moments: list[float] = []
    failed = 0
    for scene, times, answer in scenes:
        for _turn in range(times):
            clock, wall = clock + 30, wall + 30
            now = replace(scene, clock=clock)
            before = dict(tracker.last or {})
            step = tracker.look(now)
            assert step in (NOTHING, PROBE) and tracker.state in wedge.STATES
            if step == NOTHING:
                failed = failed if tracker.failures else 0
                continue
            assert now.state == "active" and not now.starting and not now.host_starting and not now.compiling
            assert now.active_seconds >= SETTINGS.grace_seconds
            if now.figures is not None:
                assert {name: now.figures[name] for name in wedge.COUNTERS} == before
            failed = failed + 1 if answer == FAILED else 0
            step = tracker.probed(answer, "?", clock, wall)
            if step == ACT:
                assert failed >= SETTINGS.probes
                tracker.acted(clock, wall)
                moments.append(wall)
                failed = 0
            assert step in (NOTHING, ACT, REPORT) and (step == NOTHING or answer == FAILED)
    for earlier, later in zip(moments, moments[1:]):
        assert later - earlier >= SETTINGS.cooldown_minutes * 60
    for first, last in zip(moments, moments[SETTINGS.max_restarts :]):
        assert last - first >= wedge.DAY


@pytest.mark.parametrize("step", [-2 * wedge.DAY, -3600.0, 3600.0, 2 * wedge.DAY])
def test_a_clock_that_is_set_gives_no_further_restarts(step: float) -> None:
    tracker = wedge.Tracker(wedge.Settings())
    clock, wall = 1000.0, 1_800_000_000.0
    for number in range(wedge.Settings().max_restarts):
        assert tracker.bound(clock, wall) is None
        tracker.acted(clock, wall)
        clock += 3600
        wall += 3600 + (step if number == 0 else 0)
    assert "it was restarted 3 times within 24 hours" in str(tracker.bound(clock, wall))
    assert tracker.bound(clock + wedge.DAY, wall + wedge.DAY) is None


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_between_two_processes_shortens_no_pause(step: float) -> None:
    clock, wall = 1000.0, 1_800_000_000.0
    before = wedge.Tracker(wedge.Settings())
    before.acted(clock, wall)
    after = wedge.Tracker(wedge.Settings(), before.restarts, (clock, wall))
    assert "its last restart was 5 minutes ago" in str(after.bound(clock + 300, wall + 300 + step))
    assert after.bound(clock + 1900, wall + 1900 + step) is None


def test_restarts_of_an_earlier_process_that_lie_in_the_future_count() -> None:
    wall = 1_800_000_000.0
    tracker = wedge.Tracker(wedge.Settings(), [wall + 3600, wall + 7200, wall + 10800])
    assert "restarted 3 times" in str(tracker.bound(5.0, wall))
    assert tracker.bound(5.0 + wedge.DAY + 1, wall + wedge.DAY + 1) is None
