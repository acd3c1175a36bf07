# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readiness of an OpenAI-compatible server, in stages.

/health answering 200 says little: vLLM keeps answering it with a dead scheduler, or when the other node of a pair
is gone. Ready means that a real request came back with tokens, on the path of users' requests. That first request also
compiles the kernels, so it is better made here than by a person.

Stages: health -> models -> completion -> adapters -> tools -> reasoning (the last three only when asked for).

Answers of servers are foreign data: a C(Problem) and the result of C(wait_ready) hold printable texts alone. Units run
this file, so it is copied to hosts unchanged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._common.foreign_text import received
from .answer_checks import GARBAGE_FIX, PARSER_FIX, REPEATS, calls_of, cosine, garbage, is_figure, wrong_vectors
from .engine_client import (
    MAX_TEXT,
    Client,
    Problem,
    entries_of,
    first_choice,
    first_way,
    one_token,
    read_api_key,
    seconds,
)

STAGES = ("health", "models", "completion", "adapters", "tools", "reasoning")

# Most tokens of an answer to the tool and reasoning checks: models that think spend a thousand and more before they call a tool.
CHECK_TOKENS = 4096
# Tokens of a check's prompt, including the tool and the text of a chat template.
CHECK_PROMPT_TOKENS = 1024

SAME_THING = ("The cat sleeps on the warm sofa.", "A cat is asleep on a warm couch.")
OTHER_THING = "Quarterly tax returns are due at the end of April."
QUESTION = "Where does the cat sleep?"
POOLING_FIX = "the engine computes wrong, or the model is read as another kind than it is: see runner, convert and hf-overrides of its recipe"

DEFAULT_PROMPT = "Say hello and name three colours."

# One 500 can be a hiccup of the first compile; the same answer three times in a row will not change by waiting.
MAX_SERVER_ERRORS = 3


# Below this many tokens the decode rate says more about the clock than about the engine.
MIN_TOKENS_FOR_RATE = 4
MIN_SECONDS_FOR_RATE = 0.002
"""A whole answer within a shorter time came from a buffer, not as the engine decoded it."""


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """Return a tool whose parameters are texts, in OpenAI's form."""
    properties = {key: {"type": "string", "description": about} for key, about in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER_TOOL = _tool("get_weather", "Get the current weather in a city.", city="Name of the city")
_PATH = "Path below the repository"
AGENT_TOOLS = [
    _tool("list_files", "List the files of a folder.", path=_PATH),
    _tool("search_code", "Search the repository for a text.", text="Text to find"),
    _tool("read_file", "Read a file.", path=_PATH, first_line="First line", last_line="Last line"),
    _tool("write_file", "Replace a file.", path=_PATH, content="New content"),
    _tool("apply_patch", "Apply a unified diff.", patch="The diff"),
    _tool("delete_file", "Delete a file.", path=_PATH),
    _tool("run_tests", "Run the tests of a file.", path=_PATH),
    _tool("run_command", "Run a shell command.", command="The command"),
    _tool("git_log", "Show the last commits of a file.", path=_PATH),
    _tool("search_web", "Search the web.", query="What to search for"),
    _tool("fetch_page", "Fetch a web page.", url="Address of the page"),
    WEATHER_TOOL,
]
"""Tools of an agent's conversation: many, so that their descriptions fill blocks of the prefix cache."""
AGENT_TASK = (
    "A test of parse_port fails. Use one tool in each step: first search_code for parse_port, then read_file on the file that it is in, "
    "then run_tests on its test. Report only after the tests have run."
)
AGENT_RESULTS = {
    "search_code": '[{"path": "src/net/ports.py", "line": 12, "text": "def parse_port(text):"}]',
    "read_file": "def parse_port(text):\n    return int(text)\n\n# tested by tests/net/test_ports.py",
    "run_tests": '{"path": "tests/net/test_ports.py", "passed": 3, "failed": 0}',
}
AGENT_TURNS = 3
AGENT_TOKENS = 2048
"""Most tokens of a turn; a longer one ends the conversation and is no evidence about the engine."""
AGENT_SECONDS = 240.0
"""The whole conversation; a slow engine has fewer turns."""
AGENT_PROMPT_TOKENS = 4096
"""Context that the tools and results of the conversation take with room for a chat template; shorter contexts are not asked."""


SPEED = ("ttft_seconds", "decode_tokens_per_second", "completion_tokens")
"""Figures that only answers with tokens have."""


def pooled(elapsed: float, reply: str) -> dict[str, Any]:
    """Return the figures of an answer without tokens. elapsed: seconds."""
    return {"seconds": round(elapsed, 3), **dict.fromkeys(SPEED), "reply": reply, "text": ""}


def blank_figures(model: str | None) -> dict[str, Any]:
    """Return the facts about a server before it has answered."""
    facts = ("max_model_len", "server_version", "api", "warmup_seconds", *SPEED, "reply", "tool_turns")
    return {"model": model, **dict.fromkeys(facts)}


@dataclass(frozen=True)
class Requests:
    """The requests that a server has to answer before it counts as ready.

    timeout: seconds of each small request. completion_timeout: seconds of each wait on tokens; the first ones come only after the
    kernels are compiled, so it is long, and an attempt that times out is made again until the deadline. tools, reasoning: whether a
    tool call and the reasoning split are checked. check_tokens, check_temperature: most tokens and sampling temperature of their
    answers. agent: whether a conversation with many tools follows the first call.
    adapters: names of LoRA adapters that have to be served and to answer. measure: make a second, warm request for the
    figures, and judge whether its text is garbage.
    """

    timeout: float = 10.0
    completion_timeout: float = 300.0
    prompt: str = DEFAULT_PROMPT
    max_tokens: int = 64
    tools: bool = False
    agent: bool = True
    reasoning: bool = False
    check_tokens: int = CHECK_TOKENS
    check_temperature: float = 0.0
    adapters: tuple[str, ...] = ()
    measure: bool = True

    @property
    def stages(self) -> list[str]:
        """The stages to pass, in order, each a method of C(Readiness)."""
        optional = {"adapters": self.adapters, "tools": self.tools, "reasoning": self.reasoning}
        return ["health", "models", "completion", *(stage for stage, is_requested in optional.items() if is_requested)]


@dataclass
class _Stream:
    """The text of a streamed answer so far, with the times of its pieces."""

    first: float | None = None
    last: float | None = None
    chunks: int = 0
    tokens: int | None = None
    text: str = ""

    def add(self, piece: str, usage: Any, clock: Callable[[], float]) -> None:
        """Add an event. usage: counted tokens, or None."""
        if piece:
            self.last = clock()
            self.first = self.first if self.first is not None else self.last
            self.chunks += 1
            self.text += piece
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self.tokens = usage["completion_tokens"]


class Readiness:
    """One wait for one server; C(wait_ready) is the way in."""

    def __init__(
        self,
        client: Client,
        model: str | None,
        requests: Requests,
        remaining: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.client, self.model, self.requests = client, model, requests
        self.remaining, self.clock = remaining, clock
        self.attempts = 0
        self.tokens_asked_at: float | None = None
        self.facts = blank_figures(model)

    def _short(self) -> float:
        return min(self.requests.timeout, max(self.remaining(), 0.1))

    def _long(self) -> float:
        return min(self.requests.completion_timeout, max(self.remaining(), 0.1))

    def health(self) -> None:
        """Pass when the server answers; a server without /health is judged by the next stages."""
        status, raw = self.client.call("GET", "/health", timeout=self._short())
        if status not in (200, 204, 404):
            raise self.client.status_problem(status, raw, "/health")

    def models(self) -> None:
        """Pass when the requested name is served; note the context length and the version."""
        answer = self.client.request_json("GET", "/v1/models", timeout=self._short())
        served = {str(entry["id"]): entry for entry in entries_of(answer, "data") if "id" in entry}
        if not served:
            raise Problem("the server lists no model yet", "see the unit's log")
        if self.model is None:
            self.model = next(iter(served))
        if self.model not in served:
            names = ", ".join(sorted(served))
            raise Problem(
                f"the server serves {names}, not {self.model}",
                f"another server may use port {self.client.port}, or --served-model-name is not the name asked for",
                True,
            )
        length = served[self.model].get("max_model_len")
        self.facts["model"] = self.model
        self.facts["max_model_len"] = length if isinstance(length, int) else None
        try:
            version = self.client.request_json("GET", "/version", timeout=self._short()).get("version")
            self.facts["server_version"] = version if isinstance(version, str) else None
        except Problem:
            pass  # not every OpenAI-compatible server has /version

    def completion(self) -> None:
        """Pass when a streamed request came back whole, with tokens. The first one warms up, the second is measured."""
        self.attempts += 1
        if self.tokens_asked_at is None:
            self.tokens_asked_at = self.clock()
        warmup = self._completion_once()
        self.facts["warmup_seconds"] = warmup["seconds"]
        figures = self._completion_once() if self.requests.measure else warmup
        # A unit does not judge (it measures nothing): a restart does not correct the image, and takes a quarter of an hour.
        # Vectors and scores are judged by their own checks.
        judged = self.requests.measure and self.facts["api"] in ("chat", "completions")
        wrong = garbage(figures["text"], self.facts["api"] == "chat") if judged else ""
        if wrong:
            raise Problem(
                f"the answer is garbage, {wrong}: {figures['reply'][:60]!r}", GARBAGE_FIX, kind="http", status=500
            )
        for name in (*SPEED, "reply"):
            self.facts[name] = figures[name]

    def _completion_once(self) -> dict[str, Any]:
        prompt = self.requests.prompt
        chat = {"messages": [{"role": "user", "content": prompt}]}
        ways = {
            "chat": lambda: self._measured("/v1/chat/completions", chat),
            "completions": lambda: self._measured("/v1/completions", {"prompt": prompt}),
            "embeddings": self._embed,
            "rerank": self._rerank,
        }
        try:
            figures, self.facts["api"] = first_way(ways, self.facts["api"])
            return figures
        except Problem as problem:
            if problem.kind == "timeout":
                raise self._name_the_hang(problem) from problem
            raise

    def _embed(self) -> dict[str, Any]:
        """Ask for vectors of three texts; the two with the same meaning have to be the nearer ones."""
        start = self.clock()
        texts = [*SAME_THING, OTHER_THING]
        body = {"model": self.model, "input": texts}
        answer = self.client.request_json("POST", "/v1/embeddings", body, self._long())
        vectors: list[Any] = [entry.get("embedding") for entry in entries_of(answer, "data")]
        wrong = wrong_vectors(vectors, len(texts))
        near, far = (0.0, 0.0) if wrong else (cosine(vectors[0], other) for other in vectors[1:])
        if wrong or near <= far:
            wrong = wrong or f"two texts of the same meaning are no nearer ({near:.3f}) than one of another ({far:.3f})"
            raise Problem(f"the embeddings are wrong: {wrong}", POOLING_FIX, kind="http", status=500)
        reply = f"vectors of {len(vectors[0])} numbers, {near:.3f} alike for the same meaning, {far:.3f} for another"
        return pooled(self.clock() - start, reply)

    def _rerank(self) -> dict[str, Any]:
        """Ask which of two documents answers a question; that document has to come first."""
        start = self.clock()
        body = {"model": self.model, "query": QUESTION, "documents": [OTHER_THING, SAME_THING[1]]}
        answer = self.client.request_json("POST", "/v1/rerank", body, self._long())
        scores: dict[int, Any] = {
            entry["index"]: entry["relevance_score"]
            for entry in entries_of(answer, "results")
            if isinstance(entry.get("index"), int) and is_figure(entry.get("relevance_score"))
        }
        wrong = "not one score for each document" if set(scores) != {0, 1} else ""
        if not wrong and scores[1] <= scores[0]:
            wrong = f"the document that answers has {scores[1]:.3f}, another {scores[0]:.3f}"
        if wrong:
            raise Problem(f"the scores are wrong: {wrong}", POOLING_FIX, kind="http", status=500)
        reply = f"{scores[1]:.3f} for the document that answers, {scores[0]:.3f} for another"
        return pooled(self.clock() - start, reply)

    def _name_the_hang(self, problem: Problem) -> Problem:
        try:
            status, _body = self.client.call("GET", "/health", timeout=min(self.requests.timeout, 10.0))
        except Problem as health:
            return Problem(
                f"{problem.message}, and /health fails now too: {health.message}", health.fix, kind="timeout"
            )
        if status != 200:
            return Problem(f"{problem.message}, and /health answers HTTP {status} now", problem.fix, kind="timeout")
        waited = self.clock() - (self.tokens_asked_at or self.clock())
        if waited < self.requests.completion_timeout:
            return Problem(
                f"the time ran out {seconds(waited)} into the first completion, with /health still 200",
                "give more time: the first completion may be compiling kernels",
                kind="timeout",
            )
        return Problem(
            f"the engine is wedged: /health answers 200, but no completion came back in {seconds(waited)} "
            f"(requests made: {self.attempts}; the last: {problem.message})",
            "restart the unit; if it comes back wedged, look in its log for a compile that never ends or a lost peer",
            kind="timeout",
        )

    def _measured(self, path: str, prompt: dict[str, Any]) -> dict[str, Any]:
        options = {"max_tokens": self.requests.max_tokens, "temperature": 0, "stream_options": {"include_usage": True}}
        body = {"model": self.model, **prompt, "stream": True, **options}
        start = self.clock()
        stream = _Stream()
        try:
            for event in self.client.events(path, body, self._long()):
                stream.add(_piece(event), event.get("usage"), self.clock)
                if self.remaining() <= 0:
                    raise Problem(
                        f"the answer was still going on at the deadline ({stream.chunks} pieces so far)",
                        "give more time, or see why the engine is this slow",
                        kind="answer",
                    )
        except Problem as problem:
            if problem.kind in ("timeout", "broken") and stream.chunks:
                problem.message = f"{problem.message}, after {stream.chunks} pieces of the answer"
            raise
        tokens = stream.tokens
        if stream.first is None or stream.last is None:
            # If token 0 is a special token, the wrong tokens of an engine do not appear in the text.
            message, fix = "a single token", "see the unit's log; check the chat template of the model"
            if tokens is not None and tokens >= REPEATS:
                message, fix = f"a text, after {tokens} tokens that none is made of", GARBAGE_FIX
            raise Problem(f"{path} ended without {message}", fix, kind="http", status=500)
        count = tokens if tokens is not None else stream.chunks
        rate = None
        if count >= MIN_TOKENS_FOR_RATE and stream.last - stream.first >= MIN_SECONDS_FOR_RATE:
            rate = round((count - 1) / (stream.last - stream.first), 2)
        return {
            "seconds": round(self.clock() - start, 3),
            "ttft_seconds": round(stream.first - start, 3),
            "decode_tokens_per_second": rate,
            "completion_tokens": count,
            "reply": self.client.redact(stream.text)[:MAX_TEXT],
            "text": stream.text,
        }

    def _chat(self, body: dict[str, Any], most: int = 0, time_limit: float = math.inf) -> dict[str, Any]:
        """Ask for a chat answer and return its first choice. most: tokens, 0 for the checks' limit. time_limit: seconds."""
        most = most or self.requests.check_tokens
        if self.facts["max_model_len"]:
            # vLLM refuses a request whose prompt and answer could be longer than the context.
            most = min(most, max(self.facts["max_model_len"] - CHECK_PROMPT_TOKENS, self.facts["max_model_len"] // 2))
        request = {"model": self.model, "temperature": self.requests.check_temperature, "max_tokens": most, **body}
        # An engine that decodes 10 tokens a second or more gets to the end of it.
        timeout = min(max(self.requests.completion_timeout, most / 10), max(self.remaining(), 0.1), time_limit)
        answer = self.client.request_json("POST", "/v1/chat/completions", request, timeout=timeout)
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise Problem(
                "the chat answer has no choices[0].message", "check that the server is OpenAI-compatible", True
            )
        return choice

    def _ended_by_length(self, missing: str) -> Problem:
        """Return the verdict on a truncated answer, which is no evidence about parsers and templates."""
        length = self.facts["max_model_len"]
        short = length and length - CHECK_PROMPT_TOKENS < self.requests.check_tokens
        return Problem(
            f"the answer was ended by length before {missing}: {self.requests.check_tokens} tokens at most"
            + (f", less in a context of {length}" if short else ""),
            "raise max-model-len, so that the model can finish its thought"
            if short
            else "raise checks.max_tokens of the recipe or the service; a model that repeats itself needs another checks.temperature",
            True,
            kind="length",
        )

    def adapters(self) -> None:
        """Pass when every LoRA adapter is served under its name and makes a token."""
        answer = self.client.request_json("GET", "/v1/models", timeout=self._short())
        served = {str(entry.get("id")) for entry in entries_of(answer, "data")}
        missing = sorted(set(self.requests.adapters) - served)
        if missing:
            raise Problem(
                f"the server does not list {', '.join(missing)}: it serves {', '.join(sorted(served))}",
                "see the unit's log for the adapter that it could not load; its rank may be above lora.max_rank",
                True,
            )
        for name in self.requests.adapters:
            try:
                one_token(self.client, name, self._long())
            except Problem as problem:
                problem.message = f"adapter {name}: {problem.message}"
                raise

    def tools(self) -> None:
        """Pass when an offered tool is called in OpenAI's form, not as text."""
        messages = [{"role": "user", "content": "What is the weather in Paris now? Use the tool."}]
        try:
            choice = self._chat({"messages": messages, "tools": [WEATHER_TOOL], "tool_choice": "auto"})
        except Problem as problem:
            if problem.kind == "http" and "tool" in problem.message.lower():
                problem.fix = "set enable-auto-tool-choice and the tool-call-parser of this model"
            raise
        if choice.get("finish_reason") == "length":
            raise self._ended_by_length("a tool was called")
        calls = calls_of(choice, ("get_weather",))
        if not calls:
            content = str(choice["message"].get("content") or "")
            seen = f"as plain text: {content[:120]!r}" if content else "and said nothing"
            raise Problem(f"the model did not call the offered tool, it answered {seen}", PARSER_FIX, True)
        self.facts["tool_turns"] = self._agent_turns() if self.requests.agent else None

    def _agent_turns(self) -> int | None:
        """Lead a conversation of several turns with many tools, as agents do.

        :returns: the number of turns that ended in a call; None if the context is too short
        :raises Problem: for a call that arrives damaged; a model that stops calling, or is too slow, ends the conversation
        """
        length = self.facts["max_model_len"]
        if length and length < AGENT_PROMPT_TOKENS + AGENT_TOKENS:
            return None
        messages: list[dict[str, Any]] = [{"role": "user", "content": AGENT_TASK}]
        names = [tool["function"]["name"] for tool in AGENT_TOOLS]
        end = self.clock() + AGENT_SECONDS
        for turn in range(AGENT_TURNS):
            seconds_left = end - self.clock()
            if seconds_left <= 0:
                return turn
            body = {"messages": messages, "tools": AGENT_TOOLS, "tool_choice": "auto"}
            try:
                choice = self._chat(body, min(AGENT_TOKENS, self.requests.check_tokens), seconds_left)
                calls = calls_of(choice, names)
            except Problem as problem:
                if problem.kind == "timeout":
                    return turn
                problem.message = f"turn {turn + 1} of a conversation with {len(names)} tools: {problem.message}"
                raise
            if not calls:
                return turn
            content = choice["message"].get("content") or ""
            messages.append({"role": "assistant", "content": content, "tool_calls": calls})
            for call in calls:
                result = AGENT_RESULTS.get(call["function"]["name"], "done")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return AGENT_TURNS

    def reasoning(self) -> None:
        """Pass when the thinking comes in its own field and not inside the content."""
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 17 + 25? Think first."}]}
        try:
            # The switches that templates know: Qwen and Gemma use the first, DeepSeek the second.
            choice = self._chat({**body, "chat_template_kwargs": {"enable_thinking": True, "thinking": True}})
        except Problem as problem:
            if problem.kind != "http" or problem.status != 400:
                raise
            choice = self._chat(body)  # Mistral's tokenizers refuse template arguments
        message = choice["message"]
        # vLLM renamed the field; old versions say reasoning_content, new ones reasoning.
        thought = message.get("reasoning") or message.get("reasoning_content")
        content = str(message.get("content") or "")
        fix = "set the reasoning-parser of this model"
        if "<think>" in content or "</think>" in content:
            raise Problem("the thinking of the model is inside the content (<think> tags)", fix, True)
        if not thought:
            if choice.get("finish_reason") == "length" and not content:
                raise self._ended_by_length("it had any text")
            raise Problem(
                "the answer has no reasoning: neither 'reasoning' nor 'reasoning_content' is set",
                fix + ", or leave this check out for a model that does not think",
                True,
            )


def _piece(event: dict[str, Any]) -> str:
    """Return the text of an event of a chat or of a plain completion."""
    choice = first_choice(event)
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return "".join(str(delta.get(name) or "") for name in ("reasoning", "reasoning_content", "content"))
    return str(choice.get("text") or "")


def call_a_tool(client: Client, model: str, timeout: float) -> None:
    """Pass when a model calls an offered tool in OpenAI's form, also through a gateway. timeout: seconds of the one request.

    Raises Problem with the answer that came instead; C(kind) C(answer) or C(length) if there was an answer.
    """
    requests = Requests(completion_timeout=timeout, agent=False)
    Readiness(client, model, requests, lambda: timeout, time.monotonic).tools()


@dataclass
class _Attempts:
    """How long, and how often, a stage is tried."""

    timeout: float  # s
    interval: float  # s
    start: float  # of the clock
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    alive: Callable[[], str | None]
    on_event: Callable[[str, str], None]
    answered: bool = False  # in a stage before

    def remaining(self) -> float:
        """Seconds to the deadline."""
        return self.timeout - (self.clock() - self.start)

    def _why_gone(self, last: Problem | None) -> Problem | None:
        """Return the problem of a server that will never answer, or None. last: problem of the attempt before."""
        # A server that has just answered is alive.
        reason = None if self.answered and last is None else self.alive()
        seen = f"; last seen: {last.message}" if last else ""
        return Problem(f"{reason}{seen}", "see the log of the engine for why it ended") if reason else None

    def last_problem(self, stage: str, ask: Callable[[], None]) -> Problem | None:
        """Try a stage until it is passed; return None then, else the problem that ends the wait."""
        self.on_event(stage, "waiting")
        last: Problem | None = None
        server_errors = 0
        while True:
            gone = self._why_gone(last)
            if gone:
                return gone
            try:
                ask()
                self.answered = True
                return None
            except Problem as problem:
                failed_inside = problem.kind == "http" and problem.status == 500 and stage not in ("health", "models")
                server_errors = server_errors + 1 if failed_inside else 0
                if last is None or last.message != problem.message:
                    self.on_event(stage, problem.message)
                last = problem
            if last.final or server_errors >= MAX_SERVER_ERRORS or self.interval == math.inf:
                return last
            if self.remaining() <= self.interval:  # a shorter last attempt would only blur the observation
                return Problem(f"not ready after {seconds(self.timeout)}: {last.message}", last.fix)
            self.sleep(self.interval)


def wait_ready(
    url: str,
    model: str | None = None,
    requests: Requests | None = None,
    *,
    api_key_file: str | None = None,
    timeout: float = 600.0,
    interval: float = 2.0,
    alive: Callable[[], str | None] | None = None,
    on_event: Callable[[str, str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    waited: float = 0.0,
) -> dict[str, Any]:
    """Wait until a server is ready, stage by stage; no behaviour of the server raises an exception.

    :param url: of the server, without /v1
    :param model: the served name that must be there; None takes the first one listed
    :param requests: the requests to make; the defaults if left out
    :param api_key_file: file with the key; the key is in no result and no message
    :param timeout: seconds for all stages together
    :param interval: seconds between two attempts; infinite for a single one
    :param alive: called before the first attempt, and after each failed one; returns why the server is gone for good, or None
    :param on_event: called with stage and text when a stage begins or the observation changes
    :param waited: seconds of earlier waits, which count
    :returns: C({ready, stage, elapsed_seconds, warmup_seconds, ttft_seconds, decode_tokens_per_second, completion_tokens,
        reply, tool_turns, api: one of APIS or None, model, max_model_len, server_version, checks: {health, models, completion, tools,
        reasoning: true|false|None}, and adapters if requested, error, fix}). stage: the last one, or the one it is stuck in. error: empty when ready.
    """
    start, requests = clock() - waited, requests or Requests()
    checks: dict[str, bool | None] = {stage: None for stage in STAGES if stage != "adapters" or requests.adapters}
    facts, stage = blank_figures(model), "health"
    failed: Problem | None = None
    try:
        client = Client(url, read_api_key(api_key_file), api_key_file or "")
    except Problem as problem:
        failed = problem
    else:
        tries = _Attempts(
            timeout, interval, start, clock, sleep, alive or (lambda: None), on_event or (lambda *_text: None)
        )
        run = Readiness(client, model, requests, tries.remaining, clock)
        facts = run.facts
        for stage in requests.stages:
            failed = tries.last_problem(stage, getattr(run, stage))
            checks[stage] = not failed
            if failed:
                break
    result: dict[str, Any] = {
        "ready": failed is None,
        "stage": stage,
        "elapsed_seconds": round(clock() - start, 2),
        **facts,
        "checks": checks,
        "error": failed.message if failed else "",
        "fix": failed.fix if failed else "",
    }
    return dict(received(result))
