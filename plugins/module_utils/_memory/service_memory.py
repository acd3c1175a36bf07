# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of one service: by arithmetic, by the answer of its image, or by stated sizes.

C(resolve) turns a checked service into an C(Engine). No I/O, no Ansible.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .._common.sizes import GIB
from .._vllm.overheads import LEVELS
from . import answered
from .engine import COMPARED, IMAGE, NOT_COMPARED, STATED, Engine, start_seconds
from .geometry import Config, Refusal
from .host_memory import host_weights
from .kv_plan import PlanFailure
from .profile_run import by_batch
from .releases import COMPARED_MINORS, Release, parse_release
from .service_cache import batch_tokens, check_length, engine_geometry, plan_releases
from .service_input import DEFAULT_BATCHED_TOKENS, OPEN_ARGS, UNPLANNED_ARGS, ServiceInput
from .service_terms import (
    adapter_room,
    adapter_room_of_answer,
    add_extra,
    beside_terms,
    inside_terms,
    list_buffers,
    measure_by_answer,
    measure_by_config,
)
from .service_weights import load_weights, loads_tower, split_of, takes_media
from .speculation import is_self_drafting, read_speculation
from .vllm_errors import error_align, error_kernel_block
from .weights import Weights

# The first release read in which online quantisation makes the 16-bit weights of a layer only when they arrive (fp8.py, device
# "meta"; from 0.19 model_executor/model_loader/reload/layerwise.py, initialize_online_processing; from 0.20 for all formats).
LAYERWISE_MINOR = 16


def resolve(item: ServiceInput) -> Engine:
    """Turn one service into an engine.

    Raises C(Refusal) for what this engine does not know, C(PlanFailure) where vLLM would not plan.
    """
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
    try:
        computed = _engine_by_arithmetic(item, args)
    except PlanFailure as failure:
        if answered.usable(item.answer):
            return replace(_engine_by_image(item, args), unknown=f"the arithmetic expected: {failure}")
        raise
    except Refusal as refusal:
        if answered.usable(item.answer):
            return replace(_engine_by_image(item, args), unknown=f"{refusal.key}: {refusal.reason}")
        why = answered.unknown(item.answer, item.answer_reason)
        if not why:
            raise
        raise Refusal(refusal.key, f"{refusal.reason}; its image gives no plan ({why})", refusal.fix) from refusal
    if not answered.usable(item.answer) or computed.plan is None:
        return computed
    compared = computed.cache_from == COMPARED
    try:
        other = _engine_by_image(item, args)
    except answered.ImageRefusal as refusal:
        if not compared:
            raise
        return replace(computed, differences=(f"the image refuses the launch: {refusal.text}",))
    except Refusal:
        return computed
    weighed = None if _are_weights_stated(item) else computed.weights - computed.adapters
    loaded = answered.AnsweredWeights(other.weights - other.adapters, other.draft, other.host, other.vision)
    answered_plan = other.plan if isinstance(other.plan, answered.AnsweredPlan) else None
    texts = [] if answered_plan is None else answered.differences(computed.plan, weighed, answered_plan, loaded)
    if computed.adapters != other.adapters:
        texts.append(f"bytes of the adapters {computed.adapters} and {other.adapters}")
    if item.answer is not None and answered.shapes(item.answer, item.config) is None:
        other = replace(other, inside=computed.inside, beside=computed.beside, runner=computed.runner)
    elif computed.runner != other.runner:
        texts.append(f"model runner {computed.runner} and {other.runner}")
    chosen = computed if compared else replace(other, unknown="this version was not compared")
    return replace(chosen, differences=tuple(texts))


def _are_weights_stated(item: ServiceInput) -> bool:
    return item.tensors is not None or item.weights_gib is not None


def _engine_by_statement(item: ServiceInput, args: Config) -> Engine:
    """An engine of which a person says what it takes: the sum, or its parts."""
    if item.stated is None:
        weights, inside, stated = 0, dict.fromkeys(LEVELS, 0.0), int((item.memory_gib or 0.0) * GIB)
    else:
        weights_gib, cache, other = item.stated
        weights = int(weights_gib * GIB)
        batch = args.get("max-num-batched-tokens") or DEFAULT_BATCHED_TOKENS
        counted = inside_terms(
            item.overheads, Weights(weights, 0, weights), by_batch(batch), False, "speculative-config" in args
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
        buffers=list_buffers(item, args, _release_or_newest(item), None, takes_media(args, item.config or {}), 0),
        stated=stated,
        weights=weights,
        load_peak=weights,
        load_layerwise=weights,
        inside=inside,
        utilization=args.get("gpu-memory-utilization"),
        weights_from=STATED,
        cache_from=STATED,
    )


def _release_or_newest(item: ServiceInput) -> Release:
    """Return the release of a service whose memory is stated; the newest where its version is not known."""
    try:
        return parse_release(item.vllm_version)
    except Refusal:
        return Release("", max(COMPARED_MINORS), False)


def _changes_plan(args: Config) -> bool:
    """Tell whether options change the KV cache in ways that only the image knows."""
    keys = (*UNPLANNED_ARGS, "decode-context-parallel-size")
    return any(args.get(key) is True or (args.get(key) or 1) != 1 for key in keys)


def _engine_by_image(item: ServiceInput, args: Config) -> Engine:
    """An engine as the vLLM of its image planned it.

    Raises C(answered.ImageRefusal) where vLLM refuses, C(Refusal) for a plan that cannot be calculated with.
    """
    answer, config = item.answer, item.config or {}
    if answer is None:
        raise Refusal("image_plan", "the image was not asked")
    if split_of(args).replicas > 1:
        raise Refusal("image_plan", "an image plans one replica alone, and not what experts of several take")
    plan = answered.kv_plan(answer, item.vllm_version, not _changes_plan(args))
    length = args.get("max-model-len")
    if length is not None and length > plan.longest:
        raise Refusal("image_plan", f"the image was asked about {plan.longest} tokens, not {length}")
    method = (args.get("speculative-config") or {}).get("method")
    loaded = answered.weights(answer, is_self_drafting(method) or method == "dspark")
    # Where the planner of the build counts them all the same.
    disk = loaded.host if item.table and item.weights_gib is None else 0
    target, draft = loaded.target - disk, loaded.draft
    if item.weights_gib is not None:
        target = int(item.weights_gib * GIB / plan.settings.tensor_parallel / plan.settings.pipeline_parallel)
    if item.draft_weights_gib is not None:
        draft = int(item.draft_weights_gib * GIB / plan.settings.tensor_parallel)
    # What vLLM quantises itself comes in 16 bits at first; what of it the image counted as quantised already is not told apart.
    made = bool(args.get("quantization")) and not (config.get("quantization_config") or item.quant_config)
    peak = 2 * target if made else target
    vision = bool(loaded.vision) or (bool(config.get("vision_config")) and loads_tower(args, config))
    room = adapter_room_of_answer(answer, args)
    release, run = plan.settings.release, measure_by_answer(item, answer, plan)
    in_host = host_weights(config, args, item.env, target + draft, 0, release, plan.settings.tensor_parallel)
    states = any(group.kind == "mamba" for group in plan.groups)
    return Engine(
        name=item.name,
        overheads=item.overheads,
        plan=plan,
        release=release,
        weights=target + room.typical,
        draft=draft,
        vision=loaded.vision,
        host=loaded.host - disk,
        table=item.table,
        disk=disk,
        adapters=room.typical,
        load_peak=max(peak, target + room.typical),
        load_layerwise=target + room.typical,
        inside=add_extra(
            inside_terms(item.overheads, Weights(target, draft, peak), run, vision, bool(method)), in_host
        ),
        beside=beside_terms(item.overheads, run),
        buffers=list_buffers(item, args, release, plan, vision or takes_media(args, config), room.copies),
        in_host=in_host,
        utilization=args.get("gpu-memory-utilization"),
        length=length,
        length_auto=item.args.get("max-model-len") == "auto",
        limit=plan.longest,
        sequences=args.get("max-num-seqs"),
        sequences_auto=item.args.get("max-num-seqs") == "auto",
        pool=args.get("kv-cache-memory-bytes") if item.available_kv_bytes is None else item.available_kv_bytes,
        blocks=args.get("num-gpu-blocks-override"),
        needs_state_blocks=states and release.since(20) and not args.get("enforce-eager") and not method,
        repacked=bool(item.quant_config or config.get("quantization_config")),
        runner=run.runner,
        weights_from=STATED if item.weights_gib is not None else IMAGE,
        cache_from=IMAGE,
    )


# Long: it says of each term of an engine where it comes from.
def _engine_by_arithmetic(item: ServiceInput, args: Config) -> Engine:
    utilization = args.get("gpu-memory-utilization")
    config = item.config or {}
    geometry = engine_geometry(config, str(args.get("dtype", "auto")))
    batch = batch_tokens(args, geometry)
    limit = geometry.max_position_embeddings
    length = args.get("max-model-len")

    vision = geometry.has_vision and loads_tower(args, config)
    drafts, _layers, mtp = read_speculation(item, geometry)
    releases = (
        [parse_release(item.vllm_version)]
        if item.vllm_version
        else [Release("", minor, False) for minor in item.minors or COMPARED_MINORS]
    )
    minor = releases[0].minor if item.vllm_version else None
    check_length(item, config, minor)
    try:
        plans = plan_releases(item, geometry, config, releases, batch)
    except PlanFailure as failure:
        weights = load_weights(item, geometry, vision, mtp, minor)
        failure.seconds = start_seconds(item.overheads, weights.target + weights.draft, failure.stage)
        raise
    weights = load_weights(item, geometry, vision, mtp, minor)
    plan = plans.hardest
    release = plan.settings.release
    terms = item.overheads
    run = measure_by_config(item, config, geometry, release, batch)
    room = adapter_room(item, config, geometry, minor)
    spread = dict(zip(LEVELS, (room.low - room.typical, 0, room.high - room.typical)))
    in_host = host_weights(
        config, args, item.env, weights.target + weights.draft, weights.host, release, split_of(args).tensor
    )
    inside = {
        level: size + spread[level] for level, size in inside_terms(terms, weights, run, vision, bool(drafts)).items()
    }
    layerwise = weights.load_layerwise if release.since(LAYERWISE_MINOR) else weights.load_peak
    pool = args.get("kv-cache-memory-bytes") if item.available_kv_bytes is None else item.available_kv_bytes
    mistral = args.get("config-format") == "mistral"
    return Engine(
        name=item.name,
        overheads=terms,
        plan=plan,
        release=release,
        weights=weights.target + room.typical,
        draft=weights.draft,
        vision=weights.vision,
        host=weights.host,
        table=item.table,
        disk=weights.disk,
        adapters=room.typical,
        experts=weights.experts,
        # Room for adapters is made once the weights are there.
        load_peak=max(weights.load_peak, weights.target + room.typical),
        load_layerwise=max(layerwise, weights.target + room.typical),
        inside=add_extra(inside, in_host),
        beside=beside_terms(terms, run),
        buffers=list_buffers(item, args, release, plan, takes_media(args, config), room.copies),
        in_host=in_host,
        runner=run.runner,
        repacked=bool(item.quant_config or config.get("quantization_config")),
        utilization=utilization,
        length=length,
        length_auto=item.args.get("max-model-len") == "auto",
        limit=limit,
        sequences=args.get("max-num-seqs"),
        sequences_auto=item.args.get("max-num-seqs") == "auto",
        pool=pool,
        blocks=args.get("num-gpu-blocks-override"),
        # Full CUDA graphs want one state block for every sequence. With a drafter the graphs may be piecewise.
        needs_state_blocks=bool(geometry.recurrent)
        and release.since(20)
        and not args.get("enforce-eager")
        and not drafts,
        align_error=error_align(plan),
        align_block=plan.block_size,
        kernel_error=error_kernel_block(geometry, plan.settings),
        kernel_block=geometry.rules.block,
        minors=() if item.vllm_version else plans.minors,
        easiest=None if item.vllm_version else plans.easiest,
        refusing=() if item.vllm_version else plans.refusing,
        weights_from=STATED if _are_weights_stated(item) else COMPARED if release.exact else NOT_COMPARED,
        cache_from=COMPARED if release.exact and not plan.notes and not mistral else NOT_COMPARED,
    )
