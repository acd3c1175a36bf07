# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module that is the first to become root in stop.yml; documented in plugins/modules/service_state.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction


class ActionModule(HostAction):
    """Run the module; a missing sudo password has its fix in the message."""

    MODULE = "dgxspark.vllm.service_state"

    def act(self) -> dict[str, Any]:
        """Return the result of the module."""
        return self.execute(self.args)
