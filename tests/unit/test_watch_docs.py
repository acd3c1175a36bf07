# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of notifiers in docs/fleet_monitor.md says what the engine takes."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import fleet_monitor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fleet_monitor.md"


def test_notifiers() -> None:
    rows = [
        f"| `{kind}` | `{key}` | {'required; ' if required else ''}{meaning} |"
        for kind, table in fleet_monitor.NOTIFIERS.items()
        for key, (_types, required, meaning) in table.items()
    ]
    table = ["| notifier | key | meaning |", "|---|---|---|", *rows]
    assert "\n".join(table) in PAGE.read_text(encoding="utf-8")
