# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the live page says of a fleet is what is true: each state occurs once, and malformed documents hide nobody else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from live_fixture import CHECKS, IDLE, answer, document, service, sparks, unit

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_status import Spark
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import guard_account

AT = "2026-11-29T04:00:00+00:00"


def judged(*made: dict[str, Any], checks: Any = None, why: str = "") -> Any:
    read = [Spark(entry["host"], live_status.parse(entry, entry["host"]), why, 1.0) for entry in made]
    return live_status.report(read, checks or {}, AT)


def test_each_state_is_the_truth() -> None:
    status, endpoints = live_status.report(sparks(8), CHECKS, AT)
    states = {f"{row.host}/{row.service}": row.state for row in status.services}
    assert states == {
        "spark-1/heavy": "healthy",
        "spark-1/fast": "healthy",
        "spark-2/heavy": "down",
        "spark-3/coder": "unloaded",
        "spark-4/heavy": "starting",
        "spark-5/heavy": "healthy",
        "spark-6/giant": "healthy",
        "spark-7/giant": "healthy",
        "spark-8/heavy": "unreachable",
        "spark-8/fast": "unreachable",
    }
    rows = {row.host: row for row in status.services}
    assert rows["spark-4"].status == "load 45 %, after 80 s; about 95 s left by its last starts"
    assert status.hosts["spark-8"].why == "its agent does not answer: timed out"
    (capped,) = status.hosts["spark-5"].notes
    assert "611 MHz and 14 W: its power supply limits it" in capped and status.hosts["spark-5"].state == "warning"
    assert rows["spark-1"].live and rows["spark-1"].live.predicted == 41.0
    assert [(endpoint.key, endpoint.ok) for endpoint in endpoints] == [("forge/gateway", True), ("spark-2/asr", False)]


def test_a_model_over_two_hosts_is_up_only_with_both() -> None:
    span = {"cluster": {"name": "duo", "size": 2, "executor": "mp"}}
    head = document("s1", service("giant", rank=0, **span))
    worker = document("s2", service("giant", rank=1, **span), facts={"units": [unit("giant", "failed")]})
    worker["services"] = [answer("giant", **IDLE)]
    status, _endpoints = judged(head, worker)
    assert {row.host: (row.state, row.stage) for row in status.services} == {
        "s1": ("down", "rank 1"),
        "s2": ("down", "unit"),
    }
    assert status.counts["services"] == 1


def test_silence_of_a_program_is_not_a_no() -> None:
    made = document("s1", service("heavy"), facts={"units": [], "unknown": {"systemctl": "systemctl did not answer"}})
    made["services"] = [answer("heavy", **IDLE)]
    (row,) = judged(made)[0].services
    assert (row.state, row.unit) == ("unknown", "not known")


def test_an_active_engine_without_figures_is_worth_a_look() -> None:
    made = document("s1", service("heavy"))
    made["services"] = [answer("heavy", silent="its /metrics does not answer: timed out")]
    status, _endpoints = judged(made)
    assert status.hosts["s1"].notes == ["heavy: its /metrics does not answer: timed out"]
    assert status.services[0].state == "healthy"


def test_degenerate_answers_are_a_warning() -> None:
    quality = {"heavy": {"state": "degenerate", "text": "it repeats itself", "drained": True}}
    (row,) = judged(document("s1", service("heavy"), facts={"quality": quality}))[0].services
    assert row.state != "healthy" and "its answers degenerate: it repeats itself; drained at the gateway" in str(
        vars(row)
    )


def test_links_heat_and_the_guard_are_alarms() -> None:
    guard = {"act": True, "level": "short", **dict.fromkeys((*guard_account.FLOORS, "lowest_gib", "at", "last"))}
    guard |= {"available_gib": 16.1, "stopped": {"fast": "no memory"}, "refused": [], "who": "python"}
    facts = {"guard": guard, "units": [{"name": "spark-agent.service", "active_state": "active"}]}
    facts["memory"] = {"total_gib": 119.7, "available_gib": 4.5}  # newer than the state of the guard
    made = document("s1", facts=facts, links=[{"name": "rail0", "up": False, "gbps": None}])
    made["gpu"]["temperature_c"] = 93
    assert judged(made)[0].hosts["s1"].notes == [
        "guard: memory is short, 4.5 GiB available; python",
        "the guard stopped fast: no memory",
        "the GPU has 93 degrees Celsius and throttles",
        "the link rail0 is down",
    ]


def test_a_service_that_the_monitor_does_not_reach_is_down() -> None:
    checks = {"s1/heavy": {"url": "http://h:1", "ok": False, "error": "timed out", "hint": "", "note": ""}}
    status, endpoints = judged(document("s1", service("heavy")), checks=checks)
    assert (status.services[0].state, status.services[0].error, endpoints) == ("down", "timed out", [])


@pytest.mark.parametrize(
    "path", [("host",), ("facts", "memory"), ("services", 0, "name"), ("planned", 0, "unit"), ("links",), ("gpu",)]
)
@pytest.mark.parametrize("value", [None, [[]], {"a": {}}, 10**400, "\x1b[31m\n", float("nan")])
def test_a_document_of_another_form_is_refused(path: tuple[Any, ...], value: Any) -> None:
    made: Any = copy.deepcopy(document("s1", service("heavy")))
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        live_status.parse(made, "s1")
    except Untrusted as error:
        assert "the document of s1" in str(error)
    else:  # a mapping without the known keys says nothing
        assert value in ({"a": {}}, None) or path == ("gpu",)
        live_status.report([Spark("s1", live_status.parse(made, "s1"))], {}, AT)


def test_the_figures_of_the_last_hour() -> None:
    made = live_status.parse(document("s1", service("heavy"), service("fast")), "s1")
    assert live_status.figures(made) == (77.2, 93, 61.5, 192.8)
    made["services"], made["gpu"], made["facts"]["memory"] = [], {}, {}
    assert live_status.figures(made) == (None, None, None, None)
