#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy a folder of weights from the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_folder
short_description: Copy a folder of weights from the controller
description:
  - Compares all files of a folder in one round trip, by size and time of change, and sends those that differ. A file of the same size and another time is
    hashed on both sides first, so a run without differences reads no weights.
  - A received file is hashed before it takes its name, in one step. Files that an interrupted run has sent whole are not sent again. Other files of the
    folder are left alone. Owner is the user that runs the module, modes are V(0644) and V(0755).
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
    description: V(all) hashes the files of the same size and time too; V(changed) and V(size) do not.
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
  sample: [config.json, model-00001-of-00002.safetensors]
bytes:
  description: How much was sent.
  returned: always
  type: int
"""

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import incoming
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, host_lock, made

STAGING = "/var/lib/dgxspark/incoming"
FILE_MODE = 0o644
FOLDER_MODE = 0o755


class Folder:
    """The folder of a model on this host."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.path, self.hf_home = Path(module.params["path"]), Path(module.params["hf_home"])
        # Files wait in a folder of root until they are hashed; others may write to the folder of models.
        digest = hashlib.sha256(str(self.path).encode()).hexdigest()
        self.staging = Path(module.params["staging"]) / f"{self.path.name}-{digest[:12]}"

    @property
    def relative(self) -> str:
        """Path of the folder below the folder of models."""
        return self.path.relative_to(self.hf_home).as_posix()

    def noted_paths(self) -> list[str]:
        """Return the paths that the collection made in this folder, below the folder of models."""
        return made.made_of(made.local_name(self.path.name)).get(str(self.hf_home)) or []

    def look(self, files: dict[str, Any]) -> dict[str, Any]:
        """Return the missing files, and the digests of files that may be the same; correct the modes of own files."""
        missing, digests, changed = [], {}, False
        own, hash_all = set(self.noted_paths()), self.module.params["verify"] == "all"
        for name, expected in files.items():
            try:
                handle = beneath.open_file(self.hf_home, f"{self.relative}/{name}")
            except FileNotFoundError:
                missing.append(name)
                continue
            with handle:
                info = os.fstat(handle.fileno())
                if info.st_size != expected["size"]:
                    missing.append(name)
                    continue
                if hash_all or int(info.st_mtime) != expected["mtime"]:
                    digests[name] = beneath.sha256_of(handle)
                if stat.S_IMODE(info.st_mode) != FILE_MODE and f"{self.relative}/{name}" in own:
                    changed = True
                    if not self.module.check_mode:
                        os.fchmod(handle.fileno(), FILE_MODE)
        return {"missing": missing, "digests": digests, "changed": changed}

    def stage(self, files: dict[str, Any]) -> dict[str, Any]:
        """Prepare for incoming files; returns the sizes of those that an earlier run has sent."""
        staged = incoming.staged_sizes(self.staging)
        sizes = [file["size"] for file in files.values() if staged.get(file["part"]) != file["size"]]
        is_apart = incoming.device(self.staging) != incoming.device(self.path)
        source = self.module.params["source"]
        needs = [(self.path, sum(sizes), f"what comes of {source}")]
        if is_apart:  # then files are placed one after the other
            needs.append((self.staging, max(sizes, default=0), f"the largest file of {source}"))
        message = incoming.missing_room(needs)
        if message:
            self.module.fail_json(msg=message)
        incoming.make_folder(self.staging)
        return {"staged": staged, "folder": str(self.staging), "apart": is_apart}

    def place(self, files: dict[str, Any]) -> list[str]:
        """Give every received file its name, after it was hashed; returns the damaged ones."""
        made.note(self.hf_home, made.local_name(self.path.name), [f"{self.relative}/{name}" for name in files])
        self.hf_home.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        bad = []
        with beneath.folder(self.hf_home, self.relative, make=True) as root:
            for name, file in files.items():
                if file["part"] and not self.place_one(root, name, file):
                    bad.append(name)
                    continue
                with beneath.open_file(root, name) as handle:
                    os.utime(handle.fileno(), (file["mtime"], file["mtime"]))
        if not bad and self.module.params["last"]:
            shutil.rmtree(self.staging, ignore_errors=True)
        made.hand_over(self.hf_home, self.noted_paths())
        return bad

    def place_one(self, root: int, name: str, file: dict[str, Any]) -> bool:
        """Place a received file. Returns whether it is whole. root: descriptor of the folder."""
        try:
            with beneath.open_file(self.staging, file["part"]) as handle:
                is_whole = beneath.place(handle, file["sha256"], root, name, FILE_MODE)
            (self.staging / file["part"]).unlink()
            return is_whole
        except FileNotFoundError:
            # It was placed on arrival, because the staging folder is on another file system.
            if beneath.size(root, name) != file["size"]:
                return False
            with beneath.open_file(root, name) as handle:
                return beneath.sha256_of(handle) == str(file["sha256"])


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
    folder, files, step = Folder(module), module.params["files"], module.params["step"]
    if step is None:
        module.fail_json(msg="dgxspark.vllm.model_folder runs through its action plugin, on the controller")
    if folder.hf_home not in folder.path.parents:
        module.fail_json(msg=f"path is {folder.path}, which does not lie below hf_home, {folder.hf_home}")
    if folder.path.exists() and not folder.path.is_dir():
        module.fail_json(
            msg=f"{folder.path} is no folder, but the files of {module.params['source']} belong in it; move it away"
        )
    try:
        if step == "look":
            module.exit_json(**folder.look(files))
        with host_lock.held(module):
            if step == "stage":
                module.exit_json(changed=False, **folder.stage(files))
            module.exit_json(changed=True, bad=folder.place(files))
    except beneath.Refused as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
