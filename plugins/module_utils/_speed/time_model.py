# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The seconds of a decode step and of a prefill: bytes over bandwidths, operations over rates, and fixed times of layers and all-reduces.

Reading and computing overlap in part: their time together is the root of the sum of squares, which is near the larger of the two if they
differ much, and 1.4 times either if they are equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from .._vllm.fp4_kernels import MARLIN
from .constants import EXPERTS_4BIT, Constants
from .reads import Reads, Stage

_EXPERT_BASE = 2048 * 512  # elements of the expert that C(expert_flops_per_second) is stated for
_FAST_HEAD = 128  # the largest head of the fast attention kernel
_LARGE_HEAD = 256
_SINK_FAMILY = "gpt_oss"
# With eager execution half of an all-reduce is hidden behind the work of the CPU.
_EAGER_OVERLAP = 0.5
# Chunks of a prompt that are computed one by one; of a longer prompt as many equal groups.
_MOST_CHUNKS = 1024
# The rank with the most of the experts that a batch touches has this many standard deviations more than its share.
_IMBALANCE = 0.8


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding. tokens: drafted per step. accepted: mean tokens that a step yields. passes: of the drafter in a step.

    weights: bytes of the drafter on one rank, with its experts; C(None) for the multi-token-prediction layers of the checkpoint, of which a
    pass runs one. has_head: whether the drafter has an output head, else it uses that of the model. model: of a drafter that is a whole
    model, C(None) if its config is unknown.
    """

    tokens: int
    accepted: float
    passes: int
    weights: float | None = None
    has_head: bool = False
    model: Reads | None = None


@dataclass(frozen=True)
class Launch:
    """How a model is served. ranks: of a tensor-parallel group. kernels: by format and of C(experts), C(marlin) or another name.

    chunk: tokens of a prefill step (C(--max-num-batched-tokens)). replicas: of data parallelism that step together since the experts of each
    layer are divided over all of them; each has its own sequences. captured: sizes of batches with a CUDA graph, in ascending order; a batch
    runs in the next larger one. piecewise: whether the processor starts attention between graphs.
    """

    reads: Reads
    ranks: int = 1
    eager: bool = False
    kernels: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 8192
    drafting: Drafting | None = None
    replicas: int = 1
    captured: Sequence[int] = ()
    piecewise: bool = False

    def padded(self, tokens: int) -> int:
        """Return the tokens that the graph of a batch computes, those that pad it included."""
        return tokens if self.eager else next((size for size in self.captured if size >= tokens), tokens)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by cause. memory and compute overlap; C(total) is not their sum."""

    memory: float
    compute: float
    kernels: float
    reduces: float
    processor: float
    total: float


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one rank, or all stages one after the other, read in a step."""

    weights: float = 0.0
    quantised: float = 0.0
    head: float = 0.0
    experts: float = 0.0
    cache: float = 0.0
    state: float = 0.0

    @property
    def total(self) -> float:
        """All bytes of the step."""
        return self.weights + self.quantised + self.head + self.experts + self.cache + self.state

    def __add__(self, other: StepBytes) -> StepBytes:
        return StepBytes(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


def touched_experts(count: int, active: int, tokens: float, alpha: float) -> float:
    """Return how many different experts the tokens of a step pass through.

    :param alpha: 1 where each token chooses independently of all others, less where tokens of a batch agree
    """
    if not count:
        return 0.0
    choices = math.pow(tokens, alpha) if tokens > 1 else 1.0
    return count * (1 - math.pow(1 - active / count, choices))


def step_bytes(stage: Stage, sequences: int, width: int, length: float, alpha: float, tokens: int = 0) -> StepBytes:
    """Return the bytes that a rank reads in one step, and writes of recurrent states.

    :param width: tokens of each, 1 and the drafted ones
    :param length: context of each, tokens
    :param tokens: that pass through the experts, if others than those of the batch do: padding, and tokens of other replicas
    :returns: bytes by kind
    """
    experts = 0.0
    for layer in stage.experts:
        read = touched_experts(layer.count, layer.active, tokens or sequences * width, alpha)
        if layer.ranks > 1:
            share = read / layer.ranks
            spread = _IMBALANCE * math.sqrt(share * (1 - 1 / layer.ranks))
            read = min(layer.count / layer.ranks, share + spread)
        experts += read * layer.size
    cache = sum(context.token_bytes * context.tokens_read(length) for context in stage.contexts) * sequences
    # The state after each drafted token is written, since any of them may be the last that is accepted.
    states = (1.0 + width) * stage.state * sequences
    return StepBytes(stage.weights, stage.quantised, stage.head, experts, cache, states)


def least_step_seconds(launch: Launch, sequences: float, length: float, bus: float) -> float:
    """Return the time in which each sequence gets a token at the earliest, by the data sheet and the config alone.

    All tokens may choose the same experts, evenly over the ranks. Pipeline stages work on as many batches at a time as there are stages: a
    batch passes all stages one after the other, and each stage reads its weights for at least one batch.

    :param length: context of each, tokens
    :param bus: bytes per second of the memory
    :returns: seconds, of a step that drafts nothing
    """
    shared, single = [], []
    for stage in launch.reads.stages:
        experts = sum(-(-layer.active // layer.ranks) * layer.size for layer in stage.experts)
        shared.append(stage.weights + stage.quantised + stage.head + experts)
        single.append(step_bytes(stage, 1, 1, length, 1.0).cache + 2.0 * stage.state)
    batches = max(1.0, min(len(shared), sequences))
    latency = sum(shared) + sequences / batches * sum(single)
    return max(latency, *(weights + sequences * size for weights, size in zip(shared, single))) / bus


def all_reduce_seconds(count: int, size: float, ranks: int, constants: Constants) -> float:
    """Return the seconds of all-reduces of C(size) bytes each between Sparks, 0 for a single rank."""
    if ranks <= 1:
        return 0.0
    latency = constants.reduce_pair + constants.reduce_doubling * (math.log2(ranks) - 1)
    return count * (latency + 2 * (ranks - 1) / ranks * size / constants.link)


def _exchange_seconds(stage: Stage, launch: Launch, tokens: int, together: int, constants: Constants) -> float:
    """Return the seconds of all exchanges of a stage: all-reduces of a tensor group, and of replicas around each layer of experts.

    Replicas gather the tokens of all before the experts and reduce and scatter them after (vLLM's default, allgather_reducescatter), as
    many bytes as an all-reduce of all tokens.
    """
    bytes_per_token = stage.hidden * 2
    return all_reduce_seconds(stage.reduces, tokens * bytes_per_token, launch.ranks, constants) + all_reduce_seconds(
        len(stage.experts), together * bytes_per_token, launch.replicas, constants
    )


def _matrix_seconds(stage: Stage, constants: Constants, kernels: Mapping[str, str], replicas: int = 1) -> float:
    """Return the seconds that dense matrices take for one token of a long batch, and experts for one of each replica."""
    rates = {
        "bf16": constants.flops_bf16,
        "fp8": constants.flops_fp8_marlin if kernels.get("fp8") == MARLIN else constants.flops_fp8,
        "int8": constants.flops_fp8_marlin if kernels.get("int8", MARLIN) == MARLIN else constants.flops_fp8,
        "fp4": constants.flops_4bit_marlin if kernels.get("fp4", MARLIN) == MARLIN else constants.flops_fp4,
    }
    dense = sum(flops / rates.get(name, constants.flops_4bit_marlin) for name, flops in stage.flops.items())
    scale = math.sqrt(max(stage.expert_size, 1e5) / _EXPERT_BASE)
    scale *= EXPERTS_4BIT if kernels.get("experts") == "fp4" and stage.expert_bits == 4 else 1.0
    return dense + replicas * stage.expert_flops / (constants.flops_experts * scale)


def _attention_rate(stage: Stage, family: str, constants: Constants) -> float:
    if family == _SINK_FAMILY:
        return 2 * constants.flops_attention_triton
    if stage.head_dim > _LARGE_HEAD:
        return constants.flops_attention_triton
    return constants.flops_attention if stage.head_dim <= _FAST_HEAD else constants.flops_attention_large


def step_time(launch: Launch, constants: Constants, sequences: int, length: float, width: int = 1) -> StepTime:
    """Return the seconds of one forward pass of all pipeline stages, one after the other.

    :param length: context of each sequence, tokens
    :param width: tokens of each sequence in the step
    :returns: seconds by cause
    """
    memory = compute = kernels = reduces = processor = total = 0.0
    tokens = launch.padded(sequences * width)
    for stage in launch.reads.stages:
        read = step_bytes(stage, sequences, width, length, constants.alpha, tokens * launch.replicas)
        bandwidth = constants.bandwidth if tokens == 1 else constants.bandwidth_batch
        of_memory = (
            (read.weights + read.head) / bandwidth
            + read.state / constants.bandwidth
            + read.quantised / constants.bandwidth_quantised
            + read.experts / constants.bandwidth_experts
            + read.cache / constants.bandwidth_cache
        )
        attention = sum(context.decode_flops * context.tokens_read(length) for context in stage.contexts)
        of_compute = tokens * (
            _matrix_seconds(stage, constants, launch.kernels, launch.replicas)
            + (stage.head_flops + attention) / constants.flops_bf16
        )
        of_kernels = (
            stage.layers * constants.layer
            + len(stage.experts) * constants.moe_layer
            + stage.recurrent * constants.recurrent_layer
        )
        of_reduces = _exchange_seconds(stage, launch, tokens, tokens * launch.replicas, constants)
        device = math.hypot(of_memory, of_compute) + of_kernels
        of_processor = 0.0
        if launch.eager or launch.piecewise:
            plain = stage.layers - stage.recurrent
            of_processor = plain * constants.eager_layer + stage.recurrent * constants.eager_recurrent
        total += max(device + of_reduces, of_processor + of_reduces * _EAGER_OVERLAP)
        memory, compute, kernels = memory + of_memory, compute + of_compute, kernels + of_kernels
        reduces, processor = reduces + of_reduces, processor + of_processor
    sends = (len(launch.reads.stages) - 1) * 2 * constants.reduce_pair
    return StepTime(
        memory, compute, kernels + constants.step, reduces + sends, processor, total + sends + constants.step
    )


def _draft_seconds(launch: Launch, drafting: Drafting, constants: Constants, sequences: int, length: float) -> float:
    """Return the seconds of one pass of the drafter."""
    draft, head = launch.reads.draft, launch.reads.stages[-1].head
    if drafting.model is not None:
        drafter = Launch(drafting.model, launch.ranks, launch.eager, launch.kernels)
        return step_time(drafter, constants, sequences, length).total - constants.step + constants.draft
    if drafting.weights is not None or draft is None:
        read_head = 0.0 if drafting.has_head else head
        return ((drafting.weights or 0.0) + read_head) / constants.bandwidth + constants.draft
    share = 1 if drafting.passes < drafting.tokens else 1 / max(1, draft.layers)
    # The first pass takes all tokens of the step before, each further one the drafted token of the pass before.
    widths = [1 + drafting.tokens, *[1] * (drafting.passes - 1)]
    reads = [
        step_bytes(draft, sequences, 1, length, constants.alpha, launch.padded(sequences * width) * launch.replicas)
        for width in widths
    ]
    experts, read = share * sum(read.experts for read in reads) / len(reads), reads[0]
    reduces = all_reduce_seconds(2, sequences * draft.hidden * 2, launch.ranks, constants)
    plain = share * (read.weights + read.quantised) + read.head
    return (
        plain / constants.bandwidth
        + experts / constants.bandwidth_experts
        + read.cache / constants.bandwidth_cache
        + reduces
        + constants.draft
    )


def decode_seconds(launch: Launch, constants: Constants, sequences: int, length: float) -> float:
    """Return the seconds between two tokens of one stream: with a drafter those of a step divided by the tokens that it yields."""
    drafting = launch.drafting
    if drafting is None:
        return step_time(launch, constants, sequences, length).total
    verify = step_time(launch, constants, sequences, length, 1 + drafting.tokens).total
    return (
        verify + drafting.passes * _draft_seconds(launch, drafting, constants, sequences, length)
    ) / drafting.accepted


def prefill_seconds(launch: Launch, constants: Constants, prompt: int) -> float:
    """Return the seconds until the first token of one prompt of C(prompt) tokens on an idle engine."""
    kernels, position, seconds = launch.kernels, 0, constants.step
    # FlashInfer plans its products for the length of a prompt (cuDNN's graphs of FP8 and NVFP4).
    if any(
        (stage.has_whole_fp8 and kernels.get("fp8") != MARLIN)
        or (stage.flops.get("fp4") and kernels.get("fp4") == "cutlass")
        for stage in launch.reads.stages
    ):
        seconds += constants.shape
    # Layers of one kind together: a long prompt has hundreds of chunks.
    kinds = [
        (stage, _matrix_seconds(stage, constants, kernels), Counter(stage.contexts)) for stage in launch.reads.stages
    ]
    together = -(-prompt // (launch.chunk * _MOST_CHUNKS))
    while position < prompt:
        share = min(launch.chunk * together, prompt - position)
        chunks = -(-share // launch.chunk)
        tokens = -(-share // chunks)
        for stage, matrix, contexts in kinds:
            compute = tokens * matrix
            for context, layers in contexts.items():
                length = position + share / 2
                length = min(length, context.window or length, context.selected or length)
                rate = (
                    constants.flops_attention_large
                    if context.window
                    else _attention_rate(stage, launch.reads.family, constants)
                )
                compute += layers * tokens * context.flops * length / rate
            read = step_bytes(stage, 1, tokens, 0, 1.0)
            memory = (read.weights + read.quantised + read.head) / constants.bandwidth
            memory += read.experts / constants.bandwidth_experts
            reduces = _exchange_seconds(stage, launch, tokens, tokens, constants)
            started = stage.layers * constants.eager_layer if launch.eager else constants.chunk
            seconds += chunks * (math.hypot(compute, memory) + reduces + started)
        position += share
    return seconds
