# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does a serving engine degenerate: questions with known answers, verdicts on the answers, and the state over several looks; no clock, no I/O.

Engines were reported to write garbage, loops or nothing after hours while /health and short requests stayed fine: eugr/spark-vllm-docker#356
(long prompts and long answers), vllm-project/vllm#51039 (NaN logits: one special token without text, up to the limit), #52938 (the same token with the same
log-probability at every position).

Only text that no working model writes counts at once. A wrong but readable answer counts only if this engine has answered the same kind of
question reliably before, so a small model is never called degenerate for what it never could.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.foreign_text import printable
from .answer_checks import calls_of, garbage, is_figure
from .endpoint import WEATHER_TOOL
from .engine_client import Problem, entries_of, first_choice

RETRIEVAL, LONG_ANSWER, TOOL_CALL = "retrieval", "long_answer", "tool_call"
QUESTIONS = (RETRIEVAL, LONG_ANSWER, TOOL_CALL)
GOOD, DEGENERATE, WRONG, NO_ANSWER = "good", "degenerate", "wrong", "no_answer"
OUTCOMES = (GOOD, DEGENERATE, WRONG, NO_ANSWER)
"""Of one question. C(DEGENERATE): text that no working model writes; C(NO_ANSWER): nothing to judge."""
UNKNOWN, DOUBTFUL = "unknown", "doubtful"
STATES = (UNKNOWN, GOOD, DOUBTFUL, DEGENERATE)
"""Of a server, over several looks."""
RECOVERED = "recovered"

ANSWER_TOKENS = {RETRIEVAL: 384, LONG_ANSWER: 640, TOOL_CALL: 512}
"""Most tokens of an answer; a model that thinks all the same is cut off, and that is no verdict."""
LINE_TOKENS = 20
"""Of a line of the register, about: eleven words, one or two numbers, two signs."""
FEW_TOKENS = 16
"""Fewer tokens than this say nothing about text that is missing."""
MANY_TOKENS = 64
SAME_TOKEN = 0.75
LOWEST_BITS = 2.5
"""Entropy of the tokens of an answer, of which a loop of p tokens has log2(p) bits, and 200 words of prose about 6."""
MOST_NATS = 5.0
"""Mean surprise at the own tokens, temperature 1 or less: prose has 0.3 to 2.5, tokens at random from a vocabulary 7 and more."""
NO_PROBABILITY = -9999.0
"""vLLM writes this for a log-probability of minus infinity, and some versions for NaN."""
GRAM, GRAM_TAIL, LEAST_GRAMS = 4, 400, 100
DISTINCT_GRAMS = 0.35
"""Share of distinct runs of four words (or tokens) in the end of an answer: 0.9 in prose, 0.1 where a paragraph returns."""
BUSY_INTERVALS = 3
"""A server that is never idle is asked so many intervals late, if no request waits."""
AGAIN = 0.25
"""A bad answer is followed by the next look after this share of the interval."""
RELIABLE, RELIABLE_SHARE = 3, 0.1
"""A wrong answer counts after so many good ones of its kind, with at most this many wrong ones for each: three in a row are no chance then."""
CLEARED, CLEARED_BY_START = 2, 1
"""Good answers to the failed question until it counts as cured, and after a new start of the engine."""

MOST_WHY, MOST_FINISH = 300, 40
"""Characters of texts that contain words of the server."""

_PLACES = ("harbour", "mill", "quarry", "orchard", "station", "market", "library", "workshop", "garden", "bridge")
_GOODS = ("copper", "linen", "barley", "timber", "salt", "glass", "paper", "wool", "honey", "slate")
_ANIMALS = ("heron", "badger", "falcon", "otter", "lynx", "marten", "crane", "beaver", "raven", "ibex")
_COLOURS = ("amber", "silver", "crimson", "olive", "indigo", "ivory", "scarlet", "teal", "violet", "golden")


@dataclass(frozen=True)
class Settings:
    """How often a server is asked, and what follows. See C(roles/watchdog/meta/addon.yml) for the meaning."""

    quality: bool = False
    quality_minutes: float = 30.0
    quality_share: float = 1.0
    quality_looks: int = 3
    quality_tokens: int = 8192
    quality_drain: bool = True


@dataclass(frozen=True)
class Answer:
    """What a server answered. pieces, logprobs: of its tokens, empty if it does not tell them."""

    text: str
    tokens: int | None = None
    pieces: Sequence[str] = ()
    logprobs: Sequence[Any] = ()
    finish: str = ""
    choice: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one answer. outcome: of C(OUTCOMES); why: a text about it; figures: measured values."""

    outcome: str
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)


# Questions -----------------------------------------------------------------------------------------------------------


def make_question(kind: str, seed: int, prompt_tokens: int) -> tuple[dict[str, Any], str]:
    """Return a question.

    :param seed: another seed is another text, which no prefix cache has
    :param prompt_tokens: about how long a prompt of C(RETRIEVAL) is
    :returns: part of a chat request, and the text that its answer has to contain
    """
    expected, tools = "", {}
    if kind == RETRIEVAL:
        text, expected = _register(random.Random(seed), prompt_tokens)
    elif kind == LONG_ANSWER:
        place, goods = _PLACES[seed % len(_PLACES)], _GOODS[seed // len(_PLACES) % len(_GOODS)]
        text = f"Write a story of about 400 words about a {place}, a storm, and a cargo of {goods}. Do not repeat yourself."
    else:
        text = "What is the weather in Paris now? Use the tool."
        tools = {"tools": [WEATHER_TOOL], "tool_choice": "auto"}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": ANSWER_TOKENS[kind], **tools}, expected


def _register(dice: random.Random, tokens: int) -> tuple[str, str]:
    """Return a long register with one line that has a code, and the code."""
    code = f"{dice.choice(_COLOURS)}-{dice.choice(_ANIMALS)}-{dice.randrange(1000, 10000)}"
    lines = [
        f"{number}. The {dice.choice(_COLOURS)} {dice.choice(_ANIMALS)} took {dice.randrange(2, 99)} crates of "
        f"{dice.choice(_GOODS)} to the {dice.choice(_PLACES)}."
        for number in range(1, max(tokens // LINE_TOKENS, 8) + 1)
    ]
    lines.insert(dice.randrange(len(lines) // 10, len(lines) * 9 // 10), f"The code of the vault is {code}.")
    question = "What is the code of the vault in this register? Answer with the code alone."
    return "\n".join([f"Register {dice.getrandbits(48):012x}", *lines, "", question]), code


def read_answer(body: Mapping[str, Any]) -> Answer:
    """Return the answer in the body of a chat completion, which may contain anything. Raises Problem for a body without a message."""
    choice = first_choice(dict(body))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Problem("the chat answer has no choices[0].message")
    usage, logprobs = body.get("usage"), choice.get("logprobs")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    entries = entries_of(logprobs, "content") if isinstance(logprobs, dict) else []
    texts = [message.get(name) for name in ("reasoning", "reasoning_content", "content")]
    return Answer(
        text="\n".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text)),
        tokens=tokens if isinstance(tokens, int) else None,
        pieces=[str(entry.get("token")) for entry in entries],
        logprobs=[entry.get("logprob") for entry in entries],
        finish=printable(str(choice.get("finish_reason")))[:MOST_FINISH],
        choice=choice,
    )


# Verdicts ------------------------------------------------------------------------------------------------------------


def judge(kind: str, answer: Answer, expected: str, temperature: float | None = None) -> Verdict:
    """Judge an answer. temperature: of the request, None for the server's default."""
    figures = measure(answer)
    is_call = bool(entries_of(answer.choice.get("message") or {}, "tool_calls"))
    why = "" if is_call else degeneration(answer, figures, temperature)
    if why:
        return Verdict(DEGENERATE, why, figures)
    if kind == LONG_ANSWER:
        return Verdict(GOOD, "a long answer without loops", figures) if answer.text else _nothing(answer, figures)
    if kind == RETRIEVAL:
        if expected.lower() in answer.text.lower():
            return Verdict(GOOD, "it found the sentence", figures)
        missing = "it did not find the sentence in the long prompt"
    else:
        try:
            if calls_of(answer.choice, ("get_weather",)):
                return Verdict(GOOD, "it called the tool", figures)
            missing = "it did not call the offered tool"
        except Problem as problem:
            missing = problem.message[:MOST_WHY]
    return _nothing(answer, figures) if answer.finish == "length" else Verdict(WRONG, missing, figures)


def _nothing(answer: Answer, figures: Mapping[str, float]) -> Verdict:
    return Verdict(NO_ANSWER, f"the answer ended by {answer.finish} before it was complete", figures)


def measure(answer: Answer) -> dict[str, float]:
    """Return C(tokens), C(bits) (entropy of the tokens of the answer), C(nats) (mean surprise) and C(distinct), as far as they are known."""
    figures: dict[str, float] = {}
    if answer.tokens is not None:
        figures["tokens"] = answer.tokens
    count = len(answer.pieces)
    if count >= MANY_TOKENS:
        shares = [number / count for number in Counter(answer.pieces).values()]
        figures["bits"] = round(-sum(share * math.log2(share) for share in shares), 2)
        known = [value for value in answer.logprobs if is_figure(value) and value > NO_PROBABILITY]
        if known:
            figures["nats"] = round(-sum(known) / len(known), 2)
    units = answer.text.split() if len(answer.text.split()) >= LEAST_GRAMS else list(answer.pieces)
    grams = [
        tuple(units[place : place + GRAM]) for place in range(max(len(units) - GRAM_TAIL, 0), len(units) - GRAM + 1)
    ]
    if len(grams) >= LEAST_GRAMS:
        figures["distinct"] = round(len(set(grams)) / len(grams), 3)
    return figures


def _wrong_tokens(answer: Answer) -> str:
    """Return what is wrong with the log-probabilities or the variety of the tokens, or an empty text."""
    broken = sum(not is_figure(value) or value <= NO_PROBABILITY for value in answer.logprobs)
    if broken >= FEW_TOKENS and 4 * broken >= len(answer.logprobs):
        return f"{broken} of {len(answer.logprobs)} log-probabilities are no numbers"
    most = Counter(answer.pieces).most_common(1)
    if most and len(answer.pieces) >= MANY_TOKENS and most[0][1] >= SAME_TOKEN * len(answer.pieces):
        return f"one token {most[0][1]} times of {len(answer.pieces)}"
    return ""


def degeneration(answer: Answer, figures: Mapping[str, float], temperature: float | None = None) -> str:
    """Return why no working model writes this answer, or an empty text. temperature: None for the server's default."""
    count = answer.tokens or 0
    if count >= FEW_TOKENS and not answer.text.strip() and answer.finish == "length":
        return f"{count} tokens without any text"
    wrong = garbage(answer.text) or _wrong_tokens(answer)
    if wrong:
        return wrong
    if figures.get("bits", LOWEST_BITS) < LOWEST_BITS:
        return f"its tokens have an entropy of {figures['bits']:.1f} bits: a loop"
    if figures.get("distinct", 1.0) < DISTINCT_GRAMS:
        return f"a loop: {100 * figures['distinct']:.0f} % of its runs of {GRAM} words are distinct"
    if (temperature or 0.0) <= 1 and figures.get("nats", 0.0) > MOST_NATS:
        return f"its tokens surprise the model itself ({figures['nats']:.1f} nats each): no language"
    return ""


# The state over several looks ----------------------------------------------------------------------------------------


class Tracker:
    """Follows one server from question to question."""

    def __init__(self, settings: Settings, now: float, saved: Mapping[str, Any] | None = None) -> None:
        """Start from the state of an earlier process, of C(facts), or None. now: monotonic seconds."""
        self.settings = settings
        note = saved or {}
        self.state = note["state"] if note.get("state") in STATES else UNKNOWN
        self.text = str(note.get("text") or "not asked yet")
        self.bad = {
            kind: number
            for kind, number in _mapping(note.get("bad")).items()
            if kind in QUESTIONS and _is_count(number)
        }
        self.counts = {key: number for key, number in _mapping(note.get("counts")).items() if _is_count(number)}
        self.invocation = str(note.get("invocation") or "")
        self.asked_at: dict[str, float] = {}
        self.left_out: Counter[str] = Counter()
        self.good_again: Counter[str] = Counter()
        self.cleared = CLEARED
        # A process that is started again and again asks no more than one that runs.
        self.due = now + (self.settings.quality_minutes * 60 if saved else 0.0)
        if self.state == DEGENERATE and not self.bad:
            self.state = UNKNOWN

    def starts(self, invocation: str, now: float) -> None:
        """Take in the present start of the engine: a new one is asked soon, and one good answer clears a question. now: monotonic seconds."""
        if invocation == self.invocation:
            return
        if self.invocation:
            self.due, self.cleared = min(self.due, now), CLEARED_BY_START
        self.invocation = invocation
        self.left_out.clear()
        self.good_again.clear()
        if self.state == DOUBTFUL:
            self.bad.clear()
            self.state, self.text = UNKNOWN, "started anew"

    def next_question(self, now: float, running: float | None, waiting: float | None, kinds: Sequence[str]) -> str:
        """Return the kind of the question to ask now, empty for none. now: monotonic seconds. running: requests, None if unknown."""
        if now < self.due or running is None:
            return ""
        late = now - self.due >= BUSY_INTERVALS * self.settings.quality_minutes * 60
        if waiting or (running and not late):
            return ""
        kinds = [kind for kind in kinds if kind in self.bad] or [
            kind for kind in kinds if self.left_out[kind] < self.settings.quality_looks
        ]
        return min(kinds, key=lambda kind: self.asked_at.get(kind, -math.inf), default="")

    def answered(self, kind: str, verdict: Verdict, seconds: float, now: float) -> str:
        """Take in a verdict; returns C(DEGENERATE) or C(RECOVERED) if the state becomes that, else an empty text. now: monotonic seconds."""
        self.asked_at[kind] = now
        self.counts[f"{kind} {verdict.outcome}"] = self.counts.get(f"{kind} {verdict.outcome}", 0) + 1
        before = self.state
        if verdict.outcome == GOOD:
            self._good(kind)
        elif verdict.outcome == DEGENERATE or (verdict.outcome == WRONG and self._can(kind)):
            self._bad(kind, verdict)
        elif verdict.outcome == WRONG:
            self.left_out[kind] += 1
        pause = self.settings.quality_minutes * 60 * (AGAIN if self.bad else 1.0)
        self.due = now + max(pause, seconds * (100 / self.settings.quality_share - 1))
        if before != DEGENERATE and self.state == DEGENERATE:
            return DEGENERATE
        return RECOVERED if before == DEGENERATE and self.state != DEGENERATE else ""

    def _can(self, kind: str) -> bool:
        """Return whether the server has answered questions of a kind reliably, before its present wrong answers."""
        good = int(self.counts.get(f"{kind} {GOOD}", 0))
        wrong = int(self.counts.get(f"{kind} {WRONG}", 0)) - self.bad.get(kind, 0) - 1
        return good >= RELIABLE and wrong <= RELIABLE_SHARE * good

    def _good(self, kind: str) -> None:
        self.left_out.pop(kind, None)
        if kind in self.bad:
            self.good_again[kind] += 1
            if self.good_again[kind] < self.cleared:
                return
            del self.bad[kind]
        if not self.bad:
            self.cleared = CLEARED
            self.good_again.clear()
            self.state, self.text = GOOD, "its answers are good"

    def _bad(self, kind: str, verdict: Verdict) -> None:
        self.good_again.pop(kind, None)
        self.bad[kind] = self.bad.get(kind, 0) + 1
        is_over = self.state == DEGENERATE or self.bad[kind] >= self.settings.quality_looks
        self.state = DEGENERATE if is_over else DOUBTFUL
        self.text = f"{kind.replace('_', ' ')} failed {self.bad[kind]} times in a row, the last: {verdict.why}"

    def facts(self) -> dict[str, Any]:
        """Return the state for the state file."""
        return {
            "state": self.state,
            "text": self.text,
            "bad": dict(sorted(self.bad.items())),
            "counts": dict(sorted(self.counts.items())),
            "invocation": self.invocation,
        }


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
