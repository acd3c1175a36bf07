# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rates that no launch can have, since they need more than the memory bus carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .constants import BUS


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
    """Say why a rate is impossible, empty if it is possible or the limit is unknown.

    :param speed: C(speed) of a planned service
    :param rate: tokens/s of all requests together
    """
    limit = bus_limit(speed, requests)
    if limit is None or rate <= limit:
        return ""
    drafts = f" and {speed['drafted']} drafted tokens" if speed.get("drafted") else ""
    return (
        f"{rate:g} tokens/s need {BUS / 1e9 * rate / limit:.0f} GB/s of each Spark, whose memory bus carries {BUS / 1e9:g}: at most "
        f"{limit:.3g} tokens/s are possible with the {speed['bytes_per_token'] / 1e9:.3g} GB that a token reads{drafts}"
    )
