# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find, read and write the lock file on the controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import read_yaml

HEADER = """\
# Which bytes the fleet runs: images by digest, models by commit and the sum of each file. Commit this file.
# Made and refreshed by the playbook dgxspark.vllm.lock; site.yml deploys what stands here.
"""


def dest_path(dest: str, task_vars: Mapping[str, Any], messages: list[str]) -> str:
    """Return the path of a file to write; a relative path starts at the inventory folder."""
    path = controller_paths.of_fleet(dest, task_vars)
    if path and not Path(path).is_absolute():
        messages.append(
            f"the path '{dest}' is relative, but the inventory is no file, so it has no folder. "
            "Set its variable, such as spark_plan_file, to a whole path."
        )
    return path


def lock_path(hosts: dict[str, dict[str, Any]], task_vars: dict[str, Any], messages: list[str]) -> Path | None:
    """Return the lock file of the fleet: C(spark_lock_file), else the one in the folder of state below the inventory folder."""
    values = [host["vars"].get("spark_lock_file") for host in hosts.values()]
    paths = sorted({path for path in values if isinstance(path, str) and plain_data.is_line(path)})
    if len(paths) > 1:
        messages.append(
            f"spark_lock_file differs between hosts ({', '.join(paths)}); the fleet has one lock. Set it on the group sparks."
        )
    return Path(paths[0]) if paths else _default_path(controller_paths.fleet_folders(task_vars), messages)


def _default_path(folders: list[str], messages: list[str]) -> Path | None:
    """Return the lock file of inventory folders, existing ones first."""
    places = [Path(folder, controller_paths.STATE, lock.FILE_NAME) for folder in folders]
    existing = [place for place in places if place.exists()]
    if len(existing) > 1:
        messages.append(
            f"there is a lock file in several inventory folders ({', '.join(map(str, existing))}); the fleet has one lock. Name it as "
            "spark_lock_file."
        )
    # Ansible reads files in the inventory folder itself; without this message nothing would be locked any more.
    for folder, place in zip(folders, places):
        misplaced = Path(folder, lock.FILE_NAME)
        if misplaced.exists():
            messages.append(
                f"the lock file lies at '{misplaced}', where Ansible reads it as a part of the inventory. Move it: "
                f"mkdir -p {place.parent} && mv {misplaced} {place}"
            )
    return next(iter(existing or places), None)


def home_path(path: str) -> Path:
    """Return a path with a leading tilde replaced, unchanged for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def read_lock(path: Path | None) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the content of the lock file, None without a valid one, and its problems."""
    if path is None or not path.exists():
        return None, []
    try:
        return lock.read(read_yaml(path) or {}, str(path))
    except (OSError, ValueError) as error:
        return None, [f"lock file {path}: cannot be read: {error}. Restore it from version control."]


def render(content: Mapping[str, Any]) -> str:
    """Return a lock as YAML: sorted, one line a file of a model, so that a diff shows only the changes."""
    answers = content.get("image_plans")
    text = yaml.safe_dump(
        {part: content[part] for part in ("schema", "images", "models", "services")},
        sort_keys=False,
        default_flow_style=None,
        width=math.inf,
    )
    return HEADER + text + (yaml.safe_dump({"image_plans": answers}, width=math.inf) if answers else "")
