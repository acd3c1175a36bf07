# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV cache planning as vLLM does it: blocks, pages, groups, and how many requests they hold.

vLLM cuts the memory that is left for the cache into blocks. A block is one page in each of a few tensors that all layers
share; a request takes a number of blocks from every group of layers. This file restates that planning for vLLM 0.15
to 0.33. It was compared row by row with the planner of vLLM 0.19.0, 0.23.0 and 0.33.0
(C(vllm/v1/core/kv_cache_utils.py), from 0.33 C(kv_cache_planning.py), and C(vllm/platforms/interface.py)); other
versions follow the release in which a change was first seen, and C(Release.exact) is then false.

Sizes are bytes, lengths are tokens, all per rank. No I/O, no Ansible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import gcd

from ansible_collections.dgxspark.vllm.plugins.module_utils.geometry import (
    Attention,
    Geometry,
    Layer,
    Recurrent,
    Refusal,
)

GIB = 1 << 30

# The newest vLLM minor release whose planner was read; a later one is planned as this one.
NEWEST_MINOR = 33
# The first minor release with the unified-memory code of GB10 that this engine knows.
OLDEST_MINOR = 15
# The minor releases whose planner was compared row by row.
COMPARED_MINORS = (19, 23, 33)

# Tokens of an attention block when nothing else decides (vllm/config/cache.py, all backends of sm_121).
DEFAULT_BLOCK_SIZE = 16
# 0.33: GDN with FlashInfer prefill (SM12x, CUDA 13, head_k_dim 128) needs blocks of a multiple of 64.
GDN_FLASHINFER_UNIT = 64

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
_FP8 = frozenset(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"))
_PER_TOKEN_HEAD = frozenset(("fp8_per_token_head", "int8_per_token_head"))
KV_DTYPES = ("auto", "bfloat16", "float16", *sorted(_FP8), *sorted(_PER_TOKEN_HEAD), "fp8_ds_mla", "nvfp4")
# fp8_ds_mla: 512 bytes of latent, 16 of scales, 128 of rope (vllm/v1/kv_cache_interface.py).
_FP8_DS_MLA_BYTES = 656

_CONSERVING = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True)
class Release:
    """A vLLM release as far as memory planning tells releases apart.

    text: as given. minor: the 19 of 0.19.0. exact: the planner of this very release was compared.
    """

    text: str
    minor: int
    exact: bool

    def since(self, minor: int) -> bool:
        """Tell whether the release is 0.C(minor) or later."""
        return self.minor >= minor


def parse_release(text: str) -> Release:
    """Read a version as vLLM prints it: C(0.19.0), C(v0.23.1), C(0.20.2rc1.dev49+g9b4e83934).

    A development build counts as the release it precedes and is never exact. Raises C(Refusal) below 0.15 and for a text
    that is no version.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.\d+)?((?:rc|a|b|\.dev|\.post|[+-]).*)?$", text.strip())
    if match is None:
        raise Refusal("vllm_version", f"{text!r} is not a vLLM version", "write it as vllm --version does, like 0.23.0")
    major, minor, suffix = int(match.group(1)), int(match.group(2)), match.group(3) or ""
    if major > 0:
        raise Refusal(
            "vllm_version",
            f"the memory planning of vLLM {text} is not known",
            f"use a version of 0.{OLDEST_MINOR} to 0.{NEWEST_MINOR}",
        )
    if minor < OLDEST_MINOR:
        raise Refusal(
            "vllm_version",
            f"memory of vLLM {text} is not planned: before 0.{OLDEST_MINOR} it did not account for "
            "unified memory as it does now",
            f"use vLLM 0.{OLDEST_MINOR} or later",
        )
    built = bool(re.match(r"rc|a|b|\.dev", suffix))
    return Release(text, min(minor, NEWEST_MINOR), minor in COMPARED_MINORS and not built)


@dataclass(frozen=True)
class KVSettings:
    """The settings of a service that decide its KV cache.

    kv_cache_dtype: resolved (never what the checkpoint would make of C(auto)); see C(KV_DTYPES).
    mamba_cache_mode: C(none), C(align) or C(all), or empty for what the release picks.
    draft_layers: attention layers of the drafter that own a cache.
    num_speculative_tokens: 0 without speculative decoding.
    block_size: C(--block-size), 0 when not given.
    skip_layers: C(--kv-cache-dtype-skip-layers): layer numbers, or C(sliding_window).
    """

    release: Release
    max_num_batched_tokens: int
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = True
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    num_speculative_tokens: int = 0
    draft_layers: tuple[Attention, ...] = ()
    block_size: int = 0
    mamba_cache_mode: str = ""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    skip_layers: tuple[str, ...] = ()
    hybrid_manager: bool = True
    async_scheduling: bool = True


@dataclass(frozen=True)
class KVGroup:
    """A group of layers that share one block table.

    kind: C(full), C(sliding), C(chunked), C(mla), C(mamba) or C(gdn). layers: how many. block_size: tokens.
    """

    kind: str
    layers: int
    block_size: int
    window: int = 0


class PlanFailure(Exception):
    """vLLM itself would refuse to plan; the text is its own."""


@dataclass(frozen=True)
class KVPlan:
    """How the KV cache of one rank is cut, and the questions that can be asked of it."""

    settings: KVSettings
    groups: tuple[KVGroup, ...]
    block_size: int
    page_size_bytes: int
    group_size: int
    bytes_per_block: int
    mamba_cache_mode: str
    state_bytes: int
    notes: tuple[str, ...] = ()
    _counted: tuple[tuple[KVGroup, int], ...] = field(default=(), repr=False)

    @property
    def marginal_bytes_per_token(self) -> float:
        """Bytes that one more token of context costs, once the fixed part of a request is paid."""
        return sum(
            (self.bytes_per_block / group.block_size for group in self.groups if group.kind in ("full", "mla")), 0.0
        )

    def blocks_per_request(self, length: int) -> int:
        """Blocks that one request of C(length) tokens takes at most."""
        return sum(count * self._group_blocks(group, length) for group, count in self._counted)

    def _group_blocks(self, group: KVGroup, length: int) -> int:
        settings, release = self.settings, self.settings.release
        if group.kind in ("mamba", "gdn"):
            drafts = settings.num_speculative_tokens
            if self.mamba_cache_mode == "all":
                return _ceil_div(length, group.block_size) + (drafts if release.since(22) else 0)
            if self.mamba_cache_mode == "none":
                return 1 + drafts
            # One more checkpoint block: Mamba-2 from 0.32, GDN with FlashInfer prefill from 0.33.
            return 2 + drafts + (1 if release.since(32 if group.kind == "mamba" else 33) else 0)
        if group.kind in ("full", "mla"):
            return _ceil_div(length, group.block_size)
        in_flight = settings.max_num_batched_tokens
        if release.since(26):
            # Tokens of a step that is still running count, too (async scheduling; one batch per pipeline stage).
            in_flight *= settings.pipeline_parallel + (1 if settings.async_scheduling else 0)
        if group.kind == "sliding":
            return _ceil_div(min(group.window - 1 + in_flight, length), group.block_size) + 1
        return _ceil_div(min(group.window + in_flight, length), group.block_size)

    def needed_bytes(self, length: int) -> int:
        """Bytes that one request of C(length) tokens needs; vLLM starts only when this fits."""
        return self.blocks_per_request(length) * self.bytes_per_block

    def checked_bytes(self, available: int) -> int:
        """Bytes that vLLM's own check compares with: from 0.29 without the null block."""
        return available - self.bytes_per_block if self.settings.release.since(29) else available

    def available_for(self, requests: int, length: int) -> int:
        """The least memory that passes the check and holds C(requests) requests of C(length) tokens."""
        blocks = self.blocks_per_request(length)
        null = 1 if self.settings.release.since(29) else 0
        return max(requests * blocks, blocks + null) * self.bytes_per_block

    def num_blocks(self, available: int) -> int:
        """Blocks that fit into C(available) bytes."""
        return max(0, available // self.bytes_per_block)

    def max_concurrency(self, blocks: int, length: int) -> float:
        """Requests of C(length) tokens that C(blocks) blocks hold at once."""
        return blocks / self.blocks_per_request(length)

    def printed_tokens(self, blocks: int, length: int) -> int:
        """The number in the line C(GPU KV cache size) of the start-up log of this release."""
        if self.settings.release.since(21):
            return int(self.max_concurrency(blocks, length) * length)
        return (
            blocks
            // len(self.groups)
            * min(length if group.block_size == 0 else group.block_size for group in self.groups)
        )

    def largest_length(self, available: int, limit: int) -> int:
        """The longest request, at most C(limit) tokens, that passes vLLM's check; 0 when none does."""
        budget = self.checked_bytes(available)
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed_bytes(middle) <= budget:
                low = middle
            else:
                high = middle - 1
        return low


def _ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _lcm(first: int, second: int) -> int:
    return first * second // gcd(first, second)


def _split(value: int, ranks: int, key: str) -> int:
    if value % ranks:
        raise Refusal("args.tensor-parallel-size", f"{key} = {value} cannot be divided over {ranks} ranks")
    return value // ranks


def token_bytes(layer: Attention, dtype: str, model_dtype: str, tensor_parallel: int) -> int:
    """Bytes that one token takes in one attention layer of one rank.

    dtype: of the cache, one of C(KV_DTYPES). model_dtype: C(bfloat16), C(float16) or C(float32).
    """
    if dtype not in KV_DTYPES:
        raise Refusal(
            "args.kv-cache-dtype", f"KV cache dtype {dtype!r} is not known", f"use one of {', '.join(KV_DTYPES)}"
        )
    if dtype == "fp8_ds_mla":
        if layer.kind != "mla":
            raise Refusal("args.kv-cache-dtype", "fp8_ds_mla is for latent attention (MLA) only")
        return _FP8_DS_MLA_BYTES
    # With more ranks than heads each rank keeps a copy of one head.
    heads = 1 if layer.kind == "mla" else max(1, layer.kv_heads // tensor_parallel)
    if dtype == "nvfp4":
        if layer.head_dim % 16 or layer.head_dim_v % 16:
            raise Refusal("args.kv-cache-dtype", f"nvfp4 needs heads of a multiple of 16, not {layer.head_dim}")
        return heads * sum(size // 2 + size // 16 for size in (layer.head_dim, layer.head_dim_v))
    width = heads * (layer.head_dim + layer.head_dim_v)
    if dtype in _FP8:
        return width
    if dtype in _PER_TOKEN_HEAD:
        return width + 2 * heads * 4
    return width * _DTYPE_BYTES[model_dtype if dtype == "auto" else dtype]


def state_bytes(layer: Recurrent, settings: KVSettings, model_dtype: str) -> int:
    """Bytes of the recurrent state of one request in one layer of one rank."""
    ranks = settings.tensor_parallel
    groups = layer.groups
    key_dim = layer.conv_key_dim
    if groups % ranks:
        if layer.kind == "gdn" or groups != 1:
            _split(groups, ranks, "key heads" if layer.kind == "gdn" else "n_groups")
        key_dim *= ranks  # a single Mamba-2 group is copied to every rank
    channels = _split(key_dim, ranks, "convolution channels") + _split(layer.conv_value_dim, ranks, "channels")
    conv_dtype = settings.mamba_cache_dtype
    ssm_dtype = settings.mamba_ssm_cache_dtype
    if ssm_dtype == "auto":
        if layer.ssm_dtype:
            ssm_dtype = layer.ssm_dtype
        elif layer.kind == "mamba":
            # NemotronH without the field: float16 up to 0.19, float32 from 0.20.
            ssm_dtype = "float32" if settings.release.since(20) else "float16"
        else:
            ssm_dtype = conv_dtype
    sizes = []
    for key, dtype in (("mamba-cache-dtype", conv_dtype), ("mamba-ssm-cache-dtype", ssm_dtype)):
        name = model_dtype if dtype == "auto" else dtype
        if name not in _DTYPE_BYTES:
            raise Refusal(f"args.{key}", f"dtype {dtype!r} is not known", "use auto, float16, bfloat16 or float32")
        sizes.append(_DTYPE_BYTES[name])
    conv = (layer.conv_kernel - 1 + settings.num_speculative_tokens) * channels * sizes[0]
    return conv + _split(layer.heads, ranks, "state heads") * layer.head_dim * layer.state_dim * sizes[1]


def mamba_mode(layer: Recurrent, settings: KVSettings) -> str:
    """Return the mode of the state cache that the release ends up with: C(none), C(align) or C(all)."""
    if not settings.prefix_caching:
        return "none"
    all_mode = layer.kind == "mamba" and not settings.release.since(32)
    if settings.mamba_cache_mode == "align" or not all_mode:
        return "align"
    return "all"


def _hybrid_block_size(state: int, token: int, mode: str, layer: Recurrent, settings: KVSettings) -> int:
    """Tokens of an attention block, grown until its page holds a recurrent state."""
    if mode == "all":
        chunk = _lcm(layer.chunk_size, DEFAULT_BLOCK_SIZE)
        return chunk * _ceil_div(_ceil_div(state, token), chunk)
    unit = DEFAULT_BLOCK_SIZE
    if settings.block_size and settings.release.since(20):
        unit = settings.block_size
    if layer.kind == "gdn" and mode == "align" and settings.release.since(33) and layer.state_dim == 128:
        unit = _lcm(unit, GDN_FLASHINFER_UNIT)
    return max(unit * _ceil_div(state, unit * token), settings.block_size)


@dataclass(frozen=True)
class _Spec:
    """What vLLM compares when it sorts layers into groups."""

    kind: str
    block_size: int
    page: int
    window: int = 0


def _stages(count: int, stages: int) -> list[int]:
    """Return the pipeline stage of every layer (C(vllm/distributed/utils.py), get_pp_indices)."""
    if stages > count:
        raise Refusal("args.pipeline-parallel-size", f"{count} layers cannot be divided over {stages} stages")
    sizes = [count // stages] * stages
    for index in range(2, count % stages + 2):
        sizes[-index] += 1
    return [stage for stage, size in enumerate(sizes) for _layer in range(size)]


def plan_kv_cache(geometry: Geometry, settings: KVSettings) -> KVPlan:
    """Plan the KV cache of one rank (the fullest pipeline stage).

    Raises C(Refusal) for what is not known, C(PlanFailure) where vLLM itself gives up.
    """
    notes: list[str] = []
    recurrent, attention = geometry.recurrent, geometry.attention
    if not attention:
        raise Refusal("config", "a model without any attention layer is not known")
    stage_of = _stages(len(geometry.layers), settings.pipeline_parallel)
    owners: list[tuple[Layer, int, int]] = [
        (layer, stage, index)
        for index, (layer, stage) in enumerate(zip(geometry.layers, stage_of))
        if layer is not None
    ]
    owners += [(layer, stage_of[-1], -1) for layer in settings.draft_layers]

    def token(layer: Attention, index: int) -> int:
        skipped = str(index) in settings.skip_layers or (
            layer.kind == "sliding" and "sliding_window" in settings.skip_layers
        )
        dtype = "auto" if skipped else settings.kv_cache_dtype
        return token_bytes(layer, dtype, geometry.dtype, settings.tensor_parallel)

    block_size = settings.block_size or DEFAULT_BLOCK_SIZE
    mode, state = "none", 0
    if recurrent:
        if len(set(recurrent)) > 1:
            raise Refusal("config", "recurrent layers of different shapes are not known")
        mode = mamba_mode(recurrent[0], settings)
        state = state_bytes(recurrent[0], settings, geometry.dtype)
        first = token_bytes(attention[0], settings.kv_cache_dtype, geometry.dtype, settings.tensor_parallel)
        block_size = _hybrid_block_size(state, first, mode, recurrent[0], settings)
        padded_page = block_size * first

    specs: list[tuple[_Spec, int]] = []
    for layer, stage, index in owners:
        if isinstance(layer, Recurrent):
            # A block of state that is not checkpointed counts for the whole context: block_size 0 stands for it.
            specs.append((_Spec(layer.kind, 0 if mode == "none" else block_size, padded_page), stage))
        else:
            kind = layer.kind
            if kind in ("sliding", "chunked") and not settings.hybrid_manager:
                kind = "full"
            window = layer.window if kind != "full" else 0
            specs.append((_Spec(kind, block_size, block_size * token(layer, index), window), stage))
    if any(spec.kind == "mla" for spec, _stage in specs):
        notes.append("the block size of latent attention depends on its kernel; 16 tokens are assumed")

    if len({(spec.kind, spec.block_size, spec.window) for spec, _stage in specs}) == 1:
        # One kind of layer: one group, every layer has its own tensor.
        per_stage: dict[int, list[int]] = {}
        for spec, stage in specs:
            per_stage.setdefault(stage, []).append(spec.page)
        pages = max(per_stage.values(), key=sum)
        group = KVGroup(specs[0][0].kind, len(specs), block_size, specs[0][0].window)
        return KVPlan(
            settings, (group,), block_size, max(pages), len(pages), sum(pages), mode, state, tuple(notes), ((group, 1),)
        )

    largest = max(spec.page for spec, _stage in specs)
    buckets: dict[_Spec, list[int]] = {}
    for spec, stage in specs:
        buckets.setdefault(_unify(spec, largest, settings, notes), []).append(stage)
    smallest, biggest = min(map(len, buckets.values())), max(map(len, buckets.values()))
    # A little padding in one group is cheaper than many small groups.
    size = biggest if biggest < smallest * 1.5 else smallest
    groups: list[KVGroup] = []
    tensors = 0
    for spec, stages in buckets.items():
        count = _ceil_div(len(stages), size)
        for start in range(count):
            members = stages[start::count]
            groups.append(KVGroup(spec.kind, len(members), spec.block_size, spec.window))
            tensors = max(tensors, max(members.count(stage) for stage in set(members)))
    counted: dict[KVGroup, int] = {}
    for group in groups:
        counted[group] = counted.get(group, 0) + 1
    return KVPlan(
        settings,
        tuple(groups),
        block_size,
        largest,
        tensors,
        largest * tensors,
        mode,
        state,
        tuple(notes),
        tuple(counted.items()),
    )


def _unify(spec: _Spec, largest: int, settings: KVSettings, notes: list[str]) -> _Spec:
    """Give a layer the common page: larger blocks where that divides, else padding where the release can."""
    if spec.page == largest:
        return spec
    if largest % spec.page == 0 and spec.block_size:
        return _Spec(spec.kind, spec.block_size * (largest // spec.page), largest, spec.window)
    if settings.release.since(26 if spec.kind in ("gdn", "mamba") else 24) and spec.kind != "mla":
        note = "pages of different sizes are padded to the largest; this case was not compared with vLLM"
        if note not in notes:
            notes.append(note)
        return _Spec(spec.kind, spec.block_size, largest, spec.window)
    raise PlanFailure(
        "NotImplementedError: The page size of the layer is not divisible by the maximum page size. "
        "Cannot unify by adjusting block_size."
    )


# What vLLM prints when a check fails --------------------------------------------------------------------------------


def gib_text(size: float) -> str:
    """Format bytes as vLLM's C(format_gib) does: GiB with at most two decimals, C(4.5), C(101.72)."""
    return str(round(size / GIB, 2))


def error_no_memory(release: Release) -> str:
    """Nothing is left for the cache (C(_check_enough_kv_cache_memory))."""
    engine = "the engine"
    if release.since(22):
        engine += " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
    return (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        f"initializing {engine}. {_CONSERVING}"
    )


def error_too_long(plan: KVPlan, length: int, available: int) -> str:
    """One request of full length does not fit (C(_check_enough_kv_cache_memory))."""
    new = plan.settings.release.since(22)
    estimate = plan.largest_length(available, length)
    hint = f"Based on the available memory, the estimated maximum model length is {estimate}. " if estimate > 0 else ""
    owner = "model's" if new else "models's"
    also = " (which also controls CPU memory on the CPU backend)" if new else ""
    return (
        f"ValueError: To serve at least one request with the {owner} "
        f"max seq len ({length}), ({gib_text(plan.needed_bytes(length))} GiB KV cache is needed, which is larger than the "
        f"available KV cache memory ({gib_text(plan.checked_bytes(available))} GiB). {hint}Try increasing "
        f"`gpu_memory_utilization`{also} or decreasing `max_model_len` when initializing the engine. {_CONSERVING}"
    )


def error_auto_fit() -> str:
    """C(--max-model-len auto) and not even one token fits."""
    return (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. "
        "Try increasing `gpu_memory_utilization`."
    )


def error_align(plan: KVPlan) -> str:
    """The block of a hybrid model is larger than a batch, where the release minds (0.17 to 0.26); else empty."""
    release, batch = plan.settings.release, plan.settings.max_num_batched_tokens
    smallest = min(group.block_size for group in plan.groups)
    if plan.mamba_cache_mode != "align" or not 17 <= release.minor <= 26 or smallest <= batch:
        return ""
    return (
        f"AssertionError: In Mamba cache align mode, block_size ({smallest}) must be <= max_num_batched_tokens "
        f"({batch})."
    )


def error_mamba_blocks(max_num_seqs: int, blocks: int) -> str:
    """More requests than state blocks, with full CUDA graphs (from 0.20)."""
    return (
        f"ValueError: max_num_seqs ({max_num_seqs}) exceeds available Mamba cache blocks ({blocks}). Each decode "
        "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at "
        f"most {blocks} or increase gpu_memory_utilization."
    )
