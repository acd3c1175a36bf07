# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of docker save that are taken apart into layers, and are archives again when some or all of them are put together."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import pytest
from spread_fixture import EVIL, NAME, manifest, saved, tar

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_parts, image_stream
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.image_parts import UnexpectedContent

LARGE, OTHER, SMALL = os.urandom(200_001), os.urandom(image_parts.LEAST), b"s" * 100
ID = "sha256:" + "1" * 64


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def now(*layers: bytes) -> bytes:
    """As Docker from 25 on writes it: a layer is named by its digest."""
    return saved(NAME, more=[(f"blobs/sha256/{digest(layer)}", layer) for layer in layers], layer=SMALL)


def before(*layers: tuple[str, bytes]) -> bytes:
    """As Docker before 25 does: a folder for each layer, by another name."""
    members = [
        member
        for name, layer in layers
        for member in ((f"{name}/", b""), (f"{name}/VERSION", b"1.0"), (f"{name}/layer.tar", layer))
    ]
    return tar([*members, ("manifest.json", manifest(NAME))])


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Split an archive that a program in the place of docker prints."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def call(
        archive: bytes,
        known_layers: Collection[str] = (),
        diff_ids: Collection[str] = (),
        compress: Sequence[str] = ("cat",),
        end: str = "",
        seconds: float = 60,
    ) -> dict[str, int]:
        docker = tmp_path / "docker"
        (tmp_path / "archive").write_bytes(archive)
        docker.write_text(
            f"#!{sys.executable}\nimport sys\nsys.stdout.buffer.write(open({str(tmp_path / 'archive')!r}, 'rb').read())\n"
            f"sys.stdout.flush()\n{end}"
        )
        docker.chmod(0o755)
        out = tmp_path / "out"
        out.mkdir()
        splitter = partial(image_parts.Splitter, [NAME], diff_ids, known_layers)
        return image_parts.save(ID, out, compress, splitter, 50_000, seconds)

    return call


def files(tmp_path: Path, name: str = "") -> list[Path]:
    start = f"{name}-" if name else ""
    return [
        path
        for path in sorted((tmp_path / "out").iterdir())
        if path.name.startswith(start) and path.name[len(start) :].isdigit()
    ]


def joined(paths: Sequence[Path]) -> bytes:
    return b"".join(path.read_bytes() for path in paths)


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {
            entry.name: handle.read() for entry in opened if entry.isfile() and (handle := opened.extractfile(entry))
        }


def test_layers_and_the_rest_are_the_archive_again(tmp_path: Path, split: Callable[..., dict[str, int]]) -> None:
    archive = now(LARGE, SMALL, OTHER)
    layers = split(archive)
    assert layers == {digest(LARGE): len(LARGE), digest(OTHER): len(OTHER)}
    parts = {name: files(tmp_path, name) for name in layers}
    assert [len(paths) for paths in parts.values()] == [5, 2]
    assert max(path.stat().st_size for path in (tmp_path / "out").iterdir()) == 50_000
    members_part = files(tmp_path)
    assert members(joined([*parts[digest(LARGE)], *parts[digest(OTHER)], *members_part])) == members(archive)
    # Any of them may be missing, as spread leaves them out.
    without = members(joined([*parts[digest(OTHER)], *members_part]))
    assert set(members(archive)) - set(without) == {f"blobs/sha256/{digest(LARGE)}"}
    # The joined parts pass the guard and reach docker.
    taking = tmp_path / "docker"
    taking.write_text(f"#!/bin/sh\ncat > {tmp_path}/loaded; echo Loaded\n")
    assert "Loaded" in image_stream.load(["cat"], [NAME], [*parts[digest(OTHER)], *members_part])
    assert members((tmp_path / "loaded").read_bytes()) == without


def test_a_layer_is_the_same_in_every_image(tmp_path: Path, split: Callable[..., dict[str, int]]) -> None:
    split(now(LARGE))
    first = joined(files(tmp_path, digest(LARGE)))
    (tmp_path / "out").rename(tmp_path / "first")
    entry = tarfile.TarInfo(f"blobs/sha256/{digest(LARGE)}")  # with another date, and an extended header before it
    entry.size, entry.mtime, entry.pax_headers = len(LARGE), 1_700_000_000, {"mtime": "1.5"}
    archive = entry.tobuf(tarfile.PAX_FORMAT) + LARGE + bytes(-len(LARGE) % 512) + now(OTHER)
    assert list(split(archive)) == [digest(LARGE), digest(OTHER)]
    assert joined(files(tmp_path, digest(LARGE))) == first


def test_what_the_bundle_has_is_not_written(tmp_path: Path, split: Callable[..., dict[str, int]]) -> None:
    layers = split(now(LARGE, OTHER), known_layers=[digest(LARGE)])
    assert list(layers) == [digest(LARGE), digest(OTHER)]
    assert files(tmp_path, digest(LARGE)) == []
    written = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert len(OTHER) < written < len(OTHER) + 20_000


def test_the_layout_of_docker_before_25(tmp_path: Path, split: Callable[..., dict[str, int]]) -> None:
    archive = before(("e" * 64, LARGE), ("f" * 64, SMALL))
    assert split(archive, diff_ids=[f"sha256:{digest(LARGE)}"]) == {"e" * 64: len(LARGE)}
    assert members(joined([*files(tmp_path, "e" * 64), *files(tmp_path)])) == members(archive)


@pytest.mark.parametrize("compress", list(image_parts.COMPRESS.values()), ids=list(image_parts.COMPRESS))
def test_what_is_compressed_can_be_joined(
    tmp_path: Path, split: Callable[..., dict[str, int]], compress: list[str]
) -> None:
    """Both programs write and read streams that lie one behind the other."""
    split(now(LARGE, OTHER), compress=compress)
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\ncat > {tmp_path}/loaded\n")
    parts = [*files(tmp_path, digest(LARGE)), *files(tmp_path, digest(OTHER)), *files(tmp_path)]
    image_stream.load([compress[0], "-dc"], [NAME], parts)
    assert members((tmp_path / "loaded").read_bytes()) == members(now(LARGE, OTHER))


@pytest.mark.parametrize("old", [False, True])
def test_a_layer_that_is_damaged_on_the_host_is_named(split: Callable[..., dict[str, int]], old: bool) -> None:
    damaged = LARGE[:1000] + bytes([LARGE[1000] ^ 1]) + LARGE[1001:]
    archive = (
        before(("e" * 64, damaged))
        if old
        else saved(NAME, more=[(f"blobs/sha256/{digest(LARGE)}", damaged)], layer=SMALL)
    )
    name = "e" * 12 if old else digest(LARGE)[:12]
    with pytest.raises(UnexpectedContent, match=f"its layer {name} is damaged on this host: .* {digest(damaged)[:12]}"):
        split(archive, diff_ids=[f"sha256:{digest(LARGE)}"])


@pytest.mark.parametrize(
    ("archive", "more", "why"),
    [
        (now(LARGE)[:-20_000], {}, "ends too early"),
        (saved(EVIL, layer=SMALL), {}, "the archive names images"),
        (now(LARGE) + now(LARGE), {}, "behind the end"),
        (now(LARGE, LARGE), {}, "twice"),
        (now(LARGE), {"end": "sys.exit('Error: no such image')"}, "^Error: no such image$"),
        (b"", {"end": "sys.exit(3)"}, "^exit code 3$"),
        (now(LARGE), {"compress": ("cat", "/nowhere")}, "No such file"),
        (b"", {"end": "import time; time.sleep(60)", "seconds": 0.5}, "not through within"),
    ],
)
def test_what_does_not_become_parts_is_said(
    split: Callable[..., dict[str, int]], archive: bytes, more: dict[str, object], why: str
) -> None:
    with pytest.raises(UnexpectedContent, match=why):
        split(archive, **more)
