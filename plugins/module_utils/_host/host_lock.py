# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time changes a host, and no state is recorded that two runs made together.

The lock is one of the kernel on a file, held while a module is at work; it is free again when its holder dies, however that was.
Beside it is noted which controllers have looked at the host and changed it since when, in the order of a counter: clocks of hosts are
set back at times.
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
"""How long a module waits for another one; the longest that holds the lock waits for a unit to be active."""
POLL_SECONDS = 0.1
KEPT_RUNS = 16

_held: list[Path] = []
"""The lock that this process holds, so that what a module calls may ask for it again."""


FILES = ("host.lock", "runs.json")
"""What a run leaves below C(run_dir) by looking alone."""


def run_dir() -> Path:
    """Return the folder of what lasts until the next boot. The variable is for tests; sudo does not let it through."""
    return Path(os.environ.get("DGXSPARK_RUN_DIR") or "/run/dgxspark")


def lock_file() -> Path:
    """Return the file that the lock is on."""
    return run_dir() / "host.lock"


class Busy(Exception):
    """Another one holds the lock; the text says who, and what to do."""


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file still has its name: reset.yml removes the folder, with the lock held."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _take(path: Path, seconds: float) -> int:
    """Return the locked file. Raises C(Busy) after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            if time.monotonic() >= until:
                raise Busy(
                    f"{holder_text(said)} changes this host, and {seconds:.0f} s of waiting for it to end have passed; nothing was changed. "
                    "Run again when that run has ended"
                ) from None
            time.sleep(POLL_SECONDS)
            continue
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def holder_text(said: bytes) -> str:
    """Say who holds the lock, by what the holder wrote into its file."""
    try:
        found = parse_json(said, "the lock file")
        return (
            f"the module {found['module']} of {found['controller'] or 'another run'} (process {found['pid']} on the host, since "
            f"{found['since']})"
        )
    except (ValueError, KeyError, TypeError):
        return "another run"


@contextlib.contextmanager
def held(module: Any) -> Iterator[bool]:
    """Hold the lock of the host while a module changes it; fails the module when another one does not let go of it.

    module: the AnsibleModule; nothing is taken in check mode. Yields whether the lock is held: who is not root may not take it, and
    cannot change what is root's either.
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
        # The kernel lets go of the lock with the file; children of the module do not have it.
        os.close(descriptor)


# --- which runs were here ---------------------------------------------------------------------------------------------


def _read() -> dict[str, Any]:
    try:
        found = state_file.read(run_dir() / "runs.json") or {}
        return {"next": int(found["next"]), "runs": dict(found["runs"])}
    except (ValueError, KeyError, TypeError):
        return {"next": 1, "runs": {}}


def _write(found: dict[str, Any]) -> None:
    path = run_dir() / "runs.json"
    newest = sorted(found["runs"], key=lambda name: -max(found["runs"][name].values()))[:KEPT_RUNS]
    found["runs"] = {name: found["runs"][name] for name in sorted(newest)}
    state_file.write(path, found, 0o600)


@contextlib.contextmanager
def noted(controller: str, locked: bool) -> Iterator[dict[str, bool]]:
    """Note that a run of a controller looks at the host, and that it changed it.

    controller: who, empty for none to note. locked: as C(held) said. Yields C({changed}), which the caller makes true when it changes
    something. A module that is killed counts as one that did.
    """
    said = {"changed": False}
    if not controller or not locked:
        yield said
        return
    found = _read()
    number, before = found["next"], dict(found["runs"].get(controller) or {"began": found["next"], "changed": 0})
    found["runs"][controller] = {"began": before["began"], "changed": number}
    found["next"] = number + 1
    _write(found)
    try:
        yield said
    finally:
        if not said["changed"]:
            found["runs"][controller] = before
            with contextlib.suppress(OSError):  # the folder may be gone by now
                _write(found)


def between(controller: str) -> list[str]:
    """Return the other controllers whose runs changed the host since this one's run looked at it first."""
    runs = _read()["runs"]
    began = (runs.get(controller) or {}).get("began")
    if not controller or began is None:
        return []
    return sorted(name for name, seen in runs.items() if name != controller and seen["changed"] > began)
