# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the support bundles of hosts, and their index, on the controller; documented in plugins/modules/support_bundle.py."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, support
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.fleet_status import why_unreachable
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet

display = Display()
MODULE = "dgxspark.vllm.support_bundle"
MOST_TIMES = 3  # an archive is larger than what is in it: a header and a filled block for each file


class ActionModule(ActionBase):
    """Have the host pack its bundle, take it from the answer, keep it for the owner alone."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return where the bundle is, or why there is none."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        dest = Path(of_fleet(str(self._task.args.get("dest") or ""), variables))
        if not dest.is_absolute():
            raise AnsibleActionFail(f"dest is '{dest}'; name the folder on the controller by its whole path.")
        result.update(changed=False, _ansible_verbose_override=True)
        if self._task.args.get("index_from"):
            result.update(self._index(dest, str(self._task.args["index_from"]), variables))
            return result
        try:
            found = self._execute_module(module_name=MODULE, module_args=dict(self._task.args), task_vars=variables)
        except AnsibleConnectionFailure as error:
            found = {"unreachable": True, "msg": str(error)}
        if found.get("ansible_facts"):
            result["ansible_facts"] = found["ansible_facts"]
        if found.get("unreachable") or found.get("failed"):
            gone = bool(found.get("unreachable"))
            message = foreign_text.printable(str(found.get("msg") or "it failed without a word"))
            result.update(reached=not gone, why=why_unreachable(message) if gone else " ".join(message.split())[:300])
            return result
        try:
            said = reader.read(answers.SUPPORT, foreign_text.received(found), "its answer")
            content = answers.archive(said["content"], MOST_TIMES * int(self._task.args.get("max_mib") or 16) * 2**20)
        except foreign_text.Untrusted as error:
            result.update(reached=True, why=f"its answer is invalid and was discarded: {error}")
            return result
        name = f"{str(variables.get('inventory_hostname')).replace('/', '_')}.tar.gz"
        if not self._task.check_mode:
            write(dest / name, content)
        result.update(
            reached=True,
            why="",
            bundle=name,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            **{key: said[key] for key in ("files", "redacted", "left_out")},
        )
        return result

    def _index(self, dest: Path, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        answers = {
            host: variables["hostvars"][host].get(name) or {} for host in variables.get("ansible_play_hosts_all") or []
        }
        # Hosts of the inventory without anything of this collection were left out.
        entries = {str(host): answer for host, answer in answers.items() if not answer.get("skipped")}
        body = support.index(datetime.now(timezone.utc).isoformat(timespec="seconds"), entries)
        if not self._task.check_mode:
            write(dest / "index.json", (json.dumps(body, indent=1, sort_keys=True) + "\n").encode())
        there = [entry for entry in entries.values() if entry.get("bundle")]
        size, taken = (sum(entry[key] for entry in there) for key in ("bytes", "redacted"))
        display.display(
            f"{len(there)} of {len(entries)} hosts, {size / 2**20:.1f} MiB, {taken} secrets redacted: {dest}\n"
            "Names of hosts, addresses and models are still in there; look through it before you give it away."
        )
        missing = support.missing(entries)
        answer: dict[str, Any] = {"index": str(dest / "index.json"), "failed": bool(missing)}
        if missing:
            answer["msg"] = f"{len(missing)} of {len(entries)} hosts have no bundle: {', '.join(missing[:8])}"
        return answer


def write(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, by one rename."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_file.write_bytes(path, content, 0o600)
    except OSError as error:
        raise AnsibleActionFail(f"the bundle cannot be written to {path} on the controller: {error}") from error
