# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show how the services of all hosts are; documented in plugins/modules/status.py."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import (
    answers,
    fleet_status,
    status_page,
    status_rows,
)
from ansible_collections.dgxspark.vllm.plugins.modules.status import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write_report
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import conclude

display = Display()


class ActionModule(ActionBase):
    """Join the plan with what the hosts of the play said."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the fleet; fail, in one line, when a host is silent or a planned service is not ready."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        rows: list[status_rows.Row] = []
        hosts: dict[str, fleet_status.HostState] = {}
        for host in variables.get("ansible_play_hosts_all") or []:
            asked = joined(variables["hostvars"][host].get(args["asked_from"]) or {}, args["answer"])
            planned = args["planned"].get(host) or {}
            try:
                # Alone first: what one host says must not keep the others from being shown.
                answers.judged(_shown, str(host), asked, planned, args["answer"])
            except foreign_text.Untrusted as error:
                asked = {"reached": True, "answers": {args["answer"]: {"failed": True, "msg": str(error)}}}
            found_rows, found_hosts = look(str(host), asked, planned, args["answer"])
            rows += found_rows
            hosts.update(found_hosts)
        found = fleet_status.report(
            rows, hosts, datetime.now(timezone.utc).isoformat(timespec="seconds"), args["fail_on"]
        )
        if args["page"]:
            keep(of_fleet(args["page"], variables), status_page.page(found, args["planned"]))
        if args["show"] != "none":
            display.display(fleet_status.text(found, args["show"]))
        again = args["watch"] > 0 and (not args["looks"] or args["look"] < args["looks"])
        if again:
            args["fail_on"] = "never"
        result.update(again=again, look=args["look"])
        concluded = conclude(result, found.plain(), args, variables, "well", "reason", "hosts", "services")
        if again:
            time.sleep(args["watch"])
        return concluded


def keep(path: str, text: str) -> None:
    """Write the page to a file of the controller; in check mode too, as C(dest) is: no host is changed by it."""
    try:
        write_report(Path(path), text)
    except OSError as error:
        raise AnsibleActionFail(f"the page cannot be written to {path} on the controller: {error}") from error


def joined(asked: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what was asked of a host, with the facts of the answer (C(spark) and C(starts)) together as its C(host)."""
    answer = (asked.get("answers") or {}).get(name) or {}
    if answer.get("failed") or not isinstance(answer.get("spark"), dict):
        return asked
    unknown = answer.get("unknown") or {}
    if answer.get("services") is None:
        said: dict[str, Any] = {"failed": True, "msg": unknown.get("services")}
    else:
        facts, starts = answer["spark"], answer.get("starts") or {}
        host = {**facts, **starts, "unknown": {**(facts.get("unknown") or {}), **unknown}}
        said = {"host": host, "services": answer["services"]}
    return {**asked, "answers": {**asked["answers"], name: said}}


def look(
    host: str, asked: dict[str, Any], planned: dict[str, Any], answer: str
) -> tuple[list[status_rows.Row], dict[str, fleet_status.HostState]]:
    """Return the rows of a host's services, and the host as it was judged."""
    said = (asked.get("answers") or {}).get(answer) or {}
    rows = status_rows.status_rows(host, planned, said.get("host"), said.get("services"))
    return rows, {host: fleet_status.judge_host(asked, answer)}


def _shown(host: str, asked: dict[str, Any], planned: dict[str, Any], answer: str) -> str:
    """Return what is shown of a host alone."""
    found = fleet_status.report(*look(host, asked, planned, answer), "")
    return "\n".join(fleet_status.text(found, show) for show in ("table", "groups"))
