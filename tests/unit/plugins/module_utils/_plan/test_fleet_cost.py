"""The cost of planning a fleet: a launch on many hosts is judged once, weights are counted once, and results are not shared between hosts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat import compat
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import (
    budget,
    service_input,
    service_memory,
    service_weights,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import judging
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

FOLDER = Path(__file__).parents[5] / "playbooks" / "recipes"
RECIPES: dict[str, Any] = {
    name: yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8")) for name in ("qwen3-8b",)
}


EIGHT = {"name": "a", "config": RECIPES["qwen3-8b"]["config"], "vllm_version": "0.19.0"}
"""A service as the memory budget takes it."""


def fleet(lengths: dict[str, int], **settings: Any) -> dict[str, Any]:
    hosts = {}
    for place, (name, length) in enumerate(lengths.items()):
        service = {
            "name": f"writer-{name}",
            "recipe": "qwen3-8b",
            "port": 8001,
            "args": {"max-model-len": length, "gpu-memory-utilization": 0.3},
        }
        variables = {"spark_services": [service], "spark_total_gib": 119.67, "spark_model_dir": "/srv", **settings}
        hosts[name] = {"vars": variables, "address": f"192.0.2.{place + 1}", "images": {}}
    planned: dict[str, Any] = engine.make_plan(hosts, RECIPES, lambda path: f"{len(path):064x}")["hosts"]
    return planned


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    real = getattr(module, name)

    def count(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(module, name, count)
    return calls


@pytest.fixture(autouse=True, name="empty")
def empty_before_each_test() -> None:
    empty_caches()


def empty_caches() -> None:
    judging._judged.cache_clear()
    budget._judge_once.cache_clear()
    service_input._read_once.cache_clear()
    service_memory._resolve.cache_clear()
    service_weights._count_weights.cache_clear()


def test_weights_are_counted_once_whatever_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, service_weights, "weights_bytes")
    planned = fleet({"a": 8192, "b": 16384, "c": 32768})
    assert len(calls) == 1
    sizes = [host["services"][0]["memory"] for host in planned.values()]
    assert len({size["weights_bytes"] for size in sizes}) == 1
    assert sorted(size["needed_bytes_one_request"] for size in sizes) == [1207959552, 2415919104, 4831838208]


def test_a_launch_is_judged_once_and_each_host_has_its_own_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, compat, "check_launch")
    # The model itself has 40,960 tokens: something to be said of the launch.
    planned = fleet({"a": 65536, "b": 65536})
    assert len(calls) == 1
    first, two = (
        {(finding["rule"], finding["service"]) for finding in host["findings"] if finding["rule"].startswith("SPK")}
        for host in planned.values()
    )
    assert first and {service for _rule, service in first} == {"writer-a"}
    assert two == {(rule, "writer-b") for rule, _service in first}


def test_what_a_host_says_otherwise_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, compat, "check_launch")
    fleet({"a": 8192, "b": 8193})
    fleet({"a": 8192}, spark_ignore_rules=["SPK101"])
    assert len(calls) == 3


def test_equal_nodes_are_worked_out_once_and_share_nothing_that_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, budget, "_judge_node")
    request = {"total_gib": 119.67, "services": [{**EIGHT, "args": {"max-model-len": 8192}}]}
    first = budget.memory_budget(request)
    expected = json.dumps(first)
    once = len(calls)
    spoil(first)
    assert json.dumps(budget.memory_budget(copy.deepcopy(request))) == expected
    assert len(calls) == once


@pytest.mark.parametrize(
    "other",
    [
        {"total_gib": 119.68},
        {"os_reserve_gib": 5.3},
        {"safety_margin_gib": 2.5},
        {"overheads": {"outside_gib": 2.0}},
        {"measured": {"mem_available_gib": 100}},
        {"measured": {"mem_available_gib": 100, "mem_free_gib": 3}},
        {"measured": {"mem_available_gib": 100, "resident": [{"name": "a", "gib": 20}]}},
        {"measured": {"mem_available_gib": 100, "resident": [{"name": "a", "gib": 21}]}},
        {"services": [{**EIGHT, "args": {"max-model-len": 8193}}]},
        {"services": [{**EIGHT, "args": {"max-model-len": 8192, "enable-prefix-caching": False}}]},
        {"services": [{**EIGHT, "args": {"max-model-len": 8192}, "share": 0.5}]},
        {"services": [{**EIGHT, "args": {"max-model-len": 8192}, "exclusive": "one"}]},
        {"services": [{**EIGHT, "args": {"max-model-len": 8192}, "weights_gib": 15}]},
        {"services": [{**EIGHT, "args": {"max-model-len": 8192}, "vllm_version": "0.20.0"}]},
    ],
)
def test_a_node_that_differs_in_anything_is_worked_out_by_itself(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    request = {"total_gib": 119.67, "services": [{**EIGHT, "args": {"max-model-len": 8192}}]}
    alone = budget.memory_budget({**request, **other})
    empty_caches()
    calls = counted(monkeypatch, budget, "_judge_node")
    budget.memory_budget(request)
    before = len(calls)
    assert budget.memory_budget({**request, **other}) == alone
    assert len(calls) > before


def test_what_is_wrong_with_an_entry_is_said_each_time() -> None:
    request = {"services": [{**EIGHT, "args": {"max-model-len": 0}}]}
    for _time in range(2):
        with pytest.raises(InputError, match="max-model-len"):
            budget.memory_budget(request)
    # True is not 1, though Python takes them for equal.
    budget.memory_budget({"services": [{**EIGHT, "args": {"max-num-seqs": 1}}]})
    with pytest.raises(InputError, match="max-num-seqs"):
        budget.memory_budget({"services": [{**EIGHT, "args": {"max-num-seqs": True}}]})


def test_what_a_service_should_run_is_its_own_on_each_host() -> None:
    planned = fleet({"a": 8192, "b": 8192})
    first, two = (host["services"][0]["fast_path"] for host in planned.values())
    assert first == two and first
    spoil(first)
    assert first != two


def spoil(value: Any) -> None:
    """Change everything that can be changed in a place."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        spoil(item)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")
