# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of docker save: taken apart into files and pieces, loaded with one name, and hostile ones."""

from __future__ import annotations

import json
import os
import random
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from spread_fixture import EVIL, HASH, NAME, V1, contents, digest, index, link, manifest, oci, old, tar

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_archive
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.image_archive import UnexpectedContent

_NOISE = random.Random(1)  # the same in each worker, which has to collect the same tests
LARGE, OTHER, SMALL = _NOISE.randbytes(200_001), _NOISE.randbytes(image_archive.LEAST), b"s" * 100
ID = "sha256:" + "1" * 64


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a program in the place of docker: it saves an archive, and keeps what it loads."""

    def write(archive: bytes = b"", body: str = "") -> None:
        path = tmp_path / "bin" / "docker"
        path.parent.mkdir(exist_ok=True)
        (tmp_path / "archive").write_bytes(archive)
        path.write_text(
            f"#!{sys.executable}\nimport pathlib, sys, time\nhere = pathlib.Path({str(tmp_path)!r})\n"
            "if sys.argv[1] == 'save':\n    sys.stdout.buffer.write((here / 'archive').read_bytes())\n    sys.stdout.flush()\n"
            f"{body}\n"
            "if sys.argv[1] == 'load':\n    (here / 'loaded').write_bytes(sys.stdin.buffer.read())\n    print('Loaded image')\n"
        )
        path.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return write


Docker = Callable[..., None]


def save(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "saved"
    folder.mkdir()
    return image_archive.save(NAME, folder)


def load(tmp_path: Path, archive: bytes, name: str = NAME) -> dict[str, bytes]:
    """Load an archive; returns the members that docker got."""
    (tmp_path / "sent").write_bytes(archive)
    with (tmp_path / "sent").open("rb") as stream:
        assert "Loaded image" in image_archive.load(image_archive.members(stream), name)
    return contents((tmp_path / "loaded").read_bytes())


def test_a_name_has_its_registry_and_tag() -> None:
    names = {
        "ubuntu": "docker.io/library/ubuntu:latest",
        "a/b:1": "docker.io/a/b:1",
        "host:5000/a@sha256:0": "host:5000/a@sha256:0",
    }
    assert {name: image_archive.full_name(name) for name in names} == names


# --- an image as files


def test_an_image_becomes_files_and_is_loaded_from_them_with_its_name(tmp_path: Path, docker: Docker) -> None:
    docker(oci(LARGE, SMALL))
    image = save(tmp_path)
    assert image["layers"] == [digest(LARGE), digest(SMALL)]
    assert image["diff_ids"] == [f"sha256:{digest(LARGE)}", f"sha256:{digest(SMALL)}"]
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    assert {name: len(content) for name, content in files.items()} == image["files"]
    assert {digest(content) for content in files.values()} == set(files) and len(files) == 4
    image_archive.load(image_archive.saved_members(tmp_path / "saved", image), "x/y:2")
    loaded = contents((tmp_path / "loaded").read_bytes())
    assert {name: content for name, content in loaded.items() if name.startswith("blobs/")} == {
        f"blobs/sha256/{name}": content for name, content in files.items()
    }
    (listed,) = json.loads(loaded["manifest.json"])
    assert (listed["RepoTags"], listed["Layers"]) == (
        ["x/y:2"],
        [f"blobs/sha256/{digest(LARGE)}", f"blobs/sha256/{digest(SMALL)}"],
    )
    (entry,) = json.loads(loaded["index.json"])["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": "docker.io/x/y:2",
        "org.opencontainers.image.ref.name": "2",
    }
    assert entry["digest"][7:] in files and "repositories" not in loaded


def test_present_layers_are_left_out(tmp_path: Path, docker: Docker) -> None:
    docker(oci(LARGE, SMALL))
    image = save(tmp_path)
    left_out = image_archive.present_files(image, [[f"sha256:{digest(LARGE)}"]])
    assert left_out == {digest(LARGE)}
    assert image_archive.present_files({**image, "diff_ids": []}, [[f"sha256:{digest(LARGE)}"]]) == set()
    (tmp_path / "saved" / digest(LARGE)).unlink()
    image_archive.load(image_archive.saved_members(tmp_path / "saved", image, left_out), NAME)
    assert f"blobs/sha256/{digest(LARGE)}" not in contents((tmp_path / "loaded").read_bytes())


def test_the_layout_of_docker_before_25_becomes_the_same_files(tmp_path: Path, docker: Docker) -> None:
    docker(old(LARGE, SMALL))
    image = save(tmp_path)
    assert image["layers"] == [digest(LARGE), digest(LARGE), digest(SMALL)] and image["root"] is None
    assert set(image["files"]) == {digest(LARGE), digest(SMALL), image["config"]}
    image_archive.load(image_archive.saved_members(tmp_path / "saved", image), NAME)
    loaded = contents((tmp_path / "loaded").read_bytes())
    assert set(loaded) == {*(f"blobs/sha256/{name}" for name in image["files"]), "manifest.json"}


A, B, C, D = (f"sha256:{sign * 64}" for sign in "abcd")


@pytest.mark.parametrize(
    ("present_images", "left_out"),
    [
        ([], []),
        ([[A]], [A]),
        ([[B], [A, B]], [A, B]),
        ([[A, C, B]], [A]),  # B lies on something else there
        ([[B, C]], []),
        ([[A, B, C], [A]], [A, B, C]),
        ([[A, B, C, D]], [A, B, C]),
    ],
)
def test_a_layer_is_there_with_all_that_lies_below_it(present_images: list[list[str]], left_out: list[str]) -> None:
    assert image_archive.shared_layers([A, B, C], present_images) == left_out


def test_a_layer_that_comes_again_higher_up_is_sent() -> None:
    assert image_archive.shared_layers([A, B, A, C], [[A, B]]) == [B]
    assert image_archive.shared_layers([A, B, A, C], [[A, B, A]]) == [A, B]


DAMAGED = oci(LARGE).replace(LARGE[:1000], bytes([LARGE[0] ^ 1]) + LARGE[1:1000])


@pytest.mark.parametrize(
    ("archive", "body", "why"),
    [
        (oci(LARGE)[:50_000], "", "ends too early"),
        (DAMAGED, "", f"its layer {digest(LARGE)[:12]} is damaged on this host"),
        (tar([("manifest.json", manifest(NAME))]), "", "lacks blobs/sha256/a"),
        (oci(LARGE), "sys.exit('Error: no such image')", r"^Error: no such image \(docker ended with 1\)$"),
        (b"", "sys.exit(3)", r"it printed nothing \(docker ended with 3\)"),
        (b"", "", "not an archive of docker save"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_saved_is_reported(
    tmp_path: Path, docker: Docker, archive: bytes, body: str, why: str
) -> None:
    docker(archive, body)
    with pytest.raises(UnexpectedContent, match=why):
        save(tmp_path)


# --- hostile archives


def extended(name: str, **headers: str) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.pax_headers = dict(headers)
    return entry.tobuf(tarfile.PAX_FORMAT)


def changed(archive: bytes, member: str, before: bytes, after: bytes) -> bytes:
    """Return an archive with another text in one member."""
    assert before in contents(archive)[member]
    return tar(
        [
            (name, content.replace(before, after) if name == member else content)
            for name, content in contents(archive).items()
        ]
    )


def listing(**keys: Any) -> bytes:
    entry = {"Config": f"blobs/sha256/{HASH}", "Layers": [], **keys}
    return json.dumps([entry], ensure_ascii=False).encode()


NAMED = {
    "another name": oci(SMALL, name=EVIL),
    "another name in the old layout": changed(oci(SMALL), "repositories", b"an/image", EVIL.encode()),
    "a nested index": changed(oci(SMALL), "index.json", b'"schemaVersion": 2', b'"x": [{"annotations": {"io.containerd.image.name": "%s"}}]' % EVIL.encode()),
    "a key in another case": tar([("manifest.json", listing(repotags=[EVIL]))]),
    "a key that folds": tar([("manifest.json", listing(**{"RepoTag\u017f": [EVIL]}))]),
    "something behind the end": oci(SMALL) + oci(SMALL, name=EVIL),
}  # fmt: skip
REFUSED = {
    "a second image": tar([("manifest.json", json.dumps(json.loads(manifest(NAME)) + json.loads(manifest(EVIL))).encode())]),
    "two roots": changed(oci(SMALL), "index.json", b'"manifests": [', b'"manifests": [{"mediaType": "x", "digest": "sha256:%s", "size": 1}, ' % HASH.encode()),
    "a second manifest": oci(SMALL, more=[("manifest.json", manifest(EVIL))]),
    "a second index": oci(SMALL, more=[("index.json", index(EVIL))]),
    "a manifest that is no list": tar([("manifest.json", b'{"RepoTags": []}')]),
    "a manifest that is no JSON": tar([("manifest.json", b"[" * 100_000)]),
    "a layer elsewhere": tar([("manifest.json", listing(Layers=["../../etc/passwd"]))]),
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
    "a sparse file": extended(f"blobs/sha256/{HASH}", **{"GNU.sparse.name": "manifest.json", "GNU.sparse.major": "1"}),
    "a negative size": tarfile.TarInfo("manifest.json").tobuf()[:124] + b"\xff" * 12 + tarfile.TarInfo("manifest.json").tobuf()[136:],
    "no archive": b"image" * 1000,
    "a compressed archive": b"\x1f\x8b" + bytes(2000),
    "nothing": b"",
    "the beginning": oci(LARGE)[:4000],
}  # fmt: skip


@pytest.mark.parametrize("archive", NAMED.values(), ids=NAMED)
def test_docker_gets_no_name_of_an_archive(tmp_path: Path, docker: Docker, archive: bytes) -> None:
    docker()
    loaded = load(tmp_path, archive)
    assert EVIL.encode() not in (tmp_path / "loaded").read_bytes()
    assert [entry["RepoTags"] for entry in json.loads(loaded["manifest.json"])] == [[NAME]]


@pytest.mark.parametrize("archive", REFUSED.values(), ids=REFUSED)
def test_archives_that_docker_does_not_write_are_refused(tmp_path: Path, docker: Docker, archive: bytes) -> None:
    docker()
    with pytest.raises(UnexpectedContent):
        load(tmp_path, archive)
    loaded = (tmp_path / "loaded").read_bytes() if (tmp_path / "loaded").exists() else b""
    assert EVIL.encode() not in loaded and b"manifest.json" not in loaded


def test_a_large_layer_has_a_header_that_can_say_its_size() -> None:
    """Of 8 GiB and more; a plain header has eleven octal digits."""
    written: list[bytes] = []
    with pytest.raises(UnexpectedContent, match="ends too early"):
        image_archive.copy_member(image_archive.Member(f"blobs/sha256/{HASH}", 9 * 2**30, None), written.append)
    assert tarfile.TarInfo.frombuf(written[0], "utf-8", "strict").size == 9 * 2**30


# --- programs


def test_the_last_words_of_the_programs_are_reported(tmp_path: Path, docker: Docker) -> None:
    (tmp_path / "sent").write_bytes(oci(os.urandom(3_000_000)))

    def run(*commands: list[str]) -> None:
        with image_archive.output_of(*commands) as stream:
            image_archive.load(image_archive.members(stream), NAME)

    docker(body="print('no space left on device', file=sys.stderr)\nsys.exit(1)\n")
    with pytest.raises(UnexpectedContent, match=r"^no space left on device \(docker load ended with 1\)$"):
        run(["cat", str(tmp_path / "sent")])
    docker()
    with pytest.raises(UnexpectedContent, match=r"No such file .*\(cat ended with 1\)"):
        run(["cat", "/nowhere"], ["cat"])
    with pytest.raises(UnexpectedContent, match=r"\(zstd ended with 1\)"):
        run(["head", "-c", "3000", str(tmp_path / "sent")], image_archive.UNPACK["zstd"])


def test_programs_that_do_not_end_are_killed(tmp_path: Path, docker: Docker) -> None:
    (tmp_path / "sent").write_bytes(oci(os.urandom(3_000_000)))
    docker(body="time.sleep(60)\n")
    with (
        pytest.raises(UnexpectedContent, match="docker load was not through within"),
        (tmp_path / "sent").open("rb") as stream,
    ):
        image_archive.load(image_archive.members(stream), NAME, seconds=0.5)
    with (
        pytest.raises(UnexpectedContent, match="sleep was not through within"),
        image_archive.output_of(["sleep", "60"], seconds=0.5) as stream,
    ):
        stream.read()


# --- an image as compressed pieces


@pytest.fixture
def pack(tmp_path: Path, docker: Docker) -> Callable[..., list[dict[str, Any]]]:
    def call(
        archive: bytes,
        known_layers: Sequence[str] = (),
        diff_ids: Sequence[str] = (),
        compress: Sequence[str] = ("cat",),
        body: str = "",
        seconds: float = 60,
    ) -> list[dict[str, Any]]:
        docker(archive, body)
        (tmp_path / "out").mkdir()
        return image_archive.pack(ID, tmp_path / "out", compress, known_layers, diff_ids, 50_000, seconds)

    return call


Pack = Callable[..., list[dict[str, Any]]]


def files(tmp_path: Path, name: str = "") -> list[Path]:
    start = f"{name}-" if name else ""
    paths = sorted((tmp_path / "out").iterdir())
    return [path for path in paths if path.name.startswith(start) and path.name[len(start) :].isdigit()]


def joined(paths: Sequence[Path]) -> bytes:
    return b"".join(path.read_bytes() for path in paths)


def test_layers_and_the_rest_are_the_archive_again(tmp_path: Path, pack: Pack) -> None:
    archive = oci(LARGE, SMALL, OTHER)
    layers = pack(archive)
    assert {layer["name"]: layer["size"] for layer in layers} == {
        digest(content): len(content) for content in (LARGE, OTHER)
    }
    parts = {layer["name"]: files(tmp_path, layer["name"]) for layer in layers}
    assert [len(parts[digest(content)]) for content in (LARGE, OTHER)] == [5, 2]
    assert max(path.stat().st_size for path in (tmp_path / "out").iterdir()) == 50_000
    other_members = files(tmp_path)
    assert contents(joined([*parts[digest(LARGE)], *parts[digest(OTHER)], *other_members])) == contents(archive)
    # Any of the layers may be missing.
    loaded = load(tmp_path, joined([*parts[digest(OTHER)], *other_members]))
    assert set(contents(archive)) - set(loaded) == {f"blobs/sha256/{digest(LARGE)}", "repositories"}


def test_a_layer_is_the_same_in_every_image(tmp_path: Path, pack: Pack) -> None:
    pack(oci(LARGE))
    first = joined(files(tmp_path, digest(LARGE)))
    (tmp_path / "out").rename(tmp_path / "first")
    entry = tarfile.TarInfo(f"blobs/sha256/{digest(LARGE)}")  # with another date, and an extended header before it
    entry.size, entry.mtime, entry.pax_headers = len(LARGE), 1_700_000_000, {"mtime": "1.5"}
    pack(entry.tobuf(tarfile.PAX_FORMAT) + LARGE + bytes(-len(LARGE) % 512) + oci(OTHER))
    assert joined(files(tmp_path, digest(LARGE))) == first


def test_what_the_bundle_has_is_not_written(tmp_path: Path, pack: Pack) -> None:
    layers = pack(oci(LARGE, OTHER), known_layers=[digest(LARGE)])
    assert {layer["name"] for layer in layers} == {digest(LARGE), digest(OTHER)}
    assert files(tmp_path, digest(LARGE)) == []
    written = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert len(OTHER) < written < len(OTHER) + 20_000


def test_layers_of_docker_before_25_have_their_digest_beside_the_name(tmp_path: Path, pack: Pack) -> None:
    archive = old(LARGE, SMALL)
    layers = pack(archive, diff_ids=[f"sha256:{digest(LARGE)}"])
    assert layers == [{"name": V1, "size": len(LARGE), "diff_id": digest(LARGE)}]
    assert contents(joined([*files(tmp_path, V1), *files(tmp_path)])) == contents(archive)


@pytest.mark.parametrize("program", image_archive.COMPRESS)
def test_what_is_compressed_can_be_joined(tmp_path: Path, pack: Pack, program: str) -> None:
    """Both programs write and read streams that lie one behind the other."""
    layers = pack(oci(LARGE, OTHER), compress=image_archive.COMPRESS[program])
    parts = [path for layer in layers for path in files(tmp_path, layer["name"])] + files(tmp_path)
    with image_archive.output_of(["cat", *map(str, parts)], image_archive.UNPACK[program]) as stream:
        image_archive.load(image_archive.members(stream), "")
    loaded = contents((tmp_path / "loaded").read_bytes())
    assert (
        loaded[f"blobs/sha256/{digest(LARGE)}"] == LARGE and json.loads(loaded["manifest.json"])[0]["RepoTags"] is None
    )


@pytest.mark.parametrize(
    ("archive", "more", "why"),
    [
        (oci(LARGE)[:50_000], {}, "ends too early"),
        (DAMAGED, {}, f"its layer {digest(LARGE)[:12]} is damaged on this host"),
        (old(LARGE, SMALL), {"diff_ids": [f"sha256:{digest(OTHER)}"]}, f"its layer {V1[:12]} is damaged on this host"),
        (oci(LARGE, more=[(f"blobs/sha256/{digest(LARGE)}", LARGE)]), {}, "twice"),
        (oci(LARGE), {"body": "sys.exit('Error: no such image')"}, r"^Error: no such image \(docker ended with 1\)$"),
        (oci(LARGE), {"compress": ("cat", "/nowhere")}, "compressing ended with 1, .* No such file"),
        (b"", {"body": "time.sleep(60)", "seconds": 0.5}, "not through within"),
    ],
)
def test_an_image_that_cannot_be_packed_is_reported(pack: Pack, archive: bytes, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UnexpectedContent, match=why):
        pack(archive, **more)
