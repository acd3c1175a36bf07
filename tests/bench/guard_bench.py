"""Measure what the memory guard costs while nothing happens: the agent with this loop alone, with this machine's /proc, for a minute.

Its share of one processor follows from /proc/PID/task/*/schedstat, nanoseconds on a processor. Run with PYTHONPATH=collections, or as
`make bench-guard`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_PERCENT = 0.1
SETTLE_SECONDS = 5.0  # in which it is imported and set up


def spent(pid: int) -> float:
    """Milliseconds that the threads of a process were on a processor."""
    texts = [path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(text.split()[0]) for text in texts) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the guard costs while nothing happens.")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of looks (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guard-bench-") as folder:
        etc, run, state = (Path(folder) / name for name in ("etc", "run", "state"))
        for path in (etc / "agent", etc / "services", run, state):
            path.mkdir(parents=True)
        # Floors that no machine is below, so that only looks are measured.
        floors = '{"floor_gib": 0.25, "start_floor_gib": 0.25, "free_floor_gib": 0.25, "contiguous_floor_gib": 0.01, "last_gib": 0.1}'
        (etc / "agent/guard.json").write_text(floors, encoding="utf-8")
        words = [f"--etc={etc}", f"--run={run}", f"--state={state}"]
        with subprocess.Popen(
            [sys.executable, str(ROOT / "roles/guard/files/spark_agent.py"), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            stdout=subprocess.DEVNULL,
        ) as process:
            time.sleep(SETTLE_SECONDS)
            before, began = spent(process.pid), time.monotonic()
            time.sleep(args.seconds)
            used, took = spent(process.pid) - before, time.monotonic() - began
            alive = process.poll() is None
            process.terminate()
    percent = used / took / 10
    print(
        f"{used:.1f} ms on a processor in {took:.0f} s of a look a second: {percent:.3f} % of one processor, limit {LIMIT_PERCENT} %"
    )
    return 0 if alive and percent < LIMIT_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
