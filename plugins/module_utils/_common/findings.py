# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings: statements about a deployment, in one structure for all packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SEVERITIES = ("error", "warning", "info")
"""The worst first."""


@dataclass(frozen=True)
class Finding:
    """A statement that a person should know before a start.

    rule: stable id, for example C(SPK101) or C(memory.free_at_start); one of docs/findings.yml, or of a rule about launches.
    severity: C(error) fails or gives wrong output, C(warning) costs speed or is fragile, C(info) is the rest.
    service: name of the service that it is about, empty for the whole host.
    message: problem, place and reason, in one or two sentences.
    fix: the change to make, with the value if it is known.
    vllm_error: the error that vLLM itself would print.
    source: of the knowledge, such as a package or a report.
    basis: of the statement: C(inventory), C(measured) or C(probed).
    stage: how far vLLM would come before it prints that: C(arguments), C(device), C(load), C(profile), C(kv_cache), C(graphs).
    seconds: into the start at which it would print it, C(low), C(typical) and C(high); an estimate.
    details: a line for few readers: shown by -v, in JSON and, folded, on the page of the plan.
    consequence_of: the rule of the error that has the same cause and the fix for both; shown by -v, in JSON and, folded, on the page.
    changes: the first advice of C(fix), for machines: C({service, args}); C(null) removes an argument.
    """

    rule: str
    severity: str
    message: str
    fix: str = ""
    service: str = ""
    vllm_error: str = ""
    source: str = ""
    basis: str = "inventory"
    stage: str = ""
    details: str = ""
    consequence_of: str = ""
    seconds: dict[str, int] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity of {self.rule} is {self.severity!r}, expected one of {', '.join(SEVERITIES)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a plain dict without empty fields."""
        return {key: value for key, value in asdict(self).items() if value or key == "service"}


def to_sentence(text: str) -> str:
    """Return C(text) with a capital first letter and a full stop, as the fix of a finding."""
    return f"{text[0].upper()}{text[1:]}."


def list_causes(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the errors among findings (plain dicts) that are not the consequence of another."""
    return [dict(item) for item in findings if item["severity"] == "error" and not item.get("consequence_of")]


def has_errors(findings: list[dict[str, Any]]) -> bool:
    """Tell whether any of C(findings) (plain dicts) is an error."""
    return any(finding["severity"] == "error" for finding in findings)
