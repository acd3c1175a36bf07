# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stream of files between two nodes: over loopback, both ends real."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_stream

CONTENT = bytes(range(256)) * 40_000
STORE = "models--Org--Model/blobs/abc"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    path = tmp_path / "hub" / STORE
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(b"nobody's business")
    return tmp_path / "hub"


@pytest.fixture
def source(hub: Path) -> Iterator[Callable[[], str]]:
    """Start a source; returns its greeting."""
    threads = []

    def start() -> str:
        greetings: queue.Queue[str] = queue.Queue()

        def run() -> None:
            try:
                file_stream.serve_connection(hub, "127.0.0.1", greetings.put)
            except OSError as error:
                greetings.put(str(error))

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return greetings.get(timeout=30)

    yield start
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


@contextlib.contextmanager
def receiver_of(greeting: str, limit: float = 0.0) -> Iterator[file_stream.Receiver]:
    with file_stream.connect("127.0.0.1", "127.0.0.1", greeting) as connection:
        stream = connection.makefile("rwb", buffering=0)
        yield file_stream.Receiver(stream, stream, limit)


def take(greeting: str, store: str = STORE, begin: int = 0, size: int = len(CONTENT), limit: float = 0.0) -> bytes:
    """Return the received bytes of a file; their digest has to match."""
    target, digest = io.BytesIO(), hashlib.sha256()
    with receiver_of(greeting, limit) as receiver:
        receiver.take(store, begin, size, target, digest)
    assert digest.digest() == hashlib.sha256(target.getvalue()).digest()
    return target.getvalue()


def test_a_file_comes_and_is_hashed_as_it_comes(source: Callable[[], str]) -> None:
    assert take(source()) == CONTENT


def test_one_connection_takes_several_files_and_empty_ones(source: Callable[[], str], hub: Path) -> None:
    (hub / "empty").touch()
    (hub / "small").write_bytes(b"small")
    received = []
    with receiver_of(source()) as receiver:
        for store, size in (("small", 5), ("empty", 0), (STORE, len(CONTENT))):
            target = io.BytesIO()
            receiver.take(store, 0, size, target, hashlib.sha256())
            received.append(target.getvalue())
    assert received == [b"small", b"", CONTENT]


def test_it_goes_on_where_it_was(source: Callable[[], str]) -> None:
    assert take(source(), begin=1_000_001) == CONTENT[1_000_001:]


def test_a_file_that_is_longer_or_shorter_than_it_was_gives_no_byte_too_many(source: Callable[[], str]) -> None:
    assert take(source(), size=1000) == CONTENT[:1000]
    assert take(source(), size=len(CONTENT) + 5) == CONTENT
    assert take(source(), begin=len(CONTENT) + 1, size=len(CONTENT) + 5) == b""


@pytest.mark.parametrize("store", ["../secret", "/etc/passwd", "led/passwd", "file", "nothing", "models--Org--Model"])
def test_nothing_else_of_the_host_is_sent(source: Callable[[], str], hub: Path, store: str) -> None:
    (hub / "led").symlink_to("/etc")
    (hub / "file").symlink_to(hub.parent / "secret")
    with receiver_of(source()) as receiver:
        target = io.BytesIO()
        with pytest.raises(OSError, match=store.replace("/", ".")):
            receiver.take(store, 0, 100, target, hashlib.sha256())
        assert target.getvalue() == b""
        receiver.take(STORE, 0, len(CONTENT), target, hashlib.sha256())  # the connection goes on
    assert target.getvalue() == CONTENT


@pytest.mark.parametrize("sent_bytes", [b"", b"\n", b"0" * 64 + b"\n", b"x" * 20_000])
def test_who_does_not_know_the_word_gets_nothing_and_who_does_comes_after(
    source: Callable[[], str], sent_bytes: bytes
) -> None:
    greeting = source()
    with socket.create_connection(("127.0.0.1", int(greeting.split()[0])), 10) as stranger:
        stranger.sendall(sent_bytes)
        assert take(greeting) == CONTENT
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_strangers_do_not_keep_the_peer_out_however_many_they_are(source: Callable[[], str]) -> None:
    greeting = source()
    port, word = greeting.split()
    with contextlib.ExitStack() as strangers:
        for number in range(3 * file_stream.MOST_STRANGERS):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", int(port)), 10))
            with contextlib.suppress(OSError):
                stranger.sendall(word[: number % 60].encode())
        assert take(greeting) == CONTENT


def test_a_stranger_that_drips_does_not_hold_the_source_beyond_its_time(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "WAIT_SECONDS", 1.0)
    greetings: queue.Queue[str] = queue.Queue()
    over = threading.Event()

    def drip() -> None:
        port = int(greetings.get(timeout=30).split()[0])
        with socket.create_connection(("127.0.0.1", port), 10) as stranger, contextlib.suppress(OSError):
            for _second in range(50):
                stranger.sendall(b"x")
                if over.wait(0.2):
                    break

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError, match="no peer connected"):
            file_stream.serve_connection(hub, "127.0.0.1", greetings.put)
        assert time.monotonic() - began < 5
    finally:
        over.set()
        thread.join(30)


def test_a_source_that_nobody_comes_to_ends(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_stream, "WAIT_SECONDS", 0.1)
    with pytest.raises(OSError):
        file_stream.serve_connection(hub, "127.0.0.1", lambda _line: None)


@pytest.mark.parametrize(
    "greeting", ["", "this key takes models and the images of this run, nothing else", "x y", "1 2 3"]
)
def test_without_an_offer_there_is_no_way(greeting: str) -> None:
    with pytest.raises(file_stream.NoConnection, match="offers no such connection"):
        take(greeting)


def test_a_port_that_is_closed_or_silent_or_somebody_elses_is_no_way(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "CONNECT_SECONDS", 0.2)
    with pytest.raises(file_stream.NoConnection, match="is not reached"):
        take(f"{closed_port} word")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(file_stream.NoConnection, match="does not answer"),
    ):
        take(f"{silent.getsockname()[1]} word")
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH-2.0\n"))
        thread.start()
        with pytest.raises(file_stream.NoConnection, match=r"is not the source|does not answer"):
            take(f"{other.getsockname()[1]} word")
        thread.join()


def test_a_connection_that_breaks_is_told_with_what_is_missing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lie() -> None:
            connection, _peer = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"\n")
                connection.recv(100)
                connection.sendall(b"10\nabc")

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(OSError, match=f"{STORE}: the connection ended 7 bytes before its end"):
            take(f"{server.getsockname()[1]} word", size=10)
        thread.join()


def test_a_source_that_offers_more_than_was_asked_for_is_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lie() -> None:
            connection, _peer = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"\n")
                connection.recv(100)
                connection.sendall(b"11\nabcdefghijk")

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(OSError, match=STORE):
            take(f"{server.getsockname()[1]} word", size=10)
        thread.join()


def test_a_limit_is_kept(source: Callable[[], str]) -> None:
    began = time.monotonic()
    assert take(source(), limit=len(CONTENT) * 4) == CONTENT
    assert time.monotonic() - began > 0.2


def test_files_are_sent_to_standard_output_too(hub: Path) -> None:
    (hub / "small").write_bytes(b"small")
    program = "import sys, pathlib; from dgxspark_vllm._content import file_stream; file_stream.serve_output(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[5] / "collections")}
    argv = [sys.executable, "-c", program, str(hub)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment) as process:
        receiver = file_stream.Receiver(process.stdout, process.stdin)
        target = io.BytesIO()
        with pytest.raises(OSError, match="nothing: No such file"):
            receiver.take("nothing", 0, 5, target, hashlib.sha256())
        receiver.take("small", 0, 5, target, hashlib.sha256())
        receiver.take(STORE, 1, len(CONTENT), target, hashlib.sha256())
    assert (target.getvalue(), process.returncode) == (b"small" + CONTENT[1:], 0)
