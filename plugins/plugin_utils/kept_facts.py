# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the facts of hosts for the next run: a file for each host in C(.spark/facts) of the inventory folder.

The next run plans with them before it contacts a host. They are answers of hosts: a malformed file counts as missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import received
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.stable_facts import stable_checksum
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import preflight
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import read_stored

FOLDER = "facts"
SCHEMA = 1
MOST_BYTES = 4 * 2**20
"""Of a file; facts of a host have about 20 KB."""
FORMS = {name: preflight.ANSWERS[name] for name in ("measured", "images")}


class KeptFacts:
    """Facts of hosts, by name."""

    def __init__(self, task_vars: Mapping[str, Any]) -> None:
        """Read nothing yet. task_vars: as an action has them."""
        self.folder = controller_paths.state_folder(task_vars, FOLDER)

    def of_host(self, host: str) -> dict[str, Any]:
        """Return C({measured, images}) of a host, empty without a usable file."""
        content = read_stored(controller_paths.host_file(self.folder, host), SCHEMA, MOST_BYTES)
        if content.get("host") != host:
            return {}
        facts = {name: content.get(name) for name in FORMS}
        return facts if _is_sound(facts) else {}

    def keep(self, host: str, measured: Any, images: Any) -> bool:
        """Keep the facts of a host for the next run; return whether the file was written. Raises OSError.

        measured, images: C(spark) and C(images) of M(dgxspark.vllm.spark_info).
        """
        path, facts = controller_paths.host_file(self.folder, host), {"measured": measured, "images": images}
        if path is None or not measured or not _is_sound(facts):
            return False
        text = json.dumps({"schema": SCHEMA, "host": host, **received(facts)}, sort_keys=True) + "\n"
        if len(text) > MOST_BYTES:
            return False
        state_file.write_text(path, text, 0o600)
        return True


def checksum_of(facts: Mapping[str, Any]) -> str:
    """Return the checksum of facts as far as a plan depends on them. facts: C({measured, images})."""
    return stable_checksum(facts.get("measured"), facts.get("images"))


def _is_sound(facts: Mapping[str, Any]) -> bool:
    """Tell whether a plan can use facts. facts: C({measured, images})."""
    return isinstance(facts["measured"], dict) and not any(
        plain_data.unfit(facts[name], name) or reader.problems(form, facts[name], name) for name, form in FORMS.items()
    )
