# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Further workloads of a benchmark: answers of a certain content, a shared system prompt, a rate of requests.

A drafter guesses code better than prose, so one decode rate does not describe a service with a drafter. A prefix cache only helps
requests that share a system prompt, so its hit rate is measured with such requests. And users do not wait for one another: a
rate of requests shows from which rate on they queue.

Pure functions; C(plugins/modules/service_bench.py) makes the requests.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from . import benchmark

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

PREFIX_TOKENS = 64
"""Length of the answers to requests with a shared prompt, of which only the first token is measured."""
QUESTIONS = (
    "Which of the notes mentions water?",
    "Which of the notes mentions a clock?",
    "Which of the notes mentions food?",
    "Which of the notes mentions a building?",
    "Which of the notes mentions an animal?",
)
WARM_AT_ONCE = 4
"""Warm-up requests before a rate is measured."""
MOST_AT_ONCE = 256
"""Most requests in flight of the own client at a rate; more than an engine of a Spark takes at once."""


def messages(task: Mapping[str, Any], nonce: str) -> list[dict[str, str]]:
    """Return the messages of one request.

    :param task: C(content) is one of C(CONTENTS); C(prefix) is the beginning of a shared system prompt, with C(number) of
        the request; without both, a plain prompt of C(characters) and C(seed)
    :param nonce: beginning of an unshared prompt, different for each request
    :returns: messages in OpenAI's form
    """
    if task.get("content"):
        return [{"role": "user", "content": f"Run {nonce}. {CONTENTS[str(task['content'])][1]}"}]
    size, seed = int(task["characters"]), str(task["seed"])
    if task.get("prefix"):
        question = QUESTIONS[int(task.get("number") or 0) % len(QUESTIONS)]
        return [
            {"role": "system", "content": benchmark.prompt(size, str(task["prefix"]), seed)},
            {"role": "user", "content": f"Run {nonce}. {question}"},
        ]
    return [{"role": "user", "content": benchmark.prompt(size, nonce, seed)}]


def fitting(settings: Mapping[str, Any], max_model_len: int | None) -> tuple[list[str], int, list[str]]:
    """Return the contents and the length of a shared prompt that fit into the context, and the excluded ones in words.

    :param settings: C(contents) and C(prefix_tokens) of C(spark_bench) with every default
    :param max_model_len: tokens of the context, None if unknown
    :returns: contents, tokens of the shared prompt (0 for none), and a line for each excluded one
    """
    contents, prefix_tokens = list(settings["contents"]), int(settings["prefix_tokens"])
    if max_model_len is None:
        return contents, prefix_tokens, []
    room = max_model_len - 4 * benchmark.MARGIN  # for a chat template and the request itself
    fit = [name for name in contents if CONTENTS[name][0] <= room]
    left_out = [f"content {name}: the context is {max_model_len}" for name in contents if name not in fit]
    if prefix_tokens and prefix_tokens * 1.05 > room - PREFIX_TOKENS:
        left_out.append(f"a shared system prompt of {prefix_tokens} tokens: the context is {max_model_len}")
        prefix_tokens = 0
    return fit, prefix_tokens, left_out


def content_row(content: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of one content: its name and C(benchmark.single_row). runs: its counted answers."""
    return {"content": content, **benchmark.single_row(int(runs[0]["prompt_tokens"] or 0), runs)}


def prefix_row(first: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of requests that share a system prompt.

    :param first: figures of the first request with the prompt
    :param later: figures of the following requests
    :returns: C(prompt_tokens), C(repeats), C(hit_rate) (share of the tokens of later prompts that came from the
        cache; None if the engine does not count them), C(first_ttft_seconds), C(ttft_seconds) of later ones, and
        C(disturbed)
    """
    rates = [(run.get("seen") or {}).get("cached_share") for run in later]
    measured = [rate for rate in rates if rate is not None]
    return {
        "prompt_tokens": int(first["prompt_tokens"] or 0),
        "repeats": len(later),
        "hit_rate": round(sum(measured) / len(measured), 4) if measured else None,
        "first_ttft_seconds": None if first["ttft_seconds"] is None else benchmark.significant(first["ttft_seconds"]),
        "ttft_seconds": benchmark.spread([run["ttft_seconds"] for run in later]),
        "disturbed": sum(1 for run in [first, *later] if (run.get("seen") or {}).get("disturbed")),
    }


def arrivals(rate: float, requests: int, seed: str) -> list[float]:
    """Return when requests of independent users begin, in seconds from the first: gaps of a Poisson process.

    :param rate: requests a second, on average
    :param requests: how many
    :param seed: the same seed gives the same moments
    :returns: rising numbers that begin with 0
    """
    order = random.Random(f"{seed}/{rate}/{requests}")
    moments, now = [], 0.0
    for _request in range(requests):
        moments.append(now)
        now += order.expovariate(rate)
    return moments


def in_steps(rate: float, requests: int, seconds: float) -> int:
    """Return the number of requests that begin within half of the remaining time, at least one.

    :param rate: requests a second
    :param requests: upper limit
    :param seconds: remaining time
    :returns: requests
    """
    return max(1, min(requests, int(rate * seconds / 2)))
