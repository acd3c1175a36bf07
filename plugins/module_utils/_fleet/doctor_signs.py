# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known faults in the log of a host's kernel, and doctor's question to engines. C(host_health.py) uses them on the host.

C(doctor.py) makes findings of the faults on the controller. C(_proof/explain.py) explains logs of engines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

QUESTION = "Write three sentences about the sea."
ANSWER_TOKENS = 64
FAN = "doctor.fan"
"""Only a fault of an idle host that is warm; see C(doctor.check_logs)."""


@dataclass(frozen=True)
class Sign:
    """A known fault: id, severity, pattern of its line in the log, message and fix."""

    rule: str
    severity: str
    pattern: str
    message: str
    fix: str


KERNEL_SIGNS = (
    Sign(
        "doctor.gpu_memory_refused",
        "error",
        r"NVRM: .*NV_ERR_NO_MEMORY",
        "the driver could not allocate memory; whole hosts froze after this line",
        "Lower gpu-memory-utilization of the largest service, or spread the services; reboot if the GPU does not answer.",
    ),
    Sign(
        "doctor.gpu_fault",
        "error",
        r"NVRM: Xid",
        "the GPU reported a fault (Xid)",
        "Look up the number in NVIDIA's list of Xid errors; restart the service, and reboot if it happens again.",
    ),
    Sign(
        "doctor.driver_mismatch",
        "error",
        r"NVRM: API mismatch",
        "kernel module and libraries of the driver have different versions",
        "Reboot: the driver was updated while it was in use.",
    ),
    Sign(
        "doctor.module_key",
        "error",
        # Loading of unsigned module is rejected; nvidia: module with unavailable key is rejected; modprobe's text of EKEYREJECTED.
        r"(?:unsigned module|module with un\w+ \w+) is rejected|Key was rejected by service|unsigned module loading is restricted",
        "Secure Boot refused a kernel module whose key is not enrolled (MOK); without the driver's module no GPU is found",
        "Install the signed modules of DGX OS (apt install --reinstall of the driver's packages), or enroll the key of modules that are "
        "built on the host: mokutil --import /var/lib/shim-signed/mok/MOK.der, reboot, Enroll MOK at the screen; or switch Secure Boot off.",
    ),
    Sign(
        "doctor.pcie_fault",
        "error",
        r"AER: (?:Multiple )?Uncorrect(?:able|ed).*Fatal|mlx5_pci_slot_reset",
        "the bus of the ConnectX-7 had a fatal error; the network of the cluster hangs after it",
        "Reboot; if it happens again, update the firmware (fwupdmgr update) and power off for a minute.",
    ),
    Sign(
        "doctor.oom_killed",
        "error",
        r"Out of memory: Killed process",
        "the kernel killed a process because memory was used up",
        "See which in `journalctl -k -b -g 'Killed process'`; plan with a larger spark_os_reserve_gib, or remove a "
        "service from the host.",
    ),
    Sign(
        "doctor.disk_fault",
        "error",
        r"I/O error, dev |EXT4-fs error|nvme\S* .*(?:timeout, aborting|controller is down)",
        "a disk reported errors",
        "Look at it (nvme smart-log /dev/nvme0; journalctl -k -b), and back up data that is only there.",
    ),
    Sign(
        "doctor.heat",
        "warning",
        r"thermal.*(?:critical|throttl)|CPU clock throttled",
        "the host became too hot",
        "Improve its cooling; a lower clock was reported to save 10 degrees and more: spark_gpu_clocks: "
        "{max_mhz: 2200}, then site.yml.",
    ),
    Sign(
        FAN,
        "warning",
        r"cx7-pcie-hotplug .*Cable removal",
        "the host is warm while nothing runs, and its ConnectX-7 is off the bus because no cable is plugged in; two "
        "owners reported that the fan "
        "stops then, for an unknown reason",
        "Check whether the fan turns. Plug in a QSFP cable or a display, and shut the host down if it gets hotter.",
    ),
)
"""Faults in the log since the boot, of the kernel and of the programs that load its modules."""


def count_signs(lines: Sequence[str], signs: Sequence[Sign]) -> dict[str, dict[str, Any]]:
    """Count the signs in lines of a log: C({rule: {count, last}}) with the last line, shortened for a message."""
    patterns = [(sign.rule, re.compile(sign.pattern)) for sign in signs]
    counts: dict[str, dict[str, Any]] = {}
    for line in lines:
        for rule, pattern in patterns:
            if pattern.search(line):
                entry = counts.setdefault(rule, {"count": 0, "last": ""})
                entry["count"] += 1
                entry["last"] = " ".join(line.split())[:200]
    return counts
