"""Time site.yml on the running demo: first run, second run, check run, each against as many bare pings.

The lower bound of a run is the same number of `ansible.builtin.ping` tasks on the same hosts over the same
connections: what is above it is work on the hosts, not Ansible's own cost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = "inventories/demo"
MOST_TASKS = 20  # per host in a run that has nothing to do
RESET = ["playbooks/reset.yml", "-e", "spark_reset_confirm=true"]  # weights stay: a download says nothing


@dataclass
class Measured:
    """One run of a playbook."""

    seconds: float
    hosts: dict[str, dict[str, int]]

    def most(self, what: str) -> int:
        """The figure of the host that has the most."""
        return max((counts[what] for counts in self.hosts.values()), default=0)


def measure(*arguments: str) -> Measured:
    """Run a playbook and count; its output is shown only when it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        counts = Path(temporary) / "counts.json"
        env = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests" / "bench" / "callback_plugins"),
            "ANSIBLE_CALLBACKS_ENABLED": "host_tasks",
            "HOST_TASKS_FILE": str(counts),
        }
        argv = [str(ROOT / ".venv" / "bin" / "ansible-playbook"), "-i", INVENTORY, *arguments]
        start = time.monotonic()
        done = subprocess.run(
            argv, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        seconds = time.monotonic() - start
        if done.returncode:
            print(done.stdout)
            sys.exit(f"{' '.join(argv)} failed; is the demo up (make demo)?")
        return Measured(seconds, json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {})


def pings(count: int) -> float:
    """Seconds that so many bare pings take on the same hosts."""
    tasks = [{"name": f"Ping {number}", "ansible.builtin.ping": {}} for number in range(1, count + 1)]
    play = [{"name": "Pings", "hosts": "sparks", "become": True, "gather_facts": False, "tasks": tasks}]
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as playbook:
        json.dump(play, playbook)
        playbook.flush()
        return measure(playbook.name).seconds


def main() -> None:
    """Print the table."""
    print("Resetting the demo's hosts ...", flush=True)
    measure(*RESET)
    rows = []
    for label, arguments in [
        ("first run", ["site.yml"]),
        ("second run", ["site.yml"]),
        ("check run", ["site.yml", "--check", "--diff"]),
    ]:
        print(f"Measuring: {label} ...", flush=True)
        found = measure(*arguments)
        rows.append((label, found, pings(found.most("tasks"))))
    columns = f"{'':<11}{'seconds':>9}{'pings':>9}{'tasks/host':>12}{'module runs/host':>18}{'changed/host':>14}"
    print(f"\n{columns}\n{'-' * len(columns)}")
    for label, found, bound in rows:
        figures = (
            f"{found.seconds:9.1f}{bound:9.1f}{found.most('tasks'):12}{found.most('runs'):18}{found.most('changed'):14}"
        )
        print(f"{label:<11}{figures}")
    hosts = sorted({host for _, found, _ in rows for host in found.hosts})
    print(
        f"\npings = the same number of bare ping tasks per host. Hosts: {', '.join(hosts)}; figures of the busiest one."
    )


if __name__ == "__main__":
    main()
