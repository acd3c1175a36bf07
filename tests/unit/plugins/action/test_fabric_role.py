# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The decisions of the role fabric on four hosts: the files it would write, the contents of its page, the errors that stop it.

Role, plan and page are the real ones. The facts of the hosts, the frames they receive and their pings are played.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_fixture import bare
from playbook_runs import ansible_playbook, python
from test_site_playbook import ROOT, with_played

pytestmark = pytest.mark.slow

HOSTS = [f"spark-{number}" for number in range(1, 5)]
CHECKED: dict[str, Any] = {"pings": [], "relay": [], "routes": [], "bandwidth": [], "findings": [], "report": []}
ROLE = """
- hosts: sparks
  gather_facts: false
  tasks:
    - name: Set up the fabric
      ansible.builtin.import_role: {name: dgxspark.vllm.fabric}
      vars:
        fabric_hosts: "{{ groups.sparks }}"
        fabric_name: quad
        fabric_firewall: false
        fabric_plan_file: .spark/plan.json
"""


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections")
    collection = with_played(folder, ["spark_info", "fabric_check"])
    (collection / "roles").mkdir()
    (collection / "roles" / "fabric").symlink_to(ROOT / "roles" / "fabric")
    return folder


class Group:
    """Four hosts that are this machine, cabled as they say."""

    def __init__(self, folder: Path, collections: Path, topology: str) -> None:
        self.folder, self.collections = folder, collections
        self.entries = bare(topology, HOSTS)
        hosts = {name: {"ansible_python_interpreter": str(folder / name / "python")} for name in HOSTS}
        variables = {"ansible_connection": "local", "__fabric_netplan": str(folder / "netplan.yaml")}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": variables}}))
        (folder / "role.yml").write_text(ROLE)
        for name in HOSTS:
            (folder / name).mkdir()
            played = folder / name / "python"
            played.write_text(f'#!/bin/sh\nPLAYED_HOST={folder / name} exec {python()} "$@"\n')
            played.chmod(0o755)

    def run(self, *options: str) -> tuple[int, str]:
        """Run the role; return its exit code and what it printed, as one line."""
        for name, entry in self.entries.items():
            spark = {"fabric": {**entry["fabric"], "relay": False}, "management_address": entry["management_address"]}
            answers = {"spark_info": {"spark": spark, "cabling": {"heard": entry["heard"], "tools": []}}}
            for module, answer in {**answers, "fabric_check": CHECKED}.items():
                (self.folder / name / f"{module}.json").write_text(json.dumps(answer))
        netplan = json.dumps({"__fabric_netplan": str(self.folder / "netplan.yaml")})
        ran = ansible_playbook(
            *("-i", "hosts.yml", "role.yml", "-e", netplan, *options),
            cwd=self.folder,
            env={"ANSIBLE_COLLECTIONS_PATH": str(self.collections)},
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def page(self) -> str:
        return (self.folder / ".spark" / "fabric.html").read_text()


def test_check_mode_says_what_four_bare_hosts_on_a_switch_would_be_given_and_changes_none(
    tmp_path: Path, collections: Path
) -> None:
    group = Group(tmp_path, collections, "switch")
    code, text = group.run("--check", "--diff")
    assert code == 0, text
    assert not (tmp_path / "netplan.yaml").exists()
    for rail in (100, 101):
        addresses = re.findall(rf"\+ - (192\.168\.{rail}\.\d+/24)", text)
        assert sorted(addresses) == [f"192.168.{rail}.{number}/24" for number in range(10, 14)]
    assert "a switch of 4" in group.page() and "not ready" in group.page()
    saved = json.loads((tmp_path / ".spark" / "fabric.json").read_text())
    assert list(saved["clusters"]) == ["quad"] and saved["clusters"]["quad"]["fabric"]["topology"] == "switch"


def test_a_port_of_another_switch_stops_it_before_anything_is_written_and_is_on_the_page(
    tmp_path: Path, collections: Path
) -> None:
    group = Group(tmp_path, collections, "switch")
    for name, entry in group.entries.items():
        entry["heard"] = [neighbour for neighbour in entry["heard"] if "spark-3" not in (name, neighbour["host"])]
    code, text = group.run()
    assert code != 0 and "error fabric.not_joined: spark-3 port 0 of the group reaches none of" in text, text
    assert "Show the planned network file" not in text
    row = r"spark-3 port 0</span></td>(<td [^>]+><span></span></td>){3}<td [^>]+><span><span class=\"word fails\">has a link and hears nobody<"
    assert re.search(row, group.page())


def test_a_cable_that_is_out_is_listed_where_it_belongs(tmp_path: Path, collections: Path) -> None:
    group = Group(tmp_path, collections, "ring")
    for name, cage, other in (("spark-2", 0, "spark-3"), ("spark-3", 1, "spark-2")):
        for netdev in group.entries[name]["fabric"]["ports"][cage]["netdevs"]:
            netdev["up"] = False
        group.entries[name]["heard"] = [
            neighbour for neighbour in group.entries[name]["heard"] if neighbour["host"] != other
        ]
    code, text = group.run()
    assert code != 0 and "spark-2 port 0 belongs into spark-3 port 1 (it has no link)" in text, text
    row = r"spark-2 port 0</span></td><td [^>]+><span>spark-3 port 1</span></td>.*belongs here and is missing<"
    assert re.search(row, group.page())


def test_clusters_that_are_written_at_once_are_all_on_the_page(tmp_path: Path) -> None:
    """Several workers write one file; each adds its cluster to the existing ones."""
    names = [f"host{number}" for number in range(6)]
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"sparks": {"hosts": dict.fromkeys(names), "vars": {"ansible_connection": "local"}}})
    )
    hosts = {name: {"fabric": {"ports": []}} for name in "ab"}
    task = {
        "name": "Write",
        "dgxspark.vllm.fabric_plan": {
            "dest": ".spark/plan.json",
            "name": "{{ inventory_hostname }}",
            "hosts": hosts,
        },
    }
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "sparks", "gather_facts": False, "tasks": [task]}]))
    ran = ansible_playbook("-i", "hosts.yml", "--forks", "6", "play.yml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    saved = json.loads((tmp_path / ".spark" / "fabric.json").read_text())
    assert sorted(saved["clusters"]) == sorted(names)
    assert sorted(path.name for path in (tmp_path / ".spark").iterdir()) == ["fabric.html", "fabric.json"]
