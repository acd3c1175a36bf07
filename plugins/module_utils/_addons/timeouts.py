# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a request may take, so that the gateway and its clients wait as long as an engine works: from the context length and the
prefill rate of each engine, and from how long a request is held while one on demand loads.

An engine sends nothing while it reads a prompt. A prompt of 949,221 tokens took 815 s to its first token, and streams that were silent for
300 s were cut off by gateways and clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

ASSUMED_RATE = 750.0
"""Prompt tokens a second of an engine that nobody measured. Owners measured 1098 (27B NVFP4) to 6990 (30B-A3B NVFP4) at 8K on one Spark, and
1942 at 200K, 1164 at 949K on a pair: the rate falls with the length, so what is assumed is below all of them."""
MARGIN = 1.5
"""The engine reads the prompts of others meanwhile."""
WAIT_SECONDS = 60.0
"""In the queue of the engine, and for kernels that are compiled for a length that is new."""
ANSWER_SECONDS = 1200
"""For the answer itself after its first token: 12,000 tokens at 10 a second."""
SILENT_SECONDS, WHOLE_SECONDS = 600, 1800
"""What the gateway allows at least: a stream to be silent, an answer without streaming to take."""
STEP = 60
"""Seconds are rounded up to it, so that a figure that is measured again changes nothing."""


@dataclass(frozen=True)
class Limits:
    """How long a request may take, seconds: silent, until the first token and between two of a stream; whole, for an answer without streaming.

    rate: prompt tokens a second that they follow from, assumed or not; length: of the context, None where it is not known. hold: of it all,
    while an engine on demand loads.
    """

    silent: int
    whole: int
    rate: float = ASSUMED_RATE
    assumed: bool = True
    length: int | None = None
    hold: int = 0

    @property
    def reading(self) -> int:
        """What the reading of a prompt takes of the silence, seconds."""
        return self.silent - self.hold


def limits(length: int | None, rate: float | None = None, hold: int = 0) -> Limits:
    """Return how long requests of one engine may take.

    :param length: its context length in tokens, None where it is not known
    :param rate: prompt tokens a second, as measured at long prompts; None for C(ASSUMED_RATE)
    :param hold: seconds that a request may wait for the engine to load, 0 for one that is always there
    :returns: the limits, never below C(SILENT_SECONDS) and C(WHOLE_SECONDS)
    """
    used, held = rate or ASSUMED_RATE, math.ceil(hold / STEP) * STEP
    first = WAIT_SECONDS + MARGIN * length / used if length else 0.0
    silent = max(SILENT_SECONDS, math.ceil(first / STEP) * STEP) + held
    return Limits(silent, max(WHOLE_SECONDS, silent + ANSWER_SECONDS), used, rate is None, length or None, held)


def longest(found: Iterable[Limits]) -> Limits:
    """Return limits that are enough for all of some engines; those of C(limits(None)) for none."""
    all_of_them = list(found)
    if not all_of_them:
        return limits(None)
    slowest = max(all_of_them, key=lambda each: (each.silent, each.whole))
    return replace(slowest, whole=max(each.whole for each in all_of_them))


def of_backends(
    lengths: Mapping[str, int | None], rates: Mapping[str, Any], holds: Mapping[str, int]
) -> dict[str, Limits]:
    """Return the limits of each backend of a gateway.

    :param lengths: backend to its context length in tokens
    :param rates: backend to its measured prompt tokens a second, of those that were measured
    :param holds: backend to the seconds that its requests may wait for it to load, of those on demand
    :returns: backend to its limits
    """
    return {key: limits(length, rates.get(key), holds.get(key, 0)) for key, length in lengths.items()}
