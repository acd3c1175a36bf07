# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of docker run that bound what a server of the collection may do on its host."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import containers

DOCUMENTATION = r"""
name: restricted_container
short_description: Options of docker run that bound what a server beside the engines may do
version_added: 0.1.0
description:
  - Returns the options that every container of this collection gets. No capabilities, no new privileges, a limit on processes, no core dumps.
options:
  _input:
    description: The port that the server listens on, on the host's network. One below 1024 takes a capability.
    type: int
    required: true
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Show how the gateway's container is bounded
  ansible.builtin.debug:
    msg: "{{ 4000 | dgxspark.vllm.restricted_container }}"
"""

RETURN = r"""
_value:
  description: The options, one word per item.
  type: list
  elements: str
"""


def restricted_container(port: int) -> list[str]:
    """Return the options for a server that listens on C(port)."""
    return containers.restricted(containers.SERVER_PIDS, containers.for_port(int(port)))


class FilterModule:
    """Filters for containers."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"restricted_container": restricted_container}
