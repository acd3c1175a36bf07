# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes and threads of the agent.

Watchdog and metrics collector each run in a thread of one process; with the memory guard, that is a child of the process of the memory loop.
So they share neither Python's interpreter lock nor memory with it: nothing that hangs, fails or computes there delays a look at the memory.
A thread of the memory process starts the child again when it ends, and kills it when it gives no sign of life.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .._runtime.systemd import journal
from . import services

BEAT_SECONDS = 5.0
"""Between two signs of life of the slow loops."""
HANG_SECONDS = 300.0
"""A loop that makes no progress for so long hangs; probes and evidence of several servers take their time."""
RESTART_SECONDS = 10.0
MOST_STATUS = 65536
OOM_SCORES = {services.WATCHDOG: -500, services.EXPORTERS: 500, services.LIVE: 500}
"""The watchdog is for a host in trouble; metrics and page must never cost an engine memory. The unit's own score is that of the guard."""
COLLECTOR_NICE = 10

say = journal("agent")


def enabled_loops(etc: Path) -> list[str]:
    """Return the loops that have a settings file."""
    return [loop for loop in services.LOOPS if services.settings_path(etc, loop).exists()]


class Loop(threading.Thread):
    """Calls a function every interval."""

    def __init__(
        self,
        name: str,
        interval: float,
        look: Callable[[], None],
        status: Callable[[], str] = lambda: "",
        nice: int = 0,
    ) -> None:
        """Set up the thread. status: returns a line for C(systemctl status). nice: priority of the thread and of its programs."""
        super().__init__(name=name, daemon=True)
        self.interval, self.look, self.status, self.nice = interval, look, status, nice
        self.moved = time.monotonic()

    def beat(self) -> None:
        """Note that the loop makes progress."""
        self.moved = time.monotonic()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self.nice)
        while True:
            began = time.monotonic()
            with services.logged(say, f"{self.name}: a check failed"):
                self.look()
            # A slow look is followed by a pause too.
            due = max(began + self.interval, time.monotonic() + self.interval / 20)
            while (seconds := due - time.monotonic()) > 0:
                self.beat()
                time.sleep(min(seconds, BEAT_SECONDS))


def run_slow(loops: Sequence[Loop], send: Callable[[str], None]) -> None:
    """Run slow loops until this process ends.

    :param send: takes a line for C(systemctl status) as a sign of life; not called while a loop hangs
    """
    for loop in loops:
        loop.start()
    while True:
        if all(loop.is_alive() and time.monotonic() - loop.moved < HANG_SECONDS for loop in loops):
            send("; ".join(text for text in (loop.status() for loop in loops) if text))
        time.sleep(BEAT_SECONDS)


def pipe_sender(descriptor: int) -> Callable[[str], None]:
    """Return a function that sends a sign of life to the parent process. descriptor: of a pipe."""

    def send(text: str) -> None:
        try:
            os.write(descriptor, text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n")
        except BrokenPipeError:  # the parent process has ended
            os._exit(0)

    return send


def lower_priority(loops: Sequence[str]) -> None:
    """Give up the priority that the unit gives the memory guard. loops: that this process runs."""
    score = min(OOM_SCORES[loop] for loop in loops)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def end_if_changed(etc: Path, loops: Sequence[str]) -> None:
    """End this process if a loop was added or removed; systemd starts it again. loops: that it began with."""
    enabled = enabled_loops(etc)
    if enabled != list(loops):
        say(f"runs {', '.join(loops)}, but should run {', '.join(enabled) or 'nothing'}: it exits and restarts")
        os.kill(os.getpid(), signal.SIGTERM)


class SlowProcess(threading.Thread):
    """Keeps the process of the slow loops running."""

    def __init__(self, argv: Sequence[str], check: Callable[[], None]) -> None:
        """Set up the thread. argv: command line, to which the descriptor of a pipe is appended; empty without slow loops."""
        super().__init__(name="slow loops", daemon=True)
        self.argv, self.check = argv, check
        self.status = ""
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        while not self.argv:
            self.check()
            time.sleep(BEAT_SECONDS)
        while True:
            with services.logged(say, "the slow loops cannot be started"):
                self.serve()
            self.status = ""
            time.sleep(RESTART_SECONDS)

    def serve(self) -> None:
        """Start the process, and return once it has ended."""
        reader, writer = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            self.child = subprocess.Popen([*self.argv, str(writer)], pass_fds=(writer,), env=environment)
        finally:
            os.close(writer)
        moved = time.monotonic()
        while time.monotonic() - moved < HANG_SECONDS:
            self.check()
            if not select.select([reader], [], [], BEAT_SECONDS)[0]:
                continue
            text = os.read(reader, MOST_STATUS)
            if not text:
                break
            self.status, moved = text.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2], time.monotonic()
        os.close(reader)
        self.child.kill()
        say(f"warning: the slow loops have ended with {self.child.wait()}; they are started again", 3)

    def stop(self) -> None:
        """End the process."""
        if self.child is not None:
            self.child.terminate()
