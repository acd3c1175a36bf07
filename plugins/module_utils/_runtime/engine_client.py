# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Client for one OpenAI-compatible server; a request that fails raises a C(Problem) with its cause and fix."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .._common.foreign_text import decode_text, parse_json, printable
from . import http_client
from .http_client import Deadline, ResponseTooLarge, connect, exchange, read_body, read_line

APIS = ("chat", "completions", "embeddings", "rerank")
"""Ways to ask a model, in the order in which the paths are tried; pooling models have the last ones alone."""
UNSUPPORTED = re.compile(
    "chat[ _]template|does not support (?:chat|completions|embeddings|rerank|score)|: not found|method not allowed|not implemented"
)
"""In the lower-case message of a server without a path."""
MAX_TEXT = 400


class Problem(Exception):
    """The reason why a stage is not passed yet.

    message: the observation. fix: the change to make. final: waiting longer cannot help. kind: C(refused), C(timeout),
    C(broken), C(http), C(answer), C(length), for decisions inside this file. status: the HTTP status for kind C(http).
    """

    def __init__(self, message: str, fix: str = "", final: bool = False, kind: str = "answer", status: int = 0) -> None:
        self.message, self.fix = printable(message), printable(fix)
        super().__init__(self.message)
        self.final = final
        self.kind = kind
        self.status = status


def read_api_key(path: str | None) -> str:
    """Return the key in the file at C(path), or an empty text without a path. Raises Problem for a file without a key."""
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
            f"the API key file {path} contains more than one key or a character that HTTP headers do not allow",
            "leave exactly one key in it, on one line",
            True,
        )
    return key


class Client:
    """HTTP client for one server; never uses a proxy, since it talks to engines on its host or in its rack."""

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
        """Return a text without the API key, which a server or a log may have echoed."""
        return text.replace(self.api_key, "********") if self.api_key else text

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, deadline: Deadline
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its answer; failures of the connection become a Problem."""
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": "dgxspark"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection = connect(self.host, self.port, self.tls, deadline)
            with exchange(connection, method, self.prefix + path, data, headers) as response:
                yield response
        except OSError as error:
            raise self._explain(error, path, deadline.timeout) from error

    def _explain(self, error: Exception, path: str, timeout: float) -> Problem:
        where = f"{self.host}:{self.port}"
        if isinstance(error, ConnectionRefusedError):
            return Problem(
                f"connection refused: nothing listens on {where}",
                "see the unit's log; check that the port is the engine's port",
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
                f"the answer of {where}{path} is longer than {http_client.MAX_BODY_BYTES} bytes",
                "check that the port belongs to an OpenAI-compatible server",
                True,
                "broken",
            )
        if isinstance(error, ConnectionError):
            return Problem(
                f"{where} closed the connection during {path} ({type(error).__name__})",
                "see the unit's log: the server died or is not an HTTP server",
                kind="broken",
            )
        return Problem(f"{where} cannot be reached: {error}", "check the address and the route to it", kind="refused")

    def status_problem(self, status: int, raw: bytes, path: str) -> Problem:
        """Return the meaning of an HTTP status other than 200, with the fix and without the key."""
        text = self.redact(error_text(raw))
        message = f"HTTP {status} at {path}" + (f": {text}" if text else "")
        if status in (401, 403):
            if self.api_key:
                return Problem(
                    f"{message}. The server does not accept the API key in {self.api_key_file or 'use'}",
                    "restart the service after changing its key, or point api_key_file to the key it was started with",
                    True,
                    "http",
                    status,
                )
            return Problem(
                f"{message}. The server wants an API key and none was given", "set api_key_file", True, "http", status
            )
        if status >= 500:
            return Problem(message, "see the unit's log for the engine's own error", kind="http", status=status)
        return Problem(message, "see the message of the server", True, "http", status)

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 10.0
    ) -> tuple[int, bytes]:
        """Make one request. Raises Problem without an HTTP answer within C(timeout) seconds, or for one of more than C(MAX_BODY_BYTES)."""
        with self._exchange(method, path, body, Deadline(timeout)) as response:
            return response.status, read_body(response)

    def metrics(self, timeout: float) -> tuple[int, str]:
        """Return status and text of vLLM's metrics. Raises Problem as C(call) does. timeout: seconds."""
        status, raw = self.call("GET", "/metrics", timeout=timeout)
        return status, raw.decode("utf-8", "replace")

    def request_json(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Make one request whose answer is a JSON object. Raises Problem for every other answer, and for none within C(timeout) seconds."""
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

    def events(self, path: str, body: dict[str, Any], timeout: float) -> Generator[dict[str, Any], None, None]:
        """Stream a completion. timeout: seconds for every event. Raises Problem if it breaks off before its [DONE], or for the engine's error."""
        deadline = Deadline(timeout)
        with self._exchange("POST", path, body, deadline) as response:
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
                yield self._event(value, path)
                deadline.renew()

    def _event(self, text: str, path: str) -> dict[str, Any]:
        """Return one event of a stream. Raises Problem for anything but JSON, and for an error of the engine."""
        try:
            event = parse_json(text, path, finite=False, exact=True)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            raise Problem(f"the stream of {path} carries something that is not JSON", kind="broken")
        if "error" in event:
            raise Problem(
                f"the engine failed during {path}: {self.redact(error_text(text.encode()))}",
                "see the unit's log for the engine's own error",
                kind="http",
                status=500,
            )
        return event


def seconds(value: float) -> str:
    """Return a duration as text for people."""
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
    """Return whether a refusal means that another of C(APIS) is the real one: a model without chat, or a pooling model."""
    if problem.kind != "http" or problem.status not in (400, 404, 405, 501):
        return False
    text = problem.message.lower()
    return "does not exist" not in text and bool(UNSUPPORTED.search(text))


def first_way(ways: Mapping[str, Callable[[], dict[str, Any]]], known_way: str | None) -> tuple[dict[str, Any], str]:
    """Ask a server by the first way that it supports.

    :param ways: name of one of C(APIS) to the function that asks, in order
    :param known_way: the way that an earlier answer showed, or None
    :raises Problem: of that way; if none works, the server's refusal of completions
    """
    refusals: dict[str, Problem] = {}
    for name, ask in ways.items():
        if known_way not in (None, name):
            continue
        try:
            return ask(), name
        except Problem as problem:
            if known_way or not path_unsupported(problem):
                raise
            refusals[name] = problem
    raise refusals.get("completions", next(iter(refusals.values())))


def entries_of(answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the mappings in a list of an answer, sorted by their C(index) if they have one."""
    listed = answer.get(key)
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return sorted(entries, key=lambda entry: entry["index"] if isinstance(entry.get("index"), int) else 0)


def first_choice(event: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice of an answer, or an empty mapping."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}


def one_token(client: Client, model: str, timeout: float) -> dict[str, Any]:
    """Ask a model for one token, or a pooling model for a vector or a score.

    The text is not judged: the first token of a model that thinks may be the mark of a thought, which no field shows.

    :param timeout: seconds for each request
    :returns: C({api, seconds})
    :raises Problem: when there is no token by then
    """
    start = time.monotonic()
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
    messages = [{"role": "user", "content": "Hi"}]
    requests = {
        "chat": ("/v1/chat/completions", {**body, "messages": messages}),
        "completions": ("/v1/completions", {**body, "prompt": "Hi"}),
        "embeddings": ("/v1/embeddings", {"model": model, "input": "Hi"}),
        "rerank": ("/v1/rerank", {"model": model, "query": "Hi", "documents": ["Hello"]}),
    }
    ways = {api: partial(client.request_json, "POST", path, data, timeout) for api, (path, data) in requests.items()}
    answer, api = first_way(ways, None)
    usage = answer.get("usage")
    generated = usage.get("completion_tokens") if isinstance(usage, dict) else None
    empty = {
        "embeddings": not entries_of(answer, "data"),
        "rerank": not entries_of(answer, "results"),
    }.get(api, not first_choice(answer) or generated == 0)
    if empty:
        noun = {"embeddings": "a vector", "rerank": "a score"}.get(api, "a token")
        raise Problem(
            f"{requests[api][0]} answered without {noun}",
            "see the unit's log for the engine's own error",
            kind="http",
            status=500,
        )
    return {"api": api, "seconds": round(time.monotonic() - start, 3)}
