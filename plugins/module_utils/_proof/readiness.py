# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a server really answers, seen together with the unit and the container behind it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from .._host import units
from .._runtime import endpoint, start_stages
from .._runtime.command import NoAnswer, Run, noted, says_missing
from . import engine_logs

LOOK_SECONDS = 10.0
"""That one look at the unit or the container may take; there is another one after the next try."""
# vLLM's own reason stands 60 to 100 lines above the end of its log with one process, and more with each further one.
READ_LINES = 2000
STATE = ("active_state", "sub_state", "result", "n_restarts", "active_since", "status_text")
DEFAULTS: dict[str, Any] = {
    "url": None,
    "model": None,
    "api_key_file": None,
    "timeout": 600.0,  # s
    "interval": 2.0,  # s
    "request_timeout": 10.0,  # s
    "completion_timeout": 300.0,  # s
    "unit": None,
    "container": None,
    "on_demand": False,
    "checks": {},
    "prompt": endpoint.DEFAULT_PROMPT,
    "max_tokens": 64,
    "log_lines": 20,
    "look_seconds": 0.0,  # s
    "waited_seconds": 0.0,  # s
    "restarts_before": None,
}
"""The options of M(dgxspark.vllm.endpoint_ready), where they are documented."""


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
        argv = ["docker", "container", "inspect", "--format", "{{.State.Status}}", "--", str(self.container)]
        rc, out, err = self._ask(argv)
        if rc != 0 and (rc == 127 or says_missing(err)):
            return "missing"
        return str(out).strip() if rc == 0 else "not known"

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

    def note_state(self, result: dict[str, Any]) -> None:
        """Put the state of the unit into the result of a wait, and what it waits for into the fix."""
        last = self.unit_now() or {}
        result["unit_state"] = {key: last.get(key) for key in STATE}
        if not last and not result["ready"]:
            result["error"] += f" ({self.unknown['systemctl']}, so the state of the unit is not known)"
        waits = last.get("active_state") == "activating" and last.get("status_text")
        if waits and result["stage"] in ("health", "unit"):
            result["fix"] = (
                f"see to what the unit waits for; on the other hosts too, systemctl status {self.unit} says it"
            )


def wait(run: Run, params: Mapping[str, Any], check: bool = False) -> tuple[dict[str, Any], str]:
    """Wait until a server answers, or its unit is active.

    :param run: as C(command.reader) makes it; systemctl and docker that are silent are asked again until the deadline
    :param params: as C(DEFAULTS), with C(url) or C(unit)
    :param check: do not wait for what does not run
    :returns: the result of M(dgxspark.vllm.endpoint_ready), and why it failed, or an empty text
    """
    behind = _Behind(run, params["unit"], params["container"], params["on_demand"])
    if params["restarts_before"] is not None:
        behind.restarts_before = params["restarts_before"]
    if check and (behind.unit or behind.container):
        reason = behind.why_gone()
        if reason:
            stage = "health" if params["url"] else "unit"
            return {"ready": None, "stage": stage, "msg": f"not contacted: {reason}"}, ""
    if params["look_seconds"] and not _something_to_ask(params, behind):
        return _how_far(run, params, behind), ""
    if params["url"]:
        result = _wait_url(params, behind)
    else:
        result = units.wait_active(
            behind.unit_now,
            params["unit"],
            timeout=params["timeout"],
            interval=params["interval"],
            clock=time.monotonic,
            sleep=time.sleep,
            waited=params["waited_seconds"],
            # The program that starts it may have to make room first.
            grace=params["timeout"] if params["on_demand"] else 0.0,
        )
    if behind.unit:
        behind.note_state(result)
    if result["ready"]:
        return result, ""
    whole = _log_without_key(run, params)
    result["log"] = whole[-params["log_lines"] :] if whole else []
    result["log_stage"] = start_stages.stage_of(whole) if whole else None
    result["log_error"] = engine_logs.error_of(whole)
    return result, failure_text(params, result, whole)


def _something_to_ask(params: Mapping[str, Any], behind: _Behind) -> bool:
    """Wait a moment for the end of a start: whether the server listens, its unit is active, or neither will ever be."""
    try:
        client = endpoint.Client(params["url"]) if params["url"] else None
    except endpoint.Problem:  # which the wait says
        return True
    end = time.monotonic() + params["look_seconds"]
    while not behind.why_gone():
        if client:
            with contextlib.suppress(endpoint.Problem):
                client.call("GET", "/health", timeout=min(params["request_timeout"], params["look_seconds"]))
                return True
        else:
            unit = behind.unit_now()
            if unit is not None and unit["active_state"] in units.UP and not unit["queued"]:
                return True
        if time.monotonic() + params["interval"] >= end:
            return False
        time.sleep(params["interval"])
    return True


def _how_far(run: Run, params: Mapping[str, Any], behind: _Behind) -> dict[str, Any]:
    """Say how far a start is, for who asks again."""
    log = _log_without_key(run, {**params, "log_lines": READ_LINES})
    return {
        "ready": False,
        "waiting": True,
        "stage": "health" if params["url"] else "unit",
        "restarts_before": behind.restarts_before,
        "log_stage": start_stages.stage_of(log) if log else None,
        "log_percent": start_stages.percent_of(log) if log else None,
    }


def _wait_url(params: Mapping[str, Any], behind: _Behind) -> dict[str, Any]:
    """Wait for an answer, once more for as long as the unit takes a lost rank's engine down and comes back."""
    result = wait_for_answer(params, behind.why_gone, params["timeout"], params["waited_seconds"])
    left = params["timeout"] - result["elapsed_seconds"]
    while left > params["interval"] and behind.unit and exited(result, behind.unit_now):
        before = result["elapsed_seconds"]
        result = wait_for_answer(params, behind.why_gone, left)
        result["elapsed_seconds"] = round(before + result["elapsed_seconds"], 2)
        left = params["timeout"] - result["elapsed_seconds"]
    return result


def _log_without_key(run: Run, params: Mapping[str, Any]) -> list[str]:
    """Last lines of the log, more than what is shown: the reason stands above them, as the server's own traceback comes last."""
    if params["log_lines"] <= 0:
        return []
    whole = read_log(run, params["unit"], params["container"], max(params["log_lines"], READ_LINES))
    try:
        key = endpoint.read_api_key(params["api_key_file"])
    except endpoint.Problem:
        key = ""
    return [line.replace(key, "********") for line in whole] if key else whole


def exited(result: dict[str, Any], show: Callable[[], dict[str, Any] | None]) -> bool:
    """Whether an engine that failed requests did so because a rank was lost: its unit takes it down and comes back."""
    if result["ready"] or result["stage"] in ("health", "models"):
        return False
    unit = show()
    return unit is not None and units.comes_back(unit) and unit["active_state"] in ("activating", "deactivating")


def wait_for_answer(
    params: Mapping[str, Any], alive: Callable[[], str | None], timeout: float, waited: float = 0.0
) -> dict[str, Any]:
    """Ask the server until it has passed all stages.

    :param params: as C(DEFAULTS), with C(url)
    :param alive: says why the server is gone for good, or None
    :param timeout: seconds
    :param waited: seconds of them that have passed
    :returns: as C(endpoint.wait_ready)
    """
    checks = params["checks"] or {}
    requests = endpoint.Requests(
        timeout=params["request_timeout"],
        completion_timeout=params["completion_timeout"],
        prompt=params["prompt"],
        max_tokens=params["max_tokens"],
        tools=bool(checks.get("tools")),
        reasoning=bool(checks.get("reasoning")),
        check_tokens=checks.get("max_tokens") or endpoint.CHECK_TOKENS,
        check_temperature=checks.get("temperature") or 0.0,
        adapters=tuple(checks.get("adapters") or ()),
    )
    return endpoint.wait_ready(
        params["url"],
        params["model"],
        requests,
        api_key_file=params["api_key_file"],
        timeout=timeout,
        interval=params["interval"],
        alive=alive,
        waited=waited,
    )


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
            rc, out, err = run(["docker", "logs", f"--tail={lines}", container])
            if rc == 0:
                return f"{out}{err}".rstrip().splitlines()[-lines:]
        except NoAnswer as nothing:
            silent.append(f"({nothing})")
    return silent


def failure_text(params: Mapping[str, Any], result: dict[str, Any], whole: list[str]) -> str:
    """Say in one message all that a person needs: who, stage, reason, fix, unit, log.

    :param params: as C(DEFAULTS), with C(url) or C(unit)
    :param result: of a wait that failed, with C(log), C(log_stage) and C(log_error)
    :param whole: what was read of the log, more than what is shown of it
    :returns: the message
    """
    where = params["url"] or params["unit"]
    who = params["model"] or params["unit"] or params["url"]
    text = f"{who} at {where} is not ready; stage: {result['stage']}. {result['error']}."
    if result["fix"]:
        text += f" Fix: {result['fix']}."
    state = result.get("unit_state")
    if state and state["active_state"]:
        text += (
            f" Unit {params['unit']}: {state['active_state']} ({state['sub_state']}), result {state['result']}, "
            f"{state['n_restarts']} restarts"
        )
        text += f"; it says: {state['status_text']}." if state["status_text"] else "."
    if result["log_stage"] and result["stage"] in ("health", "unit"):
        text += f" By its log the start had come to the stage {result['log_stage']}."
    cause, fix = engine_logs.known(whole)
    if cause:
        text += f" Its log says why: {cause}. Fix: {fix}."
    if result["log_error"]:
        text += "\nIts own words:\n" + "\n".join(f"  {line}" for line in result["log_error"].splitlines())
    if result["log"]:
        text += "\nLast lines of its log:\n" + "\n".join(f"  {line}" for line in result["log"])
    return text
