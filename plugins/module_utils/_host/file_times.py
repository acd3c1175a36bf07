# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the files of a host were put in place, by a clock that nobody sets."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

WRITTEN = "user.dgxspark.written"
"""Extended attribute of a file: boot, clock and date of when it was put in place."""


def stamp_written(path: str | Path) -> None:
    """Record on a file, before it is put in place, when it was written, by a clock that nobody sets."""
    with contextlib.suppress(OSError):  # a file system without extended attributes; its date is used instead
        note = f"{_boot()} {time.clock_gettime(time.CLOCK_MONOTONIC)} {Path(path).stat().st_mtime_ns}"
        os.setxattr(path, WRITTEN, note.encode())


def mark(path: Path) -> None:
    """Make an empty file, and its folder, or date it anew: something happened now."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.touch()
    stamp_written(path)


def written_at(path: str | Path, monotonic_now: float, now: float) -> float:
    """Return when a file was written, by the present wall clock; the clock may have been wrong when the file got its date.

    :param monotonic_now: CLOCK_MONOTONIC in seconds
    :param now: the wall clock at the same moment, in seconds since 1970
    :returns: seconds since 1970; 0 for before this boot, and for a date in the future without a note
    :raises OSError: for an unreadable file
    """
    status = Path(path).stat()
    try:
        boot, moment, mtime = os.getxattr(path, WRITTEN).decode("ascii").split()
        if int(mtime) == status.st_mtime_ns:
            return now - (monotonic_now - float(moment)) if boot == _boot() else 0.0
    except (OSError, ValueError):
        pass
    return status.st_mtime if status.st_mtime <= now else 0.0


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
