#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/models.md from the recipes. Run with PYTHONPATH=collections; --check only compares."""

from __future__ import annotations

import sys

import yaml
from common import ROOT, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_table import model_rows, models_page

PAGE = ROOT / "docs" / "models.md"
RECIPES = ROOT / "playbooks" / "recipes"


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    recipes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yml"))]
    return write_generated({PAGE: models_page(model_rows({recipe["name"]: recipe for recipe in recipes}))})


if __name__ == "__main__":
    sys.exit(main())
