# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive of docker save on its way into docker load: only the names that were asked for come through.

docker load gives images every name that an archive has. So the archive is read while it passes, and the files of it that hold names
are looked at before docker gets them; they are the last ones, and without them nothing is loaded. Standard library alone: hosts run
a byte copy.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from .._common.foreign_text import decode_text
from .._host import docker_commands

BLOCK = 512
CHUNK = 2**20
MOST_OF_A_LIST = 16 * 2**20
"""Bytes of a file of the archive that holds names."""
LISTS = ("manifest.json", "index.json", "repositories")
HASH = "[0-9a-f]{64}"
# Files that docker save writes, in either of its layouts. Other files might be another way to one of the lists.
MEMBER = re.compile(
    rf"(?:oci-layout|{'|'.join(map(re.escape, LISTS))}|blobs|blobs/sha256|blobs/sha256/{HASH}|{HASH}\.json|{HASH}|{HASH}/(?:VERSION|json|layer\.tar))"
)
LAYER_LINK = re.compile(rf"\.\./{HASH}/layer\.tar")
MANIFEST_KEYS = {"Config", "RepoTags", "Layers", "Parent", "LayerSources"}
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


class UnexpectedContent(Exception):
    """An archive has unexpected content, or is no archive; the message has the reason."""


def full_name(ref: str) -> str:
    """Return a name of an image as Docker keeps it: with its registry, and with a tag unless it has a digest."""
    name, at, digest = ref.partition("@")
    first, slash, _path = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    if at:
        return f"{name}@{digest}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class ArchiveGuard:
    """Looks at an archive that passes in pieces of any size.

    names: those that images may have; without: members that are left out. C(feed) returns what may go on to docker; C(end) has to
    be called when all has come. Both raise C(UnexpectedContent).
    """

    def __init__(self, names: Iterable[str], without: Collection[str] = ()) -> None:
        requested = [name for name in names if name and not name.startswith("sha256:")]
        self.names = {full_name(name) for name in requested}
        self.tags = {name.rpartition(":")[2] for name in self.names if "@" not in name}
        self.without = without
        self.left_out = False
        """Whether the present member is one of these."""
        self.held = b""
        """An extended header, until it is known whether its member goes on."""
        self.start = b""
        """What goes on before the content of the present member."""
        self.waiting = b""
        self.remaining = 0
        """Bytes of the present member that are to come, with what fills its last block."""
        self.kept: bytearray | None = None
        """The content of the present member, if it needs inspection."""
        self.name = ""
        self.length = 0
        self.extended: dict[str, str] = {}
        self.ended = False
        self.members = 0

    def feed(self, piece: bytes) -> bytes:
        """Take in what came; returns what can go on."""
        if not self.waiting and self.kept is None and len(piece) <= self.remaining:
            self.remaining -= len(piece)
            if self.left_out:
                self.set_aside(piece)
                return b""
            return piece
        self.waiting += piece
        out = bytearray()
        while self.waiting:
            if self.ended:
                if self.waiting.strip(b"\0"):
                    raise UnexpectedContent("there is something behind the end of the archive")
                out += self.waiting
                self.waiting = b""
            elif self.remaining:
                some = self.waiting[: self.remaining]
                self.waiting = self.waiting[len(some) :]
                self.remaining -= len(some)
                if self.kept is not None:
                    self.kept += some
                    if not self.remaining:
                        out += self._looked()
                elif self.left_out:
                    self.set_aside(some)
                else:
                    out += some
            elif len(self.waiting) < BLOCK:
                break
            else:
                header, self.waiting = self.waiting[:BLOCK], self.waiting[BLOCK:]
                self._enter(header)
                if self.kept is None:
                    out += self.start
                elif not self.remaining:
                    out += self._looked()
        return bytes(out)

    def leaves_out(self, name: str, size: int) -> bool:
        """Whether a member is left out. name: of the member. size: bytes of its content."""
        return name in self.without

    def set_aside(self, some: bytes) -> None:
        """Take the content of a left-out member, with the padding of its last block."""

    def end(self) -> None:
        """Say that all has come."""
        if not self.members:
            raise UnexpectedContent("the received data is not an archive of docker save")
        if self.remaining or self.waiting or not self.ended:
            raise UnexpectedContent("the archive of docker save ends too early")

    def _enter(self, header: bytes) -> None:
        """Read the header of a member."""
        if not header.strip(b"\0"):
            self.ended, self.start = True, header  # only zeros may follow
            if self.extended:
                raise UnexpectedContent("the archive ends within a member")
            return
        if header[257:262] != b"ustar" or sum(header[:148]) + 8 * 32 + sum(header[156:]) != _octal(header[148:156]):
            raise UnexpectedContent("the received data is not an archive of docker save")
        self.members += 1
        kind, size = header[156:157], _octal(header[124:136])
        if kind == b"x":
            if size > MOST_OF_A_LIST:
                raise UnexpectedContent("the archive has a header of an impossible size")
            self._begin(".extended", size, header, look=True)
            return
        prefix = header[345:500] if header[257:263] == b"ustar\0" else b""
        name = "/".join(filter(None, [_text(prefix), _text(header[:100])]))
        target = _text(header[157:257])
        extended, self.extended = self.extended, {}
        size = int(extended["size"]) if "size" in extended else size
        self._enter_member(kind, extended.get("path", name), extended.get("linkpath", target), size, header)

    def _enter_member(self, kind: bytes, name: str, target: str, size: int, header: bytes) -> None:
        """Check the name and the kind of a member, and begin it."""
        plain = name[:-1] if name.endswith("/") and kind == b"5" else name
        if not MEMBER.fullmatch(plain):
            raise UnexpectedContent(f"the archive has a member {name[:200]!r}, which docker save does not write")
        listed = plain in LISTS
        if (kind == b"2" and plain.endswith("/layer.tar") and LAYER_LINK.fullmatch(target)) or (
            kind == b"5" and not listed
        ):
            size = 0
        elif kind not in (b"0", b"\0"):
            raise UnexpectedContent(
                f"the archive has a member {name[:200]!r} of the kind {kind!r}, which docker save does not write"
            )
        if listed and size > MOST_OF_A_LIST:
            raise UnexpectedContent(f"{plain} in the archive has {size} bytes")
        self._begin(plain, size, header, listed)

    def _begin(self, name: str, size: int, header: bytes, look: bool) -> None:
        self.name, self.length = name, size
        self.remaining = -(-size // BLOCK) * BLOCK
        self.kept = bytearray() if look else None
        self.left_out = self.leaves_out(name, size)
        self.start = b"" if self.left_out else self.held + header
        self.held = b""

    def _looked(self) -> bytes:
        """Look at the member that was kept; returns what goes on of it now."""
        content, self.kept = bytes(self.kept or b""), None
        self._look(content[: self.length])
        if self.name == ".extended":
            self.held = self.start + content
            return b""
        return self.start + content

    def _look(self, content: bytes) -> None:
        """Look at a member that holds names."""
        if self.name == ".extended":
            self.extended = _extended(content)
            return
        body = _json(content, self.name)
        names: list[str] = []
        if self.name == "manifest.json":
            names = _of_manifest(body)
        elif self.name == "repositories":
            names = _of_repositories(body)
        else:
            self._index(body)
        unwanted = [name for name in names if full_name(name) not in self.names]
        if unwanted:
            raise UnexpectedContent(_unasked(unwanted, self.names))

    def _index(self, body: Any) -> None:
        """Judge the names that an OCI index gives; a reference's name is a whole one or its tag alone."""
        unwanted = []
        for key, value in _annotations(body):
            if key in NAME_ANNOTATIONS and not (
                isinstance(value, str)
                and (full_name(value) in self.names or (key == NAME_ANNOTATIONS[1] and value in self.tags))
            ):
                unwanted.append(str(value))
        if unwanted:
            raise UnexpectedContent(_unasked(unwanted, self.names))


def _unasked(unwanted: Sequence[str], names: Collection[str]) -> str:
    note = f", not {', '.join(sorted(names))} alone" if names else ", but must not name any"
    return f"the archive names images {', '.join(repr(name[:200]) for name in unwanted[:5])}{note}; nothing was loaded"


def _octal(field: bytes) -> int:
    if field[:1] in (b"\x80", b"\xff"):
        if field[:1] == b"\xff":
            raise UnexpectedContent("the archive has a member of an impossible size")
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", text):
        raise UnexpectedContent("the received data is not an archive of docker save")
    return int(text or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _extended(content: bytes) -> dict[str, str]:
    """Return the records of an extended header that describe the next member."""
    fields: dict[str, str] = {}
    while content:
        length, space, _text = content[:20].partition(b" ")
        if not space or not re.fullmatch(rb"[1-9][0-9]*", length) or int(length) > len(content):
            raise UnexpectedContent("the archive has a broken header")
        record, content = content[len(length) + 1 : int(length)], content[int(length) :]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise UnexpectedContent("the archive has a broken header")
        name, text = key.decode("utf-8", "surrogateescape"), value[:-1].decode("utf-8", "surrogateescape")
        if name.startswith("GNU.") or name in fields or (name == "size" and not re.fullmatch(r"[0-9]{1,15}", text)):
            raise UnexpectedContent("the archive has a header that docker save does not write")
        if name in ("path", "linkpath", "size"):
            fields[name] = text
    return fields


def _json(content: bytes, where: str) -> Any:
    """Read JSON so that no other reader can understand something else: keys that differ by case alone are one to Docker's."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key.lower() for key, _value in items]
        if len(set(keys)) < len(keys) or not all(key.isascii() for key in keys):
            raise ValueError("keys that can be taken for each other")
        return dict(items)

    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise UnexpectedContent(f"{where} in the archive cannot be read: {error}") from None


def _of_manifest(body: Any) -> list[str]:
    names: list[str] = []
    if not isinstance(body, list):
        raise UnexpectedContent("manifest.json in the archive is no list")
    for entry in body:
        if not isinstance(entry, dict) or not set(entry) <= MANIFEST_KEYS:
            raise UnexpectedContent("manifest.json in the archive has entries that docker save does not write")
        tags = entry.get("RepoTags")
        if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
            raise UnexpectedContent("manifest.json in the archive has names that are no texts")
        names += tags or []
    return names


def _of_repositories(body: Any) -> list[str]:
    if not isinstance(body, dict) or not all(isinstance(tags, dict) for tags in body.values()):
        raise UnexpectedContent("repositories in the archive is no mapping of names to tags")
    return [f"{name}:{tag}" for name, tags in body.items() for tag in tags]


def _annotations(body: Any) -> Iterable[tuple[str, Any]]:
    """Yield all annotations of an index, at any depth."""
    if isinstance(body, dict):
        for key, value in body.items():
            if key.lower() == "annotations" and value is not None:
                if not isinstance(value, dict):
                    raise UnexpectedContent("index.json in the archive has annotations that are no mapping")
                yield from value.items()
            else:
                yield from _annotations(value)
    elif isinstance(body, list):
        for value in body:
            yield from _annotations(value)


class Program(subprocess.Popen[bytes]):
    """A program at one end of a stream; Ansible's run_command would keep the whole stream in memory."""


@contextlib.contextmanager
def deadline(seconds: float, ends: Iterable[Callable[[], None]]) -> Iterator[threading.Event]:
    """Limit the time of the block. seconds: that it may take. ends: called when they are over. The event is set then."""
    is_late = threading.Event()

    def expire() -> None:
        is_late.set()
        for end in ends:
            end()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


class ProgramFailed(UnexpectedContent):
    """One of the programs failed; the message holds its last words."""


def load(
    send: Sequence[str],
    names: Sequence[str],
    files: Iterable[Path] = (),
    received: Callable[[int], None] = lambda _count: None,
    seconds: float = 6 * 3600,
) -> str:
    """Load the archive that a program writes, provided that it holds the named images alone.

    :param send: command of the program
    :param names: references that the archive may hold
    :param files: standard input of the program, one file after the other
    :param received: called with the number of bytes of each piece
    :param seconds: time limit
    :returns: output of docker
    :raises UnexpectedContent: with the reason, for other content
    :raises ProgramFailed: with the last words of the program that failed first
    """
    with (
        tempfile.TemporaryFile() as errors,
        Program(send, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as sending,
        Program(
            docker_commands.load(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as loading,
        deadline(seconds, [sending.kill, loading.kill]) as is_late,
    ):
        if not (sending.stdin and sending.stdout and loading.stdin and loading.stdout):
            raise ProgramFailed("the programs have no pipes")
        feeding = threading.Thread(target=_feed, args=(files, sending.stdin), daemon=True)
        feeding.start()
        reason, is_whole = _pump(sending.stdout, loading.stdin, names, received)
        if not is_whole:
            sending.terminate()
        if reason:
            loading.kill()  # before it has seen a name
        sending.stdout.close()
        feeding.join()
        with contextlib.suppress(BrokenPipeError):
            loading.stdin.close()
        output = decode_text(loading.stdout.read())
        codes = sending.wait(), loading.wait()
        if is_late.is_set():
            raise ProgramFailed(f"docker load was not through within {seconds:.0f} s")
        # The first failure is the cause: docker refuses an archive that ends too early.
        if codes[0] > 0 and is_whole:
            errors.seek(0)
            raise ProgramFailed(last_words(decode_text(errors.read()), send[0], codes[0]))
        if reason:
            raise UnexpectedContent(reason)
        if codes[1]:
            raise ProgramFailed(last_words(output, "docker load", codes[1]))
    return output


def last_words(output: str, program: str, code: int) -> str:
    """Return the last lines of a failed program; the cause comes before its consequences.

    :param output: of the program
    :param program: its name
    :param code: its exit code
    :returns: a line of text
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (" / ".join(lines[-3:]) or "it printed nothing") + f" ({program} ended with {code})"


def _feed(files: Iterable[Path], target: IO[bytes]) -> None:
    """Write files one after the other into a program."""
    with contextlib.suppress(OSError):
        for file in files:
            with file.open("rb") as stream:
                shutil.copyfileobj(stream, target, CHUNK)
    with contextlib.suppress(OSError):
        target.close()


def _pump(
    source: IO[bytes], target: IO[bytes], names: Iterable[str], received: Callable[[int], None]
) -> tuple[str, bool]:
    """Pass an archive on while it has the expected content.

    :param source: the archive
    :param target: input of docker load
    :param names: references that it may hold
    :param received: called with the number of bytes of each piece
    :returns: the reason why it was refused, or an empty text; and whether the source was read to its end
    """
    guard, is_whole = ArchiveGuard(names), False
    try:
        # Popen promises IO[bytes]; a pipe is a BufferedReader, which has read1.
        while piece := source.read1(CHUNK):  # type: ignore[attr-defined]
            received(len(piece))
            target.write(guard.feed(piece))
        is_whole = True
        guard.end()
    except UnexpectedContent as error:
        return str(error), is_whole
    except BrokenPipeError:
        pass  # docker refused the archive and says why
    return "", is_whole
