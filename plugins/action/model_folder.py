# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send the files of a folder that a host lacks; documented in plugins/modules/model_folder.py."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import listed
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_steps import HostSteps, OutgoingFile

MOST_TRIES = 2
"""How often files are sent; a network that damages them twice is broken."""

Files = dict[str, dict[str, Any]]
"""Files by name: size in bytes, mtime, and if they are sent, sha256 and part, the name under which they wait on the host."""


class ActionModule(HostSteps):
    """List the folder, ask the host which files differ, and send those."""

    MODULE = "dgxspark.vllm.model_folder"
    ANSWERS = answers.MODEL_FOLDER
    OPTIONS = ("source", "path", "verify", "hf_home", "staging")

    def act(self) -> dict[str, Any]:
        """Return the files that were sent; in check mode those that would be."""
        for name in ("source", "path"):
            if not self.args.get(name):
                raise AnsibleActionFail(f"{name} is missing")
        self.source = Path(of_host(str(self.args["source"]), self.variables))
        self.args["source"] = str(self.source)
        files = listed(self.source)
        state = self.run_step("look", files=files)
        self.check_names([*state["missing"], *state["digests"]], files, "look")
        digests = {name: self._sha256(name) for name in state["digests"]}
        same = [name for name in digests if digests[name] == state["digests"][name]]
        outgoing = sorted([*state["missing"], *(set(digests) - set(same))])
        result: dict[str, Any] = {"changed": bool(outgoing or state["changed"]), "brought": outgoing, "bytes": 0}
        if outgoing and self._task.diff:
            lines = "".join(f"+ {name}\n" for name in outgoing)
            result["diff"] = [{"header": str(self.args["path"]), "prepared": lines}]
        if self.args.get("verify") == "all" and not outgoing:
            same = []
        if not self._task.check_mode:
            # Files with the same content get the mtime of the controller, so that the next run recognises them.
            pending: Files = {name: {**files[name], "part": ""} for name in same}
            pending.update({name: self._outgoing(name, files[name], digests.get(name)) for name in outgoing})
            result["bytes"] = self._bring(pending)
        return result

    def _outgoing(self, name: str, file: dict[str, Any], digest: str | None) -> dict[str, Any]:
        """Return a file to send. file: its size and mtime. digest: its sha256 if it is known."""
        digest = digest or self._sha256(name)
        return {**file, "sha256": digest, "part": hashlib.sha256(f"{name}\n{digest}".encode()).hexdigest()}

    def _sha256(self, name: str) -> str:
        try:
            return snapshots.sha256_of(self.source / name)
        except OSError as error:
            raise AnsibleActionFail(
                f"{self.source / name} cannot be read on the controller: {error.strerror}"
            ) from error

    def _bring(self, pending: Files) -> int:
        """Send files and have them placed; returns the bytes that were sent."""
        sent = 0
        if not pending:
            return sent
        for _attempt in range(MOST_TRIES):
            sent += self._send_missing({name: file for name, file in pending.items() if file["part"]})
            bad = self.run_step("place", files=pending, last=True)["bad"]
            self.check_names(bad, pending, "place")
            if not bad:
                return sent
            pending = {name: pending[name] for name in bad}
        raise AnsibleActionFail(
            f"{', '.join(pending)} of {self.source} came to {self.host} with other bytes, twice. If nobody changed them meanwhile, check "
            "the disk and memory of the host. Then run again: complete files are in place."
        )

    def _send_missing(self, files: Files) -> int:
        """Send the files that do not wait on the host yet; returns their bytes."""
        if not files:
            return 0
        staged = self.run_step("stage", files=files)
        names = {file["part"]: name for name, file in files.items()}
        outgoing = [
            OutgoingFile(self.source / name, f"{staged['folder']}/{file['part']}", file["size"])
            for name, file in files.items()
            if staged["staged"].get(file["part"]) != file["size"]
        ]

        def place(file: OutgoingFile) -> None:
            name = names[file.remote.rpartition("/")[2]]
            self.run_step("place", files={name: files[name]}, last=False)

        # The staging folder may be on another, smaller file system.
        return self.send(str(self.args["path"]), outgoing, place if staged["apart"] else None)
