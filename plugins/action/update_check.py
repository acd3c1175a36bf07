# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a host after an update with what it was; documented in plugins/modules/update_check.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils import host_update


class ActionModule(ActionBase):
    """A comparison of two sets of facts; no host is contacted."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what is new; fail with everything that is worse."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            {"before": {"type": "dict", "required": True}, "after": {"type": "dict", "required": True}}
        )
        worse, changes = host_update.compare(args["before"], args["after"])
        if worse:
            raise AnsibleActionFail("the host did not come back as it was:\n- " + "\n- ".join(worse))
        result.update(changed=False, changes=changes)
        return result
