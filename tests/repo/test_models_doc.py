"""docs/models.md agrees with the recipes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tree

RECOMMENDED = re.compile(r"^\| (\d) \| \[([\w.-]+)\]\((?:docs/)?models\.md#\S+\) \|", re.MULTILINE)


@pytest.mark.parametrize("argv", [["generate_models_doc.py"], ["generate_docs.py", "recommended"]])
def test_page_is_what_its_generator_writes(argv: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts" / argv[0]), *argv[1:], "--check"],
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


def test_readme_recommends_recipes_of_the_page() -> None:
    first = RECOMMENDED.findall(tree.read("README.md"))
    assert len(first) == 4, first
    table = tree.read("docs/models.md").partition("\n## Recommended\n")[2].partition("\n## ")[0]
    assert {name for _sparks, name in first} <= set(re.findall(r"^\| [^|]+ \| \[([^]]+)\]", table, re.MULTILINE))
