# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive of docker save in parts: each layer by itself, compressed and in pieces, and the remaining members.

A layer is a piece of a tar archive, with a header that says the same in every image. So layers and the rest, one behind the other,
are an archive again, with their compression; any of the layers may be left out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO

from .._common.foreign_text import decode_text
from .image_stream import CHUNK, HASH, ArchiveGuard, UnexpectedContent

LEAST = 64 * 1024
"""Least bytes of a layer that becomes a part. Smaller ones stay with the remaining members: a separate file costs more than they do."""
LAYER = re.compile(rf"blobs/sha256/({HASH})|({HASH})/layer\.tar")
COMPRESS = {"zstd": ["zstd", "-q", "-3", "-T0", "-c"], "gzip": ["gzip", "-1", "-c"]}


class _Program(subprocess.Popen[bytes]):
    """A program that bytes go through; Ansible's own run_command would keep them all."""


class Pieces:
    """Compresses its input into files that are no larger than C(piece_bytes); their names are C(start) and four digits."""

    def __init__(self, start: str, compress: Sequence[str], piece_bytes: int, errors: IO[bytes]) -> None:
        self.compressing = _Program(compress, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        cut = ["split", f"--bytes={piece_bytes}", "--numeric-suffixes", "--suffix-length=4", "-", start]
        self.cutting = _Program(cut, stdin=self.compressing.stdout, stderr=errors)
        if self.compressing.stdout:
            self.compressing.stdout.close()

    def write(self, some: bytes) -> None:
        """Take more. Where a program has ended, C(close) says so."""
        if self.compressing.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.compressing.stdin.write(some)

    def close(self) -> None:
        """Wait until all is written; raises C(UnexpectedContent) otherwise."""
        if self.compressing.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.compressing.stdin.close()
        codes = self.compressing.wait(), self.cutting.wait()
        if any(codes):
            raise UnexpectedContent(f"compressing ended with {codes[0]}, cutting into pieces with {codes[1]}")

    def end(self) -> None:
        """End the programs, if they have not ended."""
        self.compressing.kill()
        self.cutting.kill()
        with contextlib.suppress(UnexpectedContent):
            self.close()


class Splitter(ArchiveGuard):
    """Takes the layers out of an archive.

    names: possible names of the image; diff_ids: digests of its layers, for archives of Docker before 25;
    known: names of layers that are not wanted; begin: returns where a layer of a name goes.
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
        self.into: Pieces | None = None
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
            self.into, self.sum = self.begin(layer), hashlib.sha256()
            self.into.write(header.tobuf(tarfile.GNU_FORMAT))
        return True

    def set_aside(self, some: bytes) -> None:
        """Pass on what comes of a layer; at its end, compare it with its digest."""
        if not self.into:
            return
        self.into.write(some)
        self.sum.update(some[: self.unread])
        self.unread -= min(self.unread, len(some))
        if self.remaining:
            return
        into, self.into = self.into, None
        into.close()
        name, digest = list(self.layers)[-1], self.sum.hexdigest()
        right = digest == name if self.name.startswith("blobs/") else f"sha256:{digest}" in self.diff_ids
        if not right:
            raise UnexpectedContent(
                f"its layer {name[:12]} is damaged on this host: the content has the sha256 {digest[:12]}"
            )


def save(
    image_id: str,
    folder: Path,
    compress: Sequence[str],
    splitter: Callable[[Callable[[str], Pieces]], Splitter],
    piece_bytes: int,
    docker: str = "docker",
    seconds: float = 6 * 3600,
) -> dict[str, int]:
    """Write an image into a folder: layers as C(NAME-0000), C(NAME-0001), ..., and the remaining members as C(0000), ...

    :param image_id: the image
    :param folder: where the files go
    :param compress: command that compresses
    :param splitter: makes the splitter, from its callback for each layer
    :param piece_bytes: most bytes of a file
    :param docker: command of docker
    :param seconds: time limit
    :returns: the bytes of each layer, by name, in the order of the archive; those that are known have no files
    :raises UnexpectedContent: with the reason
    """
    with (
        tempfile.TemporaryFile() as errors,
        _Program([docker, "save", image_id], stdout=subprocess.PIPE, stderr=errors) as saving,
    ):
        opened = [Pieces(f"{folder}/", compress, piece_bytes, errors)]

        def begin(name: str) -> Pieces:
            opened.append(Pieces(f"{folder}/{name}-", compress, piece_bytes, errors))
            return opened[-1]

        late = threading.Event()

        def end() -> None:
            late.set()
            saving.kill()
            for pipe in opened:
                pipe.compressing.kill()

        deadline = threading.Timer(seconds, end)
        deadline.daemon = True
        deadline.start()
        guard, why = splitter(begin), ""
        try:
            while saving.stdout and (piece := saving.stdout.read(CHUNK)):
                opened[0].write(guard.feed(piece))
            if saving.wait() == 0:
                guard.end()
                opened[0].close()
        except UnexpectedContent as error:
            why = str(error)
        finally:
            deadline.cancel()
            saving.kill()
            for stream in opened:
                stream.end()
        if late.is_set():
            raise UnexpectedContent(f"it was not through within {seconds:.0f} s")
        if why or saving.wait():
            errors.seek(0)
            message = decode_text(errors.read()).strip()
            raise UnexpectedContent("; ".join(filter(None, [why, message])) or f"exit code {saving.wait()}")
        return guard.layers
