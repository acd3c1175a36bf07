#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: transfer
short_description: Fetch images and models from other nodes, or verify files against their digests
version_added: 0.1.0
description:
  - Runs a job in the background on the host, which takes what M(dgxspark.vllm.spread) says from the nodes that it names,
    in several streams for models (rsync over SSH, and on a fabric TCP without encryption) and C(docker save) into C(docker load) for images.
  - Files come into a staging folder below O(hf_home). Each is compared with its SHA-256 before it is renamed into the
    layout of the hub. What was cut off goes on where it stopped; what is damaged comes anew.
  - A companion action plugin prints bytes, rate and time left while it lasts.
  - One thing that could not be had does not fail the task; RV(got) says why.
options:
  tasks:
    description:
      - What to do, as RV(dgxspark.vllm.spread#module:hosts) has it.
    type: list
    elements: dict
    required: true
  things:
    description: What there is to know of the things, as RV(dgxspark.vllm.spread#module:things) has it.
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
    description: How many files come, or are read, at once.
    type: int
    default: 4
  limit_mbs:
    description: Megabytes a second that the host takes at most; 0 is no limit.
    type: float
    default: 0
  encrypt_fabric:
    description: Whether models are encrypted on a fabric, too; else only on a LAN.
    type: bool
    default: false
  timeout:
    description: Seconds that the job may take.
    type: int
    default: 14400
  poll:
    description: Seconds between two looks at the progress.
    type: int
    default: 15
  step:
    description: Set by the action plugin, which starts the job and then looks at it until it has ended.
    type: str
    choices: [start, look]
    default: start
  program:
    description: Set by the action plugin, the text of the program that the host runs.
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: none
    details:
      - M(dgxspark.vllm.spread) says what would be moved.
  diff_mode:
    support: none
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Copy missing files from other hosts
  dgxspark.vllm.transfer:
    tasks: "{{ spread_round.hosts[inventory_hostname].take }}"
    things: "{{ spread_round.things }}"
  register: spread_got
  when: spread_round.hosts[inventory_hostname].take | length > 0
"""

RETURN = r"""
got:
  description: By the name of each thing whether it is there now (C(ok)), else C(why) not, with C(bytes), C(seconds), C(link), and of a model
    whether all of it came C(encrypted).
  returned: when the job has ended
  type: dict
  sample:
    Qwen/Qwen3-8B@main: {ok: true, why: '', bytes: 16397000000, seconds: 14.2, link: fabric}
running:
  description: Whether the job is under way.
  returned: success
  type: bool
  sample: false
done:
  description: Bytes that came, or were read.
  returned: while the job is under way
  type: int
before:
  description: Those of RV(done) that had come before this job began.
  returned: while the job is under way
  type: int
total:
  description: Bytes of all that is to come.
  returned: while the job is under way
  type: int
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, program_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    file_stream,
    image_layers,
    image_stream,
    spread_files,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access as access
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    beneath,
    file_times,
    host_lock,
    made,
    systemctl,
    units,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import noted, reader, runner

START_SECONDS = 120.0  # that systemd may take to end one job and begin another

RUN_DIR = Path(access.RUN_DIR)

Run = Callable[[list[str]], "tuple[int, str, str]"]


def start(module: AnsibleModule, run: Run) -> None:
    """Write the job down and run it in a unit of its own."""
    RUN_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    systemctl.end(run, f"{access.WORKER_UNIT}.service")
    for home, name, paths in names(module.params["tasks"]):
        made.note(home, name, paths)
    (RUN_DIR / "state.json").unlink(missing_ok=True)
    library: tuple[Any, ...] = (
        beneath,
        file_stream,
        file_times,
        image_layers,
        image_stream,
        spread_files,
        foreign_text,
    )
    for name, text in {
        "spread_worker.py": module.params["program"],
        # What the worker imports, as the package that it has on hosts.
        **{
            f"dgxspark_vllm/{'/'.join(each.__name__.split('.')[-2:])}.py": program_text.source(each) for each in library
        },
        "job.json": json.dumps({"tasks": module.params["tasks"]}),
    }.items():
        (RUN_DIR / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(RUN_DIR / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
    job, state = str(RUN_DIR / "job.json"), str(RUN_DIR / "state.json")
    rc, _out, err = run(access.worker_argv(sys.executable, str(RUN_DIR), job, state, module.params["timeout"]))
    if rc != 0:
        module.fail_json(msg=f"the job cannot be started by systemd-run: {err.strip() or f'exit code {rc}'}")


def names(tasks: list[dict[str, Any]]) -> Iterator[tuple[Path, str, list[str]]]:
    """Return the folder of weights of each model that comes, the name of its note and the names that the job makes below the folder."""
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
    """Give what has come to the owner of the folder of weights."""
    for home, name, paths in names(tasks):
        folder = f"models--{name}"
        own = set(made.made_of(name).get(str(home)) or [])
        parts = {"/".join(path.split("/")[: count + 1]) for path in paths for count in range(path.count("/") + 1)}
        # What waits stays root's until it is verified.
        given = made.hand_over(home, sorted(path for path in own & parts if path.split("/")[0] != spread_files.STAGING))
        spread_files.follow(folder, {path[len("hub/") :]: marks for path, marks in given.items()})


def look(run: Run) -> dict[str, Any]:
    """Say how far the job is, or how it ended; while systemctl does not say, or fails, it counts as under way."""
    has_ended = systemctl.is_active(run, f"{access.WORKER_UNIT}.service") is False
    try:
        state = foreign_text.parse_json((RUN_DIR / "state.json").read_text(encoding="utf-8"), "state.json of the job")
    except (OSError, ValueError):
        state = {"finished": False, "done": 0, "total": 0, "before": 0, "results": []}
    if not state["finished"] and not has_ended:
        return {"running": True, "done": state["done"], "total": state["total"], "before": state.get("before", 0)}
    got = {result["key"]: result for result in state["results"]}
    if not state["finished"]:
        log = noted({}, "its journal does not answer", units.last_words, run, access.WORKER_UNIT)
        why = f"the job ended before its time: {log or 'its journal is empty'}"
        return {"running": False, "got": got, "why": why}
    return {"running": False, "got": got, "why": ""}


def started() -> list[dict[str, Any]]:
    """Return the tasks of the job as it was started: who only looks does not send them again."""
    try:
        tasks = foreign_text.parse_json((RUN_DIR / "job.json").read_text(encoding="utf-8"), "job.json")["tasks"]
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
            "program": {"type": "str", "default": ""},
        },
    )
    with host_lock.held(module):
        if module.params["step"] == "start":
            start(module, runner(module, START_SECONDS))
        found = look(reader())
        if not found["running"]:
            hand_over(module.params["tasks"] or started())
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
