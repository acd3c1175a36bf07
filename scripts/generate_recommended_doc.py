#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the table of recommended recipes into README and quick start: the choice of quickstart.yml.

Run with PYTHONPATH=collections; --check only compares. The table follows a line C(<!-- recommended: scripts/generate_recommended_doc.py -->).
"""

from __future__ import annotations

import re
import sys
from typing import Any

import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recommend

RECIPES = ROOT / "playbooks" / "recipes"
PAGES = {ROOT / "README.md": "docs/models.md"}
"""Pages with the table, and their link to the page of all models."""
BLOCK = re.compile(r"^(<!-- recommended: scripts/generate_recommended_doc\.py -->)\n\n?(?:\|.*\n)*\n?", re.MULTILINE)
SINGLE_SPARKS = 3
"""Recommended recipes for one Spark: as for so many Sparks that each serve another model."""


def picks() -> list[recommend.Pick]:
    """Return the recipes that quickstart.yml chooses for single Sparks, and the best for two Sparks."""
    read: list[dict[str, Any]] = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))
    ]
    recipes = {recipe["name"]: recipe for recipe in read}
    hosts = [f"{number}" for number in range(SINGLE_SPARKS)]
    single = recommend.recommend(recommend.ranked(recipes, 1), hosts).values()
    return [*single, *recommend.ranked(recipes, 2)[:1]]


def table(chosen: list[recommend.Pick], page: str) -> str:
    """Return the table. page: link to docs/models.md."""
    lines = [
        "| Sparks | recipe | weights, GiB per Spark | speed, one stream | for |",
        "|---|---|---|---|---|",
    ]
    for pick in chosen:
        anchor = re.sub(r"[^a-z0-9_-]", "", pick.recipe.lower())
        cells = (f"[{pick.recipe}]({page}#{anchor})", f"{pick.weights_gib:.1f}", f"{pick.rate}", ", ".join(pick.jobs))
        lines.append(f"| {pick.nodes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Write the pages, or compare them; returns the exit code."""
    chosen, texts = picks(), {}
    for path, page in PAGES.items():
        text, rows = path.read_text(encoding="utf-8"), table(chosen, page)
        texts[path] = BLOCK.sub(lambda match, rows=rows: f"{match[1]}\n\n{rows}\n\n", text)  # type: ignore[misc]
    return write_generated(texts)


if __name__ == "__main__":
    sys.exit(main())
