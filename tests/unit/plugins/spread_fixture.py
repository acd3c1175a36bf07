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

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_archive

NAME = "an/image:1"
HASH = "a" * 64
V1, V1_TOP = "e" * 64, "f" * 64
"""Names of layers in archives of Docker before 25."""
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
                "io.containerd.image.name": image_archive.full_name(name),
                "org.opencontainers.image.ref.name": image_archive.full_name(name).rpartition(":")[2],
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


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def settings_of(*layers: bytes) -> bytes:
    return json.dumps(
        {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}" for layer in layers]}}
    ).encode()


def oci(*layers: bytes, name: str = NAME, more: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """As Docker from 25 on writes an image: an OCI layout, and manifest.json."""
    settings = settings_of(*layers)
    described = json.dumps({"config": digest(settings), "layers": [digest(layer) for layer in layers]}).encode()
    blobs = {digest(content): content for content in (*layers, settings, described)}
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": f"sha256:{digest(described)}",
        "size": len(described),
        "annotations": {"io.containerd.image.name": image_archive.full_name(name)},
    }
    paths = [f"blobs/sha256/{digest(layer)}" for layer in layers]
    listed = [{"Config": f"blobs/sha256/{digest(settings)}", "RepoTags": [name], "Layers": paths}]
    return tar(
        [
            ("blobs/", b""),
            ("blobs/sha256/", b""),
            *((f"blobs/sha256/{blob}", content) for blob, content in sorted(blobs.items())),
            ("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()),
            ("manifest.json", json.dumps(listed).encode()),
            ("oci-layout", b"{}"),
            ("repositories", b'{"an/image": {"1": "x"}}'),
            *more,
        ]
    )


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry.tobuf(tarfile.PAX_FORMAT)


def old(layer: bytes, top: bytes) -> bytes:
    """As Docker before 25 does: a folder for each layer, by another name; the lowest layer stands twice in the image."""
    settings = settings_of(layer, layer, top)
    paths = [f"{V1}/layer.tar", f"{'d' * 64}/layer.tar", f"{V1_TOP}/layer.tar"]
    listed = [{"Config": f"{digest(settings)}.json", "RepoTags": [NAME], "Layers": paths}]
    return link(f"{'d' * 64}/layer.tar", f"../{V1}/layer.tar") + tar(
        [
            (f"{V1}/", b""),
            (f"{V1}/VERSION", b"1.0"),
            (f"{V1}/json", b"{}"),
            (f"{V1}/layer.tar", layer),
            (f"{V1_TOP}/layer.tar", top),
            (f"{digest(settings)}.json", settings),
            ("manifest.json", json.dumps(listed).encode()),
            ("repositories", b'{"an/image": {"1": "x"}}'),
        ]
    )


def contents(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {
            entry.name: handle.read() if entry.isfile() and (handle := opened.extractfile(entry)) else b""
            for entry in opened
            if not entry.isdir()
        }


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
