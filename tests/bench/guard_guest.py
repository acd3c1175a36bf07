"""What runs inside the virtual machine of guard_memory.py: engines, what eats memory, and what watches it. Python's standard library is all it needs.

guard_guest.py engine NAME PORT GIB    hold memory, and answer as a model server does
guard_guest.py gate GIB                wait until there is so much, and some more
guard_guest.py eat GIB@SECOND ...      take so much at such a second after the start, hold it
guard_guest.py watch SECONDS           write a line of memory to the serial console again and again
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

GIB, LARGE_PAGE = 2**30, 2**21
CONSOLE = Path("/dev/ttyS0")
SET_NAME, LOCK_ALL = 15, 3  # PR_SET_NAME; MCL_CURRENT and MCL_FUTURE
libc = ctypes.CDLL(None, use_errno=True)


def call_yourself(name: str) -> None:
    """Set the name of this process in the kernel's messages about killed processes."""
    libc.prctl(SET_NAME, name.encode(), 0, 0, 0)


def hold(gib: float) -> mmap.mmap:
    """Take memory that only this process has, all of it at once: in pages of 2 MiB, as a driver takes it."""
    block = mmap.mmap(-1, int(gib * GIB), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    for offset in range(0, len(block), mmap.PAGESIZE):
        block[offset] = 1
    return block


def tell(text: str) -> None:
    """A line on the serial console, which needs neither disk nor network."""
    with CONSOLE.open("w", encoding="utf-8") as console:
        console.write(f"{text}\n")


class Answers(BaseHTTPRequestHandler):
    """What the guard and clients ask of an engine."""

    protocol_version = "HTTP/1.1"

    def answer(self, body: str) -> None:
        data = body.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        figures = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"
        self.answer(figures if self.path == "/metrics" else "{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(json.dumps({"choices": [{"message": {"role": "assistant", "content": "Hello"}}]}))

    def log_message(self, *_words: object) -> None:
        return


def available() -> float:
    """GiB that the kernel says are there."""
    match = re.search(r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(match[1]) / 2**20 if match else 0.0


def gate(gib: str) -> None:
    while available() < float(gib) + 0.5:
        time.sleep(2)


def engine(name: str, port: str, gib: str) -> None:
    call_yourself(f"engine-{name}")
    signal.signal(signal.SIGTERM, lambda *_words: os._exit(0))
    block = hold(float(gib))
    ThreadingHTTPServer(("0.0.0.0", int(port)), Answers).serve_forever()
    block.close()


def eat(bites: list[str]) -> None:
    call_yourself("notebook")
    began, blocks = time.monotonic(), []
    for bite in bites:
        gib, _at, second = bite.partition("@")
        time.sleep(max(began + float(second) - time.monotonic(), 0))
        blocks.append(hold(float(gib)))
        tell(f"EATEN {sum(map(len, blocks)) / GIB:.2f}")
    time.sleep(3600)


def watch(seconds: str) -> None:
    libc.mlockall(LOCK_ALL)
    while True:
        pressure = re.search(
            r"^full avg10=([0-9.]+)", Path("/proc/pressure/memory").read_text(encoding="ascii"), re.MULTILINE
        )
        assert pressure is not None
        tell(f"MEMORY {available():.3f} {pressure[1]} {os.getloadavg()[0]}")
        time.sleep(float(seconds))


def main() -> None:
    command, *words = sys.argv[1:]
    if command == "eat":
        eat(words)
    elif command == "engine":
        engine(*words)
    elif command == "gate":
        gate(*words)
    else:
        watch(*words)


if __name__ == "__main__":
    main()
