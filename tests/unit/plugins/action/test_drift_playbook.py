# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook drift.yml as a person runs it, and its last task on the answers of a fleet: the report of the hosts that differ."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import LOST_SSH, ansible_playbook, python

from ansible_collections.dgxspark.vllm.plugins.action import drift as drift_action

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
REF = "vllm/vllm-openai:v0.24.0-ubuntu2404"
RUNS, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "Qwen/Qwen3-4B-Instruct-2507"
SERVICE = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002, "image": REF}
UNIT = "spark-fast.service"
IMAGES = {REF: {"present": True, "id": RUNS, "repo_digests": [], "os": "linux", "architecture": "arm64"}}
PLAN: dict[str, Any] = {
    "dgxspark.vllm.plan": {"show": "none", "fail_on_error": False, "images_from": "spark_measured"},
    "run_once": True,
    "register": "spark_planned",
}
DRIFT: dict[str, Any] = {
    "dgxspark.vllm.drift": {
        "plan": "{{ spark_planned }}",
        "asked_from": "spark_asked",
        "show": "{{ show | default('groups') }}",
        "dest": "{{ dest | default('') }}",
        "fail_on": "{{ fail_on | default('never') }}",
    },
    "run_once": True,
}


class Controller:
    """A folder with an inventory, and runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()

    def script(self, name: str, text: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def run(self, hosts: dict[str, Any], playbook: str, *options: str, **variables: Any) -> tuple[int, str]:
        inventory = self.folder / "hosts.yml"
        everywhere = {
            "spark_services": [SERVICE],
            "spark_sysroot": str(self.folder),
            "ansible_become": False,
            **variables,
        }
        inventory.write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": everywhere}}))
        ran = ansible_playbook(
            "-i", inventory, playbook, *options, cwd=self.folder, env={"PATH": f"{self.programs}:{os.environ['PATH']}"}
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def judge(self, hosts: dict[str, Any], *options: str, **variables: Any) -> tuple[int, str]:
        """Have the last task judge the answers of hosts, without contacting any."""
        play = self.folder / "play.yml"
        play.write_text(yaml.safe_dump([{"hosts": "sparks", "gather_facts": False, "tasks": [PLAN, DRIFT]}]))
        answer_of = {
            name: {"ansible_host": f"192.0.2.{number}", "spark_measured": {"images": IMAGES}, **body}
            for number, (name, body) in enumerate(hosts.items(), start=1)
        }
        return self.run(answer_of, str(play), *options, **variables)

    def planned(self) -> dict[str, Any]:
        """The service as the plan has it."""
        dest = self.folder / "plan.json"
        task = {"dgxspark.vllm.plan": {**PLAN["dgxspark.vllm.plan"], "dest": str(dest)}, "run_once": True}
        play = self.folder / "plan.yml"
        play.write_text(yaml.safe_dump([{"hosts": "sparks", "gather_facts": False, "tasks": [task]}]))
        code, text = self.run({"spark-1": {"spark_measured": {"images": IMAGES}}}, str(play))
        assert code == 0, text
        service: dict[str, Any] = json.loads(dest.read_text())["hosts"]["spark-1"]["services"][0]
        return service


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def answer_of(service: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """The answer of an unchanged host; keyword arguments replace parts of it."""
    unit = {"name": UNIT, "active_state": "active", "enabled": True, "queued": False, "load_state": "loaded"}
    container = {
        "name": "spark-fast",
        "state": "running",
        "image_id": RUNS,
        "managed": True,
        "fingerprint": service["fingerprint"],
    }
    deployed = {
        "recorded": {
            "number": 4,
            "proven": True,
            "at": "2026-11-20T12:00:00+00:00",
            "units": {},
            "images": {UNIT: {"id": RUNS}},
        },
        "differences": {
            **{"changed": changed.get("files", []), "missing": [], "added": [], "attributes": [], "moved": {}},
            "models": [
                {"repo": REPO, "revision": "main", "commit": COMMIT, "there": True, "wrong": changed.get("wrong", [])}
            ],
        },
        "units": {},
        "launches": {},
    }
    spark = {
        "services": ["fast", *changed.get("left", [])],
        "units": [{**unit, **changed.get("unit", {})}],
        "containers": [{**container, **changed.get("container", {})}],
    }
    answers = {
        "host": {"spark": spark, "images": IMAGES},
        "deployed": deployed,
        **changed.get("answers", {}),
    }
    return {"spark_asked": {"reached": True, "why": "", "answers": answers}}


SILENT = {"spark_asked": {"reached": False, "why": "port 22: No route to host", "answers": {}}}


def test_a_fleet_that_is_as_it_was_left_is_one_line(controller: Controller) -> None:
    service = controller.planned()
    code, text = controller.judge({"spark-1": answer_of(service), "spark-2": answer_of(service)}, "-e", "fail_on=info")
    assert code == 0, text
    assert "2 hosts, 2 services: nothing has drifted." in text
    assert "changed=0" in text and "[drift." not in text and "ERROR" not in text


def test_what_differs_is_named_and_told_to_machines(controller: Controller) -> None:
    service = controller.planned()
    dest = controller.folder / "out" / "drift.json"
    env = "/etc/dgxspark/env/fast.env"
    hosts = {
        "spark-1": answer_of(service, files=[env], left=["old"]),
        "spark-2": answer_of(service, files=[env], container={"image_id": OTHER}),
        "spark-3": answer_of(
            service, unit={"active_state": "inactive"}, wrong=["config.json has 2 bytes instead of 728"]
        ),
        "spark-4": answer_of(service, answers={"deployed": {"failed": True, "msg": "permission denied"}}),
        "spark-5": SILENT,
        "spark-6": {**answer_of(service, files=[env]), "spark_ignore_rules": ["drift.file_changed"]},
    }
    code, text = controller.judge(hosts, "--check", "-e", f"dest={dest}", spark_allow_moving=True)
    assert code == 0, text
    report = json.loads(dest.read_text())
    assert [(row["host"], row["rule"]) for row in report["findings"]] == [
        ("spark-2", "drift.image"),
        ("spark-3", "drift.by_hand"),
        ("spark-3", "drift.model_files"),
        ("spark-4", "drift.not_asked"),
        ("spark-5", "drift.unreachable"),
        ("spark-1", "drift.unplanned"),
        ("spark-1", "drift.file_changed"),
        ("spark-2", "drift.file_changed"),
    ]
    assert {host: body["state"] for host, body in report["hosts"].items()} == {
        "spark-1": "drifted",
        "spark-2": "drifted",
        "spark-3": "drifted",
        "spark-4": "drifted",
        "spark-5": "unreachable",
        "spark-6": "same",
    }
    assert (
        report["hosts"]["spark-1"]["generation"] == 4
        and report["hosts"]["spark-5"]["why"] == SILENT["spark_asked"]["why"]
    )
    assert report["healthy"] is False and report["counts"] == {
        "hosts": 6, "silent": 1, "drifted": 4, "services": 6, "error": 5, "warning": 3, "info": 0,
    }  # fmt: skip
    assert f"WARNING fast on spark-1..2: {env} was changed after it was deployed. [drift.file_changed]" in text
    assert "spark-5: the host is unreachable: port 22: No route to host." in text
    assert "6 hosts (1 silent), 6 services: 5 errors, 3 warnings." in text


def test_the_exit_code_goes_by_what_is_asked(controller: Controller) -> None:
    service = controller.planned()
    hosts = {"spark-1": answer_of(service, files=["/etc/dgxspark/env/fast.env"]), "spark-2": answer_of(service)}
    assert controller.judge(hosts)[0] == 0
    assert controller.judge(hosts, "-e", "fail_on=error")[0] == 0
    code, text = controller.judge(hosts, "-e", "fail_on=warning", "-e", "show=none", "-e", "dest=-")
    assert code == 2, text
    assert '"reason": "1 difference on 1 of 2 hosts (spark-1): drift.file_changed"' in text
    assert "1 difference on 1 of 2 hosts (spark-1): drift.file_changed" in text
    assert "was changed after it was deployed. [drift.file_changed]" not in text
    # Silence is a reason at any severity.
    code, text = controller.judge({"spark-1": answer_of(service), "spark-2": SILENT}, "-e", "fail_on=error")
    assert code == 2, text
    assert "1 of 2 hosts did not answer: spark-2" in text


def test_the_plan_is_ahead(controller: Controller) -> None:
    service = controller.planned()
    then = {"launches": {"fast": {"argv": service["argv"], "env": service["env"]}}}
    host = answer_of(service)
    host["spark_asked"]["answers"]["deployed"].update(then)
    planned_service = {**SERVICE, "args": {"max-num-seqs": 7}, "env": {"VLLM_LOGGING_LEVEL": "hush-hush"}}
    code, text = controller.judge({"spark-1": host}, "-e", "show=lines", spark_services=[planned_service])
    assert code == 0, text
    assert "spark-1/fast: the planned launch differs from the running one: " in text, text.partition("drift]")[2]
    assert "--max-num-seqs" in text
    assert "env VLLM_LOGGING_LEVEL" in text and "hush-hush" not in text


def test_parts_that_are_planned_otherwise_are_named(controller: Controller) -> None:
    service = controller.planned()
    result = answer_of(service)["spark_asked"]
    result["answers"]["deployed"]["recorded"]["checksums"] = {"host": "older", "service": "1", "gateway": "gone"}
    planned = {"services": [service]}
    (finding,) = drift_action.judge(planned, {"host": "newer", "service": "1"}, True, result)
    assert finding.rule == "drift.plan" and "the deployment (gateway, host): " in finding.message
    # Programs that did not answer leave nothing to compare.
    result["answers"]["deployed"]["unanswered"] = ["Docker does not say which images run: it hangs"]
    (finding,) = drift_action.judge(planned, {"host": "newer"}, True, result)
    assert finding.rule == "drift.not_asked" and "it hangs" in finding.message


def test_lock_and_plan_are_compared_once(controller: Controller) -> None:
    service = controller.planned()
    files = {"config.json": {"size": 2, "sha256": "a" * 64}}
    entry = {
        "image": "vllm/vllm-openai:v0.23.0",
        "models": [f"{REPO}@main"],
        "recipe": {"name": "x", "sha256": "0" * 64},
    }
    lock = {
        "schema": 1,
        "images": {},
        "models": {f"{REPO}@main": {"commit": COMMIT, "files": files}},
        "services": {f"spark-{number}/fast": entry for number in (1, 2)},
    }
    (controller.folder / ".spark").mkdir(exist_ok=True)
    (controller.folder / ".spark/spark.lock.yml").write_text(yaml.safe_dump(lock))
    code, text = controller.judge({"spark-1": answer_of(service), "spark-2": answer_of(service)})
    assert code == 0, text
    assert text.count("[lock.recipe]") == 1 and text.count("[lock.image]") == 1
    assert (
        "fast on spark-1..2: fast was locked with the image vllm/vllm-openai:v0.23.0, and the inventory serves it "
        f"from {REF}." in text
    )


@pytest.mark.nightly
def test_the_playbook_reaches_each_host_once_and_changes_nothing(controller: Controller) -> None:
    """Hosts that never had anything, one of them silent; in check mode the same."""
    controller.script("docker", "case $1 in info) echo '{\"ServerVersion\": \"29.0\"}' ;; image) echo '[]' ;; esac")
    controller.script("systemctl", "true")
    calls = controller.folder / "calls"
    counted = controller.script("python", f'echo x >> {calls}\nexec {python()} "$@"')
    ssh = controller.script("ssh", LOST_SSH)
    hosts = {
        "spark-1": {"ansible_connection": "local", "ansible_python_interpreter": str(counted)},
        "spark-2": {"ansible_connection": "ssh", "ansible_ssh_executable": str(ssh)},
    }
    texts = []
    for options in ((), ("--check",)):
        calls.unlink(missing_ok=True)
        code, text = controller.run(hosts, "dgxspark.vllm.drift", "-e", "spark_drift_fail_on=warning", *options)
        assert code == 2, text
        assert "spark-1/fast: it is planned, but was never deployed on this host. [drift.not_deployed]" in text
        assert "spark-2: the host is unreachable: port 22: No route to host. [drift.unreachable]" in text
        assert "2 hosts (1 silent), 2 services: " in text
        assert "unreachable=0" in text and "changed=1" not in text
        # One call for facts with images, one for the deployed state.
        assert len(calls.read_text().split()) == 2
        texts.append(text.partition("TASK [Show the differences]")[2])
    assert texts[0] == texts[1]
    code, text = controller.run(hosts, "dgxspark.vllm.drift", "--limit", "spark-2", "-e", "spark_drift_show=lines")
    assert code == 0, text
    assert "1 host (1 silent), 1 service: 1 error." in text
