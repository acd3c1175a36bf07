"""The rules: each has a launch that fires it and a launch that does not; correct launches pass."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import (
    LAUNCH_RULES,
    RULES,
    check_launch,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.rulebook import FAMILIES
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, nccl_data

NGC_1904 = "nvcr.io/nvidia/vllm:26.04-py3"
NGC_2608 = "nvcr.io/nvidia/vllm:26.08-py3"
HUB_24 = "vllm/vllm-openai:v0.24.0-ubuntu2404"
GEMMA_0505 = "vllm/vllm-openai:gemma4-0505-arm64-cu130"

QWEN36 = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "num_experts": 256,
    },
}
QWEN36_NVFP4 = {
    **QWEN36,
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "mtp.layers.0*", "mtp*"],
    },
}
QWEN36_COMPRESSED = {
    **QWEN36,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "ignore": ["re:.*mtp.*", "lm_head"],
    },
}
QWEN_NEXT_FP8 = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "max_position_embeddings": 262144,
    "num_experts": 512,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
QWEN3_4B = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 262144}
QWEN3_8B = {**QWEN3_4B, "max_position_embeddings": 40960}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "max_position_embeddings": 40960,
    "num_experts": 128,
}
DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_experts": 0}
MIXTURE = {**QWEN3_MOE, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768}
GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": {"max_position_embeddings": 262144, "num_experts": 128},
}
GEMMA4_NVFP4 = {**GEMMA4, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"},
}

NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEM*E",
    "n_routed_experts": 128,
}
OMNI = {"architectures": ["NemotronH_Nano_Omni_Reasoning_V3"], "model_type": "NemotronH_Nano_Omni_Reasoning_V3"}
MINIMAX_M3 = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl"}
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 512}
YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262144}}
LOADER = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py"
DUO_HEAD = {"tensor-parallel-size": 2, "nnodes": 2, "node-rank": 0, "master-addr": "192.168.100.10"}
DUO_ARGV = ["M", "-tp", "2", "--nnodes", "2", "--node-rank", "0", "--master-addr", "192.168.100.10"]

# What the source documents run, word for word.
QWEN36_ARGV = [
    "vllm",
    "serve",
    "RedHatAI/Qwen3.6-35B-A3B-NVFP4",
    "--tokenizer",
    "Qwen/Qwen3.6-35B-A3B",
    "--quantization",
    "compressed-tensors",
    "--kv-cache-dtype",
    "fp8",
    "--trust-remote-code",
    "--max-model-len",
    "131072",
    "--gpu-memory-utilization",
    "0.55",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "qwen3_coder",
    "--reasoning-parser",
    "qwen3",
    "--speculative-config",
    '{"method":"mtp","num_speculative_tokens":2}',
    "--enable-prefix-caching",
    "--max-num-batched-tokens",
    "8192",
    "--host",
    "0.0.0.0",
    "--port",
    "8000",
]
GEMMA4_ARGV = [
    "google/gemma-4-26B-A4B-it",
    "--quantization",
    "fp8",
    "--kv-cache-dtype",
    "fp8",
    "--trust-remote-code",
    "--max-model-len",
    "65536",
    "--gpu-memory-utilization",
    "0.80",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
    "--speculative-config",
    '{"method":"mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4}',
    "--enable-prefix-caching",
    "--host",
    "0.0.0.0",
    "--max-num-batched-tokens",
    "8192",
    "--port",
    "8000",
]


def launch(image: str = NGC_1904, args: Any = None, config: Any = None, repo: str = "org/model", **more: Any) -> Any:
    """Build the parameters of one launch; a list as args is an argv."""
    params: dict[str, Any] = {"image": image, "model": {"repo": repo, "config": config or {}}, **more}
    params["argv" if isinstance(args, list) else "args"] = args or {}
    return params


def version(release: str, args: Any = None, config: Any = None, **more: Any) -> Any:
    """A launch in an image of which only the version matters."""
    return launch("example.org/vllm:1", args, config, vllm_version=release, entrypoint="serve", **more)


def spec(**keys: Any) -> dict[str, Any]:
    """Options with only a speculative configuration."""
    return {"speculative-config": {"num_speculative_tokens": 2, **keys}}


def nccl(library: str, release: str) -> dict[str, Any]:
    """Return the parameters of an image that reported this NCCL."""
    return {"image": NGC_1904, "nccl": {"library": library, "version": release}}


SPIN_KNOB = {"image": "example.org/*", "features": ["SHM_BROADCAST_BUSY_LOOP_S"]}

# rule: (a launch that fires it, a launch next to it that does not)
CASES: dict[str, tuple[Any, Any]] = {
    "SPK101": (version("0.19.0", {"swap-space": 4}), version("0.17.1", {"swap-space": 4})),
    "SPK102": (launch(args=["M", "--enforce-eager", "true"]), launch(args=["M", "--enforce-eager"])),
    "SPK103": (launch(HUB_24, ["vllm", "serve", "M"]), launch(NGC_1904, ["vllm", "serve", "M"])),
    "SPK104": (launch(args={"max-num-seqs": "many"}), launch(args={"max-num-seqs": "8"})),
    "SPK105": (launch(args={"max-num": 8}), launch(args={"max-num-s": 8})),
    "SPK106": (launch(args={"port": 1}, refuse_service_keys=True), launch(args={"port": 8001})),
    "SPK107": (launch(args=["--model", "M"]), launch(args=["M"])),
    "SPK108": (version("0.33.0", {"dtype": "fp7"}), version("0.33.0", {"dtype": "bfloat16"})),
    "SPK109": (launch(args={"speculative-disable-by-batch-size": 32}), launch(args=spec(method="ngram"))),
    "SPK110": (launch("example.org/vllm:1", {"fork-only": 1}), version("0.19.0", {"fork-only": 1})),
    "SPK113": (
        launch("example.org/vllm:1", {"attention-backend": "B12X_MLA_SPARSE"}),
        launch("example.org/vllm:1", {"attention-backend": "FLASHINFER"}),
    ),
    "SPK111": (
        version("0.23.0", {"kernel-config": {"moe_backend_x": "auto"}}),
        version("0.23.0", {"kernel-config": {"moe_backend": "auto"}}),
    ),
    "SPK112": (launch(args={"config": "/etc/vllm.yaml"}), launch(args={"max-model-len": 1024})),
    "SPK201": (launch(env={"VLLM_USE_V1": "1"}), version("0.11.0", env={"VLLM_USE_V1": "1"})),
    "SPK202": (
        launch(env={"VLLM_FLASHINFER_MOE_BACKEND": "latency"}),
        launch(env={"VLLM_FLASHINFER_MOE_BACKEND": "throughput", "VLLM_USE_FLASHINFER_MOE_FP4": "1"}),
    ),
    "SPK203": (
        launch(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
        version("0.13.0", env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
    ),
    "SPK204": (
        version("0.23.0", env={"VLLM_USE_FLASHINFER_MOE_FP4": "1"}),
        version("0.21.0", env={"VLLM_USE_FLASHINFER_MOE_FP4": "1"}),
    ),
    "SPK205": (
        version("0.31.0", spec(method="ngram"), env={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
        version("0.32.0", spec(method="ngram"), env={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    ),
    "SPK206": (
        version("0.19.0", {"fail-on-environ-validation": True}, env={"VLLM_USE_V1": "1"}),
        version("0.19.0", {"fail-on-environ-validation": True}, env={"VLLM_CACHE_ROOT": "/c"}),
    ),
    "SPK301": (launch("vllm/vllm-openai:v0.31.0-cu129"), launch("vllm/vllm-openai:v0.31.0")),
    "SPK302": (launch("vllm/vllm-openai:latest"), launch(f"vllm/vllm-openai:latest@sha256:{'0' * 64}")),
    "SPK303": (launch("vllm/vllm-openai:v0.28.0rc2"), launch("vllm/vllm-openai:v0.28.0")),
    "SPK304": (launch("nvcr.io/nvidia/vllm:26.06-py3"), launch("nvcr.io/nvidia/vllm:26.05-py3")),
    "SPK305": (
        launch("nvcr.io/nvidia/vllm:26.07-py3"),
        launch("nvcr.io/nvidia/vllm:26.07-py3", {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}),
    ),
    "SPK306": (launch("example.org/vllm:1"), launch("example.org/vllm:1", entrypoint="serve")),
    "SPK307": (launch("example.org/vllm:1"), version("0.19.0")),
    "SPK308": (launch(HUB_24, driver_version="570.124.06"), launch(HUB_24, driver_version="580.159.03")),
    "SPK309": (launch(NGC_2608, driver_version="580.142"), launch(NGC_2608, driver_version="615.65.02")),
    "SPK310": (launch(NGC_1904, entrypoint="serve"), launch(NGC_1904)),
    "SPK311": (version("0.11.0"), version("0.11.1")),
    "SPK401": (version("0.16.0", config=QWEN36), version("0.17.0", config=QWEN36)),
    "SPK402": (
        launch(args={"quantization": "modelopt"}, config=QWEN36_COMPRESSED),
        launch(args={"quantization": "modelopt"}, config=QWEN36_NVFP4),
    ),
    "SPK403": (
        launch(args={"max-model-len": "64K"}, config=QWEN3_8B),
        launch(args={"max-model-len": "64K"}, config=QWEN3_8B, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
    ),
    "SPK418": (
        launch(args={"max-model-len": "64K"}, config=QWEN3_8B, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
        launch(args={"max-model-len": "32K"}, config=QWEN3_8B, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
    ),
    "SPK404": (
        version("0.28.0", {"quantization": "bitsandbytes"}),
        version("0.27.1", {"quantization": "bitsandbytes"}),
    ),
    "SPK405": (version("0.19.0", config=GEMMA4_NVFP4), version("0.20.0", config=GEMMA4_NVFP4)),
    "SPK417": (
        version("0.33.0", {"enable-lora": True}, config=MINIMAX_M3),
        version("0.33.0", {"enable-lora": True}, config=QWEN3_8B),
    ),
    "SPK501": (
        launch(args={"attention-backend": "flash_attn", "kv-cache-dtype": "fp8"}),
        launch(args={"attention-backend": "flashinfer", "kv-cache-dtype": "fp8"}),
    ),
    "SPK502": (version("0.31.0", {"kv-cache-dtype": "nvfp4"}), version("0.32.0", {"kv-cache-dtype": "nvfp4"})),
    "SPK503": (
        launch(args={"moe-backend": "flashinfer_trtllm"}, config=QWEN36_NVFP4),
        launch(args={"moe-backend": "flashinfer_cutlass"}, config=QWEN36_NVFP4),
    ),
    "SPK504": (
        launch(args={"moe-backend": "marlin", **spec(method="mtp")}, config=QWEN36_NVFP4),
        launch(args={"moe-backend": "marlin", **spec(method="mtp", moe_backend="triton")}, config=QWEN36_NVFP4),
    ),
    "SPK505": (version("0.28.0", {"moe-backend": "b12x"}), version("0.29.0", {"moe-backend": "b12x"})),
    "SPK506": (
        version("0.24.0", {"attention-backend": "FLASHINFER"}, GPT_OSS),
        version("0.28.0", {"attention-backend": "FLASHINFER"}, GPT_OSS),
    ),
    "SPK507": (
        version("0.24.0", {"kv-cache-dtype": "int4_per_token_head"}),
        version("0.27.1", {"kv-cache-dtype": "int4_per_token_head"}),
    ),
    "SPK601": (
        version("0.19.0", spec(method="dflash", model="z-lab/draft")),
        version("0.20.0", spec(method="dflash", model="z-lab/draft")),
    ),
    "SPK602": (version("0.19.1", spec(method="mtp"), GEMMA4), launch(GEMMA_0505, spec(method="mtp"), GEMMA4)),
    "SPK603": (
        launch(GEMMA_0505, spec(method="draft_model", model="google/gemma-4-26B-A4B-it-assistant"), GEMMA4),
        launch(GEMMA_0505, spec(method="mtp", model="google/gemma-4-26B-A4B-it-assistant"), GEMMA4),
    ),
    "SPK604": (
        version("0.17.0", spec(method="mtp", disable_by_batch_size=8)),
        version("0.16.0", spec(method="mtp", disable_by_batch_size=8)),
    ),
    "SPK605": (
        version("0.23.0", {"kv-cache-dtype": "fp8", **spec(method="dflash")}),
        version("0.24.0", {"kv-cache-dtype": "fp8", **spec(method="dflash")}),
    ),
    "SPK606": (launch(args=spec(method="suffix")), launch(args=spec(method="ngram"))),
    "SPK607": (
        launch(args=spec(method="mtp", num_speculative_tokens=3), config=QWEN36),
        launch(args=spec(method="mtp", num_speculative_tokens=1), config=QWEN36),
    ),
    "SPK608": (version("0.14.1", spec(method="draft_model")), version("0.15.1", spec(method="draft_model"))),
    "SPK701": (
        launch(args={"enable-auto-tool-choice": True, "tool-call-parser": "nemotron_v3"}),
        launch(
            args={"enable-auto-tool-choice": True, "tool-call-parser": "nemotron_v3", "tool-parser-plugin": "/p.py"}
        ),
    ),
    "SPK702": (
        version("0.17.0", {"reasoning-parser": "nemotron_v3"}),
        version("0.17.1", {"reasoning-parser": "nemotron_v3"}),
    ),
    "SPK703": (
        launch(args={"enable-auto-tool-choice": True}),
        launch(args={"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}),
    ),
    "SPK704": (
        launch(GEMMA_0505, {"tool-call-parser": "hermes"}, GEMMA4),
        launch(GEMMA_0505, {"tool-call-parser": "gemma4"}, GEMMA4),
    ),
    "SPK705": (
        launch(
            args={"enable-auto-tool-choice": True, "tool-call-parser": "hermes"},
            repo="Qwen/Qwen3-Next-80B-A3B-Thinking-FP8",
        ),
        launch(
            args={"enable-auto-tool-choice": True, "tool-call-parser": "hermes"},
            repo="Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",
        ),
    ),
    "SPK706": (
        launch(args={"tool-call-parser": "hermes"}),
        launch(args={"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}),
    ),
    "SPK801": (launch(args=["M", "-tp", "2"]), launch(args=["M", "-tp", "2"], nodes=2, executor="mp")),
    "SPK802": (
        launch(args=["M", "-tp", "2"], nodes=2, executor="ray"),
        launch("nvcr.io/nvidia/vllm:25.11-py3", ["M", "-tp", "2"], nodes=2, executor="ray"),
    ),
    "SPK803": (
        version("0.24.0", {"nnodes": 2, "distributed-executor-backend": "ray"}),
        version("0.24.0", {"nnodes": 2, "distributed-executor-backend": "mp"}),
    ),
    "SPK804": (launch(env={"NCCL_IB_GID_INDEX": 3}), launch(env={"NCCL_IB_HCA": "rocep1s0f0"})),
    "SPK805": (launch(args=["M", "-tp", "2"], nodes=2), launch(args=["M", "-tp", "2", "-n", "2"], nodes=2)),
    "SPK806": (launch(args=["M", "-ep"]), launch(args=["M", "-ep", "-tp", "2"], nodes=2)),
    "SPK807": (
        version("0.11.0", ["M", "-tp", "2"], nodes=2, executor="mp"),
        version("0.12.0", ["M", "-tp", "2"], nodes=2, executor="mp"),
    ),
    "SPK901": (launch(args={"gpu-memory-utilization": 80}), launch(args={"gpu-memory-utilization": 1.0})),
    "SPK902": (launch(args={"gpu-memory-utilization": 0.95}), launch(args={"gpu-memory-utilization": 0.9})),
    "SPK903": (
        launch(args={"enable-prefix-caching": True}, config=QWEN36),
        launch(args={"enable-prefix-caching": True, "max-num-batched-tokens": 8192}, config=QWEN36),
    ),
    "SPK904": (
        launch(args={"kv-cache-memory-bytes": "8G"}),
        launch(args={"kv-cache-memory-bytes": "8G", "max-num-seqs": 8}),
    ),
    "SPK905": (launch(args={"enable-sleep-mode": True}), launch(args={"enable-sleep-mode": False})),
    "SPK906": (launch(args={"cpu-offload-gb": 8}), launch(args={"cpu-offload-gb": 0})),
    "SPK207": (
        version("0.31.0", spec(method="dspark", model="d"), env={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        version("0.30.0", spec(method="dspark", model="d"), env={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    ),
    "SPK208": (
        launch(env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"}),
        launch(args={"moe-backend": "marlin"}, env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"}),
    ),
    "SPK209": (
        version("0.23.0", env={"VLLM_USE_DEEP_GEMM": "0"}),
        version("0.24.0", env={"VLLM_USE_DEEP_GEMM": "0"}),
    ),
    "SPK210": (launch(env={"CUTE_DSL_ARCH": "sm_100a"}), launch(env={"CUTE_DSL_ARCH": "sm_121a"})),
    "SPK211": (launch(env={"CUDA_VISIBLE_DEVICES": "1"}), launch(env={"CUDA_VISIBLE_DEVICES": "0"})),
    "SPK212": (
        version(
            "0.33.0",
            {"kv-transfer-config": {"kv_connector": "NixlConnector"}},
            env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        ),
        version("0.33.0", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ),
    "SPK213": (launch(env={"VLLM_DISABLE_COMPILE_CACHE": "1"}), launch(env={"VLLM_DISABLE_COMPILE_CACHE": "0"})),
    "SPK214": (
        version("0.24.0", {"attention-config": {"flash_attn_version": 3}}),
        version("0.24.0", {"attention-config": {"flash_attn_version": 2}}),
    ),
    "SPK312": (
        version("0.26.0", {"attention-backend": "FLASHINFER"}),
        version("0.25.0", {"attention-backend": "FLASHINFER"}),
    ),
    "SPK313": (launch("eugr/spark-vllm:nightly-20261101"), launch(HUB_24)),
    "SPK315": (
        launch(catalogue=[{"image": NGC_1904, "caches": {"TRITON_CACHE_DIR": "/opt/triton"}}]),
        launch(
            catalogue=[{"image": NGC_1904, "caches": {"TRITON_CACHE_DIR": "/opt/triton"}}],
            env={"TRITON_CACHE_DIR": "/opt/triton"},
        ),
    ),
    "SPK406": (version("0.24.0", {"load-format": "gguf"}), version("0.23.0", {"load-format": "gguf"})),
    "SPK407": (
        version("0.19.0", {"load-format": "fastsafetensors"}),
        version("0.20.0", {"load-format": "fastsafetensors"}),
    ),
    "SPK408": (launch(args={"load-format": "dummy"}), launch(args={"load-format": "auto"})),
    "SPK409": (version("0.24.0", repo="/m/a.gguf"), version("0.23.0", repo="/m/a.gguf")),
    "SPK410": (
        version("0.15.1", {"quantization": "bitblas"}),
        version("0.15.1", {"quantization": "bitblas", "allow-deprecated-quantization": True}),
    ),
    "SPK411": (
        launch(HUB_24, {"limit-mm-per-prompt": {"audio": 1}}),
        launch(HUB_24, {"limit-mm-per-prompt": {"image": 1}}),
    ),
    "SPK412": (
        launch(args={"hf-overrides": {"architectures": ["NemotronH_Nano_VL_V2"]}}, config=OMNI),
        launch(args={"hf-overrides": {"architectures": ["NemotronH_Nano_VL_V2"]}}, repo="nvidia/Nemotron-Nano-VL"),
    ),
    "SPK413": (
        launch(GEMMA_0505, {"tensor-parallel-size": 2}, GEMMA4_NVFP4, nodes=2, executor="mp"),
        launch(GEMMA_0505, {"tensor-parallel-size": 2}, GEMMA4, nodes=2, executor="mp"),
    ),
    "SPK414": (launch(args={"hf-overrides": YARN}), launch(args={"hf-overrides": {"rope_theta": 1000000}})),
    "SPK415": (
        launch(args={"hf-overrides": YARN, "max-model-len": 1100000}),
        launch(args={"hf-overrides": YARN, "max-model-len": 1010000}),
    ),
    "SPK508": (
        version("0.24.0", {"attention-backend": "FLASH_ATTN"}, {"head_dim": 256, "global_head_dim": 512}),
        version("0.24.0", {"attention-backend": "FLASHINFER"}, {"head_dim": 256, "global_head_dim": 512}),
    ),
    "SPK509": (
        version("0.19.0", {"attention-backend": "TURBOQUANT"}),
        version("0.20.0", {"attention-backend": "TURBOQUANT"}),
    ),
    "SPK519": (version("0.24.0", {"linear-backend": "b12x"}), version("0.28.0", {"linear-backend": "b12x"})),
    "SPK510": (
        launch(config=QWEN36_NVFP4),
        launch(args={"moe-backend": "marlin"}, config=QWEN36_NVFP4),
    ),
    "SPK511": (
        launch(args={"attention-backend": "flashinfer"}, config=QWEN36),
        launch(args={"attention-backend": "flashinfer"}, config=QWEN3_MOE),
    ),
    "SPK512": (
        launch(args={"kv-cache-dtype": "fp8"}, config=QWEN36_COMPRESSED),
        launch(
            args={"kv-cache-dtype": "fp8"},
            config={**QWEN36, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}},
        ),
    ),
    "SPK513": (
        version("0.33.0", {"kv-cache-dtype": "nvfp4"}, GEMMA4),
        version("0.33.0", {"kv-cache-dtype": "nvfp4"}, QWEN36),
    ),
    "SPK514": (
        version("0.33.0", {"kv-cache-dtype": "nvfp4"}, {**GPT_OSS, "head_dim": 64}),
        version("0.33.0", {"kv-cache-dtype": "nvfp4"}, {**QWEN3_4B, "head_dim": 128}),
    ),
    "SPK515": (
        version("0.27.1", {"kv-cache-dtype": "turboquant_4bit_nc", "attention-backend": "FLASHINFER"}),
        version("0.27.1", {"kv-cache-dtype": "turboquant_4bit_nc", "attention-backend": "TURBOQUANT"}),
    ),
    "SPK516": (
        version("0.17.1", {"kv-cache-dtype": "fp8"}, DEEPSEEK),
        version("0.18.0", {"kv-cache-dtype": "fp8"}, DEEPSEEK),
    ),
    "SPK517": (
        version("0.23.0", config={**DEEPSEEK, "index_topk": 2048}),
        version("0.24.0", config={**DEEPSEEK, "index_topk": 2048}),
    ),
    "SPK518": (
        version("0.24.0", {"attention-backend": "FLASHINFER"}, {"model_type": "gemma3"}),
        version("0.24.0", {"attention-backend": "TRITON_ATTN"}, {"model_type": "gemma3"}),
    ),
    "SPK520": (
        version("0.30.0", {"attention-backend": "B12X"}),
        version("0.30.0", {"attention-backend": "FLASHINFER"}),
    ),
    "SPK521": (
        launch(args={"attention-backend": "FLASHMLA"}, config=DEEPSEEK),
        launch(args={"attention-backend": "TRITON_MLA"}, config=DEEPSEEK),
    ),
    "SPK522": (
        launch(args={"enable-chunked-prefill": True}, config=NEMOTRON),
        launch(args={"enable-chunked-prefill": True}, config=QWEN36),
    ),
    "SPK523": (launch(args={"enforce-eager": True}), launch(args={"enforce-eager": False})),
    "SPK609": (
        version("0.24.0", spec(method="dflash", model="z-lab/draft"), QWEN36_NVFP4),
        version("0.24.0", spec(method="dflash", model="z-lab/draft"), QWEN36),
    ),
    "SPK610": (
        version("0.24.0", spec(method="dflash", model="z-lab/Qwen3.6-27B-DFlash"), repo="Qwen/Qwen3.6-35B-A3B"),
        version("0.24.0", spec(method="dflash", model="z-lab/Qwen3.6-35B-A3B-DFlash"), repo="Qwen/Qwen3.6-35B-A3B"),
    ),
    "SPK611": (version("0.24.0", spec(method="eagle3")), version("0.24.0", spec(method="eagle3", model="d"))),
    "SPK612": (
        launch(args={"speculative-config": {"method": "ngram"}}),
        launch(args={"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}}),
    ),
    "SPK613": (
        launch(args=spec(method="ngram", prompt_lookup_min=5, prompt_lookup_max=2)),
        launch(args=spec(method="ngram", prompt_lookup_min=2, prompt_lookup_max=5)),
    ),
    "SPK614": (
        version("0.23.0", spec(method="dflash", model="d", attention_backend="TRITON_ATTN")),
        version("0.24.0", spec(method="dflash", model="d", attention_backend="TRITON_ATTN")),
    ),
    "SPK615": (
        version("0.24.0", spec(method="mtp"), GEMMA4),
        version("0.24.0", spec(method="mtp", model="google/gemma-4-26B-A4B-it-assistant"), GEMMA4),
    ),
    "SPK616": (
        version("0.24.0", spec(method="dflash", model="d", num_speculative_tokens=3)),
        version("0.24.0", spec(method="dflash", model="d", num_speculative_tokens=7)),
    ),
    "SPK617": (
        version("0.24.0", {"max-num-seqs": 16, **spec(method="mtp")}, QWEN36),
        version("0.24.0", {"max-num-seqs": 8, **spec(method="mtp")}, QWEN36),
    ),
    "SPK618": (
        version("0.26.0", spec(method="mtp"), {**QWEN36, "text_config": {"dspark_block_size": 5}}),
        version("0.26.0", spec(method="dspark"), {**QWEN36, "text_config": {"dspark_block_size": 5}}),
    ),
    "SPK416": (
        version("0.24.0", {"allowed-local-media-path": "/media/"}, docker_args=["--volume", "/srv/pictures:/pictures"]),
        version("0.24.0", {"allowed-local-media-path": "/media/"}, docker_args=["--volume", "/srv/media:/media:ro"]),
    ),
    "SPK707": (
        launch(GEMMA_0505, {"tool-call-parser": "pythonic"}, GEMMA4),
        launch(GEMMA_0505, {"tool-call-parser": "gemma4"}, GEMMA4),
    ),
    "SPK708": (
        launch(GEMMA_0505, {"reasoning-parser": "qwen3"}, GEMMA4),
        launch(GEMMA_0505, {"reasoning-parser": "gemma4"}, GEMMA4),
    ),
    "SPK709": (
        launch(args={"enable-auto-tool-choice": True, "tool-call-parser": "qwen3_xml"}, config=QWEN36),
        launch(
            args={"enable-auto-tool-choice": True, "tool-call-parser": "qwen3_xml", "reasoning-parser": "qwen3"},
            config=QWEN36,
        ),
    ),
    "SPK710": (
        launch(args={"reasoning-parser-plugin": "/p.py"}),
        launch(args={"reasoning-parser-plugin": "/p.py", "reasoning-parser": "nano_v3"}),
    ),
    "SPK808": (
        launch("nvcr.io/nvidia/vllm:26.02-py3", {"tensor-parallel-size": 2}, nodes=2, executor="ray"),
        launch("nvcr.io/nvidia/vllm:25.11-py3", {"tensor-parallel-size": 2}, nodes=2, executor="ray"),
    ),
    "SPK809": (launch(args={"headless": True, "api-server-count": 1}), launch(args={"headless": True})),
    "SPK810": (launch(args=DUO_HEAD | {"tensor-parallel-size": 1}), launch(args=DUO_HEAD)),
    "SPK811": (launch(args=DUO_HEAD | {"node-rank": 1}), launch(args=DUO_HEAD | {"node-rank": 1, "headless": True})),
    "SPK812": (launch(args=DUO_HEAD | {"headless": True}), launch(args=DUO_HEAD)),
    "SPK813": (launch(args={"tensor-parallel-size": 2, "nnodes": 2}), launch(args=DUO_HEAD)),
    "SPK814": (launch(args=DUO_HEAD | {"node-rank": 2}), launch(args=DUO_HEAD | {"node-rank": 1})),
    "SPK815": (
        launch(args={"distributed-executor-backend": "mpi"}),
        launch(args={"distributed-executor-backend": "mp"}),
    ),
    "SPK816": (launch(env={"NCCL_IB_HCA": "enp1s0f0np0"}), launch(env={"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"})),
    "SPK817": (
        launch(args=DUO_HEAD, env={"NCCL_IB_HCA": "rocep1s0f1"}),
        launch(args=DUO_HEAD, env={"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1"}),
    ),
    "SPK818": (launch(env={"GLOO_SOCKET_IFNAME": "rocep1s0f0"}), launch(env={"GLOO_SOCKET_IFNAME": "enp1s0f0np0"})),
    "SPK819": (launch(env={"NCCL_IB_DISABLE": "1"}), launch(env={"NCCL_IB_DISABLE": "0"})),
    "SPK820": (launch(args=DUO_ARGV), launch(args=DUO_ARGV, env={"VLLM_HOST_IP": "192.168.100.10"})),
    "SPK821": (
        launch(args=["M", "-tp", "2", "--distributed-executor-backend", "ray"]),
        launch(
            args=["M", "-tp", "2", "--distributed-executor-backend", "ray"], env={"RAY_memory_monitor_refresh_ms": "0"}
        ),
    ),
    "SPK822": (launch(args=DUO_ARGV), launch(args=DUO_ARGV, env={"NCCL_NET_PLUGIN": "none"})),
    "SPK823": (
        version("0.24.0", {"device-ids": "0", "distributed-executor-backend": "ray"}),
        version("0.24.0", {"device-ids": "0"}),
    ),
    "SPK824": (launch(args={"master-addr": "10.0.0.1"}), launch(args=DUO_HEAD)),
    "SPK825": (
        launch(args={"data-parallel-size": 2}),
        launch(args={"data-parallel-size": 2, "data-parallel-size-local": 1}, nodes=2),
    ),
    "SPK830": (
        launch(args=DUO_HEAD | {"data-parallel-size": 2, "nnodes": 4}, config=DENSE, nodes=4),
        launch(args=DUO_HEAD | {"data-parallel-size": 2, "nnodes": 4}, config=QWEN36, nodes=4),
    ),
    "SPK831": (
        launch(args={"enable-expert-parallel": True, "tensor-parallel-size": 2}, config=DENSE, nodes=2),
        launch(args={"enable-expert-parallel": True, "tensor-parallel-size": 2}, config=QWEN36, nodes=2),
    ),
    "SPK832": (
        launch(args={"data-parallel-size": 5}, config=MIXTURE, nodes=5),
        launch(args={"data-parallel-size": 5, "enable-expert-parallel": True}, config=MIXTURE, nodes=5),
    ),
    "SPK826": (launch(args=DUO_ARGV), launch(args=DUO_ARGV, env={"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"})),
    "SPK827": (
        launch(args={"tensor-parallel-size": 2}, nodes=2, catalogue=[nccl("pip", "2.28.9")]),
        launch(args={"tensor-parallel-size": 2}, nodes=2, catalogue=[nccl("system", "2.28.9")]),
    ),
    "SPK828": (
        version("0.31.0", {"tensor-parallel-size": 2}, docker_args=["-v", "/srv/cache:/root/.cache/vllm"]),
        version("0.31.0", {"tensor-parallel-size": 2}, docker_args=["-v", "/srv/hf:/root/.cache/huggingface"]),
    ),
    "SPK829": (
        version("0.28.0", {"tensor-parallel-size": 2}, catalogue=[SPIN_KNOB]),
        version("0.28.0", {"tensor-parallel-size": 1}, catalogue=[SPIN_KNOB]),
    ),
    "SPK907": (
        version("0.27.1", config=QWEN36),
        version("0.28.0", config=QWEN36),
    ),
    "SPK908": (
        launch(args={"enable-chunked-prefill": False, "max-num-batched-tokens": 8192, "max-model-len": 16384}),
        launch(args={"enable-chunked-prefill": True, "max-num-batched-tokens": 8192, "max-model-len": 16384}),
    ),
    "SPK909": (
        launch(args={"max-num-batched-tokens": 128, "max-num-seqs": 256}),
        launch(args={"max-num-batched-tokens": 256, "max-num-seqs": 256}),
    ),
    "SPK910": (launch(args=["M"]), launch(args={})),
    "SPK912": (version("0.32.0", {"mamba-cache-mode": "all"}), version("0.31.0", {"mamba-cache-mode": "all"})),
    "SPK913": (
        launch(args=["M", "--kv-cache-memory-bytes", "8G"]),
        launch(args=["M", "--kv-cache-memory-bytes", "8G", "--gpu-memory-utilization", "0.3"]),
    ),
    "SPK914": (version("0.17.1", {"swap-space": 4}), version("0.11.0", {"swap-space": 4})),
    "SPK915": (
        launch(args={"enable-chunked-prefill": False}),
        launch(args={"enable-chunked-prefill": False, "runner": "pooling"}),
    ),
    "SPK314": (
        version("0.19.0", packages=["transformers==5.6.0"]),
        version("0.19.1", packages=["transformers==5.6.0"]),
    ),
    "SPKH01": (
        launch(HUB_24, config=GEMMA4_NVFP4, docker_args=["-v", f"/p.py:{LOADER}"]),
        launch("vllm/vllm-openai:gemma4-cu130", config=GEMMA4_NVFP4, docker_args=["-v", f"/p.py:{LOADER}"]),
    ),
    "SPKH02": (
        launch("vllm/vllm-openai:gemma4-cu130", docker_args=["-v", f"/p.py:{LOADER}"]),
        launch("vllm/vllm-openai:gemma4-cu130", docker_args=["-v", "/srv/models:/models"]),
    ),
    "SPKH03": (
        launch(args={"host": "127.0.0.1"}, docker_args=["-p", "8000:8000"]),
        launch(args={"host": "127.0.0.1"}, docker_args=["--network", "host"]),
    ),
    "SPKH04": (
        launch(args=DUO_HEAD, docker_args=["--gpus", "all"]),
        launch(args=DUO_HEAD, docker_args=["--gpus", "all", "--network=host"]),
    ),
    "SPKH05": (
        launch(args=DUO_HEAD, docker_args=["--net", "host"]),
        launch(args=DUO_HEAD, docker_args=["--net", "host", "--privileged"]),
    ),
    "SPKH06": (
        launch(args={"tensor-parallel-size": 2}, docker_args=["--gpus", "all"]),
        launch(args={"tensor-parallel-size": 2}, docker_args=["--gpus", "all", "--ipc=host"]),
    ),
    "SPKH07": (launch(docker_args=["--shm-size", "64g"]), launch(docker_args=["--shm-size", "32gb"])),
    "SPKH08": (
        launch(args={"load-format": "b12x"}, docker_args=["--ipc", "host"]),
        launch(args={"load-format": "b12x"}, docker_args=["--ipc", "host", "--security-opt", "seccomp=/p.json"]),
    ),
    "SPKH09": (
        launch("vllm/vllm-openai:v0.27.0", args={"kv-offloading-size": 10}, docker_args=["--shm-size", "8g"]),
        launch("vllm/vllm-openai:v0.27.0", args={"kv-offloading-size": 10}, docker_args=["--shm-size", "11g"]),
    ),
}


# Options of docker, pip and others that a fix may name.
NOT_VLLMS = {"ipc", "shm-size", "network", "device", "ulimit", "privileged", "memory", "security-opt"}


def fired(params: Any) -> dict[str, dict[str, Any]]:
    return {finding["rule"]: finding for finding in check_launch(params)["findings"]}


def test_every_rule_has_both_cases() -> None:
    # Reported failures have theirs in test_known_failures.py.
    assert sorted(CASES) == [rule.id for rule in LAUNCH_RULES if rule.id[3] != "K"]


def test_ids_are_unique_and_in_a_family() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids)) >= 120
    assert all(rule.id[:3] == "SPK" and rule.id[3] in FAMILIES and len(rule.id) == 6 for rule in RULES)


FILES = {
    **{"1": "rules_launch", "2": "rules_launch", "3": "rules_platform", "4": "rules_model", "5": "rules_kernels"},
    **{"6": "rules_decoding", "7": "rules_decoding", "8": "rules_nodes", "9": "rules_memory"},
    **{"H": "rules_platform", "K": "rules_reported", "U": "rules_unit"},
}


def test_every_family_has_its_file() -> None:
    files = {rule.id: getattr(rule.check, "func", rule.check).__module__.rpartition(".")[2] for rule in RULES}
    assert files == {rule.id: FILES[rule.id[3]] for rule in RULES}


@pytest.mark.parametrize("rule", list(CASES))
def test_rule_fires(rule: str) -> None:
    finding = fired(CASES[rule][0])[rule]
    expected = next(candidate for candidate in RULES if candidate.id == rule)
    assert finding["severity"] == expected.severity
    assert finding["source"] == expected.source
    assert finding["message"] and finding["fix"]
    texts = " ".join(finding[key] for key in ("message", "fix", "vllm_error") if key in finding)
    assert not re.search(r"\{\w+\}|\bNone\b", texts.replace("model_max_length=None", ""))


@pytest.mark.parametrize("rule", list(CASES))
def test_rule_keeps_silent(rule: str) -> None:
    assert rule not in fired(CASES[rule][1])


@pytest.mark.parametrize("rule", list(CASES))
def test_rule_can_be_ignored(rule: str) -> None:
    assert rule not in fired({**CASES[rule][0], "ignore": [rule]})


@pytest.mark.parametrize("rule", list(CASES))
def test_repairs_end_and_bring_no_error(rule: str) -> None:
    for params in CASES[rule]:
        result = check_launch(params)
        fixed = result["fixed"]
        before, after = (
            {finding["rule"] for finding in findings if finding["severity"] == "error"}
            for findings in (result["findings"], fixed["findings"])
        )
        assert after <= before
        judged_again = check_launch({**params, "argv": None, "args": fixed["args"], "env": fixed["env"]})
        assert judged_again["fixed"]["changes"] == []
        assert judged_again["args"] == fixed["args"]


@pytest.mark.parametrize(
    "params",
    [
        launch(
            NGC_1904,
            QWEN36_ARGV,
            QWEN36_COMPRESSED,
            driver_version="590.48.01",
            env={"VLLM_FLASHINFER_MOE_BACKEND": "latency", "VLLM_USE_V1": "1"},
        ),
        launch(GEMMA_0505, GEMMA4_ARGV, GEMMA4, env={"VLLM_DISABLE_COMPILE_CACHE": "1"}),
        launch(
            NGC_1904,
            {
                "gpu-memory-utilization": 0.80,
                "max-model-len": 65536,
                "max-num-seqs": 4,
                "enable-auto-tool-choice": True,
                "tool-call-parser": "hermes",
            },
            QWEN_NEXT_FP8,
            repo="Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",
        ),
        launch(NGC_1904, {"gpu-memory-utilization": 0.10, "max-model-len": 16384, "max-num-seqs": 8}, QWEN3_4B),
        launch(
            HUB_24,
            {
                "moe-backend": "marlin",
                "load-format": "fastsafetensors",
                "enable-auto-tool-choice": True,
                "tool-call-parser": "qwen3_coder",
                "gpu-memory-utilization": 0.5,
                **spec(method="mtp", moe_backend="triton"),
            },
            QWEN36_NVFP4,
        ),
    ],
    ids=["qwen3.6", "gemma4", "80b", "4b", "recipe"],
)
def test_launches_that_are_known_to_run_have_no_error(params: Any) -> None:
    assert check_launch(params)["compatible"] is True


def test_what_the_units_of_the_pair_get_wrong() -> None:
    qwen = fired(
        launch(
            NGC_1904, QWEN36_ARGV, QWEN36_COMPRESSED, env={"VLLM_FLASHINFER_MOE_BACKEND": "latency", "VLLM_USE_V1": "1"}
        )
    )
    assert sorted(qwen) == ["SPK201", "SPK202", "SPK510", "SPK512", "SPK607", "SPKK04"]
    assert sorted(fired(launch(GEMMA_0505, GEMMA4_ARGV, GEMMA4))) == ["SPK512", "SPK704"]


def test_plain_launch_says_nothing() -> None:
    assert check_launch(launch(NGC_1904, {"max-model-len": 16384}, QWEN3_4B))["findings"] == []


def test_result_has_the_contract_of_the_module() -> None:
    result = check_launch(
        launch(NGC_1904, {"max_model_len": "16K", "async-scheduling": True, "seed": None}, repo="a/b")
    )
    assert result == {
        "compatible": True,
        "vllm_version": "0.19.0",
        "version_source": "catalogue",
        "entrypoint": "passthrough",
        "command": ["vllm", "serve", "a/b", "--async-scheduling", "--max-model-len", "16384"],
        "args": {"max-model-len": 16384, "async-scheduling": True},
        "findings": [],
        "fixed": {
            "args": {"max-model-len": 16384, "async-scheduling": True},
            "env": {},
            "command": ["vllm", "serve", "a/b", "--async-scheduling", "--max-model-len", "16384"],
            "changes": [],
            "findings": [],
        },
    }


def test_command_of_an_image_that_runs_vllm_serve_itself() -> None:
    result = check_launch(launch(HUB_24, {"max-num-seqs": 4}, repo="a/b"))
    assert result["command"] == ["a/b", "--max-num-seqs", "4"]


def test_unknown_image_is_judged_by_what_needs_no_version() -> None:
    result = check_launch(launch("example.org/vllm:1", {"swap-space": 4, "gpu-memory-utilization": 2}))
    assert (result["vllm_version"], result["version_source"]) == (None, "unknown")
    rules = {finding["rule"]: finding for finding in result["findings"]}
    assert sorted(rules) == ["SPK306", "SPK307", "SPK901"]
    # The message counts them; their ids are for who asks.
    assert "SPK401" in rules["SPK307"]["details"] and "SPK901" not in rules["SPK307"]["details"]
    assert re.search(r"so \d\d rules were not checked\.$", rules["SPK307"]["message"])


def test_option_that_nobody_knows_is_passed_on() -> None:
    result = check_launch(launch("example.org/vllm:1", {"fork-only": [1, 2]}, repo="a/b", entrypoint="serve"))
    assert result["command"] == ["a/b", "--fork-only", "1", "2"]
    assert result["compatible"] is True


def test_given_version_beats_the_catalogue_and_says_where_it_is_from() -> None:
    result = check_launch(launch(NGC_1904, vllm_version="0.24.0", version_source="probed"))
    assert (result["vllm_version"], result["version_source"]) == ("0.24.0", "probed")


def test_users_catalogue_goes_first() -> None:
    mine = {"image": "example.org/vllm:*", "vllm_version": "0.24.0", "entrypoint": "passthrough", "ray": True}
    result = check_launch(
        launch("example.org/vllm:1", {"tensor-parallel-size": 2}, catalogue=[mine], nodes=2, executor="ray")
    )
    assert (result["vllm_version"], result["entrypoint"]) == ("0.24.0", "passthrough")
    assert [finding["rule"] for finding in result["findings"]] == ["SPK808"]


def test_findings_come_errors_first() -> None:
    severities = [
        finding["severity"]
        for finding in check_launch(
            launch("vllm/vllm-openai:gemma4", {"swap-space": 1, "enable-expert-parallel": True, "cpu-offload-gb": 1})
        )["findings"]
    ]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert set(severities) == {"error", "warning", "info"}


@pytest.mark.parametrize(
    ("number", "args", "config", "refused"),
    [
        ("0.33.0", {"enable-lora": True}, {"architectures": ["KimiK25ForConditionalGeneration"]}, True),
        ("0.15.1", {"enable-lora": True}, {"architectures": ["Step3p5ForCausalLM"]}, True),
        # The transformers of the image serve any model with adapters.
        ("0.33.0", {"enable-lora": True, "model-impl": "transformers"}, MINIMAX_M3, False),
        ("0.33.0", {}, MINIMAX_M3, False),
        # Untested cases are not reported as refused: a version before the first, one after the last, another model.
        ("0.14.1", {"enable-lora": True}, {"architectures": ["KimiLinearForCausalLM"]}, False),
        ("0.99.0", {"enable-lora": True}, MINIMAX_M3, False),
        ("0.33.0", {"enable-lora": True}, {"architectures": ["OfNextYearForCausalLM"]}, False),
    ],
)
def test_adapters_are_refused_where_the_class_of_the_model_has_none(
    number: str, args: dict[str, Any], config: dict[str, Any], refused: bool
) -> None:
    assert ("SPK417" in fired(version(number, args, config=config))) is refused


def test_development_build_gets_the_benefit_of_the_doubt() -> None:
    """0.20.2rc1.dev49 may have what 0.21.0 brought, but not what 0.24.0 did."""
    assert "SPK601" not in fired(launch(GEMMA_0505, spec(method="gemma4_mtp")))
    assert "SPK401" not in fired(launch(GEMMA_0505, config={"architectures": ["LagunaForCausalLM"]}))
    assert "SPK401" in fired(launch(GEMMA_0505, config={"architectures": ["DiffusionGemmaForBlockDiffusion"]}))


@pytest.mark.parametrize(
    ("backend", "release", "config", "refused"),
    [
        ("marlin", "0.19.0", QWEN3_MOE, True),
        ("marlin", "0.33.0", QWEN3_MOE, False),
        ("deep_gemm", "0.23.0", QWEN_NEXT_FP8, True),
        ("deep_gemm", "0.24.0", QWEN_NEXT_FP8, False),
        ("deep_gemm", "0.23.0", {**QWEN_NEXT_FP8, "quantization_config": {"quant_method": "fp8"}}, False),
        ("Triton", "0.31.0", GPT_OSS, True),
        ("triton", "0.32.0", GPT_OSS, False),
        ("flashinfer-cutlass", "0.24.0", GPT_OSS, True),
        ("marlin", "0.24.0", QWEN36_NVFP4, False),
        ("flashinfer_trtllm", "0.24.0", QWEN3_4B, False),
        ("flashinfer_trtllm", "0.24.0", {}, False),
    ],
)
def test_moe_backends_on_sm_121(backend: str, release: str, config: Any, refused: bool) -> None:
    assert ("SPK503" in fired(version(release, {"moe-backend": backend}, config))) is refused


@pytest.mark.parametrize(
    ("release", "setting", "warns"),
    [
        ("0.16.0", True, False),
        ("0.17.0", True, True),
        ("0.19.0", None, False),
        ("0.25.0", True, True),
        ("0.26.0", None, False),
        ("0.26.0", True, True),
        ("0.27.0", True, False),
    ],
)
def test_hybrid_prefix_caching_by_version(release: str, setting: Any, warns: bool) -> None:
    assert ("SPK903" in fired(version(release, {"enable-prefix-caching": setting}, QWEN_NEXT_FP8))) is warns


def test_variables_of_the_ngc_images_are_not_held_against_the_user() -> None:
    env = {"VLLM_VERSION": "0.19.0", "VLLM_FLASH_ATTN_SRC_DIR": "/x", "VLLM_HOST_IP": "10.0.0.1", "NCCL_DEBUG": "INFO"}
    assert fired(launch(env=env)) == {}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "'image' must be an image reference"),
        ({"image": "a:1", "vllm_version": "nightly"}, "'vllm_version' is 'nightly'"),
        ({"image": "a:1", "args": [1]}, "'args' must be a mapping"),
        ({"image": "a:1", "argv": "vllm serve"}, "'argv' must be a list"),
        ({"image": "a:1", "args": {"x": 1}, "argv": ["M"]}, "exclude each other"),
        ({"image": "a:1", "entrypoint": "bash"}, "'entrypoint' is 'bash'"),
        ({"image": "a:1", "docker_args": "--rm"}, "'docker_args' must be a list"),
        ({"image": "a:1", "packages": "av"}, "'packages' must be a list"),
        ({"image": "a:1", "packages": 3}, "'packages' must be a list"),
        ({"image": "a:1", "ignore": "SPK101"}, "'ignore' must be a list"),
        ({"image": "a:1", "ignore": ["memory.fits", "SPK1O1"]}, "'ignore' names SPK1O1, which is no rule"),
        ({"image": "a:1", "catalogue": 1}, "'catalogue' must be a list"),
        ({"image": "a:1", "model": {"config": "x"}}, "'model.config' must be a mapping"),
        (
            {"image": "a:1", "model": {"repository": "x"}},
            "'model' has the unknown key 'repository'; known: repo, config, quant_config",
        ),
        ({"image": "a:1", "nodes": 0}, "'nodes' is 0"),
        ({"image": "a:1", "enviroment": {}}, "unknown key 'enviroment'"),
        (
            {"image": "a:1", "catalogue": [{"vllm_version": "x"}]},
            "catalogue[0] lacks 'image'",
        ),
        ({"image": "a:1", "catalogue": [{"image": "b", "vllm_version": "x"}]}, "catalogue[0]: vllm_version 'x'"),
    ],
)
def test_malformed_input_is_named(params: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_launch(params)
    assert message in str(caught.value)


def test_malformed_input_is_named_all_at_once() -> None:
    wrong = {
        "nodes": "two",
        "vllm_version": "x",
        **{key: 1 for key in ("model", "args", "env", "argv", "docker_args", "packages", "ignore", "catalogue")},
        **{key: "x" for key in ("gpu", "executor", "entrypoint", "version_source", "unheard_of")},
    }
    with pytest.raises(ValueError) as caught:
        check_launch(wrong)
    assert [key for key in ("image", *wrong) if f"'{key}'" not in str(caught.value)] == []


def test_basis_says_where_the_version_is_from() -> None:
    """Whether a variable is known follows from the version; that 2.0 is no share does not."""
    request = {"args": {"gpu-memory-utilization": 2}, "env": {"VLLM_USE_V1": "1"}}
    for source, expected in ((None, "inventory"), ("given", "inventory"), ("probed", "probed")):
        more = {"version_source": source} if source else {}
        basis = {rule: finding["basis"] for rule, finding in fired(version("0.19.0", **request, **more)).items()}
        assert basis == {"SPK201": expected, "SPK901": "inventory"}


def test_a_key_of_the_draft_is_said_once() -> None:
    """vLLM's parser refuses it too; one finding speaks for both."""
    rules = fired(version("0.24.0", spec(method="ngram", disable_by_batch_size=8)))
    assert sorted(rules) == ["SPK604"]


def test_entrypoint_of_docker_goes_before_the_catalogue() -> None:
    result = check_launch(launch(HUB_24, ["vllm", "serve", "M"], docker_args=["--entrypoint", "/bin/bash"]))
    assert result["entrypoint"] == "passthrough"
    assert "SPK103" not in {finding["rule"] for finding in result["findings"]}
    assert "SPK310" in fired(launch(NGC_1904, ["vllm", "serve", "M"], docker_args=["--entrypoint="]))


def test_a_patched_loader_answers_the_defect_that_it_is_for() -> None:
    image, config = "vllm/vllm-openai:gemma4-cu130", GEMMA4_NVFP4
    assert "SPK304" in fired(launch(image, config=config))
    assert "SPK304" not in fired(launch(image, config=config, docker_args=["-v", f"/p.py:{LOADER}"]))
    assert "SPK405" not in fired(version("0.19.0", config=config, docker_args=["-v", f"/p.py:{LOADER}"]))


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("fbgemm_fp8", "fbgemm_fp8"), ("compressed_tensors", "compressed-tensors"), ("awq-marlin", "awq_marlin")],
)
def test_a_checkpoint_may_spell_its_quantisation_either_way(spelled: str, name: str) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": spelled}}
    finding = fired(version("0.24.0", {"quantization": "mxfp4"}, config)).get("SPK402", {})
    deprecated = fired(version("0.24.0", config=config))
    if name == "fbgemm_fp8":
        assert "fbgemm_fp8" in deprecated["SPK410"]["message"]
    else:
        assert name in finding["message"] and "SPK404" not in deprecated


@pytest.mark.parametrize(
    ("rule", "packages"),
    [
        ("SPK407", ["vllm[fastsafetensors]==0.19.0"]),
        ("SPK407", ["fastsafetensors"]),
        ("SPK411", ["vllm[audio, video]"]),
        ("SPK411", ["av>=14"]),
        ("SPK520", ["b12x"]),
        ("SPK606", ["arctic_inference==0.1.1"]),
        ("SPK802", ["ray[default]>=2.9"]),
    ],
)
def test_a_package_that_is_installed_is_not_missed(rule: str, packages: list[str]) -> None:
    assert rule in fired({**CASES[rule][0], "packages": ["numpy<3"]})
    assert rule not in fired({**CASES[rule][0], "packages": packages})


@pytest.mark.parametrize(
    ("image", "package", "wrong"),
    [
        ("vllm/vllm-openai:v0.23.0", "transformers==4.57.5", False),
        ("vllm/vllm-openai:v0.24.0", "transformers==4.57.5", True),
        ("vllm/vllm-openai:v0.31.0", "transformers==5.17.0", False),
        ("vllm/vllm-openai:v0.31.0", "transformers==5.18.0", True),
        ("vllm/vllm-openai:v0.20.0", "flashinfer_python==0.6.8.post1", False),
        ("vllm/vllm-openai:v0.20.0", "flashinfer_python==0.6.8", True),
        ("nvcr.io/nvidia/vllm:26.05-py3", "flashinfer-python==0.6.10", False),
        ("vllm/vllm-openai:v0.20.0", "vllm[audio]==0.20.0", False),
        ("vllm/vllm-openai:v0.20.0", "vllm[audio]==0.21.0", True),
        ("vllm/vllm-openai:v0.20.0", "vllm[audio]", False),
        ("vllm/vllm-openai:v0.17.1", "ray==2.40.0", True),
        ("vllm/vllm-openai:v0.20.0", "ray==2.40.0", False),
        ("vllm/vllm-openai:nightly", "transformers==4.0.0", False),
    ],
)
def test_packages_that_this_vllm_was_not_released_with(image: str, package: str, wrong: bool) -> None:
    assert ("SPK314" in fired(launch(image, packages=[package]))) is wrong


@pytest.mark.parametrize(
    ("rule", "release", "more", "expected"),
    [
        # vLLM tells the method by the name of the draft model
        ("SPK605", "0.23.0", {"args": {"kv-cache-dtype": "fp8", "speculative-config": {"model": "z/X-DFlash"}}}, True),
        ("SPK605", "0.23.0", {"args": {"kv-cache-dtype": "fp8", "speculative-config": {"model": "z/X-draft"}}}, False),
        ("SPK601", "0.19.1", {"args": {"speculative-config": {"model": "z/X-DFlash"}}}, True),
        ("SPK601", "0.24.0", {"args": {"speculative-config": {"model": "z/dspark_x"}}}, True),
        ("SPK601", "0.25.0", {"args": {"speculative-config": {"model": "z/dspark_x"}}}, False),
        # code for sm_120 runs on sm_121, code for sm_120a does not
        ("SPK210", "0.24.0", {"env": {"CUTE_DSL_ARCH": "sm_120"}}, False),
        ("SPK210", "0.24.0", {"env": {"CUTE_DSL_ARCH": "sm_120a"}}, True),
        ("SPK409", "0.24.0", {"repo": "unsloth/Qwen3-8B-GGUF:Q4_K_M"}, True),
        ("SPK409", "0.23.0", {"repo": "unsloth/Qwen3-8B-GGUF:Q4_K_M"}, False),
        ("SPK409", "0.24.0", {"repo": "org/GGUF-tools"}, False),
        # this parser goes by the model's own template
        ("SPK704", "0.33.0", {"args": {"tool-call-parser": "hf"}, "config": QWEN36}, False),
        ("SPK704", "0.33.0", {"args": {"tool-call-parser": "hermes"}, "config": QWEN36}, True),
    ],
)
def test_what_a_name_says(rule: str, release: str, more: dict[str, Any], expected: bool) -> None:
    assert (rule in fired(version(release, **more))) is expected


@pytest.mark.parametrize(
    ("release", "fix"),
    [("0.16.0", "Remove it."), ("0.17.0", "Use --moe-backend marlin (this variable never existed).")],
)
def test_an_option_that_came_later_is_no_fix(release: str, fix: str) -> None:
    assert fired(version(release, env={"VLLM_MXFP4_BACKEND": "marlin"}))["SPK203"]["fix"] == fix


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("VLLM_PLE_TABLE_MEMORY", "Remove it."),  # a fork's; shares letters with VLLM_WSL2_ENABLE_PIN_MEMORY
        ("VLLM_ALLOW_LONG_MAX_MODEL_LENGTH", "Did you mean VLLM_ALLOW_LONG_MAX_MODEL_LEN?"),
    ],
)
def test_a_suggested_variable_is_a_misspelling(name: str, fix: str) -> None:
    assert fired(version("0.32.0", env={name: "1"}))["SPK203"]["fix"] == fix


def test_a_fix_names_what_this_vllm_has() -> None:
    """Over every launch that fires a rule, on every version: no option and no parser of another version."""
    wrong = set()
    for params, _silent in CASES.values():
        for release in catalogue.versions():
            options = catalogue.options(release)
            for finding in check_launch({**params, "vllm_version": str(release), "catalogue": []})["findings"]:
                if re.search(r"[Rr]emove --", finding["fix"]):
                    continue  # removing an option that this vLLM does not have is a fix, too
                fix = re.split(r"\b(?:or|use|with) vLLM|With vLLM", finding["fix"])[0]
                named = {name.removeprefix("no-") for name in re.findall(r"--([a-z][a-z-]+[a-z])", fix)}
                wrong |= {(finding["rule"], str(release), name) for name in named - set(options) - NOT_VLLMS}
                for table, option in (("tool_parsers", "tool-call-parser"), ("reasoning_parsers", "reasoning-parser")):
                    parser = re.search(rf"{option}(?: to)? (\w+)", fix)
                    if (
                        parser
                        and parser[1] in catalogue.names(table)
                        and catalogue.has(table, parser[1], release) is False
                    ):
                        wrong.add((finding["rule"], str(release), parser[1]))
    assert wrong == set()


def test_a_bound_on_speculation_or_one_stream_is_enough() -> None:
    bounded = spec(method="mtp", num_speculative_tokens_per_batch_size=[[1, 4, 2]])
    assert "SPK617" not in fired(version("0.24.0", {"max-num-seqs": 16, **bounded}, QWEN36))
    assert "SPK617" not in fired(version("0.24.0", {"max-num-seqs": 16}, QWEN36))
    assert "SPK617" not in fired(version("0.24.0", spec(method="mtp"), QWEN36))


@pytest.mark.parametrize(
    ("path", "mount", "fires"),
    [
        ("/", "/srv/media:/media", False),
        ("/media/pictures", "/srv/media:/media", False),
        ("/media", "/srv/pictures:/media/pictures", False),
        ("/media", "/srv/media:/mediathek", True),
    ],
)
def test_local_media_below_or_above_a_mount(path: str, mount: str, fires: bool) -> None:
    request = version("0.24.0", {"allowed-local-media-path": path}, docker_args=["--volume", mount])
    assert ("SPK416" in fired(request)) is fires


def test_local_media_without_a_word_of_docker_is_left_alone() -> None:
    assert "SPK416" not in fired(version("0.24.0", {"allowed-local-media-path": "/media"}))


TWO = {"tensor-parallel-size": 2}


@pytest.mark.parametrize(
    "row", nccl_data.ROWS, ids=lambda row: f"{row['library']}-{row.get('version') or row['below']}"
)
def test_each_build_of_nccl_is_judged_as_its_line_says(row: dict[str, Any]) -> None:
    release = row.get("version", "2.28.9")
    rules = fired(launch(args=TWO, nodes=2, catalogue=[nccl(row["library"], release)]))
    assert ("SPK827" in rules) is (row["verdict"] != "good")
    assert row["source"] and datetime.date.fromisoformat(row["date"]) <= datetime.date.today()


@pytest.mark.parametrize(
    ("args", "rules"),
    [({"headless": True}, ["SPK824"]), ({"node-rank": 1}, ["SPK814"]), ({"master-addr": "10.0.0.1"}, ["SPK824"])],
)
def test_a_launch_that_names_no_number_of_nodes_has_one(args: dict[str, Any], rules: list[str]) -> None:
    assert sorted(fired(launch(args=args))) == rules


@pytest.mark.parametrize(
    ("libraries", "more", "fires"),
    [
        (("pip", "2.28.9"), {}, True),
        (("pip", "2.29.3"), {}, False),
        (("pip", ""), {}, False),  # which one is not known
        (("replaced", "2.28.9"), {}, False),
        (("named", "2.28.9"), {}, False),
        (("pip", "2.28.9"), {"env": {"VLLM_NCCL_SO_PATH": "/usr/lib/aarch64-linux-gnu/libnccl.so.2"}}, False),
        (("pip", "2.28.9"), {"env": {"LD_PRELOAD": "/usr/lib/libnccl.so.2"}}, False),
        (("pip", "2.28.9"), {"packages": ["nvidia-nccl-cu13==2.29.7"]}, False),
        (("system", "2.29.7"), {"packages": ["nvidia-nccl-cu13==2.28.9"]}, True),
        (("pip", "2.28.9"), {"args": {}, "nodes": 1}, False),
    ],
)
def test_the_nccl_that_is_loaded_counts(libraries: tuple[str, str], more: dict[str, Any], fires: bool) -> None:
    assert ("SPK827" in fired(launch(**{"args": TWO, "nodes": 2, "catalogue": [nccl(*libraries)], **more}))) is fires


@pytest.mark.parametrize(
    ("config", "fires"),
    [
        ({"model_type": "deepseek_v41"}, False),
        ({"model_type": "deepseek_v4"}, False),
        ({"model_type": "new", "dspark_block_size": 5}, False),
        ({}, False),  # not known
        (QWEN3_4B, True),
    ],
)
def test_a_checkpoint_may_carry_the_drafter_of_dspark(config: dict[str, Any], fires: bool) -> None:
    assert ("SPK611" in fired(version("0.30.0", spec(method="dspark"), config))) is fires
    assert "SPK611" in fired(version("0.30.0", spec(method="dflash"), config))


@pytest.mark.parametrize(
    ("more", "fires"),
    [
        ({}, True),
        ({"release": "0.32.0"}, False),
        ({"release": "0.30.0"}, False),
        ({"args": {}}, False),
        ({"args": {**TWO, "enable-flashinfer-autotune": False}}, False),
        ({"env": {"VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": "/tmp/tuned"}}, False),
        ({"env": {"VLLM_CACHE_ROOT": "/tmp/vllm"}}, False),
        ({"docker_args": ["-v", "/srv/c:/root/.cache"]}, True),
        ({"docker_args": ["-v", "/srv/c:/root/.cache/vllm/torch_compile_cache"]}, False),
        ({"docker_args": []}, False),
    ],
)
def test_what_flashinfer_autotuned_is_not_to_be_kept(more: dict[str, Any], fires: bool) -> None:
    request = {"release": "0.31.0", "args": TWO, "docker_args": ["-v", "/srv/c:/root/.cache/vllm"], **more}
    assert ("SPK828" in fired(version(**request))) is fires


def test_a_preview_image_does_not_cache_prefixes_of_a_hybrid() -> None:
    preview = "vllm/vllm-openai:qwen38-flash-next"
    assert "SPK304" in fired(launch(preview, {"enable-prefix-caching": True}, QWEN36))
    assert "SPK304" not in fired(launch(preview, {"enable-prefix-caching": False}, QWEN36))
    assert "SPK304" not in fired(launch(preview, {"enable-prefix-caching": True}, QWEN3_4B))


@pytest.mark.parametrize(
    ("args", "env", "docker", "fires"),
    [
        ({"engram-config": {"table_memory": "disk"}}, {}, [], True),
        ({"engram-config": {"table_memory": "ram"}}, {}, [], False),
        ({}, {"VLLM_PLE_TABLE_MEMORY": "disk"}, [], True),
        ({}, {"B12X_DISK_BACKEND": "io_uring"}, [], True),
        ({"load-format": "b12x"}, {}, ["--privileged"], False),
        ({"load-format": "b12x"}, {}, ["--security-opt", "no-new-privileges"], True),
        ({"load-format": "safetensors"}, {}, [], False),
    ],
)
def test_what_reads_by_io_uring_needs_a_profile(args: Any, env: dict[str, str], docker: list[str], fires: bool) -> None:
    request = launch("eugr/spark-vllm-b12x:nightly-20261015", args, env=env, docker_args=["--ipc", "host", *docker])
    assert ("SPKH08" in fired(request)) is fires


def test_a_build_that_has_the_package_b12x_is_not_asked_for_it() -> None:
    for image, fires in (("eugr/spark-vllm-b12x@sha256:" + "a" * 64, False), ("example.org/vllm:1", True)):
        request = launch(image, {"linear-backend": "b12x"}, vllm_version="0.33.0", entrypoint="serve")
        assert ("SPK520" in fired(request)) is fires


@pytest.mark.parametrize(
    ("drafter", "fires"), [("z-lab/Qwen3.8-27B-DFlash2", False), ("z-lab/Qwen3.6-27B-DFlash", True)]
)
def test_the_second_dflash_was_measured_with_quantised_weights(drafter: str, fires: bool) -> None:
    request = version("0.28.0", spec(method="dflash", model=drafter), QWEN36_NVFP4)
    assert ("SPK609" in fired(request)) is fires


@pytest.mark.parametrize(
    ("backend", "severity", "repaired"), [("FLASHINFER", "info", True), ("FLASH_ATTN", "error", False)]
)
def test_a_repair_may_cause_a_hint_but_no_error(backend: str, severity: str, repaired: bool) -> None:
    """0.26 reads the option instead of the variable: SPK312 is a hint, an FP8 KV cache with FLASH_ATTN is an error."""
    env = {"VLLM_ATTENTION_BACKEND": backend}
    option = {"kv-cache-dtype": "fp8", "attention-backend": backend}
    as_option = check_launch(version("0.26.0", option))["findings"]
    assert severity in {finding["severity"] for finding in as_option}
    fixed = check_launch(version("0.26.0", {"kv-cache-dtype": "fp8"}, env=env))["fixed"]
    change = {
        "rule": "SPK203",
        "where": "env",
        "key": "VLLM_ATTENTION_BACKEND",
        "before": f"VLLM_ATTENTION_BACKEND={backend}",
        "after": f"--attention-backend {backend}",
    }
    assert fixed["changes"] == ([change] if repaired else [])
    assert fixed["env"] == ({} if repaired else env)
    assert fixed["args"] == (option if repaired else {"kv-cache-dtype": "fp8"})
    assert ("SPK203" in {finding["rule"] for finding in fixed["findings"]}) is not repaired


NGC_RAY = "nvcr.io/nvidia/vllm:25.11-py3"
WIDE = {"head_dim": 257}

# rule, launch, whether the rule fires: where each rule begins and ends
BOUNDS: list[tuple[str, Any, bool]] = [
    ("SPK207", version("0.31.0", env={"VLLM_USE_V2_MODEL_RUNNER": "0"}), False),
    ("SPK207", version("0.31.0", {"pipeline-parallel-size": 2}, env={"VLLM_USE_V2_MODEL_RUNNER": "0"}), True),
    ("SPK508", version("0.24.0", {"attention-backend": "FLASH_ATTN"}, WIDE), True),
    ("SPK508", version("0.24.0", {"attention-backend": "FLASH_ATTN"}, {"head_dim": 256}), False),
    ("SPK508", version("0.21.0", {"attention-backend": "FLASHINFER"}, {"head_dim": 512}), True),
    ("SPK508", version("0.21.0", {"attention-backend": "FLASHINFER"}, WIDE), False),
    ("SPK508", version("0.22.0", {"attention-backend": "FLASHINFER"}, {"head_dim": 512}), False),
    ("SPK607", launch(args=spec(method="mtp"), config=QWEN36), True),
    ("SPK617", version("0.24.0", {"max-num-seqs": 9, **spec(method="mtp")}, QWEN36), True),
    ("SPK802", launch(args=["M"], nodes=2), False),
    ("SPK803", launch(NGC_RAY, {"tensor-parallel-size": 2}, nodes=2, executor="ray"), False),
    ("SPK810", launch(args=DUO_HEAD | {"tensor-parallel-size": 1, "data-parallel-size": 2}), False),
    ("SPK825", launch(args={"data-parallel-size": 2, "data-parallel-size-local": 1}), False),
    ("SPK830", launch(args={"tensor-parallel-size": 2, "data-parallel-size": 2}, config=DENSE, nodes=4), False),
    ("SPK901", launch(args={"gpu-memory-utilization": 1.5}), True),
    ("SPK901", launch(args={"gpu-memory-utilization": 0}), True),
    ("SPK902", launch(args={"gpu-memory-utilization": 1.5}), False),
    ("SPK902", launch(args={"gpu-memory-utilization": 1}), True),
    ("SPK903", launch(args={"enable-prefix-caching": True, "max-num-batched-tokens": 2049}, config=QWEN36), False),
    ("SPK906", launch(args={"cpu-offload-gb": 0.5}), True),
    ("SPK909", launch(args={"max-num-batched-tokens": 1}), False),
    ("SPK909", launch(args={"max-num-seqs": 2049}), True),
    ("SPKH06", launch(args=DUO_HEAD, docker_args=["--gpus", "all"]), False),
    ("SPKH07", launch(docker_args=["--shm-size", "63g"]), False),
    ("SPKH07", launch(docker_args=["--shm-size", "1t"]), True),
]


@pytest.mark.parametrize(("rule", "request_params", "fires"), BOUNDS)
def test_where_a_rule_begins_and_ends(rule: str, request_params: Any, fires: bool) -> None:
    assert (rule in fired(request_params)) is fires


# rule, launch, what its texts say
FIGURES: list[tuple[str, Any, str]] = [
    (
        "SPK214",
        version("0.24.0", {"attention-config": {"flash_attn_version": 3}}),
        "--attention-config asks for FlashAttention 3, which runs on compute capabilities 9.x",
    ),
    (
        "SPK214",
        version("0.24.0", {"attention-config": {"flash_attn_version": 4}}),
        "--attention-config asks for FlashAttention 4, which runs on compute capabilities 9.x, 10.x and 11.x",
    ),
    ("SPK607", launch(args=spec(method="mtp"), config=QWEN36), "Compare with 1 on your prompts."),
    (
        "SPK607",
        launch(args=spec(method="mtp", num_speculative_tokens=5), config=QWEN36),
        "Compare with 2 on your prompts.",
    ),
    (
        "SPK610",
        version("0.24.0", spec(method="dflash", model="z-lab/Qwen3.6-27B-DFlash"), repo="Qwen/Qwen3.6-35B-A3B"),
        "was trained for a model of 27B, this one has 35B-A3B;",
    ),
    (
        "SPK610",
        version("0.24.0", spec(method="dflash", model="z-lab/Qwen3.6-35B-A3B-DFlash"), repo="Qwen/Qwen3.6-27B"),
        "was trained for a model of 35B-A3B, this one has 27B;",
    ),
    ("SPK703", version("0.33.0", {"enable-auto-tool-choice": True}, QWEN36), "Add tool-call-parser qwen3_coder."),
    ("SPK704", version("0.33.0", {"tool-call-parser": "hermes"}, QWEN36), "Set tool-call-parser to qwen3_coder."),
    ("SPK708", version("0.33.0", {"reasoning-parser": "gemma4"}, QWEN36), "Set reasoning-parser to qwen3."),
    (
        "SPK805",
        launch(args=["M", "-tp", "2"], nodes=2),
        "2 Sparks should serve it, but neither Ray nor --nnodes is set",
    ),
    (
        "SPK810",
        launch(args=DUO_HEAD | {"data-parallel-size": 2, "nnodes": 8}),
        "tensor-parallel-size x pipeline-parallel-size x data-parallel-size is 4, but there are 8 nodes",
    ),
    ("SPK814", launch(args=DUO_HEAD | {"node-rank": 2}), "--node-rank 2 of 2 nodes: ranks count from 0 to 1."),
    (
        "SPK817",
        launch(args=DUO_HEAD, env={"NCCL_IB_HCA": "rocep1s0f1"}),
        "Set NCCL_IB_HCA to rocep1s0f1,roceP2p1s0f1.",
    ),
    (
        "SPK832",
        launch(args={"data-parallel-size": 5}, config=MIXTURE, nodes=5),
        "is split over the 5 GPUs of 5 replicas, but its width 768 is not divisible by that.",
    ),
    (
        "SPK832",
        launch(args={"data-parallel-size": 5, "tensor-parallel-size": 2}, config=MIXTURE, nodes=10),
        "is split over the 10 GPUs of 5 replicas",
    ),
    ("SPK902", launch(args={"gpu-memory-utilization": 0.95}), "leaves the host 5 % of the shared memory"),
    ("SPK903", launch(args={"enable-prefix-caching": True}, config=QWEN36), "which is 2048 here"),
    ("SPKH04", launch(args=DUO_HEAD, docker_args=["--network", "duo"]), "behind duo they cannot."),
    ("SPKH04", launch(args=DUO_HEAD, docker_args=["--gpus", "all"]), "behind docker's bridge they cannot."),
    (
        "SPKH09",
        version("0.27.0", {"kv-offloading-size": 10}, docker_args=["--shm-size", "8g"]),
        "vLLM places 10 GiB (kv-offloading-size) in /dev/shm, but this container has 8g",
    ),
]


@pytest.mark.parametrize(("rule", "request_params", "text"), FIGURES)
def test_the_figures_in_the_texts_of_a_finding(rule: str, request_params: Any, text: str) -> None:
    finding = fired(request_params)[rule]
    assert text in f"{finding['message']} {finding['fix']}"


UNKNOWN_IMAGE = "registry.example/vllm:1"


@pytest.mark.parametrize(
    ("option", "wrong", "near"),
    [
        ("attention-backend", "FLASHINFR", "FLASHINFER"),
        ("attention-backend", "B12X_MLA_SPARSE", "B12X"),
        ("moe-backend", "marlim", "marlin"),
        ("linear-backend", "cutlas", "cutlass"),
        ("load-format", "safetensor", "safetensors"),
        ("reasoning-parser", "qwen33", "qwen3"),
        ("tool-call-parser", "qwen3_xlm", "qwen3_xml"),
        ("tokenizer-mode", "mistrall", "mistral"),
        ("quantization", "modelopt_fp44", "modelopt_fp4"),
        ("kv-cache-dtype", "fp8_e4m33", "fp8_e4m3"),
        ("dtype", "bfloat61", "bfloat16"),
    ],
)
def test_a_value_of_no_vllm_is_warned_of_where_the_version_is_not_known(option: str, wrong: str, near: str) -> None:
    rules = fired(launch(UNKNOWN_IMAGE, {option: wrong}))
    assert rules["SPK113"]["severity"] == "warning" and f"--{option} {wrong}" in rules["SPK113"]["message"]
    assert rules["SPK113"]["fix"] == f"Did you mean {near}?"
    assert "SPK704" not in rules
    assert "SPK113" not in fired(launch(UNKNOWN_IMAGE, {option: near}))
    # With a known version its own rule speaks.
    assert "SPK113" not in fired(version("0.28.0", {option: wrong}))


@pytest.mark.parametrize(
    "args",
    [
        {"attention-backend": "flash_attn"},
        {"moe-backend": "flashinfer-cutlass"},
        {"tool-call-parser": "mine", "tool-parser-plugin": "/p.py"},
        {"reasoning-parser": "mine", "reasoning-parser-plugin": "/p.py"},
        {"distributed-executor-backend": "my.package.Executor"},
        {"block-size": 1600},
        {"served-model-name": "anything"},
    ],
)
def test_values_that_are_spelled_otherwise_or_may_be_anything_are_not_warned_of(args: dict[str, Any]) -> None:
    assert "SPK113" not in fired(launch(UNKNOWN_IMAGE, args))


def test_a_value_that_an_image_is_known_to_have_is_not_warned_of() -> None:
    entries = [{"image": UNKNOWN_IMAGE, "features": ["B12X_MLA_SPARSE"]}]
    assert "SPK113" not in fired(launch(UNKNOWN_IMAGE, {"attention-backend": "B12X_MLA_SPARSE"}, catalogue=entries))


def modelopt(algorithm: str) -> dict[str, Any]:
    return {**QWEN36, "quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm}}


@pytest.mark.parametrize("algorithm", ["NVFP4", "FP8", "MXFP8", "MIXED_PRECISION"])
@pytest.mark.parametrize("quantization", ["nvfp4", "modelopt", "modelopt_fp4", "compressed-tensors", "fp8", "awq"])
@pytest.mark.parametrize("release", ["0.19.0", "0.27.0", "0.32.0", "0.33.0"])
def test_a_modelopt_checkpoint_overrides_what_is_asked_for(algorithm: str, quantization: str, release: str) -> None:
    rules = fired(version(release, {"quantization": quantization}, modelopt(algorithm)))
    assert not {"SPK402", "SPK404"} & set(rules)


def test_what_no_modelopt_class_claims_is_compared_with_what_is_asked_for() -> None:
    assert "SPK402" in fired(version("0.32.0", {"quantization": "awq"}, modelopt("FP8_PB_WO")))
    assert "SPK402" in fired(version("0.32.0", {"quantization": "modelopt"}, QWEN36_COMPRESSED))
    # Mixed precision came with 0.17: 0.16 has no class for the checkpoint with any argument.
    assert "SPK404" in fired(version("0.16.0", {"quantization": "modelopt"}, modelopt("MIXED_PRECISION")))


YARN_4 = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40960}}


@pytest.mark.parametrize(
    ("release", "overrides", "length", "allowed", "rules"),
    [
        ("0.29.0", YARN_4, 163840, False, set()),
        ("0.29.0", YARN_4, 163841, False, {"SPK415"}),
        # From 0.30 vLLM takes max_position_embeddings as extended already.
        ("0.30.0", YARN_4, 163840, False, {"SPK415"}),
        ("0.30.0", {**YARN_4, "max_position_embeddings": 163840}, 163840, False, set()),
        ("0.30.0", YARN_4, 163840, True, set()),
        ("0.30.0", YARN_4, 200000, True, {"SPK418"}),
        ("0.30.0", None, 65536, True, {"SPK418"}),
        ("0.30.0", None, 65536, False, {"SPK403"}),
        (None, YARN_4, 163840, False, set()),
    ],
)
def test_the_context_that_vllm_derives_by_version(
    release: str | None, overrides: dict[str, Any] | None, length: int, allowed: bool, rules: set[str]
) -> None:
    args = {"max-model-len": length, **({"hf-overrides": overrides} if overrides else {})}
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"} if allowed else {}
    made = version(release, args, QWEN3_8B, env=env) if release else launch(UNKNOWN_IMAGE, args, QWEN3_8B, env=env)
    assert {"SPK403", "SPK415", "SPK418"} & set(fired(made)) == rules


def test_a_family_without_rotary_positions_reaches_further_than_its_config_says() -> None:
    config = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "max_position_embeddings": 262144}
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert "SPK418" not in fired(version("0.28.0", {"max-model-len": 1000000}, config, env=env))
    assert "SPK403" in fired(version("0.28.0", {"max-model-len": 1000000}, config))
