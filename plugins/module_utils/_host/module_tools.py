# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools that a module gives to a deployment."""

from __future__ import annotations

from typing import Any

from .._runtime import command
from .deployment import Tools


def tools_of(module: Any) -> Tools:
    """Return the tools of an AnsibleModule."""

    def attributes(path: str, owner: str, group: str, mode: str, difference: dict[str, Any]) -> bool:
        row = {"path": path, "owner": owner, "group": group, "mode": mode}
        arguments = module.load_file_common_arguments(row, path=path)
        return bool(module.set_fs_attributes_if_different(arguments, False, diff=difference))

    return Tools(command.runner(module), attributes, module.warn, module.check_mode, module.tmpdir)
