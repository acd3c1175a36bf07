# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read files of recipes and other YAML on the controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

RECIPES = Path(__file__).resolve().parents[2] / "playbooks" / "recipes"
MOST_SIGNS = 1000
"""Signs of structure; a text with more of them may be nested so deeply that libyaml crashes."""
# libyaml if PyYAML has it: ten times as fast.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TooLarge(ValueError):
    """YAML that is nested too deeply or has too many entries; the message says where."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain data. Raises OSError, and ValueError for invalid YAML and for values that JSON lacks."""
    if path.exists() and not path.is_file():  # a FIFO would keep its reader waiting
        raise ValueError("it is no ordinary file")
    try:
        return plain(load_yaml(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error


def load_yaml(text: str, several: bool = False) -> Any:
    """Return a text as YAML, or the list of its documents if it may have several.

    Raises YAMLError or ValueError for invalid YAML and for extreme nesting: some ten thousand brackets crash libyaml,
    and the process with it.
    """
    if sum(text.count(sign) for sign in "[{-?:") > MOST_SIGNS:
        _check_depth(text)
    data = list(yaml.load_all(text, Loader=LOADER)) if several else yaml.load(text, Loader=LOADER)
    if why := plain_data.endless(data):
        _check_depth(text)
        raise TooLarge("its aliases are nested too deeply" if why == plain_data.NESTED else why)
    return data


def _check_depth(text: str) -> None:
    """Raise ValueError with the first line at which a text is nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > plain_data.DEEPEST:
            raise TooLarge(f"line {event.start_mark.line + 1 if event.start_mark else 1}: {plain_data.NESTED}")


def load_recipes(folders: list[Path]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return every recipe of the folders by name, and problems; a later folder replaces a recipe of the same name."""
    known_recipes: dict[str, dict[str, Any]] = {}
    messages: list[str] = []
    for folder in folders:
        for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
            try:
                recipe = read_yaml(path)
            except (OSError, ValueError) as error:
                messages.append(f"recipe {path.name}: cannot be read: {error}")
                continue
            problems = recipes.validate_recipe(recipe, path.name)
            messages += problems
            if not problems:
                known_recipes[str(recipe["name"])] = recipes.anchor_files(recipe, str(folder.resolve()))
    return known_recipes, messages
