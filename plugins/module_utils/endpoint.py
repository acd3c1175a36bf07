# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readiness of an OpenAI-compatible server, in stages.

/health answering 200 says little: vLLM keeps answering it with a dead scheduler, or with the other node of a pair
gone. Ready means that a real request came back with tokens, on the path that users take. That first request is also
the one that compiles the kernels, so it is better made here than by a person.

Stages: health -> models -> completion -> tools -> reasoning (the last two only when asked for).

This file is copied to hosts as it is (the units run it), so it imports nothing but the standard library.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STAGES = ("health", "models", "completion", "tools", "reasoning")

DEFAULT_PROMPT = "Say hello and name three colours."
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_TEXT = 400

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


class Problem(Exception):
    """Why a stage is not passed yet.

    message: what was seen. fix: what to change. final: waiting longer cannot help. kind: C(refused), C(timeout),
    C(broken), C(http), C(answer), for decisions inside this file. status: the HTTP status for kind C(http).
    """

    def __init__(self, message: str, fix: str = "", final: bool = False, kind: str = "answer", status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
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
        self, method: str, path: str, body: dict[str, Any] | None, timeout: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=max(timeout, 0.1))
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": "dgxspark"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection.request(method, self.prefix + path, data, headers)
            return connection, connection.getresponse()
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
        if isinstance(error, (ConnectionError, http.client.HTTPException)):
            return Problem(
                f"{where} closed the connection during {path} ({type(error).__name__})",
                "see the unit's log: the server died or is not an HTTP server",
                kind="broken",
            )
        return Problem(f"{where} cannot be reached: {error}", "check the address and the route to it", kind="refused")

    def status_problem(self, status: int, raw: bytes, path: str) -> Problem:
        """Say what an HTTP status means and what to do about it."""
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
        """Make one request and return (status, body). Raises Problem when there is no HTTP answer."""
        try:
            connection, response = self._open(method, path, body, timeout)
            try:
                return response.status, response.read(MAX_BODY_BYTES)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(error, path, timeout) from error

    def request_json(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Like C(call), for a 200 with a JSON object; everything else raises Problem."""
        status, raw = self.call(method, path, body, timeout)
        if status != 200:
            raise self.status_problem(status, raw, path)
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Problem(
                f"the answer of {path} is not JSON", "check that the port belongs to an OpenAI-compatible server", True
            )
        return answer

    def events(self, path: str, body: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
        """Stream a completion: yield each event. C(timeout) bounds every wait for more.

        Raises Problem when the stream breaks off before its [DONE] or carries an error of the engine.
        """
        try:
            connection, response = self._open("POST", path, body, timeout)
            try:
                if response.status != 200:
                    raise self.status_problem(response.status, response.read(MAX_BODY_BYTES), path)
                while True:
                    line = response.readline(MAX_BODY_BYTES)
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
                        event = json.loads(value)
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
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._explain(error, path, timeout) from error


def seconds(value: float) -> str:
    """Write a duration as a person would."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def error_text(raw: bytes) -> str:
    """Return the message inside an error body of vLLM (either of its two shapes) or FastAPI, else the text itself."""
    text = raw.decode("utf-8", "replace").strip()
    try:
        body = json.loads(text)
    except ValueError:
        return text[:MAX_TEXT]
    message: Any = body
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message", inner.get("detail", inner)) if isinstance(inner, dict) else inner
    return (message if isinstance(message, str) else json.dumps(message))[:MAX_TEXT]


def lacks_chat(problem: Problem) -> bool:
    """Tell whether a refusal means that model or server has no chat, so that plain completions are the real path."""
    if problem.kind != "http" or problem.status not in (400, 404, 405, 501):
        return False
    text = problem.message.lower()
    signs = (
        "chat template",
        "chat_template",
        "does not support chat",
        ": not found",
        "method not allowed",
        "not implemented",
    )
    return "does not exist" not in text and any(sign in text for sign in signs)


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
    }


class Readiness:
    """One wait for one server; C(wait_ready) is the way in."""

    def __init__(
        self,
        client: Client,
        model: str | None,
        prompt: str,
        max_tokens: int,
        request_timeout: float,
        completion_timeout: float,
        remaining: Callable[[], float],
        clock: Callable[[], float],
        measure: bool,
    ) -> None:
        self.client = client
        self.model = model
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.request_timeout = request_timeout
        self.completion_timeout = completion_timeout
        self.remaining = remaining
        self.clock = clock
        self.measure = measure
        self.attempts = 0
        self.tokens_asked_at: float | None = None
        self.found = blank_figures(model)

    def _short(self) -> float:
        return min(self.request_timeout, max(self.remaining(), 0.1))

    def _long(self) -> float:
        return min(self.completion_timeout, max(self.remaining(), 0.1))

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
        figures = self._completion_once() if self.measure else warmup
        # A unit does not judge (it measures nothing): a start would not mend what the image computes, and takes a quarter of an hour.
        wrong = garbage(figures["text"], self.found["api"] != "completions") if self.measure else ""
        if wrong:
            raise Problem(
                f"the answer is garbage, {wrong}: {figures['reply'][:60]!r}", GARBAGE_FIX, kind="http", status=500
            )
        for name in ("ttft_seconds", "decode_tokens_per_second", "completion_tokens", "reply"):
            self.found[name] = figures[name]

    def _completion_once(self) -> dict[str, Any]:
        try:
            if self.found["api"] != "completions":
                try:
                    figures = self._stream_chat()
                    self.found["api"] = "chat"
                    return figures
                except Problem as problem:
                    if not lacks_chat(problem):
                        raise
                    self.found["api"] = "completions"
            return self._stream_text()
        except Problem as problem:
            if problem.kind == "timeout":
                raise self._name_the_hang(problem) from problem
            raise

    def _name_the_hang(self, problem: Problem) -> Problem:
        try:
            status, _body = self.client.call("GET", "/health", timeout=min(self.request_timeout, 10.0))
        except Problem as health:
            return Problem(
                f"{problem.message}, and /health fails now too: {health.message}", health.fix, kind="timeout"
            )
        if status != 200:
            return Problem(f"{problem.message}, and /health answers HTTP {status} now", problem.fix, kind="timeout")
        waited = self.clock() - (self.tokens_asked_at or self.clock())
        if waited < self.completion_timeout:
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
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._measured("/v1/chat/completions", body, _chat_delta)

    def _stream_text(self) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
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

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        request = {"model": self.model, "temperature": 0, "max_tokens": 1024, **body}
        answer = self.client.request_json("POST", "/v1/chat/completions", request, timeout=self._long())
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise Problem(
                "the chat answer has no choices[0].message", "check that the server is OpenAI-compatible", True
            )
        return choice

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
        message = choice["message"]
        calls = message.get("tool_calls") or []
        content = str(message.get("content") or "")
        parser = "set the tool-call-parser (and chat template) that this model was trained with"
        if not calls:
            if choice.get("finish_reason") == "length":
                raise Problem("the tool check ran out of tokens before a tool was called", parser, True)
            seen = f"as plain text: {content[:120]!r}" if content else "and said nothing"
            raise Problem(f"the model did not call the offered tool, it answered {seen}", parser, True)
        function = calls[0].get("function") if isinstance(calls[0], dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        raw = function.get("arguments") if isinstance(function, dict) else None
        if name != "get_weather":
            raise Problem(f"the tool call names {name!r} instead of 'get_weather'", parser, True)
        try:
            arguments = json.loads(raw) if isinstance(raw, str) else raw
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise Problem(f"the arguments of the tool call are not a JSON object: {str(raw)[:120]!r}", parser, True)
        if choice.get("finish_reason") != "tool_calls":
            raise Problem(
                f"the tool call came with finish_reason {choice.get('finish_reason')!r} instead of 'tool_calls'",
                parser,
                True,
            )

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
            raise Problem(
                "the answer has no reasoning: neither 'reasoning' nor 'reasoning_content' is set",
                fix + ", or leave this check out for a model that does not think",
                True,
            )


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
    """Ask a model for one token and return C({api, seconds}); raises Problem when there is none within C(timeout) seconds.

    The whole answer counts and not its text: of a model that thinks, the first token may be the mark of a thought, which
    no field shows.
    """
    start = time.monotonic()
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
    messages = [{"role": "user", "content": "Hi"}]
    api, path = "chat", "/v1/chat/completions"
    try:
        answer = client.request_json("POST", path, {**body, "messages": messages}, timeout)
    except Problem as problem:
        if not lacks_chat(problem):
            raise
        api, path = "completions", "/v1/completions"
        answer = client.request_json("POST", path, {**body, "prompt": "Hi"}, timeout)
    usage = answer.get("usage")
    generated = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not _first_choice(answer) or generated == 0:
        raise Problem(
            f"{path} answered without a token", "see the unit's log for the engine's own error", kind="http", status=500
        )
    return {"api": api, "seconds": round(time.monotonic() - start, 3)}


def wait_ready(
    url: str,
    model: str | None = None,
    *,
    api_key_file: str | None = None,
    timeout: float = 600.0,
    interval: float = 2.0,
    request_timeout: float = 10.0,
    completion_timeout: float = 300.0,
    prompt: str = DEFAULT_PROMPT,
    max_tokens: int = 64,
    tools: bool = False,
    reasoning: bool = False,
    measure: bool = True,
    alive: Callable[[], str | None] | None = None,
    on_event: Callable[[str, str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait until the server at C(url) is ready, stage by stage, for at most C(timeout) seconds.

    model: the served name that must be there; None takes the first one listed.
    api_key_file: file with the key; the key is in no result and no message.
    request_timeout: for the small requests. completion_timeout: for each wait on tokens; the first ones come only after
    the kernels are compiled, so it is long, and an attempt that times out is made again until the deadline.
    measure: make a second, warm request for the figures, and judge whether its text is garbage. alive: called between attempts, returns why the server is
    gone for good, or None. on_event(stage, text): called when a stage begins or what is seen changes.

    Returns (never raises for anything that the server does)::

        {ready, stage, elapsed_seconds, warmup_seconds, ttft_seconds, decode_tokens_per_second, completion_tokens,
         reply, api: chat|completions|None, model, max_model_len, server_version,
         checks: {health, models, completion, tools, reasoning: true|false|None}, error, fix}

    C(stage) is the last one passed when ready, else the one it is stuck in. C(error) is empty when ready.
    """
    start = clock()
    stages = ["health", "models", "completion"] + (["tools"] if tools else []) + (["reasoning"] if reasoning else [])
    checks: dict[str, bool | None] = dict.fromkeys(STAGES)
    found = blank_figures(model)

    def remaining() -> float:
        return timeout - (clock() - start)

    def result(stage: str, error: str = "", fix: str = "") -> dict[str, Any]:
        return {
            "ready": not error,
            "stage": stage,
            "elapsed_seconds": round(clock() - start, 2),
            **found,
            "checks": checks,
            "error": error,
            "fix": fix,
        }

    try:
        client = Client(url, read_api_key(api_key_file), api_key_file or "")
    except Problem as problem:
        return result("health", problem.message, problem.fix)
    run = Readiness(client, model, prompt, max_tokens, request_timeout, completion_timeout, remaining, clock, measure)
    found = run.found

    for stage in stages:
        if on_event is not None:
            on_event(stage, "waiting")
        last: Problem | None = None
        server_errors = 0
        while True:
            reason = alive() if alive is not None else None
            if reason:
                checks[stage] = False
                seen = f"; last seen: {last.message}" if last else ""
                return result(stage, f"{reason}{seen}", "see the log of the engine for why it ended")
            try:
                getattr(run, stage)()
                checks[stage] = True
                break
            except Problem as problem:
                failed_inside = problem.kind == "http" and problem.status == 500 and stage not in ("health", "models")
                server_errors = server_errors + 1 if failed_inside else 0
                if on_event is not None and (last is None or last.message != problem.message):
                    on_event(stage, problem.message)
                last = problem
            if last.final or server_errors >= MAX_SERVER_ERRORS:
                checks[stage] = False
                return result(stage, last.message, last.fix)
            if remaining() <= interval:  # a last attempt cut short would only blur what was seen
                checks[stage] = False
                return result(stage, f"not ready after {seconds(timeout)}: {last.message}", last.fix)
            sleep(interval)
    return result(stages[-1])
