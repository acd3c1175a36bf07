#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/models.md and docs/models.html from the recipes. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_choice, models_page, recommend
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import (
    HEADER,
    SHARE,
    cells,
    model_rows,
    rate,
)

HTML = ROOT / "docs" / "models.html"
PAGE = ROOT / "docs" / "models.md"
RECIPES = ROOT / "playbooks" / "recipes"
TEMPLATE = Path(__file__).with_suffix(".txt")
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
FASTEST = 6
"""Ways to serve on one Spark, and on several, that the page lists for each job."""


def render_page(rows: Sequence[Mapping[str, Any]], recipes_by_name: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/models.md."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row["recipe"], row)
    jobs: list[str] = []
    for job, title in JOBS.items():
        jobs += [f"### {title}", "", *_by_job([row for row in rows if job in row["jobs"]]), ""]
    header = ("recipe", "description", *HEADER[2:], "least vLLM")
    recipes = _table(header, [[*_page_cells(row, True), row["least_vllm"] or "-"] for row in first.values()])
    recipes.append("")
    for name, base in first.items():
        recipes += [f"## {name}", "", f"{base['summary']}.", ""]
        recipes += _recipe_lines([row for row in rows if row["recipe"] == name])
    return TEMPLATE.read_text(encoding="utf-8").format(
        share=SHARE,
        recommended="\n".join(_recommended(recipes_by_name)),
        pick="\n".join(
            _table(("key", "meaning"), [[f"`{name}`", key.meaning] for name, key in model_choice.KEYS.items()])
        ),
        jobs="\n".join(jobs).rstrip("\n"),
        architectures="\n".join(_by_architecture(rows)),
        recipes="\n".join(recipes).rstrip("\n"),
    )


def _recipe_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table and the notes of one recipe on the page."""
    header = ("variant", "description", *HEADER[2:], "image")
    lines = _table(header, [_page_cells(row, False) for row in rows])
    rates = [(row["variant"], entry) for row in rows for entry in row["published"]]
    notes = [f"- {_label(row)}: {row['remark']}" for row in rows if row["remark"]]
    notes += [
        f"- {entry['tokens_per_second']:g} tokens/s{_on(entry)}{f' ({variant})' if variant else ''}: "
        f"{entry['what']}; {entry['source']}{_other(entry)}"
        for variant, entry in rates
    ]
    return [*lines, "", *dict.fromkeys(notes), ""] if notes else [*lines, ""]


def _by_job(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of recipes for one job, by their number of Sparks and the rates."""
    fitting: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for row in rows:
        if row["fits"][row["nodes"]] != "fails" and (row["variant"] is None or row["published"] or row["nodes"] > 1):
            fitting.setdefault((row["recipe"], row["variant"]), row)
    ordered = sorted(fitting.values(), key=lambda row: (row["nodes"] > 1, -_rate(row), row["recipe"]))
    ordered = [
        row for several in (False, True) for row in [row for row in ordered if (row["nodes"] > 1) is several][:FASTEST]
    ]
    lines = [
        [
            f"{row['nodes']}",
            _link(row["recipe"]),
            row["variant"] or "",
            *(cells(row)[column] for column in (3, 5)),
            f"{row['requests']}" if row["requests"] else "-",
            *cells(row)[-2:],
        ]
        for row in ordered
    ]
    return _table(
        ("Sparks", "recipe", "variant", "weights", "longest", "requests at once", "predicted", "published"), lines
    )


def _by_architecture(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the rates of one stream on one Spark, by kind of model, the fastest kind first."""
    kinds: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["architecture"] and row["nodes"] == 1 and _rate(row) and row["fits"][1] != "fails":
            rates = kinds.setdefault(row["architecture"], {})
            rates[row["recipe"]] = max(rates.get(row["recipe"], 0.0), _rate(row))
    ordered = sorted(kinds.items(), key=lambda kind: -statistics.median(kind[1].values()))
    return _table(
        ("kind", "recipes", "median tokens/s", "each"),
        [
            [
                kind,
                f"{len(rates)}",
                f"{statistics.median(rates.values()):.3g}",
                ", ".join(
                    f"{_link(name)} {value:.3g}" for name, value in sorted(rates.items(), key=lambda item: -item[1])
                ),
            ]
            for kind, rates in ordered
        ],
    )


def _recommended(recipes_by_name: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the recipes that C(discover.yml) recommends: the first for each of four Sparks, and one over several."""
    picks = recommend.recommend(recommend.ranked(recipes_by_name, 1), ["first", "second", "third", "fourth"])
    spans = [recommend.ranked(recipes_by_name, nodes)[0] for nodes in (2, 4)]
    lines = [[f"{host} Spark", _link(pick.recipe), pick.variant or "", str(pick.rate)] for host, pick in picks.items()]
    lines += [[f"over {pick.nodes} Sparks", _link(pick.recipe), pick.variant or "", str(pick.rate)] for pick in spans]
    return _table(("where", "recipe", "variant", "one stream"), lines)


def _rate(row: Mapping[str, Any]) -> float:
    known = rate(row)
    return known.value if known else 0.0


def _other(entry: Mapping[str, Any]) -> str:
    return f"; of another launch: {entry['other_launch']}" if entry.get("other_launch") else ""


def _on(entry: Mapping[str, Any]) -> str:
    return f" on {entry['sparks']} Sparks" if entry.get("sparks", 1) > 1 else ""


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['variant'] or 'recipe'}, {', '.join(row['images'])}"


def _page_cells(row: Mapping[str, Any], overview: bool) -> list[str]:
    figures = cells(row)[2:]
    if overview:
        return [_link(row["recipe"]), row["summary"], *figures]
    images = ", ".join(f"`{image}`" for image in row["images"])
    return [row["variant"] or "", (row["summary"] if row["variant"] else "") or "", *figures, images]


def _link(recipe: str) -> str:
    return f"[{recipe}](#{re.sub(r'[^a-z0-9_-]', '', recipe.lower())})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    recipes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))]
    by_name = {recipe["name"]: recipe for recipe in recipes}
    rows = model_rows(by_name)
    return write_generated({PAGE: render_page(rows, by_name), HTML: models_page.page(rows)})


if __name__ == "__main__":
    sys.exit(main())
