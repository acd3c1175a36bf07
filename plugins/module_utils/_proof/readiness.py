# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a server really answers, seen together with the unit and the container behind it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .._host import docker, units
from .._runtime import endpoint, start_stages
from .._runtime.command import NoAnswer, Run, noted
from . import explain

LOOK_SECONDS = 10.0
"""That one look at the unit or the container may take; there is another one after the next try."""
# vLLM's own reason stands 60 to 100 lines above the end of its log with one process, and more with each further one.
READ_LINES = 2000
STATE = ("active_state", "sub_state", "result", "n_restarts", "active_since", "status_text")


@dataclass(frozen=True)
class Question:
    """What a server, or without C(url) a unit, is asked: the options of M(dgxspark.vllm.endpoint_ready), where they are documented."""

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
        own: dict[str, Any] = {each.name: params.get(each.name) for each in fields(cls)}
        return cls(**{**own, "requests": requests_of(params["checks"], timeout=params["request_timeout"], **more)})


def requests_of(checks: Mapping[str, Any] | None, **more: Any) -> endpoint.Requests:
    """Return what a server is asked.

    :param checks: further stages, as the option C(checks) of M(dgxspark.vllm.endpoint_ready) has them
    :param more: what else differs in C(endpoint.Requests)
    :returns: the requests
    """
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
    """How far a start is, for who asks again: the restarts before, and by its log, None where that is not known, the stage and its percentage."""

    restarts_before: int | None
    log_stage: str | None
    log_percent: int | None


@dataclass(frozen=True)
class Answer:
    """What came of a question; C(plain) is the result of M(dgxspark.vllm.endpoint_ready).

    ready: None for what was not contacted. figures: what a server said of itself and how fast it was, empty for a unit. log: the last lines of
    what is not ready, with C(log_stage) and C(log_error), None where it was not read. starting: of a start that is still going on.
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
    def read(cls, found: dict[str, Any]) -> Answer:
        """Return what C(endpoint.wait_ready) or C(units.wait_active) found."""
        own = {key: found.pop(key) for key in ("ready", "stage", "elapsed_seconds", "error", "fix")}
        return cls(**own, figures=found)

    def plain(self) -> dict[str, Any]:
        """Return it as the module does, without what was not looked at."""
        if self.ready is None:
            return {"ready": None, "stage": self.stage, "msg": self.error}
        if self.starting:
            return {"ready": False, "waiting": True, "stage": self.stage, **asdict(self.starting)}
        found: dict[str, Any] = {key: getattr(self, key) for key in ("ready", "stage", "elapsed_seconds")}
        found.update(**self.figures, error=self.error, fix=self.fix)
        if self.unit_state is not None:
            found["unit_state"] = self.unit_state
        if self.log is not None:
            found.update(log=self.log, log_stage=self.log_stage, log_error=self.log_error)
        return found


class _Behind:
    """The unit and the container behind a server, as systemd and Docker say; either may be None.

    Silence of either is no news of the unit: C(unknown) keeps what is not known, by program.
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
        """The unit as systemd sees it now, or None when systemd does not say."""
        rc, out, err = self._ask(units.show_command([str(self.unit)]))
        if rc == 127:  # a host without systemd has no units
            out, rc = f"Id={self.unit}\nLoadState=not-found", 0
        shown = noted(self.unknown, [], units.parse_show, out) if rc == 0 else []
        if not shown:
            self.unknown.setdefault("systemctl", f"systemctl show failed: {err.strip() or f'exit code {rc}'}")
        return shown[0] if shown else None

    def _container_state(self) -> str:
        self.unknown.pop("docker", None)
        silent = {"Status": "not known"}
        state = noted(self.unknown, silent, docker.container_state, self.run, str(self.container), LOOK_SECONDS)
        return str(state.get("Status")) if state is not None else "missing"

    def why_gone(self) -> str | None:
        """Why the server will not answer any more, or None."""
        if self.unit:
            unit = self.unit_now()
            if unit is not None and self.restarts_before is None:
                self.restarts_before = unit["n_restarts"]
            if self.on_demand and (unit or {}).get("active_state") != "failed":
                return None  # the question starts it
            return units.why_dead(unit, self.unit, self.restarts_before or 0)
        state = self._container_state() if self.container else "running"
        if state in ("missing", "exited", "dead"):
            return f"the container {self.container} is not running ({state})"
        return None

    def with_state(self, answer: Answer) -> Answer:
        """Return the answer with the state of the unit, and in its fix what that waits for."""
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


def wait(run: Run, asked: Question, check: bool = False) -> tuple[Answer, str]:
    """Wait until a server answers, or its unit is active.

    :param run: as C(command.reader) makes it; systemctl and docker that are silent are asked again until the deadline
    :param asked: with C(url) or C(unit)
    :param check: do not wait for what does not run
    :returns: the answer, and why it failed, or an empty text
    """
    behind = _Behind(run, asked.unit, asked.container, asked.on_demand)
    if asked.restarts_before is not None:
        behind.restarts_before = asked.restarts_before
    if check and (behind.unit or behind.container):
        reason = behind.why_gone()
        if reason:
            return Answer(None, "health" if asked.url else "unit", error=f"not contacted: {reason}"), ""
    if asked.look_seconds and not _something_to_ask(asked, behind):
        return _how_far(run, asked, behind), ""
    if asked.url:
        answer = _wait_url(asked.url, asked, behind)
    else:
        found = units.wait_active(
            behind.unit_now,
            str(asked.unit),
            timeout=asked.timeout,
            interval=asked.interval,
            clock=time.monotonic,
            sleep=time.sleep,
            waited=asked.waited_seconds,
            # The program that starts it may have to make room first.
            grace=asked.timeout if asked.on_demand else 0.0,
        )
        answer = Answer.read(found)
    if behind.unit:
        answer = behind.with_state(answer)
    if answer.ready:
        return answer, ""
    whole = _log_without_key(run, asked, asked.log_lines)
    answer = replace(
        answer,
        log=whole[-asked.log_lines :] if whole else [],
        log_stage=start_stages.stage_of(whole) if whole else None,
        log_error=explain.error_of(whole),
    )
    return answer, failure_text(asked, answer, whole)


def _something_to_ask(asked: Question, behind: _Behind) -> bool:
    """Wait a moment for the end of a start: whether the server listens, its unit is active, or neither will ever be."""
    try:
        client = endpoint.Client(asked.url) if asked.url else None
    except endpoint.Problem:  # which the wait says
        return True
    end = time.monotonic() + asked.look_seconds
    while not behind.why_gone():
        if client:
            with contextlib.suppress(endpoint.Problem):
                client.call("GET", "/health", timeout=min(asked.requests.timeout, asked.look_seconds))
                return True
        else:
            unit = behind.unit_now()
            if unit is not None and unit["active_state"] in units.UP and not unit["queued"]:
                return True
        if time.monotonic() + asked.interval >= end:
            return False
        time.sleep(asked.interval)
    return True


def _how_far(run: Run, asked: Question, behind: _Behind) -> Answer:
    """Say how far a start is, for who asks again."""
    log = _log_without_key(run, asked, READ_LINES)
    stage, percent = (start_stages.stage_of(log), start_stages.percent_of(log)) if log else (None, None)
    return Answer(False, "health" if asked.url else "unit", starting=HowFar(behind.restarts_before, stage, percent))


def _wait_url(url: str, asked: Question, behind: _Behind) -> Answer:
    """Wait for an answer, once more for as long as the unit takes a lost rank's engine down and comes back."""

    def once(timeout: float, waited: float = 0.0) -> Answer:
        return Answer.read(
            endpoint.wait_ready(
                url,
                asked.model,
                asked.requests,
                api_key_file=asked.api_key_file,
                timeout=timeout,
                interval=asked.interval,
                alive=behind.why_gone,
                waited=waited,
            )
        )

    answer = once(asked.timeout, asked.waited_seconds)
    left = asked.timeout - answer.elapsed_seconds
    while left > asked.interval and behind.unit and exited(answer, behind.unit_now):
        before, answer = answer.elapsed_seconds, once(left)
        answer = replace(answer, elapsed_seconds=round(before + answer.elapsed_seconds, 2))
        left = asked.timeout - answer.elapsed_seconds
    return answer


def _log_without_key(run: Run, asked: Question, shown: int) -> list[str]:
    """Last lines of the log, more than what is shown: the reason stands above them, as the server's own traceback comes last."""
    if shown <= 0:
        return []
    whole = read_log(run, asked.unit, asked.container, max(shown, READ_LINES))
    try:
        key = endpoint.read_api_key(asked.api_key_file)
    except endpoint.Problem:
        key = ""
    return [line.replace(key, "********") for line in whole] if key else whole


def exited(answer: Answer, show: Callable[[], dict[str, Any] | None]) -> bool:
    """Whether an engine that failed requests did so because a rank was lost: its unit takes it down and comes back."""
    if answer.ready or answer.stage in ("health", "models"):
        return False
    unit = show()
    return unit is not None and units.comes_back(unit) and unit["active_state"] in ("activating", "deactivating")


def read_log(run: Run, unit: str | None, container: str | None, lines: int) -> list[str]:
    """Read the last lines of the unit's journal, else of the container's log.

    :param run: as C(command.reader) makes it
    :param unit: name of the unit
    :param container: name of the container
    :param lines: most lines
    :returns: the lines, or who did not answer
    """
    if lines <= 0:
        return []
    silent = []
    if unit:
        try:
            rc, out, _err = run(units.journal_command(unit, lines))
            if rc == 0 and out.strip():
                return str(out).rstrip().splitlines()[-lines:]
        except NoAnswer as nothing:
            silent.append(f"({nothing})")
    if container:
        try:
            log = docker.log(run, container, lines)
            if log is not None:
                return "".join(log).rstrip().splitlines()[-lines:]
        except NoAnswer as nothing:
            silent.append(f"({nothing})")
    return silent


def failure_text(asked: Question, answer: Answer, whole: list[str]) -> str:
    """Say in one message all that a person needs: who, stage, reason, fix, unit, log.

    :param asked: with C(url) or C(unit)
    :param answer: of a wait that failed, with what is shown of its log
    :param whole: what was read of the log, more than what is shown of it
    :returns: the message
    """
    where = asked.url or asked.unit
    who = asked.model or asked.unit or asked.url
    text = f"{who} at {where} is not ready; stage: {answer.stage}. {answer.error}."
    if answer.fix:
        text += f" Fix: {answer.fix}."
    state = answer.unit_state
    if state and state["active_state"]:
        text += (
            f" Unit {asked.unit}: {state['active_state']} ({state['sub_state']}), result {state['result']}, "
            f"{state['n_restarts']} restarts"
        )
        text += f"; it says: {state['status_text']}." if state["status_text"] else "."
    if answer.log_stage and answer.stage in ("health", "unit"):
        text += f" By its log the start had come to the stage {answer.log_stage}."
    answer_of_log = explain.explain(whole)
    if answer_of_log.is_known:
        text += f" Its log says why: {answer_of_log.cause}. Fix: {answer_of_log.fix}. Source: {answer_of_log.source}."
    if answer.log_error:
        text += "\nIts own words:\n" + "\n".join(f"  {line}" for line in answer.log_error.splitlines())
    if answer.log:
        text += "\nLast lines of its log:\n" + "\n".join(f"  {line}" for line in answer.log)
    return text
