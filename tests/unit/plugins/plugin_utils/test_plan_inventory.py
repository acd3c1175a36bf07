# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan without Ansible: the same inventories, variables and plan as with it, and by name what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import inventory_files, plan_inventory

MODULE = "ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_inventory"
COLLECTIONS = Path(plan_inventory.__file__).parents[4].parent
EXAMPLES = Path(__file__).resolve().parents[4] / "inventories"
TEMPLATES = {"demo", "rack"}
"""Examples with templates, which are Ansible's."""
EACH_CHANGE = {"duo", "pair_and_single"}
"""Those whose plans are compared with the playbook's not at night alone: services beside engines, a cluster and a host of its own."""
# A program that has no Ansible, whatever is installed beside it.
ALONE = f"""
import importlib.abc, runpy, sys
class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'ansible':
            raise ImportError(f'there is no {{name}} here')
sys.meta_path.insert(0, Nothing())
runpy.run_module({MODULE!r}, run_name='__main__')
"""
SERVICE = "{name: one, recipe: qwen3-4b-instruct-2507, port: 8001}"


def run(*argv: object) -> subprocess.CompletedProcess[str]:
    """Run the module as somebody without Ansible does, from a folder of nobody's."""
    words = [sys.executable, "-c", ALONE, *map(str, argv)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(COLLECTIONS), "LC_ALL": "C.UTF-8"}
    return subprocess.run(words, cwd="/", text=True, capture_output=True, check=False, env=env)


def laid(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder; return it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def by_ansible(source: Path) -> tuple[dict[str, list[str]], dict[str, dict[str, Any]]]:
    """Return the groups of an inventory, and the variables of each host that a plan reads, as Ansible has them."""
    loader = DataLoader()
    hosts = InventoryManager(loader, [str(source)])
    hostvars = HostVars(hosts, VariableManager(loader, hosts), loader)
    groups = hosts.get_groups_dict()
    return groups, {name: wanted(hostvars[name]) for name in groups["all"]}


def ordered(groups: dict[str, list[str]]) -> dict[str, list[str]]:
    """Groups with their hosts by name: Ansible walks sets of groups, so the order of hosts of groups in groups differs from run to run."""
    return {name: sorted(hosts) for name, hosts in groups.items()}


def wanted(variables: Any) -> dict[str, Any]:
    """Return the variables that a plan reads."""
    return {
        name: json.loads(json.dumps(variables[name]))
        for name in variables
        if inventory_files.ASKED.fullmatch(name) or name == "inventory_dir"
    }


FLEETS = {
    "who wins": {
        "hosts.yml": """
all:
  vars: {spark_a: all, spark_b: all, spark_c: all, spark_d: all, spark_e: all, spark_f: all}
  hosts: {lonely: {}}
sparks:
  vars: {spark_b: sparks, spark_c: sparks, spark_d: sparks}
  children:
    zebra: {hosts: {spark-2: {}, spark-1: {spark_e: host}}, vars: {spark_c: zebra}}
    aardvark: {hosts: {spark-1: {}}, vars: {spark_c: aardvark, spark_a: aardvark}}
other: {children: {aardvark: {}}}
""",
        "group_vars/all.yml": "spark_d: all of files\nspark_g: all of files\n",
        "group_vars/all.json": '{"spark_h": "not read: the first name that is there counts"}',
        "group_vars/sparks/10.yml": "spark_g: ten\nspark_i: ten\n",
        "group_vars/sparks/20.yaml": "spark_i: twenty\n",
        "group_vars/sparks/deeper/1.yml": "spark_j: deeper\n",
        "group_vars/sparks/.hidden.yml": "spark_k: hidden\n",
        "group_vars/sparks/old.yml~": "spark_k: a backup\n",
        "group_vars/sparks/note.txt": "spark_k: a text\n",
        "group_vars/zebra": "spark_e: zebra of files\nspark_f: zebra of files\n",
        "host_vars/spark-1.yml": "spark_f: host of files\nspark_l: [1, {two: yes}]\n",
        "host_vars/lonely.yml": "spark_a:\n",
    },
    "ranges": {
        "hosts.yml": "sparks:\n  hosts:\n    spark-[001:012:5]: {spark_a: 1}\n    rack-[a:c][1:2]:\n    spark-[9:11]:\n"
        "  vars: {ansible_host: 10.0.0.1}\n"
    },
    "several files": {
        "1.yml": "sparks: {hosts: {spark-1: {spark_a: first}}}\n",
        "2.yml": "sparks: {hosts: {spark-1: {spark_a: second}, spark-2: }}\n",
        "notes.md": "no inventory\n",
        ".spark/plan.json": "{}\n",
        ".secrets/key": "sk-1\n",
    },
    "a file without an ending, strings in place of mappings": {"hosts": "sparks: {hosts: spark-1, children: more}\n"},
}


@pytest.mark.parametrize("name", FLEETS)
def test_groups_and_variables_are_those_of_ansible(tmp_path: Path, name: str) -> None:
    folder = laid(tmp_path, FLEETS[name])
    groups, hostvars = by_ansible(folder)
    found = inventory_files.Inventory(str(folder))
    assert ordered(found.groups) == ordered(groups)
    assert {host: wanted(variables) for host, variables in found.hostvars.items()} == hostvars


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*") if path.is_dir()))
def test_an_example_is_read_as_ansible_does_or_refused(name: str) -> None:
    source = EXAMPLES / name / "hosts.yml"
    if name in TEMPLATES:
        with pytest.raises(inventory_files.Unreadable, match="is a template"):
            inventory_files.Inventory(str(source))
        return
    groups, hostvars = by_ansible(source)
    found = inventory_files.Inventory(str(source))
    assert ordered(found.groups) == ordered(groups)
    assert {host: wanted(variables) for host, variables in found.hostvars.items()} == hostvars


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in EACH_CHANGE else [pytest.mark.nightly])
        for name in sorted({path.name for path in EXAMPLES.glob("*") if path.is_dir()} - TEMPLATES)
    ],
)
def test_the_plan_is_that_of_the_playbook(tmp_path: Path, name: str) -> None:
    copied = tmp_path / name
    shutil.copytree(EXAMPLES / name, copied)
    ran = ansible_playbook("-i", copied, "dgxspark.vllm.plan", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = json.loads((copied / ".spark" / "plan.json").read_text(encoding="utf-8"))
    done = run(copied, "--show", "json")
    assert done.returncode in (0, 1) and json.loads(done.stdout) == written, done.stderr
    # And what people read is the same, to the last line.
    said = run(copied).stdout.strip().splitlines()
    assert [line for line in said if line.strip()] != []
    assert said[-1] in ran.stdout and said[0] in ran.stdout


def test_what_fits_and_nothing_is_written(tmp_path: Path) -> None:
    folder = laid(tmp_path, {"hosts.yml": f"sparks: {{hosts: {{spark-1: {{spark_services: [{SERVICE}]}}}}}}\n"})
    done = run(folder)
    assert done.returncode == plan_inventory.FITS, done.stderr
    assert "spark-1: fits" in done.stdout and "shown with -v" in done.stdout
    assert [path.name for path in folder.iterdir()] == ["hosts.yml"]
    assert run(folder, "--show", "none").stdout == ""


def test_what_does_not_fit(tmp_path: Path) -> None:
    service = SERVICE.replace("}", ", args: {gpu-memory-utilization: 0.05}}")
    folder = laid(tmp_path, {"hosts.yml": f"sparks: {{hosts: {{spark-1: {{spark_services: [{service}]}}}}}}\n"})
    done = run(folder / "hosts.yml")
    assert done.returncode == plan_inventory.FAILS, done.stderr
    assert "ERROR" in done.stdout and "Fix: " in done.stdout


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"hosts.yml": "sparks: {hosts: {a: {spark_x: '{{ y }}', other: '{{ y }}'}}}"}, ["group", "spark_x is a template"]),
        ({"hosts.yml": "sparks: {hosts: {a: {spark_x: [{k: 'a{% if b %}'}]}}}"}, ["spark_x[0].k is a template"]),
        ({"hosts.yml": "sparks: {hosts: {a: {spark_x: !vault c}}}"}, ["only Ansible knows what '!vault' means"]),
        ({"hosts.yml": "$ANSIBLE_VAULT;1.1;AES256\n61"}, ["encrypted by ansible-vault"]),
        ({"hosts.yml": "plugin: aws_ec2\n"}, ["asks the inventory plugin 'aws_ec2'"]),
        ({"hosts.yml": "[sparks]\nspark-1\n"}, ["hosts.yml"]),
        ({"hosts.ini": "[sparks]\nspark-1\n"}, ["an inventory here is YAML"]),
        ({"hosts.yml": "- sparks\n"}, ["it is no mapping"]),
        ({"hosts.yml": "sparks: {hosts: {a: }, vars: {ansible_group_priority: 5}}"}, ["ansible_group_priority"]),
        ({"hosts.yml": "sparks: {hosts: {'a:22': }}"}, ["without a port"]),
        ({"hosts.yml": "sparks: {hosts: {'a[9:b]': }}"}, ["is no range"]),
        ({"hosts.yml": "sparks: {hosts: {a: }, childs: {b: }}"}, ["'childs' is none of hosts, children and vars"]),
        ({"hosts.yml": "sparks: {hosts: {a: }}", "more/hosts.yml": "b: "}, ["a folder inside an inventory folder"]),
        (
            {"hosts.yml": "sparks: {hosts: {a: }}", "group_vars/sparks.yml": "spark_x: '{{ 1 }}'\n", "host_vars/a": "- 1"},
            ["sparks.yml: spark_x is a template", "host_vars/a: it is no mapping"],
        ),
        ({"hosts.yml": "sparks: {hosts: {a: }}", "group_vars/sparks.yml": "spark_services: [{name: x}]\n"}, ["recipe"]),
        ({"hosts.yml": "others: {hosts: {a: }}"}, ["the group 'sparks' is missing or empty"]),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    folder = laid(tmp_path, files)
    with pytest.raises(plan_inventory.BadInput) as refused:
        plan_inventory.plan(str(folder))
    text = str(refused.value).replace("host a", "group")
    assert [word for word in words if word not in text] == [], text


def test_a_script_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = laid(tmp_path, {"hosts.yml": f"#!/bin/sh\ntouch {tmp_path}/ran\n"}) / "hosts.yml"
    script.chmod(0o755)
    assert plan_inventory.main([str(tmp_path)]) == plan_inventory.WRONG
    said = capsys.readouterr()
    assert "an executable file is an inventory script" in said.err and not said.out
    assert not (tmp_path / "ran").exists()
    assert plan_inventory.main([str(tmp_path / "nowhere")]) == plan_inventory.WRONG
    assert "there is no such file or folder" in capsys.readouterr().err


def test_group_below_itself(tmp_path: Path) -> None:
    folder = laid(tmp_path, {"hosts.yml": "a: {children: {b: {children: {a: }}}, hosts: {s: }}\n"})
    with pytest.raises(plan_inventory.BadInput, match="below itself"):
        plan_inventory.plan(str(folder))
