"""Explanations of logs: texts of guides, reports of owners, real logs, each with its right answer."""

from __future__ import annotations

import ast
import importlib.util
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from registered_findings import REGISTER

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.redaction import Redactor
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES, check_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import budget, releases, vllm_errors
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.host_log_signs import Sign
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.log_signs import SIGNS
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import start_stages

FIXTURES = Path(__file__).parents[2] / "fixtures" / "explained"
COMPAT_CASES = Path(__file__).parents[1] / "_compat" / "test_compat.py"
MEMORY = Path(budget.__file__).parent
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
    # Graphs are captured twice, the first time to measure them: until the cache is cut, that counts as profiling.
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
# The cause of the end; the first line that shows it; its meaning and its fix.
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
    assert start_stages.stage_of(journal) == "graphs" and explain.explain(journal).error == ""
    assert start_stages.stage_of(journal[:230]) == "device"


def test_an_error_that_only_points_to_another_is_named_when_there_is_no_other() -> None:
    lines = log("refused_no_available_memory")
    end = next(index for index, line in enumerate(lines) if line.startswith("(APIServer") and "Traceback" in line)
    assert explain.explain(lines[end:]).error.startswith("RuntimeError: Engine core initialization failed.")


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


# --- vLLM's messages as the plan quotes them


def launch_texts() -> set[str]:
    """What the rules about launches quote of vLLM, by the launches that fire them, on the version of the case and on each other one."""
    spec = importlib.util.spec_from_file_location("cases_of_rules", COMPAT_CASES)
    assert spec and spec.loader
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    texts = set()
    for params, _silent in cases.CASES.values():
        for version in (None, "0.15.1", "0.19.0", "0.23.0", "0.28.0", "0.33.0"):
            changed = {**params, "vllm_version": version} if version else params
            texts |= {finding.get("vllm_error", "") for finding in check_launch(changed)["findings"]}
    return texts - {""}


def memory_texts() -> set[str]:
    """All texts of vLLM in the memory arithmetic: literals of its source, with a figure in place of each value."""
    texts = set()
    for path in sorted(MEMORY.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "7" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if re.match(r"(?:[A-Z]\w+Error): ", text):
                texts.add(text)
    plan = vllm_errors.error_mamba_blocks(8, 4), vllm_errors.error_auto_fit(), vllm_errors.error_warm_up(8)
    free = vllm_errors.error_free_memory(50 * 2**30, 120 * 2**30, 0.8, 96 * 2**30)
    none = {vllm_errors.error_no_memory(releases.parse_release(f"0.{minor}.0")) for minor in range(15, 34)}
    spellings = {
        f"ValueError: To serve at least one request with the {owner} max seq len (262144), (36.0 GiB KV cache is needed"
        for owner in ("model's", "models's")
    }
    return texts | {*plan, free} | none | spellings


@pytest.mark.parametrize("texts", [launch_texts, memory_texts], ids=["launches", "memory"])
def test_whatever_the_plan_quotes_of_vllm_is_recognised_in_a_log(texts: Callable[[], set[str]]) -> None:
    quoted = texts()
    assert len(quoted) > 30
    frame = '  File "/usr/lib/python3/dist-packages/vllm/config/vllm.py", line 1, in __post_init__'
    unknown = []
    for text in sorted(quoted):
        is_argparse = text.startswith(
            ("argument ", "unrecognized arguments", "ambiguous option", "the following arguments")
        )
        lines = (
            [f"vllm serve: error: {text}"]
            if is_argparse
            else ["Traceback (most recent call last):", frame, *text.splitlines()]
        )
        if not is_argparse and not re.match(r"[\w.]+(?:Error|Exception)\b|\w+ fatal", text):
            lines[2] = f"ValueError: {lines[2]}"
        answer = explain.explain(lines)
        if not answer.is_known or not answer.fix:
            unknown.append((answer.id, text))
    assert unknown == []


# --- logs of strangers


def test_secrets_and_control_characters_do_not_come_back() -> None:
    log = [
        "\x1b]0;title\x07\x1b[31mTraceback (most recent call last):\x1b[0m\x00",
        "ValueError: \x1b[2Jbad key sk-abcdef0123456789abcdef HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345\u202e end",
    ]
    answer = explain.explain(log)
    assert (
        "hf_abc" not in answer.error and "sk-abc" not in answer.error and answer.error.startswith("ValueError: bad key")
    )
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", "".join(answer.lines()))
    secret = explain.explain(["ValueError: Free memory and my word of honour"], Redactor(["word of honour"]))
    assert "honour" not in secret.error


def test_a_secret_that_the_cut_would_go_through_is_taken_out_before() -> None:
    padding = "x" * (explain.LONGEST_ERROR - 30)
    answer = explain.explain([f"ValueError: {padding} hf_abcdefghijklmnopqrstuvwxyz012345"])
    assert "hf_" not in answer.error and len(answer.error) <= explain.LONGEST_ERROR


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00" * 5000,
        "\ufffd\x01\x02" * 3000,
        "a" * 300_000,
        "ValueError: " * 20_000,
        "Traceback (most recent call last):\n" * 3000,
        "(" * 50_000,
    ],
    ids=["empty", "nul", "binary", "one line", "one word again and again", "tracebacks", "brackets"],
)
def test_texts_that_are_no_logs_take_no_time_and_give_an_answer(text: str) -> None:
    began = time.process_time()
    answer = explain.explain(text.split("\n"))
    assert answer.id in ("unknown", "vllm_check") and len("\n".join(answer.lines())) < 5000
    assert time.process_time() - began < 5


def test_rules_that_signs_name_exist_and_ids_are_unique() -> None:
    ids = [sign.id for sign in SIGNS]
    assert len(ids) == len(set(ids))
    rule_ids = {rule.id for rule in RULES} | set(REGISTER)
    assert [name for sign in SIGNS if sign.rule for name in sign.rule.split(", ") if name not in rule_ids] == []


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.id)
def test_every_sign_has_a_log(sign: Sign) -> None:
    texts = {
        "nvidia_hook": "nvidia-container-cli: mount error: file creation failed",
        "docker_down": "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "registry_limited": "docker: Error response from daemon: toomanyrequests: You have reached your pull rate limit.",
        "mount_source": 'docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /srv/x',
        "deepgemm_kernel": "RuntimeError: deep_gemm: unsupported architecture",
        "auto_fit": "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available",
        "cache_layout": "NotImplementedError: The page size of the layer is not divisible by the maximum page size.",
        "nccl_version": "RuntimeError: NCCL version mismatch between ranks",
        "threads": "RuntimeError: can't start new thread",
        "host_memory": "OSError: [Errno 12] Cannot allocate memory",
        "local_media": "ValueError: Cannot load local files without `--allowed-local-media-path`.",
        "engine_timeout": "TimeoutError: RPC call to sample_tokens timed out.",
        "nccl_error": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error",
        "docker_other": "docker: Error response from daemon: something new.",
        "weights_unmapped": "KeyError: 'layers.0.moe.experts.0.down_proj.input_scale'",
        "options_conflict": "ValueError: max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256).",
        "ray_worker_died": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    }
    if sign.id in texts:
        assert explain.explain([texts[sign.id]]).id == sign.id
    else:
        assert sign.id in {case["answer"] for case in CASES}
