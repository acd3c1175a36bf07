# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a model in the hub's layout and what tells images apart, for the host: what is whole, what was verified.

Standard library alone: hosts run a byte copy beside the worker of the role spread.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDS = Path("/var/lib/dgxspark/spread")
SUMS = Path("/var/lib/dgxspark/models")
"""Where the role models keeps what it knows of files, and the mark that engines are started anew by."""
STAGING = ".spread"
"""Below HF_HOME, so that what has come is renamed and not copied."""
CHUNK = 4 * 1024 * 1024
HEX = re.compile(r"[0-9a-f]+")


class Failed(Exception):
    """A thing could not be brought, with the reason for a person."""


class Wrong(Failed):
    """A source sent something else than it said."""


# --- files and their digests ------------------------------------------------------------------------------------------


def named_digest(store: str) -> str | None:
    """Return the digest that the hub gave a blob as its name, or None where the name is none.

    Large files are named by their SHA-256, small ones by Git's id of a blob.
    """
    folder, _slash, name = store.rpartition("/")
    if not folder.endswith("/blobs") or not HEX.fullmatch(name):
        return None
    return {64: f"sha256:{name}", 40: f"git:{name}"}.get(len(name))


def digests(path: Path, drop: bool = True) -> tuple[str, str]:
    """Return SHA-256 and Git's id of a file. Its pages leave the cache again: engines count them as memory in use."""
    sha256 = hashlib.sha256()
    git = hashlib.sha1(usedforsecurity=False)
    git.update(b"blob %d\0" % path.stat().st_size)
    small = path.stat().st_size < 64 * 1024 * 1024  # Git's ids name small files alone
    with path.open("rb", buffering=0) as stream:
        while True:
            piece = stream.read(CHUNK)
            if not piece:
                break
            sha256.update(piece)
            if small:
                git.update(piece)
        if drop and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return f"sha256:{sha256.hexdigest()}", f"git:{git.hexdigest()}" if small else ""


def mark(path: Path) -> list[int]:
    """Return what changes when a file does: size, time of the last change, inode."""
    info = path.stat()
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def record_path(repo_folder: str) -> Path:
    """Return where a host keeps which files of a model it has verified."""
    return RECORDS / f"{repo_folder}.json"


def read_record(repo_folder: str) -> dict[str, Any]:
    """Return what was verified: C({store: {mark, sha256}})."""
    try:
        content = json.loads(record_path(repo_folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_record(repo_folder: str, record: Mapping[str, Any]) -> None:
    """Keep what was verified, by one rename."""
    path = record_path(repo_folder)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(json.dumps(record, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)


def snapshot_files(hub: Path, repo_folder: str, commit: str, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """List the files of a snapshot: C([{path, store, link, size, sha256, known}]).

    path: below the snapshot. store: where its bytes are, below the hub folder. link: the text of its link, empty for a
    plain file. sha256: as verified when the file was last whole, else None. known: C(yes) when the file has not changed
    since, C(changed) when it has, C(no) when it was never verified. Links that lead nowhere have the size None.
    """
    snapshot = hub / repo_folder / "snapshots" / commit
    record = read_record(repo_folder)
    found = []
    for folder, _folders, names in os.walk(snapshot):
        for name in sorted(names):
            path = Path(folder) / name
            relative = path.relative_to(snapshot).as_posix()
            if only and not any(fnmatch.fnmatch(relative, pattern) for pattern in only):
                continue
            link = str(path.readlink()) if path.is_symlink() else ""
            store = os.path.relpath(os.path.normpath(path.parent / link) if link else path, hub)
            if not store.startswith(f"{repo_folder}/"):  # leads out of the model's folder: sent as a plain file
                link, store = "", os.path.relpath(path, hub)
            entry: dict[str, Any] = {"path": relative, "store": store, "link": link, "size": None, "sha256": None}
            verified = record.get(store) or {}
            entry["known"] = "no"
            if path.exists():
                now = mark(hub / store)
                entry["size"] = now[0]
                if verified:
                    entry["known"] = "yes" if verified.get("mark") == now else "changed"
                    entry["sha256"] = verified.get("sha256")
            found.append(entry)
    return sorted(found, key=lambda entry: str(entry["path"]))


def safe(relative: str) -> str:
    """Return a path that stays below its folder; what another host says is not taken on trust."""
    parts = relative.split("/")
    if not relative or relative.startswith("/") or ".." in parts or "\0" in relative or "\n" in relative:
        raise Failed(f"the source names a file {relative!r}, which is outside of the model's folder; nothing was taken")
    return relative


def safe_link(folder: Path, path: str, link: str, root: Path) -> str:
    """Return the text of a link that leads to a place inside of the model's folder."""
    target = os.path.normpath((folder / path).parent / link)
    if link.startswith("/") or not target.startswith(f"{root}{os.sep}"):
        raise Failed(f"the source names a link {path} to {link}, which leads out of the model's folder")
    return link


def put_aside(path: Path, staged: Path, size: int | None, repo_folder: str) -> None:
    """Take a file that is not whole out of use; the start of a truncated one need not come a second time.

    Engines that have loaded it go on with what they have: the mark is what they are started anew by.
    """
    mark_file = SUMS / f"{repo_folder[len('models--') :]}.repaired"
    mark_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    mark_file.touch()
    if size is not None and path.stat().st_size < size:
        staged.parent.mkdir(parents=True, exist_ok=True)
        path.replace(staged)
    else:
        path.unlink()


def same_image(wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> bool:
    """Tell whether an image is the one that was asked for.

    Engines with another image store give other ids to the same image; what it is made of has the same digests in all.
    """
    if not found:
        return False
    return bool(wanted["id"] == found["id"] or (wanted["layers"] and wanted["content"] == found["content"]))


def describe(item: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce an entry of C(docker image inspect) to what tells images apart."""
    layers = list((item.get("RootFS") or {}).get("Layers") or [])
    config = item.get("Config") or {}
    said = {key: config.get(key) for key in ("Entrypoint", "Cmd", "Env", "User", "WorkingDir", "Labels")}
    body = {"layers": layers, "config": said, "architecture": item.get("Architecture"), "os": item.get("Os")}
    content = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {"id": item.get("Id"), "layers": len(layers), "content": content, "size": int(item.get("Size") or 0)}
