"""docs/claims.md: every claim has an answer, every rule a claim, and every name is one."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|") and "---" not in line]
CLAIMS = [row for row in ROWS if row[-1].strip() != "rules"]
NAME = re.compile(r"SPK\w\d\d")


def test_every_claim_has_an_answer() -> None:
    assert len(CLAIMS) > 75
    assert [row for row in CLAIMS if not NAME.search(row[-1]) and row[-1].strip() != "-"] == []
    assert [row for row in CLAIMS if len(row) != 3 or not row[1].strip()] == [], "a claim without a result"


def test_every_name_is_a_rule_and_every_rule_is_named() -> None:
    named = {name for row in CLAIMS for name in NAME.findall(row[-1])}
    # Reported failures come from reports, not from claims.
    assert named - {rule.id for rule in RULES} == set()
    assert {rule.id for rule in RULES if rule.id[3] != "K"} - named == set()
