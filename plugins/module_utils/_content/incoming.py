# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders of a host in which files wait that come from the controller or go to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from .bundle import no_room


def nearest(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def device(path: Path) -> int:
    """Return the file system of a path that may not exist yet."""
    return nearest(path).stat().st_dev


def free_bytes(path: Path) -> int:
    """Return the free space at a path that may not exist yet."""
    return shutil.disk_usage(nearest(path)).free


def staged_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of the files that wait in a folder, by name."""
    return {file.name: file.stat().st_size for file in folder.iterdir()} if folder.is_dir() else {}


def make_folder(path: Path) -> None:
    """Make a folder that the login user may write to: the connection transfers files as that user."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    login = os.environ.get("SUDO_UID", "")
    if login.isdigit() and os.geteuid() == 0:
        os.chown(path, int(login), -1)


def missing_room(needs: Iterable[tuple[Path, int, str]]) -> str:
    """Return a message about disks without enough space, or an empty text. needs: a path, the bytes it needs, and their noun."""
    messages = [no_room(count, free_bytes(path), f"the file system of {path}", noun) for path, count, noun in needs]
    return " ".join([*filter(None, messages), "Make room there."]) if any(messages) else ""
