# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of action plugins that may be the first of a playbook to become root on a host."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import with_advice


class HostAction(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """An action that adds the fix to the message of a missing sudo password."""

    def _execute_module(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run a module on the host."""
        try:
            return dict(super()._execute_module(*args, **kwargs))
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            advised = with_advice(str(error))
            if advised == str(error):
                raise
            raise AnsibleActionFail(advised) from None
