# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_fixture import GIB, config, load, service

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.formats import Format
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal, stages_of_layers
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.vision_modules import vision_tower
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weight_formats import RUNTIME_FORMATS
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import (
    Split,
    Weights,
    drafter_bytes,
    is_tied,
    weights_bytes,
)

LAUNCHED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "compared_launches.json").read_text(encoding="utf-8")
)["configs"]
MORE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "weights_rows.json").read_text(encoding="utf-8")
)
MLP = ("gate", "up", "down")
# Bytes that vLLM's own classes take on a rank (0.33.0, model_loader on the meta device): replicas, ranks of each, experts handed out whole.
REPLICAS = [
    ("Qwen3-Next-80B-A3B", 2, 1, True, 82039373568),
    ("Qwen3-Next-80B-A3B", 4, 1, False, 43384667904),
    ("Qwen3-Next-80B-A3B", 4, 1, True, 43384667904),
    ("Qwen3-Next-80B-A3B", 2, 2, True, 41221321088),
    ("Qwen3-Next-80B-A3B", 2, 2, False, 41070326144),
    ("DeepSeek-V3", 2, 1, True, 688144037888),
    ("DeepSeek-V3", 4, 1, False, 361189652480),
    ("DeepSeek-V3", 4, 1, True, 361189652480),
    ("DeepSeek-V3", 2, 2, True, 347657254912),
    ("DeepSeek-V3", 2, 2, False, 345102923776),
    ("Qwen3-30B-A3B-FP8", 2, 1, True, 32073216000),
    ("Qwen3-30B-A3B-FP8", 4, 1, False, 17577701376),
    ("Qwen3-30B-A3B-FP8", 4, 1, True, 17577701376),
    ("Qwen3-30B-A3B-FP8", 2, 2, True, 16049401856),
    ("Qwen3-30B-A3B-FP8", 2, 2, False, 16049401856),
    ("GLM-4.7-Flash", 2, 1, True, 32115782656),
    ("GLM-4.7-Flash", 4, 1, False, 18224247808),
    ("GLM-4.7-Flash", 4, 1, True, 18224247808),
    ("GLM-4.7-Flash", 2, 2, True, 16199578624),
    ("GLM-4.7-Flash", 2, 2, False, 16199578624),
    ("ERNIE-4.5-21B-A3B", 2, 1, True, 23275409152),
    ("ERNIE-4.5-21B-A3B", 4, 1, False, 13083250432),
    ("ERNIE-4.5-21B-A3B", 4, 1, True, 13083250432),
    ("ERNIE-4.5-21B-A3B", 2, 2, True, 11646701312),
    ("ERNIE-4.5-21B-A3B", 2, 2, False, 11646701312),
    ("gpt-oss-20b", 2, 1, True, 9137437824),
    ("gpt-oss-20b", 4, 1, False, 6490504320),
    ("gpt-oss-20b", 4, 1, True, 6366542976),
    ("gpt-oss-20b", 2, 2, True, 4571141760),
    ("gpt-oss-20b", 2, 2, False, 4695103104),
    ("gpt-oss-20b", 2, 1, False, 9380641920),
    ("gpt-oss-20b", 1, 2, False, 7585240704),
]


def count(model: str, quantization: str | None = None, **fields: Any) -> Weights:
    weights = config(model, quantization)
    return weights_bytes(weights, read_geometry(weights), **fields)


@pytest.mark.parametrize(
    "row", load()["weights"], ids=lambda row: f"{row['model']} {row['quantization']} tp{row['tensor_parallel']}"
)
def test_parameters_of_vllms_own_model_classes(row: dict[str, Any]) -> None:
    weights = count(row["model"], row["quantization"], split=Split(tensor=row["tensor_parallel"])).target
    assert weights == pytest.approx(row["bytes"], rel=row["tolerance"], abs=0)


@pytest.mark.parametrize(
    "row",
    MORE["rows"],
    ids=lambda row: f"{row['model']} {row['quantization']} tp{row['tensor_parallel']} {row['expert_parallel']}",
)
def test_more_of_vllms_own_model_classes(row: dict[str, Any]) -> None:
    weights = MORE["configs"].get(row["model"]) or config(row["model"])
    name = f"{row['model']} {row['quantization']}"
    counted = weights_bytes(
        weights,
        read_geometry(weights),
        quant_config=MORE["quantization"].get(name) or load()["quantization"][name],
        split=Split(tensor=row["tensor_parallel"], experts=row["expert_parallel"]),
    )
    expected = row.get("bytes") or row["gib"] * GIB
    assert counted.target == pytest.approx(expected, rel=row["tolerance"], abs=0)


@pytest.mark.parametrize(("model", "replicas", "ranks", "whole_experts", "size"), REPLICAS)
def test_replicas_of_vllms_own_model_classes(
    model: str, replicas: int, ranks: int, whole_experts: bool, size: int
) -> None:
    weights = {**LAUNCHED[model]}
    if model != "gpt-oss-20b":  # in 16 bits, all others
        weights.pop("quantization_config", None)
    counted = weights_bytes(
        weights,
        read_geometry(weights),
        split=Split(tensor=ranks, experts=whole_experts, replicas=replicas),
        vision=False,
    ).target
    assert counted == pytest.approx(size, rel=2e-7)


@pytest.mark.parametrize("whole_experts", [True, False])
def test_a_stated_size_is_shared_out_among_replicas_as_the_config_says(whole_experts: bool) -> None:
    """56.87 GiB in all; the experts of it are halved, and nothing else."""
    args = {"max_model_len": 4096, "max_num_seqs": 4, "data_parallel_size": 2, "enable_expert_parallel": whole_experts}
    fields = service("moe", "Qwen3-30B-A3B", **args)
    by_config, stated = (
        memory_budget({"total_gib": 119.67, "services": [{**fields, **more}]})["services"]["moe"]["weights_bytes"]
        for more in ({}, {"weights_gib": 56.8705})
    )
    assert stated == pytest.approx(by_config, rel=1e-4)


@pytest.mark.parametrize("row", MORE["drafts"], ids=lambda row: f"{row['model']} tp{row['tensor_parallel']}")
def test_drafters_of_vllms_own_model_classes(row: dict[str, Any]) -> None:
    """vLLM's figure is the one before it shares the embedding and the head with the model."""
    weights = config(row["model"])
    text = weights.get("text_config", weights)
    shared = 2 * 2 * text["vocab_size"] * text["hidden_size"] // row["tensor_parallel"]
    counted = count(row["model"], split=Split(tensor=row["tensor_parallel"]), mtp=True)
    assert counted.draft + shared == row["bytes"]


@pytest.mark.parametrize("row", MORE["parameters"], ids=lambda row: str(row["model"]))
def test_parameters_that_model_pages_name(row: dict[str, Any]) -> None:
    weights = row["config"]
    text = weights.get("text_config", weights)
    counted = weights_bytes(weights, read_geometry(weights)).target / 2
    padding = (-text["vocab_size"] % 64) * text["hidden_size"] * (1 if is_tied(weights) else 2)
    if text["model_type"] in ("ernie4_5_moe", "glm4_moe", "glm4_moe_lite"):  # their routers are in 32 bits, too
        experts = text.get("moe_num_experts") or text["n_routed_experts"]
        dense = text.get("moe_layer_start_index") or text.get("first_k_dense_replace") or 0
        padding += (text["num_hidden_layers"] - dense) * experts * text["hidden_size"]
    # One part in ten millions: the routers' biases are kept in 32 bits.
    assert counted - padding == pytest.approx(row["count"], rel=1e-7, abs=0)


@pytest.mark.parametrize(
    ("model", "quantization", "fields", "gib"),
    [
        ("Qwen3.6-35B-A3B", "NVFP4", {"mtp": True}, 21.94),  # Model loading took, DGX Spark
        ("Qwen3-235B-A22B", "GPTQ", {"split": Split(2)}, 57.64),  # per node of a pair
        ("Qwen3-30B-A3B", None, {"split": Split(4)}, 14.2474),  # vllm#17469
    ],
)
def test_published_loads(model: str, quantization: str | None, fields: dict[str, Any], gib: float) -> None:
    weights = count(model, quantization, **fields)
    assert (weights.target + weights.draft) / GIB == pytest.approx(gib, rel=0.03)


def test_the_drafter_is_counted_without_what_it_shares() -> None:
    assert count("Qwen3-Next-80B-A3B", "FP8", mtp=True).draft / GIB == pytest.approx(1.54, abs=0.01)
    assert count("Qwen3.6-35B-A3B", "NVFP4", mtp=True).draft / GIB == pytest.approx(1.57, abs=0.01)
    assert count("Qwen3-Next-80B-A3B", "FP8").draft == 0


def test_the_vision_tower_can_be_left_out() -> None:
    with_tower, text = count("Qwen3.6-35B-A3B"), count("Qwen3.6-35B-A3B", vision=False)
    assert (with_tower.target - text.target) / GIB == pytest.approx(0.83, abs=0.01)
    assert (with_tower.vision, text.vision) == (with_tower.target - text.target, 0)


def test_a_tower_is_read_off_the_whole_config() -> None:
    assert list(vision_tower(config("Qwen3-8B"))) == []
    tower = list(vision_tower(config("Qwen3.6-35B-A3B")))
    assert {module.name.split(".")[0] for module in tower} == {"visual"}
    with pytest.raises(Refusal, match=r"config\.audio_config"):
        list(vision_tower({**config("Qwen3.6-35B-A3B"), "audio_config": {"hidden_size": 8}}))


def test_every_rank_has_the_whole_tower_of_gemma_4() -> None:
    """Read off vLLM 0.19.1 with two ranks: the tower is a model of Transformers, which is not divided."""
    single, two = (count("Gemma-4-31B", split=Split(tensor=ranks)) for ranks in (1, 2))
    assert single.vision == two.vision == 1_151_482_464
    assert single.target - single.vision > 1.9 * (two.target - two.vision)


SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
MADE_UP: dict[str, dict[str, Any]] = {
    "minimax_m2": {
        **dict(zip(SIZES, (3072, 1536, 62, 48, 8, 200064), strict=True)),
        **{"head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "use_routing_bias": True},
    },
    "helium": {**dict(zip(SIZES, (2560, 7040, 24, 20, 20, 48000), strict=True)), "head_dim": 128},
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]}


@pytest.mark.parametrize(
    ("family", "ranks", "quantization", "size"),
    [
        ("minimax_m2", 1, None, 457477079040),
        ("minimax_m2", 2, None, 228836472832),
        ("minimax_m2", 4, None, 114516169728),
        ("minimax_m2", 1, BLOCKS, 230121631216),
        ("minimax_m2", 4, BLOCKS, 57677308144),
        ("helium", 1, None, 4345287680),
        ("helium", 4, None, 1086510080),
    ],
)
def test_parameters_of_configs_that_are_in_no_fixture(
    family: str, ranks: int, quantization: dict[str, Any] | None, size: int
) -> None:
    """Read off the model classes of vLLM 0.32.0; its FP8 layers have two further numbers each for the scales of the cache."""
    weights = {**MADE_UP[family], "model_type": family, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
    if quantization:
        weights["quantization_config"] = quantization
    counted = weights_bytes(weights, read_geometry(weights), split=Split(tensor=ranks)).target
    assert size - counted == (8 * weights["num_hidden_layers"] if quantization else 0)


def test_norms_of_queries_and_keys_are_counted_where_the_config_has_them() -> None:
    """GLM-4.6 has one of a head's size for each, GLM-4.5-Air none; Cohere has one for all heads."""

    def normed(body: dict[str, Any]) -> int:
        counted = [
            weights_bytes(changed, read_geometry(changed)).target
            for changed in ({**body, "use_qk_norm": has_norms} for has_norms in (True, False))
        ]
        return counted[0] - counted[1]

    assert normed(LAUNCHED["GLM-4.6"]) == 2 * 92 * 2 * 128
    cohere = {**dict(zip(SIZES, (8192, 22528, 4, 64, 8, 256000), strict=True)), "model_type": "cohere"}
    assert normed({**cohere, "max_position_embeddings": 8192}) == 2 * 4 * (64 + 8) * 128


def test_the_convolutions_of_nemotron_may_have_biases() -> None:
    """One for each channel: 64 heads of 64, and B and C of 8 groups with 128 states each."""
    body = config("Nemotron-3-Nano-30B-A3B-BF16")
    with_biases, without = (
        weights_bytes(changed, read_geometry(changed)).target
        for changed in ({**body, "use_conv_bias": has_biases} for has_biases in (True, False))
    )
    layers = body["hybrid_override_pattern"].count("M")
    assert with_biases - without == 2 * layers * (64 * 64 + 2 * 8 * 128)


def test_a_config_of_llama_4_without_its_tower_has_that_of_transformers() -> None:
    weights = {**config("Qwen3-8B"), "model_type": "llama4"}
    made = weights_bytes(weights, read_geometry(weights))
    small = {**weights, "vision_config": {"num_hidden_layers": 1}}
    assert made.vision > 33 * 2 * 4 * 768**2
    assert made.vision - weights_bytes(small, read_geometry(small)).vision == 33 * 22_045_184


def test_quantisation_at_run_time_loads_16_bits_first() -> None:
    weights = count("Gemma-4-26B-A4B", runtime_quantization="fp8")
    assert weights.load_peak / GIB == pytest.approx(48.1, abs=0.05)
    assert weights.target < 0.6 * weights.load_peak
    # Layer by layer: what stays, and one set of 128 experts (3 x 2816 x 704) in 16 bits.
    assert weights.load_layerwise - weights.target == 2 * 3 * 128 * 2816 * 704
    assert count("Gemma-4-26B-A4B").load_layerwise == count("Gemma-4-26B-A4B").target
    assert count("Qwen3-Next-80B-A3B", "FP8", runtime_quantization="fp8") == count("Qwen3-Next-80B-A3B", "FP8")


def test_pipeline_stages_hold_their_layers() -> None:
    undivided, stage = count("Qwen3-235B-A22B"), count("Qwen3-235B-A22B", split=Split(pipeline=2))
    assert 0.5 < stage.target / undivided.target < 0.51


def test_pipeline_stages_are_cut_as_vllm_cuts_them() -> None:
    # The last stage, which has the head, gets none of the layers that are left over.
    assert [stages_of_layers(94, 4).count(stage) for stage in range(4)] == [23, 24, 24, 23]
    assert [stages_of_layers(47, 2).count(stage) for stage in range(2)] == [24, 23]


MODELS = st.sampled_from(
    [
        ("Qwen3-8B", None),
        ("Qwen3-30B-A3B", "FP8"),
        ("Qwen3-235B-A22B", "GPTQ"),
        ("Qwen3-Next-80B-A3B", "FP8"),
        ("Qwen3.6-35B-A3B", "NVFP4"),
        ("Gemma-4-26B-A4B", "NVFP4"),
        ("gpt-oss-20b", "MXFP4"),
        ("DeepSeek-V3", None),
    ]
)


@settings(max_examples=25)
@given(MODELS, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3]), st.booleans())
def test_dividing_never_adds_and_never_loses(
    model: tuple[str, str | None], ranks: int, stages: int, experts: bool
) -> None:
    undivided = count(*model)
    part = count(*model, split=Split(tensor=ranks, experts=experts))
    assert undivided.target <= part.target * ranks
    assert part.target <= undivided.target
    assert count(*model, split=Split(tensor=2 * ranks, experts=experts)).target <= part.target
    assert part.target <= count(*model, split=Split(tensor=ranks)).target
    stage = count(*model, split=Split(tensor=ranks, experts=experts, pipeline=stages))
    assert stage.target <= part.target <= stage.target * stages
    assert part.vision <= part.target


@pytest.mark.parametrize(
    ("method", "gib"),
    [
        # The files of yuhuili/EAGLE-LLaMA3.1-Instruct-8B and EAGLE3-LLaMA3.1-Instruct-8B have these tensors.
        ("eagle", (3 * 4096 * 14336 + 4096 * (4096 * 4 + 2048) + 2 * 4096) * 2),
        ("eagle3", (3 * 4096 * 14336 + 4096 * (8192 + 4096 + 4096 + 12288) + 4 * 4096 + 32000 * 4096) * 2 + 32000 * 8),
    ],
)
def test_drafters_that_share_the_embedding(method: str, gib: int) -> None:
    draft = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "max_position_embeddings": 2048,
    }
    assert drafter_bytes(draft, read_geometry(draft), method) == gib
    alone = drafter_bytes(draft, read_geometry(draft), "draft_model")
    assert alone == weights_bytes(draft, read_geometry(draft)).target > gib


@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    }
                },
            },
            0.58,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["re:.*lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
                    }
                },
            },
            0.37,
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.38),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True}, 0.38),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*mlp.*": {}}}, 0.86),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {"mlp": {"bits": 16}}}, 0.86),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {"mlp": {"bits": 8}}}, 0.54),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, 0.58),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 0.58),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 0.59),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, 0.39),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.mlp*"]}, 0.87),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"model.layers.*.mlp*": {"quant_algo": "NVFP4"}},
            },
            0.51,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "format": "nvfp4-pack-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                    }
                },
            },
            0.39,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
                },
            },
            0.58,
        ),
    ],
)
def test_formats_of_a_dense_model(quantization: dict[str, Any], share: float) -> None:
    weights = {**config("Qwen3-8B"), "quantization_config": quantization}
    part = weights_bytes(weights, read_geometry(weights)).target / count("Qwen3-8B").target
    assert part == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "config.quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "config.quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "quark"}}, "config.quantization_config.global_quant_config"),
        ({"quantization_config": {"quant_method": "torchao"}}, "config.quantization_config.quant_type"),
        (
            {"quantization_config": {"quant_method": "awq", "w_bit": 5, "group_size": 128}},
            "config.quantization_config.bits",
        ),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W3"}},
            "config.quantization_config.quant_algo",
        ),
        ({"quantization_config": {"quant_method": "modelopt"}}, "config.quantization_config.quant_algo"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "four"}}, "config.quantization_config.bits"),
        ({"vocab_size": None}, "config.vocab_size"),
        ({"vision_config": {"hidden_size": 8, "intermediate_size": 8}}, "config.vision_config"),
        ({"audio_config": {"hidden_size": 8}}, "config.audio_config"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change: dict[str, Any], key: str) -> None:
    weights = {**config("Qwen3-8B"), **change}
    with pytest.raises(Refusal) as caught:
        weights_bytes(weights, read_geometry(weights))
    assert caught.value.key == key
    assert "weights_gib" in caught.value.fix


def test_a_family_without_weights_is_refused_by_name() -> None:
    weights = config("Qwen3-8B")
    with pytest.raises(Refusal, match="the weights of the family 'next_year'") as caught:
        weights_bytes(weights, replace(read_geometry(weights), model_type="next_year"))
    assert caught.value.key == "config.model_type"


@pytest.mark.parametrize(
    ("model", "ranks", "is_known"), [("Qwen3-8B", 1, True), ("Qwen3-8B", 4, True), ("Qwen3-8B", 8, False)]
)
def test_tiles_of_torchao_are_filled_up_where_the_parts_are_known(model: str, ranks: int, is_known: bool) -> None:
    """Inputs of 4096 and 12288 in tiles of 1024: 8 ranks would each fill up the part of one."""
    weights = config(model)
    tiles = {"_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {"int4_packing_format": "tile_packed_to_4d"}}
    weights["quantization_config"] = {"quant_method": "torchao", "quant_type": {"default": tiles}}
    if is_known:
        plain = {**tiles, "_data": {"int4_packing_format": "plain"}}
        other = {**weights, "quantization_config": {"quant_method": "torchao", "quant_type": {"default": plain}}}
        sizes = [
            weights_bytes(item, read_geometry(item), split=Split(tensor=ranks)).target for item in (weights, other)
        ]
        assert sizes[0] == sizes[1]
        return
    with pytest.raises(Refusal, match=r"filled up to 1024 inputs"):
        weights_bytes(weights, read_geometry(weights), split=Split(tensor=ranks))


@pytest.mark.parametrize(
    ("hidden", "ranks", "experts", "is_known"),
    [
        (2048, 1, False, True),
        (2048, 2, False, True),
        (2048, 4, False, False),
        (2048, 4, True, True),
        (2880, 1, False, False),
    ],
)
def test_experts_of_quark_in_mxfp4_that_are_filled_up_are_refused(
    hidden: int, ranks: int, experts: bool, is_known: bool
) -> None:
    """vLLM 0.33.0 filled 2880 up to sizes that differ by kernel, and left 768 over two ranks unchanged."""
    weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    weights = {**config("Qwen3-30B-A3B"), "hidden_size": hidden}
    weights["quantization_config"] = {"quant_method": "quark", "global_quant_config": {"weight": weight}}

    def counted() -> Weights:
        return weights_bytes(weights, read_geometry(weights), split=Split(tensor=ranks, experts=experts))

    if is_known:
        assert counted().target > 0
        return
    with pytest.raises(Refusal, match=r"experts are filled up to whole tiles"):
        counted()


def test_unknown_quantisation_at_run_time_is_refused() -> None:
    with pytest.raises(Refusal, match=r"args\.quantization"):
        count("Qwen3-8B", runtime_quantization="bitsandbytes")


@pytest.mark.parametrize(
    ("stored", "total"),
    [
        (Format(16), 256 * 512 * 2),
        (RUNTIME_FORMATS["fp8_per_channel"], 256 * 512 + 256 * 4),
        (RUNTIME_FORMATS["fp8_per_block"], 256 * 512 + 2 * 4 * 4),
        (RUNTIME_FORMATS["mxfp8"], 256 * 512 + 256 * 16),
        (Format(4, group=128, scale=2, zero_bits=4, order=True), 256 * 256 + 256 * 4 * 2 + 256 * 4 // 2 + 4 * 512),
    ],
)
def test_bytes_of_a_matrix_by_its_format(stored: Format, total: int) -> None:
    assert stored.size(256, 512) == total


@pytest.mark.parametrize(("minor", "plain"), [(21, ("mlp", "lm_head")), (22, ("lm_head",)), (23, ()), (None, ())])
def test_mixed_checkpoints_of_modelopt_in_16_bits_where_the_release_does_not_know_them(
    minor: int | None, plain: tuple[str, ...]
) -> None:
    weights = {**config("Qwen3-8B"), "tie_word_embeddings": False}
    text = weights.get("text_config") or weights
    sizes = {
        "mlp": 3 * text["num_hidden_layers"] * text["hidden_size"] * text["intermediate_size"],
        "lm_head": text["vocab_size"] * text["hidden_size"],
    }
    names = [f"model.layers.{index}.mlp.{part}_proj" for index in range(text["num_hidden_layers"]) for part in MLP]
    weights["quantization_config"] = {
        "quant_method": "modelopt",
        "quantized_layers": {name: {"quant_algo": "W4A16_NVFP4"} for name in (*names, "lm_head")},
    }

    def target(release: int | None) -> int:
        return weights_bytes(weights, read_geometry(weights), minor=release).target

    # 16 bits for 4 and the 8 of a scale for 16.
    assert target(minor) - target(None) == sum(sizes[part] * 23 // 16 for part in plain)


@pytest.mark.parametrize(("method", "halved"), [("gptq", True), ("awq", False)])
def test_zero_points_of_experts_in_gptq_took_half_up_to_0_26(method: str, halved: bool) -> None:
    weights = config("Qwen3-30B-A3B")
    weights = {**weights, "quantization_config": {"quant_method": method, "bits": 4, "group_size": 128}}
    geometry = read_geometry(weights)
    groups = weights["num_hidden_layers"] * weights["num_experts"] * 3
    groups *= weights["hidden_size"] * weights["moe_intermediate_size"] // 128
    old, new = (weights_bytes(weights, geometry, minor=minor).target for minor in (26, 27))
    assert new - old == (groups // 4 if halved else 0)


def test_the_draft_layer_of_glm_4_is_counted() -> None:
    """GLM-4.6: bytes of vLLM 0.33.0's own classes, the drafter's without the embedding and the head that it shares."""
    config = {
        **{"model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92, "first_k_dense_replace": 3},
        **{
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
            "use_qk_norm": True,
        },
        **{"intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1},
        **{"vocab_size": 151552, "max_position_embeddings": 202752, "num_nextn_predict_layers": 1, "dtype": "bfloat16"},
    }
    made = weights_bytes(config, read_geometry(config), mtp=True)
    assert made.target == 705_741_504_128
    assert made.draft == 11_081_563_264 - 2 * 151_552 * 5120 * 2
