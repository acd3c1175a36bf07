# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files below a folder that others can write to, for programs of root: every name is opened by itself, so that no link leads elsewhere.

C(root) is a folder that an administrator named, by its path (links in that path are followed), or the descriptor of an open one. A path
C(relative) to it is not trusted: its folders are opened one after the other without following links, and all work goes by their
descriptors, so a folder that is exchanged for a link meanwhile changes nothing. Standard library alone: hosts run a copy of this file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Union

from .._common.foreign_text import printable

Root = Union[str, Path, int]
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Opening a pipe without a writer would block.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
END = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_LINKS = 8
MOST_LEVELS = 64
CHUNK = 4 * 2**20


class Refused(OSError):
    """A name below the folder is a link, leads out of it, or is no regular file; the message says which."""

    def __init__(self, message: str) -> None:
        self.message = printable(message)
        super().__init__(errno.ELOOP, self.message)

    def __str__(self) -> str:
        return self.message


def parts_of(relative: str) -> list[str]:
    """Return the names of a relative path; raises C(Refused) for an absolute path or one with C(..)."""
    parts = [part for part in str(relative).split("/") if part not in ("", ".")]
    if str(relative).startswith("/") or ".." in parts or "\0" in str(relative):
        raise Refused(f"{relative!r} does not stay below its folder")
    return parts


def _full_path(root: Root, *parts: str) -> str:
    base = str(Path(f"/proc/self/fd/{root}").readlink()) if isinstance(root, int) else str(root)
    return "/".join([base.rstrip("/"), *parts])


@contextlib.contextmanager
def folder(root: Root, relative: str = "", make: bool = False, mode: int = 0o755) -> Iterator[int]:
    """Yield a descriptor of a folder, reached without following a link. Raises Refused for a link or file on the way, FileNotFoundError."""
    parts = parts_of(relative)
    descriptor = os.dup(root) if isinstance(root, int) else os.open(root, FOLDER)
    try:
        for index, name in enumerate(parts):
            try:
                inner = _enter(descriptor, name, make, mode)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Refused(
                        f"{_full_path(root, *parts[: index + 1])} is a link, or no folder; links are not followed there, because others "
                        "than root can write to the folder. Put the folder itself in its place (mount --bind takes one from another disk)"
                    ) from error
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def parent(root: Root, relative: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder of a file or link, and its name there."""
    parts = parts_of(relative)
    if not parts:
        raise Refused(f"{relative!r} names no file")
    with folder(root, "/".join(parts[:-1]), make) as descriptor:
        yield descriptor, parts[-1]


def _enter(at: int, name: str, make: bool, mode: int) -> int:
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=at)
    inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)
    os.fchmod(inner, mode)  # independent of the umask
    return inner


@contextlib.contextmanager
def own_folder(root: Root, name: str) -> Iterator[int]:
    """Yield a descriptor of a folder that only this program's user can enter, created if missing. Raises C(Refused) for one of another user."""
    with folder(root, name, make=True, mode=0o700) as descriptor:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise Refused(f"{_full_path(root, name)} belongs to another user; take it away")
        os.fchmod(descriptor, 0o700)
        yield descriptor


def find(root: Root, relative: str) -> str:
    """Return the path without links of one that may have some; all of them have to stay below the root.

    Raises C(Refused) for a link that leads out, C(FileNotFoundError) for a path that does not exist.
    """
    remaining = list(reversed(parts_of(relative)))
    real: list[str] = []
    links = 0
    while remaining:
        name = remaining.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not real:
                raise Refused(f"{relative} leads out of {_full_path(root)}")
            real.pop()
            continue
        with folder(root, "/".join(real)) as descriptor:
            if not stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                real.append(name)
                continue
            target = os.readlink(name, dir_fd=descriptor)
        links += 1
        if links > MOST_LINKS:
            raise Refused(f"{relative} has too many links one behind the other")
        if target.startswith("/"):
            base = _full_path(root)
            if not os.path.normpath(target).startswith(f"{base}/"):
                raise Refused(f"{relative} leads out of {base}, to {target}")
            target, real = os.path.relpath(os.path.normpath(target), base), []
        remaining += reversed(target.split("/"))
    return "/".join(real)


def _open_regular(root: Root, relative: str, flags: int) -> int:
    """Return a descriptor of a regular file; raises Refused for anything else."""
    with parent(root, relative) as (folder_descriptor, name):
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=folder_descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise Refused(f"{_full_path(root, relative)} is a link, or no regular file") from error
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{_full_path(root, relative)} is no regular file")
    return descriptor


def open_file(root: Root, relative: str) -> IO[bytes]:
    """Open a regular file for reading, without following a link and without waiting for a pipe."""
    return os.fdopen(_open_regular(root, relative, FILE), "rb", buffering=0)


def open_end(root: Root, relative: str) -> IO[bytes]:
    """Open a regular file in an existing folder for writing behind its end, without following a link; a missing file is created."""
    descriptor = _open_regular(root, relative, END)
    os.fchmod(descriptor, 0o644)  # independent of the umask
    return os.fdopen(descriptor, "ab")


def read(root: Root, relative: str, most: int) -> bytes:
    """Return the content of a regular file. Raises C(Refused) for more than C(most) bytes, or anything but a regular file."""
    with open_file(root, relative) as handle:
        content = b""
        while len(content) <= most:
            piece = handle.read(most + 1 - len(content))
            if not piece:
                return content
            content += piece
    raise Refused(f"{_full_path(root, relative)} has more than {most} bytes")


def info(root: Root, relative: str) -> os.stat_result | None:
    """Return C(lstat) of a path, None for a missing one."""
    try:
        with parent(root, relative) as (descriptor, name):
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None


def size(root: Root, relative: str) -> int | None:
    """Return the size of a regular file, None for a missing one."""
    status = info(root, relative)
    return status.st_size if status and stat.S_ISREG(status.st_mode) else None


def names(descriptor: int) -> list[str]:
    """Return the names in an open folder, sorted."""
    with os.scandir(descriptor) as entries:
        return sorted(entry.name for entry in entries)


def walk(root: Root, relative: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files and links below a folder with their C(lstat), by name; nothing for a missing folder."""
    if relative.count("/") > MOST_LEVELS:
        raise Refused(f"{relative[:200]} and more has over {MOST_LEVELS} folders inside each other")
    try:
        with folder(root, relative) as descriptor:
            folders = []
            for name in names(descriptor):
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                path = f"{relative}/{name}" if relative else name
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                else:
                    yield path, status
    except FileNotFoundError:
        return
    for path in folders:
        yield from walk(root, path)


# --- writing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _draft(descriptor: int, name: str) -> Iterator[str]:
    """Yield the name of a temporary file next to a file; it is removed unless it was renamed."""
    draft = f".{name[:100]}.{secrets.token_hex(8)}"
    try:
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=descriptor)


def write(root: Root, relative: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file by one rename; missing folders are created. A link of that name is replaced, never written through."""
    with parent(root, relative, make=True) as (descriptor, name), _draft(descriptor, name) as draft:
        with os.fdopen(os.open(draft, FRESH, mode, dir_fd=descriptor), "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(content)
        os.replace(draft, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def link(root: Root, relative: str, target: str) -> None:
    """Make a link by one rename; missing folders are created."""
    with parent(root, relative, make=True) as (descriptor, name), _draft(descriptor, name) as draft:
        os.symlink(target, draft, dir_fd=descriptor)
        os.replace(draft, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def move(source: Root, from_relative: str, root: Root, relative: str) -> None:
    """Rename a file or folder within one file system."""
    with parent(source, from_relative) as (start, old_name), parent(root, relative, make=True) as (end, name):
        os.replace(old_name, name, src_dir_fd=start, dst_dir_fd=end)


def place(handle: IO[bytes], sha256: str, root: Root, relative: str, mode: int = 0o644) -> bool:
    """Give an open file of another owner's folder a name here if it has the expected SHA-256.

    The file that was read itself gets the name; on another file system it is a copy, hashed after the writing.
    """
    source = handle.fileno()
    with parent(root, relative, make=True) as (descriptor, name), _draft(descriptor, name) as draft:
        try:
            os.link(f"/proc/self/fd/{source}", draft, dst_dir_fd=descriptor, follow_symlinks=True)
        except OSError:  # another file system, or one without hard links
            target = os.open(draft, FRESH, 0o600, dir_fd=descriptor)
        else:
            target = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        with os.fdopen(target, "r+b", buffering=0) as stream:
            if not os.path.samestat(os.fstat(target), os.fstat(source)):
                handle.seek(0)
                while piece := handle.read(CHUNK):
                    stream.write(piece)
                drop_pages(source)
            os.fchown(target, os.geteuid(), os.getegid())
            os.fchmod(target, mode)
            stream.seek(0)
            is_expected = sha256_of(stream) == sha256
        if is_expected:
            os.replace(draft, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        return is_expected


def remove(root: Root, relative: str) -> None:
    """Remove a file, or a link itself; a missing one is fine."""
    with contextlib.suppress(FileNotFoundError), parent(root, relative) as (descriptor, name):
        os.unlink(name, dir_fd=descriptor)


def remove_tree(root: Root, relative: str) -> None:
    """Remove a folder with its content; links in it are removed and not followed. A missing one is fine."""
    with contextlib.suppress(FileNotFoundError), parent(root, relative) as (descriptor, name):
        _remove_tree(descriptor, name)


def _remove_tree(descriptor: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=descriptor)
        return
    with folder(descriptor, name) as inner:
        for entry in names(inner):
            _remove_tree(inner, entry)
    os.rmdir(name, dir_fd=descriptor)


# --- hashing ----------------------------------------------------------------------------------------------------------


def sha256_of(handle: IO[bytes]) -> str:
    """Return the SHA-256 of the rest of an open file, and drop its pages: on a Spark the page cache is the GPU's memory."""
    total = hashlib.sha256()
    while block := handle.read(CHUNK):
        total.update(block)
    drop_pages(handle.fileno())
    return total.hexdigest()


def drop_pages(descriptor: int) -> None:
    """Have the kernel forget the pages of a file."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def stat_key(status: os.stat_result) -> list[int]:
    """Return the figures that change with a file: size, mtime, inode, and ctime, which a writer of the file cannot set back."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
