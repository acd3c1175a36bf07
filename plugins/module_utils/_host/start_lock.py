# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start lock of a host: its owner is the one engine that may load, and while that one loads no other is stopped.

vLLM compares the free memory of the whole host before and after its profiling, and ends with C(MEMORY_RELEASED) if it has grown, as it does
when another engine stops (C(determine_available_memory) in vllm/v1/worker/gpu_worker.py).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from .._runtime import command, state_file
from . import units

OWNER = "start.json"
"""Below C(/run/dgxspark): C({unit, invocation, loads}), the last one once the engine has passed its gate."""
MEMORY_RELEASED = "Error in memory profiling"
SYSTEMD_SECONDS = 30.0


def acquire(run_dir: Path) -> IO[str]:
    """Have the owner file for oneself until the returned file is closed, never during a wait; reading its folder suffices. Raises OSError."""
    run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    stream = os.fdopen(os.open(run_dir / "start.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    try:
        fcntl.flock(stream, fcntl.LOCK_EX)
    except BaseException:
        stream.close()
        raise
    return stream


def read_owner(run_dir: Path) -> dict[str, Any] | None:
    """Return the owner of the lock, None without one."""
    owner = state_file.read(run_dir / OWNER)
    return owner if owner and owner.get("unit") else None


def unit_states(names: Iterable[str]) -> list[dict[str, str]] | None:
    """Return Id, ActiveState, SubState, InvocationID and MainPID of units; None when systemd does not answer."""
    properties = ("Id", "ActiveState", "SubState", "InvocationID", "MainPID")
    answer = command.run(units.show_command(list(names), properties), SYSTEMD_SECONDS)
    return units.read_properties(answer.out) if answer.state == command.FINISHED and answer.rc == 0 else None


def is_starting(owner: Mapping[str, Any]) -> bool:
    """Tell whether the owner is the start that took the lock and not a past one; an unknown state counts as starting."""
    states = unit_states([owner["unit"]])
    if states is None:
        return True  # waits for it have a time limit
    state = next(iter(states), {})
    if state.get("ActiveState") != "activating" or state.get("SubState", "").startswith("auto-restart"):
        return False
    now, then = state.get("InvocationID", ""), owner.get("invocation", "")
    return not now or not then or now == then


def loading(run_dir: Path) -> str:
    """Return the unit of the engine that loads: it has its memory and has not answered yet. Empty for none."""
    owner = read_owner(run_dir)
    return str(owner["unit"]) if owner and owner.get("loads") and is_starting(owner) else ""


def being_stopped(names: Iterable[str]) -> list[str] | None:
    """Return which units are being stopped, None when systemd does not answer."""
    asked = sorted(names)
    states = unit_states(asked) if asked else []
    if states is None:
        return None
    return [state.get("Id", "") for state in states if state.get("ActiveState") == "deactivating"]
