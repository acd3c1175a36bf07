# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One cause gives one error, and its fix satisfies every check."""

from __future__ import annotations

from typing import Any

import pytest
from memory_fixture import fast, heavy, node_with_a_generous_neighbour, node_without_memory

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import list_causes
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import ROOM_RULES, memory_budget


def budget(*services: dict[str, Any]) -> dict[str, Any]:
    return memory_budget({"total_gib": 119.67, "services": list(services)})


def apply(changes: list[dict[str, Any]], services: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {change["service"]: change["args"] for change in changes}
    return [{**service, "args": {**service["args"], **by_name.get(service["name"], {})}} for service in services]


def room_errors(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in result["findings"] if item["rule"] in ROOM_RULES and item["severity"] == "error"]


@pytest.mark.parametrize(
    "services",
    [
        [heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.12)],
        [heavy(gpu_memory_utilization=0.7), fast(gpu_memory_utilization=0.6)],
        [fast(max_model_len=262144, max_num_seqs=64, gpu_memory_utilization=0.99)],
        [heavy(gpu_memory_utilization=0.66, max_model_len=262144)],
        [fast(gpu_memory_utilization=0.05)],
    ],
)
def test_the_fix_of_a_cause_satisfies_every_check(services: list[dict[str, Any]]) -> None:
    result = budget(*services)
    causes = list_causes(result["findings"])
    assert len(causes) == 1, causes
    assert causes[0]["changes"], causes
    fixed = budget(*apply(causes[0]["changes"], services))
    assert room_errors(fixed) == []


def test_two_services_that_fit_one_by_one_are_one_error_that_names_on_demand() -> None:
    twin = {**heavy(gpu_memory_utilization=None), "name": "twin"}
    result = budget(heavy(gpu_memory_utilization=None), twin)
    (cause,) = list_causes(result["findings"])
    assert cause["rule"] == "memory.node"
    assert "heavy (" in cause["message"] and "twin (" in cause["message"] and "are missing" in cause["message"]
    assert "on_demand: {exclusive: big}" in cause["fix"]
    assert "Free memory on device" in cause["vllm_error"]  # the first error that vLLM prints
    assert {
        item["consequence_of"] for item in room_errors(result) if item is not cause and item.get("consequence_of")
    } == {"memory.node"}


def test_a_service_that_is_too_large_by_itself_is_the_cause_and_its_neighbour_is_not_blamed() -> None:
    result = budget(
        heavy(max_model_len=262144, max_num_seqs=200, gpu_memory_utilization=0.99), fast(gpu_memory_utilization=0.1)
    )
    causes = list_causes(result["findings"])
    assert {cause["service"] for cause in causes} == {"heavy"}


def test_services_that_already_run_one_at_a_time_are_not_told_to() -> None:
    services = [heavy(gpu_memory_utilization=0.95), {**fast(gpu_memory_utilization=0.4)}]
    for service in services:
        service["exclusive"] = "big"
    for cause in list_causes(budget(*services)["findings"]):
        assert "on_demand" not in cause["fix"]


def test_a_fix_that_holds_only_without_the_other_services_says_so_and_has_no_changes() -> None:
    cause, shared = list_causes(memory_budget(node_without_memory())["findings"])
    assert (cause["rule"], cause["service"]) == ("memory.free_at_start", "s2")
    assert cause["fix"] == (
        "Set gpu-memory-utilization of s2 to 0.15; then run s0 and s1 and s2 one at a time, each started by its first request "
        "(on_demand: {exclusive: big}), or move s2 to another Spark."
    )
    assert "changes" not in cause
    assert (shared["rule"], shared["service"]) == ("memory.node", "")
    assert shared["fix"].startswith("Run s0 and s1 one at a time")
    assert "changes" not in shared


def test_a_fix_that_holds_only_without_the_other_services_leaves_one_at_a_time_out_if_some_already_run_so() -> None:
    node = node_without_memory()
    node["services"][0]["exclusive"] = "big"
    (cause,) = [item for item in list_causes(memory_budget(node)["findings"]) if item["service"] == "s2"]
    assert cause["fix"] == "Set gpu-memory-utilization of s2 to 0.15; then move s2 to another Spark."
    assert "changes" not in cause


def test_a_service_that_needs_the_memory_of_a_neighbour_has_a_fix_for_both() -> None:
    node = node_with_a_generous_neighbour()
    (cause,) = list_causes(memory_budget(node)["findings"])
    assert (cause["rule"], cause["service"]) == ("memory.no_cache_memory", "s2")
    assert [change["service"] for change in cause["changes"]] == ["s2", "s1"]
    fixed = memory_budget({**node, "services": apply(cause["changes"], node["services"])})
    assert list_causes(fixed["findings"]) == []
