# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute a checksum of those facts of a host that can change its plan: equal checksums, equal plans.

A new fact counts unless it is excluded here. Host and controller compute the same checksum, so this file only imports the standard library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

STEP_GIB = 4.0
"""Step of memory figures: free memory in a plan of kept facts may differ by one step."""
HANDOVER_STEP_GIB = 1.0
"""Step of the memory that the kernel keeps for a handover; C(known_bad.keeps_handover) tests for one step."""
DISK_STEP_GIB = 16.0
"""Step of free disk space."""
ASK_GIB = 8.0
"""Available memory from which images are asked for their plan; C(image_questions.FREE_GIB)."""
EMPTY_GIB, FEW_BLOCKS = 32.0, 64
"""Limits of fragmented memory, as in C(preflight)."""
OWN_NAMES = "spark-"
"""Prefix of the collection's containers; a plan only depends on the ports of others."""
ROWS = {
    "containers": ("name", "service", "state", "fingerprint", "managed"),
    "units": ("name", "load_state", "active_state", "enabled"),
    "listening": ("port", "address", "process", "unit", "container"),
}
"""Stable fields of sections whose rows also have process ids, times and counters."""
GPU = ("name", "count", "driver_version", "cuda_version", "compute_capability")
"""Stable fields of the GPU; the others are load, temperature, clocks and processes."""
TOTALS = ("total_gib", "swap_total_gib", "hugepages_total", "cma_total_gib")
"""Stable figures of the memory."""
EXCLUDED = ("guard", "quality")
"""Sections that no plan reads."""


def stable_checksum(spark: Mapping[str, Any] | None, images: Mapping[str, Any] | None) -> str:
    """Return the checksum of the facts of a host that can change a plan.

    :param spark: C(spark) of M(dgxspark.vllm.spark_info), None if only images were gathered
    """
    facts = None if spark is None else _facts(spark)
    # A cached answer of an image counts like a fresh one.
    contents = {
        name: {**image, "probe_from": image.get("probe_from", "none") != "none"}
        if isinstance(image, Mapping)
        else image
        for name, image in (images or {}).items()
    }
    return hashlib.sha256(json.dumps([facts, contents], sort_keys=True, default=str).encode()).hexdigest()


def _facts(spark: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in spark.items() if name not in EXCLUDED}
    for section, fields in ROWS.items():
        if isinstance(facts.get(section), list):
            facts[section] = _rows(section, facts[section], fields)
    if facts.get("gpu"):
        facts["gpu"] = {name: facts["gpu"].get(name) for name in GPU}
    resident = facts.get("resident") or []
    if facts.get("memory"):
        facts["memory"] = _memory(facts["memory"], sum(_figure(holder.get("gib")) for holder in resident))
    if resident:
        facts["resident"] = sorted([holder.get("name"), _steps(holder.get("gib"))] for holder in resident)
    if facts.get("disks"):
        facts["disks"] = {
            path: {**disk, "free_gib": _steps(disk.get("free_gib"), DISK_STEP_GIB)}
            for path, disk in facts["disks"].items()
        }
    return facts


def _rows(section: str, rows: list[Mapping[str, Any]], fields: tuple[str, ...]) -> list[str]:
    """Return rows as sorted texts: programs print them in any order."""
    if section == "containers":
        rows = [row for row in rows if row.get("managed") or str(row.get("name")).startswith(OWN_NAMES)]
    return sorted(json.dumps([row.get(name) for name in fields], default=str) for row in rows)


def _memory(memory: Mapping[str, Any], held_gib: float) -> dict[str, Any]:
    """Return totals, the free memory without the collection's engines, and the limits of findings."""
    available, free, blocks = (memory.get(name) for name in ("available_gib", "free_gib", "large_blocks"))
    # What the kernel keeps for a handover, in steps: free CMA memory in excess of its total.
    cma, handover = [memory.get(name) for name in ("cma_free_gib", "cma_total_gib")], None
    if None not in cma:
        handover = max(0, int((_figure(cma[0]) - _figure(cma[1])) // HANDOVER_STEP_GIB))
    return {
        **{name: memory.get(name) for name in TOTALS},
        "for_engines": None if available is None else _steps(_figure(available) + held_gib),
        "can_ask_images": _figure(available) >= ASK_GIB,
        "is_fragmented": blocks is not None and blocks < FEW_BLOCKS and _figure(free) > EMPTY_GIB,
        "handover_gib": handover,
    }


def _steps(figure: Any, step: float = STEP_GIB) -> int:
    return int(_figure(figure) // step)


def _figure(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
