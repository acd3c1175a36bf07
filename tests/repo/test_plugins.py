"""Modules and the engine behind them: registered, licensed, tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tree

PYTHON = tree.below("plugins/", suffix=".py")
UTILS = [Path(name).stem for name in tree.below("plugins/module_utils/", suffix=".py") if "__init__" not in name]
UNIT_TESTS = "\n".join(tree.read(name) for name in tree.below("tests/unit/", suffix=".py"))
HEADER = """\
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""


def test_action_group_is_the_modules() -> None:
    """So that users can set `module_defaults: group/dgxspark.vllm.spark:` for all of them."""
    assert tree.load("meta/runtime.yml")["action_groups"]["spark"] == tree.MODULES


@pytest.mark.parametrize("name", PYTHON)
def test_licence_header(name: str) -> None:
    assert tree.read(name).removeprefix("#!/usr/bin/python\n").startswith(HEADER)


@pytest.mark.parametrize("module", tree.MODULES)
def test_module_is_documented_and_tested(module: str) -> None:
    text = tree.read(f"plugins/modules/{module}.py")
    for block in ("DOCUMENTATION", "EXAMPLES", "RETURN"):
        assert re.search(rf'^{block} = r?"""', text, re.MULTILINE), f"{module}: {block} is missing"
    assert re.search(rf"\b{module}\b", UNIT_TESTS), f"no unit test mentions {module}"
    assert f"dgxspark.vllm.{module}" in text.split("EXAMPLES", 1)[1], (
        f"the examples of {module} do not use its full name"
    )


@pytest.mark.parametrize("module", UTILS)
def test_engine_is_tested(module: str) -> None:
    assert re.search(rf"\b{module}\b", UNIT_TESTS), f"no unit test mentions module_utils/{module}.py"


@pytest.mark.parametrize("module", UTILS)
def test_engine_does_not_import_ansible(module: str) -> None:
    """The engine is plain Python; only the modules know Ansible."""
    assert not re.search(r"^\s*(from|import) ansible\b", tree.read(f"plugins/module_utils/{module}.py"), re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["endpoint", "hostmem", "ranks", "ray_nodes", "metrics", "wedge", "fleet_state", "spread_files"]
)
def test_what_is_copied_to_hosts_stands_alone(name: str) -> None:
    """Units run these files on hosts, where there is no collection."""
    assert not re.search(
        r"^\s*(from|import) ansible_collections", tree.read(f"plugins/module_utils/{name}.py"), re.MULTILINE
    )
