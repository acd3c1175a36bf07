# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV cache planning as vLLM does it: blocks, pages, groups, and how many requests they hold.

vLLM cuts the memory that is left for the cache into blocks. A block is one page in each of a few tensors that all layers
share; a request takes a number of blocks from every group of layers. This file restates that planning for vLLM 0.15
to 0.33. It was compared row by row with the planners of all these releases (tests/oracle; C(vllm/v1/core/kv_cache_utils.py), from
0.33 C(kv_cache_planning.py), and C(vllm/platforms/interface.py)), and with launches of whole models; a table of docs/memory.md says how
often. C(Release.exact) is false for development builds and for what came after: they count as the nearest release that was compared.

Sizes are bytes, lengths are tokens, all per rank. No I/O, no Ansible.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd

from .._common.sizes import GIB
from .._vllm.versions import parse_version
from .geometry import NO_RULES, Attention, Cache, Geometry, Layer, Recurrent, Refusal
from .packed import Page, block_bytes, classed_block_bytes, pack

# The newest vLLM minor release whose planner was read; a later one is planned as this one.
NEWEST_MINOR = 33
# The first minor release with the unified-memory code of GB10 that this engine knows.
OLDEST_MINOR = 15
# The minor releases whose planner was compared row by row, and that were asked about whole models often enough, too: all so far.
COMPARED_MINORS = tuple(range(15, 34))

# Tokens of an attention block when nothing else decides (vllm/config/cache.py, all backends of sm_121).
DEFAULT_BLOCK_SIZE = 16
# 0.33: GDN with FlashInfer prefill (SM12x, CUDA 13, head_k_dim 128) needs blocks of a multiple of 64.
GDN_FLASHINFER_UNIT = 64

# STR_DTYPE_TO_TORCH_DTYPE (vllm/utils/torch_utils.py) and CacheDType (vllm/config/cache.py).
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

    text: as given. minor: the 19 of 0.19.0. exact: a release of this minor was compared. patch: the 0 of 0.19.0.
    is_newer: it came after the newest that was read and counts as that one.
    """

    text: str
    minor: int
    exact: bool
    patch: int = 0
    is_newer: bool = False

    @property
    def name(self) -> str:
        """The version as given, else C(0.MINOR)."""
        return self.text or f"0.{self.minor}"

    def since(self, minor: int, patch: int = 0) -> bool:
        """Tell whether the release is 0.C(minor).C(patch) or later."""
        return (self.minor, self.patch) >= (minor, patch)


def parse_release(text: str) -> Release:
    """Read a version (C(parse_version)) as far as memory planning tells releases apart.

    A development build counts as the release it precedes and is never exact. Raises C(Refusal) below 0.15 and for a text
    that is no version.
    """
    version = parse_version(text)
    if version is None:
        raise Refusal("vllm_version", f"{text!r} is not a vLLM version", "write it as vllm --version does, like 0.23.0")
    major, minor, patch = version.release[:3]
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
    return Release(
        text,
        min(minor, NEWEST_MINOR),
        minor in COMPARED_MINORS and version.final,
        patch,
        is_newer=minor > NEWEST_MINOR,
    )


@dataclass(frozen=True)
class KVSettings:
    """The settings of a service that decide its KV cache.

    kv_cache_dtype: resolved (never what the checkpoint would make of C(auto)); see C(KV_DTYPES).
    mamba_cache_mode: C(none), C(align) or C(all), or empty for what the release picks.
    draft_layers: the caches of the drafter.
    num_speculative_tokens: 0 without speculative decoding.
    block_size: C(--block-size), 0 when not given.
    skip_layers: C(--kv-cache-dtype-skip-layers): layer numbers, or C(sliding_window).
    v2_runner: the newer model runner serves, which keeps one more batch in flight with pipeline parallelism.
    reads_hidden_states: the drafter reads hidden states of the model (EAGLE, MTP, DFlash).
    multi_module_mtp: several MTP layers draft one token each.
    decode_context: ranks of a tensor-parallel group over which the tokens of a request are spread (C(--decode-context-parallel-size)); each
        holds every so many of them. States, and rings of a few tokens, are whole on each rank.
    """

    release: Release
    max_num_batched_tokens: int
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = True
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    num_speculative_tokens: int = 0
    draft_layers: tuple[Layer, ...] = ()
    block_size: int = 0
    mamba_cache_mode: str = ""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    skip_layers: tuple[str, ...] = ()
    hybrid_manager: bool = True
    async_scheduling: bool = True
    v2_runner: bool = True
    reads_hidden_states: bool = False
    multi_module_mtp: bool = False
    decode_context: int = 1


@dataclass(frozen=True)
class KVGroup:
    """A group of layers that share one block table.

    kind: C(full), C(sliding), C(chunked), C(mla), C(ring), or a recurrent state: C(mamba), C(gdn), C(kda), C(ple).
    layers: how many caches, each of a layer. block_size: tokens; of a ring, its rows.
    """

    kind: str
    layers: int
    block_size: int
    window: int = 0


class PlanFailure(Exception):
    """vLLM itself would refuse to plan; the text is its own.

    reason: why, one sentence without a full stop; empty where layers have no common page. fix: what the caller can do, may be empty.
    seconds: into a start at which vLLM says it, by level of overheads, once that was worked out. stage: of the start.
    """

    def __init__(
        self,
        text: str,
        reason: str = "",
        fix: str = "",
        seconds: dict[str, int] | None = None,
        stage: str = "kv_cache",
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.fix = fix
        self.seconds = seconds or {}
        self.stage = stage


@dataclass(frozen=True)
class KVPlan:
    """How the KV cache is cut, and the questions that can be asked of it.

    groups: of the whole model. group_size, bytes_per_block: of the fullest pipeline stage, which decides.
    stage_bytes_per_block: of every pipeline stage, in their order.
    """

    settings: KVSettings
    groups: tuple[KVGroup, ...]
    block_size: int
    page_size_bytes: int
    group_size: int
    bytes_per_block: int
    mamba_cache_mode: str
    state_bytes: int
    stage_bytes_per_block: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    checkpoints: bool = False
    _counted: tuple[tuple[KVGroup, int], ...] = field(default=(), repr=False)
    _group_bytes: tuple[int, ...] = ()
    _tuple_bytes: int = 0
    # Up to 0.16 with pipeline stages: bytes of a block over all stages, as the check counts it, and as blocks are counted.
    _checked_size: int = 0
    _divided_size: int = 0

    @property
    def marginal_bytes_per_token(self) -> float:
        """Bytes that one more token of context costs, once the fixed part of a request is paid."""
        whole = sum((self.bytes_per_block / group.block_size for group in self.groups if group.kind in _FULL), 0.0)
        return whole / self.settings.decode_context

    def _pages(self, length: int) -> int:
        return sum(count * self._group_blocks(group, length) for group, count in self._counted)

    def blocks_per_request(self, length: int) -> int:
        """Blocks that one request of C(length) tokens takes at most."""
        if not self._group_bytes:
            return self._pages(length)
        # Up to 0.28 vLLM counts caches of different sizes by their bytes, in blocks of the first group.
        taken = sum(self._group_blocks(group, length) * size for group, size in zip(self.groups, self._group_bytes))
        return _ceil_div(taken, self._group_bytes[0])

    def _group_blocks(self, group: KVGroup, length: int) -> int:
        settings, release = self.settings, self.settings.release
        if group.kind == "ring":
            return 1
        if group.kind in _STATE:
            drafts = settings.num_speculative_tokens
            if self.mamba_cache_mode == "all":
                return _ceil_div(length, group.block_size) + (drafts if release.since(22) else 0)
            if self.mamba_cache_mode == "none":
                return 1 + drafts
            return 2 + drafts + (1 if self.checkpoints else 0)
        if group.kind in _FULL:
            return _ceil_div(_ceil_div(length, settings.decode_context), group.block_size)
        in_flight = settings.max_num_batched_tokens
        if release.since(26):
            # Tokens of a step that is still running count, too: one batch per pipeline stage, and with async scheduling
            # one more, which the older model runner has only without stages (max_concurrent_batches).
            stages = settings.pipeline_parallel
            in_flight *= stages + (1 if settings.async_scheduling and (settings.v2_runner or stages == 1) else 0)
        if group.kind == "sliding":
            if settings.multi_module_mtp and release.since(28):
                in_flight += settings.num_speculative_tokens - 1
            return _ceil_div(min(group.window - 1 + in_flight, length), group.block_size) + 1
        return _ceil_div(min(group.window + in_flight, length), group.block_size)

    def ruled_by_batch(self, length: int) -> bool:
        """Tell whether most blocks of a request of C(length) tokens are windows, which reserve batches."""
        windows = sum(
            count * self._group_blocks(group, length) for group, count in self._counted if group.kind in _LOCAL
        )
        return 2 * windows > self._pages(length)

    def largest_batch(self, available: int, length: int) -> int:
        """The largest batch, in steps of 256 tokens below the present one, with which a request of C(length) fits; 0 for none."""
        for batch in range((self.settings.max_num_batched_tokens - 1) // 256 * 256, 0, -256):
            smaller = replace(self, settings=replace(self.settings, max_num_batched_tokens=batch))
            if smaller.needed_bytes(length) <= smaller.checked_bytes(available):
                return batch
        return 0

    def _checked_blocks(self, length: int) -> int:
        """Blocks of one request as vLLM's own check counts them: up to 0.18 those of the first group alone."""
        if self.settings.release.since(19):
            return self.blocks_per_request(length)
        return self._group_blocks(self.groups[0], length)

    def needed_bytes(self, length: int) -> int:
        """Bytes that one request of C(length) tokens needs; vLLM starts only when this fits."""
        return self._needed(length, self.bytes_per_block)

    def _needed(self, length: int, size: int) -> int:
        """Bytes that vLLM's check counts for one request, where a block is C(size) bytes."""
        return self._pages(length) * self._tuple_bytes or self._checked_blocks(length) * (self._checked_size or size)

    def checked_bytes(self, available: int) -> int:
        """Bytes that vLLM's own check compares with: from 0.29 without the null block."""
        return available - self.bytes_per_block if self.settings.release.since(29) else available

    def available_for(self, requests: int, length: int) -> int:
        """The least memory that passes the check and holds C(requests) requests of C(length) tokens."""
        blocks = self.blocks_per_request(length)
        null = self.bytes_per_block if self.settings.release.since(29) else 0
        size = self._divided_size or self.bytes_per_block
        return max(requests * blocks * size, self._needed(length, self.bytes_per_block) + null)

    def num_blocks(self, available: int) -> int:
        """Blocks that fit into C(available) bytes."""
        return max(0, available // (self._divided_size or self.bytes_per_block))

    def max_concurrency(self, blocks: int, length: int) -> float:
        """Requests of C(length) tokens that C(blocks) blocks hold at once."""
        return blocks / self.blocks_per_request(length)

    def printed_tokens(self, blocks: int, length: int, limit: int = 0) -> int:
        """The number in the line C(GPU KV cache size) of the start-up log of this release.

        limit: the length that was asked for, where C(length) was made to fit (C(auto)).
        """
        if self.settings.release.since(20, 1):
            return int(self.max_concurrency(blocks, length) * length)
        smallest = min(group.block_size or limit or length for group in self.groups)
        return blocks // len(self.groups) * smallest * self.settings.decode_context

    def largest_length(self, available: int, limit: int) -> int:
        """The longest request, at most C(limit) tokens, that passes vLLM's check; 0 when none does."""
        return self._largest(self.checked_bytes(available), self.bytes_per_block, limit)

    def _largest(self, checked: int, size: int, limit: int) -> int:
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self._needed(middle, size) <= checked:
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
    ranks = 1 if layer.kind == "ple" else settings.tensor_parallel
    groups = layer.groups
    key_dim = layer.conv_key_dim
    if groups % ranks:
        if layer.kind != "mamba" or groups != 1:
            _split(groups, ranks, "n_groups" if layer.kind == "mamba" else "key heads")
        key_dim *= ranks  # a single Mamba-2 group is copied to every rank
    channels = _split(key_dim, ranks, "convolution channels") + _split(layer.conv_value_dim, ranks, "channels")
    conv_dtype = settings.mamba_cache_dtype
    ssm_dtype = settings.mamba_ssm_cache_dtype
    if layer.kind == "gdn" and not settings.release.since(17):
        ssm_dtype = conv_dtype  # one dtype for both
    elif ssm_dtype == "auto":
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
    # Mamba-2 took no draft tokens up to 0.16.
    drafts = settings.num_speculative_tokens if layer.kind != "mamba" or settings.release.since(17) else 0
    conv = (layer.conv_kernel - 1 + drafts) * channels * sizes[0]
    return conv + _split(layer.heads, ranks, "state heads") * layer.head_dim * layer.state_dim * sizes[1]


def mamba_mode(layer: Recurrent, settings: KVSettings) -> str:
    """Return the mode of the state cache that the release ends up with: C(none), C(align) or C(all)."""
    if not settings.prefix_caching:
        return "none"
    release, asked = settings.release, settings.mamba_cache_mode
    if layer.kind != "mamba" or release.since(32) or asked == "align":
        return "align"
    # MambaModelConfig: C(all) is the default up to 0.27, but not with a drafter in 0.20 and 0.21.
    drafts = settings.num_speculative_tokens and release.since(20) and not release.since(22)
    return "all" if asked == "all" or not (release.since(28) or drafts) else "align"


def exports_checkpoints(layer: Recurrent, release: Release) -> bool:
    """Tell whether a layer takes one more block in mode C(align), for the checkpoint of a prefill.

    Mamba-2, GDN with FlashInfer's prefill, which sm_121 takes for key heads of 128, KDA with FlashKDA, and n-gram layers.
    """
    return 0 < layer.checkpoints_since <= release.minor


@dataclass(frozen=True)
class _Spec:
    """What vLLM compares when it sorts layers into groups.

    kind: of a C(KVGroup). block_size: tokens; 0 where one block holds the state of a whole request. page: bytes of a block.
    shape: heads, head sizes and dtype of an attention layer, and the size that its page is padded to, if any. window: of a
    local layer. local: the kind of a layer that is kept as if it were full attention. token: bytes of one, without padding.
    """

    kind: str
    block_size: int
    page: int
    shape: tuple[int | str, ...] = ()
    window: int = 0
    local: str = ""
    token: int = 0


# From 0.29 the window of these families does not count the token itself (vllm/model_executor/models/commandr.py).
_INCLUSIVE_WINDOW = frozenset(("cohere2",))
_FULL = frozenset(("full", "mla"))
_LOCAL = frozenset(("sliding", "chunked"))
_STATE = frozenset(("gdn", "kda", "mamba", "ple"))


def _stages(count: int, stages: int) -> list[int]:
    """Return the pipeline stage of every layer (C(vllm/distributed/utils.py), get_pp_indices)."""
    if stages > count:
        raise Refusal("args.pipeline-parallel-size", f"{count} layers cannot be divided over {stages} stages")
    sizes = [count // stages] * stages
    for index in range(2, count % stages + 2):
        sizes[-index] += 1
    return [stage for stage, size in enumerate(sizes) for _layer in range(size)]


class _Planner:
    """The block sizes and pages of one model with one set of settings."""

    def __init__(self, geometry: Geometry, settings: KVSettings) -> None:
        self.geometry, self.settings = geometry, settings
        rules = geometry.rules
        own = rules.block if settings.release.since(rules.block_since) else 0
        self.block_size = settings.block_size or own or rules.state_unit or DEFAULT_BLOCK_SIZE
        self.mode, self.state, self.state_page, self.shared_page = "none", 0, 0, 0
        self._check()
        if geometry.recurrent:
            self._hold_state()
        if settings.skip_layers and settings.release.since(25):
            self._hold_skipped()

    def _check(self) -> None:
        settings, attention = self.settings, self.geometry.attention
        if not any(isinstance(layer, (Attention, Cache)) for layer in self.geometry.layers):
            raise Refusal("config", "a model without any attention layer is not known")
        if settings.block_size % DEFAULT_BLOCK_SIZE:
            raise Refusal(
                "args.block-size",
                f"the kernels of GB10 take blocks of a multiple of {DEFAULT_BLOCK_SIZE} tokens, not {settings.block_size}",
            )
        if len({layer for layer in self.geometry.recurrent if layer.kind != "ple"}) > 1:
            raise Refusal("config", "recurrent layers of different shapes are not known")
        self._check_rules()
        if _by_token(settings.kv_cache_dtype):
            if not settings.release.since(20):
                raise Refusal("args.kv-cache-dtype", f"{settings.kv_cache_dtype} is known from vLLM 0.20 on")
            if not settings.release.since(21) and any(layer.kind in _LOCAL for layer in attention):
                raise Refusal(
                    "args.kv-cache-dtype", f"{settings.kv_cache_dtype} is not known of local attention before vLLM 0.21"
                )
            if any(layer.kind == "mla" for layer in attention):
                raise Refusal("args.kv-cache-dtype", f"{settings.kv_cache_dtype} is not for latent attention (MLA)")
        if settings.skip_layers and any(layer.kind == "mla" for layer in attention):
            raise Refusal("args.kv-cache-dtype-skip-layers", "skipping layers is not known of latent attention (MLA)")

    def _check_rules(self) -> None:
        """Refuse what is not known of a family with rules of its own, and what its releases refuse themselves."""
        settings, rules, release = self.settings, self.geometry.rules, self.settings.release
        family, dtype = self.geometry.model_type, settings.kv_cache_dtype
        if not release.since(rules.oldest):
            raise Refusal(
                "vllm_version",
                f"the family {family!r} is not known before vLLM 0.{rules.oldest}",
                "use a later version",
            )
        if rules.dtypes and dtype not in rules.dtypes:
            raise Refusal(
                "args.kv-cache-dtype",
                f"{dtype} is not known of the packed cache of this family",
                f"use {', '.join(rules.dtypes)}",
            )
        if rules.block and settings.block_size not in (0, rules.block):
            raise Refusal("args.block-size", f"the caches of this family have blocks of {rules.block}", "leave it out")
        if rules.packed and settings.pipeline_parallel > 1:
            raise Refusal("args.pipeline-parallel-size", "stages of a model whose caches share blocks are not known")
        if rules.packed and not settings.hybrid_manager:
            raise Refusal(
                "args.disable-hybrid-kv-cache-manager", "it is not known of a model whose caches share blocks"
            )
        if (rules != NO_RULES or self.geometry.beside) and settings.skip_layers:
            raise Refusal("args.kv-cache-dtype-skip-layers", "skipping layers is not known of this family")
        if family == "deepseek_v4" and dtype == "auto" and not release.since(31):
            if release.minor > 23:
                raise Refusal("args.kv-cache-dtype", f"what auto means in vLLM {release.name} is not known", "use fp8")
            raise PlanFailure(
                "AssertionError: DeepseekV4 FlashMLA fp8 layout only supports fp8 kv-cache, got auto",
                "this release keeps the cache of this model in FP8 only",
                "set kv-cache-dtype to fp8",
            )  # deepseek_v4/attention.py of 0.23
        if not release.since(rules.kernels_since):  # FLASHINFER_MLA_SPARSE_SM120 (platforms/cuda.py)
            raise PlanFailure(
                "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(use_mla=True, use_sparse=True)",
                f"before vLLM 0.{rules.kernels_since} no kernel of sparse latent attention runs on sm_121",
                f"use vLLM 0.{rules.kernels_since} or later",
            )
        if family == "qwen4_exp_text" and dtype in _FP8 and not release.since(31):
            raise PlanFailure(
                "NotImplementedError: Qwen4Exp QSA requires a BF16 main KV cache",
                "before vLLM 0.31 this model has no FP8 KV cache",
                "set kv-cache-dtype to auto, or use vLLM 0.31 or later",
            )

    def _token(self, layer: Attention, dtype: str) -> int:
        return token_bytes(layer, dtype, self.geometry.dtype, self.settings.tensor_parallel)

    def _hold_state(self) -> None:
        """Grow the attention block until its page holds a recurrent state (C(_align_hybrid_block_size))."""
        geometry, settings, rules = self.geometry, self.settings, self.geometry.rules
        layer = next(each for each in geometry.recurrent if each.kind != "ple")
        token = rules.state_token or self._token(geometry.attention[0], settings.kv_cache_dtype)
        self.mode = mamba_mode(layer, settings)
        self.state = max(state_bytes(each, settings, geometry.dtype) for each in set(geometry.recurrent))
        # Up to 0.19 a block size that is asked for is a minimum, then the unit of alignment.
        unit = self.block_size if settings.release.since(20) else DEFAULT_BLOCK_SIZE
        if self.mode == "all":
            unit = _lcm(layer.chunk_size, unit)
            needed = unit * _ceil_div(_ceil_div(self.state, token), unit)
        else:
            if layer.kind != "mamba" and self.mode == "align" and exports_checkpoints(layer, settings.release):
                unit = _lcm(unit, GDN_FLASHINFER_UNIT)
            needed = unit * _ceil_div(self.state, unit * token)
        # In mode all the states keep the block that they need, also beside a larger one of attention.
        self.state_block = needed if self.mode == "all" else 0
        self.block_size = _ceil_div(max(self.block_size, needed), rules.multiple) * rules.multiple
        self.state_page = self.block_size * token

    def _hold_skipped(self) -> None:
        """Grow the block until its page holds a few tokens of a layer that is not quantised.

        From 0.25 (C(_align_heterogeneous_kv_block_size)).
        """
        first = self.geometry.attention[0]
        quantised, plain = self._token(first, self.settings.kv_cache_dtype), self._token(first, "auto")
        if plain == quantised:
            return
        if plain < quantised:
            raise PlanFailure(
                f"AssertionError: padded-spec per-token page ({plain}B) < primary ({quantised}B); a higher-precision padded "
                "spec must not be smaller than the quantized primary."
            )
        padded = self.state_page if self.state_page != self.state else 0
        needed = max(plain * DEFAULT_BLOCK_SIZE, padded)
        self.block_size *= _ceil_div(needed, self.block_size * quantised)
        self.shared_page = self.block_size * quantised
        if padded:
            self.state_page = self.shared_page

    def spec(self, layer: Layer, index: int) -> _Spec:
        """Describe layer number C(index) as its class does (C(get_kv_cache_spec))."""
        settings, release = self.settings, self.settings.release
        if isinstance(layer, Recurrent):
            # A block of state that is not checkpointed counts for the whole context: block_size 0 stands for it.
            block = 0 if self.mode == "none" else self.state_block or self.block_size
            # All states are padded to the page that holds the largest, unless that one fills it.
            padded = layer.kind != "ple" or self.state_page != self.state
            page = self.state_page if padded else state_bytes(layer, settings, self.geometry.dtype)
            return _Spec(layer.kind, block, page)
        if isinstance(layer, Cache):
            return self._cache(layer)
        skipped = str(index) in settings.skip_layers or (
            layer.kind == "sliding" and "sliding_window" in settings.skip_layers
        )
        ignored = not release.since(self.geometry.rules.fp8_since) and settings.kv_cache_dtype in _FP8
        dtype = "auto" if skipped or ignored else settings.kv_cache_dtype
        token, block = self._token(layer, dtype), self.block_size
        window = 0 if layer.kind in _FULL else layer.window
        if self.geometry.model_type in _INCLUSIVE_WINDOW and window and release.since(29):
            window += 1
        shape = (
            max(1, layer.kv_heads // settings.tensor_parallel),
            layer.head_dim,
            layer.head_dim_v,
            self.geometry.dtype if dtype == "auto" else dtype,
        )
        if layer.kind != "sliding" or not release.since(25):
            return _Spec(layer.kind, block, block * token, shape, window, token=token)
        # From 0.25 a window has a block size of its own: the largest of the kernel whose page fits.
        page = self.shared_page or token * block
        if not release.since(30) and not (self.shared_page and dtype == "nvfp4"):
            block = DEFAULT_BLOCK_SIZE
        elif dtype == "nvfp4":
            block = next((size for size in (64, 32) if size * token <= page), DEFAULT_BLOCK_SIZE)
        else:
            block = max(DEFAULT_BLOCK_SIZE, page // token // DEFAULT_BLOCK_SIZE * DEFAULT_BLOCK_SIZE)
        if self.shared_page:
            return _Spec("sliding", block, page, (*shape, page), window, token=token)
        return _Spec("sliding", block, block * token, shape, window, token=token)

    def _cache(self, cache: Cache) -> _Spec:
        """Describe a cache whose rows have a size of their own."""
        row = cache.row * (max(1, cache.heads // self.settings.tensor_parallel) if cache.heads else 1)
        if cache.ring is not None:
            counts = self.settings.release.since(cache.ring.drafts_since)
            rows = cache.ring.rows(self.settings.num_speculative_tokens if counts else 0)
            if cache.ring.divides and self.block_size % rows:
                raise PlanFailure(
                    f"AssertionError: {cache.ring.divides.format(rows=rows, block=self.block_size)}",
                    f"with {self.settings.num_speculative_tokens} draft tokens a ring holds {rows} rows, and the attention block of "
                    f"{self.block_size} tokens must be a multiple of that",
                    "change num_speculative_tokens of speculative-config",
                )
            return _Spec("ring", rows, rows * row)
        block = cache.block or self.block_size
        page = _ceil_div(block // cache.tokens_per_row * row, cache.align) * cache.align
        return _Spec(cache.kind, block, page, (cache.row, cache.tokens_per_row), cache.window, token=row)


def _padding(spec: _Spec) -> int:
    """Return the size that the page of a layer is padded to, 0 when it is not."""
    return int(spec.shape[4]) if len(spec.shape) > 4 else 0


def _by_token(dtype: str) -> bool:
    """Tell whether a dtype of the cache keeps scales beside every token."""
    return dtype in _PER_TOKEN_HEAD or dtype == "nvfp4"


def _merges(specs: list[_Spec]) -> bool:
    """Tell whether all layers have one spec (C(is_kv_cache_spec_uniform))."""
    first = specs[0]
    if first.kind != "full":
        return all(spec == first for spec in specs)
    if any(spec.kind != "full" for spec in specs):
        return False
    windows, chunks = ({spec.window for spec in specs if spec.local == kind} for kind in ("sliding", "chunked"))
    if len(windows) > 1 or len(chunks) > 1:
        raise PlanFailure("ValueError: All attention layers in the same KV cache group must have the same window size.")
    same = {(spec.block_size, spec.page, spec.shape) for spec in specs}
    return len(same) == 1 and not (windows and chunks)


def _one_type(specs: list[_Spec]) -> bool:
    """Tell whether all layers need the same number of blocks (C(UniformTypeKVCacheSpecs.is_uniform_type))."""
    first = specs[0]
    if len({spec.block_size for spec in specs}) > 1:
        return False
    if first.kind in _FULL:
        return all(spec.kind in _FULL for spec in specs)
    return all(spec.kind == first.kind and spec.window == first.window for spec in specs)


def _promote(specs: list[_Spec], release: Release) -> list[_Spec]:
    """Keep local layers as if they were full attention (C(unify_hybrid_kv_cache_specs))."""
    if _merges(specs) or _one_type(specs):
        return specs
    blocks = {spec.block_size for spec in specs if spec.kind in _FULL}
    if blocks:
        promoted = []
        for spec in specs:
            if spec.kind in _LOCAL:
                block = blocks.copy().pop() if len(blocks) == 1 and release.since(27) else spec.block_size
                page = max(_padding(spec), spec.token * block)
                spec = _Spec("full", block, page, spec.shape, spec.window, spec.kind, spec.token)
            promoted.append(spec)
        specs = promoted
    if _merges(specs) or _one_type(specs):
        return specs
    if release.since(27):
        raise PlanFailure("ValueError: Failed to promote local KV cache specs to one unified type.")
    raise PlanFailure(
        "ValueError: Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type."
    )


def _unify(spec: _Spec, largest: int, name: str, release: Release) -> _Spec:
    """Give a layer the common page: larger blocks where that divides, else padding where the release can.

    name: of the layer in vLLM's text, there with the names of the modules around it.
    """
    if spec.page == largest:
        return spec
    if spec.kind in _STATE:
        if release.since(26):
            return replace(spec, page=largest)
        # A state does not grow with its block, which only an assertion without words notices.
        if largest % spec.page == 0:
            raise PlanFailure("AssertionError: ")
    elif largest % spec.page == 0:
        block = spec.block_size * (largest // spec.page)
        if _padding(spec):
            raise PlanFailure("AssertionError: ")  # a page that is padded does not grow
        return replace(spec, block_size=block, page=largest)
    elif release.since(24) and spec.kind != "mla":
        return replace(spec, page=largest, shape=(*spec.shape[:4], largest))
    if not release.since(24):
        raise PlanFailure(
            "NotImplementedError: The page size of the layer is not divisible by the maximum page size. "
            "Cannot unify by adjusting block_size."
        )
    only = "non-MLA attention layers."
    if not release.since(29):
        only = (
            "attention layers whose backend indexes KV pages by the block stride (indexes_kv_by_block_stride is True)."
        )
    raise PlanFailure(
        f"NotImplementedError: Layer {name}: page size is not divisible by the maximum page size and cannot be padded. "
        f"Padding is only supported for {only}"
    )


def _promoted_beside_latent(specs: list[_Spec], release: Release) -> list[_Spec] | None:
    """Keep windows beside latent attention as full attention, where pages cannot be made one (from 0.27)."""
    kinds = {spec.kind for spec in specs}
    if not release.since(27) or not {"mla", "sliding"} <= kinds or "chunked" in kinds:
        return None
    try:
        promoted = _promote(specs, release)
    except PlanFailure:
        return None
    return promoted if _one_type(promoted) else None


@dataclass(frozen=True)
class _Cut:
    """How the caches of a model are grouped. page, size: bytes of a page and caches of the largest group, of the stage
    whose block is largest. blocks: bytes of a block of every stage. group_bytes, tuple_bytes: bytes of each group, and what
    vLLM's check counts for a block, where it counts packed caches by their bytes (up to 0.28). whole: bytes of a block over all
    stages, where the check counts these (up to 0.16). uniform: layers of one kind with pages of several sizes."""

    groups: list[KVGroup]
    page: int
    size: int
    blocks: list[int]
    group_bytes: tuple[int, ...] = ()
    tuple_bytes: int = 0
    whole: int = 0
    uniform: bool = False


def _specs(planner: _Planner) -> tuple[list[_Spec], list[str], list[int]]:
    """Describe all caches, with their names in vLLM's texts and their pipeline stages."""
    geometry, settings = planner.geometry, planner.settings
    stage_of = _stages(len(geometry.layers), settings.pipeline_parallel)
    specs: list[_Spec] = []
    names: list[str] = []
    stages: list[int] = []
    for index, layer in geometry.caches():
        specs.append(planner.spec(layer, index))
        names.append(f"layers.{index}")
        stages.append(stage_of[index])
    for index, draft in enumerate(settings.draft_layers, len(geometry.layers)):
        specs.append(planner.spec(draft, index))
        names.append(f"draft.{index - len(geometry.layers)}")
        stages.append(settings.pipeline_parallel - 1)
    if len(set(stages)) < settings.pipeline_parallel:
        raise Refusal("args.pipeline-parallel-size", "a stage without any layer that keeps a cache is not known")
    return specs, names, stages


def _without_hybrid_manager(specs: list[_Spec], geometry: Geometry, settings: KVSettings) -> list[_Spec]:
    """Keep local layers as full attention where vLLM does so, for the whole model."""
    if settings.hybrid_manager and not (
        # Chunked attention and a drafter that reads hidden states: all layers are kept as full attention.
        settings.reads_hidden_states and any(layer.kind == "chunked" for layer in geometry.attention)
    ):
        return specs
    if (
        any(spec.kind == "chunked" for spec in specs)
        and _by_token(settings.kv_cache_dtype)
        and not settings.release.since(28)
    ):
        raise Refusal(
            "args.kv-cache-dtype",
            f"{settings.kv_cache_dtype} is not known of chunked attention that is kept as full attention before 0.28",
        )
    return _promote(specs, settings.release)


def _packed_cut(specs: list[_Spec], geometry: Geometry, settings: KVSettings) -> _Cut:
    """Group caches whose pages differ and share a block as they are."""
    release = settings.release
    pages = [
        Page(
            ("full" if spec.kind in _FULL else spec.kind, spec.block_size, spec.window),
            spec.page,
            state=spec.kind in _STATE or spec.kind == "ring",
            window=spec.kind == "sliding",
        )
        for spec in specs
    ]
    members = pack(pages, older=not release.since(32))
    group_bytes: tuple[int, ...] = ()
    tuple_bytes = 0
    if release.since(29):
        size = block_bytes(pages, members, geometry.rules.stride if release.since(32) else 1)
    else:
        # The caches of all tokens come first, and give the sizes of the pages.
        members.sort(key=lambda group: specs[group[0]].kind not in _FULL)
        size, tuple_bytes, group_bytes = classed_block_bytes(pages, members)
        if not release.since(23):  # up to there it has tensors of all sizes as often as the check counts them
            size = tuple_bytes
    groups = [
        KVGroup(specs[group[0]].kind, len(group), specs[group[0]].block_size, specs[group[0]].window)
        for group in members
    ]
    return _Cut(groups, max(page.size for page in pages), max(map(len, members)), [size], group_bytes, tuple_bytes)


def _even_cut(specs: list[_Spec], names: list[str], stages: list[int], settings: KVSettings) -> _Cut:
    """Group caches that all need the same blocks, or whose pages can be made one size."""
    release = settings.release
    one_group = _merges(specs) or _one_type(specs)
    if any(0 < _padding(spec) < spec.token * spec.block_size and not spec.local for spec in specs):
        raise PlanFailure("AssertionError: ")  # a layer that is not quantised does not fit into the page
    if not one_group:
        largest = max(spec.page for spec in specs)
        try:
            specs = [_unify(spec, largest, name, release) for name, spec in zip(names, specs)]
        except PlanFailure:
            promoted = _promoted_beside_latent(specs, release)
            if promoted is None:
                raise
            specs, one_group = promoted, True
    if one_group:
        # One kind of layer: one group, every layer has its own tensor.
        pages = [0] * settings.pipeline_parallel
        for spec, stage in zip(specs, stages):
            pages[stage] += spec.page
        group = KVGroup(specs[0].kind, len(specs), specs[0].block_size, specs[0].window)
        cut = _Cut([group], max(spec.page for spec in specs), stages.count(pages.index(max(pages))), pages)
        return replace(cut, whole=0 if release.since(17) else sum(pages), uniform=not _merges(specs))
    groups, sizes = _groups(specs, stages, settings)
    whole = 0 if release.since(17) else largest * max(group.layers for group in groups)
    return _Cut(groups, largest, max(sizes), [largest * each for each in sizes], whole=whole)


def plan_kv_cache(geometry: Geometry, settings: KVSettings) -> KVPlan:
    """Plan the KV cache of every rank.

    Raises C(Refusal) for what is not known, C(PlanFailure) where vLLM itself gives up.
    """
    planner = _Planner(geometry, settings)
    _refuse_drafts(geometry, settings, planner.mode)
    specs, names, stages = _specs(planner)
    specs = _without_hybrid_manager(specs, geometry, settings)
    packed = geometry.rules.packed
    cut = _packed_cut(specs, geometry, settings) if packed else _even_cut(specs, names, stages, settings)
    _refuse_context(cut.groups, settings)
    counted: dict[KVGroup, int] = {}
    for group in cut.groups:
        counted[group] = counted.get(group, 0) + 1
    return KVPlan(
        settings=settings,
        groups=tuple(cut.groups),
        block_size=planner.block_size,
        page_size_bytes=cut.page,
        group_size=cut.size,
        bytes_per_block=max(cut.blocks),
        mamba_cache_mode=planner.mode,
        state_bytes=planner.state,
        stage_bytes_per_block=tuple(cut.blocks),
        notes=_notes(geometry, settings),
        checkpoints=bool(geometry.recurrent) and exports_checkpoints(geometry.recurrent[0], settings.release),
        _counted=tuple(counted.items()),
        _group_bytes=cut.group_bytes,
        _tuple_bytes=cut.tuple_bytes,
        _checked_size=cut.whole,
        _divided_size=cut.whole if cut.uniform else 0,
    )


def _refuse_drafts(geometry: Geometry, settings: KVSettings, mode: str) -> None:
    """Raise what vLLM up to 0.16 says to a drafter beside a recurrent state (C(MambaModelConfig), C(MambaBase))."""
    if settings.release.since(17) or not geometry.recurrent or not settings.num_speculative_tokens:
        return
    if mode == "align":
        raise PlanFailure(
            "AssertionError: Mamba cache mode 'align' is currently not compatible with speculative decoding.",
            "before vLLM 0.17 a hybrid model cannot draft tokens while it caches prefixes",
            "use vLLM 0.17 or later, or leave out speculative-config or enable-prefix-caching",
        )
    if geometry.recurrent[0].kind != "gdn":
        raise PlanFailure(
            "NotImplementedError: Mamba with speculative decoding is not supported yet.",
            "before vLLM 0.17 a model with Mamba-2 layers cannot draft tokens",
            "use vLLM 0.17 or later, or leave out speculative-config",
        )


def _refuse_context(groups: list[KVGroup], settings: KVSettings) -> None:
    """Raise what vLLM says to caches that it cannot spread over the ranks of a decode context.

    Windows by their spec (C(SlidingWindowSpec.max_memory_usage_bytes)); several groups up to 0.25 as such, since then those of chunks
    (C(resolve_kv_cache_block_sizes), C(HybridKVCacheCoordinator)).
    """
    release, kinds = settings.release, {group.kind for group in groups}
    if settings.decode_context == 1:
        return
    reason = f"vLLM {release.name} cannot spread the caches of this model over the ranks of a decode context"
    fix = "leave out decode-context-parallel-size"
    if "sliding" in kinds:
        raise PlanFailure("AssertionError: DCP not support sliding window.", reason, fix)
    if ("chunked" in kinds and len(groups) == 1) or ("ring" in kinds and not release.since(32)):
        raise Refusal("args.decode-context-parallel-size", "what it does to this kind of cache is not known")
    if len(groups) == 1:
        return
    if not release.since(20):
        raise PlanFailure("AssertionError: DCP not support hybrid attn now.", reason, fix)
    if not release.since(26):
        raise PlanFailure(
            "ValueError: Hybrid KV cache groups with multiple block sizes do not support context parallelism "
            "(dcp_world_size/pcp_world_size > 1).",
            reason,
            fix,
        )
    if "chunked" in kinds:
        only = (
            "full-attention, Mamba, and replicated draft groups"
            if release.since(32)
            else "full-attention and Mamba groups"
        )
        raise PlanFailure(
            f"AssertionError: DCP with hybrid KV cache layouts only supports {only}, got: ChunkedLocalAttentionSpec.",
            reason,
            fix,
        )


def _groups(specs: list[_Spec], stages: list[int], settings: KVSettings) -> tuple[list[KVGroup], list[int]]:
    """Sort layers with one page into groups (C(_get_kv_cache_groups_uniform_page_size)).

    Returns the groups of the whole model, and for every pipeline stage the layers of its largest group.
    """
    buckets: dict[_Spec, list[int]] = {}
    for spec, stage in zip(specs, stages):
        buckets.setdefault(spec, []).append(stage)
    smallest, biggest = min(map(len, buckets.values())), max(map(len, buckets.values()))
    # A little padding in one group is cheaper than many small groups: up to half (a quarter up to 0.17).
    size = biggest if biggest < smallest * (1.5 if settings.release.since(18) else 1.25) else smallest
    groups: list[KVGroup] = []
    sizes = [0] * settings.pipeline_parallel
    for spec, members in buckets.items():
        count = _ceil_div(len(members), size)
        for start in range(count):
            group = members[start::count]
            groups.append(KVGroup(spec.kind, len(group), spec.block_size, spec.window))
            sizes = [max(size_of, group.count(stage)) for stage, size_of in enumerate(sizes)]
    return groups, sizes


def _notes(geometry: Geometry, settings: KVSettings) -> tuple[str, ...]:
    """Say what of a plan was not compared with vLLM."""
    notes = []
    if settings.skip_layers and len({(layer.kv_heads, layer.head_dim) for layer in geometry.attention}) > 1:
        notes.append("kv-cache-dtype-skip-layers with heads of different sizes was not compared with vLLM")
    if geometry.recurrent and len({(layer.kind, layer.head_dim) for layer in geometry.attention}) > 1:
        notes.append("a recurrent state beside attention layers of different kinds was not compared with vLLM")
    return tuple(notes)


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


def error_too_long(plan: KVPlan, length: int, available: int, override: int = 0) -> str:
    """One request of full length does not fit (C(_check_enough_kv_cache_memory)).

    The pipeline stages are checked in their order; the first that fails speaks. Empty when none does.
    override: C(--num-gpu-blocks-override), which from 0.20.1 decides instead of C(available).
    """
    release = plan.settings.release
    for size in plan.stage_bytes_per_block:
        if override and release.since(20, 1):
            available = override * size
        checked = available - size if release.since(29) else available
        if checked <= 0:
            return error_no_memory(release)
        needed = plan._needed(length, size)
        if needed <= checked:
            continue
        estimate = plan._largest(checked, size, length)
        hint = (
            f"Based on the available memory, the estimated maximum model length is {estimate}. " if estimate > 0 else ""
        )
        owner = "model's" if release.since(22) else "models's"
        also = " (which also controls CPU memory on the CPU backend)" if release.since(22) else ""
        return (
            f"ValueError: To serve at least one request with the {owner} max seq len ({length}), "
            f"({gib_text(needed)} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({gib_text(checked)} GiB). {hint}Try increasing `gpu_memory_utilization`{also} or decreasing `max_model_len` "
            f"when initializing the engine. {_CONSERVING}"
        )
    return ""


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


def error_kernel_block(geometry: Geometry, settings: KVSettings) -> str:
    """Sparse layers whose kernels take blocks of one size alone, and the release goes by those of the other layers; else empty.

    vLLM plans its cache and stops when it allocates it (C(vllm/v1/worker/utils.py), select_common_block_size).
    """
    release, rules = settings.release, geometry.rules
    block = settings.block_size or DEFAULT_BLOCK_SIZE
    if release.since(rules.block_since) or not rules.block or block % rules.block == 0:
        return ""
    return f"ValueError: No common block size for {block}. "


def error_mamba_blocks(max_num_seqs: int, blocks: int) -> str:
    """More requests than state blocks, with full CUDA graphs (from 0.20)."""
    return (
        f"ValueError: max_num_seqs ({max_num_seqs}) exceeds available Mamba cache blocks ({blocks}). Each decode "
        "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at "
        f"most {blocks} or increase gpu_memory_utilization."
    )
