# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down which tasks of a run reach which hosts, and holds a run at the task that a test has chosen.

FAULTS_TRACE: file for a line of JSON per task and host. FAULTS_AT: C({"task": name, "occurrence": number}); at the start of that
task the file FAULTS_FOLDER/held is made, and the run goes on when FAULTS_FOLDER/go is there.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: faults_point
type: notification
short_description: Hold a run at a task
description: See the source.
"""

# These do nothing on a host.
CONTROLLER = {
    "ansible.builtin.assert",
    "ansible.builtin.debug",
    "ansible.builtin.fail",
    "ansible.builtin.import_role",
    "ansible.builtin.include_role",
    "ansible.builtin.include_tasks",
    "ansible.builtin.meta",
    "ansible.builtin.set_fact",
    "ansible.builtin.validate_argument_spec",
    "dgxspark.vllm.plan",
    "dgxspark.vllm.rollout",
}
PATIENCE = 120
"""Seconds that a run is held at most: a test that has died does not keep it."""


class CallbackModule(CallbackBase):
    """See the file's docstring."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "faults_point"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trace = os.environ.get("FAULTS_TRACE")
        self.point = json.loads(os.environ.get("FAULTS_AT") or "{}")
        self.folder = Path(os.environ.get("FAULTS_FOLDER") or ".")
        self.started: Counter[str] = Counter()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Called before any host is given the task."""
        name = task.get_name()
        self.started[name] += 1
        if (name, self.started[name]) == (self.point.get("task"), self.point.get("occurrence")):
            (self.folder / "held").touch()
            deadline = time.monotonic() + PATIENCE
            while not (self.folder / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.02)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Note a task that did something on a host."""
        if self.trace and result.task.action not in CONTROLLER:
            name = result.task.get_name()
            line = json.dumps({"task": name, "occurrence": self.started[name], "host": result.host.get_name()})
            with Path(self.trace).open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
