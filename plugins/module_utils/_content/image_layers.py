# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive of docker save without the layers that its receiver has; docker load takes those from its own store.

As a program, C(NAME LAYER...), it leaves them out of an archive on its way through. Standard library alone: sources run a byte copy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from .._common.foreign_text import parse_json
from .image_stream import CHUNK, ArchiveGuard, UnexpectedContent

LAYER = re.compile(r"sha256:[0-9a-f]{64}")
NO_CONFIG = {
    **dict.fromkeys(("Hostname", "Domainname", "User"), ""),
    **dict.fromkeys(("AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin", "StdinOnce"), False),
    **{"Env": None, "Cmd": None, "Image": "", "Volumes": None, "WorkingDir": "", "Entrypoint": None, "OnBuild": None},
    "Labels": None,
}
"""Input of layer names in Docker before 25, with the layers below: an empty C(container.Config), in the order of its fields (moby v20.10)."""


def read(text: str) -> list[str]:
    """Return the layers that C(docker image inspect) prints of an image as JSON, the lowest first.

    :raises ValueError: for any other content
    """
    layers = parse_json(text, "docker image inspect")
    if layers is None:  # an image without layers
        return []
    if not isinstance(layers, list) or not all(isinstance(layer, str) and LAYER.fullmatch(layer) for layer in layers):
        raise ValueError("no list of layers")
    return layers


def of_engine(printed: Callable[[Sequence[str]], str]) -> list[list[str]]:
    """Return the layers of each image that the engine of this host has.

    Empty with the containerd image store, which keeps layers under other names, and may have removed what an image
    was made of.

    :param printed: runs a command and returns its output; raises C(LookupError) if it fails
    :raises ValueError: where docker says something else
    """
    if "io.containerd.snapshotter" in printed(["docker", "info", "--format", "{{json .DriverStatus}}"]):
        return []
    ids = sorted(set(printed(["docker", "image", "ls", "--all", "--quiet", "--no-trunc"]).split()))
    if not ids:
        return []
    output = printed(["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", *ids])
    return [read(line) for line in output.splitlines()]


def shared(layers: Sequence[str], present_images: Iterable[Sequence[str]]) -> list[str]:
    """Return the layers of an image that need not be sent to a host.

    Docker identifies a layer with all below it. A repeated one higher up has to be sent: it is in the archive once.

    :param layers: layers of the image, the lowest first
    :param present_images: layers of each image on the host
    :returns: what can be left out, the lowest first
    """
    count = max((_alike(layers, other) for other in present_images), default=0)
    sent = set(layers[count:])
    return [layer for layer in dict.fromkeys(layers[:count]) if layer not in sent]


def _alike(layers: Sequence[str], present_layers: Sequence[str]) -> int:
    return sum(1 for _pair in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(layers, present_layers)))


def stored_as(layers: Sequence[str], left_out: Iterable[str]) -> list[str]:
    """Return the names of layers in archives: their digests from Docker 25 on, the names of its first image format before.

    :param layers: all layers of the image, the lowest first
    :param left_out: those to name
    :returns: 64 hexadecimal digits each
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


def main() -> None:
    """Pass an archive from standard input to standard output, without layers."""
    name, *layers = sys.argv[1:]
    if not all(re.fullmatch("[0-9a-f]{64}", layer) for layer in layers):
        raise SystemExit("a layer is 64 hexadecimal digits")
    guard = ArchiveGuard(
        [name], {f"blobs/sha256/{layer}" for layer in layers} | {f"{layer}/layer.tar" for layer in layers}
    )
    try:
        while piece := os.read(0, CHUNK):
            sys.stdout.buffer.write(guard.feed(piece))
        guard.end()
        sys.stdout.buffer.flush()
    except UnexpectedContent as error:
        raise SystemExit(f"docker save: {error}") from None
