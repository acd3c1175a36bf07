# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories as people keep them: copies of the examples, what the pages show, keys in the wrong place, several sources."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_sources
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_input import read_variables

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "inventories").iterdir() if path.is_dir())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KEY = "sk-4dGxA9bC2eF7hJ1kL5mN8pQ3rS6tU0vWxYz12345"


def playbook(*argv: str, cwd: Path, home: Path | None = None) -> tuple[int, str]:
    """Run a playbook in a home of the test's own; return its exit code and all that it said."""
    ran = ansible_playbook(*argv, cwd=cwd, env={"HOME": str(home or cwd)})
    return ran.returncode, ran.stdout + ran.stderr


def hostvars_of(*sources: Path) -> tuple[HostVars, dict[str, list[str]]]:
    """Return the variables of the hosts of an inventory, and its groups, as Ansible has them."""
    loader = DataLoader()
    inventory = InventoryManager(loader, [str(source) for source in sources])
    return HostVars(inventory, VariableManager(loader, inventory), loader), inventory.get_groups_dict()


def variables_of(*sources: Path) -> dict[str, dict[str, Any]]:
    """Return the variables of each host of an inventory, as the plan reads them."""
    hostvars, groups = hostvars_of(*sources)
    fleet = controller_paths.fleet_folder({"hostvars": hostvars, "groups": groups})
    wrong: list[str] = []
    hosts = {name: read_variables(name, hostvars[name], wrong, fleet) for name in sorted(groups["all"])}
    assert not wrong
    return hosts


@pytest.mark.parametrize("form", ["folder", "file"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_example_names_lies_where_ansible_does_not_read(tmp_path: Path, name: str, form: str) -> None:
    copied = tmp_path / "sub" / "sub" / name
    shutil.copytree(ROOT / "inventories" / name, copied)
    source = copied if form == "folder" else next(path for path in sorted(copied.iterdir()) if path.suffix == ".yml")
    before = variables_of(source)
    sources = inventory_sources([str(source)])
    assert controller_paths.misplaced(before, sources) == []
    named = [Path(path) for host in before.values() for _where, path in controller_paths.named_paths(host)]
    state = [copied / ".spark" / file for file in ("plan.json", "plan.html", "spark.lock.yml")]
    for path in [*named, *state]:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            path.write_text(f"{KEY}\n")
    assert sorted(variables_of(source)) == sorted(before)
    assert [path for path in inventory_sources([str(copied)]).files() if not path.endswith(".yml")] == []


@pytest.mark.slow
def test_a_fleet_by_ranges_is_planned(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    source = ROOT / "inventories" / "rack"
    code, text = playbook("-i", str(source), "dgxspark.vllm.plan", "-e", f"spark_plan_file={plan}", cwd=tmp_path)
    assert code == 0, text  # its key is made by keys.yml, before or after
    hosts = json.loads(plan.read_text())["hosts"]
    assert {host: [service["name"] for service in body["services"]] for host, body in hosts.items()} == {
        "spark-001": ["chat"],
        "spark-002": ["chat"],
        "spark-003": ["code"],
        "spark-004": ["code"],
    }
    # No key protects /invocations, so users reach the gateway only.
    assert all(
        body["firewall"]["admitted"] == [{"from": ["192.168.10.250"], "ports": [8001]}] for body in hosts.values()
    )
    hostvars, groups = hostvars_of(source)
    addresses = {host: hostvars[host]["ansible_host"] for host in groups["sparks"]}
    assert addresses == {f"spark-00{number}": f"192.168.10.{number}" for number in range(1, 5)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "service"), [pytest.param("ring4", "qwen235", marks=pytest.mark.nightly), ("switch4", "qwen397")]
)
def test_four_sparks_are_planned_from_a_copy_elsewhere(tmp_path: Path, name: str, service: str) -> None:
    copied = tmp_path / "sub" / name
    shutil.copytree(ROOT / "inventories" / name, copied, ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "elsewhere").mkdir()
    code, output = playbook(
        "-i", str(copied), "dgxspark.vllm.keys", "dgxspark.vllm.plan", cwd=tmp_path / "elsewhere", home=tmp_path
    )
    assert code == 0 and "4 hosts: 4 fit; no errors, no warnings." in output, output
    assert [path.name for path in (copied / ".secrets").iterdir()] == ["api_key"]
    hosts = json.loads((copied / ".spark/plan.json").read_text())["hosts"]
    ranks = {
        host: [(rank_service["name"], rank_service["settings"]["rank"]["rank"]) for rank_service in body["services"]]
        for host, body in hosts.items()
    }
    assert ranks == {f"spark-{number + 1}": [(service, number)] for number in range(4)}
    assert sorted(hostvars_of(copied)[1]["all"]) == [f"spark-{number}" for number in range(1, 5)]


def blocks() -> list[tuple[str, str]]:
    """Return each YAML block of the pages that names a file of the controller."""
    texts = []
    keys = "|".join(sorted({place.rsplit(".", 1)[-1] for place in controller_paths.PLACES} - {"*", "source"}))
    for page in PAGES:
        for text in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            # Sources of recipes are fetched from their addresses; test_models_playbook.py plans from one.
            if re.search(rf"(?:{keys}|secrets): ", text) and "spark_recipe_sources:" not in text:
                texts.append((page.name, text))
    return texts


BLOCKS = blocks()
SPARKS = {
    "spark-1": {
        "ansible_host": "192.0.2.1",
        "spark_services": [
            {"name": "heavy", "recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001},
            {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002},
        ],
        "spark_defaults": {"api_key_file": ".secrets/api_key"},
    },
    "spark-2": {
        "ansible_host": "192.0.2.2",
        "spark_services": [{"name": "gemma4", "recipe": "gemma-4-26b-a4b", "port": 8001}],
        "spark_defaults": {"api_key_file": ".secrets/api_key"},
    },
}


def of_page(page: str, number: int) -> dict[str, Any]:
    """Return what one block writes; clients come with the gateway of their page."""
    texts = [text for name, text in BLOCKS if name == page]
    front = [text for text in texts if "spark_gateway:" in text]
    parts = [*front, texts[number]] if page == "clients.md" else [texts[number]]
    files: dict[str, Any] = {}
    for text in parts:
        files |= yaml.safe_load(text)
    # A host before its variables.
    return next(iter(files.values())) if all(not key.startswith("spark_") for key in files) else files


# Other places for what the pages keep in .secrets/, as people write them: at home, and by odd names.
PLACES = {"as written": ".secrets/", "at home": "~/keys/", "odd": "./.keys of Zoë/it's 1+1, really/"}
ELSEWHERE = {(page, place) for page, _text in BLOCKS if page != "gateway.md" for place in ("at home", "odd")}


def moved(value: Any, place: str) -> Any:
    """Return what a block writes, with its keys in another place."""
    if isinstance(value, dict):
        return {key: moved(item, place) for key, item in value.items()}
    if isinstance(value, list):
        return [moved(item, place) for item in value]
    return (
        value.replace("{{ inventory_dir }}/.secrets/", place).replace(".secrets/", place)
        if isinstance(value, str)
        else value
    )


def test_the_pages_have_blocks_that_name_files() -> None:
    assert {"clients.md", "gateway.md", "monitoring.md", "inventory.md"} <= {page for page, _text in BLOCKS}
    assert any(page == "monitoring.md" and "spark_fleet_monitor:" in text for page, text in BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number", "place"),
    [
        # Keys elsewhere on each change for one page.
        pytest.param(page, number, place, marks=[pytest.mark.nightly] if (page, place) in ELSEWHERE else [])
        for page in sorted({name for name, _text in BLOCKS})
        for number in range([name for name, _text in BLOCKS].count(page))
        for place in (PLACES if number == 0 else ["as written"])
    ],
)
def test_an_example_of_a_page_is_made_and_planned(tmp_path: Path, page: str, number: int, place: str) -> None:
    written = moved(of_page(page, number), PLACES[place])
    sparks = moved(SPARKS, PLACES[place])
    if "qwen36" in json.dumps(written):
        sparks["spark-1"]["spark_services"] = [
            {
                "name": "qwen36",
                "recipe": "qwen3.6-35b-a3b-nvfp4",
                "port": 8001,
                "args": {"gpu-memory-utilization": 0.55},
            }
        ]
        sparks["spark-1"]["spark_ollama"] = {"models": ["qwen3:8b"]}
    addons = {
        key: value
        for key, value in written.items()
        if key in ("spark_gateway", "spark_clients", "spark_monitoring", "spark_fleet_monitor")
    }
    inventory: dict[str, Any] = {
        "sparks": {"hosts": sparks, "vars": {key: value for key, value in written.items() if key not in addons}}
    }
    inventory["tools"] = {"hosts": {"forge": {"ansible_host": "192.0.2.3", **addons}}}
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    # Files that others provide exist before the run.
    for _host, variables in variables_of(folder).items():
        for where, path in controller_paths.named_paths(variables):
            if re.search(r"token|notify|receivers", where):
                real = Path(path.replace(str(Path.home()), str(tmp_path)))
                real.parent.mkdir(parents=True, exist_ok=True)
                real.write_text("given\n")
    (tmp_path / "elsewhere").mkdir()
    code, output = playbook(
        "-i",
        str(folder),
        "dgxspark.vllm.keys",
        "dgxspark.vllm.plan",
        cwd=tmp_path / "elsewhere",
        home=tmp_path,
    )
    plan = json.loads((folder / ".spark/plan.json").read_text())
    # The examples may be short of memory on these Sparks; their files are all there.
    assert [finding for finding in plan["findings"] if finding["rule"] == "secret.missing"] == [], output
    assert "cannot be planned" not in output and code in (0, 2), output
    named = [path for host in variables_of(folder).values() for _where, path in controller_paths.named_paths(host)]
    assert named
    assert all(path.startswith((f"{folder}/.", str(Path.home()))) for path in named)


def write(folder: Path, variables: dict[str, Any], **files: str) -> Path:
    """Make an inventory of one Spark."""
    folder.mkdir(exist_ok=True)
    host = {
        "ansible_host": "192.0.2.1",
        "spark_services": [{"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}],
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": host}, "vars": variables}}))
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["plan", "site", *(pytest.param(playbook, marks=pytest.mark.nightly) for playbook in ("keys", "lock"))]
)
def test_a_key_where_ansible_reads_is_refused_and_its_place_named(tmp_path: Path, verb: str) -> None:
    folder = write(
        tmp_path / "fleet", {"spark_defaults": {"api_key_file": "keys/api_key"}, "spark_plan_file": "plan.json"}
    )
    code, output = playbook("-i", str(folder), f"dgxspark.vllm.{verb}", cwd=tmp_path)
    output = " ".join(output.split())
    assert code != 0
    assert f"Move it to '{folder}/.keys/api_key'" in output
    assert f"Move it to '{folder}/.spark/plan.json'" in output
    assert [path.name for path in folder.iterdir()] == ["hosts.yml"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["plan", "site", "support_bundle"])
def test_a_key_among_the_hosts_stops_the_run_before_a_host_is_named(tmp_path: Path, verb: str) -> None:
    folder = write(
        tmp_path / "fleet", {"spark_defaults": {"api_key_file": "secrets/api_key"}}, **{"a/api_key": f"{KEY}\n"}
    )
    code, output = playbook("-i", str(folder), f"dgxspark.vllm.{verb}", "--limit", "spark-1", "-v", cwd=tmp_path)
    assert code != 0
    assert "are keys or passwords" in output or "is a key or password" in output
    assert not any(word in output for word in ("PLAY", "TASK", "spark-1", KEY, KEY[3:15]))


@pytest.mark.slow
def test_a_missing_key_is_none_of_the_plans_errors_and_one_of_site(tmp_path: Path) -> None:
    folder = write(tmp_path / "fleet", {"spark_defaults": {"api_key_file": ".secrets/api_key"}})
    code, output = playbook("-i", str(folder), "dgxspark.vllm.plan", cwd=tmp_path)
    assert code == 0, output
    assert "Run dgxspark.vllm.keys" in output
    code, output = playbook("-i", str(folder / "hosts.yml"), "dgxspark.vllm.site", cwd=tmp_path)
    assert code != 0
    assert "secret.missing" in output and "UNREACHABLE" not in output
    # Somebody else's is an error of both.
    write(folder, {"spark_defaults": {"secrets": {"OTHER": ".secrets/other"}}})
    assert playbook("-i", str(folder), "dgxspark.vllm.plan", cwd=tmp_path)[0] != 0


@pytest.mark.slow
def test_an_old_lock_file_is_refused_where_it_was(tmp_path: Path) -> None:
    folder = write(tmp_path / "fleet", {}, **{"spark.lock.yml": "schema: 1\nimages: {}\nmodels: {}\n"})
    code, output = playbook("-i", str(folder / "hosts.yml"), "dgxspark.vllm.plan", cwd=tmp_path)
    assert code != 0
    assert f"mv {folder}/spark.lock.yml {folder}/.spark/spark.lock.yml" in " ".join(output.split())


def test_each_host_goes_by_the_folder_that_names_it(tmp_path: Path) -> None:
    first = write(tmp_path / "one", {"spark_lock_file": "../lock.yml"})
    two = tmp_path / "two"
    two.mkdir()
    gateway = {"spark_gateway": {"master_key_file": ".secrets/master"}, "spark_bundle_dir": "../stick"}
    (two / "tools.yml").write_text(yaml.safe_dump({"tools": {"hosts": {"forge": gateway}}}))
    hosts = variables_of(first, two)
    assert hosts["spark-1"]["spark_lock_file"] == str(tmp_path / "lock.yml")
    assert hosts["forge"]["spark_gateway"] == {"master_key_file": str(two / ".secrets/master")}
    # Files of the whole fleet are relative to the folder of the first Spark.
    assert hosts["forge"]["spark_bundle_dir"] == str(tmp_path / "stick")
    assert variables_of(two, first) == hosts


def test_every_playbook_looks_at_the_names_of_hosts_and_its_arguments_first() -> None:
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        first = yaml.safe_load(path.read_text(encoding="utf-8"))[0]
        if "ansible.builtin.import_playbook" in first:  # which looks at them
            continue
        argument = f", '{path.stem}'" if path.stem in PLAYBOOKS else ""
        expected = f"| dgxspark.vllm.checked_hosts(groups, ansible_inventory_sources{argument}"
        assert expected in first["hosts"], path.name
        assert first["hosts"].partition(expected)[2][0] in "),", path.name
