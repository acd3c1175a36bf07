"""docs/clients.md has the keys of spark_clients as the engine has them, and each of its findings, which a test fires."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import clients, recipes

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "plugins/module_utils/clients.py").read_text(encoding="utf-8")
TESTS = (ROOT / "tests/unit/plugins/module_utils/test_clients.py").read_text(encoding="utf-8")
RULES = dict(re.findall(r'Finding\(\s*"clients\.([a-z_]+)",\s*"(error|warning|info)"', ENGINE))


def rows(keys: dict[str, tuple[type | tuple[type, ...], object, str]]) -> str:
    """Return the table of a client's keys as the page has it."""
    lines = []
    for key, (types, default, meaning) in keys.items():
        kind = recipes.kind((types[0] if isinstance(types, tuple) else types)()).split()[-1]
        shown = (
            ""
            if default in (None, "", [], {})
            else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        )
        lines.append(f"| `{key}` | {kind} | {shown} | {meaning} |")
    return "\n".join(lines)


@pytest.mark.parametrize("keys", [clients.OPEN_WEBUI_KEYS, clients.HERMES_KEYS], ids=["open_webui", "hermes"])
def test_the_page_has_each_key(keys: dict[str, tuple[type | tuple[type, ...], object, str]]) -> None:
    assert rows(keys) in PAGE


def test_the_page_has_each_finding_with_its_severity() -> None:
    assert len(RULES) > 8
    assert dict(re.findall(r"^\| `clients\.([a-z_]+)` \| (\w+) \|", PAGE, re.MULTILINE)) == RULES


def test_each_finding_is_fired_by_a_test() -> None:
    assert sorted(rule for rule in RULES if f"clients.{rule}" not in TESTS) == []
