# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway's additions to LiteLLM: access by key, the choice of a backend, and the queue of requests whose backends are all drained.

LiteLLM calls C(authorise) for each request (general_settings.custom_auth) and C(chooser.async_filter_deployments) for each choice of
a backend (litellm_settings.callbacks). C(AccessControl) stands before the whole application.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import hashlib
import hmac
import json
import os
import random
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import h11
import httpx
import litellm
from fastapi import HTTPException, Request
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import LitellmUserRoles, ProxyException, UserAPIKeyAuth
from prometheus_client import Counter, Gauge
from uvicorn.protocols.http.h11_impl import H11Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SERVED = re.compile(
    r"/(?:v1/)?(?:chat/completions|completions|embeddings|responses|messages|messages/count_tokens|models|models/[A-Za-z0-9._:/@+-]+"
    r"|audio/transcriptions|audio/translations|audio/speech|rerank|model/info)"
    r"|/v2/rerank|/health/(?:liveliness|liveness|readiness)|/metrics/?"
)
"""The other paths of LiteLLM manage a database, which the gateway does not have."""
OPEN = ("/health/liveliness", "/health/liveness", "/health/readiness")
METRICS = ("/metrics", "/metrics/")
HOST = re.compile(rb"[A-Za-z0-9._~-]*(?::[0-9]*)?|\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")
"""LiteLLM reads paths from a URL that Starlette builds with this header, so the header must not contain a path."""
KEY_HEADERS = (
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"x-litellm-api-key",
    b"x-goog-api-key",
    b"ocp-apim-subscription-key",
)
HEAD_SECONDS = 15.0
"""Time for the whole head of a request."""
MOST_HEADLESS = 4096
"""Connections that may wait for their head at once."""
BODY_SECONDS = 60.0
"""Time for a whole request body; 64 MiB then need 9 Mbit/s."""
SMALL_BODY = 1024 * 1024
"""Bytes. Nearly all prompts are smaller; images and sound are not."""
MOST_VALUES = 1_000_000
"""In the JSON of one body, counted by its punctuation: an empty list takes 3 bytes there and over 60 in Python."""
LINGER_SECONDS = 2.0
"""Time for the rest of the body after a rejection without a key; with a key it is BODY_SECONDS. A connection that is closed with unread bytes
is reset, and the client may lose the answer."""
PREFIX_BLOCK, LEAST_PREFIX = 4096, 1024
"""Characters of a block of a text, and bytes below which a prefix is not worth a choice: 16 blocks of 16 tokens."""
MOST_PREFIXES, MOST_HOLDERS, MOST_PARTS = 20_000, 8, 4096
"""Remembered beginnings (6 MB), backends of each, and messages of a conversation that are read."""
FIRST_PART = b"first"
POLL_SECONDS = 0.25
TELL_SECONDS = 0.5
RECHECK_SECONDS = 5.0
"""Pause before the next check of a failed backend."""

RUNNING = Gauge("dgxspark_gateway_running_requests", "Requests that a backend works on.", ["backend"])
DRAINED = Gauge("dgxspark_gateway_backend_drained", "1 for a backend that gets no new requests.", ["backend"])
HEALTHY = Gauge("dgxspark_gateway_backend_healthy", "1 for a backend whose last check succeeded.", ["backend"])
QUEUED = Gauge("dgxspark_gateway_queued_requests", "Requests that wait for a backend to be admitted.")
WAITED = Counter("dgxspark_gateway_queue", "Requests that had to wait for a backend, by how it ended.", ["outcome"])
CHOSEN = Counter(
    "dgxspark_gateway_choices", "Times a backend was given a request, retries included.", ["backend", "alias"]
)
PREFIXED = Counter(
    "dgxspark_gateway_prefix",
    "Requests with a choice of backends, by what became of the cached beginning of their prompt: kept, moved, new.",
    ["outcome"],
)
CHECKS = Counter("dgxspark_gateway_checks", "Checks of a backend by a request of one token.", ["backend", "outcome"])
REJECTED = Counter("dgxspark_gateway_rejected", "Requests that did not come as far as LiteLLM.", ["reason"])
BODY_BYTES = Gauge("dgxspark_gateway_body_bytes", "Bytes of request bodies in memory.")
GENERATION = Gauge(
    "dgxspark_gateway_generation", "How many configurations were taken over since the start, with this one."
)
LOADED = Gauge("dgxspark_gateway_config_loaded_timestamp_seconds", "When this configuration was taken over.")


class Record:
    """The state of one running request."""

    def __init__(self) -> None:
        self.backend: str | None = None
        self.tried: set[str] = set()
        self.gone = False
        self.gave_up = False
        self.again = ""  # Retry-After of its backend, seconds
        self.caller: Mapping[str, Any] | None = None
        self.body_bytes = 0  # in memory
        self.is_whole = False  # the body has arrived

    def take(self, backend: str | None) -> None:
        """Move the request from its previous backend to this one."""
        if self.backend is not None:
            state.running[self.backend] -= 1
            RUNNING.labels(self.backend).dec()
        self.backend = backend
        if backend is not None:
            state.running[backend] = state.running.get(backend, 0) + 1
            RUNNING.labels(backend).inc()


RECORD: contextvars.ContextVar[Record | None] = contextvars.ContextVar("dgxspark_record", default=None)


class State:
    """The state of this process, which the helper on the host reads."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.digests: list[tuple[bytes, str, dict[str, Any]]] = []
        self.run = Path("/nonexistent")
        self.generation = 0
        self.running: dict[str, int] = {}
        self.queued = 0
        self.unhealthy: dict[str, str] = {}
        self.succeeded: dict[str, float] = {}
        self.seen: tuple[int, int] = (0, 0)
        self.drained: frozenset[str] = frozenset()
        self.tasks: list[asyncio.Task[None]] = []

    def read_drained(self) -> frozenset[str]:
        """Return the drained backends; reads the file again only after it was replaced."""
        path = self.run / "drained.json"
        try:
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_ino)
            if mark != self.seen:
                self.drained = frozenset(json.loads(path.read_text(encoding="utf-8"))["drained"])
                self.seen = mark
        except FileNotFoundError:
            self.drained, self.seen = frozenset(), (0, 0)
        except (OSError, ValueError, KeyError, TypeError) as error:
            litellm.verbose_logger.warning("gateway: %s cannot be read (%s); what was drained stays so", path, error)
        return self.drained

    def show(self) -> dict[str, Any]:
        drained = self.read_drained()
        for backend in self.settings["backends"]:
            DRAINED.labels(backend).set(backend in drained)
            HEALTHY.labels(backend).set(backend not in self.unhealthy)
        return {
            "pid": os.getpid(),
            "generation": self.generation,
            "leaving": any(access.leaving for access in controls),
            "drained": sorted(drained),
            "running": {key: count for key, count in sorted(self.running.items()) if count},
            "queued": self.queued,
            "unhealthy": dict(sorted(self.unhealthy.items())),
        }


state = State()
controls: list[AccessControl] = []


def prepare(settings: dict[str, Any], keys: Path, run: Path, generation: int) -> None:
    """Read the keys and set up the state, before LiteLLM is imported as a server."""
    state.settings, state.run, state.generation = settings, run, generation
    state.digests = [
        (hashlib.sha256((keys / entry["file"]).read_bytes().strip()).digest(), entry["name"], entry)
        for entry in settings["keys"]
    ]
    for backend in settings["backends"]:
        RUNNING.labels(backend).set(0)
    GENERATION.set(generation)
    LOADED.set_to_current_time()


def begin() -> None:
    """Start the background tasks, inside the event loop."""
    state.tasks = [asyncio.create_task(tell())]
    if state.settings["health_interval"]:
        state.tasks += [asyncio.create_task(check(key, entry)) for key, entry in state.settings["backends"].items()]


async def tell() -> None:
    """Keep the state file of this process up to date, for the helper on the host."""
    path = state.run / "state" / f"child-{os.getpid()}.json"
    last = ""
    while True:
        text = json.dumps(state.show())
        if text != last:
            part = path.with_name(f".{path.name}")
            try:
                part.write_text(text + "\n", encoding="utf-8")
                part.replace(path)
                last = text
            except OSError as error:
                litellm.verbose_logger.warning("gateway: %s cannot be written: %s", path, error)
        await asyncio.sleep(TELL_SECONDS)


# ---------------------------------------------------------------- keys


def who(key: bytes) -> dict[str, Any] | None:
    """Return the owner of a key. Compares every key in constant time, also after a match."""
    key_digest = hashlib.sha256(key).digest()
    owner = None
    for digest, _name, entry in state.digests:
        # Of two files with one key the first wins, which is the master's.
        if hmac.compare_digest(digest, key_digest) and owner is None:
            owner = entry
    return owner


def key_of(scope: Message) -> bytes:
    """Return the key of a request, empty without a key."""
    keys = (value for name, value in scope["headers"] if name in KEY_HEADERS)
    return next(
        (key for key in (value.removeprefix(b"Bearer ").removeprefix(b"bearer ").strip() for value in keys) if key), b""
    )


async def authorise(request: Request, api_key: str) -> UserAPIKeyAuth:
    """Return the caller for LiteLLM, which then restricts the caller to the models that are named here.

    C(AccessControl) has checked the path and the key; C(api_key) is the label that it has put in place of the key.
    """
    record = RECORD.get()
    caller = record.caller if record is not None else None
    if caller is None:
        raise ProxyException(message="No key.", type="auth_error", param="api_key", code=401)
    role, name = caller["role"], caller["name"]
    if role == "client":
        return UserAPIKeyAuth(
            api_key=f"client-{name}",
            key_alias=name,
            models=list(caller["aliases"]),
            user_role=LitellmUserRoles.INTERNAL_USER,
        )
    user_role = LitellmUserRoles.INTERNAL_USER_VIEW_ONLY if role == "open" else LitellmUserRoles.PROXY_ADMIN
    return UserAPIKeyAuth(api_key=role, key_alias=role, user_role=user_role)


# ---------------------------------------------------------------- which backend


def backend_of(deployment: Mapping[str, Any]) -> str:
    return str((deployment.get("model_info") or {}).get("backend") or "")


def level_of(deployment: Mapping[str, Any]) -> int:
    return int((deployment.get("model_info") or {}).get("level") or 0)


def prefix_keys(model: str, messages: Any, options: Mapping[str, Any]) -> list[bytes]:
    """Return the checksums of the beginnings of a prompt, the shortest first: up to each message, or to each block of a text."""
    text = options.get("prompt") or options.get("input") or messages
    is_blocks = isinstance(text, str) or (isinstance(text, list) and bool(text) and isinstance(text[0], int))
    if is_blocks:  # a text, or ids of tokens
        text = [text[begin : begin + PREFIX_BLOCK] for begin in range(0, len(text) - PREFIX_BLOCK + 1, PREFIX_BLOCK)]
    keys: list[bytes] = []
    size = 0
    head = [model, *(options.get(name) for name in ("tools", "system", "instructions"))]
    digest = hashlib.blake2b(json.dumps(head, default=str).encode(), digest_size=16)
    for part in text[:MOST_PARTS] if isinstance(text, list) else ():
        data = json.dumps(part, default=str).encode()
        digest.update(data)
        size += len(data)
        if size >= LEAST_PREFIX:
            keys.append(digest.digest())
    return keys


class Prefixes:
    """Which backends have worked on which beginnings of prompts, so that their prefix caches probably have them."""

    def __init__(self) -> None:
        self.holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def find(self, keys: list[bytes]) -> tuple[tuple[str, ...], bool]:
        """Return the backends with the longest of some beginnings, and whether it is a conversation so far, not only a first part that many share."""
        whole = next((self.holders[key] for key in reversed(keys) if key in self.holders), ())
        return whole or self.holders.get(keys[0] + FIRST_PART if keys else b"", ()), bool(whole)

    def note(self, keys: list[bytes], backend: str) -> None:
        """Note that a backend works on a prompt: on the whole of it, and on its first part, such as a system prompt."""
        for key in (keys[0] + FIRST_PART, keys[-1]):
            others = (other for other in self.holders.pop(key, ()) if other != backend)
            self.holders[key] = (backend, *others)[:MOST_HOLDERS]
        while len(self.holders) > MOST_PREFIXES:
            self.holders.popitem(last=False)


prefixes = Prefixes()


def choose(
    usable: list[dict[str, Any]],
    tried: set[str],
    unhealthy: Mapping[str, str],
    running: Mapping[str, int],
    holders: Collection[str] = (),
    lead: int = 0,
) -> dict[str, Any]:
    """Return a usable backend: preferably untried and healthy, then of the first level, then with the prompt's prefix, then with the fewest requests.

    tried: failed for this request. holders: probably have the beginning of the prompt in their prefix caches. lead: requests that a holder may
    have more than the least busy backend.
    """
    candidates = [row for row in usable if backend_of(row) not in tried] or usable
    candidates = [row for row in candidates if backend_of(row) not in unhealthy] or candidates
    level = min(map(level_of, candidates))

    def load(row: dict[str, Any]) -> int:
        return running.get(backend_of(row), 0)

    candidates = [row for row in candidates if level_of(row) == level]
    bound = min(map(load, candidates)) + lead
    candidates = [row for row in candidates if backend_of(row) in holders and load(row) <= bound] or candidates
    least = min(map(load, candidates))
    return random.choice([row for row in candidates if load(row) == least])


def check_alias(caller: Mapping[str, Any], model: str) -> None:
    """Refuse an alias that the key of a client is not for. Raises PermissionDeniedError."""
    if caller.get("role") == "client" and model not in caller["aliases"]:
        # LiteLLM checks this too, but not on every path.
        raise litellm.PermissionDeniedError(
            message=f"The key of {caller['name']} is not for {model}.",
            llm_provider="",
            model=model,
            response=httpx.Response(403, request=httpx.Request("POST", "http://gateway")),
        )


class Chooser(CustomLogger):
    """Chooses the backend of each request; holds the request while all backends of its alias are drained."""

    def usable(self, model: str, offered: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the usable backends of an alias, and all of its backends."""
        from litellm.proxy import proxy_server

        router = proxy_server.llm_router
        everything: list[dict[str, Any]] = list(
            (router.get_model_list(model_name=model) if router else None) or offered
        )
        drained = state.read_drained()
        usable = [row for row in offered if backend_of(row) not in drained]
        # If all others are drained, a backend that failed a moment ago is better than no backend.
        return usable or [row for row in everything if backend_of(row) not in drained], everything

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[dict[str, Any]],
        messages: Any,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[dict[str, Any]]:
        record = RECORD.get() or Record()
        check_alias(record.caller or {}, model)
        usable, everything = self.usable(model, healthy_deployments)
        if not usable and everything:
            usable = await self.wait(model, healthy_deployments, record)
        if not usable:
            return healthy_deployments
        lead = int(state.settings["prefix_lead"])
        keys = prefix_keys(model, messages, request_kwargs or {}) if lead and len(everything) > 1 else []
        holders, is_conversation = prefixes.find(keys)
        # A shared first part decides between equally busy backends only: new conversations use all of them.
        chosen = choose(usable, record.tried, state.unhealthy, state.running, holders, lead if is_conversation else 0)
        backend = backend_of(chosen)
        if keys:
            prefixes.note(keys, backend)
            PREFIXED.labels("new" if not is_conversation else "kept" if backend in holders else "moved").inc()
        record.tried.add(backend)
        if RECORD.get() is not None:
            record.take(backend)
        CHOSEN.labels(backend, model).inc()
        return [chosen]

    async def wait(self, model: str, offered: list[dict[str, Any]], record: Record) -> list[dict[str, Any]]:
        """Hold a request until a backend of its alias is admitted, the client disconnects, or the time is over."""
        limit = float(state.settings["queue_seconds"])
        since = time.monotonic()
        record.take(None)
        if not record.gave_up and limit:
            state.queued += 1
            QUEUED.inc()
            try:
                while not record.gone and time.monotonic() - since < limit:
                    await asyncio.sleep(POLL_SECONDS)
                    usable, _everything = self.usable(model, offered)
                    if usable:
                        WAITED.labels("served").inc()
                        return usable
            finally:
                state.queued -= 1
                QUEUED.dec()
            WAITED.labels("client_gone" if record.gone else "timeout").inc()
        record.gave_up = True
        raise litellm.ServiceUnavailableError(
            message=f"All backends of {model} are drained ({', '.join(sorted(state.drained))}); waited {limit:.0f} s for one to be "
            "admitted.",
            llm_provider="",
            model=model,
        )

    async def async_post_call_failure_hook(
        self, request_data: Any, original_exception: Exception, user_api_key_dict: Any, traceback_str: str | None = None
    ) -> HTTPException | None:
        """Return the reason of an unavailable engine in the engine's words, with its Retry-After.

        LiteLLM wraps the reason and renames the header; a stream that has had a comment already gets neither. /v1/completions ignores the
        result: there the exception carries the reason, and C(speak) adds the header.
        """
        if not isinstance(original_exception, litellm.ServiceUnavailableError):
            return None
        delay, why = retry_after(original_exception), reason_of(original_exception)
        record = RECORD.get()
        if record is not None:
            record.again = delay
        original_exception.message = why
        headers = {"retry-after": delay} if delay else None
        return HTTPException(503, detail=why, headers=headers)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        backend = backend_of((kwargs.get("litellm_params") or {}) if isinstance(kwargs, dict) else {})
        if backend:
            state.succeeded[backend] = time.monotonic()


# LiteLLM puts this before the message of a backend.
WRAPPED = re.compile(r"^litellm\.ServiceUnavailableError: (ServiceUnavailableError: )?(\w+Exception - )?")


def reason_of(error: Exception) -> str:
    """Return the message of a backend from the message of LiteLLM."""
    text = str(getattr(error, "message", "") or error)
    # JSON, or a mapping of Python on one line, as OpenAI's client writes it.
    for start, parse in (
        (text.find('{"error"'), lambda part: json.JSONDecoder().raw_decode(part)[0]),
        (text.find("{'error'"), lambda part: ast.literal_eval(part.splitlines()[0])),
    ):
        if start >= 0:
            with contextlib.suppress(ValueError, KeyError, TypeError, SyntaxError):
                reason = parse(text[start:])["error"]
                return str(reason["message"] if isinstance(reason, dict) else reason)
    return WRAPPED.sub("", text).partition("\n\nLiteLLM: ")[0]


def retry_after(error: Exception) -> str:
    """Return the Retry-After of a backend in seconds, empty without the header."""
    response = getattr(error, "response", None)
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        value = str((headers or {}).get("retry-after") or "")
        if value.isdigit():
            return value
    return ""


chooser = Chooser()


# ---------------------------------------------------------------- are they well


async def check_once(client: httpx.AsyncClient, entry: Mapping[str, Any]) -> str:
    """Return why a backend does not answer, empty if it does; with a request for one token, or for its health if a token costs too much."""
    key = os.environ.get(entry["key"] or "", "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        if entry["check"] == "completion":
            body = {"model": entry["model"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
            answer = await client.post(f"{entry['url']}/v1/chat/completions", json=body, headers=headers)
            # Models without a chat template reject the request, which is an answer.
            good = answer.status_code == 200 or answer.status_code in (400, 405, 422, 501)
        else:
            answer = await client.get(entry["url"] + entry["check"], headers=headers)
            good = answer.status_code == 200
        return "" if good else f"HTTP {answer.status_code}"
    except httpx.TimeoutException:
        return "no answer in time"
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__


async def check(backend: str, entry: Mapping[str, Any]) -> None:
    """Check one backend again and again. One timeout is tolerated: an engine with long prompts in its queue answers late."""
    interval, limit = float(state.settings["health_interval"]), float(state.settings["health_timeout"])
    silent = 0
    async with httpx.AsyncClient(timeout=httpx.Timeout(limit, connect=5.0), trust_env=False) as client:
        await asyncio.sleep(random.uniform(0, min(interval, 5.0)))
        while True:
            pause = interval
            if backend in state.read_drained():
                # Somebody works on it; it is checked again once it is admitted.
                state.unhealthy.pop(backend, None)
                pause = 1.0
            elif (
                backend not in state.unhealthy and time.monotonic() - state.succeeded.get(backend, -interval) < interval
            ):
                pause = interval / 2
            else:
                wrong = await check_once(client, entry)
                silent = silent + 1 if wrong == "no answer in time" else 0
                CHECKS.labels(backend, "failed" if wrong else "good").inc()
                if wrong and silent != 1:
                    if backend not in state.unhealthy:
                        litellm.verbose_logger.warning("gateway: backend %s is put aside: %s", backend, wrong)
                    state.unhealthy[backend] = wrong
                elif not wrong and state.unhealthy.pop(backend, None):
                    litellm.verbose_logger.warning("gateway: backend %s is back", backend)
                pause = RECHECK_SECONDS if wrong else interval
            await asyncio.sleep(pause)


# ---------------------------------------------------------------- access


class Connection(H11Protocol):
    """A connection that is closed when the head of a request does not arrive in time.

    With too many connections that wait for a head, the oldest of them is closed.
    """

    headless: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget_head()
        super().connection_lost(exc)

    def watch_head(self) -> None:
        """Start the timer of a missing head; stop it once the head has arrived."""
        if self.conn.their_state is not h11.IDLE:
            self.forget_head()
        elif self not in self.headless:
            self.headless[self] = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
            if len(self.headless) > MOST_HEADLESS:
                longest = next(iter(self.headless))
                longest.forget_head()
                longest.transport.abort()

    def forget_head(self) -> None:
        timer = self.headless.pop(self, None)
        if timer is not None:
            timer.cancel()


class Rejected(Exception):
    """A request that is not passed to LiteLLM. Its arguments: HTTP status, reason for the metrics, text for the client."""


class Bodies:
    """The request bodies in memory, with one limit for the bytes of all of them.

    A body counts from its first byte until its request ends. Large bodies leave a quarter of the memory to small bodies. If a large body
    does not fit, the newest large body that still arrives is rejected, so that the others complete; if a small body does not fit, the
    largest small body, so that slow clients do not block others.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.arriving: dict[Record, asyncio.Timeout] = {}

    async def read(self, receive: Receive, record: Record, most: int) -> bytes:
        """Return a complete body, nothing if the client disconnects before.

        Raises Rejected for a body that is too large, takes too long, or does not fit beside others. most: bytes that it may have.
        """
        pieces = []
        try:
            async with asyncio.timeout(BODY_SECONDS) as self.arriving[record]:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return b""
                    if record not in self.arriving:
                        raise TimeoutError
                    piece = message.get("body") or b""
                    if record.body_bytes + len(piece) > most:
                        raise Rejected(413, "body", f"The request has more than {most} bytes, which the gateway takes.")
                    self.make_room(record, len(piece))
                    pieces.append(piece)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            if record in self.arriving:
                raise Rejected(408, "slow", f"The request did not arrive within {BODY_SECONDS:.0f} s.") from None
            raise Rejected(429, "bodies", "The gateway has no memory left for a request of this size.") from None
        finally:
            self.arriving.pop(record, None)
        record.is_whole = True
        body = b"".join(pieces)
        if len(body) > MOST_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise Rejected(413, "body", f"The request has more than {MOST_VALUES} values.")
        return body

    def make_room(self, record: Record, size: int) -> None:
        """Count further bytes of an arriving body, and reject bodies until they fit."""
        is_large = record.body_bytes + size > SMALL_BODY
        limit = self.limit * 3 // 4 if is_large else self.limit
        while self.held + size > limit:
            rivals = [row for row in self.arriving if row is record or (row.body_bytes > SMALL_BODY) == is_large]
            victim = rivals[-1] if is_large else max(rivals, key=lambda row: row.body_bytes)
            self.arriving.pop(victim).reschedule(asyncio.get_running_loop().time())
            self.release(victim)
            if victim is record:
                raise TimeoutError
        record.body_bytes += size
        self.held += size
        BODY_BYTES.set(self.held)

    def release(self, record: Record) -> None:
        """Forget the bytes of a body."""
        self.held -= record.body_bytes
        record.body_bytes = 0
        BODY_BYTES.set(self.held)


class AccessControl:
    """Admits requests by path and key, counts them, and closes connections while the process leaves.

    A request is checked by its head before its body is read, and only a complete request counts against C(max_parallel).
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.running = 0  # requests that LiteLLM has
        self.leaving = False
        self.bodies = Bodies(int(state.settings["bodies_limit"]))
        controls.append(self)

    def is_busy(self) -> bool:
        """Tell whether a request is running."""
        return bool(self.running or self.bodies.arriving)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        record = Record()
        body = b""
        has_slot = False
        refusal: tuple[Any, ...] = ()
        try:
            record.caller = self.judge(scope)
            self.check_length(scope)
            needs_slot = scope["path"] not in OPEN + METRICS
            if needs_slot:
                self.check_slot()
                body = await self.bodies.read(receive, record, int(state.settings["body_limit"]))
                if not record.is_whole:
                    return
                self.check_slot()
                self.running += 1
                has_slot = True
            token = RECORD.set(record)
            try:
                hear = self.hear(receive, record, body)
                body = b""  # only LiteLLM holds it from here on
                await self.app(self.name_caller(scope, record.caller), hear, self.speak(send, record, not needs_slot))
            finally:
                RECORD.reset(token)
        except Rejected as rejected:
            refusal = rejected.args  # without the exception, whose traceback holds the body
        finally:
            self.running -= has_slot
            self.bodies.release(record)
            record.take(None)
        if refusal:
            await self.answer(receive, send, record, *refusal)

    def judge(self, scope: Message) -> Mapping[str, Any]:
        """Return the caller of a request, by its head alone. Raises Rejected for a path that the gateway does not serve, or not for this key."""
        path = scope["path"]
        if not SERVED.fullmatch(path):
            raise Rejected(404, "path", f"This gateway does not serve {path}.")
        if not HOST.fullmatch(dict(scope["headers"]).get(b"host", b"")):
            raise Rejected(400, "host", "The Host header is no name or address.")
        return self.caller(scope)

    def check_length(self, scope: Message) -> None:
        """Raise C(Rejected) if the head announces a body that is too large, or that the path does not allow."""
        path, headers = scope["path"], dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if path in OPEN + METRICS and (length != b"0" or b"transfer-encoding" in headers):
            raise Rejected(400, "body", f"A request of {path} has no body.")
        limit = int(state.settings["body_limit"])
        if length.isdigit() and int(length) > limit:
            raise Rejected(413, "body", f"The request has {int(length)} bytes, the gateway takes {limit}.")

    def caller(self, scope: Message) -> Mapping[str, Any]:
        """Return the caller of a request: the owner of the key if the path needs a key. Raises C(Rejected) without such a key."""
        path = scope["path"]
        if path in OPEN or (path in METRICS and state.settings["open_metrics"]):
            return {"role": "open", "name": "open"}
        if state.settings["open"]:
            return {"role": "anyone", "name": "anyone"}
        key = key_of(scope)
        if not key:
            raise Rejected(401, "key", "No key. Send one as 'Authorization: Bearer KEY'.")
        caller = who(key)
        if caller is None:
            raise Rejected(401, "key", "This gateway does not know that key.")
        role, name = caller["role"], caller["name"]
        if role != "master" and ((role == "metrics") != (path in METRICS) or path.endswith("/model/info")):
            raise Rejected(403, "key", f"The key of {name} is not for {path}.")
        return caller

    def check_slot(self) -> None:
        """Raise C(Rejected) while LiteLLM has its limit of requests."""
        if self.running >= int(state.settings["max_parallel"]):
            text = f"The gateway has {self.running} requests under way, which is its limit."
            raise Rejected(429, "parallel", text)

    def name_caller(self, scope: Message, caller: Mapping[str, Any]) -> Message:
        """Replace the key of a request by its owner's name, so that LiteLLM can neither log nor count the key."""
        headers = [(name, value) for name, value in scope["headers"] if name not in KEY_HEADERS]
        headers.append((b"authorization", f"Bearer {caller['role']}-{caller['name']}".encode()))
        # A key in the URL would be in the log of every proxy.
        query = b"&".join(part for part in scope["query_string"].split(b"&") if not part.startswith(b"key="))
        return {**scope, "headers": headers, "query_string": query}

    async def answer(self, receive: Receive, send: Send, record: Record, status: int, reason: str, text: str) -> None:
        """Answer a rejected request, read the rest of its body for a while, and close its connection."""
        REJECTED.labels(reason).inc()
        body = json.dumps({"error": {"message": text, "type": reason, "param": None, "code": str(status)}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 429:
            headers.append((b"retry-after", b"2"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS if record.caller else LINGER_SECONDS):
                while not record.is_whole:
                    record.is_whole = not (await receive()).get("more_body")
        await send({"type": "http.response.body"})

    def hear(self, receive: Receive, record: Record, body: bytes) -> Receive:
        """Return a receiver that passes the body on and notices a disconnect, also while the request waits."""
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def until_gone() -> Message:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    record.gone = True
                    return message

        gone = asyncio.create_task(until_gone())

        async def passed() -> Message:
            return messages.pop() if messages else await asyncio.shield(gone)

        return passed

    def speak(self, send: Send, record: Record, closes: bool) -> Send:
        """Return a sender that adds C(connection: close) to the last answer of a connection, and Retry-After to a refusal.

        closes: this is the last answer of the connection; while the process leaves, each answer is.
        """

        async def passed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503 and record.again:
                headers = [
                    (name, value) for name, value in message.get("headers", []) if name.lower() != b"retry-after"
                ]
                message = {**message, "headers": [*headers, (b"retry-after", record.again.encode())]}
            if message["type"] == "http.response.start" and (closes or self.leaving):
                headers = [(name, value) for name, value in message.get("headers", []) if name.lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        return passed
