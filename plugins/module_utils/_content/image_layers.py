# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers of an image that its receiver already has: which they are, how archives of docker save name them, and leaving them out."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence

NO_CONFIG = {
    **dict.fromkeys(("Hostname", "Domainname", "User"), ""),
    **dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce"), False),
    **{"Env": None, "Cmd": None, "Image": "", "Volumes": None, "WorkingDir": "", "Entrypoint": None, "OnBuild": None},
    "Labels": None,
}
"""Input of layer names in Docker before 25, with the layers below: an empty C(container.Config), in the order of its fields (moby v20.10)."""


def shared(layers: Sequence[str], present_images: Iterable[Sequence[str]]) -> list[str]:
    """Return the layers of an image that need not be sent to a host.

    Docker identifies a layer together with all layers below it. A layer that is repeated higher up has to be sent: the archive
    holds it once.

    :param layers: layers of the image, the lowest first
    :param present_images: layers of each image on the host
    :returns: the layers to leave out, the lowest first
    """
    count = max((_alike(layers, other) for other in present_images), default=0)
    sent = set(layers[count:])
    return [layer for layer in dict.fromkeys(layers[:count]) if layer not in sent]


def _alike(layers: Sequence[str], present_layers: Sequence[str]) -> int:
    return sum(1 for _pair in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(layers, present_layers)))


def stored_as(layers: Sequence[str], left_out: Iterable[str]) -> list[str]:
    """Return the names that archives give to layers: digests since Docker 25, names of its first image format before.

    :param layers: all layers of the image, the lowest first
    :param left_out: the layers to name
    :returns: names of 64 hexadecimal digits
    """
    unsent = set(left_out)
    names = [layer.partition(":")[2] for layer in layers if layer in unsent]
    config = json.dumps(NO_CONFIG, separators=(",", ":"))
    chain = parent = ""
    for layer in layers[:-1]:  # the last one is named by all settings of the image
        chain = _digest(f"{chain} {layer}") if chain else layer
        below = f',"parent":"{parent}"' if parent else ""
        parent = _digest(
            f'{{"container_config":{config},"created":"1970-01-01T00:00:00Z","layer_id":"{chain}"{below}}}'
        )
        if layer in unsent:
            names.append(parent.partition(":")[2])
    return list(dict.fromkeys(names))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def members(names: Iterable[str]) -> set[str]:
    """Return the members of an archive that hold layers. names: of C(stored_as)."""
    return {member for name in names for member in (f"blobs/sha256/{name}", f"{name}/layer.tar")}
