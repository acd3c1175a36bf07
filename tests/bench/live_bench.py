"""Measure what the live page costs: its server for 100 Sparks, with a reader and without, and the agent of one Spark.

Shares of one processor follow from /proc/PID/stat, which counts ended threads too. Agents are played by a process of their own.
Run with PYTHONPATH=collections, or as `make bench-live`.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/unit/plugins"))

import live_fixture

LIMIT_PERCENT, IDLE_LIMIT_PERCENT = 1.0, 0.1
SETTLE_SECONDS = 8.0
FILES = f"--page={live_fixture.FILES}"


def spent(pid: int) -> float:
    """Return the milliseconds that a process was on a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def play_agents(count: int, pipe: Any) -> None:
    """Answer for the agents of a fleet, each below a path of its name."""
    documents = {spark.host: json.dumps(spark.document).encode() for spark in live_fixture.sparks(count)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = documents[self.path.split("/")[1]].replace(b"61.5", str(60 + time.time() % 5)[:7].encode())
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.request_queue_size = 200
    pipe.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def program(argv: list[str]) -> Iterator[tuple[int, str]]:
    """Run a program until its page is served; yields its process id and the address."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    with subprocess.Popen(
        [sys.executable, *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        line = next(text for text in process.stdout if ", port " in text)
        threading.Thread(target=process.stdout.read, daemon=True).start()
        try:
            yield process.pid, f"http://127.0.0.1:{line.rpartition(' ')[2].strip()}"
        finally:
            process.terminate()


def read_events(url: str) -> None:
    """Read the events of a page until its server ends."""
    with urllib.request.urlopen(f"{url}/events", timeout=60) as stream:
        for _line in stream:
            pass


def measure(name: str, pid: int, seconds: float, limit: float) -> bool:
    """Print the share of a processor and the memory of a process; returns whether the share is below its limit."""
    time.sleep(SETTLE_SECONDS)
    before, began = spent(pid), time.monotonic()
    time.sleep(seconds)
    percent = (spent(pid) - before) / (time.monotonic() - began) / 10
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    mib = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    print(f"{name}: {percent:.3f} % of one processor (limit {limit:g} %), {mib:.0f} MiB")
    return percent < limit


def bench_fleet(folder: Path, count: int, seconds: float) -> bool:
    """Measure the server of a fleet."""
    pipe, other = multiprocessing.Pipe()
    played = multiprocessing.Process(target=functools.partial(play_agents, count, other), daemon=True)
    played.start()
    port = pipe.recv()
    agents = [{"host": f"spark-{n}", "url": f"http://127.0.0.1:{port}/spark-{n}"} for n in range(1, count + 1)]
    settings = {
        "listen": "127.0.0.1",
        "port": 0,
        "host": "forge",
        "agents": agents,
        "checks": str(folder / "c"),
        "stale_seconds": 600,
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    argv = [str(ROOT / "roles/fleet_monitor/files/spark_status_page.py"), str(folder / "settings.json"), FILES]
    with program(argv) as (pid, url):
        fits = [measure(f"page of {count} Sparks, nobody reads", pid, seconds, IDLE_LIMIT_PERCENT * 10)]
        threading.Thread(target=read_events, args=(url,), daemon=True).start()
        fits.append(measure(f"page of {count} Sparks, one reader", pid, seconds, LIMIT_PERCENT))
    played.terminate()
    return all(fits)


def bench_agent(folder: Path, seconds: float) -> bool:
    """Measure the live loop of an agent, alone in its process; the programs that it runs while somebody reads are not counted."""
    (folder / "etc/agent").mkdir(parents=True)
    planned = [live_fixture.service("heavy", url="http://127.0.0.1:9")]
    settings = {"host": "spark-1", "listen": "127.0.0.1", "port": 0, "services": planned, "rails": [], "sysroot": "/"}
    (folder / "etc/agent/live.json").write_text(json.dumps(settings), encoding="utf-8")
    words = [f"--{name}={folder / name}" for name in ("etc", "run", "state", "units")]
    with program([str(ROOT / "roles/guard/files/spark_agent.py"), *words, FILES]) as (pid, url):
        fits = [measure("agent with the live page alone, nobody reads", pid, seconds, IDLE_LIMIT_PERCENT)]
        threading.Thread(target=read_events, args=(url,), daemon=True).start()
        fits.append(measure("agent with the live page alone, one reader", pid, seconds, LIMIT_PERCENT))
    return all(fits)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the live page costs.")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="seconds of each measurement (default: %(default)s)"
    )
    parser.add_argument("--sparks", type=int, default=100, help="Sparks of the fleet (default: %(default)s)")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="live-bench-") as first,
        tempfile.TemporaryDirectory(prefix="live-bench-") as second,
    ):
        fits = [bench_agent(Path(first), args.seconds), bench_fleet(Path(second), args.sparks, args.seconds)]
    return 0 if all(fits) else 1


if __name__ == "__main__":
    sys.exit(main())
