# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a host by modules, and bring back why where it does not answer; documented in plugins/modules/ask.py."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import with_advice
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.fleet_status import why_unreachable

# What Ansible adds to the answer of a module; nobody reads it in the answer of an answer.
NOT_KEPT = ("invocation", "warnings", "deprecations", "exception", "ansible_facts")


class ActionModule(ActionBase):
    """Run some modules one after the other; a host that is gone, or a module that fails, is an answer too.

    Tasks with C(ignore_unreachable) and C(ignore_errors) would keep the host in the play too, but not three other promises.
    Its texts: Ansible prints what ssh or a module says before anything can make it C(foreign_text.printable). Its place: each silent host
    gets some ten lines above the report that says alike ones in one. Its clock: under the strategy C(linear) a second task begins when
    the slowest host has answered, so C(began) and C(ended), which bound the error of a host's clock in C(doctor.check_clock), would be the fleet's.
    """

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return C(reached), C(why) and C(answers); never fails because of the host."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec({"modules": {"type": "dict", "required": True}})
        began, why, answers = time.time(), "", {}
        for name, entry in args["modules"].items():
            try:
                found = self._execute_module(
                    module_name=entry["module"], module_args=entry.get("args") or {}, task_vars=task_vars or {}
                )
            except AnsibleConnectionFailure as error:
                why = foreign_text.printable(why_unreachable(str(error)))
                break
            except AnsibleError as error:
                found = {"failed": True, "msg": with_advice(str(error))}
            if found.get("unreachable"):
                why = foreign_text.printable(why_unreachable(str(found.get("msg") or "")))
                break
            try:
                found = foreign_text.received(found)
            except foreign_text.Untrusted as error:
                found = {"failed": True, "msg": f"its answer is invalid: {error}"}
            # The interpreter that was found for the host, so that later tasks need not look for it.
            result.setdefault("ansible_facts", {}).update(found.get("ansible_facts") or {})
            answers[name] = failure(found) if found.get("failed") else tidy(found)
        result.update(
            changed=False, reached=not why, why=why, answers=answers, began=began, ended=time.time(),
            _ansible_verbose_override=True,
        )  # fmt: skip
        return result


def tidy(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a module says, without what Ansible says about it."""
    return {key: value for key, value in found.items() if key not in NOT_KEPT and not key.startswith("_ansible")}


def failure(found: dict[str, Any]) -> dict[str, Any]:
    """Return the reason why a module failed: its own, or the last line of what its interpreter said."""
    said = [line for line in str(found.get("module_stderr") or "").splitlines() if line.strip()]
    message = str(found.get("msg") or "it failed without a word")
    return {"failed": True, "msg": f"{message}: {said[-1].strip()}" if said else message}
