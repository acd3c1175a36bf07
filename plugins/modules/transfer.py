#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: transfer
short_description: Take images and models from other nodes, or verify files against their digests
description:
  - Runs a job in the background on the host. It takes what M(dgxspark.vllm.spread) returns from the first source that has it and is free;
    in several streams, inside SSH, and on a fabric over TCP without encryption. An image is a set of files, one per layer; those that the
    host lacks are passed to C(docker load).
  - Files arrive in a staging folder below O(hf_home) or C(/var/lib/dgxspark/spread). Each is compared with its SHA-256 before it is renamed
    into the layout of the hub, or loaded. An interrupted transfer is resumed; a damaged file is received again.
  - A companion action plugin prints the progress, and starts a job again that ends before its time. An item that could not be taken does not fail the
    task; RV(got) has the reason.
options:
  tasks:
    description: What to do, from RV(dgxspark.vllm.spread#module:hosts).
    type: list
    elements: dict
    required: true
  things:
    description: What is known of the things, from RV(dgxspark.vllm.spread#module:things).
    type: dict
    default: {}
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  port:
    description: Port on which sources listen.
    type: int
    default: 8722
  streams:
    description: Number of files that are received, or read, at once.
    type: int
    default: 4
  limit_mbs:
    description: Most megabytes per second that the host receives; 0 is no limit.
    type: float
    default: 0
  encrypt_fabric:
    description: Whether files are encrypted on a fabric too; otherwise only on a LAN.
    type: bool
    default: false
  timeout:
    description: Seconds that the job may take.
    type: int
    default: 14400
  poll:
    description: Seconds between two lines of progress.
    type: int
    default: 15
  step:
    description: Set by the action plugin, which starts the job and then looks at it until it has ended.
    type: str
    choices: [start, look]
    default: start
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: none
    details:
      - M(dgxspark.vllm.spread) returns what would be moved.
"""

EXAMPLES = r"""
- name: Copy missing files from other hosts
  dgxspark.vllm.transfer:
    tasks: "{{ spread_pull.hosts[inventory_hostname].take }}"
    things: "{{ spread_surveyed.things }}"
  register: spread_got
"""

RETURN = r"""
got:
  description: By the key of each item whether it is there now (C(ok)), otherwise the reason (C(why)), with C(bytes), C(seconds), C(source),
    C(link), failed attempts (C(failed)), and whether all of it was C(encrypted).
  returned: when the job has ended
  type: dict
  sample:
    Qwen/Qwen3-8B@main: {ok: true, why: '', bytes: 16397000000, seconds: 14.2, source: spark-1, link: fabric}
given_up:
  description: Why this host did not get something; an empty text if it has everything.
  returned: when the job has ended
  type: str
running:
  description: Whether the job is running.
  returned: success
  type: bool
done:
  description: Bytes that were received or read.
  returned: while the job is running
  type: int
before:
  description: Those of RV(done) that had been received before this job began.
  returned: while the job is running
  type: int
total:
  description: Bytes of all items.
  returned: while the job is running
  type: int
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access as access
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    spread_files,
    spread_names,
    spread_server,
    spread_worker,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, made, systemctl, units
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Run, noted, reader, runner

START_SECONDS = 120.0  # that systemd may take to end one job and begin another
RUN_DIR = Path(spread_names.RUN_DIR)


def start(module: AnsibleModule, run: Run) -> None:
    """Write the job to a file and run it in a separate unit."""
    systemctl.end(run, f"{access.WORKER_UNIT}.service")
    tasks = module.params["tasks"]
    for hf_home, name, paths in created_paths(tasks):
        made.note(hf_home, name, paths)
    (RUN_DIR / spread_server.STATE).unlink(missing_ok=True)
    access.write(RUN_DIR, {**access.programs(), spread_worker.JOB: json.dumps({"tasks": tasks})})
    rc, _out, err = run(access.worker_argv(sys.executable, RUN_DIR, module.params["timeout"]))
    if rc != 0:
        module.fail_json(msg=f"the job cannot be started by systemd-run: {err.strip() or f'exit code {rc}'}")


def created_paths(tasks: list[dict[str, Any]]) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield the folder of weights of each model, the name of its note, and the paths that the job creates below the folder."""
    for task in tasks:
        if task.get("kind") != "model":
            continue
        folder, commit = str(task["folder"]), str(task["commit"])
        paths = [f"hub/{folder}/refs/{task['revision']}"]
        for entry in task["files"]:
            paths += [
                f"hub/{entry['store']}",
                f"hub/{folder}/snapshots/{commit}/{entry['path']}",
                f"{spread_files.STAGING}/{entry['store']}",
                f"{spread_files.STAGING}/{folder}/drafts/{commit}/{entry['path']}",
            ]
        yield Path(task["hf_home"]), folder[len("models--") :], paths


def hand_over(tasks: list[dict[str, Any]]) -> None:
    """Give received files to the owner of the folder of weights."""
    for hf_home, name, paths in created_paths(tasks):
        noted_paths = set(made.made_of(name).get(str(hf_home)) or [])
        parents = {"/".join(path.split("/")[: count + 1]) for path in paths for count in range(path.count("/") + 1)}
        # Staged files stay root's until they are verified.
        own = [path for path in noted_paths & parents if path.split("/")[0] != spread_files.STAGING]
        handed_over = made.hand_over(hf_home, sorted(own))
        sums = spread_files.sums_of(f"models--{name}")
        sums.follow({str(hf_home / path): marks for path, marks in handed_over.items()})
        sums.save()


def look(run: Run) -> dict[str, Any]:
    """Return the progress of the job, or its results; without an answer of systemctl the job counts as running."""
    has_ended = systemctl.is_active(run, f"{access.WORKER_UNIT}.service") is False
    try:
        text = (RUN_DIR / spread_server.STATE).read_text(encoding="utf-8")
        state = foreign_text.parse_json(text, "state.json of the job")
    except (OSError, ValueError):
        state = {"finished": False, "done": 0, "total": 0, "before": 0, "results": []}
    if not state["finished"] and not has_ended:
        return {"running": True, "done": state["done"], "total": state["total"], "before": state.get("before", 0)}
    got = {result["key"]: result for result in state["results"]}
    if state["finished"]:
        return {"running": False, "got": got, "why": ""}
    log = noted({}, "its journal does not answer", units.last_words, run, access.WORKER_UNIT)
    return {"running": False, "got": got, "why": f"the job ended before its time: {log or 'its journal is empty'}"}


def started_tasks() -> list[dict[str, Any]]:
    """Return the tasks of the running job; a look at the progress does not send them again."""
    try:
        tasks = foreign_text.parse_json((RUN_DIR / spread_worker.JOB).read_text(encoding="utf-8"), "job.json")["tasks"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "tasks": {"type": "list", "elements": "dict", "required": True},
            "things": {"type": "dict", "default": {}},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "port": {"type": "int", "default": 8722},
            "streams": {"type": "int", "default": 4},
            "limit_mbs": {"type": "float", "default": 0},
            "encrypt_fabric": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 14400},
            "poll": {"type": "int", "default": 15},
            "step": {"type": "str", "choices": ["start", "look"], "default": "start"},
        },
    )
    with host_lock.held(module):
        if module.params["step"] == "start":
            start(module, runner(module, START_SECONDS))
        result = look(reader())
        if not result["running"]:
            hand_over(started_tasks())
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
