"""Time the playbooks on the running demo, at growing numbers of hosts, each run against as many bare pings.

The demo has two simulated Sparks; C(tests/sim/sparksim up --nodes 10) gives it more, and the odd and even ones serve alike. Beyond as many hosts as
there are, several inventory names lead to each of them, with separate connections: the controller's work for a hundred hosts is real
then, the simultaneous work of the hosts is not. First runs are measured up to one name per Spark; later names find
everything in place. Images and models are held by a lock file.

The lower bound of a run is the same number of `ansible.builtin.ping` tasks on the same hosts over the same
connections with the same forks: the difference is the plan, and work on the hosts, not Ansible's own cost.

Controller and hosts share the cores of this machine. The processor time of the run's own processes is the controller's;
the remaining busy time of the machine is the hosts'.
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
sys.path.insert(0, str(ROOT / "tests" / "sim"))

from simlib.config import Node

INVENTORY = ROOT / "inventories" / "demo"
SIZES = (1, 2, 10, 50, 100)
FORKS = 20  # as in ansible.cfg
MOST_TASKS = 12  # that reach a host, in a run that has nothing to do
MOST_RATIO = 1.5  # of such a run to the pings
MOST_SECONDS = {"second run": {2: 3, 100: 75}, "status": {100: 25}}  # on two cores
MOST_SPREAD = 0.05  # of what a further host costs, between the sizes
RESET = ["playbooks/reset.yml", "-e", "spark_reset_confirm=true"]  # weights stay: a download says nothing


@dataclass
class Measured:
    """One run of a playbook: controller and others are seconds of a processor."""

    seconds: float
    hosts: dict[str, dict[str, int]]
    controller: float
    other_seconds: float

    def most(self, kind: str) -> int:
        """The figure of the host that has the most."""
        return max((counts[kind] for counts in self.hosts.values()), default=0)


def sparks() -> list[str]:
    """Addresses of the simulated Sparks of the demo that run."""
    named = ["docker", "ps", "--format", "{{.Names}}"]
    running = set(subprocess.run(named, text=True, capture_output=True, check=True).stdout.split())
    nodes = [Node("demo", number) for number in range(1, 11)]
    return [node.address(0) for node in nodes if node.container in running]


def fleet(folder: Path, size: int, addresses: list[str]) -> Path:
    """Write an inventory of so many names with the demo's variables, and return its folder. addresses: of the Sparks that they lead to."""
    nodes = yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))["sparks"]["hosts"]
    node_addresses = list(nodes.values())
    hosts = {}
    for number in range(size):
        spark = number % len(addresses)
        address = {"ansible_host": addresses[spark], "ansible_ssh_control_path": f"{folder}/{number}"}
        hosts[f"spark-{number + 1}"] = {**node_addresses[spark % len(node_addresses)], **address}
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


def busy() -> float:
    """Seconds of a processor that this machine has worked."""
    # user nice system idle iowait irq softirq steal: see proc_stat(5)
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")


def children() -> float:
    """Seconds of a processor that ended processes of this one have taken, with theirs."""
    times = os.times()
    return times.children_user + times.children_system


def measure(inventory: Path, *arguments: str) -> Measured:
    """Run a playbook and count; its output is shown only when it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        counts = Path(temporary) / "counts.json"
        env = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            # As for a user: Ansible keeps its compiled code, despite the environment of this program.
            "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"),
            "PYTHONDONTWRITEBYTECODE": "",
            "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests" / "bench" / "callback_plugins"),
            "ANSIBLE_CALLBACKS_ENABLED": "host_tasks",
            "HOST_TASKS_FILE": str(counts),
        }
        argv = [
            str(ROOT / ".venv" / "bin" / "ansible-playbook"), "-i", str(inventory), "--forks", str(FORKS), *arguments
        ]  # fmt: skip
        start, own_seconds, busy_seconds = time.monotonic(), children(), busy()
        done = subprocess.run(
            argv, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        seconds, own_seconds, busy_seconds = time.monotonic() - start, children() - own_seconds, busy() - busy_seconds
        if done.returncode:
            print(done.stdout[-20000:])
            sys.exit(f"{' '.join(argv)} failed; is the demo up (make demo)?")
        hosts = json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {}
        return Measured(seconds, hosts, own_seconds, max(busy_seconds - own_seconds, 0.0))


def pings(inventory: Path, count: int) -> Measured:
    """Run so many bare pings on the same hosts."""
    tasks = [{"name": f"Ping {number}", "ansible.builtin.ping": {}} for number in range(1, count + 1)]
    play = [{"name": "Pings", "hosts": "sparks", "become": True, "gather_facts": False, "tasks": tasks}]
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as playbook:
        json.dump(play, playbook)
        playbook.flush()
        return measure(inventory, playbook.name)


Row = tuple[int, str, Measured, Measured]


def verdicts(rows: list[Row]) -> list[str]:
    """Compare second runs and status with the targets."""
    lines = []
    for size, label, measured, bound in rows:
        targets = []
        if label == "second run":
            targets += [
                ("tasks", measured.most("tasks"), MOST_TASKS),
                ("times the pings", measured.seconds / bound.seconds, MOST_RATIO),
            ]
        if size in MOST_SECONDS.get(label, {}):
            targets.append(("s", measured.seconds, MOST_SECONDS[label][size]))
        parts = [
            f"{value:.4g} {unit} ({'reached' if value <= most else 'missed'}: at most {most})"
            for unit, value, most in targets
        ]
        lines += [f"{size:>4} hosts, {label}: {', '.join(parts)}"] if parts else []
    second = {size: measured.seconds for size, label, measured, _bound in rows if label == "second run" and size >= 10}
    slopes = []
    for smaller, larger in zip(second, list(second)[1:], strict=False):
        slopes.append((second[larger] - second[smaller]) / (larger - smaller))
        lines.append(f"{smaller} to {larger} hosts: {slopes[-1]:.2f} s for each more")
    if len(slopes) > 1:
        spread = (max(slopes) - min(slopes)) / min(slopes)
        lines.append(
            f"these differ by {spread:.0%} ({'reached' if spread <= MOST_SPREAD else 'missed'}: at most {MOST_SPREAD:.0%})"
        )
    return lines


def main() -> None:
    """Print the table and the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=SIZES, help="numbers of hosts (default: %(default)s)")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        print("Deploying on the Sparks of the demo ...", flush=True)
        addresses = sparks()
        if len(addresses) < 2:
            sys.exit("the demo is not up (make demo)")
        inventories = {size: fleet(folder, size, addresses) for size in {*options.hosts, 2, len(addresses)}}
        every = inventories[len(addresses)]
        measure(inventories[2], "site.yml")
        # As in a fleet: moving tags are refused on more than two Sparks. Locked images are deployed by their digests from then on.
        measure(inventories[2], "playbooks/lock.yml")
        measure(every, "site.yml")
        for size in options.hosts:
            inventory = inventories[size]
            runs = [
                ("second run", ["site.yml"]),
                ("check run", ["site.yml", "--check"]),
                ("status", ["playbooks/status.yml"]),
            ]
            if size <= len(addresses):
                measure(inventory, *RESET)
                runs.insert(0, ("first run", ["site.yml"]))
            for label, arguments in runs:
                print(f"Measuring: {size} hosts, {label} ...", flush=True)
                measured = measure(inventory, *arguments)
                rows.append((size, label, measured, pings(inventory, measured.most("tasks"))))
            if size < len(addresses):
                measure(every, "site.yml")
    columns = f"{'hosts':>5}  {'':<11}{'seconds':>9}{'pings':>9}{'ratio':>7}{'tasks/host':>12}{'module runs/host':>18}"
    columns += f"{'changed/host':>14}{'controller':>12}{'hosts':>8}{'of pings':>16}"
    print(f"\n{columns}\n{'-' * len(columns)}")
    for size, label, measured, bound in rows:
        figures = f"{measured.seconds:9.1f}{bound.seconds:9.1f}{measured.seconds / bound.seconds:7.2f}"
        counted = f"{measured.most('tasks'):12}{measured.most('runs'):18}{measured.most('changed'):14}"
        spent = f"{measured.controller:12.1f}{measured.other_seconds:8.1f}{f'{bound.controller:.1f} {bound.other_seconds:.1f}':>16}"
        print(f"{size:>5}  {label:<11}{figures}{counted}{spent}")
    print("\npings = as many bare ping tasks per host. Figures per host are those of the busiest one.")
    print(
        f"controller, hosts: seconds of a processor, of {os.cpu_count()} that they share; of pings: the same two of those."
    )
    print(f"Beyond {len(addresses)} hosts, several names lead to each of the {len(addresses)} simulated Sparks.\n")
    print("\n".join(verdicts(rows)))


if __name__ == "__main__":
    main()
