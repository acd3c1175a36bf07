# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""measurement_rows.py: rows of measured launches say nothing of who measured them, and files of others are checked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows as rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget

ROOT = Path(__file__).parents[5]
FIXTURES = Path(__file__).parents[2] / "fixtures"
LAUNCHES: dict[str, Any] = json.loads((FIXTURES / "gpu_rows.json").read_text(encoding="utf-8"))
GIB = 1 << 30
HOSTILE = (
    "alice-spark",
    "/home/alice/models",
    "sk-abc123def456ghi789",
    "secret_project",
    "10.1.2.3",
    "acme.internal",
    "2026-11-23",
)
START: dict[str, Any] = {
    **{
        "image_id": "sha256:" + "a" * 64,
        "image_ref": "registry.acme.internal/alice:1",
        "model": "1" * 32,
        "options": "2" * 32,
    },
    **{"max_model_len": 16384, "max_num_batched_tokens": 8192, "max_num_seqs": 256, "gpu_memory_utilization": 0.5},
    **{
        "vllm_version": "0.26.0+acme.7",
        "driver": "580.159.04",
        "gpu": "NVIDIA GB10",
        "requested_gib": 59.835,
        "weights_gib": 7.64,
    },
    **{
        "kv_cache_gib": 51.16,
        "inside_gib": [1.03, 1.03],
        "outside_gib": [1.5, 1.9],
        "peak_gib": 0.8,
        "non_torch_gib": 0.22,
    },
    **{"graphs_estimate_gib": None, "graphs_gib": 0.6},
}


def configs() -> list[tuple[str, dict[str, Any]]]:
    result = []
    for name, recipe in RECIPES.items():
        result.append((name, {key: recipe[key] for key in ("config", "quant_config") if recipe.get(key)}))
    more = json.loads((FIXTURES / "memory_rows_2026_11.json").read_text(encoding="utf-8"))
    return result + [(name, {"config": config}) for name, config in more["configs"].items()]


@pytest.mark.parametrize(("name", "config"), configs(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_fields_that_stay_are_all_that_the_plan_needs(name: str, config: dict[str, Any]) -> None:
    def planned(fields: dict[str, Any]) -> Any:
        service = {
            "name": "a",
            "vllm_version": "0.33.0",
            "args": {"gpu-memory-utilization": 0.9, "max-model-len": 4096},
        }
        return memory_budget({"services": [{**service, **fields}]})["services"]

    assert planned(rows.public_fields(config)) == planned(config)


def hostile_launch() -> dict[str, Any]:
    config = {
        **LAUNCHES["models"]["Qwen3-4B-Instruct-2507"],
        "_name_or_path": HOSTILE[1],
        "architectures": ["Qwen3ForCausalLM", "AliceForCausalLM"],
        "auto_map": {"AutoModel": "alice--modeling.Secret"},
        "secret_project": 5,
        "quantization_config": {"ignore": ["lm_head", *HOSTILE], HOSTILE[5]: True},
        "layer_types": ["full_attention"] * 36,
        "finetuning_task": HOSTILE[3],
    }
    args = {
        "kv-cache-dtype": "fp8",
        "served-model-name": HOSTILE[0],
        "chat-template": HOSTILE[1],
        "hf-overrides": {"token": HOSTILE[2]},
        "speculative-config": {"method": "eagle3", "model": HOSTILE[1], "num_speculative_tokens": 3},
        "limit-mm-per-prompt": {"image": 0, HOSTILE[0]: 1},
        "dtype": HOSTILE[3],
        "attention-backend": "FLASHINFER",
        "mamba-cache-dtype": HOSTILE[5],
    }
    start = {**START, "gpu": f"NVIDIA {HOSTILE[0]}", "driver": HOSTILE[4] + "-alice"}
    return {
        "repo": "acme/secret_project",
        "config": config,
        "quant_config": None,
        "draft_config": None,
        "args": args,
        "starts": [start],
    }


def test_a_file_names_nothing_that_is_the_owners() -> None:
    content, left_out = rows.export([hostile_launch()], ["Qwen/Qwen3-4B-Instruct-2507"])
    text = json.dumps(content).lower()
    assert left_out == [] and len(content["rows"]) == 1
    words = [
        word
        for item in HOSTILE
        for word in (item, *item.replace("/", "-").replace("_", "-").split("-"))
        if len(word) > 3 and word != "models"
    ]
    assert [
        word for word in (*words, "acme", "alice", "secret", "project", "registry", "sha256", "11111") if word in text
    ] == []
    (row,) = content["rows"]
    assert (
        row["model"].startswith("model-")
        and row["gpu"] == "NVIDIA"
        and row["driver"] is None
        and row["vllm"] == "0.26.0"
    )
    assert row["arguments"]["speculative-config"] == {"method": "eagle3", "num_speculative_tokens": 3}
    assert row["arguments"]["limit-mm-per-prompt"] == {"image": 0} and row["further_arguments"] == 5
    assert rows.problems(content) == []


def test_a_published_model_is_named_and_its_row_holds() -> None:
    launch = {**hostile_launch(), "repo": "Qwen/Qwen3-4B-Instruct-2507", "args": {}, "starts": [START]}
    launch["config"] = LAUNCHES["models"]["Qwen3-4B-Instruct-2507"]
    content, _remaining = rows.export([launch, launch], ["Qwen/Qwen3-4B-Instruct-2507"])
    (row,) = content["rows"]
    assert row["model"] == "Qwen3-4B-Instruct-2507" and row["gpu"] == "NVIDIA GB10" and row["driver"] == "580.159.04"
    assert row["total"] == pytest.approx(119.67 * GIB, rel=1e-6) and row["used"] == row["requested"] + int(1.7 * GIB)
    assert rows.problems(content) == [] and rows.contradiction(content, row) == ""
    off = {**row, "kv_cache": row["kv_cache"] - 5 * GIB}
    assert "46.16 GiB of KV cache, planned" in rows.contradiction(content, off)
    assert "model runner V1, planned V2" in rows.contradiction(content, {**row, "runner": 1})
    assert "cannot be planned" in rows.contradiction(content, {**row, "vllm": "0.9.0"})


@pytest.mark.parametrize("version", ["0.1.dev123+gabc", "nightly", None, "0.26.0\nalice"])
def test_a_launch_that_cannot_be_compared_is_left_out_with_the_reason(version: str | None) -> None:
    launch = {**hostile_launch(), "starts": [{**START, "vllm_version": version}]}
    content, left_out = rows.export([launch], [])
    assert content["rows"] == [] and "not a published one" in left_out[0]
    other = {**launch, "config": {**launch["config"], "model_type": "alices_family"}}
    assert "family" in rows.export([other], [])[1][0]


def test_the_rows_that_are_kept_have_no_problems() -> None:
    assert rows.problems(LAUNCHES) == []


def test_all_that_is_wrong_with_a_file_is_said_at_once() -> None:
    wrong = copy.deepcopy(LAUNCHES)
    wrong["schema"] = 2
    wrong["models"]["a b/c"] = {"path": "/home/alice"}
    first, second, third, fourth = wrong["rows"][:4]
    first.update(weights=-1, kv_cache="x", runner=3, host="alice", gpu="alice's", vllm="1.0 beta", model="none")
    second["arguments"] = {"served-model-name": "alice", "gpu-memory-utilization": 0.5}
    third["kv_cache"] = third["requested"]
    fourth["requested"] = fourth["total"] + 1
    wrong["rows"][5] = dict(wrong["rows"][6])
    wrong["rows"][7] = 7
    messages = "\n".join(rows.problems(wrong))
    for text in (
        "schema: expected 1",
        "no plain name",
        "no word of a published model",
        "rows[0].weights",
        "rows[0].kv_cache",
    ):
        assert text in messages
    for text in ("rows[0].runner", "rows[0].host: unknown key", "rows[0].gpu", "rows[0].vllm", "rows[0].model: 'none'"):
        assert text in messages
    for text in (
        "rows[1].arguments.served-model-name",
        "rows[1].arguments.max-num-seqs: is missing",
        "rows[2]: weights and kv_cache",
    ):
        assert text in messages
    assert "rows[3]: more is requested than total" in messages and "rows[6]: stands twice" in messages
    assert "rows[7]: expected an object" in messages
    assert rows.problems([]) and rows.problems({"schema": 1, "models": [], "rows": []})


def test_rows_are_added_once_and_models_of_one_name_are_told_apart() -> None:
    new = {
        "schema": 1,
        "models": dict(LAUNCHES["models"]),
        "rows": [dict(LAUNCHES["rows"][0]), {**LAUNCHES["rows"][1], "used": 1}],
    }
    result = rows.joined(LAUNCHES, new)
    assert len(result["rows"]) == len(LAUNCHES["rows"]) + 1 and rows.joined(result, new) == result
    assert result["rows"][-1]["launch"] == f"{LAUNCHES['rows'][1]['launch']} 2"
    other = {**LAUNCHES["models"]["Qwen3-4B-Instruct-2507"], "num_hidden_layers": 12}
    repeated = rows.joined(result, {**new, "models": {"Qwen3-4B-Instruct-2507": other}})
    assert (
        repeated["rows"][-1]["model"] == "Qwen3-4B-Instruct-2507-2"
        and repeated["models"]["Qwen3-4B-Instruct-2507-2"] == other
    )
    assert (
        rows.problems(repeated) == []
        and rows.joined(repeated, {**new, "models": {"Qwen3-4B-Instruct-2507": other}}) == repeated
    )
