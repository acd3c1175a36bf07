#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/models.md from the recipes, and the recommended recipes of README and quick start.

Run with PYTHONPATH=collections; --check only compares.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recommend
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import (
    HEADER,
    SHARE,
    cells,
    model_rows,
    one_stream,
)

PAGE = ROOT / "docs" / "models.md"
RECIPES = ROOT / "playbooks" / "recipes"
TEMPLATE = Path(__file__).with_suffix(".txt")
RECOMMENDED_ON = {ROOT / "README.md": "docs/models.md", ROOT / "docs" / "quickstart.md": "models.md"}
"""Pages with the table of recommended recipes, and their link to the page of all models."""
MARK = "<!-- recommended: scripts/generate_models_doc.py -->"
BLOCK = re.compile(rf"^{re.escape(MARK)}\n\n?(?:\|.*\n)*\n?", re.MULTILINE)
SINGLE_SPARKS = 3
"""Recommended recipes for one Spark: as for so many Sparks that each serve another model."""
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


def recommended(recipes: Mapping[str, Mapping[str, Any]], page: str = "") -> list[str]:
    """Return the table of the recipes that quickstart.yml chooses, and of the best for two Sparks. page: link to docs/models.md."""
    picks = recommend.recommend(recommend.ranked(recipes, 1), [str(number) for number in range(SINGLE_SPARKS)]).values()
    rows = [
        [
            f"{pick.nodes}",
            _link(pick.recipe, page),
            f"{pick.weights_gib:.1f}",
            f"{pick.rate:g}",
            ", ".join(JOBS[job].lower() for job in pick.jobs),
        ]
        for pick in [*picks, *recommend.ranked(recipes, 2)[:1]]
    ]
    return _table(("Sparks", "recipe", "GiB of weights per Spark", "tokens/s, one stream", "for"), rows)


def models_page(rows: Sequence[Mapping[str, Any]], best: Sequence[str]) -> str:
    """Return docs/models.md. best: the table of recommended recipes."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row["recipe"], row)
    jobs: list[str] = []
    for job, title in JOBS.items():
        jobs += [f"### {title}", "", *_by_job([row for row in rows if job in row["jobs"]]), ""]
    header = ("recipe", "what it is", *HEADER[2:], "least vLLM")
    recipes = _table(header, [[*_page_cells(row, True), row["least_vllm"] or "-"] for row in first.values()])
    recipes.append("")
    for name, base in first.items():
        recipes += [f"## {name}", "", f"{base['summary']}.", ""]
        recipes += _recipe_lines([row for row in rows if row["recipe"] == name])
    return TEMPLATE.read_text(encoding="utf-8").format(
        share=SHARE,
        recommended="\n".join(best),
        jobs="\n".join(jobs).rstrip("\n"),
        architectures="\n".join(_by_architecture(rows)),
        recipes="\n".join(recipes).rstrip("\n"),
    )


def _recipe_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table and the notes of one recipe on the page."""
    header = ("variant", "what it is", *HEADER[2:], "image")
    lines = _table(header, [_page_cells(row, False) for row in rows])
    rates = [(row["variant"], entry) for row in rows for entry in row["published"]]
    notes = [f"- {_label(row)}: {row['remark']}" for row in rows if row["remark"]]
    notes += [
        f"- {entry['tokens_per_second']:g} tokens/s{_on(entry)}{f' ({variant})' if variant else ''}: "
        f"{entry['what']}; {entry['source']}"
        for variant, entry in rates
    ]
    return [*lines, "", *dict.fromkeys(notes), ""] if notes else [*lines, ""]


def _by_job(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of recipes for one job, by their number of Sparks and the published rates."""
    fitting: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for row in rows:
        if row["fits"][row["nodes"]] != "fails" and (row["variant"] is None or row["published"] or row["nodes"] > 1):
            fitting.setdefault((row["recipe"], row["variant"]), row)
    ordered = sorted(fitting.values(), key=lambda row: (row["nodes"], -one_stream(row), row["recipe"]))
    lines = [
        [
            f"{row['nodes']}",
            _link(row["recipe"]),
            row["variant"] or "",
            *(cells(row)[column] for column in (3, 5)),
            f"{row['requests']}" if row["requests"] else "-",
            cells(row)[-1],
        ]
        for row in ordered
    ]
    return _table(("Sparks", "recipe", "variant", "weights", "longest", "requests at once", "tokens/s"), lines)


def _by_architecture(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of published rates for one stream on one Spark, by kind of model, the fastest kind first."""
    kinds: dict[str, dict[str, float]] = {}
    for row in rows:
        rate = one_stream(row)
        if row["architecture"] and row["nodes"] == 1 and rate and row["fits"][1] != "fails":
            rates = kinds.setdefault(row["architecture"], {})
            rates[row["recipe"]] = max(rates.get(row["recipe"], 0.0), rate)
    ordered = sorted(kinds.items(), key=lambda kind: -statistics.median(kind[1].values()))
    return _table(
        ("kind", "recipes", "median tokens/s", "each"),
        [
            [
                kind,
                f"{len(rates)}",
                f"{statistics.median(rates.values()):.3g}",
                ", ".join(f"{_link(name)} {rate:g}" for name, rate in sorted(rates.items(), key=lambda item: -item[1])),
            ]
            for kind, rates in ordered
        ],
    )


def _on(entry: Mapping[str, Any]) -> str:
    return f" on {entry['sparks']} Sparks" if entry.get("sparks", 1) > 1 else ""


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['variant'] or 'as it is'}, {', '.join(row['images'])}"


def _page_cells(row: Mapping[str, Any], overview: bool) -> list[str]:
    figures = cells(row)[2:]
    if overview:
        return [_link(row["recipe"]), row["summary"], *figures]
    images = ", ".join(f"`{image}`" for image in row["images"])
    return [row["variant"] or "", (row["summary"] if row["variant"] else "") or "", *figures, images]


def _link(recipe: str, page: str = "") -> str:
    return f"[{recipe}]({page}#{re.sub(r'[^a-z0-9_-]', '', recipe.lower())})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def main() -> int:
    """Write the pages, or compare them; returns the exit code."""
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))]
    recipes = {recipe["name"]: recipe for recipe in read}
    texts = {PAGE: models_page(model_rows(recipes), recommended(recipes))}
    for path, page in RECOMMENDED_ON.items():
        block = "\n".join([MARK, "", *recommended(recipes, page), "", ""])
        texts[path] = BLOCK.sub(lambda _match, block=block: block, path.read_text(encoding="utf-8"))  # type: ignore[misc]
    return write_generated(texts)


if __name__ == "__main__":
    sys.exit(main())
