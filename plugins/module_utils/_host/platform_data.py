# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels, drivers, DGX OS releases and packages of a Spark, with what their users report of them. Data only; C(known_bad) reads it."""

from __future__ import annotations

from typing import Any

# kernel, driver, dgx_os: begin of the version that is meant; all that a row names have to be there. other_driver: every driver
# whose version does not begin so. option: whether the kernel's command line has kho=off (true) or lacks it (false). package and
# version: of Debian. clusters_only: it matters to engines over several hosts.
# verdict: good; bad, which an update refuses; or doubtful, one report or less, of which it is warned.
# A good row of a longer kernel's name goes before a bad one of a shorter. why and fix: of rows that are not good.
# date: when the sources were read.
_T374275 = "NVIDIA developer forum t/374275"
_KHO = "memory kept for kexec handover, some 9 GiB, cannot be registered for RDMA: no engine over several hosts starts"
_KHO_FIX = "Boot it with kho=off: apt install nvidia-spark-grub-kho, then update-grub and reboot."
_KHO_SOURCE = "NVIDIA/NV-Kernels#590, MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259"
_OTHER_KERNEL = "Boot another kernel of DGX OS."

ROWS: tuple[dict[str, Any], ...] = (
    {
        "kernel": "6.17.0-1008-nvidia",
        "verdict": "bad",
        "why": "panics were reported",
        "fix": _OTHER_KERNEL,
        "source": "NVIDIA developer forum t/366026",
        "date": "2026-11-22",
    },
    {
        "kernel": "6.17.0-1021-nvidia",
        "verdict": "bad",
        "why": "the ConnectX-7 may drop off the bus by itself",
        "fix": _OTHER_KERNEL,
        "source": _T374275,
        "date": "2026-11-22",
    },
    {
        "kernel": "6.17.0-1029-nvidia",
        "driver": "580.173.02",
        "verdict": "good",
        "source": "the known good baseline of the owner of a pair, 2026-08-11",
        "date": "2026-11-28",
    },
    {
        "kernel": "6.17.0-1029-nvidia",
        "verdict": "doubtful",
        "why": "one thread reports that the ConnectX-7 dropped off the bus by itself; the owner of a pair keeps it as a good baseline",
        "fix": _OTHER_KERNEL,
        "source": _T374275,
        "date": "2026-11-28",
    },
    {
        "kernel": "6.17.0-1031-nvidia",
        "driver": "580.173.02",
        "verdict": "good",
        "source": "three owners of pairs, MiaAI-Lab and FujitsuPolycom/sparkring#173 among them",
        "date": "2026-11-22",
    },
    {
        "kernel": "6.17.0-1032-nvidia",
        "driver": "580.173.02",
        "verdict": "good",
        "source": "four fleets, one of eight Sparks; kho=off changes nothing there, for it keeps none by default",
        "date": "2026-11-22",
    },
    {
        "kernel": "6.17.0-1032-nvidia",
        "driver": "580.178.04",
        "verdict": "good",
        "source": "christopherowen/spark-ds41f, which keeps it as the kernel to go back to",
        "date": "2026-11-22",
    },
    {
        "kernel": "6.17.0-1032-nvidia",
        "driver": "595.84",
        "verdict": "doubtful",
        "why": "one owner's hosts froze during one long prompt, with nothing in their logs; also with 580.173.02",
        "fix": "Go back to the driver of DGX OS (580).",
        "source": "NVIDIA/open-gpu-kernel-modules#1358, told again in vllm-project/vllm#55569",
        "date": "2026-11-22",
    },
    {
        "kernel": "7.0",
        "option": False,
        "verdict": "bad",
        "clusters_only": True,
        "why": _KHO,
        "fix": _KHO_FIX,
        "source": _KHO_SOURCE,
        "date": "2026-11-22",
    },
    {
        "kernel": "7.0.0-1019-nvidia",
        "option": True,
        "driver": "580.178.04",
        "verdict": "good",
        "source": "five fleets in service, christopherowen/spark-ds41f and eugr/spark-vllm-docker among them; DGX OS 7.6.0 as it is",
        "date": "2026-11-22",
    },
    {
        "kernel": "7.0.0-1019-nvidia-64k",
        "option": True,
        "driver": "580.178.04",
        "verdict": "good",
        "source": "christopherowen/spark-ds41f, one owner",
        "date": "2026-11-22",
    },
    {
        "kernel": "7.0.0-30-generic",
        "option": False,
        "verdict": "good",
        "source": "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259, one owner; 7.0.0-31 of the same series keeps memory",
        "date": "2026-11-22",
    },
    {
        "kernel": "7.0.0-31-generic",
        "option": True,
        "verdict": "good",
        "source": "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259, one owner",
        "date": "2026-11-22",
    },
    {
        "driver": "580.173",
        "dgx_os": "7.5.0",
        "verdict": "bad",
        "why": "the GPU was gone after the driver came without the firmware of its release",
        "fix": "Bring driver and firmware to the same DGX OS release (update_host.yml, or the DGX Dashboard), or go back to driver 580.159.03.",
        "source": "apt upgrade 580.159.03 to 580.173.02 on OTA2607, NVIDIA developer forum",
        "date": "2026-11-22",
    },
    {
        "other_driver": "580",
        "verdict": "bad",
        "why": "other branches than DGX OS's (580) were reported to keep memory after an engine has ended, or to hang the host",
        "fix": "Go back to the driver of DGX OS unless you know why you left it.",
        "source": "NVIDIA staff, forum, 2026-03; NVIDIA/open-gpu-kernel-modules#1358",
        "date": "2026-11-22",
    },
    {
        "package": "nvidia-container-toolkit",
        "version": "1.19.1",
        "verdict": "bad",
        "why": "containers freeze when it writes their CDI specification",
        "fix": "Take another version of the package.",
        "source": "NVIDIA/nvidia-container-toolkit#1910",
        "date": "2026-11-22",
    },
)
