# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One vLLM engine in the memory budget: its request, its KV cache, its host memory and the seconds of its start.

No I/O, no Ansible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._common.sizes import GIB
from .._vllm.overheads import LEVELS, OVERHEADS
from .host_memory import HostBuffer, HostWeights
from .kv_plan import KVPlan
from .releases import Release

COMPARED, NOT_COMPARED, IMAGE, STATED = SOURCES = (
    "arithmetic, compared",
    "arithmetic, not compared",
    "image",
    "stated",
)
"""What a figure of the plan rests on: arithmetic that gave what this very vLLM gives, or not; the vLLM of the image; a person."""
MEASURED, NARROWED = "measured here", "narrowed by a measured start"
"""The same, of a launch that was measured on this host before, and of one of which a start of another length, batch or host was."""
STAGES = ("arguments", "device", "load", "profile", "kv_cache", "graphs")


@dataclass(frozen=True)
class Engine:
    """A service whose memory can be reasoned about; sizes in bytes, overheads by level.

    plan: how its KV cache is cut; C(None) for a service that only states what it needs (C(fixed)).
    weights: of the model, with the room for LoRA adapters, which is also C(adapters). experts: those of one layer.
    inside: used inside the requested memory besides weights and cache. beside: of this launch, used beside it.
    runner: which of vLLM's model runners serves it, 1 or 2. repacked: its weights are quantised, so kernels reorder them.
    utilization, length, sequences: as given; C(None) for what was left out or C(auto).
    length_auto, sequences_auto: C(auto) stands there.
    limit: the longest context that the model allows. share: the weight by which it grows into what the node has left.
    last: its place among those that start after the others; 0 for one that does not.
    align_error, kernel_error: why vLLM refuses its blocks, empty where it does not; align_block, kernel_block: tokens of a block then.
    minors: the minor releases that an unknown version was judged by. easiest: the plan of the one that needs least, beside C(plan), of
    the one that needs most. refusing: of those that would refuse the launch, the minor and the text.
    exclusive: name of the set of which one runs at a time; empty for a service that is in none.
    stated: what a person says that the engine asks for, in place of C(plan).
    table, disk: what has the model's tables stay on disk, and how large they are there. buffers: what it keeps in host memory beside the
    request, by name. in_host: which of the weights are in host memory.
    weights_from, cache_from, overheads_from: what the figures rest on, one of C(SOURCES), or of C(MEASURED) and C(NARROWED); overheads are
    assumed where it is empty. differences: in what arithmetic and image differ.
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
    beside: dict[str, float] = field(default_factory=dict)
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
        """How the cache is cut: at low overheads by the release that needs least, where the version is not known."""
        return self.easiest if self.easiest is not None and level == "low" else self.plan

    def overhead(self, key: str, level: str) -> float:
        """A term in bytes (or a share, as it is) at a level."""
        value = self.overheads[key][LEVELS.index(level)]
        return value * GIB if key.endswith("_gib") else value

    def available(self, requested: int, level: str) -> int:
        """Memory for the KV cache when C(requested) bytes are asked for; C(level) is that of the overheads."""
        size = self.pool
        if size is None:
            size = int(requested - self.weights - self.draft - self.inside[level])
        if self.blocks is not None and self.plan is not None and self.plan.settings.release.since(20, 1):
            # From 0.20.1 vLLM's own checks count the blocks that are overridden, too.
            return min(size, self.blocks * self.plan.bytes_per_block)
        return size

    def outside(self, level: str) -> float:
        """What it holds beside the memory that it asks for."""
        return self.overhead("outside_gib", level) + self.beside.get(level, 0.0) + self.buffered(level)

    def buffered(self, level: str, at_start: bool | None = None) -> int:
        """What its named parts of host memory take, all of them or those that are (or are not) allocated at the start."""
        return sum(buffer.size(level) for buffer in self.buffers if at_start in (None, buffer.at_start))

    def loading(self, level: str) -> int:
        """What model and drafter take while they load. That each layer is quantised as it comes is believed at low alone."""
        extra = int(self.overhead("load_gib", level)) if self.repacked else 0
        if extra and self.overheads["load_gib"] == OVERHEADS["load_gib"]:  # what somebody set stays
            extra = max(extra, int(self.overhead("load_share", level) * self.experts))
        return (self.load_layerwise if level == "low" else self.load_peak) + self.draft + extra

    def cache_bytes(self, requested: int, level: str) -> int:
        """What the KV cache takes: the blocks that are overridden, or all that is available for it."""
        if self.blocks is not None and self.plan is not None:
            return self.blocks * self.plan.bytes_per_block
        return max(0, self.available(requested, level))

    def residency(self, requested: int, level: str) -> float:
        """What the service holds once it runs: the least, a typical and the most.

        What is used inside the requested memory makes the cache smaller and is then given back, all or in part: the more
        it was, the less is held.
        """
        if self.fixed is not None:
            return self.fixed
        kept_share, outside = self.overhead("kept_share", level), self.outside(level)
        if self.blocks is not None and self.plan is not None:
            return (
                self.weights
                + self.draft
                + self.blocks * self.plan.bytes_per_block
                + kept_share * self.inside[level]
                + outside
            )
        if self.pool is not None:
            return self.weights + self.draft + self.pool + kept_share * self.inside[level] + outside
        opposite = LEVELS[-1 - LEVELS.index(level)]
        return max(requested, self.weights + self.draft) - (1 - kept_share) * self.inside[opposite] + outside

    def num_blocks(self, available: int, level: str = "typical") -> int:
        """Blocks of the cache, as overridden or as many as fit."""
        plan = self.plan_at(level)
        if plan is None:
            return 0
        return plan.num_blocks(available) if self.blocks is None else self.blocks

    def seconds(self, stage: str) -> dict[str, int]:
        """Seconds into a start at which it comes to the checks of C(stage), one of C(STAGES)."""
        return start_seconds(self.overheads, self.weights + self.draft, stage)


def start_seconds(overheads: Mapping[str, tuple[float, float, float]], loaded: int, stage: str) -> dict[str, int]:
    """Seconds into the start of an engine with C(loaded) bytes of weights at which it comes to C(stage)."""
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
