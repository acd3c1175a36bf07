"""The packages of the engine import one another in one direction, and code on hosts needs nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
import tree

# Each package with what it may import: docs/architecture.md draws it.
BELOW: dict[str, tuple[str, ...]] = {
    "_common": (),
    "_runtime": ("_common",),
    "_vllm": ("_common",),
    "_host": ("_common", "_runtime"),
    "_content": ("_common", "_runtime", "_vllm", "_host"),
    "_memory": ("_common", "_vllm"),
    "_speed": ("_common", "_vllm", "_memory"),
    "_compat": ("_common", "_vllm"),
    "_cluster": ("_common", "_runtime", "_vllm", "_host", "_content"),
    "_proof": ("_common", "_runtime", "_vllm", "_host", "_content", "_memory", "_speed", "_cluster"),
    "_addons": ("_common", "_runtime", "_vllm", "_host", "_content", "_cluster"),
}
BELOW["_agent"] = ("_common", "_runtime", "_host", "_proof")
BELOW["_plan"] = tuple(BELOW)
BELOW["_fleet"] = tuple(BELOW)
ROOM = "plugins/module_utils/"
FILES = tree.below(ROOM, suffix=".py")
OWN = "ansible_collections.dgxspark.vllm.plugins.module_utils"
ENGINES = {"image_compat", "memory_budget", "speed_estimate"}
"""Modules that are the engine itself, for tasks of one's own."""


def packages(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Line and package of each import of a file of the engine that names another package."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            yield node.lineno, (node.module or "").split(".", 1)[0]
        elif isinstance(node, ast.ImportFrom) and (node.level > 2 or (node.module or "").startswith("ansible")):
            yield node.lineno, node.module or name


def upward(name: str, text: str) -> list[str]:
    """Yield the imports of a file from packages above it."""
    package = PurePosixPath(name).parts[2]
    return [f"{name}:{line} imports {other}" for line, other in packages(name, text) if other not in BELOW[package]]


def test_every_file_lies_in_a_package() -> None:
    assert {PurePosixPath(name).parts[2] for name in FILES} == set(BELOW)
    assert all(len(PurePosixPath(name).parts) == 4 for name in FILES)


def test_there_is_no_circle() -> None:
    """A package stands above all that it may import: those can be put in an order."""
    order: list[str] = []
    while len(order) < len(BELOW):
        ready = [name for name, below in BELOW.items() if name not in order and set(below) <= set(order)]
        assert ready, f"a circle among {sorted(set(BELOW) - set(order))}"
        order += ready


@pytest.mark.parametrize("package", BELOW)
def test_imports_go_one_way(package: str) -> None:
    files = [name for name in FILES if PurePosixPath(name).parts[2] == package]
    assert [line for name in files for line in upward(name, tree.read(name))] == []


@pytest.mark.parametrize(
    "text",
    [
        "from .._plan import recipes",
        "from .._plan.plan import make_plan",
        "def f():\n    from .._fleet import drift",
        "from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipes",
        "from ansible.module_utils.basic import AnsibleModule",
        "from ... import modules",
    ],
)
def test_an_arrow_upwards_is_found(text: str) -> None:
    assert upward("plugins/module_utils/_memory/weights.py", text)


@pytest.mark.parametrize("package", BELOW)
def test_a_package_says_what_it_knows_who_imports_it_and_what_it_never_does(package: str) -> None:
    docstring = ast.get_docstring(ast.parse(tree.read(f"{ROOM}{package}/__init__.py"))) or ""
    lines = [line for line in docstring.splitlines() if line]
    assert len(lines) == 3 and "import it" in lines[1] and "never" in lines[2]


def sources(name: str) -> set[str]:
    """Files of the engine that a module takes along to a host, by their paths below the room."""
    collected: set[str] = set()
    waiting = [name]
    while waiting:
        file = PurePosixPath(waiting.pop())
        for node in ast.walk(ast.parse(tree.read(str(file)))):
            if not isinstance(node, ast.ImportFrom):
                continue
            if node.level:
                folder = file.parents[node.level - 1]
            elif (node.module or "").startswith(OWN):
                folder = PurePosixPath(ROOM)
            else:
                continue
            path = folder.joinpath(*(node.module or "").removeprefix(OWN).strip(".").split("."))
            names = [str(path) + ".py", *(f"{path}/{alias.name}.py" for alias in node.names)]
            new = {module for module in names if module in FILES} - collected
            collected |= new
            waiting += new
    return collected


@pytest.mark.parametrize("module", sorted(set(tree.MODULES) - ENGINES))
def test_modules_of_hosts_do_not_carry_what_only_a_plan_needs(module: str) -> None:
    """Each run of a module sends its sources to the host: vLLM's catalogue alone is more than most of them."""
    carried = sources(f"plugins/modules/{module}.py")
    assert not [name for name in carried if name.endswith("/catalogue_data.py")]


@pytest.mark.parametrize("module", sorted(ENGINES))
def test_what_carries_it_needs_it(module: str) -> None:
    assert f"{ROOM}_vllm/catalogue_data.py" in sources(f"plugins/modules/{module}.py")
