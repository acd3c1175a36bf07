"""What a GB10 shows under /proc, /sys and /etc, in the form of captures from real machines."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

DRIVER = "580.159.03"
CUDA = "13.0"
KERNEL = "6.17.0-1014-nvidia"
LINK_UP_RATE = ("4: ACTIVE", "5: LinkUp", "200 Gb/sec (2X NDR)")
LINK_DOWN_RATE = ("1: DOWN", "3: Disabled", "40 Gb/sec (4X QDR)")

# netdev, RoCE device, PCI domain and function. Cage 0 (f0) holds the cable, cage 1 (f1) is empty.
QSFP: tuple[tuple[str, str, str, int], ...] = (
    ("enp1s0f0np0", "rocep1s0f0", "0000", 0),
    ("enp1s0f1np1", "rocep1s0f1", "0000", 1),
    ("enP2p1s0f0np0", "roceP2p1s0f0", "0002", 0),
    ("enP2p1s0f1np1", "roceP2p1s0f1", "0002", 1),
)

OS_RELEASE = """PRETTY_NAME="Ubuntu 24.04.4 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.4 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
LOGO=ubuntu-logo
"""

CPU_FEATURES = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4 "
    "asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 "
    "flagm2 frint svei8mm svebf16 i8mm bf16 dgh bti ecv afp wfxt"
)

DMI = {
    "sys_vendor": "NVIDIA",
    "product_name": "NVIDIA_DGX_Spark",
    "product_family": "DGX Spark",
    "product_version": "A.7",
    "product_sku": "Default string",
    "board_vendor": "NVIDIA",
    "board_name": "P4242",
    "bios_vendor": "AMI",
    "bios_version": "5.36_0ACUM027",
    "bios_date": "06/12/2026",
    "chassis_type": "17",
    "chassis_vendor": "NVIDIA",
}


def fingerprint(settings: dict[str, Any], label: str, digits: int) -> str:
    """Stable made-up hexadecimal digits of this node."""
    return hashlib.sha256(f"{settings['hostname']} {label}".encode()).hexdigest()[:digits]


def gpu_uuid(settings: dict[str, Any]) -> str:
    text = fingerprint(settings, "gpu", 32)
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def cpuinfo() -> str:
    blocks = []
    for cpu in range(20):
        big = cpu % 10 >= 5  # Cortex-X925 are 5-9 and 15-19
        blocks.append(
            f"processor\t: {cpu}\nBogoMIPS\t: 2000.00\nFeatures\t: {CPU_FEATURES}\nCPU implementer\t: 0x41\n"
            f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {'0xd85' if big else '0xd87'}\nCPU revision\t: 1\n\n"
        )
    return "".join(blocks)


def meminfo(total: int, free: int, available: int, cache: int) -> str:
    """All in bytes; the kernel prints kB."""
    values = {
        "MemTotal": total,
        "MemFree": free,
        "MemAvailable": available,
        "Buffers": min(cache, 77328 << 10),
        "Cached": cache,
        "SwapCached": 0,
        "Shmem": 164 << 20,
        "SReclaimable": 231480 << 10,
        "SwapTotal": 16777212 << 10,
        "SwapFree": 16777212 << 10,
        "CmaTotal": 131072 << 10,
        "CmaFree": 96 << 20,
    }
    text = "".join(f"{name + ':':<16}{value >> 10:>8} kB\n" for name, value in values.items())
    return text + "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"


def device_path(domain: str, function: int) -> str:
    return f"sys/devices/pci{domain}:00/{domain}:00:00.0/{domain}:01:00.{function}"


def static_files(settings: dict[str, Any]) -> dict[str, str]:
    """Files that do not change while the node runs."""
    files = {
        "proc/cpuinfo": cpuinfo(),
        "proc/version": f"Linux version {KERNEL} (simulated) #14-Ubuntu SMP PREEMPT_DYNAMIC\n",
        "proc/sys/kernel/osrelease": f"{KERNEL}\n",
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {DRIVER}  Release Build\n",
        "etc/dgx-release": Path("/etc/dgx-release").read_text(),
        "etc/os-release": OS_RELEASE,
        "etc/hostname": f"{settings['hostname']}\n",
        "etc/fastos-release": 'NAME="DGX SPARK FASTOS"\nVERSION="1.91.51"\nBUILD_TYPE="customer"\n',
    }
    files.update({f"sys/class/dmi/id/{name}": value + "\n" for name, value in DMI.items()})
    guid = fingerprint(settings, "guid", 10)
    for netdev, roce, domain, function in QSFP:
        path = device_path(domain, function)
        index = int(domain[-1]) + function
        files.update(
            {
                f"{path}/vendor": "0x15b3\n",
                f"{path}/device": "0x1021\n",
                f"{path}/class": "0x020000\n",
                f"{path}/numa_node": "-1\n",
                f"{path}/current_link_speed": "32.0 GT/s PCIe\n",
                f"{path}/current_link_width": "4\n",
                f"{path}/max_link_speed": "32.0 GT/s PCIe\n",
                f"{path}/max_link_width": "16\n",
                f"{path}/net/{netdev}/type": "1\n",
                f"{path}/net/{netdev}/dev_port": "0\n",
                f"{path}/net/{netdev}/phys_port_name": f"p{function}\n",
                f"{path}/net/{netdev}/phys_switch_id": f"{guid[:6]}0003{guid[6:]}{function:02x}\n",
                f"{path}/infiniband/{roce}/fw_ver": "28.45.4028\n",
                f"{path}/infiniband/{roce}/hca_type": "MT4129\n",
                f"{path}/infiniband/{roce}/hw_rev": "0\n",
                f"{path}/infiniband/{roce}/board_id": "NVD0000000087\n",
                f"{path}/infiniband/{roce}/node_type": "1: CA\n",
                f"{path}/infiniband/{roce}/node_guid": f"fc4c:ea03:00{guid[:2]}:{guid[2:5]}{index}\n",
                f"{path}/infiniband/{roce}/sys_image_guid": f"fc4c:ea03:00{guid[:2]}:{guid[2:5]}0\n",
                f"{path}/infiniband/{roce}/ports/1/link_layer": "Ethernet\n",
                f"{path}/infiniband/{roce}/ports/1/lid": "0x0\n",
                f"{path}/infiniband/{roce}/ports/1/cap_mask": "0x00010000\n",
                f"{path}/infiniband/{roce}/ports/1/counters/port_rcv_data": "0\n",
                f"{path}/infiniband/{roce}/ports/1/counters/port_xmit_data": "0\n",
            }
        )
    return files


def static_links(settings: dict[str, Any]) -> dict[str, str]:
    """Symbolic links of sysfs: name to (relative) target."""
    links = {}
    for netdev, roce, domain, function in QSFP:
        path = device_path(domain, function)
        links[f"sys/class/net/{netdev}"] = f"../../../{path}/net/{netdev}"
        links[f"sys/class/infiniband/{roce}"] = f"../../../{path}/infiniband/{roce}"
        links[f"sys/bus/pci/devices/{domain}:01:00.{function}"] = f"../../../../{path}"
        links[f"{path}/net/{netdev}/device"] = f"../../../{domain}:01:00.{function}"
        links[f"{path}/infiniband/{roce}/device"] = f"../../../{domain}:01:00.{function}"
    return links


def read(path: str, default: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return default


def interface(settings: dict[str, Any], name: str, speed: int) -> dict[str, str]:
    """State of an interface: of the real one with this name, or an unplugged one."""
    base = f"/sys/class/net/{name}"
    present = Path(base).is_dir()
    up = read(f"{base}/operstate", "down").strip() == "up"
    mac = fingerprint(settings, name, 6)
    return {
        "operstate": "up\n" if up else "down\n",
        "carrier": "1\n" if up else "0\n",
        "mtu": read(f"{base}/mtu", "1500\n") if present else "1500\n",
        "address": read(f"{base}/address", f"4c:bb:47:{mac[:2]}:{mac[2:4]}:{mac[4:]}\n"),
        "speed": f"{speed if up else -1}\n",
        "flags": read(f"{base}/flags", "0x1002\n"),
    }


def ipv4_addresses() -> dict[str, list[str]]:
    """The IPv4 addresses of the real interfaces."""
    done = subprocess.run(["ip", "-json", "-4", "address", "show"], capture_output=True, text=True, check=False)
    links = json.loads(done.stdout or "[]")
    return {link["ifname"]: [info["local"] for info in link["addr_info"]] for link in links if "ifname" in link}


def ipv4_as_gid(address: str) -> str:
    numbers = [int(part) for part in address.split(".")]
    return f"0000:0000:0000:0000:0000:ffff:{numbers[0]:02x}{numbers[1]:02x}:{numbers[2]:02x}{numbers[3]:02x}"


def live_files(settings: dict[str, Any]) -> dict[str, str]:
    """Files that follow the interfaces of the node."""
    files = {}
    addresses = ipv4_addresses()
    for name, text in interface(settings, "enP7s7", 10000).items():
        files[f"sys/class/net/enP7s7/{name}"] = text
    for netdev, roce, domain, function in QSFP:
        path = device_path(domain, function)
        state = interface(settings, netdev, 200000)
        for name, text in state.items():
            files[f"{path}/net/{netdev}/{name}"] = text
        port = f"{path}/infiniband/{roce}/ports/1"
        up = state["operstate"] == "up\n"
        rates = LINK_UP_RATE if up else LINK_DOWN_RATE
        for name, text in zip(("state", "phys_state", "rate"), rates):
            files[f"{port}/{name}"] = text + "\n"
        mac = [int(part, 16) for part in state["address"].strip().split(":")]
        local = (
            f"fe80:0000:0000:0000:{mac[0] ^ 2:02x}{mac[1]:02x}:{mac[2]:02x}ff:fe{mac[3]:02x}:{mac[4]:02x}{mac[5]:02x}"
        )
        gids = [local, local]
        for address in addresses.get(netdev, []) if up else []:
            gids += [ipv4_as_gid(address)] * 2
        gids += ["0000:0000:0000:0000:0000:0000:0000:0000"] * (8 - len(gids))
        for index, gid in enumerate(gids):
            files[f"{port}/gids/{index}"] = gid + "\n"
            files[f"{port}/gid_attrs/types/{index}"] = "RoCE v2\n" if index % 2 else "IB/RoCE v1\n"
            files[f"{port}/gid_attrs/ndevs/{index}"] = f"{netdev}\n"
    return files
