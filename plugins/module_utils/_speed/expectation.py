# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The predicted results of the measurements of a proof (C(judge.py)), for the plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .constants import GB10, Constants
from .estimate import SpeedInput, ceiling, prefill_range, steps_range
from .judge import MOST_STREAMS, OUTPUT_TOKENS, PREFILL_TOKENS, PROMPT_TOKENS, SAME_LENGTH, Expected

_LENGTH = PROMPT_TOKENS + OUTPUT_TOKENS / 2
_LEAST_PREFILL = 768
"""The rate of a shorter prompt is mostly that of fixed times."""


def expect_proof(service: SpeedInput, streams: int, context: int = 0, constants: Constants = GB10) -> dict[str, Any]:
    """Return the prediction for the measurements of a proof.

    :param streams: most requests at a time in one replica
    :param context: C(max-model-len), 0 if it is unknown
    :returns: C(judge.Expected) as plain data, without fields that have their defaults
    """
    launch, replicas = service.launch, service.replicas
    at_once = min(streams * replicas, MOST_STREAMS)
    mean = max(1.0, at_once / replicas)
    per_replica = -(-at_once // replicas)
    unknown = {"decode": service.decode_unknown, "prefill": service.prefill_unknown}
    figures: dict[str, Any] = {"prefill_tokens": prefill_length(launch.chunk, context)}
    if not service.decode_unknown or _is_acceptance_unknown(service):
        figures["single"] = steps_range(service, 1, _LENGTH, constants).to_dict()
        if at_once > 1:
            figures["several"] = steps_range(service, per_replica, _LENGTH, constants).to_dict()
        unknown["decode"] = ""
    if not service.prefill_unknown:
        figures["prefill"] = prefill_range(service, figures["prefill_tokens"], constants).to_dict()
    draftings = [entry.drafting.accepted for entry in service.launches if entry.drafting]
    width = service.drafted + 1
    expected = Expected(
        streams=at_once,
        sparks=service.sparks,
        eager=launch.eager,
        drafted=service.drafted,
        ceilings={
            "single": round(width * ceiling(launch, 1), 2),
            "several": round(width * ceiling(launch, mean) / mean, 2),
        },
        accepted=(draftings[0], draftings[-1]) if draftings and not service.decode_unknown else None,
        unknown={name: reason for name, reason in unknown.items() if reason},
        **figures,
    )
    defaults = asdict(Expected())
    return {name: value for name, value in asdict(expected).items() if value != defaults[name]}


def prefill_length(chunk: int, context: int) -> int:
    """Return the tokens of the prompt that measures prefill: all lengths that pass for the same take one chunk, if that is long enough.

    A prompt that is a few tokens longer than a chunk takes two, at two thirds of the rate.

    :param chunk: C(max-num-batched-tokens)
    :param context: C(max-model-len), 0 if it is unknown
    """
    length = min(PREFILL_TOKENS, context // 2 or PREFILL_TOKENS)
    inside = int(chunk / (1 + SAME_LENGTH))
    return inside if _LEAST_PREFILL <= inside < length else length


def unknown_proof(reason: str, streams: int) -> dict[str, Any]:
    """Return the prediction of nothing, for a reason; arguments else as C(expect_proof)."""
    return {"streams": min(streams, MOST_STREAMS), "unknown": {"decode": reason}}


def _is_acceptance_unknown(service: SpeedInput) -> bool:
    """Tell whether the steps per second are known, and only the tokens that a step yields are not."""
    drafting = service.launch.drafting
    return drafting is not None and drafting.accepted == 1.0 and not (service.launch.eager and service.reads.is_latent)
