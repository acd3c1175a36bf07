# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start lock: which engine loads, and for whom the lock is held."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import start_lock
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

OWNER = {"unit": "spark-a.service", "invocation": "i1", "loads": True}
STARTING = "Id=spark-a.service\nActiveState=activating\nSubState=start-post\nInvocationID=i1\n"


@pytest.mark.parametrize(
    ("owner", "printed", "unit"),
    [
        (OWNER, STARTING, "spark-a.service"),
        (OWNER, None, "spark-a.service"),  # silence is no end of a load
        ({**OWNER, "invocation": ""}, STARTING, "spark-a.service"),
        ({**OWNER, "loads": False}, STARTING, ""),
        ({"unit": "spark-a.service", "invocation": "i1"}, STARTING, ""),  # waits for memory
        ({**OWNER, "invocation": "i0"}, STARTING, ""),
        (OWNER, STARTING.replace("start-post", "auto-restart"), ""),
        (OWNER, STARTING.replace("activating", "active"), ""),
        (OWNER, "", ""),
        ({"loads": True}, STARTING, ""),
        ([], STARTING, ""),
        (None, STARTING, ""),
    ],
)
def test_which_engine_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: Any, printed: str | None, unit: str
) -> None:
    answer = command.Answer(command.SILENT, 124) if printed is None else command.Answer(command.FINISHED, 0, printed)
    monkeypatch.setattr(command, "run", lambda *_arguments: answer)
    if owner is not None:
        (tmp_path / "start.json").write_text(json.dumps(owner))
    assert start_lock.loading(tmp_path) == unit


def test_units_that_are_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "Id=spark-a.service\nActiveState=deactivating\n\nId=spark-b.service\nActiveState=active\n"
    answers = [command.Answer(command.FINISHED, 0, printed), command.Answer(command.SILENT, 124)]
    monkeypatch.setattr(command, "run", lambda *_arguments: answers.pop(0))
    names = ["spark-b.service", "spark-a.service"]
    assert [start_lock.being_stopped(names), start_lock.being_stopped(names)] == [["spark-a.service"], None]
    assert start_lock.being_stopped([]) == []


def test_the_lock_is_given_back_when_its_file_is_closed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_lock.acquire(run_dir), (run_dir / "start.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with start_lock.acquire(run_dir):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        start_lock.acquire(tmp_path / "file")
