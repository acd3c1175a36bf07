# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the host its document of a plan, and gather its facts in the same round trip; documented in plugins/modules/compare.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.controller import run_name
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.stable_facts import stable_checksum
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import compared_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.compared_host import PlannedParts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.measured_starts import take_over
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

OF_CONTROLLER = ("plan", "addons", "clusters", "lacking", "earlier")
"""Options that stay on the controller."""
VERDICT = ("up_to_date", "why", "proved", "unproved", "answers", "recorded", "differences", "compared_with")
"""Results that a second task of a run takes over from the first."""
FEW_FACTS = {"gather": ["host", "gpu"]}
"""Facts that a proof needs, if the task gathers none."""


class ActionModule(HostAction):
    """Compare a host in one round trip, or none if an earlier answer holds."""

    MODULE = "dgxspark.vllm.compare"

    def act(self) -> dict[str, Any]:
        """Return the module's answer; without a plan, the facts of the host and V(false) for RV(up_to_date)."""
        args = self.args
        prove = boolean(args.pop("prove", False), strict=False)
        options = {name: _load(args.pop(name, None)) for name in OF_CONTROLLER}
        if not options["plan"] and "plan" not in self._task.args:  # a comparison with the record
            return self._ask(args)
        planned, earlier = self._planned(options), options["earlier"]
        gather = _with_images(plain(args.pop("gather", None)), planned.plan)
        parts = compared_host.parts_of(self._tags("run"), self._tags("skip"))
        why = self._reasons(planned, parts, options)
        compares = bool(planned.plan and not why and (args.get("facts_checksum") or not gather))
        if compares:
            comparison, why = self._comparison(planned, parts, prove)
            args = {**args, **comparison}
        mark = checksum_of({**args, "facts_checksum": "", "controller": ""})
        if earlier and not gather:
            verdict = taken_over(earlier, mark, why)
            if verdict:
                return {"changed": False, **verdict}
            gather = _few_facts(planned.plan)
        answer = self._ask({**args, "gather": gather})
        if _has_failed(answer):
            return answer
        unknown = [] if earlier else compared_host.unknown_images(planned.plan, answer.get("images"), parts)
        _add_reasons(answer, why, unknown, compares)
        checksum = stable_checksum(answer.get("spark"), answer.get("images"))
        is_valid = compares and args.get("facts_checksum") in (None, "", checksum)
        return {**answer, "compared_with": mark if is_valid else ""}

    def _comparison(
        self, planned: PlannedParts, parts: frozenset[str] | None, prove: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the module's arguments for a comparison, and why the roles have to be applied for any answer."""
        comparison, why = compared_host.arguments_of(planned, parts or frozenset(), self.variables)
        comparison["controller"] = run_name(str(self._task._uuid))
        if "prove" in (parts or ()) and prove and not self._task.check_mode and not why:
            comparison["proof"] = compared_host.proof_of(planned)
        return comparison, why

    def _reasons(self, planned: PlannedParts, parts: frozenset[str] | None, options: Mapping[str, Any]) -> list[str]:
        """Return why the roles have to be applied without asking the host. options: of C(OF_CONTROLLER)."""
        hosts = self.variables.get("ansible_play_hosts") or []
        why = compared_host.reasons_to_apply(self._tags("run"), parts, options["lacking"], hosts)
        images = options["earlier"].get("images")
        return why if images is None else why + compared_host.unknown_images(planned.plan, images, parts)

    def _planned(self, options: Mapping[str, Any]) -> PlannedParts:
        """Return the plan of the host. options: of C(OF_CONTROLLER)."""
        plan = options["plan"]
        cluster = (plan.get("cluster") or {}).get("name")
        network = (options["clusters"].get(cluster) or {}).get("fabric") or {}
        role_variables = own_variables(self.variables, self._templar.template) if plan else {}
        read = self._loader.get_text_file_contents
        return PlannedParts(self.host, plan, options["addons"], network, role_variables, read)

    def _tags(self, kind: str) -> list[str]:
        """Return the tags of this run. kind: C(run) or C(skip)."""
        return plain(self.variables.get(f"ansible_{kind}_tags")) or (["all"] if kind == "run" else [])

    def _ask(self, args: dict[str, Any]) -> dict[str, Any]:
        """Run the module; keep the measurements of a proof."""
        variables = {**self.variables, "ansible_no_target_syslog": True}
        raw = self._execute_module(module_name=self.MODULE, module_args=args, task_vars=variables)
        if _has_failed(raw):
            return raw
        answer: dict[str, Any] = dict(checked_answer(raw, Any, self.host, self.MODULE))
        if answer.get("proved"):
            take_over(raw, self.host, self.variables, self.MODULE)
            # They are on the host; Ansible copies a registered result several times a run.
            answer.pop("receipts", None)
        answer.pop("invocation", None)
        return answer


def _has_failed(answer: Mapping[str, Any]) -> bool:
    return bool(answer.get("failed") or answer.get("unreachable"))


def _with_images(gather: Any, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option C(gather) with the images of a plan, empty if the task gathers nothing."""
    return {"images": plan.get("image_candidates") or [], **gather} if gather and plan else gather or {}


def _few_facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option C(gather) of a proof."""
    return {**FEW_FACTS, "root": (plan.get("settings") or {}).get("sysroot") or "/"}


def _add_reasons(answer: dict[str, Any], why: list[str], unknown: list[str], is_compared: bool) -> None:
    """Add to an answer why the roles have to be applied. why: without asking the host. unknown: about its images."""
    if not is_compared:
        why, answer["why"] = why or ["the host was not asked in an earlier run"], []
    if why or unknown:
        answer.update(up_to_date=False, proved=False, why=[*why, *unknown, *(answer.get("why") or [])])


def taken_over(earlier: Mapping[str, Any], mark: str, why: list[str]) -> dict[str, Any]:
    """Return the answer of an earlier task of this run if it holds for the present plan, empty if the host has to be asked.

    mark: checksum of the present comparison. why: reasons to apply the roles without asking the host.
    """
    if not why and "recorded" in earlier and not earlier["recorded"]:
        why = ["nothing was recorded yet"]
    if why:
        return {"up_to_date": False, "proved": False, "why": why}
    if earlier.get("compared_with") == mark and (earlier.get("up_to_date") or earlier.get("why")):
        return {name: earlier[name] for name in VERDICT if name in earlier}
    return {}


def checksum_of(args: Mapping[str, Any]) -> str:
    """Return a checksum of arguments of the module, as a mark of a comparison."""
    return hashlib.sha256(json.dumps(plain(args), sort_keys=True).encode()).hexdigest()


def _load(value: Any) -> Any:
    """Return an option of the task, empty for a missing one; a plan may be a text in JSON."""
    return (parse_json(value, "the plan of this run", exact=True) if isinstance(value, str) else plain(value)) or {}
