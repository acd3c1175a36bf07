# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from memory_fixture import config

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import checkpoint_kv_dtype, read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Attention, Recurrent, Refusal

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}


def kinds(geometry: Any) -> dict[str | None, int]:
    return dict(Counter(layer.kind if layer else None for layer in geometry.layers))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen3-4B-Instruct-2507", {"full": 36}),
        ("Qwen3-Next-80B-A3B", {"gdn": 36, "full": 12}),
        ("Qwen3.6-35B-A3B", {"gdn": 30, "full": 10}),
        ("gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("Gemma-4-31B", {"sliding": 50, "full": 10}),
        ("Nemotron-3-Nano-30B-A3B-BF16", {"mamba": 23, None: 23, "full": 6}),
        ("DeepSeek-V3", {"mla": 61}),
    ],
)
def test_kinds_of_layers(model: str, expected: dict[str | None, int]) -> None:
    assert kinds(read_geometry(config(model))) == expected


def test_gemma_4_has_other_heads_in_its_global_layers() -> None:
    geometry = set(read_geometry(config("Gemma-4-31B")).attention)
    assert geometry == {Attention("sliding", 16, 256, 256, 1024), Attention("full", 4, 512, 512)}


def test_state_of_a_gated_delta_net() -> None:
    assert set(read_geometry(config("Qwen3.6-35B-A3B")).recurrent) == {
        Recurrent("gdn", 4, 4096, 4096, 16, 32, 128, 128, ssm_dtype="float32", checkpoints_since=33)
    }


def test_latent_attention_keeps_one_vector() -> None:
    assert read_geometry(config("DeepSeek-V3")).attention[0] == Attention("mla", 1, 576, 0)


def test_mtp_layers() -> None:
    assert read_geometry(config("Qwen3.6-35B-A3B")).mtp_layers == 1
    assert (
        read_geometry(config("Qwen3-Next-80B-A3B")).mtp_layers == 1
    )  # the class adds the field, which is absent in the file
    assert read_geometry(config("Qwen3-8B")).mtp_layer is None


def test_layers_that_share_the_cache_of_others_keep_none() -> None:
    geometry = read_geometry({**LLAMA, "num_kv_shared_layers": 3})
    assert [layer is None for layer in geometry.layers] == [False, True, True, True]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sliding_window": 4096}, {"sliding": 4}),  # Mistral 7B v0.1: vLLM gives the window to every layer
        ({"sliding_window": 4096, "use_sliding_window": False}, {"full": 4}),  # Qwen
        ({"sliding_window": None}, {"full": 4}),
        ({"model_type": "gemma2", "sliding_window": 4096}, {"sliding": 2, "full": 2}),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 2}, {"sliding": 2, "full": 2}),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, {"chunked": 3, "full": 1}),
        ({"layer_types": ["full_attention"] * 4, "sliding_window": 4096}, {"sliding": 4}),  # as in Mistral 7B
        ({"layer_types": ["full_attention"] * 4, "sliding_window": 0}, {"full": 4}),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention"] * 4, "sliding_window": 4096},
            {"full": 4},
        ),
    ],
)
def test_windows_without_layer_types(fields: dict[str, Any], expected: dict[str | None, int]) -> None:
    assert kinds(read_geometry({**LLAMA, **fields})) == expected


@pytest.mark.parametrize(
    ("fields", "key", "reason"),
    [
        ({"model_type": "rwkv7"}, "config.model_type", "'rwkv7' is not known"),
        ({"model_type": None}, "config.model_type", "missing"),
        (
            {"layer_types": ["full_attention", "full_attention", "full_attention", "hyena"]},
            "config.layer_types[3]",
            "'hyena'",
        ),
        ({"layer_types": ["full_attention"]}, "config.layer_types", "a list of 4"),
        ({"layer_types": ["linear_attention"] * 4}, "config.layer_types[0]", "recurrent state"),
        ({"num_hidden_layers": "many"}, "config.num_hidden_layers", "'many'"),
        ({"num_hidden_layers": True}, "config.num_hidden_layers", "True"),
        ({"num_attention_heads": None}, "config.num_attention_heads", "missing"),
        ({"kv_lora_rank": 512}, "config.kv_lora_rank", "not known of the family 'llama'"),
        ({"dtype": "int4"}, "config.dtype", "'int4'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(fields: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_geometry({**LLAMA, **fields})
    assert caught.value.key == key
    assert reason in caught.value.reason


def test_unknown_letter_of_a_nemotron_pattern() -> None:
    geometry = config("Nemotron-3-Nano-30B-A3B-BF16")
    geometry["hybrid_override_pattern"] = "X" + geometry["hybrid_override_pattern"][1:]
    with pytest.raises(Refusal, match=r"hybrid_override_pattern\[0\]: layer kind 'X'"):
        read_geometry(geometry)


def test_sparse_attention_is_refused() -> None:
    with pytest.raises(Refusal, match="index_topk"):
        read_geometry({**config("DeepSeek-V3"), "index_topk": 2048})


@pytest.mark.parametrize(
    ("quantization", "separate", "expected"),
    [
        (None, None, "auto"),
        ({"quant_method": "fp8"}, None, "auto"),  # FP8 weights alone do not make the cache FP8
        (
            {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}},
            None,
            "fp8",
        ),
        (None, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        (None, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None}}, "auto"),
    ],
)
def test_what_auto_means_for_the_cache(quantization: Any, separate: Any, expected: str) -> None:
    geometry = {**LLAMA, "quantization_config": quantization} if quantization else LLAMA
    assert checkpoint_kv_dtype(geometry, separate) == expected


def test_unknown_cache_quantisation_is_refused() -> None:
    with pytest.raises(Refusal, match="kv_cache_quant_algo") as caught:
        checkpoint_kv_dtype(LLAMA, {"quantization": {"kv_cache_quant_algo": "INT3"}})
    assert "kv-cache-dtype" in caught.value.fix


# Families as vLLM's model classes read them ---------------------------------------------------------------------------


def test_the_mtp_layers_of_nemotron_h_follow_their_own_pattern() -> None:
    model = config("Nemotron-3-Nano-30B-A3B-BF16")
    geometry = read_geometry({**model, "num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "*E*E"})
    assert (geometry.mtp_layers, len(geometry.draft_caches(1)), geometry.mtp_modules) == (2, 4, 2)
    with pytest.raises(Refusal, match="mtp_hybrid_override_pattern"):
        read_geometry({**model, "num_nextn_predict_layers": 1})


def test_gpt_oss_takes_turns_whatever_its_config_lists() -> None:
    model = config("gpt-oss-20b")
    count = model["num_hidden_layers"]
    geometry = read_geometry({**model, "layer_types": ["full_attention"] * count})
    assert [layer.kind for layer in geometry.attention] == ["sliding", "full"] * (count // 2)
    with pytest.raises(Refusal, match="layer kind 'hyena' is not known"):
        read_geometry({**model, "layer_types": ["hyena"] * count})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attention_chunk_size": 8192}, {"chunked": 3, "full": 1}),
        ({"attention_chunk_size": 8192, "no_rope_layers": [1, 0, 1, 0]}, {"chunked": 2, "full": 2}),
        ({"attention_chunk_size": None}, {"full": 4}),
    ],
)
def test_llama_4_is_chunked_where_it_rotates(fields: dict[str, Any], expected: dict[str | None, int]) -> None:
    assert kinds(read_geometry({**LLAMA, "model_type": "llama4_text", **fields})) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sliding_window": 4096}, {"full": 4}),
        ({"sliding_window": 4096, "use_sliding_window": False}, {"full": 4}),
        ({"sliding_window": 4096, "use_sliding_window": True}, {"sliding": 4}),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 4}, {"sliding": 4}),
    ],
)
def test_qwen_has_windows_on_demand(fields: dict[str, Any], expected: dict[str | None, int]) -> None:
    assert kinds(read_geometry({**LLAMA, "model_type": "qwen3", **fields})) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2},
        {"model_type": "glm4", "layer_types": ["sliding_attention", "full_attention"] * 2},
    ],
)
def test_windows_in_some_layers_of_a_family_that_does_not_mix(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"max_window_layers|layer_types"):
        read_geometry({**LLAMA, "sliding_window": 4096, **fields})


def test_global_layers_of_gemma_4_have_heads_of_their_own_only_where_keys_are_values() -> None:
    model = config("Gemma-4-31B")
    plain = read_geometry({**model, "text_config": {**(model.get("text_config") or model), "attention_k_eq_v": False}})
    assert {layer.kv_heads for layer in plain.attention} == {16}
