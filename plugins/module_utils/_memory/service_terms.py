# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of a service besides weights and KV cache: activations, CUDA graphs, adapters and host buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .._common.sizes import GIB
from .._vllm.overheads import LEVELS, OVERHEADS
from . import adapters, answered, image_answer
from .geometry import Geometry
from .host_memory import HostBuffer, HostLaunch, HostWeights, host_buffers
from .kv_plan import KVPlan
from .layers import Config, Refusal
from .profile_run import (
    V2_ALL,
    Launch,
    ProfileRun,
    count_configured_captures,
    is_compiled,
    profile_by_batch,
    profile_run,
)
from .releases import Release
from .service_input import DEFAULT_SEQS, ServiceInput
from .service_weights import split_of
from .speculation import is_v2_supported, read_speculation
from .weight_formats import Quantization
from .weights import Weights


def measure_by_config(
    item: ServiceInput, config: Config, geometry: Geometry, release: Release, batch: int
) -> ProfileRun:
    """Return the memory in use when the engine profiles itself."""
    launch, args = _launch(item, release, batch), item.args
    quantised = item.quant_config or config.get("quantization_config") or args.get("quantization")
    launch = replace(
        launch,
        ranks=args.get("tensor-parallel-size", 1),
        replicas=args.get("data-parallel-size", 1),
        experts_whole=bool(args.get("enable-expert-parallel")),
        drafts=read_speculation(item, geometry)[0],
        # Up to 0.28 the V2 runner serves generation alone (VllmConfig._is_default_v2_model_runner_model).
        v2=launch.v2 and (not launch.pools or release.since(V2_ALL)),
        quantised=bool(quantised),
    )
    return profile_run(config, geometry, launch)


def _launch(item: ServiceInput, release: Release, batch: int) -> Launch:
    """Return the settings of a launch that follow from its arguments alone."""
    args, sequences = item.args, item.args.get("max-num-seqs")
    method, compilation = (args.get("speculative-config") or {}).get("method"), args.get("compilation-config") or {}
    return Launch(
        release=release,
        batch=batch,
        sequences=sequences if isinstance(sequences, int) else DEFAULT_SEQS,
        eager=bool(args.get("enforce-eager")),
        v2=is_v2_supported(method, args.get("pipeline-parallel-size", 1), release),
        runner=item.runner,
        captures=count_configured_captures(compilation, batch),
        compiles=is_compiled(compilation),
        pools=args.get("runner") == "pooling",
        counts_graphs=item.counts_graphs,
    )


def measure_by_answer(item: ServiceInput, answer: image_answer.Answer, plan: KVPlan) -> ProfileRun:
    """Return the memory in use from the answer of the image; without widths in the answer, from the batch alone."""
    args, resolved, settings = item.args, answer.resolved, plan.settings
    widths = answered.read_shapes(answer, item.config or {})
    runner = {"v1": 1, "v2": 2}.get(resolved.get("runner", ""), 0)
    if widths is None:
        return replace(profile_by_batch(settings.max_num_batched_tokens), runner=runner or 1)
    text, geometry = widths
    launch, spec = (
        _launch(item, settings.release, settings.max_num_batched_tokens),
        args.get("speculative-config") or {},
    )
    captures = launch.captures
    # For the same number of requests the answer has vLLM's own number of captured graphs.
    if launch.sequences == resolved.get("max_num_seqs"):
        captures_none = str(resolved.get("cudagraph_mode", "")).upper() == "NONE"
        captures = 0 if captures_none else int(resolved.get("cudagraph_sizes", 0))
    launch = replace(
        launch,
        ranks=settings.tensor_parallel,
        drafts=int(spec.get("num_speculative_tokens") or 0),
        v2=is_v2_supported(spec.get("method"), settings.pipeline_parallel, settings.release),
        quantised=bool(resolved.get("quantization")),
        # Without Triton, which an image for a GPU has, vLLM takes its older runner.
        runner=launch.runner or (runner if answer.triton else 0),
        captures=captures,
    )
    return profile_run({**text, "architectures": (item.config or {}).get("architectures")}, geometry, launch)


def inside_terms(
    terms: Mapping[str, tuple[float, float, float]], weights: Weights, run: ProfileRun, vision: bool, drafts: bool
) -> dict[str, float]:
    """Return the bytes used inside the requested memory besides weights and cache, by level."""
    if "inside_gib" in terms:
        return {level: terms["inside_gib"][index] * GIB for index, level in enumerate(LEVELS)}
    return {
        level: GIB
        * (
            terms["inside_base_gib"][index]
            + (terms["inside_vision_gib"][index] if vision else 0.0)
            + (terms["inside_drafter_gib"][index] if drafts else 0.0)
        )
        # At low, torch finds all that it compiled in its cache of the last start.
        + terms["inside_peak_share"][index] * (run.peak if level == "low" else run.compiled)
        + terms["inside_weights_share"][index] * (weights.target + weights.draft)
        + terms["graphs_share"][index] * run.graphs_inside
        + run.tables
        + (run.unknown if level == "high" else 0)
        for index, level in enumerate(LEVELS)
    }


def outside_terms(terms: Mapping[str, tuple[float, float, float]], run: ProfileRun) -> dict[str, float]:
    """Return the bytes outside of the requested memory, by level: CUDA graphs that do not reduce the cache, and buffers of the runner."""
    uncounted = run.graphs - run.graphs_inside
    return {level: terms["graphs_share"][index] * uncounted + run.request_buffers for index, level in enumerate(LEVELS)}


def adapter_room_of_answer(answer: image_answer.Answer, args: Config) -> adapters.Room:
    """Return the room for adapters in the image's answer."""
    if not args.get(adapters.OPTION):
        return adapters.Room()
    sizes = [rank.adapters for rank in answer.ranks]
    sizes_of_ranks = [size for size in sizes if size is not None]
    if len(sizes_of_ranks) != len(sizes):
        raise Refusal(
            f"args.{adapters.OPTION}",
            "the memory of adapters is not known, and the image does not report it",
            adapters.ASK,
        )
    most = max(sizes_of_ranks)
    copies = most * int(args.get("max-cpu-loras") or args.get("max-loras") or 1) // int(args.get("max-loras") or 1)
    return adapters.Room(most, most, most, copies)


def adapter_room(item: ServiceInput, config: Config, geometry: Geometry, minor: int | None) -> adapters.Room:
    """Return the room for adapters: by arithmetic, else from the image's answer, else a range."""
    args = item.args
    split = split_of(args)
    if not args.get(adapters.OPTION):
        return adapters.Room()
    padded = Quantization(config, item.quant_config, args.get("quantization", ""), minor).padded_experts
    try:
        computed = adapters.compute_room(config, geometry, args, split, minor=minor, padded=padded)
    except Refusal:
        if item.answer is None or not answered.is_usable(item.answer):
            raise
        return adapter_room_of_answer(item.answer, args)
    if computed.exact or item.answer is None or not answered.is_usable(item.answer):
        return computed
    try:
        return adapter_room_of_answer(item.answer, args)
    except Refusal:
        return computed


def list_buffers(
    item: ServiceInput, args: Config, release: Release, plan: KVPlan | None, media: bool, copies: int
) -> tuple[HostBuffer, ...]:
    """Return the host buffers of an engine. media: whether it takes images, videos or audio. copies: bytes of adapters on the host."""
    split = split_of(args)
    ranks, replicas = split.tensor * split.pipeline, split.replicas
    launch = HostLaunch(
        args, item.env, release, item.rank, ranks, replicas, media, copies, plan, {**OVERHEADS, **item.overheads}
    )
    return host_buffers(launch)


def add_extra(inside: dict[str, float], in_host: HostWeights, room: adapters.Room) -> dict[str, float]:
    """Add the extra memory of weights in host memory, and the uncertainty of the room for adapters."""
    uncertain = (room.low - room.typical, 0, room.high - room.typical)
    return {level: inside[level] + more + size for level, more, size in zip(LEVELS, uncertain, in_host.extra)}
