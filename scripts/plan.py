#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the plan of an inventory: no playbook, no host, nothing written. The same plan as that of playbooks/plan.yml.

Exit code: 0 it fits, 1 it does not, 2 what was given cannot be planned. Needs a clone, and ansible-core, which reads the inventory.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FITS, FAILS, WRONG = 0, 1, 2
SHOW = ("short", "full", "json", "none")


class BadInput(Exception):
    """What was given cannot be planned; the text says all that is wrong."""


def plan(inventory: list[str], show: str = "none", extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the plan of an inventory, as the module plan answers it: hosts, clusters, addons, findings, errors.

    inventory: files and folders, as C(-i) of ansible-playbook takes them. show: one of SHOW; what is printed on the way.
    extra: variables that win over those of the inventory, as C(-e). Raises BadInput.
    """
    # Ansible looks for its settings when it is imported. The clone's make the collection known; nobody else's count here.
    os.environ["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
    os.environ["ANSIBLE_COLLECTIONS_PATH"] = str(ROOT / "collections")
    os.environ["ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED"] = "true"
    sys.path.insert(0, str(ROOT / "collections"))
    try:
        from ansible.errors import AnsibleError
        from ansible.inventory.manager import InventoryManager
        from ansible.parsing.dataloader import DataLoader
        from ansible.playbook.task import Task
        from ansible.plugins.loader import init_plugin_loader
        from ansible.template import Templar
        from ansible.vars.hostvars import HostVars
        from ansible.vars.manager import VariableManager
    except ImportError as error:
        raise BadInput(f"ansible-core is needed to read an inventory (pip install ansible-core): {error}") from None
    init_plugin_loader([str(ROOT / "collections")])
    from ansible_collections.dgxspark.vllm.plugins.action.plan import ActionModule

    for path in inventory:
        if not path.endswith(",") and not Path(path).exists():
            raise BadInput(f"'{path}' is no file or folder")
    loader = DataLoader()
    try:
        hosts = InventoryManager(loader, sources=[str(Path(path).resolve()) for path in inventory])
        variables = VariableManager(loader, inventory=hosts)
        variables.extra_vars.update(extra or {})
        known = HostVars(hosts, variables, loader)
        task_vars: dict[str, Any] = {
            "groups": hosts.get_groups_dict(),
            "hostvars": known,
            "ansible_inventory_sources": [str(Path(path).resolve()) for path in inventory],
            "inventory_hostname": next(iter(hosts.get_groups_dict().get("sparks") or ["localhost"])),
        }
        task = Task()
        # As in check mode: nothing is written, and nothing is fetched.
        task.check_mode = True
        task.args = {"show": show, "fail_on_error": False, "missing_keys": "info"}
        nowhere: Any = SimpleNamespace(_shell=SimpleNamespace(tmpdir=""))
        action = ActionModule(task, nowhere, None, loader, Templar(loader, variables=task_vars), None)
        return dict(action.run(task_vars=task_vars))
    except AnsibleError as error:
        raise BadInput(str(error)) from error


def main(argv: list[str]) -> int:
    """Print the plan; the exit code of the module's documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", nargs="+", help="folders or files of an inventory, such as inventories/coresident")
    parser.add_argument("--show", choices=SHOW, default="short", help="short (notes are counted), full, json or none")
    options = parser.parse_args(argv)
    try:
        return FAILS if plan(options.inventory, options.show)["errors"] else FITS
    except BadInput as error:
        print(f"plan: {error}", file=sys.stderr)
        return WRONG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
