# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What site.yml costs on hosts that are what they are to be: tasks, workers of the controller, plans, size of what is registered.

The playbook, the plan and the action plugins are the real ones. Modules that reach a host are played, and so are roles.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned_fixture import MEASURED
from playbook_runs import ansible_playbook, python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
IMAGE = "dgxspark/vllm-cpu:0.32.0"
PLAYED = """#!/usr/bin/python
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule

NAMES = ["root", "disk_paths", "hf_home", "facts", "images", "prove", "proof", "action", "plan", "addons", "facts", "services", "settings", "wanted", "models",
         "folders", "differs", "controller", "keep", "proven", "reason"]
module = AnsibleModule({{name: {{"type": "raw"}} for name in NAMES}}, supports_check_mode=True)
folder = Path(os.environ["PLAYED_HOST"])
with (folder / "log").open("a") as log:
    log.write("{name} " + str(module.params["action"] or "") + "\\n")
if module.params["proof"]:
    (folder / "proof.json").write_text(json.dumps({{"models": module.params["models"], **module.params["proof"]}}))
answer = json.loads((folder / "{name}.json").read_text())
module.exit_json(**answer)
"""
HERE = {**MEASURED, "architecture": "x86_64"}  # as the image that is played
APPLY = """
- name: Apply
  ansible.builtin.lineinfile: {path: "{{ inventory_dir }}/{{ inventory_hostname }}/log", line: applied, create: true, mode: "0644"}
"""
PROVE = """
- name: Prove
  ansible.builtin.lineinfile: {path: "{{ inventory_dir }}/{{ inventory_hostname }}/log", line: proved, create: true, mode: "0644"}
  register: __prove_engines
"""


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, in which what reaches hosts is played."""
    folder = tmp_path_factory.mktemp("collections")
    own = folder / "ansible_collections" / "dgxspark" / "vllm"
    own.mkdir(parents=True)
    for name in ("meta", "playbooks", "galaxy.yml"):
        (own / name).symlink_to(ROOT / name)
    for kind in ("action", "callback", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (own / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__":
                (own / "plugins" / kind / path.name).symlink_to(path)
    for name in ("spark_info", "generation"):
        path = own / "plugins" / "modules" / f"{name}.py"
        path.unlink()
        path.write_text(PLAYED.format(name=name))
    tasks = {"service": APPLY, "prove": PROVE}
    for path in (ROOT / "roles").iterdir():
        (own / "roles" / path.name / "tasks").mkdir(parents=True)
        (own / "roles" / path.name / "tasks" / "main.yml").write_text(tasks.get(path.name, "[]\n"))
        if path.name not in tasks:
            for part in ("defaults", "vars"):
                if (path / part).exists():
                    (own / "roles" / path.name / part).symlink_to(path / part)
    return folder


class Fleet:
    """Hosts with a service each."""

    def __init__(self, folder: Path, collections: Path, count: int) -> None:
        self.folder, self.collections = folder, collections
        self.names = [f"spark-{number:02}" for number in range(1, count + 1)]
        for name in self.names:
            (folder / name).mkdir()
            played = folder / name / "python"
            played.write_text(f'#!/bin/sh\nPLAYED_HOST={folder / name} exec {python()} "$@"\n')
            played.chmod(0o755)
        service = {
            "name": "tiny",
            "recipe": "scripted-tiny",
            "port": 8003,
            "image": IMAGE,
            "args": {"gpu-memory-utilization": 0.05},
        }
        shared = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ inventory_dir }}/{{ inventory_hostname }}/python",
            "ansible_become": False,
            "spark_services": [service],
            "spark_hf_home": str(folder / "hf"),
            "spark_plan_file": str(folder / "plan.json"),
            "spark_allow_moving": True,
            "spark_gpu_args": [],
            "spark_watchdog": False,
            "spark_model_dir": str(folder),
        }
        (folder / "scripted").mkdir()
        (folder / "scripted" / "config.json").write_text("{}")
        hosts = {name: {"ansible_host": f"192.0.2.{number}"} for number, name in enumerate(self.names, start=1)}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": shared}}))

    def are(self, up_to_date: bool, proved: bool = True) -> None:
        """Have all hosts say whether they are what they are to be, and whether their services answered right away."""
        probe = {"vllm_version": "0.32.0", "architecture": "x86_64"}
        image = {"present": True, "id": f"sha256:{'1' * 64}", "probe_from": "cache", "probe": probe}
        said = {
            "spark_info": {"spark": HERE, "images": {IMAGE: image}},
            "generation": {
                **{"up_to_date": up_to_date, "proved": up_to_date and proved, "changed": False, "why": []},
                **({"receipts": {"tiny": {"receipt": {"service": "tiny"}}}} if up_to_date and proved else {}),
            },
        }
        for name in self.names:
            for module, answer in said.items():
                (self.folder / name / f"{module}.json").write_text(json.dumps(answer))

    def site(self, *options: str) -> list[dict[str, Any]]:
        """Run site.yml; return the events of the run."""
        events = self.folder / "events.jsonl"
        events.unlink(missing_ok=True)
        ran = ansible_playbook(
            "-i", "hosts.yml", "dgxspark.vllm.site", *options, cwd=self.folder,
            env={
                "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
                "ANSIBLE_CALLBACKS_ENABLED": "dgxspark.vllm.progress",
                "DGXSPARK_PROGRESS_STYLE": "none",
                "DGXSPARK_PROGRESS_FILE": str(events),
            },
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return [json.loads(line) for line in events.read_text().splitlines()]

    def log(self, name: str) -> list[str]:
        """What reached a host since the last call."""
        path = self.folder / name / "log"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.strip() for line in lines]


def test_a_host_that_is_what_it_is_to_be_takes_two_round_trips_and_three_workers_and_two_plans(
    tmp_path: Path, collections: Path
) -> None:
    fleet = Fleet(tmp_path, collections, 3)
    fleet.are(False)
    fleet.site()
    assert fleet.log("spark-02") == ["spark_info", "generation up_to_date", "applied", "proved", "generation record"]
    for name in fleet.names:
        fleet.log(name)
    fleet.are(True)
    events = fleet.site()
    assert all(fleet.log(name) == ["spark_info", "generation up_to_date"] for name in fleet.names)
    begun = [event for event in events if event["event"] == "begin"]
    assert Counter(event["task"] for event in begun if event["task"].startswith("Plan"))["Plan from the inventory"] == 1
    plans = [
        event for event in begun if event["task"] in ("Plan from the inventory", "Plan with the facts of the hosts")
    ]
    assert len(plans) == 2  # one for bad input, one for what counts, however many hosts there are
    # Every task that begins on a host is a process of the controller, also one that only skips.
    workers = Counter(event["host"] for event in begun)
    assert workers["spark-02"] == workers["spark-03"] == 3, [
        event["task"] for event in begun if event["host"] == "spark-02"
    ]
    proof = json.loads((tmp_path / "spark-02" / "proof.json").read_text())
    assert [(service["name"], service["unit"]) for service in proof["services"]] == [("tiny", "spark-tiny.service")]
    # What comes from the controller is compared too.
    config = tmp_path / "scripted" / "config.json"
    copied = {"config.json": {"size": 2, "mtime": int(config.stat().st_mtime)}}
    assert [model["copied"] for model in proof["models"]] == [copied]
    assert (proof["timeout"], proof["receipts_dir"]) == (120, "/var/lib/dgxspark/receipts")


def test_a_host_that_is_not_proved_by_the_look_is_proved_as_a_whole(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 1)
    fleet.are(True, proved=False)
    fleet.site()
    assert fleet.log("spark-01") == ["spark_info", "generation up_to_date", "proved"]


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        (("--check",), ["spark_info", "generation up_to_date"]),
        (("--tags", "prove"), ["spark_info", "proved", "generation record"]),
        (("-e", "spark_apply_all=true"), ["spark_info", "applied", "proved", "generation record"]),
    ],
)
def test_only_a_whole_run_that_may_change_something_proves_by_a_look(
    tmp_path: Path, collections: Path, options: tuple[str, ...], reached: list[str]
) -> None:
    fleet = Fleet(tmp_path, collections, 1)
    fleet.are(True, proved="--check" not in options)
    fleet.site(*options)
    assert fleet.log("spark-01") == reached
    assert not (tmp_path / "spark-01" / "proof.json").exists()
