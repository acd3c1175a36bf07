# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weights of a service from stated sizes, tensors and drafters, and which towers a launch loads."""

from __future__ import annotations

from typing import Any

import pytest
from memory_fixture import GIB, config

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_input import ServiceInput
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_weights import (
    load_weights,
    loads_tower,
    takes_media,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Split, Weights, weights_bytes

DENSE = "Qwen3-8B"
SPARSE = "Qwen3-30B-A3B"
NONE = {"image": 0, "video": 0}


def load(model: str, *, mtp: bool = False, args: dict[str, Any] | None = None, **fields: Any) -> Weights:
    """Load the text part of a model."""
    body = config(model)
    item = ServiceInput(name="x", args=args or {}, overheads={}, config=body, **fields)
    return load_weights(item, read_geometry(body), False, mtp, None)


def counted(model: str, **fields: Any) -> Weights:
    """Count the weights of a model by its config."""
    body = config(model)
    return weights_bytes(body, read_geometry(body), vision=False, **fields)


# Stated sizes -----------------------------------------------------------------------------------------------------------


def test_a_stated_size_is_that_of_all_ranks() -> None:
    ranks = {"tensor-parallel-size": 2, "pipeline-parallel-size": 3}
    assert load(DENSE, weights_gib=15.0) == Weights(15 * GIB, 0, 15 * GIB)
    assert load(DENSE, weights_gib=15.0, args=ranks).target == 15 * GIB // 6


def test_each_replica_has_all_but_its_share_of_the_experts_of_a_stated_size() -> None:
    whole, half = counted(SPARSE), counted(SPARSE, split=Split(replicas=2))
    assert whole.target / 2 < half.target < whole.target
    made = load(SPARSE, weights_gib=whole.target / GIB, args={"data-parallel-size": 2})
    assert made.target == pytest.approx(half.target, abs=2)


@pytest.mark.parametrize("stated", ["before", "after"])
def test_a_stated_size_of_weights_that_vllm_quantises_is_the_one_before_or_after(stated: str) -> None:
    by_config = counted(DENSE, runtime_quantization="fp8")
    assert by_config.load_peak > 1.7 * by_config.target
    size = by_config.load_peak if stated == "before" else by_config.target
    # A tenth less than the config counts: the other size follows in proportion.
    made = load(DENSE, weights_gib=0.9 * size / GIB, args={"quantization": "fp8"})
    assert made.target == pytest.approx(0.9 * by_config.target, rel=1e-6)
    assert made.load_peak == pytest.approx(0.9 * by_config.load_peak, rel=1e-6)
    assert made.load_layerwise == pytest.approx(0.9 * by_config.load_layerwise, rel=1e-6)


def test_the_drafter_of_a_stated_size_is_counted_by_the_config_or_stated_too() -> None:
    model, ranks = "Qwen3.6-35B-A3B", {"tensor-parallel-size": 2}
    draft = counted(model, split=Split(tensor=2), mtp=True).draft
    assert draft > 0.3 * GIB
    assert load(model, weights_gib=70.0, mtp=True, args=ranks) == Weights(35 * GIB, draft, 35 * GIB)
    assert load(model, weights_gib=70.0, args=ranks).draft == 0
    # A stated drafter is divided over the ranks of a stage, and whole on the last stage.
    stages = {**ranks, "pipeline-parallel-size": 2}
    assert load(model, weights_gib=70.0, mtp=True, draft_weights_gib=3.0, args=stages).draft == 3 * GIB // 2


def test_tensors_of_draft_layers_are_loaded_by_a_launch_that_drafts() -> None:
    """A checkpoint of norms alone, and one of its draft layer."""
    model = "Qwen3-Next-80B-A3B"
    body = config(model)
    hidden, layers = body["hidden_size"], body["num_hidden_layers"]
    names = [f"model.layers.{index}.input_layernorm" for index in range(layers)]
    tensors = [{"name": f"{name}.weight", "dtype": "BF16", "shape": [hidden]} for name in (*names, "mtp.norm")]
    for name in ("model.embed_tokens", "lm_head"):
        tensors.append({"name": f"{name}.weight", "dtype": "BF16", "shape": [body["vocab_size"], hidden]})
    plain, drafting = load(model, tensors=tensors), load(model, tensors=tensors, mtp=True)
    assert plain.target == drafting.target == 2 * hidden * (layers + 2 * body["vocab_size"])
    assert (plain.draft, drafting.draft) == (0, 2 * hidden)
    assert load(model, tensors=tensors, mtp=True, draft_weights_gib=2.0).draft == 2 * GIB


# Towers -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "family", "loads"),
    [
        ({}, "qwen3_vl", True),
        ({"language-model-only": True}, "qwen3_vl", False),
        ({"limit-mm-per-prompt": NONE}, "qwen3_vl", False),
        ({"limit-mm-per-prompt": {"image": {"count": 0}, "video": 0}}, "qwen3_vl", False),
        ({"limit-mm-per-prompt": {"image": 1, "video": 0}}, "qwen3_vl", True),
        # A kind that is not named, or has a size alone, may come as often as a request likes.
        ({"limit-mm-per-prompt": {"image": 0}}, "qwen3_vl", True),
        ({"limit-mm-per-prompt": {"image": {"width": 512}, "video": 0}}, "qwen3_vl", True),
        # Towers that take no videos.
        ({"limit-mm-per-prompt": {"image": 0}}, "gemma3", False),
        ({"limit-mm-per-prompt": {"video": 0}}, "gemma3", True),
    ],
)
def test_a_tower_is_loaded_unless_all_its_inputs_are_limited_to_none(
    args: dict[str, Any], family: str, loads: bool
) -> None:
    assert loads_tower(args, {"model_type": family}) is loads


def test_the_towers_of_inkling_are_loaded_in_any_case() -> None:
    """Their class does not mark them as towers."""
    inkling = {"text_config": {"model_type": "inkling_model"}}
    assert loads_tower({"language-model-only": True}, inkling) and loads_tower({"limit-mm-per-prompt": NONE}, inkling)


@pytest.mark.parametrize(
    ("args", "towers", "takes"),
    [
        ({}, (), False),
        ({}, ("vision",), True),
        ({}, ("audio",), True),
        ({"language-model-only": True}, ("vision", "audio"), False),
        ({"limit-mm-per-prompt": NONE}, ("vision",), False),
        ({"limit-mm-per-prompt": NONE}, ("vision", "audio"), True),
        ({"limit-mm-per-prompt": {**NONE, "audio": 0}}, ("vision", "audio"), False),
        ({"limit-mm-per-prompt": {**NONE, "audio": 2}}, ("vision", "audio"), True),
    ],
)
def test_media_that_a_launch_takes(args: dict[str, Any], towers: tuple[str, ...], takes: bool) -> None:
    body = {"model_type": "qwen3_vl", **{f"{tower}_config": {"hidden_size": 8} for tower in towers}}
    assert takes_media(args, body) is takes
