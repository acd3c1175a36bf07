# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the hosts of the play into batches; documented in plugins/modules/host_batches.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils import host_update


class ActionModule(ActionBase):
    """Nothing but arithmetic; no host is contacted."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the batches; fail when the play has a part of a cluster."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            {"clusters": {"type": "dict", "required": True}, "size": {"type": "int", "default": 1}}
        )
        if args["size"] < 1:
            raise AnsibleActionFail(f"the size of a batch is {args['size']}; it must be 1 or more.")
        hosts = [str(host) for host in (task_vars or {}).get("ansible_play_hosts_all") or []]
        clusters = {
            name: cluster["hosts"]
            for name, cluster in args["clusters"].items()
            if any(host in hosts for host in cluster["hosts"])
        }
        try:
            batches = host_update.batches(hosts, clusters, args["size"])
        except ValueError as error:
            raise AnsibleActionFail(f"no host was touched: {error}") from error
        result.update(
            changed=False,
            batches=batches,
            order=[host for batch in batches for host in batch],
            sizes=[len(batch) for batch in batches],
        )
        return result
