# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of an engine's start, from its log: the current one, the duration of each, and the remaining time. Pure functions.

A start begins with C(gate), in which the unit waits for its turn and for memory; then come the stages that the engine prints itself
(C(STAGES)), the last of which ends with the first answer. The texts are from vLLM 0.15 to 0.33. Clocks are seconds of the
monotonic clock, which the journal has of each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._common.foreign_text import decode_text, parse_json

# The stages of a start, in their order. vLLM's runners differ in whether kernels warm up before or after the graphs are captured.
STAGES = ("arguments", "device", "load", "profile", "kv_cache", "graphs", "warm-up", "serving")
GATE = "gate"
ALL_STAGES = (GATE, *STAGES)
"""With the wait of the unit before the engine is started."""

# What the API server prints first: what stands above belongs to an earlier start, as in the journal of a unit that restarts.
_NEW_START = re.compile(r"non-default args: |vLLM API server version ")
# Texts at the beginning of a stage. A log without any of them is in the first stage.
_BEGINS = (
    (
        "device",
        re.compile(r"Initializing a V1 LLM engine|\brank \d+ in world size \d+ is assigned|world_size=\d+ rank=\d+ "),
    ),
    ("load", re.compile(r"Starting to load model|Loading model from scratch|Loading \w+ checkpoint shards")),
    ("profile", re.compile(r"Model loading took [\d.]+ GiB|\[cpu_model_runner\.py:\d+\] Warming up model")),
    (
        "kv_cache",
        re.compile(
            r"Available KV cache memory: |[CG]PU KV cache size: |GiB for KV cache on node|memory for KV Cache as specified by"
        ),
    ),
    ("graphs", re.compile(r"Capturing CUDA graphs? ?\(")),
    (
        "warm-up",
        re.compile(
            r"Graph capturing finished|init engine \(profile, create kv cache|\[kernel_warmup\.py|Autotuning process starts|"
            r"Starting vLLM server on |Starting vLLM API server"
        ),
    ),
    ("serving", re.compile(r"Application startup complete")),
)
# How far a stage is, by its last line of this kind.
_PERCENT = {
    "load": re.compile(r"Loading \w+ checkpoint shards:\s+(\d{1,3})%"),
    "graphs": re.compile(r"Capturing CUDA graphs? ?\([^)]*\):\s+(\d{1,3})%"),
}
# An engine that warms up before it captures goes from warm-up to graphs; all else only goes on.
_MAY_GO_BACK = {("warm-up", "graphs")}
# To measure graphs, the V2 runner captures them a first time before it cuts its cache (from 0.29 on): that is profiling.
_CAPTURES = re.compile(r"Capturing CUDA graphs? ?\(|Graph capturing finished")

SAID = {
    "read_seconds": re.compile(r"Loading weights took (-?[\d.]+) seconds"),
    "compile_seconds": re.compile(r"torch\.compile (?:took|takes) (-?[\d.]+) s"),
}
"""Engines report parts of a stage: reading the weights belongs to C(load), compiling to C(profile)."""
_PROCESS = re.compile(r"\(([A-Za-z][\w.:-]*) pid=\d+")

KEPT = 10
"""Starts that are kept of a service; the oldest go."""
MOST_SECONDS = 7 * 86400.0
"""Longer recorded times are no start."""


# --- how far ------------------------------------------------------------------------------------------------------------------


def newest_start(lines: list[str]) -> list[str]:
    """Return the lines from the last start of an engine on; all of them if no start begins in them."""
    begins = [index for index, line in enumerate(lines) if _NEW_START.search(line)]
    return lines[begins[-1] :] if begins else lines


def _after(reached: str, line: str) -> str:
    """Return the stage that a start has reached with a line. reached: before it."""
    if reached == "profile" and _CAPTURES.search(line):
        return reached
    for stage, pattern in _BEGINS:
        further = STAGES.index(stage) > STAGES.index(reached) or (reached, stage) in _MAY_GO_BACK
        if further and pattern.search(line):
            return stage
    return reached


def stage_of(lines: list[str]) -> str:
    """Name the stage, one of C(STAGES), that the last start in a log has reached; of several ranks the most advanced one counts."""
    reached = STAGES[0]
    for line in newest_start(lines):
        reached = _after(reached, line)
    return reached


def percent_of(lines: list[str]) -> int | None:
    """Return how far the stage is that the last start in a log has reached, in percent; None where its log does not say."""
    pattern = _PERCENT.get(stage_of(lines))
    matches = [match for line in newest_start(lines) if (match := pattern.search(line))] if pattern else []
    return min(int(matches[-1][1]), 100) if matches else None


def figures_of(lines: Iterable[str]) -> dict[str, float]:
    """Return the durations that an engine reports for parts of its start, seconds by the names of C(SAID).

    Of several processes the slowest counts; each part of a model (backbone, encoder, drafter) is compiled by itself.
    """
    figures: dict[str, dict[str, float]] = {}
    for line in lines:
        for name, pattern in SAID.items():
            match = pattern.search(line)
            if match is None:
                continue
            process, value = _PROCESS.search(line), number(match[1])
            key, row = process[1] if process else "", figures.setdefault(name, {})
            if value is not None:
                row[key] = row.get(key, 0.0) + value if name == "compile_seconds" else value
    return {name: round(max(values.values()), 2) for name, values in figures.items() if values}


def number(text: str) -> float | None:
    """Return a number that an engine printed, None for any other text."""
    try:
        return float(text)
    except ValueError:
        return None


# --- the journal --------------------------------------------------------------------------------------------------------------


def read_journal(text: str) -> tuple[list[tuple[float, str]], str]:
    """Return clock and text of each line of a start's journal (C(units.start_log_command)), and the last cursor, or an empty text."""
    messages, cursor = [], ""
    for row in text.splitlines():
        try:
            entry = parse_json(row, "journalctl")
            clock = int(entry["__MONOTONIC_TIMESTAMP"]) / 1e6
            message = entry.get("MESSAGE")
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
        cursor = str(entry.get("__CURSOR") or cursor)
        if isinstance(message, list):  # a line with colours or other signs that JSON does not show comes as its bytes
            try:
                message = decode_text(bytes(message))
            except (TypeError, ValueError):
                message = ""
        if isinstance(message, str):
            messages.append((clock, message))
    return messages, cursor


# --- what each stage took -------------------------------------------------------------------------------------------------------


def timeline(began: float, gate: float | None, lines: Sequence[tuple[float, str]]) -> list[tuple[str, float]]:
    """Return C(ALL_STAGES) of a start in order, with the clock of each begin; some come twice. gate: None while it waits for turn and memory."""
    stages = [(GATE, began)]
    if gate is None:
        return stages
    stages.append((STAGES[0], gate))
    reached = STAGES[0]
    for clock, line in lines:
        if clock < gate:
            continue
        if _NEW_START.search(line):  # a supervisor has started the engine again; earlier durations are lost
            reached, stages = STAGES[0], stages[:2]
        stage = _after(reached, line)
        if stage != reached:
            reached = stage
            stages.append((stage, clock))
    return stages


def durations(stages: Sequence[tuple[str, float]], end: float) -> dict[str, float]:
    """Return what each stage took, seconds. stages: of C(timeline). end: the clock when the start was over, or now."""
    seconds_by_stage: dict[str, float] = {}
    ends = [clock for _stage, clock in stages[1:]] + [end]
    for (stage, clock), over in zip(stages, ends):
        seconds_by_stage[stage] = seconds_by_stage.get(stage, 0.0) + max(over - clock, 0.0)
    return {stage: round(seconds, 1) for stage, seconds in seconds_by_stage.items()}


def entry(at: str, launch: str, stages: Mapping[str, float], of_engine: Mapping[str, float]) -> dict[str, Any]:
    """Return the record of a start, C({at, launch, seconds, stages, said}). at: ISO 8601. launch: its identity, empty if unknown."""
    return {
        "at": at,
        "launch": launch,
        "seconds": round(sum(stages.values()), 1),
        "stages": dict(stages),
        "said": dict(of_engine),
    }


def checked(value: Any) -> list[dict[str, Any]]:
    """Return the starts of a service from a file or an answer as C(with_start) makes it, the oldest first, without impossible ones."""
    rows = value.get("starts") if isinstance(value, Mapping) else None
    entries = [_entry(row) for row in rows[-KEPT:]] if isinstance(rows, list) else []
    return [row for row in entries if row is not None]


def _entry(row: Any) -> dict[str, Any] | None:
    """Return one recorded start, None if it is impossible."""
    if not isinstance(row, Mapping):
        return None
    stages = _figures(row.get("stages"), ALL_STAGES)
    if not stages:
        return None
    at, launch = (str(row.get(key) or "")[:128] for key in ("at", "launch"))
    return entry(at, launch, stages, _figures(row.get("said"), SAID))


def _figures(value: Any, names: Iterable[str]) -> dict[str, float]:
    """Return the seconds of a mapping that are some, in the order of C(names)."""
    figures = value if isinstance(value, Mapping) else {}
    return {
        name: float(figures[name])
        for name in names
        if isinstance(figures.get(name), (int, float))
        and not isinstance(figures[name], bool)
        and 0 <= figures[name] <= MOST_SECONDS
    }


def with_start(before: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new record of a service: C({version, starts}). before: the present record. new: of C(entry)."""
    return {"version": 1, "starts": [*checked(before), dict(new)][-KEPT:]}


def taken_gib(record: Any) -> float | None:
    """Return the GiB that an engine took at its start, by the record C({gate, ready}) of its unit; None without one."""
    try:
        return max(float(record["gate"]["available_gib"] - record["ready"]["available_gib"]), 0.0)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


# --- how long still -------------------------------------------------------------------------------------------------------------


def alike(starts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the starts of the launch that was started last: another one takes another time."""
    return [start for start in starts if start["launch"] == starts[-1]["launch"]] if starts else []


def usual(starts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the usual duration of each stage, seconds: the median of the last starts with it."""
    rows = [start["stages"] for start in alike(starts)]
    ordered = {stage: sorted(row[stage] for row in rows if stage in row) for stage in ALL_STAGES}
    return {stage: seconds[len(seconds) // 2] for stage, seconds in ordered.items() if seconds}


def seconds_left(starts: Sequence[Mapping[str, Any]], stage: str, elapsed: float) -> float | None:
    """Return the remaining seconds of a start, None if unknown or over. starts: of C(checked). elapsed: seconds in this stage."""
    usual_seconds = usual(starts)
    if not usual_seconds:
        return None
    behind = ALL_STAGES[ALL_STAGES.index(stage) + 1 :]
    remaining = max(usual_seconds.get(stage, 0.0) - elapsed, 0.0) + sum(
        usual_seconds.get(later, 0.0) for later in behind
    )
    return remaining if remaining > 0 else None


def progress(
    starts: Sequence[Mapping[str, Any]], stages: Sequence[tuple[str, float]], lines: Sequence[str], now: float
) -> dict[str, Any]:
    """Say how far a start is.

    :param starts: the last ones, of C(checked)
    :returns: C({stage, percent, seconds, left_seconds}): of the stage, seconds since the start began, and those that are left, where known
    """
    stage, since = stages[-1]
    remaining = seconds_left(starts, stage, now - since)
    return {
        "stage": stage,
        "percent": percent_of(list(lines)) if stage in _PERCENT and stage_of(list(lines)) == stage else None,
        "seconds": round(max(now - stages[0][1], 0.0)),
        "left_seconds": None if remaining is None else round(remaining),
    }


def under_way(
    record: Mapping[str, Any] | None,
    invocation: str,
    began: float,
    starts: Sequence[Mapping[str, Any]],
    lines: Sequence[tuple[float, str]],
    now: float,
) -> dict[str, Any]:
    """Say how far the start of a unit is.

    :param record: what the helper of the units notes of its start, None without one
    :param starts: the last ones, of C(checked)
    :param lines: of C(read_journal), of this start
    """
    mine = record is not None and bool(invocation) and record.get("invocation") == invocation
    gate = record.get("gate") if record is not None and mine else None
    clock = gate.get("clock") if isinstance(gate, Mapping) else None
    turn = float(clock) if isinstance(clock, (int, float)) and not isinstance(clock, bool) else None
    stages = timeline(began, turn, lines)
    return progress(starts, stages, [line for at, line in lines if turn is None or at >= turn], now)


def text(stages: Mapping[str, float]) -> str:
    """Return what the stages of a start took for people, in their order; those below a second are left out."""
    long = [f"{stage} {stages[stage]:.0f} s" for stage in ALL_STAGES if stages.get(stage, 0.0) >= 1]
    return ", ".join(long) or "each stage less than a second"
