"""Time the start of one model over two simulated Sparks, against what the engine and Ray themselves take.

For each executor: site.yml puts the pair of its Molecule scenario on two fresh nodes. Then both units are stopped and
started at once, a few times. Of the time until the unit of the head is active

  engine    from the start of its container until /health answers 200
  Ray       from the start of its container on the head until it has all nodes
  overhead  the rest: ranks that meet, the gate, docker run, the first completion
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = {"mp": "pair_mp", "ray": "pair_ray"}
HEAD, WORKER = "sparktest-1", "sparktest-2"
UNIT, CONTAINER, HEALTH = "spark-tiny.service", "spark-tiny", "http://10.88.0.11:8003/health"
TARGET = 10.0  # seconds of overhead
LONGEST = 300.0  # of a start, in seconds


@dataclass
class Start:
    """Seconds of one start of a pair."""

    total: float
    engine: float
    ray: float
    overhead: float


def output(*argv: str) -> str:
    """Run a command and return what it printed; its errors end the benchmark."""
    done = subprocess.run(argv, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}")
    return done.stdout


def node(container: str, *argv: str) -> str:
    """Run a command as root on a node."""
    return output("docker", "exec", container, *argv)


def playbook(scenario: str, *arguments: str) -> None:
    """Run a playbook of the collection on the nodes, with the inventory of a scenario."""
    key = ROOT / ".cache" / "molecule" / "api_key"
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_text("molecule-secret-key\n", encoding="utf-8")
    os.environ.update(LC_ALL="C.UTF-8", MOLECULE_PROJECT_DIRECTORY=str(ROOT))
    inventories = ["-i", "molecule/inventory.yml", "-i", f"molecule/{scenario}/inventory.yml"]
    output(str(ROOT / ".venv" / "bin" / "ansible-playbook"), *inventories, *arguments)


def on_both(*argv: str) -> None:
    """Run a command on both nodes at once and wait for both."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda container: node(container, *argv), (HEAD, WORKER)))


def healthy() -> bool:
    """Tell whether the engine's own health is good."""
    try:
        with urllib.request.urlopen(HEALTH, timeout=1) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def started_at(container: str) -> float:
    """When Docker started a container of the head."""
    text = node(HEAD, "docker", "inspect", "--format", "{{.State.StartedAt}}", container).strip()
    return datetime.fromisoformat(re.sub(r"\.(\d{1,6})\d*Z$", r".\1+00:00", text)).timestamp()


def said_at(words: str, since: float) -> float:
    """When the supervisor of the head said something first."""
    lines = node(HEAD, "journalctl", "--unit", UNIT, "--since", f"@{since:.0f}", "--output", "json").splitlines()
    for line in lines:
        entry = json.loads(line)
        if words in str(entry["MESSAGE"]):
            return int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    sys.exit(f"the journal of {UNIT} does not say {words!r}")


def measure(executor: str) -> Start:
    """Stop the pair, start it, and print the time of each part of the start."""
    on_both("systemctl", "stop", UNIT)
    began = time.time()
    on_both("systemctl", "start", "--no-block", UNIT)
    answered = 0.0
    while time.time() < began + LONGEST:
        answered = answered or (time.time() if healthy() else 0.0)
        if answered and node(HEAD, "systemctl", "show", "--property=ActiveState", UNIT).strip() == "ActiveState=active":
            break
        time.sleep(0.1)
    else:
        sys.exit(f"the pair did not start within {LONGEST:.0f} s:\n{node(HEAD, 'systemctl', 'status', UNIT)}")
    active = time.time()
    engine = answered - started_at(CONTAINER)
    ray = said_at("Ray has the nodes", began) - started_at(f"{CONTAINER}-ray") if executor == "ray" else 0.0
    return Start(active - began, engine, ray, active - began - engine - ray)


def main() -> None:
    """Print a table of all starts, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", choices=tuple(SCENARIOS), help="this one alone")
    parser.add_argument("--starts", type=int, default=3, help="of each executor (default: %(default)s)")
    options = parser.parse_args()
    sparksim = str(ROOT / "tests" / "sim" / "sparksim")
    rows: list[tuple[str, Start]] = []
    print("Booting two simulated Sparks ...", flush=True)
    output(sparksim, "down", "--set", "test")
    output(sparksim, "up", "--set", "test")
    try:
        for executor in [options.executor] if options.executor else SCENARIOS:
            print(f"Setting up a pair, executor {executor} ...", flush=True)
            playbook(SCENARIOS[executor], "playbooks/site.yml")
            for number in range(1, options.starts + 1):
                print(f"Measuring: executor {executor}, start {number} ...", flush=True)
                rows.append((executor, measure(executor)))
            playbook(SCENARIOS[executor], "playbooks/reset.yml", "-e", "spark_reset_confirm=true")
    finally:
        output(sparksim, "down", "--set", "test")
    columns = f"{'executor':<10}{'total':>9}{'engine':>9}{'Ray':>9}{'overhead':>10}"
    print(f"\n{columns}\n{'-' * len(columns)}")
    for executor, start in rows:
        print(f"{executor:<10}{start.total:9.1f}{start.engine:9.1f}{start.ray:9.1f}{start.overhead:10.1f}")
    print("\nseconds; the median of each executor against the target:")
    for executor in dict.fromkeys(executor for executor, _start in rows):
        middle = statistics.median(start.overhead for name, start in rows if name == executor)
        verdict = "reached" if middle < TARGET else "missed"
        print(f"{executor:<10}overhead {middle:.1f} s, target below {TARGET:.0f} s: {verdict}")


if __name__ == "__main__":
    main()
