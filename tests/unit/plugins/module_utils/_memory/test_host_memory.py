"""Named host memory: bytes by version of vLLM, levels, ranks, memory map and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import host_memory
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget

ROOT = Path(__file__).parents[5]
GIB = 2**30
LEVELS = ("low", "typical", "high")
# A block of Qwen3-4B: 36 layers x 2 x 16 tokens x 8 heads x 128 x 2 bytes; a page of one layer.
BLOCK = 36 * 2 * 16 * 8 * 128 * 2
PAGE = BLOCK // 36
DENSE = "qwen3-4b-instruct-2507"
VISION = "gemma-4-26b-a4b"
DEFAULT = {"gpu-memory-utilization": 0.5, "max-model-len": 8192, "max-num-seqs": 8}


def config(recipe: str) -> dict[str, Any]:
    body = yaml.safe_load((ROOT / f"playbooks/recipes/{recipe}.yml").read_text(encoding="utf-8"))
    return dict(body["config"])


def budget(args: dict[str, Any], version: str = "0.33.0", recipe: str = DENSE, **service: Any) -> dict[str, Any]:
    launch = {"name": "x", "vllm_version": version, "config": config(recipe), "args": {**DEFAULT, **args}, **service}
    return memory_budget({"services": [launch]})


def part(name: str, *launch: Any, **service: Any) -> dict[str, Any]:
    """Return one part of the host memory of a service; zeros if the service does not have it."""
    parts = budget(*launch, **service)["services"]["x"]["host_memory"]
    named = [entry for entry in parts if entry["name"] == name]
    assert len(named) <= 1
    return named[0] if named else {"gib": dict.fromkeys(LEVELS, 0.0), "at_start": None}


def gib(size: float) -> float:
    return round(size / GIB, 2)


def blocks(size: float, ranks: int = 1) -> int:
    """Return the bytes of whole blocks of one rank that fit into C(size) GiB of all ranks."""
    return int(size * GIB // (BLOCK * ranks)) * BLOCK // ranks


def transfer(connector: str, **extra: Any) -> dict[str, Any]:
    return {"kv-transfer-config": {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}}


MULTI = transfer(
    "MultiConnector",
    connectors=[
        {"kv_connector": "NixlConnector"},
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 12 * GIB}},
    ],
)
TWO = {"tensor-parallel-size": 2}
SIMPLE = {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}

# id: options, version, variables, and GiB low, typical and high by the code of that version.
KV_BUFFERS = {
    # cpu.py, cpu/spec.py with pin_memory=True: torch rounds each tensor up to a power of two. A model with one group may use one tensor for all
    # layers or one per layer: 16 GiB are 7281 blocks, 0.444 GiB per layer, 0.5 GiB pinned.
    "0.15, one kind of layers": ({"kv-offloading-size": 16}, "0.15.1", {}, (16, 16, 18)),
    "0.19, not a power of two": ({"kv-offloading-size": 20}, "0.19.0", {}, (32, 32, 36)),
    "0.24, not a power of two": ({"kv-offloading-size": 20}, "0.24.0", {}, (32, 32, 36)),
    "0.26, per rank": ({"kv-offloading-size": 20, **TWO}, "0.26.0", {}, (16, 16, 18)),
    # cpu/shared_offload_region.py: pages of one file in /dev/shm, exact.
    "0.27, exact": ({"kv-offloading-size": 20}, "0.27.0", {}, (20, 20, 20)),
    # pin_mmap_region registers the whole region on each host; 0.33 only the slots of the rank if a row saves 3 MiB.
    "0.28, whole region on each host": ({"kv-offloading-size": 20, **TWO}, "0.28.0", {}, (20, 20, 20)),
    "0.33, row saves less than 3 MiB": ({"kv-offloading-size": 20, **TWO}, "0.33.0", {}, (20, 20, 20)),
    "0.33, own slots": (
        {"kv-offloading-size": 20, "tensor-parallel-size": 4, "block-size": 64},
        "0.33.0",
        {},
        (5, 5, 5),
    ),
    # simple_cpu_offload_connector.py: registered after it was made, so exact; 8 GiB where nothing is message; none without prefix caching.
    "simple, by the variable": ({"kv-offloading-size": 20}, "0.24.0", SIMPLE, (20, 20, 20)),
    "simple, variable before its time": ({"kv-offloading-size": 20}, "0.18.0", SIMPLE, (32, 32, 36)),
    "simple, default": (transfer("SimpleCPUOffloadConnector"), "0.30.0", {}, (8, 8, 8)),
    "simple, per rank": (
        {**transfer("SimpleCPUOffloadConnector", cpu_bytes_to_use_per_rank=6 * GIB), **TWO},
        "0.30.0",
        {},
        (6, 6, 6),
    ),
    "simple, no prefix caching": (
        {**transfer("SimpleCPUOffloadConnector"), "enable-prefix-caching": False},
        "0.30.0",
        {},
        (0, 0, 0),
    ),
    "simple, on disk": (transfer("SimpleCPUOffloadConnector", kv_offload_backend="disk"), "0.33.0", {}, (0, 0, 0)),
    # config/vllm.py: up to 0.22 LMCache in each worker, with an equal share; later a separate server.
    "lmcache in the engine": (
        {"kv-offloading-size": 20, "kv-offloading-backend": "lmcache", **TWO},
        "0.19.0",
        {},
        (10, 10, 10),
    ),
    "lmcache in the engine, last": (
        {"kv-offloading-size": 20, "kv-offloading-backend": "lmcache"},
        "0.22.0",
        {},
        (20, 20, 20),
    ),
    "lmcache as a server": ({"kv-offloading-size": 20, "kv-offloading-backend": "lmcache"}, "0.23.0", {}, (0, 0, 0)),
    "lmcache, its default": (transfer("LMCacheConnectorV1"), "0.19.0", {}, (5, 5, 5)),
    "lmcache, by the variable": (
        transfer("LMCacheConnectorV1"),
        "0.19.0",
        {"LMCACHE_MAX_LOCAL_CPU_SIZE": "40"},
        (40, 40, 40),
    ),
    # p2p_nccl_engine.py: 32 GB where nothing is message; tensor_memory_pool.py rounds up to a power of two.
    "p2p, its default": (transfer("P2pNcclConnector"), "0.15.1", {}, (32, 32, 32)),
    "p2p, rounded": (transfer("P2pNcclConnector", mem_pool_size_gb=20), "0.15.1", {}, (32, 32, 32)),
    "inside of several connectors": (MULTI, "0.30.0", {}, (12, 12, 12)),
    "no buffer": (transfer("NixlConnector"), "0.33.0", {}, (0, 0, 0)),
    "nothing asked": ({}, "0.33.0", {}, (0, 0, 0)),
}


@pytest.mark.parametrize("case", KV_BUFFERS)
def test_buffers_of_offloaded_blocks_are_what_vllm_allocates(case: str) -> None:
    args, version, env, sizes = KV_BUFFERS[case]
    planned = part("KV offload buffer", args, version, env=env)
    # Only whole blocks are allocated.
    for level, size in zip(LEVELS, sizes):
        assert size - BLOCK / GIB - 0.01 <= planned["gib"][level] <= size, level
    assert planned["at_start"] is (True if sizes[2] else None)


def test_whole_blocks_to_the_byte() -> None:
    assert part("KV offload buffer", {"kv-offloading-size": 20}, "0.27.0")["gib"]["typical"] == gib(blocks(20))
    assert host_memory.pinned(blocks(20)) == 32 * GIB
    assert 36 * host_memory.pinned(blocks(20) // 36) == 36 * GIB
    assert [host_memory.pinned(size) for size in (0, 1, 4096, 4097)] == [0, 1, 4096, 8192]


# id: options, version, rank, and GiB typical.
MEDIA_CACHES = {
    # multimodal/cache.py: the engine core has the data, the API server its keys.
    "default": ({}, "0.33.0", 0, 4),
    "given": ({"mm-processor-cache-gb": 10}, "0.15.1", 0, 10),
    "shm, one ring buffer": ({"mm-processor-cache-gb": 10, "mm-processor-cache-type": "shm"}, "0.24.0", 0, 10),
    "off": ({"mm-processor-cache-gb": 0}, "0.33.0", 0, 0),
    # Several API servers: the data in each, and none in the engine core (processor_only).
    "three API servers": ({"api-server-count": 3}, "0.33.0", 0, 12),
    "three API servers, shm": ({"api-server-count": 3, "mm-processor-cache-type": "shm"}, "0.30.0", 0, 12),
    # Media that the launch does not take.
    "text alone": ({"language-model-only": True}, "0.33.0", 0, 0),
    "limits of nothing": ({"limit-mm-per-prompt": {"image": 0, "video": 0}}, "0.33.0", 0, 0),
    # Ranks behind the first have workers alone.
    "head of two": ({**TWO}, "0.33.0", 0, 4),
    "second of two": ({**TWO}, "0.33.0", 1, 0),
}


@pytest.mark.parametrize("case", MEDIA_CACHES)
def test_the_media_cache_is_where_vllm_has_it(case: str) -> None:
    args, version, rank, size = MEDIA_CACHES[case]
    planned = part("media cache", args, version, VISION, rank=rank)
    assert planned["gib"] == {"low": 0.0, "typical": size, "high": size}
    assert planned["at_start"] is (False if size else None)


def test_replicas_cache_media_in_the_api_servers() -> None:
    """data-parallel-size 2 without a load balancer elsewhere: vLLM starts one API server per replica, all on the head."""
    replicas = {"data-parallel-size": 2, "enable-expert-parallel": True}
    assert part("media cache", replicas, recipe=VISION)["gib"]["typical"] == 8
    assert part("media cache", {**replicas, "api-server-count": 1}, recipe=VISION)["gib"]["typical"] == 4
    assert part("media cache", {**replicas, "headless": True}, recipe=VISION, rank=1)["gib"]["typical"] == 0
    outside = {**replicas, "data-parallel-external-lb": True}
    assert part("media cache", outside, recipe=VISION)["gib"]["typical"] == 4


def test_a_model_of_text_has_no_media_cache() -> None:
    assert part("media cache", {"mm-processor-cache-gb": 40})["gib"]["high"] == 0


def test_the_grammar_cache_is_a_bound_that_few_reach() -> None:
    assert part("grammar cache", {})["gib"] == {"low": 0.0, "typical": 0.0, "high": 0.5}
    assert part("grammar cache", {}, env={"VLLM_XGRAMMAR_CACHE_MB": "2048"})["gib"]["high"] == 2.0
    assert part("grammar cache", {"runner": "pooling"})["gib"]["high"] == 0
    assert part("grammar cache", {**TWO}, rank=1)["gib"]["high"] == 0


def test_adapters_on_the_host_are_pinned_one_by_one() -> None:
    lora = {"enable-lora": True, "max-loras": 2, "max-lora-rank": 16}
    few, many = (part("adapter copies", {**lora, **more})["gib"] for more in ({}, {"max-cpu-loras": 20}))
    assert few["low"] == many["low"] == 0 and few["high"] == pytest.approx(2 * few["typical"], abs=0.02)
    assert many["typical"] == pytest.approx(10 * few["typical"], abs=0.06)


def test_processes_beyond_an_api_server_and_an_engine_core_count() -> None:
    def count(args: dict[str, Any], **service: Any) -> float:
        return round(float(part("further processes", args, **service)["gib"]["typical"]) / process_gib)

    process_gib = part("further processes", TWO)["gib"]["typical"]
    assert process_gib > 0.3
    assert count({}) == 0
    assert count({"api-server-count": 4}) == 4  # four for one, which was the parent itself
    assert count({**TWO}) == 1  # a worker process
    assert count({**TWO}, rank=1) == 0
    assert count({"data-parallel-size": 2, "api-server-count": 1}) == 1  # the coordinator of the replicas
    ray = {**TWO, "distributed-executor-backend": "ray"}
    for rank in (0, 1):
        assert part("Ray", ray, rank=rank)["gib"]["typical"] > 0.2
    assert part("Ray", TWO)["gib"]["typical"] == 0


def test_sizes_of_processes_can_be_set() -> None:
    planned = part("further processes", {"api-server-count": 3}, overheads={"process_gib": 2})
    assert planned["gib"] == dict.fromkeys(LEVELS, 6.0)


# id: options, version, and GiB of the weights that move to the host.
OFFLOADED = {
    "uva": ({"cpu-offload-gb": 4}, "0.15.1", 4.0),
    "more than there is": ({"cpu-offload-gb": 40}, "0.33.0", 7.49),
    # 36 layers in groups of 4, of which the last one moves.
    "prefetch": ({"offload-group-size": 4}, "0.17.1", 7.49 / 4),
    "prefetch wins over uva": ({"offload-group-size": 4, "cpu-offload-gb": 4}, "0.33.0", 7.49 / 4),
    "uva by name": ({"offload-group-size": 4, "cpu-offload-gb": 4, "offload-backend": "uva"}, "0.33.0", 4.0),
    "no groups before 0.17": ({"offload-group-size": 4}, "0.16.0", 0.0),
}


@pytest.mark.parametrize("case", OFFLOADED)
def test_weights_that_move_to_the_host_stay_in_the_same_memory(case: str) -> None:
    args, version, size = OFFLOADED[case]
    planned, plain = budget(args, version), budget({}, version)
    offloaded, before = planned["services"]["x"], plain["services"]["x"]
    assert offloaded["offloaded_bytes"] / GIB == pytest.approx(size, abs=0.01)
    assert offloaded["weights_bytes"] == before["weights_bytes"]
    kv = {level: offloaded["available_kv_bytes"][level] - before["available_kv_bytes"][level] for level in LEVELS}
    # A GB10 charges them to the request, and what pinning rounds up, too: the KV cache gains nothing.
    assert kv["high"] == 0
    assert kv["low"] <= kv["typical"] <= 0
    assert (kv["typical"] < 0) == (size > 0)
    parts = {entry["label"]: entry["gib"] for entry in planned["memory_map"]}
    assert parts.get("x weights in host memory", 0) == pytest.approx(size, abs=0.01)
    assert parts["x weights"] == pytest.approx(7.49 - size, abs=0.02)


def test_pageable_weights_are_not_rounded_up() -> None:
    env = {"VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY": "1"}
    planned, plain = (
        entry["services"]["x"]["available_kv_bytes"] for entry in (budget({"cpu-offload-gb": 4}, env=env), budget({}))
    )
    assert planned == plain


def test_tables_in_pinned_memory_are_rounded_up() -> None:
    """Qwen3.8-Flash-Next over four: a table of 95.37 GiB, 23.84 on each rank in one pinned tensor, for which torch takes 32."""
    four_ranks = {"tensor-parallel-size": 4, "gpu-memory-utilization": 0.9, "quantization": None}
    plain = {**config("qwen3.8-flash-next-nvfp4"), "quantization_config": None}

    def service(**engram: Any) -> dict[str, Any]:
        args = {**four_ranks, **({"engram-config": engram} if engram else {})}
        planned = memory_budget(
            {
                "services": [
                    {"name": "x", "vllm_version": "0.33.0", "config": plain, "args": {**DEFAULT, **args}, "rank": 1}
                ]
            }
        )
        return {**planned["services"]["x"], "map": {entry["label"]: entry["gib"] for entry in planned["memory_map"]}}

    default, huge, on_gpu = service(), service(use_thp=True), service(cpu_offload=False)
    rounded = huge["overhead_gib"]["typical"]
    assert default["overhead_gib"]["typical"] - rounded == pytest.approx(32 - 95.37 / 4, abs=0.02)
    assert default["overhead_gib"]["low"] == huge["overhead_gib"]["low"]
    assert default["map"]["x tables in host memory"] == pytest.approx(95.37 / 4, abs=0.02)
    assert on_gpu["overhead_gib"] == huge["overhead_gib"] and "x tables in host memory" not in on_gpu["map"]


@pytest.mark.parametrize("version", ["0.19.0", "0.24.0", "0.30.0", "0.33.0", ""])
@pytest.mark.parametrize("utilization", [0.3, "auto"])
def test_a_buffer_that_does_not_fit_is_one_error_with_one_fix(version: str, utilization: Any) -> None:
    planned = budget({"kv-offloading-size": 110, "gpu-memory-utilization": utilization}, version)
    assert planned["verdict"] == "fails"
    errors = [entry for entry in planned["findings"] if entry["severity"] in ("error", "warning")]
    (error,) = [entry for entry in errors if entry["rule"] != "memory.version"]
    assert (error["rule"], error["severity"]) == ("memory.host_buffer", "error")
    assert "kv-offloading-size" in error["message"] and "GiB" in error["message"]
    assert error["fix"] == "Leave out kv-offloading-size of x."
    without = budget({"gpu-memory-utilization": utilization}, version)
    assert without["verdict"] == "fits"
    assert without["services"]["x"]["gpu_memory_utilization"] == planned["services"]["x"]["gpu_memory_utilization"]


def test_a_buffer_beside_another_service_is_still_one_error() -> None:
    services = [
        {"name": name, "vllm_version": "0.33.0", "config": config(DENSE), "args": {**DEFAULT, **args}}
        for name, args in (("a", {"gpu-memory-utilization": 0.3, "kv-offloading-size": 60}), ("b", {}))
    ]
    planned = memory_budget({"services": services})
    assert [entry["rule"] for entry in planned["findings"] if entry["severity"] == "error"] == ["memory.host_buffer"]
    assert planned["services"]["a"]["verdict"] == "fails" and planned["services"]["b"]["verdict"] == "fits"


def test_a_buffer_that_fits_is_a_warning_that_gives_the_cache_its_memory() -> None:
    planned = budget({"kv-offloading-size": 16})
    assert planned["verdict"] == "fits"
    (warning,) = [entry for entry in planned["findings"] if entry["severity"] == "warning"]
    assert warning["rule"] == "memory.host_buffer"
    assert warning["fix"] == "Leave out kv-offloading-size of x and set gpu-memory-utilization of x to 0.63."
    parts = {entry["label"]: entry for entry in planned["memory_map"]}
    assert parts["x KV offload buffer"]["kind"] == "host"
    assert parts["x KV offload buffer"]["gib"] == gib(blocks(16))
    plain = budget({})
    for level in LEVELS:
        more = planned["services"]["x"]["residency_gib"][level] - plain["services"]["x"]["residency_gib"][level]
        assert more == pytest.approx(blocks(16) / GIB, abs=0.02)
    assert planned["utilization_bound"] < plain["utilization_bound"]


def test_a_media_cache_that_grows_too_large_names_its_option() -> None:
    """It starts and works, and fails once requests have filled the cache: no error, and a size that does."""
    args = {"gpu-memory-utilization": 0.8, "mm-processor-cache-gb": 30}
    planned = budget(args, recipe=VISION)
    assert planned["verdict"] == "tight"
    (warning,) = [entry for entry in planned["findings"] if entry["rule"] == "memory.node"]
    assert warning["severity"] == "warning" and "media cache of x (mm-processor-cache-gb)" in warning["message"]
    fixed = {key: value for change in warning["changes"] for key, value in change["args"].items()}
    assert set(fixed) == {"mm-processor-cache-gb"} and 0 < fixed["mm-processor-cache-gb"] < 30
    after = budget({**args, **fixed}, recipe=VISION)
    assert not [entry for entry in after["findings"] if entry["severity"] == "warning"]


def test_stated_memory_has_its_host_memory_beside_it() -> None:
    stated = {"memory": {"weights_gib": 50, "kv_gib": 10, "other_gib": 3}}
    plain, planned = (
        budget({"gpu-memory-utilization": "auto", **more}, recipe=VISION, **stated)["services"]["x"]
        for more in ({"mm-processor-cache-gb": 0}, {"kv-offloading-size": 10})
    )
    more = planned["residency_gib"]["typical"] - plain["residency_gib"]["typical"]
    assert more == pytest.approx(10 + 4, abs=0.02)


def test_a_connector_that_is_not_known_is_named() -> None:
    planned = budget(transfer("MyConnector"))
    (note,) = [entry for entry in planned["findings"] if entry["rule"] == "memory.approximate"]
    assert note["severity"] == "info" and "MyConnector" in note["message"]
    assert not [
        entry for entry in budget(transfer("NixlConnector"))["findings"] if entry["rule"] == "memory.approximate"
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"kv-offloading-size": -1}, "kv-offloading-size: must be at least 0"),
        ({"mm-processor-cache-gb": "much"}, "mm-processor-cache-gb"),
        ({"headless": 3}, "headless"),
    ],
)
def test_a_size_that_is_none_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        budget(args)
