# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of docker save that pass: those that Docker writes go through byte by byte, those that plant names do not."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from spread_fixture import EVIL, HASH, LAYER, NAME, index, manifest, saved, tar

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_stream
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.image_stream import ArchiveGuard, UnexpectedContent


def passed(archive: bytes, names: Sequence[str] = (NAME,), step: int = 700) -> bytes:
    guard = ArchiveGuard(names)
    out = b"".join(guard.feed(archive[start : start + step]) for start in range(0, len(archive), step))
    guard.end()
    return out


@pytest.mark.parametrize("step", [1, 511, 512, 700, 100_000])
def test_what_was_asked_for_goes_through_unchanged(step: int) -> None:
    archive = saved(NAME)
    assert passed(archive, step=step) == archive


@pytest.mark.parametrize(
    ("names", "archive"),
    [
        (["sha256:" + HASH], saved()),
        ([NAME], saved()),
        (["ubuntu:24.04"], saved("ubuntu:24.04")),
        (["docker.io/library/ubuntu"], saved("ubuntu:latest")),
        (["registry:5000/a/b:1", NAME], saved(NAME, "registry:5000/a/b:1")),
        # The layout of Docker before 25, with a layer that two images have in common.
        ([NAME], tar([(f"{HASH}/", b""), (f"{HASH}/VERSION", b"1.0"), (f"{HASH}/json", b"{}"), (f"{HASH}/layer.tar", LAYER),
                      (f"{HASH}.json", b"{}"), ("manifest.json", manifest(NAME)), ("repositories", b'{"an/image": {"1": "x"}}')])),
    ],
)  # fmt: skip
def test_layouts_that_docker_writes(names: list[str], archive: bytes) -> None:
    assert passed(archive, names) == archive


def test_a_layer_larger_than_a_plain_header_can_say() -> None:
    """Of 8 GiB and more: its size stands in an extended header."""
    entry = tarfile.TarInfo(f"blobs/sha256/{HASH}")
    entry.size = 9 * 2**30
    head = entry.tobuf(tarfile.PAX_FORMAT)
    guard = ArchiveGuard([NAME])
    assert guard.feed(head) == head
    assert guard.remaining == 9 * 2**30
    gnu = ArchiveGuard([NAME])
    assert gnu.feed(entry.tobuf(tarfile.GNU_FORMAT)) and gnu.remaining == 9 * 2**30


@pytest.mark.parametrize("step", [1, 513, 700, 10**6])
def test_members_that_are_left_out_are_gone_and_the_others_go_through_unchanged(step: int) -> None:
    gone = f"{'b' * 64}/layer.tar"
    large = tarfile.TarInfo(gone)
    large.size, large.pax_headers = 3000, {"mtime": "1.5"}  # an extended header before it
    kept_member = tarfile.TarInfo("c" * 64 + "/layer.tar")
    kept_member.size, kept_member.pax_headers = 700, {"mtime": "2.5"}
    remaining_archive = kept_member.tobuf(tarfile.PAX_FORMAT) + b"k" * 700 + bytes(324) + saved(NAME)
    archive = large.tobuf(tarfile.PAX_FORMAT) + b"x" * 3000 + bytes(72) + remaining_archive
    guard = ArchiveGuard([NAME], {gone})
    assert b"".join(guard.feed(archive[at : at + step]) for at in range(0, len(archive), step)) == remaining_archive
    guard.end()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry.tobuf(tarfile.PAX_FORMAT)


def extended(name: str, **headers: str) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.pax_headers = dict(headers)
    return entry.tobuf(tarfile.PAX_FORMAT)


LIARS = {
    "another name": saved(EVIL),
    "one name more": saved(NAME, EVIL),
    "a second manifest": saved(NAME, more=[("manifest.json", manifest(EVIL))]),
    "a second index": saved(NAME, more=[("index.json", index(EVIL))]),
    "a nested index": saved(NAME, more=[("index.json", json.dumps({"manifests": [{"x": [{"annotations": {"io.containerd.image.name": EVIL}}]}]}).encode())]),
    "repositories": saved(NAME, more=[("repositories", b'{"vllm/vllm-openai": {"v0.24.0-ubuntu2404": "x"}}')]),
    "a key in another case": saved(more=[("manifest.json", json.dumps([{"repotags": [EVIL]}]).encode())]),
    "a key twice": saved(more=[("manifest.json", b'[{"RepoTags": ["%s"], "RepoTags": ["an/image:1"]}]' % EVIL.encode())]),
    "a key that folds": saved(more=[("manifest.json", json.dumps([{"RepoTag\u017f": [EVIL]}], ensure_ascii=False).encode())]),
    "annotations in another case": saved(NAME, more=[("index.json", b'{"manifests": [{"Annotations": {"io.containerd.image.name": "x/y:1"}}]}')]),
    "a name that is no text": saved(more=[("manifest.json", b'[{"RepoTags": [["x"]]}]')]),
    "a manifest that is no list": saved(more=[("manifest.json", b'{"RepoTags": []}')]),
    "a manifest that is no JSON": saved(more=[("manifest.json", b"[" * 100_000)]),
    "an absolute name": tar([("/manifest.json", manifest(EVIL))]),
    "a name with a dot": tar([("./manifest.json", manifest(EVIL))]),
    "a name that goes up": tar([("blobs/../manifest.json", manifest(EVIL))]),
    "a link": link("manifest.json", f"blobs/sha256/{HASH}"),
    "a hard link": link("manifest.json", f"blobs/sha256/{HASH}", tarfile.LNKTYPE),
    "a link for a folder": link("blobs", "."),
    "a link out of the archive": link(f"{HASH}/layer.tar", "/etc/passwd"),
    "a device": link(f"blobs/sha256/{HASH}", "", tarfile.CHRTYPE),
    "a renamed member": extended(f"blobs/sha256/{HASH}", path="manifest.json") + manifest(EVIL).ljust(512, b"\0"),
    "a name of GNU's": tarfile.TarInfo("blobs/" + "x" * 200).tobuf(tarfile.GNU_FORMAT),
    "a sparse file": extended(f"blobs/sha256/{HASH}", **{"GNU.sparse.name": "manifest.json"}),
    "a global header": tarfile.TarInfo.create_pax_global_header({"path": "manifest.json"}),
    "a negative size": tarfile.TarInfo("manifest.json").tobuf()[:124] + b"\xff" * 12 + tarfile.TarInfo("manifest.json").tobuf()[136:],
    "something behind the end": saved(NAME) + saved(EVIL),
    "no archive": b"image" * 1000,
    "a compressed archive": b"\x1f\x8b" + bytes(2000),
    "nothing": b"",
    "the beginning": saved(NAME)[:4000],
    "no end": saved(NAME).rstrip(b"\0"),
}  # fmt: skip


@pytest.mark.parametrize("liar", LIARS)
def test_what_plants_a_name_does_not_come_through(liar: str) -> None:
    guard = ArchiveGuard([NAME])
    out = b""
    with pytest.raises(UnexpectedContent):
        for start in range(0, len(LIARS[liar]), 512):
            out += guard.feed(LIARS[liar][start : start + 512])
        guard.end()
    # Docker received no member with a name.
    assert EVIL.encode() not in out


def test_the_message_names_what_came() -> None:
    with pytest.raises(
        UnexpectedContent,
        match=r"the archive names images 'docker.io/vllm/vllm-openai:v0.24.0-ubuntu2404', .* not docker.io/an/image:1 alone",
    ):
        passed(saved(EVIL))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program in the place of docker."""

    def write(body: str) -> None:
        path = tmp_path / "bin" / "docker"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport pathlib, sys\nhere = pathlib.Path({str(tmp_path)!r})\n{body}")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return write


TAKES = "data = sys.stdin.buffer.read()\n(here / 'loaded').write_bytes(data)\nprint('Loaded image: an/image:1')\n"


def pieces(folder: Path, archive: bytes) -> list[Path]:
    files = []
    for number, start in enumerate(range(0, len(archive), 5000)):
        files.append(folder / f"{number:04}")
        files[-1].write_bytes(archive[start : start + 5000])
    return files


Docker = Callable[[str], None]


def test_pieces_are_joined_and_loaded(tmp_path: Path, docker: Docker) -> None:
    docker(TAKES)
    counts: list[int] = []
    output = image_stream.load(["cat"], [NAME], pieces(tmp_path, saved(NAME)), counts.append)
    assert "Loaded image" in output and sum(counts) == len(saved(NAME))
    assert (tmp_path / "loaded").read_bytes() == saved(NAME)


def test_pieces_that_plant_a_name_are_not_loaded(tmp_path: Path, docker: Docker) -> None:
    docker(TAKES)
    archive = saved(EVIL, layer=b"x" * 3_000_000)
    with pytest.raises(UnexpectedContent, match="nothing was loaded"):
        image_stream.load(["cat"], [NAME], pieces(tmp_path, archive))
    assert not (tmp_path / "loaded").exists()


def test_the_last_words_of_the_programs_are_reported(tmp_path: Path, docker: Docker) -> None:
    files = pieces(tmp_path, saved(NAME, layer=b"x" * 3_000_000))
    docker("print('no space left on device', file=sys.stderr)\nsys.exit(1)\n")
    with pytest.raises(image_stream.ProgramFailed, match=r"no space left on device \(docker load ended with 1\)"):
        image_stream.load(["cat"], [NAME], files)
    docker(TAKES)
    with pytest.raises(image_stream.ProgramFailed, match=r"No such file .*\(cat ended with 1\)"):
        image_stream.load(["cat", "/nowhere"], [NAME], files)


def test_a_docker_that_does_not_end_is_killed(tmp_path: Path, docker: Docker) -> None:
    docker("import time\ntime.sleep(60)\n")
    with pytest.raises(image_stream.ProgramFailed, match="docker load was not through within"):
        image_stream.load(["cat"], [NAME], pieces(tmp_path, saved(NAME, layer=b"x" * 3_000_000)), seconds=0.5)
