# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipes that the collection ships, read once for all tests; who changes one copies it first."""

from __future__ import annotations

from typing import Any

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import recipe_files

FOLDER = recipe_files.RECIPES
RECIPES: dict[str, dict[str, Any]] = {path.stem: recipe_files.read_yaml(path) for path in sorted(FOLDER.glob("*.yml"))}
