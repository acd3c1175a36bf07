"""docs/rules.md agrees with the rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tree

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES

PAGE = "docs/rules.md"


def test_page_is_what_its_generator_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts/generate_docs.py"), "rules", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_page_of_reported_failures_is_what_its_generator_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts/generate_docs.py"), "failures", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_has_its_heading(rule: Any) -> None:
    page = "docs/known_failures.md" if rule.id[3] == "K" else PAGE
    assert tree.read(page).count(f"\n### {rule.id}\n") == 1
