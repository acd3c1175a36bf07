# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A first set of models for Sparks that serve nothing yet, chosen from the recipes. Pure functions.

The first Spark gets the fastest model for chat, code and agents, each further one the fastest of another base model; what others
published for one stream is what counts as fast. A recipe is only chosen where the plan judges that it fits as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import model_table

ALL_ROUND = ("chat", "code", "agents")
"""C(recipes.JOBS) that the first model does."""
SPARE_GIB = 40.0
"""Free disk space beyond the weights: an image of vLLM takes about 25 GiB unpacked, and caches grow."""
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


def ranked(known: Mapping[str, Mapping[str, Any]], nodes: int) -> list[Pick]:
    """Return the recipes for so many Sparks that fit as they are written, those that are published as fastest first.

    known: recipe name to recipe. nodes: number of Sparks that one engine spans.
    """
    found = []
    for name in sorted(known):
        recipe = known[name]
        # Those of a folder of the controller are tests, and those by reference are decided by the person who names them.
        if (recipe.get("model") or {}).get("path") or ":" in name or not model_table.plannable(recipe):
            continue
        if (recipe.get("nodes") or 1) != nodes or not model_table.one_stream({**_published(recipe), "nodes": nodes}):
            continue
        row = model_table.model_row(known, name, None, recipe["images"][0]["ref"], others=False)
        if row["fits"].get(nodes) == "fits" and row["weights_gib"] is not None:
            jobs = tuple(row["jobs"])
            found.append(Pick(name, nodes, model_table.one_stream(row), float(row["weights_gib"]), jobs))
    return sorted(found, key=lambda pick: (-pick.rate, pick.recipe))


def _published(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {"published": [entry for entry in recipe.get("expect") or [] if entry.get("tokens_per_second")]}


def recommend(picks: Sequence[Pick], free_gib: Mapping[str, float | None]) -> dict[str, Pick | None]:
    """Choose a model for each Spark that serves on its own.

    picks: of C(ranked) for one Spark. free_gib: free disk space by host, in the order in which the hosts are served; None where it
    is not known, which excludes nothing. Returns the choice by host, None where no recipe has the room.
    """
    chosen: dict[str, Pick | None] = {}
    used: set[str] = set()
    for host, free in free_gib.items():
        room = [pick for pick in picks if free is None or pick.weights_gib + SPARE_GIB <= free]
        if not used:
            room = [pick for pick in room if set(ALL_ROUND) <= set(pick.jobs)] or room
        fresh = [pick for pick in room if base_model(pick.recipe) not in used]
        used = used if fresh else set()
        pick = next(iter(fresh or room), None)
        chosen[host] = pick
        used |= {base_model(pick.recipe)} if pick else set()
    return chosen
