# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Families whose layers keep more, or other things, than one cache of keys and values.

Sparse attention has a second cache for its indexer, compressed attention a third for uncompressed tokens, and some
layers remember in a convolution or in a delta rule. Each family is one function that reads its layers; C(READERS) says
which. The sizes come from vLLM's classes under C(vllm/models/) (0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm

from .layers import (
    MAX_LAYERS,
    NO_RULES,
    Attention,
    Cache,
    Config,
    Layer,
    Recurrent,
    Refusal,
    Ring,
    Rules,
    gated_delta_net,
    number,
    plain_attention,
)

# Bytes of a token in the packed latent caches of sm_120 and sm_121 (mla_attention.py, deepseek_v4/attention.py), and of a key
# of an FP8 indexer: its values and one scale of 32 bits.
DS_MLA_BYTES = 656
DS_V4_BYTES = 584
_SCALE_BYTES = 4
# Values of kv-cache-dtype that select the packed formats.
_DS_MLA = ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla")
# Pages of DeepSeek-V4 and V4.1 are whole multiples of these bytes; DeepGEMM wants blocks of V4.1 in steps of 256, too.
_V4_PAGE = 576
_DEEPGEMM_STRIDE = 256
# Assertions of qwen4_exp/common/qsa_cache.py (0.29 to 0.33) and glm5next/common/attention.py.
_QSA_RING = "QSA ring capacity {rows} must divide the attention block size {block}"
_TAIL_RING = "Glm5NextTailCache: cache_config.block_size ({block}) must be a multiple of the tail ring ({rows})"
# Rows that FlashInfer's sparse kernel wants a block of the latent cache, and of the index cache, to be a multiple of.
_SPARSE_ROWS = 64


@dataclass(frozen=True)
class Read:
    """The layers of a model as a family's function found them.

    layers: the first cache of every layer; C(None) for a layer without cache (MLP, MoE, shared KV).
    further_caches: the other caches of every layer, empty for models without any.
    drafts: the caches of each multi-token-prediction layer that the checkpoint carries.
    draft_method: the method of C(speculative-config) that uses them.
    drafts_each: each draft token takes a draft layer, and only those needed are made.
    mtp_modules: multi-token-prediction layers that draft one token each, as vLLM counts them (C(use_multi_module_mtp)).
    rules: what the family decides besides.
    """

    layers: Sequence[Layer | None]
    further_caches: tuple[tuple[Layer, ...], ...] = ()
    drafts: tuple[tuple[Layer, ...], ...] = ()
    draft_method: str = "mtp"
    drafts_each: bool = False
    mtp_modules: int = 1
    rules: Rules = NO_RULES


def _listed(text: Config, key: str, count: int) -> list[int]:
    """Read a list with a whole number for each of C(count) layers; further entries are allowed."""
    value = text.get(key)
    if not isinstance(value, list) or len(value) < count:
        raise Refusal(f"config.{key}", f"expected a list of {count} numbers, one per layer")
    return [
        number({f"{key}[{index}]": value_of_layer}, f"{key}[{index}]", minimum=0)
        for index, value_of_layer in enumerate(value)
    ]


def _layer_ids(source: Config, key: str, count: int) -> frozenset[int]:
    value = source.get(key)
    if not isinstance(value, list) or any(
        isinstance(layer_id, bool) or not isinstance(layer_id, int) or not 0 <= layer_id <= count for layer_id in value
    ):
        raise Refusal(f"config.{key}", f"expected a list of layer numbers up to {count}, got {value!r}")
    return frozenset(value)


def _inner(text: Config, key: str) -> Config:
    value = text.get(key)
    if not isinstance(value, dict):
        raise Refusal(f"config.{key}", f"expected a mapping, got {value!r}")
    return value


def _mtp_layers(text: Config, key: str = "num_nextn_predict_layers") -> int:
    return number(text, key, 0, minimum=0, maximum=MAX_LAYERS)


def _kimi_delta(text: Config, since: int) -> Recurrent:
    """Return the state of Kimi Delta Attention (kimi_k3/nvidia/kda.py, glm5next/common/kda.py).

    since: the minor release from which FlashKDA stores checkpoints; it takes heads of 128 and a bounded gate.
    """
    linear = _inner(text, "linear_attn_config")
    heads, dim = number(linear, "num_heads"), number(linear, "head_dim")
    return Recurrent(
        kind="kda",
        conv_kernel=number(linear, "short_conv_kernel_size"),
        conv_key_dim=2 * heads * dim,
        conv_value_dim=heads * dim,
        groups=heads,
        heads=heads,
        head_dim=dim,
        state_dim=dim,
        ssm_dtype="float32",
        checkpoints_since=since if dim == 128 and linear.get("gate_lower_bound") is not None else 0,
    )


def _qwen4_exp(text: Config, count: int) -> Read:
    """Read Qwen3.8-Flash-Next: Gated DeltaNet, sparse attention with a compressed index, n-gram layers (models/qwen4_exp)."""
    kinds = text.get("layer_types")
    layer_by_kind: dict[str, Layer] = {
        "linear_attention": gated_delta_net(text),
        "full_attention": plain_attention(text, "full"),
    }
    if not isinstance(kinds, list) or len(kinds) != count or not set(map(str, kinds)) <= set(layer_by_kind):
        raise Refusal("config.layer_types", f"expected {count} of linear_attention and full_attention")
    dim, ratio = number(text, "indexer_head_dim"), number(text, "indexer_compress_ratio")
    index = Cache("mla", 2 * dim, tokens_per_row=ratio)
    # Keys that are not compressed yet, with three positions of 64 bits; a text-only launch leaves those out, to no effect.
    ring = Cache("ring", 2 * dim + 3 * 8, ring=Ring(ratio, ratio, divides=_QSA_RING))
    further: list[tuple[Layer, ...]] = [(index, ring) if kind == "full_attention" else () for kind in kinds]
    if text.get("ple_layer_ids"):
        taps = (number(text, "ple_conv_kernel_size") - 1) * number(text, "ngram_size")
        channels = number(text, "hc_count", 1) * number(text, "hidden_size")
        ngrams = Recurrent("ple", taps + 1, 0, channels, 1, 0, 0, 0, checkpoints_since=33)
        for layer in _layer_ids(text, "ple_layer_ids", count):
            further[layer - 1] = (*further[layer - 1], ngrams)
    drafts = _mtp_layers(text, "mtp_num_hidden_layers")
    return Read(
        [layer_by_kind[kind] for kind in kinds],
        tuple(further),
        ((layer_by_kind["full_attention"], index, ring),) * drafts,
        rules=Rules(packed=True, oldest=29),
    )


def _v4_page(row: int, block: int, ratio: int = 1, window: int = 0) -> Cache:
    """Return a cache of DeepSeek-V4 for every token, or for the last tokens of a window."""
    kind = "sliding" if window else "mla"
    return Cache(kind, row, tokens_per_row=ratio, align=_V4_PAGE, block=block, window=window)


def _deepseek_v4(text: Config, count: int) -> Read:
    """Read DeepSeek-V4: a window in every layer, compressed caches where the ratio is not 0 (models/deepseek_v4)."""
    ratios = _listed(text, "compress_ratios", count)[:count]
    dim, index = number(text, "head_dim"), number(text, "index_head_dim")
    window = _v4_page(DS_V4_BYTES, block=64, window=number(text, "sliding_window"))
    further: list[tuple[Layer, ...]] = []
    for position, ratio in enumerate(ratios):
        if ratio not in (0, 4, 128):
            raise Refusal(f"config.compress_ratios[{position}]", f"compression of {ratio} tokens to one is not known")
        caches: list[Layer] = []
        # Ratio 4 compresses overlapping groups, so that its state holds two of them; keys and scores of 32 bits.
        overlap, block = (2, 4) if ratio == 4 else (1, 8)
        if ratio:
            caches = [
                _v4_page(DS_V4_BYTES, block=256, ratio=ratio),
                _v4_page(2 * overlap * dim * 4, block=block, window=overlap * ratio),
            ]
        if ratio == 4:
            caches.append(_v4_page(index + _SCALE_BYTES, block=256, ratio=ratio))
            caches.append(_v4_page(2 * overlap * index * 4, block=block, window=overlap * ratio))
        further.append(tuple(caches))
    return Read(
        [window] * count,
        tuple(further),
        ((window,),) * _mtp_layers(text),
        mtp_modules=_mtp_layers(text),
        rules=Rules(packed=True, block=256, dtypes=_DS_MLA, oldest=20),
    )


def _deepseek_v41(text: Config, count: int) -> Read:
    """Read DeepSeek-V4.1: as V4, but a few layers own the compressed caches of all (models/deepseek_v41)."""
    ratios = _listed(text, "compress_ratios", count)
    sources = _layer_ids(text, "kv_source_layer_ids", count)
    dim, index = number(text, "head_dim"), number(text, "index_head_dim")
    window = _v4_page(DS_V4_BYTES, block=32, window=number(text, "sliding_window"))
    # Uncompressed rows: the previous row, the bonus token and the drafts; keys and scores of 32 bits.
    ring = Cache("ring", 2 * dim * 4, ring=Ring(2, doubles=True, least=8))
    further: list[tuple[Layer, ...]] = []
    for position in range(count):
        ratio = ratios[position]
        if position not in sources:
            further.append(())
            continue
        if ratio not in (1, 2):
            raise Refusal(f"config.compress_ratios[{position}]", f"compression of {ratio} tokens to one is not known")
        pages = [_v4_page(row, block=128, ratio=ratio) for row in (DS_V4_BYTES, index + _SCALE_BYTES)]
        further.append((*pages, ring) if ratio == 2 else tuple(pages))
    return Read(
        [window] * count,
        tuple(further),
        ((window,),) * _mtp_layers(text),
        draft_method="dspark",
        rules=Rules(packed=True, block=128, dtypes=_DS_MLA, stride=lcm(_DEEPGEMM_STRIDE, _V4_PAGE), oldest=30),
    )


def _glm5_next(text: Config, count: int) -> Read:
    """Read GLM-5.3: Kimi Delta Attention and sparse latent attention without rotation (models/glm5next)."""
    kinds = text.get("layer_types")
    names = ("linear_attention", "deepseek_sparse_attention")
    if not isinstance(kinds, list) or len(kinds) != count or not set(map(str, kinds)) <= set(names):
        raise Refusal("config.layer_types", f"expected {count} of {' and '.join(names)}")
    pool, dim = number(text, "index_kpool"), number(text, "index_head_dim")
    main, index = Cache("mla", DS_MLA_BYTES), Cache("mla", dim + _SCALE_BYTES, tokens_per_row=pool)
    ring = Cache("ring", 2 * dim * 2, ring=Ring(pool, pool, doubles=True, drafts_since=31, divides=_TAIL_RING))
    layer_by_kind: dict[str, Layer] = dict(zip(names, (_kimi_delta(text, 33), main)))
    return Read(
        [layer_by_kind[kind] for kind in kinds],
        tuple((index, ring) if kind == names[1] else () for kind in kinds),
        ((main, index, ring),) * _mtp_layers(text),
        mtp_modules=_mtp_layers(text),
        rules=Rules(
            packed=True,
            dtypes=_DS_MLA,
            state_unit=128,
            # The platform counts one byte for each element of the latent, not the 656 that the kernel's format takes.
            state_token=number(text, "kv_lora_rank") + number(text, "qk_rope_head_dim", 0, minimum=0),
            multiple=_SPARSE_ROWS * pool,
            stride=lcm(_SPARSE_ROWS * DS_MLA_BYTES, _SPARSE_ROWS * (dim + _SCALE_BYTES)),
            oldest=30,
        ),
    )


def _indexes(text: Config, layer: int) -> bool:
    """Tell whether a layer of sparse latent attention runs an indexer (deepseek_v32/attention.py)."""
    pattern, kinds = text.get("index_topk_pattern"), text.get("indexer_types")
    if pattern is not None:
        return layer >= len(pattern) or pattern[layer] != "S"
    if text.get("index_topk_freq") is None and isinstance(kinds, list):
        return layer >= len(kinds) or kinds[layer] == "full"
    offset, every = number(text, "index_skip_topk_offset", 2, minimum=0), number(text, "index_topk_freq", 1)
    return max(layer - offset + 1, 0) % every == 0


def _sparse_latent(text: Config, count: int) -> Read:
    """Read DeepSeek-V3.2 and GLM-5: latent attention in FP8, and an index cache in the layers that select (deepseek_v32)."""
    main = Cache("mla", DS_MLA_BYTES)
    index = Cache("mla", number(text, "index_head_dim") + _SCALE_BYTES)
    return Read(
        [main] * count,
        tuple((index,) if _indexes(text, layer) else () for layer in range(count)),
        ((main, index),) * _mtp_layers(text),
        mtp_modules=_mtp_layers(text),
        rules=Rules(block=64, dtypes=_DS_MLA, kernels_since=24),
    )


def _minimax_m3(text: Config, count: int) -> Read:
    """Read MiniMax-M3: grouped-query attention, and index keys in the layers that are sparse (models/minimax_m3)."""
    sparse = _inner(text, "sparse_attention_config")
    flags = _listed(sparse, "sparse_attention_freq", count)
    main = plain_attention(text, "full")
    # Index keys stay in 16 bits for every dtype of the cache; the config of a launch may select FP8.
    index = Cache("mla", 2 * number(sparse, "sparse_index_dim"))
    return Read(
        [main] * count,
        tuple((index,) if flag else () for flag in flags[:count]),
        ((main, index),) * _mtp_layers(text, "num_mtp_modules"),
        # Up to 0.30 the platform asks the first layer alone, which is dense (_find_non_ssm_backend).
        rules=Rules(block=number(sparse, "sparse_block_size"), block_since=31, oldest=24),
    )


def _kimi_linear(text: Config, count: int) -> Read:
    """Read Kimi-K3 and Kimi Linear: delta and latent attention, with pages of one size (models/kimi_k3)."""
    linear = _inner(text, "linear_attn_config")
    state = _layer_ids(linear, "kda_layers", count)
    latent = Attention("mla", 1, number(text, "kv_lora_rank") + number(text, "qk_rope_head_dim"), 0)
    delta = _kimi_delta(text, 29)
    if state & _layer_ids(linear, "full_attn_layers", count) or 0 in state:
        raise Refusal("config.linear_attn_config.kda_layers", "expected layers counted from 1, of one kind each")
    return Read(
        [delta if layer + 1 in state else latent for layer in range(count)],
        drafts=((latent,),) * _mtp_layers(text),
        rules=Rules(state_unit=128, oldest=27),
    )


def _own_window(text: Config, value_dim: str, window: str) -> Attention:
    """Return sliding attention that has fields of its own, two of which families name differently."""
    heads, dim = number(text, "swa_num_key_value_heads"), number(text, "swa_head_dim")
    return Attention("sliding", heads, dim, number(text, value_dim), number(text, window))


def _mimo_v2(text: Config, count: int) -> Read:
    """Read MiMo-V2: windows and full attention with different heads; vLLM uses one draft layer (mimo_v2_mtp.py)."""
    flags = _listed(text, "hybrid_layer_pattern", count)[:count]
    full = Attention("full", number(text, "num_key_value_heads"), number(text, "head_dim"), number(text, "v_head_dim"))
    window = _own_window(text, "swa_v_head_dim", "sliding_window")
    # vLLM 0.23 refuses the attention sinks on sm_121, and 0.31 keeps an FP8 cache in 16 bits.
    return Read(
        [window if flag else full for flag in flags],
        drafts=((window,),),
        rules=Rules(oldest=31, fp8_since=32),
    )


def _step3p5(text: Config, count: int) -> Read:
    """Read Step-3.5 and 3.7: full and sliding attention; the lists go on for the draft layers (models/step3p5.py)."""
    kinds = text.get("layer_types")
    drafts = _mtp_layers(text)
    kind_by_name = {"full_attention": "full", "sliding_attention": "sliding"}
    if not isinstance(kinds, list) or len(kinds) < count + drafts or not set(map(str, kinds)) <= set(kind_by_name):
        raise Refusal("config.layer_types", f"expected {count + drafts} of {' and '.join(kind_by_name)}")
    heads = {**text, "num_key_value_heads": number(text, "num_attention_groups")}
    made: dict[str, Layer] = {kind: plain_attention(heads, kind_by_name[kind]) for kind in set(kinds)}
    return Read(
        [made[kind] for kind in kinds[:count]],
        drafts=tuple((made[kind],) for kind in kinds[count : count + drafts]),
        mtp_modules=drafts,
    )


def _inkling(text: Config, count: int) -> Read:
    """Read Inkling: every layer has keys and values and a short convolution, kept as a sliding window (models/inkling)."""
    local = _layer_ids(text, "local_layer_ids", count)
    full = plain_attention(text, "full")
    window = _own_window(text, "swa_head_dim", "sliding_window_size")
    taps, hidden = number(text, "sconv_kernel_size"), number(text, "hidden_size")

    def convolution(layer: Attention) -> Cache:
        # Keys, values and the two inputs of a layer, per head rounded up to a power of two.
        width = 2 * layer.head_dim + 2 * hidden // layer.kv_heads
        return Cache("sliding", 2 << (width - 1).bit_length(), layer.kv_heads, block=taps, window=taps)

    layers: list[Attention] = [window if index in local else full for index in range(count)]
    mtp = text.get("mtp_config") or {}
    drafts = _mtp_layers(mtp)
    near = _layer_ids(mtp, "local_layer_ids", drafts) if drafts else frozenset()
    drafting = [window if index in near else full for index in range(drafts)]
    return Read(
        list(layers),
        tuple((convolution(layer),) for layer in layers),
        tuple((layer, convolution(layer)) for layer in drafting),
        drafts_each=True,
        mtp_modules=drafts,
        rules=Rules(oldest=26),
    )


def _mistral4(text: Config, count: int) -> Read:
    """Read Mistral 4 from the files for Transformers, whose classes keep keys and values of all heads."""
    heads = number(text, "num_attention_heads")
    size = number(text, "qk_nope_head_dim") + number(text, "qk_rope_head_dim")
    return Read([Attention("full", heads, size, number(text, "v_head_dim"))] * count)


READERS: dict[str, Callable[[Config, int], Read]] = {
    "deepseek_v32": _sparse_latent,
    "deepseek_v4": _deepseek_v4,
    "deepseek_v41_text": _deepseek_v41,
    "glm5_next_text": _glm5_next,
    "glm_moe_dsa": _sparse_latent,
    "inkling_model": _inkling,
    "kimi_linear": _kimi_linear,
    "mimo_v2": _mimo_v2,
    "mimo_v2_flash": _mimo_v2,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl": _minimax_m3,
    "mistral4": _mistral4,
    "qwen4_exp_text": _qwen4_exp,
    "step3p5": _step3p5,
}
