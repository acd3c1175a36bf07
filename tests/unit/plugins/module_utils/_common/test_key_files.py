# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files with keys on the controller: the plan refuses unusable content with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import key_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_input import secret_finding


@pytest.mark.parametrize("content", [b"sk-0123456789\n", b"sk-0123456789", b"$ANSIBLE_VAULT;1.1;AES256\n6162\n6364\n"])
def test_a_key_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    assert key_files.wrong(tmp_path / "key", strict=True) == ""
    assert secret_finding("heavy", "VLLM_API_KEY", tmp_path / "key", is_own=True) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\n", "contains only blanks and line breaks"),
        (b" \t\r\n \n", "contains only blanks and line breaks"),
        (b"sk-0123456789\nsk-0123456789\n", "has several lines"),
        (b"sk-0123456789\r\n", "contains a control character"),
        (b"\nsk-0123456789\n", "contains a control character"),
        (b"sk-01234\x1b56789\n", "contains a control character"),
        (b"sk-01234\x0056789\n", "contains a NUL character"),
        ("sk-0123456789é\n".encode(), "contains a character that is not ASCII"),
        (b"sk-0123456789 \n", "contains a blank"),
        (b"my key is this\n", "contains a blank"),
        (b"secret\n", "has fewer than 8 characters"),
        (b"k" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_what_cannot_be_a_key_is_refused_with_the_file_and_the_fix(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    finding = secret_finding("heavy", "VLLM_API_KEY", path, is_own=True)
    assert finding and (finding.rule, finding.severity, finding.service) == ("secret.unusable", "error", "heavy")
    assert f"'{path}', {why}" in finding.message and "dgxspark.vllm.keys" in finding.fix
    text = content.decode(errors="replace").strip()
    assert not text or text not in finding.message + finding.fix


def test_what_is_no_file_is_refused_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert key_files.wrong(tmp_path / "fifo", strict=False) == "is no ordinary file"
    assert key_files.wrong(tmp_path, strict=False) == "is a folder"
    assert "cannot be read" in key_files.wrong(Path("/nul\0here"), strict=False)
    assert key_files.wrong(tmp_path / "none", strict=True) == ""
    missing = secret_finding("heavy", "VLLM_API_KEY", tmp_path / "none", is_own=True)
    assert missing and missing.rule == "secret.missing"
    relative = secret_finding("heavy", "VLLM_API_KEY", Path("keys/one"), is_own=True)
    assert relative and relative.rule == "secret.missing"


def test_a_secret_of_somebody_else_may_have_several_lines(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("A: b\nC: d\n", encoding="utf-8")
    assert key_files.wrong(tmp_path / "headers", strict=False) == ""
    (tmp_path / "blank").write_text("\n", encoding="utf-8")
    assert secret_finding("monitor", "headers_file", tmp_path / "blank", is_own=False)


def test_a_key_that_every_account_can_change_is_reported_as_in_wsl(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-0123456789\n")
    path.chmod(0o777)
    finding = secret_finding("heavy", "VLLM_API_KEY", path, is_own=True)
    assert finding and (finding.rule, finding.severity) == ("secret.open", "warning")
    assert "chmod 600" in finding.fix and "WSL" in finding.fix
