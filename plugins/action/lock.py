# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the lock file from the answers of the hosts; documented in plugins/modules/lock.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock_making
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.image_plans import ImagePlans
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import lock_path, read_lock, render
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
SPARK_INFO = "dgxspark.vllm.spark_info"


class ActionModule(ControllerAction):
    """Join the answers of the play's hosts, compare them with the file, write it."""

    def act(self) -> dict[str, Any]:
        """Write the file; on disagreements fail with all of them, and write nothing."""
        args, variables = self.args, self.variables
        planned = plain(args["planned"])
        dest = Path(of_fleet(args["dest"], variables)) if args["dest"] else self._planned_path(planned)
        previous, messages = read_lock(dest)
        if messages:
            raise AnsibleActionFail("\n- ".join(["the lock file cannot be read:", *messages]))
        new, notes = self._collect(planned, previous, dest)
        before = dest.read_text(encoding="utf-8") if dest.exists() else ""
        after = render(new)
        changes = lock_making.changes(previous, new)
        for line in [*changes, *notes]:
            display.display(f"  {line}")
        changed = after != before
        if changed and not self._task.check_mode:
            write(dest, after)
        result: dict[str, Any] = {"changed": changed, "dest": str(dest), "changes": changes, "notes": notes}
        result["_ansible_verbose_override"] = True
        if changed and self._task.diff:
            result["diff"] = {"before": before, "after": after, "before_header": str(dest), "after_header": str(dest)}
        return result

    def _planned_path(self, planned: dict[str, Any]) -> Path:
        """Return the lock file that the plan reads."""
        messages: list[str] = []
        hosts = {}
        for host in planned:
            named = str(self.variables["hostvars"][host].get("spark_lock_file") or "")
            hosts[host] = {"vars": {"spark_lock_file": of_fleet(named, self.variables)}}
        path = lock_path(hosts, self.variables, messages)
        if messages or path is None:
            no_path = "the inventory is not a file, so the lock file has no default path; set spark_lock_file."
            raise AnsibleActionFail(" ".join(messages or [no_path]))
        return path

    def _answers(self, sparks: list[str], previous: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the images and the models of the Sparks that answered with both. previous: the present lock."""
        images: dict[str, Any] = {}
        models: dict[str, Any] = {}
        for host in sparks:
            variables = self.variables["hostvars"][host]
            image_answer, model_answer = (
                plain(variables.get(self.args[key])) or {} for key in ("images_from", "models_from")
            )
            if "images" in image_answer and "model_files" in model_answer:
                images[host] = _images(image_answer, host, previous)
                models[host] = checked_answer(model_answer, answers.MODEL_FILES, host, SPARK_INFO)["model_files"]
        return images, models

    def _add_addon_images(
        self, planned: dict[str, Any], images: dict[str, Any], previous: dict[str, Any] | None
    ) -> None:
        """Add the images of add-on services to the plan, and to the images of hosts that answered. previous: the present lock."""
        args, hostvars = self.args, self.variables["hostvars"]
        play = [str(host) for host in self.variables.get("ansible_play_hosts_all") or []]
        for host, addons in plain(args["addons"]).items():
            named = addons["images"]["named"]
            planned.setdefault(host, {"services": []})["addon_images"] = named
            answer = plain(hostvars[host].get(args["addons_from"])) if named and args["addons_from"] else None
            if host in play and answer and answer.get("images") is not None:
                images.setdefault(host, {}).update(_images(answer, host, previous))

    def _collect(
        self, planned: dict[str, Any], previous: dict[str, Any] | None, dest: Path
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the new lock and notes; fail if hosts disagree or none answers. previous: the present lock."""
        play = [str(host) for host in self.variables.get("ansible_play_hosts_all") or []]
        sparks = [host for host in play if host in planned]
        images, models = self._answers(sparks, previous)
        silent = [host for host in sparks if host not in images]
        if silent and not images:
            raise AnsibleActionFail(f"nothing to lock: {', '.join(silent)} did not answer.")
        self._add_addon_images(planned, images, previous)
        answered = [host for host in images if host not in silent]
        answers_before = ImagePlans(self.variables, False, previous).text
        new, refusals, notes = lock_making.collect(planned, answered, images, models, previous, answers_before)
        if refusals:
            raise AnsibleActionFail(
                f"the hosts do not agree on what to lock, or lack it; {dest} was not touched:\n- "
                + "\n- ".join(refusals)
            )
        return new, [*notes, *(f"{host} did not answer; its entries in the lock file stay." for host in silent)]


def _images(answer: Any, host: str, previous: dict[str, Any] | None) -> dict[str, Any]:
    """Return the images of a host, by the names of the plan."""
    images = checked_answer(answer, answers.IMAGES_SECTION, host, SPARK_INFO)["images"]
    return engine.by_planned_names(images, previous, pin=False)
