"""What a fleet costs to plan: the same launch on many hosts is judged once, the weights of a model are counted once, and no host sees another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat import compat
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import service_memory
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import judging
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

FOLDER = Path(__file__).parents[5] / "playbooks" / "recipes"
RECIPES: dict[str, Any] = {
    name: yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8")) for name in ("qwen3-8b",)
}


def fleet(lengths: dict[str, int], **settings: Any) -> dict[str, Any]:
    hosts = {}
    for place, (name, length) in enumerate(lengths.items()):
        service = {
            "name": f"writer-{name}",
            "recipe": "qwen3-8b",
            "port": 8001,
            "args": {"max-model-len": length, "gpu-memory-utilization": 0.3},
        }
        told = {"spark_services": [service], "spark_total_gib": 119.67, "spark_model_dir": "/srv", **settings}
        hosts[name] = {"vars": told, "address": f"192.0.2.{place + 1}", "images": {}}
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


@pytest.fixture(autouse=True)
def empty() -> None:
    judging._judged.cache_clear()
    service_memory._resolve.cache_clear()
    service_memory._weights_once.cache_clear()


def test_weights_are_counted_once_whatever_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, service_memory, "weights_bytes")
    planned = fleet({"a": 8192, "b": 16384, "c": 32768})
    assert len(calls) == 1
    sizes = [host["services"][0]["memory"] for host in planned.values()]
    assert len({each["weights_bytes"] for each in sizes}) == 1
    assert sorted(each["needed_bytes_one_request"] for each in sizes) == [1207959552, 2415919104, 4831838208]


def test_a_launch_is_judged_once_and_each_host_has_its_own_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, compat, "check_launch")
    # The model itself has 40,960 tokens: something to be said of the launch.
    planned = fleet({"a": 65536, "b": 65536})
    assert len(calls) == 1
    one, two = (
        {(finding["rule"], finding["service"]) for finding in host["findings"] if finding["rule"].startswith("SPK")}
        for host in planned.values()
    )
    assert one and {service for _rule, service in one} == {"writer-a"}
    assert two == {(rule, "writer-b") for rule, _service in one}


def test_what_a_host_says_otherwise_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, compat, "check_launch")
    fleet({"a": 8192, "b": 8193})
    fleet({"a": 8192}, spark_ignore_rules=["SPK101"])
    assert len(calls) == 3
