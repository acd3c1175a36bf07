"""docs/models.md agrees with the recipes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import tree


def test_page_is_what_its_generator_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts/generate_models_doc.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_recipe_has_its_section() -> None:
    page = tree.read("docs/models.md")
    named = {Path(name).stem for name in tree.below("playbooks/recipes/", suffix=".yml")}
    assert {name for name in named if page.count(f"\n## {name}\n") != 1} == {"scripted-tiny"}


def test_recommended_recipes_are_the_same_on_every_page() -> None:
    pages = {name: tree.read(name) for name in ("README.md", "docs/quickstart.md", "docs/models.md")}
    rows = {
        name: re.findall(r"^\| [12] \| \[([\w.-]+)\]\(\S+\) \| [\d.]+ \| [\d.]+ \| [a-z, ]+ \|$", text, re.M)
        for name, text in pages.items()
    }
    assert len(set(map(tuple, rows.values()))) == 1 and len(rows["README.md"]) == 4, rows
