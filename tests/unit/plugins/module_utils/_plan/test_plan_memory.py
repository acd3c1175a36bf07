# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory in a plan: solved options, shares, and other programs on a host."""

from __future__ import annotations

from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import judging
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

HEAVY = {"name": "heavy", "recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001}
FAST = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}


def with_args(service: dict[str, Any], **args: Any) -> dict[str, Any]:
    return {**service, "args": {key.replace("_", "-"): value for key, value in args.items()}}


def plan_of(*services: dict[str, Any], memory: dict[str, Any] | None = None, **variables: Any) -> dict[str, Any]:
    measured = None
    if memory:
        measured = {
            "machine": {"is_spark": True},
            "kernel": "6.17.0-1018-nvidia",
            "architecture": "aarch64",
            "gpu": {"name": "NVIDIA GB10", "driver_version": "580.159.03"},
            "memory": {"total_gib": 119.67, **memory},
            "docker": {"version": "29.2.1", "runtimes": ["nvidia", "runc"]},
            "disks": {"/srv/huggingface": {"free_gib": 900.0, "total_gib": 3700.0}},
        }
    host_input = {
        "vars": {"spark_services": list(services), **variables},
        "address": "192.168.1.11",
        "measured": measured,
    }
    planned: dict[str, Any] = engine.make_plan({"spark-1": host_input}, RECIPES)["hosts"]["spark-1"]
    return planned


def option(planned: dict[str, Any], name: str, key: str) -> str | None:
    command = next(service["command"] for service in planned["services"] if service["name"] == name)
    return command[command.index(f"--{key}") + 1] if f"--{key}" in command else None


def wrong(*services: dict[str, Any], **variables: Any) -> list[str]:
    with pytest.raises(InventoryError) as caught:
        plan_of(*services, **variables)
    return caught.value.messages


def test_the_first_inventory_of_the_design_solves() -> None:
    planned = plan_of(
        with_args(HEAVY, max_model_len=65536, max_num_seqs=4), with_args(FAST, max_model_len=16384, max_num_seqs=8)
    )
    assert [finding for finding in planned["findings"] if finding["severity"] == "error"] == []
    assert planned["start_order"] == ["heavy", "fast"]
    shares = [float(option(planned, name, "gpu-memory-utilization") or 0) for name in planned["start_order"]]
    assert shares[0] > shares[1] > 0
    assert round(sum(shares), 6) == planned["utilization_sum"] <= 0.926


@pytest.mark.parametrize("memory", [None, {"available_gib": 114.0}])
def test_auto_becomes_a_number_in_the_command(memory: dict[str, Any] | None) -> None:
    service = with_args(FAST, gpu_memory_utilization="auto", max_model_len="auto", max_num_seqs="auto")
    planned = plan_of(service, memory=memory)
    service_plan = planned["services"][0]
    for key in judging.SOLVED:
        assert float(option(planned, "fast", key) or 0) > 0
    assert "auto" not in service_plan["args"].values()
    assert service_plan["memory"]["solved"] == list(judging.SOLVED)
    assert [finding["service"] for finding in planned["findings"] if finding["rule"] == "memory.solved"] == ["fast"]


def test_the_longest_context_of_a_given_utilisation() -> None:
    planned = plan_of(with_args(FAST, gpu_memory_utilization=0.10, max_model_len="auto", max_num_seqs=1))
    length = int(option(planned, "fast", "max-model-len") or 0)
    assert length == planned["services"][0]["memory"]["largest_safe_max_model_len"] > 8192


def test_a_number_of_requests_that_was_left_out_stays_with_vllm() -> None:
    planned = plan_of(with_args(FAST, gpu_memory_utilization=0.3, max_num_seqs=None))
    assert option(planned, "fast", "max-num-seqs") is None


def test_a_default_that_vllm_would_refuse_is_replaced() -> None:
    """A model with recurrent state needs a block for each of the 256 requests that are vLLM's default."""
    image = {"ref": "vllm/vllm-openai:v0.24.0-ubuntu2404"}
    tight = with_args({**HEAVY, "image": image}, gpu_memory_utilization=0.675, max_model_len=4096, max_num_seqs=None)
    planned = plan_of(tight)
    assert 0 < int(option(planned, "heavy", "max-num-seqs") or 0) < 256
    assert not [finding for finding in planned["findings"] if finding["rule"] == "memory.state_blocks"]
    solved = next(finding for finding in planned["findings"] if finding["rule"] == "memory.solved")
    assert "vLLM's own max-num-seqs of 256" in solved["message"]
    tight_plan = plan_of(with_args({**HEAVY, "image": image}, **{**tight["args"], "max_num_seqs": 256}))
    assert [finding for finding in tight_plan["findings"] if finding["rule"] == "memory.state_blocks"]


def test_services_share_what_is_left_by_their_weights() -> None:
    twins = [with_args({**FAST, "name": name, "port": 8000 + index}) for index, name in enumerate(("a", "b"), 1)]
    for twin in twins:
        twin["args"] = {"max-model-len": 131072, "max-num-seqs": 64}
    even = plan_of(*twins)
    halves = [float(option(even, name, "gpu-memory-utilization") or 0) for name in ("a", "b")]
    assert 0 <= halves[0] - halves[1] <= 0.0101, "the odd step goes to the first by name"
    uneven = plan_of({**twins[0], "memory_share": 3}, twins[1])
    shares = [float(option(uneven, name, "gpu-memory-utilization") or 0) for name in ("a", "b")]
    least = float(option(plan_of({**twins[0], "memory_share": 0}), "a", "gpu-memory-utilization") or 0)
    assert shares[0] - least == pytest.approx(3 * (shares[1] - least), abs=0.03)


@pytest.mark.parametrize("share", [-1, "much", True, float("nan"), float("inf")])
def test_a_weight_is_a_number(share: Any) -> None:
    assert any("memory_share" in message for message in wrong({**FAST, "memory_share": share}))


def test_what_else_runs_on_the_host_takes_its_memory() -> None:
    service = with_args(FAST, gpu_memory_utilization=0.85)
    alone, beside = plan_of(service), plan_of(service, spark_sidecars=[{"name": "comfyui", "memory_gib": 20}])
    assert (alone["verdict"], beside["verdict"]) == ("fits", "fails")
    assert {"label": "comfyui", "gib": 20.0, "kind": "plain", "service": "comfyui"} in beside["memory_map"]
    assert [service["name"] for service in beside["services"]] == ["fast"], "it is not ours to start"


def test_a_sidecar_that_runs_is_not_counted_twice() -> None:
    """MemAvailable is without what runs already."""
    service = with_args(FAST, gpu_memory_utilization=0.70)
    sidecars = [{"name": "comfyui", "memory_gib": 20}]
    assert plan_of(service, spark_sidecars=sidecars, memory={"available_gib": 94.0})["verdict"] == "fits"
    assert plan_of(service, spark_sidecars=sidecars, memory={"available_gib": 74.0})["verdict"] == "fails"


def test_every_mistake_in_the_sidecars_is_told() -> None:
    messages = wrong(
        FAST,
        spark_sidecars=[
            "comfyui",
            {"name": "fast", "memory_gib": 1},
            {"name": "a", "memory_gib": 0},
            {"name": "a", "memory_gib": 1},
            {"nam": "b", "memory_gib": "much"},
        ],
    )
    for place, part_of_message in (
        (0, "must be a mapping"),
        ("", "'fast' of spark_sidecars is already the name of a service"),
        (2, "memory_gib' is 0"),
        (3, "'a'; another entry has that name"),
        (4, "did you mean 'name'?"),
        (4, "memory_gib' is a text"),
        (4, "name' is missing"),
    ):
        assert any(
            (f"spark_sidecars[{place}]" if place != "" else "") in message and part_of_message in message
            for message in messages
        ), part_of_message


def test_a_running_engine_holds_its_host_buffer_already() -> None:
    """nvidia-smi lists no host memory: a running engine holds its buffer in addition to the listed memory."""
    fast = with_args(FAST, gpu_memory_utilization=0.5, max_model_len=16384, kv_offloading_size=40)
    measured = {
        "machine": {"is_spark": True},
        "memory": {"total_gib": 119.67, "available_gib": 119.67 - 5.2 - 60 - 1.83 - 40},
        "resident": [{"name": "fast", "gib": 60.0}],
        "units": [],
    }
    host_input = {"vars": {"spark_services": [fast]}, "address": "192.168.1.11", "measured": measured}
    planned = engine.make_plan({"spark-1": host_input}, RECIPES)["hosts"]["spark-1"]
    errors = [finding["rule"] for finding in planned["findings"] if finding["severity"] == "error"]
    assert [rule for rule in errors if rule.startswith("memory.")] == []
    (service,) = planned["services"]
    assert service["memory"]["headroom_gib"]["typical"] > 40
