# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""measured_starts.py: which measured starts a service is planned with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from test_plan import FAST, RECIPES, host, measured

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.engine import MEASURED, NARROWED
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import measured_starts, picture
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DRIVER = "580.159.03"
PINNED: dict[str, Any] = {**FAST, "args": {"gpu-memory-utilization": 0.25, "max-num-batched-tokens": 4096}}


def spark(
    service: dict[str, Any] | None = None, image_id: str = ID, driver: str = DRIVER, **variables: Any
) -> dict[str, Any]:
    facts = measured(gpu={"name": "NVIDIA GB10", "driver_version": driver})
    ref = RECIPES[FAST["recipe"]]["images"][0]["ref"]
    images = {ref: {"present": True, "id": image_id, "repo_digests": []}} if image_id else {}
    return host(service or PINNED, measured=facts, images=images, **variables)


def plan(hosts: dict[str, Any], starts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return dict(engine.make_plan(copy.deepcopy(hosts), RECIPES, starts=starts, **more)["hosts"])


def memory(body: dict[str, Any]) -> dict[str, Any]:
    return dict(body["services"][0]["memory"])


def took(body: dict[str, Any], inside: float = 0.8, **more: Any) -> dict[str, Any]:
    """What a proof of a planned service keeps."""
    figures = memory(body)
    return {
        **figures["launch"],
        **{key: figures[key] for key in ("max_model_len", "max_num_batched_tokens", "max_num_seqs")},
        "driver": DRIVER,
        "weights_gib": 7.64,
        "inside_gib": inside,
        "outside_gib": 1.5,
        **more,
    }


def with_spans(*starts: dict[str, Any]) -> list[dict[str, Any]]:
    return measured_starts.merge_starts([], starts)


def rests_on(body: dict[str, Any]) -> Any:
    return memory(body)["sources"].get("overheads")


def test_the_next_plan_goes_by_what_the_launch_took_and_starts_nothing_else() -> None:
    first = plan({"a": spark()})["a"]
    starts = {"a": with_spans(took(first))}
    second = plan({"a": spark()}, starts)["a"]
    assert rests_on(first) is None and rests_on(second) == memory(second)["sources"]["weights"] == MEASURED
    assert memory(second)["overhead_gib"]["typical"] == pytest.approx(0.8, abs=0.01)
    for key in ("argv", "env", "fingerprint", "args", "settings"):
        assert second["services"][0][key] == first["services"][0][key]
    assert "fast: overheads measured here" in picture.label_notes(second["services"])
    # Without facts the image is known by its name alone, which may stand for another by now.
    assert rests_on(plan({"a": host(PINNED)}, starts)["a"]) == NARROWED


@pytest.mark.parametrize("facts", [{}, {"memory": {"available_gib": 100.0}}])
def test_a_proof_changes_no_file_of_its_host(facts: dict[str, Any]) -> None:
    """The exporters show planned and used memory; otherwise a second run would install them again."""
    hosts = {"a": spark(spark_exporters={})}
    hosts["a"]["measured"] |= facts
    first = engine.make_plan(copy.deepcopy(hosts), RECIPES)
    starts = {"a": with_spans(took(first["hosts"]["a"], inside=3.0))}
    second = engine.make_plan(copy.deepcopy(hosts), RECIPES, starts=starts)
    before, after = (memory(plan_of_run["hosts"]["a"])["residency_gib"]["typical"] for plan_of_run in (first, second))
    assert abs(before - after) > 0.1
    assert second["addons"]["a"]["exporters"]["planned_gib"] == {"fast": before}
    assert second["addons"] == first["addons"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"driver": "590.1.1"}, NARROWED),
        ({"image_id": OTHER}, None),
        ({"image_id": ""}, NARROWED),
        ({"spark_learn": False}, None),
        ({"service": {**PINNED, "args": {**PINNED["args"], "max-num-batched-tokens": 8192}}}, NARROWED),
        ({"service": {**PINNED, "args": {**PINNED["args"], "max-model-len": 8192}}}, NARROWED),
        ({"service": {**PINNED, "args": {**PINNED["args"], "gpu-memory-utilization": 0.3}}}, MEASURED),
        ({"service": {**PINNED, "args": {**PINNED["args"], "enforce-eager": True}}}, None),
        ({"service": {**PINNED, "args": {**PINNED["args"], "kv-cache-dtype": "fp8"}}}, None),
        ({"service": {**PINNED, "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}}, None),
        ({"service": {**PINNED, "port": 9999, "name": "other"}}, MEASURED),
    ],
)
def test_what_is_the_same_launch_and_what_a_near_one(change: dict[str, Any], expected: str | None) -> None:
    starts = {"a": with_spans(took(plan({"a": spark()})["a"]))}
    assert rests_on(plan({"a": spark(**change)}, starts)["a"]) == expected


def test_what_other_sparks_measured_narrows_and_is_joined() -> None:
    first = plan({"a": spark()})["a"]
    starts = {"b": with_spans(took(first, 0.7)), "c": with_spans(took(first, 1.0))}
    planned = plan({name: spark() for name in "abc"}, starts)
    assert [rests_on(planned[name]) for name in "abc"] == [NARROWED, MEASURED, MEASURED]
    joined = measured_starts.KnownStarts(starts).matching("a", memory(first)["launch"], DRIVER)
    assert [(start["exact"], start["inside_gib"]) for start in joined] == [(False, [0.7, 1.0])]


def test_starts_of_one_launch_make_a_range_and_the_same_proof_twice_changes_nothing() -> None:
    body = plan({"a": spark()})["a"]
    once = with_spans(took(body, 0.8))
    assert measured_starts.merge_starts(once, [took(body, 0.8)]) == once
    (entry,) = measured_starts.merge_starts(once, [took(body, 0.6, outside_gib=None), took(body, 0.9)])
    assert entry["inside_gib"] == [0.6, 0.9] and entry["outside_gib"] == [1.5, 1.5]
    assert len(measured_starts.merge_starts(once, [took(body, driver="590.1.1")])) == 2


def test_what_is_kept_is_bounded_and_an_image_without_an_id_is_not() -> None:
    body = plan({"a": spark()})["a"]
    many = with_spans(*(took(body, max_model_len=1000 + number) for number in range(200)))
    assert len(many) == measured_starts.MOST_STARTS and many[-1]["max_model_len"] == 1199
    assert with_spans(took(body, image_id="")) == []


def test_a_plan_for_the_export_has_what_was_measured_with_what_it_is_of() -> None:
    first = plan({"a": spark()})["a"]
    starts = {"a": with_spans(took(first))}
    assert "measurements" not in plan({"a": spark()}, starts)["a"]
    (launch,) = plan({"a": spark(), "b": spark()}, starts, measurements=True)["a"]["measurements"]
    assert launch["starts"] == starts["a"] and launch["config"]["model_type"] == "qwen3"
    assert launch["args"] == {} and launch["repo"] == "Qwen/Qwen3-4B-Instruct-2507"
