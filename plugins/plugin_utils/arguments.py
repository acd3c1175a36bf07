# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments: extra variables of a playbook (C(-e)), checked by the schema, and the specification of an action from its documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import schema, validation
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS, VARIABLES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths, events

SIMILAR = 0.85
"""Least similarity of a misspelt argument; C(service) is a misspelt C(services), C(service_user) is another name."""
OUTPUT = ("spark_events", "spark_result", "spark_timeline")
CALLBACK = "dgxspark.vllm.progress"
TEMPLATE = ("{{", "{%")
REQUIRED = {
    "import_src": "import needs the launch to convert: -e import_src=FILE",
    "services": "stop needs the services by name: -e services=NAME,NAME, or -e services=all for every service of the hosts",
}
"""Messages for missing variables that a playbook requires."""


def _check_value(problems: validation.Problems, name: str, key: schema.Key, value: Any) -> None:
    """Add the problems of a variable's value."""
    # A template has no value yet.
    is_template = isinstance(value, str) and any(mark in value for mark in TEMPLATE)
    why = "" if value is None or is_template else schema.wrong(key, schema.from_command_line(key, value))
    if why:
        problems.add(f"'{name}' {why}")
    elif name == "spark_wishes" and value and not any(mark in str(value) for mark in TEMPLATE):
        # Other playbooks start without the planner.
        from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import wishes

        schema.entries(problems, value, wishes.KEYS, "spark_wishes")


def check(extra_vars: Mapping[str, Any], playbook: str = "") -> list[str]:
    """Return the problems of extra variables; variables of other collections are not checked. playbook: its name, for playbooks with arguments."""
    arguments = PLAYBOOKS.get(playbook, {})
    prefixes = ["spark_", *([f"{playbook}_"] if any(name.startswith(f"{playbook}_") for name in arguments) else [])]
    keys = {**VARIABLES, **arguments}
    problems = validation.Problems("-e")
    # A YAML file of extra variables may have numbers or dates as names, which no variable of this collection has.
    for name in sorted(name for name in extra_vars if isinstance(name, str)):
        if name in keys:
            _check_value(problems, name, keys[name], extra_vars[name])
        elif near := validation.nearest_word(name, arguments, SIMILAR):
            problems.add(f"unknown variable '{name}'; did you mean '{near}'?")
        elif name.startswith(tuple(prefixes)):
            names = arguments if arguments and not name.startswith("spark_") else VARIABLES
            problems.add(
                f"unknown variable '{name}'{validation.nearest(name, names)} docs/inventory.md lists all variables."
            )
    return problems.messages


def check_output(
    extra_vars: Mapping[str, Any], callbacks: Sequence[str], sources: controller_paths.Sources
) -> list[str]:
    """Return the problems of the files for programs: no callback that writes them, or a place where Ansible reads inventory."""
    given = {name: extra_vars[name] for name in OUTPUT if extra_vars.get(name)}
    if given and CALLBACK not in callbacks:
        return [f"{' and '.join(given)}: nothing writes it; export ANSIBLE_CALLBACKS_ENABLED={CALLBACK}"]
    paths = {name: events.path_of(value, next(iter(sources.given), "")) for name, value in given.items()}
    read = {name: source for name, path in paths.items() if (source := sources.reads(path))}
    return [controller_paths.refuse(name, given[name], source) for name, source in read.items()]


def documented(documentation: str) -> dict[str, dict[str, Any]]:
    """Return the argument specification of an action by the C(DOCUMENTATION) of its module."""
    keys = ("type", "elements", "required", "default", "choices")
    options: dict[str, dict[str, Any]] = yaml.safe_load(documentation)["options"]
    return {name: {key: option[key] for key in keys if key in option} for name, option in options.items()}
