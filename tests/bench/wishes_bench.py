"""Time proposals for given jobs on made-up fleets of 1, 10 and 100 Sparks, and print what they serve. No host and no Docker is needed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan, proposal
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes

SIZES = (1, 10, 100)
KINDS: tuple[dict[str, Any], ...] = (
    {"jobs": ["code"], "features": ["tools"], "tokens_per_second": 30, "context": 100000, "users": 2, "importance": 8},
    {"jobs": ["chat"], "tokens_per_second": 20, "context": 32768, "users": 16, "importance": 6},
    {"features": ["vision"], "tokens_per_second": 15, "users": 4, "importance": 5},
    {"model": "openai/gpt-oss-120b", "context": 65536, "users": 4, "importance": 7},
    {"jobs": ["embed"], "context": 8192, "users": 8, "importance": 3},
    {"jobs": ["agents"], "features": ["tools", "reasoning"], "tokens_per_second": 25, "context": 131072, "users": 2},
    {"recipe": "qwen3-235b-a22b-gptq-int4", "context": 32768, "users": 2, "importance": 4},
)


def wishes(count: int) -> Iterator[dict[str, Any]]:
    """Jobs of all kinds, which differ in users and importance."""
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        more = number // len(KINDS)
        yield {
            **kind,
            "name": f"job-{number}",
            "users": kind["users"] + more % 3,
            "importance": kind.get("importance", 5) + more % 2,
        }


def main() -> int:
    """Print a line for each fleet; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=float, default=1.0, help="jobs for each Spark")
    parser.add_argument("--busy", action="store_true", help="each second Spark has a service already")
    options = parser.parse_args()
    recipes, _problems = load_recipes([RECIPES])

    def make(hosts: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        return plan.make_plan(hosts, recipes, groups=groups)

    for size in options.sizes:
        service = {"name": "old", "recipe": "qwen3-8b", "port": 8001, "args": {"max-num-seqs": 4}}
        hosts = {
            f"spark-{number}": {
                "vars": {"spark_services": [service]} if options.busy and number % 2 else {},
                "address": "",
            }
            for number in range(1, size + 1)
        }
        jobs = list(wishes(max(3, int(size * options.jobs))))
        began = time.monotonic()
        proposed = proposal.propose(jobs, hosts, {}, {"sparks": list(hosts)}, recipes, make)
        seconds = time.monotonic() - began
        served = [row for row in proposed["wishes"] if row["state"] != "unserved"]
        weights = [sum(row["importance"] for row in rows) for rows in (served, proposed["wishes"])]
        print(
            f"{size} Sparks, {len(jobs)} jobs: {seconds:.1f} s; {len(served)} served, {weights[0]} of {weights[1]} by weight, "
            f"{'complete' if proposed['complete'] else 'not complete'}, {len(proposed['errors'])} errors",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
