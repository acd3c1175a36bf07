from __future__ import annotations

import shutil
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    docker_facts,
    host_facts,
    machine,
    network,
    nvidia_smi,
    units,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import hostmem
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer

ID_1, ID_2, OUTER = "1" * 64, "2" * 64, "f" * 64
GPU_LINE = "0, NVIDIA GB10, GPU-4e847c30-3500-f40c-2152-17cc7b272fd4, 580.173.02, 12.1, 55, 13.46, 2405, 0\n"
TABLE = "| NVIDIA-SMI 580.82.09              Driver Version: 580.82.09      CUDA Version: 13.0     |\n"


def collect(run: Any, place: Any) -> dict[str, Any]:
    """Return all facts of a host whose files lie below a folder."""
    view = HostView(run, str(place), settings=str(place), unit_dir=str(place))
    return host_facts.collect(view)


GX10_RELEASE = """DGX_NAME="DGX Spark"
DGX_SWBUILD_VERSION="7.2.3"
DGX_COMMIT_ID="03dc741"
DGX_PLATFORM="GX10"

DGX_OTA_VERSION="7.3.1"
DGX_OTA_DATE="lun. 1 déc. 2025 09:00:00 CET"

DGX_OTA_VERSION="7.6.0"
DGX_OTA_DATE="mer. 16 sept. 2026 17:08:05 CEST"
"""
HP_RELEASE = (
    "DGX_NAME=DGX Spark\nDGX_SWBUILD_VERSION=7.2.3\nDGX_PLATFORM=HP ZGX Nano G1n AI Station\nDGX_OTA_VERSION=7.5.0\n"
)
REFLASHED = 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.5.0"\nDGX_SERIAL_NUMBER="Not Specified"\n'


# --- release files, machine


def test_founders_edition_release(tree: Any) -> None:
    dgx_release = machine.parse_dgx_release(machine.read_text(str(tree), "etc/dgx-release") or "")
    assert dgx_release == {
        "name": "DGX Spark",
        "platform": "DGX Server for KVM",
        "version": "7.5.0",
        "image_version": "7.2.3",
        "ota_version": "7.5.0",
        "commit": "833b4a7",
    }


@pytest.mark.parametrize(
    ("text", "platform", "version"),
    [
        (GX10_RELEASE, "GX10", "7.6.0"),  # updates append their blocks: the last one counts
        (HP_RELEASE, "HP ZGX Nano G1n AI Station", "7.5.0"),  # nothing is quoted
        (REFLASHED, None, "7.5.0"),  # no update since the image
    ],
)
def test_releases_of_other_makers(text: str, platform: str | None, version: str) -> None:
    dgx_release = machine.parse_dgx_release(text)
    assert dgx_release is not None
    assert (dgx_release["name"], dgx_release["platform"], dgx_release["version"]) == ("DGX Spark", platform, version)


def test_no_release_file_is_no_release() -> None:
    assert machine.parse_dgx_release("") is None
    assert machine.parse_os_release("") is None


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("NVIDIA", "nvidia"),
        ("ASUSTeK COMPUTER INC.", "asus"),
        ("HP", "hp"),
        ("LENOVO", "lenovo"),
        ("Dell  Inc.", "dell"),
        ("Micro-Star International Co., Ltd.", "msi"),
        ("Giga-Byte Technology", "gigabyte"),
        ("Acer", "acer"),
        ("QEMU", None),
        (None, None),
    ],
)
def test_vendors(text: str | None, vendor: str | None) -> None:
    assert machine.vendor_of(text) == vendor


@pytest.mark.parametrize(
    ("gpu", "pci", "family", "dgx", "expected"),
    [
        ("NVIDIA GB10", [], None, None, True),
        (None, [("10de", "2e12")], None, None, True),
        (None, [], "DGX_Spark", None, True),
        (None, [], None, "DGX Spark", True),
        ("NVIDIA L40S", [("10de", "26b9")], "PowerEdge", "DGX Server", False),
        (None, [], None, None, False),
    ],
)
def test_any_one_sign_makes_a_spark(gpu: Any, pci: Any, family: Any, dgx: Any, expected: bool) -> None:
    assert machine.is_spark(gpu, pci, family, dgx) is expected


def test_lenovo_is_a_spark_although_its_product_is_a_part_number(tree: Any, fake_run: Any) -> None:
    (tree.root / "etc/dgx-release").unlink()
    tree.dmi(
        sys_vendor="LENOVO", product_name="30KL0004FC", product_version="ThinkStation PGX", product_family="DGX Spark"
    )
    machine = collect(fake_run, tree)["machine"]
    assert machine["is_spark"] is True
    assert (machine["vendor"], machine["product_name"]) == ("lenovo", "30KL0004FC")


# --- GPU


def test_gpu_line_of_a_capture() -> None:
    (gpu,) = nvidia_smi.parse_gpu_query(GPU_LINE)
    assert gpu["name"] == "NVIDIA GB10" and gpu["compute_capability"] == "12.1"
    assert gpu["driver_version"] == "580.173.02" and gpu["power_w"] == 13.46 and gpu["sm_clock_mhz"] == 2405


def test_what_is_not_available_is_none() -> None:
    (gpu,) = nvidia_smi.parse_gpu_query(
        "0, NVIDIA GB10, [N/A], 580.82.09, 12.1, [Not Supported], [N/A], [Unknown Error], [N/A]"
    )
    assert [gpu[name] for name in ("uuid", "temperature_c", "power_w", "sm_clock_mhz", "utilization_percent")] == [
        None
    ] * 5


def test_no_devices(fake_run: Any) -> None:
    fake_run.on("nvidia-smi", "No devices were found\n", rc=6)
    assert HostView(fake_run).gpu([]) is None
    assert nvidia_smi.parse_gpu_query("No devices were found\n") == []


def test_a_gpu_that_nvidia_smi_cannot_say_is_not_called_none(fake_run: Any) -> None:
    fake_run.on("nvidia-smi", "", rc=9, err="couldn't communicate with the NVIDIA driver\n")
    assert HostView(fake_run).gpu([]) is None
    fake_run.on("nvidia-smi", "Unable to determine the device handle: GPU is lost\n", rc=15)
    with pytest.raises(NoAnswer, match="GPU is lost"):
        HostView(fake_run).gpu([])


def test_gpu_with_processes_and_their_containers(tree: Any, fake_run: Any) -> None:
    fake_run.on("nvidia-smi --query-gpu", GPU_LINE).on(
        "nvidia-smi --query-compute-apps", "77, VLLM::EngineCore, 31958\n"
    )
    fake_run.on("nvidia-smi", TABLE)
    tree.write("proc/77/cgroup", f"0::/system.slice/docker-{ID_1}.scope\n")
    containers = [{"id": ID_1, "name": "spark-heavy", "managed": True, "service": "heavy", "state": "running"}]
    gpu = HostView(fake_run, str(tree)).gpu(containers)
    assert gpu is not None and HostView(fake_run).cuda_version() == "13.0"
    assert collect(fake_run, tree)["gpu"]["cuda_version"] == "13.0"
    assert gpu["processes"] == [{"pid": 77, "name": "VLLM::EngineCore", "used_mib": 31958, "container": "spark-heavy"}]
    assert nvidia_smi.resident(gpu, containers) == [{"name": "heavy", "gib": 31.209}]


def test_resident_counts_running_containers_of_ours_only() -> None:
    containers = [
        {"id": ID_1, "name": "spark-a", "managed": True, "service": "a", "state": "running"},
        {"id": ID_2, "name": "spark-b", "managed": True, "service": "b", "state": "exited"},
        {"id": OUTER, "name": "other", "managed": False, "service": None, "state": "running"},
    ]
    processes = [
        {"pid": 1, "used_mib": 1024, "container": "spark-a"},
        {"pid": 2, "used_mib": 512, "container": "spark-a"},
        {"pid": 3, "used_mib": None, "container": "spark-a"},
        {"pid": 4, "used_mib": 4096, "container": "other"},
        {"pid": 5, "used_mib": 4096, "container": None},
    ]
    assert nvidia_smi.resident({"processes": processes}, containers) == [{"name": "a", "gib": 1.5}]
    assert nvidia_smi.resident(None, containers) == [{"name": "a", "gib": 0.0}]
    ray = [{**containers[0], "name": "spark-a-ray"}, containers[0]]
    processes.append({"pid": 6, "used_mib": 1024, "container": "spark-a-ray"})
    assert nvidia_smi.resident({"processes": processes}, ray) == [{"name": "a", "gib": 2.5}]


@pytest.mark.parametrize(
    ("text", "present", "container", "unit"),
    [
        (f"12:memory:/docker/{ID_1}\n1:name=systemd:/docker/{ID_1}\n", (), ID_1, None),
        (f"0::/system.slice/docker-{ID_1}.scope\n", (), ID_1, None),
        (f"0::/docker/{OUTER}/docker/{ID_1}\n", (ID_1,), ID_1, None),
        (f"0::/docker/{OUTER}/system.slice/spark-heavy.service\n", (ID_1,), None, "spark-heavy.service"),
        ("0::/system.slice/ssh.service\n", (), None, "ssh.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service/x\n", (), None, "getty@tty1.service"),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", (), None, None),
        ("", (), None, None),
    ],
)
def test_cgroups(text: str, present: tuple[str, ...], container: str | None, unit: str | None) -> None:
    assert machine.parse_cgroup(text, present) == {"container": container, "unit": unit}


# --- fabric


def fabric(tree: Any, fake_run: Any) -> dict[str, Any]:
    return HostView(fake_run, str(tree)).fabric()


def test_no_connectx_is_no_failure(tree: Any, fake_run: Any) -> None:
    tree.write("sys/class/net/enP7s7/operstate", "up\n")
    tree.write("sys/class/net/enP7s7/device/vendor", "0x10ec\n")
    tree.write("sys/class/net/enP7s7/device/device", "0x8127\n")
    assert fabric(tree, fake_run) == {
        "connectx": False,
        "pci_functions": [],
        "ports": [],
        "networks": {},
        "mtus": {},
        "relay": False,
    }
    assert fake_run.calls == []


def test_a_relay_that_the_role_has_installed_is_seen(tree: Any, fake_run: Any) -> None:
    assert not fabric(tree, fake_run)["relay"]
    tree.write("etc/systemd/system/dgxspark-fabric-relay.service", "[Service]\n")
    assert HostView(fake_run, str(tree), config_root=str(tree)).fabric()["relay"]


def test_one_cable_is_two_twins(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    addresses = (
        '[{"ifname": "enp1s0f0np0", "addr_info": [{"local": "192.168.100.10", "prefixlen": 24, "scope": "global"},'
        '{"local": "fe80::1", "prefixlen": 64, "scope": "link"}]},'
        '{"ifname": "enP7s7", "mtu": 1500, "addr_info": [{"local": "192.168.1.5", "prefixlen": 24, "scope": "global"}]},'
        '{"ifname": "lo", "addr_info": [{"local": "10.0.0.1", "prefixlen": 32, "scope": "global"}]}]'
    )
    result = fabric(tree, fake_run.on("ip -j addr", addresses))
    assert result["connectx"] is True
    assert result["pci_functions"] == ["0000:01:00.0", "0000:01:00.1", "0002:01:00.0", "0002:01:00.1"]
    remaining, right = result["ports"]
    assert (remaining["cage"], remaining["up"], remaining["mtu"], remaining["rate_gbps"]) == (0, True, 9000, 200.0)
    assert [interface["name"] for interface in remaining["netdevs"]] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert remaining["netdevs"][0] == {
        "name": "enp1s0f0np0",
        "pci": "0000:01:00.0",
        "function": 0,
        "up": True,
        "speed_mbps": 200000,
        "mtu": 9000,
        "mac": "3c:6d:66:cc:b3:b7",
        "master": None,
        "addresses": ["192.168.100.10/24"],
        "link_speed_gts": 32.0,
        "link_width": 4,
        "rdma": {
            "name": "rocep1s0f0",
            "state": "ACTIVE",
            "physical_state": "LinkUp",
            "rate_gbps": 200.0,
            "gids": [],
        },
        "neighbours": [],
        "stored": [],
    }
    assert (result["networks"], result["mtus"]) == ({"enP7s7": ["192.168.1.5/24"]}, {"enP7s7": 1500})
    assert (right["cage"], right["up"], right["rate_gbps"]) == (1, False, 40.0)
    # A port that is down may still claim LinkUp: the state is what counts.
    assert right["netdevs"][0]["rdma"]["state"] == "DOWN" and right["netdevs"][0]["speed_mbps"] is None


def test_mtu_that_differs_between_twins_is_no_mtu(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    tree.write("sys/class/net/enP2p1s0f0np0/mtu", "1500\n")
    ports = fabric(tree, fake_run)["ports"][0]
    assert ports["mtu"] is None and [interface["mtu"] for interface in ports["netdevs"]] == [9000, 1500]


def test_narrow_link_and_missing_rdma(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    tree.write("sys/class/net/enP2p1s0f0np0/device/current_link_width", "2\n")
    shutil.rmtree(tree.root / "sys/class/infiniband")
    interface = fabric(tree, fake_run)["ports"][0]["netdevs"][1]
    assert interface["link_width"] == 2 and interface["rdma"] is None


def test_rdma_devices_without_a_netdev_entry_are_matched_by_rule(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    for path in tree.root.glob("sys/devices/*/*/infiniband/*/ports/1/gid_attrs/ndevs/0"):
        path.unlink()
    assert [interface["rdma"]["name"] for interface in fabric(tree, fake_run)["ports"][1]["netdevs"]] == [
        "rocep1s0f1",
        "roceP2p1s0f1",
    ]


def test_netdev_known_by_name_only(tree: Any, fake_run: Any) -> None:
    tree.write("sys/class/net/enP2p1s0f1np1/operstate", "up\n")
    result = fabric(tree, fake_run)
    assert result["pci_functions"] == ["0002:01:00.1"]
    assert result["ports"][0]["cage"] == 1 and result["ports"][0]["netdevs"][0]["mtu"] is None


def test_output_of_ip_that_is_not_json() -> None:
    assert network.parse_ip_addr("") == {}
    assert network.parse_ip_addr("[{}, 5]") == {}
    assert network.parse_ip_neigh('Object "neigh" is unknown') == {}


def test_link_local_addresses_count_as_addresses_of_a_twin() -> None:
    text = '[{"ifname": "enp1s0f0np0", "addr_info": [{"local": "169.254.7.1", "prefixlen": 16, "scope": "link"}]}]'
    assert network.parse_ip_addr(text) == {"enp1s0f0np0": ["169.254.7.1/16"]}


def test_neighbours_are_those_that_answered(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    neighbours = (
        '[{"dst": "192.168.100.11", "dev": "enp1s0f0np0", "lladdr": "3c:6d:66:cc:aa:01", "state": ["STALE"]},'
        '{"dst": "192.168.100.12", "dev": "enp1s0f0np0", "state": ["FAILED"]},'
        '{"dst": "192.168.100.13", "dev": "enp1s0f0np0", "lladdr": "3c:6d:66:cc:aa:02", "state": ["FAILED"]},'
        '{"dst": "192.168.1.1", "dev": "enP7s7", "lladdr": "3c:6d:66:cc:aa:03", "state": ["REACHABLE"]}]'
    )
    ports = fabric(tree, fake_run.on("ip -j neigh", neighbours))["ports"][0]
    assert ports["netdevs"][0]["neighbours"] == [{"address": "192.168.100.11", "mac": "3c:6d:66:cc:aa:01"}]
    assert ports["netdevs"][1]["neighbours"] == []


V4_GID = "0000:0000:0000:0000:0000:ffff:c0a8:640a"


@pytest.mark.parametrize(
    ("gid", "address"),
    [
        (V4_GID, "192.168.100.10"),
        ("fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7", "fe80::3e6d:66ff:fecc:b3b7"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", None),
        ("", None),
    ],
)
def test_gids(gid: str, address: str | None) -> None:
    assert network.parse_gid(gid) == address


def test_hole_in_the_table_of_gids(tree: Any, fake_run: Any) -> None:
    """The RoCE v2 entry of an address is at 3 usually; with a hole there it is at 4, and comes after 10 in no order."""
    tree.qsfp()
    link_local, empty = "fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7", "0000:0000:0000:0000:0000:0000:0000:0000"
    for index, gid in enumerate([link_local, link_local, V4_GID, empty, V4_GID, *[empty] * 6]):
        port = "sys/class/infiniband/rocep1s0f0/ports/1"
        tree.write(f"{port}/gids/{index}", gid + "\n")
        tree.write(f"{port}/gid_attrs/types/{index}", "IB/RoCE v1\n" if index in (0, 2) else "RoCE v2\n")
    gids = fabric(tree, fake_run)["ports"][0]["netdevs"][0]["rdma"]["gids"]
    assert [(entry["index"], entry["type"], entry["address"]) for entry in gids][2:] == [
        (2, "IB/RoCE v1", "192.168.100.10"),
        (4, "RoCE v2", "192.168.100.10"),
    ]


# --- the same from captures of machines: `rdma link`, `ibdev2netdev` and `show_gids` of a Founders Edition with one cable,
# `ibstat` of a Dell, what firmware and switches did to links

LEFT = {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"}
RIGHT = {"enp1s0f1np1": "rocep1s0f1", "enP2p1s0f1np1": "roceP2p1s0f1"}
BUS = {"enp1s0f0np0": "0000:01:00.0", "enP2p1s0f0np0": "0002:01:00.0"}


def links(result: dict[str, Any]) -> list[tuple[int, str, str, str]]:
    """What `rdma link` prints, by cage: (cage, RoCE device, state, netdev)."""
    return [
        (port["cage"], interface["rdma"]["name"], interface["rdma"]["state"], interface["name"])
        for port in result["ports"]
        for interface in port["netdevs"]
    ]


@pytest.mark.parametrize(
    ("up", "cages_up"),
    [((*LEFT,), [True, False]), ((*RIGHT,), [False, True]), ((*LEFT, *RIGHT), [True, True]), ((), [False, False])],
)
def test_cages_that_are_up(tree: Any, fake_run: Any, up: tuple[str, ...], cages_up: list[bool]) -> None:
    tree.qsfp(up)
    result = fabric(tree, fake_run)
    assert result["connectx"] and [port["up"] for port in result["ports"]] == cages_up
    assert links(result) == [
        (cage, device, "ACTIVE" if netdev in up else "DOWN", netdev)
        for cage, interfaces in enumerate((LEFT, RIGHT))
        for netdev, device in interfaces.items()
    ]
    # A port that is down reports 40 Gb/s, even if the other port has a link.
    assert [port["rate_gbps"] for port in result["ports"]] == [200.0 if is_up else 40.0 for is_up in cages_up]


def test_a_card_that_left_the_bus(tree: Any, fake_run: Any) -> None:
    """Without a cable the kernel takes the four functions away; the GPU and the other network stay."""
    tree.write("sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de\n")
    tree.write("sys/bus/pci/devices/000f:01:00.0/device", "0x2e12\n")
    tree.write("sys/devices/platform/MTKP0001:00/pcie_hotplug/debug_state", "0\n")
    result = fabric(tree, fake_run)
    assert (result["connectx"], result["pci_functions"], result["ports"]) == (False, [], [])


def test_names_do_not_decide_what_belongs_together(tree: Any, fake_run: Any) -> None:
    """Interfaces share the function of their PCI address, also with other names."""
    tree.qsfp()
    for old, new in (("enp1s0f0np0", "qsfp0"), ("enP2p1s0f0np0", "cx7b")):
        base = tree.root / f"sys/devices/pci{BUS[old][:7]}/{BUS[old]}"
        (base / "net" / old).rename(base / "net" / new)
        (tree.root / "sys/class/net" / old).unlink()
        tree.link(f"sys/class/net/{new}", f"{base}/net/{new}")
        tree.write(f"sys/class/infiniband/{LEFT[old]}/ports/1/gid_attrs/ndevs/0", f"{new}\n")
    assert links(fabric(tree, fake_run))[:2] == [
        (0, "rocep1s0f0", "ACTIVE", "qsfp0"),
        (0, "roceP2p1s0f0", "ACTIVE", "cx7b"),
    ]


FE80 = "fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7"


def show_gids(tree: Any, device: str, *gids: str) -> None:
    """Fill a GID table: each address takes two entries, of RoCE v1 and v2."""
    for index in range(16):
        gid = gids[index // 2] if index // 2 < len(gids) else ":".join(["0000"] * 8)
        tree.write(f"sys/class/infiniband/{device}/ports/1/gids/{index}", gid + "\n")
        kind = "RoCE v2" if index % 2 else "IB/RoCE v1"
        tree.write(f"sys/class/infiniband/{device}/ports/1/gid_attrs/types/{index}", kind + "\n")


def test_gids_of_a_capture(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    for device, gids in (
        ("rocep1s0f0", (FE80, V4_GID)),
        ("roceP2p1s0f0", (FE80, V4_GID.replace("640a", "650a"))),
        ("rocep1s0f1", (FE80,)),
        ("roceP2p1s0f1", (FE80,)),
    ):
        show_gids(tree, device, *gids)
    remaining, right = fabric(tree, fake_run)["ports"]
    tables = [interface["rdma"]["gids"] for port in (remaining, right) for interface in port["netdevs"]]
    assert sum(map(len, tables)) == 12  # n_gids_found=12
    assert [(gid["index"], gid["address"]) for gid in tables[1] if gid["type"] == "RoCE v2"] == [
        (1, "fe80::3e6d:66ff:fecc:b3b7"),
        (3, "192.168.101.10"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("current_link_width", "2", "link_width", 2),  # firmware before 2026-04
        ("current_link_speed", "16.0 GT/s PCIe", "link_speed_gts", 16.0),
        ("current_link_speed", "Unknown", "link_speed_gts", None),
        ("net/enP2p1s0f0np0/speed", "100000", "speed_mbps", 100000),  # a switch that negotiates wrongly
        ("net/enP2p1s0f0np0/mtu", "1500", "mtu", 1500),  # after a capsule update
    ],
)
def test_links_that_are_worse_than_they_should_be(
    tree: Any, fake_run: Any, name: str, text: str, key: str, value: Any
) -> None:
    tree.qsfp()
    tree.write(f"sys/devices/pci0002:01/0002:01:00.0/{name}", text + "\n")
    first, second = fabric(tree, fake_run)["ports"][0]["netdevs"]
    assert (second[key], first[key]) == (
        value,
        {"link_width": 4, "link_speed_gts": 32.0, "speed_mbps": 200000, "mtu": 9000}[key],
    )


def test_bonded_twins_name_their_bond(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    (tree.root / "sys/class/net/bond0").mkdir()
    tree.link("sys/devices/pci0000:01/0000:01:00.0/net/enp1s0f0np0/master", "sys/class/net/bond0")
    ports = fabric(tree, fake_run)["ports"][0]
    assert [interface["master"] for interface in ports["netdevs"]] == ["bond0", None]


def stored(config: Any) -> dict[str, list[tuple[str, bool, bool, bool]]]:
    result = network.read_stored(str(config), ["enp1s0f0np0", "enP2p1s0f0np0"])
    return {
        name: [(entry["path"], entry["persistent"], entry["alone"], entry["managed"]) for entry in entries]
        for name, entries in result.items()
    }


def test_where_a_network_is_written_down(tmp_path: Any) -> None:
    for path, text in {
        "etc/netplan/40-cx7.yaml": (
            "# Written by the role dgxspark.vllm.fabric\nnetwork:\n  version: 2\n  ethernets:\n    enp1s0f0np0: {mtu: 9000}\n"
        ),
        "etc/netplan/50-all.yaml": (
            "network: {version: 2, ethernets: {enP7s7: {dhcp4: true}, enP2p1s0f0np0: {dhcp4: false}}}  # enp1s0f0np0\n"
        ),
        "etc/netplan/60-match.yaml": "network:\n  ethernets:\n    x:\n      match: {name: enP2p1s0f0np0}\n",
        "etc/netplan/70-set.yaml": (
            "network:\n  ethernets:\n    x:\n      match: {macaddress: 02:00:00:00:00:01}\n"
            "      set-name: enP2p1s0f0np0\n"
        ),
        # As NetworkManager leaves it on Ubuntu.
        "etc/netplan/90-NM-1fa3b1f2-6c0c-4d6e-9f6a-0b6f3a1c2d3e.yaml": (
            "network:\n  version: 2\n  ethernets:\n    NM-1fa3b1f2-6c0c-4d6e-9f6a-0b6f3a1c2d3e:\n      renderer: NetworkManager\n"
            '      match:\n        name: "enP2p1s0f0np0"\n      addresses: ["192.168.100.10/24"]\n'
        ),
        "etc/systemd/network/10-rail.network": "[Match]\nName=enP2p1s0f0np0\n",
        "run/NetworkManager/system-connections/netplan-enp1s0f0np0.nmconnection": "interface-name=enp1s0f0np0\n",
        "run/NetworkManager/system-connections/cx7.nmconnection": "[connection]\ninterface-name=enp1s0f0np0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert stored(tmp_path) == {
        "enp1s0f0np0": [
            ("/etc/netplan/40-cx7.yaml", True, True, True),
            ("/run/NetworkManager/system-connections/cx7.nmconnection", False, True, False),
        ],
        "enP2p1s0f0np0": [
            ("/etc/netplan/50-all.yaml", True, False, False),
            ("/etc/netplan/60-match.yaml", True, True, False),
            ("/etc/netplan/70-set.yaml", True, False, False),
            ("/etc/netplan/90-NM-1fa3b1f2-6c0c-4d6e-9f6a-0b6f3a1c2d3e.yaml", True, True, False),
            ("/etc/systemd/network/10-rail.network", True, True, False),
        ],
    }


# --- sockets, disks


def test_ss() -> None:
    text = """LISTEN 0      128          0.0.0.0:22         0.0.0.0:*    users:(("sshd",pid=812,fd=3))
LISTEN 0      2048       127.0.0.1:8001       0.0.0.0:*    users:(("vllm",pid=77,fd=19),("vllm",pid=78,fd=19))
LISTEN 0      4096   127.0.0.53%lo:53         0.0.0.0:*
LISTEN 0      4096            [::]:11434         [::]:*
LISTEN 0      4096               *:9100             *:*    users:(("node_exporter",pid=9,fd=3))
"""
    assert [(entry["address"], entry["port"], entry["process"], entry["pid"]) for entry in network.parse_ss(text)] == [
        ("0.0.0.0", 22, "sshd", 812),
        ("127.0.0.1", 8001, "vllm", 77),
        ("127.0.0.53", 53, None, None),
        ("::", 11434, None, None),
        ("::", 9100, "node_exporter", 9),
    ]


def test_proc_net_tcp() -> None:
    text = """  sl  local_address rem_address   st tx_queue
   0: 0100007F:1F41 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F41 0100007F:A000 01 00000000:00000000
   2: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0
"""
    assert [(entry["address"], entry["port"]) for entry in network.parse_proc_tcp(text)] == [
        ("127.0.0.1", 8001),
        ("::1", 22),
    ]


def test_listening_knows_unit_and_container(tree: Any, fake_run: Any) -> None:
    fake_run.on(
        "ss",
        'LISTEN 0 1 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=812,fd=3))\n'
        'LISTEN 0 1 127.0.0.1:8001 0.0.0.0:* users:(("vllm",pid=77,fd=3))\n'
        'LISTEN 0 1 0.0.0.0:3000 0.0.0.0:* users:(("docker-proxy",pid=90,fd=3))\n',
    )
    tree.write("proc/812/cgroup", "0::/system.slice/ssh.service\n")
    tree.write("proc/77/cgroup", f"0::/docker/{ID_1}\n")
    tree.write("proc/90/cgroup", "0::/system.slice/docker.service\n")
    containers: list[dict[str, Any]] = [
        {"id": ID_1, "name": "spark-heavy", "state": "running", "ports": []},
        {"id": ID_2, "name": "webui", "state": "running", "ports": [3000]},
    ]
    result = HostView(fake_run, str(tree)).listening(containers)
    assert [(entry["port"], entry["unit"], entry["container"]) for entry in result] == [
        (22, "ssh.service", None),
        (3000, "docker.service", "webui"),
        (8001, None, "spark-heavy"),
    ]


def test_disk_of_a_path_that_is_still_to_be_made(tmp_path: Any) -> None:
    expected = str(tmp_path / "a" / "b")
    disks = machine.read_disks([expected, str(tmp_path)])
    assert disks[expected]["exists"] is False and disks[str(tmp_path)]["exists"] is True
    assert disks[expected]["total_gib"] == disks[str(tmp_path)]["total_gib"] > 0


# --- docker, systemd


def test_docker_info() -> None:
    text = '{"ServerVersion": "29.2.1", "CgroupVersion": "2", "CgroupDriver": "systemd", "Runtimes": {"runc": {}, "nvidia": {}}}'
    info = docker_facts.parse_info(text)
    assert info["reachable"] is True and info["version"] == "29.2.1" and info["cgroup_version"] == "2"
    assert info["runtimes"] == ["nvidia", "runc"] and info["error"] == ""


@pytest.mark.parametrize("text", ['{"ServerVersion": "", "ServerErrors": ["Cannot connect"]}', ""])
def test_docker_without_an_engine(text: str) -> None:
    info = docker_facts.parse_info(text)
    assert info["reachable"] is False and info["version"] is None and info["error"]


def test_units() -> None:
    text = """Id=spark-heavy.service
LoadState=loaded
ActiveState=active
SubState=running
Result=success
NRestarts=2
UnitFileState=enabled
ActiveEnterTimestamp=Fri 2026-11-20 12:00:00 UTC
ActiveEnterTimestampMonotonic=60000000
MainPID=4242
Job=17

Id=spark-heavy.service
LoadState=loaded

Id=spark-fast.service
LoadState=loaded
ActiveState=failed
SubState=failed
Result=exit-code
NRestarts=0
UnitFileState=
ActiveEnterTimestamp=
MainPID=0
"""
    fast, heavy = units.parse_show(text, 100.4)  # a name and a pattern may both describe the same unit
    assert (heavy["active_seconds"], fast["active_seconds"]) == (40, None)
    assert [entry["active_seconds"] for entry in units.parse_show(text)] == [None, None]
    assert heavy["name"] == "spark-heavy.service" and heavy["active_state"] == "active" and heavy["n_restarts"] == 2
    assert (
        heavy["active_since"] == "2026-11-20T12:00:00+00:00" and heavy["enabled"] is True and heavy["main_pid"] == 4242
    )
    assert heavy["queued"] is True and fast["queued"] is False
    assert fast["active_state"] == "failed" and fast["result"] == "exit-code"
    assert fast["enabled"] is None and fast["active_since"] is None and fast["main_pid"] is None


def test_units_on_the_disk_are_named_in_the_one_call(tmp_path: Any, fake_run: Any) -> None:
    (tmp_path / "spark-old.service").write_text("")
    (tmp_path / "other.service").write_text("")
    fake_run.on("systemctl show", "Id=spark-old.service\nLoadState=loaded\n\nId=spark-x.service\nLoadState=not-found\n")
    assert [unit["name"] for unit in HostView(fake_run, unit_dir=str(tmp_path)).units()] == ["spark-old.service"]
    assert fake_run.calls == [units.show_command(["spark-old.service", "spark-*.service"])]


# --- all together


def test_a_host_that_prints_something_else_is_not_known(tmp_path: Any, fake_run: Any) -> None:
    fake_run.on("docker info", '{"ServerVersion": "29.2.1"}')
    fake_run.on("docker ps", "Usage:  docker [OPTIONS] COMMAND\n")
    fake_run.on("systemctl show", "hello\n")
    fake_run.on("nvidia-smi", "hello\n")
    spark = collect(fake_run, tmp_path)
    assert spark["unknown"] == {
        "docker": "docker printed 'Usage:  docker [OPTIONS] COMMAND' instead of an answer",
        "systemctl": "systemctl printed 'hello' instead of an answer",
        "nvidia-smi": "nvidia-smi printed 'hello' instead of an answer",
    }


def test_an_engine_that_inspects_nothing_is_not_one_without_containers(tmp_path: Any, fake_run: Any) -> None:
    fake_run.on("docker info", '{"ServerVersion": "29.2.1"}')
    fake_run.on("docker ps", "0123456789abcdef\n")
    fake_run.on("docker container inspect", "")
    spark = collect(fake_run, tmp_path)
    assert spark["unknown"]["docker"] == "docker printed nothing" and spark["containers"] == []


def test_host_where_everything_is_missing(tmp_path: Any, fake_run: Any) -> None:
    spark = collect(fake_run, tmp_path)
    for name in ("dgx_os", "os", "gpu", "memory", "docker"):
        assert spark[name] is None, name
    for name in ("containers", "services", "units", "resident"):
        assert spark[name] == [], name
    assert spark["machine"]["is_spark"] is False
    assert spark["fabric"] == {
        "connectx": False,
        "pci_functions": [],
        "ports": [],
        "networks": {},
        "mtus": {},
        "relay": False,
    }


def test_memory_of_a_capture(tree: Any) -> None:
    memory = machine.read_memory(str(tree))
    assert memory is not None
    assert memory["total_gib"] == 121.627 and memory["available_gib"] == 22.064 and memory["cached_gib"] == 19.501
    assert memory["swap_total_gib"] == 16.0 and memory["hugepages_total"] == 0


def test_nothing_secret_of_the_machine_is_reported(tree: Any, fake_run: Any) -> None:
    tree.dmi(product_serial="1981825000123", product_uuid="deadbeef")
    text = str(collect(fake_run, tree))
    assert "1981825000123" not in text and "deadbeef" not in text


def test_services_are_the_settings_that_were_put_there(tmp_path: Any) -> None:
    (tmp_path / "services").mkdir()
    for name in ("heavy.json", "fast.json", "note.txt"):
        (tmp_path / "services" / name).write_text("{}")
    assert machine.read_services(str(tmp_path)) == ["fast", "heavy"]


BUDDY = """\
Node 0, zone      DMA      1      0      0      1      2      1      1      0      1      1      3      2      1      2
Node 0, zone   Normal   4381   8120   2210    803    402    220    121     60     30     11      4      2     20      3
"""


@pytest.mark.parametrize(
    ("text", "page", "blocks"),
    [
        (BUDDY, 4096, 1 + 2 * 2 + 20 + 3 * 2),
        (BUDDY, 65536, (1 + 2 + 4 * 3 + 8 * 2 + 16 + 32 * 2) + (30 + 2 * 11 + 4 * 4 + 8 * 2 + 16 * 20 + 32 * 3)),
        ("Node 0, zone   Normal 1 2 3 4 5 6 7 8 9 10 11\n", 4096, None),  # of a kernel whose largest piece has 4 MiB
        ("", 4096, None),
        ("nonsense", 4096, None),
    ],
)
def test_free_pieces_of_16_mib_are_counted(text: str, page: int, blocks: int | None) -> None:
    free = hostmem.bytes_in_blocks(text, page, machine.LARGE_BLOCK)
    assert free == (None if blocks is None else blocks * machine.LARGE_BLOCK)


def test_memory_comes_with_its_free_pieces(tree: Any) -> None:
    tree.write("proc/meminfo", "MemTotal: 1048576 kB\n")
    assert (machine.read_memory(str(tree)) or {})["large_blocks"] is None
    tree.write("proc/buddyinfo", BUDDY)
    assert isinstance((machine.read_memory(str(tree)) or {})["large_blocks"], int)
