#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/known_failures.md from the reported failures and the signs of logs. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.host_log_signs import Sign
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.log_signs import SIGNS
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.known_failures import ROWS, SEVERITY

PAGE = ROOT / "docs" / "known_failures.md"
INTRODUCTION = """\
# Known failures

<!-- Written by scripts/generate_known_failures_doc.py from _vllm/known_failures.py, _proof/log_signs.py and _proof/host_log_signs.py. -->

Look up why a vLLM engine failed. `explain.yml` finds the cause in a log for you, also in the log of an engine that this collection did not start:

```sh
ansible-playbook -i localhost, dgxspark.vllm.explain -e explain_log=vllm.log    # docker logs NAME > vllm.log 2>&1
ansible-playbook -i ~/my-sparks dgxspark.vllm.explain -e services=heavy
```

It prints stage, error, cause, fix and source. Secrets are removed; of a long file it reads the first and the last MiB. A cause that is in neither
table is reported as unknown.

## Reported failures

Failures of the named or any vLLM version, of models or combinations of options. Where the plan checks for one, it reports the given severity and
skips launches that have the fix. Silence a row by its id with `ignore` or `spark_ignore_rules`.
"""


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    return write_generated({PAGE: page()})


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for row in ROWS:
        lines += section(row)
    lines += [
        "## Signs in logs",
        "",
        "Kinds of failures in the logs of every version, with the rules or findings that report them before a start. `explain.yml` prints the fix.",
        "",
    ]
    lines += ["| sign | cause |", "|---|---|"]
    lines += [sign_row(sign) for sign in SIGNS]
    return "\n".join(lines) + "\n"


def versions(row: Mapping[str, Any]) -> str:
    """Return the range of versions of a row in words; empty for any version."""
    first, before = row.get("first"), row.get("before")
    if first and before:
        return f"; vLLM {first} to before {before}"
    return f"; vLLM from {first}" if first else f"; vLLM before {before}" if before else ""


def section(row: Mapping[str, Any]) -> list[str]:
    """Return the part of the page about a row."""
    severity = row.get("severity", SEVERITY[row["verdict"]])
    plan = f"; plan: {severity}" if "when" in row else ""
    lines = [
        f"### {row['id']}",
        "",
        f"**{row['title']}** ({row['verdict']}{versions(row)}{plan}). {text(row['message'])}",
        f"*Fix:* {text(row['fix'])}",
    ]
    if row.get("symptom"):
        lines.append(f"*Log:* `{row['symptom']}`")
    return [*lines, f"*Source:* {row['source']}", ""]


def text(value: str) -> str:
    """Return a text of a row with its placeholder as the page shows it."""
    return value.replace("{version}", "`<version>`").replace("<function=", "`<function=`")


def sign_row(sign: Sign) -> str:
    """Return the line of a sign in its table."""
    cause = re.sub(r"(?:\{\w+\})+", "NAME", sign.cause).replace("|", "\\|")
    rules = re.sub(r"\bSPK[0-9HU]\d\d\b", lambda rule: f"[{rule[0]}](rules.md#{rule[0].lower()})", sign.rule)
    rules = re.sub(r"\bSPKK\d\d\b", lambda row: f"[{row[0]}](#{row[0].lower()})", rules)
    rules = re.sub(
        r"\b[a-z_]+\.[a-z_]+\b(?![)#])", lambda name: name[0] if name[0] == "rules.md" else f"`{name[0]}`", rules
    )
    return f"| `{sign.id}` | {cause}{f' ({rules})' if rules else ''} |"


if __name__ == "__main__":
    sys.exit(main())
