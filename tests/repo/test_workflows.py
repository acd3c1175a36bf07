"""Workflows, forms and settings of GitHub fit GitHub's schemas and name existing files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import suite
import tree

WORKFLOWS = tree.below(".github/workflows/", suffix=".yml")
FORMS = [name for name in tree.below(".github/ISSUE_TEMPLATE/", suffix=".yml") if not name.endswith("/config.yml")]
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [".github/dependabot.yml"],
}


def check(schema: str, *files: str | Path) -> subprocess.CompletedProcess[str]:
    """What check-jsonschema says of files, by a schema that it has with it."""
    argv = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", schema, *files]
    return subprocess.run(argv, cwd=tree.ROOT, text=True, capture_output=True, check=False)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_it_is_as_github_reads_it(schema: str) -> None:
    assert SCHEMAS[schema]
    done = check(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout


def test_the_schema_refuses_what_github_would(tmp_path: Path) -> None:
    wrong = tmp_path / "form.yml"
    wrong.write_text(tree.read(FORMS[0]).replace("type: textarea", "type: textfield"), encoding="utf-8")
    assert check("vendor.github-issue-forms", wrong).returncode == 1


def steps(name: str) -> list[dict[str, Any]]:
    """All steps of a workflow."""
    return [step for job in tree.load(name)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_action_is_a_commit(name: str) -> None:
    """A tag of somebody else's repository moves; the comment says which release it is, for people and Dependabot."""
    uses = re.findall(r"uses: (.*)$", tree.read(name), re.MULTILINE)
    assert uses and len(uses) == len([step for step in steps(name) if "uses" in step])
    assert [use for use in uses if not re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_what_it_has_to(name: str) -> None:
    """Rights are listed, every job ends by itself, and nothing that somebody types becomes a part of a script."""
    workflow = tree.load(name)
    assert isinstance(workflow["permissions"], dict) and "write-all" not in tree.read(name)
    assert [job for job, settings in workflow["jobs"].items() if "timeout-minutes" not in settings] == []
    scripts = [step["run"] for step in steps(name) if "run" in step]
    assert [text for text in scripts if re.search(r"\$\{\{ *(inputs|github\.(event|head_ref))", text)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_types_what_there_is(name: str) -> None:
    text = "\n".join(step.get("run", "") for step in steps(name))
    targets = set(re.findall(r"^([a-z-]+)(?: [a-z -]+)?:", tree.read("Makefile"), re.MULTILINE))
    targets |= set(tree.read("Makefile").partition(".PHONY: ")[2].partition("\n")[0].split())
    typed_targets = {word for line in re.findall(r"\bmake ([a-z -]+)", text) for word in line.split()}
    assert typed_targets - targets == set()
    assert [path for path in re.findall(r"scripts/[\w.]+", text) if not (tree.ROOT / path).exists()] == []


def test_every_core_runs_on_every_python_that_it_has() -> None:
    """The matrix is what the sanity stage knows, on both architectures."""
    matrix = tree.load(".github/workflows/ci.yml")["jobs"]["core"]["strategy"]["matrix"]
    left_out = {(row["core"], row["python"]) for row in matrix["exclude"]}
    combinations = {(core, python) for core in matrix["core"] for python in matrix["python"]} - left_out
    assert combinations == {(core, python) for core, (_release, pythons) in suite.CORES.items() for python in pythons}
    assert {runner.endswith("-arm") for runner in matrix["runner"]} == {True, False}


def test_each_core_is_tried_on_each_python_or_says_why_not() -> None:
    (wrong,) = suite.core(False, "2.19", "3.14")
    assert not wrong.ok and "3.13, 3.12, 3.11" in wrong.output


def test_dependabot_reads_what_is_there() -> None:
    for update in tree.load(".github/dependabot.yml")["updates"]:
        if update["package-ecosystem"] == "pip":
            folders = update.get("directories") or [update["directory"]]
            assert [
                folder for folder in folders if not list((tree.ROOT / folder.strip("/")).glob("requirements*.txt"))
            ] == []


@pytest.mark.parametrize("name", [".github/ISSUE_TEMPLATE/bug.yml", ".github/pull_request_template.md"])
def test_a_bundle_is_asked_for(name: str) -> None:
    assert "HOST.tar.gz" in tree.read(name)
    assert "support_bundle" in tree.read(name)


@pytest.mark.parametrize("name", tree.below(".github/ISSUE_TEMPLATE/", suffix=".yml"))
def test_playbooks_and_pages_of_forms_exist(name: str) -> None:
    text = tree.read(name)
    assert [
        entry for entry in re.findall(r"dgxspark\.vllm\.(\w+)`", text) if f"playbooks/{entry}.yml" not in tree.PLAYBOOKS
    ] == []
    assert [entry for entry in re.findall(r"blob/main/([\w/.-]+\.md)", text) if not tree.read(entry)] == []


def test_scripts_of_workflows_are_read_by_shellcheck(tmp_path: Path) -> None:
    paths = suite.workflow_scripts(tmp_path / "scripts")
    runs = [step for name in WORKFLOWS for step in steps(name) if "run" in step]
    assert len(paths) == len(runs) > 10
    texts = [Path(path).read_text(encoding="utf-8") for path in paths]
    assert all(text.startswith("#!/bin/bash\n") and "${{" not in text for text in texts)
    assert any("export VERSION=\n" in text for text in texts)


def test_shell_scripts_are_found_by_their_first_line() -> None:
    files = suite.shell_files()
    assert {".ci/run", "scripts/bootstrap", "roles/host/files/with-secrets"} <= set(files)
    assert not [name for name in files if name.endswith((".py", ".j2"))]
