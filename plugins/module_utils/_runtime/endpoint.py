# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readiness of an OpenAI-compatible server, in stages.

/health answering 200 says little: vLLM keeps answering it with a dead scheduler, or with the other node of a pair
gone. Ready means that a real request came back with tokens, on the path that users take. That first request is also
the one that compiles the kernels, so it is better made here than by a person.

Stages: health -> models -> completion -> adapters -> tools -> reasoning (the last three only when asked for).

What servers answer is foreign data: a C(Problem) and the result of C(wait_ready) hold printable texts alone. This file is copied to
hosts as it is (the units run it).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import math
import re
import socket
import ssl
import time
import unicodedata
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from .._common.foreign_text import decode_text, parse_json, printable, received

STAGES = ("health", "models", "completion", "adapters", "tools", "reasoning")

# Most tokens of an answer to the tool and reasoning checks: models that think spend a thousand and more before they call a tool.
CHECK_TOKENS = 4096
# What the prompt of a check takes of the context, with the tool in it and what a chat template says around it.
CHECK_PROMPT_TOKENS = 1024

APIS = ("chat", "completions", "embeddings", "rerank")
"""By what a model is asked, in the order in which the paths are tried; a model that pools has the last ones alone."""
SAME_THING = ("The cat sleeps on the warm sofa.", "A cat is asleep on a warm couch.")
OTHER_THING = "Quarterly tax returns are due at the end of April."
QUESTION = "Where does the cat sleep?"
POOLING_FIX = "the engine computes wrong, or the model is read as another kind than it is: see runner, convert and hf-overrides of its recipe"

DEFAULT_PROMPT = "Say hello and name three colours."
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TEXT = 400
MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)

# One 500 can be a hiccup of the first compile; the same answer three times in a row will not change by waiting.
MAX_SERVER_ERRORS = 3

# An answer counts as one piece over and over from this many pieces on, when they make up most of it.
REPEATS = 8
REPEATED_SHARE = 0.75
LONGEST_PIECE = 40
# What a model without chat may well write by the line, as a form to fill in or a rule below a heading.
FILLERS = frozenset("_-=.*# ")
GARBAGE_FIX = (
    "no prompt is at fault, the engine computes wrong: weights in FP4 want other kernels (moe-backend: marlin in args, or an image "
    "that was built for sm_121), weights in another format may have been read with the wrong quantization, and an FP8 KV cache may "
    "not suit the model (try kv-cache-dtype: auto)"
)

# Below this many tokens the decode rate says more about the clock than about the engine.
MIN_TOKENS_FOR_RATE = 4

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """Return a tool whose parameters are texts, in OpenAI's form."""
    properties = {key: {"type": "string", "description": about} for key, about in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_PATH = "Path below the repository"
AGENT_TOOLS = [
    _tool("list_files", "List the files of a folder.", path=_PATH),
    _tool("search_code", "Search the repository for a text.", text="Text to find"),
    _tool("read_file", "Read a file.", path=_PATH, first_line="First line", last_line="Last line"),
    _tool("write_file", "Replace a file.", path=_PATH, content="New content"),
    _tool("apply_patch", "Apply a unified diff.", patch="The diff"),
    _tool("delete_file", "Delete a file.", path=_PATH),
    _tool("run_tests", "Run the tests of a file.", path=_PATH),
    _tool("run_command", "Run a shell command.", command="The command"),
    _tool("git_log", "Show the last commits of a file.", path=_PATH),
    _tool("search_web", "Search the web.", query="What to search for"),
    _tool("fetch_page", "Fetch a web page.", url="Address of the page"),
    WEATHER_TOOL,
]
"""Tools of the conversation that an agent has: many, so that their descriptions fill blocks of the prefix cache."""
AGENT_TASK = (
    "A test of parse_port fails. Use one tool in each step: first search_code for parse_port, then read_file on the file that it is in, "
    "then run_tests on its test. Report only after the tests have run."
)
AGENT_RESULTS = {
    "search_code": '[{"path": "src/net/ports.py", "line": 12, "text": "def parse_port(text):"}]',
    "read_file": "def parse_port(text):\n    return int(text)\n\n# tested by tests/net/test_ports.py",
    "run_tests": '{"path": "tests/net/test_ports.py", "passed": 3, "failed": 0}',
}
AGENT_TURNS = 3
AGENT_TOKENS = 2048
"""Most tokens of a turn; one that is cut off ends the conversation and says nothing about the engine."""
AGENT_SECONDS = 240.0
"""The whole conversation; a slow engine has fewer turns."""
AGENT_PROMPT_TOKENS = 4096
"""Context that the tools and results of the conversation take with room for a chat template; shorter contexts are not asked."""

# How models write a tool call before a parser has read it: Hermes and Qwen, Qwen3-Coder, Mistral, Gemma, Kimi, DeepSeek, MiniMax,
# Llama, Harmony (vllm/tool_parsers).
_CALL_TEXT = re.compile(
    r"</?tool_calls?>|<function[=_]|</function>|<parameter=|\[TOOL_CALLS\]|<\|/?tool_?call|<\|tool_calls_section|"
    r"<\uff5ctool\u2581|<\uff5cDSML|<invoke name=|<minimax:tool_call|<\|python_tag\|>|<start_function_call>|<\|channel\|>|"
    r"<arg_key>"
)
_CALL_FENCE = re.compile(r"```(?:json|tool_code|tool_call)?\s*[\[{].*?\"name\"\s*:\s*\"(\w+)\"", re.DOTALL)
MALFORMED_FIX = (
    "the engine did not turn the model's text into a call. If other calls arrive, the tool-call-parser is right and the call itself is "
    "damaged: speculative decoding by MTP with prefix caching does that to hybrid models in some versions of vLLM, so set "
    "enable-prefix-caching: false or leave out speculative-config, or use a newer image. If no call ever arrives, set the "
    "tool-call-parser (and chat template) of this model"
)


class Problem(Exception):
    """Why a stage is not passed yet.

    message: what was seen. fix: what to change. final: waiting longer cannot help. kind: C(refused), C(timeout),
    C(broken), C(http), C(answer), C(length), for decisions inside this file. status: the HTTP status for kind C(http).
    """

    def __init__(self, message: str, fix: str = "", final: bool = False, kind: str = "answer", status: int = 0) -> None:
        self.message, self.fix = printable(message), printable(fix)
        super().__init__(self.message)
        self.final = final
        self.kind = kind
        self.status = status


def read_api_key(path: str | None) -> str:
    """Return the key in the file at C(path), or an empty text without a path. Raises Problem when it has none."""
    if not path:
        return ""
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Problem(
            f"the API key file {path} cannot be read: {reason}", "create it, or correct its path", True
        ) from error
    if not key:
        raise Problem(
            f"the API key file {path} is empty", "write the key that the server was started with into it", True
        )
    if not key.isprintable() or not key.isascii() or " " in key:
        raise Problem(
            f"the API key file {path} holds more than one key or a sign that no HTTP header can carry",
            "leave exactly one key in it, on one line",
            True,
        )
    return key


class ResponseTooLarge(OSError):
    """An answer is longer than anybody wants."""


class Deadline:
    """The moment by which something is over: C(remaining) seconds from now on; at the end C(remaining) raises TimeoutError."""

    def __init__(self, timeout: float) -> None:
        self.timeout = max(timeout, 0.1)
        self.renew()

    def renew(self) -> None:
        """Give the whole time once more."""
        self.until = time.monotonic() + self.timeout

    def remaining(self) -> float:
        """Seconds until then."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class _Reader(io.RawIOBase):
    """What comes from a socket, until a deadline: a server that sends a byte now and then does not move it."""

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
    """A connected socket, as http.client uses it, of which every step ends by a deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.sock, self.deadline, self.users = sock, deadline, 1

    def sendall(self, data: Any) -> None:
        self.sock.settimeout(self.deadline.remaining())
        self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        self.users += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Close it once nobody reads from it any more; http.client lets go of it before the body is read."""
        self.release()

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.sock.close()


def connect(host: str, port: int, tls: bool, deadline: Deadline, proxy: str = "") -> http.client.HTTPConnection:
    """Connect to a server; connecting, sending and reading of the connection all end by the deadline.

    :param host: name or address
    :param port: TCP port
    :param tls: whether to speak TLS, with the certificate checked
    :param deadline: of the connection and all that is done with it
    :param proxy: URL of a proxy; what is not TLS is asked of it by whole URLs
    :returns: the connection, open
    :raises OSError: where it cannot be made
    """
    connection = http.client.HTTPConnection(host, port)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
    sock = _dial(*((via.hostname or "", via.port or 80) if via else (host, port)), deadline)
    try:
        if via and tls:
            raw: Any = _Socket(sock, deadline)
            connection.sock = raw
            connection.request("CONNECT", f"{host}:{port}", headers=_proxy_headers(proxy))
            reply = connection.response_class(raw, method="CONNECT")
            with _parsing():
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
    """What a proxy wants to see of who asks."""
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


def begin(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Read status and headers of an answer. Raises OSError."""
    with _parsing():
        return connection.getresponse()


def read_body(response: http.client.HTTPResponse, most_bytes: int = 0) -> bytes:
    """Read what follows the headers; raises OSError, and ResponseTooLarge for more than C(most_bytes) or else C(MAX_BODY_BYTES)."""
    most_bytes = most_bytes or MAX_BODY_BYTES
    with _parsing():
        raw = response.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ResponseTooLarge(f"the answer is longer than {most_bytes} bytes")
    return raw


def read_line(response: http.client.HTTPResponse) -> bytes:
    """Read a line of the body with its end, empty at the end of the body; raises ResponseTooLarge for a longer one, and OSError."""
    with _parsing():
        line = response.readline(MAX_BODY_BYTES + 1)
    if len(line) > MAX_BODY_BYTES:
        raise ResponseTooLarge(f"a line of the answer is longer than {MAX_BODY_BYTES} bytes")
    return line


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. headers: by their names in small letters."""

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
    :param method: of HTTP
    :param headers: by name
    :param data: the body
    :param timeout: seconds in all
    :param proxies: go by the proxies of the environment
    :param most_bytes: longest body; C(MAX_BODY_BYTES) where it is 0
    :returns: status, headers and body
    :raises OSError: also for an answer that is longer or no HTTP
    :raises ValueError: for what is no URL
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not the URL of a server")
    tls = parts.scheme == "https"
    proxy = urllib.request.getproxies().get(parts.scheme, "") if proxies else ""
    if proxy and urllib.request.proxy_bypass(parts.netloc):
        proxy = ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    further: dict[str, str] = {}
    if proxy and not tls:
        target, further = f"http://{parts.netloc}{target}", _proxy_headers(proxy)
    try:
        connection = connect(parts.hostname, parts.port or (443 if tls else 80), tls, Deadline(timeout), proxy)
        try:
            connection.request(method, target, data, {"User-Agent": "dgxspark", **(headers or {}), **further})
            response = begin(connection)
            try:
                found = {name.lower(): value for name, value in response.getheaders()}
                return Reply(response.status, found, read_body(response, most_bytes))
            finally:
                response.close()
        finally:
            connection.close()
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is no HTTP ({type(error).__name__})") from error


def download(url: str, most_bytes: int, timeout: float) -> bytes:
    """Return the body of a URL, by the proxies of the environment; redirects are followed, but never from https to http.

    :param url: with http or https
    :param most_bytes: longest body
    :param timeout: seconds in all
    :returns: the body
    :raises OSError: for any status but 200, and as C(fetch) does
    :raises ValueError: for what is no URL
    """
    deadline = Deadline(timeout)
    for _redirect in range(MOST_REDIRECTS + 1):
        reply = fetch(url, timeout=deadline.remaining(), proxies=True, most_bytes=most_bytes)
        if reply.status == 200:
            return reply.body
        if reply.status not in REDIRECTS or "location" not in reply.headers:
            raise OSError(f"{urlsplit(url).netloc} answers HTTP {reply.status}")
        target = urljoin(url, reply.headers["location"])
        if url.startswith("https:") and not target.startswith("https:"):
            raise OSError(f"{urlsplit(url).netloc} redirects to a URL without TLS")
        url = target
    raise OSError(f"{urlsplit(url).netloc} redirects more than {MOST_REDIRECTS} times")


def lines(url: str, headers: Mapping[str, str], data: bytes, timeout: float) -> Iterator[bytes]:
    """POST something to a server near by and yield the lines of its answer.

    :param url: of the server, with the path
    :param headers: by name
    :param data: the body
    :param timeout: seconds for every wait for the next whole line
    :returns: lines, with their ends
    :raises OSError: with what the server said where it refuses
    """
    parts, deadline = urlsplit(url), Deadline(timeout)
    try:
        connection = connect(parts.hostname or "", parts.port or 80, parts.scheme == "https", deadline)
        try:
            connection.request("POST", parts.path, data, dict(headers))
            response = begin(connection)
            try:
                if response.status != 200:
                    raise OSError(f"{response.status} {decode_text(read_body(response)[:500])}")
                while line := read_line(response):
                    yield line
                    deadline.renew()
            finally:
                response.close()
        finally:
            connection.close()
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is no HTTP ({type(error).__name__})") from error


class Client:
    """HTTP client for one server; never uses a proxy, since it talks to engines of its own host or rack."""

    def __init__(self, url: str, api_key: str = "", api_key_file: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Problem(f"{url!r} is not the URL of a server", "give it like http://127.0.0.1:8000", True)
        self.url = url
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.tls = parts.scheme == "https"
        path = parts.path.rstrip("/")
        self.prefix = path[: -len("/v1")] if path.endswith("/v1") else path
        self.api_key = api_key
        self.api_key_file = api_key_file

    def redact(self, text: str) -> str:
        """Take the API key out of a text that a server or a log may have echoed."""
        return text.replace(self.api_key, "********") if self.api_key else text

    def _open(
        self, method: str, path: str, body: dict[str, Any] | None, deadline: Deadline
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = connect(self.host, self.port, self.tls, deadline)
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": "dgxspark"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection.request(method, self.prefix + path, data, headers)
            return connection, begin(connection)
        except BaseException:
            connection.close()
            raise

    def _explain(self, error: Exception, path: str, timeout: float) -> Problem:
        where = f"{self.host}:{self.port}"
        if isinstance(error, ConnectionRefusedError):
            return Problem(
                f"connection refused: nothing listens on {where}",
                "see the unit's log; check that the port is the one that the engine was given",
                kind="refused",
            )
        if isinstance(error, socket.gaierror):
            return Problem(f"the name {self.host} does not resolve", "correct the host name of the URL", kind="refused")
        if isinstance(error, (socket.timeout, TimeoutError)):
            return Problem(
                f"no answer from {where}{path} within {seconds(timeout)}",
                kind="timeout",
                fix="see the unit's log: the engine is still loading, or it hangs",
            )
        if isinstance(error, ssl.SSLError):
            return Problem(
                f"TLS with {where} failed: {error.reason or error}",
                "use http:// for an engine without TLS, or install its certificate authority",
                True,
                "broken",
            )
        if isinstance(error, ResponseTooLarge):
            return Problem(
                f"the answer of {where}{path} is longer than {MAX_BODY_BYTES} bytes",
                "check that the port belongs to an OpenAI-compatible server",
                True,
                "broken",
            )
        if isinstance(error, (ConnectionError, http.client.HTTPException)):
            return Problem(
                f"{where} closed the connection during {path} ({type(error).__name__})",
                "see the unit's log: the server died or is not an HTTP server",
                kind="broken",
            )
        return Problem(f"{where} cannot be reached: {error}", "check the address and the route to it", kind="refused")

    def status_problem(self, status: int, raw: bytes, path: str) -> Problem:
        """Say what an HTTP status means and what to do about it.

        :param status: other than 200
        :param raw: the body
        :param path: that was asked, for the message
        :returns: the problem, without the key
        """
        text = self.redact(error_text(raw))
        said = f"HTTP {status} at {path}" + (f": {text}" if text else "")
        if status in (401, 403):
            if self.api_key:
                return Problem(
                    f"{said}. The server does not accept the API key in {self.api_key_file or 'use'}",
                    "restart the service after changing its key, or point api_key_file to the key it was started with",
                    True,
                    "http",
                    status,
                )
            return Problem(
                f"{said}. The server wants an API key and none was given", "set api_key_file", True, "http", status
            )
        if status >= 500:
            return Problem(said, "see the unit's log for the engine's own error", kind="http", status=status)
        return Problem(said, "see the message of the server", True, "http", status)

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 10.0
    ) -> tuple[int, bytes]:
        """Make one request.

        :param method: of HTTP
        :param path: from the root of the server
        :param body: sent as JSON
        :param timeout: seconds for all of it
        :returns: status and body
        :raises Problem: when there is no HTTP answer by then, or one of more than C(MAX_BODY_BYTES)
        """
        try:
            connection, response = self._open(method, path, body, Deadline(timeout))
            try:
                return response.status, read_body(response)
            finally:
                response.close()
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(error, path, timeout) from error

    def metrics(self, timeout: float) -> tuple[int, str]:
        """Ask for the figures of vLLM; return status and text. Raises Problem as C(call) does. timeout: seconds."""
        status, raw = self.call("GET", "/metrics", timeout=timeout)
        return status, raw.decode("utf-8", "replace")

    def request_json(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Make one request whose answer is a JSON object.

        :param method: of HTTP
        :param path: from the root of the server
        :param body: sent as JSON
        :param timeout: seconds for all of it
        :returns: the object
        :raises Problem: for every other answer, and for none
        """
        status, raw = self.call(method, path, body, timeout)
        if status != 200:
            raise self.status_problem(status, raw, path)
        try:
            answer = parse_json(raw, path, finite=False, exact=True)  # texts and vectors are judged
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Problem(
                f"the answer of {path} is not JSON", "check that the port belongs to an OpenAI-compatible server", True
            )
        return answer

    def events(self, path: str, body: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
        """Stream a completion.

        :param path: from the root of the server
        :param body: sent as JSON
        :param timeout: seconds for every wait for the next whole event
        :returns: the events, as they come
        :raises Problem: when the stream breaks off before its [DONE] or carries an error of the engine
        """
        deadline = Deadline(timeout)
        try:
            connection, response = self._open("POST", path, body, deadline)
            try:
                if response.status != 200:
                    raise self.status_problem(response.status, read_body(response), path)
                while True:
                    line = read_line(response)
                    if not line:
                        raise Problem(
                            f"the stream of {path} was cut before its end",
                            "see the unit's log: the engine died during the request",
                            kind="broken",
                        )
                    field, _sep, value = line.decode("utf-8", "replace").strip().partition(":")
                    if field != "data":
                        continue
                    if value.strip() == "[DONE]":
                        return
                    try:
                        event = parse_json(value, path, finite=False, exact=True)
                    except ValueError:
                        event = None
                    if not isinstance(event, dict):
                        raise Problem(f"the stream of {path} carries something that is not JSON", kind="broken")
                    if "error" in event:
                        raise Problem(
                            f"the engine failed during {path}: {self.redact(error_text(value.encode()))}",
                            "see the unit's log for the engine's own error",
                            kind="http",
                            status=500,
                        )
                    yield event
                    deadline.renew()
            finally:
                response.close()
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(error, path, timeout) from error


def seconds(value: float) -> str:
    """Write a duration as a person would."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def error_text(raw: bytes) -> str:
    """Return the message inside an error body of vLLM (either of its two shapes) or FastAPI, else the text itself."""
    text = decode_text(raw).strip()
    try:
        body = parse_json(text, "the body")
    except ValueError:
        return text[:MAX_TEXT]
    message: Any = body
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message", inner.get("detail", inner)) if isinstance(inner, dict) else inner
    return (message if isinstance(message, str) else json.dumps(message))[:MAX_TEXT]


def path_unsupported(problem: Problem) -> bool:
    """Tell whether a refusal means that model or server has no such path, so that another of C(APIS) is the real one.

    A model without chat has completions; one that pools has neither, and vectors or scores in their place.
    """
    if problem.kind != "http" or problem.status not in (400, 404, 405, 501):
        return False
    text = problem.message.lower()
    signs = (
        "chat template",
        "chat_template",
        "does not support chat",
        "does not support completions",
        "does not support embeddings",
        "does not support rerank",
        "does not support score",
        ": not found",
        "method not allowed",
        "not implemented",
    )
    return "does not exist" not in text and any(sign in text for sign in signs)


def first_way(ways: Mapping[str, Callable[[], dict[str, Any]]], known: str | None) -> tuple[dict[str, Any], str]:
    """Ask a server by the first of the ways that it has.

    :param ways: name of one of C(APIS) to what asks by it, in order
    :param known: the one that it was seen to have, or None
    :returns: the answer, and the way
    :raises Problem: of that way; where it has none, what it said of completions
    """
    refusals: dict[str, Problem] = {}
    for name, ask in ways.items():
        if known not in (None, name):
            continue
        try:
            return ask(), name
        except Problem as problem:
            if known or not path_unsupported(problem):
                raise
            refusals[name] = problem
    raise refusals.get("completions", next(iter(refusals.values())))


def entries_of(answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the mappings in a list of an answer, by their C(index) where they have one."""
    listed = answer.get(key)
    found = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return sorted(found, key=lambda entry: entry["index"] if isinstance(entry.get("index"), int) else 0)


def is_figure(value: Any) -> bool:
    """Tell whether a value is a number with an end."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def wrong_vectors(vectors: list[Any], wanted: int) -> str:
    """Say what is wrong with vectors as such, empty for nothing."""
    if len(vectors) != wanted:
        return f"{len(vectors)} vectors for {wanted} texts"
    if not all(isinstance(vector, list) and vector and all(map(is_figure, vector)) for vector in vectors):
        return "they are no lists of numbers with an end"
    if len({len(vector) for vector in vectors}) > 1:
        return "they differ in length"
    return "" if all(any(vector) for vector in vectors) else "one is nothing but zeros"


def cosine(one: list[float], other: list[float]) -> float:
    """Return how alike two vectors point, 1 for the same direction."""
    # Scaled first: squares of very large or small numbers are infinite or zero.
    one, other = ([number / max(map(abs, vector)) for number in vector] for vector in (one, other))
    return sum(left * right for left, right in zip(one, other)) / (math.hypot(*one) * math.hypot(*other))


def pooled(elapsed: float, reply: str) -> dict[str, Any]:
    """Return the figures of an answer without tokens. elapsed: seconds."""
    return {
        "seconds": round(elapsed, 3),
        "ttft_seconds": None,
        "decode_tokens_per_second": None,
        "completion_tokens": None,
        "reply": reply,
        "text": "",
    }


def blank_figures(model: str | None) -> dict[str, Any]:
    """What a wait finds out about the server, before it found anything."""
    return {
        "model": model,
        "max_model_len": None,
        "server_version": None,
        "api": None,
        "warmup_seconds": None,
        "ttft_seconds": None,
        "decode_tokens_per_second": None,
        "completion_tokens": None,
        "reply": None,
        "tool_turns": None,
    }


@dataclass(frozen=True)
class Requests:
    """What is asked of a server until it counts as ready.

    timeout: seconds of each small request. completion_timeout: seconds of each wait on tokens; the first ones come only after the
    kernels are compiled, so it is long, and an attempt that times out is made again until the deadline. tools, reasoning: whether a
    tool call and the reasoning split are checked. check_tokens, check_temperature: most tokens and sampling temperature of their
    answers. agent: whether a conversation with many tools follows the first call.
    adapters: names of LoRA adapters that have to be served and to answer. measure: make a second, warm request for the
    figures, and judge whether its text is garbage.
    """

    timeout: float = 10.0
    completion_timeout: float = 300.0
    prompt: str = DEFAULT_PROMPT
    max_tokens: int = 64
    tools: bool = False
    agent: bool = True
    reasoning: bool = False
    check_tokens: int = CHECK_TOKENS
    check_temperature: float = 0.0
    adapters: tuple[str, ...] = ()
    measure: bool = True

    @property
    def stages(self) -> list[str]:
        """The stages to pass, in order, each a method of C(Readiness)."""
        asked = {"adapters": self.adapters, "tools": self.tools, "reasoning": self.reasoning}
        optional = [stage for stage, wanted in asked.items() if wanted]
        return ["health", "models", "completion", *optional]


class Readiness:
    """One wait for one server; C(wait_ready) is the way in."""

    def __init__(
        self,
        client: Client,
        model: str | None,
        requests: Requests,
        remaining: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.client = client
        self.model = model
        self.requests = requests
        self.remaining = remaining
        self.clock = clock
        self.attempts = 0
        self.tokens_asked_at: float | None = None
        self.found = blank_figures(model)

    def _short(self) -> float:
        return min(self.requests.timeout, max(self.remaining(), 0.1))

    def _long(self) -> float:
        return min(self.requests.completion_timeout, max(self.remaining(), 0.1))

    def health(self) -> None:
        """Pass when the server answers; a server without /health is judged by the next stages."""
        status, raw = self.client.call("GET", "/health", timeout=self._short())
        if status not in (200, 204, 404):
            raise self.client.status_problem(status, raw, "/health")

    def models(self) -> None:
        """Pass when the wanted name is served; note the context length and the version."""
        answer = self.client.request_json("GET", "/v1/models", timeout=self._short())
        listed = answer.get("data")
        served = {
            str(entry["id"]): entry
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, dict) and "id" in entry
        }
        if not served:
            raise Problem("the server lists no model yet", "see the unit's log")
        if self.model is None:
            self.model = next(iter(served))
        if self.model not in served:
            names = ", ".join(sorted(served))
            raise Problem(
                f"the server serves {names}, not {self.model}",
                f"another server may hold port {self.client.port}, or --served-model-name is not the name asked for",
                True,
            )
        length = served[self.model].get("max_model_len")
        self.found["model"] = self.model
        self.found["max_model_len"] = length if isinstance(length, int) else None
        try:
            version = self.client.request_json("GET", "/version", timeout=self._short()).get("version")
            self.found["server_version"] = version if isinstance(version, str) else None
        except Problem:
            pass  # not every OpenAI-compatible server has /version

    def completion(self) -> None:
        """Pass when a streamed request came back whole, with tokens. The first one warms up, the second is measured."""
        self.attempts += 1
        if self.tokens_asked_at is None:
            self.tokens_asked_at = self.clock()
        warmup = self._completion_once()
        self.found["warmup_seconds"] = warmup["seconds"]
        figures = self._completion_once() if self.requests.measure else warmup
        # A unit does not judge (it measures nothing): a start would not mend what the image computes, and takes a quarter of an hour.
        judged = self.requests.measure and self.found["api"] in (
            "chat",
            "completions",
        )  # vectors and scores judge themselves
        wrong = garbage(figures["text"], self.found["api"] == "chat") if judged else ""
        if wrong:
            raise Problem(
                f"the answer is garbage, {wrong}: {figures['reply'][:60]!r}", GARBAGE_FIX, kind="http", status=500
            )
        for name in ("ttft_seconds", "decode_tokens_per_second", "completion_tokens", "reply"):
            self.found[name] = figures[name]

    def _completion_once(self) -> dict[str, Any]:
        ways = {
            "chat": self._stream_chat,
            "completions": self._stream_text,
            "embeddings": self._embed,
            "rerank": self._rerank,
        }
        try:
            figures, self.found["api"] = first_way(ways, self.found["api"])
            return figures
        except Problem as problem:
            if problem.kind == "timeout":
                raise self._name_the_hang(problem) from problem
            raise

    def _embed(self) -> dict[str, Any]:
        """Ask for vectors of three texts; the two that say the same have to be the nearer ones."""
        start = self.clock()
        texts = [*SAME_THING, OTHER_THING]
        body = {"model": self.model, "input": texts}
        answer = self.client.request_json("POST", "/v1/embeddings", body, self._long())
        vectors: list[Any] = [entry.get("embedding") for entry in entries_of(answer, "data")]
        wrong = wrong_vectors(vectors, len(texts))
        near = far = 0.0
        if not wrong:
            near, far = cosine(vectors[0], vectors[1]), cosine(vectors[0], vectors[2])
        if wrong or near <= far:
            wrong = wrong or f"two texts of the same meaning are no nearer ({near:.3f}) than one of another ({far:.3f})"
            raise Problem(f"the embeddings are wrong: {wrong}", POOLING_FIX, kind="http", status=500)
        reply = f"vectors of {len(vectors[0])} numbers, {near:.3f} alike for the same meaning, {far:.3f} for another"
        return pooled(self.clock() - start, reply)

    def _rerank(self) -> dict[str, Any]:
        """Ask which of two documents answers a question; the one that does has to come first."""
        start = self.clock()
        body = {"model": self.model, "query": QUESTION, "documents": [OTHER_THING, SAME_THING[1]]}
        answer = self.client.request_json("POST", "/v1/rerank", body, self._long())
        scores: dict[int, Any] = {
            entry["index"]: entry["relevance_score"]
            for entry in entries_of(answer, "results")
            if isinstance(entry.get("index"), int) and is_figure(entry.get("relevance_score"))
        }
        if set(scores) != {0, 1}:
            wrong = "not one score for each document"
        else:
            wrong = (
                ""
                if scores[1] > scores[0]
                else f"the document that answers has {scores[1]:.3f}, another {scores[0]:.3f}"
            )
        if wrong:
            raise Problem(f"the scores are wrong: {wrong}", POOLING_FIX, kind="http", status=500)
        return pooled(
            self.clock() - start, f"{scores[1]:.3f} for the document that answers, {scores[0]:.3f} for another"
        )

    def _name_the_hang(self, problem: Problem) -> Problem:
        try:
            status, _body = self.client.call("GET", "/health", timeout=min(self.requests.timeout, 10.0))
        except Problem as health:
            return Problem(
                f"{problem.message}, and /health fails now too: {health.message}", health.fix, kind="timeout"
            )
        if status != 200:
            return Problem(f"{problem.message}, and /health answers HTTP {status} now", problem.fix, kind="timeout")
        waited = self.clock() - (self.tokens_asked_at or self.clock())
        if waited < self.requests.completion_timeout:
            return Problem(
                f"the time ran out {seconds(waited)} into the first completion, with /health still 200",
                "give more time: the first completion may be compiling kernels",
                kind="timeout",
            )
        return Problem(
            f"the engine is wedged: /health answers 200, but no completion came back in {seconds(waited)} "
            f"(requests made: {self.attempts}; the last: {problem.message})",
            "restart the unit; if it comes back wedged, look in its log for a compile that never ends or a lost peer",
            kind="timeout",
        )

    def _stream_chat(self) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.requests.prompt}],
            "max_tokens": self.requests.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._measured("/v1/chat/completions", body, _chat_delta)

    def _stream_text(self) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": self.requests.prompt,
            "max_tokens": self.requests.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._measured("/v1/completions", body, _text_delta)

    def _measured(self, path: str, body: dict[str, Any], delta: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
        start = self.clock()
        first = last = None
        chunks = 0
        tokens: int | None = None
        text = ""
        try:
            for event in self.client.events(path, body, self._long()):
                piece = delta(event)
                if piece:
                    last = self.clock()
                    first = first if first is not None else last
                    chunks += 1
                    text += piece
                usage = event.get("usage")
                if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
                    tokens = usage["completion_tokens"]
                if self.remaining() <= 0:
                    raise Problem(
                        f"the answer was still going on at the deadline ({chunks} pieces so far)",
                        "give more time, or see why the engine is this slow",
                        kind="answer",
                    )
        except Problem as problem:
            if problem.kind in ("timeout", "broken") and chunks:
                problem.message = f"{problem.message}, after {chunks} pieces of the answer"
            raise
        if first is None or last is None:
            # Where the token 0 is a special one, what an engine computes wrong is taken out of the text.
            unseen = tokens is not None and tokens >= REPEATS
            raise Problem(
                f"{path} ended without a text, after {tokens} tokens that none is made of"
                if unseen
                else f"{path} ended without a single token",
                GARBAGE_FIX if unseen else "see the unit's log; check the chat template of the model",
                kind="http",
                status=500,
            )
        count = tokens if tokens is not None else chunks
        rate = None
        if count >= MIN_TOKENS_FOR_RATE and last > first:
            rate = round((count - 1) / (last - first), 2)
        return {
            "seconds": round(self.clock() - start, 3),
            "ttft_seconds": round(first - start, 3),
            "decode_tokens_per_second": rate,
            "completion_tokens": count,
            "reply": self.client.redact(text)[:MAX_TEXT],
            "text": text,
        }

    def _chat(self, body: dict[str, Any], most: int = 0, time_limit: float = math.inf) -> dict[str, Any]:
        """Ask for a chat answer and return its first choice. most: tokens, 0 for those of the checks. time_limit: seconds."""
        most = most or self.requests.check_tokens
        if self.found["max_model_len"]:
            # vLLM refuses a request whose prompt and answer could be longer than the context.
            most = min(most, max(self.found["max_model_len"] - CHECK_PROMPT_TOKENS, self.found["max_model_len"] // 2))
        request = {"model": self.model, "temperature": self.requests.check_temperature, "max_tokens": most, **body}
        # An engine that decodes 10 tokens a second or more gets to the end of it.
        timeout = min(max(self.requests.completion_timeout, most / 10), max(self.remaining(), 0.1), time_limit)
        answer = self.client.request_json("POST", "/v1/chat/completions", request, timeout=timeout)
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise Problem(
                "the chat answer has no choices[0].message", "check that the server is OpenAI-compatible", True
            )
        return choice

    def _ended_by_length(self, missing: str) -> Problem:
        """The verdict on an answer that was cut off: it tells nothing of parsers and templates."""
        length = self.found["max_model_len"]
        short = length and length - CHECK_PROMPT_TOKENS < self.requests.check_tokens
        return Problem(
            f"the answer was ended by length before {missing}: {self.requests.check_tokens} tokens at most"
            + (f", less in a context of {length}" if short else ""),
            "raise max-model-len, so that the model can finish its thought"
            if short
            else "raise checks.max_tokens of the recipe or the service; a model that repeats itself needs another checks.temperature",
            True,
            kind="length",
        )

    def adapters(self) -> None:
        """Pass when every LoRA adapter is served under its name and makes a token."""
        answer = self.client.request_json("GET", "/v1/models", timeout=self._short())
        served = {str(entry.get("id")) for entry in entries_of(answer, "data")}
        missing = sorted(set(self.requests.adapters) - served)
        if missing:
            raise Problem(
                f"the server does not list {', '.join(missing)}: it serves {', '.join(sorted(served))}",
                "see the unit's log for the adapter that it could not load; its rank may be above lora.max_rank",
                True,
            )
        for name in self.requests.adapters:
            try:
                one_token(self.client, name, self._long())
            except Problem as problem:
                problem.message = f"adapter {name}: {problem.message}"
                raise

    def tools(self) -> None:
        """Pass when an offered tool is called in OpenAI's form, not as text."""
        try:
            choice = self._chat(
                {
                    "messages": [{"role": "user", "content": "What is the weather in Paris now? Use the tool."}],
                    "tools": [WEATHER_TOOL],
                    "tool_choice": "auto",
                }
            )
        except Problem as problem:
            if problem.kind == "http" and "tool" in problem.message.lower():
                problem.fix = "set enable-auto-tool-choice and the tool-call-parser of this model"
            raise
        if choice.get("finish_reason") == "length":
            raise self._ended_by_length("a tool was called")
        calls = _calls_of(choice, ("get_weather",))
        if not calls:
            content = str(choice["message"].get("content") or "")
            seen = f"as plain text: {content[:120]!r}" if content else "and said nothing"
            raise Problem(f"the model did not call the offered tool, it answered {seen}", PARSER_FIX, True)
        self.found["tool_turns"] = self._agent_turns() if self.requests.agent else None

    def _agent_turns(self) -> int | None:
        """Lead a conversation of several turns with many tools, as agents do.

        :returns: the turns that ended in a call; None where the context is too short for it
        :raises Problem: for a call that arrives damaged; a model that stops calling, or is too slow, ends the conversation
        """
        length = self.found["max_model_len"]
        if length and length < AGENT_PROMPT_TOKENS + AGENT_TOKENS:
            return None
        messages: list[dict[str, Any]] = [{"role": "user", "content": AGENT_TASK}]
        names = [tool["function"]["name"] for tool in AGENT_TOOLS]
        end = self.clock() + AGENT_SECONDS
        for turn in range(AGENT_TURNS):
            left = end - self.clock()
            if left <= 0:
                return turn
            body = {"messages": messages, "tools": AGENT_TOOLS, "tool_choice": "auto"}
            try:
                choice = self._chat(body, min(AGENT_TOKENS, self.requests.check_tokens), left)
                calls = _calls_of(choice, names)
            except Problem as problem:
                if problem.kind == "timeout":
                    return turn
                problem.message = f"turn {turn + 1} of a conversation with {len(names)} tools: {problem.message}"
                raise
            if not calls:
                return turn
            content = choice["message"].get("content") or ""
            answers = [
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": AGENT_RESULTS.get(call["function"]["name"], "done"),
                }
                for call in calls
            ]
            messages += [{"role": "assistant", "content": content, "tool_calls": calls}, *answers]
        return AGENT_TURNS

    def reasoning(self) -> None:
        """Pass when the thinking comes in a field of its own and not inside the content."""
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 17 + 25? Think first."}]}
        try:
            # The switches that templates know: Qwen and Gemma use the first, DeepSeek the second.
            choice = self._chat({**body, "chat_template_kwargs": {"enable_thinking": True, "thinking": True}})
        except Problem as problem:
            if problem.kind != "http" or problem.status != 400:
                raise
            choice = self._chat(body)  # Mistral's tokenizers refuse template arguments
        message = choice["message"]
        # vLLM renamed the field; old versions say reasoning_content, new ones reasoning.
        thought = message.get("reasoning") or message.get("reasoning_content")
        content = str(message.get("content") or "")
        fix = "set the reasoning-parser of this model"
        if "<think>" in content or "</think>" in content:
            raise Problem("the thinking of the model is inside the content (<think> tags)", fix, True)
        if not thought:
            if choice.get("finish_reason") == "length" and not content:
                raise self._ended_by_length("it had any text")
            raise Problem(
                "the answer has no reasoning: neither 'reasoning' nor 'reasoning_content' is set",
                fix + ", or leave this check out for a model that does not think",
                True,
            )


PARSER_FIX = "set the tool-call-parser (and chat template) that this model was trained with"


def malformed_call(content: str) -> str:
    """Return the part of an answer's content that is a tool call written as text, empty where there is none."""
    match = _CALL_TEXT.search(content) or _CALL_FENCE.search(content)
    return content[match.start() :][:120] if match else ""


def _calls_of(choice: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the tool calls of an answer in OpenAI's form, none where it has none.

    :param choice: of the answer
    :param names: of the tools that were offered
    :returns: C([{id, type, function: {name, arguments}}])
    :raises Problem: for a call that is damaged, also for one inside the content
    """
    message = choice["message"]
    inside = malformed_call(str(message.get("content") or ""))
    if inside:
        raise Problem(f"a malformed call inside content: {inside!r}", MALFORMED_FIX, True)
    calls = []
    for number, call in enumerate(entries_of(message, "tool_calls")):
        function = call.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        raw = function.get("arguments") if isinstance(function, dict) else None
        if name not in names:
            offered = "'get_weather'" if len(names) == 1 else "an offered one"
            raise Problem(f"the tool call names {name!r} instead of {offered}", PARSER_FIX, True)
        try:
            arguments = parse_json(raw, "arguments") if isinstance(raw, str) else raw
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise Problem(f"the arguments of the tool call are not a JSON object: {str(raw)[:120]!r}", PARSER_FIX, True)
        call_id = str(call.get("id") or f"call{number:05d}")
        calls.append(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        )
    finish = choice.get("finish_reason")
    if calls and finish not in ("tool_calls", "length"):
        raise Problem(
            f"the tool call came with finish_reason {finish!r} instead of 'tool_calls'",
            PARSER_FIX,
            True,
        )
    return calls if finish != "length" else []


def _first_choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}


def _chat_delta(event: dict[str, Any]) -> str:
    delta = _first_choice(event).get("delta")
    if not isinstance(delta, dict):
        return ""
    return "".join(str(delta.get(name) or "") for name in ("reasoning", "reasoning_content", "content"))


def _text_delta(event: dict[str, Any]) -> str:
    return str(_first_choice(event).get("text") or "")


def garbage(text: str, chat: bool = True) -> str:
    """Say what makes an answer garbage, as of an engine whose kernels compute wrong; empty when nothing does.

    Only what no working model says counts: signs that nobody can read, or one sign or word over and over. Whether an answer is right
    is not judged, nor a phrase that comes again and again, which a model without chat may do by itself.
    """
    said = text.strip()
    signs = [sign for sign in said if not sign.isspace()]
    if not signs:
        return "nothing but blanks and line breaks" if chat and len(text) >= 2 * REPEATS else ""
    unreadable = sum(sign == "\ufffd" or unicodedata.category(sign) in ("Cc", "Co", "Cn") for sign in signs)
    if unreadable == len(signs) or (unreadable >= REPEATS and 2 * unreadable > len(signs)):
        return f"{unreadable} of its {len(signs)} signs cannot be read"
    if not chat and set(said) <= FILLERS:
        return ""
    if len(set(signs)) == 1 and len(signs) >= REPEATS // 2 and not signs[0].isalnum():
        return f"{signs[0]!r} {len(signs)} times and nothing else"
    tail = said[-4000:]
    for length in range(1, min(LONGEST_PIECE, len(tail) // REPEATS) + 1):
        same = 0
        while same < len(tail) - length and tail[-1 - same] == tail[-1 - same - length]:
            same += 1
        piece = tail[len(tail) - length :].strip()
        enough = (same + length) // length >= REPEATS and same + length >= REPEATED_SHARE * len(tail)
        if enough and len(piece.split()) == 1 and (chat or not set(piece) <= FILLERS):
            return f"{piece!r} over and over"
    return ""


def one_token(client: Client, model: str, timeout: float) -> dict[str, Any]:
    """Ask a model for one token, or for a vector or a score where it makes none.

    The whole answer counts and not its text: of a model that thinks, the first token may be the mark of a
    thought, which
    no field shows.

    :param client: of the server
    :param model: served name
    :param timeout: seconds for each request
    :returns: C({api, seconds})
    :raises Problem: when there is no token by then
    """
    start = time.monotonic()
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
    messages = [{"role": "user", "content": "Hi"}]
    asked = {
        "chat": ("/v1/chat/completions", {**body, "messages": messages}),
        "completions": ("/v1/completions", {**body, "prompt": "Hi"}),
        "embeddings": ("/v1/embeddings", {"model": model, "input": "Hi"}),
        "rerank": ("/v1/rerank", {"model": model, "query": "Hi", "documents": ["Hello"]}),
    }
    ways = {api: partial(client.request_json, "POST", path, data, timeout) for api, (path, data) in asked.items()}
    answer, api = first_way(ways, None)
    usage = answer.get("usage")
    generated = usage.get("completion_tokens") if isinstance(usage, dict) else None
    empty = {
        "embeddings": not entries_of(answer, "data"),
        "rerank": not entries_of(answer, "results"),
    }.get(api, not _first_choice(answer) or generated == 0)
    if empty:
        what = {"embeddings": "a vector", "rerank": "a score"}.get(api, "a token")
        raise Problem(
            f"{asked[api][0]} answered without {what}",
            "see the unit's log for the engine's own error",
            kind="http",
            status=500,
        )
    return {"api": api, "seconds": round(time.monotonic() - start, 3)}


def call_a_tool(client: Client, model: str, timeout: float) -> None:
    """Pass when a tool that is offered to a model is called in OpenAI's form, whatever stands between.

    :param client: of the server, or of a gateway in front of it
    :param model: name, or an alias of the gateway
    :param timeout: seconds of the one request
    :raises Problem: with what came instead; C(kind) C(answer) or C(length) where an answer came
    """
    requests = Requests(completion_timeout=timeout, agent=False)
    Readiness(client, model, requests, lambda: timeout, time.monotonic).tools()


@dataclass
class _Attempts:
    """How long, and how often, a stage is tried."""

    timeout: float  # s
    interval: float  # s
    start: float  # of the clock
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    alive: Callable[[], str | None]
    on_event: Callable[[str, str], None]
    answered: bool = False  # in a stage before

    def remaining(self) -> float:
        """Seconds to the deadline."""
        return self.timeout - (self.clock() - self.start)

    def last_problem(self, stage: str, ask: Callable[[], None]) -> Problem | None:
        """Try a stage until it is passed; returns None then, else what the wait ends with."""
        self.on_event(stage, "waiting")
        last: Problem | None = None
        server_errors = 0
        while True:
            # What has just answered need not be looked for.
            reason = None if self.answered and last is None else self.alive()
            if reason:
                seen = f"; last seen: {last.message}" if last else ""
                return Problem(f"{reason}{seen}", "see the log of the engine for why it ended")
            try:
                ask()
                self.answered = True
                return None
            except Problem as problem:
                failed_inside = problem.kind == "http" and problem.status == 500 and stage not in ("health", "models")
                server_errors = server_errors + 1 if failed_inside else 0
                if last is None or last.message != problem.message:
                    self.on_event(stage, problem.message)
                last = problem
            if last.final or server_errors >= MAX_SERVER_ERRORS:
                return last
            if self.remaining() <= self.interval:  # a last attempt cut short would only blur what was seen
                return Problem(f"not ready after {seconds(self.timeout)}: {last.message}", last.fix)
            self.sleep(self.interval)


def wait_ready(
    url: str,
    model: str | None = None,
    requests: Requests | None = None,
    *,
    api_key_file: str | None = None,
    timeout: float = 600.0,
    interval: float = 2.0,
    alive: Callable[[], str | None] | None = None,
    on_event: Callable[[str, str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    waited: float = 0.0,
) -> dict[str, Any]:
    """Wait until a server is ready, stage by stage; raises nothing for anything that the server does.

    :param url: of the server, without /v1
    :param model: the served name that must be there; None takes the first one listed
    :param requests: what it is asked; the defaults when left out
    :param api_key_file: file with the key; the key is in no result and no message
    :param timeout: seconds for all stages together
    :param interval: seconds between two attempts
    :param alive: called before the first attempt, and after each that failed; says why the server is gone for good, or None
    :param on_event: called with stage and text when a stage begins or what is seen changes
    :param clock: monotonic seconds
    :param sleep: waits for seconds
    :param waited: seconds that it has been waited for before, which count
    :returns: C({ready, stage, elapsed_seconds, warmup_seconds, ttft_seconds, decode_tokens_per_second, completion_tokens,
        reply, tool_turns, api: one of APIS or None, model, max_model_len, server_version, checks: {health, models, completion, tools,
        reasoning: true|false|None}, and adapters where there are some, error, fix}). stage: the last one, or the one it is stuck in. error: empty when ready.
    """
    start, requests = clock() - waited, requests or Requests()
    checks: dict[str, bool | None] = {stage: None for stage in STAGES if stage != "adapters" or requests.adapters}
    found, stage = blank_figures(model), "health"
    failed: Problem | None = None
    try:
        client = Client(url, read_api_key(api_key_file), api_key_file or "")
    except Problem as problem:
        failed = problem
    else:
        tries = _Attempts(
            timeout, interval, start, clock, sleep, alive or (lambda: None), on_event or (lambda *_text: None)
        )
        run = Readiness(client, model, requests, tries.remaining, clock)
        found = run.found
        for stage in requests.stages:
            failed = tries.last_problem(stage, getattr(run, stage))
            checks[stage] = not failed
            if failed:
                break
    result: dict[str, Any] = {
        "ready": failed is None,
        "stage": stage,
        "elapsed_seconds": round(clock() - start, 2),
        **found,
        "checks": checks,
        "error": failed.message if failed else "",
        "fix": failed.fix if failed else "",
    }
    return dict(received(result))
