# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of an inventory as plain data."""

from __future__ import annotations

import json
from typing import Any


def plain(value: Any) -> Any:
    """Return a value as JSON carries it, without types of Ansible. Raises ValueError or TypeError for other values."""
    try:
        return json.loads(json.dumps(value))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
