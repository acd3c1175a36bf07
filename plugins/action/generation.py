# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the module what it keeps of a plan, and no more; documented in plugins/modules/generation.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.controller import run_name
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_views
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.compared_host import applies_everything
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import desired_checksum
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.kept_facts import KeptFacts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain


class ActionModule(HostAction):
    """Run the module in one round trip, with the few fields of the plan that a generation keeps."""

    MODULE = "dgxspark.vllm.generation"

    def act(self) -> dict[str, Any]:
        """Run the module; keep the gathered facts for the next run."""
        result = self.ask(self._arguments())
        facts = {name: result.pop(name, None) for name in ("spark", "images", "unknown", "host_architecture")}
        if not self._task.check_mode and not result.get("failed"):
            KeptFacts(self.variables).keep(self.host, facts["spark"], facts["images"])
        return result

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the module."""
        variables = self.variables
        args = {**self.args, "controller": run_name(str(self._task._uuid))}
        plan, addons = plain(args.pop("plan", None)), plain(args.pop("addons", None))
        if "facts" in args:
            args["facts"] = generations.facts_of(plain(args["facts"]))
        if args.get("action") == "record" and plan:
            run, skipped = (plain(variables.get(name)) or [] for name in ("ansible_run_tags", "ansible_skip_tags"))
            # Only a run of all roles deploys the whole plan.
            is_whole = applies_everything(run or ["all"], skipped)
            role_variables = own_variables(variables, self._templar.template)
            args.update(
                services=service_views.view(plan.get("services") or [], "record"),
                settings=plan.get("settings") or {},
                wanted=desired_checksum(plan, addons, role_variables) if is_whole else "",
            )
        if args.get("gather") and plan:
            args["gather"] = {"images": plan.get("image_candidates") or [], **plain(args["gather"])}
        return args
