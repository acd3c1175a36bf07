# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a serving engine, verdicts on its answers, and the state over several looks."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import quality
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.engine_client import Problem
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.quality import (
    DEGENERATE,
    DOUBTFUL,
    GOOD,
    LONG_ANSWER,
    NO_ANSWER,
    RECOVERED,
    RETRIEVAL,
    TOOL_CALL,
    UNKNOWN,
    WRONG,
    Settings,
    Tracker,
    Verdict,
)

REPO = Path(__file__).resolve().parents[5]
PROSE = re.sub(
    r"[`|#*\[\](){}]", " ", (REPO / "CODE_OF_CONDUCT.md").read_text() + (REPO / "docs/on_demand.md").read_text()
)


def body(text: Any, logprob: Any = -0.7, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """Return the body of an answer whose tokens are its words."""
    tokens = str(text or "").split()
    entries = [{"token": token, "logprob": logprob} for token in tokens]
    choice = {"message": {"content": text, **message}, "finish_reason": finish, "logprobs": {"content": entries}}
    return {"choices": [choice], "usage": {"completion_tokens": len(tokens)}}


def judge(kind: str, answer: dict[str, Any], expected: str = "amber-otter-4711", **more: Any) -> Verdict:
    return quality.judge(kind, quality.read_answer(answer), expected, **more)


def prose(begin: int = 0, count: int = 300) -> str:
    return " ".join(PROSE.split()[begin : begin + count])


def test_a_long_prompt_has_its_sentence_once_and_is_never_the_same() -> None:
    texts = set()
    for seed in range(50):
        question, expected = quality.make_question(RETRIEVAL, seed, 8192)
        text = question["messages"][0]["content"]
        assert text.count(expected) == 1 and 0.05 < text.index(expected) / len(text) < 0.95
        assert 20_000 < len(text) < 40_000  # 8192 tokens of 2.5 to 5 characters
        texts.add(text[:40])
    assert len(texts) == 50
    assert len(quality.make_question(RETRIEVAL, 1, 256)[0]["messages"][0]["content"]) < 2000
    assert quality.make_question(TOOL_CALL, 1, 0)[0]["tools"]


@pytest.mark.parametrize("begin", range(0, 1500, 150))
def test_prose_is_no_degenerate_answer(begin: int) -> None:
    verdict = judge(LONG_ANSWER, body(prose(begin)))
    assert verdict.outcome == GOOD, verdict
    assert verdict.figures["bits"] > 5 and verdict.figures["distinct"] > 0.8


DICE = random.Random(5)
WORDS = sorted(set(PROSE.split()))
LOOPS = {
    "one sign": "!" * 400,
    "one word": "the " * 300,
    "two words": "of the " * 200,
    "a sentence": prose(0, 12) + " " + (prose(40, 25) + " ") * 14,
    "a paragraph": (prose(100, 60) + " ") * 7,
    "unreadable": "\ufffd\ufffd \ufffd" * 80,
    "blanks": " \n" * 200,
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_unreadable_text_are_degenerate(name: str) -> None:
    verdict = judge(LONG_ANSWER, body(LOOPS[name]))
    assert verdict.outcome == DEGENERATE, verdict


def test_tokens_without_text_and_without_numbers_are_degenerate() -> None:
    pads = {"choices": [{"message": {"content": ""}, "finish_reason": "length"}], "usage": {"completion_tokens": 384}}
    assert judge(RETRIEVAL, pads).why == "384 tokens without any text"
    for value in (math.nan, None, -9999.0, "x", math.inf):
        assert "no numbers" in judge(LONG_ANSWER, body(prose(), value)).why
    same = body(prose())
    for entry in same["choices"][0]["logprobs"]["content"]:
        entry["token"] = "\u0000"  # vllm-project/vllm#52938: one token at every position
    assert judge(LONG_ANSWER, same).outcome == DEGENERATE
    # One token that could not be sampled is no proof.
    once = body(prose())
    once["choices"][0]["logprobs"]["content"][3]["logprob"] = None
    assert judge(LONG_ANSWER, once).outcome == GOOD


def test_words_at_random_are_seen_by_the_surprise_of_the_model_itself() -> None:
    salad = " ".join(DICE.choice(WORDS) for _ in range(300))
    assert "no language" in judge(LONG_ANSWER, body(salad, -7.5)).why
    assert judge(LONG_ANSWER, body(salad, -7.5), temperature=1.5).outcome == GOOD  # it was asked for that
    assert judge(LONG_ANSWER, body(salad, -2.9)).outcome == GOOD


def test_the_sentence_has_to_be_found_in_any_field() -> None:
    assert judge(RETRIEVAL, body("The code is Amber-Otter-4711.")).outcome == GOOD
    assert judge(RETRIEVAL, body(None, reasoning="it is amber-otter-4711")).outcome == GOOD
    assert judge(RETRIEVAL, body("I cannot find a code.")).outcome == WRONG
    assert judge(RETRIEVAL, body("Let me look through the register first", finish="length")).outcome == NO_ANSWER
    assert judge(LONG_ANSWER, body(None)).outcome == NO_ANSWER


def test_a_tool_has_to_be_called() -> None:
    call = {"id": "1", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    assert judge(TOOL_CALL, body(None, finish="tool_calls", tool_calls=[call])).outcome == GOOD
    broken = {"id": "1", "function": {"name": "get_weather", "arguments": '{"city": '}}
    assert judge(TOOL_CALL, body(None, finish="tool_calls", tool_calls=[broken])).outcome == WRONG
    assert "malformed" in judge(TOOL_CALL, body("<function=get_weather>Paris</function>")).why
    assert judge(TOOL_CALL, body("It is sunny in Paris today.")).outcome == WRONG
    assert judge(TOOL_CALL, body("I think that I", finish="length")).outcome == NO_ANSWER


@pytest.mark.parametrize(
    "answer",
    [{}, {"choices": 3}, {"choices": [None]}, {"choices": [{"message": "x"}]}, {"choices": [{"delta": {}}]}],
)
def test_a_body_without_a_message_is_no_answer(answer: Any) -> None:
    with pytest.raises(Problem):
        quality.read_answer(answer)


@pytest.mark.parametrize(
    "odd",
    [
        {"logprobs": {"content": "x"}},
        {"logprobs": {"content": [None, 3, {"token": None, "logprob": []}]}},
        {"logprobs": [1]},
        {"finish_reason": {"a": 1}},
    ],
)
def test_odd_fields_are_no_verdict(odd: dict[str, Any]) -> None:
    answer = {
        "choices": [{"message": {"content": "amber-otter-4711", "reasoning": 7}, **odd}],
        "usage": {"completion_tokens": "9"},
    }
    assert judge(RETRIEVAL, answer).outcome == GOOD


# The state ----------------------------------------------------------------------------------------------------------

EVERY = Settings(quality=True, quality_minutes=10, quality_share=1, quality_looks=3)
KINDS = (RETRIEVAL, LONG_ANSWER)


class Look:
    """A tracker with a clock."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.now = 1000.0
        self.tracker = Tracker(EVERY, self.now, saved)
        self.tracker.starts("i1", self.now)

    def ask(self, outcome: str, seconds: float = 2.0, kinds: tuple[str, ...] = KINDS) -> str:
        """Let time pass until the next question is due, and answer it."""
        self.now = max(self.now, self.tracker.due)
        kind = self.tracker.next_question(self.now, 0, 0, kinds)
        assert kind
        self.now += seconds
        self.kind = kind
        return self.tracker.answered(kind, Verdict(outcome, "why"), seconds, self.now)


def test_questions_take_turns_and_keep_their_share_of_time() -> None:
    look = Look()
    kinds = []
    for _ in range(4):
        look.ask(GOOD)
        kinds.append(look.kind)
    assert kinds == [RETRIEVAL, LONG_ANSWER] * 2 and look.tracker.state == GOOD
    assert look.tracker.due - look.now == 600
    look.ask(GOOD, seconds=30)
    assert look.tracker.due - look.now == pytest.approx(30 * 99)  # 1 % of the time
    assert look.tracker.next_question(look.now + 30 * 98, 0, 0, KINDS) == ""


def test_idle_times_come_first_and_a_queue_is_never_made_longer() -> None:
    look = Look()
    due = look.tracker.due
    for running, waiting, late, is_asked in [
        (0, 0, 0, True),
        (0, None, 0, True),
        (1, 0, 0, False),
        (1, 0, 1799, False),
        (1, 0, 1800, True),
        (9, 1, 9999, False),
        (0, 1, 0, False),
        (None, None, 9999, False),
    ]:
        assert bool(look.tracker.next_question(due + late, running, waiting, KINDS)) is is_asked, (
            running,
            waiting,
            late,
        )


def test_degenerate_text_counts_at_once_and_becomes_a_state_after_several_looks() -> None:
    look = Look()
    assert look.ask(DEGENERATE) == "" and look.tracker.state == DOUBTFUL
    assert look.tracker.due - look.now == pytest.approx(198)  # sooner, yet within the share
    assert look.ask(DEGENERATE) == "" and look.kind == RETRIEVAL  # the same question
    assert look.ask(DEGENERATE) == DEGENERATE
    assert look.tracker.state == DEGENERATE and "3 times in a row" in look.tracker.text
    assert look.ask(DEGENERATE) == ""
    assert look.ask(GOOD) == "" and look.tracker.state == DEGENERATE
    assert look.ask(GOOD) == RECOVERED and look.tracker.state == GOOD and look.tracker.bad == {}


def test_good_answers_between_bad_ones_start_the_count_again() -> None:
    look = Look()
    for _ in range(5):
        assert look.ask(DEGENERATE) == "" and look.ask(DEGENERATE) == ""
        assert look.ask(GOOD) == "" and look.ask(GOOD) == ""
        assert look.tracker.state == GOOD


def test_two_good_answers_in_a_row_are_needed() -> None:
    look = Look()
    for outcome in (DEGENERATE, DEGENERATE, DEGENERATE, GOOD, DEGENERATE, GOOD):
        look.ask(outcome)
    assert look.tracker.state == DEGENERATE
    assert look.ask(GOOD) == RECOVERED


def test_a_model_that_never_could_is_not_called_degenerate_and_not_asked_for_ever() -> None:
    look = Look()
    kinds = []
    for _ in range(12):
        look.tracker.counts.setdefault(f"{LONG_ANSWER} {GOOD}", 9)
        look.now = look.tracker.due
        kind = look.tracker.next_question(look.now, 0, 0, KINDS)
        kinds.append(kind)
        look.tracker.answered(kind, Verdict(WRONG if kind == RETRIEVAL else GOOD, ""), 1, look.now)
    assert look.tracker.state == GOOD and kinds.count(RETRIEVAL) == 3
    look.tracker.starts("i2", look.now)
    assert look.tracker.left_out[RETRIEVAL] == 0


def test_wrong_answers_of_a_reliable_model_count_and_of_an_unreliable_one_do_not() -> None:
    look = Look({"counts": {f"{RETRIEVAL} {GOOD}": 30, f"{RETRIEVAL} {WRONG}": 3}})
    events = [look.ask(WRONG, kinds=(RETRIEVAL,)) for _ in range(3)]
    assert events == ["", "", DEGENERATE]
    look = Look({"counts": {f"{RETRIEVAL} {GOOD}": 30, f"{RETRIEVAL} {WRONG}": 10}})
    look.ask(WRONG, kinds=(RETRIEVAL,))
    assert look.tracker.state == UNKNOWN


def test_no_answer_changes_nothing() -> None:
    look = Look()
    look.ask(DEGENERATE)
    look.ask(DEGENERATE)
    look.ask(NO_ANSWER, seconds=200)
    assert look.tracker.state == DOUBTFUL and look.tracker.bad == {RETRIEVAL: 2}


def test_a_new_start_is_asked_soon_and_one_good_answer_admits_it() -> None:
    look = Look()
    for _ in range(3):
        look.ask(DEGENERATE)
    look.tracker.starts("i2", look.now)
    assert look.tracker.due <= look.now and look.tracker.state == DEGENERATE
    assert look.ask(GOOD) == RECOVERED
    look.ask(DEGENERATE)
    look.tracker.starts("i3", look.now)
    assert look.tracker.state == UNKNOWN and look.tracker.bad == {}


def test_the_state_outlives_the_process_and_does_not_bring_questions_forward() -> None:
    look = Look()
    for _ in range(3):
        look.ask(DEGENERATE)
    again = Tracker(EVERY, 5.0, look.tracker.facts())
    assert again.state == DEGENERATE and again.bad == {RETRIEVAL: 3} and again.due == 605
    again.starts("i1", 5.0)
    assert again.due == 605 and again.answered(RETRIEVAL, Verdict(GOOD, ""), 1, 605.0) == ""


@pytest.mark.parametrize(
    "saved",
    [
        {"state": "odd", "bad": [], "counts": 3, "text": None},
        {"state": DEGENERATE},
        {"state": DEGENERATE, "bad": {"odd": 3, RETRIEVAL: -1}, "counts": {"a": "b"}},
        {"state": 7, "bad": {RETRIEVAL: True}, "invocation": 3},
    ],
)
def test_a_damaged_state_is_forgotten(saved: dict[str, Any]) -> None:
    tracker = Tracker(EVERY, 0.0, saved)
    assert tracker.state == UNKNOWN and tracker.bad == {} and tracker.counts == {}


def test_words_of_the_server_in_a_verdict_are_short_and_printable() -> None:
    calls = [{"function": {"name": "\x1b[2J" + "x" * 100_000, "arguments": "{}"}}]
    body = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "\x1b[2J" * 1000}]}
    verdict = quality.judge(quality.TOOL_CALL, quality.read_answer(body), "")
    assert verdict.outcome == quality.WRONG and len(verdict.why) < 400 and "\x1b" not in verdict.why
    body = {"choices": [{"message": {"content": ""}, "finish_reason": "\x1b[2J" * 1000}]}
    verdict = quality.judge(quality.LONG_ANSWER, quality.read_answer(body), "")
    assert verdict.outcome == quality.NO_ANSWER and len(verdict.why) < 400 and "\x1b" not in verdict.why
