# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a server really answers, seen together with the unit and the container behind it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .._host import docker, units
from .._runtime import endpoint, engine_client, start_stages
from .._runtime.command import Run, noted

LOOK_SECONDS = 10.0
"""That one look at the unit or the container may take; there is another one after the next try."""
# vLLM's own reason stands 60 to 100 lines above the end of its log with one process, and more with each further one.
READ_LINES = 2000
Explain = Callable[[Sequence[str]], Any]
"""C(explain.explain), given by the caller: a proof of healthy services does without its tables of failures."""
STATE = ("active_state", "sub_state", "result", "n_restarts", "active_since", "status_text")


@dataclass(frozen=True)
class Question:
    """A question to a server, or without C(url) about a unit. The options of M(dgxspark.vllm.endpoint_ready) document the fields."""

    url: str | None
    model: str | None
    api_key_file: str | None
    unit: str | None
    container: str | None
    on_demand: bool
    timeout: float  # s
    interval: float  # s
    requests: endpoint.Requests
    log_lines: int = 20
    look_seconds: float = 0.0
    waited_seconds: float = 0.0
    restarts_before: int | None = None

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> Question:
        """Return the question of the options of the module."""
        more = {key: params[key] for key in ("completion_timeout", "prompt", "max_tokens")}
        values: dict[str, Any] = {option.name: params.get(option.name) for option in fields(cls)}
        return cls(**{**values, "requests": requests_of(params["checks"], timeout=params["request_timeout"], **more)})


def requests_of(checks: Mapping[str, Any] | None, **more: Any) -> endpoint.Requests:
    """Return the requests to a server. checks: further stages, as the option C(checks) of M(dgxspark.vllm.endpoint_ready)."""
    checks = checks or {}
    return endpoint.Requests(
        tools=bool(checks.get("tools")),
        reasoning=bool(checks.get("reasoning")),
        check_tokens=checks.get("max_tokens") or endpoint.CHECK_TOKENS,
        check_temperature=checks.get("temperature") or 0.0,
        adapters=tuple(checks.get("adapters") or ()),
        **more,
    )


@dataclass(frozen=True)
class HowFar:
    """Progress of a start, for repeated questions: restarts before it, and stage and percentage by its log, None if unknown."""

    restarts_before: int | None
    log_stage: str | None
    log_percent: int | None


@dataclass(frozen=True)
class Answer:
    """The answer to a question; C(to_dict) is the result of M(dgxspark.vllm.endpoint_ready).

    ready: None if not contacted. figures: properties and speed of a server, empty for a unit. log: last lines if it is not ready, with
    C(log_stage) and C(log_error), None if unread. starting: progress of a start that continues.
    """

    ready: bool | None
    stage: str
    elapsed_seconds: float = 0.0
    error: str = ""
    fix: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    unit_state: Mapping[str, Any] | None = None
    log: list[str] | None = None
    log_stage: str | None = None
    log_error: str = ""
    starting: HowFar | None = None

    @classmethod
    def read(cls, result: dict[str, Any]) -> Answer:
        """Return what C(endpoint.wait_ready) or C(units.wait_active) found."""
        values = {key: result.pop(key) for key in ("ready", "stage", "elapsed_seconds", "error", "fix")}
        return cls(**values, figures=result)

    def to_dict(self) -> dict[str, Any]:
        """Return the result of the module, without unexamined parts."""
        if self.ready is None:
            return {"ready": None, "stage": self.stage, "msg": self.error}
        if self.starting:
            return {"ready": False, "waiting": True, "stage": self.stage, **asdict(self.starting)}
        result: dict[str, Any] = {key: getattr(self, key) for key in ("ready", "stage", "elapsed_seconds")}
        result.update(**self.figures, error=self.error, fix=self.fix)
        if self.unit_state is not None:
            result["unit_state"] = self.unit_state
        if self.log is not None:
            result.update(log=self.log, log_stage=self.log_stage, log_error=self.log_error)
        return result


class _Behind:
    """The unit and the container behind a server, by systemd and Docker; either may be None.

    A silent program does not mean a dead unit: C(unknown) records the reason by program.
    """

    def __init__(self, run: Run, unit: str | None, container: str | None, on_demand: bool = False) -> None:
        self.run, self.unit, self.container = run, unit, container
        self.on_demand = on_demand
        self.unknown: dict[str, str] = {}
        first = self.unit_now() if unit else None
        self.restarts_before: int | None = first["n_restarts"] if first else None

    def _ask(self, argv: list[str]) -> tuple[int, str, str]:
        self.unknown.pop(argv[0], None)
        answer: tuple[int, str, str] = noted(self.unknown, (124, "", ""), self.run, argv, seconds=LOOK_SECONDS)
        return answer

    def unit_now(self) -> dict[str, Any] | None:
        """Return the present state of the unit, or None if systemd does not answer."""
        rc, out, err = self._ask(units.show_command([str(self.unit)]))
        if rc == 127:  # a host without systemd has no units
            out, rc = f"Id={self.unit}\nLoadState=not-found", 0
        shown = noted(self.unknown, [], units.parse_show, out) if rc == 0 else []
        if not shown:
            self.unknown.setdefault("systemctl", f"systemctl show failed: {err.strip() or f'exit code {rc}'}")
        return shown[0] if shown else None

    def why_gone(self) -> str | None:
        """Return the reason why the server will never answer, or None."""
        if self.unit:
            unit = self.unit_now()
            if unit is not None and self.restarts_before is None:
                self.restarts_before = unit["n_restarts"]
            if self.on_demand and (unit or {}).get("active_state") != "failed":
                return None  # the question starts it
            return units.why_dead(unit, self.unit, self.restarts_before or 0)
        if self.container:
            self.unknown.pop("docker", None)
            silent = {"Status": "not known"}
            state = noted(self.unknown, silent, docker.container_state, self.run, self.container, LOOK_SECONDS)
            status = "missing" if state is None else str(state.get("Status"))
            if status in ("missing", "exited", "dead"):
                return f"the container {self.container} is not running ({status})"
        return None

    def with_state(self, answer: Answer) -> Answer:
        """Return the answer with the state of the unit; the fix points to the condition that the unit waits for."""
        last = self.unit_now() or {}
        answer = replace(answer, unit_state={key: last.get(key) for key in STATE})
        if not last and not answer.ready:
            unknown = f" ({self.unknown['systemctl']}, so the state of the unit is not known)"
            return replace(answer, error=answer.error + unknown)
        waits = last.get("active_state") == "activating" and last.get("status_text")
        if waits and answer.stage in ("health", "unit"):
            fix = f"see to what the unit waits for; on the other hosts too, systemctl status {self.unit} says it"
            return replace(answer, fix=fix)
        return answer


def wait(run: Run, question: Question, check: bool = False, explain: Explain | None = None) -> tuple[Answer, str]:
    """Wait until a server answers, or its unit is active.

    :param run: made by C(command.reader); silent calls of systemctl and docker are repeated until the deadline
    :param check: do not wait for a stopped server
    :param explain: explains the log of a server that is not ready; without it the reason is the log itself
    :returns: the answer, and the reason of a failure, or an empty text
    """
    behind = _Behind(run, question.unit, question.container, question.on_demand)
    kind = "health" if question.url else "unit"
    if question.restarts_before is not None:
        behind.restarts_before = question.restarts_before
    if check and (behind.unit or behind.container):
        reason = behind.why_gone()
        if reason:
            return Answer(None, kind, error=f"not contacted: {reason}"), ""
    if question.look_seconds and not _something_to_ask(question, behind):
        return Answer(False, kind, starting=_how_far(run, question, behind)), ""
    answer = _wait_url(question.url, question, behind) if question.url else _wait_unit(question, behind)
    if behind.unit:
        answer = behind.with_state(answer)
    return (answer, "") if answer.ready else _explained(run, question, answer, explain)


def _explained(run: Run, question: Question, answer: Answer, explain: Explain | None) -> tuple[Answer, str]:
    """Return the answer of a failed wait with the last lines of the log, and the reason."""
    log_lines = _log_without_key(run, question, question.log_lines)
    explanation = explain(log_lines) if explain else None
    stage = start_stages.stage_of(log_lines) if log_lines else None
    words = explanation.error if explanation else ""
    answer = replace(answer, log=log_lines[-question.log_lines :], log_stage=stage, log_error=words)
    return answer, failure_text(question, answer, explanation)


def _how_far(run: Run, question: Question, behind: _Behind) -> HowFar:
    """Return the progress of a start, for repeated questions."""
    unit = behind.unit_now() if behind.unit else None
    # An engine is silent for its first seconds: what is above belongs to an earlier start.
    log = _log_without_key(run, question, READ_LINES, (unit or {}).get("invocation_id") or "")
    stage, percent = (start_stages.stage_of(log), start_stages.percent_of(log)) if log else (None, None)
    return HowFar(behind.restarts_before, stage, percent)


def _wait_unit(question: Question, behind: _Behind) -> Answer:
    """Wait for the unit of a service that answers no requests."""
    status = units.wait_active(
        behind.unit_now,
        str(question.unit),
        timeout=question.timeout,
        interval=question.interval,
        clock=time.monotonic,
        sleep=time.sleep,
        waited=question.waited_seconds,
        # The program that starts it may have to stop other engines first.
        grace=question.timeout if question.on_demand else 0.0,
    )
    return Answer.read(status)


def _something_to_ask(question: Question, behind: _Behind) -> bool:
    """Wait a moment; return whether the server listens, its unit is active, or neither will ever happen."""
    try:
        client = engine_client.Client(question.url) if question.url else None
    except engine_client.Problem:  # the wait reports it
        return True
    end = time.monotonic() + question.look_seconds
    while not behind.why_gone():
        if client:
            with contextlib.suppress(engine_client.Problem):
                client.call("GET", "/health", timeout=min(question.requests.timeout, question.look_seconds))
                return True
        else:
            unit = behind.unit_now()
            if unit is not None and unit["active_state"] in units.UP and not unit["queued"]:
                return True
        if time.monotonic() + question.interval >= end:
            return False
        time.sleep(question.interval)
    return True


def _wait_url(url: str, question: Question, behind: _Behind) -> Answer:
    """Wait for an answer; wait again while the unit restarts an engine that lost a rank."""

    def once(timeout: float, waited: float = 0.0) -> Answer:
        return Answer.read(
            endpoint.wait_ready(
                url,
                question.model,
                question.requests,
                api_key_file=question.api_key_file,
                timeout=timeout,
                interval=question.interval,
                alive=behind.why_gone,
                waited=waited,
            )
        )

    answer = once(question.timeout, question.waited_seconds)
    remaining = question.timeout - answer.elapsed_seconds
    while remaining > question.interval and behind.unit and exited(answer, behind.unit_now):
        before, answer = answer.elapsed_seconds, once(remaining)
        answer = replace(answer, elapsed_seconds=round(before + answer.elapsed_seconds, 2))
        remaining = question.timeout - answer.elapsed_seconds
    return answer


def _log_without_key(run: Run, question: Question, shown: int, invocation: str = "") -> list[str]:
    """Return the last lines of the log, more than C(shown): the reason is above the server's own traceback, which comes last."""
    if shown <= 0:
        return []
    log_lines = read_log(run, question.unit, question.container, max(shown, READ_LINES), invocation)
    try:
        key = engine_client.read_api_key(question.api_key_file)
    except engine_client.Problem:
        key = ""
    return [line.replace(key, "********") for line in log_lines] if key else log_lines


def exited(answer: Answer, show: Callable[[], dict[str, Any] | None]) -> bool:
    """Tell whether an engine failed requests because it lost a rank: its unit stops it and starts again."""
    if answer.ready or answer.stage in ("health", "models"):
        return False
    unit = show()
    return unit is not None and units.comes_back(unit) and unit["active_state"] in ("activating", "deactivating")


def read_log(run: Run, unit: str | None, container: str | None, lines: int, invocation: str = "") -> list[str]:
    """Return the last lines of the unit's journal, of one start if C(invocation) names it, else of the container's log; or who was silent."""
    if lines <= 0:
        return []
    unknown: dict[str, str] = {}
    if unit:
        command_line = units.journal_command(unit, lines, invocation=invocation)
        rc, out, _err = noted(unknown, (124, "", ""), run, command_line)
        if rc == 0 and out.strip():
            return str(out).rstrip().splitlines()[-lines:]
    log = noted(unknown, None, docker.log, run, container, lines) if container else None
    return (
        [f"({reason})" for reason in unknown.values()] if log is None else "".join(log).rstrip().splitlines()[-lines:]
    )


def _unit_text(unit: str | None, state: Mapping[str, Any]) -> str:
    """Return the sentence about the unit of a server."""
    says = f"; it says: {state['status_text']}" if state["status_text"] else ""
    restarts = f"{state['n_restarts']} restarts"
    return f" Unit {unit}: {state['active_state']} ({state['sub_state']}), result {state['result']}, {restarts}{says}."


def failure_text(question: Question, answer: Answer, explanation: Any) -> str:
    """Return one message with server, stage, reason, fix, unit and log. answer: of a failed wait. explanation: of C(explain.explain)."""
    where = question.url or question.unit
    name = question.model or question.unit or question.url
    text = f"{name} at {where} is not ready; stage: {answer.stage}. {answer.error}."
    if answer.fix:
        text += f" Fix: {answer.fix}."
    state = answer.unit_state or {}
    if state.get("active_state"):
        text += _unit_text(question.unit, state)
    if answer.log_stage and answer.stage in ("health", "unit"):
        text += f" By its log the start had come to the stage {answer.log_stage}."
    if explanation and explanation.is_known:
        text += f" Its log says why: {explanation.cause}. Fix: {explanation.fix}. Source: {explanation.source}."
    if answer.log_error:
        text += "\nIts own words:\n" + "\n".join(f"  {line}" for line in answer.log_error.splitlines())
    if answer.log:
        text += "\nLast lines of its log:\n" + "\n".join(f"  {line}" for line in answer.log)
    return text
