# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells whether engines may read a folder of weights of another user.

Engines run as root of their container without the capabilities that override modes, so the mode or the ACL of a file decides: root may be
its owner, in its group, or one of the others.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ACL = "system.posix_acl_access"
USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x02, 0x04, 0x08, 0x10, 0x20
LISTINGS = "trees"
MOST_NAMED = 3
"""Unreadable files of a model that are named; one of many is enough to find the cause."""


def readable(path: Path) -> bool:
    """Tell whether root without capabilities may read a file, or list and enter a folder. Links are followed."""
    status = path.stat()
    need = 5 if stat.S_ISDIR(status.st_mode) else 4
    return _permissions(path, status) & need == need


def _permissions(path: Path, status: os.stat_result) -> int:
    """Return the permissions of root without capabilities: of the owner, by the ACL, of the group, or of others, in this order."""
    if status.st_uid == 0:
        return status.st_mode >> 6
    try:
        entries = parse_acl(os.getxattr(path, ACL))
    except (OSError, ValueError):  # no ACL, or a file system without them
        entries = []
    if not entries:
        return status.st_mode >> (3 if status.st_gid == 0 else 0)
    return _acl_permissions(entries, is_group=status.st_gid == 0)


def _acl_permissions(entries: list[tuple[int, int, int]], is_group: bool) -> int:
    """Return the permissions of root by an ACL. is_group: whether root's group owns the file."""
    by_tag: dict[int, list[tuple[int, int]]] = {}
    for tag, permissions, number in entries:
        by_tag.setdefault(tag, []).append((permissions, number))
    mask = by_tag.get(MASK, [(7, 0)])[0][0]
    user = [permissions for permissions, number in by_tag.get(USER, []) if number == 0]
    groups = [permissions for permissions, number in by_tag.get(GROUP, []) if number == 0]
    groups += [permissions for permissions, _number in by_tag.get(GROUP_OBJ, []) if is_group]
    if user or groups:
        # The permissions of several entries do not add up: the most permissive of reading and entering counts.
        return max((permissions & mask for permissions in user or groups), key=lambda permissions: permissions & 5)
    return by_tag.get(OTHER, [(0, 0)])[0][0]


def parse_acl(value: bytes) -> list[tuple[int, int, int]]:
    """Read an ACL as the kernel gives it: C((tag, permissions, id)) each. Raises ValueError for another version."""
    if len(value) < 4 or struct.unpack_from("<I", value)[0] != 2:
        raise ValueError("not an ACL of version 2")
    return [struct.unpack_from("<HHI", value, at) for at in range(4, len(value) - 7, 8)]


def look(home: Path) -> dict[str, Any]:
    """Return the paths of a folder in the layout of HF_HOME that engines cannot read.

    Returns C({exists, owner, mode, closed}); C(closed) has the first few paths by the name of their model, and by an empty name for the
    folders above all models.
    """
    try:
        status = home.stat()
    except OSError:
        return {"exists": False, "owner": None, "mode": None, "closed": {}}
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    closed = {"": _closed([home, home / "hub"])}
    for folder in sorted(home.glob("hub/models--*")):
        closed[folder.name[len("models--") :].replace("--", "/", 1)] = _closed([folder, *_of_engines(folder)])
    return {
        "exists": True,
        "owner": owner,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "closed": {name: paths for name, paths in closed.items() if paths},
    }


def _of_engines(folder: Path) -> Iterator[Path]:
    """Yield the paths below the folder of a model, without the listings of hub clients, which engines do without."""
    for base, names, files in os.walk(folder):
        if Path(base) == folder:
            names[:] = [name for name in names if name != LISTINGS]
        yield from (Path(base, name) for name in (*names, *files))


def _closed(paths: Iterable[Path]) -> list[str]:
    closed: list[str] = []
    for path in paths:
        with contextlib.suppress(OSError):  # a dangling link is missing, not closed
            if not readable(path):
                closed.append(str(path))
        if len(closed) == MOST_NAMED:
            break
    return closed
