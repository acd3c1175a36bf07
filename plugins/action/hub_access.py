# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the token on the controller and have the host ask the hub; documented in plugins/modules/hub_access.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_steps import read_secret


class ActionModule(ActionBase):
    """Send the token with the module; no file of the host holds it."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of the module."""
        super().run(tmp, task_vars)
        variables, args = task_vars or {}, dict(self._task.args)
        path = of_host(str(args.get("token_file") or ""), variables)
        if path:
            args["token"] = read_secret(self._loader, path, "spark_hf_token_file", "token")
        answer: dict[str, Any] = self._execute_module(
            module_name="dgxspark.vllm.hub_access", module_args=args, task_vars=variables
        )
        host = str(variables.get("inventory_hostname", ""))
        return dict(checked_answer(answer, Any, host, self._task.action))
