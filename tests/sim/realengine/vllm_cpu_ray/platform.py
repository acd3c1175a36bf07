# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU platform with the two things that Ray on several nodes asks for, and with processes that start as they do on a Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from vllm.platforms.cpu import CpuPlatform

if TYPE_CHECKING:  # vLLM's configuration imports the platform
    from vllm.config import VllmConfig

# Attention takes AMX where the processor has it, and nothing else asks the kernel for it, once for each process: SIGILL without.
torch.cpu._init_amx()


class CpuRayPlatform(CpuPlatform):
    """Ranks take the slots of C(ray start --num-gpus), a number to Ray, as they do on a Spark."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Name the communicator of groups."""
        return "vllm_cpu_ray.communicator.NodeAwareCommunicator"

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Fork the engine and its workers, as vLLM does with CUDA: on a CPU it would import everything anew in each of them."""
        super().check_and_update_config(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if vllm_config.kv_transfer_config is not None:
            from . import kv_offload

            kv_offload.install()
