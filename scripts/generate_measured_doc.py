#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of tests/oracle/memory_tables.md: launches on a GPU with their plans, and the compared versions of vLLM.

Run with PYTHONPATH=collections; --check only compares. Each table stands below a line C(<!-- ... -->), see C(MARKS).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.measurement_rows import planned
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import LEVELS

sys.path.insert(0, str(ROOT / "tests" / "unit" / "plugins"))

from launches_fixture import compared

PAGE = ROOT / "tests" / "oracle" / "memory_tables.md"
ROWS = ROOT / "tests" / "unit" / "plugins" / "fixtures" / "gpu_rows.json"
MARKS = ("measured: launches", "computed: compared")

SHORT = {
    "enforce-eager": "eager",
    "kv-cache-dtype": "{} cache",
    "attention-backend": "{}",
    "language-model-only": "text",
    "runner": "{}",
}


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
    return f"{row['model']}, {args['max-num-batched-tokens']}/{args['max-num-seqs']}, {', '.join(parts) or 'graphs'}"


HEAD = (
    "launch, batch/sequences",
    "share",
    "vLLM, GPU",
    "KV cache planned: low, typical, high",
    "measured",
    "off",
    "weights planned, measured",
    "inside planned, measured",
    "graphs",
)


def cells(launches: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Return the row of one launch: its KV cache, and the terms that the cache follows from, planned and measured."""
    made = planned(launches, row)
    size, real = made["available_kv_bytes"], row["kv_cache"]
    difference = size["typical"] - real
    inside = row["requested"] - row["weights"] - real
    return [
        name_of(row),
        str(row["arguments"]["gpu-memory-utilization"]),
        f"{row['vllm']}, {row['gpu'].removeprefix('NVIDIA ').split()[0]}",
        ", ".join(gib(size[level]) for level in LEVELS),
        gib(real),
        f"{difference / GIB:+.2f}",
        f"{gib(made['weights_bytes'] + made['draft_bytes'])}, {gib(row['weights'])}",
        f"{made['overhead_gib']['typical']:.2f}, {gib(inside)}",
        # vLLM prints the size of its graphs; empty for an eager launch.
        "-" if row.get("graphs_gib") is None else f"{row['graphs_gib']:.2f}",
    ]


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    launches = json.loads(ROWS.read_text(encoding="utf-8"))
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(cells(launches, row))} |" for row in launches["rows"]]
    text = PAGE.read_text(encoding="utf-8")
    for mark, table in zip(MARKS, ("\n".join(lines), compared()), strict=True):
        text, count = re.subn(rf"(?m)(?<=^<!-- {mark} -->\n\n)(?:\|.*\n)*", f"{table}\n", text)
        if count != 1:
            print(f"{PAGE.name} has {count} marks <!-- {mark} -->, expected one.")
            return 1
    return write_generated({PAGE: text})


if __name__ == "__main__":
    sys.exit(main())
