# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module deploy and others on the host: a user's folders, a second controller at work, a killed run."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployment, host_lock, made, staging
from ansible_collections.dgxspark.vllm.plugins.modules import deploy

OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
THEM = 12345
# Takes the lock as a module does, says so, and waits to be ended.
HOLDER = """
import sys, time, types
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, staging
from pathlib import Path
module = types.SimpleNamespace(check_mode=False, params={"controller": "ann@laptop, run 1"}, _name="dgxspark.vllm.deploy")
with host_lock.held(module), host_lock.noted("ann@laptop, run 1", True):
    beside = staging.beside(Path(sys.argv[1]), b"a key", 0o600)
    print(beside, flush=True)
    time.sleep(60)
"""


def file(path: Path, content: str) -> dict[str, Any]:
    data = content.encode()
    return {
        "path": str(path),
        "digest": hashlib.sha256(data).hexdigest(),
        "data": base64.b64encode(data).decode(),
        "mode": "0600",
        **OWNER,
    }


@pytest.fixture
def call(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(AnsibleModule, "run_command", lambda module, argv, **options: (0, "", ""))

    def call(**args: Any) -> dict[str, Any]:
        return call_module(deploy, {"part": "thing", **args}, capsys)

    return call


def test_the_files_of_units_that_go_are_removed(call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unit, calls = tmp_path / "system/spark-thing.service", []
    unit.parent.mkdir()
    unit.write_text("[Service]\n")

    def systemctl(argv: list[str], *_arguments: Any, **_options: Any) -> tuple[int, str, str]:
        calls.append(argv[1])
        return 0, "Id=spark-thing.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n", ""

    monkeypatch.setattr(deployment, "SYSTEM", tmp_path)
    monkeypatch.setattr(deploy.command, "runner", lambda _module: systemctl)
    row = {"name": unit.name, "restart_on": []}
    call(files=[file(unit, "[Service]\n")], units=[row])
    calls.clear()
    result = call()
    assert result.get("changed") is True, result
    assert not unit.exists() and calls[:3] == ["show", "stop", "disable"] and "daemon-reload" in calls


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    target = tmp_path / "secrets/KEY"
    target.parent.mkdir()
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(target)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    staged = Path(process.stdout.readline().strip())
    yield process, target, staged
    process.kill()
    process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another account")
def test_hostile_a_folder_of_somebody_keeps_owner_and_mode_and_is_not_removed(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda module, text: warned.append(text))
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, THEM, THEM)
    (theirs / "thesis.tex").write_text("x")
    assert call(folders=[{"path": str(theirs), **OWNER}])["changed"] is False
    seen = theirs.stat()
    assert (seen.st_uid, stat.S_IMODE(seen.st_mode)) == (THEM, 0o700)
    gone = call(removed=[str(theirs)])
    assert gone["changed"] is False and (theirs / "thesis.tex").exists()
    assert "stays, because it has files that this collection did not create" in warned[0]
    ours = theirs / "ours"
    assert call(folders=[{"path": str(ours), "holds": "weights", "mode": "0750", **OWNER}])["changed"]
    ours.chmod(0o777)
    assert call(folders=[{"path": str(ours), "holds": "weights", "mode": "0750", **OWNER}])["changed"]
    assert stat.S_IMODE(ours.stat().st_mode) == 0o750
    (ours / "model").write_text("x")
    assert call(removed=[str(ours)])["removed"] == [str(ours)] and not ours.exists()


def test_hostile_a_shared_folder_of_ours_with_something_in_it_stays(call: Any, tmp_path: Path) -> None:
    call(folders=[{"path": str(tmp_path / "shared"), **OWNER}])
    (tmp_path / "shared/theirs").write_text("x")
    assert call(removed=[str(tmp_path / "shared")])["removed"] == []
    (tmp_path / "shared/theirs").unlink()
    assert call(removed=[str(tmp_path / "shared")])["removed"] == [str(tmp_path / "shared")]


def test_hostile_who_comes_second_waits_and_then_says_for_whom(
    call: Any, holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, target, _staged = holder
    monkeypatch.setattr(host_lock, "DEADLINE_SECONDS", 0.2)
    result = call(files=[file(target, "mine")], controller="bob@desk, run 2")
    assert (
        result["failed"]
        and f"the module deploy of ann@laptop, run 1 (process {process.pid} on the host" in result["msg"]
    )
    assert "nothing was changed" in result["msg"] and not target.exists()
    # Check mode does not wait for the lock.
    assert call(files=[file(target, "mine")], _ansible_check_mode=True)["changed"]


def test_hostile_a_run_that_is_killed_leaves_no_lock_and_no_half_written_key(call: Any, holder: Any) -> None:
    process, target, staged = holder
    assert staged.exists() and stat.S_IMODE(staged.stat().st_mode) == 0o600
    (host_lock.run_dir() / f"{staging.PREFIX}check").mkdir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert staged.exists(), "nobody but the next run can remove it"
    began = time.monotonic()
    assert call(files=[file(target, "mine")], controller="bob@desk, run 2")["written"] == [str(target)]
    assert time.monotonic() - began < 60
    assert [path.name for path in target.parent.iterdir()] == ["KEY"]
    assert not list(host_lock.run_dir().glob(f"{staging.PREFIX}*"))
    # Its changes are unknown, so it counts as a run with changes.
    assert host_lock.between("bob@desk, run 2") == []
    assert set(json.loads((host_lock.run_dir() / "runs.json").read_text())["runs"]) == {
        "ann@laptop, run 1",
        "bob@desk, run 2",
    }


def test_the_sweep_leaves_what_is_not_ours_and_what_is_being_written(tmp_path: Path) -> None:
    etc, state = tmp_path / "etc/dgxspark/a", tmp_path / "var/lib/dgxspark/models"
    for folder in (etc, state):
        folder.mkdir(parents=True)
    names = [".dgxspark-x", ".bashrc.new", ".sums.json.new", "key"]
    for folder in (etc, state):
        for name in names:
            (folder / name).write_text("x")
    (etc / ".dgxspark-link").symlink_to(etc / "key")
    staging.sweep(tmp_path)
    assert sorted(path.name for path in etc.iterdir()) == [".bashrc.new", ".dgxspark-link", ".sums.json.new", "key"]
    assert sorted(path.name for path in state.iterdir()) == [".bashrc.new", ".sums.json.new", "key"]
    long_ago = time.time() - 2 * staging.DRAFT_SECONDS
    os.utime(state / ".sums.json.new", (long_ago, long_ago))
    staging.sweep(tmp_path)
    assert sorted(path.name for path in state.iterdir()) == [".bashrc.new", "key"]
    # Left by a run that was killed while the clock was an hour ahead.
    os.utime(state / ".bashrc.new", (time.time() + 3600,) * 2)
    staging.sweep(tmp_path)
    assert sorted(path.name for path in state.iterdir()) == ["key"]


def test_a_lock_whose_folder_was_removed_is_taken_anew(tmp_path: Path) -> None:
    path = host_lock.lock_file()
    first = host_lock._take(path, 0.1)
    path.unlink()
    second = host_lock._take(path, 0.1)
    assert host_lock._is_at(second, path) and not host_lock._is_at(first, path)
    os.close(first)
    os.close(second)


def test_hostile_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    host_lock.run_dir().mkdir(parents=True)
    host_lock.lock_file().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        host_lock._take(host_lock.lock_file(), 0.1)
    assert not (tmp_path / "elsewhere").exists()


def test_what_says_nothing_about_its_holder_is_another_run() -> None:
    assert [host_lock.holder_text(message) for message in (b"", b"{}", b"7", b"\xff")] == ["another run"] * 4


def test_folders_are_noted_before_they_are_there(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def refuse(self: Path, *args: Any, **more: Any) -> None:
        if self.name == "cache":
            raise OSError(28, "No space left on device", str(self))
        mkdir(self, *args, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(OSError):
        made.make_folder(tmp_path / "cache", "cache")
    assert made.folders() == {str(tmp_path / "cache"): "cache"}
