# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The evidence about a wedged engine that its restart would destroy: logs, metrics, processes, stacks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from .._runtime import command, engine_client
from .._runtime.parallel import run_jobs
from . import services
from .services import PROC, Service, read_text

COMMAND_SECONDS = 20.0
SHORT_SECONDS = 10.0
METRICS_SECONDS = 10.0
"""Timeout of C(/metrics): a busy server is late, and two seconds have had healthy ones restarted."""
MAX_FILE = 1 << 20
MAX_PROCESSES, MAX_THREADS, MAX_STACKS = 64, 400, 12
LOG_LINES = "500"
LEAST_SECRET = 4
STATUS_LINES = ("NSpid", "PPid", "VmRSS", "Threads", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
JOURNAL = ["journalctl", "--no-pager", "--output=short-iso"]
COMPILERS = {
    *("nvcc", "cicc", "ptxas", "nvlink", "fatbinary", "cudafe++", "tileiras", "ninja"),
    *("cc1", "cc1plus", "gcc", "g++", "c++", "cc", "clang", "clang++", "ld", "lld"),
}
"""Programs whose presence in a container means that kernels are being built: FlashInfer, Triton, torch.compile."""


def run(argv: list[str], seconds: float = COMMAND_SECONDS) -> tuple[int, str]:
    """Run a program; returns its exit code and the end of its output.

    The code is 127 for a missing program and 124 after a timeout; then the text ends with the reason.
    """
    answer = command.run(argv, seconds, limit=MAX_FILE, tail=True, merge=True)
    return answer.rc, answer.out if answer.state == command.FINISHED else f"{answer.out}\n({answer.why})\n"


def ask_metrics(service: Service) -> tuple[str | None, str]:
    """Return the text of C(/metrics), or None and the reason."""
    try:
        status, text = service.client().metrics(METRICS_SECONDS)
    except engine_client.Problem as problem:
        return None, problem.message
    return (text, "") if status == 200 else (None, f"HTTP {status}")


def list_processes(containers: tuple[str, ...]) -> dict[int, str]:
    """Return the processes of some containers, each with its container, by the process ids of the host."""
    ids = services.container_ids(containers, SHORT_SECONDS)
    processes = {}
    for pid in services.process_ids() if ids else ():
        cgroup = read_text(PROC / str(pid) / "cgroup")
        container = next((name for key, name in (ids or {}).items() if key in cgroup), "")
        if container:
            processes[pid] = container
    return dict(sorted(processes.items()))


def process_state(folder: Path) -> tuple[str, str]:
    """Return name and state of a process or thread. folder: in C(/proc)."""
    head, _separator, tail = folder.joinpath("stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    return head.partition("(")[2], tail.split()[0]


def has_compiler(containers: tuple[str, ...]) -> bool:
    """Return whether a compiler runs in one of some containers."""
    for pid in list_processes(containers):
        with contextlib.suppress(OSError, IndexError):
            name, state = process_state(PROC / str(pid))
            if name in COMPILERS and state not in ("Z", "X"):
                return True
    return False


def read_secrets(service: Service, etc: Path) -> list[str]:
    """Return values that no file of evidence may contain, the longest first."""
    paths = [Path(service.api_key_file)] if service.api_key_file else []
    with contextlib.suppress(OSError):
        paths += sorted((etc / "secrets" / service.name).iterdir())
    lines = {line.strip() for path in paths for line in read_text(path).splitlines()}
    return sorted((line for line in lines if len(line) >= LEAST_SECRET), key=len, reverse=True)


def describe_processes(processes: Mapping[int, str]) -> str:
    """Return state, call and stack of each thread in the kernel: enough to tell a spin from a wait. processes: with their containers."""
    lines = [f"{len(processes)} processes"]
    threads_left = MAX_THREADS
    for pid, container in list(processes.items())[:MAX_PROCESSES]:
        folder = PROC / str(pid)
        with contextlib.suppress(OSError, IndexError):
            name, state = process_state(folder)
            lines.append(f"\n=== {container}: pid {pid} {name} state {state}")
            status = read_text(folder / "status").splitlines()
            lines += [line for line in status if line.partition(":")[0] in STATUS_LINES]
            threads = sorted((folder / "task").iterdir(), key=lambda path: int(path.name))
            for thread in threads[:threads_left]:
                lines += _describe_thread(thread)
            threads_left -= len(threads)
            if threads_left < 0:
                lines.append("(further threads are left out)")
                break
    return "\n".join(lines) + "\n"


def _describe_thread(folder: Path) -> list[str]:
    try:
        name, state = process_state(folder)
    except (OSError, IndexError):
        return []
    waits = read_text(folder / "wchan").strip() or "-"
    call = read_text(folder / "syscall").strip()[:80] or "-"
    frames = [f"      {frame}" for frame in read_text(folder / "stack").strip().splitlines()[:12]]
    return [f"  {folder.name} {name} {state} wchan={waits} syscall={call}", *frames]


def python_stacks(processes: Mapping[int, str]) -> str:
    """Return the stacks of Python processes, or a sentence. processes: with their containers."""
    stacks = []
    for pid, container in list(processes.items())[:MAX_PROCESSES]:
        with contextlib.suppress(OSError, IndexError):
            name, _state = process_state(PROC / str(pid))
            if name.startswith(("VLLM", "vllm", "python", "pt_main", "ray")):
                stacks.append(f"=== pid {pid} {name} of {container}\n{stack_of(pid, container)}")
        if len(stacks) == MAX_STACKS:
            break
    return "\n".join(stacks) + "\n" if stacks else "no Python process was found in the container\n"


def stack_of(pid: int, container: str) -> str:
    """Return what py-spy of the host, or else of the image, prints about a process; a sentence if neither has py-spy."""
    if shutil.which("py-spy"):
        return run(["py-spy", "dump", "--pid", str(pid)], SHORT_SECONDS)[1]
    status = read_text(PROC / str(pid) / "status")
    inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), str(pid))
    code, text = run(["docker", "exec", container, "py-spy", "dump", "--pid", inner], SHORT_SECONDS)
    if code in (126, 127) or "executable file not found" in text:
        return (
            "py-spy is neither on the host nor in the image; processes.txt shows what the kernel knows of the threads\n"
        )
    return text


def collect(
    service: Service,
    etc: Path,
    state_dir: Path,
    why: Mapping[str, Any],
    keep: int,
    beat: Callable[[], None] = lambda: None,
    only: Collection[str] = (),
) -> Path:
    """Write the evidence about a service; a source that fails leaves its reason. keep: folders that stay. only: names of files, all if empty."""
    folder = state_dir / service.name / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.parent.chmod(0o700)
    secrets = read_secrets(service, etc)
    processes = list_processes(service.containers)

    def logs(container: str) -> str:
        return f"=== {container}\n" + run(["docker", "logs", "--tail", LOG_LINES, "--timestamps", container])[1]

    def nvidia_smi() -> str:
        return run(["nvidia-smi"])[1] + run(["nvidia-smi", "-q", "-d", "POWER,CLOCK,TEMPERATURE,PERFORMANCE,PIDS"])[1]

    sources: dict[str, Callable[[], str]] = {
        "journal.txt": lambda: run([*JOURNAL, "-n", LOG_LINES, "-u", service.unit])[1],
        "docker.txt": lambda: "".join(logs(container) for container in service.containers),
        "docker_stats.txt": lambda: run(["docker", "container", "stats", "--no-stream", *service.containers])[1],
        "metrics.txt": lambda: "".join(text or "" for text in ask_metrics(service)),
        "nvidia_smi.txt": nvidia_smi,
        "processes.txt": lambda: describe_processes(processes),
        "stacks.txt": lambda: python_stacks(processes),
        "kernel.txt": lambda: run([*JOURNAL, "-k", "-n", "200"])[1],
        "meminfo.txt": lambda: Path("/proc/meminfo").read_text(encoding="utf-8"),
    }
    sources = {name: source for name, source in sources.items() if not only or name in only}
    texts = run_jobs(sources, 3 * COMMAND_SECONDS, lambda error: f"(not available: {error})\n", beat)
    texts = {name: texts.get(name, "(not available in time)\n") for name in sources}
    for name, text in {"why.json": json.dumps(why, indent=1, default=str) + "\n", **texts}.items():
        for secret in secrets:
            text = text.replace(secret, "********")
        with contextlib.suppress(OSError), (folder / name).open("w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(text[-MAX_FILE:])
    for old in sorted(path for path in folder.parent.iterdir() if path.is_dir())[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
