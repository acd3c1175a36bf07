#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a 2 MB Qwen3 checkpoint whose weights are made by hand, so that a real engine answers with fixed texts.

Every token has a one-hot embedding, attention and MLP add nothing, and the output layer maps each token to its successor.
The chat template ends the prompt with one of three markers, which picks the script:

    <|plain|>   Hello from the scripted test model.
    <|tools|>   a Hermes <tool_call> of get_weather for Paris (when tools are offered)
    <|think|>   <think> ... </think> and then the plain reply (when enable_thinking is set)

usage: mkscripted.py FOLDER [3]

With 3, heads and vocabulary divide by three, for an engine over three hosts.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """size: of the vocabulary and of the hidden state, one dimension for each token; vLLM cuts a vocabulary in pieces of 64."""

    size: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 64


BY_TWO = Shape()
BY_THREE = Shape(size=576, heads=6, kv_heads=6, mlp=192)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|plain|>", "<|tools|>", "<|think|>"]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
PLAIN = ["Hello", " from", " the", " scripted", " test", " model."]
TOOLS = ["<tool_call>", '\n{"name":', ' "get_weather",', ' "arguments":', ' {"city":', ' "Paris"}}\n', "</tool_call>"]
THINK = ["<think>", "\nThe", " user", " asked.\n", "</think>"]
TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if tools and messages[-1].role != 'tool' %}<|tools|>"
    "{%- elif enable_thinking is defined and enable_thinking %}<|think|>{%- else %}<|plain|>{%- endif %}{%- endif %}"
)


def byte_alphabet() -> dict[int, str]:
    """The printable stand-ins of the 256 bytes in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(256 + len(alphabet) - len(printable))
    return alphabet


class Script:
    """Vocabulary and the successor of each token."""

    def __init__(self) -> None:
        self.alphabet = byte_alphabet()
        self.vocab = {text: i for i, text in enumerate([*SPECIAL, *MARKUP])}
        for byte in range(256):
            self.vocab[self.alphabet[byte]] = len(self.vocab)
        self.next: dict[int, int] = {}
        end = self.vocab["<|im_end|>"]
        self.chain("<|plain|>", PLAIN, end)
        first = self.next[self.vocab["<|plain|>"]]
        self.chain("<|tools|>", TOOLS, end)
        self.chain("<|think|>", THINK, first)
        for token in range(len(self.vocab)):
            self.next.setdefault(token, first)  # any other prompt gets the plain reply too
        self.next[end] = end

    def chain(self, start: str, pieces: list[str], end: int) -> None:
        current = self.vocab[start]
        for piece in pieces:
            # Each piece is one token. No merge leads to it, so prompts never contain it; only decoding does.
            text = piece if piece in MARKUP else "".join(self.alphabet[byte] for byte in piece.encode())
            token = self.vocab.setdefault(text, len(self.vocab))
            self.next[current] = token
            current = token
        self.next[current] = end


def bfloat16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


def matrix(rows: int, columns: int, ones: list[tuple[int, int]], value: float = 1.0) -> tuple[list[int], bytes]:
    data = bytearray(2 * rows * columns)
    for row, column in ones:
        at = 2 * (row * columns + column)
        data[at : at + 2] = bfloat16(value)
    return [rows, columns], bytes(data)


def vector(size: int) -> tuple[list[int], bytes]:
    return [size], bfloat16(1.0) * size


def tensors(script: Script, shape: Shape) -> dict[str, tuple[list[int], bytes]]:
    made = {
        "model.embed_tokens.weight": matrix(shape.size, shape.size, [(i, i) for i in range(shape.size)]),
        "lm_head.weight": matrix(shape.size, shape.size, [(after, token) for token, after in script.next.items()], 4.0),
        "model.norm.weight": vector(shape.size),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}{name}.weight"] = vector(shape.size)
        for name in ("q_norm", "k_norm"):
            made[f"{prefix}self_attn.{name}.weight"] = vector(shape.head_dim)
        for name, rows, columns in (
            ("self_attn.q_proj", shape.heads * shape.head_dim, shape.size),
            ("self_attn.k_proj", shape.kv_heads * shape.head_dim, shape.size),
            ("self_attn.v_proj", shape.kv_heads * shape.head_dim, shape.size),
            ("self_attn.o_proj", shape.size, shape.heads * shape.head_dim),
            ("mlp.gate_proj", shape.mlp, shape.size),
            ("mlp.up_proj", shape.mlp, shape.size),
            ("mlp.down_proj", shape.size, shape.mlp),
        ):
            made[f"{prefix}{name}.weight"] = matrix(rows, columns, [])
    return made


def safetensors(content: dict[str, tuple[list[int], bytes]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(content):
        shape, data = content[name]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(content[name][1] for name in sorted(content))


def tokenizer(script: Script) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": script.vocab[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": text in SPECIAL,
            }
            for text in [*SPECIAL, *MARKUP]
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": script.vocab, "merges": [],
        },
    }  # fmt: skip


def write(folder: Path, shape: Shape = BY_TWO) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    script = Script()
    end, pad = script.vocab["<|im_end|>"], script.vocab["<|endoftext|>"]
    texts: dict[str, Any] = {
        "tokenizer.json": tokenizer(script),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "model_max_length": 4096, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
        },
        "generation_config.json": {"eos_token_id": end, "pad_token_id": pad, "do_sample": False},
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": shape.size, "hidden_size": shape.size,
            "intermediate_size": shape.mlp, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "hidden_act": "silu", "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "eos_token_id": end, "pad_token_id": pad, "bos_token_id": None, "use_cache": True,
            "max_window_layers": shape.layers, "sliding_window": None, "use_sliding_window": False,
        },
    }  # fmt: skip
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    (folder / "README.md").write_text(
        "# scripted\n\nA test model with hand-made weights: it answers with fixed texts.\n"
    )
    temporary = folder / "model.safetensors.new"
    temporary.write_bytes(safetensors(tensors(script, shape)))
    temporary.replace(folder / "model.safetensors")  # last: its presence says that the folder is complete


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["3"]):
        sys.exit(__doc__)
    write(Path(sys.argv[1]), BY_THREE if sys.argv[2:] else BY_TWO)
