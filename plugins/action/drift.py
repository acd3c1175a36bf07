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
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import section_of, sections_apart
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import host_document, with_digests
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import conclude, show
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

TITLES = {
    "host": "the facts of the host",
    "images": "the images",
    "deployed": "what was deployed",
}


class ActionModule(ControllerAction):
    """Compare the plan with the answers of the hosts of the play."""

    def act(self) -> dict[str, Any]:
        """Print the differences; fails in one line, as C(fail_on) demands."""
        args, variables = self.args, self.variables
        plan = plain(args["plan"])
        findings: list[dict[str, Any]] = []
        hosts: dict[str, dict[str, Any]] = {}
        services = 0
        for name in map(str, variables.get("ansible_play_hosts_all") or []):
            hostvars = variables["hostvars"][name]
            answer = plain(hostvars.get(args["asked_from"])) or {}
            planned = drift.Host.planned(plan["hosts"].get(name) or {}, *_completeness(plan, name, hostvars))
            services += len(planned.services)
            lock_findings = (plan["hosts"].get(name) or {}).get("findings") or []
            try:
                hosts[name], of_host = answers.judged(_judge_alone, name, planned, lock_findings, answer)
            except foreign_text.Untrusted as error:
                hosts[name] = {**summary({}), "reached": True, "why": str(error)}
                of_host = [drift.not_asked(TITLES["deployed"], str(error)).to_dict()]
            ignored = plain(hostvars.get("spark_ignore_rules")) or []
            findings += [{"host": name, **finding} for finding in of_host if finding["rule"] not in ignored]
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        report = drift.report(findings, hosts, services, at, args["fail_on"])
        if args["show"] != "none":
            show(lambda colored: drift.text(report, args["show"], colored))
        return conclude("drift", report, args, variables, "healthy", "reason", "hosts", "findings")


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
    return planned_checksums(planned, plan["addons"].get(host), own_variables(hostvars)), has_ranks


def planned_checksums(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, role_variables: Mapping[str, Any]
) -> dict[str, str]:
    """Return the checksums of the parts of a host's planned document; none for a plan that no file can hold.

    plan, addons: of the host. role_variables: that are set for it.
    """
    try:
        document = with_digests(host_document(plan, addons, role_variables))
    except ValueError:
        return {}
    return deployed.checksums(document, {row.part for rows in vars(document).values() for row in rows})


def _judge_alone(
    name: str, host: drift.Host, lock_findings: list[dict[str, Any]], result: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return summary and findings of one host, after a test that they can be printed."""
    body, findings = summary(result), judge(host, lock_findings, result)
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


def judge(host: drift.Host, lock_findings: list[dict[str, Any]], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of one host."""
    findings = drift.check_lock(lock_findings, host.services)
    return findings + [finding.to_dict() for finding in _of_answers(host, result)]


def _of_answers(host: drift.Host, result: dict[str, Any]) -> list[Finding]:
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
    answered = host.with_answers(
        spark,
        None if "images" in failed else section_of(sections, "images", "images"),
        None if "deployed" in failed else sections.get("deployed"),
    )
    return [*(drift.not_asked(TITLES.get(name, name), why) for name, why in failed.items()), *drift.check(answered)]
