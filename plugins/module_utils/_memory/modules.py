# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of a model: name and size of each matrix, and the number of ranks that share it.

The names come from the checkpoint, because quantisation configs name the modules that they spare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .layers import Config, Refusal

GIVE = "give weights_gib (the sum of the tensor sizes in the safetensors headers)"


@dataclass(frozen=True)
class Module:
    """C(count) matrices of C(rows) x C(columns), or vectors where C(columns) is 1.

    split: whether tensor parallelism divides it. pieces: into how many at most (kv heads), 0 for any number.
    linear: whether quantisation may apply. size: bytes of an element that is never quantised, 0 for the model's dtype.
    experts: of how many experts these are, 0 for no experts; expert parallelism hands them out whole.
    part, multiple: the side that tensor parallelism divides, and the multiple that each rank's part is rounded up to; 0 for none.
    least: the least size of each rank's part of a divided side; 0 for none.
    """

    name: str
    rows: int
    columns: int = 1
    count: int = 1
    split: bool = False
    pieces: int = 0
    linear: bool = False
    size: int = 0
    experts: int = 0
    part: int = 0
    multiple: int = 0
    least: int = 0


def field(text: Config, key: str, maximum: int = 1 << 40) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise Refusal(f"config.{key}", f"expected a whole number of 1 to {maximum}, got {value!r}", GIVE)
    return value


def optional(text: Config, key: str) -> int:
    """Read a whole number that may be absent, null or 0."""
    return field(text, key) if text.get(key) else 0


def linear(name: str, rows: int, columns: int, count: int = 1, pieces: int = 0) -> Module:
    return Module(name, rows, columns, count, split=True, pieces=pieces, linear=True)


def latent_attention(text: Config, prefix: str) -> Iterator[Module]:
    hidden, heads = field(text, "hidden_size"), field(text, "num_attention_heads")
    nope, rope, value = field(text, "qk_nope_head_dim"), optional(text, "qk_rope_head_dim"), field(text, "v_head_dim")
    latent = field(text, "kv_lora_rank")
    if text.get("q_lora_rank"):
        rank = field(text, "q_lora_rank")
        yield replace(linear(f"{prefix}.q_a_proj", rank, hidden), split=False)
        yield Module(f"{prefix}.q_a_layernorm", rank)
        yield linear(f"{prefix}.q_b_proj", heads * (nope + rope), rank)
    else:
        yield linear(f"{prefix}.q_proj", heads * (nope + rope), hidden)
    yield replace(linear(f"{prefix}.kv_a_proj_with_mqa", latent + rope, hidden), split=False)
    yield Module(f"{prefix}.kv_a_layernorm", latent)
    yield linear(f"{prefix}.kv_b_proj", heads * (nope + value), latent)
    yield linear(f"{prefix}.o_proj", hidden, heads * value)


def gated_mlp(prefix: str, hidden: int, inner: int) -> Iterator[Module]:
    for name, rows, columns in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
        yield linear(f"{prefix}.{name}", rows, columns)


def experts(prefix: str, count: int, hidden: int, inner: int, matrices: int = 3) -> Iterator[Module]:
    yield replace(linear(f"{prefix}.experts", inner, hidden, count * (matrices - 1)), experts=count)
    yield replace(linear(f"{prefix}.experts", hidden, inner, count), experts=count)


@dataclass(frozen=True)
class Family:
    """Modules of a family's layers in addition to q/k/v/o projections (vllm/model_executor/models/, 0.33.0).

    norms: vectors of the hidden size in every layer; a LayerNorm with a bias has two. final: those after the last layer.
    bias: the field that gives q, k and v a bias, C(always), or nothing. out: the output projection follows it.
    qk_norm: C(head) (one vector of a head's size for q and for k), C(full) (one over all heads), or nothing.
    gated: the MLP has gate, up and down, else up and down. mlp_bias: the field that gives the MLP biases.
    tied: what an absent C(tie_word_embeddings) means.
    """

    norms: int = 2
    final: int = 1
    bias: str = "attention_bias"
    out: bool = False
    qk_norm: str = ""
    gated: bool = True
    mlp_bias: str = ""
    tied: bool = False


_FAMILY_NAMES: dict[Family, str] = {
    Family(bias=""): (
        "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_v41_text glm4_moe_lite glm5_next_text "
        "glm_moe_dsa internlm2 kimi_k2 kimi_linear mimo_v2 mimo_v2_flash mistral4 mixtral phi3"
    ),
    Family(qk_norm="head"): (
        "dots1 hunyuan_v1_dense hunyuan_v1_moe laguna qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe "
        "qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text"
    ),
    Family(out=True, mlp_bias="mlp_bias"): ("granite helium llama ministral ministral3 mistral mistral3 smollm3 solar"),
    Family(bias="always"): "mimo qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text",
    Family(): "glm glm4_moe granitemoe llama4 llama4_text seed_oss",
    Family(norms=4, qk_norm="head", tied=True): "gemma3 gemma3_text gemma4 gemma4_text",
    Family(bias="", qk_norm="head"): "inkling_model minimax_m3 minimax_m3_vl step3p5",
    Family(qk_norm="full"): "olmo2 olmo3 olmoe",
    Family(norms=1, tied=True): "cohere cohere2",
    Family(bias="use_bias", mlp_bias="use_bias", tied=True): "ernie4_5 ernie4_5_moe",
    Family(out=True, qk_norm="head", gated=False, mlp_bias="mlp_bias"): "apertus",
    Family(out=True, gated=False, mlp_bias="mlp_bias"): "arcee",
    Family(out=True, qk_norm="head", mlp_bias="mlp_bias"): "exaone4",
    Family(tied=True): "gemma",
    Family(norms=4, tied=True): "gemma2",
    Family(norms=4): "glm4",
    Family(out=True): "gpt_oss",
    Family(bias="qkv_bias"): "internlm3",
    Family(bias="", qk_norm="full"): "minimax_m2",
    Family(norms=4, final=2, out=True, gated=False, mlp_bias="mlp_bias"): "nemotron",
    Family(norms=1): "nemotron_h",
    Family(norms=0, final=0): "olmo",
    Family(norms=4, final=2, out=True): "phimoe",
    Family(norms=0, final=0, qk_norm="head"): "qwen4_exp_text",
    Family(norms=4, final=2, bias="use_qkv_bias"): "stablelm",
    Family(norms=4, final=2, bias="use_bias", out=True, gated=False, mlp_bias="use_bias", tied=True): "starcoder2",
}
FAMILIES: dict[str, Family] = {name: family for family, names in _FAMILY_NAMES.items() for name in names.split()}
"""Every family whose weights are known, by C(model_type)."""
