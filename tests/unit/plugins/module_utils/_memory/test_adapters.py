"""Room for LoRA adapters: bytes of vLLM's own classes, launches on a GPU, ranges, and unknown families."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import adapters
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weight_formats import Quantization
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Split

ROOT = Path(__file__).parents[5]
FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = json.loads((FIXTURES / "adapter_rows.json").read_text(encoding="utf-8"))
PLANS = json.loads((FIXTURES / "image_plans.json").read_text(encoding="utf-8"))
GIB = 2**30
FOUR = {"enable-lora": True, "max-loras": 4, "max-lora-rank": 64}
# Of one block of Qwen3-4B's cache.
BLOCK = 36 * 2 * 16 * 8 * 128 * 2


def config(recipe: str) -> dict[str, Any]:
    result: dict[str, Any] = yaml.safe_load((ROOT / f"playbooks/recipes/{recipe}.yml").read_text(encoding="utf-8"))
    return dict(result["config"])


def room(
    config: dict[str, Any], args: dict[str, Any], version: str = "0.33.0", quant: dict[str, Any] | None = None
) -> adapters.Room:
    minor = parse_release(version).minor if version else None
    split = Split(
        args.get("tensor-parallel-size", 1),
        args.get("pipeline-parallel-size", 1),
        bool(args.get("enable-expert-parallel")),
    )
    padded = Quantization(config, quant, "", minor).padded_experts
    return adapters.compute_room(config, read_geometry(config), args, split, minor=minor, padded=padded)


def plan(args: dict[str, Any], recipe: str = "qwen3-4b-instruct-2507", **service: Any) -> dict[str, Any]:
    fields = {"name": "x", "vllm_version": "0.26.0", "config": config(recipe), "args": args, **service}
    return memory_budget({"services": [fields], "total_gib": 79.18})


@pytest.mark.parametrize("row", RECORDED["rows"], ids=lambda row: f"{row[1]}-{row[0]}-{len(row[2])}")
def test_the_room_is_what_vllms_own_classes_set_aside(row: list[Any]) -> None:
    version, model, args, size = row
    result = room(RECORDED["configs"][model], args, version, RECORDED["quant"].get(model))
    assert result.exact
    assert result.low == result.typical == result.high == size


def test_rows_are_of_many_versions_and_kinds_of_layers() -> None:
    assert len({row[0] for row in RECORDED["rows"]}) >= 4
    families = {read_geometry(item).model_type for item in RECORDED["configs"].values()}
    assert families <= adapters.COMPARED
    assert {"qwen3", "qwen3_next", "nemotron_h", "deepseek_v3", "gpt_oss", "gemma4_text", "llama4_text"} <= families


@pytest.mark.parametrize(
    ("slots", "rank", "blocks", "gib"),
    [(4, 64, 13_593, 1.22), (1, 16, 14_115, 0.07)],
    ids=["four-of-rank-64", "one-of-rank-16"],
)
def test_a_gpu_lost_as_much_of_its_cache(slots: int, rank: int, blocks: int, gib: float) -> None:
    """vLLM 0.26.0 on an H100, Qwen3-4B: 14,150 blocks without adapters. Torch rounds allocations up: 1.5 % in this launch."""
    args = {"enable-lora": True, "max-loras": slots, "max-lora-rank": rank}
    result = room(config("qwen3-4b-instruct-2507"), args, "0.26.0")
    lost = (14_150 - blocks) * BLOCK
    assert result.exact
    assert result.typical == pytest.approx(lost, rel=0.02, abs=BLOCK)
    assert result.typical / GIB == pytest.approx(gib, rel=0.02, abs=0.006)


def test_a_tied_head_had_room_of_its_own_before_0_28() -> None:
    fields = config("qwen3-4b-instruct-2507")
    pair_bytes = 4 * 64 * 2 * (151_936 + 2560)
    assert room(fields, FOUR, "0.27.1").typical - room(fields, FOUR, "0.28.0").typical == pair_bytes
    assert room(fields, FOUR, "0.15.1").typical == room(fields, FOUR, "0.28.0").typical - 2 * pair_bytes


def test_what_nobody_compared_is_a_range_and_never_nothing() -> None:
    fields = {**config("qwen3-8b"), "model_type": "qwen2"}
    for result in (
        room(fields, FOUR),
        room(config("qwen3-8b"), FOUR, ""),
        room(config("qwen3-8b"), {**FOUR, "lora-target-modules": ["q_proj"]}),
    ):
        assert not result.exact
        assert 0 <= result.low < result.typical < result.high
    exact = room(config("qwen3-8b"), FOUR)
    estimate = room(fields, FOUR)
    assert estimate.low < exact.typical < estimate.high


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"enable-tower-connector-lora": True}, "args.enable-tower-connector-lora"),
        ({"enable-moe-shared-loras": True}, "args.enable-moe-shared-loras"),
        ({"lora-dtype": "float8"}, "args.lora-dtype"),
    ],
)
def test_an_option_that_is_not_known_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(Refusal) as refused:
        room(config("qwen3-8b"), {**FOUR, **change})
    assert refused.value.key == key and refused.value.fix


def test_no_adapters_take_nothing() -> None:
    assert room(config("qwen3-8b"), {"max-loras": 4}) == adapters.Room()


def test_the_plan_counts_them_as_weights_and_names_them() -> None:
    args = {"gpu-memory-utilization": 0.5, "max-model-len": 16384, "max-num-seqs": 16, "enforce-eager": True}
    plain, result = plan(args), plan({**args, **FOUR})
    size = room(config("qwen3-4b-instruct-2507"), FOUR, "0.26.0").typical
    before, after = plain["services"]["x"], result["services"]["x"]
    assert before["adapters_bytes"] == 0
    assert after["adapters_bytes"] == after["weights_bytes"] - before["weights_bytes"] == size
    for level in ("low", "typical", "high"):
        assert before["available_kv_bytes"][level] - after["available_kv_bytes"][level] == size
    assert after["sources"] == before["sources"]
    parts = {part["label"]: part["gib"] for part in result["memory_map"]}
    assert parts["x adapters"] == pytest.approx(size / GIB, abs=0.01)
    assert sum(parts.values()) == pytest.approx(79.18, abs=0.05)
    assert "x adapters" not in {part["label"] for part in plain["memory_map"]}
    # Copies in host memory: outside of the request, and 0 at the low level.
    assert after["beside_gib"] == before["beside_gib"]
    (copies,) = [item["gib"] for item in after["host_memory"] if item["name"] == "adapter copies"]
    assert copies["low"] == 0
    assert copies["typical"] == pytest.approx(4 * 0.246, abs=0.01)
    assert copies["high"] == pytest.approx(2 * copies["typical"], abs=0.02)


def test_a_range_widens_what_is_inside() -> None:
    args = {"gpu-memory-utilization": 0.5, "max-model-len": 16384, **FOUR}
    some = {**args, "lora-target-modules": ["q_proj"]}
    exact, wide = (plan(item, vllm_version="0.33.0")["services"]["x"]["overhead_gib"] for item in (args, some))
    result = room(config("qwen3-4b-instruct-2507"), some)
    assert wide["typical"] == exact["typical"]
    assert wide["high"] - exact["high"] == pytest.approx((result.high - result.typical) / GIB, abs=0.011)
    assert exact["low"] - wide["low"] == pytest.approx((result.typical - result.low) / GIB, abs=0.011)


def test_an_unknown_family_is_refused_by_name() -> None:
    launches = json.loads((FIXTURES / "compared_launches.json").read_text(encoding="utf-8"))
    fields = {"config": launches["configs"]["GLM-5.2"], "vllm_version": "0.33.0"}
    (message,) = [item["message"] for item in plan(FOUR, **fields)["findings"] if item["rule"] == "memory.refused"]
    assert "what adapters of the family 'glm_moe_dsa' take is not known" in message
    assert "memory.refused" not in {item["rule"] for item in plan({}, **fields)["findings"]}


def answer_about(adapter: dict[str, Any] | None) -> dict[str, Any]:
    answer = copy.deepcopy(PLANS["dense"]["answer"])
    if adapter is not None:
        answer["ranks"][0]["adapters"] = adapter
    return {"answer": answer, "reason": ""}


def test_what_the_image_says_stands_in_for_a_range_and_for_what_is_not_known() -> None:
    args = {"max-model-len": 16384, "max-num-seqs": 4, "max-num-batched-tokens": 8192, **FOUR}
    arguments = {**args, "lora-target-modules": ["q_proj"]}
    messages = {"bytes": 123_456_789, "modules": {"model.layers.*.self_attn.qkv_proj": 123_456_789}}
    result = plan(arguments, vllm_version="0.33.0", image_plan=answer_about(messages))["services"]["x"]
    assert result["adapters_bytes"] == 123_456_789
    # A model that the arithmetic does not know at all.
    new = plan(args, vllm_version="0.33.0", config={"model_type": "of_next_year"}, image_plan=answer_about(messages))[
        "services"
    ]["x"]
    assert new["adapters_bytes"] == 123_456_789
    assert new["weights_bytes"] == PLANS["dense"]["answer"]["ranks"][0]["weights"]["target"]["bytes"] + 123_456_789


@pytest.mark.parametrize(
    "adapter", [None, {"failure": {"stage": "adapters", "kind": "unknown", "type": "KeyError", "text": "no"}}]
)
def test_an_image_that_does_not_say_leaves_it_unknown(adapter: dict[str, Any] | None) -> None:
    result = plan(FOUR, vllm_version="0.33.0", config={"model_type": "of_next_year"}, image_plan=answer_about(adapter))
    assert result["services"]["x"] == {"verdict": "fails"}
    assert "the memory of adapters is not known" in " ".join(item["message"] for item in result["findings"])


def test_an_image_that_says_otherwise_is_named() -> None:
    args = {"max-model-len": 16384, "max-num-seqs": 4, "max-num-batched-tokens": 8192, **FOUR}
    result = plan(args, vllm_version="0.33.0", image_plan=answer_about({"bytes": 5, "modules": {}}))
    (message,) = [item["message"] for item in result["findings"] if item["rule"] == "memory.differs"]
    size = room(config("qwen3-4b-instruct-2507"), FOUR).typical
    assert f"bytes of the adapters {size} and 5" in message


def test_a_number_that_is_none_is_a_mistake_of_the_input() -> None:
    with pytest.raises(InputError, match="max-loras"):
        plan({**FOUR, "max-loras": 0})
