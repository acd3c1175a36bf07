# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks systemd for the state of units, and makes them run from the files on the disk."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from .._runtime import command
from . import staging, unit_steps, units
from .deployment import Deployment, Refused
from .file_times import written_at
from .host_state import Unit
from .unit_steps import Seen, Steps

LOG_LINES = 15  # of a unit that does not start


def ask(job: Deployment, names: Sequence[str]) -> dict[str, Seen]:
    """Return the state of units by name. Raises Refused if systemctl fails, NoAnswer if it prints something else."""
    rc, out, err = job.run(units.show_command(names, unit_steps.PROPERTIES))
    if rc:
        raise Refused(f"systemd cannot be asked about {', '.join(names)}: {(err or out).strip()}", job.part_of(names))
    return unit_steps.read_units(list(names), out, time.clock_gettime(time.CLOCK_MONOTONIC), time.time())


def systemctl(job: Deployment, verb: str, names: Sequence[str], wait: bool = True) -> None:
    """Run systemctl, which counts as a change. Raises Refused with the journal's last lines."""
    if not names:
        return
    job.changed = True
    if job.check:
        return
    seconds = command.WORK_SECONDS if wait else command.QUERY_SECONDS
    rc, out, err = job.run(["systemctl", verb, *([] if wait else ["--no-block"]), "--", *names], seconds)
    if rc:
        raise failure(job, verb, names, (err or out).strip())


def failure(job: Deployment, verb: str, names: Sequence[str], output: str) -> Refused:
    """Return the error of a failed systemctl, with the last lines of the journal of its failed units."""
    seen = ask(job, names)
    failed = [name for name in names if seen[name].active == "failed"] or list(names)
    log = []
    for name in failed:
        _rc, journal, _err = job.run(units.journal_command(name, LOG_LINES))
        log += [f"{name}: {line}" for line in journal.splitlines()]
    text = f"systemctl {verb} {' '.join(names)} failed: {output}\n" + "\n".join(log)
    return Refused(text, job.part_of(failed), log)


def bring(job: Deployment, written: Sequence[str]) -> Steps:
    """Enable, start and restart units as far as needed; returns the steps. written: files that this run has written, or would write."""
    units_in_order = job.state.units
    names = [unit.name for unit in units_in_order]
    seen = ask(job, names) if names else {}
    if job.reload or any(unit.needs_reload for unit in seen.values()):
        _reload_systemd(job, names)
    rows = [replace(unit, outdated=unit.outdated or is_other(job, unit)) for unit in units_in_order]
    todo = unit_steps.steps(rows, seen, _changed(units_in_order, written))
    _take(job, todo, {unit.name for unit in units_in_order if unit.wait})
    touched = {*todo.start, *todo.restart, *todo.reload}
    for unit in units_in_order:
        if unit.prints and unit.name in touched:
            keep_output(job, unit)
    return todo


def _reload_systemd(job: Deployment, names: Sequence[str]) -> None:
    """Have systemd read its files again. names: units of the document, for the message of a failure."""
    rc, out, err = (0, "", "") if job.check else job.run(["systemctl", "daemon-reload"])
    if rc:
        raise Refused(f"systemctl daemon-reload failed: {(err or out).strip()}", job.part_of(names))


def _changed(rows: Sequence[Unit], written: Sequence[str]) -> dict[str, float]:
    """Return when the files that units watch were written. written: in check mode, these were not written yet."""
    watched = {path for unit in rows for path in (*(unit.restart_on or ()), *unit.reload_on)}
    clocks = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
    changed = {path: written_at(path, *clocks) for path in watched if Path(path).exists()}
    return {**changed, **dict.fromkeys(written, time.time())}


def _take(job: Deployment, todo: Steps, waiting: Collection[str]) -> None:
    """Carry out the steps. waiting: units whose jobs are waited for."""
    systemctl(job, "stop", todo.stop[::-1])
    systemctl(job, "disable", todo.disable)
    systemctl(job, "enable", todo.enable)
    if todo.forget and not job.check:
        job.run(["systemctl", "reset-failed", *todo.forget])
    for verb, names in (("start", todo.start), ("restart", todo.restart)):
        systemctl(job, verb, [name for name in names if name not in waiting], wait=False)
        systemctl(job, verb, [name for name in names if name in waiting])
    systemctl(job, "reload", todo.reload)


def is_other(job: Deployment, unit: Unit) -> bool:
    """Tell whether the command of a unit prints something else than after its last start."""
    if not unit.prints or not unit.printed:
        return False
    rc, out, _err = job.run(list(unit.prints))
    path = Path(unit.printed)
    return rc != 0 or not path.is_file() or path.read_text(encoding="utf-8") != out


def keep_output(job: Deployment, unit: Unit) -> None:
    """Keep what the command of a unit prints now. Raises Refused if it fails."""
    if job.check or not unit.printed:
        return
    rc, out, err = job.run(list(unit.prints))
    if rc:
        raise Refused(
            f"{' '.join(unit.prints)} failed after the start of {unit.name}: {(err or out).strip()}", unit.part
        )
    path = Path(unit.printed)
    staging.beside(path, out.encode(), 0o644).replace(path)
