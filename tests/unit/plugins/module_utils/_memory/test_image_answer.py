"""What images said of launches: recorded answers of real vLLM, compared with what its planner gave elsewhere, and answers that cannot be right."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
COMPARED = [name for name, entry in RECORDED.items() if entry["rows"]]
DENSE = RECORDED["dense"]["answer"]


def changed(**change: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DENSE), **change}


@pytest.mark.parametrize("name", COMPARED)
def test_recorded_answers_are_what_vllms_planner_gives(name: str) -> None:
    """rows: of memory_rows.json, which was made another way."""
    answer = image_answer.read(RECORDED[name]["answer"])
    for row in RECORDED[name]["rows"]:
        cut = answer.cuts[row["available_bytes"]]
        assert (cut.blocks, cut.tokens, cut.block_size) == (
            row["num_blocks"],
            row["gpu_kv_cache_size_tokens"],
            row["block_size"],
        )
        assert (cut.bytes_per_block, cut.needed) == (row["bytes_per_block"], row["needed_bytes_one_request"])
        assert cut.concurrency == pytest.approx(row["max_concurrency"], abs=1e-6)
    weights = RECORDED[name]["rows"][0]["weights_param_bytes"]
    (rank,) = answer.ranks
    assert rank.target.bytes == weights["target"] == sum(rank.target.modules.values())
    assert (rank.draft.bytes if rank.draft else None) == weights.get("draft")
    assert answer.version == RECORDED[name]["rows"][0]["version"]


def test_a_refusal_has_vllms_own_words() -> None:
    answer = image_answer.read(RECORDED["refused"]["answer"])
    assert answer.failure is not None and answer.failure.kind == image_answer.REFUSED
    assert answer.cuts == {}


def test_a_context_that_does_not_fit_is_refused_for_that_size_alone() -> None:
    answer = image_answer.read(RECORDED["long"]["answer"])
    result = answer.refusals[2**30]
    assert (result.kind, result.stage) == (image_answer.REFUSED, "plan")
    assert "the estimated maximum model length is 7264." in result.text
    cut = answer.cuts[40 * 2**30]
    assert (cut.blocks, cut.max_model_len) == (18204, 262144)


def test_stages_of_a_pipeline_have_their_own_weights_and_one_plan() -> None:
    answer = image_answer.read(RECORDED["pipeline"]["answer"])
    single_stage = image_answer.read(DENSE)
    assert len(answer.ranks) == 2 and answer.resolved["executor"] == "mp"
    layers = [sum(spec["layers"] for spec in rank.specs) for rank in answer.ranks]
    assert layers == [18, 18]
    # Embedding and output layer are one matrix in this model: a pipeline has it at both ends.
    tied = single_stage.ranks[0].target.modules["model.embed_tokens"]
    assert sum(rank.target.bytes for rank in answer.ranks) == single_stage.ranks[0].target.bytes + tied
    size = 40 * 2**30
    assert answer.cuts[size].blocks == 2 * single_stage.cuts[size].blocks


def test_a_size_that_vllm_refuses() -> None:
    refused = {
        "stage": "plan",
        "kind": "refused",
        "type": "ValueError",
        "text": "To serve at least one request",
        "where": "x.py:1",
    }
    answer = image_answer.read(changed(sizes=[*DENSE["sizes"], {"available": 2**20, "refused": refused}]))
    assert answer.refusals[2**20].text.startswith("To serve")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ranks": []}, "0 pipeline stages, not 1"),
        ({"ranks": [{**DENSE["ranks"][0], "weights": {}}]}, "lacks 'target'"),
        ({"ranks": [{**DENSE["ranks"][0], "weights": {"other": {}}}]}, "weights lacks 'target'"),
        ({"sizes": [{"available": 1}]}, "lacks 'blocks'"),
        ({"sizes": [{**DENSE["sizes"][0], "concurrency": 0}]}, "a cache of nothing"),
        ({"sizes": [{**DENSE["sizes"][0], "concurrency": float("nan")}]}, "not a number"),
        ({"sizes": [{**DENSE["sizes"][0], "bytes_per_block": 2**50}]}, "more blocks than"),
        ({"sizes": [{**DENSE["sizes"][0], "blocks": "many"}]}, "not a whole number"),
        ({"failure": {"stage": "x", "kind": "fine", "type": "x", "text": "x"}}, "not one of"),
        ({"assumed": ["x"]}, "not a mapping"),
        ({"resolved": {}}, "not 0"),
        ({"seconds": -1.0}, "not a number"),
    ],
)
def test_answers_that_cannot_be_right_are_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Untrusted, match=why):
        image_answer.read(changed(**change))


@pytest.mark.parametrize("value", [None, [], "x", 5, {}])
def test_what_is_no_answer_at_all(value: Any) -> None:
    with pytest.raises(Untrusted):
        image_answer.read(value)


def test_texts_of_an_image_cannot_steer_a_terminal() -> None:
    answer = image_answer.raw(changed(log=["\x1b[2Jgone"], assumed={"\x07": "\x1b]0;x\x07"}), "it")
    assert answer["log"] == ["\\x1b[2Jgone"] and answer["assumed"] == {"\\x07": "\\x1b]0;x\\x07"}
