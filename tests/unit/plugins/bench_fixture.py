# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in engine of the simulated Spark, in this process, and sections of receipts as bench.yml writes them."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIM = Path(__file__).parents[2] / "sim"
sys.path.insert(0, str(SIM / "engine"))

import vllm_sim

vllm_sim.__path__.append(str(SIM / "common"))  # the image has both folders in one

from vllm_sim import api


@contextmanager
def standin(pace: float = 0.005, **more: Any) -> Iterator[tuple[str, Any]]:
    """Serve; gives (URL, what the server knows and counts). pace: seconds a token."""
    values = {
        "names": ["heavy"],
        "root": "m",
        "version": "0.32.0",
        "keys": [],
        "max_model_len": 2048,
        "kv_tokens": 65536,
    }
    values.update({"tools": False, "reasoning": True, "wedged": False, "degenerates_after": None, "values": {}}, **more)
    state = api.State(**values)
    before, api.SECONDS_PER_TOKEN = api.SECONDS_PER_TOKEN, pace
    server = api.Server(("127.0.0.1", 0), state)
    server.RequestHandlerClass.log_message = lambda *_args: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", state
    finally:
        server.shutdown()
        server.server_close()
        api.SECONDS_PER_TOKEN = before


def stand_in_vllm(folder: Path) -> None:
    """Write a program vllm with the C(bench) of the stand-in engine."""
    program = folder / "vllm"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(SIM / 'engine')!r})\nimport vllm_sim\n"
        f"vllm_sim.__path__.append({str(SIM / 'common')!r})\nfrom vllm_sim import bench\n"
        "assert sys.argv[1] == 'bench'\nsys.exit(getattr(bench, sys.argv[2])(sys.argv[3:]))\n"
    )
    program.chmod(0o755)


def around(median: float) -> dict[str, float]:
    """A figure that was measured several times and hardly scattered."""
    return {"median": median, "low": median * 0.99, "high": median * 1.01}


def row(prompt: int, decode: float, prefill: float = 6000.0, **more: Any) -> dict[str, Any]:
    """A row of single requests."""
    made = {
        "prompt_tokens": prompt,
        "prompt_tokens_measured": prompt + 3,
        "output_tokens": 256,
        "output_tokens_asked": 256,
        "repeats": 3,
        "ttft_seconds": around(prompt / prefill),
        "prefill_tokens_per_second": around(prefill),
        "decode_tokens_per_second": around(decode),
        "inter_token_ms": {"median": 23.1, "p95": 25.0},
        "tokens_per_arrival": 1.0,
        "short": 0,
        "disturbed": 0,
        "cached_share": 0.0,
        "draft_acceptance": None,
        "tokens_per_step": None,
    }
    return {**made, **more}


def load(level: int, rate: float, **more: Any) -> dict[str, Any]:
    """A row of several requests at once."""
    pair = {"median": 100.0, "p95": 180.0}
    made = {"concurrency": level, "client": "vllm", "requests": 2 * level, "failed": 0, "seconds": 20.0}
    made.update(
        prompt_tokens=512, output_tokens=256, output_tokens_per_second=rate, ttft_ms=pair, time_per_token_ms=pair
    )
    return {**made, **more}


NEW = {
    "at": "2026-11-02T10:00:00+00:00",
    "conditions": {
        "image_id": "sha256:" + "a1" * 32,
        "fingerprint": "a075e700e4fd7dc0",
        "vllm_version": "0.27.1",
        "gpu": True,
        "driver": "580.173.02",
        "power_limit_watts": None,
        "sm_clock_mhz": 2418,
    },
    "workload": {
        "prompt_tokens": 512,
        "output_tokens": 256,
        "api": "chat",
        "thinking": None,
        "prompts": 2,
    },
    "single": [row(512, 43.0), row(4096, 41.0)],
    "concurrency": [load(4, 120.0), load(16, 300.0)],
    "left_out": [],
}


def measured(**changes: Any) -> dict[str, Any]:
    """A new measurement; conditions and workload are changed key by key."""
    made = copy.deepcopy(NEW)
    for name, value in changes.items():
        if name in ("conditions", "workload"):
            made[name] = {**made[name], **value}
        else:
            made[name] = value
    return made
