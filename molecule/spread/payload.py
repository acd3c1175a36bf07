"""Lay a model of 256 MiB in eight shards in the hub's layout, and the layer of an image of 48 MiB; nothing repeats in them.

usage: payload.py HF_HOME LAYER
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

SHARDS, SHARD = 8, 32 * 1024 * 1024
COMMIT = hashlib.sha1(b"Org/Payload").hexdigest()


def lay(folder: Path, name: str, content: bytes, large: bool) -> None:
    """Put a file where the hub library does: its bytes by their digest, its name as a link."""
    digest = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
    blob = folder / "blobs" / digest.hexdigest()
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link = folder / "snapshots" / COMMIT / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))


def main(home: str, layer: str) -> None:
    """Make both."""
    folder = Path(home) / "hub" / "models--Org--Payload"
    names = [f"model-{number + 1:05}-of-{SHARDS:05}.safetensors" for number in range(SHARDS)]
    for name in names:
        lay(folder, name, os.urandom(SHARD), True)
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    lay(folder, "model.safetensors.index.json", json.dumps(index).encode(), False)
    lay(folder, "config.json", b"{}\n", False)
    lay(folder, "nested/tokenizer.json", b'{"model": {}}\n', False)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    with tarfile.open(layer, "w") as archive:
        entry = tarfile.TarInfo("payload")
        entry.size = 48 * 1024 * 1024
        archive.addfile(entry, io.BytesIO(os.urandom(entry.size)))


if __name__ == "__main__":
    main(*sys.argv[1:])
