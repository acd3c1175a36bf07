# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the recipes can serve on one Spark and on several, as the rules and the memory budget judge it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._common import tables
from .._common.reader import to_dict
from .._common.sizes import GIB
from .._memory import geometry
from .._memory.layers import Recurrent, Refusal
from .._speed.service_speed import bus_limit
from .._vllm import catalogue
from . import judging, recipes, speed_text, speeds
from .service import JudgedLaunch, ServiceSpec

SHARE = 0.9
"""Share of the memory for which the largest context is solved: the limit of an engine that has a Spark to itself."""
COUNTS = (1, 2, 4, 8)
"""Numbers of Sparks that every recipe is judged on, besides its own number."""
RANKS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes", "node-rank", "master-addr")
"""Options for the number of ranks of a launch."""
ROOTS = ("memory.refused", "memory.load", "memory.no_cache_memory")
"""Findings that cause others: a model that does not fit requests too much, leaves too little, and so on."""
SPLIT_RULES = ("SPK413",)
"""Warnings about more ranks than a model is known to run on."""
FEATURES = ("tools", "reasoning", "vision")
"""What a service offers beside chat: checks that its proof makes, and a job."""
VERDICTS = {"fits": "yes", "tight": "tight", "warned": "warned", "fails": "no"}
HEADER = (
    "recipe",
    "variant",
    "Sparks",
    "weights",
    "KV cache",
    "longest",
    *(f"on {count}" for count in COUNTS),
    "predicted",
    "published",
)


def model_rows(recipes_by_name: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each recipe, variant and image; images with the same verdict share a row.

    Recipes of a folder on the controller (C(model.path)) are tests and left out.
    """
    rows: list[dict[str, Any]] = []
    for name in sorted(recipes_by_name):
        recipe = recipes_by_name[name]
        if (recipe.get("model") or {}).get("path") or not plannable(recipe):
            continue
        for variant in (None, *(recipe.get("variants") or {})):
            body: Mapping[str, Any] = (recipe.get("variants") or {}).get(variant) or {}
            alike: dict[tuple[Any, ...], dict[str, Any]] = {}
            for image in body.get("images") or recipe["images"]:
                row = model_row(recipes_by_name, name, variant, image["ref"], other_counts=not alike)
                # Releases of vLLM divide a cache a little differently; only the verdict matters.
                same = alike.setdefault((row["fits"][row["nodes"]], row["remark"]), row)
                if same is not row:
                    same["images"] += row["images"]
            rows += alike.values()
    return rows


def plannable(recipe: Mapping[str, Any]) -> bool:
    """Return whether a recipe has all that a plan needs; one by reference may lack the model's config, its image, or everything."""
    return bool(recipe.get("config") and recipe.get("images"))


def reference_rows(recipes_by_name: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each recipe by reference: its model, its number of Sparks, and the keys that a service has to add."""
    rows = []
    for name in sorted(name for name in recipes_by_name if ":" in name):
        recipe = recipes_by_name[name]
        missing = [noun for noun, key in (("config", "config"), ("image", "images")) if not recipe.get(key)]
        needs = recipe.get("refused") or (f"needs {' and '.join(missing)} of the service" if missing else "")
        rows.append(
            {
                "recipe": name,
                "model": (recipe.get("model") or {}).get("repo"),
                "nodes": recipe.get("nodes"),
                "variants": sorted(recipe.get("variants") or {}),
                "remark": needs,
                "left_out": list(recipe.get("left_out") or []),
            }
        )
    return rows


def references_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of recipes by reference for a terminal, with their parts that are left out."""
    header = ("recipe of others", "model", "Sparks", "variants", "before it is planned")
    columns = [(row["recipe"], row["model"], row["nodes"], ", ".join(row["variants"]), row["remark"]) for row in rows]
    cells = [[str(value or "-") for value in column] for column in columns]
    left_out = [f"- {row['recipe']}: not taken over: {text}" for row in rows for text in row["left_out"]]
    return "\n".join([tables.table(header, cells), "", *left_out])


def model_row(
    recipes_by_name: Mapping[str, Mapping[str, Any]],
    name: str,
    variant: str | None,
    image: str,
    other_counts: bool = True,
) -> dict[str, Any]:
    """Return the row of a recipe, one of its variants, or None, and an image. other_counts: judge other numbers of Sparks than its own too."""
    entry = {"name": "model", "recipe": name, "port": 8000, "image": image, "variant": [variant] if variant else []}
    service, problems = recipes.resolve_service(entry, f"recipe {name}", recipes_by_name)
    if service is None:
        raise ValueError("; ".join(problems))
    verdict = judged(service, service.nodes)
    launch: JudgedLaunch = verdict["launch"]
    recipe = recipes_by_name[name]
    body: Mapping[str, Any] = (recipe.get("variants") or {}).get(variant) or {}
    memory = verdict["memory"]
    jobs = body.get("jobs") or recipe.get("jobs") or []
    stated = service.memory
    planned_kv = _gib((memory.get("available_kv_bytes") or {}).get("typical"))
    return {
        "recipe": name,
        "variant": variant,
        "summary": body.get("summary") if variant else recipe["summary"],
        "images": [image],
        "nodes": service.nodes,
        "fits": _fits(service, verdict, other_counts),
        "weights_gib": _weights(service, memory),
        "kv_gib": planned_kv if stated is None else stated.get("kv_gib"),
        "longest": _longest(service, verdict),
        "requests": service.args.get("max-num-seqs"),
        "least_vllm": least_vllm(service),
        "architecture": architecture(recipe.get("config") or {}),
        "jobs": jobs,
        "features": [name for name in FEATURES if name in jobs or service.checks.get(name)],
        "speed": to_dict(speeds.of_service(service, {**launch.args, **judging.solved_args(memory)}, launch, memory)),
        "published": _published(body if variant else recipe),
        "remark": decisive(verdict["findings"]),
    }


def _published(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the published rates of a recipe or variant."""
    return [row for row in described.get("expect") or [] if row.get("tokens_per_second")]


def _has_stated_memory(service: ServiceSpec) -> bool:
    """Return whether a recipe states its memory, which holds for its own number of Sparks alone."""
    return service.memory is not None or service.memory_gib is not None


def _fits(service: ServiceSpec, verdict: Mapping[str, Any], other_counts: bool) -> dict[int, str]:
    """Return the verdict by number of Sparks. verdict: on the recipe's own number."""
    counts = COUNTS if other_counts and not _has_stated_memory(service) else ()
    fits = {service.nodes: str(verdict["verdict"])}
    for count in set(counts) - {service.nodes}:
        split = judged(service, count)
        # A rule advises against the split.
        warned = any(finding["rule"] in SPLIT_RULES for finding in split["findings"])
        fits[count] = "warned" if warned and split["verdict"] != "fails" else str(split["verdict"])
    return dict(sorted(fits.items()))


def _longest(service: ServiceSpec, verdict: Mapping[str, Any]) -> int:
    """Return the longest context of one request, in tokens, 0 if unknown. verdict: on the recipe's own number of Sparks."""
    alone = judged(replace(service, args={**service.args, "gpu-memory-utilization": SHARE}), service.nodes)
    longest = int(alone["memory"].get("largest_safe_max_model_len") or 0)
    if verdict["verdict"] == "fails":
        return longest
    # A recipe may request more than the length of the config.
    requested = service.args.get("max-model-len")
    stated = requested if _has_stated_memory(service) and isinstance(requested, int) else 0
    return max(longest, verdict["memory"].get("max_model_len") or stated)


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in configs, by family."""


def architecture(config: Mapping[str, Any]) -> str:
    """Return the kind of a model by its config: MoE or dense, and hybrid if some layers are recurrent; empty if unknown."""
    if not config:
        return ""
    text = config.get("text_config") or config.get("llm_config") or config
    try:
        layers = geometry.read_geometry(dict(config)).layers
    except Refusal:
        return ""
    hybrid = any(isinstance(layer, Recurrent) for layer in layers)
    return f"{'MoE' if any(text.get(key) for key in EXPERTS) else 'dense'}{' hybrid' if hybrid else ''}"


def least_vllm(service: ServiceSpec) -> str:
    """Return the oldest vLLM for a service: stated by its recipe, else the first with its architecture."""
    if service.least_vllm:
        return service.least_vllm
    architectures = catalogue.names("architectures")
    spans = [architectures[name] for name in service.config.get("architectures") or [] if name in architectures]
    # The first version in the catalogue may not be the first with the architecture.
    first = min((start for span in spans for start, _end in span.runs()), default=0)
    return str(catalogue.versions()[first]) if first else ""


def judged(service: ServiceSpec, sparks: int) -> dict[str, Any]:
    """Return the verdict on a service on so many Sparks, one rank each: by its own split if it fits the number, else by tensors."""
    split = {key: service.args[key] for key in RANKS[:3] if key in service.args}
    args: dict[str, Any] = {key: value for key, value in service.args.items() if key not in RANKS}
    draft = args.get("speculative-config")
    if isinstance(draft, Mapping) and "draft_tensor_parallel_size" in draft:
        args["speculative-config"] = {**draft, "draft_tensor_parallel_size": sparks}
    args.update(split if sparks == service.nodes and split else {"tensor-parallel-size": sparks})
    if sparks > 1:  # a launch over Sparks without Ray; the address is reserved for documentation
        args.update({"nnodes": sparks, "node-rank": 0, "master-addr": "192.0.2.1"})
    return judging.judge(replace(service, args=args, nodes=sparks))


def decisive(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the first sentence of the decisive finding: an error before a warning, a root cause before its consequences."""
    decisive_first = [finding for finding in findings if finding["severity"] != "info"]
    decisive_first.sort(key=lambda finding: (finding["severity"] != "error", finding["rule"] not in ROOTS))
    if not decisive_first:
        return ""
    return f"{decisive_first[0]['rule']}: {decisive_first[0]['message'].split('. ', maxsplit=1)[0].rstrip('.')}."


def _weights(service: ServiceSpec, memory: Mapping[str, Any]) -> float | None:
    """Return the GiB of the weights: stated, or planned with those of the drafter."""
    if service.memory is not None:
        return float(service.memory["weights_gib"])
    return _gib(memory.get("weights_bytes"), memory.get("draft_bytes"))


def _gib(*sizes: Any) -> float | None:
    present = [size for size in sizes if size is not None]
    return sum(present) / GIB if present else None


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row below C(HEADER)."""
    rates = [
        f"{entry['tokens_per_second']:g}" + (f" ({entry['streams']} streams)" if entry.get("streams") else "")
        for entry in _of_launch(row)
    ]
    refused = row["fits"][row["nodes"]] == "fails"
    return [
        row["recipe"],
        row["variant"] or "",
        f"{row['nodes']}",
        "-" if row["weights_gib"] is None else f"{row['weights_gib']:.1f}",
        "-" if row["kv_gib"] is None or refused else f"{max(row['kv_gib'], 0.0):.1f}",
        "-" if refused or not row["longest"] else f"{row['longest']}",
        *(VERDICTS.get(row["fits"].get(count, ""), "-") for count in COUNTS),
        speed_text.spread(row["speed"]["one_stream"]),
        ", ".join(rates) or "-",
    ]


def models_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table for a terminal, then the remarks."""
    remarks = [
        f"- {row['recipe']} {row['variant'] or ''}".rstrip() + f": {row['remark']}" for row in rows if row["remark"]
    ]
    lines: list[list[str]] = []
    for row in rows:
        line = cells(row)
        if lines and lines[-1][:2] == line[:2]:  # another image with another verdict
            line[0], line[1] = "", row["images"][0]
        lines.append(line)
    return "\n".join(
        [
            tables.table(HEADER, lines),
            "",
            "Sizes in GiB on each Spark; the longest context of one request at 0.9 of the memory; tokens/s of one stream.",
            "",
            *dict.fromkeys(remarks),
        ]
    )


@dataclass(frozen=True)
class Rate:
    """Tokens/s of one stream. basis: C(published) or C(predicted)."""

    value: float
    basis: str

    def __str__(self) -> str:
        return f"{self.value:.3g} tokens/s {self.basis}"


def rate(row: Mapping[str, Any]) -> Rate | None:
    """Return the rate that a row is ranked by, None if nothing is known: the lowest published one of this launch, or the prediction.

    Rates depend on the content; the memory bus bounds them.
    """
    speed = row["speed"]
    rates = [float(entry["tokens_per_second"]) for entry in _of_launch(row) if entry.get("streams", 1) == 1]
    if rates:
        return Rate(min([*rates, bus_limit(speed) or math.inf]), "published")
    return Rate(speed["one_stream"]["typical"], "predicted") if speed["one_stream"] else None


def _of_launch(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the published rates of a row's own launch on its own number of Sparks."""
    return [
        entry for entry in row["published"] if not entry.get("other_launch") and entry.get("sparks", 1) == row["nodes"]
    ]
