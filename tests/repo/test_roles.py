"""Each role: complete, and its argument specification says the same as its defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tree

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs

pytestmark = pytest.mark.parametrize("role", tree.ROLES)


def options(role: str) -> dict[str, dict[str, Any]]:
    """The options of the role's main entry point."""
    specs = tree.load(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
    return specs["main"].get("options") or {}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "meta/main.yml",
        "meta/variables.yml",
        "meta/argument_specs.yml",
        "defaults/main.yml",
        "tasks/main.yml",
    ],
)
def test_role_has(role: str, name: str) -> None:
    assert tree.read(f"roles/{role}/{name}").strip(), f"roles/{role}/{name} is missing or empty"


def test_specification_equals_defaults(role: str) -> None:
    """Everything optional has a default, with the value that the specification tells the user."""
    defaults = tree.load(f"roles/{role}/defaults/main.yml") or {}
    optional = {name: spec for name, spec in options(role).items() if not spec.get("required")}
    assert set(optional) == set(defaults)
    assert {name: spec.get("default") for name, spec in optional.items()} == defaults


def test_options_are_described_and_prefixed(role: str) -> None:
    for name, spec in options(role).items():
        assert name.startswith(f"{role}_"), f"{name} does not start with its role's name"
        assert spec.get("description") and spec.get("type"), f"{name} lacks its description or type"


def test_readme_lists_every_option(role: str) -> None:
    text = tree.read(f"roles/{role}/README.md")
    assert [name for name in options(role) if f"`{name}`" not in text] == []


def test_has_a_molecule_scenario(role: str) -> None:
    """A separate scenario, the scenario of all roles, or a scenario that runs site.yml with the role in its inventory."""
    files = [*tree.below(f"molecule/{role}/", suffix=".yml"), "molecule/roles/converge.yml"]
    text = "".join(map(tree.read, files))
    site = [
        tree.read(name)
        for name in tree.below("molecule/", suffix="inventory.yml")
        if "dgxspark.vllm.site" in tree.read(name.replace("inventory.yml", "converge.yml"))
    ]
    configured = any(f"spark_{role}:" in inventory for inventory in site)
    assert f"dgxspark.vllm.{role}" in text or configured, f"no scenario runs {role}"


def tags_of(task: dict[str, Any]) -> set[str]:
    tags = task.get("tags") or []
    return {tags} if isinstance(tags, str) else set(tags)


def tasks_of_site(
    name: str = "site.yml", reached: set[str] | None = None
) -> Iterator[tuple[dict[str, Any], set[str] | None]]:
    """Yield the tasks of site.yml and of the shared files that it includes, with the tags that reach them."""
    for task in tree.tasks(f"playbooks/{name}"):
        yield task, reached
        if "ansible.builtin.import_tasks" in task:
            yield from tasks_of_site(beside(name, task["ansible.builtin.import_tasks"]), reached)
        if "ansible.builtin.include_tasks" in task:
            tags, included = tags_of(task), task["ansible.builtin.include_tasks"]
            file = included["file"] if isinstance(included, dict) else included
            yield from tasks_of_site(beside(name, file), tags if reached is None else tags & reached)


def beside(name: str, other: str) -> str:
    """A file that is named by another one, from the folder of playbooks."""
    return (Path(name).parent / other).as_posix()


def test_site_runs_it_under_its_own_tag(role: str) -> None:
    for task, reached in tasks_of_site():
        included = task.get("ansible.builtin.import_role") or task.get("ansible.builtin.include_role") or {}
        if included.get("name") == f"dgxspark.vllm.{role}" and "tasks_from" not in included:
            assert role in tags_of(task), f"{task['name']}: tag {role} is missing"
            # A file that is included while the play runs is not opened for a tag that the include does not have.
            assert reached is None or role in reached, f"{task['name']}: its file is not reached by the tag {role}"
            return
        # A task that deploys several parts runs always, and takes those whose tags are given.
        if role in (task.get("vars") or {}).get("parts_by_tag", []):
            assert tags_of(task) == {"always"} and (reached is None or role in reached), task["name"]
            return
    pytest.fail(f"playbooks/site.yml does not run the role {role}")


def test_what_a_role_removes_of_the_library_is_its_own(role: str) -> None:
    """Programs of other roles on the same host import the rest."""
    text = "".join(map(tree.read, tree.below(f"roles/{role}/tasks/", f"roles/{role}/vars/")))
    removed = re.findall(r"/dgxspark_vllm/([\w/.]+)", text)
    shared = {
        f"{name}.py"
        for component in host_programs.PROGRAMS
        for name in host_programs.library_files(component)
        if component != role
    }
    assert [path for path in removed if any(f"{folder}/".startswith(f"{path}/") for folder in shared)] == []
