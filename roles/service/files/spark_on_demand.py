# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts model servers when they are asked for, and stops those that are idle: the main process of spark-on-demand.service.

spark-on-demand                         serve the sockets that systemd hands over, one name a service
spark-on-demand --status                what each service does, as JSON
spark-on-demand pin NAME warm|cold|auto keep a service loaded, or not, whatever is asked; auto takes that back

What to start and to stop is decided in on_demand.py; here is what is looked at and done. Engines are units that systemd starts, stops and
watches; this process asks it what they do, so that an admin may start and stop them too, and so may an earlier process of this program.

A connection carries one request. Its head is read, and everything after it is passed on as it comes, both ways. What only looks (GET, HEAD,
OPTIONS) neither wakes an engine nor keeps it: where none runs it is answered here.

Python's standard library and the files beside it are all it needs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import hmac
import json
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._common import redaction
from dgxspark_vllm._runtime import (
    command,
    engine_client,
    hostmem,
    http_client,
    metrics,
    on_demand,
    pins,
    start_stages,
    state_file,
)
from dgxspark_vllm._runtime.systemd import handed_over, journal, notify

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
PROPERTIES = "Id,ActiveState,SubState,Result,StatusText,Job,InvocationID,InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic"
POLL_SECONDS = 2.0
HURRY_SECONDS = 30.0  # after a change, in which looks are eight times as frequent
CALL_SECONDS = 10.0  # that one program may take
ASK_SECONDS = 2.0  # that an engine has to tell its metrics
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 5.0
REACH_SECONDS = 15.0  # that an engine may refuse connections although its unit is active
LINGER_SECONDS = 2.0  # a client reads the answer before it is cut off
COMMENT_SECONDS = 10.0
SAVE_SECONDS, ALIVE_SECONDS = 1.0, 15.0
LEAVE_SECONDS = 300.0
LATE_SECONDS = 30.0  # between two attempts to end a start that takes too long
MOST_WAITING = 1000
MOST_HELD, MOST_BODY = 2**20, 8 * 2**20  # of a body that waits; of one that is read to see whether it wants a stream
MOST_BUFFERED = 64 * 2**20  # of all requests together; the unit's MemoryMax leaves room for what else the program needs
MOST_CLIENTS = 8192  # connections; the unit's LimitNOFILE has two for each
KEPT_STARTS = 5
STAGE_LOOKS, MOST_TOLD = (
    2.5,
    2000,
)  # looks at units for one at what an engine prints that starts; lines of it that are remembered
MARK_SECONDS = 60.0  # that the wish of a request counts which was told to come again
RETRY_SECONDS = 30.0  # in Retry-After, where nothing is known
BACKLOG = 1024
DOWN = "down: "  # begins the status of a rank that failed, or lost another one

HEAD, WAITING, CONNECTING, RELAYING, ENDING = "head", "waiting", "connecting", "relaying", "ending"
ARRIVING = (HEAD, WAITING, CONNECTING)


say = journal("spark-on-demand")


async def beside(work: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Do what may take a while in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: work(*given, **named))


def mind_the_dead(sock: Any) -> None:
    """Have the kernel notice a client that is gone without a word, within minutes."""
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000),
    )
    with contextlib.suppress(OSError, AttributeError):
        for option in options:
            sock.setsockopt(*option)


def hung_up(sock: Any) -> bool:
    """Whether the other side of a connection that is not read from has closed it."""
    try:
        (state,) = struct.unpack("B", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    except OSError:
        return True
    return state in (7, 8)  # CLOSE, CLOSE_WAIT of tcp_states.h


def whole(status: int, body: bytes, kind: str, *headers: str, empty: bool = False) -> bytes:
    """An answer of this program itself."""
    phrase = HTTPStatus(status).phrase
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + (b"" if empty else body)


class Loading:
    """A start of an engine that is under way: what it printed, and how far that is."""

    def __init__(self, invocation: str = "", began: float = 0.0) -> None:
        self.invocation, self.began, self.cursor = invocation, began, ""
        self.lines: list[tuple[float, str]] = []
        self.asked = self.known = 0.0  # when it was last looked at, and when that brought something
        self.busy = False
        self.found: dict[str, Any] | None = None

    def left(self, now: float) -> float | None:
        """Seconds until it is ready, by the stages of its last starts; None where that is not known."""
        rest = self.found["left_seconds"] if self.found else None
        return None if rest is None or rest <= now - self.known else rest - (now - self.known)

    def look(self, run_dir: Path, starts: Path, unit: str) -> None:
        """Read what the engine printed since the last look. run_dir: of the records of starts; starts: the file of the last ones."""
        try:
            self.read(run_dir, starts, unit)
        except Exception as error:  # it runs beside everything else, and what it finds out is nice to know
            say(f"warning: {unit}: how far it is: {error!r}", 4)
        finally:
            self.busy = False

    def read(self, run_dir: Path, starts: Path, unit: str) -> None:
        answer = command.run(start_stages.journal_argv(self.invocation, self.cursor), CALL_SECONDS)
        if answer.state != command.FINISHED or answer.rc:
            return
        lines, cursor = start_stages.read_journal(answer.out)
        self.lines, self.cursor = [*self.lines, *lines][-MOST_TOLD:], cursor or self.cursor
        record = state_file.read(run_dir / "starts" / f"{unit}.json")
        past = start_stages.checked(state_file.read(starts))
        now = time.monotonic()
        self.found = start_stages.under_way(record, self.invocation, self.began, past, self.lines, now)
        self.known = now


class Slot:
    """A service, and what is known of it."""

    def __init__(self, service: on_demand.Service, starts: list[float]) -> None:
        parts = urlsplit(service.engine)
        self.service, self.host, self.port = service, parts.hostname or "", parts.port or 80
        self.state, self.since, self.wall = on_demand.UNKNOWN, time.monotonic(), time.time()
        self.waiters: dict[Client, float] = {}
        self.mark: tuple[float, float] | None = (
            None  # the first and the last request that was sent away while it is to start
        )
        self.running = self.forwarded = 0
        self.last = self.ready = 0.0
        self.looked: float | None = None
        self.busy: bool | None = None
        self.unasked: float | None = None
        self.kept, self.pinned = pins.Pin(), 0.0
        self.until, self.reason, self.stage = 0.0, "", ""
        self.asked, self.began, self.stop, self.failed = 0.0, False, False, False
        self.late: tuple[float, str] | None = None  # when a start was stopped that took too long, and what it was at
        self.starts, self.begun = starts, 0
        self.loading = Loading()
        self.last_start: dict[str, Any] | None = None
        self.before: float | None = None  # GiB available when it was told to stop
        self.expected: float | None = None  # GiB that it took
        self.gone: tuple[float, float] | None = None  # when its processes were gone; when memory last grew
        self.lowest = 0.0
        self.freed: tuple[float, float] | None = None  # GiB, seconds
        self.freed_hosts: dict[str, float | None] | None = None  # GiB, on the other hosts of a model that spans several

    @property
    def pin(self) -> str:
        """What it is kept at, empty for what its requests make of it."""
        return self.kept.word

    def demand(self, now: float) -> float | None:
        """Since when somebody waits for it."""
        waits = list(self.waiters.values())
        if self.mark is not None and now - self.mark[1] < max(self.service.hold_seconds, MARK_SECONDS):
            waits.append(self.mark[0])
        if self.pin == on_demand.WARM and self.state != on_demand.READY:
            waits.append(self.pinned)
        return min(waits, default=None)

    def view(self, now: float) -> on_demand.View:
        """What the decision goes by."""
        return on_demand.View(
            *(self.state, self.demand(now), self.running, self.last, self.ready, self.looked, self.busy, self.unasked),
            *(self.pin, self.until),
        )

    @property
    def past(self) -> on_demand.Past:
        return on_demand.Past(self.state, self.asked, self.began, self.stop, self.failed)

    def left(self, now: float) -> float | None:
        """Seconds until it is ready, by its last starts: stage by stage where they are known."""
        if self.state == on_demand.STARTING and self.loading.found is not None:
            rest = self.loading.left(now)
            if rest is not None:
                return rest
        return on_demand.seconds_left(self.starts, now - self.since if self.state == on_demand.STARTING else 0.0)

    def retry(self, now: float) -> float:
        """Seconds after which a client may try again."""
        if self.state == on_demand.FAILED and self.until > now:
            return self.until - now
        found = self.left(now)
        return RETRY_SECONDS if found is None else max(found, 5.0)


# --- connections ------------------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """A connection of a client: one request."""

    transport: asyncio.Transport

    def __init__(self, hub: Hub, slot: Slot) -> None:
        self.hub, self.slot, self.phase = hub, slot, HEAD
        self.buffer = bytearray()
        self.head: on_demand.Head | None = None
        self.engine: Engine | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.speaker: asyncio.TimerHandle | None = None
        self.buffered = 0  # bytes of the buffer that the hub counts
        self.counted = self.told = self.paused = False
        self.reads_body = False  # to see whether it wants a stream
        self.stream = False  # that was begun here
        self.relayed = False  # in chunks of the engine
        self.since = self.tried = 0.0

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        mind_the_dead(transport.get_extra_info("socket"))
        self.hub.admit(self)
        self.alarm(HEAD_SECONDS, self.too_slow)

    def data_received(self, data: bytes) -> None:
        if self.phase == RELAYING and self.engine is not None:
            self.engine.transport.write(data)
        elif self.phase in ARRIVING:
            self.buffer += data
            self.count()
            self.hub.make_room()
            if self.phase == HEAD:
                self.read()
            elif self.phase in ARRIVING:
                self.more()

    def eof_received(self) -> bool:
        return False  # as engines take it: a client that says no more is gone

    def connection_lost(self, exc: Exception | None) -> None:
        self.hub.clients.pop(self, None)
        self.drop_buffer()
        self.leave()
        self.phase = ENDING
        if self.task is not None:
            self.task.cancel()
        if self.engine is not None:
            self.engine.transport.abort()
        if self.hub.closing:
            self.hub.poke()

    def pause_writing(self) -> None:
        if self.engine is not None:
            self.engine.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.engine is not None:
            self.engine.transport.resume_reading()

    # --- the request

    def alarm(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something done later, in place of what was to be."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.hub.loop.call_later(seconds, what)

    def count(self) -> None:
        """Tell the hub how many bytes are in the buffer."""
        self.hub.buffered += len(self.buffer) - self.buffered
        self.buffered = len(self.buffer)

    def drop_buffer(self) -> None:
        self.buffer = bytearray()
        self.count()

    def too_slow(self) -> None:
        if self.buffer:
            self.fail(408, "the head of the request did not come in time")
        else:
            self.transport.close()  # opened for later, and not used

    def read(self) -> None:
        """Read the head, once it is there, and see to the request."""
        try:
            head = on_demand.read_head(self.buffer)
        except on_demand.BadHead as wrong:
            self.fail(wrong.status, str(wrong))
            return
        if head is None:
            return
        self.head = head
        del self.buffer[: head.size]
        self.count()
        if self.timer is not None:
            self.timer.cancel()
        slot = self.slot
        up = slot.state == on_demand.READY or (slot.state == on_demand.DRAINING and not head.demands)
        if up and not (head.demands and slot.pin == on_demand.COLD):
            self.forward()
        elif head.demands:
            self.wait(head)
        else:
            self.look(head)

    def look(self, head: on_demand.Head) -> None:
        """Answer what only looks at an engine that does not run."""
        slot, now = self.slot, self.hub.loop.time()
        if head.path in ("/health", "/ping", slot.service.health.partition("?")[0]):
            if slot.state == on_demand.FAILED and now < slot.until:
                self.fail(503, slot.reason, slot.retry(now))
            else:
                self.answer(200, {"status": slot.state})
        elif head.path == "/v1/models":
            if self.may(head):
                self.answer(200, {"object": "list", "data": [self.hub.model(slot)]})
        elif head.path == "/metrics":
            self.finish(200, self.hub.figures(slot).encode(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self.fail(503, f"{slot.service.name} is {slot.state}; a request to its model starts it", slot.retry(now))

    def may(self, head: on_demand.Head) -> bool:
        """Whether a request has the key of the service; answers those that have not."""
        file = self.slot.service.api_key_file
        if not file:
            return True
        try:
            key = engine_client.read_api_key(file)
        except engine_client.Problem as problem:
            say(f"{self.slot.service.name}: {problem}", 3)
            self.fail(503, f"the key of {self.slot.service.name} cannot be read on its host")
            return False
        given = head.get("authorization").encode("latin-1")
        if hmac.compare_digest(given, f"Bearer {key}".encode()):
            return True
        self.fail(401, "Unauthorized")
        return False

    def wait(self, head: on_demand.Head) -> None:
        """Have the engine started, and wait for it."""
        slot, now = self.slot, self.hub.loop.time()
        if not self.may(head):
            return
        name = slot.service.name
        if slot.pin == on_demand.COLD:
            self.fail(503, slot.kept.said(name))
        elif slot.state == on_demand.FAILED and now < slot.until:
            self.fail(503, slot.reason, slot.until - now)
        elif len(slot.waiters) >= MOST_WAITING:
            self.fail(503, f"{MOST_WAITING} requests wait for {name} already", slot.retry(now))
        elif slot.service.while_loading == on_demand.REJECT:
            slot.mark = (slot.mark[0] if slot.mark else now, now)
            self.hub.poke()
            self.fail(503, f"{name} is being loaded; try again", slot.retry(now))
        else:
            self.since = now
            self.reads_body = (
                slot.service.while_loading == on_demand.COMMENTS
                and (head.method, head.version) == ("POST", "1.1")
                and 0 < (head.length or 0) <= MOST_BODY
            )
            self.queue()
            if self.reads_body and head.get("expect").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.more()

    def queue(self) -> None:
        """Stand in the line for the engine."""
        slot = self.slot
        self.phase = WAITING
        slot.waiters[self] = self.since
        self.alarm(max(self.since + slot.service.hold_seconds - self.hub.loop.time(), 0.0), self.held_too_long)
        self.hub.poke()
        if self.stream:
            self.comment()

    def held_too_long(self) -> None:
        slot, now = self.slot, self.hub.loop.time()
        slot.mark = (slot.mark[0] if slot.mark else self.since, now)  # it is to come again, and keeps its turn
        text = f"{slot.service.name} was not ready within {slot.service.hold_seconds:.0f} s: it is {slot.state}"
        self.fail(503, text, slot.retry(now))

    def more(self) -> None:
        """See to what came of the body while it waits."""
        if self.reads_body and self.head is not None and len(self.buffer) >= (self.head.length or 0):
            self.reads_body = False
            if self.phase == WAITING and on_demand.wants_stream(self.buffer):
                self.begin_stream()
        if len(self.buffer) > (MOST_BODY if self.reads_body else MOST_HELD) and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def begin_stream(self) -> None:
        """Begin the answer, so that the client hears that it is being loaded."""
        self.stream = self.told = True
        lines = ("Content-Type: text/event-stream; charset=utf-8", "Cache-Control: no-cache", "Connection: close")
        text = "\r\n".join(["HTTP/1.1 200 OK", *lines, "Transfer-Encoding: chunked", "", ""])
        self.transport.write(text.encode())
        self.comment()

    def comment(self) -> None:
        """Say how long it takes, now and then."""
        if self.phase != WAITING:
            return
        left = self.slot.left(self.hub.loop.time())
        text = f": loading, about {left:.0f} s left\n\n" if left is not None else ": loading\n\n"
        self.transport.write(on_demand.chunk(text))
        self.speaker = self.hub.loop.call_later(COMMENT_SECONDS, self.comment)

    def forward(self) -> None:
        """Give the request to the engine."""
        slot = self.slot
        self.leave()
        self.phase = CONNECTING
        if self.head is not None and self.head.demands:
            slot.running += 1
            slot.forwarded += 1
            self.counted = True
        self.task = self.hub.loop.create_task(self.connect())

    async def connect(self) -> None:
        slot = self.slot
        try:
            connecting = self.hub.loop.create_connection(lambda: Engine(self), slot.host, slot.port)
            await asyncio.wait_for(connecting, CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            self.unreached(str(error) or "it did not answer in time")

    def unreached(self, why: str) -> None:
        """The unit is active and its server is not there: it has ended a moment ago, or will not be."""
        if self.phase != CONNECTING or self.head is None:
            return
        now, slot = self.hub.loop.time(), self.slot
        self.leave()
        self.tried = self.tried or now
        if self.head.demands and now - self.tried < REACH_SECONDS:
            self.since = self.since or now
            self.queue()
        else:
            text = f"{slot.service.unit} is {slot.state}, but its engine does not accept connections at {slot.service.engine}"
            say(f"{text}: {why}", 4)
            self.fail(502, text)

    def connected(self, engine: Engine) -> None:
        """Send the request, as far as it has come; from now on both sides are passed on as they come."""
        if self.phase != CONNECTING or self.head is None:
            engine.transport.abort()
            return
        self.phase, self.engine = RELAYING, engine
        # Its answer to Expect would stand in a stream that was begun here.
        without = ("expect",) if self.told or self.head.length == len(self.buffer) else ()
        engine.transport.write(on_demand.forwarded(self.head, without) + bytes(self.buffer))
        self.drop_buffer()
        self.paused = False
        self.transport.resume_reading()

    # --- the answer

    def answered(self, data: bytes) -> None:
        """Pass on what the engine says."""
        if not self.stream or self.relayed:
            self.told = True
            self.transport.write(data)
            return
        self.buffer += data
        try:
            found = on_demand.read_answer(self.buffer)
        except on_demand.BadHead:
            self.ended()
            return
        if found is None:
            return
        status, chunked, size = found
        if status == 200 and chunked:
            self.relayed = True
            self.transport.write(bytes(self.buffer[size:]))
            self.drop_buffer()
        elif len(self.buffer) > MOST_HELD:
            self.ended()

    def ended(self) -> None:
        """The engine has said all."""
        if self.phase != RELAYING:
            return
        if not self.told:
            self.fail(502, f"the engine of {self.slot.service.name} ended before it answered")
        elif self.stream and not self.relayed:
            try:
                found = on_demand.read_answer(self.buffer)
            except on_demand.BadHead:
                found = None
            status, _chunked, size = found or (502, False, len(self.buffer))
            body = bytes(self.buffer[size:]) or b"the engine ended before it answered"
            self.transport.write(on_demand.chunk(on_demand.error_event(status, body)) + b"0\r\n\r\n")
            self.end()
        else:
            self.end()

    def answer(self, status: int, value: Any, *headers: str) -> None:
        self.finish(status, json.dumps(value).encode(), "application/json", *headers)

    def fail(self, status: int, text: str, retry: float | None = None) -> None:
        """Answer with an error."""
        value = on_demand.problem(status, text)
        if self.stream:
            self.transport.write(on_demand.chunk(f"data: {json.dumps(value)}\n\n") + b"0\r\n\r\n")
            self.end()
            return
        headers = [f"Retry-After: {max(round(retry), 1)}"] if retry is not None else []
        if status == 401:
            headers.append("WWW-Authenticate: Bearer")
        self.answer(status, value, *headers)

    def finish(self, status: int, body: bytes, kind: str, *headers: str) -> None:
        """Answer from here."""
        self.transport.write(
            whole(status, body, kind, *headers, empty=self.head is not None and self.head.method == "HEAD")
        )
        self.end()

    def end(self) -> None:
        """Nothing more is sent. What the client still sends is read for a while, else the kernel would take its answer back."""
        self.leave()
        self.drop_buffer()
        self.phase = ENDING
        if self.engine is not None:
            self.engine.transport.abort()
        with contextlib.suppress(OSError):
            self.transport.write_eof()
        self.transport.resume_reading()
        self.alarm(LINGER_SECONDS, self.transport.close)

    def leave(self) -> None:
        """Neither wait nor count any more."""
        self.slot.waiters.pop(self, None)
        for timer in (self.timer, self.speaker):
            if timer is not None:
                timer.cancel()
        if self.counted:
            self.counted = False
            self.slot.running -= 1
            self.slot.last = self.hub.loop.time()
            if not self.slot.running and self.hub.waited_for():
                self.hub.poke()


class Engine(asyncio.Protocol):
    """The connection of a request to its engine."""

    transport: asyncio.Transport

    def __init__(self, client: Client) -> None:
        self.client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.client.connected(self)

    def data_received(self, data: bytes) -> None:
        if self.client.phase == RELAYING:
            self.client.answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.client.ended()

    def pause_writing(self) -> None:
        self.client.transport.pause_reading()

    def resume_writing(self) -> None:
        self.client.transport.resume_reading()


# --- the process ------------------------------------------------------------------------------------------------------------


class Hub:
    """The process: sockets, what the units do, and what follows."""

    loop: asyncio.AbstractEventLoop
    event: asyncio.Event

    def __init__(self, given: dict[str, Any], poll: float) -> None:
        services, self.groups = on_demand.from_mapping(given)
        self.run_dir = Path(str(given.get("run") or "/run/dgxspark/on_demand"))
        self.state_dir = Path(str(given.get("state") or "/var/lib/dgxspark/on_demand"))
        self.pins = self.run_dir / "pins"
        self.root = str(given.get("sysroot") or "/")
        kept = (state_file.read(self.state_dir / "starts.json") or {}).get("starts")
        self.slots = {name: Slot(service, past_starts(kept, name)) for name, service in services.items()}
        for slot in self.slots.values():
            slot.last_start = self.last_start(slot)
        self.poll = poll
        self.clients: dict[Client, None] = {}  # the oldest first
        self.buffered = 0  # bytes of all requests that arrive or wait
        self.known, self.closing = False, False
        self.offset = time.time() - time.monotonic()
        self.looked = self.saved = 0.0
        self.shown: Any = None

    def poke(self) -> None:
        """Have a look taken soon."""
        self.event.set()

    def admit(self, client: Client) -> None:
        """Take a new connection; where there are too many, the one that has waited longest for its head goes."""
        if len(self.clients) >= MOST_CLIENTS:
            oldest = next((each for each in self.clients if each.phase == HEAD), client)
            oldest.transport.abort()
        self.clients[client] = None

    def make_room(self) -> None:
        """Send the largest requests that wait away, while all of them together take too much memory."""
        while self.buffered > MOST_BUFFERED:
            arriving = [each for each in self.clients if each.phase in ARRIVING]
            largest = max(arriving, key=lambda each: len(each.buffer))
            name = largest.slot.service.name
            text = f"too many large requests wait on the host of {name}"
            largest.fail(503, text, largest.slot.retry(self.loop.time()))

    def waited_for(self) -> bool:
        """Whether somebody waits for an engine."""
        return any(slot.waiters or slot.mark for slot in self.slots.values())

    # --- looking

    async def look(self) -> None:
        """Ask systemd what the units do, and read the pins."""
        self.looked = self.loop.time()
        units = [slot.service.unit for slot in self.slots.values()]
        argv = ["systemctl", "show", f"--property={PROPERTIES}", "--", *units]
        answer = await beside(command.run, argv, CALL_SECONDS)
        found = on_demand.units_of(answer.out) if answer.state == command.FINISHED and not answer.rc else {}
        if units and not found:
            if self.known or not self.shown:
                say(
                    f"warning: systemctl does not say what the engines do, nothing is changed: {answer.why or answer.err}",
                    4,
                )
            self.known = False
            return
        self.known = True
        self.read_pins()
        for slot in self.slots.values():
            if slot.service.unit in found:
                with apart(slot.service.name):
                    await self.follow(slot, found[slot.service.unit])

    def read_pins(self) -> None:
        """What owners, or the guard of the memory, keep warm or cold."""
        for name, slot in self.slots.items():
            with apart(name):
                pin = pins.read(self.pins, name)
                if pin != slot.kept:
                    say(pin.said(name) if pin.word else f"{name} is no longer kept {slot.pin}")
                    slot.kept, slot.pinned = pin, self.loop.time()
                if pin.word == on_demand.COLD:
                    self.refuse(slot, pin.said(name))

    def let_up(self, slot: Slot) -> None:
        """A person has started what the guard keeps cold: that ends it."""
        name = slot.service.name
        say(f"{name} was started by somebody, so the guard no longer keeps it cold")
        try:
            pins.write(self.pins, name, "")
            slot.kept = pins.Pin()
        except OSError as error:
            say(f"warning: {self.pins / name} cannot be removed: {error}", 4)

    async def follow(self, slot: Slot, unit: dict[str, str]) -> None:
        """Take over what a unit does."""
        now = self.loop.time()
        state = on_demand.follow(now, slot.past, unit)
        slot.failed, slot.stage = unit.get("ActiveState") == "failed", unit.get("StatusText", "")
        if unit.get("ActiveState") == "activating":
            slot.began = True
        if state == on_demand.FAILED and slot.state != on_demand.FAILED:
            await self.failed(slot, unit)
        elif state == on_demand.COLD and slot.state == on_demand.STOPPING and not self.memory_is_back(slot, now):
            return
        if state == on_demand.COLD and slot.state == on_demand.STOPPING and slot.failed:
            await self.tell(
                slot, "reset-failed"
            )  # some servers end with an error when they are told to; that is no failure
        if state != slot.state:
            self.change(slot, state, unit)
        if slot.state == on_demand.STARTING:
            self.follow_stages(slot, unit)
            await self.bound(slot, unit)

    async def bound(self, slot: Slot, unit: dict[str, str]) -> None:
        """End a start that has taken longer than it may: units of ranks have no limit, nor has a job that waits for another one."""
        now, limit = self.loop.time(), slot.service.start_seconds
        active = unit.get("ActiveState")
        began = moment(unit.get("InactiveExitTimestampMonotonic"), now) if active == "activating" else None
        if (
            now < (began or slot.since) + limit
            or active == "deactivating"
            or (slot.late is not None and now - slot.late[0] < LATE_SECONDS)
        ):
            return
        slot.late = (now, slot.late[1] if slot.late else slot.stage)
        say(f"{slot.service.name}: is stopped: it was not ready within {limit:.0f} s", 3)
        await self.tell(slot, "stop")

    def follow_stages(self, slot: Slot, unit: dict[str, str]) -> None:
        """See how far an engine is that starts, now and then."""
        now, invocation = self.loop.time(), unit.get("InvocationID", "")
        began = moment(unit.get("InactiveExitTimestampMonotonic"), now)
        if not invocation or began is None or unit.get("ActiveState") != "activating":
            return
        if slot.loading.invocation != invocation:
            slot.loading = Loading(invocation, began)
        loading = slot.loading
        if loading.busy or now - loading.asked < self.poll * STAGE_LOOKS:
            return
        # A journal that is slow to answer holds up nothing else.
        loading.busy, loading.asked = True, now
        self.loop.run_in_executor(None, loading.look, self.run_dir.parent, self.starts_of(slot), slot.service.unit)

    def starts_of(self, slot: Slot) -> Path:
        """The file with what the stages of the last starts took, which the helper of the units keeps."""
        return self.state_dir.parent / "starts" / f"{slot.service.name}.json"

    def last_start(self, slot: Slot) -> dict[str, Any] | None:
        """What each stage of the last start of a service took, seconds, as far as that is known."""
        found = start_stages.checked(state_file.read(self.starts_of(slot)))
        return {key: found[-1][key] for key in ("at", "seconds", "stages")} if found else None

    def freed_hosts(self, slot: Slot) -> dict[str, float | None] | None:
        """What came back on the other hosts of a model that spans several, as its first rank was told; None for one of this host alone."""
        record = state_file.read(self.run_dir.parent / "freed" / f"{slot.service.name}.json") or {}
        hosts = record.get("hosts")
        return dict(hosts) if isinstance(hosts, dict) else None

    def change(self, slot: Slot, state: str, unit: dict[str, str] | None = None) -> None:
        """A service has another state."""
        now, before, name = self.loop.time(), slot.state, slot.service.name
        began = moment((unit or {}).get("InactiveExitTimestampMonotonic"), now)
        entered = moment((unit or {}).get("ActiveEnterTimestampMonotonic"), now)
        took = (entered or now) - (began or slot.since)
        slot.state, slot.since, slot.wall, slot.loading = state, now, time.time(), Loading()
        if state == on_demand.STARTING:
            slot.late = None
        up = state in (on_demand.STARTING, on_demand.READY) and before in (on_demand.COLD, on_demand.FAILED)
        if up and unit is not None and slot.pin == on_demand.COLD and slot.kept.why:
            self.let_up(slot)
        if state == on_demand.STARTING and unit is not None:
            slot.since, slot.began, slot.reason = began or now, True, ""
        elif state == on_demand.READY and before != on_demand.DRAINING:
            slot.ready, slot.last_start = entered or now, self.last_start(slot)
            slot.last = now if before == on_demand.UNKNOWN else slot.ready  # what came before this process is not known
            slot.looked, slot.busy, slot.unasked, slot.mark, slot.reason = None, None, None, None, ""
            if before == on_demand.STARTING:
                slot.starts = [*slot.starts, round(max(took, 0.0), 1)][-KEPT_STARTS:]
                self.keep_starts()
                say(f"{name}: ready after {took:.0f} s, {len(slot.waiters)} requests waited")
        elif state == on_demand.COLD:
            slot.reason, slot.freed_hosts = "", self.freed_hosts(slot)
        elif state == on_demand.FAILED:
            say(f"{name}: {slot.reason}", 3)
            if slot.until > now:
                self.refuse(slot, slot.reason)
        if state not in (on_demand.READY, on_demand.DRAINING):
            slot.before = slot.before if state == on_demand.STOPPING else None
            slot.gone = None

    async def failed(self, slot: Slot, unit: dict[str, str]) -> None:
        """A start failed, or an engine ended while it served: find out why."""
        now, service = self.loop.time(), slot.service
        starting = slot.state == on_demand.STARTING
        soon = slot.state in (on_demand.READY, on_demand.DRAINING) and now - slot.ready < service.minimum_seconds
        ended = unit.get("ActiveState") == "inactive"
        why = "it was stopped while it started" if ended and slot.began else "its unit did not start" if ended else ""
        if slot.late is not None and starting:
            why = f"it was not ready within {service.start_seconds:.0f} s" + (
                f": {slot.late[1]}" if slot.late[1] else ""
            )
        why = why or await beside(reason_of, service.unit, unit)
        what = "could not be started" if starting else "ended"
        slot.reason = f"{service.name} {what}: {why}"
        slot.until = self.loop.time() + service.retry_seconds if starting or soon else 0.0
        if slot.until:
            slot.reason += (
                f". It is not tried again for {service.retry_seconds:.0f} s: systemctl start {service.unit} does"
            )

    def available(self) -> float | None:
        """GiB that the host has."""
        try:
            return hostmem.mem_available_gib(hostmem.read_meminfo(self.root))
        except OSError:
            return None

    def memory_is_back(self, slot: Slot, now: float) -> bool:
        """Whether the memory of an engine that was stopped here is the host's again, or is no longer waited for."""
        available = self.available()
        if slot.before is None or available is None:
            return True
        if slot.gone is None:
            slot.gone, slot.lowest = (now, now), available
        since, grown = slot.gone
        if available > slot.lowest + hostmem.STEADY_GIB:
            slot.gone, slot.lowest = (since, now), available
            grown = now
        # What another engine takes while it loads hides what this one gave back; its gate waits for what it needs.
        hidden = any(self.took_since(other, slot.since) for other in self.slots.values() if other is not slot)
        steady = now - grown >= self.poll / 2
        measured = bool(slot.expected) and not hidden
        back = available - slot.before >= hostmem.BACK_SHARE * (slot.expected or 0.0) if measured else steady
        if not back and now - since < hostmem.BACK_SECONDS:
            return False
        name = slot.service.name
        if hidden:
            say(f"{name}: stopped; another engine loads, so what came back cannot be told")
            return True
        slot.freed = (round(max(available - slot.before, 0.0), 2), round(now - slot.since, 1))
        late = "" if back else f", {slot.expected:.1f} GiB were expected"
        say(f"{name}: stopped, {slot.freed[0]:.1f} GiB are back after {slot.freed[1]:.0f} s{late}", 6 if back else 4)
        return True

    def took_since(self, slot: Slot, when: float) -> bool:
        """Whether an engine loads, or did so since a moment."""
        serves = slot.state in (on_demand.READY, on_demand.DRAINING)
        return slot.state == on_demand.STARTING or (serves and slot.ready >= when)

    # --- doing

    async def consider(self) -> None:
        """Decide what is to be done, and do it."""
        actions = self.decide()
        asks = [action for action in actions if action.what == on_demand.LOOK]
        if asks:
            await asyncio.gather(*(self.ask(self.slots[action.name]) for action in asks))
            actions = self.decide()
        await asyncio.gather(*(self.do(action) for action in actions if action.what != on_demand.LOOK))

    async def do(self, action: on_demand.Action) -> None:
        """Do one thing; a failure keeps nothing else from being done."""
        with apart(action.name):
            work = self.act(action)
            if work is not None:
                await work

    def decide(self) -> list[on_demand.Action]:
        now = self.loop.time()
        services = {name: slot.service for name, slot in self.slots.items()}
        return on_demand.decide(now, services, self.groups, {name: slot.view(now) for name, slot in self.slots.items()})

    async def ask(self, slot: Slot) -> None:
        """Ask an engine whether it has requests, whoever sent them."""
        began = self.loop.time()
        # A speech server does not count its requests; those that came through its port are counted here.
        busy = None if slot.service.kind == on_demand.VLLM else False
        if busy is None:
            with apart(slot.service.name):
                busy = await beside(has_requests, slot.service.engine)
        slot.looked, slot.busy = began, busy
        if busy:
            slot.last = max(slot.last, began)
        slot.unasked = None if busy is not None else slot.unasked or began

    def act(self, action: on_demand.Action) -> Coroutine[Any, Any, None] | None:
        """Do one thing; what takes longer is returned. The state changes at once, so that no request comes between."""
        slot, now = self.slots[action.name], self.loop.time()
        if action.what == on_demand.REFUSE:
            self.refuse(slot, f"{action.name} cannot be started: {action.why}")
        elif action.what == on_demand.DRAIN:
            say(f"{action.name}: is drained: {action.why}; its new requests wait")
            self.change(slot, on_demand.DRAINING)
        elif action.what == on_demand.RESUME:
            say(f"{action.name}: goes on: {action.why}")
            self.change(slot, on_demand.READY)
            self.poke()
        elif action.what == on_demand.START:
            say(f"{action.name}: is started: {action.why}")
            slot.asked, slot.began, slot.stop, slot.reason = now, False, False, ""
            slot.begun += 1
            self.change(slot, on_demand.STARTING)
            return self.tell(slot, "start")
        elif action.what == on_demand.STOP:
            say(f"{action.name}: is stopped: {action.why}")
            slot.asked, slot.stop = now, True
            slot.before, slot.expected = self.available(), self.taken(slot)
            self.change(slot, on_demand.STOPPING)
            return self.tell(slot, "stop")
        return None

    def taken(self, slot: Slot) -> float | None:
        """GiB that an engine took at its start, by the record of its unit, or else gave back at its last stop."""
        record = state_file.read(self.run_dir.parent / "starts" / f"{slot.service.unit}.json") or {}
        with contextlib.suppress(KeyError, TypeError):
            return max(float(record["gate"]["available_gib"] - record["ready"]["available_gib"]), 0.0)
        return slot.freed[0] if slot.freed else None

    async def tell(self, slot: Slot, verb: str) -> None:
        """Have systemd start or stop a unit; the next looks see what comes of it."""
        answer = await beside(command.run, ["systemctl", "--no-block", verb, "--", slot.service.unit], CALL_SECONDS)
        if answer.rc == 0:
            return
        why = redaction.Redactor([]).clean(answer.err.strip() or answer.why or f"exit code {answer.rc}")
        say(f"{slot.service.name}: systemctl {verb} {slot.service.unit}: {why}", 4)
        if verb == "start" and answer.state != command.SILENT:
            slot.until = self.loop.time() + slot.service.retry_seconds
            slot.reason = f"{slot.service.name} could not be started: {why}"
            self.change(slot, on_demand.FAILED)

    def refuse(self, slot: Slot, why: str) -> None:
        """Answer all that wait with the reason."""
        slot.mark = None
        for client in list(slot.waiters):
            client.fail(503, why, slot.retry(self.loop.time()))

    def release(self) -> None:
        """Give engines that are ready the requests that waited; and look after clients whose bodies are not read further."""
        for slot in self.slots.values():
            for client in list(slot.waiters):
                with apart(slot.service.name):
                    if slot.state == on_demand.READY:
                        client.forward()
                    elif client.paused and hung_up(client.transport.get_extra_info("socket")):
                        client.transport.abort()

    # --- telling

    def model(self, slot: Slot) -> dict[str, Any]:
        """The model of a service, as an engine lists it."""
        name = slot.service.model
        found = {
            "id": name,
            "object": "model",
            "created": int(slot.wall),
            "owned_by": slot.service.kind,
            "root": name,
            "parent": None,
        }
        return {**found, "max_model_len": slot.service.max_model_len, "permission": []}

    def figures(self, slot: Slot) -> str:
        """The metrics of a service whose engine does not run."""
        label = f'service="{slot.service.name}"'
        figures = {
            "waiting": ("gauge", "requests that wait for the engine", len(slot.waiters)),
            "starts_total": ("counter", "starts since this program runs", slot.begun),
            "start_seconds": ("gauge", "what the last start took", slot.starts[-1] if slot.starts else None),
            "freed_gib": ("gauge", "memory that the last stop gave back", slot.freed[0] if slot.freed else None),
        }
        lines = ["# HELP spark_on_demand_state 1 for the state of the service", "# TYPE spark_on_demand_state gauge"]
        lines += [
            f'spark_on_demand_state{{{label},state="{each}"}} {int(each == slot.state)}' for each in on_demand.STATES
        ]
        for name, (kind, text, value) in figures.items():
            if value is not None:
                lines += [f"# HELP spark_on_demand_{name} {text}", f"# TYPE spark_on_demand_{name} {kind}"]
                lines.append(f"spark_on_demand_{name}{{{label}}} {value}")
        return "\n".join([*lines, ""])

    def account(self, slot: Slot, now: float) -> dict[str, Any]:
        """What is told of a service. Seconds are rounded, so that there is something new once a second at most."""
        starting = slot.state == on_demand.STARTING
        left = slot.left(now) if starting else None
        serves = slot.state in (on_demand.READY, on_demand.DRAINING)
        idle = serves and not slot.running
        return {
            "state": slot.state,
            "since": stamp(slot.wall),
            "in_flight": slot.running,
            "waiting": len(slot.waiters),
            "idle_since": stamp(self.offset + max(slot.last, slot.ready)) if idle else None,
            "pin": slot.pin or "auto",
            "pin_why": slot.kept.why,
            "start_seconds": slot.starts,
            "last_start": slot.last_start,
            "left_seconds": None if left is None else round(left),
            "stage": (slot.loading.found or {}).get("stage", slot.stage) if starting else "",
            "percent": (slot.loading.found or {}).get("percent") if starting else None,
            "reason": slot.reason,
            "freed_gib": slot.freed[0] if slot.freed else None,
            "freed_seconds": slot.freed[1] if slot.freed else None,
            "freed_hosts": slot.freed_hosts,
            "starts": slot.begun,
            "requests": slot.forwarded,
        }

    async def save(self) -> None:
        """Write what others read: when there is something new, and now and then as a sign of life."""
        now = self.loop.time()
        value = {name: self.account(slot, now) for name, slot in self.slots.items()}
        if now - self.saved < (SAVE_SECONDS if (value, self.known) != self.shown else ALIVE_SECONDS):
            return
        self.shown, self.saved = (value, self.known), now
        told = {
            name: {**each, "idle_seconds": round(now - max(slot.last, slot.ready)) if each["idle_since"] else None}
            for (name, each), slot in zip(value.items(), self.slots.values())
        }
        counts = {state: sum(slot.state == state for slot in self.slots.values()) for state in on_demand.STATES}
        waiting = sum(len(slot.waiters) for slot in self.slots.values())
        texts = [f"{count} {state}" for state, count in counts.items() if count]
        notify(f"STATUS={', '.join(texts)}; {waiting} requests wait")
        try:
            given = {"version": 1, "at": stamp(time.time()), "known": self.known, "services": told}
            await beside(state_file.write, self.run_dir / "state.json", given)
        except OSError as error:
            say(f"warning: {self.run_dir}/state.json cannot be written: {error}", 4)

    def keep_starts(self) -> None:
        """Keep what the last starts took."""
        try:
            starts = {name: slot.starts for name, slot in self.slots.items() if slot.starts}
            state_file.write(self.state_dir / "starts.json", {"starts": starts})
        except OSError as error:
            say(f"warning: {self.state_dir}/starts.json cannot be written: {error}", 4)

    # --- running

    async def serve(self, sockets: list[tuple[str, socket.socket]]) -> None:
        """Serve until SIGTERM, and then until running requests are done."""
        self.loop, self.event = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.close)
        await self.look()
        servers = [
            await self.loop.create_server(functools.partial(Client, self, self.slots[name]), sock=sock, backlog=BACKLOG)
            for name, sock in sockets
        ]
        say(f"serves {', '.join(sorted({name for name, _sock in sockets})) or 'nothing'}")
        notify("READY=1")
        while not self.closing:
            await self.round()
        notify("STOPPING=1")
        for server in servers:
            server.close()  # systemd holds the sockets: new connections wait there
        await self.finish()

    async def round(self) -> None:
        """One look, and what follows."""
        try:
            await self.look()
            self.release()
            if self.known:
                await self.consider()
            await self.save()
        except Exception as error:  # nothing in here may end what requests go through
            say(f"warning: {error!r}", 3)
            await asyncio.sleep(self.poll)
        notify("WATCHDOG=1")
        await self.pause()

    async def pause(self) -> None:
        """Wait until the next look is due, or something calls for it."""
        now = self.loop.time()
        moving = (on_demand.STARTING, on_demand.STOPPING, on_demand.DRAINING)
        moved = [slot.since for slot in self.slots.values() if slot.state in moving]
        moved += [since for slot in self.slots.values() for since in (slot.demand(now),) if since is not None]
        recent = moved and now - max(moved) < HURRY_SECONDS
        seconds = self.poll / 8 if recent else self.poll / 2 if moved else self.poll
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.event.wait(), seconds)
        self.event.clear()
        await asyncio.sleep(max(self.looked + self.poll / 8 - self.loop.time(), 0.0))

    def close(self) -> None:
        self.closing = True
        self.poke()

    async def finish(self) -> None:
        """See running and waiting requests through, up to a limit."""
        began = self.loop.time()
        while self.clients:
            waited = self.loop.time() - began
            for client in list(self.clients):
                if client.phase == HEAD and waited > LINGER_SECONDS:
                    client.transport.abort()
                elif client.phase == WAITING and waited > LEAVE_SECONDS:
                    client.fail(503, "the host ends its service for models on demand; try again", 10.0)
            if waited > LEAVE_SECONDS + LINGER_SECONDS:
                break
            await self.round()
        say("ends; engines go on as they are")


@contextlib.contextmanager
def apart(name: str) -> Iterator[None]:
    """Report a failure about one service, and go on with the others."""
    try:
        yield
    except Exception as error:  # whatever an engine or a file says
        say(f"warning: {name}: {error!r}", 3)


def past_starts(kept: Any, name: str) -> list[float]:
    """What the last starts of a service took, by the file of an earlier process."""
    found = kept.get(name) if isinstance(kept, dict) else None
    values = found if isinstance(found, list) else []
    return [float(each) for each in values if isinstance(each, (int, float)) and each >= 0][-KEPT_STARTS:]


def moment(text: str | None, now: float) -> float | None:
    """A time of systemd's monotonic clock, which is this program's too, seconds; None where it is not given."""
    value = int(text) / 1e6 if text and text.isdigit() else 0.0
    return value if 0 < value <= now else None


def stamp(wall: float) -> str:
    """A time for people and programs."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))


def has_requests(url: str) -> bool | None:
    """Whether an engine works on requests by its own count; false where it does not count, None where it does not say."""
    try:
        reply = http_client.fetch(f"{url.rstrip('/')}/metrics", timeout=ASK_SECONDS)
    except (OSError, ValueError):
        return None
    if reply.status in (404, 405):
        return False
    if reply.status != 200:
        return None
    text = reply.body.decode("utf-8", "replace")
    figures = metrics.parse(text)
    counts = [figures[name] for name in ("requests_running", "requests_waiting")]
    if None in counts and any(name in text for name in metrics.GAUGES["requests_running"]):
        return None  # it counts, but its figures are not numbers
    return any(counts)


def reason_of(unit: str, properties: dict[str, str]) -> str:
    """Why a unit failed, without secrets: by systemd, and by what it last said, our own helpers first."""
    number = properties.get("InvocationID", "")
    match = f"_SYSTEMD_INVOCATION_ID={number}" if number else f"--unit={unit}"
    argv = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=40", match]
    lines = [line.strip() for line in command.run(argv, 5.0).out.splitlines() if line.strip()]
    lines = [line for line in lines if ": load guard: " not in line]
    own = [line for line in lines if re.match(r"spark-(unit|rank|health): ", line)]
    told = properties.get("StatusText", "")
    if told.startswith(DOWN):  # the supervisor of a rank; what it says after that is what it does about it
        own = [told[len(DOWN) :]]
    said = (own or ([told] if told and not told.startswith("load guard") else lines))[-1:]
    text = f"its unit failed ({properties.get('Result') or 'without a result'})"
    return f"{text}; it last said: {redaction.Redactor([]).clean(said[0])[:500]}" if said else text


def run(given: dict[str, Any], poll: float) -> int:
    """Serve."""
    hub = Hub(given, poll)
    sockets = []
    for name, sock in handed_over():
        if name in hub.slots:
            sockets.append((name, sock))
        else:
            say(
                f"warning: systemd hands over a socket of {name}, which the settings do not have; run site.yml again", 4
            )
    for name in sorted(set(hub.slots) - {name for name, _sock in sockets}):
        say(f"warning: there is no socket of {name}: is spark-on-demand-{name}.socket started?", 4)
    asyncio.run(hub.serve(sockets))
    return 0


def pin(given: dict[str, Any], name: str, state: str) -> int:
    """Keep a service warm or cold, or no longer."""
    services, _groups = on_demand.from_mapping(given)
    if name not in services or not NAME.match(name):
        print(f"spark-on-demand: there is no service {name}; there are {', '.join(sorted(services))}", file=sys.stderr)
        return 2
    folder = Path(str(given.get("run") or "/run/dgxspark/on_demand")) / "pins"
    pins.write(folder, name, "" if state == "auto" else state)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark-on-demand", description="Starts model servers when they are asked for."
    )
    parser.add_argument(
        "--settings",
        type=Path,
        default=Path("/etc/dgxspark/on_demand/settings.json"),
        help="settings (default: %(default)s)",
    )
    parser.add_argument(
        "--poll", type=float, default=POLL_SECONDS, help="seconds between two looks (default: %(default)s)"
    )
    parser.add_argument("--status", action="store_true", help="print what each service does, as JSON")
    verbs = parser.add_subparsers(dest="verb")
    verb = verbs.add_parser("pin", help="keep a service warm or cold")
    verb.add_argument("name")
    verb.add_argument("state", choices=("warm", "cold", "auto"))
    args = parser.parse_args()
    given = state_file.read(args.settings)
    if given is None:
        raise SystemExit(f"spark-on-demand: {args.settings} cannot be read; run site.yml again")
    try:
        if args.verb == "pin":
            return pin(given, args.name, args.state)
        if args.status:
            path = Path(str(given.get("run") or "/run/dgxspark/on_demand")) / "state.json"
            found = state_file.read(path)
            if found is None:
                raise SystemExit(f"spark-on-demand: {path} cannot be read: is spark-on-demand.service running?")
            print(json.dumps(found, indent=1))
            return 0
        return run(given, args.poll)
    except on_demand.Wrong as wrong:
        raise SystemExit(f"spark-on-demand: {args.settings}: {wrong}; run site.yml again") from None


if __name__ == "__main__":
    sys.exit(main())
