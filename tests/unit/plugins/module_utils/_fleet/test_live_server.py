# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server of the live page: who may read it and act, what it keeps, and what it sends."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import live_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_page, live_server
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_server import Live, Server
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_status import Spark

KEY = "sk-secret"
Served = Callable[..., "Reading"]


class Reading:
    """A served page of a fleet."""

    def __init__(self, count: int = 8, key: str = "", act: Any = None) -> None:
        self.looks: list[bool] = []
        self.sparks = live_fixture.sparks(count)
        self.live = Live(self.look, lambda: live_fixture.CHECKS, act, seconds=0.0)
        self.server = Server(("127.0.0.1", 0), self.live, live_fixture.FILES, key, ["Forge"])
        self.server.serve()
        self.port = self.server.server_address[1]

    def look(self, is_read: bool) -> list[Spark]:
        self.looks.append(is_read)
        return list(self.sparks)

    def ask(
        self, path: str = "/", method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = None if body is None else json.dumps(body) if not isinstance(body, str) else body
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): text for name, text in answer.getheaders()}


@pytest.fixture
def served() -> Iterator[Served]:
    made: list[Reading] = []

    def serve(*args: Any, **kwargs: Any) -> Reading:
        made.append(Reading(*args, **kwargs))
        return made[-1]

    yield serve
    for reading in made:
        reading.server.shutdown()
        reading.server.server_close()


def test_the_page_its_files_and_its_policy(served: Served) -> None:
    reading = served()
    for path, kind in (
        ("/", "text/html"),
        ("/index.html", "text/html"),
        ("/live.js", "text/javascript"),
        ("/live.css", "text/css"),
    ):
        status, text, headers = reading.ask(path)
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8") and text
        assert headers["content-length"] == str(len(text.encode()))
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["cache-control"] == "no-store" and "access-control-allow-origin" not in headers
    assert "uPlot" in reading.ask("/uplot.js")[1] and ".uplot" in reading.ask("/uplot.css")[1]
    status, text, headers = reading.ask("/", "HEAD")
    assert (status, text) == (200, "") and int(headers["content-length"]) > 1000 and headers["server"] == "dgxspark"


@pytest.mark.parametrize("path", ["/secret", "/../live.js", "/live/live.js", "//etc/passwd", "/%2e%2e/x", "/<script>"])
def test_nothing_else_is_there(served: Served, path: str) -> None:
    status, text, _headers = served().ask(path)
    assert status == 404 and "script" not in text


def test_the_data_are_the_status_of_the_fleet(served: Served) -> None:
    value = json.loads(served().ask("/status.json")[1])
    assert value["counts"]["hosts"] == 8 and {row["state"] for row in value["services"]} >= {
        "down",
        "unloaded",
        "starting",
    }


@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        ("127.0.0.1:8095", True),
        ("[::1]:8095", True),
        ("192.168.1.5", True),
        ("localhost:1", True),
        ("forge", True),
        ("FORGE:9", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[::", False),
    ],
)
def test_it_answers_to_its_own_names_only(served: Served, name: str, is_named: bool) -> None:
    assert served().ask(Host=name)[0] == (200 if is_named else 421)


def test_beyond_loopback_there_is_no_server_without_a_key() -> None:
    live = Live(lambda _is_read: [])
    with pytest.raises(ValueError, match="a key is needed"):
        Server(("0.0.0.0", 0), live, live_fixture.FILES)
    Server(("0.0.0.0", 0), live, live_fixture.FILES, KEY).server_close()


def test_with_a_key_nothing_is_shown_without_it(served: Served) -> None:
    reading = served(key=KEY, act=lambda _request: "done")
    basic = base64.b64encode(f"me:{KEY}".encode()).decode()
    for path in ("/", "/live.js", "/status.json", "/events", "/hour.json", "/nothing"):
        for wrong in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": "Basic !"},
            {"Authorization": f"Digest {KEY}"},
            {"Authorization": "Bearer é"},
        ):
            status, text, headers = reading.ask(
                path, **{name: value.encode().decode("latin-1") for name, value in wrong.items()}
            )
            assert (status, text) == (401, "A key is needed.\n") and headers["www-authenticate"].startswith("Basic")
    assert (
        reading.ask(
            "/act", "POST", {"verb": "stop", "host": "spark-1", "service": "heavy"}, Content_Type="application/json"
        )[0]
        == 401
    )
    for right in (f"Bearer {KEY}", f"Basic {basic}"):
        assert reading.ask("/status.json", Authorization=right)[0] == 200


def test_actions(served: Served) -> None:
    requests: list[Any] = []

    def act(request: Any) -> str:
        requests.append(request)
        if request["service"] == "gone":
            raise ValueError("spark-1 has no service 'gone'")
        return "it stops"

    reading = served(key=KEY, act=act)
    body = {"verb": "stop", "host": "spark-1", "service": "heavy", "reader": "forged"}
    own = {"Authorization": f"Bearer {KEY}", "Content_Type": "application/json"}
    origin = f"http://127.0.0.1:{reading.port}"
    status, text, _headers = reading.ask("/act", "POST", body, **own, Origin=origin)
    assert (status, json.loads(text)) == (200, {"text": "it stops"})
    assert requests == [{"verb": "stop", "host": "spark-1", "service": "heavy", "reader": "127.0.0.1"}]
    status, text, _headers = reading.ask("/act", "POST", {**body, "service": "gone"}, **own)
    assert (status, text) == (400, "spark-1 has no service 'gone'\n")
    assert reading.ask("/act", "POST", body, **own, Origin="http://evil.example")[0] == 403
    assert reading.ask("/act", "POST", body, **{**own, "Content_Type": "text/plain"})[0] == 403
    assert reading.ask("/other", "POST", body, **own)[0] == 404
    for wrong in ("{", "[]", "{}", '"x"', "x" * 5000):
        assert reading.ask("/act", "POST", wrong, **own)[0] == 400
    assert len(requests) == 2
    assert served(key=KEY).ask("/act", "POST", body, **own)[0] == 404  # the switch is off
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert reading.ask("/", method)[0] == 501


def events(reading: Reading, after: int | str = "") -> Iterator[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", reading.port, timeout=30)
    connection.request("GET", f"/events?after={after}")
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def test_events_are_what_changes(served: Served) -> None:
    reading = served()
    reading.ask("/")
    first = reading.live.frame.number
    stream = events(reading, first)
    assert next(stream)["parts"] == {}
    document = dict(reading.sparks[0].document or {})
    reading.sparks[0] = Spark("spark-1", {**document, "cpu_percent": 77.0}, at=5.0)
    reading.live.tick()
    message = next(stream)
    key = live_page.part_id("host", "spark-1")
    assert (
        list(message["parts"]) == [key] and "77 %" in message["parts"][key] and "00:00:05 UTC" in message["parts"][key]
    )
    assert message["ages"][key] == 5.0 and len(message["points"][key]) == 1 + len(live_page.CHARTS)
    shape = message["shape"]
    reading.sparks.pop()
    reading.live.tick()
    assert next(stream)["shape"] != shape
    missed = next(events(reading, first))  # all parts
    assert list(missed["parts"]) == list(reading.live.frame.parts)


def test_nothing_is_measured_in_full_for_nobody(served: Served) -> None:
    reading = served()
    reading.live.tick()
    assert reading.looks == [False] and reading.live.frame.number == 0
    reading.live.tick()
    assert reading.looks == [False]  # not before IDLE_SECONDS
    assert reading.ask("/status.json?idle")[0] == 200
    reading.ask("/")
    assert reading.looks[-1] is True


def test_the_kept_hour_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sparks, now = live_fixture.sparks(2), [1e9]
    live = Live(lambda _is_read: sparks)
    monkeypatch.setattr(live_server.time, "time", lambda: now[0])
    for _look in range(4 * live_server.BUCKETS):
        now[0] += live_server.BUCKET_SECONDS / 2
        live.update(0.0)
    key = live_page.part_id("host", "spark-1")
    columns = live.hour([key, "nothing"])[key]
    assert len(columns) == 1 + len(live_page.CHARTS) and {len(column) for column in columns} == {live_server.BUCKETS}
    assert columns[0][-1] - columns[0][0] == pytest.approx(3600, abs=2 * live_server.BUCKET_SECONDS)


def test_the_hour_is_given_for_known_hosts_only(served: Served) -> None:
    reading = served()
    reading.ask("/")
    key = live_page.part_id("host", "spark-1")
    assert list(json.loads(reading.ask(f"/hour.json?hosts={key},x&hosts=y")[1])) == [key]


@pytest.mark.parametrize("first_bytes", [b"", b"GET / HTTP/1.1\r\n"])
def test_readers_that_send_no_whole_head_make_way_for_others(served: Served, first_bytes: bytes) -> None:
    """More connections than the server handles at once, each of which sends a byte now and then."""
    reading = served()
    slow = [socket.create_connection(("127.0.0.1", reading.port), 30) for _number in range(40)]
    try:
        for _round in range(3):
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(first_bytes + b"x")
            assert reading.ask()[0] == 200
        assert len(reading.server.readers) <= live_server.AT_ONCE
    finally:
        for connection in slow:
            connection.close()


def test_a_request_has_to_come_in_time_and_to_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "SECONDS", 0.5)
    reading = served(key=KEY, act=lambda _request: "done")
    heads = (
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20000,
        b"GET / HT",
        f"POST /act HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n".encode()
        + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    )
    for head in heads:
        with socket.create_connection(("127.0.0.1", reading.port), 30) as connection:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                connection.sendall(head)
                assert connection.recv(100) == b""
            assert time.monotonic() - began < 20
    assert reading.ask("/", Authorization=f"Bearer {KEY}")[0] == 200
