# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the events of a run as lines of JSON, and its outcome as one document, for programs; docs/automation.md has the fields."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SCHEMA = 1
"""Of events and outcomes. New kinds and fields may join it; a changed meaning increases it."""
REPORTS = ("report", "explanation", "endpoint", "proof")
"""Events whose fields an outcome lists."""
REFUSED, FAILED, UNREACHABLE = 1, 2, 4
"""Exit codes of ansible-playbook; docs/automation.md."""


class EventLog:
    """The file of events. Workers are forks of the callback's process, so they append to the same open file.

    run: an id of the run, since several runs may append to one file.
    """

    descriptor = -1
    run = ""

    @classmethod
    def open(cls, path: str) -> int:
        """Open the file for appending, a file without a name if no path is given; return its size. Raises OSError."""
        if path:
            cls.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        else:
            with tempfile.TemporaryFile("a+b") as file:
                cls.descriptor = os.dup(file.fileno())
        cls.run = os.urandom(8).hex()
        return os.fstat(cls.descriptor).st_size

    @classmethod
    def write(cls, event: str, **fields: Any) -> None:
        """Append an event with one write, so that lines of several workers do not mix; without an open file do nothing."""
        if cls.descriptor >= 0:
            time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            line = json.dumps({"time": time, "run": cls.run, "event": event, **fields}, default=str).encode() + b"\n"
            with contextlib.suppress(OSError):  # a full disk does not end a rollout
                os.write(cls.descriptor, line)

    @classmethod
    def read(cls, start: int) -> list[dict[str, Any]]:
        """Return the events of this run behind an offset in bytes, without its id and without lines that are no events."""
        events = []
        with os.fdopen(os.dup(cls.descriptor), "rb") as file:
            file.seek(start)
            for line in file:
                with contextlib.suppress(
                    ValueError, RecursionError
                ):  # part of a line from a full disk or another writer
                    event = json.loads(line)
                    if isinstance(event, dict) and event.pop("run", None) == cls.run:
                        events.append(event)
        return events


def plan_fields(plan: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of the event C(plan). plan: as in plan.json; counts: of findings by severity."""
    services = []
    for host, body in plan["hosts"].items():
        for service in body.get("services") or []:
            model = service.get("model") or {}
            name = model.get("repo") or model.get("path") or model.get("source")
            fields = {key: service.get(key) for key in ("name", "port", "state")}
            services.append({"host": host, **fields, "model": name})
    clusters = {name: body["hosts"] for name, body in (plan.get("clusters") or {}).items()}
    return {"hosts": list(plan["hosts"]), "clusters": clusters, "services": services, "counts": dict(counts)}


def _unrescued(errors: list[dict[str, Any]], hosts: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Return the errors of failed hosts: a rescued task has not failed. hosts: with their counts of results."""
    return [error for error in errors if has_failed(hosts.get(error["host"]) or {})]


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event, without its kind and time."""
    return {key: value for key, value in event.items() if key not in ("time", "event")}


def outcome(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outcome of a run by its events, as C(spark_result) has it."""
    document: dict[str, Any] = {"schema": SCHEMA, "outcome": "interrupted", "exit_code": None}
    errors: list[dict[str, Any]] = []
    # Tasks plan again with the answers of hosts; the last plan counts.
    planned: dict[str, Any] = {"plan": None, "findings": []}
    reports: dict[str, list[dict[str, Any]]] = {f"{kind}s": [] for kind in REPORTS}
    for event in events:
        kind = event["event"]
        fields = _fields(event)
        if kind == "run":
            document.update(fields, began=event["time"])
        elif kind == "plan":
            planned = {"plan": fields, "findings": []}
        elif kind == "finding":
            planned["findings"].append(fields)
        elif kind in REPORTS:
            reports[f"{kind}s"].append(fields)
        elif kind == "error":
            errors.append(fields)
        elif kind == "refused":
            document.update(outcome="refused", exit_code=REFUSED, ended=event["time"])
            errors += [{"host": "", "task": "", "message": message} for message in event["messages"]]
        elif kind == "stats":
            hosts = event["hosts"]
            document.update(verdict(hosts), hosts=hosts, ended=event["time"])
            errors = _unrescued(errors, hosts)
    filled = {key: value for key, value in reports.items() if value}
    return {**document, "errors": errors, **(planned if planned["plan"] else {}), **filled}


def verdict(hosts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return outcome, exit code and whether something changed, by the counts of Ansible for each host."""
    name, code = "done", 0
    if any(counts["failures"] for counts in hosts.values()):
        name, code = "failed", FAILED
    elif any(counts["unreachable"] for counts in hosts.values()):
        name, code = "unreachable", UNREACHABLE
    return {"outcome": name, "exit_code": code, "changed": any(counts["changed"] for counts in hosts.values())}


def has_failed(counts: Mapping[str, int]) -> bool:
    """Tell whether a host has failed or was lost. counts: of Ansible; empty for a host without any."""
    return bool(counts.get("failures") or counts.get("unreachable"))


def path_of(value: Any, inventory: str) -> str:
    """Return the absolute path of a file named by C(-e), empty without one.

    A relative path begins at the folder of the inventory, like paths of other variables. inventory: its first source, or empty.
    """
    if not isinstance(value, str) or not value:
        return ""
    source = Path(inventory).expanduser() if inventory and "," not in inventory else Path()
    return str((source if source.is_dir() else source.parent).joinpath(Path(value).expanduser()).absolute())
