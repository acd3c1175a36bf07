"""Metadata, inventories and runners agree with each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import suite
import tree


def inventory(name: str) -> Any:
    """The inventory as Ansible reads it."""
    listing = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", f"inventories/{name}", "--list"],
        cwd=tree.ROOT,
        env={**os.environ, "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(listing.stdout)


@pytest.mark.parametrize("name", tree.INVENTORIES)
def test_example_inventory(name: str) -> None:
    """It parses, and holds its Sparks in the group that the playbooks run on."""
    groups = inventory(name)
    within = ["sparks"]
    for group in within:
        within += groups.get(group, {}).get("children", [])
    assert any(groups.get(group, {}).get("hosts") for group in within)


def test_changelog_has_the_version() -> None:
    changelog = tree.load("changelogs/changelog.yaml") or {}
    version = tree.load("galaxy.yml")["version"]
    if changelog:
        assert version in changelog["releases"]
        listed = {module["name"] for release in changelog["releases"].values() for module in release.get("modules", [])}
        # A release adds new modules; each removed module has a note.
        notes = "".join(map(tree.read, tree.below("changelogs/", suffix=".yml")))
        removed = listed - set(tree.MODULES)
        assert {name for name in removed if f"{name} - removed." not in notes} == set()
        assert f"v{version}" in tree.read("CHANGELOG.md").replace("\\", "")


def test_oldest_core_tested_is_the_oldest_promised() -> None:
    oldest = min(suite.CORES, key=lambda core: [int(part) for part in core.split(".")])
    assert tree.load("meta/runtime.yml")["requires_ansible"] == f">={oldest}.0"


def test_ci_runs_what_everybody_runs() -> None:
    commands = [line for line in tree.read(".ci/run").splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "exec make test"


def test_collection_needs_no_other() -> None:
    assert tree.load("galaxy.yml")["dependencies"] == {}


def test_skipped_tasks_are_not_shown_by_shipped_settings() -> None:
    shipped = [name for name in tree.tracked() if name.endswith("ansible.cfg")]
    assert shipped
    assert [name for name in shipped if "display_skipped_hosts = false" not in tree.read(name)] == []
