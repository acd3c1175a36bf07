# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of a model's weights on one rank, from its config and its quantisation.

The modules of a model are listed by the names of its checkpoint, because quantisation configs name the modules that they
spare; each is then counted in the format that it is stored in, and divided over the ranks as vLLM divides it. The sums
were compared with the parameters of vLLM's own model classes (0.33.0). The safetensors headers are always the better
source: C(tensors.py) reads them. Where only their sum is known, C(weights_gib) of the budget takes it.

A family or a format that is not known here is a C(Refusal). No I/O, no Ansible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from ansible_collections.dgxspark.vllm.plugins.module_utils.geometry import (
    MAX_LAYERS,
    Attention,
    Config,
    Geometry,
    Recurrent,
    Refusal,
    quantization_of,
    text_config,
)

_GIVE = "give weights_gib (the sum of the tensor sizes in the safetensors headers)"


@dataclass(frozen=True)
class _Family:
    """What the layers of a family have besides q/k/v/o projections (vllm/model_executor/models/, 0.33.0).

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


_LLAMA = _Family(out=True, mlp_bias="mlp_bias")
_QWEN2 = _Family(bias="always")
_QWEN3 = _Family(qk_norm="head")
_OLMO2 = _Family(qk_norm="full")
_GEMMA3 = _Family(norms=4, qk_norm="head", tied=True)
_MLA = _Family(bias="")
_FAMILIES: dict[str, _Family] = {
    "apertus": _Family(out=True, qk_norm="head", gated=False, mlp_bias="mlp_bias"),
    "arcee": _Family(out=True, gated=False, mlp_bias="mlp_bias"),
    "cohere": _Family(norms=1, tied=True),
    "cohere2": _Family(norms=1, tied=True),
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "dots1": _QWEN3,
    "ernie4_5": _Family(bias="use_bias", mlp_bias="use_bias", tied=True),
    "ernie4_5_moe": _Family(bias="use_bias", mlp_bias="use_bias", tied=True),
    "exaone4": _Family(out=True, qk_norm="head", mlp_bias="mlp_bias"),
    "gemma": _Family(tied=True),
    "gemma2": _Family(norms=4, tied=True),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma4": _GEMMA3,
    "gemma4_text": _GEMMA3,
    "glm": _Family(),
    "glm4": _Family(norms=4),
    "glm4_moe": _Family(),
    "gpt_oss": _Family(out=True),
    "granite": _LLAMA,
    "granitemoe": _Family(),
    "hunyuan_v1_dense": _QWEN3,
    "hunyuan_v1_moe": _QWEN3,
    "internlm2": _Family(bias=""),
    "internlm3": _Family(bias="qkv_bias"),
    "kimi_k2": _MLA,
    "llama": _LLAMA,
    "llama4": _Family(),
    "llama4_text": _Family(),
    "ministral": _LLAMA,
    "mistral": _LLAMA,
    "mistral3": _LLAMA,
    "mixtral": _Family(bias=""),
    "nemotron": _Family(norms=4, final=2, out=True, gated=False, mlp_bias="mlp_bias"),
    "nemotron_h": _Family(norms=1),
    "olmo": _Family(norms=0, final=0),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "olmoe": _OLMO2,
    "phi3": _Family(bias=""),
    "phimoe": _Family(norms=4, final=2, out=True),
    "qwen2": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_5_moe_text": _QWEN3,
    "qwen3_5_text": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_next": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "seed_oss": _Family(),
    "smollm3": _LLAMA,
    "solar": _LLAMA,
    "stablelm": _Family(norms=4, final=2, bias="use_qkv_bias"),
    "starcoder2": _Family(norms=4, final=2, bias="use_bias", out=True, gated=False, mlp_bias="use_bias", tied=True),
}
_GDN = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))
_GEMMA4 = frozenset(("gemma4", "gemma4_text"))
_BLOCK_SPARSE = frozenset(("granitemoe", "mixtral", "phimoe"))  # where the experts are called block_sparse_moe
# Qwen3-VL and what came after it share a tower; the one of Qwen2-VL is another.
_QWEN3_VISION = frozenset(("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"))
_QWEN2_VISION = frozenset(("qwen2_vl", "qwen2_5_vl"))
_PART = re.compile(r"(?:layers|blocks)\.\d+\.\w+")


@dataclass(frozen=True)
class Weights:
    """Bytes of one rank.

    target: the model itself. draft: the drafter, without the embedding and the head that it shares.
    load_peak: what the target takes while it loads; larger than C(target) where it is quantised at load time.
    load_layerwise: the same where vLLM quantises each part of a layer as soon as it is complete.
    vision: the part of C(target) that is the vision tower, 0 where that is not counted apart.
    """

    target: int
    draft: int
    load_peak: int
    vision: int = 0
    load_layerwise: int = 0

    def __post_init__(self) -> None:
        if not self.load_layerwise:
            object.__setattr__(self, "load_layerwise", self.load_peak)


@dataclass(frozen=True)
class _Module:
    """C(count) matrices of C(rows) x C(columns), or vectors where C(columns) is 1.

    split: whether tensor parallelism divides it. pieces: into how many at most (kv heads), 0 for any number.
    linear: whether quantisation may apply. size: bytes of an element that is never quantised, 0 for the model's dtype.
    experts: of how many experts these are, 0 for no experts; expert parallelism hands them out whole.
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


# Formats ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """How a matrix is stored: bits per weight, and the bytes of its scales.

    group: weights along the input that share a scale, 0 for one scale per output row or per tensor.
    scale: bytes of a scale. block: rows that share a scale, too. zero_bits: bits of a zero point. order: a row order is kept.
    """

    bits: int
    group: int = 0
    scale: int = 0
    block: int = 1
    zero_bits: int = 0
    order: bool = False

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        total = rows * columns * self.bits // 8
        if self.group:
            scales = -(-rows // self.block) * -(-columns // self.group)
            total += scales * self.scale + scales * self.zero_bits // 8
        else:
            total += rows * self.scale
        return total + (4 * columns if self.order else 0)


# The shapes of weights and scales that create_weights of vllm/model_executor/layers/quantization/ makes: fp8.py, modelopt.py,
# mxfp4.py, online/ (blocks of 128 x 128, groups of 16 in NVFP4 and of 32 in the MX formats).
_FP8_TENSOR = Format(8)
_FP8_CHANNEL = Format(8, scale=4)
_FP8_BLOCKS = Format(8, group=128, scale=4, block=128)
_MXFP8 = Format(8, group=32, scale=1)
_NVFP4 = Format(4, group=16, scale=1)
_MXFP4 = Format(4, group=32, scale=1)
_ALGORITHMS = {
    "FP8": _FP8_TENSOR,
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": _NVFP4,
    "NVFP4_AWQ": _NVFP4,
    "MXFP8": _MXFP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8_CHANNEL,
    "FP8_PB_WO": _FP8_BLOCKS,
    "FP8_BLOCK_SCALES": _FP8_BLOCKS,
}
# --quantization on a checkpoint that has none: vLLM loads 16 bits and converts.
RUNTIME_FORMATS = {
    "fp8": _FP8_TENSOR,
    "fp8_per_tensor": _FP8_TENSOR,
    "fp8_per_channel": _FP8_CHANNEL,
    "fp8_per_block": _FP8_BLOCKS,
    "int8_per_channel_weight_only": _FP8_CHANNEL,
    "experts_int8": _FP8_CHANNEL,
    "mxfp8": _MXFP8,
}
# Formats whose sizes the config does not settle, and why.
_UNSETTLED = {
    "bitsandbytes": "keeps a state beside every matrix whose size its config does not give, and vLLM 0.33 has dropped it",
    "torchao": "hides its formats in serialised objects",
    "quark": "mixes formats by rules that are not known here",
}


def _int_field(quantization: Config, keys: tuple[str, ...], where: str) -> int:
    """Read a whole number from the first of C(keys) that is there."""
    key = next((key for key in keys if quantization.get(key) is not None), keys[0])
    value = quantization.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{where}.{key}", f"expected a whole number, got {value!r}", _GIVE)
    return value


def _packed(quantization: Config, where: str) -> Format:
    """Read a GPTQ, AWQ or AutoRound format; vLLM keeps zero points also of symmetric checkpoints."""
    bits = _int_field(quantization, ("bits", "w_bit"), where)
    group = _int_field(quantization, ("group_size", "q_group_size"), where)
    if bits not in (2, 3, 4, 8):
        raise Refusal(f"{where}.bits", f"weights of {bits} bits are not known", _GIVE)
    return Format(bits, max(group, 0), 2, zero_bits=bits, order=bool(quantization.get("desc_act")))


def _fp8_blocks(source: Config, key: str, where: str) -> Format:
    block = source.get(key)
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(size, int) and size > 0 for size in block):
        raise Refusal(f"{where}.{key}", f"expected two sizes, got {block!r}", _GIVE)
    return Format(8, block[1], 4, block[0])


def _weights_format(weights: Config, where: str) -> Format:
    """Read one C(weights) entry of compressed-tensors (or modelopt's config_groups)."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0
    if isinstance(group, bool) or not isinstance(group, int):
        raise Refusal(f"{where}.group_size", f"expected a whole number, got {group!r}", _GIVE)
    if (bits, kind) == (8, "float"):
        if weights.get("block_structure") is not None:
            return _fp8_blocks(weights, "block_structure", where)
        if weights.get("strategy") == "group" and group > 0:
            return _MXFP8 if group == 32 else Format(8, group, 4)
        return _FP8_CHANNEL if weights.get("strategy") == "channel" else _FP8_TENSOR
    if (bits, kind) == (4, "float") and group in (16, 32):
        return _NVFP4 if group == 16 else _MXFP4
    if bits in (4, 8) and kind == "int":
        if group > 0:
            return Format(int(bits), group, 2, zero_bits=0 if weights.get("symmetric", True) else int(bits))
        return Format(int(bits), scale=2)
    raise Refusal(where, f"weights of {bits!r} bits of type {kind!r} are not known", _GIVE)


def _plain_name(name: str) -> str:
    """Take the prefix off a module name; checkpoints of the same model differ in it."""
    return re.sub(r"^(?:model\.|backbone\.)?(?:language_model\.)?(?:model\.)?", "", name)


class _Names:
    """A set of module patterns: names and parts of names, wildcards and C(re:) expressions.

    A pattern with the prefix of the model (C(model.layers.3.mlp)) names one place; one without (C(mlp.gate)) names any.
    """

    def __init__(self, patterns: list[str]) -> None:
        expressions = []
        self._starts: set[str] = set()
        self._parts: set[str] = set()
        for pattern in patterns:
            plain = _plain_name(pattern)
            if pattern.startswith("re:"):
                expressions.append(f"(?:{pattern[3:]})")
            elif "*" in pattern:
                anywhere = "" if plain != pattern else r"(?:.*\.)?"
                body = re.escape(plain).replace(r"\*", ".*")
                expressions.append(rf"{anywhere}{body}(?:\..*)?$")
            else:
                (self._parts if plain == pattern else self._starts).add(plain)
        self._expression = re.compile("|".join(expressions)) if expressions else None

    def __contains__(self, name: object) -> bool:
        text = str(name)
        pieces = text.split(".")
        for end in range(len(pieces), 0, -1):
            if ".".join(pieces[:end]) in self._starts:
                return True
            if self._parts and any(".".join(pieces[start:end]) in self._parts for start in range(end)):
                return True
        return self._expression is not None and (
            self._expression.match(text) is not None or self._expression.match(f"model.{text}") is not None
        )


class _Quantization:
    """Answers in which format a module is stored."""

    def __init__(self, config: Config, quant_config: Config | None, runtime: str) -> None:
        quantization, where = quantization_of(config, quant_config)
        self._default: Format | None = None
        self._groups: list[tuple[_Names, Format | None]] = []
        self._layers: dict[str, Format] = {}
        self.padded_experts = False
        self.runtime = False
        self._only_experts = False
        spared: list[str] = []
        for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers"):
            listed = quantization.get(key) or []
            if not isinstance(listed, list):
                raise Refusal(f"{where}.{key}", f"expected a list of modules, got {listed!r}", _GIVE)
            spared += [str(item) for item in listed]
        self._spared = _Names(spared)
        self._head = bool(quantization.get("lm_head"))
        if not quantization:
            if runtime:
                if runtime not in RUNTIME_FORMATS:
                    raise Refusal(
                        "args.quantization",
                        f"quantisation {runtime!r} of a checkpoint that has none is not known",
                        _GIVE,
                    )
                self._default, self.runtime = RUNTIME_FORMATS[runtime], True
                self._only_experts = runtime == "experts_int8"
            return
        method = str(quantization.get("quant_method") or "modelopt").lower()
        if method in ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "compressed-tensors"):
            self._read_groups(quantization, where)
        elif method == "fp8":
            blocks = quantization.get("weight_block_size") is not None
            self._default = _fp8_blocks(quantization, "weight_block_size", where) if blocks else _FP8_TENSOR
        elif method == "fbgemm_fp8":
            self._default = _FP8_CHANNEL
        elif method in (
            "gptq",
            "gptq_marlin",
            "auto_gptq",
            "awq",
            "awq_marlin",
            "auto_awq",
            "auto-round",
            "auto_round",
        ):
            self._default = _packed(quantization, where)
            self._read_exceptions(quantization, where)
        elif method in ("mxfp4", "gpt_oss_mxfp4"):
            self._default, self._only_experts, self.padded_experts = _MXFP4, True, True
        else:
            reason = _UNSETTLED.get(method, "is not known")
            raise Refusal(f"{where}.quant_method", f"quantisation {method!r} {reason}", _GIVE)

    def _read_exceptions(self, quantization: Config, where: str) -> None:
        """Read what GPTQModel (C(dynamic)) and AutoRound (C(extra_config)) store in another way."""
        for key, sign in (("dynamic", "re:"), ("extra_config", "")):
            listed = quantization.get(key) or {}
            if not isinstance(listed, dict):
                raise Refusal(f"{where}.{key}", f"expected a mapping, got {listed!r}", _GIVE)
            for pattern, entry in listed.items():
                name = sign + (re.sub(r"^[+-]:", "", pattern) if sign else str(pattern))
                own = {**quantization, **(entry if isinstance(entry, dict) else {})}
                plain = (sign and pattern.startswith("-:")) or own.get("bits") == 16
                self._groups.append((_Names([name]), None if plain else _packed(own, f"{where}.{key}.{pattern}")))

    def _read_groups(self, quantization: Config, where: str) -> None:
        layers = quantization.get("quantized_layers")
        if isinstance(layers, dict):
            for name, entry in layers.items():
                algorithm = entry.get("quant_algo") if isinstance(entry, dict) else entry
                stored = self._algorithm(algorithm, f"{where}.quantized_layers.{name}")
                if "*" in str(name):
                    self._groups.append((_Names([str(name)]), stored))
                else:
                    self._layers[_plain_name(str(name))] = stored
            return
        algorithm = quantization.get("quant_algo")
        if algorithm is not None:
            self._default = self._algorithm(algorithm, where)
            return
        groups = quantization.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise Refusal(f"{where}.quant_algo", "the field is missing", _GIVE)
        for key, group in groups.items():
            weights = group.get("weights") if isinstance(group, dict) else None
            if not isinstance(weights, dict):
                continue
            stored = _weights_format(weights, f"{where}.config_groups.{key}.weights")
            targets = group.get("targets") or ["Linear"]
            if not isinstance(targets, list):
                raise Refusal(f"{where}.config_groups.{key}.targets", f"expected a list, got {targets!r}", _GIVE)
            targets = [str(item) for item in targets]
            if "Linear" in targets:
                self._default = stored
            self._groups.append((_Names([item for item in targets if item != "Linear"]), stored))

    @staticmethod
    def _algorithm(name: object, where: str) -> Format:
        found = _ALGORITHMS.get(str(name).upper())
        if found is None:
            raise Refusal(f"{where}.quant_algo", f"quantisation {name!r} is not known", _GIVE)
        return found

    def format_of(self, module: _Module) -> Format | None:
        """Return the format of a module, C(None) for the model's own dtype."""
        if not module.linear or (self._only_experts and not module.name.endswith(".experts")):
            return None
        found = self._layers.get(module.name) or self._layers.get(f"{module.name}.0.gate_proj")
        if found is not None:
            return found
        for names, stored in self._groups:
            if module.name in names:
                return stored
        if self._default is None or module.name in self._spared:
            return None
        if module.name == "lm_head" and not self._head:
            return None
        return self._default


# Modules ------------------------------------------------------------------------------------------------------------


def _field(text: Config, key: str, maximum: int = 1 << 40) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise Refusal(f"config.{key}", f"expected a whole number of 1 to {maximum}, got {value!r}", _GIVE)
    return value


def _optional(text: Config, key: str) -> int:
    """Read a whole number that may be absent, null or 0."""
    return _field(text, key) if text.get(key) else 0


def _linear(name: str, rows: int, columns: int, count: int = 1, pieces: int = 0) -> _Module:
    return _Module(name, rows, columns, count, split=True, pieces=pieces, linear=True)


def _attention(text: Config, family: str, layer: Attention, prefix: str, width: int = 1) -> Iterator[_Module]:
    """Projections of plain attention; C(width): how many hidden states they read side by side (EAGLE-3: 2)."""
    hidden, heads = _field(text, "hidden_size"), _field(text, "num_attention_heads")
    has = _FAMILIES[family]
    query = heads * layer.head_dim * (2 if family in _GDN else 1)  # the output gate doubles the query projection
    key = layer.kv_heads * layer.head_dim
    yield _linear(f"{prefix}.q_proj", query, width * hidden)
    yield _linear(f"{prefix}.k_proj", key, width * hidden, pieces=layer.kv_heads)
    yield _linear(f"{prefix}.v_proj", key, width * hidden, pieces=layer.kv_heads)
    yield _linear(f"{prefix}.o_proj", hidden, heads * layer.head_dim)
    if has.bias == "always" or (has.bias and text.get(has.bias)):
        yield _Module(f"{prefix}.bias", query, split=True)
        yield _Module(f"{prefix}.kv_bias", 2 * key, split=True, pieces=layer.kv_heads)
        if has.out:
            yield _Module(f"{prefix}.o_bias", hidden)
    if family == "gpt_oss":
        yield _Module(f"{prefix}.sinks", heads, split=True)
    if has.qk_norm == "head" or (family == "glm4_moe" and text.get("use_qk_norm")):
        yield _Module(f"{prefix}.qk_norm", 2 * layer.head_dim)
    elif has.qk_norm == "full" or (family == "cohere" and text.get("use_qk_norm")):
        yield _Module(f"{prefix}.qk_norm", heads * layer.head_dim + key)


def _latent_attention(text: Config, prefix: str) -> Iterator[_Module]:
    hidden, heads = _field(text, "hidden_size"), _field(text, "num_attention_heads")
    nope, rope, value = (_field(text, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent = _field(text, "kv_lora_rank")
    if text.get("q_lora_rank"):
        rank = _field(text, "q_lora_rank")
        yield replace(_linear(f"{prefix}.q_a_proj", rank, hidden), split=False)
        yield _Module(f"{prefix}.q_a_layernorm", rank)
        yield _linear(f"{prefix}.q_b_proj", heads * (nope + rope), rank)
    else:
        yield _linear(f"{prefix}.q_proj", heads * (nope + rope), hidden)
    yield replace(_linear(f"{prefix}.kv_a_proj_with_mqa", latent + rope, hidden), split=False)
    yield _Module(f"{prefix}.kv_a_layernorm", latent)
    yield _linear(f"{prefix}.kv_b_proj", heads * (nope + value), latent)
    yield _linear(f"{prefix}.o_proj", hidden, heads * value)


def _gated_delta_net(text: Config, family: str, layer: Recurrent, prefix: str) -> Iterator[_Module]:
    hidden = _field(text, "hidden_size")
    channels = layer.conv_key_dim + layer.conv_value_dim
    if family == "qwen3_next":
        yield _linear(f"{prefix}.in_proj_qkvz", channels + layer.conv_value_dim, hidden)
        yield _linear(f"{prefix}.in_proj_ba", 2 * layer.heads, hidden)
    else:
        yield _linear(f"{prefix}.in_proj_qkv", channels, hidden)
        yield _linear(f"{prefix}.in_proj_z", layer.conv_value_dim, hidden)
        yield _linear(f"{prefix}.in_proj_b", layer.heads, hidden)
        yield _linear(f"{prefix}.in_proj_a", layer.heads, hidden)
    yield _Module(f"{prefix}.conv1d", channels, layer.conv_kernel, split=True)
    yield _Module(f"{prefix}.A_log", layer.heads, split=True, size=4)
    yield _Module(f"{prefix}.dt_bias", layer.heads, split=True)
    yield _Module(f"{prefix}.norm", layer.head_dim)
    yield _linear(f"{prefix}.out_proj", hidden, layer.conv_value_dim)


def _mamba2(text: Config, layer: Recurrent, prefix: str) -> Iterator[_Module]:
    hidden, inner = _field(text, "hidden_size"), layer.conv_value_dim
    yield _linear(f"{prefix}.in_proj", 2 * inner + layer.conv_key_dim + layer.heads, hidden)
    yield _Module(
        f"{prefix}.conv1d",
        inner + layer.conv_key_dim,
        layer.conv_kernel + (1 if text.get("use_conv_bias") else 0),
        split=True,
    )
    yield _Module(f"{prefix}.A", layer.heads, split=True, size=4)
    yield _Module(f"{prefix}.D_dt_bias", 2 * layer.heads, split=True)
    yield _Module(f"{prefix}.norm", inner, split=True)
    yield _linear(f"{prefix}.out_proj", hidden, inner)


def _gated_mlp(prefix: str, hidden: int, inner: int) -> Iterator[_Module]:
    for name, rows, columns in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
        yield _linear(f"{prefix}.{name}", rows, columns)


def _mlp(text: Config, family: str, prefix: str, inner: int) -> Iterator[_Module]:
    hidden, has = _field(text, "hidden_size"), _FAMILIES[family]
    if has.gated:
        yield from _gated_mlp(prefix, hidden, inner)
    else:
        yield _linear(f"{prefix}.up_proj", inner, hidden)
        yield _linear(f"{prefix}.down_proj", hidden, inner)
    if has.mlp_bias and text.get(has.mlp_bias):
        yield _Module(f"{prefix}.bias", inner * (2 if has.gated else 1), split=True)
        yield _Module(f"{prefix}.down_bias", hidden)


def _experts(prefix: str, count: int, hidden: int, inner: int, matrices: int = 3) -> Iterator[_Module]:
    yield replace(_linear(f"{prefix}.experts", inner, hidden, count * (matrices - 1)), experts=count)
    yield replace(_linear(f"{prefix}.experts", hidden, inner, count), experts=count)


def expert_count(text: Config) -> int:
    """Return how many routed experts a layer has, 0 for a model without."""
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return next((_field(text, key) for key in keys if text.get(key)), 0)


def _of_layer(text: Config, key: str, index: int) -> int:
    """Read a number that may be a list with one entry for every layer."""
    value = text.get(key)
    if not isinstance(value, list):
        return _field(text, key)
    return _field({key: value[index] if index < len(value) else None}, key)


def _is_dense(text: Config, family: str, index: int) -> bool:
    """Whether layer C(index) of a model with experts has none."""
    only_dense = text.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        raise Refusal("config.mlp_only_layers", f"expected a list, got {only_dense!r}", _GIVE)
    if family.startswith("llama4"):
        listed = text.get("moe_layers")
        step = _optional(text, "interleave_moe_layer_step")
        return index not in listed if isinstance(listed, list) else not step or (index + 1) % step != 0
    if family == "ernie4_5_moe":
        start, end = _optional(text, "moe_layer_start_index"), text.get("moe_layer_end_index")
        last = end if isinstance(end, int) and end >= 0 else MAX_LAYERS
        return not start <= index <= last or (index + 1) % (_optional(text, "moe_layer_interval") or 1) != 0
    return (
        index in only_dense
        or index < _optional(text, "first_k_dense_replace")
        or (index + 1) % (_optional(text, "decoder_sparse_step") or 1) != 0
    )


def _feed_forward(text: Config, family: str, index: int, prefix: str, padded: bool) -> Iterator[_Module]:
    """The MLP or the mixture of experts of layer C(index)."""
    hidden = _field(text, "hidden_size")
    count = expert_count(text)
    if family in _GEMMA4:
        yield from _gated_mlp(f"{prefix}.mlp", hidden, _field(text, "intermediate_size"))
        if text.get("enable_moe_block"):
            yield _Module(f"{prefix}.router", count, hidden)
            yield _Module(f"{prefix}.router.scales", hidden + count)
            yield _Module(f"{prefix}.moe_norms", 3 * hidden)
            yield from _experts(f"{prefix}", count, hidden, _field(text, "moe_intermediate_size"))
        return
    if not count or _is_dense(text, family, index):
        apart = "intermediate_size_mlp" if count and family.startswith("llama4") else "intermediate_size"
        yield from _mlp(text, family, f"{prefix}.mlp", _field(text, apart))
        return
    mlp = f"{prefix}.block_sparse_moe" if family in _BLOCK_SPARSE else f"{prefix}.mlp"
    inner = _of_layer(
        text, "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size", index
    )
    yield _Module(f"{mlp}.gate", count, hidden)
    if padded:
        wide, inner = padded_experts(hidden, inner)
        yield from _experts(mlp, count, wide, inner)
    else:
        wide = hidden
        yield from _experts(mlp, count, hidden, inner)
    if family == "gpt_oss":
        yield _Module(f"{mlp}.gate_bias", count)
        yield _Module(f"{mlp}.expert_bias", 2 * inner + wide, 1, count, split=True, experts=count)
    if family.startswith("llama4"):
        yield from _gated_mlp(f"{mlp}.shared_expert", hidden, inner)
    shared = _optional(text, "shared_expert_intermediate_size")
    if shared:
        yield from _gated_mlp(f"{mlp}.shared_expert", hidden, shared)
        yield _Module(f"{mlp}.shared_expert_gate", hidden)
    for key in ("n_shared_experts", "num_shared_expert", "moe_num_shared_experts"):
        if text.get(key):
            yield from _gated_mlp(f"{mlp}.shared_experts", hidden, inner * _of_layer(text, key, index))
    if family in ("deepseek_v3", "dots1", "ernie4_5_moe", "glm4_moe", "kimi_k2"):
        yield _Module(f"{mlp}.gate.e_score_correction_bias", count, size=4)


def padded_experts(hidden: int, inner: int) -> tuple[int, int]:
    """Return the sizes that the kernels of MXFP4 give an expert (read off gpt-oss-20b in vLLM 0.33.0)."""
    return -(-hidden // 256) * 256, -(-inner // 128) * 128


def _nemotron_layer(text: Config, layer: object, letter: str, prefix: str) -> Iterator[_Module]:
    hidden = _field(text, "hidden_size")
    yield _Module(f"{prefix}.norm", hidden)
    if isinstance(layer, Recurrent):
        yield from _mamba2(text, layer, f"{prefix}.mixer")
    elif isinstance(layer, Attention):
        yield from _attention(text, "nemotron_h", layer, f"{prefix}.mixer")
    elif letter == "-":
        yield _linear(f"{prefix}.mixer.up_proj", _field(text, "intermediate_size"), hidden)
        yield _linear(f"{prefix}.mixer.down_proj", hidden, _field(text, "intermediate_size"))
    else:
        count = _field(text, "n_routed_experts")
        yield _Module(f"{prefix}.mixer.gate", count, hidden, size=4)
        yield _Module(f"{prefix}.mixer.gate.e_score_correction_bias", count, size=4)
        yield from _experts(f"{prefix}.mixer", count, hidden, _field(text, "moe_intermediate_size"), matrices=2)
        shared = _field(text, "moe_shared_expert_intermediate_size") * _optional(text, "n_shared_experts")
        if shared:
            yield _linear(f"{prefix}.mixer.shared_experts.up_proj", shared, hidden)
            yield _linear(f"{prefix}.mixer.shared_experts.down_proj", hidden, shared)


def _layer(text: Config, family: str, index: int, layer: object, prefix: str, padded: bool) -> Iterator[_Module]:
    """All modules of one decoder layer."""
    if family == "nemotron_h":
        yield from _nemotron_layer(text, layer, str(text["hybrid_override_pattern"])[index], prefix)
        return
    hidden = _field(text, "hidden_size")
    yield _Module(f"{prefix}.norms", hidden * _FAMILIES[family].norms)
    if isinstance(layer, Recurrent):
        yield from _gated_delta_net(text, family, layer, f"{prefix}.linear_attn")
    elif isinstance(layer, Attention) and layer.kind == "mla":
        yield from _latent_attention(text, f"{prefix}.self_attn")
    elif isinstance(layer, Attention):
        yield from _attention(text, family, layer, f"{prefix}.self_attn")
    yield from _feed_forward(text, family, index, prefix, padded)


def _vision_merger(prefix: str, norm: int, merged: int, out: int) -> Iterator[_Module]:
    yield _Module(f"{prefix}.norm", norm)
    yield _linear(f"{prefix}.linear_fc1", merged, merged)
    yield _linear(f"{prefix}.linear_fc2", out, merged)
    yield _Module(f"{prefix}.split_biases", merged, split=True)
    yield _Module(f"{prefix}.biases", out)


def _qwen3_vision(vision: Config) -> Iterator[_Module]:
    hidden, inner = _field(vision, "hidden_size"), _field(vision, "intermediate_size")
    patch = prod(_field(vision, key) for key in ("in_channels", "temporal_patch_size", "patch_size", "patch_size"))
    yield _Module("visual.patch_embed", hidden, patch + 1)
    yield _Module("visual.pos_embed", _field(vision, "num_position_embeddings"), hidden)
    for index in range(_field(vision, "depth", MAX_LAYERS)):
        block = f"visual.blocks.{index}"
        yield _Module(f"{block}.norms", 4 * hidden)
        yield _linear(f"{block}.attn.qkv", 3 * hidden, hidden)
        yield _linear(f"{block}.attn.proj", hidden, hidden)
        yield _linear(f"{block}.mlp.linear_fc1", inner, hidden)
        yield _linear(f"{block}.mlp.linear_fc2", hidden, inner)
        yield _Module(f"{block}.split_biases", 3 * hidden + inner, split=True)
        yield _Module(f"{block}.biases", 2 * hidden)
    merged, out = hidden * _field(vision, "spatial_merge_size") ** 2, _field(vision, "out_hidden_size")
    yield from _vision_merger("visual.merger", 2 * hidden, merged, out)
    for index in range(len(vision.get("deepstack_visual_indexes") or [])):
        yield from _vision_merger(f"visual.deepstack_merger_list.{index}", 2 * merged, merged, out)


def _qwen2_vision(vision: Config, newer: bool) -> Iterator[_Module]:
    """The tower of Qwen2-VL, or of Qwen2.5-VL, whose norms have no biases and whose MLP is gated."""
    hidden = _field(vision, "hidden_size" if newer else "embed_dim")
    channels = _optional(vision, "in_channels") or _optional(vision, "in_chans") or 3
    inner = _field(vision, "intermediate_size") if newer else hidden * _field(vision, "mlp_ratio")
    patch = channels * prod(_field(vision, key) for key in ("temporal_patch_size", "patch_size", "patch_size"))
    yield _Module("visual.patch_embed", hidden, patch)
    for index in range(_field(vision, "depth", MAX_LAYERS)):
        block = f"visual.blocks.{index}"
        yield _Module(f"{block}.norms", (2 if newer else 4) * hidden)
        yield _linear(f"{block}.attn.qkv", 3 * hidden, hidden)
        yield _linear(f"{block}.attn.proj", hidden, hidden)
        if newer:
            yield from _gated_mlp(f"{block}.mlp", hidden, inner)
        else:
            yield _linear(f"{block}.mlp.fc1", inner, hidden)
            yield _linear(f"{block}.mlp.fc2", hidden, inner)
        yield _Module(f"{block}.split_biases", 3 * hidden + (2 if newer else 1) * inner, split=True)
        yield _Module(f"{block}.biases", 2 * hidden)
    merged = hidden * _field(vision, "spatial_merge_size") ** 2
    out = _field(vision, "out_hidden_size" if newer else "hidden_size")
    yield from _vision_merger("visual.merger", (1 if newer else 2) * hidden, merged, out)


def _gemma4_vision(vision: Config, out: int) -> Iterator[_Module]:
    hidden = _field(vision, "hidden_size")
    yield _Module("vision_tower.patch_embedder.input_proj", hidden, 3 * _field(vision, "patch_size") ** 2)
    yield _Module("vision_tower.patch_embedder.positions", 2 * _field(vision, "position_embedding_size"), hidden)
    for index in range(_field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.encoder.layers.{index}"
        yield _linear(f"{block}.self_attn", 4 * hidden, hidden)
        yield _Module(f"{block}.norms", 4 * hidden + 2 * _field(vision, "head_dim"))
        yield from _gated_mlp(f"{block}.mlp", hidden, _field(vision, "intermediate_size"))
    yield _Module("embed_vision.embedding_projection", out, hidden)


def _siglip(vision: Config, out: int) -> Iterator[_Module]:
    """SigLIP and the projection of Gemma 3."""
    hidden, inner, patch = (_field(vision, key) for key in ("hidden_size", "intermediate_size", "patch_size"))
    yield _Module("vision_tower.embeddings.patch_embedding", hidden, 3 * patch**2 + 1)
    yield _Module("vision_tower.embeddings.position_embedding", (_field(vision, "image_size") // patch) ** 2, hidden)
    for index in range(_field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.encoder.layers.{index}"
        yield _linear(f"{block}.self_attn", 4 * hidden, hidden)
        yield _linear(f"{block}.mlp.fc1", inner, hidden)
        yield _linear(f"{block}.mlp.fc2", hidden, inner)
        yield _Module(f"{block}.split_biases", 3 * hidden + inner, split=True)
        yield _Module(f"{block}.norms_and_biases", 6 * hidden)
    yield _Module("vision_tower.post_layernorm", 2 * hidden)
    yield _Module("multi_modal_projector.mm_input_projection_weight", hidden, out)
    yield _Module("multi_modal_projector.mm_soft_emb_norm", hidden)


def _pixtral(vision: Config, out: int, merge: int) -> Iterator[_Module]:
    """Pixtral and the projector of Mistral 3."""
    hidden, patch = _field(vision, "hidden_size"), _field(vision, "patch_size")
    yield _Module("vision_tower.patch_conv", hidden, 3 * patch**2)
    yield _Module("vision_tower.ln_pre", hidden)
    for index in range(_field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.transformer.layers.{index}"
        yield _linear(f"{block}.attention", 4 * hidden, hidden)
        yield from _gated_mlp(f"{block}.feed_forward", hidden, _field(vision, "intermediate_size"))
        yield _Module(f"{block}.norms", 2 * hidden)
    yield _Module("multi_modal_projector.norm", hidden)
    yield _Module("multi_modal_projector.patch_merger", hidden, hidden * merge**2)
    yield _linear("multi_modal_projector.linear_1", out, hidden)
    yield _linear("multi_modal_projector.linear_2", out, out)


def _vision(config: Config, family: str) -> Iterator[_Module]:
    """The vision tower; only the families whose tower is known."""
    vision = config.get("vision_config")
    if config.get("audio_config"):
        raise Refusal("config.audio_config", "the weights of the audio tower are not known", _GIVE)
    if not isinstance(vision, dict):
        return
    kind, out = str(config.get("model_type")), _field(text_config(config), "hidden_size")
    if kind in _QWEN3_VISION:
        yield from _qwen3_vision(vision)
    elif kind in _QWEN2_VISION:
        yield from _qwen2_vision(vision, kind == "qwen2_5_vl")
    elif family in _GEMMA4:
        yield from _gemma4_vision(vision, out)
    elif kind == "gemma3" and vision.get("model_type") == "siglip_vision_model":
        yield from _siglip(vision, out)
    elif kind == "mistral3" and vision.get("model_type") == "pixtral" and not config.get("multimodal_projector_bias"):
        yield from _pixtral(vision, out, _field(config, "spatial_merge_size"))
    else:
        raise Refusal(
            "config.vision_config",
            f"the weights of the vision tower of {kind!r} are not known",
            f"{_GIVE}, or set language-model-only",
        )


# Sums ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Over how many ranks the weights go: tensor parallel, pipeline stages, and whether experts are handed out whole."""

    tensor: int = 1
    pipeline: int = 1
    experts: bool = False

    def stage_of(self, count: int) -> list[int]:
        """Return the stage of each of C(count) layers (vllm/distributed/utils.py, get_pp_indices)."""
        sizes = [count // self.pipeline] * self.pipeline
        for index in range(count % self.pipeline):
            sizes[-2 - index] += 1
        return [stage for stage, size in enumerate(sizes) for _each in range(size)]


def _bytes(module: _Module, quantization: _Quantization | None, dtype_bytes: int, split: Split) -> int:
    """Bytes of one module on one rank."""
    stored = quantization.format_of(module) if quantization else None
    plain = module.rows * module.columns * (module.size or dtype_bytes)
    one = stored.size(module.rows, module.columns) if stored else plain
    if module.experts and split.experts:
        return one * (module.count // module.experts) * -(-module.experts // split.tensor)
    size = one * module.count
    if not module.split:
        return size
    # With fewer kv heads than ranks every rank keeps one head.
    return -(-size // (min(split.tensor, module.pieces) if module.pieces else split.tensor))


def is_tied(config: Config) -> bool:
    """Tell whether the embedding is the head, too."""
    text = text_config(config)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    family = _FAMILIES.get(str(text.get("model_type") or config.get("model_type")))
    return bool(family and family.tied) if tied is None else bool(tied)


def padded_vocabulary(size: int) -> int:
    """Return the rows of an embedding: vLLM pads the vocabulary to 64."""
    return -(-size // 64) * 64


def part_of(name: str) -> str:
    """Name the part of a layer that a module belongs to: its attention, its MLP with all experts.

    vLLM completes and quantises a linear layer or a set of experts at a time, which is at most such a part
    (model_executor/model_loader/reload/layerwise.py).
    """
    found = _PART.search(name)
    return found.group() if found else name


def _check_family(family: str) -> None:
    if family not in _FAMILIES:
        raise Refusal("config.model_type", f"the weights of the family {family!r} are not known", _GIVE)


def weights_bytes(
    config: Config,
    geometry: Geometry,
    *,
    quant_config: Config | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: bool = False,
    runtime_quantization: str = "",
    vision: bool = True,
    mtp: bool = False,
) -> Weights:
    """Count the bytes of the weights of one rank, of the fullest pipeline stage.

    config, quant_config: C(config.json) and C(hf_quant_config.json). geometry: of the same config.
    expert_parallel: C(--enable-expert-parallel).
    runtime_quantization: C(--quantization); only read where the checkpoint itself is not quantised.
    vision: count the vision tower. mtp: count the multi-token-prediction layers.
    Raises C(Refusal) for a family or a format that is not known.
    """
    text = text_config(config)
    family = geometry.model_type
    _check_family(family)
    quantization = _Quantization(config, quant_config, runtime_quantization)
    dtype_bytes = 4 if geometry.dtype == "float32" else 2
    hidden = _field(text, "hidden_size")
    vocabulary = padded_vocabulary(_field(text, "vocab_size"))
    padded = quantization.padded_experts
    split = Split(tensor_parallel, pipeline_parallel, expert_parallel)
    count = len(geometry.layers)

    stages: list[list[_Module]] = [[] for _each in range(pipeline_parallel)]
    for index, (layer, stage) in enumerate(zip(geometry.layers, split.stage_of(count))):
        if layer is None and family != "nemotron_h":
            layer = geometry.attention[-1]  # it reads the cache of another layer, but has weights of its own
        stages[stage] += _layer(text, family, index, layer, f"layers.{index}", padded)
    embedding = _Module("embed_tokens", vocabulary, hidden, split=True)
    stages[0].append(embedding)
    stages[-1].append(_Module("norm", hidden * _FAMILIES[family].final))
    if not is_tied(config):
        stages[-1].append(_linear("lm_head", vocabulary, hidden))
        if text.get("lm_head_bias"):
            stages[-1].append(_Module("lm_head.bias", vocabulary, split=True))
    elif pipeline_parallel > 1:
        stages[-1].append(embedding)  # the last stage needs it as its head
    per_layer = _optional(text, "hidden_size_per_layer_input")
    if per_layer:
        rows = _optional(text, "vocab_size_per_layer_input") or vocabulary
        stages[0].append(_Module("embed_tokens_per_layer", rows, per_layer * count, split=True))
    tower = list(_vision(config, family)) if vision else []

    def total(parts: list[_Module], formats: _Quantization | None) -> int:
        return sum(_bytes(module, formats, dtype_bytes, split) for module in parts)

    seen = total(tower, quantization)
    target = max(total(stage, quantization) for stage in stages) + seen
    draft = total(list(_mtp(text, family, geometry, padded)), quantization) if mtp else 0
    if not quantization.runtime:
        return Weights(target, draft, target, seen)
    peak = max(total(stage, None) for stage in stages) + total(tower, None)
    parts: dict[str, int] = {}
    for module in (*(module for stage in stages for module in stage), *tower):
        if quantization.format_of(module):
            part = part_of(module.name)
            parts[part] = parts.get(part, 0) + _bytes(module, None, dtype_bytes, split)
    return Weights(target, draft, peak, seen, min(peak, target + max(parts.values(), default=0)))


def _mtp(text: Config, family: str, geometry: Geometry, padded: bool) -> Iterator[_Module]:
    """The multi-token-prediction layers, without the embedding and the head that they share with the model."""
    if geometry.mtp_layer is None:
        return
    hidden, count = _field(text, "hidden_size"), len(geometry.layers)
    for index in range(geometry.mtp_layers):
        # The layers count on: a checkpoint names them mtp.layers.N or layers.(last + N).
        name = f"mtp.layers.{index}" if family in _GDN else f"layers.{count + index}"
        yield from _layer(text, family, count + index, geometry.mtp_layer, name, padded)
        yield _Module(f"{name}.norms", 2 * hidden)
        if family not in _GDN:  # every layer of DeepSeek and GLM projects for itself, those of Qwen share one
            yield replace(_linear(f"{name}.eh_proj", hidden, 2 * hidden), split=False, linear=False)
            yield _Module(f"{name}.shared_head.norm", hidden)
    if family in _GDN:
        yield replace(_linear("mtp.fc", hidden, 2 * hidden), linear=False)
        yield _Module("mtp.norm", hidden)


def drafter_bytes(config: Config, geometry: Geometry, method: str, *, tensor_parallel: int = 1) -> int:
    """Count the bytes of a separate drafter on one rank.

    method: C(draft_model) is a whole model; C(eagle) and C(eagle3) are a few layers that read the hidden states of the
    model through a projection and share its embedding, EAGLE also its head (llama_eagle.py, llama_eagle3.py).
    """
    if method not in ("eagle", "eagle3"):
        return weights_bytes(config, geometry, tensor_parallel=tensor_parallel, vision=False).target
    text, family = text_config(config), geometry.model_type
    _check_family(family)
    hidden = _field(text, "hidden_size")
    third = method == "eagle3"
    source = _optional(text, "target_hidden_size") or hidden
    parts = [_Module("fc", hidden, 3 * source if third else 2 * hidden)]
    for index, layer in enumerate(geometry.attention):
        name = f"layers.{index}"
        parts.append(_Module(f"{name}.norms", (3 if third else 2) * hidden))
        parts += _attention(text, family, layer, f"{name}.self_attn", 2 if third and index == 0 else 1)
        parts += _feed_forward(text, family, index, name, False)
    if third:
        vocabulary = _optional(text, "draft_vocab_size") or _field(text, "vocab_size")
        parts += [_Module("norm", hidden), _Module("lm_head", padded_vocabulary(vocabulary), hidden, split=True)]
        parts.append(_Module("d2t", vocabulary, size=8))
    formats = _Quantization(config, None, "")
    size = 4 if geometry.dtype == "float32" else 2
    return sum(_bytes(part, formats, size, Split(tensor_parallel)) for part in parts)
