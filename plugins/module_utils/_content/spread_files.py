# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a model in the hub's layout and the identity of images, on the host: complete snapshots and verified files.

Standard library alone: hosts run byte copies of the engine's files with the worker of the role spread.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from .._common.foreign_text import parse_json
from .._host import beneath
from . import file_sums, image_archive
from .file_sums import SUMS_DIR, Sums

SAVED = Path("/var/lib/dgxspark/spread/images")
"""Images that a host sends or receives, as C(image_archive.save) writes them, by C(spread_names.item_id)."""
DRAFT = ".draft"
"""Ending of the folder of an image that is being saved."""
SUMS = Path(SUMS_DIR)
STAGING = ".spread"
"""Below HF_HOME, so that received files are renamed and not copied."""
CHUNK = 4 * 1024 * 1024
HEX = re.compile(r"[0-9a-f]+")


class Failed(Exception):
    """A thing could not be brought, with the reason for a person."""


class Wrong(Failed):
    """A source sent something else than it said."""


# --- saved images ---------------------------------------------------------------------------------------------------------


def read_saved(folder: Path, image_id: str) -> dict[str, Any] | None:
    """Return the description of a saved image, None unless the folder has all of it. image_id: of Docker."""
    try:
        saved = parse_json((folder / image_archive.IMAGE).read_text(encoding="utf-8"), image_archive.IMAGE)
        image = dict(saved["image"]) if saved["id"] == image_id else {"files": {"": 0}}
        is_whole = all((folder / name).stat().st_size == size for name, size in image["files"].items())
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return image if is_whole else None


def describe_saved(folder: Path, image_id: str, image: Mapping[str, Any]) -> None:
    """Write the description of an image when its folder has all of it. image: of the form C(image_archive.SAVED)."""
    beneath.write(folder, image_archive.IMAGE, json.dumps({"id": image_id, "image": image}).encode())


def finished_images() -> list[Path]:
    """Return the folders of saved images from which no transfer resumes: whole ones, and files of an interrupted C(docker save)."""
    return sorted({*(path.parent for path in SAVED.glob(f"*/{image_archive.IMAGE}")), *SAVED.glob(f"*{DRAFT}")})


# --- files and their digests ------------------------------------------------------------------------------------------


def named_digest(store: str) -> str | None:
    """Return the digest in the name of a blob, or None for another name.

    Large files are named by their SHA-256, small ones by Git's id of a blob.
    """
    folder, _slash, name = store.rpartition("/")
    if not folder.endswith("/blobs") or not HEX.fullmatch(name):
        return None
    return name if len(name) in (64, 40) else None


def digests(handle: IO[bytes]) -> tuple[str, str]:
    """Return SHA-256 and Git's id of an open file. Its pages leave the cache again: engines count them as memory in use."""
    size = os.fstat(handle.fileno()).st_size
    sha256 = hashlib.sha256()
    git = hashlib.sha1(usedforsecurity=False)
    git.update(b"blob %d\0" % size)
    small = size < 64 * 1024 * 1024  # Git's ids name small files alone
    handle.seek(0)
    while True:
        piece = handle.read(CHUNK)
        if not piece:
            break
        sha256.update(piece)
        if small:
            git.update(piece)
    beneath.drop_pages(handle.fileno())
    return sha256.hexdigest(), git.hexdigest() if small else ""


def safe_link(path: str, link: str) -> str:
    """Return the text of a link that leads to a place inside of the model's folder; path: of the link, below that folder."""
    target = os.path.normpath(f"{path.rpartition('/')[0]}/{link}")
    if link.startswith("/") or "\0" in link or target in (".", "..") or target.startswith("../"):
        raise Failed(f"the source names a link {path} to {link!r}, which leads out of the model's folder")
    return link


def sums_of(repo_folder: str) -> Sums:
    """Return the recorded sums of a model. repo_folder: below the hub folder."""
    return Sums(SUMS, repo_folder[len("models--") :])


def put_aside(home: Path, store: str, size: int | None, repo_folder: str) -> None:
    """Take a file that is not whole out of use; the start of a truncated one need not come a second time.

    Engines with it loaded continue; the mark causes their restart.

    :param size: expected bytes, None if unknown
    """
    file_sums.note_repair(SUMS, repo_folder[len("models--") :])
    present_size = beneath.size(home, f"hub/{store}")
    if size is not None and present_size is not None and present_size < size:
        with beneath.own_folder(home, STAGING) as staging:
            beneath.move(home, f"hub/{store}", staging, store)
    else:
        beneath.remove(home, f"hub/{store}")


def same_image(expected: Mapping[str, Any], present: Mapping[str, Any] | None) -> bool:
    """Return whether an image is the requested one.

    Engines with another image store give other ids to the same image; its layers have the same digests in all.
    """
    if not present:
        return False
    return bool(expected["id"] == present["id"] or (expected["layers"] and expected["content"] == present["content"]))


def describe(item: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce an entry of C(docker image inspect) to what tells images apart."""
    layers = list((item.get("RootFS") or {}).get("Layers") or [])
    config = item.get("Config") or {}
    settings = {key: config.get(key) for key in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir", "Labels")}
    body = {"layers": layers, "config": settings, "architecture": item.get("Architecture"), "os": item.get("Os")}
    content = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {"id": item.get("Id"), "layers": len(layers), "content": content, "size": int(item.get("Size") or 0)}
