# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of each cache of a model: bytes of a token or of a state, block sizes, and what the release refuses.

Sizes are bytes per rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from .geometry import Geometry
from .kv_plan import FULL_KINDS, LOCAL_KINDS, KVSettings, PlanFailure, ceil_div
from .layers import NO_RULES, Attention, Cache, Layer, Recurrent, Refusal
from .releases import Release

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


def _divide(value: int, ranks: int, key: str) -> int:
    if value % ranks:
        raise Refusal("args.tensor-parallel-size", f"{key} = {value} cannot be divided over {ranks} ranks")
    return value // ranks


def token_bytes(layer: Attention, dtype: str, model_dtype: str, tensor_parallel: int) -> int:
    """Return the bytes that one token takes in one attention layer of one rank.

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
    """Return the bytes of the recurrent state of one request in one layer of one rank."""
    ranks = 1 if layer.kind == "ple" else settings.tensor_parallel
    groups = layer.groups
    key_dim = layer.conv_key_dim
    if groups % ranks:
        if layer.kind != "mamba" or groups != 1:
            _divide(groups, ranks, "n_groups" if layer.kind == "mamba" else "key heads")
        key_dim *= ranks  # a single Mamba-2 group is copied to every rank
    channels = _divide(key_dim, ranks, "convolution channels") + _divide(layer.conv_value_dim, ranks, "channels")
    conv_size = _dtype_size("mamba-cache-dtype", settings.mamba_cache_dtype, model_dtype)
    state_size = _dtype_size("mamba-ssm-cache-dtype", _state_dtype(layer, settings), model_dtype)
    # Mamba-2 took no draft tokens up to 0.16.
    drafts = settings.num_speculative_tokens if layer.kind != "mamba" or settings.release.since(17) else 0
    conv = (layer.conv_kernel - 1 + drafts) * channels * conv_size
    return conv + _divide(layer.heads, ranks, "state heads") * layer.head_dim * layer.state_dim * state_size


def _state_dtype(layer: Recurrent, settings: KVSettings) -> str:
    """Return the dtype of a recurrent state: of the options, else of the config, else the default of the release."""
    if layer.kind == "gdn" and not settings.release.since(17):
        return settings.mamba_cache_dtype  # one dtype for both
    if settings.mamba_ssm_cache_dtype != "auto":
        return settings.mamba_ssm_cache_dtype
    if layer.ssm_dtype:
        return layer.ssm_dtype
    if layer.kind != "mamba":
        return settings.mamba_cache_dtype
    # NemotronH without the field: float16 up to 0.19, float32 from 0.20.
    return "float32" if settings.release.since(20) else "float16"


def _dtype_size(key: str, dtype: str, model_dtype: str) -> int:
    """Return the bytes of an element of a state. key: the option that sets its dtype."""
    name = model_dtype if dtype == "auto" else dtype
    if name not in _DTYPE_BYTES:
        raise Refusal(f"args.{key}", f"dtype {dtype!r} is not known", "use auto, float16, bfloat16 or float32")
    return _DTYPE_BYTES[name]


def mamba_mode(layer: Recurrent, settings: KVSettings) -> str:
    """Return the mode of the state cache that the release ends up with: C(none), C(align) or C(all)."""
    if not settings.prefix_caching:
        return "none"
    release, requested = settings.release, settings.mamba_cache_mode
    if layer.kind != "mamba" or release.since(32) or requested == "align":
        return "align"
    # MambaModelConfig: C(all) is the default up to 0.27, but not with a drafter in 0.20 and 0.21.
    drafts = settings.num_speculative_tokens and release.since(20) and not release.since(22)
    return "all" if requested == "all" or not (release.since(28) or drafts) else "align"


def exports_checkpoints(layer: Recurrent, release: Release) -> bool:
    """Tell whether a layer takes one more block in mode C(align), for the checkpoint of a prefill.

    Mamba-2, GDN with FlashInfer's prefill, which sm_121 takes for key heads of 128, KDA with FlashKDA, and n-gram layers.
    """
    return 0 < layer.checkpoints_since <= release.minor


@dataclass(frozen=True)
class Spec:
    """The properties of a layer that decide its group in vLLM.

    kind: of a C(KVGroup). block_size: tokens; 0 if one block holds the state of a whole request. page: bytes of a block.
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


class Planner:
    """The block sizes and pages of one model with one set of settings."""

    def __init__(self, geometry: Geometry, settings: KVSettings) -> None:
        self.geometry, self.settings = geometry, settings
        rules = geometry.rules
        family_block = rules.block if settings.release.since(rules.block_since) else 0
        self.block_size = settings.block_size or family_block or rules.state_unit or DEFAULT_BLOCK_SIZE
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
        self._check_kernels()
        kinds, dtype, release = {layer.kind for layer in attention}, settings.kv_cache_dtype, settings.release
        if has_token_scales(dtype):
            if not release.since(20):
                raise Refusal("args.kv-cache-dtype", f"{dtype} is known from vLLM 0.20 on")
            if not release.since(21) and kinds & LOCAL_KINDS:
                raise Refusal("args.kv-cache-dtype", f"{dtype} is not known of local attention before vLLM 0.21")
            if "mla" in kinds:
                raise Refusal("args.kv-cache-dtype", f"{dtype} is not for latent attention (MLA)")
        if settings.skip_layers and "mla" in kinds:
            raise Refusal("args.kv-cache-dtype-skip-layers", "skipping layers is not known of latent attention (MLA)")

    def _check_rules(self) -> None:
        """Refuse settings that are unknown for a family with its own rules."""
        settings, rules, release = self.settings, self.geometry.rules, self.settings.release
        if not release.since(rules.oldest):
            raise Refusal(
                "vllm_version",
                f"the family {self.geometry.model_type!r} is not known before vLLM 0.{rules.oldest}",
                "use a later version",
            )
        if rules.dtypes and settings.kv_cache_dtype not in rules.dtypes:
            raise Refusal(
                "args.kv-cache-dtype",
                f"{settings.kv_cache_dtype} is not known of the packed cache of this family",
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
        if (rules != NO_RULES or self.geometry.further_caches) and settings.skip_layers:
            raise Refusal("args.kv-cache-dtype-skip-layers", "skipping layers is not known of this family")

    def _check_kernels(self) -> None:
        """Raise the error of a release that has no kernel for the caches."""
        rules, release = self.geometry.rules, self.settings.release
        family, dtype = self.geometry.model_type, self.settings.kv_cache_dtype
        if family == "deepseek_v4" and dtype == "auto" and not release.since(31):
            if release.minor > 23:
                raise Refusal(
                    "args.kv-cache-dtype", f"the meaning of auto in vLLM {release.name} is not known", "use fp8"
                )
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
        layer = next(recurrent for recurrent in geometry.recurrent if recurrent.kind != "ple")
        token = rules.state_token or self._token(geometry.attention[0], settings.kv_cache_dtype)
        self.mode = mamba_mode(layer, settings)
        self.state = max(state_bytes(recurrent, settings, geometry.dtype) for recurrent in set(geometry.recurrent))
        # Up to 0.19 a block size that is asked for is a minimum, then the unit of alignment.
        unit = self.block_size if settings.release.since(20) else DEFAULT_BLOCK_SIZE
        if self.mode == "all":
            unit = lcm(layer.chunk_size, unit)
            needed = unit * ceil_div(ceil_div(self.state, token), unit)
        else:
            if layer.kind != "mamba" and self.mode == "align" and exports_checkpoints(layer, settings.release):
                unit = lcm(unit, GDN_FLASHINFER_UNIT)
            needed = unit * ceil_div(self.state, unit * token)
        # In mode all the states keep their own block size even if the block of attention is larger.
        self.state_block = needed if self.mode == "all" else 0
        self.block_size = ceil_div(max(self.block_size, needed), rules.multiple) * rules.multiple
        self.state_page = self.block_size * token

    def _hold_skipped(self) -> None:
        """Grow the block until a page holds a few tokens of a layer that is not quantised (0.25, C(_align_heterogeneous_kv_block_size))."""
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
        self.block_size *= ceil_div(needed, self.block_size * quantised)
        self.shared_page = self.block_size * quantised
        if padded:
            self.state_page = self.shared_page

    def spec(self, layer: Layer, index: int) -> Spec:
        """Describe layer number C(index) as its class does (C(get_kv_cache_spec))."""
        if isinstance(layer, Recurrent):
            return self._state(layer)
        if isinstance(layer, Cache):
            return self._cache(layer)
        dtype, block, release = self._dtype_of(layer, index), self.block_size, self.settings.release
        token = self._token(layer, dtype)
        shape = (
            max(1, layer.kv_heads // self.settings.tensor_parallel),
            layer.head_dim,
            layer.head_dim_v,
            self.geometry.dtype if dtype == "auto" else dtype,
        )
        window = 0 if layer.kind in FULL_KINDS else layer.window
        if window and self.geometry.model_type in _INCLUSIVE_WINDOW and release.since(29):
            window += 1
        if layer.kind != "sliding" or not release.since(25):
            return Spec(layer.kind, block, block * token, shape, window, token=token)
        # From 0.25 a window has its own block size: the largest of the kernel whose page fits.
        page = self.shared_page or token * block
        block = self._window_block(dtype, token, page)
        if self.shared_page:
            return Spec("sliding", block, page, (*shape, page), window, token=token)
        return Spec("sliding", block, block * token, shape, window, token=token)

    def _state(self, layer: Recurrent) -> Spec:
        # A block of state that is not checkpointed counts for the whole context: block_size 0 stands for it.
        block = 0 if self.mode == "none" else self.state_block or self.block_size
        # All states are padded to the page that holds the largest, unless that one fills it.
        padded = layer.kind != "ple" or self.state_page != self.state
        page = self.state_page if padded else state_bytes(layer, self.settings, self.geometry.dtype)
        return Spec(layer.kind, block, page)

    def _dtype_of(self, layer: Attention, index: int) -> str:
        """Return the dtype of the cache of a layer; C(auto) for the dtype of the model."""
        settings, dtype = self.settings, self.settings.kv_cache_dtype
        is_skipped = str(index) in settings.skip_layers or (
            layer.kind == "sliding" and "sliding_window" in settings.skip_layers
        )
        is_ignored = dtype in _FP8 and not settings.release.since(self.geometry.rules.fp8_since)
        return "auto" if is_skipped or is_ignored else dtype

    def _window_block(self, dtype: str, token: int, page: int) -> int:
        """Return the block size of a sliding window, in tokens. token, page: bytes."""
        if not self.settings.release.since(30) and not (self.shared_page and dtype == "nvfp4"):
            return DEFAULT_BLOCK_SIZE
        if dtype == "nvfp4":
            return next((size for size in (64, 32) if size * token <= page), DEFAULT_BLOCK_SIZE)
        return max(DEFAULT_BLOCK_SIZE, page // token // DEFAULT_BLOCK_SIZE * DEFAULT_BLOCK_SIZE)

    def _cache(self, cache: Cache) -> Spec:
        """Describe a cache with rows of a fixed size."""
        row = cache.row * (max(1, cache.heads // self.settings.tensor_parallel) if cache.heads else 1)
        if cache.ring is not None:
            counts = self.settings.release.since(cache.ring.drafts_since)
            rows = cache.ring.rows(self.settings.num_speculative_tokens if counts else 0)
            if cache.ring.divides and self.block_size % rows:
                raise PlanFailure(
                    f"AssertionError: {cache.ring.divides.format(rows=rows, block=self.block_size)}",
                    f"with {self.settings.num_speculative_tokens} draft tokens a ring has {rows} rows, and the attention block of "
                    f"{self.block_size} tokens must be a multiple of that",
                    "change num_speculative_tokens of speculative-config",
                )
            return Spec("ring", rows, rows * row)
        block = cache.block or self.block_size
        page = ceil_div(block // cache.tokens_per_row * row, cache.align) * cache.align
        return Spec(cache.kind, block, page, (cache.row, cache.tokens_per_row), cache.window, token=row)


def padded_page(spec: Spec) -> int:
    """Return the size that the page of a layer is padded to, 0 when it is not."""
    return int(spec.shape[4]) if len(spec.shape) > 4 else 0


def has_token_scales(dtype: str) -> bool:
    """Tell whether a dtype of the cache stores scales with every token."""
    return dtype in _PER_TOKEN_HEAD or dtype == "nvfp4"
