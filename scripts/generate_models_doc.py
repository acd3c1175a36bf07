#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/models.md from the recipes. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import (
    SHARE,
    VERDICTS,
    cells,
    model_rows,
    one_stream,
)

PAGE = ROOT / "docs" / "models.md"
RECIPES = ROOT / "playbooks" / "recipes"
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


FASTEST = 6
"""Recipes that the table by job lists for a number of Sparks."""
REMARKS = {"SPK307": "the vLLM version of the image is unknown", "memory.stated": "the recipe gives the memory"}
"""Short forms of frequent remarks, by rule."""


def models_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return docs/models.md."""
    recipes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        recipes.setdefault(row["recipe"], []).append(row)
    return TEMPLATE.read_text(encoding="utf-8").format(
        share=SHARE,
        fastest=FASTEST,
        jobs="\n".join(_by_job(rows)),
        architectures="\n".join(_by_architecture(rows)),
        recipes="\n".join(line for name, own in recipes.items() for line in _recipe_lines(name, own)).rstrip("\n"),
    )


def _recipe_lines(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the section of one recipe on the page."""
    base = rows[0]
    jobs = [title.lower() for job, title in JOBS.items() if job in base["jobs"]]
    images: dict[str, list[str]] = {}
    for variant, row in {row["variant"]: row for row in reversed(rows)}.items():
        refs = ", ".join(
            f"`{_short(image)}`" for other in rows if other["variant"] == variant for image in other["images"]
        )
        images.setdefault(refs, []).insert(0, row["variant"] or DEFAULT)
    usual = max(images, key=lambda refs: len(images[refs]))
    least = f"; vLLM {base['least_vllm']} or newer" if base["least_vllm"] else ""
    lines = [f"## {name}", "", f"{base['summary']}. Jobs: {', '.join(jobs) or '-'}{least}. Images: {usual}"]
    lines[-1] += "".join(f"; {', '.join(names)}: {refs}" for refs, names in images.items() if refs != usual) + "."
    lines += [
        "",
        *_table(("variant", "Sparks", "weights", "KV cache", "longest", "requests", "fits on"), _cells(rows)),
        "",
    ]
    notes = [f"- {row['variant']}: {row['summary']}" for row in rows if row["variant"] and row["summary"]]
    remarks: dict[str, list[str]] = {}
    for row in rows:
        rule, _, message = row["remark"].partition(": ")
        if rule:
            remarks.setdefault(f"`{rule}`: {REMARKS.get(rule, message.rstrip('.'))}", []).append(
                row["variant"] or DEFAULT
            )
    variants = {row["variant"] or DEFAULT for row in rows}
    for remark, names in remarks.items():
        notes.append(f"- {'all' if set(names) == variants else ', '.join(dict.fromkeys(names))}: {remark}")
    notes += [
        f"- {entry['tokens_per_second']:g} tokens/s{_on(entry)}{_variant(row)}: "
        f"{entry['what'].removeprefix('decode rate of one stream').lstrip(', ') or 'one stream'}; {entry['source']}"
        for row in rows
        for entry in row["published"]
    ]
    return [*lines, *dict.fromkeys(notes), ""] if notes else lines


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a line of the table for each variant of a recipe."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        variant = row["variant"] or DEFAULT
        verdicts = [(count, VERDICTS[fit]) for count, fit in row["fits"].items() if fit != "fails"]
        fits = ", ".join(f"{count}" if verdict == "yes" else f"{count} {verdict}" for count, verdict in verdicts)
        lines.setdefault(variant, [variant, *cells(row)[2:6], f"{row['requests'] or '-'}", fits or "-"])
    return list(lines.values())


def _by_job(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the recipes for each job by their number of Sparks, those with the highest published rate first."""
    counts = sorted({row["nodes"] for row in rows})
    lines = []
    for job, title in JOBS.items():
        fitting: dict[tuple[int, str], float] = {}
        for row in rows:
            if job in row["jobs"] and row["fits"][row["nodes"]] != "fails":
                key = (row["nodes"], row["recipe"])
                fitting[key] = max(fitting.get(key, 0.0), one_stream(row))
        ordered = sorted(fitting.items(), key=lambda item: (-item[1], item[0][1]))
        named = {
            count: [
                f"{_link(name)}{f' {rate:g}' if rate else ''}" for (nodes, name), rate in ordered if nodes == count
            ][:FASTEST]
            for count in counts
        }
        lines.append([title, *(", ".join(names) or "-" for names in named.values())])
    return _table(("job", *(f"{count} Spark{'s' if count > 1 else ''}" for count in counts)), lines)


def _short(image: str) -> str:
    """Return a reference to an image with the first digits of its digest."""
    return re.sub(r"(@sha256:[0-9a-f]{12})[0-9a-f]+", r"\1...", image)


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


def _variant(row: Mapping[str, Any]) -> str:
    return f" ({row['variant']})" if row["variant"] else ""


def _link(recipe: str) -> str:
    return f"[{recipe}](#{re.sub(r'[^a-z0-9_-]', '', recipe.lower())})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    recipes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))]
    return write_generated({PAGE: models_page(model_rows({recipe["name"]: recipe for recipe in recipes}))})


if __name__ == "__main__":
    sys.exit(main())
