"""What images said of launches: recorded answers of real vLLM, compared with what its planner gave elsewhere, and answers that cannot be right."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
ANSWERED = [name for name, entry in RECORDED.items() if not entry["answer"]["failure"]]
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
    assert list(rank.attention) == RECORDED[name]["rows"][0]["attn_backends"]


@pytest.mark.parametrize("name", ANSWERED)
def test_sizes_that_were_not_asked_follow_from_those_that_were_or_are_not_known(name: str) -> None:
    answer = image_answer.read(RECORDED[name]["answer"])
    for size, cut in answer.cuts.items():
        other_sizes = {other: item for other, item in answer.cuts.items() if other != size}
        result = dataclasses.replace(answer, cuts=other_sizes).at(size)
        assert result == cut if len(other_sizes) > 1 else result is None
        assert answer.at(size) is cut
    # Not enough for one request: vLLM's own words for that are not known.
    assert answer.at(1) is None


def test_a_refusal_has_vllms_own_words() -> None:
    answer = image_answer.read(RECORDED["refused"]["answer"])
    assert answer.failure is not None and answer.failure.kind == image_answer.REFUSED
    assert answer.at(2**40) is answer.failure and answer.cuts == {}


def test_a_context_that_does_not_fit_is_refused_for_that_size_alone() -> None:
    answer = image_answer.read(RECORDED["long"]["answer"])
    result = answer.at(2**30)
    assert isinstance(result, image_answer.Failure) and (result.kind, result.stage) == (image_answer.REFUSED, "plan")
    assert "the estimated maximum model length is 7264." in result.text
    cut = answer.at(40 * 2**30)
    assert isinstance(cut, image_answer.Cut) and (cut.blocks, cut.max_model_len) == (18204, 262144)


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
    result = answer.at(2**20)
    assert isinstance(result, image_answer.Failure) and result.text.startswith("To serve")


def test_nothing_is_worked_out_where_sizes_differ_in_more_than_blocks() -> None:
    size = 3 * 2**30
    sizes = [{**DENSE["sizes"][0], "available": n * size} for n in (1, 2)]
    base = DENSE["sizes"][0]
    for item in sizes:
        item["blocks"] = item["available"] // base["bytes_per_block"]
        item["concurrency"] = base["concurrency"] * item["blocks"] / base["blocks"]
        item["tokens"] = int(item["concurrency"] * item["max_model_len"])
    good = image_answer.read(changed(sizes=sizes)).at(5 * size)
    assert isinstance(good, image_answer.Cut) and good.blocks == 5 * size // base["bytes_per_block"]
    for change in ({"max_model_len": 1}, {"needed": 1}, {"bytes_per_block": 1}, {"tokens": None}, {"needed": None}):
        other = [{**item, **(change if place else {})} for place, item in enumerate(sizes)]
        assert image_answer.read(changed(sizes=other)).at(5 * size) is None
    override = {**DENSE["resolved"], "blocks_override": 5}
    assert image_answer.read(changed(sizes=sizes, resolved=override)).at(5 * size) is None


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
    answer = image_answer.read(changed(log=["\x1b[2Jgone"], assumed={"\x07": "\x1b]0;x\x07"}))
    assert answer.log == ("\\x1b[2Jgone",) and answer.assumed == {"\\x07": "\\x1b]0;x\\x07"}
