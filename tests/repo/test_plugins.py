"""Modules and the engine behind them: registered, licensed, tested."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tree

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs

ROOT = Path(__file__).resolve().parents[2]
PYTHON = tree.below("plugins/", suffix=".py")
UTILS = [name for name in tree.below("plugins/module_utils/", suffix=".py") if "__init__" not in name]
UNIT_WORDS = {word for name in tree.below("tests/unit/", suffix=".py") for word in re.findall(r"\w+", tree.read(name))}
HEADER = """\
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""
MOST_LINES = 60
LONG = re.compile(r"\bLong: \w")
PACKAGES = {name.split("/")[2] for name in tree.below("plugins/module_utils/", suffix=".py")}
# Whose public functions with more than two arguments document each. Those of modules, actions, filters and lookups are called in their own file
# alone, by the names of the documented options.
DOCUMENTED = tuple(f"plugins/module_utils/{package}/" for package in sorted(PACKAGES - {"_fleet", "_memory"}))


def test_action_group_is_the_modules() -> None:
    """So that users can set `module_defaults: group/dgxspark.vllm.spark:` for all of them."""
    assert tree.load("meta/runtime.yml")["action_groups"]["spark"] == tree.MODULES


@tree.each(PYTHON)
def test_licence_header(name: str) -> None:
    assert tree.read(name).removeprefix("#!/usr/bin/python\n").startswith(HEADER)


@tree.each(tree.MODULES)
def test_module_is_documented_and_tested(module: str) -> None:
    text = tree.read(f"plugins/modules/{module}.py")
    for block in ("DOCUMENTATION", "EXAMPLES", "RETURN"):
        assert re.search(rf'^{block} = r?"""', text, re.MULTILINE), f"{module}: {block} is missing"
    assert module in UNIT_WORDS, f"no unit test mentions {module}"
    assert f"dgxspark.vllm.{module}" in text.split("EXAMPLES", 1)[1], (
        f"the examples of {module} do not use its full name"
    )


@tree.each(UTILS)
def test_engine_is_tested(name: str) -> None:
    assert Path(name).stem in UNIT_WORDS, f"no unit test mentions {name}"


IMPORTED = """
import importlib, json, os, sys
folder, program = os.path.split(sys.argv[2])
sys.path[:0] = [folder, sys.argv[1]]
for module in (program.removesuffix(".py"), *sys.argv[3:]):
    importlib.import_module(module)
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.startswith("dgxspark_vllm.") and module.__file__]))
"""


# The agent imports a loop when it runs it, and parts of the live page when somebody reads it.
LOOPS = {
    "agent": [
        *(f"dgxspark_vllm._agent.{name}" for name in ("memory", "watch", "questions", "figures")),
        *(f"dgxspark_vllm.{name}" for name in ("_fleet.live_agent", "_proof.service_status", "_plan.verbs")),
    ]
}


def imported(name: str, *modules: str) -> set[str]:
    """Files of the engine that are loaded when Python imports a program of a host, and modules that the program imports later."""
    argv = [sys.executable, "-B", "-c", IMPORTED, str(ROOT / "collections"), str(ROOT / name), *modules]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    engine = ROOT / "plugins/module_utils"
    files = [Path(file).resolve().relative_to(engine) for file in json.loads(done.stdout)]
    return {str(file.with_suffix("")) for file in files if file.name != "__init__.py"}


@pytest.mark.parametrize("component", host_programs.PROGRAMS)
def test_hosts_get_what_their_programs_import(component: str) -> None:
    files = host_programs.library_files(component)
    assert list(files) == sorted(set(files))
    loaded = {
        name for program in host_programs.PROGRAMS[component] for name in imported(program, *LOOPS.get(component, []))
    }
    as_files = {"_runtime/ray_nodes"} if component == "host" else set()  # runs inside a container
    assert set(files) == loaded | as_files


def test_programs_are_all_looked_at() -> None:
    named = {name for names in host_programs.PROGRAMS.values() for name in names if name.startswith("roles/")}
    using = {
        name
        for name in tree.below("roles/", suffix=".py")
        if re.search(r"^from dgxspark_vllm", tree.read(name), re.MULTILINE)
    }
    assert using == named


def too_long(text: str) -> set[str]:
    """Functions with more lines, without their docstring, than they may have that give no reason: C(Long: ...) right above them or in their docstring."""
    lines = text.splitlines()
    functions = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        above = lines[first - 2].strip() if first > 1 else ""
        reason = f"{above if above.startswith('#') else ''} {ast.get_docstring(node) or ''}"
        docstring = node.body[0] if ast.get_docstring(node) else None
        length = (
            (node.end_lineno or 0)
            - node.lineno
            + 1
            - ((docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0)
        )
        if length > MOST_LINES and not LONG.search(reason):
            functions.add(node.name)
    return functions


@tree.each(PYTHON)
def test_functions_are_short(name: str) -> None:
    assert too_long(tree.read(name)) == set(), f"at most {MOST_LINES} lines: CONTRIBUTING.md, Rules"


def test_a_long_function_needs_a_reason() -> None:
    body = "    x = 1\n" * MOST_LINES
    assert too_long(f"def f():\n{body}") == {"f"}
    assert too_long(f"def f():\n{body[10:]}") == set()
    assert too_long(f"# Long: one table.\ndef f():\n{body}") == set()
    assert too_long(f"# Long.\ndef f():\n{body}") == {"f"}
    assert too_long(f'def f():\n    """Do.\n\n    Long: one table.\n    """\n{body}') == set()


def undocumented(text: str) -> dict[str, str]:
    """Public functions and methods with more than two arguments that have no docstring, or one that does not fit their arguments.

    Arguments that name and type explain need no line; those with a line stand in the order of the signature.
    """
    tree_of = ast.parse(text)
    classes = [node for node in tree_of.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    problems = {}
    for node in [*tree_of.body, *(node for item in classes for node in item.body)]:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        arguments = node.args
        every = [
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            *filter(None, (arguments.vararg, arguments.kwarg)),
        ]
        names = [item.arg for item in every if item.arg not in ("self", "cls")]
        if len(names) <= 2:
            continue
        docstring = ast.get_docstring(node) or ""
        documented = re.findall(r"^:param (\w+): \S", docstring, re.MULTILINE)
        if documented != [name for name in names if name in documented]:
            problems[node.name] = f"arguments {names}, documented {documented}"
        elif not docstring:
            problems[node.name] = "no docstring"
    return problems


@tree.each(tree.below(*DOCUMENTED, suffix=".py"))
def test_public_functions_document_their_arguments(name: str) -> None:
    assert undocumented(tree.read(name)) == {}


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("def f(a, b): ...", set()),
        ("def _f(a, b, c): ...", set()),
        ("def f(a, b, c): ...", {"f"}),
        ("def f(a, *, b, **c) -> None: ...", {"f"}),
        ("class A:\n  def f(self, a, b, c): ...\n  def g(self, a, b): ...", {"f"}),
        ('def f(a, b, c) -> None:\n  """Do.\n\n  :param a: x\n  :param b: x\n  :param c: x\n  """', set()),
        ('def f(a, b, c) -> int:\n  """Do.\n\n  :param b: x\n  """', set()),
        ('def f(a, b, c) -> int:\n  """Do.\n\n  :param d: x\n  """', {"f"}),
        ('def f(a, b, c) -> None:\n  """Do.\n\n  :param a: x\n  :param c: x\n  :param b: x\n  """', {"f"}),
    ],
)
def test_an_undocumented_argument_is_found(text: str, problems: set[str]) -> None:
    assert set(undocumented(text)) == problems


READS_JSON = {
    "plugins/callback/progress.py": "what this collection's own workers wrote into a pipe",
    "plugins/module_utils/_common/foreign_text.py": "the reader itself",
    "plugins/module_utils/_content/image_probe_program.py": "runs in an image, alone",
    "plugins/module_utils/_content/plan_probe_program.py": "runs in an image, alone",
    "plugins/module_utils/_content/snapshots.py": "a program that runs in an image, alone",
    "plugins/module_utils/_runtime/on_demand.py": "requests of clients, whose texts go on as they are",
    "plugins/module_utils/_vllm/launch.py": "options that a person wrote",
    "plugins/plugin_utils/events.py": "what this run has written itself",
    "plugins/plugin_utils/values.py": "what it has just written",
    "roles/fleet_monitor/files/spark_status_page.py": "its own settings",
    "roles/gateway/files/container/hooks.py": "runs in an image, with files of its own",
    "roles/gateway/files/spark_gateway.py": "its own files, of which it names the key that is wrong",
    "roles/gateway/files/container/serve.py": "runs in an image, with files of its own",
}


def test_json_of_others_is_read_by_the_one_reader_that_has_bounds() -> None:
    names = [name for folder in ("plugins/", "roles/") for name in tree.below(folder, suffix=".py")]
    readers = {name for name in names if re.search(r"\bjson\.loads?\(|JSONDecoder", tree.read(name))}
    assert readers <= set(READS_JSON), "use parse_json of _common/foreign_text.py"


def test_archives_of_others_are_read_by_the_one_reader_that_has_bounds() -> None:
    names = [name for folder in ("plugins/", "roles/") for name in tree.below(folder, suffix=".py")]
    readers = {
        name for name in names if re.search(r"\b(zipfile|shutil\.unpack_archive|tarfile\.open)\b", tree.read(name))
    }
    assert readers == {
        "plugins/module_utils/_fleet/support.py",  # writes one
        "plugins/module_utils/_content/image_archive.py",  # streams those of docker save
        "plugins/module_utils/_fleet/answers.py",  # reads one from memory, of a bounded size
    }
