# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A planned KV cache: its blocks, the blocks and bytes of a request, and the longest request that fits.

Sizes are bytes, lengths are tokens, all per rank.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from .layers import Layer
from .releases import Release


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

    reason: one sentence without a full stop; empty if layers have no common page. fix: an action of the caller, may be empty.
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
    """A planned KV cache: its groups and blocks, and the memory of requests in it.

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
    _group_bytes: tuple[int, ...] = ()
    _tuple_bytes: int = 0
    # Up to 0.16 with pipeline stages: bytes of a block over all stages, as the check counts it, and as blocks are counted.
    _checked_size: int = 0
    _divided_size: int = 0

    @cached_property
    def _counted(self) -> list[tuple[KVGroup, int]]:
        """The groups, each once, with their number."""
        return list(Counter(self.groups).items())

    @property
    def marginal_bytes_per_token(self) -> float:
        """Bytes that one more token of context costs, once the fixed part of a request is paid."""
        bytes_per_token = sum(
            (self.bytes_per_block / group.block_size for group in self.groups if group.kind in FULL_KINDS), 0.0
        )
        return bytes_per_token / self.settings.decode_context + self._state_bytes_per_token

    @property
    def _state_bytes_per_token(self) -> float:
        """Bytes of states per token: in mode C(all) every block of tokens keeps its own state, whole on each rank."""
        sizes = (group.block_size for group in self.groups if group.kind in STATE_KINDS)
        return sum((self.bytes_per_block / size for size in sizes if self.mamba_cache_mode == "all"), 0.0)

    def _pages(self, length: int) -> int:
        return sum(count * self._group_blocks(group, length) for group, count in self._counted)

    def blocks_per_request(self, length: int) -> int:
        """Return the blocks that one request of C(length) tokens takes at most."""
        if not self._group_bytes:
            return self._pages(length)
        # Up to 0.28 vLLM counts caches of different sizes by their bytes, in blocks of the first group.
        size_of_request = sum(
            self._group_blocks(group, length) * size for group, size in zip(self.groups, self._group_bytes)
        )
        return ceil_div(size_of_request, self._group_bytes[0])

    def _group_blocks(self, group: KVGroup, length: int) -> int:
        settings, release = self.settings, self.settings.release
        if group.kind == "ring":
            return 1
        if group.kind in STATE_KINDS:
            drafts = settings.num_speculative_tokens
            if self.mamba_cache_mode == "all":
                return ceil_div(length, group.block_size) + (drafts if release.since(22) else 0)
            if self.mamba_cache_mode == "none":
                return 1 + drafts
            return 2 + drafts + (1 if self.checkpoints else 0)
        if group.kind in FULL_KINDS:
            return ceil_div(ceil_div(length, settings.decode_context), group.block_size)
        in_flight = settings.max_num_batched_tokens
        if release.since(26):
            # Tokens of a step that is still running count, too: one batch per pipeline stage, and with async scheduling
            # one more, which the older model runner has only without stages (max_concurrent_batches).
            stages = settings.pipeline_parallel
            in_flight *= stages + (1 if settings.async_scheduling and (settings.v2_runner or stages == 1) else 0)
        if group.kind == "sliding":
            if settings.multi_module_mtp and release.since(28):
                in_flight += settings.num_speculative_tokens - 1
            return ceil_div(min(group.window - 1 + in_flight, length), group.block_size) + 1
        return ceil_div(min(group.window + in_flight, length), group.block_size)

    def ruled_by_batch(self, length: int) -> bool:
        """Tell whether most blocks of a request of C(length) tokens are windows, which reserve batches."""
        windows = sum(
            count * self._group_blocks(group, length) for group, count in self._counted if group.kind in LOCAL_KINDS
        )
        return 2 * windows > self._pages(length)

    def largest_batch(self, available: int, length: int) -> int:
        """Return the largest batch, in steps of 256 tokens below the present one, with which a request of C(length) fits; 0 for none."""
        for batch in range((self.settings.max_num_batched_tokens - 1) // 256 * 256, 0, -256):
            smaller = replace(self, settings=replace(self.settings, max_num_batched_tokens=batch))
            if smaller.needed_bytes(length) <= smaller.checked_bytes(available):
                return batch
        return 0

    def needed_bytes(self, length: int) -> int:
        """Return the bytes that one request of C(length) tokens needs; vLLM starts only when this fits."""
        return self.bytes_in_check(length, self.bytes_per_block)

    def bytes_in_check(self, length: int, size: int) -> int:
        """Return the bytes that vLLM's check counts for one request, where a block is C(size) bytes."""
        counts_all = self.settings.release.since(19)  # up to 0.18 only blocks of the first group
        blocks = self.blocks_per_request(length) if counts_all else self._group_blocks(self.groups[0], length)
        return self._pages(length) * self._tuple_bytes or blocks * (self._checked_size or size)

    def checked_bytes(self, available: int) -> int:
        """Return the bytes that vLLM's own check compares with: from 0.29 without the null block."""
        return available - self.bytes_per_block if self.settings.release.since(29) else available

    def available_for(self, requests: int, length: int) -> int:
        """Return the least memory that passes the check and holds C(requests) requests of C(length) tokens."""
        blocks = self.blocks_per_request(length)
        null = self.bytes_per_block if self.settings.release.since(29) else 0
        size = self._divided_size or self.bytes_per_block
        return max(requests * blocks * size, self.bytes_in_check(length, self.bytes_per_block) + null)

    def num_blocks(self, available: int) -> int:
        """Return the blocks that fit into C(available) bytes."""
        return max(0, available // (self._divided_size or self.bytes_per_block))

    def max_concurrency(self, blocks: int, length: int) -> float:
        """Return the number of requests of C(length) tokens that C(blocks) blocks hold at once."""
        return blocks / self.blocks_per_request(length)

    def printed_tokens(self, blocks: int, length: int, limit: int = 0) -> int:
        """Return the number in the line C(GPU KV cache size) of the start-up log of this release.

        limit: the length that was asked for, where C(length) was made to fit (C(auto)).
        """
        if self.settings.release.since(20, 1):
            return int(self.max_concurrency(blocks, length) * length)
        smallest = min(group.block_size or limit or length for group in self.groups)
        return blocks // len(self.groups) * smallest * self.settings.decode_context

    def largest_length(self, available: int, limit: int) -> int:
        """Return the longest request, at most C(limit) tokens, that passes vLLM's check; 0 when none does."""
        return self.longest_in_check(self.checked_bytes(available), self.bytes_per_block, limit)

    def longest_in_check(self, checked: int, size: int, limit: int) -> int:
        """Return the longest request, at most C(limit) tokens, within C(checked) bytes of vLLM's check; 0 if none. size: bytes of a block."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_in_check(middle, size) <= checked:
                low = middle
            else:
                high = middle - 1
        return low


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


FULL_KINDS = frozenset(("full", "mla"))
LOCAL_KINDS = frozenset(("sliding", "chunked"))
STATE_KINDS = frozenset(("gdn", "kda", "mamba", "ple"))
