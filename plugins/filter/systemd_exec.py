# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an argument list as systemd reads it, so that no shell and no specifier ever interprets it."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import file_syntax

DOCUMENTATION = r"""
name: systemd_exec
short_description: Write an argument list as the value of a systemd C(ExecStart=)
version_added: 0.1.0
description:
  - Quotes each argument by the rules of systemd.syntax(7) and systemd.service(5), so that C(%), C($), quotes, backslashes
    spaces and line breaks reach the program as they are.
  - Puts an option and its value on a line of their own, which keeps units readable and their diffs short.
options:
  _input:
    description: The program and its arguments.
    type: list
    elements: str
    required: true
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Show an ExecStart line
  ansible.builtin.debug:
    msg: "ExecStart={{ ['/usr/bin/docker', 'run', '--rm', 'image', '100%'] | dgxspark.vllm.systemd_exec }}"
"""

RETURN = r"""
_value:
  description: The text behind C(ExecStart=).
  type: str
"""


def systemd_exec(arguments: list[Any]) -> str:
    """Join quoted arguments; an option starts a new line and keeps its values beside it."""
    try:
        return file_syntax.command_line(arguments)
    except ValueError as error:
        raise AnsibleFilterError(f"systemd_exec: {error}") from error


class FilterModule:
    """Filters for unit files."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"systemd_exec": systemd_exec}
