# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read passwords on the controller and have hosts log in; documented in plugins/modules/registry_login.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import registries
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

ANSWER = Any


class ActionModule(ActionBase):
    """Hand passwords over by the wire; they are in no file of the host but Docker's own."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's answer."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        args = dict(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        wanted, messages = registries.read(f"host {host}", plain(args.get("registries") or []))
        if messages:
            raise AnsibleActionFail("\n".join(messages))
        if str(args.get("state") or "present") == "present":
            args["passwords"] = {entry["registry"]: self._password(entry, variables) for entry in wanted}
        result: dict[str, Any] = self._execute_module(
            module_name="dgxspark.vllm.registry_login", module_args={**args, "registries": wanted}, task_vars=variables
        )
        # What the module was given, it repeats.
        result.pop("invocation", None)
        return dict(checked_answer(result, ANSWER, host, self._task.action))

    def _password(self, entry: dict[str, str], variables: dict[str, Any]) -> str:
        """Return the content of a file of the controller, which ansible-vault may have encrypted."""
        path = of_host(entry["password_file"], variables)
        try:
            real = self._loader.get_real_file(path)
            found = Path(real).read_text(encoding="utf-8").strip()
        except (AnsibleError, OSError) as error:
            raise AnsibleActionFail(
                f"spark_registries, {entry['registry']}: {path} cannot be read on the controller: {error}. Name a file with the "
                "password alone in it."
            ) from error
        self._loader.cleanup_tmp_file(real)
        if not found:
            raise AnsibleActionFail(
                f"spark_registries, {entry['registry']}: {path} is empty. Put the password in it, and nothing else."
            )
        return found
