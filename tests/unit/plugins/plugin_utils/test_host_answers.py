# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sections of spark_info as action plugins take them apart: a section without an answer is a failed answer with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.action import status
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.reports import sections_apart


def test_sections_become_answers_of_their_own() -> None:
    host = {"spark": {}, "images": None, "health": {"soc_c": 48.2}, "unknown": {"images": "docker failed"}}
    answers = sections_apart({"host": host, "deployed": {"recorded": {}}}, "host", "images", "health", "engines")
    assert answers["images"] == {"failed": True, "msg": "docker failed"} and answers["health"] == {
        "health": {"soc_c": 48.2}
    }
    assert "engines" not in answers and answers["deployed"] == {"recorded": {}} and answers["host"] == host


@pytest.mark.parametrize("answers", [{}, {"host": {"failed": True, "msg": "no root"}}, {"host": {"spark": {}}}])
def test_an_answer_without_the_section_stays_as_it_is(answers: dict[str, Any]) -> None:
    assert sections_apart(answers, "host", "images") == answers


def spark_info(**answer: Any) -> dict[str, Any]:
    return {"reached": True, "answers": {"services": answer}}


def test_the_status_takes_facts_and_starts_together() -> None:
    spark, starts = {"units": [], "unknown": {"docker": "docker failed"}}, {"starting": {"heavy": {"stage": "load"}}}
    answer = status.joined(spark_info(spark=spark, starts=starts, services=[], unknown={}), "services")
    host = answer["answers"]["services"]["host"]
    assert host == {"units": [], "starting": {"heavy": {"stage": "load"}}, "unknown": {"docker": "docker failed"}}
    answer = status.joined(spark_info(spark=spark, starts=None, services=[], unknown={"starts": "odd"}), "services")
    assert answer["answers"]["services"]["host"]["unknown"] == {"docker": "docker failed", "starts": "odd"}


def test_services_that_are_unknown_make_the_answer_one_that_failed() -> None:
    answer = status.joined(spark_info(spark={}, services=None, unknown={"services": "odd"}), "services")
    assert answer["answers"]["services"] == {"failed": True, "msg": "odd"}


@pytest.mark.parametrize("answer", [{"failed": True, "msg": "no root"}, {}])
def test_an_answer_without_facts_is_left_to_the_judge(answer: dict[str, Any]) -> None:
    assert status.joined(spark_info(**answer), "services") == spark_info(**answer)
