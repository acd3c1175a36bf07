# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that go from one node to another over a fabric which only nodes share: one TCP connection, not encrypted, hashed as they come.

The receiver asks for it by the source's SSH server (C(spread_access.py)), which runs this file as a program, C(HUB ADDRESS). The program listens on
that address for one connection, and says by SSH on which port, and the word that the connection has to begin with. Then the receiver asks
with lines of C(BEGIN COUNT STORE), and gets a line with the number of bytes and these, or a line that says why not.
Standard library alone: sources run a byte copy.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .._common.foreign_text import decode_text
from .._host.beneath import drop_pages, open_file

PIECE = 256 * 1024
"""Bytes that are received, written and hashed at once: few enough for all three to find them in a cache of the processor."""
MOST_LINE = 8192
"""Bytes of a line: a path and two numbers."""
WAIT_SECONDS = 20.0
"""How long the source waits for the connection it was asked for, and for its word."""
MOST_STRANGERS = 16
"""Connections that may be without a whole word at once; one more closes the oldest."""
IDLE_SECONDS = 120.0
"""Without a byte, after which either end gives up, as rsync is told to."""
CONNECT_SECONDS = 5.0


class NoWay(OSError):
    """There is no such connection between the two; nothing was taken."""


def serve(hub: Path, address: str, say: Callable[[str], None]) -> None:
    """Send one peer the requested files of a folder, on a separate connection.

    :param hub: the folder; links are not followed, and nothing outside of it is sent
    :param address: to listen on, of IPv4 or IPv6
    :param say: takes the line that only the peer gets, C(PORT WORD)
    :raises OSError: where the address is not this host's, nobody came, or the connection broke
    """
    word = secrets.token_hex(32)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=4) as server:
        say(f"{server.getsockname()[1]} {word}\n")
        connection = _accept(server, word)
    with connection, connection.makefile("rb") as requests:
        while line := requests.readline(MOST_LINE):
            begin, count, store = line.decode().rstrip("\n").split(" ", 2)
            try:
                handle = open_file(hub, store)
            except OSError as error:
                connection.sendall(f"{error.strerror or error}\n".encode())
                continue
            with handle:
                number = max(min(os.fstat(handle.fileno()).st_size - int(begin), int(count)), 0)
                connection.sendall(f"{number}\n".encode())
                sent = connection.sendfile(handle, int(begin), number) if number else 0
                drop_pages(handle.fileno())
            if sent < number:  # it became shorter meanwhile
                return


def _accept(server: socket.socket, word: str) -> socket.socket:
    """Return the first connection that says the word, however many others say nothing or something else.

    :raises TimeoutError: after WAIT_SECONDS
    """
    expected, until = f"{word}\n".encode(), time.monotonic() + WAIT_SECONDS
    strangers: dict[socket.socket, bytes] = {}  # received bytes of each; the oldest first
    server.setblocking(False)
    try:
        while (remaining := until - time.monotonic()) > 0:
            for ready in select.select([server, *strangers], [], [], remaining)[0]:
                if ready is server:
                    with contextlib.suppress(OSError):  # it has gone meanwhile
                        connection = server.accept()[0]
                        connection.setblocking(False)
                        strangers[connection] = b""
                elif ready in strangers:
                    piece = b""
                    with contextlib.suppress(OSError):
                        piece = ready.recv(len(expected) - len(strangers[ready]))
                    strangers[ready] += piece
                    if hmac.compare_digest(strangers[ready], expected):
                        del strangers[ready]
                        ready.settimeout(IDLE_SECONDS)
                        ready.sendall(b"\n")
                        return ready
                    if not piece or len(strangers[ready]) == len(expected):
                        del strangers[ready]
                        ready.close()
            while len(strangers) > MOST_STRANGERS:
                oldest = next(iter(strangers))
                del strangers[oldest]
                oldest.close()
    finally:
        for stranger in strangers:
            stranger.close()
    raise TimeoutError("nobody came for the files")


class Receiver:
    """The receiving end, a context manager.

    :param own: address of this host to connect from
    :param address: where the source listens
    :param told: the line that the source said by SSH
    :param limit: bytes a second at most, 0 for no limit
    :raises NoWay: where the source did not say where, is not reached there, or does not answer
    """

    def __init__(self, own_address: str, address: str, greeting: str, limit: float = 0.0) -> None:
        words = greeting.split()
        if len(words) != 2 or not words[0].isdigit():
            raise NoWay("the source offers no such connection")
        try:
            self._connection = socket.create_connection((address, int(words[0])), CONNECT_SECONDS, (own_address, 0))
        except OSError as error:
            raise NoWay(f"port {words[0]} of {address} is not reached: {error}") from error
        try:
            self._connection.sendall(f"{words[1]}\n".encode())
            answer = self._connection.recv(1)
        except OSError as error:
            self._connection.close()
            raise NoWay(f"port {words[0]} of {address} does not answer: {error}") from error
        if answer != b"\n":
            self._connection.close()
            raise NoWay(f"port {words[0]} of {address} is not the source")
        self._connection.settimeout(IDLE_SECONDS)
        self._buffer = memoryview(bytearray(PIECE))
        self._limit, self._began, self._count = limit, time.monotonic(), 0

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def _line(self) -> str:
        """Return the next line, and leave what follows it."""
        line = b""
        while len(line) < MOST_LINE and not line.endswith(b"\n") and (sign := self._connection.recv(1)):
            line += sign
        return decode_text(line)

    def take(self, store: str, begin: int, size: int, target: IO[bytes], digest: Any) -> None:
        """Write the missing part of a file, and hash it; a file that is shorter at the source ends early.

        :param store: the file, below the hub folder of the source
        :param begin: bytes that are there already
        :param size: expected bytes
        :param target: open for writing behind these
        :param digest: of hashlib, takes what comes
        :raises OSError: where the source cannot read it, or the connection ends
        """
        self._connection.sendall(f"{begin} {size - begin} {store}\n".encode())
        reply = self._line().strip()
        if not reply.isdigit() or int(reply) > size - begin:
            raise OSError(f"{store}: {reply or 'the connection ended'}")
        remaining = int(reply)
        while remaining:
            count = self._connection.recv_into(self._buffer, min(remaining, PIECE))
            if not count:
                raise OSError(f"{store}: the connection ended {remaining} bytes before its end")
            piece = self._buffer[:count]
            target.write(piece)
            digest.update(piece)
            remaining -= count
            self._count += count
            if self._limit:
                time.sleep(max(0.0, self._count / self._limit - (time.monotonic() - self._began)))


def main() -> None:
    """Serve a peer over SSH; its words are arguments of C(serve)."""

    def say(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    try:
        serve(Path(sys.argv[1]), sys.argv[2], say)
    except OSError as error:
        raise SystemExit(str(error)) from error
