# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send checksums first, and only those contents that a host lacks; documented in plugins/modules/component.py."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.controller import run_name
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_host
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_action import HostAction

MODULE = "dgxspark.vllm.component"


class ActionModule(HostAction):
    """Read the files on the controller, ask the host which of them it needs, send those."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's answer."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        # Contents, and checksums of secrets, are no matter for the host's log.
        variables = {**(task_vars or {}), "ansible_no_target_syslog": True}
        contents: dict[str, bytes] = {}
        if args.get("state", "present") == "present":
            contents = {
                str(entry["path"]): self._content(entry, variables)
                for entry in args.get("files") or []
                if "path" in entry
            }
        bare = [
            {key: value for key, value in entry.items() if key not in ("content", "source")}
            for entry in args.get("files") or []
        ]
        for entry in bare:
            if str(entry.get("path")) in contents:
                entry["digest"] = hashlib.sha256(contents[str(entry["path"])]).hexdigest()
        args["files"] = bare
        args["controller"] = run_name(str(self._task._uuid))
        result: dict[str, Any] = self._execute_module(module_name=MODULE, module_args=args, task_vars=variables)
        wanted = result.get("wanted")
        if wanted:
            for entry in bare:
                if entry["path"] in wanted:
                    entry["data"] = base64.b64encode(contents[entry["path"]]).decode()
            result = self._execute_module(module_name=MODULE, module_args=args, task_vars=variables)
        result.pop("invocation", None)
        return result

    def _content(self, entry: dict[str, Any], variables: dict[str, Any]) -> bytes:
        if entry.get("content") is not None:
            return str(entry["content"]).encode()
        if not entry.get("source"):
            raise AnsibleActionFail(f"{self._task.args.get('name')}: {entry['path']} has neither content nor source")
        # A secret is the user's and lies where the inventory says; anything else is looked for in the role first.
        source = of_host(str(entry["source"]), variables) if entry.get("secret") else str(entry["source"])
        try:
            real = self._loader.get_real_file(self._find_needle("files", source))
            content = Path(real).read_bytes()
        except (AnsibleError, OSError) as error:
            raise AnsibleActionFail(
                f"{self._task.args.get('name')}: {source}, meant for {entry['path']}, cannot be read on the controller: {error}"
            ) from error
        self._loader.cleanup_tmp_file(real)
        return content
