# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders of a host that an inventory names for weights and caches: which are no place for them."""

from __future__ import annotations

import posixpath

SYSTEM_TREES = (
    *(
        "/bin",
        "/boot",
        "/dev",
        "/efi",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/lost+found",
        "/proc",
        "/run",
        "/sbin",
        "/snap",
    ),
    *(
        "/sys",
        "/var/lib/apt",
        "/var/lib/containerd",
        "/var/lib/docker",
        "/var/lib/dpkg",
        "/var/lib/systemd",
        "/var/log",
        "/var/run",
    ),
    *(
        "/usr/bin",
        "/usr/include",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/usr/libexec",
        "/usr/sbin",
        "/usr/share",
        "/usr/src",
    ),
)
"""Of the system, with all that is in them."""
SYSTEM_FOLDERS = (
    *(
        "/var/backups",
        "/var/cache",
        "/var/lib",
        "/var/local",
        "/var/mail",
        "/var/opt",
        "/var/spool",
        "/var/tmp",
        "/var/www",
    ),
    *(
        "/usr/games",
        "/usr/local",
        "/usr/local/bin",
        "/usr/local/etc",
        "/usr/local/lib",
        "/usr/local/libexec",
        "/usr/local/sbin",
    ),
    *("/usr/local/share", "/usr/local/src"),
)
"""Shared by many; a folder below is a place."""


def problem(path: str) -> str:
    """Say why a folder is no place for weights or caches, with what to name instead; empty when it is one."""
    fix = "name a folder of its own, such as /srv/huggingface for weights or /var/cache/dgxspark for caches"
    if not path.startswith("/"):
        return f"it is not absolute; {fix}"
    parts = path.rstrip("/").split("/")[1:]
    if ".." in parts or "." in parts:
        return "it leads through '.' or '..', so it is not the folder that it seems to be; write where it leads"
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return f"everything of the host, or much of it, lies in there; {fix}"
    whole = "/" + "/".join(parts)
    for tree in SYSTEM_TREES:
        if whole == tree or whole.startswith(f"{tree}/"):
            return f"{tree} is the system's own; {fix}"
    if whole in SYSTEM_FOLDERS:
        return f"{whole} is shared with others; {fix}"
    if posixpath.dirname(whole) == "/home":
        return f"{whole} is somebody's whole home; name a folder in it, such as {whole}/.cache/huggingface, or one elsewhere"
    return ""
