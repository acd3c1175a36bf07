"""Time the catalogue and the command line: loading, one launch, 400 launches over all versions, on one core.

Run with PYTHONPATH=collections, or as `make bench-catalogue`.
"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit" / "plugins" / "module_utils")]
ROUNDS = 5
LAUNCHES = 400

LOADING = """
import sys, time
sys.path.insert(0, {path!r})
import collections, copy, dataclasses, difflib, json, re, typing  # what Ansible has loaded anyway
start = time.perf_counter()
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, launch
for table in catalogue.catalogue_data.TABLES:
    catalogue.names(table)
catalogue.options(catalogue.versions()[-1])
print((time.perf_counter() - start) * 1000)
"""

LAUNCH = [
    "vllm", "serve", "org/model", "-tp", "2", "--max_model_len", "64k", "--gpu-memory-util", "0.8", "--max-num-seqs=4",
    "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}', "--enable-prefix-caching", "--no-enforce-eager",
    "--kv-cache-dtype", "fp8", "--compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE", "--served-model-name", "a", "b",
]  # fmt: skip


def loading() -> float:
    """Milliseconds that a new process needs until every table is read."""
    argv = [sys.executable, "-c", LOADING.format(path=str(ROOT / "collections"))]
    return min(
        float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) for _round in range(ROUNDS)
    )


def main() -> int:
    """Measure and print."""
    print(f"loading the catalogue             {loading():8.1f} ms   (best of {ROUNDS} processes)")
    from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, launch

    word_lists = importlib.import_module("test_launch_versions").word_lists
    versions = catalogue.versions()
    once = []
    for version in versions:
        start = time.perf_counter()
        assert launch.parse(LAUNCH, str(version)).model == "org/model"
        once.append((time.perf_counter() - start) * 1000)
    print(f"one launch, its version not used  {max(once):8.1f} ms   (slowest of {len(versions)} versions)")
    start = time.perf_counter()
    launch.parse([*LAUNCH, "--max-nmu-seqs", "4", "--kv-cache-dytpe", "fp8"], "0.33.0")
    print(f"one launch with two slips         {(time.perf_counter() - start) * 1000:8.1f} ms")
    draw = random.Random(1)
    cases = [(str(version), word_lists(version, draw)) for version in draw.choices(versions, k=LAUNCHES)]
    start = time.process_time()
    refused = sum(bool(launch.parse(words, version).problems) for version, words in cases)
    print(
        f"{LAUNCHES} launches of all versions      {time.process_time() - start:8.2f} s    ({refused} of them wrong in some way)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
