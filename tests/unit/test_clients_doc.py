"""docs/clients.md has the keys of spark_clients as the engine has them; each finding about clients is fired by a test."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.register_texts import ENTRIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
TESTS = (ROOT / "tests/unit/plugins/module_utils/_addons/test_clients.py").read_text(encoding="utf-8")


def test_each_finding_is_fired_by_a_test() -> None:
    own = [entry.rule for entry in ENTRIES.values() if entry.page.startswith("clients.md")]
    assert len(own) > 8
    assert [rule for rule in own if rule not in TESTS] == []
