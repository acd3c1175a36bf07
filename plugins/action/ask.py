# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules on a host and tolerate that it is unreachable; documented in plugins/modules/ask.py."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import with_advice
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.fleet_status import why_unreachable

# Keys that Ansible adds to the result of a module; nobody reads them in a nested result.
OMITTED = ("invocation", "warnings", "deprecations", "exception", "ansible_facts")


class ActionModule(ActionBase):
    """Run some modules one after the other; an unreachable host and a failed module are answers, too.

    Tasks with C(ignore_unreachable) and C(ignore_errors) would also keep the host in the play, but break three promises.
    Texts: Ansible prints messages of ssh and modules before anything can make them C(foreign_text.printable). Place: each silent host
    gets some ten lines above the report, which has one line for all of them. Clock: under the strategy C(linear) a second task waits
    for the slowest host, so C(began) and C(ended), which bound the error of a host's clock in C(doctor.check_clock), would be the fleet's.
    """

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return C(reached), C(why) and C(answers); never fails because of the host."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec({"modules": {"type": "dict", "required": True}})
        began, why, answers = time.time(), "", {}
        for name, entry in args["modules"].items():
            answer = self._answer(entry["module"], entry.get("args") or {}, task_vars or {})
            if answer.get("unreachable"):
                why = foreign_text.printable(why_unreachable(str(answer.get("msg") or "")))
                break
            try:
                answer = foreign_text.received(answer)
            except foreign_text.Untrusted as error:
                answer = {"failed": True, "msg": f"its answer is invalid: {error}"}
            # The interpreter of the host, so that later tasks need not look for it.
            result.setdefault("ansible_facts", {}).update(answer.get("ansible_facts") or {})
            fields = {
                key: value for key, value in answer.items() if key not in OMITTED and not key.startswith("_ansible")
            }
            answers[name] = failure(answer) if answer.get("failed") else fields
        result.update(
            changed=False, reached=not why, why=why, answers=answers, began=began, ended=time.time(),
            _ansible_verbose_override=True,
        )  # fmt: skip
        return result

    def _answer(self, module: str, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a module; with C(unreachable) or C(failed) for an exception."""
        try:
            return dict(self._execute_module(module_name=module, module_args=args, task_vars=task_vars))
        except AnsibleConnectionFailure as error:
            return {"unreachable": True, "msg": str(error)}
        except AnsibleError as error:
            return {"failed": True, "msg": with_advice(str(error))}


def failure(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the reason of a failed module: its own, or the last line of its interpreter's errors."""
    errors = [line for line in str(answer.get("module_stderr") or "").splitlines() if line.strip()]
    message = str(answer.get("msg") or "it failed without a word")
    return {"failed": True, "msg": f"{message}: {errors[-1].strip()}" if errors else message}
