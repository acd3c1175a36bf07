# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bases of action plugins: for the controller alone, and around a module of the host, whose answers are checked before use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.discovery import with_advice
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented

MODULES = "ansible_collections.dgxspark.vllm.plugins.modules"


class Action(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """An action with the variables and the arguments of its task."""

    TRANSFERS_FILES = False
    VALIDATED = False
    """Whether the documentation of the module of the same name validates the arguments here; else the module does."""
    RULES: Mapping[str, Any] = {}
    """Of the arguments together, such as C(required_one_of)."""
    variables: dict[str, Any]
    args: dict[str, Any]

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of C(act)."""
        result = super().run(tmp, task_vars)
        self.variables, self.args = task_vars or {}, self._read_arguments()
        return {**result, **self.act()}

    def act(self) -> dict[str, Any]:
        """Carry out the task; return its result."""
        raise NotImplementedError

    def _read_arguments(self) -> dict[str, Any]:
        if not self.VALIDATED:
            return dict(self._task.args)
        module = importlib.import_module(f"{MODULES}.{type(self).__module__.rpartition('.')[2]}")
        return dict(self.validate_argument_spec(documented(module.DOCUMENTATION), **self.RULES)[1])

    @property
    def host(self) -> str:
        """Name of the host in the inventory."""
        return str(self.variables.get("inventory_hostname") or "")


class ControllerAction(Action):
    """An action that contacts no host."""

    _requires_connection = False
    VALIDATED = True


class HostAction(Action):
    """An action around a module, which may be the first of a playbook to become root on a host."""

    MODULE = ""

    def _execute_module(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run a module on the host; the message of a missing sudo password has its fix."""
        try:
            return dict(super()._execute_module(*args, **kwargs))
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            advised = with_advice(str(error))
            if advised == str(error):
                raise
            raise AnsibleActionFail(advised) from None

    def execute(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Run the module; return its unchecked answer."""
        return self._execute_module(module_name=self.MODULE, module_args=args, task_vars=self.variables)

    def ask(self, args: Mapping[str, Any], form: Any = Any) -> dict[str, Any]:
        """Run the module; return its checked answer. form: of C(answers.py), for an answer that is no failure."""
        answer = self.execute(args)
        return dict(checked_answer(answer, Any if answer.get("failed") else form, self.host, self.MODULE))


def checked_answer(answer: Any, form: Any, host: str, name: str) -> Any:
    """Return a host's answer, or fail with the host and all problems of the answer.

    form: of C(answers.py); see C(reader.py). name: of the module, for the message.
    """
    try:
        return reader.read(form, foreign_text.received(answer), name)
    except foreign_text.Untrusted as error:
        raise AnsibleActionFail(
            f"{host} returned an invalid answer, which was discarded: {error}. Is it the expected host, and does it run "
            "this collection's release alone?"
        ) from error
