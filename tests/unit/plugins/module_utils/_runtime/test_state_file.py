# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What programs of hosts remember: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "of" / "it.json"
    state_file.write(path, {"a": [1]})
    state_file.write(path, {"b": None}, 0o600)
    assert state_file.read(path) == {"b": None}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["it.json"]


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
