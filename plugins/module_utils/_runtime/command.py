# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run programs with a deadline: each call ends as finished, as not there, or without an answer in time.

Silence is never an answer. A program without an end in time is killed with all its children, and a program that cannot be
killed, as a client of a hung driver, is left behind instead of being waited for.

Output of programs is foreign text: it steers no terminal.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.foreign_text import decode_text

# Programs format numbers and times themselves, so both are pinned.
ENVIRONMENT = {"LC_ALL": "C", "LANG": "C", "LANGUAGE": "C", "TZ": "UTC"}

ADVICE = "Its answer is not known. The host is overloaded or that program hangs: see uptime and journalctl --boot there, then run again"

FINISHED, MISSING, SILENT = "finished", "missing", "silent"

QUERY_SECONDS = 30.0  # that one look may take; a loaded host answers within a few
LOOKS_SECONDS = 60.0  # that all looks of a reader may wait in vain, together
LEAST_SECONDS = 2.0  # that a program gets when that time is used up
WORK_SECONDS = 3600.0  # for commands that change something: a start, a stop, a removal
MOST_BYTES = 64 * 2**20  # of each of the two outputs
KILL_SECONDS = 1.0  # that a killed program is waited for
PIECE = 1 << 16
POLL_SECONDS, MOST_POLL_SECONDS = 0.02, 0.25

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELOOP, errno.EISDIR)

Run = Callable[..., "tuple[int, str, str]"]


class NoAnswer(Exception):
    """A program gave no answer, so the fact is unknown. C(program) is its name; the text is a sentence about it."""

    def __init__(self, program: str, text: str) -> None:
        super().__init__(text)
        self.program = program


class Unknown(Exception):
    """A question has no answer; the text is the reason, a sentence without its full stop."""


@dataclass(frozen=True)
class Answer:
    """What came of a call.

    state: C(FINISHED), with C(rc), C(out) and C(err); C(MISSING): there is no such program, or it may not be run; C(SILENT): it
    did not end in time, printed too much, or the host could not start it. why: a sentence, for the last two. For C(SILENT),
    C(out) and C(err) have the output so far, and rc is 124.
    """

    state: str
    rc: int
    out: str = ""
    err: str = ""
    why: str = ""


_left_behind: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
_guard = threading.Lock()


class Child(subprocess.Popen[bytes]):
    """A started program. Ansible's own run_command knows no deadline, hence this file."""


def run(
    argv: list[str],
    timeout: float = QUERY_SECONDS,
    *,
    data: bytes | None = None,
    limit: int = MOST_BYTES,
    tail: bool = False,
    merge: bool = False,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
) -> Answer:
    """Run a program without a shell; never raises for anything that the program does.

    Background processes of a program keep nobody waiting, even with open pipes.

    :param timeout: seconds that it may take
    :param limit: most bytes of each output; a program that prints more is stopped
    :param tail: keep the end of longer outputs instead of stopping the program
    :param merge: both outputs in C(out), in the order of their writing
    :param env: its whole environment; the caller's when left out
    :param encoding: of its outputs; C(latin-1) keeps every byte
    :returns: exit code and outputs, and the reason if there is no answer
    """
    give_up = time.monotonic() + timeout
    program, key = Path(argv[0]).name, tuple(argv)
    with _guard:
        for other, child in list(_left_behind.items()):
            if child.poll() is not None:
                del _left_behind[other]
        if key in _left_behind:
            return Answer(SILENT, 124, why=f"{program} did not answer: an earlier call hangs and cannot be killed")
    try:
        child = Child(
            argv,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            cwd=cwd,
            env={**(os.environ if env is None else env), **ENVIRONMENT},
            start_new_session=True,
        )
    except OSError as error:
        if error.errno in _ABSENT:
            return Answer(MISSING, 127, err=str(error), why=f"{argv[0]} cannot be run: {error.strerror}")
        return Answer(SILENT, 124, why=f"{program} could not be started: {error.strerror}")
    pipes = _Pipes(child, data, limit, tail, encoding)
    try:
        in_time = pipes.go_on(give_up)
    except BaseException:
        _end(child, key)
        pipes.close()
        raise
    if not in_time:
        _end(child, key)
    out, err = pipes.close()
    if in_time:
        return Answer(FINISHED, child.returncode, out, err)
    why = f"printed more than {limit} bytes" if pipes.too_much else f"did not answer in {timeout:g} s"
    return Answer(SILENT, 124, out, err, f"{program} {why}")


class _Pipes:
    """The pipes of a program, read and written as far as they let one."""

    def __init__(
        self, child: subprocess.Popen[bytes], data: bytes | None, limit: int, tail: bool, encoding: str
    ) -> None:
        self.child, self.data, self.limit, self.tail = child, memoryview(data or b""), limit, tail
        self.encoding = encoding
        self.kept: dict[Any, bytearray] = {stream: bytearray() for stream in (child.stdout, child.stderr) if stream}
        self.too_much = False
        self.selector = selectors.DefaultSelector()
        for stream in self.kept:
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ)
        if child.stdin:
            os.set_blocking(child.stdin.fileno(), False)
            self.selector.register(child.stdin, selectors.EVENT_WRITE)

    def go_on(self, give_up: float) -> bool:
        """Read and write until the program has ended; C(False) when the time or the room was used up before."""
        pause, drained = POLL_SECONDS, 0.0
        while True:
            ended = self.child.poll() is not None  # before the last look, so that no output is missed
            now = time.monotonic()
            if ended and not drained:
                drained = now + KILL_SECONDS
            if self._look(0.0 if ended else max(min(give_up - now, pause), 0.0)):
                if self.too_much:
                    return False
                pause = POLL_SECONDS
                # What it left running may go on writing for ever.
                if ended and now >= drained:
                    return True
            elif ended:
                return True
            else:
                # The end of a program is no event of its pipes where a child of it holds them.
                pause = min(pause * 1.5, MOST_POLL_SECONDS)
            if now >= give_up and not ended:
                return False

    def _look(self, wait: float) -> bool:
        """Read from the pipes within so many seconds; return whether there was any output."""
        if not self.selector.get_map():
            time.sleep(min(wait, POLL_SECONDS / 4))
            return False
        moved = [self._move(chosen.fileobj) for chosen, _events in self.selector.select(wait)]
        return True in moved

    def _move(self, stream: Any) -> bool:
        if stream is self.child.stdin:
            return self._feed(stream)
        try:
            piece = os.read(stream.fileno(), PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self.selector.unregister(stream)
            return False
        received = self.kept[stream]
        received += piece
        if len(received) > self.limit and not self.tail:
            del received[self.limit :]
            self.too_much = True
        elif len(received) > 2 * self.limit:
            del received[: -self.limit]
        return True

    def _feed(self, stream: Any) -> bool:
        try:
            written = os.write(stream.fileno(), self.data[:PIECE]) if self.data else 0
        except BlockingIOError:
            return False
        except OSError:  # it wants no more
            written = len(self.data)
        self.data = self.data[written:]
        if not self.data:
            self.selector.unregister(stream)
            stream.close()
        return False

    def close(self) -> tuple[str, str]:
        """Close the pipes; return the output of both."""
        self.selector.close()
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        texts = [bytes(self.kept.get(stream, b"")[-self.limit :]) for stream in (self.child.stdout, self.child.stderr)]
        if self.encoding == "utf-8":
            return decode_text(texts[0]), decode_text(texts[1])
        return texts[0].decode(self.encoding, "replace"), texts[1].decode(self.encoding, "replace")


def _end(child: subprocess.Popen[bytes], key: tuple[str, ...]) -> None:
    """Kill a program with its children; an immortal one is noted and left."""
    with contextlib.suppress(OSError):  # the session that it leads is its process group
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        with _guard:
            _left_behind[key] = child


def reader(seconds: float = QUERY_SECONDS, together: float = LOOKS_SECONDS) -> Run:
    """Return a function that asks a program something and gives (rc, stdout, stderr); it raises NoAnswer on silence.

    A program that does not exist or may not be run gives rc 127. seconds: that one call may take, unless it is given its own.
    together: that all calls may wait in vain; afterwards each gets C(LEAST_SECONDS), so that a host on which everything hangs is
    looked at in a bounded time; a program that was silent once gets no more before that. Infinite, every call gets its time: for who
    asks again until its own deadline.
    """
    wasted = 0.0
    silent: set[str] = set()

    def ask(argv: list[str], seconds: float = seconds, **options: Any) -> tuple[int, str, str]:
        nonlocal wasted
        program = Path(argv[0]).name
        most = max(min(seconds, together - wasted), min(seconds, LEAST_SECONDS))
        if program in silent and together < math.inf:
            most = min(most, LEAST_SECONDS)
        answer = run(argv, most, **options)
        if answer.state == SILENT:
            wasted += most
            silent.add(program)
            raise NoAnswer(program, answer.why)
        silent.discard(program)
        return answer.rc, answer.out, answer.err

    return ask


def runner(module: Any, seconds: float = QUERY_SECONDS) -> Run:
    """Return a function that runs an argv and gives (rc, stdout, stderr); silence fails the task, in plain words.

    A program that does not exist or may not be run gives rc 127 instead of a failed task. seconds: that a call may take, unless
    it is given its own.
    """

    def call(argv: list[str], seconds: float = seconds, **options: Any) -> tuple[int, str, str]:
        answer = run(argv, seconds, **options)
        if answer.state == SILENT:
            module.fail_json(msg=silence(answer.why, argv))
        return answer.rc, answer.out, answer.err

    return call


@contextlib.contextmanager
def failing(module: Any) -> Iterator[None]:
    """Have a tool that gives no answer fail the task, in plain words."""
    try:
        yield
    except NoAnswer as nothing:
        module.fail_json(msg=f"{nothing}. {ADVICE}")


def answered(program: str, rc: int, message: str = "") -> None:
    """Raise NoAnswer for a program that exists and failed: the fact is unknown. 127, a missing program, is an answer."""
    if rc not in (0, 127):
        last = message.strip().splitlines()[-1:] or [f"exit code {rc}"]
        raise NoAnswer(program, f"{program} failed: {last[0].strip()}")


def unreadable(program: str, message: str) -> NoAnswer:
    """Return the exception for an answer of an unexpected form: the fact is unknown."""
    first = next(iter(message.strip().splitlines()), "").strip()
    return NoAnswer(
        program, f"{program} printed {first[:80]!r} instead of an answer" if first else f"{program} printed nothing"
    )


def says_missing(errors: str) -> bool:
    """Return whether docker reports that the object does not exist, which is an answer; any other failure is no answer."""
    return re.search(r"no such (object|container|image|volume|network)", errors, re.IGNORECASE) is not None


def silence(why: str, argv: list[str]) -> str:
    """The message of a task that ends because a program gave no answer."""
    return f"{why} ({' '.join(argv[:4])}{' ...' if len(argv) > 4 else ''}). {ADVICE}"


def noted(unknown: dict[str, str], default: Any, look: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return what a look finds, or a default when a program gave no answer."""
    try:
        return look(*arguments, **named)
    except NoAnswer as nothing:
        unknown.setdefault(nothing.program, str(nothing))
        return default
