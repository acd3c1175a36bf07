#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of docs/monitoring.md from the alert rules and the collector's metrics.

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

PAGE = ROOT / "docs/monitoring.md"
RULES = ROOT / "roles/monitoring/templates/rules.yml.j2"


def rules(thresholds: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the rules of Prometheus as the role renders them.

    :param thresholds: values that replace the defaults of monitoring.THRESHOLDS, by name
    """
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


def tables() -> dict[str, list[str]]:
    """Return the lines of each generated part of the page, by the part's name."""
    metric_lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, meaning, labels) in figures.METRICS.items():
        metric_lines.append(f"| `{name}` | {kind} | {', '.join(labels)} | {meaning} |")
    alert_lines, runbook = ["| alert | severity | when |", "|---|---|---|"], []
    for rule in (rule for group in rules()["groups"] for rule in group["rules"] if "alert" in rule):
        name, severity, notes = rule["alert"], rule["labels"]["severity"], rule["annotations"]
        wait = f", for {rule['for']}" if "for" in rule else ""
        alert_lines.append(f"| [{name}](#{name.lower()}) | {severity} | {annotation(notes['summary'])} |")
        runbook += [f"### {name}", "", f"{annotation(notes['description'])} ({severity}{wait})", ""]
        runbook += ["```text", " ".join(rule["expr"].split()), "```", "", annotation(notes["fix"]), ""]
    return {"metrics": metric_lines, "alerts": alert_lines, "runbook": runbook}


def page(text: str) -> str:
    """Return the page with its generated parts replaced.

    :param text: the present page; SystemExit if a mark of a generated part is missing
    """
    for name, lines in tables().items():
        begin, end = f"<!-- {name}: written by scripts/generate_monitoring_doc.py -->", f"<!-- /{name} -->"
        before, _mark, remainder = text.partition(begin)
        if end not in remainder:
            raise SystemExit(f"{PAGE.name} lacks the marks {begin} and {end}")
        text = before + begin + "\n\n" + "\n".join(lines).strip("\n") + "\n\n" + end + remainder.partition(end)[2]
    return text


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    return write_generated({PAGE: page(PAGE.read_text(encoding="utf-8"))})


if __name__ == "__main__":
    sys.exit(main())
