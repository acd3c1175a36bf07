# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of docker save in parts: each layer on its own, compressed and in pieces, and the other members together.

A layer is a piece of a tar archive, with a header that is the same in every image. So layers and the other members, one after the
other, are an archive again, with their compression; any of the layers may be left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO

from .._common.foreign_text import decode_text
from .._host import docker_commands
from .image_stream import CHUNK, HASH, ArchiveGuard, Program, UnexpectedContent, deadline

LEAST = 64 * 1024
"""Least bytes of a layer that becomes a part. Smaller ones stay with the other members: a separate file costs more than they do."""
LAYER = re.compile(rf"blobs/sha256/({HASH})|({HASH})/layer\.tar")
COMPRESS = {"zstd": ["zstd", "-q", "-3", "-T0", "-c"], "gzip": ["gzip", "-1", "-c"]}


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


class Splitter(ArchiveGuard):
    """Takes the layers out of an archive.

    names: possible names of the image; diff_ids: digests of its layers, for archives of Docker before 25;
    known_layers: names of layers that need no files; begin: returns the pieces of a layer, by its name.
    """

    def __init__(
        self,
        names: Sequence[str],
        diff_ids: Collection[str],
        known_layers: Collection[str],
        begin: Callable[[str], Pieces],
    ) -> None:
        super().__init__(names)
        self.diff_ids, self.known, self.begin = diff_ids, known_layers, begin
        self.layers: dict[str, int] = {}
        """Bytes of each layer, by name, in the order of the archive."""
        self.pieces: Pieces | None = None
        self.sum = hashlib.sha256()
        self.unread = 0

    def leaves_out(self, name: str, size: int) -> bool:
        """Take out layers that are large enough."""
        match = LAYER.fullmatch(name)
        if not match or size < LEAST:
            return False
        layer = match[1] or match[2]
        if layer in self.layers:
            raise UnexpectedContent(f"the archive has the layer {layer[:12]} twice")
        self.layers[layer] = self.unread = size
        if layer not in self.known:
            header = tarfile.TarInfo(name)  # the same for the same layer, in any image
            header.size = size
            self.pieces, self.sum = self.begin(layer), hashlib.sha256()
            self.pieces.write(header.tobuf(tarfile.GNU_FORMAT))
        return True

    def set_aside(self, data: bytes) -> None:
        """Write content of a layer; at its end, compare it with the digest of the layer."""
        if not self.pieces:
            return
        self.pieces.write(data)
        self.sum.update(data[: self.unread])
        self.unread -= min(self.unread, len(data))
        if self.remaining:
            return
        pieces, self.pieces = self.pieces, None
        pieces.close()
        name, digest = list(self.layers)[-1], self.sum.hexdigest()
        is_whole = digest == name if self.name.startswith("blobs/") else f"sha256:{digest}" in self.diff_ids
        if not is_whole:
            raise UnexpectedContent(
                f"its layer {name[:12]} is damaged on this host: the content has the sha256 {digest[:12]}"
            )


def save(
    image_id: str,
    folder: Path,
    compress: Sequence[str],
    splitter: Callable[[Callable[[str], Pieces]], Splitter],
    piece_bytes: int,
    seconds: float = 6 * 3600,
) -> dict[str, int]:
    """Write an image into a folder: layers as C(NAME-0000), C(NAME-0001), ..., and the other members as C(0000), ...

    :param image_id: the image
    :param folder: of the files
    :param compress: command that compresses
    :param splitter: makes the splitter, from its callback for each layer
    :param piece_bytes: most bytes of a file
    :param seconds: time limit
    :returns: the bytes of each layer, by name, in the order of the archive; known layers have no files
    :raises UnexpectedContent: with the reason
    """
    pieces: list[Pieces] = []

    def begin(name: str) -> Pieces:
        pieces.append(Pieces(f"{folder}/{name and f'{name}-'}", compress, piece_bytes, errors))
        return pieces[-1]

    def end() -> None:
        saving.kill()
        for stream in pieces:
            stream.compressing.kill()

    with (
        tempfile.TemporaryFile() as errors,
        Program(docker_commands.save(image_id), stdout=subprocess.PIPE, stderr=errors) as saving,
    ):
        members, guard, reason = begin(""), splitter(begin), ""
        with deadline(seconds, [end]) as is_late:
            try:
                while saving.stdout and (piece := saving.stdout.read(CHUNK)):
                    members.write(guard.feed(piece))
                if saving.wait() == 0:
                    guard.end()
                    members.close()
            except UnexpectedContent as error:
                reason = str(error)
            finally:
                saving.kill()
                for stream in pieces:
                    stream.kill()
        if is_late.is_set():
            raise UnexpectedContent(f"it was not through within {seconds:.0f} s")
        if reason or saving.wait():
            errors.seek(0)
            message = decode_text(errors.read()).strip()
            raise UnexpectedContent("; ".join(filter(None, [reason, message])) or f"exit code {saving.wait()}")
        return guard.layers
