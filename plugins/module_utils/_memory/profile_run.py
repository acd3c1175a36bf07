# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory in use when vLLM profiles itself, before it allocates its KV cache: activations, sampling, graphs, tables.

At its start an engine runs one batch of C(max-num-batched-tokens) and samples C(max-num-seqs) tokens; the peak reduces
the cache. It follows from the widths of a model and its vocabulary. Compared with launches on a GPU
(tests/oracle/memory_tables.md, Measured launches): a dense model and a mixture of experts to the last megabyte, recurrent layers within a
twentieth. Memory that does not follow from a config (libraries, repacking) is a range in C(_vllm/overheads.py).

The model runner of a model, one of vLLM's two, decides about sampling and whether CUDA graphs reduce the cache.
Read in 0.22.1 to 0.33.0: config/vllm.py (use_v2_model_runner), v1/worker/gpu_model_runner.py (V1), v1/worker/gpu/ (V2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .geometry import Geometry
from .layers import Attention, Config, text_config
from .releases import Release

# cuBLAS keeps this for itself from its first multiplication on.
CUBLAS_WORKSPACE = 32 << 20
# Programs of the kernel that samples, one for each multiprocessor of a GB10; each has a row of the vocabulary to itself.
MULTIPROCESSORS = 48
# A captured graph takes about this for every layer and size of batch, and all of them the rest together (three launches).
GRAPH_BYTES, GRAPHS_BYTES = 280_000, 86_000_000
# The V1 runner captures a few graphs and calculates the rest from them: 0.75 and 0.85 of what they then took.
GRAPHS_ESTIMATED = 0.8

# For a model with unknown widths: the most bytes per token of a batch that were measured with experts and of a dense model, and the
# most that sampling, a copy of the embedding and graphs may add.
TOKEN_BYTES, DENSE_TOKEN_BYTES = 150_000, 75_000
UNKNOWN_BYTES = 2 << 30

# The first minor release whose V2 runner serves an architecture; later it serves all models without recurrent layers and experts
# (0.25), and all (0.29): DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES.
_V2_DENSE = {"Qwen3ForCausalLM": 22, "LlamaForCausalLM": 23, "MistralForCausalLM": 23}
_V2_ALWAYS = {
    "DeepseekV2ForCausalLM": 24,
    "Qwen2MoeForCausalLM": 24,
    "GraniteMoeForCausalLM": 24,
    "InklingForCausalLM": 26,
    "InklingForConditionalGeneration": 26,
    "LongcatFlashNgramForCausalLM": 26,
    "KimiK3ForConditionalGeneration": 27,
    "DeepseekV4ForCausalLM": 28,
}
_V2_NOT_HYBRID, V2_ALL = 25, 29
# By runner, the first release that subtracts CUDA graphs from the cache if C(GRAPHS_VARIABLE) is 1, and the first that does so without
# the variable (envs.py: default 0 up to 0.19). Up to 0.28 profile_cudagraph_memory of the V2 runner returned 0.
GRAPHS_VARIABLE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
COUNTS_GRAPHS = {1: (18, 20), 2: (29, 29)}
# The V2 runner samples a second time, in 32 bits, before it measures.
_V2_SAMPLES_TWICE = 33

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")
_SHARED = ("n_shared_experts", "num_shared_expert", "moe_num_shared_experts")
# The largest batch that is captured, by default and for single families (vllm/model_executor/models/config.py).
_LARGEST_CAPTURE, _FAMILY_CAPTURE = 512, {"gpt_oss": 1024}


@dataclass(frozen=True)
class Launch:
    """The settings of a launch that decide the memory in use.

    batch: C(max-num-batched-tokens). sequences: C(max-num-seqs). ranks: C(tensor-parallel-size).
    replicas: C(data-parallel-size); experts_whole: each rank has whole experts, C(enable-expert-parallel).
    drafts: tokens that are drafted at a time. eager: no graphs, no compilation. v2: the V2 runner supports the settings.
    quantised: the weights are. runner: set with C(VLLM_USE_V2_MODEL_RUNNER), 1 or 2, or 0 if the variable is unset.
    captures: for how many sizes of batches graphs are captured, -1 for vLLM's own choice. compiles: torch compiles the model.
    pools: it embeds or ranks texts and samples nothing. counts_graphs: C(GRAPHS_VARIABLE), None if it is unset.
    """

    release: Release
    batch: int
    sequences: int
    ranks: int = 1
    replicas: int = 1
    experts_whole: bool = False
    drafts: int = 0
    eager: bool = False
    v2: bool = True
    quantised: bool = False
    runner: int = 0
    captures: int = -1
    compiles: bool = True
    pools: bool = False
    counts_graphs: bool | None = None


@dataclass(frozen=True)
class ProfileRun:
    """Bytes of one rank.

    runner: 1 or 2. peak: of torch, at most at one time. compiled: the same if torch compiles first.
    tables: rotary tables, which belong to the model and to no tensor of its checkpoint. graphs: all CUDA graphs.
    graphs_inside: the part that reduces the cache. request_buffers: buffers of the runner for each request, outside of the requested memory.
    unknown: the most that may be added if the widths are unknown.
    """

    runner: int
    peak: int
    compiled: int
    tables: int = 0
    graphs: int = 0
    graphs_inside: int = 0
    request_buffers: int = 0
    unknown: int = 0


def _largest_number(text: Config, *keys: str) -> int:
    """Return the first of C(keys) with a number, or the largest number of a list (one per layer); 0 if all are absent."""
    for key in keys:
        value = text.get(key)
        numbers = value if isinstance(value, list) else [value]
        valid = [entry for entry in numbers if isinstance(entry, int) and not isinstance(entry, bool) and entry > 0]
        if valid:
            return max(valid)
    return 0


def is_v2_runner(config: Config, hybrid: bool, launch: Launch) -> bool:
    """Tell whether the V2 model runner serves a model (C(VllmConfig.use_v2_model_runner))."""
    if launch.runner:
        return launch.runner == 2
    release, listed = launch.release, config.get("architectures")
    if not launch.v2 or release.since(V2_ALL):
        return launch.v2
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    experts = bool(_largest_number(text_config(config), *_EXPERTS))
    if _is_listed(names, _V2_ALWAYS, release):
        return True
    if release.since(_V2_NOT_HYBRID):
        return not hybrid and not experts
    plain = release.since(24) or not (experts or launch.quantised)
    return plain and _is_listed(names, _V2_DENSE, release)


def _is_listed(architectures: Sequence[str], minors: Mapping[str, int], release: Release) -> bool:
    """Tell whether a release serves one of the architectures. minors: the first minor release for each."""
    return any(name in minors and release.since(minors[name]) for name in architectures)


def count_default_captures(launch: Launch, model_type: str = "") -> int:
    """Count the sizes of batches with CUDA graphs by default (VllmConfig._set_cudagraph_sizes)."""
    largest = largest_capture(launch.sequences * (1 + launch.drafts), model_type)
    return len(capture_sizes(min(largest, launch.batch)))


def largest_capture(full_batch: int, model_type: str = "") -> int:
    """Return the largest size with a CUDA graph that vLLM chooses. full_batch: a token of each request, and its drafts."""
    return _FAMILY_CAPTURE.get(model_type, min(full_batch * 2, _LARGEST_CAPTURE))


def count_configured_captures(compilation: Config, batch: int) -> int:
    """Count the sizes of batches with CUDA graphs as set in C(compilation-config); -1 for vLLM's default.

    :param compilation: the mapping; names of its modes in any case
    :param batch: C(max-num-batched-tokens); no graph is larger
    """
    if str(compilation.get("cudagraph_mode", "")).upper() in ("NONE", "0"):
        return 0
    # Without compilation there are no graphs of pieces; a mode that has no others is vLLM's own NONE then.
    if not is_compiled(compilation) and str(compilation.get("cudagraph_mode", "")).upper() == "PIECEWISE":
        return 0
    sizes, most = compilation.get("cudagraph_capture_sizes"), compilation.get("max_cudagraph_capture_size")
    if isinstance(sizes, list):
        return len({size for size in sizes if isinstance(size, int) and 0 < size <= batch})
    if isinstance(most, int) and not isinstance(most, bool):
        return len(capture_sizes(min(most, batch))) if most > 0 else 0
    return -1


def is_compiled(compilation: Config) -> bool:
    """Tell whether torch compiles a model: modes 0 to 3 or their names, of which vLLM's own, 3, is the default."""
    mode = compilation.get("mode", compilation.get("level"))
    return mode is None or str(mode).upper() not in ("0", "NONE")


def capture_sizes(largest: int) -> list[int]:
    """Return the sizes of batches with CUDA graphs up to the largest one, as vLLM chooses them."""
    small = [size for size in (1, 2, 4) if size <= largest]
    return [*small, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]


def _token_bytes(text: Config, geometry: Geometry, launch: Launch, width: int) -> tuple[int, int]:
    """Return what one token of a batch takes at most in any layer, and what the experts keep for it in all of them.

    Experts of replicas take the tokens of all of them, which are gathered first and go back afterwards (allgather_reducescatter).
    """
    ranks, replicas = launch.ranks, launch.replicas
    hidden = _largest_number(text, "hidden_size")
    experts = _largest_number(text, *_EXPERTS)
    inner = _largest_number(text, "moe_intermediate_size", "intermediate_size") if experts else 0
    chosen = _largest_number(text, *_CHOSEN) if experts else 0
    gated = 1 if geometry.model_type == "nemotron_h" else 2
    # Both halves of a multilayer perceptron and their product, its input and output, and the residual.
    dense = (
        _largest_number(text, "intermediate_size")
        if not experts
        else _largest_number(text, "shared_expert_intermediate_size")
    )
    if experts and not dense:
        dense = _largest_number(text, "moe_shared_expert_intermediate_size") or inner * _largest_number(text, *_SHARED)
    widest = (gated + 1) * dense // ranks + 4 * hidden
    # Two workspaces: what goes into the second multiplication, and what comes out of either.
    part = inner if launch.experts_whole and replicas > 1 else inner // (ranks * replicas)
    workspaces = chosen * (max(part, hidden) + max(gated * part, hidden))
    if experts and replicas > 1:
        workspaces = replicas * (workspaces + 2 * hidden)
    for layer in geometry.recurrent:
        # Projections, the convolution (twice: in the order of channels and of tokens), the result.
        channels = (layer.conv_key_dim + layer.conv_value_dim) // ranks
        value = layer.conv_value_dim // ranks
        widest = max(widest, channels + value + 2 * channels + value + 3 * hidden)
    heads = _largest_number(text, "num_attention_heads")
    for attention in geometry.layers:
        if isinstance(attention, Attention):
            query = 2 * heads * max(attention.head_dim, attention.head_dim_v)
            widest = max(widest, (query + 2 * attention.kv_heads * attention.head_dim) // ranks + 3 * hidden)
    return widest * width, workspaces * width


def _sampling(launch: Launch, runner: int, vocabulary: int, hidden: int, width: int) -> int:
    """Return the bytes of sampling without the hidden states of the batch.

    V1: probabilities, noise and logits in 32 bits, also for draft tokens; V2: only logits.
    """
    rows = min(launch.sequences, launch.batch)
    full = rows * vocabulary * 4
    logits = rows * vocabulary * width
    if runner == 2:
        return logits + full * (3 if launch.release.since(_V2_SAMPLES_TWICE) else 1)
    buffer = min(rows, MULTIPROCESSORS) * vocabulary * 4
    drafted = 2 * logits + 3 * full if launch.drafts else 0
    return buffer + 2 * rows * hidden * width + logits + 3 * full + drafted


def _rotary_table(text: Config, geometry: Geometry, width: int) -> int:
    """Return the sines and cosines of every position; layers of one kind share one table."""
    if geometry.model_type == "nemotron_h":  # it has no positions
        return 0
    heads = [layer for layer in geometry.layers if isinstance(layer, Attention) and layer.kind != "mla"]
    dim = max((layer.head_dim for layer in heads), default=0) or _largest_number(text, "qk_rope_head_dim")
    share: Any = text.get("partial_rotary_factor")
    if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share <= 1:
        dim = int(dim * share)
    return geometry.max_position_embeddings * dim * width


def profile_by_batch(batch: int) -> ProfileRun:
    """Return the memory in use of an engine with unknown widths, by its batch alone: a wide range that includes graphs."""
    return ProfileRun(
        runner=1,
        peak=CUBLAS_WORKSPACE + batch * DENSE_TOKEN_BYTES,
        compiled=CUBLAS_WORKSPACE + batch * TOKEN_BYTES,
        unknown=UNKNOWN_BYTES + batch * TOKEN_BYTES,
    )


def profile_run(config: Config, geometry: Geometry, launch: Launch) -> ProfileRun:
    """Return the memory in use on one rank before an engine allocates its cache. config: as C(read_geometry) has read it."""
    text = text_config(config)
    width = 4 if geometry.dtype == "float32" else 2
    hidden, vocabulary = _largest_number(text, "hidden_size"), _largest_number(text, "vocab_size")
    if not (hidden and vocabulary):
        return profile_by_batch(launch.batch)
    runner = 2 if is_v2_runner(config, bool(geometry.recurrent), launch) else 1
    token, workspaces = _token_bytes(text, geometry, launch, width)
    states = launch.batch * hidden * width
    sampled = states + (0 if launch.pools else _sampling(launch, runner, vocabulary, hidden, width))
    peak = CUBLAS_WORKSPACE + launch.batch * workspaces + max(launch.batch * token, sampled)
    graphs = inside = 0
    compiled = peak
    if not launch.eager and launch.compiles:
        # The first part that torch compiles holds the embedding; it is copied once.
        compiled = max(peak, vocabulary // launch.ranks * hidden * width + 2 * states)
    captures = launch.captures if launch.captures >= 0 else count_default_captures(launch, geometry.model_type)
    if not launch.eager and captures:
        graphs = GRAPHS_BYTES + GRAPH_BYTES * len(geometry.layers) * captures
        # Worker.determine_available_memory
        since = COUNTS_GRAPHS[runner][0 if launch.counts_graphs else 1]
        is_counting = launch.counts_graphs is not False and launch.release.since(since)
        inside = int(GRAPHS_ESTIMATED * graphs) if is_counting else 0
    # V2 counts the tokens of every request that it may have.
    request_buffers = launch.sequences * vocabulary * 4 if runner == 2 else 0
    return ProfileRun(
        runner=runner,
        peak=peak,
        compiled=compiled,
        tables=_rotary_table(text, geometry, width),
        graphs=graphs,
        graphs_inside=inside,
        request_buffers=request_buffers,
    )
