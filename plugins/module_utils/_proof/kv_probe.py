# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of C(kv_tiers): the first token of a long prompt, of the same after its eviction by others, and after a restart of the engine.

The receipt keeps the prompt, so the next proof finds out about restarts that happened meanwhile; none is made for it.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from .._common.findings import Finding
from .._runtime import metrics
from .._runtime.engine_client import Client, Problem
from .speed_probe import LEAST_CONTEXT, Unmeasured

PROMPT_TOKENS = 32768
PROMPT_SECONDS = 120.0
EVICTION_SECONDS = 90.0
"""Longer floods are left out; the restart shows as much."""
STORE_SECONDS = 5.0
"""Blocks are written to files behind the answer."""
FLOOD = 1.1
"""Tokens of other prompts, as a multiple of the KV cache."""
RESTORED_SHARE = 0.5
"""Of the prompt; fewer restored tokens are a finding."""
RESTORED = "vllm:external_prefix_cache_hits_total"
_SMALL_REQUEST_SECONDS = 10.0
_TOKEN_IDS = range(20, 250)
"""Bytes in usual vocabularies, never special tokens."""


@dataclass(frozen=True)
class Probe:
    """A measurement to make.

    most_tokens: that the buffer restores of a prompt, None if unknown. cache_tokens: size of the KV cache, None if unknown. start: names this
    start of the engine, empty if unknown.
    """

    client: Client
    model: str
    max_model_len: int | None
    most_tokens: int | None
    cache_tokens: float | None
    start: str

    def measure(self, previous: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the record for the receipt. previous: the record of the same deployment, None for none.

        C(tokens) and C(seed) describe the prompt, C(start) the engine that computed it. C(cold), C(evicted) and C(restarted) have C(seconds) to the
        first token and C(restored) tokens; C(missing) says why one is missing.
        """
        try:
            seed, tokens = (previous or {}).get("seed"), (previous or {}).get("tokens")
            if (
                previous
                and isinstance(seed, str)
                and isinstance(tokens, int)
                and isinstance(previous.get("cold"), dict)
            ):
                if not self.start or previous.get("start") == self.start:
                    return dict(previous)
                return {**previous, "start": self.start, "restarted": self._ask(seed, tokens)}
            return self._first()
        except (Problem, Unmeasured) as reason:
            return {**(previous or {}), "missing": getattr(reason, "message", str(reason))}

    def _first(self) -> dict[str, Any]:
        """Measure a new prompt, and the same after its eviction."""
        sizes = [PROMPT_TOKENS, (self.max_model_len or PROMPT_TOKENS * 2) // 2, self.most_tokens or PROMPT_TOKENS]
        tokens, seed = min(sizes), uuid.uuid4().hex
        if tokens < LEAST_CONTEXT:
            raise Unmeasured(f"a prompt of {tokens} tokens is too short for a measurement")
        record: dict[str, Any] = {"tokens": tokens, "seed": seed, "start": self.start, "cold": self._ask(seed, tokens)}
        if not self.cache_tokens:
            return {**record, "missing": "after eviction: the size of the KV cache is unknown"}
        rounds = int(FLOOD * self.cache_tokens / tokens) + 1
        expected = rounds * record["cold"]["seconds"]
        if expected > EVICTION_SECONDS:
            return {**record, "missing": f"after eviction: other prompts take {expected:.0f} s to evict it"}
        time.sleep(STORE_SECONDS)
        until = time.monotonic() + EVICTION_SECONDS
        for number in range(rounds):
            self._ask(f"{seed}-{number}", tokens)
            if time.monotonic() > until:
                return {**record, "missing": f"after eviction: other prompts took more than {EVICTION_SECONDS:g} s"}
        return {**record, "evicted": self._ask(seed, tokens)}

    def _ask(self, seed: str, tokens: int) -> dict[str, float]:
        """Return the seconds to the first token of a prompt, and how many of its tokens were restored."""
        before, began = self._restored(), time.monotonic()
        prompt = random.Random(seed).choices(_TOKEN_IDS, k=tokens)
        options = {"stream": True, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        body = {"model": self.model, "prompt": prompt, **options}
        seconds = 0.0
        with closing(self.client.events("/v1/completions", body, PROMPT_SECONDS)) as events:
            for _event in events:
                seconds = seconds or time.monotonic() - began
        if not seconds:
            raise Unmeasured("the engine ended a stream without a token")
        return {"seconds": round(seconds, 3), "restored": self._restored() - before}

    def _restored(self) -> float:
        with suppress(Problem):
            status, text = self.client.metrics(_SMALL_REQUEST_SECONDS)
            return sum(metrics.samples(text).get(RESTORED) or [0.0]) if status == 200 else 0.0
        return 0.0


MOMENTS = {"cold": "cold", "evicted": "after eviction", "restarted": "after a restart"}


def describe(record: Mapping[str, Any]) -> str:
    """Return a record in one line."""
    parts = []
    for moment, words in MOMENTS.items():
        if record.get(moment):
            restored = f" ({record[moment]['restored']:,.0f} tokens restored)" if moment != "cold" else ""
            parts.append(f"{words} {record[moment]['seconds']:.2f} s{restored}")
    figures = f"first token of a prompt of {record['tokens']:,} tokens: {', '.join(parts)}" if parts else ""
    missing = f"not measured: {record['missing']}" if record.get("missing") else ""
    return "; ".join(filter(None, (figures, missing)))


def findings(service: str, record: Mapping[str, Any]) -> list[Finding]:
    """Return a finding with the figures, a warning if a prompt was computed again or took as long as that."""
    cold = (record.get("cold") or {}).get("seconds")
    bad = [
        words
        for moment, words in MOMENTS.items()
        if moment != "cold" and record.get(moment) and cold is not None
        if record[moment]["restored"] < RESTORED_SHARE * record["tokens"] or record[moment]["seconds"] >= cold
    ]
    message = f"kv_tiers of {service}: {describe(record)}."
    fix = f"See the engine's log for its fs tier, and the free space of its folder; if it stays slow {' and '.join(bad)}, remove kv_tiers."
    severity, fix = ("warning", fix) if bad else ("info", "")
    return [Finding("kv_tiers.proof", severity, message, fix, service, basis="measured")]
