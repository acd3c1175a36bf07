# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of a model's weights on one rank, from its config and its quantisation.

The modules of a model are listed by the names of its checkpoint, because quantisation configs name the modules that they
spare; each is then counted in the format that it is stored in, and divided over the ranks as vLLM divides it. The sums
were compared with the parameters of vLLM's own model classes (0.33.0). A sum over the safetensors headers is always the
better source: give it as C(weights_gib) to the budget, and this file is not asked.

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

# Families with the module layout of Llama: q/k/v/o projections, gate/up/down, two norms.
_PLAIN = frozenset(
    (
        "glm4_moe",
        "granite",
        "internlm3",
        "llama",
        "ministral",
        "mistral",
        "mistral3",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
    )
)
_QK_NORM = frozenset(("olmo2", "qwen3", "qwen3_moe"))
_GDN = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))
_GEMMA4 = frozenset(("gemma4", "gemma4_text"))
_QWEN_VISION = frozenset(("qwen3_5", "qwen3_5_moe"))


@dataclass(frozen=True)
class Weights:
    """Bytes of one rank.

    target: the model itself. draft: the multi-token-prediction layers, without the embedding and the head that they share.
    load_peak: what the target takes while it loads; larger than C(target) where it is quantised at load time.
    """

    target: int
    draft: int
    load_peak: int


@dataclass(frozen=True)
class _Module:
    """C(count) matrices of C(rows) x C(columns), or vectors where C(columns) is 1.

    split: whether tensor parallelism divides it. pieces: into how many at most (kv heads), 0 for any number.
    linear: whether quantisation may apply. size: bytes of an element that is never quantised, 0 for the model's dtype.
    """

    name: str
    rows: int
    columns: int = 1
    count: int = 1
    split: bool = False
    pieces: int = 0
    linear: bool = False
    size: int = 0


# Formats ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Format:
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


_FP8_TENSOR = _Format(8)
_FP8_CHANNEL = _Format(8, scale=4)
_NVFP4 = _Format(4, group=16, scale=1)
_MXFP4 = _Format(4, group=32, scale=1)
_ALGORITHMS = {
    "FP8": _FP8_TENSOR,
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": _NVFP4,
    "NVFP4_AWQ": _NVFP4,
    "MXFP8": _Format(8, 32, 1),
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8_CHANNEL,
    "FP8_PB_WO": _Format(8, 128, 4, 128),
}
# --quantization on a checkpoint that has none: vLLM loads 16 bits and converts.
_RUNTIME = {"fp8": _FP8_TENSOR, "fp8_per_tensor": _FP8_TENSOR, "fp8_per_block": _Format(8, 128, 4, 128)}


def _int_field(quantization: Config, key: str, where: str) -> int:
    value = quantization.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{where}.{key}", f"expected a whole number, got {value!r}", _GIVE)
    return value


def _fp8_blocks(source: Config, key: str, where: str) -> _Format:
    block = source.get(key)
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(size, int) and size > 0 for size in block):
        raise Refusal(f"{where}.{key}", f"expected two sizes, got {block!r}", _GIVE)
    return _Format(8, block[1], 4, block[0])


def _weights_format(weights: Config, where: str) -> _Format:
    """Read one C(weights) entry of compressed-tensors (or modelopt's config_groups)."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0
    if isinstance(group, bool) or not isinstance(group, int):
        raise Refusal(f"{where}.group_size", f"expected a whole number, got {group!r}", _GIVE)
    if (bits, kind) == (8, "float"):
        if weights.get("block_structure") is not None:
            return _fp8_blocks(weights, "block_structure", where)
        return _FP8_CHANNEL if weights.get("strategy") == "channel" else _FP8_TENSOR
    if (bits, kind) == (4, "float") and group in (16, 32):
        return _NVFP4 if group == 16 else _MXFP4
    if bits in (4, 8) and kind == "int":
        if group > 0:
            return _Format(int(bits), group, 2, zero_bits=0 if weights.get("symmetric", True) else int(bits))
        return _Format(int(bits), scale=2)
    raise Refusal(where, f"weights of {bits!r} bits of type {kind!r} are not known", _GIVE)


def _plain_name(name: str) -> str:
    """Take the prefix off a module name; checkpoints of the same model differ in it."""
    return re.sub(r"^(?:model\.)?(?:language_model\.)?(?:model\.)?", "", name)


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
        self._default: _Format | None = None
        self._groups: list[tuple[_Names, _Format]] = []
        self._layers: dict[str, _Format] = {}
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
                if runtime not in _RUNTIME:
                    raise Refusal(
                        "args.quantization",
                        f"quantisation {runtime!r} of a checkpoint that has none is not known",
                        _GIVE,
                    )
                self._default, self.runtime = _RUNTIME[runtime], True
            return
        method = str(quantization.get("quant_method") or "modelopt").lower()
        if method in ("modelopt", "modelopt_fp4", "modelopt_mixed", "compressed-tensors"):
            self._read_groups(quantization, where)
        elif method == "fp8":
            blocks = quantization.get("weight_block_size") is not None
            self._default = _fp8_blocks(quantization, "weight_block_size", where) if blocks else _FP8_TENSOR
        elif method in ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "auto_round"):
            bits, group = _int_field(quantization, "bits", where), _int_field(quantization, "group_size", where)
            # vLLM keeps zero points also of symmetric checkpoints.
            self._default = _Format(bits, max(group, 0), 2, zero_bits=bits, order=bool(quantization.get("desc_act")))
        elif method == "mxfp4":
            self._default, self._only_experts, self.padded_experts = _MXFP4, True, True
        else:
            raise Refusal(f"{where}.quant_method", f"quantisation {method!r} is not known", _GIVE)

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
    def _algorithm(name: object, where: str) -> _Format:
        found = _ALGORITHMS.get(str(name).upper())
        if found is None:
            raise Refusal(f"{where}.quant_algo", f"quantisation {name!r} is not known", _GIVE)
        return found

    def format_of(self, module: _Module) -> _Format | None:
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


def _attention(text: Config, family: str, layer: Attention, prefix: str) -> Iterator[_Module]:
    hidden, heads = _field(text, "hidden_size"), _field(text, "num_attention_heads")
    query = heads * layer.head_dim * (2 if family in _GDN else 1)  # the output gate doubles the query projection
    key = layer.kv_heads * layer.head_dim
    yield _linear(f"{prefix}.q_proj", query, hidden)
    yield _linear(f"{prefix}.k_proj", key, hidden, pieces=layer.kv_heads)
    yield _linear(f"{prefix}.v_proj", key, hidden, pieces=layer.kv_heads)
    yield _linear(f"{prefix}.o_proj", hidden, heads * layer.head_dim)
    if text.get("attention_bias") or family in ("qwen2", "qwen2_moe"):
        yield _Module(f"{prefix}.bias", query + 2 * key, split=True)
        if family == "gpt_oss":
            yield _Module(f"{prefix}.o_bias", hidden)
            yield _Module(f"{prefix}.sinks", heads, split=True)
    if family in _QK_NORM | _GDN | _GEMMA4 or (family == "glm4_moe" and text.get("use_qk_norm")):
        yield _Module(f"{prefix}.qk_norm", 2 * layer.head_dim)


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


def _experts(prefix: str, count: int, hidden: int, inner: int, matrices: int = 3) -> Iterator[_Module]:
    yield _linear(f"{prefix}.experts", inner, hidden, count * (matrices - 1))
    yield _linear(f"{prefix}.experts", hidden, inner, count)


def _feed_forward(text: Config, family: str, index: int, prefix: str, padded: bool) -> Iterator[_Module]:
    """The MLP or the mixture of experts of layer C(index)."""
    hidden = _field(text, "hidden_size")
    count = next(
        (_field(text, key) for key in ("num_experts", "num_local_experts", "n_routed_experts") if text.get(key)), 0
    )
    only_dense = text.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        raise Refusal("config.mlp_only_layers", f"expected a list, got {only_dense!r}", _GIVE)
    dense = (
        not count
        or index in only_dense
        or index < _optional(text, "first_k_dense_replace")
        or (index + 1) % (_optional(text, "decoder_sparse_step") or 1) != 0
    )
    if family in _GEMMA4:
        yield from _gated_mlp(f"{prefix}.mlp", hidden, _field(text, "intermediate_size"))
        if text.get("enable_moe_block"):
            yield _Module(f"{prefix}.router", count, hidden)
            yield _Module(f"{prefix}.router.scales", hidden + count)
            yield _Module(f"{prefix}.moe_norms", 3 * hidden)
            yield from _experts(f"{prefix}", count, hidden, _field(text, "moe_intermediate_size"))
        return
    if dense:
        yield from _gated_mlp(f"{prefix}.mlp", hidden, _field(text, "intermediate_size"))
        return
    mlp = f"{prefix}.block_sparse_moe" if family == "mixtral" else f"{prefix}.mlp"
    inner = _field(text, "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size")
    yield _Module(f"{mlp}.gate", count, hidden)
    if padded:
        # The kernels of MXFP4 want 128 and 256 (read off the parameters of gpt-oss-20b in vLLM 0.33.0).
        wide, inner = -(-hidden // 256) * 256, -(-inner // 128) * 128
        yield from _experts(mlp, count, wide, inner)
    else:
        wide = hidden
        yield from _experts(mlp, count, hidden, inner)
    if family == "gpt_oss":
        yield _Module(f"{mlp}.gate_bias", count)
        yield _Module(f"{mlp}.expert_bias", 2 * inner + wide, 1, count, split=True)
    shared = _optional(text, "shared_expert_intermediate_size")
    if shared:
        yield from _gated_mlp(f"{mlp}.shared_expert", hidden, shared)
        yield _Module(f"{mlp}.shared_expert_gate", hidden)
    elif text.get("n_shared_experts"):
        yield from _gated_mlp(f"{mlp}.shared_experts", hidden, inner * _field(text, "n_shared_experts"))
        yield _Module(f"{mlp}.gate.e_score_correction_bias", count, size=4)


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
    yield _Module(f"{prefix}.norms", hidden * (4 if family in _GEMMA4 else 2))
    if isinstance(layer, Recurrent):
        yield from _gated_delta_net(text, family, layer, f"{prefix}.linear_attn")
    elif isinstance(layer, Attention) and layer.kind == "mla":
        yield from _latent_attention(text, f"{prefix}.self_attn")
    elif isinstance(layer, Attention):
        yield from _attention(text, family, layer, f"{prefix}.self_attn")
    yield from _feed_forward(text, family, index, prefix, padded)


def _vision(config: Config, family: str) -> Iterator[_Module]:
    """The vision tower; only the families whose tower is known."""
    vision = config.get("vision_config")
    if config.get("audio_config"):
        raise Refusal("config.audio_config", "the weights of the audio tower are not known", _GIVE)
    if not isinstance(vision, dict):
        return
    hidden, inner = _field(vision, "hidden_size"), _field(vision, "intermediate_size")
    if str(config.get("model_type")) in _QWEN_VISION:
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
        yield _Module("visual.merger.norm", 2 * hidden)
        yield _linear("visual.merger.linear_fc1", merged, merged)
        yield _linear("visual.merger.linear_fc2", out, merged)
        yield _Module("visual.merger.split_biases", merged, split=True)
        yield _Module("visual.merger.biases", out)
    elif family in _GEMMA4:
        yield _Module("vision_tower.patch_embedder.input_proj", hidden, 3 * _field(vision, "patch_size") ** 2)
        yield _Module("vision_tower.patch_embedder.positions", 2 * _field(vision, "position_embedding_size"), hidden)
        for index in range(_field(vision, "num_hidden_layers", MAX_LAYERS)):
            block = f"vision_tower.encoder.layers.{index}"
            yield _linear(f"{block}.self_attn", 4 * hidden, hidden)
            yield _Module(f"{block}.norms", 4 * hidden + 2 * _field(vision, "head_dim"))
            yield from _gated_mlp(f"{block}.mlp", hidden, inner)
        yield _Module("embed_vision.embedding_projection", _field(text_config(config), "hidden_size"), hidden)
    else:
        raise Refusal(
            "config.vision_config",
            f"the weights of the vision tower of {config.get('model_type')!r} are not known",
            f"{_GIVE}, or set language-model-only",
        )


# Sums ---------------------------------------------------------------------------------------------------------------


def _bytes(module: _Module, quantization: _Quantization | None, dtype_bytes: int, ranks: int) -> int:
    """Bytes of one module on one rank."""
    stored = quantization.format_of(module) if quantization else None
    if stored is None:
        size = module.rows * module.columns * module.count * (module.size or dtype_bytes)
    else:
        size = stored.size(module.rows, module.columns) * module.count
    if not module.split:
        return size
    # With fewer kv heads than ranks every rank keeps one head.
    return -(-size // (min(ranks, module.pieces) if module.pieces else ranks))


def weights_bytes(
    config: Config,
    geometry: Geometry,
    *,
    quant_config: Config | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    runtime_quantization: str = "",
    vision: bool = True,
    mtp: bool = False,
) -> Weights:
    """Count the bytes of the weights of one rank.

    config, quant_config: C(config.json) and C(hf_quant_config.json). geometry: of the same config.
    runtime_quantization: C(--quantization); only read where the checkpoint itself is not quantised.
    vision: count the vision tower. mtp: count the multi-token-prediction layers.
    Raises C(Refusal) for a family or a format that is not known.
    """
    text = text_config(config)
    family = geometry.model_type
    known = _PLAIN | _GDN | _GEMMA4 | {"gpt_oss", "nemotron_h", "deepseek_v2", "deepseek_v3", "kimi_k2"}
    if family not in known:
        raise Refusal("config.model_type", f"the weights of the family {family!r} are not known", _GIVE)
    quantization = _Quantization(config, quant_config, runtime_quantization)
    dtype_bytes = 4 if geometry.dtype == "float32" else 2
    hidden = _field(text, "hidden_size")
    vocabulary = -(-_field(text, "vocab_size") // 64) * 64  # vLLM pads the vocabulary to 64
    padded = quantization.padded_experts

    modules: list[_Module] = []
    # The fullest pipeline stage; it is counted with the embedding and the head.
    for index, layer in enumerate(geometry.layers[: -(-len(geometry.layers) // pipeline_parallel)]):
        if layer is None and family != "nemotron_h":
            layer = geometry.attention[-1]  # it reads the cache of another layer, but has weights of its own
        modules += _layer(text, family, index, layer, f"layers.{index}", padded)
    modules.append(_Module("embed_tokens", vocabulary, hidden, split=True))
    modules.append(_Module("norm", hidden))
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if not (True if tied is None and family in _GEMMA4 else tied):
        modules.append(_linear("lm_head", vocabulary, hidden))
    per_layer = _optional(text, "hidden_size_per_layer_input")
    if per_layer:
        modules.append(
            _Module(
                "embed_tokens_per_layer",
                _optional(text, "vocab_size_per_layer_input") or vocabulary,
                per_layer * len(geometry.layers),
                split=True,
            )
        )
    if vision:
        modules += _vision(config, family)

    def total(parts: list[_Module], formats: _Quantization | None) -> int:
        return sum(_bytes(module, formats, dtype_bytes, tensor_parallel) for module in parts)

    target = total(modules, quantization)
    draft = 0
    if mtp and geometry.mtp_layer is not None:
        parts: list[_Module] = []
        for index in range(geometry.mtp_layers):
            # The layers count on: a checkpoint names them mtp.layers.N or layers.(last + N).
            name = f"mtp.layers.{index}" if family in _GDN else f"layers.{len(geometry.layers) + index}"
            parts += _layer(text, family, len(geometry.layers) + index, geometry.mtp_layer, name, padded)
            parts.append(_Module(f"{name}.norms", 2 * hidden))
        parts.append(replace(_linear("mtp.fc", hidden, 2 * hidden), linear=False))
        parts.append(_Module("mtp.norm", hidden))
        draft = total(parts, quantization)
    return Weights(target, draft, total(modules, None) if quantization.runtime else target)
