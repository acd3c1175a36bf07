"""Time plan.yml on made-up fleets of 1, 10, 100 and 1000 hosts with four services each. No host and no Docker is needed.

Each row also has the same inventory with one task that does nothing, once for all: the cost of Ansible itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZES = (1, 10, 100, 1000)

# What hosts serve: recipe and arguments. Where nothing is said of the memory it is solved.
STACKS: tuple[tuple[tuple[str, dict[str, Any]], ...], ...] = (
    (
        ("qwen3.6-35b-a3b-nvfp4", {}),
        ("qwen3-8b", {"max-num-seqs": 4}),
        ("qwen3-4b-instruct-2507", {"max-num-seqs": 2}),
        ("scripted-tiny", {"gpu-memory-utilization": 0.05}),
    ),
    (
        ("gemma-4-26b-a4b", {"gpu-memory-utilization": 0.40, "max-num-seqs": 4}),
        ("qwen3-8b", {"gpu-memory-utilization": 0.20, "max-num-seqs": 4}),
        ("qwen3-4b-instruct-2507", {"gpu-memory-utilization": 0.15, "max-num-seqs": 2}),
        ("scripted-tiny", {"gpu-memory-utilization": 0.03}),
    ),
    (
        ("qwen3.6-35b-a3b-nvfp4", {"gpu-memory-utilization": 0.45}),
        ("qwen3-4b-instruct-2507", {}),
        ("qwen3-4b-instruct-2507", {"gpu-memory-utilization": 0.12, "max-num-seqs": 2}),
        ("scripted-tiny", {"gpu-memory-utilization": 0.05}),
    ),
)


def services(host: int) -> Iterator[dict[str, Any]]:
    """The services of one host; lengths and batch sizes differ from host to host, as in a fleet that grew."""
    for index, (recipe, args) in enumerate(STACKS[host % len(STACKS)]):
        yield {
            "name": f"{recipe.split('-', 1)[0].replace('.', '')}-{index}",
            "recipe": recipe,
            "port": 8001 + index,
            "args": {"max-model-len": 2048 + 64 * (host % 32), **args},
        }


def write_fleet(folder: Path, hosts: int) -> Path:
    """An inventory of so many hosts, their services in host_vars' place and the rest in the group's."""
    entries = {
        f"spark-{number:04}": {
            "ansible_host": f"10.0.{number // 250}.{number % 250 + 1}",
            "spark_total_gib": round(119.56 + 0.01 * (number % 200), 2),
            "spark_services": list(services(number)),
        }
        for number in range(1, hosts + 1)
    }
    shared = {
        "ansible_user": "spark",
        "site_name": "bench",
        "spark_management_address": "{{ ansible_host }}",
        "spark_model_dir": str(folder),
        "spark_plan_file": str(folder / "plan.json"),
        "spark_allow_moving": True,  # recipes name branches, and there is no lock file
    }
    (folder / "scripted").mkdir(exist_ok=True)
    (folder / "scripted" / "config.json").write_text("{}\n", encoding="utf-8")
    inventory = folder / "hosts.json"
    inventory.write_text(json.dumps({"sparks": {"hosts": entries, "vars": shared}}), encoding="utf-8")
    return inventory


def seconds(playbook: Path, inventory: Path) -> tuple[float, float]:
    """How long a playbook takes and how much CPU time; its output is shown only when it fails."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), str(playbook)]
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        argv, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    elapsed, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(argv)} failed.")
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=SIZES, help="sizes of the fleets")
    parser.add_argument("--keep", type=Path, help="write the inventories and plans here and leave them")
    options = parser.parse_args()
    columns = f"{'hosts':>6}{'services':>10}{'plan.yml':>11}{'of it CPU':>12}{'Ansible alone':>15}{'per host':>11}{'plan.json':>11}{'plan.html':>11}"
    print(f"{columns}\n{'-' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        base = options.keep or Path(temporary)
        nothing = Path(temporary) / "nothing.yml"
        task = {"name": "Nothing", "ansible.builtin.meta": "noop"}
        play = {"name": "Nothing", "hosts": "all", "gather_facts": False, "tasks": [task]}
        nothing.write_text(json.dumps([play]), encoding="utf-8")
        for hosts in options.hosts:
            folder = base / f"fleet-{hosts}"
            folder.mkdir(parents=True, exist_ok=True)
            inventory = write_fleet(folder, hosts)
            bare, _cpu = seconds(nothing, inventory)
            elapsed, cpu = seconds(ROOT / "playbooks" / "plan.yml", inventory)
            sizes = [
                (folder / name).stat().st_size / 1e6 if (folder / name).exists() else 0.0
                for name in ("plan.json", "plan.html")
            ]
            print(
                f"{hosts:6}{4 * hosts:10}{elapsed:9.1f} s{cpu:10.1f} s{bare:13.1f} s{1000 * elapsed / hosts:8.0f} ms"
                + "".join(f"{size:8.2f} MB" for size in sizes),
                flush=True,
            )


if __name__ == "__main__":
    main()
