# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU platform with the two things that Ray on several nodes asks for. One node alone sees no difference."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class CpuRayPlatform(CpuPlatform):
    """Ranks take the slots of C(ray start --num-gpus), a number to Ray, as they do on a Spark."""

    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Name the communicator of groups."""
        return "vllm_cpu_ray.communicator.NodeAwareCommunicator"
