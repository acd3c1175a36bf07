# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of every node with any services. The same examples at every run."""

from __future__ import annotations

import copy
import math
import os
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from memory_fixture import node_with_a_generous_neighbour, node_without_memory, service

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.node_memory import STEPS, Node
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_input import Host

# As many more where HOSTILE_CASES is 10,000 or more, at night.
QUICK = settings(
    max_examples=40 if int(os.environ.get("HOSTILE_CASES", "500")) >= 10_000 else 20,
    suppress_health_check=[HealthCheck.too_slow],
)

MODELS = [
    ("Qwen3-4B-Instruct-2507", None),
    ("Qwen3-8B", None),
    ("Qwen3-30B-A3B", "FP8"),
    ("Qwen3.6-35B-A3B", "NVFP4"),
    ("gpt-oss-20b", "MXFP4"),
    ("Gemma-4-31B", "NVFP4"),
    ("Nemotron-3-Nano-30B-A3B-BF16", None),
    ("Qwen3-Next-80B-A3B", "FP8"),
]
VERSIONS = ["0.19.0", "0.23.0", "0.33.0"]
UTILIZATION = st.integers(5, 95).map(lambda value: value / 100)
LENGTH = st.sampled_from([1024, 4096, 32768, 40960])  # all within the shortest maximum, of Qwen3-8B


@st.composite
def engines(draw: st.DrawFn, /, name: str = "one", **pinned: Any) -> dict[str, Any]:
    """One service; each open setting is a number, C(auto) or absent."""
    model, quantization = draw(st.sampled_from(MODELS))
    args: dict[str, Any] = {
        "gpu_memory_utilization": draw(st.one_of(st.none(), st.just("auto"), UTILIZATION)),
        "max_model_len": draw(st.one_of(st.none(), st.just("auto"), LENGTH)),
        "max_num_seqs": draw(st.one_of(st.none(), st.just("auto"), st.integers(1, 32))),
        "max_num_batched_tokens": draw(st.sampled_from([None, 8192])),
        "kv_cache_dtype": draw(st.sampled_from([None, "fp8"])),
        "enable_prefix_caching": draw(st.sampled_from([None, True, False])),
        **pinned,
    }
    made = service(name, model, quantization, draw(st.sampled_from(VERSIONS)))
    made["args"] = {key.replace("_", "-"): value for key, value in args.items() if value is not None}
    return made


@st.composite
def nodes(draw: st.DrawFn, /, **pinned: Any) -> dict[str, Any]:
    """A node with one to three engines, at times a sidecar."""
    count = draw(st.integers(1, 3))
    services = [draw(engines(f"s{index}", **pinned)) for index in range(count)]
    for item in services:
        item["share"] = draw(st.sampled_from([0, 0.5, 1, 3]))
    if draw(st.booleans()):
        services.append({"name": "asr", "memory_gib": draw(st.sampled_from([0.5, 4.0, 30.0]))})
    node: dict[str, Any] = {"services": services, "total_gib": draw(st.sampled_from([59.8, 119.67, 121.69]))}
    if draw(st.integers(0, 3)) == 0:  # the host has been asked, and some of it runs
        running = [
            {"name": item["name"], "gib": draw(st.floats(0, 60))} for item in services[: draw(st.integers(0, 2))]
        ]
        node["measured"] = {"mem_available_gib": draw(st.floats(0, 115)), "resident": running}
    return node


def pinned(node: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The node with every number that was worked out written down."""
    repeated = copy.deepcopy(node)
    for item in repeated["services"]:
        figures = result["services"][item["name"]]
        for key in figures.get("solved", ()):  # a refused service has no figures
            item["args"][key] = figures[key.replace("-", "_")]
    return repeated


def worst(result: dict[str, Any]) -> dict[tuple[str, str], int]:
    """How bad each rule is for each service."""
    severities: dict[tuple[str, str], int] = {}
    for finding in result["findings"]:
        key = (finding["service"], finding["rule"])
        severities[key] = max(severities.get(key, 0), ("info", "warning", "error").index(finding["severity"]))
    return severities


@QUICK
@given(nodes())
def test_the_order_of_services_is_no_matter(node: dict[str, Any]) -> None:
    assert memory_budget(node) == memory_budget({**node, "services": node["services"][::-1]})


@QUICK
@given(nodes())
def test_what_was_worked_out_is_the_same_when_it_is_given(node: dict[str, Any]) -> None:
    result = memory_budget(node)
    repeated = memory_budget(pinned(node, result))
    assert (repeated["verdict"], repeated["memory_map"]) == (result["verdict"], result["memory_map"])
    for name, figures in result["services"].items():
        assert repeated["services"][name] == {**figures, "solved": []}


@QUICK
@given(st.integers(1 << 30, 1 << 40), st.floats(0, 1))
def test_a_utilisation_is_the_smallest_step_that_asks_for_enough(total: int, part: float) -> None:
    node = Node(Host(total, 0, 0, None, None, {}), [])
    for size in (total * part, math.ceil(total * (round(part * STEPS) / STEPS))):  # the second to the byte
        share = node.share(size)
        assert math.ceil(total * share) >= size
        step = round(share * STEPS)
        assert step == 1 or math.ceil(total * ((step - 1) / STEPS)) < size


@QUICK
@given(nodes())
def test_the_memory_map_adds_up(node: dict[str, Any]) -> None:
    sizes = [part["gib"] for part in memory_budget(node)["memory_map"]]
    assert min(sizes) >= 0
    total = round(sum(sizes), 2)
    assert total == node["total_gib"] or (total > node["total_gib"] and sizes[-1] == 0)


@QUICK
@given(engines(), UTILIZATION, st.sampled_from([59.8, 119.67]), st.floats(0.01, 40))
def test_more_memory_never_gives_fewer_blocks(
    engine: dict[str, Any], utilization: float, total: float, more: float
) -> None:
    """With a given utilisation; a solved one stops at its target, which a larger node meets with fewer steps."""
    engine["args"]["gpu-memory-utilization"] = utilization
    less = memory_budget({"services": [engine], "total_gib": total})["services"]["one"]
    greater = memory_budget({"services": [engine], "total_gib": total + more})["services"]["one"]
    assert greater["num_blocks"] >= less["num_blocks"]
    assert greater["largest_safe_max_model_len"] >= less["largest_safe_max_model_len"]


@QUICK
@given(engines(), st.integers(5, 94))
def test_a_higher_utilisation_never_gives_fewer_blocks(engine: dict[str, Any], percent: int) -> None:
    result = []
    for share in (percent / 100, (percent + 1) / 100):
        engine["args"]["gpu-memory-utilization"] = share
        result.append(memory_budget({"services": [engine]})["services"]["one"])
    assert result[0]["num_blocks"] <= result[1]["num_blocks"]
    assert result[0]["residency_gib"]["typical"] <= result[1]["residency_gib"]["typical"]


@QUICK
@given(engines(gpu_memory_utilization="auto", max_model_len=8192, max_num_seqs=1))
def test_one_step_less_than_the_floor_fails(engine: dict[str, Any]) -> None:
    """The floor is one request of full length at high overheads; with one request at a time nothing asks for more."""
    result = memory_budget({"services": [engine]})
    assume(result["verdict"] == "fits")
    share = result["services"]["one"]["gpu_memory_utilization"]
    for step, fits in ((0.0, True), (0.01, False)):
        given_share = {**engine, "args": {**engine["args"], "gpu-memory-utilization": round(share - step, 2)}}
        assert (memory_budget({"services": [given_share]})["verdict"] == "fits") is fits


@QUICK
@given(engines(max_model_len="auto", max_num_seqs=None), UTILIZATION)
def test_one_token_more_than_the_longest_fails(engine: dict[str, Any], utilization: float) -> None:
    """The longest request passes at high overheads; or, if no request does, at the highest level at which a request passes."""
    engine["args"]["gpu-memory-utilization"] = utilization
    result = memory_budget({"services": [engine]})["services"]["one"]
    length = result["max_model_len"]
    assume(length and length == result["largest_safe_max_model_len"])
    config = engine["config"]
    if length >= config.get("text_config", config)["max_position_embeddings"]:
        return  # the model itself holds no longer one
    longer = {**engine, "args": {**engine["args"], "max-model-len": length + 1}}
    repeated = memory_budget({"services": [longer]})["services"]["one"]
    at_limit = memory_budget({"services": [{**engine, "available_kv_bytes": 2**50}]})["services"]["one"]
    assert repeated["largest_safe_max_model_len"] == length
    assert length == at_limit["max_model_len"] or repeated["verdict"] != "fits"


@QUICK
@given(engines(max_num_seqs="auto"))
def test_one_request_more_than_auto_is_not_held(engine: dict[str, Any]) -> None:
    """Held memory is judged with vLLM's default batch, which shrinks with very few and short requests."""
    result = memory_budget({"services": [engine]})["services"]["one"]
    assume(result["max_model_len"])
    count = result["max_num_seqs"]
    assert count <= max(1, min(int(result["max_concurrency"]), 256))
    share = result["gpu_memory_utilization"]
    more = {
        **engine["args"],
        "max-num-seqs": count + 1,
        "max-model-len": result["max_model_len"],
        "gpu-memory-utilization": share,
    }
    repeated = memory_budget({"services": [{**engine, "args": more}]})["services"]["one"]
    assert count == 256 or int(repeated["max_concurrency"]) <= count or result["max_num_batched_tokens"] < 2048


@QUICK
@given(engines(), st.sampled_from([1, 2, 4]))
def test_more_ranks_never_take_more_each(engine: dict[str, Any], ranks: int) -> None:
    result = []
    for count in (ranks, 2 * ranks):
        engine["args"].update({"tensor-parallel-size": count, "gpu-memory-utilization": 0.5, "max-model-len": 4096})
        result.append(memory_budget({"services": [engine]})["services"]["one"])
    assume(all("weights_bytes" in item for item in result))  # heads that do not divide are refused
    for key in ("weights_bytes", "load_peak_bytes", "bytes_per_block", "page_size_bytes"):
        assert result[1][key] <= result[0][key], key


@QUICK
@given(nodes(), st.integers(5, 94))
def test_more_for_one_never_makes_another_restart_pass(node: dict[str, Any], percent: int) -> None:
    for item in node["services"]:
        if "args" in item:
            item["args"].setdefault("gpu-memory-utilization", 0.2)
            if item["args"]["gpu-memory-utilization"] == "auto":
                item["args"]["gpu-memory-utilization"] = 0.2
    room = []
    for share in (percent / 100, (percent + 1) / 100):
        node["services"][0]["args"]["gpu-memory-utilization"] = share
        result = memory_budget(node)["services"]
        room.append({name: item["headroom_gib"] for name, item in result.items() if name != "s0"})
    for name, levels in room[0].items():
        assert all(room[1][name][level] <= size for level, size in levels.items())


@QUICK
@given(nodes())
@example(node_without_memory())
@example(node_with_a_generous_neighbour())
def test_a_fix_does_what_it_promises(node: dict[str, Any]) -> None:
    """After the changes of a fix the finding is gone or less severe, and there is no new error."""
    result = memory_budget(node)
    before = worst(result)
    for finding in result["findings"]:
        if not finding.get("changes"):
            continue
        repeated = copy.deepcopy(node)
        for change in finding["changes"]:
            entry = next(item for item in repeated["services"] if item["name"] == change["service"])
            entry["args"] = {k: v for k, v in {**entry["args"], **change["args"]}.items() if v is not None}
        after = worst(memory_budget(repeated))
        computed = (finding["service"], finding["rule"])
        assert after.get(computed, -1) < before[computed], finding
        assert {key for key, level in after.items() if level == 2} <= {
            key for key, level in before.items() if level == 2
        }


@QUICK
@given(nodes())
def test_every_word_of_vllm_is_dated(node: dict[str, Any]) -> None:
    for finding in memory_budget(node)["findings"]:
        assert ("vllm_error" in finding) == ("stage" in finding) == ("seconds" in finding)
        if "seconds" in finding:
            assert 0 < finding["seconds"]["low"] <= finding["seconds"]["typical"] <= finding["seconds"]["high"]


@QUICK
@given(nodes(gpu_memory_utilization="auto"))
def test_a_larger_share_never_gets_less(node: dict[str, Any]) -> None:
    first = node["services"][0]
    less = memory_budget(node)["services"]["s0"]["gpu_memory_utilization"]
    first["share"] = 2 * first["share"] + 1
    assert memory_budget(node)["services"]["s0"]["gpu_memory_utilization"] >= less
