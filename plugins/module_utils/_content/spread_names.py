# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names under which hosts know images and models of a distribution, and the programs that it needs; shared by hosts and controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TOOLS = {
    "rsync": "rsync",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "systemd-run": "systemd",
}
"""Programs that hosts need, and the packages that have them."""
MODELS_ALONE = ("rsync",)
"""Those of them that images do without."""


def model_key(model: Mapping[str, Any]) -> str:
    """Return the name of a model's snapshot among the things."""
    only = ", ".join(model.get("only") or [])
    return f"{model['repo']}@{model['revision']}" + (f" ({only})" if only else "")


def local_alias(ref: str) -> str:
    """Return the tag that an image named by digest is given on hosts that did not pull it, or an empty text.

    Engines know a digest as a name only of what they pulled themselves.
    """
    name, at, digest = ref.partition("@sha256:")
    repository = name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]
    return f"{repository}:sha256-{digest[:32]}" if at else ""


def names_of(ref: str, ids: Sequence[str] = ()) -> list[str]:
    """Return all names by which a host may have an image. ids: those that a lock file gives it."""
    return list(dict.fromkeys(name for name in (ref, local_alias(ref), *ids) if name))
