# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a fleet monitor, the changes in it, and the messages about them; no clock, no I/O.

A state is a plain dict, kept as JSON::

    {run, endpoints: {KEY: entry}, outbox: {NOTIFIER: [change]}, delivery: {NOTIFIER: {error, since}}, heartbeat}

A change goes into the outbox of every notifier and stays there until that notifier has taken it, so none is lost while a
network is gone. A run sends one message at most to each of them, with all that is in its outbox.

An endpoint that comes and goes is told about once, as unsteady, and again when it has become steady.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

DOWN, UP, UNSTEADY, STEADY, GONE, HEARTBEAT = "down", "up", "unsteady", "steady", "gone", "heartbeat"
HISTORY = 16
"""Checks that are remembered of an endpoint."""
FLAPS = 5
"""So many turns within the remembered checks make an endpoint unsteady."""
STEADY_CHECKS = 8
"""So many checks in a row with one result make it steady again."""
OUTBOX = 300
"""Changes that are kept for one notifier; beyond that the oldest are counted only."""
LIMIT = 3500
"""Characters of a message: what Telegram (4096) and ntfy (4096 bytes) take, with room for other alphabets."""
TEXT = 300
"""Characters of one error."""


@dataclass(frozen=True)
class Result:
    """What one check of one endpoint found. C(completion) is the model that was asked for a token, if one was."""

    key: str
    where: str
    ok: bool
    error: str = ""
    hint: str = ""
    completion: str | None = None


def fresh(content: Any) -> dict[str, Any]:
    """Return a complete state from the content of a file, or a new one."""
    state = dict(content) if isinstance(content, Mapping) else {}
    for key in ("endpoints", "outbox", "delivery"):
        value = state.get(key)
        state[key] = dict(value) if isinstance(value, Mapping) else {}
    state["run"] = state["run"] if isinstance(state.get("run"), int) else 0
    state["heartbeat"] = state["heartbeat"] if isinstance(state.get("heartbeat"), str) else ""
    return state


def wants_completion(state: Mapping[str, Any], key: str, models: Sequence[str], every: int) -> str | None:
    """Return the model of an endpoint whose token is checked in this run, or None.

    Every n-th run asks (n: C(every), 0 to ask only what failed), and the names of an endpoint take turns; an empty one is the first that
    the server lists. A failed one is asked in every run until it answers; else the checks between would hide that it cannot make tokens.
    """
    failed = (state["endpoints"].get(key) or {}).get("completion_failed")
    if isinstance(failed, str) and (failed in models or not models):
        return failed
    if every < 1 or state["run"] % every:
        return None
    return models[state["run"] // every % len(models)] if models else ""


def judge(
    state: dict[str, Any], results: Sequence[Result], now: float, failures: int, watched: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Take in the results of a run.

    :param state: of the monitor, which is changed
    :param now: seconds since 1970
    :param failures: checks in a row that have to fail before an endpoint is down
    :param watched: keys of all watched endpoints; others are removed from the state
    """
    changes = []
    entries = state["endpoints"]
    for result in results:
        change = _judge_one(entries.setdefault(result.key, {}), result, now, failures)
        if change:
            changes.append({"key": result.key, "where": result.where, "at": now, **change})
    keys = set(watched if watched is not None else [result.key for result in results])
    for key in [key for key in entries if key not in keys]:
        entry = entries.pop(key)
        if entry.get("down") or entry.get("unsteady"):
            since = entry.get("down_since") or now
            changes.append({"what": GONE, "key": key, "where": entry.get("where", ""), "at": now, "since": since})
    state["run"] += 1
    return changes


def _judge_one(entry: dict[str, Any], result: Result, now: float, failures: int) -> dict[str, Any] | None:
    history = (str(entry.get("history") or "") + ("U" if result.ok else "F"))[-HISTORY:]
    unsteady = bool(entry.get("unsteady"))
    entry.update(
        history=history,
        where=result.where,
        checked=now,
        failures=0 if result.ok else int(entry.get("failures") or 0) + 1,
        failing_since=None if result.ok else entry.get("failing_since") or now,
        error=result.error,
        hint=result.hint,
    )
    if result.completion is not None:
        entry["completion_failed"] = None if result.ok else result.completion
    elif result.ok:
        entry.setdefault("completion_failed", None)
    turned = _turn(entry, result, now, failures)
    entry.setdefault("down", False)
    entry.setdefault("unsteady", False)
    reason = {"error": result.error, "hint": result.hint}
    if unsteady:
        if len(set(history[-STEADY_CHECKS:])) > 1 or len(history) < STEADY_CHECKS:
            return None
        entry.update(unsteady=False, history=history[-STEADY_CHECKS:])
        return {"what": STEADY, "down": not result.ok, "checks": STEADY_CHECKS, **reason}
    if sum(earlier != later for earlier, later in zip(history, history[1:])) >= FLAPS:
        entry["unsteady"] = True
        failed = {"failed": history.count("F"), "checks": len(history)}
        return {"what": UNSTEADY, **failed, **reason, "down": not result.ok}
    return turned


def _turn(entry: dict[str, Any], result: Result, now: float, failures: int) -> dict[str, Any] | None:
    """Mark an endpoint as down or up, and return that change, None for no change."""
    count, since = entry["failures"], entry["failing_since"]
    if not result.ok and not entry.get("down") and count >= failures:
        entry.update(down=True, down_since=since)
        return {"what": DOWN, "since": since, "failures": count, "error": result.error, "hint": result.hint}
    if result.ok and entry.get("down"):
        began = float(entry.get("down_since") or now)
        entry.update(down=False, down_since=None)
        return {"what": UP, "since": began, "seconds": max(now - began, 0)}
    return None


def heartbeat(state: dict[str, Any], at: str, local: datetime) -> dict[str, Any] | None:
    """Return a sign of life for the first run of a day at or after C(at) (HH:MM, or C(off)), None if none is due. state: receives the day."""
    if at == "off":
        return None
    day, due = local.date().isoformat(), minute(at) <= local.hour * 60 + local.minute
    if not state["heartbeat"]:  # the monitor has just been installed; the first one comes at its time
        state["heartbeat"] = day if due else "never"
        return None
    if state["heartbeat"] == day or not due:
        return None
    state["heartbeat"] = day
    entries = state["endpoints"]
    down = [[key, entry.get("down_since")] for key, entry in sorted(entries.items()) if entry.get("down")]
    return {"what": HEARTBEAT, "key": "", "where": "", "at": local.timestamp(), "total": len(entries), "down": down}


def minute(text: str) -> int:
    """Return HH:MM as minutes of the day; raises ValueError for any other text."""
    match = re.fullmatch("([01]?[0-9]|2[0-3]):([0-5][0-9])", text)
    if not match:
        raise ValueError(f"{text!r} is no time like 08:30")
    return int(match[1]) * 60 + int(match[2])


def is_quiet(spans: Sequence[str], local: datetime) -> bool:
    """Return whether a moment lies in any span HH:MM-HH:MM; one may go past midnight."""
    now = local.hour * 60 + local.minute
    for span in spans:
        first, _dash, last = span.partition("-")
        begin, end = minute(first.strip()), minute(last.strip())
        if (begin <= now < end) if begin <= end else (now >= begin or now < end):
            return True
    return False


def post(state: dict[str, Any], notifiers: Sequence[str], changes: Sequence[Mapping[str, Any]], now: float) -> None:
    """Add changes to the outbox of every notifier, and remove outboxes of former ones; a new notifier gets the endpoints that are down already."""
    outbox = state["outbox"]
    for part in (outbox, state["delivery"]):
        for name in [name for name in part if name not in notifiers]:
            del part[name]
    beats = any(change["what"] == HEARTBEAT for change in changes)
    for name in notifiers:
        queue = outbox.get(name)
        if not isinstance(queue, list):
            queue = outbox[name] = _down_already(state, changes, now)
        if beats:
            queue[:] = [change for change in queue if change["what"] != HEARTBEAT]  # replaces yesterday's
        queue += [dict(change) for change in changes]
        if len(queue) > OUTBOX:
            lost = len(queue) - OUTBOX
            del queue[:lost]
            queue[0]["left_out"] = int(queue[0].get("left_out") or 0) + lost


def _down_already(state: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """Return changes for endpoints that are down and not in the changes of this run."""
    reported = {change["key"] for change in changes if change["what"] in (DOWN, UNSTEADY, STEADY)}
    return [
        {
            "what": DOWN,
            "key": key,
            "at": now,
            "since": entry.get("down_since") or now,
            **{name: entry.get(name) for name in ("where", "failures", "error", "hint")},
        }
        for key, entry in state["endpoints"].items()
        if entry.get("down") and not entry.get("unsteady") and key not in reported
    ]


# --- words ----------------------------------------------------------------------------------------------------------


def clock(moment: float, zone: tzinfo, now: float) -> str:
    """Return a moment, seconds since 1970, as HH:MM, with the day (YYYY-MM-DD HH:MM) unless it is today."""
    then, today = datetime.fromtimestamp(moment, zone), datetime.fromtimestamp(now, zone)
    return then.strftime("%H:%M") if then.date() == today.date() else then.strftime("%Y-%m-%d %H:%M")


def duration(seconds: float) -> str:
    """Return a duration in the two largest of days, hours, minutes."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(round(seconds), 0)} s"
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    return " ".join(f"{count} {unit}" for count, unit in (parts if minutes < 1440 else parts[:2]) if count)


def short(text: str) -> str:
    """Return a text as one line of limited length."""
    line = " ".join(str(text).split())
    return line if len(line) <= TEXT else line[: TEXT - 1] + "…"


def line(change: Mapping[str, Any], zone: tzinfo, now: float) -> str:
    """Return one change, of C(judge) or C(heartbeat), as a line."""
    kind, key = change["what"], f"{change['key']} ({change['where']})"
    reason = short(change.get("error") or "")
    hint = f" Look: {short(change['hint'])}" if change.get("hint") else ""
    if kind == DOWN:
        count = change.get("failures")
        checks = f", {count} checks failed" if isinstance(count, int) and count > 1 else ""
        return f"DOWN {key} since {clock(change['since'], zone, now)}{checks}: {reason}.{hint}"
    if kind == UP:
        since = clock(change["since"], zone, now)
        return f"UP {key} again at {clock(change['at'], zone, now)}, after {duration(change['seconds'])} (down since {since})."
    if kind == UNSTEADY:
        last = f" The last error: {reason}." if reason else ""
        return (
            f"UNSTEADY {key}: {change['failed']} of the last {change['checks']} checks failed, in turns. It is not reported "
            f"again until {STEADY_CHECKS} checks in a row agree.{last}{hint}"
        )
    if kind == STEADY:
        if change["down"]:
            return f"DOWN {key} for the last {change['checks']} checks, after it was unsteady: {reason}.{hint}"
        return f"UP {key} for the last {change['checks']} checks, after it was unsteady."
    if kind == GONE:
        return f"GONE {key} is not watched any more; it was down since {clock(change['since'], zone, now)}."
    return _alive_line(int(change["total"]), change["down"], zone, now)


def _alive_line(total: int, down: Sequence[tuple[str, float | None]], zone: tzinfo, now: float) -> str:
    """Return the line of a heartbeat. total: number of endpoints. down: keys and moments of those that are down."""
    if not down:
        return f"ALIVE All {total} endpoints are up." if total != 1 else "ALIVE The one endpoint is up."
    names = ", ".join(f"{key} since {clock(since or now, zone, now)}" for key, since in down)
    return f"ALIVE {total - len(down)} of {total} endpoints are up. Down: {short(names)}."


def title(host: str, changes: Sequence[Mapping[str, Any]]) -> str:
    """Return the title of a message."""
    words = {DOWN: "down", UP: "up again", UNSTEADY: "unsteady", STEADY: "steady again", GONE: "not watched any more"}
    counts = [(sum(change["what"] == kind for change in changes), text) for kind, text in words.items()]
    text = ", ".join(f"{count} {text}" for count, text in counts if count)
    return f"Fleet monitor on {host}: {text or 'alive'}"


def compose(
    host: str, changes: Sequence[Mapping[str, Any]], zone: tzinfo, now: float, total: int = 0
) -> tuple[str, str, int]:
    """Return one message with the first changes of an outbox, and their number; it mentions the others, which stay."""
    head = _head(host, changes, total)
    lines: list[str] = []
    room = LIMIT - sum(len(text) + 1 for text in head) - 60
    for change in changes:
        text = line(change, zone, now)
        if lines and len(text) + 1 > room:
            break
        lines.append(text[: max(room, 200)])
        room -= len(text) + 1
    hidden = len(changes) - len(lines)
    tail = [f"{hidden} further changes follow in the next message."] if hidden else []
    return title(host, changes[: len(lines)]), "\n".join([*head, *lines, *tail]), len(lines)


def _head(host: str, changes: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    """Return the first lines of a message: changes that were lost, and a network that failed as a whole."""
    head = []
    lost = sum(int(change.get("left_out") or 0) for change in changes)
    if lost:
        head.append(f"{lost} older changes could not be delivered and are left out.")
    down = [change for change in changes if change["what"] == DOWN]
    if total > 1 and len({change["key"] for change in down}) == total and len({change["at"] for change in down}) == 1:
        head.append(f"All {total} endpoints went at once: look at the network of {host} first.")
    return head


def delivered(state: dict[str, Any], name: str, count: int) -> None:
    """Note in the state that a notifier has taken the first changes of its outbox."""
    del state["outbox"][name][:count]
    state["delivery"].pop(name, None)


def not_delivered(state: dict[str, Any], name: str, error: str, now: float) -> None:
    """Note in the state that a notifier has not taken its message; the changes stay. now: seconds since 1970."""
    since = (state["delivery"].get(name) or {}).get("since") or now
    state["delivery"][name] = {"error": short(error), "since": since}
