# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranges of a service, their causes, and the reasons for unknown figures."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.constants import BUS
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.estimate import speed_estimate

FIXTURES = Path(__file__).parents[2] / "fixtures"


@lru_cache(maxsize=1)
def configs() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / "speed_configs.json").read_text(encoding="utf-8"))
    return loaded


def service(key: str, **args: Any) -> dict[str, Any]:
    entry = configs()[key]
    config = {**entry["config"], "max_position_embeddings": 131072}
    spelled = {name.replace("_", "-"): value for name, value in args.items()}
    return {
        "name": "one",
        "config": config,
        "quant_config": entry.get("quant_config"),
        "vllm_version": "0.33.0",
        "args": spelled,
    }


def estimate(entry: dict[str, Any], **params: Any) -> dict[str, Any]:
    result: dict[str, Any] = speed_estimate({"services": [entry], **params})["services"]["one"]
    return result


def rate(entry: dict[str, Any], streams: int = 1, **params: Any) -> float:
    value: float = estimate(entry, **params)["decode"][str(streams)]["typical"]
    return value


@pytest.mark.parametrize("key", sorted(configs()))
def test_every_model_is_read_and_none_is_faster_than_its_memory(key: str) -> None:
    result = estimate(service(key, kv_cache_dtype="fp8"))
    assert result["decode"]["1"]["typical"] <= result["ceiling"]
    assert result["ceiling"] == pytest.approx(BUS / result["bytes_per_token"]["total"], rel=0.01)
    for figures in (result["decode"], result["aggregate"]):
        assert all(range_["low"] < range_["typical"] < range_["high"] for range_ in figures.values())


def test_streams_share_the_bus() -> None:
    result = estimate(service("qwen3-coder-30b-nvfp4"), workload={"concurrency": [1, 8, 64]})
    each = [result["decode"][streams]["typical"] for streams in ("1", "8", "64")]
    together = [result["aggregate"][streams]["typical"] for streams in ("1", "8", "64")]
    assert each == sorted(each, reverse=True)
    assert together == sorted(together)


def test_a_long_context_and_a_wide_cache_cost_speed() -> None:
    plain = service("llama70b-nvfp4")
    short, long = (rate(plain, workload={"prompt_tokens": [tokens]}) for tokens in (1024, 100_000))
    assert long < 0.8 * short
    narrow = rate(service("llama70b-nvfp4", kv_cache_dtype="fp8"), workload={"prompt_tokens": [100_000]})
    assert narrow > 1.1 * long


def test_two_sparks_are_faster_than_one_but_not_twice_as_fast() -> None:
    one, two = (service("llama70b-nvfp4", tensor_parallel_size=ranks) for ranks in (1, 2))
    assert estimate(two)["sparks"] == 2
    assert 1.2 * rate(one) < rate(two) < 2 * rate(one)


def test_eager_mode_is_slower_and_bound_by_launches_where_the_model_is_small() -> None:
    graphs, eager = (estimate(service("qwen35-0.8b", enforce_eager=value)) for value in (False, True))
    assert eager["decode"]["1"]["typical"] < 0.6 * graphs["decode"]["1"]["typical"]
    assert eager["bound_by"] == "launch overhead"
    assert graphs["bound_by"] == "memory"


def test_a_drafter_has_the_range_of_its_acceptance() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 2}
    drafting = service("qwen36-27b-nvfp4-nv", speculative_config=spec)
    assert rate(drafting) > rate(service("qwen36-27b-nvfp4-nv"))
    stated, best = (estimate(drafting, acceptance=value)["decode"]["1"] for value in (2.0, 3.0))
    assert best["typical"] == pytest.approx(1.5 * stated["typical"], rel=0.01)
    wide = estimate(drafting)["decode"]["1"]
    assert wide["high"] / wide["low"] > stated["high"] / stated["low"]


@pytest.mark.parametrize(
    ("entry", "params", "figure", "reason"),
    [
        (service("dsv4-flash", tensor_parallel_size=2, kv_cache_dtype="fp8"), {}, "prefill", "sparse attention"),
        (
            service("dsv4-flash", tensor_parallel_size=2, kv_cache_dtype="fp8", enforce_eager=True),
            {},
            "decode",
            "latent attention without CUDA graphs",
        ),
        (
            service("llama70b-nvfp4", speculative_config={"method": "eagle3", "num_speculative_tokens": 3}),
            {},
            "decode",
            "size of the drafter",
        ),
        (
            service("qwen36-27b-bf16", speculative_config={"method": "mtp", "num_speculative_tokens": 9}),
            {},
            "decode",
            "was not published",
        ),
        (
            service("qwen36-27b-bf16", speculative_config={"method": "mtp", "num_speculative_tokens": 1}),
            {"acceptance": 3},
            "decode",
            "at most 2",
        ),
        (service("qwen36-27b-bf16", decode_context_parallel_size=2), {}, "all", "decode-context-parallel-size"),
        (
            {**service("qwen36-27b-bf16", tensor_parallel_size=2), "nodes": 3},
            {},
            "all",
            "2 ranks take as many Sparks, not 3",
        ),
        (
            {
                **service("llama70b-nvfp4"),
                "config": {**configs()["llama70b-nvfp4"]["config"], "model_type": "never-seen"},
            },
            {},
            "all",
            "never-seen",
        ),
        ({"name": "one", "memory_gib": 4}, {}, "all", "give config"),
    ],
)
def test_an_unknown_figure_has_a_reason(
    entry: dict[str, Any], params: dict[str, Any], figure: str, reason: str
) -> None:
    result = estimate(entry, **params)
    assert reason in result["unknown"][figure]
    assert {"all": "decode"}.get(figure, figure) not in result


@pytest.mark.parametrize(
    ("params", "parts"),
    [
        ({"services": []}, ["services: expected a list"]),
        ({"services": "all"}, ["services: expected a list"]),
        (
            {
                "services": [{**service("gpt-oss-20b"), "nodes": -1}],
                "workload": {"concurrency": [0], "prompt_tokens": "many", "batch": 1},
                "acceptance": float("nan"),
            },
            ["workload.batch", "workload.concurrency", "workload.prompt_tokens", "acceptance", "services[0].nodes"],
        ),
        ({"services": [{"name": "one", "config": 3, "size": 1}]}, ["config: expected a mapping", "size: unknown key"]),
        ({"services": [service("gpt-oss-20b")], "workload": [1]}, ["workload: expected a mapping"]),
    ],
)
def test_wrong_input_is_named_all_at_once(params: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        speed_estimate(params)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("key", "model"),
    [
        ("num_experts_per_tok", "qwen3-coder-30b-nvfp4"),
        ("moe_intermediate_size", "qwen3-coder-30b-nvfp4"),
        ("num_experts", "qwen3-coder-30b-nvfp4"),
        ("hidden_size", "llama70b-nvfp4"),
        ("num_attention_heads", "llama70b-nvfp4"),
        ("num_attention_heads_per_layer", "llama70b-nvfp4"),
        ("moe_latent_size", "qwen3-coder-30b-nvfp4"),
    ],
)
@pytest.mark.parametrize("value", [-1, 1, 2.5, "x", [1], [None] * 3, {"a": 1}, True, 1 << 70, float("inf")])
def test_a_config_with_any_value_is_predicted_or_refused(key: str, model: str, value: Any) -> None:
    entry = service(model)
    entry["config"] = {**entry["config"], key: value}
    try:
        result = estimate(entry)
    except InputError:
        return
    assert "decode" in result or result["unknown"]["all"]
