# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send checksums first, and only those contents that a host lacks; documented in plugins/modules/deploy.py."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.controller import run_name
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostFile, HostState, merge
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

COLLECTION = Path(__file__).resolve().parents[2]
OPTIONS = ("state", "weights", "fabric")
"""Arguments that are no rows."""


class ActionModule(HostAction):
    """Read the files on the controller, ask the host which of them it needs, send those."""

    MODULE = "dgxspark.vllm.deploy"

    def act(self) -> dict[str, Any]:
        """Return the module's answer."""
        # Contents, and checksums of secrets, are no matter for the host's log.
        variables = {**self.variables, "ansible_no_target_syslog": True}
        state = document_of(plain(self._task.args))
        contents = {file.path: self._content(file, variables) for file in state.distinct().files if not file.generate}
        digests = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
        # The host is asked about each file by the checksum of its content.
        files = [
            replace(file, content=None, source=None, bundled=None, digest=digests.get(file.path))
            for file in state.files
        ]
        # The host needs these contents to tell whether the file differs.
        needed = {file.path for file in files if file.fill}
        result = self._deploy(state, _with_contents(files, contents, needed), variables)
        paths = result.get("wanted")
        if paths:
            result = self._deploy(state, _with_contents(files, contents, needed | set(paths)), variables)
        result.pop("invocation", None)
        return result

    def _deploy(self, state: HostState, files: Sequence[HostFile], variables: dict[str, Any]) -> dict[str, Any]:
        arguments = {
            **{key: self._task.args[key] for key in OPTIONS if key in self._task.args},
            **replace(state, files=tuple(files)).to_dict(),
            "part": str(self._task.args.get("part") or ""),
            "parts": parts_of(plain(self._task.args), state),
            "controller": run_name(str(self._task._uuid)),
        }
        answer: dict[str, Any] = self._execute_module(
            module_name=self.MODULE, module_args=arguments, task_vars=variables
        )
        return answer

    def _content(self, file: HostFile, variables: dict[str, Any]) -> bytes:
        if file.content is not None:
            return str(file.content).encode()
        if file.bundled:
            return (COLLECTION / file.bundled).read_bytes()
        part = f"{file.part}: " if file.part else ""
        if not file.source:
            raise AnsibleActionFail(f"{part}{file.path} has neither content nor source")
        # A secret is the user's and lies where the inventory says; anything else is looked for in the role first.
        source = of_host(file.source, variables) if file.secret else file.source
        try:
            real = self._loader.get_real_file(self._find_needle("files", source))
            content = Path(real).read_bytes()
        except (AnsibleError, OSError) as error:
            raise AnsibleActionFail(
                f"{part}{source}, meant for {file.path}, cannot be read on the controller: {error}"
            ) from error
        self._loader.cleanup_tmp_file(real)
        return content


def document_of(arguments: Mapping[str, Any]) -> HostState:
    """Return the document that the arguments of a task describe. Raises AnsibleActionFail for a row that is not one."""
    part = str(arguments.get("part") or "")
    try:
        states = [
            HostState.from_dict(document, str(document.get("part") or part))
            for document in (arguments, *(arguments.get("documents") or []))
        ]
        state = merge(states).resolved()
        state.distinct()  # refuses a file with two contents
    except ValueError as error:
        raise AnsibleActionFail(f"{part}: {error}" if part else str(error)) from error
    return state


def parts_of(arguments: Mapping[str, Any], state: HostState) -> list[str]:
    """Return the parts that a task deploys entirely. Without the argument C(parts): the parts that the task, its documents and the rows name."""
    if arguments.get("parts") is not None:
        return [str(part) for part in arguments["parts"]]
    documents = arguments.get("documents") or []
    named = {str(document.get("part") or "") for document in (arguments, *documents)}
    listed = {str(part) for document in documents for part in document.get("parts") or []}
    return sorted({*named, *listed, *state.parts()} - {""})


def _with_contents(files: Sequence[HostFile], contents: Mapping[str, bytes], paths: Collection[str]) -> list[HostFile]:
    """Return files, some of them with their contents; the content of a file of several parts is sent once."""
    sent: set[str] = set()
    rows = []
    for file in files:
        if file.path in paths and file.path in contents and file.path not in sent:
            sent.add(file.path)
            rows.append(replace(file, data=base64.b64encode(contents[file.path]).decode()))
        else:
            rows.append(file)
    return rows
