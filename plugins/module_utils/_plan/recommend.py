# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A first set of models for Sparks that serve nothing yet, chosen from the recipes. Pure functions.

The first Spark gets the fastest model for chat, code and agents, each further one the fastest of another base model; what others
published for one stream decides. A recipe is only chosen if the plan judges that it fits unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import model_table

ALL_ROUND = ("chat", "code", "agents")
"""C(recipes.JOBS) that the first model does."""
PORT = 8000
_SIZE = re.compile(r"a?\d+(?:\.\d+)?b", re.IGNORECASE)


@dataclass(frozen=True)
class Pick:
    """A recipe for a number of Sparks. rate: published tokens/s of one stream; weights_gib: on each Spark."""

    recipe: str
    nodes: int
    rate: float
    weights_gib: float
    jobs: tuple[str, ...]

    @property
    def service(self) -> dict[str, Any]:
        """The entry of C(spark_services) that serves it."""
        return {"name": service_name(self.recipe), "recipe": self.recipe, "port": PORT}


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


def ranked(recipes_by_name: Mapping[str, Mapping[str, Any]], nodes: int) -> list[Pick]:
    """Return the recipes for so many Sparks that fit unchanged, the fastest by published rates first.

    known: recipe name to recipe. nodes: number of Sparks that one engine spans.
    """
    picks = []
    for name in sorted(recipes_by_name):
        recipe = recipes_by_name[name]
        # Recipes of a folder of the controller are tests, and those by reference need a person's decision.
        if (recipe.get("model") or {}).get("path") or ":" in name or not model_table.plannable(recipe):
            continue
        if (recipe.get("nodes") or 1) != nodes or not model_table.one_stream({**_published(recipe), "nodes": nodes}):
            continue
        row = model_table.model_row(recipes_by_name, name, None, recipe["images"][0]["ref"], other_counts=False)
        if row["fits"].get(nodes) == "fits" and row["weights_gib"] is not None:
            jobs = tuple(row["jobs"])
            picks.append(Pick(name, nodes, model_table.one_stream(row), float(row["weights_gib"]), jobs))
    return sorted(picks, key=lambda pick: (-pick.rate, pick.recipe))


def _published(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {"published": [entry for entry in recipe.get("expect") or [] if entry.get("tokens_per_second")]}


def recommend(picks: Sequence[Pick], hosts: Sequence[str]) -> dict[str, Pick]:
    """Choose a model for each Spark that serves on its own; what a host lacks for it, such as disk space, the plan says.

    picks: of C(ranked) for one Spark. hosts: in the order in which they are served. Returns the choice by host, nothing without picks.
    """
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
