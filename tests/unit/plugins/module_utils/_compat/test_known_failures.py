"""The table of reported failures: every row is well formed, fires for its launch, is silent for a cured launch, and matches a log."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES, check_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.rules_reported import FACTS
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.known_failures import ROWS, SEVERITY

BY_ID = {row["id"]: row for row in ROWS}
KEYS = {"id", "title", "verdict", "severity", "first", "before", "when", "unless", "symptom", "by_version", "last"}
TEXTS = {"message", "fix", "source", "date"}

HYBRID = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe"}
BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
WEIGHTS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"weights": {"strategy": "block", "num_bits": 8}}},
}
MIMO = {"architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash"}
DRAFT = {"method": "mtp", "num_speculative_tokens": 3}


def launch(version: str, config: dict[str, Any], args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    model = {"repo": "org/model", "config": config}
    return {
        "image": "example.org/vllm:1",
        "vllm_version": version,
        "entrypoint": "serve",
        "model": model,
        "args": args or {},
        **more,
    }


GEMMA4 = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096}
DEEPSEEK4 = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"}
QWEN4 = {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp"}
MTP = {"speculative-config": DRAFT, "enable-prefix-caching": True}
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}

# Rows with a rule: launches that fire it, and similar launches that do not (cured, another version, another model).
CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "SPKK01": (
        [launch("0.27.0", GEMMA4), launch("0.27.1", GEMMA4, packages=["transformers==5.17.0"])],
        [
            launch("0.26.0", GEMMA4),
            launch("0.28.0", GEMMA4),
            launch("0.27.1", GEMMA4, packages=["transformers==5.14.1"]),
        ],
    ),
    "SPKK02": (
        [
            launch("0.24.0", {**HYBRID, "quantization_config": BLOCK_FP8}),
            launch(
                "0.24.0",
                {**DENSE, "quantization_config": WEIGHTS},
                {"moe-backend": "triton", "linear-backend": "triton"},
            ),
        ],
        [
            launch("0.24.0", {**HYBRID, "quantization_config": BLOCK_FP8}, env={"VLLM_USE_DEEP_GEMM": "0"}),
            launch("0.23.0", {**HYBRID, "quantization_config": BLOCK_FP8}),
            launch("0.25.0", {**HYBRID, "quantization_config": BLOCK_FP8}),
            launch("0.24.0", {**HYBRID, "quantization_config": {"quant_method": "fp8"}}),
        ],
    ),
    "SPKK03": (
        [launch("0.29.0", {**DENSE, "quantization_config": NVFP4})],
        [
            launch("0.30.0", {**DENSE, "quantization_config": NVFP4}),
            launch("0.29.0", {**DENSE, "quantization_config": NVFP4}, {"linear-backend": "flashinfer_cutlass"}),
            launch(
                "0.29.0",
                {**DENSE, "quantization_config": NVFP4},
                env={"VLLM_DISABLED_KERNELS": "A,FlashInferCuteDslNvFp4W4A16LinearKernel"},
            ),
            launch("0.29.0", {**DENSE, "num_experts": 64, "quantization_config": NVFP4}),
        ],
    ),
    "SPKK04": (
        [launch("0.24.0", HYBRID, MTP), launch("0.28.0", HYBRID, {"speculative-config": DRAFT})],
        [
            launch("0.24.0", HYBRID, {"speculative-config": DRAFT}),
            launch("0.28.0", HYBRID, {"speculative-config": DRAFT, "enable-prefix-caching": False}),
            launch("0.24.0", HYBRID, {"enable-prefix-caching": True}),
            launch("0.24.0", DENSE, MTP),
            launch("0.29.0", HYBRID, MTP),
            launch("0.24.0", HYBRID, {**MTP, "speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}),
        ],
    ),
    "SPKK05": (
        [
            launch(
                "0.31.0", MIMO, {"speculative-config": {"method": "dflash", "model": "x", "num_speculative_tokens": 7}}
            )
        ],
        [
            launch("0.31.0", MIMO, {"speculative-config": DRAFT, "async-scheduling": False}),
            launch("0.31.0", MIMO, {"speculative-config": DRAFT, "max-num-seqs": 1}),
            launch("0.31.0", MIMO),
        ],
    ),
    "SPKK07": ([launch("0.23.0", MIMO)], [launch("0.24.0", MIMO), launch("0.23.0", DENSE)]),
    "SPKK10": (
        [launch("0.31.0", QWEN4)],
        [launch("0.32.0", QWEN4), launch("0.31.0", QWEN4, {"enable-prefix-caching": False})],
    ),
    "SPKK11": (
        [launch("0.28.0", DENSE, {"load-format": "instanttensor", "speculative-config": DRAFT}, nodes=2)],
        [
            launch("0.28.0", DENSE, {"load-format": "instanttensor", "speculative-config": DRAFT}),
            launch("0.28.0", DENSE, {"load-format": "safetensors", "speculative-config": DRAFT}, nodes=2),
            launch(
                "0.28.0",
                DENSE,
                {"load-format": "instanttensor", "speculative-config": DRAFT},
                nodes=2,
                env={"INSTANTTENSOR_BACKEND": "BUFFERED"},
            ),
        ],
    ),
    "SPKK12": (
        [launch("0.27.0", DENSE, {"tensor-parallel-size": 4})],
        [launch("0.27.1", DENSE, {"tensor-parallel-size": 4}), launch("0.27.0", DENSE, {"tensor-parallel-size": 2})],
    ),
    "SPKK16": (
        [launch("0.25.0", DEEPSEEK4, {"attention-backend": "B12X_MLA_SPARSE"})],
        [launch("0.25.0", DEEPSEEK4), launch("0.25.0", DENSE, {"attention-backend": "B12X_MLA_SPARSE"})],
    ),
    "SPKK13": (
        [launch("0.30.0", DEEPSEEK4, {"compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}})],
        [
            launch("0.30.0", DEEPSEEK4, {"compilation-config": {"cudagraph_mode": "PIECEWISE"}}),
            launch("0.30.0", DEEPSEEK4),
        ],
    ),
    "SPKK14": (
        [launch("0.25.1", DEEPSEEK4, env=SEGMENTS)],
        [launch("0.26.0", DEEPSEEK4, env=SEGMENTS), launch("0.25.1", DEEPSEEK4)],
    ),
}
# Rows with a symptom: a log that has it, and for rows that need a version a log of another version.
LOGS: dict[str, tuple[str, str]] = {
    "SPKK01": ("x.AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a per-layer attribute", ""),
    "SPKK02": (
        "RuntimeError: Assertion error (/x/deepgemm-src/csrc/apis/layout.hpp:59): Unknown SF transformation",
        "",
    ),
    "SPKK03": ("INFO 11-20 10:00:00 [a.py:1] Using FlashInferCuteDslNvFp4W4A16LinearKernel for NVFP4 GEMM", "v0.31.0"),
    "SPKK06": ("AssertionError: QSA ring capacity 12 must divide the attention block size 1616", ""),
    "SPKK08": ("RuntimeError: Engine core initialization failed. Failed core proc(s): {}", "v0.25.0"),
    "SPKK09": (
        "INFO 11-20 10:00:00 [a.py:1] No available shared memory broadcast block found in 60 seconds",
        "v0.30.0",
    ),
    "SPKK15": ("AttributeError: '_IncludedRouter' object has no attribute 'path'", ""),
}


def fired(params: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["rule"]: finding for finding in check_launch(params)["findings"]}


def test_every_row_is_well_formed_and_has_its_cases() -> None:
    assert len(BY_ID) == len(ROWS)
    for row in ROWS:
        assert set(row) <= KEYS | TEXTS and set(row) >= TEXTS, row["id"]
        assert re.fullmatch(r"SPKK\d\d", row["id"]) and re.fullmatch(r"2\d\d\d-\d\d-\d\d", row["date"])
        assert row["verdict"] in SEVERITY and ("when" in row or "symptom" in row)
        assert set(row.get("when", {}).get("facts", ())) <= set(FACTS)
    assert (
        set(CASES) == {row["id"] for row in ROWS if "when" in row} == {rule.id for rule in RULES if rule.id[3] == "K"}
    )
    assert set(LOGS) == {row["id"] for row in ROWS if "symptom" in row}


@pytest.mark.parametrize("row", CASES)
def test_a_row_fires_where_it_is_not_cured(row: str) -> None:
    fires, silent = CASES[row]
    for params in fires:
        finding = fired(params)[row]
        assert finding["severity"] == BY_ID[row].get("severity", SEVERITY[BY_ID[row]["verdict"]])
        assert BY_ID[row]["date"] in finding["source"] and "{" not in finding["message"] + finding["fix"]
        assert row not in fired({**params, "ignore": [row]})
    for params in silent:
        assert row not in fired(params), params


def test_rows_of_versions_are_silent_where_the_version_is_unknown() -> None:
    for row, (fires, _silent) in CASES.items():
        if "first" in BY_ID[row]:
            assert row not in fired({key: value for key, value in fires[0].items() if key != "vllm_version"})


@pytest.mark.parametrize("row", LOGS)
def test_a_row_names_the_cause_in_a_log(row: str) -> None:
    line, other = LOGS[row]
    version = BY_ID[row].get("first") or "0.23.0"
    log = [f"INFO [core.py:1] Initializing a V1 LLM engine (v{version}) with config", line]
    answer = explain.explain(log)
    assert answer.id == row and BY_ID[row]["fix"].rstrip(".") == answer.fix and BY_ID[row]["date"] in answer.source
    if other:
        assert explain.explain([log[0].replace(f"v{version}", other), line]).id != row
