# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load guard of a host: what C(spark_load_guard) says. What it decides on the host is in C(_runtime/load_guard.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .._common import plain_data, schema, validation
from .._common.schema import NUMBER, Key
from .._runtime.load_guard import Settings

DEFAULTS = Settings()

KEYS: dict[str, Key] = {
    "enabled": Key(bool, True, "whether the guard runs while a service of this host starts"),
    "floor_gib": Key(
        NUMBER,
        DEFAULTS.floor_gib,
        "caches are dropped while `MemFree` is below this, GiB",
        least=0.25,
        most=64,
        unit="GiB",
    ),
    "interval_seconds": Key(
        NUMBER, DEFAULTS.interval_seconds, "seconds between two looks", least=0.1, most=60, unit="seconds"
    ),
}
"""Keys of C(spark_load_guard)."""


def read(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_load_guard) as a person wrote it; return the settings with every default, and what is wrong.

    A boolean switches the guard; C(None) is the default, which is on.
    """
    settings = schema.defaults(KEYS)
    problems = validation.Problems(f"host {host}, spark_load_guard")
    if value is None or isinstance(value, bool):
        return {**settings, "enabled": value is not False}, []
    if not isinstance(value, Mapping):
        problems.add(f"must be true, false or a mapping, not {plain_data.kind(value)}. Known keys: {', '.join(KEYS)}.")
        return settings, problems.messages
    settings = schema.filled(problems, {str(key).replace("-", "_"): item for key, item in value.items()}, KEYS)
    return {**settings, **{key: float(settings[key]) for key in asdict(DEFAULTS)}}, problems.messages
