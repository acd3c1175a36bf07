# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hostile text in C(spark_gateway), C(spark_clients), C(spark_exporters), C(spark_monitoring) or C(spark_fleet_monitor).

The plan refuses it, or it appears in the files of the roles as one value: it adds no line, argument, setting or template.
Each key gets one hostile text, and all of them if HOSTILE_CASES is 10,000 or more.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import hostile_inventories as hostile
import pytest
import role_files

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES as FOLDER
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

EACH = 1000 if int(os.environ.get("HOSTILE_CASES", "500")) >= 10_000 else 1
TEXTS = [text for text in hostile.TEXTS if len(text) < 1000] + [
    "x\nExecStart=/bin/sh",
    "x\n[Service]\nUser=root",
    "x\r\nA: b",
    "/srv/x\\\n",
    "/srv/%n",
    "/srv/a b",
    "/srv/../etc",
    "/",
    "/etc",
    "http://a/{{ 7 * 7 }}",
    "http://a/%n$HOME'\"",
    "http://a/x y",
    "a}}",
    "x: y",
    "- x",
    "x:1 --privileged",
    "--privileged:1",
    "a\u2028b",
    "[[ 7 * 7 ]]",
    "1 or vector(1)",
]
NUMBERS = [0, 1, -1, 10**6, 10**30, 1e-9, 0.001, 15.5, 1e30, float("inf"), float("nan"), True, "15"]
RECIPES, _wrong = load_recipes([FOLDER])
PARTS = ("spark_gateway", "spark_clients", "spark_exporters", "spark_monitoring", "spark_fleet_monitor")


def places() -> list[tuple[str, str, str, tuple[Any, ...]]]:
    """Every place of the valid example below a variable of these services: whether its host is a Spark, host, variable, path."""
    base = hostile.BASES["duo"]()
    return [
        (part, host, name, path)
        for part in ("hosts", "others")
        for host, body in base[part].items()
        for name in PARTS
        for path in hostile.places(body["vars"].get(name))
        if path and not isinstance(hostile.at(body["vars"][name], path), (dict, list))
    ]


def planned(part: str, host: str, name: str, path: tuple[Any, ...], value: Any) -> dict[str, Any] | None:
    """Return what the add-on services of all hosts are given with a value at a place; None where the plan refuses it."""
    base = hostile.BASES["duo"]()
    try:
        hostile.put(base[part][host]["vars"][name], path, value)
        base = plain(base)
        return engine.make_plan(base["hosts"], RECIPES, lambda _path: None, base["groups"], base["others"], None)[
            "addons"
        ]
    except (InventoryError, ValueError):
        return None


@pytest.mark.parametrize("name", PARTS)
def test_a_text_stays_in_its_place(name: str) -> None:
    outcomes: Counter[bool] = Counter()
    failed = []
    for index, (part, host, _name, path) in enumerate(place for place in places() if place[2] == name):
        was = hostile.at(hostile.BASES["duo"]()[part][host]["vars"][name], path)
        values = NUMBERS if isinstance(was, (int, float)) and not isinstance(was, bool) else TEXTS
        for step in range(min(EACH, len(values))):
            value = values[(index * max(EACH, 3) + step) % len(values)]
            documents = planned(part, host, name, path, value)
            outcomes[documents is not None] += 1
            try:
                for made in (documents or {}).values():
                    role_files.check(made)
            except Exception as error:
                failed.append(f"{host}: {name} {path} = {value!a}: {type(error).__name__}: {ascii(str(error))[:160]}")
    assert not failed, f"{len(failed)} of {outcomes.total()}:\n" + "\n".join(failed)
    assert min(outcomes[True], outcomes[False]) >= min(EACH, 2), outcomes


def test_the_example_is_made_as_it_is_planned() -> None:
    base = plain(hostile.BASES["duo"]())
    planned_addons = engine.make_plan(base["hosts"], RECIPES, lambda _path: None, base["groups"], base["others"], None)[
        "addons"
    ]
    made = {role for part in planned_addons.values() for role in role_files.CHECKS if part.get(role)}
    assert made == set(role_files.CHECKS) and made | {"speech", "ollama", "watchdog", "guard"} == set(addons.ROLES)
    for part in planned_addons.values():
        role_files.check(part)
