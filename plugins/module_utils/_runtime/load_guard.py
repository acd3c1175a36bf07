# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load guard: steps against low free memory while a service loads. Decisions; no I/O. C(_addons/guard.py) has its settings.

Reading weights fills the page cache, and on GB10 the driver allocates from C(MemFree): the cache that could be given back
does not count. So caches are dropped whenever C(MemFree) is below a floor, from the start of the container to the first
answer. Memory that is free in small pieces only is of no use to the driver either, so the kernel is asked to compact it.

Dropping memory that does not become free is no help and costs the disk twice, so the guard waits longer after each drop that gave
little. It sets nothing: both files that it writes are commands to the kernel, and there is nothing to restore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .hostmem import GIB, PAGE_BYTES, bytes_in_blocks

MIB = 2**20

LITTLE_SHARE = 0.05
"""A drop that gave back less than this share of the floor was of no use."""
LONGEST_PAUSE = 60.0
"""Seconds between two drops when none is of use."""
LARGE_BLOCK = 2 * MIB
"""The size of one allocation of the driver."""
COMPACT_PAUSE = 15.0
"""Seconds between two compactions: each costs a core a moment."""

DROP, COMPACT = "drop", "compact"


@dataclass(frozen=True)
class Settings:
    """What the guard goes by. floor_gib: of C(MemFree), below which caches are dropped. interval_seconds: between two looks."""

    floor_gib: float = 8.0
    interval_seconds: float = 1.0


def from_service(service: Mapping[str, Any]) -> Settings | None:
    """Return the key C(load_guard) of a service's settings; C(None) if off, missing or invalid."""
    content = service.get("load_guard")
    if not isinstance(content, Mapping) or content.get("enabled") is not True:
        return None
    settings = Settings(*(content.get(field.name, field.default) for field in fields(Settings)))
    right = _is_positive(settings.floor_gib) and _is_positive(settings.interval_seconds)
    return settings if right else None


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class Sample:
    """Memory of the host at one moment, in bytes; C(large) is the free memory in blocks that the driver can use."""

    free: int
    cache: int
    large: int | None = None


def sample(meminfo: Mapping[str, int], buddyinfo: str) -> Sample:
    """Return the memory of the host. meminfo: KiB by name; buddyinfo: the text of C(/proc/buddyinfo)."""
    cache = max(meminfo.get("Cached", 0) + meminfo.get("Buffers", 0) - meminfo.get("Shmem", 0), 0) * 1024
    large = bytes_in_blocks(buddyinfo, PAGE_BYTES, LARGE_BLOCK)
    return Sample(meminfo.get("MemFree", 0) * 1024, cache, large)


class Guard:
    """Decides, look by look, on the next steps, and counts them.

    contiguous_floor_gib: memory is compacted while blocks of C(LARGE_BLOCK) have less free memory; None for an eighth of the floor.
    """

    def __init__(self, settings: Settings, now: float, contiguous_floor_gib: float | None = None) -> None:
        self.floor = int(settings.floor_gib * GIB)
        self.large_floor = self.floor // 8 if contiguous_floor_gib is None else int(contiguous_floor_gib * GIB)
        self.shortest = settings.interval_seconds
        self.began = self.ended = now
        self.drops = self.compactions = self.looks = self.below = self.given_back = 0
        self.lowest: int | None = None
        self.errors: list[str] = []
        self._pause = settings.interval_seconds
        self._next_drop = self._next_compaction = now

    def decide(self, now: float, look: Sample) -> list[str]:
        """Return the steps after one look, in order."""
        self.looks += 1
        self.ended = now
        self.lowest = look.free if self.lowest is None else min(self.lowest, look.free)
        todo = []
        short = look.free < self.floor
        self.below += short
        if not short:
            self._pause = self.shortest  # the cause of useless drops is over
        # Less cache than a useful drop gives back is left alone.
        if short and now >= self._next_drop and look.cache >= LITTLE_SHARE * self.floor:
            todo.append(DROP)
        enough = look.free >= self.floor / 16
        scattered = look.large is not None and look.large < self.large_floor and look.free > 2 * look.large and enough
        if scattered and now >= self._next_compaction:
            todo.append(COMPACT)
        return todo

    def dropped(self, now: float, given_back: int) -> None:
        """Note a drop of caches and what it gave back, bytes."""
        self.ended = now
        self.drops += 1
        self.given_back += max(given_back, 0)
        useful = given_back >= LITTLE_SHARE * self.floor
        self._pause = self.shortest if useful else min(self._pause * 2, max(LONGEST_PAUSE, self.shortest))
        # A hair early rather than a whole interval late: looks come once an interval.
        self._next_drop = now + self._pause - self.shortest / 2

    def compacted(self, now: float) -> None:
        """Note a compaction."""
        self.ended = now
        self.compactions += 1
        self._next_compaction = now + COMPACT_PAUSE

    def failed(self, now: float, action: str, text: str) -> bool:
        """Note that the kernel refused an action, C(DROP), C(COMPACT) or another; it is not asked again. Returns whether the text is new."""
        if action == DROP:
            self._next_drop = math.inf
        elif action == COMPACT:
            self._next_compaction = math.inf
        self.ended = now
        if text in self.errors:
            return False
        self.errors.append(text)
        return True

    @property
    def acted(self) -> bool:
        """Whether it did anything at all."""
        return bool(self.drops or self.compactions)

    def account(self) -> dict[str, Any]:
        """Return what it did, for the record of the start."""
        return {
            "drops": self.drops,
            "given_back_mib": self.given_back // MIB,
            "compactions": self.compactions,
            "lowest_free_gib": None if self.lowest is None else round(self.lowest / GIB, 2),
            "floor_gib": round(self.floor / GIB, 2),
            "seconds": round(self.ended - self.began, 1),
            "looks": self.looks,
            "looks_below": self.below,
            "errors": self.errors,
        }

    def text(self) -> str:
        """Say what it did in one line."""
        lowest = "never read" if self.lowest is None else f"{self.lowest / GIB:.2f} GiB"
        did = f"dropped caches {times(self.drops)}, {self.given_back // MIB} MiB given back"
        if self.compactions:
            did += f", compacted memory {times(self.compactions)}"
        if not self.acted:
            did = "had nothing to do" if not self.below else "had nothing to give back"
        return (
            f"{did}; lowest MemFree {lowest} (floor {self.floor / GIB:g} GiB, below it in {self.below} of {self.looks} "
            f"checks) in {self.ended - self.began:.0f} s"
        )


def times(count: int) -> str:
    """Write a count as people say it."""
    return {0: "not once", 1: "once", 2: "twice"}.get(count, f"{count} times")
