# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check files of the controller that hold one key each. No message shows content of a key."""

from __future__ import annotations

import stat
from pathlib import Path

LEAST = 8
"""Characters of a key; a shorter one is guessed within a day."""
LARGEST = 65536
"""Bytes; larger files are no keys."""
VAULT = b"$ANSIBLE_VAULT;"


def wrong(path: Path, strict: bool) -> str:
    """Return why a file cannot be a key; empty for a valid key and for a missing file.

    strict: the key is sent in a header, so it must be one line of plain characters; otherwise any text is valid.
    """
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind):  # a FIFO would keep its reader waiting
            return "is a folder" if stat.S_ISDIR(kind) else "is no ordinary file"
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if content.startswith(VAULT):
        return ""  # read by Ansible, which knows the password
    if len(content) > LARGEST:
        return f"is larger than {LARGEST} bytes"
    if not content.strip():
        return "is empty" if not content else "contains only blanks and line breaks"
    if b"\0" in content:
        return "contains a NUL character"
    return _wrong_key(content.removesuffix(b"\n")) if strict else ""


def _wrong_key(key: bytes) -> str:
    if b"\n" in key.strip(b"\r\n"):
        return "has several lines"
    if any(byte < 32 or byte == 127 for byte in key):
        return "contains a control character (a line end of Windows, a tab or an empty line)"
    if any(byte > 126 for byte in key):
        return "contains a character that is not ASCII, which HTTP headers do not allow"
    if key != key.strip() or b" " in key:
        return "contains a blank"
    return f"has fewer than {LEAST} characters" if len(key) < LEAST else ""
