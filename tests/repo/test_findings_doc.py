"""The pages list the findings of docs/findings.yml, and name no others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tree
from registered_findings import ENTRIES, REGISTER

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import SERVICE

PAGES = [name for name in tree.tracked() if name.endswith(".md") and name != "CHANGELOG.md"]
SUBJECTS = {rule.partition(".")[0] for rule in REGISTER}
KEYS = {f"{name}.{under}" for name, key in SERVICE.items() if isinstance(key.of, dict) for under in key.of} | {
    "model.source"
}
"""Keys of a service, and of a planned one, that look like findings."""
FILES = (".html", ".json", ".py", ".safetensors", ".yml")


def test_tables_are_what_their_generator_writes() -> None:
    run = subprocess.run(
        [sys.executable, str(tree.ROOT / "scripts/generate_docs.py"), "findings", "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tree.ROOT / "collections"), "PATH": str(Path(sys.executable).parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.rule)
def test_entry(entry: Any) -> None:
    assert entry.meaning and entry.fix
    assert not re.search(r"[|\n]", entry.meaning + entry.fix), "it would end the cell of its table"
    path, _hash, anchor = entry.page.partition("#")
    assert anchor
    assert f"\n| `{entry.rule}` {', '.join(entry.severities)} |" in tree.read(f"docs/{path}")


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_no_other_findings(page: str) -> None:
    named = {span for span in re.findall(r"`([a-z_]+\.[a-z0-9_]+)`", tree.read(page)) if not span.endswith(FILES)}
    assert sorted(span for span in named - set(REGISTER) - KEYS if span.partition(".")[0] in SUBJECTS) == []
