# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks rollout.yml and rollback.yml, their order and what they do about failures, on hosts that are folders.

The playbooks, the plan and the decisions are the real ones. Roles are played by one task each, and so are the modules that reach a
host; what those really do is tested where they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook, python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
HOSTS = [f"spark-{number}" for number in range(1, 6)]
PAIR = ["spark-2", "spark-4"]

# What is applied is a text in the folder that plays the host; its interpreter says which one that is.
GENERATION = """
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule

NAMES = ["proven", "reason", "plan", "addons", "facts", "services", "settings", "wanted", "baseline", "keep", "generation", "controller"]
module = AnsibleModule({name: {"type": "raw"} for name in ["action", "hf_home", *NAMES]}, supports_check_mode=True)
asked = module.params
folder = Path(os.environ["PLAYED_HOST"])
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
    file.write_text(json.dumps(state))
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

NAMES = ["url", "model", "api_key_file", "timeout", "unit", "container", "checks", "images", "planned", "settings"]
AnsibleModule({name: {"type": "raw"} for name in NAMES}, supports_check_mode=True).exit_json(images={}, results=[])
"""
APPLY = """
- name: Apply
  ansible.builtin.copy:
    content: "{{ service_services | map(attribute='image.ref') | join }}"
    dest: "{{ inventory_dir }}/{{ inventory_hostname }}/applied"
    mode: "0644"
- name: Note it
  ansible.builtin.lineinfile:
    path: "{{ inventory_dir }}/{{ inventory_hostname }}/log"
    line: applied
    create: true
    insertafter: EOF
    mode: "0644"
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


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, in which what reaches hosts is played."""
    folder = tmp_path_factory.mktemp("collections")
    own = folder / "ansible_collections" / "dgxspark" / "vllm"
    own.mkdir(parents=True)
    for name in ("meta", "playbooks", "galaxy.yml"):
        (own / name).symlink_to(ROOT / name)
    for kind in ("action", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (own / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__":
                (own / "plugins" / kind / path.name).symlink_to(path)
    for name in ("generation", "image_info", "endpoint_ready", "service_bench"):
        path = own / "plugins" / "modules" / f"{name}.py"
        path.unlink()
        path.write_text("#!/usr/bin/python\n" + (GENERATION if name == "generation" else NOTHING))
    (own / "plugins" / "action" / "service_bench.py").unlink()
    tasks = {"service": APPLY, "prove": PROVE}
    for path in (ROOT / "roles").iterdir():
        (own / "roles" / path.name / "tasks").mkdir(parents=True)
        (own / "roles" / path.name / "tasks" / "main.yml").write_text(tasks.get(path.name, "[]\n"))
    return folder


class Fleet:
    """Five hosts, two of which are a cluster."""

    def __init__(self, folder: Path, collections: Path) -> None:
        self.folder, self.collections = folder, collections
        for name in HOSTS:
            (folder / name).mkdir()
            played = folder / name / "python"
            played.write_text(f'#!/bin/sh\nPLAYED_HOST={folder / name} exec {python()} "$@"\n')
            played.chmod(0o755)
        service = {"name": "tiny", "recipe": "scripted-tiny", "port": 8003, "image": "{{ image }}"}
        service["args"] = {"gpu-memory-utilization": 0.05}
        cluster = {"name": "pair", "services": [{**service, "name": "wide"}]}
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
        hosts = {
            name: {"ansible_host": f"192.0.2.{number}", **({} if name in PAIR else {"spark_services": [service]})}
            for number, name in enumerate(HOSTS, start=1)
        }
        pair = {"hosts": {name: {} for name in PAIR}, "vars": {"spark_cluster": cluster}}
        inventory = {"sparks": {"hosts": hosts, "vars": shared, "children": {"pair": pair}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))

    def begin(self, image: str) -> None:
        """Have all hosts run an image, as a proven generation."""
        made = {
            "number": 1,
            "parent": None,
            "applied": image,
            "proven": True,
            "wanted": "then",
            "reason": "",
            "services": [],
        }
        for name in HOSTS:
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
            for name in HOSTS
            if (self.folder / name / "applied").exists()
        }

    def log(self, name: str) -> list[str]:
        """What was done on a host since the last call."""
        path = self.folder / name / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines


@pytest.fixture
def fleet(tmp_path: Path, collections: Path) -> Fleet:
    return Fleet(tmp_path, collections)


def flat(text: str) -> str:
    return " ".join(text.split())


Play = Callable[..., tuple[int, str]]
OLD, NEW, BROKEN = (f"dgxspark/vllm-cpu:{tag}" for tag in ("0.32.0", "0.32.0-new", "0.32.0-broken"))


def test_a_change_goes_through_in_its_order_and_a_second_run_looks_and_leaves(fleet: Fleet) -> None:
    code, text = fleet.play("rollout", image=OLD, spark_rollout_batch=3)
    assert code == 0, text
    assert "1. spark-1 (canary)\n2. spark-3, spark-5\n3. spark-2, spark-4" in text or re.search(
        r"1\. spark-1 \(canary\)\n2\. ", text
    ), text
    assert set(fleet.runs().values()) == {"0.32.0"} and len(fleet.runs()) == 5
    for name in HOSTS:
        fleet.log(name)
    code, text = fleet.play("rollout", image=OLD)
    assert code == 0 and "already there: " in text, text
    assert all(fleet.log(name) == ["look"] for name in HOSTS)
    assert text.count("dgxspark/vllm-cpu:0.32.0 ") >= 5


def test_a_canary_that_fails_goes_back_and_nobody_else_is_touched(fleet: Fleet) -> None:
    fleet.begin(OLD)
    code, text = fleet.play("rollout", image=BROKEN, spark_rollout_canary="pair")
    assert code != 0
    assert set(fleet.runs().values()) == {"0.32.0"}
    # The failed state has a number of its own, and the host went back to the one before.
    assert all("restored 1" in fleet.log(name) for name in PAIR)
    assert all(fleet.log(name) == ["look"] for name in HOSTS if name not in PAIR)
    assert "it does not answer" in flat(text) and "failed, back at 1" in flat(text)
    assert "The rollout stops; hosts of later batches are as they were" in flat(text)
    state = json.loads((fleet.folder / "spark-2" / "state.json").read_text())
    assert [(each["number"], each["proven"]) for each in state["made"]] == [(1, True), (2, False)]


def test_the_whole_batch_goes_back_when_more_fail_than_allowed(fleet: Fleet) -> None:
    fleet.begin(OLD)
    options = {"image": BROKEN, "spark_rollout_canary": "none", "spark_rollout_batch": "100%"}
    code, text = fleet.play("rollout", **options, breaks=["spark-3"])
    assert code != 0 and set(fleet.runs().values()) == {"0.32.0"}, text
    assert "spark-3: Prove: it does not answer" in flat(text)


def test_failures_that_are_allowed_go_back_alone_and_the_rest_goes_on(fleet: Fleet) -> None:
    fleet.begin(OLD)
    options = {"image": BROKEN, "spark_rollout_canary": "none", "spark_rollout_batch": "100%"}
    code, text = fleet.play("rollout", **options, breaks=["spark-4"], spark_rollout_max_fail_percentage=20)
    assert code != 0, text
    assert {name for name, tag in fleet.runs().items() if tag == "0.32.0"} == set(PAIR)
    assert "failed, back at 1" in flat(text)


def test_a_host_that_does_not_come_back_is_said_to_be_so(fleet: Fleet) -> None:
    fleet.begin(OLD)
    (fleet.folder / "spark-1" / "stuck").touch()
    code, text = fleet.play("rollout", image=BROKEN)
    assert code != 0 and "failed, NOT back: the disk is full" in flat(text), text


def test_a_first_rollout_that_fails_has_nothing_to_go_back_to(fleet: Fleet) -> None:
    code, text = fleet.play("rollout", image=BROKEN)
    assert code != 0 and "never had a proven generation" in flat(text), text
    assert list(fleet.runs()) == ["spark-1"]


def test_check_mode_touches_nobody(fleet: Fleet) -> None:
    fleet.begin(OLD)
    code, text = fleet.play("rollout", "--check", image=NEW)
    assert code == 0 and set(fleet.runs().values()) == {"0.32.0"}, text


def test_the_fleet_goes_back_and_part_of_a_cluster_does_not(fleet: Fleet) -> None:
    fleet.begin(OLD)
    assert fleet.play("rollout", image=NEW, spark_rollout_canary="none", spark_rollout_batch="100%")[0] == 0
    assert set(fleet.runs().values()) == {"0.32.0-new"}
    code, text = fleet.play("rollback", "--limit", "spark-1,spark-2")
    assert code != 0 and "spark-4 cannot be reached or is not part of this run" in flat(text), text
    assert set(fleet.runs().values()) == {"0.32.0-new"}
    assert fleet.play("rollback", "--check")[0] == 0 and set(fleet.runs().values()) == {"0.32.0-new"}
    code, text = fleet.play("rollback", spark_rollback_batch=2)
    assert code == 0 and set(fleet.runs().values()) == {"0.32.0"}, text


def test_what_is_missing_anywhere_stops_the_rollback_before_the_first_host(fleet: Fleet) -> None:
    fleet.begin(OLD)
    assert fleet.play("rollout", image=NEW, spark_rollout_canary="none", spark_rollout_batch="100%")[0] == 0
    (fleet.folder / "spark-5" / "state.json").unlink()
    code, text = fleet.play("rollback")
    assert code != 0 and "no host was touched" in text and "spark-5: there is nothing to go back to" in flat(text)
    assert set(fleet.runs().values()) == {"0.32.0-new"}


def test_what_is_misspelt_is_said_before_any_host_is_touched(fleet: Fleet) -> None:
    fleet.begin(OLD)
    code, text = fleet.play("rollout", image=NEW, spark_rollout_bench={"warmup": 0})
    assert code != 0 and "no host was touched" in text and "'warmup' is 0" in flat(text), text
    code, text = fleet.play("rollout", image=NEW, spark_rollout_canary="spark-9")
    assert code != 0 and "'spark-9', which is no host or cluster of this run" in flat(text), text
    assert set(fleet.runs().values()) == {"0.32.0"}
