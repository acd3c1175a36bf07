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
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    answers,
    doctor,
    drift,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture, placement
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import start_times
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import section_of, sections_apart
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import conclude, show

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


class ActionModule(ControllerAction):
    """Report the findings of plan, proof and doctor; fail by the worst."""

    def act(self) -> dict[str, Any]:
        """Print findings with their fixes, the worst first."""
        args, variables = self.args, self.variables
        hosts = [str(host) for host in variables.get("ansible_play_hosts_all") or []]
        plan, hostvars = args["plan"], variables["hostvars"]
        # Hosts that are no Sparks may have add-on services; the plan has their findings too.
        findings = [
            dict(finding)
            for finding in plan["findings"]
            if finding["host"] in hosts or finding["host"] not in plan["hosts"]
        ]
        silent = 0
        for host in hosts:
            results = [hostvars[host].get(args[key]) or {} for key in ("asked_from", "looked_from")]
            silent += not results[0].get("reached")
            findings += _findings_of(host, plan["hosts"].get(host) or {}, results)
        findings += placement.findings(plan)
        ignored = {(host, rule) for host in hosts for rule in hostvars[host].get("spark_ignore_rules") or []}
        findings = [finding for finding in findings if (finding["host"], finding["rule"]) not in ignored]
        findings.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))
        report = report_of(findings, len(hosts), silent, args["fail_on"])
        show(lambda colored: _text(report, colored))
        return conclude("doctor", report, args, variables, "findings")


def report_of(findings: list[dict[str, Any]], hosts: int, silent: int, fail_on: str) -> dict[str, Any]:
    """Return the report. hosts, silent: numbers of all hosts, and of those without an answer."""
    why = doctor.verdict(findings, fail_on)
    counts = {severity: sum(finding["severity"] == severity for finding in findings) for severity in SEVERITIES}
    return {
        "schema": 1,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "healthy": not why,
        "reason": why,
        "counts": {"hosts": hosts, "silent": silent, **counts},
        "findings": findings,
    }


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
    """Return the findings of one host, after a test that they can be printed."""
    findings = [{"host": host, **finding} for finding in judge(planned, first, second)]
    for finding in findings:
        SEVERITIES.index(finding["severity"])
    picture.findings_text(findings)
    return findings


def judge(planned: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of one host, apart from its plan.

    first: result of M(dgxspark.vllm.ask) with facts and images. second: with services, engines and health; empty if it was not asked.
    """
    if not first.get("reached"):
        return [doctor.unreachable(first.get("why") or "it was not asked").to_dict()]
    sections = sections_apart({**(first.get("answers") or {}), **(second.get("answers") or {})}, "host", "images")
    sections = sections_apart(sections, "looked", "services", "engines", "health")
    spark, health = section_of(sections, "host", "spark"), section_of(sections, "health", "health")
    missing = _missing_answers(second, sections)
    silent = _silent_programs(spark, health)
    if spark.get("unknown"):
        spark = {}  # without all facts, nothing is known to be missing
    report = doctor.HostReport.from_dicts(
        planned=planned,
        facts=spark,
        looked=health,
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
        *(finding.to_dict() for finding in missing),
        *(section_of(sections, "engines", "engines").get("findings") or []),
        *(finding.to_dict() for finding in findings),
    ]


def _missing_answers(second: dict[str, Any], sections: dict[str, Any]) -> list[Finding]:
    findings = []
    if second and not second.get("reached"):
        findings.append(doctor.unreachable(second.get("why") or "it was lost"))
    failed = {name: str(answer.get("msg")) for name, answer in sections.items() if answer.get("failed")}
    return findings + [doctor.not_asked(TITLES.get(name, name), why) for name, why in failed.items()]


def _silent_programs(spark: dict[str, Any], health: dict[str, Any]) -> list[Finding]:
    reasons = {**(health.get("unknown") or {}), **(spark.get("unknown") or {})}
    return [doctor.not_asked(program, why) for program, why in sorted(reasons.items())]


def drifted(planned: dict[str, Any], spark: dict[str, Any], sections: dict[str, Any]) -> list[Finding]:
    """Return the differences between a host and its deployed document that doctor does not report itself."""
    deployed, images = sections.get("deployed") or {}, sections.get("images") or {}
    if not spark or not deployed or deployed.get("failed") or deployed.get("unanswered"):
        return []
    known_images = None if images.get("failed") else images.get("images") or {}
    host = drift.Host.planned(planned).with_answers(spark, known_images, deployed)
    return [finding for finding in drift.check(host) if finding.rule not in COVERED or not finding.service]


def _token_findings(planned: dict[str, Any], spark: dict[str, Any]) -> list[Finding]:
    path, models = str((planned.get("settings") or {}).get("hf_token_file") or ""), set(spark.get("models") or [])
    fetches = any(model.get("repo") and model["repo"] not in models for model in planned.get("models") or [])
    return doctor.token(path, *_read(path), fetches)


def _read(path: str) -> tuple[bool, str]:
    """Return whether a file of the controller is readable, and its text."""
    try:
        return True, Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return False, ""


def _text(report: dict[str, Any], colored: bool) -> str:
    """Return the report for people."""
    head = _head(report["counts"])
    return "\n".join([picture.findings_text(report["findings"], colored), "", head]) if report["findings"] else head


def _head(counts: dict[str, int]) -> str:
    parts = [f"{counts[key]} {key}{'s'[: counts[key] != 1]}" for key in ("error", "warning") if counts[key]]
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    hosts = f"{counts['hosts']} host{'s'[: counts['hosts'] != 1]}"
    return f"{hosts}{silent}: {', '.join(parts) or 'no errors, no warnings'}."
