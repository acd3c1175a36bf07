# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory loop: looks at the memory of the host once a second, and takes the steps that C(_runtime/guard.py) decides on.

The loop itself only reads three files of C(/proc), from descriptors that stay open into a buffer that stays allocated. Everything that may
block has a thread: accounts, steps, the state file, and lines of the journal. The slow loops of the agent run in another process.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from .._runtime import command, guard, hostmem, http_client, load_guard, pins, state_file, unloading
from .._runtime.systemd import journal, notify
from . import services
from .accounts import CALL_SECONDS, Accounts, is_idle, memory_services

GIB, MIB = guard.GIB, 2**20
GATEWAY = Path("/usr/local/libexec/dgxspark/spark_gateway.py")
UNLOAD_SECONDS = 15.0
DRAIN_SECONDS = 5.0
"""Time that a gateway has to stop new requests; running requests go on."""
SYSTEMCTL_SECONDS = 60.0
SAVE_SECONDS = 60.0
SAVE_WAIT_SECONDS = 2.0
"""Time that a restart or stop waits for the state file, so that it counts even if this process ends."""
ALIVE_SECONDS = 20.0
CACHE_PAUSE = 10.0
"""Between two drops of the cache while engines serve."""
NAMES_PAUSE = 10.0
"""Between two looks for engines that have started: they cost more than a look at the memory."""
ACCOUNT_PAUSE = {guard.CALM: 30.0, guard.SHORT: 10.0, guard.CRITICAL: 2.0}
FORGET_SECONDS = 60.0
"""An account this much later than a stop shows whether the service runs again."""
MOST_BYTES = 65536
"""Of a file of C(/proc)."""
MOST_JOBS = 1000
"""Lines of the journal that may wait; further ones are lost."""
MEMINFO = re.compile(r"^(MemFree|MemAvailable|Buffers|Cached|Shmem|SwapTotal|SwapFree):[ \t]+([0-9]+)", re.MULTILINE)
"""The lines of C(/proc/meminfo) that a look needs; there are some fifty."""
LOCKED_PAGES = 1 | 2 | 4  # MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT
STACK_BYTES = 512 * 1024
SERIOUS = (guard.RESTART, guard.STOP, guard.NAME)
HARMFUL = (guard.IDLE, guard.RESTART, guard.STOP)
MESSAGES = {
    guard.DROP: "gives the page cache back",
    guard.UNLOAD: "asks {whom} to unload its models",
    guard.IDLE: "stops {whom}; the next request starts it again",
    guard.REFUSE: "lets the gateway give {whom} no new requests",
    guard.RESTART: "restarts {whom}",
    guard.STOP: "stops {whom}; it stays down until it is started: {start}",
    guard.ADMIT: "lets the gateway give {whom} requests again",
    guard.NAME: "{policy}",
}
"""Steps as lines of the journal."""

say = journal("guard")


class KernelFiles:
    """Files of C(/proc) that each look reads. They stay open, since opening one takes longer than reading it.

    In a tree that stands for C(/), files are replaced instead of changed, so they are opened for each read.
    """

    def __init__(self, root: Path) -> None:
        self.folder, self.is_kernel = root / "proc", root == Path("/")
        self.descriptors: dict[str, int] = {}
        self.buffer = bytearray(MOST_BYTES)
        self.view = memoryview(self.buffer)

    def read(self, name: str) -> str:
        """Return the text of a file. Raises OSError if it cannot be read."""
        if not self.is_kernel:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        if name not in self.descriptors:
            self.descriptors[name] = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        size = os.preadv(self.descriptors[name], (self.buffer,), 0)
        return str(self.view[:size], "utf-8", "replace")

    def read_optional(self, name: str) -> str:
        """Return the text of a file; empty if it cannot be read."""
        try:
            return self.read(name)
        except OSError:
            return ""


def stay_in_memory() -> str:
    """Keep this process out of the swap; returns the error, empty for none."""
    try:
        has_failed = ctypes.CDLL(None, use_errno=True).mlockall(LOCKED_PAGES)
        return os.strerror(ctypes.get_errno()) if has_failed else ""
    except (OSError, AttributeError) as error:
        return str(error)


class Writer(threading.Thread):
    """Calls functions that may block, one after another, so that no look waits for a disk or for the journal."""

    def __init__(self) -> None:
        super().__init__(name="writer", daemon=True)
        self.jobs: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...], threading.Event]] = queue.SimpleQueue()

    def put(self, job: Callable[..., None], *arguments: Any) -> threading.Event:
        """Have a function called; returns an event that is set afterwards. Before the thread is started, it is called at once."""
        done = threading.Event()
        if not self.is_alive():
            job(*arguments)
            done.set()
        elif self.jobs.qsize() < MOST_JOBS:
            self.jobs.put((job, arguments, done))
        else:
            done.set()
        return done

    def run(self) -> None:
        while True:
            job, arguments, done = self.jobs.get()
            try:
                job(*arguments)
            except Exception as error:
                say(f"warning: {error!r}", 3)
            done.set()


@dataclass
class Record:
    """What other programs and people read about the guard."""

    level: str = guard.CALM
    available: int = 0
    lowest: int | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(guard.STEPS, 0))
    last: dict[str, Any] | None = None
    stopped: dict[str, dict[str, Any]] = field(default_factory=dict)
    who: str = ""
    longest_delay: float = 0.0  # seconds that a look came late, at most


def load_record(content: dict[str, Any]) -> Record:
    """Return the record of an earlier process. content: of the state file, which may be damaged."""
    record = Record()
    counts, last, stopped = (content.get(key) for key in ("steps", "last", "stopped"))
    for name, count in counts.items() if isinstance(counts, dict) else ():
        if name in guard.STEPS and isinstance(count, int) and count > 0:
            record.counts[name] = count
    record.last = last if isinstance(last, dict) else None
    if isinstance(stopped, dict):
        # The monotonic clock of an earlier boot has no meaning now.
        record.stopped = {name: {**note, "clock": 0.0} for name, note in stopped.items() if isinstance(note, dict)}
    return record


class MemoryGuard:
    """Looks at the memory, and takes the steps."""

    def __init__(
        self,
        etc: Path,
        run_dir: Path,
        state_dir: Path,
        gateway: Path = GATEWAY,
        status: Callable[[], str] = lambda: "",
    ) -> None:
        """Read the settings and the state of an earlier process. gateway: program that drains backends of a gateway on this host."""
        self.etc, self.run_dir, self.gateway, self.slow_status = etc, run_dir, gateway, status
        content = services.load_settings(etc, services.GUARD)
        self.service_settings = content.get("services") or {}
        self.acts = content.get("act", True) is not False
        self.settings = guard.from_mapping(content)
        self.accounts = Accounts(etc, run_dir, content)
        self.root = Path(self.accounts.root)
        self.kernel = KernelFiles(self.root)
        self.start_lock = run_dir / "start.json"
        self.file = state_dir / "state.json"
        saved = state_file.read(self.file) or {}
        self.record = load_record(saved)
        self.state = guard.from_record(saved.get("kept"), time.time(), time.monotonic())
        floor = load_guard.Settings(self.settings.free_floor_gib, CACHE_PAUSE)
        self.cache = load_guard.Guard(floor, time.monotonic(), self.settings.contiguous_floor_gib)
        self.account: guard.Account | None = None
        self.account_asked = self.names_asked = -3600.0
        self.threads: dict[str, threading.Thread] = {}
        self.writer = Writer()
        self.saved_at = -3600.0
        self.saving: threading.Event | None = None
        self.is_changed = True
        self.lock = threading.Lock()

    def say(self, text: str, level: int = 6) -> None:
        """Write a line to the journal, without waiting for it."""
        self.writer.put(say, text, level)

    # --- looks

    def look(self) -> tuple[guard.Look, load_guard.Sample]:
        """Return the memory of the host now. Raises OSError without C(/proc/meminfo)."""
        meminfo = {name: int(kib) for name, kib in MEMINFO.findall(self.kernel.read("meminfo"))}
        sample = load_guard.sample(meminfo, self.kernel.read_optional("buddyinfo"))
        look = guard.Look(
            time.monotonic(),
            meminfo.get("MemAvailable", 0) * 1024,
            sample.cache,
            guard.stalled_percent(self.kernel.read_optional("pressure/memory")),
            guard.swapped_percent(meminfo),
            self.is_starting(),
        )
        return look, sample

    def is_starting(self) -> bool:
        """Return whether an engine loads: the start lock is held, and not left behind by a killed one."""
        if not self.start_lock.exists():
            return False
        account = self.account
        if account is None or time.monotonic() - account.clock > guard.ACCOUNT_SECONDS:
            return True
        return any(engine.starting for engine in account.engines)

    def round(self) -> None:
        """Look once, decide, and start the steps."""
        look, sample = self.look()
        level = guard.level(self.settings, look, self.state.last)
        if level == guard.CALM and look.clock - self.names_asked >= NAMES_PAUSE and self.is_done("names"):
            self.names_asked = look.clock
            if self.accounts.has_new_start():
                self._begin("names", self.update_names)
        if self.is_account_due(level, look):
            self.account_asked = look.clock
            self._begin("account", self.take_account)
        if not look.starting:  # the load guard of the starting unit frees memory meanwhile
            self.free_memory(sample)
        before = self.state
        steps, self.state = guard.decide(self.settings, self.state, look, self.account)
        self._report(level, look, before)
        for step in steps:
            self.start_step(step)
        self.forget_restarted()
        self.save(look.clock)

    def is_account_due(self, level: str, look: guard.Look) -> bool:
        """Return whether the account of the memory has to be taken again."""
        if level == guard.CALM and not self.state.refused and not self.record.stopped:
            return False  # nvidia-smi alone costs more than all looks of a minute
        if not self.is_done("account"):
            return False
        since, pause = self.state.since, ACCOUNT_PAUSE[level]
        if since is not None and look.clock - since > guard.ACCOUNT_SECONDS:
            pause = max(pause, ACCOUNT_PAUSE[guard.SHORT])  # a lasting shortage is examined less often
        if self.account is not None and level != guard.CALM and self.account.clock < (since or 0.0):
            pause = ACCOUNT_PAUSE[guard.CRITICAL]
        return look.clock - self.account_asked >= pause

    def update_names(self) -> None:
        """Update the names of containers, in a thread."""
        with services.logged(self.say, "the names of containers are unknown"):
            self.accounts.update_names()

    def take_account(self) -> None:
        """Take an account, in a thread."""
        before = self.accounts.silent
        with services.logged(self.say, "the processes that use the memory are unknown"):
            self.account = self.accounts.take()
            silent = self.accounts.silent
            if silent not in ("", before):
                self.say(f"warning: no answer from {silent}: the processes that use the memory are not known yet", 4)

    def forget_restarted(self) -> None:
        """Forget the stop of a service that somebody has started again."""
        if not self.record.stopped or self.account is None:
            return
        serving = {engine.name for engine in self.account.engines if engine.serving}
        for name in serving & set(self.record.stopped):
            if self.account.clock > float(self.record.stopped[name].get("clock") or 0.0) + FORGET_SECONDS:
                del self.record.stopped[name]
                self.is_changed = True

    # --- steps

    def _begin(self, key: str, job: Callable[..., None], *arguments: Any) -> None:
        """Call a function in a thread. key: its name for C(is_done)."""
        self.threads[key] = threading.Thread(target=job, args=arguments, name=key, daemon=True)
        self.threads[key].start()

    def is_done(self, key: str) -> bool:
        """Return whether no thread of this key runs."""
        thread = self.threads.get(key)
        return thread is None or not thread.is_alive()

    def free_memory(self, sample: load_guard.Sample) -> None:
        """Keep memory free for the driver: drop caches and compact memory, as while an engine loads."""
        for action in self.cache.decide(time.monotonic(), sample):
            if self.acts and self.is_done(action):
                self._begin(action, self.carry_out, guard.Step(action))

    def start_step(self, step: guard.Step) -> None:
        """Log a step, count it, and carry it out in a thread."""
        self.writer.put(self.announce, step)
        wall = round(time.time(), 1)
        with self.lock:
            if step.what != guard.DROP:  # counted when it is done, together with drops below the floor of the cache
                self.record.counts[step.what] += 1
            self.record.last = {"at": wall, "what": step.what, "whom": step.whom, "why": step.why}
            if step.what == guard.STOP and self.acts:
                self.record.stopped[step.whom] = {"at": wall, "why": step.why, "clock": time.monotonic()}
            self.is_changed = True
        if self.acts and step.what != guard.NAME:
            self._begin(f"{step.what} {step.whom}", self.carry_out, step)

    def announce(self, step: guard.Step) -> None:
        """Log a step with its reason."""
        service = memory_services(self.etc).get(step.whom) if step.what == guard.STOP else None
        message = MESSAGES[step.what].format(
            whom=step.whom,
            start=f"start.yml -e services={step.whom}"
            if service and service.on_demand
            else f"systemctl start spark-{step.whom}.service",
            policy="engines give way to it"
            if self.settings.stop_for_others
            else "no engine inside its plan is stopped for it",
        )
        suffix = "" if self.acts else " (act is false: nothing is done)"
        say(f"{step.why}: {message}{suffix}", 3 if step.what in SERIOUS else 6 if step.what == guard.ADMIT else 4)

    def carry_out(self, step: guard.Step) -> None:
        """Take one step, and log what went wrong."""
        try:
            if step.what in HARMFUL:
                self.writer.put(self.write_state, self.describe()).wait(SAVE_WAIT_SECONDS)
            text = self.actions[step.what](self, step)
        except Exception as error:
            text = repr(error)
        if text:
            self.say(f"{step.what} {step.whom}: {text}".replace(" :", ":"), 4)

    def drop_caches(self, _step: guard.Step) -> str:
        """Give the page cache back."""
        now = time.monotonic()
        try:
            freed = hostmem.drop_caches(str(self.root), clean_only=True)["freed_mib"]
        except OSError as error:
            return self._refusal(now, load_guard.DROP, error)
        self.cache.dropped(now, freed * MIB)
        with self.lock:
            self.record.counts[guard.DROP] += 1
            self.is_changed = True
        return f"{freed} MiB given back" if freed * MIB >= GIB else ""

    def compact_memory(self, _step: guard.Step) -> str:
        """Have the kernel compact memory."""
        now = time.monotonic()
        try:
            hostmem.compact(str(self.root))
        except OSError as error:
            return self._refusal(now, load_guard.COMPACT, error)
        self.cache.compacted(now)
        return ""

    def _refusal(self, now: float, action: str, error: OSError) -> str:
        """Note that the kernel refused an action; returns the line for the journal, once for each error."""
        return f"the kernel refuses: {error}" if self.cache.failed(now, action, f"{action}: {error}") else ""

    def unload_models(self, step: guard.Step) -> str:
        """Ask Ollama or a speech server to unload its models."""
        if step.whom == "ollama":
            url = unloading.ollama_url(self.etc)
            return unloading.unload(url, UNLOAD_SECONDS)[0] if url else ""
        helper = next((helper for helper in self.accounts.speech_helpers() if helper["name"] == step.whom), None)
        if helper is None:
            return ""
        key = services.read_text(Path(helper["key_file"])).strip() if helper.get("key_file") else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        reply = http_client.fetch(str(helper["url"]), str(helper["method"]), headers, timeout=UNLOAD_SECONDS)
        return "" if reply.status < 400 else f"HTTP {reply.status} at {helper['method']} {helper['url']}"

    def drain_backend(self, step: guard.Step) -> str:
        """Have the gateway of this host drain a backend, or admit it again."""
        backend = (self.service_settings.get(step.whom) or {}).get("backend")
        if not backend:
            return ""
        words = ["drain", str(backend), "--timeout", str(DRAIN_SECONDS)]
        if step.what == guard.ADMIT:
            words = ["admit", str(backend)]
        return _run(["/usr/bin/python3", str(self.gateway), *words], DRAIN_SECONDS + CALL_SECONDS)

    def stop_idle(self, step: guard.Step) -> str:
        """Stop an idle engine, unless a request has come since the account was taken."""
        service = memory_services(self.etc).get(step.whom)
        if service is None or not is_idle(service, self.run_dir):
            return "it has requests again, and goes on"
        return _change_unit(step.whom, "stop")

    def stop(self, step: guard.Step) -> str:
        """Stop an engine for good. A request must not start it again, nor the first rank that wakes its rank here."""
        service = memory_services(self.etc).get(step.whom)
        if service is not None and service.on_demand:
            why = (
                f"the guard of {os.uname().nodename}, which stopped it: {step.why}. start.yml -e services={step.whom} "
                "lifts that"
            )
            try:
                pins.write(self.run_dir / pins.FOLDER, step.whom, pins.COLD, why)
            except OSError as error:
                self.say(f"warning: {step.whom}: requests may start it again: {error}", 3)
        return _change_unit(step.whom, "stop")

    def restart(self, step: guard.Step) -> str:
        """Restart an engine that runs."""
        return _change_unit(step.whom, "try-restart")

    actions: ClassVar[dict[str, Callable[[MemoryGuard, guard.Step], str]]] = {
        load_guard.DROP: drop_caches,
        load_guard.COMPACT: compact_memory,
        guard.UNLOAD: unload_models,
        guard.REFUSE: drain_backend,
        guard.ADMIT: drain_backend,
        guard.IDLE: stop_idle,
        guard.STOP: stop,
        guard.RESTART: restart,
    }

    # --- reports

    def _report(self, level: str, look: guard.Look, before: guard.State) -> None:
        """Log the begin and the end of a shortage, and keep the record up to date."""
        record, account = self.record, self.account
        record.available = look.available
        record.lowest = look.available if record.lowest is None else min(record.lowest, look.available)
        record.who = account.who if account is not None and level != guard.CALM else ""
        available = f"{look.available / GIB:.2f} GiB available"
        if self.state.since is not None and before.since is None:
            stalled = "" if look.stalled is None else f", {look.stalled:.0f} % of the time all wait for memory"
            swapped = "" if look.swapped is None else f", {look.swapped:.0f} % of the swap in use"
            self.say(f"memory is short: {available}{stalled}{swapped}", 4)
        if self.state.since is None and before.since is not None:
            self.say(f"memory is no longer short: {available}")
        if level != record.level:
            record.level, self.is_changed = level, True
            notify(f"STATUS={self.status()}", wait=False)

    def status(self) -> str:
        """Return the line that C(systemctl status) shows."""
        memory = f"{self.record.level}: {self.record.available / GIB:.2f} GiB available"
        return "; ".join(text for text in (memory, self.slow_status()) if text)

    def save(self, now: float) -> None:
        """Have the state file written after a change, and once a minute; not before the disk has taken the one before."""
        is_due = self.is_changed or now - self.saved_at >= SAVE_SECONDS
        if is_due and (self.saving is None or self.saving.is_set()):
            self.saved_at, self.is_changed = now, False
            self.saving = self.writer.put(self.write_state, self.describe())

    def describe(self) -> dict[str, Any]:
        """Return the content of the state file."""
        record, wall = self.record, time.time()
        with self.lock:
            return {
                "version": 1,
                "at": round(wall, 1),
                "level": record.level,
                "available_gib": round(record.available / GIB, 3),
                "lowest_gib": None if record.lowest is None else round(record.lowest / GIB, 3),
                "steps": dict(record.counts),
                "compactions": self.cache.compactions,
                "last": record.last,
                "stopped": {name: dict(note) for name, note in record.stopped.items()},
                "refused": sorted(self.state.refused),
                "who": record.who,
                "longest_delay_seconds": round(record.longest_delay, 3),
                "kept": guard.to_record(self.state, wall, time.monotonic()),
            }

    def write_state(self, content: dict[str, Any]) -> None:
        """Write the state file."""
        try:
            state_file.write(self.file, content)
        except OSError as error:
            say(f"warning: {self.file} cannot be written: {error}", 4)

    def run(self) -> None:
        """Look, once an interval, until this process ends."""
        self.writer.start()
        interval = self.settings.interval_seconds
        suffix = "" if self.acts else ", it only reports its actions"
        self.say(
            f"guards the memory of this host: floor {self.settings.floor_gib:g} GiB, checks every {interval:g} s{suffix}"
        )
        is_ready, beaten, due = False, -ALIVE_SECONDS, time.monotonic()
        while True:
            began = time.monotonic()
            self.record.longest_delay = max(self.record.longest_delay, began - due)
            try:
                self.round()
            except OSError as error:
                self.say(f"warning: the memory cannot be read: {error}", 4)
            except Exception as error:
                self.say(f"warning: a check failed: {error!r}", 3)
            if not is_ready:
                notify("READY=1")
                is_ready = True
            if began - beaten >= ALIVE_SECONDS:
                notify(f"WATCHDOG=1\nSTATUS={self.status()}", wait=False)
                beaten = began
            due = max(began + interval, time.monotonic() + 0.05)
            time.sleep(max(due - time.monotonic(), 0.0))

    def finish(self, seconds: float) -> None:
        """Write the state file and all lines of the journal that wait. seconds: that this may take."""
        self.writer.put(self.write_state, self.describe()).wait(seconds)

    def look_once(self) -> dict[str, Any]:
        """Return one look, an account and the next steps, without taking any."""
        look, sample = self.look()
        account = self.accounts.take()
        steps, _state = guard.decide(self.settings, self.state, look, account)
        return {
            "level": guard.level(self.settings, look),
            "look": asdict(look),
            "free": sample.free,
            "account": asdict(account),
            "next": [asdict(step) for step in steps],
        }


def _change_unit(name: str, verb: str) -> str:
    """Have systemd stop or restart a service, without replacing a job of somebody else; returns the error, empty for none."""
    argv = ["systemctl", "--no-block", "--job-mode=fail", verb, "--", f"spark-{name}.service"]
    return _run(argv, SYSTEMCTL_SECONDS)


def _run(argv: list[str], seconds: float) -> str:
    """Run a program; returns its output if it fails, else an empty text."""
    answer = command.run(argv, seconds, merge=True)
    return "" if answer.rc == 0 else answer.out.strip() or answer.why
