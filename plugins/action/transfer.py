# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a job of a host and print its progress; documented in plugins/modules/transfer.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import SPREAD
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import bytes_moved, poll_seconds

MODULE = "dgxspark.vllm.transfer"
PROGRAM = Path(__file__).resolve().parents[2] / "roles" / "spread" / "files" / "spread_worker.py"
FIRST_LOOK = 0.5  # small things need not wait for a whole interval


class ActionModule(ActionBase):
    """Start the job on the host, then look at it until it has ended."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what came of each thing; changed when anything did."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        args = dict(self._task.args)
        tasks = job(args)
        if not tasks:
            return {"changed": False, "running": False, "got": {}}
        sent = {**args, "tasks": tasks, "things": {}, "program": PROGRAM.read_text(encoding="utf-8")}
        host = str(variables.get("inventory_hostname", ""))
        result = self._ask(sent, variables)
        what = ", ".join(describe(task) for task in tasks)
        began, shown, wait = time.monotonic(), time.monotonic(), FIRST_LOOK
        look = {"tasks": [], "step": "look"}
        timeout, poll = int(args.get("timeout", 14400)), poll_seconds(float(args.get("poll", 15)))
        while result.get("running") and time.monotonic() - began < timeout:
            time.sleep(wait)
            wait = min(wait * 2, poll)
            result = self._ask(look, variables)
            if result.get("running") and time.monotonic() - shown >= poll:
                shown = time.monotonic()
                done, before = int(result.get("done") or 0), int(result.get("before") or 0)
                bytes_moved(host, SPREAD, what, done, result.get("total"), shown - began, before)
        if result.get("failed"):
            return result
        got = dict(result.get("got") or {})
        why = result.get("why") or f"it was not there within {timeout} s; run again to go on where it stopped"
        for task in tasks:
            got.setdefault(task["key"], {"ok": False, "why": why})
        result.update(got=got, changed=any(entry.get("bytes") or entry.get("damaged") for entry in got.values()))
        if all(task["kind"] == "verify" for task in tasks):
            result["changed"] = any(entry.get("damaged") for entry in got.values())
        return result

    def _ask(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Run the module; an answer that is none fails."""
        found: dict[str, Any] = self._execute_module(module_name=MODULE, module_args=args, task_vars=variables)
        if found.get("failed"):
            return dict(foreign_text.received(found))
        return dict(checked_answer(found, answers.TRANSFER, str(variables.get("inventory_hostname", "")), MODULE))


def job(args: dict[str, Any]) -> list[dict[str, Any]]:
    """Join what to do with what there is to know of the things."""
    common = {
        "hf_home": str(args.get("hf_home", "/srv/huggingface")),
        "port": int(args.get("port", 8722)),
        "streams": int(args.get("streams", 4)),
        "limit_mbs": float(args.get("limit_mbs", 0)),
        "clear": not boolean(args.get("encrypt_fabric", False)),
    }
    things = args.get("things") or {}
    return [{**things.get(task["key"], {}), **common, **task} for task in args.get("tasks") or []]


def describe(task: dict[str, Any]) -> str:
    """Name one part of a job for the lines of progress."""
    if task["kind"] == "verify":
        return f"{task['key']} is read"
    return f"{task['key']} from {task['source']}"
