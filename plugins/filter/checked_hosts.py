# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a playbook that is given what it does not know, or keys among its hosts, before Ansible prints the name of any host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: checked_hosts
short_description: The hosts of a play, where its arguments are right and no key is among the hosts of the inventory
version_added: 0.1.0
description:
  - Returns the pattern that it is given, and fails where a host of the inventory has a name that looks like a key, or that is the
    content of a file for keys. Ansible reads each file of an inventory folder as a list of hosts, so a key that lies there is one.
  - Fails as well where an extra variable (C(-e)) named C(spark_...), or one that looks like an argument of the playbook, is unknown,
    or has a value that it cannot have. All of them are named at once, with the nearest name or what is allowed.
  - The C(hosts) of a play are worked out before Ansible prints anything of it. That is why this stands there, and why the message has
    the beginning of such a name only.
options:
  _input:
    description: Hosts of the play, as in C(hosts).
    type: str
    required: true
  groups:
    description: The variable C(groups).
    type: dict
    required: true
  sources:
    description: The variable C(ansible_inventory_sources).
    type: list
    elements: str
    required: true
  playbook:
    description: Name of the playbook, where it has arguments that are no variables of the inventory.
    type: str
    default: ""
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Restart the services
  hosts: "{{ 'sparks' | dgxspark.vllm.checked_hosts(groups, ansible_inventory_sources) }}"
  tasks: []
"""

RETURN = r"""
_value:
  description: The pattern, as it was given.
  type: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.utils.vars import load_extra_vars

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import arguments, host_names
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.inventory_sources import inventory_sources


def checked_hosts(
    pattern: str, groups: Mapping[str, Sequence[str]], sources: Sequence[str] | None, playbook: str = ""
) -> str:
    """Return the pattern; fail where the inventory has hosts that are none, or the playbook is given what it cannot take.

    :param pattern: of the hosts of a play
    :param groups: of the inventory, with their hosts
    :param sources: of the inventory, as Ansible was given them
    :param playbook: whose arguments are checked too, by its name without C(.yml)
    :returns: the pattern
    :raises AnsibleFilterError: with all that is wrong
    """
    wrong = host_names.check(groups, inventory_sources(sources))
    if wrong:
        raise AnsibleFilterError(f"no host was contacted: {wrong}")
    # Ansible has read them by now, with what a vault needs, and gives them again without looking at a file.
    messages = arguments.check(load_extra_vars(DataLoader()), playbook)
    if messages:
        raise AnsibleFilterError("no host was contacted: " + " ".join(messages))
    return pattern


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"checked_hosts": checked_hosts}
