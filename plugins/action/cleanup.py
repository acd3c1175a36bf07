# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a host the names in its plan, and have it find everything else; documented in plugins/modules/cleanup.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import cleanup
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Run the module with the names of used images, models and services in place of the large plan."""

    MODULE = "dgxspark.vllm.cleanup"

    def act(self) -> dict[str, Any]:
        """Return the module's answer."""
        args = self.args
        _kinds, messages = cleanup.check_request(args.get("remove"), bool(args.get("weights")))
        if messages:  # before any host is asked
            raise AnsibleActionFail("nothing was removed:\n- " + "\n- ".join(messages))
        planned, addons = args.pop("planned", None) or {}, args.pop("addons", None) or {}
        args["wanted"] = cleanup.in_use(planned, addons)
        return self.ask(args)
