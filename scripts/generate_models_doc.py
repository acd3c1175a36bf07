#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/models.md from the recipes. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import model_rows, models_page

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
RECIPES = ROOT / "playbooks" / "recipes"


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    recipes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))]
    text = models_page(model_rows({recipe["name"]: recipe for recipe in recipes}))
    if "--check" in sys.argv[1:]:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE.name} is not what scripts/generate_models_doc.py writes; run it and commit the result.")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
