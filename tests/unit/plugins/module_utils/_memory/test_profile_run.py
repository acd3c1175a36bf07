# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""profile_run.py: what an engine finds in use, against launches of vLLM 0.26.0 on a GPU; who gets which model runner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.profile_run import (
    COUNTS_GRAPHS,
    GRAPHS_VARIABLE,
    Launch,
    ProfileRun,
    count_configured_captures,
    count_default_captures,
    is_compiled,
    is_v2_runner,
    profile_by_batch,
    profile_run,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import version

LAUNCHES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "gpu_rows.json").read_text(encoding="utf-8")
)
ROWS: list[dict[str, Any]] = LAUNCHES["rows"]
GIB = 1 << 30
ROOT = Path(__file__).parents[5]


def planned(row: dict[str, Any], **args: Any) -> dict[str, Any]:
    return measurement_rows.planned(LAUNCHES, {**row, "arguments": {**row["arguments"], **args}})


def launch(row: dict[str, Any], version: str = "0.26.0") -> Launch:
    args = row["arguments"]
    spec = args.get("speculative-config") or {}
    return Launch(
        release=parse_release(version),
        batch=args["max-num-batched-tokens"],
        sequences=args["max-num-seqs"],
        drafts=spec.get("num_speculative_tokens", 0),
        eager=args.get("enforce-eager", False),
        v2=spec.get("method") != "ngram",
        quantised="quantization_config" in LAUNCHES["models"][row["model"]],
    )


def run_of(row: dict[str, Any], version: str = "0.26.0", **changes: Any) -> ProfileRun:
    config = LAUNCHES["models"][row["model"]]
    return profile_run(config, read_geometry(config), replace(launch(row, version), **changes))


def row_of(name: str) -> dict[str, Any]:
    return next(row for row in ROWS if row["launch"] == name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["launch"])
def test_the_cache_is_within_four_percent_and_the_range_holds_it(row: dict[str, Any]) -> None:
    made = planned(row)
    assert measurement_rows.contradiction(LAUNCHES, row) == ""
    # Of launches that others sent in only the range is asked for.
    assert row.get("rounded") or abs(made["available_kv_bytes"]["typical"] - row["kv_cache"]) <= max(
        0.04 * row["kv_cache"], 0.1 * GIB
    )


@pytest.mark.parametrize("row", [row for row in ROWS if not row.get("rounded")], ids=lambda row: row["launch"])
def test_the_peak_of_torch(row: dict[str, Any]) -> None:
    recurrent = bool(read_geometry(LAUNCHES["models"][row["model"]]).recurrent)
    # A GPU with more multiprocessors than a GB10 has a larger buffer for sampling, at most 84 rows of the vocabulary.
    assert run_of(row).compiled == pytest.approx(row["torch_peak"], rel=0.06)
    if not recurrent and row["runner"] == 2:
        assert run_of(row).compiled == pytest.approx(row["torch_peak"], rel=0.005)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["graphs_gib"] and not row.get("rounded")], ids=lambda row: row["launch"]
)
def test_graphs_and_what_is_taken_off_the_cache_for_them(row: dict[str, Any]) -> None:
    run = run_of(row)
    assert run.graphs / GIB == pytest.approx(row["graphs_gib"], rel=0.15)
    assert run.graphs_inside == pytest.approx(row["graphs_estimate"], rel=0.2)
    assert (run.graphs_inside == 0) == (row["runner"] == 2)


def test_eager_has_no_graphs_and_compiles_nothing() -> None:
    run = run_of(row_of("q4-eager-2048-16"))
    assert (run.graphs, run.graphs_inside, run.compiled) == (0, 0, run.peak)
    assert run_of(row_of("q4-graphs-2048-16")).compiled > 3 * run.peak


def test_graphs_beside_the_request_are_held_by_the_engine() -> None:
    row = row_of("q4-graphs-8192")
    graphs, eager = planned(row), planned(row, **{"enforce-eager": True})
    remaining = (graphs["overhead_gib"]["typical"] - eager["overhead_gib"]["typical"]) / 2
    more = graphs["beside_gib"]["typical"] - eager["beside_gib"]["typical"]
    assert more == pytest.approx(row["graphs_gib"], abs=0.05)
    held = graphs["residency_gib"]["typical"] - eager["residency_gib"]["typical"]
    assert held == pytest.approx(more - remaining, abs=0.02)


@pytest.mark.parametrize(
    ("version", "runner", "inside"),
    [("0.19.0", 1, False), ("0.21.0", 1, True), ("0.24.0", 2, False), ("0.28.0", 2, False), ("0.29.0", 2, True)],
)
def test_graphs_by_release(version: str, runner: int, inside: bool) -> None:
    run = run_of(row_of("q4-graphs-8192"), version)
    assert (run.runner, bool(run.graphs_inside)) == (runner, inside)


@pytest.mark.parametrize(
    ("architecture", "text", "hybrid", "first"),
    [
        ("Qwen3ForCausalLM", {}, False, 22),
        ("LlamaForCausalLM", {}, False, 23),
        ("LlamaForCausalLM", {"quantised": True}, False, 24),
        ("GemmaForCausalLM", {}, False, 25),
        ("GemmaForCausalLM", {"quantised": True}, False, 25),
        ("Qwen2MoeForCausalLM", {"num_experts": 64}, False, 24),
        ("Qwen3MoeForCausalLM", {"num_experts": 128}, False, 29),
        ("Qwen3_5ForConditionalGeneration", {}, True, 29),
        ("DeepseekV4ForCausalLM", {"n_routed_experts": 256}, False, 28),
        ("KimiK3ForConditionalGeneration", {"num_experts": 64}, True, 27),
    ],
)
def test_who_gets_the_v2_runner(architecture: str, text: dict[str, Any], hybrid: bool, first: int) -> None:
    request = Launch(parse_release("0.22.0"), 2048, 256, quantised=text.pop("quantised", False))
    config = {"architectures": [architecture], **text}
    served = [
        minor
        for minor in range(19, 34)
        if is_v2_runner(config, hybrid, replace(request, release=parse_release(f"0.{minor}.0")))
    ]
    assert served == list(range(first, 34))
    assert not is_v2_runner(config, hybrid, replace(request, release=parse_release("0.33.0"), v2=False))


@pytest.mark.parametrize(
    ("sequences", "drafts", "batch", "family", "sizes"),
    [
        (256, 0, 8192, "", 51),
        (16, 0, 2048, "", 7),
        (16, 0, 8192, "gpt_oss", 83),
        (4, 3, 2048, "", 7),
        (256, 0, 64, "", 11),
    ],
)
def test_sizes_of_batches_that_are_captured(sequences: int, drafts: int, batch: int, family: str, sizes: int) -> None:
    request = Launch(parse_release("0.26.0"), batch, sequences, drafts=drafts)
    assert count_default_captures(request, family) == sizes


@pytest.mark.parametrize(
    ("compilation", "sizes", "compiled"),
    [
        ({}, -1, True),
        ({"mode": 3}, -1, True),
        ({"cudagraph_mode": "none"}, 0, True),
        ({"cudagraph_mode": "FULL_DECODE_ONLY"}, -1, True),
        ({"cudagraph_mode": "PIECEWISE", "mode": "NONE"}, 0, False),
        ({"mode": 0}, -1, False),
        ({"cudagraph_capture_sizes": [1, 2, 4, 4, 8, 4096]}, 4, True),
        ({"max_cudagraph_capture_size": 16}, 5, True),
        ({"max_cudagraph_capture_size": 0}, 0, True),
    ],
)
def test_graphs_that_a_launch_asks_for(compilation: dict[str, Any], sizes: int, compiled: bool) -> None:
    assert (count_configured_captures(compilation, 2048), is_compiled(compilation)) == (sizes, compiled)


def test_a_service_says_which_graphs_and_which_runner() -> None:
    row = next(row for row in ROWS if not row["arguments"].get("enforce-eager"))
    plain = planned(row)
    few = planned(row, **{"compilation-config": {"cudagraph_capture_sizes": [1, 2, 4]}})
    none = planned(row, **{"compilation-config": '{"cudagraph_mode": "NONE"}'})
    held = [item["beside_gib"]["typical"] + item["overhead_gib"]["typical"] for item in (plain, few, none)]
    assert held[0] > held[1] > held[2]
    runners = {
        value: planned_with({"VLLM_USE_V2_MODEL_RUNNER": value}, row)["model_runner"]
        for value in ("0", "1", 1, "", "2x")
    }
    assert runners == {"0": 1, "1": 2, 1: 2, "": plain["model_runner"], "2x": plain["model_runner"]}


@pytest.mark.parametrize(
    ("vllm", "runner", "counted"),
    [
        ("0.17.0", 1, {None: False, "0": False, "1": False}),
        ("0.19.0", 1, {None: False, "0": False, "1": True, 1: True, "": False}),
        ("0.20.0", 1, {None: True, "0": False, "1": True, 0: False, "": True, "no": True}),
        ("0.28.0", 2, {None: False, "0": False, "1": False}),
        ("0.29.0", 2, {None: True, "0": False, "1": True}),
        ("0.33.0", 2, {None: True, "0": False, " 2": True}),
    ],
)
def test_the_environment_decides_whether_graphs_reduce_the_cache(
    vllm: str, runner: int, counted: dict[Any, bool]
) -> None:
    row = {**row_of("q4-graphs-8192"), "vllm": vllm}
    eager = planned_with({}, {**row, "arguments": {**row["arguments"], "enforce-eager": True}})
    for value, is_counted in counted.items():
        made = planned_with({} if value is None else {GRAPHS_VARIABLE: value}, row)
        assert made["model_runner"] == runner
        caches = [entry["available_kv_bytes"]["high"] for entry in (made, eager)]
        assert (caches[0] < caches[1], caches[0] == caches[1]) == (is_counted, not is_counted), value
        # Graphs that do not reduce the cache are held in addition to the request.
        assert (made["beside_gib"]["typical"] - eager["beside_gib"]["typical"] < 0.2) == is_counted, value


def test_the_variable_is_known_from_the_release_that_first_reads_it() -> None:
    span = catalogue.names("environment")[GRAPHS_VARIABLE.removeprefix("VLLM_")]
    minor = COUNTS_GRAPHS[1][0]
    assert [span.has(version(f"0.{number}.0")) for number in (minor, minor - 1)] == [True, False]


def planned_with(env: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Plan a launch with variables of the environment."""
    fields = {"name": "a", "config": LAUNCHES["models"][row["model"]], "vllm_version": row["vllm"], "env": env}
    result = memory_budget({"total_gib": 119.67, "services": [{**fields, "args": row["arguments"]}]})
    made: dict[str, Any] = result["services"]["a"]
    return made


def test_ranks_share_what_is_split() -> None:
    row = row_of("q30bf16-eager-8192-256")
    alone, pair = run_of(row, sequences=8), run_of(row, sequences=8, ranks=2)
    assert pair.peak < alone.peak < 2 * pair.peak


def test_experts_of_replicas_take_the_tokens_of_all() -> None:
    """Inputs are gathered from all replicas, and experts have two workspaces for them: for chosen tokens and for their width."""
    row = row_of("q30bf16-eager-8192-256")
    alone = run_of(row, sequences=8)
    undivided = run_of(row, sequences=8, replicas=2, experts_whole=True)
    cut = run_of(row, sequences=8, replicas=2)
    batch, hidden, chosen, inner = launch(row).batch, 2048, 8, 768
    assert undivided.peak - alone.peak == batch * 2 * (chosen * (hidden + max(2 * inner, hidden)) + 4 * hidden)
    # Halves of an expert need the same memory here: their output has the full width.
    assert cut.peak == undivided.peak
    dense = row_of("q4-eager-8192-256")
    assert run_of(dense, replicas=2).peak == run_of(dense).peak


@pytest.mark.parametrize("row", [row for row in ROWS if not row.get("rounded")], ids=lambda row: row["launch"])
def test_the_range_by_the_batch_alone_holds_what_was_measured(row: dict[str, Any]) -> None:
    run = profile_by_batch(row["arguments"]["max-num-batched-tokens"])
    assert 0 < run.peak < run.compiled
    assert row["torch_peak"] + (row["graphs_estimate"] or 0) <= run.compiled + run.unknown


@pytest.mark.parametrize("changes", [{"vocab_size": None}, {"hidden_size": ["x"]}, {"hidden_size": True}])
def test_a_config_that_tells_no_widths_is_taken_by_its_batch(changes: dict[str, Any]) -> None:
    config = LAUNCHES["models"]["Qwen3-30B-A3B"]
    row = row_of("q30bf16-eager-8192-256")
    run = profile_run({**config, **changes}, read_geometry(config), launch(row))
    assert run == profile_by_batch(8192)
    assert run.compiled == pytest.approx(row["torch_peak"], rel=0.1)


def test_loading_counts_the_drafter_and_what_kernels_need_to_reorder() -> None:
    made = planned(row_of("q36nvfp4-mtp3-eager"))
    assert made["draft_bytes"] > 0
    assert made["load_peak_bytes"] == pytest.approx(
        made["weights_bytes"] + made["draft_bytes"] + 1.35 * GIB, abs=1 << 20
    )
    plain = planned(row_of("q30bf16-eager-8192-256"))
    assert plain["load_peak_bytes"] == plain["weights_bytes"]


def test_large_layers_of_experts_need_more_while_they_are_reordered() -> None:
    """gpt-oss-120b has 128 experts a layer, the 20b 32: kernels reorder a layer at a time, in addition to the loaded weights."""
    small = yaml.safe_load((ROOT / "playbooks/recipes/gpt-oss-20b.yml").read_text(encoding="utf-8"))["config"]
    large = yaml.safe_load((ROOT / "playbooks/recipes/gpt-oss-120b.yml").read_text(encoding="utf-8"))["config"]

    def extra(config: dict[str, Any], **service: Any) -> float:
        args = {"gpu-memory-utilization": 0.85, "max-model-len": 8192}
        fields = {"name": "x", "config": config, "vllm_version": "0.33.0", "args": args, **service}
        made = memory_budget({"services": [fields]})["services"]["x"]
        return float(made["load_peak_bytes"] - made["weights_bytes"]) / GIB

    # 3 matrices of 3072 x 2944 in 4 bits with a scale for every 32.
    layer = 128 * 3 * 3072 * 2944 * (0.5 + 1 / 32) / GIB
    assert extra(small) == pytest.approx(1.35, abs=0.01)
    assert extra(large) == pytest.approx(2.1 * layer, rel=0.01)
    assert extra({**large}, overheads={"load_gib": 0.5}) == pytest.approx(0.5, abs=0.01), "what somebody set stays"
