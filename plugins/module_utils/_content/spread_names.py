# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of images and models in a distribution, and the programs that it needs; shared by hosts and controller."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

RUN_DIR = "/run/dgxspark/spread"
"""Folder of the run on hosts. It is in memory: the next boot removes what an interruption left."""
TOOLS = {
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "systemd-run": "systemd",
}
"""Programs that hosts need, with their packages."""


def model_key(model: Mapping[str, Any]) -> str:
    """Return the key of a model's snapshot."""
    only = ", ".join(model.get("only") or [])
    return f"{model['repo']}@{model['revision']}" + (f" ({only})" if only else "")


def item_id(key: str) -> str:
    """Return the short id of an image or snapshot, which can be a file name and a word of a command."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def local_alias(ref: str) -> str:
    """Return the tag that an image named by digest is given on hosts that did not pull it, or an empty text.

    Docker accepts a digest as a name only for images that it pulled itself.
    """
    name, at, digest = ref.partition("@sha256:")
    repository = name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]
    return f"{repository}:sha256-{digest[:32]}" if at else ""


def names_of(ref: str, ids: Sequence[str] = ()) -> list[str]:
    """Return all names that an image may have on a host. ids: of the lock file."""
    return list(dict.fromkeys(name for name in (ref, local_alias(ref), *ids) if name))
