# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files


def planned(**variables: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan of one host, and its add-on services."""
    service = {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001}
    variables_of_host = {"spark_services": [service], "spark_total_gib": 119.67, **variables}
    plan = engine.make_plan(
        {"spark-1": {"vars": variables_of_host, "address": "192.0.2.1"}}, RECIPES, lambda _path: "0" * 64
    )
    return plan["hosts"]["spark-1"], plan["addons"]["spark-1"]


def test_the_document_has_all_that_is_rendered_by_the_part_that_owns_it() -> None:
    variables = {
        "spark_speech": [{"name": "ears", "kind": "asr"}],
        "spark_ollama": {"models": ["qwen3:8b"]},
        "spark_watchdog": {},
        "spark_guard": True,
        "spark_host_protection": True,
        "spark_gpu_clocks": {"max_mhz": 2200},
        "spark_power": {"idle": "save"},
    }
    plan, addons = planned(**variables)
    state = unit_files.planned_state(plan, addons, None, located)
    made = unit_files.render(plan, addons)
    parts = {"host", "service", "speech", "ollama", "watchdog", "guard"}
    assert {row.part for kind in vars(state).values() for row in kind} == parts
    assert [file.path for file in state.files] == [file["path"] for part in made.values() for file in part["files"]]
    guards = [unit.name for unit in state.of_parts({"guard"}).units]
    # The agent by guard and live page.
    assert guards == ["spark-agent.service", "spark-agent.service", "spark-gpu-clocks.service", "spark-power.service"]
    assert [account.name for account in state.accounts] == ["dgxspark"]
    assert [row.path for row in state.of_parts({"watchdog"}).removed] == [unit_files.PYTHON_STACKS]
    # Parts that share files of the library do so with the same content.
    assert len(state.distinct().files) < len(state.files)
    assert state.dump() == unit_files.planned_state(*planned(**variables), None, located).dump()


def test_parts_that_are_planned_as_absent_have_no_rows() -> None:
    plan, addons = planned(spark_watchdog=False, spark_guard=False, spark_live=False, spark_host_protection=False)
    addons = {**addons, "ollama": {"state": "absent"}}
    state = unit_files.planned_state(plan, addons, None, located)
    assert state.parts() == {"host", "service"}
    assert {unit.name for unit in state.units} == {"spark-heavy.service"}
