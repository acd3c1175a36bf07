# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that only single families have: indexers, hyper-connections, n-gram layers and their tables.

Modules of several families are in C(weights.py). The shapes come from vLLM's classes under
C(vllm/models/) (0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .layers import Attention, Config, Refusal
from .modules import GIVE, Module, experts, field, gated_mlp, latent_attention, linear, optional

# The values of ple_embedding_dtype: bytes of 16 values of a row, with their scales (qwen4_exp/common/ngram_embedding.py).
_TABLE_BYTES = {"bfloat16": 32, "float8_e4m3fn": 16, "nvfp4": 9}
# Rows of a Kimi expert that a tensor-parallel rank has at least, the rest is filled up (kimi_k3/nvidia/model.py, KimiMoE).
_KIMI_LEAST_PART = 256
# Small primes, which are witnesses enough for any number of 64 bits (Miller and Rabin, deterministic).
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def _is_prime(value: int) -> bool:
    if value < 2 or any(value % prime == 0 for prime in _WITNESSES):
        return value in _WITNESSES
    odd, twos = value - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in _WITNESSES:
        witness = pow(base, odd, value)
        if witness in (1, value - 1):
            continue
        for _square in range(twos - 1):
            witness = witness * witness % value
            if witness == value - 1:
                break
        else:
            return False
    return True


def ngram_rows(text: Config, table: int) -> int:
    """Return the rows of n-gram table C(table) of Qwen4: one prime for every head, up to a multiple (ngram_embedding.py)."""
    heads = field(text, "heads_per_ngram") * (field(text, "ngram_size") - 1)
    value, rows, primes = field(text, "ngram_vocab_size_base") - 1, 0, 0
    while primes < (table + 1) * heads:
        value += 1
        if _is_prime(value):
            primes += 1
            rows += value if primes > table * heads else 0
    multiple = field(text, "make_ngram_vocab_size_divisible_by")
    return -(-rows // multiple) * multiple


def tables(text: Config, family: str) -> Iterator[Module]:
    """Yield the n-gram tables, which vLLM keeps in pinned host memory by default (EngramConfig)."""
    if family == "deepseek_v41_text":
        # Rows of 8 bits with a scale for every 32 values.
        dim, rows = field(text, "engram_head_dim"), text.get("engram_num_embeddings") or []
        for table, count in enumerate(rows):
            yield Module(f"engram.{table}.table", field({"rows": count}, "rows"), dim + dim // 32, split=True, size=1)
    if family != "qwen4_exp_text":
        return
    wide = str(text.get("ple_embedding_dtype") or "bfloat16")
    if wide not in _TABLE_BYTES:
        raise Refusal("config.ple_embedding_dtype", f"a table of {wide!r} is not known", GIVE)
    heads = field(text, "heads_per_ngram") * (field(text, "ngram_size") - 1)
    row = field(text, "ple_embed_dim") // heads * _TABLE_BYTES[wide] // 16
    for table in range(len(text.get("ple_layer_ids") or [])):
        yield Module(f"ple.{table}.table", ngram_rows(text, table), row, split=True, size=1)


def _residual(text: Config, prefix: str, inject: bool = True) -> Iterator[Module]:
    """Yield a gated hyper-connection of Qwen4 (common/hyperconnection.py)."""
    wide, low = field(text, "hc_count") * field(text, "hidden_size"), field(text, "hc_lowrank")
    yield Module(f"{prefix}.hc_norm", wide)
    yield Module(f"{prefix}.input_mix_weight", wide, 2 * low)
    if inject:
        # Mixing and injecting weights together fill a multiple of 16 rows.
        yield Module(f"{prefix}.block_inject_weight", wide, -(-(low + field(text, "hc_count")) // 16) * 16 - low)


def _qwen4_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    hidden = field(text, "hidden_size")
    yield from _residual(text, f"{prefix}.attn_hyper_connection")
    yield from _residual(text, f"{prefix}.mlp_hyper_connection")
    if full:
        dim = field(text, "indexer_head_dim")
        heads = field(text, "indexer_n_heads") + field(text, "indexer_kv_heads")
        name = f"{prefix}.self_attn.indexer"
        yield replace(linear(f"{name}.index_qk_proj", heads * dim, hidden), split=False)
        yield Module(f"{name}.norms", 2 * dim)
    if index + 1 in (text.get("ple_layer_ids") or []):
        wide = field(text, "hc_count") * hidden
        yield replace(linear(f"{prefix}.ple.kv_proj", wide + hidden, field(text, "ple_embed_dim")), split=False)
        yield Module(f"{prefix}.ple.norms", 3 * wide)
        yield Module(f"{prefix}.ple.conv1d", wide, field(text, "ple_conv_kernel_size"))


def _index_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield the indexer of DeepSeek-V3.2 and GLM-5 (deepseek_v32/attention.py)."""
    hidden, dim = field(text, "hidden_size"), field(text, "index_head_dim")
    heads, name = field(text, "index_n_heads"), f"{prefix}.self_attn.indexer"
    yield from latent_attention(text, f"{prefix}.self_attn")
    if full:
        yield replace(linear(f"{name}.wq_b", heads * dim, field(text, "q_lora_rank")), split=False)
        yield replace(linear(f"{name}.wk", dim, hidden), split=False)
        yield Module(f"{name}.k_norm", 2 * dim, size=4)
        yield Module(f"{name}.weights_proj", heads, hidden)


def _minimax_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield the index projections of MiniMax-M3 (minimax_m3/nvidia/model.py)."""
    if full:
        sparse = text["sparse_attention_config"]
        dim, heads = field(sparse, "sparse_index_dim"), field(sparse, "sparse_num_index_heads")
        name = f"{prefix}.self_attn"
        yield linear(f"{name}.index_q_proj", heads * dim, field(text, "hidden_size"))
        yield replace(linear(f"{name}.index_k_proj", dim, field(text, "hidden_size")), split=False)
        yield Module(f"{name}.index_norms", 2 * dim)


def _compressor(text: Config, ratio: int, dim: int, prefix: str) -> Iterator[Module]:
    """Yield the compressor of DeepSeek-V4, for keys and for the index (deepseek_v4/compressor.py)."""
    wide = (2 if ratio == 4 else 1) * dim
    yield Module(f"{prefix}.ape", ratio, wide, size=4)
    yield Module(f"{prefix}.wkv_wgate", 2 * wide, field(text, "hidden_size"))
    yield Module(f"{prefix}.norm", dim)


def _v4_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield the attention of DeepSeek-V4 and its hyper-connections (deepseek_v4/attention.py, nvidia/model.py)."""
    hidden, rank, name = field(text, "hidden_size"), field(text, "q_lora_rank"), f"{prefix}.self_attn"
    yield from _v4_attention(text, name)
    ratios = text["compress_ratios"]
    ratio = ratios[index] if index < len(ratios) else 0
    if ratio:
        yield from _compressor(text, ratio, field(text, "head_dim"), f"{name}.compressor")
    if ratio == 4:
        small, many = field(text, "index_head_dim"), field(text, "index_n_heads")
        yield replace(linear(f"{name}.indexer.wq_b", many * small, rank), split=False)
        yield Module(f"{name}.indexer.weights_proj", many, hidden)
        yield from _compressor(text, ratio, small, f"{name}.indexer.compressor")
    yield from _hyper_connections(field(text, "hc_mult"), hidden, prefix)
    if index < optional(text, "num_hash_layers"):
        # These layers choose experts by the token, from a table.
        rows = field(text, "vocab_size")
        yield Module(f"{prefix}.mlp.gate.tid2eid", rows, field(text, "num_experts_per_tok"), size=4)


def _v4_attention(text: Config, name: str) -> Iterator[Module]:
    """Yield the projections that DeepSeek-V4 and V4.1 share."""
    hidden, heads, dim = (field(text, key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    rank, groups, low = (field(text, key) for key in ("q_lora_rank", "o_groups", "o_lora_rank"))
    yield replace(linear(f"{name}.wq_a", rank + dim, hidden), split=False)
    yield Module(f"{name}.norms", rank + dim)
    yield linear(f"{name}.wq_b", heads * dim, rank)
    yield linear(f"{name}.wo_a", groups * low, heads * dim // groups)
    yield linear(f"{name}.wo_b", hidden, groups * low)
    yield Module(f"{name}.attn_sink", heads, split=True, size=4)


def _hyper_connections(streams: int, hidden: int, prefix: str) -> Iterator[Module]:
    """Yield the weights that mix the streams of a layer's hidden state."""
    mix = (2 + streams) * streams
    yield Module(f"{prefix}.hc", 2 * mix, streams * hidden, size=4)
    yield Module(f"{prefix}.hc_base", 2 * (mix + 3), size=4)


def _glm5_modules(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield delta attention, or latent attention with an index of pools, and hyper-connections."""
    hidden = field(text, "hidden_size")
    if full:
        pool, dim = field(text, "index_kpool"), field(text, "index_head_dim")
        yield from _index_layer(text, index, full, prefix)
        yield Module(f"{prefix}.self_attn.indexer.index_kpool_compress_ape", pool, dim, size=4)
        yield Module(f"{prefix}.self_attn.indexer.index_kpool_compress_gate", dim, hidden)
    else:
        yield from _kimi_delta(text["linear_attn_config"], hidden, f"{prefix}.linear_attn")
    streams = optional(text, "hc_mult") if text.get("mhc") and index < field(text, "num_hidden_layers") else 0
    if streams:
        yield from _hyper_connections(streams, hidden, prefix)


def _kimi_delta(linear_attention: Config, hidden: int, prefix: str) -> Iterator[Module]:
    """Yield Kimi Delta Attention as GLM-5.3 has it (glm5next/common/kda.py)."""
    heads, dim = field(linear_attention, "num_heads"), field(linear_attention, "head_dim")
    wide = heads * dim
    yield linear(f"{prefix}.qkvb_proj", 3 * wide + heads, hidden)
    yield replace(linear(f"{prefix}.fg_a_proj", 2 * dim, hidden), split=False)
    yield linear(f"{prefix}.fg_b_proj", 2 * wide, dim)
    yield Module(f"{prefix}.dt_bias", wide + heads, split=True, size=4)
    yield Module(f"{prefix}.conv1d", 3 * wide, field(linear_attention, "short_conv_kernel_size"), split=True, size=4)
    yield Module(f"{prefix}.o_norm", dim)
    yield linear(f"{prefix}.o_proj", hidden, wide)


def _kimi_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield delta attention of Kimi-K3 and Kimi Linear, or the gate of their latent attention.

    kimi_k3/nvidia/kda.py and mla.py; without a gate of full rank mamba/gdn/kimi_gdn_linear_attn.py.
    """
    hidden, inner, name = field(text, "hidden_size"), text["linear_attn_config"], f"{prefix}.self_attn"
    if text.get("attn_res_block_size"):
        # Norms and projections of the states of earlier blocks, before attention and before the MLP.
        yield Module(f"{prefix}.res_norms_and_projections", 4 * hidden)
    if index + 1 not in inner["kda_layers"]:
        if text.get("mla_use_output_gate"):
            yield linear(f"{name}.g_proj", field(text, "num_attention_heads") * field(text, "v_head_dim"), hidden)
        return
    heads, dim = field(inner, "num_heads"), field(inner, "head_dim")
    wide = heads * dim
    gates = 4 if inner.get("use_full_rank_gate") else 3
    yield linear(f"{name}.qkvgb_proj", gates * wide + heads, hidden)
    yield replace(linear(f"{name}.f_a_proj", dim, hidden), split=False)
    yield linear(f"{name}.f_b_proj", wide, dim)
    if gates == 3:
        yield replace(linear(f"{name}.g_a_proj", dim, hidden), split=False)
        yield linear(f"{name}.g_b_proj", wide, dim)
    yield Module(f"{name}.A_log_dt_bias", heads + wide, split=True, size=4)
    yield Module(f"{name}.conv1d", 3 * wide, field(inner, "short_conv_kernel_size"), split=True, size=4)
    yield Module(f"{name}.o_norm", dim)
    yield linear(f"{name}.o_proj", hidden, wide)


def _kimi_feed_forward(text: Config, index: int, prefix: str) -> Iterator[Module]:
    """Yield the experts of Kimi Linear, and of Kimi-K3, which work on a smaller hidden state (kimi_k3/nvidia/model.py)."""
    hidden = field(text, "hidden_size")
    frequency = optional(text, "moe_layer_freq") or 1
    if not text.get("num_experts") or index < optional(text, "first_k_dense_replace") or index % frequency:
        yield from gated_mlp(f"{prefix}.mlp", hidden, field(text, "intermediate_size"))
        return
    name, small = f"{prefix}.block_sparse_moe", optional(text, "routed_expert_hidden_size")
    count, inner = field(text, "num_experts"), field(text, "moe_intermediate_size")
    yield Module(f"{name}.gate", count, hidden)
    yield Module(f"{name}.gate.e_score_correction_bias", count, size=4)
    if small:
        yield Module(f"{name}.routed_expert_down_up_proj", 2 * small, hidden)
        if text.get("latent_moe_use_norm"):
            yield Module(f"{name}.routed_expert_norm", small)
    least = optional(text, "min_moe_intermediate_per_partition") or _KIMI_LEAST_PART
    for module in experts(name, count, small or hidden, inner):
        yield replace(module, part=inner, least=least)
    if text.get("num_shared_experts"):
        yield from gated_mlp(f"{name}.shared_experts", hidden, inner * field(text, "num_shared_experts"))


def _inkling_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield positions and short convolutions of a layer of Inkling, draft layers numbered on (inkling/nvidia/attention.py)."""
    hidden, name, count = field(text, "hidden_size"), f"{prefix}.attn", field(text, "num_hidden_layers")
    source, place = (text, index) if index < count else (text.get("mtp_config") or {}, index - count)
    local = place in (source.get("local_layer_ids") or [])
    swa = "swa_" if local else ""
    heads, rows = field(text, f"{swa}num_attention_heads"), field(text, "d_rel")
    key = field(text, f"{swa}num_key_value_heads") * field(text, f"{swa}head_dim")
    taps = field(text, "sconv_kernel_size") if text.get("use_sconv", True) else 0
    yield linear(f"{name}.r_proj", heads * rows, hidden)
    yield Module(f"{name}.rel_logits_proj", rows, field(text, "sliding_window_size" if local else "rel_extent"))
    yield Module(f"{name}.sconv", 2 * key, taps, split=True)
    yield Module(f"{prefix}.sconv", 2 * hidden, taps, split=True)


def _inkling_feed_forward(text: Config, index: int, prefix: str) -> Iterator[Module]:
    """Yield the MLP of Inkling's first layers and of those that draft, or its experts (inkling/nvidia/moe.py)."""
    hidden, mlp = field(text, "hidden_size"), f"{prefix}.mlp"
    scale = 1 if text.get("use_global_scale") else 0
    if index < field(text, "dense_mlp_idx") or index >= field(text, "num_hidden_layers"):
        yield from gated_mlp(mlp, hidden, field(text, "dense_intermediate_size"))
        yield Module(f"{mlp}.global_scale", scale)
        return
    count, shared = field(text, "n_routed_experts"), optional(text, "n_shared_experts")
    inner = field(text, "intermediate_size")
    # Shared experts are weighed by the router, too, whose rows are a multiple of 8.
    yield Module(f"{mlp}.gate", -(-(count + shared) // 8) * 8, hidden)
    yield Module(f"{mlp}.gate.bias", (count if text.get("use_gate_bias") else 0) + scale, size=4)
    yield from experts(mlp, count, hidden, inner)
    yield from gated_mlp(f"{mlp}.sink_experts", hidden, shared * inner)


def _v41_layer(text: Config, index: int, full: bool, prefix: str) -> Iterator[Module]:
    """Yield the attention of DeepSeek-V4.1, its n-gram layers and its hyper-connections (deepseek_v41/attention.py, common/engram.py)."""
    hidden, dim, rank = (field(text, key) for key in ("hidden_size", "head_dim", "q_lora_rank"))
    name, streams = f"{prefix}.self_attn", field(text, "hc_mult")
    yield from _v4_attention(text, name)
    small = field(text, "index_head_dim")
    if index in text["kv_source_layer_ids"]:
        # Only pairs of tokens have scores that join them.
        yield Module(f"{name}.compressor", (2 if text["compress_ratios"][index] > 1 else 1) * dim, hidden)
        yield Module(f"{name}.compressor.norm", dim)
        yield Module(f"{name}.indexer.wk", small, dim)
        yield Module(f"{name}.indexer.k_norm", small)
    if index in (text.get("index_source_layer_ids") or []):
        many = field(text, "index_n_heads")
        yield replace(linear(f"{name}.indexer.wq_b", many * small, rank), split=False)
        yield Module(f"{name}.indexer.weights_proj", many, hidden)
    if index in (text.get("engram_layer_ids") or []):
        read = (
            field(text, "engram_n_heads") * (field(text, "engram_max_ngram_size") - 1) * field(text, "engram_head_dim")
        )
        yield linear(f"{prefix}.engram.wkv", (streams + 1) * hidden, read)
        yield Module(f"{prefix}.engram.norms", 2 * streams * hidden)
    yield from _hyper_connections(streams, hidden, prefix)


def _v41_feed_forward(text: Config, index: int, prefix: str) -> Iterator[Module]:
    """Yield the experts of DeepSeek-V4.1; each rank rounds its part up to a multiple of 128 (deepseek_v41/nvidia/model.py)."""
    hidden, mlp = field(text, "hidden_size"), f"{prefix}.mlp"
    drafts = index >= field(text, "num_hidden_layers")
    count = expert_count_of_drafts(text) if drafts else field(text, "n_routed_experts")
    inner = field(text, "moe_intermediate_size")
    yield Module(f"{mlp}.gate", count, hidden)
    yield Module(f"{mlp}.gate.e_score_correction_bias", count, size=4)
    yield from (replace(module, part=inner, multiple=128) for module in experts(mlp, count, hidden, inner))
    yield from gated_mlp(f"{mlp}.shared_experts", hidden, inner * field(text, "n_shared_experts"))


def query_heads(text: Config, family: str, layer: Attention, index: int) -> int:
    """Return the query heads of a layer; Step and Laguna have more of them in layers with a window."""
    heads_by_layer = text.get("num_attention_heads_per_layer")
    if family == "laguna" and isinstance(heads_by_layer, list) and index < len(heads_by_layer):
        return field({"num_attention_heads_per_layer": heads_by_layer[index]}, "num_attention_heads_per_layer")
    if family == "inkling_model" and layer.kind == "sliding":
        return field(text, "swa_num_attention_heads")
    if family == "step3p5" and layer.kind == "sliding":
        return field(text.get("attention_other_setting") or {}, "num_attention_heads")
    return field(text, "num_attention_heads")


def extra_attention_modules(text: Config, family: str, layer: Attention, index: int, prefix: str) -> Iterator[Module]:
    """Yield further modules of plain attention: gates of Step and Laguna, sinks of MiMo."""
    hidden, heads = field(text, "hidden_size"), query_heads(text, family, layer, index)
    if family == "laguna" and text.get("gating"):
        yield linear(f"{prefix}.g_proj", heads * (1 if "head" in str(text["gating"]) else layer.head_dim), hidden)
    if family == "step3p5" and text.get("use_head_wise_attn_gate"):
        yield linear(f"{prefix}.g_proj", heads, hidden)
    if family.startswith("mimo_v2"):
        kind = "swa" if layer.kind == "sliding" else "full"
        if text.get(f"add_{kind}_attention_sink_bias"):
            yield Module(f"{prefix}.attention_sink_bias", heads, split=True)


# Further modules of a layer, by family; the arguments are its number and whether it keeps an index.
LAYERS: dict[str, Callable[[Config, int, bool, str], Iterator[Module]]] = {
    "deepseek_v32": _index_layer,
    "deepseek_v4": _v4_layer,
    "deepseek_v41_text": _v41_layer,
    # Its attention stays in 16 bits in all checkpoints (models/glm5next/common).
    "glm5_next_text": lambda *layer: (replace(module, linear=False) for module in _glm5_modules(*layer)),
    "glm_moe_dsa": _index_layer,
    "inkling_model": _inkling_layer,
    "kimi_linear": _kimi_layer,
    "minimax_m3": _minimax_layer,
    "minimax_m3_vl": _minimax_layer,
    "qwen4_exp_text": _qwen4_layer,
}


# The MLP or the experts of a layer, for families that do not use C(weights.py).
FEED_FORWARDS: dict[str, Callable[[Config, int, str], Iterator[Module]]] = {
    "deepseek_v41_text": _v41_feed_forward,
    "inkling_model": _inkling_feed_forward,
    "kimi_linear": _kimi_feed_forward,
}


def modules_before_layers(text: Config, family: str) -> Iterator[Module]:
    """Yield the modules between the embedding and the first layer."""
    if family == "inkling_model" and text.get("use_embed_norm"):
        yield Module("embed_norm", field(text, "hidden_size"))


def modules_after_layers(text: Config, family: str, prefix: str = "") -> Iterator[Module]:
    """Yield the modules between the last layer and the head."""
    if family == "qwen4_exp_text":
        yield from _residual(text, f"{prefix}hyper_connection_mixer", inject=False)
    if family == "kimi_linear" and text.get("attn_res_block_size"):
        yield Module(f"{prefix}output_attn_res", 2 * field(text, "hidden_size"))
    if family == "deepseek_v4":
        streams = field(text, "hc_mult")
        yield Module(f"{prefix}hc_head", streams, streams * field(text, "hidden_size"), size=4)
        yield Module(f"{prefix}hc_head_base", streams + 1, size=4)


def _inkling_draft(text: Config, index: int, prefix: str) -> Iterator[Module]:
    """Yield the modules around the block of a draft layer of Inkling (inkling/nvidia/mtp.py)."""
    hidden = field(text, "hidden_size")
    yield replace(linear(f"{prefix}.input_proj", hidden, 2 * hidden), split=False, linear=False)
    yield Module(f"{prefix}.norms", 2 * hidden)
    if index == 0 and text.get("use_embed_norm"):
        yield Module("mtp.backbone_embed_norm", hidden)


def _dspark(text: Config, index: int, prefix: str) -> Iterator[Module]:
    """Yield the modules around the blocks of DeepSeek-V4.1's draft layers (deepseek_v41/nvidia/dspark.py)."""
    hidden, rank = field(text, "hidden_size"), field(text, "dspark_markov_rank")
    yield Module(f"{prefix}.mlp.gate.bias_vl", expert_count_of_drafts(text), size=4)
    if index == 0:
        read = len(text.get("dspark_target_layer_ids") or [])
        yield replace(linear("mtp.main_proj", hidden, read * hidden), split=False)
        yield Module("mtp.norms", 2 * hidden)
        yield Module("mtp.markov_head", field(text, "vocab_size"), rank, count=2)
        yield Module("mtp.confidence_head", hidden + rank, size=4)


def expert_count_of_drafts(text: Config) -> int:
    """Return the routed experts of a draft layer of DeepSeek-V4.1."""
    return optional(text, "dspark_n_routed_experts") or field(text, "n_routed_experts")


# Modules around the block of a draft layer, for families that do not draft as in C(weights.py).
DRAFTS: dict[str, Callable[[Config, int, str], Iterator[Module]]] = {
    "deepseek_v41_text": _dspark,
    "inkling_model": _inkling_draft,
    "qwen4_exp_text": lambda _text, _index, _prefix: iter(()),
}


def rename_fields(text: Config, family: str) -> Config:
    """Return C(text) with the common names of fields in place of a family's own names."""
    if family in ("minimax_m3", "minimax_m3_vl"):
        flags = text.get("moe_layer_freq")
        if not isinstance(flags, list):
            raise Refusal("config.moe_layer_freq", f"expected a list, got {flags!r}", GIVE)
        return {
            **text,
            "mlp_only_layers": [index for index, flag in enumerate(flags) if not flag],
            "intermediate_size": field(text, "dense_intermediate_size"),
            "moe_intermediate_size": field(text, "intermediate_size"),
            "n_shared_experts": optional(text, "n_shared_experts"),
        }
    if family.startswith("mimo_v2"):
        flags, count = text.get("moe_layer_freq") or [], field(text, "num_hidden_layers")
        # Draft layers have no experts.
        dense = [*(index for index, flag in enumerate(flags) if not flag), *range(count, count + 8)]
        return {**text, "mlp_only_layers": dense}
    if family == "step3p5":
        listed = {int(index) for index in str(text.get("moe_layers_enum") or "").split(",") if index.strip().isdigit()}
        every = range(field(text, "num_hidden_layers") + optional(text, "num_nextn_predict_layers"))
        return {
            **text,
            "mlp_only_layers": [index for index in every if index not in listed],
            "shared_expert_intermediate_size": 0,
            "n_shared_experts": 1,
        }
    return text
