# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The predicted speed of services in words, for the terminal and the page. Pure functions on plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._speed.lever_texts import describe_lever

ADVICE = "Published changes that made such launches faster; not measured by this project, not applied by the plan"
"""Headline above C(advice)."""

HEADS = ("tok/s (1 stream)", "tok/s (all streams)", "first token, 8k", "first token, full", "1 stream, shared")
"""Columns of speed: tokens per second, seconds to the first token, and tokens per second while all services of the Spark answer."""


def figure(value: float) -> str:
    """Write a figure with two significant digits, three from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{float(f'{value:.2g}'):g}"


def spread(predicted: Mapping[str, float] | None) -> str:
    """Write a range as C(low to high); a dash if it is unknown."""
    return f"{figure(predicted['low'])} to {figure(predicted['high'])}" if predicted else "-"


def seconds_text(predicted: Mapping[str, float] | None) -> str:
    """Write the range of a duration in seconds."""
    return f"{spread(predicted)} s" if predicted else "-"


def cells(service: Mapping[str, Any]) -> list[str]:
    """Return the cells of a planned service below C(HEADS)."""
    speed = service.get("speed") or {}
    alone, together, shared_by = speed.get("one_stream"), speed.get("all_streams"), speed.get("shared_by") or 1
    shared = {key: value / shared_by for key, value in alone.items()} if alone and shared_by > 1 else None
    return [
        spread(alone),
        f"{spread(together)} ({speed['streams']})" if together else "-",
        seconds_text(speed.get("first_token_8k")),
        seconds_text(speed.get("first_token_full")),
        spread(shared),
    ]


def speed_rows(services: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the header and the rows of the table of speeds, empty without a known figure. services: by their names in the table."""
    rows = {label: cells(service) for label, service in services.items()}
    columns = [number for number in range(len(HEADS)) if any(row[number] != "-" for row in rows.values())]
    header = ["speed, predicted", *(HEADS[number] for number in columns)]
    return [header, *([label, *(row[number] for number in columns)] for label, row in rows.items())] if columns else []


def notes(services: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return lines on how services share a bus, and why speeds are unknown, each with the names of its services."""
    by_text: dict[str, list[str]] = {}
    for service in services:
        speed = service.get("speed") or {}
        if (speed.get("shared_by") or 1) > 1 and speed.get("one_stream"):
            text = f"1 stream, shared: while {speed['shared_by']} services of the Spark answer at once, each has that share of its memory bus"
            by_text.setdefault(text, []).append(service["name"])
        for name, reason in (speed.get("unknown") or {}).items():
            if name != "steps":
                words = {"all": "speed", "decode": "tokens per second", "prefill": "first token"}[name]
                by_text.setdefault(f"{words} unknown: {reason}", []).append(service["name"])
    return names_first(by_text)


def advice(services: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each lever that services of a host do not have, with the names of the services."""
    by_text: dict[str, list[str]] = {}
    for service in services:
        for lever in (service.get("speed") or {}).get("levers") or ():
            by_text.setdefault(describe_lever(lever), []).append(service["name"])
    return names_first(by_text)


def names_first(by_text: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each text, after the names that it is about."""
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in by_text.items()]
