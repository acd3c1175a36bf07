# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the token on the controller and have the host ask the hub; documented in plugins/modules/hub_access.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer


class ActionModule(ActionBase):
    """Hand the token over by the wire; it is in no file of the host."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's answer."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        path = of_host(str(args.get("token_file") or ""), task_vars or {})
        if path:
            try:
                real = self._loader.get_real_file(path)  # decrypts what ansible-vault encrypted
                args["token"] = Path(real).read_text(encoding="utf-8").strip()
            except (AnsibleError, OSError) as error:
                raise AnsibleActionFail(
                    f"spark_hf_token_file {path} cannot be read on the controller: {error}. Name a file with the token alone in it."
                ) from error
            self._loader.cleanup_tmp_file(real)
            if not args["token"]:
                raise AnsibleActionFail(f"spark_hf_token_file {path} is empty. Put the token in it, and nothing else.")
        result: dict[str, Any] = self._execute_module(
            module_name="dgxspark.vllm.hub_access", module_args=args, task_vars=task_vars or {}
        )
        return dict(
            checked_answer(result, Any, str((task_vars or {}).get("inventory_hostname", "")), self._task.action)
        )
