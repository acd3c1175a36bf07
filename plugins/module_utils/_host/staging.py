# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are written beside their place and then get their name, and what runs that were killed have left of that."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from .host_lock import run_dir

PREFIX = ".dgxspark-"
"""Of all names that a module writes to beside a file's place."""
TREES = ("/etc/dgxspark", "/usr/local/lib/dgxspark", "/usr/local/libexec/dgxspark", "/var/lib/dgxspark/generations")
FOLDERS = (
    "/etc/systemd/system",
    "/var/lib/dgxspark",
    "/var/lib/dgxspark/images",
    "/var/lib/dgxspark/models",
    "/var/lib/dgxspark/receipts",
    "/var/lib/dgxspark/spread",
)
DRAFT_SECONDS = 600.0
"""How old a draft by a fixed name (C(.NAME.new)) is when nobody writes it any more; what writes those holds no lock."""


def beside(path: Path, content: bytes, mode: int, owner: str | int = "", group: str | int = "") -> Path:
    """Write a file whole beside its place, for the caller to rename.

    Nobody but root can read it until its owner and mode are those that are wanted.

    :param path: its place
    :param content: its bytes
    :param mode: that it is to have
    :param owner: name or number, empty for that of the process
    :param group: name or number, empty for that of the process
    :returns: where it lies
    :raises OSError: with C(path) as its file name; nothing is left then
    """
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=PREFIX, dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if owner != "":
            shutil.chown(name, owner, group)
        # The mode last: a change of the owner takes special bits away.
        Path(name).chmod(mode)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        error.filename = str(path)  # a disk that is full names none
        raise
    return Path(name)


def sweep(root: Path = Path("/"), more: Iterable[Path] = ()) -> list[str]:
    """Remove what killed runs have left beside files; returns the paths.

    Only who holds the lock of the host may: every live module that writes such files holds it. root: where the host's files are, for
    tests. more: further folders to look in.
    """
    gone: list[str] = []
    folders = {root / folder.lstrip("/") for folder in FOLDERS} | set(more)
    for tree in TREES:
        folders |= {Path(base) for base, _names, _files in os.walk(root / tree.lstrip("/"))}
    for folder in sorted(folders):
        gone += _sweep(folder, drafts=(root / "var/lib/dgxspark") in (folder, *folder.parents))
    for path in sorted(run_dir().glob(f"{PREFIX}*")):
        if path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
            gone.append(str(path))
    return gone


def _sweep(folder: Path, drafts: bool) -> list[str]:
    gone = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        ours = entry.name.startswith(PREFIX)
        if not ours and not (drafts and entry.name.startswith(".") and entry.name.endswith(".new")):
            continue
        try:
            seen = entry.stat(follow_symlinks=False)
            old = ours or abs(time.time() - seen.st_mtime) > DRAFT_SECONDS  # in the future: the wall clock was set back
            if stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and old:
                Path(entry.path).unlink()
                gone.append(entry.path)
        except FileNotFoundError:
            continue
    return gone
