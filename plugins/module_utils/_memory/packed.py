# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sorting caches with pages of different sizes into groups that share a block unchanged.

Where every kernel of a model takes a block-outermost layout, vLLM makes no page larger to match another
(C(_get_packed_kv_cache_groups) of vllm/v1/core/kv_cache_planning.py in 0.33.0, the same in kv_cache_utils.py of 0.32.0): a
block is as large as the widest group. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One cache of one layer. bucket: caches with an equal one need the same blocks.

    state: it holds a state or a ring. window: it holds the last tokens only.
    """

    bucket: Hashable
    size: int
    state: bool = False
    window: bool = False


def approximate_divisor(values: Sequence[int], least: int) -> int:
    """Return the divisor of at least C(least) that pads C(values) least, the larger one of two (C(_approximate_gcd))."""
    return min(
        range(least, max(*values, least) + 1), key=lambda divisor: (sum(-value % divisor for value in values), -divisor)
    )


class _Bucket:
    """Caches that need the same blocks, by the size of their pages."""

    def __init__(self, pages: Sequence[Page], members: list[int]) -> None:
        self.members = members
        self.first = pages[members[0]]
        self.sizes: dict[int, list[int]] = {}
        for member in members:
            self.sizes.setdefault(pages[member].size, []).append(member)
        counts = [len(same_size) for same_size in self.sizes.values()]
        self.repeats = max(counts)
        self.balanced = len(set(counts)) == 1

    def widest(self, groups: int) -> int:
        """Return the bytes of the largest of the groups that the bucket is split into."""
        return sum(-(-len(members) // groups) * size for size, members in self.sizes.items())

    def is_state(self, repeats: int) -> bool:
        """Tell whether the bucket fills blocks that others have sized: states, and windows if no bucket mixes sizes."""
        return self.first.state or (not repeats and self.first.window)

    def count_repeats(self, repeats: int) -> int:
        """Return the groups of a bucket that is split down to C(repeats) repeats; 0 splits none."""
        return -(-self.repeats // repeats) if repeats and self.balanced else 1

    def count_groups(self, repeats: int) -> int:
        """Return the most groups that the bucket is split into."""
        return len(self.members) if self.is_state(repeats) else self.count_repeats(repeats)

    def split(self, groups: int) -> list[list[int]]:
        """Split the bucket, every group with pages of all sizes."""
        if groups == 1:
            return [self.members]
        repeats = list(zip(*self.sizes.values()))
        return [[member for repeat in repeats[start::groups] for member in repeat] for start in range(groups)]


def pack(pages: Sequence[Page], older: bool = False) -> list[list[int]]:
    """Return the groups, each a list of positions in C(pages).

    older: states are split as up to 0.31, into groups of as many layers as the attention has.
    """
    members: dict[Hashable, list[int]] = {}
    for position, page in enumerate(pages):
        members.setdefault(page.bucket, []).append(position)
    buckets = [_Bucket(pages, bucket) for bucket in members.values()]
    least, repeats = _count_repeats(buckets, older)
    # The states fill a block without making it wider.
    anchor = max(bucket.widest(bucket.count_groups(repeats)) for bucket in buckets)
    groups: list[list[int]] = []
    for bucket in buckets:
        count = bucket.count_repeats(repeats)
        if bucket.is_state(repeats):
            fitting = least if older and least else max(anchor // bucket.first.size, 1)
            count = max(1 if older else count, -(-len(bucket.members) // fitting))
        groups += bucket.split(count)
    return groups


def _count_repeats(buckets: Sequence[_Bucket], older: bool) -> tuple[int, int]:
    """Return the most repeats of a bucket that mixes sizes in equal numbers, and the repeats that others are split down to.

    Such a bucket stays whole. Both are 0 without such a bucket.
    """
    least = max((bucket.repeats for bucket in buckets if bucket.balanced and len(bucket.sizes) > 1), default=0)
    balanced = [bucket.repeats for bucket in buckets if bucket.balanced and not (older and bucket.first.state)]
    return least, approximate_divisor(balanced, least) if least else 0


def block_bytes(pages: Sequence[Page], groups: Sequence[Sequence[int]], stride: int) -> int:
    """Return the bytes of a block: the widest group, rounded up to C(stride)."""
    widest = max(sum(pages[member].size for member in group) for group in groups)
    return -(-widest // stride) * stride


def classed_block_bytes(pages: Sequence[Page], groups: Sequence[Sequence[int]]) -> tuple[int, int, tuple[int, ...]]:
    """Return the bytes of a block up to 0.28, which has tensors for every size of a page of C(groups[0]).

    Other pages are as large as the next size. Also the bytes that vLLM's check counts for a block, which has all sizes as
    often as the commonest one of all groups, and the bytes of every group (kv_cache_utils.py of 0.23.0).
    """
    classes = sorted({pages[member].size for member in groups[0]})
    counts: list[dict[int, int]] = []
    for group in groups:
        count_by_size = dict.fromkeys(classes, 0)
        for member in group:
            count_by_size[next(size for size in classes if size >= pages[member].size)] += 1
        counts.append(count_by_size)
    most = {size: max(count_by_size[size] for count_by_size in counts) for size in classes}
    return (
        sum(size * count for size, count in most.items()),
        sum(classes) * max(most.values()),
        tuple(sum(size * count for size, count in count_by_size.items()) for count_by_size in counts),
    )
