# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measuring a service: what is asked, and what follows from the moments at which the answer came.

Three rules keep the figures honest, as the practical guide for the DGX Spark has them:

1. The length of an answer is forced, so that a rate rests on as many tokens as were asked for, not on a short reply.
2. No two prompts begin alike, so that the prefix cache never answers for the engine.
3. Every token counts, those of the reasoning too: counts are the engine's own (usage), not the text that is shown.

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
from .._host import docker
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
"""Names of the contents of an answer; C(workloads.py) has what is asked."""
PROMPTS = 1
"""Version of the texts below: figures of different ones are not compared."""
ROUNDS = 2
"""Requests that each of the concurrent clients makes, one after another."""
MARGIN = 64
"""Tokens of the context left to the chat template and to prompts that came out longer than meant."""
SHORTEST = 32
CHARACTERS_PER_TOKEN = 5.0
"""To begin with; the warm-up tells what it is for this model."""
FOREIGN_SHARE = 0.1
"""Tokens of other requests, as a share of one's own, that a measurement bears: probes of a watchdog ask for one token."""
LOADER_GIB = 3.0
"""Memory that has to be free for vLLM's own client, which loads its libraries a second time: 0.6 GiB on CPU builds."""

# What a first request asks for, until the server takes it: each further try leaves one thing out.
EXTRAS: tuple[tuple[str, ...], ...] = (
    ("ignore_eos", "min_tokens", "continuous_usage_stats"),
    ("ignore_eos", "continuous_usage_stats"),
    ("ignore_eos",),
    (),
)

# A plain text for the prompts; what it says does not matter, but it has to be prose: drafters guess noise badly.
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
    """Return the settings with all defaults filled in, and what is wrong with what was given. where: as messages name it."""
    problems = validation.Problems(f"{where}, spark_bench")
    given = problems.mapping(value, "spark_bench")
    given = {name: schema.meant(KEYS[name], value) if name in KEYS else value for name, value in given.items()}
    settings = schema.filled(problems, given, KEYS)
    for key, least in (("prompt_tokens", SHORTEST), ("concurrency", 2)):
        wrong = [entry for entry in settings[key] if not _whole(entry) or entry < least]
        if wrong:
            problems.add(f"'{key}' holds {wrong[0]!r}; its entries are whole numbers from {least}.")
        settings[key] = sorted({entry for entry in settings[key] if entry not in wrong})
    unknown = [entry for entry in settings["contents"] if entry not in CONTENTS]
    if unknown:
        problems.add(f"'contents' holds {unknown[0]!r}; its entries are {', '.join(CONTENTS)}.")
    wrong = [entry for entry in settings["request_rates"] if not _finite(entry) or not 0 < entry <= 1000]
    if wrong:
        problems.add(f"'request_rates' holds {wrong[0]!r}; its entries are numbers above 0, at most 1000.")
    settings["request_rates"] = sorted({entry for entry in settings["request_rates"] if entry not in wrong})
    if not settings["prompt_tokens"]:
        problems.add("'prompt_tokens' is empty; the headline figure needs one length.")
    if not 0 < settings["regression_percent"] < 100:
        problems.add(f"'regression_percent' is {settings['regression_percent']}; it must lie between 0 and 100.")
    return settings, problems.messages


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def names(value: Any) -> list[str]:
    """Return the service names that -e spark_bench_services=a,b, or a list, picks."""
    parts = value.split(",") if isinstance(value, str) else [str(entry) for entry in value or []]
    return [part.strip() for part in parts if part.strip()]


def lengths(settings: Mapping[str, Any], max_model_len: int | None) -> tuple[list[int], list[int]]:
    """Return the prompt lengths that fit into the context together with the answer, and those that do not.

    When none does, the longest that would is measured instead, if there is any.
    """
    wanted = list(settings["prompt_tokens"])
    if max_model_len is None:
        return wanted, []
    room = max_model_len - settings["output_tokens"] - MARGIN
    fitting = [length for length in wanted if length * 1.05 <= room]
    if not fitting and int(room / 1.05) >= SHORTEST:
        fitting = [int(room / 1.05)]
    return fitting, [length for length in wanted if length not in fitting]


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
    asked = EXTRAS[extras]
    options: dict[str, Any] = {"include_usage": True}
    if "continuous_usage_stats" in asked:
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
    if "ignore_eos" in asked:
        request["ignore_eos"] = True
    if "min_tokens" in asked:
        request["min_tokens"] = max_tokens
    return request


class Arrival(NamedTuple):
    """A piece of an answer. tokens: how many the engine had made by then, where it says so."""

    at: float
    tokens: int | None
    text: bool


def arrival(at: float, event: Mapping[str, Any]) -> Arrival:
    """Reduce an event of a stream to what counts; text of any field is text, whatever a version calls its reasoning."""
    usage = event.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = False
    if isinstance(choice, Mapping):
        delta = choice.get("delta")
        found = [choice.get("text")]
        if isinstance(delta, Mapping):
            found += [value for name, value in delta.items() if name != "role"]
        text = any(bool(value) for value in found if isinstance(value, (str, list)))
    elif choice is None and not choices:
        tokens = None  # the last event counts the whole; nothing arrived with it
    return Arrival(at, tokens if _whole(tokens) else None, text)


def stream_figures(sent: float, arrivals: Sequence[Arrival], usage: Mapping[str, Any], asked: int) -> dict[str, Any]:
    """Return the figures of one answer.

    Decode rate: tokens after the first arrival by the time between first and last arrival. Where every event says
    how many
    tokens there are by then, an arrival may carry several (a drafter's) or tokens without text (a special one), and the
    count is exact; else the first arrival is taken for one token. Prefill rate: tokens of the prompt by the time
    to the first.

    :param sent: when the request was sent, in seconds of the clock of C(arrivals)
    :param arrivals: the events that carried text or tokens
    :param usage: the engine's own count, of the last event that had one
    :param asked: tokens that were asked for
    :returns: seconds, tokens and tokens per second; C(counted_by) is C(events), C(usage), or C(pieces) for a
        server that gives no count at all
    """
    counted = [entry for entry in arrivals if entry.tokens]
    total = usage.get("completion_tokens")
    if len(counted) > 1:
        by, came, seen = "events", [], 0
        for entry in counted:
            if (entry.tokens or 0) > seen:
                seen = entry.tokens or 0
                came.append(entry)
        first_tokens = came[0].tokens or 1
        decoded = (came[-1].tokens or 0) - first_tokens
    else:
        came = [entry for entry in arrivals if entry.text]
        by = "usage" if _whole(total) else "pieces"
        # _whole tells that it is a number, which mypy does not see.
        decoded = (total if _whole(total) else len(came)) - 1  # type: ignore[operator]
    if not _whole(total):
        total = came[-1].tokens if by == "events" and came else len(came)
    figures: dict[str, Any] = {
        "asked_tokens": asked,
        "prompt_tokens": usage.get("prompt_tokens") if _whole(usage.get("prompt_tokens")) else None,
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
    return value if _whole(value) else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile, between two values by where it lies (as numpy and vLLM do); None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return C({median, low, high}) of what was measured several times; None when it never was."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "median": significant(statistics.median(known)),
        "low": significant(min(known)),
        "high": significant(max(known)),
    }


def significant(value: float, digits: int = 4) -> float:
    """Round to so many digits that mean something."""
    return float(f"{value:.{digits}g}")


def single_row(target: int, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of one prompt length from its counted answers. Gaps of all of them are taken together."""
    gaps = [gap for run in runs for gap in run["gaps_ms"]]
    arrivals, tokens = sum(run["arrivals"] for run in runs), sum(run["completion_tokens"] or 0 for run in runs)
    median, late = percentile(gaps, 50), percentile(gaps, 95)
    row: dict[str, Any] = {
        "prompt_tokens": target,
        "prompt_tokens_measured": _median([run["prompt_tokens"] for run in runs]),
        "output_tokens": _median([run["completion_tokens"] for run in runs]),
        "output_tokens_asked": runs[0]["asked_tokens"] if runs else None,
        "reasoning_tokens": _median([run["reasoning_tokens"] for run in runs]),
        "repeats": len(runs),
        "counted_by": runs[0]["counted_by"] if runs else None,
        "ttft_seconds": spread([run["ttft_seconds"] for run in runs]),
        "prefill_tokens_per_second": spread([run["prefill_tokens_per_second"] for run in runs]),
        "decode_tokens_per_second": spread([run["decode_tokens_per_second"] for run in runs]),
        "inter_token_ms": None if median is None else {"median": round(median, 2), "p95": round(late or 0.0, 2)},
        "tokens_per_arrival": round(tokens / arrivals, 2) if arrivals else None,
        "short": sum(1 for run in runs if (run["completion_tokens"] or 0) < run["asked_tokens"]),
        "disturbed": sum(1 for run in runs if (run.get("seen") or {}).get("disturbed")),
        "cached_share": _largest([(run.get("seen") or {}).get("cached_share") for run in runs]),
        "draft_acceptance": _mean([(run.get("seen") or {}).get("draft_acceptance") for run in runs]),
        "tokens_per_step": _mean([(run.get("seen") or {}).get("tokens_per_step") for run in runs]),
    }
    return row


def _median(values: Sequence[Any]) -> float | int | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    middle = statistics.median(known)
    return int(middle) if float(middle).is_integer() else middle


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.mean(known), 3) if known else None


def _largest(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


# --- what the engine counts itself ---------------------------------------------------------------------------------

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
        name: next((sum(samples[known]) for known in known_as if known in samples), None)
        for name, known_as in COUNTERS.items()
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

    own = prompt_tokens + generated
    made, read_ = grown("generation_tokens"), grown("prompt_tokens")
    foreign = None if made is None or read_ is None else made + read_ - own
    drafts, drafted, accepted = grown("drafts"), grown("draft_tokens"), grown("accepted_tokens")
    queries, hits = grown("cache_queries"), grown("cache_hits")
    return {
        "disturbed": foreign is not None and foreign > FOREIGN_SHARE * own,
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
    :param args: those of the service's launch
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
    given = args.get("tokenizer")
    name = str(given or model["argument"])
    if name.startswith("/"):
        return ["", "", name]
    revision = args.get("tokenizer-revision") or model.get("revision")
    if given and not args.get("tokenizer-revision"):
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
    return docker.exec_command(container, *([wrapper] if wrapper else []), *inner)


def parse_load(
    rc: int, out: str, err: str, level: float, kind: str = "concurrency"
) -> tuple[dict[str, Any] | None, str]:
    """Read what C(load_command) printed.

    :param rc: its exit code
    :param out: its output
    :param err: its errors
    :param level: requests at once, or a second
    :param kind: which of the two: C(concurrency) or C(request_rate)
    :returns: the row, or None and why there is none
    """
    if rc in (124, 137):
        return None, "vllm bench serve did not end in time"
    _log, mark, text = out.partition(MARK + "\n")
    if rc or not mark:
        return None, _reason(rc, err)
    try:
        found = parse_json(text, "the result of vllm bench serve", finite=False)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return None, "vllm bench serve left no result that can be read"
    done = found.get("completed")
    if not done:
        return None, "all requests of vllm bench serve failed"
    asked = found.get("num_prompts") or done
    numbers = {
        name: found.get(name) or 0
        for name in ("total_input_tokens", "total_output_tokens", "duration", "output_throughput")
    }
    timed = {name: found.get(name) or 0 for name in found if re.match(r"(median|p95)_(ttft|tpot)_ms", str(name))}
    odd = [name for name, value in {**numbers, **timed}.items() if not _finite(value)]
    if odd or not (_whole(done) and _whole(asked)) or not 0 < done <= asked:
        return (
            None,
            f"vllm bench serve left figures that cannot be read: {', '.join(sorted(odd)) or 'completed, num_prompts'}",
        )

    def pair(name: str) -> dict[str, float] | None:
        median, late = found.get(f"median_{name}_ms"), found.get(f"p95_{name}_ms")
        return None if median is None or late is None else {"median": round(median, 2), "p95": round(late, 2)}

    return {
        kind: level,
        "client": "vllm",
        "requests": asked,
        "failed": asked - done,
        "seconds": significant(numbers["duration"]),
        "prompt_tokens": round(numbers["total_input_tokens"] / done),
        "output_tokens": round(numbers["total_output_tokens"] / done),
        "output_tokens_per_second": significant(numbers["output_throughput"]),
        "ttft_ms": pair("ttft"),
        "time_per_token_ms": pair("tpot"),
    }, ""


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15


def _reason(rc: int, err: str) -> str:
    """The line of a failed run that says most: the last one that names an error, else the last one."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b\w*(Error|error|Exception|invalid|no program)\b", line)]
    said = (named or lines or [f"exit code {rc}"])[-1]
    return f"vllm bench serve: {said[:300]}"


# --- the host while it is measured ---------------------------------------------------------------------------------


def gpu_under_load(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of what was sampled during the answers, and the highest temperature."""
    return {
        "sm_clock_mhz": _median([sample["sm_clock_mhz"] for sample in samples]),
        "power_watts": _median([sample["power_watts"] for sample in samples]),
        "temperature_c": _largest([sample["temperature_c"] for sample in samples]),
    }
