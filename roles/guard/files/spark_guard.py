# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Guards the memory of a host while its engines serve: the main process of spark-guard.service.

spark-guard            look once a second, until it is stopped
spark-guard --once     one look and one account of the memory, told as JSON; nothing is done

What it decides is in guard.py; here is what it looks at and does. A look reads three files of /proc. Who holds the memory is asked of
nvidia-smi, docker and /proc only when memory becomes short. Steps run beside the looks, each with a limit.

Python's standard library and the files beside it are all it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import pwd
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._common.foreign_text import decode_text
from dgxspark_vllm._host import nvidia_smi
from dgxspark_vllm._runtime import (
    command,
    guard,
    hostmem,
    http_client,
    load_guard,
    metrics,
    pins,
    state_file,
    unloading,
)
from dgxspark_vllm._runtime.systemd import journal, notify

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
UNIT = re.compile(r"([\w@.\\:-]+\.(?:service|scope))")
GATEWAY = "/usr/local/libexec/dgxspark/spark_gateway.py"
GIB, MIB = guard.GIB, 2**20

CALL_SECONDS = 10.0  # that one program may take
UNLOAD_SECONDS = 15.0
IDLE_SECONDS = 2.0  # that an engine may take to say how many requests it has
SILENT_SECONDS = 60.0  # the program on demand writes four times as often
DRAIN_SECONDS = 5.0  # requests that run go on after it; it is new ones that no longer come
SAVE_SECONDS = 60.0
ALIVE_SECONDS = 20.0
CACHE_PAUSE = 10.0  # between two drops of the cache while engines serve
NAMES_PAUSE = 10.0  # between two looks for engines that have started: they cost more than a look at the memory
ACCOUNT_PAUSE = {guard.CALM: 30.0, guard.SHORT: 10.0, guard.CRITICAL: 2.0}
SLACK_SHARE, SLACK_GIB = 0.05, 1.0  # above its plan by more than this is above its plan
DOWN = ("inactive", "failed")
NAMED_BYTES, NAMED_COUNT = 256 * MIB, 3  # processes that are worth a name
MOST_BYTES = 65536  # of a file of /proc
# What a look needs of /proc/meminfo, which has some fifty lines.
MEMINFO = re.compile(r"^(MemFree|MemAvailable|Buffers|Cached|Shmem|SwapTotal|SwapFree):[ \t]+([0-9]+)", re.MULTILINE)
LOCKED_PAGES = 1 | 2 | 4  # MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT


say = journal("spark-guard")


def call(argv: list[str], seconds: float = CALL_SECONDS) -> str | None:
    """Run a program without a shell; returns what it printed, None where it is missing, failed or did not answer."""
    answer = command.run(argv, seconds)
    return answer.out if answer.state == command.FINISHED and answer.rc == 0 else None


def read(path: Path) -> str:
    """A small file, empty where it cannot be read."""
    try:
        return decode_text(path.read_bytes())
    except OSError:
        return ""


class Kernel:
    """The files of C(/proc) that each look reads. They stay open: to open one takes longer than to read it.

    A tree that stands for C(/) has its files replaced, so there each is opened anew.
    """

    def __init__(self, root: Path) -> None:
        self.folder, self.stays = root / "proc", root == Path("/")
        self.open: dict[str, int] = {}

    def read(self, name: str) -> str:
        """The text of a file. Raises OSError where there is none."""
        if not self.stays:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        if name not in self.open:
            self.open[name] = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self.open[name], MOST_BYTES, 0).decode("utf-8", "replace")

    def read_if_there(self, name: str) -> str:
        """The same, empty where it cannot be read."""
        try:
            return self.read(name)
        except OSError:
            return ""


def stay_in_memory() -> str:
    """Keep this process out of the swap; returns why that is not possible, empty when it is."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(LOCKED_PAGES) == 0:
            return ""
        return os.strerror(ctypes.get_errno())
    except (OSError, AttributeError) as error:
        return str(error)


# --- who holds the memory -------------------------------------------------------------------------------------------


@dataclass
class Process:
    """What a process holds, bytes: what the kernel counts for it, and what nvidia-smi does."""

    pid: int
    name: str
    group: str
    resident: int = 0
    gpu: int = 0

    @property
    def held(self) -> int:
        return self.resident + self.gpu


def resident_bytes(status: str) -> int:
    """Memory of a process that it alone can give back: not the files that it has mapped."""
    sizes = re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", status, re.MULTILINE)
    return sum(map(int, sizes)) * 1024


def processes() -> dict[int, Process]:
    """All processes of the host that hold memory."""
    found = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        status = read(path / "status")
        size = resident_bytes(status)
        if size:
            name = status.partition("\n")[0].partition("\t")[2]
            found[int(path.name)] = Process(int(path.name), name, read(path / "cgroup"), size)
    return found


def add_gpu(found: dict[int, Process]) -> bool:
    """Add what nvidia-smi says of processes; whether it says it of all of them."""
    answer = command.run(nvidia_smi.COMPUTE_APPS_QUERY, CALL_SECONDS)
    if answer.state == command.MISSING:
        return True  # a host without a GPU
    if answer.state != command.FINISHED:
        return False
    try:
        apps = nvidia_smi.parse_compute_apps(answer.out)
    except command.NoAnswer:
        return False
    for app in apps:
        if app["used_mib"] is None:
            return False
        group = read(Path(f"/proc/{app['pid']}/cgroup"))
        process = found.setdefault(app["pid"], Process(app["pid"], app["name"], group))
        process.gpu = app["used_mib"] * MIB
    return True


def container_ids(names: list[str]) -> dict[str, str] | None:
    """Ids of those of some containers that there are, each with its name; None where Docker does not say."""
    if not names:
        return {}
    answer = command.run(["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"], CALL_SECONDS)
    if answer.state == command.MISSING:
        return {}
    if answer.state != command.FINISHED or answer.rc != 0:
        return None
    pairs = [line.split() for line in answer.out.splitlines()]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[1] in names}


def owner_of(process: Process) -> str:
    """Whose a process is: its account, and its container or unit."""
    account = ""
    with contextlib.suppress(OSError, KeyError):
        account = pwd.getpwuid(Path(f"/proc/{process.pid}").stat().st_uid).pw_name
    units = UNIT.findall(process.group)
    where = units[-1] if units else ""
    return ", ".join(part for part in (f"pid {process.pid}", f"of {account}" if account else "", where) if part)


def named(others: list[Process]) -> str:
    """The largest holders among processes, for a line of the journal."""
    large = sorted((each for each in others if each.held >= NAMED_BYTES), key=lambda each: -each.held)[:NAMED_COUNT]
    return "; ".join(f"{each.name} ({owner_of(each)}) {each.held / GIB:.1f} GiB" for each in large)


@dataclass(frozen=True)
class Service:
    """A model server of this host, as its settings have it."""

    name: str
    unit: str
    containers: tuple[str, ...]
    url: str = ""
    on_demand: bool = False
    speech: bool = False


def read_services(etc: Path) -> dict[str, Service]:
    """The model servers of this host, ranks of clusters too, and speech servers on demand: each holds memory here, or may."""
    found = {}
    for path in [*sorted((etc / "services").glob("*.json")), *sorted((etc / "speech").glob("*.json"))]:
        given, speech = state_file.read(path), path.parent.name == "speech"
        if (
            given is None
            or not NAME.match(path.stem)
            or not given.get("unit")
            or (speech and not given.get("on_demand"))
        ):
            continue
        parts = [str(part["container"]) for part in (given.get("rank") or {}).get("parts") or []]
        containers = tuple(parts) or (str(given.get("container") or f"spark-{path.stem}"),)
        url = str(given.get("url") or "")
        found[path.stem] = Service(path.stem, str(given["unit"]), containers, url, bool(given.get("on_demand")), speech)
    return found


def is_idle(service: Service, run_dir: Path) -> bool:
    """Whether a service is on demand and has no request, by its own count, a speech server by that of its port; one that does not say has some."""
    if not service.on_demand or not service.url:
        return False
    with contextlib.suppress(
        Exception
    ):  # one that says nonsense does not keep the account of the others from being taken
        if service.speech:
            path = run_dir / "on_demand" / "state.json"
            own = ((state_file.read(path) or {}).get("services") or {}).get(service.name) or {}
            fresh = time.time() - path.stat().st_mtime < SILENT_SECONDS
            return fresh and own.get("state") == "ready" and own.get("in_flight") == 0 == own.get("waiting")
        reply = http_client.fetch(f"{service.url}/metrics", timeout=IDLE_SECONDS)
        figures = metrics.parse(reply.body.decode("utf-8", "replace")) if reply.status == 200 else {}
        return figures.get("requests_running") == 0 == figures.get("requests_waiting")
    return False


def unit_states(units: list[str]) -> dict[str, str] | None:
    """ActiveState of units; None where systemd does not answer."""
    if not units:
        return {}
    text = call(["systemctl", "show", "--property=Id,ActiveState", "--", *units])
    if text is None:
        return None
    found = {}
    for block in text.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        found[values.get("Id", "")] = values.get("ActiveState", "")
    return found


class Ledger:
    """Takes the account of who holds the memory."""

    def __init__(self, etc: Path, run_dir: Path, given: dict[str, Any]) -> None:
        self.etc, self.run_dir, self.given = etc, run_dir, given
        self.root = str(given.get("sysroot") or "/")
        self.names: dict[str, str] = {}  # containers by their ids, as Docker said last
        self.seen: tuple[tuple[str, int], ...] | None = None
        self.silent = ""  # what did not answer at the last account

    def is_renewed(self) -> bool:
        """Whether an engine has started since this was asked: then its container has another id."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.run_dir / "starts") as entries:
            found = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
        seen, self.seen = self.seen, tuple(found)
        return seen != self.seen

    def remember(self) -> None:
        """Ask Docker for names while it is quick: a host without memory may not start its client any more."""
        services = read_services(self.etc).values()
        names = container_ids([*(name for each in services for name in each.containers), *self.beside()])
        if names is not None:
            self.names = names

    def beside(self) -> list[str]:
        """Containers of add-on services."""
        return [str(name) for name in self.given.get("beside") or []]

    def containers(self, names: list[str], found: Mapping[int, Process]) -> tuple[dict[str, str], set[str]]:
        """Ids of containers, each with its name, and the names of those of which it is not known whether they run.

        A container keeps its id for its life, so Docker is not asked where all that it named are still there.
        """
        groups = {process.group for process in found.values()}
        known = {number: name for number, name in self.names.items() if any(number in group for group in groups)}
        unknown = set(names) - set(known.values())
        if not unknown:
            return known, set()
        answer = container_ids(names)
        if answer is None:
            return known, unknown
        self.names = answer
        return answer, set()

    def started_with(self, service: Service) -> float:
        """What the host lost between the gate of a service and its first answer, GiB; 0 where that was not recorded."""
        record = state_file.read(self.run_dir / "starts" / f"{service.unit}.json") or {}
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            return max(float(record["gate"]["available_gib"] - record["ready"]["available_gib"]), 0.0)
        return 0.0

    def limit(self, service: Service, started: float) -> int | None:
        """What a service may hold by its plan, with some slack, bytes; what it took at its start, a restart does not give back."""
        planned = ((self.given.get("services") or {}).get(service.name) or {}).get("planned_gib")
        if not isinstance(planned, (int, float)):
            return None
        return round((max(planned, started) * (1 + SLACK_SHARE) + SLACK_GIB) * GIB)

    def engine(self, service: Service, held: int | None, state: str, loading: bool, rank: int) -> guard.Engine:
        """One engine; held: what its processes hold, None where that is not known."""
        started = self.started_with(service)
        return guard.Engine(
            service.name,
            # The driver holds more for a process than it shows of it.
            None if held is None else max(held, round(started * GIB)),
            self.limit(service, started),
            rank=rank,
            serving=state == "active",
            starting=state == "activating" and loading,
            door=bool(((self.given.get("services") or {}).get(service.name) or {}).get("backend")),
            idle=state == "active" and is_idle(service, self.run_dir),
        )

    def take(self) -> guard.Account:
        """Ask everybody; what did not answer makes the account incomplete."""
        services = read_services(self.etc)
        states = unit_states([each.unit for each in services.values()])
        loading = str((state_file.read(self.run_dir / "start.json") or {}).get("unit") or "")
        names = [name for each in services.values() for name in each.containers]
        found = processes()
        ids, unknown = self.containers([*names, *self.beside()], found)
        # One whose unit is down runs no container.
        down = {name for each in services.values() if (states or {}).get(each.unit) in DOWN for name in each.containers}
        silent = [
            *(["nvidia-smi"] if not add_gpu(found) else []),
            *(["docker"] if unknown - down else []),
            *(["systemctl"] if states is None else []),
        ]
        self.silent = ", ".join(silent)
        complete = not silent
        held: dict[str, int] = {}
        others = []
        for process in found.values():
            place = next((name for number, name in ids.items() if number in process.group), None)
            if place is None:
                others.append(process)
            else:
                held[place] = held.get(place, 0) + process.held
        engines = tuple(
            self.engine(
                each,
                sum(held.get(name, 0) for name in each.containers) if complete else None,
                (states or {}).get(each.unit, ""),
                loading == each.unit,
                self.importance(each.name, services),
            )
            for each in services.values()
        )
        meminfo = hostmem.read_meminfo(self.root)
        available = meminfo.get("MemAvailable", 0) * 1024
        reserve = float(self.given.get("reserve_gib") or 0) * GIB
        # Of what stands beside the engines the reserve has all but Ollama, which is to hold nothing while they need it.
        ours = sum(each.used or 0 for each in engines) + held.get("spark-ollama", 0)
        rest = meminfo.get("MemTotal", 0) * 1024 - available - ours - reserve
        return guard.Account(
            time.monotonic(), available, engines, self.helpers(set(ids.values())), max(round(rest), 0), named(others), complete
        )  # fmt: skip

    def importance(self, name: str, services: dict[str, Service]) -> int:
        """0 is the most important service: by the order that is set, then by name."""
        order = [str(each) for each in self.given.get("order") or []]
        return order.index(name) if name in order else len(order) + sorted(services).index(name)

    def helpers(self, running: set[str]) -> tuple[str, ...]:
        """Servers that hold models only for the next request; running: names of the containers that there are."""
        found = []
        with contextlib.suppress(Exception):
            url = unloading.ollama_url(self.etc)
            if url and unloading.loaded_models(url):
                found.append("ollama")
        return (*found, *(each["name"] for each in self.speech() if each["container"] in running))

    def speech(self) -> list[dict[str, Any]]:
        """How speech servers are asked to give their models back."""
        given = self.given.get("helpers")
        return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


# --- the guard ------------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """What is told to others: the collector of metrics, status, people."""

    level: str = guard.CALM
    available: int = 0
    lowest: int | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(guard.STEPS, 0))
    last: dict[str, Any] | None = None
    stopped: dict[str, dict[str, Any]] = field(default_factory=dict)
    who: str = ""


def record_of(given: dict[str, Any]) -> Record:
    """What an earlier process left."""
    record = Record()
    counts = given.get("steps")
    for name in guard.STEPS:
        value = counts.get(name) if isinstance(counts, dict) else None
        record.counts[name] = value if isinstance(value, int) and value > 0 else 0
    record.last = given["last"] if isinstance(given.get("last"), dict) else None
    stopped = given.get("stopped")
    # The clock of an earlier boot says nothing.
    record.stopped = (
        {k: {**v, "clock": 0.0} for k, v in stopped.items() if isinstance(v, dict)} if isinstance(stopped, dict) else {}
    )
    return record


class Guard:
    """The process: looks, has the decision made, and does what follows."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        given = state_file.read(args.etc / "guard" / "settings.json")
        if given is None:
            raise SystemExit(f"spark-guard: {args.etc}/guard/settings.json cannot be read; run site.yml again")
        self.given = given
        self.acts = given.get("act", True) is not False
        self.settings = guard.from_mapping(given)
        self.ledger = Ledger(args.etc, args.run, given)
        self.root = Path(self.ledger.root)
        self.kernel = Kernel(self.root)
        self.file = args.state / "state.json"
        before = state_file.read(self.file) or {}
        self.record = record_of(before)
        self.state = guard.from_record(before.get("kept"), time.time(), time.monotonic())
        free = load_guard.Settings(self.settings.free_floor_gib, CACHE_PAUSE)
        self.cache = load_guard.Guard(free, time.monotonic(), self.settings.contiguous_floor_gib)
        self.page = os.sysconf("SC_PAGE_SIZE")
        self.account: guard.Account | None = None
        self.taking: threading.Thread | None = None
        self.asked = self.named = -3600.0
        self.working: dict[str, threading.Thread] = {}
        self.saved = -3600.0
        self.dirty = True
        self.lock = threading.Lock()

    # --- looking

    def look(self) -> tuple[guard.Look, load_guard.Sample]:
        """Read what the kernel says. Raises OSError where there is no C(/proc/meminfo)."""
        meminfo = {name: int(kib) for name, kib in MEMINFO.findall(self.kernel.read("meminfo"))}
        now = time.monotonic()
        cache = max(meminfo.get("Cached", 0) + meminfo.get("Buffers", 0) - meminfo.get("Shmem", 0), 0) * 1024
        found = guard.Look(
            now,
            meminfo.get("MemAvailable", 0) * 1024,
            cache,
            guard.stalled_percent(self.kernel.read_if_there("pressure/memory")),
            guard.swapped_percent(meminfo),
            self.starting(),
        )
        large = load_guard.large_blocks(self.kernel.read_if_there("buddyinfo"), self.page)
        return found, load_guard.Sample(meminfo.get("MemFree", 0) * 1024, cache, large)

    def starting(self) -> bool:
        """Whether an engine loads: the start lock is held, and not by one that was killed with it."""
        if not (self.args.run / "start.json").exists():
            return False
        account = self.account
        if account is None or time.monotonic() - account.clock > guard.ACCOUNT_SECONDS:
            return True
        return any(each.starting for each in account.engines)

    def watch(self, level: str, look: guard.Look) -> None:
        """Have the account taken where it is needed; one at a time, beside the looks."""
        if level == guard.CALM and look.clock - self.named >= NAMES_PAUSE and self.idle("remember"):
            self.named = look.clock
            if self.ledger.is_renewed():
                self.working["remember"] = threading.Thread(target=self.remember, name="remember", daemon=True)
                self.working["remember"].start()
        if level == guard.CALM and not self.state.refused and not self.record.stopped:
            return  # nvidia-smi alone takes more than all looks of a minute
        if self.taking is not None and self.taking.is_alive():
            return
        pause = ACCOUNT_PAUSE[level]
        if look.clock - (self.state.since or look.clock) > guard.ACCOUNT_SECONDS:
            pause = max(pause, ACCOUNT_PAUSE[guard.SHORT])  # what lasts is looked at less often
        if self.account is not None and level != guard.CALM and self.account.clock < (self.state.since or 0.0):
            pause = ACCOUNT_PAUSE[guard.CRITICAL]
        if look.clock - self.asked < pause:
            return
        self.asked = look.clock
        self.taking = threading.Thread(target=self.take, name="account", daemon=True)
        self.taking.start()

    def remember(self) -> None:
        """Have the names of containers at hand, whatever comes of it."""
        try:
            self.ledger.remember()
        except Exception as error:  # nothing in here may end the guard
            say(f"warning: the names of containers cannot be told: {error!r}", 4)

    def take(self) -> None:
        """Take the account, whatever comes of it."""
        before = self.ledger.silent
        try:
            self.account = self.ledger.take()
            if self.ledger.silent not in ("", before):
                say(f"warning: no answer from {self.ledger.silent}: who holds the memory is not known yet", 4)
        except Exception as error:  # nothing in here may end the guard
            say(f"warning: who holds the memory cannot be told: {error!r}", 4)

    def round(self) -> None:
        """One look, and what follows."""
        look, sample = self.look()
        level = guard.level(self.settings, look, self.state.last)
        self.watch(level, look)
        if not look.starting:  # the load guard of the unit that starts does it
            self.free(sample)
        before = self.state
        steps, self.state = guard.decide(self.settings, self.state, look, self.account)
        self.tell(level, look, before)
        for step in steps:
            self.act(step)
        if self.record.stopped and self.account is not None:
            up = {each.name for each in self.account.engines if each.serving}
            for name in up & set(self.record.stopped):
                # The account may be of the time before the stop.
                if self.account.clock > float(self.record.stopped[name].get("clock") or 0.0) + 60:
                    del self.record.stopped[name]
                    self.dirty = True
        self.save(look.clock)

    # --- doing

    def free(self, sample: load_guard.Sample) -> None:
        """Keep some memory free for the driver: caches dropped, memory compacted, as while an engine loads."""
        for what in self.cache.decide(time.monotonic(), sample):
            if not self.acts or not self.idle(what):
                continue
            self.begin(what, guard.Step(what))

    def idle(self, key: str) -> bool:
        """Whether a step of a kind is not under way."""
        thread = self.working.get(key)
        return thread is None or not thread.is_alive()

    def begin(self, key: str, step: guard.Step) -> None:
        """Do a step beside the looks."""
        self.working[key] = threading.Thread(target=self.carry_out, args=(step,), name=key, daemon=True)
        self.working[key].start()

    def act(self, step: guard.Step) -> None:
        """Log a step, count it, and do it."""
        shown = {
            guard.DROP: "gives the page cache back",
            guard.UNLOAD: f"asks {step.whom} to unload its models",
            guard.IDLE: f"stops {step.whom}; the next request starts it again",
            guard.REFUSE: f"lets the gateway give {step.whom} no new requests",
            guard.RESTART: f"restarts {step.whom}",
            guard.STOP: f"stops {step.whom}; it stays down until it is started: {self.start_of(step.whom)}",
            guard.ADMIT: f"lets the gateway give {step.whom} requests again",
            guard.NAME: "engines give way to it"
            if self.settings.stop_for_others
            else "no engine inside its plan is stopped for it",
        }[step.what]
        serious = step.what in (guard.RESTART, guard.STOP, guard.NAME)
        word = "" if self.acts else " (act is false: nothing is done)"
        say(f"{step.why}: {shown}{word}", 3 if serious else 4 if step.what != guard.ADMIT else 6)
        wall = round(time.time(), 1)
        with self.lock:
            if step.what != guard.DROP:  # counted when it is done, with those of the cache's own floor
                self.record.counts[step.what] += 1
            self.record.last = {"at": wall, "what": step.what, "whom": step.whom, "why": step.why}
            if step.what == guard.STOP and self.acts:
                self.record.stopped[step.whom] = {"at": wall, "why": step.why, "clock": time.monotonic()}
            self.dirty = True
        if not self.acts or step.what == guard.NAME:
            return
        if step.what in (guard.IDLE, guard.RESTART, guard.STOP):
            self.save(time.monotonic())  # before it, so that it counts whatever happens to this process
        self.begin(f"{step.what} {step.whom}", step)

    def start_of(self, name: str) -> str:
        """How a person starts a service again."""
        service = read_services(self.args.etc).get(name)
        return (
            f"start.yml -e services={name}" if service and service.on_demand else f"systemctl start {self.unit(name)}"
        )

    def unit(self, name: str) -> str:
        return f"spark-{name}.service"

    def carry_out(self, step: guard.Step) -> None:
        """Do one step; each has a limit of its own."""
        try:
            text = self.done(step)
        except Exception as error:  # nothing in here may end the guard
            text = repr(error)
        if text:
            say(f"{step.what} {step.whom}: {text}".replace(" :", ":"), 4)

    def done(self, step: guard.Step) -> str:
        """Do one step; returns what is to be said of it."""
        if step.what in (load_guard.DROP, load_guard.COMPACT):
            return self.free_now(step.what)
        if step.what == guard.UNLOAD and step.whom != "ollama":
            return self.ask_speech(step.whom)
        if step.what == guard.UNLOAD:
            url = unloading.ollama_url(self.args.etc)
            return unloading.unload(url, UNLOAD_SECONDS)[0] if url else ""
        if step.what in (guard.REFUSE, guard.ADMIT):
            return self.ask_gateway(step)
        if step.what == guard.IDLE:
            service = read_services(self.args.etc).get(step.whom)
            if service is None or not is_idle(
                service, self.args.run
            ):  # a request may have come since the account was taken
                return "it has requests again, and goes on"
        if step.what == guard.STOP:
            self.keep_cold(step)
        verb = ["try-restart"] if step.what == guard.RESTART else ["stop"]
        # No job of somebody else is replaced.
        argv = ["systemctl", "--no-block", "--job-mode=fail", *verb, "--", self.unit(step.whom)]
        answer = command.run(argv, 60.0, merge=True)
        return "" if answer.rc == 0 else answer.out.strip() or answer.why

    def keep_cold(self, step: guard.Step) -> None:
        """Have requests not start again what is stopped for good.

        Of a service over several hosts this host's rank says so when the first one wakes it.
        """
        service = read_services(self.args.etc).get(step.whom)
        if service is None or not service.on_demand:
            return
        why = f"the guard of {os.uname().nodename}, which stopped it: {step.why}. start.yml -e services={step.whom} lifts that"
        try:
            pins.write(self.args.run / pins.FOLDER, step.whom, pins.COLD, why)
        except OSError as error:
            say(f"warning: {step.whom}: requests may start it again: {error}", 3)

    def free_now(self, what: str) -> str:
        """Give the page cache back, or have memory compacted; the load guard keeps the account of it."""
        now = time.monotonic()
        try:
            if what == load_guard.COMPACT:
                hostmem.compact(str(self.root))
                self.cache.compacted(now)
                return ""
            freed = hostmem.drop_caches(str(self.root), clean_only=True)["freed_mib"]
        except OSError as error:
            return f"the kernel refuses: {error}" if self.cache.failed(now, what, f"{what}: {error}") else ""
        self.cache.dropped(now, freed * MIB)
        with self.lock:
            self.record.counts[guard.DROP] += 1
            self.dirty = True
        return f"{freed} MiB given back" if freed * MIB >= GIB else ""

    def ask_speech(self, name: str) -> str:
        """Ask a speech server to give its model back."""
        asked = next((each for each in self.ledger.speech() if each["name"] == name), None)
        if asked is None:
            return ""
        key = read(Path(asked["key_file"])).strip() if asked.get("key_file") else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        reply = http_client.fetch(str(asked["url"]), str(asked["method"]), headers, timeout=UNLOAD_SECONDS)
        return "" if reply.status < 400 else f"HTTP {reply.status} at {asked['method']} {asked['url']}"

    def ask_gateway(self, step: guard.Step) -> str:
        """Drain or admit a backend of the gateway that runs on this host."""
        backend = ((self.given.get("services") or {}).get(step.whom) or {}).get("backend")
        if not backend:
            return ""
        limit = ["--timeout", str(DRAIN_SECONDS)] if step.what == guard.REFUSE else []
        verb = "drain" if step.what == guard.REFUSE else "admit"
        argv = ["/usr/bin/python3", str(self.args.gateway), verb, str(backend), *limit]
        answer = command.run(argv, DRAIN_SECONDS + CALL_SECONDS, merge=True)
        return "" if answer.rc == 0 else answer.out.strip() or answer.why

    # --- telling

    def tell(self, level: str, look: guard.Look, before: guard.State) -> None:
        """Say when a shortage begins and ends, and keep systemctl status up to date."""
        record = self.record
        record.available = look.available
        record.lowest = look.available if record.lowest is None else min(record.lowest, look.available)
        account = self.account
        record.who = account.who if account is not None and level != guard.CALM else ""
        if self.state.since is not None and before.since is None:
            stalled = "" if look.stalled is None else f", {look.stalled:.0f} % of the time all wait for memory"
            swapped = "" if look.swapped is None else f", {look.swapped:.0f} % of the swap in use"
            say(f"memory is short: {look.available / GIB:.2f} GiB available{stalled}{swapped}", 4)
        if self.state.since is None and before.since is not None:
            say(f"memory is no longer short: {look.available / GIB:.2f} GiB available")
        if level != record.level:
            record.level, self.dirty = level, True
            notify(f"STATUS={level}: {look.available / GIB:.2f} GiB available")

    def save(self, now: float) -> None:
        """Write the state file: when something happened, and once a minute."""
        if self.args.once or (not self.dirty and now - self.saved < SAVE_SECONDS):
            return
        self.saved = now
        record, wall = self.record, time.time()
        with self.lock:
            self.dirty = False
            value = {
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
                "kept": guard.to_record(self.state, wall, time.monotonic()),
            }
        try:
            state_file.write(self.file, value)
        except OSError as error:
            say(f"warning: {self.file} cannot be written: {error}", 4)

    def loop(self) -> None:
        """Look, every interval."""
        acts = "" if self.acts else ", and only says what it would do"
        say(f"guards the memory of this host: floor {self.settings.floor_gib:g} GiB, looks every "
            f"{self.settings.interval_seconds:g} s{acts}")  # fmt: skip
        ready, alive = False, 0.0
        while True:
            began = time.monotonic()
            try:
                self.round()
            except OSError as error:
                say(f"warning: the memory cannot be read: {error}", 4)
            except Exception as error:  # the next look may go well
                say(f"warning: a look failed: {error!r}", 3)
            if not ready:
                notify("READY=1")
                ready = True
            if began - alive >= ALIVE_SECONDS:
                notify("WATCHDOG=1")
                alive = began
            time.sleep(max(began + self.settings.interval_seconds - time.monotonic(), 0.05))


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark-guard", description="Guards the memory of a host while engines serve.")
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument(
        "--run", type=Path, default=Path("/run/dgxspark"), help="records of starts (default: %(default)s)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path("/var/lib/dgxspark/guard"), help="state (default: %(default)s)"
    )
    parser.add_argument("--gateway", type=Path, default=Path(GATEWAY), help="the gateway's helper")
    parser.add_argument("--once", action="store_true", help="one look, told as JSON; nothing is done or written")
    args = parser.parse_args()
    process = Guard(args)
    if args.once:
        look, sample = process.look()
        account = process.ledger.take()
        steps, _state = guard.decide(process.settings, process.state, look, account)
        told = {"level": guard.level(process.settings, look), "look": asdict(look), "free": sample.free}
        print(json.dumps({**told, "account": asdict(account), "next": [asdict(step) for step in steps]}, indent=1))
        return 0
    threading.stack_size(512 * 1024)
    why = stay_in_memory()
    if why:
        say(f"warning: this process cannot be kept out of the swap: {why}", 4)
    process.loop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
