"""The module on a folder that plays a host; apt, dpkg and fwupdmgr are played by a function. Locks are real."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_update as rules
from ansible_collections.dgxspark.vllm.plugins.modules import host_update

KERNEL = "Inst linux-image-7.0.0-1019-nvidia (7.0.0-1019.19 DGX:noble [arm64])\n"
CURL = "Inst curl [8.5.0-2] (8.5.0-3 Ubuntu:noble [arm64])\n"
DEVICES = json.dumps({"Devices": [{"Name": "EC", "Version": "1", "Releases": [{"Version": "2"}]}]})


class Apt:
    """A host with packages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pending, self.firmware = CURL, ""
        self.held: set[str] = set()
        self.calls: list[list[str]] = []
        self.firmware_rc = 0
        self.listed = "curl 8.5.0-2 installed\nlinux-image-nvidia 6.17 installed\ngone 1 config-files\n"
        self.smi: tuple[int, str, str] = (127, "", "nvidia-smi: not found")
        self.driver: tuple[int, str, str] = (1, "", "dpkg-query: no packages found matching nvidia-driver-580-open")

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[:2] == ["apt-mark", "showhold"]:
            return 0, "\n".join(sorted(self.held)), ""
        if argv[0] == "apt-mark":
            self.held = self.held | set(argv[2:]) if argv[1] == "hold" else self.held - set(argv[2:])
            return 0, "", ""
        if argv[0] == "dpkg-query" and "nvidia-driver" in argv[-1]:
            return self.driver
        if argv[0] == "dpkg-query":
            return 0, self.listed, ""
        if argv[0] == "apt-get" and "--simulate" in argv:
            return 0, self.pending, ""
        if argv[:2] == ["fwupdmgr", "get-updates"]:
            return (0, self.firmware, "") if self.firmware else (2, "", "No updates available")
        if argv[0] == "nvidia-smi":
            return self.smi
        if argv[:2] == ["fwupdmgr", "update"]:
            return self.firmware_rc, "", "could not write"
        return 0, "", ""

    def did(self, *words: str) -> bool:
        return any(all(word in argv for word in words) for argv in self.calls)


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Apt:
    for name in rules.LOCKS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    played = Apt(tmp_path)
    play(monkeypatch, played)
    monkeypatch.setattr(host_update, "ROOT", tmp_path)
    monkeypatch.setattr(host_update, "POLL_SECONDS", 0.01)
    return played


@pytest.fixture
def call(apt: Apt, tmp_path: Path, capsys: Any) -> Any:
    def call(**args: Any) -> dict[str, Any]:
        return call_module(host_update, {**args, "_ansible_tmpdir": str(tmp_path)}, capsys)

    return call


def test_a_look_changes_no_package(apt: Apt, call: Any) -> None:
    result = call(hold=["linux-*"])
    assert result["changed"] is False and [entry["name"] for entry in result["pending"]["install"]] == ["curl"]
    assert result["held"] == ["linux-image-nvidia"] and apt.held == set()
    assert apt.did("apt-get", "update") and not apt.did("--assume-yes")


def test_what_will_be_held_is_left_out_of_the_simulation(apt: Apt, call: Any, tmp_path: Path) -> None:
    (tmp_path / "etc/apt/preferences.d").mkdir(parents=True)
    (tmp_path / "etc/apt/preferences.d/nvidia-dgx").write_text("Package: *\n")
    call(hold=["linux-*"])
    option = next(word for argv in apt.calls for word in argv if word.startswith("Dir::Etc::PreferencesParts="))
    folder = Path(option.partition("=")[2])
    assert (
        folder / "zz-held.pref"
    ).read_text() == "Package: linux-image-nvidia\nPin: version 6.17\nPin-Priority: 1001\n\n"
    assert (folder / "nvidia-dgx").read_text() == "Package: *\n"


def test_an_update_brings_packages_and_then_firmware(apt: Apt, call: Any) -> None:
    apt.firmware = DEVICES
    result = call(state="updated")
    order = [argv[0] + " " + argv[-1] for argv in apt.calls]
    assert result["changed"] is True and order.index("apt-get dist-upgrade") < order.index("fwupdmgr --no-reboot-check")
    assert any("DPkg::Lock::Timeout=1800" in argv for argv in apt.calls)
    assert result["reboot"] == ["firmware is written at the next boot"]


def test_check_mode_says_what_would_be_updated(apt: Apt, call: Any) -> None:
    result = call(state="updated", hold=["curl"], _ansible_check_mode=True)
    assert result["changed"] is True and apt.held == set() and not apt.did("--assume-yes")


def test_a_known_bad_kernel_is_refused_before_anything_is_installed(apt: Apt, call: Any) -> None:
    apt.pending = CURL + KERNEL
    result = call(state="updated")
    assert result["failed"] is True and "7.0.0-1019-nvidia" in result["msg"] and "spark_update_hold" in result["msg"]
    assert not apt.did("--assume-yes")
    assert call(state="look")["findings"][0]["rule"] == "update.kernel_option"
    assert call(state="updated", ignore=["update.kernel_option"])["changed"] is True


@pytest.mark.parametrize("option", ["kho=off", "quiet"])
def test_a_boot_without_the_option_is_told_before_it_happens(apt: Apt, call: Any, tmp_path: Path, option: str) -> None:
    apt.pending = CURL + KERNEL + "Inst nvidia-spark-grub-kho (1.0-1 DGX:noble [arm64])\n"
    (tmp_path / "boot/grub").mkdir(parents=True)
    (tmp_path / "boot/grub/grub.cfg").write_text(f"\tlinux /boot/vmlinuz-7.0.0-1019-nvidia ro {option}\n")
    result = call(state="updated")
    assert apt.did("--assume-yes") and result.get("failed", False) is (option == "quiet")
    assert option == "kho=off" or ("do not reboot yet" in result["msg"] and "7.0.0-1019-nvidia" in result["msg"])


def test_holds_are_let_go_when_they_are_not_named_any_more_and_those_of_others_stay(apt: Apt, call: Any) -> None:
    apt.held = {"mine"}
    call(state="updated", hold=["linux-*"])
    assert apt.held == {"mine", "linux-image-nvidia"}
    call(state="updated")
    assert apt.held == {"mine"}


def test_without_firmware_it_is_left(apt: Apt, call: Any) -> None:
    apt.pending, apt.firmware = "", DEVICES
    assert call(state="updated", firmware=False)["changed"] is False
    assert not apt.did("fwupdmgr", "update")


def test_firmware_that_fails_says_what_is_half_done(apt: Apt, call: Any) -> None:
    apt.firmware, apt.firmware_rc = DEVICES, 1
    assert "the packages are updated, the firmware is not" in call(state="updated")["msg"]


MISMATCH = (18, "Failed to initialize NVML: Driver/library version mismatch\n", "")


def test_a_driver_that_nvidia_smi_cannot_name_is_not_called_none(apt: Apt, call: Any) -> None:
    """The pair of driver and kernel that freezes hosts is judged by the packages after the update."""
    apt.smi, apt.driver = MISMATCH, (0, "595.84-1ubuntu1\n", "")
    apt.pending = "Inst linux-image-6.17.0-1032-nvidia (6.17.0-1032.32 DGX:noble [arm64])\n"
    result = call()
    rules_found = {finding["rule"]: finding for finding in result["findings"]}
    assert "18: Failed to initialize NVML" in rules_found["update.driver_unknown"]["message"]
    assert "595.84" in rules_found["update.driver_unknown"]["message"]
    assert rules_found["update.driver_pair"]["severity"] == "warning"


def test_the_kernel_names_the_driver_where_nvidia_smi_fails(apt: Apt, call: Any, tmp_path: Path) -> None:
    """The state after every update of the driver, until the required reboot."""
    apt.smi, apt.driver = MISMATCH, (0, "580.178.04-1\n", "")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.159.03\n")
    result = call()
    assert result["reboot"] == ["driver 580.159.03 is loaded, 580.178.04-1 is installed"]
    assert [finding["rule"] for finding in result["findings"]] == []


def test_a_host_without_nvidia_smi_has_no_driver(apt: Apt, call: Any) -> None:
    result = call()
    assert result["reboot"] == [] and result["findings"] == []


def test_packages_that_cannot_be_asked_about_are_not_missing(apt: Apt, call: Any) -> None:
    apt.driver = (2, "", "dpkg-query: error: failed to open package info file")
    result = call()
    assert result["failed"] and "failed to open package info file" in result["msg"]


def keep(path: str, ready: Any, end: Any) -> None:
    with Path(path).open("r+b") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX)
        ready.set()
        end.wait(600)


@pytest.fixture
def another(tmp_path: Path, apt: Apt) -> Iterator[Any]:
    """Another program that holds the lock of dpkg until the test releases it."""
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()
    process = fork.Process(target=keep, args=(str(tmp_path / rules.LOCKS[0]), ready, end))
    process.start()
    assert ready.wait(120)
    yield end
    end.set()
    process.join()


def test_another_program_that_installs_is_named_when_it_does_not_end(another: Any, call: Any, apt: Apt) -> None:
    result = call(state="updated", lock_timeout=0)
    assert result["failed"] is True and "holds /var/lib/dpkg/lock-frontend" in result["msg"]
    assert apt.calls == []


def test_it_goes_on_when_the_other_program_has_ended(another: Any, call: Any) -> None:
    another.set()
    assert "failed" not in call(state="idle")


def test_without_root_it_does_not_wait_for_a_lock(apt: Apt, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise PermissionError(13, "Permission denied", "/var/lib/dpkg/lock-frontend")

    monkeypatch.setattr(host_update, "busy", refuse)
    assert "become: true" in call()["msg"] and apt.calls == []


def test_a_kernel_without_an_initial_ram_disk_stops_before_the_reboot(apt: Apt, call: Any, tmp_path: Path) -> None:
    """Before the update for an installed kernel without it, and after the update for a new kernel."""
    boot = tmp_path / "boot"
    boot.mkdir()
    (boot / "vmlinuz-6.17.0-1032-nvidia").write_text("kernel")
    (boot / "initrd.img-6.17.0-1032-nvidia").write_text("disk")
    assert call(state="updated").get("failed") is None
    (boot / "initrd.img-6.17.0-1032-nvidia").write_text("")  # /boot was full
    assert call(state="look")["findings"][0]["rule"] == "update.initrd"
    apt.calls.clear()
    assert "nothing was updated" in call(state="updated")["msg"] and not apt.did("--assume-yes")
    result = call(state="updated", ignore=["update.initrd"])
    assert apt.did("--assume-yes") and result["failed"] is True and "do not reboot yet" in result["msg"]
    assert "update-initramfs -c -k 6.17.0-1032-nvidia" in result["msg"]


def test_parts_of_another_driver_are_found_among_the_installed(apt: Apt, call: Any, tmp_path: Path) -> None:
    apt.smi = (0, "580.178.04\n", "")
    assert call(state="look")["findings"] == []
    apt.listed += "nvidia-dkms-595 595.84-1 installed\nlibnvidia-compute-595 595.84-1 config-files\n"
    (finding,) = call(state="look")["findings"]
    assert finding["rule"] == "update.driver_mixed" and finding["severity"] == "warning"
    assert "nvidia-dkms-595." in finding["message"] and "libnvidia" not in finding["message"]
