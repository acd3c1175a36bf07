# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands whose output a support bundle holds for people; no program parses it."""

from __future__ import annotations

from .._runtime.command import NoAnswer, Run

COMMANDS = (
    ("docker/info.txt", ["docker", "info"]),
    ("docker/containers.txt", ["docker", "ps", "--all", "--no-trunc"]),
    ("docker/images.txt", ["docker", "image", "ls", "--digests", "--no-trunc"]),
    ("docker/disk.txt", ["docker", "system", "df"]),
    ("system/nvidia-smi.txt", ["nvidia-smi"]),
    ("system/uname.txt", ["uname", "-a"]),
    ("system/uptime.txt", ["uptime"]),
    ("system/meminfo.txt", ["cat", "/proc/meminfo"]),
    ("system/pressure.txt", ["cat", "/proc/pressure/memory"]),
    ("system/disks.txt", ["df", "-hT"]),
    ("system/block_devices.txt", ["lsblk"]),
    ("system/processes.txt", ["ps", "-eo", "pid,ppid,user,rss,pcpu,etime,stat,args", "--sort=-rss"]),
    ("system/failed_units.txt", ["systemctl", "--failed", "--no-pager", "--plain"]),
    ("system/clock.txt", ["timedatectl"]),
    ("system/addresses.txt", ["ip", "-details", "addr"]),
    ("system/routes.txt", ["ip", "route"]),
    ("system/sockets.txt", ["ss", "-tlnp"]),
    ("system/rdma.txt", ["rdma", "link"]),
    ("system/swap.txt", ["cat", "/proc/swaps"]),
    ("system/vm.txt", ["sysctl", "vm"]),
    ("system/packages.txt", ["dpkg-query", "--show", "*nvidia*", "*docker*", "linux-image*", "dgx*"]),
    ("system/held_packages.txt", ["apt-mark", "showhold"]),
    ("system/cmdline.txt", ["cat", "/proc/cmdline"]),
)
"""The name of each text and its command. A host without the program says so."""


def logs(lines: int) -> list[tuple[str, list[str]]]:
    """Return the logs of the host itself, which come last, since they are the longest and seldom the reason."""
    common = ["journalctl", "--no-pager", "--quiet", "--output=short-iso", f"--lines={lines}"]
    return [
        ("journal/kernel.log", [*common, "--dmesg", "--boot"]),
        ("journal/docker.log", [*common, "--unit=docker.service"]),
        ("journal/kernel_before_boot.log", [*common, "--dmesg", "--boot=-1"]),
    ]


def unit_commands(unit: str) -> list[tuple[str, list[str]]]:
    """Return the commands for the file and the state of a unit."""
    return [
        (f"units/{unit}.txt", ["systemctl", "cat", "--no-pager", "--", unit]),
        (f"units/{unit}.status", ["systemctl", "show", "--no-pager", "--", unit]),
    ]


def container_log(container: str, lines: int) -> list[str]:
    """Return the command for the log of a container."""
    return ["docker", "logs", f"--tail={lines}", "--timestamps", container]


def read(run: Run, argv: list[str]) -> str:
    """Return the output of a program, with its exit code if it failed, and the reason if it gave no answer."""
    try:
        rc, out, err = run(argv, tail=True)
    except NoAnswer as nothing:
        return f"# {nothing}: {' '.join(argv)}\n"
    head = "" if rc == 0 else f"# exit code {rc}: {' '.join(argv)}\n"
    return f"{head}{out}{err}"
