# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host memory of one rank: buffers, caches and processes of vLLM outside its GPU memory request.

On a GB10 this is the same memory, so all of it counts. Each size follows the code of vLLM 0.15.1 to 0.33.0; comments name the file below
C(vllm/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._common.sizes import GIB
from .._vllm import kv_tiers, shared_memory
from .._vllm.overheads import LEVELS
from .family_modules import tables
from .kv_plan import KVPlan
from .layers import Config, text_config
from .releases import Release

NUMBERS = (
    "kv-offloading-size",
    "mm-processor-cache-gb",
    "api-server-count",
    "cpu-offload-gb",
    "offload-group-size",
    "offload-num-in-group",
    "offload-prefetch-step",
)
TEXTS = (
    "kv-offloading-backend",
    "mm-processor-cache-type",
    "offload-backend",
    "distributed-executor-backend",
)
FLAGS = ("headless", "data-parallel-external-lb", "data-parallel-hybrid-lb")
ARGS = (*NUMBERS, *TEXTS, *FLAGS, "engram-config")
"""Options of C(vllm serve) that decide host memory."""
VARIABLES = (
    "VLLM_USE_SIMPLE_KV_OFFLOAD",
    "VLLM_XGRAMMAR_CACHE_MB",
    "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY",
    "LMCACHE_MAX_LOCAL_CPU_SIZE",
)
"""Variables of the environment that decide host memory."""

FILE_TIER = "kv_tiers"
"""Stands in C(HostBuffer.option) for the key of a service that sets the size of the buffer."""
KV_BUFFER, MEDIA_CACHE, ADAPTER_COPIES = "KV offload buffer", "media cache", "adapter copies"
PROCESSES, RAY, GRAMMARS = "further processes", "Ray", "grammar cache"

_FALSE = ("", "0", "false")
# config/multimodal.py and envs.py: the defaults of --mm-processor-cache-gb and VLLM_XGRAMMAR_CACHE_MB.
_MEDIA_CACHE_GIB = 4
_GRAMMAR_CACHE_MIB = 512
# v1/kv_offload/cpu/gpu_worker.py, 0.33.0 (MIN_HOST_REGISTER_SAVED_BYTES): a worker that saves less per row registers the whole region.
_LEAST_SAVED_PER_ROW = 3 << 20
_PAGE = 4096
# Default sizes: simple_cpu_offload_connector.py, p2p_nccl_engine.py, lmcache/v1/config.py (0.3.9, 0.4.2).
_SIMPLE_OFFLOAD_BYTES = 8 * GIB
_P2P_POOL_GIB = 32.0
_LMCACHE_GIB = 5.0
# Connectors without a buffer in the processes of the engine.
_WITHOUT_BUFFER = ("DecodeBenchConnector", "ExampleConnector", "LMCacheMPConnector", "NixlConnector")


@dataclass(frozen=True)
class HostBuffer:
    """Host memory of one rank that has a name; sizes in bytes.

    name: its label in the memory map. at_start: allocated when the engine starts, otherwise filled by requests. option: the option or
    variable that sets its size. value: the value of that option, in the unit of the option.
    """

    name: str
    low: int
    typical: int
    high: int
    at_start: bool
    option: str = ""
    value: float = 0.0

    def size(self, level: str) -> int:
        """Return the bytes at a level of the overheads."""
        return (self.low, self.typical, self.high)[LEVELS.index(level)]


@dataclass(frozen=True)
class HostLaunch:
    """The settings of a launch that decide host memory.

    args, env: options and variables of the engine. release: of vLLM. rank: of this node; rank 0 answers requests. ranks: of one
    replica (tensor x pipeline parallel). replicas: data-parallel-size. media: the model takes images, videos or audio. adapter_copies: bytes
    of the LoRA adapters that are kept on the host. plan: of the KV cache, None if unknown. overheads: low, typical and high.
    """

    args: Config
    env: Mapping[str, Any]
    release: Release
    rank: int
    ranks: int
    replicas: int
    media: bool
    adapter_copies: int
    plan: KVPlan | None
    overheads: Mapping[str, tuple[float, float, float]]

    @property
    def api_servers(self) -> int:
        """API server processes of the whole deployment (entrypoints/cli/serve.py): one per replica unless a load balancer is elsewhere."""
        count = self.args.get("api-server-count")
        if count is not None:
            return max(1, int(count))
        outside = self.args.get("data-parallel-external-lb") or self.args.get("data-parallel-hybrid-lb")
        return 1 if outside else self.replicas

    @property
    def api_servers_here(self) -> int:
        """API server processes of this node."""
        return 0 if self.rank or self.args.get("headless") else self.api_servers

    @property
    def engine_cores_here(self) -> int:
        """Engine core processes of this node; the further ranks of a replica have workers only."""
        return 1 if self.rank % self.ranks == 0 else 0

    def number(self, key: str, default: float = 0.0) -> float:
        """Return the value of an option that is a number."""
        value = self.args.get(key)
        return default if value is None else float(value)


def pinned(size: int) -> int:
    """Return what torch allocates for a pinned tensor of C(size) bytes: the next power of two.

    ATen/core/CachingHostAllocator.h, up to torch 2.13; vLLM names it in v1/simple_kv_offload/cuda_mem_ops.py.
    """
    return 1 << (size - 1).bit_length() if size > 0 else 0


def _filled_buffer(name: str, typical: float, high: float, option: str, value: float = 0.0) -> Iterator[HostBuffer]:
    """Yield a cache that requests fill, unless its size is 0."""
    if high > 0:
        yield HostBuffer(name, 0, int(typical), int(high), False, option, value)


def _allocated_buffer(name: str, sizes: tuple[float, float, float], option: str = "") -> Iterator[HostBuffer]:
    """Yield a buffer that is allocated at the start, unless its size is 0."""
    if sizes[-1] > 0:
        yield HostBuffer(name, int(sizes[0]), int(sizes[1]), int(sizes[2]), True, option)


def host_buffers(launch: HostLaunch) -> tuple[HostBuffer, ...]:
    """Return the named parts of the host memory of one rank."""
    has_grammars = launch.engine_cores_here and launch.args.get("runner") != "pooling"
    grammars = _bytes(launch.env, "VLLM_XGRAMMAR_CACHE_MB", _GRAMMAR_CACHE_MIB) * (1 << 20) if has_grammars else 0
    return (
        *_kv_buffers(launch),
        *_media_cache(launch),
        # lora/lora_model.py pins each matrix of an adapter separately, so an adapter takes at most twice its size.
        *_filled_buffer(ADAPTER_COPIES, launch.adapter_copies, 2 * launch.adapter_copies, "max-cpu-loras"),
        # Compiled grammars of an engine core (v1/structured_output/backend_xgrammar.py). Few services fill this cache.
        *_filled_buffer(GRAMMARS, 0, grammars, "VLLM_XGRAMMAR_CACHE_MB"),
        *_processes(launch),
    )


# KV cache in host memory -------------------------------------------------------------------------------------------------


def unknown_connectors(args: Config) -> list[str]:
    """Return the KV connectors of a launch whose host memory is not known."""
    names = [name for name, _extra in shared_memory.connectors(args.get("kv-transfer-config"))]
    return [name for name in names if name and name not in (*_CONNECTORS, *_WITHOUT_BUFFER)]


def _kv_buffers(launch: HostLaunch) -> Iterator[HostBuffer]:
    """Yield the buffers for offloaded KV cache blocks. vLLM allocates them at the start, right after the KV cache."""
    args, release = launch.args, launch.release
    connectors, option = list(shared_memory.connectors(args.get("kv-transfer-config"))), "kv-transfer-config"
    size = launch.number("kv-offloading-size")
    if size:
        # config/vllm.py, _post_init_kv_transfer_config: the option replaces the connector.
        option, extra = "kv-offloading-size", dict(connectors[0][1]) if connectors else {}
        if args.get("kv-offloading-backend") == "lmcache":
            # From 0.23 on, a separate LMCache server holds the cache.
            name = "LMCacheMPConnector" if release.since(23) else "LMCacheConnectorV1"
            extra = {"lmcache.max_local_cpu_size": size / launch.ranks}
        else:
            simple = str(launch.env.get("VLLM_USE_SIMPLE_KV_OFFLOAD") or "").lower() not in _FALSE
            name = "SimpleCPUOffloadConnector" if simple and release.since(19) else "OffloadingConnector"
            extra["cpu_bytes_to_use"] = size * GIB
        connectors = [(name, extra)]
    for name, extra in connectors:
        if name in _CONNECTORS:
            set_by = FILE_TIER if kv_tiers.is_file_tier(extra) else option
            yield from _allocated_buffer(KV_BUFFER, _CONNECTORS[name](launch, extra), set_by)


def _bytes(extra: Mapping[str, Any], key: str, default: float = 0.0) -> float:
    """Return a size that is written as a number or as text; the default if it is neither."""
    value = extra.get(key, default)
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return default


def _offloading_connector(launch: HostLaunch, extra: Config) -> tuple[float, float, float]:
    """Return the buffer sizes of the OffloadingConnector (v1/kv_offload/cpu/); its option is the sum over all ranks."""
    total, plan = _bytes(extra, "cpu_bytes_to_use"), launch.plan
    # Blocks, counted over all ranks.
    row = plan.bytes_per_block * launch.ranks if plan else 0
    if launch.release.since(23):
        row = -(-row // _PAGE) * _PAGE
    blocks, rank_bytes = int(total // row) if row else 0, total / launch.ranks
    if plan is None or not blocks:
        return (rank_bytes,) * 3
    rank_bytes = blocks * plan.bytes_per_block
    if launch.release.since(27) or extra.get("spec_name") == "TieringOffloadingSpec":
        # One region in /dev/shm for all ranks. Up to 0.32 each rank registers the whole region as pinned memory, which allocates all of it
        # on every host. 0.33 registers only the slots of the rank if that saves enough (pin_mmap_region).
        slots = launch.release.since(33) and (launch.ranks - 1) * plan.bytes_per_block >= _LEAST_SAVED_PER_ROW
        size = float(rank_bytes if slots else rank_bytes * launch.ranks)
        return (size, size, size)
    # One pinned tensor per tensor of the KV cache. A model with a single KV cache group may use one tensor for all layers
    # (kv_connector_model_runner_mixin.py, use_uniform_kv_cache).
    per_layer = float(plan.group_size * pinned(rank_bytes // plan.group_size))
    if len(plan.groups) > 1:
        return (per_layer, per_layer, per_layer)
    joined = float(pinned(rank_bytes))
    return (min(per_layer, joined), joined, max(per_layer, joined))


def _simple_connector(launch: HostLaunch, extra: Config) -> tuple[float, float, float]:
    """Return the buffer sizes of the SimpleCPUOffloadConnector: exact, because it pins by cudaHostRegister; 0 without prefix caching."""
    plan = launch.plan
    if (plan and not plan.settings.prefix_caching) or extra.get("kv_offload_backend") == "disk":
        return (0.0, 0.0, 0.0)
    rank_bytes = _bytes(extra, "cpu_bytes_to_use", _SIMPLE_OFFLOAD_BYTES) // launch.ranks
    rank_bytes = _bytes(extra, "cpu_bytes_to_use_per_rank", rank_bytes)
    if plan:
        blocks = _bytes(extra, "num_cpu_blocks") if launch.release.since(33) else 0
        rank_bytes = float((blocks or max(1, rank_bytes // plan.bytes_per_block)) * plan.bytes_per_block)
    return (rank_bytes,) * 3


_CONNECTORS: dict[str, Callable[[HostLaunch, Config], tuple[float, float, float]]] = {
    "OffloadingConnector": _offloading_connector,
    "SimpleCPUOffloadConnector": _simple_connector,
    # LMCache's local CPU cache in a worker, all of which LMCache pins at its start.
    "LMCacheConnectorV1": lambda launch, extra: (
        (
            _bytes(extra, "lmcache.max_local_cpu_size", _bytes(launch.env, "LMCACHE_MAX_LOCAL_CPU_SIZE", _LMCACHE_GIB))
            * GIB,
        )
        * 3
    ),
    # A pool of a power of two (p2p/tensor_memory_pool.py).
    "P2pNcclConnector": lambda _launch, extra: (
        (float(pinned(int(_bytes(extra, "mem_pool_size_gb", _P2P_POOL_GIB) * GIB))),) * 3
    ),
    "HiSparseConnector": lambda _launch, extra: (_bytes(extra, "host_pool_gib") * GIB,) * 3,  # v1/hisparse/runtime.py
}


# Caches that requests fill, and processes -------------------------------------------------------------------------------------


def _media_cache(launch: HostLaunch) -> Iterator[HostBuffer]:
    """Yield the cache of processed images, videos and audio (multimodal/cache.py, from 0.31 on multimodal/cache/).

    With one API server and one replica the engine core holds the data (for C(shm) a ring buffer in /dev/shm) and the API server holds keys.
    Otherwise each API server holds the data, and the engine cores hold nothing. config/multimodal.py documents the bound
    C(size x (API servers + replicas)); no release reaches it, since only one side holds the data.
    """
    size = launch.number("mm-processor-cache-gb", _MEDIA_CACHE_GIB)
    # _get_cache_type of multimodal/registry.py, from 0.31 on multimodal/cache/factories.py
    single = launch.api_servers == 1 and (launch.replicas == 1 or bool(launch.args.get("data-parallel-external-lb")))
    copies = launch.engine_cores_here if single else launch.api_servers_here
    if launch.media:
        cache_bytes = size * copies * GIB
        yield from _filled_buffer(MEDIA_CACHE, cache_bytes, cache_bytes, "mm-processor-cache-gb", size)


def _processes(launch: HostLaunch) -> Iterator[HostBuffer]:
    """Yield Ray, and the processes beyond one API server and one engine core, which C(outside_gib) includes."""
    parallel, ray = launch.ranks > 1, launch.args.get("distributed-executor-backend") == "ray"
    # Several API servers have a parent process of the same size; a single one is the parent itself (run_multi_api_server, run_server).
    further = launch.api_servers_here if launch.api_servers_here > 1 else 0
    if launch.api_servers_here:
        # With several ranks the worker is a separate process; replicas have a coordinator.
        further += int(parallel) + int(launch.replicas > 1)
    yield from _allocated_buffer(PROCESSES, _scaled(launch.overheads["process_gib"], further), "api-server-count")
    if ray:
        yield from _allocated_buffer(RAY, _scaled(launch.overheads["ray_gib"], 1), "distributed-executor-backend")


def _scaled(sizes: tuple[float, float, float], count: int) -> tuple[float, float, float]:
    low, typical, high = (size * count * GIB for size in sizes)
    return (low, typical, high)


# Weights in host memory ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostWeights:
    """Weights of one rank that vLLM keeps in pinned host memory; bytes.

    offloaded: weights moved by an option. tables: tables of n-grams, in host memory by default. extra: memory beyond the size of the weights,
    low, typical and high. On a GB10 all of it counts against the request, because vLLM compares the free memory of the host.
    """

    offloaded: int = 0
    tables: int = 0
    extra: tuple[int, int, int] = (0, 0, 0)


def host_weights(
    config: Config,
    args: Config,
    env: Mapping[str, Any],
    weights: int,
    counted_tables: int,
    release: Release,
    ranks: int,
) -> HostWeights:
    """Return which weights of a rank are in pinned host memory.

    :param weights: bytes of all weights of the rank
    :param counted_tables: bytes of n-gram tables among the weights; 0 if they are on disk or their size is unknown
    """
    size, buffers = _count_offloaded(config, args, weights, release)
    # Each parameter is pinned separately: 0 to 100 % more, 44 % on average over random sizes (1 / ln 2 - 1).
    pageable = str(env.get("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY") or "").lower() not in _FALSE
    pinned_typical, pinned_high = (0, 0) if pageable else (size * 44 // 100, size)
    in_host = HostWeights(size, 0, (0, buffers + pinned_typical, buffers + pinned_high))
    engram = args.get("engram-config")
    engram = engram if isinstance(engram, Mapping) else {}
    if not counted_tables or engram.get("cpu_offload") is False:
        return in_host
    # models/deepseek_v41/common/engram.py, models/qwen4_exp/common/ngram_embedding.py: pinned tensors for each table and its scales; with
    # huge pages or tables shared between replicas, mappings of the exact size.
    replicas = int(args.get("data-parallel-size") or 1)
    exact = bool(engram.get("use_thp")) or (replicas > 1 and engram.get("dp_shared_memory") is not False)
    waste = 0 if exact else sum(pinned(size) - size for size in _table_tensors(config, ranks))
    low, typical, high = in_host.extra
    return replace(in_host, tables=counted_tables, extra=(low, typical + waste, high + waste))


def _table_tensors(config: Config, ranks: int) -> Iterator[int]:
    """Yield the bytes of each tensor of the tables of n-grams on one rank."""
    text = text_config(config)
    family = str(text.get("model_type") or "")
    for table in tables(text, family):
        rows = -(-table.rows // ranks)
        if family == "deepseek_v41_text":
            # Values of 8 bits, and one scale per 32 values.
            values = table.columns * 32 // 33
            yield rows * values
            yield rows * (table.columns - values)
        else:
            yield rows * table.columns * (table.size or 2)


def _count_offloaded(config: Config, args: Config, weights: int, release: Release) -> tuple[int, int]:
    """Return the bytes that vLLM moves to the host (model_executor/offloader/), and of the GPU buffers for them."""
    group = int(args.get("offload-group-size") or 0) if release.since(17) else 0
    backend = args.get("offload-backend") or "auto"
    if group and backend in ("auto", "prefetch"):
        layers = int(text_config(config).get("num_hidden_layers") or 1)
        chosen = layers // group * int(args.get("offload-num-in-group") or 1)
        # The buffers hold the layers that are prefetched.
        buffers = weights * min(chosen, int(args.get("offload-prefetch-step") or 1)) // layers
        return weights * chosen // layers, buffers
    size = float(args.get("cpu-offload-gb") or 0) if backend in ("auto", "uva") else 0
    return min(weights, int(size * GIB)), 0
