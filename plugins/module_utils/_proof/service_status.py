# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readiness of the services of a host, and progress of their starts: sections C(services) and C(starts) of M(dgxspark.vllm.spark_info)."""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .._host.host_view import HostView, Request
from .._host.units import start_log_command
from .._runtime import endpoint, http_client, metrics, pins, start_stages, state_file
from .._runtime.command import NoAnswer, Run
from . import explain, readiness, receipts, service_arguments

SILENT_SECONDS = 60.0  # the program on demand writes four times as often
JOURNAL_LINES = 500


def services(_view: HostView, request: Request) -> list[dict[str, Any]]:
    """Return an entry per service, in the order of the request; all services are asked at the same time."""
    planned, timeout = service_arguments.complete(request.params["services"]), request.params["timeout"]
    folder = Path(request.params["state_dir"], "receipts")
    with ThreadPoolExecutor(max_workers=max(len(planned), 1)) as pool:
        answers = list(pool.map(lambda service: ask(service["name"], service["probe"], timeout), planned))
    return [{**answer, **recorded(folder, answer["name"])} for answer in answers]


def starts(view: HostView, request: Request) -> dict[str, Any]:
    """Return C({starting, causes, on_demand}) of the services of the request, each by the name of a service."""
    names = [service["name"] for service in service_arguments.complete(request.params["services"])]
    run_dir = request.params["run_dir"]
    units = view.noted([], view.units)
    state = state_file.read(Path(run_dir, "on_demand/state.json"))
    return {
        "starting": starting(view.run, units, names, run_dir, Path(request.params["state_dir"], "starts")),
        "causes": causes(view.run, units, names),
        "on_demand": on_demand(state, names, time.time()),
    }


def ask(name: str, probe: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Ask one service for a token and its metrics; returns C({name, ready, stage, error}), ready None without a C(url). timeout: seconds each."""
    if not probe.get("url"):
        return {"name": name, "ready": None, "stage": "unit", "error": "", **metrics.parse("")}
    answer = endpoint.wait_ready(
        probe["url"],
        probe.get("model"),
        endpoint.Requests(timeout=timeout, completion_timeout=timeout, max_tokens=1, measure=False),
        api_key_file=probe.get("api_key_file"),
        timeout=timeout,
        interval=math.inf,  # a status is of this moment: a refused connection is an answer, and only silence takes the whole time
    )
    try:
        # /metrics asks for no key.
        reply = http_client.fetch(probe["url"] + "/metrics", timeout=timeout)
        figures = metrics.parse(reply.body.decode("utf-8", "replace") if reply.status == 200 else "")
    except (OSError, ValueError):
        figures = metrics.parse("")
    return {"name": name, **{key: answer[key] for key in ("ready", "stage", "error")}, **figures}


def recorded(folder: Path, name: str) -> dict[str, Any]:
    """Return what the receipt of a service says: kernels, verdict on the speed, last benchmark and its ratio to the baseline."""
    try:
        receipt = receipts.load((folder / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        receipt = receipts.Receipt(name, None, None, {}, {}, {})
    benchmark = receipt.benchmark or {}
    texts = {"fast_path": (receipt.fast_path or {}).get("summary"), "speed": (receipt.speed or {}).get("line")}
    return {
        **{key: text if isinstance(text, str) else None for key, text in texts.items()},
        "decode_tokens_per_second": None if benchmark.get("stale") else benchmark.get("decode_tokens_per_second"),
        "decode_ratio": benchmark.get("ratio"),
    }


def starting(
    run: Run, units: Sequence[Mapping[str, Any]], names: Sequence[str], run_dir: str, folder: Path
) -> dict[str, Any]:
    """Return the progress of each service whose unit starts; unreadable starts are skipped. folder: with the stages of the last starts."""
    service_names = {f"spark-{name}.service": name for name in names}
    progress = {}
    for unit in units:
        name, began = service_names.get(unit["name"]), unit["start_monotonic"]
        if name is None or unit["active_state"] != "activating" or not unit["invocation_id"] or began is None:
            continue
        try:
            rc, out, _err = run(start_log_command(unit["invocation_id"]))
        except NoAnswer:
            continue
        lines, _cursor = start_stages.read_journal(out if rc == 0 else "")
        record = state_file.read(Path(run_dir, "starts", f"{unit['name']}.json"))
        earlier = start_stages.checked(state_file.read(folder / f"{name}.json"))
        progress[name] = start_stages.under_way(record, unit["invocation_id"], began, earlier, lines, time.monotonic())
    return progress


def causes(run: Run, units: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, str]:
    """Return why units failed, or restart again and again: cause and fix by the name of the service, where the journal tells it."""
    service_names = {f"spark-{name}.service": name for name in names}
    explained = {}
    for unit in units:
        name = service_names.get(unit["name"])
        restarts = unit["active_state"] == "activating" and unit["n_restarts"]
        if name is None or not (restarts or unit["active_state"] == "failed"):
            continue
        answer = explain.explain(readiness.read_log(run, unit["name"], None, JOURNAL_LINES))
        if answer.is_known:
            explained[name] = f"{answer.cause}. Fix: {answer.fix}"
    return explained


def on_demand(state: Mapping[str, Any] | None, names: Sequence[str], now: float) -> dict[str, Any]:
    """Return C(state), C(idle_seconds), C(waiting), C(pin) and C(why) of services by the on-demand proxy; none if its report is old."""
    try:
        at = calendar.timegm(time.strptime(str((state or {})["at"]), "%Y-%m-%dT%H:%M:%SZ"))
        services = dict((state or {})["services"]) if abs(now - at) < SILENT_SECONDS else {}
    except (KeyError, TypeError, ValueError):
        return {}
    reported = {}
    for name in names:
        service = services.get(name)
        if not isinstance(service, dict):
            continue
        numbers = {
            key: service[key] if isinstance(service.get(key), int) else None for key in ("idle_seconds", "waiting")
        }
        pin = service.get("pin") if service.get("pin") in (pins.WARM, pins.COLD) else ""
        why = str(service.get("pin_why" if pin else "reason") or "")[: pins.MOST_TEXT]
        reported[name] = {"state": str(service.get("state"))[:20], **numbers, "pin": pin, "why": " ".join(why.split())}
    return reported
