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

from ansible_collections.dgxspark.vllm.plugins.action.plan import lock_path, plain, read_lock, write
from ansible_collections.dgxspark.vllm.plugins.module_utils import lock as engine

display = Display()


class ActionModule(ActionBase):
    """Join what the hosts of the play said, compare it with the file, write it."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the file; fail with all disagreements at once, and write nothing then."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {
                "planned": {"type": "dict", "required": True},
                "images_from": {"type": "str", "required": True},
                "models_from": {"type": "str", "required": True},
                "dest": {"type": "path", "default": ""},
            }
        )
        planned = plain(args["planned"])
        dest = Path(args["dest"]) if args["dest"] else self._dest(planned, variables)
        old, messages = read_lock(dest)
        if messages:
            raise AnsibleActionFail("\n- ".join(["the lock file cannot be read:", *messages]))
        asked = [str(host) for host in variables.get("ansible_play_hosts_all") or [] if str(host) in planned]
        images: dict[str, Any] = {}
        models: dict[str, Any] = {}
        silent = []
        for host in asked:
            own = variables["hostvars"][host]
            said_images, said_models = plain(own.get(args["images_from"])), plain(own.get(args["models_from"]))
            if not said_images or "images" not in said_images or not said_models or "models" not in said_models:
                silent.append(host)
                continue
            images[host] = engine.see(said_images["images"], old, pin=False)
            models[host] = said_models["models"]
        if asked and len(silent) == len(asked):
            raise AnsibleActionFail(f"nothing to lock: {', '.join(silent)} did not answer.")
        new, refusals, notes = engine.collect(
            planned, [host for host in asked if host not in silent], images, models, old
        )
        notes += [f"{host} did not answer; what the lock file has of it stays." for host in silent]
        if refusals:
            raise AnsibleActionFail(
                f"the hosts do not agree on what to lock, or lack it; {dest} was not touched:\n- "
                + "\n- ".join(refusals)
            )
        before = dest.read_text(encoding="utf-8") if dest.exists() else ""
        after = engine.render(new)
        changes = engine.changes(old, new)
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
            host: {"vars": {"spark_lock_file": plain(variables["hostvars"][host].get("spark_lock_file"))}}
            for host in planned
        }
        path = lock_path(hosts, variables, messages)
        if messages or path is None:
            messages = messages or ["the inventory is no file, so nothing can stand beside it; set spark_lock_file."]
            raise AnsibleActionFail(" ".join(messages))
        return path
