"""What the comparison with other collections says of this one is so."""

from __future__ import annotations

import tree

OURS = {
    cells[0]: cells[3]
    for line in tree.read("docs/beside.md").splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
}


def test_what_there_is() -> None:
    assert (tree.load("galaxy.yml")["dependencies"] == {}) == (OURS["depends on"] == "ansible-core alone")
    assert tree.below("tests/sanity/ignore") == [] and "sanity without ignores" in OURS["sanity and lint"]
    assert tree.load(".ansible-lint")["profile"] == "production"
    assert (
        "make newer" in tree.read(".github/workflows/nightly.yml")
        and "make newer" in OURS["who watches upstream versions"]
    )
    assert "attest-build-provenance" in tree.read(".github/workflows/release.yml")
