# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of on_demand of an engine and of a speech server."""

from __future__ import annotations

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import on_demand_keys
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.validation import Problems


def test_what_is_left_out_has_a_default() -> None:
    problems = Problems("x")
    settings = on_demand_keys.read(problems, {"port": 8001, "on_demand": {"idle_minutes": 0.5, "retry_minutes": 1}})
    assert not problems.messages and settings["engine_port"] == 18001
    assert on_demand_keys.seconds(settings) == {
        "idle_seconds": 30, "minimum_seconds": 120, "hold_seconds": 900, "retry_seconds": 60, "priority": 0, "while_loading": "wait",
    }  # fmt: skip


def test_all_that_is_wrong_is_said() -> None:
    problems = Problems("x")
    on_demand_keys.read(
        problems, {"port": 8001, "on_demand": {"exclusive": "A B", "hold_minutes": 0, "engine_port": 8001}}
    )
    assert len(problems.messages) == 3
