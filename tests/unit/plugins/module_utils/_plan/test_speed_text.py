# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicted speeds in the plan for people: what stands in the terminal and on the page."""

from __future__ import annotations

from typing import Any

import pytest
from html_fixture import Reader
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture, plan, plan_page, speed_text

BIG = {"name": "big", "recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001}
SMALL = {
    "name": "small",
    "recipe": "qwen3-4b-instruct-2507",
    "port": 8002,
    "args": {"gpu-memory-utilization": 0.1, "max-model-len": 8192, "max-num-seqs": 2},
}
EMBED = {"name": "emb", "recipe": "qwen3-embedding-0.6b", "port": 8003, "args": {"gpu-memory-utilization": 0.05}}


def planned(*services: dict[str, Any]) -> dict[str, Any]:
    """The plan of a Spark with these services."""
    return plan.make_plan({"s1": {"vars": {"spark_services": list(services)}, "address": "192.0.2.1"}}, RECIPES)


def shared(*services: dict[str, Any]) -> dict[str, int]:
    """How many services share the bus with each."""
    return {service["name"]: service["speed"]["shared_by"] for service in planned(*services)["hosts"]["s1"]["services"]}


@pytest.mark.parametrize(
    ("value", "text"), [(13.84, "14"), (1.649, "1.6"), (0.154, "0.15"), (104.4, "104"), (99.6, "100"), (318, "318")]
)
def test_figures_are_as_exact_as_they_are_known(value: float, text: str) -> None:
    assert speed_text.figure(value) == text


def test_the_terminal_and_the_page_have_the_figures_of_the_plan() -> None:
    whole = planned(BIG, SMALL)
    speed = whole["hosts"]["s1"]["services"][0]["speed"]
    text = picture.plan_text(whole, [])
    page = Reader(plan_page.page(whole, [])).text
    for shown in (text, page):
        assert all(head in shown for head in speed_text.HEADS)
        for key in ("one_stream", "all_streams", "first_token_8k", "first_token_full"):
            assert speed_text.spread(speed[key]) in shown
        assert "2 services of the Spark answer at once" in shown


def test_a_column_without_figures_is_left_out_and_its_reason_stays() -> None:
    text = picture.plan_text(planned(EMBED), [])
    assert "first token, full" in text and "tok/s (1 stream)" not in text and "shared" not in text
    assert "emb: tokens per second unknown: a pooling model makes no tokens" in text
    assert speed_text.speed_rows({"a": {"name": "a"}}) == []


def test_services_of_one_set_do_not_share_the_bus() -> None:
    assert shared(BIG) == {"big": 1}
    assert shared(BIG, SMALL, EMBED) == dict.fromkeys(("big", "small", "emb"), 3)
    assert shared(BIG, {**SMALL, "state": "stopped"}, EMBED)["big"] == 2
    assert shared({**BIG, "exclusive": "one"}, {**SMALL, "exclusive": "one"}, EMBED)["emb"] == 2


def test_levers_are_shown_on_the_page_and_with_the_notes() -> None:
    whole = planned(BIG, SMALL)
    line = "chunks of 8192: set max-num-batched-tokens to 8192. Published: "
    assert line not in picture.plan_text(whole, [], notes=False)
    text, page = picture.plan_text(whole, [], notes=True), Reader(plan_page.page(whole, [])).text
    for shown in (text, page):
        assert speed_text.ADVICE in shown and shown.count(line) == 1


def test_hosts_with_other_speeds_are_not_alike() -> None:
    whole = planned(BIG)
    body = whole["hosts"]["s1"]
    other = {**body, "services": [{**body["services"][0], "speed": {}}]}
    assert len(picture.host_groups({"hosts": {"s1": body, "s2": other}})) == 2
