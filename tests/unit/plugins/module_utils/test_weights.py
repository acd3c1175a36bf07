# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from memory_fixture import GIB, config, load

from ansible_collections.dgxspark.vllm.plugins.module_utils.geometry import Refusal, read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils.weights import Weights, weights_bytes


def count(model: str, quantization: str | None = None, **fields: Any) -> Weights:
    found = config(model, quantization)
    return weights_bytes(found, read_geometry(found), **fields)


@pytest.mark.parametrize(
    "row", load()["weights"], ids=lambda row: f"{row['model']} {row['quantization']} tp{row['tensor_parallel']}"
)
def test_parameters_of_vllms_own_model_classes(row: dict[str, Any]) -> None:
    found = count(row["model"], row["quantization"], tensor_parallel=row["tensor_parallel"]).target
    assert found == pytest.approx(row["bytes"], rel=row["tolerance"], abs=0)


@pytest.mark.parametrize(
    ("model", "quantization", "fields", "gib"),
    [
        ("Qwen3.6-35B-A3B", "NVFP4", {"mtp": True}, 21.94),  # Model loading took, DGX Spark
        ("Qwen3-235B-A22B", "GPTQ", {"tensor_parallel": 2}, 57.64),  # per node of a pair
        ("Qwen3-30B-A3B", None, {"tensor_parallel": 4}, 14.2474),  # vllm#17469
    ],
)
def test_published_loads(model: str, quantization: str | None, fields: dict[str, Any], gib: float) -> None:
    found = count(model, quantization, **fields)
    assert (found.target + found.draft) / GIB == pytest.approx(gib, rel=0.03)


def test_the_drafter_is_counted_without_what_it_shares() -> None:
    assert count("Qwen3-Next-80B-A3B", "FP8", mtp=True).draft / GIB == pytest.approx(1.54, abs=0.01)
    assert count("Qwen3.6-35B-A3B", "NVFP4", mtp=True).draft / GIB == pytest.approx(1.57, abs=0.01)
    assert count("Qwen3-Next-80B-A3B", "FP8").draft == 0


def test_the_vision_tower_can_be_left_out() -> None:
    whole, text = count("Qwen3.6-35B-A3B"), count("Qwen3.6-35B-A3B", vision=False)
    assert (whole.target - text.target) / GIB == pytest.approx(0.83, abs=0.01)


def test_quantisation_at_run_time_loads_16_bits_first() -> None:
    found = count("Gemma-4-26B-A4B", runtime_quantization="fp8")
    assert found.load_peak / GIB == pytest.approx(48.1, abs=0.05)
    assert found.target < 0.6 * found.load_peak
    assert count("Qwen3-Next-80B-A3B", "FP8", runtime_quantization="fp8") == count("Qwen3-Next-80B-A3B", "FP8")


def test_pipeline_stages_hold_their_layers() -> None:
    whole, stage = count("Qwen3-235B-A22B"), count("Qwen3-235B-A22B", pipeline_parallel=2)
    assert 0.5 < stage.target / whole.target < 0.51


@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    }
                },
            },
            0.58,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["re:.*lm_head"],
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
                    }
                },
            },
            0.37,
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.38),
    ],
)
def test_formats_of_a_dense_model(quantization: dict[str, Any], share: float) -> None:
    found = {**config("Qwen3-8B"), "quantization_config": quantization}
    part = weights_bytes(found, read_geometry(found)).target / count("Qwen3-8B").target
    assert part == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "config.quantization_config.quant_method"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W3"}},
            "config.quantization_config.quant_algo",
        ),
        ({"quantization_config": {"quant_method": "modelopt"}}, "config.quantization_config.quant_algo"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "four"}}, "config.quantization_config.bits"),
        ({"model_type": "helium"}, "config.model_type"),
        ({"vocab_size": None}, "config.vocab_size"),
        ({"vision_config": {"hidden_size": 8, "intermediate_size": 8}}, "config.vision_config"),
        ({"audio_config": {"hidden_size": 8}}, "config.audio_config"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change: dict[str, Any], key: str) -> None:
    found = {**config("Qwen3-8B"), **change}
    with pytest.raises(Refusal) as caught:
        weights_bytes(found, read_geometry(found))
    assert caught.value.key == key
    assert "weights_gib" in caught.value.fix


def test_unknown_quantisation_at_run_time_is_refused() -> None:
    with pytest.raises(Refusal, match=r"args\.quantization"):
        count("Qwen3-8B", runtime_quantization="bitsandbytes")
