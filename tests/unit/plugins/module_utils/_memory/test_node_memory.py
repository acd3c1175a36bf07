# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings that are solved for a node with several engines, and the source of its free memory."""

from __future__ import annotations

from typing import Any

import pytest
from memory_fixture import service

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.node_memory import GROWTH_LIMIT, STEPS

MODEL = "Qwen3-4B-Instruct-2507"
LARGE = {"max_model_len": 131072, "max_num_seqs": 64}
"""More requests than any node holds, so that each engine grows until the memory is used up."""


def steps(*shares: float, **args: Any) -> list[int]:
    """The solved utilisations, in steps, of the same engine with several shares of the memory that is left."""
    services = [
        {**service(f"s{number}", MODEL, **{**LARGE, **args}), "share": share} for number, share in enumerate(shares)
    ]
    made = memory_budget({"total_gib": 119.67, "services": services})
    assert made["verdict"] == "fits"
    return [round(made["services"][f"s{number}"]["gpu_memory_utilization"] * STEPS) for number in range(len(shares))]


def test_engines_grow_by_their_shares() -> None:
    (least,) = steps(0)
    even, other = steps(1, 1)
    assert abs(even - other) <= 1 and even > least
    first, second = (size - least for size in steps(1, 3))
    assert second == pytest.approx(3 * first, abs=3)
    assert steps(0, 1)[0] == least
    assert even + other <= GROWTH_LIMIT * STEPS


def test_findings_name_the_source_of_free_memory() -> None:
    large = {"services": [service("x", MODEL, gpu_memory_utilization=0.98, max_model_len=4096)], "total_gib": 119.67}

    def sources(**node: Any) -> set[str]:
        findings = memory_budget({**large, **node})["findings"]
        return {finding["basis"] for finding in findings if finding["rule"] == "memory.free_at_start"}

    assert sources() == {"inventory"}
    assert sources(measured={"mem_available_gib": 100.0, "resident": []}) == {"measured"}
