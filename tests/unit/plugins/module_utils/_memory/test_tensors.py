# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lists of tensors here are laid out as the published checkpoints are; the figures they must give are vLLM's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_fixture import GIB, config, service

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.tensors import tensors_bytes
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import (
    Split,
    Weights,
    drafter_bytes,
    weights_bytes,
)

Tensors = list[dict[str, Any]]


def tensor(name: str, *shape: int, dtype: str = "BF16") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def qwen3(config: dict[str, Any], gptq: bool = False) -> Tensors:
    """Qwen3, dense or with experts, in 16 bits or (all but the router and the head) as GPTQ of 4 bits."""
    hidden, head = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def linear(name: str, rows: int, columns: int) -> Tensors:
        if not gptq:
            return [tensor(f"{name}.weight", rows, columns)]
        return [
            tensor(f"{name}.qweight", columns // 8, rows, dtype="I32"),
            tensor(f"{name}.scales", columns // 128, rows, dtype="F16"),
            tensor(f"{name}.qzeros", columns // 128, rows // 8, dtype="I32"),
            tensor(f"{name}.g_idx", columns, dtype="I32"),
        ]

    def mlp(name: str, inner: int) -> Tensors:
        return (
            linear(f"{name}.gate_proj", inner, hidden)
            + linear(f"{name}.up_proj", inner, hidden)
            + linear(f"{name}.down_proj", hidden, inner)
        )

    made = [tensor("model.embed_tokens.weight", config["vocab_size"], hidden), tensor("model.norm.weight", hidden)]
    if not config.get("tie_word_embeddings"):
        made.append(tensor("lm_head.weight", config["vocab_size"], hidden))
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        made += linear(f"{layer}.self_attn.q_proj", query, hidden)
        made += linear(f"{layer}.self_attn.k_proj", key, hidden)
        made += linear(f"{layer}.self_attn.v_proj", key, hidden)
        made += linear(f"{layer}.self_attn.o_proj", hidden, query)
        made += [tensor(f"{layer}.self_attn.{letter}_norm.weight", head) for letter in "qk"]
        made += [tensor(f"{layer}.{name}_layernorm.weight", hidden) for name in ("input", "post_attention")]
        if config.get("num_experts"):
            made.append(tensor(f"{layer}.mlp.gate.weight", config["num_experts"], hidden))
            for expert in range(config["num_experts"]):
                made += mlp(f"{layer}.mlp.experts.{expert}", config["moe_intermediate_size"])
        else:
            made += mlp(f"{layer}.mlp", config["intermediate_size"])
    return made


def counted(config: dict[str, Any], tensors: Tensors, **fields: Any) -> Weights:
    split = Split(
        fields.pop("tensor", 1), fields.pop("pipeline", 1), fields.pop("experts", False), fields.pop("replicas", 1)
    )
    return tensors_bytes(tensors, config, read_geometry(config), split=split, **fields)


@pytest.fixture(scope="module")
def dense() -> Tensors:
    return qwen3(config("Qwen3-4B-Instruct-2507"))


@pytest.fixture(scope="module")
def sparse() -> Tensors:
    return qwen3(config("Qwen3-30B-A3B"))


def test_a_dense_model_is_what_vllms_model_class_takes(dense: Tensors) -> None:
    sizes = config("Qwen3-4B-Instruct-2507")
    assert counted(sizes, dense) == Weights(8044936192, 0, 8044936192)
    # Some checkpoints store the head although it is tied.
    head = tensor("lm_head.weight", sizes["vocab_size"], sizes["hidden_size"])
    assert counted(sizes, [*dense, head]).target == 8044936192


@pytest.mark.parametrize(("ranks", "gib"), [(1, 56.8705), (4, 14.2355)])
def test_experts_over_ranks(sparse: Tensors, ranks: int, gib: float) -> None:
    assert counted(config("Qwen3-30B-A3B"), sparse, tensor=ranks).target / GIB == pytest.approx(gib, abs=0.0001)
    # Experts that are handed out whole take as much as experts that are cut.
    undivided = counted(config("Qwen3-30B-A3B"), sparse, tensor=ranks, experts=True)
    assert undivided.target / GIB == pytest.approx(gib, abs=0.0001)


@pytest.mark.parametrize(
    ("split", "gib"), [({}, 115.63), ({"tensor": 2}, 57.873), ({"tensor": 2, "experts": True}, 57.827)]
)
def test_gptq(split: dict[str, Any], gib: float) -> None:
    sizes = {**config("Qwen3-235B-A22B", "GPTQ"), "num_hidden_layers": 4}
    # Four of the 94 layers are enough: they are alike.
    made = qwen3(sizes, gptq=True)
    edges = counted(
        {**sizes, "num_hidden_layers": 1},
        [item for item in made if ".layers." not in item["name"]]
        + [item for item in made if ".layers.0." in item["name"]],
        **split,
    ).target
    four = counted(sizes, made, **split).target
    layer = (four - edges) / 3
    assert (edges + 93 * layer) / GIB == pytest.approx(gib, rel=0.005)


def test_the_padding_of_mxfp4_is_counted() -> None:
    sizes = config("gpt-oss-20b", "MXFP4")
    hidden, inner, experts = 2880, 2880, 32
    made = [tensor("model.embed_tokens.weight", 201088, hidden), tensor("lm_head.weight", 201088, hidden)]
    made.append(tensor("model.norm.weight", hidden))
    for index in range(24):
        layer = f"model.layers.{index}"
        for name, rows, columns in (("q", 4096, hidden), ("k", 512, hidden), ("v", 512, hidden), ("o", hidden, 4096)):
            made.append(tensor(f"{layer}.self_attn.{name}_proj.weight", rows, columns))
            made.append(tensor(f"{layer}.self_attn.{name}_proj.bias", rows))
        made.append(tensor(f"{layer}.self_attn.sinks", 64))
        made += [tensor(f"{layer}.{name}_layernorm.weight", hidden) for name in ("input", "post_attention")]
        made += [tensor(f"{layer}.mlp.router.weight", experts, hidden), tensor(f"{layer}.mlp.router.bias", experts)]
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            prefix = f"{layer}.mlp.experts.{name}"
            made.append(tensor(f"{prefix}_blocks", experts, rows, columns // 32, 16, dtype="U8"))
            made.append(tensor(f"{prefix}_scales", experts, rows, columns // 32, dtype="U8"))
            made.append(tensor(f"{prefix}_bias", experts, rows))
    assert counted(sizes, made).target == pytest.approx(14679227520, rel=0.001)
    assert sum(counted(sizes, made, tensor=2).target for _rank in range(2)) == pytest.approx(14679227520, rel=0.002)


def test_vision_and_drafts_are_figures_of_their_own(dense: Tensors) -> None:
    sizes = {"text_config": config("Qwen3-4B-Instruct-2507"), "vision_config": {}, "model_type": "some_vl"}
    tower = [tensor("model.visual.blocks.0.attn.qkv.weight", 3072, 1024)]
    mtp = [
        tensor("mtp.layers.0.mlp.up_proj.weight", 1000, 1000),
        tensor("mtp.embed_tokens.weight", 151936, 2560),  # shared with the model
        tensor("model.layers.36.shared_head.head.weight", 151936, 2560),
    ]
    all_parts = counted(sizes, dense + tower + mtp, mtp=True)
    assert (all_parts.target, all_parts.vision, all_parts.draft) == (8044936192 + 6291456, 6291456, 2000000)
    assert counted(sizes, dense + tower + mtp, vision=False) == Weights(8044936192, 0, 8044936192)
    assert counted(sizes, dense + tower, tensor=2).vision == 3145728
    for fields, lost in (({}, "vision"), ({"vision": False, "mtp": True}, "MTP")):
        with pytest.raises(Refusal, match=lost):
            counted(sizes, dense, **fields)


def test_bytes_alone_will_do(dense: Tensors) -> None:
    sizes = [{"name": item["name"], "bytes": 2 * item["shape"][0] * (item["shape"] + [1])[1]} for item in dense]
    assert counted(config("Qwen3-4B-Instruct-2507"), sizes) == counted(config("Qwen3-4B-Instruct-2507"), dense)


def test_files_in_32_bits_are_loaded_in_the_dtype_of_the_model(dense: Tensors) -> None:
    wide = [{**item, "dtype": "F32"} for item in dense]
    assert counted(config("Qwen3-4B-Instruct-2507"), wide).target == 8044936192


def test_quantisation_at_run_time_loads_16_bits_first(sparse: Tensors) -> None:
    sizes = config("Qwen3-30B-A3B")
    made = counted(sizes, sparse, runtime_quantization="fp8")
    assert made.load_peak == 61064245248
    computed = weights_bytes(sizes, read_geometry(sizes), runtime_quantization="fp8")
    assert (made.target, made.load_peak) == pytest.approx((computed.target, computed.load_peak), rel=0.001)
    only = counted(sizes, sparse, runtime_quantization="experts_int8")
    assert made.target < only.target < made.load_peak
    with pytest.raises(Refusal, match=r"args\.quantization"):
        counted(sizes, sparse, runtime_quantization="bitsandbytes")


def test_more_ranks_than_kv_heads(dense: Tensors) -> None:
    sizes = config("Qwen3-4B-Instruct-2507")
    eight, sixteen = (counted(sizes, dense, tensor=ranks).target for ranks in (8, 16))
    # Of 36 layers, k and v (2 x 1024 x 2560) stay one head a rank; the norms are whole on every rank.
    norms = (36 * (2 * 2560 + 2 * 128) + 2560) * 2
    replicated = 36 * 2 * 128 * 2560 * 2
    assert sixteen - norms - replicated == pytest.approx((eight - norms - replicated) / 2, rel=1e-6)
    computed = weights_bytes(sizes, read_geometry(sizes), split=Split(tensor=16)).target
    assert sixteen == pytest.approx(computed, rel=1e-5)


@settings(max_examples=10)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3]), st.booleans())
def test_dividing_never_adds_and_never_loses(ranks: int, stages: int, experts: bool) -> None:
    sizes = {**config("Qwen3-30B-A3B"), "num_hidden_layers": 2}
    made = qwen3(sizes)
    undivided = counted(sizes, made).target
    part = counted(sizes, made, tensor=ranks, experts=experts).target
    assert undivided <= part * ranks + ranks
    assert counted(sizes, made, tensor=2 * ranks, experts=experts).target <= part <= undivided
    assert part <= counted(sizes, made, tensor=ranks).target
    assert counted(sizes, made, tensor=ranks, pipeline=stages, experts=experts).target <= part
    computed = weights_bytes(sizes, read_geometry(sizes), split=Split(tensor=ranks, experts=experts)).target
    assert part == pytest.approx(computed, rel=1e-4)


@pytest.mark.parametrize("experts", [True, False])
@pytest.mark.parametrize(("tensor", "replicas"), [(1, 2), (1, 4), (2, 2), (1, 3)])
def test_replicas_have_the_experts_between_them(tensor: int, replicas: int, experts: bool) -> None:
    sizes = {**config("Qwen3-30B-A3B"), "num_hidden_layers": 4}
    made = counted(sizes, qwen3(sizes), tensor=tensor, replicas=replicas, experts=experts).target
    computed = weights_bytes(
        sizes,
        read_geometry(sizes),
        split=Split(tensor=tensor, experts=experts, replicas=replicas),
    ).target
    assert made == pytest.approx(computed, rel=1e-4)


@pytest.mark.parametrize(
    ("entry", "key", "text"),
    [
        ({"name": "model.x.weight", "dtype": "INT4", "shape": [1]}, "tensors[398].dtype", "'INT4' is not known"),
        ({"name": "model.norm.weight", "dtype": "BF16", "shape": [2560]}, "tensors[398].name", "model.norm.weight"),
        ({"name": "model.x.weight", "dtype": "BF16"}, "tensors[398]", "needs dtype and shape, or bytes"),
        ({"name": "model.x.weight", "dtype": "BF16", "shape": [-1]}, "tensors[398].shape", "whole numbers"),
        ({"name": "model.x.weight", "bytes": "4"}, "tensors[398].bytes", "whole number"),
        (
            {"name": "model.x.weight", "dtype": "BF16", "shape": [4], "bytes": 4},
            "tensors[398].bytes",
            "do not match",
        ),
        ({"name": "model.x.weight", "bytes": 4, "data_offsets": [0, 4]}, "tensors[398]", "data_offsets"),
        ("model.x.weight", "tensors[398]", "expected a mapping"),
        ({"dtype": "BF16", "shape": [1]}, "tensors[398]", "expected a mapping"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(dense: Tensors, entry: Any, key: str, text: str) -> None:
    with pytest.raises(Refusal, match=text) as caught:
        counted(config("Qwen3-4B-Instruct-2507"), [*dense, entry])
    assert caught.value.key == key
    assert caught.value.fix


@pytest.mark.parametrize(
    ("model", "lost", "text"),
    [
        ("dense", ".layers.7.", "missing: layer 7$"),
        ("dense", ".layers.1", r"missing: layer 1, layer 10, layer 11, layer 12, layer 13 and 6 more"),
        ("dense", "embed_tokens", "missing: the embedding"),
        ("sparse", "lm_head", "missing: the head"),
        ("sparse", ".layers.3.mlp.experts.17.", "missing: expert 17 of layer 3$"),
    ],
)
def test_a_list_that_is_not_the_whole_model_is_refused(
    model: str, lost: str, text: str, request: pytest.FixtureRequest
) -> None:
    sizes = config({"dense": "Qwen3-4B-Instruct-2507", "sparse": "Qwen3-30B-A3B"}[model])
    part = [item for item in request.getfixturevalue(model) if lost not in item["name"]]
    with pytest.raises(Refusal, match=text) as caught:
        counted(sizes, part)
    assert caught.value.key == "tensors"


def test_experts_that_the_config_does_not_count_are_refused(sparse: Tensors) -> None:
    sizes = {**config("Qwen3-30B-A3B"), "num_experts": None}
    with pytest.raises(Refusal) as caught:
        counted(sizes, sparse)
    assert caught.value.key == "config.num_experts"


def test_experts_in_one_tensor_are_handed_out_whole(dense: Tensors) -> None:
    sizes = config("Qwen3-4B-Instruct-2507")
    stacked = [*dense, tensor("model.layers.0.mlp.experts.gate_up_proj", 6, 100, 10)]
    added = [
        counted(sizes, stacked, tensor=4, experts=experts).target - counted(sizes, dense, tensor=4).target
        for experts in (True, False)
    ]
    # Two of the six experts, or a quarter of each.
    assert added == [2 * 100 * 10 * 2, 6 * 100 * 10 * 2 // 4]


def test_the_budget_takes_them(sparse: Tensors) -> None:
    request = {**service("moe", "Qwen3-30B-A3B", max_model_len=16384, tensor_parallel_size=2), "tensors": sparse}
    made = memory_budget({"services": [request]})
    assert made["services"]["moe"]["weights_bytes"] == pytest.approx(61064245248 / 2, rel=0.001)
    # They take precedence over a stated size, and missing tensors are a finding instead of a crash.
    assert memory_budget({"services": [{**request, "weights_gib": 1.0}]})["services"] == made["services"]
    refused = memory_budget({"services": [{**request, "tensors": sparse[:-3]}]})
    assert [finding["rule"] for finding in refused["findings"]] == ["memory.refused"]
    assert "expert 127 of layer 47" in refused["findings"][0]["message"]
    with pytest.raises(InputError, match="tensors: expected a list"):
        memory_budget({"services": [{**request, "tensors": {}}]})


def test_the_budget_of_a_separate_drafter() -> None:
    draft = {**config("Qwen3-4B-Instruct-2507"), "num_hidden_layers": 1, "draft_vocab_size": 32000}

    def drafted(**spec: Any) -> Any:
        request = service("a", "Qwen3-8B", max_model_len=16384, tensor_parallel_size=2)
        request["args"]["speculative-config"] = {"num_speculative_tokens": 3, "model": "some/drafter", **spec}
        return memory_budget({"services": [{**request, "draft_config": draft}]})

    geometry = read_geometry(draft)
    for method in ("eagle", "eagle3", "draft_model"):
        sizes = drafted(method=method, draft_tensor_parallel_size=2)
        assert sizes["services"]["a"]["draft_bytes"] == drafter_bytes(draft, geometry, method, tensor_parallel=2)
        apart = drafted(method=method, draft_tensor_parallel_size=1)
        assert "a drafter on other ranks than the model is not known" in apart["findings"][0]["message"]
