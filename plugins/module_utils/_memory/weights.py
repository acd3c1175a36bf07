# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of a model's weights on one rank, from its config and its quantisation.

The modules of a model are listed by the names of its checkpoint, because quantisation configs name the modules that they
spare; each is then counted in the format that it is stored in, and divided over the ranks as vLLM divides it. The sums
were compared with the parameters of vLLM's own model classes (0.33.0). The safetensors headers are always the better
source: C(tensors.py) reads them. Where only their sum is known, C(weights_gib) of the budget takes it.

A family or a format that is not known here is a C(Refusal).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from .family_modules import (
    DRAFTS,
    FEED_FORWARDS,
    LAYERS,
    extra_attention_modules,
    modules_after_layers,
    modules_before_layers,
    query_heads,
    rename_fields,
    tables,
)
from .formats import Format
from .geometry import Geometry, nemotron_pattern
from .layers import MAX_LAYERS, Attention, Cache, Config, Layer, Recurrent, Refusal, stages_of_layers, text_config
from .modules import FAMILIES, GIVE, Module, experts, field, gated_mlp, latent_attention, linear, optional
from .vision_modules import vision_tower
from .weight_formats import Quantization

# Families that older releases could not be asked about, by minor release: their Transformers has no such model.
_KNOWN_SINCE = {"mistral4": 33}
_GDN = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"))
_GEMMA4 = frozenset(("gemma4", "gemma4_text"))
# Whose router has a bias of 32 bits for every expert.
_SCORE_BIAS = frozenset(
    (
        *("deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"),
        *("deepseek_v4", "glm5_next_text", "kimi_k2", "laguna", "mimo_v2", "mimo_v2_flash", "step3p5"),
    )
)
# Whose router is in 32 bits.
_WIDE_ROUTER = frozenset(
    ("ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "minimax_m2", "minimax_m3", "minimax_m3_vl", "step3p5")
)
_BLOCK_SPARSE = frozenset(
    ("granitemoe", "minimax_m2", "mixtral", "phimoe")
)  # where the experts are called block_sparse_moe
# Whose ranks take all tokens of their group through experts, also where replicas share these out: their classes know no other way.
_CUT_SHARED = frozenset(("dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite"))
_PART = re.compile(r"(?:layers|blocks)\.\d+\.\w+")


@dataclass(frozen=True)
class Weights:
    """Bytes of one rank.

    target: the model itself. draft: the drafter, without the embedding and the head that it shares.
    load_peak: bytes of the target while it loads; larger than C(target) for weights that are quantised at load time.
    load_layerwise: the same if vLLM quantises each part of a layer as soon as it is complete.
    vision: the part of C(target) that is the vision tower, 0 if not counted separately.
    host: the part of C(target) that vLLM keeps in pinned memory of the host, which a GB10 has in common with its GPU.
    experts: all experts of one layer, which kernels reorder together; 0 if not counted separately.
    disk: tables that the build reads from disk; the other sizes do not include them.
    """

    target: int
    draft: int
    load_peak: int
    vision: int = 0
    load_layerwise: int = 0
    host: int = 0
    experts: int = 0
    disk: int = 0

    def __post_init__(self) -> None:
        if not self.load_layerwise:
            object.__setattr__(self, "load_layerwise", self.load_peak)


# Modules ------------------------------------------------------------------------------------------------------------


def _attention(text: Config, family: str, layer: Attention, prefix: str, width: int = 1) -> Iterator[Module]:
    """Yield projections of plain attention; C(width): number of hidden states that they read side by side (EAGLE-3: 2)."""
    hidden, heads = field(text, "hidden_size"), field(text, "num_attention_heads")
    has = FAMILIES[family]
    query = heads * layer.head_dim * (2 if family in _GDN else 1)  # the output gate doubles the query projection
    key, value = layer.kv_heads * layer.head_dim, layer.kv_heads * layer.head_dim_v
    yield linear(f"{prefix}.q_proj", query, width * hidden)
    yield linear(f"{prefix}.k_proj", key, width * hidden, pieces=layer.kv_heads)
    yield linear(f"{prefix}.v_proj", value, width * hidden, pieces=layer.kv_heads)
    yield linear(f"{prefix}.o_proj", hidden, heads * layer.head_dim_v)
    if has.bias == "always" or (has.bias and text.get(has.bias)):
        yield Module(f"{prefix}.bias", query, split=True)
        yield Module(f"{prefix}.kv_bias", 2 * key, split=True, pieces=layer.kv_heads)
        if has.out:
            yield Module(f"{prefix}.o_bias", hidden)
    if family == "gpt_oss":
        yield Module(f"{prefix}.sinks", heads, split=True)
    if has.qk_norm == "head" or (family == "glm4_moe" and text.get("use_qk_norm")):
        yield Module(f"{prefix}.qk_norm", 2 * layer.head_dim)
    elif has.qk_norm == "full" or (family == "cohere" and text.get("use_qk_norm")):
        yield Module(f"{prefix}.qk_norm", heads * layer.head_dim + key, split=family == "minimax_m2")


def _gated_delta_net(text: Config, family: str, layer: Recurrent, prefix: str) -> Iterator[Module]:
    hidden = field(text, "hidden_size")
    channels = layer.conv_key_dim + layer.conv_value_dim
    if family == "qwen3_next":
        yield linear(f"{prefix}.in_proj_qkvz", channels + layer.conv_value_dim, hidden)
        yield linear(f"{prefix}.in_proj_ba", 2 * layer.heads, hidden)
    else:
        yield linear(f"{prefix}.in_proj_qkv", channels, hidden)
        yield linear(f"{prefix}.in_proj_z", layer.conv_value_dim, hidden)
        yield linear(f"{prefix}.in_proj_b", layer.heads, hidden)
        yield linear(f"{prefix}.in_proj_a", layer.heads, hidden)
    yield Module(f"{prefix}.conv1d", channels, layer.conv_kernel, split=True)
    yield Module(f"{prefix}.A_log", layer.heads, split=True, size=4)
    yield Module(f"{prefix}.dt_bias", layer.heads, split=True)
    yield Module(f"{prefix}.norm", layer.head_dim)
    yield linear(f"{prefix}.out_proj", hidden, layer.conv_value_dim)


def _mamba2(text: Config, layer: Recurrent, prefix: str) -> Iterator[Module]:
    hidden, inner = field(text, "hidden_size"), layer.conv_value_dim
    yield linear(f"{prefix}.in_proj", 2 * inner + layer.conv_key_dim + layer.heads, hidden)
    yield Module(
        f"{prefix}.conv1d",
        inner + layer.conv_key_dim,
        layer.conv_kernel + (1 if text.get("use_conv_bias") else 0),
        split=True,
    )
    yield Module(f"{prefix}.A", layer.heads, split=True, size=4)
    yield Module(f"{prefix}.D_dt_bias", 2 * layer.heads, split=True)
    yield Module(f"{prefix}.norm", inner, split=True)
    yield linear(f"{prefix}.out_proj", hidden, inner)


def _mlp(text: Config, family: str, prefix: str, inner: int) -> Iterator[Module]:
    hidden, has = field(text, "hidden_size"), FAMILIES[family]
    if has.gated:
        yield from gated_mlp(prefix, hidden, inner)
    else:
        yield linear(f"{prefix}.up_proj", inner, hidden)
        yield linear(f"{prefix}.down_proj", hidden, inner)
    if has.mlp_bias and text.get(has.mlp_bias):
        yield Module(f"{prefix}.bias", inner * (2 if has.gated else 1), split=True)
        yield Module(f"{prefix}.down_bias", hidden)


def expert_count(text: Config) -> int:
    """Return how many routed experts a layer has, 0 for a model without."""
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return next((field(text, key) for key in keys if text.get(key)), 0)


def layer_field(text: Config, key: str, index: int) -> int:
    """Read a whole number that may be a list with one entry for every layer."""
    value = text.get(key)
    if not isinstance(value, list):
        return field(text, key)
    return field({key: value[index] if index < len(value) else None}, key)


def _is_dense(text: Config, family: str, index: int) -> bool:
    """Tell whether layer C(index) of a model with experts is a plain MLP."""
    only_dense = text.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        raise Refusal("config.mlp_only_layers", f"expected a list, got {only_dense!r}", GIVE)
    if family.startswith("llama4"):
        listed = text.get("moe_layers")
        step = optional(text, "interleave_moe_layer_step")
        return index not in listed if isinstance(listed, list) else not step or (index + 1) % step != 0
    if family == "ernie4_5_moe":
        start, end = optional(text, "moe_layer_start_index"), text.get("moe_layer_end_index")
        last = end if isinstance(end, int) and end >= 0 else MAX_LAYERS
        return not start <= index <= last or (index + 1) % (optional(text, "moe_layer_interval") or 1) != 0
    return (
        index in only_dense
        or index < optional(text, "first_k_dense_replace")
        or (index + 1) % (optional(text, "decoder_sparse_step") or 1) != 0
    )


def _feed_forward(text: Config, family: str, index: int, prefix: str, padded: bool) -> Iterator[Module]:
    """Yield the MLP or the mixture of experts of layer C(index)."""
    count = expert_count(text)
    if family in _GEMMA4:  # the experts stand next to the MLP
        hidden = field(text, "hidden_size")
        yield from gated_mlp(f"{prefix}.mlp", hidden, field(text, "intermediate_size"))
        if text.get("enable_moe_block"):
            yield Module(f"{prefix}.router", count, hidden)
            yield Module(f"{prefix}.router.scales", hidden + count)
            yield Module(f"{prefix}.moe_norms", 3 * hidden)
            yield from experts(f"{prefix}", count, hidden, field(text, "moe_intermediate_size"))
    elif not count or _is_dense(text, family, index):
        key = "intermediate_size_mlp" if count and family.startswith("llama4") else "intermediate_size"
        yield from _mlp(text, family, f"{prefix}.mlp", field(text, key))
    else:
        yield from _mixture(text, family, index, prefix, padded)


def _mixture(text: Config, family: str, index: int, prefix: str, padded: bool) -> Iterator[Module]:
    """Yield the router, the experts and the shared experts of layer C(index)."""
    hidden, count = field(text, "hidden_size"), expert_count(text)
    mlp = f"{prefix}.block_sparse_moe" if family in _BLOCK_SPARSE else f"{prefix}.mlp"
    inner = layer_field(
        text, "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size", index
    )
    # A config of MiMo without the field means 32 bits (mimo_v2.py).
    wide_router = family in _WIDE_ROUTER or (
        family.startswith("mimo_v2") and text.get("moe_router_dtype", "float32") == "float32"
    )
    yield Module(f"{mlp}.gate", count, hidden, size=4 if wide_router else 0)
    width = hidden
    if padded:
        width, inner = padded_experts(hidden, inner)
        # The part of each rank is filled up again.
        yield from (replace(module, part=inner, multiple=128) for module in experts(mlp, count, width, inner))
    else:
        yield from experts(mlp, count, hidden, inner)
    if family == "gpt_oss":
        yield Module(f"{mlp}.gate_bias", count)
        bias = Module(f"{mlp}.expert_bias", 2 * inner, 1, count, split=True, experts=count)
        yield replace(bias, part=inner, multiple=128) if padded else bias
        yield Module(f"{mlp}.expert_down_bias", width, 1, count, experts=count)
    yield from _shared_experts(text, family, index, mlp, inner)
    hashed = family == "deepseek_v4" and index < optional(text, "num_hash_layers")
    if (family in _SCORE_BIAS and not hashed) or (family.startswith("minimax_m") and text.get("use_routing_bias")):
        yield Module(f"{mlp}.gate.e_score_correction_bias", count, size=4)


def _shared_experts(text: Config, family: str, index: int, mlp: str, inner: int) -> Iterator[Module]:
    """Yield the experts that every token goes through. inner: width of a routed expert."""
    hidden, shared = field(text, "hidden_size"), optional(text, "shared_expert_intermediate_size")
    if family.startswith("llama4"):
        yield from gated_mlp(f"{mlp}.shared_expert", hidden, inner)
    if shared:
        yield from gated_mlp(f"{mlp}.shared_expert", hidden, shared)
        if family != "laguna":
            yield Module(f"{mlp}.shared_expert_gate", hidden)
    for key in ("n_shared_experts", "num_shared_expert", "moe_num_shared_experts"):
        if text.get(key):
            yield from gated_mlp(f"{mlp}.shared_experts", hidden, inner * layer_field(text, key, index))


def padded_experts(hidden: int, inner: int) -> tuple[int, int]:
    """Return the sizes that the kernels of MXFP4 give an expert (read off gpt-oss-20b in vLLM 0.33.0)."""
    return -(-hidden // 256) * 256, -(-inner // 128) * 128


def _nemotron_layer(text: Config, layer: object, letter: str, prefix: str) -> Iterator[Module]:
    hidden = field(text, "hidden_size")
    yield Module(f"{prefix}.norm", hidden)
    if isinstance(layer, Recurrent):
        yield from _mamba2(text, layer, f"{prefix}.mixer")
    elif isinstance(layer, Attention):
        yield from _attention(text, "nemotron_h", layer, f"{prefix}.mixer")
    elif letter == "-":
        yield linear(f"{prefix}.mixer.up_proj", field(text, "intermediate_size"), hidden)
        yield linear(f"{prefix}.mixer.down_proj", hidden, field(text, "intermediate_size"))
    else:
        count = field(text, "n_routed_experts")
        yield Module(f"{prefix}.mixer.gate", count, hidden, size=4)
        yield Module(f"{prefix}.mixer.gate.e_score_correction_bias", count, size=4)
        # Experts of a latent size work between two projections that every rank has as a whole.
        latent = optional(text, "moe_latent_size")
        if latent:
            yield replace(linear(f"{prefix}.mixer.fc1_latent_proj", latent, hidden), split=False)
            yield replace(linear(f"{prefix}.mixer.fc2_latent_proj", hidden, latent), split=False)
        inner = field(text, "moe_intermediate_size")
        yield from experts(f"{prefix}.mixer", count, latent or hidden, inner, matrices=2)
        shared = field(text, "moe_shared_expert_intermediate_size") * optional(text, "n_shared_experts")
        if shared:
            yield linear(f"{prefix}.mixer.shared_experts.up_proj", shared, hidden)
            yield linear(f"{prefix}.mixer.shared_experts.down_proj", hidden, shared)


def _layer(
    text: Config, family: str, index: int, layer: object, prefix: str, padded: bool, indexed: bool = False
) -> Iterator[Module]:
    """Yield all modules of one decoder layer. C(indexed): sparse attention keeps an index of it."""
    if family in LAYERS:
        yield from LAYERS[family](text, index, indexed, prefix)
    hidden = field(text, "hidden_size")
    yield Module(f"{prefix}.norms", hidden * FAMILIES[family].norms)
    if isinstance(layer, Recurrent) and layer.kind == "gdn":
        yield from _gated_delta_net(text, family, layer, f"{prefix}.linear_attn")
    elif family == "mistral4":
        # The plan of Transformers' class for tensor parallelism has no attention, so that every rank has it as a whole.
        yield from (replace(module, split=False) for module in latent_attention(text, f"{prefix}.self_attn"))
    elif isinstance(layer, Attention) and layer.kind == "mla":
        yield from latent_attention(text, f"{prefix}.self_attn")
    elif isinstance(layer, Attention):
        heads = query_heads(text, family, layer, index)
        yield from _attention({**text, "num_attention_heads": heads}, family, layer, f"{prefix}.self_attn")
        yield from extra_attention_modules(text, family, layer, index, f"{prefix}.self_attn")
    if family in FEED_FORWARDS:
        yield from FEED_FORWARDS[family](text, index, prefix)
    else:
        yield from _feed_forward(text, family, index, prefix, padded)


# Sums ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """The division of weights over ranks: tensor parallel, pipeline stages, and whether each rank has whole experts.

    replicas: of data parallelism. Each has everything but the experts, which all of them have between them (fused_moe/config.py,
    FusedMoEParallelConfig.make). cut_shared: experts that every token goes through are divided over a tensor group in any case.
    """

    tensor: int = 1
    pipeline: int = 1
    experts: bool = False
    replicas: int = 1
    cut_shared: bool = False

    @property
    def of_experts(self) -> int:
        """Ranks that the experts of a layer go over: by parts, or handed out whole."""
        return self.tensor * self.replicas

    @property
    def shares_tokens(self) -> bool:
        """Whether ranks of a tensor group process different tokens in experts; then shared experts are whole on each rank
        (config/parallel.py, use_sequence_parallel_moe)."""
        return self.experts and self.tensor > 1 and self.replicas > 1 and not self.cut_shared

    def for_family(self, family: str) -> Split:
        """Return the same for a family of models, by its C(model_type)."""
        return replace(self, cut_shared=family in _CUT_SHARED)


_UNDIVIDED = Split()
SHARED = re.compile(r"\.shared_experts?\.")
"""Names of experts that every token goes through."""


def _ranks_of(module: Module, split: Split) -> int:
    """Return the number of ranks that share each matrix of a module."""
    if not module.split or (module.experts and split.experts) or (split.shares_tokens and SHARED.search(module.name)):
        return 1
    return split.of_experts if module.experts else split.tensor


def _check_filling(module: Module, stored: Format, split: Split) -> None:
    """Refuse a matrix whose parts kernels fill up by a size that is not known."""
    parts = _ranks_of(module, split)
    sides = (module.rows, module.columns)
    if stored.multiple and parts > 1 and module.columns % (stored.multiple * parts):
        unit = f"{stored.multiple} inputs"
    elif stored.tiles and any(side % 256 or side % (128 * parts) for side in sides):
        unit = "whole tiles"  # mxfp4_round_up_hidden_size_and_intermediate_size goes by the kernel that is picked
    else:
        return
    raise Refusal(
        "args.tensor-parallel-size" if parts > 1 else "config.quantization_config",
        f"how the parts of {module.name} are filled up to {unit} is not known",
        GIVE,
    )


def _module_bytes(module: Module, stored: Format | None, dtype_bytes: int, split: Split) -> int:
    """Return the bytes of one module on one rank. stored: its format, C(None) for the dtype of the model."""
    if stored:
        _check_filling(module, stored, split)
    plain = module.rows * module.columns * (module.size or dtype_bytes)
    matrix_bytes = stored.size(module.rows, module.columns) if stored else plain
    if module.experts and split.experts:
        return matrix_bytes * (module.count // module.experts) * -(-module.experts // split.of_experts)
    size, parts = matrix_bytes * module.count, _ranks_of(module, split)
    if not module.split:
        return size
    if module.least and parts > 1:
        return size // module.part * max(module.part // parts, module.least)
    if module.multiple:
        return size // module.part * (-(-module.part // (parts * module.multiple)) * module.multiple)
    # With fewer kv heads than ranks every rank keeps one head.
    return -(-size // (min(parts, module.pieces) if module.pieces else parts))


def is_tied(config: Config) -> bool:
    """Tell whether the embedding is the head, too."""
    text = text_config(config)
    if text.get("model_type") == "mistral4":
        # Served by Transformers' classes, whose configs each may say so; that around the model says yes if it is silent
        # (models/transformers/base.py, _get_tie_word_embeddings).
        return bool(text.get("tie_word_embeddings")) or (
            text is not config and config.get("tie_word_embeddings") is not False
        )
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    family = FAMILIES.get(str(text.get("model_type") or config.get("model_type")))
    return bool(family and family.tied) if tied is None else bool(tied)


def padded_vocabulary(size: int) -> int:
    """Return the rows of an embedding: vLLM pads the vocabulary to 64."""
    return -(-size // 64) * 64


def part_of(name: str) -> str:
    """Name the part of a layer that a module belongs to: its attention, its MLP with all experts.

    vLLM completes and quantises a linear layer or a set of experts at a time, which is at most such a part
    (model_executor/model_loader/reload/layerwise.py).
    """
    match = _PART.search(name)
    return match.group() if match else name


def _plain_config(config: Config, family: str, minor: int | None = None) -> Config:
    """Return the fields of the text model by their common names; refuse a family that is not known in a minor release."""
    _check_family(family, minor)
    return rename_fields({**text_config(config), "mtp_config": config.get("mtp_config")}, family)


def _check_family(family: str, minor: int | None = None) -> None:
    if family not in FAMILIES:
        raise Refusal("config.model_type", f"the weights of the family {family!r} are not known", GIVE)
    if minor is not None and minor < _KNOWN_SINCE.get(family, 0):
        since = f"0.{_KNOWN_SINCE[family]}"
        raise Refusal(
            "config.model_type", f"the weights of the family {family!r} are known since vLLM {since} alone", GIVE
        )


def weights_bytes(
    config: Config,
    geometry: Geometry,
    *,
    quant_config: Config | None = None,
    split: Split = _UNDIVIDED,
    runtime_quantization: str = "",
    vision: bool = True,
    mtp: bool = False,
    draft_tokens: int = 0,
    minor: int | None = None,
    tables_on_disk: bool = False,
) -> Weights:
    """Count the bytes of the weights of one rank, of the fullest pipeline stage.

    config, quant_config: C(config.json) and C(hf_quant_config.json). geometry: of the same config.
    runtime_quantization: C(--quantization); only read where the checkpoint itself is not quantised.
    vision: count the vision tower. mtp: count the multi-token-prediction layers.
    draft_tokens: how many are drafted, where vLLM makes a layer for each; 0 for as many as there are layers.
    minor: the 23 of vLLM 0.23, C(None) for the newest; older ones make some formats in 16 bits.
    tables_on_disk: the build leaves tables of n-grams on disk.
    Raises C(Refusal) for a family or a format that is not known.
    """
    quantization = Quantization(config, quant_config, runtime_quantization, minor)
    parts = rank_parts(config, geometry, split, quantization, minor=minor, drafts=mtp, draft_tokens=draft_tokens)
    tower = parts.measure(vision_tower(config)) if vision else []
    tables = parts.measure(parts.tables)
    vision_size, table_size = _total(tower), _total(tables)
    host, disk = (0, table_size) if tables_on_disk else (table_size, 0)
    sizes = [_total(stage) for stage in parts.stages]
    sizes[0] += host
    target, draft = max(sizes) + vision_size, _total(parts.drafts)
    modules = list(chain.from_iterable(parts.stages))
    if not quantization.runtime:
        largest = _largest_sum((part.module.name, part.size) for part in modules if part.module.experts)
        return Weights(target, draft, target, vision_size, host=host, experts=largest, disk=disk)
    peak, largest_layer = _unquantised(parts.stages, [] if tables_on_disk else tables, tower)
    return Weights(target, draft, peak, vision_size, min(peak, target + largest_layer), host, disk=disk)


def _unquantised(stages: Sequence[Sequence[Part]], tables: Sequence[Part], tower: Sequence[Part]) -> tuple[int, int]:
    """Return the bytes before vLLM quantises: of the fullest stage (the first has C(tables)), and of the largest layer that it quantises."""
    plain_sizes = [sum(part.plain_size for part in stage) for stage in stages]
    plain_sizes[0] += sum(part.plain_size for part in tables)
    quantised = [part for part in (*chain.from_iterable(stages), *tables, *tower) if part.stored]
    layers = [(part_of(part.module.name), part.plain_size) for part in quantised]
    return max(plain_sizes) + sum(part.plain_size for part in tower), _largest_sum(layers)


@dataclass(frozen=True)
class Part:
    """A module as one rank has it.

    stored: its format, C(None) for the dtype of the model. size: its bytes. plain_size: its bytes before vLLM quantises it.
    ranks: over how many ranks each of its matrices is divided; experts that ranks hold as a whole are divided over one.
    """

    module: Module
    stored: Format | None
    size: int
    plain_size: int
    ranks: int


@dataclass(frozen=True)
class RankParts:
    """The language model on the ranks of each pipeline stage.

    stages: the modules of each stage. drafts: modules of its multi-token-prediction layers, which the last stage has.
    tables: modules of n-gram tables, which the first stage has unless they stay on disk.
    """

    stages: list[list[Part]]
    drafts: list[Part]
    tables: list[Module]
    split: Split
    quantization: Quantization
    dtype_bytes: int

    def measure(self, modules: Iterable[Module]) -> list[Part]:
        """Return modules as one rank has them."""
        parts = []
        for module in modules:
            stored = self.quantization.format_of(module)
            plain = _module_bytes(module, None, self.dtype_bytes, self.split)
            size = _module_bytes(module, stored, self.dtype_bytes, self.split) if stored else plain
            parts.append(Part(module, stored, size, plain, _ranks_of(module, self.split)))
        return parts


def rank_parts(
    config: Config,
    geometry: Geometry,
    split: Split,
    quantization: Quantization,
    *,
    minor: int | None = None,
    drafts: bool = False,
    draft_tokens: int = 0,
) -> RankParts:
    """List what one rank of every pipeline stage has of the language model: the one source of bytes that are held, and of bytes that are read.

    :param minor: the 23 of vLLM 0.23, C(None) for the newest
    :param draft_tokens: how many are drafted, where vLLM makes a layer for each; 0 for as many as there are layers
    :raises Refusal: for a family or a format that is not known
    """
    family = geometry.model_type
    text = _plain_config(config, family, minor)
    split = split.for_family(family)
    padded = quantization.padded_experts
    parts = RankParts([], [], list(tables(text, family)), split, quantization, 4 if geometry.dtype == "float32" else 2)
    parts.stages.extend(map(parts.measure, _stages(config, text, geometry, split, padded)))
    parts.drafts.extend(parts.measure(_mtp(text, family, geometry, padded, draft_tokens) if drafts else ()))
    return parts


def _total(parts: Iterable[Part]) -> int:
    return sum(part.size for part in parts)


def _largest_sum(sizes: Iterable[tuple[str, int]]) -> int:
    """Return the largest sum of sizes with one name, 0 without any."""
    sums: dict[str, int] = {}
    for name, size in sizes:
        sums[name] = sums.get(name, 0) + size
    return max(sums.values(), default=0)


def stage_modules(config: Config, geometry: Geometry, split: Split) -> list[list[Module]]:
    """List the matrices of the language model by pipeline stage, with the names of its checkpoint.

    :returns: modules; experts are not padded
    :raises Refusal: for a family whose weights are not known
    """
    text = _plain_config(config, geometry.model_type)
    return _stages(config, text, geometry, split, False)


def _stages(config: Config, text: Config, geometry: Geometry, split: Split, padded: bool) -> list[list[Module]]:
    """List the modules of every pipeline stage: the layers, the embedding and the head."""
    family, count = geometry.model_type, len(geometry.layers)
    hidden = field(text, "hidden_size")
    vocabulary = padded_vocabulary(field(text, "vocab_size"))
    pattern = nemotron_pattern(text)
    stages: list[list[Module]] = [[] for _stage in range(split.pipeline)]
    for index, (layer, stage) in enumerate(zip(geometry.layers, stages_of_layers(count, split.pipeline))):
        name = f"layers.{index}"
        if family == "nemotron_h":
            stages[stage] += _nemotron_layer(text, layer, pattern[index], name)
            continue
        if layer is None:
            layer = geometry.attention[-1]  # it reads the cache of another layer, but has its own weights
        indexed = bool(geometry.further_caches) and any(
            isinstance(cache, Cache) for cache in geometry.further_caches[index]
        )
        stages[stage] += _layer(text, family, index, layer, name, padded, indexed)
    embedding = Module("embed_tokens", vocabulary, hidden, split=family != "inkling_model")
    stages[0] += [embedding, *modules_before_layers(text, family)]
    stages[-1] += [Module("norm", hidden * FAMILIES[family].final), *modules_after_layers(text, family)]
    if not is_tied(config):
        stages[-1].append(linear("lm_head", vocabulary, hidden))
        if text.get("lm_head_bias"):
            stages[-1].append(Module("lm_head.bias", vocabulary, split=True))
    elif split.pipeline > 1:
        stages[-1].append(embedding)  # the last stage needs it as its head
    per_layer = optional(text, "hidden_size_per_layer_input")
    if per_layer:
        rows = optional(text, "vocab_size_per_layer_input") or vocabulary
        stages[0].append(Module("embed_tokens_per_layer", rows, per_layer * count, split=True))
    return stages


def _mtp(text: Config, family: str, geometry: Geometry, padded: bool, tokens: int) -> Iterator[Module]:
    """Yield the multi-token-prediction layers without the shared embedding and head: one for each of C(tokens), or all (0)."""
    if geometry.mtp_layer is None:
        return
    hidden = field(text, "hidden_size")
    shares_projection = family in _GDN
    used = geometry.drafts[: tokens or None] if geometry.drafts_each else geometry.drafts
    for index, caches in enumerate(used):
        # The layers count on: a checkpoint names them mtp.layers.N or layers.(last + N).
        name = f"mtp.layers.{index}" if shares_projection else f"layers.{len(geometry.layers) + index}"
        if family == "nemotron_h":
            for place, letter in enumerate(nemotron_pattern(text, "mtp_")):
                layer = geometry.mtp_layer if letter == "*" else None
                yield from _nemotron_layer(text, layer, letter, f"mtp.layers.{place}")
        else:
            cache = caches[0] if geometry.drafts_each else geometry.mtp_layer
            yield from _draft_block(text, family, geometry, index, cache, name, padded)
        if family in DRAFTS:
            yield from DRAFTS[family](text, index, name)
            continue
        yield Module(f"{name}.norms", 2 * hidden)
        if not shares_projection:  # layers of Qwen share one projection, layers of DeepSeek and GLM have separate ones
            eh_proj = replace(linear(f"{name}.eh_proj", hidden, 2 * hidden), split=family == "nemotron_h")
            yield eh_proj if family == "deepseek_v4" else replace(eh_proj, linear=False)
            yield Module(f"{name}.shared_head.norm", hidden)
    if shares_projection:
        yield replace(linear("mtp.fc", hidden, 2 * hidden), linear=False)
        streams = field(text, "hc_count") + 1 if family == "qwen4_exp_text" else 1
        yield Module("mtp.norm", hidden * streams)
    yield from modules_after_layers(text, family, "mtp.")


def _draft_block(
    text: Config, family: str, geometry: Geometry, index: int, cache: Layer, name: str, padded: bool
) -> Iterator[Module]:
    """Yield the block of draft layer C(index). cache: its first cache."""
    # The first draft layer tells whether draft layers have an index.
    indexed = bool(geometry.further_caches) and any(isinstance(other, Cache) for other in geometry.drafts[0][1:])
    for module in _layer(text, family, len(geometry.layers) + index, cache, name, padded, indexed):
        # The draft layers of MiMo keep this projection in 16 bits (mimo_v2.py).
        plain = family.startswith("mimo_v2") and module.name.endswith(".o_proj")
        yield replace(module, linear=False) if plain else module


def drafter_bytes(config: Config, geometry: Geometry, method: str, *, tensor_parallel: int = 1) -> int:
    """Count the bytes of a separate drafter on one rank.

    method: C(draft_model) is a whole model; C(eagle) and C(eagle3) are a few layers that read the hidden states of the
    model through a projection and share its embedding, EAGLE also its head (llama_eagle.py, llama_eagle3.py).
    """
    if method not in ("eagle", "eagle3"):
        return weights_bytes(config, geometry, split=Split(tensor_parallel), vision=False).target
    text, family = text_config(config), geometry.model_type
    _check_family(family)
    hidden = field(text, "hidden_size")
    third = method == "eagle3"
    source = optional(text, "target_hidden_size") or hidden
    parts = [Module("fc", hidden, 3 * source if third else 2 * hidden)]
    for index, layer in enumerate(geometry.attention):
        name = f"layers.{index}"
        parts.append(Module(f"{name}.norms", (3 if third else 2) * hidden))
        parts += _attention(text, family, layer, f"{name}.self_attn", 2 if third and index == 0 else 1)
        parts += _feed_forward(text, family, index, name, False)
    if third:
        vocabulary = optional(text, "draft_vocab_size") or field(text, "vocab_size")
        parts += [Module("norm", hidden), Module("lm_head", padded_vocabulary(vocabulary), hidden, split=True)]
        parts.append(Module("d2t", vocabulary, size=8))
    formats = Quantization(config, None, "")
    size = 4 if geometry.dtype == "float32" else 2
    split = Split(tensor_parallel)
    return sum(_module_bytes(part, formats.format_of(part), size, split) for part in parts)
