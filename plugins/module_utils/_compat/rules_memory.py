# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about options that govern memory (9xx)."""

from __future__ import annotations

from .rulebook import DUO, FIRES, GUIDE, PACKAGES, Change, Hits, Launch, error, info, warning

BATCHED_TOKENS = 2048
"""Default of --max-num-batched-tokens on GB10: up to 0.32.0 because it does not tell its memory, then by name."""

# 9xx: options that govern memory


@error(
    "SPK901",
    "Memory utilisation that is not a fraction",
    "--gpu-memory-utilization {value} is not above 0 and at most 1.",
    "Set a fraction of the total memory, for example 0.8.",
)
def _utilisation_range(launch: Launch) -> Hits:
    value = launch.args.get("gpu-memory-utilization")
    if isinstance(value, (int, float)) and not 0 < value <= 1:
        yield {"value": value}


@warning(
    "SPK902",
    "Nearly all of the host's memory",
    "--gpu-memory-utilization {value} leaves the host {rest} % of the shared memory; hosts have frozen "
    "without a message at such values.",
    "Use 0.85 or less, or 0.80 on a host that does other work.",
    "field reports from GB10 hosts: ceilings of 0.76 to 0.87",
)
def _utilisation_high(launch: Launch) -> Hits:
    value = launch.args.get("gpu-memory-utilization")
    if isinstance(value, (int, float)) and 0.9 < value <= 1 and launch.args.get("kv-cache-memory-bytes") is None:
        yield {"value": value, "rest": round((1 - value) * 100)}


@warning(
    "SPK903",
    "Prefix caching on a hybrid model with the default batch",
    "Prefix caching makes vLLM {version} enlarge the cache block of a hybrid model; above "
    "max-num-batched-tokens, which is {tokens} here (2048 is the default on GB10), the start fails.",
    "Set max-num-batched-tokens to 8192.",
    f"{PACKAGES}; {DUO}",
    "In Mamba cache align mode, block_size must be <= max_num_batched_tokens ({tokens}).",
    needs_version=True,
)
def _hybrid_batch(launch: Launch) -> Hits:
    if (
        launch.hybrid
        and launch.prefix_caching
        and launch.within("0.17.0", "0.27.0")
        and launch.number("max-num-batched-tokens", BATCHED_TOKENS) <= BATCHED_TOKENS
    ):
        yield {"tokens": launch.number("max-num-batched-tokens", BATCHED_TOKENS)}


warning(
    "SPK904",
    "KV cache in bytes skips the memory check",
    "--kv-cache-memory-bytes makes vLLM skip its memory profile: nothing limits the memory of a large "
    "batch outside the KV cache.",
    "Set max-num-seqs too, to 16 or less.",
    "reports from GB10 hosts",
    when=lambda launch: (
        launch.args.get("kv-cache-memory-bytes") is not None and launch.args.get("max-num-seqs") is None
    ),
)

warning(
    "SPK905",
    "Sleep mode on unified memory",
    "--enable-sleep-mode moves weights to the host's memory, on GB10 the same memory; hosts with a second "
    "model were reported to crash.",
    "Remove it, and stop the service when its memory is needed.",
    "vllm-project/vllm#50011; GB10's memory is shared by CPU and GPU",
    when=lambda launch: launch.args.get("enable-sleep-mode") is True,
)


@warning(
    "SPK906",
    "Offloading to the same memory",
    "--cpu-offload-gb moves weights to the host's memory, which on GB10 is the same memory: it saves nothing, and every step copies data.",
    "Remove it.",
    "GB10's memory is shared by CPU and GPU",
)
def _cpu_offload(launch: Launch) -> Hits:
    value = launch.args.get("cpu-offload-gb")
    if isinstance(value, (int, float)) and value > 0:
        yield FIRES


info(
    "SPK907",
    "Prefix caching is off for this model",
    "vLLM {version} leaves prefix caching off for hybrid models: growing prompts of a conversation are "
    "computed from the start.",
    "Set enable-prefix-caching to true and max-num-batched-tokens to 8192, or enable-prefix-caching to false.",
    f"{PACKAGES}; {GUIDE}",
    needs_version=True,
    when=lambda launch: launch.hybrid and launch.args.get("enable-prefix-caching") is None and launch.before("0.28.0"),
)


@error(
    "SPK908",
    "Batch smaller than a request",
    "Without chunked prefill, a request of {length} tokens must fit into a batch, which has {batch}.",
    "Set max-num-batched-tokens to {length}, or keep chunked prefill enabled.",
    vllm_error="max_num_batched_tokens ({batch}) is smaller than max_model_len ({length}).",
)
def _batch_below_length(launch: Launch) -> Hits:
    batch, length = launch.args.get("max-num-batched-tokens"), launch.args.get("max-model-len")
    whole_prompts = launch.args.get("enable-chunked-prefill") is False
    if whole_prompts and isinstance(batch, int) and isinstance(length, int) and batch < length:
        yield {"batch": batch, "length": length}


@error(
    "SPK909",
    "Batch smaller than the number of requests",
    "A batch of {batch} tokens is too small for one token of each of {requests} requests.",
    "Set max-num-batched-tokens to {requests} or more.",
    vllm_error="max_num_batched_tokens ({batch}) must be greater than or equal to max_num_seqs ({requests}).",
)
def _batch_below_requests(launch: Launch) -> Hits:
    batch = launch.number("max-num-batched-tokens", BATCHED_TOKENS)
    requests = launch.number("max-num-seqs", 1)
    if batch < requests:
        yield {"batch": batch, "requests": requests}


@warning(
    "SPK910",
    "Default share of the unified memory",
    "--gpu-memory-utilization has vLLM's default of {value}, meant for GPUs with dedicated "
    "memory; on GB10 it takes that share of the host's memory.",
    "Set gpu-memory-utilization, 0.85 or less.",
    f"{PACKAGES}; NVIDIA's release notes; field reports from GB10 hosts",
    about="A command sets no --gpu-memory-utilization. This does not concern services of a plan: the plan calculates it.",
)
def _utilisation_default(launch: Launch) -> Hits:
    if launch.argv and launch.args.get("gpu-memory-utilization") in (None, "auto"):
        yield {"value": "0.9" if launch.before("0.20.0") else "0.92"}


error(
    "SPK912",
    "Removed Mamba cache mode",
    "vLLM 0.32.0 removed --mamba-cache-mode all; vLLM {version} has align and none.",
    "Set mamba-cache-mode to align.",
    vllm_error="argument --mamba-cache-mode: invalid choice: 'all'",
    needs_version=True,
    when=lambda launch: launch.word("mamba-cache-mode") == "all" and not launch.before("0.32.0"),
)


@warning(
    "SPK913",
    "KV cache in bytes without a memory utilisation",
    "With --kv-cache-memory-bytes vLLM still requires its default of {value} of the memory to be free at the start.",
    "Set gpu-memory-utilization to the share of weights and KV cache together.",
    vllm_error="is less than desired GPU memory utilization",
)
def _kv_bytes_share(launch: Launch) -> Hits:
    if (
        launch.argv
        and launch.args.get("kv-cache-memory-bytes") is not None
        and launch.args.get("gpu-memory-utilization") is None
    ):
        yield {"value": "0.9" if launch.before("0.20.0") else "0.92"}


@info(
    "SPK914",
    "Swap space that is never used",
    "--swap-space {value}: the V1 engine never swaps the KV cache, and 0.18.0 removed the option.",
    "Remove it.",
    needs_version=True,
)
def _swap(launch: Launch) -> Hits:
    if launch.args.get("swap-space") is not None and launch.before("0.18.0") and not launch.before("0.11.1"):
        yield {"value": launch.args["swap-space"], "changes": (Change("args", "swap-space"),)}


warning(
    "SPK915",
    "Chunked prefill switched off",
    "--no-enable-chunked-prefill: vLLM warns that generative models may crash or answer wrongly without it.",
    "Keep chunked prefill enabled.",
    vllm_error="This model does not officially support disabling chunked prefill.",
    when=lambda launch: launch.args.get("enable-chunked-prefill") is False and launch.word("runner") != "pooling",
)
