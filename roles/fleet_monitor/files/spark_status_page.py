# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves the status page of the fleet monitor, one file, read-only: the program of spark-status-page.service.

Everything but the page is 404, everything but GET and HEAD 501. The page reloads itself in a browser, by the only script that its
policy allows. A page that is too old says so at its top: a stopped monitor must not look like a healthy fleet. The program
needs Python's standard library alone.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import io
import json
import re
import socket
import socketserver
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

PATHS = ("/", "/index.html")
MOST_BYTES = 16 * 1024 * 1024  # of the page; a hundred hosts take less than 1 MiB
AT_ONCE = 24  # readers; a further one ends the oldest connection
MOST_HEAD = 16 * 1024  # bytes of the head of a request
SECONDS = 10.0  # for the whole head of a request, and for the whole answer
# Replaces the page by its newest version while its tab is visible; open sections and the focus stay.
SCRIPT = """
const wanted = document.getElementById('keep-up'), said = document.getElementById('kept-up');
const names = (each) => (each.querySelector('.name') || each.querySelector('summary')).textContent;
const places = () => [...document.querySelectorAll('main summary, main input, main [tabindex]')];
setInterval(async () => {
  if (!wanted.checked || document.hidden) return;
  try {
    const answer = await fetch('/', {cache: 'no-store'});
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
    const open = new Map([...document.querySelectorAll('main details')].map((each) => [names(each), each.open]));
    page.querySelectorAll('details').forEach((each) => { each.open = open.get(names(each)) ?? each.open; });
    const picked = document.querySelector('main input:checked');
    const place = places().indexOf(document.activeElement);
    document.querySelector('main').replaceWith(document.adoptNode(page));
    if (picked && document.getElementById(picked.id)) document.getElementById(picked.id).checked = true;
    if (place >= 0 && places()[place]) places()[place].focus();
    said.textContent = '';
  } catch (error) {
    said.textContent = 'No answer from the server of this page since ' + new Date().toLocaleTimeString() + ': what is shown is old.';
  }
}, 30000);
"""
SWITCH = (
    '<header style="padding:.6rem 1.25rem 0"><label><input type="checkbox" id="keep-up" checked> Keep this page up to date</label> '
    '<strong class="word fails" id="kept-up" role="status"></strong></header>'
)
ALLOWED = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{ALLOWED}'; connect-src 'self'; frame-ancestors 'none'"
# The policy in the file allows no script; a served page has POLICY instead.
OF_FILE = re.compile(rb'<meta http-equiv="Content-Security-Policy"[^>]*>\n?')
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
START, END = b"<main>", b"</body>"


def page(path: Path, stale_seconds: float, now: float) -> tuple[HTTPStatus, bytes]:
    """Return HTTP status and body of the page.

    :param path: of the file
    :param stale_seconds: age from which the page says that it is old
    :param now: seconds since 1970
    """
    try:
        with path.open("rb") as stream:
            written = path.stat().st_mtime
            body = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return HTTPStatus.SERVICE_UNAVAILABLE, message("The fleet monitor has made no page yet; its next run does.")
    except OSError as error:
        return HTTPStatus.INTERNAL_SERVER_ERROR, message(f"{path} cannot be read: {error.strerror}.")
    if len(body) > MOST_BYTES:
        return HTTPStatus.INTERNAL_SERVER_ERROR, message(f"{path} has more than {MOST_BYTES} bytes.")
    age = now - written
    if age > stale_seconds:
        notice = (
            f'<p role="alert"><strong class="word fails">This page is {age / 60:.0f} minutes old.</strong> The fleet monitor has not '
            "run since, or could not write: journalctl -eu spark-fleet-monitor.</p>"
        )
        body = body.replace(START, START + notice.encode(), 1)
    body = OF_FILE.sub(b"", body, count=1).replace(START, SWITCH.encode() + START, 1)
    before, end, after = body.rpartition(END)
    return HTTPStatus.OK, before + f"<script>{SCRIPT}</script>".encode() + end + after if end else body


def message(text: str) -> bytes:
    """Return a page with one sentence. text: without text of others."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Status of DGX Sparks</title></head>'
        f"<body><main><h1>Status of DGX Sparks</h1><p>{text}</p></main></body></html>\n"
    ).encode()


def read_head(connection: socket.socket) -> bytes:
    """Return the head of a request.

    :raises OSError: after SECONDS or MOST_HEAD bytes, or if the reader disconnects
    """
    until, head = time.monotonic() + SECONDS, b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        piece = connection.recv(MOST_HEAD + 1 - len(head))
        if not piece or len(head) + len(piece) > MOST_HEAD:
            raise ConnectionError
        head += piece
    connection.settimeout(SECONDS)
    return head


class Handler(BaseHTTPRequestHandler):
    """Answers one reader."""

    timeout = SECONDS
    server: Server

    def handle(self) -> None:
        """Read one head, whole and in time, and answer it."""
        head = read_head(self.connection)
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer with the page."""
        self.answer(True)

    def do_HEAD(self) -> None:
        """Answer with the headers of the page."""
        self.answer(False)

    def version_string(self) -> str:
        """Return the header C(Server:), without the version of Python."""
        return "dgxspark"

    def answer(self, with_body: bool) -> None:
        """Answer with the page, or 404 for other paths. with_body: false for HEAD."""
        if self.path.partition("?")[0] in PATHS:
            status, body = page(self.server.page, self.server.stale_seconds, time.time())
        else:
            status, body = HTTPStatus.NOT_FOUND, message("There is one page here: /")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: readers stay private, and paths are text of others."""


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves one file to a bounded number of readers at once. HTTPServer would ask a name server for its own name first."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, listen: str, port: int, path: Path, stale_seconds: float) -> None:
        addresses = socket.getaddrinfo(listen, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = addresses[0][0]
        self.page, self.stale_seconds = path, stale_seconds
        self.readers: dict[socket.socket, None] = {}  # the oldest first
        super().__init__((listen, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; if too many run, end the oldest one."""
        for oldest in list(self.readers)[: len(self.readers) + 1 - AT_ONCE]:
            self.readers.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end of the connection
        self.readers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and forget the connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.readers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about readers that disconnect or send garbage."""


def main() -> int:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="spark-status-page", description="Serves the status page of the fleet monitor."
    )
    parser.add_argument("settings", type=Path, help="JSON with listen, port, page and stale_seconds")
    path = parser.parse_args().settings
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        listen, port, stale = str(settings["listen"]), int(settings["port"]), float(settings["stale_seconds"])
        file = Path(settings["page"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"{path} cannot be used ({error}); run site.yml again", file=sys.stderr)
        return 2
    try:
        server = Server(listen, port, file, stale)
    except OSError as error:
        print(f"{listen}, port {port}: {error}; see who has it: ss -ltnp", file=sys.stderr)
        return 1
    print(f"serves {file} on {listen}, port {server.server_address[1]}", file=sys.stderr, flush=True)
    with server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
