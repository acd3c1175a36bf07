# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program remembers from one look to the next: a JSON object in a file that is replaced at one go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json

DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; C(None) without a file, or without an object in it."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write(path: Path, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """Replace a file by JSON, so that nobody reads half of it, and a crash of the host leaves the old or the new one; its folder is made."""
    write_text(path, json.dumps(value, indent=1) + "\n", mode)


def write_text(path: Path, text: str, mode: int | None = 0o644) -> None:
    """Replace a file of text at one go, as C(write_bytes) does."""
    write_bytes(path, text.encode(), mode)


def write_bytes(path: Path, content: bytes, mode: int | None = 0o644) -> None:
    """Replace a file at one go, and make its folder; of several writers one wins. mode: None leaves it to the umask."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name[:50]}.{os.urandom(8).hex()}.new")
    try:
        with os.fdopen(os.open(draft, DRAFT, 0o666 if mode is None else 0o600), "wb") as stream:
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # a disk that is full names none
        raise
