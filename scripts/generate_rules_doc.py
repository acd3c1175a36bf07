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
SAID_BY_TITLE = re.findall(
    r"\w+",
    "303 401 402 403 404 406 417 502 505 507 508 509 519 601 604 610 611 612 613 701 702 703 710 801 "
    "802 803 806 809 810 814 815 818 823 825 831 901 908 909 912 H03 U12 U16 U19 U20",
)
"""Ids without C(SPK) of the rules whose message is their title with the values of the launch."""
INTRODUCTION = """\
# Rules

<!-- Written by scripts/generate_rules_doc.py from plugins/module_utils/_compat/rules_*.py. -->

There are {count} rules about launches of vLLM, and about the unit or docker command around them. Failures of single versions are on
[Known failures](known_failures.md).

- An **error** means that the launch fails or gives wrong output. A **warning** means lower speed or a fragile setup. An **info** is advice, also
  where sources disagree.
- Rules marked *version* need the vLLM version of the image. A rule that lacks a fact is skipped.
- Ids never change. Silence a rule by its id with `ignore` (of a service or of the module) or `spark_ignore_rules` (of a host).
- `-e spark_autofix=true` makes the plan apply fixes that have one clear meaning, such as a corrected spelling.
- Words in `<angle brackets>` are placeholders for the values of the launch. [`explain.yml`](troubleshooting.md) finds the cause of a text that
  vLLM printed.
- *Source* names reports; [Claims](claims.md) maps published claims to rules. The other rules come from vLLM's code for compute capability 12.1
  (0.10.1.1 to 0.33.0), the images, and the manuals of NVIDIA, Docker and systemd.

| ids | about |
|---|---|
"""


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    return write_generated({PAGE: page()})


def page() -> str:
    """Return the whole page."""
    families = {letter: title for letter, title in FAMILIES.items() if letter != REPORTED}
    rules = [rule for rule in RULES if rule.id[3] != REPORTED]
    text = INTRODUCTION.format(count=len(rules))
    for letter, title in families.items():
        text += f"| [{letter}xx](#{letter.lower()}xx-{anchor(title)}) | {title} |\n"
    for letter, title in families.items():
        text += f"\n## {letter}xx: {title}\n" + "".join(map(section, (rule for rule in rules if rule.id[3] == letter)))
    return text


def anchor(title: str) -> str:
    """Return the part of a heading's address that its title makes."""
    return re.sub(r"[^a-z0-9_-]", "", title.lower().replace(" ", "-"))


def section(rule: Rule) -> str:
    """Return one rule's part of the page."""
    marks = f"{rule.severity}, version" if rule.needs_version else rule.severity
    parts = [
        f"**{rule.title}** ({marks}). {'' if rule.id[3:] in SAID_BY_TITLE else filled(rule.about or rule.message)}".rstrip()
    ]
    if rule.fix != "{fix}":
        parts.append(f"*Fix:* {filled(rule.fix)}")
    sources = [name for name in rule.source.split("; ") if "/" in name]
    if sources:
        parts.append(f"*Source:* {'; '.join(sources)}")
    return f"\n### {rule.id}\n\n" + "\n".join(parts) + "\n"


def filled(text: str) -> str:
    """Return a text with its placeholders in angle brackets, and without the version that the finding names."""
    text = re.sub(r"(^|\. )vLLM \{version\}(?:\{span\})?", r"\1This vLLM", text.replace(" ({span})", ""))
    return PLACEHOLDER.sub(f"`{BRACKETS}`", re.sub(r"vLLM \{version\}(?:\{span\})?", "this vLLM", text))


if __name__ == "__main__":
    sys.exit(main())
