# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model families of November 2026 against the rows that vLLM's own planner and model classes gave for them."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import (
    families,
    family_modules,
    vision_modules,
    vllm_errors,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import checkpoint_kv_dtype, read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_cache import (
    approximate_divisor,
    pack,
    plan_kv_cache,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_plan import (
    STATE_KINDS,
    KVPlan,
    KVSettings,
    PlanFailure,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_specs import Spec, exports_checkpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Split, Weights, weights_bytes

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "memory_rows_2026_11.json").read_text(encoding="utf-8")
)
SMALL: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "small_models.json").read_text(encoding="utf-8")
)["models"]
ROWS = [dict(zip(DATA["columns"], row, strict=True)) for row in DATA["rows"]]


def config(model: str) -> dict[str, Any]:
    """Return the fields of a config.json that matter."""
    result: dict[str, Any] = copy.deepcopy(DATA["configs"][model])
    return result


def plan_row(row: dict[str, Any]) -> KVPlan:
    """Plan the launch of a row."""
    model = DATA["configs"][row["model"]]
    geometry, drafts = read_geometry(model), row["num_speculative_tokens"]
    dtype = row["kv_cache_dtype"]
    if dtype == "auto":
        dtype = checkpoint_kv_dtype(model, DATA["quant_configs"].get(row["model"]))
    return plan_kv_cache(
        geometry,
        KVSettings(
            parse_release(row["version"]),
            row["max_num_batched_tokens"] or 2048,
            kv_cache_dtype=dtype,
            prefix_caching=row["enable_prefix_caching"] is not False,
            tensor_parallel=row["tensor_parallel_size"],
            num_speculative_tokens=drafts,
            draft_layers=geometry.draft_caches(drafts) if drafts else (),
            multi_module_mtp=row["speculative_method"] == "mtp" and min(geometry.mtp_modules, drafts) > 1,
        ),
    )


@pytest.mark.parametrize(
    "row",
    ROWS,
    ids=lambda row: (
        f"{row['version']} {row['model']} {row['kv_cache_dtype']} tp{row['tensor_parallel_size']}"
        f" drafts{row['num_speculative_tokens']} batch{row['max_num_batched_tokens']} {row['max_model_len']}"
    ),
)
def test_every_row_of_vllms_own_planner(row: dict[str, Any]) -> None:
    length, available = row["max_model_len"], row["available_bytes"]
    if row["error"]:
        try:
            text = vllm_errors.error_too_long(plan_row(row), length, available)
        except PlanFailure as failure:
            text = str(failure)
        assert text.split(": ", 1)[1] == row["error"]
        return
    result = plan_row(row)
    blocks = result.num_blocks(available)
    assert {
        "mamba_cache_mode": result.mamba_cache_mode,
        "bytes_per_block": result.bytes_per_block,
        "num_blocks": blocks,
        "gpu_kv_cache_size_tokens": result.printed_tokens(blocks, length),
        "max_concurrency": result.max_concurrency(blocks, length),
        "needed_bytes_one_request": result.needed_bytes(length),
        "kv_groups": sorted([group.layers, group.block_size or length] for group in result.groups),
    } == {
        **{key: row[key] for key in ("mamba_cache_mode", "bytes_per_block", "num_blocks", "gpu_kv_cache_size_tokens")},
        "max_concurrency": pytest.approx(row["max_concurrency"], abs=1e-9),
        "needed_bytes_one_request": row["needed_bytes_one_request"],
        "kv_groups": row["kv_groups"],
    }
    states = row["state_bytes_per_layer_unpadded"]
    assert result.state_bytes == (max(states) if isinstance(states, list) else states or 0)


def test_rows_that_are_left_out_say_why() -> None:
    assert len(ROWS) + len(DATA["not_comparable"]) == 447
    assert all(row["why"] for row in DATA["not_comparable"])


def test_every_reader_of_a_family_has_rows() -> None:
    """Families of the same layers share a reader."""
    compared = {read_geometry(DATA["configs"][row["model"]]).model_type for row in ROWS}
    assert {families.READERS.get(family) for family in compared} >= set(families.READERS.values())


# Lines of real start-up logs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "tokens"), [(398, 576427), (382, 553254)])
def test_logs_of_two_sparks_with_flash_next(blocks: int, tokens: int) -> None:
    """Nightlies of before the checkpoint block, MTP 2, prefix caching, 262,144 tokens: 181 blocks a request.

    They logged a block of 1600, which the release before has as 1584; 164 blocks of it hold a request, 166 of the other.
    """
    geometry = read_geometry(config("Qwen3.8-Flash-Next"))
    settings = KVSettings(
        parse_release("0.31.0"), 2048, num_speculative_tokens=2, draft_layers=geometry.draft_caches(2), block_size=64
    )
    result = plan_kv_cache(geometry, settings)
    assert (result.block_size, result.blocks_per_request(262144)) == (1600, 181)
    assert result.printed_tokens(blocks, 262144) == tokens


def test_log_of_flash_next_with_the_checkpoint_block() -> None:
    geometry = read_geometry(config("Qwen3.8-Flash-Next"))
    settings = KVSettings(
        parse_release("0.33.0"), 2048, num_speculative_tokens=2, draft_layers=geometry.draft_caches(2)
    )
    assert plan_kv_cache(geometry, settings).printed_tokens(569, 262144) == 806269


def test_a_budget_solves_for_the_batch_where_that_is_the_price() -> None:
    fields = {
        "name": "flash",
        "config": config("DeepSeek-V4-Flash"),
        "weights_gib": 40,
        "vllm_version": "0.33.0",
        "args": {
            "max-model-len": 32768,
            "max-num-seqs": 1,
            "max-num-batched-tokens": 16384,
            "gpu-memory-utilization": 0.45,
            "kv-cache-dtype": "fp8",
        },
    }
    made = memory_budget({"total_gib": 119.67, "services": [fields]})
    result = next(item for item in made["findings"] if item["rule"] == "memory.one_request")
    assert "Most of it is for max-num-batched-tokens, 16384" in result["message"]
    assert "max-num-batched-tokens" in result["fix"]


def test_the_table_of_flash_next_is_named() -> None:
    fields = {
        "name": "next",
        "config": config("Qwen3.8-Flash-Next-NVFP4"),
        "vllm_version": "0.33.0",
        "args": {"max-model-len": 32768, "tensor-parallel-size": 4, "gpu-memory-utilization": 0.8},
    }
    made = memory_budget({"total_gib": 119.67, "services": [fields]})["services"]["next"]
    assert made["host_bytes"] == 25600122880
    assert made["weights_bytes"] > made["host_bytes"]


@pytest.mark.parametrize(
    ("model", "more", "reason"),
    [
        ("Qwen3.8-Flash-Next-NVFP4", {"env": {"VLLM_PLE_TABLE_MEMORY": "disk"}}, "VLLM_PLE_TABLE_MEMORY=disk"),
        ("DeepSeek-V4.1-Flash", {"args": {"engram-config": {"table_memory": "disk"}}}, "(--engram-config)"),
    ],
)
def test_a_table_that_stays_on_disk_is_no_memory_and_is_warned_of(
    model: str, more: dict[str, Any], reason: str
) -> None:
    args = {"max-model-len": 32768, "max-num-seqs": 1, "tensor-parallel-size": 4, "gpu-memory-utilization": 0.8}
    fields = {"name": "x", "config": config(model), "vllm_version": "0.33.0", "args": args}
    in_memory = memory_budget({"total_gib": 119.67, "services": [fields]})
    less = memory_budget(
        {"services": [{**fields, **more, "args": {**args, **more.get("args", {})}}], "total_gib": 119.67}
    )
    before, after = in_memory["services"]["x"], less["services"]["x"]
    assert before["host_bytes"] > 10 << 30 and after["host_bytes"] == 0
    assert before["weights_bytes"] - after["weights_bytes"] == before["host_bytes"]
    assert before["load_peak_bytes"] - after["load_peak_bytes"] == before["host_bytes"]
    (finding,) = (item for item in less["findings"] if item["rule"] == "memory.table")
    assert finding["severity"] == "warning" and reason in finding["message"]
    assert f"{before['host_bytes'] / (1 << 30):.1f}" in finding["message"]
    assert "memory.table" not in [item["rule"] for item in in_memory["findings"]]
    # The stated weights stay unchanged.
    stated = {**fields, **more, "args": {**args, **more.get("args", {})}, "weights_gib": 120}
    assert memory_budget({"services": [stated]})["services"]["x"]["weights_bytes"] == 30 << 30


@pytest.mark.parametrize("model", SMALL)
def test_small_models_have_the_weights_of_vllms_own_classes(model: str) -> None:
    """MiMo says nothing of its router here, which is then in 32 bits."""
    fields = {"name": "x", "config": SMALL[model]["files"]["config.json"], "vllm_version": "0.32.0"}
    made = memory_budget({"services": [{**fields, "args": {"max-model-len": 16384, "gpu-memory-utilization": 0.5}}]})
    assert made["services"]["x"]["weights_bytes"] == SMALL[model]["weights"]


# Other settings ---------------------------------------------------------------------------------------------------------


def settings_of(version: str = "0.33.0", **fields: Any) -> KVSettings:
    return KVSettings(parse_release(version), fields.pop("batch", 2048), **fields)


@pytest.mark.parametrize(("drafts", "rows"), [(0, 8), (5, 8), (6, 8), (7, 16), (14, 16), (15, 32)])
def test_rings_of_v41_grow_with_the_draft_tokens(drafts: int, rows: int) -> None:
    geometry = read_geometry(config("DeepSeek-V4.1-Flash"))
    result = plan_kv_cache(
        geometry, settings_of(num_speculative_tokens=drafts, draft_layers=geometry.draft_caches(drafts))
    )
    assert {group.block_size for group in result.groups if group.kind == "ring"} == {rows}


def test_the_batch_rules_the_price_of_a_request_of_v4() -> None:
    geometry = read_geometry(config("DeepSeek-V4-Flash"))
    small, large = (plan_kv_cache(geometry, settings_of(batch=batch)) for batch in (2048, 8192))
    assert (small.blocks_per_request(32768), large.blocks_per_request(32768)) == (1818, 6810)


@pytest.mark.parametrize(("version", "block"), [("0.22.1", 1051776), ("0.23.0", 1039680)])
def test_blocks_of_v4_with_a_draft_layer(version: str, block: int) -> None:
    """Up to 0.22 a block has tensors of every size as often as of the commonest one (kv_cache_utils.py of both)."""
    geometry = read_geometry(config("DeepSeek-V4-Flash"))
    drafts = geometry.draft_caches(3)
    made = plan_kv_cache(
        geometry,
        settings_of(version, batch=8192, kv_cache_dtype="fp8", num_speculative_tokens=3, draft_layers=drafts),
    )
    assert made.bytes_per_block == block


@pytest.mark.parametrize(
    ("model", "fields", "key"),
    [
        ("DeepSeek-V4-Flash", {"kv_cache_dtype": "bfloat16"}, "args.kv-cache-dtype"),
        ("DeepSeek-V4-Flash", {"block_size": 128}, "args.block-size"),
        ("DeepSeek-V4-Flash", {"version": "0.27.0"}, "args.kv-cache-dtype"),
        ("DeepSeek-V4-Flash", {"skip_layers": ("1",), "kv_cache_dtype": "fp8"}, "args.kv-cache-dtype-skip-layers"),
        ("GLM-5.3-Flash", {"pipeline_parallel": 2}, "args.pipeline-parallel-size"),
        ("GLM-5.3-Flash", {"hybrid_manager": False}, "args.disable-hybrid-kv-cache-manager"),
        ("GLM-5.3-Flash", {"version": "0.29.0"}, "vllm_version"),
        ("Kimi-K3", {"tensor_parallel": 5}, "args.tensor-parallel-size"),
    ],
)
def test_what_was_not_compared_is_refused(model: str, fields: dict[str, Any], key: str) -> None:
    with pytest.raises(Refusal) as caught:
        plan_kv_cache(read_geometry(config(model)), settings_of(fields.pop("version", "0.33.0"), **fields))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("model", "path", "value", "key"),
    [
        ("DeepSeek-V4-Flash", ("compress_ratios", 0), 8, "config.compress_ratios[0]"),
        ("DeepSeek-V4-Flash", ("compress_ratios",), [4], "config.compress_ratios"),
        ("DeepSeek-V4.1-Flash", ("text_config", "kv_source_layer_ids"), [99], "config.kv_source_layer_ids"),
        ("DeepSeek-V4.1-Flash", ("text_config", "compress_ratios", 2), 4, "config.compress_ratios[2]"),
        ("GLM-5.3-Flash", ("text_config", "layer_types", 0), "mamba", "config.layer_types"),
        ("Qwen3.8-Flash-Next", ("text_config", "layer_types", 0), "mamba", "config.layer_types"),
        ("Qwen3.8-Flash-Next", ("text_config", "ple_layer_ids"), "two", "config.ple_layer_ids"),
        ("Step-3.7-Flash", ("text_config", "layer_types"), ["full_attention"], "config.layer_types"),
        ("MiniMax-M3-noquant", ("text_config", "sparse_attention_config"), None, "config.sparse_attention_config"),
        ("Kimi-K3", ("text_config", "linear_attn_config", "kda_layers", 0), 4, "config.linear_attn_config.kda_layers"),
        ("Nemotron-3.5-Lightning-30B-NVFP4", ("layers_block_type", 0), "hyena", "config.layers_block_type[0]"),
    ],
)
def test_fields_that_are_not_known_are_refused_by_name(model: str, path: tuple[Any, ...], value: Any, key: str) -> None:
    result = config(model)
    inner: Any = result
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(Refusal) as caught:
        read_geometry(result)
    assert caught.value.key == key


def test_index_layers_of_sparse_latent_attention() -> None:
    model = config("GLM-5.2")

    def indexes(**fields: Any) -> int:
        return sum(map(len, read_geometry({**model, **fields}).further_caches))

    assert (len(model["layers"] if "layers" in model else read_geometry(model).layers), indexes()) == (78, 21)
    assert indexes(index_topk_freq=1) == 78
    assert indexes(index_topk_pattern="FS" * 39) == 39
    assert indexes(index_topk_freq=None, indexer_types=["full"] + ["shared"] * 77) == 1


# Single releases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "requested", "block"), [("0.30.0", 0, 16), ("0.30.0", 128, 128), ("0.31.0", 0, 128)]
)
def test_blocks_of_minimax_m3_before_the_platform_asked_all_layers(version: str, requested: int, block: int) -> None:
    settings = KVSettings(parse_release(version), 2048, block_size=requested)
    assert plan_kv_cache(read_geometry(config("MiniMax-M3-noquant")), settings).block_size == block


@pytest.mark.parametrize(
    ("version", "requested", "refused"),
    [("0.24.0", 0, True), ("0.30.0", 0, True), ("0.30.0", 128, False), ("0.31.0", 0, False), ("", 0, False)],
)
def test_minimax_m3_stops_where_vllm_picks_blocks_that_its_kernels_do_not_take(
    version: str, requested: int, refused: bool
) -> None:
    args = {"max-model-len": 4096, "max-num-seqs": 1, "gpu-memory-utilization": 0.8}
    args.update({"block-size": requested} if requested else {})
    service = {"name": "m3", "config": config("MiniMax-M3-noquant"), "args": args, "weights_gib": 60}
    service["vllm_version"] = version
    made = memory_budget({"total_gib": 119.67, "services": [service]})
    result = {item["rule"]: item for item in made["findings"]}
    assert ("memory.kernel_block" in result) is refused
    assert made["services"]["m3"]["verdict"] == ("fails" if refused else "fits")
    if refused:
        error = result["memory.kernel_block"]
        assert (error["severity"], error["stage"]) == ("error", "kv_cache")
        assert error["vllm_error"] == "ValueError: No common block size for 16. "
        assert "set block-size of m3 to 128" in error["fix"].lower()


@pytest.mark.parametrize(("version", "spare"), [("0.28.0", 0), ("0.29.0", 1)])
def test_kimi_k3_keeps_a_checkpoint_of_a_prefill_from_0_29(version: str, spare: int) -> None:
    geometry = read_geometry(config("Kimi-K3"))
    result = plan_kv_cache(geometry, KVSettings(parse_release(version), 2048, prefix_caching=True))
    states = [group for group in result.groups if group.kind == "kda"]
    attention = -(-4096 // result.block_size)
    assert result.blocks_per_request(4096) == attention + len(states) * (2 + spare)


def test_sparse_latent_attention_has_no_kernel_for_gb10_before_0_24() -> None:
    geometry = read_geometry(config("GLM-5.2"))
    with pytest.raises(PlanFailure, match=r"^ValueError: No valid attention backend found for cuda"):
        plan_kv_cache(geometry, KVSettings(parse_release("0.23.0"), 2048))
    assert plan_kv_cache(geometry, KVSettings(parse_release("0.24.0"), 2048)).block_size == 64
    # Where the version is not known, those that can are planned.
    service = {"name": "x", "config": config("GLM-5.2"), "args": {"max-model-len": 4096}, "weights_gib": 20}
    result = memory_budget({"total_gib": 119.67, "services": [service]})
    assert result["services"]["x"]["block_size"] == 64


# A BF16 cache on two Sparks: which numbers of draft tokens a published sweep found to start; blocks of 0.33 are multiples of 64.
STARTED = {*range(1, 5), *range(9, 13)}


@pytest.mark.parametrize("drafts", range(1, 17))
@pytest.mark.parametrize(("version", "started"), [("0.33.0", STARTED), ("0.32.0", STARTED | {6})])
def test_the_ring_of_raw_keys_refuses_the_draft_lengths_that_a_sweep_found(
    version: str, started: set[int], drafts: int
) -> None:
    geometry = read_geometry(config("Qwen3.8-Flash-Next"))
    settings = KVSettings(
        parse_release(version),
        2048,
        tensor_parallel=2,
        num_speculative_tokens=drafts,
        draft_layers=geometry.draft_caches(drafts),
    )
    if drafts in started:
        assert plan_kv_cache(geometry, settings).block_size % (4 * -(-(4 + drafts) // 4)) == 0
    else:
        with pytest.raises(
            PlanFailure, match=r"^AssertionError: QSA ring capacity \d+ must divide the attention block size \d+$"
        ):
            plan_kv_cache(geometry, settings)


@pytest.mark.parametrize("drafts", range(17))
@pytest.mark.parametrize("version", ["0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_the_tail_ring_of_glm_divides_every_block(version: str, drafts: int) -> None:
    geometry = read_geometry(config("GLM-5.3-Flash"))
    settings = KVSettings(
        parse_release(version), 2048, num_speculative_tokens=drafts, draft_layers=geometry.draft_caches(drafts)
    )
    assert plan_kv_cache(geometry, settings).block_size % 256 == 0


@pytest.mark.parametrize(("rotated", "block"), [(0, 8704), (64, 7680)])
def test_the_block_of_glm_holds_a_state_at_one_byte_for_each_element_of_the_latent(rotated: int, block: int) -> None:
    """The platform of vLLM counts the latent of 512 and the rotated part, in steps of 128 tokens; the kernels want 256."""
    model = config("GLM-5.3-Flash")
    model["text_config"]["qk_rope_head_dim"] = rotated
    result = plan_kv_cache(read_geometry(model), settings_of())
    steps = math.ceil(result.state_bytes / (128 * (512 + rotated)))
    assert result.block_size == math.ceil(128 * steps / 256) * 256 == block


@pytest.mark.parametrize(("hidden", "elements"), [(3072, 1024), (3076, 2048), (4096, 2048)])
def test_a_row_of_inklings_convolution_is_a_power_of_two(hidden: int, elements: int) -> None:
    """Keys and values of 128 each, and two inputs that its 8 heads share, of 16 bits."""
    model = config("Inkling-Small")
    model["text_config"]["hidden_size"] = hidden
    rows = {cache.row for caches in read_geometry(model).further_caches for cache in caches}
    assert 256 + 2 * hidden // 8 <= elements and rows == {2 * elements}


def test_a_ring_that_does_not_divide_the_block_of_glm_is_refused() -> None:
    geometry = read_geometry(config("GLM-5.3-Flash"))
    settings = KVSettings(
        parse_release("0.33.0"), 2048, num_speculative_tokens=254, draft_layers=geometry.draft_caches(254)
    )
    with pytest.raises(PlanFailure, match="must be a multiple of the tail ring"):
        plan_kv_cache(geometry, settings)


@pytest.mark.parametrize(
    ("model", "first"), [("Qwen3.8-Flash-Next", 33), ("Kimi-K3", 29), ("Nemotron-3.5-Lightning-30B-NVFP4", 32)]
)
def test_kernels_that_store_a_checkpoint_of_a_prefill_take_a_block_for_it(model: str, first: int) -> None:
    """By release: GDN with FlashInfer's prefill, KDA with FlashKDA, and Mamba-2; one block for each group of states."""
    geometry = read_geometry(config(model))
    exporting = [
        minor for minor in range(28, 34) if exports_checkpoints(geometry.recurrent[0], parse_release(f"0.{minor}.0"))
    ]
    assert exporting == list(range(first, 34))
    last = plan_kv_cache(geometry, settings_of())
    assert last.blocks_per_request(1) - replace(last, checkpoints=False).blocks_per_request(1) == sum(
        group.kind in STATE_KINDS for group in last.groups
    )


# Packing ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "least", "divisor"),
    [([43, 21, 20], 21, 22), ([44, 21, 20], 21, 22), ([34, 11, 11], 11, 12), ([5], 9, 9)],
)
def test_approximate_divisor(values: list[int], least: int, divisor: int) -> None:
    assert approximate_divisor(values, least) == divisor


def test_states_fill_a_block_and_never_widen_it() -> None:
    specs = [Spec("full", 16, 100)] * 3 + [Spec("mamba", 16, 70)] * 10
    groups = pack(specs)
    assert sorted(map(len, groups)) == [3, 3, 3, 4]
    assert max(sum(specs[member].page for member in group) for group in groups) == 300


# Weights ----------------------------------------------------------------------------------------------------------------

WEIGHTS = [dict(zip(("model", "ranks", "part", "bytes", "tables"), row, strict=True)) for row in DATA["weights"]]
NOT_COMPARED = {
    "Mistral-Small-4-119B": "the fixture has the fields of its cache alone; compared in test_compared_formats.py",
    "Devstral-Small-2-24B": "the row ties the head, against the text part of the config; counted with a head of its own",
}
# In addition to the figures: one scale per matrix in NVFP4 and FP8, and rows that pad the fused projections of MiMo to a block. Tables of V4.1 are
# divided by heads, whose sizes are primes, of which the first rank has the smaller ones.
SLACK = {"MiMo-V2.6-Flash": 6e-5, "Nemotron-3.5-Lightning-30B-NVFP4": 2e-5, "Qwen3.8-Flash-Next-NVFP4": 2e-5}
SLACK.update({"GLM-5.3-Flash-NVFP4": 1e-5, "Laguna-S-2.1-FP8": 1e-6, "Kimi-K2.6-NVFP4": 4e-6})
SLACK.update({"DeepSeek-V4.1-Flash": 1.1e-5})
# How many tables of the vocabulary vLLM's figure of a draft has, before the drafter shares them with the model.
SHARED = {"GLM-5.3-Flash": 1, "Nemotron-3.5-Lightning-30B-NVFP4": 0, "Step-3.7-Flash": 4, "Inkling-Small": 0}
# How many tokens a row drafts, where vLLM makes a layer for each.
DRAFT_TOKENS = {("Inkling-Small", 1): 1, ("Inkling-Small", 2): 4}


def counted(row: dict[str, Any], vision: bool = True) -> Weights:
    result = config(row["model"])
    return weights_bytes(
        result,
        read_geometry(result),
        quant_config=DATA["quant_configs"].get(row["model"]),
        split=Split(tensor=row["ranks"]),
        vision=vision,
        mtp=True,
        draft_tokens=DRAFT_TOKENS.get((row["model"], row["ranks"]), 0),
    )


@pytest.mark.parametrize(
    "row",
    [row for row in WEIGHTS if row["part"] == "target" and row["model"] not in NOT_COMPARED],
    ids=lambda row: f"{row['model']} tp{row['ranks']}",
)
def test_parameters_of_vllms_own_model_classes(row: dict[str, Any]) -> None:
    result = counted(row)
    assert result.target == pytest.approx(row["bytes"], rel=SLACK.get(row["model"], 0), abs=0)
    if row["tables"]:
        assert result.host == pytest.approx(row["tables"], rel=SLACK.get(row["model"], 0), abs=0)


@pytest.mark.parametrize(
    "row",
    [row for row in WEIGHTS if row["part"] == "draft" and row["model"] not in NOT_COMPARED],
    ids=lambda row: f"{row['model']} tp{row['ranks']}",
)
def test_drafts_of_vllms_own_model_classes(row: dict[str, Any]) -> None:
    text = config(row["model"])
    text = text.get("text_config", text)
    table = 2 * text["vocab_size"] * text["hidden_size"] // row["ranks"]
    result = counted(row, vision=False).draft
    assert result + SHARED.get(row["model"], 2) * table == pytest.approx(row["bytes"], rel=0, abs=8)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_inkling_makes_a_layer_for_each_draft_token(tokens: int) -> None:
    """Read off vLLM 0.32.0: the second of the draft layers has no window, so its table of positions is larger."""
    result = config("Inkling-Small")
    made = weights_bytes(result, read_geometry(result), mtp=True, draft_tokens=tokens)
    assert made.draft == (557982210, 1115972612, 1673946630)[tokens - 1]
    service = {
        **{"name": "x", "config": result, "vllm_version": "0.32.0", "available_kv_bytes": 1 << 36},
        "args": {"max-model-len": 4096, "max-num-batched-tokens": 2048, "tensor-parallel-size": 8, "max-num-seqs": 1},
    }
    service["args"]["speculative-config"] = {"method": "mtp", "num_speculative_tokens": tokens}
    drafts = memory_budget({"total_gib": 119.67, "services": [service]})["services"]["x"]["draft_bytes"]
    assert (
        drafts
        == weights_bytes(result, read_geometry(result), split=Split(tensor=8), mtp=True, draft_tokens=tokens).draft
    )


def test_models_without_figures_say_why() -> None:
    assert set(NOT_COMPARED) <= {row["model"] for row in WEIGHTS}
    result = config("Mistral-Small-4-119B")
    with pytest.raises(Refusal, match=r"weights of the family 'mistral4' are known since vLLM 0\.33 alone"):
        weights_bytes(result, read_geometry(result), minor=32)


@pytest.mark.parametrize(
    ("model", "change", "key"),
    [
        (
            "Inkling-Small",
            {"vision_config": {"decoder_dmodel": 8, "vision_encoder_type": "linear"}},
            "config.vision_config.vision_encoder_type",
        ),
        (
            "Inkling-Small",
            {"vision_config": {"decoder_dmodel": 8, "vision_encoder_type": "hmlp", "n_layers": 2, "patch_size": 1}},
            "config.temporal_patch_size",
        ),
        (
            "Inkling-Small",
            {"audio_config": {"decoder_dmodel": 8, "audio_mode": "flow"}},
            "config.audio_config.audio_mode",
        ),
        ("EXAONE-4.5-33B", {"model_type": "exaone_of_next_year"}, "config.vision_config"),
        ("Step-3.7-Flash", {"vision_config": {"width": 8, "patch_size": 2}}, "config.vision_config.mlp_ratio"),
    ],
)
def test_parts_whose_weights_are_not_known_are_refused_by_name(model: str, change: dict[str, Any], key: str) -> None:
    result = config(model)
    for name, value in change.items():
        result[name] = value
    with pytest.raises(Refusal) as caught:
        weights_bytes(result, read_geometry(result))
    assert caught.value.key == key


def test_the_tower_of_inkling_joins_patches_step_by_step() -> None:
    """Patches of 14 x 14 pixels in pairs of images: by 7, by 2, then in time; channels are rounded up to 64 (plan_out_scales)."""

    def layers(count: int) -> list[tuple[int, int]]:
        tower = {"decoder_dmodel": 8, "vision_encoder_type": "hmlp", "n_layers": count, "n_channels": 3}
        tower |= {"patch_size": 14, "temporal_patch_size": 2}
        modules = vision_modules.vision_tower({**config("Inkling-Small"), "vision_config": tower})
        return [(module.rows, module.columns) for module in modules if "linear" in module.name]

    assert layers(1) == [(8, 3 * 14 * 14 * 2)]
    assert layers(3) == [(192, 3 * 7 * 7), (640, 192 * 2 * 2), (8, 640 * 2)]


@pytest.mark.parametrize(
    ("model", "size"),
    [("EXAONE-4.5-33B", 2572965888), ("Kimi-K2.6-NVFP4", 942287840), ("MiniMax-M3-noquant", 1731134464)],
)
def test_towers_are_counted_apart_and_may_be_left_out(model: str, size: int) -> None:
    """Read off the modules of vLLM 0.32.0."""
    row = {"model": model, "ranks": 1}
    with_tower, text = counted(row), counted(row, vision=False)
    assert with_tower.vision == with_tower.target - text.target == size and text.vision == 0
    modules = vision_modules.vision_tower(config(model))
    assert sum(module.rows * module.columns * module.count * (module.size or 2) for module in modules) == size


def test_a_table_of_ngrams_is_smaller_in_fewer_bits() -> None:
    result = config("Qwen3.8-Flash-Next")
    sizes = {}
    for name in ("bfloat16", "float8_e4m3fn", "nvfp4"):
        result["text_config"]["ple_embedding_dtype"] = name
        sizes[name] = round(weights_bytes(result, read_geometry(result)).host / (1 << 30), 1)
    assert sizes == {"bfloat16": 95.4, "float8_e4m3fn": 47.7, "nvfp4": 26.8}
    result["text_config"]["ple_embedding_dtype"] = "int3"
    with pytest.raises(Refusal, match="ple_embedding_dtype"):
        weights_bytes(result, read_geometry(result))


@pytest.mark.parametrize(
    ("value", "prime"), [(2, True), (1, False), (4, False), (37, True), (561, False), (1_000_003, True)]
)
def test_primes_that_sizes_of_tables_are_raised_to(value: int, prime: bool) -> None:
    """561 is a Carmichael number: a witness alone would take it for a prime."""
    assert family_modules._is_prime(value) is prime
