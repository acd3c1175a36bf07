# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that hang, flood, or leave children behind: a call ends in time with one of three answers."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command

SHORT = 0.15


@pytest.fixture
def clock() -> Iterator[None]:
    """No case may take much longer than its deadline."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 40


pytestmark = pytest.mark.usefixtures("clock")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(pid)


def test_the_three_answers() -> None:
    done = command.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 30)
    assert (done.state, done.rc, done.out, done.err, done.why) == (command.FINISHED, 3, "out\n", "err\n", "")
    missing = command.run(["/nonexistent/nvidia-smi"], 30)
    assert (missing.state, missing.rc) == (command.MISSING, 127) and "cannot be run" in missing.why
    silent = command.run(["sleep", "60"], SHORT)
    assert (silent.state, silent.why) == (command.SILENT, "sleep did not answer in 0.15 s")


def test_a_file_that_may_not_be_run_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    assert command.run([str(tmp_path / "tool")], 30).state == command.MISSING


def test_a_host_that_cannot_start_a_program_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any, **_options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(command, "Child", full)
    answer = command.run(["docker", "ps"], 30)
    assert answer.state == command.SILENT and "could not be started" in answer.why


def test_what_ignores_a_polite_end_is_killed_with_its_children() -> None:
    script = "trap '' TERM INT HUP; sleep 60 & echo $$ $!; while :; do wait; done"
    answer = command.run(["sh", "-c", script], 3)
    assert answer.state == command.SILENT
    assert all(gone(int(pid)) for pid in answer.out.split()) and len(answer.out.split()) == 2


def test_a_child_that_holds_the_pipes_keeps_nobody_waiting() -> None:
    answer = command.run(["sh", "-c", "sleep 60 & echo $!"], 30)
    assert (answer.state, answer.rc) == (command.FINISHED, 0)
    os.kill(int(answer.out), signal.SIGKILL)


def test_a_child_that_goes_on_writing_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "KILL_SECONDS", 0.1)
    answer = command.run(["sh", "-c", "yes & echo $! >&2"], 30, limit=10_000, tail=True)
    os.kill(int(answer.err), signal.SIGKILL)
    assert answer.state == command.FINISHED and len(answer.out) <= 10_000


def test_too_much_is_stopped_and_a_tail_is_kept() -> None:
    flood = command.run(["yes"], 30, limit=1000)
    assert flood.state == command.SILENT and flood.why == "yes printed more than 1000 bytes"
    assert len(flood.out) == 1000
    assert command.run(["seq", "100000"], 30, limit=7, tail=True).out == "100000\n"
    assert command.run(["sh", "-c", "echo a; echo b >&2; echo c"], 30, merge=True).out == "a\nb\nc\n"


def test_input_is_given_and_may_be_refused() -> None:
    text = b"x" * 300_000
    assert len(command.run(["cat"], 30, data=text).out) == len(text)
    assert command.run(["true"], 30, data=text).rc == 0
    assert command.run(["sleep", "60"], SHORT, data=text).state == command.SILENT


def test_programs_format_for_machines() -> None:
    out = command.run(["sh", "-c", "echo $LC_ALL $TZ"], 30).out
    assert out == "C UTC\n"


def test_what_cannot_be_killed_is_left_behind_and_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that no signal reaches, like nvidia-smi in a hanging driver."""
    monkeypatch.setattr(command, "KILL_SECONDS", 0.05)
    monkeypatch.setattr(command, "_left_behind", {})
    monkeypatch.setattr(command.os, "killpg", lambda *_: None)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert command.run(argv, SHORT).state == command.SILENT
    child = next(iter(command._left_behind.values()))
    assert len(command._left_behind) == 1
    began = time.monotonic()
    result = command.run(argv, 30)
    assert result.state == command.SILENT and "an earlier call hangs" in result.why
    assert time.monotonic() - began < 15 and len(command._left_behind) == 1
    assert command.run(["true"], 30).rc == 0
    child.kill()
    child.wait()
    assert command.run(["true"], 30).rc == 0 and not command._left_behind


def test_an_interrupted_call_leaves_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    seen: list[int] = []

    def end(self: Any, _give_up: float) -> bool:
        seen.append(self.child.pid)
        raise Ended

    monkeypatch.setattr(command._Pipes, "go_on", end)
    with pytest.raises(Ended):
        command.run(["sleep", "60"], 30)
    assert gone(seen[0])


def test_a_reader_waits_in_vain_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, float]] = []

    def run(argv: list[str], timeout: float, **_: Any) -> command.Answer:
        requests.append((argv[0], timeout))
        if argv[0] == "true":
            return command.Answer(command.FINISHED, 0, "yes")
        return command.Answer(command.SILENT, 124, why=f"{argv[0]} did not answer in {timeout:g} s")

    monkeypatch.setattr(command, "run", run)
    ask = command.reader(30.0, 60.0)
    for program in ("docker", "docker", "systemctl", "ip", "ss", "nvidia-smi", "journalctl"):
        with pytest.raises(command.NoAnswer, match=f"{program} did not answer") as nothing:
            ask([program])
        assert nothing.value.program == program
    assert ask(["true"]) == (0, "yes", "")
    waited = [timeout for program, timeout in requests if program != "true"]
    assert waited == [30.0, 2.0, 28.0, 2.0, 2.0, 2.0, 2.0]
    patient = command.reader(30.0, math.inf)
    for _time in range(3):
        with pytest.raises(command.NoAnswer, match="in 30 s"):
            patient(["docker"])


def test_silence_fails_a_task_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        def fail_json(self, msg: str) -> None:
            raise SystemExit(msg)

    hang = command.runner(Module(), SHORT)
    with pytest.raises(SystemExit, match=r"sleep did not answer in 0.15 s \(sleep 60\)\. Its answer is not known"):
        hang(["sleep", "60"])
    with pytest.raises(SystemExit, match="docker failed"), command.failing(Module()):
        raise command.NoAnswer("docker", "docker failed: no route")
    unknown: dict[str, str] = {}
    assert command.noted(unknown, [], command.reader(SHORT), ["sleep", "60"]) == []
    assert unknown == {"sleep": "sleep did not answer in 0.15 s"}
