# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts model servers when they are asked for, and stops those that are idle: the main process of spark-on-demand.service.

spark-on-demand                         serve the sockets that systemd hands over, one name a service
spark-on-demand --status                state of each service, as JSON
spark-on-demand pin NAME warm|cold|auto keep a service loaded or unloaded despite requests; auto ends that

on_demand.py decides what to start and to stop; this program looks at units and memory, and acts. Its connections are in
spark_on_demand_client.py, the state of each service in spark_on_demand_slot.py. Engines are units that systemd starts, stops and
watches; this process asks it for their state, so that an admin may start and stop them too, and so may an earlier process of this program.

Python's standard library and the files in its folder are all it needs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, where only installed files belong

from spark_on_demand_client import ARRIVING, HEAD, LINGER_SECONDS, WAITING, Client, is_closed
from spark_on_demand_slot import CALL_SECONDS, KEPT_STARTS, Loading, Slot, past_starts, say, stamp

from dgxspark_vllm._common import redaction
from dgxspark_vllm._host import start_lock, units
from dgxspark_vllm._runtime import command, hostmem, http_client, metrics, on_demand, pins, start_stages, state_file
from dgxspark_vllm._runtime.systemd import handed_over, notify

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
PROPERTIES = (
    "Id",
    "ActiveState",
    "SubState",
    "Result",
    "StatusText",
    "Job",
    "InvocationID",
    "InactiveExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
)
POLL_SECONDS = 2.0
HURRY_SECONDS = 30.0  # after a change, in which looks are eight times as frequent
ASK_SECONDS = 2.0  # that an engine has to tell its metrics
SAVE_SECONDS, ALIVE_SECONDS = 1.0, 15.0
LEAVE_SECONDS = 300.0
LATE_SECONDS = 30.0  # between two attempts to end a start that takes too long
MOST_BUFFERED = 64 * 2**20  # of all requests together; the unit's MemoryMax leaves room for the program itself
MOST_CLIENTS = 8192  # connections; the unit's LimitNOFILE has two for each
STAGE_LOOKS = 2.5  # looks at units for one at the log of an engine that starts
BACKLOG = 1024
JOURNAL_LINES = 400  # of a failed start: two tracebacks of vLLM
DOWN = "down: "  # begins the status of a rank that failed, or lost another one


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Call a function that may take a while in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


class Hub:
    """The process: its services, their units and its connections."""

    loop: asyncio.AbstractEventLoop
    event: asyncio.Event

    def __init__(self, settings: dict[str, Any], poll: float) -> None:
        services, self.groups = on_demand.from_mapping(settings)
        self.run_dir = run_dir(settings)
        self.state_dir = Path(str(settings.get("state") or "/var/lib/dgxspark/on_demand"))
        self.pins = self.run_dir / "pins"
        self.root = str(settings.get("sysroot") or "/")
        starts = (state_file.read(self.state_dir / "starts.json") or {}).get("starts")
        self.slots = {name: Slot(service, past_starts(starts, name)) for name, service in services.items()}
        for slot in self.slots.values():
            slot.last_start = self.last_start(slot)
        self.poll = poll
        self.clients: dict[Client, None] = {}  # the oldest first
        self.buffered = 0  # bytes of all requests that arrive or wait
        self.known, self.closing = False, False
        self.loading = ""  # unit of the engine of the host that loads, also one that is not on demand
        self.offset = time.time() - time.monotonic()
        self.looked = self.saved = 0.0
        self.shown: Any = None

    def poke(self) -> None:
        """Have the units looked at soon."""
        self.event.set()

    def admit(self, client: Client) -> None:
        """Take a new connection; if there are too many, drop the connection with the longest wait for its head."""
        if len(self.clients) >= MOST_CLIENTS:
            oldest = next((other for other in self.clients if other.phase == HEAD), client)
            oldest.transport.abort()
        self.clients[client] = None

    def make_room(self) -> None:
        """Refuse the largest waiting requests while all of them together take too much memory."""
        while self.buffered > MOST_BUFFERED:
            arriving = [client for client in self.clients if client.phase in ARRIVING]
            largest = max(arriving, key=lambda client: len(client.buffer))
            name = largest.slot.service.name
            text = f"too many large requests wait on the host of {name}"
            largest.fail(503, text, largest.slot.retry(self.loop.time()))

    # --- looking

    async def look(self) -> None:
        """Ask systemd for the state of the units, and read the pins."""
        self.looked = self.loop.time()
        argv = units.show_command([slot.service.unit for slot in self.slots.values()], PROPERTIES)
        answer = await in_thread(command.run, argv, CALL_SECONDS)
        printed = answer.out if answer.state == command.FINISHED and not answer.rc else ""
        states = {unit["Id"]: unit for unit in units.read_properties(printed) if unit.get("Id")}
        if self.slots and not states:
            if self.known or not self.shown:
                why = answer.why or answer.err
                say(f"warning: systemctl does not say what the engines do, nothing is changed: {why}", 4)
            self.known = False
            return
        self.known = True
        self.loading = await in_thread(start_lock.loading, self.run_dir.parent)
        self.read_pins()
        for slot in self.slots.values():
            if slot.service.unit in states:
                with reporting(slot.service.name):
                    await self.follow(slot, states[slot.service.unit])

    def read_pins(self) -> None:
        """Read which services their owners, or the guard of the memory, keep warm or cold."""
        for name, slot in self.slots.items():
            with reporting(name):
                pin = pins.read(self.pins, name)
                if pin != slot.pin:
                    say(pin.text(name) if pin.word else f"{name} is no longer kept {slot.pin.word}")
                    slot.pin, slot.pinned = pin, self.loop.time()
                if pin.word == on_demand.COLD:
                    self.refuse(slot, pin.text(name))

    def remove_guards_pin(self, slot: Slot, before: str) -> None:
        """Remove the guard's pin, if there is one, of a service that a person has started. before: its former state."""
        if slot.pin.word != on_demand.COLD or not slot.pin.why or before not in (on_demand.COLD, on_demand.FAILED):
            return
        name = slot.service.name
        say(f"{name} was started by somebody, so the guard no longer keeps it cold")
        try:
            pins.write(self.pins, name, "")
            slot.pin = pins.Pin()
        except OSError as error:
            say(f"warning: {self.pins / name} cannot be removed: {error}", 4)

    async def follow(self, slot: Slot, unit: dict[str, str]) -> None:
        """Take over the state of a unit."""
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
            await self.systemctl(slot, "reset-failed")  # some servers end with an error even when they were told to
        if state != slot.state:
            self.change(slot, state, unit)
        if slot.state == on_demand.STARTING:
            self.follow_stages(slot, unit)
            await self.bound(slot, unit)

    async def bound(self, slot: Slot, unit: dict[str, str]) -> None:
        """End a start that has taken longer than it may: units of ranks have no limit, nor has a job that waits for another one."""
        now, limit = self.loop.time(), slot.service.start_seconds
        active = unit.get("ActiveState")
        began = moment(unit, "InactiveExit", now) if active == "activating" else None
        if (
            now < (began or slot.since) + limit
            or active == "deactivating"
            or (slot.late is not None and now - slot.late[0] < LATE_SECONDS)
        ):
            return
        slot.late = (now, slot.late[1] if slot.late else slot.stage)
        say(f"{slot.service.name}: is stopped: it was not ready within {limit:.0f} s", 3)
        await self.systemctl(slot, "stop")

    def follow_stages(self, slot: Slot, unit: dict[str, str]) -> None:
        """Look from time to time at the log of an engine that starts."""
        now, invocation = self.loop.time(), unit.get("InvocationID", "")
        began = moment(unit, "InactiveExit", now)
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
        """Return the file with the stages of the last starts, which spark_unit.py writes."""
        return self.state_dir.parent / "starts" / f"{slot.service.name}.json"

    def last_start(self, slot: Slot) -> dict[str, Any] | None:
        """Return the duration of each stage of a service's last start, None if unknown."""
        starts = start_stages.checked(state_file.read(self.starts_of(slot)))
        return {key: starts[-1][key] for key in ("at", "seconds", "stages")} if starts else None

    def freed_hosts(self, slot: Slot) -> dict[str, float | None] | None:
        """Return the GiB that came back on the other hosts of a model that spans several; None for a model of this host alone."""
        record = state_file.read(self.run_dir.parent / "freed" / f"{slot.service.name}.json") or {}
        hosts = record.get("hosts")
        return dict(hosts) if isinstance(hosts, dict) else None

    def change(self, slot: Slot, state: str, unit: dict[str, str] | None = None) -> None:
        """Give a service another state. unit: as systemd shows it, None if this program decided it."""
        now, before, since = self.loop.time(), slot.state, slot.since
        times = unit or {}
        began = moment(times, "InactiveExit", now)
        slot.state, slot.since, slot.wall, slot.loading = state, now, time.time(), Loading()
        if unit is not None and state in (on_demand.STARTING, on_demand.READY):
            self.remove_guards_pin(slot, before)
        if state == on_demand.STARTING:
            slot.late = None
            if unit is not None:
                slot.since, slot.began, slot.reason = began or now, True, ""
        elif state == on_demand.READY and before != on_demand.DRAINING:
            entered = moment(times, "ActiveEnter", now) or now
            self.become_ready(slot, before, entered, entered - (began or since))
        elif state == on_demand.COLD:
            slot.reason, slot.freed_hosts = "", self.freed_hosts(slot)
        elif state == on_demand.FAILED:
            self.report_failure(slot, now)
        if not slot.serves:
            slot.before = slot.before if state == on_demand.STOPPING else None
            slot.gone = None

    def report_failure(self, slot: Slot, now: float) -> None:
        """Write the reason of a failure to the journal, and to waiting clients unless the next start may begin at once."""
        say(f"{slot.service.name}: {slot.reason}", 3)
        if slot.until > now:
            self.refuse(slot, slot.reason)

    def become_ready(self, slot: Slot, before: str, entered: float, took: float) -> None:
        """Note that an engine serves. entered: clock at which its unit became active. took: seconds of its start."""
        slot.ready, slot.last_start = entered, self.last_start(slot)
        # Requests before this process are unknown.
        slot.last = self.loop.time() if before == on_demand.UNKNOWN else entered
        slot.looked, slot.busy, slot.unasked, slot.mark, slot.reason = None, None, None, None, ""
        slot.disturbed = False
        if before == on_demand.STARTING:
            slot.starts = [*slot.starts, round(max(took, 0.0), 1)][-KEPT_STARTS:]
            self.save_starts()
            say(f"{slot.service.name}: ready after {took:.0f} s, {len(slot.waiters)} requests waited")

    async def failed(self, slot: Slot, unit: dict[str, str]) -> None:
        """Note why a start failed, or why an engine ended while it served."""
        service, starting = slot.service, slot.state == on_demand.STARTING
        soon = slot.serves and self.loop.time() - slot.ready < service.minimum_seconds
        why, disturbed = self.known_reason(slot, unit), False
        if not why:
            why, disturbed = await in_thread(reason_of, service.unit, unit)
        slot.reason = f"{service.name} {'could not be started' if starting else 'ended'}: {why}"
        slot.until = self.loop.time() + service.retry_seconds if starting or soon else 0.0
        slot.disturbed = starting and disturbed and not slot.disturbed
        if slot.disturbed:  # somebody stopped an engine meanwhile, so the next start may succeed
            slot.until = 0.0
            slot.reason += ". Requests that wait start it once more"
        elif slot.until:
            slot.reason += (
                f". It is not tried again for {service.retry_seconds:.0f} s: systemctl start {service.unit} does"
            )

    def known_reason(self, slot: Slot, unit: dict[str, str]) -> str:
        """Return why a service failed, an empty text if only the journal says it."""
        if slot.late is not None and slot.state == on_demand.STARTING:
            stage = f": {slot.late[1]}" if slot.late[1] else ""
            return f"it was not ready within {slot.service.start_seconds:.0f} s{stage}"
        if unit.get("ActiveState") != "inactive":
            return ""
        return "it was stopped while it started" if slot.began else "its unit did not start"

    def memory_is_back(self, slot: Slot, now: float) -> bool:
        """Whether the memory of a stopped engine is available again, or is no longer waited for."""
        available = hostmem.available_gib(self.root)
        if slot.before is None or available is None:
            return True
        if slot.gone is None:
            slot.gone, slot.lowest = (now, now), available
        since, grown = slot.gone
        if available > slot.lowest + hostmem.STEADY_GIB:
            slot.gone, slot.lowest = (since, now), available
            grown = now
        # An engine that loads meanwhile hides the memory that this one gave back; the gate of that engine waits for memory itself.
        hidden = any(other.took_since(slot.since) for other in self.slots.values() if other is not slot)
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

    # --- doing

    async def consider(self) -> None:
        """Decide on actions, and carry them out."""
        actions = self.decide()
        asks = [action for action in actions if action.what == on_demand.LOOK]
        if asks:
            await asyncio.gather(*(self.ask(self.slots[action.name]) for action in asks))
            actions = self.decide()
        if not any(action.what == on_demand.STOP for action in actions):
            await self.carry_out(actions)
            return
        # No engine begins to load until the stops are queued; a gate waits for units that are being stopped.
        with await in_thread(start_lock.acquire, self.run_dir.parent):
            self.loading = await in_thread(start_lock.loading, self.run_dir.parent)
            await self.carry_out(self.decide())

    async def carry_out(self, actions: list[on_demand.Action]) -> None:
        """Carry out actions except further looks."""
        await asyncio.gather(*(self.do(action) for action in actions if action.what != on_demand.LOOK))

    async def do(self, action: on_demand.Action) -> None:
        """Carry out an action; its failure does not stop the others."""
        with reporting(action.name):
            job = self.act(action)
            if job is not None:
                await job

    def decide(self) -> list[on_demand.Action]:
        now = self.loop.time()
        services = {name: slot.service for name, slot in self.slots.items()}
        views = {name: slot.view(now) for name, slot in self.slots.items()}
        return on_demand.decide(now, services, self.groups, views, self.loading)

    async def ask(self, slot: Slot) -> None:
        """Ask an engine whether it has requests, also from clients of its port."""
        began = self.loop.time()
        # A speech server does not count its requests; those that came through its port are counted here.
        busy = None if slot.service.kind == on_demand.VLLM else False
        if busy is None:
            with reporting(slot.service.name):
                busy = await in_thread(has_requests, slot.service.engine)
        slot.looked, slot.busy = began, busy
        if busy:
            slot.last = max(slot.last, began)
        slot.unasked = None if busy is not None else slot.unasked or began

    def act(self, action: on_demand.Action) -> Coroutine[Any, Any, None] | None:
        """Begin an action; the part that takes longer is returned. The state changes at once, so that no request comes between."""
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
            return self.systemctl(slot, "start")
        elif action.what == on_demand.STOP:
            say(f"{action.name}: is stopped: {action.why}")
            slot.asked, slot.stop = now, True
            record = state_file.read(self.run_dir.parent / "starts" / f"{slot.service.unit}.json")
            # By the record of its start, or else of its last stop.
            expected = start_stages.taken_gib(record)
            slot.expected = slot.freed[0] if expected is None and slot.freed else expected
            slot.before = hostmem.available_gib(self.root)
            self.change(slot, on_demand.STOPPING)
            return self.systemctl(slot, "stop")
        return None

    async def systemctl(self, slot: Slot, verb: str) -> None:
        """Have systemd start or stop a unit; the next looks see the result."""
        answer = await in_thread(command.run, ["systemctl", "--no-block", verb, "--", slot.service.unit], CALL_SECONDS)
        # A busy systemd takes its time, and one that was silent may still do it.
        slot.asked = self.loop.time() + (CALL_SECONDS if answer.state == command.SILENT else 0.0)
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
        """Give waiting requests to engines that are ready, and drop clients that closed their connection while their body is not read."""
        for slot in self.slots.values():
            for client in list(slot.waiters):
                with reporting(slot.service.name):
                    if slot.state == on_demand.READY:
                        client.forward()
                    elif client.paused and is_closed(client.transport.get_extra_info("socket")):
                        client.transport.abort()

    # --- telling

    def model(self, slot: Slot) -> dict[str, Any]:
        """The model of a service, as an engine lists it."""
        name = slot.service.model
        return {
            "id": name,
            "object": "model",
            "created": int(slot.wall),
            "owned_by": slot.service.kind,
            "root": name,
            "parent": None,
            "max_model_len": slot.service.max_model_len,
            "permission": [],
        }

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
            f'spark_on_demand_state{{{label},state="{state}"}} {int(state == slot.state)}' for state in on_demand.STATES
        ]
        for name, (kind, text, value) in figures.items():
            if value is not None:
                lines += [f"# HELP spark_on_demand_{name} {text}", f"# TYPE spark_on_demand_{name} {kind}"]
                lines.append(f"spark_on_demand_{name}{{{label}}} {value}")
        return "\n".join([*lines, ""])

    def account(self, slot: Slot, now: float) -> dict[str, Any]:
        """Return the row of a service in state.json. Seconds are rounded, so that it changes once a second at most."""
        starting = slot.state == on_demand.STARTING
        remaining = slot.remaining(now) if starting else None
        idle = slot.serves and not slot.running
        return {
            "state": slot.state,
            "since": stamp(slot.wall),
            "in_flight": slot.running,
            "waiting": len(slot.waiters),
            "idle_since": stamp(self.offset + max(slot.last, slot.ready)) if idle else None,
            "pin": slot.pin.word or "auto",
            "pin_why": slot.pin.why,
            "start_seconds": slot.starts,
            "last_start": slot.last_start,
            "left_seconds": None if remaining is None else round(remaining),
            "stage": slot.loading.progress.get("stage", slot.stage) if starting else "",
            "percent": slot.loading.progress.get("percent") if starting else None,
            "reason": slot.reason,
            "freed_gib": slot.freed[0] if slot.freed else None,
            "freed_seconds": slot.freed[1] if slot.freed else None,
            "freed_hosts": slot.freed_hosts,
            "starts": slot.begun,
            "requests": slot.forwarded,
        }

    async def save(self) -> None:
        """Write state.json: after a change, and from time to time as a sign of life."""
        now = self.loop.time()
        rows = {name: self.account(slot, now) for name, slot in self.slots.items()}
        if now - self.saved < (SAVE_SECONDS if (rows, self.known) != self.shown else ALIVE_SECONDS):
            return
        self.shown, self.saved = (rows, self.known), now
        services = {
            name: {**row, "idle_seconds": round(now - max(slot.last, slot.ready)) if row["idle_since"] else None}
            for (name, row), slot in zip(rows.items(), self.slots.values())
        }
        counts = {state: sum(slot.state == state for slot in self.slots.values()) for state in on_demand.STATES}
        waiting = sum(len(slot.waiters) for slot in self.slots.values())
        texts = [f"{count} {state}" for state, count in counts.items() if count]
        notify(f"STATUS={', '.join(texts)}; {waiting} requests wait")
        try:
            content = {"version": 1, "at": stamp(time.time()), "known": self.known, "services": services}
            await in_thread(state_file.write, self.run_dir / "state.json", content)
        except OSError as error:
            say(f"warning: {self.run_dir}/state.json cannot be written: {error}", 4)

    def save_starts(self) -> None:
        """Write the seconds of the last starts."""
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
        """Look at the units once, and act on it."""
        try:
            await self.look()
            self.release()
            if self.known:
                await self.consider()
            await self.save()
        except Exception as error:  # running requests go through this process
            say(f"warning: {error!r}", 3)
            await asyncio.sleep(self.poll)
        notify("WATCHDOG=1")
        await self.pause()

    async def pause(self) -> None:
        """Wait until the next look is due, or C(poke) calls for it."""
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
        """Serve running and waiting requests to their end, up to a limit."""
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
def reporting(name: str) -> Iterator[None]:
    """Report a failure about one service, and go on with the others."""
    try:
        yield
    except Exception as error:  # from any content of an answer or a file
        say(f"warning: {name}: {error!r}", 3)


def has_requests(url: str) -> bool | None:
    """Return whether an engine works on requests by its own count; False if it does not count, None if it does not answer."""
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


def reason_of(unit: str, properties: dict[str, str]) -> tuple[str, bool]:
    """Return why a unit failed, without secrets, and whether it was by memory that others released while it loaded.

    The text is systemd's result and the last message of the unit, messages of our helpers first.
    """
    number = properties.get("InvocationID", "")
    answer = command.run(units.journal_command(unit, JOURNAL_LINES, invocation=number), CALL_SECONDS)
    lines = [line.strip() for line in answer.out.splitlines() if line.strip()]
    lines = [line for line in lines if ": load guard: " not in line]
    helpers = [line for line in lines if re.match(r"spark-(unit|rank|health): ", line)]
    status = properties.get("StatusText", "")
    if status.startswith(DOWN):  # the supervisor of a rank, whose later messages are about its own steps
        helpers = [status[len(DOWN) :]]
    last = (helpers or ([status] if status and not status.startswith("load guard") else lines))[-1:]
    text = f"its unit failed ({properties.get('Result') or 'without a result'})"
    disturbed = any(start_lock.MEMORY_RELEASED in line for line in lines)
    if disturbed:
        text += ", because memory was released on this host while it loaded"
    return f"{text}; it last said: {redaction.Redactor([]).clean(last[0])[:500]}" if last else text, disturbed


def moment(unit: dict[str, str], event: str, now: float) -> float | None:
    """Return when an event of a unit was, by systemd's monotonic clock; None if it never was."""
    seconds = units.seconds_of(unit, f"{event}TimestampMonotonic")
    return seconds if seconds is not None and seconds <= now else None


def run_dir(settings: dict[str, Any]) -> Path:
    """Return the folder of state.json and the pins."""
    return Path(str(settings.get("run") or "/run/dgxspark/on_demand"))


def run(settings: dict[str, Any], poll: float) -> int:
    """Serve."""
    hub = Hub(settings, poll)
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


def pin(settings: dict[str, Any], name: str, state: str) -> int:
    """Keep a service warm or cold, or no longer."""
    services, _groups = on_demand.from_mapping(settings)
    if name not in services or not NAME.match(name):
        print(f"spark-on-demand: there is no service {name}; there are {', '.join(sorted(services))}", file=sys.stderr)
        return 2
    pins.write(run_dir(settings) / "pins", name, "" if state == "auto" else state)
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
    parser.add_argument("--status", action="store_true", help="print the state of each service, as JSON")
    verbs = parser.add_subparsers(dest="verb")
    verb = verbs.add_parser("pin", help="keep a service warm or cold")
    verb.add_argument("name")
    verb.add_argument("state", choices=("warm", "cold", "auto"))
    args = parser.parse_args()
    settings = state_file.read(args.settings)
    if settings is None:
        raise SystemExit(f"spark-on-demand: {args.settings} cannot be read; run site.yml again")
    try:
        if args.verb == "pin":
            return pin(settings, args.name, args.state)
        if args.status:
            path = run_dir(settings) / "state.json"
            state = state_file.read(path)
            if state is None:
                raise SystemExit(f"spark-on-demand: {path} cannot be read: is spark-on-demand.service running?")
            print(json.dumps(state, indent=1))
            return 0
        return run(settings, args.poll)
    except on_demand.Wrong as wrong:
        raise SystemExit(f"spark-on-demand: {args.settings}: {wrong}; run site.yml again") from None


if __name__ == "__main__":
    sys.exit(main())
