# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few figures of vLLM's /metrics that a status table shows, and those that tell whether an engine moves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .._common.foreign_text import printable

# Our name -> vLLM's gauge (vllm/v1/metrics/loggers.py; the second KV name is the one before 0.9).
GAUGES = {
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
}
REQUESTS = {name: GAUGES[name] for name in ("requests_running", "requests_waiting")}
# What only grows while an engine works: tokens out, tokens in, steps of the scheduler (prometheus adds _total and _count).
COUNTERS = {
    "generation_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "iterations": ("vllm:iteration_tokens_total_count",),
}
SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?")
LABEL = re.compile(r'(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
MOST = 2**63
"""No count, size or time is larger; sums of more could overflow."""


def _samples(text: str, prefix: str | tuple[str, ...] = "") -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and value of each sample whose name begins with C(prefix), or one of them.

    A value that is not a number, not finite or beyond C(MOST) is left out.
    """
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line.strip()) if line.startswith(prefix) else None
        if match:
            try:
                value = float(match.group(3))
            except ValueError:
                continue
            if abs(value) <= MOST:  # false for NaN
                yield match.group(1), match.group(2) or "", value


def labelled(text: str, prefix: str | tuple[str, ...]) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and value of the samples of each name that begins with C(prefix), or one of them."""
    rows: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, inner, value in _samples(text, prefix):
        labels = {
            label: printable(ESCAPED.sub(lambda sign: sign[1].replace("n", "\n"), escaped))
            for label, escaped in LABEL.findall(inner)
        }
        rows.setdefault(name, []).append((labels, value))
    return rows


def samples(text: str) -> dict[str, list[float]]:
    """Return the values of each name, with any labels."""
    values: dict[str, list[float]] = {}
    for name, _labels, value in _samples(text):
        values.setdefault(name, []).append(value)
    return values


def sums(text: str, figures: Mapping[str, tuple[str, ...]]) -> dict[str, float | None]:
    """Return figures summed over engines, None for missing ones. figures: names of vLLM, of which the first that is there counts, by ours."""
    series = samples(text)
    found = {
        figure: next((series[name] for name in names if name in series), None) for figure, names in figures.items()
    }
    return {figure: None if values is None else sum(values) for figure, values in found.items()}


def parse(text: str) -> dict[str, Any]:
    """Read the exposition format; returns each figure of C(GAUGES) or None.

    KV use is a share from 0 to 1, the largest of several engines; requests are summed.
    """
    series = samples(text)
    usage = next((max(series[name]) for name in GAUGES["kv_cache_usage"] if name in series), None)
    requests = {figure: None if value is None else int(value) for figure, value in sums(text, REQUESTS).items()}
    return {"kv_cache_usage": usage, **requests}


def progress(text: str) -> dict[str, float | None]:
    """Read what tells whether an engine moves: C(COUNTERS), requests running and waiting; each summed, or None."""
    return sums(text, {**COUNTERS, **REQUESTS})
