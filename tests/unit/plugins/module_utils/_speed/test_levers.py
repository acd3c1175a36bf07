# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Published levers: each is advised to a launch without it, and not to one that has it."""

from __future__ import annotations

from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import speeds
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.lever_texts import describe_lever, rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.levers import FACTS

MTP = {"method": "mtp", "num_speculative_tokens": 2}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
TWO = {"tensor-parallel-size": 2}
STAGES = {"pipeline-parallel-size": 2}
MARLIN = {"moe-backend": "marlin"}
# Lever: recipe with the config, options without the lever, options with it. A key "env" has variables, "version" the version of vLLM.
LAUNCHES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "CUDA graphs": ("qwen3-8b", {"enforce-eager": True}, {}),
    "CUDA graphs over several Sparks": ("qwen3-8b", {"enforce-eager": True, **TWO}, TWO),
    "graph mode": (
        "qwen3-8b",
        {"compilation-config": {"cudagraph_mode": "PIECEWISE"}},
        {"compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
    ),
    "full graphs with drafts on FlashInfer": (
        "qwen3-8b",
        {"attention-backend": "FLASHINFER", "speculative-config": NGRAM, "version": "0.27.0"},
        {"attention-backend": "FLASHINFER", "speculative-config": NGRAM, "version": "0.28.0"},
    ),
    "capture sizes": ("qwen3-8b", {"max-num-seqs": 5}, {"max-num-seqs": 5, "cudagraph-capture-sizes": [1, 5]}),
    "chunks of 8192": ("qwen3-8b", {}, {"max-num-batched-tokens": 8192}),
    "chunks of 16384": (
        "qwen3-8b",
        {"max-num-batched-tokens": 8192, "max-model-len": 131072},
        {"max-num-batched-tokens": 8192, "max-model-len": 32768},
    ),
    "more streams": ("qwen3-8b", {"max-num-seqs": 4}, {"max-num-seqs": 16}),
    "FP8 kernel": ("qwen3.6-27b-fp8", {"env": {"VLLM_TEST_FORCE_FP8_MARLIN": "1"}, "version": "0.28.0"}, {}),
    "FP4 kernel": ("qwen3.8-27b-nvfp4", {}, {"linear-backend": "flashinfer_cutlass"}),
    "experts on b12x": ("qwen3.6-35b-a3b-nvfp4-modelopt", MARLIN, {"moe-backend": "flashinfer_b12x"}),
    "DeepSeek V4 on b12x": ("deepseek-v4-flash", {}, {"moe-backend": "b12x"}),
    "output head": ("qwen3.6-27b-fp8", {"speculative-config": MTP}, {}),
    "drafts": ("qwen3.6-27b-fp8", {}, {"speculative-config": MTP}),
    "draft depth": (
        "qwen3.6-27b-fp8",
        {"speculative-config": MTP},
        {"speculative-config": {**MTP, "num_speculative_tokens": 4}},
    ),
    "RDMA": ("qwen3-8b", {**TWO, "env": {"NCCL_IB_DISABLE": "1"}}, TWO),
    "pipeline instead of tensors in eager mode": (
        "qwen3-8b",
        {"enforce-eager": True, **TWO},
        {"enforce-eager": True, **STAGES},
    ),
    "tensors instead of pipeline": ("qwen3-8b", STAGES, TWO),
}


def levers(recipe: str, options: dict[str, Any]) -> list[str]:
    """The levers that a launch of a recipe's model does not have."""
    body = RECIPES[recipe]
    model = {"config": body["config"], "vllm_version": options.get("version", "0.30.0"), "env": options.get("env", {})}
    args = {key: value for key, value in options.items() if key not in ("version", "env")}
    return list(speeds.of_launch(model, {"max-model-len": 32768, "max-num-seqs": 8, **args}).levers)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_lever_is_advised_where_the_launch_does_not_have_it(name: str) -> None:
    recipe, without, with_it = LAUNCHES[name]
    assert name in levers(recipe, without)
    assert name not in levers(recipe, with_it)


@pytest.mark.parametrize(
    ("streams", "drafts", "is_captured"),
    [
        (4, 0, True),
        (8, 0, True),
        (12, 0, False),
        (248, 0, True),
        (264, 0, False),
        (272, 0, True),
        (512, 0, True),
        (528, 0, False),
        (128, 4, False),
    ],
)
def test_batches_with_a_graph_are_those_of_vllm(streams: int, drafts: int, is_captured: bool) -> None:
    options = {"speculative-config": {**NGRAM, "num_speculative_tokens": drafts}} if drafts else {}
    assert ("capture sizes" not in levers("qwen3-8b", {"max-num-seqs": streams, **options})) == is_captured


def test_a_set_largest_graph_counts() -> None:
    assert "capture sizes" in levers("qwen3-8b", {"max-num-seqs": 64, "max-cudagraph-capture-size": 32})
    assert "capture sizes" not in levers("qwen3-8b", {"max-num-seqs": 1024, "max-cudagraph-capture-size": 1024})
    assert "capture sizes" not in levers("gpt-oss-20b", {"max-num-seqs": 1024})


def test_every_lever_and_every_condition_is_tried() -> None:
    assert set(rows()) == set(LAUNCHES)
    assert {fact for row in rows().values() for fact in row["when"].get("facts", ())} == set(FACTS)


def test_a_difference_is_never_called_ours() -> None:
    for row in rows().values():
        assert f"Published: {row['delta']} ({row['source']})" in describe_lever(row["lever"])
