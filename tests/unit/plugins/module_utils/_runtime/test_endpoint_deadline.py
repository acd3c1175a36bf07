# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that send byte by byte, for ever or without end: a request ends by its deadline and leaves nothing behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import endpoint

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Progress = Callable[[Any, threading.Event], None]


class Server:
    """Says what C(talk) makes it say, to each who comes."""

    def __init__(self, talk: Progress) -> None:
        self.over, self.asked = threading.Event(), []  # type: threading.Event, list[bytes]
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.talk = talk
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                stream, _peer = self.socket.accept()
            except OSError:
                return
            with stream:
                try:
                    self.asked.append(stream.recv(65536))
                    self.talk(stream, self.over)
                except OSError:
                    continue

    def close(self) -> None:
        self.over.set()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(2)


@pytest.fixture
def server() -> Iterator[Callable[[Progress], Server]]:
    made: list[Server] = []

    def make(talk: Progress) -> Server:
        made.append(Server(talk))
        return made[-1]

    yield make
    for one in made:
        one.close()


def drip(first: bytes, piece: bytes) -> Progress:
    def talk(stream: Any, over: threading.Event) -> None:
        stream.sendall(first)
        while not over.wait(0.03):
            stream.sendall(piece)

    return talk


DRIPS = {
    "status line": drip(b"HTTP/1.1 2", b"0"),
    "headers": drip(HEAD + b"X-Long: ", b"x"),
    "header lines": drip(HEAD, b"X-A: b\r\n"),
    "body": drip(HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "chunks": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "nothing": lambda stream, over: bool(over.wait(300)) and None,
}


@pytest.mark.parametrize("what", DRIPS)
def test_no_server_holds_a_request_past_its_deadline(server: Callable[[Progress], Server], what: str) -> None:
    url, threads, began = server(DRIPS[what]).url, threading.active_count(), time.monotonic()
    with pytest.raises(endpoint.Problem) as problem:
        endpoint.Client(url).call("GET", "/metrics", timeout=0.3)
    assert problem.value.kind in ("timeout", "broken") and time.monotonic() - began < 30
    with pytest.raises(OSError, match=r"timed out|no HTTP"):
        endpoint.fetch(f"{url}/metrics", timeout=0.3)
    assert time.monotonic() - began < 60 and threading.active_count() <= threads


def test_keep_alive_lines_do_not_prolong_the_wait_for_an_event(server: Callable[[Progress], Server]) -> None:
    url = server(drip(HEAD + b'\r\ndata: {"a": 1}\n\n', b": ping\n\n")).url
    events = endpoint.Client(url).events("/v1/completions", {}, 3)
    assert next(events) == {"a": 1}
    began = time.monotonic()
    with pytest.raises(endpoint.Problem, match="no answer from"):
        next(events)
    assert time.monotonic() - began < 30


def test_a_stream_may_take_longer_than_the_wait_for_one_event(server: Callable[[Progress], Server]) -> None:
    def talk(stream: Any, over: threading.Event) -> None:
        stream.sendall(HEAD + b"\r\n")
        for number in range(8):
            over.wait(0.5)
            stream.sendall(b'data: {"n": %d}\n\n' % number)
        stream.sendall(b"data: [DONE]\n\n")

    events = endpoint.Client(server(talk).url).events("/v1/completions", {}, 3)
    assert [event["n"] for event in events] == list(range(8))


def test_an_answer_without_end_is_cut_off(
    server: Callable[[Progress], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "MAX_BODY_BYTES", 1000)
    url = server(lambda stream, over: stream.sendall(HEAD + b"\r\n" + b"x" * 5000)).url
    with pytest.raises(endpoint.Problem, match="longer than 1000 bytes"):
        endpoint.Client(url).call("GET", "/metrics", timeout=30)
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        endpoint.fetch(url, timeout=30)


def test_lines_are_waited_for_one_by_one(server: Callable[[Progress], Server]) -> None:
    url = server(drip(HEAD + b"\r\n{}\n", b" ")).url
    lines = endpoint.lines(f"{url}/api/pull", {}, b"{}", 3)
    assert next(lines) == b"{}\n"
    with pytest.raises(TimeoutError):
        next(lines)


def test_a_redirect_is_an_answer_and_no_body_is_read_of_a_head(server: Callable[[Progress], Server]) -> None:
    where = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 5\r\n\r\n"
    found = endpoint.fetch(f"{server(lambda stream, over: stream.sendall(where)).url}/a?b=c", "HEAD", timeout=30)
    assert (found.status, found.headers["location"], found.body) == (302, "http://127.0.0.1:1/", b"")


def test_proxies_are_those_of_the_environment(
    server: Callable[[Progress], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = server(lambda stream, over: stream.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
    assert endpoint.fetch("http://hub.example/x?y=1", timeout=30, proxies=True).body == b"{}"
    said = proxy.asked[0].decode()
    assert said.startswith("GET http://hub.example/x?y=1 HTTP/1.1\r\n") and "\r\nHost: hub.example\r\n" in said
    assert "Proxy-Authorization: Basic bWU6cEBzcw==" in said
    refused = server(lambda stream, over: stream.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"))
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{refused.port}")
    with pytest.raises(OSError, match=r"the proxy 127\.0\.0\.1 answered 403 for hub\.example:443"):
        endpoint.fetch("https://hub.example/", timeout=30, proxies=True)
    assert refused.asked[0].startswith(b"CONNECT hub.example:443 HTTP/1.1\r\n")


def test_what_is_no_url_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="not the URL"):
        endpoint.fetch("file:///etc/passwd")
