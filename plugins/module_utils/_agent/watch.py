# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdog loop: looks at the model servers of the host, and restarts a wedged one as C(_runtime/wedge.py) decides.

The services are read at each look, so a service that is deployed later is watched too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from .._runtime import engine_client, metrics, state_file, wedge
from .._runtime.parallel import run_jobs
from .._runtime.systemd import journal
from . import evidence, services
from .evidence import COMMAND_SECONDS, METRICS_SECONDS, SHORT_SECONDS, ask_metrics, run
from .services import Service

STOP_SECONDS = 10.0
"""A wedged engine has no request to finish, so it does not get the whole stop timeout of its unit."""
START_SECONDS = 600.0
"""A start record without an end counts for so long."""
POWER = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
KEEP = 5
SETTINGS = {field.name for field in fields(wedge.Settings)}

say = journal("watchdog")


def watched_services(etc: Path) -> dict[str, Service]:
    """Return the services of this host that answer requests; the first rank of a cluster answers for the ranks behind it."""
    servers = services.read_services(etc / "services")
    return {name: service for name, service in servers.items() if not service.rank and service.url and service.model}


def may_be_busy(figures: Mapping[str, float | None] | None) -> bool:
    """Return whether a server runs requests; true without figures."""
    return figures is None or (figures["requests_running"] or 0) > 0


def gpu_power() -> float | None:
    """Return the watts of the GPU that draws most; None if nvidia-smi does not report it."""
    code, text = run(POWER, SHORT_SECONDS)
    watts = []
    for line in text.splitlines() if code == 0 else []:
        with contextlib.suppress(ValueError):
            watts.append(float(line.strip()))
    return max(watts, default=None)


def may_run(container: str) -> bool:
    """Return whether a container runs, also if Docker does not say so: a stopped one is not waited for or killed."""
    argv = ["docker", "container", "inspect", "--format", "{{.State.Running}}", "--", container]
    code, text = run(argv, SHORT_SECONDS)
    if code != 0:
        return code != 127 and "no such" not in text.lower()
    return text.strip() == "true"


def probe(service: Service, seconds: float) -> tuple[str, str]:
    """Ask for one token; returns the outcome and a line about it."""
    try:
        answer = engine_client.one_token(service.client(), service.model, seconds)
    except engine_client.Problem as problem:
        is_refused = problem.kind == "http" and 400 <= problem.status < 500
        lacks_key = problem.final and problem.kind == "answer"
        return wedge.REFUSED if is_refused or lacks_key else wedge.FAILED, problem.message
    return wedge.OK, f"one token in {answer['seconds']:.1f} s"


def boot_id() -> str:
    """Return the id of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def saved_clocks(state: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the monotonic clock and the wall clock of the moment when a state was written; None if it lacks them."""
    clock, wall = state.get("clock"), state.get("at")
    return (float(clock), float(wall)) if isinstance(clock, (int, float)) and isinstance(wall, (int, float)) else None


class Watchdog:
    """Looks at the services, and restarts wedged ones."""

    def __init__(self, etc: Path, run_dir: Path, state_dir: Path, is_dry: bool = False) -> None:
        """Read the settings and the state of an earlier process. is_dry: restart and write nothing."""
        self.etc, self.run_dir, self.state_dir, self.is_dry = etc, run_dir, state_dir, is_dry
        self.beat: Callable[[], None] = lambda: None
        self.content = services.load_settings(etc, services.WATCHDOG)
        self.keep = int(self.content.get("keep") or KEEP)
        self.file = state_dir / "state.json"
        before = state_file.read(self.file) or {}
        self.before = before.get("services") or {}
        self.boot = boot_id()
        self.clocks = saved_clocks(before) if before.get("boot") == self.boot else None
        self.services: dict[str, Service] = {}
        self.trackers: dict[str, wedge.Tracker] = {}
        self.last_action: dict[str, dict[str, Any]] = {}
        self.logged_states: dict[str, str] = {}
        self.host_starts = False
        self.interval = self.settings("").interval_seconds

    def settings(self, name: str) -> wedge.Settings:
        """Return the settings of a service, or of the host for an empty name."""
        merged = {**self.content, **((self.content.get("services") or {}).get(name) or {})}
        return wedge.Settings(**{key: value for key, value in merged.items() if key in SETTINGS})

    def tracker(self, name: str) -> wedge.Tracker:
        """Return the tracker of a service."""
        if name not in self.trackers:
            saved = self.before.get(name) or {}
            restarts = [float(moment) for moment in saved.get("restarts") or [] if isinstance(moment, (int, float))]
            self.trackers[name] = wedge.Tracker(self.settings(name), restarts, self.clocks)
            if isinstance(saved.get("last_action"), dict):
                self.last_action[name] = saved["last_action"]
        return self.trackers[name]

    def round(self) -> None:
        """Look at each service once, probe suspects, and restart wedged ones."""
        ignored = self.content.get("leave_out") or []
        self.services = {name: item for name, item in watched_services(self.etc).items() if name not in ignored}
        for name in set(self.trackers) - set(self.services):
            del self.trackers[name]
        observations = self.observe()
        suspects = set()
        for name, observation in observations.items():
            with services.logged(say, f"{name} cannot be watched"):
                if self.tracker(name).look(observation) == wedge.PROBE:
                    suspects.add(name)
        seconds = {name: self.settings(name).probe_seconds for name in suspects}
        probes = run_jobs(
            {name: partial(probe, self.services[name], seconds[name]) for name in suspects},
            max(seconds.values(), default=0) * 2 + 5,  # a model without chat is asked twice
            # An answer of any kind means that the server is not wedged.
            lambda error: (wedge.REFUSED, f"the probe failed: {error}"),
            self.beat,
        )
        for name in sorted(suspects):
            with services.logged(say, f"{name} cannot be watched"):
                self._judge(self.services[name], observations[name], probes.get(name))
        self.log_changes()
        self.save()

    def _judge(self, service: Service, observation: wedge.Observation, result: tuple[str, str] | None) -> None:
        """Act on the probe of a suspect. result: outcome and text, None if the probe did not end in time."""
        tracker = self.tracker(service.name)
        outcome, text = result or (wedge.FAILED, "the probe did not end in time")
        step = tracker.probed(outcome, text, time.monotonic(), time.time())
        if step == wedge.ACT:
            self.act(service, observation)
        elif step == wedge.REPORT:
            say(f"{service.unit} is wedged: {tracker.text}", 3)

    def observe(self) -> dict[str, wedge.Observation]:
        """Return an observation of each service."""
        owner = str((state_file.read(self.run_dir / "start.json") or {}).get("unit") or "")
        units = {service.unit for service in self.services.values()} | {owner} - {""}
        states = services.unit_states(sorted(units), COMMAND_SECONDS) or {}
        answers = self._ask_active(states)
        figures = {name: None if text is None else metrics.progress(text) for name, (text, _error) in answers.items()}
        power = gpu_power() if any(map(may_be_busy, figures.values())) else None
        moved = {name for name, values in figures.items() if self.has_moved(name, values)}
        self.host_starts = states.get(owner, {}).get("ActiveState") == "activating"
        observations = {}
        for name, service in self.services.items():
            with services.logged(say, f"{name} cannot be watched"):
                is_suspect = name in answers and self.tracker(name).suspects()
                observations[name] = wedge.Observation(
                    **self._unit_facts(service, states.get(service.unit, {}), owner),
                    host_starting=self.host_starts,
                    figures=figures.get(name),
                    error=answers.get(name, (None, ""))[1],
                    power=power,
                    others_moved=bool(moved - {name}),
                    compiling=is_suspect and evidence.has_compiler(service.containers),
                )
        return observations

    def _ask_active(self, states: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str | None, str]]:
        """Return the answers of C(ask_metrics) for each active service. states: properties of units."""
        active = [
            service for service in self.services.values() if states.get(service.unit, {}).get("ActiveState") == "active"
        ]
        jobs = {service.name: partial(ask_metrics, service) for service in active}
        answers = run_jobs(jobs, METRICS_SECONDS + 5, lambda error: (None, error), self.beat)
        return {name: answers.get(name, (None, "its /metrics did not end in time")) for name in jobs}

    def _unit_facts(self, service: Service, properties: Mapping[str, str], owner: str) -> dict[str, Any]:
        """Return the fields of an observation about the unit of a service. owner: unit with the start lock."""
        now, invocation = time.monotonic(), properties.get("InvocationID", "")
        entered = properties.get("ActiveEnterTimestampMonotonic", "")
        seconds = now - int(entered) / 1e6 if entered.isdigit() and entered != "0" else 0.0
        return {
            "clock": now,
            "state": properties.get("ActiveState", ""),
            "invocation": invocation,
            "active_seconds": seconds,
            "starting": seconds < START_SECONDS and self._is_starting(service.unit, invocation, owner),
        }

    def has_moved(self, name: str, figures: Mapping[str, float | None] | None) -> bool:
        """Return whether a counter of a service differs from the last look."""
        last = self.tracker(name).last
        return last is not None and figures is not None and any(figures.get(key) != last[key] for key in last)

    def _is_starting(self, unit: str, invocation: str, owner: str) -> bool:
        """Return whether the start of a unit has not ended, by the records of the unit helper."""
        if owner == unit:
            return True
        record = state_file.read(self.run_dir / "starts" / f"{unit}.json")
        return record is not None and "ready" not in record and record.get("invocation") == invocation

    def act(self, service: Service, observation: wedge.Observation) -> None:
        """Collect evidence, look a last time, restart."""
        tracker = self.tracker(service.name)
        reason = tracker.text
        if self.is_dry:
            say(f"{service.unit} is wedged: {reason}. It would be restarted")
            return
        say(f"{service.unit} is wedged: {reason}. Collecting evidence, then it is restarted", 4)
        folder = self._collect(service, observation, reason)
        self.beat()
        if not self._is_still_wedged(service, observation, folder):
            return
        wall = time.time()
        tracker.acted(time.monotonic(), wall)
        self.last_action[service.name] = {"at": wall, "what": "restart", "reason": reason, "evidence": folder}
        self.save()  # before the restart, so that it counts even if this process ends
        ids = services.container_ids(service.containers, SHORT_SECONDS) or {}
        # try-restart, since `restart` would start a unit that somebody has just stopped; fail, to replace no other job.
        argv = ["systemctl", "--no-block", "--job-mode=fail", "try-restart", "--", service.unit]
        code, text = run(argv, 3 * COMMAND_SECONDS)
        if code == 0:
            say(f"{service.unit} is restarted (number {len(tracker.restarts)} within 24 hours). Evidence: {folder}", 3)
            self.kill_left_over(ids)
        else:
            self.last_action[service.name]["what"] = "restart failed"
            say(f"{service.unit} cannot be restarted: {text.strip() or f'exit code {code}'}. Evidence: {folder}", 3)

    def _collect(self, service: Service, observation: wedge.Observation, reason: str) -> str:
        """Collect evidence; returns its folder, or a sentence."""
        why = {
            "service": service.name,
            "unit": service.unit,
            "reason": reason,
            "look": vars(observation),
            "counters": self.tracker(service.name).last or {},
        }
        try:
            return str(evidence.collect(service, self.etc, self.state_dir, why, self.keep, self.beat))
        except OSError as error:  # a wedged engine is restarted all the same
            say(f"{service.unit}: warning: the evidence cannot be written: {error}", 4)
            return "none, see the line before"

    def _is_still_wedged(self, service: Service, observation: wedge.Observation, folder: str) -> bool:
        """Return whether the unit was not restarted since its observation, and makes no tokens."""
        now = (services.unit_states([service.unit], COMMAND_SECONDS) or {}).get(service.unit, {})
        if now.get("ActiveState") != "active" or now.get("InvocationID") != observation.invocation:
            say(f"{service.unit} is left alone: meanwhile it is {now.get('ActiveState') or 'unknown'}")
            return False
        text, _error = ask_metrics(service)
        if text is not None and self.has_moved(service.name, metrics.progress(text)):
            say(f"{service.unit} is left alone: it makes tokens again. Evidence is in {folder}", 4)
            return False
        return True

    def kill_left_over(self, ids: Mapping[str, str]) -> None:
        """Kill containers that do not end by themselves. ids: their names by id, so that no container of the next start is meant."""
        deadline = time.monotonic() + STOP_SECONDS
        running = dict(ids)
        while running and time.monotonic() < deadline:
            self.beat()
            time.sleep(1.0)
            running = {key: name for key, name in running.items() if may_run(key)}
        for key, name in running.items():
            say(f"{name} has not ended within {STOP_SECONDS:.0f} s of being told to, and is killed", 4)
            run(["docker", "kill", "--", key], SHORT_SECONDS)

    def log_changes(self) -> None:
        """Log services that became suspect or were cleared."""
        for name, service in self.services.items():
            tracker = self.tracker(name)
            state, before = tracker.state, self.logged_states.get(name)
            if state != before and (state in (wedge.SUSPECT, wedge.UNJUDGED) or before == wedge.SUSPECT):
                say(f"{service.unit}: {state}: {tracker.text}", 4 if state != wedge.WORKING else 6)
            self.logged_states[name] = state

    def status(self) -> str:
        """Return the line that C(systemctl status) shows."""
        states = [f"{name} {state}" for name, state in sorted(self.logged_states.items()) if name in self.services]
        return ", ".join(states) or "there is no service to watch"

    def save(self) -> None:
        """Write the state file: for metrics, for people, and for the next process."""
        if self.is_dry:
            return
        wall, clock = time.time(), time.monotonic()
        states = {}
        for name, service in self.services.items():
            tracker = self.tracker(name)
            states[name] = {
                "unit": service.unit,
                **tracker.facts(),
                "since": round(wall - max(clock - tracker.since, 0)) if tracker.since else None,
                "restarts_24h": len(tracker.recent(clock, wall)),
                "max_restarts": tracker.settings.max_restarts,
                "last_action": self.last_action.get(name),
            }
        clocks = {"at": round(wall, 1), "clock": round(clock, 1), "boot": self.boot}
        try:
            state_file.write(self.file, {"version": 1, **clocks, "interval": self.interval, "services": states})
        except OSError as error:
            say(f"warning: {self.file} cannot be written: {error}", 4)
