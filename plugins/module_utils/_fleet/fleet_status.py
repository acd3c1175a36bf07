# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a fleet is: every service and host judged, alike ones in one line, the worst first. Pure functions.

Rows are those of C(status_rows.status_rows); what is judged of them is C(state) and C(notes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common import tables
from .._host import guard_account
from .._plan.picture import names_text, natural
from . import status_rows

SCHEMA = 1
STATES = ("unreachable", "unknown", "down", "starting", "look", "well", "cold", "stopped")
"""Worst first. unknown: the host was reached, and could not be asked. look: it serves, and something is worth a look.
cold: its first request starts it. stopped: it is not meant to run."""
BAD, BELOW = STATES[:4], STATES[4:]
WORDS = {
    "down": "down",
    "starting": "starting",
    "look": "worth a look",
    "well": "well",
    "cold": "cold",
    "stopped": "stopped",
}
"""What is counted of services, as people read it."""
MEANT_IDLE = ("cold", "stopped")
"""States of a service that does not run, and is not to."""

MOST_ROWS = 20
"""Services that get a line each, unless told otherwise."""
MOST_LINES = 32
"""Lines of groups; with the head it is one screen."""
MOST_TEXT = 160
YOUNG_SECONDS = 86400
"""A service that was restarted counts as worth a look for so long after its last start."""
SLOWER = 0.80
"""The measured decode rate by its baseline, below which it is worth a look; as receipts have it."""
LOW_GIB = 2.0
"""MemAvailable of a host: steady values above it were fine in reports, freezes began below it."""
OVER = 1.10
"""GPU memory held by that planned."""

_SSH_PREFIX = re.compile(
    r"(?:Task failed: )?(?:Failed to connect to the host via ssh: *"
    r'|Data could not be sent to remote host "[^"]*"\. Make sure this host can be reached over ssh: *)'
)
_SSH_CONNECT = re.compile(r"ssh: connect to host \S+ port (\d+): (.+)")


def why_unreachable(message: str) -> str:
    """Return why a host cannot be reached in one line, without its address: then hosts with one reason are alike."""
    lines = [line.strip() for line in _SSH_PREFIX.sub("", message).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Warning:", "debug"))]
    for line in lines:
        found = _SSH_CONNECT.search(line)
        if found:
            return f"port {found[1]}: {found[2].strip()}"
    return short(lines[-1]) if lines else "it cannot be reached"


def short(text: Any) -> str:
    """One line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= MOST_TEXT else line[: MOST_TEXT - 1] + "…"


@dataclass(frozen=True)
class HostState:
    """How a host is: C(state), of which C(well) and C(look) are those of one that answered, and why it is not known. guard: of
    C(guard_account.account), with C(unit) and C(line); None without one."""

    state: str
    why: str = ""
    notes: Sequence[str] = field(default_factory=list)
    available_gib: float | None = None
    total_gib: float | None = None
    guard: Mapping[str, Any] | None = None

    @property
    def silent(self) -> bool:
        """Whether it said nothing of itself."""
        return self.state in ("unreachable", "unknown")


@dataclass(frozen=True)
class Status:
    """How a fleet is; services: the worst first. reason: why it is not well, in one line."""

    at: str
    reason: str
    counts: Mapping[str, int]
    hosts: Mapping[str, HostState]
    services: Sequence[status_rows.Row] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether there is no reason that it is not."""
        return not self.reason

    def plain(self) -> dict[str, Any]:
        """Return it as M(dgxspark.vllm.status) does."""
        return {
            "schema": SCHEMA,
            "at": self.at,
            "well": self.well,
            "reason": self.reason,
            "counts": dict(self.counts),
            "hosts": {host: asdict(body) for host, body in self.hosts.items()},
            "services": [row.plain() for row in self.services],
        }


def judge_host(asked: Mapping[str, Any], answer: str) -> HostState:
    """Judge what M(dgxspark.vllm.ask) brought of a host; C(answer) names the one with C({host, services}) of M(dgxspark.vllm.spark_info)."""
    if not asked.get("reached"):
        return HostState("unreachable", asked.get("why") or "it was not asked")
    said = (asked.get("answers") or {}).get(answer) or {}
    if said.get("failed") or not said:
        return HostState("unknown", short(said.get("msg") or "it was not asked"))
    host = said.get("host") or {}
    memory, guard, notes = host.get("memory") or {}, host.get("guard"), []
    available = memory.get("available_gib")
    if isinstance(available, (int, float)) and available < LOW_GIB:
        notes.append(f"{available:.1f} GiB of memory available")
    notes += list((host.get("unknown") or {}).values())
    if guard:
        unit = guard_account.runs(host.get("units") or [])
        notes += [short(note) for note in guard_account.notes(guard, unit)]
        guard = {**guard, "unit": unit, "line": guard_account.line(guard, unit)}
    return HostState("look" if notes else "well", "", notes, available, memory.get("total_gib"), guard or None)


def judge_row(row: status_rows.Row, host: HostState) -> None:
    """Give a row its C(state) and C(notes), in place."""
    row.notes = []
    if host.silent:
        row.state, row.unit, row.error, row.ready = host.state, host.state, host.why, False
        return
    if not row.ready and row.meant == "stopped" and row.unit in ("inactive", "absent"):
        row.state, row.error = "stopped", ""
        return
    if not row.ready and row.meant == "on_demand" and row.unit == "inactive" and row.kept_down:
        row.state, row.error = "down", ""
        return
    if not row.ready and row.meant == "on_demand" and row.unit in ("inactive", "deactivating"):
        row.state, row.error = "cold", ""
        return
    if not row.ready and row.unit == status_rows.NOT_KNOWN and (row.rank or not row.error):
        row.state = "unknown"
        return
    if not row.ready:
        row.state = "starting" if row.unit in ("activating", "reloading") else "down"
        return
    notes = row.notes
    if row.unit not in ("active", status_rows.NOT_KNOWN):
        notes.append(f"it answers, but its unit is {row.unit}")
    if row.restarts and not row.rank and not row.cluster and (row.uptime_seconds or 0) < YOUNG_SECONDS:
        count = row.restarts
        notes.append(f"{count} restart{'s'[: count != 1]}, up {tables.uptime(row.uptime_seconds)}")
    if row.fast_path and row.fast_path not in ("ok", "-"):
        notes.append(f"fast path: {row.fast_path}")
    if isinstance(row.decode_ratio, (int, float)) and row.decode_ratio < SLOWER:
        notes.append(f"{status_rows.decode(row)} tok/s when it was measured last")
    held, planned = row.residency_gib, row.planned_gib
    if held and planned and held > planned * OVER:
        notes.append(f"holds {held:.1f} GiB, planned {planned:.1f}")
    row.state = "look" if notes else "well"


def report(rows: list[status_rows.Row], hosts: Mapping[str, HostState], at: str, fail_on: str = "down") -> Status:
    """Judge a fleet.

    rows: of all hosts, ranks not joined yet. hosts: of C(judge_host). fail_on: C(down), or C(look) to take what is worth a
    look for a failure too.
    """
    for row in rows:
        if hosts[row.host].silent:
            judge_row(row, hosts[row.host])
    status_rows.join_ranks(rows)
    _keep_one_per_set(rows)
    for row in rows:
        judge_row(row, hosts[row.host])
    rows.sort(key=lambda row: (STATES.index(row.state), natural(row.host), row.service))
    services: dict[str, str] = {}
    for row in rows:  # the worst rank comes first
        services.setdefault(row.name, row.state)
    counts = {state: sum(found == state for found in services.values()) for state in STATES}
    silent = [host for host, body in hosts.items() if body.silent]
    # Those of silent hosts last: the hosts themselves are named before.
    bad = [name for name, state in services.items() if state in BAD]
    bad.sort(key=lambda name: services[name] in ("unreachable", "unknown"))
    looks = [name for name, state in services.items() if state == "look"]
    looks += [host for host, body in hosts.items() if body.state == "look"]
    parts = []
    if silent:
        parts.append(f"{len(silent)} of {len(hosts)} hosts did not answer: {names_text(silent)}")
    if bad:
        parts.append(f"{len(bad)} of {len(services)} services are not ready: {_some(bad)}")
    if looks and fail_on == "look":
        parts.append(f"{len(looks)} worth a look: {_some(looks)}")
    return Status(
        at=at,
        reason="; ".join(parts),
        counts={"hosts": len(hosts), "silent": len(silent), "services": len(services), **counts},
        hosts={host: hosts[host] for host in sorted(hosts, key=natural)},
        services=rows,
    )


def _keep_one_per_set(rows: Sequence[status_rows.Row]) -> None:
    """Of an exclusive set one service runs; the others of its host are stopped on purpose, whichever the inventory has first."""
    serving = {(row.host, row.exclusive) for row in rows if row.exclusive and row.ready}
    for row in rows:
        if not row.ready and row.meant == "started" and (row.host, row.exclusive) in serving:
            row.meant = "stopped"


def _some(names: Sequence[str], most: int = 8) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def head(found: Status) -> str:
    """Say in one line how the fleet is."""
    counts = found.counts
    parts = [f"{counts[state]} {word}" for state, word in WORDS.items() if counts[state]]
    lost = counts["unreachable"] + counts["unknown"]
    parts[:0] = [f"{lost} on hosts that did not answer"] if lost else []
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    hosts, services = counts["hosts"], counts["services"]
    return f"{hosts} host{'s'[: hosts != 1]}{silent}, {services} service{'s'[: services != 1]}: {', '.join(parts) or 'none planned'}."


def groups(found: Status) -> list[tuple[str, str]]:
    """Put what is alike together: C([(state, line)]), the worst first, and within a state what concerns the most."""
    lines: list[tuple[str, int, str]] = []
    silent: dict[tuple[str, str], list[str]] = {}
    for host, body in found.hosts.items():
        if body.silent:
            silent.setdefault((body.state, body.why), []).append(host)
        elif body.notes:
            lines.append(("look", 1, f"{host}: {'; '.join(body.notes)}"))
    for (state, why), hosts in silent.items():
        lines.append((state, len(hosts), f"{_counted(hosts)}: {why}"))
    alike: dict[tuple[str, ...], list[status_rows.Row]] = {}
    for row in found.services:
        if row.state in ("unreachable", "unknown"):
            continue
        part = f" ({status_rows.part(row)})" if row.cluster else ""
        said = dict.fromkeys(short(text) for text in (row.status, row.error) if text)
        reason = "" if row.state in BELOW else "; ".join(said) or f"no ({row.stage})"
        notes = "; ".join(row.notes)
        key = (row.state, row.service, str(row.model or "-"), part, row.unit, reason, notes)
        alike.setdefault(key, []).append(row)
    for (state, service, model, part, unit, reason, notes), rows in alike.items():
        hosts = [row.host for row in rows]
        says = notes or (well_text(rows) if state == "well" else f"unit {unit}{f': {reason}' if reason else ''}")
        of = f" {model}," if state == "well" else ""
        lines.append((state, len(hosts), f"{service}{part} on {_counted(hosts)}:{of} {says}"))
    lines.sort(key=lambda line: (STATES.index(line[0]), -line[1], line[2]))
    idle = [host for host, body in found.hosts.items() if body.state in ("look", "well")]
    busy = {row.host for row in found.services}
    idle = [host for host in idle if host not in busy]
    if idle:
        lines.append(("well", len(idle), f"no services planned on {_counted(idle)}"))
    return [(state, line) for state, _count, line in lines]


def _counted(hosts: Sequence[str]) -> str:
    return f"{names_text(hosts)} ({len(hosts)})" if len(hosts) > 1 else names_text(hosts)


def well_text(rows: Sequence[status_rows.Row]) -> str:
    """Sum up rows that are well: memory, requests, KV use at most, uptime at least."""

    def known(name: str) -> list[float]:
        values = [getattr(row, name) for row in rows]
        return [value for value in values if isinstance(value, (int, float))]

    parts = []
    held, planned = known("residency_gib"), known("planned_gib")
    if held:
        low, high = f"{min(held):.1f}", f"{max(held):.1f}"
        parts.append(f"{low if low == high else f'{low} to {high}'}{f' of {max(planned):.1f}' if planned else ''} GiB")
    running = known("requests_running")
    if running:
        parts.append(f"requests {int(sum(running))}+{int(sum(known('requests_waiting')))}")
    use = known("kv_cache_usage")
    if use:
        parts.append(f"KV {'up to ' if len(use) > 1 else ''}{100 * max(use):.0f} %")
    speed = known("decode_tokens_per_second")
    if speed:
        parts.append(f"{min(speed):.1f} tok/s{' or more' if len(speed) > 1 else ''}")
    idle = known("idle_seconds")
    if idle:
        parts.append(f"idle for {tables.uptime(min(idle))}{' or more' if len(idle) > 1 else ''}")
    up = known("uptime_seconds")
    if up:
        parts.append(f"up {tables.uptime(min(up))}{' or more' if len(up) > 1 else ''}")
    return ", ".join(parts) or "ready"


def text(found: Status, show: str = "auto") -> str:
    """Return what a person sees. show: C(table) (a line a service), C(groups), or C(auto), by how many services there are."""
    many = len(found.services) > MOST_ROWS or (show == "auto" and len(found.hosts) > MOST_ROWS)
    if show == "table" or (show == "auto" and not many):
        lines = [status_rows.status_text(found.services)]
        # Hosts without services have no row there.
        busy = {row.host for row in found.services}
        lines += [
            f"{host}: {body.why or '; '.join(body.notes)}"
            for host, body in found.hosts.items()
            if (body.why and host not in busy) or body.notes
        ]
        lines += [f"{host}: {body.guard['line']}" for host, body in found.hosts.items() if body.guard]
        lines += [f"{row.host}/{row.service}: {'; '.join(row.notes)}" for row in found.services if row.notes]
        return "\n".join([*lines, head(found)])
    lines = [f"{state.upper():11}  {line}" for state, line in groups(found)]
    if len(lines) > MOST_LINES:
        # What is well may go first: it is at the end.
        more = len(lines) - MOST_LINES
        lines = [
            *lines[:MOST_LINES],
            f"and {more} lines more: -e spark_status_show=table, or the JSON of spark_status_file",
        ]
    return "\n".join([head(found), "", *lines])
