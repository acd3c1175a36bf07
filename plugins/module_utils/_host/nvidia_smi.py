# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU as nvidia-smi describes it: queries, and parsers of their output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._runtime.command import Run, unreadable
from .machine import number, whole


def _query(fields: Iterable[str]) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def _text(value: str) -> str | None:
    return value or None


def _rows(text: str, fields: Mapping[str, tuple[str, Callable[[str], Any]]]) -> list[dict[str, Any]]:
    """Parse the output of a query, one dict per GPU; [N/A], [Not Supported] and the like become None."""
    lines = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
    return [
        {name: None if value.startswith("[") else read(value) for value, (name, read) in zip(values, fields.values())}
        for values in lines
        if len(values) == len(fields)
    ]


# Fields of nvidia-smi, each with its name in facts and its reader.
GPU_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "index": ("index", whole),
    "name": ("name", _text),
    "uuid": ("uuid", _text),
    "driver_version": ("driver_version", _text),
    "compute_cap": ("compute_capability", _text),
    "temperature.gpu": ("temperature_c", whole),
    "power.draw": ("power_w", number),
    "clocks.current.sm": ("sm_clock_mhz", whole),
    "utilization.gpu": ("utilization_percent", whole),
}
LOAD_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "driver_version": ("driver", str),
    "clocks.current.sm": ("sm_clock_mhz", number),
    "power.draw": ("power_watts", number),
    "power.limit": ("power_limit_watts", number),
    "temperature.gpu": ("temperature_c", number),
}
# Exit codes of nvidia-smi without a usable GPU (its manual: a query found no object; the driver is not loaded): an answer.
NO_GPU = (6, 9)
NONE_THERE = re.compile(r"no (devices|running (compute )?processes)", re.IGNORECASE)
"""Messages of nvidia-smi for no GPU, or no program on it."""

COMPUTE_APPS_QUERY = [
    "nvidia-smi",
    "--query-compute-apps=pid,process_name,used_memory",
    "--format=csv,noheader,nounits",
]
GPU_QUERY, LOAD_QUERY = _query(GPU_FIELDS), _query(LOAD_FIELDS)


def parse_gpu_query(text: str) -> list[dict[str, Any]]:
    """Parse the output of C(GPU_QUERY), one dict per GPU; [N/A], [Not Supported] and the like become None.

    The message that there is no device gives an empty list. Raises NoAnswer for text without a line of a GPU.
    """
    gpus = [row for row in _rows(text, GPU_FIELDS) if row["index"] is not None]
    if not gpus and text.strip() and not NONE_THERE.search(text):
        raise unreadable("nvidia-smi", text)
    return gpus


def parse_compute_apps(text: str) -> list[dict[str, Any]]:
    """Parse the output of C(COMPUTE_APPS_QUERY) into C([{pid, name, used_mib}]), biggest first.

    C(used_mib) is None for C([N/A]). Lines of other forms (messages) are left out. A process name
    may hold commas, so it extends from the first to the last field. Raises NoAnswer for text without a process
    and without a message that no process runs.
    """
    processes: list[dict[str, Any]] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 3 or not fields[0].isdigit():
            continue
        used = fields[-1].split()[0] if fields[-1] else ""
        processes.append(
            {
                "pid": int(fields[0]),
                "name": ", ".join(fields[1:-1]),
                "used_mib": int(used) if used.isdigit() else None,
            }
        )
    if not processes and text.strip() and not NONE_THERE.search(text):
        raise unreadable("nvidia-smi", text)
    return sorted(processes, key=lambda app: (-(app["used_mib"] or 0), app["pid"]))


def name_holders(apps: Iterable[Mapping[str, Any]]) -> str:
    """Name the processes that hold most GPU memory, for the message of a start that found too little. apps: of C(parse_compute_apps)."""
    largest = [app for app in apps if app["used_mib"]][:3]
    if not largest:
        return "no GPU process uses memory, so look at the host's processes"
    texts = (f"{app['name']} (pid {app['pid']}) {app['used_mib'] / 1024:.2f} GiB" for app in largest)
    return f"used by {', '.join(texts)}"


def resident(gpu: dict[str, Any] | None, containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum the GPU memory of the managed, running containers of each service: C([{name: service, gib}]).

    A container without GPU memory and [N/A] count 0. Under Ray a service has two containers; Ray's container holds the memory.
    """
    container_mib: Counter[str | None] = Counter()
    for process in (gpu or {}).get("processes", []):
        container_mib[process["container"]] += process["used_mib"] or 0
    service_mib: Counter[str] = Counter()
    for container in containers:
        if container["managed"] and container["state"] == "running":
            service_mib[container["service"]] += container_mib[container["name"]]
    return [{"name": service, "gib": round(mib / 1024, 3)} for service, mib in service_mib.items()]


def load(run: Run) -> dict[str, Any] | None:
    """Return clock, power and temperature of the working first GPU, None without an answer; [N/A], such as GB10's power limit, is None."""
    rc, out, _err = run(LOAD_QUERY)
    return next(iter(_rows(out, LOAD_FIELDS)), None) if rc == 0 else None


def driver_version(run: Run) -> tuple[str, str]:
    """Return the version of the driver, and the reason if nvidia-smi does not print it; both are empty without nvidia-smi."""
    rc, out, err = run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    if rc == 127:
        return "", ""
    if rc == 0 and out.strip():
        return out.strip().splitlines()[0].strip(), ""
    last = (err.strip() or out.strip()).splitlines()[-1:] or ["it printed nothing"]
    return "", f"nvidia-smi ended with {rc}: {last[0].strip()}"
