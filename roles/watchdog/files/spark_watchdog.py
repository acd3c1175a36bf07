# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watches the model servers of a host and restarts the one that is wedged: the main process of spark-watchdog.service.

spark-watchdog                     look at all of them every interval, until it is stopped
spark-watchdog --once              one look, told on the standard output; nothing is restarted
spark-watchdog --collect NAME      write down what there is to know about a server now, and leave it alone

What it decides is in wedge.py; here is what it looks at and does. The services are those of /etc/dgxspark/services, read
at every look, so one that is deployed later is watched too. Before a restart it writes down what will be gone afterwards.

Python's standard library and the package beside it are all it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._runtime import command, engine_client, metrics, state_file, wedge
from dgxspark_vllm._runtime.systemd import journal, notify

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
METRICS_SECONDS = 10.0  # a busy server is late; two seconds have had healthy ones restarted
COMMAND_SECONDS = 20.0
STOP_SECONDS = 10.0  # a wedged engine has no request to finish, and would use up all the time that its unit gives it
START_SECONDS = 600.0  # a record of a start that was never ended does not speak for a server for ever
MAX_FILE = 1 << 20
MAX_PROCESSES, MAX_THREADS, MAX_STACKS = 64, 400, 12
LOG_LINES = "500"
POWER = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
COMPILERS = {
    *("nvcc", "cicc", "ptxas", "nvlink", "fatbinary", "cudafe++", "tileiras", "ninja"),
    *("cc1", "cc1plus", "gcc", "g++", "c++", "cc", "clang", "clang++", "ld", "lld"),
}
"""Programs whose presence in a container means that kernels are being built: FlashInfer, Triton, torch.compile."""


say = journal("spark-watchdog")


def run(argv: list[str], seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
    """Run a program without a shell; returns its exit code and what it printed, cut to its end where that is long.

    The code is 127 for one that is missing and 124 for one that did not answer; then the text ends with the reason.
    """
    answer = command.run(argv, seconds, limit=MAX_FILE, tail=True, merge=True)
    return answer.rc, answer.out if answer.state == command.FINISHED else f"{answer.out}\n({answer.why})\n"


def at_once(works: Mapping[str, Callable[[], Any]], seconds: float, failed: Callable[[str], Any]) -> dict[str, Any]:
    """Do several things at once for at most so long.

    :param works: by name
    :param seconds: that all of them may take
    :param failed: makes the result of one that raised something, of the reason
    :returns: results by name; what did not end in time is missing
    """
    done: dict[str, Any] = {}
    threads = []
    for key, work in works.items():

        def body(key: str = key, work: Callable[[], Any] = work) -> None:
            try:
                done[key] = work()
            except Exception as error:  # whatever an engine answers: the others are looked at
                done[key] = failed(repr(error))

        threads.append(threading.Thread(target=body, daemon=True))
        threads[-1].start()
    give_up = time.monotonic() + seconds
    for thread in threads:
        while thread.is_alive() and time.monotonic() < give_up:
            thread.join(min(5.0, max(give_up - time.monotonic(), 0.01)))
            notify("WATCHDOG=1")
    return dict(done)


@contextlib.contextmanager
def apart(name: str) -> Iterator[None]:
    """Report a failure about one service, and go on with the others."""
    try:
        yield
    except Exception as error:  # whatever an engine or a file says
        say(f"warning: {name} cannot be watched: {error!r}", 3)


# --- what there is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    """A model server of this host, as its settings have it."""

    name: str
    unit: str
    containers: tuple[str, ...]
    url: str
    model: str
    api_key_file: str | None

    def client(self) -> engine_client.Client:
        return engine_client.Client(self.url, engine_client.read_api_key(self.api_key_file), self.api_key_file or "")


def read_services(folder: Path, leave_out: list[str]) -> dict[str, Service]:
    """The services of this host that answer requests; the ranks behind a head are the head's to watch."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        given = state_file.read(path)
        if given is None or not NAME.match(path.stem) or path.stem in leave_out:
            continue
        if (given.get("rank") or {}).get("rank") or not all(given.get(key) for key in ("unit", "url", "model")):
            continue
        # With Ray the engine's workers are in the container of Ray, beside the engine's own.
        parts = [str(part["container"]) for part in (given.get("rank") or {}).get("parts") or []]
        containers = tuple(parts) or (str(given.get("container") or f"spark-{path.stem}"),)
        key = given.get("api_key_file")
        found[path.stem] = Service(path.stem, given["unit"], containers, given["url"], given["model"], key)
    return found


def unit_states(units: list[str]) -> dict[str, dict[str, str]]:
    """What systemd says of units; a unit that it says nothing of is missing."""
    if not units:
        return {}
    wanted = "Id,ActiveState,InvocationID,ActiveEnterTimestampMonotonic"
    code, text = run(["systemctl", "show", f"--property={wanted}", "--", *units])
    found = {}
    for block in text.strip().split("\n\n") if code == 0 else []:
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        found[values.get("Id", "")] = values
    return found


def gpu_power() -> float | None:
    """Watts of the GPU that takes most; None where nvidia-smi does not say."""
    code, text = run(POWER, 10.0)
    watts = []
    for line in text.splitlines() if code == 0 else []:
        with contextlib.suppress(ValueError):
            watts.append(float(line.strip()))
    return max(watts, default=None)


def container_ids(containers: tuple[str, ...]) -> dict[str, str]:
    """Ids of those of some containers that there are, each with its name."""
    found = {}
    for container in containers:
        code, text = run(["docker", "container", "inspect", "--format", "{{.Id}}", "--", container], 10.0)
        if code == 0 and len(text.strip()) == 64:
            found[text.strip()] = container
    return found


def runs(container: str) -> bool:
    """Whether a container runs; one of which Docker does not say is taken to, since what is over is not waited for or killed."""
    code, text = run(["docker", "container", "inspect", "--format", "{{.State.Running}}", "--", container], 10.0)
    if code != 0:
        return code != 127 and "no such" not in text.lower()
    return text.strip() == "true"


def processes_of(containers: tuple[str, ...]) -> dict[int, str]:
    """The processes of some containers as this host numbers them, by their control groups, each with its container."""
    numbers = container_ids(containers)
    found = {}
    for path in Path("/proc").iterdir() if numbers else ():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                group = (path / "cgroup").read_text(encoding="utf-8")
                found.update({int(path.name): container for number, container in numbers.items() if number in group})
    return dict(sorted(found.items()))


def state_of(path: Path) -> tuple[str, str]:
    """Name and state of a process or thread, by its folder in /proc."""
    text = (path / "stat").read_text(encoding="utf-8", errors="replace")
    head, _sep, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()[0]


def compiles(containers: tuple[str, ...]) -> bool:
    """Tell whether a compiler runs in one of some containers."""
    for pid in processes_of(containers):
        with contextlib.suppress(OSError, IndexError):
            name, state = state_of(Path(f"/proc/{pid}"))
            if name in COMPILERS and state not in ("Z", "X"):
                return True
    return False


def probe(service: Service, seconds: float) -> tuple[str, str]:
    """Ask for one token; returns the outcome and a line about it."""
    try:
        found = engine_client.one_token(service.client(), service.model, seconds)
    except engine_client.Problem as problem:
        turned_away = problem.kind == "http" and 400 <= problem.status < 500
        no_key = problem.final and problem.kind == "answer"
        return wedge.REFUSED if turned_away or no_key else wedge.FAILED, problem.message
    return wedge.OK, f"one token in {found['seconds']:.1f} s"


def ask_metrics(service: Service) -> tuple[dict[str, float | None] | None, str, str]:
    """The figures of a server, why there are none, and the text that they were read from."""
    try:
        status, text = service.client().metrics(METRICS_SECONDS)
    except engine_client.Problem as problem:
        return None, problem.message, ""
    return (metrics.progress(text), "", text) if status == 200 else (None, f"HTTP {status}", text)


# --- evidence -----------------------------------------------------------------------------------------------------


def secrets_of(service: Service, etc: Path) -> list[str]:
    """Values that are in no file of evidence."""
    paths = [Path(service.api_key_file)] if service.api_key_file else []
    with contextlib.suppress(OSError):
        paths += sorted((etc / "secrets" / service.name).iterdir())
    values = set()
    for path in paths:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            values |= {line.strip() for line in path.read_text(encoding="utf-8").splitlines() if len(line.strip()) >= 4}
    return sorted(values, key=len, reverse=True)


def describe_processes(pids: Mapping[int, str]) -> str:
    """What each process of the container does in the kernel, thread by thread: enough to tell a spin from a wait."""
    lines = [f"{len(pids)} processes"]
    threads = 0

    def read(path: Path) -> str:
        with contextlib.suppress(OSError):
            return path.read_text(encoding="utf-8", errors="replace").strip()
        return ""

    for pid, container in list(pids.items())[:MAX_PROCESSES]:
        base = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError, IndexError):
            name, state = state_of(base)
            lines.append(f"\n=== {container}: pid {pid} {name} state {state}")
            wanted = ("NSpid", "PPid", "VmRSS", "Threads", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
            lines += [line for line in read(base / "status").splitlines() if line.partition(":")[0] in wanted]
            for task in sorted((base / "task").iterdir(), key=lambda path: int(path.name)):
                threads += 1
                if threads > MAX_THREADS:
                    lines.append("(further threads are left out)")
                    return "\n".join(lines) + "\n"
                with contextlib.suppress(OSError, IndexError):
                    name, state = state_of(task)
                    where = read(task / "wchan") or "-"
                    lines.append(
                        f"  {task.name} {name} {state} wchan={where} syscall={read(task / 'syscall')[:80] or '-'}"
                    )
                    lines += [f"      {frame}" for frame in read(task / "stack").splitlines()[:12]]
    return "\n".join(lines) + "\n"


def stacks(pids: Mapping[int, str]) -> str:
    """Return the stacks of the Python processes among those of the containers, or say that there are none.

    :param pids: the containers of processes, by their numbers
    """
    shown = []
    for pid, container in list(pids.items())[:MAX_PROCESSES]:
        with contextlib.suppress(OSError, IndexError):
            name, _state = state_of(Path(f"/proc/{pid}"))
            if name.startswith(("VLLM", "vllm", "python", "pt_main", "ray")):
                shown.append(f"=== pid {pid} {name} of {container}\n{stack_of(pid, container)}")
        if len(shown) == MAX_STACKS:
            break
    return "\n".join(shown) + "\n" if shown else "no Python process was found in the container\n"


def stack_of(pid: int, container: str) -> str:
    """Return what py-spy of the host, or else of the image, prints about a process; a sentence if neither has py-spy.

    :param pid: of the process on the host
    :param container: that the process runs in
    """
    if shutil.which("py-spy"):
        return run(["py-spy", "dump", "--pid", str(pid)], 10.0)[1]
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), str(pid))
    code, text = run(["docker", "exec", container, "py-spy", "dump", "--pid", inner], 10.0)
    if code in (126, 127) or "executable file not found" in text:
        return (
            "py-spy is neither on the host nor in the image; processes.txt shows what the kernel knows of the threads\n"
        )
    return text


def collect(service: Service, etc: Path, state: Path, why: Mapping[str, Any], keep: int) -> Path:
    """Write down what a restart destroys; returns the folder. Whatever cannot be had is left out, with the reason."""
    folder = state / service.name / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.parent.chmod(0o700)
    hidden = secrets_of(service, etc)

    def write(name: str, text: str) -> None:
        for value in hidden:
            text = text.replace(value, "********")
        path = folder / name
        with contextlib.suppress(OSError), path.open("w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(text[-MAX_FILE:])

    write("why.json", json.dumps(why, indent=1, default=str) + "\n")
    pids = processes_of(service.containers)

    def logs(container: str) -> str:
        return f"=== {container}\n" + run(["docker", "logs", "--tail", LOG_LINES, "--timestamps", container])[1]

    def smi() -> str:
        return run(["nvidia-smi"])[1] + run(["nvidia-smi", "-q", "-d", "POWER,CLOCK,TEMPERATURE,PERFORMANCE,PIDS"])[1]

    works: dict[str, Callable[[], str]] = {
        "journal.txt": lambda: run(
            ["journalctl", "--no-pager", "--output=short-iso", "-n", LOG_LINES, "-u", service.unit]
        )[1],
        "docker.txt": lambda: "".join(logs(container) for container in service.containers),
        "docker_stats.txt": lambda: run(["docker", "container", "stats", "--no-stream", *service.containers])[1],
        "metrics.txt": lambda: "".join(ask_metrics(service)[1:]),
        "nvidia_smi.txt": smi,
        "processes.txt": lambda: describe_processes(pids),
        "stacks.txt": lambda: stacks(pids),
        "kernel.txt": lambda: run(["journalctl", "--no-pager", "--output=short-iso", "-k", "-n", "200"])[1],
        "meminfo.txt": lambda: Path("/proc/meminfo").read_text(encoding="utf-8"),
    }
    found = at_once(works, 3 * COMMAND_SECONDS, lambda why: f"(this could not be had: {why})\n")
    for name in works:
        write(name, found.get(name, "(this could not be had in time)\n"))
    old = sorted(path for path in folder.parent.iterdir() if path.is_dir())[:-keep]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return folder


# --- the watchdog ---------------------------------------------------------------------------------------------------


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def clocks_of(state: Mapping[str, Any]) -> tuple[float, float] | None:
    """The monotonic clock and the wall clock when a state was written, None where it does not say."""
    clock, wall = state.get("clock"), state.get("at")
    return (float(clock), float(wall)) if isinstance(clock, (int, float)) and isinstance(wall, (int, float)) else None


class Watchdog:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        given = state_file.read(args.etc / "watchdog" / "settings.json")
        if given is None:
            raise SystemExit(f"spark-watchdog: {args.etc}/watchdog/settings.json cannot be read; run site.yml again")
        self.given = given
        self.keep = int(given.get("keep") or 5)
        self.file = args.state / "state.json"
        before = state_file.read(self.file) or {}
        self.before = before.get("services") or {}
        self.boot = boot_id()
        self.clocks = clocks_of(before) if before.get("boot") == self.boot else None
        self.services: dict[str, Service] = {}
        self.trackers: dict[str, wedge.Tracker] = {}
        self.last_action: dict[str, dict[str, Any]] = {}
        self.told: dict[str, str] = {}
        self.interval = self.settings("").interval_seconds

    def settings(self, name: str) -> wedge.Settings:
        merged = {**self.given, **((self.given.get("services") or {}).get(name) or {})}
        known = {each.name for each in fields(wedge.Settings)}
        return wedge.Settings(**{key: value for key, value in merged.items() if key in known})

    def tracker(self, name: str) -> wedge.Tracker:
        if name not in self.trackers:
            kept = self.before.get(name) or {}
            restarts = [float(moment) for moment in kept.get("restarts") or [] if isinstance(moment, (int, float))]
            self.trackers[name] = wedge.Tracker(self.settings(name), restarts, self.clocks)
            if isinstance(kept.get("last_action"), dict):
                self.last_action[name] = kept["last_action"]
        return self.trackers[name]

    def loop(self) -> None:
        say(f"watches the services of {self.args.etc}/services every {self.interval:g} s")
        ready = False
        while True:
            began = time.monotonic()
            try:
                self.round()
            except Exception as error:  # the next look may go well
                say(f"warning: a look failed: {error!r}", 3)
            if not ready:
                notify("READY=1")
                ready = True
            while (left := began + self.interval - time.monotonic()) > 0:
                notify("WATCHDOG=1")
                time.sleep(min(left, 20.0))

    def round(self) -> None:
        """Look at every service once, and do what follows."""
        self.services = services = read_services(self.args.etc / "services", list(self.given.get("leave_out") or []))
        for gone in set(self.trackers) - set(services):
            del self.trackers[gone]
        looks = self.look(services)
        suspects = set()
        for name, now in looks.items():
            with apart(name):
                if self.tracker(name).look(now) == wedge.PROBE:
                    suspects.add(name)
        seconds = {name: self.settings(name).probe_seconds for name in suspects}
        probes = at_once(
            {name: partial(probe, services[name], seconds[name]) for name in suspects},
            max(seconds.values(), default=0) * 2 + 5,  # a model without chat is asked twice
            # It answered, so it is not wedged; what it answered is no token.
            lambda why: (wedge.REFUSED, f"the probe failed: {why}"),
        )
        for name in sorted(suspects):
            with apart(name):
                self.judge(services[name], looks[name], probes.get(name))
        self.tell()
        self.save()

    def judge(self, service: Service, seen: wedge.Observation, probed: tuple[str, str] | None) -> None:
        """Do what follows from the probe of a suspect. probed: outcome and text, None where it did not end in time."""
        tracker = self.tracker(service.name)
        outcome, text = probed or (wedge.FAILED, "the probe did not end in time")
        step = tracker.probed(outcome, text, time.monotonic(), time.time())
        if step == wedge.ACT:
            self.act(service, seen)
        elif step == wedge.REPORT:
            say(f"{service.unit} is wedged: {tracker.text}", 3)

    def look(self, services: Mapping[str, Service]) -> dict[str, wedge.Observation]:
        """Gather what there is to see of all services."""
        owner = str((state_file.read(self.args.run / "start.json") or {}).get("unit") or "")
        states = unit_states([*(service.unit for service in services.values()), *([owner] if owner else [])])
        active = {name: s for name, s in services.items() if states.get(s.unit, {}).get("ActiveState") == "active"}
        asked = at_once(
            {name: partial(ask_metrics, s) for name, s in active.items()},
            METRICS_SECONDS + 5,
            lambda why: (None, why, ""),
        )
        late = (None, "its /metrics did not end in time", "")
        figures = {name: asked.get(name, late) for name in active}
        busy = any(found is None or (found["requests_running"] or 0) > 0 for found, _error, _text in figures.values())
        power = gpu_power() if busy else None
        moved = {name for name, (found, _error, _text) in figures.items() if self.moves(name, found)}
        looks = {}
        loads = bool(owner) and states.get(owner, {}).get("ActiveState") == "activating"
        for name, service in services.items():
            values = states.get(service.unit, {})
            found, error, _text = figures.get(name, late)
            now = time.monotonic()
            entered = values.get("ActiveEnterTimestampMonotonic", "")
            since = now - int(entered) / 1e6 if entered.isdigit() and entered != "0" else 0.0
            with apart(name):
                looks[name] = wedge.Observation(
                    clock=now,
                    state=values.get("ActiveState", ""),
                    invocation=values.get("InvocationID", ""),
                    active_seconds=since,
                    starting=since < START_SECONDS and self.starts(service.unit, values.get("InvocationID", ""), owner),
                    host_starting=loads,
                    figures=found if name in active else None,
                    error=error,
                    power=power,
                    others_moved=bool(moved - {name}),
                    compiling=name in active and self.tracker(name).suspects() and compiles(service.containers),
                )
        return looks

    def moves(self, name: str, found: Mapping[str, float | None] | None) -> bool:
        last = self.tracker(name).last
        return last is not None and found is not None and any(found.get(key) != value for key, value in last.items())

    def starts(self, unit: str, invocation: str, owner: str) -> bool:
        """Tell whether the helpers of the units say that a start has not ended."""
        if owner == unit:
            return True
        record = state_file.read(self.args.run / "starts" / f"{unit}.json")
        return record is not None and "ready" not in record and record.get("invocation") == invocation

    def act(self, service: Service, seen: wedge.Observation) -> None:
        """Collect, look a last time, restart."""
        tracker = self.tracker(service.name)
        reason = tracker.text
        last = tracker.last or {}
        if self.args.dry_run:
            say(f"{service.unit} is wedged: {reason}. It would be restarted")
            return
        say(f"{service.unit} is wedged: {reason}. Collecting evidence, then it is restarted", 4)
        why = {"service": service.name, "unit": service.unit, "reason": reason, "look": vars(seen), "counters": last}
        where = "none, see the line before"
        try:
            where = str(collect(service, self.args.etc, self.args.state, why, self.keep))
        except OSError as error:  # what is wedged is restarted all the same
            say(f"{service.unit}: warning: the evidence cannot be written: {error}", 4)
        notify("WATCHDOG=1")
        now = unit_states([service.unit]).get(service.unit, {})
        if now.get("ActiveState") != "active" or now.get("InvocationID") != seen.invocation:
            say(f"{service.unit} is left alone: meanwhile it is {now.get('ActiveState') or 'unknown'}")
            return
        found, _error, _text = ask_metrics(service)
        if found is not None and self.moves(service.name, found):
            say(f"{service.unit} is left alone: it makes tokens again. What was seen is in {where}", 4)
            return
        wall = time.time()
        tracker.acted(time.monotonic(), wall)
        self.last_action[service.name] = {"at": wall, "what": "restart", "reason": reason, "evidence": where}
        self.save()  # before the restart, so that it counts whatever happens to this process
        ids = container_ids(service.containers)
        # Not `restart`, which would start what somebody has stopped just now; and no job of somebody else is replaced.
        code, text = run(["systemctl", "--no-block", "--job-mode=fail", "try-restart", "--", service.unit], 60.0)
        if code == 0:
            say(f"{service.unit} is restarted (number {len(tracker.restarts)} within 24 hours). Evidence: {where}", 3)
            self.end(ids)
        else:
            self.last_action[service.name]["what"] = "restart failed"
            say(f"{service.unit} cannot be restarted: {text.strip() or f'exit code {code}'}. Evidence: {where}", 3)

    def end(self, ids: Mapping[str, str]) -> None:
        """Kill what of a wedged engine does not end by itself; by id, so that no container of the next start is meant."""
        give_up = time.monotonic() + STOP_SECONDS
        left = dict(ids)
        while left and time.monotonic() < give_up:
            notify("WATCHDOG=1")
            time.sleep(1.0)
            left = {number: name for number, name in left.items() if runs(number)}
        for number, name in left.items():
            say(f"{name} has not ended within {STOP_SECONDS:.0f} s of being told to, and is killed", 4)
            run(["docker", "kill", "--", number], 10.0)

    def tell(self) -> None:
        """Say what has changed, and keep systemctl status up to date."""
        for name, service in self.services.items():
            tracker = self.tracker(name)
            state, before = tracker.state, self.told.get(name)
            if state != before and (state in (wedge.SUSPECT, wedge.UNJUDGED) or before == wedge.SUSPECT):
                say(f"{service.unit}: {state}: {tracker.text}", 4 if state != wedge.WORKING else 6)
            self.told[name] = state
        words = ", ".join(f"{name} {self.trackers[name].state}" for name in sorted(self.services))
        notify(f"STATUS={words or 'there is no service to watch'}")

    def save(self) -> None:
        """Write the state file: for the collector of metrics, for people, and for the next process."""
        if self.args.dry_run:
            return
        wall, clock = time.time(), time.monotonic()
        told = {}
        for name, service in self.services.items():
            tracker = self.tracker(name)
            told[name] = {
                "unit": service.unit,
                **tracker.facts(),
                "since": round(wall - max(clock - tracker.since, 0)) if tracker.since else None,
                "restarts_24h": len(tracker.recent(clock, wall)),
                "max_restarts": tracker.settings.max_restarts,
                "last_action": self.last_action.get(name),
            }
        try:
            clocks = {"at": round(wall, 1), "clock": round(clock, 1), "boot": self.boot}
            state_file.write(self.file, {"version": 1, **clocks, "interval": self.interval, "services": told})
        except OSError as error:
            say(f"warning: {self.file} cannot be written: {error}", 4)


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark-watchdog", description="Restarts model servers that are wedged.")
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument(
        "--run", type=Path, default=Path("/run/dgxspark"), help="records of starts (default: %(default)s)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path("/var/lib/dgxspark/watchdog"), help="state, evidence (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="one look, told as JSON; nothing is restarted or written")
    parser.add_argument("--dry-run", action="store_true", help="look on, but restart and write nothing")
    parser.add_argument("--collect", metavar="NAME", help="write down what there is to know of a service, and end")
    args = parser.parse_args()
    args.dry_run = args.dry_run or args.once
    if args.collect:
        services = read_services(args.etc / "services", [])
        if args.collect not in services:
            say(
                f"{args.collect!r} is no service that this host answers for; there are: {', '.join(services) or 'none'}",
                3,
            )
            return 1
        keep = int((state_file.read(args.etc / "watchdog" / "settings.json") or {}).get("keep") or 5)
        why = {"service": args.collect, "reason": "asked for by hand"}
        print(collect(services[args.collect], args.etc, args.state, why, keep))
        return 0
    watchdog = Watchdog(args)
    if args.once:
        watchdog.round()
        print(json.dumps({name: tracker.facts() for name, tracker in sorted(watchdog.trackers.items())}, indent=1))
        return 0
    watchdog.loop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
