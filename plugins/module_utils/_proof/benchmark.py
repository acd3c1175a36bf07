# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a service with the C(vllm bench serve) in its image: workloads, options of the program, and figures of its result.

Options and result are the same from vLLM 0.17 to 0.33 (C(vllm/benchmarks/serve.py)). Of the datasets only C(sharegpt) and C(random) work in
all images: others need pandas, C(sonnet) is gone from newer versions, and C(sharegpt) leaves out prompts of more than 1024 tokens.

Pure functions; C(plugins/modules/service_bench.py) runs the program.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._common import schema, validation
from .._common.foreign_text import parse_json
from .._common.plain_data import is_number, is_whole
from .._common.schema import NUMBER, Key
from .._host import docker
from .._runtime import metrics

KEYS: dict[str, Key] = {
    "services": Key(list, [], "names of the services; all when empty"),
    "prompt_tokens": Key(list, [512, 4096, 16384], "lengths of the prompts; the shortest gives the headline figure"),
    "output_tokens": Key(int, 256, "forced length of every answer", least=16),
    "repeats": Key(int, 3, "measured requests at each length", least=1),
    "warmup": Key(int, 1, "requests before them", least=1),
    "concurrency": Key(list, [2, 4, 16], "numbers of requests at once; empty for single streams only"),
    "contents": Key(list, [], "contents of answers: medium, long (prose), code, reasoning; none by default"),
    "prefix_tokens": Key(int, 8192, "length of a shared prefix, to measure the prefix cache; 0 for none", least=0),
    "request_rates": Key(list, [], "requests per second that start at random times; none by default"),
    "rate_requests": Key(int, 100, "requests at each rate", least=2, most=10000),
    "thinking": Key(bool, None, "switch thinking on or off; by default as the model does"),
    "seconds": Key(int, 1800, "longest measurement of one service; the rest is left out", least=10),
    "idle_seconds": Key(int, 60, "longest wait for other requests to end", least=0),
    "disturb": Key(bool, False, "measure during other requests, without a comparison"),
    "regression_percent": Key(NUMBER, 10, "loss against the baseline that is a finding"),
    "ceiling": Key(bool, True, "refuse rates above the memory bus of a GB10; false for stand-ins of engines"),
    "rebaseline": Key(bool, False, "make this measurement the baseline"),
}
"""Keys of C(spark_bench)."""

CONTENTS: dict[str, tuple[int, str]] = {
    "medium": (
        300,
        "Explain to a new colleague how a lending library of a town of ten thousand people works: members, loans, reminders, "
        "purchases. Write about 300 words of plain prose.",
    ),
    "long": (
        600,
        "Write the history of a fictional harbour town from its founding to today, in at least eight paragraphs of plain prose. "
        "Tell of its trade, its floods, its people and its quarrels.",
    ),
    "code": (
        300,
        "Write a Python class for an interval tree with insert, remove and overlap queries, with type hints and docstrings, and "
        "then a test of each method. Answer with code only.",
    ),
    "reasoning": (
        300,
        "A train leaves at 9:40 at 84 km/h. A second one leaves the same station at 10:25 at 112 km/h on the same line and stops "
        "for six minutes after every 70 km. Work out step by step when and where it catches up, and check the result.",
    ),
}
"""Content of an answer -> tokens of the answer, and the prompt. The report on a pair of Sparks (June 2026) has these four contents
and lengths in its table."""
PROMPTS = 2
"""Version of the prompts and of the program that sends them: figures of different ones are not compared."""
MOST_FIGURE = 1e15
"""No figure of C(vllm bench) is larger."""
ROUNDS = 2
"""Requests that each of the concurrent clients makes, one after another."""
RATE_WARMUP = 4
"""Warm-up requests before a rate is measured."""
MARGIN = 64
"""Tokens of the context reserved for the chat template and for prompts that are longer than requested."""
SHORTEST = 32
SUFFIX_TOKENS = 32
"""Length of the part of a prompt behind a shared prefix."""
PREFIX_OUTPUT_TOKENS = 64
"""Length of the answers to requests with a shared prefix, of which only the first token is measured."""
FOREIGN_SHARE = 0.1
"""Tolerated tokens of other requests, as a share of the measured ones: probes of a watchdog ask for one token."""
CLIENT_GIB = 1.5
"""Memory that has to be free for C(vllm bench): its own is 0.6 GiB on CPU builds, and the engine's libraries are in the page cache."""


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
        wrong = [entry for entry in settings[key] if not is_whole(entry, least)]
        settings[key] = _without_wrong(problems, key, settings[key], wrong, f"whole numbers from {least}")
    unknown = [entry for entry in settings["contents"] if entry not in CONTENTS]
    if unknown:
        problems.add(f"'contents' has {unknown[0]!r}; its entries are {', '.join(CONTENTS)}.")
    wrong = [entry for entry in settings["request_rates"] if not is_number(entry, 0, 1000) or entry == 0]
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
        problems.add(f"'{key}' contains {wrong[0]!r}; its entries are {allowed}.")
    return sorted({entry for entry in entries if entry not in wrong})


def names(value: Any) -> list[str]:
    """Return the service names that -e spark_bench_services=a,b, or a list, picks."""
    parts = value.split(",") if isinstance(value, str) else [str(entry) for entry in value or []]
    return [part.strip() for part in parts if part.strip()]


def prompt_lengths(settings: Mapping[str, Any], max_model_len: int | None) -> tuple[list[int], list[int]]:
    """Return the prompt lengths that fit into the context together with the answer, and those that do not.

    When none does, the longest that would is measured instead, if there is any.
    """
    lengths = list(settings["prompt_tokens"])
    if max_model_len is None:
        return lengths, []
    room = max_model_len - settings["output_tokens"] - MARGIN
    fitting = [length for length in lengths if length * 1.05 <= room]
    if not fitting and int(room / 1.05) >= SHORTEST:
        fitting = [int(room / 1.05)]
    return fitting, [length for length in lengths if length not in fitting]


# --- workloads -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """One run of C(vllm bench serve). part: the list of the section that gets its row. Lengths are in tokens."""

    part: str
    label: str
    prompt_tokens: int
    output_tokens: int
    requests: int
    warmup: int = 0
    """Requests before the counted ones."""
    content: str = ""
    """Of C(CONTENTS), for the part C(contents)."""
    level: int = 0
    """Requests at once, for the part C(concurrency)."""
    rate: float = 0.0
    """Requests a second, for the part C(request_rates)."""

    @property
    def single(self) -> bool:
        """Whether requests run one at a time, each with its own figures."""
        return not self.level and not self.rate


def workloads(settings: Mapping[str, Any], max_model_len: int | None) -> tuple[list[Workload], list[str]]:
    """Return the runs that fit into the context, and a line for each other one.

    :param max_model_len: tokens of the context, None if unknown
    :returns: workloads, empty if no prompt fits, and the excluded ones in words
    """
    lengths, too_long = prompt_lengths(settings, max_model_len)
    left_out = [f"prompts of {length} tokens: the context is {max_model_len}" for length in too_long]
    if not lengths:
        return [], left_out
    answer, repeats, warmup = settings["output_tokens"], settings["repeats"], settings["warmup"]
    runs = [Workload("single", f"prompt {length}", length, answer, repeats, warmup) for length in lengths]
    room = float("inf") if max_model_len is None else max_model_len - 4 * MARGIN
    for content in settings["contents"]:
        tokens = CONTENTS[content][0]
        if tokens <= room:
            runs.append(Workload("contents", f"content {content}", 0, tokens, repeats, 1, content))
        else:
            left_out.append(f"content {content}: the context is {max_model_len}")
    prefix = settings["prefix_tokens"]
    if prefix * 1.05 > room - PREFIX_OUTPUT_TOKENS:
        left_out.append(f"a shared prefix of {prefix} tokens: the context is {max_model_len}")
    elif prefix:
        runs.append(Workload("prefix_cache", f"shared prefix of {prefix}", prefix, PREFIX_OUTPUT_TOKENS, 1 + repeats))
    for level in settings["concurrency"]:
        runs.append(Workload("concurrency", f"{level} at once", lengths[0], answer, level * ROUNDS, level, level=level))
    for rate in settings["request_rates"]:
        requests = settings["rate_requests"]
        runs.append(
            Workload("request_rates", f"{rate:g} a second", lengths[0], answer, requests, RATE_WARMUP, rate=rate)
        )
    return runs, left_out


def requests_in(rate: float, requests: int, seconds: float) -> int:
    """Return the number of requests that begin within half of the remaining time, at least one. rate: requests a second."""
    return max(1, min(requests, int(rate * seconds / 2)))


def dataset(workload: Workload, nonce: str) -> tuple[str, list[str]]:
    """Return the text of the dataset file, empty for none, and the options that name the dataset.

    A prefix cache stores whole blocks by the hash of everything before them, so prompts that begin with a nonce share no
    block. Other prompts are of random tokens, which a drafter guesses badly: its rates are the rates of the contents.
    """
    prompt, answer = str(workload.prompt_tokens), str(workload.output_tokens)
    if workload.part == "contents":
        turns = [
            {"conversations": [{"value": f"Run {nonce}-{number}. {CONTENTS[workload.content][1]}"}, {"value": ""}]}
            for number in range(workload.warmup + workload.requests)
        ]
        return json.dumps(turns), ["--dataset-name", "sharegpt", "--sharegpt-output-len", answer]
    options = ["--dataset-name", "random", "--random-output-len", answer]
    if workload.part == "prefix_cache":
        return "", [*options, "--random-prefix-len", prompt, "--random-input-len", str(SUFFIX_TOKENS)]
    return "", [*options, "--random-input-len", prompt]


def serve_options(
    workload: Workload, url: str, model: str, api: str, thinking: bool | None, seed: int, args: Mapping[str, Any]
) -> list[str]:
    """Return the options of C(vllm bench serve), but for the dataset.

    Load is put on plain completions: no reasoning parser stands between, and others measure the same way. The warm-up of
    single requests is the first of their requests, since C(--num-warmups) would put the first prompt into the prefix cache.

    :param api: C(chat) or C(completions), for single requests
    :param thinking: whether the model is to think, None to leave it to the template
    :param seed: of the prompts; for C(random) a new one each time, or the second run would be answered from the prefix cache
    """
    chat = api == "chat" and workload.part in ("single", "contents")
    endpoint = ("openai-chat", "/v1/chat/completions") if chat else ("openai", "/v1/completions")
    options = ["--backend", endpoint[0], "--endpoint", endpoint[1], "--base-url", url, "--model", model]
    options += ["--seed", str(seed), "--ignore-eos", "--temperature", "0", "--ready-check-timeout-sec", "0"]
    options += ["--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "95", "--disable-tqdm"]
    if workload.single:
        requests = workload.warmup + workload.requests
        options += ["--num-prompts", str(requests), "--max-concurrency", "1", "--save-detailed"]
    else:
        options += ["--num-prompts", str(workload.requests), "--num-warmups", str(workload.warmup)]
        options += (
            ["--request-rate", f"{workload.rate:g}"] if workload.rate else ["--max-concurrency", str(workload.level)]
        )
    if chat and thinking is not None:
        # Both spellings: templates know one of them and ignore the other.
        kwargs = {"enable_thinking": thinking, "thinking": thinking}
        options += ["--extra-body", json.dumps({"chat_template_kwargs": kwargs})]
    if args.get("tokenizer-mode"):
        options += ["--tokenizer-mode", str(args["tokenizer-mode"])]
    if args.get("trust-remote-code") is True:
        options.append("--trust-remote-code")
    return options


# --- the program ---------------------------------------------------------------------------------------------------

MARK = "dgxspark-bench-result"
# $1 seconds, then the words of the program; {before} and {options} are of the kind of benchmark. The result is a file, since
# logs are on the output too.
_SCRIPT = f"""\
set -u
command -v vllm >/dev/null || {{{{ echo "the image has no program vllm" >&2; exit 127; }}}}
out=$(mktemp -d) || exit 1
seconds=$1
shift
{{before}}timeout --kill-after=30 "$seconds" vllm bench {{program}} "$@" {{options}} >"$out/log" 2>&1
code=$?
if [ $code -eq 0 ] && [ -s "$out/result.json" ]; then
    echo "{MARK}"
    cat "$out/result.json"
else
    tail -n 40 "$out/log" >&2
    [ $code -ne 0 ] || code=1
fi
rm -rf "$out"
exit $code
"""
# Runs in the service's container, where the key is a file that with-secrets has read: it gets its value by the environment of
# this one program, and no argument list holds it. $1 model folder in the hub cache or '', $2 its revision, $3 tokenizer by
# name, $4 text of the dataset or ''. A snapshot is named by its path, since offline a revision other than main has no name.
_BEFORE_SERVE = """\
folder=$1 revision=$2 tokenizer=$3
if [ -n "$folder" ]; then
    folder="${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}/$folder"
    commit=$(cat "$folder/refs/$revision" 2>/dev/null || echo "$revision")
    [ -d "$folder/snapshots/$commit" ] && tokenizer="$folder/snapshots/$commit"
fi
printf %s "$4" > "$out/dataset"
[ -z "$4" ] || set -- "$@" --dataset-path "$out/dataset"
shift 4
if [ -n "${VLLM_API_KEY-}" ]; then export OPENAI_API_KEY="$VLLM_API_KEY"; fi
"""
SERVE_SCRIPT = _SCRIPT.format(
    before=_BEFORE_SERVE,
    program="serve",
    options='--tokenizer "$tokenizer" --save-result --result-dir "$out" --result-filename result.json',
)
THROUGHPUT_SCRIPT = _SCRIPT.format(before="", program="throughput", options='--output-json "$out/result.json"')


def tokenizer(model: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    """Return C([folder in the hub cache, revision, name]) of a tokenizer; the first two empty for a path. model: C(model) of the plan."""
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


def serve_command(
    container: str, wrapper: str, tokenizer_words: Sequence[str], seconds: int, text: str, options: Sequence[str]
) -> list[str]:
    """Return the call of C(vllm bench serve) in a service's container. wrapper: with-secrets, empty without keys. text: of the dataset, or empty."""
    inner = ["sh", "-c", SERVE_SCRIPT, "bench", str(seconds), *tokenizer_words, text, *options]
    return docker.exec_command(container, *([wrapper] if wrapper else []), *inner)


def parse_output(rc: int, out: str, err: str, program: str) -> dict[str, Any]:
    """Return the result that a script of C(vllm bench) printed. Raises ValueError with the reason, for a run without a result."""
    if rc in (124, 137):
        raise ValueError(f"{program} did not end in time")
    _log, mark, text = out.partition(MARK + "\n")
    if rc or not mark:
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b\w*(Error|error|Exception|invalid|no program)\b", line)]
        raise ValueError(f"{program}: {(errors or lines or [f'exit code {rc}'])[-1][:300]}")
    try:
        result = parse_json(text, program, finite=False)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise ValueError(f"{program} left no result that can be read")
    return result


# --- figures -------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """One answered request, as C(--save-detailed) records it. gaps: seconds between arrivals."""

    prompt_tokens: int
    tokens: int
    ttft: float
    gaps: Sequence[float]

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first arrival by the time from the first arrival to the last."""
        seconds = sum(self.gaps)
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0 else None


def _unreadable(name: str) -> ValueError:
    return ValueError(f"vllm bench serve left figures that cannot be read: {name}")


def _number(result: Mapping[str, Any], name: str) -> float:
    value = result.get(name) or 0
    if not is_number(value, 0, MOST_FIGURE):
        raise _unreadable(name)
    return float(value)


def check_completed(result: Mapping[str, Any]) -> int:
    """Return how many requests were answered; raise ValueError if none was, or if the number makes no sense."""
    done: Any = result.get("completed")
    requests: Any = result.get("num_prompts")
    if done == 0:
        errors = [str(error).strip() for error in result.get("errors") or [] if error]
        reason = f": {errors[0].splitlines()[-1][:300]}" if errors else ""
        raise ValueError(f"all requests of vllm bench serve failed{reason}")
    if not is_whole(requests, 1) or not is_whole(done, 1, requests):
        raise _unreadable("completed, num_prompts")
    return int(done)


def read_answers(result: Mapping[str, Any]) -> list[Answer | None]:
    """Return the answers of a detailed result in the order of the requests, None for a failed request."""
    names = ("input_lens", "output_lens", "ttfts", "itls", "errors")
    columns: list[Any] = [result.get(name) for name in names]
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) != 1:
        raise _unreadable(", ".join(names))
    answers = [None if error else Answer(*figures) for *figures, error in zip(*columns)]
    for answer in filter(None, answers):
        _check_answer(answer)
    return answers


def _check_answer(answer: Answer) -> None:
    """Raise ValueError for figures of an answer that make no sense."""
    has_gaps = isinstance(answer.gaps, list) and all(is_number(gap, 0, MOST_FIGURE) for gap in answer.gaps)
    if not (is_whole(answer.prompt_tokens, 0) and is_whole(answer.tokens, 0) and has_gaps):
        raise _unreadable("input_lens, output_lens, itls")
    if not is_number(answer.ttft, 0, MOST_FIGURE) or answer.ttft == 0:
        raise _unreadable("ttfts")


def tokens(workload: Workload, result: Mapping[str, Any], api: str) -> tuple[int | None, int]:
    """Return the tokens of all prompts and answers of a run with its warm-up; the first is None if counted without the chat template."""
    share = 1.0 if workload.single else 1 + workload.warmup / max(workload.requests, 1)
    prompts, answers = (_number(result, f"total_{name}_tokens") for name in ("input", "output"))
    unknown = workload.part == "contents" and api == "chat"
    return None if unknown else round(share * prompts), round(share * answers)


def row(workload: Workload, result: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run. Raises ValueError with the reason, if nothing was answered or figures make no sense."""
    check_completed(result)
    if not workload.single:
        return _load_row(workload, result, seen)
    answers = [answer for answer in read_answers(result)[workload.warmup :] if answer]
    if not answers:
        raise ValueError("no counted request of vllm bench serve was answered")
    if workload.part == "prefix_cache":
        return _prefix_row(answers, seen)
    target = workload.prompt_tokens or answers[0].prompt_tokens
    figures = _single_row(target, workload.output_tokens, answers, seen)
    return {"content": workload.content, **figures} if workload.content else figures


def _single_row(target: int, asked: int, answers: Sequence[Answer], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one prompt length. The gaps of all answers are pooled. target, asked: requested tokens of prompts and answers."""
    gaps = [1000 * gap for answer in answers for gap in answer.gaps]
    inter_token = None
    if len(gaps) > 1:  # interpolated linearly, as numpy and vLLM do
        late = statistics.quantiles(gaps, n=20, method="inclusive")[-1]
        inter_token = {"median": round(statistics.median(gaps), 2), "p95": round(late, 2)}
    tokens = sum(answer.tokens for answer in answers)
    return {
        "prompt_tokens": target,
        "prompt_tokens_measured": _median([answer.prompt_tokens for answer in answers]),
        "output_tokens": _median([answer.tokens for answer in answers]),
        "output_tokens_asked": asked,
        "repeats": len(answers),
        "ttft_seconds": spread([answer.ttft for answer in answers]),
        "prefill_tokens_per_second": spread([answer.prompt_tokens / answer.ttft for answer in answers]),
        "decode_tokens_per_second": spread([answer.decode_rate for answer in answers]),
        "inter_token_ms": inter_token,
        "tokens_per_arrival": round(tokens / (len(gaps) + len(answers)), 2),
        "short": sum(answer.tokens < asked for answer in answers),
        "disturbed": int(bool(seen.get("disturbed"))),
        **{name: seen.get(name) for name in ("cached_share", "draft_acceptance", "tokens_per_step")},
    }


def _prefix_row(answers: Sequence[Answer], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of requests that share a prefix, which the first of them puts into the prefix cache.

    C(hit_rate) is the share of the tokens of later prompts that came from the cache, None if the engine does not count them.
    """
    share, later = seen.get("cached_share"), answers[1:]
    if not later:
        raise ValueError("only one request with the shared prefix was answered")
    return {
        "prompt_tokens": answers[0].prompt_tokens,
        "repeats": len(later),
        "hit_rate": None if share is None else round(min(1.0, share * len(answers) / len(later)), 4),
        "first_ttft_seconds": significant(answers[0].ttft),
        "ttft_seconds": spread([answer.ttft for answer in later]),
        "disturbed": int(bool(seen.get("disturbed"))),
    }


def _load_row(workload: Workload, result: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of several requests at once, or of so many a second."""
    done = check_completed(result)
    duration, rate = _number(result, "duration"), _number(result, "output_throughput")

    def pair(name: str) -> dict[str, float] | None:
        keys = {"median": f"median_{name}_ms", "p95": f"p95_{name}_ms"}
        if any(result.get(key) is None for key in keys.values()):
            return None
        return {part: round(_number(result, key), 2) for part, key in keys.items()}

    return {
        **({"request_rate": workload.rate} if workload.rate else {"concurrency": workload.level}),
        "client": "vllm",
        "requests": result["num_prompts"],
        "failed": result["num_prompts"] - done,
        "seconds": significant(duration),
        "prompt_tokens": round(_number(result, "total_input_tokens") / done),
        "output_tokens": round(_number(result, "total_output_tokens") / done),
        "output_tokens_per_second": significant(rate),
        "ttft_ms": pair("ttft"),
        "time_per_token_ms": pair("tpot"),
        "disturbed": bool(seen.get("disturbed")),
        "preemptions": seen.get("preemptions"),
    }


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


def significant(value: float) -> float:
    """Round to four digits that mean something."""
    return float(f"{value:.4g}")


def _median(values: Sequence[Any]) -> float | int | None:
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    median = statistics.median(measured)
    return int(median) if float(median).is_integer() else median


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
    return metrics.sums(text, COUNTERS)


def compare_counters(
    before: Mapping[str, Any], after: Mapping[str, Any], prompt_tokens: int | None, generated: int
) -> dict[str, Any]:
    """Judge a measurement by what the engine counted meanwhile.

    :param before: counters of the engine before the measurement, by name
    :param prompt_tokens: of the measurement's own requests, None if the chat template adds an unknown number
    :param generated: tokens of their answers
    :returns: C(disturbed) (other requests had more than a small share of its work), C(cached_share) (of the
        prompt tokens, those that came from the prefix cache) and others; None where the engine does not count it
    """

    def grown(name: str) -> float | None:
        old, new = before.get(name), after.get(name)
        return None if old is None or new is None or new < old else new - old

    made, prompts = grown("generation_tokens"), grown("prompt_tokens")
    foreign = None if made is None or prompts is None else made - generated
    if foreign is not None and prompts is not None and prompt_tokens is not None:
        foreign += prompts - prompt_tokens
    drafts, drafted, accepted = grown("drafts"), grown("draft_tokens"), grown("accepted_tokens")
    queries, hits = grown("cache_queries"), grown("cache_hits")
    return {
        "disturbed": foreign is not None and foreign > FOREIGN_SHARE * ((prompt_tokens or 0) + generated),
        "cached_share": round(hits / queries, 4) if queries and hits is not None else None,
        "draft_acceptance": round(accepted / drafted, 4) if drafted and accepted is not None else None,
        "tokens_per_step": round(1 + accepted / drafts, 3) if drafts and accepted is not None else None,
        "preemptions": grown("preemptions"),
    }


def gpu_under_load(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of the samples taken during the answers, and the highest temperature."""
    temperatures = [sample["temperature_c"] for sample in samples if sample["temperature_c"] is not None]
    return {
        "sm_clock_mhz": _median([sample["sm_clock_mhz"] for sample in samples]),
        "power_watts": _median([sample["power_watts"] for sample in samples]),
        "temperature_c": max(temperatures, default=None),
    }
