# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The speed of a service in its proof: measured, judged, and kept in the receipt. C(speed_probe.py) makes the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from .._common.findings import Finding
from .._speed import judge
from .._speed.judge import Expected, Measured, Signs, Verdict
from . import fast_path

TOKEN_APIS = ("chat", "completions")


def signs_of(runs: fast_path.Running, checks: Mapping[str, fast_path.Check]) -> Signs:
    """Return what the start-up lines of an engine say about its speed."""
    kernels = [name for name in fast_path.KERNELS if name in checks and checks[name].verdict == "off"]
    emulated = [name for name in runs.slow if name == "emulation"]
    return Signs(eager=runs.graphs == "NONE", kernels=tuple(kernels + emulated))


def prove(
    name: str,
    expected: Expected,
    measure: Callable[[], Measured],
    previous: Mapping[str, Any] | None,
    signs: Signs,
    not_judged: str = "",
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Measure a service and judge the result; a bad one is measured again, and the better figures count.

    :param previous: the record in the receipt of the same deployment, None for none
    :param not_judged: why rates of this host mean nothing, or an empty text
    :returns: the record for the receipt, None if nothing was measured and the receipt has an earlier record, and findings
    """
    first = _first_of(previous)
    earlier = Measured.from_receipt(first["measured"]) if first else None
    earlier_verdict = str(first.get("verdict")) if first else "fine"

    def verdict_on(measured: Measured) -> Verdict:
        if not_judged:
            return Verdict("unknown", not_judged)
        return judge.judge(expected, measured, earlier, earlier_verdict, signs)

    measured = measure()
    verdict = verdict_on(measured)
    if verdict.verdict in ("slow", "wrong"):
        measured = measured.best_of(measure())
        verdict = verdict_on(measured)
    is_measured = any(getattr(measured, figure) for figure in judge.FIGURES)
    if not is_measured:
        if previous:
            return None, []
        verdict = Verdict("unknown", measured.missing or "no figure could be measured")
    findings = judge.findings(name, verdict, measured, expected)
    figures = {key: value for key, value in asdict(measured).items() if value}
    record = {
        "measured": figures,
        "expected": {figure: getattr(expected, figure) for figure in judge.FIGURES if getattr(expected, figure)},
        **verdict.to_dict(),
        "line": judge.describe(verdict, measured.streams, expected.drafted),
        "findings": [finding.to_dict() for finding in findings],
        "first": _first_after(first, verdict, figures if is_measured else {}),
    }
    return record, findings


def _first_after(
    first: Mapping[str, Any] | None, verdict: Verdict, figures: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the first measurement that the receipt keeps. figures: of the present one, empty if nothing was measured."""
    # A good measurement replaces a measurement that was made while something was wrong.
    if first is not None and not (verdict.verdict == "fine" and first.get("verdict") in ("slow", "wrong")):
        return first
    return {"measured": figures, "verdict": verdict.verdict} if figures and not verdict.refused else None


def _first_of(previous: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the first measurement that a receipt keeps, None without a usable one."""
    first = (previous or {}).get("first")
    return first if isinstance(first, Mapping) and isinstance(first.get("measured"), Mapping) else None


def finding_of(record: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return message and fix of the finding that a receipt keeps about a slow service, None without one."""
    findings = (record or {}).get("findings")
    for finding in findings if isinstance(findings, list) else []:
        if isinstance(finding, Mapping) and finding.get("severity") == "warning":
            return {key: str(finding.get(key) or "") for key in ("message", "fix")}
    return None
