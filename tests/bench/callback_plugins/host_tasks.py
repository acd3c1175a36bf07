# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts, per host, the tasks that reach it; written as JSON to the file named by HOST_TASKS_FILE."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: host_tasks
type: aggregate
short_description: Count the tasks that reach each host
description: Leaves out what is skipped and what is done on the controller alone.
"""

ON_CONTROLLER = {
    "add_host",
    "assert",
    "debug",
    "fail",
    "group_by",
    "import_playbook",
    "import_role",
    "import_tasks",
    "include_role",
    "include_tasks",
    "include_vars",
    "meta",
    "pause",
    "plan",
    "set_fact",
    "set_stats",
    "validate_argument_spec",
}
LOCAL = ("localhost", "127.0.0.1")


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Sees every result that comes back to the controller."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "host_tasks"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hosts: dict[str, dict[str, int]] = {}

    def _count(self, result: Any, outcome: str) -> None:
        task, host = result.task, result.host.get_name()
        if task.action.rpartition(".")[2] in ON_CONTROLLER or task.delegate_to in LOCAL or host in LOCAL:
            return
        counts = self.hosts.setdefault(host, {"tasks": 0, "runs": 0, "changed": 0})
        counts[outcome] += 1
        if outcome == "tasks":
            counts["changed"] += bool(result.result.get("changed"))
            counts["runs"] += not task.loop

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task came back."""
        self._count(result, "tasks")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task came back with an error."""
        self._count(result, "tasks")

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """One item of a loop came back: a separate run of the module."""
        self._count(result, "runs")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The end: leave the figures where the benchmark reads them."""
        Path(os.environ["HOST_TASKS_FILE"]).write_text(json.dumps(self.hosts), encoding="utf-8")
