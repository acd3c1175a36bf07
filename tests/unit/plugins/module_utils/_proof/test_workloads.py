# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What requests of a benchmark consist of, beside plain prompts."""

from __future__ import annotations

import statistics

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark, workloads


def test_each_content_that_may_be_asked_for_has_a_request() -> None:
    assert tuple(workloads.CONTENTS) == benchmark.CONTENTS
    assert {name: length for name, (length, _text) in workloads.CONTENTS.items()} == {
        "medium": 300,
        "long": 600,
        "code": 300,
        "reasoning": 300,
    }


def test_a_content_shares_no_beginning_and_is_the_same_text() -> None:
    one, two = (workloads.messages({"content": "code"}, nonce)[0]["content"] for nonce in ("a1", "b2"))
    assert one != two and one.split(". ", 1)[1] == two.split(". ", 1)[1]


def test_requests_with_a_shared_prefix_differ_in_the_question_alone() -> None:
    task = {"prefix": "p", "characters": 2000, "seed": "s"}
    first, second = (workloads.messages({**task, "number": number}, f"n{number}") for number in (0, 1))
    assert first[0] == second[0] and first[0]["role"] == "system" and len(first[0]["content"]) == 2000
    assert first[1] != second[1] and len(first[1]["content"]) < 100
    assert workloads.messages({**task, "prefix": "q"}, "n0")[0] != first[0]


def test_a_plain_prompt_is_what_it_was() -> None:
    task = {"characters": 600, "seed": "s"}
    assert workloads.messages(task, "n") == [{"role": "user", "content": benchmark.prompt(600, "n", "s")}]


def test_what_a_cache_did_is_known_only_where_the_engine_counts() -> None:
    first = {"prompt_tokens": 8200, "ttft_seconds": 1.4, "seen": {"disturbed": False, "cached_share": 0.0}}
    later = {"prompt_tokens": 8200, "ttft_seconds": 0.1, "seen": {"disturbed": True, "cached_share": 0.98}}
    row = workloads.prefix_row(first, [later, {**later, "seen": {"disturbed": False, "cached_share": 0.96}}])
    assert (row["hit_rate"], row["first_ttft_seconds"], row["disturbed"]) == (0.97, 1.4, 1)
    assert row["ttft_seconds"] == {"median": 0.1, "low": 0.1, "high": 0.1}
    silent = {**later, "seen": {"disturbed": False, "cached_share": None}}
    assert workloads.prefix_row(first, [silent])["hit_rate"] is None


def test_what_does_not_fit_into_the_context_is_left_out() -> None:
    settings = {"contents": ["long", "code"], "prefix_tokens": 8192}
    assert workloads.fitting(settings, None) == (["long", "code"], 8192, [])
    assert workloads.fitting(settings, 16384) == (["long", "code"], 8192, [])
    contents, prefix, left = workloads.fitting(settings, 600)
    assert (contents, prefix) == (["code"], 0)
    assert left == ["content long: the context is 600", "a shared system prompt of 8192 tokens: the context is 600"]
    assert workloads.fitting({"contents": [], "prefix_tokens": 0}, 600) == ([], 0, [])


def test_users_come_at_random_and_as_often_as_was_asked() -> None:
    moments = workloads.arrivals(4.0, 4000, "s")
    assert moments[0] == 0 and moments == sorted(moments) and moments == workloads.arrivals(4.0, 4000, "s")
    gaps = [after - before for before, after in zip(moments, moments[1:])]
    assert 0.23 < statistics.mean(gaps) < 0.27
    assert 0.22 < statistics.stdev(gaps) < 0.28  # a Poisson process: as wide as its mean
    assert workloads.arrivals(4.0, 4000, "t") != moments


def test_no_more_requests_than_begin_in_half_of_the_time() -> None:
    assert workloads.in_steps(4.0, 100, 600) == 100
    assert workloads.in_steps(0.1, 100, 600) == 30
    assert workloads.in_steps(0.001, 100, 60) == 1
