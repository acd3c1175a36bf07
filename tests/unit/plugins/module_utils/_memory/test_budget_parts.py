# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the memory budget: notes about versions, verdicts, and the terms of an engine besides weights and KV cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import (
    budget_notes,
    budget_result,
    image_answer,
    service_terms,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.adapters import Room
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.fixes import Report
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.layers import Refusal
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.profile_run import ProfileRun, profile_by_batch
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Weights
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import OVERHEADS

GIB = 1 << 30
PLANS = Path(__file__).parents[2] / "fixtures" / "image_plans.json"


def test_minor_releases_are_written_as_spans() -> None:
    text = budget_notes.describe_minors((33, 17, 20, 19))
    assert text == "the releases that know its architecture and options (0.17, 0.19 to 0.20, 0.33)"


def test_an_unknown_version_names_the_releases_that_would_refuse() -> None:
    report = Report()
    refusing = [(17, "ValueError: first"), (18, " ValueError: last ")]
    budget_notes.note_unknown_version(report, "fast", "it is planned as vLLM 0.20.", refusing)
    (draft,) = report.drafts
    assert (draft.finding.rule, draft.finding.severity, draft.finding.service) == ("memory.version", "warning", "fast")
    assert draft.finding.message == (
        "The vLLM version of fast is not known; it is planned as vLLM 0.20. "
        "It would not start with vLLM 0.17 to 0.18: ValueError: last"
    )


@pytest.mark.parametrize(
    ("severities", "tight", "verdict"),
    [
        ((), False, "fits"),
        (("warning",), True, "tight"),
        (("info",), False, "fits"),
        (("warning", "error"), True, "fails"),
    ],
)
def test_an_error_decides_the_verdict_before_overheads_do(
    severities: tuple[str, ...], tight: bool, verdict: str
) -> None:
    findings = [Finding("memory.node", severity, "text") for severity in severities]
    assert budget_result.judge_findings(findings, tight) == verdict


def test_graphs_that_reduce_the_cache_are_not_counted_outside_of_the_request() -> None:
    run = replace(profile_by_batch(2048), graphs=100, graphs_inside=40, request_buffers=7)
    terms = {**OVERHEADS, "graphs_share": (0.5, 1.0, 2.0)}
    assert service_terms.outside_terms(terms, run) == {"low": 37.0, "typical": 67.0, "high": 127.0}


@pytest.mark.parametrize(
    ("vision", "drafts", "base"),
    [(False, False, (1, 2, 3)), (True, False, (11, 22, 33)), (False, True, (101, 202, 303))],
)
def test_terms_inside_the_request_add_up(vision: bool, drafts: bool, base: tuple[int, int, int]) -> None:
    """At low the compiler finds its work of the last start; only at high unknown widths count."""
    terms = {
        "inside_base_gib": (1.0, 2.0, 3.0),
        "inside_vision_gib": (10.0, 20.0, 30.0),
        "inside_drafter_gib": (100.0, 200.0, 300.0),
        "inside_peak_share": (0.5, 1.0, 2.0),
        "inside_weights_share": (0.1, 0.2, 0.3),
        "graphs_share": (0.25, 0.5, 1.0),
    }
    run = ProfileRun(1, 40, 60, tables=7, graphs=100, graphs_inside=8, request_buffers=99, unknown=1000)
    inside = service_terms.inside_terms(terms, Weights(700, 300, 700), run, vision, drafts)
    assert inside == pytest.approx(
        {
            "low": base[0] * GIB + 0.5 * 40 + 0.1 * 1000 + 0.25 * 8 + 7,
            "typical": base[1] * GIB + 1.0 * 60 + 0.2 * 1000 + 0.5 * 8 + 7,
            "high": base[2] * GIB + 2.0 * 60 + 0.3 * 1000 + 1.0 * 8 + 7 + 1000,
        },
        abs=1e-6,
        rel=0,
    )


def test_the_adapters_of_an_answer_are_those_of_the_fullest_rank() -> None:
    """Copies on the host: as many as max-cpu-loras; the answer is of max-loras of them."""
    answer = image_answer.read(json.loads(PLANS.read_text(encoding="utf-8"))["dense"]["answer"])
    (rank,) = answer.ranks
    ranks = (replace(rank, adapters=100), replace(rank, adapters=300))
    args = {"enable-lora": True, "max-loras": 2, "max-cpu-loras": 6}
    room = service_terms.adapter_room_of_answer(replace(answer, ranks=ranks), args)
    assert room == Room(300, 300, 300, 900)
    alone = service_terms.adapter_room_of_answer(replace(answer, ranks=ranks), {"enable-lora": True})
    assert alone == Room(300, 300, 300, 300)
    assert service_terms.adapter_room_of_answer(answer, {}) == Room()
    with pytest.raises(Refusal, match="the image does not report it"):
        service_terms.adapter_room_of_answer(replace(answer, ranks=(ranks[0], replace(rank, adapters=None))), args)


def test_an_override_replaces_all_terms_inside_the_request() -> None:
    terms = {**OVERHEADS, "inside_gib": (1.0, 2.0, 3.0)}
    inside = service_terms.inside_terms(terms, Weights(5 * GIB, 0, 5 * GIB), profile_by_batch(2048), True, True)
    assert inside == {"low": GIB, "typical": 2 * GIB, "high": 3 * GIB}
