# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the services that a run is about; documented in plugins/modules/service_select.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils import verbs


class ActionModule(ActionBase):
    """Compare the names with the plan; no host is contacted."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the chosen services by host; fail with everything that is wrong with the names."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {
                "planned": {"type": "dict", "required": True},
                "services": {"type": "raw", "default": ""},
                "required": {"type": "bool", "default": False},
                "what": {"type": "str", "default": "services"},
            }
        )
        play = [str(host) for host in variables.get("ansible_play_hosts_all") or []]
        names = verbs.names_of(args["services"])
        chosen, messages = verbs.select(args["planned"], play, names)
        if args["required"] and not names:
            messages = [f"name the service: -e {args['what']}=NAME"]
        if messages:
            raise AnsibleActionFail("no host was touched:\n- " + "\n- ".join(messages))
        result.update(changed=False, hosts=chosen)
        return result
