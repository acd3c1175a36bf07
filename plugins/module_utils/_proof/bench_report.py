# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print measurements as tables, and compare two services of a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Return the text that bench.yml prints: tables, published figures, findings, and services without measurement.

    results: sections with C(where), C(published) and C(findings). refused: C({where, reason}).
    """
    offline = [result for result in results if result.get("offline")]
    results = [result for result in results if not result.get("offline")]
    parts = [
        _offline_table(offline),
        _answer_table(results, "single", "prompt"),
        _answer_table(results, "contents", "content"),
        _prefix_table(results),
        _load_table(results),
        _predicted_table(results),
        "\n".join(dict.fromkeys(note for result in results for note in _notes(result))),
        "\n".join(_finding_lines(results, refused)),
    ]
    return "\n\n".join(part for part in parts if part) or "no service to measure"


def _table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return tables.table(header, cells) if cells else ""


def _figure(value: Any, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None, unknown: str = "-") -> str:
    return unknown if share is None else f"{share:.0%}"


def _ms(row: Mapping[str, Any], name: str) -> str:
    pair = row.get(name)
    return "-" if not pair else f"{pair['median']:.1f} / {pair['p95']:.1f}"


def _answer_table(results: Sequence[Mapping[str, Any]], part: str, label: str) -> str:
    """Return the table of single requests: a row a prompt length, or a content of the answers.

    :param results: sections with C(where), the displayed name of the service
    :param part: C(single) or C(contents)
    """
    drafted = any(row.get("tokens_per_step") for result in results for row in _rows(result, part))
    header = ["service", label, "answer", "TTFT s", "prefill tok/s", "decode tok/s", "spread", "token ms p50/p95"]
    header += ["drafts accepted", "tokens/step"] if drafted else []
    key = "content" if part == "contents" else "prompt_tokens"
    cells = []
    for result in results:
        before = {row[key]: row for row in _rows(result.get("baseline") or {}, part)}
        for row in _rows(result, part):
            decode = middle(row, "decode_tokens_per_second")
            old = middle(before.get(row[key]) or {}, "decode_tokens_per_second")
            size = row.get("prompt_tokens_measured") if part == "single" else None
            draft = [_percent(row.get("draft_acceptance")), _figure(row.get("tokens_per_step"), 2)] if drafted else []
            figures = [*_answer_figures(row), *draft, _against(result, decode, old)]
            cells.append([result["where"], str(size or row[key]), *figures])
    return _table([*header, "baseline"], cells)


def _rows(section: Mapping[str, Any], part: str) -> Sequence[Mapping[str, Any]]:
    return section.get(part) or []


def _answer_figures(row: Mapping[str, Any]) -> list[str]:
    rate = row.get("decode_tokens_per_second")
    return [
        str(row.get("output_tokens") or "-"),
        _figure(middle(row, "ttft_seconds"), 2),
        _figure(middle(row, "prefill_tokens_per_second"), 0),
        _figure(middle(row, "decode_tokens_per_second")),
        "-" if not rate else f"{rate['low']:g}..{rate['high']:g}",
        _ms(row, "inter_token_ms"),
    ]


def _against(result: Mapping[str, Any], now: float | None, old: float | None) -> str:
    if now is None or old is None:
        return "-"
    if not result.get("comparable"):
        return f"{old:g} (not comparable)"
    if (result.get("baseline") or {}).get("at") == result.get("at"):
        return "this one"
    return f"{old:g} ({100 * (now / old - 1):+.1f} %)"


def _load_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of requests under load."""
    header = [
        "service",
        "requests come",
        "requests",
        "output tok/s",
        "per request",
        "TTFT ms p50/p95",
        "token ms p50/p95",
    ]
    cells = []
    for result in results:
        for row in loads(result):
            rate, at_once = row["output_tokens_per_second"], row.get("concurrency")
            failed = f" ({row['failed']} failed)" if row["failed"] else ""
            cells.append(
                [
                    result["where"],
                    f"{at_once} at once" if at_once else f"{row['request_rate']:g} a second",
                    f"{row['requests']}{failed}",
                    _figure(rate),
                    _figure(rate / at_once if rate is not None and at_once else None),
                    _ms(row, "ttft_ms"),
                    _ms(row, "time_per_token_ms"),
                ]
            )
    return _table(header, cells)


def _predicted_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of measured figures beside the predicted ones."""
    header = ["service", "tok/s", "predicted", "measured", "of the middle", "verdict"]
    cells = [
        [
            result["where"],
            row["what"],
            f"{_figure(row['low'])}..{_figure(row['high'])}",
            _figure(row["measured"]),
            _percent(row["share"]),
            row["verdict"],
        ]
        for result in results
        for row in _rows(result, "predicted")
    ]
    return _table(header, cells)


def _prefix_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of requests that share a prefix: what the prefix cache saves them."""
    header = ["service", "shared prompt", "from the prefix cache", "TTFT s of the first", "TTFT s of others"]
    rows = [(result["where"], result["prefix_cache"]) for result in results if result.get("prefix_cache")]
    cells = [
        [
            where,
            str(row["prompt_tokens"]),
            _percent(row.get("hit_rate"), "not counted"),
            _figure(row.get("first_ttft_seconds"), 2),
            _figure(middle(row, "ttft_seconds"), 2),
        ]
        for where, row in rows
    ]
    return _table(header, cells)


def _offline_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of models without their server, by C(vllm bench throughput)."""
    header = ["service", "requests", "prompt", "answer", "seconds", "requests/s", "all tok/s", "output tok/s"]
    cells = [
        [
            result["where"],
            *(str(result["offline"][name]) for name in ("requests", "prompt_tokens", "output_tokens")),
            _figure(result["offline"]["seconds"]),
            _figure(result["offline"]["requests_per_second"], 2),
            _figure(result["offline"]["tokens_per_second"]),
            _figure(result["offline"]["output_tokens_per_second"]),
        ]
        for result in results
    ]
    return _table(header, cells)


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


def pair_report(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the table of each pair of services. pairs: results with C(where), the displayed name of the service."""
    parts = []
    for a, b in pairs:
        cells = []
        for row in pair_rows(a, b):
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
        step = [headline(result).get("tokens_per_step") for result in (a, b)]
        if step[0] is not None or step[1] is not None:
            steps = [
                f"{result['service']} {'no drafter' if value is None else f'{value:.2f}'}"
                for result, value in zip((a, b), step)
            ]
            parts.append(f"tokens a step: {', '.join(steps)}")
    return "\n".join(parts)
