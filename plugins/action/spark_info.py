# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report a host, the first module to become root in most playbooks; documented in plugins/modules/spark_info.py."""

from __future__ import annotations

import shlex
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import adopt, answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.importer import Unreadable, import_launch
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction, checked_answer


class ActionModule(HostAction):
    """Run the module of the same name, and compare unmanaged launches with the plan."""

    MODULE = "dgxspark.vllm.spark_info"

    def act(self) -> dict[str, Any]:
        """Return the result of the module."""
        services = self.args.pop("adopting", None) or []  # the plan stays here
        result = self.execute(self.args)
        if result.get("adoption"):
            result["adoption"] = checked_answer(
                result["adoption"],
                lambda found, _where: answers.judged(compared, found, services),
                self.host,
                self.MODULE,
            )
        return result


def compared(adoption: dict[str, Any], services: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a host's section C(adoption) with the services that could replace its launches."""
    imported: dict[str, Any] = {}
    for launch in adoption["launches"]:
        try:
            if launch["container"]:
                draft = import_launch(shlex.join(launch["argv"]), form="docker")
            else:
                draft = import_launch(adopt.unit_text(launch["argv"]), form="systemd")
            imported[launch["name"]] = draft["service"]
        except Unreadable as error:
            launch["unreadable"] = str(error)
    adoption["adopted"] = adopt.pairs(services, adoption["launches"], imported, adoption["available_gib"])
    adoption["lines"] = adopt.lines_of(adoption["adopted"], adoption["launches"], adoption["taken"])
    return adoption
