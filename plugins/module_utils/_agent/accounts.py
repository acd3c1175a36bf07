# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds the memory of the host: asked of systemd, Docker, nvidia-smi and C(/proc) for the memory guard, once memory is short."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._host import nvidia_smi
from .._runtime import command, guard, hostmem, http_client, metrics, start_stages, state_file, unloading
from . import services
from .services import PROC, Service, read_text

GIB, MIB = guard.GIB, 2**20
UNIT = re.compile(r"([\w@.\\:-]+\.(?:service|scope))")
CALL_SECONDS = 10.0
"""Longest run of one program."""
IDLE_SECONDS = 2.0
"""Timeout of the question how many requests an engine has."""
SILENT_SECONDS = 60.0
"""Age from which the state of the on-demand proxy is ignored; it writes it every 15 s."""
SLACK_SHARE, SLACK_GIB = 0.05, 1.0
"""An engine is above its plan from this share plus these GiB."""
DOWN = ("inactive", "failed")
NAMED_BYTES, NAMED_COUNT = 256 * MIB, 3
"""Smallest size and highest number of processes that a message names."""


@dataclass
class Process:
    """A process with its memory in bytes: as the kernel counts it, and as nvidia-smi does."""

    pid: int
    name: str
    cgroup: str
    resident: int = 0
    gpu: int = 0

    @property
    def size(self) -> int:
        """Bytes that its end would free."""
        return self.resident + self.gpu


def list_processes() -> dict[int, Process]:
    """Return all processes of the host that hold memory, by process id."""
    processes = {}
    for pid in services.process_ids():
        status = read_text(PROC / str(pid) / "status")
        # What belongs to the process alone, without mapped files.
        size = sum(map(int, re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", status, re.MULTILINE))) * 1024
        if size:
            name = status.partition("\n")[0].partition("\t")[2]
            processes[pid] = Process(pid, name, read_text(PROC / str(pid) / "cgroup"), size)
    return processes


def add_gpu_memory(processes: dict[int, Process]) -> bool:
    """Add GPU memory to processes; returns False if nvidia-smi does not report it for all of them."""
    answer = command.run(nvidia_smi.COMPUTE_APPS_QUERY, CALL_SECONDS)
    if answer.state == command.MISSING:
        return True  # a host without a GPU
    if answer.state != command.FINISHED:
        return False
    try:
        apps = nvidia_smi.parse_compute_apps(answer.out)
    except command.NoAnswer:
        return False
    for app in apps:
        pid = app["pid"]
        if app["used_mib"] is None:
            return False
        process = processes.setdefault(pid, Process(pid, app["name"], read_text(PROC / str(pid) / "cgroup")))
        process.gpu = app["used_mib"] * MIB
    return True


def describe_largest(processes: list[Process]) -> str:
    """Return the largest processes with their accounts and units, for a message."""
    texts = []
    large = [process for process in processes if process.size >= NAMED_BYTES]
    for process in sorted(large, key=lambda process: -process.size)[:NAMED_COUNT]:
        parts = [f"pid {process.pid}"]
        with contextlib.suppress(OSError, KeyError):
            parts.append(f"of {pwd.getpwuid((PROC / str(process.pid)).stat().st_uid).pw_name}")
        parts += UNIT.findall(process.cgroup)[-1:]
        texts.append(f"{process.name} ({', '.join(parts)}) {process.size / GIB:.1f} GiB")
    return "; ".join(texts)


def memory_services(etc: Path) -> dict[str, Service]:
    """Return the model servers of this host, ranks of clusters included, and the speech servers that start on demand."""
    speech = services.read_services(etc / "speech", speech=True)
    on_demand = {name: service for name, service in speech.items() if service.on_demand}
    return {**services.read_services(etc / "services"), **on_demand}


def is_idle(service: Service, run_dir: Path) -> bool:
    """Return whether a service starts on demand and has no request; False if that is unknown.

    An engine counts its own requests; the on-demand proxy counts the requests of a speech server.
    """
    if not service.on_demand or not service.url:
        return False
    with contextlib.suppress(Exception):  # an invalid answer of one service must not hide the other services
        if service.speech:
            path = run_dir / "on_demand" / "state.json"
            state = ((state_file.read(path) or {}).get("services") or {}).get(service.name) or {}
            is_fresh = time.time() - path.stat().st_mtime < SILENT_SECONDS
            return is_fresh and state.get("state") == "ready" and state.get("in_flight") == 0 == state.get("waiting")
        reply = http_client.fetch(f"{service.url}/metrics", timeout=IDLE_SECONDS)
        figures = metrics.parse(reply.body.decode("utf-8", "replace")) if reply.status == 200 else {}
        return figures.get("requests_running") == 0 == figures.get("requests_waiting")
    return False


class Accounts:
    """Takes accounts of the memory.

    A host without memory may be unable to start Docker's client, so the names of containers are asked for beforehand, once per start of
    an engine. A container keeps its id for its life.
    """

    def __init__(self, etc: Path, run_dir: Path, settings: Mapping[str, Any]) -> None:
        self.etc, self.run_dir, self.settings = etc, run_dir, settings
        self.root = str(settings.get("sysroot") or "/")
        self.names: dict[str, str] = {}  # containers by id, from Docker's last answer
        self.starts: tuple[tuple[str, int], ...] | None = None
        self.silent = ""  # programs that did not answer for the last account

    def has_new_start(self) -> bool:
        """Return whether an engine has started since the last call; its container has a new id then."""
        records: list[tuple[str, int]] = []
        with contextlib.suppress(OSError), os.scandir(self.run_dir / "starts") as entries:
            records = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
        before, self.starts = self.starts, tuple(records)
        return before != self.starts

    def update_names(self) -> None:
        """Ask Docker for the ids of all containers that belong to services of this host."""
        containers = [name for service in memory_services(self.etc).values() for name in service.containers]
        names = services.container_ids([*containers, *self._addon_containers()], CALL_SECONDS)
        if names is not None:
            self.names = names

    def take(self) -> guard.Account:
        """Return an account; it is incomplete if a program does not answer."""
        servers = memory_services(self.etc)
        states = services.unit_states([service.unit for service in servers.values()], CALL_SECONDS)
        active = {name: (properties or {}).get("ActiveState", "") for name, properties in (states or {}).items()}
        processes = list_processes()
        containers = [name for service in servers.values() for name in service.containers]
        ids, unknown = self._find_containers([*containers, *self._addon_containers()], processes)
        # A unit that is down runs no container.
        down = {name for server in servers.values() if active.get(server.unit) in DOWN for name in server.containers}
        silent = {
            "nvidia-smi": not add_gpu_memory(processes),
            "docker": bool(unknown - down),
            "systemctl": states is None,
        }
        self.silent = ", ".join(program for program, is_silent in silent.items() if is_silent)
        sizes, outside = _sizes_by_container(processes, ids)
        engines = self._engines(servers, active, None if self.silent else sizes)
        available, others = self._other_memory(engines, sizes)
        return guard.Account(
            time.monotonic(),
            available,
            engines,
            self._helpers(set(ids.values())),
            others,
            describe_largest(outside),
            not self.silent,
        )

    def _other_memory(self, engines: tuple[guard.Engine, ...], sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return C(MemAvailable), and the memory that neither services nor the reserve account for, in bytes."""
        # The reserve covers the add-on services, except for Ollama, which has to unload its models for the engines.
        ours = sum(engine.used or 0 for engine in engines) + sizes.get("spark-ollama", 0)
        reserve = float(self.settings.get("reserve_gib") or 0) * GIB
        meminfo = hostmem.read_meminfo(self.root)
        available = meminfo.get("MemAvailable", 0) * 1024
        return available, max(round(meminfo.get("MemTotal", 0) * 1024 - available - ours - reserve), 0)

    def speech_helpers(self) -> list[dict[str, Any]]:
        """Return how speech servers are asked to unload their models."""
        helpers = self.settings.get("helpers")
        return [helper for helper in helpers if isinstance(helper, dict)] if isinstance(helpers, list) else []

    def _addon_containers(self) -> list[str]:
        return [str(name) for name in self.settings.get("beside") or []]

    def _find_containers(self, names: list[str], processes: Mapping[int, Process]) -> tuple[dict[str, str], set[str]]:
        """Return containers by id, and the names of those that may run without a known id.

        Docker is asked only if a known container has no process any more.
        """
        cgroups = {process.cgroup for process in processes.values()}
        running = {key: name for key, name in self.names.items() if any(key in cgroup for cgroup in cgroups)}
        unknown = set(names) - set(running.values())
        if not unknown:
            return running, set()
        answer = services.container_ids(names, CALL_SECONDS)
        if answer is None:
            return running, unknown
        self.names = answer
        return answer, set()

    def _engines(
        self, servers: Mapping[str, Service], active: Mapping[str, str], sizes: Mapping[str, int] | None
    ) -> tuple[guard.Engine, ...]:
        """Return the engines of an account. sizes: bytes by container, None if they are not known completely."""
        loading = str((state_file.read(self.run_dir / "start.json") or {}).get("unit") or "")
        ranking = self._ranking(servers)
        planned_services = self.settings.get("services") or {}
        engines = []
        for name, service in servers.items():
            planned = planned_services.get(name) or {}
            size = None if sizes is None else sum(sizes.get(container, 0) for container in service.containers)
            record = state_file.read(self.run_dir / "starts" / f"{service.unit}.json")
            started = start_stages.taken_gib(record) or 0.0
            state = active.get(service.unit, "")
            engines.append(
                guard.Engine(
                    name,
                    # The driver holds more for a process than nvidia-smi shows.
                    None if size is None else max(size, round(started * GIB)),
                    _limit(planned.get("planned_gib"), started),
                    rank=ranking.index(name),
                    serving=state == "active",
                    starting=state == "activating" and loading == service.unit,
                    door=bool(planned.get("backend")),
                    idle=state == "active" and is_idle(service, self.run_dir),
                )
            )
        return tuple(engines)

    def _ranking(self, names: Collection[str]) -> list[str]:
        """Return services by importance; those that the settings do not rank come last."""
        order = [str(name) for name in self.settings.get("order") or []]
        return [*order, *sorted(name for name in names if name not in order)]

    def _helpers(self, running: Collection[str]) -> tuple[str, ...]:
        """Return the servers that only keep models for the next request. running: names of running containers."""
        helpers = []
        with contextlib.suppress(Exception):
            url = unloading.ollama_url(self.etc)
            if url and unloading.loaded_models(url):
                helpers.append("ollama")
        return (*helpers, *(helper["name"] for helper in self.speech_helpers() if helper["container"] in running))


def _limit(planned_gib: Any, started_gib: float) -> int | None:
    """Return the bytes that a service may hold. A restart does not give back what a service took at its start."""
    if not isinstance(planned_gib, (int, float)):
        return None
    return round((max(planned_gib, started_gib) * (1 + SLACK_SHARE) + SLACK_GIB) * GIB)


def _sizes_by_container(
    processes: Mapping[int, Process], ids: Mapping[str, str]
) -> tuple[dict[str, int], list[Process]]:
    """Return the bytes of each container, and the processes outside of them. ids: names of containers by id."""
    sizes: dict[str, int] = {}
    outside = []
    for process in processes.values():
        container = next((name for key, name in ids.items() if key in process.cgroup), None)
        if container is None:
            outside.append(process)
        else:
            sizes[container] = sizes.get(container, 0) + process.size
    return sizes, outside
