# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The budget of a node: the published co-residency report, vLLM's errors, solving, and bad input."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from memory_fixture import GIB, config, fast, heavy, load, service

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.engine import STAGES, start_seconds
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.vllm_errors import error_free_memory
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import LEVELS, OVERHEADS

TOTAL = 119.67
RESIDENT_4B = {"mem_available_gib": 98.51, "resident": [{"name": "fast", "gib": 16.0}]}


def budget(*services: dict[str, Any], **params: Any) -> dict[str, Any]:
    return memory_budget({"services": list(services), **params})


def errors(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in result["findings"] if finding["severity"] == "error"]


def rules(result: dict[str, Any], severity: str = "error") -> list[tuple[str, str]]:
    return [
        (item["service"], item["rule"].split(".")[1]) for item in result["findings"] if item["severity"] == severity
    ]


def apply_fix(services: list[dict[str, Any]], finding: dict[str, Any]) -> list[dict[str, Any]]:
    """Apply the fix of a finding."""
    changed = copy.deepcopy(services)
    assert finding["changes"], finding
    for change in finding["changes"]:
        item = next(entry for entry in changed if entry["name"] == change["service"])
        item["args"] = {k: v for k, v in {**item["args"], **change["args"]}.items() if v is not None}
    return changed


# The pair of the published report -------------------------------------------------------------------------------------


def test_the_80b_at_085_beside_the_4b_is_refused_with_vllms_own_sentence() -> None:
    services = [heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.12)]
    result = budget(*services, measured=RESIDENT_4B)
    assert result["verdict"] == "fails"
    finding = next(item for item in errors(result) if item["service"] == "heavy")
    assert finding["vllm_error"] == (
        "ValueError: Free memory on device cuda:0 (98.51/119.67 GiB) on startup is less than desired GPU memory utilization "
        "(0.85, 101.72 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert finding["basis"] == "measured"
    # With 0.80 vLLM starts, but less than the safety margin stays free.
    assert finding["fix"] == "Set gpu-memory-utilization of heavy to 0.79."
    repeated = budget(*apply_fix(services, finding), measured=RESIDENT_4B)
    assert errors(repeated) == []


def test_the_same_pair_is_refused_from_the_inventory_alone() -> None:
    services = [heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.12)]
    result = budget(*services)
    assert rules(result) == [("heavy", "free_at_restart"), ("", "utilization_sum")]
    finding = errors(result)[0]
    assert "101.36 GiB are free when it restarts" in finding["message"]
    assert "(101.36/119.67 GiB)" in finding["vllm_error"]
    assert finding["basis"] == "inventory"
    for item in errors(result):
        assert errors(budget(*apply_fix(services, item))) == []


def test_the_pair_that_really_ran_is_not_called_failing() -> None:
    result = budget(heavy(gpu_memory_utilization=0.80), fast(gpu_memory_utilization=0.10))
    assert result["verdict"] == "tight"
    assert errors(result) == []
    assert result["start_order"] == ["heavy", "fast"]
    assert result["utilization_sum"] == 0.9
    assert result["utilization_bound"] == pytest.approx(0.926, abs=0.0005)


def test_an_unchanged_live_pair_replans_green() -> None:
    resident = [{"name": "heavy", "gib": 93.5}, {"name": "fast", "gib": 13.8}]
    for available in (TOTAL - 5.2 - 93.5 - 13.8, TOTAL - 4.0 - 93.5 - 13.8):
        result = budget(
            heavy(gpu_memory_utilization=0.80),
            fast(gpu_memory_utilization=0.10),
            measured={"mem_available_gib": available, "resident": resident},
        )
        assert errors(result) == []
        assert not any(rule.startswith(("free", "node")) for _name, rule in rules(result, "warning"))


def test_a_resident_service_that_grows_is_counted() -> None:
    resident = [{"name": "heavy", "gib": 60.0}, {"name": "fast", "gib": 13.8}]
    measured = {"mem_available_gib": TOTAL - 5.2 - 60.0 - 13.8, "resident": resident}
    result = budget(heavy(gpu_memory_utilization=0.88), fast(gpu_memory_utilization=0.10), measured=measured)
    assert ("heavy", "free_at_start") in rules(result)


@pytest.mark.parametrize(("held", "advised"), [(28.0, True), (16.0, False)])
def test_what_runs_with_more_than_it_is_to_have_is_to_be_stopped_first(held: float, advised: bool) -> None:
    """Only a restart frees the difference, and it comes after the start of the new service."""
    measured = {"mem_available_gib": TOTAL - 5.2 - held, "resident": [{"name": "fast", "gib": held}]}
    result = budget(heavy(gpu_memory_utilization=0.80), fast(gpu_memory_utilization=0.10), measured=measured)
    starts = [item for item in errors(result) if item["rule"] == "memory.free_at_start"]
    assert bool(starts) is advised
    for entry in starts:
        assert entry["fix"].startswith("Stop fast first (stop.yml -e services=fast), which uses "), entry


@pytest.mark.parametrize(
    ("who", "utilization", "published"),
    [(heavy, 0.80, 93.5), (heavy, 0.85, 101.5), (fast, 0.10, 13.8), (fast, 0.12, 16.0)],
)
def test_published_residencies(who: Any, utilization: float, published: float) -> None:
    result = budget(who(gpu_memory_utilization=utilization))
    held = next(iter(result["services"].values()))["residency_gib"]
    assert held["low"] <= published <= held["high"]
    assert held["typical"] == pytest.approx(published, rel=0.05)


def test_nineteen_restarts_of_the_4b() -> None:
    """With the 80B at 0.85 running, the 4B at 0.12 finds less memory than it requests, and dies at every start."""
    result = budget(heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.12))
    finding = next(
        item for item in result["findings"] if (item["service"], item["rule"]) == ("fast", "memory.free_at_start")
    )
    assert "14.36 GiB)" in finding["vllm_error"]


def test_the_4b_at_010_holds_16k_but_not_32k() -> None:
    fields = {**fast(gpu_memory_utilization=0.10, max_model_len=32768), "available_kv_bytes": int(3.5 * GIB)}
    result = budget(fields)
    assert errors(result)[0]["vllm_error"] == (
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.5 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (3.5 GiB). Based on the available memory, the estimated maximum model length "
        "is 25472. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    )
    shorter = {**fast(gpu_memory_utilization=0.10), "available_kv_bytes": int(3.5 * GIB)}
    assert errors(budget(shorter)) == []
    assert budget(shorter)["services"]["fast"]["max_concurrency"] == pytest.approx(1.55, abs=0.005)


def test_the_cache_that_remains_at_080() -> None:
    """About 20.8 GiB by the report: requested less weights, before overheads."""
    result = budget(heavy(gpu_memory_utilization=0.80))["services"]["heavy"]
    assert (result["requested_bytes"] - result["weights_bytes"]) / GIB == pytest.approx(20.88, abs=0.01)
    assert (
        result["available_kv_bytes"]["low"]
        < result["available_kv_bytes"]["typical"]
        < result["available_kv_bytes"]["high"]
    )


def test_a_single_80b_at_075_has_room_for_64k() -> None:
    """The report blamed pages for "No available memory"; alone on the node the same settings fit."""
    result = budget(heavy(gpu_memory_utilization=0.75))
    assert result["verdict"] == "fits"
    assert result["services"]["heavy"]["max_concurrency"] > 8


def test_a_pool_as_a_log_reports_it() -> None:
    fields = service(
        "guide",
        "Qwen3.6-35B-A3B",
        "NVFP4",
        "0.23.0",
        gpu_memory_utilization=0.85,
        max_model_len=65536,
        max_num_seqs=4,
        max_num_batched_tokens=8192,
        kv_cache_dtype="fp8",
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )
    result = budget({**fields, "available_kv_bytes": 82130512117})["services"]["guide"]
    assert (result["block_size"], result["bytes_per_block"], result["num_blocks"]) == (2144, 24150016, 3400)
    assert result["gpu_kv_cache_size_tokens"] == 4843965
    estimated = budget(fields)["services"]["guide"]["available_kv_bytes"]
    assert estimated["low"] < 82130512117 < estimated["high"]
    assert estimated["typical"] == pytest.approx(82130512117, rel=0.02)


# vLLM's errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", load()["request_memory"], ids=lambda row: f"{row['version']} {row['util']}")
def test_every_row_of_vllms_request_memory(row: dict[str, Any]) -> None:
    fields = service("one", "Qwen3-8B", None, row["version"], gpu_memory_utilization=row["util"], max_model_len=4096)
    result = budget(fields, measured={"mem_available_gib": row["free"]})
    if row["error"]:
        assert row["error"] in [item.get("vllm_error") for item in errors(result)]
    else:
        assert result["services"]["one"]["requested_bytes"] == row["requested_bytes"]
        assert ("one", "free_at_start") not in rules(result)


def test_free_memory_text_prints_the_utilisation_as_given() -> None:
    assert "(0.8, 95.74 GiB)" in error_free_memory(90 * GIB, int(TOTAL * GIB), 0.8, 102795747263)


@pytest.mark.parametrize(("version", "wording"), [("0.19.0", "the engine. See"), ("0.22.0", "despite its name). See")])
def test_nothing_left_for_the_cache(version: str, wording: str) -> None:
    result = budget(
        service("big", "Qwen3-Next-80B-A3B", "FP8", version, gpu_memory_utilization=0.55, max_model_len=65536)
    )
    assert rules(result) == [("big", "no_cache_memory")]
    finding = errors(result)[0]
    assert finding["vllm_error"].startswith("ValueError: No available memory for the cache blocks.")
    assert wording in finding["vllm_error"]
    repeated = apply_fix(
        [service("big", "Qwen3-Next-80B-A3B", "FP8", version, gpu_memory_utilization=0.55, max_model_len=65536)],
        finding,
    )
    assert errors(budget(*repeated)) == []


def test_the_block_of_2128_is_found_before_fifteen_minutes_of_loading() -> None:
    args: dict[str, Any] = {
        "gpu_memory_utilization": 0.55,
        "max_model_len": 131072,
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": True,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        "max_num_seqs": 4,
    }
    result = budget(service("qwen", "Qwen3.6-35B-A3B", "NVFP4", "0.23.0", **args))
    assert errors(result)[0]["vllm_error"] == (
        "AssertionError: In Mamba cache align mode, block_size (2128) must be <= max_num_batched_tokens (2048)."
    )
    assert "a block of qwen has 2128 tokens" in errors(result)[0]["message"]
    assert errors(result)[0]["fix"] == (
        "Set max-num-batched-tokens of qwen to 8192, or set enable-prefix-caching of qwen to false."
    )
    assert (
        errors(budget(service("qwen", "Qwen3.6-35B-A3B", "NVFP4", "0.23.0", max_num_batched_tokens=8192, **args))) == []
    )
    assert errors(budget(service("qwen", "Qwen3.6-35B-A3B", "NVFP4", "0.33.0", **args))) == []


def test_state_blocks_for_every_sequence_from_0_20() -> None:
    args: dict[str, Any] = {"gpu_memory_utilization": 0.69, "max_model_len": 4096}
    result = budget(service("h", "Qwen3-Next-80B-A3B", "FP8", "0.23.0", max_num_seqs=800, **args))
    assert rules(result) == [("h", "state_blocks")]
    assert errors(result)[0]["vllm_error"].startswith(
        "ValueError: max_num_seqs (800) exceeds available Mamba cache blocks ("
    )
    assert (
        errors(
            budget(
                *apply_fix(
                    [service("h", "Qwen3-Next-80B-A3B", "FP8", "0.23.0", max_num_seqs=800, **args)],
                    errors(result)[0],
                )
            )
        )
        == []
    )
    assert errors(budget(service("h", "Qwen3-Next-80B-A3B", "FP8", "0.19.0", max_num_seqs=800, **args))) == []
    assert (
        errors(
            budget(service("h", "Qwen3-Next-80B-A3B", "FP8", "0.23.0", max_num_seqs=800, enforce_eager=True, **args))
        )
        == []
    )


QWEN = {"kv_cache_dtype": "fp8", "enable_prefix_caching": True, "max_model_len": 65536, "max_num_seqs": 4}
NEXT = {"max_model_len": 4096, "gpu_memory_utilization": 0.69}
CHECKS: list[tuple[str, str, dict[str, Any], str, str, str]] = [
    (
        "Qwen3.6-35B-A3B NVFP4",
        "0.17.1",
        {**QWEN, "gpu_memory_utilization": 0.7},  # its experts are loaded in 16 bits
        "align_block",
        "arguments",
        "AssertionError",
    ),
    (
        "Qwen3.6-35B-A3B NVFP4",
        "0.26.0",
        {**QWEN, "gpu_memory_utilization": 0.5},
        "align_block",
        "kv_cache",
        "AssertionError",
    ),
    ("Qwen3-8B", "0.23.0", {"gpu_memory_utilization": 0.97}, "free_at_start", "device", "ValueError: Free memory on"),
    ("Qwen3-235B-A22B GPTQ", "0.23.0", {"gpu_memory_utilization": 0.9}, "load", "load", "torch.OutOfMemoryError"),
    (
        "Gemma-4-31B NVFP4",
        "0.23.0",
        {"kv_cache_dtype": "fp8_per_token_head"},
        "plan",
        "kv_cache",
        "NotImplementedError",
    ),
    (
        "Qwen3-8B",
        "0.23.0",
        {"gpu_memory_utilization": 0.1, "max_model_len": "auto"},
        "no_cache_memory",
        "kv_cache",
        "ValueError: Cannot auto-fit max_model_len",
    ),
    (
        "Qwen3-8B",
        "0.23.0",
        {"gpu_memory_utilization": 0.1},
        "no_cache_memory",
        "kv_cache",
        "ValueError: No available memory for the cache blocks.",
    ),
    (
        "Qwen3-8B",
        "0.23.0",
        {"gpu_memory_utilization": 0.16, "max_model_len": 40960},
        "one_request",
        "kv_cache",
        "ValueError: To serve at least one request with the model's max seq len (40960)",
    ),
    (
        "Qwen3-Next-80B-A3B FP8",
        "0.23.0",
        {**NEXT, "max_num_seqs": 800},
        "state_blocks",
        "graphs",
        "ValueError: max_num_seqs (800) exceeds available Mamba cache blocks",
    ),
    (
        "Qwen3-8B",
        "0.23.0",
        {"gpu_memory_utilization": 0.95, "max_model_len": 4096, "max_num_seqs": 9},
        "node",
        "graphs",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 9 dummy requests.",
    ),
]


@pytest.mark.parametrize(("model", "version", "args", "rule", "stage", "phrase"), CHECKS)
def test_every_check_is_said_in_its_stage_and_its_fix_plans(
    model: str, version: str, args: dict[str, Any], rule: str, stage: str, phrase: str
) -> None:
    services = [service("x", *[*model.split(" "), None][:2], version, **args)]  # type: ignore[arg-type]
    result = budget(*services)
    finding = next(
        item for item in result["findings"] if item["rule"] == f"memory.{rule}" and item.get("stage") == stage
    )
    assert finding["vllm_error"].startswith(phrase)
    assert finding["seconds"]["low"] <= finding["seconds"]["typical"] <= finding["seconds"]["high"]
    if rule == "load":
        assert "more ranks" in finding["fix"], "no setting of the service makes its weights smaller"
        return
    repeated = budget(*apply_fix(services, finding))
    assert f"memory.{rule}" not in [item["rule"] for item in repeated["findings"] if item["severity"] != "info"]
    assert errors(repeated) == []


def test_stages_come_one_after_the_other_and_weights_take_their_time() -> None:
    terms = {**OVERHEADS, "load_gib_per_second": (0.05, 0.1, 0.2)}
    typical = [start_seconds(terms, 60 * GIB, stage)["typical"] for stage in STAGES]
    assert typical == sorted(typical)
    assert typical[2] - typical[1] == 600
    loads = [start_seconds(terms, 60 * GIB, "load")[level] - start_seconds(terms, 0, "load")[level] for level in LEVELS]
    assert loads == [300, 600, 1200]


def test_the_pace_of_a_start_can_be_overridden() -> None:
    fields = {**fast(gpu_memory_utilization=0.08), "overheads": {"load_gib_per_second": 1, "profile_seconds": 0}}
    finding = errors(budget(fields, overheads={"arguments_seconds": 1, "device_seconds": 1}))[0]
    assert finding["seconds"] == {"low": 9, "typical": 9, "high": 9}
    with pytest.raises(InputError, match="load_gib_per_second: must be above 0"):
        budget(fields, overheads={"load_gib_per_second": 0})


def test_auto_length_that_cannot_be() -> None:
    result = budget(fast(gpu_memory_utilization=0.06, max_model_len="auto"))
    assert errors(result)[0]["vllm_error"].startswith(
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory"
    )


def test_auto_length() -> None:
    fields = {
        **fast(gpu_memory_utilization=0.10, max_model_len="auto", max_num_seqs=1),
        "available_kv_bytes": int(3.5 * GIB),
    }
    result = budget(fields)["services"]["fast"]
    assert (result["max_model_len"], result["max_concurrency"], result["solved"]) == (25472, 1.0, ["max-model-len"])


def test_quantisation_at_run_time_needs_its_peak_free() -> None:
    fields = service(
        "gemma", "Gemma-4-26B-A4B", None, "0.23.0", max_model_len=8192, max_num_seqs=2, gpu_memory_utilization=0.5
    )
    fields["args"]["quantization"] = "fp8"
    fields["args"]["gpu-memory-utilization"] = 0.3
    assert rules(budget(fields)) == []
    asr = {"name": "asr", "memory_gib": 70}
    # Each layer is quantised as it comes, but that this holds for every part of the model is not promised.
    result = budget(fields, asr)
    assert (result["verdict"], rules(result, "warning")) == ("tight", [("gemma", "load")])
    assert "48.09 GiB while they load" in result["findings"][0]["message"]
    assert "while it loads (" in result["findings"][0]["message"]
    assert result["services"]["gemma"]["load_peak_bytes"] / GIB == pytest.approx(48.1, abs=0.05)
    before = budget({**fields, "vllm_version": "0.15.1"}, asr)
    assert (before["verdict"], rules(before)) == ("fails", [("gemma", "load")])


@pytest.mark.parametrize("stated", [48.09, 24.77])
def test_a_stated_size_is_that_of_the_files_or_of_what_was_loaded(stated: float) -> None:
    fields = service("gemma", "Gemma-4-26B-A4B", None, "0.23.0", max_model_len=8192, max_num_seqs=2)
    fields["args"]["quantization"] = "fp8"
    computed = budget(fields)["services"]["gemma"]
    result = budget({**fields, "weights_gib": stated})["services"]["gemma"]
    for key in ("weights_bytes", "load_peak_bytes"):
        assert result[key] == pytest.approx(computed[key], rel=0.001)
    del fields["args"]["quantization"]
    plain = budget({**fields, "weights_gib": stated})["services"]["gemma"]
    assert plain["weights_bytes"] == plain["load_peak_bytes"] == int(stated * GIB)


def test_page_cache_is_pointed_out() -> None:
    result = budget(fast(gpu_memory_utilization=0.3), measured={"mem_available_gib": 110, "mem_free_gib": 5})
    assert ("fast", "page_cache") in rules(result, "info")


def test_weights_that_no_node_holds() -> None:
    result = budget(service("big", "Qwen3-235B-A22B", "GPTQ", max_model_len=4096))
    assert result["verdict"] == "fails"
    fits = budget(service("big", "Qwen3-235B-A22B", "GPTQ", max_model_len=4096, tensor_parallel_size=2))
    assert fits["verdict"] == "fits"


def test_refused_by_name_and_the_others_are_planned() -> None:
    odd = service("odd", "Qwen3-8B")
    odd["config"]["model_type"] = "rwkv7"
    result = budget(odd, fast(gpu_memory_utilization=0.3))
    assert rules(result) == [("odd", "refused")]
    assert "config.model_type: the model family 'rwkv7' is not known" in errors(result)[0]["message"]
    assert result["services"]["odd"] == {"verdict": "fails"}
    assert result["services"]["fast"]["verdict"] == "fits"


@pytest.mark.parametrize(("version", "phrase"), [("0.14.0", "0.15 or later"), ("v2-fast", "vllm --version")])
def test_versions_that_are_not_planned(version: str, phrase: str) -> None:
    result = budget(service("old", "Qwen3-8B", None, version))
    assert rules(result) == [("old", "refused")]
    assert phrase in errors(result)[0]["fix"]


def test_an_unknown_version_is_planned_for_the_worst() -> None:
    fields = service("gemma", "Gemma-4-31B", "NVFP4", max_model_len=65536, gpu_memory_utilization=0.6)
    unknown = budget({**fields, "vllm_version": None})
    assert budget({**fields, "vllm_version": "nightly"}) == unknown
    newest = budget({**fields, "vllm_version": "0.33.0"})
    assert rules(unknown, "warning")[0] == ("gemma", "version")
    needed = "needed_bytes_one_request"
    assert unknown["services"]["gemma"][needed] == newest["services"]["gemma"][needed]


@pytest.mark.parametrize(
    ("version", "exact"), [("0.19.0", True), ("0.21.0rc1", False), ("0.23.1", True), ("0.25.0.dev2", False)]
)
def test_the_answer_says_whether_it_is_exact(version: str, exact: bool) -> None:
    result = budget(service("one", "Qwen3-8B", None, version, max_model_len=4096))
    assert result["services"]["one"]["exact"] is exact
    assert (("one", "version") in rules(result, "info")) is not exact


def test_a_version_from_the_future_is_planned_as_the_newest_with_a_warning() -> None:
    result = budget(service("one", "Qwen3-8B", None, "0.40.0", max_model_len=4096))
    assert (result["services"]["one"]["exact"], rules(result, "warning")) == (False, [("one", "version")])
    assert "planned as vLLM 0.33" in result["findings"][0]["message"]


# Speculative decoding -------------------------------------------------------------------------------------------------


def test_an_assistant_that_reads_the_cache_of_its_model_needs_only_its_weights() -> None:
    args: dict[str, Any] = {"max_model_len": 8192, "gpu_memory_utilization": 0.6, "max_num_batched_tokens": 8192}
    spec = {"method": "mtp", "model": "google/gemma-4-26B-A4B-it-assistant", "num_speculative_tokens": 4}
    plain = budget(service("g", "Gemma-4-26B-A4B", None, "0.23.0", **args))["services"]["g"]
    fields = service("g", "Gemma-4-26B-A4B", None, "0.23.0", speculative_config=spec, **args)
    assert rules(budget(fields)) == [("g", "refused")]
    drafted = budget({**fields, "draft_weights_gib": 0.81})["services"]["g"]
    assert drafted["bytes_per_block"] == plain["bytes_per_block"]
    assert drafted["draft_bytes"] == int(0.81 * GIB)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "mtp", "num_speculative_tokens": 2}, "names no MTP layers"),
        ({"method": "eagle3", "num_speculative_tokens": 2}, "needs the config of the draft model"),
        ({"method": "psychic", "num_speculative_tokens": 2}, "'psychic' is not known"),
        ({"metod": "mtp", "num_speculative_tokens": 2}, "method: the field is missing"),
        ({"method": "ngram"}, "number of draft tokens is missing"),
    ],
)
def test_speculation_that_cannot_be_planned(spec: dict[str, Any], message: str) -> None:
    result = budget(service("one", "Qwen3-8B", max_model_len=4096, speculative_config=spec))
    assert message in errors(result)[0]["message"]


def test_a_draft_model_brings_its_own_cache() -> None:
    fields = service(
        "big",
        "Qwen3-30B-A3B",
        max_model_len=4096,
        max_num_seqs=1,
        speculative_config={"method": "draft_model", "num_speculative_tokens": 3},
    )
    result = budget({**fields, "draft_config": config("Qwen3-4B-Instruct-2507")})["services"]["big"]
    assert result["bytes_per_block"] == 1572864 + 2359296
    assert result["draft_bytes"] == 8044936192


# Solving --------------------------------------------------------------------------------------------------------------


def test_the_first_example_solves() -> None:
    result = budget(heavy(), fast())
    assert result["verdict"] == "fits"
    assert errors(result) == []
    assert {name: item["gpu_memory_utilization"] for name, item in result["services"].items()} == {
        "heavy": 0.69,
        "fast": 0.19,
    }
    assert result["services"]["heavy"]["max_concurrency"] >= 4
    assert rules(result, "warning") == [("fast", "concurrency")]
    assert [part["label"] for part in result["memory_map"]] == [
        "system",
        *[f"{name} {part}" for name in ("heavy", "fast") for part in ("weights", "KV cache", "overhead")],
        "free",
    ]


def test_the_memory_map_is_the_whole_node_in_order() -> None:
    result = budget(heavy(), fast(), {"name": "asr", "memory_gib": 3})
    parts = [(part["kind"], part["service"]) for part in result["memory_map"]]
    of_engine = ("weights", "kv_cache", "overhead")
    assert parts == [
        ("system", None),
        *[(kind, "heavy") for kind in of_engine],
        *[(kind, "fast") for kind in of_engine],
        ("plain", "asr"),
        ("free", None),
    ]
    assert sum(part["gib"] for part in result["memory_map"]) == pytest.approx(TOTAL, abs=0.001)
    for name in ("heavy", "fast"):
        held = sum(part["gib"] for part in result["memory_map"] if part["service"] == name)
        assert held == pytest.approx(result["services"][name]["residency_gib"]["typical"], abs=0.02)


def test_a_node_that_is_too_full_has_nothing_free() -> None:
    result = budget(heavy(gpu_memory_utilization=0.85), fast(gpu_memory_utilization=0.5))
    sizes = [part["gib"] for part in result["memory_map"]]
    assert (min(sizes), sizes[-1]) == (0, 0)
    assert sum(sizes) > TOTAL


def test_what_was_solved_holds_when_it_is_given() -> None:
    result = budget(heavy(), fast())
    pinned = [heavy(gpu_memory_utilization=0.69), fast(gpu_memory_utilization=0.19)]
    repeated = budget(*pinned)
    for name, item in result["services"].items():
        assert {**item, "solved": []} == repeated["services"][name]


def test_one_step_less_does_not_serve_one_request() -> None:
    result = budget(fast(max_num_seqs=1))
    share = result["services"]["fast"]["gpu_memory_utilization"]
    assert budget(fast(max_num_seqs=1, gpu_memory_utilization=share))["verdict"] == "fits"
    assert budget(fast(max_num_seqs=1, gpu_memory_utilization=round(share - 0.01, 2)))["verdict"] != "fits"


def test_length_and_utilisation_are_both_worked_out() -> None:
    result = budget(
        service("one", "Qwen3-4B-Instruct-2507"), service("two", "Qwen3-8B"), {"name": "asr", "memory_gib": 3}
    )
    assert result["verdict"] == "fits"
    assert result["services"]["one"]["solved"] == ["gpu-memory-utilization", "max-model-len"]
    assert result["services"]["one"]["max_model_len"] <= result["services"]["one"]["largest_safe_max_model_len"]
    assert result["services"]["two"]["max_model_len"] == 40960
    assert result["services"]["asr"]["residency_gib"]["typical"] == 3


def test_an_open_length_reaches_the_limit_of_the_model_with_one_request_too() -> None:
    for count in (1, 2):
        result = budget(service("one", "Qwen3.6-35B-A3B", version="0.23.0", max_model_len="auto", max_num_seqs=count))
        assert result["services"]["one"]["max_model_len"] == 262144
        assert result["verdict"] == "fits"


def test_what_is_worked_out_stays_below_where_hosts_have_frozen() -> None:
    alone = budget(service("one", "Qwen3-8B"))
    assert alone["services"]["one"]["gpu_memory_utilization"] == 0.90
    # The service still gets the memory that vLLM's own checks need.
    needed = budget(service("one", "Qwen3-8B", max_model_len=40960, max_num_seqs=1), total_gib=23, os_reserve_gib=0.1)
    assert needed["services"]["one"]["gpu_memory_utilization"] > 0.90


def test_a_fixed_pool_needs_a_utilisation_that_covers_it() -> None:
    result = budget(fast(kv_cache_memory_bytes=4 * GIB))["services"]["fast"]
    assert result["available_kv_bytes"] == {"low": 4 * GIB, "typical": 4 * GIB, "high": 4 * GIB}
    assert result["requested_bytes"] > result["weights_bytes"] + 4 * GIB


def test_blocks_that_were_overridden() -> None:
    result = budget(fast(num_gpu_blocks_override=2048, gpu_memory_utilization=0.3))["services"]["fast"]
    assert (result["num_blocks"], result["gpu_kv_cache_size_tokens"]) == (2048, 32768)


def test_overheads_can_be_overridden() -> None:
    result = budget(
        {**fast(gpu_memory_utilization=0.10), "overheads": {"inside_gib": 1.0, "outside_gib": {"typical": 2.0}}},
        overheads={"kept_share": 0},
    )
    item = result["services"]["fast"]
    assert item["overhead_gib"] == {"low": 1.0, "typical": 1.0, "high": 1.0}
    assert item["residency_gib"]["typical"] == pytest.approx(
        11.97 - 1.0 + 2.0 + item["beside_gib"]["typical"], abs=0.015
    )


def test_shares_weigh_what_is_left() -> None:
    """Nothing is left to share below the floor, and nobody gets more than its target."""
    one_service = service("one", "Qwen3-4B-Instruct-2507", max_model_len=32768, max_num_seqs=64)
    two = service("two", "Qwen3-4B-Instruct-2507", max_model_len=32768, max_num_seqs=64)

    def shares(first: float, second: float) -> list[float]:
        result = budget({**one_service, "share": first}, {**two, "share": second})["services"]
        return [result[name]["gpu_memory_utilization"] for name in ("one", "two")]

    even, uneven, alone = shares(1, 1), shares(3, 1), shares(1, 0)
    assert abs(even[0] - even[1]) <= 0.0101
    assert sum(even) == pytest.approx(sum(uneven)) == pytest.approx(sum(alone))
    least = alone[1]
    assert uneven[0] - least == pytest.approx(3 * (uneven[1] - least), abs=0.03)
    small = {**one_service, "args": {"max-model-len": 16384, "max-num-seqs": 1}, "share": 50}
    assert budget(small, two)["services"]["one"]["max_concurrency"] < 3


def test_the_number_of_requests_is_worked_out_when_asked() -> None:
    result = budget(fast(gpu_memory_utilization=0.3, max_num_seqs="auto"))["services"]["fast"]
    assert (result["max_num_seqs"], result["solved"]) == (int(result["max_concurrency"]), ["max-num-seqs"])
    default = fast(gpu_memory_utilization=0.3)
    del default["args"]["max-num-seqs"]
    assert (budget(default)["services"]["fast"]["max_num_seqs"], budget(default)["services"]["fast"]["solved"]) == (
        256,
        [],
    )


def test_a_default_that_vllm_would_refuse_is_replaced() -> None:
    fields = service("h", "Qwen3-Next-80B-A3B", "FP8", "0.23.0", gpu_memory_utilization=0.67, max_model_len=4096)
    result = budget(fields)
    assert result["services"]["h"]["solved"] == ["max-num-seqs"]
    assert 0 < result["services"]["h"]["max_num_seqs"] < 256
    assert errors(result) == []
    stated = {**fields, "args": {**fields["args"], "max-num-seqs": 256}}
    assert ("h", "state_blocks") in rules(budget(stated), "info")


def test_a_length_that_was_left_out_and_that_nothing_serves() -> None:
    """vLLM then takes the longest context of the model, and its error names the missing memory."""
    fields = service("one", "Qwen3-8B", None, "0.23.0", gpu_memory_utilization=0.5)
    result = budget({**fields, "available_kv_bytes": 1000})
    assert "max seq len (40960)" in errors(result)[0]["vllm_error"]
    assert result["services"]["one"]["solved"] == []


def test_a_small_machine() -> None:
    result = budget(
        service("one", "Qwen3-30B-A3B", "FP8", max_model_len=32768, max_num_seqs=4), total_gib=60.0, os_reserve_gib=4.0
    )
    assert result["verdict"] == "fits"
    assert budget(heavy(), total_gib=60.0)["verdict"] == "fails"


@pytest.mark.parametrize("total", [59.8, 119.56, 119.67, 121.69])
def test_machines_of_64_and_of_128_gb(total: float) -> None:
    """Every size of memory keeps the reserve and the margin; the request is a share of all memory."""
    result = budget(fast(), total_gib=total)
    assert result["verdict"] == "fits"
    item = result["services"]["fast"]
    assert item["requested_bytes"] == math.ceil(int(total * GIB) * item["gpu_memory_utilization"])
    assert result["memory_map"][-1]["gib"] >= 2.0
    assert result["memory_map"][0]["gib"] == 5.2


# Bad input ------------------------------------------------------------------------------------------------------------


def test_all_mistakes_at_once() -> None:
    with pytest.raises(InputError) as caught:
        memory_budget(
            {
                "total_gib": -1,
                "safety_margin": 2,
                "measured": {"mem_available_gib": "much", "resident": [{"name": "x"}]},
                "overheads": {"inside_bas_gib": 1, "outside_gib": {"low": 3, "typical": 2}},
                "services": [
                    {
                        "name": "heavy",
                        "weight_gib": 7,
                        "config": {},
                        "args": {"max_model_len": 4096, "--max-model-len": "4k", "gpu-memory-utilization": 1.5},
                    },
                    {"name": "fast", "memory_gib": -3},
                    {"name": "fast", "memory_gib": 3, "args": {"max-model-len": "64kb", "enforce-eager": 2, 7: 7}},
                    {"name": "both", "memory_gib": 3, "config": {}, "overheads": {"kept_share": 2}},
                    "tts",
                    {"memory_gib": 1},
                ],
            }
        )
    assert caught.value.messages == [
        "safety_margin: unknown key, did you mean safety_margin_gib?",
        "overheads.inside_bas_gib: unknown key, did you mean inside_base_gib?",
        "overheads.outside_gib: low, typical and high must not fall, got [3.0, 2.0, 2.4]",
        "total_gib: must be above 0, got -1",
        "measured.mem_available_gib: expected a number, got 'much'",
        "measured.resident[0].gib: is missing",
        "service heavy: weight_gib: unknown key, did you mean weights_gib?",
        "service heavy: args.--max-model-len: is max-model-len, which is there already",
        "service heavy: args.gpu-memory-utilization: expected a share of all memory, at most 1, got 1.5",
        "service fast: memory_gib: must be above 0, got -3",
        "service fast: args.7: expected the name of an argument",
        "service fast: args.max-model-len: is '64kb', which is no whole number",
        "service fast: args.enforce-eager: takes no value, but was given '2'",
        "service both: overheads.kept_share: is a share, at most 1, got 2",
        "services[4]: expected a mapping, got 'tts'",
        "services[5].name: expected a text, got None",
        "services: name: 'fast' stands 2 times, names must be unique on a host",
    ]


def test_arguments_are_read_as_the_command_line_reads_them() -> None:
    native = {
        "gpu-memory-utilization": 0.2,
        "max-model-len": 16384,
        "max-num-seqs": 2,
        "max-num-batched-tokens": 8000,
        "enable-prefix-caching": False,
        "tensor-parallel-size": 1,
        "kv-cache-memory-bytes": 4 * GIB,
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    typed = {
        "--gpu_memory_utilization": "0.2",
        "max_model_len": "16K",
        "max-num-seqs": "2",
        "max-num-batched-tokens": "8k",
        "no-enable-prefix-caching": True,
        "tp": 1,
        "kv-cache-memory-bytes": "4G",
        "speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}',
    }
    fields = service("one", "Qwen3-8B")
    assert budget({**fields, "args": typed}) == budget({**fields, "args": native})


@pytest.mark.parametrize(
    ("args", "loaded"),
    [
        ({}, True),
        ({"limit-mm-per-prompt": '{"image": 0}'}, True),  # videos may still come
        ({"limit-mm-per-prompt": {"image": 0, "video": 1}}, True),
        ({"limit-mm-per-prompt": '{"image": 0, "video": 0}'}, False),
        ({"limit-mm-per-prompt": {"image": 0, "video": {"count": 0}}}, False),
        ({"limit-mm-per-prompt.image": 0, "limit-mm-per-prompt.video": 0}, False),
        ({"language-model-only": True}, False),
    ],
)
def test_the_vision_tower_is_loaded_unless_nothing_is_to_be_seen(args: dict[str, Any], loaded: bool) -> None:
    fields = service("one", "Qwen3.6-35B-A3B", None, "0.23.0", max_model_len=8192, max_num_seqs=1)
    fields["args"].update(args)
    assert (budget(fields)["services"]["one"]["vision_bytes"] > 0) is loaded


@pytest.mark.parametrize("auto", ["auto", -1, "-1"])
def test_every_spelling_of_auto(auto: Any) -> None:
    fields = fast(gpu_memory_utilization=0.2)
    result = budget({**fields, "args": {**fields["args"], "max-model-len": auto}})
    assert result["services"]["fast"]["solved"] == ["max-model-len"]


def test_an_argument_that_is_misspelt_is_not_passed_over_in_silence() -> None:
    fields = fast()
    fields["args"]["max-modell-len"] = fields["args"].pop("max-model-len")
    result = budget(fields)
    assert rules(result, "warning")[0] == ("fast", "argument")
    assert result["findings"][0]["fix"] == "Write max-model-len, if you meant that."
    fields["args"].update({"tool-call-parser": "hermes", "of-a-fork": 1, "max-model-len": 4096})
    del fields["args"]["max-modell-len"]
    assert rules(budget(fields), "warning") == []


def test_the_whole_memory_is_printed_as_python_prints_it() -> None:
    result = budget(fast(gpu_memory_utilization=1))
    assert "desired GPU memory utilization (1.0, 119.67 GiB)" in errors(result)[0]["vllm_error"]


def test_a_margin_that_is_not_kept_is_no_matter_of_overheads() -> None:
    result = budget(fast(gpu_memory_utilization=0.2), safety_margin_gib=100)
    assert [item["message"] for item in result["findings"] if item["rule"] == "memory.node"] == [
        "With everything running, 89.24 GiB are free of 119.67 GiB; 100.0 GiB should stay free."
    ]


@pytest.mark.parametrize("services", [None, {}, "heavy", 3])
def test_services_must_be_a_list(services: Any) -> None:
    with pytest.raises(InputError, match="expected a list of services"):
        memory_budget({"services": services})


def test_a_host_without_services_has_all_of_its_memory_free() -> None:
    result = memory_budget({"services": [], "total_gib": 119.67, "os_reserve_gib": 5.2})
    assert result["services"] == {} and not result["findings"]


def test_a_service_without_config_or_memory() -> None:
    with pytest.raises(InputError, match="give the config of the model, or memory_gib"):
        budget({"name": "one"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", [1]])
def test_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(InputError, match="total_gib: expected a number"):
        budget(fast(), total_gib=value)
