# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Constants of a GB10 that turn bytes and operations into seconds, and how far published rates lie from the result. Data only.

C(make speed-fit) fits C(GB10) to the published rows of tests/unit/plugins/fixtures/speed_rows.json and prints what changes.
Seconds, bytes per second and floating point operations per second.
"""

from __future__ import annotations

from dataclasses import dataclass

BUS = 273e9
"""Bytes per second of a GB10's memory by its data sheet (LPDDR5X, 256 bits at 8,533 MT/s); no launch reads faster."""


@dataclass(frozen=True)
class Constants:
    """Constants of one kind of GPU.

    bandwidth: of reading weights of 16 bits for one token, and states. bandwidth_batch: of the same weights for several tokens, with another
    kernel. bandwidth_quantised: of weights of 8 and 4 bits. bandwidth_experts: of routed
    experts. bandwidth_cache: of keys and values. step: of a step whatever the model (sampling, scheduler). layer: of a layer that replays
    in a CUDA graph. moe_layer, recurrent_layer: more for one of these. eager_layer, eager_recurrent: of a layer that the processor starts.
    reduce_pair: an all-reduce of few bytes between two Sparks. reduce_doubling: more for each doubling of the ranks.
    link: of an all-reduce over both rails. alpha: see C(time_model.touched_experts). draft: of a pass of a drafter besides its bytes.
    chunk: of a chunk of a prompt besides its operations and bytes. shape: of a prompt where FlashInfer's products of 8 or 4 bits are planned
    for its length. flops_...: of long matrix products by format and kernel, of experts of 2048 x 512 (grows with the root of an expert's
    size), and of attention with heads of up to 128, of up to 256, and with Triton's kernel.
    """

    bandwidth: float
    bandwidth_batch: float
    bandwidth_quantised: float
    bandwidth_experts: float
    bandwidth_cache: float
    step: float
    layer: float
    moe_layer: float
    recurrent_layer: float
    eager_layer: float
    eager_recurrent: float
    reduce_pair: float
    reduce_doubling: float
    link: float
    alpha: float
    draft: float
    chunk: float
    shape: float
    flops_bf16: float
    flops_fp8: float
    flops_fp8_marlin: float
    flops_fp4: float
    flops_4bit_marlin: float
    flops_experts: float
    flops_attention: float
    flops_attention_large: float
    flops_attention_triton: float


GB10 = Constants(
    bandwidth=216e9,
    bandwidth_batch=228e9,
    bandwidth_quantised=226e9,
    bandwidth_experts=175e9,
    bandwidth_cache=242e9,
    step=1.0e-3,
    layer=16e-6,
    moe_layer=5e-6,
    recurrent_layer=1e-6,
    eager_layer=0.40e-3,
    eager_recurrent=0.72e-3,
    reduce_pair=51e-6,
    reduce_doubling=82e-6,
    link=16e9,  # assumed: NCCL reaches 16 of the 25 GB/s that both rails have together
    alpha=0.72,
    draft=0.02e-3,
    chunk=28e-3,
    shape=0.29,
    flops_bf16=62e12,
    flops_fp8=160e12,
    flops_fp8_marlin=31e12,
    # Not fitted: Qwen3.8 27B has its first token after 6.4 s in place of 10.0 s on Marlin (lever "FP4 kernel"). Nemotron 3 Nano, whose dense
    # matrices are small, has the same prefill rates with either kernel (vLLM 0.26).
    flops_fp4=105e12,
    flops_4bit_marlin=52e12,
    flops_experts=21e12,
    flops_attention=86e12,
    flops_attention_large=34e12,
    flops_attention_triton=16e12,
)
"""Of all rows. Bandwidths and rates of dense matrices are well determined; alpha, all-reduce and times per kind of layer only as sums."""


@dataclass(frozen=True)
class Spread:
    """How far published rates lie from a prediction. low, high: factors of the typical rate; at least 80 % of the rows of a class lie between."""

    low: float
    high: float

    @classmethod
    def of(cls, share: float) -> Spread:
        """Return the spread of a relative error, the same up and down."""
        return cls(1 / (1 + share), 1 + share)


# The 80th percentile of the errors of unseen rows, the worse of two ways to divide them (docs/speed.md has the table).
ONE_STREAM = Spread.of(0.12)
SEVERAL_STREAMS = Spread.of(0.20)
SEVERAL_STREAMS_MOE = Spread.of(0.35)
"""Of mixtures of experts and hybrid models."""
SEVERAL_SPARKS = Spread.of(0.25)
SEVERAL_SPARKS_EAGER = Spread.of(0.60)
EXPERTS_4BIT = 1.15
"""Prefill rate of experts on kernels that compute in 4 bits, of that on Marlin: the first token of two checkpoints of Qwen3.6 35B comes after
1.95 and 1.89 s on C(flashinfer_b12x), in place of 2.11 and 2.06 (jschmied/dgx-spark-setup-guide, appendix gb10-nvfp4-benchmarks)."""
PREFILL = Spread.of(0.25)
PREFILL_SEVERAL = Spread.of(0.80)
"""Of several Sparks: few rows were published."""

ACCEPTANCE = {
    "mtp": {1: (1.65, 1.95), 2: (1.9, 2.7), 3: (1.5, 3.4), 4: (1.5, 4.2), 5: (3.3, 4.2)},
    "dspark": {5: (3.1, 4.8)},
}
"""Mean tokens of a step that published rates imply, by method and number of drafted tokens. It depends on content. k = 4: of its neighbours."""
