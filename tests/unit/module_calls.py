# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call a module in this process, as Ansible would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args


def call_module(module: Any, args: Mapping[str, Any], capsys: Any) -> dict[str, Any]:
    """Run C(main) of a module with these arguments; returns its result."""
    with patch_module_args(dict(args)), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result
