# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live page: escaped, without inline script or style, in parts that change on their own."""

from __future__ import annotations

import re
from typing import Any

from html_fixture import Reader
from live_fixture import CHECKS, answer, document, service, sparks, unit

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_page, live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_status import Spark
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.status_page import Endpoint

HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=1>"


def page(made: list[Spark], has_actions: bool = False, checks: Any = None) -> tuple[dict[str, str], str]:
    status, endpoints = live_status.report(made, checks or {}, "2026-11-29T04:00:00+00:00")
    parts = live_page.parts(status, made, endpoints, has_actions)
    ages = {live_page.part_id("host", spark.host): spark.at for spark in made}
    return parts, live_page.document(parts, ages, has_actions)


def test_it_works_without_a_script_and_its_policy_allows_no_inline_one() -> None:
    _parts, text = page(sparks(8), checks=CHECKS)
    reader = Reader(text)
    assert not [
        name for _tag, attributes in reader.tags for name in attributes if name == "style" or name.startswith("on")
    ]
    assert not re.search(r"<script>|<style", text) and '<noscript><meta http-equiv="refresh"' in text
    for expected in (
        "load 45 %, after 80 s",
        "its power supply limits it",
        "spark-6..7",
        "41.0 predicted",
        "3 running",
        "vLLM 0.33.0",
    ):
        assert expected in reader.text
    assert 'aria-label="memory: 40.7 GiB free of 119.7 GiB"' in text


def test_what_a_host_says_cannot_become_markup() -> None:
    made = document(
        HOSTILE, service(HOSTILE, vllm_version=HOSTILE, state="on_demand"), facts={"unknown": {"docker": HOSTILE}}
    )
    made["services"] = [answer(HOSTILE, silent=HOSTILE, proved=HOSTILE)]
    made["links"] = [{"name": HOSTILE, "up": False, "gbps": None}]
    spark = Spark(HOSTILE, live_status.parse(made, "s"), at=1e9)
    checks = {HOSTILE: {"url": f"http://{HOSTILE}", "ok": False, "error": HOSTILE, "hint": HOSTILE, "note": HOSTILE}}
    _parts, text = page([spark], True, checks)
    reader = Reader(text)
    scripts = [attributes for tag, attributes in reader.tags if tag == "script"]
    assert [attributes["src"] for attributes in scripts] == ["/uplot.js", "/live.js"]
    assert "img" not in {tag for tag, _attributes in reader.tags} and reader.text.count("alert(1)") >= 8


def test_a_cluster_is_one_row_with_the_worst_state() -> None:
    parts, _text = page(sparks(8))
    row = parts[live_page.part_id("service", "c1/giant")]
    assert "spark-6..7" in row and "2 ranks" in row and "79.0 GiB" in row
    assert sum(key.startswith("service-") for key in parts) == 9


def test_only_what_changes_is_another_part() -> None:
    made = sparks(8)
    before, _text = page(made)
    made[0].document["gpu"] = {**made[0].document["gpu"], "power_w": 30.0}  # type: ignore[index]
    later = [Spark(spark.host, spark.document, spark.why, 2e9) for spark in made]
    after, _text = page(later)
    assert [key for key in before if before[key] != after[key]] == [live_page.part_id("host", "spark-1")]


def test_ages_are_times_and_never_those_of_another_host() -> None:
    ages = {live_page.part_id("host", "a"): 0.0, live_page.part_id("host", "b"): None}
    assert live_page.with_ages(live_page.age("a"), ages).endswith(">00:00:00 UTC</time>")
    assert live_page.with_ages(live_page.age("b"), ages).endswith(">never</time>")
    assert live_page.with_ages(live_page.age("c"), ages).endswith(">never</time>")


def test_actions_are_those_that_the_state_allows() -> None:
    parts, _text = page(sparks(8), True)

    def verbs(name: str) -> list[str]:
        return re.findall(r'data-verb="(\w+)"', parts[live_page.part_id("service", name)])

    assert verbs("spark-1/heavy") == ["stop", "drain", "admit"]
    assert verbs("spark-2/heavy") == ["start"]
    assert verbs("spark-3/coder") == ["start", "warm", "cold", "auto"]
    assert verbs("c1/giant") == verbs("spark-8/heavy") == []
    assert "data-verb" not in "".join(page(sparks(8))[0].values())
    assert {verb for name in ("spark-1/heavy", "spark-3/coder") for verb in verbs(name)} == set(live_page.VERBS)


def test_unknown_memory_and_a_spark_that_was_never_seen() -> None:
    made = document("s1", facts={"memory": {"total_gib": None, "available_gib": None}, "units": [unit("heavy")]})
    made["gpu"], made["cpu_percent"], made["links"] = {}, None, []
    _parts, text = page([Spark("s1", live_status.parse(made, "s1")), Spark("s2", None, "refused")])
    assert "Its memory is not known." in text and "not known" in text and ">never<" in text


def test_a_page_with_another_shape_has_another_mark() -> None:
    assert live_page.shape(["a", "b"]) != live_page.shape(["a"]) == live_page.shape({"a": ""})


def test_endpoints() -> None:
    html = live_page._endpoints([Endpoint("gw", "h:1", True, note="fine")])
    assert "gw" in html and "up" in html and live_page._endpoints([]) == ""


def test_the_style_has_the_colours_of_the_other_pages() -> None:
    assert "--fails:" in live_page.css() and ".spark{" in live_page.css()
