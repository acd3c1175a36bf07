"""Every picture is on a page and in the tarball."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import tree

SHOWN = {
    (page, str(PurePosixPath(page).parent / target))
    for page in ("README.md", *tree.below("docs/", suffix=".md"))
    for target in re.findall(r"\[[^\]]+\]\(([^)]+\.png)\)", tree.read(page))
}


def test_every_picture_is_on_a_page_and_in_the_tarball() -> None:
    pictures = {name for name in tree.below("docs/images/") if not name.endswith("/")}
    assert pictures == {picture for _page, picture in SHOWN}
    assert tree.packed(pictures) == pictures
