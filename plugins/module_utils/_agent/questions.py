# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The quality loop: asks model servers a question now and then, and has the gateway of this host drain one whose answers degenerate.

C(_runtime/quality.py) decides. It asks servers that the watchdog finds idle or working, at the address of the engine itself, so it starts no
engine on demand; and none while memory is short or another engine starts. It restarts nothing.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from .._runtime import command, engine_client, metrics, quality, state_file, wedge
from .._runtime.parallel import run_jobs
from .._runtime.systemd import journal
from . import evidence, services
from .services import Service
from .watch import Watchdog

STATE = "quality.json"
GATEWAY = Path("/usr/local/libexec/dgxspark/spark_gateway.py")
DRAIN_SECONDS, CALL_SECONDS = 5, 30.0
"""Time that the gateway has to stop new requests; running requests go on."""
SLOWEST_PREFILL, SLOWEST_DECODE = 100.0, 3.0
"""Tokens per second below which a question is given up."""
EVIDENCE = ("metrics.txt", "nvidia_smi.txt", "meminfo.txt")
"""Files of evidence without texts of users, which logs may have."""
SETTINGS = {field.name for field in fields(quality.Settings)}
OPTIONAL = ("chat_template_kwargs", "logprobs")
"""Parts of a request that some servers refuse: Mistral's tokenizers the first, a server without log-probabilities the second."""

say = journal("quality")


class QualityLoop:
    """Asks the servers of the host, one question at a time."""

    def __init__(self, watchdog: Watchdog, gateway: Path = GATEWAY) -> None:
        """Read the state of an earlier process. gateway: program that drains backends of a gateway on this host."""
        self.watchdog, self.gateway = watchdog, gateway
        self.beat: Callable[[], None] = lambda: None
        self.file = watchdog.state_dir / STATE
        saved = (state_file.read(self.file) or {}).get("services")
        self.saved: dict[str, Any] = dict(saved) if isinstance(saved, dict) else {}
        self.trackers: dict[str, quality.Tracker] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        self.plain: set[str] = set()
        self.unasked: dict[str, str] = {}
        self.dice = random.SystemRandom()
        self.written: dict[str, Any] = {}

    def settings(self, name: str) -> dict[str, Any]:
        """Return the merged settings of a service, with C(tools), C(temperature), C(length), C(backend) and C(cures) of the plan."""
        content = self.watchdog.content
        return {
            **content,
            **((content.get("engines") or {}).get(name) or {}),
            **((content.get("services") or {}).get(name) or {}),
        }

    def tracker(self, service: Service) -> quality.Tracker:
        """Return the tracker of a service; an earlier state counts for the same model only."""
        if service.name not in self.trackers or self.notes[service.name]["model"] != service.model:
            note = self.saved.pop(service.name, None) or self.notes.get(service.name) or {}
            drained = note.get("drained") if isinstance(note, dict) else None
            note = note if isinstance(note, dict) and note.get("model") == service.model else {}
            merged = self.settings(service.name)
            own = quality.Settings(**{key: value for key, value in merged.items() if key in SETTINGS})
            self.trackers[service.name] = quality.Tracker(own, time.monotonic(), note or None)
            kept = {"drained": drained, **{key: note.get(key) for key in ("evidence", "since")}}
            self.notes[service.name] = {"model": service.model, **{key: value for key, value in kept.items() if value}}
        return self.trackers[service.name]

    def round(self) -> None:
        """Ask at most one question, of the server that waits longest for one."""
        watched = dict(self.watchdog.services)
        targets = {name: service for name, service in watched.items() if self.settings(name).get("quality")}
        for service in targets.values():
            self.tracker(service)
        self._forget(set(targets))
        # Memory has to suffice by the guard, and no engine may start.
        guard = state_file.read(self.watchdog.state_dir.parent / services.GUARD / "state.json") or {}
        if guard.get("level") in (None, "calm") and not self.watchdog.host_starts:
            now = time.monotonic()
            ready = [service for service in targets.values() if self._is_due(service, now)]
            for service in sorted(ready, key=lambda service: self.trackers[service.name].due):
                with services.logged(say, f"{service.name} cannot be asked"):
                    if self._look(service):
                        break
        self.save()

    def _forget(self, targets: set[str]) -> None:
        """Admit backends of services that are not asked any more, and forget their state. targets: names of the others."""
        for name in [*(set(self.trackers) - targets), *(set(self.saved) - targets if self.watchdog.services else ())]:
            note = self.notes.pop(name, None) or self.saved.pop(name, None) or {}
            self.trackers.pop(name, None)
            if isinstance(note, dict) and note.get("drained") and not self._admits(str(note["drained"])):
                # The next round tries again.
                self.saved[name] = {"state": quality.UNKNOWN, "counts": {}, "drained": note["drained"]}

    def _is_due(self, service: Service, now: float) -> bool:
        """Return whether a server serves by the watchdog, and its next question is due."""
        watched, tracker = self.watchdog.trackers.get(service.name), self.trackers[service.name]
        if watched is None or watched.state not in (wedge.IDLE, wedge.WORKING):
            return False
        if watched.invocation and watched.invocation != tracker.invocation:
            tracker.starts(watched.invocation, now)
            self.unasked.pop(service.name, None)
        return now >= tracker.due and service.name not in self.unasked

    def _look(self, service: Service) -> bool:
        """Ask a server a question if its load allows that; returns whether it was asked."""
        tracker, settings = self.trackers[service.name], self.settings(service.name)
        text, _error = evidence.ask_metrics(service)
        figures = metrics.progress(text) if text is not None else {}
        kinds = [kind for kind in quality.QUESTIONS if kind != quality.TOOL_CALL or settings.get("tools")]
        now = time.monotonic()
        kind = tracker.next_question(now, figures.get("requests_running"), figures.get("requests_waiting"), kinds)
        if not kind:
            return False
        tokens, length = tracker.settings.quality_tokens, settings.get("length")
        tokens = min(tokens, length // 2) if isinstance(length, int) else tokens
        seed = self.dice.getrandbits(48)
        seconds = 30 + tokens / SLOWEST_PREFILL + quality.ANSWER_TOKENS[kind] / SLOWEST_DECODE
        jobs = {kind: partial(self.ask, service, kind, seed, tokens, seconds)}
        done = run_jobs(jobs, 3 * seconds + 5, self._failed, self.beat)
        verdict, text = done.get(kind) or self._failed("it did not end in time")
        took = time.monotonic() - now
        event = tracker.answered(kind, verdict, took, time.monotonic())
        note = {"question": kind, "seed": seed, "outcome": verdict.outcome, "why": verdict.why}
        note = {**note, "seconds": round(took, 1), "figures": dict(verdict.figures)}
        kept = self.notes[service.name]
        kept["last"] = {**note, "at": round(time.time())}
        if verdict.outcome in (quality.DEGENERATE, quality.WRONG):
            answers = [*kept.get("answers", []), {**note, "answer": text}]
            kept["answers"] = answers[-tracker.settings.quality_looks :]
        self._act(service, event)
        return True

    @staticmethod
    def _failed(error: str) -> tuple[quality.Verdict, str]:
        return quality.Verdict(quality.NO_ANSWER, error), ""

    def ask(self, service: Service, kind: str, seed: int, tokens: int, seconds: float) -> tuple[quality.Verdict, str]:
        """Ask a server one question; returns the verdict, and begin and end of the answer."""
        question, expected = quality.make_question(kind, seed, tokens)
        temperature = self.settings(service.name).get("temperature")
        body = {
            "model": service.model,
            **question,
            **({} if temperature is None else {"temperature": temperature}),
            "logprobs": True,
            # Templates of Qwen and Gemma know the first switch, DeepSeek's the second; a thought would cost tokens.
            "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        }
        try:
            client = service.client()
            answer = quality.read_answer(self._request(service.name, client, body, seconds))
        except engine_client.Problem as problem:
            if "not json compliant" in problem.message.lower():
                # vLLM writes NaN log-probabilities into JSON, which its web framework refuses.
                verdict = quality.Verdict(quality.DEGENERATE, "its log-probabilities are no numbers (NaN)")
                return verdict, problem.message
            if engine_client.path_unsupported(problem):
                self.unasked[service.name] = f"it has no chat: {problem.message}"
            return self._failed(problem.message)
        text = client.redact(answer.text)
        text = text if len(text) < 4000 else f"{text[:2000]} ... {text[-2000:]}"
        return quality.judge(kind, answer, expected, temperature), text

    def _request(self, name: str, client: engine_client.Client, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a question, a second time without its optional parts if the server refuses them."""
        bare = {key: value for key, value in body.items() if key not in OPTIONAL}
        path = "/v1/chat/completions"
        try:
            return client.request_json("POST", path, bare if name in self.plain else body, timeout=seconds)
        except engine_client.Problem as problem:
            if problem.status != 400 or name in self.plain:
                raise
        answer = client.request_json("POST", path, bare, timeout=seconds)
        self.plain.add(name)
        return answer

    def _act(self, service: Service, event: str) -> None:
        """Keep evidence, drain or admit. event: of C(answered)."""
        tracker, note = self.trackers[service.name], self.notes[service.name]
        if event == quality.DEGENERATE:
            note["since"] = round(time.time())
            note["evidence"] = self._collect(service)
            say(f"{service.unit} degenerates: {tracker.text}. It is not restarted. Evidence: {note['evidence']}", 3)
        if tracker.state == quality.DEGENERATE:
            self._drain(service)
        elif note.get("drained") and self._admits(str(note["drained"])):
            note.pop("drained")
            say(f"the gateway gives {service.unit} requests again", 4)
        if event == quality.RECOVERED:
            say(f"{service.unit} answers well again", 4)
            note.pop("answers", None)
            note["since"] = round(time.time())

    def _collect(self, service: Service) -> str:
        """Write the evidence; returns its folder, or a sentence."""
        settings = self.settings(service.name)
        why = {
            "service": service.name,
            "unit": service.unit,
            "reason": self.trackers[service.name].text,
            "answers": self.notes[service.name].get("answers", []),
            "known_failures": settings.get("cures") or [],
        }
        watched = self.watchdog
        try:
            folder = evidence.collect(service, watched.etc, watched.state_dir, why, watched.keep, self.beat, EVIDENCE)
            return str(folder)
        except OSError as error:
            return f"it cannot be written: {error}"

    def _drain(self, service: Service) -> None:
        """Have the gateway of this host drain a degenerate server, unless it is the last backend of a name."""
        backend, note = self.settings(service.name).get("backend"), self.notes[service.name]
        if not backend or self._is_listed(backend) or not self.trackers[service.name].settings.quality_drain:
            return
        answer = self._call_gateway("drain", str(backend), "--spare-last", "--timeout", str(DRAIN_SECONDS))
        why = answer.err.strip() or answer.why
        # It is listed although requests still run, or a process has not noticed.
        if answer.rc == 0 or self._is_listed(backend):
            note["drained"] = backend
            say(f"the gateway gives {service.unit} no new requests", 4)
        elif note.get("undrained") != why:
            note["undrained"] = why
            say(f"{service.unit} is not drained: {why}", 4)

    def _admits(self, backend: str) -> bool:
        """Have the gateway admit a backend unless a person holds it; returns whether nothing is left to do."""
        return self._is_listed(backend, "held") or (
            self._call_gateway("admit", backend).rc == 0 or not self._is_listed(backend)
        )

    def _is_listed(self, backend: str, key: str = "drained") -> bool:
        """Return whether the gateway of this host has drained a backend. key: C(held) for those that only a person admits."""
        lists = state_file.read(self.watchdog.run_dir / "gateway" / "drained.json") or {}
        return backend in (lists.get(key) or ())

    def _call_gateway(self, *words: str) -> command.Answer:
        answer = command.run(["/usr/bin/python3", str(self.gateway), *words], DRAIN_SECONDS + CALL_SECONDS)
        self.beat()
        return answer

    def status(self) -> str:
        """Return the line that C(systemctl status) shows: doubtful and degenerate servers."""
        bad = (quality.DOUBTFUL, quality.DEGENERATE)
        return ", ".join(
            f"{name} {tracker.state}" for name, tracker in sorted(self.trackers.items()) if tracker.state in bad
        )

    def save(self) -> None:
        """Write the state file if it changed: for metrics, for people, and for the next process."""
        states = {
            name: {
                **self.notes[name],
                **tracker.facts(),
                "unasked": self.unasked.get(name, ""),
                "cures": self.settings(name).get("cures") or [],
            }
            for name, tracker in self.trackers.items()
        }
        content = {"version": 1, "services": {**self.saved, **states}}
        if content == self.written or (not states and not self.file.exists()):
            return
        try:
            state_file.write(self.file, content, 0o600)
            self.written = copy.deepcopy(content)
        except OSError as error:
            say(f"warning: {self.file} cannot be written: {error}", 4)
