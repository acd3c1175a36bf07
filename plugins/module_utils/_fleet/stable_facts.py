# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A checksum of the facts of a host that can change a plan, without what varies by itself: equal checksums, equal plans.

Everything counts that is not left out here: a new fact counts by itself. Host and controller work it out alike, so this file imports
the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

STEP_GIB = 4.0
"""Step of memory figures: a plan from kept facts may be that far off in what it shows as free."""
HANDOVER_STEP_GIB = 1.0
"""Step of the memory that the kernel keeps for a handover; C(known_bad.keeps_handover) asks for one of them."""
DISK_STEP_GIB = 16.0
"""Step of free disk space."""
ASK_GIB = 8.0
"""An image is asked how it would plan with this much memory available; C(image_questions.FREE_GIB)."""
EMPTY_GIB, FEW_BLOCKS = 32.0, 64
"""When memory counts as fragmented; as C(preflight) has them."""
OWN_NAMES = "spark-"
"""Start of the names of containers of the collection; others are no matter for a plan, but for the ports that they hold."""
ROWS = {
    "containers": ("name", "service", "state", "fingerprint", "managed"),
    "units": ("name", "load_state", "active_state", "enabled"),
    "listening": ("port", "address", "process", "unit", "container"),
}
"""Fields that count, of the sections whose rows also have process ids, times and counters."""
GPU = ("name", "count", "driver_version", "cuda_version", "compute_capability")
"""Fields of the GPU that count; the others are its load, temperature, clocks and processes."""
TOTALS = ("total_gib", "swap_total_gib", "hugepages_total", "cma_total_gib")
"""Figures of the memory that count as they are."""
LEFT_OUT = ("guard",)
"""Sections that no plan reads: what the guard of the memory did last."""


def stable_checksum(spark: Mapping[str, Any] | None, images: Mapping[str, Any] | None) -> str:
    """Return the checksum of the facts of a host that can change a plan.

    :param spark: C(spark) of M(dgxspark.vllm.spark_info), None where only images were asked for
    :param images: C(images) of it
    :returns: a SHA-256
    """
    facts = None if spark is None else _facts(spark)
    found = {name: _image(image) for name, image in (images or {}).items()}
    return hashlib.sha256(json.dumps([facts, found], sort_keys=True, default=str).encode()).hexdigest()


def _facts(spark: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in spark.items() if name not in LEFT_OUT}
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
        facts["disks"] = {path: _disk(disk) for path, disk in facts["disks"].items()}
    return facts


def _rows(section: str, rows: list[Mapping[str, Any]], fields: tuple[str, ...]) -> list[str]:
    """Return rows as texts in one order: programs print them in any."""
    if section == "containers":
        rows = [row for row in rows if row.get("managed") or str(row.get("name")).startswith(OWN_NAMES)]
    return sorted(json.dumps([row.get(name) for name in fields], default=str) for row in rows)


def _memory(memory: Mapping[str, Any], held_gib: float) -> dict[str, Any]:
    """Return the memory by its totals, by what is free without our engines, and by the limits that findings go by."""
    available, free, blocks = (memory.get(name) for name in ("available_gib", "free_gib", "large_blocks"))
    return {
        **{name: memory.get(name) for name in TOTALS},
        "for_engines": None if available is None else _steps(_figure(available) + held_gib),
        "can_ask_images": _figure(available) >= ASK_GIB,
        "is_fragmented": blocks is not None and blocks < FEW_BLOCKS and _figure(free) > EMPTY_GIB,
        "handover_gib": _handover(memory.get("cma_total_gib"), memory.get("cma_free_gib")),
    }


def _handover(total: Any, free: Any) -> int | None:
    """Return the memory that the kernel keeps for a handover, in steps; what is more free than there is in total shows it."""
    return None if total is None or free is None else max(0, int((_figure(free) - _figure(total)) // HANDOVER_STEP_GIB))


def _disk(disk: Mapping[str, Any]) -> dict[str, Any]:
    return {**disk, "free_gib": _steps(disk.get("free_gib"), DISK_STEP_GIB)}


def _image(image: Any) -> Any:
    """Return an image; whether an answer of it was cached does not matter."""
    if not isinstance(image, Mapping):
        return image
    return {**image, "probe_from": image.get("probe_from", "none") != "none"}


def _steps(figure: Any, step: float = STEP_GIB) -> int:
    return int(_figure(figure) // step)


def _figure(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
