# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of recipes and other YAML, read on the controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

RECIPES = Path(__file__).resolve().parents[2] / "playbooks" / "recipes"
MOST_SIGNS = 1000
"""Signs of structure; a text with more of them might be nested so deeply that libyaml would take the process down."""
# libyaml where PyYAML has it: ten times as fast.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TooLarge(ValueError):
    """A text of YAML that is nested deeper, or has more entries, than can be worked with; the message says where."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain data. Raises OSError, and ValueError for a file that is no YAML or has what JSON has not."""
    if path.exists() and not path.is_file():  # a FIFO would keep its reader waiting
        raise ValueError("it is no ordinary file")
    try:
        return plain(load_yaml(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error


def load_yaml(text: str, several: bool = False) -> Any:
    """Return a text read as YAML, or a list of its documents where there may be several.

    Raises YAMLError or ValueError for what is none, and for what is nested as nobody writes it.

    libyaml itself goes down with a text of some ten thousand brackets, and takes the process with it.
    """
    if sum(text.count(sign) for sign in "[{-?:") > MOST_SIGNS:
        _check_depth(text)
    found = list(yaml.load_all(text, Loader=LOADER)) if several else yaml.load(text, Loader=LOADER)
    if why := plain_data.endless(found):
        _check_depth(text)
        raise TooLarge("its aliases hold each other too deeply" if why == plain_data.NESTED else why)
    return found


def _check_depth(text: str) -> None:
    """Raise ValueError with the line at which a text is nested too deeply, if it is."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > plain_data.DEEPEST:
            raise TooLarge(f"line {event.start_mark.line + 1 if event.start_mark else 1}: {plain_data.NESTED}")


def load_recipes(folders: list[Path]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Read every recipe of the folders; a later folder replaces a recipe of the same name."""
    found: dict[str, dict[str, Any]] = {}
    messages: list[str] = []
    for folder in folders:
        for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
            try:
                recipe = read_yaml(path)
            except (OSError, ValueError) as error:
                messages.append(f"recipe {path.name}: cannot be read: {error}")
                continue
            wrong = recipes.validate_recipe(recipe, path.name)
            messages += wrong
            if not wrong:
                found[str(recipe["name"])] = recipes.anchor_files(recipe, str(folder.resolve()))
    return found, messages
