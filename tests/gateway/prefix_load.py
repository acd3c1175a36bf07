# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversations that grow with each turn, several at a time, at a gateway or an engine; and what the prefix caches of engines made of them."""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WORDS = ("harbour", "mill", "quarry", "orchard", "station", "market", "library", "workshop", "garden", "bridge")


def first_token(url: str, key: str, model: str, messages: list[dict[str, str]]) -> float:
    """Return the seconds until the first token of an answer."""
    body = {"model": model, "messages": messages, "max_tokens": 4, "stream": True, "temperature": 0}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    began, first = time.monotonic(), 0.0
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            delta = json.loads(line[6:])["choices"][:1] if line.startswith(b"data: {") else []
            if delta and delta[0]["delta"].get("content") and not first:
                first = time.monotonic() - began
    return first or time.monotonic() - began


def talk(
    url: str, key: str, model: str, conversations: int, turns: int, clients: int, characters: int, seed: int
) -> list[float]:
    """Lead conversations with a common system prompt; returns the seconds to the first token of all turns but the first ones.

    :param url: of a gateway or an engine
    :param key: for it
    :param model: name to ask for
    :param conversations: number of them
    :param turns: of each; each adds so many characters
    :param clients: requests at a time; the next turn of a conversation comes after that of the others
    :param characters: of a turn
    :param seed: another seed is another text
    """
    dice = random.Random(seed)

    def text(count: int) -> str:
        return " ".join(dice.choice(WORDS) for _ in range(count // 8))

    system = {"role": "system", "content": f"Run {seed}. {text(characters)}"}
    threads: list[list[dict[str, str]]] = [[system] for _ in range(conversations)]
    seconds: list[float] = []
    with ThreadPoolExecutor(max_workers=clients) as pool:
        for turn in range(turns):
            for number, messages in enumerate(threads):
                messages.append({"role": "user", "content": f"{number}.{turn}: {text(characters)}"})
            order = dice.sample(threads, conversations)
            taken = list(pool.map(lambda messages: first_token(url, key, model, messages), order))
            seconds += taken if turn else []
            for messages in threads:
                messages.append({"role": "assistant", "content": "word word word word"})
    return seconds


def counted(urls: list[str]) -> tuple[float, float]:
    """Return queries and hits of the prefix caches of some engines, in tokens or blocks, together."""
    sums = {"queries": 0.0, "hits": 0.0}
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for name in sums:
            values = re.findall(rf"^vllm:prefix_cache_{name}(?:_total)?\{{[^}}]*\}} ([0-9.e+]+)$", text, re.MULTILINE)
            sums[name] += sum(map(float, values))
    return sums["queries"], sums["hits"]


def measure(url: str, engines: list[str], key: str, model: str, seed: int, **load: int) -> dict[str, Any]:
    """Return the hit rate and the first tokens of one load."""
    before = counted(engines)
    seconds = talk(url, key, model, seed=seed, **load)
    queries, hits = (now - then for now, then in zip(counted(engines), before))
    return {
        "hit_rate": round(hits / queries, 3),
        "first_token_median": round(statistics.median(seconds), 3),
        "first_token_mean": round(statistics.mean(seconds), 3),
        "turns": len(seconds),
    }


if __name__ == "__main__":
    print(
        json.dumps(
            measure(
                sys.argv[1],
                sys.argv[4:],
                sys.argv[2],
                sys.argv[3],
                int(time.time()),
                conversations=6,
                turns=5,
                clients=3,
                characters=1500,
            )
        )
    )
