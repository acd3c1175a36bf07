# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which units have to be started, restarted, stopped, enabled or disabled so that they run from the files on the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._runtime import command
from .._runtime.command import Run
from .host_state import Unit
from .units import RUNNING, read_properties

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "NeedDaemonReload",
    "InactiveExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
    "StateChangeTimestampMonotonic",
    "ReloadResult",
)
# Units of these states start at boot; "static" and "indirect" ones cannot be enabled, something else pulls them in.
ENABLED = ("enabled", "enabled-runtime", "static", "indirect", "alias", "generated")


@dataclass
class Seen:
    """A unit as systemd shows it.

    began: start of its run, seconds of the wall clock, or None. reloaded: the last successful reload of this run.
    """

    name: str
    known: bool = False
    active: str = "inactive"
    enabled: bool = False
    needs_reload: bool = False
    began: float | None = None
    reloaded: float | None = None


@dataclass
class Steps:
    """Steps, each a list of unit names in the order of the rows."""

    enable: list[str] = field(default_factory=list)
    disable: list[str] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    start: list[str] = field(default_factory=list)
    restart: list[str] = field(default_factory=list)
    reload: list[str] = field(default_factory=list)
    due: list[str] = field(default_factory=list)  # would be restarted, but the caller wants to do something first
    starting: list[str] = field(default_factory=list)  # since before, from these files; left alone
    forget: list[str] = field(default_factory=list)  # systemd counts earlier starts of these against the next one

    def any(self) -> bool:
        """Tell whether a unit changes; a restart that is due is no change yet."""
        return bool(self.enable or self.disable or self.stop or self.start or self.restart or self.reload)


def remembering(run: Run) -> Run:
    """Return a runner that asks systemd for the state of the same units only once. run: runs a program."""
    answers: dict[tuple[str, ...], tuple[int, str, str]] = {}

    def ask(argv: list[str], *options: Any) -> tuple[int, str, str]:
        if argv[:2] != ["systemctl", "show"]:
            return run(argv, *options)
        command = tuple(argv)
        if command not in answers:
            answers[command] = run(argv, *options)
        return answers[command]

    return ask


def read_units(names: list[str], text: str, monotonic_now: float, now: float) -> dict[str, Seen]:
    """Read C(PROPERTIES) of units.

    :param monotonic_now: CLOCK_MONOTONIC in seconds; the run of a unit is dated by it, which a wall clock that
        was set at boot does not disturb
    :param now: the wall clock at the same moment, in seconds since 1970
    :raises NoAnswer: for any other text; missing units are described, too
    """

    def date(microseconds: int) -> float | None:
        return now - (monotonic_now - microseconds / 1e6) if microseconds else None

    states = {}
    shown = read_properties(text)
    if len(shown) != len(names) or any("LoadState" not in values for values in shown):
        raise command.unreadable("systemctl", text)
    for name, values in zip(names, shown):
        times = [
            values.get(f"{event}TimestampMonotonic", "0") for event in ("InactiveExit", "ActiveEnter", "StateChange")
        ]
        began, entered, state_change = (int(text) if text.isdigit() else 0 for text in times)
        # The state of an active unit changes for a reload alone.
        is_reloaded = state_change > entered > 0 and values.get("ReloadResult", "success") == "success"
        states[name] = Seen(
            name,
            known=values.get("LoadState") == "loaded",
            active=values.get("ActiveState", "inactive"),
            enabled=values.get("UnitFileState", "") in ENABLED,
            needs_reload=values.get("NeedDaemonReload") == "yes",
            began=date(began),
            reloaded=date(state_change) if is_reloaded else None,
        )
    return states


def outdated(seen: Seen, changed: Mapping[str, float], watched: Sequence[str]) -> bool:
    """Tell whether a unit runs from files older than those on the disk.

    So the next run completes a run that was cut off between writing files and restarting their unit.

    :param changed: path to when the file was last written, as C(file_times.written_at) says
    """
    if seen.active not in RUNNING:
        return False
    # systemd restarts a unit by itself from the definition that it holds.
    if seen.needs_reload:
        return True
    return _older(seen.began, changed, watched)


def _older(began: float | None, changed: Mapping[str, float], watched: Sequence[str]) -> bool:
    return began is not None and any(changed.get(path, 0.0) > began for path in watched)


def _last_read(seen: Seen) -> float | None:
    return seen.began if seen.began is None else max(seen.began, seen.reloaded or 0.0)


def steps(units: Sequence[Unit], seen: Mapping[str, Seen], changed: Mapping[str, float]) -> Steps:
    """Return the steps for units whose files stay. changed: see C(outdated); files that are about to be written count as written now."""
    todo = Steps()
    for unit in units:
        name, now = unit.name, seen[unit.name]
        if unit.reload:
            now = replace(now, began=_last_read(now))
        is_old = unit.outdated or outdated(now, changed, unit.restart_on or ())
        if unit.enabled is not None and unit.enabled != now.enabled:
            (todo.enable if unit.enabled else todo.disable).append(name)
        if unit.state == "started":
            # A running unit that has not read a file of reload_on since it changed.
            has_to_reload = now.active in RUNNING and _older(_last_read(now), changed, unit.reload_on)
            _start(todo, unit, now, is_old, has_to_reload)
        # A triggered unit may run or not, but it does not go on from older files.
        elif now.active in (*RUNNING, "deactivating") and (unit.state == "stopped" or is_old):
            todo.stop.append(name)
    return todo


def _start(todo: Steps, unit: Unit, now: Seen, is_old: bool, has_to_reload: bool) -> None:
    """Add the steps for a unit that has to run."""
    if now.active == "failed":
        todo.forget.append(unit.name)
    if now.active not in RUNNING:
        todo.start.append(unit.name)
    elif is_old:
        (todo.due if unit.defer else todo.reload if unit.reload else todo.restart).append(unit.name)
        # systemd refuses a start when earlier ones, or a rollout in small steps, have used up the bound.
        if not unit.defer and not unit.reload:
            todo.forget.append(unit.name)
    elif has_to_reload and now.active != "activating":
        todo.reload.append(unit.name)
    elif now.active == "activating":
        todo.starting.append(unit.name)
