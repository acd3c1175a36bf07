# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Updates of DGX OS and firmware: what is pending, what of it is known to break a Spark, who goes in which batch. Pure functions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._common.findings import Finding
from .._common.foreign_text import parse_json
from .driver_packages import other_branch, release_key, version_key
from .known_bad import BAD, KEEPS_HANDOVER, KHO_OFF, KHO_PACKAGE, TABLE, Row, against, against_package

SIMULATE = ["apt-get", "--simulate", "--quiet", "dist-upgrade"]
UPGRADE = [
    "apt-get",
    "--assume-yes",
    "--quiet",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "dist-upgrade",
]
"""Never past a pin and never an unsigned archive: DGX OS pins what must not come from elsewhere."""
FIRMWARE_QUERY = ["fwupdmgr", "get-updates", "--json"]
FIRMWARE_UPDATE = ["fwupdmgr", "update", "--assume-yes", "--no-reboot-check"]

LOCKS = ("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/lib/apt/lists/lock", "var/cache/apt/archives/lock")

NOT_TO_GO = (
    "docker",
    "containerd",
    "nvidia-driver",
    "nvidia-container",
    "dgx-",
    "nvidia-spark",
    "linux-image",
    "openssh-server",
    "netplan",
)
"""Beginnings of packages whose removal means that an upgrade has gone wrong before it began."""

_KERNEL = re.compile(r"linux-image-(?:unsigned-)?(\d[\w.]*-[\w.-]+)")
# From branch 590 on Ubuntu's packages have no branch in their names: then it is that of the version.
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
    return {
        "install": sorted(
            (
                {"name": name.split(":")[0], "old": old or "", "new": new, "kind": kind_of(name)}
                for name, old, new in _INST.findall(text)
            ),
            key=lambda each: each["name"],
        ),
        "remove": sorted(
            ({"name": name.split(":")[0], "old": old or ""} for name, old in _REMV.findall(text)), key=str
        ),
    }


def parse_firmware(rc: int, text: str) -> list[dict[str, str]] | None:
    """Parse C(FIRMWARE_QUERY): C([{name, old, new}]); None where there is no fwupd, or it cannot answer.

    It ends with 2 when there is nothing to do.
    """
    if rc == 2:
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
    """Say how to make the initial RAM disks of kernels."""
    commands = "; ".join(f"update-initramfs -c -k {kernel}" for kernel in kernels)
    return f"Make it on the host ({commands}; update-grub), with room in /boot (df /boot), or remove that kernel (apt purge)."


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that one of the shell patterns matches."""
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def check(pending: Mapping[str, Any], facts: Mapping[str, Any], firmware_wanted: bool) -> list[Finding]:
    """Say what of an update is known to break a Spark; errors are not carried out.

    :param pending: install, remove (see C(parse_upgrade)) and firmware (see C(parse_firmware))
    :param facts: C(driver) and C(kernel), those that run, C(ota), the version of DGX OS after its last update, and
        C(driver_unknown), why C(driver) is not known to run; C(installed), versions of packages by name; C(no_initrd), see
        C(kernels_without_initrd)
    :param firmware_wanted: whether firmware is brought by the same run
    :returns: findings
    """
    findings: list[Finding] = []

    def add(rule: str, severity: str, message: str, fix: str, source: str = "") -> None:
        findings.append(
            Finding(rule=rule, severity=severity, message=message, fix=fix, source=source, basis="measured")
        )

    coming = [package["new"] for package in pending["install"] if _DRIVER.fullmatch(package["name"])]
    driver = coming[0].partition(":")[2] or coming[0] if coming else str(facts.get("driver") or "")
    for package in pending["install"]:
        _check_package(package, driver, add)
    gone = [each["name"] for each in pending["remove"] if each["name"].startswith(NOT_TO_GO)]
    kept = {each["name"] for each in pending["install"]}
    # A driver's package is replaced by that of the next branch; the branch is judged by itself.
    lost = [name for name in gone if name not in kept]
    if lost:
        add(
            "update.removes",
            "error",
            f"the update would remove {', '.join(lost)}.",
            "See why on the host (apt-get --simulate dist-upgrade): an archive that is missing, or a package from elsewhere.",
        )
    if facts.get("driver_unknown"):
        add(
            "update.driver_unknown",
            "warning",
            f"which driver runs is not known: {facts['driver_unknown']}. What is pending is judged by the driver that is installed "
            f"({facts.get('driver') or 'none'}).",
            "See nvidia-smi and journalctl --dmesg on the host; a driver that was updated needs a reboot.",
        )
    _check_driver(pending, facts, firmware_wanted, add)
    _check_mixed_driver(pending, facts, add)
    if facts.get("no_initrd"):
        add(
            "update.initrd",
            "error",
            f"/boot has no initrd.img for kernel {', '.join(facts['no_initrd'])}: a boot into it does not find the root file system.",
            initrd_fix(facts["no_initrd"]),
        )
    _check_kernels(pending, facts, add)
    _check_handover(pending, facts, add)
    return findings


def _check_package(package: Mapping[str, str], driver_version: str, add: Callable[..., None]) -> None:
    """Judge one package by its name and version. driver_version: of the driver that runs after the update."""
    name, new = package["name"], package["new"]
    kernel = _KERNEL.fullmatch(name)
    for row in against({"kernel": kernel.group(1), "driver": driver_version}) if kernel else ():
        if row.subject != "kernel":
            continue
        add(
            "update.kernel",
            _severity(row),
            f"kernel {kernel.group(1) if kernel else ''}: {row.why}.",
            'Hold it back until a later one comes: spark_update_hold: ["linux-*"].',
            row.source,
        )
    driver = _DRIVER.fullmatch(name)
    # A branch is in the name of the package, or is that of its version; the revision says nothing.
    branch = (driver.group(1) or str(next(iter(version_key(new)), ""))) if driver else ""
    for row in against({"driver": branch}):
        if row.subject == "branch":
            add(
                "update.driver_branch",
                _severity(row),
                f"{name} {new}: {row.why}.",
                f'Hold it back: spark_update_hold: ["{name}"], and see which archive it comes from (apt-cache policy {name}).',
                row.source,
            )
    if driver and not package["old"] and "open" not in name:
        add(
            "update.driver_closed",
            "error",
            f"{name} {new} has the proprietary kernel modules, with which a GB10 is found and never comes up.",
            f'Take the package with -open of the same version, as DGX OS does; hold this one back: spark_update_hold: ["{name}"].',
            "NVIDIA's README of the driver; Start9Labs/start-technologies#3693",
        )
    for row in against_package(name, new):
        add(
            "update.package",
            _severity(row),
            f"{name} {new}: {row.why}.",
            f'Hold it back: spark_update_hold: ["{name}*"].',
            row.source,
        )


def _severity(row: Row) -> str:
    """What is not proven is not refused."""
    return "error" if row.verdict == BAD else "warning"


def _check_driver(
    pending: Mapping[str, Any], facts: Mapping[str, Any], firmware_wanted: bool, add: Callable[..., None]
) -> None:
    """Driver and firmware move together: a driver on older firmware may find no GPU."""
    drivers = [each for each in pending["install"] if _DRIVER.fullmatch(each["name"])]
    if not drivers:
        return
    new, firmware = drivers[0], pending["firmware"]
    old = str(facts.get("driver") or new["old"])
    if version_key(old) == version_key(new["new"]):
        return
    move = f"driver {old} -> {new['new']}"
    if firmware and not firmware_wanted:
        named = ", ".join(each["name"] for each in firmware)
        add(
            "update.driver_firmware",
            "error",
            f"{move}, while firmware is pending that this run leaves out ({named}): the two move together.",
            'Leave spark_update_firmware at true, or hold the driver: spark_update_hold: ["nvidia-*", "libnvidia-*"].',
        )
    elif firmware is None:
        add(
            "update.firmware_unknown",
            "warning",
            f"{move}, and whether firmware belongs to it cannot be asked: fwupdmgr is missing or does not answer.",
            "Install fwupd, or see in the DGX Dashboard that the firmware is up to date.",
        )
    ota = str(facts.get("ota") or "")
    for row in TABLE if not firmware else ():
        if row.subject == "pair" and row.dgx_os and row.comes(old, new["new"], ota):
            add(
                "update.driver_firmware",
                _severity(row),
                f"{move} on the firmware of DGX OS {ota}, and no newer firmware is there to come with it: {row.why}.",
                'Update by the DGX Dashboard, which brings both, or hold the driver: spark_update_hold: ["nvidia-*", "libnvidia-*"].',
                row.source,
            )


def _check_mixed_driver(pending: Mapping[str, Any], facts: Mapping[str, Any], add: Callable[..., None]) -> None:
    """Parts of a driver of another branch, which come without the driver's own package: module and libraries differ after the next boot."""
    driver = "" if facts.get("driver_unknown") else str(facts.get("driver") or "")
    coming = {package["name"]: package["new"] for package in pending["install"]}
    whole = {next(iter(other_branch({name: coming[name]}, driver)), "") for name in coming if _DRIVER.fullmatch(name)}
    gone = {package["name"] for package in pending["remove"]}
    there = {
        name: version for name, version in dict(facts.get("installed") or {}).items() if name not in {*coming, *gone}
    }
    for packages, severity, state in ((coming, "error", "would be installed"), (there, "warning", "are installed")):
        for branch, names in other_branch(packages, driver).items():
            if state == "are installed" or branch not in whole:  # a whole driver is judged by its branch
                add(
                    "update.driver_mixed",
                    severity,
                    f"driver {driver} is loaded, and packages of branch {branch} {state}: {', '.join(names)}. With a kernel module and "
                    "libraries of different branches no GPU is found after a boot.",
                    f'Hold them back (spark_update_hold: ["*nvidia-*-{branch}*"]) and see which archive they come from (apt-cache policy).'
                    if severity == "error"
                    else f"Remove them (apt purge {' '.join(names)}), or install the whole driver of one branch, before the next reboot.",
                )


def _check_kernels(pending: Mapping[str, Any], facts: Mapping[str, Any], add: Callable[..., None]) -> None:
    """A kernel and a driver that hosts failed with, whichever of the two comes; what runs already is for the doctor to say."""
    drivers = [each["new"] for each in pending["install"] if _DRIVER.fullmatch(each["name"])]
    matched = [_KERNEL.fullmatch(each["name"]) for each in pending["install"]]
    releases = [found.group(1) for found in matched if found]
    runs = {"driver": str(facts.get("driver") or ""), "kernel": str(facts.get("kernel") or "")}
    for release in releases or [runs["kernel"]]:
        then = {"driver": drivers[0] if drivers else runs["driver"], "kernel": release}
        for row in against(then):
            if row.subject == "pair" and not row.holds(runs):
                add(
                    "update.driver_pair",
                    _severity(row),
                    f"{row.of(then)}: {row.why}.",
                    'Hold one of them back: spark_update_hold: ["linux-*"], or ["nvidia-*", "libnvidia-*"].',
                    row.source,
                )


def _check_handover(pending: Mapping[str, Any], facts: Mapping[str, Any], add: Callable[..., None]) -> None:
    """A kernel that keeps memory for kexec handover comes with the package that switches it off, or not at all."""
    names = {each["name"] for each in pending["install"]} | set(facts.get("installed") or ())
    names -= {each["name"] for each in pending["remove"]}
    for package in pending["install"]:
        found = _KERNEL.fullmatch(package["name"])
        if found and _keeps_handover(found.group(1), KHO_PACKAGE in names):
            add(
                "update.kernel_option",
                "error",
                f"kernel {found.group(1)} comes without {KHO_PACKAGE}, which boots it with {KHO_OFF}; else {KEEPS_HANDOVER.why}.",
                f'Install it (apt install {KHO_PACKAGE}), or hold the kernel: spark_update_hold: ["linux-*"].',
                KEEPS_HANDOVER.source,
            )


def _keeps_handover(release: str, option: bool) -> bool:
    """Whether a kernel will keep memory for kexec handover; option: whether it is booted with C(KHO_OFF)."""
    return any(row.subject == "option" for row in against({"kernel": release, "option": option}))


def boots_without_option(grub: str) -> list[str]:
    """Return the kernels of C(grub.cfg) that need C(kho=off) and have an entry that boots them without it.

    :param grub: the text of the file
    :returns: releases, each once
    """
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
    """Say why a host has to be rebooted.

    :param required: whether C(/run/reboot-required) is there
    :param running_kernel: its release
    :param kernels: releases below C(/boot)
    :param loaded_driver: version of the module that runs, or empty
    :param installed_driver: version of its package, or empty
    :param firmware: whether an update of it waits for a boot
    :returns: reasons, none where it need not be
    """
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
    """Say which QSFP interfaces came back other than they were: writing firmware can reset their MTU, or take them off the bus."""

    def mtus(fabric: Mapping[str, Any]) -> dict[str, Any]:
        return {link["name"]: link.get("mtu") for port in fabric.get("ports") or [] for link in port["netdevs"]}

    was, now = mtus(before or {}), mtus(after or {})
    return [
        f"{name} is gone" if name not in now else f"{name} has an MTU of {now[name]}, before it was {mtu}"
        for name, mtu in sorted(was.items())
        if now.get(name) != mtu
    ]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare a host's facts after an update with those before: what is worse, each with its fix, and what is new."""
    worse = []
    if before.get("gpu") and not after.get("gpu"):
        worse.append(
            "nvidia-smi finds no GPU any more: driver and firmware do not fit. Bring the firmware (fwupdmgr update, or the DGX "
            "Dashboard), or go back to the driver from before; then take the power off for a minute."
        )
    if (before.get("docker") or {}).get("version") and not (after.get("docker") or {}).get("version"):
        worse.append("no Docker engine answers any more. See why: systemctl status docker; journalctl -u docker.")
    worse += [
        f"{change}. Bring the network back: dgxspark.vllm.site --tags fabric; an interface that is gone may need the power off."
        for change in changed_links(before.get("fabric") or {}, after.get("fabric") or {})
    ]

    def versions(facts: Mapping[str, Any]) -> dict[str, str]:
        return {
            "kernel": str(facts.get("kernel") or ""),
            "driver": str((facts.get("gpu") or {}).get("driver_version") or ""),
            "DGX OS": str((facts.get("dgx_os") or {}).get("version") or ""),
        }

    was, now = versions(before), versions(after)
    return worse, [f"{what} {was[what]} -> {now[what]}" for what in was if now[what] and was[what] != now[what]]


def batches(hosts: Sequence[str], clusters: Mapping[str, Sequence[str]], size: int) -> list[list[str]]:
    """Put hosts into batches of at most C(size), in their order; the hosts of a cluster are never split, however many they are.

    :param hosts: in order
    :param clusters: name to hosts
    :param size: most hosts of a batch
    :returns: batches
    :raises ValueError: when a cluster is there in part
    """
    of = {host: (name, members) for name, members in clusters.items() for host in members}
    groups: list[list[str]] = []
    seen: set[str] = set()
    for host in hosts:
        if host in seen:
            continue
        name, members = of.get(host, ("", [host]))
        missing = [each for each in members if each not in hosts]
        if missing:
            raise ValueError(
                f"cluster {name}: this run leaves out {', '.join(missing)}; its hosts are out of service together. "
                f"--limit {','.join(dict.fromkeys([*hosts, *members]))}"
            )
        groups.append(list(members))
        seen |= set(members)
    found: list[list[str]] = []
    for group in groups:
        if found and len(found[-1]) + len(group) <= size:
            found[-1] += group
        else:
            found.append(list(group))
    return found


def lines_of(
    pending: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], held: Sequence[str], reboot: Sequence[str]
) -> list[str]:
    """Write for people what an update is.

    :param pending: see C(check)
    :param findings: of C(check), as plain dicts
    :param held: packages that are held back
    :param reboot: of C(reboot_reasons)
    :returns: lines
    """
    install = pending["install"]
    firmware = pending["firmware"]
    lines = [f"{len(install)} package{'s'[: len(install) != 1]}, {len(pending['remove'])} to be removed"]
    for kind in ("kernel", "driver", "docker", "dgx"):
        lines += [
            f"  {kind}: {each['name']} {each['old'] or 'new'} -> {each['new']}"
            for each in install
            if each["kind"] == kind
        ]
    lines += [f"  removed: {each['name']} {each['old']}" for each in pending["remove"]]
    if firmware is None:
        lines.append("firmware: cannot be asked (fwupdmgr)")
    else:
        lines.append(f"{len(firmware)} update{'s'[: len(firmware) != 1]} of firmware")
        lines += [f"  firmware: {each['name']} {each['old']} -> {each['new']}" for each in firmware]
    if held:
        lines.append(f"held back: {', '.join(held)}")
    lines += [f"reboot: {reason}" for reason in reboot]
    lines += [f"{each['severity']}: {each['message']} {each['fix']} [{each['rule']}]" for each in findings]
    return lines
