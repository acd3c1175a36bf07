# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print measurements as tables, and compare two services of a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from .._common import tables
from .bench_compare import HOST, headline, loads, middle, pace

FIGURES = (
    ("ttft_seconds", "TTFT s", False),
    ("prefill_tokens_per_second", "prefill tok/s", True),
    ("decode_tokens_per_second", "decode tok/s", True),
)
"""Figures of a row of single requests: key, label, whether more is better."""


def report(results: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, str]]) -> str:
    """Return the text that bench.yml prints. results: sections with C(where), C(published) and C(findings). refused: C({where, reason})."""
    offline = [result for result in results if result.get("offline")]
    results = [result for result in results if not result.get("offline")]
    parts = [
        _table(OFFLINE, [_offline_cells(result["where"], result["offline"]) for result in offline]),
        _answer_table(results, "single", "prompt"),
        _answer_table(results, "contents", "content"),
        _table(PREFIX, [_prefix_cells(result) for result in results if result.get("prefix_cache")]),
        _table(LOAD, [_load_cells(result["where"], row) for result in results for row in loads(result)]),
        _table(
            PREDICTED,
            [_predicted_cells(result["where"], row) for result in results for row in _rows(result, "predicted")],
        ),
        "\n".join(dict.fromkeys(chain.from_iterable(map(_notes, results)))),
        "\n".join(_finding_lines(results, refused)),
    ]
    return "\n\n".join(part for part in parts if part) or "no service to measure"


OFFLINE = ("service", "requests", "prompt", "answer", "seconds", "requests/s", "all tok/s", "output tok/s")
PREFIX = ("service", "shared prompt", "from the prefix cache", "TTFT s of the first", "TTFT s of others")
LOAD = ("service", "requests come", "requests", "output tok/s", "per request", "TTFT ms p50/p95", "token ms p50/p95")
PREDICTED = ("service", "tok/s", "predicted", "measured", "of the middle", "verdict")
"""Headers of tables: of models without their server by C(vllm bench throughput), of requests that share a prefix, of requests under load, and of
measured figures beside the predicted ones."""


def _table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return tables.table(header, cells) if cells else ""


def _figure(value: Any, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None, unknown: str = "-") -> str:
    return unknown if share is None else f"{share:.0%}"


def _ms(row: Mapping[str, Any], name: str) -> str:
    pair = row.get(name)
    return "-" if not pair else f"{pair['median']:.1f} / {pair['p95']:.1f}"


def _rows(section: Mapping[str, Any], part: str) -> Sequence[Mapping[str, Any]]:
    return section.get(part) or []


def _answer_table(results: Sequence[Mapping[str, Any]], part: str, label: str) -> str:
    """Return the table of single requests: a row a prompt length (C(single)), or a content of the answers (C(contents))."""
    drafted = any(row.get("tokens_per_step") for result in results for row in _rows(result, part))
    header = ["service", label, "answer", "TTFT s", "prefill tok/s", "decode tok/s", "spread", "token ms p50/p95"]
    header += ["drafts accepted", "tokens/step"] if drafted else []
    key = "content" if part == "contents" else "prompt_tokens"
    cells = []
    for result in results:
        before = {row[key]: row for row in _rows(result.get("baseline") or {}, part)}
        for row in _rows(result, part):
            rate, decode = row.get("decode_tokens_per_second"), middle(row, "decode_tokens_per_second")
            size = row.get("prompt_tokens_measured") if part == "single" else None
            draft = [_percent(row.get("draft_acceptance")), _figure(row.get("tokens_per_step"), 2)] if drafted else []
            figures = [
                str(row.get("output_tokens") or "-"),
                _figure(middle(row, "ttft_seconds"), 2),
                _figure(middle(row, "prefill_tokens_per_second"), 0),
                _figure(decode),
                "-" if not rate else f"{rate['low']:g}..{rate['high']:g}",
                _ms(row, "inter_token_ms"),
            ]
            old = middle(before.get(row[key]) or {}, "decode_tokens_per_second")
            cells.append([result["where"], str(size or row[key]), *figures, *draft, _against(result, decode, old)])
    return _table([*header, "baseline"], cells)


def _against(result: Mapping[str, Any], now: float | None, old: float | None) -> str:
    if now is None or old is None:
        return "-"
    if not result.get("comparable"):
        return f"{old:g} (not comparable)"
    if (result.get("baseline") or {}).get("at") == result.get("at"):
        return "this one"
    return f"{old:g} ({100 * (now / old - 1):+.1f} %)"


def _load_cells(where: str, row: Mapping[str, Any]) -> list[str]:
    rate, at_once = row["output_tokens_per_second"], row.get("concurrency")
    return [
        where,
        f"{at_once} at once" if at_once else f"{row['request_rate']:g} a second",
        f"{row['requests']} ({row['failed']} failed)" if row["failed"] else str(row["requests"]),
        _figure(rate),
        _figure(rate / at_once if rate is not None and at_once else None),
        _ms(row, "ttft_ms"),
        _ms(row, "time_per_token_ms"),
    ]


def _predicted_cells(where: str, row: Mapping[str, Any]) -> list[str]:
    span = f"{_figure(row['low'])}..{_figure(row['high'])}"
    return [where, row["what"], span, _figure(row["measured"]), _percent(row["share"]), row["verdict"]]


def _prefix_cells(result: Mapping[str, Any]) -> list[str]:
    row = result["prefix_cache"]
    firsts = [_figure(row.get("first_ttft_seconds"), 2), _figure(middle(row, "ttft_seconds"), 2)]
    return [result["where"], str(row["prompt_tokens"]), _percent(row.get("hit_rate"), "not counted"), *firsts]


def _offline_cells(where: str, row: Mapping[str, Any]) -> list[str]:
    counts = [str(row[name]) for name in ("requests", "prompt_tokens", "output_tokens")]
    rates = [_figure(row[name]) for name in ("tokens_per_second", "output_tokens_per_second")]
    return [where, *counts, _figure(row["seconds"]), _figure(row["requests_per_second"], 2), *rates]


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the published figures of a service and the parts that were left out."""
    for row in result.get("published") or []:
        share = "" if row["share"] is None else f"; measured {row['measured']:g}, {row['share']:.0%} of it"
        yield f"{result['where']}: published {row['tokens_per_second']:g} tokens/s, {row['what']} ({row['source']}){share}"
        yield f"  not called comparable: {'; '.join(row['differs'])}"
    for text in result.get("left_out") or []:
        yield f"{result['where']}: left out: {text}"


def _finding_lines(results: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for result in results:
        for finding in result.get("findings") or []:
            yield f"{finding['severity'].upper():<7} {result['where']}: {finding['message']}. [{finding['rule']}]"
            if finding.get("fix"):
                yield f"        Fix: {finding['fix']}."
    for entry in refused:
        yield f"ERROR   {entry['where']} was not measured: {entry['reason']}"


# --- two services --------------------------------------------------------------------------------------------------


def pair_rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures that were measured for both, in the order of the tables of a benchmark.

    :param a: section of a service, as C(bench_compare.compare) returns it
    :returns: C({what, a, b, change, apart, better}): C(change) is b / a - 1, C(apart) is true if the ranges of the repeats
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
        row = {"what": label, "a": values[0], "b": values[1], "change": round(change, 4)}
        compared.append({**row, "apart": apart, "better": better})
    return compared


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the figures of both, label, value of a, value of b, whether more is better: by prompt length, content, prefix and load."""
    rows_of_b = {row["prompt_tokens"]: row for row in _rows(b, "single")}
    for row in _rows(a, "single"):
        other = rows_of_b.get(row["prompt_tokens"]) or {}
        for key, words, more in FIGURES:
            yield f"{words}, prompt of {row['prompt_tokens']}", row.get(key), other.get(key), more
    rows_of_b = {row["content"]: row for row in _rows(b, "contents")}
    for row in _rows(a, "contents"):
        other, key = rows_of_b.get(row["content"]) or {}, "decode_tokens_per_second"
        yield f"decode tok/s, {row['content']}", row.get(key), other.get(key), True
    prefix, other = a.get("prefix_cache") or {}, b.get("prefix_cache") or {}
    key = "ttft_seconds"
    yield "TTFT s, shared prompt in the prefix cache", prefix.get(key), other.get(key), False
    yield "prefix cache, share of the prompt", prefix.get("hit_rate"), other.get("hit_rate"), True
    loads_of_b = {pace(row): row for row in loads(b)}
    for row in loads(a):
        other, key = loads_of_b.get(pace(row)) or {}, "output_tokens_per_second"
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


def pair_report(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the table of each pair of services. pairs: results with C(where), the displayed name of the service."""
    parts = []
    for a, b in pairs:
        cells = []
        for row in pair_rows(a, b):
            equal = "the repeats overlap" if row["apart"] is False else "equal"
            verdict = {"a": a["service"], "b": b["service"], "": equal}
            values = [f"{row[name]:,.2f}" if row[name] < 10 else f"{row[name]:,.1f}" for name in ("a", "b")]
            cells.append([row["what"], *values, f"{100 * row['change']:+.1f} %", verdict[row["better"]]])
        header = ["figure", f"a: {a['where']}", f"b: {b['where']}", "b to a", "better"]
        parts.append(tables.table(header, cells) if cells else f"{a['where']} and {b['where']}: no figure in common")
        parts += [f"not the same for both: {text}" for text in conditions(a, b)]
        steps = [(result["service"], headline(result).get("tokens_per_step")) for result in (a, b)]
        if any(value is not None for _name, value in steps):
            texts = [f"{name} {'no drafter' if value is None else f'{value:.2f}'}" for name, value in steps]
            parts.append(f"tokens a step: {', '.join(texts)}")
    return "\n".join(parts)
