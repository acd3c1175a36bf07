# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last day of units, by journals as systemd 252 and 255 print them: reboots, clocks that are set, broken lines, and too much of everything."""

from __future__ import annotations

import json
import time
import tracemalloc
from datetime import datetime, timezone
from typing import Any

import pytest
from hostile_texts import HOSTILE

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import unit_history
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.unit_history import DAY, RESTART, Moment
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView, Request
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

NOW = 1_795_900_000.0
OLD, NEW = "a" * 32, "b" * 32
UNIT = "spark-heavy.service"
NAMES = {UNIT: "heavy"}
STARTING, RUNNING, STOPPING, STOPPED, FAILED, NOT_STARTED, _RESTART = unit_history.MESSAGES


def entry(
    at: float, message: str, *, boot: str = NEW, started: float = NOW - DAY, ahead: float = 0.0, **more: Any
) -> str:
    """Return a message at a time; started: of its boot; ahead: of the wall clock then."""
    fields = {"UNIT": UNIT, "MESSAGE_ID": message, "_BOOT_ID": boot, "MESSAGE": "Started", **more}
    clocks = {"__MONOTONIC_TIMESTAMP": at - started, "__REALTIME_TIMESTAMP": at + ahead}
    return json.dumps({**fields, **{name: str(round(value * 1e6)) for name, value in clocks.items()}})


def listed(*boots: tuple[str, float, float], old_form: bool = False) -> str:
    """Return what journalctl --list-boots prints: boots with the first and the last entry."""
    lines = [] if old_form else ["IDX BOOT ID                          FIRST ENTRY                 LAST ENTRY"]
    for number, (name, *times) in enumerate(boots, 1 - len(boots)):
        first, last = (f"{datetime.fromtimestamp(at, timezone.utc):%a %Y-%m-%d %H:%M:%S} UTC" for at in times)
        lines.append(f"{number:>3} {name} {first}{'—' if old_form else ' '}{last}")
    return "\n".join(lines)


def shown(state: str, changed: float = 0.0) -> str:
    return f"Id={UNIT}\nActiveState={state}\nStateChangeTimestampMonotonic={round(changed * 1e6)}\n"


def day(
    entries: list[str], boots: str, now: str = "", started: float = NOW - 2 * DAY, warnings: str = ""
) -> dict[str, Any]:
    return unit_history.of_journal(boots, "\n".join(entries), warnings, now, NAMES, Moment(NOW, NOW - started, NEW))


def spans(*args: Any, **options: Any) -> list[tuple[str, float, float]]:
    heavy = day(*args, **options)["units"]["heavy"]
    return [(span["state"], span["begin"], span["end"]) for span in heavy["spans"]]


@pytest.mark.parametrize("old_form", [False, True])
def test_a_host_that_was_off_is_unknown_then_and_its_services_are_down_after_the_boot(old_form: bool) -> None:
    begin, down, up = NOW - 3 * DAY, NOW - 8 * 3600, NOW - 6 * 3600
    entries = [
        entry(begin + 60, STARTING, boot=OLD, started=begin),
        entry(begin + 360, RUNNING, boot=OLD, started=begin),
        entry(up + 100, STARTING, started=up),
        entry(up + 400, RUNNING, started=up),
    ]
    boots = listed((OLD, begin, down), (NEW, up, NOW), old_form=old_form)
    assert spans(entries, boots, shown("active", 400), started=up) == [
        ("running", 0, DAY - 8 * 3600),
        ("stopped", DAY - 6 * 3600, DAY - 6 * 3600 + 100),
        ("starting", DAY - 6 * 3600 + 100, DAY - 6 * 3600 + 400),
        ("running", DAY - 6 * 3600 + 400, DAY),
    ]


def test_crashes_restarts_and_stops() -> None:
    at, begin = NOW - 3600, NOW - 2 * DAY
    start = [(begin + 5, STARTING), (begin + 9, RUNNING)]
    crash = [(at, FAILED), (at + 10, RESTART), (at + 10, STOPPED), (at + 10, STARTING), (at + 70, RUNNING)]
    # The engine ends with an error when it is stopped: the unit has failed, though the job of the stop is done.
    stop = [(at + 100, STOPPING), (at + 120, FAILED), (at + 121, STOPPED)]
    entries = [entry(moment, message, started=begin) for moment, message in start + crash + stop]
    result = day(entries, listed((NEW, begin, NOW)), shown("failed", 2 * DAY - 3480))
    assert result["units"]["heavy"]["restarts"] == 1
    states = [(span["state"], round(span["end"] - span["begin"])) for span in result["units"]["heavy"]["spans"]]
    assert states == [
        ("running", DAY - 3600),
        ("failed", 10),
        ("starting", 60),
        ("running", 30),
        ("stopped", 20),
        ("failed", 3480),
    ]


def test_a_unit_that_runs_for_longer_than_the_journal_is_known_by_systemd() -> None:
    boots = listed((NEW, NOW - 2 * 3600, NOW))
    assert spans([], boots, shown("active", 50), started=NOW - 90 * DAY) == [("running", 0, DAY)]
    assert spans([], boots, shown("inactive", 90 * DAY - 600), started=NOW - 90 * DAY) == [("stopped", DAY - 600, DAY)]
    # Never started: down since the boot, of which the journal shows two hours.
    assert spans([], boots, shown("inactive"), started=NOW - 90 * DAY) == [("stopped", DAY - 7200, DAY)]


def test_what_nobody_says_is_unknown() -> None:
    assert spans([], listed((NEW, NOW - 3600, NOW)), started=NOW - 90 * DAY) == []
    assert spans([], "") == spans([], "no boots here\n", "rubbish") == []
    # The oldest boot has lost its begin.
    old = listed((OLD, NOW - DAY, NOW - 7200), (NEW, NOW - 3600, NOW))
    assert spans([], old, shown("inactive"), started=NOW - 3600) == [("stopped", DAY - 3600, DAY)]


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0, 40 * 365 * DAY])
def test_a_clock_that_was_set_moves_nothing(ahead: float) -> None:
    begin = NOW - 10 * 3600
    entries = [
        entry(begin + 100, STARTING, started=begin, ahead=ahead),
        entry(begin + 200, RUNNING, started=begin, ahead=ahead),
        entry(begin + 9000, STOPPED, started=begin),
    ]
    boots = listed((NEW, begin + ahead, NOW))
    at = DAY - 10 * 3600
    made = spans(entries, boots, shown("inactive", 9000), started=begin)
    assert made[-3:] == [
        ("starting", at + 100, at + 200),
        ("running", at + 200, at + 9000),
        ("stopped", at + 9000, DAY),
    ]
    assert all(span[0] == "stopped" for span in made[:-3]) and made[0][1] >= at


def test_entries_of_the_future_and_boots_out_of_order_stay_within_the_day() -> None:
    future = listed((NEW, NOW - 3600, NOW), (OLD, NOW + 5 * DAY, NOW + 9 * DAY), ("c" * 32, NOW - 7200, NOW + DAY))
    entries = [
        entry(NOW + 300, RUNNING, started=NOW - 3600),
        entry(NOW + 6 * DAY, RUNNING, boot=OLD, started=NOW + 5 * DAY),
    ]
    for state, begin, end in spans(entries, future, shown("active", 1e12), started=NOW - 3600):
        assert state in unit_history.STATES and 0 <= begin < end <= DAY


def test_broken_lines_and_foreign_units_are_skipped() -> None:
    begin = NOW - 3600
    good = [entry(begin + 10, STARTING, started=begin), entry(begin + 20, RUNNING, started=begin)]
    number = "9" * 400
    broken = [
        *("", "{", "[]", "null", "7", '{"UNIT": 3}', "\x00\x1b[31m", *HOSTILE),
        entry(begin + 15, FAILED, started=begin, __MONOTONIC_TIMESTAMP=number).replace('"__REALTIME', '"x'),
        entry(begin + 15, FAILED, started=begin, UNIT="<script>alert(1)</script>.service"),
        entry(begin + 15, FAILED, started=begin, UNIT=[1, 2]),
        entry(begin + 15, "f" * 32, started=begin),
        f'{{"_BOOT_ID": "{NEW}", "__MONOTONIC_TIMESTAMP": "{number}", "__REALTIME_TIMESTAMP": "1", "UNIT": "{UNIT}"}}',
    ]
    boots = listed((NEW, begin, NOW))
    expected = spans(good, boots, shown("active", 20), started=begin)
    assert spans([*broken, good[0], *broken, good[1], *broken], boots, shown("active", 20), started=begin) == expected
    assert set(day(broken, boots)["units"]) == {"heavy", unit_history.AGENT}


def test_alarms_are_the_newest_warnings_of_the_day_as_plain_lines() -> None:
    begin = NOW - 2 * DAY
    old = [entry(NOW - DAY - 5, "", started=begin, MESSAGE="yesterday")]
    new = [
        entry(NOW - 1000 + at, "", started=begin, MESSAGE=f"\x1b[31mlow{at}\nmemory " + "x" * 999) for at in range(300)
    ]
    alarms = day([], listed((NEW, begin, NOW)), warnings="\n".join(old + new))["alarms"]
    assert len(alarms) == unit_history.MOST_ALARMS and alarms[-1]["at"] == DAY - 701
    assert (
        "\x1b" not in alarms[-1]["text"]
        and "low299" in alarms[-1]["text"]
        and len(alarms[-1]["text"]) == unit_history.MOST_TEXT
    )


def test_100_000_entries_of_a_restart_loop_take_seconds_and_little_memory() -> None:
    begin = NOW - 2 * DAY
    messages = (FAILED, RESTART, STARTING, RUNNING)
    entries = [entry(NOW - 80_000 + 0.8 * number, messages[number % 4], started=begin) for number in range(100_000)]
    boots, moment = listed((NEW, begin, NOW)), Moment(NOW, 2 * DAY, NEW)
    began = time.process_time()
    result = unit_history.of_journal(boots, "\n".join(entries), "", shown("active", 2 * DAY - 1), NAMES, moment)
    assert time.process_time() - began < 15
    text = "\n".join(entries[:: 100_000 // unit_history.MOST_ENTRIES])
    tracemalloc.start()
    unit_history.of_journal(boots, text, "", shown("active", 2 * DAY - 1), NAMES, moment)
    _size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6  # of the most messages that are read
    heavy = result["units"]["heavy"]
    assert heavy["restarts"] == 25_000 and len(heavy["spans"]) <= unit_history.MOST_SPANS
    # A loop does not look like a service that runs, and what is older than the read messages is unknown.
    loop = [span for span in heavy["spans"] if span["begin"] < DAY - 10]
    assert {span["state"] for span in loop} == {"failed"} and loop[0]["begin"] >= DAY - 80_001


def test_the_section_reads_the_journal_and_systemd_and_fails_for_silence() -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], **_options: Any) -> tuple[int, str, str]:
        calls.append(argv)
        if "--list-boots" in argv:
            return 0, "", ""
        return (0, shown("active", 1), "") if argv[0] == "systemctl" else (0, "", "")

    request = Request({"services": [{"name": "heavy"}]}, True)
    result = unit_history.section(HostView(run), request)
    assert [span["state"] for span in result["units"]["heavy"]["spans"]] == ["running"]
    assert sum(argv[0] == "journalctl" for argv in calls) == 3 and all(
        "_PID=1" in argv or "--lines=20000" not in argv for argv in calls
    )
    for rc, err in ((127, "no journalctl"), (1, "Failed to open journal")):
        with pytest.raises(NoAnswer, match=err):
            unit_history.section(HostView(lambda _argv, rc=rc, err=err, **_more: (rc, "", err)), request)
