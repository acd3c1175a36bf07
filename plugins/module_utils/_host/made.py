# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this collection made on a host outside of the folders that bear its name: noted when it is made, removed by name.

What is not noted is somebody else's: its owner and mode stay, and nothing removes it. Two kinds of notes below C(/var/lib/dgxspark):
C(made) holds folders and images, C(models/NAME.made) the files of each model, by their names below the folder of weights. People may
write below that folder, so root follows no link there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .._runtime import state_file
from . import beneath, host_paths, staging

OWN = (
    *("/etc/dgxspark", "/opt/dgxspark", "/run/dgxspark", "/usr/local/lib/dgxspark", "/usr/local/libexec/dgxspark"),
    *("/var/cache/dgxspark", "/var/lib/dgxspark"),
)
"""Folders that bear the collection's name: whoever made them, they are its own."""
KINDS = ("shared", "cache", "weights")
"""What a folder holds: things of others beside ours, a service's compile cache, weights that a server fetches by itself."""


def state_dir() -> Path:
    """Return the folder of the notes. The variable is for tests; sudo does not let it through."""
    return Path(os.environ.get("DGXSPARK_STATE_DIR") or "/var/lib/dgxspark")


def _read(path: Path) -> dict[str, Any]:
    return state_file.read(path) or {}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    staging.beside(path, text.encode(), 0o644).replace(path)


# --- folders and images -----------------------------------------------------------------------------------------------


def _noted() -> dict[str, Any]:
    found = _read(state_dir() / "made")
    folders, images = found.get("folders"), found.get("images")
    return {
        "folders": {str(path): str(kind) for path, kind in folders.items()} if isinstance(folders, dict) else {},
        "images": [str(each) for each in images] if isinstance(images, list) else [],
    }


def folders() -> dict[str, str]:
    """Return the folders that were made here, with their kinds."""
    return dict(_noted()["folders"])


def is_own(path: str) -> bool:
    """Tell whether a folder is the collection's: made by it, or bearing its name."""
    real = os.path.realpath(path)
    if any(real == own or real.startswith(f"{own}/") for own in OWN):
        return True
    return real in folders()


def make_folder(path: Path, kind: str) -> None:
    """Make a folder with those above it that are missing, each noted before it is there."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    base = os.path.realpath(missing[-1].parent) if missing else ""
    found = _noted()
    new = {}
    for each in missing:
        real = str(Path(base) / os.path.relpath(each, missing[-1].parent))
        of_it = kind if each == path else "shared"
        # What bears the collection's name goes with it.
        if of_it != "shared" or not any(real == own or real.startswith(f"{own}/") for own in OWN):
            new[real] = of_it
    if new:
        found["folders"].update(new)
        _write(state_dir() / "made", found)
    path.mkdir(parents=True, exist_ok=True)


def adopt_folder(path: str, kind: str) -> None:
    """Note a folder that is there and bears the collection's name, so that it is known what it holds."""
    found = _noted()
    real = os.path.realpath(path)
    if kind != "shared" and found["folders"].get(real) != kind:
        found["folders"][real] = kind
        _write(state_dir() / "made", found)


def images() -> set[str]:
    """Return the ids of the images that were brought here."""
    return set(_noted()["images"])


def note_images(ids: Iterable[str]) -> bool:
    """Note images that were brought; returns whether one is new."""
    found = _noted()
    new = sorted(set(ids) - set(found["images"]))
    if new:
        found["images"] = sorted({*found["images"], *new})
        _write(state_dir() / "made", found)
    return bool(new)


def forget_images(ids: Iterable[str]) -> None:
    """Take images that are gone out of the note."""
    found = _noted()
    left = [each for each in found["images"] if each not in set(ids)]
    if left != found["images"]:
        _write(state_dir() / "made", {**found, "images": left})


def _forget_folder(real: str) -> None:
    found = _noted()
    if found["folders"].pop(real, None) is not None:
        _write(state_dir() / "made", found)


# --- what lies below a folder of weights ------------------------------------------------------------------------------


def repo_name(repo: str) -> str:
    """Return the name of the note of a model of the hub."""
    return repo.replace("/", "--")


def local_name(folder: str) -> str:
    """Return the name of the note of a model that the controller has; no repository has a name like it."""
    return f"{folder}@local"


def _note(name: str) -> Path:
    return state_dir() / "models" / f"{name}.made"


def noted_models() -> list[str]:
    """Return the names of the notes that there are."""
    return sorted(path.name[: -len(".made")] for path in (state_dir() / "models").glob("*.made"))


def listing(home: Path, repo: str) -> set[str]:
    """Return the names below a folder of weights that a download of a model may make."""
    folder = f"models--{repo_name(repo)}"
    found = {
        name for name in ("hub", "hub/.locks", "hub/version.txt", "hub/CACHEDIR.TAG", "xet") if _there(home / name)
    }
    for tree in (f"hub/{folder}", f"hub/.locks/{folder}", "xet"):
        top = home / tree
        if not _there(top):
            continue
        found.add(tree)
        if top.is_symlink():
            continue
        for base, names, files in os.walk(top):
            found |= {os.path.relpath(Path(base, name), home) for name in (*names, *files)}
    return found


def _there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def begin_fetch(home: Path, repo: str) -> None:
    """Note what is there before a download; one that was cut off is gone on with, so the first time counts."""
    path = _note(repo_name(repo))
    found = _read(path)
    before = found.setdefault("before", {})
    if str(home) not in before:
        noted = set((found.get("homes") or {}).get(str(home)) or [])
        before[str(home)] = sorted(listing(home, repo) - noted)
        _write(path, found)


def end_fetch(home: Path, repo: str) -> list[str]:
    """Note what a download has made since C(begin_fetch), and give it to the owner of the folder of weights; returns the names."""
    path = _note(repo_name(repo))
    found = _read(path)
    before = (found.get("before") or {}).pop(str(home), None)
    if before is None:
        return []
    new = sorted(listing(home, repo) - set(before))
    homes = found.setdefault("homes", {})
    homes[str(home)] = sorted({*(homes.get(str(home)) or []), *new})
    _write(path, found)
    hand_over(home, new)
    return new


def note(home: Path, name: str, paths: Iterable[str]) -> list[str]:
    """Note names below a folder of weights that are about to be made; those that are there already are not.

    :param home: the folder
    :param name: of the note
    :param paths: below the folder
    :returns: the new ones
    """
    new: set[str] = set()
    for relative in paths:
        parts = relative.split("/")
        if any(part in ("", ".", "..") for part in parts):  # no name below the folder
            continue
        for count in range(1, len(parts) + 1):
            part = "/".join(parts[:count])
            if part not in new and not _there(home / part):
                new.add(part)
    path = _note(name)
    found = _read(path)
    homes = found.setdefault("homes", {})
    known = set(homes.get(str(home)) or [])
    if not new <= known:
        homes[str(home)] = sorted(known | new)
        _write(path, found)
    return sorted(new)


def made_of(name: str) -> dict[str, list[str]]:
    """Return what was made of a model, by folder of weights; what a download that did not end has made is among it."""
    found = _read(_note(name))
    homes = {str(home): set(paths) for home, paths in (found.get("homes") or {}).items()}
    for home, before in (found.get("before") or {}).items():
        homes.setdefault(home, set()).update(listing(Path(home), name.replace("--", "/", 1)) - set(before))
    return {home: sorted(paths) for home, paths in homes.items()}


# --- changing what lies there, without following links ------------------------------------------------------------------


@contextlib.contextmanager
def _parent(home: Path, relative: str) -> Iterator[tuple[int, str]]:
    """Open the folder of a name below a folder of weights; raises OSError when a link lies on the way."""
    parts = relative.split("/")
    if not relative or relative.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise FileNotFoundError(f"{relative!r} is no name below {home}")
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor, parts[-1]
    finally:
        os.close(descriptor)


def hand_over(home: Path, paths: Iterable[str]) -> dict[str, tuple[list[int], list[int]]]:
    """Give what root has made below a folder to the owner of the folder; what is somebody's already stays as it is.

    Returns the marks of files before and after, by their names: whoever has noted the first takes the second, since a change of the
    owner is none of the content.
    """
    owner = home.stat()
    marks: dict[str, tuple[list[int], list[int]]] = {}
    if owner.st_uid == 0 or os.geteuid() != 0:
        return marks
    for relative in paths:
        with contextlib.suppress(OSError), _parent(home, relative) as (folder, name):
            seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
            # A second name of a file may be that of something else entirely.
            plain = (
                stat.S_ISDIR(seen.st_mode)
                or stat.S_ISLNK(seen.st_mode)
                or (stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1)
            )
            if seen.st_uid == 0 and plain:
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(seen.st_mode):
                    before, after = (
                        beneath.stat_key(seen),
                        beneath.stat_key(os.stat(name, dir_fd=folder, follow_symlinks=False)),
                    )
                    if before[:-1] == after[:-1]:
                        marks[relative] = before, after
    return marks


def entries_of(folder: int, name: str) -> list[str]:
    """Return what is in a folder below an open one, which is not followed where it is a link."""
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(descriptor) as entries:
            return [each.name for each in entries]
    finally:
        os.close(descriptor)


def remove_made(
    name: str, check: bool = False, only: Callable[[str], bool] = lambda _path: True
) -> tuple[list[str], list[dict[str, str]], int]:
    """Remove what was made of a model. Folders go when they are empty.

    :param name: of a note
    :param check: say it and remove nothing
    :param only: tells of a whole path whether it is meant
    :returns: what went, what stays with the reason (C([{path, why}])), and the bytes
    """
    removed: list[str] = []
    left: list[dict[str, str]] = []
    size = 0
    kept: dict[str, list[str]] = {}
    for home, paths in made_of(name).items():
        stays: list[str] = []
        # What is deeper goes first, so that a folder is empty by then.
        for relative in sorted(paths, key=lambda each: (-each.count("/"), each)):
            whole = f"{home}/{relative}"
            if not only(whole):
                stays.append(relative)
                continue
            try:
                with _parent(Path(home), relative) as (folder, entry):
                    seen = os.stat(entry, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISDIR(seen.st_mode):
                        if not check:
                            os.rmdir(entry, dir_fd=folder)
                        elif any(f"{whole}/{each}" not in removed for each in entries_of(folder, entry)):
                            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
                    else:
                        size += seen.st_size
                        if not check:
                            os.unlink(entry, dir_fd=folder)
                removed.append(whole)
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append({"path": whole, "why": error.strerror or str(error)})
                stays.append(relative)
        if stays:
            kept[home] = sorted(stays)
    if not check:
        path = _note(name)
        # Of a download that goes on, what was there before it is still to be told from what it makes.
        before = _read(path).get("before") or {}
        if kept:
            _write(path, {"homes": kept, **({"before": before} if before else {})})
        else:
            path.unlink(missing_ok=True)
    return sorted(removed), left, size


def remove_folder(path: str, check: bool = False) -> tuple[bool, str]:
    """Remove a folder that was made here, with all in it where all of it is ours, else when it is empty.

    Returns whether it went (or would), and why it stays. A folder that is not noted is never touched.
    """
    kind = folders().get(path)
    if kind is None:
        return False, "this collection did not make it"
    if kind != "shared" and host_paths.problem(path):
        return False, host_paths.problem(path)
    if not _there(Path(path)):
        if not check:
            _forget_folder(path)
        return False, ""
    if os.path.realpath(path) != path or not Path(path).is_dir():
        return False, "it is not the folder any more that was made here"
    if kind == "shared":
        others = sorted(each.name for each in Path(path).iterdir())
        if others:
            return False, f"not empty: {', '.join(others[:5])}{' ...' if len(others) > 5 else ''}"
        if not check:
            Path(path).rmdir()
    elif not check:
        shutil.rmtree(path)
    if not check:
        _forget_folder(path)
    return True, ""
