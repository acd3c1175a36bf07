# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of a fleet monitor: sequences of checks, and properties that hold for all of them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import fleet_state
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.fleet_state import Result

UTC = timezone.utc
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()


class Fleet:
    """A monitor that runs every 15 minutes; each letter is the result for an endpoint: U (up) or F (failed)."""

    def __init__(self, failures: int = 2, notifiers: tuple[str, ...] = ("telegram",)) -> None:
        self.state = fleet_state.fresh(None)
        self.failures, self.notifiers = failures, list(notifiers)
        self.now = START
        self.told: list[list[str]] = []

    def run(self, states: str, deliver: bool = True) -> list[str]:
        """Check once; return the changes as text."""
        results = [
            Result(
                f"spark-{number}/heavy",
                f"http://h{number}:8001",
                letter == "U",
                "" if letter == "U" else "refused",
                "see",
            )
            for number, letter in enumerate(states)
        ]
        changes = fleet_state.judge(self.state, results, self.now, self.failures)
        fleet_state.post(self.state, self.notifiers, changes, self.now)
        self.state = fleet_state.fresh(json.loads(json.dumps(self.state)))  # as through the file
        sent: list[str] = []
        for name in self.notifiers:
            if self.state["outbox"][name] and deliver:
                _title, text, count = fleet_state.compose(
                    "forge", self.state["outbox"][name], UTC, self.now, len(states)
                )
                fleet_state.delivered(self.state, name, count)
                sent.append(text)
        self.told.append(sent)
        self.now += 900
        return [f"{change['what']} {change['key']}" for change in changes]

    def runs(self, letters: str) -> list[str]:
        """Run a fleet of one endpoint, once per letter."""
        return [change for letter in letters for change in self.run(letter)]


def test_all_is_well_is_silent() -> None:
    fleet = Fleet()
    for _turn in range(10):
        assert fleet.run("UUU") == []
    assert not any(fleet.told)


def test_down_and_up_are_told_once_each() -> None:
    fleet = Fleet()
    assert fleet.runs("UUFFFFFUUU") == ["down spark-0/heavy", "up spark-0/heavy"]
    sent = [text for run in fleet.told for text in run]
    assert len(sent) == 2
    assert sent[0] == "DOWN spark-0/heavy (http://h0:8001) since 12:30, 2 checks failed: refused. Look: see"
    assert sent[1] == "UP spark-0/heavy (http://h0:8001) again at 13:45, after 1 h 15 min (down since 12:30)."


def test_a_fleet_in_start_up_is_given_time() -> None:
    fleet = Fleet(failures=3)
    assert fleet.runs("FFUUU") == []
    fleet = Fleet(failures=3)
    assert fleet.runs("FFF") == ["down spark-0/heavy"]


def test_one_hiccup_is_no_change() -> None:
    assert Fleet().runs("UUFUUUUUUUUUUUUUUUUUUFUUUUUUUUUUUUU") == []


def test_all_changes_of_a_run_are_in_one_message() -> None:
    fleet = Fleet(failures=1)
    fleet.run("UUU")
    fleet.run("FUF")
    fleet.run("UFU")
    assert [len(run) for run in fleet.told] == [0, 1, 1]
    assert fleet.told[1][0].count("DOWN") == 2
    assert fleet.told[2][0].count("UP") == 2 and fleet.told[2][0].count("DOWN") == 1


def test_a_network_that_is_gone_is_named() -> None:
    fleet = Fleet(failures=1)
    fleet.run("UUU")
    fleet.run("FFF")
    assert fleet.told[1][0].startswith("All 3 endpoints went at once: look at the network of forge first.\nDOWN")


def test_what_comes_and_goes_is_damped_and_said() -> None:
    fleet = Fleet(failures=1)
    changes = fleet.runs("U" + "FU" * 30)
    assert changes == [
        "down spark-0/heavy",
        "up spark-0/heavy",
        "down spark-0/heavy",
        "up spark-0/heavy",
        "unsteady spark-0/heavy",
    ]
    assert "3 of the last 6 checks failed" in fleet.told[5][0]
    assert fleet.runs("U" * 20) == ["steady spark-0/heavy"]
    assert fleet.runs("FUUUUUUU") == ["down spark-0/heavy", "up spark-0/heavy"]


def test_what_fails_every_second_time_is_not_missed() -> None:
    assert Fleet(failures=2).runs("UFUFUFUFU") == ["unsteady spark-0/heavy"]


def test_unsteady_that_ends_down_is_told_as_down() -> None:
    fleet = Fleet(failures=1)
    fleet.runs("UFUFUFUF")
    assert fleet.runs("F" * 10) == ["steady spark-0/heavy"]
    (text,) = [text for run in fleet.told[8:] for text in run]
    assert text.startswith("DOWN spark-0/heavy (http://h0:8001) for the last 8 checks, after it was unsteady: refused")
    assert fleet.runs("UU") == ["up spark-0/heavy"]


def test_what_is_not_delivered_is_told_later_with_all_that_came_since() -> None:
    fleet = Fleet(failures=1)
    fleet.run("UU")
    fleet.run("FU", deliver=False)
    fleet.run("FF", deliver=False)
    fleet.run("UF")
    assert [len(run) for run in fleet.told] == [0, 0, 0, 1]
    lines = fleet.told[3][0].splitlines()
    assert [line.split(" (")[0] for line in lines] == ["DOWN spark-0/heavy", "DOWN spark-1/heavy", "UP spark-0/heavy"]
    assert fleet.state["outbox"] == {"telegram": []}


def test_each_notifier_has_its_own_outbox() -> None:
    fleet = Fleet(failures=1, notifiers=("telegram", "mail"))
    fleet.run("F", deliver=False)
    fleet_state.delivered(fleet.state, "telegram", 1)
    fleet_state.not_delivered(fleet.state, "mail", "no route", START)
    fleet_state.not_delivered(fleet.state, "mail", "still no route", START + 900)
    assert fleet.state["delivery"] == {"mail": {"error": "still no route", "since": START}}
    assert [len(queue) for queue in fleet.state["outbox"].values()] == [0, 1]
    fleet.run("F")
    assert len(fleet.told[1]) == 1 and fleet.state["delivery"] == {}


def test_a_new_notifier_hears_of_what_is_down_already() -> None:
    fleet = Fleet(failures=1)
    fleet.run("FU")
    fleet.notifiers = ["ntfy"]
    fleet.run("FU")
    assert fleet.told[1][0].startswith("DOWN spark-0/heavy (http://h0:8001) since 12:00")
    assert set(fleet.state["outbox"]) == {"ntfy"}


def test_what_is_not_watched_any_more_is_closed() -> None:
    fleet = Fleet(failures=1)
    fleet.run("UF")
    assert fleet.run("U") == ["gone spark-1/heavy"]
    assert fleet.run("U") == [] and set(fleet.state["endpoints"]) == {"spark-0/heavy"}


def test_messages_are_bounded_and_nothing_is_lost() -> None:
    fleet = Fleet(failures=1)
    count = 100
    fleet.run("U" * count)
    fleet.run("F" * count)
    for _turn in range(20):
        fleet.run("F" * count)
    sent = [text for run in fleet.told for text in run]
    assert all(len(run) <= 1 for run in fleet.told) and max(len(text) for text in sent) <= fleet_state.LIMIT
    assert sum(text.count("DOWN ") for text in sent) == count
    assert "further changes follow in the next message." in sent[0]


def test_a_very_long_error_is_cut() -> None:
    state = fleet_state.fresh(None)
    result = Result("a/b", "http://a", False, "x" * 9000, "y" * 9000)
    changes = fleet_state.judge(state, [result], START, 1)
    _title, text, count = fleet_state.compose("forge", changes, UTC, START)
    assert count == 1 and len(text) < 1000


def test_an_outbox_that_nobody_takes_is_bounded_and_says_so() -> None:
    fleet = Fleet(failures=1)
    for _turn in range(4):
        fleet.run("U" * 100, deliver=False)
        fleet.run("F" * 100, deliver=False)
    assert len(fleet.state["outbox"]["telegram"]) == fleet_state.OUTBOX
    _title, text, _count = fleet_state.compose("forge", fleet.state["outbox"]["telegram"], UTC, fleet.now)
    dropped = 100 * 7 - fleet_state.OUTBOX
    # The fleet changes so often that the last turns are reported as unsteady: less than seven changes each.
    turns = text.split(" ", maxsplit=1)[0]
    assert turns.isdigit() and int(turns) <= dropped and "could not be delivered" in text


def test_completions_are_asked_for_every_nth_run_and_names_take_turns() -> None:
    fleet = Fleet()
    completions = []
    for _turn in range(12):
        completions.append(fleet_state.wants_completion(fleet.state, "spark-0/heavy", ["a", "b"], 4))
        fleet.run("U")
    assert completions == ["a", None, None, None, "b", None, None, None, "a", None, None, None]
    assert fleet_state.wants_completion(fleet.state, "spark-0/heavy", ["a"], 0) is None


def test_a_completion_that_failed_is_asked_for_again_until_it_comes() -> None:
    state = fleet_state.fresh(None)

    def run(ok: bool, completion: str | None) -> list[str]:
        result = Result("a/b", "http://a", ok, "" if ok else "no token", "", completion)
        return [change["what"] for change in fleet_state.judge(state, [result], START, 2)]

    def wanted() -> str | None:
        return fleet_state.wants_completion(state, "a/b", ["m"], 4)

    assert wanted() == "m" and run(True, "m") == []
    assert wanted() is None and run(True, None) == []
    state["run"] = 4
    assert wanted() == "m" and run(False, "m") == []
    assert wanted() == "m" and run(False, "m") == ["down"]
    assert wanted() == "m" and run(True, "m") == ["up"]
    assert wanted() is None


@pytest.mark.parametrize(
    ("states", "words"), [("UU", "ALIVE All 2 endpoints are up."), ("UF", "ALIVE 1 of 2 endpoints are up.")]
)
def test_the_heartbeat_comes_once_a_day(states: str, words: str) -> None:
    fleet = Fleet(failures=1)
    fleet.run(states)
    local = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
    beats = []
    for number in range(4 * 24 * 3):
        beat = fleet_state.heartbeat(fleet.state, "08:30", local + timedelta(minutes=15 * number))
        beats += [beat] if beat else []
    moments = [datetime.fromtimestamp(beat["at"], UTC).strftime("%d %H:%M") for beat in beats]
    assert moments == ["22 08:30", "23 08:30", "24 08:30"]
    assert words in fleet_state.line(beats[0], UTC, beats[0]["at"])
    assert fleet_state.heartbeat(fleet.state, "off", local + timedelta(days=9)) is None


def test_a_heartbeat_of_the_first_day_comes_at_its_time() -> None:
    state = fleet_state.fresh(None)
    assert fleet_state.heartbeat(state, "08:30", datetime(2026, 11, 21, 6, 0, tzinfo=UTC)) is None
    assert fleet_state.heartbeat(state, "08:30", datetime(2026, 11, 21, 8, 40, tzinfo=UTC)) is not None


def test_only_the_newest_heartbeat_waits() -> None:
    fleet = Fleet(failures=1)
    fleet.run("UF", deliver=False)
    for day in (21, 22, 23):
        beat = fleet_state.heartbeat(fleet.state, "08:00", datetime(2026, 11, day, 9, 0, tzinfo=UTC))
        fleet_state.post(fleet.state, fleet.notifiers, [beat] if beat else [], START)
    assert [change["what"] for change in fleet.state["outbox"]["telegram"]] == ["down", "heartbeat"]


@pytest.mark.parametrize(
    ("span", "hour", "quiet"),
    [
        ("22:00-07:00", 23, True),
        ("22:00-07:00", 3, True),
        ("22:00-07:00", 7, False),
        ("22:00-07:00", 21, False),
        ("12:00-14:00", 13, True),
        ("12:00-14:00", 14, False),
    ],
)
def test_quiet_hours(span: str, hour: int, quiet: bool) -> None:
    assert fleet_state.is_quiet([span], datetime(2026, 11, 21, hour, 0, tzinfo=UTC)) is quiet
    assert not fleet_state.is_quiet([], datetime(2026, 11, 21, hour, 0, tzinfo=UTC))


@pytest.mark.parametrize("text", ["8", "24:00", "8:60", "08-30", "a:b", "8:5", ""])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="no time"):
        fleet_state.minute(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12, "12 s"), (60, "1 min"), (3600, "1 h"), (4500, "1 h 15 min"), (90000, "1 d 1 h"), (86400, "1 d"), (-5, "0 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert fleet_state.duration(seconds) == text


def test_another_day_is_named() -> None:
    assert fleet_state.clock(START, UTC, START + 60) == "12:00"
    assert fleet_state.clock(START, UTC, START + 86400) == "2026-11-21 12:00"


@pytest.mark.parametrize("stored", [None, [], {"endpoints": []}, {"run": "x", "outbox": None, "heartbeat": 5}])
def test_a_state_of_anything(stored: Any) -> None:
    state = fleet_state.fresh(stored)
    assert fleet_state.judge(state, [Result("a/b", "http://a", True)], START, 1) == []
    fleet_state.post(state, ["mail"], [], START)
    assert state["outbox"] == {"mail": []}


@given(st.lists(st.tuples(st.text("UF", min_size=3, max_size=3), st.booleans()), max_size=60), st.integers(1, 3))
def test_whatever_is_found(runs: list[tuple[str, bool]], failures: int) -> None:
    """Down and up alternate, only observed changes are reported, everything is delivered once, with at most one message per run."""
    fleet = Fleet(failures=failures)
    status = dict.fromkeys(range(3), "up")
    unsteady = dict.fromkeys(range(3), False)
    tail = ["", "", ""]
    change_count = 0
    for states, deliver in runs:
        changes = fleet.run(states, deliver)
        change_count += len(changes)
        tail = [tail[number] + states[number] for number in range(3)]
        for change in changes:
            kind, _space, key = change.partition(" ")
            number = int(key[6])
            if kind == "down":
                assert status[number] == "up" and tail[number].endswith("F" * failures) and not unsteady[number]
                status[number] = "down"
            elif kind == "up":
                assert status[number] == "down" and tail[number].endswith("U") and not unsteady[number]
                status[number] = "up"
            elif kind == "unsteady":
                assert not unsteady[number]
                unsteady[number] = True
            else:
                assert kind == "steady" and unsteady[number] and len(set(tail[number][-8:])) == 1
                unsteady[number] = False
                status[number] = "up" if tail[number].endswith("U") else "down"
    fleet.run("".join(letters[-1:] or "U" for letters in tail))
    for _turn in range(20):
        fleet.run("UUU" if not runs else runs[-1][0])
    assert all(len(run) <= 1 for run in fleet.told) and fleet.state["outbox"]["telegram"] == []
    lines = sum(text.count("spark-") for run in fleet.told for text in run)
    assert lines >= change_count
