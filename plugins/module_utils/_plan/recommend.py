# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A first set of models for Sparks that serve nothing yet, chosen from the recipes. Pure functions.

The first Spark gets the fastest model for chat, code and agents, each further one the fastest of another base model; the published rate
of one stream decides, or the predicted one. A recipe is only chosen if the plan judges that it fits unchanged and satisfies the wish.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import model_choice, model_table
from .model_choice import ANY, Wish
from .model_table import Rate

ALL_ROUND = ("chat", "code", "agents")
"""C(recipes.JOBS) that the first model does."""
PORT = 8000
_SIZE = re.compile(r"a?\d+(?:\.\d+)?b", re.IGNORECASE)


@dataclass(frozen=True)
class Pick:
    """A recipe for a number of Sparks. weights_gib: on each Spark. variant: of the recipe. context: to request, 0 for the length in the recipe."""

    recipe: str
    nodes: int
    rate: Rate
    weights_gib: float
    jobs: tuple[str, ...]
    variant: str | None = None
    context: int = 0

    @property
    def service(self) -> dict[str, Any]:
        """The entry of C(spark_services) that serves it."""
        service: dict[str, Any] = {"name": service_name(self.recipe), "recipe": self.recipe, "port": PORT}
        service.update({"variant": [self.variant]} if self.variant else {})
        return {**service, **({"args": {"max-model-len": self.context}} if self.context else {})}


def base_model(recipe: str) -> str:
    """Return the model that recipes for its quantisations share: the name up to its first size."""
    parts = recipe.split("-")
    for number, part in enumerate(parts):
        if _SIZE.fullmatch(part):
            return "-".join(parts[: number + 1])
    return recipe


def service_name(recipe: str) -> str:
    """Return a short name for a service: the model's family and version, without its size."""
    parts = base_model(recipe).split("-")
    words = [part for part in parts if not _SIZE.fullmatch(part)] or parts
    return re.sub(r"[^a-z0-9-]", "", "-".join(words).lower())


def ranked(recipes_by_name: Mapping[str, Mapping[str, Any]], nodes: int, wish: Wish = ANY) -> list[Pick]:
    """Return the recipes for so many Sparks that fit unchanged and satisfy a wish but its number of Sparks, the fastest first."""
    rows = [
        model_table.model_row(recipes_by_name, name, variant, image, other_counts=False)
        for name, variant, image in _ways(recipes_by_name, nodes)
    ]
    chosen, _left_out = model_choice.ranked(rows, replace(wish, sparks=0))
    picks = []
    for row in chosen:
        rate, recipe = model_table.rate(row), recipes_by_name[row["recipe"]]
        if rate and row["fits"].get(nodes) == "fits" and row["weights_gib"] is not None:
            variant = (recipe.get("variants") or {}).get(row["variant"]) or {}
            length = {**(recipe.get("args") or {}), **(variant.get("args") or {})}.get("max-model-len") or 0
            context = wish.context if isinstance(length, int) and length < wish.context else 0
            jobs = tuple(row["jobs"])
            picks.append(Pick(row["recipe"], nodes, rate, float(row["weights_gib"]), jobs, row["variant"], context))
    return picks


def _ways(recipes_by_name: Mapping[str, Mapping[str, Any]], nodes: int) -> Iterator[tuple[str, str | None, str]]:
    """Yield recipe, variant and image of each way to serve on so many Sparks; of variants those that are for another number of Sparks.

    Recipes of a folder of the controller are tests, and those by reference need a person's decision.
    """
    for name in sorted(recipes_by_name):
        recipe = recipes_by_name[name]
        if (recipe.get("model") or {}).get("path") or ":" in name or not model_table.plannable(recipe):
            continue
        recipe_nodes = recipe.get("nodes") or 1
        if recipe_nodes == nodes:
            yield name, None, recipe["images"][0]["ref"]
        for variant, body in (recipe.get("variants") or {}).items():
            if body and body.get("nodes") == nodes != recipe_nodes:
                yield name, variant, (body.get("images") or recipe["images"])[0]["ref"]


def recommend(picks: Sequence[Pick], hosts: Sequence[str]) -> dict[str, Pick]:
    """Choose a model for each Spark that serves on its own, in their order; the plan lists missing disk space and so on."""
    chosen: dict[str, Pick] = {}
    used: set[str] = set()
    for host in hosts if picks else ():
        fresh = [pick for pick in picks if base_model(pick.recipe) not in used]
        if not fresh:
            fresh, used = list(picks), set()
        rounders = [pick for pick in fresh if set(ALL_ROUND) <= set(pick.jobs)] if not chosen else []
        chosen[host] = (rounders or fresh)[0]
        used.add(base_model(chosen[host].recipe))
    return chosen
