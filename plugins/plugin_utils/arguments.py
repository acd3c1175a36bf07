# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a playbook is given by C(-e), compared with the schema before anything is done; what an action is given, by its documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import schema, validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS, VARIABLES

SIMILAR = 0.85
"""How like an argument of the playbook another name has to be to be taken for it: C(service) is, C(service_user) is not."""
TEMPLATE = ("{{", "{%")
REQUIRED = {
    "import_src": "import needs the launch to convert: -e import_src=FILE",
    "services": "stop needs the services by name: -e services=NAME,NAME, or -e services=all for every service of the hosts",
}
"""What to say of a variable that a playbook cannot do without."""


def check(given: Mapping[str, Any], playbook: str = "") -> list[str]:
    """Return what is wrong with variables of the command line; those of others are left alone.

    given: the extra variables by name. playbook: which one, where it has arguments of its own.
    """
    own = PLAYBOOKS.get(playbook, {})
    prefixes = ("spark_", *({f"{playbook}_"} if any(name.startswith(f"{playbook}_") for name in own) else ()))
    known = {**VARIABLES, **own}
    found = validation.Problems("-e")
    # A YAML file of extra variables may hold names that are numbers or dates; none of them is a variable of this collection.
    for name in sorted(name for name in given if isinstance(name, str)):
        value = given[name]
        if name in known:
            why = (
                ""
                if value is None or _is_template(value)
                else schema.wrong(known[name], schema.from_command_line(known[name], value))
            )
            if why:
                found.add(f"'{name}' {why}")
            continue
        near = validation.nearest_word(name, own, SIMILAR)
        if near:
            found.add(f"unknown variable '{name}'; did you mean '{near}'?")
        elif name.startswith(prefixes):
            names = own if own and not name.startswith("spark_") else VARIABLES
            found.add(
                f"unknown variable '{name}'{validation.nearest(name, names)} docs/inventory.md lists those that there are."
            )
    return found.messages


def _is_template(value: Any) -> bool:
    """Whether what a value is comes out later."""
    return isinstance(value, str) and any(mark in value for mark in TEMPLATE)


def documented(documentation: str) -> dict[str, dict[str, Any]]:
    """Return the argument specification of an action by the C(DOCUMENTATION) of its module."""
    keys = ("type", "elements", "required", "default", "choices")
    options: dict[str, dict[str, Any]] = yaml.safe_load(documentation)["options"]
    return {name: {key: option[key] for key in keys if key in option} for name, option in options.items()}
