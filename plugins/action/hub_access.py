# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the token on the controller and have the host ask the hub; documented in plugins/modules/hub_access.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_steps import read_secret


class ActionModule(HostAction):
    """Send the token with the module; no file of the host holds it."""

    MODULE = "dgxspark.vllm.hub_access"

    def act(self) -> dict[str, Any]:
        """Return the answer of the module."""
        path = of_host(str(self.args.get("token_file") or ""), self.variables)
        if path:
            self.args["token"] = read_secret(self._loader, path, "spark_hf_token_file", "token")
        return self.ask(self.args)
