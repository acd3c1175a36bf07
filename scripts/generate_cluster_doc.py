#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the table of docs/cluster.md: each recipe for three Sparks and more, planned in a ring and on a switch. Run with PYTHONPATH=collections;
--check only compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

sys.path.insert(0, str(ROOT / "tests" / "unit" / "plugins"))

from cluster_fixture import network

PAGE = ROOT / "docs" / "cluster.md"
RECIPES = ROOT / "playbooks" / "recipes"
MARK = "<!-- plans: scripts/generate_cluster_doc.py -->"
HEADS = (
    "recipe",
    "Sparks",
    "split",
    "utilisation",
    "requests x context",
    "ring",
    "switch",
)
TOTAL_GIB = 119.67
LEAST = 3
SPLITS = {
    "data-parallel-size": "DP",
    "tensor-parallel-size": "TP",
    "pipeline-parallel-size": "PP",
    "decode-context-parallel-size": "DCP",
}


def ways(recipes: dict[str, Any]) -> Iterator[tuple[str, str | None, int]]:
    """Every recipe and variant for three Sparks and more, with their number."""
    for name, recipe in sorted(recipes.items()):
        for variant, body in ((None, {}), *(recipe.get("variants") or {}).items()):
            count = int(body.get("nodes") or recipe.get("nodes") or 1)
            if count >= LEAST:
                yield name, variant, count


def planned(recipes: dict[str, Any], name: str, variant: str | None, count: int, topology: str) -> dict[str, Any]:
    """Return the plan of the head node of a cluster that serves only this recipe."""
    hosts = [f"spark-{number}" for number in range(1, count + 1)]
    service = {"name": "model", "recipe": name, "port": 8000, **({"variant": variant} if variant else {})}
    variables = {"spark_cluster": {"name": "all", "services": [service]}, "spark_total_gib": TOTAL_GIB}
    cabled = network(topology, hosts)
    inventory = {
        host: {"vars": variables, "address": f"192.0.2.{number}", "images": {}, "fabric": cabled}
        for number, host in enumerate(hosts, 1)
    }
    plan = engine.make_plan(inventory, recipes, lambda path: "0" * 64, groups={"all": hosts})
    head: dict[str, Any] = plan["hosts"][hosts[0]]
    return head


def verdict(host: dict[str, Any]) -> str:
    """Return whether a plan fits a network, with the rules of its errors."""
    wrong = [
        finding["rule"]
        for finding in host["findings"]
        if finding["severity"] == "error" and finding["rule"] != "lock.moving"
    ]
    if wrong:
        return f"no: `{'`, `'.join(sorted(set(wrong)))}`"
    return (
        "yes, not reported" if any(finding["rule"] == "cluster.unreported" for finding in host["findings"]) else "yes"
    )


def row(recipes: dict[str, Any], name: str, variant: str | None, count: int) -> list[str]:
    """A line of the table."""
    ring, switch = (planned(recipes, name, variant, count, topology) for topology in ("ring", "switch"))
    (service,) = ring["services"]
    args, memory = service["args"], service["memory"]
    split = [f"{short} {args[option]}" for option, short in SPLITS.items() if int(args.get(option) or 1) > 1]
    split += ["experts spread"] if args.get("enable-expert-parallel") else []
    return [
        f"[{name}](models.md#{name.replace('.', '')})" + (f", `{variant}`" if variant else ""),
        str(count),
        ", ".join(split),
        f"{memory['gpu_memory_utilization']:.2f}",
        f"{args['max-num-seqs']} x {args['max-model-len']}",
        verdict(ring),
        verdict(switch),
    ]


def table() -> str:
    """The whole table."""
    texts = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))]
    recipes = {recipe["name"]: recipe for recipe in texts}
    rows = [row(recipes, *way) for way in ways(recipes)]
    head, *lines = ("| " + " | ".join(cells) + " |" for cells in (HEADS, *rows))
    return "\n".join([head, "|---" * len(HEADS) + "|", *lines])


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    before = PAGE.read_text(encoding="utf-8")
    if MARK not in before:
        raise SystemExit(f"{PAGE.name} lacks the mark {MARK}")
    mark = rf"(?<={re.escape(MARK)}\n\n).*?(?=\n\n)"
    return write_generated({PAGE: re.sub(mark, lambda _match: table(), before, count=1, flags=re.DOTALL)})


if __name__ == "__main__":
    sys.exit(main())
