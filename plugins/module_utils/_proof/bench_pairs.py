# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare two services of a host, such as two variants of a model, measured one after the other under the same conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common import tables
from .bench_compare import HOST, middle, pace

FIGURES = (
    ("ttft_seconds", "TTFT s", False),
    ("prefill_tokens_per_second", "prefill tok/s", True),
    ("decode_tokens_per_second", "decode tok/s", True),
)
"""Figures of a row of single requests: key, label, whether more is better."""


def rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures that were measured for both, in the order of the tables of a benchmark.

    :param a: section of a service, as C(bench_compare.compare) returns it
    :param b: section of the other service
    :returns: C({what, a, b, change, apart, better}): C(change) is b / a - 1, C(apart) whether the ranges of the repeats
        do not overlap (None without repeats), and C(better) C(a), C(b), or empty if the repeats overlap
    """
    compared: list[dict[str, Any]] = []
    for label, of_a, of_b, more_is_better in _pairs(a, b):
        values = [entry["median"] if isinstance(entry, Mapping) else entry for entry in (of_a, of_b)]
        if not values[0] or values[1] is None:
            continue
        apart = None
        if isinstance(of_a, Mapping) and isinstance(of_b, Mapping):
            apart = of_a["high"] < of_b["low"] or of_b["high"] < of_a["low"]
        change = values[1] / values[0] - 1
        better = "" if apart is False or not change else "b" if (change > 0) == more_is_better else "a"
        compared.append(
            {
                "what": label,
                "a": values[0],
                "b": values[1],
                "change": round(change, 4),
                "apart": apart,
                "better": better,
            }
        )
    return compared


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the figures of both: label, value of a, value of b, whether more is better."""
    yield from _single_pairs(a, b)
    prefix_a, prefix_b = a.get("prefix_cache") or {}, b.get("prefix_cache") or {}
    yield "TTFT s, shared prompt in the prefix cache", prefix_a.get("ttft_seconds"), prefix_b.get("ttft_seconds"), False
    yield "prefix cache, share of the prompt", prefix_a.get("hit_rate"), prefix_b.get("hit_rate"), True
    yield from _load_pairs(a, b)


def _single_pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the figures of single requests: by prompt length, then by content."""
    rows_of_b = {row["prompt_tokens"]: row for row in b.get("single") or []}
    for row in a.get("single") or []:
        other = rows_of_b.get(row["prompt_tokens"]) or {}
        for key, words, more in FIGURES:
            yield f"{words}, prompt of {row['prompt_tokens']}", row.get(key), other.get(key), more
    rows_of_b = {row["content"]: row for row in b.get("contents") or []}
    for row in a.get("contents") or []:
        other, key = rows_of_b.get(row["content"]) or {}, "decode_tokens_per_second"
        yield f"decode tok/s, {row['content']}", row.get(key), other.get(key), True


def _load_pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the figures of requests under load."""
    loads = {pace(row): row for part in ("concurrency", "request_rates") for row in b.get(part) or []}
    for part in ("concurrency", "request_rates"):
        for row in a.get(part) or []:
            other, key = loads.get(pace(row)) or {}, "output_tokens_per_second"
            yield f"output tok/s, {pace(row)[0]}", row.get(key), other.get(key), True
            firsts = [(entry.get("ttft_ms") or {}).get("median") for entry in (row, other)]
            yield f"TTFT ms, {pace(row)[0]}", firsts[0], firsts[1], False


def conditions(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the differences in conditions of the host and in workload, in words."""
    differing = []
    for part, names in (("conditions", HOST), ("workload", {"output_tokens": "answer length", "api": "API"})):
        of_a, of_b = a.get(part) or {}, b.get(part) or {}
        differing += [
            f"{words}: {of_a.get(key)} and {of_b.get(key)}"
            for key, words in names.items()
            if of_a.get(key) != of_b.get(key)
        ]
    differing += [
        f"other requests ran while {name} was measured"
        for name, section in (("a", a), ("b", b))
        if section.get("disturbed")
    ]
    return differing


def report(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the table of each pair of services. pairs: results with C(where), the displayed name of the service."""
    parts = []
    for a, b in pairs:
        cells = []
        for row in rows(a, b):
            verdict = {
                "a": a["service"],
                "b": b["service"],
                "": "the repeats overlap" if row["apart"] is False else "equal",
            }
            values = [f"{row[name]:,.2f}" if row[name] < 10 else f"{row[name]:,.1f}" for name in ("a", "b")]
            cells.append([row["what"], *values, f"{100 * row['change']:+.1f} %", verdict[row["better"]]])
        header = ["figure", f"a: {a['where']}", f"b: {b['where']}", "b to a", "better"]
        parts.append(tables.table(header, cells) if cells else f"{a['where']} and {b['where']}: no figure in common")
        parts += [f"not the same for both: {text}" for text in conditions(a, b)]
        step = [middle_step(result) for result in (a, b)]
        if step[0] is not None or step[1] is not None:
            steps = [
                f"{result['service']} {'no drafter' if value is None else f'{value:.2f}'}"
                for result, value in zip((a, b), step)
            ]
            parts.append(f"tokens a step: {', '.join(steps)}")
    return "\n".join(parts)


def middle_step(result: Mapping[str, Any]) -> float | None:
    """Return how many tokens a step of the drafter brought at the shortest prompts; None without one."""
    by_length = sorted(result.get("single") or [], key=lambda row: row["prompt_tokens"])
    return (
        by_length[0].get("tokens_per_step") if by_length and middle(by_length[0], "decode_tokens_per_second") else None
    )
