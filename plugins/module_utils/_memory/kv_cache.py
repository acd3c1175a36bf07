# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Grouping the caches of a model into blocks, as vLLM does it.

vLLM cuts the memory of the cache into blocks. A block is one page in each of a few tensors that all layers share; a request takes a
number of blocks from every group of layers. This package restates that planning for vLLM 0.15 to 0.33. It was compared row by row with
the planners of all these releases (tests/oracle; C(vllm/v1/core/kv_cache_utils.py), from 0.33 C(kv_cache_planning.py), and
C(vllm/platforms/interface.py)), and with launches of whole models; a table of tests/oracle/memory_tables.md gives the numbers. C(Release.exact) is
false for development builds and for later releases: they count as the nearest release that was compared.

Sizes are bytes, lengths are tokens, all per rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from .geometry import Geometry
from .kv_plan import FULL_KINDS, LOCAL_KINDS, STATE_KINDS, KVGroup, KVPlan, KVSettings, PlanFailure, ceil_div
from .kv_specs import Planner, Spec, exports_checkpoints, has_token_scales, padded_page
from .layers import Refusal, stages_of_layers
from .releases import Release


def _is_uniform(specs: list[Spec]) -> bool:
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


def _needs_same_blocks(specs: list[Spec]) -> bool:
    """Tell whether all layers need the same number of blocks (C(UniformTypeKVCacheSpecs.is_uniform_type))."""
    first = specs[0]
    if len({spec.block_size for spec in specs}) > 1:
        return False
    if first.kind in FULL_KINDS:
        return all(spec.kind in FULL_KINDS for spec in specs)
    return all(spec.kind == first.kind and spec.window == first.window for spec in specs)


def _promote_local(specs: list[Spec], release: Release) -> list[Spec]:
    """Keep local layers as if they were full attention (C(unify_hybrid_kv_cache_specs))."""
    if _is_uniform(specs) or _needs_same_blocks(specs):
        return specs
    blocks = {spec.block_size for spec in specs if spec.kind in FULL_KINDS}
    if blocks:
        promoted = []
        for spec in specs:
            if spec.kind in LOCAL_KINDS:
                block = next(iter(blocks)) if len(blocks) == 1 and release.since(27) else spec.block_size
                page = max(padded_page(spec), spec.token * block)
                spec = Spec("full", block, page, spec.shape, spec.window, spec.kind, spec.token)
            promoted.append(spec)
        specs = promoted
    if _is_uniform(specs) or _needs_same_blocks(specs):
        return specs
    if release.since(27):
        raise PlanFailure("ValueError: Failed to promote local KV cache specs to one unified type.")
    raise PlanFailure(
        "ValueError: Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type."
    )


def _unify_page(spec: Spec, largest: int, name: str, release: Release) -> Spec:
    """Give a layer the common page: by larger blocks if the sizes divide, else by padding if the release supports it.

    name: of the layer in vLLM's text, there with the names of the modules around it.
    """
    if spec.page == largest:
        return spec
    if spec.kind in STATE_KINDS:
        if release.since(26):
            return replace(spec, page=largest)
        # A state does not grow with its block, which only an assertion without words notices.
        if largest % spec.page == 0:
            raise PlanFailure("AssertionError: ")
    elif largest % spec.page == 0:
        block = spec.block_size * (largest // spec.page)
        if padded_page(spec):
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


def _describe_caches(planner: Planner) -> tuple[list[Spec], list[str], list[int]]:
    """Describe all caches, with their names in vLLM's texts and their pipeline stages."""
    geometry, settings = planner.geometry, planner.settings
    count = len(geometry.layers)
    if settings.pipeline_parallel > count:
        reason = f"{count} layers cannot be divided over {settings.pipeline_parallel} stages"
        raise Refusal("args.pipeline-parallel-size", reason)
    stage_of = stages_of_layers(count, settings.pipeline_parallel)
    specs: list[Spec] = []
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


def _promote_without_hybrid(specs: list[Spec], geometry: Geometry, settings: KVSettings) -> list[Spec]:
    """Keep local layers as full attention where vLLM does so, for the whole model."""
    if settings.hybrid_manager and not (
        # Chunked attention and a drafter that reads hidden states: all layers are kept as full attention.
        settings.reads_hidden_states and any(layer.kind == "chunked" for layer in geometry.attention)
    ):
        return specs
    if (
        any(spec.kind == "chunked" for spec in specs)
        and has_token_scales(settings.kv_cache_dtype)
        and not settings.release.since(28)
    ):
        raise Refusal(
            "args.kv-cache-dtype",
            f"{settings.kv_cache_dtype} is not known of chunked attention that is kept as full attention before 0.28",
        )
    return _promote_local(specs, settings.release)


def _cut_packed(plan: KVPlan, specs: list[Spec], stride: int) -> KVPlan:
    """Group caches with pages of different sizes that share a block unchanged. stride: see C(Rules)."""
    release = plan.settings.release
    members = pack(specs, older=not release.since(32))
    group_bytes: tuple[int, ...] = ()
    tuple_bytes = 0
    if release.since(29):
        size = block_bytes(specs, members, stride if release.since(32) else 1)
    else:
        # The caches of all tokens come first, and give the sizes of the pages.
        members.sort(key=lambda group: specs[group[0]].kind not in FULL_KINDS)
        size, tuple_bytes, group_bytes = classed_block_bytes(specs, members)
        if not release.since(23):  # up to there it has tensors of all sizes as often as the check counts them
            size = tuple_bytes
    first = [(specs[group[0]], len(group)) for group in members]
    return replace(
        plan,
        groups=tuple(KVGroup(spec.kind, layers, spec.block_size, spec.window) for spec, layers in first),
        page_size_bytes=max(spec.page for spec in specs),
        group_size=max(map(len, members)),
        bytes_per_block=size,
        stage_bytes_per_block=(size,),
        _group_bytes=group_bytes,
        _tuple_bytes=tuple_bytes,
    )


def _cut_even(plan: KVPlan, specs: list[Spec], names: list[str], stages: list[int]) -> KVPlan:
    """Group caches that all need the same blocks, or whose pages can be made one size."""
    release = plan.settings.release
    one_group = _is_uniform(specs) or _needs_same_blocks(specs)
    if any(0 < padded_page(spec) < spec.token * spec.block_size and not spec.local for spec in specs):
        raise PlanFailure("AssertionError: ")  # a layer that is not quantised does not fit into the page
    if not one_group:
        largest = max(spec.page for spec in specs)
        try:
            specs = [_unify_page(spec, largest, name, release) for name, spec in zip(names, specs)]
        except PlanFailure:
            if not _is_latent_with_windows(specs, release):
                raise
            with contextlib.suppress(PlanFailure):
                specs = _promote_local(specs, release)
                one_group = _needs_same_blocks(specs)
            if not one_group:
                raise
    if one_group:
        return _cut_one_group(plan, specs, stages)
    groups, sizes = _group_pages(specs, stages, plan.settings)
    return replace(
        plan,
        groups=tuple(groups),
        page_size_bytes=largest,
        group_size=max(sizes),
        bytes_per_block=largest * max(sizes),
        stage_bytes_per_block=tuple(largest * layers for layers in sizes),
        _checked_size=0 if release.since(17) else largest * max(group.layers for group in groups),
    )


def _is_latent_with_windows(specs: list[Spec], release: Release) -> bool:
    """Tell whether vLLM keeps windows as full attention if pages cannot get one size: from 0.27, next to latent attention."""
    kinds = {spec.kind for spec in specs}
    return release.since(27) and {"mla", "sliding"} <= kinds and "chunked" not in kinds


def _cut_one_group(plan: KVPlan, specs: list[Spec], stages: list[int]) -> KVPlan:
    """Put all caches into one group, in which every layer has its own tensor."""
    pages = [0] * plan.settings.pipeline_parallel
    for spec, stage in zip(specs, stages):
        pages[stage] += spec.page
    block_of_stages = 0 if plan.settings.release.since(17) else sum(pages)
    return replace(
        plan,
        groups=(KVGroup(specs[0].kind, len(specs), specs[0].block_size, specs[0].window),),
        page_size_bytes=max(spec.page for spec in specs),
        group_size=stages.count(pages.index(max(pages))),
        bytes_per_block=max(pages),
        stage_bytes_per_block=tuple(pages),
        _checked_size=block_of_stages,
        _divided_size=0 if _is_uniform(specs) else block_of_stages,
    )


def plan_kv_cache(geometry: Geometry, settings: KVSettings) -> KVPlan:
    """Plan the KV cache of every rank. Raises C(Refusal) for unknown combinations, C(PlanFailure) if vLLM itself fails."""
    planner = Planner(geometry, settings)
    _check_drafts(geometry, settings, planner.mode)
    specs, names, stages = _describe_caches(planner)
    specs = _promote_without_hybrid(specs, geometry, settings)
    # A plan that was not compared with vLLM.
    notes = []
    if settings.skip_layers and len({(layer.kv_heads, layer.head_dim) for layer in geometry.attention}) > 1:
        notes.append("kv-cache-dtype-skip-layers with heads of different sizes was not compared with vLLM")
    if geometry.recurrent and len({(layer.kind, layer.head_dim) for layer in geometry.attention}) > 1:
        notes.append("a recurrent state together with attention layers of different kinds was not compared with vLLM")
    plan = KVPlan(
        settings=settings,
        groups=(),
        block_size=planner.block_size,
        page_size_bytes=0,
        group_size=0,
        bytes_per_block=0,
        mamba_cache_mode=planner.mode,
        state_bytes=planner.state,
        notes=tuple(notes),
        checkpoints=bool(geometry.recurrent) and exports_checkpoints(geometry.recurrent[0], settings.release),
    )
    rules = geometry.rules
    plan = _cut_packed(plan, specs, rules.stride) if rules.packed else _cut_even(plan, specs, names, stages)
    _check_decode_context(plan.groups, settings)
    return plan


def _check_drafts(geometry: Geometry, settings: KVSettings, mode: str) -> None:
    """Raise the error of vLLM up to 0.16 for a drafter of a model with recurrent states (C(MambaModelConfig), C(MambaBase))."""
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


def _check_decode_context(groups: Sequence[KVGroup], settings: KVSettings) -> None:
    """Raise vLLM's error for caches that it cannot spread over the ranks of a decode context.

    Windows fail in their spec (C(SlidingWindowSpec.max_memory_usage_bytes)); up to 0.25 all models with several groups fail, later only chunks
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
        raise Refusal("args.decode-context-parallel-size", "its effect on this kind of cache is not known")
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


def _group_pages(specs: list[Spec], stages: list[int], settings: KVSettings) -> tuple[list[KVGroup], list[int]]:
    """Sort layers with one page into groups (C(_get_kv_cache_groups_uniform_page_size)).

    Returns the groups of the whole model, and for every pipeline stage the layers of its largest group.
    """
    buckets: dict[Spec, list[int]] = {}
    for spec, stage in zip(specs, stages):
        buckets.setdefault(spec, []).append(stage)
    smallest, biggest = min(map(len, buckets.values())), max(map(len, buckets.values()))
    # A little padding in one group is cheaper than many small groups: up to half (a quarter up to 0.17).
    size = biggest if biggest < smallest * (1.5 if settings.release.since(18) else 1.25) else smallest
    groups: list[KVGroup] = []
    sizes = [0] * settings.pipeline_parallel
    for spec, members in buckets.items():
        count = ceil_div(len(members), size)
        for start in range(count):
            group = members[start::count]
            groups.append(KVGroup(spec.kind, len(group), spec.block_size, spec.window))
            sizes = [max(size_of, group.count(stage)) for stage, size_of in enumerate(sizes)]
    return groups, sizes


# Caches with pages of different sizes that share a block unchanged ----------------------------------------------------
# Where every kernel of a model takes a block-outermost layout, vLLM makes no page larger to match another
# (_get_packed_kv_cache_groups of vllm/v1/core/kv_cache_planning.py in 0.33.0, the same in kv_cache_utils.py of 0.32.0): a block is as large
# as the widest group.


def approximate_divisor(values: Sequence[int], least: int) -> int:
    """Return the divisor of at least C(least) that pads C(values) least, the larger one of two (C(_approximate_gcd))."""
    return min(
        range(least, max(*values, least) + 1), key=lambda divisor: (sum(-value % divisor for value in values), -divisor)
    )


class _Bucket:
    """Caches that need the same blocks, by the size of their pages. holds_states: they are states or rings."""

    def __init__(self, specs: Sequence[Spec], members: list[int]) -> None:
        self.members = members
        self.first = specs[members[0]]
        self.holds_states = self.first.kind in STATE_KINDS or self.first.kind == "ring"
        self.sizes: dict[int, list[int]] = {}
        for member in members:
            self.sizes.setdefault(specs[member].page, []).append(member)
        counts = [len(same_size) for same_size in self.sizes.values()]
        self.repeats = max(counts)
        self.balanced = len(set(counts)) == 1

    def widest(self, groups: int) -> int:
        """Return the bytes of the largest of the groups that the bucket is split into."""
        return sum(-(-len(members) // groups) * size for size, members in self.sizes.items())

    def is_state(self, repeats: int) -> bool:
        """Tell whether the bucket fills blocks that others have sized: states, and windows if no bucket mixes sizes."""
        return self.holds_states or (not repeats and self.first.kind == "sliding")

    def count_repeats(self, repeats: int) -> int:
        """Return the groups of a bucket that is split down to C(repeats) repeats; 0 splits none."""
        return -(-self.repeats // repeats) if repeats and self.balanced else 1

    def split(self, groups: int) -> list[list[int]]:
        """Split the bucket, every group with pages of all sizes."""
        if groups == 1:
            return [self.members]
        repeats = list(zip(*self.sizes.values()))
        return [[member for repeat in repeats[start::groups] for member in repeat] for start in range(groups)]


def _fill_buckets(specs: Sequence[Spec]) -> list[_Bucket]:
    """Put caches that need the same blocks together."""
    members: dict[tuple[str, int, int], list[int]] = {}
    for position, spec in enumerate(specs):
        kind = "full" if spec.kind in FULL_KINDS else spec.kind
        members.setdefault((kind, spec.block_size, spec.window), []).append(position)
    return [_Bucket(specs, bucket) for bucket in members.values()]


def _count_kept_repeats(buckets: Sequence[_Bucket]) -> int:
    """Return the most repeats of a bucket that mixes sizes in equal numbers and so stays whole; 0 if there is none."""
    return max((bucket.repeats for bucket in buckets if bucket.balanced and len(bucket.sizes) > 1), default=0)


def pack(specs: Sequence[Spec], older: bool = False) -> list[list[int]]:
    """Return the groups, each a list of positions in C(specs). older: up to 0.31 states are split into groups as large as the attention's."""
    buckets = _fill_buckets(specs)
    # The other buckets are split down to these repeats.
    least = _count_kept_repeats(buckets)
    balanced = [bucket.repeats for bucket in buckets if bucket.balanced and not (older and bucket.holds_states)]
    repeats = approximate_divisor(balanced, least) if least else 0
    # The states fill a block without making it wider.
    anchor = max(
        bucket.widest(len(bucket.members) if bucket.is_state(repeats) else bucket.count_repeats(repeats))
        for bucket in buckets
    )
    groups: list[list[int]] = []
    for bucket in buckets:
        count = bucket.count_repeats(repeats)
        if bucket.is_state(repeats):
            fitting = least if older and least else max(anchor // bucket.first.page, 1)
            count = max(1 if older else count, -(-len(bucket.members) // fitting))
        groups += bucket.split(count)
    return groups


def block_bytes(specs: Sequence[Spec], groups: Sequence[Sequence[int]], stride: int) -> int:
    """Return the bytes of a block: the widest group, rounded up to C(stride)."""
    widest = max(sum(specs[member].page for member in group) for group in groups)
    return -(-widest // stride) * stride


def classed_block_bytes(specs: Sequence[Spec], groups: Sequence[Sequence[int]]) -> tuple[int, int, tuple[int, ...]]:
    """Return the bytes of a block up to 0.28, which has tensors for every size of a page of C(groups[0]).

    Other pages are as large as the next size. Also the bytes that vLLM's check counts for a block, which has all sizes as
    often as the commonest one of all groups, and the bytes of every group (kv_cache_utils.py of 0.23.0).
    """
    classes = sorted({specs[member].page for member in groups[0]})
    counts: list[dict[int, int]] = []
    for group in groups:
        count_by_size = dict.fromkeys(classes, 0)
        for member in group:
            count_by_size[next(size for size in classes if size >= specs[member].page)] += 1
        counts.append(count_by_size)
    most = {size: max(count_by_size[size] for count_by_size in counts) for size in classes}
    return (
        sum(size * count for size, count in most.items()),
        sum(classes) * max(most.values()),
        tuple(sum(size * count for size, count in count_by_size.items()) for count_by_size in counts),
    )
