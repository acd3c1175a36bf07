# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of Quark, torchao and bitsandbytes; test_compared_formats.py compares such configs with whole vLLM releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.formats import (
    FP8_BLOCKS,
    FP8_CHANNEL,
    FP8_TENSOR,
    MXFP4,
    MXFP8,
    NVFP4,
    Format,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.modules import Module, linear
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.scheme_formats import bitsandbytes, quark, torchao

WHERE = "config.quantization_config"
Q_PROJ = linear("layers.1.self_attn.q_proj", 64, 64)
DOWN = linear("layers.1.mlp.down_proj", 64, 64)
EXPERTS = replace(linear("layers.1.mlp.experts", 64, 64, 8), experts=8)
HEAD = linear("lm_head", 64, 64)
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_channel"}
ROW = {"_type": "PerRow", "_data": {"dim": -1}}


def _quark(weight: Any, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}, **fields}


def _torchao(kind: str, data: dict[str, Any], version: int = 2, **fields: Any) -> dict[str, Any]:
    return {"quant_type": {"default": {"_type": kind, "_version": version, "_data": data}}, **fields}


def _groups(kind: str, group: int, **fields: Any) -> dict[str, Any]:
    return {"dtype": kind, "qscheme": "per_group", "group_size": group, **fields}


@pytest.mark.parametrize(
    ("weight", "stored"),
    [
        ({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, FP8_TENSOR),
        (FP8, FP8_CHANNEL),
        ([FP8], FP8_CHANNEL),
        ({"dtype": "int8", "qscheme": "per_channel"}, FP8_CHANNEL),
        ({"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]}, FP8_BLOCKS),
        ({"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [32, 32]}, MXFP8),
        (_groups("uint4", 64), Format(4, 64, 2, zero_bits=4)),
        (_groups("fp4", 32, scale_format="e8m0"), MXFP4),
        (_groups("fp6_e2m3", 32, scale_format="e8m0"), Format(6, 32, 1)),
        (_groups("fp8_e4m3", 32, scale_format="e8m0"), MXFP8),
        ([_groups("fp4", 16), {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}], NVFP4),
    ],
)
def test_formats_of_quark(weight: Any, stored: Format) -> None:
    rule = quark(_quark(weight), WHERE, 33)
    assert rule(Q_PROJ) == stored
    assert rule(EXPERTS) == replace(stored, tiles=stored == MXFP4)
    assert rule(HEAD) is None


def test_quark_has_scales_of_8_bits_for_blocks_of_linear_layers_alone() -> None:
    weight = {
        "dtype": "fp8_e4m3",
        "qscheme": "per_block",
        "block_size": [128, 128],
        "scale_type": "float8_e8m0fnu",
    }
    rule = quark(_quark(weight), WHERE, 33)
    assert rule(Q_PROJ) == replace(FP8_BLOCKS, scale=1)
    with pytest.raises(Refusal, match="no kernel for experts"):
        rule(EXPERTS)


@pytest.mark.parametrize(
    ("excluded", "quantised"),
    [
        ("model.layers.1.self_attn.q_proj", (Q_PROJ,)),
        ("re:.*self_attn.*", (Q_PROJ,)),
        ("model.layers.1.self_attn", ()),  # names are whole
        ("layers.1.mlp.experts.5.down_proj", (EXPERTS,)),  # one matrix of an expert spares all
        ("re:.*mlp\\..*", (DOWN, EXPERTS)),
    ],
)
def test_modules_that_quark_spares(excluded: str, quantised: tuple[Module, ...]) -> None:
    rule = quark(_quark(FP8, exclude=[excluded]), WHERE, 33)
    for module in (Q_PROJ, DOWN, EXPERTS):
        assert rule(module) == (None if module in quantised else FP8_CHANNEL)


def test_layers_of_quark_with_a_format_of_their_own() -> None:
    computed = {"*self_attn*": {"weight": _groups("fp4", 32, scale_format="e8m0")}, "*.k_proj": {"weight": FP8}}
    rule = quark(_quark({"dtype": "int8", "qscheme": "per_tensor"}, layer_quant_config=computed), WHERE, 33)
    assert [rule(module) for module in (Q_PROJ, DOWN, EXPERTS)] == [MXFP4, FP8_TENSOR, FP8_TENSOR]


@pytest.mark.parametrize(
    "weight",
    [
        {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]},
        _groups("int4", 64),
        _groups("fp8_e4m3", 32, scale_format="e8m0"),
    ],
)
def test_what_older_releases_do_not_have_of_quark(weight: dict[str, Any]) -> None:
    assert quark(_quark(weight), WHERE, 33)(Q_PROJ)
    for config in (_quark(weight), _quark(FP8, layer_quant_config={"*o_proj": {"weight": weight}})):
        with pytest.raises(Refusal, match=r"since vLLM 0\.33 alone"):
            quark(config, WHERE, 32)
    assert quark(_quark(_groups("fp4", 32, scale_format="e8m0")), WHERE, 27)(Q_PROJ) == MXFP4


@pytest.mark.parametrize(
    ("config", "key", "phrase"),
    [
        ({}, "global_quant_config", "expected a mapping"),
        (_quark(None), "global_quant_config.weight", "expected a mapping"),
        (_quark(_groups("int3", 32)), "global_quant_config.weight", "'int3'"),
        (_quark(_groups("int4", 0)), "global_quant_config.weight.group_size", "whole number"),
        (_quark(_groups("fp4", 64, scale_format="e8m0")), "global_quant_config.weight", "'fp4'"),
        (
            _quark([{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "int4", "qscheme": "per_channel"}]),
            "global_quant_config.weight",
            "int4",
        ),
        (_quark(FP8, exclude="lm_head"), "exclude", "a list of modules"),
        (_quark(FP8, exclude=["re:("]), "exclude", "no regular expression"),
        (_quark(FP8, layer_type_quant_config={"Linear": {}}), "layer_type_quant_config", "type of a layer"),
        (_quark(FP8, layer_quant_config={"*o_proj": None}), "layer_quant_config.*o_proj", "expected a mapping"),
    ],
)
def test_what_is_not_known_of_quark(config: dict[str, Any], key: str, phrase: str) -> None:
    with pytest.raises(Refusal, match=phrase) as caught:
        quark(config, WHERE, 33)
    assert caught.value.key == f"{WHERE}.{key}"
    assert "weights_gib" in caught.value.fix


@pytest.mark.parametrize(
    ("kind", "data", "stored"),
    [
        ("Int8WeightOnlyConfig", {"group_size": None, "granularity": ROW}, Format(8, scale=5)),
        ("Int8DynamicActivationInt8WeightConfig", {"granularity": ROW}, Format(8, scale=5)),
        ("Float8WeightOnlyConfig", {"granularity": ROW}, FP8_CHANNEL),
        ("Float8DynamicActivationFloat8WeightConfig", {"granularity": [ROW, ROW]}, FP8_CHANNEL),
        ("Float8DynamicActivationFloat8WeightConfig", {"granularity": [{"_type": "PerTensor"}] * 2}, FP8_TENSOR),
        ("Int4WeightOnlyConfig", {"group_size": 64, "int4_packing_format": "plain"}, Format(4, 64, 4)),
        (
            "Int4WeightOnlyConfig",
            {"group_size": 128, "int4_packing_format": {"_type": "Int4PackingFormat", "_data": "TILE_PACKED_TO_4D"}},
            Format(4, 128, 4, multiple=1024),
        ),
        (
            "IntxWeightOnlyConfig",
            {
                "granularity": {"_type": "PerAxis", "_data": {"axis": 0}},
                "intx_packing_format": {"_data": "UNPACKED_TO_INT8"},
            },
            Format(8, scale=3),
        ),
        (
            "Int8DynamicActivationIntxWeightConfig",
            {
                "weight_granularity": {"_type": "PerGroup", "_data": {"group_size": 32}},
                "intx_packing_format": "unpacked_to_int8",
            },
            Format(8, 32, 3),
        ),
    ],
)
def test_formats_of_torchao(kind: str, data: dict[str, Any], stored: Format) -> None:
    rule = torchao(_torchao(kind, data, modules_to_not_convert=["mlp"]), WHERE)
    assert rule(Q_PROJ) == stored
    assert [rule(module) for module in (DOWN, EXPERTS, HEAD)] == [None] * 3


def test_inputs_are_filled_up_in_tiles_of_torchao() -> None:
    tiles = Format(4, 128, 4, multiple=1024)
    assert tiles.size(8, 1025) == tiles.size(8, 2048) == 8 * 2048 // 2 + 8 * 16 * 4


def test_torchao_goes_by_the_joined_names_of_vllm() -> None:
    listed = {
        "_default": _torchao("Int8WeightOnlyConfig", {"granularity": ROW})["quant_type"]["default"],
        "model.layers.1.self_attn.qkv_proj": None,
        "re:model\\.layers\\.1\\.mlp\\..*": _torchao("Float8WeightOnlyConfig", {})["quant_type"]["default"],
    }
    rule = torchao(_torchao("FqnToConfig", {"fqn_to_config": listed}, version=1), WHERE)
    assert [rule(module) for module in (Q_PROJ, DOWN)] == [None, FP8_CHANNEL]
    assert rule(replace(Q_PROJ, name="layers.2.self_attn.q_proj")) == Format(8, scale=5)


@pytest.mark.parametrize(
    ("config", "key", "phrase"),
    [
        ({}, "quant_type", "expected a mapping"),
        (_torchao("Int8WeightOnlyConfig", {}, version=1), "quant_type.default._version", "version 1"),
        (_torchao("Int8WeightOnlyConfig", {"group_size": 32}), "quant_type.default._type", "these settings"),
        (_torchao("UIntXWeightOnlyConfig", {}), "quant_type.default._type", "UIntX"),
        (_torchao("Int4WeightOnlyConfig", {"int4_packing_format": "opaque"}), "quant_type.default._type", "Int4"),
        (_torchao("IntxWeightOnlyConfig", {"intx_packing_format": "opaque"}), "quant_type.default._type", "Intx"),
        (_torchao("FqnToConfig", {"fqn_to_config": []}), "quant_type.default._data.fqn_to_config", "a mapping"),
    ],
)
def test_what_is_not_known_of_torchao(config: dict[str, Any], key: str, phrase: str) -> None:
    with pytest.raises(Refusal, match=phrase) as caught:
        torchao(config, WHERE)
    assert caught.value.key == f"{WHERE}.{key}"


def test_bitsandbytes_keeps_a_scale_for_64_weights() -> None:
    rule = bitsandbytes({"load_in_4bit": True, "llm_int8_skip_modules": ["down_proj"]}, WHERE, 27)
    assert [rule(module) for module in (Q_PROJ, EXPERTS, DOWN, HEAD)] == [Format(4, 64, 4)] * 2 + [None] * 2
    assert bitsandbytes({"llm_int8_skip_modules": ["model.layers.1"]}, WHERE, 27)(Q_PROJ) is None
    eight = bitsandbytes({"load_in_8bit": True}, WHERE, 20)
    assert eight(Q_PROJ) == FP8_CHANNEL
    with pytest.raises(Refusal, match="no experts of 8 bits"):
        eight(EXPERTS)


@pytest.mark.parametrize(
    ("config", "key"), [({"load_in_4bit": True}, f"{WHERE}.quant_method"), ({}, "args.quantization")]
)
def test_bitsandbytes_is_gone_since_0_28(config: dict[str, Any], key: str) -> None:
    with pytest.raises(Refusal, match=r"gone since vLLM 0\.28") as caught:
        bitsandbytes(config, WHERE if config else "args.quantization", 28)
    assert caught.value.key == key
    assert "0.27" in caught.value.fix
