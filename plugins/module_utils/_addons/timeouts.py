# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Timeouts of the gateway and its clients, so that they wait as long as an engine works.

They follow from the context length and the prefill rate of each engine, and from the time that a request waits while an engine on demand
loads. An engine sends nothing while it reads a prompt. A prompt of 949,221 tokens took 815 s to its first token, and gateways and clients
cut off streams that were silent for 300 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ASSUMED_RATE = 750.0
"""Prompt tokens per second of an engine without a measurement. Owners measured 1098 (27B NVFP4) to 6990 (30B-A3B NVFP4) at 8K on one Spark, and
1942 at 200K, 1164 at 949K on a pair: the rate falls with the length, so the assumption is below all measurements."""
MARGIN = 1.5
"""The engine reads other prompts at the same time."""
WAIT_SECONDS = 60.0
"""In the queue of the engine, and for kernels that are compiled for a new length."""
ANSWER_SECONDS = 1200
"""For the answer after its first token: 12,000 tokens at 10 per second."""
SILENT_SECONDS, WHOLE_SECONDS = 600, 1800
"""The least timeouts of the gateway: for the next part of a stream, and for an answer without streaming."""
STEP = 60
"""Timeouts are rounded up to whole minutes, so that a repeated measurement does not change them."""


@dataclass(frozen=True)
class Limits:
    """How long a request may take, seconds.

    silent: until the first token and between two tokens of a stream. answer: for an answer without streaming. rate: prompt tokens per second,
    measured or assumed. length: the context length, C(None) if unknown. hold: the share for the load of an engine on demand.
    """

    silent: int
    answer: int
    rate: float = ASSUMED_RATE
    assumed: bool = True
    length: int | None = None
    hold: int = 0

    @property
    def reading(self) -> int:
        """The share of C(silent) for reading the prompt, seconds."""
        return self.silent - self.hold


def limits(length: int | None, rate: float | None = None, hold: int = 0) -> Limits:
    """Return how long requests of one engine may take.

    :param length: its context length in tokens, C(None) if unknown
    :param rate: measured prompt tokens per second at long prompts; C(None) for C(ASSUMED_RATE)
    :param hold: seconds that a request may wait for the engine to load, 0 for an engine that always runs
    :returns: the limits, at least C(SILENT_SECONDS) and C(WHOLE_SECONDS)
    """
    tokens_per_second, hold = rate or ASSUMED_RATE, math.ceil(hold / STEP) * STEP
    first_token = WAIT_SECONDS + MARGIN * length / tokens_per_second if length else 0.0
    silent = max(SILENT_SECONDS, math.ceil(first_token / STEP) * STEP) + hold
    return Limits(
        silent, max(WHOLE_SECONDS, silent + ANSWER_SECONDS), tokens_per_second, rate is None, length or None, hold
    )
