"""Units as systemd shows them, and the wait for a unit that answers no requests itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import units
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

UNIT = "spark-qwen235.service"


def unit(active: str = "activating", **more: str) -> dict[str, Any]:
    """A rank's unit, by what systemctl prints of it."""
    properties = {
        "Id": UNIT,
        "Type": "notify",
        "LoadState": "loaded",
        "ActiveState": active,
        "SubState": "start",
        "Result": "success",
        "NRestarts": "0",
        **more,
    }
    (shown,) = units.parse_show("\n".join(f"{key}={value}" for key, value in properties.items()))
    return shown


def test_what_a_unit_says_of_itself_is_taken_whole() -> None:
    shown = unit(StatusText="waits for spark-2 (rank 1): no heartbeat for 12 s; a=b")
    assert shown["status_text"] == "waits for spark-2 (rank 1): no heartbeat for 12 s; a=b"
    assert shown["type"] == "notify" and units.comes_back(shown)
    (bare,) = units.parse_show("Id=spark-heavy.service\nLoadState=not-found\n")
    assert (bare["status_text"], bare["type"]) == ("", "") and not units.comes_back(bare)


def test_everything_that_is_read_is_asked_for() -> None:
    names = units.show_command([UNIT])[3].removeprefix("--property=").split(",")
    assert {"Id", "Type", "StatusText", "Job", "NRestarts", "ActiveState"} <= set(names)


@pytest.mark.parametrize(("kind", "end"), [("notify", None), ("exec", "restarts again and again")])
def test_restarts_of_a_rank_are_no_loop(kind: str, end: str | None) -> None:
    reason = units.why_dead(unit(NRestarts="9", Type=kind), UNIT, 2)
    assert (reason is None) if end is None else (reason is not None and end in reason)


@pytest.mark.parametrize("kind", ["notify", "exec"])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"active": "failed", "Result": "exit-code"}, "has failed (result: exit-code"),
        ({"active": "inactive"}, "is not running"),
        ({"active": "inactive", "LoadState": "not-found"}, "does not exist"),
    ],
)
def test_what_ends_a_wait_at_once(kind: str, state: dict[str, str], words: str) -> None:
    reason = units.why_dead(unit(Type=kind, **state), UNIT, 0)
    assert reason is not None and words in reason


class Clock:
    """Time that passes only by sleeping, and a unit that shows the next of its states at each look."""

    def __init__(self, states: Iterable[dict[str, Any] | None]) -> None:
        self.now = 0.0
        self.states = list(states)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def show(self) -> dict[str, Any] | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def wait(self, timeout: float = 100.0, grace: float = 0.0) -> dict[str, Any]:
        return units.wait_active(
            self.show, UNIT, timeout=timeout, interval=2.0, clock=lambda: self.now, sleep=self.sleep, grace=grace
        )


def test_a_rank_is_waited_for_through_restarts() -> None:
    states = [unit(NRestarts=str(count)) for count in range(8)] + [unit("active", SubState="running")]
    assert Clock(states).wait() == {"ready": True, "stage": "unit", "elapsed_seconds": 16.0, "error": "", "fix": ""}


def test_what_is_active_before_the_restart_that_was_asked_for_does_not_count() -> None:
    clock = Clock([unit("active", Job="17"), unit("deactivating", Job="17"), unit(Job="17"), unit("active")])
    assert clock.wait()["elapsed_seconds"] == 6.0


def test_what_another_program_is_to_start_may_be_inactive_for_a_while() -> None:
    states = [unit("inactive"), unit("inactive"), unit(), unit("active")]
    assert "is not running" in Clock(states).wait()["error"]
    assert Clock(states).wait(grace=10.0)["ready"] is True
    late = Clock([unit("inactive")]).wait(grace=10.0)
    assert late["elapsed_seconds"] == 10.0 and "is not running" in late["error"]
    failed = Clock([unit("inactive"), unit("failed", Result="exit-code")]).wait(grace=10.0)
    assert failed["elapsed_seconds"] == 2.0 and "has failed" in failed["error"]


def test_a_rank_that_gives_up_ends_the_wait() -> None:
    clock = Clock([unit(), unit(NRestarts="3"), unit("failed", Result="exit-code", NRestarts="3")])
    result = clock.wait(1000.0)
    assert result["ready"] is False and result["elapsed_seconds"] == 4.0
    assert f"the unit {UNIT} has failed" in result["error"]


def test_a_wait_ends_in_time_and_says_in_which_state() -> None:
    clock = Clock([unit()])
    result = clock.wait(10.0)
    assert result["ready"] is False and clock.now <= 10.0
    assert f"{UNIT} is activating (start) and did not get active within 10 s" in result["error"]
    assert f"systemctl status {UNIT}" in result["fix"]


def test_silence_of_systemd_is_no_news_of_the_unit() -> None:
    assert units.why_dead(None, UNIT, 0) is None
    assert Clock([None, None, unit("active")]).wait()["ready"] is True
    clock = Clock([None])
    result = clock.wait(10.0)
    assert result["ready"] is False and 0 < clock.now <= 10.0
    assert f"whether the unit {UNIT} is active is not known after 10 s" in result["error"]


@pytest.mark.parametrize("out", ["", "hello\n", "Id=spark-heavy.service\nLoadState=loaded\n\nhello\n"])
def test_an_answer_about_something_else_is_none(out: str) -> None:
    with pytest.raises(NoAnswer, match="systemctl printed"):
        units.ask(lambda _argv, **_options: (0, out, ""), [UNIT])


def test_a_host_without_systemd_or_without_units() -> None:
    assert units.ask(lambda _argv, **_options: (127, "", "no such file"), [UNIT]) == []
    assert units.ask(lambda _argv, **_options: (0, "", ""), [units.UNIT_GLOB]) == []
    assert units.ask(lambda _argv, **_options: (0, "", ""), []) == []


def test_the_properties_of_units_are_told_apart() -> None:
    text = "Id=a.service\nActiveState=active\nStatusText=a=b\n\nId=b.service\nActiveState=failed\n\nnonsense\n"
    first, second, third = units.read_properties(text)
    assert first == {"Id": "a.service", "ActiveState": "active", "StatusText": "a=b"}
    assert second == {"Id": "b.service", "ActiveState": "failed"} and third == {}
    assert units.read_properties("") == units.read_properties("\n\n") == []
