#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of docs/memory_measured.md: launches on a GPU with their plans.

Run with PYTHONPATH=collections; --check only compares. A table stands below a line C(<!-- measured: NAME -->).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.measurement_rows import planned
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import LEVELS

PAGE = ROOT / "docs" / "memory_measured.md"
ROWS = ROOT / "tests" / "unit" / "plugins" / "fixtures" / "gpu_rows.json"
BLOCK = re.compile(r"^<!-- measured: (?P<name>\w+) -->\n\n?(?:\|.*\n)*\n?", re.MULTILINE)


SHORT = {
    "enforce-eager": "eager",
    "kv-cache-dtype": "{} cache",
    "attention-backend": "{}",
    "language-model-only": "text",
    "runner": "{}",
}


PARTS = ("torch_peak", "non_torch", "graphs_estimate")


def gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def name_of(row: Mapping[str, Any]) -> str:
    """Name a launch by its model and what tells it from the others."""
    args = row["arguments"]
    parts = [SHORT[key].format(args[key]) for key in SHORT if args.get(key)]
    spec = args.get("speculative-config")
    if spec:
        parts.append(f"{spec['method']} {spec['num_speculative_tokens']}")
    if args.get("enable-lora"):
        parts.append(f"{args['max-loras']} adapters of rank {args['max-lora-rank']}")
    if row["launch"].endswith("warm-cache"):
        parts.append("graphs, compiled before")
    return f"{row['model']}, {args['max-num-batched-tokens']} / {args['max-num-seqs']}, {', '.join(parts) or 'graphs'}"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def cache(launches: Mapping[str, Any]) -> str:
    """The KV cache of every launch: planned, measured, and how far the typical figure is off."""
    rows = []
    for row in launches["rows"]:
        made = planned(launches, row)
        size, real = made["available_kv_bytes"], row["kv_cache"]
        off = (size["typical"] - real) / GIB
        share = f", {100 * (size['typical'] - real) / real:+.1f} %" if real > 0 else ""
        rows.append(
            [
                name_of(row),
                row["arguments"]["gpu-memory-utilization"],
                f"{row['vllm']}, {row['gpu'].removeprefix('NVIDIA ')}",
                f"V{made['model_runner']}",
                " / ".join(gib(size[level]) for level in LEVELS),
                gib(real),
                f"{off:+.2f}{share}",
            ]
        )
    head = ["launch: batch / sequences", "share", "vLLM, GPU", "runner", "KV cache planned", "measured", "off"]
    return table(head, rows)


def terms(launches: Mapping[str, Any]) -> str:
    """The terms that the KV cache follows from, and the CUDA graphs."""
    rows = []
    for row in launches["rows"]:
        made = planned(launches, row)
        weights = made["weights_bytes"] + made["draft_bytes"]
        inside = row["requested"] - row["weights"] - row["kv_cache"]
        # vLLM prints what its graphs took; of an eager launch nothing.
        rows.append(
            [
                name_of(row),
                f"{gib(weights)} / {gib(row['weights'])}",
                f"{made['overhead_gib']['typical']:.2f} / {gib(inside)}",
                " + ".join("?" if row.get(key) is None else gib(row[key]) for key in PARTS),
                "-" if row.get("graphs_gib") is None else f"{row['graphs_gib']:.2f}",
            ]
        )
    head = [
        "launch",
        "weights",
        "inside, typical / measured",
        "of it torch, other, graphs by vLLM's estimate",
        "graphs in the end",
    ]
    return table(head, rows)


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {"cache": cache, "terms": terms}


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    launches = json.loads(ROWS.read_text(encoding="utf-8"))
    old = PAGE.read_text(encoding="utf-8")
    named = BLOCK.findall(old)
    if sorted(named) != sorted(TABLES):
        print(f"{PAGE.name} has marks for {', '.join(sorted(named))}; the tables are {', '.join(sorted(TABLES))}.")
        return 1
    new = BLOCK.sub(lambda match: f"<!-- measured: {match['name']} -->\n\n{TABLES[match['name']](launches)}\n\n", old)
    return write_generated({PAGE: new})


if __name__ == "__main__":
    sys.exit(main())
