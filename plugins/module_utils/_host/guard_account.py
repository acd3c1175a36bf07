# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings, state and last step of the memory guard, and the holder of the memory: from its two files on a host, and as lines for people.

C(_runtime/guard.py) has its decisions, C(_addons/guard.py) its settings for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

UNIT = "spark-agent.service"
SETTINGS = "agent/guard.json"
"""Below C(/etc/dgxspark)."""
STATE = "/var/lib/dgxspark/guard/state.json"
FLOORS = ("floor_gib", "start_floor_gib", "free_floor_gib", "contiguous_floor_gib", "last_gib")
MOST = 300
"""Characters of one text."""
LATEST = 4102444800.0
"""The year 2100; later times are impossible."""
LEVELS = ("calm", "short", "critical")
"""Of C(_runtime/guard.py), whose 22 KiB hosts need not compile for a report."""
SHORTAGES = LEVELS[1:]
DONE = {
    "drop": "gave the page cache back",
    "unload": "asked {} to unload its models",
    "idle": "stopped {}, which is on demand and idle",
    "refuse": "let the gateway give {} no new requests",
    "restart": "restarted {}",
    "stop": "stopped {}",
    "admit": "let the gateway give {} requests again",
    "name": "said who took the memory",
}
"""The text for each step."""


def account(settings: Mapping[str, Any] | None, state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return settings and state of the guard of this host; None for a host without it.

    settings, state: the content of its two files, None for a missing file. Returns floors in GiB, C(act), and of the state C(level),
    C(available_gib), C(lowest_gib), C(at), C(last), C(stopped), C(refused) and C(who); unknown values are None.
    """
    if settings is None:
        return None
    state = state or {}
    last, stopped, refused = (state.get(key) for key in ("last", "stopped", "refused"))
    return {
        "act": settings.get("act") is not False,
        **{key: _number(settings.get(key)) for key in FLOORS},
        "level": state["level"] if state.get("level") in LEVELS else None,
        **{key: _number(state.get(key)) for key in ("available_gib", "lowest_gib", "at")},
        "last": {"at": _number(last.get("at")), **{key: _text(last.get(key)) for key in ("what", "whom", "why")}}
        if isinstance(last, Mapping) and last.get("what") in DONE
        else None,
        "stopped": {
            str(name): _text(note.get("why")) for name, note in sorted(stopped.items()) if isinstance(note, Mapping)
        }
        if isinstance(stopped, Mapping)
        else {},
        "refused": sorted(str(name) for name in refused) if isinstance(refused, list) else [],
        "who": _text(state.get("who")),
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return " ".join(str(value or "").split())[:MOST]


def runs(units: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the state of the guard's unit, None if systemd does not list it or did not answer."""
    states = [str(unit.get("active_state") or "") for unit in units if unit.get("name") == UNIT]
    return next(iter(states), "") or None


def notes(guard_state: Mapping[str, Any], unit: str | None) -> list[str]:
    """Return the problems of a guard, a line each; no line for a running guard and calm memory. guard_state: of C(account); unit: of C(runs)."""
    lines = []
    if unit is not None and unit != "active":
        lines.append(f"the memory guard does not run: {UNIT} is {unit}")
    elif unit and guard_state["level"] in SHORTAGES:
        who = f"; {guard_state['who']}" if guard_state["who"] else ""
        lines.append(f"guard: memory is {guard_state['level']}, {_gib(guard_state['available_gib'])} available{who}")
    lines += [
        f"the guard stopped {name}: {why or 'it does not say why'}" for name, why in guard_state["stopped"].items()
    ]
    if guard_state["refused"]:
        lines.append(f"the guard lets the gateway give {', '.join(guard_state['refused'])} no new requests")
    return lines


def line(guard_state: Mapping[str, Any], unit: str | None) -> str:
    """Return one line about a guard: whether it runs, its floors, its last step, and the holder of the memory; see C(notes)."""
    runs_now = "not known whether it runs" if unit is None else "runs" if unit == "active" else unit
    acts = "" if guard_state["act"] else ", only reports its actions"
    memory = ""
    if unit == "active" and guard_state["level"]:
        memory = f"; memory {guard_state['level']}, {_gib(guard_state['available_gib'])} available"
        memory += "" if guard_state["lowest_gib"] is None else f", lowest {_gib(guard_state['lowest_gib'])}"
    floors = f"acts below {_gib(guard_state['floor_gib'])}, {_gib(guard_state['start_floor_gib'])} at a start"
    who = f"; memory is used by {guard_state['who']}" if guard_state["who"] else ""
    return f"memory guard {runs_now}{acts}, {floors}{memory}; {did(guard_state['last'])}{who}"


def did(last: Mapping[str, Any] | None) -> str:
    """Return the last step of a guard as a text. last: of C(account)."""
    if not last:
        return "nothing to do so far"
    return f"last, {moment(last['at'])}: {DONE[last['what']].format(last['whom'])} ({last['why']})"


def moment(at: float | None) -> str:
    """Return a time for people. at: seconds since 1970, None if unknown."""
    if at is None or not 0 <= at < LATEST:
        return "at a time that is not known"
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _gib(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1f} GiB"
