# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read passwords on the controller and have hosts log in; documented in plugins/modules/registry_login.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import registries
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_steps import read_secret
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain


class ActionModule(HostAction):
    """Send passwords with the module; no file of the host but Docker's own holds them."""

    MODULE = "dgxspark.vllm.registry_login"

    def act(self) -> dict[str, Any]:
        """Return the answer of the module."""
        args = self.args
        accounts, messages = registries.read(f"host {self.host}", plain(args.get("registries") or []))
        if messages:
            raise AnsibleActionFail("\n".join(messages))
        if str(args.get("state") or "present") == "present":
            args["passwords"] = {
                account["registry"]: read_secret(
                    self._loader,
                    of_host(account["password_file"], self.variables),
                    f"spark_registries, {account['registry']}:",
                    "password",
                )
                for account in accounts
            }
        answer = self.ask({**args, "registries": accounts})
        answer.pop("invocation", None)  # it repeats the arguments
        return answer
