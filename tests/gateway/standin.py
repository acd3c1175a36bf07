# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A backend for tests of the gateway: speaks as vLLM does, at a pace that is given, to hundreds of clients at a time.

standin.py PORT NAME [--pace SECONDS] [--key KEY] [--prefill SECONDS]

A prompt "prefill N" takes N seconds to its first token, in which nothing is sent, as of an engine that reads a long one. With --prefill, each
block of 256 characters that its prefix cache lacks takes so many seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from typing import Any


def prefill_seconds(body: dict[str, Any]) -> float:
    """Return the seconds until the first token of a prompt."""
    words = str((body.get("messages") or [{}])[-1].get("content") or "").split()
    return float(words[1]) if len(words) == 2 and words[0] == "prefill" else 0.0


BLOCK = 256


class Engine:
    def __init__(self, name: str, pace: float, key: str, prefill: float) -> None:
        self.name, self.pace, self.key, self.prefill = name, pace, key, prefill
        self.running = self.served = self.queries = self.hits = 0
        self.blocks: set[bytes] = set()

    def uncached(self, body: dict[str, Any]) -> int:
        """Return the blocks of a prompt that the cache lacks, and add them; a block is known with all that stands before it."""
        if not self.prefill:  # other tests send prompts of many MiB
            return 0
        text = "".join(f"{message.get('role')}: {message.get('content')}\n" for message in body.get("messages") or [])
        digest, begins = hashlib.sha256(), []
        for begin in range(0, len(text) - BLOCK + 1, BLOCK):
            digest.update(text[begin : begin + BLOCK].encode())
            begins.append(digest.digest())
        missing = [begin for begin in begins if begin not in self.blocks]
        self.blocks.update(missing)
        self.queries += len(begins)
        self.hits += len(begins) - len(missing)
        return len(missing)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await self.read(reader):
                await self.answer(*request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def read(self, reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes] | None:
        first = (await reader.readline()).decode().split()
        if len(first) < 2:
            return None
        headers = {}
        while line := (await reader.readline()).decode().strip():
            name, _colon, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return first[1], headers, await reader.readexactly(int(headers.get("content-length", 0)))

    async def send_once(
        self, writer: asyncio.StreamWriter, status: int, value: Any, kind: str = "application/json"
    ) -> None:
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async def answer(self, path: str, headers: dict[str, str], raw: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/metrics":
            labels = f'{{engine="0",model_name="{self.name}"}}'
            lines = [
                f"vllm:num_requests_running{labels} {float(self.running)}",
                f"vllm:num_requests_waiting{labels} 0.0",
                f"vllm:prefix_cache_queries_total{labels} {float(self.queries)}",
                f"vllm:prefix_cache_hits_total{labels} {float(self.hits)}",
            ]
            await self.send_once(writer, 200, "\n".join([*lines, f"standin_served {self.served}", ""]), "text/plain")
            return
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            await self.send_once(writer, 401, {"error": {"message": "Unauthorized"}})
            return
        if path == "/v1/models":
            await self.send_once(writer, 200, {"object": "list", "data": [{"id": self.name, "object": "model"}]})
            return
        body = json.loads(raw or b"{}")
        if path != "/v1/chat/completions" or body.get("model") != self.name:
            await self.send_once(writer, 404, {"error": {"message": f"no {path} for {body.get('model')}", "code": 404}})
            return
        self.running += 1
        try:
            await self.complete(body, writer)
            self.served += 1
        finally:
            self.running -= 1

    async def complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        tokens = int(body.get("max_tokens") or 16)
        await asyncio.sleep(prefill_seconds(body) + self.prefill * self.uncached(body))
        base = {"id": "chatcmpl-1", "created": int(time.time()), "model": self.name}
        if not body.get("stream"):
            await asyncio.sleep(self.pace * tokens)
            message = {"role": "assistant", "content": f"{self.name}" + " word" * (tokens - 1)}
            usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": tokens + 5}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            await self.send_once(
                writer, 200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
            return
        writer.write(b"HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": f" {self.name}{number}"} for number in range(tokens)]
        for delta in [*deltas, {}]:
            if delta.get("content"):
                await asyncio.sleep(self.pace)
            choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "length"}
            await self.event(writer, json.dumps({**base, "object": "chat.completion.chunk", "choices": [choice]}))
        await self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def event(self, writer: asyncio.StreamWriter, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()


async def serve(options: argparse.Namespace) -> None:
    engine = Engine(options.name, options.pace, options.key, options.prefill)
    server = await asyncio.start_server(engine.connection, "127.0.0.1", options.port, backlog=1024)
    async with server:
        await server.serve_forever()


def main(values: list[str]) -> int:
    parser = argparse.ArgumentParser(description="A backend for tests of the gateway.")
    parser.add_argument("port", type=int)
    parser.add_argument("name")
    parser.add_argument("--pace", type=float, default=0.1)
    parser.add_argument("--key", default="")
    parser.add_argument("--prefill", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args(values)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
