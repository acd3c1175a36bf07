# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`vllm serve` of the stand-in: start an engine process, then answer like vLLM's OpenAI server.

Misbehaviour on demand: SPARK_SIM_FAULT=fail|oom|hang|wedge|slow, SPARK_SIM_DELAY=seconds until ready,
SPARK_SIM_INSIDE_GIB and SPARK_SIM_OUTSIDE_GIB=memory taken inside and outside of the requested memory,
SPARK_SIM_DEGENERATES_AFTER=requests after which long prompts and long answers are garbage.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from . import bench
from .api import Server, State
from .arguments import Parser, version_tuple
from .model import ModelError, load

IMAGE = Path(__file__).resolve().parent.parent / "image.json"
FAULTS = ("", "fail", "oom", "hang", "wedge", "slow")
CHILD = """import sys
sys.path.insert(0, {path!r})
from vllm_sim import core
core.run({raw!r}, {report}, {life})
"""


def log(message: str, level: str = "INFO", source: str = "api_server.py:1") -> None:
    now = time.strftime("%m-%d %H:%M:%S")
    for line in message.splitlines() or [""]:
        print(f"(APIServer pid={os.getpid()}) {level} {now} [{source}] {line}", flush=True)


def die(error: str) -> int:
    """An error before the engine starts: traceback on stderr, exit code 1."""
    sys.stderr.write(f"(APIServer pid={os.getpid()}) Traceback (most recent call last):\n")
    for line in error.splitlines():
        sys.stderr.write(f"(APIServer pid={os.getpid()}) {line}\n")
    return 1


def config_error(parser: Parser, values: dict[str, Any], max_position: int) -> str | None:
    """What the parser lets pass and the configuration refuses."""
    if values.get("enable_auto_tool_choice") and not values.get("tool_call_parser"):
        return "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser"
    tool = values.get("tool_call_parser")
    if tool and values.get("enable_auto_tool_choice") and tool not in parser.tool_parsers:
        return f"KeyError: 'invalid tool call parser: {tool} (chose from {{ {','.join(parser.tool_parsers)} }})'"
    reasoning = values.get("reasoning_parser")
    if reasoning and reasoning not in parser.reasoning_parsers:
        return f"KeyError: \"Reasoning parser '{reasoning}' not found. Available parsers: {', '.join(parser.reasoning_parsers)}\""
    utilization = values.get("gpu_memory_utilization")
    if utilization is not None and not 0 < float(utilization) <= 1:
        return (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\ngpu_memory_utilization\n"
            f"  Input should be {'greater than 0' if float(utilization) <= 0 else 'less than or equal to 1'} "
            f"[input_value={utilization}, input_type=float]"
        )
    length = values.get("max_model_len")
    if length and int(length) > max_position and os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        return (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={max_position} or model_max_length=None in model's config.json). To allow overriding this "
            "maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    world = int(values.get("tensor_parallel_size") or 1) * int(values.get("pipeline_parallel_size") or 1)
    if world > int(values.get("nnodes") or 1):
        return f"RuntimeError: World size ({world}) is larger than the number of available GPUs (1) in this node."
    for name in ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens"):
        if values.get(name) is not None and int(values[name]) < 1:
            return f"pydantic_core._pydantic_core.ValidationError: 1 validation error\n{name}\n  Input should be greater than or equal to 1"
    spec = values.get("speculative_config")
    if isinstance(spec, dict) and not (spec.get("method") or spec.get("model")):
        return "ValueError: num_speculative_tokens was provided but without speculative model."
    return None


def serve(argv: list[str], image: dict[str, str]) -> int:
    parser = Parser(image["version"])
    positional, values = parser.parse(argv)
    model_name = positional[0] if positional else str(values.get("model") or "Qwen/Qwen3-0.6B")
    served = values.get("served_model_name") or [model_name]
    log(f"this is a simulated vLLM {image['version']}: a stand-in for tests, nothing it reports was measured")
    shown = {**({"model_tag": positional[0]} if positional else {}), **values, "model": model_name}
    shown.pop("api_key", None)
    log(f"vLLM API server version {image['version']}")
    log(f"non-default args: {shown}", source="utils.py:253")
    fault = os.environ.get("SPARK_SIM_FAULT", "")
    if fault not in FAULTS:
        return die(f"ValueError: SPARK_SIM_FAULT={fault!r} is not one of {', '.join(FAULTS[1:])}")
    delay = float(os.environ.get("SPARK_SIM_DELAY") or (30 if fault == "slow" else 1))
    try:
        model = load(model_name, values.get("revision"))
        if values.get("tokenizer") and values["tokenizer"] != model_name:
            load_tokenizer(str(values["tokenizer"]))
    except ModelError as error:
        return die(str(error))
    problem = config_error(parser, values, model.max_position)
    if problem:
        return die(problem)
    log(f"Resolved architecture: {(model.config.get('architectures') or ['?'])[0]}", source="model.py:531")
    log(f"Using max model len {values.get('max_model_len') or model.max_position}", source="model.py:1545")

    raw = {
        "version": list(version_tuple(image["version"])),
        "version_text": image["version"],
        "device": image["device"],
        "values": values,
        "model_name": str(model.path) if not values.get("revision") else model_name,
        "served_name": str(served[0]),
        "fault": fault,
        "delay": delay,
        "inside_gib": told_gib("SPARK_SIM_INSIDE_GIB"),
        "outside_gib": told_gib("SPARK_SIM_OUTSIDE_GIB"),
    }
    report_r, report_w = os.pipe()
    life_r, _open_while_alive = os.pipe()  # its other end closes with this process, which ends the engine too
    # The program comes on stdin, so that the process shows the name that the real one sets for itself, and nothing else.
    core = subprocess.Popen(
        ["VLLM::EngineCore"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        pass_fds=(report_w, life_r),
        close_fds=True,
    )
    os.close(report_w)
    os.close(life_r)
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            return
        stopping.set()
        log("[shutdown] API server: shutdown triggered", source="launcher.py:254")
        core.terminate()
        threading.Thread(target=leave, daemon=True).start()

    def leave() -> None:
        try:
            core.wait(5)
        except subprocess.TimeoutExpired:
            core.kill()
        log("Application shutdown complete.")
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    assert core.stdin is not None
    program = CHILD.format(path=str(IMAGE.parent), raw=raw, report=report_w, life=life_r)
    core.stdin.write(program.encode())
    core.stdin.close()
    with os.fdopen(report_r) as stream:
        line = stream.readline()
    if stopping.is_set():
        leave()
    if not line:
        code = core.wait()
        return die(
            f"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': {code}}}"
        )
    facts = json.loads(line)
    key = values.get("api_key") or ([os.environ["VLLM_API_KEY"]] if os.environ.get("VLLM_API_KEY") else [])
    state = State(
        names=[str(name) for name in served],
        root=model_name,
        version=image["version"],
        keys=[str(item) for item in (key if isinstance(key, list) else [key])],
        max_model_len=int(facts["max_model_len"]),
        kv_tokens=int(facts["kv_tokens"]),
        tools=bool(values.get("enable_auto_tool_choice")),
        reasoning=bool(values.get("reasoning_parser")),
        wedged=fault == "wedge",
        degenerates_after=int(os.environ["SPARK_SIM_DEGENERATES_AFTER"])
        if os.environ.get("SPARK_SIM_DEGENERATES_AFTER")
        else None,
        values=values,
    )

    def watch() -> None:
        code = core.wait()
        if stopping.is_set():
            return
        state.alive = False
        log(
            f"Engine core proc EngineCore died unexpectedly ({code}), shutting down client.",
            "ERROR",
            "core_client.py:600",
        )
        log(
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "ERROR",
            "async_llm.py:906",
        )
        time.sleep(1)
        os._exit(0)  # as the real one: a dead engine ends `vllm serve` with success

    threading.Thread(target=watch, daemon=True).start()
    if values.get("headless"):
        log("headless: no API server on this node")
        core.wait()
        return 0
    host, port = str(values.get("host") or "0.0.0.0"), int(values.get("port") or 8000)
    try:
        server = Server((host, port), state)
    except OSError as error:
        core.kill()
        return die(f"OSError: [Errno {error.errno}] {error.strerror}: {host}:{port}")
    log(f"Starting vLLM server on http://{host}:{port}", source="entry.py:140")
    print(f"INFO:     Started server process [{os.getpid()}]", flush=True)
    print("INFO:     Waiting for application startup.", flush=True)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()
    return 0


def told_gib(name: str) -> float | None:
    return float(os.environ[name]) if os.environ.get(name) else None


def load_tokenizer(name: str) -> None:
    """The tokenizer's repository has to be there, weights or not."""
    from .model import locate

    path = locate(name, None)
    if not any((path / file).exists() for file in ("tokenizer.json", "tokenizer_config.json")):
        raise ModelError(
            f"OSError: Can't load tokenizer for '{name}'. If you were trying to load it from 'https://huggingface.co/models'"
        )


def main(argv: list[str]) -> int:
    image: dict[str, str] = json.loads(IMAGE.read_text())
    if argv[:1] in (["--version"], ["-v"]):
        print(image["version"])
        return 0
    if argv[:1] == ["serve"]:
        return serve(argv[1:], image)
    if argv[:1] == ["bench"] and argv[1:2] in (["serve"], ["throughput"]):
        return {"serve": bench.serve, "throughput": bench.throughput}[argv[1]](argv[2:])
    names = "chat, complete, serve, bench, collect-env, run-batch"
    command = repr(argv[0]) if argv else "''"
    sys.stderr.write(
        f"usage: vllm [-h] [-v] {{{names}}} ...\nvllm: error: argument subparser: invalid choice: {command} (choose from {names})\n"
    )
    return 2
