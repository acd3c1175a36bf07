# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of a host whose answers are bad by the quality questions of the watchdog: from its state file, and as a fix for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATE = "/var/lib/dgxspark/watchdog/quality.json"
BAD = ("doubtful", "degenerate")
"""Of C(STATES) in C(_runtime/quality.py), which hosts need not compile for a report."""
MOST = 400
"""Characters of one text."""
RESTART = (
    "systemctl restart {unit} clears it, for hours in one report; evidence: {evidence}. If it returns, use another image, or start without "
    "speculative-config or with enable-prefix-caching: false"
)
"""For a launch that no row of the known failures describes (eugr/spark-vllm-docker#356)."""


def account(state: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return C(state), C(text), C(evidence), C(cures) and C(drained) of doubtful and degenerate servers by name. state: the content of the file."""
    listed = (state or {}).get("services")
    notes = (
        {name: note for name, note in listed.items() if isinstance(note, Mapping)}
        if isinstance(listed, Mapping)
        else {}
    )
    return {
        str(name): {
            "state": note["state"],
            **{key: " ".join(str(note.get(key) or "").split())[:MOST] for key in ("text", "evidence")},
            "cures": [str(cure)[:MOST] for cure in note["cures"]] if isinstance(note.get("cures"), list) else [],
            "drained": bool(note.get("drained")),
        }
        for name, note in sorted(notes.items())
        if note.get("state") in BAD
    }


def fix(note: Mapping[str, Any], unit: str) -> str:
    """Return the advice for a degenerate server. note: of C(account); unit: of the server."""
    restart = RESTART.format(unit=unit, evidence=note["evidence"] or "none")
    return " ".join([*note["cures"], f"{restart}."])
