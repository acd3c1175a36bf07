# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The caches of a model's layers, read from C(config.json).

The families that need no more than one cache per layer are in C(geometry.py), those with several in C(families.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

Config = dict[str, Any]

# No model has more layers; a config that says so is refused before anything is counted.
MAX_LAYERS = 1024


class Refusal(Exception):
    """A question that this engine does not answer, because any answer would be a guess.

    key: the field or argument it is about, for example C(config.layer_types[3]).
    reason: why there is no answer, one sentence without a full stop.
    fix: an action of the caller, may be empty.
    """

    def __init__(self, key: str, reason: str, fix: str = "") -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True)
class Attention:
    """One attention layer, sizes of the whole model (before tensor parallelism).

    kind: C(full), C(sliding), C(chunked) or C(mla).
    kv_heads: key/value heads; 1 for MLA.
    head_dim, head_dim_v: size of a key and of a value head; for MLA the latent vector and 0.
    window: tokens that a sliding or chunked layer looks back at, else 0.
    """

    kind: str
    kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int = 0


@dataclass(frozen=True)
class Recurrent:
    """One layer with a recurrent state, sizes of the whole model (before tensor parallelism).

    kind: C(gdn) (Gated DeltaNet), C(kda) (Kimi Delta Attention), C(mamba) (Mamba-2), or C(ple) (the convolution of an n-gram
    layer, which every rank keeps whole).
    conv_kernel: taps of the short convolution; its state holds one less.
    conv_key_dim: channels of the convolution that are grouped: q and k of a GDN layer, B and C of a Mamba-2 layer.
    conv_value_dim: the other channels of the convolution.
    groups: groups of a Mamba-2 layer, key heads of a GDN layer.
    heads, head_dim, state_dim: shape of the recurrent state.
    chunk_size: tokens of one chunk of the Mamba-2 scan, 0 for GDN.
    ssm_dtype: what the config asks for, C(float32), C(bfloat16), C(float16), or empty when it says nothing.
    checkpoints_since: the minor release from which its kernel stores a checkpoint inside of a prefill, 0 for never.
    """

    kind: str
    conv_kernel: int
    conv_key_dim: int
    conv_value_dim: int
    groups: int
    heads: int
    head_dim: int
    state_dim: int
    chunk_size: int = 0
    ssm_dtype: str = ""
    checkpoints_since: int = 0


@dataclass(frozen=True)
class Cache:
    """A cache in addition to keys and values or instead of them, with rows of a fixed size.

    kind: C(mla) (every token, or one row for several), C(sliding) (the last tokens) or C(ring) (a few rows, the same for
    any length).
    row: bytes of a row. heads: key/value heads with such a row each, which tensor parallelism divides; 0 for one row
    that it does not divide.
    tokens_per_row: tokens that share a row. align: bytes that a page is rounded up to.
    block: tokens of a block, 0 for the block of the model's attention. window: tokens that a sliding cache looks back at.
    ring: how many rows a ring has, C(None) for the other kinds.
    """

    kind: str
    row: int
    heads: int = 0
    tokens_per_row: int = 1
    align: int = 1
    block: int = 0
    window: int = 0
    ring: Ring | None = None


@dataclass(frozen=True)
class Ring:
    """Rows of a ring: those kept between steps and one for each draft token, in whole units.

    doubles: the number of units is a power of two. least: rows that it has in any case.
    drafts_since: the minor release from which the draft tokens count.
    divides: vLLM's error if the rows do not divide the attention block, with C({rows}) and C({block}); empty if they need not.
    """

    base_rows: int
    unit: int = 1
    doubles: bool = False
    least: int = 1
    drafts_since: int = 0
    divides: str = ""

    def rows(self, drafts: int) -> int:
        """Return the rows with C(drafts) draft tokens."""
        units = -(-(self.base_rows + drafts) // self.unit)
        return max(self.least, self.unit * (1 << (units - 1).bit_length() if self.doubles else units))


Layer = Union[Attention, Recurrent, Cache]


@dataclass(frozen=True)
class Rules:
    """Rules of a family for its KV cache, in addition to the shapes of its layers.

    packed: pages of different sizes share a block unchanged (a block-outermost layout, kv_cache_planning.py).
    block: tokens of an attention block, 0 for the default of the kernels. block_since: the first minor release with this block.
    dtypes: allowed values of C(--kv-cache-dtype), empty for any.
    state_unit: tokens by which a block grows until it holds a state, 0 for the default. state_token: bytes of a token
    in that block, 0 for a token of the attention. multiple: the block is rounded up to a multiple of these tokens.
    stride: bytes that a block of all layers is a multiple of, from 0.32 on.
    oldest: the minor release from which it is known. kernels_since: the one from which sparse latent attention runs on sm_121.
    fp8_since: the one from which an FP8 cache is smaller than one of 16 bits.
    """

    packed: bool = False
    block: int = 0
    block_since: int = 0
    dtypes: tuple[str, ...] = ()
    state_unit: int = 0
    state_token: int = 0
    multiple: int = 1
    stride: int = 1
    oldest: int = 0
    kernels_since: int = 0
    fp8_since: int = 0


NO_RULES = Rules()


def text_config(config: Config) -> Config:
    """Return the part of C(config) that describes the language model (C(text_config), C(llm_config), or itself)."""
    for key in ("text_config", "llm_config", "language_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            return inner
    return config


def number(text: Config, key: str, default: int | None = None, minimum: int = 1, maximum: int = 1 << 40) -> int:
    """Read a whole number; a null or absent field takes C(default), and is refused without one."""
    value = text.get(key)
    if value is None:
        if default is None:
            raise Refusal(f"config.{key}", "the field is missing", "give the whole config.json of the model")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise Refusal(f"config.{key}", f"expected a whole number of {minimum} to {maximum}, got {value!r}")
    return value


def stages_of_layers(count: int, stages: int) -> list[int]:
    """Return the pipeline stage of each of C(count) layers (vllm/distributed/utils.py, get_pp_indices)."""
    sizes = [count // stages] * stages
    for index in range(count % stages):
        sizes[-2 - index] += 1
    return [stage for stage, size in enumerate(sizes) for _layer in range(size)]


def plain_attention(text: Config, kind: str) -> Attention:
    heads = number(text, "num_attention_heads")
    head_dim = number(text, "head_dim", 0, minimum=0) or number(text, "hidden_size") // heads
    if head_dim < 1:
        raise Refusal("config.num_attention_heads", f"{heads} heads do not fit into hidden_size {text['hidden_size']}")
    kv_heads = number(text, "num_key_value_heads", heads)
    window = 0
    if kind == "sliding":
        window = number(text, "sliding_window")
    elif kind == "chunked":
        window = number(text, "attention_chunk_size")
    elif kind == "full" and text.get("global_head_dim") is not None:
        # Gemma 4: global layers have their own head size, and with attention_k_eq_v their own number of heads. Keys and
        # values are both kept, then too.
        head_dim = number(text, "global_head_dim")
        if text.get("attention_k_eq_v") is not False:
            kv_heads = number(text, "num_global_key_value_heads", kv_heads)
    return Attention(kind, kv_heads, head_dim, head_dim, window)


def gated_delta_net(text: Config) -> Recurrent:
    key_heads = number(text, "linear_num_key_heads")
    value_heads = number(text, "linear_num_value_heads")
    key_dim = number(text, "linear_key_head_dim")
    value_dim = number(text, "linear_value_head_dim")
    return Recurrent(
        kind="gdn",
        conv_kernel=number(text, "linear_conv_kernel_dim"),
        conv_key_dim=2 * key_heads * key_dim,
        conv_value_dim=value_heads * value_dim,
        groups=key_heads,
        heads=value_heads,
        head_dim=value_dim,
        state_dim=key_dim,
        ssm_dtype=str(text.get("mamba_ssm_dtype") or ""),
        checkpoints_since=33 if key_dim == 128 else 0,  # FlashInfer's prefill takes key heads of 128
    )
