# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads tar and zip archives of third parties within limits of memory, disk and time. Sizes in their headers are not trusted."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable

FILE, LINK, OTHER = "file", "link", "other"
MOST_MEMBERS = 20_000
MOST_HEADER = 2**20
"""Bytes of a long name or of a pax header; Linux allows paths of 4 KiB."""
MOST_DIRECTORY = 4 * 2**20
"""Bytes of the list of members at the end of a zip file."""
CHUNK = 2**20
END_RECORD, END_RECORD_64 = b"PK\x05\x06", b"PK\x06\x07"
OPENERS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
"""By the first bytes of a file."""


class Unreadable(ValueError):
    """The archive is damaged, or larger than it may be."""


class Member(NamedTuple):
    """A member of an archive."""

    name: str
    kind: str
    """C(FILE), C(LINK) or C(OTHER)."""
    size: int
    """Bytes, as the archive claims."""
    read: Callable[[], bytes]
    """Returns the content; raises C(Unreadable) where it is longer than C(size)."""


def read_archive(place: Path, most_bytes: int, visit: Callable[[Member], None]) -> str:
    """Visit the members of an archive in their order.

    :param place: the archive: zip, or tar, plain or compressed by gzip, bzip2 or xz
    :param most_bytes: that it may unpack to
    :param visit: called with each member
    :returns: the comment of the archive; git writes the commit there
    :raises Unreadable: for any other file, or if it unpacks to more
    """
    try:
        return (_read_zip if zipfile.is_zipfile(place) else _read_tar)(place, most_bytes, visit)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise Unreadable(str(error)) from error
    except (RuntimeError, NotImplementedError) as error:  # an encrypted member, or a compression that Python has not
        raise Unreadable(str(error)) from error


class _BoundedHeader(tarfile.TarInfo):
    """A header of a tar archive that refuses a long name of a gigabyte, which tarfile would read into memory."""

    HEADERS = (
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
    )

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in self.HEADERS and self.size > MOST_HEADER:
            raise Unreadable(f"it has a name or header of {self.size} bytes, more than {MOST_HEADER}")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # typeshed lacks this documented hook
        return member


def _read_tar(place: Path, most_bytes: int, visit: Callable[[Member], None]) -> str:
    with tempfile.TemporaryFile() as unpacked:
        _decompress(place, unpacked, most_bytes)
        unpacked.seek(0)
        total = 0
        with tarfile.open(fileobj=unpacked, mode="r:", tarinfo=_BoundedHeader) as archive:
            for count, member in enumerate(archive):
                total += member.size
                _check(count, total, most_bytes)
                kind = FILE if member.isfile() else LINK if member.issym() or member.islnk() else OTHER

                def read(member: tarfile.TarInfo = member) -> bytes:
                    file = archive.extractfile(member)
                    return file.read() if file else b""

                visit(Member(printable(member.name), kind, member.size, read))
            return str(archive.pax_headers.get("comment") or "")


def _decompress(place: Path, target: IO[bytes], most_bytes: int) -> None:
    with place.open("rb") as packed:
        head = packed.read(6)
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), None)
    with opener(place) if opener else place.open("rb") as source:
        remaining = most_bytes
        while chunk := source.read(CHUNK):
            remaining -= len(chunk)
            if remaining < 0:
                raise Unreadable(f"it unpacks to more than {most_bytes // 1024**2} MiB")
            target.write(chunk)


def _read_zip(place: Path, most_bytes: int, visit: Callable[[Member], None]) -> str:
    _check_directory(place)
    total = 0
    with zipfile.ZipFile(place) as archive:
        for count, member in enumerate(archive.infolist()):
            total += member.file_size
            _check(count, total, most_bytes)
            kind = LINK if (member.external_attr >> 28) == 0xA else OTHER if member.is_dir() else FILE

            def read(member: zipfile.ZipInfo = member) -> bytes:
                content = b""
                with archive.open(member) as file:
                    # In pieces: a single read unpacks the whole member, even if it is larger than its header says.
                    while chunk := file.read(CHUNK):
                        content += chunk
                if len(content) != member.file_size:
                    raise Unreadable(f"{member.filename!r} has not the {member.file_size} bytes that it claims")
                return content

            visit(Member(printable(member.filename), kind, member.file_size, read))
        return archive.comment.decode("ascii", "replace")


def _check_directory(place: Path) -> None:
    """Refuse a zip file whose list of members is too long to be read into memory."""
    with place.open("rb") as file:
        file.seek(max(place.stat().st_size - 2**16 - 64, 0))
        tail = file.read()
    at = tail.rfind(END_RECORD)
    size = int.from_bytes(tail[at + 12 : at + 16], "little")
    if END_RECORD_64 in tail or size > MOST_DIRECTORY:
        raise Unreadable(f"its list of members has {size} bytes, more than {MOST_DIRECTORY}, or the form ZIP64")


def _check(count: int, total: int, most_bytes: int) -> None:
    if count >= MOST_MEMBERS:
        raise Unreadable(f"it has more than {MOST_MEMBERS} members")
    if total > most_bytes:
        raise Unreadable(f"it unpacks to more than {most_bytes // 1024**2} MiB")
