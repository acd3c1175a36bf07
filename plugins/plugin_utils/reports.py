# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End the tasks status, drift and doctor: write their report, and fail if asked to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.utils import color
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.events import EventLog
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write_report

display = Display()


def show(text: Callable[[bool], str]) -> None:
    """Print a report on the screen, and without colors into the log file. text: returns it, with colors or without."""
    display.display(text(color.ANSIBLE_COLOR), screen_only=True)
    if constants.DEFAULT_LOG_PATH:
        display.display(text(False), log_only=True)


def section_of(answers: Mapping[str, Any], name: str, key: str) -> Any:
    """Return a part of an answer, empty without one."""
    return (answers.get(name) or {}).get(key) or {}


def sections_apart(answers: Mapping[str, Any], name: str, *sections: str) -> dict[str, Any]:
    """Return a host's answers by name, with sections of one M(dgxspark.vllm.spark_info) as separate answers, C({section: ...}).

    A section without an answer is C({failed, msg}), like a failed answer of M(dgxspark.vllm.ask). name: of the answer with the sections.
    """
    answer = answers.get(name) or {}
    if answer.get("failed"):
        return dict(answers)
    unknown = answer.get("unknown") or {}
    apart: dict[str, Any] = {}
    for section in (section for section in sections if section in answer):
        value = answer[section]
        why = str(unknown.get(section) or f"{section} are not known")
        apart[section] = {"failed": True, "msg": why} if value is None else {section: value}
    return {**answers, **apart}


class ReportAction(ControllerAction):
    """An action that reports on the hosts of a play by their answers."""

    def hostvars(self) -> dict[str, Mapping[str, Any]]:
        """Return the variables of the hosts of the play, by name."""
        hosts = self.variables.get("ansible_play_hosts_all") or []
        return {str(host): self.variables["hostvars"][host] for host in hosts}

    def write(self, path: str, text: str, title: str) -> None:
        """Write a report on the controller, in check mode too: it changes no host."""
        path = of_fleet(path, self.variables)
        try:
            write_report(Path(path), text)
        except OSError as error:
            raise AnsibleActionFail(f"the {title} cannot be written to {path} on the controller: {error}") from error

    def conclude(self, kind: str, report: dict[str, Any], *keys: str) -> dict[str, Any]:
        """Write a report to C(dest) of the task, and end the task by its C(fail_on).

        report: with C(healthy), C(reason) and C(counts). keys: of the report that a successful task returns.
        """
        dest = self.args["dest"]
        EventLog.write("report", kind=kind, **report)
        if dest == "-":
            display.display(json.dumps(report, sort_keys=True), screen_only=True)
        elif dest:
            self.write(dest, json.dumps(report, indent=2, sort_keys=True) + "\n", "report")
        if not report["healthy"] and self.args["fail_on"] != "never":
            # The reason and nothing else: Ansible prints the whole result of a failed task.
            return {"changed": False, "failed": True, "msg": report["reason"]}
        result = {"changed": False, "failed": False, "counts": report["counts"], "_ansible_verbose_override": True}
        return {**result, **{key: report[key] for key in keys}}
