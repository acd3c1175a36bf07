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
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers, support
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.fleet_status import why_unreachable
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet

display = Display()
MOST_TEXT = 300
MOST_TIMES = 3  # an archive is larger than its files: a header and padding for each


class ActionModule(HostAction):
    """Have the host pack its bundle, and write it on the controller for its owner only."""

    MODULE = "dgxspark.vllm.support_bundle"

    def act(self) -> dict[str, Any]:
        """Return the file of the bundle, or the reason without one."""
        dest = Path(of_fleet(str(self.args.get("dest") or ""), self.variables))
        if not dest.is_absolute():
            raise AnsibleActionFail(f"dest is '{dest}'; name the folder on the controller by its whole path.")
        result: dict[str, Any] = {"changed": False, "_ansible_verbose_override": True}
        if self.args.get("index_from"):
            return {**result, **self._index(dest)}
        try:
            answer = self.execute(self.args)
        except AnsibleConnectionFailure as error:
            answer = {"unreachable": True, "msg": str(error)}
        if answer.get("ansible_facts"):
            result["ansible_facts"] = answer["ansible_facts"]
        if answer.get("unreachable") or answer.get("failed"):
            message = foreign_text.printable(str(answer.get("msg") or "it failed without a word"))
            is_reached = not answer.get("unreachable")
            why = " ".join(message.split())[:MOST_TEXT] if is_reached else why_unreachable(message)
            return {**result, "reached": is_reached, "why": why}
        try:
            bundle = reader.read(answers.SUPPORT, foreign_text.received(answer), "its answer")
            content = answers.archive(bundle["content"], MOST_TIMES * int(self.args.get("max_mib") or 16) * 2**20)
        except foreign_text.Untrusted as error:
            return {**result, "reached": True, "why": f"its answer is invalid and was discarded: {error}"}
        name = f"{self.host.replace('/', '_')}.tar.gz"
        if not self._task.check_mode:
            write(dest / name, content)
        return {
            **result,
            "reached": True,
            "why": "",
            "bundle": name,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            **{key: bundle[key] for key in ("files", "redacted", "left_out")},
        }

    def _index(self, dest: Path) -> dict[str, Any]:
        hosts, hostvars = self.variables.get("ansible_play_hosts_all") or [], self.variables["hostvars"]
        answers = {str(host): hostvars[host].get(str(self.args["index_from"])) or {} for host in hosts}
        # Hosts without anything of the collection are skipped.
        entries = {host: answer for host, answer in answers.items() if not answer.get("skipped")}
        body = support.index(datetime.now(timezone.utc).isoformat(timespec="seconds"), entries)
        if not self._task.check_mode:
            write(dest / "index.json", (json.dumps(body, indent=1, sort_keys=True) + "\n").encode())
        bundles = [entry for entry in entries.values() if entry.get("bundle")]
        size, redacted = (sum(entry[key] for entry in bundles) for key in ("bytes", "redacted"))
        display.display(
            f"{len(bundles)} of {len(entries)} hosts, {size / 2**20:.1f} MiB, {redacted} secrets redacted: {dest}\n"
            "Names of hosts, addresses and models are still in there; look through it before you give it away."
        )
        missing = support.missing(entries)
        answer: dict[str, Any] = {"index": str(dest / "index.json"), "failed": bool(missing)}
        if missing:
            answer["msg"] = f"{len(missing)} of {len(entries)} hosts have no bundle: {', '.join(missing[:8])}"
        return answer


def write(path: Path, content: bytes) -> None:
    """Write a file for its owner only, by one rename."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_file.write_bytes(path, content, 0o600)
    except OSError as error:
        raise AnsibleActionFail(f"the bundle cannot be written to {path} on the controller: {error}") from error
