# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the plan of an inventory without Ansible: no playbook, no host, nothing written. It is the plan of dgxspark.vllm.plan.

Needs Python and PyYAML. What only Ansible can read of an inventory is refused by name. Exit code: 0 it fits, 1 it does not, 2 what was given
cannot be planned.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture, placement
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths, inventory_files, recipe_sources
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.image_plans import ImagePlans
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import lock_path, read_lock
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.measured_starts import MeasuredStarts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_input import (
    address_of,
    check_files,
    digest,
    listed_twice,
    read_others,
    read_variables,
    recipe_dirs,
    resolve,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import load_recipes

FITS, FAILS, WRONG = 0, 1, 2
SHOW = ("short", "full", "json", "none")
GROUP = "sparks"


class BadInput(Exception):
    """What was given cannot be planned; the text says all that is wrong."""


def plan(inventory: str) -> dict[str, Any]:
    """Return the plan of an inventory as plan.json has it: C(schema), C(hosts), C(clusters), C(addons) and C(findings), errors first.

    :param inventory: a folder or file, as C(-i) of ansible-playbook takes it
    :raises BadInput: where it cannot be planned
    """
    try:
        read = inventory_files.Inventory(inventory)
    except inventory_files.Unreadable as error:
        raise BadInput(str(error)) from error
    known = {"groups": read.groups, "hostvars": read.hostvars, "ansible_inventory_sources": read.sources}
    messages: list[str] = []
    fleet = controller_paths.fleet_folder(known)
    hosts = {
        name: {
            "vars": read_variables(name, read.hostvars[name], messages, fleet),
            "address": address_of(name, read.hostvars[name]),
            "measured": None,
            "images": {},
            "fabric": None,
        }
        for name in read.groups.get(GROUP) or ()
    }
    messages += listed_twice(hosts, read.hostvars)
    if not hosts:
        messages.append(f"inventory: the group '{GROUP}' is missing or empty; it holds the DGX Sparks.")
    found = made(hosts, known, messages)
    check_files(found, "info")
    return {**found, "findings": engine.plan_findings(found)}


def made(hosts: dict[str, dict[str, Any]], known: dict[str, Any], messages: list[str]) -> dict[str, Any]:
    """Return the engine's plan.

    :param hosts: the Sparks, as C(make_plan) takes them
    :param known: C(groups), C(hostvars) and C(ansible_inventory_sources), as an action has them
    :param messages: what is wrong already
    :raises BadInput: with all that is wrong
    """
    others = read_others(set(hosts), messages, known)
    recipes, wrong = load_recipes(recipe_dirs(hosts, messages))
    sources = recipe_sources.of_hosts(hosts, known, False, messages)
    recipes.update(recipe_sources.named(sources, hosts, recipes))
    locked, unread = read_lock(lock_path(hosts, known, messages))
    everything = {name: host["vars"] for name, host in {**hosts, **others}.items()}
    read_by_ansible = controller_paths.Sources(
        known["ansible_inventory_sources"],
        lambda name: bool(inventory_files.IGNORED.search(name)),
        inventory_files.EXTENSIONS,
    )
    messages += [*wrong, *unread, *controller_paths.misplaced(everything, read_by_ansible)]
    for name, host in hosts.items():
        if not host["vars"].get("spark_model_dir"):
            host["vars"]["spark_model_dir"] = known["hostvars"][name]["inventory_dir"]
    found: dict[str, Any] = {}
    try:
        found = engine.make_plan(
            hosts,
            recipes,
            digest,
            known["groups"],
            others,
            locked,
            resolve=lambda name: resolve(address_of(name, known["hostvars"].get(name, {}))),
            known=ImagePlans(known, False, locked),
            starts=MeasuredStarts(known).of_hosts(hosts),
        )
    except InventoryError as error:
        messages += error.messages
    if messages:
        count = f"{len(messages)} problem{'s'[: len(messages) != 1]}"
        raise BadInput("\n- ".join([f"the inventory cannot be planned, {count}:", *messages]))
    return found


def text(found: Mapping[str, Any], show: str) -> str:
    """Return a plan as it is printed.

    :param found: of C(plan)
    :param show: one of SHOW
    """
    if show == "json":
        return json.dumps(found, sort_keys=True)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size((79, 24)).columns - 1
    parts = [picture.plan_text(found, found["findings"], width, color, "", show == "full"), placement.text(found)]
    return "" if show == "none" else "\n".join(filter(None, parts))


def main(argv: list[str]) -> int:
    """Print the plan; returns the exit code that the text above has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", help="folder or file of an inventory, such as my-sparks")
    parser.add_argument("--show", choices=SHOW, default="short", help="short (notes are counted), full, json or none")
    options = parser.parse_args(argv)
    try:
        found = plan(options.inventory)
    except BadInput as error:
        print(f"plan: {error}", file=sys.stderr)
        return WRONG
    if said := text(found, options.show):
        print(said)
    return FAILS if any(each["severity"] == "error" for each in found["findings"]) else FITS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
