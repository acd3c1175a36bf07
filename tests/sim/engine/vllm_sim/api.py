# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP side: health, models, completions (plain, streamed, with tools, with reasoning) and metrics."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import ledger
from .arguments import version_tuple

REPLY = ["Hello", " from", " the", " simulated", " engine", "."]
THOUGHT = ["The", " user", " asked", ",", " a", " short", " answer", " will", " do", "."]
SECONDS_PER_TOKEN = 0.002
LONG_PROMPT, LONG_ANSWER = 200, 300  # in tokens
BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.total += value
        for index, edge in enumerate((*BUCKETS, float("inf"))):
            if value <= edge:
                self.counts[index] += 1


@dataclass
class State:
    """What the server knows and counts."""

    names: list[str]
    root: str
    version: str
    keys: list[str]
    max_model_len: int
    kv_tokens: int
    tools: bool
    reasoning: bool
    wedged: bool
    degenerates_after: int | None
    values: dict[str, Any]
    alive: bool = True
    started: float = field(default_factory=time.time)
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    blocks: set[str] = field(default_factory=set)
    generated: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    first_token: Histogram = field(default_factory=Histogram)
    between: Histogram = field(default_factory=Histogram)
    end_to_end: Histogram = field(default_factory=Histogram)

    def is_degenerate(self) -> bool:
        """Whether it has answered so many requests that long prompts and long answers are garbage (SPARK_SIM_DEGENERATES_AFTER)."""
        return self.degenerates_after is not None and sum(self.finished.values()) >= self.degenerates_after

    def is_wedged(self) -> bool:
        """Wedged from the start, or since `spark-sim wedge NAME`: the next token never comes, as long as this process lives."""
        if not self.wedged:
            marker = ledger.ROOT / "wedge" / self.names[0]
            try:
                stays = marker.read_text().strip() == "stay"  # then the next engine of this name wedges too
                if not stays:
                    marker.unlink(missing_ok=True)
                self.wedged = True
            except OSError:
                return False
            print(f"SIMULATED: {self.names[0]} is wedged from now on", flush=True)
        return True

    @property
    def reasoning_fields(self) -> list[str]:
        """The name of the field changed between versions."""
        version = version_tuple(self.version)
        return ["reasoning"] if version >= (0, 16) else ["reasoning", "reasoning_content"]

    def metrics(self) -> str:
        name = self.names[0]
        labels = f'engine="0",model_name="{name}"'
        lines: list[str] = []

        def family(metric: str, kind: str, text: str, rows: list[tuple[str, float]]) -> None:
            lines.append(f"# HELP vllm:{metric} {text}")
            lines.append(f"# TYPE vllm:{metric} {kind}")
            lines.extend(f"vllm:{metric}{{{extra}}} {value}" for extra, value in rows)

        with self.lock:
            used = min(1.0, self.running * 16 / max(self.kv_tokens, 16))
            family(
                "num_requests_running",
                "gauge",
                "Number of requests in model execution batches.",
                [(labels, float(self.running))],
            )
            family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", [(labels, 0.0)])
            family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", [(labels, used)])
            family(
                "prefix_cache_queries_total", "counter", "Prefix cache queries.", [(labels, float(self.prompt_tokens))]
            )
            family("prefix_cache_hits_total", "counter", "Prefix cache hits.", [(labels, float(self.cached_tokens))])
            family("num_preemptions_total", "counter", "Cumulative number of preemptions.", [(labels, 0.0)])
            family(
                "prompt_tokens_total",
                "counter",
                "Number of prefill tokens processed.",
                [(labels, float(self.prompt_tokens))],
            )
            family(
                "generation_tokens_total",
                "counter",
                "Number of generation tokens processed.",
                [(labels, float(self.generated))],
            )
            lines.append("# TYPE vllm:iteration_tokens_total histogram")
            lines.append(f"vllm:iteration_tokens_total_count{{{labels}}} {float(self.generated)}")
            rows = [
                (f'engine="0",finished_reason="{reason}",model_name="{name}"', float(n))
                for reason, n in self.finished.items()
            ]
            family("request_success_total", "counter", "Count of successfully processed requests.", rows)
            if self.values.get("speculative_config"):
                for metric in (
                    "spec_decode_num_drafts",
                    "spec_decode_num_draft_tokens",
                    "spec_decode_num_accepted_tokens",
                ):
                    family(f"{metric}_total", "counter", "Speculative decoding.", [(labels, float(self.generated))])
            config = f'block_size="16",engine="0",kv_cache_size_tokens="{self.kv_tokens}",num_gpu_blocks="{self.kv_tokens // 16}"'
            family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", [(config, 1.0)])
            for metric, histogram in (
                ("time_to_first_token_seconds", self.first_token),
                ("inter_token_latency_seconds", self.between),
                ("e2e_request_latency_seconds", self.end_to_end),
            ):
                lines.append(f"# HELP vllm:{metric} Histogram of {metric}.")
                lines.append(f"# TYPE vllm:{metric} histogram")
                edges = [*(str(edge) for edge in BUCKETS), "+Inf"]
                for edge, count in zip(edges, histogram.counts):
                    lines.append(f'vllm:{metric}_bucket{{engine="0",le="{edge}",model_name="{name}"}} {float(count)}')
                lines.append(f"vllm:{metric}_count{{{labels}}} {float(histogram.counts[-1])}")
                lines.append(f"vllm:{metric}_sum{{{labels}}} {histogram.total}")
        lines.append("# TYPE process_start_time_seconds gauge")
        lines.append(f"process_start_time_seconds {self.started}")
        return "\n".join(lines) + "\n"


class BadRequest(Exception):
    def __init__(self, message: str, kind: str = "BadRequestError", code: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        self.code = code


def sample(schema: dict[str, Any]) -> Any:
    """A value that fits a JSON schema of a tool's parameters."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        names = schema.get("required") or list(schema.get("properties", {}))
        return {name: sample(schema.get("properties", {}).get(name, {})) for name in names}
    return {"integer": 1, "number": 1.0, "boolean": True, "array": []}.get(str(kind), "Paris")


@dataclass
class Answer:
    """What a request gets: pieces of reasoning, of text, or one tool call."""

    reasoning: list[str]
    text: list[str]
    call: dict[str, Any] | None
    finish: str
    prompt_tokens: int
    cached_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        return len(self.reasoning) + len(self.text) + (12 if self.call else 0)

    def usage(self, generated: int | None = None) -> dict[str, int]:
        count = self.completion_tokens if generated is None else generated
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self.prompt_tokens + count,
        }


def words_of(value: Any) -> int:
    return max(1, len(json.dumps(value).split()))


def cached(state: State, prompt: Any) -> int:
    """Return the tokens of a prompt that the prefix cache has: whole blocks of 16, each known by all that stands before it."""
    if state.values.get("enable_prefix_caching") is False:
        return 0
    words, hits, seen = json.dumps(prompt).split(), 0, ""
    with state.lock:
        for begin in range(0, len(words) - 15, 16):
            seen = hashlib.sha256((seen + " ".join(words[begin : begin + 16])).encode()).hexdigest()
            hits += 16 if seen in state.blocks else 0
            state.blocks.add(seen)
    return hits


def next_tool(tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the tool to call: the next of those that the user names and that no answer has called, else the first once."""
    functions = [tool["function"] for tool in tools]
    task = " ".join(str(message.get("content")) for message in messages if message.get("role") == "user")
    called = {call["function"]["name"] for message in messages for call in message.get("tool_calls") or []}
    named = sorted(
        (function for function in functions if function["name"] in task),
        key=lambda function: task.index(function["name"]),
    )
    uncalled = [function for function in named if function["name"] not in called]
    return uncalled[0] if uncalled else None if messages[-1].get("role") == "tool" else functions[0]


def answer(state: State, body: dict[str, Any], chat: bool) -> Answer:
    """Decide the reply to a request, or raise BadRequest as vLLM would."""
    prompt = body.get("messages") if chat else body.get("prompt")
    if prompt is None or (chat and (not isinstance(prompt, list) or not prompt)):
        field_name = "messages" if chat else "prompt"
        raise BadRequest(f"[{{'type': 'missing', 'loc': ('body', '{field_name}'), 'msg': 'Field required'}}]")
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or (None if chat else 16)
    tokens = words_of(prompt)
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequest(f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    if tokens + int(limit or 1) > state.max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {state.max_model_len} tokens. However, you requested {limit or 1} output tokens "
            f"and your prompt contains {tokens} input tokens. Please reduce the length of the messages or completion."
        )
    tools = body.get("tools") if chat else None
    choice = body.get("tool_choice", "auto" if tools else "none")
    call = None
    if tools and choice != "none":
        if choice == "auto" and not state.tools:
            raise BadRequest('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        if choice in ("auto", "required"):
            call = next_tool(tools, prompt)
        elif isinstance(choice, dict):
            named = choice.get("function", {}).get("name")
            call = next((tool["function"] for tool in tools if tool["function"]["name"] == named), None)
            if call is None:
                raise BadRequest(f"The tool {named} specified in tool_choice does not match any of the specified tools")
    reasoning: list[str] = []
    thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
    if chat and state.reasoning and thinking:
        reasoning = list(THOUGHT)
    text = [] if call else reply_of(state, prompt, tokens, limit)
    if body.get("ignore_eos") or body.get("min_tokens"):
        least = int(limit or 16) if body.get("ignore_eos") else int(body["min_tokens"])
        while len(reasoning) + len(text) < least:
            text.append(REPLY[len(text) % len(REPLY)])
    finish = "tool_calls" if call else "stop"
    if limit is not None and not call and len(reasoning) + len(text) > limit:
        reasoning = reasoning[:limit]
        text = text[: limit - len(reasoning)]
        finish = "length"
    return Answer(reasoning, text, call, finish, tokens, cached(state, prompt))


def reply_of(state: State, prompt: Any, tokens: int, limit: int | None) -> list[str]:
    """Return the text of an answer: to the questions that the agent asks of a serving engine, and to all others."""
    asked = json.dumps(prompt)
    is_long = tokens > LONG_PROMPT or (limit or 0) > LONG_ANSWER
    code = re.search(r"The code of the vault is (\S+)\.\\n", asked)
    if is_long and state.is_degenerate():
        return ["!"] * int(limit or 16)
    if code:
        return [f" {code[1]}"]
    return [f" word{number}" for number in range(200)] if "Write a story of" in asked else list(REPLY)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        code = args[1] if len(args) > 1 else ""
        print(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {code}', flush=True)

    def reply(self, code: int, body: Any, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self) -> bool:
        keys = self.server.state.keys
        if not keys or not self.path.startswith("/v1"):
            return True
        scheme, _, token = (self.headers.get("authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and token in keys:
            return True
        self.drain()
        self.reply(401, {"error": "Unauthorized"})
        return False

    def drain(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def do_GET(self) -> None:
        state = self.server.state
        if not self.allowed():
            return
        path = self.path.partition("?")[0]
        if path in ("/health", "/ping"):
            self.reply(200 if state.alive else 503, "")
        elif path == "/version":
            self.reply(200, {"version": state.version})
        elif path == "/load":
            self.reply(200, {"server_load": state.running})
        elif path == "/metrics":
            self.reply(200, state.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/v1/models":
            data = [
                {"id": name, "object": "model", "created": int(state.started), "owned_by": "vllm", "root": state.root,
                 "parent": None, "max_model_len": state.max_model_len}
                for name in state.names
            ]  # fmt: skip
            self.reply(200, {"object": "list", "data": data})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        state = self.server.state
        if not self.allowed():
            return
        path = self.path.partition("?")[0]
        raw = self.drain()
        if path == "/ping":
            self.reply(200 if state.alive else 503, "")
            return
        if path not in ("/v1/chat/completions", "/v1/completions"):
            self.reply(404, {"detail": "Not Found"})
            return
        try:
            body = json.loads(raw or b"{}")
            if not isinstance(body, dict):
                raise ValueError
        except ValueError:
            self.reply(400, BadRequest("[{'type': 'json_invalid', 'loc': ('body',), 'msg': 'JSON decode error'}]").body)
            return
        model = body.get("model") or state.names[0]
        chat = path == "/v1/chat/completions"
        try:
            if model not in state.names:
                raise BadRequest(f"The model `{model}` does not exist.", "NotFoundError", 404, "model")
            result = answer(state, body, chat)
        except BadRequest as error:
            self.reply(error.code, error.body)
            return
        if not state.alive:
            self.reply(500, BadRequest("EngineCore encountered an issue.", "InternalServerError", 500).body)
            return
        with state.lock:
            state.running += 1
        try:
            if state.is_wedged():
                self.wait_for_client()
                return
            self.generate(body, model, chat, result)
        except (BrokenPipeError, ConnectionResetError):
            with state.lock:
                state.finished["abort"] += 1
        finally:
            with state.lock:
                # The engine counts them: the figures of a wedged engine do not change any more.
                state.running -= not state.wedged

    def wait_for_client(self) -> None:
        """A wedged engine: the request runs for ever, no token comes. Ends when the client gives up."""
        while True:
            try:
                self.connection.settimeout(1)
                if not self.connection.recv(1, socket.MSG_PEEK):
                    self.close_connection = True
                    return
                time.sleep(1)
            except TimeoutError:
                continue
            except OSError:
                self.close_connection = True
                return

    def pieces(self, result: Answer) -> Iterator[tuple[str, str]]:
        """Reasoning and text, at the pace of a decoder."""
        state = self.server.state
        begin = last = time.monotonic()
        for kind, items in (("reasoning", result.reasoning), ("text", result.text)):
            for item in items:
                time.sleep(SECONDS_PER_TOKEN)
                if state.is_wedged():
                    self.wait_for_client()
                    raise ConnectionResetError
                now = time.monotonic()
                with state.lock:
                    state.prompt_tokens += result.prompt_tokens if last == begin else 0
                    state.cached_tokens += result.cached_tokens if last == begin else 0
                    (state.first_token if last == begin else state.between).add(now - last)
                    state.generated += 1
                last = now
                yield kind, item
        if result.call and state.is_wedged():
            self.wait_for_client()
            raise ConnectionResetError
        with state.lock:
            if result.call:
                state.prompt_tokens += result.prompt_tokens if last == begin else 0
                state.generated += 12
            state.finished["length" if result.finish == "length" else "stop"] += 1
            state.end_to_end.add(time.monotonic() - begin)

    def generate(self, body: dict[str, Any], model: str, chat: bool, result: Answer) -> None:
        state = self.server.state
        prefix = "chatcmpl-" if chat else "cmpl-"
        base = {"id": prefix + uuid.uuid4().hex, "created": int(time.time()), "model": model}
        call = None
        if result.call:
            arguments = json.dumps(sample(result.call.get("parameters") or {"type": "object"}))
            function = {"name": result.call["name"], "arguments": arguments}
            call = {"id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function", "function": function}
        if body.get("stream"):
            self.stream(base, body, chat, result, call)
            return
        for _ in self.pieces(result):
            pass
        text = "".join(result.text)
        logprobs = None
        if chat and body.get("logprobs"):
            logprobs = {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in result.text]}
        if chat:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": text if text else None,
                "tool_calls": [call] if call else [],
            }
            for name in state.reasoning_fields:
                message[name] = "".join(result.reasoning) or None
            choice: dict[str, Any] = {
                "index": 0,
                "message": message,
                "logprobs": logprobs,
                "finish_reason": result.finish,
            }
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": result.finish, "stop_reason": None}
        kind = "chat.completion" if chat else "text_completion"
        self.reply(200, {**base, "object": kind, "choices": [choice], "usage": result.usage()})

    def stream(
        self, base: dict[str, Any], body: dict[str, Any], chat: bool, result: Answer, call: dict[str, Any] | None
    ) -> None:
        options = body.get("stream_options") or {}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        kind = "chat.completion.chunk" if chat else "text_completion"
        sent = 0

        def event(data: Any) -> None:
            text = data if isinstance(data, str) else json.dumps(data)
            self.wfile.write(f"data: {text}\n\n".encode())
            self.wfile.flush()

        def chunk(delta: dict[str, Any], finish: str | None = None) -> None:
            part: dict[str, Any] = {"delta": delta} if chat else {"text": delta.get("content", "")}
            data = {
                **base,
                "object": kind,
                "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": finish}],
            }
            if options.get("continuous_usage_stats"):
                data["usage"] = result.usage(sent)
            event(data)

        if chat:
            chunk({"role": "assistant", "content": ""})
        for kind_of_text, item in self.pieces(result):
            sent += 1
            if kind_of_text == "reasoning":
                chunk(dict.fromkeys(self.server.state.reasoning_fields, item))
            else:
                chunk({"content": item})
        if call:
            head = {"index": 0, "id": call["id"], "type": "function", "function": {"name": call["function"]["name"]}}
            chunk({"tool_calls": [head]})
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": call["function"]["arguments"]}}]})
        chunk({"content": ""}, result.finish)
        if options.get("include_usage"):
            event({**base, "object": kind, "choices": [], "usage": result.usage()})
        event("[DONE]")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], state: State) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.state = state
        super().__init__(address, Handler)
