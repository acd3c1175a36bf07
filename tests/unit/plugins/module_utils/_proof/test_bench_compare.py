"""Conditions under which figures are compared, the findings that follow, and the report."""

from __future__ import annotations

from typing import Any

import pytest
from bench_fixture import load, measured, row

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import (
    bench_compare,
    bench_report,
    benchmark,
    receipts,
)

SETTINGS, _MESSAGES = benchmark.read("h", {})


def compare(
    previous: dict[str, Any] | None, new: dict[str, Any], **settings: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    section, findings = bench_compare.compare(previous, new, "heavy", {**SETTINGS, **settings})
    return section, {finding["rule"]: finding["severity"] for finding in findings}


def first() -> dict[str, Any]:
    return compare(None, measured())[0]


def slower(share: float, **more: Any) -> dict[str, Any]:
    rows = [row(512, 43.0 * share), row(4096, 41.0)]
    return measured(**{"at": "2026-11-09T10:00:00+00:00", "single": rows, **more})


def test_the_first_measurement_is_the_baseline() -> None:
    section, rules = compare(None, measured())
    assert rules == {}
    assert section["decode_tokens_per_second"] == section["baseline_decode_tokens_per_second"] == 43.0
    assert (section["ratio"], section["comparable"], section["differs"]) == (1.0, True, [])
    assert section["baseline"]["single"] == section["single"]


SPEED = {"streams": 4, "ceiling": 50.0, "ceiling_all": 160.0, "drafted": 0, "bytes_per_token": 5_460_000_000}


@pytest.mark.parametrize(
    ("new", "impossible"),
    [
        ({}, False),
        ({"single": [row(512, 51.0)]}, True),
        ({"concurrency": [load(2, 101.0)]}, True),
        ({"concurrency": [load(16, 161.0)]}, True),  # 12 of the 16 wait
        ({"concurrency": [load(16, 159.0)]}, False),
        ({"single": [row(512, 51.0)], "conditions": {"gpu": False}}, False),
    ],
)
def test_a_rate_above_the_memory_bus_is_refused(new: dict[str, Any], impossible: bool) -> None:
    made = measured(**{"concurrency": [], **new})
    section, findings = bench_compare.compare(None, made, "heavy", SETTINGS, SPEED)
    assert [finding["rule"] for finding in findings] == (["bench.impossible"] if impossible else [])
    assert bool(section["baseline"]) is not impossible
    # A drafter yields several tokens a step, and stand-ins of engines have no bus.
    assert bench_compare.compare(None, made, "heavy", SETTINGS, {**SPEED, "drafted": 2})[1] == []
    assert bench_compare.compare(None, made, "heavy", {**SETTINGS, "ceiling": False}, SPEED)[1] == []


def test_published_rates_of_another_launch_are_not_compared() -> None:
    section, service = first(), {"name": "heavy", "image": {"ref": "i"}, "args": {}, "speed": SPEED}
    rates = [
        {"what": "a", "source": "b", "tokens_per_second": 80},
        {"what": "a", "source": "b", "tokens_per_second": 49, "other_launch": "a drafter"},
        {"what": "a", "source": "b", "tokens_per_second": 45},
    ]
    rows, _findings = bench_compare.published(rates, section, service, {}, 1)
    assert [entry["tokens_per_second"] for entry in rows] == [45]


def test_the_headline_is_the_shortest_prompt() -> None:
    rows = [row(4096, 41.0), row(512, 43.0)]
    assert bench_compare.headline({"single": rows})["prompt_tokens"] == 512
    assert compare(None, measured(single=rows))[0]["decode_tokens_per_second"] == 43.0


def test_within_the_tolerance_nothing_is_found() -> None:
    section, rules = compare(first(), slower(0.92))
    assert rules == {} and section["ratio"] == pytest.approx(0.92)
    assert section["baseline_decode_tokens_per_second"] == 43.0


def test_a_regression_is_a_finding_and_keeps_the_baseline() -> None:
    section, rules = compare(first(), slower(0.85))
    assert rules == {"bench.decode": "warning"}
    assert section["ratio"] == pytest.approx(0.85, abs=1e-3)
    later, rules = compare(section, slower(0.85))
    assert rules == {"bench.decode": "warning"} and later["baseline_decode_tokens_per_second"] == 43.0


def test_how_much_is_a_regression_is_the_users() -> None:
    assert compare(first(), slower(0.85), regression_percent=20)[1] == {}
    assert compare(first(), slower(0.95), regression_percent=2)[1] == {"bench.decode": "warning"}


def test_repeats_that_overlap_are_no_warning() -> None:
    wide = {"median": 36.0, "low": 35.0, "high": 43.0}
    _section, rules = compare(first(), measured(single=[row(512, 36.0, decode_tokens_per_second=wide)]))
    assert rules == {"bench.decode": "info", "bench.noisy": "info"}


def test_prefill_and_load_are_compared_row_by_row() -> None:
    rows = [row(512, 43.0), row(4096, 41.0, prefill=3000.0), row(8192, 1.0)]
    _section, rules = compare(first(), measured(single=rows, concurrency=[load(4, 60.0), load(8, 1.0)]))
    assert rules == {"bench.prefill": "warning", "bench.concurrency": "warning"}


def content(name: str, decode: float) -> dict[str, Any]:
    return {"content": name, **row(60, decode, draft_acceptance=0.8, tokens_per_step=2.6)}


def at_rate(rate: float, tokens: float) -> dict[str, Any]:
    made = {name: value for name, value in load(4, tokens).items() if name != "concurrency"}
    return {**made, "request_rate": rate}


def test_contents_and_rates_are_compared_row_by_row() -> None:
    then = measured(contents=[content("code", 60.0), content("long", 50.0)], request_rates=[at_rate(4, 100.0)])
    base = compare(None, then)[0]
    now = measured(contents=[content("code", 40.0), content("long", 50.0)], request_rates=[at_rate(4, 60.0)])
    _section, findings = bench_compare.compare(base, now, "heavy", SETTINGS)
    messages = [finding["message"] for finding in findings]
    assert len(messages) == 2
    assert messages[0].startswith("decode of code of heavy is 40 tokens/s") and messages[1].startswith(
        "output at 4 requests a second"
    )


def test_a_part_that_was_not_measured_before_begins_its_own_baseline() -> None:
    prefix = {"prompt_tokens": 8192, "repeats": 3, "hit_rate": 0.97, "first_ttft_seconds": 1.4, "ttft_seconds": None}
    section, rules = compare(first(), measured(contents=[content("code", 60.0)], prefix_cache=prefix))
    assert rules == {} and section["baseline"]["contents"][0]["content"] == "code"
    section, rules = compare(section, measured())
    assert section["baseline"]["contents"][0]["content"] == "code"
    _section, rules = compare(section, measured(contents=[content("code", 30.0)]))
    assert rules == {"bench.decode": "warning"}


def test_the_tables_of_contents_prefixes_and_rates() -> None:
    prefix = {"prompt_tokens": 8200, "repeats": 3, "hit_rate": 0.974, "first_ttft_seconds": 1.4, "ttft_seconds": None}
    new = measured(contents=[content("code", 60.0)], prefix_cache=prefix, request_rates=[at_rate(4, 100.0)])
    text = bench_report.report(
        [{"where": "spark-1/heavy", **compare(None, new)[0], "findings": [], "published": []}], []
    )
    lines = [" ".join(line.replace("|", " ").split()) for line in text.splitlines()]
    assert any(line.startswith("spark-1/heavy code 256") and "60.0" in line and "80% 2.60" in line for line in lines)
    assert any(line.startswith("spark-1/heavy 8200 97% 1.40") for line in lines)
    assert any(line.startswith("spark-1/heavy 4 a second 8") for line in lines)


def test_another_client_is_another_figure() -> None:
    _section, rules = compare(first(), measured(concurrency=[load(4, 60.0, client="own")]))
    assert rules == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conditions": {"image_id": "sha256:" + "b2" * 32}}, "image a1a1a1a1a1a1 then, b2b2b2b2b2b2 now"),
        ({"conditions": {"fingerprint": "ffff"}}, "arguments and environment a075e700e4fd7dc0 then, ffff now"),
        ({"conditions": {"vllm_version": "0.33.0"}}, "vLLM 0.27.1 then, 0.33.0 now"),
        ({"workload": {"prompt_tokens": 1024}}, "prompt length 512 then, 1024 now"),
        ({"workload": {"output_tokens": 64}}, "answer length 256 then, 64 now"),
        ({"workload": {"thinking": False}}, "thinking unknown then, no now"),
        ({"workload": {"prompts": 3}}, "client and text of the prompts 2 then, 3 now"),
    ],
)
def test_another_deployment_or_workload_begins_a_new_baseline(changes: dict[str, Any], message: str) -> None:
    section, findings = bench_compare.compare(first(), slower(0.5, **changes), "heavy", SETTINGS)
    assert [finding["rule"] for finding in findings] == ["bench.other"]
    assert message in findings[0]["message"] and findings[0]["severity"] == "info"
    assert section["ratio"] == 1.0 and section["baseline_decode_tokens_per_second"] == 21.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"driver": "590.10"}, "driver 580.173.02 then, 590.10 now"),
        ({"power_limit_watts": 100.0}, "power cap unknown then, 100 now"),
        ({"sm_clock_mhz": 1500}, "SM clock under load 2418 MHz then, 1500 MHz now"),
        ({"sm_clock_mhz": None}, "SM clock under load 2418 MHz then, unknown MHz now"),
    ],
)
def test_another_host_keeps_the_baseline_and_is_not_comparable(changes: dict[str, Any], message: str) -> None:
    section, findings = bench_compare.compare(first(), slower(0.5, conditions=changes), "heavy", SETTINGS)
    assert [finding["rule"] for finding in findings] == ["bench.conditions"]
    assert message in findings[0]["message"] and findings[0]["severity"] == "warning"
    assert section["ratio"] is None and section["comparable"] is False and message in section["differs"]
    assert section["baseline_decode_tokens_per_second"] == 43.0 and section["decode_tokens_per_second"] == 21.5
    back, rules = compare(section, slower(0.99))
    assert rules == {} and back["ratio"] == pytest.approx(0.99, abs=1e-3)


def test_a_clock_that_wanders_is_the_same_clock() -> None:
    assert compare(first(), slower(1.0, conditions={"sm_clock_mhz": 2360}))[0]["comparable"] is True


def test_conditions_without_a_loss_are_told_and_no_warning() -> None:
    assert compare(first(), slower(1.1, conditions={"driver": "590.10"}))[1] == {"bench.conditions": "info"}


def test_a_new_baseline_can_be_asked_for() -> None:
    section, rules = compare(first(), slower(0.5, conditions={"driver": "590.10"}), rebaseline=True)
    assert rules == {} and section["ratio"] == 1.0 and section["baseline_decode_tokens_per_second"] == 21.5


def test_what_others_disturbed_is_compared_with_nothing_and_no_baseline() -> None:
    noisy = slower(0.5, single=[row(512, 21.5, disturbed=1)])
    section, rules = compare(None, noisy)
    assert rules == {"bench.disturbed": "warning"}
    assert (
        section["ratio"] is None and section["baseline"] == {} and section["baseline_decode_tokens_per_second"] is None
    )
    later, rules = compare(first(), noisy)
    assert rules == {"bench.disturbed": "warning"} and later["baseline_decode_tokens_per_second"] == 43.0
    assert later["comparable"] is False and later["ratio"] is None


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"short": 2}, "bench.short"),
        ({"cached_share": 0.6}, "bench.cached"),
        ({"tokens_per_arrival": 20.0}, "bench.coarse"),
    ],
)
def test_figures_that_are_doubtful_say_so(changes: dict[str, Any], rule: str) -> None:
    assert compare(None, measured(single=[row(512, 43.0, **changes)]))[1] == {rule: "info"}


def test_requests_that_failed_are_told() -> None:
    assert compare(None, measured(concurrency=[load(4, 10.0, failed=3)]))[1] == {"bench.failed": "warning"}


def test_more_clients_than_the_engine_runs_at_once_are_named() -> None:
    loads = [load(4, 10.0), load(16, 12.0)]
    assert compare(None, measured(concurrency=loads, max_num_seqs=4))[1] == {"bench.queued": "info"}
    assert compare(None, measured(concurrency=loads, max_num_seqs=16))[1] == {}
    assert compare(None, measured(concurrency=loads))[1] == {}


def test_a_section_survives_the_receipt() -> None:
    receipt = receipts.build("heavy", {"image": "a"}, {}, None)
    loaded = receipts.load(receipts.dump(receipts.with_benchmark(receipt, first())))
    assert loaded.benchmark == {**first(), "stale": False}
    assert compare(loaded.benchmark, slower(0.9))[0]["ratio"] == pytest.approx(0.9)


# --- published ---

SERVICE = {"name": "heavy", "image": {"ref": "image:1"}, "args": {"max-num-seqs": 8, "kv-cache-dtype": "fp8"}}
RECIPE = {"images": [{"ref": "image:1"}], "args": {"kv-cache-dtype": "fp8"}}
EXPECT = {"what": "decode rate of one stream", "tokens_per_second": 43.0, "source": "a guide"}


def test_a_published_figure_is_never_called_comparable() -> None:
    rows, findings = bench_compare.published([EXPECT], first(), SERVICE, RECIPE, 1)
    assert findings == [] and rows[0]["share"] == 1.0 and rows[0]["measured"] == 43.0
    assert rows[0]["differs"] == ["prompts and answer length of the source are not known"]


def test_what_is_known_to_differ_is_named() -> None:
    service = {**SERVICE, "image": {"ref": "image:2"}, "args": {"kv-cache-dtype": "auto"}}
    rows, _findings = bench_compare.published([EXPECT], first(), service, RECIPE, 1)
    assert rows[0]["differs"][1:] == ["image image:2, the recipe's first is image:1", "arguments kv-cache-dtype"]


def test_far_below_all_that_is_published() -> None:
    section = {**first(), "decode_tokens_per_second": 20.0}
    assert bench_compare.published([EXPECT], section, SERVICE, RECIPE, 1)[1][0]["rule"] == "bench.published"
    low = {**EXPECT, "tokens_per_second": 22.0}
    assert bench_compare.published([EXPECT, low], section, SERVICE, RECIPE, 1)[1] == []


def test_figures_of_pairs_and_of_several_streams() -> None:
    pair, four = {**EXPECT, "sparks": 2}, {**EXPECT, "streams": 4, "tokens_per_second": 240}
    rows, findings = bench_compare.published([pair, four], first(), SERVICE, RECIPE, 1)
    assert findings == [] and [(entry["streams"], entry["measured"], entry["share"]) for entry in rows] == [
        (4, 120.0, 0.5)
    ]
    assert len(bench_compare.published([pair, EXPECT], first(), SERVICE, RECIPE, 2)[0]) == 1


# --- what people see ---


def test_the_report() -> None:
    section, findings = bench_compare.compare(first(), slower(0.85), "heavy", SETTINGS)
    rows, _more = bench_compare.published([EXPECT], section, SERVICE, RECIPE, 1)
    result = {"where": "spark-1/heavy", **section, "findings": findings, "published": rows}
    text = bench_report.report([result], [{"where": "spark-2/fast", "reason": "others are being served"}])
    assert "43 (-15.0 %)" in text
    assert "WARNING spark-1/heavy: decode at 512 tokens of heavy is 36.55 tokens/s" in text
    assert "published 43 tokens/s" in text and "not called comparable:" in text
    assert "ERROR   spark-2/fast was not measured: others are being served" in text
    assert "16 at once" in text
    assert bench_report.report([], []) == "no service to measure"


def test_the_table_calls_only_that_a_comparison_which_is_one() -> None:
    other = {"where": "a/b", **compare(first(), slower(0.5, conditions={"driver": "590"}))[0]}
    assert "43 (not comparable)" in bench_report.report([other], [])
    assert "this one" in bench_report.report([{"where": "a/b", **first()}], [])


def test_tokens_a_step_are_shown_with_a_drafter() -> None:
    plain, drafted = [{"where": "a/b", **compare(None, measured(single=[row(512, 43.0, tokens_per_step=step)]))[0]}
                      for step in (None, 2.6)]  # fmt: skip
    assert "tokens/step" not in bench_report.report([plain], [])
    assert "2.60" in bench_report.report([drafted], [])
