# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are written next to their place and then renamed, and the leftovers of killed runs."""

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
"""Beginning of the names of all temporary files."""
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
"""Age at which a draft with a fixed name (C(.NAME.new)) counts as abandoned; its writers hold no lock."""


def beside(path: Path, content: bytes, mode: int, owner: str | int = "", group: str | int = "") -> Path:
    """Write a whole file next to its place, for the caller to rename. Only root can read it until it has its owner and mode.

    :param owner: name or number, empty for the owner of the process
    :raises OSError: with C(path) as its file name; no temporary file remains then
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
        # The mode last: a change of the owner clears special bits.
        Path(name).chmod(mode)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        error.filename = str(path)  # the error of a full disk names no file
        raise
    return Path(name)


def sweep(root: Path = Path("/"), more: Iterable[Path] = ()) -> list[str]:
    """Remove the temporary files of killed runs; returns the paths.

    The caller holds the lock of the host, as every live module that writes such files does. root: of the host's files, for
    tests. more: further folders to look in.
    """
    removed: list[str] = []
    folders = {root / folder.lstrip("/") for folder in FOLDERS} | set(more)
    for tree in TREES:
        folders |= {Path(base) for base, _names, _files in os.walk(root / tree.lstrip("/"))}
    for folder in sorted(folders):
        removed += _sweep(folder, drafts=(root / "var/lib/dgxspark") in (folder, *folder.parents))
    for path in sorted(run_dir().glob(f"{PREFIX}*")):
        if path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
            removed.append(str(path))
    return removed


def _sweep(folder: Path, drafts: bool) -> list[str]:
    removed = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        ours = entry.name.startswith(PREFIX)
        if not ours and not (drafts and entry.name.startswith(".") and entry.name.endswith(".new")):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            old = (
                ours or abs(time.time() - status.st_mtime) > DRAFT_SECONDS
            )  # in the future: the wall clock was set back
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and old:
                Path(entry.path).unlink()
                removed.append(entry.path)
        except FileNotFoundError:
            continue
    return removed
