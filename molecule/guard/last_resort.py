"""The kernel's OOM killer, for the simulated pool: kill the process that holds the most of it, without a word before.

A GB10 more often freezes; this is the milder end.
"""

from __future__ import annotations

import os
import signal
import sys
import time

sys.path.insert(0, "/usr/local/lib/spark-sim")

import ledger


def held(entry: dict[str, int]) -> int:
    return int(entry.get("gpu_bytes", 0)) + int(entry.get("host_bytes", 0))


def main() -> None:
    while True:
        with ledger.books():
            entries = ledger.records()
            pids = ledger.node_pids(entries)
        settings = ledger.pool_settings()
        if ledger.occupied(entries) > settings["total"] - settings["os_reserve"]:
            largest = max(entries, key=held)
            print(f"out of memory: killed {largest['name']}", flush=True)
            os.kill(pids[largest["id"]], signal.SIGKILL)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
