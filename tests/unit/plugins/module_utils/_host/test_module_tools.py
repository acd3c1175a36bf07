# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools that a module gives to a deployment."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.module_tools import tools_of


@pytest.mark.parametrize("check", [False, True])
def test_attributes_are_set_as_ansible_does_and_only_compared_in_check_mode(tmp_path: Path, check: bool) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o644)
    with patch_module_args({"_ansible_check_mode": check}):
        tools = tools_of(AnsibleModule({}, supports_check_mode=True))
    assert tools.check is check
    difference: dict[str, Any] = {}
    owner, group = str(os.getuid()), str(os.getgid())
    assert tools.attributes(str(path), owner, group, "0600", difference) is True and json.dumps(difference)
    assert stat.S_IMODE(path.stat().st_mode) == (0o644 if check else 0o600)
    assert tools.attributes(str(path), owner, group, "0600", {}) is check
