# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show what was measured on all hosts; documented in plugins/modules/bench_report.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.action.plan import plain, write
from ansible_collections.dgxspark.vllm.plugins.module_utils import bench_compare

display = Display()


class ActionModule(ActionBase):
    """Join what the hosts of the play measured."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print tables and charts, write JSON where asked to; fail when a service could not be measured."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {"results_from": {"type": "str", "required": True}, "dest": {"type": "path", "default": ""}}
        )
        results: list[dict[str, Any]] = []
        refused: list[dict[str, str]] = []
        for host in variables.get("ansible_play_hosts_all") or []:
            measured = plain(variables["hostvars"][host].get(args["results_from"])) or {}
            if not measured or measured.get("unreachable") or measured.get("failed"):
                refused.append({"where": str(host), "reason": str(measured.get("msg") or "the host did not answer")})
            results += measured.get("results") or []
            refused += measured.get("refused") or []
        display.display(bench_compare.report(results, refused))
        if args["dest"] and not self._task.check_mode:
            body = {"schema": bench_compare.SCHEMA, "services": results, "not_measured": refused}
            write(Path(args["dest"]), json.dumps(body, indent=2, sort_keys=True) + "\n")
        findings = [{"where": entry["where"], **finding} for entry in results for finding in entry["findings"]]
        result.update(
            changed=False, services=results, not_measured=refused, findings=findings, failed=bool(refused),
            _ansible_verbose_override=True,
        )  # fmt: skip
        if refused:
            result["msg"] = f"not measured: {', '.join(entry['where'] for entry in refused)}; the reasons stand above"
        return result
