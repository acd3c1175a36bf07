"""docs/troubleshooting.md: every rule, finding, alert, playbook and column that it names is there; every row says what happens."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import tables
from ansible_collections.dgxspark.vllm.plugins.module_utils.compat import RULES
from ansible_collections.dgxspark.vllm.plugins.module_utils.endpoint import STAGES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SPANS = re.findall(r"`([^`\n]+)`", PAGE)
ALERTS = set(
    re.findall(r"- alert: (\w+)", (ROOT / "roles/monitoring/templates/rules.yml.j2").read_text(encoding="utf-8"))
)
PLAYBOOKS = {path.name for path in (ROOT / "playbooks").glob("*.yml")}
# Keys of an inventory that look like findings; the page names them as what to write.
KEYS = {"image.vllm_version", "model.path", "model.revision"}
KINDS = ("Prevented", "Warned", "Found", "Explained", "Not covered")


def rules_of(source: str) -> set[str]:
    """Return the ids that a file of the engine can give a finding, those that are put together included."""
    tree = ast.parse(source)
    words = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value
    }
    found = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "rule"]
        for rule in [*call.args[:1], *named]:
            if isinstance(rule, ast.Constant) and re.fullmatch(r"[a-z_]+\.[a-z_]+", str(rule.value)):
                found.add(str(rule.value))
            elif isinstance(rule, ast.JoinedStr) and len(rule.values) == 2:
                first, last = rule.values
                if isinstance(first, ast.Constant) and re.fullmatch(r"[a-z_]+\.", str(first.value)):
                    found |= {str(first.value) + word for word in words if re.fullmatch(r"[a-z_]+", word)}
                elif isinstance(last, ast.Constant) and re.fullmatch(r"\.[a-z_]+", str(last.value)):
                    found |= {subject + str(last.value) for subject in ("speech", "ollama")}
    return found


FINDINGS = set().union(
    *(
        rules_of(path.read_text(encoding="utf-8"))
        for room in ("module_utils", "action")
        for path in (ROOT / "plugins" / room).glob("*.py")
    )
)
SUBJECTS = {finding.partition(".")[0] for finding in FINDINGS}
NAMED = {span for span in SPANS if re.fullmatch(r"[a-z_]+\.[a-z_]+", span) and span.partition(".")[0] in SUBJECTS}
SYMPTOMS = PAGE[PAGE.index("\n### Before the start") : PAGE.index("\n### Where the reports are wrong")]
ROWS = [re.split(r" \| ", line.strip("| ")) for line in SYMPTOMS.splitlines() if re.match(r"\| (?!what you see)", line)]


def test_findings_exist() -> None:
    assert {"memory.free_at_restart", "fabric.ping_mtu", "gateway.same_key", "host.gpu"} <= FINDINGS
    assert "memory.no_such_rule" not in FINDINGS
    assert len(NAMED) > 80
    assert sorted(NAMED - FINDINGS - KEYS - PLAYBOOKS) == []


def test_memory_findings_are_all_there() -> None:
    """They are the ones that people meet; those that are put together have their name beside the message."""
    engine = (ROOT / "plugins/module_utils/budget.py").read_text(encoding="utf-8")
    rules = set(re.findall(r'rule="(memory\.\w+)"', engine))
    assert len(rules) > 8
    assert sorted(rules - NAMED) == []


def test_rules_exist_and_lead_to_their_text() -> None:
    ids = {rule.id for rule in RULES}
    named = set(re.findall(r"\bSPK\w\d\d\b", PAGE))
    assert len(named) > 90
    assert sorted(named - ids) == []
    links = re.findall(r"\[(SPK\w+)\]\(rules\.md#(\w+)\)", PAGE)
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
    named = set(re.findall(r"ansible-playbook dgxspark\.vllm\.(\w+)", PAGE))
    assert named and sorted(f"{name}.yml" for name in named if f"{name}.yml" not in PLAYBOOKS) == []


def test_columns_and_stages_exist() -> None:
    row: dict[str, Any] = {
        **dict.fromkeys(("host", "service", "model", "unit", "stage", "status", "error", "cluster"), ""),
        **dict.fromkeys(
            ("ready", "rank", "kv_cache_usage", "requests_running", "requests_waiting", "residency_gib"), 1
        ),
        **dict.fromkeys(("planned_gib", "uptime_seconds", "restarts", "decode_tokens_per_second", "decode_ratio"), 1),
        "fast_path": "ok",
    }
    head = re.split(r" {2,}", tables.status_text([row]).splitlines()[0])
    named = set(re.findall(r"column `([^`]+)`", PAGE))
    assert len(named) == 3
    assert sorted(named - set(head)) == []
    assert sorted(set(re.findall(r"stage `(\w+)`", PAGE)) - set(STAGES)) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_symptom_says_what_happens(row: list[str]) -> None:
    assert len(row) == 3
    kind = re.match(r"\*\*([^*]+)\*\*", row[2])
    assert kind and kind[1] in KINDS
    named = re.findall(r"\bSPK\w\d\d\b|\bSpark[A-Z]\w+|`[a-z_]+\.[a-z_]+`|stage `|column `|\]\(", row[2])
    if kind[1] in ("Warned", "Found"):
        assert named, "names no rule, finding, alert, column, playbook or page that tells it"
    if kind[1] == "Not covered":
        assert len(row[2]) > 80, "says nothing of what to do by hand"


def test_the_legend_and_the_rows_have_the_same_kinds() -> None:
    assert len(ROWS) > 90
    used = {re.match(r"\*\*([^*]+)\*\*", row[2])[1] for row in ROWS}  # type: ignore[index]
    legend = set(re.findall(r"^\| \*\*([^*]+)\*\* \|", PAGE, re.MULTILINE))
    assert used == legend == set(KINDS)
