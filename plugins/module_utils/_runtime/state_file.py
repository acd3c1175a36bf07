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


def read(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; C(None) where there is no file, or no object in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write(path: Path, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """Replace a file, so that nobody reads half of it, and a crash of the host leaves the old or the new one.

    :param path: of the file; its folder is made
    :param value: what JSON can hold
    :param mode: of the file
    """
    write_text(path, json.dumps(value, indent=1) + "\n", mode)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file of text at one go, as C(write) does.

    :param path: of the file; its folder is made
    :param text: what is to be in it
    :param mode: of the file
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
