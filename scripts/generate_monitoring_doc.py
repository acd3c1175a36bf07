#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the alerts of docs/monitoring.md from the alert rules, and the metrics of the role exporters' README.md from the collector.

Run with PYTHONPATH=collections; --check only compares.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import jinja2
import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import monitoring
from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import figures

PAGES = {"alerts": ROOT / "docs/monitoring.md", "metrics": ROOT / "roles/exporters/README.md"}
RULES = ROOT / "roles/monitoring/templates/rules.yml.j2"


def rules(thresholds: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the rules of Prometheus as the role renders them."""
    defaults = {name: key.default for name, key in monitoring.THRESHOLDS.items()}
    environment = jinja2.Environment(
        variable_start_string="[[", variable_end_string="]]", undefined=jinja2.StrictUndefined
    )
    text = environment.from_string(RULES.read_text(encoding="utf-8")).render(
        monitoring_thresholds={**defaults, **(thresholds or {})}
    )
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def annotation(text: str) -> str:
    """Return the Markdown of an annotation, with the names of its labels as code."""
    return re.sub(r"\{\{\s*\$(?:labels\.)?(\w+)[^}]*\}\}", r"`\1`", " ".join(text.split()))


def alert_lines() -> list[str]:
    """Return the lines about each alert, below its heading, which the message links to."""
    lines = []
    for rule in (rule for group in rules()["groups"] for rule in group["rules"] if "alert" in rule):
        notes, wait = rule["annotations"], f" after {rule['for']}" if "for" in rule else ""
        severity = f"**{rule['labels']['severity']}{wait}**"
        for line in (
            f"### {rule['alert']}",
            f"{severity}: {annotation(notes['description'])}",
            f"**Fix**: {annotation(notes['fix'])}",
        ):
            lines += [line, ""]
    return lines


def metric_lines() -> list[str]:
    """Return the table of the collector's metrics."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, meaning, labels) in figures.METRICS.items():
        lines.append(f"| `{name}` | {kind} | {', '.join(labels)} | {meaning} |")
    return lines


def page(name: str, lines: list[str]) -> str:
    """Return a page with its generated part replaced; SystemExit if a mark of that part is missing."""
    text = PAGES[name].read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: written by scripts/generate_monitoring_doc.py -->", f"<!-- /{name} -->"
    before, _mark, remainder = text.partition(begin)
    if end not in remainder:
        raise SystemExit(f"{PAGES[name].relative_to(ROOT)} needs the marks {begin} and {end}")
    return before + begin + "\n\n" + "\n".join(lines).strip("\n") + "\n\n" + end + remainder.partition(end)[2]


def main() -> int:
    """Write the pages, or compare them; returns the exit code."""
    lines = {"alerts": alert_lines(), "metrics": metric_lines()}
    return write_generated({PAGES[name]: page(name, lines[name]) for name in PAGES})


if __name__ == "__main__":
    sys.exit(main())
