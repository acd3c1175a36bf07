# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images as archives of docker save: taken apart into files named by their SHA-256, or into compressed pieces, and loaded again.

docker load gives images every name that an archive has. So names never come from an archive: C(load) writes the files that hold them.
Docker from 25 on writes an OCI layout (C(blobs/sha256/DIGEST)); before, each layer had a folder by another name. Standard library alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import re
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from .._common.foreign_text import decode_text, parse_json
from .._common.reader import DIGEST, LINE, SHA256, SIZE, Maybe, read
from .._host import beneath, docker_commands

CHUNK = 2**20
LEAST = 64 * 1024
"""Least bytes of a layer with pieces of its own in a bundle. Smaller ones stay with the other members, since each piece is a file."""
MOST_OF_A_LIST = 16 * 2**20
"""Bytes of a member that holds names."""
SECONDS = 6 * 3600.0
"""Time limit of docker save and docker load."""
LISTS = ("manifest.json", "index.json", "repositories", "oci-layout")
HASH = "[0-9a-f]{64}"
BLOB = "blobs/sha256/"
CONTENT = re.compile(rf"{BLOB}({HASH})|({HASH})\.json|({HASH})/layer\.tar")
"""Members that images consist of."""
MEMBER = re.compile(rf"{'|'.join(map(re.escape, LISTS))}|{CONTENT.pattern}|{HASH}/(?:VERSION|json)")
LAYER_LINK = re.compile(rf"\.\./({HASH}/layer\.tar)")
"""Docker before 25 saves a layer that two images share once."""
COMPRESS = {"zstd": ["zstd", "-q", "-3", "-T0", "-c"], "gzip": ["gzip", "-1", "-c"]}
UNPACK = {"zstd": ["zstd", "-dcq"], "gzip": ["gzip", "-dc"]}
_ROOT = {"mediaType": LINE, "digest": DIGEST, "size": SIZE}
SAVED = {"config": SHA256, "layers": [SHA256], "diff_ids": [DIGEST], "files": {SHA256: SIZE}, "root": Maybe(_ROOT)}
"""Form of a saved image. files: bytes by SHA-256; layers: the lowest first, with their unpacked digests in diff_ids; root: entry of its index."""
IMAGE = "image.json"
"""File with the description of a saved image, written when all files are there."""


class UnexpectedContent(Exception):
    """An archive has unexpected content, or a program for it failed; the message has the reason."""


class Program(subprocess.Popen[bytes]):
    """A program at one end of a stream; Ansible's run_command would keep the whole stream in memory."""


class Member(NamedTuple):
    """A member of an archive. content: open, to be read before the next member. link: its target, empty for a file."""

    name: str
    size: int
    content: IO[bytes] | None
    link: str = ""


def full_name(ref: str) -> str:
    """Return a name of an image as Docker keeps it: with its registry, and with a tag unless it has a digest."""
    name, at, digest = ref.partition("@")
    first, slash, _path = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    if at:
        return f"{name}@{digest}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def shared_layers(layers: Sequence[str], present_images: Iterable[Sequence[str]]) -> list[str]:
    """Return the layers of an image that need not be sent to a host.

    Docker identifies a layer together with all layers below it. A layer that is repeated higher up has to be sent: the archive
    holds it once.

    :param layers: digests of the unpacked layers of the image, the lowest first
    :param present_images: the same of each image on the host
    """
    counts = (
        sum(1 for _pair in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(layers, other)))
        for other in present_images
    )
    count = max(counts, default=0)
    return [layer for layer in dict.fromkeys(layers[:count]) if layer not in layers[count:]]


# --- reading ----------------------------------------------------------------------------------------------------------


def members(stream: IO[bytes]) -> Iterator[Member]:
    """Yield the files and links of an archive without following any; raises C(UnexpectedContent) for others than docker save writes."""
    seen: set[str] = set()
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
            for entry in archive:
                if entry.isdir():
                    continue
                is_link = entry.issym() and entry.name.endswith("/layer.tar") and LAYER_LINK.fullmatch(entry.linkname)
                if not MEMBER.fullmatch(entry.name) or entry.issparse() or not (entry.isreg() or is_link):
                    raise UnexpectedContent(
                        f"the archive has a member {entry.name[:200]!r} that docker save does not write"
                    )
                if entry.name in seen or (entry.name in LISTS and entry.size > MOST_OF_A_LIST):
                    raise UnexpectedContent(f"the archive has {entry.name} twice, or with {entry.size} bytes")
                seen.add(entry.name)
                if is_link:
                    yield Member(entry.name, 0, None, entry.linkname)
                else:
                    yield Member(entry.name, entry.size, archive.extractfile(entry))
    except (tarfile.TarError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UnexpectedContent(f"the received data is not an archive of docker save: {error}") from error


def copy(member: Member, write: Callable[[bytes], Any]) -> str:
    """Pass the content of a member on; returns its SHA-256. Raises C(UnexpectedContent) if the archive ends before."""
    digest, remaining = hashlib.sha256(), member.size
    with contextlib.suppress(tarfile.ReadError):  # the end of the archive
        while member.content and (piece := member.content.read(CHUNK)):
            digest.update(piece)
            write(piece)
            remaining -= len(piece)
    if remaining:
        raise UnexpectedContent("the archive of docker save ends too early")
    return digest.hexdigest()


def copy_member(member: Member, write: Callable[[bytes], Any]) -> str:
    """Pass a member on as a piece of an archive, with a header that is the same in every image; returns the SHA-256 of its content."""
    header = tarfile.TarInfo(member.name)
    header.size, header.linkname = member.size, member.link
    header.type = tarfile.SYMTYPE if member.link else tarfile.REGTYPE
    write(header.tobuf(tarfile.GNU_FORMAT))
    digest = copy(member, write)
    write(bytes(-member.size % tarfile.BLOCKSIZE))
    return digest


def _content(member: Member) -> bytes:
    buffer = io.BytesIO()
    copy(member, buffer.write)
    return buffer.getvalue()


def read_lists(lists: Mapping[str, bytes]) -> tuple[str, list[str], dict[str, Any] | None]:
    """Return the image that an archive describes, without its names.

    :param lists: contents of the members C(LISTS)
    :returns: the member of its settings, the members of its layers, and its entry in index.json, None for other layouts
    :raises UnexpectedContent: for several images, or none
    """
    name = "manifest.json"
    try:
        (entry,) = read([{"Config": LINE, "Layers": Maybe([LINE])}], parse_json(lists[name].decode(), name), name)
        root = None
        if "index.json" in lists:
            name = "index.json"
            roots = read({"manifests": [_ROOT]}, parse_json(lists[name].decode(), name), name)["manifests"]
            (root,) = {item["digest"]: item for item in roots}.values()
    except KeyError:
        raise UnexpectedContent("the archive of docker save has no manifest.json, or ends too early") from None
    except ValueError as error:
        raise UnexpectedContent(f"{name} in the archive does not describe one image: {error}") from error
    wrong = [member for member in (entry["Config"], *(entry["Layers"] or [])) if not CONTENT.fullmatch(member)]
    if wrong:
        raise UnexpectedContent(f"manifest.json in the archive names a member {wrong[0][:200]!r}")
    return entry["Config"], entry["Layers"] or [], root


def write_lists(config: str, layers: Sequence[str], root: Mapping[str, Any] | None, name: str) -> dict[str, bytes]:
    """Return the members that describe an image, and give it a name. name: of the image, empty for none."""
    manifest: Any = [{"Config": config, "RepoTags": [name] if name else None, "Layers": list(layers)}]
    lists = {"manifest.json": json.dumps(manifest).encode()}
    if root:
        # containerd reads these annotations (core/images/archive), Docker's other image store reads RepoTags.
        tag = full_name(name).rpartition(":")[2]
        names = {"io.containerd.image.name": full_name(name), "org.opencontainers.image.ref.name": tag} if name else {}
        index = {"schemaVersion": 2, "manifests": [{**root, "annotations": names}]}
        lists.update({"index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'})
    return lists


# --- programs ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def deadline(seconds: float, programs: Iterable[Program]) -> Iterator[threading.Event]:
    """Kill programs when the block takes longer than a number of seconds; the event is set then."""
    is_late = threading.Event()

    def expire() -> None:
        is_late.set()
        for program in programs:
            program.kill()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def last_words(output: str, program: str, code: int) -> str:
    """Return the last lines of a failed program; the cause comes before its consequences."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (" / ".join(lines[-3:]) or "it printed nothing") + f" ({program} ended with {code})"


@contextlib.contextmanager
def output_of(*commands: Sequence[str], seconds: float = SECONDS) -> Iterator[IO[bytes]]:
    """Yield the output of a pipeline of programs.

    :raises UnexpectedContent: if a program fails, with its last words, also if the block fails because of that
    """
    reason: UnexpectedContent | None = None
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:
        stream: Any = None
        programs: list[Program] = []
        for command in commands:
            source = stream or subprocess.DEVNULL
            programs.append(stack.enter_context(Program(command, stdin=source, stdout=subprocess.PIPE, stderr=errors)))
            if stream:
                stream.close()  # so that a program ends when the one behind it has ended
            stream = programs[-1].stdout
        with deadline(seconds, programs) as is_late:
            try:
                yield stream
                while stream.read(CHUNK):  # what fills the last block of an archive
                    pass
            except UnexpectedContent as error:
                reason = error
                with contextlib.suppress(subprocess.TimeoutExpired):
                    programs[-1].wait(1)  # it may have failed
                for program in programs:
                    program.kill()
            codes = [program.wait() for program in programs]
        if is_late.is_set():
            raise UnexpectedContent(f"{commands[0][0]} was not through within {seconds:.0f} s")
        failed = [(command[0], code) for command, code in zip(commands, codes) if code > 0 or (code and not reason)]
        if failed:
            errors.seek(0)
            raise UnexpectedContent(last_words(decode_text(errors.read()), *failed[0])) from reason
        if reason:
            raise reason


def load(archive: Iterable[Member], name: str, seconds: float = SECONDS) -> str:
    """Load an archive with docker load; the image gets one name.

    :param name: of the image, empty for none
    :raises UnexpectedContent: with the reason; nothing was loaded then
    """
    lists: dict[str, bytes] = {}
    with (
        Program(
            docker_commands.load(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as loading,
        deadline(seconds, [loading]) as is_late,
    ):
        if not loading.stdin or not loading.stdout:
            raise UnexpectedContent("docker load has no pipes")
        try:
            with contextlib.suppress(BrokenPipeError):  # docker refused the archive and says why
                for member in archive:
                    if member.name in LISTS:
                        lists[member.name] = _content(member)
                    else:
                        copy_member(member, loading.stdin.write)
                for list_name, content in write_lists(*read_lists(lists), name).items():
                    copy_member(Member(list_name, len(content), io.BytesIO(content)), loading.stdin.write)
                loading.stdin.write(bytes(2 * tarfile.BLOCKSIZE))
        except (UnexpectedContent, OSError):
            loading.kill()  # before it has seen a list
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                loading.stdin.close()
        output = decode_text(loading.stdout.read())
        code = loading.wait()
    if is_late.is_set():
        raise UnexpectedContent(f"docker load was not through within {seconds:.0f} s")
    if code:
        raise UnexpectedContent(last_words(output, "docker load", code))
    return output


# --- an image as files ------------------------------------------------------------------------------------------------


def save(name: str, folder: Path) -> dict[str, Any]:
    """Write an image into a folder, as files named by their SHA-256, and describe it in C(IMAGE).

    :returns: its description, of the form C(SAVED)
    :raises UnexpectedContent: with the reason
    """
    lists: dict[str, bytes] = {}
    digests: dict[str, str] = {}  # by member
    links: dict[str, str] = {}
    files: dict[str, int] = {}
    with output_of(docker_commands.save(name)) as stream:
        for member in members(stream):
            match = CONTENT.fullmatch(member.name)
            if member.link:
                links[member.name] = member.link[len("../") :]
            elif member.name in LISTS:
                lists[member.name] = _content(member)
            elif match:
                with (folder / "draft").open("wb") as target:
                    digest = copy(member, target.write)
                    beneath.drop_pages(target.fileno())
                if digest != (match[1] or digest):
                    raise damaged(match[1], digest)
                (folder / "draft").rename(folder / digest)
                digests[member.name], files[digest] = digest, member.size
    config, layers, root = read_lists(lists)
    lost = [member for member in (config, *layers) if links.get(member, member) not in digests]
    if lost:
        raise UnexpectedContent(f"the archive of docker save lacks {lost[0]}")
    stored = [digests[links.get(layer, layer)] for layer in layers]
    settings = parse_json((folder / digests[config]).read_text(encoding="utf-8"), "the settings of the image")
    diff_ids = (settings.get("rootfs") or {}).get("diff_ids") or []
    image = {"config": digests[config], "layers": stored, "diff_ids": diff_ids, "files": files, "root": root}
    return dict(read(SAVED, image, name))


def saved_members(folder: Path, image: Mapping[str, Any], left_out: Collection[str] = ()) -> Iterator[Member]:
    """Yield a saved image as members of an archive: its files, then the members that describe it, without a name."""
    for digest, size in image["files"].items():
        if digest not in left_out:
            with (folder / digest).open("rb") as content:
                yield Member(BLOB + digest, size, content)
                beneath.drop_pages(content.fileno())
    paths = [BLOB + layer for layer in image["layers"]]
    for name, text in write_lists(BLOB + image["config"], paths, image["root"], "").items():
        yield Member(name, len(text), io.BytesIO(text))


def present_files(image: Mapping[str, Any], present_images: Iterable[Sequence[str]]) -> set[str]:
    """Return the files of a saved image that docker load does not need on a host.

    :param present_images: layers of each image on the host, by their unpacked digests
    """
    if len(image["diff_ids"]) != len(image["layers"]):
        return set()
    shared = set(shared_layers(image["diff_ids"], present_images))
    return {layer for diff_id, layer in zip(image["diff_ids"], image["layers"]) if diff_id in shared}


def damaged(name: str, digest: str) -> UnexpectedContent:
    """Return the error of a layer with another content than its name says."""
    return UnexpectedContent(f"its layer {name[:12]} is damaged on this host: the content has the sha256 {digest[:12]}")


# --- an image as compressed pieces ------------------------------------------------------------------------------------


class Pieces:
    """Compresses its input into files of at most C(piece_bytes); their names are C(start) and four digits."""

    def __init__(self, start: str, compress: Sequence[str], piece_bytes: int, errors: IO[bytes]) -> None:
        self.compressing = Program(compress, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        split = ["split", f"--bytes={piece_bytes}", "--numeric-suffixes", "--suffix-length=4", "-", start]
        self.splitting = Program(split, stdin=self.compressing.stdout, stderr=errors)
        if self.compressing.stdout:
            self.compressing.stdout.close()

    def write(self, data: bytes) -> None:
        """Compress more data. Where a program has ended, C(close) reports it."""
        if self.compressing.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.compressing.stdin.write(data)

    def close(self) -> None:
        """Wait until all is written; raises C(UnexpectedContent) if a program failed."""
        if self.compressing.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.compressing.stdin.close()
        codes = self.compressing.wait(), self.splitting.wait()
        if any(codes):
            raise UnexpectedContent(f"compressing ended with {codes[0]}, cutting into pieces with {codes[1]}")

    def kill(self) -> None:
        """End the programs, if they have not ended."""
        self.compressing.kill()
        self.splitting.kill()
        with contextlib.suppress(UnexpectedContent):
            self.close()


def pack(
    image_id: str,
    folder: Path,
    compress: Sequence[str],
    known_layers: Collection[str],
    diff_ids: Collection[str],
    piece_bytes: int,
    seconds: float = SECONDS,
) -> list[dict[str, Any]]:
    """Write an image into a folder: each layer as C(NAME-0000), C(NAME-0001), ..., and the other members as C(0000), ...

    The pieces of the layers and then the other pieces, joined, are an archive.

    :param known_layers: names of layers that need no files
    :param diff_ids: digests of its unpacked layers, for archives of Docker before 25
    :param piece_bytes: most bytes of a file
    :returns: C(name), C(size) and, if it differs from the name, C(diff_id) of each layer
    :raises UnexpectedContent: with the reason
    """
    layers: list[dict[str, Any]] = []
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:

        def begin(start: str) -> Pieces:
            pieces = Pieces(f"{folder}/{start}", compress, piece_bytes, errors)
            stack.callback(pieces.kill)
            return pieces

        other_members = begin("")
        try:
            with output_of(docker_commands.save(image_id), seconds=seconds) as stream:
                for member in members(stream):
                    match = CONTENT.fullmatch(member.name)
                    name = (match[1] or match[3]) if match and member.size >= LEAST else None
                    if not name:
                        copy_member(member, other_members.write)
                        continue
                    layers.append({"name": name, "size": member.size})
                    if name not in known_layers:
                        pieces = begin(f"{name}-")
                        digest = copy_member(member, pieces.write)
                        pieces.close()
                        if digest != name and (member.name.startswith(BLOB) or f"sha256:{digest}" not in diff_ids):
                            raise damaged(name, digest)
                        layers[-1].update({} if digest == name else {"diff_id": digest})
            other_members.write(bytes(2 * tarfile.BLOCKSIZE))
            other_members.close()
        except UnexpectedContent as error:
            errors.seek(0)
            words = decode_text(errors.read()).strip()
            raise UnexpectedContent(f"{error}; {words}" if words else str(error)) from error
    return layers
