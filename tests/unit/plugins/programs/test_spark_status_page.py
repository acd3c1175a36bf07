# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server of the status page: one file, read-only, with a notice if the file is old."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/fleet_monitor/files/spark_status_page.py"
PAGE = "<!DOCTYPE html><html><body><main><h1>Status</h1></main></body></html>\n"


class Served:
    def __init__(self, tmp: Path, **changes: object) -> None:
        self.page = tmp / "page" / "index.html"
        self.page.parent.mkdir()
        (tmp / "secret").write_text("not for you")
        settings = tmp / "settings.json"
        page_settings = {"listen": "127.0.0.1", "port": 0, "page": str(self.page), "stale_seconds": 600, **changes}
        settings.write_text(json.dumps(page_settings))
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(settings)],
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.port = int(line.rpartition(" ")[2])

    def ask(self, path: str = "/", method: str = "GET") -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): text for name, text in answer.getheaders()}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.process.terminate()
    made.process.wait(60)


def without_refresh(text: str) -> str:
    """Return a served page without the header and the script that reload it."""
    return re.sub(r"<header.*?</header>|<script>.*?</script>", "", text, flags=re.DOTALL)


def test_a_page_asks_for_itself_by_the_one_script_that_may_run(served: Served) -> None:
    meta = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">\n'
    served.page.write_text(
        PAGE.replace("<html>", f"<html><head>{meta}</head>").replace("</main>", "<script>x</script></main>")
    )
    _status, text, headers = served.ask()
    policy = dict(directive.strip().partition(" ")[::2] for directive in headers["content-security-policy"].split(";"))
    *earlier_scripts, script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy["script-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    assert earlier_scripts == ["x"] and "fetch('/'" in script
    assert policy["connect-src"] == "'self'" and policy["default-src"] == "'none'" and "http-equiv" not in text
    # Automatic updates can be paused (WCAG 2.2, 2.2.2).
    assert '<input type="checkbox" id="keep-up" checked>' in text.partition("<main>")[0]


def test_it_serves_the_page_as_it_is(served: Served) -> None:
    status, text, _headers = served.ask()
    assert status == 503 and "made no page yet" in text
    served.page.write_text(PAGE)
    for path in ("/", "/index.html", "/?again"):
        status, text, headers = served.ask(path)
        assert (status, without_refresh(text)) == (200, PAGE)
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
        assert headers["server"] == "dgxspark"
        assert headers["content-length"] == str(len(text.encode()))
    status, text, headers = served.ask(method="HEAD")
    assert (status, text) == (200, "") and int(headers["content-length"]) > len(PAGE)


@pytest.mark.parametrize("path", ["/secret", "/../secret", "/page", "//etc/passwd", "/%2e%2e/secret", "/<script>"])
def test_nothing_else_is_there(served: Served, path: str) -> None:
    served.page.write_text(PAGE)
    status, text, _headers = served.ask(path)
    assert status == 404 and "not for you" not in text and "script" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_done(served: Served, method: str) -> None:
    served.page.write_text(PAGE)
    assert served.ask(method=method)[0] == 501
    assert served.page.read_text() == PAGE


def test_an_old_page_says_so(served: Served) -> None:
    served.page.write_text(PAGE)
    old = time.time() - 7200
    os.utime(served.page, (old, old))
    status, text, headers = served.ask()
    assert status == 200 and '<main><p role="alert">' in text and "This page is 120 minutes old" in text
    assert headers["content-length"] == str(len(text.encode()))


def test_readers_that_say_nothing_do_not_keep_the_page_from_others(served: Served) -> None:
    served.page.write_text(PAGE)
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _number in range(20)]
    try:
        assert served.ask()[0] == 200
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.parametrize("first_bytes", [b"", b"GET / HTTP/1.1\r\n"])
def test_readers_that_send_no_whole_head_make_way_for_others(served: Served, first_bytes: bytes) -> None:
    """More connections than the server handles at once, each of which sends a byte now and then."""
    served.page.write_text(PAGE)
    slow = [socket.create_connection(("127.0.0.1", served.port), 30) for _number in range(40)]
    try:
        for _round in range(3):
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(first_bytes + b"x")
            assert served.ask()[0] == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_head_has_to_come_in_time_and_to_end(served: Served) -> None:
    served.page.write_text(PAGE)
    with socket.create_connection(("127.0.0.1", served.port), 30) as large, contextlib.suppress(OSError):
        large.sendall(b"GET / HTTP/1.1\r\nx: " + b"x" * 20_000)
        assert large.recv(1) == b""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", served.port), 30) as slow, contextlib.suppress(OSError):
        while time.monotonic() - began < 60:
            slow.sendall(b"x")
            time.sleep(0.5)
    assert 9 < time.monotonic() - began < 30
    with socket.create_connection(("127.0.0.1", served.port), 30) as half:
        half.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        half.shutdown(socket.SHUT_WR)
        assert half.recv(9) == b"HTTP/1.0 "


def test_settings_that_cannot_be_used(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    done = subprocess.run([sys.executable, str(SCRIPT), str(settings)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "run site.yml again" in done.stderr and "Traceback" not in done.stderr


def test_a_port_that_somebody_has(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        settings = tmp_path / "settings.json"
        settings.write_text(json.dumps({"listen": "127.0.0.1", "port": port, "page": "/x", "stale_seconds": 1}))
        done = subprocess.run([sys.executable, str(SCRIPT), str(settings)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"127.0.0.1, port {port}" in done.stderr and "ss -ltnp" in done.stderr
