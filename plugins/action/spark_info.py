# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module that is the first to become root in most playbooks; documented in plugins/modules/spark_info.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import with_advice


class ActionModule(ActionBase):
    """Run the module of the same name, and add the fix if sudo asks for a password: Ansible names only the missing password."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the module."""
        result = super().run(tmp, task_vars)
        try:
            return {**result, **self._execute_module(task_vars=task_vars or {})}
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            raise AnsibleActionFail(with_advice(str(error))) from None
