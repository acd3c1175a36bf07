# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the module what it keeps of a plan, and no more; documented in plugins/modules/generation.py."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.action.plan import plain
from ansible_collections.dgxspark.vllm.plugins.module_utils import generations, rollout

COLLECTION = Path(__file__).resolve().parents[2]
MODULE = "dgxspark.vllm.generation"
MADE_BY = (
    "roles/*/templates/**/*",
    "roles/*/files/**/*",
    "roles/*/tasks/*.yml",
    "roles/*/vars/*.yml",
    "plugins/module_utils/*.py",
)
SKIPPED = ("host", "images", "models", "service", "watchdog")


class ActionModule(ActionBase):
    """One round trip; a plan is large, what a generation keeps of it is not."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module with the mark of what the host was to be."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        plan, around = plain(args.pop("plan", None)), plain(args.pop("around", None))
        # Of a host's facts three are kept; the others need not travel.
        if "facts" in args:
            args["facts"] = generations.facts_of(plain(args["facts"]))
        if args.get("action") in ("record", "settled") and plan:
            args.update(
                services=generations.slim(plan.get("services") or []),
                settings=plan.get("settings") or {},
                wanted=wanted_of(plan, around, collection_mark()),
            )
        if args.get("action") == "settled" and plan:
            args.update(
                models=[model for model in plan.get("models") or [] if model.get("repo")],
                folders=folders_of(plan),
                overridden=sorted(set(task_vars or {}) & role_variables()),
            )
        result.update(self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars or {}))
        return result


def wanted_of(plan: Mapping[str, Any], around: Mapping[str, Any] | None, made_by: str) -> str:
    """Return the mark of all that a host is to be, with the files of the controller that are copied there."""
    sources = {name: digest(Path(name)) for name in sorted(rollout.sources_of([plan.get("services"), around]))}
    return rollout.wanted(plan, around, sources, made_by)


def folders_of(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the folders that a host has outside of those that a generation keeps."""
    settings = plan.get("settings") or {}
    found = [{"path": settings[name]} for name in ("hf_home", "cache_dir") if settings.get(name)]
    for service in plan.get("services") or []:
        found += [folder for folder in service.get("folders") or [] if folder not in found]
    return found


def role_variables() -> set[str]:
    """Return the variables by which roles that site.yml skips on a settled host may be told something that no plan says."""
    found: set[str] = set()
    for role in SKIPPED:
        found |= set(
            yaml.safe_load((COLLECTION / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))
        )
    return found


def digest(path: Path) -> str:
    """Return the sum of a file of the controller; empty for a folder, and for one that cannot be read."""
    try:
        return hashlib.sha256(path.expanduser().read_bytes()).hexdigest()
    except OSError:
        return ""


def collection_mark() -> str:
    """Return a mark of what puts a plan on a host: templates, programs and tasks of this collection."""
    found = hashlib.sha256()
    for pattern in MADE_BY:
        for path in sorted(COLLECTION.glob(pattern)):
            if path.is_file() and path.suffix != ".pyc":
                found.update(f"{path.relative_to(COLLECTION)}\0".encode() + path.read_bytes())
    return found.hexdigest()
