#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reset
short_description: Remove caches, weights and records of this collection from a host, and nothing else
version_added: 0.1.0
description:
  - Removes what the collection has noted that it made - the caches of services, with O(weights) the files of models that it fetched, and
    folders that are empty by then. What it did not make stays, wherever it lies, and is named.
  - Takes no folder from the inventory, so a value that has changed, or was never right, removes nothing.
  - Services, units and settings are the business of the roles; M(dgxspark.vllm.deploy) takes those away.
options:
  weights:
    description:
      - Remove the weights that were fetched, too. Without it they stay, with the notes of them, so that a later run can.
    type: bool
    default: false
  fabric:
    description:
      - Remove the copies of what the role fabric has replaced. Not while its network is in place.
    type: bool
    default: false
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: none
notes:
  - Needs root.
seealso:
  - module: dgxspark.vllm.cleanup
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Remove caches and weights
  dgxspark.vllm.reset:
    weights: true
  become: true
"""

RETURN = r"""
removed:
  description: Folders, models and notes that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/var/cache/dgxspark/heavy, Qwen/Qwen3-8B below /srv/huggingface]
left:
  description: What was looked at and stays, each with C(path) and C(why).
  returned: success
  type: list
  elements: dict
  sample: [{"path": "/srv/huggingface", "why": "not empty: mine"}]
freed_bytes:
  description: Bytes of the weights that were removed, or would be.
  returned: success
  type: int
  sample: 16397000000
lines:
  description: The same for people.
  returned: success
  type: list
  elements: str
"""

import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_lock, made, staging

PARTS = (
    *(
        "adopted",
        "alertmanager",
        "bundle",
        "compile_caches",
        "firewall",
        "fleet_monitor",
        "generations",
        "grafana",
        "guard",
        "image_plans",
        "images",
        "incoming",
        "on_demand",
        "prometheus",
    ),
    *("receipts", "speech", "spread", "starts", "textfile", "watchdog"),
)
"""Of the folder of notes; people's own, as chats and accounts of clients, lie beside them."""
CACHES = Path("/var/cache/dgxspark")


class Reset:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.params, self.check = module.params, module.check_mode
        self.removed: list[str] = []
        self.left: list[dict[str, str]] = []
        self.freed = 0

    def run(self) -> None:
        """Remove what is ours, what lies deepest first."""
        if self.params["weights"]:
            self.weights()
        self.folders()
        self.notes()

    def weights(self) -> None:
        """Remove the files of models that were made here."""
        left: dict[str, str] = {}
        for name in made.noted_models():
            homes = sorted(made.made_of(name))
            gone, stays, size = made.remove_made(name, self.check)
            self.freed += size
            shown = name.replace("--", "/", 1)
            self.removed += [
                f"{shown} below {home}" for home in homes if any(path.startswith(f"{home}/") for path in gone)
            ]
            # What models share is empty when the last of them is gone.
            left = {path: why for path, why in left.items() if path not in gone} | {
                each["path"]: each["why"] for each in stays
            }
        self.left += [{"path": path, "why": why} for path, why in sorted(left.items()) if Path(path).exists()]

    def folders(self) -> None:
        """Remove caches, and folders that are empty."""
        known = made.folders()
        # Weights that stay are what their folder is there for.
        homes = {home for name in made.noted_models() for home in made.made_of(name)}
        for path in sorted(known, key=lambda each: (-each.count("/"), each)):
            if known[path] == "weights" and not self.params["weights"]:
                continue
            went, why = made.remove_folder(path, self.check)
            if went:
                self.removed.append(path)
            elif why and (
                self.params["weights"] or not any(home == path or home.startswith(f"{path}/") for home in homes)
            ):
                self.left.append({"path": path, "why": why})
        for folder in (CACHES,):
            others = (
                sorted(path.name for path in folder.iterdir() if str(path) not in self.removed)
                if folder.is_dir()
                else None
            )
            if others:
                self.left.append({"path": str(folder), "why": f"not empty: {', '.join(others[:5])}"})
            elif others is not None:
                self.removed.append(str(folder))
                if not self.check:
                    folder.rmdir()

    def notes(self) -> None:
        """Remove notes; those of weights and folders that stay are kept."""
        state = made.state_dir()
        parts = [*PARTS, *(["fabric"] if self.params["fabric"] else [])]
        for path in [state / name for name in parts]:
            self.take(path)
        models = state / "models"
        for path in sorted(models.iterdir()) if models.is_dir() else []:
            if not path.name.endswith(".made"):
                self.take(path, shown=False)
        if self.check:
            return
        made.forget_images(made.images())
        if not made.folders():
            (state / "made").unlink(missing_ok=True)
        for folder in (models, state):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
                self.removed.append(str(folder))

    def take(self, path: Path, shown: bool = True) -> None:
        """Remove a part of the folder of notes, which is root's."""
        if not path.is_symlink() and not path.exists():
            return
        if shown:
            self.removed.append(str(path))
        if self.check:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"weights": {"type": "bool", "default": False}, "fabric": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )
    reset = Reset(module)
    try:
        with host_lock.held(module) as locked:
            if locked:
                staging.sweep()
            reset.run()
    except PermissionError as error:
        module.fail_json(msg=f"{error.filename}: permission denied; this needs root (become: true)")
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be removed: {error.strerror}. Run again once that is mended")
    word = "would be removed" if module.check_mode else "removed"
    lines = [f"{word}: {what}" for what in reset.removed] + [
        f"stays: {each['path']} ({each['why']})" for each in reset.left
    ]
    result: dict[str, Any] = {"removed": reset.removed, "left": reset.left, "freed_bytes": reset.freed, "lines": lines}
    module.exit_json(changed=bool(reset.removed), **result)


if __name__ == "__main__":
    main()
