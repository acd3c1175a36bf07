# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are folders, for rollout.yml and rollback.yml: modules and roles that reach a host are played, the other parts are real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml
from playbook_runs import ansible_playbook, python

ROOT = Path(__file__).parents[3]
HOSTS = [f"spark-{number}" for number in range(1, 6)]
PAIR = ["spark-2", "spark-4"]
OLD, NEW, BROKEN = (f"dgxspark/vllm-cpu:{tag}" for tag in ("0.32.0", "0.32.0-new", "0.32.0-broken"))

# The applied state is a text in the folder that plays the host; the path of the interpreter names the folder.
GENERATION = """
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock

NAMES = ["proven", "reason", "plan", "addons", "facts", "services", "settings", "wanted", "parts", "baseline", "gather", "keep",
         "generation", "controller"]
module = AnsibleModule({name: {"type": "raw"} for name in ["action", "hf_home", *NAMES]}, supports_check_mode=True)
asked = module.params
folder = Path(os.environ["PLAYED_HOST"])
# Who was here is noted as on a host.
with host_lock.held(module) as locked, host_lock.noted(asked["controller"], locked) as run:
    others = host_lock.between(asked["controller"])
    run["changed"] = locked and asked["action"] in ("apply", "restore")
    if asked["action"] == "apply":
        if not module.check_mode:
            (folder / "applied").write_text(asked["reason"])
            with (folder / "log").open("a") as log:
                log.write("applied\\n")
        module.exit_json(changed=True)
if asked["action"] == "record" and others and not module.check_mode:
    module.fail_json(msg="nothing was recorded: %s changed this host too" % " and ".join(others))
file = folder / "state.json"
state = json.loads(file.read_text()) if file.exists() else {"current": 0, "made": []}
applied = (folder / "applied").read_text() if (folder / "applied").exists() else ""


def of(number):
    return next((each for each in state["made"] if each["number"] == number), None)


now, changed, more = of(state["current"]), False, {}
if asked["action"] == "record":
    if not now or now["applied"] != applied:
        now = {"number": len(state["made"]) + 1, "parent": state["current"], "applied": applied, "proven": bool(asked["proven"]),
               "wanted": asked["wanted"], "reason": asked["reason"], "services": asked["services"]}
        state["made"].append(now)
        state["current"], changed = now["number"], True
    elif asked["proven"]:
        now.update(proven=True, wanted=asked["wanted"])
proven = [each["number"] for each in state["made"] if each["proven"]]
before = [number for number in proven if not now or number < now["number"]]
target = int(asked["generation"] or 0) or (before[-1] if before else None)
if asked["action"] == "restore":
    if (folder / "stuck").exists():
        module.fail_json(msg="the disk is full")
    changed = of(target)["applied"] != applied
    if not module.check_mode:
        (folder / "applied").write_text(of(target)["applied"])
        state["current"] = target
        now = of(target)
        with (folder / "log").open("a") as log:
            log.write("restored %d\\n" % target)
if not module.check_mode:
    draft = folder / "state.new"  # a run may be killed at any point
    draft.write_text(json.dumps(state))
    draft.replace(file)
with (folder / "log").open("a") as log:
    log.write(asked["action"] + "\\n")
shown = None
if now:
    shown = {**now, "services": {each["name"]: {"image": each["image"]["ref"]} for each in now["services"] or []}}
module.exit_json(
    changed=changed, current=shown, same=bool(now) and now["applied"] == (folder / "applied").read_text(), running=True, restoring=None,
    generations=state["made"], safe=proven[-1] if proven else None, target=target, gateways=[], receipts={},
    clusters={each["cluster"]["name"]: each["cluster"]["hosts"] for each in (now or {}).get("services") or [] if each.get("cluster")},
    problems=[] if target else ["there is nothing to go back to"], steps=["writes"] if changed else [], touched=[], key_changes=[],
    plan={"services": (of(target) or {"services": []})["services"], "settings": {}})
"""
NOTHING = """
from ansible.module_utils.basic import AnsibleModule

NAMES = ["url", "model", "api_key_file", "timeout", "unit", "container", "checks", "planned", "settings"]
NAMES += ["root", "disk_paths", "hf_home", "gather", "fail_on_unknown", "images"]
AnsibleModule({name: {"type": "raw"} for name in NAMES}, supports_check_mode=True).exit_json(images={}, results=[])
"""
DEPLOY = """
from ansible.module_utils.basic import AnsibleModule

NAMES = ["part", "parts", "documents", "accounts", "folders", "files", "units", "created", "removed", "controller"]
AnsibleModule({name: {"type": "raw"} for name in NAMES}, supports_check_mode=True).exit_json(joined=[])
"""
APPLY = """
- name: Apply
  dgxspark.vllm.generation:
    action: apply
    reason: "{{ service_services | map(attribute='image.ref') | join }}"
"""
PROVE = """
- name: Prove
  ansible.builtin.assert:
    that: prove_services | map(attribute='image.ref') | select('search', 'broken') | length == 0
    fail_msg: it does not answer
  when: inventory_hostname in breaks | default(groups.sparks)
# By this the playbooks know that the proof was not left out.
- name: Compare
  ansible.builtin.debug:
    msg: proved
  register: __prove_engines
"""


def played(folder: Path) -> Path:
    """Make the collection in a folder, with what reaches hosts played; return the folder."""
    collection = folder / "ansible_collections" / "dgxspark" / "vllm"
    collection.mkdir(parents=True)
    for name in ("meta", "playbooks", "galaxy.yml"):
        (collection / name).symlink_to(ROOT / name)
    for kind in ("action", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (collection / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__":
                (collection / "plugins" / kind / path.name).symlink_to(path)
    for name in ("generation", "deploy", "spark_info", "endpoint_ready", "service_bench"):
        path = collection / "plugins" / "modules" / f"{name}.py"
        path.unlink()
        path.write_text("#!/usr/bin/python\n" + {"generation": GENERATION, "deploy": DEPLOY}.get(name, NOTHING))
    (collection / "plugins" / "action" / "service_bench.py").unlink()
    tasks = {"service": APPLY, "prove": PROVE}
    for path in (ROOT / "roles").iterdir():
        (collection / "roles" / path.name / "tasks").mkdir(parents=True)
        (collection / "roles" / path.name / "tasks" / "main.yml").write_text(tasks.get(path.name, "[]\n"))
    return folder


class Fleet:
    """Some hosts, of which pairs are clusters.

    :param folder: of the inventory and of what plays the hosts
    :param collections: of C(played)
    :param names: of all hosts
    :param pairs: the hosts of each cluster
    """

    def __init__(
        self, folder: Path, collections: Path, names: Sequence[str] = HOSTS, pairs: Sequence[Sequence[str]] = (PAIR,)
    ) -> None:
        self.folder, self.collections, self.names = folder, collections, names
        for name in names:
            (folder / name).mkdir()
            interpreter = folder / name / "python"
            interpreter.write_text(
                f'#!/bin/sh\nPLAYED_HOST={folder / name} DGXSPARK_RUN_DIR={folder / name / "run"} exec {python()} "$@"\n'
            )
            interpreter.chmod(0o755)
        service = {"name": "tiny", "recipe": "scripted-tiny", "port": 8003, "image": "{{ image }}"}
        service["args"] = {"gpu-memory-utilization": 0.05}
        shared = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ inventory_dir }}/{{ inventory_hostname }}/python",
            "ansible_become": False,
            "spark_hf_home": str(folder / "hf"),
            "spark_plan_facts": "never",
            "spark_plan_file": str(folder / "plan.json"),
            "spark_allow_moving": True,
            "spark_fabric_args": [],
            "spark_gpu_args": [],  # the docker of the machine that runs this test is not asked
            "spark_watchdog": False,
            "spark_model_dir": str(folder),
            "image": "dgxspark/vllm-cpu:0.32.0",
        }
        (folder / "scripted").mkdir()
        (folder / "scripted" / "config.json").write_text("{}")
        joined = {name for pair in pairs for name in pair}
        hosts = {
            name: {"ansible_host": f"192.0.2.{number}", **({} if name in joined else {"spark_services": [service]})}
            for number, name in enumerate(names, start=1)
        }
        children = {}
        for number, pair in enumerate(pairs):
            group = f"pair{number or ''}"
            cluster = {"name": group, "services": [{**service, "name": "wide"}]}
            children[group] = {"hosts": {name: {} for name in pair}, "vars": {"spark_cluster": cluster}}
        inventory = {"sparks": {"hosts": hosts, "vars": shared, "children": children}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))

    def begin(self, image: str) -> None:
        """Have all hosts run an image, as a proven generation."""
        made: dict[str, Any] = {
            "number": 1,
            "parent": None,
            "applied": image,
            "proven": True,
            "wanted": "then",
            "reason": "",
            "services": [],
        }
        for name in self.names:
            (self.folder / name / "applied").write_text(image)
            (self.folder / name / "state.json").write_text(json.dumps({"current": 1, "made": [made]}))

    def play(self, playbook: str, *options: str, **variables: Any) -> tuple[int, str]:
        ran = ansible_playbook(
            "-i",
            "hosts.yml",
            f"dgxspark.vllm.{playbook}",
            *options,
            "-e",
            json.dumps(variables),
            cwd=self.folder,
            env={"ANSIBLE_COLLECTIONS_PATH": str(self.collections)},
        )
        return ran.returncode, ran.stdout + ran.stderr

    def runs(self) -> dict[str, str]:
        return {
            name: (self.folder / name / "applied").read_text().rpartition(":")[2]
            for name in self.names
            if (self.folder / name / "applied").exists()
        }

    def log(self, name: str) -> list[str]:
        """Return the actions on a host since the last call."""
        path = self.folder / name / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines

    def start(self, playbook: str, out: int | IO[str] = subprocess.DEVNULL, **variables: Any) -> subprocess.Popen[str]:
        """Start a run as a separate process. out: its standard output."""
        argv = [sys.executable, str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yml"]
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_NOCOLOR": "1",
        }
        return subprocess.Popen(
            [*argv, f"dgxspark.vllm.{playbook}", "-e", json.dumps(variables)],
            cwd=self.folder, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def cut(self, seconds: float, playbook: str, **variables: Any) -> bool:
        """Kill a run and all that it started after some seconds; tell whether it was under way still."""
        with self.start(playbook, **variables) as running:
            try:
                running.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return True
        return False

    def together(self, playbook: str, *settings: Mapping[str, Any]) -> list[tuple[int, str]]:
        """Run a playbook by several controllers at once. given: variables of each. Returns how each ended, and what it printed."""
        with contextlib.ExitStack() as opened:
            places = [
                opened.enter_context((self.folder / f"out{number}").open("w+")) for number in range(len(settings))
            ]
            runs = [
                opened.enter_context(self.start(playbook, out, **options)) for out, options in zip(places, settings)
            ]
            codes = [run.wait() for run in runs]
            for out in places:
                out.seek(0)
            return [(code, out.read()) for code, out in zip(codes, places)]
