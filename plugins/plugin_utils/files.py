# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the controller: reports that are written, folders of weights that are listed."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.errors import AnsibleActionFail


def write(path: Path, text: str) -> None:
    """Write a report for people and tools; one rename, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def read_kept(path: Path) -> str:
    """Return the text of a file that an earlier run has written, an empty one where there is none or it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def listed(source: Path) -> dict[str, dict[str, int]]:
    """Return size and time of change of all files below a folder with weights, by their name there; fail where there are none."""
    if not source.is_dir():
        raise AnsibleActionFail(
            f"{source} is no folder of the controller; model.source of a service names one (see docs/inventory.md)"
        )
    found = {}
    for folder, _folders, names in os.walk(source, followlinks=True):
        for name in names:
            file = Path(folder, name)
            if not file.is_file():
                raise AnsibleActionFail(
                    f"{file} is no file that can be read; a link to nothing? Take it away, or mend it"
                )
            now = file.stat()
            found[str(file.relative_to(source))] = {"size": now.st_size, "mtime": int(now.st_mtime)}
    if not found:
        raise AnsibleActionFail(f"{source} has no files; model.source of a service names a folder with weights")
    return dict(sorted(found.items()))
