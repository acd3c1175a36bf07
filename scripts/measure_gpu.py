#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the memory of vLLM on this machine's NVIDIA GPU, and write rows for scripts/add_measurements.py.

It only needs Python and an installed vLLM; copy it to such a machine. Weights are random numbers of the right shape (load format
dummy), so nothing is downloaded: a config.json or a recipe of this collection describes the model. Every combination of the given
sizes is started once, one after the other, and ended; nothing is served. GPU memory that others use is theirs: run
it where nothing else does.

    python3 measure_gpu.py --recipe qwen3-4b-instruct-2507.yml --batch 2048,8192 --sequences 16,256 --out rows.json
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
GIB = 1 << 30
FREED_SECONDS = 60
READY = "MEASURED-LAUNCH "

# Runs in a separate process: start an engine, print its properties, and end after the parent has measured the GPU. The class LLM
# would ask a pooling model for its tokenizer, which is missing.
ENGINE = f"""
import json, sys
from vllm import EngineArgs, LLMEngine
engine = LLMEngine.from_engine_args(EngineArgs(**json.loads(sys.argv[1])))
import torch
cache = engine.vllm_config.cache_config
told = {{"total": torch.cuda.get_device_properties(0).total_memory, "num_blocks": getattr(cache, "num_gpu_blocks", None)}}
print({READY!r} + json.dumps(told), flush=True)
sys.stdin.readline()
"""
TOTAL = """
import json, torch, vllm
print("TOTAL-LAUNCH " + json.dumps({"total": torch.cuda.get_device_properties(0).total_memory, "vllm": vllm.__version__}))
"""
# Nothing is fetched, nothing is sent.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_CONFIGURE_LOGGING": "1",
}

_NUMBER = r"(-?[\d.]+)"
# Figures of the start-up lines of vLLM 0.26, and as far as known of 0.16 to 0.33, GiB.
LINES = {
    "weights": re.compile(rf"Model loading took {_NUMBER} GiB (?:memory )?and"),
    "kv_cache": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "graphs_estimate": re.compile(rf"Estimated CUDA graph memory: {_NUMBER} GiB"),
    "graphs_gib": re.compile(rf"Graph capturing finished in \S+ secs, took {_NUMBER} GiB"),
    # 0.33 prints weights and memory outside of torch as one figure.
    "torch_peak": re.compile(
        rf"Actual usage is \S+ GiB for (?:weight|consumed memory \([^)]*\)), {_NUMBER} GiB for peak activation"
    ),
    "non_torch": re.compile(rf"GiB for peak activation, {_NUMBER} GiB for non-torch memory"),
}
V2_RUNNER, V1_RUNNER = (
    re.compile(r"\[model_runner\.py:\d+\] Model loading took"),
    re.compile(r"\[gpu_model_runner\.py:\d+\] Model loading took"),
)
PUBLISHED = re.compile(r"(0\.\d+(?:\.\d+)?(?:rc\d+)?)(?:\+.*)?")


class Problem(Exception):
    """Why nothing, or this launch not, can be measured."""


def parse_log(text: str) -> dict[str, Any]:
    """Return the figures of a start: GiB by name, None for missing ones, and the model runner.

    text: what the engine printed. A start that vLLM refused for want of memory has them, too.
    """
    figures: dict[str, Any] = {}
    for name, pattern in LINES.items():
        values = pattern.findall(text)
        figures[name] = float(values[-1].rstrip(".")) if values else None
    figures["runner"] = 2 if V2_RUNNER.search(text) else 1 if V1_RUNNER.search(text) else None
    return figures


def make_row(
    launch: Mapping[str, Any], text: str, machine: Mapping[str, Any], engine: Mapping[str, Any], used: int | None
) -> dict[str, Any]:
    """Return the row of a launch; raises Problem where its log does not say enough.

    launch: C(name), C(model) and C(arguments). text: its log. machine: C(vllm), C(gpu), C(driver), C(total). engine: its printed
    properties, empty for a refused launch. used: GPU memory of the launch, bytes, None if unknown.
    """
    figures = parse_log(text)
    if figures["weights"] is None or figures["kv_cache"] is None:
        raise Problem(f"{launch['name']}: {reason_of(text)}")
    total = engine.get("total") or machine["total"]
    sizes = {
        name: None if figures[name] is None else int(figures[name] * GIB) for name in LINES if name != "graphs_gib"
    }
    return {
        "launch": launch["name"],
        "model": launch["model"],
        "vllm": machine["vllm"],
        "gpu": machine["gpu"],
        "driver": machine["driver"],
        "total": total,
        "arguments": launch["arguments"],
        "rounded": True,
        "runner": figures["runner"],
        "requested": math.ceil(total * launch["arguments"]["gpu-memory-utilization"]),
        **sizes,
        "graphs_gib": figures["graphs_gib"],
        "num_blocks": engine.get("num_blocks"),
        "used": used,
    }


def reason_of(text: str) -> str:
    """Return the last exception of a log, for a person."""
    errors = re.findall(r"^.*?\b([A-Za-z_.]*(?:Error|Exception): .+)$", text, re.MULTILINE)
    own_errors = [error for error in errors if "Engine core initialization failed" not in error]
    return f"it did not come to its KV cache: {(own_errors or errors or ['no reason in its log'])[-1][:300]}"


def launches(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every launch to measure: C(name), C(model), C(arguments) by vLLM's long names. name: of the model."""
    further = dict(read_argument(text) for text in options.arg)
    launch_list = []
    for batch, sequences, length in itertools.product(options.batch, options.sequences, options.length):
        arguments = {
            "gpu-memory-utilization": options.utilization,
            "max-model-len": length,
            "max-num-batched-tokens": batch,
            "max-num-seqs": sequences,
            **({"enforce-eager": True} if options.eager else {}),
            **further,
        }
        label = f"{name} {batch}/{sequences} {length}" + (" eager" if options.eager else "")
        launch_list.append({"name": label, "model": name, "arguments": arguments})
    return launch_list


def read_argument(text: str) -> tuple[str, Any]:
    """Return an argument NAME=VALUE of the engine, with the value parsed as JSON if possible."""
    name, equals, value = text.partition("=")
    try:
        return name.lstrip("-"), json.loads(value) if equals else True
    except ValueError:
        return name.lstrip("-"), value


def command(folder: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the command that starts an engine. folder: with its config.json."""
    engine_arguments = {key.replace("-", "_"): value for key, value in arguments.items()}
    engine = {"model": folder, "load_format": "dummy", "skip_tokenizer_init": True, **engine_arguments}
    return [sys.executable, "-u", "-c", ENGINE, json.dumps(engine)]


def read_model(options: argparse.Namespace) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """Return name, config.json and hf_quant_config.json of the model; raises Problem with all that is wrong.

    options: of the command line
    """
    path = options.recipe or options.config
    try:
        text = path.read_text(encoding="utf-8")
        if options.recipe:
            import yaml  # vLLM needs it, so it is there

            recipe = yaml.safe_load(text)
            name, config, quant = (
                recipe["model"]["repo"].rpartition("/")[2],
                recipe["config"],
                recipe.get("quant_config"),
            )
        else:
            name, config, quant = path.parent.name, json.loads(text), None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise Problem(f"{path} is no {'recipe with a config' if options.recipe else 'config.json'}: {error}") from error
    name = options.name or name
    wrong = []
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}", name):
        wrong.append(f"'{name}' is no plain name of a model; give one with --name")
    if not isinstance(config, dict) or not config.get("model_type") or not config.get("architectures"):
        wrong.append(f"the config in {path} lacks model_type or architectures, which vLLM needs")
    if wrong:
        raise Problem("; ".join(wrong))
    return name, config, quant


def machine_of() -> dict[str, Any]:
    """Return the properties of this machine: C(vllm), C(gpu), C(driver), C(total) bytes. Raises Problem."""
    ran = subprocess.run([sys.executable, "-c", TOTAL], capture_output=True, text=True, env=environment(), check=False)
    line = next((line for line in ran.stdout.splitlines() if line.startswith("TOTAL-LAUNCH ")), "")
    if not line:
        raise Problem(f"vLLM and a GPU are needed here: {(ran.stderr.strip().splitlines() or ['no reason'])[-1]}")
    engine = json.loads(line.partition(" ")[2])
    published = PUBLISHED.fullmatch(engine["vllm"])
    if not published:
        raise Problem(f"vLLM {engine['vllm']} is not a published version, a row of it could not be compared")
    gpu, driver = (query("name,driver_version") or ["", ""])[:2]
    return {"vllm": published.group(1), "gpu": gpu, "driver": driver or None, "total": engine["total"]}


def query(fields: str) -> list[str]:
    """Return nvidia-smi's answer for the first GPU; empty without an answer."""
    command_line = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command_line, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = ran.stdout.strip().splitlines()
    return [field.strip() for field in lines[0].split(",")] if ran.returncode == 0 and lines else []


def used_bytes() -> int | None:
    """Return the used GPU memory; None if unknown, as on GPUs that share the host's memory."""
    answer = query("memory.used")
    return int(answer[0]) << 20 if answer and answer[0].isdigit() else None


def environment() -> dict[str, str]:
    """Return the environment of an engine: the present variables with additions."""
    return {**os.environ, **ENVIRONMENT}


def run(argv: Sequence[str], timeout: float) -> tuple[str, dict[str, Any], int | None]:
    """Start an engine and end it.

    argv: its command. timeout: seconds. Returns its log, its printed properties (empty if it failed earlier), and its GPU memory.
    """
    before, used = used_bytes(), None
    lines: list[str] = []
    engine: dict[str, Any] = {}
    process = subprocess.Popen(
        argv,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # its engine process is ended with it
    )
    timer = threading.Timer(timeout, end, (process,))
    timer.start()
    try:
        for line in process.stdout or ():
            if line.startswith(READY):
                engine, after = json.loads(line[len(READY) :]), used_bytes()
                used = None if before is None or after is None else max(0, after - before)
                if process.stdin is not None:
                    process.stdin.close()
            else:
                lines.append(line)
    finally:
        timer.cancel()
        end(process)
        process.wait()
    wait_until_freed(before)
    return "".join(lines), engine, used


def end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until_freed(before: int | None) -> None:
    """Wait until the GPU has as much free memory as before, so that the next launch is measured alone."""
    deadline = time.monotonic() + FREED_SECONDS
    while before is not None and time.monotonic() < deadline and (used_bytes() or 0) > before + (GIB >> 2):
        time.sleep(1)


def numbers(text: str) -> list[int]:
    """Read numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--recipe", type=Path, help="a recipe of this collection, of which the config is taken")
    model.add_argument("--config", type=Path, help="a config.json; its folder names the model unless --name does")
    parser.add_argument("--name", help="how rows name the model; no name that should not be seen")
    parser.add_argument("--batch", type=numbers, default=[2048, 8192], help="max-num-batched-tokens, with commas")
    parser.add_argument("--sequences", type=numbers, default=[16, 256], help="max-num-seqs, with commas")
    parser.add_argument("--length", type=numbers, default=[16384], help="max-model-len, with commas")
    parser.add_argument("--utilization", type=float, default=0.85, help="gpu-memory-utilization")
    parser.add_argument("--eager", action="store_true", help="enforce-eager: no graphs, no compilation")
    parser.add_argument("--arg", action="append", default=[], help="another argument of vLLM: NAME=VALUE")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a start may take")
    parser.add_argument("--out", type=Path, default=Path("rows.json"), help="file to write")
    parser.add_argument("--logs", type=Path, help="folder to keep logs in")
    parser.add_argument("--print", action="store_true", help="print the commands and start nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure every launch; returns the exit code."""
    options = arguments(argv)
    try:
        name, config, quant = read_model(options)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
            if quant:
                Path(folder, "hf_quant_config.json").write_text(json.dumps(quant), encoding="utf-8")
            launch_list = launches(name, options)
            if options.print:
                for launch in launch_list:
                    print(" ".join(command(folder, launch["arguments"])[-1:]))
                return 0
            rows, failed = measure(launch_list, folder, machine_of(), options)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    content = {"schema": SCHEMA, "models": {name: config}, "rows": rows}
    if quant:
        content["quant_configs"] = {name: quant}
    if rows:
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"{len(rows)} launches in {options.out}; check them with: make measurements FILE={options.out}")
    return 1 if failed or not rows else 0


def measure(
    launch_list: Sequence[Mapping[str, Any]], folder: str, machine: Mapping[str, Any], options: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """Measure launches, one after the other.

    asked: of C(launches). folder: with the config.json. machine: of C(machine_of). options: of the command line.
    Returns rows, and the number of launches without a row.
    """
    rows, failed = [], 0
    for launch in launch_list:
        text, engine, used = run(command(folder, launch["arguments"]), options.timeout)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            label = re.sub(r"[^A-Za-z0-9.-]+", "-", launch["name"])
            Path(options.logs, f"{label}.log").write_text(text, encoding="utf-8")
        try:
            rows.append(make_row(launch, text, machine, engine, used))
            print(f"{launch['name']}: {rows[-1]['kv_cache'] / GIB:.2f} GiB of KV cache")
        except Problem as problem:
            failed += 1
            print(problem, file=sys.stderr)
    return rows, failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
