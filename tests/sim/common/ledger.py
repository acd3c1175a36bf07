# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The books of one simulated unified memory pool, shared by every engine of a node and by the node itself.

A process that occupies memory holds one file of the ledger under an exclusive flock for as long as it lives; the kernel
lets go of the lock however the process ends, SIGKILL included, so the memory is free again at that moment. A file that
nobody holds means nothing and is swept away by the next reader. Sizes are bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

GIB = 1 << 30
ROOT = Path(os.environ.get("SPARK_SIM_ROOT", "/run/spark-sim"))
FOLDER = ROOT / "ledger"
TOTAL = int(119.67 * GIB) // 1024 * 1024
OS_RESERVE = int(5.2 * GIB)


def pool_settings() -> dict[str, int]:
    """Total and OS reserve of the pool, as the node wrote them."""
    try:
        settings = json.loads((ROOT / "pool.json").read_text())
    except (OSError, ValueError):
        settings = {}
    return {"total": int(settings.get("total", TOTAL)), "os_reserve": int(settings.get("os_reserve", OS_RESERVE))}


def locked(stream: IO[str]) -> bool:
    """True while another open file holds the lock."""
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(stream, fcntl.LOCK_UN)
    return False


@contextmanager
def books() -> Iterator[None]:
    """Hold the lock of the whole pool: looking and taking are one step."""
    path = FOLDER / ".lock"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.touch()
    with path.open() as stream:  # for reading: needs no rights, and wakes nobody who watches for writes
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def records() -> list[dict[str, Any]]:
    """What live holders occupy. Call it inside books()."""
    entries = []
    for path in sorted(FOLDER.glob("*.json")):
        try:
            with path.open() as stream:
                if not locked(stream):
                    path.unlink(missing_ok=True)
                    continue
                record = json.load(stream)
                record["inode"] = os.fstat(stream.fileno()).st_ino
                entries.append(record)
        except (OSError, ValueError):
            continue
    return entries


def occupied(entries: list[dict[str, Any]]) -> int:
    return sum(int(entry.get("gpu_bytes", 0)) + int(entry.get("host_bytes", 0)) for entry in entries)


def available(entries: list[dict[str, Any]]) -> int:
    """MemAvailable of the pool."""
    settings = pool_settings()
    return max(0, settings["total"] - settings["os_reserve"] - occupied(entries))


class Slot:
    """One holder's entry. Open it in the process whose life it is tied to."""

    def __init__(self, name: str, process_name: str) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path = FOLDER / f"{uuid.uuid4().hex[:12]}.json"
        self.entry: dict[str, Any] = {"id": self.path.stem, "name": name, "process_name": process_name}
        self.stream = self.path.open("w+")
        fcntl.flock(self.stream, fcntl.LOCK_EX)
        self.write()

    def write(self, **changes: Any) -> None:
        """Change the entry in place (the lock belongs to this very file)."""
        self.entry.update(changes)
        text = json.dumps(self.entry)
        self.stream.seek(0)
        self.stream.write(text)
        self.stream.truncate()
        self.stream.flush()

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        self.stream.close()


def node_pids(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Map the id of an entry to the PID of its holder, as seen from here: the kernel lists flocks with their PIDs."""
    by_inode = {entry["inode"]: entry["id"] for entry in entries}
    pids = {}
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and int(fields[4]) > 0:
            inode = int(fields[5].rpartition(":")[2])
            if inode in by_inode:
                pids[by_inode[inode]] = int(fields[4])
    return pids
