# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the module what it keeps and proves of a plan, and no more; documented in plugins/modules/generation.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.controller import run_name
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_views
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import settled_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.desired_state import (
    SKIPPED,
    desired_checksum,
    differs,
    folders_of,
    part_checksums,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import listed
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_action import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.measured_starts import take_over
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import defaults, own_variables
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
        network = plain(args.pop("network", None))
        lacking, looked = (plain(args.pop(name, None)) or {} for name in ("lacking", "looked"))
        host = str((task_vars or {}).get("inventory_hostname", ""))
        own = own_variables(task_vars or {}, self._templar.template)
        spark = plain(args["facts"]) if "facts" in args else {}
        # Of a host's facts three are kept; the others need not travel.
        if "facts" in args:
            args["facts"] = generations.facts_of(spark)
        known = {
            "run": plain((task_vars or {}).get("ansible_run_tags") or ["all"]),
            "skipped": plain((task_vars or {}).get("ansible_skip_tags") or []),
            **{"facts": spark, "lacking": lacking, "looked": looked},
            "play": (task_vars or {}).get("ansible_play_hosts") or [],
        }
        if args.get("action") in ("record", "up_to_date") and plan:
            args.update(
                services=service_views.view(plan.get("services") or [], "record"),
                settings=plan.get("settings") or {},
                wanted=desired_checksum(plan, addons, own),
            )
        if args.get("action") == "record" and plan:
            whole, parts = settled_host.applied(known["run"], known["skipped"], plain(args.get("proven")))
            sums = part_checksums(plan, addons, own)
            args["parts"] = {name: sums[name] for name in sorted(parts & set(sums))}
            args["wanted"] = args["wanted"] if whole else ""
        if args.get("action") == "up_to_date" and plan:
            run_parts = settled_host.parts_of(known["run"], known["skipped"])
            why = settled_host.unjudged(run_parts, plan, addons, known)
            if why:
                return {**result, "changed": False, "up_to_date": False, "proved": False, "why": why}
            args.update(look_of(run_parts or frozenset(), plan, addons, own, known, network, task_vars or {}))
            if boolean(args.get("prove") or False) and not self._task.check_mode:
                args["proof"] = proof_of(plan, own)
        found = self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars or {})
        result.update(checked_answer(found, untrusted.anything, host, MODULE))
        if result.get("proved"):
            take_over(found, host, task_vars or {}, MODULE)
            # They lie on the host; a registered result is walked through several times a run.
            result.pop("receipts", None)
        return result


def look_of(
    parts: frozenset[str],
    plan: Mapping[str, Any],
    addons: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    known: Mapping[str, Any],
    network: Mapping[str, Any] | None,
    task_vars: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what the module compares a host with, as far as the tags of this run apply it.

    parts: of C(settled_host.parts_of). plan, addons: the host's. own: variables of roles that are set for it. known: as C(settled_host.unjudged)
    takes it. network: C(fabric) of its cluster in the plan. task_vars: as an action has them.
    """
    asked, why = (
        settled_host.network_of(plan, network, str(task_vars.get("inventory_hostname", "")))
        if "fabric" in parts
        else ({}, [])
    )
    bundled, unbundled = settled_host.bundled_of(plan, task_vars) if "models" in parts else ([], [])
    firewall = plan.get("firewall") or {} if "firewall" in parts else {}
    found: dict[str, Any] = {
        "models": models_of(plan, task_vars) if "models" in parts else [],
        "folders": folders_of(plan, parts) + settled_host.folders_of(plan, addons, own, parts),
        "files": settled_host.files_of(parts, plan, addons, own),
        "differs": differs(plan, addons, own, known["facts"], parts) + why + unbundled,
        "bundled": bundled,
        "images": settled_host.images_of(plan, parts),
        "network": asked,
        "servers": settled_host.servers_of(addons, own, parts),
        "firewall": firewall.get("state", ""),
        "ephemeral": firewall.get("state") == "present" and bool(firewall.get("ranges")),
    }
    if not {*SKIPPED} <= parts:
        sums = part_checksums(plan, addons, own)
        found["parts"] = {name: sums.get(name, "") for name in sorted(parts)}
        found["others"] = settled_host.others_of(parts, plan, addons, own)
        found["services"] = service_views.view(plan.get("services") or [], "record") if "service" in parts else []
    return found if "prove" in parts else {**found, "prove": False}


def models_of(plan: Mapping[str, Any], task_vars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a host; one that is copied from the controller with the size and time of its files there.

    plan: the host's. task_vars: as an action has them.
    """
    return [
        {"path": model["path"], "copied": listed(Path(of_host(str(model["source"]), task_vars)))}
        if model.get("source")
        else model
        for model in plan.get("models") or []
    ]


def proof_of(plan: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the services of a host are proved by, as tasks/prove.yml and the role prove have it.

    plan: the host's. own: variables of roles that are set for it.
    """
    role, settings = {**defaults("prove"), **own}, plan.get("settings") or {}
    services = [service for service in plan.get("services") or [] if service.get("state") in ("started", "on_demand")]
    return {
        "services": service_views.view(services, "proof"),
        "timeout": role["prove_timeout"],
        "receipts_dir": generations.RECEIPTS if boolean(role["prove_receipts"]) else "",
        "os_reserve_gib": settings.get("reserve_gib"),
        "root": settings.get("sysroot") or "/",
    }
