# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wishes of C(spark_wishes): reads them, and lists the recipes and splits that can serve each. Pure functions.

C(wish_fleet.py) plans Sparks with such services, C(wish_search.py) chooses between them, C(proposal.py) writes the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .._common import schema
from .._common.plain_data import InputError
from .._common.schema import NUMBER, Key
from .._common.validation import SERVICE_NAME, Problems
from . import model_table, recipes
from .service_keys import JOBS
from .speeds import SHORT_PROMPT
from .wish_fleet import MOST, Figures, Fleet, Offer, Piece

FEATURES = ("tools", "reasoning", "vision")
KEYS: dict[str, Key] = {
    "name": Key(
        str,
        None,
        "name of the job, and of the service that is proposed for it",
        required=True,
        form=SERVICE_NAME.fullmatch,
        like="lower-case letters, digits and inner dashes, at most 40 characters",
    ),
    "tokens_per_second": Key(
        NUMBER, 0, "least tokens/s of the stream of each user while all users are served", least=0
    ),
    "context": Key(int, 32768, "tokens that all users may fill at the same time, each", least=16),
    "users": Key(int, 1, "users at the same time", least=1, most=4096),
    "importance": Key(int, 5, "weight against other wishes", least=1, most=100),
    "first_token_seconds": Key(
        NUMBER,
        None,
        "most seconds to the first token of a prompt of 8192 tokens, or as long as the context if that is shorter",
        above=0,
    ),
    "features": Key(list, [], "what the model must be able to do", choices=FEATURES),
    "jobs": Key(list, [], "jobs that the recipe is meant for, as in docs/models.md", choices=JOBS),
    "recipe": Key(str, "", "recipe to use; the planner chooses one if left out"),
    "model": Key(str, "", "model to use, ORG/NAME"),
    "on_demand": Key(bool, True, "whether the service may wait for memory and start with its first request"),
}
"""Keys of an entry of C(spark_wishes)."""
RANKS = (1, 2, 4, 8)
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of Sparks that one wish may take."""
LARGEST, SMALLEST = 6, 2
"""Candidates of a wish: so many of the largest and the smallest models that serve it, each smaller in memory than the larger ones."""
_POOLING = frozenset(("embed", "rerank"))


@dataclass(frozen=True)
class Wish:
    """A job that models are wanted for; C(KEYS) has the meaning of the fields."""

    name: str
    tokens_per_second: float
    context: int
    users: int
    importance: int
    first_token_seconds: float | None
    features: Sequence[str]
    jobs: Sequence[str]
    recipe: str
    model: str
    on_demand: bool

    def missed(self, figures: Figures, users: int) -> str:
        """Return the reason why a planned service does not serve so many users of the wish, empty if it does."""
        if figures.context < self.context:
            return f"its context is {figures.context} tokens"
        if figures.requests < users:
            return f"it serves {figures.requests} requests at the same time (max-num-seqs)"
        if figures.concurrency < users:
            return f"its KV cache holds {figures.concurrency:.1f} requests of {figures.context} tokens"
        return self.too_slow(figures, users)

    def too_slow(self, figures: Figures, users: int) -> str:
        """Return why a planned service is too slow for so many users, empty if it is not."""
        if self.tokens_per_second and figures.rate is None:
            return f"its speed is unknown: {figures.unknown}"
        if figures.rate is not None and figures.rate < self.tokens_per_second:
            return f"{figures.rate:.3g} tokens/s for each of {users} user{'s'[: users != 1]}"
        if self.first_token_seconds and figures.first_token is None:
            return f"its time to the first token is unknown: {figures.first_token_unknown}"
        if self.first_token_seconds and (figures.first_token or 0) > self.first_token_seconds:
            return f"{figures.first_token:.3g} s to the first token of {min(SHORT_PROMPT, figures.context)}"
        return ""


def read(entries: Any, recipes_by_name: Mapping[str, Mapping[str, Any]]) -> list[Wish]:
    """Return the wishes of C(spark_wishes), the most important first. recipes_by_name: recipes by name. Raises C(InputError) with all problems."""
    problems = Problems("spark_wishes")
    rows = schema.entries(problems, entries if isinstance(entries, list) else [entries], KEYS, "spark_wishes", True)
    if not rows and not problems.messages:
        problems.add("it is empty; list the jobs that models are wanted for.")
    if len(rows) > MOST:
        problems.add(
            f"it has {len(rows)} wishes, {MOST} are the most of one run. Plan parts of the fleet by themselves."
        )
    for row in rows:
        if row.get("recipe"):
            recipes.named_recipe(problems, row["recipe"], recipes_by_name)
    if problems.messages:
        raise InputError(problems.messages)
    return sorted((Wish(**row) for row in rows), key=lambda wish: -wish.importance)


class Catalogue:
    """The ways to serve wishes with the recipes, each planned once on a Spark without other services."""

    def __init__(self, recipes_by_name: Mapping[str, Mapping[str, Any]], fleet: Fleet) -> None:
        """Keep the recipes that can be planned."""
        self.fleet = fleet
        self.recipes = {
            name: recipe
            for name, recipe in recipes_by_name.items()
            if model_table.plannable(recipe) and not (recipe.get("model") or {}).get("path") and ":" not in name
        }

    @cached_property
    def launches(self) -> list[tuple[str, str, int, Mapping[str, Any], set[str]]]:
        """All recipes and variants, with their Sparks, their C(model) and their abilities: jobs and features."""
        rows = []
        for name, recipe in sorted(self.recipes.items()):
            variants: Mapping[str, Any] = {"": {}, **(recipe.get("variants") or {})}
            for variant, body in variants.items():
                entry = {"name": "model", "port": 8000, "recipe": name, "variant": [variant] if variant else []}
                service, _problems = recipes.resolve_service(entry, name, self.recipes)
                if service is None:
                    continue
                able = {*((body or {}).get("jobs") or recipe.get("jobs") or [])}
                able |= {feature for feature in ("tools", "reasoning") if service.checks.get(feature)}
                able |= {"tools"} if service.args.get("enable-auto-tool-choice") else set()
                rows.append((name, variant, service.nodes, service.model, able))
        return rows

    def fitting(self, wish: Wish) -> list[tuple[str, str, int]]:
        """Return recipe, variant and Sparks of the launches with the abilities that a wish needs."""
        needed = {*wish.features, *wish.jobs}
        return [
            (name, variant, nodes)
            for name, variant, nodes, model, able in self.launches
            if needed <= able
            and (not wish.recipe or wish.recipe == name)
            and (not wish.model or wish.model == model.get("repo"))
            and (able - _POOLING or needed & _POOLING or wish.recipe or wish.model)
        ]

    def offers(self, wish: Wish, least_sparks: int = 1) -> tuple[list[Offer], str]:
        """Return the ways to serve a wish on the fewest Sparks, but C(least_sparks), the largest model first, or the reason for an empty list."""
        launches = self.fitting(wish)
        if not launches:
            needed, named = ", ".join([*wish.features, *wish.jobs]), wish.recipe or wish.model
            if named and not needed:
                return [], f"no recipe that can be planned serves {named}"
            return [], f"{f'{named} is not' if named else 'no recipe is'} able to do all of {needed}"
        near: list[tuple[float, str]] = []
        for level in LEVELS:
            if level < least_sparks or level > len(self.fleet.names):
                continue
            if offers := self._served(wish, _candidates(wish, launches, level), near):
                return offers, ""
        if not near:
            return [], f"its recipes need more Sparks than the {len(self.fleet.names)} of the inventory"
        fastest = max(near, key=lambda row: row[0])[1]
        count = len({text.partition(":")[0] for _rate, text in near})
        return [], f"on free Sparks none of its {count} candidates serves it; the fastest is {fastest}"

    def _served(self, wish: Wish, candidates: Sequence[Offer], near: list[tuple[float, str]]) -> list[Offer]:
        """Return the candidates that serve a wish, the largest model first, smaller ones in less memory; C(near) receives the others' reasons."""
        sized: list[tuple[float, float, Offer]] = []
        silent: list[tuple[float, float, Offer]] = []  # their speed is unknown
        for offer in candidates:
            # One request of 4096 tokens is the least that a launch needs, and its rate is the highest.
            base = self.fleet.alone(replace(offer, users=1, context=4096))
            if isinstance(base, str):
                near.append((-1.0, f"{offer.label}: {base}"))
            elif why := wish.too_slow(base, 1):
                near.append((base.rate or 0.0, f"{offer.label}: {why}"))
            else:
                rows = sized if base.rate else silent
                rows.append((-base.weights_gib * offer.ranks, base.gib * offer.sparks, offer))
        for rows in (sized, silent):
            rows.sort(key=lambda row: (*row[:2], row[2].label))
        sized = sized or silent
        largest = self._lighter(wish, sized, LARGEST, near)
        smallest = self._lighter(wish, sized[::-1], SMALLEST, near)[::-1]
        return largest + [offer for offer in smallest if offer not in largest]

    def _lighter(
        self, wish: Wish, sized: Sequence[tuple[float, float, Offer]], most: int, near: list[tuple[float, str]]
    ) -> list[Offer]:
        """Return the first candidates that serve a wish, none of which takes the memory of one before it or more."""
        sizes: list[tuple[float, float]] = []
        offers = []
        for weights, gib, offer in sized:
            if any(weights >= other[0] and gib >= other[1] for other in sizes):
                continue
            figures = self.fleet.alone(offer)
            if isinstance(figures, str):
                near.append((-1.0, f"{offer.label}: {figures}"))
            elif why := wish.missed(figures, offer.users):
                near.append((figures.rate or 0.0, f"{offer.label}: {why}"))
            else:
                sizes.append((weights, gib))
                offers.append(offer)
            if len(offers) == most:
                break
        return offers


def _candidates(wish: Wish, launches: Sequence[tuple[str, str, int]], sparks: int) -> list[Offer]:
    """Return the ways to start the launches of a wish on so many Sparks. launches: of C(Catalogue.fitting)."""
    shapes = [(ranks, sparks // ranks) for ranks in RANKS if sparks % ranks == 0 and sparks // ranks <= wish.users]
    return [
        Offer(name, variant, split, ranks, replicas, -(-wish.users // replicas), wish.context)
        for ranks, replicas in shapes
        for name, variant, nodes in launches
        # As the recipe has it, or one for a single Spark split.
        for split in (["own"] if nodes == ranks else ["tensor", "pipeline"] if nodes == 1 else [])
    ]


def already_served(wishes: Sequence[Wish], fleet: Fleet, catalogue: Catalogue) -> dict[str, tuple[Piece, Figures]]:
    """Return the wishes that a service of the inventory serves, by name; each service serves one wish. wishes: the most important first."""
    chosen: dict[str, tuple[Piece, Figures]] = {}
    services = dict(fleet.existing)
    for wish in wishes:
        launches = {(name, variant) for name, variant, _nodes in catalogue.fitting(wish)}
        for key, (piece, figures) in services.items():
            if (piece.offer.recipe, piece.offer.variant) in launches and not wish.missed(figures, wish.users):
                chosen[wish.name] = services.pop(key)
                break
    return chosen
