"""Rules for every play and task that is not worth leaving to good will."""

from __future__ import annotations

import json
import re

import tree

NO_SHELL = {"ansible.builtin.shell", "shell", "ansible.builtin.raw", "raw", "ansible.builtin.expect"}


@tree.each(tree.TASK_FILES)
def test_every_play_and_task_is_named(name: str) -> None:
    assert [item for item in tree.tasks(name) if not item.get("name")] == []


@tree.each(tree.TASK_FILES)
def test_no_error_is_ignored(name: str) -> None:
    assert [item["name"] for item in tree.tasks(name) if "ignore_errors" in item or "ignore_unreachable" in item] == []


@tree.each(tree.TASK_FILES)
def test_nothing_goes_through_a_shell(name: str) -> None:
    assert [item["name"] for item in tree.tasks(name) if NO_SHELL & set(item)] == []


@tree.each(tree.TASK_FILES)
def test_nothing_is_latest(name: str) -> None:
    """What a run brings must not depend on its date."""
    names = [item["name"] for item in tree.tasks(name) if re.search(r'"state": "latest"|:latest"', json.dumps(item))]
    assert names == []


@tree.each(tree.TASK_FILES)
def test_no_environment_comes_from_a_variable(name: str) -> None:
    """It stands in the command line that starts the module; a person may have put the password of a package index there."""
    names = [item["name"] for item in tree.tasks(name) if isinstance(item.get("environment"), str)]
    assert names == []
