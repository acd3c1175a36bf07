# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guard of a host is set to, what it did last, and who took the memory: of its two files on the host, and as lines for people.

What it decides is in C(_runtime/guard.py), what a person may set in C(_addons/guard.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from .._runtime import guard

UNIT = "spark-agent.service"
SETTINGS = "agent/guard.json"
"""Below C(/etc/dgxspark)."""
STATE = "/var/lib/dgxspark/guard/state.json"
FLOORS = ("floor_gib", "start_floor_gib", "free_floor_gib", "contiguous_floor_gib", "last_gib")
MOST = 300
"""Characters of one text."""
LATEST = 4102444800.0
"""The year 2100; a moment beyond it is none."""
DONE = {
    guard.DROP: "gave the page cache back",
    guard.UNLOAD: "asked {} to unload its models",
    guard.IDLE: "stopped {}, which is on demand and idle",
    guard.REFUSE: "let the gateway give {} no new requests",
    guard.RESTART: "restarted {}",
    guard.STOP: "stopped {}",
    guard.ADMIT: "let the gateway give {} requests again",
    guard.NAME: "said who took the memory",
}
"""Steps as what was done."""


def account(settings: Mapping[str, Any] | None, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what the guard of this host says of itself; None where none is deployed.

    :param settings: what its settings file holds, None where there is none
    :param state: what its state file holds, None where there is none
    :returns: floors in GiB, C(act), and of the state C(level), C(available_gib), C(lowest_gib), C(at), C(last), C(stopped), C(refused)
        and C(who); None for what is not known
    """
    if settings is None:
        return None
    given = state or {}
    last, stopped, refused = (given.get(key) for key in ("last", "stopped", "refused"))
    return {
        "act": settings.get("act") is not False,
        **{key: _number(settings.get(key)) for key in FLOORS},
        "level": given["level"] if given.get("level") in guard.LEVELS else None,
        **{key: _number(given.get(key)) for key in ("available_gib", "lowest_gib", "at")},
        "last": {"at": _number(last.get("at")), **{key: _text(last.get(key)) for key in ("what", "whom", "why")}}
        if isinstance(last, Mapping) and last.get("what") in guard.STEPS
        else None,
        "stopped": {
            str(name): _text(note.get("why")) for name, note in sorted(stopped.items()) if isinstance(note, Mapping)
        }
        if isinstance(stopped, Mapping)
        else {},
        "refused": sorted(str(name) for name in refused) if isinstance(refused, list) else [],
        "who": _text(given.get("who")),
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return " ".join(str(value or "").split())[:MOST]


def runs(units: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the state of the guard's unit, None where systemd does not list it or did not answer."""
    found = next((unit for unit in units if unit.get("name") == UNIT), None)
    return str(found.get("active_state") or "") or None if found else None


def notes(found: Mapping[str, Any], unit: str | None) -> list[str]:
    """Return what of a guard is worth a look, a line each; none where it runs and memory is calm.

    :param found: of C(account)
    :param unit: of C(runs)
    :returns: the lines
    """
    said = []
    if unit is not None and unit != "active":
        said.append(f"the guard of the memory does not run: {UNIT} is {unit}")
    elif unit and found["level"] in (guard.SHORT, guard.CRITICAL):
        who = f"; {found['who']}" if found["who"] else ""
        said.append(f"guard: memory is {found['level']}, {_gib(found['available_gib'])} available{who}")
    said += [f"the guard stopped {name}: {why or 'it does not say why'}" for name, why in found["stopped"].items()]
    if found["refused"]:
        said.append(f"the guard lets the gateway give {', '.join(found['refused'])} no new requests")
    return said


def line(found: Mapping[str, Any], unit: str | None) -> str:
    """Return one line about a guard: whether it runs, its floors, what it did last, and who took the memory.

    :param found: of C(account)
    :param unit: of C(runs)
    :returns: the line
    """
    runs_now = "not known whether it runs" if unit is None else "runs" if unit == "active" else unit
    acts = "" if found["act"] else ", only says what it would do"
    memory = ""
    if unit == "active" and found["level"]:
        memory = f"; memory {found['level']}, {_gib(found['available_gib'])} available"
        memory += "" if found["lowest_gib"] is None else f", lowest {_gib(found['lowest_gib'])}"
    floors = f"floors {_gib(found['floor_gib'])}, {_gib(found['start_floor_gib'])} at a start"
    who = f"; memory is held by {found['who']}" if found["who"] else ""
    return f"guard {runs_now}{acts}, {floors}{memory}; {did(found['last'])}{who}"


def did(last: Mapping[str, Any] | None) -> str:
    """Return what a guard did last, as a text; last: of C(account)."""
    if not last:
        return "it had nothing to do so far"
    return f"last, {moment(last['at'])}: {DONE[last['what']].format(last['whom'])} ({last['why']})"


def moment(at: float | None) -> str:
    """Return a moment as people read it; at: seconds since 1970, None where that is not known."""
    if at is None or not 0 <= at < LATEST:
        return "at a time that is not known"
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _gib(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1f} GiB"
