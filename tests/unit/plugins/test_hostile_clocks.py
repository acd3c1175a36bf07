# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wall clock that is set by an hour, ahead or back, between two steps that belong together.

Long-running programs have such cases in their own tests: C(test_spark_unit.py), C(test_agent_watchdog.py), C(test_wedge.py),
C(test_unit_steps.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import planned_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import to_dict
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_sums, spread_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import doctor, host_health, status_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import file_times, host_lock, units
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.planned import PlannedImage
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipts

HOUR = 3600.0
both_ways = pytest.mark.parametrize("step", [-HOUR, HOUR])
# Takes the lock of the host as a module does, says so, and waits to be ended.
HOLDER = """
import time, types
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock
module = types.SimpleNamespace(check_mode=False, params={"controller": "ann@laptop"}, _name="dgxspark.vllm.transfer")
with host_lock.held(module):
    print("held", flush=True)
    time.sleep(60)
"""


class Wall:
    """The wall clock of this process, C(step) seconds off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step, self.real = 0.0, time.time
        monkeypatch.setattr(time, "time", self)

    def __call__(self) -> float:
        return self.real() + self.step

    def write(self, path: Path, text: str) -> None:
        """Write a file with the time of this clock."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (self(), self()))


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@both_ways
def test_who_changes_a_host_waits_and_gives_up_by_a_clock_that_nobody_sets(
    wall: Wall, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of transfers and fetches of models as well: each such module takes it."""
    monkeypatch.setattr(host_lock, "DEADLINE_SECONDS", 1.0)
    messages: list[str] = []

    def fail_json(msg: str) -> None:
        messages.append(msg)

    module = types.SimpleNamespace(check_mode=False, params={}, _name="x.model_snapshot", fail_json=fail_json)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        wall.step, begun = step, time.monotonic()
        with pytest.raises(host_lock.Busy), host_lock.held(module):
            pass
        assert 0.9 < time.monotonic() - begun < 30
        assert "the module transfer of ann@laptop" in messages[0] and "1 s of waiting" in messages[0]
    finally:
        holder.kill()
        holder.wait()
    with host_lock.held(module) as held:  # free as soon as its holder is dead, with any time of the clock
        assert held


@both_ways
def test_runs_of_other_controllers_are_seen_in_their_order(wall: Wall, step: float) -> None:
    host_lock.run_dir().mkdir(parents=True, exist_ok=True)
    with host_lock.noted("ann", True):
        pass
    wall.step = step
    with host_lock.noted("bob", True) as notice:
        notice["changed"] = True
    assert host_lock.between("ann") == ["bob"] and host_lock.between("bob") == []


@both_ways
@pytest.mark.parametrize("by", ["fetch", "spread"])
def test_an_engine_with_a_file_that_was_damaged_is_known_by(
    by: str, step: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was an hour off when the file was taken away, and is right now: units before it are outdated, later ones not."""
    touch = Path.touch

    def off(path: Path) -> None:
        touch(path)
        os.utime(path, (time.time() + step,) * 2)

    monkeypatch.setattr(Path, "touch", off)
    monkeypatch.setattr(spread_files, "SUMS", tmp_path)
    (tmp_path / "hub").mkdir()
    before = time.time()
    if by == "fetch":
        file_sums.note_repair(tmp_path, "Org/M")
    else:
        spread_files.put_aside(tmp_path, "models--Org--M/blobs/x", None, "models--Org--M")
    path, other = file_sums.repair_stamp(tmp_path, "Org/M"), tmp_path / "other"
    other.write_text("x")
    file_times.stamp_written(other)
    if not os.listxattr(other):
        pytest.skip("the file system here has no extended attributes")
    clocks = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
    assert before - 1 < file_times.written_at(path, *clocks) < time.time() + 1


@both_ways
def test_files_that_were_verified_stay_so(wall: Wall, step: float, tmp_path: Path) -> None:
    """They are known by their date and not by its age."""
    blob = tmp_path / "blob"
    wall.write(blob, "x")
    before = spread_files.beneath.stat_key(blob.stat())
    wall.step = step
    assert spread_files.beneath.stat_key(blob.stat()) == before


@both_ways
def test_the_uptime_of_a_service_is_the_hosts(wall: Wall, step: float) -> None:
    """Neither the controller's clock nor the date in the unit has a say."""
    wall.step = step
    shown = "Id=spark-a.service\nActiveState=active\nActiveEnterTimestamp=Fri 2026-11-20 12:00:00 UTC\nActiveEnterTimestampMonotonic=5000000\n"
    measured = {"units": units.parse_show(shown, 65.0)}
    planned = {
        "services": [{"name": "a", "unit": "spark-a.service", "recipe": "r", "model": {"repo": "O/M"}, "memory": {}}]
    }
    (row,) = status_rows.status_rows("spark-1", planned, measured, [])
    assert row.uptime_seconds == 60


@both_ways
def test_a_receipt_of_an_hour_ahead_or_back_is_no_old_one(wall: Wall, step: float, tmp_path: Path) -> None:
    wall.step = step
    receipt = receipts.build("heavy", {"image": {"ref": "vllm:1"}}, {}, None)
    wall.write(tmp_path / "heavy.json", receipts.dump(receipt))
    wall.step = 0.0
    saved_receipts = host_health.read_receipts(tmp_path)
    planned = {
        "services": [to_dict(planned_fixture.service(name="heavy", image=PlannedImage("vllm:1", None, None, "")))]
    }
    report = doctor.HostReport(planned, {}, {"receipts": saved_receipts}, {}, {}, {})
    assert "error" not in saved_receipts["heavy"] and list(doctor.check_receipts(report)) == []
