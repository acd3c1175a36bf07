# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the controller that hold one key each: whether what is in them can be a key. Reads them, and shows nothing of them."""

from __future__ import annotations

import stat
from pathlib import Path

LEAST = 8
"""Characters of a key; what is shorter is guessed within a day."""
LARGEST = 65536
"""Bytes; a file that is larger is no key."""
VAULT = b"$ANSIBLE_VAULT;"


def wrong(path: Path, strict: bool) -> str:
    """Say why a file cannot serve as a key; empty where it can, and where there is no such file.

    strict: it is a key that clients send in a header, so it is one line of plain characters; else it may be any text.
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
        return "is empty" if not content else "holds only blanks and line breaks"
    if b"\0" in content:
        return "holds a NUL character"
    if not strict:
        return ""
    key = content.removesuffix(b"\n")
    if b"\n" in key.strip(b"\r\n"):
        return "has several lines"
    if any(byte < 32 or byte == 127 for byte in key):
        return "holds a control character (a line end of Windows, a tab or an empty line)"
    if any(byte > 126 for byte in key):
        return "holds a character that is not ASCII, which no HTTP header carries"
    if key != key.strip() or b" " in key:
        return "holds a blank"
    return f"holds fewer than {LEAST} characters" if len(key) < LEAST else ""
