# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse wrong input of a playbook before Ansible prints anything: inventory, tags, extra variables, the version of ansible-core."""

from __future__ import annotations

DOCUMENTATION = r"""
name: checked_hosts
short_description: The hosts of a play, if the inventory, the tags and the extra variables of the run are usable
description:
  - Returns its input. If the input of the run is wrong, prints a sentence for each mistake, and ends
    C(ansible-playbook) with exit code 1. Ansible alone skips such input with a warning and exit code 0.
  - "Wrong are: an inventory that is missing, unreadable, not valid YAML or mis-indented; keys of a file that stand twice; no hosts in
    the group C(sparks); tags (C(--tags)) that no task of the collection's playbook has; an ansible-core older than 2.19."
  - A host whose name looks like a key, or is the content of a file for keys, is refused as well. Ansible reads each file of an
    inventory folder as a list of hosts, so a key that lies there is one.
  - An extra variable (C(-e)) is refused if it is named C(spark_...), or looks like an argument of the playbook, and is unknown or has a
    value that it cannot have.
  - The C(hosts) of a play are evaluated before Ansible prints anything of it. That is why this stands there, and why the message has
    only the beginning of a name that looks like a key.
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
  needs_sparks:
    description: Whether the run needs an inventory with Sparks. If omitted, all plays do but those of C(localhost).
    type: bool
  missing:
    description: Names of variables that the playbook cannot do without and that have no value.
    type: list
    elements: str
    default: []
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

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ansible import constants, context
from ansible.parsing.dataloader import DataLoader
from ansible.release import __version__
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bytecode import keep_bytecode

keep_bytecode()  # before the engine is imported

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import (
    arguments,
    events,
    inventory_check,
    playbook_tags,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_sources

REFUSED = 1
"""Exit code; docs/automation.md."""
OLDEST_CORE = (2, 19)
"""As C(requires_ansible) of meta/runtime.yml says, of which ansible-core makes a warning only."""
_LISTINGS = ("syntax", "listtags", "listtasks", "listhosts")
"""Options with which C(ansible-playbook) runs nothing."""


def checked_hosts(
    pattern: str,
    groups: Mapping[str, Sequence[str]],
    sources: Sequence[str] | None,
    playbook: str = "",
    needs_sparks: bool | None = None,
    missing: Sequence[str] = (),
) -> str:
    """Return the pattern, or print the mistakes in the input of the run and end it.

    needs_sparks: None for yes, except for plays of localhost. DOCUMENTATION has the arguments.
    """
    needed = pattern != "localhost" if needs_sparks is None else needs_sparks
    problems = find_problems(groups, sources, playbook, needed)
    if not problems and not _runs_nothing():
        problems = [arguments.REQUIRED[name] for name in missing]
    if problems:
        refuse(problems)
    return pattern


def find_problems(
    groups: Mapping[str, Sequence[str]], sources: Sequence[str] | None, playbook: str, needs_sparks: bool
) -> list[str]:
    """Return the mistakes in the input of the run, a sentence each."""
    core = tuple(int(part) for part in re.findall(r"\d+", __version__)[:2])
    if core < OLDEST_CORE:
        return [
            f"ansible-core {__version__} is too old, this collection needs {'.'.join(map(str, OLDEST_CORE))} or newer: "
            "pip install --upgrade ansible-core"
        ]
    read = inventory_sources(sources)
    keys = inventory_check.find_keys(groups, read)
    if keys:  # the other messages could name such a host
        return [keys]
    options = context.CLIARGS
    # Ansible has read the extra variables and their vaults before, and caches them.
    extra_vars = load_extra_vars(DataLoader())
    problems = arguments.check(extra_vars, playbook)
    problems += arguments.check_output(extra_vars, constants.CALLBACKS_ENABLED, read)
    playbooks = options.get("args") or ()
    problems += playbook_tags.find_problems(options.get("tags") or (), playbooks)
    # quickstart.yml deploys the inventory that it wrote; in check mode it writes none.
    unwritten = options.get("check") and "quickstart" in map(playbook_tags.playbook_name, playbooks)
    if needs_sparks and not unwritten and not _runs_nothing():
        problems += inventory_check.find_problems(groups, read)
    return problems


def _runs_nothing() -> bool:
    """Tell whether the run only lists hosts, tasks or tags, or checks the syntax."""
    return any(context.CLIARGS.get(option) for option in _LISTINGS)


def refuse(problems: Sequence[str]) -> NoReturn:
    """Print the problems and end the run. An exception would be printed with the line of the playbook, which is not at fault."""
    events.EventLog.write("refused", messages=list(problems))
    Display().error(f"no host was contacted: {' '.join(problems)}", wrap_text=False)
    raise SystemExit(REFUSED)


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"checked_hosts": checked_hosts}
