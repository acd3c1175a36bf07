# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add up numbers on all hosts of an engine, with the torch and the NCCL of its image, and report the speed.

C(collective.py) sends this text into a container on each host. The result is one line of JSON behind C(MARK). It runs on the image's
Python, so it is plain Python 3.8 with the standard library, and torch where the image has it.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import importlib.util
import json
import os
import sys
import time
from typing import Any

from .._content.image_probe_program import go_on_in_vllm

RESULT = "dgxspark-collective: "
"""What the line of the result begins with: libraries print what they like."""
GPU_BYTES = 256 * 2**20
CPU_BYTES = 16 * 2**20
ROUNDS, CABLE_ROUNDS = 8, 4
CABLES = "DGXSPARK_CABLES"
"""Variable with the pairs of ranks that one cable joins, C(0-1,1-2); each is measured by itself before all together."""
MEET_SECONDS = 60
"""How long ranks wait for each other, and for a round; NCCL gives a dead way up after about 30 s."""


def bus_gbps(size: int, count: int, seconds: float) -> float:
    """Return the bandwidth of the slowest way of a ring as NCCL's own tests count it (busbw), in Gb/s. size: bytes that were added up."""
    return 2 * (count - 1) / count * size * 8 / seconds / 1e9


def version_of_nccl(torch: Any) -> str:
    """Return the version of torch's NCCL, or an empty text."""
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:  # builds differ in what they lack
        return ""


def rounds(dist: Any, numbers: Any, count: int, turns: int, group: Any = None) -> float:
    """Add up numbers, and return the seconds of a round. Raises ValueError where the sum is wrong."""
    times = []
    for turn in range(turns + 1):
        numbers.fill_(1.0)
        began = time.monotonic()
        dist.all_reduce(numbers, group=group)
        total = float(numbers[-1].item())  # also waits for the GPU
        if total != count:
            raise ValueError(f"{count} ones add up to {total:g}")
        if turn:  # the first connects the ranks
            times.append(time.monotonic() - began)
    return sorted(times)[len(times) // 2]


def add_up(torch: Any) -> dict[str, Any]:
    """Join the other ranks and measure: each cable by the two ranks at its ends while the others wait, then all together.

    :returns: C({backend, nccl, ranks, bytes, seconds, gbps, cables}); cables: Gb/s by pair of ranks, of those that this one is in. C({error,
        between}) where the two ranks of a cable cannot
    """
    dist: Any = importlib.import_module("torch.distributed")
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo", timeout=datetime.timedelta(seconds=MEET_SECONDS))
    count, size, own_rank = dist.get_world_size(), GPU_BYTES if gpu else CPU_BYTES, dist.get_rank()
    numbers = torch.ones(size // 4, dtype=torch.float32, device="cuda" if gpu else "cpu")
    cables = {}
    for pair in filter(None, os.environ.get(CABLES, "").split(",")):
        ranks = [int(rank) for rank in pair.split("-")]
        group = dist.new_group(ranks)  # all ranks make it, and wait here for those that measure
        if own_rank in ranks:
            try:
                cables[pair] = round(bus_gbps(size, 2, rounds(dist, numbers, 2, CABLE_ROUNDS, group)), 2)
            except Exception as error:  # what NCCL and gloo raise differs by version
                return {"error": text_of(error), "between": ranks}
    seconds = rounds(dist, numbers, count, ROUNDS)
    dist.destroy_process_group()
    return {
        "backend": "nccl" if gpu else "gloo",
        "nccl": version_of_nccl(torch) if gpu else "",
        "ranks": count,
        "bytes": size,
        "seconds": round(seconds, 6),
        "gbps": round(bus_gbps(size, count, seconds), 2),
        "cables": cables,
    }


def text_of(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]


def main() -> None:
    """Print the result; go on in vLLM's own interpreter if this one has no torch."""
    sys.path = [place for place in sys.path if place]
    if importlib.util.find_spec("torch") is None:
        go_on_in_vllm()
        result: dict[str, Any] = {"lacks": "torch"}
    else:
        try:
            # Before torch loads its own: a library of one name is loaded once.
            if own_nccl := os.environ.get("VLLM_NCCL_SO_PATH"):
                ctypes.CDLL(own_nccl, mode=ctypes.RTLD_GLOBAL)
            result = add_up(importlib.import_module("torch"))
        except Exception as error:  # the finding reports it
            result = {"error": text_of(error)}
    sys.stdout.write(f"{RESULT}{json.dumps(result)}\n")
    sys.stdout.flush()
    # A rank whose peers are gone may hang in the end of its libraries.
    os._exit(0)
