"""Documentation: complete, and its links and commands lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import suite
import tree

PAGES = [name for name in tree.tracked() if name.endswith(".md") and name != "CHANGELOG.md"]
README = tree.read("README.md")
DOCS = README + "".join(tree.read(name) for name in tree.below("docs/", suffix=".md"))
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as the usual Markdown renderers make them."""
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for link in LINK.findall(tree.read(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (tree.ROOT / page).parent / path if path else tree.ROOT / page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", [*tree.MODULES, *tree.ROLES, *[Path(name).name for name in tree.PLAYBOOKS]])
def test_readme_lists(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", README), f"README.md does not mention {name}"


@pytest.mark.parametrize("name", tree.INVENTORIES)
def test_inventory_is_explained(name: str) -> None:
    assert f"inventories/{name}" in DOCS


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", tree.read("Makefile"), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)[` ]", tree.read(page))}
    assert named - targets == set()


def test_every_stage_and_scenario_has_a_line_that_says_what_it_shows() -> None:
    rows = set(re.findall(r"^\| `([\w-]+)` \| \S", tree.read("docs/testing.md"), re.MULTILINE))
    scenarios = {Path(name).parent.name for name in tree.tracked() if re.fullmatch(r"molecule/\w+/molecule.yml", name)}
    assert rows == set(suite.STAGES) | scenarios - {"default"}
