# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether engines may read a folder of weights that is somebody else's.

Engines run as root of their container without the capabilities that pass over modes, so a file is theirs to read by what its mode or its
ACL says of root: as owner, by a group of root, or as one of the others.
"""

from __future__ import annotations

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
"""Closed files of a model that are named; one of many is enough to mend all."""


def readable(path: Path) -> bool:
    """Tell whether root without capabilities may read a file, or list and enter a folder. Links are followed."""
    seen = path.stat()
    need = 5 if stat.S_ISDIR(seen.st_mode) else 4
    if seen.st_uid == 0:
        return (seen.st_mode >> 6) & need == need
    try:
        entries = parse_acl(os.getxattr(path, ACL))
    except (OSError, ValueError):  # it has none, or its file system knows none
        entries = []
    if not entries:
        return (seen.st_mode >> (3 if seen.st_gid == 0 else 0)) & need == need
    mask = next((perm for tag, perm, _id in entries if tag == MASK), 7)
    for tag, perm, number in entries:
        if tag == USER and number == 0:
            return perm & mask & need == need
    groups = [
        perm
        for tag, perm, number in entries
        if (tag == GROUP and number == 0) or (tag == GROUP_OBJ and seen.st_gid == 0)
    ]
    if groups:
        return any(perm & mask & need == need for perm in groups)
    return any(tag == OTHER and perm & need == need for tag, perm, _id in entries)


def parse_acl(value: bytes) -> list[tuple[int, int, int]]:
    """Read an ACL as the kernel gives it: C((tag, permissions, id)) each. Raises ValueError for another version."""
    if len(value) < 4 or struct.unpack_from("<I", value)[0] != 2:
        raise ValueError("not an ACL of version 2")
    return [struct.unpack_from("<HHI", value, at) for at in range(4, len(value) - 7, 8)]


def look(home: Path) -> dict[str, Any]:
    """Say what of a folder in the layout of HF_HOME engines cannot read.

    Returns C({exists, owner, mode, closed}); C(closed) has, by the name of a model and by an empty name for what holds all models, the
    first few paths.
    """
    try:
        seen = home.stat()
    except OSError:
        return {"exists": False, "owner": None, "mode": None, "closed": {}}
    try:
        owner = pwd.getpwuid(seen.st_uid).pw_name
    except KeyError:
        owner = str(seen.st_uid)
    closed = {"": _closed([home, home / "hub"])}
    for folder in sorted(home.glob("hub/models--*")):
        closed[folder.name[len("models--") :].replace("--", "/", 1)] = _closed([folder, *_of_engines(folder)])
    return {
        "exists": True,
        "owner": owner,
        "mode": f"{stat.S_IMODE(seen.st_mode):04o}",
        "closed": {name: paths for name, paths in closed.items() if paths},
    }


def _of_engines(folder: Path) -> Iterator[Path]:
    """Yield what is below the folder of a model, but for the listings that clients of the hub keep: theirs alone, and done without."""
    for base, names, files in os.walk(folder):
        if Path(base) == folder:
            names[:] = [name for name in names if name != LISTINGS]
        yield from (Path(base, name) for name in (*names, *files))


def _closed(paths: Iterable[Path]) -> list[str]:
    found: list[str] = []
    for path in paths:
        try:
            if not readable(path):
                found.append(str(path))
        except OSError:  # a link that leads nowhere is missing, not closed
            continue
        if len(found) == MOST_NAMED:
            break
    return found
