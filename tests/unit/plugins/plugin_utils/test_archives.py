# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives that claim other sizes than they have, or unpack to more than anybody has room for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_texts import HOSTILE, is_harmless

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import archives

MOST = 2**20


def visited(place: Path, most: int = MOST) -> dict[str, bytes]:
    """Contents by name."""
    files: dict[str, bytes] = {}

    def visit(member: archives.Member) -> None:
        files[member.name] = member.read() if member.kind == archives.FILE else member.kind.encode()

    archives.read_archive(place, most, visit)
    return files


def tar(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return raw.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return raw.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress
}  # fmt: skip


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_tar_archives_are_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    place = tmp_path / "archive"
    name = "top/" + "long" * 60
    place.write_bytes(pack(tar((name, b"one"), ("top/two", b"2"))))
    assert visited(place) == {name: b"one", "top/two": b"2", "top/link": b"link"}


def test_zip_archives_are_read(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    place.write_bytes(zipped(("top/one", b"one"), ("top/two", b"2")))
    assert visited(place) == {"top/one": b"one", "top/two": b"2"}


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_long_name_is_refused_by_its_header(tmp_path: Path, kind: bytes) -> None:
    """A name of 1.5 GiB packs into 1.5 MB; tarfile would read it into memory."""
    place = tmp_path / "archive.tar.gz"
    place.write_bytes(gzip.compress(header(kind, 1536 * 2**20) + b"a" * 4096, mtime=0))
    with pytest.raises(archives.Unreadable, match="a name or header of 1610612736 bytes"):
        visited(place)


def lying_zip(content: bytes, claimed: int) -> bytes:
    """A zip file whose member claims a size, in both of its headers."""
    body = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = body.compress(content) + body.flush()
    crc, name = zlib.crc32(content[:claimed]), b"top/a.yml"
    fields = struct.pack("<HHHHHLLLHH", 20, 0, 8, 0, 33, crc, len(packed), claimed, len(name), 0)
    local = b"PK\x03\x04" + fields + name + packed
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHLL", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


@pytest.mark.parametrize("claimed", [100, 500_000])
def test_a_zip_file_that_lies_about_a_size_takes_no_memory(tmp_path: Path, claimed: int) -> None:
    place = tmp_path / "archive.zip"
    place.write_bytes(lying_zip(b"\0" * (40 * 2**20 if claimed == 100 else 1000), claimed))
    tracemalloc.start()
    try:
        files = visited(place)
    except archives.Unreadable as error:
        files = {"": str(error).encode()}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert files == {"top/a.yml": b"\0" * 100} if claimed == 100 else b"500000 bytes" in files[""]


def test_bounds_of_bytes_and_of_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "archive"
    large = ("top/a", b"\0" * (MOST + 1))
    for content in (tar(large), gzip.compress(tar(large), mtime=0), zipped(large)):
        place.write_bytes(content)
        with pytest.raises(archives.Unreadable, match="unpacks to more than 1 MiB"):
            visited(place)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 50)
    monkeypatch.setattr(archives, "MOST_DIRECTORY", 10_000)
    many = [(f"top/{number}", b"") for number in range(51)]
    for content in (tar(*many), zipped(*many)):
        place.write_bytes(content)
        with pytest.raises(archives.Unreadable, match="more than 50 members"):
            visited(place)
    place.write_bytes(zipped(*((f"top/{'n' * 5000}{number}", b"") for number in range(3))))
    with pytest.raises(archives.Unreadable, match="list of members"):
        visited(place)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x1f\x8b",
        b"BZh",
        b"\xfd7zXZ\x00",
        b"PK\x05\x06" + b"\xff" * 18,
        gzip.compress(b"x" * 1000, mtime=0),
        tar(("top/a", b"x" * 2000))[:700],
    ],
)
def test_what_is_no_archive_is_an_error(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "archive"
    place.write_bytes(content)
    with pytest.raises(ValueError, match=r".*"):
        visited(place)


def test_names_steer_no_terminal(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    names = [name for name in HOSTILE if "\0" not in name and "\ud800" not in name]
    for content in (tar(*((f"top/{name}", b"") for name in names)), zipped(*((f"top/{name}", b"") for name in names))):
        place.write_bytes(content)
        files = visited(place)
        assert len(files) >= len(names) and all(is_harmless(name) for name in files)
