# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How status, drift and doctor end: a report that is kept, and the verdict of the task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write_report

display = Display()


def conclude(
    result: dict[str, Any], found: dict[str, Any], args: dict[str, Any], variables: dict[str, Any], *keys: str
) -> dict[str, Any]:
    """Keep a report where C(dest) of the task wants it, and end the task as C(fail_on) wants it; C(keys) go into its result."""
    if args["dest"] == "-":
        display.display(json.dumps(found, sort_keys=True), screen_only=True)
    elif args["dest"]:
        path = Path(of_fleet(args["dest"], variables))
        try:
            write_report(path, json.dumps(found, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise AnsibleActionFail(f"the report cannot be written to {path} on the controller: {error}") from error
    failed = not found["well"] and args["fail_on"] != "never"
    result.update(changed=False, failed=failed, counts=found["counts"], _ansible_verbose_override=True)
    if failed:
        result["msg"] = found["reason"]  # and nothing else: Ansible prints the whole result of a task that failed
    else:
        result.update({key: found[key] for key in keys})
    return result
