# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that a real server calls VLLM::EngineCore: it occupies the memory, and its death ends the server.

Started with one JSON object on the command's environment-free channel (see main.py); reports to the API server by
JSON lines on a pipe.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from . import kv, ledger
from .model import Model, ModelError, load

GIB = 1 << 30
# Taken outside the budget (CUDA context, graphs, host memory of the processes) and inside it (libraries, tables, activations of a batch, the
# copy of the embedding when torch compiles), about as measured. SPARK_SIM_OUTSIDE_GIB and SPARK_SIM_INSIDE_GIB make an engine that
# differs.
OUTSIDE_GIB = 1.83
INSIDE_GIB = {"base": 0.35, "batch": 0.07, "vision": 1.62, "drafter": 0.25}
KEPT = 0.5  # the part of the inside that stays allocated after the start
OOM_TEXT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of {total} GiB of which "
    "{free} GiB is free. Including non-PyTorch memory, this process has {used} GiB memory in use."
)


def gib(size: float) -> str:
    """As vLLM's format_gib."""
    return f"{round(size / GIB, 2)}"


def log(message: str, level: str = "INFO", source: str = "core.py:1") -> None:
    now = time.strftime("%m-%d %H:%M:%S")
    for line in message.splitlines() or [""]:
        print(f"(EngineCore pid={os.getpid()}) {level} {now} [{source}] {line}", flush=True)


def die(error: str) -> NoReturn:
    """Print an error the way the engine's process does and end it."""
    log("EngineCore failed to start.", "ERROR", "core.py:866")
    log("Traceback (most recent call last):\n  (simulated engine: no further frames)\n" + error, "ERROR", "core.py:866")
    sys.stdout.flush()
    os._exit(1)


@dataclass
class Settings:
    """What the API server hands over."""

    version: tuple[int, int]
    version_text: str
    device: str
    values: dict[str, Any]
    model_name: str
    served_name: str
    fault: str
    delay: float
    inside_gib: float | None = None
    outside_gib: float | None = None

    @property
    def outside(self) -> int:
        return int((OUTSIDE_GIB if self.outside_gib is None else self.outside_gib) * GIB)

    def inside(self, text: dict[str, Any], vision: bool, drafts: int) -> int:
        if self.inside_gib is not None:
            return int(self.inside_gib * GIB)
        batch = int(self.values.get("max_num_batched_tokens") or 2048)
        embedding = int(text.get("vocab_size") or 0) * int(text.get("hidden_size") or 0) * 2
        compiled = 0 if self.values.get("enforce_eager") else embedding
        size = INSIDE_GIB["base"] + INSIDE_GIB["vision"] * vision + INSIDE_GIB["drafter"] * bool(drafts)
        return int(size * GIB + max(compiled, INSIDE_GIB["batch"] * batch / 1024 * GIB))

    @property
    def utilization(self) -> float:
        default = 0.9 if self.version < (0, 20) else 0.92
        return float(self.values.get("gpu_memory_utilization") or default)


def speculative(values: dict[str, Any]) -> dict[str, Any]:
    config = values.get("speculative_config")
    if isinstance(config, dict):
        return config
    if values.get("spec_method") or values.get("spec_model"):
        return {"method": values.get("spec_method"), "model": values.get("spec_model")}
    return {}


class Engine:
    """The start of an engine, step by step as vLLM takes them."""

    def __init__(self, settings: Settings, report: IO[str]) -> None:
        self.settings = settings
        self.report = report
        self.slot: ledger.Slot | None = None

    def tell(self, **event: Any) -> None:
        self.report.write(json.dumps(event) + "\n")
        self.report.flush()

    def pause(self, share: float) -> None:
        time.sleep(self.settings.delay * share)

    def snapshot(self) -> int:
        """Free memory of the node without this engine's own."""
        with ledger.books():
            return ledger.available(
                [entry for entry in ledger.records() if not self.slot or entry["id"] != self.slot.entry["id"]]
            )

    def start(self) -> dict[str, Any]:
        settings, values = self.settings, self.settings.values
        log(
            f"Initializing a V1 LLM engine (v{settings.version_text}) with config: model='{settings.model_name}', simulated=True",
            source="core.py:105",
        )
        spec = speculative(values)
        method = str(spec.get("method") or "")
        mtp = "mtp" in method and not spec.get("model")
        try:
            model = load(settings.model_name, values.get("revision"))
            drafter = (
                load(str(spec["model"]))
                if spec.get("model") and method not in ("ngram", "ngram_gpu", "suffix")
                else None
            )
        except ModelError as error:
            die(str(error))
        weights = model.weight_bytes(values.get("quantization"), mtp) + (
            drafter.weight_bytes(None, False) if drafter else 0
        )
        cuda = settings.device == "cuda"
        on_gpu = cuda and ledger.FOLDER.is_dir()
        runner = "gpu_model_runner.py" if cuda else "cpu_model_runner.py"
        if cuda and not on_gpu:
            log("no memory ledger at /run/spark-sim: memory is not simulated", "WARNING", "gpu_worker.py:1")
        free_at_start = 0
        if on_gpu:
            free_at_start = self.take_weights(weights)
        if settings.fault == "hang":
            log(f"Starting to load model {settings.model_name}...", source=f"{runner}:4000")
            while True:
                time.sleep(3600)
        log(f"Starting to load model {settings.model_name}...", source=f"{runner}:4000")
        self.pause(0.5)
        if settings.fault == "fail":
            die(
                "ValueError: There is no module or parameter named 'model.layers.0.mlp.experts.w13_input_scale' in the loaded model"
            )
        if settings.fault == "oom":
            die(OOM_TEXT.format(total=gib(ledger.TOTAL), free="0.31", used=gib(weights)))
        log("Loading safetensors checkpoint shards: 100% Completed", source="default_loader.py:1")
        log(f"Loading weights took {settings.delay * 0.5:.2f} seconds", source="default_loader.py:384")
        if cuda:  # the CPU backend does not say it
            log(
                f"Model loading took {gib(weights)} GiB memory and {settings.delay * 0.5:.6f} seconds",
                source=f"{runner}:4100",
            )
        self.pause(0.3)
        facts = self.take_cache(model, weights, free_at_start, on_gpu)
        unit = "s" if settings.version >= (0, 20) else "seconds"
        log(
            f"init engine (profile, create kv cache, warmup model) took {settings.delay:.2f} {unit}",
            source="core.py:273",
        )
        self.pause(0.2)
        return facts

    def take_weights(self, weights: int) -> int:
        """The start-up check, then the weights. Returns the free memory at the check."""
        settings = self.settings
        total = ledger.pool_settings()["total"]
        requested = math.ceil(total * settings.utilization)
        with ledger.books():
            free = ledger.available(ledger.records())
            if free < requested:
                die(
                    f"ValueError: Free memory on device cuda:0 ({gib(free)}/{gib(total)} GiB) on startup is less than desired GPU "
                    f"memory utilization ({settings.utilization}, {gib(requested)} GiB). Decrease GPU memory utilization or reduce GPU "
                    "memory used by other processes."
                )
            self.slot = ledger.Slot(settings.served_name, "VLLM::EngineCore")
            if weights > free:
                self.slot.release()
                die(OOM_TEXT.format(total=gib(total), free=gib(free), used=gib(0)))
            self.slot.write(gpu_bytes=weights, host_bytes=settings.outside // 2, read_bytes=weights)
        return free

    def take_cache(self, model: Model, weights: int, free_at_start: int, on_gpu: bool) -> dict[str, Any]:
        """Work out the KV cache, refuse as vLLM does when it cannot be, and grow to the full budget."""
        settings, values = self.settings, self.settings.values
        spec = speculative(values)
        drafts = int(spec.get("num_speculative_tokens") or 0)
        draft_layers = 1 if "mtp" in str(spec.get("method") or "") and not spec.get("model") else 0
        cache = kv.plan(model.text, values, drafts, draft_layers, settings.version)
        if cache.state_groups:
            log(
                f"Setting attention block size to {cache.block} tokens to ensure that attention page size is >= mamba page size.",
                source="interface.py:607",
            )
        length = int(values.get("max_model_len") or model.max_position)
        inside = settings.inside(
            model.text, "ForConditionalGeneration" in str(model.config.get("architectures")), drafts
        )
        cuda = settings.device == "cuda"
        see = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        late = settings.version >= (0, 22)
        if not on_gpu:
            available = GIB
        else:
            total = ledger.pool_settings()["total"]
            requested = math.ceil(total * settings.utilization)
            others_took = free_at_start - self.snapshot()
            if others_took < 0:
                die(
                    f"AssertionError: Error in memory profiling. Initial free memory {gib(free_at_start)} GiB, current free memory "
                    f"{gib(free_at_start - others_took)} GiB. This happens when other processes sharing the same container release GPU "
                    "memory while vLLM is profiling during initialization. To fix this, ensure consistent GPU memory allocation or "
                    "isolate vLLM in its own container."
                )
            # On unified memory the profile is a difference of the whole host: memory that others took meanwhile is charged here.
            available = requested - weights - inside - others_took
        fixed = values.get("kv_cache_memory_bytes")
        if not cuda:
            log(
                f"Explicitly set ({gib(available)}/{gib(available)}) GiB for KV cache on node 0.",
                source="cpu_worker.py:260",
            )
        elif fixed:
            available = int(fixed)
            log(
                f"Initial free memory {gib(free_at_start)} GiB, reserved {gib(available)} GiB memory for KV Cache as specified by "
                "kv_cache_memory_bytes config and skipped memory profiling. This does not respect the gpu_memory_utilization config.",
                source="gpu_worker.py:360",
            )
        else:
            log(f"Available KV cache memory: {gib(available)} GiB", source="gpu_worker.py:436")
        if available <= 0:
            extra = (
                " (this flag also controls CPU memory reservation on the CPU backend, despite its name)" if late else ""
            )
            die(
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
                f"engine{extra}. {see}"
            )
        blocks = available // cache.page // cache.layers
        longest = cache.longest(blocks, model.max_position)
        if length == -1:
            length = longest
        if longest < length:
            needed = cache.blocks_of_request(length) * cache.block_bytes
            models = "the model's" if late else "the models's"
            both = " (which also controls CPU memory on the CPU backend)" if late else ""
            die(
                f"ValueError: To serve at least one request with {models} max seq len ({length}), ({gib(needed)} GiB KV "
                f"cache is needed, which is larger than the available KV cache memory ({gib(available)} GiB). Based on the available "
                f"memory, the estimated maximum model length is {longest}. Try increasing `gpu_memory_utilization`{both} or decreasing "
                f"`max_model_len` when initializing the engine. {see}"
            )
        tokens = cache.printed_tokens(blocks, length, settings.version_text)
        concurrency = f"Maximum concurrency for {length:,} tokens per request: {cache.concurrency(blocks, length):.2f}x"
        where = "CPU" if not cuda and settings.version >= (0, 30) else "GPU"  # earlier ones say GPU on a CPU as well
        if settings.version >= (0, 28):
            log(f"{where} KV cache size: {tokens:,} tokens, {concurrency}", source="kv_cache_utils.py:2327")
        else:
            log(f"{where} KV cache size: {tokens:,} tokens", source="kv_cache_utils.py:1319")
            log(concurrency, source="kv_cache_utils.py:1324")
        if on_gpu and self.slot is not None:
            budget = weights + inside + available
            outside = settings.outside
            with ledger.books():
                free = ledger.available([entry for entry in ledger.records() if entry["id"] != self.slot.entry["id"]])
                if budget + outside > free:
                    self.slot.release()
                    die(
                        OOM_TEXT.format(
                            total=gib(ledger.pool_settings()["total"]), free=gib(free - weights), used=gib(weights)
                        )
                    )
                self.slot.write(gpu_bytes=budget - int((1 - KEPT) * inside), host_bytes=outside)
        return {"kv_tokens": tokens, "max_model_len": length, "block_size": cache.block}


def run(raw: dict[str, Any], report_fd: int, life_fd: int) -> None:
    """Entry point in the child process."""
    ctypes.CDLL(None).prctl(15, b"VLLM::EngineCor", 0, 0, 0)  # PR_SET_NAME, 15 characters at most
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    settings = Settings(**{**raw, "version": tuple(raw["version"])})
    engine = Engine(settings, os.fdopen(report_fd, "w"))
    try:
        facts = engine.start()
    except Exception as error:
        die(f"{type(error).__name__}: {error}")
    engine.tell(event="ready", **facts)
    os.read(life_fd, 1)  # returns when the API server is gone
    if engine.slot is not None:
        engine.slot.release()
