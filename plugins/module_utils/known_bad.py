# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels, drivers, packages and pairs of them that are reported to break a Spark. The one list: the plan warns of what runs by it, the
doctor finds what runs by it, and an update refuses by it what would come. Data and comparisons, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Begin of a kernel's release -> what its users reported, and where.
KERNELS: dict[str, tuple[str, str]] = {
    "6.17.0-1008-nvidia": ("panics were reported", "NVIDIA developer forum t/366026"),
    "6.17.0-1021-nvidia": ("the ConnectX-7 may drop off the bus by itself", "NVIDIA developer forum t/374275"),
    "6.17.0-1029-nvidia": ("the ConnectX-7 may drop off the bus by itself", "NVIDIA developer forum t/374275"),
    "7.0.0-1019-nvidia": ("RDMA cannot register memory (CmaTotal is 0)", "luxingcom/aicad-nccl-optimization#1"),
    "7.0.0-31": (
        "RDMA cannot register memory, the driver runs out of it",
        "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259",
    ),
}
# Branches that DGX OS carries. Others were reported to keep memory after an engine has ended, or to wedge the host.
DRIVER_BRANCHES = ("580",)
# Name and version of a package -> what its users reported, and where.
PACKAGES: dict[tuple[str, str], tuple[str, str]] = {
    ("nvidia-container-toolkit", "1.19.1"): (
        "containers freeze when it writes their CDI specification",
        "NVIDIA/nvidia-container-toolkit#1910",
    ),
}


@dataclass(frozen=True)
class Pair:
    """A driver that does not go with something else of the host.

    driver: begin of its version. part: C(kernel), or C(dgx_os), which stands for the firmware that came with it. begin: of that
    part's version. fix: where it runs already.
    """

    driver: str
    part: str
    begin: str
    why: str
    fix: str
    source: str

    def holds(self, driver: str, part: str) -> bool:
        """Whether a host with these two is meant."""
        return begins(driver, self.driver) and begins(part, self.begin)

    def comes(self, old: str, new: str, part: str) -> bool:
        """Whether a host comes to it, or past it, by a change of the driver; one that is past it already stays there."""
        step = version_key(self.driver)
        return begins(part, self.begin) and version_key(old) < step <= version_key(new)


PAIRS: tuple[Pair, ...] = (
    Pair(
        "580.173",
        "dgx_os",
        "7.5.0",
        "the GPU was gone after the driver came without the firmware of its release",
        "Bring driver and firmware to the same DGX OS release (update_host.yml, or the DGX Dashboard), or go back to driver 580.159.03.",
        "apt upgrade 580.159.03 to 580.173.02 on OTA2607, NVIDIA developer forum",
    ),
    Pair(
        "595.84",
        "kernel",
        "6.17.0-1032-nvidia",
        "whole hosts froze during one long prompt, with nothing in their logs",
        "Go back to the driver of DGX OS (580).",
        "NVIDIA/open-gpu-kernel-modules#1358",
    ),
)


def version_key(text: str) -> tuple[int, ...]:
    """Read the numbers of a driver's version, as a package or as C(nvidia-smi) writes it; empty for one that is not known."""
    found = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def begins(text: str, begin: str) -> bool:
    """Whether a version is C(begin) or goes on behind it, at the end of a number."""
    return text.startswith(begin) and not text[len(begin) : len(begin) + 1].isdigit()


def bad_kernel(release: str) -> tuple[str, str] | None:
    """Return what is reported of a kernel, and where; None when nothing is."""
    return next((known for begin, known in KERNELS.items() if begins(release, begin)), None)
