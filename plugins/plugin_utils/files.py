# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the controller: reports that are written, folders of weights that are listed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import page_parts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


def write(path: Path, text: str) -> None:
    """Write a report for people and tools; one rename, so that no reader sees half of it."""
    state_file.write_text(path, text, mode=None)


class NotOurs(OSError):
    """A file that this collection has not written stands where a report is to be written."""


def check_replaceable(path: Path, keys: Collection[str] = ()) -> None:
    """Raise NotOurs unless a report may be written to a path: nothing is there, an empty file, or an earlier report of the kind.

    path: of a page, by its suffix .html, or of JSON. keys: of the JSON; an earlier report has more than half of them.
    """
    if not path.exists():
        return
    ours = False
    with contextlib.suppress(ValueError):
        text = path.read_text(encoding="utf-8") if path.is_file() else "no file"
        if path.suffix == ".html" or not text:
            ours = not text or page_parts.MARK in text
        else:
            found = parse_json(text, str(path), exact=True)
            ours = isinstance(found, dict) and 2 * len(set(keys).intersection(found)) > len(keys)
    if not ours:
        raise NotOurs(f"{path} is no report of this collection, so it is not replaced; move it, or name another file")


def write_report(path: Path, text: str) -> None:
    """Write a page or a report in JSON, unless a file of somebody else is there; raises OSError."""
    check_replaceable(path, () if path.suffix == ".html" else parse_json(text, str(path), exact=True).keys())
    write(path, text)


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
