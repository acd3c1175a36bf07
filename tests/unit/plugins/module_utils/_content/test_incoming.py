# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders for incoming files: free space at paths that may not exist yet, and sizes of waiting files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import incoming


def test_a_missing_path_counts_as_the_nearest_folder(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    assert incoming.nearest(missing) == tmp_path
    assert incoming.device(missing) == tmp_path.stat().st_dev
    assert incoming.free_bytes(missing) > 0
    assert incoming.staged_sizes(missing) == {}


def test_waiting_files_are_listed_with_their_sizes(tmp_path: Path) -> None:
    incoming.make_folder(tmp_path / "waiting")
    (tmp_path / "waiting" / "part").write_bytes(b"abc")
    assert incoming.staged_sizes(tmp_path / "waiting") == {"part": 3}


def test_all_disks_without_room_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "free_bytes", lambda path: 10**9)
    needs = [(tmp_path / "a", 3 * 10**9, "the archive"), (tmp_path / "b", 10**9, "the image")]
    message = incoming.missing_room(needs)
    assert "the archive needs 3.00 GB: 2.00 GB are missing." in message and message.endswith("Make room there.")
    assert "the image" not in message and incoming.missing_room(needs[1:]) == ""
