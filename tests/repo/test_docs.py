"""Documentation: complete, and its links and commands lead somewhere."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import suite
import tree
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS, VARIABLES

PAGES = [name for name in tree.tracked() if name.endswith(".md") and name != "CHANGELOG.md"]
REFERENCE = tree.read("docs/verbs.md")
DOCS = "".join(map(tree.read, ("README.md", "AGENTS.md"))) + "".join(
    tree.read(name) for name in tree.below("docs/", suffix=".md")
)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")

EXAMPLES = {f"inventories/{name}" for name in tree.INVENTORIES}
OWN = {"inventories/mine"}  # a reader's


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


def test_examples_in_yaml_can_be_read() -> None:
    examples, wrong = 0, []
    for page in PAGES:
        for indent, text in re.findall(r"^( *)```ya?ml\n(.*?)^ *```", tree.read(page), re.DOTALL | re.MULTILINE):
            examples += 1
            try:
                list(yaml.safe_load_all("\n".join(line.removeprefix(indent) for line in text.splitlines())))
            except yaml.YAMLError as error:
                wrong.append(f"{page}: {error}")
    assert examples > 50 and wrong == []


@pytest.mark.parametrize("name", [*tree.MODULES, *tree.ROLES, *[Path(name).name for name in tree.PLAYBOOKS]])
def test_reference_lists(name: str) -> None:
    assert re.search(rf"`{re.escape(name)}`", REFERENCE), f"docs/verbs.md does not list {name}"


@pytest.mark.parametrize("name", tree.INVENTORIES)
def test_inventory_is_explained(name: str) -> None:
    assert f"inventories/{name}" in DOCS


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", tree.read("Makefile"), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)[` ]", tree.read(page))}
    assert named - targets == set()


def typed() -> list[tuple[str, str]]:
    """Commands of ansible-playbook in console blocks, each with its page."""
    commands_typed = []
    for page in PAGES:
        for block in re.findall(r"^ *```(?:console|bash|sh)\n(.*?)^ *```", tree.read(page), re.DOTALL | re.MULTILINE):
            lines = block.replace("\\\n", " ").splitlines()
            commands_typed += [
                (page, line.strip().removeprefix("$ "))
                for line in lines
                if re.match(r" *(\$ )?ansible-playbook ", line)
            ]
    return commands_typed


def test_what_pages_type_is_there() -> None:
    """Playbooks, inventories, tags and variables of commands: none is misspelled or gone."""
    playbooks = {Path(name).stem for name in tree.PLAYBOOKS}
    variables = {*VARIABLES, *(key for keys in PLAYBOOKS.values() for key in keys)}
    variables |= {key for role in tree.ROLES for key in tree.load(f"roles/{role}/defaults/main.yml") or {}}
    wrong = []
    for page, line in (commands := typed()):
        words = shlex.split(line, comments=True)
        named = [re.fullmatch(r"dgxspark\.vllm\.(\w+)|(?:playbooks/)?(\w+)\.yml", word) for word in words]
        plays = [match[1] or match[2] for match in named if match]
        extra_vars = [after for word, after in pairwise(words) if word == "-e"]
        keys = [
            key
            for source in extra_vars
            if not source.startswith("@")
            for key in (yaml.safe_load(source) if source.startswith("{") else [source.partition("=")[0]])
        ]
        sources = [after for word, after in pairwise(words) if word == "-i" and after.startswith("inventories/")]
        tags = [tag for word, after in pairwise(words) if word == "--tags" for tag in after.split(",")]
        wrong += [f"{page}: no playbook {play}" for play in plays if play not in playbooks]
        wrong += [] if plays else [f"{page}: no playbook in: {line}"]
        wrong += [f"{page}: no variable {key}" for key in keys if key not in variables]
        wrong += [f"{page}: no inventory {source}" for source in sources if source not in (*OWN, *EXAMPLES)]
        wrong += [f"{page}: no tag {tag}" for tag in tags if tag not in tree.ROLES]
    assert len(commands) > 40 and wrong == []


WITHOUT_INVENTORY = re.compile(r"dgxspark\.vllm\.(discover|import)\b|-e explain_log=|--tags models")


def test_commands_of_the_first_pages_name_their_inventory() -> None:
    pages = {"README.md", *(f"docs/{name}.md" for name in ("quickstart", "tutorials", "verbs", "automation"))}
    lines = [line for page, line in typed() if page in pages and not WITHOUT_INVENTORY.search(line)]
    assert len(lines) > 40 and [line for line in lines if " -i " not in line] == []


def test_every_stage_and_scenario_has_a_line_that_says_what_it_shows() -> None:
    rows = set(re.findall(r"^\| `([\w-]+)` \| \S", tree.read("docs/testing.md"), re.MULTILINE))
    scenarios = {Path(name).parent.name for name in tree.tracked() if re.fullmatch(r"molecule/\w+/molecule.yml", name)}
    assert rows == set(suite.STAGES) | scenarios - {"default"}


def test_the_files_of_the_engine_are_listed() -> None:
    """Each with its package and subject; the architecture has the packages."""
    page = tree.read("plugins/module_utils/README.md")
    rows = re.findall(r"^\| (?:`(_\w+)` )?\|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    package, listed = "", []
    for name, cells in rows:
        package = name or package
        listed += [f"plugins/module_utils/{package}/{file}" for file in re.findall(r"`(\w+\.py)`", cells)]
    files = [name for name in tree.below("plugins/module_utils/_", suffix=".py") if not name.endswith("__init__.py")]
    assert sorted(listed) == sorted(files)
    packages = re.findall(r"^\| `(_\w+)` \| \w", tree.read("docs/architecture.md"), re.MULTILINE)
    assert packages == [name for name, _files in rows if name]
