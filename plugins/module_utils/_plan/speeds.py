# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The predicted speed of a planned service, alone on its Sparks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .._common.plain_data import InputError, Written
from .._memory.layers import Refusal
from .._memory.service_input import DEFAULT_SEQS, read_params
from .._speed.constants import GB10
from .._speed.estimate import (
    Range,
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

if TYPE_CHECKING:
    from .service import JudgedLaunch, ServiceSpec

CONTEXT = 1024 + 128 / 2
"""Tokens of context that decode rates are stated at: a prompt of 1024 tokens, half way through an answer of 128."""
SHORT_PROMPT = 8192
LEVELS = (2, 4, 8, 16, 32, 64)
"""Numbers of streams whose rates the plan has besides those of one and of most streams."""
_HOST = {"total_gib": 119.67}
"""The memory of a GB10; speed does not depend on it."""
_OF_REQUESTS = frozenset(("max-model-len", "max-num-seqs", "gpu-memory-utilization"))
"""Options that change no bytes of a step."""


@dataclass(frozen=True)
class ServiceSpeed:
    """The speed of a service, alone on its Sparks. A figure that is not known is None.

    streams: most requests at a time, of all replicas. one_stream: tokens/s of one stream. all_streams: of C(streams) streams together.
    steps: decode steps per second of one stream with a drafter, however many drafted tokens are accepted. drafted: tokens drafted in a
    step. first_token_8k, first_token_full: seconds to the first token of a prompt of 8192 tokens, and of the longest, on an idle engine.
    bytes_per_token: that a step of one stream reads. ceiling, ceiling_all: tokens/s of one stream and of all together at one token a step
    that take the whole bandwidth of the memory; with a drafter C(drafted + 1) times as many are the limit. bound_by: the largest part of
    a step. shared_by: services that may answer at the same time on its busiest Spark, with this one; each gets that share of the bus.
    a step. by_streams: tokens/s of several streams together by their number, as C({low, typical, high}).
    proof: the prediction for the measurements of a proof, of C(expectation.py).
    unknown: a reason by figure, C(decode), C(steps), C(prefill) or C(all).
    """

    streams: int
    one_stream: Range | None = None
    all_streams: Range | None = None
    steps: Range | None = None
    drafted: int = 0
    first_token_8k: Range | None = None
    first_token_full: Range | None = None
    bytes_per_token: int | None = None
    ceiling: float | None = None
    ceiling_all: float | None = None
    bound_by: str | None = None
    shared_by: int = 1
    by_streams: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def limit(self, streams: int = 1) -> float | None:
        """Return the tokens/s of so many requests together that the memory bus allows, None if unknown; more than C(streams) wait."""
        if self.ceiling is None or self.ceiling_all is None:
            return None
        return (self.drafted + 1) * min(streams * self.ceiling, self.ceiling_all)


def of_service(
    service: ServiceSpec, args: Mapping[str, Any], launch: JudgedLaunch, memory: Mapping[str, Any] | None = None
) -> ServiceSpeed:
    """Return the predicted speed of a planned service; equal launches are computed once.

    :param service: as C(recipes.resolve_service) returns it
    :param args: the options of its engine, solved
    :param launch: as the rules judge it
    :param memory: its part of the memory budget, which has the context and the requests if C(args) does not
    :returns: the speed of all its Sparks together
    """
    return of_launch(
        {
            "config": service.config,
            "quant_config": service.quant_config,
            "draft_config": service.draft_config,
            "draft_weights_gib": service.draft_weights_gib,
            "vllm_version": launch.vllm_version,
            "env": launch.env,
        },
        args,
        memory,
    )


def of_launch(
    model: Mapping[str, Any], args: Mapping[str, Any], memory: Mapping[str, Any] | None = None
) -> ServiceSpeed:
    """Return the predicted speed of a launch.

    :param model: the keys of M(dgxspark.vllm.speed_estimate#module:services) but C(name) and C(args)
    :param args: the options of the engine
    :param memory: its part of the memory budget
    :returns: the speed
    """
    memory = memory or {}
    length = _whole(args.get("max-model-len")) or _whole(memory.get("max_model_len")) or 0
    streams = _whole(args.get("max-num-seqs")) or _whole(memory.get("max_num_seqs")) or DEFAULT_SEQS
    speed_args = {key: args[key] for key in sorted(args) if key not in _OF_REQUESTS}
    speed = _once(Written((dict(model), speed_args)), streams, length)
    return replace(speed, proof=dict(speed.proof), unknown=dict(speed.unknown))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@lru_cache(maxsize=1024)
def _read(launch: Written) -> SpeedInput | str:
    """Return what the speed of a launch follows from, or why that is unknown."""
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
    replicas = service.replicas
    unknown = {"decode": service.decode_unknown, "prefill": service.prefill_unknown}
    figures: dict[str, Any] = {}
    if not service.decode_unknown:
        figures["one_stream"] = decode_range(service, 1, CONTEXT, GB10)
        figures["all_streams"] = decode_range(service, streams, CONTEXT, GB10).scaled(streams * replicas)
        levels = [level for level in LEVELS if level <= streams * replicas]
        figures["by_streams"] = {
            str(level): decode_range(service, -(-level // replicas), CONTEXT, GB10).scaled(level).to_dict()
            for level in levels
        }
        figures["bound_by"] = bound_by(service.launch, 1, CONTEXT, GB10)
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
        ceiling=round(ceiling(service.launch, 1, GB10), 2),
        ceiling_all=round(replicas * ceiling(service.launch, streams, GB10), 2),
        proof=expect_proof(service, streams),
        unknown={name: reason for name, reason in unknown.items() if reason},
        **{name: figure.rounded() if isinstance(figure, Range) else figure for name, figure in figures.items()},
    )
