# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the module what it keeps of a plan, and no more; documented in plugins/modules/generation.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.controller import run_name
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_views
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.compared_host import applies_everything
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_action import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import desired_checksum
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.kept_facts import KeptFacts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

MODULE = "dgxspark.vllm.generation"


class ActionModule(HostAction):
    """One round trip; a plan is large, what a generation keeps of it is not."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the mark of what the host was to be."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        args["controller"] = run_name(str(self._task._uuid))
        plan, addons = plain(args.pop("plan", None)), plain(args.pop("addons", None))
        host = str((task_vars or {}).get("inventory_hostname", ""))
        own = own_variables(task_vars or {}, self._templar.template)
        spark = plain(args["facts"]) if "facts" in args else {}
        # Of a host's facts three are kept; the others need not travel.
        if "facts" in args:
            args["facts"] = generations.facts_of(spark)
        if args.get("action") == "record" and plan:
            run, skipped = (
                plain((task_vars or {}).get(name)) or [] for name in ("ansible_run_tags", "ansible_skip_tags")
            )
            is_whole = applies_everything(run or ["all"], skipped)
            args.update(
                services=service_views.view(plan.get("services") or [], "record"),
                settings=plan.get("settings") or {},
                wanted=desired_checksum(plan, addons, own) if is_whole else "",
            )
        if args.get("gather") and plan:
            args["gather"] = {"images": plan.get("image_candidates") or [], **plain(args["gather"])}
        answer = self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars or {})
        result.update(checked_answer(answer, Any, host, MODULE))
        facts = {name: result.pop(name, None) for name in ("spark", "images", "unknown", "host_architecture")}
        if not self._task.check_mode and not result.get("failed"):
            KeptFacts(task_vars or {}).keep(host, facts["spark"], facts["images"])
        return result
