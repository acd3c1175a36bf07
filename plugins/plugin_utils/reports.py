# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End the tasks status, drift and doctor: write their report, and fail if asked to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.utils import color
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.events import EventLog
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write_report

display = Display()


def show(text: Callable[[bool], str]) -> None:
    """Print a report on the screen, and without colors into the log file. text: returns it, with colors or without."""
    display.display(text(color.ANSIBLE_COLOR), screen_only=True)
    if constants.DEFAULT_LOG_PATH:
        display.display(text(False), log_only=True)


def conclude(
    kind: str,
    report: dict[str, Any],
    args: dict[str, Any],
    variables: dict[str, Any],
    *keys: str,
) -> dict[str, Any]:
    """Write a report to C(dest) of the task, and end the task by its C(fail_on).

    report: with C(healthy), C(reason) and C(counts). keys: of the report that a successful task returns.
    """
    EventLog.write("report", kind=kind, **report)
    if args["dest"] == "-":
        display.display(json.dumps(report, sort_keys=True), screen_only=True)
    elif args["dest"]:
        path = Path(of_fleet(args["dest"], variables))
        try:
            write_report(path, json.dumps(report, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise AnsibleActionFail(f"the report cannot be written to {path} on the controller: {error}") from error
    failed = not report["healthy"] and args["fail_on"] != "never"
    if failed:  # the reason and nothing else: Ansible prints the whole result of a failed task
        return {"changed": False, "failed": True, "msg": report["reason"]}
    result = {"changed": False, "failed": False, "counts": report["counts"], "_ansible_verbose_override": True}
    return {**result, **{key: report[key] for key in keys}}
