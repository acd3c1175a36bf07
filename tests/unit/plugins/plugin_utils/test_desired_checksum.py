# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checksum of a host's desired state changes with each kind of input, and with nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import firewall
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import host_documents, role_variables

ROOT = Path(__file__).parents[4]
# Works out the checksum anew, with the collection's code as it lies there now, for each change: [file, old text, new text].
CHECKSUMS = r"""
import json, pathlib, sys
tree, given, changes = pathlib.Path(sys.argv[1]), json.load(open(sys.argv[2])), json.load(open(sys.argv[3]))
sys.dont_write_bytecode = True
sys.path.insert(0, str(tree.parents[2]))
found = []
for name, old, new in [["galaxy.yml", "", ""], *changes]:
    path = tree / name
    before = path.read_text()
    assert old in before, (name, old)
    path.write_text(before.replace(old, new, 1) if old else before + new)
    for module in (
        "module_utils._common.file_syntax", "module_utils._plan.unit_files",
        "plugin_utils.render", "lookup.unit_files", "plugin_utils.role_variables", "plugin_utils.addon_documents",
        "plugin_utils.host_documents",
    ):
        package, _, last = f"ansible_collections.dgxspark.vllm.plugins.{module}".rpartition(".")
        if sys.modules.pop(f"{package}.{last}", None):
            delattr(sys.modules[package], last)
    from ansible_collections.dgxspark.vllm.plugins.plugin_utils import host_documents, role_variables
    assert str(tree) in host_documents.__file__
    found.append([host_documents.desired_checksum(given["plan"], addons, {}) for addons in (given["addons"], given["gateway"])])
    path.write_text(before)
print(json.dumps(found))
"""


def planned(key: Path, **variables: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan of one host, and add-on services."""
    service = {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "api_key_file": str(key)}
    host = {
        "vars": {"spark_services": [service], "spark_watchdog": {}, "spark_total_gib": 119.67, **variables},
        "address": "192.0.2.1",
    }
    plan = engine.make_plan({"spark-1": host}, RECIPES, lambda _path: "0" * 64)
    return plan["hosts"]["spark-1"], plan["addons"]["spark-1"]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("sk-one\n")
    return path


def test_the_checksum_follows_the_collection_as_far_as_it_reaches_the_host(tmp_path: Path, key: Path) -> None:
    tree = tmp_path / "tree" / "ansible_collections" / "dgxspark" / "vllm"
    for name in ("plugins", "roles"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "galaxy.yml", tree)
    plan, addons = planned(key)
    arguments = {
        "plan": plan,
        "addons": addons,
        "gateway": {**addons, "gateway": {"config": {}, "settings": {}}, "exporters": {"listen": "127.0.0.1"}},
    }
    # Kind of file, path in the collection, and the affected hosts: all, hosts with gateway and exporters, none.
    changes = [
        ("every", "roles/service/defaults/main.yml", "service_user: dgxspark", "service_user: other"),
        ("every", "roles/host/defaults/main.yml", "host_docker_users: []", "host_docker_users: [me]"),
        ("every", "roles/guard/templates/spark-agent.service.j2", "RestartSec=5", "RestartSec=6"),
        ("every", "plugins/module_utils/_common/file_syntax.py", 'return f"{key}={', 'return f"{key}= {'),
        ("every", "plugins/module_utils/_plan/unit_files.py", '"mode": "0700"', '"mode": "0711"'),
        ("every", "roles/host/files/spark_unit.py", "", "\n# a comment that is copied to the host\n"),
        ("every", "plugins/module_utils/_runtime/endpoint.py", "", "\n# copied too\n"),
        ("every", "roles/guard/files/spark_agent.py", "", "\n# copied too\n"),
        ("gateway", "roles/gateway/templates/spark-gateway.service.j2", "", "# in the unit\n"),
        ("gateway", "roles/gateway/files/container/hooks.py", "", "# copied\n"),
        ("gateway", "roles/gateway/defaults/main.yml", "gateway_start_timeout:", "gateway_start_timeout: 1 #"),
        ("nobody", "plugins/plugin_utils/render.py", "", "\n# it writes the gateway's unit\n"),
        ("every", "plugins/module_utils/_host/machine.py", "", "\n# copied for the agent\n"),
        ("nobody", "plugins/module_utils/_plan/plan_page.py", "", "\n# a comment\n"),
        ("nobody", "plugins/module_utils/_plan/unit_files.py", "", "\n# a comment\n"),
        ("nobody", "plugins/module_utils/_fleet/doctor.py", "", "\n# a comment\n"),
        ("nobody", "plugins/plugin_utils/host_documents.py", "", "\n# a comment\n"),
        ("nobody", "roles/service/tasks/restart.yml", "", "\n# a comment\n"),
        ("nobody", "roles/monitoring/templates/rules.yml.j2", "", "\n# for hosts with the monitoring\n"),
        ("nobody", "roles/service/defaults/main.yml", "service_log_lines: 25", "service_log_lines: 26"),
    ]  # fmt: skip
    for name, value in (("given.json", arguments), ("changes.json", [change[1:] for change in changes])):
        (tmp_path / name).write_text(json.dumps(value))
    done = subprocess.run(
        [sys.executable, "-c", CHECKSUMS, str(tree), str(tmp_path / "given.json"), str(tmp_path / "changes.json")],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    before, *after = json.loads(done.stdout)
    for change, (usual, gateway) in zip(changes, after, strict=True):
        differs = "every" if usual != before[0] else "gateway" if gateway != before[1] else "nobody"
        assert differs == change[0], change
        assert differs != "every" or gateway != before[1], change


def test_the_checksum_follows_the_inventory_and_the_files_that_it_names(tmp_path: Path, key: Path) -> None:
    plan, addons = planned(key)
    mark = host_documents.desired_checksum(plan, addons, {})
    assert host_documents.desired_checksum(*planned(key), {}) == mark
    for change in (
        {"spark_cache_dir": "/var/cache/other"},
        {"spark_hf_home": "/srv/other"},
        {"spark_watchdog": {"interval_seconds": 40}},
        {"spark_listen": "127.0.0.2"},
    ):
        assert host_documents.desired_checksum(*planned(key, **change), {}) != mark, change
    # The same key in another place of the controller is the same key, another one in the same place is not.
    moved = tmp_path / "moved"
    shutil.copy(key, moved)
    assert host_documents.desired_checksum(*planned(moved), {}) == mark
    key.write_text("sk-two\n")
    assert host_documents.desired_checksum(plan, addons, {}) != mark


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_user", "serving"),
        ("host_user", "serving"),
        ("host_docker_users", ["me"]),
        ("host_hf_home_owner", "me"),
        ("host_hf_home_group", "me"),
    ],
)
def test_variables_of_roles_that_somebody_sets_are_part_of_it(key: Path, name: str, value: Any) -> None:
    plan, addons = planned(key)
    usual = host_documents.desired_checksum(plan, addons, {})
    variables = role_variables.own_variables({name: "{{ of_the_inventory }}", "else": 1}, lambda _text: value)
    assert variables == {name: value}
    assert host_documents.desired_checksum(plan, addons, variables) != usual
    role = name.partition("_")[0]
    # The default value changes nothing.
    assert host_documents.desired_checksum(plan, addons, {name: role_variables.defaults(role)[name]}) == usual


def test_the_firewall_goes_by_the_port_that_ansible_comes_in_by(key: Path) -> None:
    plan, addons = planned(key)
    marks = {
        (bool(closed), port): host_documents.desired_checksum({**plan, "firewall": closed}, addons, variables)
        for closed in (None, {**firewall.ABSENT, "state": "present"})
        for port, variables in ((22, {}), (2222, role_variables.own_variables({"ansible_port": 2222})))
    }
    assert marks[True, 22] != marks[True, 2222] and marks[False, 22] == marks[False, 2222]
