#!/usr/bin/env python3
"""Ask a running Prometheus for every panel of every dashboard: each has to return data, or to be excused with the reason.

panels.py http://192.168.1.5:9090                       # everything has to be there
panels.py http://192.168.1.5:9090 --without rdma,gateway  # missing parts of this fleet; --help lists the words
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "roles/monitoring/files/dashboards"
# Word -> (what the fleet lacks, parts of queries that have no data by that).
EXCUSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gpu": (
        "needs hardware: power, clock, temperature and utilisation come from nvidia-smi on a GB10",
        ("dgxspark:gpu_power", "dgxspark:gpu_temperature", "dgxspark:gpu_sm_clock", "dgxspark:gpu_utilization"),
    ),
    "rdma": ("needs hardware: counters of a ConnectX-7 with a cable", ("dgxspark_rail_errors", "dgxspark_rail_received", "dgxspark_rail_transmitted")),
    "rails": ("no ConnectX-7 on the bus: no cable", ("dgxspark_rail_",)),
    "cluster": ("no cluster: no rail is planned", ("dgxspark_rail_expected",)),
    "speculation": ("no engine drafts tokens", ("spec_decode", "dgxspark:draft_tokens")),
    "gateway": ("no gateway, or nothing went through it", ("litellm_",)),
    "failures": ("no request has failed at the gateway", ("litellm_deployment_failure",)),
    "watchdog": ("the watchdog has done nothing yet", ("dgxspark_watchdog_",)),
    "guard": ("no guard runs, or it has done nothing yet", ("dgxspark_guard_",)),
    "load-guard": ("no load guard has run", ("dgxspark_load_guard_",)),
    "benchmarks": ("nothing has been measured yet", ("dgxspark_benchmark_",)),
    "receipts": ("nothing has been proved yet", ("dgxspark_receipt_", "dgxspark_service_start_seconds")),
    "traffic": (
        "no requests in the last minutes: means and quantiles are of nothing",
        ("_seconds_bucket", "_seconds_sum", "_tokens_sum", "prefix_cache_hits:ratio"),
    ),
    "http": ("the engine has no counters of its HTTP server", ("http_requests_total",)),
    "pressure": ("a kernel without pressure stall information", ("node_pressure_",)),
    "engines": (
        "no engine can be asked",
        ("vllm:", 'job="vllm"', "dgxspark:requests", "dgxspark:generation", "dgxspark:prompt", "dgxspark:kv_cache", "dgxspark:prefix"),
    ),
    "memory-plan": ("the plan knows no memory of these services", ("dgxspark_service_planned_bytes",)),
    "gpu-memory": ("no process holds GPU memory", ("dgxspark_gpu_memory_bytes",)),
}  # fmt: skip


@dataclass
class Answer:
    """One query of one panel: how many series came back, and why none is right."""

    dashboard: str
    panel: str
    query: str
    series: int
    excuse: str = ""
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether there is nothing to look after."""
        return bool(self.series or self.excuse) and not self.error


def queries(folder: Path = FOLDER) -> list[tuple[str, str, str]]:
    """Return (dashboard, panel, query) of everything that the dashboards show."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        pending = list(json.loads(path.read_text(encoding="utf-8"))["panels"])
        while pending:
            panel = pending.pop(0)
            pending = [*(panel.get("panels") or []), *pending]
            rows += [(path.stem, panel["title"], target["expr"]) for target in panel.get("targets") or []]
    return rows


def api(url: str, path: str, **parameters: str) -> Any:
    """Return the data of an answer of Prometheus's API; ValueError with its message for a refused query."""
    address = f"{url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error).get("error", str(error))) from error


def ask(url: str, without: tuple[str, ...] = (), interval: str = "1m") -> list[Answer]:
    """Ask for every query."""
    answers = []
    for dashboard, panel, query in queries():
        concrete = query.replace("$__rate_interval", interval).replace("$host", ".*").replace("$service", ".*")
        answer = Answer(dashboard, panel, query, 0)
        try:
            answer.series = len(api(url, "query", query=concrete)["result"])
        except ValueError as error:
            answer.error = str(error)
        if not answer.series:
            reasons = [
                reason
                for word, (reason, parts) in EXCUSES.items()
                if word in without and any(p in query for p in parts)
            ]
            answer.excuse = "; ".join(reasons)
        answers.append(answer)
    return answers


def main() -> int:
    """Print missing series; returns the exit code."""
    words = "\n".join(f"  {word:<12} {reason}" for word, (reason, _parts) in EXCUSES.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"words of --without:\n{words}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="address of Prometheus")
    parser.add_argument("--without", default="", help="what the fleet does not have, by commas")
    parser.add_argument(
        "--interval", default="1m", help="in place of Grafana's $__rate_interval (default: %(default)s)"
    )
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for what is missing")
    args = parser.parse_args()
    without = tuple(word for word in args.without.split(",") if word)
    unknown = set(without) - set(EXCUSES)
    if unknown:
        parser.error(f"--without does not know {', '.join(sorted(unknown))}")
    answers = ask_until_good(args.url, without, args.interval, args.wait)
    show(answers)
    return 1 if any(not answer.good for answer in answers) else 0


def ask_until_good(url: str, without: tuple[str, ...], interval: str, wait_seconds: float) -> list[Answer]:
    """Return the answers of all panels, once all are good or the time is over."""
    give_up = time.monotonic() + wait_seconds
    while True:
        answers = ask(url, without, interval)
        if all(answer.good for answer in answers) or time.monotonic() >= give_up:
            return answers
        time.sleep(2)


def show(answers: list[Answer]) -> None:
    """Print the panels without data, and the numbers of passed and failed panels."""
    for answer in answers:
        if answer.error or not answer.series:
            state = "FAILS" if answer.error else "excused" if answer.excuse else "EMPTY"
            print(f"{state:<8} {answer.dashboard}: {answer.panel}: {answer.error or answer.excuse or answer.query}")
    failed = sum(not answer.good for answer in answers)
    print(f"{len(answers) - failed} passed, {failed} failed")


if __name__ == "__main__":
    sys.exit(main())
