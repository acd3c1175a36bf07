#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write snapshots of models into a Hugging Face cache: the real names and shapes, a few bytes of made-up weights.

usage: fixtures.py HF_HOME
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

README = """# {repo} (simulated)

Not the model: a fixture of the simulated DGX Spark, with the fields of its configuration that matter for memory and a
few bytes in place of the weights. `spark_sim.json` says how large the stand-in engine pretends them to be.
"""


def interval(full_every: int, layers: int) -> list[str]:
    return ["full_attention" if (i + 1) % full_every == 0 else "linear_attention" for i in range(layers)]


QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "dtype": "bfloat16",
    "vocab_size": 151936,
}
QWEN36_TEXT = {
    "model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "layer_types": interval(4, 40),
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "vocab_size": 248320,
}
QWEN36 = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": QWEN36_TEXT,
}

# repo: (config, what the stand-in engine goes by, has weights)
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "RedHatAI/Qwen3.6-35B-A3B-NVFP4": (
        {**QWEN36, "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}},
        {"weights_gib": 20.227, "mtp_gib": 1.57},
        True,
    ),
    "Qwen/Qwen3.6-35B-A3B": (QWEN36, {}, False),
    "google/gemma-4-26B-A4B-it": (
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "dtype": "bfloat16",
            "text_config": {
                "model_type": "gemma4_text",
                "attention_k_eq_v": True,
                "dtype": "bfloat16",
                "global_head_dim": 512,
                "head_dim": 256,
                "hidden_size": 2816,
                "layer_types": [kind.replace("linear", "sliding") for kind in interval(6, 30)],
                "max_position_embeddings": 262144,
                "moe_intermediate_size": 704,
                "num_attention_heads": 16,
                "num_experts": 128,
                "num_global_key_value_heads": 2,
                "num_hidden_layers": 30,
                "num_key_value_heads": 8,
                "sliding_window": 1024,
                "top_k_experts": 8,
                "vocab_size": 262144,
            },
        },
        {"weights_gib": 48.094, "quantized_gib": {"fp8": 25.3}},
        True,
    ),
    "google/gemma-4-26B-A4B-it-assistant": (
        {
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": "gemma4_assistant",
            "dtype": "bfloat16",
            "head_dim": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 262144,
            "vocab_size": 262144,
        },
        {"weights_gib": 0.78},
        True,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8": (
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "dtype": "bfloat16",
            "full_attention_interval": 4,
            "head_dim": 256,
            "hidden_size": 2048,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 512,
            "num_attention_heads": 16,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
        {"weights_gib": 74.853, "mtp_gib": 1.54},
        True,
    ),
    "Qwen/Qwen3-4B-Instruct-2507": (
        {
            **QWEN3,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": True,
        },
        {"weights_gib": 7.492},
        True,
    ),
    "Qwen/Qwen3-8B": (
        {
            **QWEN3,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
        },
        {"weights_gib": 15.256},
        True,
    ),
}


def safetensors() -> bytes:
    """A valid file with one tensor of one number."""
    header = json.dumps({"simulated.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + b"\0\0"


def files(repo: str, config: dict[str, Any], sim: dict[str, Any], weights: bool) -> dict[str, bytes]:
    def text(value: Any) -> bytes:
        return (json.dumps(value, indent=1) + "\n").encode()

    texts = {
        "README.md": README.format(repo=repo).encode(),
        "config.json": text(config),
        "generation_config.json": text({"do_sample": True}),
        "tokenizer.json": text({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}),
        "tokenizer_config.json": text(
            {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"}
        ),
    }
    if weights:
        size = int(sum(float(sim.get(key, 0)) for key in ("weights_gib", "mtp_gib")) * (1 << 30))
        texts["model-00001-of-00001.safetensors"] = safetensors()
        texts["model.safetensors.index.json"] = text(
            {"metadata": {"total_size": size}, "weight_map": {"simulated.weight": "model-00001-of-00001.safetensors"}}
        )
    if sim:
        texts["spark_sim.json"] = text(sim)
    return texts


def write(home: Path) -> None:
    for repo, (config, sim, weights) in MODELS.items():
        folder = home / "hub" / ("models--" + repo.replace("/", "--"))
        revision = hashlib.sha1(repo.encode()).hexdigest()
        snapshot = folder / "snapshots" / revision
        for path in (folder / "refs", folder / "blobs", snapshot):
            path.mkdir(parents=True)
        (folder / "refs" / "main").write_text(revision)
        for name, data in files(repo, config, sim, weights).items():
            blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
            blob.write_bytes(data)
            (snapshot / name).symlink_to(f"../../blobs/{blob.name}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
