"""docs/fabric.md names every check of the fabric, with its severity, and each of them has a test that fires it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = (ROOT / "plugins/module_utils/fabric.py").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/fabric.md").read_text(encoding="utf-8")
TESTS = (ROOT / "tests/unit/plugins/module_utils/test_fabric.py").read_text(encoding="utf-8")

RULES = dict(re.findall(r'(?:add\(|Finding\()\s*"(?:fabric\.)?([a-z_]+)",\s*"(error|warning|info)"', ENGINE))


def test_all_are_found() -> None:
    assert len(RULES) > 25 and {"same_subnet", "ping_mtu", "shared_file", "no_connectx"} <= set(RULES)


def test_the_page_has_each_with_its_severity() -> None:
    rows = re.findall(r"^\| (`fabric\.[^|]+) \| (\w+) \|", PAGE, re.MULTILINE)
    documented = {rule: severity for names, severity in rows for rule in re.findall(r"`fabric\.(\w+)`", names)}
    assert documented == RULES


def test_each_is_fired_by_a_test() -> None:
    assert sorted(rule for rule in RULES if f"fabric.{rule}" not in TESTS) == []
