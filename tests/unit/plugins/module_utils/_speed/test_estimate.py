# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranges of a service, their causes, and the reasons for unknown figures."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import memory_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_input import read_params
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.constants import BUS, GB10, SEVERAL_SPARKS
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.estimate import (
    SpeedInput,
    ceiling,
    decode_range,
    read_bytes,
    read_service,
    speed_estimate,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.time_model import (
    Drafting,
    Launch,
    decode_seconds,
    step_bytes,
    step_time,
    touched_experts,
)

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


def read(entry: dict[str, Any], **env: str) -> SpeedInput:
    _host, (item,) = read_params({"total_gib": 119.67, "services": [entry]})
    return read_service(item, {**entry, "env": env})


FAST, SLOW = "cutlass", "marlin"
VARIABLE, FORCED = "VLLM_NVFP4_GEMM_BACKEND", "VLLM_TEST_FORCE_FP8_MARLIN"


@pytest.mark.parametrize(
    ("key", "version", "args", "env", "kernels"),
    [
        ("llama70b-nvfp4", "0.33.0", {}, {}, {"fp4": FAST, "fp8": FAST}),
        ("llama70b-nvfp4", "0.33.0", {"linear_backend": "marlin"}, {}, {"fp4": SLOW, "fp8": SLOW}),
        ("llama70b-nvfp4", "0.33.0", {"linear_backend": "auto"}, {}, {"fp4": FAST}),
        # The variable is of FP4 alone, and 0.24 has it no more.
        ("llama70b-nvfp4", "0.23.0", {}, {VARIABLE: "marlin"}, {"fp4": SLOW, "fp8": FAST}),
        ("llama70b-nvfp4", "0.24.0", {}, {VARIABLE: "marlin"}, {"fp4": FAST, "fp8": FAST}),
        ("llama70b-nvfp4", "0.28.0", {}, {FORCED: "1"}, {"fp4": FAST, "fp8": SLOW}),
        ("llama70b-nvfp4", "0.29.0", {}, {FORCED: "1"}, {"fp4": FAST, "fp8": FAST}),
        # Weights alone are quantised.
        ("qwen36-27b-nvfp4-nv", "0.33.0", {}, {}, {"fp4": SLOW, "fp8": FAST}),
        ("qwen38-27b-nvfp4-unsloth", "0.33.0", {"linear_backend": "flashinfer_cutlass"}, {}, {"fp4": FAST}),
    ],
)
def test_kernels_are_those_of_options_or_of_vllm_itself(
    key: str, version: str, args: dict[str, Any], env: dict[str, str], kernels: dict[str, str]
) -> None:
    launch = read({**service(key, **args), "vllm_version": version}, **env).launch
    assert {name: launch.kernels[name] for name in kernels} == kernels


@pytest.mark.parametrize(
    ("weights", "activations", "name", "kernel"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, None, "fp8", FAST),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, None, "int8", SLOW),
        ({"num_bits": 8, "type": "int", "strategy": "group", "group_size": 128}, None, "int8", SLOW),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8}, "int8", FAST),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, None, "int4", None),
    ],
)
def test_integers_of_eight_bits_are_not_fp8(weights: Any, activations: Any, name: str, kernel: str | None) -> None:
    entry = service("qwen25-coder-7b")
    groups = {"group_0": {"weights": weights, "input_activations": activations, "targets": ["Linear"]}}
    entry["config"]["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}
    speed_input = read(entry)
    assert name in speed_input.reads.stages[0].flops and speed_input.launch.kernels.get(name) == kernel


def test_the_ceiling_of_a_batch_counts_the_experts_of_one_token() -> None:
    launch = read(service("qwen3-coder-30b-nvfp4")).launch
    assert ceiling(launch, 16) == pytest.approx(16 * ceiling(launch, 1))
    assert ceiling(launch, 16) > 1.5 * 16 * BUS / read_bytes(launch, 16, 0, GB10).total


@pytest.mark.parametrize("key", ["qwen3-coder-30b-nvfp4", "nano-nvfp4", "qwen25-coder-7b"])
@pytest.mark.parametrize(("stages", "streams", "length"), [(1, 16, 4096), (2, 1, 4096), (2, 16, 4096), (4, 6, 60_000)])
def test_no_schedule_of_a_pipeline_is_above_the_ceiling(key: str, stages: int, streams: int, length: int) -> None:
    """Batches of any sizes, as many as stages: the slowest is a batch that passes all stages, or a stage that serves all batches."""
    launch = read(service(key, pipeline_parallel_size=stages)).launch
    limit = ceiling(launch, streams, length)
    reads_ = [
        [step_bytes(stage, n, 1, length, 1e-9).total for n in range(streams + 1)] for stage in launch.reads.stages
    ]
    best = 0.0
    for sizes in itertools.combinations_with_replacement(range(streams + 1), stages):
        if sum(sizes) == streams:
            passes = max(sum(stage[size] for stage in reads_) for size in sizes)
            served = max(sum(stage[size] for size in sizes if size) for stage in reads_)
            best = max(best, streams * BUS / max(passes, served))
    assert 0.4 * limit < best <= limit * 1.0001
    if stages == 1 or streams == 1:
        assert best == pytest.approx(limit)


def test_replicas_that_divide_experts_communicate_and_others_do_not() -> None:
    moe, dense = "qwen3-coder-30b-nvfp4", "llama70b-nvfp4"
    single, joined = (read(service(moe, data_parallel_size=count, enable_expert_parallel=True)) for count in (1, 2))
    assert (joined.sparks, joined.joined, joined.launch.replicas) == (2, 2, 2)
    # 16 streams of each replica: half of the experts that 32 tokens touch, and the imbalance of the ranks.
    expert = joined.reads.stages[0].experts[0]
    read_experts = read_bytes(joined.launch, 16, 0, GB10).experts / len(joined.reads.stages[0].experts) / expert.size
    assert read_experts > touched_experts(expert.count, expert.active, 32, GB10.alpha) / 2
    assert step_time(single.launch, GB10, 16, 0).reduces == 0 < step_time(joined.launch, GB10, 16, 0).reduces
    wide, narrow = (decode_range(speed_input, 16, 0, GB10) for speed_input in (joined, single))
    assert wide.high / wide.typical == SEVERAL_SPARKS.high < narrow.high / narrow.typical
    apart, alone = (read(service(dense, data_parallel_size=count)) for count in (2, 1))
    assert (apart.sparks, apart.joined) == (2, 1)
    assert decode_range(apart, 4, 0, GB10) == decode_range(alone, 4, 0, GB10)
    both = estimate(service(dense, data_parallel_size=2), workload={"concurrency": [8]})
    assert both["sparks"] == 2
    assert both["decode"]["8"] == estimate(service(dense), workload={"concurrency": [4]})["decode"]["4"]


def test_a_pass_of_several_mtp_layers_reads_one_of_them() -> None:
    launch = read(service("qwen36-27b-nvfp4-nv")).launch
    layer = replace(launch.reads.stages[0], head=1e8, weights=6e8, quantised=0.0, experts=[], layers=1)
    times = []
    for count, passes in ((1, 3), (3, 3), (3, 1)):
        draft = replace(layer, weights=count * layer.weights, layers=count)
        drafts = replace(launch, reads=replace(launch.reads, draft=draft), drafting=Drafting(3, 1.0, passes))
        times.append(decode_seconds(drafts, GB10, 1, 0) - step_time(launch, GB10, 1, 0, 4).total)
    assert times[1] == pytest.approx(times[0])
    assert times[2] == pytest.approx((3 * 6e8 + 1e8) / GB10.bandwidth + GB10.draft)


def test_a_draft_model_has_layers_a_cache_and_its_own_head() -> None:
    spec = {"method": "draft_model", "num_speculative_tokens": 3}
    entry = {
        **service("qwen25-coder-32b", speculative_config=spec),
        "draft_config": configs()["qwen2.5-3b-bf16"]["config"],
    }
    launch = read(entry).launch
    drafting = launch.drafting
    assert drafting is not None and drafting.model is not None
    for length in (0, 30_000):
        alone = step_time(Launch(drafting.model, kernels=launch.kernels), GB10, 1, length).total
        verify = step_time(launch, GB10, 1, length, 4).total
        passes = decode_seconds(launch, GB10, 1, length) - verify
        assert passes == pytest.approx(3 * (alone - GB10.step + GB10.draft))
    # Of a stated size only: without the head of the model, which it does not use.
    stated = {key: value for key, value in entry.items() if key != "draft_config"} | {"draft_weights_gib": 5.75}
    launch = read(stated).launch
    passes = decode_seconds(launch, GB10, 1, 0) - step_time(launch, GB10, 1, 0, 4).total
    assert passes == pytest.approx(3 * (5.75 * 2**30 / GB10.bandwidth + GB10.draft))


def test_latent_attention_of_many_heads_is_bound_by_compute() -> None:
    entry = memory_fixture.service("one", "DeepSeek-V3")
    entry["config"]["num_experts_per_tok"] = 8
    speed_input = read(entry)
    context = speed_input.reads.stages[0].contexts[0]
    assert context.decode_flops == 2 * 128 * (576 + 512) and context.token_bytes == 2 * 576
    times = [step_time(speed_input.launch, GB10, 64, length) for length in (0, 100_000)]
    memory, compute = (getattr(times[1], name) - getattr(times[0], name) for name in ("memory", "compute"))
    assert compute == pytest.approx(64 * 61 * 100_000 * context.decode_flops / GB10.flops_bf16)
    assert compute > 0.9 * memory
    # Keys and values of heads are read, not computed.
    plain = [step_time(read(service("qwen25-coder-7b")).launch, GB10, 64, length) for length in (0, 100_000)]
    assert plain[1].compute - plain[0].compute < 0.1 * (plain[1].memory - plain[0].memory)
