# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the controller: writing reports, and listing folders with weights."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import MOST_JSON, parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import page_parts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


def write(path: Path, text: str) -> None:
    """Write a report by one rename, so that no reader sees a part of it."""
    state_file.write_text(path, text, mode=None)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder: hosts of a task are workers that may write the same files. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class NotOurs(OSError):
    """The path of a report has a file that this collection has not written."""


def check_replaceable(path: Path, keys: Collection[str] = ()) -> None:
    """Raise NotOurs unless a path is free, or has an empty file or an earlier report of the kind.

    path: of a page, by its suffix .html, or of JSON. keys: of the JSON; an earlier report has more than half of them.
    """
    if not path.exists():
        return
    is_ours = False
    with contextlib.suppress(ValueError):
        text = path.read_text(encoding="utf-8") if path.is_file() else "no file"
        if path.suffix == ".html" or not text:
            is_ours = not text or page_parts.MARK in text
        else:
            report = parse_json(text, str(path), exact=True)
            is_ours = isinstance(report, dict) and 2 * len(set(keys).intersection(report)) > len(keys)
    if not is_ours:
        raise NotOurs(f"{path} is no report of this collection, so it is not replaced; move it, or name another file")


def write_report(path: Path, text: str) -> None:
    """Write a page or a report in JSON. Raises OSError, also for a file that is no report of this collection."""
    check_replaceable(path, () if path.suffix == ".html" else parse_json(text, str(path), exact=True).keys())
    write(path, text)


def read_kept(path: Path) -> str:
    """Return the text of a file of an earlier run, empty for a missing or binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def read_stored(path: Path | None, schema: int, most_bytes: int = MOST_JSON) -> dict[str, Any]:
    """Return the JSON file of an earlier run, empty for a missing or malformed file and for one of another schema."""
    try:
        content = parse_json(path.read_bytes(), str(path), most_bytes) if path else None
    except (OSError, ValueError):  # Untrusted is a ValueError
        return {}
    return content if isinstance(content, dict) and content.get("schema") == schema else {}


def listed(source: Path) -> dict[str, dict[str, int]]:
    """Return size and modification time of all files in a folder with weights, by relative name; fail without files."""
    if not source.is_dir():
        raise AnsibleActionFail(
            f"{source} is no folder of the controller; model.source of a service names one (see docs/inventory.md)"
        )
    files = {}
    for folder, _folders, names in os.walk(source, followlinks=True):
        for name in names:
            file = Path(folder, name)
            if not file.is_file():
                raise AnsibleActionFail(
                    f"{file} is no file that can be read; a link to nothing? Take it away, or mend it"
                )
            stat = file.stat()
            files[str(file.relative_to(source))] = {"size": stat.st_size, "mtime": int(stat.st_mtime)}
    if not files:
        raise AnsibleActionFail(f"{source} has no files; model.source of a service names a folder with weights")
    return dict(sorted(files.items()))
