"""Repairs of a launch: only what cannot be meant otherwise, shown one by one, and clean of what it repaired."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import check_launch

NGC = "nvcr.io/nvidia/vllm:26.04-py3"
HYBRID_NVFP4 = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "num_experts": 256,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp*"]},
}
COMPRESSED = {
    "architectures": ["Qwen3ForCausalLM"],
    "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
}
GEMMA4 = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}


def judge(version: str = "", image: str = NGC, config: Any = None, **more: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"image": image, "model": {"repo": "a/b", "config": config or {}}, **more}
    return check_launch({**params, "vllm_version": version} if version else params)


# (parameters of the check, expected changes, args after them, env after them)
REPAIRS: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]], dict[str, Any], dict[str, str]]] = {
    "spelling of an option": (
        {"args": {"gpu-memory-utilisation": 0.5}},
        [("SPK101", "--gpu-memory-utilisation 0.5", "--gpu-memory-utilization 0.5")],
        {"gpu-memory-utilization": 0.5},
        {},
    ),
    "option without effect": (
        {"args": {"swap-space": 4, "disable-log-requests": True}},
        [("SPK101", "--swap-space 4", ""), ("SPK101", "--disable-log-requests", "")],
        {},
        {},
    ),
    "option by its new name": (
        {"args": {"cuda-graph-sizes": [1, 2], "task": "embed", "disable-mm-preprocessor-cache": True}},
        [
            ("SPK101", "--cuda-graph-sizes 1 2", "--cudagraph-capture-sizes 1 2"),
            ("SPK101", "--task embed", "--runner pooling --convert embed"),
            ("SPK101", "--disable-mm-preprocessor-cache", "--mm-processor-cache-gb 0"),
        ],
        {"cudagraph-capture-sizes": [1, 2], "convert": "embed", "mm-processor-cache-gb": 0, "runner": "pooling"},
        {},
    ),
    "value behind a flag": (
        {
            "argv": [
                *("a/b", "--gpu-memory-utilization", "0.5", "--enforce-eager", "false"),
                *("--no-enable-chunked-prefill", "false", "--trust-remote-code", "true"),
            ]
        },
        [
            ("SPK102", "--enforce-eager", "--no-enforce-eager"),
            ("SPK102", "--no-enable-chunked-prefill", "--enable-chunked-prefill"),
            ("SPK102", "--trust-remote-code", "--trust-remote-code"),
        ],
        {
            "gpu-memory-utilization": 0.5,
            "enforce-eager": False,
            "enable-chunked-prefill": True,
            "trust-remote-code": True,
        },
        {},
    ),
    "vllm serve twice": (
        {"argv": ["vllm", "serve", "vllm", "serve", "a/b", "--gpu-memory-utilization", "0.5"]},
        [("SPK103", "vllm serve vllm serve", "vllm serve")],
        {"gpu-memory-utilization": 0.5},
        {},
    ),
    "model as an option": (
        {"argv": ["--model", "a/b", "--gpu-memory-utilization", "0.5"]},
        [("SPK107", "--model a/b", "a/b")],
        {"gpu-memory-utilization": 0.5},
        {},
    ),
    "spelling of a choice": (
        {"version": "0.33.0", "args": {"dtype": "bfloat-16"}},
        [("SPK108", "--dtype bfloat-16", "--dtype bfloat16")],
        {"dtype": "bfloat16"},
        {},
    ),
    "an option that never was, and its key": (
        {
            "version": "0.16.0",
            "args": {
                "speculative-disable-by-batch-size": 32,
                "speculative-config": {"method": "ngram", "num_speculative_tokens": 4},
            },
        },
        [
            (
                "SPK109",
                '--speculative-disable-by-batch-size 32 --speculative-config {"method":"ngram","num_speculative_tokens":4}',
                '--speculative-config {"disable_by_batch_size":32,"method":"ngram","num_speculative_tokens":4}',
            )
        ],
        {"speculative-config": {"disable_by_batch_size": 32, "method": "ngram", "num_speculative_tokens": 4}},
        {},
    ),
    "variables without effect": (
        {"env": {"VLLM_USE_V1": "1", "VLLM_FLASHINFER_MOE_BACKEND": "latency", "VLLM_FP8_MOE_BACKEND": "x", "A": "1"}},
        [
            ("SPK201", "VLLM_USE_V1=1", ""),
            ("SPK202", "VLLM_FLASHINFER_MOE_BACKEND=latency", ""),
            ("SPK203", "VLLM_FP8_MOE_BACKEND=x", ""),
        ],
        {},
        {"A": "1"},
    ),
    "variable by its option": (
        {"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}},
        [("SPK203", "VLLM_ATTENTION_BACKEND=FLASHINFER", "--attention-backend FLASHINFER")],
        {"attention-backend": "FLASHINFER"},
        {},
    ),
    "spelling of a variable": (
        {"env": {"VLLM_CACHE_ROTO": "/c"}},
        [("SPK203", "VLLM_CACHE_ROTO=/c", "VLLM_CACHE_ROOT=/c")],
        {},
        {"VLLM_CACHE_ROOT": "/c"},
    ),
    "quantisation that the checkpoint says itself": (
        {"args": {"quantization": "modelopt"}, "config": COMPRESSED},
        [("SPK402", "--quantization modelopt", "")],
        {},
        {},
    ),
    "spelling of a quantisation": (
        {"args": {"quantization": "compressed_tensors"}, "config": COMPRESSED},
        [("SPK404", "--quantization compressed_tensors", "--quantization compressed-tensors")],
        {"quantization": "compressed-tensors"},
        {},
    ),
    "kernels for an unquantised draft": (
        {
            "args": {
                "moe-backend": "marlin",
                "enable-prefix-caching": False,
                "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
            },
            "config": HYBRID_NVFP4,
        },
        [
            (
                "SPK504",
                '--speculative-config {"method":"mtp","num_speculative_tokens":2}',
                '--speculative-config {"method":"mtp","moe_backend":"triton","num_speculative_tokens":2}',
            )
        ],
        {
            "moe-backend": "marlin",
            "enable-prefix-caching": False,
            "speculative-config": {"method": "mtp", "moe_backend": "triton", "num_speculative_tokens": 2},
        },
        {},
    ),
    "spelling of a key": (
        {"version": "0.23.0", "args": {"kernel-config": {"moe-backend": "triton"}}},
        [("SPK111", '--kernel-config {"moe-backend":"triton"}', '--kernel-config {"moe_backend":"triton"}')],
        {"kernel-config": {"moe_backend": "triton"}},
        {},
    ),
    "spelling of a method": (
        {"args": {"speculative-config": {"method": "draft-model", "model": "a/c", "num_speculative_tokens": 2}}},
        [
            (
                "SPK601",
                '--speculative-config {"method":"draft-model","model":"a/c","num_speculative_tokens":2}',
                '--speculative-config {"method":"draft_model","model":"a/c","num_speculative_tokens":2}',
            )
        ],
        {"speculative-config": {"method": "draft_model", "model": "a/c", "num_speculative_tokens": 2}},
        {},
    ),
    "key that is gone": (
        {"args": {"speculative-config": {"method": "ngram", "num_speculative_tokens": 2, "disable_by_batch_size": 4}}},
        [
            (
                "SPK604",
                '--speculative-config {"disable_by_batch_size":4,"method":"ngram","num_speculative_tokens":2}',
                '--speculative-config {"method":"ngram","num_speculative_tokens":2}',
            )
        ],
        {"speculative-config": {"method": "ngram", "num_speculative_tokens": 2}},
        {},
    ),
    "tool parser of a model": (
        {"args": {"enable-auto-tool-choice": True}, "config": GEMMA4},
        [("SPK703", "", "--tool-call-parser gemma4")],
        {"enable-auto-tool-choice": True, "tool-call-parser": "gemma4"},
        {},
    ),
    "servers of a headless node": (
        {
            "args": {
                "headless": True,
                "api-server-count": 1,
                "tensor-parallel-size": 2,
                "nnodes": 2,
                "node-rank": 1,
                "master-addr": "10.0.0.1",
            }
        },
        [("SPK809", "--api-server-count 1", "")],
        {"headless": True, "tensor-parallel-size": 2, "nnodes": 2, "node-rank": 1, "master-addr": "10.0.0.1"},
        {},
    ),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_repair(name: str) -> None:
    request, changes, args, env = REPAIRS[name]
    result = judge(**request)
    fixed = result["fixed"]
    assert [(change["rule"], change["before"], change["after"]) for change in fixed["changes"]] == changes
    assert (fixed["args"], fixed["env"]) == (args, env)
    assert fixed["findings"] == []
    # What came out goes in again without a word.
    judged_again = judge(**{key: request[key] for key in ("version", "config") if key in request}, args=args, env=env)
    assert (judged_again["findings"], judged_again["fixed"]["changes"], judged_again["command"]) == (
        [],
        [],
        fixed["command"],
    )


def test_what_was_given_stays_as_it_was() -> None:
    request = {"args": {"swap-space": 4}, "env": {"VLLM_USE_V1": "1"}}
    result = judge(**request)
    assert request == {"args": {"swap-space": 4}, "env": {"VLLM_USE_V1": "1"}}
    assert result["args"] == {"swap-space": 4}
    assert result["compatible"] is False


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"args": {"moe-backend": "flashinfer_trtllm"}, "config": HYBRID_NVFP4}, "SPK503"),
        ({"args": {"attention-backend": "FLASH_ATTN", "kv-cache-dtype": "fp8"}}, "SPK501"),
        ({"args": {"tensor-parallel-size": 2}}, "SPK801"),
        ({"env": {"VLLM_OF_MY_FORK": "1"}}, "SPK203"),
        ({"args": {"max-num": 4}}, "SPK105"),
        ({"env": {"NCCL_IB_GID_INDEX": "3"}}, "SPK804"),
        ({"args": {"kv-cache-dtype": "nvfp4"}}, "SPK502"),
        ({"version": "0.23.0", "args": {"kernel-config": {"of_my_fork": 1}}}, "SPK111"),
        ({"version": "0.23.0", "args": {"kernel-config": {"moe-backend": "a", "moe_backend": "triton"}}}, "SPK111"),
    ],
)
def test_what_only_a_person_can_decide_is_left(options: dict[str, Any], rule: str) -> None:
    fixed = judge(**options)["fixed"]
    assert fixed["changes"] == []
    assert rule in [finding["rule"] for finding in fixed["findings"]]


def test_a_repair_that_would_bring_an_error_is_left_out() -> None:
    """FLASH_ATTN takes no FP8 KV cache on sm_121: the variable does nothing today, the option would stop the start."""
    fixed = judge(env={"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}, args={"kv-cache-dtype": "fp8"})["fixed"]
    assert fixed["changes"] == []
    assert fixed["env"] == {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}


@pytest.mark.parametrize(
    ("version", "value", "args", "after"),
    [
        ("0.19.0", "marlin", {}, {"moe-backend": "marlin"}),
        ("0.19.0", "1", {}, {"moe-backend": "marlin"}),
        ("0.19.0", "0", {}, {}),
        ("0.16.0", "1", {}, {}),  # it has no such option
        ("0.19.0", "1", {"moe-backend": "triton"}, {"moe-backend": "triton"}),
    ],
)
def test_a_variable_for_marlin_becomes_the_option_where_nothing_else_is_set(
    version: str, value: str, args: dict[str, Any], after: dict[str, Any]
) -> None:
    fixed = judge(version, env={"VLLM_MXFP4_BACKEND": value}, args=args)["fixed"]
    assert (fixed["args"], fixed["env"], fixed["findings"]) == (after, {}, [])


def test_what_is_wrong_with_other_words_stays_wrong() -> None:
    fixed = judge(argv=["a/b", "c/d", "--max-num-seqs", "many", "--gpu-memory-utilization", "1", "--swap-space", "4"])
    rules = [finding["rule"] for finding in fixed["fixed"]["findings"]]
    assert [change["rule"] for change in fixed["fixed"]["changes"]] == ["SPK101"]
    assert rules == ["SPK104", "SPK104", "SPK902"]


def test_what_is_ignored_is_not_repaired() -> None:
    fixed = judge(env={"VLLM_USE_V1": "1"}, ignore=["SPK201"])["fixed"]
    assert (fixed["changes"], fixed["env"]) == ([], {"VLLM_USE_V1": "1"})


def test_keys_of_the_service_stay_refused() -> None:
    fixed = judge(args={"port": 8001, "swap-space": 4}, refuse_service_keys=True)["fixed"]
    assert [finding["rule"] for finding in fixed["findings"]] == ["SPK106"]
    assert fixed["args"] == {}


def test_a_typed_command_stays_one() -> None:
    """The default share of the memory is said of typed commands only, before and after a repair."""
    fixed = judge(argv=["a/b", "--swap-space", "4"])["fixed"]
    assert [finding["rule"] for finding in fixed["findings"]] == ["SPK910"]
