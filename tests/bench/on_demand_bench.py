"""Time requests to an engine on demand: cold, warm, and against a direct connection; 64 streams at a time.

The program is the real one; the engine is a small server that gives events of a stream at a pace, and systemctl is played, so only the
relay between client and engine is measured. Run with PYTHONPATH=collections, or as `make bench-on-demand`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/unit"), str(ROOT / "tests/unit/plugins")]
LIMIT_MS, LIMIT_SHARE = 1.0, 0.02
LOAD_SECONDS = 2.0


async def stream(port: int, tokens: int, pace: float) -> tuple[float, float, int]:
    """One request on a separate connection: seconds to the first event, seconds in all, events."""
    body = json.dumps({"model": "org/a", "stream": True, "max_tokens": tokens, "pace": pace}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    first, text = 0.0, b""
    while piece := await reader.read(65536):
        text += piece
        first = first or (time.perf_counter() - began if b"data: {" in text else 0.0)
    took = time.perf_counter() - began
    writer.close()
    events = text.count(b"data: {")
    assert events == tokens, f"{events} of {tokens} events came"
    return first, took, events


async def together(port: int, streams: int, tokens: int, pace: float) -> float:
    """Events a second of so many streams at a time."""
    began = time.perf_counter()
    results = await asyncio.gather(*(stream(port, tokens, pace) for _stream in range(streams)))
    return sum(events for _first, _all, events in results) / (time.perf_counter() - began)


def processor(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    """The value below which so many lie."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def single(through: int, direct: int, count: int) -> float:
    """Time single requests in turns and print them; returns the milliseconds that the program adds."""
    times: dict[int, list[float]] = {through: [], direct: []}
    for number in range(2 * count):
        port = (through, direct)[number % 2]
        times[port].append(1000 * asyncio.run(stream(port, 1, 0.0))[0])
    for name, port in (("direct", direct), ("on demand", through)):
        shown = f"median {statistics.median(times[port]):6.2f} ms, 95 % {percentile(times[port], 0.95):6.2f} ms"
        print(f"warm, first token, {name:10}  {shown}   ({count} requests, one at a time)")
    return statistics.median(times[through]) - statistics.median(times[direct])


def throughput(through: int, direct: int, pid: int, args: argparse.Namespace) -> float:
    """Time streams in turns and print them; returns the share that is lost."""
    rates: dict[int, list[float]] = {through: [], direct: []}
    used = 0.0
    for _round in range(args.rounds):
        for port in (direct, through):
            before = processor(pid)
            rates[port].append(asyncio.run(together(port, args.streams, args.tokens, args.pace)))
            used += processor(pid) - before if port == through else 0.0
    for name, port in (("direct", direct), ("on demand", through)):
        shown = f"{statistics.median(rates[port]):8.0f} tokens/s"
        print(
            f"{args.streams} streams, {name:10}            {shown}   ({args.rounds} rounds of {args.tokens} tokens a stream)"
        )
    events = args.rounds * args.streams * args.tokens
    print(f"processor time of the program         {1e6 * used / events:8.1f} us a token")
    return 1 - statistics.median(rates[through]) / statistics.median(rates[direct])


def main() -> int:
    """Measure and print; fails where a target is missed."""
    parser = argparse.ArgumentParser(description="Time requests to an engine on demand.")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds between two tokens of a stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=300, help="single requests each way")
    args = parser.parse_args()
    from on_demand_fixture import Host

    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), "a", poll=2.0)
        try:
            host.options("a", load=LOAD_SECONDS)
            host.start()
            through, direct = host.sockets["a"].getsockname()[1], host.ports["a"]
            first, _all, _events = asyncio.run(stream(through, 1, 0.0))
            print(f"cold, first token                     {first:8.2f} s   ({LOAD_SECONDS:g} s of it the engine loads)")
            assert host.process is not None
            added = single(through, direct, args.count)
            lost = throughput(through, direct, host.process.pid, args)
        finally:
            host.close()
    print(f"the program adds {added:.2f} ms to a request (target: below {LIMIT_MS:g}), and takes {100 * lost:.1f} % of the "
          f"throughput (target: below {100 * LIMIT_SHARE:g})")  # fmt: skip
    return 0 if added < LIMIT_MS and lost < LIMIT_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
