# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
import yaml
from memory_fixture import fast, heavy
from module_calls import call_module
from returned_fixture import named

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import OVERHEADS
from ansible_collections.dgxspark.vllm.plugins.modules import memory_budget


def run(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    return call_module(memory_budget, args, capsys)


def test_plans_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, services=[heavy(), fast()], _ansible_check_mode=True)
    assert (result["changed"], result["verdict"], result["start_order"]) == (False, "fits", ["heavy", "fast"])


def test_a_plan_that_fails_is_no_failed_task(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(
        capsys,
        services=[heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.12)],
        measured={"mem_available_gib": 98.51, "resident": [{"name": "fast", "gib": 16}]},
    )
    assert not result.get("failed")
    assert result["verdict"] == "fails"
    assert any("(98.51/119.67 GiB)" in finding.get("vllm_error", "") for finding in result["findings"])


def test_malformed_input_fails_with_every_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, total_gib=-5, services=[fast(max_num_seqs=0), {"name": "fast", "memory_gib": 1}])
    assert result["failed"]
    assert result["errors"] == [
        "total_gib: must be above 0, got -5.0",
        "service fast: args.max-num-seqs: expected a whole number of at least 1, got 0",
        "services: name: 'fast' stands 2 times, names must be unique on a host",
    ]


def test_the_documentation_names_every_overhead_and_every_result(capsys: pytest.CaptureFixture[str]) -> None:
    documented = yaml.safe_load(memory_budget.DOCUMENTATION)
    text = " ".join(documented["options"]["overheads"]["description"])
    assert [term for term in (*OVERHEADS, "inside_gib") if f"C({term})" not in text] == []
    returned = yaml.safe_load(memory_budget.RETURN)
    result = run(capsys, services=[heavy(), {**fast(), "memory_gib": 12}])
    assert set(returned) == set(result) - {"changed", "invocation"}
    names = set(result["services"]["heavy"]) | set(result["services"]["fast"])
    assert names - named(memory_budget.RETURN, "services") == set()


def test_the_documentation_names_every_key_of_a_finding_and_of_the_map(capsys: pytest.CaptureFixture[str]) -> None:
    returned = yaml.safe_load(memory_budget.RETURN)
    result = run(capsys, services=[heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.12)])
    for name in ("findings", "memory_map"):
        text = str(returned[name]["description"])
        keys = {key for item in result[name] for key in item}
        assert [key for key in sorted(keys) if f"C({key})" not in text] == []
        assert set(returned[name]["sample"][0]) <= keys


def test_text_values_of_a_template_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    typed = fast(gpu_memory_utilization="0.1", max_model_len="16K", max_num_seqs="2", enable_prefix_caching="true")
    native = fast(gpu_memory_utilization=0.1, max_model_len=16384, max_num_seqs=2, enable_prefix_caching=True)
    written = {"total_gib": "121.69", "os_reserve_gib": "5"}
    result = run(capsys, services=[typed], **written)
    expected = run(capsys, services=[native], total_gib=121.69, os_reserve_gib=5)
    assert {**result, "invocation": None} == {**expected, "invocation": None}
