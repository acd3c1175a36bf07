# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks systemd for units of services: the command lines of systemctl and journalctl, their parsers, and the question itself."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .._runtime import command

UNIT_GLOB = "spark-*.service"

PROPERTIES = (
    "Id",
    "Type",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "UnitFileState",
    "ActiveEnterTimestamp",
    "ActiveEnterTimestampMonotonic",
    "MainPID",
    "Job",
    "StatusText",
    "InvocationID",
    "InactiveExitTimestampMonotonic",
    "FragmentPath",
)

UP = ("active", "reloading")
RUNNING = ("active", "reloading", "activating", "refreshing")
MOST_START_LINES = 10_000
"""Lines of the journal that are read of a start; a start of vLLM prints some hundreds."""

_PATTERN = re.compile(r"[*?\[]")


def show_command(names: Sequence[str], properties: Iterable[str] = PROPERTIES) -> list[str]:
    """Return the one call that describes units; names and patterns may be mixed.

    Run it with TZ=UTC and LC_ALL=C: systemctl formats times itself. A pattern matches loaded units only, so unit files
    that lie on the disk have to be named.
    """
    return ["systemctl", "show", "--no-pager", f"--property={','.join(properties)}", "--", *names]


def read_properties(text: str) -> list[dict[str, str]]:
    """Return the properties of each unit that C(systemctl show) printed, in its order."""
    blocks = text.strip().split("\n\n") if text.strip() else []
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def journal_command(unit: str, lines: int, output: str = "cat", invocation: str = "") -> list[str]:
    """Return the call that prints the last lines of a unit, or of one start of it (InvocationID). output: format of journalctl."""
    match = f"_SYSTEMD_INVOCATION_ID={invocation}" if invocation else f"--unit={unit}"
    return ["journalctl", "--no-pager", "--quiet", f"--output={output}", f"--lines={lines}", match]


def start_log_command(invocation: str, cursor: str = "") -> list[str]:
    """Return the call that prints what one start of a unit wrote, behind a cursor, for C(start_stages.read_journal)."""
    range_option = f"--after-cursor={cursor}" if cursor else f"--lines={MOST_START_LINES}"
    fixed = ["journalctl", "--no-pager", "--quiet", "--output=json", "--output-fields=MESSAGE", "--all"]
    return [*fixed, range_option, f"_SYSTEMD_INVOCATION_ID={invocation}"]


def last_words(run: command.Run, unit: str) -> str:
    """Return the last messages of a unit in one line, empty for an empty journal. Raises C(NoAnswer) without an answer of journalctl."""
    _rc, log, _err = run(journal_command(unit, 3))
    return " ".join(log.split())


def ask(run: command.Run, names: list[str]) -> list[dict[str, Any]]:
    """Ask systemd for units and return C(parse_show) of its answer; [] on a host without systemd, and for no names.

    names: also patterns; an unknown unit comes back with C(load_state=not-found). Raises C(NoAnswer) if systemctl fails, prints something
    else, or leaves out a named unit.
    """
    rc, out, err = run(show_command(names)) if names else (127, "", "")
    command.answered("systemctl", rc, err)
    if rc != 0:
        return []
    shown = parse_show(out, time.clock_gettime(time.CLOCK_MONOTONIC))
    if not shown and not all(_PATTERN.search(name) for name in names):
        raise command.unreadable("systemctl", out)
    return shown


def parse_show(text: str, monotonic_now: float | None = None) -> list[dict[str, Any]]:
    """Parse the output of C(show_command).

    Returns C([{name, type, load_state, active_state, sub_state, result, n_restarts, enabled, active_since, active_seconds,
    main_pid, queued, status_text, invocation_id, start_monotonic, path}]) by name, each unit once. enabled: None without a unit file.
    path: of the unit file.
    active_since: UTC time in ISO form or None. active_seconds: time since then by the monotonic clock, which nobody
    sets, None without C(monotonic_now). queued: a job waits for its turn, as a start does behind C(After=).
    status_text: the text that C(Type=notify) units report. invocation_id, start_monotonic (seconds of the
    monotonic clock, None before the first start): of the present or the last start. Missing units come back
    with C(load_state=not-found). Raises NoAnswer for any other text.
    monotonic_now: CLOCK_MONOTONIC of the host in seconds, read after systemctl was asked.
    """
    described: dict[str, dict[str, Any]] = {}
    for values in read_properties(text):
        name, state = values.get("Id"), values.get("UnitFileState", "")
        if not name:
            raise command.unreadable("systemctl", text)
        if name in described:  # by its name and by a pattern
            continue
        active_since = None
        with contextlib.suppress(ValueError):
            moment = datetime.strptime(values.get("ActiveEnterTimestamp", "").strip(), "%a %Y-%m-%d %H:%M:%S UTC")
            active_since = moment.replace(tzinfo=timezone.utc).isoformat()
        entered = seconds_of(values, "ActiveEnterTimestampMonotonic")
        age = None if monotonic_now is None or entered is None else max(round(monotonic_now - entered), 0)
        described[name] = {
            "name": name,
            "type": values.get("Type", ""),
            "load_state": values.get("LoadState", ""),
            "active_state": values.get("ActiveState", ""),
            "sub_state": values.get("SubState", ""),
            "result": values.get("Result", ""),
            "n_restarts": _count(values, "NRestarts") or 0,
            "enabled": state.startswith("enabled") if state else None,
            "active_since": active_since,
            "active_seconds": age,
            "main_pid": _count(values, "MainPID"),
            "queued": values.get("Job", "0") not in ("", "0"),
            "status_text": values.get("StatusText", ""),
            "invocation_id": values.get("InvocationID", ""),
            "start_monotonic": seconds_of(values, "InactiveExitTimestampMonotonic"),
            "path": values.get("FragmentPath", ""),
        }
    return [described[name] for name in sorted(described)]


def _count(values: Mapping[str, str], name: str) -> int | None:
    """Return a number that a unit shows, None for 0 and for anything else."""
    text = values.get(name, "")
    return int(text) or None if text.isdigit() else None


def seconds_of(values: Mapping[str, str], name: str) -> float | None:
    """Return a time that a unit shows, in seconds of the monotonic clock; None if it never came."""
    microseconds = _count(values, name)
    return None if microseconds is None else microseconds / 1e6


def process_start(pid: str) -> str | None:
    """Return the start time of a live process, which distinguishes it from a later one of the same number; None for an ended one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def comes_back(unit: dict[str, Any]) -> bool:
    """Whether a unit restarts by design, so that restarts are no sign of a loop.

    The main process of a C(Type=notify) unit of a service is the supervisor of a rank. It exits whenever another rank is
    lost, is restarted, waits for all ranks, and limits the starts of the engine itself: when it gives up, the unit has failed.
    """
    return bool(unit["type"] == "notify")


def why_dead(unit: dict[str, Any] | None, name: str, restarts_before: int) -> str | None:
    """Return why waiting for the endpoint of a unit is pointless, None while it may still come.

    One restart can be bad luck; after the second one the engine is in a loop that no waiting ends, unless the unit restarts by design.
    """
    if unit is None:
        return None
    if unit["load_state"] == "not-found":
        return f"the unit {name} does not exist"
    if unit["active_state"] == "failed":
        return f"the unit {name} has failed (result: {unit['result']}, restarts: {unit['n_restarts']})"
    if unit["active_state"] == "inactive" and not unit["queued"]:
        return f"the unit {name} is not running (inactive)"
    grown = unit["n_restarts"] - restarts_before
    if grown >= 2 and not comes_back(unit):
        return f"the unit {name} restarts again and again ({grown} times during this wait)"
    return None


def wait_active(
    show: Callable[[], dict[str, Any] | None],
    name: str,
    *,
    timeout: float,
    interval: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    waited: float = 0.0,
    grace: float = 0.0,
) -> dict[str, Any]:
    """Wait until a unit is active: for engines that answer no requests themselves.

    :param show: returns the present state of the unit, a row of C(parse_show), or None without an answer of systemd
    :param waited: seconds of earlier waits, which count
    :param grace: seconds for which it may be inactive, because another program is about to start it
    :returns: C({ready, stage: unit, elapsed_seconds, error, fix}) as C(endpoint.wait_ready) returns them
    """
    start = clock() - waited
    unit = show()
    before = unit["n_restarts"] if unit else 0
    while True:
        error = why_dead(unit, name, before)
        fix = "see the log of the unit for why it ended"
        if error and unit is not None and unit["active_state"] == "inactive" and clock() - start < grace:
            error = None
        # A requested restart is a job first: an active unit with a job is still in its earlier run.
        if unit is not None and unit["active_state"] in UP and not unit["queued"]:
            error = fix = ""
        elif error is None and timeout - (clock() - start) <= interval:
            error = (
                f"the unit {name} is {unit['active_state']} ({unit['sub_state']}) and did not get active within {timeout:.0f} s"
                if unit
                else f"whether the unit {name} is active is not known after {timeout:.0f} s"
            )
            fix = f"wait longer, or see what it waits for: systemctl status {name}"
        if error is not None:
            elapsed = round(clock() - start, 2)
            return {"ready": not error, "stage": "unit", "elapsed_seconds": elapsed, "error": error, "fix": fix}
        sleep(interval)
        unit = show()
