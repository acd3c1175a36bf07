# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Storage formats of one matrix, and its bytes in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """The storage format of a matrix: bits per weight, and the bytes of its scales.

    group: weights along the input that share a scale, 0 for one scale per output row or per tensor.
    scale: bytes of a scale. block: rows that share a scale, too. zero_bits: bits of a zero point. order: a row order is kept.
    multiple: of which kernels want a whole number of inputs, so that a matrix is filled up; 0 for any.
    tiles: kernels of experts fill their sides up, to sizes that are known where nothing is to fill up alone.
    """

    bits: int
    group: int = 0
    scale: int = 0
    block: int = 1
    zero_bits: int = 0
    order: bool = False
    multiple: int = 0
    tiles: bool = False

    def size(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix."""
        if self.multiple:
            columns = -(-columns // self.multiple) * self.multiple
        total = rows * columns * self.bits // 8
        if self.group:
            scales = -(-rows // self.block) * -(-columns // self.group)
            total += scales * self.scale + scales * self.zero_bits // 8
        else:
            total += rows * self.scale
        return total + (4 * columns if self.order else 0)


# The shapes of weights and scales that create_weights of vllm/model_executor/layers/quantization/ makes: fp8.py, modelopt.py,
# mxfp4.py, online/ (blocks of 128 x 128, groups of 16 in NVFP4 and of 32 in the MX formats).
FP8_TENSOR = Format(8)
FP8_CHANNEL = Format(8, scale=4)
FP8_BLOCKS = Format(8, group=128, scale=4, block=128)
MXFP8 = Format(8, group=32, scale=1)
NVFP4 = Format(4, group=16, scale=1)
MXFP4 = Format(4, group=32, scale=1)
