# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures a Spark for the live page: one bounded document, in the sections of M(dgxspark.vllm.spark_info), by the agent of the host.

A look without readers costs two files of C(/proc) and the metrics of the engines. While somebody reads, each look also asks systemctl and
nvidia-smi, so that states are as new as the page says; docker, journalctl and the memory of each service follow when a unit changes, and every
C(FULL_SECONDS). nvidia-smi also runs while engines have requests, as in the watchdog.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from .._common.foreign_text import printable
from .._common.reader import MOST_BYTES
from .._host import host_facts, machine, network, nvidia_smi
from .._host.host_view import HostView
from .._runtime import command, http_client, metrics, state_file, wedge
from .._runtime.command import NoAnswer, Run
from .._runtime.parallel import run_jobs
from .live_status import GPU, SCHEMA

FACTS = ("units", "residency", "memory")
FULL_SECONDS = 15.0
"""Between two readings of everything while somebody reads and no unit changes."""
CALL_SECONDS, ROUND_SECONDS = 5.0, 10.0
"""Longest run of one program, and of all silent programs of a look."""
METRICS_SECONDS = 3.0
MOST_METRICS = 4 * 1024 * 1024
MOST_TEXT = 500
STALE_SECONDS = 300.0
"""A state of the watchdog counts for so long."""


class LiveHost:
    """The document of this host."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        etc: Path,
        state_dir: Path,
        run_dir: Path,
        unit_dir: str,
        run: Run | None = None,
    ) -> None:
        """Set the settings C({host, services, sysroot, rails}) of C(live.plan), and the folders of C(live_agent.LiveAgent).

        run: runs programs; a reader with a limit for each look by default.
        """
        self.name = str(settings.get("host") or socket.gethostname())
        self.planned = [dict(service) for service in settings.get("services") or []]
        self.rails = list(settings.get("rails") or [])
        self.root = str(settings.get("sysroot") or "/")
        self.etc, self.state_dir, self.run_dir, self.unit_dir, self.fixed_run = etc, state_dir, run_dir, unit_dir, run
        self.facts: dict[str, Any] = {}
        self.facts_at = -3600.0
        self.states: list[tuple[str, str]] = []
        self.gpu: dict[str, Any] = {}
        self.links: list[dict[str, Any]] = []
        self.recorded: dict[str, dict[str, Any]] = {}
        self.watched: dict[str, Any] = {}
        self.tokens: dict[str, tuple[float, float]] = {}
        self.cpu: tuple[int, int] = (0, 0)

    def look(self, is_read: bool) -> dict[str, Any]:
        """Return the document now. is_read: whether somebody reads it; else only the figures of the last hour are updated."""
        now = time.monotonic()
        run = self.fixed_run or command.reader(CALL_SECONDS, ROUND_SECONDS)
        view = HostView(run, self.root, settings=str(self.etc), unit_dir=self.unit_dir)
        engines = self._engines(now)
        if is_read:
            self._read_units(view, now)
        is_busy = any((figures.get("requests_running") or 0) > 0 for figures in engines.values())
        self.gpu = {}
        if is_read or is_busy:
            with contextlib.suppress(NoAnswer):
                rc, out, _err = view.gpu_query()
                gpus = nvidia_smi.parse_gpu_query(out) if rc == 0 else []
                self.gpu = _only(gpus[0], GPU) if gpus else {}
        units = {unit["name"]: unit for unit in self.facts.get("units") or []}
        memory = machine.read_memory(self.root)
        return {
            "schema": SCHEMA,
            "host": self.name,
            "facts": {**self.facts, "memory": _only(memory or {}, ("total_gib", "available_gib"))},
            "services": [
                self._answer(service, units.get(service["unit"]) or {}, engines.get(service["name"]) or {})
                for service in self.planned
            ],
            "planned": self.planned,
            "gpu": self.gpu,
            "cpu_percent": self._cpu_percent(),
            "links": self.links,
        }

    # --- programs

    def _read_units(self, view: HostView, now: float) -> None:
        """Read units, services on demand and links; the rest if it is old, or a unit has changed or changes."""
        # The code that reads logs is only loaded for readers.
        from .._proof import service_status

        units = view.noted([], view.units)
        names = [service["name"] for service in self.planned]
        before, self.states = self.states, [(unit["name"], unit["active_state"]) for unit in units]
        is_moving = any(state in ("activating", "deactivating") for _name, state in self.states)
        if is_moving or before != self.states or now - self.facts_at >= FULL_SECONDS:
            facts = host_facts.collect(view, {name: host_facts.FACTS[name] for name in FACTS})
            run_dir, starts = str(self.run_dir), self.state_dir / "starts"
            self.facts = {
                **_only(facts, ("resident", "guard", "quality")),
                "starting": service_status.starting(view.run, units, names, run_dir, starts),
                "causes": view.noted({}, service_status.causes, view.run, units, names),
                "unknown": dict(view.unknown),
            }
            self.recorded = {name: self._recorded(name) for name in names}
            self.watched = _read_watched(self.state_dir)
            self.facts_at = now
        on_demand = state_file.read(self.run_dir / "on_demand/state.json")
        shown_units = {service["unit"] for service in self.planned} | {"spark-agent.service"}
        unit_fields = ("name", "active_state", "active_seconds", "n_restarts", "status_text")
        self.facts["on_demand"] = service_status.on_demand(on_demand, names, time.time())
        self.facts["units"] = [_only(unit, unit_fields) for unit in units if unit["name"] in shown_units]
        self.links = self._links()

    def _links(self) -> list[dict[str, Any]]:
        """Return the QSFP ports that are in use or that the cluster of the host needs."""
        ports = {str(port["netdev"]): port for port in network.read_rdma(self.root)}
        rows = []
        for name in sorted({*self.rails, *(name for name, port in ports.items() if port["state"] == "ACTIVE")}):
            port = ports.get(name) or {}
            is_up = port.get("state") == "ACTIVE"
            rows.append({"name": name, "up": is_up, "gbps": port.get("rate_gbps") if is_up else None})
        return rows

    def _cpu_percent(self) -> float | None:
        """Return the load of all processors since the last look."""
        words = (machine.read_text(self.root, "proc/stat") or "").partition("\n")[0].split()[1:9]
        if len(words) < 5 or not all(word.isdigit() for word in words):
            return None
        ticks = [int(word) for word in words]
        total, idle = sum(ticks), ticks[3] + ticks[4]  # idle, iowait
        before, self.cpu = self.cpu, (total, idle)
        spent = total - before[0]
        if not before[0] or spent <= 0:
            return None
        return round(min(max(100 * (1 - (idle - before[1]) / spent), 0.0), 100.0), 1)

    # --- services

    def _engines(self, now: float) -> dict[str, dict[str, Any]]:
        """Return the figures of engines by name; C(why) is the reason for missing ones."""
        urls = {service["name"]: service["url"] for service in self.planned if service.get("url")}
        jobs: dict[str, Callable[[], Any]] = {name: partial(_metrics, url) for name, url in urls.items()}
        texts = run_jobs(jobs, METRICS_SECONDS + 2, lambda why: (None, why))
        figures = {}
        for name in urls:
            text, why = texts.get(name, (None, "its /metrics does not end in time"))
            counts = metrics.progress(text or "")["generation_tokens"]
            figures[name] = {
                **{figure: _bounded(value) for figure, value in metrics.parse(text or "").items()},
                "tokens_per_second": self._rate(name, now, counts),
                "why": printable(why)[:MOST_TEXT],
            }
        return figures

    def _rate(self, name: str, now: float, count: float | None) -> float | None:
        """Return the tokens per second since the last look; None if unknown, as after a restart."""
        before = self.tokens.pop(name, None)
        if count is None:
            return None
        self.tokens[name] = (now, count)
        if before is None or now - before[0] < 0.5 or count < before[1]:
            return None
        rate: float | None = _bounded(round((count - before[1]) / (now - before[0]), 2))
        return rate

    def _answer(self, service: Mapping[str, Any], unit: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return readiness, figures and last proof of a service. A unit is active once its model has answered; the watchdog finds wedged ones."""
        name, state = service["name"], unit.get("active_state")
        watched = self.watched.get(name) or {}
        is_wedged = watched.get("state") == wedge.WEDGED
        error = f"the watchdog finds it wedged: {watched.get('text') or ''}" if is_wedged else ""
        if state not in (None, "active", "activating", "reloading"):
            error = f"its unit is {state}"
        silent = engine.get("why", "") if state == "active" else ""
        return {
            "name": name,
            "ready": state == "active" and not is_wedged,
            "stage": "watchdog" if is_wedged else "unit",
            "error": error[:MOST_TEXT],
            "silent": silent,
            **{key: engine.get(key) for key in (*metrics.GAUGES, "tokens_per_second")},
            **self.recorded.get(name, {}),
        }

    def _recorded(self, name: str) -> dict[str, Any]:
        """Return what the receipt of a service says, with date and decode rate of the last proof."""
        from .._proof import receipts, service_status

        path = self.state_dir / "receipts" / f"{name}.json"
        recorded: dict[str, Any] = {**service_status.recorded(path.parent, name), "proved": None, "proved_rate": None}
        with contextlib.suppress(OSError, ValueError, OverflowError):
            rate = receipts.load(path.read_text(encoding="utf-8")).measured.get("decode_tokens_per_second")
            at = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
            recorded.update(proved=at.strftime("%Y-%m-%d %H:%M UTC"), proved_rate=rate)
        return recorded


def _bounded(value: Any) -> Any:
    """Return a figure of an engine, None for an impossible one: it must not hide the others."""
    return value if value is not None and 0 <= value <= MOST_BYTES else None


def _read_watched(state_dir: Path) -> dict[str, Any]:
    """Return what the watchdog knows of services, empty without a recent state."""
    state = state_file.read(state_dir / "watchdog/state.json") or {}
    clock, rows = state.get("clock"), state.get("services")
    is_fresh = isinstance(clock, (int, float)) and 0 <= time.monotonic() - clock < STALE_SECONDS
    rows = rows if is_fresh and isinstance(rows, dict) else {}
    return {name: row for name, row in rows.items() if isinstance(row, dict)}


def _only(mapping: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: mapping.get(key) for key in keys}


def _metrics(url: str) -> tuple[str | None, str]:
    """Return the text of C(/metrics), which needs no key, or None and the reason."""
    try:
        reply = http_client.fetch(f"{url}/metrics", timeout=METRICS_SECONDS, most_bytes=MOST_METRICS)
    except (OSError, ValueError) as error:
        return None, f"its /metrics does not answer: {' '.join(str(error).split())}"
    if reply.status != 200:
        return None, f"its /metrics answers HTTP {reply.status}"
    return reply.body.decode("utf-8", "replace"), ""
