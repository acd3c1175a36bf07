# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a server really answers, seen together with the unit and the container behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import endpoint, engine_logs, units

Run = Callable[[list[str]], "tuple[int, str, str]"]
READ_LINES = 400
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
    "checks": {},
    "prompt": endpoint.DEFAULT_PROMPT,
    "max_tokens": 64,
    "log_lines": 20,
}
"""The options of M(dgxspark.vllm.endpoint_ready), where they are documented."""


def wait(run: Run, params: Mapping[str, Any], check: bool = False) -> tuple[dict[str, Any], str]:
    """Wait until a server answers, or its unit is active; returns the result of M(dgxspark.vllm.endpoint_ready) and why it failed.

    params: as C(DEFAULTS), with C(url) or C(unit). check: do not wait for what does not run.
    """
    unit_name, container = params["unit"], params["container"]

    def unit_now() -> dict[str, Any] | None:
        """The unit as systemd sees it now, or None when systemd cannot be asked."""
        rc, out, _err = run(units.show_command([unit_name]))
        shown = units.parse_show(out) if rc == 0 else []
        return shown[0] if shown else None

    def container_state() -> str:
        rc, out, _err = run(["docker", "container", "inspect", "--format", "{{.State.Status}}", "--", container])
        return str(out).strip() if rc == 0 else "missing"

    first = unit_now() if unit_name else None
    restarts_before = first["n_restarts"] if first else 0

    def alive() -> str | None:
        if unit_name:
            return units.why_dead(unit_now(), unit_name, restarts_before)
        state = container_state() if container else "running"
        return f"the container {container} is not running ({state})" if state in ("missing", "exited", "dead") else None

    if check and (unit_name or container):
        reason = alive()
        if reason:
            stage = "health" if params["url"] else "unit"
            return {"ready": None, "stage": stage, "msg": f"not contacted: {reason}"}, ""

    if params["url"]:
        result = wait_for_answer(params, alive, params["timeout"])
        left = params["timeout"] - result["elapsed_seconds"]
        while left > params["interval"] and unit_name and went_down(result, unit_now):
            before = result["elapsed_seconds"]
            result = wait_for_answer(params, alive, left)
            result["elapsed_seconds"] = round(before + result["elapsed_seconds"], 2)
            left = params["timeout"] - result["elapsed_seconds"]
    else:
        result = units.wait_active(
            unit_now,
            unit_name,
            timeout=params["timeout"],
            interval=params["interval"],
            clock=time.monotonic,
            sleep=time.sleep,
        )
    if unit_name:
        last = unit_now() or {}
        result["unit_state"] = {key: last.get(key) for key in STATE}
        waits = last.get("active_state") == "activating" and last.get("status_text")
        if waits and result["stage"] in ("health", "unit"):
            result["fix"] = (
                f"see to what the unit waits for; on the other hosts too, systemctl status {unit_name} says it"
            )
    if result["ready"]:
        return result, ""

    # The reason stands above the last lines: the server's own traceback follows that of the engine.
    whole = read_log(run, unit_name, container, max(params["log_lines"], READ_LINES)) if params["log_lines"] > 0 else []
    log = whole[-params["log_lines"] :] if whole else []
    try:
        key = endpoint.read_api_key(params["api_key_file"])
    except endpoint.Problem:
        key = ""
    if key:
        log = [line.replace(key, "********") for line in log]
    result["log"] = log
    return result, failure_text(params, result, log, whole)


def went_down(result: dict[str, Any], show: Callable[[], dict[str, Any] | None]) -> bool:
    """Whether an engine that failed requests did so because a rank was lost: its unit takes it down and comes back."""
    if result["ready"] or result["stage"] in ("health", "models"):
        return False
    unit = show()
    return unit is not None and units.comes_back(unit) and unit["active_state"] in ("activating", "deactivating")


def wait_for_answer(params: Mapping[str, Any], alive: Callable[[], str | None], timeout: float) -> dict[str, Any]:
    """Ask the server until it has passed all stages."""
    checks = params["checks"] or {}
    return endpoint.wait_ready(
        params["url"],
        params["model"],
        api_key_file=params["api_key_file"],
        timeout=timeout,
        interval=params["interval"],
        request_timeout=params["request_timeout"],
        completion_timeout=params["completion_timeout"],
        prompt=params["prompt"],
        max_tokens=params["max_tokens"],
        tools=bool(checks.get("tools")),
        reasoning=bool(checks.get("reasoning")),
        alive=alive,
    )


def read_log(run: Any, unit: str | None, container: str | None, lines: int) -> list[str]:
    """Last lines of the unit's journal, else of the container's log, else nothing."""
    if lines <= 0:
        return []
    if unit:
        rc, out, _err = run(units.journal_command(unit, lines))
        if rc == 0 and out.strip():
            return str(out).rstrip().splitlines()[-lines:]
    if container:
        rc, out, err = run(["docker", "logs", f"--tail={lines}", container])
        if rc == 0:
            return f"{out}{err}".rstrip().splitlines()[-lines:]
    return []


def failure_text(params: Mapping[str, Any], result: dict[str, Any], log: list[str], whole: list[str]) -> str:
    """One message with all that a person needs: who, stage, reason, fix, unit, log."""
    where = params["url"] or params["unit"]
    who = params["model"] or params["unit"] or params["url"]
    text = f"{who} at {where} is not ready; stage: {result['stage']}. {result['error']}."
    if result["fix"]:
        text += f" Fix: {result['fix']}."
    state = result.get("unit_state")
    if state:
        text += (
            f" Unit {params['unit']}: {state['active_state']} ({state['sub_state']}), result {state['result']}, "
            f"{state['n_restarts']} restarts"
        )
        text += f"; it says: {state['status_text']}." if state["status_text"] else "."
    cause, fix = engine_logs.known(whole)
    if cause:
        text += f" Its log says why: {cause}. Fix: {fix}."
    if log:
        text += "\nLast lines of its log:\n" + "\n".join(f"  {line}" for line in log)
    return text
