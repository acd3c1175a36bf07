# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Have a host name its launches of vLLM, and compare them with its plan; documented in plugins/modules/adopt_info.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import adopt, answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.importer import Unreadable, import_launch
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer


class ActionModule(ActionBase):
    """The host says what runs; reading and comparing is done here."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the launches that a service can take the place of."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        services = args.pop("services", None) or []
        result: dict[str, Any] = self._execute_module(
            module_name="dgxspark.vllm.adopt_info", module_args=args, task_vars=task_vars or {}
        )
        host = str((task_vars or {}).get("inventory_hostname", ""))
        if result.get("failed"):
            return dict(untrusted.received(result))
        return dict(
            checked_answer(
                result, lambda found, _where: answers.judged(compared, found, services), host, self._task.action
            )
        )


def compared(result: dict[str, Any], services: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a host said of its launches, with the services that could take their places."""
    read: dict[str, Any] = {}
    for launch in result["launches"]:
        try:
            if launch["container"]:
                found = import_launch(adopt.command_of(launch["argv"]), form="docker")
            else:
                found = import_launch(adopt.unit_text(launch["argv"]), form="systemd")
            read[launch["name"]] = found["service"]
        except Unreadable as error:
            launch["unreadable"] = str(error)
    result["adopted"] = adopt.pairs(services, result["launches"], read, result["available_gib"])
    result["lines"] = adopt.lines_of(result["adopted"], result["launches"], result["taken"])
    return result
