# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Alarms of Prometheus on the live page: the worst first, escaped, and unknown where Prometheus does not evaluate its rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from html_fixture import Reader
from live_fixture import sparks
from test_live_fleet import Played

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_alarms, live_page, live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_alarms import Alarms
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_fleet import Fleet
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_server import Live

NOW = 1795939200.0  # 2026-11-29T08:00:00Z
HOSTILE = "</li><script>alert(1)</script>\"'&\x1b[31m\n<img src=x onerror=1>"


def alert(name: str, severity: str = "warning", state: str = "firing", **more: Any) -> dict[str, Any]:
    labels = {"alertname": name, "severity": severity, "host": "spark-1", "service": "heavy"}
    return {
        "labels": labels,
        "annotations": {"summary": f"{name} on spark-1"},
        "state": state,
        "activeAt": "2026-11-29T07:50:00.123456789Z",
        "value": "1e+00",
        **more,
    }


def rule(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "Rule",
        "type": "alerting",
        "health": "ok",
        "lastEvaluation": "2026-11-29T09:59:30.5+02:00",
        "alerts": list(alerts),
        **more,
    }


def answer(*rules: dict[str, Any], interval: float = 60) -> dict[str, Any]:
    return {"status": "success", "data": {"groups": [{"name": "g", "interval": interval, "rules": list(rules)}]}}


def shown(alarms: Alarms) -> Reader:
    made = sparks(1)
    status, endpoints = live_status.report(made, {}, "now")
    parts = live_page.parts(status, made, endpoints, False, alarms)
    ages = {live_page.part_id("alarm", alarm.key): alarm.since for alarm in alarms.rows}
    return Reader(live_page.with_ages(parts["prometheus"], ages))


def test_firing_alarms_the_worst_and_newest_first() -> None:
    critical = alert("Critical", "critical", activeAt="2026-11-29T01:00:00Z")
    rules = rule(alert("Old", activeAt="2026-11-28T00:00:00Z"), alert("New"), critical, alert("Soon", state="pending"))
    alarms = live_alarms.parse(answer(rules, rule()), NOW)
    assert [alarm.name for alarm in alarms.rows] == ["Critical", "New", "Old"] and not alarms.why
    assert (alarms.rows[1].where, alarms.rows[1].since) == ("spark-1/heavy", NOW - 600)
    text = shown(alarms).text
    assert "began 2026-11-29 07:50:00 UTC" in text and "Soon" not in text and "unknown" not in text
    assert alarms.to_dict()["firing"][0]["severity"] == "critical"


def test_without_alarms_it_says_how_many_rules_do_not_fire() -> None:
    assert "None of 2 rules fires." in shown(live_alarms.parse(answer(rule(), rule(alerts=None)), NOW)).text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (answer(), "has no alerting rules"),
        (answer(rule(), rule(health="unknown", name="New")), "does not evaluate 1 of 2 rules: New"),
        (answer(rule(health="err")), "does not evaluate 1 of 1 rules"),
        (answer(rule(lastEvaluation="2026-11-29T07:00:00Z")), "does not evaluate 1 of 1 rules"),
        (answer(rule(lastEvaluation="0001-01-01T00:00:00Z")), "does not evaluate 1 of 1 rules"),
        (answer(rule(lastEvaluation="long ago")), "does not evaluate 1 of 1 rules"),
    ],
)
def test_rules_that_are_not_evaluated_make_alarms_unknown(value: Any, why: str) -> None:
    alarms = live_alarms.parse(value, NOW)
    text = shown(alarms).text
    assert why in alarms.why and "unknown" in text and "None of" not in text
    assert alarms.to_dict()["known"] is False


def test_a_slow_group_is_evaluated_in_time() -> None:
    slow = rule(lastEvaluation="2026-11-29T07:00:00Z")
    assert not live_alarms.parse(answer(slow, interval=3600), NOW).why


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"status": "error", "data": {"groups": []}},
        {"status": "success", "data": {"groups": [{}]}},
        answer(rule(alert("A", labels=[]))),
        answer(rule(alerts=[1])),
        answer(rule(), interval="x"),  # type: ignore[arg-type]
    ],
)
def test_another_form_is_refused(value: Any) -> None:
    with pytest.raises(Untrusted):
        live_alarms.parse(value, NOW)


def test_labels_cannot_become_markup_and_many_alarms_are_counted() -> None:
    hostile = alert(HOSTILE, HOSTILE, labels=dict.fromkeys(("alertname", "severity", "host", "cluster"), HOSTILE))
    hostile["annotations"] = {"summary": HOSTILE * 100}
    hostile["activeAt"] = HOSTILE
    many = [alert(f"A{number}") for number in range(60)]
    reader = shown(live_alarms.parse(answer(rule(hostile, *many)), NOW))
    assert not {"script", "img"} & {tag for tag, _attributes in reader.tags} and "\x1b" not in reader.text
    assert "And 11 more." in reader.text
    alone = shown(live_alarms.parse(answer(rule(hostile)), NOW)).text
    assert alone.count("alert(1)") >= 4


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, "<html>", "gives no answer"),
        (302, "elsewhere", "HTTP 302"),
        (503, "starting", "HTTP 503: starting"),
        (200, json.dumps({"status": "error"}), "gives no answer"),
        (200, json.dumps(answer()), "no alerting rules"),
    ],
)
def test_prometheus_is_asked_for_readers_alone_and_its_silence_is_unknown(
    tmp_path: Path, status: int, body: str, why: str
) -> None:
    played = Played()
    played.status, played.body = status, body
    fleet = Fleet([], tmp_path / "checks.json", 600, played.agent.url)
    live = Live(fleet.look, alarms=lambda: fleet.alarms)
    fleet.look(False)
    assert played.requests == [] and fleet.alarms is None
    live.note_reader()
    frame = live.update(0.0)
    assert played.requests == [(live_alarms.PATH, None, "")]
    assert why in frame.status["alarms"]["why"] and "unknown" in frame.parts["prometheus"]
    played.server.shutdown()
    played.server.server_close()
    assert "refused" in live.update(0.0).status["alarms"]["why"]


def test_the_begin_of_an_alarm_is_an_age_of_the_frame() -> None:
    alarms = live_alarms.parse(answer(rule(alert("New"))), NOW)
    live = Live(lambda _is_read: sparks(1), alarms=lambda: alarms)
    live.note_reader()
    frame = live.update(0.0)
    assert frame.ages[live_page.part_id("alarm", alarms.rows[0].key)] == NOW - 600
    assert "alarms" not in Live(lambda _is_read: sparks(1)).update(0.0).status
