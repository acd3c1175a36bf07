# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show how the services of all hosts are; documented in plugins/modules/status.py."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils import fleet_status, tables

display = Display()


class ActionModule(ActionBase):
    """Join the plan with what the hosts of the play said."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the fleet; fail, in one line, when a host is silent or a planned service is not ready."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {
                "planned": {"type": "dict", "required": True},
                "asked_from": {"type": "str", "required": True},
                "answer": {"type": "str", "default": "services"},
                "show": {"type": "str", "default": "auto", "choices": ["auto", "table", "groups", "none"]},
                "dest": {"type": "str", "default": ""},
                "fail_on": {"type": "str", "default": "down", "choices": ["down", "look", "never"]},
            }
        )
        now = datetime.now(timezone.utc)
        rows: list[dict[str, Any]] = []
        hosts: dict[str, dict[str, Any]] = {}
        for host in variables.get("ansible_play_hosts_all") or []:
            asked = variables["hostvars"][host].get(args["asked_from"]) or {}
            hosts[str(host)] = fleet_status.judge_host(asked, args["answer"])
            said = (asked.get("answers") or {}).get(args["answer"]) or {}
            planned = args["planned"].get(host) or {}
            rows += tables.status_rows(str(host), planned, said.get("host"), said.get("services"), now)
        found = fleet_status.report(rows, hosts, now.isoformat(timespec="seconds"), args["fail_on"])
        if args["show"] != "none":
            display.display(fleet_status.text(found, args["show"]))
        return conclude(result, found, args, "well", "reason", "hosts", "services")


def conclude(result: dict[str, Any], found: dict[str, Any], args: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Keep a report where C(dest) of the task wants it, and end the task as C(fail_on) wants it; C(keys) go into its result."""
    if args["dest"] == "-":
        display.display(json.dumps(found, sort_keys=True), screen_only=True)
    elif args["dest"]:
        write(Path(args["dest"]), json.dumps(found, indent=2, sort_keys=True) + "\n")
    failed = not found["well"] and args["fail_on"] != "never"
    result.update(changed=False, failed=failed, counts=found["counts"], _ansible_verbose_override=True)
    if failed:
        result["msg"] = found["reason"]  # and nothing else: Ansible prints the whole result of a task that failed
    else:
        result.update({key: found[key] for key in keys})
    return result


def write(path: Path, text: str) -> None:
    """Write a report by one rename, so that no reader sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise AnsibleActionFail(f"the report cannot be written to {path} on the controller: {error}") from error
