# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet on one screen: the worst first, alike ones together, silent hosts as rows."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import fleet_status, status_rows

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
UNIT = {"active_state": "active", "n_restarts": 0, "active_seconds": 268200}
REFUSED = "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.7 port 22: Connection refused"


def planned(*names: str, **more: Any) -> dict[str, Any]:
    memory = {"residency_gib": {"typical": 40.0}}
    model = {"repo": "Org/Model"}
    return {
        "services": [
            {"name": name, "unit": f"spark-{name}.service", "recipe": "r", "model": model, "memory": memory, **more}
            for name in names
        ]
    }


def result_of(*names: str, unit: dict[str, Any] | None = None, ready: bool = True, **answer: Any) -> dict[str, Any]:
    """What ask brings of a host whose services all are in one state."""
    says = {"ready": ready, "stage": "completion" if ready else "health", "error": "" if ready else "refused", **answer}
    host = {
        "units": [{"name": f"spark-{name}.service", **UNIT, **(unit or {})} for name in names],
        "memory": {"available_gib": 20.0, "total_gib": 119.7},
        "resident": [{"name": name, "gib": 39.5} for name in names],
    }
    services = [{"name": name, "kv_cache_usage": 0.1, "requests_running": 2, **says} for name in names]
    return {"reached": True, "why": "", "answers": {"services": {"host": host, "services": services}}}


def judged(plans: dict[str, Any], results: dict[str, Any], fail_on: str = "down") -> fleet_status.Status:
    hosts = {host: fleet_status.judge_host(results.get(host) or {}, "services") for host in plans}
    rows = []
    for host, plan in plans.items():
        answers = ((results.get(host) or {}).get("answers") or {}).get("services") or {}
        rows += status_rows.status_rows(host, plan, answers.get("host"), answers.get("services"))
    return fleet_status.report(rows, hosts, NOW.isoformat(), fail_on)


def fleet(count: int = 100) -> tuple[dict[str, Any], dict[str, Any]]:
    names = [f"spark-{number:03}" for number in range(1, count + 1)]
    return {name: planned("heavy", "fast") for name in names}, {name: result_of("heavy", "fast") for name in names}


def test_a_hundred_hosts_that_are_well_take_three_lines() -> None:
    status = judged(*fleet())
    assert status.healthy and status.reason == ""
    text = fleet_status.text(status)
    assert text.splitlines()[0] == "100 hosts, 200 services: 200 healthy."
    assert len(text.splitlines()) == 4
    assert (
        "heavy on spark-001..100 (100): Org/Model, 39.5 of 40.0 GiB, requests 200+0, KV up to 10 %, up 3d 2h or more"
        in text
    )


def test_what_is_wrong_comes_first_and_silent_hosts_are_rows() -> None:
    plans, results = fleet()
    for host in ("spark-003", "spark-004", "spark-050"):
        results[host] = {"reached": False, "why": fleet_status.why_unreachable(REFUSED), "answers": {}}
    results["spark-009"] = {"reached": True, "answers": {"services": {"failed": True, "msg": "Missing sudo password"}}}
    results["spark-020"] = result_of("heavy", "fast", unit={"active_state": "failed"}, ready=False)
    results["spark-021"] = result_of("heavy", "fast", unit={"active_state": "activating"}, ready=False)
    results["spark-030"] = result_of("heavy", "fast", fast_path="2 off")
    del results["spark-099"]
    status = judged(plans, results)
    lines = fleet_status.text(status).splitlines()
    words = [line.split()[0] for line in lines[2:]]
    assert words == sorted(words, key=lambda word: fleet_status.STATES.index(word.lower()))
    assert lines[2] == "UNREACHABLE  spark-003..004, spark-050 (3): port 22: Connection refused"
    assert "UNREACHABLE  spark-099: it was not asked" in lines
    assert "UNKNOWN      spark-009: Missing sudo password" in lines
    assert "DOWN         heavy on spark-020: unit failed: refused" in lines
    assert "WARNING      fast on spark-030: fast path: 2 off" in lines
    assert lines[0].startswith(
        "100 hosts (5 silent), 200 services: 10 on hosts that did not answer, 2 down, 2 starting, 2 "
    )
    assert not status.healthy and "\n" not in status.reason
    assert status.reason.startswith(
        "5 of 100 hosts did not answer: spark-003..004, spark-009, spark-050, spark-099; 14 of 200"
    )
    assert status.services[0].host == "spark-003"
    assert json.loads(json.dumps(status.to_dict())) == status.to_dict()


def test_any_fleet_fits_on_a_screen() -> None:
    plans, results = fleet()
    for number, host in enumerate(plans):
        results[host] = result_of(
            "heavy", "fast", ready=False, unit={"active_state": "failed"}, error=f"reason {number}"
        )
    text = fleet_status.text(judged(plans, results))
    assert len(text.splitlines()) == fleet_status.MOST_LINES + 3
    assert text.splitlines()[-1].startswith("and 168 lines more")
    assert len(fleet_status.text(judged(plans, results), "table").splitlines()) > 200


def test_a_silent_host_without_services_is_not_well() -> None:
    status = judged({"spark-1": planned(), "spark-2": planned()}, {"spark-1": result_of()})
    assert not status.healthy
    assert "1 of 2 hosts did not answer: spark-2" in status.reason
    assert "spark-2: it was not asked" in fleet_status.text(status, "table")


def test_warnings_fail_only_when_told() -> None:
    restarted = {"n_restarts": 2, "active_seconds": 720}
    plans, results = {"spark-1": planned("heavy")}, {"spark-1": result_of("heavy", unit=restarted)}
    assert judged(plans, results).healthy
    status = judged(plans, results, "warning")
    assert (status.healthy, status.reason) == (False, "1 with warnings: spark-1/heavy")
    assert "spark-1/heavy: 2 restarts, up 12m 0s" in fleet_status.text(status)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"decode_tokens_per_second": 30.0, "decode_ratio": 0.7}, "30.0 (-30 %) tok/s at the last measurement"),
        ({"fast_path": "1 off"}, "fast path: 1 off"),
        (
            {"speed": "slow: prefill 900 tokens/s; 1200 or more are predicted"},
            "speed slow: prefill 900 tokens/s; 1200 or more are predicted",
        ),
    ],
)
def test_notes_of_a_service(change: dict[str, Any], note: str) -> None:
    status = judged({"spark-1": planned("heavy")}, {"spark-1": result_of("heavy", **change)})
    assert status.services[0].notes == [note]


@pytest.mark.parametrize("speed", ["fine", "unknown: other requests ran meanwhile", None])
def test_a_speed_that_is_not_slow_is_no_note(speed: str | None) -> None:
    status = judged({"spark-1": planned("heavy")}, {"spark-1": result_of("heavy", speed=speed)})
    assert status.services[0].notes == [] and status.services[0].to_dict()["speed"] == speed


def test_a_host_without_memory_has_a_warning() -> None:
    results = result_of("heavy")
    results["answers"]["services"]["host"]["memory"]["available_gib"] = 0.8
    status = judged({"spark-1": planned("heavy")}, {"spark-1": results})
    assert status.hosts["spark-1"].state == "warning"
    assert "spark-1: 0.8 GiB of memory available" in fleet_status.text(status, "groups")


GUARD = {
    "act": True,
    "floor_gib": 3.0,
    "start_floor_gib": 5.0,
    "level": "calm",
    "available_gib": 20.0,
    "lowest_gib": 4.0,
    "last": None,
    "stopped": {},
    "refused": [],
    "who": "",
}


def test_degenerate_answers_are_a_state_that_fails_the_run() -> None:
    results = {"a": result_of("heavy", "fast")}
    note = {"state": "degenerate", "text": "a loop", "drained": True}
    results["a"]["answers"]["services"]["host"]["quality"] = {"heavy": note, "fast": {**note, "state": "doubtful"}}
    status = judged({"a": planned("heavy", "fast")}, results)
    assert {row.service: row.state for row in status.services} == {"heavy": "degenerate", "fast": "healthy"}
    assert status.reason == "1 of 2 services give degenerate answers: a/heavy" and status.counts["degenerate"] == 1
    for show in ("table", "groups"):
        text = fleet_status.text(status, show)
        assert "1 degenerate" in text and "its answers degenerate: a loop; drained at the gateway" in text


def test_the_guard_of_a_host_is_one_line() -> None:
    results = result_of("heavy", "fast")
    host = results["answers"]["services"]["host"]
    host["guard"] = dict(GUARD)
    host["units"].append({"name": "spark-agent.service", **UNIT})
    plans, answers = {"a": planned("heavy", "fast"), "b": planned("heavy")}, {"a": results, "b": result_of("heavy")}
    status = judged(plans, answers)
    lines = [line for line in fleet_status.text(status).splitlines() if "guard" in line]
    assert lines == [
        "a: memory guard runs, acts below 3.0 GiB, 5.0 GiB at a start; memory calm, 20.0 GiB available, lowest 4.0 GiB; nothing to do so far"
    ]
    assert status.hosts["a"].state == "healthy" and status.hosts["b"].guard is None
    assert "guard" not in fleet_status.text(status, "groups")  # a hundred that are healthy take no hundred lines
    # A service stopped by the guard is down, and its row says who stopped it and why.
    host["guard"].update(stopped={"fast": "0.80 GiB available"}, level="short")
    host["units"][1].update(active_state="inactive")
    results["answers"]["services"]["services"][1].update(ready=False, stage="health", error="refused")
    status = judged(plans, answers)
    down = status.services[0]
    assert (down.service, down.state, down.status) == (
        "fast",
        "down",
        "the memory guard stopped it: 0.80 GiB available",
    )
    text = fleet_status.text(status, "groups")
    assert (
        "the memory guard stopped it: 0.80 GiB available" in text and "WARNING      a: guard: memory is short" in text
    )
    host["units"][2].update(active_state="failed")
    assert "the memory guard does not run: spark-agent.service is failed" in fleet_status.text(judged(plans, answers))


def test_what_is_stopped_on_purpose_is_not_down() -> None:
    results = result_of("heavy", ready=False, unit={"active_state": "inactive"})
    assert not judged({"spark-1": planned("heavy")}, {"spark-1": results}).healthy
    status = judged({"spark-1": planned("heavy", state="stopped")}, {"spark-1": results})
    assert status.healthy and status.counts["stopped"] == 1


def test_what_waits_for_its_first_request_is_cold() -> None:
    results = result_of("heavy", ready=False, unit={"active_state": "inactive"})
    status = judged({"spark-1": planned("heavy", state="on_demand")}, {"spark-1": results})
    assert status.healthy and status.counts["unloaded"] == 1
    results = result_of("heavy", ready=False, unit={"active_state": "failed"})
    assert not judged({"spark-1": planned("heavy", state="on_demand")}, {"spark-1": results}).healthy
    # Another service of its exclusive set serves: this one is still unloaded, not stopped.
    results = result_of("heavy", "fast")
    results["answers"]["services"]["services"][0].update(ready=False)
    results["answers"]["services"]["host"]["units"][0].update(active_state="inactive")
    both = judged({"spark-1": planned("heavy", "fast", exclusive="day", state="on_demand")}, {"spark-1": results})
    assert sorted(row.state for row in both.services) == ["healthy", "unloaded"]


def test_the_other_one_of_an_exclusive_set_is_stopped() -> None:
    results = result_of("heavy", "fast")
    services = results["answers"]["services"]
    services["services"][0].update(ready=False)
    services["host"]["units"][0].update(active_state="inactive")
    status = judged({"spark-1": planned("heavy", "fast", exclusive="day")}, {"spark-1": results})
    assert status.healthy and [row.state for row in status.services] == ["healthy", "stopped"]
    assert not judged({"spark-1": planned("heavy", "fast")}, {"spark-1": results}).healthy


def test_a_rank_on_a_silent_host_takes_its_service_down() -> None:
    span = {"name": "pair_a", "size": 2, "executor": "mp"}
    plans = {f"spark-{rank + 1}": planned("big", cluster=span, rank=rank) for rank in (0, 1)}
    status = judged(plans, {"spark-1": result_of("big")})
    assert [row.state for row in status.services] == ["unreachable", "down"]
    assert "1 of 1 services are not ready: pair_a/big" in status.reason


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (REFUSED, "port 22: Connection refused"),
        ("Task failed: Failed to connect to the host via ssh: Warning: added\nspark@a: Permission denied (publickey).",
         "spark@a: Permission denied (publickey)."),
        ("", "it cannot be reached"),
        ("x" * 300, "x" * 159 + "…"),
    ],
)  # fmt: skip
def test_why_unreachable(message: str, why: str) -> None:
    assert fleet_status.why_unreachable(message) == why


SILENT = "systemctl did not answer in 10 s"


def unasked(**answer: Any) -> dict[str, Any]:
    """A host whose systemctl gave no answer."""
    results = result_of("heavy", **answer)
    results["answers"]["services"]["host"].update(units=[], resident=[], unknown={"systemctl": SILENT})
    return results


def test_a_systemctl_that_is_silent_takes_no_service_down() -> None:
    status = judged({"a": planned("heavy")}, {"a": unasked()})
    row = status.services[0]
    assert row.ready is True and row.unit == "not known" and row.state == "healthy"
    assert status.healthy is True and status.hosts["a"].notes == [SILENT]
    assert SILENT in fleet_status.text(status)
    status = judged({"a": planned("heavy")}, {"a": unasked(ready=False)})
    assert status.services[0].state == "down" and status.services[0].error == "refused"
    cluster = {"name": "pair", "size": 2, "executor": "mp"}
    status = judged({"a": planned("heavy", rank=1, cluster=cluster)}, {"a": unasked(ready=False)})
    assert status.services[0].state == "unknown" and status.services[0].error == SILENT


def demanded(results: dict[str, Any], **row_fields: Any) -> dict[str, Any]:
    """What a host brings whose program on demand has said something of its service."""
    results["answers"]["services"]["host"]["on_demand"] = {
        "heavy": {"state": "cold", "pin": "", "why": "", **row_fields}
    }
    return results


def test_since_when_a_service_on_demand_is_idle_is_told() -> None:
    plans = {"spark-1": planned("heavy", state="on_demand")}
    status = judged(plans, {"spark-1": demanded(result_of("heavy"), state="ready", idle_seconds=250)})
    assert status.services[0].idle_seconds == 250 and status.services[0].state == "healthy"
    assert "spark-1/heavy: idle for 4m 10s" in fleet_status.text(status, "table")
    assert "idle for 4m 10s" in fleet_status.text(status, "groups")
    busy = judged(plans, {"spark-1": demanded(result_of("heavy"), state="ready", idle_seconds=None)})
    assert "idle" not in fleet_status.text(busy, "table") and busy.services[0].idle_seconds is None


@pytest.mark.parametrize(
    ("row_fields", "state", "says"),
    [
        ({"pin": "cold", "why": ""}, "unloaded", "kept cold by its owner"),
        (
            {"pin": "cold", "why": "the guard of spark-1: 0.3 GiB available"},
            "down",
            "kept cold by the guard of spark-1",
        ),
        ({"waiting": 3}, "unloaded", "3 requests wait"),
    ],
)
def test_what_keeps_a_service_on_demand_down_is_told(row_fields: dict[str, Any], state: str, says: str) -> None:
    """A service kept cold on purpose is healthy; a service that the guard keeps down answers no requests, so it is down."""
    off = demanded(result_of("heavy", unit={"active_state": "inactive"}, ready=False), **row_fields)
    status = judged({"spark-1": planned("heavy", state="on_demand")}, {"spark-1": off})
    assert status.services[0].state == state and status.healthy is (state == "unloaded")
    assert says in fleet_status.text(status, "table")


def test_a_start_on_demand_that_failed_says_why() -> None:
    off = result_of("heavy", unit={"active_state": "failed"}, ready=False)
    status = judged(
        {"spark-1": planned("heavy", state="on_demand")}, {"spark-1": demanded(off, state="failed", why="no room")}
    )
    assert status.services[0].state == "down" and "no room" in fleet_status.text(status, "table")
