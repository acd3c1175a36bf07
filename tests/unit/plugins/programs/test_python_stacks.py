# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stacks of other processes, read from their memory: of this Python, and of every other one that is at hand."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parents[4]
VERSIONS = ("3.11", "3.12", "3.13")
PROGRAM = (
    """
import threading

class Engine:
    def step(self):
        for number in range(2):
            wait(number)  # line 7

def wait(number):
    lock = threading.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()  # line 13

def with_much_before():
"""
    + "    x = 1\n" * 300
    + """
    thread = threading.Thread(target=lambda: list(map(lambda _: Engine().step(), [1])), daemon=True)
    thread.start()
    thread.join()  # line 319
with_much_before()
"""
)


@pytest.fixture(scope="module")
def stacks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("python_stacks", REPO / "roles/watchdog/files/python_stacks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["python_stacks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., int]]:
    running: list[subprocess.Popen[str]] = []

    def start(python: str) -> int:
        (tmp_path / "program.py").write_text(PROGRAM)
        argv = [python, str(tmp_path / "program.py")]
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        stream = running[-1].stdout
        assert stream is not None and stream.readline() == "ready\n"
        return running[-1].pid

    yield start
    for process in running:
        process.kill()
        process.communicate()


def python_of(version: str) -> str:
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    done = subprocess.run([REPO / "scripts/find-python", version], capture_output=True, text=True, check=False)
    return done.stdout.strip() or pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_thread_is_shown_with_functions_files_and_lines(
    stacks: ModuleType, started: Callable[..., int], version: str, tmp_path: Path
) -> None:
    pid, file = started(python_of(version)), tmp_path / "program.py"
    engine = [f"    wait ({file}:13)", f"    Engine.step ({file}:7)"]
    lines: list[str] = []
    for _attempt in range(1000):
        lines = stacks.dump(pid).splitlines()
        if engine[0] in lines and f"    with_much_before ({file}:319)" in lines:
            break
        time.sleep(0.05)  # it says that it is ready, and goes there then
    assert lines[0] == f"Python {version}"
    assert [line for line in lines if line in engine] == engine
    assert f"    with_much_before ({file}:319)" in lines and lines[-1].startswith("    <module> ")
    threads = {line.split()[1] for line in lines if line.startswith("thread ")}
    assert threads == {path.name for path in Path(f"/proc/{pid}/task").iterdir()} and str(pid) in threads


def test_what_is_no_python_and_what_is_gone_say_so(stacks: ModuleType) -> None:
    sleep = subprocess.Popen([shutil.which("sleep") or "sleep", "60"])
    try:
        with pytest.raises(stacks.Unreadable, match="no Python with its symbols is mapped there"):
            stacks.dump(sleep.pid)
    finally:
        sleep.kill()
        sleep.wait()
    with pytest.raises(stacks.Unreadable, match="cannot be read"):
        stacks.dump(sleep.pid)


def test_a_version_that_is_not_known_is_named(
    stacks: ModuleType, started: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = started(sys.executable)
    address = stacks.runtime(stacks.Process(pid))[0]
    monkeypatch.setattr(stacks, "runtime", lambda process: (address, (3, 10)))
    with pytest.raises(stacks.Unreadable, match=r"it runs Python 3\.10; known are 3\.11, 3\.12, 3\.13"):
        stacks.dump(pid)
