# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What site.yml costs on hosts that are what they are to be: tasks, workers of the controller, plans, size of what is registered.

The playbook, the plan and the action plugins are the real ones. Modules that reach a host are played, and so are roles.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_fixture import fabric_facts, settled_ring
from planned_fixture import MEASURED
from playbook_runs import ansible_playbook, python

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric_layout

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
IMAGE = "dgxspark/vllm-cpu:0.32.0"
PLAYED = """#!/usr/bin/python
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule

NAMES = {options}
ASKED = ["models", "folders", "differs", "images", "network", "servers", "firewall", "bundled", "parts"]
module = AnsibleModule({{name: {{"type": "raw"}} for name in NAMES}}, supports_check_mode=True)
folder = Path(os.environ["PLAYED_HOST"])
with (folder / "log").open("a") as log:
    parts = {{row["part"] for kind in ("files", "units") for row in module.params.get(kind) or [] if "part" in row}}
    of = module.params.get("action") or module.params.get("name") or " ".join(sorted(parts))
    log.write("{name} " + of + "\\n")
if module.params.get("action") == "up_to_date":
    asked = {{name: module.params[name] for name in ASKED}}
    (folder / "asked.json").write_text(json.dumps({{**asked, **(module.params["proof"] or {{}})}}))
if module.params.get("proof"):
    (folder / "proof.json").write_text((folder / "asked.json").read_text())
probes = module.params.get("probe_images") in (True, "True")
answer = json.loads((folder / ("{name} probing.json" if probes else "{name}.json")).read_text())
module.exit_json(**answer)
"""
# As the image that is played; with the account that the role host makes.
HERE = {
    **MEASURED,
    "architecture": "x86_64",
    "docker_users": {"dgxspark": {"home": "/nonexistent", "shell": "/usr/sbin/nologin"}},
}
APPLY = """
- name: Apply
  ansible.builtin.lineinfile: {path: "{{ inventory_dir }}/{{ inventory_hostname }}/log", line: applied, create: true, mode: "0644"}
"""
PROVE = """
- name: Prove
  ansible.builtin.lineinfile: {path: "{{ inventory_dir }}/{{ inventory_hostname }}/log", line: "{{ __line }}", create: true, mode: "0644"}
  vars:
    # Those on demand are proved one after another.
    __line: "{{ (['proved'] + (prove_services | selectattr('on_demand', 'defined') | map(attribute='name'))) | join(' ') }}"
  register: __prove_engines
"""


# What reaches a host in a first run. Accounts (ansible.builtin.user), pulls (docker), the hub and its downloads are not played.
ROLES_PLAYED = {
    "deploy": {
        "changed": True,
        "started": ["spark-tiny.service"],
        "starting": [],
        "restart_due": [],
        "restarted": [],
    },
    "model_folder": {"missing": [], "digests": {}, "changed": False},
    "endpoint_ready": {"ready": True},
    "service_proof": {"findings": [], "answers": {}, "services": {}, "system": {}, "receipts": {}},
}


def options_of(name: str) -> list[str]:
    """The options of a module, by its documentation."""
    text = (ROOT / "plugins" / "modules" / f"{name}.py").read_text()
    return list(yaml.safe_load(text.partition('DOCUMENTATION = r"""')[2].partition('"""')[0])["options"])


def with_played(folder: Path, modules: Iterable[str]) -> Path:
    """Make the collection below a folder, in which modules are played; return where it is."""
    own = folder / "ansible_collections" / "dgxspark" / "vllm"
    own.mkdir(parents=True)
    for name in ("meta", "playbooks", "galaxy.yml"):
        (own / name).symlink_to(ROOT / name)
    for kind in ("action", "callback", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (own / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__":
                (own / "plugins" / kind / path.name).symlink_to(path)
    for name in modules:
        path = own / "plugins" / "modules" / f"{name}.py"
        path.unlink()
        path.write_text(PLAYED.format(name=name, options=options_of(name)))
    return own


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, in which what reaches hosts is played."""
    folder = tmp_path_factory.mktemp("collections")
    own = with_played(folder, ["spark_info", "generation", "deploy"])
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
    """Hosts with a service each; the first ones may be one cluster, with one service over all of them, or some that requests start (demand)."""

    def __init__(
        self,
        folder: Path,
        collections: Path,
        count: int,
        cluster: int = 0,
        demand: Sequence[str] = (),
        **variables: Any,
    ) -> None:
        self.folder, self.collections, self.cluster = folder, collections, cluster
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
            **variables,
        }
        (folder / "scripted").mkdir()
        (folder / "scripted" / "config.json").write_text("{}")
        hosts = {name: {"ansible_host": f"192.0.2.{number}"} for number, name in enumerate(self.names, start=1)}
        group: dict[str, Any] = {"hosts": hosts, "vars": shared}
        if cluster:
            more = shared.pop("spark_cluster_more", {})
            wide = [{**service, "name": "wide", "port": 8010}]
            if demand:
                wide = [
                    {**service, "name": name, "port": 8010 + place, "on_demand": {}}
                    for place, name in enumerate(demand)
                ]
            spans = {"name": "pair", **more, "services": wide}
            members: dict[str, Any] = {name: {} for name in self.names[:cluster]}
            group["children"] = {"pair": {"hosts": members, "vars": {"spark_cluster": spans, "spark_services": []}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": group}))

    def are(self, up_to_date: bool, proved: bool = True, *names: str) -> None:
        """Have hosts (all) say whether they are what they are to be, and whether their services answered right away."""
        probe = {"vllm_version": "0.32.0", "architecture": "x86_64"}
        image = {"present": True, "id": f"sha256:{'1' * 64}", "probe_from": "cache", "probe": probe}
        said: dict[str, dict[str, Any]] = {
            "deploy": {"changed": True, "joined": []},
            "spark_info": {"spark": HERE, "images": {IMAGE: image}},
            "generation": {
                **{"up_to_date": up_to_date, "proved": up_to_date and proved, "changed": False, "why": []},
                **({"receipts": {"tiny": {"receipt": {"service": "tiny"}}}} if up_to_date and proved else {}),
            },
        }
        for number, name in enumerate(self.names, start=1):
            own = {"fabric": fabric_facts(number), "management_address": f"10.0.0.{number}", "nft": True}
            said["spark_info"]["spark"] = {**HERE, **own} if number <= self.cluster else HERE
            for module, answer in said.items() if name in (names or self.names) else ():
                (self.folder / name / f"{module}.json").write_text(json.dumps(answer))

    def ring(self) -> None:
        """Have all hosts say that they are a ring that passes on packets, as the role fabric sets it up."""
        for name, entry in settled_ring(self.names, fabric_layout.Settings(relay=True)).items():
            path = self.folder / name / "spark_info.json"
            said = json.loads(path.read_text())
            path.write_text(json.dumps({**said, "spark": {**said["spark"], **entry}}))

    def say(self, said: Mapping[str, Any]) -> None:
        """Have all hosts answer modules by their names."""
        for name in self.names:
            for module, answer in said.items():
                (self.folder / name / f"{module}.json").write_text(json.dumps(answer))

    def asked(self, name: str) -> dict[str, Any]:
        """What the look was asked about a host."""
        asked: dict[str, Any] = json.loads((self.folder / name / "asked.json").read_text())
        return asked

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
    applied = ["deploy host", "applied", "proved", "deploy guard watchdog", "generation record"]
    assert fleet.log("spark-02") == ["spark_info", "generation up_to_date", *applied]
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
        pytest.param(
            ("--tags", "fabric,service"), ["spark_info", "applied", "generation record"], marks=pytest.mark.nightly
        ),
        pytest.param(
            ("--skip-tags", "firewall"),
            ["spark_info", "applied", "proved", "deploy guard watchdog", "generation record"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ("-e", "spark_apply_all=true"),
            ["spark_info", "deploy host", "applied", "proved", "deploy guard watchdog", "generation record"],
            marks=pytest.mark.nightly,
        ),
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


SETTLED = ["spark_info", "generation up_to_date"]
CHANGED = [
    *(*SETTLED, "deploy host", "deploy firewall", "applied"),
    *("proved", "deploy guard watchdog", "generation record"),
]
"""Of a host of a cluster; one by itself gets host and firewall by one task."""


def test_hosts_of_a_cluster_that_are_what_they_are_to_be_take_two_round_trips_too(
    tmp_path: Path, collections: Path
) -> None:
    fleet = Fleet(tmp_path, collections, 4, cluster=2)
    fleet.are(True)
    events = fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [SETTLED] * 4
    begun = [event for event in events if event["event"] == "begin"]
    assert sum(event["task"] in ("Plan from the inventory", "Plan with the facts of the hosts") for event in begun) == 2
    workers = Counter(event["host"] for event in begun)
    assert (workers["spark-02"], workers["spark-04"]) == (5, 5), begun
    # Each host proves its own unit, and the head alone the API.
    head, other = (fleet.asked(name) for name in ("spark-01", "spark-02"))
    assert [(service["unit"], service["rank"], bool(service["url"])) for service in head["services"]] == [
        ("spark-wide.service", 0, True)
    ]
    assert [(service["unit"], service["rank"], bool(service["url"])) for service in other["services"]] == [
        ("spark-wide.service", 1, False)
    ]
    for number, asked in enumerate((head, other)):
        assert asked["differs"] == [] and asked["firewall"] == "present"
        assert asked["network"]["file"]["path"] == "/etc/netplan/40-cx7.yaml"
        assert asked["network"]["ufw"]["netdevs"] == ["enP2p1s0f0np0", "enp1s0f0np0"]
        assert [ping["target"] for ping in asked["network"]["pings"]] == [
            f"192.168.{net}.1{2 - number}" for net in (100, 101)
        ]
    assert fleet.asked("spark-03")["network"] == {}


@pytest.mark.parametrize(
    ("up_to_date", "reached"),
    [pytest.param(False, CHANGED, marks=pytest.mark.nightly), (True, [*SETTLED, "proved"])],
    ids=["changed", "unproved"],
)
def test_a_cluster_is_up_to_date_and_proved_when_all_of_its_hosts_are(
    tmp_path: Path, collections: Path, up_to_date: bool, reached: list[str]
) -> None:
    fleet = Fleet(tmp_path, collections, 3, cluster=2)
    fleet.are(True)
    fleet.are(up_to_date, False, "spark-02")
    fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [reached, reached, SETTLED]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tags", "parts"),
    [
        ("service", ["service"]),
        ("host,watchdog,gateway", ["host", "watchdog"]),
        ("service,prove", ["prove", "service"]),
    ],
)
def test_with_tags_a_host_is_asked_about_what_these_apply_in_two_round_trips_too(
    tmp_path: Path, collections: Path, tags: str, parts: list[str]
) -> None:
    fleet = Fleet(tmp_path, collections, 2)
    fleet.are(True, proved="prove" in tags)
    events = fleet.site("--tags", tags)
    assert [fleet.log(name) for name in fleet.names] == [SETTLED] * 2
    asked = fleet.asked("spark-02")
    assert list(asked["parts"]) == parts and asked["differs"] == asked["models"] == [] == asked["images"]
    assert (tmp_path / "spark-02" / "proof.json").exists() is ("prove" in tags)
    begun = [event for event in events if event["event"] == "begin"]
    assert sum(event["task"] in ("Plan from the inventory", "Plan with the facts of the hosts") for event in begun) == 2
    count = Counter(event["host"] for event in begun)["spark-02"]
    assert count == 3, [event["task"] for event in begun if event["host"] == "spark-02"]
    fleet.are(False)
    fleet.site("--tags", tags)
    applied = ["applied"] if "service" in tags else []
    applied += [f"deploy {part}" for part in ("host", "watchdog") if part in tags]
    proved = ["proved"] if "prove" in tags else []
    assert fleet.log("spark-02") == [*SETTLED, *applied, *proved, "generation record"]


@pytest.mark.nightly
def test_a_ring_that_is_what_it_is_to_be_takes_two_round_trips_and_another_one_all_roles(
    tmp_path: Path, collections: Path
) -> None:
    fleet = Fleet(tmp_path, collections, 4, cluster=4, spark_cluster_more={"fabric": {"relay": True}})
    fleet.are(True)
    fleet.ring()
    fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [SETTLED] * 4
    network = fleet.asked("spark-01")["network"]
    assert len(network["routes"]) == 4 and len(network["relay"]) == 4 and fleet.asked("spark-01")["differs"] == []
    assert {ping["target_host"] for ping in network["pings"]} == set(fleet.names[1:])
    # Its look finds a route gone on one of them: all of them go through the roles together.
    fleet.are(False, True, "spark-03")
    fleet.ring()
    fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [CHANGED] * 4


@pytest.mark.nightly
def test_services_on_demand_of_a_cluster_are_proved_one_after_another_first_their_first_ranks(
    tmp_path: Path, collections: Path
) -> None:
    fleet = Fleet(tmp_path, collections, 2, cluster=2, demand=("wide", "late"))
    fleet.are(False)
    events = fleet.site()
    proofs = ["proved", "proved wide", "proved late", "deploy guard watchdog", "generation record"]
    applied = ["deploy host", "deploy firewall", "applied"]
    assert [fleet.log(name) for name in fleet.names] == [[*SETTLED, *applied, *proofs]] * 2
    # What needs no request first, on all hosts at once; then each service on its head, and after that on its other host.
    steps = ("dgxspark.vllm.prove : Prove", "Prove the service", "Prove the ranks behind the first one")
    began = [(event["task"], event["host"]) for event in events if event["event"] == "begin" and event["task"] in steps]
    groups = itertools.groupby(began, key=lambda each: each[0])
    seen = [(steps.index(task), sorted({host for _task, host in hosts})) for task, hosts in groups]
    of_service = [(1, fleet.names), (0, fleet.names), (2, fleet.names), (0, ["spark-02"])]
    assert seen == [(0, fleet.names), *of_service, *of_service]
    services = {name: fleet.asked(name)["services"] for name in fleet.names}
    assert [(each["name"], each["rank"], bool(each["on_demand"])) for each in services["spark-02"]] == [
        ("wide", 1, True),
        ("late", 1, True),
    ]


def test_speech_servers_and_ollama_are_asked_by_the_look(tmp_path: Path, collections: Path) -> None:
    variables = {
        "spark_speech": [{"name": "hear", "kind": "asr", "port": 8020}],
        "spark_ollama": {"models": ["qwen3:8b"]},
    }
    fleet = Fleet(tmp_path, collections, 1, **variables)
    fleet.are(True)
    fleet.site()
    assert fleet.log("spark-01") == SETTLED
    asked = fleet.asked("spark-01")
    assert [(server["name"], server["settings"]) for server in asked["servers"]] == [
        ("hear", "/etc/dgxspark/speech/hear.json"),
        ("ollama", "/etc/dgxspark/ollama/ollama.json"),
    ]
    assert {"/etc/dgxspark/speech", "/srv/ollama"} <= {folder["path"] for folder in asked["folders"]}
    assert asked["differs"] == [] and asked["firewall"] == ""


@pytest.mark.nightly
def test_the_first_run_of_a_single_spark_reaches_it_with_few_tasks(tmp_path: Path) -> None:
    own = with_played(tmp_path / "collections", ["spark_info", "generation", *ROLES_PLAYED])
    (own / "roles").symlink_to(ROOT / "roles")
    fleet = Fleet(tmp_path, tmp_path / "collections", 1, spark_watchdog=True)
    fleet.are(False)
    known = json.loads((tmp_path / "spark-01" / "spark_info.json").read_text())
    probed = {"spark_info probing": {"images": known["images"], "host_architecture": "x86_64"}}
    # The image is there, and nobody has asked it yet.
    unknown = {IMAGE: {**known["images"][IMAGE], "probe_from": "none", "probe": None}}
    fleet.say({**ROLES_PLAYED, **probed, "spark_info": {**known, "images": unknown}})
    fleet.site()
    # With an account that is made, an image that is pulled, and a model that a hub grants and sends, four more: fewer than 15.
    assert fleet.log("spark-01") == [
        "spark_info",
        "deploy host",
        "spark_info",
        "model_folder",
        "deploy service",
        "endpoint_ready",
        "service_proof",
        "deploy guard watchdog",
        "generation record",
    ]
