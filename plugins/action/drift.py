# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how hosts differ from what was deployed; documented in plugins/modules/drift.py."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils import color
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployed
from ansible_collections.dgxspark.vllm.plugins.modules.drift import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import sections_apart
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import host_document, with_digests
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import conclude
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
WHAT = {
    "host": "the facts of the host",
    "images": "the images",
    "deployed": "what was deployed",
}


class ActionModule(ActionBase):
    """Join the plan with what the hosts of the play said."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print what differs; fail in one line where that is asked for."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        plan = plain(args["plan"])
        play = [str(host) for host in variables.get("ansible_play_hosts_all") or []]
        own = {host: variables["hostvars"][host] for host in play}
        asked = {host: plain(own[host].get(args["asked_from"])) or {} for host in play}
        planned = {host: plan["hosts"].get(host) or {} for host in play}
        # A plan that some host had no say in may differ by that alone.
        whole = all(body["basis"] == "measured" for body in plan["hosts"].values())
        findings: list[dict[str, Any]] = []
        hosts: dict[str, dict[str, Any]] = {}
        for host in play:
            cluster = planned[host].get("cluster") or {}
            ranks = all(plan["hosts"][name]["basis"] == "measured" for name in cluster.get("hosts") or [])
            # The networks of clusters are planned by what all of their hosts said.
            is_known = whole and not cluster
            checksums = (
                planned_checksums(planned[host], plan["addons"].get(host), own_variables(own[host])) if is_known else {}
            )
            ignored = plain(own[host].get("spark_ignore_rules")) or []
            try:
                hosts[host], found_here = answers.judged(_alone, host, planned[host], asked[host], checksums, ranks)
            except foreign_text.Untrusted as error:
                hosts[host] = {**about({}), "reached": True, "why": str(error)}
                found_here = [drift.not_asked(WHAT["deployed"], str(error)).to_dict()]
            findings += [{"host": host, **finding} for finding in found_here if finding["rule"] not in ignored]
        services = sum(len(body.get("services") or []) for body in planned.values())
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        found = drift.report(findings, hosts, services, at, args["fail_on"])
        if args["show"] != "none":
            display.display(drift.text(found, args["show"], color.ANSIBLE_COLOR), screen_only=True)
            if constants.DEFAULT_LOG_PATH:  # a file has no use for colours
                display.display(drift.text(found, args["show"]), log_only=True)
        return conclude(result, found, args, variables, "well", "reason", "hosts", "findings")


def planned_checksums(
    plan: Mapping[str, Any], addons: Mapping[str, Any] | None, role_variables: Mapping[str, Any]
) -> dict[str, str]:
    """Return the checksums of the parts of a host's planned document; none for a plan that no file can hold.

    plan, addons: the host's. role_variables: variables of roles that are set for it.
    """
    try:
        document = with_digests(host_document(plan, addons, role_variables))
    except ValueError:
        return {}
    return deployed.checksums(document, {row.part for rows in vars(document).values() for row in rows})


def _alone(
    host: str, planned: dict[str, Any], asked: dict[str, Any], checksums: Mapping[str, str], ranks: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what there is to say of one host, after it was tried whether that can be shown."""
    body, findings = about(asked), judge(planned, asked, checksums, ranks)
    drift.text(drift.report([{"host": host, **finding} for finding in findings], {host: body}, 0, "", "never"), "lines")
    return body, findings


def about(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says of a host beside its differences."""
    recorded = ((asked.get("answers") or {}).get("deployed") or {}).get("recorded") or {}
    reached = bool(asked.get("reached"))
    return {
        "reached": reached,
        "why": "" if reached else str(asked.get("why") or "it was not asked"),
        "generation": recorded.get("number"),
        "proven": recorded.get("proven"),
        "recorded_at": recorded.get("at"),
    }


def judge(
    planned: dict[str, Any], asked: dict[str, Any], checksums: Mapping[str, str], ranks: bool
) -> list[dict[str, Any]]:
    """Return how one host differs."""
    host = drift.Host.read(planned, checksums, ranks)
    found = drift.check_lock(planned.get("findings") or [], host.services)
    if not asked.get("reached"):
        return [*found, drift.unreachable(str(asked.get("why") or "it was not asked")).to_dict()]
    said = sections_apart(asked.get("answers") or {}, "host", "images")
    lost = {name: answer for name, answer in said.items() if answer.get("failed")}
    if "host" in lost:  # nothing else would mean anything, and it has mostly the same cause
        return [*found, drift.not_asked(WHAT["host"], str(lost["host"].get("msg"))).to_dict()]
    unknown = ((said.get("host") or {}).get("spark") or {}).get("unknown") or {}
    if unknown:  # what such a host lacks is not known to be missing
        return [*found, drift.not_asked(WHAT["host"], "; ".join(unknown.values())).to_dict()]
    found += [drift.not_asked(WHAT.get(name, name), str(answer.get("msg"))).to_dict() for name, answer in lost.items()]
    unanswered = (said.get("deployed") or {}).get("unanswered")
    if unanswered:
        found.append(drift.not_asked(WHAT["deployed"], "; ".join(unanswered)).to_dict())
        lost["deployed"] = {}
    host = host.heard(
        facts=(said.get("host") or {}).get("spark") or {},
        images=None if "images" in lost else (said.get("images") or {}).get("images") or {},
        compared=None if "deployed" in lost else said.get("deployed"),
    )
    return [*found, *(finding.to_dict() for finding in drift.check(host))]
