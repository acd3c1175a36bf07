# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare measurements of a service with its baseline and with published figures.

Two figures are comparable if both were measured with the same image, arguments, environment and workload, on a GPU under the same
conditions. For other figures, the differences are listed and no ratio is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .._common.findings import Finding
from .._speed.judge import PREFILL_TOKENS, judge_rate
from .._speed.service_speed import explain_impossible

SCHEMA = 1
"""Of the section C(benchmark) of a receipt."""
CLOCK_SHARE = 0.05
"""The clock varies a little with temperature; a larger difference counts as another clock."""
PUBLISHED_SHARE = 0.7
"""A measurement below this share of a published figure points to a fault of the host, not to different prompts."""
NOISY_SHARE = 0.15
ENDS = ("low", "typical", "high")
PREFILL_FACTOR = 2.1
"""A predicted prefill rate counts for prompts up to so many times as long or as short."""
PARTS = ("single", "contents", "prefix_cache", "concurrency", "request_rates")
"""The parts of a measurement. Only single requests are always measured."""

# Conditions whose differences are listed: key -> words.
DEPLOYED = {"image_id": "image", "fingerprint": "arguments and environment", "vllm_version": "vLLM"}
HOST = {"driver": "driver", "power_limit_watts": "power cap", "gpu": "GPU"}
WORKLOAD = {
    "prompt_tokens": "prompt length",
    "output_tokens": "answer length",
    "api": "API",
    "thinking": "thinking",
    "prompts": "client and text of the prompts",
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
    """Return the differences of deployment and workload, and the differences of the host; none to an empty baseline."""
    if not old:
        return [], []
    before, now = old.get("conditions") or {}, new.get("conditions") or {}
    measured = _differ(DEPLOYED, before, now) + _differ(WORKLOAD, old.get("workload") or {}, new.get("workload") or {})
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
    previous: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    service: str,
    settings: Mapping[str, Any],
    speed: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Compare a measurement of a service with its baseline.

    The baseline is the first measurement of a deployment. Another deployment or workload starts a new baseline. A host
    under other conditions does not: a finding reports them, and the figures are not compared until the conditions are
    back or C(rebaseline) is set.

    :param previous: the section C(benchmark) of the receipt on the host, None without one
    :param new: C({at, conditions, workload, single, concurrency, max_num_seqs, left_out})
    :param settings: C(spark_bench) with every default, of which C(ceiling), C(rebaseline) and C(regression_percent) are used
    :param speed: C(speed) of the planned service; measured rates above its ceiling are errors of the measurement
    """
    percent = settings["regression_percent"]
    baseline = _baseline_of(previous)
    measured, host = differences(baseline, new)
    decode = middle(headline(new), "decode_tokens_per_second")
    disturbed = any(row.get("disturbed") for row in new["single"])
    impossible = _impossible(new, service, speed if settings["ceiling"] else None)
    usable = not any((decode is None, disturbed, impossible))
    fresh = usable and any((not baseline, measured, settings["rebaseline"]))
    same_deployment = usable and not fresh
    comparable = same_deployment and not host
    reference = _parts(new) if fresh else dict(baseline)
    old = middle(headline(reference), "decode_tokens_per_second")
    findings = [*impossible, *_doubts(new, service)]
    if measured:
        findings.append(_other_measurement(service, baseline, measured, usable))
    if host and same_deployment:
        findings.append(_other_conditions(service, decode, old, host, percent))
    if comparable:
        findings += _regressions(reference, new, service, percent)
        _add_new_parts(reference, new)
    section = {
        "schema": SCHEMA,
        **_parts(new),
        "left_out": list(new.get("left_out") or []),
        "disturbed": disturbed,
        "decode_tokens_per_second": decode,
        "baseline_decode_tokens_per_second": old,
        "ratio": _ratio(decode, old) if comparable else None,
        "comparable": comparable,
        "differs": [*measured, *host],
        "baseline": reference,
    }
    if fresh:
        section.update(ratio=1.0, comparable=True, differs=[])
    return section, [finding.to_dict() for finding in findings]


def _baseline_of(previous: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the baseline of an earlier section, empty without a usable one."""
    baseline = (previous or {}).get("baseline")
    return baseline if isinstance(baseline, Mapping) and baseline.get("single") else {}


def _ratio(decode: float | None, old: float | None) -> float | None:
    return round(decode / old, 4) if decode and old else None


def _add_new_parts(baseline: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Add the parts that are measured for the first time to the baseline."""
    baseline.update({name: new[name] for name in PARTS if new.get(name) and not baseline.get(name)})


def _other_measurement(service: str, baseline: Mapping[str, Any], measured: Sequence[str], usable: bool) -> Finding:
    """Return the finding about another deployment or workload than the baseline's."""
    message = f"{service} is not compared with its last baseline of {baseline.get('at')}: {'; '.join(measured)}"
    fix = "nothing, if that was meant: this measurement is the new baseline" if usable else ""
    return _measured("bench.other", "info", message, fix, service)


def _other_conditions(
    service: str, decode: float | None, old: float | None, host: Sequence[str], percent: float
) -> Finding:
    worse = old is not None and decode is not None and decode < old * (1 - percent / 100)
    message = (
        f"decode of {service} is {_shown(decode)} tokens/s and was {_shown(old)}; the two are not comparable: "
        f"{'; '.join(host)}"
    )
    fix = "restore the host and measure again; if the change is intended, take a new baseline with spark_bench: {rebaseline: true}"
    return _measured("bench.conditions", "warning" if worse else "info", message, fix, service)


def _parts(new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: new.get(name) for name in ("at", "conditions", "workload", *PARTS)}


_measured = partial(Finding, basis="measured")


def _impossible(new: Mapping[str, Any], service: str, speed: Mapping[str, Any] | None) -> list[Finding]:
    """Return a finding for the first measured rate that needs more than the memory bus carries."""
    if not (new.get("conditions") or {}).get("gpu"):
        return []
    rates = [(1, middle(row, "decode_tokens_per_second")) for row in [*new["single"], *(new.get("contents") or [])]]
    rates += [(row["concurrency"], row["output_tokens_per_second"]) for row in new.get("concurrency") or []]
    for requests, rate in rates:
        reason = explain_impossible(speed or {}, rate or 0, requests)
        if reason:
            message = f"a measured rate of {service} at {requests} requests at once is impossible: {reason}; no figure is kept"
            fix = "compare the config of the plan with the one of the running model, and whether an answer came from a cache"
            return [_measured("bench.impossible", "warning", message, fix, service)]
    return []


def _doubts(new: Mapping[str, Any], service: str) -> Iterator[Finding]:
    """Yield the findings that make the figures themselves doubtful."""
    rows = new["single"]
    busy, short = ([row for row in rows if row.get(key)] for key in ("disturbed", "short"))
    cached = [row for row in rows if (row.get("cached_share") or 0) > 0.1]
    if busy:
        message = (
            f"other requests ran while {service} was measured ({_at(*busy)}); its figures are compared with nothing"
        )
        yield _measured("bench.disturbed", "warning", message, "measure again when the service is idle", service)
    if short:
        message = (
            f"{service} ended answers before their {short[0].get('output_tokens_asked')} tokens ({_at(*short)}): the server does not "
            "force their length"
        )
        yield _measured("bench.short", "info", message, "compare only with figures of answers as short", service)
    if cached:
        share = max(row["cached_share"] for row in cached)
        message = f"the prefix cache of {service} had {share:.0%} of a prompt ({_at(*cached)}): the measured prefill rate is too high"
        fix = (
            "nothing for short prompts, most of which is the chat template; else look for a proxy that rewrites prompts"
        )
        yield _measured("bench.cached", "info", message, fix, service)
    yield from _check_rates(rows, service)
    yield from _check_load(new, service)


def _check_rates(rows: Sequence[Mapping[str, Any]], service: str) -> Iterator[Finding]:
    """Yield doubts about the decode rates: few moments of arrival, or repeats that scatter."""
    for row in rows:
        rate = row.get("decode_tokens_per_second")
        if row.get("tokens_per_arrival") and row["tokens_per_arrival"] > 8:
            message = f"answers of {service} came {row['tokens_per_arrival']:g} tokens at a time ({_at(row)}): its rates rest on few moments"
            fix = "a reasoning parser may buffer text; measure with thinking: false, or longer answers"
            yield _measured("bench.coarse", "info", message, fix, service)
        if rate and rate["high"] - rate["low"] > NOISY_SHARE * rate["median"]:
            message = f"decode of {service} scatters from {rate['low']:g} to {rate['high']:g} tokens/s ({_at(row)})"
            fix = "see what else runs on the host; with a drafter the text decides, and more repeats help"
            yield _measured("bench.noisy", "info", message, fix, service)


def _check_load(new: Mapping[str, Any], service: str) -> Iterator[Finding]:
    """Yield doubts about the figures under load: requests that waited in the engine or failed."""
    most = new.get("max_num_seqs")
    levels = [row["concurrency"] for row in new.get("concurrency") or []]
    queued = [level for level in levels if isinstance(most, int) and level > most]
    if queued:
        message = (
            f"{service} was asked by {' and '.join(map(str, queued))} clients at once, but runs at most {most} requests "
            "(max-num-seqs): the others waited, and the time to their first token is mostly that"
        )
        fix = "compare up to that many, or raise max-num-seqs if the KV cache is large enough"
        yield _measured("bench.queued", "info", message, fix, service)
    failed = next((row for row in loads(new) if row.get("failed")), None)
    if failed:
        message = f"{service} did not answer {failed['failed']} of {failed['requests']} requests at {pace(failed)[0]}"
        yield _measured("bench.failed", "warning", message, "see the unit's log", service)


def _at(*rows: Mapping[str, Any]) -> str:
    return ", ".join(f"{row['prompt_tokens']} tokens" for row in rows)


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
        cause = "check temperature and power of the GPU, swap in use, and what else runs on the host; image, arguments, driver and clock are the same"
        severity, fix = ("warning", cause) if apart else ("info", "measure again with more repeats")
        findings.append(_measured(rule, severity, message, fix, service))
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
    by_pace = {pace(row): row for row in loads(baseline)}
    for row in loads(new):
        old = by_pace.get(pace(row)) or {}
        rates = old.get("output_tokens_per_second"), row["output_tokens_per_second"], True
        yield "bench.concurrency", f"output at {pace(row)[0]}", rates


def _old_and_new(
    old: Mapping[str, Any], row: Mapping[str, Any], figure: str
) -> tuple[float | None, float | None, bool]:
    before, now = old.get(figure), row.get(figure)
    return middle(old, figure), middle(row, figure), bool(before and now and now["high"] < before["low"])


def loads(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of requests under load: several at once, or at a rate."""
    return [row for part in ("concurrency", "request_rates") for row in section.get(part) or []]


def row_summary(row: Mapping[str, Any]) -> str:
    """Return the main figures of a row, for a line of progress."""
    if "client" in row:
        return f"{row['output_tokens_per_second'] or 0:,.1f} tokens/s together"
    if "hit_rate" in row:
        return f"first token after {row['first_ttft_seconds']:.2f} s, later {middle(row, 'ttft_seconds') or 0:.2f} s"
    prefill, decode = middle(row, "prefill_tokens_per_second"), middle(row, "decode_tokens_per_second")
    parts = [f"prefill {prefill:,.0f}" if prefill else "", f"decode {decode:,.1f} tokens/s" if decode else ""]
    return ", ".join(part for part in parts if part)


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
    :param recipe: with C(images) and C(args) as they came from the recipe and its variants
    :param sparks: how many serve it; figures of another number are left out
    """
    differs = ["prompts and answer length of the source are not known", *_differences_from_recipe(service, recipe)]
    measured_rates = {row["concurrency"]: row["output_tokens_per_second"] for row in section.get("concurrency") or []}
    measured_rates[1] = section.get("decode_tokens_per_second")
    rows = []
    for entry in expect:
        if not _is_published_for(entry, service.get("speed") or {}, sparks):
            continue
        streams = entry.get("streams", 1)
        measured = measured_rates.get(streams)
        share = None if measured is None else round(measured / entry["tokens_per_second"], 3)
        rows.append({**entry, "streams": streams, "measured": measured, "share": share, "differs": differs})
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
    return rows, [_measured("bench.published", "warning", message, fix, service["name"]).to_dict()]


def _is_published_for(entry: Mapping[str, Any], speed: Mapping[str, Any], sparks: int) -> bool:
    """Tell whether a published figure is a possible one of this launch. sparks: how many serve it."""
    rate = entry.get("tokens_per_second")
    if not rate or entry.get("sparks", 1) != sparks or entry.get("other_launch"):
        return False
    return entry.get("streams", 1) != 1 or not explain_impossible(speed, rate)


def predicted(speed: Mapping[str, Any], section: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the predicted figures of a service with the measured ones, C({what, low, typical, high, measured, share, verdict}) each."""
    figures = [("decode, one stream", speed.get("one_stream"), middle(headline(section), "decode_tokens_per_second"))]
    by_streams = {**(speed.get("by_streams") or {}), str(speed.get("streams")): speed.get("all_streams")}
    for row in section.get("concurrency") or []:
        what = f"output, {row['concurrency']} streams"
        figures.append((what, by_streams.get(str(row["concurrency"])), row["output_tokens_per_second"]))
    first_token, proof = speed.get("first_token_8k") or {}, speed.get("proof") or {}
    prefills = {
        proof.get("prefill_tokens", PREFILL_TOKENS): proof.get("prefill"),
        8192: first_token and {end: 8192 / first_token[other] for end, other in zip(ENDS, reversed(ENDS))},
    }
    for row in section["single"]:
        length = row["prompt_tokens"]
        nearest = min(prefills, key=lambda known: abs(math.log(length / known)))
        near = abs(math.log(length / nearest)) < math.log(PREFILL_FACTOR)
        what, measured = f"prefill, {length} tokens", middle(row, "prefill_tokens_per_second")
        figures.append((what, prefills[nearest] if near else None, measured))
    rows = []
    for what, span, measured in figures:
        if span and measured:
            compared = judge_rate(what, "plan", measured, span["low"], span["typical"])
            more = {"measured": measured, "share": compared.share, "verdict": compared.verdict}
            rows.append({"what": what, **{end: round(span[end], 1) for end in ENDS}, **more})
    return rows


def _differences_from_recipe(service: Mapping[str, Any], recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between a service and its recipe: image and arguments."""
    refs = [str(image.get("ref")) for image in recipe.get("images") or [] if isinstance(image, Mapping)]
    image = service["image"]["ref"]
    if refs and image != refs[0]:
        yield f"image {image}, the recipe's first is {refs[0]}"
    args = service.get("args") or {}
    recipe_args = sorted((recipe.get("args") or {}).items())
    changed = [name for name, value in recipe_args if value is not None and args.get(name) != value]
    if changed:
        yield f"arguments {', '.join(changed)}"
