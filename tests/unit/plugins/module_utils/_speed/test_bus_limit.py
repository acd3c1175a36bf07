# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rates that need more than the memory bus carries, and ranges of figures."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.reader import from_dict, to_dict
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed import service_speed
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.constants import Spread
from ansible_collections.dgxspark.vllm.plugins.module_utils._speed.service_speed import Range, ServiceSpeed

SPEED = ServiceSpeed(4, Range(30, 33, 36), ceiling=50.0, ceiling_all=160.0, bytes_per_token=5_460_000_000, levers=["a"])


@pytest.mark.parametrize(("requests", "drafted", "limit"), [(1, 0, 50.0), (2, 0, 100.0), (16, 0, 160.0), (1, 3, 200.0)])
def test_the_limit_follows_from_the_ceilings(requests: int, drafted: int, limit: float) -> None:
    speed = {**to_dict(SPEED), "drafted": drafted}
    assert service_speed.bus_limit(speed, requests) == limit
    assert service_speed.explain_impossible(speed, limit, requests) == ""
    reason = service_speed.explain_impossible(speed, 2 * limit, requests)
    assert "need 546 GB/s of each Spark, whose memory bus carries 273" in reason
    assert ("3 drafted tokens" in reason) is bool(drafted)


def test_nothing_is_impossible_without_a_ceiling() -> None:
    assert service_speed.bus_limit({}) is None and service_speed.explain_impossible({}, 1e9) == ""
    assert ServiceSpeed(1).limit() is None and SPEED.limit(2) == 100.0


def test_a_range_around_several_rates_holds_all_of_them() -> None:
    made = Range.around([8.0, 2.0], Spread.of(0.25))
    assert (made.low, made.typical, made.high) == (1.6, 4.0, 10.0)
    assert made.scaled(2).high == 20.0 and made.inverted(8) == Range(0.8, 2.0, 5.0)
    assert service_speed.round_figure(12345.6) == 12300


def test_a_speed_survives_as_plain_data() -> None:
    assert from_dict(ServiceSpeed, to_dict(SPEED)) == SPEED
