# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of an action are the documented options of its module."""

from __future__ import annotations

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer
from ansible_collections.dgxspark.vllm.plugins.modules import import_recipe, rollout
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented


def test_the_specification_is_that_of_the_documentation() -> None:
    arguments = documented(rollout.DOCUMENTATION)
    assert arguments["step"] == {"type": "str", "required": True, "choices": ["order", "gate", "judge", "summary"]}
    assert arguments["results"] == {"type": "list", "elements": "dict", "default": []}
    assert arguments["canary"] == {"type": "raw", "default": ""}


def test_what_one_run_does_to_a_default_the_next_one_does_not_see() -> None:
    documented(rollout.DOCUMENTATION)["planned"]["default"]["spark-1"] = {}
    assert documented(rollout.DOCUMENTATION)["planned"]["default"] == {}


def test_every_form_of_a_launch_can_be_named() -> None:
    assert documented(import_recipe.DOCUMENTATION)["form"]["choices"] == ["auto", *importer.FORMS]
