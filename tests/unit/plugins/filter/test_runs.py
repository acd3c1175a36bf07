# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of a run: which services, in which batches, and how a host is after an update."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.filter.host_batches import FilterModule as HostBatches
from ansible_collections.dgxspark.vllm.plugins.filter.service_select import FilterModule as ServiceSelect
from ansible_collections.dgxspark.vllm.plugins.filter.update_check import FilterModule as UpdateCheck

host_batches = HostBatches().filters()["host_batches"]
service_select = ServiceSelect().filters()["service_select"]
update_check = UpdateCheck().filters()["update_check"]

PAIR = {"name": "pair", "hosts": ["spark-2", "spark-3"]}
BIG = {"name": "big", "cluster": PAIR}
PLANNED: dict[str, Any] = {
    "spark-1": {"services": [{"name": "fast", "cluster": None}, {"name": "other", "cluster": None}]},
    "spark-2": {"services": [BIG]},
    "spark-3": {"services": [BIG]},
}
CLUSTERS = {"pair": PAIR}
ALL = list(PLANNED)


def test_service_select_finds_what_is_meant() -> None:
    selection = service_select(PLANNED, ALL, ["big"])
    assert selection == {"hosts": {"spark-1": [], "spark-2": ["big"], "spark-3": ["big"]}, "problems": []}
    assert service_select(PLANNED, ALL)["hosts"] == {
        "spark-1": ["fast", "other"],
        "spark-2": ["big"],
        "spark-3": ["big"],
    }


def test_speech_servers_on_demand_are_selected_by_name_alone() -> None:
    speech = {"services": [{"name": "ears", "on_demand": {"set": None}}, {"name": "talk"}]}
    addons = {"spark-1": {"speech": speech}, "spark-2": {"speech": None}}
    assert service_select(PLANNED, ALL, "ears,fast", addons=addons) == {
        "hosts": {"spark-1": ["fast", "ears"], "spark-2": [], "spark-3": []},
        "problems": [],
    }
    assert service_select(PLANNED, ALL, addons=addons) == service_select(PLANNED, ALL)
    for names, offered in (("talk", addons), ("ears", None)):
        assert (
            "the inventory has no service of this name"
            in service_select(PLANNED, ALL, names, addons=offered)["problems"][0]
        )
    assert "it is on spark-1" in service_select(PLANNED, ["spark-2"], "ears", addons=addons)["problems"][0]


def test_service_select_reports_all_problems_at_once() -> None:
    problems = service_select(PLANNED, ["spark-1", "spark-2"], "fats,big")["problems"]
    assert "did you mean 'fast'?" in problems[0] and "--limit spark-1,spark-2,spark-3" in problems[1]
    assert len(problems) == 2


def test_names_are_required_on_request_alone() -> None:
    assert service_select(PLANNED, ALL, " ,", "out")["problems"] == ["name the service: -e out=NAME"]
    assert service_select(PLANNED, ALL, "fast", "out")["problems"] == []


def test_host_batches_keep_a_pair_together() -> None:
    assert host_batches(ALL, CLUSTERS, 1) == {"batches": [["spark-1"], ["spark-2", "spark-3"]], "problem": ""}
    assert host_batches(ALL, CLUSTERS, "3")["batches"] == [ALL]
    part = host_batches(["spark-1", "spark-2"], CLUSTERS)
    assert part["batches"] == [] and "leaves out spark-3" in part["problem"]
    assert host_batches(["spark-1"], CLUSTERS)["batches"] == [["spark-1"]]


@pytest.mark.parametrize("size", [0, -1, "two", None])
def test_a_batch_has_a_host(size: Any) -> None:
    assert host_batches(ALL, CLUSTERS, size)["problem"] == f"the size of a batch is {size}; it must be 1 or more."


def test_update_check_says_what_is_worse() -> None:
    before = {"gpu": {"driver_version": "580.159.03"}, "docker": {"version": "29"}}
    after = {"gpu": {"driver_version": "580.178.04"}, "docker": {"version": "29"}}
    assert update_check(before, after) == {"worse": [], "changes": ["driver 580.159.03 -> 580.178.04"]}
    [worse] = update_check(before, {**after, "gpu": {}})["worse"]
    assert "nvidia-smi finds no GPU any more" in worse
