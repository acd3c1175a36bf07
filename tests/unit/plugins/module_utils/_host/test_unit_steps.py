# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.file_times import WRITTEN, stamp_written, written_at
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import Unit
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.unit_steps import (
    Seen,
    Steps,
    outdated,
    read_units,
    remembering,
    steps,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

SHOWN = """Id=spark-a.service
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
NeedDaemonReload=no
InactiveExitTimestampMonotonic=40000000

Id=spark-b.service
LoadState=not-found
ActiveState=inactive
SubState=dead
UnitFileState=
NeedDaemonReload=no
InactiveExitTimestampMonotonic=0
"""


def unit(name: str = "u", **more: Any) -> Unit:
    return Unit(name, **{"restart_on": ("/f",), **more})


def test_units_are_read_and_dated_by_the_monotonic_clock() -> None:
    seen = read_units(["spark-a.service", "spark-b.service"], SHOWN, monotonic_now=100.0, now=5000.0)
    assert seen["spark-a.service"] == Seen("spark-a.service", True, "active", True, False, 4940.0)
    assert seen["spark-b.service"] == Seen("spark-b.service")


@pytest.mark.parametrize(
    "active, change, result, reloaded",
    [(41, 41, "success", None), (41, 60, "success", 4960.0), (41, 60, "exit-code", None), (0, 60, "success", None)],
)
def test_a_reload_is_a_later_change_of_an_active_unit(
    active: int, change: int, result: str, reloaded: float | None
) -> None:
    text = (
        f"LoadState=loaded\nActiveState=active\nInactiveExitTimestampMonotonic=40000000\nReloadResult={result}\n"
        f"ActiveEnterTimestampMonotonic={active}000000\nStateChangeTimestampMonotonic={change}000000\n"
    )
    seen = read_units(["a"], text, monotonic_now=100.0, now=5000.0)["a"]
    assert (seen.began, seen.reloaded) == (4940.0, reloaded)


def test_a_unit_is_reloaded_for_files_that_changed_after_its_last_reload() -> None:
    def first(seen: Seen, changed: dict[str, float], **more: Any) -> dict[str, list[str]]:
        todo = steps([unit(reload_on=("/r",), **more)], {"u": seen}, changed)
        return {key: value for key, value in vars(todo).items() if value}

    runs, reloaded = (Seen("u", True, "active", began=5.0, reloaded=when) for when in (None, 9.0))
    assert first(runs, {"/r": 7.0}) == {"reload": ["u"]}
    assert first(runs, {"/r": 4.0}) == first(reloaded, {"/r": 7.0}) == {}
    assert first(reloaded, {"/r": 9.5}) == {"reload": ["u"]}
    # A restart reads all files; a due restart keeps its reason, and a starting unit cannot be reloaded.
    assert first(runs, {"/r": 7.0, "/f": 7.0}) == {"restart": ["u"], "forget": ["u"]}
    assert first(reloaded, {"/f": 7.0}) == {"restart": ["u"], "forget": ["u"]}
    assert first(Seen("u", True, "inactive"), {"/r": 7.0}) == {"start": ["u"]}
    # reload: files of restart_on count from the last reload too.
    assert first(reloaded, {"/f": 7.0}, reload=True) == {}
    assert first(reloaded, {"/f": 9.5}, reload=True) == {"reload": ["u"]}


@pytest.mark.parametrize("text", ["", "hello\n", "Id=x\nLoadState=loaded\n\nId=y\nLoadState=loaded\n"])
def test_an_answer_about_something_else_is_none(text: str) -> None:
    with pytest.raises(NoAnswer, match="systemctl printed"):
        read_units(["x"], text, 1.0, 1.0)


def test_what_something_else_starts_is_left_alone_or_stopped_where_it_is_old() -> None:
    def first(state: str, changed: float = 0.0, **more: Any) -> dict[str, list[str]]:
        todo = steps([unit(state="triggered", **more)], {"u": Seen("u", True, state, began=9.0)}, {"/f": changed})
        return {key: value for key, value in vars(todo).items() if value}

    assert first("active") == first("inactive") == first("activating") == first("inactive", 10.0) == {}
    assert first("active", 10.0) == first("active", outdated=True) == {"stop": ["u"]}
    assert first("inactive", enabled=True) == {"enable": ["u"]}


def test_only_a_running_unit_is_outdated() -> None:
    runs = Seen("u", True, "active", began=100.0)
    assert outdated(runs, {"/f": 100.5}, ["/f"])
    assert not outdated(runs, {"/f": 99.5}, ["/f"])
    assert not outdated(runs, {"/other": 100.5}, ["/f"])
    assert not outdated(Seen("u", True, "failed", began=100.0), {"/f": 100.5}, ["/f"])


def test_steps_for_each_state() -> None:
    def first(seen: Seen, changed: float = 0.0, **more: Any) -> dict[str, list[str]]:
        todo = steps([unit(**more)], {"u": seen}, {"/f": changed})
        return {key: value for key, value in vars(todo).items() if value}

    assert first(Seen("u", True, "active", began=9.0)) == {}
    assert first(Seen("u", True, "activating", began=9.0)) == {"starting": ["u"]}
    assert first(Seen("u", True, "activating", began=9.0), 10.0, defer=True) == {"due": ["u"]}
    assert first(Seen("u", True, "active", began=9.0), 10.0) == {"restart": ["u"], "forget": ["u"]}
    assert first(Seen("u", True, "active", began=9.0), 10.0, defer=True) == {"due": ["u"]}
    assert first(Seen("u", True, "active", began=9.0), outdated=True) == {"restart": ["u"], "forget": ["u"]}
    assert first(Seen("u", True, "active", needs_reload=True, began=9.0)) == {"restart": ["u"], "forget": ["u"]}
    assert first(Seen("u")) == {"start": ["u"]}
    assert first(Seen("u", True, "failed", began=9.0), 10.0) == {"start": ["u"], "forget": ["u"]}
    assert first(Seen("u", True, "deactivating", began=9.0)) == {"start": ["u"]}
    assert first(Seen("u"), enabled=True) == {"start": ["u"], "enable": ["u"]}
    assert first(Seen("u", True, "active", True), enabled=False) == {"disable": ["u"]}
    assert first(Seen("u", True, "active", began=1.0), 2.0, state="stopped") == {"stop": ["u"]}
    assert first(Seen("u", True, "failed"), state="stopped") == {}


def test_what_is_due_is_no_change() -> None:
    todo = steps([unit(defer=True)], {"u": Seen("u", True, "active", began=1.0)}, {"/f": 2.0})
    assert todo.due == ["u"] and not todo.any()


@pytest.mark.parametrize(
    ("kind", "is_change"),
    [
        *((kind, True) for kind in ("enable", "disable", "stop", "start", "restart", "reload")),
        *((kind, False) for kind in ("due", "starting", "forget")),
    ],
)
def test_each_step_that_changes_a_unit_is_a_change(kind: str, is_change: bool) -> None:
    assert Steps(**{kind: ["u"]}).any() is is_change and not Steps().any()


def test_systemd_is_asked_for_the_same_units_once(fake_run: Any) -> None:
    fake_run.on("systemctl show a", "one").on("systemctl show b", "two").on("systemctl start")
    ask = remembering(fake_run)
    answers = [ask(["systemctl", "show", name])[1] for name in ("a", "b", "a")]
    assert answers == ["one", "two", "one"]
    for _number in range(2):
        ask(["systemctl", "start", "a"])
    assert [call[1:] for call in fake_run.calls] == [["show", "a"], ["show", "b"], ["start", "a"], ["start", "a"]]


def test_a_time_that_is_no_number_is_unknown() -> None:
    text = "LoadState=loaded\nActiveState=active\nInactiveExitTimestampMonotonic=[not set]\n"
    assert read_units(["a"], text, monotonic_now=100.0, now=5000.0)["a"].began is None


def test_a_date_in_the_future_restarts_nothing(tmp_path: Path) -> None:
    """The clock was an hour ahead when the file was written, and was set right since."""
    file = tmp_path / "f"
    file.write_text("x")
    now, monotonic = time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)
    os.utime(file, (now + 3600, now + 3600))
    assert written_at(file, monotonic, now) == 0.0
    assert written_at(file, monotonic + 7200, now + 7200) == pytest.approx(now + 3600)


@pytest.mark.parametrize("step", [-3600.0, 0.0, 3600.0])
def test_a_file_that_we_wrote_is_dated_by_a_clock_that_nobody_sets(tmp_path: Path, step: float) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    os.utime(file, (time.time() + step,) * 2)
    before = time.time() - step
    stamp_written(file)
    file = file.rename(tmp_path / "g")
    if not os.listxattr(file):
        pytest.skip("the file system here has no extended attributes")
    # A unit that began a second later runs from the file, a unit that began a second earlier does not, with any wall clock.
    now, monotonic = time.time() - step, time.clock_gettime(time.CLOCK_MONOTONIC)
    changed = {"/f": written_at(file, monotonic, now)}
    assert not outdated(Seen("u", True, "active", began=now + 1), changed, ["/f"])
    assert outdated(Seen("u", True, "active", began=before - 1), changed, ["/f"])
    os.setxattr(file, WRITTEN, os.getxattr(file, WRITTEN).replace(b"-", b"+", 1))  # before the last boot
    assert written_at(file, monotonic, now) == 0.0
    os.utime(file, (now - 5, now - 5))  # by another hand since
    assert written_at(file, monotonic, now) == pytest.approx(now - 5)
