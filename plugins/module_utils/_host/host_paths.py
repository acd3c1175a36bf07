# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges folders of a host that an inventory names for weights and caches."""

from __future__ import annotations

import posixpath

_TREES = (
    "/bin /boot /dev /efi /etc /lib /lib32 /lib64 /libx32 /lost+found /proc /run /sbin /snap /sys "
    "/usr/bin /usr/include /usr/lib /usr/lib32 /usr/lib64 /usr/libexec /usr/sbin /usr/share /usr/src "
    "/var/lib/apt /var/lib/containerd /var/lib/docker /var/lib/dpkg /var/lib/systemd /var/log /var/run"
)
SYSTEM_TREES = tuple(_TREES.split())
"""Folders of the system, with everything in them."""
_FOLDERS = (
    "/usr/games /usr/local /usr/local/bin /usr/local/etc /usr/local/lib /usr/local/libexec /usr/local/sbin /usr/local/share "
    "/usr/local/src /var/backups /var/cache /var/lib /var/local /var/mail /var/opt /var/spool /var/tmp /var/www"
)
SYSTEM_FOLDERS = frozenset(_FOLDERS.split())
"""Folders that many programs share; a folder below one of them is a place."""


def problem(path: str) -> str:
    """Return why a folder is no place for weights or caches, with the fix; empty for a good one."""
    fix = "name a separate folder, such as /srv/huggingface for weights or /var/cache/dgxspark for caches"
    if not path.startswith("/"):
        return f"it is not absolute; {fix}"
    parts = path.rstrip("/").split("/")[1:]
    if ".." in parts or "." in parts:
        return "it leads through '.' or '..'; write the real path"
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return f"everything of the host, or much of it, lies in there; {fix}"
    normalized = "/" + "/".join(parts)
    for tree in SYSTEM_TREES:
        if normalized == tree or normalized.startswith(f"{tree}/"):
            return f"{tree} is the system's own; {fix}"
    if normalized in SYSTEM_FOLDERS:
        return f"{normalized} is shared with others; {fix}"
    if posixpath.dirname(normalized) == "/home":
        return f"{normalized} is somebody's whole home; name a folder in it, such as {normalized}/.cache/huggingface, or one elsewhere"
    return ""
