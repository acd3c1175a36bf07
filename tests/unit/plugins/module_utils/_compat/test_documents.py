"""Launches that people have published for DGX Spark, word for word: their mistakes are found, and nothing else."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from written_fixture import check_unit, read_written

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import DockerRun
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import check_launch

DOCUMENTS = Path(__file__).parents[2] / "fixtures" / "documents"
HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
QWEN36_35B = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "layer_types": HYBRID,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "num_experts": 256,
        "head_dim": 256,
    },
}
QWEN36_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {"layer_types": HYBRID, "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1},
}
NVFP4_GROUPS = {"group_0": {"weights": {"num_bits": 4}, "input_activations": {"num_bits": 4}}}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": NVFP4_GROUPS,
    "ignore": ["re:.*mtp.*", "lm_head"],
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "mtp*"]}
CODER_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "max_position_embeddings": 262144,
    "num_experts": 512,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GEMMA4_26B = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": {
        "max_position_embeddings": 262144,
        "num_experts": 128,
        "head_dim": 256,
        "global_head_dim": 512,
    },
}
GEMMA4_31B = {**GEMMA4_26B, "text_config": {"max_position_embeddings": 262144, "head_dim": 256, "global_head_dim": 512}}
GEMMA4_12B = {
    "architectures": ["Gemma4UnifiedForConditionalGeneration"],
    "model_type": "gemma4_unified",
    "text_config": {"max_position_embeddings": 262144, "head_dim": 256, "global_head_dim": 512},
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4}, "input_activations": None}},
    },
}
NEMOTRON_NANO = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEMEM*EME",
    "n_routed_experts": 128,
    "max_position_embeddings": 262144,
    "quantization_config": {**MODELOPT, "kv_cache_quant_algo": "FP8"},
}
NEMOTRON_OMNI = {
    "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"],
    "model_type": "NemotronH_Nano_Omni_Reasoning_V3",
    "llm_config": {"hybrid_override_pattern": "MEMEM*EME", "n_routed_experts": 128, "max_position_embeddings": 262144},
    "quantization_config": {**MODELOPT, "kv_cache_quant_algo": "FP8"},
}
LAGUNA = {
    "architectures": ["LagunaForCausalLM"],
    "model_type": "laguna",
    "num_experts": 256,
    "max_position_embeddings": 131072,
}


def container(name: str) -> DockerRun:
    """Read the docker run of a published command or unit."""
    run = read_written((DOCUMENTS / name).read_text(encoding="utf-8")).run
    assert run is not None
    return run


def launch(name: str, config: dict[str, Any], *more: str, without: str = "", **facts: Any) -> dict[str, Any]:
    """Check the vLLM command inside, without the option C(without) and with the arguments C(more) appended."""
    run = container(name)
    argv = list(run.command)
    if without:
        position = argv.index(without)
        del argv[position : position + 2]
    if argv[:1] == ["-c"]:  # a shell inside the container
        words = shlex.split(argv[1])
        argv = words[words.index("vllm", words.index("&&")) :]
    params = {
        "image": run.image,
        "argv": [*argv, *more],
        "env": {**run.env, **facts.pop("env", {})},
        "docker_args": [name if value is None else f"{name}={value}" for name, value in run.options],
        "model": {"config": config},
        **facts,
    }
    return check_launch(params)


def rules(findings: list[dict[str, Any]]) -> list[str]:
    return sorted(finding["rule"] for finding in findings)


# What the guide's nightly images held when it was written.
NIGHTLY = {"vllm_version": "0.23.0"}
GUIDE = "practical-guide-"
STACK = "dual-dgx-spark-stack-"
COMMAND = ["SPKU02", "SPKU04", "SPKU22"]
UNIT = ["SPKU01", "SPKU07", "SPKU08", "SPKU09", "SPKU10", "SPKU11", "SPKU12", "SPKU22", "SPKU25"]

# file: (config.json, other known facts, rules about the launch, rules about the unit or command)
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], list[str]]] = {
    f"{STACK}qwen36.service": (
        {**QWEN36_35B, "quantization_config": COMPRESSED},
        {"driver_version": "590.48.01"},
        ["SPK201", "SPK202", "SPK510", "SPK512", "SPK607", "SPKK04"],
        UNIT,
    ),
    f"{STACK}gemma4.service": (GEMMA4_26B, {}, ["SPK213", "SPK512", "SPK704"], UNIT),
    f"{GUIDE}vllm.sh": ({}, {}, [], COMMAND),
    f"{GUIDE}qwen36-35b.sh": (
        {**QWEN36_35B, "quantization_config": MODELOPT},
        NIGHTLY,
        ["SPK302", "SPK512", "SPK607", "SPKK04"],
        COMMAND,
    ),
    f"{GUIDE}qwen36-27b.sh": (
        {**QWEN36_27B, "quantization_config": COMPRESSED},
        NIGHTLY,
        ["SPK302", "SPK907"],
        COMMAND,
    ),
    f"{GUIDE}qwen3-coder-next.sh": (CODER_NEXT, NIGHTLY, ["SPK302", "SPK511"], COMMAND),
    f"{GUIDE}qwen35-122b.sh": ({**QWEN36_35B, "quantization_config": COMPRESSED}, NIGHTLY, ["SPK302"], COMMAND),
    f"{GUIDE}gemma4-31b.sh": ({**GEMMA4_31B, "quantization_config": MODELOPT}, {}, [], COMMAND),
    f"{GUIDE}gemma4-26b.sh": (
        {**GEMMA4_26B, "quantization_config": MODELOPT},
        {},
        ["SPK107", "SPK512", "SPK707", "SPKH02"],
        COMMAND,
    ),
    f"{GUIDE}gemma4-coder.sh": (GEMMA4_12B, NIGHTLY, ["SPK107", "SPK302", "SPK902"], COMMAND),
    f"{GUIDE}nemotron-nano.sh": (
        NEMOTRON_NANO,
        {"driver_version": "580.159.03"},
        ["SPK309", "SPK907"],
        COMMAND,
    ),
    f"{GUIDE}nemotron-omni.sh": (NEMOTRON_OMNI, {}, ["SPK510"], ["SPKU02", "SPKU04", "SPKU18", "SPKU22"]),
    f"{GUIDE}mtp.sh": (
        {**QWEN36_35B, "quantization_config": MODELOPT},
        NIGHTLY,
        ["SPK302", "SPK512", "SPK607", "SPK907"],
        COMMAND,
    ),
    f"{GUIDE}vllm-dflash.sh": ({}, {}, ["SPK302", "SPK306", "SPK307", "SPK313"], ["SPKU02", "SPKU04"]),
    f"{GUIDE}laguna.sh": (LAGUNA, NIGHTLY, ["SPK209", "SPK302", "SPK910"], COMMAND),
}


def test_every_published_launch_is_judged() -> None:
    assert sorted(PUBLISHED) == sorted(path.name for path in DOCUMENTS.iterdir())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_launch(name: str) -> None:
    config, facts, about_launch, about_unit = PUBLISHED[name]
    result = launch(name, config, **facts)
    assert rules(result["findings"]) == about_launch
    assert result["compatible"] is True  # their authors ran them
    assert rules(check_unit((DOCUMENTS / name).read_text(encoding="utf-8"))) == about_unit


# Arguments that the documents append, or appended before a correction: the rule that fires, a word of its fix, and what
# the repair makes of it (None where only a person can know).
NANO = f"{GUIDE}nemotron-nano.sh"
QWEN = f"{GUIDE}qwen36-35b.sh"
QWEN_NVFP4 = {**QWEN36_35B, "quantization_config": MODELOPT}
PAIR = f"{STACK}qwen36.service"
PAIR_CONFIG = {**QWEN36_35B, "quantization_config": COMPRESSED}
DRAFT = "z-lab/Qwen3.6-35B-A3B-DFlash"
ADVICE: list[tuple[str, str, dict[str, Any], list[str], dict[str, Any], str, str | None]] = [
    (
        "SPK109",
        f"{GUIDE}laguna.sh",
        LAGUNA,
        ["--speculative-disable-by-batch-size", "32"],
        NIGHTLY,
        "vLLM 0.23.0 has nothing like it",
        "",
    ),
    (
        "SPK109",
        f"{GUIDE}laguna.sh",
        LAGUNA,
        ["--speculative-disable-by-batch-size", "32"],
        {"vllm_version": "0.24.0"},
        "num_speculative_tokens_per_batch_size",
        "",
    ),
    ("SPK605", f"{GUIDE}laguna.sh", LAGUNA, ["--kv-cache-dtype", "fp8"], NIGHTLY, "0.24.0 or newer", None),
    ("SPK503", QWEN, QWEN_NVFP4, ["--moe-backend", "flashinfer_trtllm"], NIGHTLY, "marlin", None),
    (
        "SPK504",
        QWEN,
        QWEN_NVFP4,
        ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'],
        NIGHTLY,
        '"moe_backend": "triton"',
        '--speculative-config {"method":"mtp","moe_backend":"triton","num_speculative_tokens":3}',
    ),
    ("SPK203", QWEN, QWEN_NVFP4, [], {**NIGHTLY, "env": {"VLLM_FP8_MOE_BACKEND": "marlin"}}, "--moe-backend", ""),
    ("SPK204", QWEN, QWEN_NVFP4, [], {**NIGHTLY, "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}}, "--moe-backend", None),
    (
        "SPK203",
        QWEN,
        QWEN_NVFP4,
        [],
        {"vllm_version": "0.24.0", "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}},
        "--moe-backend",
        "",
    ),
    ("SPK203", QWEN, QWEN_NVFP4, [], {**NIGHTLY, "env": {"VLLM_MXFP4_BACKEND": "marlin"}}, "marlin", ""),
    (
        "SPK609",
        QWEN,
        QWEN_NVFP4,
        ["--speculative-config", f'{{"method":"dflash","model":"{DRAFT}","num_speculative_tokens":15}}'],
        NIGHTLY,
        "MTP",
        None,
    ),
    (
        "SPK701",
        NANO,
        NEMOTRON_NANO,
        ["--tool-call-parser", "nemotron_v3"],
        {},
        "qwen3_coder",
        "--tool-call-parser qwen3_coder",
    ),
    ("SPK101", NANO, NEMOTRON_NANO, ["--moe-backend", "marlin"], {}, "image", None),
    (
        "SPK601",
        PAIR,
        PAIR_CONFIG,
        ["--speculative-config", f'{{"method":"dflash","model":"{DRAFT}","num_speculative_tokens":15}}'],
        {},
        "image",
        None,
    ),
    (
        "SPK606",
        PAIR,
        PAIR_CONFIG,
        ["--speculative-config", '{"method":"suffix","num_speculative_tokens":8}'],
        {},
        "arctic-inference",
        None,
    ),
    ("SPK402", PAIR, PAIR_CONFIG, ["--quantization", "modelopt"], {}, "Remove --quantization", ""),
    (
        "SPK801",
        f"{GUIDE}gemma4-31b.sh",
        GEMMA4_31B,
        ["--tensor-parallel-size", "8"],
        {},
        "tensor-parallel-size to 1",
        None,
    ),
    (
        "SPK103",
        f"{GUIDE}qwen36-27b.sh",
        QWEN36_27B,
        [],
        {**NIGHTLY, "argv": ["vllm", "serve", "a/b"]},
        "only the model",
        "",
    ),
    ("SPK301", f"{GUIDE}gemma4-31b.sh", GEMMA4_31B, [], {"image": "vllm/vllm-openai:gemma4"}, "gemma4-cu130", None),
    (
        "SPKH01",
        f"{GUIDE}gemma4-26b.sh",
        GEMMA4_26B,
        [],
        {"image": "vllm/vllm-openai:v0.24.0"},
        "Remove the mount",
        None,
    ),
    (
        "SPK404",
        PAIR,
        {**QWEN36_35B, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}},
        [],
        {"image": "nvcr.io/nvidia/vllm:26.02-py3", "without": "--quantization"},
        "image",
        None,
    ),
    (
        "SPK603",
        f"{STACK}gemma4.service",
        GEMMA4_26B,
        [
            "--speculative-config",
            '{"method":"draft_model","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}',
        ],
        {},
        '"method": "mtp"',
        None,
    ),
    ("SPK502", f"{GUIDE}gemma4-coder.sh", GEMMA4_12B, ["--kv-cache-dtype", "nvfp4"], NIGHTLY, "fp8", None),
    ("SPK401", f"{GUIDE}gemma4-coder.sh", GEMMA4_12B, [], {"vllm_version": "0.22.0"}, "image", None),
    ("SPK403", PAIR, PAIR_CONFIG, ["--max-model-len", "1010000"], {}, "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", None),
    ("SPK903", PAIR, PAIR_CONFIG, [], {"without": "--max-num-batched-tokens"}, "8192", None),
]


@pytest.mark.parametrize(
    ("rule", "name", "config", "more", "facts", "word", "repaired"),
    ADVICE,
    ids=[f"{case[0]}-{number}" for number, case in enumerate(ADVICE)],
)
def test_what_the_documents_advise(
    rule: str,
    name: str,
    config: dict[str, Any],
    more: list[str],
    facts: dict[str, Any],
    word: str,
    repaired: str | None,
) -> None:
    result = launch(name, config, *more, **facts)
    finding = next(candidate for candidate in result["findings"] if candidate["rule"] == rule)
    assert word in finding["fix"]
    assert repaired == next((change["after"] for change in result["fixed"]["changes"] if change["rule"] == rule), None)
    assert (rule in rules(result["fixed"]["findings"])) is (repaired is None)


def test_a_drop_of_the_page_cache_by_the_services_user_fails_the_unit() -> None:
    text = (DOCUMENTS / PAIR).read_text(encoding="utf-8").replace("PermissionsStartOnly=true\n", "")
    assert rules(check_unit(text)) == sorted([*UNIT[1:], "SPKU05"])


def test_the_two_models_of_one_spark() -> None:
    """Figures and flags of "Two Qwen3 models on one DGX Spark": nothing is wrong with either launch alone."""
    heavy = {"gpu-memory-utilization": 0.80, "max-model-len": 65536, "max-num-seqs": 4}
    fast = {"gpu-memory-utilization": 0.10, "max-model-len": 16384, "max-num-seqs": 8}
    image, tools = "nvcr.io/nvidia/vllm:26.04-py3", {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
    thinking = {"repo": "Qwen/Qwen3-Next-80B-A3B-Thinking-FP8", "config": CODER_NEXT}
    instruct = {"repo": "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "config": CODER_NEXT}
    small = {"repo": "Qwen/Qwen3-4B-Instruct-2507", "config": {"architectures": ["Qwen3ForCausalLM"]}}

    def told(model: dict[str, Any], args: dict[str, Any]) -> list[str]:
        return rules(check_launch({"image": image, "model": model, "args": args})["findings"])

    assert told(instruct, {**heavy, **tools}) == ["SPK907"]
    assert told(thinking, {**heavy, **tools}) == ["SPK705", "SPK907"]
    assert told(small, {**fast, **tools}) == []


def test_the_pair_that_serves_one_model() -> None:
    """Configuration line of "DGX Spark Benchmark Results: vLLM on SM121": Ray in an image without Ray."""
    result = check_launch(
        {
            "image": "nvcr.io/nvidia/vllm:26.04-py3",
            "nodes": 2,
            "model": {"repo": "Qwen/Qwen3-235B-A22B-GPTQ-Int4", "config": {"architectures": ["Qwen3MoeForCausalLM"]}},
            "args": {
                "tensor-parallel-size": 2,
                "enable-expert-parallel": True,
                "distributed-executor-backend": "ray",
                "attention-backend": "TRITON_ATTN",
                "quantization": "gptq_marlin",
                "kv-cache-dtype": "fp8",
                "gpu-memory-utilization": 0.87,
            },
        }
    )
    assert rules(result["findings"]) == ["SPK512", "SPK802", "SPK808"]


# What vLLM's own recipes for DGX Spark, and NVIDIA's guides, run today.
SPARK_IMAGE = "vllm/vllm-openai:v0.24.0-ubuntu2404"
RECIPE_35B = """nvidia/Qwen3.6-35B-A3B-NVFP4 --trust-remote-code --kv-cache-dtype fp8 --moe-backend marlin
--gpu-memory-utilization 0.5 --max-model-len 262144 --max-num-seqs 8 --max-num-batched-tokens 8192
--enable-chunked-prefill --async-scheduling --enable-prefix-caching
--speculative-config '{"method":"mtp","num_speculative_tokens":3,"moe_backend":"triton"}'
--load-format fastsafetensors --reasoning-parser qwen3 --tool-call-parser qwen3_coder --enable-auto-tool-choice"""
RECIPE_SUPER = """nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 --max-model-len 262144 --gpu-memory-utilization 0.8
--max-num-seqs 8 --load-format fastsafetensors --attention-backend flashinfer --max-num-batched-tokens 16384
--kv-cache-dtype fp8 --mamba-cache-mode align --mamba-ssm-cache-dtype float32
--speculative-config '{"method":"mtp","num_speculative_tokens":3}' --enable-prefix-caching
--reasoning-parser nemotron_v3 --enable-auto-tool-choice --tool-call-parser qwen3_xml"""
RECIPE_PAIR = """vllm serve nvidia/Qwen3.6-27B-NVFP4 --gpu-memory-utilization 0.5 --tensor-parallel-size 2
--nnodes 2 --node-rank {rank} --master-addr 192.168.100.10 --master-port 29501 --attention-backend flashinfer"""
PAIR_ENV = {
    **dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "enp1s0f1np1"),
    "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
    "NCCL_IB_DISABLE": "0",
    "NCCL_IGNORE_CPU_AFFINITY": "1",
    "VLLM_HOST_IP": "192.168.100.10",
    "VLLM_FLOAT32_MATMUL_PRECISION": "high",
}
PAIR_DOCKER = '--privileged --ulimit nofile=1048576:1048576 --ipc=host --gpus all --rm --network host --entrypoint=""'
OFFICIAL: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "Qwen3.6-35B": (RECIPE_35B, QWEN_NVFP4, {}, ["SPK512", "SPK607", "SPKK04"]),
    "Nemotron-3-Super": (
        RECIPE_SUPER,
        NEMOTRON_NANO,
        {"env": {"VLLM_FLOAT32_MATMUL_PRECISION": "high", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        ["SPK510", "SPK511", "SPKK04"],
    ),
    "Qwen3.6-27B, node 0": (
        RECIPE_PAIR.format(rank=0),
        {**QWEN36_27B, "quantization_config": MODELOPT},
        {"env": PAIR_ENV, "docker_args": shlex.split(PAIR_DOCKER)},
        ["SPK511", "SPK907"],
    ),
    "Qwen3.6-27B, node 1": (
        RECIPE_PAIR.format(rank=1) + " --headless",
        {**QWEN36_27B, "quantization_config": MODELOPT},
        {"env": PAIR_ENV, "docker_args": shlex.split(PAIR_DOCKER)},
        ["SPK511", "SPK907"],
    ),
    "Gemma 4": (
        """google/gemma-4-26B-A4B-it --gpu-memory-utilization 0.8 --enable-auto-tool-choice --tool-call-parser gemma4
        --reasoning-parser gemma4 --speculative-config
        '{"method":"mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}'""",
        GEMMA4_26B,
        {"env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
        [],
    ),
    "Ray on two Sparks": (
        """vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 2 --gpu-memory-utilization 0.8
        --distributed-executor-backend ray""",
        {"architectures": ["LlamaForCausalLM"]},
        {
            "image": "nvcr.io/nvidia/vllm:26.02-py3",
            "env": {"VLLM_HOST_IP": "192.168.100.10", "RAY_memory_monitor_refresh_ms": "0"},
        },
        ["SPK808", "SPK822", "SPK826"],
    ),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_recipe(name: str) -> None:
    text, config, facts, expected = OFFICIAL[name]
    result = check_launch({"image": SPARK_IMAGE, "argv": shlex.split(text), "model": {"config": config}, **facts})
    assert result["compatible"] is True
    assert rules(result["findings"]) == expected
    assert result["fixed"]["changes"] == []
