# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts from a CSV file, as ansible-inventory shows them, and as the plan reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
FLEET = """\
host,ansible_host,groups,rack,ansible_port,spark_reserve_gib,spark_services,note
spark-001,10.1.0.1,rack_a canary,a1,22,,"[{""name"": ""fast"", ""recipe"": ""qwen3-8b"", ""port"": 8001}]",007
spark-002,10.1.0.2,rack_a,a1,22,6,,true

"spark-[003:100]",,rack_b,b1,,,,
console:2222,,,,,,,
"""


def write(folder: Path, text: str = FLEET, **settings: Any) -> Path:
    (folder / "fleet.csv").write_text(text, encoding="utf-8")
    source = folder / "fleet.csv.yml"
    source.write_text(yaml.safe_dump({"plugin": "dgxspark.vllm.csv", "path": "fleet.csv", **settings}))
    return source


def run(program: str, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name(program)), *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT / "tests",
        env={
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            **environment,
        },
    )


def listed(source: Path, **environment: str) -> dict[str, Any]:
    ran = run("ansible-inventory", "-i", str(source), "--list", **environment)
    assert ran.returncode == 0, ran.stderr
    # What comes from a table is no template: Ansible marks it as such.
    found: dict[str, Any] = json.loads(ran.stdout, object_hook=lambda item: item.get("__ansible_unsafe", item))
    return found


def test_rows_are_hosts_with_groups_and_variables(tmp_path: Path) -> None:
    found = listed(write(tmp_path))
    assert len(found["sparks"]["hosts"]) == 101
    assert found["rack_a"]["hosts"] == ["spark-001", "spark-002"] and found["canary"]["hosts"] == ["spark-001"]
    assert len(found["rack_b"]["hosts"]) == 98
    variables = found["_meta"]["hostvars"]
    assert variables["spark-001"] == {
        "ansible_host": "10.1.0.1",
        "rack": "a1",
        "ansible_port": 22,
        "spark_services": [{"name": "fast", "recipe": "qwen3-8b", "port": 8001}],
        "note": "007",
    }
    assert variables["spark-002"]["note"] is True and variables["spark-002"]["spark_reserve_gib"] == 6
    assert variables["spark-100"] == {"rack": "b1"} and variables["console"] == {"ansible_port": 2222}


def test_group_vars_beside_it_are_read_and_the_fleet_is_planned(tmp_path: Path) -> None:
    source = write(tmp_path, "host,ansible_host,groups\nspark-1,10.1.0.1,\nspark-2,10.1.0.2,\n")
    (tmp_path / "group_vars").mkdir()
    services = [{"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}]
    (tmp_path / "group_vars" / "sparks.yml").write_text(yaml.safe_dump({"spark_services": services}))
    plan = tmp_path / "plan.json"
    ran = run("ansible-playbook", "-i", str(source), "dgxspark.vllm.plan", "-e", f"spark_plan_file={plan}")
    hosts = json.loads(plan.read_text())["hosts"]
    assert {host: [service["name"] for service in body["services"]] for host, body in hosts.items()} == {
        "spark-1": ["fast"],
        "spark-2": ["fast"],
    }, ran.stdout


def test_a_csv_file_itself_where_the_plugin_is_enabled(tmp_path: Path) -> None:
    write(tmp_path)
    found = listed(tmp_path / "fleet.csv", ANSIBLE_INVENTORY_ENABLED="dgxspark.vllm.csv,auto,yaml,ini")
    assert len(found["sparks"]["hosts"]) == 101


def test_another_group_and_another_delimiter(tmp_path: Path) -> None:
    found = listed(write(tmp_path, "\ufeffhost;rack\nx;a\n", group="machines", delimiter=";"))
    assert found["machines"]["hosts"] == ["x"] and found["_meta"]["hostvars"]["x"] == {"rack": "a"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,rack\nx,a\n", "there is no column 'host'"),
        ("host,my rack\nx,a\n", "['my rack'] are no names of variables"),
        ("host,rack,rack\nx,a,b\n", "['rack'] are no names of variables, or stand there twice"),
        ("host,rack\nx,a\nx,b\n", "line 3: x stands in line 2 already"),
        ("host,rack\n,a\n", "line 2: column host is ''"),
        ("host,rack\nx,a,b\n", "line 2: it has more cells than there are columns"),
        ("host,services\nx,[1\n", "line 2, column services: it begins like JSON and is none"),
        ('host,rack\nx,"a\n', "cannot be read as CSV"),
    ],
)
def test_mistakes_name_their_place(tmp_path: Path, text: str, says: str) -> None:
    ran = run("ansible-inventory", "-i", str(write(tmp_path, text)), "--list")
    assert ran.returncode != 0
    assert says in " ".join(ran.stderr.split())


def test_other_files_are_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("sparks: {hosts: {a: {}}}\n")
    (tmp_path / "prices.csv").write_text("item,price\nx,1\n")
    found = listed(tmp_path / "hosts.yml", ANSIBLE_INVENTORY_ENABLED="dgxspark.vllm.csv,yaml")
    assert found["sparks"]["hosts"] == ["a"]
    ran = run(
        "ansible-inventory", "-i", str(tmp_path / "prices.csv"), "--list", ANSIBLE_INVENTORY_ENABLED="dgxspark.vllm.csv"
    )
    assert ran.returncode != 0


def test_the_example_is_planned(tmp_path: Path) -> None:
    source = ROOT / "inventories" / "rack" / "fleet.csv.yml"
    plan = tmp_path / "plan.json"
    ran = run("ansible-playbook", "-i", str(source), "dgxspark.vllm.plan", "-e", f"spark_plan_file={plan}")
    written = json.loads(plan.read_text())
    assert {host: [service["name"] for service in body["services"]] for host, body in written["hosts"].items()} == {
        "spark-001": ["chat"],
        "spark-002": ["chat"],
        "spark-003": ["code"],
        "spark-004": ["code"],
    }
    # A key is made by keys.yml, and a fleet is locked before it is deployed; all else has to be right.
    errors = {finding["rule"] for finding in written["findings"] if finding["severity"] == "error"}
    assert errors <= {"secret.missing", "lock.moving"}, ran.stdout
