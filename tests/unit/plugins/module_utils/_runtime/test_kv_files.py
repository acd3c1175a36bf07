# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of KV caches on a host: whose they are, and how many may be there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import kv_files

MIB = 1 << 20
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DGXSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(kv_files, "KEEP_FREE_GIB", 0.0)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    return {
        "folder": str(tmp_path / "kv"),
        "disk_gib": 0.01,
        "key": "k",
        "hub": str(tmp_path / "hub"),
        "models": [{"repo": "org/model", "revision": "main"}],
    }


def write(folder: Path, name: str, age: float, mib: int = 1) -> Path:
    """age: minutes since its last use."""
    path = folder / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * mib * MIB)
    then = (time.time() // kv_files.AGE_SECONDS) * kv_files.AGE_SECONDS - 60 * age
    os.utime(path, (then, then))
    return path


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.rglob("*.bin")}


def test_the_least_used_go_first_and_ends_of_prompts_before_their_beginnings(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    for name, age in (("aaaaa0", 100), ("bbbbb0", 55), ("bbbbb1", 54), ("bbbbb2", 53), ("ccccc0", 10), ("ccccc1", 1)):
        write(folder, name, age)
    assert kv_files.trim(folder, 7 * MIB) == 0
    # Down to 90 % of five: of those of one time the last ones.
    assert kv_files.trim(folder, 5 * MIB) == 2 * MIB
    assert names(folder) == {"bbbbb0", "bbbbb1", "ccccc0", "ccccc1"}
    assert not (folder / "aaa").exists()


def test_one_that_was_read_counts_as_used(tmp_path: Path) -> None:
    old = write(tmp_path, "aaaaa0", 300)
    write(tmp_path, "bbbbb0", 100)
    write(tmp_path, "ccccc0", 1)
    os.utime(old, (time.time(), old.stat().st_mtime))
    assert kv_files.trim(tmp_path, 3 * MIB) == MIB
    assert names(tmp_path) == {"aaaaa0", "ccccc0"}


def test_links_of_an_engine_lead_nowhere(tmp_path: Path) -> None:
    others = tmp_path / "others"
    write(others, "aaaaa0", 1000, mib=3)
    folder = tmp_path / "kv"
    write(folder, "bbbbb0", 1)
    (folder / "link").symlink_to(others)
    (folder / "bbb" / "file").symlink_to(others / "aaa" / "aa_g0" / "aaaaa0.bin")
    kv_files.trim(folder, 0)
    assert names(others) == {"aaaaa0"} and not names(folder)


def test_the_disk_keeps_free_space_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(tmp_path, f"aaaaa{number}", 100 * number)
    space = SimpleNamespace(f_bavail=1, f_frsize=MIB)
    monkeypatch.setattr(kv_files.os, "statvfs", lambda _folder: space)
    monkeypatch.setattr(kv_files, "KEEP_FREE_GIB", 3 / 1024)
    assert kv_files.trim(tmp_path, 1 << 40) == 3 * MIB
    monkeypatch.setattr(kv_files, "KEEP_FREE_GIB", 1.0)
    kv_files.trim(tmp_path, 1 << 40)
    assert not names(tmp_path)


@pytest.mark.parametrize("change", ["key", "image", "commit", "repo"])
def test_files_of_another_launch_are_removed(tmp_path: Path, settings: dict[str, Any], change: str) -> None:
    folder, image = tmp_path / "kv", "sha256:1"
    assert kv_files.prepare("heavy", settings, image) == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    write(folder, "aaaaa0", 5)
    assert kv_files.prepare("heavy", settings, image) == 0 and names(folder)
    if change == "key":
        settings["key"] = "other"
    elif change == "image":
        image = "sha256:2"
    elif change == "commit":
        (tmp_path / "hub" / "models--org--model" / "refs" / "main").write_text("b" * 40)
    else:
        settings["models"] = [*settings["models"], {"repo": "org/adapter", "revision": COMMIT}]
    assert kv_files.prepare("heavy", settings, image) == MIB and not names(folder)
    # A folder that another version filled without a note is not trusted either.
    write(folder, "aaaaa0", 5)
    kv_files.note_of("heavy").unlink()
    assert kv_files.prepare("heavy", settings, image) == MIB


def test_a_model_from_the_controller_is_known_by_its_files(tmp_path: Path, settings: dict[str, Any]) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "model.safetensors").write_text("one")
    settings = {**settings, "models": [], "path": str(local)}
    before = kv_files.identity(settings, "sha256:1")
    assert before == kv_files.identity(settings, "sha256:1")
    (local / "model.safetensors").write_text("three")
    assert before != kv_files.identity(settings, "sha256:1")


@pytest.mark.parametrize("text", ["", "main", "../../etc", "a" * 39])
def test_an_unknown_commit_is_an_error(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    ref = tmp_path / "hub" / "models--org--model" / "refs" / "main"
    ref.write_text(text)
    with pytest.raises(OSError, match="no commit"):
        kv_files.prepare("heavy", settings, "sha256:1")
    ref.unlink()
    with pytest.raises(FileNotFoundError):
        kv_files.prepare("heavy", settings, "sha256:1")


def test_a_link_is_no_folder(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "kv").symlink_to(tmp_path)
    with pytest.raises(OSError, match="link"):
        kv_files.prepare("heavy", settings, "sha256:1")


def test_the_folder_is_read_again_only_when_the_disk_fills(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kv").mkdir()
    free, read = [100 * MIB], []
    monkeypatch.setattr(kv_files.os, "statvfs", lambda _folder: SimpleNamespace(f_bavail=free[0], f_frsize=1))
    monkeypatch.setattr(kv_files, "trim", lambda folder, most: read.append((folder, most)) or 0)
    keeper = kv_files.Keeper(settings)
    keeper.look()
    assert read == [(tmp_path / "kv", int(0.01 * (1 << 30)))]
    keeper.look()
    free[0] -= MIB // 10
    keeper.look()
    assert len(read) == 1
    free[0] -= MIB
    keeper.look()
    assert len(read) == 2
    free[0] += 50 * MIB  # others removed something, and the engine writes as much
    keeper.look()
    free[0] -= MIB
    keeper.look()
    assert len(read) == 3
