# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time changes a host, and no state is recorded that two runs made together.

The lock is a kernel lock on a file, held while a module works; it is free again when its holder dies.
A record next to it lists the controllers that looked at the host and that changed it, in the order of a counter: clocks of hosts may be
set back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._runtime import state_file

DEADLINE_SECONDS = 120.0
"""Wait of a module for another one; the longest holder of the lock waits for a unit to become active."""
POLL_SECONDS = 0.1
KEPT_RUNS = 16

_held: list[Path] = []
"""The lock that this process holds, so that a nested call may take it again."""


FILES = ("host.lock", "runs.json")
"""Files below C(run_dir) of a run that changed nothing."""


def run_dir() -> Path:
    """Return the folder of files until the next boot. The variable is for tests; sudo does not let it through."""
    return Path(os.environ.get("DGXSPARK_RUN_DIR") or "/run/dgxspark")


def lock_file() -> Path:
    """Return the locked file."""
    return run_dir() / "host.lock"


class Busy(Exception):
    """Another run holds the lock; the text names it, with the fix."""


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file still has its name: reset.yml removes the folder, with the lock held."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _take(path: Path, seconds: float) -> int:
    """Return the locked file. Raises C(Busy) after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            if time.monotonic() >= until:
                raise Busy(
                    f"{holder_text(note)} changes this host, and {seconds:.0f} s of waiting for it to end have passed; nothing was changed. "
                    "Run again when that run has ended"
                ) from None
            time.sleep(POLL_SECONDS)
            continue
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def holder_text(note: bytes) -> str:
    """Return the holder of the lock for messages. note: the content of the locked file."""
    try:
        holder = parse_json(note, "the lock file")
        return (
            f"the module {holder['module']} of {holder['controller'] or 'another run'} (process {holder['pid']} on the host, since "
            f"{holder['since']})"
        )
    except (ValueError, KeyError, TypeError):
        return "another run"


@contextlib.contextmanager
def held(module: Any) -> Iterator[bool]:
    """Hold the lock of the host while a module changes it; fails the module if another one keeps it.

    module: the AnsibleModule; in check mode the lock is not taken. Yields whether the lock is held: only root may take it, and only root can
    change root's files.
    """
    path = lock_file()
    if module.check_mode or path in _held:
        yield path in _held
        return
    try:
        descriptor = _take(path, DEADLINE_SECONDS)
    except PermissionError:
        yield False
        return
    except Busy as error:
        module.fail_json(msg=f"{error}.")
        raise
    try:
        holder = {
            "module": str(getattr(module, "_name", "")).rpartition(".")[2],
            "controller": str(module.params.get("controller") or ""),
            "pid": os.getpid(),
            "since": time.strftime("%H:%M:%S UTC", time.gmtime()),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        _held.append(path)
        yield True
    finally:
        if path in _held:
            _held.remove(path)
        # The kernel releases the lock with the file; children of the module do not inherit it.
        os.close(descriptor)


# --- runs of other controllers ----------------------------------------------------------------------------------------


def _read() -> dict[str, Any]:
    try:
        record = state_file.read(run_dir() / "runs.json") or {}
        return {"next": int(record["next"]), "runs": dict(record["runs"])}
    except (ValueError, KeyError, TypeError):
        return {"next": 1, "runs": {}}


def _write(record: dict[str, Any]) -> None:
    runs = record["runs"]
    newest = sorted(runs, key=lambda name: -max(runs[name].values()))[:KEPT_RUNS]
    record["runs"] = {name: runs[name] for name in sorted(newest)}
    state_file.write(run_dir() / "runs.json", record, 0o600)


@contextlib.contextmanager
def noted(controller: str, locked: bool) -> Iterator[dict[str, bool]]:
    """Record that a run of a controller looks at the host, and whether it changed the host.

    controller: name of the run, empty to record nothing. locked: of C(held). Yields C({changed}), which the caller sets to true for a
    change. A killed module counts as a change.
    """
    result = {"changed": False}
    if not controller or not locked:
        yield result
        return
    record = _read()
    number, before = record["next"], dict(record["runs"].get(controller) or {"began": record["next"], "changed": 0})
    record["runs"][controller] = {"began": before["began"], "changed": number}
    record["next"] = number + 1
    _write(record)
    try:
        yield result
    finally:
        if not result["changed"]:
            record["runs"][controller] = before
            with contextlib.suppress(OSError):  # the folder may be gone by now
                _write(record)


def between(controller: str) -> list[str]:
    """Return the other controllers whose runs changed the host since the run of this one looked at it first."""
    runs = _read()["runs"]
    began = (runs.get(controller) or {}).get("began")
    if not controller or began is None:
        return []
    return sorted(name for name, run in runs.items() if name != controller and run["changed"] > began)
