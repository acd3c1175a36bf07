# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show how the services of all hosts are; documented in plugins/modules/status.py."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils import tables

display = Display()


class ActionModule(ActionBase):
    """Join the plan with what the hosts of the play said."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the table; fail when a planned service of the play's hosts is not ready."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {
                "planned": {"type": "dict", "required": True},
                "measured_from": {"type": "str", "required": True},
                "answers_from": {"type": "str", "required": True},
            }
        )
        rows: list[dict[str, Any]] = []
        for host in variables.get("ansible_play_hosts_all") or []:
            hostvars = variables["hostvars"][host]
            rows += tables.status_rows(
                str(host),
                args["planned"].get(host) or {},
                (hostvars.get(args["measured_from"]) or {}).get("spark"),
                (hostvars.get(args["answers_from"]) or {}).get("services"),
                datetime.now(timezone.utc),
            )
        tables.join_ranks(rows)
        rows.sort(key=lambda row: (row["ready"], row["host"]))
        display.display(tables.status_text(rows))
        services = tables.services(rows)
        down = [name for name, ready in services.items() if not ready]
        result.update(changed=False, services=rows, failed=bool(down))
        if down:
            result["msg"] = f"{len(down)} of {len(services)} services are not ready: {', '.join(down)}"
        return result
