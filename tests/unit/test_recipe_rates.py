# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Published rates of recipes: none of a recipe's own launch needs more than the memory bus carries."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan, recipes, speeds
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service import JudgedLaunch, ServiceSpec


def resolved(name: str, variant: str | None) -> tuple[ServiceSpec, JudgedLaunch]:
    """A way to serve of a recipe, and its unchanged launch."""
    entry = {"name": "model", "recipe": name, "port": 8000, "variant": [variant] if variant else []}
    service, problems = recipes.resolve_service(entry, name, RECIPES)
    assert service is not None, problems
    return service, JudgedLaunch(service.args, service.env, service.image.get("vllm_version"), "given", "serve", [], [])


def published() -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Every rate with its recipe and variant, those of other launches too."""
    for name, recipe in RECIPES.items():
        for variant, body in ((None, recipe), *(recipe.get("variants") or {}).items()):
            for entry in (body or {}).get("expect") or ():
                if entry.get("tokens_per_second"):
                    yield name, variant, entry


RATES = list(published())
OF_OTHERS = [rate for rate in RATES if rate[2].get("other_launch")]


def refusal(name: str, variant: str | None, entry: dict[str, Any]) -> str:
    return speeds.refused_rate(entry, *resolved(name, variant))


@pytest.mark.parametrize(("name", "variant", "entry"), [rate for rate in RATES if rate not in OF_OTHERS])
def test_a_published_rate_is_possible(name: str, variant: str | None, entry: dict[str, Any]) -> None:
    service, launch = resolved(name, variant)
    if entry.get("sparks", 1) == service.nodes:
        assert refusal(name, variant, entry) == ""
        streams = entry.get("streams", 1)
        speed = speeds.of_service(service, {**launch.args, "max-num-seqs": streams}, launch)
        if speed.ceiling_all is not None:  # the same, by the definition of the ceiling
            assert speed.ceiling_all * (1 + speed.drafted) >= entry["tokens_per_second"]


def test_most_published_rates_are_checked() -> None:
    """A recipe of unknown bytes has no ceiling; these are the only two."""
    unknown = {name for name, variant, _entry in RATES if speeds.of_service(*_arguments(name, variant)).ceiling is None}
    assert unknown == {"deepseek-v4.1-flash", "kimi-k2.6-nvfp4"}


def _arguments(name: str, variant: str | None) -> tuple[ServiceSpec, Any, JudgedLaunch]:
    service, launch = resolved(name, variant)
    return service, launch.args, launch


def test_rates_of_other_launches_are_marked() -> None:
    """Rates that need 279 to 669 GB/s with the recipe's launch, even at an empty context, belong to another one."""
    impossible = {
        (name, entry["tokens_per_second"]) for name, variant, entry in OF_OTHERS if refusal(name, variant, entry)
    }
    assert impossible == {
        ("gemma-4-26b-a4b-nvfp4", 49.6),
        ("gemma-4-26b-a4b-nvfp4", 51.1),
        ("gpt-oss-120b", 57.5),
        ("qwen3.5-122b-a10b-nvfp4", 51),
        ("qwen3.6-27b-fp8", 14),
        ("qwen3.6-35b-a3b-fp8", 100),
    }
    assert all(
        recipes.published_rates(RECIPES[name], [variant] if variant else []) == []
        for name, variant in {(name, variant) for name, variant, _entry in OF_OTHERS}
    )


def test_the_plan_warns_of_an_impossible_rate_in_a_recipe() -> None:
    known = copy.deepcopy(RECIPES)
    known["qwen3-8b"]["expect"] = [{"what": "decode", "tokens_per_second": 40, "source": "a blog"}]
    hosts = {
        "s1": {"vars": {"spark_services": [{"name": "a", "recipe": "qwen3-8b", "port": 8001}]}, "address": "192.0.2.1"}
    }

    def impossible() -> list[dict[str, Any]]:
        findings = plan.make_plan(hosts, known)["hosts"]["s1"]["findings"]
        return [finding for finding in findings if finding["rule"] == "speed.impossible"]

    (finding,) = impossible()
    assert (finding["severity"], finding["service"]) == ("warning", "a")
    assert "40 tokens/s need 605 GB/s" in finding["message"] and "a blog" in finding["message"]
    known["qwen3-8b"]["expect"][0]["other_launch"] = "a drafter"
    assert impossible() == []
    known["qwen3-8b"]["expect"] = [{"what": "decode", "tokens_per_second": 17, "source": "a blog"}]
    assert impossible() == []
