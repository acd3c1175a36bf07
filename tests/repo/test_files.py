"""What may be in the repository at all."""

from __future__ import annotations

import re

import tree

TOP_LEVEL = {
    ".ansible-lint",
    ".ci",
    ".config",
    ".editorconfig",
    ".github",
    ".gitignore",
    ".yamllint",
    "AGENTS.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "ansible.cfg",
    "changelogs",
    "collections",
    "ansible-navigator.yml",
    "docs",
    "execution-environment.yml",
    "extensions",
    "galaxy.yml",
    "inventories",
    "meta",
    "molecule",
    "playbooks",
    "plugins",
    "pyproject.toml",
    "requirements-dev.in",
    "requirements-dev.txt",
    "roles",
    "scripts",
    "site.yml",
    "tests",
}
# Texts taken from real programs stay as those wrote them.
VERBATIM = re.compile(r"^LICENSE$|/live/(uPlot\.|LICENSE)|(^|/)(fixtures|captures)/|/rootfs/.*\.txt$")
# Host names are put together here so that this file does not hold them.
INDEXES = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("files", "python" + "hosted", "org"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("ports", "ubuntu", "com"),
        ("registry", "npmjs", "org"),
        ("download", "pytorch", "org"),
    ]
]
MACHINE = re.compile(rf"{re.escape(str(tree.ROOT))}\b")


def text_files() -> list[str]:
    """Files of our own that hold text."""
    names = []
    for name in tree.tracked():
        path = tree.ROOT / name
        if path.is_symlink() or VERBATIM.search(name):
            continue
        if b"\0" not in path.read_bytes()[:4096]:
            names.append(name)
    return names


TEXTS = text_files()


def test_top_level_is_what_we_agreed_on() -> None:
    assert {name.split("/")[0] for name in tree.tracked()} - TOP_LEVEL == set()


@tree.each(TEXTS)
def test_text_is_clean(name: str) -> None:
    text = tree.read(name)
    problems = []
    if text and not text.endswith("\n"):
        problems.append("does not end with a line feed")
    for number, line in enumerate(text.split("\n"), start=1):
        if line != line.rstrip():
            problems.append(f"line {number}: white space at its end")
        if "\t" in line and name != "Makefile":
            problems.append(f"line {number}: tab")
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            problems.append(f"line {number}: left of a merge")
    assert problems == []


@tree.each(TEXTS)
def test_nothing_of_one_machine(name: str) -> None:
    """No home directory and no package index: pip, apt and uv use the configuration of the machine."""
    text = tree.read(name)
    assert [host for host in INDEXES if host in text] == []
    if not name.endswith("test_files.py"):
        assert MACHINE.findall(text) == []


@tree.each(name for name in TEXTS if (tree.ROOT / name).stat().st_mode & 0o100)
def test_executables_say_what_runs_them(name: str) -> None:
    assert tree.read(name).startswith("#!")
