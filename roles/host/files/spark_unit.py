# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of the units of model servers before and after the start of their container.

spark-unit gate NAME      before the start: one engine loads at a time, compile caches of another image removed, Ollama's
                          models unloaded, page cache dropped, enough memory available, engines that are being stopped gone
spark-unit ready NAME     after the start: wait until the server answers with tokens, then let the next one start; until
                          then the load guard keeps memory free (load_guard.py)
                          (both record the memory of the host: the difference is the memory of the engine; the durations of
                          the stages of the last starts are in /var/lib/dgxspark/starts)
spark-unit release NAME   after the stop: give the start lock back
spark-unit keep all       keep the files of KV caches in bounds, the main process of spark-kv-files.service
spark-unit server ...     checks of speech servers and Ollama, see server_checks.py
spark-unit client ...     checks of chat clients, see client_checks.py

vLLM charges an engine with the allocations of another one that loads at the same time, so a host-wide lock is
held from the gate until the server is ready. Its owner is a file in /run; an owner that is no longer starting does
not count, so a failed engine never blocks the next one.

NAME is a file /etc/dgxspark/services/NAME.json. Needs Python's standard library and the files in its folder alone.
A rank of a model that spans hosts has a supervisor instead, spark_rank.py; it takes the same steps with the functions of this file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, where only installed files belong

from dgxspark_vllm._common.foreign_text import parse_json
from dgxspark_vllm._host import nvidia_smi, server_checks, start_lock, units
from dgxspark_vllm._runtime import (
    client_checks,
    command,
    compile_cache,
    endpoint,
    hostmem,
    kv_files,
    load_guard,
    start_stages,
    state_file,
    unloading,
)
from dgxspark_vllm._runtime.systemd import notify

PROGRAM = "spark-unit"  # begins lines in the journal
REMIND_SECONDS = 60.0
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
OLLAMA_SECONDS = 30.0  # for unloading a model, which finishes its answer first
JOURNAL_SECONDS = 10.0  # for questions to the journal and Docker about a past start
STATE_DIR = "/var/lib/dgxspark"


class Stop(Exception):
    """The start cannot go on; the text is the line for the journal."""


class Ended(BaseException):
    """systemd ends this step (SIGTERM)."""


def say(text: str) -> None:
    print(f"{PROGRAM}: {text}", flush=True)


def output(argv: list[str], seconds: float = 30.0) -> str | None:
    """Run a program without a shell and return its output; None if it is missing, failed or did not answer."""
    answer = command.run(argv, seconds)
    return answer.out if answer.state == command.FINISHED and answer.rc == 0 else None


def load_service(etc: Path, name: str) -> dict[str, Any]:
    if not NAME.match(name):
        raise Stop(f"{name!r} is not the name of a service")
    path = etc / "services" / f"{name}.json"
    if not path.exists() and (etc / "speech" / path.name).exists():
        path = etc / "speech" / path.name  # a speech server on demand
    try:
        service: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise Stop(f"{path} cannot be read: {error}") from error
    if not isinstance(service, dict):
        raise Stop(f"{path} is not a JSON object; run the playbook again")
    answers = not (service.get("rank") or {}).get("rank")  # only the first rank has an address
    missing = [key for key in ("unit", "url", "model") if not service.get(key) and (answers or key != "url")]
    if missing:
        raise Stop(f"{path} lacks {', '.join(missing)}; run the playbook again")
    return service


# --- start lock ---------------------------------------------------------------------------------------------------


def own_start(service: dict[str, Any]) -> dict[str, Any]:
    """Return the start that runs this program, as owner of the start lock."""
    return {"unit": service["unit"], "invocation": os.environ.get("INVOCATION_ID", "")}


def take_lock(service: dict[str, Any], run_dir: Path, poll: float) -> None:
    """Become the owner; wait for another unit while it is starting."""
    unit, limit_seconds = service["unit"], float(service.get("start_deadline_seconds") or 3600)
    start = time.monotonic()
    reminded = -REMIND_SECONDS
    while True:
        with start_lock.acquire(run_dir):
            owner = start_lock.read_owner(run_dir)
            if owner is None or owner["unit"] == unit or not start_lock.is_starting(owner):
                if owner is not None and owner["unit"] != unit:
                    say(f"{unit}: takes the start lock from {owner['unit']}, which is not starting any more")
                state_file.write(run_dir / start_lock.OWNER, own_start(service))
                return
        waited = time.monotonic() - start
        if waited >= limit_seconds:
            raise Stop(f"{unit}: gave up after {waited:.0f} s because {owner['unit']} is still starting")
        if waited - reminded >= REMIND_SECONDS:
            say(f"{unit}: waits for {owner['unit']}, which is starting (one engine loads at a time)")
            reminded = waited
        time.sleep(poll)


def release_lock(run_dir: Path, unit: str) -> bool:
    with start_lock.acquire(run_dir):
        owner = start_lock.read_owner(run_dir)
        if owner is None or owner["unit"] != unit:
            return False
        (run_dir / start_lock.OWNER).unlink()
        return True


# --- record of the start --------------------------------------------------------------------------------------------


def start_record(run_dir: Path, unit: str) -> Path:
    """Return the record of the memory before and after the start of a unit; the file exists until the unit stops."""
    return run_dir / "starts" / f"{unit}.json"


def moment(root: str) -> dict[str, Any]:
    """Return the present memory of the host, with a clock for the duration of a start."""
    meminfo = hostmem.read_meminfo(root)
    total = round(hostmem.gib(meminfo, "MemTotal"), 3)
    return {"clock": time.monotonic(), "total_gib": total, **hostmem.summary(meminfo)}


def record_gate(service: dict[str, Any], run_dir: Path, began: float) -> None:
    """Record the memory at the start of an engine, and the memory of the running engines. began: clock before the wait."""
    path = start_record(run_dir, service["unit"])
    others = {}
    try:
        for other in sorted(path.parent.glob("*.json")):
            record = state_file.read(other) or {}
            if other != path and "ready" in record:
                others[other.stem] = round(record["gate"]["available_gib"] - record["ready"]["available_gib"], 3)
        gate = moment(service.get("sysroot") or "/")
        state_file.write(path, {**own_start(service), "began": began, "gate": gate, "beside": others})
    except (OSError, KeyError, TypeError) as error:  # a note for later; the start does not depend on it
        say(f"{service['unit']}: warning: the start is not recorded: {error!r}")


def record_ready(service: dict[str, Any], run_dir: Path) -> None:
    """Add the memory after the first answer of the model."""
    path = start_record(run_dir, service["unit"])
    record = state_file.read(path) or {}
    if not record or record.get("invocation") != os.environ.get("INVOCATION_ID", ""):
        return  # the record is of another start
    try:
        ready = moment(service.get("sysroot") or "/")
        seconds = round(ready["clock"] - record["gate"]["clock"], 1)
        state_file.write(path, {**record, "ready": ready, "start_seconds": seconds})
    except (OSError, KeyError, TypeError) as error:
        say(f"{service['unit']}: warning: the end of the start is not recorded: {error!r}")


def keep_start(service: dict[str, Any], run_dir: Path) -> None:
    """Record the durations of the stages of the start; a failure does not matter to the model, which serves already."""
    unit, invocation = service["unit"], os.environ.get("INVOCATION_ID", "")
    record = state_file.read(start_record(run_dir, unit)) or {}
    if not invocation or record.get("invocation") != invocation:
        return
    answer = command.run(units.start_log_command(invocation), JOURNAL_SECONDS)
    lines, _cursor = start_stages.read_journal(answer.out if answer.state == command.FINISHED else "")
    if not lines:
        say(f"{unit}: what its stages took is not kept: {answer.why or 'the journal has nothing of this start'}")
        return
    try:
        path = Path(os.environ.get("DGXSPARK_STATE_DIR") or STATE_DIR) / "starts" / f"{service['name']}.json"
        stages = start_stages.timeline(float(record["began"]), float(record["gate"]["clock"]), lines)
        took = start_stages.durations(stages, float(record["ready"]["clock"]))
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        new = start_stages.entry(at, launch_of(service), took, start_stages.figures_of(line for _clock, line in lines))
        state_file.write(path, start_stages.with_start(state_file.read(path), new))
    except (OSError, KeyError, TypeError, ValueError) as error:
        say(f"{unit}: warning: what its stages took is not kept: {error!r}")
        return
    say(f"{unit}: the start took {new['seconds']:.0f} s: {start_stages.text(took)}")


def launch_of(service: dict[str, Any]) -> str:
    """Return the fingerprint of a container's launch, empty without an answer of Docker."""
    label = '{{index .Config.Labels "dgxspark.fingerprint"}}'
    argv = ["docker", "container", "inspect", "--format", label, "--", service.get("container") or ""]
    return (output(argv, JOURNAL_SECONDS) or "").strip()[:128]


# --- load guard -----------------------------------------------------------------------------------------------------


class LoadGuard:
    """Keeps memory free while a service loads: a thread of the process that waits for the answer.

    It ends with that process, and changes no setting that would have to be restored.
    C(goes_on) tells whether the start is still under way. C(tell) gets the text that `systemctl status` shows.
    """

    def __init__(
        self,
        service: dict[str, Any],
        run_dir: Path,
        goes_on: Callable[[], bool] = lambda: True,
        tell: Callable[[str], None] = lambda text: notify(f"STATUS={text}"),
    ) -> None:
        self.unit, self.root = service["unit"], service.get("sysroot") or "/"
        self.record, self.goes_on, self.tell = start_record(run_dir, self.unit), goes_on, tell
        self.settings = load_guard.from_service(service)
        self.guard: load_guard.Guard | None = None
        self.over = threading.Event()
        self.closing = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="load guard", daemon=True)

    def __enter__(self) -> LoadGuard:
        self.begin()
        return self

    def __exit__(self, *_reason: object) -> None:
        self.close()

    def begin(self) -> None:
        """Start the thread, if the settings ask for it."""
        if self.settings is not None:
            self.guard = load_guard.Guard(self.settings, time.monotonic())
            self.thread.start()

    def close(self) -> None:
        """End the thread and record its account, once."""
        with self.closing:
            guard, self.guard = self.guard, None
        if guard is None:
            return
        self.over.set()
        self.thread.join(5)  # a write into a busy kernel can take a moment; the account does not wait for it
        say(f"{self.unit}: load guard: {guard.text()}")
        if guard.acted:
            self.tell(f"load guard: {guard.text()}")
        record = state_file.read(self.record) or {}
        # The record may be missing, or be of another start; the journal has the account anyway.
        if record.get("invocation") == os.environ.get("INVOCATION_ID", ""):
            with contextlib.suppress(OSError):
                state_file.write(self.record, {**record, "load_guard": guard.account()})

    def status(self) -> str:
        """Return the steps of the guard so far in a few words, empty without any."""
        guard = self.guard
        if guard is None or not guard.acted:
            return ""
        return f"load guard: caches dropped {load_guard.times(guard.drops)}, {guard.given_back // load_guard.MIB} MiB"

    def _run(self) -> None:
        guard, settings = self.guard, self.settings
        if guard is None or settings is None:
            return
        while not self.over.is_set() and self.goes_on():
            try:
                self._step(guard)
            except Exception as error:  # no failure of the guard may end the start
                if guard.failed(time.monotonic(), "", repr(error)):
                    say(f"{self.unit}: warning: load guard: {error!r}")
            self.over.wait(settings.interval_seconds)

    def _step(self, guard: load_guard.Guard) -> None:
        look = load_guard.sample(hostmem.read_meminfo(self.root), hostmem.read_buddyinfo(self.root))
        for action in guard.decide(time.monotonic(), look):
            if self.over.is_set():
                return
            try:
                if action == load_guard.COMPACT:
                    hostmem.compact(self.root)
                    guard.compacted(time.monotonic())
                    continue
                first = not guard.drops
                freed = hostmem.drop_caches(self.root, clean_only=True)["freed_mib"]
                guard.dropped(time.monotonic(), freed * load_guard.MIB)
                if first:
                    say(
                        f"{self.unit}: load guard: MemFree was {look.free / hostmem.GIB:.2f} GiB, below the floor of "
                        f"{guard.floor / hostmem.GIB:g}; dropped caches, {freed} MiB given back; goes on until it is ready"
                    )
                self.tell(self.status())
            except OSError as error:
                if guard.failed(time.monotonic(), action, f"{action}: {error}"):
                    say(f"{self.unit}: warning: load guard: the kernel refuses to {action}: {error}")


# --- gate ---------------------------------------------------------------------------------------------------------


def unload_ollama(unit: str, etc: Path, poll: float) -> None:
    """Have Ollama unload its models for the engine that starts; it loads them again for the next request.

    An Ollama that is missing, stopped or silent holds no memory.
    """
    try:
        url = unloading.ollama_url(etc)
    except ValueError as error:
        say(f"{unit}: warning: {error}")
        return
    text, done = unloading.unload(url, OLLAMA_SECONDS, poll) if url else ("", False)
    if text:
        say(f"{unit}: {'' if done else 'warning: '}{text}")


def holders() -> str:
    """Return the processes that hold most GPU memory, for the message of a start without enough memory."""
    text = output(nvidia_smi.COMPUTE_APPS_QUERY)
    if text is None:
        return "nvidia-smi cannot say who holds it"
    return nvidia_smi.name_holders(nvidia_smi.parse_compute_apps(text))


def gate_memory(service: dict[str, Any], poll: float) -> None:
    unit, root = service["unit"], service.get("sysroot") or "/"
    # The kernel takes the memory of a speech server from the page cache by itself.
    on_cpu = service.get("device") == "cpu"
    try:
        if not on_cpu:
            dropped = hostmem.drop_caches(root)
            say(f"{unit}: dropped the page cache, {dropped['freed_mib']} MiB freed")
    except OSError as error:
        say(f"{unit}: warning: the page cache was not dropped: {error}")
    need = service.get("memory_gib")
    if need is None:
        return
    limit = float(service.get("memory_wait_seconds") or 0)
    reported = False

    def on_wait(now: dict[str, float]) -> None:
        nonlocal reported
        if not reported:
            say(
                f"{unit}: waits for memory: needs {need:.2f} GiB, {now['available_gib']:.2f} GiB available, "
                f"{now['free_gib']:.2f} GiB free"
            )
            reported = True

    try:
        grace: dict[str, Any] = {"free_grace_seconds": 0.0} if on_cpu else {}
        memory = hostmem.wait_for_memory(float(need), root, limit, poll, on_wait=on_wait, **grace)
    except OSError as error:
        raise Stop(f"{unit}: the memory of this host cannot be read: {error}") from error
    have = f"{memory['available_gib']:.2f} GiB available, {memory['free_gib']:.2f} GiB free"
    if not memory["ok"]:
        raise Stop(f"{unit}: not enough memory: needs {need:.2f} GiB, {have} after {limit:.0f} s; {holders()}")
    if memory["free_short"] and not on_cpu:
        say(
            f"{unit}: warning: {need:.2f} GiB are available but not free ({have}); vLLM goes by what is available, "
            "the driver may still fail to allocate"
        )
    else:
        say(f"{unit}: memory is there: needs {need:.2f} GiB, {have}")


def gate_caches(service: dict[str, Any]) -> None:
    """Remove compile caches of another image. An unknown image, or a failed removal, does not prevent the start."""
    unit, folder, image_id = service["unit"], service.get("cache_dir"), image_id_of(service)
    if not folder or not image_id:
        return
    try:
        removed = compile_cache.of_image(service["name"], Path(folder), image_id)
    except OSError as error:
        say(f"{unit}: warning: compile caches of another image were not removed: {error}")
        return
    if removed:
        say(f"{unit}: removed what another image compiled: {', '.join(removed)}; this start compiles anew")


def image_id_of(service: dict[str, Any]) -> str:
    """Return the id of the image of a service, empty if Docker does not tell it."""
    if not service.get("image"):
        return ""
    text = output(["docker", "image", "inspect", "--format", "{{.Id}}", "--", service["image"]]) or ""
    return text.strip() if text.startswith("sha256:") else ""


def gate_kv_files(service: dict[str, Any]) -> None:
    """Remove KV cache files of another launch; without certainty about that the engine must not start, since it trusts them."""
    unit, settings = service["unit"], service.get("kv_files")
    if not settings:
        return
    image_id = image_id_of(service)
    if not image_id:
        raise Stop(
            f"{unit}: Docker does not tell the id of {service.get('image')}, so its KV cache files may be of another image"
        )
    try:
        removed = kv_files.prepare(service["name"], settings, image_id)
    except OSError as error:
        raise Stop(f"{unit}: KV cache files of another launch may be in {settings['folder']}: {error}") from error
    if removed:
        say(f"{unit}: removed {removed / hostmem.GIB:.1f} GiB of KV cache files")


def keep_files(etc: Path, poll: float) -> None:
    """Keep the files of KV caches in bounds until the process ends; settings are read anew after a restart of the unit."""
    settings = [state_file.read(path) or {} for path in sorted((etc / "services").glob("*.json"))]
    keepers = [kv_files.Keeper(service["kv_files"]) for service in settings if service.get("kv_files")]
    while True:
        for keeper in keepers:
            try:
                removed = keeper.look()
            except OSError as error:
                say(f"warning: {keeper.folder}: {error}")
                continue
            if removed:
                say(f"{keeper.folder}: removed the oldest files, {removed / hostmem.GIB:.1f} GiB")
        time.sleep(poll)


def gate_stops(service: dict[str, Any], etc: Path, run_dir: Path, poll: float) -> None:
    """From here on no engine is stopped to make room; those that are being stopped already are waited for, with their memory."""
    unit, root = service["unit"], service.get("sysroot") or "/"
    with start_lock.acquire(run_dir):
        state_file.write(run_dir / start_lock.OWNER, {**own_start(service), "loads": True})
    names = {path.stem for folder in ("services", "speech") for path in (etc / folder).glob("*.json")}
    names.discard(service["name"])
    limit, start = float(service.get("memory_wait_seconds") or 0), time.monotonic()
    waits_for = ""
    while True:
        stopping = start_lock.being_stopped(f"spark-{name}.service" for name in names)
        if stopping == []:
            break
        named = "systemd, which does not say what stops" if stopping is None else ", ".join(stopping)
        if time.monotonic() - start >= limit:
            say(f"{unit}: warning: no longer waits for {named}; its memory may come back while this engine loads")
            return
        if not waits_for:
            say(f"{unit}: waits for {named}: memory that comes back while an engine loads ends it")
        waits_for = named
        time.sleep(poll)
    if waits_for:
        with contextlib.suppress(OSError):
            available = hostmem.mem_available_gib(hostmem.read_meminfo(root))
            hostmem.wait_until_back(available, None, root, interval_seconds=poll)


def gate(service: dict[str, Any], etc: Path, run_dir: Path, poll: float) -> None:
    unit, began = service["unit"], time.monotonic()
    take_lock(service, run_dir, poll)
    try:
        gate_caches(service)
        gate_kv_files(service)
        unload_ollama(unit, etc, poll)
        gate_memory(service, poll)
        gate_stops(service, etc, run_dir, poll)
        record_gate(service, run_dir, began)
    except BaseException:
        release_lock(run_dir, unit)  # nothing was loaded, so the next one may start at once
        raise


# --- ready --------------------------------------------------------------------------------------------------------


class MainProcess:
    """The unit's main process, `docker run` in the foreground: it lives exactly as long as the container."""

    def __init__(self, service: dict[str, Any]) -> None:
        self.unit = service["unit"]
        self.container = service.get("container")
        text = os.environ.get("MAINPID", "")  # systemd sets it for the commands after the start
        if not text:
            text = next(iter(start_lock.unit_states([self.unit]) or []), {}).get("MainPID", "")
        self.pid = text if text.isdigit() and text != "0" else None
        self.started = units.process_start(self.pid) if self.pid else None

    def why_dead(self) -> str | None:
        """Return how the container or its docker client ended, None while it lives."""
        if self.pid is not None:
            if self.started is None or units.process_start(self.pid) != self.started:
                return f"the main process of {self.unit} (docker run, pid {self.pid}) has ended"
            return None
        if self.container:
            argv = ["docker", "container", "inspect", "--format", "{{.State.Status}}", "--", self.container]
            answer = command.run(argv)
            gone = answer.rc != 0 and "no such" in answer.err.lower()
            # A slow or failing Docker leaves the state unknown; the wait has a time limit.
            if answer.state == command.FINISHED and (gone or answer.out.strip() in ("exited", "dead")):
                return f"the container {self.container} is not running"
        return None


def await_answer(service: dict[str, Any], poll: float, alive: Callable[[], str | None]) -> None:
    """Wait until the model has answered. C(alive) returns why it never will, or None."""
    unit = service["unit"]
    result = endpoint.wait_ready(
        service["url"],
        service["model"],
        endpoint.Requests(measure=False),
        api_key_file=service.get("api_key_file"),
        timeout=float(service.get("start_deadline_seconds") or 3600),
        interval=poll,
        alive=alive,
        on_event=lambda stage, text: say(f"{unit}: {stage}: {text}"),
    )
    if not result["ready"]:
        fix = f"; {result['fix']}" if result["fix"] else ""
        raise Stop(f"{unit}: not ready, stage {result['stage']}: {result['error']}{fix}")
    say(
        f"{unit}: ready after {result['elapsed_seconds']:.0f} s; {result['model']} gave its first token in "
        f"{result['ttft_seconds']:.2f} s"
    )


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Have SIGTERM raise Ended, so that the load guard records its account, and end by the signal afterwards."""

    def end(_number: int, _frame: object) -> None:
        raise Ended

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Ended:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ready(service: dict[str, Any], run_dir: Path, poll: float) -> None:
    # When it never answers, the lock stays until the container is gone and the unit's ExecStopPost releases it.
    with ended_in_order(), LoadGuard(service, run_dir):
        await_answer(service, poll, MainProcess(service).why_dead)
    record_ready(service, run_dir)
    release_lock(run_dir, service["unit"])
    keep_start(service, run_dir)


CHECKS = {"server": server_checks.main, "client": client_checks.main}


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in CHECKS:
        return CHECKS[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="spark-unit", description="Steps of the units of model servers.")
    parser.add_argument("step", choices=("gate", "ready", "started", "release", "keep"))
    parser.add_argument("name", help="name of the service")
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument(
        "--run", type=Path, default=Path("/run/dgxspark"), help="start lock and records (default: %(default)s)"
    )
    parser.add_argument("--poll", type=float, default=2.0, help="seconds between two looks (default: %(default)s)")
    args = parser.parse_args()
    try:
        if args.step == "release":
            # The settings may be gone already when a service is removed; the name of the unit follows from its own.
            if NAME.match(args.name):
                start_record(args.run, f"spark-{args.name}.service").unlink(missing_ok=True)
                release_lock(args.run, f"spark-{args.name}.service")
            return 0
        if args.step == "keep":
            keep_files(args.etc, args.poll)
        service = load_service(args.etc, args.name)
        if args.step == "gate":
            gate(service, args.etc, args.run, args.poll)
        elif args.step == "started":
            # The answer was waited for by another program.
            record_ready(service, args.run)
            release_lock(args.run, service["unit"])
        else:
            ready(service, args.run, args.poll)
    except Stop as reason:
        say(str(reason))
        return 1
    except OSError as error:
        say(f"{args.step} {args.name}: {error}")
        return 0 if args.step == "release" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
