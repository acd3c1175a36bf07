# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the memory and times of engine starts on the controller, for later plans; documented in plugins/modules/service_proof.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.events import EventLog
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.measured_starts import take_over

SPEED_FIELDS = ("verdict", "line", "measured", "causes")


class ActionModule(HostAction):
    """Run the module, and record its measurements."""

    MODULE = "dgxspark.vllm.service_proof"

    def act(self) -> dict[str, Any]:
        """Return the result of the module; a start that cannot be recorded is a warning."""
        answer = self.execute(self.args)
        if answer.get("failed") or self._task.check_mode:
            return answer
        take_over(answer, self.host, self.variables, self.MODULE)
        for service in sorted(answer.get("answers") or {}):
            EventLog.write("proof", host=self.host, service=service, **proof_fields(answer, service))
        return answer


def proof_fields(answer: Mapping[str, Any], service: str) -> dict[str, Any]:
    """Return the fields of the event C(proof). answer: of the module, which may have no speeds."""
    speed = (answer.get("speeds") or {}).get(service) or {}
    measured = {key: speed.get(key) for key in SPEED_FIELDS}
    start = start_fields((answer.get("starts") or {}).get(service))
    return {"ready": bool(answer["answers"][service].get("ready")), **measured, "start": start}


def start_fields(start: Any) -> dict[str, Any] | None:
    """Return a service's last start without impossible figures, None without one. start: of the module."""
    rows = start_stages.checked({"starts": [start]})
    age = start.get("age_seconds") if rows else None
    if isinstance(age, bool) or not isinstance(age, (int, float)) or not 0 <= age <= start_stages.MOST_SECONDS:
        return None
    return {**{key: rows[0][key] for key in ("seconds", "stages", "said")}, "age_seconds": age}
