from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import layers, releases
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.residency import (
    HostUse,
    StartLog,
    compare,
    compare_system,
    figures,
    merged_override,
    parse_log,
    read_start,
)

# Lines as each release prints them: gpu_model_runner.py, gpu_worker.py, kv_cache_utils.py, core.py of that release.
LOG_019 = """\
(APIServer pid=1) INFO 11-20 09:24:42 [utils.py:299] vLLM API server version 0.19.0
(APIServer pid=1) INFO 11-20 09:24:42 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-Next-80B-A3B-Instruct-FP8', \
'api_key': ['x'], 'max_model_len': 65536, 'gpu_memory_utilization': 0.8}
(EngineCore pid=83) INFO 11-20 09:25:20 [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='...'
(EngineCore pid=83) INFO 11-20 09:25:21 [config.py:228] Setting attention block size to 544 tokens to ensure that attention \
page size is >= mamba page size.
(EngineCore pid=83) INFO 11-20 09:31:02 [default_loader.py:384] Loading weights took 320.51 seconds
(EngineCore pid=83) INFO 11-20 09:31:04 [gpu_model_runner.py:4820] Model loading took 74.85 GiB memory and 343.120411 seconds
(EngineCore pid=83) INFO 11-20 09:31:40 [monitor.py:48] torch.compile took 21.40 s in total
(EngineCore pid=83) INFO 11-20 09:31:52 [gpu_model_runner.py:5955] Estimated CUDA graph memory: -4.74 GiB total
(EngineCore pid=83) INFO 11-20 09:31:54 [gpu_worker.py:436] Available KV cache memory: 18.40 GiB
(EngineCore pid=83) INFO 11-20 09:31:54 [kv_cache_utils.py:1319] GPU KV cache size: 200,736 tokens
(EngineCore pid=83) INFO 11-20 09:31:54 [kv_cache_utils.py:1324] Maximum concurrency for 65,536 tokens per request: 11.62x
(EngineCore pid=83) INFO 11-20 09:32:10 [gpu_model_runner.py:6046] Graph capturing finished in 14 secs, took 0.81 GiB
(EngineCore pid=83) INFO 11-20 09:32:11 [core.py:283] init engine (profile, create kv cache, warmup model) took 66.15 seconds
"""


def test_lines_of_vllm_019() -> None:
    log = parse_log(LOG_019.splitlines())
    assert log == StartLog(
        version="0.19.0",
        device="gpu",
        ranks=1,
        utilization=0.8,
        weights_gib=74.85,
        load_seconds=343.120411,
        read_seconds=320.51,
        kv_cache_gib=18.4,
        graphs_estimate_gib=-4.74,
        graphs_gib=0.81,
        graphs_seconds=14,
        compile_seconds=21.4,
        init_seconds=66.15,
        block_size=544,
        kv_cache_tokens=200736,
        tokens_count="blocks",
        max_concurrency=11.62,
        max_model_len=65536,
    )


@pytest.mark.parametrize(
    ("version", "lines", "count"),
    [
        # Up to 0.20.0 the tokens of all blocks, then what fits; two lines, one from 0.28; the device's name from 0.30.
        ("0.16.0", ["GPU KV cache size: 43,680 tokens", "Maximum concurrency for 65,536 tokens per request: 3.32x"], "blocks"),
        ("0.20.0", ["GPU KV cache size: 43,680 tokens", "Maximum concurrency for 65,536 tokens per request: 3.32x"], "blocks"),
        ("0.20.1", ["GPU KV cache size: 43,680 tokens", "Maximum concurrency for 65,536 tokens per request: 3.32x"], "requests"),
        ("0.28.0", ["GPU KV cache size: 43,680 tokens, Maximum concurrency for 65,536 tokens per request: 3.32x"], "requests"),
        (
            "0.33.0",
            ["GPU + host KV cache size: 43,680 tokens, Maximum concurrency for 65,536 tokens per request: 3.32x"],
            "requests",
        ),
    ],
)  # fmt: skip
def test_the_line_of_the_kv_cache(version: str, lines: list[str], count: str) -> None:
    first = f"(EngineCore_DP0 pid=7) INFO 11-20 09:25:20 [core.py:1] Initializing a V1 LLM engine (v{version}) with config: x"
    log = parse_log([first, *(f"(EngineCore_DP0 pid=7) INFO 11-20 09:25:20 [kv_cache_utils.py:1] {t}" for t in lines)])
    assert (log.version, log.device, log.tokens_count) == (version, "gpu", count)
    assert (log.kv_cache_tokens, log.max_concurrency, log.max_model_len) == (43680, 3.32, 65536)


def test_the_older_v2_runner_and_the_init_line_of_020() -> None:
    log = parse_log(
        [
            "(EngineCore pid=7) INFO 11-20 09:25:20 [model_runner.py:292] Model loading took 7.49 GiB and 12.500000 seconds",
            "(EngineCore pid=7) INFO 11-20 09:25:20 [core.py:300] init engine (profile, create kv cache, warmup model) took "
            "31.20 s (compilation: 12.10 s)",
        ]
    )
    assert (log.weights_gib, log.load_seconds, log.init_seconds) == (7.49, 12.5, 31.2)


def test_ranks_of_this_host_only() -> None:
    """Ray brings the lines of the other host to the head, in colour and with its address."""
    log = parse_log(
        [
            "\x1b[36m(RayWorkerProc pid=32306)\x1b[0m (Worker_TP0 pid=32306) INFO 11-20 09:35:58 [gpu_model_runner.py:5133] "
            "Model loading took 57.87 GiB memory and 300.000000 seconds",
            "\x1b[36m(RayWorkerProc pid=32308, ip=10.231.0.2)\x1b[0m (Worker_TP1 pid=32308) INFO 11-20 09:35:58 "
            "[gpu_model_runner.py:5133] Model loading took 99.99 GiB memory and 900.000000 seconds",
            "\x1b[36m(RayWorkerProc pid=32306)\x1b[0m (Worker_TP0 pid=32306) INFO 11-20 09:35:58 [gpu_worker.py:467] "
            "Available KV cache memory: 30.00 GiB",
            "\x1b[36m(RayWorkerProc pid=32308, ip=10.231.0.2)\x1b[0m (Worker_TP1 pid=32308) INFO 11-20 09:35:58 "
            "[gpu_worker.py:467] Available KV cache memory: 1.00 GiB",
        ]
    )
    assert (log.ranks, log.weights_gib, log.load_seconds, log.kv_cache_gib) == (1, 57.87, 300.0, 30.0)


def test_several_ranks_of_one_host() -> None:
    lines = [
        f"(Worker_TP{rank} pid=9{rank}) INFO 11-20 09:35:58 [x.py:1] {text}"
        for rank, weights, cache, seconds in ((0, 14.25, 30.1, 20.5), (1, 14.24, 29.9, 22.5))
        for text in (
            f"Model loading took {weights} GiB memory and {seconds} seconds",
            "torch.compile took 4.00 s in total",
            "torch.compile took 6.00 s in total",
            f"Available KV cache memory: {cache} GiB",
        )
    ]
    log = parse_log(lines)
    assert (log.ranks, log.weights_gib, log.kv_cache_gib, log.load_seconds) == (2, 14.25, 29.9, 22.5)
    assert log.compile_seconds == 10.0


# From a real start of vLLM's CPU build.
LOG_CPU = """\
(APIServer pid=7082) INFO 11-20 09:24:42 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(EngineCore pid=7966) INFO 11-20 09:25:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/models/tiny-qwen3'
(Worker pid=8196) INFO 11-20 09:25:30 [cpu_model_runner.py:68] Starting to load model /models/tiny-qwen3...
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 572.21it/s]
(Worker pid=8196) INFO 11-20 09:25:30 [default_loader.py:501] Loading weights took 0.00 seconds
(Worker pid=8196) INFO 11-20 09:25:53 [cpu_worker.py:260] Explicitly set (1.0/17.09) GiB for KV cache on node 0.
(EngineCore pid=7966) INFO 11-20 09:25:53 [kv_cache_utils.py:2327] CPU KV cache size: 2,097,152 tokens, Maximum concurrency for 4,096 \
tokens per request: 512.00x
(EngineCore pid=7966) INFO 11-20 09:25:55 [core.py:402] init engine (profile, create kv cache, warmup model) took 23.77 s
"""


def test_a_cpu_engine_is_not_compared() -> None:
    log = parse_log(LOG_CPU.splitlines())
    assert (log.device, log.version, log.kv_cache_tokens, log.weights_gib) == ("cpu", "0.32.0", 2097152, None)
    terms, findings = compare("tiny", planned(), log, HostUse(taken_gib=1.2))
    assert findings == []
    assert {term.verdict for name, term in terms.items() if not name.endswith("seconds")} == {"not_comparable"}
    assert figures(terms, log, HostUse())["kv_cache_tokens"] == 2097152


def test_a_log_without_the_start_says_nothing() -> None:
    log = parse_log(['INFO:     127.0.0.1:58124 - "GET /health HTTP/1.1" 200 OK', "", "Model loading took long"])
    assert log == StartLog()
    terms, findings = compare("heavy", planned(), log, HostUse(reason="nothing noted"))
    assert findings == [] and {term.verdict for term in terms.values()} == {"unknown"}
    assert (
        terms["weights"].reason == "the start-up lines do not say it" and terms["residency"].reason == "nothing noted"
    )


# The comparison, against a plan of the engine itself.

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
    "dtype": "bfloat16",
}


def planned(utilization: float = 0.4, **service: Any) -> dict[str, Any]:
    args = {"gpu-memory-utilization": utilization, "max-model-len": 16384, "max-num-batched-tokens": 8192}
    entry = {"name": "s", "config": CONFIG, "vllm_version": "0.19.0", "weights_gib": 20.0, **service}
    entry["args"] = {**args, **service.get("args", {})}
    budget: dict[str, Any] = memory_budget({"services": [entry]})["services"]["s"]
    return budget


def as_planned(plan: dict[str, Any], **changes: Any) -> tuple[StartLog, HostUse]:
    """A start that goes by the plan, but for C(changes)."""
    log = StartLog(
        version="0.19.0",
        device="gpu",
        utilization=plan["gpu_memory_utilization"],
        weights_gib=plan["weights_bytes"] / GIB,
        kv_cache_gib=round(plan["available_kv_bytes"]["typical"] / GIB, 2),
        kv_cache_tokens=plan["gpu_kv_cache_size_tokens"],
        max_concurrency=plan["max_concurrency"],
        max_model_len=plan["max_model_len"],
        tokens_count="blocks",
        block_size=None,
    )
    use = HostUse(taken_gib=plan["residency_gib"]["typical"], system_gib=5.2, start_seconds=60.0)
    for key, value in changes.items():
        target = use if hasattr(use, key) else log
        setattr(target, key, value)
    return log, use


def scaled(plan: dict[str, Any], kv_gib: float) -> dict[str, Any]:
    """What vLLM prints when the cache has another size."""
    share = kv_gib * GIB / plan["available_kv_bytes"]["typical"]
    return {
        "kv_cache_gib": kv_gib,
        "kv_cache_tokens": int(plan["gpu_kv_cache_size_tokens"] * share),
        "max_concurrency": plan["max_concurrency"] * share,
    }


def test_as_planned_is_no_finding() -> None:
    plan = planned()
    terms, findings = compare("heavy", plan, *as_planned(plan))
    assert findings == [] and merged_override(terms) == {}
    compared = {name for name, term in terms.items() if term.verdict == "as_planned"}
    assert compared == {"weights", "inside", "kv_cache", "kv_cache_tokens", "max_concurrency", "outside", "residency"}
    assert terms["start_seconds"].verdict == "not_planned" and terms["start_seconds"].measured == 60.0
    assert terms["weights"].planned == {"low": 20.0, "typical": 20.0, "high": 20.0}


def test_more_inside_is_named_with_its_override_and_the_cache_follows() -> None:
    plan = planned()
    more = plan["overhead_gib"]["high"] + 2.0
    kv = plan["requested_bytes"] / GIB - 20.0 - more
    terms, findings = compare("heavy", plan, *as_planned(plan, **scaled(plan, kv)))
    (finding,) = findings
    assert (finding.rule, finding.severity, finding.service) == ("residency.inside", "warning", "heavy")
    assert terms["kv_cache"].verdict == "under" and terms["inside"].verdict == "over"
    overheads = merged_override(terms)["overheads"]
    assert overheads["inside_gib"] == pytest.approx(more, abs=0.01)
    assert (
        f"overheads: {{inside_gib: {overheads['inside_gib']:g}, outside_gib: " in finding.fix
        and "smaller" in finding.message
    )
    corrected, none = compare("heavy", replanned(plan, terms), *as_planned(plan, **scaled(plan, kv)))
    assert none == [] and corrected["kv_cache"].verdict == "as_planned"


def replanned(plan: dict[str, Any], terms: dict[str, Any]) -> dict[str, Any]:
    """The plan that the overrides make."""
    return planned(plan["gpu_memory_utilization"], **merged_override(terms))


def test_inside_the_range_is_information() -> None:
    plan = planned()
    inside = plan["overhead_gib"]["high"]
    kv = plan["requested_bytes"] / GIB - 20.0 - inside
    terms, (finding,) = compare("heavy", plan, *as_planned(plan, **scaled(plan, kv)))
    assert terms["inside"].verdict == "within_range"
    assert (finding.rule, finding.severity) == ("residency.inside", "info")


@pytest.mark.parametrize(("weights", "severity"), [(26.0, "warning"), (14.0, "info")])
def test_other_weights(weights: float, severity: str) -> None:
    plan = planned()
    kv = plan["requested_bytes"] / GIB - weights - plan["overhead_gib"]["typical"]
    changes = {"weights_gib": weights, **scaled(plan, kv)}
    terms, (finding,) = compare("heavy", plan, *as_planned(plan, **changes))
    assert (finding.rule, finding.severity) == ("residency.weights", severity)
    assert f"weights_gib: {weights:g}" in finding.fix and terms["weights"].override == {"weights_gib": weights}
    assert compare("heavy", replanned(plan, terms), *as_planned(plan, **changes))[1] == []


def test_the_weights_of_a_drafter_are_not_counted_twice() -> None:
    plan = {**planned(), "draft_bytes": GIB}
    log, use = as_planned(plan, weights_gib=25.0)
    terms, _findings = compare("heavy", plan, log, use)
    assert terms["weights"].planned == {"low": 21.0, "typical": 21.0, "high": 21.0}
    assert terms["weights"].override == {"weights_gib": 24.0}


def test_a_small_part_of_the_weights_that_takes_much_of_the_cache_is_named() -> None:
    plan = planned(weights_gib=40.0)
    kv = plan["available_kv_bytes"]["low"] / GIB - 0.6
    weights = plan["requested_bytes"] / GIB - kv - plan["overhead_gib"]["typical"]
    assert 42.0 < weights < 44.0
    terms, findings = compare("heavy", plan, *as_planned(plan, weights_gib=weights, **scaled(plan, kv)))
    assert [finding.rule for finding in findings] == ["residency.weights"] and terms["kv_cache"].verdict == "under"


@pytest.mark.parametrize(("more", "severity"), [(3.0, "warning"), (0.6, "info")])
def test_more_outside(more: float, severity: str) -> None:
    plan = planned()
    used_gib = plan["residency_gib"]["typical"] + more
    log, use = as_planned(plan, taken_gib=used_gib)
    terms, (finding,) = compare("heavy", plan, log, use)
    assert (finding.rule, finding.severity) == ("residency.outside", severity)
    assert terms["outside"].override["overheads"]["outside_gib"] == pytest.approx(1.7 + more, abs=0.02)
    corrected = replanned(plan, terms)
    assert corrected["residency_gib"]["typical"] == pytest.approx(used_gib, abs=0.03)
    assert compare("heavy", corrected, log, use)[1] == []


def test_what_requests_fill_is_not_expected_of_a_start() -> None:
    """Adapters on the host come with requests: a start without their memory is as planned."""
    lora = {"enable-lora": True, "max-loras": 1, "max-lora-rank": 64, "max-cpu-loras": 32}
    plan = planned(args=lora)
    (copies,) = [entry["gib"]["typical"] for entry in plan["host_memory"] if entry["name"] == "adapter copies"]
    assert copies > 5
    log, use = as_planned(plan, taken_gib=plan["residency_gib"]["typical"] - copies)
    terms, findings = compare("heavy", plan, log, use)
    assert findings == [] and terms["outside"].verdict == "as_planned"
    # With all of them it holds more than a start does.
    log, use = as_planned(plan)
    assert [entry.rule for entry in compare("heavy", plan, log, use)[1]] == ["residency.outside"]


def test_a_buffer_of_the_host_is_expected_and_is_no_overhead() -> None:
    plan = planned(args={"kv-offloading-size": 16})
    log, use = as_planned(plan)
    assert compare("heavy", plan, log, use)[1] == []
    used_gib = plan["residency_gib"]["typical"] + 6.0
    log, use = as_planned(plan, taken_gib=used_gib)
    terms, _findings = compare("heavy", plan, log, use)
    assert terms["outside"].override["overheads"]["outside_gib"] == pytest.approx(1.7 + 6.0, abs=0.02)
    log, use = as_planned(plan, taken_gib=used_gib - 16.0)
    (finding,) = compare("heavy", plan, log, use)[1]
    assert finding.rule == "residency.outside"


def test_inside_and_outside_together_correct_each_other() -> None:
    plan = planned()
    inside = plan["overhead_gib"]["high"] + 3.0
    kv = plan["requested_bytes"] / GIB - 20.0 - inside
    used_gib = plan["requested_bytes"] / GIB + 4.0
    log, use = as_planned(plan, **scaled(plan, kv), taken_gib=used_gib)
    terms, findings = compare("heavy", plan, log, use)
    assert [finding.rule for finding in findings] == ["residency.inside", "residency.outside"]
    assert set(merged_override(terms)["overheads"]) == {"inside_gib", "outside_gib"}
    assert replanned(plan, terms)["residency_gib"]["typical"] == pytest.approx(used_gib, abs=0.03)


STATED = {"weights_gib": 41.5, "kv_gib": 20, "other_gib": 3}


def stated(**service: Any) -> dict[str, Any]:
    """The plan of a model that nobody knows, by what a person states."""
    entry = {"name": "s", "config": {"model_type": "new"}, **service}
    budget: dict[str, Any] = memory_budget({"services": [entry]})["services"]["s"]
    return budget


def started(plan: dict[str, Any], weights: float | None = None, cache: float | None = None, held: float = 0.0) -> Any:
    """A start of it; C(held): GiB outside of its request."""
    log = StartLog(
        version="0.33.0",
        device="gpu",
        utilization=plan["gpu_memory_utilization"],
        weights_gib=weights,
        kv_cache_gib=cache,
    )
    return log, HostUse(taken_gib=round(plan["requested_bytes"] / GIB + held, 2))


def test_each_part_that_is_stated_is_held_against_the_start_and_the_fix_makes_it_true() -> None:
    plan = stated(memory=STATED)
    assert plan["gpu_memory_utilization"] == 0.54
    measured = started(plan, 50, 10.4, 0.2)
    terms, findings = compare("new", plan, *measured)
    assert {name: term.verdict for name, term in terms.items() if not name.endswith("seconds")} == {
        **{
            "weights": "over",
            "inside": "over",
            "kv_cache": "under",
            "outside": "as_planned",
            "residency": "as_planned",
        },
        **{"kv_cache_tokens": "unknown", "max_concurrency": "unknown"},
    }
    assert [finding.rule for finding in findings] == ["residency.weights", "residency.inside"]
    override = merged_override(terms)
    assert override["memory"] == {"weights_gib": 50, "kv_gib": 10.4, "other_gib": 4.22}
    assert set(override) == {"memory", "overheads"} and set(override["overheads"]) == {"outside_gib"}
    assert "memory: {weights_gib: 50, kv_gib: 10.4, other_gib: 4.22}; kv_gib has the present size" in findings[0].fix
    corrected = stated(**override)
    assert corrected["gpu_memory_utilization"] == 0.54
    assert compare("new", corrected, *measured)[1] == []
    # With a share that is set, too.
    corrected = stated(**override, args={"gpu-memory-utilization": 0.54})
    assert corrected["verdict"] == "fits" and compare("new", corrected, *measured)[1] == []


def test_a_statement_that_holds_is_no_finding_nor_is_an_estimated_rest() -> None:
    for memory in (STATED, {"weights_gib": 41.5, "kv_gib": 20}):
        plan = stated(memory=memory)
        cache = plan["available_kv_bytes"]["typical"] / GIB
        held = plan["residency_gib"]["typical"] - plan["requested_bytes"] / GIB
        terms, findings = compare("new", plan, *started(plan, 41.5, round(cache, 2), held))
        assert findings == [] and terms["kv_cache"].verdict == terms["inside"].verdict == "as_planned"


def test_what_cannot_be_compared_is_left_as_it_is_stated() -> None:
    plan = stated(memory=STATED)
    log, use = started(plan, 50, 30)
    log.utilization = 0.7
    assert merged_override(compare("new", plan, log, use)[0])["memory"] == {
        **STATED,
        "weights_gib": 50,
        "kv_gib": 20.12,
    }


def test_a_stated_sum_is_held_against_what_the_host_lost() -> None:
    plan = stated(memory_gib=64.5)
    assert compare("new", plan, *started(plan, 50, 10.4, 1.5))[1] == []
    (finding,) = compare("new", plan, *started(plan, 50, 10.4, 4.0))[1]
    assert (finding.rule, finding.severity) == ("residency.outside", "warning") and "GiB more than" in finding.message
    measured = started(plan, held=-20.0)
    terms, (finding,) = compare("new", plan, *measured)
    assert "20.00 GiB less than its share" in finding.message
    assert terms["outside"].override == {"memory_gib": pytest.approx(64.62 - 20 - 1.7, abs=0.02)}
    corrected = stated(**terms["outside"].override)
    assert corrected["residency_gib"]["typical"] == pytest.approx(measured[1].taken_gib, abs=1.2)  # a step of the share


def test_a_cache_that_holds_fewer_tokens_than_its_size_is_another_layout() -> None:
    plan = planned()
    log, use = as_planned(plan, kv_cache_tokens=plan["gpu_kv_cache_size_tokens"] // 2, block_size=32)
    _terms, (finding,) = compare("heavy", plan, log, use)
    assert (finding.rule, finding.severity) == ("residency.kv_cache_tokens", "warning")
    assert "(-50 %)" in finding.message and "its blocks have 32 tokens, the plan's 16" in finding.fix


def test_another_version_counts_other_tokens() -> None:
    plan = planned()
    log, use = as_planned(plan, version="0.23.0", kv_cache_tokens=7)
    terms, findings = compare("heavy", plan, log, use)
    assert terms["kv_cache_tokens"].verdict == "not_comparable" and "0.23.0" in terms["kv_cache_tokens"].reason
    assert terms["max_concurrency"].verdict == "as_planned" and findings == []
    log.max_concurrency = plan["max_concurrency"] / 2
    (finding,) = compare("heavy", plan, log, use)[1]
    assert finding.rule == "residency.max_concurrency" and "it is vLLM 0.23.0, planned as 0.19.0" in finding.fix


def test_other_arguments_are_not_compared() -> None:
    plan = planned()
    terms, findings = compare("heavy", plan, *as_planned(plan, utilization=0.5, max_model_len=8192))
    assert findings == []
    assert "0.5" in terms["inside"].reason and "8192" in terms["max_concurrency"].reason
    assert terms["weights"].verdict == "as_planned"


def test_a_fixed_cache_says_nothing_of_the_overhead_inside() -> None:
    plan = planned(args={"kv-cache-memory-bytes": 8 * GIB})
    log = parse_log(
        [
            "(EngineCore pid=7) INFO 11-20 09:25:20 [gpu_worker.py:480] Initial free memory 112.1 GiB, reserved 8.0 GiB memory for "
            "KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. ...",
            "(EngineCore pid=7) INFO 11-20 09:25:20 [gpu_model_runner.py:1] Model loading took 20.0 GiB memory and 5.0 seconds",
        ]
    )
    terms, findings = compare("heavy", plan, log, HostUse(taken_gib=plan["residency_gib"]["typical"]))
    assert terms["kv_cache"].verdict == "as_planned" and terms["kv_cache"].measured == 8.0
    assert terms["inside"].verdict == "unknown" and "kv-cache-memory-bytes" in terms["inside"].reason
    assert findings == []
    used_gib = plan["residency_gib"]["typical"] + 2.0
    terms, (finding,) = compare("heavy", plan, log, HostUse(taken_gib=used_gib))
    assert finding.rule == "residency.outside"
    corrected = planned(args={"kv-cache-memory-bytes": 8 * GIB}, **merged_override(terms))
    assert corrected["residency_gib"]["typical"] == pytest.approx(used_gib, abs=0.03)


def test_without_a_record_of_the_start_gpu_memory_alone_can_be_too_much() -> None:
    plan = planned()
    most = plan["residency_gib"]["high"]
    log, _use = as_planned(plan)
    assert compare("heavy", plan, log, read_start(None, most - 1))[1] == []
    (finding,) = compare("heavy", plan, log, read_start(None, most + 1))[1]
    assert (finding.rule, finding.severity) == ("residency.residency", "warning")
    assert "there is no record of its start" in finding.message


def test_a_service_without_a_plan() -> None:
    terms, findings = compare("heavy", {}, parse_log(LOG_019.splitlines()), HostUse(taken_gib=95.0, gpu_gib=93.0))
    assert findings == [] and terms["weights"].verdict == "not_planned" and terms["weights"].measured == 74.85


RECORD = {
    "gate": {"total_gib": 119.67, "available_gib": 98.5, "clock": 10.0},
    "beside": {"spark-heavy.service": 16.0},
    "ready": {"available_gib": 84.25, "clock": 75.0},
    "start_seconds": 65.0,
}


def test_the_record_of_a_start() -> None:
    use = read_start(RECORD, 12.0)
    assert (use.taken_gib, use.system_gib, use.beside, use.start_seconds, use.gpu_gib) == (14.25, 5.17, 1, 65.0, 12.0)
    not_yet = read_start({**RECORD, "ready": None}, None)
    assert not_yet.taken_gib is None and not_yet.reason == "it is not ready yet" and not_yet.system_gib == 5.17
    assert read_start([], None, "damaged").reason == "damaged"


def test_the_system_is_judged_where_the_fewest_engines_were_beside() -> None:
    alone, second = HostUse(system_gib=5.3), HostUse(system_gib=9.0, beside=1)
    term, findings = compare_system(5.2, [second, HostUse(), alone])
    assert (term.verdict, term.measured, findings) == ("as_planned", 5.3, [])
    term, (finding,) = compare_system(5.2, [second])
    assert (finding.rule, finding.severity, finding.service) == ("residency.system", "warning", "")
    assert "spark_os_reserve_gib: 9" in finding.fix and term.override == {"spark_os_reserve_gib": 9.0}
    term, (finding,) = compare_system(5.2, [HostUse(system_gib=3.0)])
    assert finding.severity == "info"
    assert compare_system(5.2, [HostUse()])[0].verdict == "unknown"
    assert compare_system(None, [alone])[0].verdict == "not_planned"


REPO = Path(__file__).resolve().parents[5]


@pytest.mark.parametrize(
    ("recipe", "version", "args"),
    [
        ("qwen3-next-80b-a3b-instruct-fp8", "0.19.0", {}),
        ("qwen3-next-80b-a3b-instruct-fp8", "0.24.0", {"enable-prefix-caching": True, "max-num-batched-tokens": 8192}),
        ("qwen3-4b-instruct-2507", "0.19.0", {}),
        ("gemma-4-26b-a4b", "0.20.2rc1.dev49+g9b4e83934", {}),
        ("gemma-4-26b-a4b", "0.24.0", {}),
        ("qwen3.6-35b-a3b-nvfp4", "0.19.0", {}),
    ],
)
def test_the_stand_in_engine_cuts_its_cache_as_the_plan_does(recipe: str, version: str, args: dict[str, Any]) -> None:
    """Two versions of vLLM's arithmetic: if they agree, findings on a simulated Spark are right."""
    spec = importlib.util.spec_from_file_location("stand_in_kv", REPO / "tests/sim/engine/vllm_sim/kv.py")
    assert spec is not None and spec.loader is not None
    kv = sys.modules["stand_in_kv"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kv)
    document = yaml.safe_load((REPO / f"playbooks/recipes/{recipe}.yml").read_text())
    service = {key: document[key] for key in ("config", "weights_gib", "draft_weights_gib") if key in document}
    service["args"] = {**document["args"], **args, "gpu-memory-utilization": 0.8}
    plan = memory_budget({"services": [{"name": "s", "vllm_version": version, **service}]})["services"]["s"]
    speculation = document["args"].get("speculative-config") or {}
    own_draft = speculation.get("method") == "mtp" and "model" not in speculation
    cache = kv.plan(
        document["config"].get("text_config") or document["config"],
        {key.replace("-", "_"): value for key, value in service["args"].items()},
        speculation.get("num_speculative_tokens", 0),
        int(own_draft),
        tuple(int(part) for part in version.split(".")[:2]),
    )
    length = plan["max_model_len"]
    blocks = plan["available_kv_bytes"]["typical"] // cache.page // cache.layers
    assert cache.block_bytes == plan["bytes_per_block"] and blocks == plan["num_blocks"]
    assert cache.printed_tokens(blocks, length, version) == plan["gpu_kv_cache_size_tokens"]
    assert cache.concurrency(blocks, length) == pytest.approx(plan["max_concurrency"])


@pytest.mark.parametrize(
    "version", ["0.14.1", "0.15.0", "0.20.0", "0.20.1rc1", "0.20.1", "0.20.2.dev5", "0.33.0", "0.99.0", "1.0.0"]
)
def test_the_count_of_a_release_is_the_one_of_the_plan(version: str) -> None:
    try:
        expected = "requests" if releases.parse_release(version).since(20, 1) else "blocks"
    except layers.Refusal:
        expected = None
    lines = [
        f"INFO [core.py:105] Initializing a V1 LLM engine (v{version}) with config: x",
        "INFO GPU KV cache size: 43,680 tokens",
    ]
    assert parse_log(lines).tokens_count == expected
