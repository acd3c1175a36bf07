# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A first set of models, chosen from the recipes."""

from __future__ import annotations

import pytest
from planned_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_choice
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_choice import Pick, Wish
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import Rate


def pick(recipe: str, rate: float, weights: float = 20.0, jobs: tuple[str, ...] = model_choice.ALL_ROUND) -> Pick:
    return Pick(recipe, 1, Rate(rate, "published"), weights, jobs)


@pytest.mark.parametrize(
    ("recipe", "base", "service"),
    [
        ("qwen3.6-35b-a3b-nvfp4-modelopt", "qwen3.6-35b", "qwen36"),
        ("gpt-oss-120b", "gpt-oss-120b", "gpt-oss"),
        ("nemotron-3.5-lightning-30b-a3b-nvfp4", "nemotron-3.5-lightning-30b", "nemotron-35-lightning"),
        ("minimax-m3-nvfp4", "minimax-m3-nvfp4", "minimax-m3-nvfp4"),
    ],
)
def test_names(recipe: str, base: str, service: str) -> None:
    assert (model_choice.base_model(recipe), model_choice.service_name(recipe)) == (base, service)


def test_the_first_is_an_all_rounder_and_no_base_model_comes_twice() -> None:
    picks = [pick("fast-4b", 200, jobs=("chat",)), pick("a-30b-nvfp4", 100), pick("a-30b-fp8", 90), pick("b-20b", 80)]
    choices = model_choice.recommend(picks, ["s1", "s2", "s3", "s4"])
    assert model_choice.recommend([], ["s1"]) == {}
    # When all have been used, it begins again.
    assert [choice.recipe for choice in choices.values()] == [
        "a-30b-nvfp4",
        "fast-4b",
        "b-20b",
        "fast-4b",
    ]


def test_the_recipes_of_the_collection() -> None:
    """Each fits unchanged, has its published rate, and makes a service with a valid name."""
    choices = model_choice.picks(RECIPES, 1)
    rates = [choice.rate.value for choice in choices]
    assert len(choices) > 20 and rates == sorted(rates, reverse=True)
    assert {choice.rate.basis for choice in choices} == {"published", "predicted"}
    first = model_choice.recommend(choices, ["s1"])["s1"]
    assert set(model_choice.ALL_ROUND) <= set(first.jobs)
    assert first.service == {"name": model_choice.service_name(first.recipe), "recipe": first.recipe, "port": 8000}
    assert all(RECIPES[choice.recipe].get("nodes", 1) == 1 for choice in choices)


def test_a_wish_for_two_sparks_picks_recipes() -> None:
    """At least 30 tokens/s, a context of 100,000 tokens, tools."""
    wish = Wish(speed=30, context=100000, features=("tools",), sparks=2)
    choices = model_choice.picks(RECIPES, 2, wish)
    assert len(choices) >= 3 and all(choice.rate.value >= 30 and choice.nodes == 2 for choice in choices)
    without = {choice.recipe for choice in model_choice.picks(RECIPES, 2)} - {choice.recipe for choice in choices}
    assert "qwen3-235b-a22b-gptq-int4" in without  # 17 tokens/s at 40,960 tokens
    variant = next(choice for choice in choices if choice.recipe == "gpt-oss-120b")
    assert variant.service["variant"] == ["two-sparks"] and "args" not in variant.service
    # A recipe with a shorter context is asked for the wished one, which fits.
    longer = next(choice for choice in model_choice.picks(RECIPES, 1, wish) if choice.context)
    assert longer.service["args"] == {"max-model-len": 100000}
