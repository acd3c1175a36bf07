# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print changes, errors and reports of a run, each once."""

from __future__ import annotations

DOCUMENTATION = r"""
name: brief
type: stdout
short_description: Print changes, errors and reports, each once
description:
  - Like the callback C(default) of Ansible, without tasks that change nothing, plays without hosts or output, and included files.
  - An error is printed once, as its message. The default callback prints it twice, as C([ERROR]) and in the result of the task.
  - With C(-v) all tasks are printed, with C(-vvv) also the place of an error in its playbook.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout callback in configuration, C(stdout_callback = dgxspark.vllm.brief)
"""

EXAMPLES = r"""
ansible.cfg: |
  [defaults]
  stdout_callback = dgxspark.vllm.brief
"""

from typing import Any

from ansible.plugins.callback.default import CallbackModule as Default

NOISE = {"changed", "exception", "failed", "invocation", "msg", "unreachable", "warnings", "deprecations"}
"""Keys of a failed task that say no more than its message."""
PLACE_VERBOSITY = 3


class CallbackModule(Default):  # type: ignore[misc]  # Ansible has no types
    """The default callback without tasks that change nothing, and with each error once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "dgxspark.vllm.brief"

    def __init__(self) -> None:
        super().__init__()
        self._play_without_banner: Any = None

    def get_option(self, option: str, hostvars: Any = None) -> Any:
        """Return an option of the default callback; skipped tasks are printed only with -v."""
        if option == "display_skipped_hosts" and not self._display.verbosity:
            return False
        return super().get_option(option, hostvars)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Print the name of the play together with its first task, if a task is printed."""
        self._play = play
        self._play_without_banner = play

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Print with -v that no host matches a play; of a misspelled pattern Ansible itself warns."""
        if self._display.verbosity:
            super().v2_playbook_on_no_hosts_matched()

    def _print_task_banner(self, task: Any) -> None:
        play, self._play_without_banner = self._play_without_banner, None
        if play is not None:
            super().v2_playbook_on_play_start(play)
        super()._print_task_banner(task)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Print a task that changed something, or whose result is a message for people."""
        if self._is_printed(result):
            super().v2_runner_on_ok(result)
        else:
            self._handle_warnings(result.result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Print an item like a task."""
        if self._is_printed(result):
            super().v2_runner_item_on_ok(result)
        else:
            self._handle_warnings(result.result)

    def _is_printed(self, result: Any) -> bool:
        return bool(result.result.get("changed") or self._display.verbosity or self._run_is_verbose(result))

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Print included files only with -v."""
        if self._display.verbosity:
            super().v2_playbook_on_include(included_file)

    def _handle_exception(self, result: Any, *args: Any, **options: Any) -> None:
        # The message follows in the result of the task.
        if result.get("msg") and self._display.verbosity < PLACE_VERBOSITY:
            result.pop("exception", None)
        super()._handle_exception(result, *args, **options)

    def _dump_results(self, result: Any, *args: Any, **options: Any) -> str:
        keys = {key for key in result if not key.startswith("_ansible_")}
        if "msg" in keys and keys <= NOISE and isinstance(result["msg"], str) and not self._display.verbosity:
            return str(result["msg"]).removeprefix("Task failed: ")
        return str(super()._dump_results(result, *args, **options))
