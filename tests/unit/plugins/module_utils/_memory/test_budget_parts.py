# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the memory budget: notes about versions, verdicts, and the terms of an engine besides weights and KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import budget_notes, budget_result, service_terms
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.fixes import Report
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.profile_run import profile_by_batch
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.weights import Weights
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import OVERHEADS

GIB = 1 << 30


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


def test_an_override_replaces_all_terms_inside_the_request() -> None:
    terms = {**OVERHEADS, "inside_gib": (1.0, 2.0, 3.0)}
    inside = service_terms.inside_terms(terms, Weights(5 * GIB, 0, 5 * GIB), profile_by_batch(2048), True, True)
    assert inside == {"low": GIB, "typical": 2 * GIB, "high": 3 * GIB}
