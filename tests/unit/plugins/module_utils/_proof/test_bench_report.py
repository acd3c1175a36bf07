# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two compared services: the faster one, by how much, and repeats that overlap."""

from __future__ import annotations

from typing import Any

from bench_fixture import load, measured, row

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import bench_compare, bench_report, benchmark

SETTINGS, _MESSAGES = benchmark.read("h", {})


def section(name: str, **changes: Any) -> dict[str, Any]:
    made, _findings = bench_compare.compare(None, measured(**changes), name, SETTINGS)
    return {"where": f"spark-1/{name}", "service": name, **made}


PLAIN = section("plain", single=[row(512, 20.0, prefill=6000.0)], concurrency=[load(4, 70.0)])
MTP = section("mtp", single=[row(512, 40.0, prefill=5000.0, tokens_per_step=2.6)], concurrency=[load(4, 60.0)])


def test_more_tokens_are_better_and_more_seconds_are_not() -> None:
    rows = {entry["what"]: entry for entry in bench_report.pair_rows(PLAIN, MTP)}
    assert rows["decode tok/s, prompt of 512"]["better"] == "b" and rows["decode tok/s, prompt of 512"]["change"] == 1.0
    assert rows["prefill tok/s, prompt of 512"]["better"] == "a"
    assert rows["TTFT s, prompt of 512"]["better"] == "a" and rows["TTFT s, prompt of 512"]["change"] > 0
    assert rows["output tok/s, 4 requests at once"]["better"] == "a"
    assert rows["output tok/s, 4 requests at once"]["apart"] is None


def test_repeats_that_overlap_decide_nothing() -> None:
    wide = {"median": 21.0, "low": 19.0, "high": 24.0}
    other = section("other", single=[row(512, 21.0, decode_tokens_per_second=wide)])
    rows = {entry["what"]: entry for entry in bench_report.pair_rows(PLAIN, other)}
    assert rows["decode tok/s, prompt of 512"]["better"] == "" and rows["decode tok/s, prompt of 512"]["apart"] is False


def test_what_one_of_them_lacks_is_not_compared() -> None:
    other = section("other", single=[row(4096, 21.0)], concurrency=[])
    assert bench_report.pair_rows(PLAIN, other) == []
    assert "no figure in common" in bench_report.pair_report([(PLAIN, other)])


def test_the_table_names_both_and_what_was_not_the_same() -> None:
    hot = section("mtp", single=MTP["single"], conditions={"driver": "590.44"})
    text = bench_report.pair_report([(PLAIN, hot)])
    assert "a: spark-1/plain" in text and "b: spark-1/mtp" in text and "+100.0 %" in text
    assert "not the same for both: driver: 580.173.02 and 590.44" in text
    assert "tokens a step: plain no drafter, mtp 2.60" in text
    assert "not the same" not in bench_report.pair_report([(PLAIN, MTP)])


# --- predicted -----------------------------------------------------------------------------------------------------

SPEED = {
    "streams": 6,
    "one_stream": {"low": 25.0, "typical": 28.0, "high": 31.0},
    "all_streams": {"low": 100.0, "typical": 120.0, "high": 150.0},
    "by_streams": {"4": {"low": 80.0, "typical": 100.0, "high": 120.0}},
    "first_token_8k": {"low": 1.0, "typical": 1.6, "high": 2.0},
    "proof": {"prefill": {"low": 5000.0, "typical": 6000.0, "high": 7000.0}},
}


def predicted(**changes: Any) -> dict[str, tuple[float, float, str]]:
    rows = bench_compare.predicted(SPEED, section("plain", **changes))
    return {entry["what"]: (entry["low"], entry["measured"], entry["verdict"]) for entry in rows}


def test_measured_figures_stand_beside_the_predicted_ones() -> None:
    lengths = [row(length, 19.9, prefill=2400.0) for length in (512, 2048, 4096, 8192, 32768)]
    rows = predicted(single=lengths, concurrency=[load(2, 50.0), load(4, 40.0), load(6, 110.0)])
    assert rows["decode, one stream"] == (25.0, 19.9, "slow")
    assert rows["output, 4 streams"] == (80.0, 40.0, "wrong") and rows["output, 6 streams"] == (100.0, 110.0, "fine")
    assert "output, 2 streams" not in rows  # the plan has no such figure
    # The rate of the nearest predicted prompt counts: 8192 tokens in at most 2 s.
    assert rows["prefill, 8192 tokens"] == (4096.0, 2400.0, "wrong") and rows["prefill, 2048 tokens"][0] == 5000.0
    assert "prefill, 512 tokens" not in rows and "prefill, 32768 tokens" not in rows


def test_the_report_has_a_table_of_them() -> None:
    result = {**PLAIN, "predicted": bench_compare.predicted(SPEED, PLAIN)}
    text = bench_report.report([result], [])
    (line,) = [line for line in text.splitlines() if "decode, one stream" in line]
    assert "25.0..31.0" in line and "20.0" in line and "71%" in line and "slow" not in line.split("71%")[0]
    assert "predicted" not in bench_report.report([PLAIN], [])
    assert bench_compare.predicted({}, PLAIN) == []
