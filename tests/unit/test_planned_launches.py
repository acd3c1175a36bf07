# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches of others and of our own whose right answer was decided first (fixtures/planned_launches.yml), and every recipe by its own options."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes_fixture import RECIPES
from test_recipes_plan import REFUSED, WAYS, cluster_of, named, plan_of, service, sparks_of

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

FIXTURES = Path(__file__).parent / "plugins" / "fixtures"
CASES: list[dict[str, Any]] = yaml.safe_load((FIXTURES / "planned_launches.yml").read_text(encoding="utf-8"))
KEYS = {
    *("name", "recipe", "config_of", "without", "config", "sparks", "service", "verdict", "says", "silent"),
    *("vllm_error", "message", "fix", "memory", "asked"),
}


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return a service with the model of a recipe, or with a model of the memory rows."""
    source = case.get("config_of", "")
    made: dict[str, Any] = {"config": {}}
    if source.startswith("rows:"):
        rows = json.loads((FIXTURES / "memory_rows_2026_11.json").read_text(encoding="utf-8"))
        made["config"] = rows["configs"][source[5:]]
    elif source:
        made = {
            key: RECIPES[source][key] for key in ("config", "quant_config", "weights_gib") if RECIPES[source].get(key)
        }
    made = copy.deepcopy(made)
    for part in (made["config"], *(value for value in made["config"].values() if isinstance(value, dict))):
        for key in case.get("without", ()):
            part.pop(key, None)
    fields = {key: value for key, value in (case.get("config") or {}).items() if value is not None}
    return {**made, "config": {**made["config"], **fields}}


def planned(case: dict[str, Any]) -> dict[str, Any]:
    """Plan a case; of several Sparks the first is returned."""
    entry = {"name": "model", "port": 8001, **case["service"]}
    if "recipe" in case:
        entry["recipe"] = case["recipe"]
    else:
        entry = {"model": {"repo": "org/model", "revision": "0" * 40}, **config_of(case), **entry}
    count = case.get("sparks", 1)
    if count == 1:
        return plan_of(entry)
    inventory = cluster_of(count, entry, "switch")
    hosts = engine.make_plan(inventory, RECIPES, lambda path: f"{len(path):064x}", groups={"all": list(inventory)})[
        "hosts"
    ]
    return dict(next(iter(hosts.values())))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_launch_gets_the_answer_that_was_decided_first(case: dict[str, Any]) -> None:
    body = planned(case)
    findings = {(finding["severity"], finding["rule"]) for finding in body["findings"]}
    rules = {rule for _severity, rule in findings}
    for message_part in case.get("says", ()):
        severity, colon, rule = message_part.rpartition(":")
        assert (severity, rule) in findings if colon else rule in rules, (message_part, sorted(findings))
    assert not set(case.get("silent", ())) & rules
    errors = [finding["rule"] for finding in body["findings"] if finding["severity"] == "error"]
    if "verdict" in case:
        assert body["verdict"] == case["verdict"], body["findings"]
        assert case["verdict"] == "fails" or errors == []
    for key, field in (("vllm_error", "vllm_error"), ("message", "message"), ("fix", "fix")):
        if key in case:
            assert any(case[key] in str(finding.get(field)) for finding in body["findings"]), body["findings"]
    memory = body["services"][0]["memory"]
    for name, (least, most) in (case.get("memory") or {}).items():
        assert float(least) <= memory[name] <= float(most)
    if case.get("asked"):
        assert [question["service"] for question in body["image_questions"]] == ["model"]


def test_the_table_has_enough_cases_and_known_keys() -> None:
    assert len(CASES) >= 25
    assert [sorted(set(case) - KEYS) for case in CASES if set(case) - KEYS] == []
    assert len({case["name"] for case in CASES}) == len(CASES)


# Findings about unknown image versions, stated memory and pins, which concern no option.
ABOUT_OTHERS = {"SPK307", "memory.version", "memory.stated", "lock.moving", "memory.concurrency"}


@pytest.mark.parametrize(("name", "variant", "image"), WAYS, ids=named(WAYS))
def test_no_recipe_is_refused_or_warned_of_by_its_own_options(name: str, variant: str | None, image: str) -> None:
    if (name, variant) in REFUSED:
        return  # test_recipes_plan says by what
    body = planned({"service": {}, "recipe": name, "sparks": sparks_of(name, variant), **_way(name, variant, image)})
    findings = {(finding["rule"], finding["message"]) for finding in body["findings"] if finding["severity"] != "info"}
    assert {pair for pair in findings if pair[0] not in ABOUT_OTHERS} == set()


def _way(name: str, variant: str | None, image: str) -> dict[str, Any]:
    entry = service(name, variant, image)
    return {"service": {key: entry[key] for key in ("variant", "image") if key in entry}}
