"""docs/fabric.md has what every check of the fabric says, and each of them has a test that fires it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.register import REGISTER

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "".join(
    (ROOT / f"plugins/module_utils/_cluster/{name}.py")
    .read_text(encoding="utf-8")
    .replace("from __future__ import annotations", "")
    for name in ("cabling", "fabric", "pings", "collective")
)
PAGE = (ROOT / "docs/fabric.md").read_text(encoding="utf-8")
TESTS = "".join(
    (ROOT / f"tests/unit/plugins/module_utils/_cluster/test_{name}.py").read_text(encoding="utf-8")
    for name in ("cabling", "fabric", "pings", "collective")
)

RULES = [name.removeprefix("fabric.") for name in REGISTER if name.startswith("fabric.")]


def test_each_is_fired_by_a_test() -> None:
    assert sorted(rule for rule in RULES if f"fabric.{rule}" not in TESTS) == []


def pieces(node: ast.expr) -> list[str]:
    """Return the parts of a message that are always the same."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
    return []


def test_the_page_has_what_each_says() -> None:
    """Word for word, but for what is filled in."""
    rows = dict(re.findall(r"^\| `fabric\.(\w+)` \| ([^|]{20,}) \|$", PAGE, re.MULTILINE))
    assert sorted(rows) == sorted(RULES)
    missing = []
    for call in ast.walk(ast.parse(ENGINE)):
        if isinstance(call, ast.Call) and len(call.args) > 2 and isinstance(call.args[0], ast.Constant):
            rule = str(call.args[0].value).removeprefix("fabric.")
            said = rows.get(rule, "").replace("`", "")
            words = [piece.strip(" :;.,()") for piece in pieces(call.args[2])]
            missing += [(rule, word) for word in words if len(word) > 12 and word not in said]
    assert missing == []
