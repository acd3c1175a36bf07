# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections of spark_on_demand.py: requests of clients that wait for an engine and are passed on to it.

A connection carries one request. Its head is read, and everything after it is passed on as it comes, both ways. GET, HEAD and OPTIONS neither
wake an engine nor keep it: without a running engine they are answered here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import struct
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from spark_on_demand_slot import Slot, say

from dgxspark_vllm._runtime import engine_client, on_demand

if TYPE_CHECKING:
    from spark_on_demand import Hub

HEAD_SECONDS = 30.0
CONNECT_SECONDS = 5.0
REACH_SECONDS = 15.0  # that an engine may refuse connections although its unit is active
LINGER_SECONDS = 2.0  # a client reads the answer before it is cut off
COMMENT_SECONDS = 10.0
MOST_WAITING = 1000
MOST_HELD, MOST_BODY = 2**20, 8 * 2**20  # bytes of a waiting body, and of a body that is read for its option "stream"

HEAD, WAITING, CONNECTING, RELAYING, ENDING = "head", "waiting", "connecting", "relaying", "ending"
ARRIVING = (HEAD, WAITING, CONNECTING)


def set_keepalive(sock: Any) -> None:
    """Have the kernel notice within minutes that a client is gone without closing its connection."""
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


def is_closed(sock: Any) -> bool:
    """Whether the other side of a connection that is not read from has closed it."""
    try:
        (state,) = struct.unpack("B", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    except OSError:
        return True
    return state in (7, 8)  # CLOSE, CLOSE_WAIT of tcp_states.h


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
        self.counted = self.answer_began = self.paused = False
        self.reads_body = False  # to see whether the client wants a stream
        self.stream = False  # this program has begun one
        self.relayed = False  # chunks of the engine continue it
        self.since = self.tried = 0.0

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        set_keepalive(transport.get_extra_info("socket"))
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

    def alarm(self, seconds: float, action: Callable[[], None]) -> None:
        """Call a function later, instead of the former function of the timer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.hub.loop.call_later(seconds, action)

    def count(self) -> None:
        """Count the bytes of the buffer among the bytes of all requests."""
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
        """Read the head, once it is complete, and handle the request."""
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
        if up and not (head.demands and slot.pin.word == on_demand.COLD):
            self.forward()
        elif head.demands:
            self.wait(head)
        else:
            self.look(head)

    def look(self, head: on_demand.Head) -> None:
        """Answer a query about an engine that does not run."""
        slot, now = self.slot, self.hub.loop.time()
        if head.path in ("/health", "/ping", slot.service.health.partition("?")[0]):
            if slot.state == on_demand.FAILED and now < slot.until:
                self.fail(503, slot.reason, slot.retry(now))
            else:
                self.answer(200, {"status": slot.state})
        elif head.path == "/v1/models":
            if self.is_allowed(head):
                self.answer(200, {"object": "list", "data": [self.hub.model(slot)]})
        elif head.path == "/metrics":
            self.finish(200, self.hub.figures(slot).encode(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self.fail(503, f"{slot.service.name} is {slot.state}; a request to its model starts it", slot.retry(now))

    def is_allowed(self, head: on_demand.Head) -> bool:
        """Whether a request has the key of the service; answers it if it has not."""
        file = self.slot.service.api_key_file
        if not file:
            return True
        try:
            key = engine_client.read_api_key(file)
        except engine_client.Problem as problem:
            say(f"{self.slot.service.name}: {problem}", 3)
            self.fail(503, f"the key of {self.slot.service.name} cannot be read on its host")
            return False
        authorization = head.get("authorization").encode("latin-1")
        if hmac.compare_digest(authorization, f"Bearer {key}".encode()):
            return True
        self.fail(401, "Unauthorized")
        return False

    def wait(self, head: on_demand.Head) -> None:
        """Have the engine started, and wait for it."""
        slot, now = self.slot, self.hub.loop.time()
        if not self.is_allowed(head):
            return
        name = slot.service.name
        if slot.pin.word == on_demand.COLD:
            self.fail(503, slot.pin.text(name))
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
        slot.mark = (slot.mark[0] if slot.mark else self.since, now)  # the client keeps its turn when it comes again
        text = f"{slot.service.name} was not ready within {slot.service.hold_seconds:.0f} s: it is {slot.state}"
        self.fail(503, text, slot.retry(now))

    def more(self) -> None:
        """Take in the body, as far as it has come, while the request waits."""
        if self.reads_body and self.head is not None and len(self.buffer) >= (self.head.length or 0):
            self.reads_body = False
            if self.phase == WAITING and on_demand.wants_stream(self.buffer):
                self.begin_stream()
        if len(self.buffer) > (MOST_BODY if self.reads_body else MOST_HELD) and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def begin_stream(self) -> None:
        """Begin the answer, so that the client hears that it is being loaded."""
        self.stream = self.answer_began = True
        lines = ("Content-Type: text/event-stream; charset=utf-8", "Cache-Control: no-cache", "Connection: close")
        text = "\r\n".join(["HTTP/1.1 200 OK", *lines, "Transfer-Encoding: chunked", "", ""])
        self.transport.write(text.encode())
        self.comment()

    def comment(self) -> None:
        """Tell the client from time to time how long the start still takes."""
        if self.phase != WAITING:
            return
        seconds = self.slot.remaining(self.hub.loop.time())
        text = f": loading, about {seconds:.0f} s left\n\n" if seconds is not None else ": loading\n\n"
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
        """Wait again: the unit is active, but its server has just ended, or will never listen."""
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
        """Send the request, as far as it has come; from then on pass on both directions."""
        if self.phase != CONNECTING or self.head is None:
            engine.transport.abort()
            return
        self.phase, self.engine = RELAYING, engine
        # Its answer to Expect would stand in a stream that was begun here.
        without = ("expect",) if self.answer_began or self.head.length == len(self.buffer) else ()
        engine.transport.write(on_demand.forwarded(self.head, without) + bytes(self.buffer))
        self.drop_buffer()
        self.paused = False
        self.transport.resume_reading()

    # --- the answer

    def answered(self, data: bytes) -> None:
        """Pass on a piece of the engine's answer."""
        if not self.stream or self.relayed:
            self.answer_began = True
            self.transport.write(data)
            return
        self.buffer += data
        try:
            head = on_demand.read_answer(self.buffer)
        except on_demand.BadHead:
            self.ended()
            return
        if head is None:
            return
        status, chunked, size = head
        if status == 200 and chunked:
            self.relayed = True
            self.transport.write(bytes(self.buffer[size:]))
            self.drop_buffer()
        elif len(self.buffer) > MOST_HELD:
            self.ended()

    def ended(self) -> None:
        """The engine has closed its connection."""
        if self.phase != RELAYING:
            return
        if not self.answer_began:
            self.fail(502, f"the engine of {self.slot.service.name} ended before it answered")
        elif self.stream and not self.relayed:
            try:
                head = on_demand.read_answer(self.buffer)
            except on_demand.BadHead:
                head = None
            status, _chunked, size = head or (502, False, len(self.buffer))
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
        """Send a whole answer of this program."""
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {kind}"]
        lines += [f"Content-Length: {len(body)}", "Connection: close"]
        is_empty = self.head is not None and self.head.method == "HEAD"
        text = "\r\n".join([*lines, *headers, "", ""])
        self.transport.write(text.encode("latin-1") + (b"" if is_empty else body))
        self.end()

    def end(self) -> None:
        """Send no more. The client's data are read for a while: else the kernel would reset the connection before the answer arrives."""
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
        """Leave the queue, and the count of running requests."""
        self.slot.waiters.pop(self, None)
        for timer in (self.timer, self.speaker):
            if timer is not None:
                timer.cancel()
        if self.counted:
            self.counted = False
            self.slot.running -= 1
            self.slot.last = self.hub.loop.time()
            is_waited_for = any(slot.waiters or slot.mark for slot in self.hub.slots.values())
            if not self.slot.running and is_waited_for:
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
