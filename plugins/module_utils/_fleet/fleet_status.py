# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge every service and host of a fleet, and group equal ones, worst first. Pure functions.

Judging sets C(state) and C(notes) of the rows of C(status_rows.status_rows).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common import tables
from .._host import guard_account
from .._plan.picture import names_text, natural
from . import status_rows
from .status_rows import NOT_KNOWN, Row

SCHEMA = 1
STATES = ("unreachable", "unknown", "down", "degenerate", "starting", "warning", "healthy", "unloaded", "stopped")
"""Worst first. unknown: the host was reached and gave no answer. degenerate: it serves bad answers. warning: it serves, with notes. unloaded: the
first request starts it. stopped: as planned."""
BAD, BELOW = STATES[:5], STATES[5:]
WORDS = {**{state: state for state in STATES[2:]}, "warning": "with warnings"}
"""Counted states of services, in words."""
MEANT_IDLE = ("unloaded", "stopped")
"""States of a service that is down as planned."""

MOST_ROWS = 20
"""Most services with a line each, by default."""
MOST_LINES = 32
"""Lines of groups; one screen together with the head."""
MOST_TEXT = 160
YOUNG_SECONDS = 86400
"""A restart is worth a note for so long after the last start."""
SLOWER = 0.80
"""Ratio of the measured decode rate to its baseline, below which it is worth a note; as in receipts."""
LOW_GIB = 2.0
"""MemAvailable of a host. Reports have freezes below it, and none above."""
OVER = 1.10
"""Ratio of the held GPU memory to the planned one."""

_SSH_PREFIX = re.compile(
    r"(?:Task failed: )?(?:Failed to connect to the host via ssh: *"
    r'|Data could not be sent to remote host "[^"]*"\. Make sure this host can be reached over ssh: *)'
)
_SSH_CONNECT = re.compile(r"ssh: connect to host \S+ port (\d+): (.+)")


def why_unreachable(message: str) -> str:
    """Return why a host cannot be reached in one line, without its address: equal reasons of hosts are shown once."""
    lines = [line.strip() for line in _SSH_PREFIX.sub("", message).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Warning:", "debug"))]
    for line in lines:
        match = _SSH_CONNECT.search(line)
        if match:
            return f"port {match[1]}: {match[2].strip()}"
    return short(lines[-1]) if lines else "it cannot be reached"


def short(text: Any) -> str:
    """Return a text as one line of bounded length."""
    return tables.one_line(text, MOST_TEXT)


@dataclass(frozen=True)
class HostState:
    """The state of a host; a host with an answer is C(healthy) or C(look). why: it is unknown. guard: of C(guard_account.account), with C(unit) and
    C(line); None without one."""

    state: str
    why: str = ""
    notes: Sequence[str] = field(default_factory=list)
    available_gib: float | None = None
    total_gib: float | None = None
    guard: Mapping[str, Any] | None = None

    @property
    def silent(self) -> bool:
        """Whether it gave no answer."""
        return self.state in ("unreachable", "unknown")


@dataclass(frozen=True)
class Status:
    """The status of a fleet; services: the worst first. reason: why it is not healthy, in one line."""

    at: str
    reason: str
    counts: Mapping[str, int]
    hosts: Mapping[str, HostState]
    services: Sequence[Row] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Return the result of M(dgxspark.vllm.status)."""
        return {
            "schema": SCHEMA,
            "at": self.at,
            "healthy": self.healthy,
            "reason": self.reason,
            "counts": dict(self.counts),
            "hosts": {host: asdict(body) for host, body in self.hosts.items()},
            "services": [row.to_dict() for row in self.services],
        }


def judge_host(result: Mapping[str, Any], answer: str) -> HostState:
    """Return the state of a host.

    :param answer: name of the answer with C({host, services}) of M(dgxspark.vllm.spark_info)
    """
    if not result.get("reached"):
        return HostState("unreachable", result.get("why") or "it was not asked")
    sections = (result.get("answers") or {}).get(answer) or {}
    if sections.get("failed") or not sections:
        return HostState("unknown", short(sections.get("msg") or "it was not asked"))
    return judge_facts(sections.get("host") or {})


def judge_facts(host: Mapping[str, Any]) -> HostState:
    """Return the state of a host with an answer. host: C(spark) of M(dgxspark.vllm.spark_info)."""
    memory, guard, notes = host.get("memory") or {}, host.get("guard"), []
    available = memory.get("available_gib")
    if isinstance(available, (int, float)) and available < LOW_GIB:
        notes.append(f"{available:.1f} GiB of memory available")
    notes += list((host.get("unknown") or {}).values())
    if guard:
        # The state of the guard may be a minute old.
        guard = {**guard, "available_gib": available} if available is not None else guard
        unit = guard_account.runs(host.get("units") or [])
        notes += [short(note) for note in guard_account.notes(guard, unit)]
        guard = {**guard, "unit": unit, "line": guard_account.line(guard, unit)}
    return HostState("warning" if notes else "healthy", "", notes, available, memory.get("total_gib"), guard or None)


def judge_row(row: Row, host: HostState) -> None:
    """Set state and notes of a row."""
    row.notes = []
    if host.silent:
        row.state, row.unit, row.error, row.ready = host.state, host.state, host.why, False
    elif row.ready:
        row.notes = list(_notes(row))
        row.state = "degenerate" if row.degenerate else "warning" if row.notes else "healthy"
    else:
        row.state = _state_of_down(row)
        if row.state in MEANT_IDLE or (row.state == "down" and _is_kept_down(row)):
            row.error = ""


def _is_kept_down(row: Row) -> bool:
    return row.meant == "on_demand" and row.unit == "inactive" and row.kept_down


def _state_of_down(row: Row) -> str:
    """Return the state of a service that is not ready."""
    if row.meant == "stopped" and row.unit in ("inactive", "absent"):
        return "stopped"
    if _is_kept_down(row):
        return "down"
    if row.meant == "on_demand" and row.unit in ("inactive", "deactivating"):
        return "unloaded"
    if row.unit == NOT_KNOWN and (row.rank or not row.error):
        return "unknown"
    return "starting" if row.unit in ("activating", "reloading") else "down"


def _speed_notes(row: Row) -> Iterator[str]:
    """Yield the notes about a slow service."""
    if row.fast_path and row.fast_path not in ("ok", "-"):
        yield f"fast path: {row.fast_path}"
    if row.speed and row.speed.startswith(("slow", "wrong")):
        yield f"speed {row.speed}"
    if isinstance(row.decode_ratio, (int, float)) and row.decode_ratio < SLOWER:
        yield f"{status_rows.decode(row)} tok/s at the last measurement"


def _notes(row: Row) -> Iterator[str]:
    """Yield the notes about a ready service."""
    if row.degenerate:
        yield row.degenerate
    if row.unit not in ("active", NOT_KNOWN):
        yield f"it answers, but its unit is {row.unit}"
    # A rank is restarted by design.
    if row.restarts and not row.rank and not row.cluster and (row.uptime_seconds or 0) < YOUNG_SECONDS:
        yield f"{row.restarts} restart{'s'[: row.restarts != 1]}, up {tables.uptime(row.uptime_seconds)}"
    yield from _speed_notes(row)
    held, planned = row.residency_gib, row.planned_gib
    if held and planned and held > planned * OVER:
        yield f"uses {held:.1f} GiB, planned {planned:.1f}"


def report(rows: list[Row], hosts: Mapping[str, HostState], at: str, fail_on: str = "down") -> Status:
    """Return the status of a fleet.

    :param rows: of all hosts, before C(join_ranks)
    :param fail_on: C(down), or C(warning) to make notes a reason too
    """
    for row in rows:
        if hosts[row.host].silent:
            judge_row(row, hosts[row.host])
    status_rows.join_ranks(rows)
    # Only one service of an exclusive set runs; the others count as stopped.
    serving = {(row.host, row.exclusive) for row in rows if row.exclusive and row.ready}
    for row in rows:
        if not row.ready and row.meant == "started" and (row.host, row.exclusive) in serving:
            row.meant = "stopped"
        judge_row(row, hosts[row.host])
    rows.sort(key=lambda row: (STATES.index(row.state), natural(row.host), row.service))
    services: dict[str, str] = {}
    for row in rows:  # the worst rank comes first
        services.setdefault(row.name, row.state)
    states = list(services.values())
    silent = [host for host, state in hosts.items() if state.silent]
    return Status(
        at=at,
        reason="; ".join(_reasons(services, hosts, silent, fail_on)),
        counts={
            "hosts": len(hosts),
            "silent": len(silent),
            "services": len(services),
            **{state: states.count(state) for state in STATES},
        },
        hosts={host: hosts[host] for host in sorted(hosts, key=natural)},
        services=rows,
    )


def _reasons(
    services: Mapping[str, str], hosts: Mapping[str, HostState], silent: Sequence[str], fail_on: str
) -> Iterator[str]:
    """Yield why a fleet is not healthy. services: states by name."""
    if silent:
        yield f"{len(silent)} of {len(hosts)} hosts did not answer: {names_text(silent)}"
    bad = [name for name, state in services.items() if state in BAD and state != "degenerate"]
    # Services of silent hosts come last: the hosts are named already.
    bad.sort(key=lambda name: services[name] in ("unreachable", "unknown"))
    if bad:
        yield f"{len(bad)} of {len(services)} services are not ready: {tables.some_of(bad, 8)}"
    degenerate = [name for name, state in services.items() if state == "degenerate"]
    if degenerate:
        yield f"{len(degenerate)} of {len(services)} services give degenerate answers: {tables.some_of(degenerate, 8)}"
    noted = [name for name, state in services.items() if state == "warning"]
    noted += [host for host, state in hosts.items() if state.state == "warning"]
    if noted and fail_on == "warning":
        yield f"{len(noted)} with warnings: {tables.some_of(noted, 8)}"


def head(status: Status) -> str:
    """Return the status in one line."""
    counts = status.counts
    parts = [f"{counts[state]} {word}" for state, word in WORDS.items() if counts[state]]
    lost = counts["unreachable"] + counts["unknown"]
    parts[:0] = [f"{lost} on hosts that did not answer"] if lost else []
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    hosts, services = counts["hosts"], counts["services"]
    return f"{hosts} host{'s'[: hosts != 1]}{silent}, {services} service{'s'[: services != 1]}: {', '.join(parts) or 'none planned'}."


def _lines_of_hosts(hosts: Mapping[str, HostState]) -> list[tuple[str, int, str]]:
    """Return state, number of hosts and text: of each host with notes, and of equal silent hosts together."""
    lines: list[tuple[str, int, str]] = []
    silent: dict[tuple[str, str], list[str]] = {}
    for host, host_state in hosts.items():
        if host_state.silent:
            silent.setdefault((host_state.state, host_state.why), []).append(host)
        elif host_state.notes:
            lines.append(("warning", 1, f"{host}: {'; '.join(host_state.notes)}"))
    return lines + [(state, len(names), f"{_counted(names)}: {why}") for (state, why), names in silent.items()]


def _equal_services(services: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Return the services of hosts that answered, grouped by state, name, model, part, unit, reason and notes."""
    equal: dict[tuple[str, ...], list[Row]] = {}
    for row in services:
        if row.state not in ("unreachable", "unknown"):
            part = f" ({status_rows.part(row)})" if row.cluster else ""
            texts = part, row.unit, _reason(row), "; ".join(row.notes)
            equal.setdefault((row.state, row.service, str(row.model or "-"), *texts), []).append(row)
    return equal


def groups(status: Status) -> list[tuple[str, str]]:
    """Return C([(state, line)]) with a line for all equal services or hosts; the worst first, then the most frequent."""
    lines = _lines_of_hosts(status.hosts)
    for (state, service, model, part, unit, reason, notes), rows in _equal_services(status.services).items():
        figures = healthy_text(rows) if state == "healthy" else f"unit {unit}{f': {reason}' if reason else ''}"
        name, hosts_text = f" {model}," if state == "healthy" else "", _counted([row.host for row in rows])
        lines.append((state, len(rows), f"{service}{part} on {hosts_text}:{name} {notes or figures}"))
    lines.sort(key=lambda line: (STATES.index(line[0]), -line[1], line[2]))
    busy = {row.host for row in status.services}
    idle = [host for host, state in status.hosts.items() if state.state in ("warning", "healthy") and host not in busy]
    if idle:
        lines.append(("healthy", len(idle), f"no services planned on {_counted(idle)}"))
    return [(state, line) for state, _count, line in lines]


def _reason(row: Row) -> str:
    if row.state in BELOW:
        return ""
    return "; ".join(dict.fromkeys(short(text) for text in (row.status, row.error) if text)) or f"no ({row.stage})"


def _counted(hosts: Sequence[str]) -> str:
    return f"{names_text(hosts)} ({len(hosts)})" if len(hosts) > 1 else names_text(hosts)


def healthy_text(rows: Sequence[Row]) -> str:
    """Return the figures of ready services: memory, requests, the highest KV use, the lowest decode rate and uptime."""

    def figures(name: str) -> list[float]:
        values = [getattr(row, name) for row in rows]
        return [value for value in values if isinstance(value, (int, float))]

    def least(name: str, write: Callable[[float], str]) -> str:
        values = figures(name)
        return f"{write(min(values))}{' or more' if len(values) > 1 else ''}" if values else ""

    parts = []
    held, planned = figures("residency_gib"), figures("planned_gib")
    if held:
        low, high = f"{min(held):.1f}", f"{max(held):.1f}"
        parts.append(f"{low if low == high else f'{low} to {high}'}{f' of {max(planned):.1f}' if planned else ''} GiB")
    running = figures("requests_running")
    if running:
        parts.append(f"requests {int(sum(running))}+{int(sum(figures('requests_waiting')))}")
    use = figures("kv_cache_usage")
    if use:
        parts.append(f"KV {'up to ' if len(use) > 1 else ''}{100 * max(use):.0f} %")
    parts.append(least("decode_tokens_per_second", lambda rate: f"{rate:.1f} tok/s"))
    parts.append(least("idle_seconds", lambda seconds: f"idle for {tables.uptime(seconds)}"))
    parts.append(least("uptime_seconds", lambda seconds: f"up {tables.uptime(seconds)}"))
    return ", ".join(filter(None, parts)) or "ready"


def text(status: Status, show: str = "auto") -> str:
    """Return the status for people. show: C(table), a line for each service; C(groups); or C(auto), by the number of services."""
    is_large = len(status.services) > MOST_ROWS or (show == "auto" and len(status.hosts) > MOST_ROWS)
    if show == "table" or (show == "auto" and not is_large):
        return "\n".join([status_rows.status_text(status.services), *_host_lines(status), head(status)])
    lines = [f"{state.upper():11}  {line}" for state, line in groups(status)]
    if len(lines) > MOST_LINES:
        # The last lines are about ready services.
        more = len(lines) - MOST_LINES
        lines = [
            *lines[:MOST_LINES],
            f"and {more} lines more: -e spark_status_show=table, or the JSON of spark_status_file",
        ]
    return "\n".join([head(status), "", *lines])


def _host_lines(status: Status) -> Iterable[str]:
    """Yield the lines below the table: hosts without a row, guards, and notes."""
    busy = {row.host for row in status.services}
    for host, state in status.hosts.items():
        if (state.why and host not in busy) or state.notes:
            yield f"{host}: {state.why or '; '.join(state.notes)}"
    for host, state in status.hosts.items():
        if state.guard:
            yield f"{host}: {state.guard['line']}"
    for row in status.services:
        if row.notes:
            yield f"{row.host}/{row.service}: {'; '.join(row.notes)}"
