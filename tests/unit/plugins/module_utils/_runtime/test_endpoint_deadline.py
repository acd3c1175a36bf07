# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that send single bytes or never stop: a request ends by its deadline and leaves no thread or socket."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile_texts import HOSTILE, is_harmless

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import endpoint, engine_client, http_client

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Progress = Callable[[Any, threading.Event], None]


class Server:
    """A server that runs C(talk) for each connection."""

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
    for first in made:
        first.close()


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


@pytest.mark.parametrize("case", DRIPS)
def test_no_server_holds_a_request_past_its_deadline(server: Callable[[Progress], Server], case: str) -> None:
    url, threads, began = server(DRIPS[case]).url, threading.active_count(), time.monotonic()
    with pytest.raises(engine_client.Problem) as problem:
        engine_client.Client(url).call("GET", "/metrics", timeout=0.3)
    assert problem.value.kind in ("timeout", "broken") and time.monotonic() - began < 30
    with pytest.raises(OSError, match=r"timed out|no HTTP"):
        http_client.fetch(f"{url}/metrics", timeout=0.3)
    assert time.monotonic() - began < 60 and threading.active_count() <= threads


def test_keep_alive_lines_do_not_prolong_the_wait_for_an_event(server: Callable[[Progress], Server]) -> None:
    url = server(drip(HEAD + b'\r\ndata: {"a": 1}\n\n', b": ping\n\n")).url
    events = engine_client.Client(url).events("/v1/completions", {}, 3)
    assert next(events) == {"a": 1}
    began = time.monotonic()
    with pytest.raises(engine_client.Problem, match="no answer from"):
        next(events)
    assert time.monotonic() - began < 30


def test_a_stream_may_take_longer_than_the_wait_for_one_event(server: Callable[[Progress], Server]) -> None:
    def talk(stream: Any, over: threading.Event) -> None:
        stream.sendall(HEAD + b"\r\n")
        for number in range(8):
            over.wait(0.5)
            stream.sendall(b'data: {"n": %d}\n\n' % number)
        stream.sendall(b"data: [DONE]\n\n")

    events = engine_client.Client(server(talk).url).events("/v1/completions", {}, 3)
    assert [event["n"] for event in events] == list(range(8))


def test_an_answer_without_end_is_cut_off(
    server: Callable[[Progress], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_BODY_BYTES", 1000)
    url = server(lambda stream, over: stream.sendall(HEAD + b"\r\n" + b"x" * 5000)).url
    with pytest.raises(engine_client.Problem, match="longer than 1000 bytes"):
        engine_client.Client(url).call("GET", "/metrics", timeout=30)
    with pytest.raises(OSError, match="longer than 1000 bytes"):
        http_client.fetch(url, timeout=30)


def test_lines_are_waited_for_one_by_one(server: Callable[[Progress], Server]) -> None:
    url = server(drip(HEAD + b"\r\n{}\n", b" ")).url
    lines = http_client.lines(f"{url}/api/pull", {}, b"{}", 3)
    assert next(lines) == b"{}\n"
    with pytest.raises(TimeoutError):
        next(lines)


def test_a_redirect_is_an_answer_and_no_body_is_read_of_a_head(server: Callable[[Progress], Server]) -> None:
    where = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 5\r\n\r\n"
    reply = http_client.fetch(f"{server(lambda stream, over: stream.sendall(where)).url}/a?b=c", "HEAD", timeout=30)
    assert (reply.status, reply.headers["location"], reply.body) == (302, "http://127.0.0.1:1/", b"")


def test_proxies_are_those_of_the_environment(
    server: Callable[[Progress], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = server(lambda stream, over: stream.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://me:p%40ss@127.0.0.1:{proxy.port}")
    assert http_client.fetch("http://hub.example/x?y=1", timeout=30, proxies=True).body == b"{}"
    message = proxy.asked[0].decode()
    assert message.startswith("GET http://hub.example/x?y=1 HTTP/1.1\r\n") and "\r\nHost: hub.example\r\n" in message
    assert "Proxy-Authorization: Basic bWU6cEBzcw==" in message
    refused = server(lambda stream, over: stream.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"))
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{refused.port}")
    with pytest.raises(OSError, match=r"the proxy 127\.0\.0\.1 answered 403 for hub\.example:443"):
        http_client.fetch("https://hub.example/", timeout=30, proxies=True)
    assert refused.asked[0].startswith(b"CONNECT hub.example:443 HTTP/1.1\r\n")


def test_what_is_no_url_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="not the URL"):
        http_client.fetch("file:///etc/passwd")


JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
HOSTILE_ANSWERS = {
    "negative chunk": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "chunk of no number": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "endless chunk size": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000,
    "chunk of all bytes": JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 4_000 + b"\r\nhello",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 10_000 + b"\r\n",
    "endless header": b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 1_000_000,
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "status of no kind": b"HTTP/1.1 99999 OK\r\n\r\n",
    "no HTTP": b"\x00\xff" * 100 + b"\r\n\r\n",
    "length of no number": JSON_HEAD + b"Content-Length: 1e9\r\n\r\n{}",
    "negative length": JSON_HEAD + b"Content-Length: -5\r\n\r\n{}",
    "length of all bytes": JSON_HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "deep JSON": JSON_HEAD + b"\r\n" + b"[" * 200_000,
    "deep event": JSON_HEAD + b"\r\ndata: " + b'{"a":' * 100_000 + b"\n\n",
    "long event": JSON_HEAD + b"\r\ndata: " + b"x" * (5 * 2**20),
    "digits": JSON_HEAD + b"\r\n" + b"9" * 100_000,
    "no UTF-8": JSON_HEAD + b'\r\n{"a": "\xff\xfe"}',
    "only interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "nothing": b"",
    "error with escapes": b"HTTP/1.1 400 no\r\n\r\n" + b'{"error": {"message": "\\u001b[2J\\u202e' + b'\x1b]0;x\x07"}}',
    "page with escapes": b"HTTP/1.1 500 no\r\n\r\n\x1b[2J\xe2\x80\xae\x9b",
}


@pytest.mark.parametrize("answer", HOSTILE_ANSWERS.values(), ids=HOSTILE_ANSWERS)
def test_no_answer_is_anything_but_a_problem(server: Callable[[Progress], Server], answer: bytes) -> None:
    url = server(lambda stream, _over: stream.sendall(answer)).url
    client = engine_client.Client(url)
    for ask in (
        lambda: client.request_json("GET", "/v1/models", timeout=5),
        lambda: list(client.events("/v1/chat/completions", {}, 5)),
        lambda: client.metrics(5),
    ):
        try:
            ask()
        except engine_client.Problem as problem:
            assert is_harmless(str(problem)) and is_harmless(problem.message + problem.fix)
    for read in (lambda: http_client.fetch(url, timeout=5), lambda: list(http_client.lines(f"{url}/x", {}, b"", 5))):
        try:
            read()
        except OSError as error:
            assert is_harmless(str(error))
    result = endpoint.wait_ready(url, timeout=2, interval=1)
    assert not result["ready"] and is_harmless(result["error"] + result["fix"])


def strange(rng: random.Random, depth: int = 0) -> Any:
    """Return a JSON value of any form, as a broken server may answer."""
    kinds = ["text", "number", "flag", "nothing", *(["list", "mapping"] * 2 if depth < 5 else [])]
    kind = rng.choice(kinds)
    names = ("choices", "message", "tool_calls", "function", "arguments", "data", "embedding", "index", "results", "id")
    names += ("relevance_score", "usage", "completion_tokens", "delta", "content", "error", "max_model_len", "text")
    if kind == "list":
        return [strange(rng, depth + 1) for _item in range(rng.randrange(4))]
    if kind == "mapping":
        return {rng.choice(names): strange(rng, depth + 1) for _item in range(rng.randrange(7))}
    numbers = (0, -1, 1, 2**70, 1e308, 5e-324, float("inf"), float("nan"))
    return {
        "text": rng.choice(["", "heavy", "[1]", *HOSTILE]),
        "number": rng.choice(numbers),
        "flag": rng.random() < 0.5,
    }.get(kind)


@pytest.mark.parametrize("seed", range(300))
def test_answers_of_any_form_end_in_a_problem(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)

    def call(_client: engine_client.Client, _method: str, path: str, *_more: Any, **_named: Any) -> tuple[int, bytes]:
        value = {"data": [{"id": "heavy", "max_model_len": strange(rng)}]} if path == "/v1/models" else strange(rng)
        return rng.choice([200, 200, 200, 400, 404, 500]) if path != "/v1/models" else 200, json.dumps(value).encode()

    def events(_client: engine_client.Client, _path: str, *_more: Any, **_named: Any) -> Iterator[dict[str, Any]]:
        for _event in range(rng.randrange(4)):
            value = strange(rng)
            if isinstance(value, dict):
                yield value

    monkeypatch.setattr(engine_client.Client, "call", call)
    monkeypatch.setattr(engine_client.Client, "events", events)
    requests = endpoint.Requests(tools=True, reasoning=True, adapters=("heavy",))
    result = endpoint.wait_ready("http://127.0.0.1:1", "heavy", requests, timeout=1, sleep=lambda _seconds: None)
    assert is_harmless(json.dumps(result, ensure_ascii=False))
    readiness = endpoint.Readiness(
        engine_client.Client("http://127.0.0.1:1"), "heavy", requests, lambda: 1.0, lambda: 0.0
    )
    for stage in ("models", "completion", "adapters", "tools", "reasoning", "_embed", "_rerank"):
        with contextlib.suppress(engine_client.Problem):
            getattr(readiness, stage)()
