# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the differences between hosts and their deployed documents; documented in plugins/modules/drift.py."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployed
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import host_document, with_digests
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import (
    ReportAction,
    section_of,
    sections_apart,
    show,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

TITLES = {"host": "the facts of the host", "images": "the images", "deployed": "what was deployed"}


class ActionModule(ReportAction):
    """Compare the plan with the answers of the hosts of the play."""

    def act(self) -> dict[str, Any]:
        """Print the differences; fails in one line, as C(fail_on) demands."""
        args, plan = self.args, plain(self.args["plan"])
        findings: list[dict[str, Any]] = []
        hosts: dict[str, dict[str, Any]] = {}
        services = 0
        for name, hostvars in self.hostvars().items():
            planned, answer = plan["hosts"].get(name) or {}, plain(hostvars.get(args["asked_from"])) or {}
            services += len(planned.get("services") or [])
            completeness = _completeness(plan, name, hostvars)
            try:
                hosts[name], of_host = answers.judged(_judge_alone, name, planned, completeness, answer)
            except foreign_text.Untrusted as error:
                hosts[name] = {**summary({}), "reached": True, "why": str(error)}
                of_host = [drift.not_asked(TITLES["deployed"], str(error)).to_dict()]
            ignored = plain(hostvars.get("spark_ignore_rules")) or []
            findings += [{"host": name, **finding} for finding in of_host if finding["rule"] not in ignored]
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        report = drift.report(findings, hosts, services, at, args["fail_on"])
        if args["show"] != "none":
            show(lambda colored: drift.text(report, args["show"], colored))
        return self.conclude("drift", report, "healthy", "reason", "hosts", "findings")


def _completeness(plan: Mapping[str, Any], host: str, hostvars: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """Return the checksums of a host's planned document, and whether all ranks of its clusters have answered.

    A plan without the answers of all hosts may differ for that reason, and networks of clusters are planned by the answers of
    their hosts; then there are no checksums.
    """
    planned = plan["hosts"].get(host) or {}
    cluster = planned.get("cluster") or {}
    has_ranks = all(plan["hosts"][name]["basis"] == "measured" for name in cluster.get("hosts") or [])
    if cluster or any(body["basis"] != "measured" for body in plan["hosts"].values()):
        return {}, has_ranks
    try:
        document = with_digests(host_document(planned, plan["addons"].get(host), own_variables(hostvars)))
    except ValueError:  # no file can hold the plan
        return {}, has_ranks
    return deployed.checksums(document, {row.part for rows in vars(document).values() for row in rows}), has_ranks


def _judge_alone(
    name: str, planned: dict[str, Any], completeness: tuple[dict[str, str], bool], result: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return summary and findings of one host, after a test that they can be printed."""
    body, findings = summary(result), drift.check_lock(planned)
    findings += [finding.to_dict() for finding in judge(planned, *completeness, result)]
    report = drift.report([{"host": name, **finding} for finding in findings], {name: body}, 0, "", "never")
    drift.text(report, "lines")
    return body, findings


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a host in the report."""
    recorded = ((result.get("answers") or {}).get("deployed") or {}).get("recorded") or {}
    is_reached = bool(result.get("reached"))
    return {
        "reached": is_reached,
        "why": "" if is_reached else str(result.get("why") or "it was not asked"),
        "generation": recorded.get("number"),
        "proven": recorded.get("proven"),
        "recorded_at": recorded.get("at"),
    }


def judge(planned: dict[str, Any], checksums: dict[str, str], has_ranks: bool, result: dict[str, Any]) -> list[Finding]:
    """Return the findings of one host by its answers. planned, checksums, has_ranks: see C(drift.Host)."""
    if not result.get("reached"):
        return [drift.unreachable(str(result.get("why") or "it was not asked"))]
    sections = sections_apart(result.get("answers") or {}, "host", "images")
    failed = {name: str(answer.get("msg")) for name, answer in sections.items() if answer.get("failed")}
    spark = section_of(sections, "host", "spark")
    # Without facts no difference is certain, and the other answers mostly fail for the same reason.
    if "host" in failed or spark.get("unknown"):
        why = failed["host"] if "host" in failed else "; ".join(spark["unknown"].values())
        return [drift.not_asked(TITLES["host"], why)]
    unanswered = section_of(sections, "deployed", "unanswered")
    if unanswered:
        failed.setdefault("deployed", "; ".join(unanswered))
    host = drift.Host(
        planned,
        checksums,
        has_ranks,
        spark,
        None if "images" in failed else section_of(sections, "images", "images"),
        None if "deployed" in failed else sections.get("deployed"),
    )
    return [*(drift.not_asked(TITLES.get(name, name), why) for name, why in failed.items()), *drift.check(host)]
