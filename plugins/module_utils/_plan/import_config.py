# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add to an imported service its checks, and config and sizes from the recipe that serves its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from . import recipes


def add_config(
    service: dict[str, Any],
    nodes: int,
    config: Mapping[str, Any] | None,
    known_recipes: Mapping[str, Mapping[str, Any]],
    leave: Callable[[str, str], None],
) -> None:
    """Add to a service the config.json that the plan needs, and sizes, from the recipe that serves its model.

    :param service: is changed
    :param config: of the caller; it precedes any recipe's
    """
    if config:
        service["config"] = dict(config)
        return
    choices = _serving_recipes(known_recipes, service["model"])
    if not choices:
        return
    name, variant, recipe, body = min(choices, key=lambda choice: _distance(service, nodes, choice[2], choice[3]))
    service["config"] = recipes.merge(recipe.get("config") or {}, body.get("config") or {})
    drafts = _drafter_of(service["args"]) == _drafter_of(_args_of(recipe, body))
    # A variant's memory for its image as a whole replaces sizes.
    memory = next((key for key in ("memory", "memory_gib") if body.get(key) is not None), "")
    sizes = [memory] if memory else ["weights_gib", *(["draft_weights_gib"] if drafts else [])]
    for key in ["quant_config", *sizes, *(["draft_config"] if drafts else [])]:
        value = body.get(key, recipe.get(key))
        if value is not None:
            service[key] = value
    label = f"'recipe: {name}'" + (f" with 'variant: {variant}'" if variant else "")
    leave(
        f"recipe {name}" + (f", variant {variant}" if variant else ""),
        f"serves the same model and gave its config; {label} instead of model, image, args and config takes all of it",
    )


def _serving_recipes(
    known_recipes: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]
) -> list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return name, variant, recipe and body of the variant for each recipe that serves a model."""
    return [
        (name, variant, recipe, body or {})
        for name, recipe in sorted(known_recipes.items())
        for variant, body in (("", {}), *(recipe.get("variants") or {}).items())
        if _same_model(model, {**recipe.get("model", {}), **(body or {}).get("model", {})}.get("repo") or "")
    ]


def _same_model(model: Mapping[str, Any], repo: str) -> bool:
    """Return whether a recipe serves a model: by its repository, or by the name of its folder."""
    if model.get("repo"):
        return bool(model["repo"] == repo)
    return bool(repo) and PurePosixPath(str(model.get("path"))).name.lower() == repo.rpartition("/")[2].lower()


def _args_of(recipe: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    layers = (recipes.normalise_args(layer.get("args") or {}) for layer in (recipe, variant))
    return recipes.merge(*layers)


def _drafter_of(args: Mapping[str, Any]) -> tuple[str, str]:
    """Return method and model of speculative decoding, empty without it."""
    spec = args.get("speculative-config")
    return (str(spec.get("method") or ""), str(spec.get("model") or "")) if isinstance(spec, Mapping) else ("", "")


def _distance(
    service: Mapping[str, Any], nodes: int, recipe: Mapping[str, Any], variant: Mapping[str, Any]
) -> tuple[int, int]:
    """Return how far a recipe is from a launch: Sparks and drafter first, then the options that decide kernels."""
    args, service_args = _args_of(recipe, variant), service["args"]
    apart = 16 * (nodes != (variant.get("nodes") or recipe.get("nodes") or 1))
    method, drafter = _drafter_of(service_args)
    apart += 8 * (method != _drafter_of(args)[0]) + 4 * (drafter != _drafter_of(args)[1])
    image = service.get("image")
    ref = image.get("ref") if isinstance(image, Mapping) else image
    images = [entry.get("ref") for layer in (variant, recipe) for entry in layer.get("images") or []]
    apart += 2 * (bool(variant.get("images")) and ref not in images)
    for option in ("kv-cache-dtype", "moe-backend", "attention-backend", "quantization", "reasoning-parser", "runner"):
        apart += service_args.get(option) != args.get(option)
    length = service_args.get("max-model-len") or 0
    apart += (
        isinstance(length, int) and isinstance(args.get("max-model-len"), int) and length > 2 * args["max-model-len"]
    )
    return apart, len(variant.get("args") or {})


def checks_of(args: Mapping[str, Any]) -> dict[str, bool]:
    """Return the checks of a launch that names parsers: tool calls, and reasoning apart from the answer."""
    tools = bool(args.get("enable-auto-tool-choice") and args.get("tool-call-parser"))
    return {name: True for name, parser in (("tools", tools), ("reasoning", args.get("reasoning-parser"))) if parser}
