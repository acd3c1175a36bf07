# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes that one rank reads in a decode step, and the operations that it does for a token, from a model's config.

A decode step reads every weight that its tokens pass through once, the keys and values of the context, and reads and writes
recurrent states. The figures come from the modules and caches that the memory budget counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .._memory.geometry import Geometry, read_geometry
from .._memory.kv_plan import KVSettings
from .._memory.kv_specs import state_bytes, token_bytes
from .._memory.layers import Attention, Cache, Config, Layer, Recurrent, Refusal, stages_of_layers, text_config
from .._memory.modules import field as whole_number
from .._memory.modules import optional
from .._memory.releases import Release
from .._memory.service_input import DEFAULT_BATCHED_TOKENS
from .._memory.weight_formats import Quantization
from .._memory.weights import Part, Split, is_tied, layer_field, rank_parts

# Fields of config.json that say how many experts a token passes through, by family.
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "top_k_experts",
    "moe_k",
    "num_active_experts",
)
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
_LAYER = re.compile(r"^(.*layers\.\d+)\..*$")
# Tables of which a token reads one row: the input embedding, embeddings of a layer, n-grams.
_LOOKED_UP = re.compile(r"^embed_tokens_per_layer|ngram|engram")
# Families whose checkpoint in Mistral's own format vLLM serves with a latent cache; Transformers' class keeps keys and values.
_LATENT = frozenset(("mistral4",))
# The share of the context that the indexer of sparse attention reads, in bytes of its keys and values.
# Index keys of 128 bytes and scales, next to a latent row of 656 or 1,152 (vllm/v1/attention/backends/mla/indexer.py).
_INDEX_SHARE = 0.1
# Latent attention in decode works on rows of 512 dimensions, keys and values alike (and of 64 more for the positions of keys).
_LATENT_DIMENSIONS = 512


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer on one rank.

    count: of the layer. active: that a token passes through. size: bytes of one on this rank.
    ranks: that hold them as a whole between them, 1 where each rank holds a part of every expert.
    """

    count: int
    active: int
    size: float
    ranks: int = 1


@dataclass(frozen=True)
class Context:
    """The cache of one layer on one rank.

    token_bytes: of one token. flops: operations of a prefill for each token of the context and each new token. decode_flops: the same of a
    decode step. window: tokens that it looks back at, 0 for all. selected: tokens that sparse attention chooses, 0 for all.
    """

    token_bytes: float
    flops: float
    window: int = 0
    selected: int = 0
    decode_flops: float = 0.0

    def tokens_read(self, length: float) -> float:
        """Return how many tokens' worth of the cache a new token reads at a context of C(length) tokens."""
        tokens = min(length, self.window) if self.window else length
        return min(tokens, self.selected) + _INDEX_SHARE * tokens if self.selected else tokens


@dataclass
class Stage:
    """The reads and operations of one rank of a pipeline stage. Bytes, and floating point operations for one token.

    weights: read in every step in the model's dtype, without the head. quantised: the same in 8 or 4 bits. head: of the output.
    state: of the recurrent layers, for one sequence. flops: of dense matrices by format. expert_flops: of experts.
    hidden: width of the hidden state, elements. expert_size: elements of an expert's matrix. head_dim: the largest of attention.
    has_whole_fp8: whether dense matrices have FP8 with scales of rows or of the whole matrix, not of blocks. expert_bits: of a weight.
    layers, recurrent, latent: how many there are. reduces: all-reduces of a step where the stage has several ranks.
    held: bytes of all weights of the rank.
    """

    hidden: int
    weights: float = 0.0
    quantised: float = 0.0
    head: float = 0.0
    head_flops: float = 0.0
    experts: list[Experts] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    state: float = 0.0
    flops: dict[str, float] = field(default_factory=dict)
    has_whole_fp8: bool = False
    expert_flops: float = 0.0
    expert_size: float = 0.0
    expert_bits: int = 16
    head_dim: int = 128
    layers: int = 0
    recurrent: int = 0
    latent: int = 0
    reduces: int = 0
    held: float = 0.0


@dataclass(frozen=True)
class Reads:
    """A launch as its ranks read it. draft: the layers that a checkpoint carries for multi-token prediction, C(None) without any."""

    family: str
    stages: tuple[Stage, ...]
    draft: Stage | None

    @property
    def is_sparse(self) -> bool:
        """Whether attention chooses tokens by an index."""
        return any(context.selected for stage in self.stages for context in stage.contexts)

    @property
    def is_compressed(self) -> bool:
        """Whether rows of a cache stand for several tokens, as in DeepSeek V4."""
        return self.family.startswith("deepseek_v4")

    @property
    def is_latent(self) -> bool:
        """Whether layers keep latent vectors in place of keys and values."""
        return any(stage.latent for stage in self.stages)


@dataclass(frozen=True)
class LaunchSettings:
    """The settings of a launch that decide its reads.

    release: of vLLM. kv_cache_dtype, mamba_ssm_cache_dtype: as the options are called. runtime_quantization: C(--quantization) of a checkpoint
    in 16 bits.
    """

    release: Release
    split: Split = field(default_factory=Split)
    kv_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    runtime_quantization: str = ""


def format_name(part: Part) -> str:
    """Name the format of a module for the choice of its kernel: C(bf16), C(fp8), C(fp4), or C(int) and the bits."""
    stored = part.stored
    if stored is None:
        return "bf16"
    # NVFP4 and the MX formats have scales of a byte, FP8 of four bytes or one scale for all, integers of two.
    is_float = stored.scale == 1 if stored.bits == 4 else stored.bits == 8 and stored.scale != 2
    return f"{'fp' if is_float else 'int'}{stored.bits}"


def read_launch(config: Config, quant_config: Config | None, settings: LaunchSettings) -> Reads:
    """Return the reads of the ranks of a launch.

    :param quant_config: hf_quant_config.json, or None
    :raises Refusal: for a family, a format or a division that is not known
    """
    geometry = read_geometry(config)
    text = text_config(config)
    quantization = Quantization(config, quant_config, settings.runtime_quantization, settings.release.minor)
    parts = rank_parts(
        config, geometry, settings.split, quantization, minor=settings.release.minor, drafts=bool(geometry.drafts)
    )
    active = 0
    if any(part.module.experts for stage in parts.stages for part in stage):
        key = next((key for key in _EXPERTS_PER_TOKEN if text.get(key)), None)
        if key is None:
            raise Refusal("config", "how many experts a token passes through is not known")
        active = layer_field(text, key, 0)
    tied = is_tied(config)
    stages = []
    for number, modules in enumerate(parts.stages):
        stage = _read_modules(modules, text, parts.split, active, tied, number == len(parts.stages) - 1)
        _read_caches(stage, geometry, text, settings, number)
        stages.append(stage)
    draft = None
    if parts.drafts:
        draft = _read_modules(parts.drafts, text, parts.split, active, False, False)
        # Its attention equals the attention of the last layer with a cache.
        draft = replace(draft, layers=len(geometry.drafts), head=stages[-1].head, contexts=stages[-1].contexts[-1:])
    return Reads(geometry.model_type, tuple(stages), draft)


def _expert_size(text: Config) -> float:
    """Return the elements of an expert's matrix."""
    width = next((layer_field(text, key, 0) for key in _EXPERT_WIDTH if text.get(key)), 0)
    return float(optional(text, "moe_latent_size") or whole_number(text, "hidden_size")) * width


def _add_dense(stage: Stage, part: Part, flops: float) -> None:
    """Add a module that every token passes through to its stage."""
    name = format_name(part)
    if part.stored is None:
        stage.weights += part.size
    else:
        stage.quantised += part.size
    stage.flops[name] = stage.flops.get(name, 0.0) + flops
    stage.has_whole_fp8 |= name == "fp8" and part.stored is not None and not part.stored.group


def _read_modules(
    parts: Iterable[Part], text: Config, split: Split, active: int, is_tied_model: bool, is_last: bool
) -> Stage:
    """Sum the modules of a stage by how often a step reads them."""
    stage = Stage(hidden=whole_number(text, "hidden_size"), expert_size=_expert_size(text) if active else 0.0)
    ranks = split.of_experts if split.experts else 1
    expert_sizes: dict[str, tuple[int, float]] = {}
    for part in parts:
        module = part.module
        stage.held += part.size
        flops = 2.0 * module.rows * module.columns * module.count / part.ranks if module.columns > 1 else 0.0
        if module.name == "lm_head" or (module.name == "embed_tokens" and is_tied_model and is_last):
            stage.head += part.size
            stage.head_flops += flops
        elif module.name == "embed_tokens" or _LOOKED_UP.search(module.name):
            continue
        elif module.experts:
            if active > module.experts:
                raise Refusal("config", f"a token cannot pass through {active} of {module.experts} experts")
            key = _LAYER.sub(r"\1", module.name)
            size = part.size / -(-module.experts // ranks)
            expert_sizes[key] = (module.experts, expert_sizes.get(key, (0, 0.0))[1] + size)
            stage.expert_flops += flops / module.experts * active / ranks
            stage.expert_bits = part.stored.bits if part.stored else 16
        else:
            _add_dense(stage, part, flops)
    stage.experts = [Experts(count, active, size, ranks) for count, size in expert_sizes.values()]
    return stage


def _read_caches(stage: Stage, geometry: Geometry, text: Config, settings: LaunchSettings, number: int) -> None:
    """Add the caches of a stage's layers."""
    split = settings.split
    where = stages_of_layers(len(geometry.layers), split.pipeline)
    state_settings = KVSettings(
        release=settings.release,
        max_num_batched_tokens=DEFAULT_BATCHED_TOKENS,  # decides no size of a state
        tensor_parallel=split.tensor,
        kv_cache_dtype=settings.kv_cache_dtype,
        mamba_ssm_cache_dtype=settings.mamba_ssm_cache_dtype,
    )
    for index, layer in enumerate(geometry.layers):
        if where[index] != number:
            continue
        stage.layers += 1
        if isinstance(layer, Recurrent):
            stage.recurrent += 1
            stage.state += state_bytes(layer, state_settings, geometry.dtype)
        elif layer is not None:
            stage.latent += isinstance(layer, Cache) or layer.kind == "mla"
            stage.contexts.append(_context(layer, geometry, text, settings, index))
    heads = [max(layer.head_dim, layer.head_dim_v) for layer in geometry.attention if layer.kind != "mla"]
    stage.head_dim = max(heads, default=128)
    # Attention and MLP each end in one; a layer of Nemotron-H is one of them alone.
    stage.reduces = stage.layers * (1 if geometry.model_type == "nemotron_h" else 2)


def _context(layer: Layer, geometry: Geometry, text: Config, settings: LaunchSettings, index: int) -> Context:
    ranks = settings.split.tensor
    key = "num_attention_heads_per_layer"
    heads = layer_field(text, key if text.get(key) else "num_attention_heads", index)
    selected = optional(text, "index_topk")
    if isinstance(layer, Cache):
        row_tokens = max(1, layer.tokens_per_row)
        flops = 2.0 * heads * 2 * _LATENT_DIMENSIONS / ranks / row_tokens
        return Context(layer.row / row_tokens, flops, layer.window, selected, flops)
    if not isinstance(layer, Attention):
        raise Refusal("config", "a layer of an unknown kind is not read")
    size = float(token_bytes(layer, settings.kv_cache_dtype, geometry.dtype, ranks))
    if geometry.model_type in _LATENT:
        element = 1 if settings.kv_cache_dtype.startswith("fp8") else 2
        size = float((text["kv_lora_rank"] + text["qk_rope_head_dim"]) * element)
    if layer.kind != "mla":
        flops = 2.0 * heads * (layer.head_dim + layer.head_dim_v) / ranks
        return Context(size, flops, layer.window, 0, flops)
    width = sum(optional(text, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    # A decode step attends to the latent rows themselves: keys of the whole row, values without its positions.
    absorbed = 2.0 * heads * (2 * layer.head_dim - optional(text, "qk_rope_head_dim")) / ranks
    return Context(size, 2.0 * heads * width / ranks, layer.window, selected, absorbed)
