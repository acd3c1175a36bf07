#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/rules.md from the rules of the engine. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import re
import sys

from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.rulebook import FAMILIES, Rule

PAGE = ROOT / "docs" / "rules.md"
PLACEHOLDER = re.compile(r"\{(\w+)\}")
BRACKETS = r"<\1>"
REPORTED = "K"
"""The family of reported failures, which scripts/generate_known_failures_doc.py documents."""
SEVERITIES = {
    "error": "the launch fails or gives wrong output",
    "warning": "it costs speed or is fragile",
    "info": "worth knowing",
}


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    return write_generated({PAGE: page()})


def page() -> str:
    """Return the whole page."""
    lines = [
        "# Rules",
        "",
        "<!-- Written by scripts/generate_rules_doc.py from plugins/module_utils/_compat/rules_*.py. -->",
        "",
        "What `dgxspark.vllm.image_compat` and the plan can say about a vLLM launch, and `import.yml` and `adopt.yml` about the unit or",
        f"docker command around it: {sum(rule.id[3] != REPORTED for rule in RULES)} rules. Ids never change. A rule that lacks a fact keeps silent. Where the",
        "sources disagree, the rule says so and is an info. `ignore` (of a service, or of the module) and",
        "`spark_ignore_rules` (of a host) take ids that are not wanted. Words in `<angle brackets>` are filled in.",
        "",
        "Repairs that cannot change what was meant (a name spelled right, an option or variable without effect taken out,",
        "a name that was replaced) are in `fixed` of the result, each with the rule that asked for it;",
        "`-e spark_autofix=true` makes the plan use them. Which rule answers which claim about vLLM on DGX Spark:",
        "[claims.md](claims.md). Failures of single versions that users reported have pages of their own:",
        "[known_failures.md](known_failures.md).",
        "",
        "| family | about | rules |",
        "| --- | --- | --- |",
        *(
            f"| [{letter}xx](#{letter.lower()}xx-{anchor(title)}) | {title} | "
            f"{sum(rule.id[3] == letter for rule in RULES)} |"
            for letter, title in FAMILIES.items()
            if letter != REPORTED
        ),
        "",
        "| severity | meaning |",
        "| --- | --- |",
        *(f"| {name} | {meaning} |" for name, meaning in SEVERITIES.items()),
        "",
    ]
    for digit, title in FAMILIES.items():
        if digit == REPORTED:
            continue
        rules = [rule for rule in RULES if rule.id[3] == digit]
        lines += [f"## {digit}xx: {title}", "", "| id | severity | title |", "| --- | --- | --- |"]
        lines += [f"| [{rule.id}](#{rule.id.lower()}) | {rule.severity} | {rule.title} |" for rule in rules]
        lines.append("")
        for rule in rules:
            lines += section(rule)
    return "\n".join(lines).rstrip("\n") + "\n"


def anchor(title: str) -> str:
    """Return the part of a heading's address that its title makes."""
    return re.sub(r"[^a-z0-9_-]", "", title.lower().replace(" ", "-"))


def section(rule: Rule) -> list[str]:
    """Return one rule's part of the page."""
    lines = [
        f"### {rule.id}",
        "",
        f"**{rule.title}** ({rule.severity})",
        "",
        rule.about or filled(rule.message),
        "",
        f"- Fix: {filled(rule.fix)}",
    ]
    if rule.vllm_error and rule.vllm_error != "{error}":
        lines.append(f"- vLLM says: `{PLACEHOLDER.sub(BRACKETS, rule.vllm_error)}`")
    elif rule.vllm_error:
        lines.append("- vLLM says: its parser's own message, quoted in the finding")
    lines.append(f"- Source: {rule.source}")
    if rule.needs_version:
        lines.append("- Judged only where the version of vLLM is known.")
    return [*lines, ""]


def filled(text: str) -> str:
    """Show a rule's placeholders as such."""
    if text == "{fix}":
        return "what the finding says, as it depends on the value"
    return PLACEHOLDER.sub(f"`{BRACKETS}`", text)


if __name__ == "__main__":
    sys.exit(main())
