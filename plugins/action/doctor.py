# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check hosts by plan, proof and their present state; documented in plugins/modules/doctor.py."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import SEVERITIES, Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, doctor, drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture, placement
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import start_times
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import (
    ReportAction,
    section_of,
    sections_apart,
    show,
)

TITLES = {
    "host": "the facts of the host",
    "images": "the images",
    "services": "the services",
    "engines": "what engines took of memory, and their kernels",
    "health": "logs, receipts, disks and clock",
    "looked": "services, engines, logs, receipts, disks and clock",
    "deployed": "what was deployed",
}
COVERED = ("drift.stopped", "drift.boot", "drift.not_deployed", "drift.unplanned", "drift.image_moved")
"""Rules of drift that repeat a finding of doctor about the same service."""


class ActionModule(ReportAction):
    """Report the findings of plan, proof and doctor; fail by the worst."""

    def act(self) -> dict[str, Any]:
        """Print findings with their fixes, the worst first."""
        args, plan, hostvars = self.args, self.args["plan"], self.hostvars()
        # Hosts that are no Sparks may have add-on services; the plan has their findings too.
        findings = [
            dict(finding)
            for finding in plan["findings"]
            if finding["host"] in hostvars or finding["host"] not in plan["hosts"]
        ]
        silent = 0
        for host, variables in hostvars.items():
            results = [variables.get(args[key]) or {} for key in ("asked_from", "looked_from")]
            silent += not results[0].get("reached")
            findings += _findings_of(host, plan["hosts"].get(host) or {}, results)
        findings += placement.findings(plan)
        ignored = {(host, rule) for host in hostvars for rule in hostvars[host].get("spark_ignore_rules") or []}
        findings = [finding for finding in findings if (finding["host"], finding["rule"]) not in ignored]
        findings.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))
        why = doctor.verdict(findings, args["fail_on"])
        counts = {severity: sum(finding["severity"] == severity for finding in findings) for severity in SEVERITIES}
        report = {
            "schema": 1,
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "healthy": not why,
            "reason": why,
            "counts": {"hosts": len(hostvars), "silent": silent, **counts},
            "findings": findings,
        }
        show(lambda colored: _text(report, colored))
        return self.conclude("doctor", report, "findings")


def _findings_of(host: str, planned: dict[str, Any], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the findings of one host; malformed answers are one."""
    try:
        findings: list[dict[str, Any]] = answers.judged(_judge_alone, host, planned, *results)
    except foreign_text.Untrusted as error:
        return [{"host": host, **doctor.not_asked(TITLES["health"], str(error)).to_dict()}]
    return findings


def _judge_alone(
    host: str, planned: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the findings of one host, after a test that they can be sorted and printed."""
    findings = [{"host": host, **finding} for finding in judge(planned, first, second)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))
    picture.findings_text(findings)
    return findings


def _missing_answers(sections: dict[str, Any], second: dict[str, Any]) -> list[Finding]:
    """Return the findings about sections without an answer. second: as in C(judge)."""
    failed = {name: str(answer.get("msg")) for name, answer in sections.items() if answer.get("failed")}
    missing = [doctor.not_asked(TITLES.get(name, name), why) for name, why in failed.items()]
    if second and not second.get("reached"):
        missing.insert(0, doctor.unreachable(second.get("why") or "it was lost"))
    return missing


def _silent_programs(health: dict[str, Any], spark: dict[str, Any]) -> list[Finding]:
    """Return the findings about programs of the host that did not answer."""
    programs = {**(health.get("unknown") or {}), **(spark.get("unknown") or {})}
    return [doctor.not_asked(program, why) for program, why in sorted(programs.items())]


def judge(planned: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of one host, apart from its plan.

    first: result of M(dgxspark.vllm.ask) with facts and images. second: with services, engines and health; empty if it was not asked.
    """
    if not first.get("reached"):
        return [doctor.unreachable(first.get("why") or "it was not asked").to_dict()]
    sections = sections_apart({**(first.get("answers") or {}), **(second.get("answers") or {})}, "host", "images")
    sections = sections_apart(sections, "looked", "services", "engines", "health")
    spark, health = section_of(sections, "host", "spark"), section_of(sections, "health", "health")
    silent = _silent_programs(health, spark)
    if spark.get("unknown"):
        spark = {}  # without all facts, nothing is known to be missing
    report = doctor.HostReport(
        planned=planned,
        facts=spark,
        health=health,
        answers={entry["name"]: entry for entry in section_of(sections, "services", "services") or []},
        images=section_of(sections, "images", "images"),
        times={key: second[key] for key in ("began", "ended") if second.get(key)},
    )
    findings = [
        *silent,
        *doctor.check(report),
        *start_times.of_host(planned.get("services") or [], health.get("starts")),
        *drifted(planned, spark, sections),
        *_token_findings(planned, spark),
    ]
    return [
        *(finding.to_dict() for finding in _missing_answers(sections, second)),
        *(section_of(sections, "engines", "engines").get("findings") or []),
        *(finding.to_dict() for finding in findings),
    ]


def drifted(planned: dict[str, Any], spark: dict[str, Any], sections: dict[str, Any]) -> list[Finding]:
    """Return the differences between a host and its deployed document that doctor does not report itself."""
    deployed, images = sections.get("deployed") or {}, sections.get("images") or {}
    if not spark or not deployed or deployed.get("failed") or deployed.get("unanswered"):
        return []
    known_images = None if images.get("failed") else images.get("images") or {}
    host = drift.Host(planned, {}, True, spark, known_images, deployed)
    return [finding for finding in drift.check(host) if finding.rule not in COVERED or not finding.service]


def _token_findings(planned: dict[str, Any], spark: dict[str, Any]) -> list[Finding]:
    path, models = str((planned.get("settings") or {}).get("hf_token_file") or ""), set(spark.get("models") or [])
    fetches = any(model.get("repo") and model["repo"] not in models for model in planned.get("models") or [])
    try:
        content = Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        content = ""
    return doctor.token(path, content, fetches)


def _text(report: dict[str, Any], colored: bool) -> str:
    """Return the report for people."""
    counts = report["counts"]
    parts = [f"{counts[key]} {key}{'s'[: counts[key] != 1]}" for key in ("error", "warning") if counts[key]]
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    hosts = f"{counts['hosts']} host{'s'[: counts['hosts'] != 1]}"
    head = f"{hosts}{silent}: {', '.join(parts) or 'no errors, no warnings'}."
    return "\n".join([picture.findings_text(report["findings"], colored), "", head]) if report["findings"] else head
