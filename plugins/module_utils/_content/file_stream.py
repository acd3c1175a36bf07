# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams files from one node to another; the receiver hashes them while they arrive.

The receiver starts the source's end through the source's SSH server (C(spread_server.py)). Over a LAN the stream runs inside SSH. Over a
fabric, which only nodes share, it is one TCP connection without encryption: the source listens for a single connection and sends, over
SSH, the port and the word that the connection has to begin with.
The receiver sends lines of C(BEGIN COUNT STORE). The source answers each with a line that holds a number of bytes, followed by those
bytes, or with a line that holds the reason of a failure.
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
"""Bytes that are received, written and hashed at once: few enough to stay in a cache of the processor."""
MOST_LINE = 8192
"""Bytes of a line: a path and two numbers."""
WAIT_SECONDS = 20.0
"""How long the source waits for the connection and its word."""
MOST_STRANGERS = 16
"""Connections that may be without a whole word at once; one more closes the oldest."""
IDLE_SECONDS = 120.0
"""Time without a byte after which either end gives up."""
CONNECT_SECONDS = 5.0

SendFile = Callable[[IO[bytes], int, int], int]


class NoConnection(OSError):
    """The source cannot be reached over TCP; nothing was received."""


# --- the source -------------------------------------------------------------------------------------------------------


def serve_output(hub: Path) -> None:
    """Send the files that standard input asks for to standard output. hub: folder of the files."""

    def send(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def send_file(handle: IO[bytes], begin: int, count: int) -> int:
        sent = 0
        while sent < count and (number := os.sendfile(1, handle.fileno(), begin + sent, count - sent)):
            sent += number
        return sent

    _answer(hub, sys.stdin.buffer, send, send_file)


def serve_connection(hub: Path, address: str, announce: Callable[[str], None]) -> None:
    """Send the files that one peer asks for over a TCP connection.

    :param announce: receives the line C(PORT WORD), which only the peer may see
    :raises OSError: if the address is not the host's, no peer connects, or the connection breaks
    """
    word = secrets.token_hex(32)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=4) as server:
        announce(f"{server.getsockname()[1]} {word}\n")
        connection = _accept(server, word)
    with connection, connection.makefile("rb") as requests:
        _answer(hub, requests, connection.sendall, connection.sendfile)


def _answer(hub: Path, requests: IO[bytes], send: Callable[[bytes], None], send_file: SendFile) -> None:
    """Answer requests for files until the peer ends the stream; links are not followed."""
    while line := requests.readline(MOST_LINE):
        begin, count, store = line.decode().rstrip("\n").split(" ", 2)
        try:
            handle = open_file(hub, store)
        except OSError as error:
            send(f"{error.strerror or error}\n".encode())
            continue
        with handle:
            number = max(min(os.fstat(handle.fileno()).st_size - int(begin), int(count)), 0)
            send(f"{number}\n".encode())
            sent = send_file(handle, int(begin), number) if number else 0
            drop_pages(handle.fileno())
        if sent < number:  # the file was truncated meanwhile
            return


def _accept(server: socket.socket, word: str) -> socket.socket:
    """Return the first connection that sends the word; other connections cannot block it.

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
                    peer = _read_word(strangers, ready, expected)
                    if peer:
                        return peer
            while len(strangers) > MOST_STRANGERS:
                oldest = next(iter(strangers))
                del strangers[oldest]
                oldest.close()
    finally:
        for stranger in strangers:
            stranger.close()
    raise TimeoutError("no peer connected for the files")


def _read_word(
    strangers: dict[socket.socket, bytes], connection: socket.socket, expected: bytes
) -> socket.socket | None:
    """Read from a connection; return it once it has sent the word, and close it if it has sent anything else."""
    piece = b""
    with contextlib.suppress(OSError):
        piece = connection.recv(len(expected) - len(strangers[connection]))
    strangers[connection] += piece
    if hmac.compare_digest(strangers[connection], expected):
        del strangers[connection]
        connection.settimeout(IDLE_SECONDS)
        connection.sendall(b"\n")
        return connection
    if not piece or len(strangers[connection]) == len(expected):
        del strangers[connection]
        connection.close()
    return None


# --- the receiver -----------------------------------------------------------------------------------------------------


def connect(own_address: str, address: str, greeting: str) -> socket.socket:
    """Return the TCP connection to a source.

    :param greeting: the line that the source sent over SSH
    :raises NoConnection: if the source announced no port, or cannot be reached there
    """
    words = greeting.split()
    if len(words) != 2 or not words[0].isdigit():
        raise NoConnection("the source offers no such connection")
    try:
        connection = socket.create_connection((address, int(words[0])), CONNECT_SECONDS, (own_address, 0))
    except OSError as error:
        raise NoConnection(f"port {words[0]} of {address} is not reached: {error}") from error
    try:
        connection.sendall(f"{words[1]}\n".encode())
        answer = connection.recv(1)
    except OSError as error:
        connection.close()
        raise NoConnection(f"port {words[0]} of {address} does not answer: {error}") from error
    if answer != b"\n":
        connection.close()
        raise NoConnection(f"port {words[0]} of {address} is not the source")
    connection.settimeout(IDLE_SECONDS)
    return connection


class Receiver:
    """Receives files over an open stream. limit: most bytes per second, 0 for no limit."""

    def __init__(self, reader: Any, writer: Any, limit: float = 0.0) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = memoryview(bytearray(PIECE))
        self._limit, self._began, self._count = limit, time.monotonic(), 0

    def _line(self) -> str:
        """Return the next line without reading beyond it."""
        line = b""
        while len(line) < MOST_LINE and not line.endswith(b"\n") and (byte := self._reader.read(1)):
            line += byte
        return decode_text(line)

    def take(self, store: str, begin: int, size: int, target: IO[bytes], digest: Any) -> None:
        """Write the missing part of a file and hash it; a file that is shorter at the source ends early.

        :param begin: bytes that are already here
        :raises OSError: if the source cannot read the file, or the stream ends
        """
        self._writer.write(f"{begin} {size - begin} {store}\n".encode())
        reply = self._line().strip()
        if not reply.isdigit() or int(reply) > size - begin:
            raise OSError(f"{store}: {reply or 'the connection ended'}")
        remaining = int(reply)
        while remaining:
            count = self._reader.readinto(self._buffer[: min(remaining, PIECE)])
            if not count:
                raise OSError(f"{store}: the connection ended {remaining} bytes before its end")
            piece = self._buffer[:count]
            target.write(piece)
            digest.update(piece)
            remaining -= count
            self._count += count
            if self._limit:
                time.sleep(max(0.0, self._count / self._limit - (time.monotonic() - self._began)))
