# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few figures of vLLM's /metrics that a status table shows."""

from __future__ import annotations

import re
from typing import Any

# Our name -> vLLM's gauge (vllm/v1/metrics/loggers.py; the second KV name is the one before 0.9).
GAUGES = {
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
}
SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?\s+(\S+)(?:\s+\d+)?")


def parse(text: str) -> dict[str, Any]:
    """Read the exposition format; returns each figure of C(GAUGES) or None.

    KV use is a share from 0 to 1, the largest of several engines; requests are summed.
    """
    samples: dict[str, list[float]] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else SAMPLE.fullmatch(line.strip())
        if match:
            try:
                samples.setdefault(match.group(1), []).append(float(match.group(2)))
            except ValueError:
                continue
    figures: dict[str, Any] = {}
    for figure, names in GAUGES.items():
        values = next((samples[name] for name in names if name in samples), None)
        if values is None:
            figures[figure] = None
        else:
            figures[figure] = max(values) if figure == "kv_cache_usage" else int(sum(values))
    return figures
