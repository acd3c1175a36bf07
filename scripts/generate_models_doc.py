#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/models.md and docs/models.html from the recipes. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, heading_anchor, markdown_table, recipes_by_name, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_choice, models_page
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import (
    SHARE,
    VERDICTS,
    cells,
    model_rows,
    rate,
)

HTML = ROOT / "docs" / "models.html"
PAGE = ROOT / "docs" / "models.md"
TEMPLATE = Path(__file__).with_suffix(".txt")
DEFAULT = "(default)"
"""Name of a recipe without a variant on the page."""
JOBS = {
    "chat": "Chat",
    "code": "Code",
    "agents": "Agents with tools",
    "vision": "Images in",
    "long": "Long context",
    "users": "Several users at once",
    "embed": "Vectors for search",
    "rerank": "Ranking of documents",
}
"""Titles of C(service_keys.JOBS) on the page, in their order."""


FASTEST = 2
"""Recipes that the table by job lists for a number of Sparks."""
USUAL_LOAD = ": 8192 tokens in, 256 out"
"""Conditions of NVIDIA's figures, which the page has once."""
MANY = 2
"""Recipes that may describe a variant in the same words in their own sections; with more the page has the description once."""
REMARKS = {
    "SPK307": "",
    "memory.stated": "",
    "memory.concurrency": "requests of the full length wait if all arrive at once",
}
"""Short forms of frequent remarks, by rule; the page explains those without one."""


def render_page(rows: Sequence[Mapping[str, Any]], recipes_by_name: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/models.md."""
    recipes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        recipes.setdefault(row["recipe"], []).append(row)
    seen = {(row["recipe"], row["variant"], row["summary"]) for row in rows if row["variant"] and row["summary"]}
    counts = Counter((variant, summary) for _recipe, variant, summary in seen)
    common = {variant: summary for (variant, summary), count in sorted(counts.items()) if count > MANY}
    sections = [line for name, own in recipes.items() for line in _recipe_lines(name, own, common)]
    return TEMPLATE.read_text(encoding="utf-8").format(
        share=SHARE,
        recommended="\n".join(_recommended(recipes_by_name)),
        pick="\n".join(
            _table(("key", "meaning"), [[f"`{name}`", key.meaning] for name, key in model_choice.KEYS.items()])
        ),
        fastest=FASTEST,
        jobs="\n".join(_by_job(rows)),
        architectures="\n".join(_by_architecture(rows)),
        variants="\n".join(f"- {variant}: {summary}" for variant, summary in common.items()),
        recipes="\n".join(sections).rstrip("\n"),
    )


def _recipe_lines(name: str, rows: Sequence[Mapping[str, Any]], common: Mapping[str, str]) -> list[str]:
    """Return the section of one recipe on the page. common: descriptions that the page has once, by variant."""
    base = rows[0]
    jobs = [job for job in JOBS if job in base["jobs"]]
    least = f"; vLLM {base['least_vllm']}+" if base["least_vllm"] else ""
    lines = [
        f"## {name}",
        "",
        f"{base['summary']}. Jobs: {', '.join(jobs) or '-'}{least}. Images: {_images(rows)}.",
        "",
        *_table(("variant", "weights", "cache", "longest", "tokens/s", "fits"), _cells(rows)),
        "",
    ]
    described = {row["variant"]: row["summary"] for row in rows if row["variant"] and row["summary"]}
    notes = [f"- {variant}: {summary}" for variant, summary in described.items() if common.get(variant) != summary]
    notes += [*_remarks(rows), *_published(rows)]
    return [*lines, *notes, ""] if notes else lines


def _published(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each source of published rates."""
    published: dict[str, list[str]] = {}
    for row in rows:
        for entry in row["published"]:
            # All of them are decode rates, and of one stream unless they say otherwise.
            conditions = entry["what"].removeprefix("decode rate of ").removeprefix("one stream").lstrip(", ")
            sparks = f" on {entry['sparks']} Sparks" if entry.get("sparks", 1) > 1 else ""
            rate = f"{entry['tokens_per_second']:g}{sparks}{_variant(row)}{conditions and f', {conditions}'}"
            other = f"; of another launch: {entry['other_launch']}" if entry.get("other_launch") else ""
            published.setdefault(f"{entry['source'].removesuffix(USUAL_LOAD)}{other}", []).append(rate)
    return [f"- published: {'; '.join(dict.fromkeys(rates))} ({source})" for source, rates in published.items()]


def _images(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the images of a recipe: the image of most variants first, then other ones by variant."""
    images: dict[str, list[str]] = {}
    for variant, row in {row["variant"]: row for row in reversed(rows)}.items():
        refs = ", ".join(f"`{image}`" for other in rows if other["variant"] == variant for image in other["images"])
        refs = re.sub(r"(@sha256:[0-9a-f]{12})[0-9a-f]+", r"\1...", refs)
        images.setdefault(refs, []).insert(0, row["variant"] or DEFAULT)
    usual = max(images, key=lambda refs: len(images[refs]))
    return usual + "".join(f"; {', '.join(names)}: {refs}" for refs, names in images.items() if refs != usual)


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each remark, with its variants."""
    remarks: dict[str, list[str]] = {}
    for row in rows:
        rule, _, message = row["remark"].partition(": ")
        if rule:
            words = REMARKS.get(rule, message.rstrip("."))
            remarks.setdefault(f"`{rule}`" + (words and f": {words}"), []).append(row["variant"] or DEFAULT)
    variants = {row["variant"] or DEFAULT for row in rows}
    return [
        f"- {'all' if set(names) == variants else ', '.join(dict.fromkeys(names))}: {remark}"
        for remark, names in remarks.items()
    ]


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of a recipe's table; variants with the same figures share one."""
    variants: dict[tuple[str, ...], list[str]] = {}
    seen = set()
    for row in rows:
        variant = row["variant"] or DEFAULT
        if variant not in seen:
            seen.add(variant)
            weights, cache, longest = cells(row)[3:6]
            requests = f" ({row['requests']})" if row["requests"] else ""
            figures = (weights, f"{cache}{requests}", longest, cells(row)[-2], _fits(row))
            variants.setdefault(figures, []).append(variant)
    return [[", ".join(names), *figures] for figures, names in variants.items()]


def _fits(row: Mapping[str, Any]) -> str:
    """Return the numbers of Sparks that a variant fits on, by verdict: C(tight 2; 4+) if all from 4 on have one verdict."""
    counts: dict[str, list[str]] = {}
    for count, fit in row["fits"].items():
        following = [other for number, other in row["fits"].items() if number >= count]
        is_same = len(following) > 1 and set(following) == {fit}
        if fit != "fails":
            counts.setdefault(VERDICTS[fit], []).append(f"{count}{'+' if is_same else ''}")
        if is_same:
            break
    parts = [("" if verdict == "yes" else f"{verdict} ") + ", ".join(numbers) for verdict, numbers in counts.items()]
    return "; ".join(parts) or "-"


def _by_job(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the recipes for each job by their number of Sparks, the fastest first."""
    counts = sorted({row["nodes"] for row in rows})
    lines = []
    for job, title in JOBS.items():
        fitting = [row for row in rows if job in row["jobs"] and row["fits"][row["nodes"]] != "fails"]
        names = (_fastest(row for row in fitting if row["nodes"] == count)[:FASTEST] for count in counts)
        lines.append([title, *(", ".join(fastest) or "-" for fastest in names)])
    return _table(("job", *(f"{count} Spark{'s' if count > 1 else ''}" for count in counts)), lines)


def _fastest(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each recipe with its highest rate, the fastest first, and the name of a variant that is faster than the recipe.

    rows: for one number of Sparks
    """
    by_recipe: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (-_rate(row), row["recipe"], bool(row["variant"]))):
        by_recipe.setdefault(row["recipe"], []).append(row)
    cells = []
    for name, variants in by_recipe.items():
        rate_text = f" {_rate(variants[0]):.3g}" if _rate(variants[0]) else ""
        # A variant for another number of Sparks is the only way to serve on them.
        is_choice = rate_text and not all(row["variant"] for row in variants)
        cells.append(f"{_link(name)}{_variant(variants[0]) if is_choice else ''}{rate_text}")
    return cells


def _by_architecture(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the rates of one stream on one Spark, by kind of model, the fastest kind first."""
    kinds: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["architecture"] and row["nodes"] == 1 and _rate(row) and row["fits"][1] != "fails":
            rates = kinds.setdefault(row["architecture"], {})
            rates[row["recipe"]] = max(rates.get(row["recipe"], 0.0), _rate(row))
    lines = []
    for kind, rates in sorted(kinds.items(), key=lambda kind: -statistics.median(kind[1].values())):
        fastest = max(rates, key=lambda name: rates[name])
        median = f"{statistics.median(rates.values()):.3g}"
        lines.append([kind, f"{len(rates)}", median, f"{_link(fastest)} {rates[fastest]:.3g}"])
    return _table(("kind", "recipes", "median tokens/s", "fastest"), lines)


def _recommended(recipes_by_name: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the recipes that C(discover.yml) recommends: for each of four Sparks, and one over several."""
    picks = model_choice.recommend(model_choice.picks(recipes_by_name, 1), ["first", "second", "third", "fourth"])
    spans = [model_choice.picks(recipes_by_name, nodes)[0] for nodes in (2, 4)]
    places = [(f"{host} Spark", pick) for host, pick in picks.items()]
    places += [(f"over {pick.nodes} Sparks", pick) for pick in spans]
    lines = [[place, _link(pick.recipe), pick.variant or "", str(pick.rate)] for place, pick in places]
    return _table(("where", "recipe", "variant", "one stream"), lines)


def _rate(row: Mapping[str, Any]) -> float:
    known = rate(row)
    return known.value if known else 0.0


def _variant(row: Mapping[str, Any]) -> str:
    return f" ({row['variant']})" if row["variant"] else ""


def _link(recipe: str) -> str:
    return f"[{recipe}](#{heading_anchor(recipe)})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table(header, [[cell.replace("|", "/") for cell in row] for row in rows]).splitlines()


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    by_name = recipes_by_name()
    rows = model_rows(by_name)
    return write_generated({PAGE: render_page(rows, by_name), HTML: models_page.page(rows)})


if __name__ == "__main__":
    sys.exit(main())
