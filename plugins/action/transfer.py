# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow the job of a host and print its progress; documented in plugins/modules/transfer.py."""

from __future__ import annotations

import time
from typing import Any

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spreading
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import SPREAD
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import bytes_moved, poll_seconds

display = Display()
FIRST_LOOK = 0.5  # small things need not wait for a whole interval
MOST_STARTS = 3
"""How often a job is started that ends before its time."""


class ActionModule(HostAction):
    """Start the job on the host, then look at it until it has ended."""

    MODULE = "dgxspark.vllm.transfer"
    VALIDATED = True

    def act(self) -> dict[str, Any]:
        """Return the result of each task; changed when anything was received or found damaged."""
        args = self.args
        common = {name: args[name] for name in ("hf_home", "port", "streams", "limit_mbs")}
        common["clear"] = not args["encrypt_fabric"]
        tasks = [{**args["things"].get(task["key"], {}), **common, **task} for task in args["tasks"]]
        self.began = time.monotonic()
        got, failure = self.run_jobs(tasks)
        if failure:
            return failure
        for line in spreading.result_lines(self.host, got):
            display.display(f"  {line}")
        lost = [f"{self.host} did not get {key}: {result['why']}" for key, result in got.items() if not result["ok"]]
        # Bytes that were read are no change.
        counts = ("damaged",) if all(task["kind"] == "verify" for task in tasks) else ("damaged", "bytes")
        changed = any(result.get(name) for result in got.values() for name in counts)
        return {"changed": changed, "running": False, "got": got, "given_up": "; ".join(lost)}

    def run_jobs(self, tasks: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run a job for tasks, and another one for those that it left when it ended before its time.

        Returns also the answer of the module if it failed.
        """
        got: dict[str, Any] = {}
        for _start in range(MOST_STARTS):
            pending = [task for task in tasks if task["key"] not in got]
            if not pending:
                break
            answer = self.follow(pending)
            if answer.get("failed"):
                return got, answer
            got.update(answer.get("got") or {})
            reason = answer.get("why") or f"it was not there within {self.args['timeout']} s"
            for task in [task for task in pending if task["key"] not in got][:1]:
                display.display(f"  not: {task['key']} to {self.host}: {reason}")
            if answer["running"]:
                break
        return {**{task["key"]: {"ok": False, "why": reason} for task in tasks if task["key"] not in got}, **got}, {}

    def follow(self, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        """Start a job and wait for its end or the timeout; return the last answer of the module."""
        title = ", ".join(f"{task['key']} is read" if task["kind"] == "verify" else task["key"] for task in tasks)
        answer = self.ask({"tasks": tasks, "timeout": self.args["timeout"]}, answers.TRANSFER)
        shown, wait, poll = time.monotonic(), FIRST_LOOK, poll_seconds(float(self.args["poll"]))
        while answer.get("running") and time.monotonic() - self.began < self.args["timeout"]:
            time.sleep(wait)
            wait = min(wait * 2, poll)
            answer = self.ask({"tasks": [], "step": "look"}, answers.TRANSFER)
            if answer.get("running") and time.monotonic() - shown >= poll:
                shown = time.monotonic()
                done, before = int(answer.get("done") or 0), int(answer.get("before") or 0)
                bytes_moved(self.host, SPREAD, title, done, answer.get("total"), shown - self.began, before)
        return answer
