# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each vLLM version offers of a KV cache in files, against the catalogue of versions."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import kv_tiers
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.catalogue_data import VERSIONS
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import version

KINDS = ["full", "gdn"]


def test_the_history_is_in_order_and_of_known_versions() -> None:
    steps = [since for since, _ability in kv_tiers.HISTORY]
    assert steps == sorted(steps, key=version) and set(steps) <= set(VERSIONS.split())
    assert kv_tiers.LEAST in steps


@pytest.mark.parametrize("text", VERSIONS.split())
def test_each_version_is_refused_or_not(text: str) -> None:
    refused = kv_tiers.refusal(text, {}, KINDS, 1, 1)
    assert (refused is None) == (version(text) >= version("0.28.0"))
    if refused:
        assert text in refused[0] and "0.28.0" in refused[1]


@pytest.mark.parametrize(
    ("args", "kinds", "ranks", "sparks", "text"),
    [
        ({}, KINDS, 1, 2, "2 ranks"),
        ({}, KINDS, 4, 1, "4 ranks"),
        ({"enable-prefix-caching": False}, KINDS, 1, 1, "prefix caching"),
        ({"runner": "pooling"}, KINDS, 1, 1, "pooling"),
        ({}, ["full", "ring"], 1, 1, "ring"),
    ],
)
def test_reasons(args: dict[str, object], kinds: list[str], ranks: int, sparks: int, text: str) -> None:
    refused = kv_tiers.refusal("0.33.0", args, kinds, ranks, sparks)
    assert refused and text in refused[0]


def test_an_unknown_version_is_not_refused() -> None:
    assert kv_tiers.refusal(None, {}, [], 1, 1) is None


def test_own_settings_are_known_again() -> None:
    assert kv_tiers.is_file_tier(kv_tiers.transfer_config(1)["kv_connector_extra_config"])
    for extra in (
        {},
        {"secondary_tiers": None},
        {"secondary_tiers": ["fs"]},
        {"secondary_tiers": [{"root_dir": "/kv"}]},
    ):
        assert not kv_tiers.is_file_tier(extra)
