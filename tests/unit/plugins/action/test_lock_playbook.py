# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock file on the controller: written from what hosts said, and read by plan.yml as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
REF = "vllm/vllm-openai:v0.24.0-ubuntu2404"
DIGEST, ID = f"sha256:{'d' * 64}", f"sha256:{'1' * 64}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SERVICE = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002, "image": REF}
REPO = "Qwen/Qwen3-4B-Instruct-2507"
TASKS = [
    {"dgxspark.vllm.plan": {"locked": False, "show": "none"}, "run_once": True, "register": "made"},
    {
        "dgxspark.vllm.lock": {
            "planned": "{{ made.hosts }}",
            "images_from": "images",
            "models_from": "models",
            "addons": "{{ made.addons }}",
            "addons_from": "beside",
        },
        "run_once": True,
    },
]


def host_answer(commit: str = COMMIT) -> dict[str, Any]:
    """What a host said, as earlier tasks would have registered it."""
    image = {
        "present": True,
        "id": ID,
        "repo_digests": [f"vllm/vllm-openai@{DIGEST}"],
        "os": "linux",
        "architecture": "arm64",
    }
    files = {"config.json": {"size": 2, "sha256": "a" * 64, "blob": ""}}
    model = {"repo": REPO, "revision": "main", "commit": commit, "path": "/srv/x", "files": files, "problems": []}
    return {"images": {"images": {REF: image}}, "models": {"model_files": [model]}}


class Controller:
    """A folder with an inventory, and plays on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder / ".spark/spark.lock.yml"

    def run(self, hosts: dict[str, Any], *options: str, playbook: str = "") -> tuple[int, str]:
        inventory = self.folder / "hosts.yml"
        named = {
            name: {"ansible_host": f"192.0.2.{number}", "spark_services": [SERVICE], **host}
            for number, (name, host) in enumerate(hosts.items(), start=1)
        }
        variables = {"spark_plan_file": str(self.folder / "plan.json")}
        inventory.write_text(yaml.safe_dump({"sparks": {"hosts": named, "vars": variables}}))
        play = self.folder / "play.yml"
        play.write_text(yaml.safe_dump([{"hosts": "sparks", "gather_facts": False, "tasks": TASKS}], sort_keys=False))
        ran = ansible_playbook("-i", inventory, playbook or str(play), *options, cwd=self.folder)
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def test_it_is_written_once_and_deployed_from_then_on(controller: Controller) -> None:
    hosts = {"spark-1": host_answer(), "spark-2": host_answer()}
    code, text = controller.run(hosts, "--check", "--diff")
    assert code == 0, text
    assert f"+ commit: {COMMIT}" in text
    assert not controller.lock.exists()
    code, text = controller.run(hosts)
    assert (code, "changed=1" in text) == (0, True), text
    assert f"model {REPO}@main: added 0123456789ab" in text
    written = controller.lock.read_bytes()
    code, text = controller.run(hosts)
    assert (code, "changed=1" in text) == (0, False), text
    assert controller.lock.read_bytes() == written
    # Three Sparks: the lock pins moving names now, and a host without an entry gets a warning.
    code, text = controller.run({**hosts, "spark-3": host_answer()}, playbook="dgxspark.vllm.plan")
    assert code == 0, text
    assert "spark-3/fast is not in the lock file" in text
    plan = json.loads((controller.folder / "plan.json").read_text())["hosts"]
    assert {host: body["models"][0]["revision"] for host, body in plan.items()} == dict.fromkeys(plan, COMMIT)
    assert {tuple(body["images"]) for body in plan.values()} == {(f"{REF}@{DIGEST}",)}


def test_without_a_lock_a_fleet_is_refused_unless_told(controller: Controller) -> None:
    hosts: dict[str, Any] = {f"spark-{number}": {} for number in range(1, 4)}
    code, text = controller.run(hosts, playbook="dgxspark.vllm.plan")
    assert code != 0
    # All of it at once, with the way out.
    assert f"fast on spark-1..3: {REPO}@main can become something else between two hosts" in text
    assert "deploy one host of each different service with -e spark_allow_moving=true --limit HOSTS" in text
    code, text = controller.run(hosts, "-e", "spark_allow_moving=true", playbook="dgxspark.vllm.plan")
    assert code == 0, text


def test_hosts_that_disagree_are_named_and_the_file_stays(controller: Controller) -> None:
    assert controller.run({"spark-1": host_answer(), "spark-2": host_answer()})[0] == 0
    written = controller.lock.read_bytes()
    code, text = controller.run({"spark-1": host_answer(), "spark-2": host_answer("f" * 40)})
    assert code != 0
    assert "spark-1: 0123456789ab; spark-2: ffffffffffff" in text
    assert controller.lock.read_bytes() == written
    silent = host_answer("f" * 40)
    silent.pop("models")
    code, text = controller.run({"spark-1": host_answer(), "spark-2": silent})
    assert code == 0, text
    assert "spark-2 did not answer; its entries in the lock file stay" in text
    assert controller.lock.read_bytes() == written


def test_a_damaged_lock_stops_every_plan(controller: Controller) -> None:
    for content, needle in (
        ("schema: 1\nmodels: {a@main: {commit: x}}\n", "models.a@main"),
        ("{", "cannot be read"),
        ("", "schema"),
    ):
        controller.lock.parent.mkdir(exist_ok=True)
        controller.lock.write_text(content)
        code, text = controller.run({"spark-1": host_answer()}, playbook="dgxspark.vllm.plan")
        assert code != 0
        assert needle in text
        assert str(controller.lock) in text


def test_one_lock_for_all(controller: Controller) -> None:
    hosts = {
        "spark-1": {**host_answer(), "spark_lock_file": "/a.yml"},
        "spark-2": {**host_answer(), "spark_lock_file": "/b.yml"},
    }
    code, text = controller.run(hosts, playbook="dgxspark.vllm.plan")
    assert code != 0
    assert "spark_lock_file differs between hosts (/a.yml, /b.yml)" in text


def test_the_image_of_a_gateway_is_locked_and_deployed_by_its_digest(controller: Controller) -> None:
    ref = "ghcr.io/berriai/litellm:v1.99.0"
    image = {**host_answer()["images"]["images"][REF], "id": f"sha256:{'5' * 64}"}
    image["repo_digests"] = [f"ghcr.io/berriai/litellm@{DIGEST}"]
    gateway = {"image": ref, "aliases": {"chat": {"backends": ["spark-1/fast"]}}}
    hosts = {"spark-1": {**host_answer(), "spark_gateway": gateway, "beside": {"images": {ref: image}}}}
    code, text = controller.run(hosts, "-v", playbook="dgxspark.vllm.plan")
    assert code == 0 and f"{ref} is deployed by tag" in text, text
    code, text = controller.run(hosts)
    assert code == 0 and f"image {ref}: added {'d' * 12}" in text, text
    code, text = controller.run(hosts, "-v", playbook="dgxspark.vllm.plan")
    assert code == 0 and "deployed by tag" not in text, text
    plan = json.loads((controller.folder / "plan.json").read_text())
    assert plan["addons"]["spark-1"]["gateway"]["image"] == f"{ref}@{DIGEST}"
