# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare measurements of a service with its baseline and with published figures, and print them as tables.

Two figures are comparable if both were measured with the same image, arguments, environment and workload, on a GPU under the same
conditions. For other figures, the differences are listed and no ratio is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common import tables
from .._common.findings import Finding

SCHEMA = 1
"""Of the section C(benchmark) of a receipt."""
CLOCK_SHARE = 0.05
"""The clock varies a little with temperature; a larger difference counts as another clock."""
PUBLISHED_SHARE = 0.7
"""A measurement below this share of a published figure points to a fault of the host, not to different prompts."""
NOISY_SHARE = 0.15
PARTS = ("single", "contents", "prefix_cache", "concurrency", "request_rates")
"""The parts of a measurement. Only single requests are always measured."""
BAR = "█"
WIDTH = 40

# Conditions whose differences are listed: key -> words.
DEPLOYED = {"image_id": "image", "fingerprint": "arguments and environment", "vllm_version": "vLLM"}
HOST = {"driver": "driver", "power_limit_watts": "power cap", "gpu": "GPU"}
WORKLOAD = {
    "prompt_tokens": "prompt length",
    "output_tokens": "answer length",
    "api": "API",
    "thinking": "thinking",
    "forced": "forced length",
    "counted_by": "how tokens were counted",
    "prompts": "text of the prompts",
}


def headline(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of the shortest prompts, whose decode rate is the figure of the service."""
    rows = sorted(section.get("single") or [], key=lambda row: row["prompt_tokens"])
    return rows[0] if rows else {}


def middle(row: Mapping[str, Any], figure: str) -> float | None:
    """Return the median of a figure of a row, None when it was not measured."""
    value = row.get(figure)
    return value["median"] if isinstance(value, Mapping) else None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the differences of deployment and workload, and the differences of the host."""
    measured = _differ(DEPLOYED, old.get("conditions") or {}, new.get("conditions") or {})
    measured += _differ(WORKLOAD, old.get("workload") or {}, new.get("workload") or {})
    before, now = old.get("conditions") or {}, new.get("conditions") or {}
    host = _differ(HOST, before, now)
    clock, clock_now = before.get("sm_clock_mhz"), now.get("sm_clock_mhz")
    if (clock is None) != (clock_now is None) or (clock and abs(clock_now - clock) > CLOCK_SHARE * clock):
        host.append(f"SM clock under load {_shown(clock)} MHz then, {_shown(clock_now)} MHz now")
    return measured, host


def _differ(names: Mapping[str, str], old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{words} {_shown(old.get(name))} then, {_shown(new.get(name))} now"
        for name, words in names.items()
        if old.get(name) != new.get(name)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:g}"
    text = str(value)
    return text[7:19] if text.startswith("sha256:") else text


def compare(
    previous: Mapping[str, Any] | None, new: Mapping[str, Any], service: str, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Compare a measurement of a service with its baseline.

    The baseline is the first measurement of a deployment. Another deployment or workload starts a new baseline. A host
    under other conditions does not: a finding reports them, and the figures are not compared until the conditions are
    back or C(rebaseline) is set.

    :param previous: the section C(benchmark) of the receipt on the host, None without one
    :param new: C({at, conditions, workload, single, concurrency, max_num_seqs, left_out})
    :param service: its name
    :param settings: C(spark_bench) with every default, of which C(rebaseline) and C(regression_percent) are used
    :returns: the new section, and findings as plain dicts
    """
    percent = settings["regression_percent"]
    baseline = _baseline_of(previous)
    measured, host = differences(baseline, new) if baseline else ([], [])
    decode = middle(headline(new), "decode_tokens_per_second")
    disturbed = _is_disturbed(new)
    usable = decode is not None and not disturbed
    fresh = usable and bool(not baseline or measured or settings["rebaseline"])
    same_deployment = usable and not fresh
    comparable = same_deployment and not host
    reference = _parts(new) if fresh else dict(baseline)
    old = middle(headline(reference), "decode_tokens_per_second")
    findings = _quality(new, service)
    if measured:
        findings.append(_other_measurement(service, baseline, measured, usable))
    if host and same_deployment:
        findings.append(_other_conditions(service, decode, old, host, percent))
    if comparable:
        findings += _regressions(reference, new, service, percent)
        _add_new_parts(reference, new)
    ratio = _ratio(decode, old) if comparable else None
    section = {
        "schema": SCHEMA,
        **_parts(new),
        "left_out": _left_out(new),
        "disturbed": disturbed,
        "decode_tokens_per_second": decode,
        "baseline_decode_tokens_per_second": old,
        "ratio": ratio,
        "comparable": comparable,
        "differs": [*measured, *host],
        "baseline": reference,
    }
    if fresh:
        section.update(ratio=1.0, comparable=True, differs=[])
    return section, _plain(findings)


def _baseline_of(previous: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the baseline of an earlier section, empty without a usable one."""
    baseline = (previous or {}).get("baseline")
    return baseline if isinstance(baseline, Mapping) and baseline.get("single") else {}


def _is_disturbed(new: Mapping[str, Any]) -> bool:
    return any(row.get("disturbed") for row in new["single"])


def _left_out(section: Mapping[str, Any]) -> list[str]:
    return list(section.get("left_out") or [])


def _plain(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in findings]


def _ratio(decode: float | None, old: float | None) -> float | None:
    return round(decode / old, 4) if decode and old else None


def _add_new_parts(baseline: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Add the parts that are measured for the first time to the baseline."""
    baseline.update({name: new[name] for name in PARTS if new.get(name) and not baseline.get(name)})


def _other_measurement(service: str, baseline: Mapping[str, Any], measured: Sequence[str], usable: bool) -> Finding:
    return Finding(
        rule="bench.other",
        severity="info",
        service=service,
        message=f"{service} is not compared with its last baseline of {baseline.get('at')}: {'; '.join(measured)}",
        fix="nothing, if that was meant: this measurement is the new baseline" if usable else "",
        basis="measured",
    )


def _other_conditions(
    service: str, decode: float | None, old: float | None, host: Sequence[str], percent: float
) -> Finding:
    worse = old is not None and decode is not None and decode < old * (1 - percent / 100)
    return Finding(
        rule="bench.conditions",
        severity="warning" if worse else "info",
        service=service,
        message=f"decode of {service} is {_shown(decode)} tokens/s and was {_shown(old)}; the two are not comparable: "
        f"{'; '.join(host)}",
        fix="bring the host back to how it was and measure again; if it is meant to stay as it is, take a new "
        "baseline with spark_bench: {rebaseline: true}",
        basis="measured",
    )


def _parts(new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: new.get(name) for name in ("at", "conditions", "workload", *PARTS)}


def _quality(new: Mapping[str, Any], service: str) -> list[Finding]:
    """Return the findings that make the figures themselves doubtful."""
    findings: list[Finding] = []
    rows = new["single"]
    busy = [row for row in rows if row.get("disturbed")]
    if busy:
        message = (
            f"other requests ran while {service} was measured ({', '.join(_at(row) for row in busy)}); its figures are compared "
            "with nothing"
        )
        findings.append(
            _measured("bench.disturbed", "warning", service, message, "measure again when the service is idle")
        )
    short = [row for row in rows if row.get("short")]
    if short:
        message = (
            f"{service} ended answers before their {short[0].get('output_tokens_asked')} tokens ({', '.join(map(_at, short))}): "
            "the server does not force their length"
        )
        fix = "compare only with figures of answers as short"
        findings.append(_measured("bench.short", "info", service, message, fix))
    cached = [row for row in rows if (row.get("cached_share") or 0) > 0.1]
    if cached:
        message = (
            f"the prefix cache of {service} held {max(row['cached_share'] for row in cached):.0%} of a prompt "
            f"({', '.join(map(_at, cached))}): prefill is faster on paper than it is"
        )
        fix = (
            "nothing for short prompts, most of which is the chat template; else look for a proxy that rewrites prompts"
        )
        findings.append(_measured("bench.cached", "info", service, message, fix))
    return [*findings, *_check_rates(rows, service), *_check_load(new, service)]


def _measured(rule: str, severity: str, service: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity=severity, service=service, message=message, fix=fix, basis="measured")


def _check_rates(rows: Sequence[Mapping[str, Any]], service: str) -> Iterator[Finding]:
    """Yield doubts about the decode rates: few moments of arrival, or repeats that scatter."""
    for row in rows:
        rate = row.get("decode_tokens_per_second")
        if row.get("tokens_per_arrival") and row["tokens_per_arrival"] > 8:
            message = (
                f"answers of {service} came {row['tokens_per_arrival']:g} tokens at a time ({_at(row)}): its rates rest on few "
                "moments"
            )
            fix = "a reasoning parser may hold text back; measure with thinking: false, or longer answers"
            yield _measured("bench.coarse", "info", service, message, fix)
        if rate and rate["high"] - rate["low"] > NOISY_SHARE * rate["median"]:
            message = f"decode of {service} scatters from {rate['low']:g} to {rate['high']:g} tokens/s ({_at(row)})"
            fix = "see what else runs on the host; with a drafter the text decides, and more repeats help"
            yield _measured("bench.noisy", "info", service, message, fix)


def _check_load(new: Mapping[str, Any], service: str) -> Iterator[Finding]:
    """Yield doubts about the figures under load: requests that waited in the engine or failed."""
    most = new.get("max_num_seqs")
    queued = [
        row["concurrency"]
        for row in new.get("concurrency") or []
        if isinstance(most, int) and row["concurrency"] > most
    ]
    if queued:
        message = (
            f"{service} was asked by {' and '.join(map(str, queued))} clients at once, but runs at most {most} requests "
            "(max-num-seqs): the others waited, and the time to their first token is mostly that"
        )
        fix = "compare up to that many, or raise max-num-seqs if the KV cache holds more"
        yield _measured("bench.queued", "info", service, message, fix)
    failed = next((row for row in _loads(new) if row.get("failed")), None)
    if failed:
        message = f"{service} did not answer {failed['failed']} of {failed['requests']} requests at {pace(failed)[0]}"
        yield _measured("bench.failed", "warning", service, message, "see the unit's log")


def _at(row: Mapping[str, Any]) -> str:
    return f"{row['prompt_tokens']} tokens"


def _regressions(baseline: Mapping[str, Any], new: Mapping[str, Any], service: str, percent: float) -> list[Finding]:
    """Return a finding for each figure that is worse than its baseline by more than C(percent)."""
    findings = []
    for rule, label, (old, now, apart) in _compared_figures(baseline, new):
        if not old or now is None or now >= old * (1 - percent / 100):
            continue
        message = (
            f"{label} of {service} is {now:g} tokens/s; its baseline of {baseline.get('at')} is {old:g} "
            f"({1 - now / old:.0%} lower){'' if apart else ', and the repeats of both overlap'}"
        )
        fix = "measure again with more repeats"
        if apart:
            fix = (
                "check temperature and power of the GPU, swap in use, and what else runs on the host; image, arguments, "
                "driver and clock are the same"
            )
        findings.append(_measured(rule, "warning" if apart else "info", service, message, fix))
    return findings


def _compared_figures(
    baseline: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, str, tuple[float | None, float | None, bool]]]:
    """Yield rule, label and C((baseline, now, whether the repeats lie apart)) of each figure that can regress."""
    by_length = {row["prompt_tokens"]: row for row in baseline.get("single") or []}
    for row in new["single"]:
        old = by_length.get(row["prompt_tokens"]) or {}
        for word in ("decode", "prefill"):
            yield f"bench.{word}", f"{word} at {_at(row)}", _old_and_new(old, row, f"{word}_tokens_per_second")
    by_content = {row["content"]: row for row in baseline.get("contents") or []}
    for row in new.get("contents") or []:
        old = by_content.get(row["content"]) or {}
        yield "bench.decode", f"decode of {row['content']}", _old_and_new(old, row, "decode_tokens_per_second")
    by_pace = {pace(row): row for row in _loads(baseline)}
    for row in _loads(new):
        old = by_pace.get(pace(row)) or {}
        rates = old.get("output_tokens_per_second"), row["output_tokens_per_second"], True
        yield "bench.concurrency", f"output at {pace(row)[0]}", rates


def _old_and_new(
    old: Mapping[str, Any], row: Mapping[str, Any], figure: str
) -> tuple[float | None, float | None, bool]:
    before, now = old.get(figure), row.get(figure)
    return middle(old, figure), middle(row, figure), bool(before and now and now["high"] < before["low"])


def _loads(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of requests under load: several at once, or at a rate."""
    return [row for part in ("concurrency", "request_rates") for row in section.get(part) or []]


def pace(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return how the requests of a row came, in words, and which client made them."""
    if row.get("request_rate"):
        return f"{row['request_rate']:g} requests a second", row["client"]
    return f"{row['concurrency']} requests at once", row["client"]


def published(
    expect: Sequence[Mapping[str, Any]],
    section: Mapping[str, Any],
    service: Mapping[str, Any],
    recipe: Mapping[str, Any],
    sparks: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the published figures of a service with the measured ones, and findings.

    A published figure is never called comparable, since its source does not name the prompts. Known differences are listed.

    :param expect: of the recipe: C({tokens_per_second, streams, sparks, ...}) each
    :param section: the section C(benchmark) of the receipt
    :param service: of the host's plan
    :param recipe: with C(images) and C(args) as they came from the recipe and its variants
    :param sparks: how many serve it; figures of another number are left out
    :returns: rows, and findings as plain dicts
    """
    differs = ["prompts and answer length of the source are not known", *_differences_from_recipe(service, recipe)]
    rows = [
        _published_row(entry, section, differs)
        for entry in expect
        if entry.get("tokens_per_second") and entry.get("sparks", 1) == sparks
    ]
    single = [row for row in rows if row["streams"] == 1]
    low = [row for row in single if row["share"] is not None and row["share"] < PUBLISHED_SHARE]
    if not low or len(low) != len(single):
        return rows, []
    row = min(low, key=lambda entry: entry["tokens_per_second"])
    message = (
        f"{service['name']} decodes {row['measured']:g} tokens/s; {row['tokens_per_second']:g} are published "
        f"({row['what']}, {row['source']}). The two are not strictly comparable: {'; '.join(differs)}"
    )
    fix = (
        "check the clock and power of the GPU first (nvidia-smi: a unit capped by its power supply shows a few "
        "watts at a full clock), then the image"
    )
    return rows, _plain([_measured("bench.published", "warning", service["name"], message, fix)])


def _differences_from_recipe(service: Mapping[str, Any], recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between a service and its recipe: image and arguments."""
    refs = [str(image.get("ref")) for image in recipe.get("images") or [] if isinstance(image, Mapping)]
    image = service["image"]["ref"]
    if refs and image != refs[0]:
        yield f"image {image}, the recipe's first is {refs[0]}"
    launch_args, recipe_args = service.get("args") or {}, recipe.get("args") or {}
    changed = [
        name for name, value in sorted(recipe_args.items()) if value is not None and launch_args.get(name) != value
    ]
    if changed:
        yield f"arguments {', '.join(changed)}"


def _published_row(entry: Mapping[str, Any], section: Mapping[str, Any], differs: Sequence[str]) -> dict[str, Any]:
    rate, streams = entry["tokens_per_second"], entry.get("streams", 1)
    measured = section.get("decode_tokens_per_second")
    if streams != 1:
        levels = {row["concurrency"]: row["output_tokens_per_second"] for row in section.get("concurrency") or []}
        measured = levels.get(streams)
    share = None if measured is None else round(measured / rate, 3)
    return {**entry, "streams": streams, "measured": measured, "share": share, "differs": differs}


# --- for people ----------------------------------------------------------------------------------------------------


def _figure(value: Any, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ms(row: Mapping[str, Any], name: str) -> str:
    pair = row.get(name)
    return "-" if not pair else f"{pair['median']:.1f} / {pair['p95']:.1f}"


def single_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of single streams. results: sections with C(where), the displayed name of the service."""
    header = ["service", "prompt", "answer", "TTFT s", "prefill tok/s", "decode tok/s", "spread", "token ms p50/p95"]
    drafted = any(row.get("tokens_per_step") for result in results for row in result["single"])
    if drafted:
        header.append("tokens/step")
    header.append("baseline")
    cells = []
    for result in results:
        before = {row["prompt_tokens"]: row for row in (result.get("baseline") or {}).get("single") or []}
        for row in result["single"]:
            rate = row.get("decode_tokens_per_second")
            old = middle(before.get(row["prompt_tokens"]) or {}, "decode_tokens_per_second")
            cells.append(
                [
                    result["where"],
                    str(row.get("prompt_tokens_measured") or row["prompt_tokens"]),
                    str(row.get("output_tokens") or "-"),
                    _figure(middle(row, "ttft_seconds"), 2),
                    _figure(middle(row, "prefill_tokens_per_second"), 0),
                    _figure(middle(row, "decode_tokens_per_second")),
                    "-" if not rate else f"{rate['low']:g}..{rate['high']:g}",
                    _ms(row, "inter_token_ms"),
                    *([_figure(row.get("tokens_per_step"), 2)] if drafted else []),
                    _against(result, middle(row, "decode_tokens_per_second"), old),
                ]
            )
    return tables.table(header, cells)


def _against(result: Mapping[str, Any], now: float | None, old: float | None) -> str:
    if now is None or old is None:
        return "-"
    if not result.get("comparable"):
        return f"{old:g} (not comparable)"
    if (result.get("baseline") or {}).get("at") == result.get("at"):
        return "this one"
    return f"{old:g} ({100 * (now / old - 1):+.1f} %)"


def load_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of concurrent requests."""
    header = [
        "service",
        "requests come",
        "client",
        "requests",
        "output tok/s",
        "per request",
        "TTFT ms p50/p95",
        "token ms p50/p95",
    ]
    cells = []
    for result in results:
        for row in _loads(result):
            rate, at_once = row["output_tokens_per_second"], row.get("concurrency")
            failed = f" ({row['failed']} failed)" if row["failed"] else ""
            cells.append(
                [
                    result["where"],
                    f"{at_once} at once" if at_once else f"{row['request_rate']:g} a second",
                    row["client"],
                    f"{row['requests']}{failed}",
                    _figure(rate),
                    _figure(rate / at_once if rate is not None and at_once else None),
                    _ms(row, "ttft_ms"),
                    _ms(row, "time_per_token_ms"),
                ]
            )
    return tables.table(header, cells) if cells else ""


def content_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of answers by content, one a row: the drafter shows how well it guesses each."""
    header = [
        "service",
        "content",
        "answer",
        "TTFT s",
        "decode tok/s",
        "spread",
        "drafts accepted",
        "tokens/step",
        "baseline",
    ]
    cells = []
    for result in results:
        before = {row["content"]: row for row in (result.get("baseline") or {}).get("contents") or []}
        for row in result.get("contents") or []:
            rate, accepted = row.get("decode_tokens_per_second"), row.get("draft_acceptance")
            old = middle(before.get(row["content"]) or {}, "decode_tokens_per_second")
            cells.append(
                [
                    result["where"],
                    row["content"],
                    str(row.get("output_tokens") or "-"),
                    _figure(middle(row, "ttft_seconds"), 2),
                    _figure(middle(row, "decode_tokens_per_second")),
                    "-" if not rate else f"{rate['low']:g}..{rate['high']:g}",
                    "-" if accepted is None else f"{accepted:.0%}",
                    _figure(row.get("tokens_per_step"), 2),
                    _against(result, middle(row, "decode_tokens_per_second"), old),
                ]
            )
    return tables.table(header, cells) if cells else ""


def prefix_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of requests that share a system prompt: what the prefix cache saves them."""
    header = ["service", "shared prompt", "from the prefix cache", "TTFT s of the first", "TTFT s of others"]
    cells = []
    for result in results:
        row = result.get("prefix_cache")
        if row:
            rate = row.get("hit_rate")
            cells.append(
                [
                    result["where"],
                    str(row["prompt_tokens"]),
                    "not counted" if rate is None else f"{rate:.0%}",
                    _figure(row.get("first_ttft_seconds"), 2),
                    _figure(middle(row, "ttft_seconds"), 2),
                ]
            )
    return tables.table(header, cells) if cells else ""


def offline_table(results: Sequence[Mapping[str, Any]]) -> str:
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
    return tables.table(header, cells)


def bars(title: str, rows: Sequence[tuple[str, float | None]], digits: int = 1) -> str:
    """Return a small chart: a bar of blocks a row, the longest C(WIDTH) wide.

    :param title: the first line
    :param rows: label and value; None and 0 get no bar
    :param digits: behind the point of each value
    :returns: lines of text, empty when no value is known
    """
    values = [value for _label, value in rows if value]
    if not values:
        return ""
    most, label_width = max(values), max(len(label) for label, _value in rows)
    lines = [title]
    for label, value in rows:
        size = 0 if not value else max(1, round(WIDTH * value / most))
        lines.append(f"  {label.rjust(label_width)}  {BAR * size} {_figure(value, digits)}".rstrip())
    return "\n".join(lines)


def chart(result: Mapping[str, Any]) -> str:
    """Return the charts of one service: its rates by prompt length and by load."""
    single = [(f"{row['prompt_tokens']} tokens", row) for row in result["single"]]
    parts = [
        bars(
            f"{result['where']}: decode tokens/s, one request",
            [(label, middle(row, "decode_tokens_per_second")) for label, row in single],
        ),
        bars(
            f"{result['where']}: prefill tokens/s",
            [(label, middle(row, "prefill_tokens_per_second")) for label, row in single],
            0,
        ),
    ]
    load = [
        (f"{row['concurrency']} at once", row["output_tokens_per_second"]) for row in result.get("concurrency") or []
    ]
    if load:
        single_rate = middle(headline(result), "decode_tokens_per_second")
        parts.append(
            bars(f"{result['where']}: output tokens/s of all requests together", [("1 alone", single_rate), *load])
        )
    return "\n".join(part for part in parts if part)


def report(results: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, str]]) -> str:
    """Return the text that bench.yml prints: tables, charts, published figures, findings, and services without measurement.

    results: sections with C(where), C(published) and C(findings). refused: C({where, reason}).
    """
    parts: list[str] = []
    offline = [result for result in results if result.get("offline")]
    results = [result for result in results if not result.get("offline")]
    if offline:
        parts.append(offline_table(offline))
    if results:
        parts += [single_table(results), content_table(results), prefix_table(results), load_table(results)]
        parts += [chart(result) for result in results]
    parts.append("\n".join(dict.fromkeys(note for result in results for note in _notes(result))))
    parts.append("\n".join(_finding_lines(results, refused)))
    return "\n\n".join(part for part in parts if part) or "no service to measure"


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the published figures of a service and the parts that were left out."""
    for row in result.get("published") or []:
        share = "" if row["share"] is None else f"; measured {row['measured']:g}, {row['share']:.0%} of it"
        yield f"{result['where']}: published {row['tokens_per_second']:g} tokens/s, {row['what']} ({row['source']}){share}"
        yield f"  not called comparable: {'; '.join(row['differs'])}"
    for text in _left_out(result):
        yield f"{result['where']}: left out: {text}"


def _finding_lines(results: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for result in results:
        for finding in result.get("findings") or []:
            yield f"{finding['severity'].upper():<7} {result['where']}: {finding['message']}. [{finding['rule']}]"
            if finding.get("fix"):
                yield f"        Fix: {finding['fix']}."
    for entry in refused:
        yield f"ERROR   {entry['where']} was not measured: {entry['reason']}"
