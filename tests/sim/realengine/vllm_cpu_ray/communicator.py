# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared memory only between ranks that really share it, gloo over TCP between all others."""

from __future__ import annotations

from pathlib import Path

import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class NodeAwareCommunicator(CpuCommunicator):
    """vLLM compares a name in the environment, and Ray gives ranks on all nodes the head's environment."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        place = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/dev/shm').stat().st_dev}"
        places: list[str | None] = [None] * self.world_size
        torch.distributed.all_gather_object(places, place, group=self.device_group)
        return len(set(places)) == 1 and super()._all_group_ranks_share_shm_group_name()
