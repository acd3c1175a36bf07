# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicted figures as objects: a range, the speed of a service, and rates that no launch can have. Hosts import it, so it must not import the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .constants import BUS, Spread


def bus_limit(speed: Mapping[str, Any], requests: int = 1) -> float | None:
    """Return the tokens/s of so many requests together that the memory bus allows, None if unknown.

    :param speed: C(speed) of a planned service: C(ceiling), C(ceiling_all), C(drafted)
    :param requests: at a time, with different prompts; those beyond the streams of the service wait
    :returns: tokens per second
    """
    single, together = speed.get("ceiling"), speed.get("ceiling_all")
    if single is None or together is None:
        return None
    return float(min(requests * single, together) * (1 + (speed.get("drafted") or 0)))


def explain_impossible(speed: Mapping[str, Any], rate: float, requests: int = 1) -> str:
    """Say why a rate of all requests together, in tokens/s, is impossible; empty if it is possible or its limit is unknown."""
    limit = bus_limit(speed, requests)
    if limit is None or rate <= limit:
        return ""
    drafts = f" and {speed['drafted']} drafted tokens" if speed.get("drafted") else ""
    return (
        f"{rate:g} tokens/s need {BUS / 1e9 * rate / limit:.0f} GB/s of each Spark, whose memory bus carries {BUS / 1e9:g}: at most "
        f"{limit:.3g} tokens/s are possible with the {speed['bytes_per_token'] / 1e9:.3g} GB that a token reads{drafts}"
    )


def round_figure(value: float) -> float:
    """Return three significant digits."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class Range:
    """A figure as the least, the most likely and the most."""

    low: float
    typical: float
    high: float

    @classmethod
    def around(cls, rates: Iterable[float], spread: Spread) -> Range:
        """Return the range of rates, widened by the spread of published rates around each."""
        ordered = sorted(rates)
        typical = math.sqrt(ordered[0] * ordered[-1])
        return cls(ordered[0] * spread.low, typical, ordered[-1] * spread.high)

    def scaled(self, factor: float) -> Range:
        """Return the range times a factor."""
        return Range(self.low * factor, self.typical * factor, self.high * factor)

    def inverted(self, factor: float) -> Range:
        """Return C(factor) divided by the range: seconds of a rate."""
        return Range(factor / self.high, factor / self.typical, factor / self.low)

    def rounded(self) -> Range:
        """Return the range with three significant digits."""
        return Range(*map(round_figure, (self.low, self.typical, self.high)))

    def to_dict(self) -> dict[str, float]:
        """Return three significant digits of each."""
        return dict(vars(self.rounded()))


@dataclass(frozen=True)
class ServiceSpeed:
    """The speed of a service, alone on its Sparks. Unknown figures are None.

    streams: most requests at a time, of all replicas. one_stream: tokens/s of one stream. all_streams: of C(streams) streams together.
    steps: decode steps per second of one stream with a drafter, however many drafted tokens are accepted. drafted: tokens drafted in a
    step. first_token_8k, first_token_full: seconds to the first token of a prompt of 8192 tokens, and of the longest, on an idle engine.
    bytes_per_token: that a step of one stream reads. ceiling, ceiling_all: tokens/s of one stream and of all together at one token a step
    that take the whole bandwidth of the memory; with a drafter C(drafted + 1) times as many are the limit. bound_by: the largest part of
    a step. shared_by: services that may answer at the same time on its busiest Spark, with this one; each gets that share of the bus.
    levers: changes of levers.yml that made launches of others faster, which it does not have. by_streams: tokens/s of several streams
    together by their number, C({low, typical, high}). proof: the prediction for the measurements of a proof, of C(expectation.py).
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
    levers: Sequence[str] = field(default_factory=list)
    by_streams: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    def limit(self, requests: int = 1) -> float | None:
        """Return C(bus_limit) of so many requests together."""
        return bus_limit(vars(self), requests)
