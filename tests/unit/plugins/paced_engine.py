# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of completions whose speed is set: steps per second by streams, tokens of a step, prefill."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class PacedEngine:
    """steps: per second of one stream. slowdown: of all streams by each further stream. prefill: prompt tokens per second.

    accepted: tokens of a step, sent as one piece; accepted_together: of each of several streams, 0 for as many.
    counts: C(each) piece has usage, only the C(end), or C(none). first_seconds: more for the first batch, as a compilation takes.
    most: streams that run at once; others wait. foreign: tokens of others while a request runs. context: with it each character of a prompt
    is a token, and prompts of more tokens are refused as by vLLM; 0: each word is a token.
    """

    steps: float = 400.0
    slowdown: float = 0.0
    prefill: float = 20000.0
    accepted: int = 1
    accepted_together: int = 0
    drafts: bool = False
    counts: str = "each"
    most: int = 64
    running: int = 0
    foreign: int = 0
    status: int = 200
    generated: int = 0
    steps_done: int = 0
    context: int = 0
    prompts: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock, self.places = threading.Lock(), threading.Semaphore(self.most)
        self.active = 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                engine.get(self)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with engine.places:
                    engine.post(self, body)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/v1/models":
            text = json.dumps({"data": [{"id": "heavy", "max_model_len": 8192}]})
        elif handler.path == "/metrics":
            counters = {"num_requests_running": self.running, "generation_tokens_total": self.generated}
            if self.drafts:
                accepted = self.generated - self.steps_done
                counters.update(spec_decode_num_drafts_total=self.steps_done)
                counters.update(spec_decode_num_draft_tokens_total=3 * self.steps_done)
                counters.update(spec_decode_num_accepted_tokens_total=accepted)
            text = "".join(f'vllm:{name}{{engine="0"}} {float(value)}\n' for name, value in counters.items())
        else:
            text = "{}"
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(text.encode())

    def post(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        chat = handler.path.endswith("/chat/completions")
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        tokens = len(prompt) if self.context else len(prompt.split())
        status = 400 if tokens > self.context > 0 else self.status
        handler.send_response(status)
        handler.end_headers()
        if status != 200:
            message = (
                "no such path"
                if self.status != 200
                else f"This model's maximum context length is {self.context} tokens."
            )
            handler.wfile.write(json.dumps({"error": {"message": message}}).encode())
            return
        with self.lock:
            self.active += 1
            self.prompts.append(prompt)
            self.bodies.append(body)
        try:
            self.stream(handler, body, chat, tokens)
        except OSError:
            pass  # the client has what it wanted
        finally:
            with self.lock:
                self.active -= 1
                self.generated += self.foreign

    def stream(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], chat: bool, prompt: int) -> None:
        def send(data: Any) -> None:
            handler.wfile.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())

        time.sleep(prompt / self.prefill)
        sent, began, steps = 0, time.monotonic(), 0.0
        while sent < body["max_tokens"]:
            # By the clock, so that a busy machine that runs the tests does not slow the engine down.
            steps += 1 + self.slowdown * (self.active - 1)
            time.sleep(max(0.0, began + steps / self.steps - time.monotonic()))
            accepted = self.accepted_together if self.accepted_together and self.active > 1 else self.accepted
            tokens = min(accepted, body["max_tokens"] - sent)
            sent += tokens
            with self.lock:
                self.generated += tokens
                self.steps_done += 1
            text = f"word{sent} " * tokens
            piece: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            usage = {"usage": {"prompt_tokens": prompt, "completion_tokens": sent}} if self.counts == "each" else {}
            send({"choices": [piece], **usage})
        if self.counts != "none":
            send({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": sent}})
        send("[DONE]")
