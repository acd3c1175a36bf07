# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sections of spark_info as action plugins take them apart: a section without an answer is a failed answer with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.action import status
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import sections_apart


def test_sections_become_answers_of_their_own() -> None:
    host = {"spark": {}, "images": None, "health": {"soc_c": 48.2}, "unknown": {"images": "docker failed"}}
    said = sections_apart({"host": host, "deployed": {"recorded": {}}}, "host", "images", "health", "engines")
    assert said["images"] == {"failed": True, "msg": "docker failed"} and said["health"] == {"health": {"soc_c": 48.2}}
    assert "engines" not in said and said["deployed"] == {"recorded": {}} and said["host"] == host


@pytest.mark.parametrize("said", [{}, {"host": {"failed": True, "msg": "no root"}}, {"host": {"spark": {}}}])
def test_an_answer_without_the_section_stays_as_it_is(said: dict[str, Any]) -> None:
    assert sections_apart(said, "host", "images") == said


def asked(**answer: Any) -> dict[str, Any]:
    return {"reached": True, "answers": {"services": answer}}


def test_the_status_takes_facts_and_starts_together() -> None:
    spark, starts = {"units": [], "unknown": {"docker": "docker failed"}}, {"starting": {"heavy": {"stage": "load"}}}
    found = status.joined(asked(spark=spark, starts=starts, services=[], unknown={}), "services")
    host = found["answers"]["services"]["host"]
    assert host == {"units": [], "starting": {"heavy": {"stage": "load"}}, "unknown": {"docker": "docker failed"}}
    found = status.joined(asked(spark=spark, starts=None, services=[], unknown={"starts": "odd"}), "services")
    assert found["answers"]["services"]["host"]["unknown"] == {"docker": "docker failed", "starts": "odd"}


def test_services_that_are_unknown_make_the_answer_one_that_failed() -> None:
    found = status.joined(asked(spark={}, services=None, unknown={"services": "odd"}), "services")
    assert found["answers"]["services"] == {"failed": True, "msg": "odd"}


@pytest.mark.parametrize("answer", [{"failed": True, "msg": "no root"}, {}])
def test_an_answer_without_facts_is_left_to_the_judge(answer: dict[str, Any]) -> None:
    assert status.joined(asked(**answer), "services") == asked(**answer)
