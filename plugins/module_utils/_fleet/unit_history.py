# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last day of the services of a host, by systemd's messages in the journal: section C(history) of M(dgxspark.vllm.spark_info).

Only messages of process 1 count, whose fields no other program can write. Time that the journal does not cover, such as between two boots,
is in no span: it is unknown. Entries are dated by the monotonic clock of their boot, so a clock that was set moves nothing; a suspended
host would appear later than it was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from .._common.foreign_text import parse_json
from .._host.host_view import HostView, Request
from .._host.units import read_properties, seconds_of, show_command
from .._proof import service_arguments
from .._runtime.command import answered

DAY = 86400.0
MOST_ENTRIES = 20_000
MOST_ALARMS = 200
MOST_SPANS = 300
MOST_TEXT = 200
WHOLE_SECONDS = 120.0  # from the begin of a boot to its first entry, if the journal has its begin
AGENT = "spark-agent.service"
STATES = ("running", "starting", "stopped", "failed")
"""The worst last."""
RUNNING, STARTING, STOPPED, FAILED = STATES
RESTART = "5eb03494b6584870a536b337290809b3"
MESSAGES = {
    "7d4958e842da4a758f6c1cdc7b36dcc5": STARTING,
    "39f53479d3a045ac8e11786248231fbf": RUNNING,
    "de5b426a63be47a7b6ac3eaac82e2f6f": STOPPED,
    "9d1aaa27d60140bd96365438aad20286": STOPPED,
    "d9b373ed55a64feb8242e02dbe79a49c": FAILED,
    "be02cf6855d2428ba40df7e9d022f03d": FAILED,
    RESTART: STARTING,
}
"""States after systemd's messages (systemd, sd-messages.h: SD_MESSAGE_UNIT_STARTING, STARTED, STOPPING, STOPPED, FAILURE_RESULT, FAILED,
RESTART_SCHEDULED)."""
SHOWN = {"active": RUNNING, "reloading": RUNNING, "activating": STARTING, "inactive": STOPPED, "failed": FAILED}
_BOOT = re.compile(r"^\s*-?\d+ ([0-9a-f]{32}) \w+ (\S+ \S+) UTC\W+\w+ (\S+ \S+) UTC$", re.MULTILINE)


class Entry(NamedTuple):
    """A message of the journal. clock, wall: the monotonic and the wall clock, seconds."""

    boot: str
    clock: float
    wall: float
    unit: str
    message_id: str
    text: str


@dataclass
class Boot:
    """A boot in the journal, in seconds since 1970. is_whole: the journal has its begin."""

    name: str
    begin: float
    end: float
    is_whole: bool = True


class Moment(NamedTuple):
    """This moment on a host: both clocks in seconds, and the id of the boot."""

    wall: float
    clock: float
    boot: str


def section(view: HostView, request: Request) -> dict[str, Any]:
    """Return C(of_journal) for the services of the request and the agent. Raises NoAnswer if journalctl fails."""
    services = service_arguments.complete(request.params["services"])
    names = {f"spark-{service['name']}.service": service["name"] for service in services}
    units = [*names, AGENT]
    as_json = ["--system", "--output=json", "--all", "--output-fields=UNIT,MESSAGE_ID,MESSAGE"]
    matches = ["_PID=1", *(f"UNIT={unit}" for unit in units), *(f"MESSAGE_ID={message}" for message in MESSAGES)]
    warnings = [f"_SYSTEMD_UNIT={AGENT}", *(f"PRIORITY={level}" for level in range(5))]
    texts = (
        _journal(view, "--system", "--list-boots"),
        _journal(view, *as_json, f"--lines={MOST_ENTRIES}", *matches),
        _journal(view, *as_json, f"--lines={MOST_ALARMS}", *warnings),
    )
    _rc, shown, _err = view.run(show_command(units, ("Id", "ActiveState", "StateChangeTimestampMonotonic")))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
    return of_journal(*texts, shown, names, Moment(time.time(), time.monotonic(), boot))


def _journal(view: HostView, *options: str) -> str:
    rc, out, err = view.journal(*options)
    # 127: a host without a journal; its day would be unknown without a reason.
    answered("journalctl", 1 if rc == 127 or (rc and err.strip()) else 0, err)
    return out


def _events_by_unit(
    entries: Iterable[Entry], units: Iterable[str], offsets: Mapping[str, float]
) -> dict[str, list[tuple[str, float, str]]]:
    """Return boot, time and message of the events of each unit. offsets: from the clock of each boot to the time, in seconds."""
    by_unit: dict[str, list[tuple[str, float, str]]] = {unit: [] for unit in units}
    for entry in entries:
        if entry.unit in by_unit and entry.message_id in MESSAGES:
            by_unit[entry.unit].append((entry.boot, entry.clock + offsets[entry.boot], entry.message_id))
    return by_unit


def of_journal(
    boots_text: str, text: str, warnings: str, shown: str, names: Mapping[str, str], moment: Moment
) -> dict[str, Any]:
    """Return the last day of services.

    :param boots_text: of journalctl --list-boots, in UTC
    :param text: systemd's messages about units as JSON, the oldest first, at most C(MOST_ENTRIES)
    :param warnings: of the agent, likewise
    :param shown: what systemctl shows of the units
    :param names: services by unit
    :param moment: of the question
    :returns: C({units, alarms}), with times in seconds since a day before the moment: by service, and C(AGENT), the known C(spans)
        C({state, begin, end}) and the number of C(restarts); the last alarms C({at, text})
    """
    entries = list(read_entries(text))
    boots = read_boots(boots_text, moment)
    offsets = {entry.boot: entry.wall - entry.clock for entry in entries} | {moment.boot: moment.wall - moment.clock}
    first = min((entry.clock for entry in entries if entry.boot == moment.boot), default=moment.clock)
    boots[-1].begin = min(boots[-1].begin, first + offsets[moment.boot])  # listed later if its clock was ahead
    if len(entries) >= MOST_ENTRIES:  # older messages are not read
        oldest = entries[0].clock + offsets[entries[0].boot]
        for boot in boots:
            boot.is_whole = boot.is_whole and boot.begin >= oldest
    begin = moment.wall - DAY
    states = {values.get("Id", ""): values for values in read_properties(shown)}
    units = {}
    for unit, events in _events_by_unit(entries, (*names, AGENT), offsets).items():
        present = states.get(unit, {})
        changed = seconds_of(present, "StateChangeTimestampMonotonic")
        came = 0.0 if changed is None else changed + offsets[moment.boot]
        spans = list(_spans(events, boots, (SHOWN.get(present.get("ActiveState", ""), ""), came)))
        restarts = [at for _boot, at, message in events if message == RESTART and begin <= at <= moment.wall]
        units[names.get(unit, AGENT)] = {"spans": _of_day(spans, begin, moment.wall), "restarts": len(restarts)}
    alarms = []
    for entry in read_entries(warnings):
        at = entry.clock + offsets.get(entry.boot, entry.wall - entry.clock)
        if begin <= at <= moment.wall:
            words = " ".join(entry.text.split())[:MOST_TEXT]
            alarms.append({"at": round(at - begin, 1), "text": words})
    return {"units": units, "alarms": alarms[-MOST_ALARMS:]}


def read_entries(journal: str) -> Iterable[Entry]:
    """Yield the messages of a journal as JSON lines; malformed lines are skipped."""
    for row in journal.splitlines():
        try:
            entry = parse_json(row, "journalctl")
            clock, wall = (int(entry[f"__{name}_TIMESTAMP"]) / 1e6 for name in ("MONOTONIC", "REALTIME"))
            words = (entry.get(key) for key in ("_BOOT_ID", "UNIT", "MESSAGE_ID", "MESSAGE"))
            boot, *texts = (text if isinstance(text, str) else "" for text in words)
            yield Entry(boot, clock, wall, *texts)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            continue


def read_boots(text: str, moment: Moment) -> list[Boot]:
    """Return the boots of a journal, the oldest first and the present one last; none begins before the end of another."""
    started = moment.wall - moment.clock
    boots = []
    for name, first, last in _BOOT.findall(text):
        try:
            begin, end = (datetime.fromisoformat(at).replace(tzinfo=timezone.utc).timestamp() for at in (first, last))
        except (ValueError, OverflowError):
            continue
        if name == moment.boot:  # its clock may have been wrong at first
            begin = started if not started <= begin <= moment.wall else begin
            boots.append(Boot(name, begin, moment.wall, begin - started < WHOLE_SECONDS))
        else:
            boots.append(Boot(name, begin, end, bool(boots)))
    boots.sort(key=lambda boot: boot.name == moment.boot)
    if not boots or boots[-1].name != moment.boot:
        boots.append(Boot(moment.boot, moment.wall, moment.wall, False))
    for boot, following in zip(boots[-2::-1], boots[:0:-1]):
        boot.end = min(boot.end, following.begin)
        boot.begin = min(boot.begin, boot.end)
    return boots


def _spans(
    events: Sequence[tuple[str, float, str]], boots: Sequence[Boot], now: tuple[str, float]
) -> Iterable[tuple[str, float, float]]:
    """Yield the known states of a unit with begin and end.

    :param events: boot, time and message
    :param now: the present state and when it came, 0 if never; an empty state if unknown
    """
    by_boot: dict[str, list[tuple[float, str]]] = {boot.name: [] for boot in boots}
    for name, at, message in events:
        if name in by_boot:
            by_boot[name].append((at, MESSAGES[message]))
    for boot in boots:
        state, since = STOPPED if boot.is_whole else "", boot.begin
        for at, reached in by_boot[boot.name]:
            if (state, reached) != (FAILED, STOPPED):  # a stop that ends in a failure
                at = min(max(at, since), boot.end)
                yield state, since, at
                state, since = reached, at
        if boot is boots[-1] and now[0]:
            # A state without a message, as of a unit that runs for longer than the journal reaches back.
            changed = min(now[1] if now[1] and not state else max(now[1], since), boot.end)
            yield state, since, changed
            state, since = now[0], changed
        yield state, since, boot.end


def _of_day(spans: Iterable[tuple[str, float, float]], begin: float, end: float) -> list[dict[str, Any]]:
    """Return spans in seconds of the day; many short ones, as of a restart loop, become some with their worst state."""
    rounded = [
        (state, round(max(since, begin) - begin, 1), round(min(until, end) - begin, 1))
        for state, since, until in spans
        if state
    ]
    day_spans, least = _joined([span for span in rounded if span[2] > span[1]], 0.0), 1.0
    while len(day_spans) > MOST_SPANS and least < DAY:
        day_spans, least = _joined(day_spans, least), 2 * least
    return [{"state": state, "begin": since, "end": until} for state, since, until in day_spans[-MOST_SPANS:]]


def _joined(spans: Iterable[tuple[str, float, float]], least: float) -> list[tuple[str, float, float]]:
    """Join neighbours of the same state, and neighbours that are both shorter than C(least) seconds."""
    joined: list[tuple[str, float, float]] = []
    for state, since, until in spans:
        if joined and since <= joined[-1][2]:
            before, began, ended = joined[-1]
            if before == state or max(until - since, ended - began) < least:
                joined[-1] = (max(before, state, key=STATES.index), began, until)
                continue
        joined.append((state, since, until))
    return joined
