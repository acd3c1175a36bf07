#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List and install updates of packages and firmware of a DGX Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_update
short_description: List and install updates of packages and firmware of a DGX Spark
description:
  - Waits for other programs that install packages, refreshes the lists, and reports what C(apt-get dist-upgrade) and C(fwupdmgr) would do. Refuses kernels,
    drivers and pairs of driver and firmware that are known to break a Spark. Pins of DGX OS are never bypassed.
  - With O(state=updated) it installs the updates, packages first, firmware after them. It does not reboot; RV(reboot) says why a reboot is due.
options:
  state:
    description: V(look) changes no package; V(updated) installs the pending updates; V(idle) waits until no program installs anything.
    type: str
    choices: [look, updated, idle]
    default: look
  hold:
    description: Shell patterns of packages that are held back (C(apt-mark hold)). Packages that an earlier run held and that no pattern matches any more are
      released; holds of others stay.
    type: list
    elements: str
    default: []
  firmware:
    description: Whether firmware is updated.
    type: bool
    default: true
  ignore:
    description: Ids of rules that are not applied.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: Seconds to wait for other programs that install packages.
    type: int
    default: 1800
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - The lists of packages and firmware are refreshed.
notes:
  - Needs root.
"""

EXAMPLES = r"""
- name: List pending updates
  dgxspark.vllm.host_update:
  become: true
  register: pending

- name: Update, the kernel left as it is
  dgxspark.vllm.host_update:
    state: updated
    hold: ["linux-*"]
  become: true
"""

RETURN = r"""
pending:
  description: The updates that were pending when the module began, C(install), C(remove) and C(firmware), null without an answer of fwupd.
  returned: unless O(state=idle)
  type: dict
  sample: {"install": [{"name": "nvidia-driver-580-open", "old": "580.159.03-1", "new": "580.178.04-1", "kind": "driver"}], "remove": [], "firmware": []}
findings:
  description: Findings about pending updates that may break a Spark. An error among them prevents the update.
  returned: unless O(state=idle)
  type: list
  elements: dict
held:
  description: Packages that are held back.
  returned: unless O(state=idle)
  type: list
  elements: str
reboot:
  description: Why a reboot is due; empty without a reason.
  returned: unless O(state=idle)
  type: list
  elements: str
lines:
  description: The result for people.
  returned: unless O(state=idle)
  type: list
  elements: str
waited_seconds:
  description: Seconds of waiting for other programs.
  returned: always
  type: int
"""

import fcntl
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    driver_packages,
    host_lock,
    host_update,
    known_bad,
    machine,
    nvidia_smi,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import WORK_SECONDS, runner

ROOT = Path("/")
DRIVER_PACKAGE = "nvidia-driver-580-open"
OWN_HOLDS = "var/lib/dgxspark/holds.json"
POLL_SECONDS = 5
AT_LEAST_IDLE = 2
"""Consecutive looks that have to find all locks free: between two programs of one upgrade they are free for a moment."""


def holder_of(file: Path) -> str:
    """Return the program that holds a lock."""
    try:
        inode = file.stat().st_ino
        for line in (ROOT / "proc/locks").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[5].rsplit(":", 1)[-1] == str(inode):
                return f"{(ROOT / 'proc' / fields[4] / 'comm').read_text(encoding='utf-8').strip()} (pid {fields[4]})"
    except (OSError, LookupError):
        pass
    return "another program"


def busy() -> str:
    """Return which program holds a lock of dpkg or apt, empty if none does."""
    for name in host_update.LOCKS:
        file = ROOT / name
        if not file.exists():
            continue
        with file.open("r+b") as handle:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return f"{holder_of(file)} holds /{name}"
    return ""


class Host:
    """The host that the module runs on."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.run = runner(module, 3 * WORK_SECONDS)
        self.waited = 0
        self.installed: dict[str, str] = {}
        self.holds_change = False

    def wait_until_idle(self) -> None:
        """Wait until nobody installs anything."""
        began, idle = time.monotonic(), 0
        while True:
            try:
                who = busy()
            except PermissionError as error:
                self.module.fail_json(msg=f"{error.filename}: permission denied; updating needs root (become: true).")
                return
            idle = 0 if who else idle + 1
            self.waited = int(time.monotonic() - began)
            if idle >= AT_LEAST_IDLE:
                return
            if who and self.waited >= self.params["lock_timeout"]:
                self.module.fail_json(
                    msg=f"packages cannot be installed: {who}, still after {self.waited // 60} min. The dashboard's update, "
                    "unattended-upgrades and the upgrade after a first boot do that; wait for it, or see what it is at "
                    "(journalctl -u apt-daily-upgrade; ps).",
                    waited_seconds=self.waited,
                )
            time.sleep(POLL_SECONDS if who else POLL_SECONDS / 5)

    def must(self, argv: list[str], action: str) -> str:
        """Run a program that has to succeed; returns its output. action: for the message."""
        rc, out, err = self.run(argv)
        if rc != 0:
            tail = "\n".join((err.strip() or out.strip()).splitlines()[-8:])
            self.module.fail_json(
                msg=f"{action} failed ({' '.join(argv)} ended with {rc}): {tail}", waited_seconds=self.waited
            )
        return out

    def hold(self) -> list[str]:
        """Hold the packages of O(hold) and release those that only an earlier run held; returns all held packages."""
        file = ROOT / OWN_HOLDS
        held = set(self.must(["apt-mark", "showhold"], "asking for held packages").split())
        show = "--showformat=${Package} ${Version} ${db:Status-Status}\\n"
        listing = self.must(["dpkg-query", "--show", show], "listing packages")
        self.installed = {
            line.split()[0]: line.split()[1] for line in listing.splitlines() if line.endswith(" installed")
        }
        to_hold = set(host_update.matching(sorted(self.installed), self.params["hold"]))
        try:
            own_holds = set(parse_json(file.read_text(encoding="utf-8"), str(file)))
        except (OSError, ValueError):
            own_holds = set()
        add, drop = sorted(to_hold - held), sorted((own_holds & held) - to_hold)
        self.holds_change = bool(add or drop)
        if not self.module.check_mode and self.params["state"] == "updated":
            if add:
                self.must(["apt-mark", "hold", *add], "holding packages")
            if drop:
                self.must(["apt-mark", "unhold", *drop], "letting go of held packages")
            if add or drop:
                state_file.write_text(file, json.dumps(sorted((own_holds - set(drop)) | set(add))) + "\n")
        return sorted((held | to_hold) - set(drop))

    def pins(self, held: list[str]) -> list[str]:
        """Return options of apt that pin packages at their versions, for a simulation of held packages that holds nothing."""
        # Without a version apt would remove the package.
        preferences = "".join(
            f"Package: {name}\nPin: version {self.installed[name]}\nPin-Priority: 1001\n\n"
            for name in held
            if name in self.installed
        )
        file = Path(self.module.tmpdir, "held.pref")
        file.write_text(preferences, encoding="utf-8")
        if not held:
            return []
        # A folder with the pins of the host and these.
        folder = file.with_name("preferences.d")
        folder.mkdir(exist_ok=True)
        targets = {path.name: path for path in (ROOT / "etc/apt/preferences.d").glob("*")}
        for name, target in {**targets, "zz-held.pref": file}.items():
            if not (folder / name).exists():
                (folder / name).symlink_to(target)
        return ["-o", f"Dir::Etc::PreferencesParts={folder}"]

    def look(self, held: list[str]) -> dict[str, Any]:
        """Return the pending updates."""
        program, *options = host_update.SIMULATE
        text = self.must([program, *self.pins(held), *options], "asking what is pending")
        rc, out, _err = self.run(host_update.FIRMWARE_QUERY)
        return {**host_update.parse_upgrade(text), "firmware": host_update.parse_firmware(rc, out)}

    def facts(self) -> dict[str, Any]:
        """Return the facts of C(host_update.check). If no tool reports the running driver, C(driver) is the installed one."""
        release = machine.parse_dgx_release(machine.read_text(str(ROOT), "etc/dgx-release") or "") or {}
        driver, why = self.loaded_driver()
        return {
            "driver": driver or (self.installed_driver() if why else ""),
            "driver_unknown": why,
            "kernel": platform.release(),
            "ota": release.get("version"),
            "installed": self.installed,
            "no_initrd": self.no_initrd(),
        }

    def loaded_driver(self) -> tuple[str, str]:
        """Return the version of the loaded driver, empty without one, and why it is unknown.

        nvidia-smi fails after an update until the next reboot (18, driver/library version mismatch); the kernel still reports
        its module.
        """
        version, why = nvidia_smi.driver_version(self.run)
        loaded = (machine.read_text(str(ROOT), "sys/module/nvidia/version") or "").strip()
        return (loaded, "") if loaded and (version or why) else (version, why)

    def installed_driver(self) -> str:
        """Return the version of the driver's package, empty if it is not installed."""
        argv = ["dpkg-query", "--show", "--showformat=${Version}\\n", DRIVER_PACKAGE]
        rc, out, err = self.run(argv)
        if rc == 0 or (rc == 1 and "no packages found" in err):
            return out.strip() if rc == 0 else ""
        return self.must(argv, "asking which driver is installed").strip()

    def reboot(self, firmware: bool) -> list[str]:
        """Return why a reboot is due."""
        kernels = [file.name[len("vmlinuz-") :] for file in (ROOT / "boot").glob("vmlinuz-[0-9]*")]
        return host_update.reboot_reasons(
            (ROOT / "run/reboot-required").exists() or (ROOT / "var/run/reboot-required").exists(),
            platform.release(),
            kernels,
            self.loaded_driver()[0],
            self.installed_driver(),
            firmware,
        )

    def no_initrd(self) -> list[str]:
        """Return the kernels of /boot without an initial RAM disk."""
        files = [file.name for file in (ROOT / "boot").glob("*") if file.is_file() and file.stat().st_size]
        return driver_packages.kernels_without_initrd(files)

    def check_next_boot(self) -> None:
        """Fail before a reboot into a kernel that does not boot, or on which engines over several hosts do not start."""
        missing = self.no_initrd()
        if missing:
            self.module.fail_json(
                msg=f"the packages are updated; do not reboot yet: /boot has no initrd.img for kernel {', '.join(missing)}, and a boot into "
                f"it does not find the root file system. {host_update.initrd_fix(missing)} Then start the update again."
            )
        wrong = host_update.boots_without_option(machine.read_text(str(ROOT), "boot/grub/grub.cfg") or "")
        if wrong:
            self.module.fail_json(
                msg=f"the packages are updated; do not reboot yet: GRUB boots kernel {', '.join(wrong)} without "
                f"{known_bad.KHO_OFF}, so {known_bad.KEEPS_HANDOVER.why}. Reinstall {known_bad.KHO_PACKAGE}, run update-grub, see that the lines "
                "of /boot/grub/grub.cfg have it, and start the update again."
            )

    def update(self, pending: dict[str, Any]) -> None:
        """Install the pending updates."""
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        os.environ["NEEDRESTART_MODE"] = "l"  # services are stopped and started by the playbook, not by apt
        if pending["install"] or pending["remove"]:
            # A run that was cut off left packages unpacked.
            self.must(["dpkg", "--configure", "-a"], "finishing an earlier installation")
            self.wait_until_idle()
            timeout = f"DPkg::Lock::Timeout={self.params['lock_timeout']}"
            self.must([host_update.UPGRADE[0], "-o", timeout, *host_update.UPGRADE[1:]], "updating packages")
        if pending["firmware"] and self.params["firmware"]:
            rc, out, err = self.run(host_update.FIRMWARE_UPDATE)
            if rc not in (0, 2):
                tail = "\n".join((err.strip() or out.strip()).splitlines()[-5:])
                self.module.fail_json(
                    msg=f"the packages are updated, the firmware is not: fwupdmgr ended with {rc}: {tail}. Do not leave it "
                    "so: a newer driver may find no GPU with older firmware. Run fwupdmgr update on the host."
                )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["look", "updated", "idle"], "default": "look"},
            "hold": {"type": "list", "elements": "str", "default": []},
            "firmware": {"type": "bool", "default": True},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 1800},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = Host(module)
    host.wait_until_idle()
    if params["state"] == "idle":
        module.exit_json(changed=False, waited_seconds=host.waited)
    # In check mode too: the result depends on it.
    host.must(["apt-get", "--quiet", "update"], "refreshing the lists of packages")
    host.run(["fwupdmgr", "refresh", "--force"])  # without internet it uses its last list
    held = host.hold()
    pending = host.look(held)
    findings = [
        finding.to_dict()
        for finding in host_update.check(pending, host.facts(), params["firmware"])
        if finding.rule not in params["ignore"]
    ]
    has_firmware = params["firmware"] and bool(pending["firmware"])
    is_updated = params["state"] == "updated"
    has_work = bool(pending["install"] or pending["remove"]) or has_firmware or host.holds_change
    result: dict[str, Any] = {
        "changed": is_updated and has_work,
        "pending": pending,
        "findings": findings,
        "held": held,
    }
    if is_updated:
        carry_out(host, result)
    reboot = host.reboot(has_firmware and is_updated)
    module.exit_json(
        **result,
        reboot=reboot,
        lines=host_update.lines_of(pending, findings, held, reboot),
        waited_seconds=host.waited,
    )


def carry_out(host: Host, result: dict[str, Any]) -> None:
    """Install the pending updates, unless a finding forbids it or this is check mode. result: of the module so far."""
    errors = [finding for finding in result["findings"] if finding["severity"] == "error"]
    if errors:
        fixes = "\n- ".join(f"{finding['message']} {finding['fix']} [{finding['rule']}]" for finding in errors)
        host.module.fail_json(msg=f"nothing was updated:\n- {fixes}", **{**result, "changed": False})
    if not host.module.check_mode:
        with host_lock.held(host.module):
            host.update(result["pending"])
            host.check_next_boot()


if __name__ == "__main__":
    main()
