# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two thousand broken configs and arguments, from a fixed seed: a clear refusal or a plan, never a traceback."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from memory_fixture import config, load

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget

ROUNDS = 2000
PARTS, EACH_CHANGE = 8, 4  # the others at night
VERSIONS = ["0.15.0", "0.17.1", "0.19.0", "0.23.0", "0.26.0", "0.33.0", "0.40.0", None]
GARBAGE: list[Any] = [
    None,
    0,
    -1,
    1,
    3,
    7,
    2**31,
    10**18,
    -(10**9),
    0.5,
    -0.5,
    1e300,
    float("nan"),
    float("inf"),
    True,
    False,
    "",
    "x",
    "128",
    "auto",
    "bfloat16",
    "\u00e4\n",
    [],
    {},
    [None],
    [1, "x", {}],
    [[[]]],
    ["full_attention"] * 3,
    {"a": 1},
    {"a": {"b": [{"c": None}]}},
]
# What people set, with values that vLLM takes; a mutation spoils one or two of them.
ARGS: dict[str, Any] = {
    "gpu-memory-utilization": 0.8,
    "max-model-len": 8192,
    "max-num-seqs": 4,
    "max-num-batched-tokens": 8192,
    "kv-cache-dtype": "fp8",
    "enable-prefix-caching": True,
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "block-size": 32,
    "num-gpu-blocks-override": 4000,
    "kv-cache-memory-bytes": 4 << 30,
    "enable-chunked-prefill": True,
    "enforce-eager": True,
    "async-scheduling": True,
    "language-model-only": True,
    "disable-hybrid-kv-cache-manager": True,
    "mamba-cache-mode": "align",
    "mamba-cache-dtype": "float16",
    "mamba-ssm-cache-dtype": "float32",
    "dtype": "bfloat16",
    "quantization": "fp8",
    "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
    "kv-cache-dtype-skip-layers": ["sliding_window"],
    "limit-mm-per-prompt": {"image": 0},
}


def nested(target: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return the mapping itself or one somewhere inside."""
    while chance.random() < 0.6:
        inner = [value for value in target.values() if isinstance(value, dict) and value]
        if not inner:
            break
        target = chance.choice(inner)
    return target


def mutate(target: dict[str, Any], chance: random.Random) -> str:
    """Break one field; return its name."""
    spot = nested(target, chance)
    key = chance.choice(sorted(spot) or ["model_type"])
    value = spot.get(key)
    how = chance.choice(["delete", "garbage", "garbage", "scale", "element", "retype"])
    if how == "delete":
        spot.pop(key, None)
    elif how == "scale" and isinstance(value, (int, float)) and not isinstance(value, bool):
        spot[key] = chance.choice([-value, value * 10**6, value + 1, value - 1, float(value), value // 2])
    elif how == "element" and isinstance(value, list) and value:
        value[chance.randrange(len(value))] = chance.choice(GARBAGE)
        if chance.random() < 0.5:
            del value[chance.randrange(len(value)) :]
    elif how == "retype":
        spot[key] = chance.choice([str(value), [value], {"value": value}])
    else:
        spot[key] = chance.choice(GARBAGE)
    return key


def broken(chance: random.Random) -> dict[str, Any]:
    """A service of a real model of which something is wrong."""
    model = chance.choice(sorted(load()["configs"]))
    quantized = [key.removeprefix(f"{model} ") for key in load()["quantization"] if key.startswith(f"{model} ")]
    made: dict[str, Any] = {
        "name": "one",
        "config": config(model, chance.choice([None, *sorted(quantized)])),
        "vllm_version": chance.choice(VERSIONS),
        "args": {key: ARGS[key] for key in chance.sample(sorted(ARGS), chance.choice([0, 2, 4, 8]))},
    }
    if chance.random() < 0.1:
        made["draft_config"] = config("Qwen3-4B-Instruct-2507")
        made["args"]["speculative-config"] = {"method": "draft_model", "num_speculative_tokens": 3}
    made = json.loads(json.dumps(made))  # nothing is shared with the fixture
    for _change in range(chance.choice([1, 1, 2, 4])):
        where = chance.random()
        if where < 0.7:
            mutate(made["config"], chance)
        elif where < 0.9 and made["args"]:
            mutate(made["args"], chance)
        elif "draft_config" in made and where < 0.95:
            mutate(made["draft_config"], chance)
        else:
            key = chance.choice(
                ["weights_gib", "draft_weights_gib", "vllm_version", "quant_config", "available_kv_bytes"]
            )
            made[key] = chance.choice(GARBAGE)
    return made


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.nightly] if part >= EACH_CHANGE else []) for part in range(PARTS)]
)
def test_broken_services_are_refused_or_planned(part: int) -> None:
    chance = random.Random(f"memory {part}")
    seen: Counter[str] = Counter()
    for _round in range(ROUNDS // PARTS):
        fields = broken(chance)
        before = repr(fields)
        try:
            result = memory_budget({"services": [fields]})
        except InputError as error:
            assert error.messages
            assert all(message.startswith(("service one: ", "services")) for message in error.messages), error.messages
            seen["input"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} for {before}") from error
        assert repr(fields) == before, "the input was changed"
        json.dumps(result, allow_nan=False)
        seen[result["verdict"]] += 1
        for finding in result["findings"]:
            if finding["rule"] == "memory.refused":
                # It names the field that is wrong, by its place in the input.
                assert (
                    ": config" in finding["message"]
                    or ": args." in finding["message"]
                    or any(
                        f": {key}" in finding["message"]
                        for key in ("quant_config", "draft_", "vllm_version", "weights")
                    )
                ), finding["message"]
                seen["refused"] += 1
    assert set(seen) >= {"input", "fits", "fails", "refused"}, seen


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"args": {"pipeline-parallel-size": 2**31}}, "args.pipeline-parallel-size"),
        (
            {"args": {"speculative-config": {"method": ["mtp"], "num_speculative_tokens": 2}}},
            "speculative-config.method",
        ),
        ({"config": {**config("Qwen3-8B"), "layer_types": [{}] * 36}}, "config.layer_types[0]"),
        ({"config": {**config("Qwen3-8B"), "num_hidden_layers": 10**18}}, "config.num_hidden_layers"),
        ({"weights_gib": 1e300}, "weights_gib"),
        ({"draft_weights_gib": float("nan")}, "draft_weights_gib"),
    ],
)
def test_what_once_broke_is_refused_by_name(changes: dict[str, Any], phrase: str) -> None:
    fields = {"name": "one", "config": config("Qwen3-8B"), "vllm_version": "0.23.0", **changes}
    try:
        result = memory_budget({"services": [fields]})
    except InputError as error:
        assert [message for message in error.messages if phrase in message]
    else:
        assert [item for item in result["findings"] if item["rule"] == "memory.refused" and phrase in item["message"]]


def test_broken_hosts_are_refused_or_planned() -> None:
    chance = random.Random("hosts")
    seen: Counter[str] = Counter()
    for _round in range(500):
        node: dict[str, Any] = {
            "total_gib": 119.67,
            "os_reserve_gib": 5.2,
            "safety_margin_gib": 2.0,
            "measured": {
                "mem_available_gib": 100.0,
                "mem_free_gib": 20.0,
                "resident": [{"name": "one", "gib": 10.0}, {"name": "two", "gib": 5.0}],
            },
            "overheads": {"inside_gib": {"low": 1, "typical": 2, "high": 3}, "load_gib_per_second": 0.2},
            "services": [
                {"name": "one", "config": config("Qwen3-8B"), "share": 2, "args": {"max-model-len": 8192}},
                {"name": "asr", "memory_gib": 3},
            ],
        }
        service = node["services"][chance.randrange(2)]
        mutate(
            chance.choice([node, node["measured"], node["measured"]["resident"][0], node["overheads"], service]), chance
        )
        try:
            result = memory_budget(node)
        except InputError as error:
            assert error.messages
            seen["input"] += 1
        else:
            json.dumps(result, allow_nan=False)
            seen[result["verdict"]] += 1
    assert set(seen) >= {"input", "fits", "fails"}, seen
