# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/watchdog.md and docs/fleet_monitor.md say what the engine takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import fleet_monitor, watchdog

DOCS = Path(__file__).resolve().parents[2] / "docs"


def shown(default: Any) -> str:
    if default is None:
        return ""
    text = {True: "true", False: "false"}[default] if isinstance(default, bool) else str(default)
    return f"`{int(default)}`" if isinstance(default, float) and default == int(default) else f"`{text}`"


def keys(table: dict[str, tuple[Any, Any, str]]) -> list[str]:
    rows = [f"| `{key}` | {shown(default)} | {meaning} |" for key, (_types, default, meaning) in table.items()]
    return ["| key | default | meaning |", "|---|---|---|", *rows]


def notifiers() -> list[str]:
    rows = [
        f"| `{kind}` | `{key}` | {'must be there; ' if required else ''}{meaning} |"
        for kind, table in fleet_monitor.NOTIFIERS.items()
        for key, (_types, required, meaning) in table.items()
    ]
    return ["| notifier | key | meaning |", "|---|---|---|", *rows]


@pytest.mark.parametrize(
    ("page", "table"),
    [
        ("watchdog", keys(watchdog.KEYS)),
        ("fleet_monitor", keys(fleet_monitor.KEYS)),
        ("fleet_monitor", notifiers()),
    ],
)
def test_table(page: str, table: list[str]) -> None:
    assert "\n".join(table) in (DOCS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", ["unreachable", "nothing", "notify", "plain", "unknown", "own_host"])
def test_findings_are_listed(rule: str) -> None:
    assert f"`fleet_monitor.{rule}`" in (DOCS / "fleet_monitor.md").read_text(encoding="utf-8")
