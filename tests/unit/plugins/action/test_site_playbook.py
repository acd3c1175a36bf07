# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of site.yml on hosts without changes: tasks, workers of the controller, plans, size of registered results.

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
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.kept_facts import KeptFacts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
IMAGE = "dgxspark/vllm-cpu:0.32.0"
PLAYED = """#!/usr/bin/python
import json
import os
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import stable_facts

NAMES = {options}
ASKED = ["models", "document", "images", "network", "servers", "bundled", "parts", "facts_checksum", "gather"]
module = AnsibleModule({{name: {{"type": "raw"}} for name in NAMES}}, supports_check_mode=True)
folder = Path(os.environ["PLAYED_HOST"])
with (folder / "log").open("a") as log:
    parts = {{row["part"] for kind in ("files", "units") for row in module.params.get(kind) or [] if "part" in row}}
    gone = [] if parts else module.params.get("parts") or []
    of = module.params.get("action") or module.params.get("name") or " ".join([*sorted(parts), *(f"no {{part}}" for part in gone)])
    what = [word for word in ("document", "gather", "proof") if "{name}" == "compare" and module.params[word]]
    of = "" if "{name}" == "compare" else of
    log.write(" ".join(["{name}", *what, *([of] if of else [])]) + "\\n")
probes = module.params.get("probe_images") in (True, "True")
answer = json.loads((folder / ("{name} probing.json" if probes else "{name}.json")).read_text())
if "{name}" == "compare":
    asked = {{name: module.params[name] for name in ASKED}}
    (folder / "asked.json").write_text(json.dumps({{**asked, **(module.params["proof"] or {{}})}}))
    if module.params["gather"]:
        facts = json.loads((folder / "spark_info.json").read_text())
        answer = {{**answer, **facts}}
        checksum = stable_facts.stable_checksum(facts["spark"], facts["images"])
        if module.params["facts_checksum"] not in (None, "", checksum):
            answer.update(up_to_date=False, proved=False, why=["facts of the host differ from the plan"])
    if not module.params["proof"]:
        answer.update(proved=False)
    elif answer["up_to_date"]:
        (folder / "proof.json").write_text((folder / "asked.json").read_text())
        answer.update({{}} if answer["proved"] else {{"unproved": "tiny does not answer"}})
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


RECORDED = {"number": 1, "proven": True, "checksums": {"host": "1", "service": "2", "guard": "3", "watchdog": "4"}}
"""What hosts say of their generation."""
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
    """Make a collection with played modules below a folder; return its path."""
    collection = folder / "ansible_collections" / "dgxspark" / "vllm"
    collection.mkdir(parents=True)
    for name in ("meta", "playbooks", "galaxy.yml"):
        (collection / name).symlink_to(ROOT / name)
    for kind in ("action", "callback", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (collection / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__":
                (collection / "plugins" / kind / path.name).symlink_to(path)
    for name in modules:
        path = collection / "plugins" / "modules" / f"{name}.py"
        path.unlink()
        path.write_text(PLAYED.format(name=name, options=options_of(name)))
    return collection


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, with played modules and roles instead of those which reach hosts."""
    folder = tmp_path_factory.mktemp("collections")
    collection = with_played(folder, ["spark_info", "generation", "deploy", "compare"])
    tasks = {"service": APPLY, "prove": PROVE}
    for path in (ROOT / "roles").iterdir():
        (collection / "roles" / path.name / "tasks").mkdir(parents=True)
        (collection / "roles" / path.name / "tasks" / "main.yml").write_text(tasks.get(path.name, "[]\n"))
        if path.name not in tasks:
            for part in ("defaults", "vars"):
                if (path / part).exists():
                    (collection / "roles" / path.name / part).symlink_to(path / part)
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
        self.printed = ""
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
        """Have hosts (by default all) say whether they are up to date and whether their services answered right away."""
        probe = {"vllm_version": "0.32.0", "architecture": "x86_64"}
        image = {"present": True, "id": f"sha256:{'1' * 64}", "probe_from": "cache", "probe": probe}
        answers: dict[str, dict[str, Any]] = {
            "deploy": {"changed": True, "joined": []},
            "spark_info": {"spark": HERE, "images": {IMAGE: image}},
            "generation": {"changed": False},
            "compare": {
                **{"up_to_date": up_to_date, "proved": up_to_date and proved, "changed": False},
                **{"why": [] if up_to_date else ["a file differs"], "recorded": RECORDED},
                **({"receipts": {"tiny": {"receipt": {"service": "tiny"}}}} if up_to_date and proved else {}),
            },
        }
        for number, name in enumerate(self.names, start=1):
            addresses = {"fabric": fabric_facts(number), "management_address": f"10.0.0.{number}", "nft": True}
            answers["spark_info"]["spark"] = {**HERE, **addresses} if number <= self.cluster else HERE
            for module, answer in answers.items() if name in (names or self.names) else ():
                (self.folder / name / f"{module}.json").write_text(json.dumps(answer))

    def are_not(self, name: str, *why: str) -> None:
        """Have a host say that it is not up to date for these reasons; without any, that it is."""
        answer = json.loads((self.folder / name / "compare.json").read_text())
        answer.update(up_to_date=not why, proved=not why, why=list(why))
        (self.folder / name / "compare.json").write_text(json.dumps(answer))

    def know(self, *names: str) -> None:
        """Keep on the controller what hosts (all) say, as a run does that plans with it."""
        store = KeptFacts(
            {"groups": {"sparks": self.names}, "hostvars": {self.names[0]: {"inventory_dir": str(self.folder)}}}
        )
        for name in names or self.names:
            facts = json.loads((self.folder / name / "spark_info.json").read_text())
            assert store.keep(name, facts["spark"], facts["images"])

    def ring(self) -> None:
        """Have all hosts say that they are a ring that passes on packets, as the role fabric sets it up."""
        for name, entry in settled_ring(self.names, fabric_layout.Settings(relay=True)).items():
            path = self.folder / name / "spark_info.json"
            answer = json.loads(path.read_text())
            path.write_text(json.dumps({**answer, "spark": {**answer["spark"], **entry}}))

    def say(self, answers: Mapping[str, Any]) -> None:
        """Have all hosts answer modules by their names."""
        for name in self.names:
            for module, answer in answers.items():
                (self.folder / name / f"{module}.json").write_text(json.dumps(answer))

    def parameters_of(self, name: str) -> dict[str, Any]:
        """Return the parameters with which the module compare was called on a host."""
        parameters: dict[str, Any] = json.loads((self.folder / name / "asked.json").read_text())
        return parameters

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
        self.printed = ran.stdout + ran.stderr
        assert ran.returncode == 0, self.printed
        return [json.loads(line) for line in events.read_text().splitlines()]

    def log(self, name: str) -> list[str]:
        """What reached a host since the last call."""
        path = self.folder / name / "log"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.strip() for line in lines]


SETTLED = ["compare document gather proof"]
"""What reaches a host without changes."""


def plans_of(events: Iterable[Mapping[str, Any]]) -> int:
    """Return how many tasks of a run planned, or showed a plan again."""
    names = ("Plan from the inventory", "Plan with the facts of the hosts")
    return sum(event["event"] == "begin" and event["task"] in names for event in events)


def test_a_host_without_changes_takes_one_task_and_one_plan(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 3)
    fleet.are(False)
    events = fleet.site()
    applied = ["deploy host", "applied", "proved", "deploy guard", "generation record"]
    # Nobody knows the hosts yet: their facts come first.
    assert fleet.log("spark-02") == ["compare gather", "compare document gather proof", *applied]
    assert plans_of(events) == 2
    for name in fleet.names:
        fleet.log(name)
    fleet.are(True)
    events = fleet.site()
    assert all(fleet.log(name) == SETTLED for name in fleet.names)
    # The second task confirms the first plan in a line.
    assert plans_of(events) == 2 and "Up to date, nothing to change. 3 hosts: 3 fit" in fleet.printed
    _before, _heading, shown = fleet.printed.partition("\nEndpoints\n")
    assert "\nTry tiny:\n  " in shown and "/v1/chat/completions" in shown, fleet.printed
    workers = Counter(event["host"] for event in events if event["event"] == "begin")
    # Every task that begins on a host is a process of the controller, even if the task is skipped.
    assert workers["spark-02"] == workers["spark-03"] == 1, [
        event["task"] for event in events if event["event"] == "begin"
    ]
    proof = json.loads((tmp_path / "spark-02" / "proof.json").read_text())
    assert [(service["name"], service["unit"]) for service in proof["services"]] == [("tiny", "spark-tiny.service")]
    # Files from the controller are compared too.
    config = tmp_path / "scripted" / "config.json"
    copied = {"config.json": {"size": 2, "mtime": int(config.stat().st_mtime)}}
    assert [model["copied"] for model in proof["models"]] == [copied]
    assert (proof["timeout"], proof["receipts_dir"]) == (120, "/var/lib/dgxspark/receipts")


def test_a_host_that_is_not_proved_by_the_look_is_proved_as_a_whole(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 1)
    fleet.are(True, proved=False)
    fleet.know()
    fleet.site()
    assert fleet.log("spark-01") == [*SETTLED, "proved"]


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        (("--check",), ["compare document gather"]),
        pytest.param(
            ("--tags", "fabric,service"), ["compare gather", "applied", "generation record"], marks=pytest.mark.nightly
        ),
        pytest.param(
            ("--skip-tags", "firewall"),
            ["compare gather", "applied", "proved", "deploy guard", "generation record"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ("-e", "spark_apply_all=true"),
            ["compare gather", "deploy host", "applied", "proved", "deploy guard", "generation record"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ("-e", "spark_plan_facts=never"),
            ["compare gather", "deploy host", "applied", "proved", "deploy guard", "generation record"],
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_only_a_whole_run_that_may_change_something_proves_at_once(
    tmp_path: Path, collections: Path, options: tuple[str, ...], reached: list[str]
) -> None:
    fleet = Fleet(tmp_path, collections, 1)
    fleet.are(True, proved="--check" not in options)
    fleet.know()
    if "spark_plan_facts=never" in options:
        info = json.loads((tmp_path / "spark-01" / "spark_info.json").read_text())
        fleet.say({"spark_info": {**info, "spark": None}})
    fleet.site(*options)
    assert fleet.log("spark-01") == reached
    assert not (tmp_path / "spark-01" / "proof.json").exists()


CHANGED = [
    *("deploy host", "deploy firewall", "applied"),
    *("proved", "deploy guard", "generation record"),
]
"""What reaches a host of a cluster that is deployed; one by itself gets host and firewall by one task."""


def test_hosts_of_a_cluster_without_changes_take_one_task_too(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 4, cluster=2)
    fleet.are(True)
    fleet.know()
    events = fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [SETTLED] * 4
    assert plans_of(events) == 2
    workers = Counter(event["host"] for event in events if event["event"] == "begin")
    assert (workers["spark-02"], workers["spark-04"]) == (1, 1), events
    # Each host proves its own unit, and the head alone the API.
    head, other = (fleet.parameters_of(name) for name in ("spark-01", "spark-02"))
    assert [(service["unit"], service["rank"], bool(service["url"])) for service in head["services"]] == [
        ("spark-wide.service", 0, True)
    ]
    assert [(service["unit"], service["rank"], bool(service["url"])) for service in other["services"]] == [
        ("spark-wide.service", 1, False)
    ]
    for number, parameters in enumerate((head, other)):
        assert "spark-firewall.service" in [unit["name"] for unit in parameters["document"]["units"]]
        assert parameters["network"]["file"]["path"] == "/etc/netplan/40-cx7.yaml"
        assert parameters["network"]["ufw"]["netdevs"] == ["enP2p1s0f0np0", "enp1s0f0np0"]
        assert [ping["target"] for ping in parameters["network"]["pings"]] == [
            f"192.168.{net}.1{2 - number}" for net in (100, 101)
        ]
    assert fleet.parameters_of("spark-03")["network"] == {}


@pytest.mark.parametrize(
    ("up_to_date", "reached"),
    [pytest.param(False, CHANGED, marks=pytest.mark.nightly), (True, ["proved"])],
    ids=["changed", "unproved"],
)
def test_a_cluster_is_up_to_date_and_proved_when_all_of_its_hosts_are(
    tmp_path: Path, collections: Path, up_to_date: bool, reached: list[str]
) -> None:
    fleet = Fleet(tmp_path, collections, 3, cluster=2)
    fleet.are(True)
    fleet.are(up_to_date, False, "spark-02")
    fleet.know()
    fleet.site()
    applied = [*SETTLED, *reached]
    assert [fleet.log(name) for name in fleet.names] == [applied, applied, SETTLED]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tags", "parts"),
    [
        ("service", ["service"]),
        ("host,watchdog,gateway", ["gateway", "host", "watchdog"]),
        ("service,prove", ["prove", "service"]),
    ],
)
def test_with_tags_a_host_is_compared_in_one_task_with_what_these_apply(
    tmp_path: Path, collections: Path, tags: str, parts: list[str]
) -> None:
    fleet = Fleet(tmp_path, collections, 2)
    fleet.are(True, proved="prove" in tags)
    fleet.know()
    events = fleet.site("--tags", tags)
    compared = SETTLED if "prove" in tags else ["compare document gather"]
    assert [fleet.log(name) for name in fleet.names] == [compared] * 2
    parameters = fleet.parameters_of("spark-02")
    assert parameters["parts"] == parts and parameters["models"] == [] == parameters["images"]
    assert {row["part"] for kind in ("files", "units") for row in parameters["document"][kind]} <= set(parts)
    assert (tmp_path / "spark-02" / "proof.json").exists() is ("prove" in tags)
    assert plans_of(events) == 2
    begun = [event["task"] for event in events if event["event"] == "begin" and event["host"] == "spark-02"]
    assert len(begun) == 1, begun
    fleet.are(False)
    fleet.site("--tags", tags)
    applied = ["applied"] if "service" in tags else []
    applied += ["deploy host", "deploy no watchdog"] if "watchdog" in tags else []  # the fleet has none
    proved = ["proved"] if "prove" in tags else []
    assert fleet.log("spark-02") == [*compared, *applied, *proved, "generation record"]


@pytest.mark.nightly
def test_a_ring_without_changes_takes_one_task_and_another_one_all_roles(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 4, cluster=4, spark_cluster_more={"fabric": {"relay": True}})
    fleet.are(True)
    fleet.ring()
    fleet.know()
    fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [SETTLED] * 4
    parameters = fleet.parameters_of("spark-01")
    assert len(parameters["network"]["routes"]) == 4 and len(parameters["network"]["relay"]) == 4
    assert [unit["name"] for unit in parameters["document"]["units"] if unit["part"] == "fabric"] == [
        "dgxspark-fabric-relay.service"
    ]
    assert {ping["target_host"] for ping in parameters["network"]["pings"]} == set(fleet.names[1:])
    # A route is gone on one of them: all of them go through the roles together.
    fleet.are(False, True, "spark-03")
    fleet.ring()
    fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [[*SETTLED, *CHANGED]] * 4


@pytest.mark.nightly
def test_services_on_demand_of_a_cluster_are_proved_one_after_another_first_their_first_ranks(
    tmp_path: Path, collections: Path
) -> None:
    fleet = Fleet(tmp_path, collections, 2, cluster=2, demand=("wide", "late"))
    fleet.are(False)
    fleet.know()
    events = fleet.site()
    proofs = ["proved", "proved wide", "proved late", "deploy guard", "generation record"]
    applied = ["deploy host", "deploy firewall", "applied"]
    assert [fleet.log(name) for name in fleet.names] == [[*SETTLED, *applied, *proofs]] * 2
    # Checks without a request come first, on all hosts at once; then each service on its head, and after that on its other host.
    steps = ("dgxspark.vllm.prove : Prove", "Prove the service", "Prove the ranks behind the first one")
    began = [(event["task"], event["host"]) for event in events if event["event"] == "begin" and event["task"] in steps]
    groups = itertools.groupby(began, key=lambda event: event[0])
    seen = [(steps.index(task), sorted({host for _task, host in hosts})) for task, hosts in groups]
    of_service = [(1, fleet.names), (0, fleet.names), (2, fleet.names), (0, ["spark-02"])]
    assert seen == [(0, fleet.names), *of_service, *of_service]
    services = {name: fleet.parameters_of(name)["services"] for name in fleet.names}
    assert [(service["name"], service["rank"], bool(service["on_demand"])) for service in services["spark-02"]] == [
        ("wide", 1, True),
        ("late", 1, True),
    ]


def test_speech_servers_and_ollama_are_asked_by_the_comparison(tmp_path: Path, collections: Path) -> None:
    variables = {
        "spark_speech": [{"name": "hear", "kind": "asr", "port": 8020}],
        "spark_ollama": {"models": ["qwen3:8b"]},
    }
    fleet = Fleet(tmp_path, collections, 1, **variables)
    fleet.are(True)
    fleet.know()
    fleet.site()
    assert fleet.log("spark-01") == SETTLED
    parameters = fleet.parameters_of("spark-01")
    assert [(server["name"], server["settings"]) for server in parameters["servers"]] == [
        ("hear", "/etc/dgxspark/speech/hear.json"),
        ("ollama", "/etc/dgxspark/ollama/ollama.json"),
    ]
    assert {"/etc/dgxspark/speech", "/srv/ollama"} <= {folder["path"] for folder in parameters["document"]["folders"]}


def test_only_hosts_whose_facts_or_files_changed_are_deployed(tmp_path: Path, collections: Path) -> None:
    """One of three says other facts, and is up to date with the plan that they give; one has a file that differs."""
    fleet = Fleet(tmp_path, collections, 3)
    fleet.are(True)
    fleet.know()
    info = json.loads((tmp_path / "spark-01" / "spark_info.json").read_text())
    newer = {**info, "spark": {**info["spark"], "kernel": "6.18.0-1001-nvidia"}}
    (tmp_path / "spark-01" / "spark_info.json").write_text(json.dumps(newer))
    fleet.are_not("spark-03", "a file differs")
    fleet.site()
    applied = ["deploy host", "applied", "proved", "deploy guard", "generation record"]
    second_look = "compare document gather proof"
    assert [fleet.log(name) for name in fleet.names] == [[*SETTLED, second_look], SETTLED, [*SETTLED, *applied]]
    # The next run knows.
    fleet.are_not("spark-03")
    fleet.site()
    assert [fleet.log(name) for name in fleet.names] == [SETTLED] * 3


def test_parts_that_are_no_longer_planned_are_removed_before_anything_starts(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 1)
    fleet.are(False)
    fleet.know()
    answer = json.loads((tmp_path / "spark-01" / "compare.json").read_text())
    more = {**RECORDED["checksums"], "speech": "5", "exporters": "6", "fabric": "7", "": "8"}
    fleet.say({"compare": {**answer, "recorded": {**RECORDED, "checksums": more}}})
    fleet.site()
    gone = "deploy no exporters no fabric no speech"
    applied = ["deploy host", gone, "applied", "proved", "deploy guard", "generation record"]
    assert fleet.log("spark-01") == [*SETTLED, *applied]


def test_damaged_kept_facts_cost_a_task_and_no_more(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 2)
    fleet.are(True)
    fleet.know()
    (tmp_path / ".spark" / "facts" / "spark-02.json").write_text("{")
    fleet.site()
    tasks = ["compare gather", "compare document gather proof"]
    assert [fleet.log(name) for name in fleet.names] == [SETTLED, tasks]
    assert json.loads((tmp_path / ".spark" / "facts" / "spark-02.json").read_text())["host"] == "spark-02"


@pytest.mark.nightly
def test_with_a_limit_only_its_hosts_are_compared_and_planned_with_kept_facts(
    tmp_path: Path, collections: Path
) -> None:
    fleet = Fleet(tmp_path, collections, 2)
    fleet.are(True)
    fleet.know()
    fleet.site("--limit", "spark-02")
    assert [fleet.log(name) for name in fleet.names] == [[], SETTLED]
    bases = {name: body["basis"] for name, body in json.loads((tmp_path / "plan.json").read_text())["hosts"].items()}
    assert bases == {"spark-01": "inventory", "spark-02": "measured"}


def test_errors_of_other_hosts_stop_only_a_run_that_changes_them(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 2)
    fleet.are(True)
    inventory = yaml.safe_load((tmp_path / "hosts.yml").read_text())
    sparks = inventory["sparks"]
    tiny = sparks["vars"]["spark_services"][0]
    sparks["hosts"]["spark-02"]["spark_services"] = [
        tiny,
        {**tiny, "name": "other", "args": {"gpu-memory-utilization": 0.99}, "port": 8004},
    ]
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    fleet.site("--limit", "spark-01")
    with pytest.raises(AssertionError, match="no host was changed"):
        fleet.site("--limit", "spark-02")
    with pytest.raises(AssertionError, match="no host was changed"):
        fleet.site()


@pytest.mark.nightly
def test_errors_of_kept_facts_stop_nothing_before_the_hosts_were_asked(tmp_path: Path, collections: Path) -> None:
    fleet = Fleet(tmp_path, collections, 1)
    fleet.are(True)
    info = json.loads((tmp_path / "spark-01" / "spark_info.json").read_text())
    full = {**info["spark"], "docker": None}
    fleet.say({"spark_info": {**info, "spark": full}})
    fleet.know()
    fleet.say({"spark_info": info})
    fleet.site()
    assert fleet.log("spark-01") == [*SETTLED, *SETTLED]
    fleet.say({"spark_info": {**info, "spark": full}})
    with pytest.raises(AssertionError, match="no Docker engine answers on this host"):
        fleet.site()
    assert fleet.log("spark-01") == SETTLED


@pytest.mark.nightly
def test_the_first_run_of_a_single_spark_reaches_it_with_few_tasks(tmp_path: Path) -> None:
    collection = with_played(tmp_path / "collections", ["spark_info", "generation", "compare", *ROLES_PLAYED])
    (collection / "roles").symlink_to(ROOT / "roles")
    fleet = Fleet(tmp_path, tmp_path / "collections", 1, spark_watchdog=True)
    fleet.are(False)
    info = json.loads((tmp_path / "spark-01" / "spark_info.json").read_text())
    probed = {"spark_info probing": {"images": info["images"], "host_architecture": "x86_64"}}
    # The image is there, and nobody has asked it yet.
    unknown = {IMAGE: {**info["images"][IMAGE], "probe_from": "none", "probe": None}}
    fresh = {"compare": {"up_to_date": False, "proved": False, "why": ["it was never deployed"], "recorded": None}}
    fleet.say({**ROLES_PLAYED, **probed, **fresh, "spark_info": {**info, "images": unknown}})
    fleet.site()
    # With an image that is pulled, and a model that a hub grants and sends, three more.
    assert fleet.log("spark-01") == [
        "compare gather",
        "deploy host",
        "spark_info",
        "model_folder",
        "deploy service",
        "endpoint_ready",
        "service_proof",
        "deploy guard watchdog",
        "generation record",
    ]
