"""The comparison with other collections describes this one correctly."""

from __future__ import annotations

import tree

ROWS = [
    cells
    for line in tree.read("docs/beside.md").splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
]
OURS = {cells[0]: cells[3] for cells in ROWS}


def test_what_there_is() -> None:
    assert (tree.load("galaxy.yml")["dependencies"] == {}) == (OURS["dependencies"] == "ansible-core alone")
    assert tree.below("tests/sanity/ignore") == [] and "sanity without ignores" in OURS["sanity and lint"]
    assert tree.load(".ansible-lint")["profile"] == "production"
    assert "strict = true" in tree.read("pyproject.toml") and "mypy strict" in OURS["sanity and lint"]
    assert (
        "make newer" in tree.read(".github/workflows/nightly.yml")
        and "make newer" in OURS["updates of pinned versions"]
    )
    assert "attest-build-provenance" in tree.read(".github/workflows/release.yml")
    assert '"bomFormat": "CycloneDX"' in tree.read("scripts/release.py")
    assert "CycloneDX" in OURS["bill of materials, build attestation"]


def test_what_it_is_made_of() -> None:
    assert OURS["content"] == "playbooks, roles and modules"
    assert tree.below("playbooks/") and tree.MODULES and tree.below("roles/")
    assert tree.below("plugins/inventory") == tree.below("plugins/connection") == []
    assert "docs-site:" in tree.read("Makefile") and "`make docs-site`" in OURS["documentation"]
    assert tree.load("changelogs/config.yaml")["changes_file"] == "changelog.yaml"
    assert tree.below("meta/execution-environment.yml") and tree.below("execution-environment.yml")
    for name in ("awx", "eda"):
        assert tree.below(f"extensions/{name}/")
    assert "AWX, ansible-rulebook" in OURS["job templates, rulebook"]


def test_every_collection_has_a_cell_in_every_row() -> None:
    assert len(ROWS) > 10 and all(all(cells) for cells in ROWS[1:])
