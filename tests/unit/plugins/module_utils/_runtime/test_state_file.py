# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""State files of host programs are written completely or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "of" / "it.json"
    state_file.write(path, {"a": [1]})
    state_file.write(path, {"b": None}, 0o600)
    assert state_file.read(path) == {"b": None}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["it.json"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"3", b"\xff{}"])
def test_what_is_no_object_is_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state.json"
    if content is not None:
        path.write_bytes(content)
    assert state_file.read(path) is None


def test_what_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state_file.write(path, {"a": 1})
    with pytest.raises(TypeError):
        state_file.write(path, {"a": object()})
    assert state_file.read(path) == {"a": 1}


WRITER = """
import sys
from pathlib import Path
from {module} import {function} as write
for number in range(150):
    write(Path({path!r}), sys.argv[1] * 50_000)
"""


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.state_file", "write_text"),
        ("ansible_collections.dgxspark.vllm.plugins.plugin_utils.files", "write"),
    ],
)
def test_two_writers_at_once_leave_the_file_of_one_of_them(tmp_path: Path, module: str, function: str) -> None:
    path = tmp_path / "state.json"
    program = WRITER.format(module=module, function=function, path=str(path))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, word],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for word in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            text = path.read_text(encoding="utf-8")
            assert len(text) == 50_000 and len(set(text)) == 1
            seen.add(text[0])
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"] and seen


def test_a_draft_that_cannot_be_written_is_removed_and_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    path = tmp_path / "folder" / "state.json"
    path.parent.mkdir()
    path.symlink_to(elsewhere)
    state_file.write_text(path, "new")
    assert elsewhere.read_text() == "mine" and path.read_text() == "new" and not path.is_symlink()

    def full(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        state_file.write_text(path, "newer")
    assert path.read_text() == "new" and [file.name for file in path.parent.iterdir()] == ["state.json"]
