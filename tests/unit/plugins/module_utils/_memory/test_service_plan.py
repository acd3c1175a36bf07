# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that the KV planner gets from a service: its drafter, its batch, its scheduler."""

from __future__ import annotations

import re
from typing import Any

import pytest
from memory_fixture import config

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_plan import KVPlan, PlanFailure
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_cache import (
    batch_tokens,
    engine_geometry,
    plan_releases,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_input import ServiceInput
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_memory import resolve
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import OVERHEADS

DRAFTER = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
}


def plan(
    model: str | dict[str, Any], version: str = "0.33.0", drafter: dict[str, Any] | None = None, **args: Any
) -> KVPlan:
    """Plan a service; arguments are written with underscores."""
    service = ServiceInput(
        name="one",
        args={key.replace("_", "-"): value for key, value in args.items()},
        overheads=OVERHEADS,
        config=config(model) if isinstance(model, str) else model,
        draft_config=drafter,
        draft_weights_gib=1.0 if drafter is None else None,
        vllm_version=version,
    )
    plan_result = resolve(service).plan
    assert plan_result is not None
    return plan_result


# Drafters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model"])
def test_the_layers_of_a_drafter_keep_a_cache(method: str) -> None:
    spec = {"method": method, "num_speculative_tokens": 3}
    assert plan("Qwen3-8B", drafter=DRAFTER, speculative_config=spec).group_size == 37


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"])
def test_other_drafters_keep_none(method: str) -> None:
    spec = {"method": method, "num_speculative_tokens": 3}
    plan_result = plan("Qwen3-8B", "0.23.0", speculative_config=spec)
    assert (plan_result.group_size, plan_result.settings.num_speculative_tokens) == (36, 3)


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        ({"method": "mtp"}, 1),
        ({"method": "qwen3_5_mtp", "num_speculative_tokens": 2}, 2),
        ({"method": "suffix"}, 24),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 8}, 8),
    ],
)
def test_draft_tokens_by_default(spec: dict[str, Any], tokens: int) -> None:
    assert plan("Qwen3.6-35B-A3B", speculative_config=spec).settings.num_speculative_tokens == tokens


@pytest.mark.parametrize(
    ("spec", "version", "key"),
    [
        ({"method": "eagle3"}, "0.33.0", "num_speculative_tokens"),
        ({"method": "dflash", "num_speculative_tokens": 3}, "0.19.0", "method"),
        ({"method": "dspark", "num_speculative_tokens": 3}, "0.33.0", "method"),
        ({"method": "eagle3", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8"}, "0.33.0", "kv_cache_dtype"),
        ({"method": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}, "0.33.0", "draft_tensor"),
    ],
)
def test_drafters_that_are_refused(spec: dict[str, Any], version: str, key: str) -> None:
    with pytest.raises(Refusal, match=rf"speculative-config\.{key}"):
        plan("Qwen3-8B", version, drafter=DRAFTER, speculative_config=spec)


def test_windows_of_a_dflash_drafter_are_refused() -> None:
    windows = {**DRAFTER, "layer_types": ["sliding_attention"], "sliding_window": 2048}
    spec = {"method": "dflash", "num_speculative_tokens": 3}
    with pytest.raises(Refusal, match="draft_config"):
        plan("Qwen3-8B", drafter=windows, speculative_config=spec)
    assert plan("Qwen3-8B", drafter=DRAFTER, speculative_config=spec).group_size == 37


def test_several_mtp_modules_keep_more_of_a_window() -> None:
    model = {
        **DRAFTER,
        "num_hidden_layers": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "sliding_window": 512,
        "num_nextn_predict_layers": 2,
    }
    spec = {"method": "mtp", "num_speculative_tokens": 4}
    assert plan(model, speculative_config=spec).settings.multi_module_mtp
    assert not plan({**model, "num_nextn_predict_layers": 1}, speculative_config=spec).settings.multi_module_mtp
    with pytest.raises(Refusal, match="3 draft tokens cannot be divided over the 2 MTP layers"):
        plan(model, speculative_config={"method": "mtp", "num_speculative_tokens": 3})


# Scheduler ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "version", "expected"),
    [
        ("", "0.26.0", True),
        ("eagle3", "0.26.0", True),
        ("ngram_gpu", "0.26.0", True),
        ("draft_model", "0.27.0", False),
        ("draft_model", "0.28.0", True),
        ("ngram", "0.32.0", False),
        ("ngram", "0.33.0", True),
        ("suffix", "0.33.0", False),
    ],
)
def test_asynchronous_scheduling_by_default(method: str, version: str, expected: bool) -> None:
    spec = {"speculative_config": {"method": method, "num_speculative_tokens": 3}} if method else {}
    drafter = DRAFTER if method in ("eagle3", "draft_model") else None
    plan_result = plan("gpt-oss-20b", version, drafter=drafter, **spec)
    assert plan_result.settings.async_scheduling is expected
    assert not plan("gpt-oss-20b", version, drafter=drafter, async_scheduling=False, **spec).settings.async_scheduling


@pytest.mark.parametrize(("version", "groups"), [("0.33.0", 3), ("0.25.0", 1)])
def test_pipeline_stages_hold_one_batch_more(version: str, groups: int) -> None:
    plan_result = plan(
        "gpt-oss-20b", version, pipeline_parallel_size=2, max_num_batched_tokens=4096, max_model_len=131072
    )
    full, window = -(-131072 // 16), -(-(127 + groups * 4096) // 16) + 1
    assert plan_result.blocks_per_request(131072) == full + window


# Batch ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, 2048),
        ({"max_num_batched_tokens": 512}, 512),
        ({"enable_chunked_prefill": False, "max_model_len": 8192}, 8192),
        ({"enable_chunked_prefill": False, "max_model_len": 8192, "max_num_batched_tokens": 16384}, 16384),
        ({"max_num_seqs": 2, "max_model_len": 512}, 1024),
    ],
)
def test_the_default_batch(args: dict[str, Any], expected: int) -> None:
    assert plan("Qwen3-8B", **args).settings.max_num_batched_tokens == expected


def test_the_default_batch_is_no_larger_than_all_requests() -> None:
    """vLLM runs 256 requests at once by default; without a context the model's maximum counts, here 40,960 tokens."""
    geometry = read_geometry(config("Qwen3-8B"))
    assert batch_tokens({"max-model-len": 2}, geometry) == 2 * 256
    assert batch_tokens({"max-model-len": "auto", "enable-chunked-prefill": False}, geometry) == 40960


@pytest.mark.parametrize(
    ("stored", "option", "dtype"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "auto", "bfloat16"),
        ("float32", "float", "float32"),
        ("bfloat16", "half", "float16"),
    ],
)
def test_the_dtype_of_an_engine(stored: str, option: str, dtype: str) -> None:
    """vLLM casts 32-bit checkpoints unless it is told not to."""
    model = {key: value for key, value in config("Qwen3-8B").items() if key not in ("dtype", "torch_dtype")}
    assert engine_geometry({**model, "torch_dtype": stored}, option).dtype == dtype
    with pytest.raises(Refusal, match="dtype 'int8' is not known"):
        engine_geometry(model, "int8")


def test_of_an_unknown_release_the_plan_that_needs_most_counts() -> None:
    """From 0.26 windows of gpt-oss reserve two batches; 0.31 and older have no NVFP4 cache for GB10."""
    service = ServiceInput(name="one", args={"max-model-len": 65536}, overheads=OVERHEADS, config=config("gpt-oss-20b"))
    geometry = read_geometry(config("gpt-oss-20b"))
    releases = [parse_release(version) for version in ("0.33.0", "0.25.0")]
    plans, refusing = plan_releases(service, geometry, config("gpt-oss-20b"), releases, 8192)
    # The first needs least memory for a request, the last most.
    assert [plan.settings.release.minor for plan in plans] == [25, 33] and not refusing
    assert plans[-1].blocks_per_request(65536) > plans[0].blocks_per_request(65536)


def test_the_default_batch_of_gemma_4_holds_an_image() -> None:
    model = {**config("Gemma-4-31B"), "vision_config": {}}
    assert plan(model, limit_mm_per_prompt={"image": 0, "video": 0}).settings.max_num_batched_tokens == 2496


@pytest.mark.parametrize(("version", "expected"), [("0.27.1", False), ("0.28.0", True)])
def test_prefix_caching_of_hybrid_models_by_default(version: str, expected: bool) -> None:
    assert plan("Qwen3.6-35B-A3B", version).settings.prefix_caching is expected
    assert plan("Qwen3-8B", version).settings.prefix_caching


@pytest.mark.parametrize(
    ("key", "value"),
    [("prefill_context_parallel_size", 2), ("mamba_block_size", 512), ("disable_sliding_window", True)],
)
def test_arguments_whose_effect_is_not_known(key: str, value: Any) -> None:
    with pytest.raises(Refusal, match=key.replace("_", "-")):
        plan("Qwen3-8B", **{key: value})
    assert plan("Qwen3-8B", decode_context_parallel_size=1, disable_sliding_window=False).group_size == 36


# Ranks of a decode context ------------------------------------------------------------------------------------------------


GQA = {**config("Qwen3-8B"), "num_key_value_heads": 2}
LATENT = {
    **{
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "dtype": "bfloat16",
        "num_hidden_layers": 4,
    },
    **{
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
    },
    **{"q_lora_rank": 512, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "first_k_dense_replace": 1},
    **{"n_shared_experts": 1, "max_position_embeddings": 163840, "tie_word_embeddings": False},
}


@pytest.mark.parametrize("version", ["0.15.0", "0.20.0", "0.25.0", "0.33.0"])
def test_each_rank_of_a_decode_context_keeps_its_share_of_a_request(version: str) -> None:
    for model, ranks in ((GQA, 4), (LATENT, 2)):
        alone = plan(model, version, tensor_parallel_size=ranks)
        shared = plan(model, version, tensor_parallel_size=ranks, decode_context_parallel_size=2)
        assert shared.bytes_per_block == alone.bytes_per_block  # on each rank as before
        length = 100_000
        assert shared.blocks_per_request(length) == alone.blocks_per_request(length // 2)
        assert shared.needed_bytes(length) == alone.needed_bytes(length // 2)
        assert shared.marginal_bytes_per_token == alone.marginal_bytes_per_token / 2
        blocks = shared.num_blocks(8 << 30)
        assert shared.printed_tokens(blocks, length) == pytest.approx(
            2 * alone.printed_tokens(blocks, length), rel=1e-3
        )


def test_states_are_whole_on_each_rank_of_a_decode_context() -> None:
    hybrid = {**config("Qwen3.6-35B-A3B")}
    hybrid["text_config"] = {**hybrid["text_config"], "num_key_value_heads": 1}
    length = 200_000
    alone = plan(hybrid, "0.27.0", tensor_parallel_size=4)
    shared = plan(hybrid, "0.27.0", tensor_parallel_size=4, decode_context_parallel_size=4)
    states = alone.blocks_per_request(1) - 1
    assert shared.blocks_per_request(length) - states == -(-(alone.blocks_per_request(length) - states) // 4)


@pytest.mark.parametrize(
    ("model", "version", "args", "phrase"),
    [
        (
            GQA,
            "0.19.0",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 3},
            "AssertionError: tp_size=4 must be divisible bydcp_size=3",
        ),
        (
            GQA,
            "0.33.0",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 3},
            "ValueError: tp_size=4 must be divisible by dcp_size=3",
        ),
        (
            "Qwen3-8B",
            "0.26.0",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
            "must be greater than total num kv heads 8",
        ),
        (
            "Qwen3-8B",
            "0.33.0",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
            "greater than the model's total number of KV heads (8)",
        ),
        (
            GQA,
            "0.26.0",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 4},
            "num kv heads 2) = 2, but got 4",
        ),
        (
            GQA,
            "0.33.0",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 4},
            "exceeds the maximum supported value (2)",
        ),
        (
            {**GQA, "num_attention_heads": 30, "hidden_size": 3840},
            "0.33.0",
            {"tensor_parallel_size": 6, "decode_context_parallel_size": 2},
            "number of query heads per KV head (15) must be divisible",
        ),
        (
            "gpt-oss-20b",
            "0.33.0",
            {"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
            "DCP not support sliding window.",
        ),
    ],
)
def test_a_decode_context_that_vllm_refuses_is_refused_in_its_words(
    model: str | dict[str, Any], version: str, args: dict[str, Any], phrase: str
) -> None:
    with pytest.raises(PlanFailure, match=re.escape(phrase)):
        plan(model, version, **args)


@pytest.mark.parametrize(
    ("model", "args", "key"),
    [
        (LATENT, {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 2}}, "speculative-config"),
        (LATENT, {"dcp_q_replicate": True}, "dcp-q-replicate"),
        ({**LATENT, "architectures": ["GlmMoeDsaForCausalLM"]}, {}, "dcp-q-replicate"),
    ],
)
def test_what_is_not_known_of_a_decode_context(model: dict[str, Any], args: dict[str, Any], key: str) -> None:
    context = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
    with pytest.raises(Refusal, match=key):
        plan(model, drafter=DRAFTER if "speculative_config" in args else None, **context, **args)
    plan(model, **context, dcp_q_replicate=False)


def test_a_connector_and_windows() -> None:
    with pytest.raises(Refusal, match="kv-transfer-config"):
        plan("gpt-oss-20b", kv_transfer_config={"kv_connector": "LMCacheConnectorV1"})
    assert plan("Qwen3-8B", kv_transfer_config={"kv_connector": "LMCacheConnectorV1"}).group_size == 36


@pytest.mark.parametrize(("version", "counts"), [("0.20.0", False), ("0.20.1", True), ("0.33.0", True)])
def test_the_blocks_that_are_overridden_are_what_vllm_checks(version: str, counts: bool) -> None:
    service = ServiceInput(
        name="one",
        args={"num-gpu-blocks-override": 100, "kv-cache-memory-bytes": 8 << 30},
        overheads=OVERHEADS,
        config=config("Qwen3-8B"),
        vllm_version=version,
    )
    plan_result = resolve(service)
    assert plan_result.plan is not None
    assert plan_result.available(0, "typical") == (100 * plan_result.plan.bytes_per_block if counts else 8 << 30)


def test_a_cache_of_4_bits_needs_0_32() -> None:
    with pytest.raises(Refusal, match=r"nvfp4 has no kernels for GB10 \(sm_121\) before vLLM 0.32"):
        plan("Qwen3-8B", "0.31.0", kv_cache_dtype="nvfp4")
    assert plan("Qwen3-8B", "0.32.0", kv_cache_dtype="nvfp4").bytes_per_block == 36 * 16 * 1152


def test_a_version_that_is_not_known_is_one_that_can() -> None:
    assert plan("Qwen3-8B", "", kv_cache_dtype="nvfp4").settings.release.minor >= 32
