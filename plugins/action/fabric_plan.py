# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the network of a cluster and write the page of all networks; documented in plugins/modules/fabric_plan.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import fabric, fabric_layout
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import fabric_figures, fabric_tables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import locked_folder, read_kept, write_report
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import dest_path
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain


class ActionModule(ControllerAction):
    """Plan one network, and add it and its figures to the records of all clusters."""

    def act(self) -> dict[str, Any]:
        """Return the plan of O(hosts), and where the page is."""
        args = plain(self.args)
        planned = plan_network(args) if args["hosts"] else {}
        result = {"changed": False, **planned}
        if args["dest"]:
            result["page"] = write_page(args, planned, self.variables)
        return result


def plan_network(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of the hosts of a task; raises AnsibleActionFail for hosts without facts and for settings that are wrong."""
    hosts = args["hosts"]
    bare = [name for name, entry in hosts.items() if not isinstance((entry or {}).get("fabric"), dict)]
    if bare:
        raise AnsibleActionFail(f"hosts without the facts of spark_info: {', '.join(bare)}")
    settings = {field.name: args[field.name] for field in dataclasses.fields(fabric_layout.Settings)}
    try:
        plan = fabric.plan(hosts, fabric_layout.Settings(**{**settings, "subnets": tuple(settings["subnets"])}))
    except ValueError as error:
        raise AnsibleActionFail(str(error)) from error
    wrong = [row for row in plan["findings"] if row["rule"] in fabric.MISPLUGGED and row["severity"] == "error"]
    return {"report": fabric.lines(plan["findings"]), "misplugged": fabric.lines(wrong), **plan}


def write_page(args: Mapping[str, Any], planned: dict[str, Any], task_vars: dict[str, Any]) -> str:
    """Write the page of all clusters and return its path; raises AnsibleActionFail for files that cannot be written."""
    messages: list[str] = []
    dest = dest_path(args["dest"], task_vars, messages)
    if messages:
        raise AnsibleActionFail(messages[0])
    page = Path(dest).with_name("fabric.html")
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(page.parent):
            record = page.with_name(fabric_figures.FILE)
            state, name, least = fabric_figures.read(read_kept(record)), args["name"], args["min_gbps"]
            if planned:
                state = fabric_figures.with_plan(state, name, planned, at)
            if args["bandwidth"]:
                state = fabric_figures.with_rails(state, name, args["bandwidth"], least, at)
            if args["test"] and args["results"]:
                state = fabric_figures.with_test(state, name, args["test"], args["results"], least, at)
            write_report(record, json.dumps(state, indent=1, sort_keys=True) + "\n")
            write_report(page, fabric_tables.page(state))
    except OSError as error:
        raise AnsibleActionFail(f"{page} cannot be written on the controller: {error}") from error
    return str(page)
