# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read launches and recipes of others as YAML."""

from __future__ import annotations

from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.importer import MOST_BYTES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import TooLarge, load_yaml


class BrokenYaml(ValueError):
    """A text is no YAML; the message has the place of the problem and none of the text."""


def document_of(text: str) -> Any:
    """Return a text as YAML, None for anything but a mapping."""
    try:
        return read_launch_yaml(text)
    except BrokenYaml:
        return None


def read_launch_yaml(text: str) -> Any:
    """Like C(document_of), but raises C(BrokenYaml) for invalid YAML."""
    if len(text) > MOST_BYTES:
        raise BrokenYaml(f"it has more than {MOST_BYTES // 1024} KiB")
    try:
        documents = [document for document in load_yaml(text, several=True) if document is not None]
        # Several documents are manifests of Kubernetes, whose kind List holds them.
        manifests = len(documents) > 1 and all(isinstance(item, dict) and "kind" in item for item in documents)
        document = {"apiVersion": "v1", "kind": "List", "items": documents} if manifests else load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BrokenYaml(f"{error.problem or 'cannot be read'}{where}") from None
    except TooLarge as error:
        raise BrokenYaml(str(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise BrokenYaml("it has characters or values that YAML does not have") from error
    return plain_dates(document) if isinstance(document, dict) else None


def plain_dates(value: Any) -> Any:
    """Return a YAML document with the types of JSON: dates of recipes become texts."""
    if isinstance(value, dict):
        return {str(key): plain_dates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_dates(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
