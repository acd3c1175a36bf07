from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipts

DEPLOYED = {"image": "sha256:1", "argv": ["vllm", "serve", "m"], "env": {"VLLM_USE_V1": "1"}}
FAST = {"decode_tokens_per_second": 42.0, "ttft_seconds": 0.3, "residency_gib": 95.0, "note": "x"}


def first() -> receipts.Receipt:
    return receipts.build("heavy", DEPLOYED, FAST, None)


def compare(previous: receipts.Receipt | None, deployed: dict[str, Any], measured: dict[str, Any]) -> list[Finding]:
    return receipts.compare(previous, receipts.build("heavy", deployed, measured, previous))


def test_receipt_survives_the_file() -> None:
    receipt = first()
    assert receipt.to_dict()["schema"] == 1 and receipt.service == "heavy"
    assert receipts.load(receipts.dump(receipt)) == receipt
    assert receipts.dump(receipt) == receipts.dump(receipts.load(receipts.dump(receipt)))


def test_baseline_is_that_of_the_first_proof_and_grows_with_new_figures() -> None:
    second = receipts.build("heavy", DEPLOYED, {"decode_tokens_per_second": 39.0, "start_seconds": 300}, first())
    assert second.measured["decode_tokens_per_second"] == 39.0
    assert second.baseline == {
        "decode_tokens_per_second": 42.0,
        "ttft_seconds": 0.3,
        "residency_gib": 95.0,
        "start_seconds": 300,
    }


def test_baseline_starts_anew_with_another_deployment() -> None:
    second = receipts.build("heavy", {**DEPLOYED, "image": "sha256:2"}, {"ttft_seconds": 9.0}, first())
    assert second.baseline == {"ttft_seconds": 9.0}


def test_drift_names_every_key() -> None:
    now = {"image": "sha256:2", "argv": DEPLOYED["argv"], "env": {"VLLM_USE_V1": "1", "NEW": "1"}, "revision": "abc"}
    findings = compare(first(), now, FAST)
    assert [(entry.rule, entry.severity, entry.service) for entry in findings] == [("receipt.drift", "info", "heavy")]
    assert findings[0].message.endswith("env.NEW, image, revision")


def test_nothing_to_say_about_the_first_receipt_or_an_equal_one() -> None:
    assert compare(None, DEPLOYED, FAST) == []
    assert compare(first(), DEPLOYED, FAST) == []


@pytest.mark.parametrize(
    ("figure", "value", "bad"),
    [
        ("decode_tokens_per_second", 36.0, False),  # 14 % less is noise of one request
        ("decode_tokens_per_second", 21.0, True),
        ("decode_tokens_per_second", 80.0, False),
        ("decode_tokens_per_second", None, False),
        ("ttft_seconds", 1.2, False),  # four times as long, but within a second
        ("ttft_seconds", 1.5, True),
        ("residency_gib", 99.0, False),
        ("residency_gib", 101.0, True),
        ("residency_gib", 60.0, False),
    ],
)
def test_figures_that_got_worse(figure: str, value: float | None, bad: bool) -> None:
    findings = compare(first(), DEPLOYED, {**FAST, figure: value})
    assert [entry.rule for entry in findings] == ([f"receipt.{figure}"] if bad else [])
    if bad:
        assert findings[0].severity == "warning" and findings[0].basis == "measured" and findings[0].fix


def test_slow_slide_is_seen_against_the_baseline() -> None:
    receipt = first()
    for rate in (38.0, 35.0, 32.0):
        findings = compare(receipt, DEPLOYED, {"decode_tokens_per_second": rate})
        receipt = receipts.build("heavy", DEPLOYED, {"decode_tokens_per_second": rate}, receipt)
    assert findings[0].message == (
        "decode_tokens_per_second of heavy is 32 tokens/s; it was 42 tokens/s when this deployment was first proved "
        "(24% lower)"
    )


def test_after_a_change_the_last_measurement_is_compared_and_said_to_be_older() -> None:
    findings = compare(first(), {"image": "other"}, {"decode_tokens_per_second": 10.0})
    assert [entry.rule for entry in findings] == ["receipt.drift", "receipt.decode_tokens_per_second"]
    assert "before the deployment was changed" in findings[1].message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "receipt is a list, not a mapping"),
        ('{"schema": 2}', "schema is 2, not 1"),
        ('{"schema": 1, "deployed": 5}', "deployed is 5, not a mapping"),
    ],
)
def test_damaged_receipts(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        receipts.load(text)


# --- ranks of a service that spans hosts

SPAN = {"name": "pair_a", "size": 2, "executor": "mp", "hosts": ["spark-1", "spark-2"]}


def test_a_rank_says_of_what_it_is_a_part() -> None:
    receipt = receipts.build("heavy", DEPLOYED, FAST, None, SPAN, 1)
    assert (receipt.cluster, receipt.rank) == (SPAN, 1)
    alone = first()
    assert (alone.cluster, alone.rank) == (None, 0)
    assert receipts.load(receipts.dump(receipt)) == receipt


def test_another_cluster_or_rank_is_another_deployment() -> None:
    before = receipts.build("heavy", DEPLOYED, FAST, None, SPAN, 1)
    same = receipts.build("heavy", DEPLOYED, {"residency_gib": 96.0}, before, SPAN, 1)
    assert same.baseline["residency_gib"] == 95.0 and receipts.compare(before, same) == []
    for span, rank, keys in (
        ({**SPAN, "executor": "ray"}, 1, "cluster.executor"),
        (SPAN, 0, "rank"),
        (None, 0, "cluster, rank"),
    ):
        after = receipts.build("heavy", DEPLOYED, {"residency_gib": 96.0}, before, span, rank)
        assert after.baseline == {"residency_gib": 96.0}
        (finding,) = receipts.compare(before, after)
        assert finding.rule == "receipt.drift" and finding.message.endswith(f": {keys}")


def test_a_receipt_from_before_there_were_ranks_is_of_the_whole_service() -> None:
    old = {key: value for key, value in first().to_dict().items() if key not in ("cluster", "rank")}
    read = receipts.load(json.dumps(old))
    assert compare(read, DEPLOYED, FAST) == [] and read.to_dict() == old


BENCH = {"decode_tokens_per_second": 41.0, "baseline_decode_tokens_per_second": 43.0, "ratio": 0.9535, "baseline": {}}


def test_a_proof_keeps_what_was_benchmarked() -> None:
    benchmarked = receipts.with_benchmark(first(), BENCH)
    assert replace(benchmarked, benchmark=None) == first()
    proved = receipts.build("heavy", DEPLOYED, FAST, benchmarked)
    assert proved.benchmark == {**BENCH, "stale": False}


def test_a_changed_deployment_keeps_the_figures_and_not_the_ratio() -> None:
    benchmarked = receipts.with_benchmark(first(), BENCH)
    other = receipts.build("heavy", {**DEPLOYED, "image": "sha256:2"}, FAST, benchmarked)
    assert other.benchmark == {**BENCH, "ratio": None, "stale": True}
    # After the change back, the last measurement is still of another deployment.
    back = receipts.build("heavy", DEPLOYED, FAST, other)
    assert back.benchmark == {**BENCH, "ratio": None, "stale": True}
    assert receipts.with_benchmark(back, BENCH).benchmark == {**BENCH, "stale": False}


def test_a_receipt_whose_benchmark_is_no_object_is_damaged() -> None:
    with pytest.raises(ValueError, match="benchmark is a list, not a mapping"):
        receipts.load(json.dumps({**first().to_dict(), "benchmark": [1]}))


def test_the_kernels_that_ran_are_kept_and_are_no_change() -> None:
    first = receipts.build("heavy", {"image": "a"}, {}, None, fast_path={"summary": "ok"})
    assert first.fast_path == {"summary": "ok"}
    assert "fast_path" not in receipts.build("heavy", {"image": "a"}, {}, first).to_dict()
    second = receipts.build("heavy", {"image": "a"}, {}, first, fast_path={"summary": "1 off"})
    assert first.subject == second.subject and receipts.compare(first, second) == []
