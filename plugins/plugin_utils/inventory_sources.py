# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the inventory files of this run by Ansible's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.inventory.manager import IGNORED

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import Sources


def inventory_sources(sources: Sequence[str] | None) -> Sources:
    """Return the sources of a run, without the files that Ansible's configuration ignores. sources: C(ansible_inventory_sources)."""

    def ignored(name: str) -> bool:
        return bool(IGNORED.search(name.encode(errors="surrogateescape")))

    return Sources([str(source) for source in sources or ()], ignored, constants.YAML_FILENAME_EXTENSIONS)


def inventory_names(variables: Mapping[str, Any]) -> str:
    """Return the names of the inventory folders of a run, without the paths that lead there. variables: of a task."""
    paths = [Path(str(source)) for source in variables.get("ansible_inventory_sources") or () if "," not in str(source)]
    return ", ".join(dict.fromkeys((path.parent if path.is_file() else path).name for path in paths))
