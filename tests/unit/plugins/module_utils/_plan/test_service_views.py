# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Views of a planned service have the fields that modules read, and a plan has these fields."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.dgxspark.vllm.plugins.filter import service_view as plugin
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import service_views
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import service_arguments

MODULES = {
    "report": "spark_info",
    "proof": "service_proof",
    "support": "support_bundle",
}
RECIPE = Path(__file__).parents[5] / "playbooks" / "recipes" / "qwen3-8b.yml"
service_view = plugin.FilterModule().filters()["service_view"]


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    """A service as a plan has it."""
    known_recipes = {RECIPE.stem: yaml.safe_load(RECIPE.read_text(encoding="utf-8"))}
    variables = {"spark_services": [{"name": "heavy", "recipe": RECIPE.stem, "port": 8001}], "spark_total_gib": 119.67}
    planned = engine.make_plan({"spark": {"vars": variables, "address": "192.0.2.1"}}, known_recipes)["hosts"]["spark"]
    planned_service: dict[str, Any] = planned["services"][0]
    return planned_service


@pytest.mark.parametrize(("view", "module"), MODULES.items())
def test_a_module_is_given_what_it_reads(view: str, module: str) -> None:
    """Ansible refuses keys that a module does not have; a missing key would never be compared."""
    documentation = importlib.import_module(f"ansible_collections.dgxspark.vllm.plugins.modules.{module}").DOCUMENTATION
    read = {"report": service_arguments.SERVICE, "proof": {*service_arguments.PROVED} - {"cache_dir"}}.get(view)
    documented = re.findall(r"C\((\w+)\)", str(yaml.safe_load(documentation)["options"]["services"]["description"]))
    assert set(service_views.VIEWS[view]) == set(read or documented)


@pytest.mark.parametrize("view", service_views.VIEWS)
def test_a_plan_has_the_keys_of_a_view(service: dict[str, Any], view: str) -> None:
    # The gateway of a service is set after all hosts are planned, and not for every service; few are on demand or keep files.
    missing = set(service_views.VIEWS[view]) - set(service) - {"gateway", "on_demand", "kv_tiers"}
    assert missing == set()
    [fields] = service_view([service], view)
    assert fields == {key: service[key] for key in fields} and "folders" not in fields


def test_what_a_generation_lacks_its_view_lacks_too() -> None:
    fields = service_view([{"name": "heavy", "argv": ["docker"], "state": "started"}], "record")
    assert fields == [{"name": "heavy", "state": "started"}]
    assert service_view(fields, "proof") == [{"name": "heavy"}]


def test_views_are_documented() -> None:
    options = yaml.safe_load(plugin.DOCUMENTATION)["options"]
    assert options["view"]["choices"] == list(service_views.VIEWS)


def test_a_view_that_there_is_not_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match=r"no view 'prove'.*report, proof, record"):
        service_view([], "prove")
