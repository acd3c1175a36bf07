# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the measured speed of a service: by its earlier measurement first, then by the predicted range, and name probable causes.

Hosts run this file, so it imports nothing of the model; the plan carries the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .._common.findings import Finding
from .._common.reader import from_dict

SLOW = 0.8
"""A rate below this share of the low end of its range is slow."""
WRONG = 0.6
"""A rate below this share of the low end is wrong: something on the host is not as planned."""
MOST_STREAMS = 64
"""Most streams that are measured at once; published rates reach as far."""
PROMPT_TOKENS = 64
"""Length of the prompts of decode measurements, about."""
OUTPUT_TOKENS = 128
PREFILL_TOKENS = 2048
"""Length of the prompt of the prefill measurement, about; of half the context or less."""
SAME_LENGTH = 0.25
"""Prompts whose lengths differ by a larger share have incomparable prefill rates."""
FIGURES = ("single", "several", "prefill")
"""Decode in one stream, decode in several streams, and prefill."""
VERDICTS = ("fine", "unknown", "slow", "wrong")
"""The worst last."""
LATCHED_MHZ = 1000
"""A GPU under load that its power supply limits stays at 500 to 720 MHz; a healthy one is at 1400 MHz or more."""

# Cause -> share of the typical rate of C(FIGURES) that it leaves, by the reports on sm_121 of the levers in docs/speed.md.
# clock: latched at 500 to 720 MHz costs 45 % of decode; prefill follows the clock.
# kernel: FP8 prefill on Marlin 620 of 1,198 tokens/s; FP4 on Marlin decodes 22 of 27, and its first token takes 10 s instead of 6.4.
# eager: one stream 26 of 59 and 23 of 41 tokens/s, eight streams equal.
# transport: TP2 31 of 65 tokens/s, a quarter with NCCL_IB_DISABLE=1; sockets double the time to the first token.
PATTERNS: dict[str, tuple[float, float, float]] = {
    "clock": (0.55, 0.55, 0.3),
    "kernel": (0.8, 0.8, 0.5),
    "eager": (0.45, 1.0, 1.0),
    "transport": (0.45, 0.35, 0.5),
}
CAUSES: dict[str, tuple[str, str]] = {
    "clock": (
        "the GPU clock is latched low by the power supply",
        "read clock and power under load (nvidia-smi); below 1000 MHz, switch the host off and pull its power for five minutes",
    ),
    "kernel": (
        "another kernel runs than planned",
        "compare the kernels in the start-up lines of the engine with the plan (findings fast_path.*), and the image with the recipe",
    ),
    "eager": (
        "the engine runs without CUDA graphs",
        "look for enforce-eager in its arguments and for 'cudagraph' in its start-up lines",
    ),
    "transport": (
        "the ranks talk over sockets, one rail is missing, or NCCL took other channels",
        "see that NCCL's lines name NET/IB on both rails, and run site.yml --tags fabric, which measures the all-reduce",
    ),
    "acceptance": (
        "fewer drafted tokens are accepted",
        "see that drafter and model belong together, and compare with the acceptance of the recipe",
    ),
}
"""Cause -> text and fix. The order decides between causes that fit equally well."""


@dataclass(frozen=True)
class Expected:
    """The prediction for the measurements of a proof, as the plan carries it.

    streams: of the second measurement, C(max-num-seqs) up to C(MOST_STREAMS). drafted: tokens per step, 0 without a drafter.
    single, several: decode steps per second of one stream, C({low, typical, high}). prefill: prompt tokens per second. prefill_tokens: length
    of its prompt. ceilings: tokens per second of one stream, by C(FIGURES), that take the whole bandwidth of the memory. accepted: least
    and most tokens of a step in published rates.
    unknown: why C(decode) or C(prefill) is not predicted.
    """

    streams: int = 1
    sparks: int = 1
    eager: bool = False
    drafted: int = 0
    single: Mapping[str, float] | None = None
    several: Mapping[str, float] | None = None
    prefill: Mapping[str, float] | None = None
    prefill_tokens: int = PREFILL_TOKENS
    ceilings: Mapping[str, float] = field(default_factory=dict)
    accepted: tuple[float, float] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A measurement. single, several: tokens per second of one stream, alone and among C(streams). prefill: prompt tokens per second.

    prompt_tokens: of that prompt. tokens_per_step: with a drafter, counted by the engine in both runs; single_tokens_per_step,
    several_tokens_per_step: in one of them. clock_mhz: of the GPU meanwhile. missing: why figures are missing, or empty.
    """

    single: float | None = None
    several: float | None = None
    streams: int = 1
    prefill: float | None = None
    prompt_tokens: int | None = None
    tokens_per_step: float | None = None
    single_tokens_per_step: float | None = None
    several_tokens_per_step: float | None = None
    clock_mhz: float | None = None
    missing: str = ""

    @classmethod
    def from_receipt(cls, values: Mapping[str, Any]) -> Measured:
        """Return the measurement of a receipt; values of other types count as missing."""
        names = (name for name in cls.__dataclass_fields__ if isinstance(values.get(name), (int, float)))
        numbers: dict[str, Any] = {name: values[name] for name in names if name != "missing"}
        return cls(**numbers)

    def best_of(self, other: Measured) -> Measured:
        """Return the better of each figure of two measurements of the same engine; with a drafter the one with more steps per second."""
        if self.tokens_per_step and other.tokens_per_step:
            return max(self, other, key=lambda entry: (entry.single or 0) / (entry.per_step("single") or 1))
        pairs = {name: [getattr(entry, name) for entry in (self, other) if getattr(entry, name)] for name in FIGURES}
        best: dict[str, Any] = {name: max(values) if values else None for name, values in pairs.items()}
        longest = max(self, other, key=lambda entry: entry.prefill or 0)
        return replace(other, prompt_tokens=longest.prompt_tokens, **best)

    def per_step(self, name: str) -> float | None:
        """Return the tokens of a step in the run of a figure; receipts of older releases have those of both runs together."""
        return getattr(self, f"{name}_tokens_per_step") or self.tokens_per_step


@dataclass(frozen=True)
class Signs:
    """Findings about the engine itself. eager: no CUDA graphs. kernels: names of kernels that differ from the plan."""

    eager: bool = False
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compared:
    """A measured figure and its expected range. measured, low, typical: decode steps of one stream, or prompt tokens, per second.

    against: C(receipt) or C(plan). share: measured of typical.
    """

    figure: str
    against: str
    measured: float
    low: float
    typical: float
    share: float
    verdict: str


@dataclass(frozen=True)
class Verdict:
    """The result. verdict: one of C(VERDICTS). refused: the measurement itself is wrong and must not be kept. causes: the most probable first."""

    verdict: str
    reason: str = ""
    refused: bool = False
    figures: tuple[Compared, ...] = ()
    causes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as a receipt keeps it."""
        return {**asdict(self), "figures": [asdict(row) for row in self.figures], "causes": list(self.causes)}

    @property
    def worst(self) -> Compared | None:
        """The figure with the verdict, None if nothing was compared."""
        rows = [row for row in self.figures if row.verdict == self.verdict]
        return min(rows, key=lambda row: row.measured / row.low, default=None)


def read_expected(values: Mapping[str, Any]) -> Expected:
    """Return the prediction in the mapping of a plan."""
    return from_dict(Expected, values)


def judge(
    expected: Expected,
    measured: Measured,
    earlier: Measured | None = None,
    earlier_verdict: str = "fine",
    signs: Signs | None = None,
) -> Verdict:
    """Judge a measurement.

    :param earlier: the first measurement of the same deployment, which counts before the prediction
    :param earlier_verdict: on that; the prediction counts too unless it was fine
    :returns: the verdict, with the probable causes of a bad one
    """
    impossible = "; ".join(_above_ceiling(expected, measured))
    if impossible:
        return Verdict("unknown", impossible, refused=True)
    rows = [row for name in FIGURES for row in _compare(name, expected, measured, earlier, earlier_verdict)]
    few_accepted = _accepts_few(expected, measured, earlier)
    if not rows and not few_accepted:
        return Verdict("unknown", _why_unknown(expected, measured))
    verdict = max((row.verdict for row in rows), key=VERDICTS.index, default="fine")
    if verdict == "fine" and few_accepted:
        return Verdict("slow", few_accepted, figures=tuple(rows), causes=("acceptance",))
    bad = verdict in ("slow", "wrong")
    causes = _causes(expected, measured, rows, signs or Signs(), bool(few_accepted)) if bad else ()
    unjudged = filter(None, (measured.missing, _other_length(expected, measured, rows)))
    return Verdict(verdict, "" if bad else "; ".join(unjudged), figures=tuple(rows), causes=causes)


def _above_ceiling(expected: Expected, measured: Measured) -> Iterator[str]:
    """Yield why figures cannot be: they need more than the memory carries."""
    for name in ("single", "several"):
        rate, ceiling = getattr(measured, name), expected.ceilings.get(name)
        if name == "several" and measured.streams != expected.streams:
            continue
        if rate and ceiling and rate > ceiling:
            label = describe_figure(name, measured.streams)
            yield (
                f"{label}: {rate:g} tokens/s in each stream were measured, and the memory carries {ceiling:g}: the measurement is wrong "
                "(equal prompts, tokens counted by chunks), or another checkpoint is served"
            )


def _steps(expected: Expected, measured: Measured, name: str) -> float | None:
    """Return the rate of a figure as the prediction states it: steps per second with a drafter."""
    rate: float | None = getattr(measured, name)
    if not rate or name == "prefill" or not expected.drafted:
        return rate
    per_step = measured.per_step(name)
    return rate / per_step if per_step else None


def _compare(
    name: str, expected: Expected, measured: Measured, earlier: Measured | None, earlier_verdict: str
) -> Iterator[Compared]:
    """Yield the comparisons of a figure: with a fine earlier measurement alone, otherwise with the prediction too."""
    rate = _steps(expected, measured, name)
    if not rate:
        return
    same = earlier is not None and _is_comparable(name, measured, earlier.streams, earlier.prompt_tokens)
    before = _steps(expected, earlier, name) if same and earlier else None
    if before:
        yield judge_rate(name, "receipt", rate, before, before)
    predicted: Mapping[str, float] | None = getattr(expected, name)
    if not _is_comparable(name, measured, expected.streams, expected.prefill_tokens):
        predicted = None
    if predicted and (not before or earlier_verdict != "fine"):
        yield judge_rate(name, "plan", rate, predicted["low"], predicted["typical"])


def _is_comparable(name: str, measured: Measured, streams: int, prompt_tokens: int | None) -> bool:
    """Tell whether a figure has as many streams, or a prompt about as long, as its reference."""
    if name == "prefill":
        length = measured.prompt_tokens
        return bool(length and prompt_tokens) and abs((length or 0) / (prompt_tokens or 1) - 1) <= SAME_LENGTH
    return name != "several" or measured.streams == streams


def judge_rate(name: str, against: str, rate: float, low: float, typical: float) -> Compared:
    """Compare a measured rate with the range of C(against), C(receipt) or C(plan)."""
    verdict = "wrong" if rate < WRONG * low else "slow" if rate < SLOW * low else "fine"
    return Compared(name, against, round(rate, 2), low, typical, round(rate / typical, 3), verdict)


def _accepts_few(expected: Expected, measured: Measured, earlier: Measured | None) -> str:
    """Return why the acceptance of drafted tokens is too low, or an empty text."""
    length = measured.tokens_per_step if expected.drafted else None
    before = earlier.tokens_per_step if earlier else None
    least = before or (expected.accepted[0] if expected.accepted else None)
    if not length or not least or length >= SLOW * least:
        return ""
    reference = "when it was first measured" if before else "or more in published rates"
    return f"a step yields {length:.2f} tokens; {least:g} {reference}"


def _other_length(expected: Expected, measured: Measured, rows: Sequence[Compared]) -> str:
    """Return why a measured prefill rate is not compared with the predicted one, or an empty text."""
    if not measured.prefill or not expected.prefill or any(row.figure == "prefill" for row in rows):
        return ""
    length = f"{measured.prompt_tokens} tokens" if measured.prompt_tokens else "an unknown length"
    return f"prefill is not judged: its prompt had {length}, and the prediction is for {expected.prefill_tokens}"


def _why_unknown(expected: Expected, measured: Measured) -> str:
    if why := measured.missing or _other_length(expected, measured, ()):
        return why
    if expected.drafted and not measured.tokens_per_step:
        return "the engine does not count its drafts, so the steps per second are not known"
    return "; ".join(dict.fromkeys(expected.unknown.values())) or "nothing is predicted"


def _causes(
    expected: Expected, measured: Measured, rows: list[Compared], signs: Signs, few_accepted: bool
) -> tuple[str, ...]:
    """Return the causes in the order in which they explain the residual; those that were seen come first."""
    clock = measured.clock_mhz
    seen = {
        "clock": clock is not None and clock < LATCHED_MHZ,
        "kernel": bool(signs.kernels),
        "eager": signs.eager and not expected.eager,
        "acceptance": few_accepted,
    }
    possible_by_name = {"clock": clock is None, "eager": not expected.eager, "transport": expected.sparks > 1}
    possible = [name for name in PATTERNS if seen.get(name) or possible_by_name.get(name, True)]
    shares = {row.figure: min(row.share, 1.0) for row in rows}

    def distance(name: str) -> float:
        pattern = dict(zip(FIGURES, PATTERNS[name]))
        return sum(abs(math.log(share / pattern[figure])) for figure, share in shares.items()) / len(shares)

    ordered = sorted(possible, key=lambda name: (not seen.get(name), round(distance(name), 2)))
    return (*ordered, "acceptance") if few_accepted else tuple(ordered)


# Texts -------------------------------------------------------------------------------------------------------------------


def describe_figure(name: str, streams: int) -> str:
    """Return the name of a figure for people."""
    return {"single": "decode in one stream", "several": f"decode in {streams} streams", "prefill": "prefill"}[name]


def describe(verdict: Verdict, streams: int, drafted: int = 0) -> str:
    """Return the verdict in one line.

    :param drafted: tokens per step of a drafter, 0 without one
    :returns: such as C(wrong: decode in one stream 12.3 tokens/s; 25.1 or more are predicted)
    """
    row = verdict.worst
    if verdict.verdict in ("fine", "unknown") or row is None:
        return f"{verdict.verdict}: {verdict.reason}" if verdict.reason else verdict.verdict
    unit = "steps/s" if drafted and row.figure != "prefill" else "tokens/s"
    suffix = " each" if row.figure == "several" else ""
    reference = "when it was first measured" if row.against == "receipt" else "or more are predicted"
    text = f"{describe_figure(row.figure, streams)} {row.measured:.3g} {unit}{suffix}; {row.low:.3g} {reference}"
    return f"{verdict.verdict}: {text}"


def findings(service: str, verdict: Verdict, measured: Measured, expected: Expected) -> list[Finding]:
    """Return the finding about a service that is slow, or whose measurement is wrong."""
    if verdict.refused:
        text = f"the speed of {service} is not judged. {verdict.reason[0].upper()}{verdict.reason[1:]}."
        fix = "Compare the checkpoint that is served with the recipe; a proxy that answers from a cache makes such figures too."
        return [Finding("speed.refused", "info", text, fix, service, basis="measured")]
    if verdict.verdict not in ("slow", "wrong"):
        return []
    line = describe(verdict, measured.streams, expected.drafted).partition(": ")[2] or verdict.reason
    causes = [CAUSES[name] for name in verdict.causes] or [("", "see what else runs on the host")]
    likely = f" Most likely {' or '.join(text for text, _fix in causes[:2] if text)}." if causes[0][0] else ""
    clock = f" The GPU ran at {measured.clock_mhz:.0f} MHz." if measured.clock_mhz else ""
    text = f"{service} is {'far ' * (verdict.verdict == 'wrong')}slower than it should be: {line}.{likely}{clock}"
    fix = ". ".join(f"{text[0].upper()}{text[1:]}" for _cause, text in causes[:3])
    return [Finding(f"speed.{verdict.verdict}", "warning", text, f"{fix}.", service, basis="measured")]
