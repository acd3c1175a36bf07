# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""learned.py: plans with measured starts, against launches of vLLM 0.26.0 on a GPU."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import learned
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.engine import MEASURED, NARROWED

LAUNCHES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "gpu_rows.json").read_text(encoding="utf-8")
)
ROWS: list[dict[str, Any]] = [row for row in LAUNCHES["rows"] if row["kv_cache"] > 0 and not row.get("rounded")]
GIB = 1 << 30
SIZES = ("max-model-len", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization")


def budget(row: dict[str, Any], starts: list[dict[str, Any]], /, **more: Any) -> dict[str, Any]:
    service = {
        "name": "a",
        "config": LAUNCHES["models"][row["model"]],
        "vllm_version": row["vllm"],
        "args": {**row["arguments"], **more.pop("args", {})},
        "starts": starts,
        **more,
    }
    return memory_budget({"total_gib": row["total"] / GIB, "os_reserve_gib": 0, "services": [service]})


def planned(row: dict[str, Any], starts: list[dict[str, Any]], /, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = budget(row, starts, **more)["services"]["a"]
    return made


def start(row: dict[str, Any], exact: bool = True, **more: Any) -> dict[str, Any]:
    """What a proof of a launch would keep, by its log: hundredths of a GiB."""
    inside = round((row["requested"] - row["weights"] - row["kv_cache"]) / GIB, 2)
    held = round((row["used"] - row["requested"]) / GIB, 2) if row["used"] else None
    args = row["arguments"]
    return {
        "exact": exact,
        "max_model_len": args["max-model-len"],
        "max_num_batched_tokens": args["max-num-batched-tokens"],
        "max_num_seqs": args["max-num-seqs"],
        "weights_gib": round(row["weights"] / GIB, 2),
        "inside_gib": [inside, inside],
        "outside_gib": None if held is None else [held, held],
        **more,
    }


def width(made: dict[str, Any]) -> float:
    size = made["available_kv_bytes"]
    return float(size["high"] - size["low"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["launch"])
def test_a_launch_that_was_measured_is_planned_as_it_was(row: dict[str, Any]) -> None:
    before, made = planned(row, []), planned(row, [start(row)])
    size = made["available_kv_bytes"]
    # The log has hundredths of a GiB, twice.
    assert size["typical"] == pytest.approx(row["kv_cache"], abs=0.011 * GIB)
    assert size["low"] <= row["kv_cache"] <= size["high"] and width(made) < width(before)
    assert made["weights_bytes"] + made["draft_bytes"] == pytest.approx(row["weights"], abs=0.006 * GIB)
    held = made["residency_gib"]
    assert row["used"] is None or held["low"] < row["used"] / GIB < held["high"]
    assert made["sources"]["weights"] == made["sources"]["overheads"] == MEASURED
    assert made["sources"]["kv_cache"] == before["sources"]["kv_cache"]
    assert (
        made["block_size"] == before["block_size"]
        and made["needed_bytes_one_request"] == before["needed_bytes_one_request"]
    )


def test_a_measured_start_leaves_the_caches_that_requests_fill() -> None:
    """Its caches were empty, so they are added; an allocated buffer is part of the measured memory."""
    row = next(item for item in ROWS if item["used"])
    host = {"kv-offloading-size": 8, "enable-lora": True, "max-lora-rank": 64, "max-cpu-loras": 16}

    def held(starts: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        made = planned(row, starts, args=host)
        return made["residency_gib"], {item["name"]: item["gib"] for item in made["host_memory"]}

    _assumed, parts = held([])
    measured = row["used"] / GIB + parts["KV offload buffer"]["typical"]
    fields = start(row)
    outside = measured - row["requested"] / GIB
    residency, repeated = held([{**fields, "outside_gib": [outside, outside]}])
    copies = repeated["adapter copies"]
    assert copies == parts["adapter copies"] and copies["typical"] > 3
    assert residency["typical"] == pytest.approx(measured + copies["typical"], abs=0.02)
    assert measured - 1 < residency["low"] < measured
    assert repeated["KV offload buffer"]["low"] == repeated["KV offload buffer"]["high"]


def near() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Launches that differ in lengths and batch alone."""

    def rest(row: dict[str, Any]) -> Any:
        return row["model"], {key: value for key, value in row["arguments"].items() if key not in SIZES}

    return [(row, other) for row, other in itertools.permutations(ROWS, 2) if rest(row) == rest(other)]


@pytest.mark.parametrize(("learned_start", "row"), near(), ids=lambda row: row["launch"])
def test_a_near_one_narrows_the_range_and_it_still_holds_what_was_measured(
    learned_start: dict[str, Any], row: dict[str, Any]
) -> None:
    before, made = planned(row, []), planned(row, [start(learned_start)])
    size = made["available_kv_bytes"]
    assert size["low"] <= row["kv_cache"] <= size["high"]
    assert before["available_kv_bytes"]["low"] <= size["low"] + 0.2 * GIB and width(made) < 0.75 * width(before)
    assert abs(size["typical"] - row["kv_cache"]) <= max(0.02 * row["kv_cache"], 0.1 * GIB)
    assert made["sources"]["overheads"] in (MEASURED, NARROWED)
    assert len(near()) > 6


def test_another_driver_or_spark_narrows_and_does_not_replace() -> None:
    row = ROWS[0]
    assumed, computed, other = planned(row, []), planned(row, [start(row)]), planned(row, [start(row, exact=False)])
    assert width(computed) < width(other) < width(assumed)
    assert other["sources"] == {**assumed["sources"], "overheads": NARROWED}
    assert other["weights_bytes"] == assumed["weights_bytes"]
    # The nearest counts, and of those that are as near the host's own.
    far = start(row, inside_gib=[9, 9], max_num_batched_tokens=2048)
    assert planned(row, [far, start(row, exact=False, inside_gib=[3, 3]), start(row)]) == computed


def test_a_measured_term_outside_of_what_was_assumed_is_believed() -> None:
    row = ROWS[0]
    made = planned(row, [start(row, exact=False, inside_gib=[8.0, 8.0])])
    assert made["overhead_gib"]["low"] > planned(row, [])["overhead_gib"]["high"]


def test_starts_that_scatter_make_a_range() -> None:
    row = ROWS[0]
    terms = planned(row, [start(row, inside_gib=[1.0, 2.0])])["overhead_gib"]
    weights = start(row)["weights_gib"]
    assert terms["high"] - terms["low"] == pytest.approx(1 + 2 * learned.INSIDE_NOISE_GIB, abs=0.02)
    assert planned(row, [start(row, inside_gib=[1.0, 2.0])])["weights_bytes"] / GIB == pytest.approx(weights)


def test_what_the_inventory_states_stays() -> None:
    row = ROWS[0]
    stated = {"weights_gib": 9.0, "overheads": {"inside_gib": 2.0, "outside_gib": 1.0}}
    assert planned(row, [start(row)], **stated) == planned(row, [], **stated)
    # With stated weights alone, the sum of memory equals the measured sum.
    made = planned(row, [start(row)], weights_gib=8.0)
    assert made["available_kv_bytes"]["typical"] == pytest.approx(row["kv_cache"], abs=0.02 * GIB)
    assert made["sources"]["weights"] == "given"
    with_overheads = planned(row, [start(row)], overheads={"graphs_share": 1.5})
    assert "overheads" not in with_overheads["sources"]


def test_a_proof_changes_nothing_that_was_worked_out() -> None:
    row = ROWS[0]
    opened = {"gpu-memory-utilization": None, "max-model-len": None, "max-num-seqs": "auto"}
    before = planned(row, [], args=opened)
    heavy = start(row, inside_gib=[3.5, 3.5], weights_gib=9.0)
    after = planned(row, [heavy], args=opened)
    for key in ("gpu_memory_utilization", "max_model_len", "max_num_seqs", "requested_bytes", "solved"):
        assert after[key] == before[key]
    assert after["available_kv_bytes"]["typical"] < before["available_kv_bytes"]["typical"]


@pytest.mark.parametrize("inside", [0.0, -0.4, 1.0, 6.0])
def test_no_check_of_vllm_is_passed_that_the_measured_cache_fails(inside: float) -> None:
    """A launch that vLLM would refuse with the cache that was measured is an error at best tight, never simply fits."""
    row = {**ROWS[0], "arguments": {**ROWS[0]["arguments"], "gpu-memory-utilization": 0.2, "max-model-len": 65536}}
    made = budget(row, [start(row, inside_gib=[inside, inside])])
    figures = made["services"]["a"]
    remaining = row["total"] * 0.2 - figures["weights_bytes"] - inside * GIB
    assert figures["available_kv_bytes"]["low"] <= remaining
    assert remaining < figures["needed_bytes_one_request"] and made["verdict"] != "fits"
    assert any(finding.get("vllm_error") for finding in made["findings"])


def test_a_service_without_arithmetic_is_left_alone() -> None:
    row = ROWS[0]
    for stated in ({"memory_gib": 20.0}, {"memory": {"weights_gib": 8, "kv_gib": 9}}):
        assert budget(row, [start(row)], **stated)["services"] == budget(row, [], **stated)["services"]


def test_a_start_that_makes_no_sense_is_said_with_all_that_is_wrong() -> None:
    wrong = {"exact": True, "max_model_len": 0, "inside_gib": [2, 1], "outside_gib": "x", "weigths_gib": 1}
    with pytest.raises(InputError) as caught:
        budget(ROWS[0], [wrong, 7])  # type: ignore[list-item]
    messages = "\n".join(caught.value.messages)
    for word in (
        "max_model_len",
        "the least must not be above",
        "outside_gib",
        "weigths_gib",
        "is missing",
        "starts[1]",
    ):
        assert word in messages
