# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One vLLM engine in the memory budget: its request, its KV cache, its host memory and the seconds of its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._common.sizes import GIB
from .._vllm.overheads import LEVELS, OVERHEADS
from .host_memory import HostBuffer, HostWeights
from .kv_plan import KVPlan
from .releases import Release

STAGES = ("arguments", "device", "load", "profile", "kv_cache", "graphs")
"""Stages of a start, the earliest first: vLLM prints the error of the first one."""
COMPARED, NOT_COMPARED, IMAGE, STATED = SOURCES = (
    "calculated (compared with vLLM)",
    "calculated (not compared)",
    "image",
    "given",
)
"""Sources of a figure: arithmetic that was or was not compared with this vLLM, the vLLM of the image, or the inventory."""
MEASURED, NARROWED = "measured here", "narrowed by a measured start"
"""Sources after measured starts: of this launch on this host, or of a launch with another length, batch or host."""


@dataclass(frozen=True)
class Engine:
    """A service whose memory can be reasoned about; sizes in bytes, overheads by level.

    plan: its KV cache; C(None) for a service that only states its memory (C(fixed)).
    weights: of the model, including C(adapters), the room for LoRA adapters. experts: of one layer.
    inside: used inside the requested memory besides weights and cache. launch_outside: used outside of it by this launch.
    runner: which of vLLM's model runners serves it, 1 or 2. repacked: its weights are quantised, so kernels reorder them.
    utilization, length, sequences: of the arguments; C(None) if absent or C(auto).
    length_auto, sequences_auto: C(auto) stands there.
    limit: the longest context that the model allows. share: weight of its growth into the free memory of the node.
    last: its place among the services that start last; 0 for all others.
    align_error, kernel_error: vLLM's error about its blocks, or empty; align_block, kernel_block: tokens of a block then.
    minors: the minor releases that an unknown version was judged by. easiest: the plan with the least memory; C(plan) is the plan
    with the most. refusing: minor and text of the releases that would refuse the launch.
    exclusive: name of the set of which one runs at a time; empty for a service that is in none.
    stated: bytes that the inventory states in place of C(plan).
    table, disk: the setting that leaves the model's tables on disk, and their bytes. buffers: its host memory outside of the
    request, by name. in_host: which of the weights are in host memory.
    weights_from, cache_from, overheads_from: source of the figures: C(SOURCES), C(MEASURED) or C(NARROWED); overheads are
    assumed if it is empty. differences: between arithmetic and image.
    """

    name: str
    overheads: dict[str, tuple[float, float, float]]
    fixed: int | None = None
    stated: int | None = None
    weights_from: str = ""
    cache_from: str = ""
    overheads_from: str = ""
    unknown: str = ""
    differences: tuple[str, ...] = ()
    plan: KVPlan | None = None
    release: Release | None = None
    weights: int = 0
    draft: int = 0
    vision: int = 0
    host: int = 0
    table: str = ""
    disk: int = 0
    adapters: int = 0
    experts: int = 0
    load_peak: int = 0
    load_layerwise: int = 0
    inside: dict[str, float] = field(default_factory=dict)
    launch_outside: dict[str, float] = field(default_factory=dict)
    buffers: tuple[HostBuffer, ...] = ()
    in_host: HostWeights = field(default_factory=HostWeights)
    runner: int = 1
    repacked: bool = False
    utilization: float | None = None
    length: int | None = None
    length_auto: bool = False
    limit: int = 0
    sequences: int | None = None
    sequences_auto: bool = False
    share: float = 1.0
    last: int = 0
    exclusive: str = ""
    pool: int | None = None
    blocks: int | None = None
    needs_state_blocks: bool = False
    align_error: str = ""
    align_block: int = 0
    kernel_error: str = ""
    kernel_block: int = 0
    minors: tuple[int, ...] = ()
    easiest: KVPlan | None = None
    refusing: tuple[tuple[int, str], ...] = ()

    def plan_at(self, level: str) -> KVPlan | None:
        """Return the plan of the cache; at low overheads of an unknown version that of the release with the least memory."""
        return self.easiest if self.easiest is not None and level == "low" else self.plan

    def overhead(self, key: str, level: str) -> float:
        """Return a term at a level, in bytes; shares are not converted."""
        value = self.overheads[key][LEVELS.index(level)]
        return value * GIB if key.endswith("_gib") else value

    def available(self, requested: int, level: str) -> int:
        """Return the bytes of the KV cache within C(requested) bytes, at a level of the overheads."""
        size = self.pool
        if size is None:
            size = int(requested - self.weights - self.draft - self.inside[level])
        if self.blocks is not None and self.plan is not None and self.plan.settings.release.since(20, 1):
            # From 0.20.1 vLLM's own checks count the blocks that are overridden, too.
            return min(size, self.blocks * self.plan.bytes_per_block)
        return size

    def outside(self, level: str) -> float:
        """Return the bytes that the engine holds outside of its request."""
        return self.overhead("outside_gib", level) + self.launch_outside.get(level, 0.0) + self.buffered(level)

    def buffered(self, level: str, at_start: bool | None = None) -> int:
        """Return the bytes of its host buffers: all of them, or only buffers that are (or are not) allocated at the start."""
        return sum(buffer.size(level) for buffer in self.buffers if at_start in (None, buffer.at_start))

    def loading(self, level: str) -> int:
        """Return the bytes of model and drafter while they load; only the low level assumes quantisation layer by layer."""
        extra = int(self.overhead("load_gib", level)) if self.repacked else 0
        if extra and self.overheads["load_gib"] == OVERHEADS["load_gib"]:  # what somebody set stays
            extra = max(extra, int(self.overhead("load_share", level) * self.experts))
        return (self.load_layerwise if level == "low" else self.load_peak) + self.draft + extra

    def cache_bytes(self, requested: int, level: str) -> int:
        """Return the bytes of the KV cache: of the overridden number of blocks, or all available bytes."""
        if self.blocks is not None and self.plan is not None:
            return self.blocks * self.plan.bytes_per_block
        return max(0, self.available(requested, level))

    def residency(self, requested: int, level: str) -> float:
        """Return the bytes that the running service holds, at a level: the least, a typical or the most.

        Memory inside the request besides weights and cache makes the cache smaller and is freed afterwards, all or in part: the more
        it was, the less is held.
        """
        if self.fixed is not None:
            return self.fixed
        kept_share, outside, cache = self.overhead("kept_share", level), self.outside(level), self.pool
        if self.blocks is not None and self.plan is not None:
            cache = self.blocks * self.plan.bytes_per_block
        if cache is not None:
            return self.weights + self.draft + cache + kept_share * self.inside[level] + outside
        opposite = LEVELS[-1 - LEVELS.index(level)]
        return max(requested, self.weights + self.draft) - (1 - kept_share) * self.inside[opposite] + outside

    def num_blocks(self, available: int, level: str = "typical") -> int:
        """Return the blocks of the cache, as overridden or as many as fit."""
        plan = self.plan_at(level)
        if plan is None:
            return 0
        return plan.num_blocks(available) if self.blocks is None else self.blocks

    def seconds(self, stage: str) -> dict[str, int]:
        """Return the seconds from the start to the checks of C(stage), one of C(STAGES)."""
        return start_seconds(self.overheads, self.weights + self.draft, stage)


def start_seconds(overheads: Mapping[str, tuple[float, float, float]], loaded: int, stage: str) -> dict[str, int]:
    """Return the seconds from the start of an engine to C(stage), with C(loaded) bytes of weights, by level."""
    seconds = {}
    for index, level in enumerate(LEVELS):
        until = {
            "arguments": overheads["arguments_seconds"][index],
            "device": overheads["device_seconds"][index],
            "load": loaded / GIB / overheads["load_gib_per_second"][-1 - index],
            "profile": overheads["profile_seconds"][index],
            "graphs": overheads["graphs_seconds"][index],
        }
        seconds[level] = round(sum(until.get(earlier, 0.0) for earlier in STAGES[: STAGES.index(stage) + 1]))
    return seconds
