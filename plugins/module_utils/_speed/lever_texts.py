# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The published levers of levers.yml, which the controller reads once. Hosts import this file, so it must not import the engine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of levers.yml by lever."""
    import yaml  # PyYAML: only the controller needs it here

    entries = yaml.safe_load(Path(__file__).with_name("levers.yml").read_text(encoding="utf-8"))
    return {entry["lever"]: entry for entry in entries}


def describe_lever(name: str) -> str:
    """Return the advice of a lever with its published difference."""
    row = rows()[name]
    return f"{name}: {row['advice']}. Published: {row['delta']} ({row['source']})"
