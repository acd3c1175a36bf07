# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files below a folder that others can write to, for programs of root: every name is opened on its own, so no link leads elsewhere.

C(root) is a folder that an administrator named, by its path (links in that path count), or a descriptor of an open one. What is
C(relative) to it is not trusted: its folders are opened one after the other without following links, and work goes on by their
descriptors, so a folder that is exchanged for a link meanwhile changes nothing. Standard library alone: hosts run a byte copy.
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
# A pipe that nobody writes to would hold whoever opens it.
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
    """Return the names of a relative path; raises C(Refused) for one that is absolute or goes up."""
    parts = [part for part in str(relative).split("/") if part not in ("", ".")]
    if str(relative).startswith("/") or ".." in parts or "\0" in str(relative):
        raise Refused(f"{relative!r} does not stay below its folder")
    return parts


def _where(root: Root, parts: list[str]) -> str:
    base = str(Path(f"/proc/self/fd/{root}").readlink()) if isinstance(root, int) else str(root)
    return "/".join([base.rstrip("/"), *parts])


def _split(relative: str) -> tuple[str, str]:
    parts = parts_of(relative)
    if not parts:
        raise Refused(f"{relative!r} names no file")
    return "/".join(parts[:-1]), parts[-1]


@contextlib.contextmanager
def folder(root: Root, relative: str = "", make: bool = False, mode: int = 0o755) -> Iterator[int]:
    """Yield a descriptor of a folder, reached without following a link.

    :param root: that it lies below
    :param relative: its path there
    :param make: create what is missing
    :param mode: of what is made
    :returns: the descriptor, closed afterwards
    :raises Refused: where a name on the way is a link or no folder
    :raises FileNotFoundError: where one is missing
    """
    parts = parts_of(relative)
    at = os.dup(root) if isinstance(root, int) else os.open(root, FOLDER)
    try:
        for index, name in enumerate(parts):
            try:
                inner = _enter(at, name, make, mode)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Refused(
                        f"{_where(root, parts[: index + 1])} is a link, or no folder; links are not followed there, because others "
                        "than root can write to the folder. Put the folder itself in its place (mount --bind takes one from another disk)"
                    ) from error
                raise
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def _enter(at: int, name: str, make: bool, mode: int) -> int:
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=at)
    inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)
    os.fchmod(inner, mode)  # whatever the umask is
    return inner


@contextlib.contextmanager
def own_folder(root: Root, name: str) -> Iterator[int]:
    """Yield a descriptor of a folder that only the user of this program can enter, made where it is missing.

    Raises C(Refused) where somebody else's folder has that name.
    """
    with folder(root, name, make=True, mode=0o700) as at:
        if os.fstat(at).st_uid != os.geteuid():
            raise Refused(f"{_where(root, [name])} belongs to another user; take it away")
        os.fchmod(at, 0o700)
        yield at


def find(root: Root, relative: str) -> str:
    """Return a path without links for one that may have some; all of them have to stay below the root.

    Raises C(Refused) where a link leads out, C(FileNotFoundError) where the path leads nowhere.
    """
    left = list(reversed(parts_of(relative)))
    real: list[str] = []
    links = 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not real:
                raise Refused(f"{relative} leads out of {_where(root, [])}")
            real.pop()
            continue
        with folder(root, "/".join(real)) as at:
            if not stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                real.append(name)
                continue
            target = os.readlink(name, dir_fd=at)
        links += 1
        if links > MOST_LINKS:
            raise Refused(f"{relative} has too many links one behind the other")
        if target.startswith("/"):
            base = _where(root, [])
            if not os.path.normpath(target).startswith(f"{base}/"):
                raise Refused(f"{relative} leads out of {base}, to {target}")
            target, real = os.path.relpath(os.path.normpath(target), base), []
        left += reversed(target.split("/"))
    return "/".join(real)


def open_file(root: Root, relative: str) -> IO[bytes]:
    """Open a regular file for reading, without following a link and without waiting for one that is a pipe."""
    above, name = _split(relative)
    with folder(root, above) as at:
        try:
            descriptor = os.open(name, FILE, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise Refused(f"{_where(root, [relative])} is a link, or no regular file") from error
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{_where(root, [relative])} is no regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def open_end(root: Root, relative: str, mode: int = 0o644) -> IO[bytes]:
    """Open a regular file for writing behind its end, without following a link; it is made where it is missing.

    :param root: that it lies below, with the folders above it
    :param relative: its path there
    :param mode: of the file
    :returns: the open file
    :raises Refused: where there is a link, or no regular file
    """
    above, name = _split(relative)
    with folder(root, above) as at:
        try:
            descriptor = os.open(name, END, mode, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise Refused(f"{_where(root, [relative])} is a link, or no regular file") from error
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{_where(root, [relative])} is no regular file")
    os.fchmod(descriptor, mode)  # whatever the umask is
    return os.fdopen(descriptor, "ab")


def read(root: Root, relative: str, most: int) -> bytes:
    """Return the content of a regular file.

    :param root: that it lies below
    :param relative: its path there
    :param most: bytes that it may have
    :returns: its bytes
    :raises Refused: where it has more, or is no regular file
    """
    with open_file(root, relative) as handle:
        content = b""
        while len(content) <= most:
            piece = handle.read(most + 1 - len(content))
            if not piece:
                return content
            content += piece
    raise Refused(f"{_where(root, [relative])} has more than {most} bytes")


def info(root: Root, relative: str) -> os.stat_result | None:
    """Return C(lstat) of a path, None where there is none."""
    above, name = _split(relative)
    try:
        with folder(root, above) as at:
            return os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None


def size(root: Root, relative: str) -> int | None:
    """Return the size of a regular file, None where there is none."""
    found = info(root, relative)
    return found.st_size if found and stat.S_ISREG(found.st_mode) else None


def names(at: int) -> list[str]:
    """Return what an open folder holds, sorted."""
    with os.scandir(at) as found:
        return sorted(entry.name for entry in found)


def walk(root: Root, relative: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is below a folder but for the folders themselves, with its C(lstat), by name; nothing where there is no folder."""
    if relative.count("/") > MOST_LEVELS:
        raise Refused(f"{relative[:200]} and more has over {MOST_LEVELS} folders inside each other")
    try:
        with folder(root, relative) as at:
            inner = []
            for name in names(at):
                try:
                    found = os.stat(name, dir_fd=at, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                path = f"{relative}/{name}" if relative else name
                if stat.S_ISDIR(found.st_mode):
                    inner.append(path)
                else:
                    yield path, found
    except FileNotFoundError:
        return
    for path in inner:
        yield from walk(root, path)


# --- writing ----------------------------------------------------------------------------------------------------------


def _draft(name: str) -> str:
    return f".{name[:100]}.{secrets.token_hex(8)}"


def write(root: Root, relative: str, content: bytes, mode: int = 0o644) -> None:
    """Write a file by one rename; folders that are missing are made. A link of that name is replaced, never written through.

    :param root: that it lies below
    :param relative: its path there
    :param content: its bytes
    :param mode: of the file
    """
    above, name = _split(relative)
    with folder(root, above, make=True) as at:
        draft = _draft(name)
        try:
            with os.fdopen(os.open(draft, FRESH, mode, dir_fd=at), "wb") as handle:
                os.fchmod(handle.fileno(), mode)
                handle.write(content)
            os.replace(draft, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=at)
            raise


def link(root: Root, relative: str, target: str) -> None:
    """Make a link by one rename; folders that are missing are made.

    :param root: that it lies below
    :param relative: its path there
    :param target: the text of the link
    """
    above, name = _split(relative)
    with folder(root, above, make=True) as at:
        draft = _draft(name)
        os.symlink(target, draft, dir_fd=at)
        os.replace(draft, name, src_dir_fd=at, dst_dir_fd=at)


def move(source: Root, from_relative: str, root: Root, relative: str) -> None:
    """Rename a file or folder; both have to be on one file system.

    :param source: that it lies below
    :param from_relative: its path there
    :param root: that it is to lie below
    :param relative: its path there
    """
    from_above, from_name = _split(from_relative)
    above, name = _split(relative)
    with folder(source, from_above) as start, folder(root, above, make=True) as at:
        os.replace(from_name, name, src_dir_fd=start, dst_dir_fd=at)


def place(handle: IO[bytes], sha256: str, root: Root, relative: str, mode: int = 0o644) -> bool:
    """Give an open file of somebody else's folder a name here, if it has the SHA-256 that is wanted.

    It is the very file that was read that gets the name, or a copy where it is on another file system, hashed as
    it is written.

    :param handle: the file, open
    :param sha256: 64 hexadecimal digits
    :param root: that it is to lie below
    :param relative: its path there
    :param mode: of the file
    :returns: whether it had that sum
    """
    above, name = _split(relative)
    descriptor = handle.fileno()
    with folder(root, above, make=True) as at:
        draft = _draft(name)
        try:
            os.link(f"/proc/self/fd/{descriptor}", draft, dst_dir_fd=at, follow_symlinks=True)
        except OSError:  # another file system, or one without hard links
            target = os.open(draft, FRESH, 0o600, dir_fd=at)
        else:
            target = os.open(draft, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            with os.fdopen(target, "r+b", buffering=0) as own:
                if not os.path.samestat(os.fstat(target), os.fstat(descriptor)):
                    handle.seek(0)
                    while piece := handle.read(CHUNK):
                        own.write(piece)
                    drop_pages(descriptor)
                os.fchown(target, os.geteuid(), os.getegid())
                os.fchmod(target, mode)
                own.seek(0)
                right = sha256_of(own) == sha256
            if right:
                os.replace(draft, name, src_dir_fd=at, dst_dir_fd=at)
            return right
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=at)


def remove(root: Root, relative: str) -> None:
    """Remove a file or a link, whatever it leads to; nothing where there is none."""
    above, name = _split(relative)
    with contextlib.suppress(FileNotFoundError), folder(root, above) as at:
        os.unlink(name, dir_fd=at)


def remove_tree(root: Root, relative: str) -> None:
    """Remove a folder with all that is in it; links in it are removed and not followed. Nothing where there is none."""
    above, name = _split(relative)
    with contextlib.suppress(FileNotFoundError), folder(root, above) as at:
        _remove_tree(at, name)


def _remove_tree(at: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=at)
        return
    inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)
    try:
        for each in names(inner):
            _remove_tree(inner, each)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=at)


# --- hashing ----------------------------------------------------------------------------------------------------------


def sha256_of(handle: IO[bytes]) -> str:
    """Return the SHA-256 of what is left of an open file, and let go of its pages: on a Spark the page cache is the GPU's memory."""
    total = hashlib.sha256()
    while block := handle.read(CHUNK):
        total.update(block)
    drop_pages(handle.fileno())
    return total.hexdigest()


def drop_pages(descriptor: int) -> None:
    """Have the kernel forget the pages of a file."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def stat_key(found: os.stat_result) -> list[int]:
    """Return what changes when a file does: size, time of the last change of its content, inode, and time of the last change at all.

    The last one cannot be set back by whoever writes to the file.
    """
    return [found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns]
