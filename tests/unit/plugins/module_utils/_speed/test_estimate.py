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
    prefill_seconds,
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


MTP = {"method": "mtp", "num_speculative_tokens": 2}


def test_a_batch_takes_the_experts_of_the_graph_that_it_runs_in() -> None:
    key = "qwen36-35b-fp8"
    plain = read(service(key)).launch
    experts = [step_time(plain, GB10, streams, 0).memory for streams in (5, 8, 9, 16)]
    # The graphs of 8 and 16; a batch of 5 or 9 has as many experts, but fewer states.
    state = 2 * plain.reads.stages[0].state / GB10.bandwidth
    assert experts[1] - experts[0] == pytest.approx(3 * state)
    assert experts[3] - experts[2] == pytest.approx(7 * state)
    exact = read(service(key, cudagraph_capture_sizes=[1, 5, 8])).launch
    assert exact.captured == (1, 5, 8)
    assert step_time(exact, GB10, 5, 0).memory < experts[0]
    assert read(service(key, max_cudagraph_capture_size=4)).launch.captured == (1, 2, 4)
    assert max(read(service(key, max_cudagraph_capture_size=1 << 24)).launch.captured) == 1 << 14
    assert read(service(key, compilation_config={"cudagraph_capture_sizes": [0, "8", None]})).launch.captured == ()
    nested = service(key, compilation_config={"cudagraph_capture_sizes": [4, 2]})
    assert read(nested).launch.captured == (2, 4)
    # Larger batches and eager ones have no graph.
    for launch in (read(nested).launch, replace(plain, eager=True)):
        assert launch.padded(5) == 5
    # Whole graphs with drafts have a multiple of the tokens of a step.
    assert read(service(key, speculative_config=MTP)).launch.captured[:5] == (3, 6, 9, 18, 24)


def test_the_state_after_each_draft_is_written() -> None:
    stage = read(service("qwen36-35b-fp8")).reads.stages[0]
    plain, drafts = (step_bytes(stage, 4, width, 0, 1.0).state for width in (1, 3))
    assert plain == 2 * 4 * stage.state and drafts == 4 * 4 * stage.state


@pytest.mark.parametrize(
    ("version", "args", "piecewise"),
    [
        ("0.27.0", {"attention_backend": "FLASHINFER"}, True),
        ("0.27.0", {"attention_backend": "flashinfer", "kv_cache_dtype": "fp8"}, True),
        ("0.27.0", {"kv_cache_dtype": "fp8"}, True),
        ("0.27.0", {"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}, False),
        ("0.27.0", {}, False),
        ("0.28.0", {"kv_cache_dtype": "fp8"}, False),
        ("0.33.0", {"compilation_config": {"cudagraph_mode": "piecewise"}}, True),
        ("0.27.0", {"kv_cache_dtype": "fp8", "compilation_config": {"cudagraph_mode": "FULL"}}, False),
    ],
)
def test_graphs_of_steps_with_drafts_are_in_pieces_where_flashinfer_has_no_others(
    version: str, args: dict[str, Any], piecewise: bool
) -> None:
    entry = {**service("qwen36-35b-nvfp4-nv", speculative_config=MTP, **args), "vllm_version": version}
    launch = read(entry).launch
    assert launch.piecewise == piecewise
    # The processor starts attention between the pieces, for which it takes longer than the GPU for a small step.
    whole = replace(launch, piecewise=False)
    assert (decode_seconds(launch, GB10, 1, 0) > 1.1 * decode_seconds(whole, GB10, 1, 0)) == piecewise
    assert decode_seconds(launch, GB10, 64, 0) == decode_seconds(whole, GB10, 64, 0)


def test_a_pass_of_a_drafter_reads_experts_and_its_cache() -> None:
    launch = read(service("qwen36-35b-fp8", speculative_config=MTP)).launch
    assert launch.reads.draft is not None and launch.drafting is not None
    (layer,) = launch.reads.draft.experts
    # Both passes run in the graph of three tokens.
    experts = touched_experts(layer.count, layer.active, 3, GB10.alpha) * layer.size
    verify = step_time(launch, GB10, 1, 0, 3).total
    passes = decode_seconds(launch, GB10, 1, 0) * launch.drafting.accepted - verify
    plain = (launch.reads.draft.weights + launch.reads.draft.head) / GB10.bandwidth + GB10.draft
    assert passes == pytest.approx(2 * plain + 2 * experts / GB10.bandwidth_experts)
    # Its attention reads keys and values too.
    long = (
        decode_seconds(launch, GB10, 1, 50_000) * launch.drafting.accepted - step_time(launch, GB10, 1, 50_000, 3).total
    )
    cache = launch.reads.stages[0].contexts[-1].token_bytes * 50_000
    assert long - passes == pytest.approx(2 * cache / GB10.bandwidth_cache)


def first_token(key: str, prompt: int = 1024, **args: Any) -> float:
    value: float = estimate(service(key, **args), workload={"prompt_tokens": [prompt]})["ttft"][str(prompt)]["typical"]
    return value


def test_products_that_are_planned_for_the_length_of_a_prompt_cost_time() -> None:
    """FlashInfer's of 4 bits, and of FP8 without blocks."""
    for key in ("llama70b-nvfp4", "ministral3-3b"):
        planned, fixed = (read(service(key, linear_backend=name)).launch for name in ("auto", "marlin"))
        rates = replace(GB10, flops_fp4=GB10.flops_4bit_marlin, flops_fp8=GB10.flops_fp8_marlin)
        more = prefill_seconds(planned, rates, 1024) - prefill_seconds(fixed, rates, 1024)
        assert more == pytest.approx(GB10.shape)
    blocks = read(service("qwen36-35b-fp8"))
    assert not blocks.reads.stages[0].has_whole_fp8
    same = replace(GB10, flops_fp8=GB10.flops_fp8_marlin)
    marlin = read(service("qwen36-35b-fp8", linear_backend="marlin")).launch
    assert prefill_seconds(blocks.launch, same, 1024) == pytest.approx(prefill_seconds(marlin, same, 1024))


def test_experts_that_compute_in_4_bits_are_faster_in_prefill_alone() -> None:
    key = "qwen36-35b-nvfp4-nv"
    times = {name: first_token(key, 8192, moe_backend=name) for name in ("auto", "marlin", "triton")}
    assert len(set(times.values())) == 1
    for name in ("flashinfer_cutlass", "flashinfer_b12x", "b12x"):
        assert 0.88 * times["marlin"] < first_token(key, 8192, moe_backend=name) < 0.97 * times["marlin"]
        assert rate(service(key, moe_backend=name)) == rate(service(key))
    # Experts of 8 bits are computed in 8.
    assert first_token("qwen36-35b-fp8", moe_backend="flashinfer_cutlass") == first_token("qwen36-35b-fp8")


def test_a_stream_with_drafts_has_the_range_of_a_batch() -> None:
    key = "qwen36-27b-nvfp4-nv"
    drafts, plain = (
        estimate(service(key, **args), acceptance=2)["decode"]["1"] for args in ({"speculative_config": MTP}, {})
    )
    assert drafts["high"] / drafts["low"] > 1.3 * plain["high"] / plain["low"]
