# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two services of a host beside each other: two variants of a model, measured one after the other under the same conditions."""

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
"""Of a row of single requests: key, as people read it, whether more is better."""


def rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was measured of both, in the order of the tables of a benchmark.

    :param a: section of a service, as C(bench_compare.compare) returns it
    :param b: of the other one
    :returns: C({what, a, b, change, apart, better}): C(change) is b / a - 1, C(apart) whether no repeat of one
        reaches those of the other (None where nothing was repeated), and C(better) C(a), C(b), or empty where the
        repeats overlap
    """
    found: list[dict[str, Any]] = []
    for what, one, other, more in _pairs(a, b):
        values = [entry["median"] if isinstance(entry, Mapping) else entry for entry in (one, other)]
        if not values[0] or values[1] is None:
            continue
        apart = None
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            apart = one["high"] < other["low"] or other["high"] < one["low"]
        change = values[1] / values[0] - 1
        better = "" if apart is False or not change else "b" if (change > 0) == more else "a"
        found.append(
            {"what": what, "a": values[0], "b": values[1], "change": round(change, 4), "apart": apart, "better": better}
        )
    return found


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield what both measured: what it is, of a, of b, whether more is better."""
    theirs = {row["prompt_tokens"]: row for row in b.get("single") or []}
    for row in a.get("single") or []:
        other = theirs.get(row["prompt_tokens"]) or {}
        for key, words, more in FIGURES:
            yield f"{words}, prompt of {row['prompt_tokens']}", row.get(key), other.get(key), more
    theirs = {row["content"]: row for row in b.get("contents") or []}
    for row in a.get("contents") or []:
        other, key = theirs.get(row["content"]) or {}, "decode_tokens_per_second"
        yield f"decode tok/s, {row['content']}", row.get(key), other.get(key), True
    one, two = a.get("prefix_cache") or {}, b.get("prefix_cache") or {}
    yield "TTFT s, shared prompt in the prefix cache", one.get("ttft_seconds"), two.get("ttft_seconds"), False
    yield "prefix cache, share of the prompt", one.get("hit_rate"), two.get("hit_rate"), True
    loads = {pace(row): row for part in ("concurrency", "request_rates") for row in b.get(part) or []}
    for part in ("concurrency", "request_rates"):
        for row in a.get(part) or []:
            other, key = loads.get(pace(row)) or {}, "output_tokens_per_second"
            yield f"output tok/s, {pace(row)[0]}", row.get(key), other.get(key), True
            firsts = [(entry.get("ttft_ms") or {}).get("median") for entry in (row, other)]
            yield f"TTFT ms, {pace(row)[0]}", firsts[0], firsts[1], False


def conditions(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return in words what of the host, or of what was asked, was not the same for both."""
    found = []
    for part, names in (("conditions", HOST), ("workload", {"output_tokens": "answer length", "api": "API"})):
        one, two = a.get(part) or {}, b.get(part) or {}
        found += [
            f"{words}: {one.get(key)} and {two.get(key)}"
            for key, words in names.items()
            if one.get(key) != two.get(key)
        ]
    found += [
        f"other requests ran while {name} was measured" for name, of in (("a", a), ("b", b)) if of.get("disturbed")
    ]
    return found


def report(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the table of each pair of services. pairs: results with C(where), the service as people name it."""
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
            said = [
                f"{result['service']} {'no drafter' if value is None else f'{value:.2f}'}"
                for result, value in zip((a, b), step)
            ]
            parts.append(f"tokens a step: {', '.join(said)}")
    return "\n".join(parts)


def middle_step(result: Mapping[str, Any]) -> float | None:
    """Return how many tokens a step of the drafter brought at the shortest prompts; None without one."""
    found = sorted(result.get("single") or [], key=lambda row: row["prompt_tokens"])
    return found[0].get("tokens_per_step") if found and middle(found[0], "decode_tokens_per_second") else None
