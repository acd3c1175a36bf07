# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LoRA adapters of a service: their keys, the options of the engine, and their memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipes

FOLDER = Path(__file__).parents[5] / "playbooks" / "recipes"
RECIPES: dict[str, Any] = {
    name: yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8")) for name in ("qwen3-8b", "qwen3-30b-a3b")
}
SQL = {"name": "sql", "repo": "Org/sql-lora"}
LAW = {"name": "law", "repo": "Org/law-lora", "revision": "v2"}
GIB = 2**30


def service(**more: Any) -> dict[str, Any]:
    return {"name": "writer", "recipe": "qwen3-8b", "port": 8001, **more}


def plan_of(lora: dict[str, Any]) -> dict[str, Any]:
    host = {"vars": {"spark_services": [lora], "spark_total_gib": 119.67}, "address": "192.0.2.1", "images": {}}
    planned: dict[str, Any] = engine.make_plan({"spark": host}, RECIPES, lambda path: f"{len(path):064x}")["hosts"][
        "spark"
    ]
    return planned


def test_adapters_are_options_models_and_checks() -> None:
    planned = plan_of(service(lora={"adapters": [SQL, LAW], "max_rank": 32}))
    made = planned["services"][0]
    argv = " ".join(made["command"])
    base = "/root/.cache/huggingface/snapshots"
    assert f"--lora-modules sql={base}/Org--sql-lora@main law={base}/Org--law-lora@v2" in argv
    for words in ("--enable-lora", "--max-lora-rank 32", "--max-loras 2", "--max-cpu-loras 2"):
        assert words in argv
    assert made["checks"]["adapters"] == ["sql", "law"]
    models = {model["repo"]: model for model in planned["models"]}
    assert models["Org/sql-lora"]["link"] == "snapshots/Org--sql-lora@main"
    assert models["Org/law-lora"]["revision"] == "v2"
    assert not models["Qwen/Qwen3-8B"]["link"], "nothing names a file of the model itself"


def test_a_service_without_adapters_is_as_before() -> None:
    plain = plan_of(service())["services"][0]
    assert "--enable-lora" not in plain["command"] and "adapters" not in plain["checks"]


def test_the_memory_of_adapters_is_counted() -> None:
    """Qwen3-8B, four of rank 64: rows and columns of the matrices of 36 layers, of the embedding and of the head."""
    single = 36 * (3 * 4096 + 4096 + 2 * 1024 + 2 * 4096 + 3 * (4096 + 12288)) + 2 * (151_936 + 4096)
    share = {"gpu-memory-utilization": 0.5}
    plain = plan_of(service(args=share))["services"][0]["memory"]
    more = plan_of(service(args=share, lora={"adapters": [SQL], "max_rank": 64, "max_loras": 4}))["services"][0][
        "memory"
    ]
    lost = plain["available_kv_bytes"]["typical"] - more["available_kv_bytes"]["typical"]
    assert lost == more["adapters_bytes"] == 4 * 64 * 2 * single
    held = more["residency_gib"]["typical"] - plain["residency_gib"]["typical"]
    copies = 4 * 64 * 2 * (single - 2 * (151_936 + 4096)) / GIB
    assert held == pytest.approx(copies, abs=0.02), "the copies in host memory, beside what vLLM asks for"


@pytest.mark.parametrize(
    ("lora", "needle"),
    [
        ({"adapters": []}, "'lora.adapters' is missing"),
        ({"adapters": [SQL], "rank": 8}, "unknown key of lora: 'rank'"),
        (
            {"adapters": [{"name": "writer", "repo": "a/b"}]},
            "names 'writer', which is what clients send for the model itself",
        ),
        ({"adapters": [SQL, SQL]}, "'lora.adapters[1].name' is 'sql'; another entry has that name"),
        ({"adapters": [{"name": "a=b", "repo": "a/b"}]}, "without '='"),
        ({"adapters": [{"name": "a", "repo": "nothing"}]}, "'lora.adapters[0].repo' is 'nothing'; it must be ORG/NAME"),
        ({"adapters": [SQL], "max_rank": 24}, "lora.max_rank is 24; vLLM takes 1, 8, 16"),
        ({"adapters": [SQL], "max_loras": 0}, "'lora.max_loras' is 0"),
        ({"adapters": [SQL], "max_loras": 4, "max_cpu_loras": 2}, "lora.max_cpu_loras is below max_loras"),
    ],
)
def test_what_is_wrong_is_named(lora: dict[str, Any], needle: str) -> None:
    resolved, problems = recipes.resolve_service(service(lora=lora), "host a", RECIPES)
    assert resolved is None
    assert any(needle in problem for problem in problems), problems


def test_options_that_say_it_twice_are_refused() -> None:
    _resolved, problems = recipes.resolve_service(
        service(lora={"adapters": [SQL]}, args={"max-lora-rank": 8}), "host a", RECIPES
    )
    assert any("args names max-lora-rank, which 'lora' says already" in problem for problem in problems), problems
