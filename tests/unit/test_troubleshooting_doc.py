"""docs/troubleshooting.md: every rule, alert, playbook and column that it names exists; every symptom has steps.

Findings are the business of tests/repo/test_findings_doc.py.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import status_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.endpoint import STAGES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SPANS = re.findall(r"`([^`\n]+)`", PAGE)
ALERTS = set(
    re.findall(r"- alert: (\w+)", (ROOT / "roles/monitoring/templates/rules.yml.j2").read_text(encoding="utf-8"))
)
PLAYBOOKS = {path.name for path in (ROOT / "playbooks").glob("*.yml")}
SYMPTOMS = PAGE[PAGE.index("\n### Before the start") : PAGE.index("\n## Before anything is contacted")]
ROWS = [re.split(r" \| ", line.strip("| ")) for line in SYMPTOMS.splitlines() if re.match(r"\| (?!symptom)", line)]


def test_rules_exist_and_lead_to_their_text() -> None:
    ids = {rule.id for rule in RULES}
    named = set(re.findall(r"\bSPK\w\d\d\b", PAGE))
    assert len(named) > 90
    assert sorted(named - ids) == []
    links = re.findall(r"\[(SPK\w+)\]\((?:rules|known_failures)\.md#(\w+)\)", PAGE)
    assert {rule for rule, _anchor in links} == named
    assert [(rule, anchor) for rule, anchor in links if anchor != rule.lower()] == []


def test_alerts_exist() -> None:
    named = set(re.findall(r"\bSpark[A-Z][A-Za-z]+\b", PAGE))
    assert len(named) > 15
    assert sorted(named - ALERTS) == []


def test_playbooks_exist() -> None:
    named = {span for span in SPANS if re.fullmatch(r"[a-z_]+\.yml", span)}
    assert {"site.yml", "status.yml", "bench.yml"} <= named
    assert sorted(named - PLAYBOOKS) == []
    named = set(re.findall(r"ansible-playbook -i \S+ dgxspark\.vllm\.(\w+)", PAGE))
    assert named and sorted(f"{name}.yml" for name in named if f"{name}.yml" not in PLAYBOOKS) == []


def test_columns_and_stages_exist() -> None:
    blank: dict[str, Any] = {column.name: None for column in fields(status_rows.Row)}
    row = status_rows.Row(
        **{
            **blank,
            "host": "h",
            "service": "s",
            "unit": "active",
            "fast_path": "ok",
            "decode_tokens_per_second": 1,
            "restarts": 1,
        }
    )
    head = re.split(r" {2,}", status_rows.status_text([row]).splitlines()[0])
    named = set(re.findall(r"column `([^`]+)`", PAGE))
    assert len(named) == 3
    assert sorted(named - set(head)) == []
    assert sorted(set(re.findall(r"stage `(\w+)`", PAGE)) - set(STAGES)) == []


def test_the_page_begins_with_the_symptoms() -> None:
    assert re.search(r"^## .*", PAGE, re.MULTILINE)[0] == "## By what you see"  # type: ignore[index]
    assert len(ROWS) > 90


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_symptom_has_steps(row: list[str]) -> None:
    assert len(row) == 2
    named = re.findall(r"\bSPK\w\d\d\b|\bSpark[A-Z]\w+|`[^`]+`|\]\(", row[1])
    assert named or len(row[1]) > 60, "names no setting, command, rule, finding, alert or page, and no manual step"
