# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders, images and files that this collection made outside of its own folders: recorded at their creation, removed by name.

Anything else belongs to somebody else: it keeps owner and mode, and nothing removes it. There are two kinds of records below
C(/var/lib/dgxspark): C(made) holds folders and images, C(models/NAME.made) the files of each model, by their names below the folder of
weights. People may write below that folder, so root follows no link there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._runtime import state_file
from . import beneath, host_paths, staging

OWN = (
    "/etc/dgxspark",
    "/opt/dgxspark",
    "/run/dgxspark",
    "/usr/local/lib/dgxspark",
    "/usr/local/libexec/dgxspark",
    "/var/cache/dgxspark",
    "/var/lib/dgxspark",
)
"""Folders with the collection's name, which are its own, whoever made them."""
KINDS = ("shared", "cache", "weights")
"""Content of a folder: files of several owners, the compile cache of a service, or weights that a server downloads by itself."""


def state_dir() -> Path:
    """Return the folder of the records. The variable is for tests; sudo does not let it through."""
    return Path(os.environ.get("DGXSPARK_STATE_DIR") or "/var/lib/dgxspark")


def _read(path: Path) -> dict[str, Any]:
    return state_file.read(path) or {}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    staging.beside(path, text.encode(), 0o644).replace(path)


# --- folders and images -----------------------------------------------------------------------------------------------


def folders() -> dict[str, str]:
    """Return the recorded folders with their kinds."""
    recorded = _read(state_dir() / "made").get("folders")
    return {str(path): str(kind) for path, kind in recorded.items()} if isinstance(recorded, dict) else {}


def images() -> set[str]:
    """Return the ids of the recorded images."""
    recorded = _read(state_dir() / "made").get("images")
    return {str(image_id) for image_id in recorded} if isinstance(recorded, list) else set()


def _save(kinds: dict[str, str], image_ids: Iterable[str]) -> None:
    _write(state_dir() / "made", {"folders": kinds, "images": sorted(image_ids)})


def is_own(path: str) -> bool:
    """Tell whether a folder is the collection's: made by it, or with its name."""
    real = os.path.realpath(path)
    return _has_own_name(real) or real in folders()


def _has_own_name(real: str) -> bool:
    return any(real == own or real.startswith(f"{own}/") for own in OWN)


def make_folder(path: Path, kind: str) -> None:
    """Make a folder and its missing parents, recorded before they exist."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    base = os.path.realpath(missing[-1].parent) if missing else ""
    new = {}
    for folder in missing:
        real = str(Path(base) / os.path.relpath(folder, missing[-1].parent))
        kind_of_folder = kind if folder == path else "shared"
        # A folder with the collection's name is removed without a record.
        if kind_of_folder != "shared" or not _has_own_name(real):
            new[real] = kind_of_folder
    if new:
        _save({**folders(), **new}, images())
    path.mkdir(parents=True, exist_ok=True)


def adopt_folder(path: str, kind: str) -> None:
    """Record the kind of an existing folder with the collection's name."""
    kinds, real = folders(), os.path.realpath(path)
    if kind != "shared" and kinds.get(real) != kind:
        _save({**kinds, real: kind}, images())


def note_images(ids: Iterable[str]) -> bool:
    """Record images that were brought; returns whether one is new."""
    recorded = images()
    new = set(ids) - recorded
    if new:
        _save(folders(), recorded | new)
    return bool(new)


def forget_images(ids: Iterable[str]) -> None:
    """Remove images from the record."""
    recorded, gone = images(), set(ids)
    if recorded & gone:
        _save(folders(), recorded - gone)


def _forget_folder(real: str) -> None:
    kinds = folders()
    if kinds.pop(real, None) is not None:
        _save(kinds, images())


# --- files below a folder of weights ----------------------------------------------------------------------------------


def repo_name(repo: str) -> str:
    """Return the name of the record of a model of the hub."""
    return repo.replace("/", "--")


def local_name(folder: str) -> str:
    """Return the name of the record of a model from the controller; no repository has a name like it."""
    return f"{folder}@local"


def _record(name: str) -> Path:
    return state_dir() / "models" / f"{name}.made"


def noted_models() -> list[str]:
    """Return the names of all records of models."""
    return sorted(path.name[: -len(".made")] for path in (state_dir() / "models").glob("*.made"))


def listing(home: Path, repo: str) -> set[str]:
    """Return the names below a folder of weights that a download of a model may make."""
    folder = f"models--{repo_name(repo)}"
    shared = ("hub", "hub/.locks", "hub/version.txt", "hub/CACHEDIR.TAG", "xet")
    names = {name for name in shared if _is_present(home / name)}
    for tree in (f"hub/{folder}", f"hub/.locks/{folder}", "xet"):
        top = home / tree
        if not _is_present(top):
            continue
        names.add(tree)
        if not top.is_symlink():
            for base, folder_names, file_names in os.walk(top):
                names |= {os.path.relpath(Path(base, name), home) for name in (*folder_names, *file_names)}
    return names


def _is_present(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def begin_fetch(home: Path, repo: str) -> None:
    """Record the files that exist before a download; an interrupted one is continued, so its first start counts."""
    path = _record(repo_name(repo))
    record = _read(path)
    before = record.setdefault("before", {})
    if str(home) not in before:
        recorded = set((record.get("homes") or {}).get(str(home)) or [])
        before[str(home)] = sorted(listing(home, repo) - recorded)
        _write(path, record)


def end_fetch(home: Path, repo: str) -> list[str]:
    """Record the files that a download made since C(begin_fetch), and give them to the owner of the folder; returns their names."""
    path = _record(repo_name(repo))
    record = _read(path)
    before = (record.get("before") or {}).pop(str(home), None)
    if before is None:
        return []
    new = sorted(listing(home, repo) - set(before))
    homes = record.setdefault("homes", {})
    homes[str(home)] = sorted({*(homes.get(str(home)) or []), *new})
    _write(path, record)
    hand_over(home, new)
    return new


def note(home: Path, name: str, paths: Iterable[str]) -> list[str]:
    """Record names below a folder of weights before they are made, except existing ones; returns the new ones, with their missing folders."""
    new: set[str] = set()
    for relative in paths:
        parts = relative.split("/")
        if any(part in ("", ".", "..") for part in parts):  # no name below the folder
            continue
        upwards = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        new |= {part for part in upwards if part not in new and not _is_present(home / part)}
    path = _record(name)
    record = _read(path)
    homes = record.setdefault("homes", {})
    recorded = set(homes.get(str(home)) or [])
    if not new <= recorded:
        homes[str(home)] = sorted(recorded | new)
        _write(path, record)
    return sorted(new)


def made_of(name: str) -> dict[str, list[str]]:
    """Return the files that were made of a model, by folder of weights, with those of an unfinished download."""
    record = _read(_record(name))
    homes = {str(home): set(paths) for home, paths in (record.get("homes") or {}).items()}
    for home, before in (record.get("before") or {}).items():
        homes.setdefault(home, set()).update(listing(Path(home), name.replace("--", "/", 1)) - set(before))
    return {home: sorted(paths) for home, paths in homes.items()}


def hand_over(home: Path, paths: Iterable[str]) -> dict[str, tuple[list[int], list[int]]]:
    """Give root's files below a folder to the owner of the folder; files of others stay unchanged.

    Returns C(beneath.stat_key) of each file before and after, by its name: a record of the first takes the second, since a change of the
    owner changes no content.
    """
    owner = home.stat()
    keys: dict[str, tuple[list[int], list[int]]] = {}
    if owner.st_uid == 0 or os.geteuid() != 0:
        return keys
    for relative in paths:
        with contextlib.suppress(OSError), beneath.parent(home, relative) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_file = stat.S_ISREG(status.st_mode)
            # A second name of a file may belong to something else entirely.
            is_plain = (
                stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode) or (is_file and status.st_nlink == 1)
            )
            if status.st_uid != 0 or not is_plain:
                continue
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
            before = beneath.stat_key(status)
            after = beneath.stat_key(os.stat(name, dir_fd=folder, follow_symlinks=False))
            if is_file and before[:-1] == after[:-1]:
                keys[relative] = before, after
    return keys


def remove_made(
    name: str, check: bool = False, only: Callable[[str], bool] = lambda _path: True
) -> tuple[list[str], list[dict[str, str]], int]:
    """Remove the files that were made of a model, and empty folders; returns removed paths, remaining ones (C([{path, why}])), and the bytes."""
    removed: list[str] = []
    failures: list[dict[str, str]] = []
    size = 0
    remaining: dict[str, list[str]] = {}
    for home, paths in made_of(name).items():
        # The deepest first, so that a folder is empty by then.
        for relative in sorted(paths, key=lambda path: (-path.count("/"), path)):
            path = f"{home}/{relative}"
            why = ""
            if only(path):
                try:
                    size += _remove_entry(Path(home), relative, check, removed)
                    removed.append(path)
                    continue
                except FileNotFoundError:
                    continue
                except OSError as error:
                    why = error.strerror or str(error)
                    failures.append({"path": path, "why": why})
            remaining.setdefault(home, []).append(relative)
    if not check:
        record = _record(name)
        # An unfinished download still needs the list of earlier files.
        before = _read(record).get("before") or {}
        if remaining:
            homes = {home: sorted(paths) for home, paths in remaining.items()}
            _write(record, {"homes": homes, **({"before": before} if before else {})})
        else:
            record.unlink(missing_ok=True)
    return sorted(removed), failures, size


def _remove_entry(home: Path, relative: str, check: bool, removed: list[str]) -> int:
    """Remove a file, a link or an empty folder; returns the bytes of a file. removed: in check mode these paths count as gone."""
    with beneath.parent(home, relative) as (folder, name):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            if not check:
                os.unlink(name, dir_fd=folder)
            return status.st_size
        if not check:
            os.rmdir(name, dir_fd=folder)
            return 0
        with beneath.folder(folder, name) as descriptor:
            if any(f"{home}/{relative}/{entry}" not in removed for entry in beneath.names(descriptor)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    return 0


def remove_folder(path: str, check: bool = False) -> tuple[bool, str]:
    """Remove a folder that was made here: with its content if all of that is ours, else only if it is empty.

    Returns whether it was (or would be) removed, and the reason if not. A folder without a record is never touched.
    """
    kind = folders().get(path)
    if kind is None:
        return False, "this collection did not make it"
    if kind != "shared" and host_paths.problem(path):
        return False, host_paths.problem(path)
    if not _is_present(Path(path)):
        if not check:
            _forget_folder(path)
        return False, ""
    if os.path.realpath(path) != path or not Path(path).is_dir():
        return False, "it is not the folder any more that was made here"
    names = sorted(entry.name for entry in Path(path).iterdir()) if kind == "shared" else []
    if names:
        return False, f"not empty: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
    if not check:
        remove = os.rmdir if kind == "shared" else shutil.rmtree  # never a file that somebody adds meanwhile
        remove(path)
        _forget_folder(path)
    return True, ""
