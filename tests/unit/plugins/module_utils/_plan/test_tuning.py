# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tuning: variants of planned services, the budget, the choice, and options that the inventory keeps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench_fixture import load, row
from planned_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.action.tune import with_block
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import tuning
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.plan import make_plan

ROOT = Path(__file__).parents[5]
LEVERS = yaml.safe_load((ROOT / "playbooks" / "vars" / "tune_levers.yml").read_text(encoding="utf-8"))["tune_levers"]
SETTINGS, _ = tuning.read("host s1", {}, LEVERS)


def planned(
    recipe: str = "qwen3-8b", args: dict[str, Any] | None = None, tuned: Any = None, **more: Any
) -> dict[str, Any]:
    entry = {"name": "heavy", "recipe": recipe, "port": 8001, "args": {"max-num-seqs": 4, **(args or {})}, **more}
    variables = {"spark_services": [entry], "spark_tuned": tuned or {}}
    service: dict[str, Any] = make_plan({"s1": {"vars": variables}}, RECIPES)["hosts"]["s1"]["services"][0]
    return service


def session_of(**trials: tuning.Trial) -> tuning.Session:
    return tuning.Session(
        "base",
        {
            tuning.BASE: tuning.Trial({}, "proved", "", {"stream": 10.0, "together": 40.0, "prompt": 1000.0}, 60.0),
            **trials,
        },
    )


def proved(**figures: float) -> tuning.Trial:
    return tuning.Trial({"x": 1}, "proved", "", figures, 60.0)


def test_each_variant_differs_in_one_lever_from_the_service() -> None:
    service = planned(args={"max-num-batched-tokens": 4096})
    changes = tuning.variants(service, LEVERS, SETTINGS)
    assert next(iter(changes)) == tuning.BASE and changes[tuning.BASE] == {}
    assert all(len(args) == 1 for name, args in changes.items() if name != tuning.BASE)
    assert changes["chunk-8192"] == {"max-num-batched-tokens": 8192} and changes["chunk-2048"] == {
        "max-num-batched-tokens": 2048
    }
    assert changes["streams-8"] == {"max-num-seqs": 8} and changes["capture-sizes-every"] == {
        "cudagraph-capture-sizes": [1, 2, 3, 4]
    }
    # Present settings are no variants, nor are levers without their option.
    assert not any(name.startswith(("draft-depth", "experts-kernel", "graphs-")) for name in changes)
    plans = [planned(args={"max-num-batched-tokens": 4096}, tuned={"heavy": args}) for args in changes.values()]
    checksums = {tuning.launch_checksum(plan) for plan in plans}
    assert len(checksums) == len(changes)


def test_levers_apply_to_launches_that_have_them() -> None:
    drafting = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}, "enforce-eager": True}
    changes = tuning.variants(planned("qwen3.6-35b-a3b-nvfp4-modelopt", drafting), LEVERS, SETTINGS)
    assert changes["draft-depth-3"] == {"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}}
    assert changes["no-drafts-off"] == {"speculative-config": None} and changes["graphs-off"] == {"enforce-eager": None}
    assert changes["capture-sizes-every"] == {"cudagraph-capture-sizes": [3, 6, 9, 12]}
    # vLLM takes Marlin by itself.
    assert "experts-kernel-flashinfer-cutlass" in changes and "experts-kernel-marlin" not in changes
    only, problems = tuning.read("host s1", {"levers": ["chunk"], "variants": {"mine": {"max_num_seqs": 3}}}, LEVERS)
    changes = tuning.variants(planned(), LEVERS, only)
    assert not problems and set(changes) - {"present", "mine"} == {name for name in changes if name.startswith("chunk")}
    assert changes["mine"] == {"max-num-seqs": 3}


def test_mistakes_in_settings_are_named() -> None:
    _settings, problems = tuning.read(
        "host s1", {"levers": ["chonk"], "minutes": 0, "goal": "fast", "variants": {"a": 1}}, LEVERS
    )
    text = "\n".join(problems)
    assert "did you mean 'chunk'" in text and "minutes" in text and "goal" in text and "variants.a" in text


def test_the_highest_gain_of_the_goal_wins_if_it_is_enough() -> None:
    session = session_of(
        wide=proved(stream=9.0, together=80.0, prompt=1000.0),
        quick=proved(stream=11.0, together=41.0, prompt=1100.0),
        broken=tuning.Trial({"x": 2}, "failed", "it crashed", {"stream": 99.0}),
        silent=proved(),
    )
    chosen = {goal: tuning.best(session, {**SETTINGS, "goal": goal}) for goal in ("balance", *tuning.GOALS)}
    assert chosen == {"balance": "wide", "stream": "quick", "together": "wide", "prompt": "quick"}
    assert tuning.gain(session, "wide", "balance") == pytest.approx((0.9 * 2 * 1) ** (1 / 3) - 1)
    assert tuning.best(session, {**SETTINGS, "goal": "stream", "gain_percent": 10.5}) == tuning.BASE
    text = tuning.report(session, SETTINGS, "wide")
    assert "* wide" in text and "it crashed" in text and "+21.6%" in text


def test_a_session_goes_on_where_it_was_and_begins_anew_for_another_launch() -> None:
    service, named = planned(), {tuning.BASE: {}, "a": {"max-num-seqs": 8}, "b": {"max-num-seqs": 2}}
    first = tuning.begin(None, service, named)
    first.trials["a"] = tuning.Trial({"max-num-seqs": 8}, "proved", "", {"stream": 12.0}, 9.0)
    first.deployed = "a"
    content = tuning.Session.from_dict(asdict(first))
    again = tuning.begin(content, service, named)
    assert again.trials["a"].figures == {"stream": 12.0} and again.trials["b"].state == "open" and again.deployed == "a"
    other = tuning.begin(content, service, {**named, "a": {"max-num-seqs": 16}})
    assert other.trials["a"].state == "open"
    changed = tuning.begin(content, planned(args={"max-model-len": 8192}), named)
    assert changed.trials["a"].state == "open" and changed.deployed == ""


def test_the_budget_and_the_plan_decide_what_is_tried() -> None:
    session = session_of(
        a=tuning.Trial({"x": 1}), b=tuning.Trial({"x": 2}), c=tuning.Trial({"x": 3}, "failed", "no kernel")
    )
    session.errors = ["old: error"]
    assert tuning.why_not(session, "a", ["old: error"], 10.0, SETTINGS) == ""
    assert (
        tuning.why_not(session, "a", ["memory.node: too much"], 10.0, SETTINGS)
        == "it does not fit: memory.node: too much"
    )
    assert session.trials["a"].state == "unfit"
    assert "no kernel" in tuning.why_not(session, "c", [], 10.0, SETTINGS)
    # The longest trial took a minute.
    minutes = {**SETTINGS, "minutes": 2}
    assert tuning.why_not(session, "b", [], 59.0, minutes) == "" and "2 minutes" in tuning.why_not(
        session, "b", [], 61.0, minutes
    )
    session.restarts = 12
    assert "12 restarts" in tuning.why_not(session, "b", [], 0.0, SETTINGS)
    session.trials[tuning.BASE] = tuning.Trial({}, "failed", "busy")
    assert tuning.why_not(session, "b", [], 0.0, SETTINGS) == "the present service was not measured"


def test_figures_come_from_a_benchmark() -> None:
    section = {
        "single": [row(4096, 41.0, 7000.0), row(512, 43.0, 6000.0)],
        "concurrency": [load(4, 120.0), load(16, 300.0)],
    }
    assert tuning.figures_of(section) == {"stream": 43.0, "together": 300.0, "prompt": 7000.0}
    assert tuning.figures_of({"single": [], "concurrency": []}) == {}


def test_tuned_options_replace_those_of_the_service() -> None:
    tuned = {"heavy": {"max_num_seqs": 7, "enforce-eager": None}}
    service = planned(args={"enforce_eager": True}, tuned=tuned)
    assert service["args"]["max-num-seqs"] == 7 and "enforce-eager" not in service["args"]
    with pytest.raises(InventoryError, match="spark_tuned: 'light' is no service of this host"):
        planned(tuned={"light": {"max-num-seqs": 1}})


def test_a_file_of_variables_gets_a_block_and_keeps_all_else() -> None:
    text = "# mine\nansible_host: 192.0.2.1  # address\nspark_services:\n  - {name: heavy, port: 1}\n"
    once = with_block(text, {"heavy": {"max-num-seqs": 8}})
    assert once.startswith(text) and yaml.safe_load(once)["spark_tuned"] == {"heavy": {"max-num-seqs": 8}}
    twice = with_block(once, {"heavy": {"max-num-seqs": 4}})
    assert twice.startswith(text) and twice.count("spark_tuned:") == 1
    assert yaml.safe_load(with_block("", {"a": {"b": 1}})) == {"spark_tuned": {"a": {"b": 1}}}
    for refused in ("spark_tuned: {heavy: {}}\n", "[1, 2]\n", "{a: 1}\n"):
        with pytest.raises((ValueError, yaml.YAMLError)):
            with_block(refused, {"heavy": {}})
