# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How vLLM cuts a KV cache into blocks, for the kinds of models that the stand-in plays: full attention, full and sliding
attention (Gemma 4), Gated DeltaNet and full attention (Qwen3-Next, Qwen3.6).

Written from vLLM's code (vllm/v1/core/kv_cache_utils.py) apart from the collection's engine, so that the two can be
compared: the plan of a simulated service is right when the stand-in prints it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

UNIT = 16


def up(value: int, unit: int) -> int:
    return -(-value // unit)


@dataclass
class Cache:
    """Blocks of one size for all kinds of layers: C(block) tokens of full attention, C(page) bytes in each of C(layers)."""

    block: int
    page: int
    layers: int
    groups: int
    sliding_groups: int = 0
    sliding_block: int = UNIT
    window: int = 0
    state_groups: int = 0
    state_blocks: int = 0
    batch: int = 0

    @property
    def block_bytes(self) -> int:
        return self.page * self.layers

    def blocks_of_request(self, length: int) -> int:
        full = self.groups - self.sliding_groups - self.state_groups
        blocks = full * up(length, self.block) + self.state_groups * self.state_blocks
        if self.sliding_groups:
            seen = min(self.window - 1 + self.batch, length)
            blocks += self.sliding_groups * (up(seen, self.sliding_block) + 1)
        return blocks

    def concurrency(self, blocks: int, length: int) -> float:
        return blocks / self.blocks_of_request(length)

    def printed_tokens(self, blocks: int, length: int, version: str) -> int:
        if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < (0, 20, 1):
            return blocks // self.groups * min(self.block, self.sliding_block if self.sliding_groups else self.block)
        return int(self.concurrency(blocks, length) * length)

    def longest(self, blocks: int, limit: int) -> int:
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_of_request(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def plan(text: dict[str, Any], values: dict[str, Any], drafts: int, mtp_layers: int, version: tuple[int, int]) -> Cache:
    """Plan the cache of a model by its (text) config; C(values) are the options of the command line."""
    width = 1 if str(values.get("kv_cache_dtype") or "auto").startswith("fp8") else 2
    layers = int(text.get("num_hidden_layers") or 1)
    kinds = list(text.get("layer_types") or [])
    if not kinds and text.get("full_attention_interval"):
        every = int(text["full_attention_interval"])
        kinds = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    kinds = kinds or ["full_attention"] * layers
    full = kinds.count("full_attention") + mtp_layers
    sliding, states = kinds.count("sliding_attention"), kinds.count("linear_attention")
    heads, size = int(text.get("num_key_value_heads") or 1), int(text.get("head_dim") or 64)
    wide_heads, wide = int(text.get("num_global_key_value_heads") or heads), int(text.get("global_head_dim") or size)
    per_token = 2 * wide_heads * wide * width
    batch = int(values.get("max_num_batched_tokens") or 2048)
    if not sliding and not states:
        return Cache(UNIT, UNIT * per_token, full, 1)
    few, many = min(full, sliding or states), max(full, sliding or states)
    in_group = many if many < 1.5 * few else few
    groups, of_full = up(few, in_group) + up(many, in_group), up(full, in_group)
    if sliding:
        other = 2 * heads * size * width
        page = UNIT * max(per_token, other)
        return Cache(page // per_token, page, in_group, groups, groups - of_full, page // other,
                     int(text.get("sliding_window") or 0), batch=batch)  # fmt: skip
    convolution = int(text.get("linear_conv_kernel_dim") or 4) - 1 + drafts
    keys, values_ = int(text["linear_num_key_heads"]), int(text["linear_num_value_heads"])
    key_size, value_size = int(text["linear_key_head_dim"]), int(text["linear_value_head_dim"])
    precise = 4 if text.get("mamba_ssm_dtype") == "float32" else 2
    state = convolution * (2 * keys * key_size + values_ * value_size) * 2 + values_ * value_size * key_size * precise
    block = UNIT * up(state, UNIT * per_token)
    aligned = values.get("enable_prefix_caching")
    if aligned is None:
        aligned = version >= (0, 26)
    return Cache(block, block * per_token, in_group, groups, state_groups=groups - of_full,
                 state_blocks=(2 if aligned else 1) + drafts)  # fmt: skip
