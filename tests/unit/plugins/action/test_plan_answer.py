# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much of a plan is registered: Ansible copies it, and walks through every value of it, several times a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planned_fixture import FAST, RECIPES

from ansible_collections.dgxspark.vllm.plugins.action import plan as action
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

HOSTS = 20


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    services = [{**FAST, "name": f"fast-{number}", "port": 8001 + number} for number in range(4)]
    inputs = {
        f"spark-{number:02}": {"vars": {"spark_services": services}, "address": f"192.0.2.{number}"}
        for number in range(HOSTS)
    }
    return engine.make_plan(inputs, RECIPES)


def values(value: Any) -> int:
    """How many values there are to walk through."""
    if isinstance(value, dict):
        return 1 + sum(values(item) for item in value.values())
    return 1 + sum(values(item) for item in value) if isinstance(value, list) else 1


def answered(plan: dict[str, Any], how: str) -> dict[str, Any]:
    findings = action.answer(plan, engine.plan_findings(plan), None, how)
    assert findings["lacking"] == {"images": [], "models": []} and findings["for_all"] == []
    return findings


def test_a_host_reads_its_part_from_a_text_that_is_one_value(plan: dict[str, Any]) -> None:
    full, texts = answered(plan, "whole"), answered(plan, "texts")
    assert {host: json.loads(body) for host, body in texts["hosts"].items()} == json.loads(json.dumps(full["hosts"]))
    assert {host: json.loads(body) for host, body in texts["addons"].items()} == json.loads(json.dumps(full["addons"]))
    assert values(texts) <= 2 * HOSTS + 30 < values(full) / 100


def test_before_hosts_are_asked_they_need_only_what_they_are_asked(plan: dict[str, Any]) -> None:
    full, looks = answered(plan, "whole"), answered(plan, "looks")
    assert looks["hosts"]["spark-01"] == {
        "image_candidates": full["hosts"]["spark-01"]["image_candidates"],
        "image_questions": full["hosts"]["spark-01"]["image_questions"],
    }
    assert len(json.dumps(looks)) < 1024 * HOSTS and len(json.dumps(looks)) < len(json.dumps(full)) / 10


def test_who_lacks_something_and_who_serves_others_is_said_once_for_all(plan: dict[str, Any]) -> None:
    hosts = {name: {**body, "missing": dict(body["missing"])} for name, body in plan["hosts"].items()}
    hosts["spark-03"]["missing"]["images"] = ["some/image:1"]
    hosts["spark-04"]["missing"]["models"] = ["some/model@main"]
    addons = {**plan["addons"], "forge": {**plan["addons"]["spark-01"], "gateway": {"image": "some/gateway:1"}}}
    hosts["spark-05"]["services"] = [{**hosts["spark-05"]["services"][0], "state": "on_demand"}]
    result = action.answer({**plan, "hosts": hosts, "addons": addons}, [], None, "texts")
    assert result["lacking"] == {"images": ["spark-03"], "models": ["spark-04"]}
    assert (result["for_all"], result["on_demand"]) == (["forge"], ["spark-05"])
