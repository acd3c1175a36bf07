# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads C(spark_load_guard), the settings of the load guard. C(_runtime/load_guard.py) decides on the host."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .._common.schema import NUMBER, Key
from .._runtime.load_guard import Settings
from . import guard

DEFAULTS = Settings()

KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "keep memory free while a service starts"),
    "floor_gib": Key(
        NUMBER,
        DEFAULTS.floor_gib,
        "caches are dropped below this `MemFree`",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "interval_seconds": Key(
        NUMBER, DEFAULTS.interval_seconds, "seconds between two checks", least=0.1, most=60, unit="seconds"
    ),
}
"""Keys of C(spark_load_guard)."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_load_guard) as a person wrote it; return the settings with all defaults, and the problems."""
    settings, problems = guard.read_switched(host, "spark_load_guard", value, KEYS)
    return {**settings, **{key: float(settings[key]) for key in asdict(DEFAULTS)}}, problems.messages
