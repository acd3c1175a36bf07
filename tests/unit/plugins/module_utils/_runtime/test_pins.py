# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins, which keep a service on demand up or down."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import pins


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run/pins"
    assert pins.read(folder, "a") == pins.Pin()
    pins.write(folder, "a", pins.WARM)
    assert pins.read(folder, "a") == pins.Pin("warm") and pins.Pin("warm").text("a") == "a is kept warm by its owner"
    pins.write(folder, "a", pins.COLD, "the guard:\n0.3 GiB   are left")
    content = pins.read(folder, "a")
    assert content == pins.Pin("cold", "the guard: 0.3 GiB are left")
    assert content.text("a") == "a is kept cold by the guard: 0.3 GiB are left"
    pins.write(folder, "a", "")
    pins.write(folder, "a", "")
    assert pins.read(folder, "a") == pins.Pin() and list(folder.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"hot\n", b"\xff\xfe\n", b"\n\n", b"cold" * 9])
def test_what_is_no_pin_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    assert pins.read(tmp_path, "a") == pins.Pin()


def test_a_reason_is_bounded(tmp_path: Path) -> None:
    pins.write(tmp_path, "a", pins.COLD, "x" * 9999)
    assert len(pins.read(tmp_path, "a").why) == pins.MOST_TEXT
