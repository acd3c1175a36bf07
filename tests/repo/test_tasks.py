"""Rules for every play and task that is not worth leaving to good will."""

from __future__ import annotations

import json
import re

import pytest
import tree

pytestmark = pytest.mark.parametrize("name", tree.TASK_FILES)

NO_SHELL = {"ansible.builtin.shell", "shell", "ansible.builtin.raw", "raw", "ansible.builtin.expect"}


def test_every_play_and_task_is_named(name: str) -> None:
    assert [item for item in tree.tasks(name) if not item.get("name")] == []


# A host that does not answer is planned from the inventory, when that is what was asked for; the plan says so.
PLANNED_UNSEEN = "{{ spark_plan_facts | default('never') == 'auto' }}"


def test_no_error_is_ignored(name: str) -> None:
    for item in tree.tasks(name):
        assert "ignore_errors" not in item
        assert item.get("ignore_unreachable", PLANNED_UNSEEN) == PLANNED_UNSEEN


def test_nothing_goes_through_a_shell(name: str) -> None:
    assert [item["name"] for item in tree.tasks(name) if NO_SHELL & set(item)] == []


def test_nothing_is_latest(name: str) -> None:
    """What a run brings must not depend on its date."""
    found = [item["name"] for item in tree.tasks(name) if re.search(r'"state": "latest"|:latest"', json.dumps(item))]
    assert found == []
