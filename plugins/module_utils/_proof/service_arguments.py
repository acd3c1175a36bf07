# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments of modules about a service whose engine is compared with its plan."""

from __future__ import annotations

from typing import Any

SERVICE: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "unit": {"type": "str"},
    "container": {"type": "str"},
    "rank": {"type": "int", "default": 0},
    "cluster": {"type": "dict"},
    "memory": {"type": "dict", "default": {}},
    "fast_path": {"type": "dict", "default": {}},
    "probe": {"type": "dict", "default": {}},
}
"""C(engines.Engine.read) reads it."""
