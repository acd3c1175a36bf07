# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves the live page, its data and its events over HTTP, to a bounded number of readers.

Without a key it listens on loopback only. A request must name the server by an address or a known name, so that no page of another site
reads it through a name that was rebound (DNS rebinding). No answer allows other origins.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import io
import ipaddress
import json
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .._common.foreign_text import parse_json
from . import live_page, live_status
from .live_alarms import Alarms
from .live_page import part_id
from .live_status import Spark

AT_ONCE = 24
"""Readers; a further one ends the oldest connection."""
MOST_HEAD, MOST_BODY = 16 * 1024, 4096
"""Bytes of the head and of the body of a request."""
SECONDS = 10.0
"""For the whole request, and for each answer or event."""
BUCKET_SECONDS, BUCKETS = 30, 120
"""Of the kept hour."""
IDLE_SECONDS = 60.0
"""Between two looks without readers."""
READ_SECONDS = 30.0
"""A page counts as read for so long after a request."""
PING_SECONDS = 15.0
MOST_HOSTS = 200
"""Of one request for the kept hour."""
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FILES = {
    "/live.js": ("live.js", "text/javascript"),
    "/uplot.js": ("uPlot.iife.min.js", "text/javascript"),
    "/uplot.css": ("uPlot.min.css", "text/css"),
}
"""Path to file and type."""


@dataclass
class Frame:
    """The page at one moment. parts: HTML by id; ages: seconds since 1970 by the id of a host or an alarm; points: the newest figures by the id of a host."""

    number: int = 0
    at: float = 0.0
    parts: Mapping[str, str] = field(default_factory=dict)
    ages: Mapping[str, float | None] = field(default_factory=dict)
    points: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)


class Live:
    """The newest frame, and the last hour of each host. One thread at a time looks."""

    def __init__(
        self,
        look: Callable[[bool], Sequence[Spark]],
        checks: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
        act: Callable[[Mapping[str, str]], str] | None = None,
        seconds: float = 5.0,
        alarms: Callable[[], Alarms | None] = lambda: None,
    ) -> None:
        """Set the sources.

        :param look: returns the Sparks; its argument says whether somebody reads the page
        :param checks: returns the results of the fleet monitor by endpoint
        :param act: carries out an action C({verb, host, service}) and returns a sentence; raises ValueError with the reason. None without actions
        :param seconds: between two looks while somebody reads
        :param alarms: returns the alarms of the last look, None without a Prometheus
        """
        self.source, self.checks, self.act, self.seconds, self.alarms = look, checks, act, seconds, alarms
        self.frame = Frame()
        self.sparks: Sequence[Spark] = ()
        self.hours: dict[str, deque[tuple[float, ...]]] = {}
        self.changed = threading.Condition()
        self.looking = threading.Lock()
        self.read_at = self.looked_at = -3600.0

    def note_reader(self) -> None:
        """Note that somebody reads."""
        self.read_at = time.monotonic()

    def is_read(self) -> bool:
        """Return whether somebody reads, or did a moment ago."""
        return time.monotonic() - self.read_at < READ_SECONDS

    def tick(self) -> None:
        """Look if it is time to."""
        if time.monotonic() - self.looked_at >= (self.seconds if self.is_read() else IDLE_SECONDS):
            self.update(0.0)

    def update(self, oldest: float) -> Frame:
        """Return a frame for readers, or update the kept hour without one. oldest: seconds of the newest look that is new enough."""
        with self.looking:
            age = time.monotonic() - self.looked_at
            is_read = self.is_read()
            if age < oldest and (self.frame.number or not is_read):
                return self.frame
            sparks = self.sparks = self.source(is_read)
            self.looked_at = time.monotonic()
            now = time.time()
            points = {part_id("host", spark.host): self._keep(spark, now) for spark in sparks}
            if is_read:
                frame = self._frame(sparks, now, points)
                with self.changed:
                    self.frame = frame
                    self.changed.notify_all()
            return self.frame

    def _frame(self, sparks: Sequence[Spark], now: float, points: Mapping[str, Sequence[float | None]]) -> Frame:
        """Return the page of Sparks."""
        at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds")
        status, endpoints = live_status.report(sparks, self.checks(), at)
        alarms = self.alarms()
        began = {part_id("alarm", alarm.key): alarm.since for alarm in alarms.rows} if alarms else {}
        return Frame(
            self.frame.number + 1,
            now,
            live_page.parts(status, sparks, endpoints, self.act is not None, alarms),
            {**{part_id("host", spark.host): spark.at for spark in sparks}, **began},
            points,
            {**status.to_dict(), **({"alarms": alarms.to_dict()} if alarms else {})},
        )

    def _keep(self, spark: Spark, now: float) -> list[float | None]:
        """Keep the figures of a Spark, one row for each bucket of time; returns the row."""
        values = live_status.figures(spark.document) if spark.document and not spark.why else ()
        row = (now, *(values or (None,) * len(live_page.CHARTS)))
        hour = self.hours.setdefault(part_id("host", spark.host), deque(maxlen=BUCKETS))
        if hour and int(hour[-1][0] // BUCKET_SECONDS) == int(now // BUCKET_SECONDS):
            hour.pop()
        hour.append(row)  # type: ignore[arg-type]  # as long as the charts, which a tuple type cannot say
        return list(row)

    def wait(self, number: int) -> None:
        """Wait for a frame with another number, at most C(PING_SECONDS)."""
        with self.changed:
            self.changed.wait_for(lambda: self.frame.number != number, PING_SECONDS)

    def hour(self, keys: Sequence[str]) -> dict[str, list[list[Any]]]:
        """Return the last hour of hosts as columns: seconds since 1970, then C(live_page.CHARTS). keys: ids of their parts."""
        return {key: [list(column) for column in zip(*self.hours[key])] for key in keys if key in self.hours}


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    timeout = SECONDS
    server: Server

    def handle(self) -> None:
        """Read one request, whole and in time, and answer it."""
        head, self.behind_head = read_head(self.connection)
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer with the page, a file of it, its data, or its events."""
        path = self.path.partition("?")[0]
        if not self._is_admitted():
            return
        if path in FILES:
            name, kind = FILES[path]
            self._send(HTTPStatus.OK, kind, (self.server.folder / name).read_bytes())
        elif path == "/live.css":
            self._send(HTTPStatus.OK, "text/css", live_page.css().encode())
        elif path in ("/", "/index.html", "/status.json", "/events", "/hour.json"):
            self._answer_live(path)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is one page here: /")

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Carry out an action."""
        live = self.server.live
        if not self._is_admitted():
            return
        if self.path != "/act" or live.act is None:
            self._refuse(HTTPStatus.NOT_FOUND, "Actions are off: set spark_live.actions.")
            return
        # A page of another site can send neither this type nor this origin without being asked first, which no answer allows.
        origin = self.headers.get("Origin")
        is_own = origin is None or urlsplit(origin).netloc == self.headers.get("Host")
        if self.headers.get("Content-Type") != "application/json" or not is_own:
            self._refuse(HTTPStatus.FORBIDDEN, "An action is JSON from this page.")
            return
        try:
            body = parse_json(self._body().decode("utf-8"), "the action")
            request = {key: str(body[key])[:200] for key in ("verb", "host", "service")}
            text = live.act({**request, "reader": self.client_address[0]})
        except (ValueError, LookupError, TypeError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error) or type(error).__name__)
            return
        live.looked_at = -3600.0
        self._send_json({"text": text})

    def _body(self) -> bytes:
        """Return the body of a request. Raises ValueError for a long one, OSError if it is late."""
        length = int(self.headers.get("Content-Length") or -1)
        if not 0 <= length <= MOST_BODY:
            raise ValueError(f"the action has no length up to {MOST_BODY} bytes")
        until, body = time.monotonic() + SECONDS, self.behind_head
        while len(body) < length:
            self.connection.settimeout(max(until - time.monotonic(), 0.001))
            piece = self.connection.recv(length - len(body))
            if not piece:
                raise ConnectionError
            body += piece
        return body[:length]

    def _answer_live(self, path: str) -> None:
        """Answer a path whose answer changes."""
        live = self.server.live
        query = parse_qs(urlsplit(self.path).query)
        if "idle" not in query:  # a monitor that nobody reads
            live.note_reader()
        if path == "/hour.json":
            keys = [key for text in query.get("hosts", []) for key in text.split(",")][:MOST_HOSTS]
            self._send_json(live.hour(keys))
        elif path == "/status.json":
            self._send_json(self.server.data(live, "idle" in query))
        elif path == "/events":
            self._send_events(live, query)
        else:
            frame = live.update(live.seconds)
            html = live_page.document(frame.parts, frame.ages, live.act is not None, frame.number)
            self._send(HTTPStatus.OK, "text/html", html.encode("utf-8", "replace"))

    def _send_events(self, live: Live, query: Mapping[str, list[str]]) -> None:
        """Send what changes until the reader leaves."""
        self._start(HTTPStatus.OK, {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        if self.command == "HEAD":
            return
        # A reader that missed a frame gets all parts.
        frame, shown = live.frame, str(self.headers.get("Last-Event-ID") or query.get("after", [""])[0])
        before = dict(frame.parts) if shown == str(frame.number) else {}
        self._send_frame(frame, before)
        while True:
            live.note_reader()
            live.wait(frame.number)
            if live.frame.number == frame.number:
                self.wfile.write(b": nothing new\n\n")
                continue
            before, frame = dict(frame.parts), live.frame
            self._send_frame(frame, before)

    def _send_frame(self, frame: Frame, before: Mapping[str, str]) -> None:
        """Send the parts that differ from those that the reader has."""
        new = {key: html for key, html in frame.parts.items() if before.get(key) != html}
        message = {
            "at": frame.at,
            "parts": {key: live_page.with_ages(html, frame.ages) for key, html in new.items()},
            "ages": frame.ages,
            "points": frame.points,
            "shape": live_page.shape(frame.parts),
        }
        self.wfile.write(f"id: {frame.number}\ndata: {json.dumps(message)}\n\n".encode())

    # --- admission

    def _is_admitted(self) -> bool:
        """Return whether a request may be answered; else the refusal was sent."""
        if not self._is_named():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server is asked by its address, localhost or its name.")
        elif not self._has_key():
            self._refuse(HTTPStatus.UNAUTHORIZED, "A key is needed.", {"WWW-Authenticate": 'Basic realm="DGX Sparks"'})
        else:
            return True
        return False

    def _is_named(self) -> bool:
        """Return whether the header C(Host) is an address, localhost or a name of this server."""
        try:
            name = urlsplit(f"//{self.headers.get('Host') or ''}").hostname or ""
        except ValueError:
            return False
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name.partition("%")[0]))
        return name == "localhost" or name in self.server.names

    def _has_key(self) -> bool:
        """Return whether a request has the key, as a bearer token or as the password of any account; without a key all have."""
        if not self.server.key:
            return True
        kind, _space, token = str(self.headers.get("Authorization") or "").partition(" ")
        if kind.lower() == "basic":
            try:
                token = base64.b64decode(token, validate=True).decode("utf-8").partition(":")[2]
            except ValueError:
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.server.key.encode())

    # --- answers

    def _start(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        length = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        self._start(status, {**HEADERS, **length, **(more or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_json(self, value: Any) -> None:
        self._send(HTTPStatus.OK, "application/json", json.dumps(value).encode())

    def _refuse(self, status: HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> None:
        self._send(status, "text/plain", f"{text}\n".encode("utf-8", "replace"), more)

    def version_string(self) -> str:
        """Return the header C(Server), without the version of Python."""
        return "dgxspark"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: readers stay private, and paths are text of others."""


def read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request, and the bytes behind it.

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
    end = b"\r\n\r\n" if b"\r\n\r\n" in head else b"\n\n"
    before, _end, body = head.partition(end)
    return before + end, body


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The server. HTTPServer would ask a name server for its own name first."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        live: Live,
        folder: Path,
        key: str = "",
        names: Sequence[str] = (),
        data: Callable[[Live, bool], Any] | None = None,
    ) -> None:
        """Bind the address.

        :param address: to listen on, and port
        :param live: of the page
        :param folder: with the files of the page
        :param key: that requests need; empty for none
        :param names: accepted in the header C(Host)
        :param data: returns the answer of C(/status.json) from the page and whether nobody reads; the status of the fleet by default
        :raises OSError: if the address is taken
        :raises ValueError: without a key on another address than loopback
        """
        if not key and not is_loopback(address[0]):
            raise ValueError(f"{address[0]} is no loopback address, so a key is needed")
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        self.address_family = family
        self.live, self.key, self.names = live, key, {name.lower() for name in names}
        self.data = data or (lambda live, _idle: live.update(live.seconds).status)
        self.folder = folder
        self.readers: dict[socket.socket, None] = {}  # the oldest first
        super().__init__(address, Handler)

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

    def serve(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, name="live page", daemon=True).start()


def is_loopback(address: str) -> bool:
    """Return whether an address is reached from this host alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
