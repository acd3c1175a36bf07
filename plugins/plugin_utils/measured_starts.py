# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measured starts of engines, on the controller: a file for each host in C(.spark/measured) of the inventory folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import measured_starts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import read_stored, write

FOLDER = "measured"
SCHEMA = 1
_STARTS = reader.Most([answers.KEPT_START], measured_starts.MOST_STARTS)


class MeasuredStarts:
    """The measured starts of earlier proofs."""

    def __init__(self, task_vars: Mapping[str, Any]) -> None:
        """Read nothing yet. task_vars: of an action."""
        self.folder = controller_paths.state_folder(task_vars, FOLDER)

    def of_hosts(self, hosts: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the kept starts by host, without hosts without a file. hosts: their names."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        return {host: starts for host in hosts if (starts := self.of_host(host))}

    def of_host(self, host: str) -> list[dict[str, Any]]:
        """Return the kept starts of a host; the next proof replaces a malformed file."""
        path = controller_paths.host_file(self.folder, host)
        starts = read_stored(path, SCHEMA).get("starts") or []
        return [] if reader.problems(_STARTS, starts, str(path)) else list(reader.read(_STARTS, starts, str(path)))

    def keep(self, host: str, new: Sequence[Mapping[str, Any]]) -> bool:
        """Keep the measured starts of a proof. Raises OSError if the file cannot be written.

        new: starts of C(answers.START). Returns whether the file has changed.
        """
        path, before = controller_paths.host_file(self.folder, host), self.of_host(host)
        after = measured_starts.merge_starts(before, new)
        if path is None or after == before:
            return False
        write(path, json.dumps({"schema": SCHEMA, "starts": after}, indent=1, sort_keys=True) + "\n")
        return True


def take_over(result: Any, host: str, task_vars: Mapping[str, Any], module: str) -> None:
    """Keep the measured starts of a proof on a host; warn if the file cannot be written, and fail for an invalid answer.

    result: of the module, with C(receipts). module: its name.
    """
    receipts = checked_answer(result, answers.SERVICE_PROOF, host, module)["receipts"]
    starts = [entry["receipt"].get("start") for _name, entry in sorted(receipts.items())]
    store = MeasuredStarts(task_vars)
    try:
        store.keep(host, [start for start in starts if start])
    except OSError as error:
        Display().warning(f"what {host} measured is on its receipts alone, {store.folder} cannot be written: {error}")
