# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The descriptions of add-on services: options as keys of the schema, texts of findings, and imports without PyYAML."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import descriptions
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import component_versions, schema

WITHOUT_YAML = """
import sys
sys.modules["yaml"] = None  # an import of it fails
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons
"""


@pytest.mark.parametrize("place", sorted(descriptions.OPTIONS))
def test_each_default_is_a_right_value(place: str) -> None:
    for name, key in descriptions.OPTIONS[place].items():
        assert key.meaning, name
        assert key.default is None or schema.wrong(key, key.default) == "", name


def test_a_component_is_the_default_and_part_of_the_message() -> None:
    image = descriptions.options("spark_gateway")["image"]
    assert image.default == component_versions.LITELLM.ref
    assert schema.wrong(image, "a b") == f"is 'a b'; it must be a reference like {component_versions.LITELLM.ref}."


def test_a_finding_has_the_text_of_its_case() -> None:
    finding = descriptions.finding(
        "clients.model", "hermes", "clients.model.several", gateway="spark-1", count=2, known="a, b"
    )
    assert (finding.rule, finding.severity, finding.service) == ("clients.model", "error", "hermes")
    assert "the gateway on spark-1 has 2" in finding.message and finding.fix == "Set model to one of its aliases: a, b."
    with pytest.raises(KeyError, match="known"):
        descriptions.finding("clients.model", "hermes", "clients.model.several", gateway="spark-1", count=2)


def test_planners_are_imported_without_pyyaml() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_YAML], check=True)
