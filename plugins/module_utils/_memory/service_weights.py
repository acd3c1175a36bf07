# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weights of a service on one rank: from its tensors, its stated size or its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .._common.sizes import GIB
from .geometry import Geometry, read_geometry
from .layers import Config, Refusal, text_config
from .service_input import ServiceInput
from .tensors import tensors_bytes
from .weights import Split, Weights, drafter_bytes, weights_bytes

# Models whose tower takes no videos (get_supported_mm_limits in vllm/model_executor/models/: gemma3_mm, mistral3, mllama4, pixtral).
_IMAGES_ONLY = frozenset(("gemma3", "llama4", "mistral3", "pixtral"))
# Whose towers are loaded in any case: their class does not mark them as such (models/inkling/nvidia/model.py).
_ALWAYS_TOWERS = frozenset(("inkling_model",))


def _scale_stated(size: int, counted: Callable[[bool], Weights], draft: int, runtime: str) -> Weights:
    """Return the weights of a rank from their stated size.

    Weights that vLLM quantises itself have two sizes, before and after; the first is about twice the second. The stated size counts
    as the nearer of the two sizes by the config; the other size follows in proportion.
    """
    try:
        made = counted(True) if runtime else None
    except Refusal:
        made = None  # without sizes from the config the stated size counts alone
    if made is None or made.load_peak == made.target:
        return Weights(size, draft, size)
    nearer = min(made.load_peak, made.target, key=lambda total: abs(total - size))
    scale = size / nearer
    target, peak = int(scale * made.target), int(scale * made.load_peak)
    return Weights(target, draft, peak, load_layerwise=int(scale * made.load_layerwise))


def split_of(args: Config) -> Split:
    """Return the division of a launch's weights over ranks."""
    return Split(
        args.get("tensor-parallel-size", 1),
        args.get("pipeline-parallel-size", 1),
        bool(args.get("enable-expert-parallel")),
        args.get("data-parallel-size", 1),
    )


@lru_cache(maxsize=256)
def _count_weights(item: ServiceInput, dtype: str, vision: bool, mtp: bool, minor: int | None) -> Weights:
    """Return the weights of model and drafter on one rank: from the tensors, else the stated size, else the config."""
    args, config = item.args, item.config or {}
    geometry = replace(read_geometry(config), dtype=dtype)
    split = split_of(args)
    runtime = args.get("quantization", "")

    def counted(with_vision: bool, split: Split = split) -> Weights:
        return weights_bytes(
            config,
            geometry,
            quant_config=item.quant_config,
            split=split,
            runtime_quantization=runtime,
            vision=with_vision,
            mtp=mtp,
            draft_tokens=int((args.get("speculative-config") or {}).get("num_speculative_tokens") or 0),
            minor=minor,
            tables_on_disk=bool(item.table),
        )

    drafts = mtp and item.draft_weights_gib is None
    if item.tensors is not None:
        made = tensors_bytes(
            item.tensors,
            config,
            geometry,
            quant_config=item.quant_config,
            split=split,
            runtime_quantization=runtime,
            vision=vision,
            mtp=drafts,
        )
    elif item.weights_gib is not None:
        target = int(item.weights_gib * GIB / split.tensor / split.pipeline)
        if split.replicas > 1:
            # Replicas have the experts between them, and all else each: how much of the whole that is, the config says.
            alone = counted(vision, replace(split, replicas=1)).target
            target = int(target * counted(vision).target / alone)
        made = _scale_stated(target, counted, counted(False).draft if drafts else 0, runtime)
    else:
        made = counted(vision)
    spec = args.get("speculative-config") or {}
    if item.draft_weights_gib is not None:
        return replace(made, draft=int(item.draft_weights_gib * GIB / split.tensor))
    if item.draft_config is not None:
        drafter = read_geometry(item.draft_config)
        return replace(
            made, draft=drafter_bytes(item.draft_config, drafter, str(spec.get("method")), tensor_parallel=split.tensor)
        )
    return made


# The arguments that decide the weights of a launch.
_WEIGHT_ARGS = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "enable-expert-parallel",
    "quantization",
    "speculative-config",
)


def load_weights(item: ServiceInput, geometry: Geometry, vision: bool, mtp: bool, minor: int | None) -> Weights:
    """Return the weights of a launch; launches that differ only in lengths are counted once."""
    weight_input = ServiceInput(
        name="",
        args={key: item.args[key] for key in _WEIGHT_ARGS if key in item.args},
        overheads={},
        config=item.config,
        quant_config=item.quant_config,
        weights_gib=item.weights_gib,
        tensors=item.tensors,
        draft_config=item.draft_config,
        draft_weights_gib=item.draft_weights_gib,
        table=item.table,
    )
    return _count_weights(weight_input, geometry.dtype, vision, mtp, minor)


def loads_tower(args: Config, config: Config) -> bool:
    """Tell whether the vision tower is loaded: unless every kind of input that it takes is limited to 0.

    A kind that is not named may come 999 times (MultiModalConfig.get_limit_per_prompt, SupportsMultiModal._mark_tower_model).
    """
    if text_config(config).get("model_type") in _ALWAYS_TOWERS:
        return True
    if args.get("language-model-only"):
        return False
    limits = args.get("limit-mm-per-prompt")
    if not isinstance(limits, Mapping):
        return True

    def limit(kind: str) -> Any:
        entry = limits.get(kind)
        return entry.get("count") if isinstance(entry, Mapping) else entry

    kinds = ("image",) if config.get("model_type") in _IMAGES_ONLY else ("image", "video")
    return any(limit(kind) != 0 for kind in kinds)


def takes_media(args: Config, config: Config) -> bool:
    """Tell whether a model takes images, videos or audio, so that vLLM caches what it made of them (supports_multimodal_inputs)."""
    towers = any(config.get(key) for key in ("vision_config", "audio_config"))
    limits = args.get("limit-mm-per-prompt")
    heard = not isinstance(limits, Mapping) or limits.get("audio") != 0
    return (
        towers
        and not args.get("language-model-only")
        and (loads_tower(args, config) or (bool(config.get("audio_config")) and heard))
    )
