# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""C(vllm bench) of the stand-in: the options that benchmarks need, real requests of C(serve), and the result files of vLLM 0.32."""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import statistics
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .api import SECONDS_PER_TOKEN, words_of
from .model import ModelError, locate

BATCH = 64
SONNET_PROMPT = "Pick as many lines as you can from these poem lines:\n"


@dataclass
class Sample:
    """A prompt and the length of its answer."""

    prompt: str
    prompt_tokens: int
    output_tokens: int


@dataclass
class Output:
    """What came of a request."""

    prompt_tokens: int
    tokens: int = 0
    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    start: float = 0.0
    latency: float = 0.0
    error: str = ""


def messages(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": prompt}]}]


def words(generator: random.Random, count: int) -> list[str]:
    return [f"w{generator.randrange(10**6)}" for _number in range(count)]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("vllm bench serve")
    for name in ("--base-url", "--model", "--endpoint", "--tokenizer", "--result-dir", "--result-filename"):
        parser.add_argument(name, required=True)
    parser.add_argument("--backend", choices=("openai", "openai-chat"), default="openai")
    parser.add_argument("--dataset-name", choices=("random", "sharegpt"), default="random")
    parser.add_argument("--dataset-path", type=Path)
    for name, default in (
        ("--random-input-len", 1024), ("--random-output-len", 128), ("--random-prefix-len", 0),
        ("--sharegpt-output-len", 150), ("--num-prompts", 1000),
        ("--num-warmups", 0), ("--max-concurrency", 0), ("--seed", 0), ("--ready-check-timeout-sec", 0),
    ):  # fmt: skip
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--extra-body", type=json.loads, default={})
    parser.add_argument("--percentile-metrics", default="ttft,tpot,itl")
    parser.add_argument("--metric-percentiles", default="99")
    parser.add_argument("--tokenizer-mode")
    for name in ("--ignore-eos", "--disable-tqdm", "--save-result", "--save-detailed", "--trust-remote-code"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args(argv)


def samples(args: argparse.Namespace) -> list[Sample]:
    """Return the prompts of the dataset; a word is a token, as for the stand-in's server."""
    generator = random.Random(args.seed)
    if args.dataset_name == "sharegpt":
        prompts = [entry["conversations"][0]["value"] for entry in json.loads(args.dataset_path.read_text())]
        return [Sample(text, words_of(text), args.sharegpt_output_len) for text in prompts[: args.num_prompts]]
    prefix = words(generator, args.random_prefix_len)
    length = args.random_prefix_len + args.random_input_len
    return [
        Sample(" ".join([*prefix, *words(generator, args.random_input_len)]), length, args.random_output_len)
        for _number in range(args.num_prompts)
    ]


def ask(args: argparse.Namespace, sample: Sample) -> Output:
    """Make one streamed request."""
    limit = "max_completion_tokens" if args.backend == "openai-chat" else "max_tokens"
    body: dict[str, Any] = {"model": args.model, limit: sample.output_tokens, "stream": True}
    body.update(stream_options={"include_usage": True}, ignore_eos=args.ignore_eos, **args.extra_body)
    if args.backend == "openai-chat":
        body["messages"] = messages(sample.prompt)
    else:
        body["prompt"] = sample.prompt
    headers = {"Content-Type": "application/json"}
    if os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    request = urllib.request.Request(f"{args.base_url}{args.endpoint}", json.dumps(body).encode(), headers)
    output = Output(sample.prompt_tokens, start=time.perf_counter())
    last = 0.0
    try:
        with urllib.request.urlopen(request) as response:
            for line in response:
                text = line.decode().strip().removeprefix("data: ")
                if not text or text == "[DONE]" or text.startswith(":"):
                    continue
                event, now = json.loads(text), time.perf_counter()
                if event.get("choices"):
                    if last:
                        output.gaps.append(now - last)
                    else:
                        output.ttft = now - output.start
                    last = now
                elif event.get("usage"):
                    output.tokens = event["usage"]["completion_tokens"]
    except urllib.error.HTTPError as error:
        output.error = error.reason
    except OSError as error:
        output.error = str(error)
    output.latency = last - output.start
    return output


def run(args: argparse.Namespace, prompts: list[Sample]) -> list[Output]:
    """Make all requests: so many at once, or begun at random moments."""
    generator = random.Random(args.seed)
    outputs: list[Output] = [Output(0)] * len(prompts)
    pending: queue.Queue[int] = queue.Queue()
    closed = threading.Event()

    def work() -> None:
        while not (closed.is_set() and pending.empty()):
            try:
                number = pending.get(timeout=0.01)
            except queue.Empty:
                continue
            outputs[number] = ask(args, prompts[number])

    threads = [threading.Thread(target=work) for _number in range(args.max_concurrency or min(len(prompts), 64))]
    for thread in threads:
        thread.start()
    for number in range(len(prompts)):
        pending.put(number)
        if args.request_rate != float("inf"):
            time.sleep(generator.expovariate(args.request_rate))
    closed.set()
    for thread in threads:
        thread.join()
    return outputs


def figures(args: argparse.Namespace, outputs: list[Output], duration: float) -> dict[str, Any]:
    """Return the result in vLLM's form."""
    done = [output for output in outputs if not output.error]
    tokens = sum(output.tokens for output in done)
    result: dict[str, Any] = {
        "backend": args.backend, "model_id": args.model, "tokenizer_id": args.tokenizer, "num_prompts": args.num_prompts,
        "request_rate": "inf" if args.request_rate == float("inf") else args.request_rate,
        "max_concurrency": args.max_concurrency or None, "duration": duration, "completed": len(done),
        "failed": len(outputs) - len(done), "total_input_tokens": sum(output.prompt_tokens for output in done),
        "total_output_tokens": tokens, "output_throughput": tokens / duration,
    }  # fmt: skip
    result.update(percentiles(args, done))
    if args.save_detailed:
        columns = zip(*((o.prompt_tokens, o.tokens, o.ttft, o.gaps, o.start, o.error) for o in outputs))
        result.update(zip(("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"), map(list, columns)))
    return result


def percentiles(args: argparse.Namespace, done: list[Output]) -> dict[str, float]:
    """Return median and percentiles of the chosen times, in milliseconds."""
    times = {
        "ttft": [output.ttft for output in done],
        "tpot": [(output.latency - output.ttft) / (output.tokens - 1) for output in done if output.tokens > 1],
        "itl": [gap for output in done for gap in output.gaps],
    }
    result = {}
    for name in args.percentile_metrics.split(","):
        values = sorted(times[name]) or [0.0]
        result[f"median_{name}_ms"] = 1000 * statistics.median(values)
        for percent in args.metric_percentiles.split(","):
            result[f"p{percent}_{name}_ms"] = 1000 * values[round((len(values) - 1) * float(percent) / 100)]
    return result


def serve(argv: list[str]) -> int:
    args = parse(argv)
    prompts = samples(args)
    for _number in range(args.num_warmups):
        ask(args, prompts[0])
    begin = time.perf_counter()
    outputs = run(args, prompts)
    result = figures(args, outputs, time.perf_counter() - begin)
    print("============ Serving Benchmark Result ============", flush=True)
    Path(args.result_dir, args.result_filename).write_text(json.dumps(result))
    return 0


def throughput(argv: list[str]) -> int:
    """Pretend that the engine answers prompts in batches, at the pace of the server; engine options are accepted unread."""
    parser = argparse.ArgumentParser("vllm bench throughput")
    parser.add_argument("--model", required=True)
    parser.add_argument("--revision")
    parser.add_argument("--output-json", type=Path, required=True)
    for name, default in (("--input-len", 1024), ("--output-len", 128), ("--num-prompts", 1000)):
        parser.add_argument(name, type=int, default=default)
    args, _engine_options = parser.parse_known_args(argv)
    try:
        locate(args.model, args.revision)
    except ModelError as error:
        print(error, flush=True)
        return 1
    begin = time.perf_counter()
    time.sleep(-(-args.num_prompts // BATCH) * args.output_len * SECONDS_PER_TOKEN)
    elapsed, tokens = time.perf_counter() - begin, args.num_prompts * (args.input_len + args.output_len)
    result = {"elapsed_time": elapsed, "num_requests": args.num_prompts, "total_num_tokens": tokens}
    result.update(requests_per_second=args.num_prompts / elapsed, tokens_per_second=tokens / elapsed)
    args.output_json.write_text(json.dumps(result))
    return 0
