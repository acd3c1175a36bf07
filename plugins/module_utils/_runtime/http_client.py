# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP requests with one deadline over connecting, sending and reading, and a limit on the size of answers."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from .._common.foreign_text import decode_text

MAX_BODY_BYTES = 4 * 1024 * 1024


class ResponseTooLarge(OSError):
    """An answer is longer than its limit."""


class Deadline:
    """A moment in C(timeout) seconds from now; C(remaining) raises TimeoutError after it."""

    def __init__(self, timeout: float) -> None:
        self.timeout = max(timeout, 0.1)
        self.renew()

    def renew(self) -> None:
        """Start the time again."""
        self.until = time.monotonic() + self.timeout

    def remaining(self) -> float:
        """Return the seconds left."""
        seconds_left = self.until - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError("timed out")
        return seconds_left


class _Reader(io.RawIOBase):
    """Reads from a socket until a deadline, which a server that sends a byte now and then does not move."""

    def __init__(self, owner: _Socket) -> None:
        super().__init__()
        self.owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.owner.sock.settimeout(self.owner.deadline.remaining())
        return self.owner.sock.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.owner.release()


class _Socket:
    """A connected socket, as http.client uses it, with a deadline for every step."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.sock, self.deadline, self.users = sock, deadline, 1

    def sendall(self, data: Any) -> None:
        self.sock.settimeout(self.deadline.remaining())
        self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        self.users += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Close it after its last reader; http.client closes it before the body is read."""
        self.release()

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.sock.close()


def connect(host: str, port: int, tls: bool, deadline: Deadline, proxy: str = "") -> http.client.HTTPConnection:
    """Connect to a server; connecting, sending and reading end by the deadline. proxy: gets whole URLs, and a tunnel for TLS. Raises OSError."""
    connection = http.client.HTTPConnection(host, port)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
    sock = _dial(*((via.hostname or "", via.port or 80) if via else (host, port)), deadline)
    try:
        if via and tls:
            raw: Any = _Socket(sock, deadline)
            connection.sock = raw
            with _parsing():
                connection.request("CONNECT", f"{host}:{port}", headers=_proxy_headers(proxy))
                reply = connection.response_class(raw, method="CONNECT")
                reply.begin()
            if reply.status != 200:
                raise ConnectionError(f"the proxy {via.hostname} answered {reply.status} for {host}:{port}")
            connection = http.client.HTTPConnection(host, port)
        if tls:
            sock.settimeout(deadline.remaining())
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        connection.sock = _Socket(sock, deadline)
        connection.default_port = 443 if tls else 80  # decides whether the header Host has the port
    except BaseException:
        sock.close()
        raise
    return connection


def _proxy_headers(proxy: str) -> dict[str, str]:
    """Return the header that identifies the account of a proxy's URL."""
    account = urlsplit(proxy).netloc.rpartition("@")[0]
    return {"Proxy-Authorization": "Basic " + base64.b64encode(unquote(account).encode()).decode()} if account else {}


def _dial(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Open a TCP connection to the first address of a name that takes one."""
    last: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _name, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.remaining())
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise last


@contextlib.contextmanager
def _parsing() -> Iterator[None]:
    """Raise ConnectionError for an answer that http.client cannot parse; it raises ValueError and OverflowError for sizes of chunks."""
    try:
        yield
    except (http.client.HTTPException, ValueError, OverflowError) as error:
        raise ConnectionError(f"the answer is no HTTP ({type(error).__name__})") from error


@contextlib.contextmanager
def exchange(
    connection: http.client.HTTPConnection, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """Send a request, yield its parsed answer, and close the connection. Raises OSError, also for an answer that is no HTTP."""
    try:
        connection.request(method, target, data, dict(headers))
        with _parsing():
            response = connection.getresponse()
        with contextlib.closing(response):
            yield response
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is no HTTP ({type(error).__name__})") from error
    finally:
        connection.close()


def read_body(response: http.client.HTTPResponse, most_bytes: int = 0) -> bytes:
    """Return the body of an answer; raises OSError, and ResponseTooLarge for more than C(most_bytes) or else C(MAX_BODY_BYTES)."""
    most_bytes = most_bytes or MAX_BODY_BYTES
    with _parsing():
        raw = response.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ResponseTooLarge(f"the answer is longer than {most_bytes} bytes")
    return raw


def read_line(response: http.client.HTTPResponse) -> bytes:
    """Return a line of the body with its end, empty at the end of the body; raises ResponseTooLarge for a longer one, and OSError."""
    with _parsing():
        line = response.readline(MAX_BODY_BYTES + 1)
    if len(line) > MAX_BODY_BYTES:
        raise ResponseTooLarge(f"a line of the answer is longer than {MAX_BODY_BYTES} bytes")
    return line


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. headers: by lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


def fetch(
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    data: bytes | None = None,
    timeout: float = 10.0,
    proxies: bool = False,
    most_bytes: int = 0,
) -> Reply:
    """Make one HTTP request; a redirect is an answer and not followed.

    :param url: with http or https
    :param timeout: seconds in all
    :param proxies: go by the proxies of the environment
    :param most_bytes: longest body; 0 for C(MAX_BODY_BYTES)
    :raises OSError: also for an answer that is longer or no HTTP
    :raises ValueError: if C(url) is no URL of a server
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not the URL of a server")
    tls = parts.scheme == "https"
    proxy = urllib.request.getproxies().get(parts.scheme, "") if proxies else ""
    if proxy and urllib.request.proxy_bypass(parts.netloc):
        proxy = ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy_headers: dict[str, str] = {}
    if proxy and not tls:
        target, proxy_headers = f"http://{parts.netloc}{target}", _proxy_headers(proxy)
    connection = connect(parts.hostname, parts.port or (443 if tls else 80), tls, Deadline(timeout), proxy)
    all_headers = {"User-Agent": "dgxspark", **(headers or {}), **proxy_headers}
    with exchange(connection, method, target, data, all_headers) as response:
        reply_headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, reply_headers, read_body(response, most_bytes))


def lines(url: str, headers: Mapping[str, str], data: bytes, timeout: float) -> Iterator[bytes]:
    """POST a body to a server near by and yield the lines of its answer. timeout: seconds for every line. Raises OSError if it refuses."""
    parts, deadline = urlsplit(url), Deadline(timeout)
    connection = connect(parts.hostname or "", parts.port or 80, parts.scheme == "https", deadline)
    with exchange(connection, "POST", parts.path, data, headers) as response:
        if response.status != 200:
            raise OSError(f"{response.status} {decode_text(read_body(response)[:500])}")
        while line := read_line(response):
            yield line
            deadline.renew()
