# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of C(spark_watchdog), and the values planned for the role."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import watchdog
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import wedge

HEAVY = endpoints.make("spark-1", "192.168.1.11", "heavy", "vllm", 8001, "0.0.0.0")
ASR = endpoints.make("spark-1", "192.168.1.11", "asr", "asr", 8765, "0.0.0.0")
FAST = endpoints.make("spark-2", "192.168.1.12", "fast", "vllm", 8001, "0.0.0.0")
FLEET = [HEAVY, ASR, FAST]


@pytest.mark.parametrize("value", [None, True, {}])
def test_it_is_on_by_default(value: Any) -> None:
    settings, messages = watchdog.read("spark-1", value)
    assert messages == [] and settings["enabled"] is True
    assert {key: settings[key] for key in asdict(wedge.Settings())} == asdict(wedge.Settings())


def test_it_can_be_switched_off() -> None:
    for value in (False, {"enabled": False}):
        settings, messages = watchdog.read("spark-1", value)
        assert messages == [] and settings["enabled"] is False
        assert watchdog.plan("spark-1", settings, FLEET)[0]["state"] == "absent"


def test_defaults_are_nobodys_to_change() -> None:
    first, _messages = watchdog.read("spark-1", None)
    first["leave_out"].append("heavy")
    first["services"]["heavy"] = {}
    second, _messages = watchdog.read("spark-1", None)
    assert second["leave_out"] == [] and second["services"] == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "must be true, false or a mapping, not a number"),
        ({"window": 60}, "unknown key 'window'; did you mean 'window_seconds'?"),
        ({"window_seconds": "60"}, "'window_seconds' is a text; it must be a number"),
        ({"window_seconds": True}, "'window_seconds' is a boolean; it must be a number"),
        ({"probes": 1}, "'probes' is 1; it must be a whole number from 2 to 10"),
        ({"probe_seconds": 2}, "'probe_seconds' is 2; it must be a number from 10 to 600"),
        ({"window_seconds": float("nan")}, "'window_seconds' is nan"),
        ({"window_seconds": 40}, "a window needs two checks"),
        (
            {"services": {"heavy": {"window_seconds": 50}}},
            "services.heavy.window_seconds: is 50 with checks every 30",
        ),
        ({"services": {"heavy": {"keep": 3}}}, "unknown key of services.heavy: 'keep'"),
        ({"services": {"heavy": {"probes": 99}}}, "'services.heavy.probes' is 99"),
        ({"services": {"heavy": False}}, "services.heavy: must be a mapping"),
        ({"leave_out": [1]}, "leave_out: 1 is not the name"),
        ({"leave_out": "heavy"}, "'leave_out' is a text; it must be a list"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(value: Any, words: str) -> None:
    _settings, messages = watchdog.read("spark-1", value)
    assert len(messages) == 1 and messages[0].startswith("host spark-1, spark_watchdog: ") and words in messages[0]


def test_the_role_is_given_what_the_host_watches() -> None:
    settings, _messages = watchdog.read("spark-1", {"window_seconds": 300, "services": {"heavy": {"probes": 3}}})
    outcome, findings = watchdog.plan("spark-1", settings, FLEET)
    assert findings == [] and outcome["state"] == "present"
    assert outcome["settings"]["window_seconds"] == 300 and outcome["settings"]["services"] == {"heavy": {"probes": 3}}
    assert "enabled" not in outcome["settings"]
    json.dumps(outcome)


def test_a_host_without_model_servers_has_no_watchdog() -> None:
    settings, _messages = watchdog.read("forge", None)
    assert watchdog.plan("forge", settings, FLEET)[0]["state"] == "absent"


def test_names_that_nobody_has_are_found() -> None:
    settings, _messages = watchdog.read(
        "spark-1", {"leave_out": ["fast"], "services": {"heavi": {}}, "max_restarts": 0}
    )
    _outcome, findings = watchdog.plan("spark-1", settings, FLEET)
    assert [finding.rule for finding in findings] == ["watchdog.unknown_service"] * 2 + ["watchdog.max_restarts"]
    assert "'heavi'" in findings[1].message and "did you mean 'heavy'?" in findings[1].message


def test_questions_are_off_and_their_facts_are_of_servers_that_are_asked() -> None:
    facts = {"heavy": {"tools": True, "backend": "spark-1/heavy"}, "fast": {"temperature": 0.6}}
    settings, _messages = watchdog.read("spark-1", None)
    assert settings["quality"] is False
    assert "engines" not in watchdog.plan("spark-1", settings, FLEET, facts)[0]["settings"]
    for value in ({"quality": True}, {"services": {"heavy": {"quality": True, "quality_looks": 5}}}):
        settings, messages = watchdog.read("spark-1", value)
        assert messages == []
        assert watchdog.plan("spark-1", settings, FLEET, facts)[0]["settings"]["engines"] == {"heavy": facts["heavy"]}
    settings, _messages = watchdog.read("spark-1", {"quality": True, "services": {"heavy": {"quality": False}}})
    assert "engines" not in watchdog.plan("spark-1", settings, FLEET, facts)[0]["settings"]
    for wrong in ({"quality_looks": 1}, {"quality_share": 90}, {"quality_tokens": 10}, {"quality": 3}):
        assert len(watchdog.read("spark-1", wrong)[1]) == 1
