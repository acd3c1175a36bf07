# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real LiteLLM under attack: while connections, bodies and heads are held open, a client with a key gets its answers."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gateway_site import Site, needs_litellm, until

pytestmark = needs_litellm

MIB = 1024 * 1024
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
GOOD, BAD = "authorization: Bearer key of hermes\r\n", "authorization: Bearer key of hermez\r\n"
BODY = json.dumps({"model": "only", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.write()
        for name in ("heavy", "fast"):
            site.start_backend(name)
        site.serve()
        assert site.ask("only")[0] == 200
        yield site
    finally:
        site.end()


# --- attacks ----------------------------------------------------------------------------------------------------------------


def peak_mib(site: Site, reset: bool = False) -> float:
    """The largest resident size of the serving process since the last reset, MiB."""
    process = Path(f"/proc/{site.helper('status')['supervisor']['pid']}")
    if reset:
        (process / "clear_refs").write_text("5")
    match = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def body_bytes(site: Site) -> int:
    """Bytes of request bodies that the gateway counts."""
    lines = site.get(f"{site.url}/metrics/")[1].splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("dgxspark_gateway_body_bytes "))))


class Attack:
    """Connections that each send a first part, and then a byte a second; those that the gateway closes are opened again."""

    def __init__(self, port: int, count: int, first: bytes) -> None:
        self.port, self.count, self.first = port, count, first
        self.sent = self.opened = 0
        self.answers: Counter[str] = Counter()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        unsent: dict[socket.socket, memoryview] = {}
        poll = select.epoll()
        by_number: dict[int, socket.socket] = {}
        dripped = time.monotonic()
        while not self.over.is_set():
            while len(unsent) < self.count and not self.over.is_set():
                connection = socket.socket()
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect(("127.0.0.1", self.port))
                unsent[connection], by_number[connection.fileno()] = memoryview(self.first), connection
                poll.register(connection, select.EPOLLIN | select.EPOLLOUT)
                self.opened += 1
            for number, events in poll.poll(0.1):
                connection = by_number[number]
                try:
                    if events & ~select.EPOLLOUT:
                        self.answers[connection.recv(65536)[9:12].decode("latin-1") or "closed"] += 1
                        raise ConnectionError
                    count = connection.send(unsent[connection][: 256 * 1024])
                    self.sent += count
                    unsent[connection] = unsent[connection][count:]
                    if not unsent[connection]:
                        poll.modify(connection, select.EPOLLIN)
                except BlockingIOError:
                    pass
                except OSError:
                    poll.unregister(connection)
                    del unsent[connection], by_number[number]
                    connection.close()
            if time.monotonic() - dripped >= 1:
                dripped = time.monotonic()
                for connection in [connection for connection, data in unsent.items() if not data]:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")
        for connection in unsent:
            connection.close()

    def __enter__(self) -> Attack:
        self.thread.start()
        until(lambda: self.opened >= self.count and self.sent, "the attack")
        return self

    def __exit__(self, *_error: object) -> None:
        self.over.set()
        self.thread.join()


ATTACKS: dict[str, tuple[int, str, int, int]] = {
    # connections, head, bytes of the body that are sent at once, MiB that the process may take for it
    "a byte of a body each, without a key": (1000, f"{CHAT}content-length: 100000\r\n\r\n", 1, 150),
    "bodies of 63 MiB, without a key": (20, f"{CHAT}content-length: {63 * MIB}\r\n\r\n", 63 * MIB, 150),
    "a byte of a body each, with a key": (1000, f"{CHAT}{GOOD}content-length: 100000\r\n\r\n", 1, 150),
    "bodies of 63 MiB, with a key": (20, f"{CHAT}{GOOD}content-length: {63 * MIB}\r\n\r\n", 63 * MIB, 1500),
}
MORE_ATTACKS: dict[str, tuple[int, str, int, int]] = {
    "a byte of a body each, with a wrong key": (1000, f"{CHAT}{BAD}content-length: 100000\r\n\r\n", 1, 150),
    "a byte of a chunked body each, without a key": (1000, f"{CHAT}transfer-encoding: chunked\r\n\r\n", 1, 150),
    "a byte of a body each, for a path without a key": (
        1000, "GET /health/readiness HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100000\r\n\r\n", 1, 150,
    ),
    "heads without an end": (1000, CHAT, 0, 150),
    "bodies of 63 MiB without their last byte, with a key": (
        20, f"{CHAT}{GOOD}content-length: {63 * MIB}\r\n\r\n", 63 * MIB - 100, 600,
    ),
    "bodies of 1 MiB without their end, with a key": (
        1000, f"{CHAT}{GOOD}content-length: {MIB}\r\n\r\n", MIB - 1000, 800,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ATTACKS, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE_ATTACKS)])
def test_a_client_gets_its_answers_during_an_attack(site: Site, name: str) -> None:
    count, head, size, most_mib = {**ATTACKS, **MORE_ATTACKS}[name]
    prompt = BODY.replace("Hello", "x" * max(size - len(BODY) + 5, 0)).encode()[:size] if size > 1 else b"{"[:size]
    idle = peak_mib(site, reset=True)
    with Attack(site.port, count, head.encode() + prompt) as attack, ThreadPoolExecutor(4) as clients:
        time.sleep(2)
        answers = list(clients.map(lambda _number: site.ask("only", "key of hermes"), range(24)))
        time.sleep(1)
    peak = peak_mib(site)
    statuses = Counter(status for status, _text in answers)
    print(
        f"\n{name}: client {dict(statuses)}, attack {attack.opened} connections {dict(attack.answers)}, "
        f"{attack.sent / MIB:.0f} MiB sent, resident {idle:.0f} -> {peak:.0f} MiB"
    )
    assert statuses == {200: 24}, answers
    assert peak - idle < most_mib
    until(lambda: body_bytes(site) == 0, "the end of all bodies")


# --- requests at the edge of HTTP -------------------------------------------------------------------------------------------


def answers_to(site: Site, *parts: bytes, end: bool = False) -> list[int]:
    """Send parts of a connection, and return the statuses of all answers until the gateway closes it or is silent for 10 s.

    end: close the sending side then.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as connection, contextlib.suppress(OSError):
        for part in parts:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(part)
            time.sleep(0.1)
        if end:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            received += piece
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def request(line: str, *headers: str, host: str = "gateway", key: str = "") -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", f"host: {host}", *headers, f"{key}connection: close", "", ""]).encode()


@pytest.mark.parametrize(
    ("line", "headers", "host", "status"),
    [
        ("GET /v1/models", (), "gateway", 401),
        ("GET /v1%2fmodels", (), "gateway", 401),
        ("GET /v1/models?path=/health/readiness", (), "gateway", 401),
        ("GET /v1/models", ("x-forwarded-prefix: /health/readiness",), "gateway", 401),
        ("GET /v1/models", ("x-original-url: /health/readiness", "x-forwarded-host: x/health/readiness?"), "gateway", 401),
        ("GET /v1/models", (), "gateway/health/readiness?", 400),
        ("GET /v1/models", (), "gateway/health/readiness#", 400),
        ("GET /v1/models", (), "gateway:4000/health/readiness?", 400),
        ("GET /v1/models", (), "user@gateway", 400),
        ("GET //health/readiness", (), "gateway", 404),
        ("GET /health//readiness", (), "gateway", 404),
        ("GET /health/readiness/../../v1/models", (), "gateway", 404),
        ("GET /v1/models/..%2f..%2fkey/generate%3f", (), "gateway", 404),
        ("GET /v1/models/x%3f/health/readiness", (), "gateway", 404),
        ("GET /v1/models/x%23", (), "gateway", 404),
        ("GET /v1/models%0a", (), "gateway", 404),
        ("GET http://gateway/v1/models", (), "gateway", 404),
        ("GET http://gateway/health/readiness", (), "gateway", 404),
        ("GET /v1/realtime", ("upgrade: websocket", "connection: upgrade"), "gateway", 404),
        ("GET /health/readiness", (), "gateway", 200),
        ("GET /health%2freadiness", (), "[::1]:4000", 200),
        ("GET /health/readiness", ("content-length: 5",), "gateway", 400),
        ("GET /health/readiness", ("transfer-encoding: chunked",), "gateway", 400),
    ],
)  # fmt: skip
def test_no_path_opens_another_one(site: Site, line: str, headers: tuple[str, ...], host: str, status: int) -> None:
    assert answers_to(site, request(line, *headers, host=host)) == [status]


@pytest.mark.parametrize("path", ["/v1/model/info", "/v1/model%2finfo", "/v1/models/x/model/info"])
def test_the_key_of_a_client_does_not_open_what_is_the_masters(site: Site, path: str) -> None:
    assert answers_to(site, request(f"GET {path}", key=GOOD)) == [403]


def test_a_connection_carries_requests_one_after_another_each_with_its_own_key(site: Site) -> None:
    good = f"{CHAT}{GOOD}content-length: {len(BODY)}\r\n\r\n{BODY}".encode()
    bad = f"{CHAT}content-length: {len(BODY)}\r\n\r\n{BODY}".encode()
    served = site.count("heavy")
    assert answers_to(site, good + good + bad + good) == [200, 200, 401]
    assert site.count("heavy") == served + 2
    assert answers_to(site, bad + good) == [401]
    assert site.count("heavy") == served + 2


def test_who_wants_to_be_told_to_go_on_is_told_only_with_a_key(site: Site) -> None:
    head = f"{CHAT}expect: 100-continue\r\nconnection: close\r\n"
    assert answers_to(site, f"{head}{GOOD}content-length: {len(BODY)}\r\n\r\n".encode(), BODY.encode()) == [100, 200]
    assert answers_to(site, f"{head}content-length: {len(BODY)}\r\n\r\n".encode()) == [401]
    assert answers_to(site, f"{head}{GOOD}content-length: {65 * MIB}\r\n\r\n".encode()) == [413]


def test_a_body_that_is_too_large_is_refused_and_the_client_reads_why(site: Site) -> None:
    assert site.get(f"{site.url}/v1/chat/completions", "key of master", "x" * 65 * MIB)[0] == 413
    chunk = f"{MIB:x}\r\n".encode() + b"x" * MIB + b"\r\n"
    assert answers_to(site, f"{CHAT}{GOOD}transfer-encoding: chunked\r\n\r\n".encode(), *[chunk] * 66) == [413]
    assert body_bytes(site) == 0


def test_a_body_of_millions_of_values_is_refused(site: Site) -> None:
    """It would take LiteLLM gigabytes."""
    body = ('{"model": "only", "messages": [' + "[]," * MIB + "{}]}").encode()
    idle = peak_mib(site, reset=True)
    assert answers_to(site, f"{CHAT}{GOOD}content-length: {len(body)}\r\n\r\n".encode() + body) == [413]
    assert peak_mib(site) - idle < 50


def test_large_bodies_at_once_are_served_as_far_as_they_fit(site: Site) -> None:
    """Three of 60 MiB fit; the others are told to come again."""
    with ThreadPoolExecutor(5) as clients:
        prompt = "x" * (60 * MIB)
        messages = [{"role": "user", "content": prompt}]
        statuses = Counter(
            status for status, _text in clients.map(lambda _number: site.ask("only", messages=messages), range(5))
        )
    assert statuses[200] >= 1 and statuses[200] + statuses[429] == 5, statuses
    assert body_bytes(site) == 0


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n", [200]),
        (f"{len(BODY) - 5:x}\r\n{BODY}\r\n0\r\n\r\n", [400]),  # more than it says
        ("zz\r\n{}\r\n0\r\n\r\n", [400]),
        ("-5\r\n{}\r\n0\r\n\r\n", [400]),
        ("fffffffffffffffff\r\n{}", []),  # goes on for ever, and ends
        ("10\r\n{}", []),
    ],
)
def test_chunks_that_lie_cost_their_own_request_alone(site: Site, body: str, statuses: list[int]) -> None:
    head = f"{CHAT}{GOOD}transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    assert answers_to(site, head.encode(), body.encode(), end=not statuses) == statuses
    assert body_bytes(site) == 0
    assert site.ask("only", "key of hermes")[0] == 200


@pytest.mark.parametrize("length", ["-1", "5, 6", "x", "1e3"])
def test_lengths_that_are_none(site: Site, length: str) -> None:
    assert answers_to(site, f"{CHAT}{GOOD}content-length: {length}\r\n\r\nhello".encode()) == [400]


def test_a_client_that_closes_its_side_is_gone(site: Site) -> None:
    half = f"{CHAT}{GOOD}content-length: {MIB}\r\n\r\n".encode() + b"x" * 1000
    assert answers_to(site, half, end=True) == []
    request = f"{CHAT}{GOOD}content-length: {len(BODY)}\r\n\r\n{BODY}".encode()
    assert answers_to(site, request, end=True) == []
    until(lambda: not site.helper("status")["backends"]["spark-1/heavy"]["running"], "the end of what it asked")
    assert body_bytes(site) == 0


@pytest.mark.nightly
def test_heads_and_bodies_have_to_come_in_time(site: Site) -> None:
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", site.port), timeout=120) as head,
        socket.create_connection(("127.0.0.1", site.port), timeout=120) as body,
    ):
        head.sendall(CHAT.encode())
        body.sendall(f"{CHAT}{GOOD}content-length: 1000\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 60:
                head.sendall(b"x")
                time.sleep(0.5)
        assert 14 < time.monotonic() - began < 30
        with contextlib.suppress(OSError):
            while not select.select([body], [], [], 0.5)[0]:
                body.sendall(b"x")
        assert body.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert 59 < time.monotonic() - began < 75
