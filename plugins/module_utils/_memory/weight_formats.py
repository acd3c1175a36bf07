# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quantisation of a checkpoint: the storage format of each module."""

from __future__ import annotations

import re
from dataclasses import replace

from .formats import FP8_BLOCKS, FP8_CHANNEL, FP8_TENSOR, MXFP4, MXFP8, NVFP4, Format
from .geometry import quantization_of
from .layers import Config, Refusal, text_config
from .modules import GIVE, Module
from .scheme_formats import SCHEMES, Rule

_ALGORITHMS = {
    "FP8": FP8_TENSOR,
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "MXFP8": MXFP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
    "FP8_PB_WO": FP8_BLOCKS,
    "FP8_BLOCK_SCALES": FP8_BLOCKS,
}
# Parts of ModelOpt's mixed checkpoints that an older vLLM loads in 16 bits, with the first minor release that keeps their format
# (ModelOptMixedPrecisionConfig.get_quant_method: 4 bits with activations of 16 bits from 0.22, the head from 0.23).
_MIXED_SINCE = {"W4A16_NVFP4": 22, "lm_head": 23}
# Up to 0.26 the zero points of experts in GPTQ took the 16 bits of the model for the 32 of a packed word (auto_gptq.py).
_PACKED_ZEROS_SINCE = 27
# --quantization for an unquantised checkpoint: vLLM loads 16 bits and converts.
RUNTIME_FORMATS = {
    "fp8": FP8_TENSOR,
    "fp8_per_tensor": FP8_TENSOR,
    "fp8_per_channel": FP8_CHANNEL,
    "fp8_per_block": FP8_BLOCKS,
    "int8_per_channel_weight_only": FP8_CHANNEL,
    "experts_int8": FP8_CHANNEL,
    "mxfp8": MXFP8,
}


def _int_field(quantization: Config, keys: tuple[str, ...], where: str) -> int:
    """Read a whole number from the first of C(keys) that is there."""
    key = next((key for key in keys if quantization.get(key) is not None), keys[0])
    value = quantization.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"{where}.{key}", f"expected a whole number, got {value!r}", GIVE)
    return value


def _packed(quantization: Config, where: str) -> Format:
    """Read a GPTQ, AWQ or AutoRound format; vLLM keeps zero points also of symmetric checkpoints."""
    bits = _int_field(quantization, ("bits", "w_bit"), where)
    group = _int_field(quantization, ("group_size", "q_group_size"), where)
    if bits not in (2, 3, 4, 8):
        raise Refusal(f"{where}.bits", f"weights of {bits} bits are not known", GIVE)
    return Format(bits, max(group, 0), 2, zero_bits=bits, order=bool(quantization.get("desc_act")))


def _fp8_blocks(source: Config, key: str, where: str) -> Format:
    block = source.get(key)
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(size, int) and size > 0 for size in block):
        raise Refusal(f"{where}.{key}", f"expected two sizes, got {block!r}", GIVE)
    return Format(8, block[1], 4, block[0])


def _weights_format(weights: Config, where: str) -> Format:
    """Read one C(weights) entry of compressed-tensors (or modelopt's config_groups)."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0
    if isinstance(group, bool) or not isinstance(group, int):
        raise Refusal(f"{where}.group_size", f"expected a whole number, got {group!r}", GIVE)
    if (bits, kind) == (8, "float"):
        return _fp8_format(weights, group, where)
    if (bits, kind) == (4, "float") and group in (16, 32):
        return NVFP4 if group == 16 else MXFP4
    if bits in (4, 8) and kind == "int":
        if group > 0:
            return Format(int(bits), group, 2, zero_bits=0 if weights.get("symmetric", True) else int(bits))
        return Format(int(bits), scale=2)
    raise Refusal(where, f"weights of {bits!r} bits of type {kind!r} are not known", GIVE)


def _fp8_format(weights: Config, group: int, where: str) -> Format:
    """Read weights in FP8 with scales for blocks, groups, rows or the whole matrix."""
    if weights.get("block_structure") is not None:
        return _fp8_blocks(weights, "block_structure", where)
    if weights.get("strategy") == "group" and group > 0:
        return MXFP8 if group == 32 else Format(8, group, 4)
    return FP8_CHANNEL if weights.get("strategy") == "channel" else FP8_TENSOR


# One of many experts, all of which are stored alike: experts.0.up_proj.
_EXPERT = re.compile(r"\.experts\.(?:\d+|\*)\..*$")


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


def _spared(quantization: Config, where: str) -> list[str]:
    """List the modules that a config does not quantise."""
    spared: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers"):
        listed = quantization.get(key) or []
        if not isinstance(listed, list):
            raise Refusal(f"{where}.{key}", f"expected a list of modules, got {listed!r}", GIVE)
        spared += [str(item) for item in listed]
    return spared


class Quantization:
    """Answers in which format a module is stored."""

    def __init__(self, config: Config, quant_config: Config | None, runtime: str, minor: int | None = None) -> None:
        """Read the formats.

        config, quant_config: C(config.json) and C(hf_quant_config.json). runtime: C(--quantization).
        minor: the 23 of vLLM 0.23, C(None) for the newest.
        """
        self._minor = 1 << 30 if minor is None else minor
        quantization, where = quantization_of(config, quant_config)
        self._default: Format | None = None
        self._groups: list[tuple[_Names, Format | None]] = []
        self._layers: dict[str, Format] = {}
        self.padded_experts = False
        self.runtime = False
        self._only_experts = False
        self._experts: Format | None = None
        self._rule: Rule | None = None
        self._spared = _Names(_spared(quantization, where))
        self._head = bool(quantization.get("lm_head"))
        if not quantization:
            self._quantize_at_load(runtime)
            return
        method = str(quantization.get("quant_method") or "modelopt").lower()
        if method in ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "compressed-tensors"):
            self._read_groups(quantization, where)
        elif method == "fp8":
            self._read_fp8(quantization, text_config(config), where)
        elif method == "fbgemm_fp8":
            self._default = FP8_CHANNEL
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
            if "gptq" in method and self._minor < _PACKED_ZEROS_SINCE:
                self._experts = replace(self._default, zero_bits=self._default.zero_bits // 2)
            self._read_exceptions(quantization, where)
        elif method in ("mxfp4", "gpt_oss_mxfp4"):
            self._default, self._only_experts, self.padded_experts = MXFP4, True, True
        elif method in SCHEMES:
            self._rule = SCHEMES[method](quantization, where, self._minor)
        else:
            raise Refusal(f"{where}.quant_method", f"quantisation {method!r} is not known", GIVE)

    def _read_fp8(self, quantization: Config, text: Config, where: str) -> None:
        """Read a checkpoint in FP8, whose experts may be in MXFP4."""
        blocks = quantization.get("weight_block_size") is not None
        stored = _fp8_blocks(quantization, "weight_block_size", where) if blocks else FP8_TENSOR
        # The experts of DeepSeek-V4 and MiMo-V2 are MXFP4, their projections FP8.
        expert_dtype = quantization.get("expert_dtype") or text.get("expert_dtype")
        if expert_dtype == "fp4" or quantization.get("store_dtype") == "mxfp4":
            self._experts = MXFP4
        if expert_dtype == "fp4" and quantization.get("scale_fmt") == "ue8m0":
            # Exponents alone (deepseek_v4/quant_config.py); blocks of 32 rows are loaded as MXFP8, with scales for each row (V4.1).
            stored = MXFP8 if stored.block == 32 else replace(stored, scale=1)
        self._default = stored

    def _quantize_at_load(self, runtime: str) -> None:
        """Take the format of C(--quantization) for an unquantised checkpoint; empty for no quantisation."""
        if not runtime:
            return
        if runtime == "bitsandbytes":
            # Each matrix is quantised before it is stored (bitsandbytes_loader.py), so that nothing of 16 bits is loaded first.
            self._rule = SCHEMES["bitsandbytes"]({}, "args.quantization", self._minor)
            return
        if runtime not in RUNTIME_FORMATS:
            raise Refusal(
                "args.quantization", f"quantisation {runtime!r} of an unquantised checkpoint is not known", GIVE
            )
        self._default, self.runtime = RUNTIME_FORMATS[runtime], True
        self._only_experts = runtime == "experts_int8"

    def _read_exceptions(self, quantization: Config, where: str) -> None:
        """Read what GPTQModel (C(dynamic)) and AutoRound (C(extra_config)) store in another way."""
        for key, sign in (("dynamic", "re:"), ("extra_config", "")):
            listed = quantization.get(key) or {}
            if not isinstance(listed, dict):
                raise Refusal(f"{where}.{key}", f"expected a mapping, got {listed!r}", GIVE)
            for pattern, entry in listed.items():
                name = sign + (re.sub(r"^[+-]:", "", pattern) if sign else str(pattern))
                settings = {**quantization, **(entry if isinstance(entry, dict) else {})}
                plain = (sign and pattern.startswith("-:")) or settings.get("bits") == 16
                self._groups.append((_Names([name]), None if plain else _packed(settings, f"{where}.{key}.{pattern}")))

    def _read_groups(self, quantization: Config, where: str) -> None:
        layers, algorithm = quantization.get("quantized_layers"), quantization.get("quant_algo")
        if isinstance(layers, dict):
            for name, entry in layers.items():
                self._read_layer(str(name), entry, f"{where}.quantized_layers.{name}")
        elif algorithm is not None:
            self._default = self._algorithm(algorithm, where)
        else:
            self._read_config_groups(quantization.get("config_groups"), where)

    def _read_layer(self, name: str, entry: object, where: str) -> None:
        """Read the format of one layer of a mixed checkpoint of ModelOpt."""
        algorithm = entry.get("quant_algo") if isinstance(entry, dict) else entry
        since = max(_MIXED_SINCE.get(key, 0) for key in (str(algorithm).upper(), _plain_name(name)))
        if self._minor < since:
            return
        stored = self._algorithm(algorithm, where)
        if _EXPERT.search(name):
            self._layers[_plain_name(_EXPERT.sub(".experts", name))] = stored
        elif "*" in name:
            self._groups.append((_Names([name]), stored))
        else:
            self._layers[_plain_name(name)] = stored

    def _read_config_groups(self, groups: object, where: str) -> None:
        """Read the groups of modules of compressed-tensors and ModelOpt."""
        if not isinstance(groups, dict) or not groups:
            raise Refusal(f"{where}.quant_algo", "the field is missing", GIVE)
        for key, group in groups.items():
            weights = group.get("weights") if isinstance(group, dict) else None
            if not isinstance(weights, dict):
                continue
            stored = _weights_format(weights, f"{where}.config_groups.{key}.weights")
            targets = group.get("targets") or ["Linear"]
            if not isinstance(targets, list):
                raise Refusal(f"{where}.config_groups.{key}.targets", f"expected a list, got {targets!r}", GIVE)
            targets = [str(item) for item in targets]
            if "Linear" in targets:
                self._default = stored
            self._groups.append((_Names([item for item in targets if item != "Linear"]), stored))

    @staticmethod
    def _algorithm(name: object, where: str) -> Format:
        stored = _ALGORITHMS.get(str(name).upper())
        if stored is None:
            raise Refusal(f"{where}.quant_algo", f"quantisation {name!r} is not known", GIVE)
        return stored

    def format_of(self, module: Module) -> Format | None:
        """Return the format of a module, C(None) for the model's own dtype."""
        if not module.linear or (self._only_experts and not module.name.endswith(".experts")):
            return None
        if self._rule:
            return self._rule(module)
        stored_format = self._layers.get(module.name)
        if stored_format is not None:
            return stored_format
        for names, stored in self._groups:
            if module.name in names:
                return stored
        if self._experts and module.experts:
            return self._experts
        if self._default is None or module.name in self._spared:
            return None
        if module.name == "lm_head" and not self._head:
            return None
        return self._default
