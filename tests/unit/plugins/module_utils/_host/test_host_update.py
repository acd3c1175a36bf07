"""Pending updates, verdicts on them, and batches of hosts. The texts are real output of apt-get and fwupdmgr."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import driver_packages, host_update

SIMULATED = """\
NOTE: This is only a simulation!
Reading package lists...
The following packages will be upgraded:
  nvidia-driver-580-open docker-ce curl
Inst linux-image-6.17.0-1032-nvidia (6.17.0-1032.32 DGX:noble-updates [arm64])
Inst nvidia-driver-580-open [580.159.03-0ubuntu1] (580.178.04-0ubuntu1 NVIDIA:noble [arm64])
Inst docker-ce [5:28.1.1-1] (5:29.2.1-1 Docker:noble [arm64]) []
Inst curl:arm64 [8.5.0-2] (8.5.0-2ubuntu10.7 Ubuntu:24.04/noble-updates [arm64])
Remv libold1 [1.0-1]
Conf curl (8.5.0-2ubuntu10.7 Ubuntu:24.04/noble-updates [arm64])
"""
FIRMWARE = [{"name": "SoC Firmware", "old": "0x1", "new": "0x2"}]


def inst(name: str, new: str, old: str = "") -> dict[str, str]:
    return {"name": name, "old": old, "new": new, "kind": host_update.kind_of(name)}


def rules(
    *install: dict[str, str], firmware: Any = (), with_firmware: bool = True, remove: Any = (), **facts: Any
) -> dict[str, str]:
    pending = {
        "install": list(install),
        "remove": list(remove),
        "firmware": None if firmware is None else list(firmware),
    }
    return {finding.rule: finding.severity for finding in host_update.check(pending, facts, with_firmware)}


def test_a_simulation_is_read() -> None:
    upgrade = host_update.parse_upgrade(SIMULATED)
    assert [(entry["name"], entry["kind"]) for entry in upgrade["install"]] == [
        ("curl", "other"),
        ("docker-ce", "docker"),
        ("linux-image-6.17.0-1032-nvidia", "kernel"),
        ("nvidia-driver-580-open", "driver"),
    ]
    assert (
        upgrade["install"][3]["old"] == "580.159.03-0ubuntu1" and upgrade["install"][3]["new"] == "580.178.04-0ubuntu1"
    )
    assert upgrade["install"][2]["old"] == "" and upgrade["remove"] == [{"name": "libold1", "old": "1.0-1"}]


def test_firmware_is_read_and_silence_is_not_taken_for_none() -> None:
    text = json.dumps(
        {"Devices": [{"Name": "EC", "Version": "1", "Releases": [{"Version": "3"}, {"Version": "2"}]}, {"Name": "X"}]}
    )
    assert host_update.parse_firmware(0, text) == [{"name": "EC", "old": "1", "new": "3"}]
    assert host_update.parse_firmware(2, "") == []
    assert host_update.parse_firmware(127, "") is None
    assert host_update.parse_firmware(0, "no json") is None


@pytest.mark.parametrize(
    ("package", "bad"),
    [
        ("linux-image-6.17.0-1008-nvidia", True),
        ("linux-image-unsigned-6.17.0-1021-nvidia", True),
        ("linux-image-6.17.0-1021-nvidia-64k", True),
        ("linux-image-6.17.0-1032-nvidia", False),
        ("linux-image-6.17.0-10080-nvidia", False),
        ("linux-headers-6.17.0-1008-nvidia", False),
        ("linux-image-nvidia-hwe-24.04", False),
    ],
)
def test_known_bad_kernels_are_refused(package: str, bad: bool) -> None:
    assert rules(inst(package, "1")) == ({"update.kernel": "error"} if bad else {})


KERNEL_7 = inst("linux-image-7.0.0-1019-nvidia", "7.0.0-1019.19~24.04.2")


def test_a_kernel_that_keeps_memory_for_handover_comes_with_what_switches_that_off() -> None:
    assert rules(KERNEL_7) == {"update.kernel_option": "error"}
    assert rules(KERNEL_7, inst("nvidia-spark-grub-kho", "1.0-1")) == {}
    assert rules(KERNEL_7, installed={"nvidia-spark-grub-kho": "1.0-1"}) == {}
    gone = {"name": "nvidia-spark-grub-kho", "old": "1.0-1"}
    assert "update.kernel_option" in rules(KERNEL_7, remove=[gone], installed={"nvidia-spark-grub-kho": "1.0-1"})


def test_an_upgrade_keeps_the_kernel_from_before() -> None:
    assert rules(remove=[{"name": "linux-image-6.17.0-1032-nvidia", "old": "6.17.0-1032.32"}]) == {
        "update.removes": "error"
    }


def test_the_next_boot_has_the_option() -> None:
    grub = """
menuentry 'DGX OS' {
\tlinux\t/boot/vmlinuz-7.0.0-1019-nvidia root=UUID=1 ro quiet kho=off
\tlinux\t/vmlinuz-7.0.0-1021-nvidia root=UUID=1 ro quiet
\tlinux\t/boot/vmlinuz-7.0.0-1021-nvidia root=UUID=1 ro recovery kho=on
\tlinux\t/boot/vmlinuz-6.17.0-1032-nvidia root=UUID=1 ro
"""
    assert host_update.boots_without_option(grub) == ["7.0.0-1021-nvidia"]
    assert host_update.boots_without_option("") == []


@pytest.mark.parametrize(("branch", "bad"), [("580", False), ("590", True), ("595", True), ("610", True)])
def test_other_driver_branches_are_refused(branch: str, bad: bool) -> None:
    result = rules(inst(f"nvidia-driver-{branch}-open", f"{branch}.48.01-1"), driver=f"{branch}.48.01")
    assert result == ({"update.driver_branch": "error"} if bad else {})


@pytest.mark.parametrize(
    "name", ["nvidia-driver-open", "nvidia-open", "nvidia-open-590", "nvidia-driver-590-server-open"]
)
def test_a_branch_without_a_number_in_its_name_is_refused_too(name: str) -> None:
    """From 590 on the packages of Ubuntu are named without their branch."""
    assert rules(inst(name, "590.48.01-0ubuntu1", "1"), driver="590.48.01") == {"update.driver_branch": "error"}
    assert rules(inst("nvidia-driver-assistant", "0.59-1")) == {}
    assert rules(inst("nvidia-driver-open", "580.178.04-1", "580.178.04-0"), driver="580.178.04") == {}


def test_proprietary_modules_do_not_come_to_a_gb10() -> None:
    assert rules(inst("nvidia-driver-580", "580.178.04-1"), driver="580.178.04") == {"update.driver_closed": "error"}
    # Packages that are installed already are not judged.
    assert rules(inst("nvidia-driver-580", "580.178.04-1", "580.178.04-0"), driver="580.178.04") == {}


def test_a_toolkit_that_freezes_containers_is_refused() -> None:
    assert rules(inst("nvidia-container-toolkit", "1.19.1-1")) == {"update.package": "error"}
    assert rules(inst("nvidia-container-toolkit", "1.19.2-1")) == {}


DRIVER = inst("nvidia-driver-580-open", "580.173.02-0ubuntu1", "580.159.03-0ubuntu1")
STEP: dict[str, Any] = {"driver": "580.159.03", "ota": "7.5.0"}


def test_driver_and_firmware_move_together() -> None:
    assert rules(DRIVER, firmware=FIRMWARE, **STEP) == {}
    assert rules(DRIVER, firmware=FIRMWARE, with_firmware=False, **STEP) == {"update.driver_firmware": "error"}
    assert rules(DRIVER, firmware=None, driver="580.159.03", ota="7.6.0") == {"update.firmware_unknown": "warning"}


def test_the_pair_that_lost_the_gpu_is_refused() -> None:
    assert rules(DRIVER, **STEP) == {"update.driver_firmware": "error"}
    both = {"update.driver_firmware": "error", "update.firmware_unknown": "warning"}
    assert rules(DRIVER, firmware=None, **STEP) == both
    past = inst("nvidia-driver-580-open", "580.178.04-1", "580.159.03-1")
    assert rules(past, **STEP) == {"update.driver_firmware": "error"}
    assert rules(DRIVER, driver="580.159.03", ota="7.6.0") == {}
    assert rules(DRIVER, driver="580.173.02", ota="7.5.0") == {}
    later = inst("nvidia-driver-580-open", "580.178.04-1", "580.173.02-1")
    assert rules(later, driver="580.173.02", ota="7.5.0") == {}


def test_a_kernel_and_a_driver_that_freeze_hosts_do_not_come_together() -> None:
    kernel = inst("linux-image-6.17.0-1032-nvidia", "6.17.0-1032.32")
    driver = inst("nvidia-driver-595-open", "595.84.01-1", "580.159.03-1")
    assert "update.driver_pair" in rules(kernel, driver, driver="580.159.03", kernel="6.17.0-1026-nvidia")
    assert "update.driver_pair" in rules(driver, driver="580.159.03", kernel="6.17.0-1032-nvidia")
    assert "update.driver_pair" in rules(kernel, driver="595.84.01", kernel="6.17.0-1026-nvidia")
    # A different version of either, or a pair that runs already, is not judged.
    assert rules(kernel, driver="580.159.03", kernel="6.17.0-1026-nvidia") == {}
    assert rules(inst("curl", "2"), driver="595.84.01", kernel="6.17.0-1032-nvidia") == {}


def test_an_update_that_removes_the_engine_is_refused_and_a_library_may_go() -> None:
    assert rules(remove=[{"name": "docker-ce", "old": "1"}]) == {"update.removes": "error"}
    assert rules(remove=[{"name": "libold1", "old": "1"}]) == {}


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, 0),
        ({"required": True}, 1),
        ({"kernels": ["6.17.0-1014-nvidia", "6.17.0-1032-nvidia"]}, 1),
        ({"kernels": ["6.17.0-1008-nvidia", "6.17.0-1014-nvidia"]}, 0),
        ({"kernels": []}, 0),
        ({"installed_driver": "580.178.04-0ubuntu1"}, 1),
        ({"installed_driver": ""}, 0),
        ({"firmware": True, "required": True}, 2),
    ],
)
def test_why_a_reboot_is_due(changes: dict[str, Any], reasons: int) -> None:
    arguments: dict[str, Any] = {
        "required": False,
        "running_kernel": "6.17.0-1014-nvidia",
        "kernels": ["6.17.0-1014-nvidia"],
        "loaded_driver": "580.159.03",
        "installed_driver": "580.159.03-0ubuntu1",
        "firmware": False,
        **changes,
    }
    assert len(host_update.reboot_reasons(**arguments)) == reasons


CLUSTERS = {"pair": ["b", "d"], "four": ["e", "f", "g", "h"]}


@pytest.mark.parametrize(
    ("size", "result"),
    [
        (1, [["a"], ["b", "d"], ["c"], ["e", "f", "g", "h"]]),
        (2, [["a"], ["b", "d"], ["c"], ["e", "f", "g", "h"]]),
        (3, [["a", "b", "d"], ["c"], ["e", "f", "g", "h"]]),
        (99, [["a", "b", "d", "c", "e", "f", "g", "h"]]),
    ],
)
def test_batches_never_split_a_cluster(size: int, result: list[list[str]]) -> None:
    assert host_update.batches(list("abcdefgh"), CLUSTERS, size) == result


def test_a_cluster_in_part_is_refused_with_the_limit_that_helps() -> None:
    with pytest.raises(ValueError, match=r"leaves out d.*--limit a,b,d"):
        host_update.batches(["a", "b"], CLUSTERS, 1)


def fabric(**mtus: int) -> dict[str, Any]:
    return {"ports": [{"netdevs": [{"name": name, "mtu": mtu} for name, mtu in mtus.items()]}]}


def test_what_came_back_is_compared_with_what_was() -> None:
    before = {
        "gpu": {"driver_version": "1"},
        "docker": {"version": "29"},
        "fabric": fabric(a=9000, b=9000),
        "kernel": "6.17",
    }
    same = {**before, "gpu": {"driver_version": "2"}}
    assert host_update.compare(before, same) == ([], ["driver 1 -> 2"])
    worse, _changes = host_update.compare(before, {**before, "gpu": None, "docker": None, "fabric": fabric(a=1500)})
    assert len(worse) == 4 and "a has an MTU of 1500, before it was 9000" in worse[2] and "b is gone" in worse[3]


def test_lines_name_what_matters() -> None:
    pending = {**host_update.parse_upgrade(SIMULATED), "firmware": FIRMWARE}
    text = "\n".join(host_update.lines_of(pending, [], ["linux-image-x"], ["why"]))
    for word in (
        "4 packages, 1 to be removed",
        "driver: nvidia-driver-580-open",
        "firmware: SoC Firmware 0x1 -> 0x2",
        "held back: linux-image-x",
        "reboot: why",
    ):
        assert word in text
    assert "curl" not in text


def installed(*packages: str) -> dict[str, str]:
    return {name: version for name, _sign, version in (package.partition("=") for package in packages)}


@pytest.mark.parametrize(
    ("packages", "driver", "result"),
    [
        # Reported: parts of 595 came from CUDA's archive without its driver, while 580 was loaded.
        (
            ["nvidia-dkms-595=595.84-1", "libnvidia-compute-595=595.84-1", "nvidia-driver-580-open=580.178.04-1"],
            "580.178.04",
            {"595": ["libnvidia-compute-595", "nvidia-dkms-595"]},
        ),
        (["nvidia-dkms-595-open=595.84-1"], "580.178.04", {"595": ["nvidia-dkms-595-open"]}),
        (["libnvidia-cfg1-575=575.57-1"], "580.178.04", {"575": ["libnvidia-cfg1-575"]}),
        (["nvidia-firmware-595-595.84=595.84-1"], "580.178.04", {"595": ["nvidia-firmware-595-595.84"]}),
        (["nvidia-utils-580-server=580.159.03-1"], "595.84", {"580": ["nvidia-utils-580-server"]}),
        # Packages without a branch in their names have the branch in their version.
        (["libnvidia-compute=595.84-0ubuntu1", "nvidia-dkms-open=595.84-1"], "580.178.04", {"595": ["libnvidia-compute", "nvidia-dkms-open"]}),
        (["libnvidia-compute=580.178.04-1"], "580.178.04", {}),
        # No parts of a driver.
        (
            ["nvidia-container-toolkit=1.20.1-1", "libnvidia-container1=1.20.1-1", "nvidia-spark-grub-kho=1.0-1", "libnvidia-egl-wayland1=1.1",
             "nvidia-cuda-toolkit=12.0", "nvidia-dgx-580x=1", "curl=8.5.0"],
            "580.178.04",
            {},
        ),
        (["nvidia-dkms-595=595.84-1"], "", {}),  # not known which driver is loaded
        (["nvidia-dkms-595=595.84-1"], "N/A", {}),
    ],
)  # fmt: skip
def test_packages_of_another_branch_are_found(packages: list[str], driver: str, result: dict[str, list[str]]) -> None:
    assert driver_packages.other_branch(installed(*packages), driver) == result


def test_parts_of_another_driver_do_not_come_without_the_whole() -> None:
    parts = [inst("nvidia-dkms-595", "595.84-1"), inst("libnvidia-compute-595", "595.84-1")]
    assert rules(*parts, driver="580.178.04") == {"update.driver_mixed": "error"}
    # With the driver of the branch it is judged by that; the same branch and an unknown driver are nobody's mistake.
    assert "update.driver_mixed" not in rules(*parts, inst("nvidia-driver-595-open", "595.84-1"), driver="580.178.04")
    assert rules(inst("libnvidia-compute-580", "580.178.04-1"), driver="580.159.03") == {}
    assert rules(*parts, driver="580.178.04", driver_unknown="nvidia-smi ended with 9") == {
        "update.driver_unknown": "warning"
    }


def test_parts_of_another_driver_that_are_there_are_a_warning() -> None:
    target = installed("nvidia-dkms-595=595.84-1", "libnvidia-compute-580=580.178.04-1")
    assert rules(driver="580.178.04", installed=target) == {"update.driver_mixed": "warning"}
    gone = {"name": "nvidia-dkms-595", "old": "595.84-1"}
    assert rules(driver="580.178.04", installed=target, remove=[gone]) == {}


@pytest.mark.parametrize(
    ("files", "result"),
    [
        (["vmlinuz-6.17.0-1032-nvidia", "initrd.img-6.17.0-1032-nvidia"], []),
        (["vmlinuz-6.17.0-1032-nvidia", "initrd.img-6.17.0-1031-nvidia"], ["6.17.0-1032-nvidia"]),
        (["vmlinuz-7.0.0-1019-nvidia", "vmlinuz-6.17.0-1032-nvidia"], ["6.17.0-1032-nvidia", "7.0.0-1019-nvidia"]),
        (["vmlinuz", "vmlinuz.old", "initrd.img", "config-6.17.0-1032-nvidia", "vmlinuz-recovery"], []),
        ([], []),
    ],
)
def test_kernels_without_an_initial_ram_disk(files: list[str], result: list[str]) -> None:
    assert driver_packages.kernels_without_initrd(files) == result
    assert ("update.initrd" in rules(no_initrd=result)) is bool(result)
