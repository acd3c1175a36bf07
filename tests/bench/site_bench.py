"""Time the playbooks on the running demo, at growing numbers of hosts, each run against as many bare pings.

The demo has two simulated Sparks. Beyond two hosts, several inventory names lead to each of them, with a connection of
their own: what a controller does for a hundred hosts is real then, what the hosts do at the same time is not. First
runs are measured on one and two hosts only; of the others each name finds everything in place. Images and models are held by a lock file.

The lower bound of a run is the same number of `ansible.builtin.ping` tasks on the same hosts over the same
connections with the same forks: what is above it is the plan, and work on the hosts, not Ansible's own cost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventories" / "demo"
SIZES = (1, 2, 10, 50, 100)
FORKS = 20  # as in ansible.cfg
MOST_TASKS = 12  # that reach a host, in a run that has nothing to do
MOST_RATIO = 1.5  # of such a run to the pings
MOST_SECONDS = {2: 15, 100: 240}  # of such a run, on two cores
RESET = ["playbooks/reset.yml", "-e", "spark_reset_confirm=true"]  # weights stay: a download says nothing


@dataclass
class Measured:
    """One run of a playbook."""

    seconds: float
    hosts: dict[str, dict[str, int]]

    def most(self, what: str) -> int:
        """The figure of the host that has the most."""
        return max((counts[what] for counts in self.hosts.values()), default=0)


def fleet(folder: Path, size: int) -> Path:
    """Write an inventory of so many names beside the demo's variables, and return its folder."""
    nodes = yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))["sparks"]["hosts"]
    own = list(nodes.values())
    hosts = {
        f"spark-{number + 1}": {**own[number % len(own)], "ansible_ssh_control_path": f"{folder}/{number}"}
        for number in range(size)
    }
    place = folder / f"fleet-{size}"
    place.mkdir()
    (place / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}), encoding="utf-8")
    (place / "group_vars").mkdir()
    shared = yaml.safe_load((INVENTORY / "group_vars" / "sparks.yml").read_text(encoding="utf-8"))
    shared["__demo_cache"] = str(ROOT / ".cache")
    shared["spark_plan_file"] = str(place / ".spark" / "plan.json")  # where Ansible reads no inventory
    shared["spark_lock_file"] = str(folder / "spark.lock.yml")
    shared["spark_lock_ask"] = False  # the simulated Sparks have no way to a registry or a hub
    (place / "group_vars" / "sparks.yml").write_text(yaml.safe_dump(shared), encoding="utf-8")
    return place


def measure(inventory: Path, *arguments: str) -> Measured:
    """Run a playbook and count; its output is shown only when it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        counts = Path(temporary) / "counts.json"
        env = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            # As for a user: Ansible is not compiled anew at every start, whatever the environment of this program says.
            "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"),
            "PYTHONDONTWRITEBYTECODE": "",
            "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests" / "bench" / "callback_plugins"),
            "ANSIBLE_CALLBACKS_ENABLED": "host_tasks",
            "HOST_TASKS_FILE": str(counts),
        }
        argv = [
            str(ROOT / ".venv" / "bin" / "ansible-playbook"), "-i", str(inventory), "--forks", str(FORKS), *arguments
        ]  # fmt: skip
        start = time.monotonic()
        done = subprocess.run(
            argv, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        seconds = time.monotonic() - start
        if done.returncode:
            print(done.stdout[-20000:])
            sys.exit(f"{' '.join(argv)} failed; is the demo up (make demo)?")
        return Measured(seconds, json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {})


def pings(inventory: Path, count: int) -> float:
    """Seconds that so many bare pings take on the same hosts."""
    tasks = [{"name": f"Ping {number}", "ansible.builtin.ping": {}} for number in range(1, count + 1)]
    play = [{"name": "Pings", "hosts": "sparks", "become": True, "gather_facts": False, "tasks": tasks}]
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as playbook:
        json.dump(play, playbook)
        playbook.flush()
        return measure(inventory, playbook.name).seconds


def verdicts(rows: list[tuple[int, str, Measured, float]]) -> list[str]:
    """Compare the second runs with the targets."""
    said = []
    second = {size: (found, bound) for size, label, found, bound in rows if label == "second run"}
    for size, (found, bound) in second.items():
        targets = [
            ("tasks", found.most("tasks"), MOST_TASKS),
            ("times the pings", found.seconds / bound, MOST_RATIO),
        ]
        if size in MOST_SECONDS:
            targets.append(("s", found.seconds, MOST_SECONDS[size]))
        parts = [
            f"{value:.4g} {unit} ({'reached' if value <= most else 'missed'}: at most {most})"
            for unit, value, most in targets
        ]
        said.append(f"{size:>4} hosts, second run: {', '.join(parts)}")
    sizes = sorted(size for size in second if size >= 10)
    for smaller, larger in zip(sizes, sizes[1:], strict=False):
        slope = (second[larger][0].seconds - second[smaller][0].seconds) / (larger - smaller)
        said.append(f"{smaller} to {larger} hosts: {slope:.2f} s for each more")
    return said


def main() -> None:
    """Print the table and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=SIZES, help="numbers of hosts (default: %(default)s)")
    options = parser.parse_args()
    rows: list[tuple[int, str, Measured, float]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        print("Deploying on both Sparks of the demo ...", flush=True)
        whole = None if 2 in options.hosts else fleet(folder, 2)
        inventories = {size: fleet(folder, size) for size in options.hosts}
        both = whole or inventories[2]
        measure(both, "site.yml")
        # As a fleet has it: what moves is refused on more than two Sparks. What is locked is deployed by its digest from then on.
        measure(both, "playbooks/lock.yml")
        measure(both, "site.yml")
        for size, inventory in inventories.items():
            runs = [
                ("second run", ["site.yml"]),
                ("check run", ["site.yml", "--check"]),
                ("status", ["playbooks/status.yml"]),
            ]
            if size <= 2:
                measure(inventory, *RESET)
                runs.insert(0, ("first run", ["site.yml"]))
            for label, arguments in runs:
                print(f"Measuring: {size} hosts, {label} ...", flush=True)
                found = measure(inventory, *arguments)
                rows.append((size, label, found, pings(inventory, found.most("tasks"))))
            if size == 1:
                measure(both, "site.yml")
    columns = f"{'hosts':>5}  {'':<11}{'seconds':>9}{'pings':>9}{'ratio':>7}{'tasks/host':>12}{'module runs/host':>18}{'changed/host':>14}"
    print(f"\n{columns}\n{'-' * len(columns)}")
    for size, label, found, bound in rows:
        figures = f"{found.seconds:9.1f}{bound:9.1f}{found.seconds / bound:7.2f}"
        counted = f"{found.most('tasks'):12}{found.most('runs'):18}{found.most('changed'):14}"
        print(f"{size:>5}  {label:<11}{figures}{counted}")
    print("\npings = as many bare ping tasks per host. Figures per host are those of the busiest one.")
    print("Beyond two hosts, several names lead to each of the two simulated Sparks.\n")
    print("\n".join(verdicts(rows)))


if __name__ == "__main__":
    main()
