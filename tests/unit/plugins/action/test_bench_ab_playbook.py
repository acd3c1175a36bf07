# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""bench_ab.yml and bench_offline.yml: stopped services, measurements, and restored services. Units are played by a log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench_fixture import stand_in_vllm, standin
from playbook_runs import ansible_playbook, python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
STATE = """
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({name: {"type": "raw"} for name in ("services", "state", "boot", "leaving", "timeout", "root")}, supports_check_mode=True)
folder, asked = Path(os.environ["PLAYED_HOST"]), module.params
running = set(json.loads((folder / "running").read_text()))
stuck = json.loads((folder / "stuck").read_text()) if (folder / "stuck").exists() else []
answer = []
for name in asked["services"] or []:
    if asked["state"] == "started" and name in stuck:
        module.fail_json(msg=f"{name} does not start")
    changed = (name in running) != (asked["state"] == "started")
    running = running | {name} if asked["state"] == "started" else running - {name}
    if changed:
        with (folder / "log").open("a") as log:
            log.write(f"{asked['state']} {name}\\n")
    answer.append({"name": name, "unit": f"spark-{name}.service", "container": f"spark-{name}", "changed": changed, "url": None, "start_seconds": 5,
                   "model": None, "api_key_file": None, "on_demand": False, "follows": False})
assert asked["boot"] is None
(folder / "running").write_text(json.dumps(sorted(running)))
module.exit_json(changed=False, services=answer, freed_gib=0, waited_seconds=0, available_gib=0)
"""
INFO = """
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule

AnsibleModule({name: {"type": "raw"} for name in ("root", "hf_home", "images")}, supports_check_mode=True).exit_json(
    images={}, spark={"services": json.loads((Path(os.environ["PLAYED_HOST"]) / "deployed").read_text())})
"""
NOTHING = """
from ansible.module_utils.basic import AnsibleModule

NAMES = ["url", "model", "api_key_file", "timeout", "unit", "container", "on_demand"]
AnsibleModule({name: {"type": "raw"} for name in NAMES}, supports_check_mode=True).exit_json()
"""
PLAYED = {"service_state": STATE, "spark_info": INFO, "endpoint_ready": NOTHING}
SETTINGS = {"prompt_tokens": [64], "output_tokens": 32, "repeats": 2, "concurrency": [2], "prefix_tokens": 0}
RECIPE = "qwen3-4b-instruct-2507"
DOCKER = """#!/bin/sh
[ "$1" = exec ] && { shift 2; exec "$@"; }
echo "$*" >> "$PLAYED_HOST/docker"
[ "$1" = run ] || { echo "[]"; echo "Error: No such container: $4" >&2; exit 1; }
[ -e "$PLAYED_HOST/broken" ] && { echo "ValueError: no kernel for this" >&2; exit 1; }
echo "INFO loading"
echo dgxspark-bench-result
echo '{"elapsed_time": 20.0, "num_requests": 100, "total_num_tokens": 9600, "requests_per_second": 5.0, "tokens_per_second": 480.0}'
"""


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, with played units and images."""
    folder = tmp_path_factory.mktemp("collections")
    collection = folder / "ansible_collections" / "dgxspark" / "vllm"
    collection.mkdir(parents=True)
    for name in ("meta", "playbooks", "roles", "galaxy.yml"):
        (collection / name).symlink_to(ROOT / name)
    for kind in ("action", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (collection / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__":
                (collection / "plugins" / kind / path.name).symlink_to(path)
    for name, text in PLAYED.items():
        path = collection / "plugins" / "modules" / f"{name}.py"
        path.unlink()
        path.write_text("#!/usr/bin/python\n" + text)
    return folder


class Host:
    """One host with services, of which some run."""

    def __init__(self, folder: Path, collections: Path) -> None:
        self.folder, self.collections = folder, collections
        played = folder / "python"
        played.write_text(f'#!/bin/sh\nPLAYED_HOST={folder} exec {python()} "$@"\n')
        played.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").write_text(DOCKER)
        (folder / "bin" / "docker").chmod(0o755)
        stand_in_vllm(folder / "bin")

    def has(self, ports: dict[str, int], running: list[str], deployed: list[str] | None = None) -> None:
        services = [
            {"name": name, "recipe": RECIPE, "served_model_name": "heavy", "port": port, "exclusive": "models"}
            for name, port in ports.items()
        ]
        (self.folder / "deployed").write_text(json.dumps(list(ports) if deployed is None else deployed))
        (self.folder / "running").write_text(json.dumps(running))
        local = {"ansible_connection": "local", "ansible_become": False}
        local["ansible_python_interpreter"] = str(self.folder / "python")
        elsewhere = {"spark_services": [{**services[0], "name": "far"}]}
        hosts: dict[str, Any] = {"spark-1": {**local, "spark_services": services}, "spark-2": {**local, **elsewhere}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}, sort_keys=False))

    def play(self, playbook: str, *options: str, **variables: Any) -> tuple[int, str]:
        extra_vars = {"spark_bench": SETTINGS, "spark_bench_dest": str(self.folder / "out.json"), **variables}
        ran = ansible_playbook(
            *("-i", "hosts.yml", f"dgxspark.vllm.{playbook}", *options, "-e", json.dumps(extra_vars)),
            cwd=self.folder,
            env={
                "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            },
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def running(self) -> list[str]:
        return json.loads((self.folder / "running").read_text())


@pytest.fixture
def host(tmp_path: Path, collections: Path) -> Host:
    return Host(tmp_path, collections)


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_two_variants_are_measured_one_after_the_other_and_what_ran_runs_again(host: Host) -> None:
    with standin(0.002) as (url, first), standin(0.002) as (other_url, second):
        host.has({"plain": port(url), "mtp": port(other_url)}, ["plain"])
        code, text = host.play("bench_ab", a="plain", b="mtp")
    assert code == 0, text
    assert host.log() == [
        "stopped plain", "started plain", "stopped plain", "started mtp", "stopped mtp", "started plain"
    ]  # fmt: skip
    assert host.running() == ["plain"] and first.generated == second.generated > 0
    report = json.loads((host.folder / "out.json").read_text())
    assert [entry["where"] for entry in report["services"]] == ["spark-1/plain", "spark-1/mtp"]
    rows = {row["what"]: row for row in report["pairs"][0]["rows"]}
    assert {"TTFT s, prompt of 64", "prefill tok/s, prompt of 64", "output tok/s, 2 requests at once"} <= set(rows)
    assert rows["decode tok/s, prompt of 64"]["a"] > 0 and rows["decode tok/s, prompt of 64"]["b"] > 0
    assert "a: spark-1/plain" in text and "b: spark-1/mtp" in text


@pytest.mark.nightly
def test_what_does_not_start_leaves_what_ran_running(host: Host) -> None:
    with standin(0.001) as (url, _first), standin(0.001) as (two, _second):
        host.has({"plain": port(url), "mtp": port(two)}, ["plain"])
        (host.folder / "stuck").write_text('["mtp"]')
        code, text = host.play("bench_ab", a="plain", b="mtp")
    assert code != 0 and "mtp does not start" in text
    assert host.running() == ["plain"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"a": "plain"}, "name the service: -e b=NAME"),
        ({"a": "plain", "b": "mpt"}, "did you mean 'mtp'?"),
        ({"a": "plain", "b": "plain"}, "a and b are both plain"),
        ({"a": "plain", "b": "far"}, "they are not of the same hosts: spark-1 and spark-2"),
    ],
)
def test_what_cannot_be_compared_touches_no_host(host: Host, variables: dict[str, str], message: str) -> None:
    host.has({"plain": 8001, "mtp": 8002}, ["plain"])
    code, text = host.play("bench_ab", **variables)
    assert code != 0 and "no host was touched" in text and message in text
    assert host.log() == []


@pytest.mark.nightly
def test_a_variant_that_is_not_deployed_stops_nothing(host: Host) -> None:
    host.has({"plain": 8001, "mtp": 8002}, ["plain"], deployed=["plain"])
    code, text = host.play("bench_ab", a="plain", b="mtp")
    assert code != 0 and "spark-1: mtp is not deployed; nothing was stopped" in text
    assert host.log() == []


@pytest.mark.parametrize(
    ("playbook", "extra_vars"),
    [
        pytest.param("bench_ab", {"a": "plain", "b": "mtp"}, marks=pytest.mark.nightly),
        ("bench_offline", {"services": "plain"}),
    ],
)
def test_in_check_mode_nothing_stops(host: Host, playbook: str, extra_vars: dict[str, str]) -> None:
    host.has({"plain": 8001, "mtp": 8002}, ["plain"])
    code, text = host.play(playbook, "--check", **extra_vars)
    assert code == 0, text
    assert host.log() == [] and not (host.folder / "docker").exists()


def test_a_model_is_measured_without_its_server(host: Host) -> None:
    host.has({"plain": 8001, "mtp": 8002}, ["plain"])
    code, text = host.play("bench_offline", services="plain")
    assert code == 0, text
    assert host.log() == ["stopped plain", "started plain"] and host.running() == ["plain"]
    services = json.loads((host.folder / "out.json").read_text())["services"]
    assert [(entry["where"], entry["offline"]["tokens_per_second"]) for entry in services] == [("spark-1/plain", 480.0)]
    docker_words = (host.folder / "docker").read_text()
    assert (
        "--name spark-plain-bench" in docker_words
        and "--input-len 64 --output-len 32 --num-prompts 100" in docker_words
    )
    assert "--port" not in docker_words


@pytest.mark.nightly
def test_a_model_that_does_not_load_is_named_and_its_service_runs_again(host: Host) -> None:
    host.has({"plain": 8001, "mtp": 8002}, ["plain"])
    (host.folder / "broken").write_text("")
    code, text = host.play("bench_offline", services="plain")
    assert code != 0 and "ValueError: no kernel for this" in text
    assert host.running() == ["plain"]


def test_nothing_is_measured_without_its_server_unless_it_is_named(host: Host) -> None:
    host.has({"plain": 8001, "mtp": 8002}, ["plain"])
    code, text = host.play("bench_offline")
    assert code != 0 and "Name the services: -e services=heavy" in text and host.log() == []
