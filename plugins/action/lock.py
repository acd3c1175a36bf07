# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the lock file from what the hosts say; documented in plugins/modules/lock.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock_making
from ansible_collections.dgxspark.vllm.plugins.modules.lock import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.image_plans import ImagePlans
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import lock_path, read_lock
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()


class ActionModule(ActionBase):
    """Join what the hosts of the play said, compare it with the file, write it."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the file; fail with all disagreements at once, and write nothing then."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        planned = plain(args["planned"])
        dest = Path(of_fleet(args["dest"], variables)) if args["dest"] else self._dest(planned, variables)
        old, messages = read_lock(dest)
        if messages:
            raise AnsibleActionFail("\n- ".join(["the lock file cannot be read:", *messages]))
        play = [str(host) for host in variables.get("ansible_play_hosts_all") or []]
        images, models, silent = _sparks_said([host for host in play if host in planned], args, variables, old)
        beside = {str(host): body["images"]["named"] for host, body in plain(args["addons"]).items()}
        for host, said in _add_ons_said([host for host in play if beside.get(host)], args, variables, old).items():
            images.setdefault(host, {}).update(said)
        for host, named in beside.items():
            planned.setdefault(host, {"services": []})["addon_images"] = named
        answered = [host for host in images if host not in silent]
        said_before = ImagePlans(variables, False, old).text
        new, refusals, notes = lock_making.collect(planned, answered, images, models, old, said_before)
        notes += [f"{host} did not answer; what the lock file has of it stays." for host in silent]
        if refusals:
            raise AnsibleActionFail(
                f"the hosts do not agree on what to lock, or lack it; {dest} was not touched:\n- "
                + "\n- ".join(refusals)
            )
        before = dest.read_text(encoding="utf-8") if dest.exists() else ""
        after = lock_making.render(new)
        changes = lock_making.changes(old, new)
        for line in [*changes, *notes]:
            display.display(f"  {line}")
        changed = after != before
        if changed and not self._task.check_mode:
            write(dest, after)
        result.update(changed=changed, dest=str(dest), changes=changes, notes=notes, _ansible_verbose_override=True)
        if changed and self._task.diff:
            result["diff"] = {"before": before, "after": after, "before_header": str(dest), "after_header": str(dest)}
        return result

    @staticmethod
    def _dest(planned: dict[str, Any], variables: dict[str, Any]) -> Path:
        """Return the lock file that the plan reads."""
        messages: list[str] = []
        hosts = {
            host: {"vars": {"spark_lock_file": of_fleet(str(own.get("spark_lock_file") or ""), variables)}}
            for host in planned
            for own in [variables["hostvars"][host]]
        }
        path = lock_path(hosts, variables, messages)
        if messages or path is None:
            messages = messages or ["the inventory is no file, so nothing can stand beside it; set spark_lock_file."]
            raise AnsibleActionFail(" ".join(messages))
        return path


def _images(said: Any, host: str, old: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a host said of its images, by the names that the plan has for them."""
    heard_of = checked_answer(said, answers.IMAGES_SECTION, host, "dgxspark.vllm.spark_info")["images"]
    return engine.by_planned_names(heard_of, old, pin=False)


def _sparks_said(
    hosts: list[str], args: dict[str, Any], variables: dict[str, Any], old: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return images and models by host, and the hosts that did not answer; fails when none did."""
    images: dict[str, Any] = {}
    models: dict[str, Any] = {}
    silent = []
    for host in hosts:
        own = variables["hostvars"][host]
        said_images, said_models = plain(own.get(args["images_from"])), plain(own.get(args["models_from"]))
        if not said_images or "images" not in said_images or not said_models or "model_files" not in said_models:
            silent.append(host)
            continue
        images[host] = _images(said_images, host, old)
        models[host] = checked_answer(said_models, answers.MODEL_FILES, host, "dgxspark.vllm.spark_info")["model_files"]
    if hosts and len(silent) == len(hosts):
        raise AnsibleActionFail(f"nothing to lock: {', '.join(silent)} did not answer.")
    return images, models, silent


def _add_ons_said(
    hosts: list[str], args: dict[str, Any], variables: dict[str, Any], old: dict[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Return by host the images of its add-on services; hosts that were not asked or did not answer are left out."""
    found = {}
    for host in sorted(hosts) if args["addons_from"] else []:
        said = plain(variables["hostvars"][host].get(args["addons_from"]))
        if said and said.get("images") is not None:
            found[host] = _images(said, host, old)
    return found
