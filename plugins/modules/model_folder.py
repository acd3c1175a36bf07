#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy a folder of weights from the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_folder
short_description: Copy a folder of weights from the controller
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
  hf_home:
    description: Folder above O(path) that others than root may write to. Links below it are not followed.
    type: path
    default: /srv/huggingface
  staging:
    description: Folder on the host where files wait until they are hashed, for root alone to change.
    type: path
    default: /var/lib/dgxspark/incoming
  step:
    description: Set by the action plugin.
    type: str
    choices: [look, stage, place]
  files:
    description: Set by the action plugin from O(source).
    type: dict
    default: {}
  last:
    description: Set by the action plugin; whether more files are to be placed.
    type: bool
    default: true
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - Files of the same size and another time are hashed in check mode too.
  diff_mode:
    support: full
seealso:
  - module: dgxspark.vllm.model_snapshot
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Copy a model of our own
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

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, host_lock, made

STAGING = "/var/lib/dgxspark/incoming"
FILE_MODE = 0o644
FOLDER_MODE = 0o755


def waiting(staging: str, path: Path) -> Path:
    """Return where files wait until they are hashed: in a folder of root, since others may write to that of the models."""
    return Path(staging) / f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def device_of(path: Path) -> int:
    """Return the file system of a path that may not be there yet."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def inside(hf_home: Path, path: Path) -> str:
    """Return a path as it is below the folder of the models."""
    return path.relative_to(hf_home).as_posix()


def note(hf_home: Path, path: Path, files: dict[str, Any]) -> list[str]:
    """Note what is about to be made.

    :param hf_home: folder of weights
    :param path: folder of the model
    :param files: that are to come
    :returns: all that was made of the model, below the folder of the models
    """
    name = made.local_name(path.name)
    made.note(hf_home, name, [f"{inside(hf_home, path)}/{file}" for file in files])
    return made.made_of(name).get(str(hf_home)) or []


def look(hf_home: Path, path: Path, files: dict[str, Any], hash_all: bool, check: bool) -> dict[str, Any]:
    """Say what is missing, and the digests of what may be the same; mends the modes of what was brought here.

    :param hf_home: folder of weights
    :param path: folder of the model
    :param files: that it should have
    :param hash_all: whether every file is hashed, or those alone that are not known
    :param check: whether nothing is changed
    :returns: the result of the module
    """
    missing, digests, changed = [], {}, False
    ours = set(made.made_of(made.local_name(path.name)).get(str(hf_home)) or [])
    for name, wanted in files.items():
        try:
            handle = beneath.open_file(hf_home, f"{inside(hf_home, path)}/{name}")
        except FileNotFoundError:
            missing.append(name)
            continue
        with handle:
            now = os.fstat(handle.fileno())
            if now.st_size != wanted["size"]:
                missing.append(name)
                continue
            if hash_all or int(now.st_mtime) != wanted["mtime"]:
                digests[name] = beneath.sha256_of(handle)
            if stat.S_IMODE(now.st_mode) != FILE_MODE and f"{inside(hf_home, path)}/{name}" in ours:
                changed = True
                if not check:
                    os.fchmod(handle.fileno(), FILE_MODE)
    return {"missing": missing, "digests": digests, "changed": changed}


def stage(module: AnsibleModule, path: Path, files: dict[str, Any]) -> dict[str, Any]:
    """Make ready for files that come.

    :param module: of Ansible
    :param path: folder of the model
    :param files: that are to come
    :returns: the result of the module, with what of them an earlier run has brought
    """
    folder = waiting(module.params["staging"], path)
    staged = {file.name: file.stat().st_size for file in folder.iterdir()} if folder.is_dir() else {}
    coming = [file["size"] for file in files.values() if staged.get(file["part"]) != file["size"]]
    apart = device_of(folder) != device_of(path)
    # On another file system they are placed one after the other.
    needs = [
        (path, sum(coming), "what comes"),
        *([(folder, max(coming, default=0), "the largest file")] if apart else []),
    ]
    for where, need, what in needs:
        disk = where
        while not disk.exists():
            disk = disk.parent
        free = shutil.disk_usage(disk).free
        short = bundle.no_room(need, free, f"the file system of {where}", f"{what} of {module.params['source']}")
        if short:
            module.fail_json(msg=short + " Make room there.")
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    # The connection brings files as the login user.
    login = os.environ.get("SUDO_UID", "")
    if login.isdigit() and os.geteuid() == 0:
        os.chown(folder, int(login), -1)
    return {"staged": staged, "folder": str(folder), "apart": apart}


def place(module: AnsibleModule, hf_home: Path, path: Path, files: dict[str, Any]) -> list[str]:
    """Give every file that came its name, after it was hashed.

    :param module: of Ansible
    :param hf_home: folder of weights
    :param path: folder of the model
    :param files: that came
    :returns: those that are not what was sent
    """
    folder, bad = waiting(module.params["staging"], path), []
    noted = note(hf_home, path, files)
    hf_home.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    with beneath.folder(hf_home, inside(hf_home, path), make=True) as own:
        for name, wanted in files.items():
            if wanted["part"]:
                try:
                    with beneath.open_file(folder, wanted["part"]) as came:
                        right = beneath.place(came, wanted["sha256"], own, name, FILE_MODE)
                    (folder / wanted["part"]).unlink()
                except FileNotFoundError:
                    # Placed when it came, where what waits lies on another file system.
                    right = _is(own, name, wanted)
                if not right:
                    bad.append(name)
                    continue
            with beneath.open_file(own, name) as handle:
                os.utime(handle.fileno(), (wanted["mtime"], wanted["mtime"]))
    if not bad and module.params["last"]:
        shutil.rmtree(folder, ignore_errors=True)
    made.hand_over(hf_home, noted)
    return bad


def _is(own: int, name: str, wanted: dict[str, Any]) -> bool:
    if beneath.size(own, name) != wanted["size"]:
        return False
    with beneath.open_file(own, name) as handle:
        return beneath.sha256_of(handle) == str(wanted["sha256"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "verify": {"type": "str", "choices": ["changed", "all", "size"], "default": "changed"},
            "step": {"type": "str", "choices": ["look", "stage", "place"]},
            "files": {"type": "dict", "default": {}},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "staging": {"type": "path", "default": STAGING},
            "last": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    path, hf_home, files = Path(module.params["path"]), Path(module.params["hf_home"]), module.params["files"]
    if module.params["step"] is None:
        module.fail_json(msg="dgxspark.vllm.model_folder runs through its action plugin, on the controller")
    if hf_home not in path.parents:
        module.fail_json(msg=f"path is {path}, which does not lie below hf_home, {hf_home}")
    if path.exists() and not path.is_dir():
        module.fail_json(
            msg=f"{path} is no folder, but the files of {module.params['source']} belong in it; move it away"
        )
    try:
        if module.params["step"] == "look":
            module.exit_json(**look(hf_home, path, files, module.params["verify"] == "all", module.check_mode))
        with host_lock.held(module):
            if module.params["step"] == "stage":
                result: dict[str, Any] = {"changed": False, **stage(module, path, files)}
            else:
                result = {"changed": True, "bad": place(module, hf_home, path, files)}
        module.exit_json(**result)
    except beneath.Refused as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
