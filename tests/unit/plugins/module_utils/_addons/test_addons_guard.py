# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of C(spark_guard), C(spark_host_protection) and C(spark_gpu_clocks), and the values planned for the role."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import guard
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import guard as runtime


def made(
    value: Any = None, protection: Any = None, clocks: Any = None, **more: Any
) -> tuple[dict[str, Any], list[Any]]:
    settings, wrong = guard.read("spark-1", value)
    shielded, also = guard.read_protection("spark-1", protection)
    limited, too = guard.read_clocks("spark-1", clocks)
    assert not [*wrong, *also, *too]
    services = more.get("services", {"heavy": 97.5, "fast": None})
    backends, neighbours = more.get("backends", {}), more.get("beside", [])
    return guard.plan(
        "spark-1", settings, shielded, limited, services, backends, neighbours, 9.2, left_gib=more.get("left")
    )


def test_it_is_on_by_default_and_so_is_the_protection() -> None:
    role, _findings = made()
    assert role["state"] == "present" and role["clocks"] == {}
    assert runtime.from_mapping(role["settings"]) == runtime.Settings() and role["settings"]["act"] is True
    assert role["protection"] == {
        key: value.default for key, value in guard.PROTECTION_KEYS.items() if key != "enabled"
    }
    assert made(False, False)[0]["state"] == "absent" and made(False, False)[0]["protection"] == {}


@pytest.mark.parametrize(
    ("value", "left_gib", "floors"),
    [
        ({}, None, (3.0, 5.0)),
        ({}, 20.0, (3.0, 5.0)),
        ({}, 5.0, (3.0, 3.75)),
        ({}, 3.0, (2.25, 2.25)),
        ({}, 2.0, (1.5, 1.5)),
        ({}, -4.0, (1.5, 1.5)),
        ({"last_gib": 2}, 2.0, (2.0, 2.0)),
        ({"floor_gib": 4}, 20.0, (4.0, 5.0)),
        ({"floor_gib": 4}, 2.0, (4.0, 4.0)),
        ({"start_floor_gib": 6}, 2.0, (1.5, 6.0)),
    ],
)
def test_floors_that_nobody_set_leave_a_full_host_calm(
    value: Any, left_gib: float | None, floors: tuple[float, float]
) -> None:
    """The floors are below the memory that the plan leaves free, or the guard would stop idle engines that fit next to the others."""
    settings = made(value, left=left_gib)[0]["settings"]
    assert (settings["floor_gib"], settings["start_floor_gib"]) == floors
    look = runtime.Look(1.0, round((left_gib if left_gib is not None else 20.0) * runtime.GIB))
    calm = runtime.level(runtime.from_mapping(settings), look) == runtime.CALM
    assert calm or value or (left_gib is not None and left_gib < guard.LEAST_FLOOR_GIB)


def test_a_floor_that_the_plan_cannot_keep_is_named() -> None:
    findings = made({"floor_gib": 4}, left=2.0)[1]
    assert [finding.rule for finding in findings] == ["guard.floor"] and "leaves 2.0 GiB free" in findings[0].message
    assert (
        made({"floor_gib": 4}, left=5.0)[1]
        == made({"floor_gib": 4})[1]
        == made({"floor_gib": 4, "enabled": False}, left=2.0)[1]
        == []
    )


def test_it_knows_the_plan() -> None:
    role, findings = made(True, True, backends={"heavy": "spark-1/heavy"}, beside=["spark-ollama", "spark-gateway"])
    assert role["state"] == "present" and findings == []
    settings = role["settings"]
    assert settings["order"] == ["heavy", "fast"] and settings["reserve_gib"] == 9.2
    assert settings["beside"] == ["spark-gateway", "spark-ollama"]
    assert settings["services"] == {
        "heavy": {"planned_gib": 97.5, "backend": "spark-1/heavy"},
        "fast": {},
    }
    # The process reads the planned settings and nothing else.
    assert runtime.from_mapping(settings) == runtime.Settings()
    assert role["protection"]["hardware_watchdog_seconds"] == 60 and role["clocks"] == {}


def test_each_part_is_switched_off_by_itself() -> None:
    assert made(False, True)[0]["state"] == "absent" and made(False, True)[0]["protection"]
    assert made(True, False)[0]["protection"] == {}
    assert made(True, services={})[0]["state"] == "absent"
    assert made(False, False, {"max_mhz": 2200})[0]["clocks"] == {"max_mhz": 2200, "min_mhz": 0}


def test_the_order_of_importance() -> None:
    role, findings = made({"order": ["fast", "gone"], "floor-gib": 4})
    assert role["settings"]["order"] == ["fast", "heavy"] and role["settings"]["floor_gib"] == 4.0
    assert [finding.rule for finding in findings] == ["guard.unknown_service"]


@pytest.mark.parametrize(
    ("read", "value", "text"),
    [
        (guard.read, 3, "spark_guard: must be true, false or a mapping"),
        (guard.read, {"florr_gib": 3}, "florr_gib"),
        (guard.read, {"last_gib": 4}, "last_gib: is 4, above floor_gib (3)"),
        (guard.read, {"start_floor_gib": 2}, "start_floor_gib: is 2, below floor_gib (3)"),
        (guard.read, {"order": [1]}, "order: 1 is not the name of a service"),
        (guard.read_protection, [], "spark_host_protection: must be true, false or a mapping"),
        (guard.read_protection, {"ssh_mib": -1}, "ssh_mib"),
        (guard.read_clocks, 2200, "must be a mapping such as {max_mhz: 2200}"),
        (guard.read_clocks, {"min_mhz": 300}, "max_mhz is missing"),
        (guard.read_clocks, {"max_mhz": 300, "min_mhz": 400}, "min_mhz: is 400, above max_mhz (300)"),
    ],
)
def test_what_is_wrong_is_named(read: Any, value: Any, text: str) -> None:
    _settings, wrong = read("spark-1", value)
    assert len(wrong) == 1 and text in wrong[0] and wrong[0].startswith("host spark-1, spark_")
