# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hostile inventories, recipes, lock files and launches are planned, or refused with the place; never a traceback.

The planned files and units of a host are rendered, and each unit starts exactly the planned words.

500 cases run with the other tests, 12,000 with `make test-all` (HOSTILE_CASES), which also has a sixth as many answers of hosts and as many
inventories as files, read by Ansible. HOSTILE_SEED makes others, and HOSTILE_CASE=SEED:NUMBER repeats a single one; a failure says which.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import hostile_inventories as hostile
import pytest
import role_files
from ansible._internal._datatag._tags import TrustedAsTemplate
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.utils.unsafe_proxy import wrap_var
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from ansible_collections.dgxspark.vllm.plugins.action.import_recipe import document_of
from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import check_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    importer,
    lock,
    picture,
    placement,
    plan_page,
    preflight,
    recipes,
    unit_files,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import SERVICE
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.variables import VARIABLES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths, inventory_check
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_sources
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import read_lock
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_input import address_of, read_others, read_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES as FOLDER
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

CASES = int(os.environ.get("HOSTILE_CASES", "500"))
SEED = int(os.environ.get("HOSTILE_SEED", "20261122"))
ONE = os.environ.get("HOSTILE_CASE", "")
CHUNK = 100
RECIPES, _wrong = load_recipes([FOLDER])


PLANNED, REFUSED = "planned", "refused"


# --- one case -----------------------------------------------------------------------------------------------------------


def attempt(case: hostile.Case) -> str:
    """Give a case to the engine; returns what became of it. Anything but a plan or a refusal in words is raised."""
    try:
        # A launch and a memory budget come from a module's arguments, all else by way of the plan.
        content = case.content if case.subject in ("memory", "launch", "import") else plain(case.content)
    except (TypeError, ValueError):  # told as "cannot be read"; YAML has no such values
        return REFUSED
    part = case.subject.partition(":")[0]
    try:
        return {
            "inventory": of_inventory,
            "recipe": of_recipe,
            "lock": of_lock,
            "facts": of_facts,
            "answers": of_inventory,
            "memory": lambda params: memory_budget(params) and PLANNED,
            "launch": lambda params: check_launch(params) and PLANNED,
            "import": of_import,
        }[part](content)
    except InventoryError as error:
        return refused(error.messages)
    except plain_data.InputError as error:
        return refused(error.messages)
    except importer.Unreadable as error:
        return refused([str(error)])


def refused(messages: list[str]) -> str:
    """Check that a refusal is in words that a terminal takes, each about some place."""
    assert messages
    for message in messages:
        assert isinstance(message, str) and message.strip()
        message.encode()
    return REFUSED


def of_inventory(inputs: dict[str, Any], lock_: Any = None, recipes: Any = None, measured: Any = None) -> str:
    hosts = {
        host: {"measured": measured, "images": {}, "fabric": None, **body} for host, body in inputs["hosts"].items()
    }
    try:
        plan = engine.make_plan(
            hosts, recipes or RECIPES, lambda _path: None, inputs["groups"], inputs.get("others") or {}, lock_
        )
    except InventoryError as error:
        places = ("host ", "cluster ")
        assert [message for message in error.messages if not message.startswith(places)] == []
        raise
    shown(plan)
    rendered(plan)
    return PLANNED


def of_recipe(recipe_text: Any) -> str:
    if wrong := recipes.validate_recipe(recipe_text, "mine.yml"):
        assert [message for message in wrong if not message.startswith("recipe mine.yml")] == []
        return refused(wrong)
    recipe = recipes.anchor_files(recipe_text, "/recipes")
    services = [{"name": "a", "port": 8001, "recipe": "r"}]
    services += [
        {"name": f"b{index}", "port": 8100 + index, "recipe": "r", "variant": name}
        for index, name in enumerate(recipe["variants"])
    ]
    hosts = {"spark-1": {"vars": {"spark_services": services}, "address": "192.168.1.11"}}
    return of_inventory({"hosts": hosts, "groups": {}}, recipes={"r": recipe})


def of_lock(lock_data: Any) -> str:
    locked, wrong = lock.read(lock_data, "spark.lock.yml")
    return refused(wrong) if wrong else of_inventory(hostile.BASES["small"](), locked)


def of_facts(answers: Any) -> str:
    return of_inventory(hostile.BASES["small"](), measured=answers)


def of_import(launch: dict[str, str]) -> str:
    draft = importer.import_launch(launch["text"], document_of(launch["text"]), form=launch["form"])
    json.dumps(draft, allow_nan=False).encode()
    return PLANNED


def shown(plan: dict[str, Any]) -> None:
    """Show a plan everywhere that plan.yml shows it."""
    findings = engine.plan_findings(plan)
    json.dumps({**plan, "findings": findings}, sort_keys=True, allow_nan=False).encode()
    picture.plan_text(plan, findings, 100, False, "").encode()
    plan_page.page(plan, findings).encode()
    placement.text(plan)
    for part in plan["addons"].values():
        addons.secrets(part)


def rendered(plan: dict[str, Any]) -> None:
    """Render the files of each host, and compare the commands of its units with the plan."""
    for host, body in plan["hosts"].items():
        beside = plan["addons"].get(host) or {}
        made = {name: located(part) for name, part in unit_files.render(body, beside).items()}
        units = {unit["name"]: unit["content"] for part in made.values() for unit in part["units"] if "content" in unit}
        files = {file["path"]: file for part in made.values() for file in part["files"]}
        units |= {Path(path).name: file["content"] for path, file in files.items() if path.endswith(".service")}
        for text in units.values():
            text.encode()
        servers = [service for service in body["services"] if not service["cluster"]]
        servers += [
            {**service, "argv": service["argv"]} for service in (beside.get("speech") or {}).get("services", ())
        ]
        for server in servers:
            assert role_files.command_of(units[server["unit"]]) == server["argv"], server["name"]
            written = files[server["env_file"]]["content"].split("\n")
            settings = dict(line.split("=", 1) for line in written if line and not line.startswith("#"))
            assert settings == {name: str(value) for name, value in server["env"].items()}, server["name"]
    for part in plan["addons"].values():
        role_files.check(part)


# --- all of them --------------------------------------------------------------------------------------------------------


def run_cases(
    first: int, cases: int, make: Callable[[int, int], hostile.Case], tried: Callable[[hostile.Case], str]
) -> Counter[str]:
    """Try some cases and return how many had which outcome; fail with each that ended in an error of Python."""
    seed, number = (int(word) for word in ONE.split(":")) if ONE else (SEED, first)
    outcomes: Counter[str] = Counter()
    failed = []
    for number_of_case in range(number, number + (1 if ONE else min(CHUNK, cases - first))):
        case = make(seed, number_of_case)
        try:
            outcomes[tried(copy.deepcopy(case))] += 1
        except Exception as error:
            if ONE:
                raise
            failed.append(
                f"HOSTILE_CASE={seed}:{number_of_case} {type(error).__name__}: {ascii(str(error))[:300]}\n{case}"
            )
    assert not failed, f"{len(failed)} of {sum(outcomes.values()) + len(failed)} cases:\n\n" + "\n\n".join(failed)
    return outcomes


@pytest.mark.parametrize("first", range(0, CASES, CHUNK) if not ONE else [0])
def test_every_case_is_planned_or_refused_in_words(first: int) -> None:
    outcomes = run_cases(first, CASES, hostile.make, attempt)
    # Were one side empty, the cases would show nothing.
    assert ONE or min(CHUNK, CASES - first) < CHUNK or (outcomes[PLANNED] > 10 and outcomes[REFUSED] > 10), outcomes


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, CASES // 6, CHUNK) if not ONE else [0])
def test_answers_of_hosts_are_planned_with_or_refused_in_words(first: int) -> None:
    outcomes = run_cases(first, CASES // 6, hostile.make_answers, attempt)
    assert ONE or min(CHUNK, CASES // 6 - first) < CHUNK or (outcomes[PLANNED] > 10 and outcomes[REFUSED] > 10), (
        outcomes
    )


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, CASES // 6, CHUNK) if not ONE else [0])
def test_files_of_an_inventory_are_planned_or_refused_in_words(tmp_path: Path, first: int) -> None:
    def tried(case: hostile.Case) -> str:
        folder = tmp_path / f"{case.seed}-{case.number}"
        for name, text in case.content.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="replace")
        return of_files(folder)

    outcomes = run_cases(first, CASES // 6, hostile.make_files, tried)
    assert ONE or min(CHUNK, CASES // 6 - first) < CHUNK or (outcomes[PLANNED] > 10 and outcomes[REFUSED] > 10), (
        outcomes
    )


def of_files(folder: Path) -> str:
    """Have Ansible read an inventory, and plan it as the action plan does."""
    loader = DataLoader()
    try:
        inventory = InventoryManager(loader, [str(folder)])
        hostvars = HostVars(inventory, VariableManager(loader, inventory), loader)
        groups = inventory.get_groups_dict()
        sparks = {name: hostvars[name] for name in groups.get("sparks", ())}
        task_vars = {"groups": groups, "hostvars": {name: hostvars[name] for name in groups["all"]}}
    except Exception:  # Ansible's own to tell; none of ours has seen it yet
        return REFUSED
    messages: list[str] = []
    sources = inventory_sources([str(folder)])
    hosts = {
        str(name): {"vars": read_variables(name, body, messages, str(folder)), "address": address_of(name, body)}
        for name, body in sparks.items()
    }
    other_hosts = read_others(set(hosts), messages, task_vars)
    messages += controller_paths.misplaced(
        {name: host["vars"] for name, host in {**hosts, **other_hosts}.items()}, sources
    )
    if wrong := inventory_check.find_keys(groups, sources):
        messages.append(wrong)
    if messages or not hosts:
        return refused(messages or ["inventory: the group 'sparks' is missing or empty"])
    try:
        return of_inventory({"hosts": hosts, "groups": plain(groups), "others": other_hosts})
    except InventoryError as error:
        return refused(error.messages)


def test_every_key_that_is_read_of_an_answer_is_checked() -> None:
    """A key that has no place in the form could hold anything, and its reader would fall over it."""
    missing: set[str] = set()
    for base in hostile.BASES.values():
        inputs = plain(base())
        for host in inputs["hosts"].values():
            for key, answer in hostile.ANSWERS.items():
                host[key] = Watched.wrap(copy.deepcopy(answer), preflight.ANSWERS[key], key, missing)
            host["fabric"] = None
        with contextlib.suppress(InventoryError):
            plan = engine.make_plan(
                inputs["hosts"], RECIPES, lambda _path: None, inputs["groups"], inputs.get("others")
            )
            engine.plan_findings(plan)
    assert missing == set()


class Watched(dict[str, Any]):
    """A mapping that notes the keys that are asked for and have no place in its form."""

    def __init__(self, content: dict[str, Any], form: Any, place: str, missing: set[str]) -> None:
        self.place, self.missing = place, missing
        form = {key.rstrip("?") if isinstance(key, str) else key: inner for key, inner in (form or {}).items()}
        self.form = form
        inner = {key: form[str] if str in form else form.get(key) for key in content}
        super().__init__({key: self.wrap(item, inner[key], f"{place}.{key}", missing) for key, item in content.items()})

    @classmethod
    def wrap(cls, value: Any, form: Any, place: str, missing: set[str]) -> Any:
        form = form.form if isinstance(form, reader.Maybe) else form
        if isinstance(value, dict):
            return cls(value, form, place, missing)
        if isinstance(value, list):
            return [
                cls.wrap(item, form[0] if isinstance(form, list) else None, f"{place}[]", missing) for item in value
            ]
        return value

    def _note(self, key: str) -> None:
        if str not in self.form and key not in self.form:
            self.missing.add(f"{self.place}.{key}")

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)


@pytest.mark.parametrize(
    ("subject", "place", "value"),
    [
        ("facts", ("resident",), [{"name": "own"}]),
        ("facts", ("snapshots", "Org/Own-8B", "refs"), {"main": None}),
        ("facts", ("unknown",), "["),
        ("facts", ("hf_home",), {"closed": {"": None}}),
        ("facts", ("fabric",), {"ports": [{"netdevs": []}]}),
        ("facts", ("fabric",), {"networks": {"eth0": ["a"]}}),
        ("facts", ("management_address",), "fe80::1%\nListenAddress 0.0.0.0"),
        ("memory", ("total_gib",), 1e-320),
        ("memory", ("services", 0, "args", "max-model-len"), {1: 2, None: 3, False: 4}),
        ("launch", ("args", "max-model-len"), "9" * 5000),
        ("launch", ("args", "gpu-memory-utilization"), "9" * 5000),
    ],
)
def test_what_once_ended_in_an_error_of_python(subject: str, place: tuple[Any, ...], value: Any) -> None:
    bodies = {"facts": hostile.FACTS, "memory": hostile.MEMORY, "launch": hostile.LAUNCH}
    inputs = hostile.put(copy.deepcopy(bodies[subject]), place, value)
    assert attempt(hostile.Case(0, 0, subject, inputs)) == (PLANNED if subject == "launch" else REFUSED)


def test_a_cluster_whose_group_has_no_hosts_is_named() -> None:
    inputs = hostile.BASES["pair"]()
    inputs["groups"]["pair_a"] = []
    with pytest.raises(InventoryError) as refusal:
        of_inventory(plain(inputs))
    assert any("the group has 0 host" in message for message in refusal.value.messages)


def test_receivers_of_a_wrong_type_do_not_move_the_others() -> None:
    inputs = hostile.BASES["duo"]()
    (name,) = [host for host in inputs["others"] if "spark_monitoring" in inputs["others"][host]["vars"]]
    receivers = inputs["others"][name]["vars"]["spark_monitoring"]["receivers"]
    receivers[:] = ["{model}", *receivers, {"a": None}]
    with pytest.raises(InventoryError) as refusal:
        of_inventory(plain(inputs))
    assert any("receivers[0]" in message for message in refusal.value.messages)


@pytest.mark.parametrize("name", hostile.BASES)
def test_the_examples_that_cases_are_made_of_are_planned(name: str) -> None:
    assert of_inventory(plain(hostile.BASES[name]())) == PLANNED


@pytest.mark.parametrize(
    ("subject", "content"),
    [
        ("recipe", hostile.RECIPE),
        ("lock", hostile.LOCK),
        ("facts", hostile.FACTS),
        ("memory", hostile.MEMORY),
        ("launch", hostile.LAUNCH),
        *(("import", {"form": form, "text": text}) for form, text in hostile.IMPORTS),
    ],
)
def test_the_other_examples_are_taken(subject: str, content: Any) -> None:
    assert attempt(hostile.Case(0, 0, subject, copy.deepcopy(content))) == PLANNED


def test_a_case_is_the_same_every_time() -> None:
    for number in range(0, 400, 7):
        first, other = hostile.make(3, number), hostile.make(3, number)
        assert repr(first) == repr(other)
    assert repr(hostile.make(3, 1)) != repr(hostile.make(4, 1))


def test_every_documented_key_is_tried() -> None:
    """Each variable and each key of a service has a value in some case that is not as documented."""
    tried = {
        word
        for number in range(12000)
        for change in hostile.make(SEED, number).changes
        for word in re.findall(r"'([a-z_-]+)'", change)
    }
    keys = {*VARIABLES, *addons.VARIABLES, *SERVICE}
    assert sorted(keys - tried) == []


# --- what Ansible and YAML hand over ------------------------------------------------------------------------------------


def test_values_of_ansible_itself_are_read_as_what_they_say() -> None:
    tagged = TrustedAsTemplate().tag("heavy")
    hostvars = {
        "spark_services": [{"name": tagged, "recipe": wrap_var("qwen3-4b-instruct-2507"), "port": 8001}],
        "spark_hf_home": wrap_var("/srv/{{ 7 * 7 }}"),
        "other": object(),
    }
    messages: list[str] = []
    variables = read_variables("spark-1", hostvars, messages)
    assert messages == []
    assert variables == {
        "spark_services": [{"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001}],
        "spark_hf_home": "/srv/{{ 7 * 7 }}",
    }
    # No text that Ansible would still take for a template.
    assert {service.__class__ for service in (variables["spark_services"][0]["name"], variables["spark_hf_home"])} == {
        str
    }


def _nested(levels: int) -> Any:
    value: Any = 1
    for _level in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [b"bytes", {1, 2}, date(2026, 1, 1), {(1, 2): 3}, object(), _nested(100_000), {"a": {b"k": 1}}], ids=type
)
def test_values_that_no_json_has_are_named_with_host_and_variable(value: Any) -> None:
    messages: list[str] = []
    assert read_variables("spark-1", {"spark_services": value}, messages) == {}
    assert len(messages) == 1 and messages[0].startswith("host spark-1: 'spark_services' cannot be read: ")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "- " * 20_000,
        "? " * 20_000,
        "a: &a [*a]",
        "name: !!binary 'x'",
        "name: 2024-99-99",
        "{[1]: 2}",
        "a: " + "9" * 5000,
        'a: "\\ud800"',
        "- a",
        "",
        "a: !!python/object:os.system x",
        "name: 2026-01-01",
        "\x00",
    ],
)
def test_a_recipe_file_is_read_or_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yml").write_text(text, encoding="utf-8")
    (tmp_path / "other.yml").write_bytes(b"\xff\xfe\xff")
    loaded, wrong = load_recipes([tmp_path])
    assert loaded == {}
    assert any(message.startswith("recipe mine.yml") for message in wrong), wrong
    assert any(message.startswith("recipe other.yml: cannot be read") for message in wrong), wrong
    assert document_of(text) is None or isinstance(document_of(text), dict)
    locked, wrong = read_lock(tmp_path / "mine.yml")
    assert locked is None and all("mine.yml" in message for message in wrong) and wrong
