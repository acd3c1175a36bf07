# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the speed of an engine in seconds: one stream, several streams with different prompts, and one long prompt.

Tokens are counted by C(usage), which vLLM sends with each piece of a stream: pieces are no tokens, since a step of a drafter yields several in
one. Prompts differ from their first word, so that no prefix cache answers them and that they touch different experts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from .._runtime import metrics
from .._runtime.engine_client import Client, Problem
from .._speed.judge import MOST_STREAMS, OUTPUT_TOKENS, PREFILL_TOKENS, Measured

PART_SECONDS = 15.0
"""Of each part; what was counted by then gives the rate."""
SMALL_REQUEST_SECONDS = 10.0
STEADY_TOKENS = 8
"""Tokens of a stream before its rate counts: kernels of a new batch size may be compiled during the first ones."""
LEAST_TOKENS = 4
"""Fewer tokens of a stream give no rate."""
IDLE_SECONDS = 5.0
"""How long other requests may take to end."""
LEAST_CONTEXT = 512
FOREIGN_SHARE = 0.1
"""Tolerated tokens of other requests, as a share of the measured ones."""
ABORT_TOKENS = 8
"""Tokens that an engine may still generate for a stream that was broken off."""
LOAD_SECONDS = 1.0
"""After the start of several streams; then the clock of the GPU is that of a busy one."""
COUNTERS = {
    **metrics.COUNTERS,
    **metrics.REQUESTS,
    "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
}
"""Our name -> names of vLLM."""
_TOKENS_PER_CHARACTER = 0.2
"""Of usual vocabularies; the prompt of one stream shows it for smaller ones, and has some tokens more for its random start."""
_RANDOM_START = 0.8
_SUBJECTS = (
    "lighthouses", "sorting networks", "bread", "the moons of Jupiter", "tax law", "beekeeping", "tunnels", "Baroque music",
    "glaciers", "type systems", "football", "vaccines", "silk", "railway signals", "volcanoes", "chess", "coral reefs", "violins",
    "probability", "wine", "steam engines", "whales", "poetry", "bridges", "hormones", "maps", "bicycles", "opera", "enzymes",
    "rice", "satellites", "pottery",
)  # fmt: skip
_FORMS = (
    "Chapter 1 of a textbook about {0} begins with their history.",
    "def main():\n    # A program about {0}, with tests for each function.",
    "Dear editor, your article about {0} contains three mistakes.",
    "Question: what should a beginner know about {0}? Answer:",
    "The old captain told us everything that he knew about {0}.",
)


class Unmeasured(Exception):
    """The reason why a figure was not measured."""


@dataclass
class _Stream:
    """A stream: times and token counts of its pieces, and tokens of its prompt. counted: C(usage) came before the end."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    total: int = 0
    prompt: int = 0
    counted: bool = False

    def add(self, event: dict[str, Any], now: float) -> None:
        """Add an event of the stream."""
        usage = event.get("usage")
        if isinstance(usage, dict):
            tokens, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
            self.total = tokens if isinstance(tokens, int) else self.total
            self.prompt = prompt if isinstance(prompt, int) else self.prompt
        if event.get("choices"):
            self.counted = self.counted or isinstance(usage, dict)
            self.times.append(now)
            self.counts.append(self.total)

    def reached(self, tokens: int) -> float:
        """Return the time of the piece that completes a number of tokens."""
        return next((time for time, count in zip(self.times, self.counts) if count >= tokens), float("inf"))

    def count_at(self, moment: float) -> int:
        """Return the tokens that had come by a moment."""
        return max((count for time, count in zip(self.times, self.counts) if time <= moment), default=0)


@dataclass(frozen=True)
class Probe:
    """A measurement to make. neighbours: other engines on the same memory bus. clock: returns the GPU clock in MHz, None if unknown.

    prefill_tokens: length of the long prompt, at most half of the context.
    """

    client: Client
    model: str
    streams: int
    max_model_len: int | None
    neighbours: Sequence[Client] = ()
    clock: Callable[[], float | None] = lambda: None
    prefill_tokens: int = PREFILL_TOKENS

    def measure(self) -> Measured:
        """Return the measurement; C(missing) has the reason for each missing figure."""
        try:
            if self.max_model_len is not None and self.max_model_len < LEAST_CONTEXT:
                raise Unmeasured(f"its context of {self.max_model_len} tokens has no room for a measurement")
            before = self._refuse_busy()
            measured, generated = self._parts()
            foreign = self._generated() - before - generated
        except (Problem, Unmeasured) as reason:
            return Measured(missing=getattr(reason, "message", str(reason)))
        if generated and foreign > max(FOREIGN_SHARE * generated, ABORT_TOKENS * (1 + measured.streams)):
            return Measured(missing=f"other requests ran meanwhile ({foreign:.0f} tokens of {foreign + generated:.0f})")
        return measured

    def _parts(self) -> tuple[Measured, int]:
        """Return the measurement, and how many tokens were generated for it."""
        drafts = [_counters(self.client)]
        streams = self._run(1, OUTPUT_TOKENS)
        drafts.append(_counters(self.client))
        measured = Measured(single=_rate(streams), single_tokens_per_step=_tokens_per_step(*drafts))
        missing = [] if measured.single else [_why_no_rate(streams)]
        count = min(self.streams, MOST_STREAMS)
        if count > 1:
            with ThreadPoolExecutor(max_workers=1) as watcher:
                clock = watcher.submit(self._clock_under_load)
                several = self._run(count, OUTPUT_TOKENS // 2)
                measured = replace(measured, several=_rate(several), streams=count, clock_mhz=clock.result())
            drafts.append(_counters(self.client))
            measured = replace(measured, several_tokens_per_step=_tokens_per_step(*drafts[1:]))
            missing += [] if measured.several else [_why_no_rate(several)]
            streams += several
        measured = replace(measured, tokens_per_step=_tokens_per_step(drafts[0], drafts[-1]))
        prefill, tokens, reason = self._prefill(streams[0].prompt / len(_prompt(_nonce(), 0)))
        measured = replace(measured, prefill=prefill, prompt_tokens=tokens)
        missing += [reason] if reason else []
        generated = sum(stream.total for stream in streams)
        return replace(measured, missing="; ".join(dict.fromkeys(missing))), generated

    def _prefill(self, tokens_per_character: float) -> tuple[float | None, int | None, str]:
        """Return tokens per second of a long prompt and its tokens, or the reason without one. tokens_per_character: of a short prompt."""
        length = min(self.prefill_tokens, (self.max_model_len or self.prefill_tokens * 2) // 2)
        characters = int(length / max(_TOKENS_PER_CHARACTER, _RANDOM_START * tokens_per_character))
        began = time.monotonic()
        try:
            (prompt,) = self._run(1, 1, characters)
        except Problem as problem:
            return None, None, problem.message
        if prompt.times and prompt.prompt:
            return round(prompt.prompt / (prompt.times[0] - began), 1), prompt.prompt, ""
        return None, None, f"the first token of a prompt of about {length} tokens took longer than {PART_SECONDS:g} s"

    def _clock_under_load(self) -> float | None:
        time.sleep(LOAD_SECONDS)
        return self.clock()

    def _run(self, streams: int, tokens: int, characters: int = 0) -> list[_Stream]:
        """Run streams at once. tokens: of each answer. characters: of a long prompt, 0 for short and different ones."""
        nonce = _nonce()
        until = time.monotonic() + PART_SECONDS
        prompts = [_long_prompt(nonce, characters) if characters else _prompt(nonce, index) for index in range(streams)]
        with ThreadPoolExecutor(max_workers=streams) as pool:
            return list(pool.map(lambda prompt: self._stream(prompt, tokens, until), prompts))

    def _stream(self, prompt: str, tokens: int, until: float) -> _Stream:
        """Read one stream to its end, or until the time is over."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"model": self.model, "prompt": prompt, "stream": True, "stream_options": options}
        body.update(max_tokens=tokens, temperature=0, ignore_eos=True)
        stream = _Stream()
        with closing(self.client.events("/v1/completions", body, PART_SECONDS)) as events:
            try:
                for event in events:
                    stream.add(event, time.monotonic())
                    if time.monotonic() > until:
                        break
            except Problem as problem:
                if problem.kind != "timeout":
                    raise
        return stream

    # What the engine counts ----------------------------------------------------------------------------------------

    def _refuse_busy(self) -> float:
        """Return the tokens that all engines have generated; raise Unmeasured if one of them goes on serving requests."""
        until = time.monotonic() + IDLE_SECONDS
        for client in (self.client, *self.neighbours):
            running = _running(client)
            while running and time.monotonic() < until:
                time.sleep(1.0)
                running = _running(client)
            if running:
                raise Unmeasured(f"{client.url} serves {running:.0f} requests of others")
        return self._generated()

    def _generated(self) -> float:
        return sum(_counters(client).get("generation_tokens") or 0 for client in (self.client, *self.neighbours))


def _counters(client: Client) -> dict[str, float | None]:
    """Return the counters of an engine; empty without metrics."""
    with suppress(Problem):
        status, text = client.metrics(SMALL_REQUEST_SECONDS)
        return metrics.sums(text, COUNTERS) if status == 200 else {}
    return {}


def _running(client: Client) -> float:
    figures = _counters(client)
    return (figures.get("requests_running") or 0) + (figures.get("requests_waiting") or 0)


def _tokens_per_step(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> float | None:
    """Return the tokens that a step with drafts yielded between two moments, None without any."""
    drafts, accepted = ((after.get(name) or 0) - (before.get(name) or 0) for name in ("drafts", "accepted"))
    return (
        round(1 + accepted / drafts, 3) if drafts > 0 and after.get("accepted") is not None and accepted >= 0 else None
    )


def _prompt(nonce: str, index: int) -> str:
    subject, form = _SUBJECTS[index % len(_SUBJECTS)], _FORMS[index % len(_FORMS)]
    return f"{index}-{nonce} {form.format(subject)}"


def _long_prompt(nonce: str, characters: int) -> str:
    """Return a prompt of so many characters."""
    words = [word for subject in _SUBJECTS for word in subject.split()]
    count = characters // 4
    text = " ".join(words[(index * 7 + index // len(words)) % len(words)] for index in range(count))
    return f"{nonce} {text}"[:characters]


def _nonce() -> str:
    """Return the random start of prompts, so that no prefix cache has them."""
    return uuid.uuid4().hex[:8]


def _rate(streams: Sequence[_Stream]) -> float | None:
    """Return the tokens per second of one stream while all of them ran, None if they did not run at once or were not counted."""
    if any(not stream.counted or stream.total < LEAST_TOKENS or len(stream.times) < 2 for stream in streams):
        return None
    begin = max(stream.reached(min(STEADY_TOKENS, stream.total // 2)) for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    if end <= begin:
        return None
    tokens = sum(stream.count_at(end) - stream.count_at(begin) for stream in streams)
    return round(tokens / (end - begin) / len(streams), 2) if tokens else None


def _why_no_rate(streams: Sequence[_Stream]) -> str:
    least = min(stream.total for stream in streams)
    where = "one stream" if len(streams) == 1 else f"{len(streams)} streams"
    if not all(stream.counted for stream in streams):
        return f"{where}: the server does not count tokens while it sends them"
    if least < LEAST_TOKENS:
        return f"{where}: {least} tokens were counted in {PART_SECONDS:g} s, too few for a rate"
    return f"{where}: they did not run at once"
