#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a folder of weights that the controller has."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_folder
short_description: Bring a folder of weights that the controller has
version_added: 0.1.0
description:
  - Looks at all files of a folder in one round trip, by size and time of change; only what differs travels. So a run that has
    nothing to do reads no weights, neither here nor there.
  - A file of the same size and another time is hashed on both sides first. What has come is hashed before it takes its name, which is
    one step; nobody ever finds half a file. What a run that was cut off has brought whole is not sent again.
  - Files that the controller does not have are left alone.
  - Owner is the user that runs the module, modes are V(0644) and V(0755).
  - A companion action plugin reads O(source) on the controller.
options:
  source:
    description: Folder B(on the controller).
    type: str
    required: true
  path:
    description: Folder on the host that has the same files afterwards.
    type: path
    required: true
  verify:
    description:
      - V(all) hashes the files of the same size and time too. V(changed) and V(size) mean the same here, as M(dgxspark.vllm.model_snapshot)
        has them.
    type: str
    choices: [changed, all, size]
    default: changed
  step:
    description: Set by the action plugin.
    type: str
    choices: [look, stage, place]
  files:
    description: Set by the action plugin from O(source).
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Files of the same size and another time are hashed in check mode too.
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: dgxspark.vllm.model_snapshot
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Bring the model of our own
  dgxspark.vllm.model_folder:
    source: models/ours
    path: /srv/huggingface/local/ours
  become: true
"""

RETURN = r"""
brought:
  description: Names of the files that came, or would.
  returned: always
  type: list
  elements: str
  sample: [config.json, model-00001-of-00002.safetensors]
bytes:
  description: How much was sent.
  returned: always
  type: int
  sample: 5368709120
"""

import os
import shutil
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils import bundle, snapshots

FILE_MODE = 0o644
FOLDER_MODE = 0o755


def waiting(path: Path) -> Path:
    """Return where files wait until they are hashed: on the file system that they are moved to, out of the model's folder."""
    return path.with_name(f".{path.name}.coming")


def own(path: Path, mode: int) -> None:
    """Set owner and mode."""
    os.chown(path, os.geteuid(), os.getegid())
    path.chmod(mode)


def look(path: Path, files: dict[str, Any], hash_all: bool, check: bool) -> dict[str, Any]:
    """Say what is missing, and the digests of what may be the same; mends owners and modes."""
    missing, digests, changed = [], {}, False
    for name, wanted in files.items():
        file = path / name
        try:
            now = file.stat()
        except FileNotFoundError:
            missing.append(name)
            continue
        if not stat.S_ISREG(now.st_mode) or now.st_size != wanted["size"]:
            missing.append(name)
            continue
        if hash_all or int(now.st_mtime) != wanted["mtime"]:
            digests[name] = snapshots.sha256_of(file)
        if stat.S_IMODE(now.st_mode) != FILE_MODE or now.st_uid != os.geteuid():
            changed = True
            if not check:
                own(file, FILE_MODE)
    return {"missing": missing, "digests": digests, "changed": changed}


def stage(module: AnsibleModule, path: Path, files: dict[str, Any]) -> dict[str, Any]:
    """Make ready for files that come; returns what of them an earlier run has brought."""
    folder = waiting(path)
    staged = {file.name: file.stat().st_size for file in folder.iterdir()} if folder.is_dir() else {}
    coming = sum(file["size"] for file in files.values() if staged.get(file["part"]) != file["size"])
    disk = path
    while not disk.exists():
        disk = disk.parent
    free = shutil.disk_usage(disk).free
    short = bundle.no_room(coming, free, f"the file system of {path}", f"what comes of {module.params['source']}")
    if short:
        module.fail_json(msg=short + " Make room there.")
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    # The connection brings files as the login user.
    login = os.environ.get("SUDO_UID", "")
    if login.isdigit() and os.geteuid() == 0:
        os.chown(folder, int(login), -1)
    return {"staged": staged, "folder": str(folder)}


def place(path: Path, files: dict[str, Any]) -> list[str]:
    """Give every file that came its name, after it was hashed; returns those that are not what was sent."""
    folder, bad = waiting(path), []
    for name, wanted in files.items():
        file = path / name
        if wanted["part"]:
            came = folder / wanted["part"]
            if not came.is_file() or snapshots.sha256_of(came) != wanted["sha256"]:
                bad.append(name)
                came.unlink(missing_ok=True)
                continue
            for parent in reversed(file.parents):
                if parent.is_relative_to(path) and not parent.is_dir():
                    parent.mkdir(parents=True)
                    own(parent, FOLDER_MODE)
            own(came, FILE_MODE)
            came.replace(file)
        os.utime(file, (wanted["mtime"], wanted["mtime"]))
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return bad


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "verify": {"type": "str", "choices": ["changed", "all", "size"], "default": "changed"},
            "step": {"type": "str", "choices": ["look", "stage", "place"]},
            "files": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    path, files = Path(module.params["path"]), module.params["files"]
    if module.params["step"] is None:
        module.fail_json(msg="dgxspark.vllm.model_folder runs through its action plugin, on the controller")
    if path.exists() and not path.is_dir():
        module.fail_json(
            msg=f"{path} is no folder, but the files of {module.params['source']} belong in it; move it away"
        )
    if module.params["step"] == "look":
        module.exit_json(**look(path, files, module.params["verify"] == "all", module.check_mode))
    if module.params["step"] == "stage":
        module.exit_json(changed=False, **stage(module, path, files))
    module.exit_json(changed=True, bad=place(path, files))


if __name__ == "__main__":
    main()
