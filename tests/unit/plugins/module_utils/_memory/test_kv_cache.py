# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_fixture import GIB, config, load

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import vllm_errors
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_cache import plan_kv_cache
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_plan import KVPlan, KVSettings, PlanFailure
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_specs import token_bytes
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Attention, Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release

SPEC_KINDS = {"full": "FullAttentionSpec", "sliding": "SlidingWindowSpec", "gdn": "MambaSpec", "mamba": "MambaSpec"}


def plan(model: str, version: str = "0.23.0", *, drafts: int = 0, batch: int = 8192, **fields: Any) -> KVPlan:
    geometry = read_geometry(config(model))
    layers = geometry.draft_caches(drafts) if drafts else ()
    return plan_kv_cache(
        geometry,
        KVSettings(parse_release(version), batch, num_speculative_tokens=drafts, draft_layers=layers, **fields),
    )


def plan_row(row: dict[str, Any]) -> KVPlan:
    return plan(
        row["model"],
        row["version"],
        drafts=row["num_speculative_tokens"],
        batch=row["max_num_batched_tokens"],
        kv_cache_dtype=row["kv_cache_dtype"],
        prefix_caching=row["enable_prefix_caching"],
        tensor_parallel=row["tensor_parallel_size"],
    )


@pytest.mark.parametrize("row", load()["rows"], ids=lambda row: f"{row['version']} {row['id']}")
def test_every_row_of_vllms_own_planner(row: dict[str, Any]) -> None:
    kv_plan, length, available = plan_row(row), row["max_model_len"], row["available_bytes"]
    if row["error"]:
        if available <= 0:
            text = vllm_errors.error_no_memory(kv_plan.settings.release)
        else:
            text = vllm_errors.error_align(kv_plan) or vllm_errors.error_too_long(kv_plan, length, available)
        assert text.split(": ", 1)[1] == row["error"]
        return
    if row["id"].startswith("auto-fit"):
        length = kv_plan.largest_length(available, length)
    blocks = 1000 if row["id"] == "override 1000 blocks" else kv_plan.num_blocks(available)
    groups = [[SPEC_KINDS[group.kind], group.layers, group.block_size or length] for group in kv_plan.groups]
    # The column counts full attention alone; in mode "all" every group takes a block, which the rows with two lengths show (below).
    states = len(groups) if kv_plan.mamba_cache_mode == "all" else 1
    assert {
        "mamba_cache_mode": kv_plan.mamba_cache_mode,
        "block_size": kv_plan.block_size,
        "page_size_bytes": kv_plan.page_size_bytes,
        "group_size_layers": kv_plan.group_size,
        "bytes_per_block": kv_plan.bytes_per_block,
        "marginal_bytes_per_token": kv_plan.marginal_bytes_per_token / states,
        "state_bytes_per_layer_unpadded": kv_plan.state_bytes or None,
        "kv_groups": sorted(groups),
        "num_blocks": blocks,
        "gpu_kv_cache_size_tokens": kv_plan.printed_tokens(blocks, length),
        "max_concurrency": kv_plan.max_concurrency(blocks, length),
        "needed_bytes_one_request": kv_plan.needed_bytes(length),
    } == {
        **{
            key: row[key]
            for key in row
            if key
            in (
                "mamba_cache_mode",
                "block_size",
                "page_size_bytes",
                "group_size_layers",
                "bytes_per_block",
                "marginal_bytes_per_token",
                "state_bytes_per_layer_unpadded",
                "num_blocks",
                "gpu_kv_cache_size_tokens",
                "needed_bytes_one_request",
            )
        },
        "kv_groups": sorted(row["kv_groups"]),
        "max_concurrency": pytest.approx(row["max_concurrency"], abs=1e-9),
    }


def test_a_token_costs_what_vllms_own_rows_of_two_lengths_differ_by() -> None:
    """A request of each pair takes some more whole blocks, so its slope is off by less than one block of each group."""
    pairs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    same = ("version", "model", "kv_cache_dtype", "enable_prefix_caching", "tensor_parallel_size")
    for row in load()["rows"]:
        if not row["error"] and not row["id"].startswith("auto-fit"):
            key = (*(row[name] for name in same), row["num_speculative_tokens"], row["max_num_batched_tokens"])
            pairs.setdefault(key, []).append(row)
    modes = set()
    for rows in pairs.values():
        short, long = (choose(rows, key=lambda row: row["max_model_len"]) for choose in (min, max))
        tokens, kv_plan = long["max_model_len"] - short["max_model_len"], plan_row(long)
        if tokens < 65536:
            continue
        grown = long["needed_bytes_one_request"] - short["needed_bytes_one_request"]
        off = abs(grown - tokens * kv_plan.marginal_bytes_per_token)
        assert off < len(kv_plan.groups) * kv_plan.bytes_per_block, long["id"]
        modes.add(long["mamba_cache_mode"])
    assert "all" in modes and len(modes) > 1


def test_the_ranks_of_a_decode_context_share_tokens_but_not_states() -> None:
    fields = {"version": "0.26.0", "mamba_cache_mode": "all"}
    for ranks in (1, 2):
        kv_plan = plan("Nemotron-3-Nano-30B-A3B-BF16", **fields, decode_context=ranks)
        assert kv_plan.marginal_bytes_per_token == (4 + 1 / ranks) * 6144
        lengths = [blocks * kv_plan.block_size for blocks in (20, 60)]
        grown = kv_plan.needed_bytes(lengths[1]) - kv_plan.needed_bytes(lengths[0])
        assert grown == kv_plan.marginal_bytes_per_token * (lengths[1] - lengths[0])


# Lines of real start-up logs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "version", "fields", "length", "gib", "tokens", "concurrency"),
    [
        # DGX Spark, nightly of 0.23, nvidia/Qwen3.6-35B-A3B-NVFP4
        ("Qwen3.6-35B-A3B", "0.23.0", {"drafts": 3}, 65536, 76.49, 4843965, "73.91"),
        # club-3090#612
        ("Qwen3.6-35B-A3B", "0.24.0", {}, 131072, 5.98, 567978, "4.33"),
        # club-3090 PR594
        ("Qwen3.6-27B", "0.23.0", {"drafts": 3, "tensor_parallel": 2}, 262144, 5.33, 300220, "1.15"),
        # talos-argocd-proxmox PR1995
        ("Qwen3.6-27B", "0.23.0", {"tensor_parallel": 2}, 131072, 4.99, 302921, "2.31"),
        # spark-vllm-docker PR200, a nightly that still printed the old number
        ("Qwen3.6-35B-A3B", "0.20.0", {"drafts": 2}, 65536, 52.66, 1253392, "54.84"),
    ],
)
def test_real_logs(
    model: str, version: str, fields: dict[str, Any], length: int, gib: float, tokens: int, concurrency: str
) -> None:
    kv_plan = plan(model, version, kv_cache_dtype="fp8", **fields)
    blocks = kv_plan.num_blocks(int(gib * GIB))
    assert kv_plan.printed_tokens(blocks, length) == tokens
    assert f"{kv_plan.max_concurrency(blocks, length):.2f}" == concurrency


# Figures of the published reports -------------------------------------------------------------------------------------


def test_context_costs_11_kib_a_token_and_a_fixed_part() -> None:
    """76.49 GiB / 4,843,965 tokens is no price per token: most of it is the state of each request."""
    kv_plan = plan("Qwen3.6-35B-A3B", drafts=3, kv_cache_dtype="fp8")
    assert kv_plan.marginal_bytes_per_token == 11264
    fixed = kv_plan.needed_bytes(65536) - 31 * kv_plan.bytes_per_block
    assert fixed / (1 << 20) == pytest.approx(345.5, abs=0.1)


def test_one_request_of_256k_takes_3_gib() -> None:
    kv_plan = plan("Qwen3.6-35B-A3B", drafts=3, kv_cache_dtype="fp8")
    assert kv_plan.blocks_per_request(262144) == 138
    assert kv_plan.needed_bytes(262144) / GIB == pytest.approx(3.10, abs=0.005)


@pytest.mark.parametrize(("gib", "tokens", "concurrency"), [(34.61, 2191181, 33.43), (22.64, 1433243, 21.87)])
def test_lower_utilisations_of_the_guide(gib: float, tokens: int, concurrency: float) -> None:
    kv_plan = plan("Qwen3.6-35B-A3B", drafts=3, kv_cache_dtype="fp8")
    # 76.49 GiB less 0.35 and 0.45 of 119.67 GiB
    blocks = kv_plan.num_blocks({34.61: 37157372690, 22.64: 24307904282}[gib])
    assert kv_plan.printed_tokens(blocks, 65536) == tokens
    assert kv_plan.max_concurrency(blocks, 65536) == pytest.approx(concurrency, abs=0.005)


@pytest.mark.parametrize(("drafts", "block"), [(0, 2096), (1, 2112), (2, 2128), (3, 2144)])
def test_the_block_of_2128_belongs_to_fp8_and_two_draft_tokens(drafts: int, block: int) -> None:
    assert plan("Qwen3.6-35B-A3B", drafts=drafts, kv_cache_dtype="fp8").block_size == block
    assert plan("Qwen3.6-35B-A3B", drafts=drafts).block_size == -(-block // 32) * 16  # bf16 halves it


@pytest.mark.parametrize("version", ["0.19.0", "0.23.0"])
def test_the_block_of_2128_against_the_default_batch(version: str) -> None:
    kv_plan = plan("Qwen3.6-35B-A3B", version, drafts=2, batch=2048, kv_cache_dtype="fp8")
    assert vllm_errors.error_align(kv_plan) == (
        "AssertionError: In Mamba cache align mode, block_size (2128) must be <= max_num_batched_tokens (2048)."
    )


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("0.27.0", {}),
        ("0.33.0", {}),
        ("0.16.0", {"drafts": 0}),
        ("0.23.0", {"prefix_caching": False}),
        ("0.23.0", {"batch": 8192}),
    ],
)
def test_the_block_is_no_matter_otherwise(version: str, fields: dict[str, Any]) -> None:
    assert (
        vllm_errors.error_align(
            plan("Qwen3.6-35B-A3B", version, kv_cache_dtype="fp8", **{"drafts": 2, "batch": 2048, **fields})
        )
        == ""
    )


@pytest.mark.parametrize(
    ("model", "fields", "text"),
    [
        ("Qwen3-Next-80B-A3B", {}, "AssertionError: Mamba cache mode 'align' is currently not compatible"),
        ("Nemotron-3-Nano-30B-A3B-BF16", {}, "NotImplementedError: Mamba with speculative decoding"),
        ("Nemotron-3-Nano-30B-A3B-BF16", {"prefix_caching": False}, "NotImplementedError: Mamba with speculative"),
    ],
)
def test_a_drafter_beside_a_state_is_refused_up_to_0_16(model: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanFailure, match=text):
        plan(model, "0.16.0", drafts=1, **fields)
    assert plan(model, "0.17.1", **fields).groups
    assert plan("Qwen3-Next-80B-A3B", "0.16.0", drafts=1, prefix_caching=False).groups


def test_stages_are_checked_together_up_to_0_16() -> None:
    older = plan("Qwen3-4B-Instruct-2507", "0.16.0", pipeline_parallel=2)
    newer = plan("Qwen3-4B-Instruct-2507", "0.17.1", pipeline_parallel=2)
    assert older.num_blocks(8 * GIB) == newer.num_blocks(8 * GIB)
    assert older.needed_bytes(16384) == 2 * newer.needed_bytes(16384)


def test_the_4b_costs_144_kib_a_token() -> None:
    kv_plan = plan("Qwen3-4B-Instruct-2507")
    assert kv_plan.marginal_bytes_per_token == 144 * 1024
    assert kv_plan.needed_bytes(16384) == 2.25 * GIB
    assert kv_plan.needed_bytes(32768) == 4.5 * GIB


@pytest.mark.parametrize(
    ("version", "estimate"), [("0.19.0", 25472), ("0.28.0", 25472), ("0.29.0", 25456), ("0.33.0", 25456)]
)
def test_the_null_block_is_reserved_from_0_29(version: str, estimate: int) -> None:
    kv_plan = plan("Qwen3-4B-Instruct-2507", version)
    assert kv_plan.largest_length(int(3.5 * GIB), 32768) == estimate
    assert kv_plan.needed_bytes(estimate) <= kv_plan.checked_bytes(int(3.5 * GIB)) < kv_plan.needed_bytes(estimate + 1)


def test_64k_of_the_80b_was_never_short_of_14_gib() -> None:
    kv_plan = plan("Qwen3-Next-80B-A3B", "0.19.0", prefix_caching=False)
    assert kv_plan.needed_bytes(65536) / GIB == pytest.approx(1.544, abs=0.001)
    assert kv_plan.max_concurrency(kv_plan.num_blocks(14 * GIB), 65536) == pytest.approx(9.06, abs=0.005)


# Settings -------------------------------------------------------------------------------------------------------------


def test_pipeline_parallel_keeps_the_blocks_of_half_the_layers() -> None:
    kv_plan = plan("Qwen3-235B-A22B", pipeline_parallel=2)
    assert (kv_plan.group_size, kv_plan.num_blocks(20 * GIB)) == (47, 13943)


def test_more_ranks_than_heads_copy_a_head() -> None:
    two, four = (plan("Qwen3-Next-80B-A3B", tensor_parallel=ranks) for ranks in (2, 4))
    assert two.marginal_bytes_per_token == four.marginal_bytes_per_token


def test_without_the_hybrid_manager_windows_cost_as_much_as_full_attention() -> None:
    kv_plan = plan("Gemma-4-31B", hybrid_manager=False)
    assert kv_plan.needed_bytes(65536) / GIB == pytest.approx(55.0, abs=0.05)


def test_a_smaller_state_halves_the_block() -> None:
    full = plan("Qwen3.6-35B-A3B", kv_cache_dtype="fp8")
    half = plan("Qwen3.6-35B-A3B", kv_cache_dtype="fp8", mamba_ssm_cache_dtype="float16")
    assert (full.block_size, half.block_size) == (2096, 1072)


@pytest.mark.parametrize(("version", "block"), [("0.19.0", 2096), ("0.20.0", 2304), ("0.23.0", 2304)])
def test_block_size_becomes_the_unit_of_alignment(version: str, block: int) -> None:
    assert plan("Qwen3.6-35B-A3B", version, kv_cache_dtype="fp8", block_size=256).block_size == block


def test_windows_in_the_models_dtype_beside_an_fp8_cache() -> None:
    plain = plan("gpt-oss-20b", kv_cache_dtype="fp8")
    mixed = plan("gpt-oss-20b", kv_cache_dtype="fp8", skip_layers=("sliding_window",))
    assert mixed.page_size_bytes == 2 * plain.page_size_bytes
    assert {(group.kind, group.block_size) for group in mixed.groups} == {("sliding", 16), ("full", 32)}


@pytest.mark.parametrize("version", ["0.27.0", "0.33.0"])
def test_windows_kept_as_full_attention_take_its_blocks_from_0_27(version: str) -> None:
    """Half of the 24 layers have 1,024 bytes a token in FP8, the windows 2,048 in 16 bits, in blocks half as long before."""
    fields: dict[str, Any] = {
        "kv_cache_dtype": "fp8",
        "skip_layers": ("sliding_window",),
        "hybrid_manager": False,
    }
    kv_plan = plan("gpt-oss-20b", version, **fields)
    assert [(group.kind, group.layers, group.block_size) for group in kv_plan.groups] == [("full", 24, 32)]
    assert kv_plan.needed_bytes(65536) == 65536 * 12 * (1024 + 2048)
    with pytest.raises(PlanFailure, match="failed to convert the KV cache specs to one unified type"):
        plan("gpt-oss-20b", "0.26.0", **fields)


def test_windows_reserve_two_batches_from_0_26() -> None:
    old, new, off = (
        plan("gpt-oss-20b", "0.25.0"),
        plan("gpt-oss-20b", "0.26.0"),
        plan("gpt-oss-20b", "0.26.0", async_scheduling=False),
    )
    assert old.blocks_per_request(65536) == off.blocks_per_request(65536) == 4617
    assert new.blocks_per_request(65536) == 5129


def test_latent_attention_of_deepseek() -> None:
    kv_plan = plan("DeepSeek-V3")
    assert kv_plan.marginal_bytes_per_token == 70272
    assert (kv_plan.block_size, kv_plan.notes) == (16, ())  # sm_121 has only Triton's kernel
    assert plan("DeepSeek-V3", kv_cache_dtype="fp8_ds_mla").marginal_bytes_per_token == 61 * 656


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("auto", 4096),
        ("fp8", 2048),
        ("fp8_e4m3", 2048),
        ("bfloat16", 4096),
        ("nvfp4", 1152),
        ("fp8_per_token_head", 2112),
    ],
)
def test_bytes_of_a_token(dtype: str, size: int) -> None:
    assert token_bytes(Attention("full", 8, 128, 128), dtype, "bfloat16", 1) == size


@pytest.mark.parametrize(
    ("dtype", "size"), [("auto", 2560), ("fp8", 1280), ("nvfp4", 4 * (96 + 12 + 64 + 8)), ("int8_per_token_head", 1312)]
)
def test_bytes_of_a_token_with_shorter_values_than_keys(dtype: str, size: int) -> None:
    """MiMo-V2.6: 4 heads of 192 and 128; 4 bits have a scale of 8 bits for 16 elements, scales of a head 32 bits each."""
    assert token_bytes(Attention("full", 4, 192, 128), dtype, "bfloat16", 1) == size


def test_windows_of_4_bits_have_blocks_of_at_most_64_tokens() -> None:
    """All layers share a page of 128 tokens of full attention: windows of 8 bits fill it, the one of 16 bits as far as it goes."""
    for dtype, blocks in (("nvfp4", {64, 128 * 576 // 2048 // 16 * 16}), ("fp8", {128, 64})):
        kv_plan = plan("gpt-oss-20b", "0.33.0", kv_cache_dtype=dtype, skip_layers=("2",), block_size=128)
        assert {group.block_size for group in kv_plan.groups if group.kind == "sliding"} == blocks
        assert {group.block_size for group in kv_plan.groups if group.kind == "full"} == {128}


@pytest.mark.parametrize(
    ("model", "version", "reason"),
    [
        ("Qwen3-8B", "0.19.0", "known from vLLM 0.20 on"),
        ("Qwen3-8B", "0.20.0", ""),
        ("gpt-oss-20b", "0.20.0", "not known of local attention before vLLM 0.21"),
        ("gpt-oss-20b", "0.21.0", ""),
        ("DeepSeek-V3", "0.33.0", "not for latent attention"),
    ],
)
def test_scales_for_each_token_by_release_and_attention(model: str, version: str, reason: str) -> None:
    if not reason:
        assert plan(model, version, kv_cache_dtype="fp8_per_token_head").groups
        return
    with pytest.raises(Refusal, match=reason):
        plan(model, version, kv_cache_dtype="fp8_per_token_head")


def test_pages_that_do_not_divide() -> None:
    geometry = read_geometry(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 8192,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 512,
            "global_head_dim": 192,
        }
    )
    with pytest.raises(
        PlanFailure, match="NotImplementedError: The page size of the layer is not divisible by the maximum page"
    ):
        plan_kv_cache(geometry, KVSettings(parse_release("0.23.0"), 2048))
    padded = plan_kv_cache(geometry, KVSettings(parse_release("0.24.0"), 2048))
    assert padded.page_size_bytes == 16 * 2 * 2 * 192 * 2
    assert [group.block_size for group in padded.groups] == [16, 16]


@pytest.mark.parametrize("dtype", ["int4", "fp6", ""])
def test_unknown_cache_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(Refusal, match=r"kv-cache-dtype: KV cache dtype"):
        plan("Qwen3-8B", kv_cache_dtype=dtype)


def test_a_state_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(Refusal, match="tensor-parallel-size: key heads = 16"):
        plan("Qwen3.6-35B-A3B", tensor_parallel=3)
    with pytest.raises(Refusal, match="tensor-parallel-size: n_groups = 8"):
        plan("Nemotron-3-Nano-30B-A3B-BF16", tensor_parallel=3)


# Versions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "minor", "exact"),
    [
        ("0.19.0", 19, True),
        ("v0.19.1", 19, True),
        ("0.33.0", 33, True),
        ("0.23.0+cu130", 23, True),
        ("0.20.2rc1.dev49+g9b4e83934", 20, False),
        ("0.23.1.dev5", 23, False),
        ("0.24.0", 24, True),
        ("0.25.1", 25, True),
        ("0.15", 15, True),
        ("0.41.0", 33, False),
    ],
)
def test_versions(text: str, minor: int, exact: bool) -> None:
    release = parse_release(text)
    assert (release.minor, release.exact) == (minor, exact)
    assert release.is_newer is (text == "0.41.0")


@pytest.mark.parametrize("text", ["0.14.1", "0.6.3", "1.0.0", "1.23.0", "26.04-py3", "latest", ""])
def test_versions_that_are_refused(text: str) -> None:
    with pytest.raises(Refusal, match="vllm_version"):
        parse_release(text)


# Properties -----------------------------------------------------------------------------------------------------------

MODELS = ("Qwen3-8B", "gpt-oss-20b", "Gemma-4-31B", "Qwen3.6-35B-A3B", "Nemotron-3-Nano-30B-A3B-BF16", "DeepSeek-V3")


@settings(max_examples=60)
@given(
    st.sampled_from(MODELS), st.integers(15, 33), st.integers(1, 60 * GIB), st.integers(0, GIB), st.integers(1, 262144)
)
def test_more_memory_never_holds_less(model: str, minor: int, available: int, more: int, length: int) -> None:
    kv_plan = plan(model, f"0.{minor}.0")
    assert kv_plan.num_blocks(available) <= kv_plan.num_blocks(available + more)
    assert kv_plan.largest_length(available, length) <= kv_plan.largest_length(available + more, length)
    assert kv_plan.needed_bytes(length) <= kv_plan.needed_bytes(length + 1)


@settings(max_examples=60)
@given(st.sampled_from(MODELS), st.integers(15, 33), st.integers(1, 60 * GIB))
def test_the_largest_length_passes_and_one_more_fails(model: str, minor: int, available: int) -> None:
    kv_plan = plan(model, f"0.{minor}.0")
    largest = kv_plan.largest_length(available, 262144)
    budget = kv_plan.checked_bytes(available)
    assert largest == 0 or kv_plan.needed_bytes(largest) <= budget
    assert largest == 262144 or kv_plan.needed_bytes(largest + 1) > budget


@settings(max_examples=40)
@given(st.sampled_from(MODELS), st.integers(15, 33), st.sampled_from([2, 4, 8]), st.integers(1, 262144))
def test_more_ranks_never_need_more_each(model: str, minor: int, ranks: int, length: int) -> None:
    single, many = plan(model, f"0.{minor}.0"), plan(model, f"0.{minor}.0", tensor_parallel=ranks)
    assert many.bytes_per_block <= single.bytes_per_block or many.block_size > single.block_size
    assert many.marginal_bytes_per_token <= single.marginal_bytes_per_token
