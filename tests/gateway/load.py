# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many streaming requests at a time at one gateway, each checked to the last token; needs nothing but Python.

    load.py URL --model NAME [--model NAME] [--key-file FILE] [--clients N] [--tokens N] [--seconds S | --until FILE]

Half of the clients keep their connection between requests, as people's programs do; a broken connection is a failure, whichever
fault it is. The last line on standard output is JSON: requests that succeeded, and what went wrong with each of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

LONGEST = 240.0
TEXTS = ("content", "reasoning_content", "reasoning")
"""Where a token may be, by server and version."""


class Failure(Exception):
    """A request that a client would have noticed."""


@dataclass
class Report:
    """What became of the requests."""

    good: int = 0
    under_way: int = 0
    most_under_way: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)


class Connection:
    """One client's connection: made when needed, kept where both sides want it."""

    def __init__(self, url: str, key: str, keep: bool) -> None:
        parts = urlsplit(url)
        self.host, self.port = str(parts.hostname), parts.port or 80
        self.key, self.keep = key, keep
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None

    async def ask(self, model: str, tokens: int) -> None:
        """One streaming request; raises unless every token and the end have come."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self.streams
        message = {"role": "user", "content": "Tell me a story."}
        body = json.dumps(
            {"model": model, "stream": True, "max_tokens": tokens, "ignore_eos": True, "messages": [message]}
        ).encode()
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            f"host: {self.host}:{self.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"connection: {'keep-alive' if self.keep else 'close'}",
            *([f"authorization: Bearer {self.key}"] if self.key else []),
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        status = (await reader.readline()).decode()
        if not status:
            raise Failure("the connection was closed before an answer")
        headers: dict[str, str] = {}
        while line := (await reader.readline()).decode().strip():
            name, _colon, value = line.partition(":")
            headers[name.lower()] = value.strip()
        text = (await self.body(reader, headers)).decode()
        if status.split()[1] != "200":
            raise Failure(f"HTTP {status.split()[1]}: {text[:300]}")
        check_stream(text, tokens)
        if not self.keep or headers.get("connection", "").lower() == "close":
            self.close()

    async def body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(headers.get("content-length", 0)))
        body_bytes = b""
        while True:
            size = int((await reader.readline()).strip() or b"-1", 16)
            if size < 0:
                raise Failure("the connection broke within the stream")
            part = await reader.readexactly(size + 2)
            if not size:
                return body_bytes
            body_bytes += part[:-2]


def check_stream(text: str, tokens: int) -> None:
    """Raise C(Failure) unless a stream has every token and its end."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        raise Failure(f"the stream ended early: {text[-300:]}")
    parts = [json.loads(event) for event in events[:-1]]
    wrong = [part["error"] for part in parts if "error" in part]
    if wrong:
        raise Failure(f"an error within the stream: {wrong[0]}")
    choices = [choice for part in parts for choice in part["choices"]]
    words = sum(any(choice["delta"].get(key) for key in TEXTS) for choice in choices)
    if words != tokens:
        raise Failure(f"{words} tokens instead of {tokens}")
    if not any(choice.get("finish_reason") for choice in choices):
        raise Failure("the stream has no finish_reason")


async def client(connection: Connection, model: str, tokens: int, go_on: asyncio.Event, report: Report) -> None:
    while go_on.is_set():
        begin = time.monotonic()
        report.under_way += 1
        report.most_under_way = max(report.most_under_way, report.under_way)
        try:
            await asyncio.wait_for(connection.ask(model, tokens), LONGEST)
            report.good += 1
        except (Failure, OSError, EOFError, ValueError, TimeoutError, asyncio.TimeoutError) as error:
            report.failures.append(f"{time.strftime('%H:%M:%S')} {model}: {error or type(error).__name__}")
            connection.close()
            await asyncio.sleep(0.5)
        finally:
            report.under_way -= 1
            report.slowest = max(report.slowest, time.monotonic() - begin)
    connection.close()


async def run(options: argparse.Namespace) -> Report:
    report, go_on = Report(), asyncio.Event()
    go_on.set()
    key = Path(options.key_file).read_text(encoding="utf-8").strip() if options.key_file else ""
    tasks = []
    for number in range(options.clients):
        connection = Connection(options.url, key, keep=number % 2 == 0)
        model = options.model[number % len(options.model)]
        tasks.append(asyncio.create_task(client(connection, model, options.tokens, go_on, report)))
        if number % 20 == 19:
            await asyncio.sleep(0.05)
    begin = time.monotonic()
    print("under way", flush=True)
    while time.monotonic() - begin < options.seconds and not (options.until and Path(options.until).exists()):
        await asyncio.sleep(0.1)
    go_on.clear()
    await asyncio.gather(*tasks)
    return report


def main(values: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Streaming requests at a gateway, each checked to the last token.")
    parser.add_argument("url")
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--key-file")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--until", help="stop when this file is there, at the latest after --seconds")
    report = asyncio.run(run(parser.parse_args(values)))
    print(
        json.dumps(
            {
                "good": report.good,
                "failed": len(report.failures),
                "most_under_way": report.most_under_way,
                "slowest_seconds": round(report.slowest, 1),
                "failures": report.failures[:10],
            }
        )
    )
    return 1 if report.failures or not report.good else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
