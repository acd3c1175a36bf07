# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a DGX Spark (GB10) says about itself.

Parsers are pure functions of a text; readers take C(root), the place where /proc, /sys and the release files are found,
so that a test tree or a simulated Spark can show its own. Hardware that is absent gives None or an empty list: a Spark
without a cable has no ConnectX-7 on its bus at all, and a host with a broken driver still deserves a report.

Sources: captures of Founders Edition, ASUS GX10, HP ZGX Nano, Lenovo PGX and Dell Pro Max machines; NVIDIA's known
issues page for the memory figures; the port map of NVIDIA's playbooks for the QSFP cages.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .._common.foreign_text import decode_text, parse_json, printable
from .._runtime import hostmem
from .._runtime.command import NoAnswer, answered, noted, says_missing, unreadable
from . import docker_facts, units

Run = Callable[[list[str]], "tuple[int, str, str]"]
"""Runs a program: (rc, stdout, stderr), rc 127 where there is none. Raises NoAnswer when it says nothing in time."""
"""Runs an argv with LC_ALL=C and TZ=UTC; returns (rc, stdout, stderr); rc 127 when the program is missing."""

GPU_NAME = "NVIDIA GB10"
PCI_GPU = ("10de", "2e12")
PCI_CONNECTX = ("15b3", "1021")

GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_cap",
    "temperature.gpu",
    "power.draw",
    "clocks.current.sm",
    "utilization.gpu",
)
# How nvidia-smi ends where there is no GPU to use (its manual: a query found no object; the driver is not loaded): an answer.
NO_GPU = (6, 9)
GPU_QUERY = ["nvidia-smi", "--query-gpu=" + ",".join(GPU_FIELDS), "--format=csv,noheader,nounits"]

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

# Function index of the ConnectX-7 -> cage. One cage is two PCIe functions (domains 0000 and 0002) with one netdev each.
CAGES = {0: "left (beside the RJ45 port)", 1: "right (outer)"}

_CX7_NAME = re.compile(r"en(?P<domain>P\d+)?p1s0f(?P<function>[01])np[01]\Z")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.(?P<function>[0-7])\Z")
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"/([^/\s]+\.service)(?=/|\s|\Z)")


def read_text(root: str, path: str) -> str | None:
    """Return the text at C(<root>/<path>) without surrounding white space; None when it is absent or unreadable."""
    try:
        return printable((Path(root) / path).read_text(encoding="utf-8", errors="replace").strip())
    except (OSError, ValueError):
        return None


def _names(root: str, path: str) -> list[str]:
    try:
        return sorted(entry.name for entry in (Path(root) / path).iterdir())
    except OSError:
        return []


def _number(text: str | None) -> float | None:
    match = re.match(r"\s*(-?\d+(?:\.\d+)?)", text or "")
    return float(match.group(1)) if match else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return int(value) if value is not None else None


# --- release files -------------------------------------------------------------------------------------------------


def parse_assignments(text: str) -> dict[str, str]:
    """Parse KEY=VALUE lines, quoted or not; the last one of a name wins, since updates append their blocks."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Z][A-Z0-9_]*)=(.*)$", line)
        if match:
            value = match.group(2).strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found[match.group(1)] = value
    return found


def parse_dgx_release(text: str) -> dict[str, Any] | None:
    """Parse /etc/dgx-release into C({name, platform, version, image_version, ota_version, commit}), or None.

    version: the last update over the air, else the version of the image. Dates are left out because they are written in
    the language of the machine, the serial number because it is nobody's business.
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
    return {
        "id": values.get("ID") or None,
        "version_id": values.get("VERSION_ID") or None,
        "codename": values.get("VERSION_CODENAME") or None,
        "pretty_name": values.get("PRETTY_NAME") or None,
    }


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
    """Tell whether this is a GB10 machine, by any one of four signs.

    The product name is not one of them: Lenovo's is a part number (30KL0004FC).

    :param gpu_name: as nvidia-smi says it
    :param pci_ids: vendor and device of all PCI functions
    :param product_family: of the firmware
    :param dgx_name: of /etc/dgx-release
    :returns: whether it is
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
    found = {}
    for address in _names(root, "sys/bus/pci/devices"):
        ids = _pci_ids(root, f"sys/bus/pci/devices/{address}")
        if ids:
            found[address.lower()] = ids
    return found


def _pci_ids(root: str, path: str) -> tuple[str, str] | None:
    vendor, device = read_text(root, f"{path}/vendor"), read_text(root, f"{path}/device")
    if not vendor or not device:
        return None
    return vendor.lower().replace("0x", "", 1), device.lower().replace("0x", "", 1)


# --- GPU -----------------------------------------------------------------------------------------------------------


def parse_gpu_query(text: str) -> list[dict[str, Any]]:
    """Parse what C(GPU_QUERY) prints, one dict per GPU; [N/A], [Not Supported] and the like become None.

    The message that there is no device gives an empty list. Raises NoAnswer for text without a line of a GPU.
    """
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(GPU_FIELDS) or not fields[0].isdigit():
            continue
        values = {
            name: None if value.startswith("[") or not value else value for name, value in zip(GPU_FIELDS, fields)
        }
        found.append(
            {
                "index": int(fields[0]),
                "name": values["name"],
                "uuid": values["uuid"],
                "driver_version": values["driver_version"],
                "compute_capability": values["compute_cap"],
                "temperature_c": _whole(values["temperature.gpu"]),
                "power_w": _number(values["power.draw"]),
                "sm_clock_mhz": _whole(values["clocks.current.sm"]),
                "utilization_percent": _whole(values["utilization.gpu"]),
            }
        )
    if not found and text.strip() and not hostmem.NONE_THERE.search(text):
        raise unreadable("nvidia-smi", text)
    return found


def parse_cuda_version(table: str) -> str | None:
    """Take the CUDA version out of nvidia-smi's table (no query field has it)."""
    match = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", table)
    return match.group(1) if match else None


def parse_cgroup(text: str, known: Iterable[str] = ()) -> dict[str, str | None]:
    """Find container and unit in the text of /proc/PID/cgroup: C({container, unit}), container as the full id.

    Knows cgroup v1 (C(12:memory:/docker/ID)) and v2 (C(0::/system.slice/docker-ID.scope)), either driver of Docker.
    Where containers run in containers the path has several ids: one of C(known) is preferred, else the last is taken.
    """
    ids = _CONTAINER_ID.findall(text)
    wanted = set(known)
    container = next((found for found in reversed(ids) if found in wanted), None)
    if container is None and ids and not wanted:
        container = ids[-1]
    # v2's line or systemd's own hierarchy; the other hierarchies of v1 may lack the unit.
    matches = _UNIT.findall(text)
    return {"container": container, "unit": matches[-1] if matches else None}


def read_cgroup(pid: int, root: str = "/", known: Iterable[str] = ()) -> dict[str, str | None]:
    """Read and parse C(/proc/PID/cgroup); a tree that shows no processes leaves that to the real /proc.

    :param pid: of the process
    :param root: where C(/proc) is
    :param known: names of units that are known
    :returns: unit and container
    """
    text = read_text(root, f"proc/{pid}/cgroup")
    if text is None:
        text = read_text("/", f"proc/{pid}/cgroup")
    return parse_cgroup(text or "", known)


def read_processes(root: str = "/") -> list[dict[str, Any]]:
    """List the programs that run: C([{pid, words, cgroup}]); kernel threads and what ends meanwhile are left out."""
    found = []
    for name in _names(root, "proc"):
        try:
            line = (Path(root) / "proc" / name / "cmdline").read_bytes().rstrip(b"\0\n") if name.isdigit() else b""
        except OSError:  # it has ended
            continue
        if line:
            cgroup = read_text(root, f"proc/{name}/cgroup") or ""
            words = [decode_text(word) for word in line.split(b"\0")]
            found.append({"pid": int(name), "words": words, "cgroup": cgroup})
    return found


def read_gpu(run: Run, root: str, containers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Ask nvidia-smi for the first GPU.

    :param run: runs it
    :param root: where C(/proc) is
    :param containers: of C(read_containers)
    :returns: it with C(processes [{pid, name, used_mib, container}]); None when there is no
        nvidia-smi or it finds no device (exit 6 on GB10 after a driver update without its firmware)
    :raises NoAnswer: where it fails otherwise
    """
    rc, out, err = run(GPU_QUERY)
    answered("nvidia-smi", 0 if rc in NO_GPU else rc, err or out)
    gpus = parse_gpu_query(out) if rc == 0 else []
    if not gpus:
        return None
    names = {container["id"]: container["name"] for container in containers}
    processes = []
    for app in read_compute_apps(run):
        container = read_cgroup(app["pid"], root, names)["container"]
        processes.append({**app, "container": names.get(container or "")})
    return {**gpus[0], "count": len(gpus), "processes": processes}


def read_cuda_version(run: Run) -> str | None:
    """Return the CUDA version of the driver, which only the table of nvidia-smi tells; None where it does not."""
    _rc, table, _err = run(["nvidia-smi"])
    return parse_cuda_version(table)


def read_compute_apps(run: Run) -> list[dict[str, Any]]:
    """Ask nvidia-smi for the processes that hold GPU memory, C([{pid, name, used_mib}]). Raises NoAnswer."""
    rc, out, err = run(hostmem.COMPUTE_APPS_QUERY)
    answered("nvidia-smi", rc, err or out)
    return hostmem.parse_compute_apps(out) if rc == 0 else []


def still_listed(run: Run, pids: list[int]) -> set[int]:
    """Return which processes hold GPU memory; C(pids), those waited for, when nvidia-smi does not say: silence ends no wait."""
    try:
        return {app["pid"] for app in read_compute_apps(run)}
    except NoAnswer:
        return set(pids)


def resident(gpu: dict[str, Any] | None, containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum the GPU memory of the managed, running containers of each service: C([{name: service, gib}]).

    A container that holds no GPU memory yet counts 0; what nvidia-smi gives as [N/A] counts nothing. Under Ray a service has
    two containers, and it is Ray's that holds the memory.
    """
    held: dict[str, int] = {}
    for process in (gpu or {}).get("processes", []):
        if process["container"]:
            held[process["container"]] = held.get(process["container"], 0) + (process["used_mib"] or 0)
    found: dict[str, int] = {}
    for container in containers:
        if container["managed"] and container["state"] == "running":
            found[container["service"]] = found.get(container["service"], 0) + held.get(container["name"], 0)
    return [{"name": service, "gib": round(mib / 1024, 3)} for service, mib in found.items()]


# --- memory --------------------------------------------------------------------------------------------------------


LARGE_BLOCK = 16 * 1024**2
"""Bytes that the driver wants in one piece while weights are loaded."""


def large_blocks(buddyinfo: str, page: int) -> int | None:
    """Count the free pieces of C(LARGE_BLOCK) bytes; None where the kernel does not tell of pieces that large.

    :param buddyinfo: the text of C(/proc/buddyinfo), free pieces of each zone by power of two of pages
    :param page: size of one, in bytes
    :returns: how many
    """
    order = (LARGE_BLOCK // page).bit_length() - 1
    zones = [[int(word) for word in row.split()] for row in re.findall(r"zone +\S+((?: +\d+)+)", buddyinfo)]
    if not zones or len(zones[0]) <= order:
        return None
    return sum(count << (power - order) for zone in zones for power, count in enumerate(zone) if power >= order)


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
    """Read C(<root>/proc/meminfo); see C(describe_memory). C(large_blocks): see there."""
    found = describe_memory(hostmem.parse_meminfo(read_text(root, "proc/meminfo") or ""))
    blocks = large_blocks(read_text(root, "proc/buddyinfo") or "", os.sysconf("SC_PAGESIZE"))
    return found and {**found, "large_blocks": blocks}


# --- fabric --------------------------------------------------------------------------------------------------------


def function_of(netdev: str, address: str | None) -> int | None:
    """Return the function index (0 or 1) that says which cage a netdev belongs to.

    The PCI address is asked first, then the name: in enP2p1s0f1np1 it is f1 that decides, not np1.
    """
    match = _PCI_ADDRESS.match(address or "") or _CX7_NAME.match(netdev)
    return int(match.group("function")) if match else None


def address_from_name(netdev: str) -> str | None:
    """Derive the PCI address from a ConnectX-7 name: enp1s0f0np0 is 0000:01:00.0, enP2p1s0f0np0 is 0002:01:00.0."""
    match = _CX7_NAME.match(netdev)
    if not match:
        return None
    domain = int((match.group("domain") or "P0")[1:])
    return f"{domain:04x}:01:00.{match.group('function')}"


def _json_items(text: str, key: str) -> list[dict[str, Any]]:
    """Return the entries that have C(key) of what C(ip -j) printed; [] for anything that is not JSON."""
    try:
        items = parse_json(text, "ip")
    except ValueError:
        return []
    return [item for item in items if isinstance(item, dict) and key in item] if isinstance(items, list) else []


def parse_ip_addr(text: str) -> dict[str, list[str]]:
    """Parse C(ip -j addr): C({netdev: [address/prefix]}); {} for anything that is not JSON.

    Global addresses, and those of 169.254/16, which one of NVIDIA's examples puts on the interfaces.
    """
    return {
        str(item["ifname"]): [
            f"{info['local']}/{info.get('prefixlen')}"
            for info in item.get("addr_info") or []
            if info.get("local") and (info.get("scope") == "global" or str(info["local"]).startswith("169.254."))
        ]
        for item in _json_items(text, "ifname")
    }


def parse_ip_mtu(text: str) -> dict[str, int]:
    """Parse C(ip -j addr): C({netdev: MTU})."""
    items = _json_items(text, "ifname")
    return {
        str(item["ifname"]): item["mtu"]
        for item in items
        if isinstance(item.get("mtu"), int) and not isinstance(item["mtu"], bool)
    }


def parse_ip_neigh(text: str) -> dict[str, list[dict[str, str]]]:
    """Parse C(ip -j neigh): C({netdev: [{address, mac}]}), those that have answered."""
    found: dict[str, list[dict[str, str]]] = {}
    for item in _json_items(text, "dev"):
        if item.get("lladdr") and not {"FAILED", "INCOMPLETE"} & set(item.get("state") or []):
            entry = {"address": str(item.get("dst")), "mac": str(item["lladdr"])}
            found.setdefault(str(item["dev"]), []).append(entry)
    return found


def parse_rate(text: str | None) -> float | None:
    """C(200 Gb/sec (2X NDR)) -> 200.0."""
    return _number(text)


def parse_state(text: str | None) -> str | None:
    """C(4: ACTIVE) -> ACTIVE."""
    return text.split(":", 1)[-1].strip() or None if text else None


def parse_gid(text: str) -> str | None:
    """Return the address in a GID, IPv4 where it is one (C(0000:...:ffff:c0a8:640a)); None for an empty entry."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    if not int(address):
        return None
    return str(address.ipv4_mapped or address)


def read_gids(root: str, port: str) -> list[dict[str, Any]]:
    """Read the GID table of a port: C([{index, type, address}]), without empty entries.

    The index of an address is whatever it is at the moment: the table may have holes, and entries move.
    """
    found = []
    for index in sorted(int(name) for name in _names(root, f"{port}/gids") if name.isdigit()):
        address = parse_gid(read_text(root, f"{port}/gids/{index}") or "")
        if address:
            kind = read_text(root, f"{port}/gid_attrs/types/{index}")
            found.append({"index": index, "type": kind, "address": address})
    return found


def read_rdma(root: str = "/") -> list[dict[str, Any]]:
    """Read /sys/class/infiniband: C([{name, netdev, state, physical_state, rate_gbps, gids}]), port 1 of each device.

    Only the state says whether a port is up: a port that is down may still claim C(LinkUp) physically. The hardware
    counters are not read, each of them is a trap into the card's firmware.
    """
    found = []
    for name in _names(root, "sys/class/infiniband"):
        port = f"sys/class/infiniband/{name}/ports/1"
        netdev = read_text(root, f"{port}/gid_attrs/ndevs/0")
        if not netdev:
            beneath = _names(root, f"sys/class/infiniband/{name}/device/net")
            netdev = beneath[0] if beneath else None
        found.append(
            {
                "name": name,
                "netdev": netdev,
                "state": parse_state(read_text(root, f"{port}/state")),
                "physical_state": parse_state(read_text(root, f"{port}/phys_state")),
                "rate_gbps": parse_rate(read_text(root, f"{port}/rate")),
                "gids": read_gids(root, port),
            }
        )
    return found


def rdma_name(netdev: str) -> str:
    """Name the RoCE device of a ConnectX-7 netdev by rule: enP2p1s0f0np0 -> roceP2p1s0f0."""
    return "roce" + re.sub(r"np\d+\Z", "", netdev[len("en") :] if netdev.startswith("en") else netdev)


def _pci_of_netdev(root: str, netdev: str) -> str | None:
    """Find the PCI address of a netdev: its device link, the slot name in uevent, then its name."""
    device = Path(root) / "sys/class/net" / netdev / "device"
    real = os.path.realpath(device)
    if _PCI_ADDRESS.match(Path(real).name):
        return Path(real).name
    match = re.search(
        r"^PCI_SLOT_NAME=(\S+)$", read_text(root, f"sys/class/net/{netdev}/device/uevent") or "", re.MULTILINE
    )
    if match:
        return match.group(1).lower()
    return address_from_name(netdev)


def _is_connectx(root: str, netdev: str) -> bool:
    ids = _pci_ids(root, f"sys/class/net/{netdev}/device")
    if ids:
        return ids == PCI_CONNECTX
    return bool(_CX7_NAME.match(netdev))


def _link(root: str, paths: list[str]) -> dict[str, Any]:
    """Read the PCIe link of the first of C(paths) that has one: C({link_speed_gts, link_width})."""
    for path in paths:
        speed, width = read_text(root, f"{path}/current_link_speed"), read_text(root, f"{path}/current_link_width")
        if speed or width:
            return {"link_speed_gts": _number(speed), "link_width": _whole(width)}
    return {"link_speed_gts": None, "link_width": None}


# Where a network is written down -> (who reads it, whether it outlives a reboot).
NETWORK_FILES = (
    ("etc/netplan", ".yaml", "netplan", True),
    ("etc/systemd/network", ".network", "networkd", True),
    ("etc/NetworkManager/system-connections", ".nmconnection", "networkmanager", True),
    ("run/NetworkManager/system-connections", ".nmconnection", "networkmanager", False),
)
MANAGED_MARK = "dgxspark.vllm.fabric"
"""In the first line of the file that the role fabric writes."""
RELAY_UNIT = "etc/systemd/system/dgxspark-fabric-relay.service"
"""The unit by which the role fabric has a host of a ring pass on what is for others."""


# A host may have no YAML parser for its netplan files, and names are all that is needed of them.
_INTERFACE = re.compile(r"\b(?:en|eth|wl|ww|ib|bond|br)\w*\d\w*\b")


def _interfaces(reader: str, text: str) -> set[str]:
    """Name the interfaces that a file mentions; C(match) stands for ones that it picks by other means than their name."""
    if reader == "networkmanager":
        return set(re.findall(r"^interface-name=(\S+)$", text, re.MULTILINE))
    if reader == "networkd":
        return {name for line in re.findall(r"^Name=(.+)$", text, re.MULTILINE) for name in line.split()}
    plain = re.sub(r"(^|\s)#.*", "", text)
    # NetworkManager writes a match by the plain name of one interface into the files that netplan keeps for it.
    plain = re.sub(
        r"\bmatch:\s*(?:\n\s*name:\s*[\"']?\w+[\"']?\s*(?=\n|$)|\{\s*name:\s*[\"']?\w+[\"']?\s*\})",
        lambda found: found.group()[6:],
        plain,
    )
    return set(_INTERFACE.findall(plain)) | set(re.findall(r"\bmatch(?=:)", plain))


def read_stored(config_root: str, netdevs: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Find where each netdev's network is written down: C({netdev: [{path, reader, persistent, alone, managed}]}).

    alone: the file configures nothing but C(netdevs). Profiles that NetworkManager was given by netplan are left out.
    """
    wanted = set(netdevs)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    for folder, suffix, reader, persistent in NETWORK_FILES:
        for name in _names(config_root, folder):
            if not name.endswith(suffix) or (reader == "networkmanager" and name.startswith("netplan-")):
                continue
            text = read_text(config_root, f"{folder}/{name}") or ""
            interfaces = _interfaces(reader, text)
            for netdev in sorted(wanted & interfaces):
                found[netdev].append(
                    {
                        "path": f"/{folder}/{name}",
                        "reader": reader,
                        "persistent": persistent,
                        "alone": interfaces <= wanted,
                        "managed": MANAGED_MARK in text.split("\n", maxsplit=1)[0],
                    }
                )
    return found


def _master(root: str, netdev: str) -> str | None:
    """Name the bond or bridge that a netdev belongs to."""
    path = Path(root) / "sys/class/net" / netdev / "master"
    return Path(os.path.realpath(path)).name if path.exists() else None


def read_netdev(root: str, netdev: str, addresses: dict[str, list[str]], rdma: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe one ConnectX-7 netdev.

    :param root: where C(/sys) is
    :param netdev: its name
    :param addresses: by netdev, CIDR
    :param rdma: all RoCE devices
    :returns: C({name, pci, function, up, speed_mbps, mtu, mac, master, addresses, link_speed_gts, link_width,
        rdma: {name, state, physical_state, rate_gbps, gids} or None})
    """
    base = f"sys/class/net/{netdev}"
    pci = _pci_of_netdev(root, netdev)
    speed = _whole(read_text(root, f"{base}/speed"))
    paths = [f"{base}/device"] + ([f"sys/bus/pci/devices/{pci}"] if pci else [])
    device = next((entry for entry in rdma if entry["netdev"] == netdev), None) or next(
        (entry for entry in rdma if entry["netdev"] is None and entry["name"] == rdma_name(netdev)), None
    )
    return {
        "name": netdev,
        "pci": pci,
        "function": function_of(netdev, pci),
        "up": read_text(root, f"{base}/operstate") == "up",
        "speed_mbps": speed if speed and speed > 0 else None,  # -1 when the link is down
        "mtu": _whole(read_text(root, f"{base}/mtu")),
        "mac": read_text(root, f"{base}/address"),
        "master": _master(root, netdev),
        "addresses": addresses.get(netdev, []),
        **_link(root, paths),
        "rdma": {key: value for key, value in device.items() if key != "netdev"} if device else None,
    }


def group_ports(netdevs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put interfaces together: one port per cage, C([{cage, position, up, mtu, rate_gbps, netdevs: [...]}]).

    Interfaces share the function index. up: all netdevs of the cage are. mtu: theirs, None when they differ (one interface back
    at 1500 after a firmware update is a known fault). rate_gbps: the link's, as RoCE reports it.
    """
    ports = []
    for function in sorted({netdev["function"] for netdev in netdevs if netdev["function"] is not None}):
        interfaces = sorted(
            (netdev for netdev in netdevs if netdev["function"] == function),
            key=lambda interface: interface["pci"] or "",
        )
        mtus = {interface["mtu"] for interface in interfaces}
        rates = [
            interface["rdma"]["rate_gbps"]
            for interface in interfaces
            if interface["rdma"] and interface["rdma"]["rate_gbps"]
        ]
        ports.append(
            {
                "cage": function,
                "position": CAGES.get(function),
                "up": all(interface["up"] for interface in interfaces),
                "mtu": mtus.pop() if len(mtus) == 1 else None,
                "rate_gbps": max(rates) if rates else None,
                "netdevs": interfaces,
            }
        )
    return ports


def read_fabric(root: str, run: Run, pci: dict[str, tuple[str, str]], config_root: str = "/") -> dict[str, Any]:
    """Describe the QSFP side. Without a cable the card is powered off, so no ConnectX-7 on the bus is no fault by itself.

    :param root: where C(/sys) is
    :param run: runs C(ip) and C(rdma)
    :param pci: vendor and device by PCI function
    :param config_root: where /etc and /run of the host itself are found
    :returns: C({connectx, pci_functions, ports, networks, mtus, relay}). networks: addresses of all other interfaces, by name; mtus: their
        MTUs. relay: whether the role fabric has had this host pass on what is for others.
        Each netdev also has C(neighbours), what has answered on it, and C(stored), where its network is written
        down
    """
    names = [name for name in _names(root, "sys/class/net") if _is_connectx(root, name)]
    rdma = read_rdma(root)
    addresses: dict[str, list[str]] = {}
    mtus: dict[str, int] = {}
    neighbours: dict[str, list[dict[str, str]]] = {}
    if names:
        rc, text, err = run(["ip", "-j", "addr"])
        answered("ip", rc, err)
        addresses, mtus = parse_ip_addr(text), parse_ip_mtu(text)
        rc, text, err = run(["ip", "-j", "neigh"])
        answered("ip", rc, err)
        neighbours = parse_ip_neigh(text)
    stored = read_stored(config_root, names)
    netdevs = [
        {
            **read_netdev(root, name, addresses, rdma),
            "neighbours": neighbours.get(name, []),
            "stored": stored[name],
        }
        for name in names
    ]
    functions = {address for address, ids in pci.items() if ids == PCI_CONNECTX}
    functions |= {netdev["pci"] for netdev in netdevs if netdev["pci"]}
    return {
        "connectx": bool(functions or netdevs),
        "pci_functions": sorted(functions),
        "ports": group_ports(netdevs),
        "networks": (
            networks := {name: each for name, each in addresses.items() if each and name not in (*names, "lo")}
        ),
        "mtus": {name: mtu for name, mtu in mtus.items() if name in networks},
        "relay": Path(config_root, RELAY_UNIT).exists(),
    }


# --- listening sockets ---------------------------------------------------------------------------------------------


def parse_ss(text: str) -> list[dict[str, Any]]:
    """Parse C(ss -H -tlnp): C([{address, port, process, pid}]); process and pid are None where ss may not see them."""
    found = []
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5 or fields[0] != "LISTEN":
            continue
        address, _sep, port = fields[3].rpartition(":")
        if not port.isdigit():
            continue
        users = re.search(r'\("([^"]*)",pid=(\d+)', fields[5] if len(fields) > 5 else "")
        found.append(
            {
                "address": _plain_address(address),
                "port": int(port),
                "process": users.group(1) if users else None,
                "pid": int(users.group(2)) if users else None,
            }
        )
    return found


def _plain_address(address: str) -> str:
    """C([::]) -> ::, C(127.0.0.53%lo) -> 127.0.0.53, C(*) (both families) -> ::."""
    plain = address.strip("[]").split("%", 1)[0]
    return "::" if plain == "*" else plain


def parse_proc_tcp(text: str) -> list[dict[str, Any]]:
    """Parse /proc/net/tcp or tcp6 like C(parse_ss), without processes: for hosts that have no ss."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 4 or fields[3] != "0A":  # TCP_LISTEN
            continue
        raw, _sep, port = fields[1].partition(":")
        found.append({"address": _hex_address(raw), "port": int(port, 16), "process": None, "pid": None})
    return found


def _hex_address(raw: str) -> str:
    """Addresses in /proc are words of 32 bits in the byte order of the host (little-endian on every Spark)."""
    words = b"".join(bytes.fromhex(raw[start : start + 8])[::-1] for start in range(0, len(raw), 8))
    return str(ipaddress.ip_address(words))


def read_proc_tcp() -> list[dict[str, Any]]:
    """Read the listening sockets of this network namespace from /proc; see C(parse_proc_tcp)."""
    texts = [read_text("/", f"proc/net/{name}") for name in ("tcp", "tcp6")]
    return [entry for text in texts for entry in parse_proc_tcp(text or "")]


def read_listening(run: Run, root: str, containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List listening TCP sockets by port and address, each once.

    :param run: runs C(ss)
    :param root: where C(/proc) is
    :param containers: of C(read_containers); a published port belongs to the container, not to docker-proxy
    :returns: C([{address, port, process, pid, unit, container}]); unit and container come from the cgroup of the
        process
    """
    rc, out, _err = noted({}, (1, "", ""), run, ["ss", "-H", "-tlnp"])
    sockets = parse_ss(out) if rc == 0 else read_proc_tcp()  # the kernel has it without the processes
    names = {container["id"]: container["name"] for container in containers}
    published = {
        port: container["name"]
        for container in containers
        if container["state"] == "running"
        for port in container["ports"]
    }
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for entry in sockets:
        owner = read_cgroup(entry["pid"], root, names) if entry["pid"] else {"container": None, "unit": None}
        container = names.get(owner["container"] or "")
        if container is None and entry["process"] in (None, "docker-proxy"):
            container = published.get(entry["port"])
        found.setdefault(
            (entry["port"], entry["address"]),
            {**entry, "unit": owner["unit"], "container": container},
        )
    return [found[key] for key in sorted(found)]


# --- disks, services -----------------------------------------------------------------------------------------------


def read_disks(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Measure the file systems under C(paths): C({path: {total_gib, free_gib, exists}}).

    A path that does not exist yet is judged by its nearest parent that does. free_gib is what a user other than root
    may still fill.
    """
    found = {}
    for path in paths:
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            usage = shutil.disk_usage(place)
        except OSError:
            continue
        found[path] = {
            "total_gib": round(usage.total / 1024**3, 2),
            "free_gib": round(usage.free / 1024**3, 2),
            "exists": Path(path).exists(),
        }
    return found


def read_services(etc: str = "/etc/dgxspark") -> list[str]:
    """Name the services that this collection has put on the host (C(<etc>/services/NAME.json))."""
    return [name[: -len(".json")] for name in _names(etc, "services") if name.endswith(".json")]


def read_containers(run: Run) -> list[dict[str, Any]]:
    """List all containers, running or not; see C(docker_facts.parse_containers)."""
    rc, out, err = run(docker_facts.LIST_COMMAND)
    answered("docker", rc, err)
    ids = docker_facts.read_ids(out) if rc == 0 else []
    if not ids:
        return []
    # A container that ends between the two calls makes inspect fail, but it still prints the others.
    rc, text, err = run(["docker", "container", "inspect", "--", *ids])
    answered("docker", 0 if says_missing(err) else rc, err)
    return docker_facts.parse_containers(text, err)


def read_units(run: Run, unit_dir: str = "/etc/systemd/system") -> list[dict[str, Any]]:
    """List the units of services, loaded or only on the disk; see C(units.parse_show)."""
    on_disk = [name for name in _names(unit_dir, "") if name.startswith("spark-") and name.endswith(".service")]
    shown = units.ask(run, [*on_disk, units.UNIT_GLOB])
    return [unit for unit in shown if unit["load_state"] != "not-found"]


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


def _look_at_docker(run: Run, unknown: dict[str, str]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return what the Docker engine is, None where there is none, and its containers; unknown: see C(noted)."""
    rc, info, error = noted(unknown, (124, "", ""), run, docker_facts.INFO_COMMAND)
    docker = None
    containers: list[dict[str, Any]] = []
    if rc != 127:
        docker = noted(unknown, None, docker_facts.parse_info, info) or docker_facts.parse_info("")
        if docker["reachable"]:
            containers = noted(unknown, [], read_containers, run)
        elif "docker" in unknown:
            docker["error"] = unknown["docker"]
        elif error.strip():
            docker["error"] = error.strip().splitlines()[-1]
    return docker, containers


def collect(
    run: Run,
    root: str = "/",
    disk_paths: Iterable[str] = (),
    etc: str = "/etc/dgxspark",
    unit_dir: str = "/etc/systemd/system",
) -> dict[str, Any]:
    """Gather everything in one pass. About eight programs are called, none of them twice.

    :param run: see C(Run)
    :param root: where C(/proc) and C(/sys) are
    :param disk_paths: whose file systems are measured
    :param etc: where the settings of services lie
    :param unit_dir: where units lie
    :returns: the C(spark) of the module spark_info. C(unknown) says which programs gave no answer: what they are
        asked for is then empty and means nothing
    """
    unknown: dict[str, str] = {}
    docker, containers = _look_at_docker(run, unknown)
    services = read_services(etc)
    managed_units = {f"spark-{name}.service" for name in services}
    gpu = noted(unknown, None, read_gpu, run, root, containers)
    if gpu:
        gpu["cuda_version"] = noted(unknown, None, read_cuda_version, run)
    dmi = read_dmi(root)
    dgx = parse_dgx_release(read_text(root, "etc/dgx-release") or "")
    pci = read_pci(root)
    return {
        "machine": {
            "is_spark": is_spark(
                gpu["name"] if gpu else None, pci.values(), dmi["product_family"], dgx["name"] if dgx else None
            ),
            **dmi,
        },
        "dgx_os": dgx,
        "os": parse_os_release(read_text(root, "etc/os-release") or ""),
        "kernel": read_text(root, "proc/sys/kernel/osrelease") or platform.release(),
        "architecture": platform.machine(),
        "gpu": gpu,
        "memory": read_memory(root),
        "fabric": noted(unknown, None, read_fabric, root, run, pci)
        or read_fabric(root, lambda _argv: (127, "", ""), pci),
        "management_address": management_address(),
        "docker": docker,
        "containers": containers,
        "services": services,
        "units": [
            {**unit, "managed": unit["name"] in managed_units} for unit in noted(unknown, [], read_units, run, unit_dir)
        ],
        "listening": read_listening(run, root, containers),
        "disks": read_disks(disk_paths),
        "resident": resident(gpu, containers),
        "unknown": unknown,
    }
