# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a service: the requests, and the figures that follow from the arrival times of the answers.

Three rules of the practical guide for the DGX Spark keep the figures honest:

1. The length of an answer is forced, so that a rate rests on the requested number of tokens, not on a short reply.
2. All prompts begin differently, so that the prefix cache never answers for the engine.
3. Every token counts, reasoning included: the engine's usage counts, not the displayed text.

Pure functions; C(plugins/modules/service_bench.py) makes the requests.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._common import schema, validation
from .._common.foreign_text import parse_json
from .._common.schema import NUMBER, Key
from .._runtime import metrics

KEYS: dict[str, Key] = {
    "services": Key(list, [], "names of the services to measure; all of them when empty"),
    "prompt_tokens": Key(list, [512, 4096, 16384], "lengths of the prompts; the shortest gives the headline figure"),
    "output_tokens": Key(int, 256, "length that every answer is forced to", least=16),
    "repeats": Key(int, 3, "requests that are counted at each length", least=1),
    "warmup": Key(int, 1, "requests before them that are not", least=1),
    "concurrency": Key(list, [2, 4, 16], "how many requests at once; an empty list measures single streams only"),
    "contents": Key(
        list, [], "what answers consist of, measured one by one: medium, long (prose), code, reasoning; none by default"
    ),
    "prefix_tokens": Key(
        int, 8192, "length of a system prompt that requests share, to measure the prefix cache; 0 for none", least=0
    ),
    "request_rates": Key(
        list, [], "requests a second, begun at random moments whether or not earlier ones have ended; none by default"
    ),
    "rate_requests": Key(int, 100, "how many requests are made at each of these rates", least=2, most=10000),
    "client": Key(
        str,
        "auto",
        "what makes the concurrent requests: vllm (vllm bench serve of the image), own, or auto",
        choices=("auto", "vllm", "own"),
    ),
    "thinking": Key(bool, None, "turn a model's thinking on or off; left to the model when left out"),
    "seconds": Key(
        int, 1800, "how long the measurement of one service may take; what does not fit in is left out", least=10
    ),
    "idle_seconds": Key(int, 60, "how long to wait for other requests to end before giving up", least=0),
    "disturb": Key(bool, False, "measure although other requests run; such figures are compared with nothing"),
    "regression_percent": Key(NUMBER, 10, "how much worse than the baseline a figure has to be to be a finding"),
    "rebaseline": Key(bool, False, "make this measurement the baseline"),
}
"""What may stand below C(spark_bench)."""

CONTENTS = ("medium", "long", "code", "reasoning")
"""Names of the contents of an answer; C(workloads.py) has the prompts."""
PROMPTS = 1
"""Version of the texts below: figures of different ones are not compared."""
ROUNDS = 2
"""Requests that each of the concurrent clients makes, one after another."""
MARGIN = 64
"""Tokens of the context reserved for the chat template and for prompts that are longer than estimated."""
SHORTEST = 32
CHARACTERS_PER_TOKEN = 5.0
"""First estimate; the warm-up measures the value of the model."""
FOREIGN_SHARE = 0.1
"""Tolerated tokens of other requests, as a share of the measured ones: probes of a watchdog ask for one token."""
LOADER_GIB = 3.0
"""Memory that has to be free for vLLM's own client, which loads its libraries a second time: 0.6 GiB on CPU builds."""

# Extra options of the first request; after a refusal, the next try has fewer of them.
EXTRAS: tuple[tuple[str, ...], ...] = (
    ("ignore_eos", "min_tokens", "continuous_usage_stats"),
    ("ignore_eos", "continuous_usage_stats"),
    ("ignore_eos",),
    (),
)

# A plain text for the prompts. Its content does not matter, but it must be prose: drafters guess noise badly.
NOTES = (
    "The harbour freezes in January, and the ferries wait for the ice breaker before they leave.",
    "A baker on the corner starts at three and sells out of rye bread before the schools open.",
    "Two engineers argued for a week about the bridge and then measured the wind for a month.",
    "The library keeps its maps in flat drawers, sorted by river and not by year.",
    "When the power failed, the clinic ran for nine hours on batteries that nobody had tested.",
    "Every spring the valley floods, and every summer the farmers rebuild the same three fences.",
    "The museum lent its oldest clock to a town that had lost its own in a fire.",
    "A train driver wrote down each delay for thirty years and found that most began with doors.",
    "The orchard has forty kinds of apples, and only four of them keep until March.",
    "Fishermen say that the lighthouse is brighter in fog, although the lamp is the same.",
    "The school moved its lessons outdoors and found that the noise of the street was the harder problem.",
    "A cartographer drew the coast from memory and was wrong by less than a mile.",
    "The city counts its trees every ten years and loses the list about as often.",
    "Rain came late, so the mill stood still and the grain was carried over the hill by hand.",
    "The choir practises in a room with a low ceiling, which makes the basses sound sure of themselves.",
    "Nobody knew who owned the well until it ran dry, and then there were eleven heirs.",
    "A telescope on the roof of the brewery finds a new comet every few years.",
    "The postman knows which houses are empty by the way the dogs greet him.",
    "Glass from this valley is green because of the sand, and the sand is green because of copper.",
    "The old quarry became a lake, and the lake became a reason to build a road.",
    "Her notebooks describe the same storm from six villages, and no two of them agree on the hour.",
    "The warehouse burned twice; after the second time the owners bought a pump instead of insurance.",
    "Bees were brought to the island by a teacher who wanted to prove a point about clover.",
    "The theatre has a trapdoor that has not opened since a king fell through it.",
    "A tunnel under the pass was planned, drawn, paid for and forgotten.",
    "The market sells clocks on Tuesdays, cheese on Thursdays, and opinions on all days.",
    "Surveyors found that the border runs through a kitchen, and the family now cooks in both countries.",
    "The canal is straight for twelve miles because the man who dug it owned no compass, only a rope.",
    "On clear nights the observatory turns its dome by hand, since the motor disturbs the neighbours' sheep.",
    "The last stonecutter taught his trade to a programmer, who taught him to keep accounts.",
    "An apprentice mended the organ with parts of a loom, and it has kept its tune ever since.",
    "The reservoir was built for a town of nine thousand and serves a city of two hundred thousand.",
)
TASK = "Read the notes below. Then write a long and detailed essay about the places in them, one after another."


def read(where: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the settings with all defaults, and the problems of the given value. where: its name in messages."""
    problems = validation.Problems(f"{where}, spark_bench")
    spark_bench = problems.mapping(value, "spark_bench")
    spark_bench = {
        name: schema.from_command_line(KEYS[name], value) if name in KEYS else value
        for name, value in spark_bench.items()
    }
    settings = schema.filled(problems, spark_bench, KEYS)
    for key, least in (("prompt_tokens", SHORTEST), ("concurrency", 2)):
        wrong = [entry for entry in settings[key] if not _is_whole(entry) or entry < least]
        settings[key] = _without_wrong(problems, key, settings[key], wrong, f"whole numbers from {least}")
    _check_contents(problems, settings["contents"])
    wrong = [entry for entry in settings["request_rates"] if not _finite(entry) or not 0 < entry <= 1000]
    settings["request_rates"] = _without_wrong(
        problems, "request_rates", settings["request_rates"], wrong, "numbers above 0, at most 1000"
    )
    if not settings["prompt_tokens"]:
        problems.add("'prompt_tokens' is empty; the headline figure needs one length.")
    if not 0 < settings["regression_percent"] < 100:
        problems.add(f"'regression_percent' is {settings['regression_percent']}; it must lie between 0 and 100.")
    return settings, problems.messages


def _without_wrong(
    problems: validation.Problems, key: str, entries: Sequence[Any], wrong: Sequence[Any], allowed: str
) -> list[Any]:
    """Return the right entries in ascending order, each once; a wrong one is a problem."""
    if wrong:
        problems.add(f"'{key}' holds {wrong[0]!r}; its entries are {allowed}.")
    return sorted({entry for entry in entries if entry not in wrong})


def _check_contents(problems: validation.Problems, contents: Sequence[Any]) -> None:
    unknown = [entry for entry in contents if entry not in CONTENTS]
    if unknown:
        problems.add(f"'contents' holds {unknown[0]!r}; its entries are {', '.join(CONTENTS)}.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def names(value: Any) -> list[str]:
    """Return the service names that -e spark_bench_services=a,b, or a list, picks."""
    parts = value.split(",") if isinstance(value, str) else [str(entry) for entry in value or []]
    return [part.strip() for part in parts if part.strip()]


def lengths(settings: Mapping[str, Any], max_model_len: int | None) -> tuple[list[int], list[int]]:
    """Return the prompt lengths that fit into the context together with the answer, and those that do not.

    When none does, the longest that would is measured instead, if there is any.
    """
    prompt_lengths = list(settings["prompt_tokens"])
    if max_model_len is None:
        return prompt_lengths, []
    room = max_model_len - settings["output_tokens"] - MARGIN
    fitting = [length for length in prompt_lengths if length * 1.05 <= room]
    if not fitting and int(room / 1.05) >= SHORTEST:
        fitting = [int(room / 1.05)]
    return fitting, [length for length in prompt_lengths if length not in fitting]


def prompt(characters: int, nonce: str, seed: str) -> str:
    """Return a prompt that no prefix cache has.

    Prefix caches keep whole blocks, each under the hash of all that stands before it: what differs in the first
    words shares no block. The rest stays the same from one measurement to the next, so that drafters meet the
    same text.

    :param characters: its length, about
    :param nonce: what it begins with, another one for each request
    :param seed: the same seed makes the same text behind the nonce
    :returns: the prompt
    """
    order = random.Random(seed)
    parts = [f"Run {nonce}. {TASK}"]
    size = len(parts[0])
    notes: list[str] = []
    while size < characters:
        if not notes:
            notes = list(NOTES)
            order.shuffle(notes)
        note = notes.pop()
        parts.append(note)
        size += len(note) + 1
    text = " ".join(parts)
    return text[: max(characters, len(parts[0]))]


def characters(tokens: int, seen_characters: int | None = None, seen_tokens: int | None = None) -> int:
    """Return how many characters make so many tokens, by what an earlier prompt of this model came to.

    :param tokens: wanted
    :param seen_characters: length of an earlier prompt in characters
    :param seen_tokens: and in tokens, as the engine counted; None, or no engine yet, takes
        C(CHARACTERS_PER_TOKEN)
    :returns: characters
    """
    if not seen_characters or not seen_tokens:
        return round(tokens * CHARACTERS_PER_TOKEN)
    return max(1, round(tokens * seen_characters / seen_tokens))


def body(
    model: str, api: str, messages: Sequence[Mapping[str, str]], max_tokens: int, extras: int, thinking: bool | None
) -> dict[str, Any]:
    """Return the request for one answer of a forced length.

    :param model: served name
    :param api: C(chat) or C(completions)
    :param messages: the prompt, as messages of a chat
    :param max_tokens: tokens of the answer
    :param extras: which of C(EXTRAS) to ask for, by index
    :param thinking: whether the model is to think, None to leave it to the template
    :returns: the body in OpenAI's form
    """
    options_asked = EXTRAS[extras]
    options: dict[str, Any] = {"include_usage": True}
    if "continuous_usage_stats" in options_asked:
        options["continuous_usage_stats"] = True
    request: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": options,
    }
    if api == "chat":
        request["messages"] = [dict(message) for message in messages]
        if thinking is not None:
            # Both spellings: templates know one of them and ignore the other.
            request["chat_template_kwargs"] = {"enable_thinking": thinking, "thinking": thinking}
    else:
        request["prompt"] = "\n\n".join(message["content"] for message in messages)
    if "ignore_eos" in options_asked:
        request["ignore_eos"] = True
    if "min_tokens" in options_asked:
        request["min_tokens"] = max_tokens
    return request


class Arrival(NamedTuple):
    """A piece of an answer. tokens: generated up to then, None if the engine does not report it."""

    at: float
    tokens: int | None
    text: bool


def arrival(at: float, event: Mapping[str, Any]) -> Arrival:
    """Return time, tokens and presence of text of an event; text of any field counts, as versions name the reasoning differently."""
    usage = event.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = False
    if isinstance(choice, Mapping):
        delta = choice.get("delta")
        texts = [choice.get("text")]
        if isinstance(delta, Mapping):
            texts += [value for name, value in delta.items() if name != "role"]
        text = any(bool(value) for value in texts if isinstance(value, (str, list)))
    elif choice is None and not choices:
        tokens = None  # the last event has the total; no token arrived with it
    return Arrival(at, tokens if _is_whole(tokens) else None, text)


def _count_tokens(arrivals: Sequence[Arrival], usage: Mapping[str, Any]) -> tuple[str, list[Arrival], int, Any]:
    """Return the way of counting, the arrivals that count, the tokens after the first of them, and all tokens."""
    counted = [entry for entry in arrivals if entry.tokens]
    total = usage.get("completion_tokens")
    if len(counted) > 1:
        came, most = [], 0
        for entry in counted:
            if (entry.tokens or 0) > most:
                most = entry.tokens or 0
                came.append(entry)
        decoded = (came[-1].tokens or 0) - (came[0].tokens or 1)
        return "events", came, decoded, total if _is_whole(total) else came[-1].tokens
    came = [entry for entry in arrivals if entry.text]
    if not _is_whole(total):
        return "pieces", came, len(came) - 1, len(came)
    return "usage", came, total - 1, total  # type: ignore[operator]  # mypy does not see that it is a number


def stream_figures(
    sent: float, arrivals: Sequence[Arrival], usage: Mapping[str, Any], asked_tokens: int
) -> dict[str, Any]:
    """Return the figures of one answer.

    Decode rate: tokens after the first arrival by the time between first and last arrival. If every event reports the
    tokens so far, an arrival may carry several (a drafter's) or tokens without text (a special one), and the count is
    exact; else the first arrival counts as one token. Prefill rate: tokens of the prompt by the time to the first.

    :param sent: when the request was sent, in seconds of the clock of C(arrivals)
    :param arrivals: the events that carried text or tokens
    :param usage: the engine's own count, of the last event that had one
    :param asked_tokens: tokens that were asked for
    :returns: seconds, tokens and tokens per second; C(counted_by) is C(events), C(usage), or C(pieces) for a
        server that gives no count at all
    """
    by, came, decoded, total = _count_tokens(arrivals, usage)
    prompt_tokens = usage.get("prompt_tokens")
    figures: dict[str, Any] = {
        "asked_tokens": asked_tokens,
        "prompt_tokens": prompt_tokens if _is_whole(prompt_tokens) else None,
        "completion_tokens": total,
        "reasoning_tokens": _reasoning(usage),
        "arrivals": len(came),
        "counted_by": by,
        "ttft_seconds": None,
        "prefill_tokens_per_second": None,
        "decode_tokens_per_second": None,
        "seconds": None,
        "gaps_ms": [],
    }
    if not came:
        return figures
    ttft = came[0].at - sent
    span = came[-1].at - came[0].at
    figures["ttft_seconds"] = ttft
    figures["seconds"] = came[-1].at - sent
    if figures["prompt_tokens"] and ttft > 0:
        figures["prefill_tokens_per_second"] = figures["prompt_tokens"] / ttft
    if decoded > 0 and span > 0:
        figures["decode_tokens_per_second"] = decoded / span
    figures["gaps_ms"] = [round(1000 * (after.at - before.at), 3) for before, after in zip(came, came[1:])]
    return figures


def _reasoning(usage: Mapping[str, Any]) -> int | None:
    details = usage.get("completion_tokens_details")
    value = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
    return value if _is_whole(value) else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile, interpolated linearly (as numpy and vLLM do); None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return C({median, low, high}) of repeated measurements; None without any."""
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    return {
        "median": significant(statistics.median(measured)),
        "low": significant(min(measured)),
        "high": significant(max(measured)),
    }


def significant(value: float, digits: int = 4) -> float:
    """Round to so many digits that mean something."""
    return float(f"{value:.{digits}g}")


def single_row(target: int, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of one prompt length from its counted answers. The gaps of all answers are pooled."""

    def values(name: str) -> list[Any]:
        return [run[name] for run in runs]

    def counted(name: str) -> list[Any]:
        return [(run.get("seen") or {}).get(name) for run in runs]

    gaps = [gap for run_gaps in values("gaps_ms") for gap in run_gaps]
    arrivals, tokens = sum(values("arrivals")), [count or 0 for count in values("completion_tokens")]
    return {
        "prompt_tokens": target,
        "prompt_tokens_measured": _median(values("prompt_tokens")),
        "output_tokens": _median(values("completion_tokens")),
        "output_tokens_asked": runs[0]["asked_tokens"] if runs else None,
        "reasoning_tokens": _median(values("reasoning_tokens")),
        "repeats": len(runs),
        "counted_by": runs[0]["counted_by"] if runs else None,
        "ttft_seconds": spread(values("ttft_seconds")),
        "prefill_tokens_per_second": spread(values("prefill_tokens_per_second")),
        "decode_tokens_per_second": spread(values("decode_tokens_per_second")),
        "inter_token_ms": _quantiles(gaps),
        "tokens_per_arrival": round(sum(tokens) / arrivals, 2) if arrivals else None,
        "short": sum(count < asked for count, asked in zip(tokens, values("asked_tokens"))),
        "disturbed": sum(map(bool, counted("disturbed"))),
        "cached_share": _largest(counted("cached_share")),
        "draft_acceptance": _mean(counted("draft_acceptance")),
        "tokens_per_step": _mean(counted("tokens_per_step")),
    }


def _median(values: Sequence[Any]) -> float | int | None:
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    middle = statistics.median(measured)
    return int(middle) if float(middle).is_integer() else middle


def _mean(values: Sequence[Any]) -> float | None:
    measured = [value for value in values if value is not None]
    return round(statistics.mean(measured), 3) if measured else None


def _largest(values: Sequence[Any]) -> float | None:
    measured = [value for value in values if value is not None]
    return max(measured) if measured else None


# --- counters of the engine ----------------------------------------------------------------------------------------

COUNTERS = {
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
}
"""Our name -> vLLM's; the second name of the prefix cache's is that before 0.9."""


def counters(text: str) -> dict[str, float | None]:
    """Read /metrics; each of C(COUNTERS), summed over engines, or None."""
    samples = metrics.samples(text)
    return {
        name: next((sum(samples[metric]) for metric in metric_names if metric in samples), None)
        for name, metric_names in COUNTERS.items()
    }


def seen(before: Mapping[str, Any], after: Mapping[str, Any], prompt_tokens: int, generated: int) -> dict[str, Any]:
    """Judge a measurement by what the engine counted meanwhile.

    :param before: counters of the engine before the measurement, by name
    :param after: and after it
    :param prompt_tokens: of the measurement's own requests
    :param generated: tokens of their answers
    :returns: C(disturbed) (other requests had more than a small share of its work), C(cached_share) (of the
        prompt tokens, those that came from the prefix cache) and others; None where the engine does not count it
    """

    def grown(name: str) -> float | None:
        old, new = before.get(name), after.get(name)
        return None if old is None or new is None or new < old else new - old

    own_tokens = prompt_tokens + generated
    made, read_ = grown("generation_tokens"), grown("prompt_tokens")
    foreign = None if made is None or read_ is None else made + read_ - own_tokens
    drafts, drafted, accepted = grown("drafts"), grown("draft_tokens"), grown("accepted_tokens")
    queries, hits = grown("cache_queries"), grown("cache_hits")
    return {
        "disturbed": foreign is not None and foreign > FOREIGN_SHARE * own_tokens,
        "foreign_tokens": None if foreign is None else max(0, int(foreign)),
        "cached_share": round(hits / queries, 4) if queries and hits is not None else None,
        "draft_acceptance": round(accepted / drafted, 4) if drafted and accepted is not None else None,
        "tokens_per_step": round(1 + accepted / drafts, 3) if drafts and accepted is not None else None,
        "preemptions": grown("preemptions"),
    }


# --- several requests at once --------------------------------------------------------------------------------------


def load_row(
    level: float, runs: Sequence[Mapping[str, Any]], seconds: float, failed: int = 0, kind: str = "concurrency"
) -> dict[str, Any]:
    """Return the row of several requests at once from their answers, by C(vllm bench serve)'s definitions.

    :param level: requests at once, or a second
    :param runs: what C(stream_figures) returned of each that was answered
    :param seconds: from the first request to the last token of all; the rate counts the tokens of the answers
        over all of it
    :param failed: requests that were not answered
    :param kind: which of the two: C(concurrency) or C(request_rate)
    :returns: the row
    """
    done = [run for run in runs if run["ttft_seconds"] is not None]
    tokens = sum(run["completion_tokens"] or 0 for run in done)
    per_token = [
        1000 * (run["seconds"] - run["ttft_seconds"]) / (run["completion_tokens"] - 1)
        for run in done
        if (run["completion_tokens"] or 0) > 1
    ]
    return {
        kind: level,
        "client": "own",
        "requests": len(runs) + failed,
        "failed": failed + len(runs) - len(done),
        "seconds": significant(seconds),
        "prompt_tokens": _median([run["prompt_tokens"] for run in done]),
        "output_tokens": _median([run["completion_tokens"] for run in done]),
        "output_tokens_per_second": significant(tokens / seconds) if seconds > 0 and tokens else None,
        "ttft_ms": _quantiles([1000 * run["ttft_seconds"] for run in done]),
        "time_per_token_ms": _quantiles(per_token),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    median, late = percentile(values, 50), percentile(values, 95)
    return None if median is None or late is None else {"median": round(median, 2), "p95": round(late, 2)}


MARK = "dgxspark-bench-result"
# Runs in the service's container, where the key is a file that with-secrets has read: it gets its value by the environment of
# this one program, and no argument list holds it. $1 model folder in the hub cache or '', $2 its revision, $3 tokenizer by
# name, $4 seconds, then the options. A snapshot is named by its path, since offline a revision other than main has no name.
LOAD_SCRIPT = f"""\
set -u
command -v vllm >/dev/null || {{ echo "the image has no program vllm" >&2; exit 127; }}
folder=$1 revision=$2 tokenizer=$3 seconds=$4
shift 4
if [ -n "$folder" ]; then
    folder="${{HF_HUB_CACHE:-${{HF_HOME:-$HOME/.cache/huggingface}}/hub}}/$folder"
    commit=$(cat "$folder/refs/$revision" 2>/dev/null || echo "$revision")
    [ -d "$folder/snapshots/$commit" ] && tokenizer="$folder/snapshots/$commit"
fi
if [ -n "${{VLLM_API_KEY-}}" ]; then export OPENAI_API_KEY="$VLLM_API_KEY"; fi
out=$(mktemp -d) || exit 1
timeout --kill-after=10 "$seconds" vllm bench serve "$@" --tokenizer "$tokenizer" \\
    --save-result --result-dir "$out" --result-filename result.json >"$out/log" 2>&1
code=$?
if [ $code -eq 0 ] && [ -s "$out/result.json" ]; then
    echo "{MARK}"
    cat "$out/result.json"
else
    tail -n 25 "$out/log" >&2
    [ $code -ne 0 ] || code=1
fi
rm -rf "$out"
exit $code
"""


def load_options(url: str, model: str, task: Mapping[str, Any], seed: int, args: Mapping[str, Any]) -> list[str]:
    """Return the options of C(vllm bench serve), which 0.19 to 0.33 spell alike.

    Plain completions: their prompts are as long as was asked for, and no reasoning parser stands between.

    :param url: of the server, from inside its container
    :param model: served name
    :param task: C(prompt_tokens) and C(output_tokens) of each request, and C(level), requests at once, or C(rate),
        requests a second, with C(requests), how many
    :param seed: a new one each time; by default all runs would ask the same, and the second would be answered
        from the prefix cache
    :param args: of the service's launch
    :returns: words of a command line
    """
    rate = task.get("rate")
    pace = (
        ("--num-prompts", str(task["requests"]), "--request-rate", f"{rate:g}")
        if rate
        else ("--num-prompts", str(task["level"] * ROUNDS), "--max-concurrency", str(task["level"]))
    )
    options = [
        *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url, "--model", model),
        *("--dataset-name", "random", "--random-input-len", str(task["prompt_tokens"])),
        *("--random-output-len", str(task["output_tokens"]), *pace),
        *("--seed", str(seed), "--ignore-eos", "--temperature", "0"),
        *("--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "95", "--disable-tqdm"),
    ]
    mode = args.get("tokenizer-mode")
    if mode:
        options += ["--tokenizer-mode", str(mode)]
    if args.get("trust-remote-code") is True:
        options.append("--trust-remote-code")
    return options


def tokenizer(model: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    """Return C([folder in the hub cache, revision, name]) of a service's tokenizer; the first two empty for a path.

    model: C(argument), C(repo), C(revision) and C(extra) of the plan.
    """
    configured = args.get("tokenizer")
    name = str(configured or model["argument"])
    if name.startswith("/"):
        return ["", "", name]
    revision = args.get("tokenizer-revision") or model.get("revision")
    if configured and not args.get("tokenizer-revision"):
        extra = [entry for entry in model.get("extra") or [] if entry.get("repo") == name]
        same = name == model.get("repo")
        revision = model.get("revision") if same else (extra[0].get("revision") if extra else None)
    return ["models--" + name.replace("/", "--"), str(revision or "main"), name]


def load_command(
    container: str, wrapper: str, tokenizer_words: Sequence[str], seconds: int, options: Sequence[str]
) -> list[str]:
    """Return the command that runs C(vllm bench serve) in a service's container.

    :param container: its name
    :param wrapper: with-secrets, or empty without keys
    :param tokenizer_words: of C(tokenizer)
    :param seconds: that it may take
    :param options: of C(load_options)
    :returns: words of a command line on the host
    """
    inner = ["sh", "-c", LOAD_SCRIPT, "bench", *tokenizer_words, str(seconds), *options]
    return ["docker", "exec", container, *([wrapper] if wrapper else []), *inner]


def parse_load(
    rc: int, out: str, err: str, level: float, kind: str = "concurrency"
) -> tuple[dict[str, Any] | None, str]:
    """Read what C(load_command) printed.

    :param rc: its exit code
    :param out: its output
    :param err: its errors
    :param level: requests at once, or a second
    :param kind: which of the two: C(concurrency) or C(request_rate)
    :returns: the row, or None and the reason
    """
    if rc in (124, 137):
        return None, "vllm bench serve did not end in time"
    _log, mark, text = out.partition(MARK + "\n")
    if rc or not mark:
        return None, _reason(rc, err)
    result = _parse_result(text)
    if result is None:
        return None, "vllm bench serve left no result that can be read"
    done = result.get("completed")
    if not done:
        return None, "all requests of vllm bench serve failed"
    requests = result.get("num_prompts") or done
    numbers = {
        name: result.get(name) or 0
        for name in ("total_input_tokens", "total_output_tokens", "duration", "output_throughput")
    }
    odd = _odd_figures(result, numbers)
    if odd or not (_is_whole(done) and _is_whole(requests)) or not 0 < done <= requests:
        return (
            None,
            f"vllm bench serve left figures that cannot be read: {', '.join(sorted(odd)) or 'completed, num_prompts'}",
        )

    def pair(name: str) -> dict[str, float] | None:
        median, late = result.get(f"median_{name}_ms"), result.get(f"p95_{name}_ms")
        return None if median is None or late is None else {"median": round(median, 2), "p95": round(late, 2)}

    return {
        kind: level,
        "client": "vllm",
        "requests": requests,
        "failed": requests - done,
        "seconds": significant(numbers["duration"]),
        "prompt_tokens": round(numbers["total_input_tokens"] / done),
        "output_tokens": round(numbers["total_output_tokens"] / done),
        "output_tokens_per_second": significant(numbers["output_throughput"]),
        "ttft_ms": pair("ttft"),
        "time_per_token_ms": pair("tpot"),
    }, ""


def _parse_result(text: str) -> dict[str, Any] | None:
    try:
        result = parse_json(text, "the result of vllm bench serve", finite=False)
    except ValueError:
        return None
    return result if isinstance(result, dict) else None


def _odd_figures(result: Mapping[str, Any], numbers: Mapping[str, Any]) -> list[str]:
    """Return the names of the figures that are no finite numbers."""
    timed = {name: result.get(name) or 0 for name in result if re.match(r"(median|p95)_(ttft|tpot)_ms", str(name))}
    return [name for name, value in {**numbers, **timed}.items() if not _finite(value)]


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15


def _reason(rc: int, err: str) -> str:
    """Return the most telling line of a failed run: the last line that names an error, else the last line."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b\w*(Error|error|Exception|invalid|no program)\b", line)]
    reason = (named or lines or [f"exit code {rc}"])[-1]
    return f"vllm bench serve: {reason[:300]}"


# --- the host while it is measured ---------------------------------------------------------------------------------

GPU_FIELDS = ("driver_version", "clocks.current.sm", "power.draw", "power.limit", "temperature.gpu")
GPU_QUERY = ["nvidia-smi", "--query-gpu=" + ",".join(GPU_FIELDS), "--format=csv,noheader,nounits"]


def parse_gpu(text: str) -> dict[str, Any] | None:
    """Parse the first line that C(GPU_QUERY) prints; [N/A], GB10's answer for its power limit, is None."""
    line = next((line for line in text.splitlines() if line.count(",") == len(GPU_FIELDS) - 1), None)
    if line is None:
        return None
    values = dict(zip(GPU_FIELDS, [field.strip() for field in line.split(",")]))

    def number(name: str) -> float | None:
        match = re.match(r"\d+(\.\d+)?", values[name])
        return float(match.group()) if match else None

    driver = values["driver_version"]
    return {
        "driver": None if driver.startswith("[") else driver,
        "sm_clock_mhz": number("clocks.current.sm"),
        "power_watts": number("power.draw"),
        "power_limit_watts": number("power.limit"),
        "temperature_c": number("temperature.gpu"),
    }


def gpu_under_load(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of the samples taken during the answers, and the highest temperature."""
    return {
        "sm_clock_mhz": _median([sample["sm_clock_mhz"] for sample in samples]),
        "power_watts": _median([sample["power_watts"] for sample in samples]),
        "temperature_c": _largest([sample["temperature_c"] for sample in samples]),
    }
