# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a measured speed: thresholds, the earlier measurement, drafters, ceilings and causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import speeds
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed import judge
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.constants import GB10
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.estimate import SpeedInput, prefill_range
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.judge import Expected, Measured, Signs, Verdict

QWEN3_8B = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "max_position_embeddings": 40960,
}  # fmt: skip


def span(low: float, typical: float, high: float) -> dict[str, float]:
    return {"low": low, "typical": typical, "high": high}


EXPECTED = Expected(
    streams=8,
    single=span(20, 22, 25),
    several=span(10, 12, 15),
    prefill=span(1000, 1250, 1600),
    ceilings={"single": 30.0, "several": 20.0},
)
HEALTHY = Measured(single=22.0, several=12.0, streams=8, prefill=1300.0, prompt_tokens=1900)


def judged(expected: Expected = EXPECTED, **figures: Any) -> Verdict:
    return judge.judge(expected, replace(HEALTHY, **figures))


@pytest.mark.parametrize(
    ("single", "verdict"), [(40 / 2, "fine"), (16.0, "fine"), (15.9, "slow"), (12.0, "slow"), (11.9, "wrong")]
)
def test_thresholds_are_shares_of_the_low_end(single: float, verdict: str) -> None:
    assert judged(single=single).verdict == verdict


@pytest.mark.parametrize(("figure", "rate"), [("single", 5.0), ("several", 5.0), ("prefill", 500.0)])
def test_the_worst_figure_decides(figure: str, rate: float) -> None:
    verdict = judged(**{figure: rate})
    assert verdict.verdict == "wrong" and verdict.worst is not None and verdict.worst.figure == figure
    assert verdict.worst.against == "plan"


def test_an_earlier_measurement_counts_before_the_prediction() -> None:
    earlier = replace(HEALTHY, single=15.0)
    slower = replace(HEALTHY, single=14.0)
    # Below 0.8 of the low end of the prediction, but as fast as it always was.
    assert judge.judge(EXPECTED, slower, earlier).verdict == "fine"
    assert judge.judge(EXPECTED, slower, earlier, earlier_verdict="slow").verdict == "slow"
    # Within the prediction, but much slower than before.
    faster = replace(HEALTHY, single=28.0)
    verdict = judge.judge(EXPECTED, replace(HEALTHY, single=16.5), faster)
    assert verdict.verdict == "wrong" and verdict.worst and verdict.worst.against == "receipt"
    # Without a prediction it is the only reference.
    assert judge.judge(Expected(), Measured(single=10.0), Measured(single=14.0)).verdict == "slow"


def test_an_earlier_measurement_of_another_number_of_streams_does_not_count() -> None:
    earlier = replace(HEALTHY, several=40.0, streams=2)
    assert judge.judge(EXPECTED, HEALTHY, earlier).verdict == "fine"


def test_with_a_drafter_steps_are_compared() -> None:
    drafting = replace(EXPECTED, drafted=3, accepted=(1.5, 3.4), ceilings={"single": 120.0, "several": 80.0})
    # 66 tokens/s by 3 tokens a step: 22 steps/s; with 1.6 tokens a step the same steps give 35 tokens/s.
    fast = judged(drafting, single=66.0, several=36.0, tokens_per_step=3.0)
    slow = judged(drafting, single=35.2, several=19.2, tokens_per_step=1.6)
    assert (fast.verdict, slow.verdict) == ("fine", "fine")
    assert fast.figures[0].measured == slow.figures[0].measured == 22.0
    assert judged(drafting, single=22.0, several=12.0, tokens_per_step=3.0).verdict == "wrong"
    few = judged(drafting, single=24.2, several=13.2, tokens_per_step=1.1)
    assert few.verdict == "slow" and few.causes == ("acceptance",) and "1.10 tokens" in few.reason
    uncounted = judged(drafting, tokens_per_step=None, prefill=None)
    assert uncounted.verdict == "unknown" and "does not count its drafts" in uncounted.reason


def test_each_run_has_its_own_acceptance() -> None:
    drafting = replace(EXPECTED, drafted=3, ceilings={})
    # 3 tokens a step alone and 1.5 among others are 22 and 12 steps/s; by 1.8 of both together the first would be 37.
    figures = {"tokens_per_step": 1.8, "single_tokens_per_step": 3.0, "several_tokens_per_step": 1.5}
    rows = judged(drafting, single=66.0, several=18.0, **figures).figures
    assert [row.measured for row in rows[:2]] == [22.0, 12.0]
    assert judged(drafting, single=30.0, several=18.0, **figures).verdict == "wrong"
    older = Measured.from_receipt({"single": 66.0, "tokens_per_step": 3.0})
    assert older.per_step("single") == older.per_step("several") == 3.0


@pytest.mark.parametrize(
    ("tokens", "is_judged"), [(1536, True), (2560, True), (1500, False), (2600, False), (None, False)]
)
def test_prefill_is_judged_by_a_prediction_for_its_length(tokens: int | None, is_judged: bool) -> None:
    verdict = judged(prefill=300.0, prompt_tokens=tokens)
    assert verdict.verdict == ("wrong" if is_judged else "fine")
    reason = f"its prompt had {tokens or 'an unknown length'}"
    assert is_judged or (reason in verdict.reason and verdict.reason.endswith("the prediction is for 2048"))
    alone = judge.judge(EXPECTED, Measured(prefill=300.0, prompt_tokens=tokens))
    assert is_judged or (alone.verdict == "unknown" and reason in alone.reason)
    # An earlier measurement of a prompt as long is a reference, one of another length is none.
    for length, compared in ((tokens, bool(tokens)), (9000, False)):
        earlier = replace(HEALTHY, prompt_tokens=length)
        rows = judge.judge(EXPECTED, replace(HEALTHY, prompt_tokens=tokens), earlier).figures
        assert (("prefill", "receipt") in [(row.figure, row.against) for row in rows]) == compared


@pytest.mark.parametrize(
    ("chunk", "context", "length"),
    [
        (8192, 0, 2048),
        (8192, 1024, 512),
        (2048, 32768, 1638),
        (2048, 2048, 1024),
        (1024, 32768, 819),
        (512, 32768, 2048),
    ],
)
def test_prefill_is_predicted_for_the_prompt_that_is_sent(chunk: int, context: int, length: int) -> None:
    model = {"config": QWEN3_8B, "vllm_version": "0.33.0"}
    args = {"max-num-batched-tokens": chunk, "max-num-seqs": 4, **({"max-model-len": context} if context else {})}
    expected = judge.read_expected(speeds.of_launch(model, args).proof)
    assert expected.prefill_tokens == length and expected.prefill
    service = speeds._read(speeds.Written((model, {"max-num-batched-tokens": chunk})))
    assert isinstance(service, SpeedInput)
    # The model's own rate at every length that passes for the same is fine.
    for share in (1 - judge.SAME_LENGTH, 1, 1 + judge.SAME_LENGTH):
        tokens = int(length * share) + (share < 1)
        rate = prefill_range(service, tokens, GB10).typical
        assert judge.judge(expected, Measured(prefill=rate, prompt_tokens=tokens)).verdict == "fine"


def test_the_better_of_two_measurements_has_steps_of_its_own_acceptance() -> None:
    many_accepted = Measured(single=60.0, several=30.0, tokens_per_step=3.0)
    few_accepted = Measured(single=33.0, several=15.0, tokens_per_step=1.5)
    assert many_accepted.best_of(few_accepted) == few_accepted.best_of(many_accepted) == few_accepted
    plain = Measured(single=60.0, several=10.0, prefill=900.0).best_of(Measured(single=50.0, several=12.0, streams=4))
    assert plain == Measured(single=60.0, several=12.0, prefill=900.0, streams=4)


@pytest.mark.parametrize(("figure", "rate"), [("single", 31.0), ("several", 21.0)])
def test_a_rate_above_the_ceiling_is_refused(figure: str, rate: float) -> None:
    verdict = judged(**{figure: rate})
    assert verdict.verdict == "unknown" and verdict.refused and "equal prompts" in verdict.reason
    (finding,) = judge.findings("heavy", verdict, HEALTHY, EXPECTED)
    assert (finding.rule, finding.severity) == ("speed.refused", "info") and f"{rate:g} tokens/s" in finding.message


def test_unknown_has_a_reason() -> None:
    assert judge.judge(EXPECTED, Measured(missing="other requests ran")).reason == "other requests ran"
    assert judge.judge(Expected(unknown={"decode": "sparse attention"}), HEALTHY).reason == "sparse attention"
    assert judge.judge(Expected(), HEALTHY).reason == "nothing is predicted"
    assert judge.findings("heavy", judge.judge(Expected(), HEALTHY), HEALTHY, Expected()) == []


PAIR = replace(EXPECTED, sparks=2)


@pytest.mark.parametrize(
    ("expected", "figures", "signs", "first"),
    [
        # By the pattern of the rates alone.
        (EXPECTED, {"single": 12.0, "several": 6.6, "prefill": 380.0}, Signs(), "clock"),
        (EXPECTED, {"single": 9.5, "several": 12.0, "prefill": 1300.0}, Signs(), "eager"),
        (EXPECTED, {"single": 18.0, "several": 9.6, "prefill": 590.0}, Signs(), "kernel"),
        (PAIR, {"single": 10.0, "several": 4.2, "prefill": 620.0}, Signs(), "transport"),
        # By signs: the same rates with a normal clock, with a low one, with a kernel that is not the planned one.
        (EXPECTED, {"single": 12.0, "several": 6.6, "prefill": 380.0, "clock_mhz": 2400.0}, Signs(), "kernel"),
        (EXPECTED, {"single": 9.5, "several": 12.0, "prefill": 1300.0, "clock_mhz": 610.0}, Signs(), "clock"),
        (EXPECTED, {"single": 9.5, "several": 12.0, "prefill": 1300.0}, Signs(kernels=("moe_backend",)), "kernel"),
        (EXPECTED, {"single": 12.0, "several": 6.6, "prefill": 380.0}, Signs(eager=True), "eager"),
    ],
)
def test_the_residual_orders_the_causes(expected: Expected, figures: Any, signs: Signs, first: str) -> None:
    measured = replace(HEALTHY, **figures)
    verdict = judge.judge(expected, measured, signs=signs)
    assert verdict.verdict in ("slow", "wrong") and verdict.causes[0] == first
    (finding,) = judge.findings("heavy", verdict, measured, expected)
    assert judge.CAUSES[first][0] in finding.message and judge.CAUSES[first][1][1:] in finding.fix


def test_causes_that_cannot_be_are_left_out() -> None:
    assert "transport" not in judged(single=5.0).causes
    assert "eager" not in judged(replace(EXPECTED, eager=True), single=5.0).causes
    # A missing rail does not slow down decode.
    verdict = judged(PAIR, prefill=620.0)
    assert verdict.verdict == "slow" and verdict.worst and verdict.worst.figure == "prefill"
    assert "transport" in verdict.causes


def test_a_line_says_figure_unit_and_reference() -> None:
    line = judge.describe(judged(single=11.0), 8)
    assert line == "wrong: decode in one stream 11 tokens/s; 20 or more are predicted"
    earlier = judge.judge(EXPECTED, replace(HEALTHY, several=7.0), HEALTHY)
    assert judge.describe(earlier, 8, 3) == "wrong: decode in 8 streams 7 steps/s each; 12 when it was first measured"
    assert judge.describe(judged(), 8) == "fine"


def test_the_plan_predicts_what_the_proof_measures() -> None:
    model = {"config": QWEN3_8B, "vllm_version": "0.33.0"}
    proof = speeds.of_launch(model, {"max-num-seqs": 100, "max-model-len": 32768}).proof
    expected = judge.read_expected(proof)
    assert expected.streams == judge.MOST_STREAMS and expected.drafted == 0 and expected.sparks == 1
    assert expected.single and expected.several and expected.prefill
    assert expected.several["typical"] < expected.single["typical"] < expected.ceilings["single"]
    draft = {"method": "mtp", "num_speculative_tokens": 2}
    ngram = {"method": "ngram", "num_speculative_tokens": 4}
    drafting = judge.read_expected(speeds.of_launch(model, {"max-num-seqs": 1, "speculative-config": ngram}).proof)
    # The acceptance of n-grams was not published, and the steps do not depend on it.
    assert drafting.single and drafting.accepted is None and drafting.several is None
    assert drafting.ceilings["single"] == pytest.approx(5 * expected.ceilings["single"], abs=0.05)
    unknown = judge.read_expected(speeds.of_launch(model, {"speculative-config": draft}).proof)
    assert unknown.single is None and "no layers that draft" in unknown.unknown["decode"]
    assert judge.read_expected(speeds.of_launch({"config": None}, {}).proof).unknown
