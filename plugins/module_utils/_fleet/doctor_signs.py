# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What means something in the logs of a host and of its engines, and the question that an engine is asked. Of what hosts are sent, for doctor_info.

What it means is said by C(doctor.py), on the controller.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

QUESTION = "Write three sentences about the sea."
ANSWER_TOKENS = 64
FAN = "doctor.fan"
"""A sign that says something of a host that is warm while nothing runs; see C(doctor.check_heat)."""
PINNED, PINNED_BEFORE = "doctor.memory_pinned", "0.24.0"
"""A sign that says something of vLLM before that version."""


@dataclass(frozen=True)
class Sign:
    """A line of a log that means something: what it is called, how bad, what it says and what to do."""

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
        "the driver was refused memory; whole hosts froze after that line",
        "Lower gpu-memory-utilization of the largest service, or spread the services; reboot if the GPU does not answer.",
    ),
    Sign(
        "doctor.gpu_fault",
        "error",
        r"NVRM: Xid",
        "the GPU reported a fault (Xid)",
        "Look the number up in NVIDIA's list of Xid errors; restart the service, and reboot if it comes again.",
    ),
    Sign(
        "doctor.driver_mismatch",
        "error",
        r"NVRM: API mismatch",
        "kernel module and libraries of the driver are of different versions",
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
        "Reboot; if it comes again bring the firmware up to date (fwupdmgr update) and take the power off for a minute.",
    ),
    Sign(
        "doctor.oom_killed",
        "error",
        r"Out of memory: Killed process",
        "the kernel killed a process because memory was used up",
        "See which in `journalctl -k -b -g 'Killed process'`; plan with a larger spark_reserve_gib, or take a service off the host.",
    ),
    Sign(
        "doctor.disk_fault",
        "error",
        r"I/O error, dev |EXT4-fs error|nvme\S* .*(?:timeout, aborting|controller is down)",
        "a disk reported errors",
        "Look at it (nvme smart-log /dev/nvme0; journalctl -k -b), and keep what is only there.",
    ),
    Sign(
        "doctor.heat",
        "warning",
        r"thermal.*(?:critical|throttl)|CPU clock throttled",
        "the host became too hot",
        "Give it air; a lower clock was reported to take 10 degrees and more off: spark_gpu_clocks: {max_mhz: 2200}, then site.yml.",
    ),
    Sign(
        FAN,
        "warning",
        r"cx7-pcie-hotplug .*Cable removal",
        "the host is warm while nothing runs, and its ConnectX-7 was taken off the bus for want of a cable; two owners reported a fan that "
        "stands still then, for reasons that are not known",
        "See whether the fan turns. Plug in a QSFP cable or a display, and shut the host down if it gets hotter.",
    ),
)
"""Of the log since the boot of the kernel and of the programs that load its modules."""

ENGINE_SIGNS = (
    Sign(
        "doctor.local_media",
        "warning",
        r"allowed[-_]local[-_]media[-_]path",
        "a request named a picture or video by a path of the host, and was refused",
        "Set allowed-local-media-path in args and mount the folder by docker_args, or have clients send URLs or data.",
    ),
    Sign(
        "doctor.chat_template",
        "warning",
        r"jinja2\.exceptions\.|Error in applying chat template|chat template .*(?:failed|invalid)",
        "the chat template could not be applied to a request",
        "Mount a corrected template by files, with chat-template in args; the checkpoint's own may not know tools or roles.",
    ),
    Sign(
        "doctor.cuda_memory",
        "error",
        r"CUDA error: out of memory|torch\.OutOfMemoryError|CUDA out of memory",
        "the GPU had no memory left for the engine",
        "Lower gpu-memory-utilization or max-num-seqs of it, and plan again with spark_plan_facts=auto.",
    ),
    Sign(
        "doctor.ptx",
        "error",
        r"cudaErrorUnsupportedPtxVersion|unsupported toolchain",
        "the image's CUDA is newer than the driver of the host",
        "Take an image of the driver's CUDA (rule SPK308), or bring the host to the next DGX OS release.",
    ),
    Sign(
        "doctor.no_space",
        "error",
        r"No space left on device",
        "there was no room on a disk, or in /dev/shm",
        "See the disks in this report; spark_shm_size is what the container has as /dev/shm.",
    ),
    Sign(
        "doctor.rdma_memory",
        "error",
        r"ibv_reg_mr\S* failed|Call to ibv_reg_mr",
        "NCCL could not register memory with the ConnectX-7",
        "Set no memlock limit (--ulimit memlock=-1); a kernel 7.0 needs kho=off on its command line.",
    ),
    Sign(
        PINNED,
        "warning",
        r"Failed core proc\(s\): \{\}",
        "the engine's process ended while it started; by one report vLLM before 0.24.0 leaves memory taken then, until a reboot",
        "Compare free -g with what the host had after its boot; reboot it if memory is missing, and use vLLM 0.24.0 or newer.",
    ),
    Sign(
        "doctor.compile_cache",
        "warning",
        r"(?:torch_compile_cache|inductor|triton/cache|deep_gemm|flashinfer/\S*cached_ops)\S*.*"
        r"(?:No such file|corrupt|Failed to load|EOFError|UnpicklingError|undefined symbol)",
        "an entry of the compile cache could not be used",
        "Stop the service, empty its folder below spark_cache_dir, start it; the first start compiles for minutes.",
    ),
)
"""Of the last lines of an engine, or of its unit where no container runs."""


def count_signs(lines: Sequence[str], known: Sequence[Sign]) -> dict[str, dict[str, Any]]:
    """Count the signs in lines of a log: C({rule: {count, last}}); C(last) is bounded, for it may be quoted."""
    patterns = [(sign.rule, re.compile(sign.pattern)) for sign in known]
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        for rule, pattern in patterns:
            if pattern.search(line):
                entry = found.setdefault(rule, {"count": 0, "last": ""})
                entry["count"] += 1
                entry["last"] = " ".join(line.split())[:200]
    return found
