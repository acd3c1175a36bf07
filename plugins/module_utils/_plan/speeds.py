# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The predicted speed of a planned service, alone on its Sparks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .._common.plain_data import InputError, Written
from .._memory.layers import Refusal
from .._memory.service_input import DEFAULT_SEQS, read_params
from .._speed.constants import GB10
from .._speed.estimate import (
    SpeedInput,
    bound_by,
    ceiling,
    decode_range,
    prefill_range,
    read_bytes,
    read_service,
    steps_range,
)
from .._speed.expectation import expect_proof, unknown_proof
from .._speed.levers import missing_levers
from .._speed.service_speed import Range, ServiceSpeed, explain_impossible

if TYPE_CHECKING:
    from .planned import PlannedService
    from .service import JudgedLaunch, ServiceSpec

CONTEXT = 1024 + 128 / 2
"""Tokens of context that decode rates are stated at: a prompt of 1024 tokens, half way through an answer of 128."""
SHORT_PROMPT = 8192
LEVELS = (2, 4, 8, 16, 32, 64)
"""Numbers of streams whose rates the plan has besides those of one and of most streams."""
_HOST = {"total_gib": 119.67}
"""The memory of a GB10; speed does not depend on it."""
LARGEST = 1 << 24
"""No request is longer, and no service has more streams."""
_OF_REQUESTS = frozenset(("max-model-len", "max-num-seqs", "gpu-memory-utilization"))
"""Options that change no bytes of a step."""


def of_service(
    service: ServiceSpec,
    args: Mapping[str, Any],
    launch: JudgedLaunch | PlannedService,
    memory: Mapping[str, Any] | None = None,
) -> ServiceSpeed:
    """Return the predicted speed of a planned service. memory: its budget, for context and requests that C(args) does not have."""
    return of_launch(_model(service, launch), args, memory)


def _model(service: ServiceSpec, launch: JudgedLaunch | PlannedService) -> dict[str, Any]:
    return {
        "config": service.config,
        "quant_config": service.quant_config,
        "draft_config": service.draft_config,
        "draft_weights_gib": service.draft_weights_gib,
        "vllm_version": launch.vllm_version,
        "env": launch.env,
    }


def first_token(
    service: ServiceSpec, args: Mapping[str, Any], launch: JudgedLaunch | PlannedService, prompt: int
) -> Range | None:
    """Return the seconds to the first token of a prompt on an idle engine, None if unknown."""
    reads = _read(
        Written((_model(service, launch), {name: args[name] for name in sorted(args) if name not in _OF_REQUESTS}))
    )
    if isinstance(reads, str) or reads.prefill_unknown:
        return None
    return prefill_range(reads, prompt, GB10).inverted(prompt)


def refused_rate(entry: Mapping[str, Any], service: ServiceSpec, launch: JudgedLaunch | PlannedService) -> str:
    """Say why a published rate, of C(expect) for this launch, is impossible, empty if it is not; C(max-num-seqs) may have been larger."""
    streams = entry.get("streams", 1)
    speed = of_service(service, {**launch.args, "max-num-seqs": streams}, launch)
    return explain_impossible(vars(speed), entry["tokens_per_second"], streams)


def of_launch(
    model: Mapping[str, Any], args: Mapping[str, Any], memory: Mapping[str, Any] | None = None
) -> ServiceSpeed:
    """Return the predicted speed of a launch. model: the keys of M(dgxspark.vllm.speed_estimate#module:services) but C(name) and C(args)."""
    memory = memory or {}
    length = _positive(args.get("max-model-len")) or _positive(memory.get("max_model_len")) or 0
    streams = _positive(args.get("max-num-seqs")) or _positive(memory.get("max_num_seqs")) or DEFAULT_SEQS
    if max(length, streams) > LARGEST:
        return ServiceSpeed(streams, unknown={"all": f"no prediction beyond {LARGEST} tokens and streams"})
    speed_args = {key: args[key] for key in sorted(args) if key not in _OF_REQUESTS}
    speed = _once(Written((dict(model), speed_args)), streams, length)
    return replace(speed, proof=dict(speed.proof), unknown=dict(speed.unknown), levers=list(speed.levers))


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@lru_cache(maxsize=1024)
def _read(launch: Written) -> SpeedInput | str:
    """Return the reads of a launch, or why they are unknown."""
    model, args = launch.content
    entry = {"name": "service", **model, "args": args}
    try:
        _host, (item,) = read_params({**_HOST, "services": [{**entry, "env": {}}]})
        return read_service(item, entry)
    except Refusal as refusal:
        return f"{refusal.key}: {refusal.reason}"
    except InputError as error:
        return str(error)


@lru_cache(maxsize=4096)
def _once(launch: Written, streams: int, length: int) -> ServiceSpeed:
    service = _read(launch)
    if isinstance(service, str):
        return ServiceSpeed(streams, proof=unknown_proof(service, streams), unknown={"all": service})
    replicas, (model, args) = service.replicas, launch.content
    unknown = {"decode": service.decode_unknown, "prefill": service.prefill_unknown}
    figures: dict[str, Range] = {}
    by_streams: dict[str, dict[str, float]] = {}
    if not service.decode_unknown:
        for level in LEVELS:
            if level <= streams * replicas:
                rate = decode_range(service, -(-level // replicas), CONTEXT, GB10).scaled(level)
                by_streams[str(level)] = rate.to_dict()
        figures["one_stream"] = decode_range(service, 1, CONTEXT, GB10)
        figures["all_streams"] = decode_range(service, streams, CONTEXT, GB10).scaled(streams * replicas)
    if service.launch.drafting:
        figures["steps"] = steps_range(service, 1, CONTEXT, GB10)
    elif service.item.args.get("speculative-config"):
        unknown["steps"] = service.decode_unknown
    if not service.prefill_unknown:
        for name, prompt in (("first_token_8k", SHORT_PROMPT), ("first_token_full", length)):
            if 0 < prompt <= length:
                figures[name] = prefill_range(service, prompt, GB10).inverted(prompt)
    return ServiceSpeed(
        streams * replicas,
        drafted=service.drafted,
        bytes_per_token=round(read_bytes(service.launch, 1, CONTEXT, GB10).total),
        bound_by=None if service.decode_unknown else bound_by(service.launch, 1, CONTEXT, GB10),
        levers=missing_levers(service, args, model.get("env") or {}, streams, length),
        ceiling=round(ceiling(service.launch, 1), 2),
        ceiling_all=round(replicas * ceiling(service.launch, streams), 2),
        by_streams=by_streams,
        proof=expect_proof(service, streams, length),
        unknown={name: reason for name, reason in unknown.items() if reason},
        **{name: figure.rounded() for name, figure in figures.items()},  # type: ignore[arg-type]  # ranges by their fields
    )
