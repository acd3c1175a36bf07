# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Updates of DGX OS and firmware: pending packages, verdicts on them, and batches of hosts. Pure functions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._common.foreign_text import parse_json
from .driver_packages import other_branch, release_key, version_key
from .known_bad import BAD, KEEPS_HANDOVER, KHO_OFF, KHO_PACKAGE, TABLE, Row, against, against_package, of_running

SIMULATE = ["apt-get", "--simulate", "--quiet", "dist-upgrade"]
_KEEP_SETTINGS = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
UPGRADE = ["apt-get", "--assume-yes", "--quiet", *_KEEP_SETTINGS, "dist-upgrade"]
"""Never past a pin and never from an unsigned archive: DGX OS pins packages that must not come from other archives."""
FIRMWARE_QUERY = ["fwupdmgr", "get-updates", "--json"]
FIRMWARE_UPDATE = ["fwupdmgr", "update", "--assume-yes", "--no-reboot-check"]

LOCKS = ("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/lib/apt/lists/lock", "var/cache/apt/archives/lock")

_NEEDED = "docker containerd nvidia-driver nvidia-container dgx- nvidia-spark linux-image openssh-server netplan"
NOT_TO_GO = tuple(_NEEDED.split())
"""Beginnings of packages that no upgrade may remove."""

_KERNEL = re.compile(r"linux-image-(?:unsigned-)?(\d[\w.]*-[\w.-]+)")
# From branch 590 on, Ubuntu's packages have the branch in their versions only.
_DRIVER = re.compile(r"nvidia-(?:driver|open)(?:-(\d+))?((?:-(?:open|server))*)")
_INST = re.compile(r"^Inst (\S+)(?: \[([^\]]*)\])? \((\S+)", re.MULTILINE)
_REMV = re.compile(r"^Remv (\S+)(?: \[([^\]]*)\])?", re.MULTILINE)


def kind_of(package: str) -> str:
    """Sort a package: kernel, driver, docker, dgx or other."""
    if package.startswith("linux-"):
        return "kernel"
    if package.startswith(
        ("nvidia-driver", "nvidia-dkms", "nvidia-kernel", "nvidia-firmware", "libnvidia", "nvidia-utils")
    ):
        return "driver"
    if package.startswith(("docker", "containerd", "nvidia-container", "libnvidia-container")):
        return "docker"
    return "dgx" if package.startswith(("dgx-", "nvidia-", "nv-")) else "other"


def parse_upgrade(text: str) -> dict[str, list[dict[str, str]]]:
    """Parse C(SIMULATE): C({install: [{name, old, new, kind}], remove: [{name, old}]}), old empty for a new package."""
    install = [
        {"name": name.split(":")[0], "old": old, "new": new, "kind": kind_of(name)}
        for name, old, new in _INST.findall(text)
    ]
    return {
        "install": sorted(install, key=lambda package: package["name"]),
        "remove": sorted(({"name": name.split(":")[0], "old": old} for name, old in _REMV.findall(text)), key=str),
    }


def parse_firmware(rc: int, text: str) -> list[dict[str, str]] | None:
    """Parse C(FIRMWARE_QUERY): C([{name, old, new}]); None without fwupd, or without its answer."""
    if rc == 2:  # no updates
        return []
    try:
        devices = parse_json(text, "fwupdmgr")["Devices"]
        return [
            {
                "name": str(device.get("Name") or device.get("DeviceId") or "?"),
                "old": str(device.get("Version") or ""),
                "new": str(device["Releases"][0].get("Version") or ""),
            }
            for device in devices
            if device.get("Releases")
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def initrd_fix(kernels: Sequence[str]) -> str:
    """Return the fix for kernels without initial RAM disks."""
    commands = "; ".join(f"update-initramfs -c -k {kernel}" for kernel in kernels)
    return f"Make it on the host ({commands}; update-grub), with room in /boot (df /boot), or remove that kernel (apt purge)."


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that one of the shell patterns matches."""
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def check(pending: Mapping[str, Any], facts: Mapping[str, Any], with_firmware: bool) -> list[Finding]:
    """Return findings about an update that may break a Spark; errors prevent it.

    :param pending: install, remove (see C(parse_upgrade)) and firmware (see C(parse_firmware))
    :param facts: C(driver) and C(kernel), the running ones, C(ota), the version of DGX OS after its last update,
        C(driver_unknown), why C(driver) is only the installed one, C(installed), versions of packages by name, and C(no_initrd), see
        C(kernels_without_initrd)
    """
    judge = _Judge(pending, facts)
    for package in judge.install:
        judge.package(package)
    judge.removed()
    judge.unknown_driver()
    judge.driver_and_firmware(with_firmware)
    judge.mixed_driver()
    judge.initrd()
    judge.pairs()
    judge.handover()
    return judge.findings


class _Judge:
    """Collects the findings about one update, a method for each subject. See C(check)."""

    def __init__(self, pending: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.install: list[dict[str, str]] = pending["install"]
        self.firmware: list[dict[str, str]] | None = pending["firmware"]
        self.facts = facts
        self.drivers = [package for package in self.install if _DRIVER.fullmatch(package["name"])]
        self.kernels = [match[1] for package in self.install if (match := _KERNEL.fullmatch(package["name"]))]
        self.removals = {package["name"] for package in pending["remove"]}
        self.findings: list[Finding] = []

    @property
    def running(self) -> dict[str, str]:
        """The driver and the kernel that run now."""
        return {key: str(self.facts.get(key) or "") for key in ("driver", "kernel")}

    def add(self, rule: str, severity: str, message: str, fix: str, source: str = "") -> None:
        """Add a finding. rule: its id without C(update.)."""
        self.findings.append(Finding(f"update.{rule}", severity, message, fix=fix, source=source, basis="measured"))

    def add_row(self, rule: str, row: Row, what: str, fix: str) -> None:
        """Add a finding that a line of the table gives; only a proven failure is an error."""
        self.add(rule, "error" if row.verdict == BAD else "warning", f"{what}: {row.why}.", fix, row.source)

    def package(self, package: Mapping[str, str]) -> None:
        """Judge a package by its name and version."""
        name, new = package["name"], package["new"]
        kernel, driver = _KERNEL.fullmatch(name), _DRIVER.fullmatch(name)
        if kernel:
            coming = self.drivers[0]["new"] if self.drivers else ""
            version = coming.partition(":")[2] or coming or self.running["driver"]
            for row in against({"kernel": kernel[1], "driver": version}):
                if row.subject == "kernel":
                    fix = 'Hold it back until a later one comes: spark_update_hold: ["linux-*"].'
                    self.add_row("kernel", row, f"kernel {kernel[1]}", fix)
        # The branch is in the name of the package, or in its version; the revision does not tell it.
        branch = (driver[1] or str(next(iter(version_key(new)), ""))) if driver else ""
        for row in against({"driver": branch}):
            if row.subject == "branch":
                fix = f'Hold it back: spark_update_hold: ["{name}"], and see which archive it comes from (apt-cache policy {name}).'
                self.add_row("driver_branch", row, f"{name} {new}", fix)
        if driver and not package["old"] and "open" not in name:
            text = f"{name} {new} has the proprietary kernel modules, with which a GB10 is found and never comes up."
            fix = f'Take the package with -open of the same version, as DGX OS does; hold this one back: spark_update_hold: ["{name}"].'
            source = "NVIDIA's README of the driver; Start9Labs/start-technologies#3693"
            self.add("driver_closed", "error", text, fix, source)
        for row in against_package(name, new):
            self.add_row("package", row, f"{name} {new}", f'Hold it back: spark_update_hold: ["{name}*"].')

    def removed(self) -> None:
        """Refuse the removal of packages that a Spark needs. An update replaces a driver by another branch, which C(package) judges."""
        replaced = {package["name"] for package in self.install}
        lost = sorted(name for name in self.removals - replaced if name.startswith(NOT_TO_GO))
        if lost:
            fix = "See why on the host (apt-get --simulate dist-upgrade): an archive that is missing, or a package from elsewhere."
            self.add("removes", "error", f"the update would remove {', '.join(lost)}.", fix)

    def unknown_driver(self) -> None:
        """Warn if the running driver is unknown."""
        if self.facts.get("driver_unknown"):
            text = (
                f"which driver runs is not known: {self.facts['driver_unknown']}. Pending updates are checked against the installed driver "
                f"({self.facts.get('driver') or 'none'})."
            )
            fix = "See nvidia-smi and journalctl --dmesg on the host; a driver that was updated needs a reboot."
            self.add("driver_unknown", "warning", text, fix)

    def driver_and_firmware(self, with_firmware: bool) -> None:
        """Refuse a driver without its firmware: it may find no GPU with older firmware."""
        if not self.drivers:
            return
        new = self.drivers[0]["new"]
        old = str(self.facts.get("driver") or self.drivers[0]["old"])
        if version_key(old) == version_key(new):
            return
        move = f"driver {old} -> {new}"
        if self.firmware and not with_firmware:
            named = ", ".join(device["name"] for device in self.firmware)
            text = f"{move}, while firmware is pending that this run leaves out ({named}): the two move together."
            fix = 'Leave spark_update_firmware at true, or hold the driver: spark_update_hold: ["nvidia-*", "libnvidia-*"].'
            self.add("driver_firmware", "error", text, fix)
        elif self.firmware is None:
            text = (
                f"{move}, and whether firmware belongs to it cannot be asked: fwupdmgr is missing or does not answer."
            )
            fix = "Install fwupd, or see in the DGX Dashboard that the firmware is up to date."
            self.add("firmware_unknown", "warning", text, fix)
        ota = str(self.facts.get("ota") or "")
        for row in () if self.firmware else TABLE:
            if row.subject == "pair" and row.dgx_os and row.comes(old, new, ota):
                text = f"{move} on the firmware of DGX OS {ota}, and no newer firmware is there to come with it"
                fix = 'Update by the DGX Dashboard, which brings both, or hold the driver: spark_update_hold: ["nvidia-*", "libnvidia-*"].'
                self.add_row("driver_firmware", row, text, fix)

    def mixed_driver(self) -> None:
        """Find parts of another driver branch without the driver's own package: module and libraries differ after the next boot."""
        driver = "" if self.facts.get("driver_unknown") else self.running["driver"]
        coming = {package["name"]: package["new"] for package in self.install}
        # C(package) judges a whole driver by its branch.
        whole_branches = {next(iter(other_branch({row["name"]: row["new"]}, driver)), "") for row in self.drivers}
        installed = dict(self.facts.get("installed") or {})
        remaining = {name: installed[name] for name in installed if name not in self.removals and name not in coming}
        for branch, names in other_branch(coming, driver).items():
            if branch not in whole_branches:
                fix = f'Hold them back (spark_update_hold: ["*nvidia-*-{branch}*"]) and see which archive they come from (apt-cache policy).'
                self._mixed("error", driver, branch, f"would be installed: {', '.join(names)}", fix)
        for branch, names in other_branch(remaining, driver).items():
            fix = f"Remove them (apt purge {' '.join(names)}), or install the whole driver of one branch, before the next reboot."
            self._mixed("warning", driver, branch, f"are installed: {', '.join(names)}", fix)

    def _mixed(self, severity: str, driver: str, branch: str, state: str, fix: str) -> None:
        message = (
            f"driver {driver} is loaded, and packages of branch {branch} {state}. With a kernel module and "
            "libraries of different branches no GPU is found after a boot."
        )
        self.add("driver_mixed", severity, message, fix)

    def initrd(self) -> None:
        """Refuse an update of a host with a kernel that does not boot."""
        kernels = self.facts.get("no_initrd")
        if kernels:
            message = f"/boot has no initrd.img for kernel {', '.join(kernels)}: a boot into it does not find the root file system."
            self.add("initrd", "error", message, initrd_fix(kernels))

    def pairs(self) -> None:
        """Find bad pairs of kernel and driver that the update makes; the doctor reports a pair that already runs."""
        for kernel in self.kernels or [self.running["kernel"]]:
            pair = {"driver": self.drivers[0]["new"] if self.drivers else self.running["driver"], "kernel": kernel}
            for row in against(pair):
                if row.subject == "pair" and not row.holds(self.running):
                    fix = 'Hold one of them back: spark_update_hold: ["linux-*"], or ["nvidia-*", "libnvidia-*"].'
                    self.add_row("driver_pair", row, row.of(pair), fix)

    def handover(self) -> None:
        """Refuse a kernel that keeps memory for kexec handover, unless the package that switches this off comes with it."""
        names = {package["name"] for package in self.install} | set(self.facts.get("installed") or ())
        has_option = KHO_PACKAGE in names - self.removals
        for kernel in self.kernels:
            if _keeps_handover(kernel, has_option):
                text = f"kernel {kernel} comes without {KHO_PACKAGE}, which boots it with {KHO_OFF}; else {KEEPS_HANDOVER.why}."
                fix = f'Install it (apt install {KHO_PACKAGE}), or hold the kernel: spark_update_hold: ["linux-*"].'
                self.add("kernel_option", "error", text, fix, KEEPS_HANDOVER.source)


def _keeps_handover(release: str, option: bool) -> bool:
    """Whether a kernel keeps memory for kexec handover. option: whether it boots with C(KHO_OFF)."""
    return any(row.subject == "option" for row in against({"kernel": release, "option": option}))


def boots_without_option(grub: str) -> list[str]:
    """Return the kernels that need C(kho=off) and have an entry in C(grub.cfg) without it. grub: the text of that file."""
    entries = re.findall(r"^\s*linux\s+\S*/vmlinuz-(\S+)(.*)$", grub, re.MULTILINE)
    return list(
        dict.fromkeys(release for release, options in entries if _keeps_handover(release, KHO_OFF in options.split()))
    )


def reboot_reasons(
    required: bool,
    running_kernel: str,
    kernels: Sequence[str],
    loaded_driver: str,
    installed_driver: str,
    firmware: bool,
) -> list[str]:
    """Return why a host has to be rebooted. required: whether C(/run/reboot-required) exists."""
    reasons = []
    if required:
        reasons.append("the packages ask for it")
    newest = max(kernels, key=release_key, default="")
    if newest and running_kernel in kernels and release_key(newest) > release_key(running_kernel):
        reasons.append(f"kernel {running_kernel} runs, {newest} is installed")
    if loaded_driver and installed_driver and version_key(loaded_driver) != version_key(installed_driver):
        reasons.append(f"driver {loaded_driver} is loaded, {installed_driver} is installed")
    if firmware:
        reasons.append("firmware is written at the next boot")
    return reasons


def changed_links(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the QSFP interfaces that an update changed: writing firmware can reset their MTU, or take them off the bus."""

    def mtus(fabric: Mapping[str, Any]) -> dict[str, Any]:
        return {link["name"]: link.get("mtu") for port in fabric.get("ports") or [] for link in port["netdevs"]}

    was, now = mtus(before or {}), mtus(after or {})
    return [
        f"{name} is gone" if name not in now else f"{name} has an MTU of {now[name]}, before it was {mtu}"
        for name, mtu in sorted(was.items())
        if now.get(name) != mtu
    ]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare the facts of a host before and after an update: problems with their fixes, and new versions."""
    worse = []
    if before.get("gpu") and not after.get("gpu"):
        worse.append(
            "nvidia-smi finds no GPU any more: driver and firmware do not fit. Bring the firmware (fwupdmgr update, or the DGX "
            "Dashboard), or go back to the driver from before; then take the power off for a minute."
        )
    if (before.get("docker") or {}).get("version") and not (after.get("docker") or {}).get("version"):
        worse.append(
            "no Docker engine answers any more. Read the reason: systemctl status docker; journalctl -u docker."
        )
    worse += [
        f"{change}. Bring the network back: dgxspark.vllm.site --tags fabric; an interface that is gone may need the power off."
        for change in changed_links(before.get("fabric") or {}, after.get("fabric") or {})
    ]

    was, now = of_running(before), of_running(after)
    titles = {"kernel": "kernel", "driver": "driver", "dgx_os": "DGX OS"}
    changes = [f"{titles[name]} {was[name]} -> {now[name]}" for name in was if now[name] and was[name] != now[name]]
    return worse, changes


def batches(hosts: Sequence[str], clusters: Mapping[str, Sequence[str]], size: int) -> list[list[str]]:
    """Put hosts into batches of at most C(size), in their order; the hosts of a cluster are never split, even if they are more.

    :raises ValueError: for a part of a cluster
    """
    groups = grouped(hosts, clusters)
    for name in groups:
        members = clusters.get(name, groups[name])
        missing = [member for member in members if member not in hosts]
        if missing:
            raise ValueError(
                f"cluster {name}: this run leaves out {', '.join(missing)}; its hosts are out of service together. "
                f"--limit {','.join(dict.fromkeys([*hosts, *members]))}"
            )
        groups[name] = list(members)
    return filled(groups.values(), size)


def grouped(hosts: Sequence[str], clusters: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the hosts in order, members of a cluster together, by the name of the host or cluster."""
    cluster_of = {host: name for name, members in clusters.items() for host in members}
    groups: dict[str, list[str]] = {}
    for host in hosts:
        groups.setdefault(cluster_of.get(host, host), []).append(host)
    return groups


def filled(groups: Iterable[Sequence[str]], size: int) -> list[list[str]]:
    """Return batches of whole groups with at most C(size) hosts; a larger group is a batch by itself."""
    result: list[list[str]] = []
    for group in groups:
        if result and len(result[-1]) + len(group) <= size:
            result[-1] += group
        else:
            result.append(list(group))
    return result


def lines_of(
    pending: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], held: Sequence[str], reboot: Sequence[str]
) -> list[str]:
    """Return an update as lines for people."""
    install = pending["install"]
    firmware = pending["firmware"]
    lines = [f"{len(install)} package{'s'[: len(install) != 1]}, {len(pending['remove'])} to be removed"]
    for kind in ("kernel", "driver", "docker", "dgx"):
        lines += [
            f"  {kind}: {package['name']} {package['old'] or 'new'} -> {package['new']}"
            for package in install
            if package["kind"] == kind
        ]
    lines += [f"  removed: {package['name']} {package['old']}" for package in pending["remove"]]
    if firmware is None:
        lines.append("firmware: cannot be asked (fwupdmgr)")
    else:
        lines.append(f"{len(firmware)} update{'s'[: len(firmware) != 1]} of firmware")
        lines += [f"  firmware: {device['name']} {device['old']} -> {device['new']}" for device in firmware]
    if held:
        lines.append(f"held back: {', '.join(held)}")
    lines += [f"reboot: {reason}" for reason in reboot]
    rows = (f"{finding['severity']}: {finding['message']} {finding['fix']} [{finding['rule']}]" for finding in findings)
    return [*lines, *rows]
