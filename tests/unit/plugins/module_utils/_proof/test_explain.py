"""What a log means: texts of guides, reports of owners, real logs; the right answer stands beside each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages

FIXTURES = Path(__file__).parents[2] / "fixtures" / "explained"
CASES: list[dict[str, Any]] = [
    {**case, "file": path.stem}
    for path in sorted(FIXTURES.glob("*.yml"))
    for case in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['file']}-{case['name']}")
def test_the_answer_that_was_decided_before(case: dict[str, Any]) -> None:
    answer = explain.explain(case["log"].splitlines())
    assert answer.id == case["answer"], answer
    assert case["error"] in answer.error and bool(case["error"]) == bool(answer.error)
    assert case["fix"] in answer.fix and (case["fix"] or answer.id in ("unknown", "none")), answer.fix
    assert case.get("stage", answer.stage) == answer.stage


LOGS = Path(__file__).parents[2] / "fixtures" / "engine_logs"
# Real logs: at which line each stage begins, as read by a person.
BEGINS: dict[str, dict[int, str]] = {
    "healthy_fa3_graphs_then_sigterm": {
        14: "device",
        48: "load",
        51: "profile",
        60: "kv_cache",
        66: "graphs",
        114: "warm-up",
        156: "serving",
    },
    "healthy_moe_fp8_graphs_v1runner": {
        74: "device",
        79: "load",
        85: "profile",
        96: "kv_cache",
        104: "graphs",
        195: "warm-up",
        239: "serving",
    },
    # Graphs are captured twice, the first time to see what they take: until the cache is cut that is profiling.
    "healthy_v33_v2runner_graphs": {
        6: "device",
        10: "load",
        14: "profile",
        33: "kv_cache",
        36: "warm-up",
        39: "graphs",
        43: "warm-up",
    },
    "flashinfer_cut_off_while_warming_up": {77: "device", 82: "load", 85: "profile", 87: "kv_cache", 91: "warm-up"},
    "nvfp4_marlin_gdn_cut_off_while_loading": {84: "device", 90: "load"},
    "refused_kv_too_small_for_max_model_len": {76: "device", 81: "load", 84: "profile", 86: "kv_cache"},
    "refused_no_available_memory": {77: "device", 82: "load", 85: "profile", 87: "kv_cache"},
    "refused_gemma4_transformers_5_17": {},
    "single_tp1_first_start": {16: "device", 34: "load", 46: "profile", 50: "kv_cache", 52: "warm-up", 99: "serving"},
    "mp_tp2_rank0": {21: "device", 41: "load", 53: "kv_cache", 55: "warm-up", 104: "serving"},
    "mp_tp2_rank1": {28: "device", 32: "load", 38: "kv_cache"},
    "ray_tp2_ok_then_worker_killed": {20: "device", 40: "load", 51: "kv_cache", 53: "warm-up", 102: "serving"},
}
# What ended the start, or the engine later; the line at which it first stands; what it means and what to do.
ENDS: dict[str, tuple[int, str, str, str]] = {
    "ray_tp2_ok_then_worker_killed": (114, "died", "worker of Ray", "session_latest"),
    "refused_kv_too_small_for_max_model_len": (
        110,
        "ValueError: To serve at least one request with the model's max seq len (262144), (36.0 GiB KV cache is needed, ",
        "one request of max-model-len tokens",
        "lower max-model-len",
    ),
    "refused_no_available_memory": (
        111,
        "ValueError: No available memory for the cache blocks.",
        "leave nothing",
        "raise gpu-memory",
    ),
    "refused_gemma4_transformers_5_17": (
        124,
        "AmbiguousGlobalPerLayerAttributeError: 'head_dim'",
        "transformers",
        "older",
    ),
}


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()


def test_every_real_log_is_judged() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(BEGINS)


@pytest.mark.parametrize("name", BEGINS)
def test_the_stage_is_right_for_every_prefix(name: str) -> None:
    lines, reached = log(name), "arguments"
    for length in range(len(lines) + 1):
        reached = BEGINS[name].get(length, reached)
        assert start_stages.stage_of(lines[:length]) == reached, (length, lines[length - 1])
    assert reached == (list(BEGINS[name].values()) or ["arguments"])[-1]


@pytest.mark.parametrize("name", BEGINS)
def test_a_refusal_is_known_from_the_line_on_where_it_stands(name: str) -> None:
    """And of a start that goes well nothing is, for no prefix: warnings with tracebacks and lines that begin like refusals included."""
    lines = log(name)
    at, text, cause, fix = ENDS.get(name, (len(lines) + 1, "", "", ""))
    for length in range(len(lines) + 1):
        answer = explain.explain(lines[:length])
        if length < at:
            assert not answer.is_known, (length, answer)
            assert name not in ENDS or answer.error == "", (length, answer)
        else:
            assert cause in answer.cause and fix in answer.fix and text in answer.error, (length, answer)


def test_of_several_starts_in_one_journal_the_last_one_counts() -> None:
    journal = log("refused_no_available_memory") + log("healthy_fa3_graphs_then_sigterm")[:70]
    assert start_stages.stage_of(journal) == "graphs" and explain.error_of(journal) == ""
    assert start_stages.stage_of(journal[:230]) == "device"


def test_an_error_that_only_points_to_another_is_named_when_there_is_no_other() -> None:
    lines = log("refused_no_available_memory")
    end = next(index for index, line in enumerate(lines) if line.startswith("(APIServer") and "Traceback" in line)
    assert explain.error_of(lines[end:]).startswith("RuntimeError: Engine core initialization failed.")


@pytest.mark.parametrize(
    "line",
    [
        "INFO [backends.py:1] Using cache directory: /root/.cache/vllm/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile",
        "INFO [backends.py:1] Directly load the compiled graph(s) for compile range (1, 2048) from the cache, took 1.2 s",
        '  File "/x/vllm/compilation/compiler_interface.py", line 250, in compile',
        "ValueError: Free memory on device",
        "",
    ],
)
def test_what_is_not_known_is_not_explained(line: str) -> None:
    assert not explain.explain([line]).is_known


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("Starting to load model org/m", None),
        ("Starting to load model org/m\nLoading safetensors checkpoint shards:   0% Completed | 0/7 [00:00<?]", 0),
        ("Loading safetensors checkpoint shards:  43% Completed | 3/7 [00:09<00:12]", 43),
        # The next stage does not say how far it is.
        ("Loading safetensors checkpoint shards: 100% Completed | 7/7\nModel loading took 3.1 GiB", None),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   6%|▌         | 3/51 [00:00<00:06]", 6),
    ],
)
def test_a_stage_is_as_far_as_its_log_says(line: str, percent: int | None) -> None:
    assert start_stages.percent_of(line.splitlines()) == percent
    # An earlier start does not count.
    assert start_stages.percent_of([*line.splitlines(), "vLLM API server version 0.19.0"]) is None
