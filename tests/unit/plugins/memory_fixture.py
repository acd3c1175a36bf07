# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows that vLLM's own planner computed, and the configs they belong to."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

GIB = 1 << 30


@functools.lru_cache(maxsize=1)
def load() -> dict[str, Any]:
    """Read the fixture once."""
    path = Path(__file__).parent / "fixtures" / "memory_rows.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    data["rows"] = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    return data


def config(model: str, quantization: str | None = None) -> dict[str, Any]:
    """Return a config.json, reduced to the relevant keys, optionally with the quantisation of a published checkpoint."""
    data = load()
    body: dict[str, Any] = copy.deepcopy(data["configs"][model])
    if quantization:
        body["quantization_config"] = copy.deepcopy(data["quantization"][f"{model} {quantization}"])
    return body


def service(
    name: str, model: str, quantization: str | None = None, version: str = "0.19.0", **args: Any
) -> dict[str, Any]:
    """Return a service of the memory budget; arguments are written with underscores."""
    return {
        "name": name,
        "config": config(model, quantization),
        "vllm_version": version,
        "args": {key.replace("_", "-"): value for key, value in args.items()},
    }


def heavy(**args: Any) -> dict[str, Any]:
    """Return the 80B of the published co-residency report."""
    return service("heavy", "Qwen3-Next-80B-A3B", "FP8", **{"max_model_len": 65536, "max_num_seqs": 4, **args})


def fast(**args: Any) -> dict[str, Any]:
    """Return the 4B of the published co-residency report."""
    return service("fast", "Qwen3-4B-Instruct-2507", **{"max_model_len": 16384, "max_num_seqs": 8, **args})


def node_without_memory() -> dict[str, Any]:
    """Return a node whose memory is nearly used up: s2 asks for more than is free, and with less it starts last and finds nothing."""
    model = "Qwen3-4B-Instruct-2507"
    services = [service("s0", model), service("s1", model), service("s2", model, gpu_memory_utilization=0.16)]
    return {
        "total_gib": 59.8,
        "measured": {"mem_available_gib": 9.0, "resident": []},
        "services": [{**item, "share": 0} for item in services],
    }


def node_with_a_generous_neighbour() -> dict[str, Any]:
    """Return a node on which s2 asks for less than its weights, and s1 has most of the memory that s2 needs."""
    services = [
        service("s0", "Qwen3-4B-Instruct-2507"),
        service("s1", "Qwen3-4B-Instruct-2507", gpu_memory_utilization=0.36),
        service("s2", "Qwen3.6-35B-A3B", "NVFP4", gpu_memory_utilization=0.05),
    ]
    return {"total_gib": 119.67, "services": [{**item, "share": 0} for item in services]}
