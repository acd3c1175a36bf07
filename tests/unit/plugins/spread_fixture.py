# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes hand on to each other, for tests: archives of docker save, and files in the layout of the hub."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_stream

NAME = "an/image:1"
HASH = "a" * 64
LAYER = b"layer" * 3000
EVIL = "vllm/vllm-openai:v0.24.0-ubuntu2404"


def manifest(*names: str, **more: Any) -> bytes:
    """manifest.json, as Docker has it."""
    body = {"Config": f"blobs/sha256/{HASH}", "RepoTags": list(names) or None, "Layers": [f"blobs/sha256/{HASH}"]}
    return json.dumps([{**body, **more}]).encode()


def index(*names: str) -> bytes:
    """index.json, as Docker has it."""
    entries = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{HASH}",
            "size": 3,
            "annotations": {
                "io.containerd.image.name": image_stream.full_name(name),
                "org.opencontainers.image.ref.name": image_stream.full_name(name).rpartition(":")[2],
            },
        }
        for name in names
    ] or [{"digest": f"sha256:{HASH}", "size": 3}]
    return json.dumps({"schemaVersion": 2, "manifests": entries}).encode()


def tar(members: Sequence[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if name.endswith("/"):
                entry.type = tarfile.DIRTYPE
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def saved(*names: str, more: Sequence[tuple[str, bytes]] = (), layer: bytes = LAYER) -> bytes:
    """What docker save writes of an image with these names, and what a liar adds to it."""
    repositories = {name.rpartition(":")[0]: {name.rpartition(":")[2]: HASH} for name in names}
    lists = [("index.json", index(*names)), ("manifest.json", manifest(*names)), ("oci-layout", b"{}")]
    last = [("repositories", json.dumps(repositories).encode())] if names else []
    return tar([("blobs/", b""), ("blobs/sha256/", b""), (f"blobs/sha256/{HASH}", layer), *lists, *last, *more])


COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "models--Org--Model"


def lay(hub: Path, name: str, content: bytes, large: bool = True) -> Path:
    """Put a file where the hub library does."""
    digest = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
    blob = hub / REPO / "blobs" / digest.hexdigest()
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link = hub / REPO / "snapshots" / COMMIT / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return blob
