# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of one service: by arithmetic, by the answer of its image, or by stated sizes.

C(resolve) turns a checked service into an C(Engine).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .._common.sizes import GIB
from .._vllm.overheads import LEVELS
from . import answered, image_answer
from .engine import COMPARED, IMAGE, NOT_COMPARED, STATED, Engine, start_seconds
from .host_memory import host_weights
from .kv_plan import PlanFailure
from .layers import Config, Refusal
from .profile_run import profile_by_batch
from .releases import COMPARED_MINORS, Release, parse_release
from .service_cache import batch_tokens, check_length, engine_geometry, plan_releases
from .service_input import DEFAULT_BATCHED_TOKENS, OPEN_ARGS, UNPLANNED_ARGS, ServiceInput
from .service_terms import (
    adapter_room,
    adapter_room_of_answer,
    add_extra,
    inside_terms,
    list_buffers,
    measure_by_answer,
    measure_by_config,
    outside_terms,
)
from .service_weights import load_weights, loads_tower, split_of, takes_media
from .speculation import is_self_drafting, read_speculation
from .vllm_errors import error_align, error_kernel_block
from .weights import Weights

# The first release read in which online quantisation makes the 16-bit weights of a layer only when they arrive (fp8.py, device
# "meta"; from 0.19 model_executor/model_loader/reload/layerwise.py, initialize_online_processing; from 0.20 for all formats).
LAYERWISE_MINOR = 16


def resolve(item: ServiceInput) -> Engine:
    """Turn one service into an engine. Raises C(Refusal) if it cannot be computed, C(PlanFailure) if vLLM would not plan."""
    return replace(
        _resolve(item.unnamed),
        name=item.name,
        share=item.share,
        last=item.last,
        exclusive=item.exclusive,
    )


@lru_cache(maxsize=512)
def _resolve(item: ServiceInput) -> Engine:
    args = {key: None if value == "auto" and key in OPEN_ARGS else value for key, value in item.args.items()}
    if item.config is None:
        utilization = args.get("gpu-memory-utilization")
        return Engine(item.name, item.overheads, fixed=int((item.memory_gib or 0) * GIB), utilization=utilization)
    if item.memory_gib is not None or item.stated is not None:
        return _engine_by_statement(item, args)
    is_usable = answered.is_usable(item.answer)
    try:
        computed = _engine_by_arithmetic(item, args)
    except PlanFailure as failure:
        if is_usable:
            return replace(_engine_by_image(item, args), unknown=f"the calculation expected: {failure}")
        raise
    except Refusal as refusal:
        if is_usable:
            return replace(_engine_by_image(item, args), unknown=f"{refusal.key}: {refusal.reason}")
        why = _explain_missing_plan(item)
        if not why:
            raise
        raise Refusal(refusal.key, f"{refusal.reason}; its image gives no plan ({why})", refusal.fix) from refusal
    return _compare_with_image(item, args, computed) if is_usable and computed.plan is not None else computed


def _compare_with_image(item: ServiceInput, args: Config, computed: Engine) -> Engine:
    """Return the engine to plan with and its differences: by arithmetic if this version was compared, else by the image."""
    is_compared = computed.cache_from == COMPARED
    try:
        imaged = _engine_by_image(item, args)
    except answered.ImageRefusal as refusal:
        if not is_compared:
            raise
        return replace(computed, differences=(f"the image refuses the launch: {refusal.text}",))
    except Refusal:
        return computed
    texts = []
    if computed.plan is not None and isinstance(imaged.plan, answered.AnsweredPlan):
        computed_weights = None if _are_weights_stated(item) else computed.weights - computed.adapters
        loaded = answered.AnsweredWeights(imaged.weights - imaged.adapters, imaged.draft, imaged.host, imaged.vision)
        texts = answered.list_differences(computed.plan, computed_weights, imaged.plan, loaded)
    if computed.adapters != imaged.adapters:
        texts.append(f"bytes of the adapters {computed.adapters} and {imaged.adapters}")
    if item.answer is not None and answered.read_shapes(item.answer, item.config or {}) is None:
        imaged = replace(imaged, inside=computed.inside, launch_outside=computed.launch_outside, runner=computed.runner)
    elif computed.runner != imaged.runner:
        texts.append(f"model runner {computed.runner} and {imaged.runner}")
    chosen = computed if is_compared else replace(imaged, unknown="this version was not compared")
    return replace(chosen, differences=tuple(texts))


def _explain_missing_plan(item: ServiceInput) -> str:
    """Return why the image gives no plan; empty if the image was not asked."""
    cause = item.answer and (item.answer.failure or next(iter(item.answer.refusals.values()), None))
    return f"{cause.stage}: {cause.text}" if cause else item.answer_reason


def _are_weights_stated(item: ServiceInput) -> bool:
    return item.tensors is not None or item.weights_gib is not None


def _engine_by_statement(item: ServiceInput, args: Config) -> Engine:
    """Return an engine with stated memory: the sum, or its parts. An unknown version counts as the newest."""
    try:
        release = parse_release(item.vllm_version)
    except Refusal:
        release = Release("", max(COMPARED_MINORS), False)
    if item.stated is None:
        weights, inside, stated = 0, dict.fromkeys(LEVELS, 0.0), int((item.memory_gib or 0.0) * GIB)
    else:
        weights_gib, cache, other = item.stated
        weights = int(weights_gib * GIB)
        batch = args.get("max-num-batched-tokens") or DEFAULT_BATCHED_TOKENS
        counted = inside_terms(
            item.overheads, Weights(weights, 0, weights), profile_by_batch(batch), False, "speculative-config" in args
        )
        inside = counted if other is None else dict.fromkeys(LEVELS, other * GIB)
        if cache is None and args.get("gpu-memory-utilization") is None:
            raise Refusal(
                "memory.kv_gib",
                "neither it nor gpu-memory-utilization says how large the KV cache is",
                "give one of them",
            )
        stated = int(weights + (cache or 0.0) * GIB + inside["typical"])
    return Engine(
        name=item.name,
        overheads=item.overheads,
        buffers=list_buffers(item, args, release, None, takes_media(args, item.config or {}), 0),
        stated=stated,
        weights=weights,
        load_peak=weights,
        load_layerwise=weights,
        inside=inside,
        utilization=args.get("gpu-memory-utilization"),
        weights_from=STATED,
        cache_from=STATED,
    )


def _engine_by_image(item: ServiceInput, args: Config) -> Engine:
    """Return the engine as the vLLM of its image planned it.

    Raises C(answered.ImageRefusal) if vLLM refuses the launch, C(Refusal) for an answer that does not fit it.
    """
    config = item.config or {}
    answer, plan = _plan_of_answer(item, args)
    method = (args.get("speculative-config") or {}).get("method")
    loaded = answered.weights_of_answer(answer, is_self_drafting(method) or method == "dspark")
    # The image's planner counts tables in host memory although the launch leaves them on disk.
    disk = loaded.host if item.table and item.weights_gib is None else 0
    target, draft = loaded.target - disk, loaded.draft
    if item.weights_gib is not None:
        target = int(item.weights_gib * GIB / plan.settings.tensor_parallel / plan.settings.pipeline_parallel)
    if item.draft_weights_gib is not None:
        draft = int(item.draft_weights_gib * GIB / plan.settings.tensor_parallel)
    # vLLM loads weights of 16 bits and quantises them itself; an answer does not separate the quantised part.
    peak = 2 * target if args.get("quantization") and not _is_quantised(item) else target
    vision = bool(loaded.vision) or (bool(config.get("vision_config")) and loads_tower(args, config))
    room = adapter_room_of_answer(answer, args)
    release, run = plan.settings.release, measure_by_answer(item, answer, plan)
    in_host = host_weights(config, args, item.env, target + draft, 0, release, plan.settings.tensor_parallel)
    states = any(group.kind == "mamba" for group in plan.groups)
    inside = inside_terms(item.overheads, Weights(target, draft, peak), run, vision, bool(method))
    return replace(
        _engine_of_input(item, args),
        plan=plan,
        release=release,
        weights=target + room.typical,
        draft=draft,
        vision=loaded.vision,
        host=loaded.host - disk,
        disk=disk,
        adapters=room.typical,
        load_peak=max(peak, target + room.typical),
        load_layerwise=target + room.typical,
        inside=add_extra(inside, in_host, room),
        launch_outside=outside_terms(item.overheads, run),
        buffers=list_buffers(item, args, release, plan, vision or takes_media(args, config), room.copies),
        in_host=in_host,
        limit=plan.longest,
        needs_state_blocks=_needs_state_blocks(args, release, states, bool(method)),
        runner=run.runner,
        weights_from=STATED if item.weights_gib is not None else IMAGE,
        cache_from=IMAGE,
    )


def _plan_of_answer(item: ServiceInput, args: Config) -> tuple[image_answer.Answer, answered.AnsweredPlan]:
    """Return the answer of an image and its plan; refuse an answer about another launch."""
    if item.answer is None:
        raise Refusal("image_plan", "the image was not asked")
    if split_of(args).replicas > 1:
        raise Refusal("image_plan", "an image plans one replica, without the experts of several replicas")
    # These options change the KV cache in ways that only the image knows.
    unplanned = (args.get(key) for key in (*UNPLANNED_ARGS, "decode-context-parallel-size"))
    is_counted = not any(value is True or (value or 1) != 1 for value in unplanned)
    plan = answered.kv_plan(item.answer, item.vllm_version, is_counted)
    length = args.get("max-model-len")
    if length is not None and length > plan.longest:
        raise Refusal("image_plan", f"the image was asked about {plan.longest} tokens, not {length}")
    return item.answer, plan


def _is_quantised(item: ServiceInput) -> bool:
    return bool(item.quant_config or (item.config or {}).get("quantization_config"))


def _needs_state_blocks(args: Config, release: Release, recurrent: bool, drafts: bool) -> bool:
    """Tell whether full CUDA graphs need one state block per sequence. With a drafter the graphs may be piecewise."""
    return recurrent and release.since(20) and not args.get("enforce-eager") and not drafts


def _engine_of_input(item: ServiceInput, args: Config) -> Engine:
    """Return an engine with the fields that follow from the input alone."""
    return Engine(
        name=item.name,
        overheads=item.overheads,
        table=item.table,
        repacked=_is_quantised(item),
        utilization=args.get("gpu-memory-utilization"),
        length=args.get("max-model-len"),
        length_auto=item.args.get("max-model-len") == "auto",
        sequences=args.get("max-num-seqs"),
        sequences_auto=item.args.get("max-num-seqs") == "auto",
        pool=args.get("kv-cache-memory-bytes") if item.available_kv_bytes is None else item.available_kv_bytes,
        blocks=args.get("num-gpu-blocks-override"),
    )


def _list_releases(item: ServiceInput) -> list[Release]:
    """Return the releases that may be in the image: one if the version is known."""
    if item.vllm_version:
        return [parse_release(item.vllm_version)]
    return [Release("", minor, False) for minor in item.minors or COMPARED_MINORS]


def _engine_by_arithmetic(item: ServiceInput, args: Config) -> Engine:
    config, terms = item.config or {}, item.overheads
    geometry = engine_geometry(config, str(args.get("dtype", "auto")))
    vision = geometry.has_vision and loads_tower(args, config)
    drafts, _layers, mtp = read_speculation(item, geometry)
    release_known = bool(item.vllm_version)
    releases = _list_releases(item)
    minor = releases[0].minor if release_known else None
    check_length(item, config, minor)
    batch = batch_tokens(args, geometry)
    try:
        plans, refusing = plan_releases(item, geometry, config, releases, batch)
    except PlanFailure as failure:
        weights = load_weights(item, geometry, vision, mtp, minor)
        failure.seconds = start_seconds(terms, weights.target + weights.draft, failure.stage)
        raise
    weights = load_weights(item, geometry, vision, mtp, minor)
    plan, release = plans[-1], plans[-1].settings.release
    run = measure_by_config(item, config, geometry, release, batch)
    room = adapter_room(item, config, geometry, minor)
    total = weights.target + weights.draft
    in_host = host_weights(config, args, item.env, total, weights.host, release, split_of(args).tensor)
    is_compared = release.exact and not plan.notes and args.get("config-format") != "mistral"
    # vLLM allocates the room for adapters after the weights.
    loaded = weights.target + room.typical
    layerwise = weights.load_layerwise if release.since(LAYERWISE_MINOR) else weights.load_peak
    engine = replace(
        _engine_of_input(item, args),
        plan=plan,
        release=release,
        weights=loaded,
        draft=weights.draft,
        vision=weights.vision,
        host=weights.host,
        disk=weights.disk,
        experts=weights.experts,
        adapters=room.typical,
        load_peak=max(weights.load_peak, loaded),
        load_layerwise=max(layerwise, loaded),
        inside=add_extra(inside_terms(terms, weights, run, vision, bool(drafts)), in_host, room),
        launch_outside=outside_terms(terms, run),
        buffers=list_buffers(item, args, release, plan, takes_media(args, config), room.copies),
        in_host=in_host,
        runner=run.runner,
        limit=geometry.max_position_embeddings,
        needs_state_blocks=_needs_state_blocks(args, release, bool(geometry.recurrent), bool(drafts)),
        align_error=error_align(plan),
        align_block=plan.block_size,
        kernel_error=error_kernel_block(geometry, plan.settings),
        kernel_block=geometry.rules.block,
        weights_from=STATED if _are_weights_stated(item) else COMPARED if release.exact else NOT_COMPARED,
        cache_from=COMPARED if is_compared else NOT_COMPARED,
    )
    if release_known:
        return engine
    minors = tuple(possible.settings.release.minor for possible in plans)
    return replace(engine, minors=minors, easiest=plans[0], refusing=refusing)
