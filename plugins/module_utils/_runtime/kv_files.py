# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a service's KV cache on its host: removed when they are of another image, model or launch, and kept in bounds.

vLLM names them by block hash and never removes one. The engine, root in its container, may put anything into the folder: no link is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import state_file

GIB = 1 << 30
HIGH_SHARE, LOW_SHARE = 0.95, 0.9
"""Files are removed from this share of the bound on, down to that one: an engine writes on until the next look."""
KEEP_FREE_GIB = 5.0
"""Free space of the disk that the files leave to others, like C(DISK_MARGIN_GIB) of the plan."""
GROWTH_SHARE = 0.02
"""The folder is read again once the disk has filled by this share of the bound; reading it takes a second per 100,000 files."""
AGE_SECONDS = 600
"""Files last used within so many seconds of each other count as equally old: of those the newest goes first, which is the end of a prompt."""
COMMIT = re.compile(r"[0-9a-f]{40}")
MODE = 0o700
"""The files are prompts in another form."""


def note_of(name: str) -> Path:
    """Return the file that records what the files of a service belong to."""
    return Path(os.environ.get("DGXSPARK_STATE_DIR", "/var/lib/dgxspark")) / "kv_files" / f"{name}.json"


# --- identity -----------------------------------------------------------------------------------------------------------


def identity(settings: Mapping[str, Any], image_id: str) -> str:
    """Return a hash of what values and layout of a KV cache depend on. image_id: C(sha256:...). Raises OSError for an unreadable revision."""
    parts: list[Any] = [settings.get("key"), image_id]
    for model in settings.get("models") or []:
        parts.append([model["repo"], commit_of(Path(settings["hub"]), str(model["repo"]), str(model["revision"]))])
    if settings.get("path"):
        # A model without a repository is what its files are.
        entries = [(path.name, path.stat()) for path in sorted(Path(settings["path"]).iterdir())]
        parts.append([[name, status.st_size, status.st_mtime_ns] for name, status in entries])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def commit_of(hub: Path, repo: str, revision: str) -> str:
    """Return the commit of a snapshot. Raises OSError if no file says it."""
    if COMMIT.fullmatch(revision):
        return revision
    path = hub / f"models--{repo.replace('/', '--')}" / "refs" / revision
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        commit = stream.read(100).decode("utf-8", "replace").strip()
    if not COMMIT.fullmatch(commit):
        raise OSError(f"{path} holds no commit")
    return commit


def prepare(name: str, settings: Mapping[str, Any], image_id: str) -> int:
    """Make the folder of a service ready for its start.

    :param image_id: C(sha256:...) of the image that is about to be started
    :returns: bytes of removed files
    :raises OSError: with what could not be read, removed or noted; the engine must not start then, since it would trust the files
    """
    folder, key, note = Path(settings["folder"]), identity(settings, image_id), note_of(name)
    if folder.is_symlink():
        raise OSError(f"{folder} is a link; remove it")
    folder.mkdir(mode=MODE, parents=True, exist_ok=True)
    removed = 0
    if (state_file.read(note) or {}).get("key") != key:
        removed = trim(folder, 0)
        state_file.write(note, {"key": key})
    folder.chmod(MODE)
    return removed + trim(folder, bound(settings))


def bound(settings: Mapping[str, Any]) -> int:
    """Return the most bytes of the files of a service."""
    return int(float(settings["disk_gib"]) * GIB)


# --- bounds -------------------------------------------------------------------------------------------------------------


def trim(folder: Path, most: int) -> int:
    """Remove the longest unused files of a folder with more than C(most) bytes; the disk's free space may allow less."""
    by_age: Counter[int] = Counter()
    for _descriptor, _name, status in _files(folder):
        by_age[_age(status)] += status.st_blocks * 512
    total, space = sum(by_age.values()), os.statvfs(folder)
    room = total + space.f_bavail * space.f_frsize - int(KEEP_FREE_GIB * GIB)
    if total <= min(most * HIGH_SHARE, room):
        return 0
    excess, last = total - int(max(0, min(most, room)) * LOW_SHARE), 0
    for last in sorted(by_age):
        if by_age[last] >= excess:
            break
        excess -= by_age[last]
    return _remove(folder, last, excess)


def _remove(folder: Path, last: int, excess: int) -> int:
    """Remove all files older than an age, and the newest of that age up to C(excess) bytes; return the removed bytes."""
    since, removed = 0.0, 0
    same = [(_used(status), status.st_blocks * 512) for _d, _n, status in _files(folder) if _age(status) == last]
    for used, size in sorted(same, reverse=True):
        since, excess = used, excess - size
        if excess <= 0:
            break
    for descriptor, name, status in _files(folder, empty=True):
        if _age(status) < last or (_age(status) == last and _used(status) >= since):
            with suppress(FileNotFoundError):  # the unit that starts and the one that keeps the bounds may both look
                os.unlink(name, dir_fd=descriptor)
                removed += status.st_blocks * 512
    return removed


def _used(status: os.stat_result) -> float:
    return max(status.st_atime, status.st_mtime)


def _age(status: os.stat_result) -> int:
    return int(_used(status) // AGE_SECONDS)


def _files(folder: Path, empty: bool = False) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield the files below a folder with the descriptor of theirs. empty: remove folders that are empty afterwards."""
    for _path, folders, names, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in names:
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:  # the engine has renamed it
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield descriptor, name, status
        for name in folders if empty else ():
            try:
                os.rmdir(name, dir_fd=descriptor)
            except OSError:  # not empty, or a link
                continue


class Keeper:
    """Keeps the folder of one service in bounds, and reads it only after the disk has filled."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Set it up. settings: C(kv_files) of the settings of a unit."""
        self.folder, self.most = Path(settings["folder"]), bound(settings)
        self.free: int | None = None

    def look(self) -> int:
        """Remove files if there are too many; return the removed bytes. Raises OSError."""
        if not self.folder.is_dir():
            return 0
        space = os.statvfs(self.folder)
        free = space.f_bavail * space.f_frsize
        self.free = None if self.free is None else max(self.free, free)
        if self.free is not None and self.free - free < GROWTH_SHARE * self.most and free > KEEP_FREE_GIB * GIB:
            return 0
        removed = trim(self.folder, self.most)
        space = os.statvfs(self.folder)
        self.free = space.f_bavail * space.f_frsize
        return removed
