# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quantisations with their own rules for the format of each matrix: Quark, torchao and bitsandbytes.

Each is a function of a config that returns a rule: the format of a module, C(None) for the model's own dtype. All three leave the
embedding and the head unquantised. The rules follow vllm/model_executor/layers/quantization/ (quark/, torchao.py of 0.33.0 with
torchao 0.18.0; bitsandbytes.py of 0.27.1, the last with it). Formats outside of the rules are a C(Refusal).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from .._common.plain_data import is_whole
from .formats import FP8_BLOCKS, FP8_CHANNEL, FP8_TENSOR, MXFP4, MXFP8, NVFP4, Format
from .layers import Config, Refusal
from .modules import GIVE, Module

Rule = Callable[[Module], "Format | None"]

# The last minor release with bitsandbytes; from 0.28 on it is a plugin (vllm-bnb-plugin) whose releases were not compared.
BITSANDBYTES_UNTIL = 27
# FP8 in blocks, INT4 and MXFP8 of Quark: read in 0.33.0, refused by 0.27.1, and those between were not asked.
_QUARK_NEWER_SINCE = 33
# Formats with a scale of 8 bits for each 32 weights, by the dtype of the weights.
_QUARK_MX = {"fp4": MXFP4, "fp8_e4m3": MXFP8, "fp6_e2m3": Format(6, 32, 1), "fp6_e3m2": Format(6, 32, 1)}
# In place of the projections of a checkpoint stand, in vLLM's classes, matrices that have several in one.
_JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}


def _names(module: Module) -> tuple[str, ...]:
    """Return what a module may be called: checkpoints differ in the prefix of the model."""
    prefixes = ("", "model.", "language_model.model.", "model.language_model.", "backbone.")
    return tuple(f"{prefix}{module.name}" for prefix in prefixes)


def _mapping(value: Any, where: str) -> Config:
    if not isinstance(value, dict):
        raise Refusal(where, f"expected a mapping, got {value!r}", GIVE)
    return value


def _texts(source: Config, key: str, where: str) -> list[str]:
    value = source.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refusal(f"{where}.{key}", f"expected a list of modules, got {value!r}", GIVE)
    return value


# Quark ----------------------------------------------------------------------------------------------------------------


def _quark_groups(weight: Config, where: str) -> Format | None:
    """Read weights with a scale for each group or block: the MX formats, FP8 in blocks, 4 bits."""
    kind, scheme, group = str(weight.get("dtype")), weight.get("qscheme"), weight.get("group_size")
    if scheme == "per_block" and kind == "fp8_e4m3":
        block = list(weight.get("block_size") or [])
        if block == [128, 128]:
            return replace(FP8_BLOCKS, scale=1) if weight.get("scale_type") == "float8_e8m0fnu" else FP8_BLOCKS
        # Blocks of 32 inputs are loaded with a scale for each row.
        return MXFP8 if len(block) == 2 and block[1] == 32 else None
    if scheme != "per_group":
        return None
    if group == 32 and weight.get("scale_format") == "e8m0" and kind in _QUARK_MX:
        return _QUARK_MX[kind]
    if kind not in ("int4", "uint4"):
        return None
    if not is_whole(group, 1):
        raise Refusal(f"{where}.group_size", f"expected a whole number, got {group!r}", GIVE)
    return Format(4, int(group or 0), 2, zero_bits=4)  # symmetric weights have zero points too


def _quark_format(entry: Config, where: str) -> Format:
    """Read how one entry of a Quark config stores weights (QuarkConfig._get_scheme_cls_from_config)."""
    weight = entry.get("weight")
    if isinstance(weight, list) and len(weight) == 1:  # QuarkConfig._unwrap_single_quant_config
        weight = weight[0]
    if isinstance(weight, list):
        # Quantised twice: NVFP4. INT4 below FP8 has kernels for GPUs of AMD alone (QuarkW4A8Fp8MoEMethod).
        kinds = [(step.get("dtype"), step.get("qscheme")) for step in weight if isinstance(step, dict)]
        if kinds == [("fp4", "per_group"), ("fp8_e4m3", "per_tensor")] and weight[0].get("group_size") == 16:
            return NVFP4
        raise Refusal(f"{where}.weight", f"weights that are quantised as {kinds!r} are not known", GIVE)
    weight = _mapping(weight, f"{where}.weight")
    kind, scheme = weight.get("dtype"), weight.get("qscheme")
    if kind in ("fp8_e4m3", "int8") and scheme in ("per_tensor", "per_channel"):
        return FP8_CHANNEL if scheme == "per_channel" else FP8_TENSOR
    stored = _quark_groups(weight, f"{where}.weight")
    if stored is None:
        raise Refusal(f"{where}.weight", f"weights of type {kind!r} with {scheme!r} scales are not known", GIVE)
    return stored


def _quark_spared(names: tuple[str, ...], spared: list[str], experts: bool) -> bool:
    """Tell whether a module is not quantised; a set of experts is spared if one of its matrices is (quark/utils.py, should_ignore_layer)."""
    for pattern in spared:
        if pattern.startswith("re:"):
            if any(re.match(pattern[3:], name) for name in names):
                return True
        elif any(pattern == name or (experts and pattern.startswith(f"{name}.")) for name in names):
            return True
    return False


def quark(quantization: Config, where: str, minor: int) -> Rule:
    """Read a config of Quark.

    :param minor: the 23 of vLLM 0.23
    :raises Refusal: for an unknown format, or a format that vLLM does not support
    """
    spared = _texts(quantization, "exclude", where)
    for pattern in spared:
        _check_expression(pattern, f"{where}.exclude")

    def read(entry: Any, key: str) -> Format:
        stored = _quark_format(_mapping(entry, key), key)
        if minor < _QUARK_NEWER_SINCE and (stored == MXFP8 or stored.block > 1 or stored.zero_bits):
            # Older releases answer "No quark compatible scheme was found".
            raise Refusal(key, f"these weights are known of Quark since vLLM 0.{_QUARK_NEWER_SINCE} alone", GIVE)
        return stored

    default = read(quantization.get("global_quant_config"), f"{where}.global_quant_config")
    layers = _mapping(quantization.get("layer_quant_config") or {}, f"{where}.layer_quant_config")
    if quantization.get("layer_type_quant_config"):
        # vLLM compares its keys, which are texts, with classes, so that none is ever found.
        raise Refusal(f"{where}.layer_type_quant_config", "formats by the type of a layer are not known", GIVE)
    format_by_pattern = {
        pattern: read(entry, f"{where}.layer_quant_config.{pattern}") for pattern, entry in layers.items()
    }

    def rule(module: Module) -> Format | None:
        names = _names(module)
        if module.name == "lm_head" or _quark_spared(names, spared, bool(module.experts)):
            return None
        stored = default
        for pattern, pattern_format in format_by_pattern.items():
            if any(fnmatch(name, pattern) if "*" in pattern else name in pattern for name in names[1:]):
                stored = pattern_format
                break
        if module.experts and stored.block == 128 and stored.scale == 1:
            # QuarkMoEMethod: "Unsupported weight quant key"
            raise Refusal(where, "vLLM has no kernel for experts in FP8 blocks with scales of 8 bits", GIVE)
        return replace(stored, tiles=True) if module.experts and stored == MXFP4 else stored

    return rule


def _check_expression(pattern: str, where: str) -> None:
    """Refuse an expression that Python does not read."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            raise Refusal(where, f"{pattern!r} is no regular expression: {error}", GIVE) from error


# torchao --------------------------------------------------------------------------------------------------------------


def _granularity(data: Mapping[str, Any], key: str = "granularity") -> tuple[str, Config]:
    """Return the part of a matrix that has one scale, and its sizes; of a pair (activations, weights) the second counts."""
    value = data.get(key)
    value = value[-1] if isinstance(value, list) and value else value
    if not isinstance(value, dict):
        return "", {}
    inner = value.get("_data")
    return str(value.get("_type")), inner if isinstance(inner, dict) else {}


def _torchao_eight(name: str, data: Config) -> Format | None:
    """Read the formats of 8 bits: Int8Tensor has zero points, Float8Tensor has not; scales of both are of 32 bits."""
    kind, _inner = _granularity(data)
    if name in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig") and data.get("group_size") is None:
        return {"PerRow": Format(8, scale=5), "": Format(8, scale=5), "PerTensor": FP8_TENSOR}.get(kind)
    if name == "Float8WeightOnlyConfig":
        return {"PerRow": FP8_CHANNEL, "": FP8_CHANNEL}.get(kind)
    if name == "Float8DynamicActivationFloat8WeightConfig":
        return {"PerRow": FP8_CHANNEL, "PerTensor": FP8_TENSOR, "": FP8_TENSOR}.get(kind)
    return None


def _torchao_few(name: str, data: Config) -> Format | None:
    """Read the formats of fewer bits: Int4Tensor with scales and zero points in 16 bits, IntxUnpackedToInt8Tensor in whole bytes."""
    if name == "Int4WeightOnlyConfig":
        group = data.get("group_size", 128)
        stored = Format(4, group, 4) if is_whole(group, 1) else None
        packing = _packing(data, "int4_packing_format", "plain")
        if stored is None or packing not in ("plain", "tile_packed_to_4d"):
            return None
        return replace(stored, multiple=1024) if packing == "tile_packed_to_4d" else stored
    keys = {"IntxWeightOnlyConfig": "granularity", "Int8DynamicActivationIntxWeightConfig": "weight_granularity"}
    if name not in keys or _packing(data, "intx_packing_format", "") != "unpacked_to_int8":
        return None
    kind, inner = _granularity(data, keys[name])
    group = inner.get("group_size")
    if kind == "PerGroup" and isinstance(group, int) and is_whole(group, 1):
        return Format(8, group, 3)
    return Format(8, scale=3) if kind == "PerAxis" and inner.get("axis") == 0 else None


def _packing(data: Config, key: str, default: str) -> str:
    """Return the name of a packing format in small letters."""
    packing = data.get(key) or default
    return str(packing.get("_data") if isinstance(packing, dict) else packing).lower()


def _torchao_format(entry: Any, where: str) -> Format:
    """Read how a serialised config of torchao stores weights (torchao.quantization.quant_api)."""
    entry = _mapping(entry, where)
    name, data = str(entry.get("_type")), _mapping(entry.get("_data") or {}, f"{where}._data")
    if entry.get("_version") != 2:
        raise Refusal(
            f"{where}._version",
            f"version {entry.get('_version')!r} of {name} is not known, as torchao 0.18 has version 2 alone",
            GIVE,
        )
    stored = _torchao_eight(name, data) or _torchao_few(name, data)
    if stored is None:
        raise Refusal(f"{where}._type", f"weights of {name} with these settings are not known", GIVE)
    return stored


def torchao(quantization: Config, where: str) -> Rule:
    """Read a config of torchao, as Transformers serialises it.

    :returns: the rule; experts stay in the dtype of the model, as TorchAOConfig quantises linear layers alone
    :raises Refusal: for a format that is not known
    """
    spared = list(_texts(quantization, "modules_to_not_convert", where))
    kinds = _mapping(quantization.get("quant_type"), f"{where}.quant_type")
    where = f"{where}.quant_type.default"
    entry = _mapping(kinds.get("default"), where)
    format_by_name: dict[str, Format | None] = {}
    default: Format | None
    if entry.get("_type") in ("FqnToConfig", "ModuleFqnToConfig"):
        data = _mapping(entry.get("_data"), f"{where}._data")
        listed = _mapping(data.get("fqn_to_config") or data.get("module_fqn_to_config"), f"{where}._data.fqn_to_config")
        for name, entry_of_name in listed.items():
            _check_expression(name, f"{where}._data.fqn_to_config")
            format_by_name[name] = (
                None if entry_of_name is None else _torchao_format(entry_of_name, f"{where}._data.fqn_to_config.{name}")
            )
        default = format_by_name.pop("_default", None)
    else:
        default = _torchao_format(entry, where)

    def rule(module: Module) -> Format | None:
        if module.experts or module.name == "lm_head":
            return None
        parent, _dot, last = module.name.rpartition(".")
        names = _names(replace(module, name=f"{parent}.{_JOINED.get(last, last)}"))
        if any(f".{pattern}." in f".{name}." for pattern in spared for name in names):
            return None
        for name in names:
            if name in format_by_name:
                return format_by_name[name]
        for pattern, stored in format_by_name.items():
            if pattern.startswith("re:") and any(re.fullmatch(pattern[3:], name) for name in names):
                return stored
        return default

    return rule


# bitsandbytes ---------------------------------------------------------------------------------------------------------


def bitsandbytes(quantization: Config, where: str, minor: int) -> Rule:
    """Read a config of bitsandbytes; an empty one stands for C(--quantization bitsandbytes), which makes 4 bits of 16.

    :param minor: the 23 of vLLM 0.23
    :raises Refusal: for a release without bitsandbytes, and for blocks of another size
    """
    if minor > BITSANDBYTES_UNTIL:
        raise Refusal(
            f"{where}.quant_method" if quantization else where,
            "quantisation 'bitsandbytes' is gone since vLLM 0.28; the plugin that has it now was not compared",
            f"{GIVE}, or take a release up to 0.27",
        )
    spared = set(_texts(quantization, "llm_int8_skip_modules", where))
    eight = bool(quantization.get("load_in_8bit"))
    # 4 bits keep a scale of 32 bits for 64 weights: scales that are quantised too are dequantised at load (_dequantize_dq).
    stored = FP8_CHANNEL if eight else Format(4, 64, 4)

    def rule(module: Module) -> Format | None:
        if module.name == "lm_head":
            return None
        if eight and module.experts:
            raise Refusal(f"{where}.load_in_8bit", "vLLM has no experts of 8 bits in bitsandbytes", GIVE)
        for name in _names(module):
            pieces = name.split(".")
            if spared & {*pieces, *(".".join(pieces[:end]) for end in range(1, len(pieces) + 1))}:
                return None
        return stored

    return rule


SCHEMES: dict[str, Callable[[Config, str, int], Rule]] = {
    "bitsandbytes": bitsandbytes,
    "quark": quark,
    "torchao": lambda quantization, where, _minor: torchao(quantization, where),
}
"""Readers of a config by C(quant_method); the arguments are the config, its key and the minor release."""
