# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of a host: QSFP ports, addresses and the files that configure them, listening sockets.

The port map of NVIDIA's playbooks says which functions belong to which QSFP cage.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .machine import PCI_CONNECTX, names_in, number, pci_ids, read_cgroup, read_text, whole

# Function index of the ConnectX-7 -> cage. One cage is two PCIe functions (domains 0000 and 0002) with one netdev each.
CAGES = {0: "left (beside the RJ45 port)", 1: "right (outer)"}

IPV4_COMMAND = ["ip", "-json", "-4", "address", "show", "up"]
ROUTES_COMMAND = ["ip", "-4", "route", "show"]

_CX7_NAME = re.compile(r"en(?P<domain>P\d+)?p1s0f(?P<function>[01])np[01]\Z")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.(?P<function>[0-7])\Z")


def set_interface_commands(netdev: str, mtu: int | None, addresses: Iterable[str]) -> list[list[str]]:
    """Return the commands that replace the IPv4 addresses of an interface, and set its MTU unless it is None."""
    return [
        ["ip", "-4", "addr", "flush", "dev", netdev, "scope", "global"],
        *([["ip", "link", "set", "dev", netdev, "mtu", str(mtu)]] if mtu else []),
        *(["ip", "addr", "replace", address, "dev", netdev] for address in addresses),
    ]


def _json_items(text: str, key: str) -> list[dict[str, Any]]:
    """Return the entries with C(key) in the output of C(ip -j); [] for anything but JSON."""
    try:
        items = parse_json(text, "ip")
    except ValueError:
        return []
    return [item for item in items if isinstance(item, dict) and key in item] if isinstance(items, list) else []


def parse_ip_addr(text: str) -> dict[str, list[str]]:
    """Parse C(ip -j addr): C({netdev: [address/prefix]}); {} for anything that is not JSON.

    Global addresses, and addresses of 169.254/16: an example of NVIDIA puts them on the interfaces.
    """
    return {
        str(item["ifname"]): [
            f"{info['local']}/{info.get('prefixlen')}"
            for info in item.get("addr_info") or []
            if info.get("local") and (info.get("scope") == "global" or str(info["local"]).startswith("169.254."))
        ]
        for item in _json_items(text, "ifname")
    }


def parse_ip_neigh(text: str) -> dict[str, list[dict[str, str]]]:
    """Parse C(ip -j neigh): C({netdev: [{address, mac}]}), those that have answered."""
    neighbours: dict[str, list[dict[str, str]]] = {}
    for item in _json_items(text, "dev"):
        if item.get("lladdr") and not {"FAILED", "INCOMPLETE"} & set(item.get("state") or []):
            entry = {"address": str(item.get("dst")), "mac": str(item["lladdr"])}
            neighbours.setdefault(str(item["dev"]), []).append(entry)
    return neighbours


def parse_state(text: str | None) -> str | None:
    """C(4: ACTIVE) -> ACTIVE."""
    return text.split(":", 1)[-1].strip() or None if text else None


def parse_gid(text: str) -> str | None:
    """Return the address in a GID, mapped ones (C(0000:...:ffff:c0a8:640a)) as IPv4; None for an empty entry."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    if not int(address):
        return None
    return str(address.ipv4_mapped or address)


def read_gids(root: str, port: str) -> list[dict[str, Any]]:
    """Read the GID table of a port: C([{index, type, address}]), without empty entries.

    The index of an address may change: the table has holes, and entries move.
    """
    gids = []
    for index in sorted(int(name) for name in names_in(root, f"{port}/gids") if name.isdigit()):
        address = parse_gid(read_text(root, f"{port}/gids/{index}") or "")
        if address:
            kind = read_text(root, f"{port}/gid_attrs/types/{index}")
            gids.append({"index": index, "type": kind, "address": address})
    return gids


def read_rdma(root: str = "/") -> list[dict[str, Any]]:
    """Read /sys/class/infiniband: C([{name, netdev, state, physical_state, rate_gbps, gids}]), port 1 of each device.

    Only the state says whether a port is up: a port that is down may still claim C(LinkUp) physically. The hardware
    counters are not read, each of them is a trap into the card's firmware.
    """
    devices = []
    for name in names_in(root, "sys/class/infiniband"):
        port = f"sys/class/infiniband/{name}/ports/1"
        netdev = read_text(root, f"{port}/gid_attrs/ndevs/0")
        if not netdev:
            beneath = names_in(root, f"sys/class/infiniband/{name}/device/net")
            netdev = beneath[0] if beneath else None
        devices.append(
            {
                "name": name,
                "netdev": netdev,
                "state": parse_state(read_text(root, f"{port}/state")),
                "physical_state": parse_state(read_text(root, f"{port}/phys_state")),
                "rate_gbps": number(read_text(root, f"{port}/rate")),  # 200 Gb/sec (2X NDR)
                "gids": read_gids(root, port),
            }
        )
    return devices


def _pci_of_netdev(root: str, netdev: str) -> str | None:
    """Find the PCI address of a netdev: its device link, the slot name in uevent, then its name (enP2p1s0f0np0 is 0002:01:00.0)."""
    device = f"sys/class/net/{netdev}/device"
    real = Path(os.path.realpath(Path(root, device))).name
    if _PCI_ADDRESS.match(real):
        return real
    slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", read_text(root, f"{device}/uevent") or "", re.MULTILINE)
    if slot:
        return slot.group(1).lower()
    match = _CX7_NAME.match(netdev)
    return f"{int((match['domain'] or 'P0')[1:]):04x}:01:00.{match['function']}" if match else None


def _link(root: str, paths: list[str]) -> dict[str, Any]:
    """Read the PCIe link of the first of C(paths) that has one: C({link_speed_gts, link_width})."""
    for path in paths:
        speed, width = read_text(root, f"{path}/current_link_speed"), read_text(root, f"{path}/current_link_width")
        if speed or width:
            return {"link_speed_gts": number(speed), "link_width": whole(width)}
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
    """Return the interfaces that a file names; C(match) stands for interfaces that it selects by other properties."""
    if reader == "networkmanager":
        return set(re.findall(r"^interface-name=(\S+)$", text, re.MULTILINE))
    if reader == "networkd":
        return {name for line in re.findall(r"^Name=(.+)$", text, re.MULTILINE) for name in line.split()}
    plain = re.sub(r"(^|\s)#.*", "", text)
    # NetworkManager writes a match by the plain name of one interface into the files that netplan keeps for it.
    plain = re.sub(
        r"\bmatch:\s*(?:\n\s*name:\s*[\"']?\w+[\"']?\s*(?=\n|$)|\{\s*name:\s*[\"']?\w+[\"']?\s*\})",
        lambda match: match.group()[6:],
        plain,
    )
    return set(_INTERFACE.findall(plain)) | set(re.findall(r"\bmatch(?=:)", plain))


def read_stored(config_root: str, netdevs: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Find where each netdev's network is written down: C({netdev: [{path, reader, persistent, alone, managed}]}).

    alone: the file configures nothing but C(netdevs). Profiles that NetworkManager was given by netplan are left out.
    """
    netdev_names = set(netdevs)
    stored: dict[str, list[dict[str, Any]]] = {name: [] for name in netdev_names}
    for folder, suffix, reader, persistent in NETWORK_FILES:
        for name in names_in(config_root, folder):
            if not name.endswith(suffix) or (reader == "networkmanager" and name.startswith("netplan-")):
                continue
            text = read_text(config_root, f"{folder}/{name}") or ""
            interfaces = _interfaces(reader, text)
            for netdev in sorted(netdev_names & interfaces):
                stored[netdev].append(
                    {
                        "path": f"/{folder}/{name}",
                        "reader": reader,
                        "persistent": persistent,
                        "alone": interfaces <= netdev_names,
                        "managed": MANAGED_MARK in text.split("\n", maxsplit=1)[0],
                    }
                )
    return stored


def read_netdev(root: str, netdev: str, addresses: dict[str, list[str]], rdma: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe one ConnectX-7 netdev.

    :returns: C({name, pci, function, up, speed_mbps, mtu, mac, master, addresses, link_speed_gts, link_width,
        rdma: {name, state, physical_state, rate_gbps, gids} or None})
    """
    base = f"sys/class/net/{netdev}"
    pci = _pci_of_netdev(root, netdev)
    speed = whole(read_text(root, f"{base}/speed"))
    master = Path(root, base, "master")  # the bond or bridge that it belongs to
    paths = [f"{base}/device"] + ([f"sys/bus/pci/devices/{pci}"] if pci else [])
    # Its PCI address tells the cage, or else its name: in enP2p1s0f1np1 it is f1 that decides, not np1.
    cage = _PCI_ADDRESS.match(pci or "") or _CX7_NAME.match(netdev)
    return {
        "name": netdev,
        "pci": pci,
        "function": int(cage["function"]) if cage else None,
        "up": read_text(root, f"{base}/operstate") == "up",
        "speed_mbps": speed if speed and speed > 0 else None,  # -1 when the link is down
        "mtu": whole(read_text(root, f"{base}/mtu")),
        "mac": read_text(root, f"{base}/address"),
        "master": Path(os.path.realpath(master)).name if master.exists() else None,
        "addresses": addresses.get(netdev, []),
        **_link(root, paths),
        "rdma": _rdma_device(netdev, rdma),
    }


def _rdma_device(netdev: str, rdma: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the RDMA device of a netdev, by its name if the kernel does not tell the netdev."""
    rdma_name = "roce" + re.sub(r"np\d+\Z", "", netdev.removeprefix("en"))  # by rule: enP2p1s0f0np0 has roceP2p1s0f0
    named = [entry for entry in rdma if entry["netdev"] == netdev]
    named += [entry for entry in rdma if entry["netdev"] is None and entry["name"] == rdma_name]
    return {key: value for key, value in named[0].items() if key != "netdev"} if named else None


def group_ports(netdevs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put interfaces together: one port per cage, C([{cage, position, up, mtu, rate_gbps, netdevs: [...]}]).

    Interfaces share the function index. up: all netdevs of the cage are. mtu: theirs, None when they differ (one interface back
    at 1500 after a firmware update is a known fault). rate_gbps: the link's, as RoCE reports it.
    """
    ports = []
    for function in sorted({netdev["function"] for netdev in netdevs if netdev["function"] is not None}):
        of_cage = [netdev for netdev in netdevs if netdev["function"] == function]
        interfaces = sorted(of_cage, key=lambda interface: interface["pci"] or "")
        mtus = {interface["mtu"] for interface in interfaces}
        rates = [(interface["rdma"] or {}).get("rate_gbps") or 0.0 for interface in interfaces]
        ports.append(
            {
                "cage": function,
                "position": CAGES.get(function),
                "up": all(interface["up"] for interface in interfaces),
                "mtu": mtus.pop() if len(mtus) == 1 else None,
                "rate_gbps": max(rates) or None,
                "netdevs": interfaces,
            }
        )
    return ports


def connectx_names(root: str) -> list[str]:
    """Return the names of the netdevs of a ConnectX-7."""
    ids = {name: pci_ids(root, f"sys/class/net/{name}/device") for name in names_in(root, "sys/class/net")}
    return [name for name in ids if (ids[name] == PCI_CONNECTX if ids[name] else _CX7_NAME.match(name))]


def describe_fabric(
    root: str, pci: dict[str, tuple[str, str]], addresses_text: str, neighbours_text: str, config_root: str = "/"
) -> dict[str, Any]:
    """Describe the QSFP side. Without a cable the card is powered off, so a missing ConnectX-7 is no fault by itself.

    :param config_root: where /etc and /run of the host itself are found
    :returns: C({connectx, pci_functions, ports, networks, mtus, relay}). networks: addresses of all other interfaces, by name; mtus: their
        MTUs. relay: whether the role fabric made this host pass on the packets of others.
        Each netdev also has C(neighbours), the hosts that answered on it, and C(stored), the files that configure its network
    """
    netdev_names = connectx_names(root)
    rdma = read_rdma(root)
    addresses = parse_ip_addr(addresses_text)
    mtus = {str(item["ifname"]): item.get("mtu") for item in _json_items(addresses_text, "ifname")}
    neighbours = parse_ip_neigh(neighbours_text)
    stored = read_stored(config_root, netdev_names)
    netdevs = []
    for name in netdev_names:
        found = {"neighbours": neighbours.get(name, []), "stored": stored[name]}
        netdevs.append({**read_netdev(root, name, addresses, rdma), **found})
    functions = {address for address, ids in pci.items() if ids == PCI_CONNECTX}
    functions |= {netdev["pci"] for netdev in netdevs if netdev["pci"]}
    networks = {name: cidrs for name, cidrs in addresses.items() if cidrs and name not in (*netdev_names, "lo")}
    return {
        "connectx": bool(functions or netdevs),
        "pci_functions": sorted(functions),
        "ports": group_ports(netdevs),
        "networks": networks,
        "mtus": {name: mtu for name, mtu in mtus.items() if name in networks and type(mtu) is int},
        "relay": Path(config_root, RELAY_UNIT).exists(),
    }


# --- listening sockets ---------------------------------------------------------------------------------------------


def parse_ss(text: str) -> list[dict[str, Any]]:
    """Parse C(ss -H -tlnp): C([{address, port, process, pid}]); process and pid are None for processes that ss may not see."""
    sockets = []
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5 or fields[0] != "LISTEN":
            continue
        address, _sep, port = fields[3].rpartition(":")
        if not port.isdigit():
            continue
        plain = address.strip("[]").split("%", 1)[0]  # [::], 127.0.0.53%lo
        users = re.search(r'\("([^"]*)",pid=(\d+)', fields[5] if len(fields) > 5 else "")
        sockets.append(
            {
                "address": "::" if plain == "*" else plain,  # * is both families
                "port": int(port),
                "process": users.group(1) if users else None,
                "pid": int(users.group(2)) if users else None,
            }
        )
    return sockets


def parse_proc_tcp(text: str) -> list[dict[str, Any]]:
    """Parse /proc/net/tcp or tcp6 like C(parse_ss), without processes: for hosts that have no ss."""
    sockets = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 4 or fields[3] != "0A":  # TCP_LISTEN
            continue
        raw, _sep, port = fields[1].partition(":")
        # An address is words of 32 bits in the byte order of the host (little-endian on every Spark).
        words = b"".join(bytes.fromhex(raw[start : start + 8])[::-1] for start in range(0, len(raw), 8))
        address = str(ipaddress.ip_address(words))
        sockets.append({"address": address, "port": int(port, 16), "process": None, "pid": None})
    return sockets


def describe_listening(
    sockets: list[dict[str, Any]], root: str, containers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """List listening TCP sockets by port and address, each once, with unit and container by the cgroup of the process.

    :param containers: of C(docker_facts.parse_containers); a published port belongs to the container, not to docker-proxy
    :returns: C([{address, port, process, pid, unit, container}])
    """
    names = {container["id"]: container["name"] for container in containers}
    running = [container for container in containers if container["state"] == "running"]
    published = {port: container["name"] for container in running for port in container["ports"]}
    listening: dict[tuple[int, str], dict[str, Any]] = {}
    for entry in sockets:
        owner = read_cgroup(entry["pid"], root, names) if entry["pid"] else {"container": None, "unit": None}
        container = names.get(owner["container"] or "")
        if container is None and entry["process"] in (None, "docker-proxy"):
            container = published.get(entry["port"])
        described = {**entry, "unit": owner["unit"], "container": container}
        listening.setdefault((entry["port"], entry["address"]), described)
    return [listening[key] for key in sorted(listening)]
