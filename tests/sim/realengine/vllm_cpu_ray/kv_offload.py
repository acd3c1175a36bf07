# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV cache offloading of the CPU build, which vLLM refuses: blocks are copied by the CPU instead of a GPU's copy engine.

Scheduler, tiers, block hashes and files stay those of vLLM.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class MemoryCopies(gpu_worker.SingleDirectionOffloadingHandler):
    """Transfers of one direction, finished when they are submitted."""

    def __init__(
        self,
        gpu_tensors: Any,
        cpu_tensors: Any,
        blocks_per_chunk: int,
        layer_refs_per_group: Any,
        gpu_to_cpu: bool,
        **_: Any,
    ) -> None:
        self.src_tensors, self.dst_tensors = (gpu_tensors, cpu_tensors) if gpu_to_cpu else (cpu_tensors, gpu_tensors)
        self.gpu_to_cpu, self.layer_refs_per_group = gpu_to_cpu, layer_refs_per_group
        self.src_blocks_per_chunk = 1 if gpu_to_cpu else blocks_per_chunk
        self.dst_blocks_per_chunk = blocks_per_chunk if gpu_to_cpu else 1
        self._done: list[TransferResult] = []

    def transfer_async(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy the blocks of a job."""
        began, copied, source_at, target_at = time.monotonic(), 0, 0, 0
        device = src_spec if self.gpu_to_cpu else dst_spec
        for group, (size, index) in enumerate(zip(device.group_sizes, device.block_indices)):
            if not size:
                continue
            skip_source, skip_target = index % self.src_blocks_per_chunk, index % self.dst_blocks_per_chunk
            source_end = source_at - (-(size + skip_source) // self.src_blocks_per_chunk)
            target_end = target_at - (-(size + skip_target) // self.dst_blocks_per_chunk)
            count = size * len(self.layer_refs_per_group[group])
            sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
            lengths = np.empty(count, np.int64)
            copied += self._fill_direct_ops(
                group,
                src_spec.block_ids[source_at:source_end],
                dst_spec.block_ids[target_at:target_end],
                size, skip_source, skip_target, sources, targets, lengths, 0,
            )[1]  # fmt: skip
            for source, target, length in zip(sources.tolist(), targets.tolist(), lengths.tolist()):
                ctypes.memmove(target, source, length)
            source_at, target_at = source_end, target_end
        self._done.append(TransferResult(job_id, True, copied, time.monotonic() - began))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs that were finished since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: nothing is pending."""

    def shutdown(self) -> None:
        """Release the tensors."""
        self.src_tensors, self.dst_tensors = [], []


def _get_worker(spec: CPUOffloadingSpec, kv_caches: Any) -> Any:
    if not spec._worker:
        spec._worker = spec.create_worker(kv_caches)
    return spec._worker


def install() -> None:
    """Have vLLM offload on a CPU."""
    gpu_worker.SingleDirectionOffloadingHandler = MemoryCopies  # type: ignore[misc]
    CPUOffloadingSpec.get_worker = _get_worker  # type: ignore[method-assign]
