# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine and its system, from files below a root: release files, firmware, PCI, memory, processes, disks, accounts.

Parsers are pure functions of a text; readers take C(root), the place of /proc, /sys and the release files, so that a test tree
or a simulated Spark can show its own. Missing hardware gives None or an empty list.

Sources: captures of Founders Edition, ASUS GX10, HP ZGX Nano, Lenovo PGX and Dell Pro Max machines; NVIDIA's known
issues page for the memory figures.
"""

from __future__ import annotations

import grp
import platform
import pwd
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._common.foreign_text import decode_text, printable
from .._runtime import hostmem

GPU_NAME = "NVIDIA GB10"
PCI_GPU = ("10de", "2e12")
PCI_CONNECTX = ("15b3", "1021")

# sys_vendor (lower case, spaces folded) -> short name. MSI, Gigabyte and Acer are patterns of others, not captures.
VENDORS = (
    ("nvidia", "nvidia"),
    ("asustek", "asus"),
    ("hp", "hp"),
    ("hewlett", "hp"),
    ("lenovo", "lenovo"),
    ("dell", "dell"),
    ("micro-star", "msi"),
    ("gigabyte", "gigabyte"),
    ("giga-byte", "gigabyte"),
    ("acer", "acer"),
)

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
"""Names of the kernel for architectures, and Docker's."""

SBIN = "/usr/sbin:/sbin:/usr/local/sbin"
"""Where programs of administrators lie that an account's PATH may lack."""

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"/([^/\s]+\.service)(?=/|\s|\Z)")


def read_text(root: str, path: str) -> str | None:
    """Return the text at C(<root>/<path>) without surrounding white space; None when it is absent or unreadable."""
    try:
        return printable((Path(root) / path).read_text(encoding="utf-8", errors="replace").strip())
    except (OSError, ValueError):
        return None


def names_in(root: str, path: str) -> list[str]:
    """Return the names in the folder C(<root>/<path>), sorted; [] for an unreadable folder."""
    try:
        return sorted(entry.name for entry in (Path(root) / path).iterdir())
    except OSError:
        return []


def number(text: str | None) -> float | None:
    """Return the number that a text begins with, None without one."""
    match = re.match(r"\s*(-?\d+(?:\.\d+)?)", text or "")
    return float(match.group(1)) if match else None


def whole(text: str | None) -> int | None:
    """Return the whole part of the number that a text begins with, None without one."""
    value = number(text)
    return int(value) if value is not None else None


# --- release files -------------------------------------------------------------------------------------------------


def parse_assignments(text: str) -> dict[str, str]:
    """Parse KEY=VALUE lines, quoted or not; the last one of a name wins, since updates append their blocks."""
    assignments = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Z][A-Z0-9_]*)=(.*)$", line)
        if match:
            value = match.group(2).strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            assignments[match.group(1)] = value
    return assignments


def parse_dgx_release(text: str) -> dict[str, Any] | None:
    """Parse /etc/dgx-release into C({name, platform, version, image_version, ota_version, commit}), or None.

    version: the last update over the air, else the version of the image. Dates are left out because they are written in
    the language of the machine, the serial number because nothing needs it.
    """
    values = parse_assignments(text)
    if "DGX_NAME" not in values and "DGX_SWBUILD_VERSION" not in values:
        return None
    image, ota = values.get("DGX_SWBUILD_VERSION") or None, values.get("DGX_OTA_VERSION") or None
    return {
        "name": values.get("DGX_NAME") or None,
        "platform": values.get("DGX_PLATFORM") or None,
        "version": ota or image,
        "image_version": image,
        "ota_version": ota,
        "commit": values.get("DGX_COMMIT_ID") or None,
    }


def parse_os_release(text: str) -> dict[str, Any] | None:
    """Parse /etc/os-release into C({id, version_id, codename, pretty_name}); None for an empty file."""
    values = parse_assignments(text)
    if not values:
        return None
    names = {"id": "ID", "version_id": "VERSION_ID", "codename": "VERSION_CODENAME", "pretty_name": "PRETTY_NAME"}
    return {key: values.get(name) or None for key, name in names.items()}


# --- machine -------------------------------------------------------------------------------------------------------


def tidy(text: str | None) -> str | None:
    """Fold underscores and runs of blanks, as DMI texts spell the same product in several ways."""
    folded = re.sub(r"[_\s]+", " ", text or "").strip()
    return folded or None


def vendor_of(sys_vendor: str | None) -> str | None:
    """Return the short name of the maker, None when it is not a known one."""
    folded = (tidy(sys_vendor) or "").lower()
    return next((short for start, short in VENDORS if folded.startswith(start)), None)


def is_spark(
    gpu_name: str | None, pci_ids: Iterable[tuple[str, str]], product_family: str | None, dgx_name: str | None
) -> bool:
    """Return whether this is a GB10 machine, by any one of four signs.

    The product name is not one of them: Lenovo's is a part number (30KL0004FC).
    """
    return (
        tidy(gpu_name) == GPU_NAME
        or PCI_GPU in set(pci_ids)
        or "dgx spark" in (tidy(product_family) or "").lower()
        or (tidy(dgx_name) or "").lower() == "dgx spark"
    )


def read_dmi(root: str = "/") -> dict[str, Any]:
    """Read /sys/class/dmi/id: C({vendor, sys_vendor, product_name, product_family, product_version, board_name,
    bios_version, bios_date}), each a text or None. Serial numbers and UUIDs are not read."""
    names = (
        "sys_vendor",
        "product_name",
        "product_family",
        "product_version",
        "board_name",
        "bios_version",
        "bios_date",
    )
    values: dict[str, Any] = {}
    for name in names:
        text = read_text(root, f"sys/class/dmi/id/{name}") or None
        values[name] = text if name.startswith("bios") else tidy(text)
    return {"vendor": vendor_of(values["sys_vendor"]), **values}


def read_pci(root: str = "/") -> dict[str, tuple[str, str]]:
    """Read /sys/bus/pci/devices: C({address: (vendor, device)}) in lower-case hex without 0x."""
    functions = {}
    for address in names_in(root, "sys/bus/pci/devices"):
        ids = pci_ids(root, f"sys/bus/pci/devices/{address}")
        if ids:
            functions[address.lower()] = ids
    return functions


def pci_ids(root: str, path: str) -> tuple[str, str] | None:
    """Read vendor and device of a PCI function, in lower-case hex without 0x, None without them. path: its folder below /sys."""
    vendor, device = read_text(root, f"{path}/vendor"), read_text(root, f"{path}/device")
    if not vendor or not device:
        return None
    return vendor.lower().replace("0x", "", 1), device.lower().replace("0x", "", 1)


def parse_cgroup(text: str, container_ids: Iterable[str] = ()) -> dict[str, str | None]:
    """Find container and unit in the text of /proc/PID/cgroup: C({container, unit}), container as the full id.

    Knows cgroup v1 (C(12:memory:/docker/ID)) and v2 (C(0::/system.slice/docker-ID.scope)), either driver of Docker.
    Where containers run in containers the path has several ids: one of C(container_ids) is preferred, else the last is taken.
    """
    ids = _CONTAINER_ID.findall(text)
    preferred = set(container_ids)
    container = next((container_id for container_id in reversed(ids) if container_id in preferred), None)
    if container is None and ids and not preferred:
        container = ids[-1]
    # v2's line or systemd's own hierarchy; the other hierarchies of v1 may lack the unit.
    matches = _UNIT.findall(text)
    return {"container": container, "unit": matches[-1] if matches else None}


def read_cgroup(pid: int, root: str = "/", container_ids: Iterable[str] = ()) -> dict[str, str | None]:
    """Read and parse C(/proc/PID/cgroup); a tree that shows no processes leaves that to the real /proc."""
    text = read_text(root, f"proc/{pid}/cgroup")
    if text is None:
        text = read_text("/", f"proc/{pid}/cgroup")
    return parse_cgroup(text or "", container_ids)


def read_processes(root: str = "/") -> list[dict[str, Any]]:
    """List the programs that run: C([{pid, words, cgroup}]); kernel threads and programs that end meanwhile are left out."""
    processes = []
    for name in names_in(root, "proc"):
        try:
            line = (Path(root) / "proc" / name / "cmdline").read_bytes().rstrip(b"\0\n") if name.isdigit() else b""
        except OSError:  # it has ended
            continue
        if line:
            cgroup = read_text(root, f"proc/{name}/cgroup") or ""
            words = [decode_text(word) for word in line.split(b"\0")]
            processes.append({"pid": int(name), "words": words, "cgroup": cgroup})
    return processes


# --- memory --------------------------------------------------------------------------------------------------------


LARGE_BLOCK = 16 * 1024**2
"""Bytes that the driver wants in one piece while weights are loaded."""


def describe_memory(meminfo: dict[str, int]) -> dict[str, Any] | None:
    """Turn parsed meminfo into GiB figures; None when there is no MemTotal.

    With huge pages reserved NVIDIA counts only the free ones as allocatable, so their number is part of it.
    """
    if "MemTotal" not in meminfo:
        return None

    def figure(name: str) -> float:
        return round(hostmem.gib(meminfo, name), 3)

    return {
        "total_gib": figure("MemTotal"),
        "available_gib": figure("MemAvailable"),
        "free_gib": figure("MemFree"),
        "cached_gib": figure("Cached"),
        "page_cache_gib": round(hostmem.page_cache_gib(meminfo), 3),
        "shmem_gib": figure("Shmem"),
        "swap_total_gib": figure("SwapTotal"),
        "swap_free_gib": figure("SwapFree"),
        "hugepages_total": meminfo.get("HugePages_Total", 0),
        "cma_total_gib": figure("CmaTotal"),
        "cma_free_gib": figure("CmaFree"),
    }


def read_memory(root: str = "/") -> dict[str, Any] | None:
    """Read C(<root>/proc/meminfo); see C(describe_memory). C(large_blocks): free pieces of C(LARGE_BLOCK) bytes, None if unknown."""
    memory = describe_memory(hostmem.parse_meminfo(read_text(root, "proc/meminfo") or ""))
    free = hostmem.bytes_in_blocks(read_text(root, "proc/buddyinfo") or "", hostmem.PAGE_BYTES, LARGE_BLOCK)
    return memory and {**memory, "large_blocks": None if free is None else free // LARGE_BLOCK}


# --- disks, services -----------------------------------------------------------------------------------------------


def read_disks(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Measure the file systems under C(paths): C({path: {total_gib, free_gib, exists}}).

    A path that does not exist yet is judged by its nearest parent that does. free_gib is what a user other than root
    may still fill.
    """
    disks = {}
    for path in paths:
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        disks[path] = {
            "total_gib": round(usage.total / 1024**3, 2),
            "free_gib": round(usage.free / 1024**3, 2),
            "exists": Path(path).exists(),
        }
    return disks


def read_services(etc: str = "/etc/dgxspark") -> list[str]:
    """Name the services that this collection has put on the host (C(<etc>/services/NAME.json))."""
    return [name[: -len(".json")] for name in names_in(etc, "services") if name.endswith(".json")]


def docker_architecture() -> str:
    """Return the architecture of this host in Docker's terms."""
    name = platform.machine()
    return ARCHITECTURES.get(name, name)


def management_address() -> str | None:
    """Return the address that the host's default route starts from, or None without one.

    Connecting a datagram socket only looks the route up; nothing is sent (192.0.2.0/24 is reserved for documentation).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def read_docker_users() -> dict[str, dict[str, str]]:
    """Return C(home) and C(shell) of the accounts in the group C(docker), by name."""
    try:
        members = grp.getgrnam("docker").gr_mem
    except KeyError:
        return {}
    users = {}
    for name in members:
        try:
            account = pwd.getpwnam(name)
        except KeyError:  # the account was removed, its membership was not
            continue
        users[name] = {"home": account.pw_dir, "shell": account.pw_shell}
    return users


def has_program(name: str) -> bool:
    """Whether a program is in the PATH, or where administrators have theirs."""
    return shutil.which(name) is not None or shutil.which(name, path=SBIN) is not None
