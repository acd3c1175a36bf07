# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes that satisfy a wish, the fastest first, each with the reason, and a first set of models for Sparks that serve nothing yet.

Pure functions. The first Spark gets the fastest model for chat, code and agents, each further one the fastest of another base model; the
published rate of one stream decides, or the predicted one. A recipe is only chosen if the plan judges that it fits unchanged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._common import schema, tables
from .._common.schema import NUMBER, Key
from .._common.validation import Problems
from . import model_table
from .model_table import Rate
from .service_keys import JOBS

KEYS: dict[str, Key] = {
    "speed": Key(NUMBER, 0, "least tokens per second of one stream, published or predicted", least=0),
    "context": Key(int, 0, "least context of one request, in tokens", least=0),
    "features": Key(list, [], "all of: tools, reasoning, vision", choices=model_table.FEATURES),
    "jobs": Key(list, [], f"all of: {', '.join(JOBS)}", choices=JOBS),
    "sparks": Key(int, 0, "most Sparks for one model; 0 for any number", least=0),
    "gib": Key(NUMBER, 0, "most weights on each Spark, in GiB; 0 for any size", least=0),
}
"""Keys of C(spark_pick)."""


@dataclass(frozen=True)
class Wish:
    """Requirements of a model; C(KEYS) describes the fields."""

    speed: float = 0
    context: int = 0
    features: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    sparks: int = 0
    gib: float = 0

    def __str__(self) -> str:
        parts = [f"{self.speed:g} tokens/s"] if self.speed else []
        parts += [f"{self.context} tokens of context"] if self.context else []
        parts += [*self.features, *self.jobs]
        parts += [f"at most {self.sparks} Spark{'s'[: self.sparks != 1]}"] if self.sparks else []
        return ", ".join([*parts, *([f"at most {self.gib:g} GiB"] if self.gib else [])])


ANY = Wish()
"""The wish that every recipe satisfies."""


def read_wish(value: Any) -> Wish:
    """Return the wish of C(spark_pick). Raises ValueError with all problems."""
    problems = Problems("spark_pick")
    entries = {
        name: schema.from_command_line(KEYS[name], entry) if name in KEYS else entry
        for name, entry in problems.mapping(value, "spark_pick").items()
    }
    filled = schema.filled(problems, entries, KEYS)
    if problems.messages:
        raise ValueError("\n- ".join(problems.messages))
    wished: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in filled.items()}
    return Wish(**wished)


def misses(row: Mapping[str, Any], wish: Wish) -> list[str]:
    """Return why a row does not satisfy a wish, in words that do not name the row; empty if it does. row: of C(model_table)."""
    rate = model_table.rate(row)
    is_missed = {
        "that do not fit": row["fits"][row["nodes"]] == "fails",
        "of unknown speed": wish.speed and rate is None,
        "slower": rate and rate.value < wish.speed,
        "with a shorter context": (row["longest"] or 0) < wish.context,
        **{f"without {name}": name not in row["features"] for name in wish.features},
        **{f"not for {job}": job not in row["jobs"] for job in wish.jobs},
        "on more Sparks": 0 < wish.sparks < row["nodes"],
        "larger": 0 < wish.gib < (row["weights_gib"] or 0),
    }
    return [reason for reason, missed in is_missed.items() if missed]


def ranked(rows: Sequence[Mapping[str, Any]], wish: Wish) -> tuple[list[Mapping[str, Any]], Counter[str]]:
    """Return the rows that satisfy a wish, the fastest first, and how many others miss it by the first of their reasons."""
    left_out: Counter[str] = Counter()
    chosen: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for row in rows:
        reasons = misses(row, wish)
        if reasons:
            left_out[reasons[0]] += 1
        else:
            chosen.setdefault((row["recipe"], row["variant"]), row)
    rates = {key: rate.value if (rate := model_table.rate(row)) else 0.0 for key, row in chosen.items()}
    order = sorted(chosen, key=lambda key: (-rates[key], chosen[key]["nodes"], key[0], key[1] or ""))
    return [chosen[key] for key in order], left_out


HEADER = ("recipe", "variant", "Sparks", "tokens/s", "", "longest", "weights", "features", "for")


def choice_text(rows: Sequence[Mapping[str, Any]], wish: Wish) -> str:
    """Return the short table of recipes for a terminal: those that satisfy a wish; without a wish one row for each recipe."""
    chosen, left_out = ranked(rows, wish)
    if wish == ANY:  # variants change how a recipe is served; those for more Sparks are other ways to serve it
        chosen = [row for row in chosen if row["variant"] is None or row["nodes"] > 1]
    lines = [f"Recipes for {wish}, the fastest first:" if wish != ANY else "Recipes, the fastest first:", ""]
    lines += [tables.table(HEADER, [_cells(row) for row in chosen])] if chosen else ["none"]
    if wish != ANY and left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
        lines += ["", f"Left out: {reasons}."]
    lines += [
        "",
        "Tokens/s of one stream: the lowest published rate of this launch, else predicted. Weights in GiB on each Spark.",
    ]
    lines += ["-e spark_plan_show=full shows every variant and why it fails;"]
    lines += ["""-e '{"spark_pick": {"speed": 30, "context": 100000, "features": ["tools"], "sparks": 2}}' picks."""]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    rate = model_table.rate(row)
    return [
        row["recipe"],
        row["variant"] or "",
        str(row["nodes"]),
        f"{rate.value:.3g}" if rate else "-",
        rate.basis if rate else "",
        str(row["longest"] or "-"),
        "-" if row["weights_gib"] is None else f"{row['weights_gib']:.1f}",
        ", ".join(row["features"]),
        ", ".join(job for job in row["jobs"] if job not in row["features"]),
    ]


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


def picks(recipes_by_name: Mapping[str, Mapping[str, Any]], nodes: int, wish: Wish = ANY) -> list[Pick]:
    """Return the recipes for so many Sparks that fit unchanged and satisfy a wish but its number of Sparks, the fastest first."""
    rows = [
        model_table.model_row(recipes_by_name, name, variant, image, other_counts=False)
        for name, variant, image in _ways(recipes_by_name, nodes)
    ]
    chosen, _left_out = ranked(rows, replace(wish, sparks=0))
    found = []
    for row in chosen:
        rate, recipe = model_table.rate(row), recipes_by_name[row["recipe"]]
        if rate and row["fits"].get(nodes) == "fits" and row["weights_gib"] is not None:
            variant = (recipe.get("variants") or {}).get(row["variant"]) or {}
            length = {**(recipe.get("args") or {}), **(variant.get("args") or {})}.get("max-model-len") or 0
            context = wish.context if isinstance(length, int) and length < wish.context else 0
            jobs = tuple(row["jobs"])
            found.append(Pick(row["recipe"], nodes, rate, float(row["weights_gib"]), jobs, row["variant"], context))
    return found


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
