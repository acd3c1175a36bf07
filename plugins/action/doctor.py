# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge hosts by everything that is known of them; documented in plugins/modules/doctor.py."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils import color
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import SEVERITIES
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, doctor, drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture, placement
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import start_times
from ansible_collections.dgxspark.vllm.plugins.modules.doctor import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import sections_apart
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import conclude

display = Display()
WHAT = {
    "host": "the facts of the host",
    "images": "the images",
    "services": "the services",
    "engines": "what engines took of memory, and their kernels",
    "health": "logs, receipts, disks and clock",
    "looked": "services, engines, logs, receipts, disks and clock",
    "deployed": "what was deployed",
}
# What the doctor says of services in words of its own.
SAID = ("drift.stopped", "drift.boot", "drift.not_deployed", "drift.unplanned", "drift.image_moved")


class ActionModule(ActionBase):
    """Gather the findings of plan, proof and doctor, show them, fail by the worst."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print findings with their fixes, the worst first."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        play = [str(host) for host in variables.get("ansible_play_hosts_all") or []]
        plan = args["plan"]
        # Add-on services may be on hosts that are no Sparks; their plan is judged with the rest.
        findings = [
            dict(finding)
            for finding in plan["findings"]
            if finding["host"] in play or finding["host"] not in plan["hosts"]
        ]
        silent = []
        for host in play:
            hostvars = variables["hostvars"][host]
            first, second = (hostvars.get(args[key]) or {} for key in ("asked_from", "looked_from"))
            if not first.get("reached"):
                silent.append(host)
            try:
                findings += answers.judged(self._alone, host, plan["hosts"].get(host) or {}, first, second)
            except foreign_text.Untrusted as error:
                findings.append({"host": host, **doctor.not_asked(WHAT["health"], str(error)).to_dict()})
        findings += placement.findings(plan)
        ignored = {host: set(variables["hostvars"][host].get("spark_ignore_rules") or []) for host in play}
        findings = [finding for finding in findings if finding["rule"] not in ignored.get(finding["host"], ())]
        findings.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))
        why = doctor.verdict(findings, args["fail_on"])
        counts = {severity: sum(finding["severity"] == severity for finding in findings) for severity in SEVERITIES}
        found = {
            "schema": 1,
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "well": not why,
            "reason": why,
            "counts": {"hosts": len(play), "silent": len(silent), **counts},
            "findings": findings,
        }
        text = picture.findings_text(findings, color.ANSIBLE_COLOR)
        display.display("\n".join([text, "", head(found)]) if findings else head(found), screen_only=True)
        if constants.DEFAULT_LOG_PATH:  # a file has no use for colours
            display.display(picture.findings_text(findings), log_only=True)
        return conclude(result, found, args, variables, "findings")

    def _alone(
        self, host: str, planned: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the findings of one host, after it was tried whether they can be shown."""
        found = [{"host": host, **finding} for finding in self._judge(host, planned, first, second)]
        for finding in found:
            SEVERITIES.index(finding["severity"])
        picture.findings_text(found)
        return found

    def _judge(
        self, host: str, planned: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the findings of one host beside those of its plan."""
        if not first.get("reached"):
            return [doctor.unreachable(first.get("why") or "it was not asked").to_dict()]
        said = sections_apart({**(first.get("answers") or {}), **(second.get("answers") or {})}, "host", "images")
        said = sections_apart(said, "looked", "services", "engines", "health")
        found: list[dict[str, Any]] = []
        if second and not second.get("reached"):
            found.append(doctor.unreachable(second.get("why") or "it was lost").to_dict())
        found += [
            doctor.not_asked(WHAT.get(name, name), str(answer.get("msg"))).to_dict()
            for name, answer in said.items()
            if answer.get("failed")
        ]
        found += ((said.get("engines") or {}).get("engines") or {}).get("findings") or []
        facts = (said.get("host") or {}).get("spark") or {}
        looked = (said.get("health") or {}).get("health") or {}
        unknown = {**(looked.get("unknown") or {}), **(facts.get("unknown") or {})}
        found += [doctor.not_asked(program, why).to_dict() for program, why in sorted(unknown.items())]
        if facts.get("unknown"):
            facts = {}  # what such a host lacks is not known to be missing
        report = doctor.HostReport.read(
            planned=planned,
            facts=facts,
            looked=looked,
            answers={entry["name"]: entry for entry in (said.get("services") or {}).get("services") or []},
            images=(said.get("images") or {}).get("images") or {},
            asked={key: second[key] for key in ("began", "ended") if second.get(key)},
        )
        found += [finding.to_dict() for finding in doctor.check(report)]
        starts = start_times.of_host(planned.get("services") or [], looked.get("starts"))
        found += [finding.to_dict() for finding in starts]
        found += differences(planned, facts, said)
        path = str((planned.get("settings") or {}).get("hf_token_file") or "")
        there = set(facts.get("models") or [])
        fetches = any(model.get("repo") and model["repo"] not in there for model in planned.get("models") or [])
        found += [finding.to_dict() for finding in doctor.token(path, *read(path), fetches)]
        return found


def differences(planned: dict[str, Any], facts: dict[str, Any], said: dict[str, Any]) -> list[dict[str, Any]]:
    """Return in what a host is not what was deployed on it, where nothing above says so."""
    deployed = said.get("deployed") or {}
    if not facts or not deployed or deployed.get("failed") or deployed.get("unanswered"):
        return []
    images = None if (said.get("images") or {}).get("failed") else (said.get("images") or {}).get("images") or {}
    found = drift.check(drift.Host.read(planned).heard(facts, images, deployed))
    return [finding.to_dict() for finding in found if finding.rule not in SAID or not finding.service]


def read(path: str) -> tuple[bool, str]:
    """Whether a file of the controller is there, and what is in it."""
    try:
        return True, Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError):
        return False, ""


def head(found: dict[str, Any]) -> str:
    """Say in one line how the hosts are."""
    counts = found["counts"]
    parts = [f"{counts[key]} {key}{'s'[: counts[key] != 1]}" for key in ("error", "warning") if counts[key]]
    silent = f" ({counts['silent']} silent)" if counts["silent"] else ""
    return (
        f"{counts['hosts']} host{'s'[: counts['hosts'] != 1]}{silent}: {', '.join(parts) or 'no errors, no warnings'}."
    )
