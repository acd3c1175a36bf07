# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines took at their starts, as the controller keeps it: a file a host in C(.spark/measured) of the inventory folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import known_starts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer

FOLDER = "measured"
SCHEMA = 1
_STARTS = reader.Most([answers.KEPT_START], known_starts.MOST_STARTS)


class MeasuredStarts:
    """What was measured before."""

    def __init__(self, task_vars: Mapping[str, Any]) -> None:
        """Read nothing yet. task_vars: as an action has them."""
        folder = controller_paths.fleet_folder(task_vars)
        self.folder = Path(folder, controller_paths.STATE, FOLDER) if folder else None

    def of_hosts(self, hosts: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return what is kept of hosts, without those of which nothing is. hosts: their names."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        return {host: found for host in hosts if (found := self.of_host(host))}

    def of_host(self, host: str) -> list[dict[str, Any]]:
        """Return what is kept of a host; a file that cannot be right counts as none, and the next proof writes it anew."""
        path = self._path(host)
        if path is None:
            return []
        try:
            content = parse_json(path.read_text(encoding="utf-8"), str(path))
            if not isinstance(content, dict) or content.get("schema") != SCHEMA:
                return []
            return list(reader.read(_STARTS, content.get("starts"), str(path)))
        except (OSError, ValueError):  # Untrusted is a ValueError
            return []

    def keep(self, host: str, new: Sequence[Mapping[str, Any]]) -> bool:
        """Keep what a proof measured; raises OSError where the controller may not write.

        :param host: its name
        :param new: starts, as C(answers.START) has them
        :returns: whether anything is new
        """
        path, before = self._path(host), self.of_host(host)
        after = known_starts.merge_starts(before, new)
        if path is None or after == before:
            return False
        write(path, json.dumps({"schema": SCHEMA, "starts": after}, indent=1, sort_keys=True) + "\n")
        return True

    def _path(self, host: str) -> Path | None:
        # The name of a host is no path, whatever stands in it.
        return self.folder / f"{quote(host, safe='')}.json" if self.folder is not None else None


def take_over(found: Any, host: str, task_vars: Mapping[str, Any], what: str) -> None:
    """Keep what a proof on a host measured; what cannot be kept is a warning, and an answer that cannot be right fails.

    found: what the module returned, with C(receipts). what: its name.
    """
    said = checked_answer(found, answers.SERVICE_PROOF, host, what)
    starts = [each["receipt"].get("start") for _name, each in sorted(said["receipts"].items())]
    known = MeasuredStarts(task_vars)
    try:
        known.keep(host, [start for start in starts if start])
    except OSError as error:
        Display().warning(f"what {host} measured is on its receipts alone, {known.folder} cannot be written: {error}")
