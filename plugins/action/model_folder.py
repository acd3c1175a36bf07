# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send those files of a folder that a host lacks; documented in plugins/modules/model_folder.py."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import listed
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Progress

MODULE = "dgxspark.vllm.model_folder"
TRIES = 2  # a way that damages files twice is broken


class ActionModule(ActionBase):
    """List the folder, ask the host what of it differs, send that."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was brought; in check mode what would be."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        for name in ("source", "path"):
            if not self._task.args.get(name):
                raise AnsibleActionFail(f"{name} is missing")
        self.source = Path(of_host(str(self._task.args["source"]), task_vars or {}))
        files = listed(self.source)
        looked = self._on_host("look", files)
        self._asked([*looked["missing"], *looked["digests"]], files, "look")
        mine = {name: self._sha256(name) for name in looked["digests"]}
        differs = [name for name, digest in looked["digests"].items() if digest != mine[name]]
        wanted = [*looked["missing"], *differs]
        # Of the same content, and of another time: this one is to be known by its time the next time.
        stale = {name: files[name] for name in looked["digests"] if name not in differs}
        if self._task.args.get("verify") == "all" and not wanted:
            stale = {}
        result.update(changed=bool(wanted or looked["changed"]), brought=sorted(wanted), bytes=0)
        if wanted and self._task.diff:
            result["diff"] = [
                {"header": str(self._task.args["path"]), "prepared": "".join(f"+ {name}\n" for name in sorted(wanted))}
            ]
        if (wanted or stale) and not self._task.check_mode:
            result["bytes"] = self._bring({name: files[name] for name in wanted}, stale, mine)
        return result

    def _sha256(self, name: str) -> str:
        try:
            return snapshots.sha256_of(self.source / name)
        except OSError as error:
            raise AnsibleActionFail(
                f"{self.source / name} cannot be read on the controller: {error.strerror}"
            ) from error

    def _bring(self, wanted: dict[str, dict[str, Any]], stale: dict[str, dict[str, Any]], mine: dict[str, str]) -> int:
        """Send files and have them placed; returns the bytes that were sent."""
        host, path = str(self.variables.get("inventory_hostname", "")), str(self._task.args["path"])
        rest: dict[str, dict[str, Any]] = {name: {**file, "part": ""} for name, file in stale.items()}
        for name, file in wanted.items():
            digest = mine.get(name) or self._sha256(name)
            part = hashlib.sha256(f"{name}\n{digest}".encode()).hexdigest()
            rest[name] = {**file, "sha256": digest, "part": part}
        sent = 0
        for _attempt in range(TRIES):
            coming = {name: file for name, file in rest.items() if file["part"]}
            if coming:
                ready = self._on_host("stage", coming)
                missing = {
                    name: file for name, file in coming.items() if ready["staged"].get(file["part"]) != file["size"]
                }
                talk = Progress(host, path, sum(file["size"] for file in missing.values()))
                for name, file in missing.items():
                    self._connection.put_file(str(self.source / name), f"{ready['folder']}/{file['part']}")
                    talk.add(file["size"])
                    if ready["apart"]:  # what waits lies on another file system, which may be a small one
                        self._on_host("place", {name: file}, last=False)
                sent += talk.done
            bad = self._on_host("place", rest)["bad"]
            self._asked(bad, rest, "place")
            if not bad:
                return sent
            rest = {name: rest[name] for name in bad}
        raise AnsibleActionFail(
            f"{', '.join(rest)} of {self.source} came to {host} with other bytes, twice. Were they changed meanwhile? If not, see to the "
            "host's disk and memory. Run again: what came whole is in place."
        )

    def _on_host(self, step: str, files: Mapping[str, Any], last: bool = True) -> dict[str, Any]:
        """Run a step on the host; fail as it fails."""
        kept = ("path", "verify", "hf_home", "staging")
        args = {"last": last, **{key: self._task.args[key] for key in kept if key in self._task.args}}
        found: dict[str, Any] = self._execute_module(
            module_name=MODULE,
            module_args={**args, "source": str(self.source), "step": step, "files": dict(files)},
            task_vars=self.variables,
        )
        if found.get("failed"):
            why = str(found.get("msg") or found.get("module_stderr") or f"step {step} failed")
            raise AnsibleActionFail(foreign_text.printable(why))
        return dict(checked_answer(found, answers.MODEL_FOLDER[step], self._host(), f"step {step} of {MODULE}"))

    def _host(self) -> str:
        return str(self.variables.get("inventory_hostname", ""))

    def _asked(self, names: Iterable[str], known: Collection[str], step: str) -> None:
        """Fail where the host names files that it was not asked about."""
        checked_answer(
            None, lambda _value, where: answers.among(names, known, where), self._host(), f"step {step} of {MODULE}"
        )
