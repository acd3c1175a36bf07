"""Pictures are what the collection draws, stand on a page, and are in the tarball."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath
from xml.etree import ElementTree

import generate_pictures
import pytest
import tree

SHOWN = {
    (page, str(PurePosixPath(page).parent / target))
    for page in ("README.md", *tree.below("docs/", suffix=".md"))
    for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", tree.read(page))
}


@pytest.mark.parametrize("name", generate_pictures.PICTURES)
def test_a_picture_is_what_is_drawn_now(name: str) -> None:
    text = generate_pictures.PICTURES[name]()
    assert tree.read(f"docs/images/{name}") == text, "run: PYTHONPATH=collections python scripts/generate_pictures.py"
    picture = ElementTree.fromstring(text)
    assert picture.get("aria-label") and picture.get("viewBox")
    assert not re.search(r"<script|https?://(?!www\.w3\.org/2000/svg|docs\.vllm\.ai)|var\(--", text)


def test_every_picture_is_on_a_page_and_in_the_tarball() -> None:
    pictures = {name for name in tree.below("docs/images/") if not name.endswith("/")}
    assert pictures == {picture for _page, picture in SHOWN}
    lines = tree.load("galaxy.yml")["manifest"]["directives"]
    patterns = next(line.split()[2:] for line in lines if line.startswith("recursive-include docs "))
    assert [name for name in pictures if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_colours_of_a_terminal_last_until_another() -> None:
    lines = ["a \x1b[31mb", "c\x1b[0m d"]
    red, ink = generate_pictures.COLOURS["31"], generate_pictures.INK
    assert list(generate_pictures.runs(lines)) == [
        (0, 0, "a ", ink),
        (0, 2, "b", red),
        (1, 0, "c", red),
        (1, 1, " d", ink),
    ]


def test_a_long_line_is_cut_at_a_space() -> None:
    words = "word " * 40
    pieces = list(generate_pictures.wrapped(words.strip()))
    assert len(pieces) == 2 and all(len(piece) <= generate_pictures.COLUMNS for piece in pieces)
    assert " ".join(pieces) == words.strip()
