# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Malformed input of the memory budget: each mistake is named with its key, and all of them at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_fixture import fast

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.service_input import Start, read_params

START = {
    "exact": True,
    "max_model_len": 16384,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 8,
    "weights_gib": 7.5,
    "inside_gib": [-0.5, 1.25],
    "outside_gib": [2, 2],
}


def errors(**service: Any) -> list[str]:
    """The messages about a service of the 4B with further keys."""
    with pytest.raises(InputError) as caught:
        read_params({"services": [{**fast(), **service}]})
    return list(caught.value.messages)


def test_a_measured_start_is_read_with_the_least_and_the_most_of_each_term() -> None:
    (service,) = read_params({"services": [{**fast(), "starts": [START, {**START, "outside_gib": None}]}]})[1]
    start = Start(True, 16384, 8192, 8, 7.5, (-0.5, 1.25), (2.0, 2.0))
    assert service.starts == (start, replace(start, outside=None))


@pytest.mark.parametrize("bounds", [5, "12", {"low": 1, "high": 2}, [], [1], [1, 2, 3], [1, "2"], [1, True], [1, 1e7]])
def test_a_term_of_a_start_is_two_numbers(bounds: Any) -> None:
    (message,) = errors(starts=[{**START, "outside_gib": bounds}])
    assert message == (
        f"service fast: starts[0].outside_gib: expected the least and the most, two numbers, got {bounds!r}"
    )
